//! Gathering: the input of each kind of samples ([`Located`], [`Takes`]), and its output ([`Ragged`]).

use super::Column;
use super::values::{NumberType, Values};
use crate::memory;
use cntkio_memory::huge_pages::advise_for;
use cntkio_simd::prefetch_first;
use std::ops::Range;

/// The form in which samples are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Values of a sample, or the bound of its indices.
    pub dim: usize,
    /// True if a sample is a list of (index, value).
    pub is_sparse: bool,
    /// The type of the values.
    pub number: NumberType,
}

/// A stream of a minibatch, ragged.
#[derive(Debug, Clone, PartialEq)]
pub struct Ragged {
    // A minibatch can have several chunks of up to 2^32 - 1 samples each.
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

impl RaggedEntries {
    /// Make room for the offsets of `count` more samples.
    pub(crate) fn reserve(&mut self, count: usize) {
        // A whole corpus is appended chunk by chunk, so this table can have the offsets of earlier chunks.
        if self.sample_offsets.len() > 1 {
            return memory::reserve(&mut self.sample_offsets, count);
        }
        // Growing a vector can take much longer than creating one, because its memory may belong to an arena of the
        // system's allocator that another thread has locked.
        self.sample_offsets = memory::with_room(count + 1);
        self.sample_offsets.push(0);
    }
}

impl Ragged {
    /// A stream without sequences, with room for the offsets of `num_sequences` sequences.
    pub fn empty(is_sparse: bool, number: NumberType, num_sequences: usize) -> Ragged {
        let mut sequence_offsets = memory::with_room(num_sequences + 1);
        sequence_offsets.push(0);
        let entries = is_sparse.then(|| RaggedEntries { sample_offsets: vec![0], indices: Vec::new() });
        Ragged { sequence_offsets, values: Values::empty(number), entries }
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
    /// An array needs this number of bytes, which is more memory than the system has.
    TooLarge(usize),
    /// A chunk in full width would have 2^32 samples or entries, or more, which its offsets cannot count.
    LongChunk,
    /// A sequence has the wrong number of samples.
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
    /// For each sequence the number of samples that are taken.
    pub counts: &'a [u32],
}

impl<'a> Parts<'a> {
    /// The parts of some consecutive sequences; `None` if there are fewer.
    pub(crate) fn slice(self, range: Range<usize>) -> Option<Parts<'a>> {
        Some(Parts { firsts: self.firsts.get(range.clone())?, counts: self.counts.get(range)? })
    }
}

/// The columns of one stream in all blocks of the chunks that a selection is taken from; all have one form.
pub(crate) trait Gather: Sync {
    /// Append the samples that are taken of each sequence.
    ///
    /// # Errors
    /// Why the selection cannot be packed. The appended samples must not be used then.
    fn gather(
        &self,
        located: &Located,
        takes: Takes,
        values: &mut Values,
        entries: Option<&mut RaggedEntries>,
    ) -> Result<(), Error>;

    /// Prefetch what `gather` will read of these sequences. Affects only speed.
    fn prefetch(&self, _sequences: &[Neighbours], _what: Ahead) {}
}

/// A part of the data that is prefetched before a selection is gathered: the tables first, the samples once the tables
/// are in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// The beginning and the end of each sequence.
    Tables,
    /// The first bytes of each sequence, or of the table of its entries.
    Samples,
}

impl Ahead {
    /// The beginning and the end of a sequence whose samples are to be prefetched. Prefetches the table otherwise.
    #[inline(always)]
    pub(crate) fn span<T: Copy>(self, offsets: &[T], sequence: usize) -> Option<(T, T)> {
        if self == Ahead::Samples {
            return span(offsets, sequence).ok();
        }
        // The table itself is in no cache, so reading it here would wait for memory.
        prefetch_first(offsets.get(sequence..).unwrap_or_default());
        None
    }
}

/// A column, and the samples of its sequences.
pub(crate) type KnownColumn<'a> = (&'a Column, Lengths<'a>);

