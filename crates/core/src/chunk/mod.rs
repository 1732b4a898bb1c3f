//! `Chunk`: the result of every format's parser, and the input of the packer: immutable columns.
//!
//! ```text
//! chunk ── block 0 ─┬─ column of stream 0: sequence_offsets  0 2 3 5      (in samples, one more than sequences)
//!         │         │                      samples           dense: values [samples * dim]
//!         │         └─ column of stream 1: sequence_offsets  0 1 1 4      (a stream may lack samples)
//!         │                                samples           sparse: sample_offsets 0 3 3 7 9, indices, values
//!         └ block 1 ── …
//! ```
//!
//! A parser that works on several threads makes one block for each piece of its input, so that joining the pieces
//! copies nothing. The blocks' first sequences tell which block holds sequence `n` of the chunk.
//!
//! Every kind of [`Samples`] has a separate file, with its columns, their check, their sizes, and how the samples are
//! packed:
//!
//! | kind | columns | packed as |
//! |---|---|---|
//! | dense, sparse ([`PlainColumn`]) | values in full width | the same |
//! | [`Small`] | the same in fewer bytes | dense or sparse |
//! | [`Narrow`] | whole numbers in two bytes each | dense |
//! | [`Stored`] | sequences of a binary file as they were read | dense or sparse |
//! | [`Frames`] | frames of feature files as they were read | dense |
//! | [`Runs`] | one entry for all samples of a run of the same class | one-hot, or dense [`Targets`] |

mod bytes;
pub(crate) mod frames;
mod narrow;
pub(crate) mod plain;
mod pool;
mod ragged;
pub(crate) mod runs;
mod samples;
mod small;
mod spare;
pub(crate) mod stored;
mod values;

pub(crate) use bytes::{i32_at, i32s, u32_at};
pub(crate) use ragged::{Ahead, Gather, KnownColumn, Lengths, Located, Neighbours, Takes, span, try_reserve};
pub(crate) use spare::EmptyColumn;
pub(crate) use values::{expect, in_any_type, in_either_precision};

pub use bytes::Bytes;
pub use frames::{Encoding, FrameStart, Frames};
pub use narrow::Narrow;
pub use plain::PlainColumn;
pub use pool::Pool;
pub use ragged::{Error, Form, Parts, Ragged, RaggedEntries};
pub use runs::{Runs, Targets};
pub use samples::Samples;
pub(crate) use small::MOST_AT_ONCE;
pub use small::{Numbers, Small};
pub use stored::Stored;
pub use values::{NumberType, Value, Values};

use crate::memory;
use std::sync::Arc;

/// A stream of a block.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// The first sample of each sequence and, last, the number of samples.
    pub sequence_offsets: Vec<u32>,
    /// The samples.
    pub samples: Samples,
}

impl Column {
    /// Number of samples.
    pub fn num_samples(&self) -> usize {
        self.sequence_offsets.last().map_or(0, |&end| end as usize)
    }

