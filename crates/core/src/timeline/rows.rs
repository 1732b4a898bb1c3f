//! Rows of a fixed length: packing a pool, and the cells of sequences in rows. (docs/batches.md, "Packing")
//!
//! ```text
//! best fit      9 · | 7 2 1 | 5 4 · | 3        the longest first, each into the row with the least room
//! equal cost    9 ·           8 1              minibatches of two rows: the rows of a minibatch cost the same
//!               5 3 1         5 3
//! ```

use crate::memory;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Range;

/// The cost of a sequence: `linear` for each sample, and `square` times the square of its length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// At least 0, like `square`; not both are 0.
    pub linear: f64,
    /// For attention, which takes time that grows with the square of the length.
    pub square: f64,
}

impl Cost {
    /// The cost of a sequence.
    #[inline]
    pub(super) fn of(self, length: u32) -> f64 {
        let length = f64::from(length);
        self.linear * length + self.square * length * length
    }
}

fn filled<T: Clone>(value: T, count: usize) -> Vec<T> {
    let mut values = Vec::new();
    memory::resize(&mut values, count, value);
    values
}

/// The rows of a pool as numbers, for its sequences from the longest to the shortest.
struct Packed {
    row_of: Vec<u32>,
    num_rows: usize,
}

/// Pack sequences into rows. Returns the sequences row by row, and the range of each row. With a `balance`, each
/// `of_minibatch` rows cost about the same, and rows can be empty.
pub(super) fn in_rows(
    lengths: &[u32],
    row_length: u32,
    of_minibatch: u32,
    balance: Option<Cost>,
) -> (Vec<u32>, Vec<Range<usize>>) {
    let mut by_length: Vec<u32> = memory::collected(0..lengths.len() as u32);
    by_length.sort_unstable_by_key(|&index| (Reverse(lengths[index as usize]), index));
    let descending: Vec<u32> = memory::collected(by_length.iter().map(|&index| lengths[index as usize]));
    let mut packed = best_fit(&descending, row_length);
    if let Some(cost) = balance {
        // As many minibatches as without a balance, so the share of filled cells stays.
        let num_minibatches = packed.num_rows.div_ceil(of_minibatch as usize);
        let num_rows = num_minibatches * of_minibatch as usize;
        let even = even(&descending, row_length, of_minibatch, num_minibatches, cost);
        packed = Packed { row_of: even.unwrap_or(packed.row_of), num_rows };
        by_cost(&descending, &mut packed, of_minibatch, cost);
    }
    let mut sizes: Vec<usize> = filled(0, packed.num_rows);
    packed.row_of.iter().for_each(|&row| sizes[row as usize] += 1);
    // Each row begins as an empty range, and ends after its sequences have come.
    let mut next = 0;
    let mut rows: Vec<Range<usize>> = memory::collected(sizes.iter().map(|size| {
        next += size;
        next - size..next - size
    }));
    let mut arranged = memory::copied(&by_length);
    for (index, row) in by_length.into_iter().zip(packed.row_of) {
        let row = &mut rows[row as usize];
        arranged[row.end] = index;
        row.end += 1;
    }
    (arranged, rows)
}

/// Each sequence in the row with the least room in which it fits.
fn best_fit(descending: &[u32], row_length: u32) -> Packed {
    let (mut row_of, mut num_rows) = (memory::with_room(descending.len()), 0);
    let mut rooms: BTreeSet<(u32, u32)> = BTreeSet::new();
    for &length in descending {
        let best = rooms.range((length, 0)..).next().copied();
        // A row has at least the room of its first sequence, so the subtraction below cannot underflow.
        let (room, row) = best.unwrap_or((row_length.max(length), num_rows));
        if best.is_some() {
            rooms.remove(&(room, row));
        } else {
            num_rows += 1;
        }
        row_of.push(row);
        rooms.insert((room - length, row));
    }
    Packed { row_of, num_rows: num_rows as usize }
}

/// The need of a row for another sequence. The largest comes first.
#[derive(PartialEq)]
struct Need {
    /// False: the row has its share of the samples, and `amount` is its room.
    is_open: bool,
    /// The cost that the row lacks, for each sample that it lacks.
    amount: f64,
    row: u32,
}

impl Eq for Need {}

impl Ord for Need {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_amount = || self.amount.total_cmp(&other.amount);
        self.is_open.cmp(&other.is_open).then_with(by_amount).then_with(|| other.row.cmp(&self.row))
    }
}