/// The samples of each sequence of a column.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lengths<'a> {
    /// A single sample of each of this number of sequences. So no table is read, which would be in no cache.
    Single(usize),
    /// The first sample of each sequence and, last, the number of samples.
    Any(&'a [u32]),
}

impl<'a> Lengths<'a> {
    /// The table that is read first: of sequences, or else `other`.
    #[inline(always)]
    pub(crate) fn table_or(self, other: &'a [u32]) -> &'a [u32] {
        match self {
            Lengths::Single(_) => other,
            Lengths::Any(offsets) => offsets,
        }
    }

    /// As [`Ahead::span`].
    #[inline(always)]
    pub(crate) fn ahead(self, what: Ahead, sequence: usize) -> Option<(u32, u32)> {
        match self {
            Lengths::Any(offsets) => what.span(offsets, sequence),
            // No table is needed, so the place of the sample is known in the second step without the first.
            Lengths::Single(count) if what == Ahead::Samples && sequence < count => {
                Some((sequence as u32, sequence as u32 + 1))
            }
            Lengths::Single(_) => None,
        }
    }
}

/// The sequences of a selection, in order.
pub(crate) struct Located {
    /// Groups of neighbours, which are copied in one piece.
    pub all: Vec<Neighbours>,
    /// Number of sequences.
    pub num_sequences: usize,
}

/// Consecutive sequences of a block: at least one, and only one where parts of sequences are taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neighbours {
    /// The block.
    pub block: u32,
    /// The first of the sequences, counted in the block.
    pub first: u32,
    /// The end of the sequences.
    pub end: u32,
}

