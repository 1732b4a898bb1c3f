//! Columns of small whole numbers: one byte per value and two per index take a quarter to a third of the memory.
//!
//! Pixels, counts and one-hot vectors are small numbers. Fresh memory costs as much as parsing, so it is worth making
//! columns small while they are parsed, piece by piece, and widening them when they are packed. One-hot samples usually
//! have no other value than 1, which is then kept only once. Other entries have their index and their value next to each
//! other: sequences in random order are in no cache, and the processor waits once for each of them.
//!
//! Invariant: a widened number has the bits of the number that was made small.

use super::ragged::Form;
use super::values::{NumberType, Values, expect, expect_and, in_either_precision};
use crate::memory;
use cntkio_memory::small::Number;
use cntkio_simd::Pair;
use std::borrow::Cow;

/// Pairs, or offsets, for which a kernel asks memory at once are fewer.
pub(crate) const MOST_AT_ONCE: usize = 1 << 15;

/// Samples whose values are whole numbers from 0 to 255, with indices below 2^16.
#[derive(Debug, Clone, PartialEq)]
pub struct Small {
    /// Values of a sample, or the bound of its indices.
    pub dim: usize,
    /// True if values are in double precision when packed.
    pub becomes_double: bool,
    /// The values of dense samples, or the entries of sparse samples.
    pub numbers: Numbers,
    /// Of sparse samples: the first entry of each sample and, last, the number of entries; `None` while each sample has
    /// one.
    pub sample_offsets: Option<Vec<u32>>,
}

/// The numbers of small samples.
#[derive(Debug, Clone, PartialEq)]
pub enum Numbers {
    /// Dense samples, row by row.
    Dense(Vec<u8>),
    /// Entries of one value, not 0: the value, and the index of each.
    Alike(u8, Vec<u16>),
    /// The index and the value of each entry.
    Pairs(Vec<Pair>),
}

/// The offsets and the indices of sparse samples in full width.
pub(crate) type WideEntries<'a> = (&'a [u32], &'a [i32]);

impl Numbers {
    /// No numbers, in the memory of others.
    fn empty(is_sparse: bool, spare: Option<Numbers>) -> Numbers {
        match (is_sparse, spare) {
            (false, Some(Numbers::Dense(mut values))) => {
                values.clear();
                Numbers::Dense(values)
            }
            (false, _) => Numbers::Dense(Vec::new()),
            (true, Some(Numbers::Alike(value, mut indices))) => {
                indices.clear();
                Numbers::Alike(value, indices)
            }
            (true, Some(Numbers::Pairs(mut pairs))) => {
                pairs.clear();
                Numbers::Pairs(pairs)
            }
            (true, _) => Numbers::Pairs(Vec::new()),
        }
    }

    /// Number of values, or of entries.
    fn len(&self) -> usize {
        match self {
            Numbers::Dense(values) => values.len(),
            Numbers::Alike(_, indices) => indices.len(),
            Numbers::Pairs(pairs) => pairs.len(),
        }
    }

    /// Append entries if all are small; otherwise append nothing.
    fn append<T: Number<Small = u8> + PartialEq>(&mut self, indices: &[i32], values: &[T]) -> bool {
        if self.len() == 0 && !self.begin(values) {
            return false;
        }
        if let Numbers::Alike(value, own) = self {
            if are_all(values, (*value).into()) {
                return i32::narrow(indices, own);
            }
            // The values differ from here on, so each earlier entry gets a value of its own.
            let mut pairs = Vec::new();
            memory::reserve(&mut pairs, own.len() + indices.len());
            pairs.extend(own.iter().map(|index| [index.to_le_bytes()[0], index.to_le_bytes()[1], *value]));
            *self = Numbers::Pairs(pairs);
        }
        match self {
            Numbers::Pairs(pairs) => T::narrow_pairs(indices, values, pairs),
            Numbers::Dense(_) | Numbers::Alike(..) => false,
        }
    }

    /// Choose the form for the first entries; false if the first value is not small.
    fn begin<T: Number<Small = u8> + PartialEq>(&mut self, values: &[T]) -> bool {
        let Some(&first) = values.first() else {
            // Without entries, the memory of other numbers must not tell the form.
            *self = Numbers::Pairs(Vec::new());
            return true;
        };
        let mut small = Vec::new();
        if !T::narrow(&[first], &mut small) {
            return false;
        }
        // Equal numbers have the same bits unless they are 0 and -0.
        let is_one_value = small[0] != 0 && are_all(values, first);
        *self = match (is_one_value, std::mem::replace(self, Numbers::Pairs(Vec::new()))) {
            (true, Numbers::Alike(_, indices)) => Numbers::Alike(small[0], indices),
            (true, _) => Numbers::Alike(small[0], Vec::new()),
            (false, Numbers::Pairs(pairs)) => Numbers::Pairs(pairs),
            (false, _) => Numbers::Pairs(Vec::new()),
        };
        true
    }

