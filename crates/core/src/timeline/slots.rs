//! Slots: the rows of truncated minibatches. Each slot has a queue of sequences, and delivers some steps of them.
//!
//! ```text
//! steps of the minibatch   0     1     2     3           queue after it
//! slot 0                   a0    a1    a2    a3          a from sample 4 on
//! slot 1                   b0    b1    c0    c1          c from sample 2 on
//! ```

use super::{Delivered, Outcome, Pause, Reader, Request, Stopped, Table};
use crate::memory;
use std::collections::VecDeque;

/// A sequence in a slot, of which the samples from `next` on are not delivered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// The sequence and its chunk.
    pub delivered: Delivered,
    /// The first sample that is not delivered yet.
    pub next: u32,
    /// True if the read that delivered the sequence reached the end of a sweep.
    pub end_of_sweep: bool,
}

/// A part of a sequence, which fills some steps of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The row.
    pub slot: u32,
    /// The sequence and its chunk.
    pub delivered: Delivered,
    /// The first sample of the part.
    pub first_sample: u32,
    /// Number of samples.
    pub num_samples: u32,
    /// The step of the first sample.
    pub step: u32,
    /// True if the sequence continues in the next minibatch.
    pub continues: bool,
}

/// The rows of truncated minibatches.
#[derive(Debug, Clone, Default)]
pub struct Slots {
    /// The queues of the first rows. The other rows have had no sequence yet, and need no memory.
    queues: Vec<VecDeque<Pending>>,
    num_slots: usize,
}

/// Reason why a read of [`Slots`] ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// `pause` asked the work to stop. The next read continues.
    Stopped,
    /// The memory is too small for more than this number of rows.
    OutOfMemory(usize),
}

impl From<Stopped> for Unread {
    fn from(_: Stopped) -> Self {
        Unread::Stopped
    }
}

/// Sequences that the smallest queue has room for.
const LEAST_QUEUE: usize = 4;

/// Settings by which sequences are cut.
#[derive(Clone, Copy, Debug)]
pub struct Truncation {
    /// Steps of a minibatch, at least 1.
    pub steps: u32,
    /// Samples that a full row and the next part of its sequence have in common, fewer than `steps`.
    pub overlap: u32,
}

impl Slots {
    /// Empty rows.
    #[must_use]
    pub fn new(num_slots: usize) -> Self {
        Self { queues: Vec::new(), num_slots }
    }

    /// Replace the queues of the first rows; the others are empty then.
    pub fn restore(&mut self, queues: Vec<VecDeque<Pending>>) {
        self.num_slots = self.num_slots.max(queues.len());
        self.queues = queues;
    }

    /// The queue of each of the first rows; the others have none.
    #[must_use]
    pub fn queues(&self) -> &[VecDeque<Pending>] {
        &self.queues
    }

    /// Append the parts of one truncated minibatch. `request` is for reads of one sequence.
    ///
    /// # Errors
    /// `pause` asked the work to stop, or the memory is too small for the rows.
    pub fn read(
        &mut self,
        reader: &mut Reader,
        table: Table,
        Truncation { steps, overlap }: Truncation,
        request: Request,
        parts: &mut Vec<Part>,
        pause: &mut Pause,
    ) -> Result<Outcome, Unread> {
        self.fill(reader, table, steps, request, pause)?;
        let mut end_of_sweep = false;
        for (slot, queue) in self.queues.iter_mut().enumerate() {
            let mut step = 0;
            while step < steps
                && let Some(pending) = queue.front_mut()
            {
                let num_samples = (steps - step).min(pending.delivered.load - pending.next);
                // A part that fills a whole row overlaps with the next part, even if the next part has no new sample.
                let moved = if num_samples == steps { steps - overlap } else { num_samples };
                let continues = pending.next + moved < pending.delivered.load;
                memory::reserve(parts, 1);
                parts.push(Part {
                    slot: slot as u32,
                    delivered: pending.delivered,
                    first_sample: pending.next,
                    num_samples,
                    step,
                    continues,
                });
                step += num_samples;
                pending.next += moved;
                if !continues {
                    // CNTK flags the minibatch that completes the sequence, not the minibatch before which it was
                    // fetched.
                    end_of_sweep |= pending.end_of_sweep;
                    queue.pop_front();
                }
            }
        }
        let ended = self.queues.iter().all(VecDeque::is_empty);
        Ok(Outcome { end_of_sweep, ended, is_empty: ended && parts.is_empty() })
    }

    /// Before any row is filled, check that there is memory for a sequence in each row that the data can fill. If the
    /// data have no end, these are all requested rows.
    fn require_room(&self, reader: &Reader) -> Result<(), Unread> {
        // Each sequence has a sample, so the samples that are left bound the number of rows that can be filled.
        let most = usize::try_from(reader.num_left()).unwrap_or(usize::MAX);
        let added = (self.num_slots - self.queues.len()).min(most);
        let size = added.saturating_mul(size_of::<VecDeque<Pending>>() + LEAST_QUEUE * size_of::<Pending>());
        // The memory is requested and given back at once. Without this check, a read would fail after it has filled
        // most rows.
        Vec::<u8>::new().try_reserve_exact(size).map_err(|_| Unread::OutOfMemory(self.queues.len() + added))
    }

    /// Read sequences until every queue has more than `steps` samples: a row that has exactly one minibatch left reads
    /// one more sequence.
    fn fill(
        &mut self,
        reader: &mut Reader,
        table: Table,
        steps: u32,
        request: Request,
        pause: &mut Pause,
    ) -> Result<(), Unread> {
        self.require_room(reader)?;
        let mut delivered = Vec::new();
        let mut has_ended = false;
        for slot in 0..self.num_slots {
            if slot == self.queues.len() {
                // No later row gets a sequence once the data have ended, so further queues would only take memory.
                if has_ended {
                    break;
                }
                // If memory is short, `push` alone would end the process; this is an error that names the row.
                self.queues.try_reserve(1).map_err(|_| Unread::OutOfMemory(slot + 1))?;
                self.queues.push(VecDeque::new());
            }
            let queue = &mut self.queues[slot];
            // A queue may hold several sequences, so the sum can exceed 32 bits.
            let mut unread: u64 = queue.iter().map(|pending| u64::from(pending.delivered.load - pending.next)).sum();
            // CNTK also fetches the next sequence for a slot that has exactly the steps of one minibatch.
            while unread <= u64::from(steps) {
                delivered.clear();
                let outcome = reader.read(table, request, &mut delivered, pause)?;
                for &delivered in &delivered {
                    unread += u64::from(delivered.load);
                    queue.try_reserve(1).map_err(|_| Unread::OutOfMemory(slot + 1))?;
                    queue.push_back(Pending { delivered, next: 0, end_of_sweep: outcome.end_of_sweep });
                }
                if outcome.ended {
                    has_ended = true;
                    break;
                }
            }
        }
        Ok(())
    }
}
