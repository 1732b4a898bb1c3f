//! The packer's fast way, for whole sequences of plain columns of one form.
//!
//! Sequences in random order lie in memory that is in no cache, and one after the other each would be waited for. So each
//! step (where a sequence's samples are, where their entries are, the entries) is taken for all sequences before
//! the next: the processor has many in flight then. Nothing else differs from [`crate::pack`].

use crate::cbf::i32s;
use crate::chunk::{Block, Column, Samples, Stored, Values};
use crate::number::Element;
use crate::pack::{Ragged, Selection};
use crate::small::Small;
use cntkio_simd::memory::{
    AnyWidth, Number, WORTH_HUGE_PAGES, advise_huge_pages, append_any_width, append_stored, prefetch,
};

/// Bytes of a sequence's sample offsets, and of its entries, that are asked for.
const MOST_OFFSETS: usize = 256;
const MOST_ENTRIES: usize = 256;
/// Bytes of a binary file's sequence that are asked for, and how many sequences ahead.
const MOST_STORED: usize = 512;
const STORED_AHEAD: usize = 6;
/// Sequences whose entries are asked for all at once; those of more would not find room in the cache.
const MOST_SHORT: usize = 256;

/// The samples of one sequence, or of several that lie one behind the other.
struct Found<'a> {
    column: &'a Column,
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
            match &column.samples {
                Samples::Stored(Stored { places, .. }) => prefetch(places.get(number..=number + 1)?, 1),
                _ => prefetch(column.sequence_offsets.get(number..=number + 1)?, 1),
            }
        }
        located.push((block, number));
    }
    Some(located)
}