    /// The column, if it is dense or sparse in full width.
    #[inline]
    pub fn as_plain(&self) -> Option<PlainColumn<'_>> {
        let (dim, values, entries) = self.samples.wide()?;
        Some(PlainColumn { sequence_offsets: &self.sequence_offsets, dim, values, entries })
    }

    /// Check that offsets, indices and values belong together; the message says which do not.
    pub fn check(&self, num_sequences: usize) -> Result<(), String> {
        check_offsets("sequence offsets", &self.sequence_offsets, num_sequences)?;
        // Offsets are checked first, because the checks of samples use them as indices.
        match &self.samples {
            Samples::Dense { .. } | Samples::Sparse { .. } => {
                self.as_plain().map_or(Ok(()), |plain| plain.check(self.num_samples()))
            }
            Samples::Small(small) => small.check(self.num_samples()),
            Samples::Narrow(narrow) => narrow.check(self.num_samples()),
            Samples::Stored(stored) => stored.check(num_sequences),
            Samples::Frames(frames) => frames.check(&self.sequence_offsets),
            Samples::Runs(runs) => runs.check(&self.sequence_offsets),
        }
    }

    /// True if each sequence has one sample.
    fn has_single_samples(&self) -> bool {
        count_one_by_one(&self.sequence_offsets)
    }

    /// Bytes of memory.
    fn num_bytes(&self) -> usize {
        let of_samples = match &self.samples {
            Samples::Dense { .. } | Samples::Sparse { .. } => self.as_plain().map_or(0, |plain| plain.num_bytes()),
            Samples::Small(small) => small.num_bytes(),
            Samples::Narrow(narrow) => narrow.num_bytes(),
            Samples::Stored(stored) => stored.num_bytes(),
            Samples::Frames(frames) => frames.num_bytes(&self.sequence_offsets),
            Samples::Runs(runs) => runs.num_bytes(),
        };
        size_of_val(&self.sequence_offsets[..]) + of_samples
    }

    /// Bytes of memory that is reserved, if a [`Pool`] can keep the column.
    fn capacity_in_bytes(&self) -> usize {
        let of_samples = match &self.samples {
            Samples::Dense { values, .. } => values.capacity_in_bytes(),
            Samples::Sparse { sample_offsets, indices, values, .. } => {
                4 * (sample_offsets.capacity() + indices.capacity()) + values.capacity_in_bytes()
            }
            Samples::Small(small) => small.capacity_in_bytes(),
            // Parsers fill no vectors of these kinds, so a pool would keep their memory for nothing.
            Samples::Narrow(_) | Samples::Stored(_) | Samples::Frames(_) | Samples::Runs(_) => 0,
        };
        4 * self.sequence_offsets.capacity() + of_samples
    }

    /// Bytes that `num_samples` samples take when packed, roughly.
    fn packed_bytes(&self, num_samples: usize) -> usize {
        let form = self.samples.form();
        match &self.samples {
            // A one-hot sample takes 4 bytes for its value, 4 for its index and 8 for its offset.
            Samples::Frames(_) | Samples::Runs(_) if form.is_sparse => 16 * num_samples,
            Samples::Frames(_) | Samples::Runs(_) => 4 * form.dim * num_samples,
            Samples::Small(small) => small.packed_bytes() * num_samples / self.num_samples().max(1),
            Samples::Narrow(narrow) => narrow.packed_bytes() * num_samples / self.num_samples().max(1),
            _ => self.num_bytes() * num_samples / self.num_samples().max(1),
        }
    }
}

/// True if the offsets are 0, 1, 2, ….
fn count_one_by_one(offsets: &[u32]) -> bool {
    offsets.iter().zip(0..).all(|(&offset, number)| offset == number)
}

fn check_offsets(what: &str, offsets: &[u32], count: usize) -> Result<(), String> {
    // The number of offsets is checked first: then there is a first offset.
    if offsets.len() != count + 1 || offsets[0] != 0 || offsets.windows(2).any(|pair| pair[0] > pair[1]) {
        return Err(format!("{what}: expected {} ascending numbers from 0", count + 1));
    }
    Ok(())
}

/// Some consecutive sequences of a chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// Number of sequences.
    pub num_sequences: usize,
    /// A column for each stream.
    pub columns: Vec<Column>,
}

impl Block {
    /// Bytes of memory that is reserved.
    fn capacity_in_bytes(&self) -> usize {
        self.columns.iter().map(Column::capacity_in_bytes).sum()
    }
}

/// The unit of reading: consecutive sequences, parsed.
#[derive(Debug, Clone)]
pub struct Chunk {
    blocks: Vec<Block>,
    first_sequences: Vec<usize>,
    /// For each column of each block, whether each sequence has a single sample. The packer then reads no table.
    are_single: Vec<Vec<bool>>,
    pool: Option<Arc<Pool>>,
}

impl PartialEq for Chunk {
    fn eq(&self, other: &Chunk) -> bool {
        // The other fields follow from the blocks, or are only about memory.
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
    /// Number of samples of each sequence of a stream, which must exist.
    pub fn lengths(&self, column: usize) -> Vec<u32> {
        let offsets = self.blocks.iter().flat_map(|block| block.columns[column].sequence_offsets.windows(2));
        let mut lengths = memory::with_room(self.num_sequences());
        lengths.extend(offsets.map(|pair| pair[1] - pair[0]));
        lengths
    }

    /// Put a chunk together from its blocks.
    pub fn new(blocks: Vec<Block>) -> Chunk {
        let mut first_sequences = vec![0];
        // With this 0, a chunk without blocks has a number of sequences.
        for block in &blocks {
            first_sequences.push(first_sequences[first_sequences.len() - 1] + block.num_sequences);
        }
        let are_single = |block: &Block| block.columns.iter().map(Column::has_single_samples).collect();
        Chunk { are_single: blocks.iter().map(are_single).collect(), blocks, first_sequences, pool: None }
    }

    /// Return the blocks' memory to a pool, if there is one, when the chunk is dropped.
    pub fn of_pool(mut self, pool: Option<&Arc<Pool>>) -> Chunk {
        self.pool = pool.cloned();
        self
    }

    /// Number of sequences.
    pub fn num_sequences(&self) -> usize {
        self.first_sequences[self.blocks.len()]
    }

    /// The blocks, in order.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// A stream's column of each block, with the lengths of its sequences.
    pub(crate) fn columns(&self, stream: usize) -> impl Iterator<Item = Option<KnownColumn<'_>>> {
        self.blocks.iter().zip(&self.are_single).map(move |(block, are_single)| {
            let column = block.columns.get(stream)?;
            let offsets = &column.sequence_offsets;
            let lengths = match are_single.get(stream)? {
                true => Lengths::Single(offsets.len().saturating_sub(1)),
                false => Lengths::Any(offsets),
            };
            Some((column, lengths))
        })
    }

