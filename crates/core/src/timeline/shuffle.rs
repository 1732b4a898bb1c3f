//! Shuffles: the order of a sweep's sequences, computed step by step, and two orders that are computed at once.

use super::generator::{MersenneTwister, Remainder};
use super::plan::{Span, SweepPlan};
use super::trace::{MOST_TRACED, traced};
use super::{Pause, SEQUENCES_BETWEEN_PAUSES, Stopped, Table};
use crate::memory;
use cntkio_memory::huge_pages::advise_for;
use cntkio_simd::prefetch;
use std::sync::Arc;

/// The numbers below `count`, shuffled as CNTK shuffles a window of sequences of a user-defined deserializer.
///
/// Unlike [`chunk_order`](super::chunk_order) this is a Fisher-Yates shuffle.
///
/// # Errors
/// `pause` asked the work to stop.
pub fn shuffled(count: u32, seed: u64, pause: &mut Pause) -> Result<Vec<u32>, Stopped> {
    let mut generator = MersenneTwister::new(seed);
    let mut order: Vec<u32> = memory::collected(0..count);
    for at in 0..count {
        if at % SEQUENCES_BETWEEN_PAUSES == SEQUENCES_BETWEEN_PAUSES - 1 && !pause() {
            return Err(Stopped);
        }
        // The plain remainder, without rejection of high numbers, is CNTK's draw. (docs/timeline.md, "Generator")
        let step = generator.draw() % u64::from(count - at);
        order.swap(at as usize, at as usize + step as usize);
    }
    Ok(order)
}

/// The order of sequences of one sweep: computed on request, and forgotten once the reader has passed.
///
/// ```text
/// positions   0 ········ base ━━━━━━━━ shuffled ───────── base + homes.len() ········ number of sequences
///             forgotten       final or nearly    may change    no window has come here yet
/// ```
pub(super) struct SweepOrder {
    pub(super) plan: Arc<SweepPlan>,
    generator: MersenneTwister,
    /// The homes of the sequences at the positions from `base` on, up to the end of the last window that was reached.
    homes: Vec<u32>,
    base: u32,
    /// The shuffle is done for all positions below `shuffled`: all positions of the ranks below `shuffled_ranks`, and
    /// some positions of that rank.
    shuffled: u32,
    shuffled_ranks: u32,
    /// The sequences at some final positions, all of one rank, from `first_located` on.
    located: Vec<Located>,
    first_located: u32,
    pub(super) rank_of_located: u32,
    /// The homes at some positions from the first number on, which were found without the shuffle.
    known: Option<(u32, Vec<u32>)>,
}

/// A sequence that was looked up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Located {
    /// Its number in file order.
    pub(super) sequence: u32,
    /// The rank of its chunk.
    pub(super) rank: u32,
    /// Its samples.
    pub(super) length: u32,
}

/// Sequences that are looked up at once. In random order they are in no cache, and the processor waits for all of them
/// together.
const MOST_LOCATED: u32 = 64;
/// Numbers that are drawn before the sequences at these positions are exchanged.
const DRAWN_AT_ONCE: usize = 32;
/// Distance, in draws, of the sequences that are prefetched because a later draw may choose them.
const DRAWN_AHEAD: usize = 24;
/// Windows of at most this number of sequences stay in the caches, where prefetching costs more than it saves.
const MOST_IN_CACHE: u32 = 1 << 20;

impl SweepOrder {
    pub(super) fn new(plan: Arc<SweepPlan>) -> Self {
        let generator = MersenneTwister::new(plan.seed);
        Self {
            plan,
            generator,
            homes: Vec::new(),
            base: 0,
            shuffled: 0,
            shuffled_ranks: 0,
            located: Vec::new(),
            first_located: 0,
            rank_of_located: 0,
            known: None,
        }
    }

    /// Find the sequences at some positions from `position` on without a shuffle, if one window spans the sweep and the
    /// shuffle has not begun. It takes a fifth of the time of a shuffle, which is lost if more positions follow.
    pub(super) fn trace(&mut self, position: u32, pause: &mut Pause) -> Result<(), Stopped> {
        let count = self.plan.num_sequences();
        let is_shuffle = self.plan.is_one_window && self.plan.key.is_none();
        if is_shuffle && self.shuffled == 0 && count > MOST_IN_CACHE && position < count {
            let places = position..count.min(position.saturating_add(MOST_TRACED));
            self.known = Some((position, traced(count, self.plan.seed, places, pause)?));
        }
        Ok(())
    }

    /// The located sequences from a position on; none if the sequence there is not located.
    #[inline]
    pub(super) fn located_from(&self, position: u32) -> &[Located] {
        // A position before the first located sequence wraps to a number beyond the end, so one look-up checks both
        // ends.
        self.located.get(position.wrapping_sub(self.first_located) as usize..).unwrap_or(&[])
    }

