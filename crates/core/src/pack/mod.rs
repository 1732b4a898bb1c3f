//! Packing: a selection of sequences out of chunks into one minibatch's arrays. (docs/timeline.md, "Packing")
//!
//! Three steps lead from a selection to arrays. Each is done for all sequences before the next, so that the processor
//! has many loads in flight:
//!
//! 1. locate: the block of each sequence, and a request for the table entries of its columns;
//! 2. find, for each stream: how many of its samples are taken, and whether all columns agree in their form;
//! 3. gather, for each stream: the kind of its samples appends their values ([`crate::chunk`]).
//!
//! Invariant: every value is copied once, in delivered order; nothing is summed, sorted or dropped.

mod spread;
mod whole;

pub use crate::chunk::{Error, Ragged, RaggedEntries};
pub use spread::{Cell, Table, pad, spread};
pub use whole::{Whole, in_full_width};

use crate::chunk::{AllFound, Block, Chunk, Column, Form, Found, Frames, Runs, Samples, Stored, Values};
use crate::chunk::{frames, plain, runs, stored};
use rayon::prelude::*;
use std::ops::Range;

/// Sequences in delivered order: each a chunk and the sequence, counted in the chunk.
#[derive(Debug, Clone, Copy)]
pub struct Selection<'a> {
    /// The chunks that hold the sequences.
    pub chunks: &'a [&'a Chunk],
    /// For each sequence its chunk, counted in `chunks`.
    pub chunk_of: &'a [u32],
    /// For each sequence its number in the chunk.
    pub sequences: &'a [u32],
    /// The parts of the sequences that are taken; without them whole sequences are.
    pub parts: Option<Parts<'a>>,
}

/// A part of each sequence of a selection.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// For each sequence the first sample that is taken.
    pub firsts: &'a [u32],
    /// For each sequence how many samples are taken.
    pub counts: &'a [u32],
}

/// A stream that is gathered, and the form that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The stream, counted in the chunks.
    pub stream: usize,
    /// Whether its samples are lists of (index, value).
    pub is_sparse: bool,
    /// Whether its values are in double precision.
    pub is_double: bool,
}

/// A sequence of a selection.
#[derive(Clone, Copy)]
struct Located<'a> {
    block: &'a Block,
    /// The sequence, counted in the block.
    sequence: usize,
}

/// Sequences from which on streams are gathered on several threads.
const WORTH_SHARING: usize = 256;

/// Gather several streams of a selection; on all threads of the pool that this is called in, if any.
pub fn gather_all(selection: Selection, streams: &[Wanted]) -> Result<Vec<Ragged>, Error> {
    let located = selection.locate(streams.iter().map(|wanted| wanted.stream))?;
    let gather = |wanted: &Wanted| {
        let mut out = Ragged::empty(wanted.is_sparse, wanted.is_double, located.len());
        append(&located, selection.parts, *wanted, &mut out).map(|()| out)
    };
    // A small minibatch takes less time than waking other threads.
    let is_shared = selection.sequences.len() >= WORTH_SHARING && rayon::current_thread_index().is_some();
    if is_shared { streams.par_iter().map(gather).collect() } else { streams.iter().map(gather).collect() }
}

/// Gather one stream of a selection.
pub fn gather(selection: Selection, wanted: Wanted) -> Result<Ragged, Error> {
    let located = selection.locate([wanted.stream].into_iter())?;
    let mut out = Ragged::empty(wanted.is_sparse, wanted.is_double, located.len());
    append(&located, selection.parts, wanted, &mut out).map(|()| out)
}

impl<'a> Selection<'a> {
    /// Some consecutive sequences of the selection; `None` if it has fewer.
    pub fn slice(self, range: Range<usize>) -> Option<Selection<'a>> {
        let parts = match self.parts {
            Some(Parts { firsts, counts }) => {
                Some(Parts { firsts: firsts.get(range.clone())?, counts: counts.get(range.clone())? })
            }
            None => None,
        };
        let (chunk_of, sequences) = (self.chunk_of.get(range.clone())?, self.sequences.get(range)?);
        Some(Selection { chunks: self.chunks, chunk_of, sequences, parts })
    }

    /// Find the block of each sequence, and ask the processor for the table entries of these columns.
    ///
    /// # Errors
    /// A sequence or a column does not exist, or a file that a chunk shows has changed.
    fn locate(self, streams: impl Iterator<Item = usize> + Clone) -> Result<Vec<Located<'a>>, Error> {
        if let Some(name) = self.chunks.iter().find_map(|chunk| chunk.changed()) {
            return Err(Error::Changed(name.to_owned()));
        }
        let count = self.sequences.len();
        let fits = |parts: Parts| (parts.firsts.len(), parts.counts.len()) == (count, count);
        if self.chunk_of.len() != count || !self.parts.is_none_or(fits) {
            return Err(Error::Missing);
        }
        let mut located = Vec::with_capacity(count);
        for (&chunk, &sequence) in self.chunk_of.iter().zip(self.sequences) {
            let chunk = self.chunks.get(chunk as usize).ok_or(Error::Missing)?;
            if sequence as usize >= chunk.num_sequences() {
                return Err(Error::Missing);
            }
            let (block, sequence) = chunk.locate(sequence as usize);
            for stream in streams.clone() {
                block.columns.get(stream).ok_or(Error::Missing)?.prefetch(sequence);
            }
            located.push(Located { block, sequence });
        }
        Ok(located)
    }
}

