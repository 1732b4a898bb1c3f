//! The CNTK binary format: a chunk's bytes into columns, and columns into a chunk's bytes. (docs/formats/cbf.md)
//!
//! ```text
//! 2.x layout:         length list | stream 0: sequence, sequence, … | stream 1: … | …
//! documented layout:                stream 0: values, or one matrix | stream 1: … | …
//! ```
//!
//! The law: every count is checked against the bytes that are left before anything is read or allocated by it, in
//! 64 bits; what is delivered is what is stored, order, repetitions and special values included. Headers, and what a
//! fault means, are Python's.

use crate::chunk::{Block, Chunk, Column, Pool, Samples, Stored, Values};
use cntkio_simd::memory::{FileBytes, advise_huge_pages, prefetch};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// What a stream is in the file, and in which precision it is delivered or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// Whether samples are lists of index and value.
    pub is_sparse: bool,
    /// Values a sample, or the bound of its indices; at least 1.
    pub dim: usize,
    /// Whether the file's values are in double precision.
    pub is_double: bool,
    /// Whether the columns' values are.
    pub becomes_double: bool,
}

impl Stream {
    fn width(&self) -> usize {
        if self.is_double { 8 } else { 4 }
    }
}

/// What is wrong with a chunk.
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
    /// A column starts at value `found`, below the one before, at `limit`.
    Column,
    /// The columns end at value `found`, but there are `limit`.
    LastColumn,
    /// A negative row.
    NegativeRow,
    /// Sample `found` stands behind sample `limit`.
    SampleOrder,
    /// At least `found` samples in the chunk, and at most `limit` can be true.
    TooManySamples,
    /// To be written: a dense sequence of `found` samples; the documented layout has 1.
    NotOneSample,
    /// To be written: row `found`, above `limit`.
    RowTooLarge,
    /// To be written: `found` values, above `limit`.
    TooManyValues,
}

/// Where a chunk is wrong, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub kind: Kind,
    /// Position in the chunk's bytes.
    pub at: usize,
    /// The stream, where one is concerned.
    pub stream: Option<usize>,
    /// The sequence's number in the chunk, where one is concerned.
    pub sequence: Option<usize>,
    /// What was read or counted.
    pub found: i64,
    /// What it was held against.
    pub limit: i64,
}

/// A chunk's columns, and how many of its bytes they came from.
#[derive(Debug)]
pub struct Parsed {
    /// The columns.
    pub chunk: Chunk,
    /// Bytes that are used; what follows them belongs to nothing.
    pub num_used: usize,
    /// Documented layout: samples that each sequence counts for.
    pub lengths: Vec<u32>,
}

const LARGEST_I32: u64 = i32::MAX as u64;

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
fn i32_at(bytes: &[u8], at: usize) -> i32 {
    u32_at(bytes, at) as i32
}

pub(crate) fn i32s(bytes: &[u8]) -> impl ExactSizeIterator<Item = i32> + '_ {
    bytes.chunks_exact(4).map(|four| i32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}

/// Bytes as a signed number for a fault, saturated.
fn counted(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// A place in a chunk that is walked along: takes `size` bytes if they are there.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    stream: usize,
}

