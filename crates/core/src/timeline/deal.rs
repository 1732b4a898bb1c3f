//! Dealing: the division of the sequences of global minibatches among ranks. (docs/timeline.md, "Global partitions")
//!
//! Every rank deals the same minibatches in the same way, and keeps its own share.

use super::batches::cells_in_rows;
use crate::memory;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The load that is kept even among the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// The sum of the lengths.
    Samples,
    /// The padded area: the number of sequences times the length of the longest.
    PaddedArea,
}

/// A rank and its load in one number, which orders the ranks: by load, then by rank.
trait Candidate: Ord + Copy {
    /// Ranks and loads below `2 ^ RANK_BITS` and `2 ^ LOAD_BITS` fit.
    const RANK_BITS: u32;
    const LOAD_BITS: u32;
    fn new(load: u64, rank: u64) -> Self;
    fn load(self) -> u64;
    fn rank(self) -> u64;
}

impl Candidate for u64 {
    const RANK_BITS: u32 = 20;
    const LOAD_BITS: u32 = 44;
    #[inline]
    fn new(load: u64, rank: u64) -> u64 {
        load << Self::RANK_BITS | rank
    }
    #[inline]
    fn load(self) -> u64 {
        self >> Self::RANK_BITS
    }
    #[inline]
    fn rank(self) -> u64 {
        self & ((1 << Self::RANK_BITS) - 1)
    }
}

impl Candidate for u128 {
    const RANK_BITS: u32 = 64;
    const LOAD_BITS: u32 = 64;
    #[inline]
    fn new(load: u64, rank: u64) -> u128 {
        u128::from(load) << Self::RANK_BITS | u128::from(rank)
    }
    #[inline]
    fn load(self) -> u64 {
        (self >> Self::RANK_BITS) as u64
    }
    #[inline]
    fn rank(self) -> u64 {
        self as u64
    }
}

/// The sequences of a minibatch by length, and the sequences of each length that a rank gets.
#[derive(Default)]
struct Classes {
    /// Each length that occurs and the number of its sequences, the longest first.
    lengths: Vec<(u32, u32)>,
    /// For each of these lengths, the sequences that the rank gets; sequences of the same length are numbered from 0.
    turns: Vec<u32>,
    /// The end of each length's part of `turns`.
    ends: Vec<usize>,
    /// By length, if lengths are short: the number of its sequences, then its place in `lengths`.
    by_length: Vec<u32>,
    sorted: Vec<u32>,
    /// For each length the next of its turns, and the sequences before that turn.
    next_turns: Vec<(usize, u32)>,
}

impl Classes {
    /// Find the lengths of a minibatch.
    fn count(&mut self, minibatch: &[u32]) {
        self.lengths.clear();
        self.turns.clear();
        self.ends.clear();
        self.by_length.clear();
        let longest = minibatch.iter().copied().max().unwrap_or(0);
        if minibatch.iter().all(|&length| length == longest) {
            self.lengths.extend((!minibatch.is_empty()).then_some((longest, minibatch.len() as u32)));
        } else if longest as usize > 4 * minibatch.len() {
            self.sorted.clear();
            memory::append(&mut self.sorted, minibatch);
            self.sorted.sort_unstable_by_key(|&length| Reverse(length));
            for run in self.sorted.chunk_by(|one, next| one == next) {
                memory::push(&mut self.lengths, (run[0], run.len() as u32));
            }
        } else {
            // Count the sequences of each length: faster than comparing them.
            memory::resize(&mut self.by_length, longest as usize + 1, 0);
            minibatch.iter().for_each(|&length| self.by_length[length as usize] += 1);
            for (length, count) in self.by_length.iter_mut().enumerate().rev().filter(|(_, count)| **count > 0) {
                memory::push(&mut self.lengths, (length as u32, *count));
                *count = self.lengths.len() as u32 - 1;
            }
        }
    }

    /// Append the sequences of the rank's turns, in their order. The first sequence of the minibatch has the number `first`.
    fn keep(&mut self, minibatch: &[u32], first: u32, kept: &mut Vec<u32>) {
        if self.lengths.len() == 1 {
            memory::extend(kept, self.turns.iter().map(|turn| first + turn));
            return;
        }
        let mut begin = 0;
        self.next_turns.clear();
        memory::reserve(&mut self.next_turns, self.ends.len());
        memory::reserve(kept, self.turns.len());
        for &end in &self.ends {
            self.next_turns.push((begin, if begin < end { self.turns[begin] } else { u32::MAX }));
            begin = end;
        }
        for (&length, number) in minibatch.iter().zip(first..) {
            let place = match self.by_length.get(length as usize) {
                Some(&place) => place as usize,
                None => self.lengths.partition_point(|&(other, _)| other > length),
            };
            let (turn, until) = &mut self.next_turns[place];
            if *until > 0 {
                *until -= 1;
                continue;
            }
            kept.push(number);
            let this = self.turns[*turn];
            *turn += 1;
            *until = if *turn < self.ends[place] { self.turns[*turn] - this - 1 } else { u32::MAX };
        }
    }
}

