//! `Samples`: the samples of one stream in one of seven kinds.

use super::frames::Frames;
use super::narrow::Narrow;
use super::ragged::Form;
use super::runs::Runs;
use super::small::{Small, WideEntries};
use super::stored::Stored;
use super::values::{Values, expect};

/// The samples of one stream, sequence after sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Samples {
    /// `dim` values a sample.
    Dense {
        /// Values of a sample.
        dim: usize,
        /// All samples, row by row.
        values: Values,
    },
    /// A list of (index, value) a sample, in the order of the source; indices may repeat.
    Sparse {
        /// Bound of the indices.
        dim: usize,
        /// The first entry of each sample and, last, the number of entries.
        sample_offsets: Vec<u32>,
        /// The index of each entry, 0 to `dim - 1`.
        indices: Vec<i32>,
        /// The value of each entry.
        values: Values,
    },
    /// Dense or sparse samples of small whole numbers.
    Small(Small),
    /// Dense samples of whole numbers in two bytes each.
    Narrow(Narrow),
    /// Sequences of a binary file as they were read.
    Stored(Stored),
    /// Frames of feature files as they were read.
    Frames(Frames),
    /// Runs of samples of one class each.
    Runs(Runs),
}

impl Samples {
    /// The form in which the samples are packed.
    #[inline]
    pub fn form(&self) -> Form {
        match self {
            Samples::Dense { dim, values } => Form { dim: *dim, is_sparse: false, number: values.number() },
            Samples::Sparse { dim, values, .. } => Form { dim: *dim, is_sparse: true, number: values.number() },
            Samples::Small(small) => small.form(),
            Samples::Narrow(narrow) => narrow.form(),
            Samples::Stored(stored) => stored.form(),
            Samples::Frames(frames) => frames.form(),
            Samples::Runs(runs) => runs.form(),
        }
    }

    /// Dimension, values and, if sparse, offsets and indices of samples in full width; `None` of other samples.
    pub(crate) fn wide(&self) -> Option<(usize, &Values, Option<WideEntries<'_>>)> {
        match self {
            Samples::Dense { dim, values } => Some((*dim, values, None)),
            Samples::Sparse { dim, sample_offsets, indices, values } => {
                Some((*dim, values, Some((sample_offsets, indices))))
            }
            // The packer converts other kinds to full width. (`in_full_width`)
            _ => None,
        }
    }

    /// Convert samples in full width to small samples, in the memory of `spare`; `None` if one of their numbers is not
    /// small.
    pub(crate) fn to_small(&self, spare: Option<Small>) -> Option<Small> {
        let (dim, values, entries) = self.wide()?;
        Small::of(dim, values, entries, spare)
    }

    /// Append samples in full width to small samples if all their numbers are small; otherwise append nothing.
    pub(crate) fn append_to(&self, small: &mut Small) -> bool {
        self.wide().is_some_and(|(_, values, entries)| small.append(values, entries))
    }

    /// Put small samples of the same form before these in full width.
    pub(crate) fn prepend(&mut self, small: &Small, num_samples: usize) {
        match self {
            Samples::Dense { values, .. } => small.prepend_to(num_samples, values, None),
            Samples::Sparse { sample_offsets, indices, values, .. } => {
                small.prepend_to(num_samples, values, Some((sample_offsets, indices)));
            }
            // The text parser calls this for the columns that it makes, and these are in full width.
            _ => {}
        }
    }

    /// Drop all samples in full width but keep the memory, and the first sample offset.
    pub(crate) fn clear(&mut self) {
        match self {
            Samples::Dense { values, .. } => values.clear(),
            Samples::Sparse { sample_offsets, indices, values, .. } => {
                sample_offsets.truncate(1);
                indices.clear();
                values.clear();
            }
            _ => {}
        }
    }

    /// Drop the last sparse samples in full width, and entries after the last sample.
    pub(crate) fn drop_last(&mut self, num_samples: usize) {
        if let Samples::Sparse { sample_offsets, indices, values, .. } = self {
            sample_offsets.truncate(sample_offsets.len() - num_samples);
            let num_entries = sample_offsets.last().map_or(0, |&end| end as usize);
            indices.truncate(num_entries);
            values.truncate(num_entries);
        }
    }

    /// [`expect`] `ratio` times as many samples in full width.
    pub(crate) fn expect(&mut self, ratio: f64) {
        match self {
            Samples::Dense { values, .. } => values.expect(ratio),
            Samples::Sparse { sample_offsets, indices, values, .. } => {
                expect(sample_offsets, ratio);
                expect(indices, ratio);
                values.expect(ratio);
            }
            // Other kinds are made in one piece, so they never grow.
            _ => {}
        }
    }

    /// The samples, if they are of this kind and form.
    pub(crate) fn as_stored(&self, form: Form) -> Option<&Stored> {
        // Samples of another form would not fit the vectors of the minibatch.
        if let Samples::Stored(stored) = self { Some(stored).filter(|stored| stored.form() == form) } else { None }
    }

    /// The samples, if they are of this kind and form.
    pub(crate) fn as_frames(&self, form: Form) -> Option<&Frames> {
        if let Samples::Frames(frames) = self { Some(frames).filter(|frames| frames.form() == form) } else { None }
    }

    /// The samples, if they are of this kind and form.
    pub(crate) fn as_runs(&self, form: Form) -> Option<&Runs> {
        if let Samples::Runs(runs) = self { Some(runs).filter(|runs| runs.form() == form) } else { None }
    }

    /// True if a sequence may be of a single frame that stands for any number of samples.
    pub(crate) fn is_broadcast(&self) -> bool {
        matches!(self, Samples::Frames(frames) if frames.is_broadcast)
    }
}