impl Walk<'_> {
    fn take(&mut self, size: u64, kind: Kind, sequence: Option<usize>) -> Result<usize, Fault> {
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

/// Append values from bytes.
fn append(values: &mut Values, bytes: &[u8], is_double: bool) {
    let singles =
        |bytes| <[u8]>::chunks_exact(bytes, 4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    let doubles = |bytes| {
        <[u8]>::chunks_exact(bytes, 8).map(|eight| f64::from_le_bytes(eight.try_into().expect("chunks of eight")))
    };
    match (values, is_double) {
        (Values::F32(out), false) => out.extend(singles(bytes)),
        (Values::F64(out), true) => out.extend(doubles(bytes)),
        (Values::F64(out), false) => out.extend(singles(bytes).map(f64::from)),
        (Values::F32(out), true) => out.extend(doubles(bytes).map(|value| value as f32)),
    }
}

/// Empty vectors of a column, those of a column that is gone where they fit.
struct Room {
    sequence_offsets: Vec<u32>,
    sample_offsets: Vec<u32>,
    indices: Vec<i32>,
    values: Values,
}

impl Room {
    fn of(spare: Option<Column>, stream: &Stream) -> Room {
        let (sequence_offsets, samples) =
            spare.map_or((Vec::new(), None), |spare| (spare.sequence_offsets, Some(spare.samples)));
        let (sample_offsets, indices, values) = match samples {
            Some(Samples::Dense { values, .. }) => (Vec::new(), Vec::new(), Some(values)),
            Some(Samples::Sparse { sample_offsets, indices, values, .. }) => (sample_offsets, indices, Some(values)),
            None | Some(Samples::Small(_) | Samples::Stored(_) | Samples::Frames(_) | Samples::Runs(_)) => {
                (Vec::new(), Vec::new(), None)
            }
        };
        let values = match values {
            Some(values) if values.is_double() == stream.becomes_double => values,
            _ if stream.becomes_double => Values::F64(Vec::new()),
            _ => Values::F32(Vec::new()),
        };
        Room { sequence_offsets, sample_offsets, indices, values }
    }

    /// Make room for so many of each.
    fn reserve(&mut self, num_sequences: usize, num_sample_offsets: usize, num_indices: usize, num_values: usize) {
        make_room(&mut self.sequence_offsets, num_sequences + 1);
        make_room(&mut self.sample_offsets, num_sample_offsets);
        make_room(&mut self.indices, num_indices);
        match &mut self.values {
            Values::F32(values) => make_room(values, num_values),
            Values::F64(values) => make_room(values, num_values),
        }
    }

    fn dense(self, dim: usize) -> Column {
        Column { sequence_offsets: self.sequence_offsets, samples: Samples::Dense { dim, values: self.values } }
    }

    fn sparse(self, dim: usize) -> Column {
        let Room { sequence_offsets, sample_offsets, indices, values } = self;
        Column { sequence_offsets, samples: Samples::Sparse { dim, sample_offsets, indices, values } }
    }
}

/// Empty a vector that shall hold so many values. One that is too small, or several times too large, is replaced, so
/// that what is set aside stays near what is needed.
fn make_room<T>(values: &mut Vec<T>, count: usize) {
    values.clear();
    if values.capacity() < count || values.capacity() > 4 * count {
        *values = Vec::with_capacity(count);
        advise_huge_pages(values, count);
    }
}

/// The first sequence of each block and, last, the number of sequences, for blocks of about `piece` bytes.
fn block_starts(num_sequences: usize, piece: usize, size: impl Fn(usize) -> usize) -> Vec<usize> {
    let mut starts = vec![0];
    let mut taken = 0usize;
    for sequence in 0..num_sequences {
        let size = size(sequence);
        if taken > 0 && taken.saturating_add(size) > piece {
            starts.push(sequence);
            taken = 0;
        }
        taken = taken.saturating_add(size);
    }
    starts.push(num_sequences);
    starts
}

/// Build blocks on all threads of the current pool; the fault is the one of the first faulty block.
fn build(
    starts: &[usize],
    streams: &[Stream],
    pool: Option<&Arc<Pool>>,
    column: impl Fn(usize, Room, usize, usize) -> Result<Column, Fault> + Sync,
) -> Result<Chunk, Fault> {
    let block = |pair: &[usize]| {
        let mut spare = pool.and_then(|pool| pool.take()).map_or(Vec::new(), |block| block.columns).into_iter();
        let one = |(number, stream)| column(number, Room::of(spare.next(), stream), pair[0], pair[1]);
        let columns = streams.iter().enumerate().map(one).collect::<Result<_, Fault>>()?;
        Ok(Block { num_sequences: pair[1] - pair[0], columns })
    };
    let blocks: Vec<Result<Block, Fault>> = starts.par_windows(2).map(block).collect();
    let chunk = Chunk::new(blocks.into_iter().collect::<Result<_, Fault>>()?);
    Ok(match pool {
        Some(pool) => chunk.of_pool(pool.clone()),
        None => chunk,
    })
}

// ------------------------------------------------------------------------------------------------ 2.x layout

/// Check a chunk of the 2.x layout, and keep its bytes as they are: the packer copies sequences straight from there.
pub fn parse(file: Arc<FileBytes>, num_sequences: usize, streams: &[Stream]) -> Result<Parsed, Fault> {
    let bytes = file.as_slice();
    let mut walk = Walk { bytes, at: 0, stream: 0 };
    let list = (num_sequences as u64).saturating_mul(4);
    walk.take(list, Kind::LengthList, None).map_err(|fault| Fault { stream: None, ..fault })?;
    let mut columns = Vec::with_capacity(streams.len());
    for (number, stream) in streams.iter().enumerate() {
        walk.stream = number;
        let places = sequence_places(&mut walk, stream, num_sequences)?;
        let mut num_samples = 0;
        let sequence_offsets = std::iter::once(0)
            .chain(places[..num_sequences].iter().map(|&place| {
                num_samples += u32_at(bytes, place);
                num_samples
            }))
            .collect();
        let Stream { is_sparse, dim, is_double, becomes_double } = *stream;
        let stored = Stored { dim, is_sparse, is_double, becomes_double, bytes: file.clone(), places };
        columns.push(Column { sequence_offsets, samples: Samples::Stored(stored) });
    }
    let num_used = walk.at;
    let chunk = Chunk::new(vec![Block { num_sequences, columns }]);
    Ok(Parsed { chunk, num_used, lengths: Vec::new() })
}

/// Where each sequence of a stream begins, and where the last one ends.
fn sequence_places(walk: &mut Walk, stream: &Stream, num_sequences: usize) -> Result<Vec<usize>, Fault> {
    let width = stream.width() as u64;
    // A sequence has at least its count: more of them than that do not fit, and are found out on the way.
    let mut places = Vec::with_capacity(num_sequences.min((walk.bytes.len() - walk.at) / 4) + 1);
    for sequence in 0..num_sequences {
        let start = walk.at;
        places.push(start);
        if stream.is_sparse {
            walk.take(8, Kind::Count, Some(sequence))?;
            let num_samples = u64::from(u32_at(walk.bytes, start));
            let num_values = i32_at(walk.bytes, start + 4);
            let Ok(num_values) = u64::try_from(num_values) else {
                return Err(walk.fault(Kind::NegativeValues, start + 4, Some(sequence), num_values.into()));
            };
            walk.take(num_values * (width + 4) + num_samples * 4, Kind::Sparse, Some(sequence))?;
            // At once, while the bytes are on their way into the cache.
            check_sparse(walk, stream, sequence, start)?;
        } else {
            walk.take(4, Kind::Count, Some(sequence))?;
            let num_samples = u64::from(u32_at(walk.bytes, start));
            let size = num_samples.saturating_mul((stream.dim as u64).saturating_mul(width));
            walk.take(size, Kind::Dense, Some(sequence))?;
            // Most often sequences are of one length: the counts of those to come are asked for.
            let ahead = walk.at + SEQUENCES_AHEAD * (walk.at - start);
            prefetch(walk.bytes.get(ahead..ahead + 4).unwrap_or(&[]), 4);
        }
    }
    places.push(walk.at);
    Ok(places)
}

/// How far ahead of the check bytes are asked for, and how many at most at a time.
const AHEAD: usize = 1024;
/// How many dense sequences ahead counts are asked for.
const SEQUENCES_AHEAD: usize = 8;

/// Check the indices and the numbers of values of a sparse sequence, which was just walked over.
fn check_sparse(walk: &Walk, stream: &Stream, sequence: usize, place: usize) -> Result<(), Fault> {
    let bytes = walk.bytes;
    let (num_samples, num_values) = (u32_at(bytes, place) as usize, u32_at(bytes, place + 4) as usize);
    let indices_at = place + 8 + num_values * stream.width();
    let sizes_at = indices_at + num_values * 4;
    let fault = |kind, at, found, limit| Fault { limit, ..walk.fault(kind, at, Some(sequence), found) };
    // The processor does not see by itself how it goes on behind the end of a page.
    let end = sizes_at + 4 * num_samples;
    prefetch(bytes.get(end + AHEAD..end + AHEAD + (end - place)).unwrap_or(&[]), AHEAD);
    let indices = &bytes[indices_at..sizes_at];
    if let Some(bad) = index_beyond(indices, stream.dim) {
        let at = indices_at + 4 * bad;
        return Err(fault(Kind::Index, at, i32_at(bytes, at).into(), stream.dim as i64));
    }
    let mut taken = 0u64;
    for (sample, size) in i32s(&bytes[sizes_at..sizes_at + 4 * num_samples]).enumerate() {
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

/// What a sequence of the 2.x layout is made of, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sequence<'a> {
    /// Number of samples.
    pub num_samples: usize,
    /// Of all samples.
    pub values: &'a [u8],
    /// For a sparse stream: the index of each value.
    pub indices: &'a [u8],
    /// For a sparse stream: the number of values of each sample.
    pub sizes: &'a [u8],
}

impl Stored {
    /// Bytes of a value.
    fn width(&self) -> usize {
        if self.is_double { 8 } else { 4 }
    }

    /// All bytes of a sequence.
    #[inline]
    pub(crate) fn bytes_of(&self, number: usize) -> &[u8] {
        &self.bytes.as_slice()[self.places[number]..self.places[number + 1]]
    }

    /// What they are; `None` if that has changed since it was checked.
    #[inline]
    pub(crate) fn sequence<'a>(&self, bytes: &'a [u8]) -> Option<Sequence<'a>> {
        let (count, bytes) = bytes.split_at_checked(4)?;
        let num_samples = u32_at(count, 0) as usize;
        if !self.is_sparse {
            return Some(Sequence { num_samples, values: bytes, indices: &[], sizes: &[] });
        }
        let bytes = bytes.get(4..)?;
        let (bytes, sizes) = bytes.split_at_checked(bytes.len().checked_sub(4 * num_samples)?)?;
        let (values, indices) = bytes.split_at(bytes.len() / (self.width() + 4) * self.width());
        Some(Sequence { num_samples, values, indices, sizes })
    }

    /// The part of a sequence that `samples` of it are; `None` as above.
    pub(crate) fn part(&self, number: usize, samples: Range<usize>) -> Option<Sequence<'_>> {
        let Sequence { num_samples, values, indices, sizes } = self.sequence(self.bytes_of(number))?;
        if samples == (0..num_samples) {
            return Some(Sequence { num_samples, values, indices, sizes });
        }
        let (num_samples, width) = (samples.len(), self.width());
        if !self.is_sparse {
            let size = self.dim * width;
            let values = values.get(samples.start * size..samples.end * size)?;
            return Some(Sequence { num_samples, values, indices, sizes });
        }
        let entries = |sizes: &[u8]| i32s(sizes).map(|size| size as usize).sum::<usize>();
        let first = entries(sizes.get(..4 * samples.start)?);
        let sizes = sizes.get(4 * samples.start..4 * samples.end)?;
        let last = first + entries(sizes);
        let (values, indices) = (values.get(first * width..last * width)?, indices.get(4 * first..4 * last)?);
        Some(Sequence { num_samples, values, indices, sizes })
    }

    /// Append values, converted.
    pub(crate) fn append_values(&self, out: &mut Values, bytes: &[u8]) {
        append(out, bytes, self.is_double);
    }
}