/// One stream of a selection; `None` where it is not that plain: the general way tells what it is, or what is wrong.
pub(crate) fn plain(located: &[(&Block, usize)], stream: usize, is_sparse: bool, is_double: bool) -> Option<Ragged> {
    if let Some(Samples::Stored(_)) = located.first().and_then(|(block, _)| Some(&block.columns.get(stream)?.samples)) {
        return if is_double {
            stored(located, stream, is_sparse, true, Values::F64)
        } else {
            stored(located, stream, is_sparse, false, Values::F32)
        };
    }
    let mut found: Vec<Found> = Vec::with_capacity(located.len());
    let mut sequence_offsets = Vec::with_capacity(located.len() + 1);
    sequence_offsets.push(0i64);
    let mut num_samples = 0i64;
    for &(block, number) in located {
        let column = block.columns.get(stream)?;
        let (first, last) = (column.sequence_offsets[number], column.sequence_offsets[number + 1]);
        let (first, last) = (first as usize, last as usize);
        num_samples += (last - first) as i64;
        sequence_offsets.push(num_samples);
        if let Some(before) = found.last_mut()
            && before.last == first
            && std::ptr::eq(before.column, column)
        {
            before.last = last;
            continue;
        }
        if let Some(offsets) = offsets_of(column) {
            prefetch(offsets.get(first..=last)?, MOST_OFFSETS);
        }
        if column.samples.is_double() != is_double {
            return None;
        }
        found.push(Found { column, first, last });
    }
    let (values, sparse) = match (is_sparse, is_double) {
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

/// Where the entries of each sample are; `None` where there is no such thing: of dense samples, and while each has one.
fn offsets_of(column: &Column) -> Option<&[u32]> {
    match &column.samples {
        Samples::Sparse { sample_offsets, .. } => Some(sample_offsets),
        Samples::Small(Small { entries: Some(entries), .. }) => entries.sample_offsets.as_deref(),
        _ => None,
    }
}

fn singles(values: &Values) -> Option<&[f32]> {
    if let Values::F32(values) = values { Some(values) } else { None }
}

fn doubles(values: &Values) -> Option<&[f64]> {
    if let Values::F64(values) = values { Some(values) } else { None }
}

fn dense<T: Element>(found: &[Found], typed: impl Fn(&Values) -> Option<&[T]>) -> Option<Vec<T>> {
    let mut runs: Vec<AnyWidth<T>> = Vec::with_capacity(found.len());
    for Found { column, first, last } in found {
        runs.push(match &column.samples {
            Samples::Dense { dim, values } => AnyWidth::Wide(typed(values)?.get(first * dim..last * dim)?),
            Samples::Small(Small { dim, values, entries: None, .. }) => {
                AnyWidth::Small(values.get(first * dim..last * dim)?)
            }
            _ => return None,
        });
    }
    let mut out = Vec::new();
    append_any_width(&mut out, &runs);
    Some(out)
}

/// Values, where each sample's begin, and indices.
type OfEntries<T> = (Vec<T>, Vec<i64>, Vec<i32>);

fn sparse<T: Element>(
    found: &[Found],
    num_samples: i64,
    typed: impl Fn(&Values) -> Option<&[T]>,
) -> Option<OfEntries<T>> {
    let is_short = found.len() <= MOST_SHORT;
    let mut value_runs: Vec<AnyWidth<T>> = Vec::with_capacity(found.len());
    let mut index_runs: Vec<AnyWidth<i32>> = Vec::with_capacity(found.len());
    let mut out_offsets = Vec::with_capacity(num_samples as usize + 1);
    out_offsets.push(0i64);
    let mut num_entries = 0i64;
    for Found { column, first, last } in found {
        let (value_run, index_run) = match &column.samples {
            Samples::Sparse { sample_offsets, indices, values, .. } => {
                let entries = sample_offsets[*first] as usize..sample_offsets[*last] as usize;
                (AnyWidth::Wide(typed(values)?.get(entries.clone())?), AnyWidth::Wide(indices.get(entries)?))
            }
            Samples::Small(Small { values, entries: Some(entries), .. }) => {
                let range = entries.range(*first, *last);
                (AnyWidth::Small(values.get(range.clone())?), AnyWidth::Small(entries.indices.get(range)?))
            }
            _ => return None,
        };
        if is_short {
            value_run.prefetch(MOST_ENTRIES);
            index_run.prefetch(MOST_ENTRIES);
        }
        value_runs.push(value_run);
        index_runs.push(index_run);
    }
    for (Found { column, first, last }, run) in found.iter().zip(&index_runs) {
        match offsets_of(column) {
            Some(offsets) => {
                let shift = num_entries - i64::from(offsets[*first]);
                out_offsets.extend(offsets[first + 1..=*last].iter().map(|&at| i64::from(at) + shift));
            }
            None => out_offsets.extend((1..=(last - first) as i64).map(|entry| num_entries + entry)),
        }
        num_entries += run.len() as i64;
    }
    let (mut values, mut indices) = (Vec::new(), Vec::new());
    append_any_width(&mut values, &value_runs);
    append_any_width(&mut indices, &index_runs);
    Some((values, out_offsets, indices))
}

/// Sequences as a binary file has them, in the precision that it has.
fn stored<T: Number>(
    located: &[(&Block, usize)],
    stream: usize,
    is_sparse: bool,
    is_double: bool,
    values_of: fn(Vec<T>) -> Values,
) -> Option<Ragged> {
    let mut sequences = Vec::with_capacity(located.len());
    for &(block, number) in located {
        let Samples::Stored(stored) = &block.columns.get(stream)?.samples else { return None };
        if (stored.is_sparse, stored.is_double, stored.becomes_double) != (is_sparse, is_double, is_double) {
            return None;
        }
        let bytes = stored.bytes_of(number);
        prefetch(bytes, 1);
        sequences.push((stored, bytes));
    }
    let mut sequence_offsets = Vec::with_capacity(sequences.len() + 1);
    let mut num_samples = 0i64;
    sequence_offsets.push(num_samples);
    if !is_sparse {
        let mut runs = Vec::with_capacity(sequences.len());
        for &(stored, bytes) in &sequences {
            let sequence = stored.sequence(bytes)?;
            num_samples += sequence.num_samples as i64;
            sequence_offsets.push(num_samples);
            runs.push(sequence.values);
        }
        let mut values = Vec::new();
        append_stored(&mut values, &runs);
        return Some(Ragged { sequence_offsets, values: values_of(values), sparse: None });
    }
    // Counts take some of the bytes, too, so that this is a little more than there are.
    let most = sequences.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() / (size_of::<T>() + 4);
    let (mut values, mut indices) = (Vec::with_capacity(most), Vec::with_capacity(most));
    if most * 4 >= WORTH_HUGE_PAGES {
        advise_huge_pages(&mut values, most);
        advise_huge_pages(&mut indices, most);
    }
    let mut offsets = Vec::with_capacity(sequences.len() + 1);
    let mut end = 0i64;
    offsets.push(end);
    for (number, &(stored, bytes)) in sequences.iter().enumerate() {
        if let Some((_, next)) = sequences.get(number + STORED_AHEAD) {
            prefetch(next, MOST_STORED);
        }
        let sequence = stored.sequence(bytes)?;
        num_samples += sequence.num_samples as i64;
        sequence_offsets.push(num_samples);
        T::append_le(&mut values, sequence.values);
        i32::append_le(&mut indices, sequence.indices);
        offsets.extend(i32s(sequence.sizes).map(|size| {
            end += i64::from(size);
            end
        }));
    }
    Some(Ragged { sequence_offsets, values: values_of(values), sparse: Some((offsets, indices)) })
}
