//! The samples of a column in the form in which the parser left them.

use super::hashes::{AnyForm, hash_of};
use crate::chunk::{Column, Samples, Values};
use std::borrow::Cow;
use std::ops::Range as Span;

/// The column of a block, in one of its forms.
pub(super) enum View<'a> {
    F32(Rows<'a, f32, i32>),
    F64(Rows<'a, f64, i32>),
    I32(Rows<'a, i32, i32>),
    I64(Rows<'a, i64, i32>),
    Small(Rows<'a, u8, u16>),
}

/// Run the same code on the rows of any form.
macro_rules! in_any_form {
    ($view:expr, $rows:ident => $code:expr) => {
        match $view {
            View::F32($rows) => $code,
            View::F64($rows) => $code,
            View::I32($rows) => $code,
            View::I64($rows) => $code,
            View::Small($rows) => $code,
        }
    };
}
pub(super) use in_any_form;

/// Of a sparse column: the first entry of each sample, and the indices; without offsets each sample has one entry.
pub(super) type EntriesOf<'a, I> = Option<(Option<&'a [u32]>, Cow<'a, [I]>)>;

/// The samples of a column.
pub(super) struct Rows<'a, T: Clone, I: Clone> {
    pub(super) sequence_offsets: &'a [u32],
    pub(super) dim: usize,
    pub(super) values: Cow<'a, [T]>,
    pub(super) entries: EntriesOf<'a, I>,
}

fn wide<'a>(sequence_offsets: &'a [u32], dim: usize, values: &'a Values, entries: EntriesOf<'a, i32>) -> View<'a> {
    fn of<'a, T: Clone>(
        sequence_offsets: &'a [u32],
        dim: usize,
        values: &'a [T],
        entries: EntriesOf<'a, i32>,
    ) -> Rows<'a, T, i32> {
        Rows { sequence_offsets, dim, values: Cow::Borrowed(values), entries }
    }
    match values {
        Values::F32(values) => View::F32(of(sequence_offsets, dim, values, entries)),
        Values::F64(values) => View::F64(of(sequence_offsets, dim, values, entries)),
        Values::I32(values) => View::I32(of(sequence_offsets, dim, values, entries)),
        Values::I64(values) => View::I64(of(sequence_offsets, dim, values, entries)),
    }
}

pub(super) fn view(column: &Column) -> Option<View<'_>> {
    let sequence_offsets = &column.sequence_offsets[..];
    match &column.samples {
        Samples::Dense { dim, values } => Some(wide(sequence_offsets, *dim, values, None)),
        Samples::Sparse { dim, sample_offsets, indices, values } => {
            Some(wide(sequence_offsets, *dim, values, Some((Some(&sample_offsets[..]), Cow::Borrowed(&indices[..])))))
        }
        Samples::Small(small) => {
            let entries = small.numbers.indices().map(|indices| (small.sample_offsets.as_deref(), indices));
            // Indices and values are taken apart, and a value that the column keeps only once is repeated for each entry,
            // so that loops over rows have one case.
            Some(View::Small(Rows { sequence_offsets, dim: small.dim, values: small.numbers.values(), entries }))
        }
        // Numbers in two bytes, and samples that are as their file stores them: `survey` widens such a chunk first.
        _ => None,
    }
}

impl<T: AnyForm, I: Clone> Rows<'_, T, I> {
    pub(super) fn num_samples(&self) -> usize {
        self.sequence_offsets.last().map_or(0, |&end| end as usize)
    }

    /// The values of some samples.
    #[inline]
    pub(super) fn range(&self, samples: Span<usize>) -> Span<usize> {
        match &self.entries {
            None => samples.start * self.dim..samples.end * self.dim,
            Some((None, _)) => samples,
            Some((Some(offsets), _)) => offsets[samples.start] as usize..offsets[samples.end] as usize,
        }
    }

    /// The hash of the numbers of entries of some samples; `seed` if each has one, because only then a small column may
    /// lack offsets.
    #[inline]
    pub(super) fn hash_of_sizes(&self, samples: Span<usize>, seed: u64, buffer: &mut Vec<u8>) -> u64 {
        let Some((Some(offsets), _)) = &self.entries else { return seed };
        let offsets = &offsets[samples.start..=samples.end];
        let first = offsets[0];
        if offsets.iter().zip(first..).all(|(&offset, one_by_one)| offset == one_by_one) {
            return seed;
        }
        hash_of(offsets, seed, buffer, |offset| (offset - first).to_le_bytes())
    }

    pub(super) fn sample(&self, sample: usize) -> &[T] {
        &self.values[self.range(sample..sample + 1)]
    }

    pub(super) fn indices_of(&self, samples: Span<usize>) -> &[I] {
        self.entries.as_ref().map_or(&[], |(_, indices)| &indices[self.range(samples)])
    }

    /// True if a sample has a single 1, and nothing else.
    #[inline]
    pub(super) fn is_one_hot(&self, sample: usize) -> bool {
        let values = self.sample(sample);
        if self.entries.is_some() {
            return values.len() == 1 && values[0] == T::from(1);
        }
        let (mut num_others, mut num_ones) = (0u32, 0u32);
        for value in values {
            num_others += u32::from(*value != T::from(0));
            num_ones += u32::from(*value == T::from(1));
        }
        (num_others, num_ones) == (1, 1)
    }
}
