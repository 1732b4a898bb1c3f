//! Which sequences come next: the order of a sweep, and the reads along it.
//!
//! The order of one sweep is a pure function of the table of chunks, the window and `seed + sweep`:
//!
//! ```text
//!  chunks in the file     0  1  2  3  4  5
//!                         │  shuffled over the whole range        (SweepPlan)
//!  places of the sweep    3  2  1  0  4  5
//!                        ╰── window ──╯
//!  positions in order    d1 d0 c1 b0 d2 …   a sequence strays no further than the windows allow   (SweepOrder)
//! ```
//!
//! A sequence is named by its *home*, the position that it has before the sequences are shuffled. The positions of one
//! place are consecutive, so "home is in this window of places" is a comparison of two positions, and the whole
//! shuffle runs on 32-bit numbers. It goes on only as far as a read needs, and what the reader has passed is forgotten.
//!
//! [`Reader`] walks along that order, or along the file, by the rules of `docs/timeline.md`. Nothing here touches
//! data, decides a setting, or knows of Python. Whoever calls passes `pause`, which is asked now and then whether to
//! go on, and a read that is stopped leaves the reader as it was.

mod generator;
mod plan;
mod reader;
mod shuffle;
mod slots;

pub use plan::{Randomization, Window, chunk_order};
pub use reader::{Cursor, Delivered, Outcome, Reader, Request};
pub use shuffle::{rolling_order, shuffled};
pub use slots::{Owed, Part, Slots, Truncation};

/// How many sequences pass between two calls of `pause`: some ten milliseconds of work.
const SEQUENCES_BETWEEN_PAUSES: u32 = 1 << 19;

/// `pause` asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

/// Asked now and then whether to go on; `false` stops.
pub type Pause<'a> = dyn FnMut() -> bool + 'a;

/// The lengths of all sequences in file order, and where each chunk starts among them.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    /// Samples that each sequence counts for, at least 1.
    pub lengths: &'a [u32],
    /// First sequence of each chunk, and at the end the number of sequences.
    pub chunk_starts: &'a [i64],
}

impl Table<'_> {
    pub(super) fn num_chunks(&self) -> usize {
        self.chunk_starts.len() - 1
    }

    pub(super) fn start(&self, chunk: usize) -> usize {
        self.chunk_starts[chunk] as usize
    }
}

/// Share `index` of `count` of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// Which share, below `count`.
    pub index: u64,
    /// How many shares, at least 1.
    pub count: u64,
}