/// The first index that is not 0 to `dim - 1`.
fn index_beyond(indices: &[u8], dim: usize) -> Option<usize> {
    let largest = i32s(indices).fold(0, |largest, index| largest.max(index as u32)); // negative ones are the largest
    if (largest as usize) < dim {
        return None;
    }
    i32s(indices).position(|index| index as u32 as usize >= dim)
}

// ----------------------------------------------------------------------------------------- documented layout

/// Where a matrix of the documented layout lies, and how many samples each sequence has in it.
struct Matrix {
    values_at: usize,
    rows_at: usize,
    columns_at: usize,
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
    let mut inputs = Vec::with_capacity(streams.len());
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
        // What a stream takes has been found in the bytes, so there are not more sequences than they can hold.
        lengths.resize(num_sequences, 1u32);
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
                let (first, last) = matrix.entries(bytes, sequence, sequence + 1);
                (last - first) * (stream.width() + 4) + 4 * matrix.num_samples[sequence] as usize
            }
        };
        inputs.iter().zip(streams).map(size).sum()
    };
    let starts = block_starts(num_sequences, piece, size);
    let chunk = build(&starts, streams, pool, |number, mut room, first, last| {
        let stream = &streams[number];
        Ok(match &inputs[number] {
            Input::Dense(at) => {
                let size = stream.dim * stream.width();
                room.reserve(last - first, 0, 0, (last - first) * stream.dim);
                append(&mut room.values, &bytes[at + first * size..at + last * size], stream.is_double);
                room.sequence_offsets.extend(0..=(last - first) as u32);
                room.dense(stream.dim)
            }
            Input::Sparse(matrix) => matrix.column(bytes, stream, room, first, last),
        })
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
    let mut num_samples = Vec::with_capacity(num_sequences);
    let mut total = 0u64;
    let mut begin = 0usize;
    for (sequence, end) in i32s(&bytes[columns_at + 4..columns_at + 4 * (num_sequences + 1)]).enumerate() {
        let end_at = columns_at + 4 * (sequence + 1);
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
            let row_at = rows_at + 4 * (begin + number);
            let Ok(row) = u32::try_from(row) else {
                return Err(walk.fault(Kind::NegativeRow, row_at, Some(sequence), row.into()));
            };
            let next = (row as usize / stream.dim) as u32;
            if next < sample {
                let fault = walk.fault(Kind::SampleOrder, row_at, Some(sequence), next.into());
                return Err(Fault { limit: sample.into(), ..fault });
            }
            sample = next;
        }
        total += u64::from(sample) + 1;
        if total > most_samples {
            let fault = walk.fault(Kind::TooManySamples, rows_at + 4 * begin, Some(sequence), counted(total));
            return Err(Fault { limit: counted(most_samples), ..fault });
        }
        num_samples.push(sample + 1);
        begin = end;
    }
    if begin != num_values {
        let fault = walk.fault(Kind::LastColumn, walk.at - 4, num_sequences.checked_sub(1), begin as i64);
        return Err(Fault { limit: num_values as i64, ..fault });
    }
    Ok(Matrix { values_at, rows_at, columns_at, num_samples })
}