    /// Locate some sequences from `position` on, which belongs to `rank`, and return their number.
    pub(super) fn locate(
        &mut self,
        table: Table,
        is_of_single_samples: bool,
        rank: u32,
        position: u32,
        pause: &mut Pause,
    ) -> Result<usize, Stopped> {
        // The located sequences end with the rank, because they all share `rank_of_located`.
        let end = self.plan.starts[rank as usize + 1].min(position.saturating_add(MOST_LOCATED));
        let is_known = |known: &(u32, Vec<u32>)| (position.wrapping_sub(known.0) as usize) < known.1.len();
        if let Some((first, order)) = self.plan.permutation(rank) {
            let homes = (position..end).map(|at| first + order.of(u64::from(at - first)) as u32);
            self.known = Some((position, homes.collect()));
        } else if !self.known.as_ref().is_some_and(is_known) {
            self.known = None;
            // Sequences still move at positions that are not final, so the shuffle comes before any look-up.
            self.prepare(rank, position, pause)?;
        }
        let plan = &*self.plan;
        let (first, homes) = self.known.as_ref().map_or((self.base, &self.homes), |(first, homes)| (*first, homes));
        let homes = &homes[(position - first) as usize..homes.len().min((end - first) as usize)];
        self.located.clear();
        self.located.extend(homes.iter().map(|&home| {
            let rank = plan.rank_of(home);
            let sequence = plan.sequence(table, rank, home);
            // All prefetches are under way before the loop below reads the first length.
            table.lengths.prefetch(sequence);
            Located { sequence: sequence as u32, rank, length: 1 }
        }));
        if !is_of_single_samples {
            self.located.iter_mut().for_each(|located| located.length = table.lengths.get(located.sequence as usize));
        }
        (self.first_located, self.rank_of_located) = (position, rank);
        Ok(self.located.len())
    }

    /// Make sure that the sequence at `position`, which belongs to `rank`, is known and final.
    fn prepare(&mut self, rank: u32, position: u32, pause: &mut Pause) -> Result<(), Stopped> {
        // The shuffle cannot be undone: only a new run from the start of the sweep gives a forgotten order again.
        if position < self.base {
            self.start_again(rank, position, pause)?;
        }
        let until = self.plan.final_after(rank);
        if self.shuffled < until { self.shuffle(until, pause) } else { Ok(()) }
    }

    /// Shuffle from the start of the sweep, up to a position that was forgotten.
    #[cold]
    fn start_again(&mut self, rank: u32, position: u32, pause: &mut Pause) -> Result<(), Stopped> {
        *self = Self::new(Arc::clone(&self.plan));
        // Rank by rank, so that passed positions are forgotten on the way and the homes take no more memory than in a
        // read.
        for passed in 0..rank {
            self.shuffle(self.plan.final_after(passed), pause)?;
            self.forget(position);
        }
        Ok(())
    }

    /// Continue the shuffle up to the position `until`.
    fn shuffle(&mut self, until: u32, pause: &mut Pause) -> Result<(), Stopped> {
        let plan = Arc::clone(&self.plan);
        while self.shuffled < until {
            let rank = self.shuffled_ranks as usize;
            let end = plan.starts[rank + 1].min(until);
            if self.shuffled == end {
                self.shuffled_ranks += 1;
                continue;
            }
            let window = plan.windows[rank];
            let window = Span { from: plan.starts[window.from as usize], to: plan.starts[window.to as usize] };
            self.reach_end_of(window);
            let step_end = end.min(self.shuffled.saturating_add(SEQUENCES_BETWEEN_PAUSES));
            if plan.is_one_window {
                self.exchange_in_one_window(window, step_end);
            } else {
                self.exchange(&plan, window, step_end);
            }
            let paused = self.shuffled / SEQUENCES_BETWEEN_PAUSES != step_end / SEQUENCES_BETWEEN_PAUSES;
            // The position is stored before the pause, so a stopped shuffle later continues with the right draw.
            self.shuffled = step_end;
            if paused && !pause() {
                return Err(Stopped);
            }
        }
        Ok(())
    }

    /// Append the homes up to the end of a window.
    fn reach_end_of(&mut self, window: Span) {
        let known = self.base + self.homes.len() as u32;
        if known >= window.to {
            return;
        }
        let more = (window.to - known) as usize;
        // The first window is reserved exactly, so that a window over all the data takes no more memory.
        if !self.homes.is_empty() || self.homes.try_reserve_exact(more).is_err() {
            memory::reserve(&mut self.homes, more); // reports a failure
        }
        // Draws go to any place of the window, and the addresses of small pages would be looked up in memory.
        advise_for(&mut self.homes, more);
        self.homes.extend(known..window.to);
    }

