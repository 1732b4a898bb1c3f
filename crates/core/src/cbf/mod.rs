//! The CNTK binary format: a chunk's bytes into columns, and columns into a chunk's bytes. (docs/formats/cbf.md)
//!
//! ```text
//! 2.x layout:         length list | stream 0: sequence, sequence, … | stream 1: … | …
//! documented layout:                stream 0: values, or one matrix | stream 1: … | …
//! ```
//!
//! Invariant: before a count decides how much is read or allocated, it is compared with the bytes that are left, in 64
//! bits. Columns deliver exactly the stored values, with their order, repetitions and special values. Python reads the
//! headers and decides what a fault means.

mod write;

pub use write::{Selected, Written, extra_size, sizes, write, write_documented};

use crate::chunk::{Block, Bytes, Chunk, Column, EmptyColumn, NumberType, Pool, Samples, Stored, i32_at, i32s, u32_at};
use crate::memory;
use cntkio_simd::prefetch;
use rayon::prelude::*;
use std::sync::Arc;

/// A stream's form in the file, and the precision in which it is delivered or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// True if samples are lists of index and value.
    pub is_sparse: bool,
    /// Values a sample, or the bound of its indices; at least 1.
    pub dim: usize,
    /// True if the file's values are in double precision.
    pub is_double: bool,
    /// True if the columns' values are in double precision.
    pub becomes_double: bool,
}

impl Stream {
    fn width(&self) -> usize {
        if self.is_double { 8 } else { 4 }
    }
}

/// A kind of fault in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The length list takes `found` bytes, and `limit` are left.
    LengthList,
    /// A count takes `found` bytes, and `limit` are left.
    Count,
    /// The samples of a dense sequence, or of a dense input, take `found` bytes, and `limit` are left.
    Dense,
    /// The values, indices and counts of a sparse sequence, or of a matrix, take `found` bytes, and `limit` are left.
    Sparse,
    /// A negative number of values.
    NegativeValues,
    /// A negative number of values of a sample.
    NegativeSize,
    /// The samples have `found` values together, but the sequence has `limit`.
    SizeSum,
    /// Index `found`, but the dimension is `limit`.
    Index,
    /// The first column starts at value `found`, not 0.
    FirstColumn,
    /// A column starts at value `found`, before the start of the previous column, at `limit`.
    Column,
    /// The columns end at value `found`, but there are `limit` values.
    LastColumn,
    /// A negative row.
    NegativeRow,
    /// Sample `found` comes after sample `limit`.
    SampleOrder,
    /// The chunk has at least `found` samples, but can have at most `limit`.
    TooManySamples,
    /// To be written: a dense sequence of `found` samples; the documented layout has 1.
    NotOneSample,
    /// To be written: row `found`, above `limit`.
    RowTooLarge,
    /// To be written: `found` values, above `limit`.
    TooManyValues,
}

/// A fault in a chunk, with its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Its kind.
    pub kind: Kind,
    /// Position in the chunk's bytes.
    pub at: usize,
    /// The stream, if the fault concerns a stream.
    pub stream: Option<usize>,
    /// The sequence, counted in the chunk, if the fault concerns a sequence.
    pub sequence: Option<usize>,
    /// The number that was read or counted.
    pub found: i64,
    /// The number that it was compared with.
    pub limit: i64,
}

/// A chunk's columns, and the number of its bytes that they use.
#[derive(Debug)]
pub struct Parsed {
    /// The columns.
    pub chunk: Chunk,
    /// Bytes that are used; no stream uses the bytes after them.
    pub num_used: usize,
    /// Documented layout: samples that each sequence counts for.
    pub lengths: Vec<u32>,
}

const LARGEST_I32: u64 = i32::MAX as u64;

/// Bytes as a signed number for a fault, saturated.
fn counted(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// A cursor over the bytes of a chunk: takes `size` bytes if the chunk has them.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    stream: usize,
}