impl Matrix {
    /// The entries of some sequences.
    fn entries(&self, bytes: &[u8], first: usize, last: usize) -> (usize, usize) {
        (i32_at(bytes, self.columns_at + 4 * first) as usize, i32_at(bytes, self.columns_at + 4 * last) as usize)
    }

    fn column(&self, bytes: &[u8], stream: &Stream, mut room: Room, first: usize, last: usize) -> Column {
        let (begin, end) = self.entries(bytes, first, last);
        let width = stream.width();
        let num_samples: usize = self.num_samples[first..last].iter().map(|&count| count as usize).sum();
        room.reserve(last - first, num_samples + 1, end - begin, end - begin);
        let Room { sequence_offsets, sample_offsets, indices, values } = &mut room;
        append(values, &bytes[self.values_at + begin * width..self.values_at + end * width], stream.is_double);
        sample_offsets.push(0);
        sequence_offsets.push(0);
        for sequence in first..last {
            let samples_before = sample_offsets.len();
            let (from, to) = self.entries(bytes, sequence, sequence + 1);
            for row in i32s(&bytes[self.rows_at + 4 * from..self.rows_at + 4 * to]) {
                let (sample, index) = (row as usize / stream.dim, row as usize % stream.dim);
                // Every sample before this value's own has ended.
                sample_offsets.resize(samples_before + sample, indices.len() as u32);
                indices.push(index as i32);
            }
            let samples_behind = samples_before + self.num_samples[sequence] as usize;
            sample_offsets.resize(samples_behind, indices.len() as u32);
            sequence_offsets.push((samples_behind - 1) as u32);
        }
        room.sparse(stream.dim)
    }
}