    /// Exchange the homes at the positions up to `step_end`, if every position may take every sequence, so that no draw
    /// is rejected.
    fn exchange_in_one_window(&mut self, window: Span, step_end: u32) {
        // All positions of a rank draw from one window, so the division for its remainder is done once.
        let remainder = Remainder::new(u64::from(window.to - window.from));
        let (homes, base) = (&mut self.homes[..], self.base);
        // Draws do not depend on the order so far. So a step first draws and prefetches, and then exchanges.
        let mut others = [0; DRAWN_AT_ONCE];
        for first in (self.shuffled..step_end).step_by(DRAWN_AT_ONCE) {
            let here = (first - base) as usize..(step_end - base) as usize;
            let others = &mut others[..here.len().min(DRAWN_AT_ONCE)];
            for other in others.iter_mut() {
                // A single window keeps all positions until the shuffle is done, so `base` is 0 here.
                *other = remainder.of(self.generator.draw()) as usize - base as usize;
                prefetch(&homes[*other..=*other], 1);
            }
            for (t, &other) in here.zip(&*others) {
                homes.swap(t, other);
            }
        }
    }

    /// Exchange the homes at the positions up to `step_end`, all of one rank, with homes of its window.
    fn exchange(&mut self, plan: &SweepPlan, window: Span, step_end: u32) {
        let remainder = Remainder::new(u64::from(window.to - window.from));
        let (homes, base) = (&mut self.homes[..], self.base);
        let is_in_no_cache = window.to - window.from > MOST_IN_CACHE;
        for t in self.shuffled..step_end {
            let here = homes[(t - base) as usize];
            let reach = plan.reach[plan.rank_of(here) as usize];
            let other = loop {
                // This number is drawn later in any case, for this position or another. Only a new window makes the
                // prefetch useless.
                if is_in_no_cache && let Some(later) = self.generator.peek(DRAWN_AHEAD) {
                    let other = (window.from - base) as usize + remainder.of(later) as usize;
                    prefetch(&homes[other..=other], 1);
                }
                let other = window.from + remainder.of(self.generator.draw()) as u32;
                // Whether a draw is accepted cannot be predicted, so both conditions are evaluated without a branch
                // between them.
                if window.holds(homes[(other - base) as usize]) & reach.holds(other) {
                    break other;
                }
            };
            homes.swap((t - base) as usize, (other - base) as usize);
        }
    }

    /// Bytes of memory.
    pub(super) fn num_bytes(&self) -> usize {
        let known = self.known.as_ref().map_or(0, |(_, homes)| homes.capacity());
        self.plan.num_bytes() + 4 * (self.homes.capacity() + known) + size_of::<Located>() * self.located.capacity()
    }

    /// Forget the positions below `position`, as far as the shuffle does not need them.
    pub(super) fn forget(&mut self, position: u32) {
        // The window of the next rank to shuffle may still exchange earlier positions, even if the reader has passed
        // them.
        let rank = (self.shuffled_ranks as usize).min(self.plan.chunks.len() - 1);
        let shuffle_needs = if self.shuffled == self.plan.num_sequences() {
            self.shuffled
        } else {
            self.plan.starts[self.plan.windows[rank].from as usize]
        };
        let passed = position.min(shuffle_needs).saturating_sub(self.base);
        // Half of the homes at once, so that each is moved about once.
        if passed as usize > self.homes.len() / 2 {
            self.homes.drain(..passed as usize);
            self.base += passed;
        }
    }
}

