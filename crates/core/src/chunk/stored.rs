//! Sequences of a binary file as they were read. (docs/formats/cbf.md, "The 2.x layout")
//!
//! ```text
//! dense     number of samples | values
//! sparse    number of samples | number of values | values | indices | number of values of each sample
//! ```
//!
//! The parser ([`crate::cbf::parse`]) checks every sequence once. If the file changes after that, gathering may deliver
//! other values and indices or refuse, but it never reads outside of a sequence's bytes, offsets fit their values, and
//! indices are below the dimension.

use super::bytes::{Bytes, i32s, u32_at};
use super::ragged::{Ahead, Error, Form, Gather, Located, Neighbours, RaggedEntries, Takes, span};
use super::values::{NumberType, Values, in_either_precision, reserve};
use crate::memory;
use crate::number::Element;
use cntkio_memory::copy::append_stored;
use cntkio_memory::small::Number;
use cntkio_simd::{prefetch, prefetch_first};

/// Bytes of a sparse sequence that are prefetched.
const AHEAD_BYTES: usize = 512;
/// Copied indices that are checked at once, if there are as many.
const INDICES_AT_ONCE: usize = 1 << 11;
/// Distance, in sparse sequences, of the prefetched bytes.
const AHEAD_SEQUENCES: usize = 6;

/// Sequences of a binary file, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Values of a sample, or the bound of its indices.
    pub dim: usize,
    /// True if a sample is a list of (index, value).
    pub is_sparse: bool,
    /// True if values are in double precision in the file.
    pub is_double: bool,
    /// True if values are in double precision when packed.
    pub becomes_double: bool,
    /// The bytes of the chunk, which all its streams share.
    pub bytes: Bytes,
    /// The first byte of each sequence and, last, the end of the last sequence.
    pub starts: Vec<usize>,
    /// The end of each sequence, if other bytes follow it; without them each sequence ends where the next one starts.
    pub ends: Option<Vec<usize>>,
}

impl Stored {
    pub(crate) fn form(&self) -> Form {
        Form { dim: self.dim, is_sparse: self.is_sparse, number: NumberType::float(self.becomes_double) }
    }

    /// Check that every sequence is inside the bytes; the message names the sequence that is not.
    pub(crate) fn check(&self, num_sequences: usize) -> Result<(), String> {
        let ends_inside = |ends: &Vec<usize>| {
            ends.len() == num_sequences
                && self.starts.windows(2).zip(ends).all(|(pair, &end)| pair[0] <= end && end <= pair[1])
        };
        let is_sound = self.starts.len() == num_sequences + 1
            && self.starts.is_sorted()
            && self.starts[num_sequences] <= self.bytes.as_slice().len()
            && self.ends.as_ref().is_none_or(ends_inside);
        if is_sound { Ok(()) } else { Err("sequences that are not inside of their bytes".to_owned()) }
    }

    /// Bytes of the sequences and of their table.
    pub(crate) fn num_bytes(&self) -> usize {
        let of_table = size_of_val(&self.starts[..]) + self.ends.as_ref().map_or(0, |ends| size_of_val(&ends[..]));
        let of_sequences = match &self.ends {
            None => self.starts.last().map_or(0, |last| last - self.starts[0]),
            Some(ends) => self.starts.iter().zip(ends).map(|(start, end)| end - start).sum(),
        };
        of_table + of_sequences
    }
}

/// Gathers columns of this kind, all of one form, each with its sequence offsets.
pub(crate) fn gatherer<'a>(columns: Vec<(&'a Stored, &'a [u32])>) -> Box<dyn Gather + 'a> {
    let column = |(stored, sequence_offsets): (&'a Stored, &'a [u32])| StoredColumn {
        sequence_offsets,
        // The name is for the error that reports a change of a mapped file.
        mapped_name: stored.bytes.mapped_name(),
        starts: &stored.starts,
        ends: stored.ends.as_deref(),
        bytes: stored.bytes.as_slice(),
        dim: stored.dim,
        is_double: stored.is_double,
    };
    Box::new(AllStored(columns.into_iter().map(column).collect()))
}

struct AllStored<'a>(Vec<StoredColumn<'a>>);

struct StoredColumn<'a> {
    /// The first sample of each sequence, as the parser found it.
    sequence_offsets: &'a [u32],
    mapped_name: Option<&'a str>,
    starts: &'a [usize],
    ends: Option<&'a [usize]>,
    bytes: &'a [u8],
    dim: usize,
    is_double: bool,
}

