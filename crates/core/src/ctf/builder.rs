//! Builders: samples become columns, one builder for each stream.
//!
//! A builder takes the text part by part. At the end of each part, while all values are small whole numbers, the part's
//! samples move into the column's small form, and their vectors are empty again:
//!
//! ```text
//!                         column.samples          small
//! part 1 is parsed        samples of part 1       none
//! end_part                (empty)                 samples of part 1
//! part 2 is parsed        samples of part 2       samples of part 1
//! end_part                (empty)                 samples of parts 1 and 2
//! part 3 has a 0.5        samples of part 3       samples of parts 1 and 2
//! end_part                samples of parts 1 to 3 none, and never again
//! ```
//!
//! From part 2 on, shortcuts append to the small form at once while the column is empty.

use super::{Schema, Stream};
use crate::chunk::{Block, Column, EmptyColumn, Samples, Small, Values, expect};
use crate::memory;
use cntkio_simd::{SparseColumn, SparseEntries};

/// Builders for all streams, in the memory of a spare block.
pub(super) fn builders(schema: &Schema, num_sequences: usize, spare: Option<Block>) -> Vec<Builder> {
    // The pool may have blocks of another schema, because a definition is tried on the chunks of a corpus with the same
    // pool.
    let spare = spare.map(|block| block.columns).filter(|columns| columns.len() == schema.streams.len());
    let mut columns = spare.into_iter().flatten();
    schema.streams.iter().map(|stream| Builder::new(stream, num_sequences, columns.next())).collect()
}

/// The finished block.
pub(super) fn finish(num_sequences: usize, builders: Vec<Builder>) -> Block {
    Block { num_sequences, columns: builders.into_iter().map(Builder::finish).collect() }
}

/// A column under construction.
pub(super) struct Builder {
    /// The offsets of all sequences; the samples of this part, or of all parts if they are not small.
    pub(super) column: Column,
    pub(super) num_samples: u32,
    /// The earlier parts, while all of them are small.
    small: Option<Small>,
    /// Samples in the small form.
    num_small: u32,
    is_first_part: bool,
    /// Memory for the small form.
    spare: Option<Small>,
    /// The line of the last sample, as in [`LineParser::line_number`](super::line::LineParser), unless a shortcut took
    /// the whole line.
    pub(super) line: usize,
    /// True if the last sample that the exact parser read had one entry.
    pub(super) is_one_hot: bool,
}

impl Builder {
    /// An empty column, in the memory of a spare column if that fits.
    fn new(stream: &Stream, num_sequences: usize, spare: Option<Column>) -> Builder {
        let mut empty = EmptyColumn::of(spare, stream.number);
        memory::reserve(&mut empty.sequence_offsets, num_sequences + 1);
        empty.sequence_offsets.push(0);
        let spare = empty.small.take();
        let column = if stream.is_sparse {
            empty.sample_offsets.push(0);
            empty.sparse(stream.dim)
        } else {
            empty.dense(stream.dim)
        };
        Builder {
            column,
            num_samples: 0,
            small: None,
            num_small: 0,
            is_first_part: true,
            spare,
            line: 0,
            is_one_hot: false,
        }
    }

    /// End a part of the text. All of the text is `ratio` times as large as this part.
    pub(super) fn end_part(&mut self, is_compact: bool, ratio: f64) {
        let is_first = std::mem::take(&mut self.is_first_part);
        // In a later part, the samples of earlier parts may already be in full width.
        if is_first && is_compact {
            self.small = self.column.samples.to_small(self.spare.take());
            self.num_small = if self.small.is_some() { self.num_samples } else { 0 };
        }
        self.settle();
        if is_first {
            // Make room for the other parts, estimated from the first part: growing step by step would cost more than
            // parsing.
            expect(&mut self.column.sequence_offsets, ratio);
            match &mut self.small {
                Some(small) => small.expect(ratio),
                None => self.column.samples.expect(ratio),
            }
        }
    }

    /// Move the samples of the column to the small form. If they are not small, move the small samples to the column.
    pub(super) fn settle(&mut self) {
        let Some(small) = &mut self.small else { return };
        if self.num_samples == self.num_small || self.column.samples.append_to(small) {
            self.num_small = self.num_samples;
            self.column.samples.clear();
        } else if let Some(small) = self.small.take() {
            self.column.samples.prepend(&small, self.num_small as usize);
            self.num_small = 0;
        }
    }

    fn finish(mut self) -> Column {
        if let Some(small) = self.small {
            self.column.samples = Samples::Small(small);
        }
        self.column
    }