/// The order of a sweep over frames with a window that moves along with the reader: the frame at each position.
///
/// A frame moves by at most half of `window`, so a reader needs only the frames around its position. Nearly every frame
/// finds another frame to change positions with; a frame that finds none in five draws stays.
pub fn rolling_order(num_frames: u32, window: u64, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = memory::collected(0..num_frames);
    let (half, count) = (window / 2, u64::from(num_frames));
    // CNTK's reader divides by zero for a window of 1. Here it keeps the order, as a window of 0 does.
    if half == 0 {
        return order;
    }
    let mut generator = MersenneTwister::new(seed);
    let is_near = |position: u64, frame: u32| {
        let frame = u64::from(frame);
        // The comparison is CNTK's: `<=` on one side and `<` on the other. (docs/formats/htk.md, "The HTKMLFReader")
        position <= frame.saturating_add(half) && frame < position.saturating_add(half)
    };
    for position in 0..count {
        let (low, high) = (position.saturating_sub(half), position.saturating_add(half).min(count));
        // CNTK gives up after five draws, so a frame may stay where it is.
        for _ in 0..5 {
            let other = low + generator.draw() % (high - low);
            let (mine, its) = (order[position as usize], order[other as usize]);
            if is_near(other, mine) && is_near(position, its) {
                order.swap(position as usize, other as usize);
                break;
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::super::{Randomization, Window};
    use super::*;
    use crate::lengths::Lengths;
    use proptest::prelude::*;

    /// The order of a sweep as docs/timeline.md defines it, all at once.
    fn slow_order(plan: &SweepPlan) -> Vec<u32> {
        let mut generator = MersenneTwister::new(plan.seed);
        let rank_of = |position: u32| plan.starts.partition_point(|&start| start <= position) - 1;
        let in_window = |position: u32, home: u32| {
            let window = plan.windows[rank_of(position)];
            (plan.starts[window.from as usize]..plan.starts[window.to as usize]).contains(&home)
        };
        let mut order: Vec<u32> = (0..plan.num_sequences()).collect();
        for position in 0..plan.num_sequences() {
            let window = plan.windows[rank_of(position)];
            let (from, to) = (plan.starts[window.from as usize], plan.starts[window.to as usize]);
            let other = loop {
                let other = from + (generator.draw() % u64::from(to - from)) as u32;
                if in_window(position, order[other as usize]) && in_window(other, order[position as usize]) {
                    break other;
                }
            };
            order.swap(position as usize, other as usize);
        }
        order
    }

    fn plan(sizes: &[usize], window: u64, seed: u64) -> Arc<SweepPlan> {
        let starts = sizes.iter().scan(0, |end, &size| {
            *end += size as i64;
            Some(*end)
        });
        let chunk_starts: Vec<i64> = [0].into_iter().chain(starts).collect();
        let table =
            Table { lengths: Lengths::Same { length: 1, count: sizes.iter().sum() }, chunk_starts: &chunk_starts };
        let samples: Vec<u64> = sizes.iter().map(|&size| size as u64).collect();
        Arc::new(SweepPlan::new(
            table,
            &samples,
            Randomization { window: Window::Chunks(window), seed, is_keyed: false },
            0,
        ))
    }

    /// The order of a sweep, rank after rank; passed ranks are forgotten.
    fn order_of(plan: &Arc<SweepPlan>) -> Vec<u32> {
        let mut order = SweepOrder::new(Arc::clone(plan));
        let mut all = Vec::new();
        for (rank, pair) in plan.starts.windows(2).enumerate() {
            order.prepare(rank as u32, pair[0], &mut || true).unwrap();
            all.extend(&order.homes[(pair[0] - order.base) as usize..(pair[1] - order.base) as usize]);
            order.forget(pair[1]);
        }
        all
    }

    #[test]
    fn traced_places_have_the_sequences_of_the_shuffle() {
        let plan = plan(&[1, 600_000, 7, 500_000, 3], 9, 11);
        let (slow, starts) = (slow_order(&plan), &plan.starts);
        for position in [0, 1, 5, 499_999, 700_003, 1_100_009, 1_100_010] {
            let mut order = SweepOrder::new(Arc::clone(&plan));
            order.trace(position, &mut || true).unwrap();
            let (first, homes) = order.known.clone().unwrap();
            assert_eq!(first, position);
            assert_eq!(homes, slow[position as usize..slow.len().min(position as usize + MOST_TRACED as usize)]);
            // Positions that are not traced are shuffled.
            order
                .prepare(starts.partition_point(|&start| start <= position) as u32 - 1, position, &mut || true)
                .unwrap();
            assert!(order.homes == slow);
        }
        let mut order = SweepOrder::new(Arc::clone(&plan));
        assert!(order.trace(5, &mut || false).is_err() && order.known.is_none());
    }

    proptest! {
        #[test]
        fn sequences_come_in_the_order_of_the_slow_shuffle(
            sizes in prop::collection::vec(1usize..200, 1..12), window in 1u64..14, seed: u64,
        ) {
            let plan = plan(&sizes, window, seed);
            prop_assert_eq!(order_of(&plan), slow_order(&plan));
        }
    }

    #[test]
    fn windows_beyond_the_cache_are_shuffled_as_the_slow_shuffle_does() {
        for (sizes, window) in [(&[400_000; 4][..], 3), (&[1, 600_000, 7, 500_000, 3], 4)] {
            let plan = plan(sizes, window, 5);
            assert!(
                plan.starts[plan.windows[2].to as usize] - plan.starts[plan.windows[2].from as usize] > MOST_IN_CACHE
            );
            assert!(order_of(&plan) == slow_order(&plan));
        }
    }
}