impl Located {
    /// Pass each sequence to `take`, with the column of its block.
    #[inline]
    pub(crate) fn each<'c, C>(
        &self,
        columns: &'c [C],
        mut take: impl FnMut(&'c C, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for &Neighbours { block, first, end } in &self.all {
            let column = &columns[block as usize];
            for sequence in first as usize..end as usize {
                take(column, sequence)?;
            }
        }
        Ok(())
    }

    /// Pass each group of neighbours to `take`, with the column of its block. The entry of the group's first sequence
    /// in the column's `table` is prefetched some time before.
    #[inline]
    pub(crate) fn each_group<'c, C, E: 'c>(
        &self,
        columns: &'c [C],
        table: impl Fn(&'c C) -> &'c [E],
        mut take: impl FnMut(&'c C, Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let groups = &self.all;
        let prefetch = |group: &Neighbours| {
            prefetch_first(table(&columns[group.block as usize]).get(group.first as usize..).unwrap_or_default());
        };
        // The first groups have no earlier group during which they could be prefetched.
        groups.iter().take(AHEAD_GROUPS).for_each(prefetch);
        for (at, &Neighbours { block, first, end }) in groups.iter().enumerate() {
            if let Some(next) = groups.get(at + AHEAD_GROUPS) {
                prefetch(next);
            }
            take(&columns[block as usize], first as usize..end as usize)?;
        }
        Ok(())
    }
}

/// Distance of the table entries that are prefetched.
const AHEAD_GROUPS: usize = 16;

/// The beginning and the end of a sequence.
#[inline(always)]
pub(crate) fn span<T: Copy>(offsets: &[T], sequence: usize) -> Result<(T, T), Error> {
    // The pattern checks both bounds at once.
    match offsets.get(sequence..) {
        Some(&[begin, end, ..]) => Ok((begin, end)),
        _ => Err(Error::Missing),
    }
}

/// The samples that a selection takes from each sequence. Appends the end of each sequence to the sequence offsets.
pub(crate) struct Takes<'a, 'out> {
    parts: Option<Parts<'a>>,
    stream: usize,
    /// The next sequence, counted in the selection.
    next: usize,
    total: i64,
    sequence_offsets: &'out mut Vec<i64>,
}

impl<'a, 'out> Takes<'a, 'out> {
    /// Take `num_sequences` sequences of a stream: the parts, or all of each sequence.
    pub(crate) fn new(
        num_sequences: usize,
        parts: Option<Parts<'a>>,
        stream: usize,
        sequence_offsets: &'out mut Vec<i64>,
    ) -> Takes<'a, 'out> {
        // `next` appends the ends one by one, so the memory for all of them is requested here.
        memory::reserve(sequence_offsets, num_sequences);
        let total = sequence_offsets[sequence_offsets.len() - 1];
        Takes { parts, stream, next: 0, total, sequence_offsets }
    }

    /// True if all of each sequence is taken.
    pub(crate) fn are_whole(&self) -> bool {
        self.parts.is_none()
    }

    /// The first sample to take from the next sequence, which has `num_samples` samples, and the number of samples.
    ///
    /// They are inside the sequence, unless its only frame stands for any number of samples (`is_broadcast`).
    #[inline(always)]
    pub(crate) fn next(&mut self, num_samples: u32, is_broadcast: bool) -> Result<(u32, u32), Error> {
        let sequence = self.next;
        // `Sources::locate` has checked that the parts are as many as the sequences.
        let (first, count) = match self.parts {
            None => (0, num_samples),
            Some(Parts { firsts, counts }) => (firsts[sequence], counts[sequence]),
        };
        // Parts come from a caller, and their sum can exceed 32 bits.
        if u64::from(first) + u64::from(count) > u64::from(num_samples) && !is_broadcast {
            return Err(self.too_short(sequence, num_samples));
        }
        self.next += 1;
        self.total += i64::from(count);
        self.sequence_offsets.push(self.total);
        Ok((first, count))
    }

    /// The samples to take from the next sequences, neighbours in a column, counted in the column.
    #[inline(always)]
    pub(crate) fn piece(&mut self, lengths: Lengths, sequences: Range<usize>) -> Result<Range<usize>, Error> {
        let Range { start, end } = sequences;
        let offsets = match lengths {
            Lengths::Any(offsets) => offsets,
            // No table is read, so the number of sequences is checked here.
            Lengths::Single(count) if end > count => return Err(Error::Missing),
            // Parts have no neighbours, so this is a single sequence.
            Lengths::Single(_) if self.parts.is_some() => {
                let (first, count) = self.next(1, false)?;
                let first = start + first as usize;
                return Ok(first..first + count as usize);
            }
            Lengths::Single(_) => {
                let total = self.total;
                self.total += (end - start) as i64;
                self.next += end - start;
                self.sequence_offsets.extend(total + 1..=self.total);
                return Ok(start..end);
            }
        };
        let (begin, next) = span(offsets, start)?;
        if end == start + 1 {
            let (first, count) = self.next(next - begin, false)?;
            let first = begin as usize + first as usize;
            return Ok(first..first + count as usize);
        }
        let ends = offsets.get(start + 1..=end).ok_or(Error::Missing)?;
        // The ends of neighbours are copied with a shift, without a look at each sequence.
        let shift = self.total - i64::from(begin);
        self.sequence_offsets.extend(ends.iter().map(|&offset| i64::from(offset) + shift));
        self.next += ends.len();
        self.total = i64::from(offsets[end]) + shift;
        Ok(begin as usize..offsets[end] as usize)
    }

    /// The sample of each sequence, if one sample of each sequence is taken; then the ends are in the sequence offsets.
    pub(crate) fn single(&mut self) -> Option<&'a [u32]> {
        // In frame mode every sequence of a selection is one sample of an utterance.
        let Parts { firsts, counts } = self.parts?;
        // A fold without a branch: usually all counts are 1.
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

/// Reserve memory for `count` more values; an error if the system has less.
pub(crate) fn try_reserve<T>(values: &mut Vec<T>, count: usize) -> Result<(), Error> {
    // A minibatch can be larger than the memory. This is an error of one read, and the process continues.
    values.try_reserve(count).map_err(|_| Error::TooLarge(count.saturating_mul(size_of::<T>())))?;
    advise_for(values, count);
    Ok(())
}
