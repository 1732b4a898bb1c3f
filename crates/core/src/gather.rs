//! The packer's fast way, for whole sequences of plain columns of one form.
//!
//! Sequences in random order lie in memory that is in no cache, and one after the other each would be waited for. So each
//! step (where a sequence's samples are, where their entries are, the entries) is taken for all sequences before
//! the next: the processor has many in flight then. Nothing else differs from [`crate::pack`].

use crate::cbf::{Sequence, i32s};
use crate::chunk::{Block, Column, Samples, Stored, Values};
use crate::number::Element;
use crate::pack::{Ragged, Selection};
use cntkio_simd::memory::{Number, append_stored, prefetch};

/// Bytes of a sequence's sample offsets, and of its entries, that are asked for.
const MOST_OFFSETS: usize = 256;
const MOST_ENTRIES: usize = 256;
/// Sequences whose entries are asked for all at once; those of more would not find room in the cache.
const MOST_SHORT: usize = 256;

/// The samples of one sequence.
struct Found<'a> {
    column: &'a Column,
    number: usize,
    first: usize,
    last: usize,
}

/// The sequences of a selection, each a block and the number in it; `None` if one is not there. Where the samples of their
/// streams are is asked for already.
pub(crate) fn locate<'a>(selection: Selection<'a>, streams: &[usize]) -> Option<Vec<(&'a Block, usize)>> {
    let mut located = Vec::with_capacity(selection.sequences.len());
    for (&place, &sequence) in selection.places.iter().zip(selection.sequences) {
        let chunk = selection.chunks.get(place as usize)?;
        if sequence as usize >= chunk.num_sequences() {
            return None;
        }
        let (block, number) = chunk.locate(sequence as usize);
        for &stream in streams {
            let column = block.columns.get(stream)?;
            prefetch(column.sequence_offsets.get(number..=number + 1)?, 1);
            if let Samples::Stored(Stored { places, .. }) = &column.samples {
                prefetch(places.get(number..=number + 1)?, 1);
            }
        }
        located.push((block, number));
    }
    Some(located)
}

/// One stream of a selection; `None` where it is not that plain: the general way tells what it is, or what is wrong.
pub(crate) fn plain(located: &[(&Block, usize)], stream: usize, is_sparse: bool, is_double: bool) -> Option<Ragged> {
    let mut found = Vec::with_capacity(located.len());
    let mut sequence_offsets = Vec::with_capacity(located.len() + 1);
    sequence_offsets.push(0i64);
    let mut num_samples = 0i64;
    for &(block, number) in located {
        let column = block.columns.get(stream)?;
        let (first, last) = (column.sequence_offsets[number], column.sequence_offsets[number + 1]);
        let (first, last) = (first as usize, last as usize);
        if let Samples::Sparse { sample_offsets, .. } = &column.samples {
            prefetch(sample_offsets.get(first..=last)?, MOST_OFFSETS);
        }
        num_samples += (last - first) as i64;
        sequence_offsets.push(num_samples);
        found.push(Found { column, number, first, last });
    }
    let is_stored = matches!(found.first(), Some(Found { column: Column { samples: Samples::Stored(_), .. }, .. }));
    let (values, sparse) = match (is_sparse, is_double) {
        (_, false) if is_stored => {
            let (values, sparse) = stored(&found, num_samples, is_sparse, is_double)?;
            (Values::F32(values), sparse)
        }
        (_, true) if is_stored => {
            let (values, sparse) = stored(&found, num_samples, is_sparse, is_double)?;
            (Values::F64(values), sparse)
        }
        (false, false) => (Values::F32(dense(&found, singles)?), None),
        (false, true) => (Values::F64(dense(&found, doubles)?), None),
        (true, false) => {
            let (values, offsets, indices) = sparse(&found, num_samples, singles)?;
            (Values::F32(values), Some((offsets, indices)))
        }
        (true, true) => {
            let (values, offsets, indices) = sparse(&found, num_samples, doubles)?;
            (Values::F64(values), Some((offsets, indices)))
        }
    };
    Some(Ragged { sequence_offsets, values, sparse })
}

fn singles(values: &Values) -> Option<&[f32]> {
    if let Values::F32(values) = values { Some(values) } else { None }
}