    /// Samples of the current sequence.
    #[inline]
    pub(super) fn num_in_sequence(&self) -> u32 {
        // The offsets begin with 0, so there is a last one.
        self.num_samples - self.column.sequence_offsets[self.column.sequence_offsets.len() - 1]
    }

    /// True if the current sequence has a sample that is not empty.
    pub(super) fn has_entries_in_sequence(&self) -> bool {
        let first = self.column.sequence_offsets[self.column.sequence_offsets.len() - 1];
        match &self.column.samples {
            // Samples of the current sequence that are in the small form already have one entry each.
            Samples::Sparse { sample_offsets, .. } => first
                .checked_sub(self.num_small)
                .is_none_or(|first| sample_offsets[sample_offsets.len() - 1] > sample_offsets[first as usize]),
            _ => self.num_in_sequence() > 0,
        }
    }

    /// End a sparse sample, whose entries were appended.
    #[inline]
    pub(super) fn end_sparse_sample(&mut self) {
        let Samples::Sparse { sample_offsets, indices, .. } = &mut self.column.samples else {
            unreachable!("a sparse stream has a sparse column")
        };
        self.is_one_hot = sample_offsets.last().is_some_and(|&first| first as usize + 1 == indices.len());
        // A piece has less than 4 GiB of text, and an entry takes more than a byte, so the number of entries fits 32
        // bits.
        memory::push(sample_offsets, indices.len() as u32);
        self.num_samples += 1;
    }

    /// Drop the values after the last sample.
    pub(super) fn drop_unfinished(&mut self) {
        match &mut self.column.samples {
            Samples::Dense { dim, values } => values.truncate(*dim * (self.num_samples - self.num_small) as usize),
            samples => samples.drop_last(0),
        }
    }

    /// Drop the samples of the current sequence, which are sparse.
    pub(super) fn drop_sequence(&mut self) {
        self.drop_last(self.num_in_sequence());
        // The lines of the sequence are read again.
        self.line = 0;
    }

    /// Drop the last samples of a sparse column.
    pub(super) fn drop_last(&mut self, num_samples: u32) {
        let num_small = num_samples.saturating_sub(self.num_samples - self.num_small);
        self.column.samples.drop_last((num_samples - num_small) as usize);
        if let Some(small) = &mut self.small {
            small.drop_last(num_small as usize);
        }
        self.num_samples -= num_samples;
        self.num_small -= num_small;
    }

    /// True if entries can be appended to the small form as pairs.
    pub(super) fn takes_pairs(&mut self) -> bool {
        // Samples in full width come after those in the small form.
        self.num_samples == self.num_small && self.small.as_mut().and_then(Small::pairs).is_some()
    }

    /// The vectors that a kernel appends sparse samples to: of the small form, which must take pairs, or of the column,
    /// which is not double.
    pub(super) fn sparse(&mut self, are_pairs: bool) -> SparseColumn<'_> {
        let small = self.small.as_mut().filter(|_| are_pairs).and_then(Small::pairs);
        match (small, &mut self.column.samples) {
            (Some((sample_offsets, pairs)), _) => SparseColumn { sample_offsets, entries: SparseEntries::Pairs(pairs) },
            (None, Samples::Sparse { sample_offsets, indices, values: Values::F32(values), .. }) => {
                SparseColumn { sample_offsets, entries: SparseEntries::Wide(indices, values) }
            }
            _ => unreachable!("all streams are sparse, none is double"),
        }
    }

    /// Count samples that a kernel has appended.
    pub(super) fn count(&mut self, num_samples: usize, are_pairs: bool) {
        self.num_samples += num_samples as u32;
        self.num_small += if are_pairs { num_samples as u32 } else { 0 };
    }

    /// Append samples of one entry each, which are counted already: to the small form if that is possible.
    pub(super) fn append_one_hots(&mut self, indices: &[i32], values: &[f32]) {
        let Samples::Sparse { sample_offsets, indices: wide, values: Values::F32(wide_values), .. } =
            &mut self.column.samples
        else {
            unreachable!("only samples of such a column wait")
        };
        if sample_offsets.len() == 1
            && let Some(small) = &mut self.small
            && small.append_one_hots(indices, values)
        {
            self.num_small += indices.len() as u32;
            return;
        }
        let first = wide.len() as u32;
        memory::append(wide, indices);
        memory::append(wide_values, values);
        memory::extend(sample_offsets, (0..indices.len() as u32).map(|entry| first + entry + 1));
    }

    #[inline]
    pub(super) fn end_sequence(&mut self) {
        memory::push(&mut self.column.sequence_offsets, self.num_samples);
    }
}
