//! From lengths to batches: the minibatches that a budget allows. (docs/batches.md)
//!
//! ```text
//! order of the sweep   5 2 9 1 | 3 3 8 2 | …           pools of consecutive sequences
//! arranged             1 2 5 9                         by length; equal lengths keep their order
//! cut                  1 2 | 5 | 9                     before a limit would be exceeded
//! delivered            5 | 1 2 | 9                     in an order that the seed decides
//! ```
//!
//! A pool that is packed has rows of sequences in place of the arrangement by length (`rows`). A pool may leave what
//! would waste cells to the next pool.
//!
//! Without a pool, the [`Reader`](super::Reader) cuts the order itself with the same [`Tally`].

use super::rows::{Cost, in_rows};
use super::shuffle::shuffled;
use super::{Pause, Stopped};
use crate::memory;
use std::cmp::Reverse;
use std::ops::Range;

/// The limits of a minibatch. `u64::MAX` sets no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Samples of all sequences.
    pub samples: u64,
    /// Number of sequences.
    pub sequences: u64,
    /// Samples of the longest sequence, times the number of sequences.
    pub padded: u64,
    /// A sequence of `n` samples counts as `n + n * n / quadratic` samples; 0: as `n`.
    pub quadratic: u64,
    /// Longer sequences are left out.
    pub longest: u32,
    /// Leave out the last minibatch of a sweep, a pool or a bucket, if another sequence would fit.
    pub only_full: bool,
}

impl Limits {
    /// No limits, except that longer sequences are left out.
    #[must_use]
    pub fn only_longest(longest: u32) -> Self {
        Self { samples: u64::MAX, sequences: u64::MAX, padded: u64::MAX, quadratic: 0, longest, only_full: false }
    }

    /// Leave out sequences that exceed a limit by themselves. `buckets` are the buckets of a pool.
    #[must_use]
    pub fn dropping(self, buckets: &[u32]) -> Self {
        let (by_samples, mut by_area) = (self.heaviest(self.samples), self.heaviest(self.padded));
        if !buckets.is_empty() {
            by_area = buckets.iter().copied().filter(|&bound| bound <= by_area).max().unwrap_or(0);
        }
        Self { longest: self.longest.min(by_samples).min(by_area), ..self }
    }

    /// The largest length that counts as at most `limit` samples.
    fn heaviest(self, limit: u64) -> u32 {
        // Between these two, the first length that is too heavy, or 2^32.
        let (mut fits, mut too_heavy) = (0_u64, 1 << 32);
        while too_heavy - fits > 1 {
            let middle = fits + (too_heavy - fits) / 2;
            *(if self.weight(middle as u32) <= limit { &mut fits } else { &mut too_heavy }) = middle;
        }
        fits as u32
    }

    /// Samples as which a sequence counts.
    #[inline]
    fn weight(self, length: u32) -> u64 {
        let length = u64::from(length);
        // The square of 32 bits fits 64 bits. Without a `quadratic`, `checked_div` has no result, and the square counts
        // nothing.
        length.saturating_add((length * length).checked_div(self.quadratic).unwrap_or(0))
    }
}

/// The sequences of a minibatch so far, counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tally {
    limits: Limits,
    samples: u64,
    sequences: u64,
    /// Weight of the longest sequence, after padding.
    longest: u64,
}

impl Tally {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, samples: 0, sequences: 0, longest: 0 }
    }

    /// Returns whether the minibatch stays within its limits with another sequence, which is padded to `padded`
    /// samples. An empty minibatch takes any sequence.
    #[inline]
    pub(super) fn fits(&self, length: u32, padded: u32) -> bool {
        let longest = self.longest.max(self.limits.weight(padded));
        // A sequence above a limit is delivered alone: otherwise the read could never pass it.
        self.sequences == 0 || self.has_room(self.limits.weight(length), longest)
    }

    /// Returns whether the limits allow another sequence of a weight, if the longest then has the weight `longest`.
    #[inline]
    fn has_room(&self, weight: u64, longest: u64) -> bool {
        let Limits { samples, sequences, padded, .. } = self.limits;
        self.sequences < sequences
            // A limit of `u64::MAX` sets no limit, so sums must not wrap below it.
            && self.samples.saturating_add(weight) <= samples
            && longest.saturating_mul(self.sequences + 1) <= padded
    }

    /// Returns whether the minibatch is delivered if no sequences follow.
    pub(super) fn is_delivered_last(&self) -> bool {
        // A minibatch is full if another sequence, as long as its longest, does not fit.
        !self.limits.only_full || !self.has_room(self.longest, self.longest)
    }

    #[inline]
    pub(super) fn take(&mut self, length: u32, padded: u32) {
        self.samples = self.samples.saturating_add(self.limits.weight(length));
        self.sequences += 1;
        self.longest = self.longest.max(self.limits.weight(padded));
    }
}

