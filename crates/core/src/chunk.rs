//! `Chunk`: what every format's parser makes and the packer takes. Columns, immutable once made.
//!
//! ```text
//! chunk ── block 0 ─┬─ column of stream 0: sequence_offsets  0 2 3 5      (in samples, one more than sequences)
//!         │         │                      samples           dense: values [samples * dim]
//!         │         └─ column of stream 1: sequence_offsets  0 1 1 4      (a stream may lack samples)
//!         │                                samples           sparse: sample_offsets 0 3 3 7 9, indices, values
//!         └ block 1 ── …
//! ```
//!
//! A parser that works on several cores leaves one block per piece of its input, so that nothing is copied
//! together; sequence `n` of the chunk is found by the blocks' first sequences.

use std::sync::{Arc, Mutex, PoisonError};

/// Values in the precision in which they are stored.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Single precision.
    F32(Vec<f32>),
    /// Double precision.
    F64(Vec<f64>),
}

impl Values {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::F64(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether these are in double precision.
    pub fn is_double(&self) -> bool {
        matches!(self, Values::F64(_))
    }
}

/// The samples of one stream, sequence after sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Samples {
    /// `dim` values a sample.
    Dense {
        /// Values a sample.
        dim: usize,
        /// All samples, row by row.
        values: Values,
    },
    /// A list of (index, value) a sample, in the order of the source; indices may repeat.
    Sparse {
        /// Bound of the indices.
        dim: usize,
        /// Where each sample's entries begin, and where the last one's end.
        sample_offsets: Vec<u32>,
        /// 0 to `dim - 1` each.
        indices: Vec<i32>,
        /// One for each index.
        values: Values,
    },
}

/// One stream of a block.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Where each sequence's samples begin, and where the last one's end.
    pub sequence_offsets: Vec<u32>,
    /// The samples themselves.
    pub samples: Samples,
}

impl Column {
    /// Number of samples.
    pub fn num_samples(&self) -> usize {
        self.sequence_offsets.last().map_or(0, |&end| end as usize)
    }

    /// Check that the offsets, indices and values belong together; the message says what does not.
    pub fn check(&self, num_sequences: usize) -> Result<(), String> {
        check_offsets("sequence offsets", &self.sequence_offsets, num_sequences)?;
        let num_samples = self.num_samples();
        match &self.samples {
            Samples::Dense { dim, values } => {
                if num_samples.checked_mul(*dim) != Some(values.len()) {
                    return Err(format!("{num_samples} samples of {dim} values, but {} values", values.len()));
                }
            }
            Samples::Sparse { dim, sample_offsets, indices, values } => {
                check_offsets("sample offsets", sample_offsets, num_samples)?;
                let num_entries = sample_offsets[num_samples] as usize;
                if indices.len() != num_entries || values.len() != num_entries {
                    return Err(format!(
                        "{num_entries} entries, but {} indices and {} values",
                        indices.len(),
                        values.len()
                    ));
                }
                if let Some(index) = indices.iter().find(|&&index| index < 0 || index as usize >= *dim) {
                    return Err(format!("index {index}, but the dimension is {dim}"));
                }
            }
        }
        Ok(())
    }
}

fn check_offsets(what: &str, offsets: &[u32], count: usize) -> Result<(), String> {
    if offsets.len() != count + 1 || offsets[0] != 0 || offsets.windows(2).any(|pair| pair[0] > pair[1]) {
        return Err(format!("{what}: expected {} ascending numbers from 0", count + 1));
    }
    Ok(())
}

/// A run of sequences: for each block its streams' columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// Number of sequences.
    pub num_sequences: usize,
    /// One for each stream.
    pub columns: Vec<Column>,
}

impl Block {
    /// Bytes of memory that are set aside for it.
    fn capacity(&self) -> usize {
        let of_values = |values: &Values| match values {
            Values::F32(values) => 4 * values.capacity(),
            Values::F64(values) => 8 * values.capacity(),
        };
        let of_column = |column: &Column| {
            4 * column.sequence_offsets.capacity()
                + match &column.samples {
                    Samples::Dense { values, .. } => of_values(values),
                    Samples::Sparse { sample_offsets, indices, values, .. } => {
                        4 * (sample_offsets.capacity() + indices.capacity()) + of_values(values)
                    }
                }
        };
        self.columns.iter().map(of_column).sum()
    }
}

/// Memory of chunks that are gone, for the chunks to come: fresh memory costs as much as parsing.
///
/// Belongs to the chunks of one schema, whose blocks have the same columns.
#[derive(Debug, Default)]
pub struct Pool {
    spare: Mutex<Vec<Block>>,
    limit: usize,
}

impl Pool {
    /// Keeps at most `limit` bytes.
    pub fn new(limit: usize) -> Pool {
        Pool { spare: Mutex::default(), limit }
    }

    /// A block to use again, as it was left.
    pub fn take(&self) -> Option<Block> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give(&self, blocks: impl Iterator<Item = Block>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let mut room = self.limit.saturating_sub(spare.iter().map(Block::capacity).sum());
        for block in blocks {
            let size = block.capacity();
            if size <= room {
                room -= size;
                spare.push(block);
            }
        }
    }
}

/// The unit of reading: the parsed form of a run of consecutive sequences.
#[derive(Debug, Clone)]
pub struct Chunk {
    blocks: Vec<Block>,
    first_sequences: Vec<usize>,
    pool: Option<Arc<Pool>>,
}

impl PartialEq for Chunk {
    fn eq(&self, other: &Chunk) -> bool {
        self.blocks == other.blocks
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.give(self.blocks.drain(..));
        }
    }
}

impl Chunk {
    /// Put a chunk together from its blocks.
    pub fn new(blocks: Vec<Block>) -> Chunk {
        let mut first_sequences = vec![0];
        for block in &blocks {
            first_sequences.push(first_sequences[first_sequences.len() - 1] + block.num_sequences);
        }
        Chunk { blocks, first_sequences, pool: None }
    }

    /// Give the blocks' memory to a pool when they are not needed any more.
    pub fn of_pool(mut self, pool: Arc<Pool>) -> Chunk {
        self.pool = Some(pool);
        self
    }

    /// Number of sequences.
    pub fn num_sequences(&self) -> usize {
        self.first_sequences[self.blocks.len()]
    }

    /// Its blocks, in order.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The block that holds a sequence and the sequence's number in it; the sequence must exist.
    #[inline]
    pub fn locate(&self, sequence: usize) -> (&Block, usize) {
        let at = match self.blocks.len() {
            1 => 0,
            _ => self.first_sequences.partition_point(|&first| first <= sequence) - 1,
        };
        (&self.blocks[at], sequence - self.first_sequences[at])
    }

    /// Bytes of memory that the columns take.
    pub fn num_bytes(&self) -> usize {
        let width = |values: &Values| values.len() * if values.is_double() { 8 } else { 4 };
        let column_bytes = |column: &Column| {
            4 * column.sequence_offsets.len()
                + match &column.samples {
                    Samples::Dense { values, .. } => width(values),
                    Samples::Sparse { sample_offsets, indices, values, .. } => {
                        4 * sample_offsets.len() + 4 * indices.len() + width(values)
                    }
                }
        };
        self.blocks.iter().flat_map(|block| &block.columns).map(column_bytes).sum()
    }
}
