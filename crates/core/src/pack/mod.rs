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

pub use crate::chunk::{Error, Parts, Ragged, RaggedEntries};
pub use spread::{Cell, Table, pad, spread};
pub use whole::{Whole, in_full_width};

use crate::chunk::{AllFound, Block, Chunk, Column, Form, Samples, Takes, Values};
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

/// The sequences of a selection, in order.
enum Located<'a> {
    /// Each chunk is one block, so that the columns of a stream are looked up once for each chunk.
    InChunks {
        blocks: Vec<&'a Block>,
        /// For each sequence its block.
        block_of: &'a [u32],
        /// For each sequence its number in the block; it may not exist.
        sequences: &'a [u32],
    },
    /// The block of each sequence, and the sequence, counted in the block.
    InBlocks(Vec<(&'a Block, usize)>),
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
    fn locate(self, streams: impl Iterator<Item = usize> + Clone) -> Result<Located<'a>, Error> {
        if let Some(name) = self.chunks.iter().find_map(|chunk| chunk.changed()) {
            return Err(Error::Changed(name.to_owned()));
        }
        let count = self.sequences.len();
        let fits = |parts: Parts| (parts.firsts.len(), parts.counts.len()) == (count, count);
        if self.chunk_of.len() != count || !self.parts.is_none_or(fits) {
            return Err(Error::Missing);
        }
        if let Some(blocks) = self.single_blocks(streams.clone()) {
            return Ok(Located::InChunks { blocks, block_of: self.chunk_of, sequences: self.sequences });
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
            located.push((block, sequence));
        }
        Ok(Located::InBlocks(located))
    }

    /// The only block of each chunk; `None` if a chunk has several, or if it pays to prefetch table entries.
    fn single_blocks(self, mut streams: impl Iterator<Item = usize>) -> Option<Vec<&'a Block>> {
        let [first] = self.chunks.first()?.blocks() else { return None };
        let is_worth_it = |column: &Column| column.samples.are_worth_prefetching();
        if streams.any(|stream| first.columns.get(stream).is_none_or(is_worth_it)) {
            return None;
        }
        self.chunks.iter().map(|chunk| if let [block] = chunk.blocks() { Some(block) } else { None }).collect()
    }
}

impl<'a> Located<'a> {
    /// Number of sequences.
    fn len(&self) -> usize {
        match self {
            Located::InChunks { sequences, .. } => sequences.len(),
            Located::InBlocks(located) => located.len(),
        }
    }

