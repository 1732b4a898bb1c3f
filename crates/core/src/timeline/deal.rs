//! Dealing: the division of the sequences of global minibatches among ranks. (docs/timeline.md, "Global partitions")
//!
//! Every rank deals the same minibatches in the same way, and keeps its own share.

use super::rows::{Cost, cells_in_rows};
use super::shuffle::shuffled;
use super::{Pause, Stopped};
use crate::memory;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The load that is kept even among the ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// The sum of the lengths.
    Samples,
    /// The padded area with one more sequence: one more than the number of sequences, times the length of the longest;
    /// 0 without sequences.
    PaddedArea,
    /// The sum of the costs.
    Cost(Cost),
}

/// The share of one of `num_ranks` ranks of several minibatches: the kept sequences, counted in `lengths`, and the
/// index of the first kept sequence of each minibatch and, last, their number.
///
/// `bounds` has the first sequence of each minibatch and, last, the number of sequences. Within a minibatch, the
/// longest sequence goes to the rank with the least load, then the next longest. Among equal lengths the first sequence
/// comes first, among equal loads the lowest rank. So each rank gets a sequence if there are enough. Kept sequences
/// stay in their order.
#[must_use]
pub fn deal(lengths: &[u32], bounds: &[usize], num_ranks: u64, rank: u64, load: Load) -> (Vec<u32>, Vec<usize>) {
    // A single rank keeps all sequences in their order, so nothing has to be sorted.
    if num_ranks == 1 {
        return (memory::collected(0..lengths.len() as u32), memory::copied(bounds));
    }
    let (mut kept, mut kept_bounds) = (Vec::new(), vec![0]);
    let mut order: Vec<u64> = Vec::new(); // the complement of each length, and the number of its sequence
    // The load comes before the rank, so that the lowest of the ranks with equal loads is on top.
    let mut ranks: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new(); // load and rank
    let mut areas: Vec<(u64, u64)> = Vec::new(); // number of sequences and longest sequence of each rank
    for bounds in bounds.windows(2) {
        let (minibatch, first, num_before) = (&lengths[bounds[0]..bounds[1]], bounds[0] as u32, kept.len());
        if minibatch.iter().all(|&length| length == minibatch[0]) {
            // As often: each line is a sequence. The ranks take sequences in turn.
            memory::extend(&mut kept, (first..bounds[1] as u32).skip(rank as usize).step_by(num_ranks as usize));
            memory::push(&mut kept_bounds, kept.len());
            continue;
        }
        order.clear();
        memory::reserve(&mut order, minibatch.len());
        // Complements sort the longest first, and the number in the lower half keeps equal lengths in their order.
        order.extend(minibatch.iter().zip(0..).map(|(&length, number): (_, u64)| u64::from(!length) << 32 | number));
        order.sort_unstable();
        let num_taking = num_ranks.min(minibatch.len() as u64) as usize;
        ranks.clear();
        memory::require(ranks.try_reserve(num_taking), 16 * num_taking);
        areas.clear();
        memory::reserve(&mut areas, num_taking);
        for (&one, turn) in order.iter().zip(0..) {
            let (length, number) = (u64::from(!((one >> 32) as u32)), one as u32);
            // The first sequences go to the ranks in turn, because ranks without a sequence have no load.
            let owner = if turn < num_ranks {
                areas.push((1, length));
                let first = match load {
                    Load::Samples => length,
                    Load::PaddedArea => 2 * length,
                    // The bits of numbers that are not negative have the order of the numbers.
                    Load::Cost(cost) => cost.of(length as u32).to_bits(),
                };
                ranks.push(Reverse((first, turn)));
                turn
            } else {
                // A change through `peek_mut` moves the rank in one pass; `pop` and `push` would take two.
                let Some(mut top) = ranks.peek_mut() else { break };
                let Reverse((least, owner)) = *top;
                let (num_sequences, longest) = &mut areas[owner as usize];
                *num_sequences += 1;
                // Sequences come in descending order, so the first one of a rank stays its longest.
                *top = Reverse(match load {
                    Load::Samples => (least + length, owner),
                    Load::PaddedArea => ((*num_sequences + 1) * *longest, owner),
                    Load::Cost(cost) => ((f64::from_bits(least) + cost.of(length as u32)).to_bits(), owner),
                });
                owner
            };
            if owner == rank {
                memory::push(&mut kept, first + number);
            }
        }
        // The deal goes by length, but a rank delivers its sequences in the order of the minibatch.
        kept[num_before..].sort_unstable();
        memory::push(&mut kept_bounds, kept.len());
    }
    (kept, kept_bounds)
}