impl PartialOrd for Need {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Rows, about equal in cost and length in each minibatch; `None`: a sequence fits in no row.
///
/// The cost that a row lacks, for each sample that it lacks, is the length of sequences that would give it both. So the
/// next sequence, the longest that is left, goes to the row where this is largest.
fn even(
    descending: &[u32],
    row_length: u32,
    of_minibatch: u32,
    num_minibatches: usize,
    cost: Cost,
) -> Option<Vec<u32>> {
    let num_rows = of_minibatch as usize * num_minibatches;
    let share = descending.iter().map(|&length| f64::from(length)).sum::<f64>() / num_rows as f64;
    let targets = targets(descending, of_minibatch as usize, num_minibatches, share, cost);
    let mut rooms: Vec<u32> = filled(row_length, num_rows);
    let mut costs: Vec<f64> = filled(0.0, num_rows);
    let need = |row: u32, room: u32, cost: f64| {
        let rest = share - f64::from(row_length - room);
        let lacking = targets[(row / of_minibatch) as usize] - cost;
        let (is_open, amount) = if rest > 0.0 { (true, lacking / rest) } else { (false, f64::from(room)) };
        Need { is_open, amount, row }
    };
    let mut row_of = memory::with_room(descending.len());
    let mut needs: BinaryHeap<Need> = BinaryHeap::new();
    memory::require(needs.try_reserve(num_rows), size_of::<Need>() * num_rows);
    needs.extend((0..num_rows as u32).map(|row| need(row, row_length, 0.0)));
    // Rows without room for the last sequences, by their room: they wait for shorter sequences.
    let mut waiting: BinaryHeap<(u32, u32)> = BinaryHeap::new();
    memory::require(waiting.try_reserve(num_rows), size_of::<(u32, u32)>() * num_rows);
    for &length in descending {
        while let Some(&(room, row)) = waiting.peek().filter(|(room, _)| *room >= length) {
            waiting.pop();
            needs.push(need(row, room, costs[row as usize]));
        }
        loop {
            let mut top = needs.peek_mut()?;
            let row = top.row as usize;
            if rooms[row] < length {
                waiting.push((rooms[row], top.row));
                std::collections::binary_heap::PeekMut::pop(top);
                continue;
            }
            rooms[row] -= length;
            costs[row] += cost.of(length);
            *top = need(row as u32, rooms[row], costs[row]);
            row_of.push(row as u32);
            break;
        }
    }
    Some(row_of)
}

/// The cost of a row of each minibatch: the mean of the rows that are left, or more if the longest sequence that is
/// left costs more with the shortest sequences in the rest of its row.
fn targets(descending: &[u32], of_minibatch: usize, num_minibatches: usize, share: f64, cost: Cost) -> Vec<f64> {
    let mut left: f64 = descending.iter().map(|&length| cost.of(length)).sum();
    let mut shortest = descending.iter().rev();
    let (mut samples, mut filled) = (0.0, 0.0);
    memory::collected((0..num_minibatches).map(|number| {
        let mean = left / ((num_minibatches - number) * of_minibatch) as f64;
        let Some(&longest) = descending.get(number * of_minibatch) else { return mean };
        // The rest of the row grows from minibatch to minibatch.
        while samples < share - f64::from(longest)
            && let Some(&length) = shortest.next()
        {
            samples += f64::from(length);
            filled += cost.of(length);
        }
        let target = mean.max(cost.of(longest) + filled);
        left = (left - target * of_minibatch as f64).max(0.0);
        target
    }))
}

/// Number the rows again, so that a minibatch has the rows of the next lower costs.
///
/// Rank `i` of `n` takes the rows `i`, `i + n`, ... of a minibatch. So its first half ascends, and its second half
/// descends: rows of high and of low cost then go to the same rank.
fn by_cost(descending: &[u32], packed: &mut Packed, of_minibatch: u32, cost: Cost) {
    let mut costs: Vec<f64> = filled(0.0, packed.num_rows);
    for (&length, &row) in descending.iter().zip(&packed.row_of) {
        costs[row as usize] += cost.of(length);
    }
    let mut rows: Vec<u32> = memory::collected(0..packed.num_rows as u32);
    rows.sort_unstable_by(|&one, &other| {
        costs[other as usize].total_cmp(&costs[one as usize]).then_with(|| one.cmp(&other))
    });
    let mut numbers: Vec<u32> = filled(0, packed.num_rows);
    let half = of_minibatch / 2;
    for (rank, row) in (0..).zip(rows) {
        let place = rank % of_minibatch;
        numbers[row as usize] = rank - place + if place < half { half - 1 - place } else { place };
    }
    packed.row_of.iter_mut().for_each(|row| *row = numbers[*row as usize]);
}

/// The first cell of each sequence if consecutive sequences fill rows one after the other: a sequence that does not fit
/// in the rest of its row begins the next row. A sequence that is longer than a row begins a row, and fills several.
#[must_use]
pub fn cells_in_rows(lengths: &[u32], row_length: u32) -> Vec<i64> {
    // A row length of 0 would be a division by zero.
    let (row_length, mut next) = (i64::from(row_length.max(1)), 0);
    memory::collected(lengths.iter().map(|&length| {
        let length = i64::from(length);
        if next % row_length + length > row_length {
            next = (next + row_length - 1) / row_length * row_length;
        }
        next += length;
        next - length
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTENTION: Cost = Cost { linear: 0.0, square: 1.0 };

    fn costs(lengths: &[u32], of_minibatch: u32) -> Vec<u32> {
        let (arranged, rows) = in_rows(lengths, 10, of_minibatch, Some(ATTENTION));
        let squares = |row: Range<usize>| arranged[row].iter().map(|&index| lengths[index as usize].pow(2)).sum();
        rows.into_iter().map(squares).collect()
    }

    #[test]
    fn rows_of_a_minibatch_cost_the_same() {
        // 9 1 | 9 1, then 5 5 | 5 5.
        assert_eq!(costs(&[5, 1, 9, 5, 5, 9, 1, 5], 2), [82, 82, 50, 50]);
        // Best fit would have 3 3 3 1 | 1 1 1 1.
        assert_eq!(costs(&[1, 3, 1, 3, 1, 3, 1, 1, 3], 2), [21, 20]);
    }

    #[test]
    fn a_minibatch_that_is_not_full_has_all_rows() {
        assert_eq!(costs(&[2, 2, 2], 4), [4, 4, 4, 0]);
    }
}