    /// The first sequence's column of a stream, if there are sequences.
    fn first_column(&self, stream: usize) -> Result<Option<&'a Column>, Error> {
        let block = match self {
            Located::InChunks { blocks, block_of, .. } => {
                block_of.first().map(|&block| *blocks.get(block as usize).unwrap_or(&blocks[0]))
            }
            Located::InBlocks(located) => located.first().map(|(block, _)| *block),
        };
        block.map(|block| block.columns.get(stream).ok_or(Error::Missing)).transpose()
    }

    /// Whether the samples of a stream of any of the blocks are so.
    fn any(&self, stream: usize, mut is_so: impl FnMut(&'a Samples) -> bool) -> bool {
        let mut is_so = |block: &&'a Block| block.columns.get(stream).is_some_and(|column| is_so(&column.samples));
        match self {
            Located::InChunks { blocks, .. } => blocks.iter().any(is_so),
            Located::InBlocks(located) => located.iter().any(|(block, _)| is_so(block)),
        }
    }

    /// Hand each sequence, counted in its column, to `take`, with what `look_up` says about the column.
    #[inline]
    fn each<C: Copy>(
        &self,
        stream: usize,
        look_up: impl Fn(&'a Column) -> Result<C, Error>,
        mut take: impl FnMut(C, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let look_up = |block: &'a Block| block.columns.get(stream).ok_or(Error::Missing).and_then(&look_up);
        let columns: Vec<(C, usize)> = match self {
            Located::InChunks { blocks, .. } => {
                blocks.iter().map(|block| Ok((look_up(block)?, block.num_sequences))).collect::<Result<_, Error>>()?
            }
            Located::InBlocks(_) => Vec::new(),
        };
        // `take` is called in one place, so that it becomes part of the loop.
        for at in 0..self.len() {
            let (column, sequence) = match self {
                Located::InChunks { block_of, sequences, .. } => {
                    let (column, num_sequences) = *columns.get(block_of[at] as usize).ok_or(Error::Missing)?;
                    let sequence = sequences[at] as usize;
                    if sequence >= num_sequences {
                        return Err(Error::Missing);
                    }
                    (column, sequence)
                }
                Located::InBlocks(located) => {
                    let (block, sequence) = located[at];
                    (look_up(block)?, sequence)
                }
            };
            take(column, sequence)?;
        }
        Ok(())
    }
}

/// Append what is taken of one stream of the located sequences.
///
/// After an error `out` must not be used any more.
fn append(located: &Located, parts: Option<Parts>, wanted: Wanted, out: &mut Ragged) -> Result<(), Error> {
    let Wanted { stream, is_sparse, is_double } = wanted;
    let Some(Column { samples: first, .. }) = located.first_column(stream)? else { return Ok(()) };
    let form = first.form();
    // Frames and runs are decoded in single precision, and widened where doubles are wanted.
    let is_widened = is_double && matches!(first, Samples::Frames(_) | Samples::Runs(_));
    if form.is_sparse != is_sparse || (form.is_double != is_double && !is_widened) {
        return Err(Error::Mixed);
    }
    let Ragged { sequence_offsets, values: all_values, entries } = out;
    let mut singles = Values::empty(false);
    let values = if is_widened { &mut singles } else { &mut *all_values };
    let search = Search { located, stream, form };
    let takes = Takes::new(located.len(), parts, stream, sequence_offsets);
    let entries = entries.as_mut();
    match first {
        Samples::Dense { .. } | Samples::Sparse { .. } | Samples::Small(_) => {
            plain::gather(search.of(Samples::as_columns), takes, values, entries)
        }
        Samples::Stored(_) => stored::gather(search.of(Samples::as_stored), takes, values, entries),
        Samples::Frames(_) => frames::gather(search.of(Samples::as_frames), takes, values),
        Samples::Runs(_) => runs::gather(search.of(Samples::as_runs), takes, values, entries),
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
struct Search<'a, 'l> {
    located: &'l Located<'a>,
    stream: usize,
    form: Form,
}

/// The search in columns of the same kind `K`.
struct KindSearch<'a, 'l, N> {
    search: Search<'a, 'l>,
    /// Give the samples their kind `K`, if they are of this kind and form.
    narrow: N,
}

impl<'a, 'l> Search<'a, 'l> {
    fn of<N>(self, narrow: N) -> KindSearch<'a, 'l, N> {
        KindSearch { search: self, narrow }
    }
}

impl<'a, K: 'a, N> AllFound<'a, K> for KindSearch<'a, '_, N>
where
    N: Fn(&'a Samples, Form) -> Option<&'a K>,
{
    fn len(&self) -> usize {
        self.search.located.len()
    }

    fn any(&self, is_so: impl Fn(&K) -> bool) -> bool {
        let Search { located, stream, form } = self.search;
        located.any(stream, |samples| (self.narrow)(samples, form).is_some_and(&is_so))
    }

    #[inline]
    fn each<C: Copy>(
        &self,
        look_up: impl Fn(&'a K, &'a [u32]) -> Option<C>,
        take: impl FnMut(C, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Search { located, stream, form } = self.search;
        let look_up = |column: &'a Column| {
            let samples = (self.narrow)(&column.samples, form).ok_or(Error::Mixed)?;
            look_up(samples, &column.sequence_offsets).ok_or(Error::Mixed)
        };
        located.each(stream, look_up, take)
    }
}