// --------------------------------------------------------------------------------------------------- writing

/// Some consecutive sequences of a chunk, to be written.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The chunk.
    pub chunk: &'a Chunk,
    /// The first of its sequences.
    pub first: usize,
    /// Behind the last one.
    pub last: usize,
}

/// What is written of the sequences: for each stream the number of its column, and whether it becomes double.
pub type Selected = [(usize, bool)];

/// One stream of one sequence.
#[derive(Debug, Clone, Copy)]
struct Part<'a> {
    column: &'a Column,
    first: usize,
    last: usize,
}

impl<'a> Part<'a> {
    fn num_samples(&self) -> usize {
        self.last - self.first
    }

    fn num_entries(&self) -> usize {
        match &self.column.samples {
            Samples::Dense { dim, .. } => (self.last - self.first) * dim,
            Samples::Sparse { sample_offsets, .. } => (sample_offsets[self.last] - sample_offsets[self.first]) as usize,
            Samples::Small(_) | Samples::Stored(_) | Samples::Frames(_) | Samples::Runs(_) => 0, // the caller has looked
        }
    }

    /// Bytes that it takes.
    fn size(&self, is_double: bool, is_documented: bool) -> usize {
        let width = if is_double { 8 } else { 4 };
        let counts = match (&self.column.samples, is_documented) {
            (Samples::Dense { .. }, true) => 0,
            (Samples::Dense { .. }, false) => 4,
            (Samples::Sparse { .. }, true) => 4 + 4 * self.num_entries(),
            (Samples::Sparse { .. }, false) => 8 + 4 * self.num_entries() + 4 * self.num_samples(),
            (Samples::Small(_) | Samples::Stored(_) | Samples::Frames(_) | Samples::Runs(_), _) => 0,
        };
        counts + self.num_entries() * width
    }

