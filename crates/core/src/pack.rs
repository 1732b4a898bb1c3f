//! Packing: a selection of sequences out of chunks into one minibatch's arrays. (docs/timeline.md, "Packing")
//!
//! The law: every value is copied once, in delivered order; nothing is summed, sorted or dropped.

use crate::chunk::{Block, Chunk, Column, Samples, Values};
use crate::number::Element;
use crate::small::Small;
use crate::{cbf, compact, gather, htk, mlf};
use cntkio_simd::memory::Widens;
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
    /// For each sequence its first sample that is taken, and how many are; without it the whole of each.
    pub parts: Option<(&'a [u32], &'a [u32])>,
}

/// One sequence of a selection in one stream.
struct Found<'a> {
    column: &'a Column,
    /// Its number in the column.
    number: usize,
    /// Its samples in the column.
    begin: usize,
    end: usize,
    /// The samples that are taken; of a broadcast frame, as often as it is taken.
    first: usize,
    last: usize,
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
    /// A file of this name, whose bytes a chunk shows, was changed.
    Changed(String),
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
    /// Bytes of a file that was changed are not looked at.
    fn check(self) -> Result<(), Error> {
        match self.chunks.iter().find_map(|chunk| chunk.changed()) {
            None => Ok(()),
            Some(name) => Err(Error::Changed(name.to_owned())),
        }
    }

    fn find(self, stream: usize) -> impl Iterator<Item = Result<Found<'a>, Error>> {
        self.places.iter().zip(self.sequences).enumerate().map(move |(at, (&place, &sequence))| {
            let chunk = self.chunks.get(place as usize).ok_or(Error::Missing)?;
            if sequence as usize >= chunk.num_sequences() {
                return Err(Error::Missing);
            }
            let (block, number) = chunk.locate(sequence as usize);
            let column = block.columns.get(stream).ok_or(Error::Missing)?;
            let (begin, end) = span(&column.sequence_offsets, number);
            let (first, last) = match self.parts {
                None => (begin, end),
                Some((first, count)) => {
                    let (first, count) = (*first.get(at).ok_or(Error::Missing)?, *count.get(at).ok_or(Error::Missing)?);
                    (begin + first as usize, begin + first as usize + count as usize)
                }
            };
            let is_inside = last <= end || matches!(&column.samples, Samples::Frames(frames) if frames.is_broadcast);
            if !is_inside {
                return Err(Error::Length { number: at, stream, num_samples: end - begin });
            }
            Ok(Found { column, number, begin, end, first, last })
        })
    }
}

/// What is gathered of a stream: its number, whether it is sparse, and whether it is in double precision.
pub type Wanted = (usize, bool, bool);

/// Sequences from which on streams are gathered on several threads.
const WORTH_SHARING: usize = 256;

/// Gather several streams of a selection, as [`gather`] does each; on all threads where it is called on those of a pool.
pub fn gather_all(selection: Selection, streams: &[Wanted]) -> Result<Vec<Ragged>, Error> {
    selection.check()?;
    let numbers: Vec<usize> = streams.iter().map(|&(stream, ..)| stream).collect();
    let located = if selection.parts.is_none() { gather::locate(selection, &numbers) } else { None };
    let one = |&(stream, is_sparse, is_double): &Wanted| {
        let plain = located.as_ref().and_then(|located| gather::plain(located, stream, is_sparse, is_double));
        plain.map_or_else(|| gather(selection, stream, is_sparse, is_double), Ok)
    };
    // What is small takes less time than to share it out.
    let is_shared = selection.sequences.len() >= WORTH_SHARING && rayon::current_thread_index().is_some();
    if is_shared { streams.par_iter().map(one).collect() } else { streams.iter().map(one).collect() }
}

