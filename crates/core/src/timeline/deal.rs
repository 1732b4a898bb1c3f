//! Dealing: the sequences of global minibatches are shared out among ranks. (docs/timeline.md, "Global partitions")
//!
//! Every rank deals the same minibatches in the same way, and keeps its own share.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// The load of a rank that is kept even.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// The sum of the lengths.
    Samples,
    /// The number of sequences times the length of the longest: what padding makes of them.
    PaddedArea,
}

/// A rank and its load, which orders the ranks: its samples, or its padded area with one more sequence.
#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    load: u64,
    rank: u64,
    num_sequences: u64,
    longest: u64,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.load, self.rank).cmp(&(other.load, other.rank))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
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
    let mut kept: Vec<u32> = Vec::new();
    let mut kept_bounds = vec![0];
    let mut by_length = Vec::new();
    for minibatch in bounds.windows(2) {
        let begin = kept.len();
        by_length.clear();
        by_length.extend(minibatch[0]..minibatch[1]);
        by_length.sort_by_key(|&at| Reverse(lengths[at]));
        // The first sequences go to the ranks in turn, because ranks without a sequence have no load.
        let num_first = by_length.len().min(usize::try_from(num_ranks).unwrap_or(usize::MAX));
        let (first, rest) = by_length.split_at(num_first);
        let mut candidates = BinaryHeap::with_capacity(if rest.is_empty() { 0 } else { num_first });
        for (candidate, &at) in first.iter().enumerate() {
            let (candidate, length) = (candidate as u64, u64::from(lengths[at]));
            if candidate == rank {
                kept.push(at as u32);
            }
            if !rest.is_empty() {
                let load = match load {
                    Load::Samples => length,
                    Load::PaddedArea => 2 * length,
                };
                candidates.push(Reverse(Candidate { load, rank: candidate, num_sequences: 1, longest: length }));
            }
        }
        for &at in rest {
            let Some(mut top) = candidates.peek_mut() else { break };
            let candidate = &mut top.0;
            if candidate.rank == rank {
                kept.push(at as u32);
            }
            candidate.num_sequences += 1;
            candidate.load = match load {
                Load::Samples => candidate.load + u64::from(lengths[at]),
                Load::PaddedArea => (candidate.num_sequences + 1) * candidate.longest,
            };
        }
        kept[begin..].sort_unstable();
        kept_bounds.push(kept.len());
    }
    (kept, kept_bounds)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