impl Walk<'_> {
    fn take(&mut self, size: u64, kind: Kind, sequence: Option<usize>) -> Result<usize, Fault> {
        // The cursor only passes bytes that are there, so the difference is not negative.
        let left = self.bytes.len() - self.at;
        if size > left as u64 {
            return Err(Fault { limit: left as i64, ..self.fault(kind, self.at, sequence, counted(size)) });
        }
        let start = self.at;
        self.at += size as usize;
        Ok(start)
    }

    fn fault(&self, kind: Kind, at: usize, sequence: Option<usize>, found: i64) -> Fault {
        Fault { kind, at, stream: Some(self.stream), sequence, found, limit: 0 }
    }
}

/// The first sequence of each block and, last, the number of sequences, for blocks of about `piece` bytes.
fn block_starts(num_sequences: usize, piece: usize, size: impl Fn(usize) -> usize) -> Vec<usize> {
    let mut starts = vec![0];
    let mut taken = 0usize;
    for sequence in 0..num_sequences {
        let size = size(sequence);
        // A sequence is never cut, so the first of a block is taken even if it is larger than a piece.
        if taken > 0 && taken.saturating_add(size) > piece {
            memory::push(&mut starts, sequence);
            taken = 0;
        }
        taken = taken.saturating_add(size);
    }
    starts.push(num_sequences);
    starts
}

/// Build blocks on all threads of the current pool; the fault is the fault of the first faulty block.
fn build(
    starts: &[usize],
    streams: &[Stream],
    pool: Option<&Arc<Pool>>,
    column: impl Fn(usize, EmptyColumn, usize, usize) -> Result<Column, Fault> + Sync,
) -> Result<Chunk, Fault> {
    let block = |pair: &[usize]| {
        let mut spare = pool.and_then(|pool| pool.take()).map_or(Vec::new(), |block| block.columns).into_iter();
        let columns = streams.iter().enumerate().map(|(number, stream)| {
            let empty = EmptyColumn::of(spare.next(), NumberType::float(stream.becomes_double));
            column(number, empty, pair[0], pair[1])
        });
        let columns = columns.collect::<Result<_, Fault>>()?;
        Ok(Block { num_sequences: pair[1] - pair[0], columns })
    };
    // Collected before the faults are examined: rayon would return the fault of any block.
    let blocks: Vec<Result<Block, Fault>> = starts.par_windows(2).map(block).collect();
    Ok(Chunk::new(blocks.into_iter().collect::<Result<_, Fault>>()?).of_pool(pool))
}

// ------------------------------------------------------------------------------------------------ 2.x layout

/// Check a chunk of the 2.x layout, and keep its bytes as they are: the packer copies sequences directly from these
/// bytes.
///
/// `own`: keep only these sequences, which ascend, and check only their contents.
pub fn parse(file: Bytes, num_sequences: usize, streams: &[Stream], own: Option<&[u32]>) -> Result<Parsed, Fault> {
    let mut walk = Walk { bytes: file.as_slice(), at: 0, stream: 0 };
    let list = (num_sequences as u64).saturating_mul(4);
    // Python reads the list when it opens the file, so it is only passed here. It belongs to no stream.
    walk.take(list, Kind::LengthList, None).map_err(|fault| Fault { stream: None, ..fault })?;
    let mut columns = memory::with_room(streams.len());
    for (number, stream) in streams.iter().enumerate() {
        walk.stream = number;
        let Places { starts, ends, sequence_offsets } = match own {
            None => sequences(&mut walk, stream, num_sequences)?,
            Some(own) => own_sequences(&mut walk, stream, num_sequences, own)?,
        };
        let Stream { is_sparse, dim, is_double, becomes_double } = *stream;
        let stored = Stored { dim, is_sparse, is_double, becomes_double, bytes: file.clone(), starts, ends };
        columns.push(Column { sequence_offsets, samples: Samples::Stored(stored) });
    }
    let num_used = walk.at;
    let num_kept = own.map_or(num_sequences, <[u32]>::len);
    let chunk = Chunk::new(vec![Block { num_sequences: num_kept, columns }]);
    Ok(Parsed { chunk, num_used, lengths: Vec::new() })
}

/// The places of a stream's sequences.
#[derive(Default)]
struct Places {
    /// The first byte of each sequence and, last, the end of the last sequence.
    starts: Vec<usize>,
    /// The end of each sequence, if other sequences lie in between.
    ends: Option<Vec<usize>>,
    /// The first sample of each sequence and, last, the number of samples.
    sequence_offsets: Vec<u32>,
}

