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

use super::{Schema, Stream};
use crate::chunk::{Block, Column, EmptyColumn, Samples, Small, expect};
use crate::memory;

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
        let are_small = match &mut self.small {
            Some(small) => self.column.samples.append_to(small),
            // In a later part, the samples of earlier parts are already in full width.
            None if is_first && is_compact => {
                self.small = self.column.samples.to_small(self.spare.take());
                self.small.is_some()
            }
            None => false,
        };
        if are_small {
            self.num_small = self.num_samples;
            self.column.samples.clear();
        } else if let Some(small) = self.small.take() {
            self.column.samples.prepend(&small, self.num_small as usize);
            self.num_small = 0;
        }
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
        match &self.column.samples {
            Samples::Sparse { sample_offsets, .. } => {
                // Parts end between sequences, so no sample of the current sequence is in the small form.
                let first = self.column.sequence_offsets[self.column.sequence_offsets.len() - 1] - self.num_small;
                sample_offsets[sample_offsets.len() - 1] > sample_offsets[first as usize]
            }
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
            _ => self.drop_last(0),
        }
    }

    /// Drop the samples of the current sequence, which are sparse.
    pub(super) fn drop_sequence(&mut self) {
        let num_samples = self.num_in_sequence();
        self.drop_last(num_samples as usize);
        self.num_samples -= num_samples;
        // The lines of the sequence are read again.
        self.line = 0;
    }

    /// Drop the last samples of a sparse column.
    pub(super) fn drop_last(&mut self, num_samples: usize) {
        if let Samples::Sparse { sample_offsets, indices, values, .. } = &mut self.column.samples {
            sample_offsets.truncate(sample_offsets.len() - num_samples);
            let num_entries = sample_offsets.last().map_or(0, |&end| end as usize);
            indices.truncate(num_entries);
            values.truncate(num_entries);
        }
    }

    #[inline]
    pub(super) fn end_sequence(&mut self) {
        memory::push(&mut self.column.sequence_offsets, self.num_samples);
    }
}
