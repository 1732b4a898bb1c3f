//! Dense tables of ragged samples: rows of equal length, and the cells of truncated minibatches.

use super::stream::Stream;
use super::{Parts, Selection, Sources, Wanted};
use crate::chunk::{Chunk, Error, Located, NumberType, RaggedEntries, Value, Values, span};
use crate::memory;
use cntkio_memory::copy::zeros;

/// Spread ragged samples of `dim` values over `[sequences, steps, dim]`, zeros after each sequence's end.
///
/// `sequence_offsets` ascend from 0, no sequence is longer than `steps`, and `values` holds all samples;
/// otherwise `Error::Missing`. `Error::TooLarge`: the system has too little memory.
pub fn pad<T: Value>(values: &[T], sequence_offsets: &[i64], steps: usize, dim: usize) -> Result<Vec<T>, Error> {
    let num_sequences = sequence_offsets.len().saturating_sub(1);
    let mut out = table(num_sequences.checked_mul(steps).ok_or(Error::TooLarge(usize::MAX))?, dim)?;
    for (sequence, pair) in sequence_offsets.windows(2).enumerate() {
        // The offsets come from a caller: a wrapped product could be a place of other values. `get` checks the places,
        // and the length is checked before the copy.
        let place = |offset: i64| usize::try_from(offset).ok()?.checked_mul(dim);
        let samples = place(pair[0]).zip(place(pair[1])).and_then(|(first, last)| values.get(first..last));
        let samples = samples.filter(|samples| samples.len() <= steps * dim).ok_or(Error::Missing)?;
        let begin = sequence * steps * dim;
        out[begin..begin + samples.len()].copy_from_slice(samples);
    }
    Ok(out)
}

/// The cells of a truncated minibatch that a part of a sequence fills. A cell is a row and a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// The first sample of the part, counted in the sequence.
    pub first_sample: u32,
    /// Samples of the part.
    pub num_samples: u32,
    /// The cell of the first sample: row times steps, plus step.
    pub cell: usize,
    /// Samples that the whole sequence counts for, and must have.
    pub length: usize,
}

/// A stream that is spread over a dense table, whether its samples are dense or sparse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The stream, counted in the chunks.
    pub stream: usize,
    /// Values of a cell.
    pub dim: usize,
    /// The type of the values.
    pub number: NumberType,
}

/// Spread the parts of sequences, as `cells` describes them, over `num_cells` dense samples, zeros between them.
///
/// Repeated indices of a sparse sample are not summed: the last one stays, as in CNTK.
pub fn spread(
    chunks: &[&Chunk],
    selection: Selection,
    cells: &[Cell],
    tables: &[Table],
    num_cells: usize,
) -> Result<Vec<Values>, Error> {
    if cells.len() != selection.sequences.len() {
        return Err(Error::Missing);
    }
    let firsts: Vec<u32> = memory::collected(cells.iter().map(|cell| cell.first_sample));
    let counts: Vec<u32> = memory::collected(cells.iter().map(|cell| cell.num_samples));
    let parts = Some(Parts { firsts: &firsts, counts: &counts });
    let first_block = chunks.iter().find_map(|chunk| chunk.blocks().first());
    let wanted = |&Table { stream, number, .. }: &Table| {
        // A selection without chunks has no form, and no values to spread in either form.
        let first = first_block.and_then(|block| block.columns.get(stream));
        let form = first.map(|column| column.samples.form());
        // The classes of sparse samples are dense.
        let is_sparse = form.is_some_and(|form| form.is_sparse && (form.number == number || number != NumberType::I32));
        Wanted { stream, is_sparse, number }
    };
    let sources = Sources::new(chunks, &tables.iter().map(wanted).collect::<Vec<_>>())?;
    let located = sources.locate(Selection { parts, ..selection })?;
    let spread = |(stream, table): (&Stream, &Table)| {
        // A part fits into a longer sequence, too, so a wrong length would give wrong samples without an error.
        check_lengths(&sources, &located, cells, table.stream)?;
        let ragged = stream.gather(&located, parts)?;
        Ok(match &ragged.values {
            Values::F32(values) => Values::F32(fill(values, ragged.entries.as_ref(), cells, table.dim, num_cells)?),
            Values::F64(values) => Values::F64(fill(values, ragged.entries.as_ref(), cells, table.dim, num_cells)?),
            Values::I32(values) => Values::I32(fill(values, ragged.entries.as_ref(), cells, table.dim, num_cells)?),
            Values::I64(values) => Values::I64(fill(values, ragged.entries.as_ref(), cells, table.dim, num_cells)?),
        })
    };
    let spread = sources.streams.iter().zip(tables).map(spread).collect::<Result<_, Error>>()?;
    sources.check_unchanged()?;
    Ok(spread)
}

/// Check that every sequence has as many samples as it should.
fn check_lengths(sources: &Sources, located: &Located, cells: &[Cell], stream: usize) -> Result<(), Error> {
    let mut cells = cells.iter().enumerate();
    located.each(&sources.blocks, |block, at| {
        let column = block.columns.get(stream).ok_or(Error::Missing)?;
        let (begin, end) = span(&column.sequence_offsets, at)?;
        let num_samples = (end - begin) as usize;
        match cells.next() {
            // The frame of a broadcast stream stands for as many samples as the sequence has in other streams.
            Some((sequence, cell)) if num_samples != cell.length && !column.samples.is_broadcast() => {
                Err(Error::Length { sequence, stream, num_samples })
            }
            _ => Ok(()),
        }
    })
}

/// A table of zeros, which takes memory only where values are written.
fn table<T: Value>(num_cells: usize, dim: usize) -> Result<Vec<T>, Error> {
    let size = num_cells.checked_mul(dim).ok_or(Error::TooLarge(usize::MAX))?;
    zeros(size).ok_or(Error::TooLarge(size.saturating_mul(size_of::<T>())))
}

/// Write samples, which come one after the other, into their cells.
fn fill<T: Value>(
    values: &[T],
    entries: Option<&RaggedEntries>,
    cells: &[Cell],
    dim: usize,
    num_cells: usize,
) -> Result<Vec<T>, Error> {
    let mut out = table(num_cells, dim)?;
    let mut sample = 0;
    for cell in cells {
        let count = cell.num_samples as usize;
        // Cells come from a caller, too.
        let end = cell.cell.checked_add(count).and_then(|end| end.checked_mul(dim)).ok_or(Error::Missing)?;
        // The product is smaller than the end, so it does not overflow.
        let target = out.get_mut(cell.cell * dim..end).ok_or(Error::Missing)?;
        if let Some(RaggedEntries { sample_offsets, indices }) = entries {
            let offsets = &sample_offsets[sample..=sample + count];
            // `chunks_exact_mut` panics for a size of 0.
            for (row, pair) in target.chunks_exact_mut(dim.max(1)).zip(offsets.windows(2)) {
                let entries = pair[0] as usize..pair[1] as usize;
                for (&index, &value) in indices[entries.clone()].iter().zip(&values[entries]) {
                    // The dimension of the table comes from the caller, and an index of the column may be beyond it.
                    *row.get_mut(index as usize).ok_or(Error::Mixed)? = value;
                }
            }
        } else {
            target.copy_from_slice(values.get(sample * dim..(sample + count) * dim).ok_or(Error::Mixed)?);
        }
        sample += count;
    }
    Ok(out)
}