    fn values(&self) -> (&'a Values, usize, usize) {
        match &self.column.samples {
            Samples::Dense { dim, values } => (values, self.first * dim, self.last * dim),
            Samples::Sparse { sample_offsets, values, .. } => {
                (values, sample_offsets[self.first] as usize, sample_offsets[self.last] as usize)
            }
            Samples::Small(_) | Samples::Stored(_) | Samples::Frames(_) | Samples::Runs(_) => {
                static NONE: Values = Values::F32(Vec::new());
                (&NONE, 0, 0)
            }
        }
    }
}

/// All sequences of a stream, in order. A column that is not there is left out; the caller has looked.
fn parts<'a>(runs: &'a [Run<'a>], column: usize) -> impl Iterator<Item = Part<'a>> {
    runs.iter().flat_map(move |run| {
        (run.first..run.last).filter_map(move |sequence| {
            let (block, number) = run.chunk.locate(sequence);
            let column = block.columns.get(column)?;
            let (first, last) =
                (column.sequence_offsets[number] as usize, column.sequence_offsets[number + 1] as usize);
            Some(Part { column, first, last })
        })
    })
}

/// Bytes that each of the sequences takes in a chunk, its place in the length list included, and its longest
/// stream's samples, at least 1.
pub fn sizes(runs: &[Run], selected: &Selected, is_documented: bool) -> (Vec<u64>, Vec<u32>) {
    let num_sequences = runs.iter().map(|run| run.last - run.first).sum();
    let mut sizes = vec![if is_documented { 0 } else { 4u64 }; num_sequences];
    let mut lengths = vec![1u32; num_sequences];
    for &(column, is_double) in selected {
        for ((size, length), part) in sizes.iter_mut().zip(&mut lengths).zip(parts(runs, column)) {
            *size += part.size(is_double, is_documented) as u64;
            *length = (*length).max(part.num_samples() as u32);
        }
    }
    (sizes, lengths)
}

/// Bytes that come on top of the sequences' own: in the documented layout each matrix's count and first column.
pub fn extra_size(selected_sparse: usize, is_documented: bool) -> usize {
    if is_documented { 8 * selected_sparse } else { 0 }
}

/// Where bytes go; never beyond its end.
struct Out<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Out<'_> {
    fn room(&mut self, size: usize) -> &mut [u8] {
        let start = self.at.min(self.bytes.len());
        let end = (start + size).min(self.bytes.len());
        self.at = end;
        &mut self.bytes[start..end]
    }

    fn put_u32(&mut self, value: u32) {
        self.put_u32s(std::iter::once(value), 1);
    }

    fn put_u32s(&mut self, values: impl Iterator<Item = u32>, count: usize) {
        for (four, value) in self.room(4 * count).chunks_exact_mut(4).zip(values) {
            four.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn put_values(&mut self, part: &Part, is_double: bool) {
        fn singles(room: &mut [u8], values: impl Iterator<Item = f32>) {
            for (four, value) in room.chunks_exact_mut(4).zip(values) {
                four.copy_from_slice(&value.to_le_bytes());
            }
        }
        fn doubles(room: &mut [u8], values: impl Iterator<Item = f64>) {
            for (eight, value) in room.chunks_exact_mut(8).zip(values) {
                eight.copy_from_slice(&value.to_le_bytes());
            }
        }
        let (values, begin, end) = part.values();
        let room = self.room((end - begin) * if is_double { 8 } else { 4 });
        match (values, is_double) {
            (Values::F32(values), false) => singles(room, values[begin..end].iter().copied()),
            (Values::F64(values), true) => doubles(room, values[begin..end].iter().copied()),
            (Values::F32(values), true) => doubles(room, values[begin..end].iter().map(|&value| value.into())),
            (Values::F64(values), false) => singles(room, values[begin..end].iter().map(|&value| value as f32)),
        }
    }
}

/// Write a chunk of the 2.x layout. `out` has exactly the size that [`sizes`] sums up to.
pub fn write(runs: &[Run], selected: &Selected, lengths: &[u32], out: &mut [u8]) -> Result<(), Fault> {
    let mut out = Out { bytes: out, at: 0 };
    out.put_u32s(lengths.iter().copied(), lengths.len());
    for (number, &(column, is_double)) in selected.iter().enumerate() {
        for (sequence, part) in parts(runs, column).enumerate() {
            out.put_u32(part.num_samples() as u32);
            let Samples::Sparse { sample_offsets, indices, .. } = &part.column.samples else {
                out.put_values(&part, is_double);
                continue;
            };
            let num_entries = part.num_entries() as u64;
            if num_entries > LARGEST_I32 {
                return Err(unwritable(Kind::TooManyValues, number, Some(sequence), num_entries, LARGEST_I32));
            }
            out.put_u32(num_entries as u32);
            out.put_values(&part, is_double);
            let (_, begin, end) = part.values();
            out.put_u32s(indices[begin..end].iter().map(|&index| index as u32), end - begin);
            let offsets = &sample_offsets[part.first..=part.last];
            out.put_u32s(offsets.windows(2).map(|pair| pair[1] - pair[0]), part.num_samples());
        }
    }
    Ok(())
}

fn unwritable(kind: Kind, stream: usize, sequence: Option<usize>, found: u64, limit: u64) -> Fault {
    Fault { kind, at: 0, stream: Some(stream), sequence, found: counted(found), limit: counted(limit) }
}

/// Write a chunk of the documented layout. `out` has exactly the size that [`sizes`] and [`extra_size`] sum up to.
pub fn write_documented(runs: &[Run], selected: &Selected, out: &mut [u8]) -> Result<(), Fault> {
    let mut out = Out { bytes: out, at: 0 };
    for (number, &(column, is_double)) in selected.iter().enumerate() {
        let is_sparse = |part: Part| matches!(part.column.samples, Samples::Sparse { .. });
        if !parts(runs, column).next().is_some_and(is_sparse) {
            for (sequence, part) in parts(runs, column).enumerate() {
                if part.num_samples() != 1 {
                    let found = part.num_samples() as u64;
                    return Err(unwritable(Kind::NotOneSample, number, Some(sequence), found, 1));
                }
                out.put_values(&part, is_double);
            }
            continue;
        }
        let num_entries: u64 = parts(runs, column).map(|part| part.num_entries() as u64).sum();
        if num_entries > LARGEST_I32 {
            return Err(unwritable(Kind::TooManyValues, number, None, num_entries, LARGEST_I32));
        }
        out.put_u32(num_entries as u32);
        for part in parts(runs, column) {
            out.put_values(&part, is_double);
        }
        for (sequence, part) in parts(runs, column).enumerate() {
            let Samples::Sparse { dim, sample_offsets, indices, .. } = &part.column.samples else { continue };
            for (sample, pair) in sample_offsets[part.first..=part.last].windows(2).enumerate() {
                let entries = &indices[pair[0] as usize..pair[1] as usize];
                let row = |index: i32| (sample as u64).saturating_mul(*dim as u64).saturating_add(index as u64);
                if let Some(row) = entries.iter().map(|&index| row(index)).find(|&row| row > LARGEST_I32) {
                    return Err(unwritable(Kind::RowTooLarge, number, Some(sequence), row, LARGEST_I32));
                }
                out.put_u32s(entries.iter().map(|&index| row(index) as u32), entries.len());
            }
        }
        let mut end = 0;
        out.put_u32(0);
        for part in parts(runs, column) {
            end += part.num_entries() as u32;
            out.put_u32(end);
        }
    }
    Ok(())
}
