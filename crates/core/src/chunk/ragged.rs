//! Gathering: what a kind of samples is given ([`AllFound`], [`Takes`]), and what it appends to ([`Ragged`]).

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

/// A part of each sequence of a selection.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// For each sequence the first sample that is taken.
    pub firsts: &'a [u32],
    /// For each sequence how many samples are taken.
    pub counts: &'a [u32],
}

/// The sequences of a selection in one stream, in order.
pub(crate) trait AllFound<'a, K: 'a> {
    /// Number of sequences.
    fn len(&self) -> usize;

    /// Whether any column's samples are so.
    fn any(&self, is_so: impl Fn(&K) -> bool) -> bool;

    /// Hand each sequence, counted in its column, to `take`, with what `look_up` says about the column's samples and
    /// sequence offsets (`None`: they cannot be packed). Where many sequences share a column it is looked up once.
    ///
    /// # Errors
    /// Why the selection cannot be packed, or the error of `take`.
    fn each<C: Copy>(
        &self,
        look_up: impl Fn(&'a K, &'a [u32]) -> Option<C>,
        take: impl FnMut(C, usize) -> Result<(), Error>,
    ) -> Result<(), Error>;

    /// All sequences and what is taken of them.
    fn collect(&self, mut takes: Takes, is_broadcast: impl Fn(&K) -> bool) -> Result<Vec<Found<'a, K>>, Error> {
        let mut all = Vec::with_capacity(self.len());
        self.each(in_column, |(samples, offsets), sequence| {
            let num_samples = offsets[sequence + 1] - offsets[sequence];
            let (first, count) = takes.next(num_samples, is_broadcast(samples))?;
            all.push(Found { samples, sequence: sequence as u32, num_samples, first, count });
            Ok(())
        })?;
        Ok(all)
    }
}

/// The samples and the sequence offsets of a column, as they are.
#[inline]
pub(crate) fn in_column<'a, K>(samples: &'a K, sequence_offsets: &'a [u32]) -> Option<(&'a K, &'a [u32])> {
    Some((samples, sequence_offsets))
}

/// A sequence of a selection, in a column of samples of kind `K`. A minibatch may have many, so the type is small.
#[derive(Debug, Clone)]
pub(crate) struct Found<'a, K> {
    /// The column's samples.
    pub samples: &'a K,
    /// The sequence, counted in the column.
    pub sequence: u32,
    /// Samples of the sequence.
    pub num_samples: u32,
    /// The first sample that is taken, counted in the sequence.
    pub first: u32,
    /// Number of samples that are taken.
    pub count: u32,
}

impl<K> Found<'_, K> {
    /// The samples that are taken, counted in the sequence.
    #[inline]
    pub(crate) fn taken(&self) -> Range<usize> {
        self.first as usize..self.first as usize + self.count as usize
    }
}

/// What is taken of each sequence of a selection; its end goes into the sequence offsets.
pub(crate) struct Takes<'a, 'out> {
    parts: Option<Parts<'a>>,
    stream: usize,
    /// The next sequence, counted in the selection.
    next: usize,
    total: i64,
    sequence_offsets: &'out mut Vec<i64>,
}

impl<'a, 'out> Takes<'a, 'out> {
    /// What is taken of `num_sequences` sequences of a stream: the parts, or all of each sequence.
    pub(crate) fn new(
        num_sequences: usize,
        parts: Option<Parts<'a>>,
        stream: usize,
        sequence_offsets: &'out mut Vec<i64>,
    ) -> Takes<'a, 'out> {
        sequence_offsets.reserve(num_sequences);
        let total = sequence_offsets[sequence_offsets.len() - 1];
        Takes { parts, stream, next: 0, total, sequence_offsets }
    }

    /// What is taken of the next sequence, which has `num_samples` samples: the first sample, and the number of samples.
    ///
    /// They are inside the sequence, unless its only frame stands for any number of samples (`is_broadcast`).
    #[inline(always)]
    pub(crate) fn next(&mut self, num_samples: u32, is_broadcast: bool) -> Result<(u32, u32), Error> {
        let sequence = self.next;
        let (first, count) = match self.parts {
            None => (0, num_samples),
            Some(Parts { firsts, counts }) => (firsts[sequence], counts[sequence]),
        };
        if u64::from(first) + u64::from(count) > u64::from(num_samples) && !is_broadcast {
            return Err(self.too_short(sequence, num_samples));
        }
        self.next += 1;
        self.total += i64::from(count);
        self.sequence_offsets.push(self.total);
        Ok((first, count))
    }

    /// The sample of each sequence, if one sample of each is taken; the ends are in the sequence offsets then.
    pub(crate) fn single(&mut self) -> Option<&'a [u32]> {
        let Parts { firsts, counts } = self.parts?;
        if counts.iter().fold(0, |all, count| all | (count ^ 1)) != 0 {
            return None;
        }
        self.sequence_offsets.extend(self.total + 1..=self.total + counts.len() as i64);
        Some(firsts)
    }

    /// The error of a sequence that has fewer samples than are taken.
    #[cold]
    pub(crate) fn too_short(&self, sequence: usize, num_samples: u32) -> Error {
        Error::Length { sequence, stream: self.stream, num_samples: num_samples as usize }
    }
}

/// Reserve memory for `count` more values; an error if there is not as much.
pub(crate) fn try_reserve<T>(values: &mut Vec<T>, count: usize) -> Result<(), Error> {
    values.try_reserve(count).map_err(|_| Error::TooLarge)
}