impl StoredColumn<'_> {
    /// The bytes of a sequence.
    #[inline]
    fn sequence(&self, sequence: usize) -> Result<&[u8], Error> {
        let (begin, next) = span(self.starts, sequence)?;
        let end = match self.ends {
            None => next,
            Some(ends) => *ends.get(sequence).ok_or(Error::Missing)?,
        };
        self.bytes.get(begin..end).ok_or(Error::Mixed)
    }

    /// The error for bytes that are not as the parser found them.
    #[cold]
    fn changed(&self) -> Error {
        self.mapped_name.map_or(Error::Mixed, |name| Error::Changed(name.to_owned()))
    }

    /// Bytes of a value.
    #[inline]
    fn width(&self) -> usize {
        if self.is_double { 8 } else { 4 }
    }
}

/// A sequence.
struct Piece<'a> {
    column: &'a StoredColumn<'a>,
    /// All its bytes.
    bytes: &'a [u8],
}

impl Gather for AllStored<'_> {
    /// The number of a sequence's samples is taken from its bytes, which are needed anyway: another table would have to
    /// be fetched.
    fn gather(
        &self,
        located: &Located,
        takes: Takes,
        values: &mut Values,
        entries: Option<&mut RaggedEntries>,
    ) -> Result<(), Error> {
        let mut pieces: Vec<Piece> = memory::with_room(located.num_sequences);
        located.each_group(
            &self.0,
            |column| column.starts,
            |column, sequences| {
                for sequence in sequences {
                    let bytes = column.sequence(sequence)?;
                    // All sequences are prefetched before the first number of samples is read.
                    prefetch_first(bytes);
                    pieces.push(Piece { column, bytes });
                }
                Ok(())
            },
        )?;
        let gathered = in_either_precision!(values, values => match entries {
            None => dense(&pieces, takes, values),
            Some(entries) => sparse(&pieces, takes, values, entries),
        }, else Err(Error::Mixed));
        // A sequence that is too short for the request may be one that changed in the file.
        gathered.map_err(|error| self.explained(error, located))
    }

    fn prefetch(&self, sequences: &[Neighbours], what: Ahead) {
        for at in sequences {
            let StoredColumn { starts, bytes, .. } = &self.0[at.block as usize];
            if let Some((begin, end)) = what.span(starts, at.first as usize) {
                prefetch(bytes.get(begin..end).unwrap_or_default(), AHEAD_BYTES);
            }
        }
    }
}

impl AllStored<'_> {
    /// If a sequence lacks samples that the parser found, its file has changed.
    #[cold]
    fn explained(&self, error: Error, located: &Located) -> Error {
        let Error::Length { sequence, num_samples, .. } = error else { return error };
        let mut left = sequence;
        let found = located.each(&self.0, |column, at| {
            let is_it = left == 0;
            left = left.wrapping_sub(1);
            // These offsets are what the parser found, so a difference means that the file has changed.
            let (begin, end) = span(column.sequence_offsets, at)?;
            if is_it && (end - begin) as usize != num_samples { Err(column.changed()) } else { Ok(()) }
        });
        found.err().unwrap_or(error)
    }
}

fn dense<T: Element>(pieces: &[Piece], mut takes: Takes, out: &mut Vec<T>) -> Result<(), Error> {
    let mut all: Vec<&[u8]> = memory::with_room(pieces.len());
    for &Piece { column, bytes } in pieces {
        let (count, mut values) = bytes.split_at_checked(4).ok_or_else(|| column.changed())?;
        // A mapped byte can differ at the next read, so the number is read only once.
        let (num_samples, size) = (u32_at(count, 0), column.dim * column.width());
        if (num_samples as usize).checked_mul(size) != Some(values.len()) {
            return Err(column.changed());
        }
        let (first, count) = takes.next(num_samples, false)?;
        if (first, count) != (0, num_samples) {
            let begin = first as usize * size;
            values = values.get(begin..begin + count as usize * size).ok_or_else(|| column.changed())?;
        }
        // Whole sequences of one precision are copied together, on several threads.
        if column.is_double == T::IS_DOUBLE {
            all.push(values);
        } else {
            // The sequences so far come first, so that the values stay in order.
            append_stored(out, &all);
            all.clear();
            T::append_converted(out, values);
        }
    }
    append_stored(out, &all);
    Ok(())
}