/// Gather one stream of a selection. With no sequence selected the arrays are empty, in `is_sparse` and
/// `is_double`'s form.
pub fn gather(selection: Selection, stream: usize, is_sparse: bool, is_double: bool) -> Result<Ragged, Error> {
    selection.check()?;
    if let Some(ragged) = compact::gather(selection, stream, is_sparse, is_double) {
        return Ok(ragged);
    }
    let mut sequence_offsets = Vec::with_capacity(selection.sequences.len() + 1);
    sequence_offsets.push(0i64);
    let (mut num_samples, mut num_values) = (0i64, 0usize);
    let mut is_stored = false;
    for found in selection.find(stream) {
        let Found { column, number, begin, first, last, .. } = found?;
        num_samples += (last - first) as i64;
        sequence_offsets.push(num_samples);
        num_values += match &column.samples {
            Samples::Dense { dim, .. } => (last - first) * dim,
            Samples::Sparse { sample_offsets, .. } => (sample_offsets[last] - sample_offsets[first]) as usize,
            Samples::Small(Small { entries: Some(entries), .. }) => entries.range(first, last).len(),
            Samples::Small(small) => (last - first) * small.dim,
            Samples::Stored(stored) if stored.is_sparse => {
                stored.part(number, first - begin..last - begin).ok_or(Error::Mixed)?.indices.len() / 4
            }
            Samples::Stored(stored) => (last - first) * stored.dim,
            Samples::Frames(frames) => (last - first) * frames.dim(),
            Samples::Runs(runs) => (last - first) * runs.targets.as_ref().map_or(1, |targets| targets.dim),
        };
        is_stored |= matches!(column.samples, Samples::Stored(_));
        if column.samples.is_sparse() != is_sparse || column.samples.is_double() != is_double {
            return Err(Error::Mixed);
        }
    }
    let mut sparse = is_sparse.then(|| {
        let mut sample_offsets = Vec::with_capacity(num_samples as usize + 1);
        sample_offsets.push(0i64);
        (sample_offsets, Vec::with_capacity(num_values))
    });
    let found = || selection.find(stream).filter_map(Result::ok);
    if let Some(Found { column: Column { samples: Samples::Frames(_), .. }, .. }) = found().next() {
        let found: Vec<Found> = found().collect();
        return Ok(Ragged { values: Values::F32(decode_all(&found, num_values)?), sequence_offsets, sparse: None });
    }
    if is_stored {
        let mut values = if is_double { Values::F64(room(num_values)?) } else { Values::F32(room(num_values)?) };
        for Found { column, number, begin, first, last, .. } in found() {
            let Samples::Stored(stored) = &column.samples else { return Err(Error::Mixed) };
            let part = stored.part(number, first - begin..last - begin).ok_or(Error::Mixed)?;
            stored.append_values(&mut values, part.values);
            if let Some((offsets, indices)) = &mut sparse {
                indices.extend(cbf::i32s(part.indices));
                let mut at = offsets[offsets.len() - 1];
                offsets.extend(cbf::i32s(part.sizes).map(|size| {
                    at += i64::from(size);
                    at
                }));
            }
        }
        return Ok(Ragged { sequence_offsets, values, sparse });
    }
    let values = if is_double {
        let mut out = room(num_values)?;
        fill(selection, stream, &mut out, &mut sparse, doubles)?;
        Values::F64(out)
    } else {
        let mut out = room(num_values)?;
        fill(selection, stream, &mut out, &mut sparse, singles)?;
        Values::F32(out)
    };
    Ok(Ragged { sequence_offsets, values, sparse })
}

/// A chunk with dense and sparse columns in place of all others.
pub fn plain(chunk: &Chunk) -> Result<Chunk, Error> {
    let num_sequences = chunk.num_sequences();
    let (places, sequences) = (vec![0; num_sequences], (0..num_sequences as u32).collect::<Vec<u32>>());
    let selection = Selection { chunks: &[chunk], places: &places, sequences: &sequences, parts: None };
    let first = chunk.blocks().first().map_or(&[][..], |block| &block.columns);
    let offsets = |offsets: Vec<i64>| -> Result<Vec<u32>, Error> {
        offsets.into_iter().map(|at| u32::try_from(at).map_err(|_| Error::TooLarge)).collect()
    };
    let column = |(stream, column): (usize, &Column)| {
        let (dim, is_double) = (column.samples.dim(), column.samples.is_double());
        let Ragged { sequence_offsets, values, sparse } =
            gather(selection, stream, column.samples.is_sparse(), is_double)?;
        let samples = match sparse {
            None => Samples::Dense { dim, values },
            Some((sample_offsets, indices)) => {
                Samples::Sparse { dim, sample_offsets: offsets(sample_offsets)?, indices, values }
            }
        };
        Ok(Column { sequence_offsets: offsets(sequence_offsets)?, samples })
    };
    let columns = first.iter().enumerate().map(column).collect::<Result<Vec<Column>, Error>>()?;
    Ok(Chunk::new(vec![Block { num_sequences, columns }]))
}

