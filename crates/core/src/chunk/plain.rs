//! Dense and sparse samples in full width, small and narrow: their checks, sizes and packing.
//!
//! Sequences in random order are in no cache, so a loop that finishes one sequence after the other would wait for
//! memory every time. Therefore each step (the sample offsets, the entries) is done for all sequences before the next
//! step, so that the processor has many loads in flight.

use super::ragged::{
    Ahead, Error, Form, Gather, KnownColumn, Lengths, Located, Neighbours, RaggedEntries, Takes, try_reserve,
};
use super::samples::Samples;
use super::small::{Numbers, Small};
use super::values::{NumberType, Value, Values};
use crate::memory;
use cntkio_memory::copy::{AnyEntries, AnyWidth, append_any_width, append_entries};
use cntkio_memory::small::Number;
use cntkio_simd::prefetch;
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
            // The product can overflow, because the dimension comes from a caller.
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

/// Gathers columns of values, dense or sparse, in full width, small or narrow; `None` if not all are of this form.
pub(crate) fn gatherer<'a>(columns: &[KnownColumn<'a>], form: Form) -> Option<Box<dyn Gather + 'a>> {
    // Pieces of a text become small one by one, so blocks of one chunk differ in kind, but not in form.
    if columns.iter().any(|(column, _)| column.samples.form() != form) {
        return None;
    }
    match form.number {
        NumberType::F32 => of_type::<f32>(columns, form),
        NumberType::F64 => of_type::<f64>(columns, form),
        NumberType::I32 => of_type::<i32>(columns, form),
        NumberType::I64 => of_type::<i64>(columns, form),
    }
}

fn of_type<'a, T: Value>(columns: &[KnownColumn<'a>], form: Form) -> Option<Box<dyn Gather + 'a>> {
    // The type is chosen once for each stream, so the loops over sequences have no `match`.
    match form.is_sparse {
        false => Some(Box::new(Dense::<T>::of(columns, form.dim)?)),
        true => Some(Box::new(Sparse::<T>::of(columns)?)),
    }
}

/// Dense columns.
struct Dense<'a, T: Value> {
    dim: usize,
    columns: Vec<DenseColumn<'a, T>>,
}

struct DenseColumn<'a, T: Value> {
    lengths: Lengths<'a>,
    values: AnyWidth<'a, T>,
}

impl<'a, T: Value> Dense<'a, T> {
    fn of(columns: &[KnownColumn<'a>], dim: usize) -> Option<Self> {
        let of_column = |&(column, lengths): &KnownColumn<'a>| {
            let values = match &column.samples {
                Samples::Dense { values, .. } => AnyWidth::Wide(T::of(values)?),
                Samples::Small(Small { numbers: Numbers::Dense(values), .. }) => T::small(values)?,
                Samples::Narrow(narrow) => T::of_narrow(&narrow.values)?,
                _ => return None,
            };
            Some(DenseColumn { lengths, values })
        };
        Some(Dense { dim, columns: columns.iter().map(of_column).collect::<Option<_>>()? })
    }
}

impl<T: Value> Gather for Dense<'_, T> {
    fn gather(
        &self,
        located: &Located,
        mut takes: Takes,
        values: &mut Values,
        _: Option<&mut RaggedEntries>,
    ) -> Result<(), Error> {
        let dim = self.dim;
        let mut pieces: Vec<AnyWidth<T>> = memory::with_room(located.num_sequences);
        located.each_group(
            &self.columns,
            |column| column.lengths.table_or(&[]),
            |column, sequences| {
                let samples = takes.piece(column.lengths, sequences)?;
                pieces.push(column.values.get(samples.start * dim..samples.end * dim).ok_or(Error::Mixed)?);
                Ok(())
            },
        )?;
        append_all(T::vector(values).ok_or(Error::Mixed)?, &pieces)
    }

    fn prefetch(&self, sequences: &[Neighbours], what: Ahead) {
        for at in sequences {
            let DenseColumn { lengths, values } = &self.columns[at.block as usize];
            // A sequence that does not exist is not prefetched here. `gather` reports it.
            if let Some((begin, end)) = lengths.ahead(what, at.first as usize)
                && let Some(values) = values.get(begin as usize * self.dim..end as usize * self.dim)
            {
                values.prefetch(AHEAD_BYTES);
            }
        }
    }
}

/// Sparse columns.
struct Sparse<'a, T: Value> {
    columns: Vec<SparseColumn<'a, T>>,
}

struct SparseColumn<'a, T: Value> {
    lengths: Lengths<'a>,
    /// The first entry of each sample; `None` while each sample has one entry.
    sample_offsets: Option<&'a [u32]>,
    entries: AnyEntries<'a, T>,
}

/// Samples of one sequence, or of several neighbours.
struct Span<'a, T: Value> {
    column: &'a SparseColumn<'a, T>,
    samples: Range<usize>,
}

