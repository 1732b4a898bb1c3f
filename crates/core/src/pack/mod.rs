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
mod stream;
mod whole;

pub use crate::chunk::{Error, NumberType, Parts, Ragged, RaggedEntries};
pub use spread::{Cell, Table, pad, spread};
pub use stream::Wanted;
pub use whole::{Whole, in_full_width, in_order};

use crate::chunk::{Ahead, Block, Chunk, Located, Neighbours};
use crate::memory;
use crate::parallel;
use std::collections::VecDeque;
use std::ops::Range;
use stream::Stream;

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
    streams: Vec<Stream<'a>>,
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
        Ok(Sources { chunks, blocks, first_blocks, streams })
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
        let is_shared = located.num_sequences >= WORTH_SHARING && rayon::current_thread_index().is_some();
        if is_shared {
            parallel::map(self.streams.len(), |number| gather(&self.streams[number])).into_iter().collect()
        } else {
            self.streams.iter().map(gather).collect()
        }
    }

    /// Prefetch the data that gathering these sequences will read, unless they are too large for the cache.
    fn prefetch(&self, located: &Located, what: Ahead) {
        if located.all.len() <= MOST_AHEAD {
            self.streams.iter().for_each(|stream| stream.prefetch(&located.all, what));
        }
    }

    /// Find the block of each sequence.
    fn locate(&self, selection: Selection) -> Result<Located, Error> {
        let Selection { chunk_of, sequences, parts } = selection;
        let num_sequences = sequences.len();
        let fits = |parts: Parts| (parts.firsts.len(), parts.counts.len()) == (num_sequences, num_sequences);
        if chunk_of.len() != num_sequences || !parts.is_none_or(fits) {
            return Err(Error::Missing);
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
        Ok(Located { all, num_sequences })
    }

    /// All sequences of all chunks.
    fn all(&self) -> Located {
        let all = |(number, block): (usize, &&Block)| {
            // A group of neighbours has at least one sequence, so an empty block gets no group.
            let end = block.num_sequences as u32;
            (end > 0).then_some(Neighbours { block: number as u32, first: 0, end })
        };
        Located {
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

/// Check that no file that a chunk shows has changed.
fn check_unchanged(chunks: &[&Chunk]) -> Result<(), Error> {
    match chunks.iter().find_map(|chunk| chunk.changed()) {
        Some(name) => Err(Error::Changed(name.to_owned())),
        None => Ok(()),
    }
}

impl<'a> Selection<'a> {
    /// Some consecutive sequences of the selection; `None` if it has fewer.
    pub fn slice(self, range: Range<usize>) -> Option<Selection<'a>> {
        let parts = match self.parts {
            Some(parts) => Some(parts.slice(range.clone())?),
            None => None,
        };
        Some(Selection { chunk_of: self.chunk_of.get(range.clone())?, sequences: self.sequences.get(range)?, parts })
    }
}
