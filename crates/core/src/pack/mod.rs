//! Packing: a selection of sequences out of chunks into one minibatch's arrays. (docs/timeline.md, "Packing")
//!
//! Three steps lead from a selection to arrays:
//!
//! 1. look up, once for all minibatches of the same chunks: the columns of each stream in all blocks ([`Sources`])
//! 2. locate: the block of each sequence; neighbours in a block are copied in one piece
//! 3. gather, for each stream: the kind of its samples appends their values ([`crate::chunk`])
//!
//! Each step is done for all sequences before the next, so that the processor has many loads in flight.
//!
//! Invariant: every value is copied once, in delivered order; nothing is summed, sorted or dropped.

mod spread;
mod whole;

pub use crate::chunk::{Error, NumberType, Parts, Ragged, RaggedEntries};
pub use spread::{Cell, Table, pad, spread};
pub use whole::{Whole, in_full_width};

use crate::chunk::{
    Ahead, Block, Chunk, Column, Gather, KnownColumn, Located, Neighbours, Samples, Takes, Values, try_reserve,
};
use crate::chunk::{frames, plain, runs, stored};
use crate::memory;
use rayon::prelude::*;
use std::collections::VecDeque;
use std::ops::Range;

/// Sequences in delivered order: each a chunk and the sequence, counted in the chunk.
#[derive(Debug, Clone, Copy)]
pub struct Selection<'a> {
    /// For each sequence its chunk, counted in the list of chunks.
    pub chunk_of: &'a [u32],
    /// For each sequence its number in the chunk.
    pub sequences: &'a [u32],
    /// The parts of the sequences that are taken; `None`: whole sequences are taken.
    pub parts: Option<Parts<'a>>,
}

/// A stream that is gathered, and the form that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The stream, counted in the chunks.
    pub stream: usize,
    /// True if its samples are lists of (index, value).
    pub is_sparse: bool,
    /// The type of its values.
    pub number: NumberType,
}

/// Sequences from which on streams are gathered on several threads.
const WORTH_SHARING: usize = 256;
/// The most groups of neighbours that are prefetched while another selection is gathered.
const MOST_AHEAD: usize = 256;

/// Gather several streams of a selection; a call on a thread of a pool uses all threads of the pool.
pub fn gather_all(chunks: &[&Chunk], selection: Selection, streams: &[Wanted]) -> Result<Vec<Ragged>, Error> {
    let sources = Sources::new(chunks, streams)?;
    let gathered = sources.gather(selection)?;
    // A mapped file can change during the copies, so the check comes once more before anything is delivered.
    sources.check_unchanged()?;
    Ok(gathered)
}

/// Gather one stream of a selection.
pub fn gather(chunks: &[&Chunk], selection: Selection, wanted: Wanted) -> Result<Ragged, Error> {
    gather_all(chunks, selection, &[wanted])?.pop().ok_or(Error::Missing)
}

/// Chunks, and the columns of the streams that are gathered.
pub struct Sources<'a> {
    chunks: &'a [&'a Chunk],
    /// The blocks of all chunks, chunk after chunk.
    blocks: Vec<&'a Block>,
    /// The first block of each chunk.
    first_blocks: Vec<u32>,
    /// True if each chunk has one block.
    are_single_blocks: bool,
    streams: Vec<Stream<'a>>,
}

/// The step that follows when columns have gathered in single precision.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// None: the columns gather in the wanted type.
    Nothing,
    /// The values are widened.
    Widen,
    /// The only index of each sample is the wanted whole number.
    TakeClasses,
}

/// A stream that is gathered.
struct Stream<'a> {
    wanted: Wanted,
    /// Its columns in all blocks; `None` for a selection without blocks.
    columns: Option<Box<dyn Gather + 'a>>,
    /// The step after gathering.
    then: Then,
}