/// The share of one of `num_ranks` ranks of several minibatches: the kept sequences, counted in `lengths`, and the
/// index of the first kept sequence of each minibatch and, last, their number.
///
/// `bounds` has the first sequence of each minibatch and, last, the number of sequences. Within a minibatch, the longest
/// sequence goes to the rank with the least load, then the next longest. Among equal lengths the first sequence comes
/// first, among equal loads the lowest rank. So each rank gets a sequence if there are enough. Kept sequences stay in
/// their order.
#[must_use]
pub fn deal(lengths: &[u32], bounds: &[usize], num_ranks: u64, rank: u64, load: Load) -> (Vec<u32>, Vec<usize>) {
    if num_ranks == 1 {
        return (memory::collected(0..lengths.len() as u32), memory::copied(bounds));
    }
    if load == Load::Samples {
        return deal_with(lengths, bounds, take_turns_by_samples(num_ranks, rank));
    }
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let largest_load = u128::from(longest) * (lengths.len() as u128 + 1);
    if num_ranks >> u64::RANK_BITS == 0 && largest_load >> u64::LOAD_BITS == 0 {
        deal_with(lengths, bounds, take_turns::<u64>(num_ranks, rank, load))
    } else {
        deal_with(lengths, bounds, take_turns::<u128>(num_ranks, rank, load))
    }
}

/// The share of one of `num_ranks` ranks of minibatches that fill rows; the result is that of [`deal`].
///
/// The ranks take the rows of a minibatch in turn, so a rank gets at most its part of the rows, rounded up. The first
/// sequence of a row fits in none of the rows before, so the kept sequences fill the same rows again.
#[must_use]
pub fn deal_rows(
    lengths: &[u32],
    bounds: &[usize],
    row_length: u32,
    num_ranks: u64,
    rank: u64,
) -> (Vec<u32>, Vec<usize>) {
    let (mut kept, mut kept_bounds) = (Vec::new(), vec![0]);
    for bounds in bounds.windows(2) {
        let cells = cells_in_rows(&lengths[bounds[0]..bounds[1]], row_length);
        let rows = cells.iter().map(|&cell| cell as u64 / u64::from(row_length.max(1)));
        let numbers = (bounds[0] as u32..).zip(rows);
        for (number, _) in numbers.filter(|(_, row)| row % num_ranks == rank) {
            memory::push(&mut kept, number);
        }
        memory::push(&mut kept_bounds, kept.len());
    }
    (kept, kept_bounds)
}

/// [`deal`] with a function that finds the turns of the rank.
fn deal_with(lengths: &[u32], bounds: &[usize], mut take_turns: impl FnMut(&mut Classes)) -> (Vec<u32>, Vec<usize>) {
    let mut kept: Vec<u32> = Vec::new();
    let mut kept_bounds = vec![0];
    let mut classes = Classes::default();
    for bounds in bounds.windows(2) {
        let minibatch = &lengths[bounds[0]..bounds[1]];
        classes.count(minibatch);
        take_turns(&mut classes);
        classes.keep(minibatch, bounds[0] as u32, &mut kept);
        memory::push(&mut kept_bounds, kept.len());
    }
    (kept, kept_bounds)
}

