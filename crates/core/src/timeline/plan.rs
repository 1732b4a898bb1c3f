//! The plan of a sweep: the order of its chunks, and the windows in which sequences are shuffled.
//!
//! The *rank* of a chunk is its place in the order of the sweep. A window is a range of ranks. The *reach* of a rank is
//! the inverse: the positions that the windows allow to a sequence of that rank.

use super::generator::{MersenneTwister, Remainder};
use super::keyed::{Permutation, SweepKey};
use super::{Pause, Stopped, Table, UntilPause};
use crate::memory;
use crate::owners::Owners;

/// Sequences that are looked up at once.
const FOUND_AT_ONCE: u32 = 64;

/// Distance that a sequence may move from the rank of its chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// A number of ranks.
    Chunks(u64),
    /// A number of samples: as many whole ranks as hold about this number.
    Samples(u64),
}

/// Settings that determine the order of every sweep, together with the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Randomization {
    /// Distance that a sequence may move.
    pub window: Window,
    /// Sweep number k is shuffled with `seed + k`, modulo 2^64.
    pub seed: u64,
    /// True if a key orders each window; false: CNTK's shuffle.
    pub is_keyed: bool,
}

/// A half-open range of ranks or of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: u32,
    pub(super) to: u32,
}

impl Span {
    #[inline]
    pub(super) fn holds(self, x: u32) -> bool {
        // A number before the range wraps to a large number, so one comparison checks both ends.
        x.wrapping_sub(self.from) < self.to - self.from
    }
}

/// The order of chunks of one sweep, and the window of each rank.
#[derive(Debug)]
pub(super) struct SweepPlan {
    pub(super) sweep: u64,
    pub(super) seed: u64,
    /// The chunk of each rank.
    pub(super) chunks: Vec<u32>,
    /// First position of each rank and, last, the number of sequences.
    pub(super) starts: Vec<u32>,
    /// The window of each rank, in ranks.
    pub(super) windows: Vec<Span>,
    /// The positions that a sequence of each rank may take: the positions of all ranks whose window holds its rank.
    pub(super) reach: Vec<Span>,
    ranks: Owners,
    /// True if every window holds all ranks.
    pub(super) is_one_window: bool,
    /// The key of the sweep; `None`: CNTK's shuffle.
    pub(super) key: Option<SweepKey>,
}

/// All chunks in the order of one sweep.
pub fn chunk_order(num_chunks: usize, seed: u64) -> Vec<u32> {
    let mut generator = MersenneTwister::new(seed);
    let mut order: Vec<u32> = memory::collected(0..num_chunks as u32);
    if num_chunks > 0 {
        let remainder = Remainder::new(num_chunks as u64);
        // Every draw is over the whole range, so not all orders are equally likely. The order of every CNTK run
        // depends on it: do not turn this into Fisher-Yates. (docs/timeline.md, "Order of chunks")
        for i in 0..num_chunks {
            order.swap(i, remainder.of(generator.draw()) as usize);
        }
    }
    order
}

impl SweepPlan {
    /// The plan of sweep number `sweep`. `chunk_samples` are the samples of each chunk, in file order.
    pub(super) fn new(table: Table, chunk_samples: &[u64], randomization: Randomization, sweep: u64) -> Self {
        // Seeds count modulo 2^64, so the largest seed has a next sweep, too.
        let seed = randomization.seed.wrapping_add(sweep);
        let key = randomization.is_keyed.then(|| SweepKey::new(randomization.seed, sweep));
        let num_chunks = table.num_chunks();
        let chunks = key.map_or_else(|| chunk_order(num_chunks, seed), |key| key.chunk_order(num_chunks));
        let mut starts = memory::with_room(chunks.len() + 1);
        starts.push(0);
        let mut sequences = 0;
        for &chunk in &chunks {
            sequences += table.start(chunk as usize + 1) - table.start(chunk as usize);
            // The table has fewer than 2^32 sequences, and positions of 32 bits halve the memory that the shuffle
            // reads.
            starts.push(sequences as u32);
        }
        // A window of 0 would not even hold its own rank, and no draw would be accepted.
        let samples = chunks.iter().map(|&chunk| chunk_samples[chunk as usize]);
        let windows = match (randomization.window, key.is_some()) {
            (Window::Chunks(size), false) => windows_in_chunks(num_chunks, size.max(1)),
            (Window::Samples(size), false) => windows_in_samples(samples, size.max(1)),
            (Window::Chunks(size), true) => windows_apart(&vec![1; num_chunks], size.max(1)),
            (Window::Samples(size), true) => windows_apart(&samples.collect::<Vec<_>>(), size.max(1)),
        };
        let reach = reach(&windows, &starts);
        let ranks = Owners::new(&starts);
        // With one window no draw is rejected, so the shuffle takes a shorter loop.
        let is_one_window = windows.iter().all(|window| (window.from, window.to) == (0, chunks.len() as u32));
        Self { sweep, seed, chunks, starts, windows, reach, ranks, is_one_window, key }
    }

