//! Columns of small whole numbers: one byte per value and two per index take a quarter to a third of the memory.
//!
//! Pixels, counts and one-hot vectors are small numbers. Fresh memory costs as much as parsing, so it is worth making
//! columns small while they are parsed, piece by piece, and widening them when they are packed. One-hot samples usually
//! have no other value than 1, which is then kept only once.
//!
//! Invariant: a widened number has the bits of the number that was made small.

use super::ragged::Form;
use super::values::{NumberType, Values, expect, in_either_precision};
use crate::memory;
use cntkio_memory::small::Widens;
use std::borrow::Cow;
use std::ops::Range;

/// Samples whose values are whole numbers from 0 to 255, with indices below 2^16.
#[derive(Debug, Clone, PartialEq)]
pub struct Small {
    /// Values of a sample, or the bound of its indices.
    pub dim: usize,
    /// True if values are in double precision when packed.
    pub becomes_double: bool,
    /// All samples, row by row, or the values of all entries; a single value if all entries have that value.
    pub values: Vec<u8>,
    /// The entries of sparse samples.
    pub entries: Option<Entries>,
}

/// The entries of sparse samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Entries {
    /// The first entry of each sample and, last, the number of entries; `None` while each sample has one.
    pub sample_offsets: Option<Vec<u32>>,
    /// The index of each entry, 0 to `dim - 1`.
    pub indices: Vec<u16>,
}

/// The offsets and the indices of sparse samples in full width.
pub(crate) type WideEntries<'a> = (&'a [u32], &'a [i32]);

impl Small {
    /// Make samples small, in the memory of `spare`; `None` if one of their numbers is not small.
    pub(crate) fn of(dim: usize, values: &Values, entries: Option<WideEntries>, spare: Option<Small>) -> Option<Small> {
        let (mut small_values, spare) = spare.map(|spare| (spare.values, spare.entries)).unwrap_or_default();
        small_values.clear();
        let small_entries = entries.map(|_| {
            let mut indices = spare.map(|spare| spare.indices).unwrap_or_default();
            indices.clear();
            Entries { sample_offsets: None, indices }
        });
        let becomes_double = values.number() == NumberType::F64;
        let mut small = Small { dim, becomes_double, values: small_values, entries: small_entries };
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

    fn append_floats<T: Widens<Small = u8> + PartialEq>(&mut self, values: &[T], entries: Option<WideEntries>) -> bool {
        let (Some((sample_offsets, indices)), Some(own)) = (entries, &mut self.entries) else {
            return T::narrow(values, &mut self.values);
        };
        let num_entries = own.indices.len();
        if !append_values(&mut self.values, num_entries, values) || !i32::narrow(indices, &mut own.indices) {
            // The values may have been appended before the indices were found to be too large.
            self.values.truncate(num_entries);
            return false;
        }
        own.append_offsets(num_entries as u32, sample_offsets);
        true
    }

    /// [`expect`] `ratio` times as many samples.
    pub(crate) fn expect(&mut self, ratio: f64) {
        // A single value stands for any number of entries, so it never grows.
        if self.same_value().is_none() {
            expect(&mut self.values, ratio);
        }
        if let Some(Entries { sample_offsets, indices }) = &mut self.entries {
            expect(indices, ratio);
            sample_offsets.iter_mut().for_each(|offsets| expect(offsets, ratio));
        }
    }

    /// Widen these samples and put them before others.
    pub(crate) fn prepend_to(
        &self,
        num_samples: usize,
        values: &mut Values,
        entries: Option<(&mut Vec<u32>, &mut Vec<i32>)>,
    ) {
        if let (Some(small), Some((sample_offsets, indices))) = (&self.entries, entries) {
            let num_entries = small.indices.len() as u32;
            let mut offsets = Vec::new();
            memory::reserve(&mut offsets, num_samples + sample_offsets.len());
            // Small samples of one entry each have no offsets, so their offsets are made here.
            offsets.extend((0..num_samples).map(|sample| small.range(sample..sample).start as u32));
            offsets.extend(sample_offsets.iter().map(|&at| num_entries + at));
            *sample_offsets = offsets;
            prepend(&small.indices, indices);
        }
        let each = self.each_value();
        // `append` makes only floats small, so the values are floats, too.
        in_either_precision!(values, values => prepend(&each, values), else unreachable!("small numbers are floats"));
    }

    /// The value that all entries have; `None` if each entry or dense sample has values of its own.
    pub(crate) fn same_value(&self) -> Option<u8> {
        match (&self.values[..], &self.entries) {
            // With one entry, the value is that entry's own.
            (&[value], Some(entries)) if entries.indices.len() != 1 => Some(value),
            _ => None,
        }
    }

    /// All samples, row by row, or the value of each entry.
    pub(crate) fn each_value(&self) -> Cow<'_, [u8]> {
        match (self.same_value(), &self.entries) {
            (Some(value), Some(entries)) => Cow::Owned(vec![value; entries.indices.len()]),
            _ => Cow::Borrowed(&self.values),
        }
    }