/// Find the turns of a rank by samples.
///
/// The ranks are kept in the order of their loads. Sequences of the same length go to the first ranks, one each, which
/// then take their new places. If the first rank's new place is the last place, this is also true for all further
/// sequences of the same length, so they are dealt in turn, all at once.
fn take_turns_by_samples(num_ranks: u64, rank: u64) -> impl FnMut(&mut Classes) {
    let mut ranks: VecDeque<(u64, u64)> = VecDeque::new(); // load and rank, the least first
    let mut moved: Vec<(u64, u64)> = Vec::new();
    move |classes| {
        let num_sequences: u64 = classes.lengths.iter().map(|&(_, count)| u64::from(count)).sum();
        ranks.clear();
        let num_places = num_ranks.min(num_sequences);
        memory::require(ranks.try_reserve(2 * num_places as usize), 32 * num_places as usize);
        ranks.extend((0..num_places).map(|rank| (0, rank)));
        for &(length, count) in &classes.lengths {
            let (length, count) = (u64::from(length), count as usize);
            let mut turn = 0;
            while turn < count
                && let (Some(&(load, first)), Some(&last)) = (ranks.front(), ranks.back())
            {
                let place = (load + length, first);
                if place >= last {
                    let place_of_rank = ranks.iter().position(|&(_, other)| other == rank);
                    if let Some(place) = place_of_rank {
                        let turns = (turn + place..count).step_by(ranks.len()).map(|turn| turn as u32);
                        memory::extend(&mut classes.turns, turns);
                    }
                    let (rounds, more) = ((count - turn) / ranks.len(), (count - turn) % ranks.len());
                    for (place, (load, _)) in ranks.iter_mut().enumerate() {
                        *load += length * (rounds + usize::from(place < more)) as u64;
                    }
                    ranks.rotate_left(more);
                    break;
                }
                // A rank below this limit precedes the new place of the first rank, and its own new place precedes the
                // last place.
                let limit = place.min((last.0 - length, last.1));
                let are_next = ranks.iter().take(count - turn).take_while(|&&other| other < limit);
                moved.clear();
                memory::reserve(&mut moved, ranks.len());
                moved.extend(are_next.map(|&(load, other)| (load + length, other)));
                let place_of_rank = moved.iter().position(|&(_, other)| other == rank);
                if let Some(place) = place_of_rank {
                    memory::push(&mut classes.turns, (turn + place) as u32);
                }
                turn += moved.len();
                ranks.drain(..moved.len());
                merge(&mut ranks, &moved);
            }
            memory::push(&mut classes.ends, classes.turns.len());
        }
    }
}

/// Insert places into others; both ascend.
fn merge(places: &mut VecDeque<(u64, u64)>, inserted: &[(u64, u64)]) {
    let mut unmerged = places.len();
    places.extend(inserted);
    let mut end = places.len();
    for &place in inserted.iter().rev() {
        while unmerged > 0 && places[unmerged - 1] > place {
            (unmerged, end) = (unmerged - 1, end - 1);
            places[end] = places[unmerged];
        }
        end -= 1;
        places[end] = place;
    }
}

