//! Columns in the making.

use super::{Schema, Stream};
use crate::chunk::{Block, Column, Samples, Values, expect};
use crate::small::Small;

pub(super) fn builders(schema: &Schema, num_sequences: usize, spare: Option<Block>) -> Vec<Builder> {
    let spare = spare.map(|block| block.columns).filter(|columns| columns.len() == schema.streams.len());
    let mut columns = spare.into_iter().flatten();
    schema.streams.iter().map(|stream| Builder::new(stream, num_sequences, columns.next())).collect()
}

pub(super) fn finish(num_sequences: usize, builders: Vec<Builder>) -> Block {
    Block { num_sequences, columns: builders.into_iter().map(Builder::finish).collect() }
}

/// A column in the making, part by part of the text.
pub(super) struct Builder {
    /// All sequence offsets; the samples of this part, or of all parts if they are not made small.
    pub(super) column: Column,
    pub(super) num_samples: u32,
    /// The parts before, while all of them are small.
    small: Option<Small>,
    /// Samples of those parts.
    num_small: u32,
    is_first_part: bool,
    /// Memory to be used for what is made small.
    spare: Option<Small>,
    /// Whether the last sample that was read on the long way had one entry.
    pub(super) is_one_hot: bool,
}

impl Builder {
    /// An empty column, in the memory of a spare one where there is one of the same form.
    pub(super) fn new(stream: &Stream, num_sequences: usize, spare: Option<Column>) -> Builder {
        let (mut sequence_offsets, samples, spare) = match spare {
            Some(Column { sequence_offsets, samples: Samples::Small(small) }) => (sequence_offsets, None, Some(small)),
            Some(Column { sequence_offsets, samples }) => (sequence_offsets, emptied(stream, samples), None),
            None => (Vec::new(), None, None),
        };
        let samples = samples.unwrap_or_else(|| {
            let values = if stream.is_double { Values::F64(Vec::new()) } else { Values::F32(Vec::new()) };
            if stream.is_sparse {
                Samples::Sparse { dim: stream.dim, sample_offsets: vec![0], indices: Vec::new(), values }
            } else {
                Samples::Dense { dim: stream.dim, values }
            }
        });
        sequence_offsets.clear();
        sequence_offsets.reserve(num_sequences + 1);
        sequence_offsets.push(0);
        let column = Column { sequence_offsets, samples };
        Builder { column, num_samples: 0, small: None, num_small: 0, is_first_part: true, spare, is_one_hot: false }
    }

    /// End a part of the text, of which there are `ratio` in all: make its samples small, if those before are.
    pub(super) fn end_part(&mut self, is_compact: bool, ratio: f64) {
        let is_first = std::mem::take(&mut self.is_first_part);
        let are_small = match &mut self.small {
            Some(small) => small.append(&self.column.samples),
            None if is_first && is_compact => {
                self.small = Small::of(&self.column.samples, self.spare.take());
                self.small.is_some()
            }
            None => false,
        };
        if are_small {
            self.num_small = self.num_samples;
            clear(&mut self.column.samples);
        } else if let Some(small) = self.small.take() {
            small.widen_before(&mut self.column.samples, self.num_small as usize);
            self.num_small = 0;
        }
        if is_first {
            // What the rest will take, going by the first part: to grow again and again would cost more than to parse.
            expect(&mut self.column.sequence_offsets, ratio);
            match &mut self.small {
                Some(small) => small.expect(ratio),
                None => self.expect(ratio),
            }
        }
    }

    fn finish(mut self) -> Column {
        if let Some(small) = self.small {
            self.column.samples = Samples::Small(small);
        }
        self.column
    }

    /// Make room for `ratio` times what there is.
    fn expect(&mut self, ratio: f64) {
        match &mut self.column.samples {
            Samples::Dense { values, .. } => values.expect(ratio),
            Samples::Sparse { sample_offsets, indices, values, .. } => {
                expect(sample_offsets, ratio);
                expect(indices, ratio);
                values.expect(ratio);
            }
            _ => {}
        }
    }

    #[inline]
    pub(super) fn num_in_sequence(&self) -> u32 {
        self.num_samples - self.column.sequence_offsets[self.column.sequence_offsets.len() - 1]
    }

    pub(super) fn has_entries_in_sequence(&self) -> bool {
        match &self.column.samples {
            Samples::Sparse { sample_offsets, .. } => {
                let first = self.column.sequence_offsets[self.column.sequence_offsets.len() - 1] - self.num_small;
                sample_offsets[sample_offsets.len() - 1] > sample_offsets[first as usize]
            }
            _ => self.num_in_sequence() > 0,
        }
    }

    /// Drop the last samples, which are sparse.
    pub(super) fn drop_last(&mut self, num_samples: usize) {
        if let Samples::Sparse { sample_offsets, indices, values, .. } = &mut self.column.samples {
            sample_offsets.truncate(sample_offsets.len() - num_samples);
            let num_entries = sample_offsets.last().map_or(0, |&end| end as usize);
            indices.truncate(num_entries);
            match values {
                Values::F32(values) => values.truncate(num_entries),
                Values::F64(values) => values.truncate(num_entries),
            }
        }
    }

    #[inline]
    pub(super) fn end_sequence(&mut self) {
        self.column.sequence_offsets.push(self.num_samples);
    }
}

/// Samples of this form without their content; `None` of another.
fn emptied(stream: &Stream, mut samples: Samples) -> Option<Samples> {
    let form = (stream.is_sparse, stream.is_double, stream.dim);
    let is_this = matches!(samples, Samples::Dense { .. } | Samples::Sparse { .. })
        && (samples.is_sparse(), samples.is_double(), samples.dim()) == form;
    clear(&mut samples);
    is_this.then_some(samples)
}

fn clear(samples: &mut Samples) {
    let values = match samples {
        Samples::Dense { values, .. } => values,
        Samples::Sparse { sample_offsets, indices, values, .. } => {
            sample_offsets.truncate(1);
            indices.clear();
            values
        }
        _ => return,
    };
    match values {
        Values::F32(values) => values.clear(),
        Values::F64(values) => values.clear(),
    }
}