    /// The values of dense samples, or of all entries.
    pub(crate) fn values(&self) -> Cow<'_, [u8]> {
        match self {
            Numbers::Dense(values) => Cow::Borrowed(values),
            Numbers::Alike(value, indices) => Cow::Owned(vec![*value; indices.len()]),
            Numbers::Pairs(pairs) => Cow::Owned(memory::collected(pairs.iter().map(|&[.., value]| value))),
        }
    }

    /// The indices of all entries; `None` of dense samples.
    pub(crate) fn indices(&self) -> Option<Cow<'_, [u16]>> {
        match self {
            Numbers::Dense(_) => None,
            Numbers::Alike(_, indices) => Some(Cow::Borrowed(indices)),
            Numbers::Pairs(pairs) => {
                let index = |&[low, high, _]: &Pair| u16::from_le_bytes([low, high]);
                Some(Cow::Owned(memory::collected(pairs.iter().map(index))))
            }
        }
    }
}

impl Small {
    /// Make samples small, in the memory of `spare`; `None` if one of their numbers is not small.
    pub(crate) fn of(dim: usize, values: &Values, entries: Option<WideEntries>, spare: Option<Small>) -> Option<Small> {
        let numbers = Numbers::empty(entries.is_some(), spare.map(|spare| spare.numbers));
        let becomes_double = values.number() == NumberType::F64;
        let mut small = Small { dim, becomes_double, numbers, sample_offsets: None };
        small.append(values, entries).then_some(small)
    }

    /// Append samples of the same form if all their numbers are small; otherwise append nothing.
    pub(crate) fn append(&mut self, values: &Values, entries: Option<WideEntries>) -> bool {
        match values {
            Values::F32(values) => self.append_floats(values, entries),
            Values::F64(values) => self.append_floats(values, entries),
            // Whole numbers have a small form of their own, `Narrow`.
            Values::I32(_) | Values::I64(_) => false,
        }
    }

    fn append_floats<T: Number<Small = u8> + PartialEq>(&mut self, values: &[T], entries: Option<WideEntries>) -> bool {
        let Some((sample_offsets, indices)) = entries else {
            return if let Numbers::Dense(own) = &mut self.numbers { T::narrow(values, own) } else { false };
        };
        let num_entries = self.numbers.len() as u32;
        let are_small = self.numbers.append(indices, values);
        if are_small {
            self.append_offsets(num_entries, sample_offsets);
        }
        are_small
    }

    /// The vectors that samples of pairs are appended to; `None` if the samples are in another form.
    pub(crate) fn pairs(&mut self) -> Option<(&mut Vec<u32>, &mut Vec<Pair>)> {
        match self {
            Small { numbers: Numbers::Pairs(pairs), sample_offsets: Some(offsets), .. } => Some((offsets, pairs)),
            _ => None,
        }
    }

    /// Append samples of one entry each if all are small; otherwise append nothing.
    pub(crate) fn append_one_hots(&mut self, indices: &[i32], values: &[f32]) -> bool {
        let num_entries = self.numbers.len() as u32;
        let are_small = self.numbers.append(indices, values);
        if are_small && let Some(offsets) = &mut self.sample_offsets {
            memory::extend(offsets, (0..indices.len() as u32).map(|entry| num_entries + entry + 1));
        }
        are_small
    }

    /// Drop the last sparse samples.
    pub(crate) fn drop_last(&mut self, num_samples: usize) {
        let num_entries = match &mut self.sample_offsets {
            None => self.numbers.len() - num_samples,
            Some(offsets) => {
                offsets.truncate(offsets.len() - num_samples);
                offsets.last().map_or(0, |&end| end as usize)
            }
        };
        match &mut self.numbers {
            Numbers::Alike(_, indices) => indices.truncate(num_entries),
            Numbers::Pairs(pairs) => pairs.truncate(num_entries),
            Numbers::Dense(_) => {}
        }
    }

    /// [`expect`] `ratio` times as many samples.
    pub(crate) fn expect(&mut self, ratio: f64) {
        match &mut self.numbers {
            Numbers::Dense(values) => expect(values, ratio),
            Numbers::Alike(_, indices) => expect(indices, ratio),
            Numbers::Pairs(pairs) => expect_and(pairs, ratio, MOST_AT_ONCE),
        }
        self.sample_offsets.iter_mut().for_each(|offsets| expect_and(offsets, ratio, MOST_AT_ONCE));
    }

