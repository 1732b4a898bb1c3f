//! Dealing: the sequences of global minibatches are shared out among ranks. (docs/timeline.md, "Global partitions")
//!
//! Every rank deals the same minibatches in the same way, and keeps its own share.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

/// The load of a rank that is kept even.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// The sum of the lengths.
    Samples,
    /// The number of sequences times the length of the longest: what padding makes of them.
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

/// Order sequences by length, the longest first; equal lengths stay in their order.
fn longest_first(lengths: &[u32], range: Range<usize>, ordered: &mut Vec<(u32, u32)>, counts: &mut Vec<u32>) {
    ordered.clear();
    let longest = lengths[range.clone()].iter().copied().max().unwrap_or(0);
    if longest as usize > 4 * range.len() {
        ordered.extend(range.map(|at| (lengths[at], at as u32)));
        ordered.sort_by_key(|&(length, _)| Reverse(length));
        return;
    }
    // Count the sequences of each length: faster than comparing them.
    counts.clear();
    counts.resize(longest as usize + 2, 0);
    lengths[range.clone()].iter().for_each(|&length| counts[(longest - length) as usize + 1] += 1);
    let mut before = 0;
    counts.iter_mut().for_each(|count| {
        before += *count;
        *count = before;
    });
    ordered.resize(range.len(), (0, 0));
    for at in range {
        let place = &mut counts[(longest - lengths[at]) as usize];
        ordered[*place as usize] = (lengths[at], at as u32);
        *place += 1;
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
        return ((0..lengths.len() as u32).collect(), bounds.to_vec());
    }
    if load == Load::Samples {
        return deal_samples(lengths, bounds, num_ranks, rank);
    }
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let largest_load = u128::from(longest) * (lengths.len() as u128 + 1);
    let fits = num_ranks >> u64::RANK_BITS == 0 && largest_load >> u64::LOAD_BITS == 0;
    let deal = if fits { deal_with::<u64> } else { deal_with::<u128> };
    deal(lengths, bounds, num_ranks, rank, load)
}

/// [`deal`] by samples.
///
/// The ranks are kept in the order of their loads. A sequence goes to the first of them, which then takes its new place.
/// If that is the last place, then so it is for all sequences of the same length: they are dealt in turn at once.
fn deal_samples(lengths: &[u32], bounds: &[usize], num_ranks: u64, rank: u64) -> (Vec<u32>, Vec<usize>) {
    let mut kept: Vec<u32> = Vec::new();
    let mut kept_bounds = vec![0];
    let (mut ordered, mut counts) = (Vec::new(), Vec::new());
    let mut ranks: VecDeque<(u64, u64)> = VecDeque::new(); // load and rank, the least first
    for minibatch in bounds.windows(2) {
        let begin = kept.len();
        longest_first(lengths, minibatch[0]..minibatch[1], &mut ordered, &mut counts);
        ranks.clear();
        ranks.extend((0..num_ranks.min(ordered.len() as u64)).map(|rank| (0, rank)));
        for run in ordered.chunk_by(|one, next| one.0 == next.0) {
            let (length, mut rest) = (u64::from(run[0].0), run);
            while let (Some((&(_, at), others)), Some(&(load, first))) = (rest.split_first(), ranks.front()) {
                let place = (load + length, first);
                if ranks.back().is_some_and(|&last| place >= last) {
                    let place_of_rank = ranks.iter().position(|&(_, other)| other == rank);
                    let turns = |place: usize| rest.iter().skip(place).step_by(ranks.len()).map(|&(_, at)| at);
                    kept.extend(place_of_rank.into_iter().flat_map(turns));
                    let (rounds, more) = (rest.len() / ranks.len(), rest.len() % ranks.len());
                    for (place, (load, _)) in ranks.iter_mut().enumerate() {
                        *load += length * (rounds + usize::from(place < more)) as u64;
                    }
                    ranks.rotate_left(more);
                    break;
                }
                ranks.pop_front();
                ranks.insert(ranks.partition_point(|&other| other < place), place);
                if first == rank {
                    kept.push(at);
                }
                rest = others;
            }
        }
        kept[begin..].sort_unstable();
        kept_bounds.push(kept.len());
    }
    (kept, kept_bounds)
}