impl Places {
    fn with_room(most_sequences: usize) -> Places {
        let mut sequence_offsets = memory::with_room(most_sequences + 1);
        sequence_offsets.push(0);
        Places { starts: memory::with_room(most_sequences + 1), ends: None, sequence_offsets }
    }

    /// Add the samples of the sequence that starts at a byte.
    fn add_samples(&mut self, walk: &Walk, start: usize, sequence: usize, num_samples: u32) -> Result<(), Fault> {
        let total = self.sequence_offsets[self.sequence_offsets.len() - 1];
        self.sequence_offsets.push(total.checked_add(num_samples).ok_or_else(|| {
            let found = u64::from(total) + u64::from(num_samples);
            Fault { limit: u32::MAX.into(), ..walk.fault(Kind::TooManySamples, start, Some(sequence), counted(found)) }
        })?);
        Ok(())
    }
}

/// Find and check all sequences of a stream.
///
/// Each number of samples is read once: if the file changes later, the table still describes what was checked.
fn sequences(walk: &mut Walk, stream: &Stream, num_sequences: usize) -> Result<Places, Fault> {
    // A sequence takes at least its count. If there are fewer bytes, the loop finds that out.
    let mut places = Places::with_room(num_sequences.min((walk.bytes.len() - walk.at) / 4));
    for sequence in 0..num_sequences {
        let start = walk.at;
        places.starts.push(start);
        let num_samples = pass(walk, stream, sequence, true)?;
        places.add_samples(walk, start, sequence, num_samples)?;
    }
    places.starts.push(walk.at);
    Ok(places)
}

/// Find some sequences of a stream, and check only these. Passing over the others reads only their counts.
fn own_sequences(walk: &mut Walk, stream: &Stream, num_sequences: usize, own: &[u32]) -> Result<Places, Fault> {
    let mut places = Places::with_room(own.len().min((walk.bytes.len() - walk.at) / 4));
    let mut ends = memory::with_room(places.starts.capacity());
    let mut own = own.iter().peekable();
    for sequence in 0..num_sequences {
        let start = walk.at;
        // The layout has no table of places, so the counts of the other sequences must be read, too.
        let is_own = own.next_if(|&&next| next as usize == sequence).is_some();
        let num_samples = pass(walk, stream, sequence, is_own)?;
        if is_own {
            places.starts.push(start);
            ends.push(walk.at);
            places.add_samples(walk, start, sequence, num_samples)?;
        }
    }
    places.starts.push(walk.at);
    places.ends = Some(ends);
    Ok(places)
}

/// Pass a sequence and return its number of samples. With `is_checked`, check the contents of a sparse sequence.
#[inline(always)]
fn pass(walk: &mut Walk, stream: &Stream, sequence: usize, is_checked: bool) -> Result<u32, Fault> {
    let (start, width) = (walk.at, stream.width() as u64);
    if !stream.is_sparse {
        walk.take(4, Kind::Count, Some(sequence))?;
        let num_samples = u32_at(walk.bytes, start);
        // The product of two 32-bit numbers of the file and a width may exceed 64 bits.
        let size = u64::from(num_samples).saturating_mul((stream.dim as u64).saturating_mul(width));
        walk.take(size, Kind::Dense, Some(sequence))?;
        // Most corpora have sequences of one length: prefetch the counts at which they would follow.
        let ahead = walk.at + AHEAD_SEQUENCES * (walk.at - start);
        prefetch(walk.bytes.get(ahead..ahead + 4).unwrap_or_default(), 4);
        return Ok(num_samples);
    }
    walk.take(8, Kind::Count, Some(sequence))?;
    let num_samples = u32_at(walk.bytes, start);
    let num_values = i32_at(walk.bytes, start + 4);
    let Ok(num_values) = u32::try_from(num_values) else {
        return Err(walk.fault(Kind::NegativeValues, start + 4, Some(sequence), num_values.into()));
    };
    // Numbers of 31 and 32 bits, so the sum cannot overflow.
    let size = u64::from(num_values) * (width + 4) + u64::from(num_samples) * 4;
    let values_at = walk.take(size, Kind::Sparse, Some(sequence))?;
    // The processor does not prefetch beyond the end of a page by itself.
    let ahead = walk.at + AHEAD_BYTES;
    prefetch(walk.bytes.get(ahead..ahead + (walk.at - values_at)).unwrap_or_default(), AHEAD_BYTES);
    if is_checked {
        // Check now, while the next bytes are on their way into the cache.
        check_sparse(walk, stream, sequence, values_at, num_values as usize)?;
    }
    Ok(num_samples)
}