impl<'a, T: Value> Sparse<'a, T> {
    fn of(columns: &[KnownColumn<'a>]) -> Option<Self> {
        let of_column = |&(column, lengths): &KnownColumn<'a>| {
            let (sample_offsets, entries) = match &column.samples {
                Samples::Sparse { sample_offsets, indices, values, .. } => {
                    (Some(&sample_offsets[..]), AnyEntries::Wide(&indices[..], T::of(values)?))
                }
                Samples::Small(Small { sample_offsets, numbers, .. }) => {
                    let entries = match numbers {
                        // A value that all entries have need not be fetched from memory for each sequence.
                        Numbers::Alike(value, indices) => AnyEntries::Alike(&indices[..], T::from(*value)),
                        Numbers::Pairs(pairs) => AnyEntries::Pairs(pairs),
                        Numbers::Dense(_) => return None,
                    };
                    (sample_offsets.as_deref(), entries)
                }
                _ => return None,
            };
            Some(SparseColumn { lengths, sample_offsets, entries })
        };
        Some(Sparse { columns: columns.iter().map(of_column).collect::<Option<_>>()? })
    }

    /// The samples that the selection takes from each sequence. Prefetches the sample offsets.
    fn spans(&self, located: &Located, mut takes: Takes) -> Result<Vec<Span<'_, T>>, Error> {
        let mut spans = memory::with_room(located.num_sequences);
        located.each_group(
            &self.columns,
            |column| column.lengths.table_or(column.sample_offsets.unwrap_or_default()),
            |column, sequences| {
                let samples = takes.piece(column.lengths, sequences)?;
                // Without a table of sequences, `each_group` has prefetched the sample offsets already.
                if let (Lengths::Any(_), Some(offsets)) = (column.lengths, column.sample_offsets) {
                    prefetch(offsets.get(samples.start..=samples.end).unwrap_or_default(), AHEAD_BYTES);
                }
                spans.push(Span { column, samples });
                Ok(())
            },
        )?;
        Ok(spans)
    }
}

impl<T: Value> Gather for Sparse<'_, T> {
    fn gather(
        &self,
        located: &Located,
        takes: Takes,
        values: &mut Values,
        entries: Option<&mut RaggedEntries>,
    ) -> Result<(), Error> {
        let out = T::vector(values).ok_or(Error::Mixed)?;
        let entries = entries.ok_or(Error::Mixed)?;
        let spans = self.spans(located, takes)?;
        // The offsets have room from here on, so the loop below cannot run out of memory.
        entries.reserve(spans.iter().map(|span| span.samples.len()).sum());
        let RaggedEntries { sample_offsets, indices } = entries;
        let are_few = spans.len() <= AHEAD_SEQUENCES;
        let mut pieces: Vec<AnyEntries<T>> = memory::with_room(spans.len());
        for Span { column, samples } in &spans {
            let entries = match column.sample_offsets {
                Some(offsets) => offsets[samples.start] as usize..offsets[samples.end] as usize,
                None => samples.clone(),
            };
            let piece = column.entries.get(entries).ok_or(Error::Mixed)?;
            // `prefetch` could not know these entries, because it does not wait for the sample offsets.
            if are_few && column.sample_offsets.is_some() {
                piece.prefetch(AHEAD_BYTES);
            }
            pieces.push(piece);
        }
        // A whole corpus is appended chunk by chunk, so the entries of earlier chunks come first.
        let mut num_entries = out.len() as i64;
        for (Span { column, samples }, piece) in spans.iter().zip(&pieces) {
            match column.sample_offsets {
                Some(offsets) => {
                    let shift = num_entries - i64::from(offsets[samples.start]);
                    let of_samples = offsets[samples.start + 1..=samples.end].iter();
                    sample_offsets.extend(of_samples.map(|&offset| i64::from(offset) + shift));
                }
                None => sample_offsets.extend((1..=samples.len() as i64).map(|entry| num_entries + entry)),
            }
            num_entries += piece.len() as i64;
        }
        // The columns may keep a value once, so the values can be much more memory than the columns take.
        let total: usize = pieces.iter().map(|piece| piece.len()).sum();
        try_reserve(out, total)?;
        try_reserve(indices, total)?;
        append_entries(indices, out, &pieces);
        Ok(())
    }

    fn prefetch(&self, sequences: &[Neighbours], what: Ahead) {
        for at in sequences {
            let SparseColumn { lengths, sample_offsets, entries } = &self.columns[at.block as usize];
            let Some((begin, end)) = lengths.ahead(what, at.first as usize) else { continue };
            let samples = begin as usize..end as usize;
            // Without offsets the entries have the numbers of the samples, so the entries are prefetched in this step.
            if let Some(offsets) = sample_offsets {
                prefetch(offsets.get(samples).unwrap_or_default(), AHEAD_BYTES);
            } else if let Some(entries) = entries.get(samples) {
                entries.prefetch(AHEAD_BYTES);
            }
        }
    }
}

/// Append pieces; an error if the system has too little memory.
fn append_all<T: Number>(out: &mut Vec<T>, pieces: &[AnyWidth<T>]) -> Result<(), Error> {
    try_reserve(out, pieces.iter().map(|piece| piece.len()).sum())?;
    append_any_width(out, pieces);
    Ok(())
}