/// [`deal`] by any load.
fn deal_with<C: Candidate>(
    lengths: &[u32],
    bounds: &[usize],
    num_ranks: u64,
    rank: u64,
    load: Load,
) -> (Vec<u32>, Vec<usize>) {
    let mut kept: Vec<u32> = Vec::new();
    let mut kept_bounds = vec![0];
    let (mut ordered, mut counts) = (Vec::new(), Vec::new());
    let mut areas: Vec<(u64, u64)> = Vec::new(); // number of sequences and longest sequence of each rank
    let mut candidates = BinaryHeap::new();
    for minibatch in bounds.windows(2) {
        let begin = kept.len();
        longest_first(lengths, minibatch[0]..minibatch[1], &mut ordered, &mut counts);
        // The first sequences go to the ranks in turn, because ranks without a sequence have no load.
        let num_first = ordered.len().min(usize::try_from(num_ranks).unwrap_or(usize::MAX));
        let (first, rest) = ordered.split_at(num_first);
        kept.extend(first.get(usize::try_from(rank).unwrap_or(usize::MAX)).map(|&(_, at)| at));
        candidates.clear();
        areas.clear();
        if !rest.is_empty() {
            candidates.extend(first.iter().zip(0..).map(|(&(length, _), rank)| match load {
                Load::Samples => Reverse(C::new(length.into(), rank)),
                Load::PaddedArea => Reverse(C::new(2 * u64::from(length), rank)),
            }));
            areas.extend(first.iter().map(|&(length, _)| (1, u64::from(length))));
        }
        for &(length, at) in rest {
            let Some(mut top) = candidates.peek_mut() else { break };
            let least = top.0;
            if least.rank() == rank {
                kept.push(at);
            }
            let load = match load {
                Load::Samples => least.load() + u64::from(length),
                Load::PaddedArea => {
                    let (num_sequences, longest) = &mut areas[least.rank() as usize];
                    *num_sequences += 1;
                    (*num_sequences + 1) * *longest
                }
            };
            *top = Reverse(C::new(load, least.rank()));
        }
        kept[begin..].sort_unstable();
        kept_bounds.push(kept.len());
    }
    (kept, kept_bounds)
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
    fn equal_lengths_stay_in_their_order_whether_they_are_counted_or_compared() {
        for most in [3, 1000] {
            let lengths: Vec<u32> = (0..40).map(|at| 1 + at * at * 17 % most).collect();
            let mut expected: Vec<(u32, u32)> = (5..40).map(|at| (lengths[at as usize], at)).collect();
            expected.sort_by_key(|&(length, _)| Reverse(length));
            let mut ordered = vec![(7, 7)];
            longest_first(&lengths, 5..40, &mut ordered, &mut vec![9; 3]);
            assert_eq!(ordered, expected);
        }
    }

    #[test]
    fn large_loads_are_dealt_as_small_ones() {
        let lengths: Vec<u32> = (0..50).map(|at| 1 + at * 7 % 11).collect();
        for load in [Load::Samples, Load::PaddedArea] {
            let (small, large) = (deal_with::<u64>, deal_with::<u128>);
            assert_eq!(small(&lengths, &[0, 30, 50], 3, 1, load), large(&lengths, &[0, 30, 50], 3, 1, load));
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

    proptest! {
        #[test]
        fn samples_are_dealt_as_any_load_is(
            lengths in prop::collection::vec(prop_oneof![1u32..4, 1u32..40, 1u32..100_000], 0..200),
            cut in 0usize..200,
            num_ranks in 2u64..20,
            rank in 0u64..20,
        ) {
            let bounds = [0, cut.min(lengths.len()), lengths.len()];
            let general = deal_with::<u128>(&lengths, &bounds, num_ranks, rank, Load::Samples);
            prop_assert_eq!(deal_samples(&lengths, &bounds, num_ranks, rank), general);
        }
    }
}