fn doubles(values: &Values) -> Option<&[f64]> {
    if let Values::F64(values) = values { Some(values) } else { None }
}

fn dense<T: Element>(found: &[Found], typed: impl Fn(&Values) -> Option<&[T]>) -> Option<Vec<T>> {
    let mut runs: Vec<&[T]> = Vec::with_capacity(found.len());
    for Found { column, first, last, .. } in found {
        let Samples::Dense { dim, values } = &column.samples else { return None };
        runs.push(typed(values)?.get(first * dim..last * dim)?);
    }
    let mut out = Vec::new();
    cntkio_simd::append(&mut out, &runs);
    Some(out)
}

type Entries<T> = (Vec<T>, Vec<i64>, Vec<i32>);

fn sparse<T: Element>(
    found: &[Found],
    num_samples: i64,
    typed: impl Fn(&Values) -> Option<&[T]>,
) -> Option<Entries<T>> {
    let is_short = found.len() <= MOST_SHORT;
    let mut value_runs: Vec<&[T]> = Vec::with_capacity(found.len());
    let mut index_runs: Vec<&[i32]> = Vec::with_capacity(found.len());
    for Found { column, first, last, .. } in found {
        let Samples::Sparse { sample_offsets, indices, values, .. } = &column.samples else { return None };
        let entries = sample_offsets[*first] as usize..sample_offsets[*last] as usize;
        let (value_run, index_run) = (typed(values)?.get(entries.clone())?, indices.get(entries)?);
        if is_short {
            prefetch(value_run, MOST_ENTRIES);
            prefetch(index_run, MOST_ENTRIES);
        }
        value_runs.push(value_run);
        index_runs.push(index_run);
    }
    let mut out_offsets = Vec::with_capacity(num_samples as usize + 1);
    out_offsets.push(0i64);
    let mut num_entries = 0i64;
    for (Found { column, first, last, .. }, run) in found.iter().zip(&index_runs) {
        let Samples::Sparse { sample_offsets, .. } = &column.samples else { return None };
        let shift = num_entries - i64::from(sample_offsets[*first]);
        out_offsets.extend(sample_offsets[first + 1..=*last].iter().map(|&at| i64::from(at) + shift));
        num_entries += run.len() as i64;
    }
    let (mut values, mut indices) = (Vec::new(), Vec::new());
    cntkio_simd::append(&mut values, &value_runs);
    cntkio_simd::append(&mut indices, &index_runs);
    Some((values, out_offsets, indices))
}

/// Values and, if sparse, sample offsets and indices.
type Copied<T> = (Vec<T>, Option<(Vec<i64>, Vec<i32>)>);

/// Sequences as a binary file has them, in the precision that it has.
fn stored<'a, T: Number>(found: &[Found<'a>], num_samples: i64, is_sparse: bool, is_double: bool) -> Option<Copied<T>> {
    let is_short = found.len() <= MOST_SHORT;
    let mut sequences = Vec::with_capacity(found.len());
    for Found { column, number, first, last } in found {
        let Samples::Stored(stored) = &column.samples else { return None };
        if (stored.is_sparse, stored.is_double, stored.becomes_double) != (is_sparse, is_double, is_double) {
            return None;
        }
        let sequence = stored.sequence(*number, last - first);
        if is_short && is_sparse {
            prefetch(sequence.values, MOST_ENTRIES);
            prefetch(sequence.indices, MOST_ENTRIES);
        }
        prefetch(sequence.sizes, MOST_OFFSETS);
        sequences.push(sequence);
    }
    let runs = |part: fn(&Sequence<'a>) -> &'a [u8]| sequences.iter().map(part).collect::<Vec<_>>();
    let mut values = Vec::new();
    append_stored(&mut values, &runs(|sequence| sequence.values));
    if !is_sparse {
        return Some((values, None));
    }
    let mut indices = Vec::new();
    append_stored(&mut indices, &runs(|sequence| sequence.indices));
    let mut offsets = Vec::with_capacity(num_samples as usize + 1);
    let mut end = 0i64;
    offsets.push(end);
    for sequence in &sequences {
        offsets.extend(i32s(sequence.sizes).map(|size| {
            end += i64::from(size);
            end
        }));
    }
    Some((values, Some((offsets, indices))))
}
