//! Columns in the making, in the memory of columns that are not needed any more: fresh memory costs as much as parsing.

use crate::chunk::{Column, Samples, Values};

/// The vectors of a column, all empty, with what memory a spare column had for them.
#[derive(Debug, Default)]
pub(crate) struct EmptyColumn {
    pub(crate) sequence_offsets: Vec<u32>,
    pub(crate) sample_offsets: Vec<u32>,
    pub(crate) indices: Vec<i32>,
    pub(crate) values: Values,
}

impl EmptyColumn {
    /// A column for values in this precision.
    pub(crate) fn of(spare: Option<Column>, is_double: bool) -> EmptyColumn {
        let mut empty = EmptyColumn::default();
        if let Some(spare) = spare {
            empty.sequence_offsets = spare.sequence_offsets;
            match spare.samples {
                Samples::Dense { values, .. } => empty.values = values,
                Samples::Sparse { sample_offsets, indices, values, .. } => {
                    (empty.sample_offsets, empty.indices, empty.values) = (sample_offsets, indices, values);
                }
                _ => {}
            }
        }
        if empty.values.is_double() != is_double {
            empty.values = Values::empty(is_double);
        }
        empty.sequence_offsets.clear();
        empty.sample_offsets.clear();
        empty.indices.clear();
        empty.values.clear();
        empty
    }

    /// A column of dense samples.
    pub(crate) fn dense(self, dim: usize) -> Column {
        Column { sequence_offsets: self.sequence_offsets, samples: Samples::Dense { dim, values: self.values } }
    }

    /// A column of sparse samples.
    pub(crate) fn sparse(self, dim: usize) -> Column {
        let EmptyColumn { sequence_offsets, sample_offsets, indices, values } = self;
        Column { sequence_offsets, samples: Samples::Sparse { dim, sample_offsets, indices, values } }
    }
}