impl<'a> Located<'a> {
    fn column(self, stream: usize) -> Result<&'a Column, Error> {
        self.block.columns.get(stream).ok_or(Error::Missing)
    }

    /// The sequence's first sample in one of its columns, and the number of its samples.
    #[inline]
    fn samples(self, column: &Column) -> (u32, u32) {
        let begin = column.sequence_offsets[self.sequence];
        (begin, column.sequence_offsets[self.sequence + 1] - begin)
    }
}

/// Append what is taken of one stream of the located sequences.
///
/// After an error `out` must not be used any more.
fn append(located: &[Located], parts: Option<Parts>, wanted: Wanted, out: &mut Ragged) -> Result<(), Error> {
    let Some(first) = located.first() else { return Ok(()) };
    let first = &first.column(wanted.stream)?.samples;
    let form = first.form();
    // Frames and runs are decoded in single precision, and widened where doubles are wanted.
    let is_widened = wanted.is_double && matches!(first, Samples::Frames(_) | Samples::Runs(_));
    if form.is_sparse != wanted.is_sparse || (form.is_double != wanted.is_double && !is_widened) {
        return Err(Error::Mixed);
    }
    let Ragged { sequence_offsets, values: all_values, entries } = out;
    let mut singles = Values::empty(false);
    let values = if is_widened { &mut singles } else { &mut *all_values };
    let search = Search { located, parts, stream: wanted.stream, form, sequence_offsets };
    let entries = entries.as_mut();
    match first {
        Samples::Dense { .. } | Samples::Sparse { .. } | Samples::Small(_) => {
            plain::gather(search.of(Samples::in_columns, Samples::form), values, entries)
        }
        Samples::Stored(_) => stored::gather(search.of(Samples::as_stored, Stored::form), values, entries),
        Samples::Frames(_) => frames::gather(search.of(Samples::as_frames, Frames::form), values),
        Samples::Runs(_) => runs::gather(search.of(Samples::as_runs, Runs::form), values, entries),
    }?;
    if is_widened { append_widened(all_values, &singles) } else { Ok(()) }
}

/// Append values in single precision to values in double precision.
fn append_widened(doubles: &mut Values, singles: &Values) -> Result<(), Error> {
    let (Values::F64(doubles), Values::F32(singles)) = (doubles, singles) else { return Err(Error::Mixed) };
    doubles.try_reserve(singles.len()).map_err(|_| Error::TooLarge)?;
    doubles.extend(singles.iter().map(|&value| f64::from(value)));
    Ok(())
}

/// The search for the sequences of one stream, whose columns are all of the same form.
struct Search<'a, 'out> {
    located: &'a [Located<'a>],
    parts: Option<Parts<'a>>,
    stream: usize,
    form: Form,
    /// Gets the end of each sequence that is found.
    sequence_offsets: &'out mut Vec<i64>,
}

/// The search in columns of the same kind `K`.
struct KindSearch<'a, 'out, N, F> {
    search: Search<'a, 'out>,
    /// Give the samples their kind `K`, if they are of this kind.
    narrow: N,
    /// The form of samples of kind `K`.
    form: F,
}

impl<'a, 'out> Search<'a, 'out> {
    fn of<N, F>(self, narrow: N, form: F) -> KindSearch<'a, 'out, N, F> {
        KindSearch { search: self, narrow, form }
    }
}

impl<'a, K: 'a, N, F> AllFound<'a, K> for KindSearch<'a, '_, N, F>
where
    N: Fn(&'a Samples) -> Option<&'a K>,
    F: Fn(&K) -> Form,
{
    fn len(&self) -> usize {
        self.search.located.len()
    }

    #[inline]
    fn each(self, mut take: impl FnMut(Found<'a, K>) -> Result<(), Error>) -> Result<(), Error> {
        let KindSearch { search: Search { located, parts, stream, form, sequence_offsets: out }, .. } = self;
        let mut total = out[out.len() - 1];
        out.reserve(located.len());
        for (at, located) in located.iter().enumerate() {
            let column = located.column(stream)?;
            let samples = (self.narrow)(&column.samples).ok_or(Error::Mixed)?;
            if (self.form)(samples) != form {
                return Err(Error::Mixed);
            }
            let (begin, num_samples) = located.samples(column);
            let (first, count) = parts.map_or((0, num_samples), |parts| (parts.firsts[at], parts.counts[at]));
            if u64::from(first) + u64::from(count) > u64::from(num_samples) && !column.samples.is_broadcast() {
                return Err(Error::Length { sequence: at, stream, num_samples: num_samples as usize });
            }
            total += i64::from(count);
            out.push(total);
            let (sequence, sequence_offsets) = (located.sequence as u32, &column.sequence_offsets[..]);
            take(Found { samples, sequence_offsets, sequence, begin, num_samples, first, count })?;
        }
        Ok(())
    }
}