/// Distance of the prefetched bytes from the check, and the most bytes that are prefetched at a time.
const AHEAD_BYTES: usize = 1024;
/// Distance, in dense sequences, of the prefetched counts.
const AHEAD_SEQUENCES: usize = 8;

/// Check the indices and the numbers of values of a sparse sequence, which the walk has just passed.
fn check_sparse(
    walk: &Walk,
    stream: &Stream,
    sequence: usize,
    values_at: usize,
    num_values: usize,
) -> Result<(), Fault> {
    let (bytes, end) = (walk.bytes, walk.at);
    let indices_at = values_at + num_values * stream.width();
    let sizes_at = indices_at + num_values * 4;
    let fault = |kind, at, found, limit| Fault { limit, ..walk.fault(kind, at, Some(sequence), found) };
    if let Some(bad) = index_beyond(&bytes[indices_at..sizes_at], stream.dim) {
        let at = indices_at + 4 * bad;
        return Err(fault(Kind::Index, at, i32_at(bytes, at).into(), stream.dim as i64));
    }
    let mut taken = 0u64;
    for (sample, size) in i32s(&bytes[sizes_at..end]).enumerate() {
        let Ok(size) = u64::try_from(size) else {
            return Err(fault(Kind::NegativeSize, sizes_at + 4 * sample, size.into(), 0));
        };
        taken += size;
        if taken > num_values as u64 {
            return Err(fault(Kind::SizeSum, sizes_at + 4 * sample, taken as i64, num_values as i64));
        }
    }
    if taken < num_values as u64 {
        return Err(fault(Kind::SizeSum, sizes_at, taken as i64, num_values as i64));
    }
    Ok(())
}

/// The first index that is not 0 to `dim - 1`.
fn index_beyond(indices: &[u8], dim: usize) -> Option<usize> {
    // Negative indices become the largest.
    // A maximum needs no branch for each index. Only a fault takes the second pass, for its place.
    let largest = i32s(indices).fold(0, |largest, index| largest.max(index as u32));
    if (largest as usize) < dim {
        return None;
    }
    i32s(indices).position(|index| index as u32 as usize >= dim)
}

// ----------------------------------------------------------------------------------------- documented layout

/// A matrix of the documented layout: the offsets of its values and rows in the chunk; the first value of each sequence
/// and, last, the number of values; and the number of samples of each sequence.
///
/// The bytes may change while they are used (see `cntkio_memory::file`), so the columns are not read again, and a row
/// that is read again is checked again.
struct Matrix {
    values_at: usize,
    rows_at: usize,
    columns: Vec<u32>,
    num_samples: Vec<u32>,
}

enum Input {
    Dense(usize),
    Sparse(Matrix),
}