impl<'a> Sources<'a> {
    /// Look up the columns.
    ///
    /// # Errors
    ///
    /// A block has no such stream, or has the stream in another form; or a file that a chunk shows has changed.
    pub fn new(chunks: &'a [&'a Chunk], wanted: &[Wanted]) -> Result<Sources<'a>, Error> {
        check_unchanged(chunks)?;
        let mut blocks = memory::with_room(chunks.iter().map(|chunk| chunk.blocks().len()).sum());
        let mut first_blocks = memory::with_room(chunks.len());
        for chunk in chunks {
            first_blocks.push(blocks.len() as u32);
            blocks.extend(chunk.blocks());
        }
        let streams = wanted.iter().map(|&wanted| Stream::new(chunks, wanted)).collect::<Result<_, Error>>()?;
        // Chunks of utterances have one block. Then the chunk's number is the block's number, and nothing is looked up.
        let are_single_blocks = chunks.iter().all(|chunk| chunk.blocks().len() == 1);
        Ok(Sources { chunks, blocks, first_blocks, are_single_blocks, streams })
    }

    /// Check again, before gathered values are delivered, that no file that a chunk shows has changed.
    pub fn check_unchanged(&self) -> Result<(), Error> {
        check_unchanged(self.chunks)
    }

    /// Gather the streams of a selection; a call on a thread of a pool uses all threads of the pool.
    pub fn gather(&self, selection: Selection) -> Result<Vec<Ragged>, Error> {
        self.gather_located(&self.locate(selection)?, selection.parts)
    }

    fn gather_located(&self, located: &Located, parts: Option<Parts>) -> Result<Vec<Ragged>, Error> {
        let gather = |stream: &Stream| stream.gather(located, parts);
        // A small minibatch takes less time than waking other threads.
        // A call outside of a pool must not start rayon's global threads, which a forked child would lack.
        let is_shared = located.num_sequences() >= WORTH_SHARING && rayon::current_thread_index().is_some();
        if is_shared {
            self.streams.par_iter().map(gather).collect()
        } else {
            self.streams.iter().map(gather).collect()
        }
    }

    /// Prefetch the data that gathering these sequences will read, unless they are too large for the cache.
    fn prefetch(&self, located: &Located, what: Ahead) {
        let Located::Neighbours { all, .. } = located else { return };
        if all.len() <= MOST_AHEAD {
            self.streams.iter().flat_map(|stream| &stream.columns).for_each(|columns| columns.prefetch(all, what));
        }
    }

    /// Find the block of each sequence.
    fn locate<'s>(&self, selection: Selection<'s>) -> Result<Located<'s>, Error> {
        let Selection { chunk_of, sequences, parts } = selection;
        let num_sequences = sequences.len();
        let fits = |parts: Parts| (parts.firsts.len(), parts.counts.len()) == (num_sequences, num_sequences);
        if chunk_of.len() != num_sequences || !parts.is_none_or(fits) {
            return Err(Error::Missing);
        }
        if parts.is_some() && self.are_single_blocks {
            // Sequences are not checked here: one that does not exist is found when its samples are looked up.
            let exist = chunk_of.iter().max().is_none_or(|&last| (last as usize) < self.blocks.len());
            return if exist { Ok(Located::Parts { blocks: chunk_of, sequences }) } else { Err(Error::Missing) };
        }
        let mut all: Vec<Neighbours> = memory::with_room(num_sequences);
        // The sequence after the last sequence, and the number of sequences of its block that may join the last
        // neighbours.
        let (mut next, mut num_joining) = ((0, 0), 0);
        for (&chunk_index, &sequence) in chunk_of.iter().zip(sequences) {
            // In file order nearly every sequence follows the sequence before it.
            if num_joining > 0
                && (chunk_index, sequence) == next
                && let Some(last) = all.last_mut()
            {
                last.end += 1;
                next.1 += 1;
                num_joining -= 1;
                continue;
            }
            let chunk = self.chunks.get(chunk_index as usize).ok_or(Error::Missing)?;
            if sequence as usize >= chunk.num_sequences() {
                return Err(Error::Missing);
            }
            let (block, first) = chunk.position(sequence as usize);
            // Parts are never joined, because the samples between two parts are not taken.
            if parts.is_none() {
                next = (chunk_index, sequence + 1);
                num_joining = chunk.blocks()[block].num_sequences - first - 1;
            }
            let block = self.first_blocks[chunk_index as usize] + block as u32;
            all.push(Neighbours { block, first: first as u32, end: first as u32 + 1 });
        }
        Ok(Located::Neighbours { all, num_sequences })
    }

    /// All sequences of all chunks.
    fn all(&self) -> Located<'static> {
        let all = |(number, block): (usize, &&Block)| {
            // A group of neighbours has at least one sequence, so an empty block gets no group.
            let end = block.num_sequences as u32;
            (end > 0).then_some(Neighbours { block: number as u32, first: 0, end })
        };
        Located::Neighbours {
            all: self.blocks.iter().enumerate().filter_map(all).collect(),
            num_sequences: self.chunks.iter().map(|chunk| chunk.num_sequences()).sum(),
        }
    }
}

/// A selection to gather.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// Its chunks and streams.
    pub sources: &'a Sources<'a>,
    /// Its sequences.
    pub selection: Selection<'a>,
}

/// Gather selections one after the other, as [`Sources::gather`] does.
///
/// A small selection has few sequences, so the processor would wait for each table and for each sequence. While this
/// function gathers a selection, it therefore prefetches the samples of the next selection and the tables of the
/// selection after the next.
pub fn gather_in_turn(jobs: &[Job]) -> impl Iterator<Item = Result<Vec<Ragged>, Error>> {
    let mut coming = jobs.iter();
    let mut located = VecDeque::with_capacity(3);
    std::iter::from_fn(move || {
        while located.len() < 3
            && let Some(job) = coming.next()
        {
            let found = job.sources.locate(job.selection);
            found.iter().for_each(|found| job.sources.prefetch(found, Ahead::Tables));
            located.push_back((job, found));
        }
        let (job, found) = located.pop_front()?;
        // The tables of this selection were prefetched in an earlier turn.
        if let Some((next, Ok(found))) = located.front() {
            next.sources.prefetch(found, Ahead::Samples);
        }
        Some(found.and_then(|found| job.sources.gather_located(&found, job.selection.parts)))
    })
}