    pub(crate) fn form(&self) -> Form {
        Form { dim: self.dim, is_sparse: self.entries.is_some(), number: NumberType::float(self.becomes_double) }
    }

    /// Check that offsets, indices and values belong together; the message says which do not.
    pub(crate) fn check(&self, num_samples: usize) -> Result<(), String> {
        let num_values = self.values.len();
        let Some(Entries { sample_offsets, indices }) = &self.entries else {
            return match num_samples.checked_mul(self.dim) == Some(num_values) {
                true => Ok(()),
                false => Err(format!("{num_samples} samples of {} values, but {num_values} values", self.dim)),
            };
        };
        let num_entries = match sample_offsets {
            None => num_samples,
            Some(offsets) => {
                super::check_offsets("sample offsets", offsets, num_samples)?;
                offsets[num_samples] as usize
            }
        };
        if indices.len() != num_entries || (num_values != num_entries && self.same_value().is_none()) {
            return Err(format!("{num_entries} entries, but {} indices and {num_values} values", indices.len()));
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
        self.entries.as_ref().map_or(self.values.len() * width, |entries| entries.indices.len() * (4 + width))
    }

    /// Bytes of memory.
    pub(crate) fn num_bytes(&self) -> usize {
        let offsets = |entries: &Entries| entries.sample_offsets.as_ref().map_or(0, |offsets| 4 * offsets.len());
        self.values.len() + self.entries.as_ref().map_or(0, |entries| 2 * entries.indices.len() + offsets(entries))
    }

    /// Bytes of memory that is reserved.
    pub(crate) fn capacity_in_bytes(&self) -> usize {
        let offsets = |entries: &Entries| entries.sample_offsets.as_ref().map_or(0, |offsets| 4 * offsets.capacity());
        let of_entries = |entries: &Entries| 2 * entries.indices.capacity() + offsets(entries);
        self.values.capacity() + self.entries.as_ref().map_or(0, of_entries)
    }
}

/// Append the values of further entries if all are small; otherwise append nothing. The values stay a single one while
/// all entries have that value.
fn append_values<T: Widens<Small = u8> + PartialEq>(own: &mut Vec<u8>, num_entries: usize, values: &[T]) -> bool {
    // As many values as this mean that all entries so far have the same value, or that no entry has come yet.
    let (Some(&first), true) = (values.first(), own.len() == num_entries.min(1)) else {
        return T::narrow(values, own);
    };
    if num_entries == 0 && !T::narrow(&[first], own) {
        return false;
    }
    let value = own[0];
    // Equal numbers have the same bits unless they are 0 and -0.
    if value != 0 && values.chunks(COMPARED_AT_ONCE).all(|some| are_all(some, T::widened(value))) {
        return true;
    }
    // The values differ from here on, so each earlier entry gets a value of its own.
    own.clear();
    own.resize(num_entries, value);
    T::narrow(values, own)
}

const COMPARED_AT_ONCE: usize = 1 << 10;

/// Compare all numbers, without an end at the first other one, so that many are compared at once.
fn are_all<T: PartialEq + Copy>(numbers: &[T], wanted: T) -> bool {
    numbers.iter().fold(true, |are_all, &number| are_all & (number == wanted))
}

/// Put widened numbers before others.
fn prepend<T: Widens>(small: &[T::Small], wide: &mut Vec<T>) {
    let mut all = Vec::new();
    memory::reserve(&mut all, small.len() + wide.len());
    all.extend(small.iter().map(|&small| T::widened(small)));
    all.extend_from_slice(wide);
    *wide = all;
}

impl Entries {
    /// The entries of some samples.
    #[inline]
    pub(crate) fn range(&self, samples: Range<usize>) -> Range<usize> {
        match &self.sample_offsets {
            Some(offsets) => offsets[samples.start] as usize..offsets[samples.end] as usize,
            None => samples,
        }
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
