//! The plan of a sweep: the order of its chunks, and the windows in which sequences are shuffled.

use super::Table;
use super::generator::{MersenneTwister, Remainder};

/// How far a sequence may stray from its chunk's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// So many places of the shuffled order of chunks.
    Chunks(u64),
    /// As many whole places as hold about so many samples.
    Samples(u64),
}

/// What the order of every sweep follows from, beside the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Randomization {
    /// How far a sequence may stray.
    pub window: Window,
    /// Sweep number k is shuffled with `seed + k`, modulo 2^64.
    pub seed: u64,
}

/// A half-open range of places or of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: u32,
    pub(super) to: u32,
}

impl Span {
    #[inline]
    pub(super) fn holds(self, x: u32) -> bool {
        x.wrapping_sub(self.from) < self.to - self.from
    }
}

/// The order of chunks of one sweep, and what follows from it for each place.
#[derive(Debug)]
pub(super) struct SweepPlan {
    pub(super) sweep: u64,
    pub(super) seed: u64,
    /// The chunk at each place.
    pub(super) chunks: Vec<u32>,
    /// First position of each place, and at the end the number of sequences.
    pub(super) starts: Vec<u32>,
    /// The window of each place, in places.
    pub(super) windows: Vec<Span>,
    /// The positions that a sequence at home in each place may take: those of all places whose window holds it.
    pub(super) reach: Vec<Span>,
    /// The place of the first position of each block of `1 << block_shift` positions.
    pub(super) block_places: Vec<u32>,
    block_shift: u32,
    /// Whether every window holds all places.
    pub(super) is_one_window: bool,
}

/// All chunks in the order of one sweep.
pub fn chunk_order(num_chunks: usize, seed: u64) -> Vec<u32> {
    let mut generator = MersenneTwister::new(seed);
    let mut order: Vec<u32> = (0..num_chunks as u32).collect();
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
        let seed = randomization.seed.wrapping_add(sweep);
        let chunks = chunk_order(table.num_chunks(), seed);
        let mut starts = Vec::with_capacity(chunks.len() + 1);
        starts.push(0);
        let mut sequences = 0;
        for &chunk in &chunks {
            sequences += table.start(chunk as usize + 1) - table.start(chunk as usize);
            starts.push(sequences as u32);
        }
        let windows = match randomization.window {
            Window::Chunks(size) => windows_in_chunks(chunks.len(), size.max(1)),
            Window::Samples(size) => {
                let samples = chunks.iter().map(|&chunk| chunk_samples[chunk as usize]);
                windows_in_samples(samples, size.max(1))
            }
        };
        let reach = reach(&windows, &starts);
        let per_place = (sequences / chunks.len().max(1)).max(1);
        let block_shift = per_place.ilog2();
        let mut block_places = Vec::with_capacity((sequences >> block_shift) + 2);
        let mut place = 0;
        for position in (0..=sequences as u64).step_by(1 << block_shift) {
            while place + 1 < chunks.len() && u64::from(starts[place + 1]) <= position {
                place += 1;
            }
            block_places.push(place as u32);
        }
        block_places.push(chunks.len() as u32 - 1);
        let is_one_window = windows.iter().all(|window| (window.from, window.to) == (0, chunks.len() as u32));
        Self { sweep, seed, chunks, starts, windows, reach, block_places, block_shift, is_one_window }
    }

    pub(super) fn num_sequences(&self) -> u32 {
        self.starts[self.chunks.len()]
    }

    /// The place that owns a position.
    #[inline]
    pub(super) fn place_of(&self, position: u32) -> u32 {
        let block = (position >> self.block_shift) as usize;
        let (first, last) = (self.block_places[block], self.block_places[block + 1]);
        if first == last {
            return first;
        }
        let ends = &self.starts[first as usize + 1..=last as usize];
        if ends.len() <= 8 {
            return first + ends.iter().take_while(|&&end| end <= position).count() as u32;
        }
        first + ends.partition_point(|&end| end <= position) as u32
    }

    /// How far the shuffle must have gone before `place` is final: past its own window, and past every place whose
    /// window holds it.
    #[inline]
    pub(super) fn final_after(&self, place: u32) -> u32 {
        let window_end = self.starts[self.windows[place as usize].to as usize];
        self.reach[place as usize].to.max(window_end)
    }

    /// The sequence, as numbered in the file, that has this home in that place.
    #[inline]
    pub(super) fn sequence(&self, table: Table, place: u32, home: u32) -> usize {
        table.start(self.chunks[place as usize] as usize) + (home - self.starts[place as usize]) as usize
    }
}

