//! Hashes and ranges of numbers in any form.

use super::{BYTES_AT_ONCE, Range};
use crate::memory;
use cntkio_memory::small::Number;
use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bits for each number among which repeated numbers are found: a number is alone with its bit with a chance of 15 to
/// 16.
const BITS_OF_A_NUMBER: usize = 16;
/// Seeds differ between the forms of numbers, in which the same bytes have different meanings.
pub(super) const FULL_WIDTH: u64 = 0x9e37_79b9_7f4a_7c15;

/// Values in any form.
pub(super) trait AnyForm: Copy + Sync + PartialEq + From<u8> {
    fn hash(values: &[Self], seed: u64, buffer: &mut Vec<u8>) -> u64;
    fn range(values: &[Self]) -> Range;
    fn wide(self) -> f64;
}

impl AnyForm for u8 {
    #[inline]
    fn hash(values: &[u8], seed: u64, _: &mut Vec<u8>) -> u64 {
        xxh3_64_with_seed(values, seed)
    }

    fn range(values: &[u8]) -> Range {
        range_of(values)
    }

    #[inline]
    fn wide(self) -> f64 {
        self.into()
    }
}

/// The hash of numbers in full width that are not all small.
#[inline]
pub(super) fn hash_of<const SIZE: usize, T: Copy>(
    numbers: &[T],
    seed: u64,
    buffer: &mut Vec<u8>,
    bytes: impl Fn(T) -> [u8; SIZE],
) -> u64 {
    let size = SIZE * numbers.len();
    if buffer.len() < size {
        memory::resize(buffer, size, 0);
    }
    let all = &mut buffer[..size];
    // The numbers are copied, because safe code cannot view them as bytes.
    all.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(out, &number)| *out = bytes(number));
    xxh3_64_with_seed(all, seed ^ FULL_WIDTH)
}

// This many float32 values fill the longest vector, of 64 bytes.
const NUM_LANES: usize = 16;

macro_rules! float {
    ($float:ty) => {
        impl AnyForm for $float {
            fn hash(values: &[$float], seed: u64, buffer: &mut Vec<u8>) -> u64 {
                // The first value spares most measurements the conversion. A cast saturates and makes 0 of NaN, so the
                // cast of such a value differs from it.
                let may_be_small = values.first().is_none_or(|&first| <$float>::from(first as u8) == first);
                if may_be_small {
                    buffer.clear();
                    if <$float>::narrow(values, buffer) {
                        return xxh3_64_with_seed(buffer, seed);
                    }
                }
                hash_of(values, seed, buffer, <$float>::to_le_bytes)
            }

            /// Lanes, because the compiler must not change the order in which floating-point numbers are compared.
            fn range(values: &[$float]) -> Range {
                let (mut low, mut high) = ([<$float>::INFINITY; NUM_LANES], [<$float>::NEG_INFINITY; NUM_LANES]);
                let mut nothing = [0.0; NUM_LANES]; // becomes NaN with the first value that is not finite
                let mut add = |lane: usize, value: $float| {
                    // A comparison with NaN is false, so NaN does not change the range.
                    low[lane] = if value < low[lane] { value } else { low[lane] };
                    high[lane] = if value > high[lane] { value } else { high[lane] };
                    nothing[lane] += value * 0.0;
                };
                let groups = values.chunks_exact(NUM_LANES);
                groups.remainder().iter().enumerate().for_each(|(lane, &value)| add(lane, value));
                for group in groups {
                    (0..NUM_LANES).for_each(|lane| add(lane, group[lane]));
                }
                Range {
                    lowest: low.into_iter().fold(<$float>::INFINITY, <$float>::min).into(),
                    highest: high.into_iter().fold(<$float>::NEG_INFINITY, <$float>::max).into(),
                    is_finite: nothing.iter().all(|&sum| sum == 0.0),
                }
            }

            #[inline]
            fn wide(self) -> f64 {
                self.into()
            }
        }
    };
}
float!(f32);
float!(f64);

macro_rules! whole_number {
    ($whole:ty) => {
        impl AnyForm for $whole {
            fn hash(values: &[$whole], seed: u64, buffer: &mut Vec<u8>) -> u64 {
                if values.iter().all(|&value| u8::try_from(value).is_ok()) {
                    buffer.clear();
                    memory::extend(buffer, values.iter().map(|&value| value as u8));
                    return xxh3_64_with_seed(buffer, seed);
                }
                hash_of(values, seed, buffer, <$whole>::to_le_bytes)
            }

            fn range(values: &[$whole]) -> Range {
                range_of(values)
            }

            #[inline]
            fn wide(self) -> f64 {
                self as f64
            }
        }
    };
}
whole_number!(i32);
whole_number!(i64);