/// Frames of all sequences, on all cores where there is enough to do.
fn decode_all(found: &[Found], num_values: usize) -> Result<Vec<f32>, Error> {
    let mut out = Vec::new();
    out.try_reserve_exact(num_values).map_err(|_| Error::TooLarge)?;
    out.resize(num_values, 0f32);
    // Outside of a pool nobody has asked for threads.
    let num_threads = rayon::current_thread_index().map_or(1, |_| rayon::current_num_threads());
    let share = num_values.div_ceil(num_threads).max(SHARE);
    let (mut jobs, mut rest, mut at) = (Vec::new(), &mut out[..], 0);
    while at < found.len() {
        let (begin, mut size) = (at, 0);
        while at < found.len() && size < share {
            let Found { column, first, last, .. } = &found[at];
            size += (last - first) * column.samples.dim();
            at += 1;
        }
        let (mine, others) = std::mem::take(&mut rest).split_at_mut_checked(size).ok_or(Error::Mixed)?;
        jobs.push((&found[begin..at], mine));
        rest = others;
    }
    let decode = |(found, mut out): (&[Found], &mut [f32])| {
        for Found { column, number, begin, end, first, last } in found {
            let Samples::Frames(frames) = &column.samples else { return Err(Error::Mixed) };
            let (mine, others) = std::mem::take(&mut out).split_at_mut((last - first) * frames.dim());
            htk::decode(frames, *number, end - begin, first - begin..last - begin, mine);
            out = others;
        }
        Ok(())
    };
    if jobs.len() == 1 {
        jobs.into_iter().try_for_each(decode)?;
    } else {
        jobs.into_par_iter().try_for_each(decode)?;
    }
    Ok(out)
}

/// Values that are worth a thread of their own.
const SHARE: usize = 1 << 16;

fn room<T>(size: usize) -> Result<Vec<T>, Error> {
    let mut out = Vec::new();
    out.try_reserve_exact(size).map_err(|_| Error::TooLarge)?;
    Ok(out)
}

#[inline]
fn span(offsets: &[u32], number: usize) -> (usize, usize) {
    (offsets[number] as usize, offsets[number + 1] as usize)
}

