//! Columns under construction, in the memory of dropped columns: fresh memory costs as much as parsing.

use super::values::empty_for;
use super::{Column, NumberType, Samples, Small, Values};

/// The vectors of a column, all empty, in the memory of a spare column.
#[derive(Debug, Default)]
pub(crate) struct EmptyColumn {
    pub(crate) sequence_offsets: Vec<u32>,
    pub(crate) sample_offsets: Vec<u32>,
    pub(crate) indices: Vec<i32>,
    pub(crate) values: Values,
    /// Small samples with their old content.
    pub(crate) small: Option<Small>,
}

impl EmptyColumn {
    /// A column for values of this type.
    pub(crate) fn of(spare: Option<Column>, number: NumberType) -> EmptyColumn {
        let mut empty = EmptyColumn::default();
        if let Some(spare) = spare {
            empty.sequence_offsets = spare.sequence_offsets;
            match spare.samples {
                Samples::Dense { values, .. } => empty.values = values,
                Samples::Sparse { sample_offsets, indices, values, .. } => {
                    (empty.sample_offsets, empty.indices, empty.values) = (sample_offsets, indices, values);
                }
                // `Small::of` empties this memory when it uses it.
                Samples::Small(small) => empty.small = Some(small),
                // Parsers that reuse memory make no samples of these kinds.
                Samples::Narrow(_) | Samples::Stored(_) | Samples::Frames(_) | Samples::Runs(_) => {}
            }
        }
        // A vector of another type cannot hold these values.
        if empty.values.number() != number {
            empty.values = Values::empty(number);
        }
        empty.sequence_offsets.clear();
        empty.sample_offsets.clear();
        empty.indices.clear();
        empty.values.clear();
        empty
    }

    /// Make room for a number of values; a vector that is too small or far too large is replaced.
    pub(crate) fn fit(
        &mut self,
        num_sequences: usize,
        num_sample_offsets: usize,
        num_indices: usize,
        num_values: usize,
    ) {
        empty_for(&mut self.sequence_offsets, num_sequences + 1);
        empty_for(&mut self.sample_offsets, num_sample_offsets);
        empty_for(&mut self.indices, num_indices);
        self.values.empty_for(num_values);
    }

    /// A column of dense samples.
    pub(crate) fn dense(self, dim: usize) -> Column {
        Column { sequence_offsets: self.sequence_offsets, samples: Samples::Dense { dim, values: self.values } }
    }

    /// A column of sparse samples.
    pub(crate) fn sparse(self, dim: usize) -> Column {
        let EmptyColumn { sequence_offsets, sample_offsets, indices, values, .. } = self;
        Column { sequence_offsets, samples: Samples::Sparse { dim, sample_offsets, indices, values } }
    }
}
