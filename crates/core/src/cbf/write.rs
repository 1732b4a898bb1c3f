//! Writing: columns into a chunk's bytes, in either layout.

use super::{Fault, Kind, LARGEST_I32, counted};
use crate::chunk::{PlainChunk, PlainColumn, Values};
use crate::memory;
use std::iter::repeat_n;
use std::ops::Range;

/// Consecutive sequences of a chunk that are written.
#[derive(Debug, Clone)]
pub struct Written<'a> {
    /// The chunk.
    pub chunk: PlainChunk<'a>,
    /// The sequences, counted in the chunk.
    pub sequences: Range<usize>,
}

/// A stream that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selected {
    /// Its column in the chunks; a column that does not exist is left out.
    pub column: usize,
    /// True if it is written in double precision.
    pub is_double: bool,
}

/// A sequence in one of its streams.
#[derive(Clone)]
struct Part<'a> {
    column: PlainColumn<'a>,
    samples: Range<usize>,
}

impl Part<'_> {
    fn num_samples(&self) -> usize {
        self.samples.len()
    }

    /// Number of values.
    fn num_values(&self) -> usize {
        self.values().len()
    }

    /// The range of its values in the column.
    fn values(&self) -> Range<usize> {
        self.column.range(self.samples.clone())
    }

    /// Bytes that it takes.
    fn size(&self, is_double: bool, is_documented: bool) -> usize {
        let width = if is_double { 8 } else { 4 };
        let counts = match (self.column.entries, is_documented) {
            (None, true) => 0,
            (None, false) => 4,
            (Some(_), true) => 4 + 4 * self.num_values(),
            (Some(_), false) => 8 + 4 * self.num_values() + 4 * self.num_samples(),
        };
        counts + self.num_values() * width
    }
}

/// All sequences of a stream, in order.
fn parts<'a>(written: &'a [Written<'a>], column: usize) -> impl Iterator<Item = Part<'a>> {
    written.iter().flat_map(move |Written { chunk, sequences }| {
        sequences.clone().filter_map(move |sequence| {
            let (columns, sequence) = chunk.locate(sequence);
            let column = *columns.get(column)?;
            Some(Part { column, samples: column.samples(sequence) })
        })
    })
}

/// The size of each sequence in a chunk, in bytes and with its entry in the length list; and the number of samples of
/// its longest stream, at least 1.
pub fn sizes(written: &[Written], selected: &[Selected], is_documented: bool) -> (Vec<u64>, Vec<u32>) {
    let num_sequences = written.iter().map(|written| written.sequences.len()).sum();
    let mut sizes = memory::collected(repeat_n(if is_documented { 0 } else { 4u64 }, num_sequences));
    // Readers refuse a length of 0, so a sequence without a sample counts as one.
    let mut lengths = memory::collected(repeat_n(1u32, num_sequences));
    for &Selected { column, is_double } in selected {
        for ((size, length), part) in sizes.iter_mut().zip(&mut lengths).zip(parts(written, column)) {
            *size += part.size(is_double, is_documented) as u64;
            *length = (*length).max(part.num_samples() as u32);
        }
    }
    (sizes, lengths)
}

/// Bytes in addition to the sequences: in the documented layout each matrix's count and first column.
pub fn extra_size(selected_sparse: usize, is_documented: bool) -> usize {
    if is_documented { 8 * selected_sparse } else { 0 }
}

/// A buffer that is written from the front; nothing is written beyond its end.
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
        for (four, value) in self.room(4 * count).as_chunks_mut::<4>().0.iter_mut().zip(values) {
            four.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn put_values(&mut self, part: &Part, is_double: bool) {
        fn singles(room: &mut [u8], values: impl Iterator<Item = f32>) {
            for (four, value) in room.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                four.copy_from_slice(&value.to_le_bytes());
            }
        }
        fn doubles(room: &mut [u8], values: impl Iterator<Item = f64>) {
            for (eight, value) in room.as_chunks_mut::<8>().0.iter_mut().zip(values) {
                eight.copy_from_slice(&value.to_le_bytes());
            }
        }
        let range = part.values();
        let room = self.room(range.len() * if is_double { 8 } else { 4 });
        match (part.column.values, is_double) {
            (Values::F32(values), false) => singles(room, values[range].iter().copied()),
            (Values::F64(values), true) => doubles(room, values[range].iter().copied()),
            (Values::F32(values), true) => doubles(room, values[range].iter().map(|&value| value.into())),
            (Values::F64(values), false) => singles(room, values[range].iter().map(|&value| value as f32)),
            // The caller knows that the floats are exact.
            (Values::I32(values), true) => doubles(room, values[range].iter().map(|&value| value.into())),
            (Values::I32(values), false) => singles(room, values[range].iter().map(|&value| value as f32)),
            (Values::I64(values), true) => doubles(room, values[range].iter().map(|&value| value as f64)),
            (Values::I64(values), false) => singles(room, values[range].iter().map(|&value| value as f32)),
        }
    }
}