fn sparse<T: Element>(
    pieces: &[Piece],
    mut takes: Takes,
    values: &mut Vec<T>,
    entries: &mut RaggedEntries,
) -> Result<(), Error> {
    entries.reserve(pieces.len());
    let RaggedEntries { sample_offsets, indices } = entries;
    // Parts may be much smaller than their sequences.
    if takes.are_whole() {
        // This is a little more than the entries: the counts take some of the bytes, too.
        let num_entries = pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>() / (size_of::<T>() + 4);
        reserve(values, num_entries);
        reserve(indices, num_entries);
    }
    let mut end = sample_offsets[sample_offsets.len() - 1];
    let mut num_checked = indices.len();
    for (at, piece) in pieces.iter().enumerate() {
        if let Some(next) = pieces.get(at + AHEAD_SEQUENCES) {
            prefetch(next.bytes, AHEAD_BYTES);
        }
        let taken = piece.split(&mut takes)?;
        if piece.column.is_double == T::IS_DOUBLE {
            T::append_le(values, taken.values);
        } else {
            T::append_converted(values, taken.values);
        }
        i32::append_le(indices, taken.indices);
        // The signs of all counts are collected, so that a negative count is found after the loop, by one comparison.
        let mut bits = 0;
        let ends = i32s(taken.sizes).map(|size| {
            bits |= size;
            end += i64::from(size);
            end
        });
        memory::extend(sample_offsets, ends);
        if bits < 0 || end != indices.len() as i64 {
            return Err(piece.column.changed());
        }
        // Check many copied indices at a time, while they are in the cache.
        if indices.len() - num_checked >= INDICES_AT_ONCE || at + 1 == pieces.len() {
            if !are_below(&indices[num_checked..], piece.column.dim) {
                return Err(piece.column.changed());
            }
            num_checked = indices.len();
        }
    }
    Ok(())
}

/// True if all indices are 0 to `dim - 1`.
fn are_below(indices: &[i32], dim: usize) -> bool {
    let last = i32::try_from(dim - 1).unwrap_or(i32::MAX);
    // The sign of an index, or of its distance from the last: fewer instructions than a largest index.
    // The difference wraps only for a negative index, whose own sign decides.
    indices.iter().fold(0, |signs, &index| signs | index | last.wrapping_sub(index)) >= 0
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
    /// Split the samples that are taken; an error if the file has changed since the sequence was checked.
    #[inline(always)]
    fn split(&self, takes: &mut Takes) -> Result<Taken<'a>, Error> {
        let changed = || self.column.changed();
        let (counts, bytes) = self.bytes.split_at_checked(8).ok_or_else(changed)?;
        let num_samples = u32_at(counts, 0);
        let (first, count) = takes.next(num_samples, false)?;
        // Counts of a changed file can be larger than the bytes, so the split can fail.
        let taken = Taken::all(bytes, num_samples as usize, self.column.width()).ok_or_else(changed)?;
        if (first, count) == (0, num_samples) {
            return Ok(taken);
        }
        taken.part(first as usize, count as usize, self.column.width()).ok_or_else(changed)
    }
}

impl<'a> Taken<'a> {
    /// All samples of a sequence.
    #[inline]
    fn all(bytes: &'a [u8], num_samples: usize, width: usize) -> Option<Taken<'a>> {
        let (bytes, sizes) = bytes.split_at_checked(bytes.len().checked_sub(num_samples.checked_mul(4)?)?)?;
        let num_entries = bytes.len() / (width + 4);
        // Otherwise the number of samples has changed, and there would be more indices than values.
        if num_entries * (width + 4) != bytes.len() {
            return None;
        }
        let (values, indices) = bytes.split_at(num_entries * width);
        Some(Taken { values, indices, sizes })
    }

    /// Some of the samples.
    fn part(&self, first: usize, count: usize, width: usize) -> Option<Taken<'a>> {
        // A negative count of a changed file becomes a large number, which the look-ups below refuse.
        let num_entries = |sizes: &[u8]| i32s(sizes).map(|size| size as u32 as usize).sum::<usize>();
        let before = num_entries(self.sizes.get(..4 * first)?);
        let sizes = self.sizes.get(4 * first..4 * (first + count))?;
        let end = before.checked_add(num_entries(sizes))?;
        let values = self.values.get(before.checked_mul(width)?..end.checked_mul(width)?)?;
        Some(Taken { values, indices: self.indices.get(4 * before..4 * end)?, sizes })
    }
}
