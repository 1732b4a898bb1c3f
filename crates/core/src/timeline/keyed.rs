//! The keyed order: the place of a sequence in its window follows from a key, so any place is known without the others.
//!
//! A sweep has a key, made of the seed and of its number. It orders the chunks, and each window, which is a group of
//! consecutive ranks, by a [`Permutation`] of its own. No window holds a rank of another.
//! (docs/timeline.md, "Keyed order")

use crate::memory;

/// Rounds of the network, two at a time: with four of them, neighbours in small windows stay together too often.
const ROUNDS: usize = 8;
/// Bits of the smallest network. Networks of fewer bits have too few orders, so small counts walk in a larger one.
const LEAST_BITS: u32 = 8;

/// Spread the bits of a number over all bits: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
const fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

/// The key of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SweepKey(u64);

impl SweepKey {
    pub(super) fn new(seed: u64, sweep: u64) -> Self {
        Self(mixed(mixed(seed) ^ sweep))
    }

    /// All chunks in the order of the sweep.
    pub(super) fn chunk_order(self, num_chunks: usize) -> Vec<u32> {
        let permutation = Permutation::new(num_chunks as u64, mixed(self.0));
        memory::collected((0..num_chunks as u32).map(|rank| permutation.of(rank.into()) as u32))
    }

    /// The order of `count` sequences in the window that begins with a rank.
    pub(super) fn window(self, first_rank: u32, count: u64) -> Permutation {
        Permutation::new(count, mixed(self.0 ^ (1 + u64::from(first_rank))))
    }
}

/// A permutation of the numbers below `count`: a Feistel network over the next power of two, which is walked along until
/// it comes to a number below `count` (Black and Rogaway, 2002).
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    count: u64,
    right_bits: u32,
    left_mask: u64,
    right_mask: u64,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of the numbers below `count`, which is at most 2^63, with a key.
    #[must_use]
    pub fn new(count: u64, key: u64) -> Self {
        let bits = (u64::BITS - count.saturating_sub(1).leading_zeros()).max(LEAST_BITS);
        let (left_bits, right_bits) = (bits / 2, bits - bits / 2);
        let mut keys = [0; ROUNDS];
        for (number, round) in (1u64..).zip(&mut keys) {
            *round = mixed(key.wrapping_add(number * 0x0A07_61D6_478B_D642));
        }
        Self { count, right_bits, left_mask: (1 << left_bits) - 1, right_mask: (1 << right_bits) - 1, keys }
    }

    /// The number at a place; both are below `count`.
    #[inline]
    #[must_use]
    pub fn of(&self, place: u64) -> u64 {
        debug_assert!(place < self.count);
        let mut number = place;
        // The network is a permutation, so the walk comes back to `place` at the latest, which is below `count`.
        loop {
            let (mut left, mut right) = (number >> self.right_bits, number & self.right_mask);
            for keys in self.keys.chunks_exact(2) {
                left ^= round(right, keys[0]) & self.left_mask;
                right ^= round(left, keys[1]) & self.right_mask;
            }
            number = (left << self.right_bits) | right;
            if number < self.count {
                return number;
            }
        }
    }
}

/// The function of a round: bits that depend on all bits of the half and of the key.
#[inline]
fn round(half: u64, key: u64) -> u64 {
    let product = (half ^ key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (product ^ (product >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_number_has_one_place(count in 0u64..3000, key: u64) {
            let permutation = Permutation::new(count, key);
            let mut numbers: Vec<u64> = (0..count).map(|place| permutation.of(place)).collect();
            numbers.sort_unstable();
            prop_assert_eq!(numbers, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn any_place_of_ten_billion_is_known() {
        let permutation = Permutation::new(10_000_000_000, 7);
        let numbers: Vec<u64> = (9_999_999_000..10_000_000_000).map(|place| permutation.of(place)).collect();
        assert!(numbers.iter().all(|&number| number < 10_000_000_000));
        let mean = numbers.iter().sum::<u64>() / 1000;
        assert!((4_500_000_000..5_500_000_000).contains(&mean), "{mean}");
    }
}
