//! Columns of small whole numbers: a byte a value and two an index, a quarter to a third of the memory.
//!
//! Pixels, counts and one-hot vectors are such. Fresh memory costs as much as parsing, so that it pays to make columns small
//! as they are parsed, piece by piece, and to widen them when they are packed.
//!
//! The law: what is widened has the bits of what was made small.

use crate::chunk::{Samples, Values, expect};
use cntkio_simd::memory::Widens;
use std::ops::Range;

/// Samples whose values are whole, 0 to 255, with indices below 2^16.
#[derive(Debug, Clone, PartialEq)]
pub struct Small {
    /// Values of a sample, or the bound of its indices.
    pub dim: usize,
    /// Whether values are in double precision when packed.
    pub becomes_double: bool,
    /// All samples, row by row, or one for each index.
    pub values: Vec<u8>,
    /// Of a sparse stream.
    pub entries: Option<Entries>,
}

/// The entries of sparse samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Entries {
    /// Where each sample's begin, and where the last one's end; `None` while each has one.
    pub sample_offsets: Option<Vec<u32>>,
    /// 0 to `dim - 1` each.
    pub indices: Vec<u16>,
}

impl Small {
    /// Dense and sparse samples in their small form, in the memory of `spare`; `None` if one has none.
    pub(crate) fn of(samples: &Samples, spare: Option<Small>) -> Option<Small> {
        let mut small = Small::empty(samples, spare)?;
        small.append(samples).then_some(small)
    }

    fn empty(samples: &Samples, spare: Option<Small>) -> Option<Small> {
        let (dim, becomes_double) = (samples.dim(), samples.is_double());
        let (mut values, entries) = spare.map(|spare| (spare.values, spare.entries)).unwrap_or_default();
        values.clear();
        let entries = match samples {
            Samples::Dense { .. } => None,
            Samples::Sparse { .. } => {
                let mut indices = entries.map(|entries| entries.indices).unwrap_or_default();
                indices.clear();
                Some(Entries { sample_offsets: None, indices })
            }
            _ => return None,
        };
        Some(Small { dim, becomes_double, values, entries })
    }

    /// Append samples of the same stream if all have a small form; otherwise nothing.
    pub(crate) fn append(&mut self, samples: &Samples) -> bool {
        let values = match samples {
            Samples::Dense { values, .. } | Samples::Sparse { values, .. } => values,
            _ => return false,
        };
        let num_entries = self.values.len();
        let are_small = match values {
            Values::F32(values) => f32::narrow(values, &mut self.values),
            Values::F64(values) => f64::narrow(values, &mut self.values),
        };
        let (Samples::Sparse { sample_offsets, indices, .. }, Some(entries)) = (samples, &mut self.entries) else {
            return are_small;
        };
        if !are_small || !i32::narrow(indices, &mut entries.indices) {
            self.values.truncate(num_entries);
            return false;
        }
        entries.append_offsets(num_entries as u32, sample_offsets);
        true
    }

    /// Make room for `ratio` times what there is.
    pub(crate) fn expect(&mut self, ratio: f64) {
        expect(&mut self.values, ratio);
        if let Some(Entries { sample_offsets, indices }) = &mut self.entries {
            expect(indices, ratio);
            sample_offsets.iter_mut().for_each(|offsets| expect(offsets, ratio));
        }
    }

    /// The same as they were, at the start of those columns.
    pub(crate) fn widen_before(&self, samples: &mut Samples, num_samples: usize) {
        let values = match samples {
            Samples::Dense { values, .. } => values,
            Samples::Sparse { sample_offsets, indices, values, .. } => {
                let Some(entries) = &self.entries else { return };
                let before = self.values.len() as u32;
                let first = (0..num_samples).map(|sample| entries.range(sample, sample).start as u32);
                *sample_offsets = first.chain(sample_offsets.iter().map(|&at| before + at)).collect();
                *indices = widened_before(&entries.indices, indices);
                values
            }
            _ => return,
        };
        match values {
            Values::F32(values) => *values = widened_before(&self.values, values),
            Values::F64(values) => *values = widened_before(&self.values, values),
        }
    }

    /// Bytes of its values and entries when packed, roughly.
    pub(crate) fn packed_size(&self) -> usize {
        let width = if self.becomes_double { 8 } else { 4 };
        self.values.len() * if self.entries.is_some() { 4 + width } else { width }
    }

    /// Bytes of memory that it takes.
    pub(crate) fn num_bytes(&self) -> usize {
        let offsets = |entries: &Entries| entries.sample_offsets.as_ref().map_or(0, |offsets| 4 * offsets.len());
        self.values.len() + self.entries.as_ref().map_or(0, |entries| 2 * entries.indices.len() + offsets(entries))
    }

    /// Bytes of memory that are set aside for it.
    pub(crate) fn capacity(&self) -> usize {
        let offsets = |entries: &Entries| entries.sample_offsets.as_ref().map_or(0, |offsets| 4 * offsets.capacity());
        let of_entries = |entries: &Entries| 2 * entries.indices.capacity() + offsets(entries);
        self.values.capacity() + self.entries.as_ref().map_or(0, of_entries)
    }
}

fn widened_before<T: Widens>(small: &[T::Small], wide: &[T]) -> Vec<T> {
    let mut all = Vec::with_capacity(small.len() + wide.len());
    all.extend(small.iter().map(|&small| T::widened(small)));
    all.extend_from_slice(wide);
    all
}

impl Entries {
    /// Where the entries of samples `first` to before `last` are.
    #[inline]
    pub fn range(&self, first: usize, last: usize) -> Range<usize> {
        match &self.sample_offsets {
            Some(offsets) => offsets[first] as usize..offsets[last] as usize,
            None => first..last,
        }
    }

    /// Append offsets that count from 0 to those of `before` entries.
    fn append_offsets(&mut self, before: u32, offsets: &[u32]) {
        if self.sample_offsets.is_none() {
            if (0..).zip(offsets).all(|(sample, &at)| at == sample) {
                return;
            }
            self.sample_offsets = Some((0..=before).collect());
        }
        if let Some(all) = &mut self.sample_offsets {
            all.extend(offsets.iter().skip(1).map(|&at| before + at));
        }
    }
}