impl<'a> Stream<'a> {
    fn new(chunks: &[&'a Chunk], wanted: Wanted) -> Result<Stream<'a>, Error> {
        let columns = chunks.iter().flat_map(|chunk| chunk.columns(wanted.stream));
        let columns: Vec<KnownColumn<'a>> = columns.collect::<Option<_>>().ok_or(Error::Missing)?;
        // An empty share of a minibatch can have no chunks, so no column says which form the stream has.
        let Some((Column { samples: first, .. }, _)) = columns.first() else {
            return Ok(Stream { wanted, columns: None, then: Then::Nothing });
        };
        let form = first.form();
        // Frames and runs are decoded in single precision, and widened where doubles are wanted.
        let then = match (first, wanted.number) {
            (Samples::Frames(_) | Samples::Runs(_), NumberType::F64) => Then::Widen,
            // Labels are kept as one-hot samples, but can be delivered as class ids.
            (_, NumberType::I32) if form.number == NumberType::F32 && form.is_sparse && !wanted.is_sparse => {
                Then::TakeClasses
            }
            _ => Then::Nothing,
        };
        let is_other = form.is_sparse != wanted.is_sparse && then != Then::TakeClasses;
        if is_other || (form.number != wanted.number && then == Then::Nothing) {
            return Err(Error::Mixed);
        }
        let columns = match first {
            Samples::Dense { .. } | Samples::Sparse { .. } | Samples::Small(_) | Samples::Narrow(_) => {
                plain::gatherer(&columns, form)
            }
            Samples::Stored(_) => narrowed(&columns, |samples| samples.as_stored(form)).map(stored::gatherer),
            Samples::Frames(_) => narrowed(&columns, |samples| samples.as_frames(form)).map(frames::gatherer),
            Samples::Runs(_) => narrowed(&columns, |samples| samples.as_runs(form)).map(runs::gatherer),
        };
        Ok(Stream { wanted, columns: Some(columns.ok_or(Error::Mixed)?), then })
    }

    /// Gather the samples that are taken of the sequences.
    fn gather(&self, located: &Located, parts: Option<Parts>) -> Result<Ragged, Error> {
        let mut out = Ragged::empty(self.wanted.is_sparse, self.wanted.number, located.num_sequences());
        self.append(located, parts, &mut out)?;
        Ok(out)
    }

    /// Append the samples that are taken of the sequences.
    ///
    /// After an error `out` must not be used any more.
    fn append(&self, located: &Located, parts: Option<Parts>, out: &mut Ragged) -> Result<(), Error> {
        let Some(columns) = &self.columns else { return Ok(()) };
        let Ragged { sequence_offsets, values, entries } = &mut *out;
        let takes = Takes::new(located.num_sequences(), parts, self.wanted.stream, sequence_offsets);
        if self.then == Then::Nothing {
            return columns.gather(located, takes, values, entries.as_mut());
        }
        let mut singles = Values::empty(NumberType::F32);
        if let (Then::TakeClasses, Values::I32(classes)) = (self.then, &mut *values) {
            // The indices are the classes, so they are gathered where the classes belong, without a copy.
            let mut taken = RaggedEntries { sample_offsets: vec![0], indices: std::mem::take(classes) };
            columns.gather(located, takes, &mut singles, Some(&mut taken))?;
            *classes = taken.indices;
            // A sample with another number of entries has no class. The entries of all samples before are not in
            // `taken`, so the first offset says nothing, and the number of classes decides.
            let ends = taken.sample_offsets.get(1..).unwrap_or_default();
            // A fold without a branch: nearly always all samples have one entry.
            let are_single = ends.windows(2).fold(0, |all, pair| all | ((pair[1] - pair[0]) ^ 1)) == 0;
            return if are_single && classes.len() as i64 == out.num_samples() { Ok(()) } else { Err(Error::Mixed) };
        }
        columns.gather(located, takes, &mut singles, entries.as_mut())?;
        // Other types were refused when the columns were looked up.
        let (Values::F64(doubles), Values::F32(singles)) = (values, singles) else { return Err(Error::Mixed) };
        try_reserve(doubles, singles.len())?;
        doubles.extend(singles.into_iter().map(f64::from));
        Ok(())
    }
}

/// Check that no file that a chunk shows has changed.
fn check_unchanged(chunks: &[&Chunk]) -> Result<(), Error> {
    match chunks.iter().find_map(|chunk| chunk.changed()) {
        Some(name) => Err(Error::Changed(name.to_owned())),
        None => Ok(()),
    }
}

/// For each column, the samples as their kind, and the sequence offsets; `None` if a column is of another kind or form.
fn narrowed<'a, K>(
    columns: &[KnownColumn<'a>],
    narrow: impl Fn(&'a Samples) -> Option<&'a K>,
) -> Option<Vec<(&'a K, &'a [u32])>> {
    columns.iter().map(|(column, _)| Some((narrow(&column.samples)?, &column.sequence_offsets[..]))).collect()
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
        Some(Selection { chunk_of: self.chunk_of.get(range.clone())?, sequences: self.sequences.get(range)?, parts })
    }
}