    pub(super) fn num_sequences(&self) -> u32 {
        self.starts[self.chunks.len()]
    }

    /// The rank that a position belongs to.
    #[inline]
    pub(super) fn rank_of(&self, position: u32) -> u32 {
        // The callers pass positions of the order, all of which are below the number of sequences.
        self.ranks.find(&self.starts, position).expect("positions below the number of sequences have a rank")
    }

    /// The position up to which the shuffle must be done before `rank` is final: after its own window, and after every
    /// rank whose window holds it.
    #[inline]
    pub(super) fn final_after(&self, rank: u32) -> u32 {
        let window_end = self.starts[self.windows[rank as usize].to as usize];
        self.reach[rank as usize].to.max(window_end)
    }

    /// The sequence with this home, which belongs to that rank, as numbered in the file.
    #[inline]
    pub(super) fn sequence(&self, table: Table, rank: u32, home: u32) -> usize {
        table.start(self.chunks[rank as usize] as usize) + (home - self.starts[rank as usize]) as usize
    }

    /// In a keyed order: the first position of the window of a rank, and the order of the positions from there on.
    #[inline]
    pub(super) fn permutation(&self, rank: u32) -> Option<(u32, Permutation)> {
        let key = self.key?;
        let window = self.windows[rank as usize];
        let (first, end) = (self.starts[window.from as usize], self.starts[window.to as usize]);
        Some((first, key.window(window.from, u64::from(end - first))))
    }

    /// In a keyed order: the first rank of the window at an offset in samples, and the samples before it.
    pub(super) fn window_at(&self, chunk_samples: &[u64], offset: u64) -> (u32, u64) {
        let (mut first, mut before) = (0, 0);
        let mut end = 0;
        for (rank, &chunk) in self.chunks.iter().enumerate() {
            if self.windows[rank].from as usize == rank {
                (first, before) = (rank as u32, end);
            }
            end += chunk_samples[chunk as usize];
            if end > offset {
                break;
            }
        }
        (first, before)
    }

    /// The samples in the window of a rank.
    pub(super) fn samples_in_window(&self, chunk_samples: &[u64], rank: u32) -> u64 {
        let window = self.windows[rank as usize];
        let chunks = &self.chunks[window.from as usize..window.to as usize];
        chunks.iter().map(|&chunk| chunk_samples[chunk as usize]).sum()
    }

    /// In a keyed order: false if the samples of the windows show that the sequence at a position of the order does not
    /// start at `offset`, in samples of the sweep.
    pub(super) fn can_start(&self, chunk_samples: &[u64], position: u32, offset: u64) -> bool {
        let (rank, before) = self.window_at(chunk_samples, offset);
        let window = self.windows[rank as usize];
        let (first, end) = (self.starts[window.from as usize], self.starts[window.to as usize]);
        let after = before + self.samples_in_window(chunk_samples, rank);
        // Each sequence has at least one sample.
        (first..end).contains(&position)
            && (position == first) == (offset == before)
            && u64::from(position - first) <= offset - before
            && u64::from(end - position) <= after - offset
    }

    /// In a keyed order: the first sequence of the window of a rank that starts at `offset` or later, in samples of the
    /// sweep, found from the end of the window, where `passed` samples are passed. Return its position in the order, and
    /// the samples before it.
    ///
    /// # Errors
    /// `pause` asked the work to stop.
    pub(super) fn walk_back(
        &self,
        table: Table,
        rank: u32,
        mut passed: u64,
        offset: u64,
        pause: &mut Pause,
    ) -> Result<(u32, u64), Stopped> {
        let (first, order) = self.permutation(rank).expect("a keyed order has a permutation of each window");
        let mut index = self.starts[self.windows[rank as usize].to as usize];
        let mut sequences = [0; FOUND_AT_ONCE as usize];
        let mut until_pause = UntilPause::new();
        while index > first {
            let sequences = &mut sequences[..(index - first).min(FOUND_AT_ONCE) as usize];
            for (back, sequence) in (1..).zip(&mut *sequences) {
                let home = first + order.of(u64::from(index - back - first)) as u32;
                *sequence = self.sequence(table, self.rank_of(home), home);
                // In random order they are in no cache, and the processor waits for all of them together.
                table.lengths.prefetch(*sequence);
            }
            for &sequence in &*sequences {
                let before = passed - u64::from(table.lengths.get(sequence));
                if before < offset {
                    return Ok((index, passed));
                }
                (index, passed) = (index - 1, before);
            }
            until_pause.count(FOUND_AT_ONCE, pause)?;
        }
        Ok((index, passed))
    }

    /// Bytes of memory.
    pub(super) fn num_bytes(&self) -> usize {
        4 * (self.chunks.capacity() + self.starts.capacity())
            + 8 * (self.windows.capacity() + self.reach.capacity())
            + self.ranks.num_bytes()
    }
}

