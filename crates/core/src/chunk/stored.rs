//! Sequences of a binary file as they were read. (docs/formats/cbf.md, "The 2.x layout")
//!
//! ```text
//! dense     number of samples | values
//! sparse    number of samples | number of values | values | indices | number of values of each sample
//! ```
//!
//! The parser ([`crate::cbf::parse`]) checks every sequence once. If the file changes after that, gathering may deliver
//! other values or refuse, but it never reads outside of a sequence's bytes.

use super::bytes::{Bytes, i32s};
use super::ragged::{AllFound, Error, Form, Found, RaggedEntries};
use super::values::{Precision, Values, in_either_precision, reserve};
use cntkio_simd::memory::{Number, append_stored, prefetch};

/// Bytes of a sparse sequence that are prefetched.
const AHEAD_BYTES: usize = 512;
/// Distance, in sparse sequences, of the prefetched bytes.
const AHEAD_SEQUENCES: usize = 6;

/// Sequences of a binary file, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Values of a sample, or the bound of its indices.
    pub dim: usize,
    /// Whether a sample is a list of (index, value).
    pub is_sparse: bool,
    /// Whether values are in double precision in the file.
    pub is_double: bool,
    /// Whether values are in double precision when packed.
    pub becomes_double: bool,
    /// The bytes of the chunk, which all its streams share.
    pub bytes: Bytes,
    /// The first byte of each sequence and, last, the end of the last sequence.
    pub starts: Vec<usize>,
}

impl Stored {
    pub(crate) fn form(&self) -> Form {
        Form { dim: self.dim, is_sparse: self.is_sparse, is_double: self.becomes_double }
    }

    /// Check that every sequence is inside of the bytes; the message says what is not.
    pub(crate) fn check(&self, num_sequences: usize) -> Result<(), String> {
        let is_sound = self.starts.len() == num_sequences + 1
            && self.starts.is_sorted()
            && self.starts[num_sequences] <= self.bytes.as_slice().len();
        if is_sound { Ok(()) } else { Err("sequences that are not inside of their bytes".to_owned()) }
    }

    /// Bytes of the sequences and of their table.
    pub(crate) fn num_bytes(&self) -> usize {
        size_of_val(&self.starts[..]) + self.starts.last().map_or(0, |last| last - self.starts[0])
    }

    /// Bytes of a value.
    fn width(&self) -> usize {
        if self.is_double { 8 } else { 4 }
    }

    /// All bytes of a sequence.
    #[inline]
    fn bytes_of(&self, sequence: u32) -> &[u8] {
        &self.bytes.as_slice()[self.starts[sequence as usize]..self.starts[sequence as usize + 1]]
    }

    /// Ask the processor for the table entry of a sequence.
    #[inline]
    pub(crate) fn prefetch(&self, sequence: usize) {
        prefetch(self.starts.get(sequence..sequence + 2).unwrap_or_default(), 1);
    }
}

/// Append what is taken of each sequence.
#[inline]
pub(crate) fn gather<'a>(
    found: impl AllFound<'a, Stored>,
    values: &mut Values,
    entries: Option<&mut RaggedEntries>,
) -> Result<(), Error> {
    in_either_precision!(values, values => match entries {
        None => dense(found, values),
        Some(entries) => sparse(found, values, entries),
    })
}

fn dense<'a, T: Precision>(found: impl AllFound<'a, Stored>, out: &mut Vec<T>) -> Result<(), Error> {
    let mut pieces: Vec<&[u8]> = Vec::with_capacity(found.len());
    found.each(|found| {
        let stored = found.samples;
        let mut values = stored.bytes_of(found.sequence).get(4..).ok_or(Error::Mixed)?;
        if !found.is_whole() {
            let (size, taken) = (stored.dim * stored.width(), found.taken());
            values = values.get(taken.start * size..taken.end * size).ok_or(Error::Mixed)?;
        }
        if stored.is_double == T::IS_DOUBLE {
            pieces.push(values);
        } else {
            append_stored(out, &pieces);
            pieces.clear();
            T::append_converted(out, values);
        }
        Ok(())
    })?;
    append_stored(out, &pieces);
    Ok(())
}

/// A sparse sequence, and the samples of it that are taken.
struct Piece<'a> {
    /// All bytes of the sequence.
    bytes: &'a [u8],
    is_double: bool,
    num_samples: u32,
    first: u32,
    count: u32,
}

fn sparse<'a, T: Precision>(
    found: impl AllFound<'a, Stored>,
    values: &mut Vec<T>,
    entries: &mut RaggedEntries,
) -> Result<(), Error> {
    let mut pieces: Vec<Piece> = Vec::with_capacity(found.len());
    let (mut num_bytes, mut total) = (0, 0);
    found.each(|found| {
        let Found { samples, sequence, num_samples, first, count, .. } = found;
        let bytes = samples.bytes_of(sequence);
        prefetch(bytes, 1);
        num_bytes += bytes.len();
        total += count as usize;
        pieces.push(Piece { bytes, is_double: samples.is_double, num_samples, first, count });
        Ok(())
    })?;
    // A little more than there are: the counts take some of the bytes, too.
    let num_entries = num_bytes / (size_of::<T>() + 4);
    let RaggedEntries { sample_offsets, indices } = entries;
    reserve(values, num_entries);
    reserve(indices, num_entries);
    sample_offsets.reserve(total);
    let mut end = sample_offsets[sample_offsets.len() - 1];
    for (at, piece) in pieces.iter().enumerate() {
        if let Some(next) = pieces.get(at + AHEAD_SEQUENCES) {
            prefetch(next.bytes, AHEAD_BYTES);
        }
        let taken = piece.split().ok_or(Error::Mixed)?;
        if piece.is_double == T::IS_DOUBLE {
            T::append_le(values, taken.values);
        } else {
            T::append_converted(values, taken.values);
        }
        i32::append_le(indices, taken.indices);
        sample_offsets.extend(i32s(taken.sizes).map(|size| {
            end += i64::from(size);
            end
        }));
    }
    Ok(())
}

/// Sparse samples, in bytes.
struct Taken<'a> {
    values: &'a [u8],
    /// The index of each value.
    indices: &'a [u8],
    /// The number of values of each sample.
    sizes: &'a [u8],
}

impl<'a> Piece<'a> {
    /// Split the samples that are taken; `None` if the file has changed since the sequence was checked.
    #[inline]
    fn split(&self) -> Option<Taken<'a>> {
        let width = if self.is_double { 8 } else { 4 };
        let bytes = self.bytes.get(8..)?;
        let (bytes, sizes) = bytes.split_at_checked(bytes.len().checked_sub(4 * self.num_samples as usize)?)?;
        let (values, indices) = bytes.split_at(bytes.len() / (width + 4) * width);
        if (self.first, self.count) == (0, self.num_samples) {
            return Some(Taken { values, indices, sizes });
        }
        let num_entries = |sizes: &[u8]| i32s(sizes).map(|size| size as usize).sum::<usize>();
        let (begin, end) = (4 * self.first as usize, 4 * (self.first as usize + self.count as usize));
        let first = num_entries(sizes.get(..begin)?);
        let sizes = sizes.get(begin..end)?;
        let last = first.checked_add(num_entries(sizes))?;
        let (values, indices) = (values.get(first * width..last * width)?, indices.get(4 * first..4 * last)?);
        Some(Taken { values, indices, sizes })
    }
}
