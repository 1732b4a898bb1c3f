//! Columns of small whole numbers: one byte per value and two per index take a quarter to a third of the memory.
//!
//! Pixels, counts and one-hot vectors are small numbers. Fresh memory costs as much as parsing, so it is worth making
//! columns small while they are parsed, piece by piece, and widening them when they are packed.
//!
//! Invariant: a widened number has the bits of the number that was made small.

use super::ragged::Form;
use super::values::{NumberType, Values, expect, in_either_precision};
use crate::memory;
use cntkio_memory::small::Widens;
use std::ops::Range;

/// Samples whose values are whole numbers from 0 to 255, with indices below 2^16.
#[derive(Debug, Clone, PartialEq)]
pub struct Small {
    /// Values of a sample, or the bound of its indices.
    pub dim: usize,
    /// True if values are in double precision when packed.
    pub becomes_double: bool,
    /// All samples, row by row, or the values of all entries.
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
        let num_entries = self.values.len();
        // `narrow` finds the memory reserved.
        memory::reserve(&mut self.values, values.len());
        if let (Some((_, indices)), Some(entries)) = (entries, &mut self.entries) {
            memory::reserve(&mut entries.indices, indices.len());
        }
        let are_small = match values {
            Values::F32(values) => f32::narrow(values, &mut self.values),
            Values::F64(values) => f64::narrow(values, &mut self.values),
            Values::I32(_) | Values::I64(_) => false,
        };
        let (Some((sample_offsets, indices)), Some(entries)) = (entries, &mut self.entries) else {
            return are_small;
        };
        if !are_small || !i32::narrow(indices, &mut entries.indices) {
            self.values.truncate(num_entries);
            return false;
        }
        entries.append_offsets(num_entries as u32, sample_offsets);
        true
    }

    /// [`expect`] `ratio` times as many samples.
    pub(crate) fn expect(&mut self, ratio: f64) {
        expect(&mut self.values, ratio);
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
            let num_entries = self.values.len() as u32;
            let mut offsets = Vec::new();
            memory::reserve(&mut offsets, num_samples + sample_offsets.len());
            offsets.extend((0..num_samples).map(|sample| small.range(sample..sample).start as u32));
            offsets.extend(sample_offsets.iter().map(|&at| num_entries + at));
            *sample_offsets = offsets;
            prepend(&small.indices, indices);
        }
        in_either_precision!(values, values => prepend(&self.values, values), else unreachable!("small numbers are floats"));
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
        if (indices.len(), num_values) != (num_entries, num_entries) {
            return Err(format!("{num_entries} entries, but {} indices and {num_values} values", indices.len()));
        }
        match indices.iter().find(|&&index| usize::from(index) >= self.dim) {
            Some(index) => Err(format!("index {index}, but the dimension is {}", self.dim)),
            None => Ok(()),
        }
    }

    /// Bytes of values and indices when packed, roughly.
    pub(crate) fn packed_bytes(&self) -> usize {
        let width = if self.becomes_double { 8 } else { 4 };
        self.values.len() * if self.entries.is_some() { 4 + width } else { width }
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