/// The division of the order into pools.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Size of a pool, at least 1.
    pub size: u64,
    /// True if `size` counts sequences, not samples.
    pub counts_sequences: bool,
    /// Pack the pool into rows, and give a minibatch this many of them; the limits of minibatches are not used. 0: do
    /// not.
    pub rows: u32,
    /// Samples of a row, at least as many as of the longest sequence.
    pub row_length: u32,
    /// Ascending lengths. The sequences of a minibatch are padded to the same one of them. Empty: to the longest.
    pub buckets: Vec<u32>,
    /// The cost that the rows of a minibatch share equally; `None`: rows are packed without regard to it.
    pub balance: Option<Cost>,
    /// True if what a pool leaves over goes into the next pool.
    pub carries: bool,
}

/// Minibatches of a pool.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batches {
    /// The index of each sequence in delivered order.
    pub order: Vec<u32>,
    /// The first sequence of each minibatch and, last, their number.
    pub bounds: Vec<usize>,
    /// The row of each sequence in its minibatch; without rows, empty.
    pub rows: Vec<u32>,
    /// The indices of the sequences that are left over for the next pool; they ascend.
    pub left: Vec<u32>,
}

impl Pool {
    /// The length to which a sequence is padded in its bucket; a sequence above all buckets is not padded.
    fn padded(&self, length: u32) -> u32 {
        let bucket = self.buckets.partition_point(|&bound| bound < length);
        self.buckets.get(bucket).copied().unwrap_or(length)
    }
}

/// The sequences of a pool as minibatches. With `only_full`, the last minibatch of the pool, or of each bucket, and
/// minibatches with too few rows are left out.
///
/// If another pool follows that takes what is left over, `keeps` is the number of first sequences that are not left.
///
/// # Errors
/// `pause` asked the work to stop.
pub fn batches(
    lengths: &[u32],
    limits: Limits,
    pool: &Pool,
    keeps: Option<u32>,
    seed: u64,
    pause: &mut Pause,
) -> Result<Batches, Stopped> {
    if pool.rows > 0 {
        let (mut arranged, mut rows) = in_rows(lengths, pool.row_length, pool.rows, pool.balance);
        let mut left = Vec::new();
        if let Some(keeps) = keeps {
            (arranged, rows, left) = without_rest(lengths, &arranged, rows, pool.rows as usize, keeps);
        }
        let is_full = |rows: &[Range<usize>]| rows.len() == pool.rows as usize && !rows.iter().any(Range::is_empty);
        let mut cut: Vec<Range<usize>> = Vec::new();
        for rows in rows.chunks(pool.rows as usize) {
            if is_full(rows) || !limits.only_full {
                memory::push(&mut cut, rows[0].start..rows[rows.len() - 1].end);
            }
        }
        let mut row_of = Vec::new();
        memory::resize(&mut row_of, arranged.len(), 0);
        for (number, row) in (0..pool.rows).cycle().zip(&rows) {
            row_of[row.clone()].fill(number);
        }
        return Ok(Batches { left, ..in_random_order(&arranged, &cut, &row_of, seed, pause)? });
    }
    // The padded length, and the index in the lower half: like a stable sort, which would take memory, and words sort
    // faster than indices whose lengths are looked up.
    let key = |(&length, index): (_, u64)| u64::from(pool.padded(length)) << 32 | index;
    let mut keys = memory::with_room(lengths.len());
    keys.extend(lengths.iter().zip(0..).map(key));
    keys.sort_unstable();
    let arranged: Vec<u32> = memory::collected(keys.into_iter().map(|key| key as u32));
    let mut cut = by_length(lengths, &arranged, limits, pool);
    let left = keeps.map_or_else(Vec::new, |keeps| leave_rest(lengths, &arranged, &mut cut, limits, pool, keeps));
    let mut delivered = memory::with_room(cut.len());
    delivered.extend(cut.into_iter().filter(|cut| cut.is_full || !limits.only_full).map(|cut| cut.range));
    Ok(Batches { left, ..in_random_order(&arranged, &delivered, &[], seed, pause)? })
}

