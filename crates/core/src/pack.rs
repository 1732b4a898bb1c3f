//! Packing: a selection of sequences out of chunks into one minibatch's arrays. (docs/timeline.md, "Packing")
//!
//! The law: every value is copied once, in delivered order; nothing is summed, sorted or dropped.

use crate::chunk::{Chunk, Column, Samples, Values};
use crate::gather;
use crate::number::Element;
use rayon::prelude::*;

/// Sequences in delivered order: each a chunk (by its place in a list) and the sequence's number in it.
#[derive(Debug, Clone, Copy)]
pub struct Selection<'a> {
    /// The chunks that hold them.
    pub chunks: &'a [&'a Chunk],
    /// For each sequence the place of its chunk in `chunks`.
    pub places: &'a [u32],
    /// For each sequence its number in the chunk.
    pub sequences: &'a [u32],
}

/// One stream of a minibatch, ragged.
#[derive(Debug, Clone, PartialEq)]
pub struct Ragged {
    /// Where each sequence's samples begin, and where the last one's end.
    pub sequence_offsets: Vec<i64>,
    /// The values of all samples, or of all entries.
    pub values: Values,
    /// For a sparse stream: where each sample's entries begin, and the indices.
    pub sparse: Option<(Vec<i64>, Vec<i32>)>,
}

/// Why a selection cannot be packed.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// The selection names a chunk, sequence or stream that is not there.
    Missing,
    /// Chunks that disagree about a stream's form, dimension or precision.
    Mixed,
    /// More memory than there is.
    TooLarge,
    /// A sequence that has other than its length in samples.
    Length {
        /// Its number in the selection.
        number: usize,
        /// The stream.
        stream: usize,
        /// Samples that it has there.
        num_samples: usize,
    },
}

impl<'a> Selection<'a> {
    fn columns(self, stream: usize) -> impl Iterator<Item = Result<(&'a Column, usize), Error>> {
        self.places.iter().zip(self.sequences).map(move |(&place, &sequence)| {
            let chunk = self.chunks.get(place as usize).ok_or(Error::Missing)?;
            if sequence as usize >= chunk.num_sequences() {
                return Err(Error::Missing);
            }
            let (block, number) = chunk.locate(sequence as usize);
            Ok((block.columns.get(stream).ok_or(Error::Missing)?, number))
        })
    }
}

/// What is gathered of a stream: its number, whether it is sparse, and whether it is in double precision.
pub type Wanted = (usize, bool, bool);

/// Gather several streams of a selection, as [`gather`] does each; on all threads where it is called on those of a pool.
pub fn gather_all(selection: Selection, streams: &[Wanted]) -> Result<Vec<Ragged>, Error> {
    let numbers: Vec<usize> = streams.iter().map(|&(stream, ..)| stream).collect();
    let located = gather::locate(selection, &numbers);
    let one = |&(stream, is_sparse, is_double): &Wanted| {
        let plain = located.as_ref().and_then(|located| gather::plain(located, stream, is_sparse, is_double));
        plain.map_or_else(|| gather(selection, stream, is_sparse, is_double), Ok)
    };
    if rayon::current_thread_index().is_some() {
        streams.par_iter().map(one).collect()
    } else {
        streams.iter().map(one).collect()
    }
}

/// Gather one stream of a selection. With no sequence selected the arrays are empty, in `is_sparse` and
/// `is_double`'s form.
pub fn gather(selection: Selection, stream: usize, is_sparse: bool, is_double: bool) -> Result<Ragged, Error> {
    let mut sequence_offsets = Vec::with_capacity(selection.sequences.len() + 1);
    sequence_offsets.push(0i64);
    let (mut num_samples, mut num_values) = (0i64, 0usize);
    for found in selection.columns(stream) {
        let (column, number) = found?;
        let (first, last) = span(&column.sequence_offsets, number);
        num_samples += (last - first) as i64;
        sequence_offsets.push(num_samples);
        let (is_column_sparse, values) = match &column.samples {
            Samples::Dense { dim, values } => {
                num_values += (last - first) * dim;
                (false, values)
            }
            Samples::Sparse { sample_offsets, values, .. } => {
                num_values += (sample_offsets[last] - sample_offsets[first]) as usize;
                (true, values)
            }
        };
        if is_column_sparse != is_sparse || values.is_double() != is_double {
            return Err(Error::Mixed);
        }
    }
    let mut sparse = is_sparse.then(|| {
        let mut sample_offsets = Vec::with_capacity(num_samples as usize + 1);
        sample_offsets.push(0i64);
        (sample_offsets, Vec::with_capacity(num_values))
    });
    let values = if is_double {
        let mut out = Vec::with_capacity(num_values);
        fill(selection, stream, &mut out, &mut sparse, |values| match values {
            Values::F64(values) => Ok(values),
            Values::F32(_) => Err(Error::Mixed),
        })?;
        Values::F64(out)
    } else {
        let mut out = Vec::with_capacity(num_values);
        fill(selection, stream, &mut out, &mut sparse, |values| match values {
            Values::F32(values) => Ok(values),
            Values::F64(_) => Err(Error::Mixed),
        })?;
        Values::F32(out)
    };
    Ok(Ragged { sequence_offsets, values, sparse })
}