fn fill<T: Element>(
    selection: Selection,
    stream: usize,
    out: &mut Vec<T>,
    sparse: &mut Option<(Vec<i64>, Vec<i32>)>,
    typed: impl Fn(&Values) -> Option<&[T]>,
) -> Result<(), Error> {
    for found in selection.find(stream) {
        let Found { column, number, begin, end, first, last } = found?;
        match (&column.samples, &mut *sparse) {
            (Samples::Dense { dim, values }, None) => {
                out.extend_from_slice(&typed(values).ok_or(Error::Mixed)?[first * dim..last * dim]);
            }
            (Samples::Sparse { sample_offsets, indices, values, .. }, Some((out_offsets, out_indices))) => {
                let (from, to) = (sample_offsets[first] as usize, sample_offsets[last] as usize);
                let shift = out.len() as i64 - from as i64;
                out_offsets.extend(sample_offsets[first + 1..=last].iter().map(|&at| i64::from(at) + shift));
                out_indices.extend_from_slice(&indices[from..to]);
                out.extend_from_slice(&typed(values).ok_or(Error::Mixed)?[from..to]);
            }
            (Samples::Small(Small { dim, values, entries: None, .. }), None) => {
                out.extend(values[first * dim..last * dim].iter().map(|&small| T::widened(small)));
            }
            (Samples::Small(Small { values, entries: Some(entries), .. }), Some((out_offsets, out_indices))) => {
                let range = entries.range(first, last);
                let before = out.len() as i64 - range.start as i64;
                out_offsets.extend((first..last).map(|sample| before + entries.range(first, sample + 1).end as i64));
                out_indices.extend(entries.indices[range.clone()].iter().map(|&small| i32::widened(small)));
                out.extend(values[range].iter().map(|&small| T::widened(small)));
            }
            (Samples::Runs(runs), Some((out_offsets, out_indices))) => {
                let before = out.len() as i64;
                out_offsets.extend((1..=(last - first) as i64).map(|sample| before + sample));
                mlf::expand(runs, number, end - begin, first - begin..last - begin, |class, is_start, count| {
                    out_indices.resize(out_indices.len() + count, class as i32);
                    if is_start {
                        out.push(T::from(2.0));
                    }
                    out.resize(out.len() + count - usize::from(is_start), T::from(1.0));
                });
            }
            (Samples::Runs(runs), None) => {
                let targets = runs.targets.as_ref().ok_or(Error::Mixed)?;
                mlf::expand(runs, number, end - begin, first - begin..last - begin, |class, _, count| {
                    let row = targets.row(class);
                    (0..count).for_each(|_| out.extend(row.iter().map(|&value| T::from(f32::from(value)))));
                });
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
    selection.check()?;
    let size = num_cells.checked_mul(dim).ok_or(Error::Missing)?;
    let mut out = Vec::new();
    out.try_reserve_exact(size).map_err(|_| Error::TooLarge)?;
    out.resize(size, T::default());
    for (at, (found, cell)) in selection.find(stream).zip(cells).enumerate() {
        let Found { column, number, begin, end, .. } = found?;
        let first = begin + cell.first_sample;
        let last = first + cell.num_samples;
        let is_broadcast = matches!(&column.samples, Samples::Frames(frames) if frames.is_broadcast);
        let target = out.get_mut(cell.place * dim..(cell.place + cell.num_samples) * dim).ok_or(Error::Missing)?;
        if end - begin != cell.length && !is_broadcast {
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
            Samples::Small(Small { values, entries: None, .. }) => {
                let values = values.get(first * dim..last * dim).ok_or(Error::Mixed)?;
                target.iter_mut().zip(values).for_each(|(out, &small)| *out = T::widened(small));
            }
            Samples::Small(Small { values, entries: Some(entries), .. }) => {
                for (sample, row) in (first..last).zip(target.chunks_exact_mut(dim)) {
                    let range = entries.range(sample, sample + 1);
                    for (&index, &small) in entries.indices[range.clone()].iter().zip(&values[range]) {
                        *row.get_mut(usize::from(index)).ok_or(Error::Mixed)? = T::widened(small);
                    }
                }
            }
            Samples::Stored(stored) => {
                let part = stored.part(number, first - begin..last - begin).ok_or(Error::Mixed)?;
                let mut values = if stored.becomes_double { Values::F64(Vec::new()) } else { Values::F32(Vec::new()) };
                stored.append_values(&mut values, part.values);
                let values = typed(&values).ok_or(Error::Mixed)?;
                if stored.is_sparse {
                    let mut entries = cbf::i32s(part.indices).zip(values);
                    for (size, row) in cbf::i32s(part.sizes).zip(target.chunks_exact_mut(dim)) {
                        for (index, &value) in entries.by_ref().take(size as usize) {
                            *row.get_mut(index as usize).ok_or(Error::Mixed)? = value;
                        }
                    }
                } else if values.len() == target.len() {
                    target.copy_from_slice(values);
                } else {
                    return Err(Error::Mixed);
                }
            }
            Samples::Frames(frames) => {
                htk::decode(frames, number, end - begin, first - begin..last - begin, target);
            }
            Samples::Runs(runs) => {
                let mut rows = target.chunks_exact_mut(dim);
                mlf::expand(runs, number, end - begin, first - begin..last - begin, |class, is_start, count| {
                    for (step, row) in rows.by_ref().take(count).enumerate() {
                        if let Some(targets) = &runs.targets {
                            let values = targets.row(class).iter().map(|&value| T::from(f32::from(value)));
                            row.iter_mut().zip(values).for_each(|(out, value)| *out = value);
                        } else if let Some(value) = row.get_mut(class as usize) {
                            *value = T::from(if is_start && step == 0 { 2.0 } else { 1.0 });
                        }
                    }
                });
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
