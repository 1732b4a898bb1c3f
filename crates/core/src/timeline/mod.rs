//! The timeline: which sequences come next, in the order of a sweep or of the file. (docs/timeline.md)
//!
//! The order of one sweep is a pure function of the table of chunks, the window and `seed + sweep`:
//!
//! ```text
//!  chunks in the file     0  1  2  3  4  5
//!                         │  shuffled over the whole range                                    (plan)
//!  ranks of the sweep     3  2  1  0  4  5
//!                        ╰── window ──╯
//!  positions in order    d1 d0 c1 b0 d2 …   a sequence moves no further than the windows allow (shuffle)
//! ```
//!
//! A sequence is known by its *home*, the position that it has before sequences are shuffled. The positions of one rank
//! are consecutive, so "the home is in this window" is a comparison of two positions, and the whole shuffle runs on
//! 32-bit numbers. The shuffle is done only as far as a read needs, and the order of positions that the reader has
//! passed is forgotten.
//!
//! [`Reader`] moves along that order, or along the file. [`batches`] cuts pools of sequences into minibatches that keep
//! a budget. [`Slots`] cuts the delivered sequences into truncated minibatches; [`deal`] divides them among ranks, and
//! [`Shares`] keeps a rank's sequences of each chunk. This module touches no data, decides no settings, and does not
//! depend on Python. The caller passes `pause`, which is called now and then and says whether to continue. A read that
//! is stopped leaves the reader as it was.

mod batches;
mod deal;
mod generator;
mod keyed;
mod plan;
mod reader;
mod rows;
mod schedule;
mod shares;
mod shuffle;
mod slots;
mod trace;

use crate::lengths::Lengths;
pub use batches::{Batches, Limits, Pool, batches, cut};
pub use deal::{Load, deal, deal_rows, deal_slices, steps_of_lanes};
pub use keyed::Permutation;
pub use plan::{Randomization, Window, chunk_order};
pub use reader::{Cursor, Delivered, LeftOut, Minibatches, Outcome, Reader, Request};
pub use rows::{Cost, cells_in_rows};
pub use schedule::{Schedule, Schedules};
pub use shares::{Kept, Sequences, Shares};
pub use shuffle::{rolling_order, shuffled};
pub use slots::{Part, Pending, Slots, Truncation, Unread};

// Ctrl-C must not wait for a long shuffle, but each call of `pause` takes the interpreter's lock.
/// Number of sequences between two calls of `pause`: some ten milliseconds of work.
const SEQUENCES_BETWEEN_PAUSES: u32 = 1 << 19;

/// Number of reads that a call passes at most, one by one.
pub const MOST_READS_PASSED: u64 = 1 << 18;

/// `pause` asked the work to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

/// Called now and then; `false` stops the work.
pub type Pause<'a> = dyn FnMut() -> bool + 'a;

/// The lengths of all sequences in file order, and where each chunk starts among them.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    /// Samples that each sequence counts for, at least 1.
    pub lengths: Lengths<'a>,
    /// First sequence of each chunk and, last, the number of sequences.
    pub chunk_starts: &'a [i64],
}

impl Table<'_> {
    fn num_chunks(&self) -> usize {
        self.chunk_starts.len() - 1
    }

    fn start(&self, chunk: usize) -> usize {
        // The binding has checked that the starts ascend from 0, so no start is negative and the cast keeps its value.
        self.chunk_starts[chunk] as usize
    }
}

/// The sequences that are left until the next pause of a long loop.
struct UntilPause(u32);

impl UntilPause {
    fn new() -> UntilPause {
        UntilPause(SEQUENCES_BETWEEN_PAUSES)
    }

    /// Count some sequences, and pause if it is time.
    #[inline]
    fn count(&mut self, num_sequences: u32, pause: &mut Pause) -> Result<(), Stopped> {
        self.0 = self.0.saturating_sub(num_sequences);
        if self.0 == 0 {
            *self = UntilPause::new();
            if !pause() {
                return Err(Stopped);
            }
        }
        Ok(())
    }
}

/// A share of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// The number of this share, below `count`.
    pub index: u64,
    /// Number of shares, at least 1.
    pub count: u64,
}
