//! Figures of the values of sequences: a hash of the values of each sequence, and the range of all values.

use crate::memory;
use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The range of some values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The lowest value; infinite without values.
    pub lowest: f64,
    /// The highest value; negative infinity without values.
    pub highest: f64,
    /// True if no value is infinite or NaN.
    pub is_finite: bool,
}

impl Range {
    const NOTHING: Range = Range { lowest: f64::INFINITY, highest: f64::NEG_INFINITY, is_finite: true };

    fn with(self, other: Range) -> Range {
        Range {
            lowest: self.lowest.min(other.lowest),
            highest: self.highest.max(other.highest),
            is_finite: self.is_finite && other.is_finite,
        }
    }
}

/// A type of values.
pub trait Value: Copy + Sync {
    /// The range of some values.
    fn range(values: &[Self]) -> Range;
}

impl Value for i32 {
    fn range(values: &[i32]) -> Range {
        let range = values.iter().fold((i32::MAX, i32::MIN), |(low, high), &value| (low.min(value), high.max(value)));
        if values.is_empty() {
            return Range::NOTHING;
        }
        Range { lowest: range.0.into(), highest: range.1.into(), is_finite: true }
    }
}

const NUM_LANES: usize = 16;

macro_rules! float {
    ($float:ty) => {
        impl Value for $float {
            /// Lanes, because the compiler must not change the order in which floating-point numbers are compared.
            fn range(values: &[$float]) -> Range {
                let (mut low, mut high) = ([<$float>::INFINITY; NUM_LANES], [<$float>::NEG_INFINITY; NUM_LANES]);
                let mut nothing = [0.0; NUM_LANES]; // becomes NaN with the first value that is not finite
                let mut add = |lane: usize, value: $float| {
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
        }
    };
}
float!(f32);
float!(f64);

/// Bytes that a thread takes at a time, so that values are in the cache when their range is computed.
const BYTES_AT_ONCE: usize = 64 << 10;

/// The hash of the values of each sequence, and the range of all values, on all threads of the current pool.
///
/// `bytes` are the bytes of the values. Sequences end where the next one begins, and the last bound ends the last one.
/// `seeds` has a number for each sequence, such as its hash in another stream. `None` if the bounds do not ascend, or do not
/// fit the values, the bytes or the seeds.
#[must_use]
pub fn survey<T: Value>(values: &[T], bytes: &[u8], bounds: &[i64], seeds: &[u64]) -> Option<(Vec<u64>, Range)> {
    if bounds.len() != seeds.len() + 1 || size_of_val(values) != bytes.len() {
        return None;
    }
    let at_once = (BYTES_AT_ONCE * seeds.len() / bytes.len().max(1)).max(1);
    let of_some = |(group, seeds): (usize, &[u64])| {
        let bounds = &bounds[group * at_once..][..=seeds.len()];
        let hash = |(pair, &seed): (&[i64], &u64)| {
            let range =
                usize::try_from(pair[0]).ok()? * size_of::<T>()..usize::try_from(pair[1]).ok()? * size_of::<T>();
            Some(xxh3_64_with_seed(bytes.get(range)?, seed))
        };
        let hashes: Option<Vec<u64>> = bounds.windows(2).zip(seeds).map(hash).collect();
        let (first, last) = (usize::try_from(bounds[0]).ok()?, usize::try_from(bounds[seeds.len()]).ok()?);
        Some((hashes?, T::range(values.get(first..last)?)))
    };
    let groups: Option<Vec<_>> = seeds.par_chunks(at_once).enumerate().map(of_some).collect();
    let (mut hashes, mut range) = (memory::with_room(seeds.len()), Range::NOTHING);
    for (some, of_group) in groups? {
        hashes.extend(some);
        range = range.with(of_group);
    }
    Some((hashes, range))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f32], bounds: &[i64], seeds: &[u64]) -> Option<(Vec<u64>, Range)> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        survey(values, &bytes, bounds, seeds)
    }

    #[test]
    fn equal_sequences_with_equal_seeds_have_equal_hashes() {
        let values = [1.0, 2.0, 1.0, 2.0, 1.0, 3.0];
        let (hashes, range) = of(&values, &[0, 2, 4, 6], &[1, 1, 1]).expect("good bounds");
        assert!(hashes[0] == hashes[1] && hashes[1] != hashes[2]);
        assert_eq!(range, Range { lowest: 1.0, highest: 3.0, is_finite: true });
        assert_ne!(of(&values, &[0, 2], &[2]).expect("good bounds").0[0], hashes[0]);
        assert!([&[0, 7][..], &[2, 1], &[-1, 2], &[0]].iter().all(|bounds| of(&values, bounds, &[1]).is_none()));
    }

    #[test]
    fn groups_of_sequences_together_have_all_values() {
        let values: Vec<f32> = (0..100_000).map(|at| (at % 501) as f32).collect();
        let bounds: Vec<i64> = (0..=1000).map(|at| at * 100).collect();
        let (hashes, range) = of(&values, &bounds, &[0; 1000]).expect("good bounds");
        assert_eq!((hashes.len(), range.lowest, range.highest), (1000, 0.0, 500.0));
        assert!(hashes[0] != hashes[1] && hashes[0] == hashes[501]);
    }

    #[test]
    fn any_value_that_is_not_finite_is_noticed_and_does_not_hide_the_range() {
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..40 {
                let mut values = vec![3.0; 40];
                (values[20], values[at]) = (4.0, strange);
                assert!(!of(&values, &[0, 40], &[0]).expect("good bounds").1.is_finite, "{strange} at {at}");
            }
        }
        assert_eq!(of(&[], &[0], &[]).expect("good bounds").1, Range::NOTHING);
        assert_eq!(i32::range(&[5, -2]), Range { lowest: -2.0, highest: 5.0, is_finite: true });
    }
}