/// Parse a chunk of the documented layout into blocks of about `piece` bytes.
///
/// Nothing in the bytes accounts for the empty samples that a large row implies: more than `most_samples` samples in
/// a stream are refused.
pub fn parse_documented(
    bytes: &[u8],
    num_sequences: usize,
    streams: &[Stream],
    most_samples: u64,
    piece: usize,
    pool: Option<&Arc<Pool>>,
) -> Result<Parsed, Fault> {
    let mut walk = Walk { bytes, at: 0, stream: 0 };
    let mut inputs = memory::with_room(streams.len());
    for (number, stream) in streams.iter().enumerate() {
        walk.stream = number;
        if stream.is_sparse {
            inputs.push(Input::Sparse(matrix(&mut walk, stream, num_sequences, most_samples)?));
        } else {
            let size = (stream.dim as u64 * stream.width() as u64).saturating_mul(num_sequences as u64);
            inputs.push(Input::Dense(walk.take(size, Kind::Dense, None)?));
        }
    }
    let mut lengths = Vec::new();
    if !streams.is_empty() {
        // The bytes of each stream were found, so there are not more sequences than the chunk can hold.
        memory::resize(&mut lengths, num_sequences, 1u32);
    }
    for input in &inputs {
        if let Input::Sparse(matrix) = input {
            for (length, &num_samples) in lengths.iter_mut().zip(&matrix.num_samples) {
                *length = num_samples.max(*length);
            }
        }
    }
    let size = |sequence: usize| {
        let size = |(input, stream): (&Input, &Stream)| match input {
            Input::Dense(_) => stream.dim * stream.width(),
            Input::Sparse(matrix) => {
                let (first, last) = matrix.entries(sequence, sequence + 1);
                (last - first) * (stream.width() + 4) + 4 * matrix.num_samples[sequence] as usize
            }
        };
        inputs.iter().zip(streams).map(size).sum()
    };
    let starts = block_starts(num_sequences, piece, size);
    let chunk = build(&starts, streams, pool, |number, mut empty, first, last| {
        let stream = &streams[number];
        match &inputs[number] {
            Input::Dense(at) => {
                let size = stream.dim * stream.width();
                empty.fit(last - first, 0, 0, (last - first) * stream.dim);
                empty.values.append_stored(&bytes[at + first * size..at + last * size], stream.is_double);
                empty.sequence_offsets.extend(0..=(last - first) as u32);
                Ok(empty.dense(stream.dim))
            }
            Input::Sparse(matrix) => matrix.column(&Walk { bytes, at: 0, stream: number }, stream, empty, first, last),
        }
    })?;
    Ok(Parsed { chunk, num_used: walk.at, lengths })
}

/// Find a matrix and check all of it.
fn matrix(walk: &mut Walk, stream: &Stream, num_sequences: usize, most_samples: u64) -> Result<Matrix, Fault> {
    let bytes = walk.bytes;
    let start = walk.take(4, Kind::Count, None)?;
    let count = i32_at(bytes, start);
    let Ok(num_values) = usize::try_from(count) else {
        return Err(walk.fault(Kind::NegativeValues, start, None, count.into()));
    };
    let width = stream.width();
    let num_columns = num_sequences as u64 + 1;
    let size = (num_values as u64 * (width as u64 + 4)).saturating_add(num_columns.saturating_mul(4));
    let values_at = walk.take(size, Kind::Sparse, None)?;
    let rows_at = values_at + num_values * width;
    let columns_at = rows_at + num_values * 4;
    let first = i32_at(bytes, columns_at);
    if first != 0 {
        return Err(walk.fault(Kind::FirstColumn, columns_at, Some(0), first.into()));
    }
    let mut num_samples = memory::with_room(num_sequences);
    let mut columns = memory::with_room(num_sequences + 1);
    columns.push(0);
    let mut total = 0u64;
    let mut begin = 0usize;
    for (sequence, end) in i32s(&bytes[columns_at + 4..columns_at + 4 * (num_sequences + 1)]).enumerate() {
        let end_at = columns_at + 4 * (sequence + 1);
        // Also a negative end is below `begin`, so the cast below is right.
        if i64::from(end) < begin as i64 {
            let fault = walk.fault(Kind::Column, end_at, Some(sequence), end.into());
            return Err(Fault { limit: begin as i64, ..fault });
        }
        let end = end as usize;
        if end > num_values {
            let fault = walk.fault(Kind::LastColumn, end_at, Some(sequence), end as i64);
            return Err(Fault { limit: num_values as i64, ..fault });
        }
        let mut sample = 0u32;
        for (number, row) in i32s(&bytes[rows_at + 4 * begin..rows_at + 4 * end]).enumerate() {
            sample = sample_of(walk, stream, row, sample, rows_at + 4 * (begin + number), sequence)?;
        }
        total += u64::from(sample) + 1;
        if total > most_samples {
            let fault = walk.fault(Kind::TooManySamples, rows_at + 4 * begin, Some(sequence), counted(total));
            return Err(Fault { limit: counted(most_samples), ..fault });
        }
        num_samples.push(sample + 1);
        columns.push(end as u32);
        begin = end;
    }
    if begin != num_values {
        // The walk has passed the matrix, whose last four bytes are this end.
        let fault = walk.fault(Kind::LastColumn, walk.at - 4, num_sequences.checked_sub(1), begin as i64);
        return Err(Fault { limit: num_values as i64, ..fault });
    }
    Ok(Matrix { values_at, rows_at, columns, num_samples })
}