/// The range of whole numbers.
fn range_of<T: AnyForm + Ord>(values: &[T]) -> Range {
    lowest_and_highest(values).map_or(Range::NOTHING, |(low, high)| Range {
        lowest: low.wide(),
        highest: high.wide(),
        is_finite: true,
    })
}

/// `None` without numbers.
pub(super) fn lowest_and_highest<T: Copy + Ord>(numbers: &[T]) -> Option<(T, T)> {
    let (&first, rest) = numbers.split_first()?;
    Some(rest.iter().fold((first, first), |(low, high), &number| (low.min(number), high.max(number))))
}

/// The hash of indices in any form.
#[inline]
pub(super) fn hash_of_indices<I: Copy + Into<i32>>(indices: &[I], seed: u64, buffer: &mut Vec<u8>) -> u64 {
    // These are the indices that `Small` keeps in two bytes, so both forms have the same hash.
    let are_small = indices.iter().all(|&index| u16::try_from(index.into()).is_ok());
    if are_small {
        return hash_of(indices, seed, buffer, |index| (index.into() as u16).to_le_bytes());
    }
    // Another seed, because in this form the same bytes are other indices.
    hash_of(indices, !seed, buffer, |index| index.into().to_le_bytes())
}

/// The hash of each of some sequences of numbers, whose bytes are `bytes`, on all threads of the current pool.
///
/// Sequences end where the next one begins, and the last bound ends the last one; bounds count numbers of `size` bytes.
/// `seeds` has a number for each sequence, such as its hash in another stream. `None` if the bounds do not ascend, or
/// do not fit the bytes or the seeds.
#[must_use]
pub fn hashes(bytes: &[u8], size: usize, bounds: &[i64], seeds: &[u64]) -> Option<Vec<u64>> {
    if bounds.len() != seeds.len() + 1 {
        return None;
    }
    let place = |bound: i64| usize::try_from(bound).ok()?.checked_mul(size);
    let hash =
        |(pair, &seed): (&[i64], &u64)| Some(xxh3_64_with_seed(bytes.get(place(pair[0])?..place(pair[1])?)?, seed));
    let at_once = (BYTES_AT_ONCE * seeds.len() / bytes.len().max(1)).max(1);
    // Sequences may have a few bytes, so a thread takes many at a time.
    bounds.par_windows(2).zip(seeds).with_min_len(at_once).map(hash).collect()
}

/// The places of all numbers that occur more than once, in the order of the numbers and then of the places.
///
/// A number's high bits choose a bit. Numbers that are alone with their bit, mostly all of them, are not sorted.
#[must_use]
pub fn repeated(numbers: &[u64]) -> Vec<i64> {
    // The bits fill at least one word of 64.
    let shift = 64 - (BITS_OF_A_NUMBER * numbers.len().max(1)).next_power_of_two().ilog2().max(6);
    let num_words = 1 << (64 - shift - 6);
    // Two shifts, because a single word would need a shift by all 64 bits.
    let place = |number: u64| ((number >> shift >> 6) as usize, 1u64 << (number >> shift & 63));
    let [mut seen, mut seen_again] = [0, 1].map(|_| {
        let mut words: Vec<u64> = memory::with_room(num_words);
        words.resize(num_words, 0);
        words
    });
    for (word, bit) in numbers.iter().map(|&number| place(number)) {
        seen_again[word] |= seen[word] & bit;
        seen[word] |= bit;
    }
    let may_be_repeated = |&(_, &number): &(usize, &u64)| {
        let (word, bit) = place(number);
        seen_again[word] & bit != 0
    };
    let candidates = || numbers.iter().enumerate().filter(may_be_repeated);
    let mut sorted: Vec<(u64, i64)> = memory::with_room(candidates().count());
    sorted.extend(candidates().map(|(at, &number)| (number, at as i64)));
    // Places differ, so no two pairs are equal, and the sort need not be stable.
    sorted.sort_unstable();
    let groups = || sorted.chunk_by(|one, next| one.0 == next.0).filter(|group| group.len() > 1);
    let mut places = memory::with_room(groups().map(<[_]>::len).sum());
    places.extend(groups().flatten().map(|&(_, place)| place));
    places
}