    /// The block that holds a sequence, counted in the chunk, and the sequence, counted in the block; it must exist.
    #[inline]
    pub(crate) fn position(&self, sequence: usize) -> (usize, usize) {
        let block = match self.blocks.len() {
            // With a single block nothing is searched. This runs for each sequence of each minibatch.
            1 => 0,
            _ => self.first_sequences.partition_point(|&first| first <= sequence) - 1,
        };
        (block, sequence - self.first_sequences[block])
    }

    /// The block that holds a sequence, and the sequence, counted in the block; it must exist.
    #[inline]
    pub fn locate(&self, sequence: usize) -> (&Block, usize) {
        let (block, sequence) = self.position(sequence);
        (&self.blocks[block], sequence)
    }

    /// The bytes of files that the chunk shows.
    fn shown(&self) -> &[Bytes] {
        // All blocks and columns show the same files, so the first column stands for all.
        match self.blocks.first().and_then(|block| block.columns.first()).map(|column| &column.samples) {
            Some(Samples::Stored(stored)) => std::slice::from_ref(&stored.bytes),
            Some(Samples::Frames(frames)) => &frames.blocks,
            _ => &[],
        }
    }

    /// The name of a file that the chunk shows, if the file has changed since.
    pub fn changed(&self) -> Option<&str> {
        self.shown().iter().find_map(Bytes::changed)
    }

    /// True if the chunk shows mapped files.
    pub fn is_mapped(&self) -> bool {
        self.shown().iter().any(|bytes| bytes.mapped_name().is_some())
    }

    /// The chunk, if all its columns are dense or sparse in full width.
    pub fn as_plain(&self) -> Option<PlainChunk<'_>> {
        let columns = self.blocks.iter().map(|block| block.columns.iter().map(Column::as_plain).collect());
        Some(PlainChunk { chunk: self, columns: columns.collect::<Option<_>>()? })
    }

    /// Bytes of memory.
    pub fn num_bytes(&self) -> usize {
        self.blocks.iter().flat_map(|block| &block.columns).map(Column::num_bytes).sum()
    }

    /// Approximate bytes of a number of sequences when packed, or of a number of samples of each, as in the first
    /// block.
    pub fn packed_bytes(&self, num_sequences: usize, counts: Option<&[u32]>) -> usize {
        // The result is an estimate, so the first block stands for all.
        let Some(block) = self.blocks.first() else { return 0 };
        let packed_bytes = |column: &Column| {
            column.packed_bytes(match counts {
                Some(counts) => counts.iter().map(|&count| count as usize).sum(),
                None => column.num_samples() * num_sequences / block.num_sequences.max(1),
            })
        };
        block.columns.iter().map(packed_bytes).sum()
    }
}

/// A chunk of dense and sparse columns in full width, borrowed: the input of writers.
#[derive(Debug, Clone)]
pub struct PlainChunk<'a> {
    chunk: &'a Chunk,
    /// The columns of each block.
    columns: Vec<Vec<PlainColumn<'a>>>,
}

impl<'a> PlainChunk<'a> {
    /// Number of sequences.
    pub fn num_sequences(&self) -> usize {
        self.chunk.num_sequences()
    }

    /// True if every block has a column.
    pub fn has_column(&self, column: usize) -> bool {
        self.columns.iter().all(|columns| column < columns.len())
    }

    /// The columns of the block that holds a sequence, and the sequence, counted in the block; it must exist.
    #[inline]
    pub fn locate(&self, sequence: usize) -> (&[PlainColumn<'a>], usize) {
        let (block, sequence) = self.chunk.position(sequence);
        (&self.columns[block], sequence)
    }
}
