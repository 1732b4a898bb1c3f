//! Dense and sparse samples in full width and small: their checks, sizes and packing.
//!
//! Sequences in random order are in no cache, so a loop that finishes one sequence after the other would wait for
//! memory every time. Each step (the sample offsets, the entries) is done for all sequences before the next step: the
//! processor has many loads in flight then.

use super::ragged::{AllFound, Error, RaggedEntries, Takes};
use super::samples::Samples;
use super::small::Small;
use super::values::{Precision, Values, in_either_precision};
use cntkio_simd::memory::{AnyWidth, append_any_width, prefetch};
use std::ops::Range;

/// Bytes of a sequence's sample offsets, and of its entries, that are prefetched.
const AHEAD_BYTES: usize = 256;
/// The most sequences whose entries are all prefetched at once: the entries of more would not fit into the cache.
const AHEAD_SEQUENCES: usize = 256;

/// A dense or sparse column in full width, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct PlainColumn<'a> {
    /// The first sample of each sequence and, last, the number of samples.
    pub sequence_offsets: &'a [u32],
    /// Values of a sample, or the bound of its indices.
    pub dim: usize,
    /// The values of all samples, or of all entries.
    pub values: &'a Values,
    /// Of a sparse column: the first entry of each sample and, last, their number; and the index of each entry.
    pub entries: Option<(&'a [u32], &'a [i32])>,
}

impl PlainColumn<'_> {
    /// The samples of a sequence.
    #[inline]
    pub fn samples(&self, sequence: usize) -> Range<usize> {
        self.sequence_offsets[sequence] as usize..self.sequence_offsets[sequence + 1] as usize
    }

    /// The values of some samples.
    #[inline]
    pub fn range(&self, samples: Range<usize>) -> Range<usize> {
        match self.entries {
            None => samples.start * self.dim..samples.end * self.dim,
            Some((sample_offsets, _)) => sample_offsets[samples.start] as usize..sample_offsets[samples.end] as usize,
        }
    }

    /// Check that offsets, indices and values belong together; the message says which do not.
    pub(crate) fn check(&self, num_samples: usize) -> Result<(), String> {
        let (dim, num_values) = (self.dim, self.values.len());
        let Some((sample_offsets, indices)) = self.entries else {
            return match num_samples.checked_mul(dim) == Some(num_values) {
                true => Ok(()),
                false => Err(format!("{num_samples} samples of {dim} values, but {num_values} values")),
            };
        };
        super::check_offsets("sample offsets", sample_offsets, num_samples)?;
        let num_entries = sample_offsets[num_samples] as usize;
        if (indices.len(), num_values) != (num_entries, num_entries) {
            return Err(format!("{num_entries} entries, but {} indices and {num_values} values", indices.len()));
        }
        match indices.iter().find(|&&index| index < 0 || index as usize >= dim) {
            Some(index) => Err(format!("index {index}, but the dimension is {dim}")),
            None => Ok(()),
        }
    }

    /// Bytes of values, indices and sample offsets.
    pub(crate) fn num_bytes(&self) -> usize {
        let of_entries = |(offsets, indices): (&[u32], &[i32])| size_of_val(offsets) + size_of_val(indices);
        self.values.num_bytes() + self.entries.map_or(0, of_entries)
    }
}

/// Append what is taken of each sequence; all are dense, or all are sparse.
#[inline]
pub(crate) fn gather<'a>(
    found: impl AllFound<'a, Samples>,
    takes: Takes,
    values: &mut Values,
    entries: Option<&mut RaggedEntries>,
) -> Result<(), Error> {
    in_either_precision!(values, values => match entries {
        None => dense(found, takes, values),
        Some(entries) => sparse(&spans(found, takes)?, values, entries).ok_or(Error::Mixed),
    })
}

/// What is taken of a sequence; it is in the column.
#[inline(always)]
fn taken(takes: &mut Takes, sequence_offsets: &[u32], sequence: usize) -> Result<Range<usize>, Error> {
    let (begin, end) = (sequence_offsets[sequence], sequence_offsets[sequence + 1]);
    let (first, count) = takes.next(end - begin, false)?;
    let first = begin as usize + first as usize;
    Ok(first..first + count as usize)
}

/// A dense column.
#[derive(Clone, Copy)]
struct Dense<'a, T: Precision> {
    sequence_offsets: &'a [u32],
    dim: usize,
    values: AnyWidth<'a, T>,
}