/// A minibatch of a pool that is arranged by length.
struct Cut {
    range: Range<usize>,
    /// False for the remainder of the pool or of a bucket.
    is_full: bool,
}

/// Cut a pool before a limit would be exceeded, and where a bucket ends.
fn by_length(lengths: &[u32], arranged: &[u32], limits: Limits, pool: &Pool) -> Vec<Cut> {
    // Without buckets, no sequence is above all of them.
    let above_all = pool.buckets.last().copied().unwrap_or(u32::MAX);
    let full = Limits { only_full: true, ..limits };
    let (mut cut, mut begin, mut tally, mut bucket) = (Vec::new(), 0, Tally::new(full), 0);
    for (at, &index) in arranged.iter().enumerate() {
        let length = lengths[index as usize];
        let padded = pool.padded(length);
        // Sequences above all buckets are not padded to a common length, so each is a minibatch of its own.
        let ends_bucket = !pool.buckets.is_empty() && (padded != bucket || padded > above_all);
        if at > 0 && (ends_bucket || !tally.fits(length, padded)) {
            // A minibatch that a limit closed is full. One that its bucket closed may be the remainder of the bucket.
            let is_full = !ends_bucket || bucket > above_all || tally.is_delivered_last();
            memory::push(&mut cut, Cut { range: begin..at, is_full });
            (begin, tally) = (at, Tally::new(full));
        }
        tally.take(length, padded);
        bucket = padded;
    }
    if begin < arranged.len() {
        // A sequence above all buckets is alone in any case, so it is not a remainder.
        let is_full = bucket > above_all || tally.is_delivered_last();
        memory::push(&mut cut, Cut { range: begin..arranged.len(), is_full });
    }
    cut
}

/// Remove the minibatches that waste the most, and return their sequences: at most half of the pool.
///
/// A minibatch wastes cells if another sequence as long as its longest would fit in place of padding and empty cells.
fn leave_rest(
    lengths: &[u32],
    arranged: &[u32],
    cut: &mut Vec<Cut>,
    limits: Limits,
    pool: &Pool,
    keeps: u32,
) -> Vec<u32> {
    let empty = |range: &Range<usize>| {
        let indices = &arranged[range.clone()];
        let (mut samples, mut area, mut longest) = (0_u64, 0_u64, 0);
        for &index in indices {
            let padded = limits.weight(pool.padded(lengths[index as usize]));
            samples = samples.saturating_add(limits.weight(lengths[index as usize]));
            (area, longest) = (area.saturating_add(padded), padded.max(longest));
        }
        let fits = (indices.len() as u64) < limits.sequences
            && samples.saturating_add(longest) <= limits.samples
            && area.saturating_add(longest) <= limits.padded;
        (fits && indices.iter().all(|&index| index >= keeps)).then(|| limits.padded - area)
    };
    let mut by_waste: Vec<(Reverse<u64>, usize)> = Vec::new();
    for (number, cut) in cut.iter().enumerate() {
        if let Some(waste) = empty(&cut.range) {
            memory::push(&mut by_waste, (Reverse(waste), number));
        }
    }
    by_waste.sort_unstable();
    let (mut left, mut room) = (Vec::new(), arranged.len() / 2);
    for (_, number) in by_waste {
        let range = cut[number].range.clone();
        if range.len() <= room {
            room -= range.len();
            memory::reserve(&mut left, range.len());
            left.extend_from_slice(&arranged[range]);
            cut[number].range = 0..0;
        }
    }
    cut.retain(|cut| !cut.range.is_empty());
    left.sort_unstable();
    left
}

/// Remove the emptiest rows, so that whole minibatches of rows remain. Returns what remains, and the removed sequences.
fn without_rest(
    lengths: &[u32],
    arranged: &[u32],
    rows: Vec<Range<usize>>,
    of_minibatch: usize,
    keeps: u32,
) -> (Vec<u32>, Vec<Range<usize>>, Vec<u32>) {
    let num_left = rows.len() % of_minibatch;
    let mut by_samples: Vec<(u64, usize)> = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let indices = &arranged[row.clone()];
        if indices.iter().all(|&index| index >= keeps) {
            let samples = indices.iter().map(|&index| u64::from(lengths[index as usize])).sum();
            memory::push(&mut by_samples, (samples, number));
        }
    }
    // A part of them would leave a minibatch with still fewer rows.
    if by_samples.len() < num_left {
        by_samples.clear();
    }
    by_samples.sort_unstable();
    by_samples.truncate(num_left);
    let mut is_left = Vec::new();
    memory::resize(&mut is_left, rows.len(), false);
    by_samples.iter().for_each(|&(_, number)| is_left[number] = true);
    let (mut kept, mut kept_rows, mut left) =
        (memory::with_room(arranged.len()), memory::with_room(rows.len()), vec![]);
    for (row, is_left) in rows.into_iter().zip(is_left) {
        let begin = kept.len();
        let to = if is_left { &mut left } else { &mut kept };
        memory::reserve(to, row.len());
        to.extend_from_slice(&arranged[row]);
        if !is_left {
            kept_rows.push(begin..kept.len());
        }
    }
    left.sort_unstable();
    (kept, kept_rows, left)
}