    /// Widen these samples and put them before others.
    pub(crate) fn prepend_to(
        &self,
        num_samples: usize,
        values: &mut Values,
        entries: Option<(&mut Vec<u32>, &mut Vec<i32>)>,
    ) {
        if let (Some(small), Some((sample_offsets, indices))) = (self.numbers.indices(), entries) {
            let num_entries = small.len() as u32;
            let mut offsets = Vec::new();
            memory::reserve(&mut offsets, num_samples + sample_offsets.len());
            match &self.sample_offsets {
                Some(own) => offsets.extend_from_slice(&own[..num_samples]),
                None => offsets.extend(0..num_samples as u32),
            }
            offsets.extend(sample_offsets.iter().map(|&at| num_entries + at));
            *sample_offsets = offsets;
            prepend(&small, indices);
        }
        let each = self.numbers.values();
        // `append` makes only floats small, so the values are floats, too.
        in_either_precision!(values, values => prepend(&each, values), else unreachable!("small numbers are floats"));
    }

    pub(crate) fn form(&self) -> Form {
        let is_sparse = !matches!(self.numbers, Numbers::Dense(_));
        Form { dim: self.dim, is_sparse, number: NumberType::float(self.becomes_double) }
    }

    /// Check that offsets, indices and values belong together; the message says which do not.
    pub(crate) fn check(&self, num_samples: usize) -> Result<(), String> {
        let num_numbers = self.numbers.len();
        let Some(indices) = self.numbers.indices() else {
            return match num_samples.checked_mul(self.dim) == Some(num_numbers) {
                true => Ok(()),
                false => Err(format!("{num_samples} samples of {} values, but {num_numbers} values", self.dim)),
            };
        };
        let num_entries = match &self.sample_offsets {
            None => num_samples,
            Some(offsets) => {
                super::check_offsets("sample offsets", offsets, num_samples)?;
                offsets[num_samples] as usize
            }
        };
        if num_numbers != num_entries {
            return Err(format!("{num_entries} entries, but {num_numbers} indices"));
        }
        // The type of an index bounds it by 2^16, but not by the dimension.
        match indices.iter().find(|&&index| usize::from(index) >= self.dim) {
            Some(index) => Err(format!("index {index}, but the dimension is {}", self.dim)),
            None => Ok(()),
        }
    }

    /// Bytes of values and indices when packed, roughly.
    pub(crate) fn packed_bytes(&self) -> usize {
        let width = if self.becomes_double { 8 } else { 4 };
        self.numbers.len() * if self.form().is_sparse { 4 + width } else { width }
    }

    /// Bytes of memory.
    pub(crate) fn num_bytes(&self) -> usize {
        let of_numbers = match &self.numbers {
            Numbers::Dense(values) => values.len(),
            Numbers::Alike(_, indices) => size_of_val(&indices[..]),
            Numbers::Pairs(pairs) => size_of_val(&pairs[..]),
        };
        of_numbers + self.sample_offsets.as_ref().map_or(0, |offsets| size_of_val(&offsets[..]))
    }

    /// Bytes of memory that is reserved.
    pub(crate) fn capacity_in_bytes(&self) -> usize {
        let of_numbers = match &self.numbers {
            Numbers::Dense(values) => values.capacity(),
            Numbers::Alike(_, indices) => 2 * indices.capacity(),
            Numbers::Pairs(pairs) => 3 * pairs.capacity(),
        };
        of_numbers + self.sample_offsets.as_ref().map_or(0, |offsets| 4 * offsets.capacity())
    }

    /// Append offsets, which count from 0, to the offsets of `num_entries` entries.
    fn append_offsets(&mut self, num_entries: u32, offsets: &[u32]) {
        if self.sample_offsets.is_none() {
            // Samples of one entry each need no offsets.
            if super::count_one_by_one(offsets) {
                return;
            }
            let mut all = Vec::new();
            memory::reserve(&mut all, num_entries as usize + offsets.len());
            all.extend(0..=num_entries);
            self.sample_offsets = Some(all);
        }
        if let Some(all) = &mut self.sample_offsets {
            memory::extend(all, offsets.iter().skip(1).map(|&at| num_entries + at));
        }
    }
}

const COMPARED_AT_ONCE: usize = 1 << 10;

/// Compare all numbers, many at once: the comparison of some of them does not end at the first other one.
fn are_all<T: PartialEq + Copy>(numbers: &[T], wanted: T) -> bool {
    let some_are = |some: &[T]| some.iter().fold(true, |are_all, &number| are_all & (number == wanted));
    numbers.chunks(COMPARED_AT_ONCE).all(some_are)
}

/// Put widened numbers before others.
fn prepend<T: Number>(small: &[T::Small], wide: &mut Vec<T>) {
    let mut all = Vec::new();
    memory::reserve(&mut all, small.len() + wide.len());
    all.extend(small.iter().map(|&small| T::widened(small)));
    all.extend_from_slice(wide);
    *wide = all;
}
