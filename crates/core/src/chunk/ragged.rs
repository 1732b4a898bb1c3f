//! Gathering: what a kind of samples is given ([`Found`]), and what it appends to ([`Ragged`]).

use super::values::Values;
use std::ops::Range;

/// The form in which samples are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Values of a sample, or the bound of its indices.
    pub dim: usize,
    /// Whether a sample is a list of (index, value).
    pub is_sparse: bool,
    /// Whether values are in double precision.
    pub is_double: bool,
}

/// A stream of a minibatch, ragged.
#[derive(Debug, Clone, PartialEq)]
pub struct Ragged {
    /// The first sample of each sequence and, last, the number of samples.
    pub sequence_offsets: Vec<i64>,
    /// The values of all samples, or of all entries.
    pub values: Values,
    /// The entries of a sparse stream.
    pub entries: Option<RaggedEntries>,
}

/// The entries of sparse samples; their values are in [`Ragged::values`].
#[derive(Debug, Clone, PartialEq)]
pub struct RaggedEntries {
    /// The first entry of each sample and, last, the number of entries.
    pub sample_offsets: Vec<i64>,
    /// The index of each entry.
    pub indices: Vec<i32>,
}

impl Ragged {
    /// A stream without sequences, with room for the offsets of `num_sequences` sequences.
    pub fn empty(is_sparse: bool, is_double: bool, num_sequences: usize) -> Ragged {
        let mut sequence_offsets = Vec::with_capacity(num_sequences + 1);
        sequence_offsets.push(0);
        let entries = is_sparse.then(|| RaggedEntries { sample_offsets: vec![0], indices: Vec::new() });
        Ragged { sequence_offsets, values: Values::empty(is_double), entries }
    }

    /// Number of samples.
    pub fn num_samples(&self) -> i64 {
        self.sequence_offsets.last().copied().unwrap_or(0)
    }
}

/// Why a selection cannot be packed.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// The selection names a chunk, sequence or stream that does not exist.
    Missing,
    /// Chunks disagree about a stream's form, dimension or precision.
    Mixed,
    /// The file of this name, which a chunk shows, has changed.
    Changed(String),
    /// The arrays need more memory than there is.
    TooLarge,
    /// A sequence has another number of samples than it should have.
    Length {
        /// The sequence, counted in the selection.
        sequence: usize,
        /// The stream.
        stream: usize,
        /// Samples that the sequence has in this stream.
        num_samples: usize,
    },
}

/// A sequence of a selection, in a column of samples of kind `K`. A minibatch may have many, so the type is small.
#[derive(Debug, Clone)]
pub(crate) struct Found<'a, K> {
    /// The column's samples.
    pub samples: &'a K,
    /// The first sample of each sequence of the column and, last, the number of samples.
    pub sequence_offsets: &'a [u32],
    /// The sequence, counted in the column.
    pub sequence: u32,
    /// The sequence's first sample, counted in the column.
    pub begin: u32,
    /// Samples of the sequence.
    pub num_samples: u32,
    /// The first sample that is taken, counted in the sequence.
    pub first: u32,
    /// Number of samples that are taken.
    ///
    /// They are inside the sequence, unless its only frame stands for any number of samples.
    pub count: u32,
}

impl<K> Found<'_, K> {
    /// The samples that are taken, counted in the sequence.
    #[inline]
    pub(crate) fn taken(&self) -> Range<usize> {
        self.first as usize..self.first as usize + self.count as usize
    }

    /// The samples that are taken, counted in the column; they are inside the sequence.
    #[inline]
    pub(crate) fn in_column(&self) -> Range<usize> {
        let first = self.begin as usize + self.first as usize;
        first..first + self.count as usize
    }

    /// Whether the whole sequence is taken.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        (self.first, self.count) == (0, self.num_samples)
    }
}

/// The sequences of a selection in one stream, in order.
pub(crate) trait AllFound<'a, K: 'a> {
    /// Number of sequences.
    fn len(&self) -> usize;

    /// Hand each sequence to `take`.
    ///
    /// # Errors
    /// Why the selection cannot be packed, or the error of `take`.
    fn each(self, take: impl FnMut(Found<'a, K>) -> Result<(), Error>) -> Result<(), Error>;
}

/// Reserve memory for `count` more values; an error if there is not as much.
pub(crate) fn try_reserve<T>(values: &mut Vec<T>, count: usize) -> Result<(), Error> {
    values.try_reserve(count).map_err(|_| Error::TooLarge)
}