/// The share of one of `num_ranks` ranks of minibatches that fill rows, from the row of each sequence in its
/// minibatch; the result is that of [`deal`].
///
/// The ranks take the rows of a minibatch in turn, so a rank gets at most its part of the rows, rounded up.
#[must_use]
pub fn deal_rows(rows: &[u32], bounds: &[usize], num_ranks: u64, rank: u64) -> (Vec<u32>, Vec<usize>) {
    let (mut kept, mut kept_bounds) = (Vec::new(), vec![0]);
    for bounds in bounds.windows(2) {
        let numbers = (bounds[0] as u32..).zip(&rows[bounds[0]..bounds[1]]);
        for (number, _) in numbers.filter(|(_, row)| u64::from(**row) % num_ranks == rank) {
            memory::push(&mut kept, number);
        }
        memory::push(&mut kept_bounds, kept.len());
    }
    (kept, kept_bounds)
}

/// The sequences that a rank holds of minibatches in rows, if the ranks share each row; the result is that of [`deal`].
///
/// Rank `r` of `n` has slices `r` and `2n-1-r` of `2n` equal slices of a row, and holds the sequences with a sample
/// there. The sequences of a minibatch fill rows as in [`cells_in_rows`].
#[must_use]
pub fn deal_slices(
    lengths: &[u32],
    bounds: &[usize],
    num_ranks: u64,
    rank: u64,
    row_length: u32,
) -> (Vec<u32>, Vec<usize>) {
    let size = u64::from(row_length) / (2 * num_ranks);
    let slices = [rank * size, (2 * num_ranks - 1 - rank) * size];
    let (mut kept, mut kept_bounds) = (Vec::new(), vec![0]);
    for bounds in bounds.windows(2) {
        let own = &lengths[bounds[0]..bounds[1]];
        for (number, (cell, &length)) in (bounds[0] as u32..).zip(cells_in_rows(own, row_length).into_iter().zip(own)) {
            let begin = cell as u64 % u64::from(row_length);
            if slices.iter().any(|&slice| begin < slice + size && slice < begin + u64::from(length)) {
                memory::push(&mut kept, number);
            }
        }
        memory::push(&mut kept_bounds, kept.len());
    }
    (kept, kept_bounds)
}