/// The windows of `size` ranks.
fn windows_in_chunks(num_chunks: usize, size: u64) -> Vec<Span> {
    let n = num_chunks as u64;
    let half = size / 2;
    (0..n)
        .map(|c| {
            let from = c.saturating_sub(half);
            // A window can have any size of 64 bits, so its end must not wrap.
            let to = from.saturating_add(size);
            let (from, to) = if to > n { (n.saturating_sub(size), n) } else { (from, to) };
            Span { from: from as u32, to: to as u32 }
        })
        .collect()
}

/// The windows that hold about `size` samples. `samples` are the samples of each rank.
fn windows_in_samples(samples: impl Iterator<Item = u64>, size: u64) -> Vec<Span> {
    let half = size / 2;
    // With sums before each rank, both ends of all windows are found in one pass.
    let mut before = vec![0];
    before.extend(samples.scan(0u64, |sum, samples| {
        *sum += samples;
        Some(*sum)
    }));
    let n = before.len() - 1;
    let (mut from, mut to) = (0, 1);
    (0..n)
        .map(|c| {
            // The comparisons, `>` here and `<` below, are CNTK's: half of the window must cover a further chunk whole.
            while before[c] - before[from] > half {
                from += 1;
            }
            // A window holds its own rank, even if that chunk is larger than the window.
            to = to.max(c + 1);
            while to < n && before[to + 1] - before[c] < half {
                to += 1;
            }
            Span { from: from as u32, to: to as u32 }
        })
        .collect()
}

/// The window of each rank, if windows of about `size` do not overlap. `sizes` are the sizes of the ranks, in its unit.
fn windows_apart(sizes: &[u64], size: u64) -> Vec<Span> {
    let total: u64 = sizes.iter().sum();
    let num_windows = u128::from(total.div_ceil(size));
    let mut before = 0u64;
    let mut numbers = memory::with_room(sizes.len());
    for &of_rank in sizes {
        // Equal shares of the sweep, so that no window is much smaller than the others.
        numbers.push((u128::from(before) * num_windows / u128::from(total)) as u64);
        before += of_rank;
    }
    let mut spans = memory::with_room(sizes.len());
    for window in numbers.chunk_by(|one, next| one == next) {
        let span = Span { from: spans.len() as u32, to: (spans.len() + window.len()) as u32 };
        spans.extend(window.iter().map(|_| span));
    }
    spans
}

/// For each rank the positions of all ranks whose window holds it. Neither end of the windows ever decreases, so these
/// ranks are consecutive.
fn reach(windows: &[Span], starts: &[u32]) -> Vec<Span> {
    let (mut from, mut to) = (0, 0);
    (0..windows.len() as u32)
        .map(|rank| {
            // The window of a rank holds the rank itself, so this ends at `rank` at the latest.
            while windows[from].to <= rank {
                from += 1;
            }
            while to < windows.len() && windows[to].from <= rank {
                to += 1;
            }
            Span { from: starts[from], to: starts[to] }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn chunks_come_in_the_known_order() {
        assert_eq!(chunk_order(10, 0), [4, 7, 3, 9, 1, 2, 8, 6, 5, 0]);
        assert_eq!(chunk_order(10, 5), [3, 6, 2, 1, 5, 7, 8, 9, 0, 4]);
    }

    proptest! {
        #[test]
        fn windows_are_neighbours_and_nearly_equal(
            sizes in prop::collection::vec(1u64..9, 1..40), size in prop_oneof![1u64..60, Just(u64::MAX)],
        ) {
            let (spans, total) = (windows_apart(&sizes, size), sizes.iter().sum::<u64>());
            prop_assert_eq!(spans.len(), sizes.len());
            for (rank, span) in (0u32..).zip(&spans) {
                prop_assert!(span.holds(rank));
                prop_assert!((span.from..span.to).all(|other| spans[other as usize] == *span));
                let of_span: u64 = sizes[span.from as usize..span.to as usize].iter().sum();
                prop_assert!(of_span < total / total.div_ceil(size) + 1 + 9);
            }
        }

        #[test]
        fn a_rank_reaches_the_ranks_whose_windows_hold_it(
            samples in prop::collection::vec(1u64..9, 1..20),
            size in 1u64..60,
            counts_samples: bool,
        ) {
            let windows = if counts_samples {
                windows_in_samples(samples.iter().copied(), size)
            } else {
                windows_in_chunks(samples.len(), size)
            };
            let starts: Vec<u32> = (0..=samples.len() as u32).map(|rank| 3 * rank).collect();
            let reach = reach(&windows, &starts);
            for rank in 0..samples.len() as u32 {
                prop_assert!(windows[rank as usize].holds(rank));
                for other in 0..samples.len() as u32 {
                    prop_assert_eq!(reach[rank as usize].holds(3 * other), windows[other as usize].holds(rank));
                }
            }
        }
    }
}