fn windows_in_chunks(num_chunks: usize, size: u64) -> Vec<Span> {
    let n = num_chunks as u64;
    let half = size / 2;
    (0..n)
        .map(|c| {
            let from = c.saturating_sub(half);
            let to = from.saturating_add(size);
            let (from, to) = if to > n { (n.saturating_sub(size), n) } else { (from, to) };
            Span { from: from as u32, to: to as u32 }
        })
        .collect()
}

/// `samples` are those of each place, in order.
fn windows_in_samples(samples: impl Iterator<Item = u64>, size: u64) -> Vec<Span> {
    let half = size / 2;
    let mut before = vec![0];
    before.extend(samples.scan(0u64, |sum, samples| {
        *sum += samples;
        Some(*sum)
    }));
    let n = before.len() - 1;
    let (mut from, mut to) = (0, 1);
    (0..n)
        .map(|c| {
            while before[c] - before[from] > half {
                from += 1;
            }
            to = to.max(c + 1);
            while to < n && before[to + 1] - before[c] < half {
                to += 1;
            }
            Span { from: from as u32, to: to as u32 }
        })
        .collect()
}

/// For each place the positions of all places whose window holds it. Both ends of the windows never decrease, so these
/// places are consecutive.
fn reach(windows: &[Span], starts: &[u32]) -> Vec<Span> {
    let (mut from, mut to) = (0, 0);
    (0..windows.len() as u32)
        .map(|place| {
            while windows[from].to <= place {
                from += 1;
            }
            while to < windows.len() && windows[to].from <= place {
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
        fn a_place_reaches_the_places_whose_windows_hold_it(
            samples in prop::collection::vec(1u64..9, 1..20),
            size in 1u64..60,
            counts_samples: bool,
        ) {
            let windows = if counts_samples {
                windows_in_samples(samples.iter().copied(), size)
            } else {
                windows_in_chunks(samples.len(), size)
            };
            let starts: Vec<u32> = (0..=samples.len() as u32).map(|place| 3 * place).collect();
            let reach = reach(&windows, &starts);
            for place in 0..samples.len() as u32 {
                prop_assert!(windows[place as usize].holds(place));
                for other in 0..samples.len() as u32 {
                    prop_assert_eq!(reach[place as usize].holds(3 * other), windows[other as usize].holds(place));
                }
            }
        }

        #[test]
        fn the_place_of_a_position_is_found(sizes in prop::collection::vec(prop_oneof![Just(1i64), 1i64..300], 1..60), seed: u64) {
            let mut chunk_starts = vec![0];
            chunk_starts.extend(sizes.iter().scan(0, |sum, size| { *sum += size; Some(*sum) }));
            let lengths = vec![1; sizes.iter().sum::<i64>() as usize];
            let table = Table { lengths: &lengths, chunk_starts: &chunk_starts };
            let samples: Vec<u64> = sizes.iter().map(|&size| size as u64).collect();
            let randomization = Randomization { window: Window::Chunks(3), seed };
            let plan = SweepPlan::new(table, &samples, randomization, 0);
            for place in 0..sizes.len() as u32 {
                for position in plan.starts[place as usize]..plan.starts[place as usize + 1] {
                    prop_assert_eq!(plan.place_of(position), place);
                }
            }
        }
    }
}