/// The step of each sequence if each lane spreads its sequences evenly over `num_steps` steps. (docs/timeline.md,
/// "Lanes")
///
/// `bounds` has the first sequence of each lane and, last, the number of sequences; `lanes` has the number of each
/// lane. In a lane, the longest sequence goes to the bin with the fewest samples, then the next longest. The bins become
/// steps in an order that the seed decides: the fullest where the lane begins, and the others to both sides of it, by
/// their samples. Each lane begins elsewhere, and any neighboring lanes at about equal distances: so together they have
/// about the same number of samples in each step.
///
/// # Errors
/// `pause` asked the work to stop.
pub fn steps_of_lanes(
    lengths: &[u32],
    bounds: &[usize],
    lanes: &[u64],
    num_steps: u32,
    seed: u64,
    pause: &mut Pause,
) -> Result<Vec<u32>, Stopped> {
    let steps = shuffled(num_steps, seed, pause)?;
    let mut found = Vec::new();
    memory::resize(&mut found, lengths.len(), 0);
    let (mut order, mut step_of_bin): (Vec<u64>, Vec<u32>) = (Vec::new(), vec![0; num_steps as usize]);
    for (bounds, &lane) in bounds.windows(2).zip(lanes) {
        let (own, bins) = (&lengths[bounds[0]..bounds[1]], &mut found[bounds[0]..bounds[1]]);
        order.clear();
        memory::reserve(&mut order, own.len());
        order.extend(own.iter().zip(0..).map(|(&length, number): (_, u64)| u64::from(!length) << 32 | number));
        order.sort_unstable();
        let mut loads: BinaryHeap<Reverse<(u64, u32)>> = (0..num_steps).map(|bin| Reverse((0, bin))).collect();
        for &one in &order {
            let Some(mut top) = loads.peek_mut() else { break };
            let Reverse((least, bin)) = *top;
            *top = Reverse((least + u64::from(!((one >> 32) as u32)), bin));
            bins[one as u32 as usize] = bin;
        }
        // The bits of a number in reverse order divide a circle evenly: for 4 lanes 0, 1/2, 1/4, 3/4.
        let begin = ((u128::from(lane.reverse_bits()) * u128::from(num_steps)) >> 64) as usize;
        for (at, Reverse((_, bin))) in loads.into_sorted_vec().into_iter().enumerate() {
            let distance = at.div_ceil(2);
            let step = begin + if at % 2 == 0 { steps.len() - distance } else { distance };
            step_of_bin[bin as usize] = steps[step % steps.len()];
        }
        bins.iter_mut().for_each(|bin| *bin = step_of_bin[*bin as usize]);
        if !pause() {
            return Err(Stopped);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_lane_has_about_the_same_samples_in_each_step() {
        let lengths: Vec<u32> = (0..4000).map(|at| 1 + at * 7 % 39).collect();
        let found = steps_of_lanes(&lengths, &[0, 2000, 4000], &[3, 4], 20, 5, &mut || true).expect("nothing stops it");
        for lane in [0..2000, 2000..4000] {
            let mut loads = [0; 20];
            lane.for_each(|at| loads[found[at] as usize] += lengths[at]);
            assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 2, "{loads:?}");
        }
        // A lane does not depend on the others.
        assert_eq!(steps_of_lanes(&lengths[2000..], &[0, 2000], &[4], 20, 5, &mut || true).unwrap(), found[2000..]);
    }

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
        // The load of the first rank is 20, its area with a second sequence; that of the second rank grows from 6 to
        // 18.
        let shares = self::shares(&[10, 3, 3, 3, 3, 2], &[0, 6], 2, Load::PaddedArea);
        assert_eq!(shares, [(vec![0], vec![0, 1]), (vec![1, 2, 3, 4, 5], vec![0, 5])]);
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
        let rows = [0, 1, 1, 2, 2, 3, 0];
        let shares: Vec<_> = (0..2).map(|rank| deal_rows(&rows, &[0, 6, 7], 2, rank)).collect();
        assert_eq!(shares, [(vec![0, 3, 4, 6], vec![0, 3, 4]), (vec![1, 2, 5], vec![0, 3, 3])]);
    }

    #[test]
    fn ranks_that_share_rows_hold_what_overlaps_their_slices() {
        // Rows of 8: 3 3 · · | 6 1 · | 8; then 2. Of 4 slices, rank 0 has the first and the last.
        let lengths = [3, 3, 6, 1, 8, 2];
        let shares: Vec<_> = (0..2).map(|rank| deal_slices(&lengths, &[0, 5, 6], 2, rank, 8)).collect();
        assert_eq!(shares, [(vec![0, 2, 3, 4, 5], vec![0, 4, 5]), (vec![0, 1, 2, 4], vec![0, 4, 4])]);
    }

    proptest! {
        #[test]
        fn each_sequence_goes_to_the_least_load_of_all(
            lengths in prop::collection::vec(prop_oneof![1u32..4, 1u32..40, 1u32..=u32::MAX], 0..100),
            cut in 0usize..100,
            num_ranks in 2usize..20,
            of_area: bool,
        ) {
            let bounds = [0, cut.min(lengths.len()), lengths.len()];
            let mut owners = vec![0; lengths.len()];
            for pair in bounds.windows(2) {
                let mut members: Vec<Vec<u64>> = vec![Vec::new(); num_ranks];
                let mut order: Vec<usize> = (pair[0]..pair[1]).collect();
                order.sort_by_key(|&at| Reverse(lengths[at]));
                for at in order {
                    let load = |&rank: &usize| match (of_area, members[rank].first()) {
                        (true, Some(longest)) => longest * (members[rank].len() as u64 + 1),
                        _ => members[rank].iter().sum(),
                    };
                    owners[at] = (0..num_ranks).min_by_key(load).unwrap();
                    members[owners[at]].push(lengths[at].into());
                }
            }
            let load = if of_area { Load::PaddedArea } else { Load::Samples };
            for (rank, (kept, kept_bounds)) in shares(&lengths, &bounds, num_ranks as u64, load).into_iter().enumerate() {
                let own: Vec<u32> = (0..lengths.len() as u32).filter(|&at| owners[at as usize] == rank).collect();
                prop_assert_eq!(kept_bounds, [0, own.iter().filter(|&&at| (at as usize) < bounds[1]).count(), own.len()]);
                prop_assert_eq!(kept, own);
            }
        }
    }
}