/// The first sequence of each minibatch of consecutive sequences and, last, the number of sequences in them. With
/// `only_full`, the last sequences can be left out.
#[must_use]
pub fn cut(lengths: &[u32], limits: Limits) -> Vec<usize> {
    let (mut bounds, mut tally) = (vec![0], Tally::new(limits));
    for (at, &length) in lengths.iter().enumerate() {
        if !tally.fits(length, length) {
            memory::push(&mut bounds, at);
            tally = Tally::new(limits);
        }
        tally.take(length, length);
    }
    if !lengths.is_empty() && tally.is_delivered_last() {
        memory::push(&mut bounds, lengths.len());
    }
    bounds
}

fn in_random_order(
    arranged: &[u32],
    minibatches: &[Range<usize>],
    rows: &[u32],
    seed: u64,
    pause: &mut Pause,
) -> Result<Batches, Stopped> {
    let mut found = Batches { bounds: vec![0], ..Batches::default() };
    memory::reserve(&mut found.order, arranged.len());
    memory::reserve(&mut found.rows, rows.len());
    // The minibatches of a pool come from short to long, so they are delivered in another order.
    for number in shuffled(minibatches.len() as u32, seed, pause)? {
        let sequences = minibatches[number as usize].clone();
        found.order.extend_from_slice(&arranged[sequences.clone()]);
        if !rows.is_empty() {
            found.rows.extend_from_slice(&rows[sequences]);
        }
        memory::push(&mut found.bounds, found.order.len());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limits(samples: u64, sequences: u64, padded: u64, quadratic: u64) -> Limits {
        Limits { samples, sequences, padded, quadratic, longest: u32::MAX, only_full: false }
    }

    #[test]
    fn a_sequence_counts_quadratically_if_asked() {
        assert_eq!(limits(1, 1, 1, 0).weight(10), 10);
        assert_eq!(limits(1, 1, 1, 20).weight(10), 15);
        assert_eq!(limits(1, 1, 1, 1).weight(u32::MAX), u64::from(u32::MAX) * (u64::from(u32::MAX) + 1));
    }

    proptest! {
        #[test]
        fn batches_keep_their_limits_and_hold_every_sequence_once(
            lengths in prop::collection::vec(1u32..20, 0..60),
            (samples, sequences, padded) in (20u64..60, 1u64..9, 20u64..60),
            buckets in prop::collection::btree_set(1u32..20, 0..4),
            seed: u64,
        ) {
            let buckets = buckets.into_iter().collect();
            let pool = Pool { size: 1, counts_sequences: true, rows: 0, row_length: 0, buckets, balance: None, carries: false };
            let limits = limits(samples, sequences, padded, 0);
            let Batches { order, bounds, .. } =
                batches(&lengths, limits, &pool, None, seed, &mut || true).expect("nothing stops it");
            let mut all = order.clone();
            all.sort_unstable();
            prop_assert_eq!(all, (0..lengths.len() as u32).collect::<Vec<_>>());
            for bound in bounds.windows(2) {
                let batch: Vec<u32> = order[bound[0]..bound[1]].iter().map(|&index| lengths[index as usize]).collect();
                let longest = pool.padded(batch.iter().copied().max().expect("no batch is empty"));
                prop_assert!(batch.iter().map(|&length| u64::from(length)).sum::<u64>() <= samples);
                prop_assert!(batch.len() as u64 <= sequences);
                prop_assert!(u64::from(longest) * batch.len() as u64 <= padded);
                if !pool.buckets.is_empty() {
                    prop_assert!(batch.iter().all(|&length| pool.padded(length) == longest));
                }
            }
        }
    }
}