fn dense<'a, T: Precision>(found: impl AllFound<'a, Samples>, mut takes: Takes, out: &mut Vec<T>) -> Result<(), Error> {
    let mut pieces: Vec<AnyWidth<T>> = Vec::with_capacity(found.len());
    // The last piece's column and samples.
    let mut before: (*const u32, Range<usize>) = (std::ptr::null(), 0..0);
    let look_up = |samples: &'a Samples, sequence_offsets| {
        let (dim, values) = match samples {
            Samples::Dense { dim, values } => (*dim, AnyWidth::Wide(T::of(values)?)),
            Samples::Small(Small { dim, values, entries: None, .. }) => (*dim, AnyWidth::Small(&values[..])),
            _ => return None,
        };
        Some(Dense { sequence_offsets, dim, values })
    };
    found.each(look_up, |column: Dense<T>, sequence| {
        let Dense { sequence_offsets, dim, values } = column;
        let mut samples = taken(&mut takes, sequence_offsets, sequence)?;
        if before.1.end == samples.start && std::ptr::eq(before.0, sequence_offsets.as_ptr()) {
            samples.start = before.1.start;
            pieces.pop();
        }
        before = (sequence_offsets.as_ptr(), samples.clone());
        pieces.push(values.get(samples.start * dim..samples.end * dim).ok_or(Error::Mixed)?);
        Ok(())
    })?;
    append_any_width(out, &pieces);
    Ok(())
}

/// Sparse samples of one sequence, or of several neighbours.
struct Span<'a> {
    samples: &'a Samples,
    /// The first entry of each sample of the column; `None` while each sample has one entry.
    sample_offsets: Option<&'a [u32]>,
    range: Range<usize>,
}

/// The first entry of each sample; `None` while each sample has one entry.
#[inline]
fn sample_offsets(samples: &Samples) -> Option<&[u32]> {
    match samples {
        Samples::Sparse { sample_offsets, .. } => Some(sample_offsets),
        Samples::Small(Small { entries: Some(entries), .. }) => entries.sample_offsets.as_deref(),
        _ => None,
    }
}

/// What is taken of each sequence; the sample offsets are prefetched.
fn spans<'a>(found: impl AllFound<'a, Samples>, mut takes: Takes) -> Result<Vec<Span<'a>>, Error> {
    let mut spans: Vec<Span> = Vec::with_capacity(found.len());
    let look_up = |samples, sequence_offsets| Some((samples, sequence_offsets, sample_offsets(samples)));
    found.each(look_up, |(samples, sequence_offsets, sample_offsets), sequence| {
        let range = taken(&mut takes, sequence_offsets, sequence)?;
        if let Some(before) = spans.last_mut()
            && before.range.end == range.start
            && std::ptr::eq(before.samples, samples)
        {
            before.range.end = range.end;
            return Ok(());
        }
        if let Some(offsets) = sample_offsets {
            prefetch(offsets.get(range.start..=range.end).unwrap_or_default(), AHEAD_BYTES);
        }
        spans.push(Span { samples, sample_offsets, range });
        Ok(())
    })?;
    Ok(spans)
}

fn sparse<T: Precision>(spans: &[Span], out: &mut Vec<T>, entries: &mut RaggedEntries) -> Option<()> {
    let are_few = spans.len() <= AHEAD_SEQUENCES;
    let mut all_values: Vec<AnyWidth<T>> = Vec::with_capacity(spans.len());
    let mut all_indices: Vec<AnyWidth<i32>> = Vec::with_capacity(spans.len());
    for Span { samples, sample_offsets, range } in spans {
        let entries = match sample_offsets {
            Some(offsets) => offsets[range.start] as usize..offsets[range.end] as usize,
            None => range.clone(),
        };
        let (values, indices) = match samples {
            Samples::Sparse { indices, values, .. } => {
                (AnyWidth::Wide(T::of(values)?.get(entries.clone())?), AnyWidth::Wide(indices.get(entries)?))
            }
            Samples::Small(Small { values, entries: Some(small), .. }) => {
                (AnyWidth::Small(values.get(entries.clone())?), AnyWidth::Small(small.indices.get(entries)?))
            }
            _ => return None,
        };
        if are_few {
            values.prefetch(AHEAD_BYTES);
            indices.prefetch(AHEAD_BYTES);
        }
        all_values.push(values);
        all_indices.push(indices);
    }
    let out_offsets = &mut entries.sample_offsets;
    out_offsets.reserve(spans.iter().map(|span| span.range.len()).sum());
    let mut num_entries = out.len() as i64;
    for (Span { sample_offsets, range, .. }, indices) in spans.iter().zip(&all_indices) {
        match *sample_offsets {
            Some(offsets) => {
                let shift = num_entries - i64::from(offsets[range.start]);
                out_offsets.extend(offsets[range.start + 1..=range.end].iter().map(|&at| i64::from(at) + shift));
            }
            None => out_offsets.extend((1..=range.len() as i64).map(|entry| num_entries + entry)),
        }
        num_entries += indices.len() as i64;
    }
    append_any_width(out, &all_values);
    append_any_width(&mut entries.indices, &all_indices);
    Some(())
}