/// Write a chunk of the 2.x layout. `out` has exactly the size that [`sizes`] sums up to.
pub fn write(written: &[Written], selected: &[Selected], lengths: &[u32], out: &mut [u8]) -> Result<(), Fault> {
    let mut out = Out { bytes: out, at: 0 };
    out.put_u32s(lengths.iter().copied(), lengths.len());
    for (stream, &Selected { column, is_double }) in selected.iter().enumerate() {
        for (sequence, part) in parts(written, column).enumerate() {
            // Columns count their samples in 32 bits, as the file does.
            out.put_u32(part.num_samples() as u32);
            let Some((sample_offsets, indices)) = part.column.entries else {
                out.put_values(&part, is_double);
                continue;
            };
            let num_entries = part.num_values() as u64;
            // The file has a signed count.
            if num_entries > LARGEST_I32 {
                return Err(unwritable(Kind::TooManyValues, stream, Some(sequence), num_entries, LARGEST_I32));
            }
            out.put_u32(num_entries as u32);
            out.put_values(&part, is_double);
            let indices = &indices[part.values()];
            out.put_u32s(indices.iter().map(|&index| index as u32), indices.len());
            let offsets = &sample_offsets[part.samples.start..=part.samples.end];
            out.put_u32s(offsets.windows(2).map(|pair| pair[1] - pair[0]), part.num_samples());
        }
    }
    Ok(())
}

fn unwritable(kind: Kind, stream: usize, sequence: Option<usize>, found: u64, limit: u64) -> Fault {
    Fault { kind, at: 0, stream: Some(stream), sequence, found: counted(found), limit: counted(limit) }
}

/// Write a chunk of the documented layout. `out` has exactly the size that [`sizes`] and [`extra_size`] sum up to.
pub fn write_documented(written: &[Written], selected: &[Selected], out: &mut [u8]) -> Result<(), Fault> {
    let mut out = Out { bytes: out, at: 0 };
    for (stream, &Selected { column, is_double }) in selected.iter().enumerate() {
        // All parts of a stream have the same form, so the first part shows it.
        if parts(written, column).next().is_none_or(|part| part.column.entries.is_none()) {
            for (sequence, part) in parts(written, column).enumerate() {
                // The layout has no counts of dense samples.
                if part.num_samples() != 1 {
                    let found = part.num_samples() as u64;
                    return Err(unwritable(Kind::NotOneSample, stream, Some(sequence), found, 1));
                }
                out.put_values(&part, is_double);
            }
            continue;
        }
        // The matrix begins with the count of all values, so they are counted in a pass of their own.
        let num_entries: u64 = parts(written, column).map(|part| part.num_values() as u64).sum();
        if num_entries > LARGEST_I32 {
            return Err(unwritable(Kind::TooManyValues, stream, None, num_entries, LARGEST_I32));
        }
        out.put_u32(num_entries as u32);
        for part in parts(written, column) {
            out.put_values(&part, is_double);
        }
        for (sequence, part) in parts(written, column).enumerate() {
            let Some((sample_offsets, indices)) = part.column.entries else { continue };
            let dim = part.column.dim as u64;
            for (sample, pair) in sample_offsets[part.samples.start..=part.samples.end].windows(2).enumerate() {
                let entries = &indices[pair[0] as usize..pair[1] as usize];
                let row = |index: i32| (sample as u64).saturating_mul(dim).saturating_add(index as u64);
                if let Some(row) = entries.iter().map(|&index| row(index)).find(|&row| row > LARGEST_I32) {
                    return Err(unwritable(Kind::RowTooLarge, stream, Some(sequence), row, LARGEST_I32));
                }
                out.put_u32s(entries.iter().map(|&index| row(index) as u32), entries.len());
            }
        }
        let mut end = 0;
        out.put_u32(0);
        for part in parts(written, column) {
            // The sum of all parts was compared with the limit above, so it does not overflow.
            end += part.num_values() as u32;
            out.put_u32(end);
        }
    }
    Ok(())
}