/// The sample of a row, which comes after a row of sample `before` or is the first row.
#[inline]
fn sample_of(walk: &Walk, stream: &Stream, row: i32, before: u32, at: usize, sequence: usize) -> Result<u32, Fault> {
    let Ok(positive) = u32::try_from(row) else {
        return Err(walk.fault(Kind::NegativeRow, at, Some(sequence), row.into()));
    };
    let sample = (positive as usize / stream.dim) as u32;
    if sample < before {
        let fault = walk.fault(Kind::SampleOrder, at, Some(sequence), sample.into());
        return Err(Fault { limit: before.into(), ..fault });
    }
    Ok(sample)
}

impl Matrix {
    /// The entries of some sequences.
    fn entries(&self, first: usize, last: usize) -> (usize, usize) {
        (self.columns[first] as usize, self.columns[last] as usize)
    }

    fn column(
        &self,
        walk: &Walk,
        stream: &Stream,
        mut empty: EmptyColumn,
        first: usize,
        last: usize,
    ) -> Result<Column, Fault> {
        let bytes = walk.bytes;
        let (begin, end) = self.entries(first, last);
        let width = stream.width();
        let num_samples: usize = self.num_samples[first..last].iter().map(|&count| count as usize).sum();
        empty.fit(last - first, num_samples + 1, end - begin, end - begin);
        let EmptyColumn { sequence_offsets, sample_offsets, indices, values, .. } = &mut empty;
        values.append_stored(&bytes[self.values_at + begin * width..self.values_at + end * width], stream.is_double);
        sample_offsets.push(0);
        sequence_offsets.push(0);
        for sequence in first..last {
            let samples_before = sample_offsets.len();
            let (from, to) = self.entries(sequence, sequence + 1);
            let (rows_at, num_samples) = (self.rows_at + 4 * from, self.num_samples[sequence]);
            let mut sample = 0;
            for (number, row) in i32s(&bytes[rows_at..self.rows_at + 4 * to]).enumerate() {
                let at = rows_at + 4 * number;
                sample = sample_of(walk, stream, row, sample, at, sequence)?;
                if sample >= num_samples {
                    let fault = walk.fault(Kind::TooManySamples, at, Some(sequence), i64::from(sample) + 1);
                    return Err(Fault { limit: num_samples.into(), ..fault });
                }
                // Every sample before this value's own has ended.
                sample_offsets.resize(samples_before + sample as usize, indices.len() as u32);
                // `sample_of` has refused negative rows.
                indices.push((row as usize % stream.dim) as i32);
            }
            let samples_behind = samples_before + num_samples as usize;
            sample_offsets.resize(samples_behind, indices.len() as u32);
            sequence_offsets.push((samples_behind - 1) as u32);
        }
        Ok(empty.sparse(stream.dim))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::{self, Parts, Ragged, Selection, Wanted};

    const DIM: usize = 3;
    const STREAM: Stream = Stream { is_sparse: true, dim: DIM, is_double: false, becomes_double: false };
    /// Three sequences of 2, 1 and 2 samples, as the documented layout stores them: values, rows, columns.
    const DOCUMENTED: [u32; 15] = [5, 7, 7, 7, 7, 7, 1, 3, 2, 0, 5, 0, 2, 3, 5];
    /// The same samples in the 2.x layout, after the list of lengths.
    const STORED: [u32; 24] = [2, 1, 2, 2, 2, 7, 7, 1, 0, 1, 1, 1, 1, 7, 2, 1, 2, 2, 7, 7, 0, 2, 1, 1];

    fn bytes(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// The bytes with each number replaced by several others, one at a time.
    fn changed(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        (0..bytes.len() / 4).flat_map(move |at| {
            [0, 1, 2, 4, 9, i32::MAX, i32::MIN, -1].map(|number: i32| {
                let mut changed = bytes.to_vec();
                changed[4 * at..4 * at + 4].copy_from_slice(&number.to_le_bytes());
                changed
            })
        })
    }

    #[test]
    fn a_matrix_that_changes_after_its_check_is_data_or_a_fault() {
        let bytes = bytes(&DOCUMENTED);
        let mut walk = Walk { bytes: &bytes, at: 0, stream: 0 };
        let matrix = matrix(&mut walk, &STREAM, 3, 100).unwrap();
        let column = |bytes: &[u8]| {
            let walk = Walk { bytes, at: 0, stream: 0 };
            matrix.column(&walk, &STREAM, EmptyColumn::of(None, NumberType::F32), 0, 3)
        };
        let expected = column(&bytes).unwrap();
        let mut num_faults = 0;
        for changed in changed(&bytes) {
            match column(&changed) {
                Ok(column) => {
                    assert_eq!(column.check(3), Ok(()));
                    assert_eq!(column.sequence_offsets, expected.sequence_offsets);
                }
                Err(_) => num_faults += 1,
            }
        }
        assert!(num_faults > 0);
    }

    #[test]
    fn a_number_of_samples_that_changes_takes_no_values_for_indices() {
        // A sample of two values, 0 and 0, at the indices 1 and 0. As two samples, its last index would be a number of
        // values, and its last value an index.
        let bytes = bytes(&[1, 1, 2, 0, 0, 1, 0, 2]);
        let mut changed = bytes.clone();
        changed[4] = 2;
        let mut blocks = parse(Bytes::new(bytes), 1, &[STREAM], None).unwrap().chunk.blocks().to_vec();
        let Samples::Stored(stored) = &mut blocks[0].columns[0].samples else { panic!("a stored column") };
        stored.bytes = Bytes::new(changed);
        let wanted = Wanted { stream: 0, is_sparse: true, number: NumberType::F32 };
        let selection = Selection { chunk_of: &[0], sequences: &[0], parts: None };
        assert!(pack::gather(&[&Chunk::new(blocks)], selection, wanted).is_err());
    }

    #[test]
    fn sequences_that_change_after_their_check_are_data_or_an_error() {
        let bytes = bytes(&STORED);
        let parsed = parse(Bytes::new(bytes.clone()), 3, &[STREAM], None).unwrap();
        assert_eq!(parsed.num_used, bytes.len());
        let wanted = Wanted { stream: 0, is_sparse: true, number: NumberType::F32 };
        let mut num_errors = 0;
        // At most two numbers are changed.
        for changed in changed(&bytes).flat_map(|bytes| changed(&bytes).collect::<Vec<_>>()) {
            let mut blocks = parsed.chunk.blocks().to_vec();
            let Samples::Stored(stored) = &mut blocks[0].columns[0].samples else { panic!("a stored column") };
            stored.bytes = Bytes::new(changed);
            let chunk = Chunk::new(blocks);
            let parts = Parts { firsts: &[0, 0, 1], counts: &[2, 1, 1] };
            for parts in [None, Some(parts)] {
                let selection = Selection { chunk_of: &[0; 3], sequences: &[0, 1, 2], parts };
                match pack::gather(&[&chunk], selection, wanted) {
                    Ok(Ragged { sequence_offsets, values, entries }) => {
                        let entries = entries.unwrap();
                        assert!(sequence_offsets.is_sorted() && entries.sample_offsets.is_sorted());
                        assert_eq!(sequence_offsets[3] as usize + 1, entries.sample_offsets.len());
                        assert_eq!(entries.sample_offsets.last(), Some(&(values.len() as i64)));
                        assert_eq!(entries.indices.len(), values.len());
                    }
                    Err(_) => num_errors += 1,
                }
            }
            let _ = pack::in_full_width(&chunk, None);
        }
        assert!(num_errors > 0);
    }
}