#[inline]
fn span(offsets: &[u32], number: usize) -> (usize, usize) {
    (offsets[number] as usize, offsets[number + 1] as usize)
}

fn fill<'a, T: Element>(
    selection: Selection<'a>,
    stream: usize,
    out: &mut Vec<T>,
    sparse: &mut Option<(Vec<i64>, Vec<i32>)>,
    typed: impl Fn(&'a Values) -> Result<&'a Vec<T>, Error>,
) -> Result<(), Error> {
    for found in selection.columns(stream) {
        let (column, number) = found?;
        let (first, last) = span(&column.sequence_offsets, number);
        match (&column.samples, &mut *sparse) {
            (Samples::Dense { dim, values }, None) => out.extend_from_slice(&typed(values)?[first * dim..last * dim]),
            (Samples::Sparse { sample_offsets, indices, values, .. }, Some((out_offsets, out_indices))) => {
                let (begin, end) = (sample_offsets[first] as usize, sample_offsets[last] as usize);
                let shift = out.len() as i64 - begin as i64;
                out_offsets.extend(sample_offsets[first + 1..=last].iter().map(|&at| i64::from(at) + shift));
                out_indices.extend_from_slice(&indices[begin..end]);
                out.extend_from_slice(&typed(values)?[begin..end]);
            }
            _ => return Err(Error::Mixed),
        }
    }
    Ok(())
}

/// Spread ragged samples of `dim` values over `[sequences, steps, dim]`, zeros behind each sequence's end.
///
/// `sequence_offsets` are ascending from 0, no sequence is longer than `steps`, and `values` holds all samples;
/// otherwise `Error::Missing`.
pub fn pad<T: Element>(values: &[T], sequence_offsets: &[i64], steps: usize, dim: usize) -> Result<Vec<T>, Error> {
    let num_sequences = sequence_offsets.len().saturating_sub(1);
    let mut out = vec![T::default(); num_sequences * steps * dim];
    for (number, pair) in sequence_offsets.windows(2).enumerate() {
        let (first, last) = (pair[0] as usize * dim, pair[1] as usize * dim);
        let samples = values.get(first..last).filter(|samples| samples.len() <= steps * dim).ok_or(Error::Missing)?;
        let at = number * steps * dim;
        out[at..at + samples.len()].copy_from_slice(samples);
    }
    Ok(out)
}

/// Where a part of a sequence goes in a truncated minibatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// The first of its samples that goes there.
    pub first_sample: usize,
    /// How many go there.
    pub num_samples: usize,
    /// The place of the first of them: row times steps, plus step.
    pub place: usize,
    /// Samples that the whole sequence counts for, and must have.
    pub length: usize,
}

/// Spread parts of sequences over `num_cells` dense samples of `dim` values, zeros between them. Of a sparse
/// sample's repeated indices the last one stays, as in CNTK: they are not summed.
pub fn spread<T: Element>(
    selection: Selection,
    cells: &[Cell],
    stream: usize,
    dim: usize,
    num_cells: usize,
    typed: impl Fn(&Values) -> Option<&[T]>,
) -> Result<Vec<T>, Error> {
    let size = num_cells.checked_mul(dim).ok_or(Error::Missing)?;
    let mut out = Vec::new();
    out.try_reserve_exact(size).map_err(|_| Error::TooLarge)?;
    out.resize(size, T::default());
    for (at, (found, cell)) in selection.columns(stream).zip(cells).enumerate() {
        let (column, number) = found?;
        let (begin, end) = span(&column.sequence_offsets, number);
        let first = begin + cell.first_sample;
        let last = first + cell.num_samples;
        let target = out.get_mut(cell.place * dim..(cell.place + cell.num_samples) * dim).ok_or(Error::Missing)?;
        if end - begin != cell.length {
            return Err(Error::Length { number: at, stream, num_samples: end - begin });
        }
        match &column.samples {
            Samples::Dense { values, .. } => {
                let values = typed(values).ok_or(Error::Mixed)?.get(first * dim..last * dim).ok_or(Error::Mixed)?;
                target.copy_from_slice(values);
            }
            Samples::Sparse { sample_offsets, indices, values, .. } => {
                let values = typed(values).ok_or(Error::Mixed)?;
                for (sample, row) in (first..last).zip(target.chunks_exact_mut(dim)) {
                    let (from, to) = span(sample_offsets, sample);
                    for (&index, &value) in indices[from..to].iter().zip(&values[from..to]) {
                        *row.get_mut(index as usize).ok_or(Error::Mixed)? = value;
                    }
                }
            }
        }
    }
    Ok(out)
}

/// Typed access for [`spread`].
pub fn singles(values: &Values) -> Option<&[f32]> {
    if let Values::F32(values) = values { Some(values) } else { None }
}

/// Typed access for [`spread`].
pub fn doubles(values: &Values) -> Option<&[f64]> {
    if let Values::F64(values) = values { Some(values) } else { None }
}