/// Find the turns of a rank by any load.
fn take_turns<C: Candidate>(num_ranks: u64, rank: u64, load: Load) -> impl FnMut(&mut Classes) {
    let mut firsts: Vec<Reverse<C>> = Vec::new();
    let mut areas: Vec<(u64, u64)> = Vec::new(); // number of sequences and longest sequence of each rank
    let mut candidates = BinaryHeap::new();
    move |classes| {
        firsts.clear();
        candidates.clear();
        areas.clear();
        for &(length, count) in &classes.lengths {
            for turn in 0..count {
                let number = areas.len() as u64;
                // The first sequences go to the ranks in turn, because ranks without a sequence have no load.
                let owner = if number < num_ranks {
                    let load = match load {
                        Load::Samples => u64::from(length),
                        Load::PaddedArea => 2 * u64::from(length),
                    };
                    memory::push(&mut firsts, Reverse(C::new(load, number)));
                    memory::push(&mut areas, (1, length.into()));
                    number
                } else {
                    memory::require(candidates.try_reserve(firsts.len()), size_of_val(&firsts[..]));
                    candidates.extend(firsts.drain(..));
                    let Some(mut top) = candidates.peek_mut() else { break };
                    let least = top.0;
                    let load = match load {
                        Load::Samples => least.load() + u64::from(length),
                        Load::PaddedArea => {
                            let (num_sequences, longest) = &mut areas[least.rank() as usize];
                            *num_sequences += 1;
                            (*num_sequences + 1) * *longest
                        }
                    };
                    *top = Reverse(C::new(load, least.rank()));
                    least.rank()
                };
                if owner == rank {
                    memory::push(&mut classes.turns, turn);
                }
            }
            memory::push(&mut classes.ends, classes.turns.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shares(lengths: &[u32], bounds: &[usize], num_ranks: u64, load: Load) -> Vec<(Vec<u32>, Vec<usize>)> {
        (0..num_ranks).map(|rank| deal(lengths, bounds, num_ranks, rank, load)).collect()
    }

    #[test]
    fn the_longest_goes_to_the_rank_with_the_least_load() {
        let shares = shares(&[3, 9, 1, 4, 4, 2], &[0, 6], 2, Load::Samples);
        // 9 | 4 ; 9 | 4 4 ; 9 | 4 4 3 ; 9 2 | 4 4 3 ; then 11 each, so the lowest rank takes the last.
        assert_eq!(shares, [(vec![1, 2, 5], vec![0, 3]), (vec![0, 3, 4], vec![0, 3])]);
    }

    #[test]
    fn turns_are_found_whether_lengths_are_counted_or_compared() {
        for (most, is_counted) in [(3, true), (1000, false)] {
            let lengths: Vec<u32> = (0..40).map(|at| 1 + at * at * 17 % most).collect();
            let mut expected: Vec<u32> = Vec::new();
            let mut classes = Classes::default();
            classes.count(&lengths);
            assert_eq!(classes.by_length.is_empty(), !is_counted);
            assert!(classes.lengths.is_sorted_by(|one, next| one.0 > next.0));
            for &(length, count) in &classes.lengths {
                let of_length: Vec<u32> = (0..40).filter(|&at| lengths[at as usize] == length).collect();
                assert_eq!(of_length.len(), count as usize);
                let turns: Vec<u32> = (0..count).filter(|turn| turn % 3 == length % 3).collect();
                expected.extend(turns.iter().map(|&turn| 5 + of_length[turn as usize]));
                classes.turns.extend(turns);
                memory::push(&mut classes.ends, classes.turns.len());
            }
            expected.sort_unstable();
            let mut kept = Vec::new();
            classes.keep(&lengths, 5, &mut kept);
            assert_eq!(kept, expected);
        }
    }

    #[test]
    fn large_loads_are_dealt_as_small_ones() {
        let lengths: Vec<u32> = (0..50).map(|at| 1 + at * 7 % 11).collect();
        for load in [Load::Samples, Load::PaddedArea] {
            let small = deal_with(&lengths, &[0, 30, 50], take_turns::<u64>(3, 1, load));
            assert_eq!(small, deal_with(&lengths, &[0, 30, 50], take_turns::<u128>(3, 1, load)));
        }
    }

    #[test]
    fn equal_lengths_are_dealt_in_turn() {
        // A longer sequence goes first, and takes its rank out of the first turn.
        for load in [Load::Samples, Load::PaddedArea] {
            let equal = shares(&[4; 11], &[0, 11], 3, load);
            assert_eq!(equal[1].0, [1, 4, 7, 10]);
            let mut lengths = vec![4; 12];
            lengths[0] = 5;
            let other = shares(&lengths, &[0, 12], 3, load);
            assert_eq!(other[1].0, [1, 3, 6, 9]);
            assert_eq!(other[2].0, [2, 4, 7, 10]);
        }
    }

    #[test]
    fn padded_areas_are_kept_even() {
        let lengths = [10, 10, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
        let shares = shares(&lengths, &[0, 12], 3, Load::PaddedArea);
        assert_eq!(shares[0].0, [0]);
        assert_eq!(shares[1].0, [1]);
        assert_eq!(shares[2].0, (2..12).collect::<Vec<u32>>());
    }

    #[test]
    fn ranks_share_each_minibatch_and_some_get_nothing_of_a_small_one() {
        let lengths: Vec<u32> = (0..50).map(|at| 1 + at * 7 % 11).collect();
        let bounds = [0, 2, 2, 30, 50];
        for load in [Load::Samples, Load::PaddedArea] {
            let shares = shares(&lengths, &bounds, 4, load);
            for (minibatch, whole) in bounds.windows(2).enumerate() {
                let mut all: Vec<u32> = Vec::new();
                for (kept, kept_bounds) in &shares {
                    let own = &kept[kept_bounds[minibatch]..kept_bounds[minibatch + 1]];
                    assert!(own.is_sorted());
                    assert!(whole[1] - whole[0] < 4 || !own.is_empty());
                    all.extend(own);
                }
                all.sort_unstable();
                assert_eq!(all, (whole[0] as u32..whole[1] as u32).collect::<Vec<u32>>());
            }
        }
    }

    #[test]
    fn rows_are_dealt_in_turn() {
        // Rows of 6: 5 | 4 2 | 3 3 | 1; then 6.
        let lengths = [5, 4, 2, 3, 3, 1, 6];
        let shares: Vec<_> = (0..2).map(|rank| deal_rows(&lengths, &[0, 6, 7], 6, 2, rank)).collect();
        assert_eq!(shares, [(vec![0, 3, 4, 6], vec![0, 3, 4]), (vec![1, 2, 5], vec![0, 3, 3])]);
    }

    proptest! {
        #[test]
        fn samples_are_dealt_as_any_load_is(
            lengths in prop::collection::vec(prop_oneof![1u32..4, 1u32..40, 1u32..100_000], 0..200),
            cut in 0usize..200,
            num_ranks in 2u64..20,
            rank in 0u64..20,
        ) {
            let bounds = [0, cut.min(lengths.len()), lengths.len()];
            let general = deal_with(&lengths, &bounds, take_turns::<u128>(num_ranks, rank, Load::Samples));
            prop_assert_eq!(deal(&lengths, &bounds, num_ranks, rank, Load::Samples), general);
        }
    }
}
