//! Slots: the rows of truncated minibatches.

use super::{Delivered, Outcome, Pause, Reader, Request, Stopped, Table};
use std::collections::VecDeque;

/// A sequence in a slot, of which `next ..` is not delivered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owed {
    /// The sequence and its chunk.
    pub delivered: Delivered,
    /// Its samples.
    pub length: u32,
    /// The first sample that was not delivered.
    pub next: u32,
    /// Whether the read that brought it met the end of a sweep.
    pub end_of_sweep: bool,
}

/// A part of a sequence, which fills some steps of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The row.
    pub slot: u32,
    /// The sequence and its chunk.
    pub delivered: Delivered,
    /// Which of its samples come.
    pub first_sample: u32,
    /// How many samples come.
    pub num_samples: u32,
    /// The step of the first of them.
    pub step: u32,
    /// Whether the sequence goes on in the next minibatch.
    pub goes_on: bool,
}

/// The rows of truncated minibatches, each a queue of sequences.
#[derive(Debug, Clone, Default)]
pub struct Slots {
    queues: Vec<VecDeque<Owed>>,
}

/// How sequences are cut.
#[derive(Clone, Copy, Debug)]
pub struct Truncation {
    /// Steps of a minibatch, at least 1.
    pub steps: u32,
    /// Samples that a full row and the next part of its sequence have in common, fewer than `steps`.
    pub overlap: u32,
}

impl Slots {
    /// So many empty rows.
    #[must_use]
    pub fn new(num_slots: usize) -> Self {
        Self { queues: vec![VecDeque::new(); num_slots] }
    }

    /// Rows that owe this.
    #[must_use]
    pub fn owing(queues: Vec<VecDeque<Owed>>) -> Self {
        Self { queues }
    }

    /// What the rows owe.
    #[must_use]
    pub fn queues(&self) -> &[VecDeque<Owed>] {
        &self.queues
    }

    /// One truncated minibatch. `request` is that of a read of one sequence.
    ///
    /// # Errors
    /// `pause` asked to stop; no minibatch was made, and a next call goes on.
    pub fn read(
        &mut self,
        reader: &mut Reader,
        table: Table,
        Truncation { steps, overlap }: Truncation,
        request: Request,
        parts: &mut Vec<Part>,
        pause: &mut Pause,
    ) -> Result<Outcome, Stopped> {
        let mut delivered = Vec::new();
        for queue in &mut self.queues {
            let mut unread: u64 = queue.iter().map(|owed| u64::from(owed.length - owed.next)).sum();
            // A row that holds exactly one minibatch reads one sequence more.
            while unread <= u64::from(steps) {
                delivered.clear();
                let outcome = reader.read(table, request, &mut delivered, pause)?;
                for &delivered in &delivered {
                    let length = table.lengths[delivered.sequence as usize];
                    unread += u64::from(length);
                    queue.push_back(Owed { delivered, length, next: 0, end_of_sweep: outcome.end_of_sweep });
                }
                if outcome.ended {
                    break;
                }
            }
        }
        let mut end_of_sweep = false;
        for (slot, queue) in self.queues.iter_mut().enumerate() {
            let mut step = 0;
            while step < steps
                && let Some(owed) = queue.front_mut()
            {
                let num_samples = (steps - step).min(owed.length - owed.next);
                // What fills a whole row is overlapped by what follows, be it only by samples that were there already.
                let moved = if num_samples == steps { steps - overlap } else { num_samples };
                let goes_on = owed.next + moved < owed.length;
                parts.push(Part {
                    slot: slot as u32,
                    delivered: owed.delivered,
                    first_sample: owed.next,
                    num_samples,
                    step,
                    goes_on,
                });
                step += num_samples;
                owed.next += moved;
                if !goes_on {
                    end_of_sweep |= owed.end_of_sweep;
                    queue.pop_front();
                }
            }
        }
        Ok(Outcome { end_of_sweep, ended: self.queues.iter().all(VecDeque::is_empty) })
    }
}
