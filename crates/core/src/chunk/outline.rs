//! `Outline`: figures of a column that show whether a survey has to examine its samples one by one.

use super::small::Small;
use super::{Chunk, Column, Samples, Values};

/// Figures of the samples of one stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outline {
    /// Number of samples.
    pub num_samples: usize,
    /// The lowest value (for a sparse stream, of the values in the source); infinite if there is no value.
    pub lowest: f64,
    /// The highest value; negative infinity if there is no value.
    pub highest: f64,
    /// True if no value is infinite or NaN.
    pub is_finite: bool,
    /// Samples with a single 1 and nothing else; 0 if the caller does not ask for them.
    pub num_one_hot: usize,
}

const NUM_LANES: usize = 16;

/// The operations on a type of values that the figures need.
trait Value: Copy + PartialEq {
    const ZERO: Self;
    const ONE: Self;
    /// The lowest and the highest value, and whether all are finite.
    fn range(values: &[Self]) -> (f64, f64, bool);
}

impl Value for u8 {
    const ZERO: u8 = 0;
    const ONE: u8 = 1;

    fn range(values: &[u8]) -> (f64, f64, bool) {
        let range = values.iter().fold((u8::MAX, 0), |(low, high), &value| (low.min(value), high.max(value)));
        if values.is_empty() { NOTHING } else { (range.0.into(), range.1.into(), true) }
    }
}

const NOTHING: (f64, f64, bool) = (f64::INFINITY, f64::NEG_INFINITY, true);

macro_rules! float {
    ($float:ty) => {
        impl Value for $float {
            const ZERO: $float = 0.0;
            const ONE: $float = 1.0;

            /// Lanes, because the compiler must not change the order in which floating-point numbers are compared.
            fn range(values: &[$float]) -> (f64, f64, bool) {
                let (mut low, mut high) = ([<$float>::INFINITY; NUM_LANES], [<$float>::NEG_INFINITY; NUM_LANES]);
                let mut nothing = [0.0; NUM_LANES]; // becomes NaN with the first value that is not finite
                for values in values.chunks(NUM_LANES) {
                    for (lane, &value) in values.iter().enumerate() {
                        low[lane] = if value < low[lane] { value } else { low[lane] };
                        high[lane] = if value > high[lane] { value } else { high[lane] };
                        nothing[lane] += value * 0.0;
                    }
                }
                let low = low.into_iter().fold(<$float>::INFINITY, <$float>::min);
                let high = high.into_iter().fold(<$float>::NEG_INFINITY, <$float>::max);
                (low.into(), high.into(), nothing.iter().all(|&sum| sum == 0.0))
            }
        }
    };
}
float!(f32);
float!(f64);

/// The number of dense samples with a single 1.
fn num_one_hot_rows<T: Value>(values: &[T], dim: usize) -> usize {
    let is_one_hot = |row: &&[T]| {
        let mut others = row.iter().filter(|&&value| value != T::ZERO);
        others.next() == Some(&T::ONE) && others.next().is_none()
    };
    values.chunks_exact(dim.max(1)).filter(is_one_hot).count()
}

/// The number of sparse samples with the single entry 1. Without offsets each sample has one entry.
fn num_one_hot_entries<T: Value>(values: &[T], sample_offsets: Option<&[u32]>) -> usize {
    let is_one = |value: Option<&T>| value == Some(&T::ONE);
    match sample_offsets {
        None => values.iter().filter(|&value| is_one(Some(value))).count(),
        Some(offsets) => {
            let is_one_hot = |pair: &&[u32]| pair[1] - pair[0] == 1 && is_one(values.get(pair[0] as usize));
            offsets.windows(2).filter(is_one_hot).count()
        }
    }
}

fn outline<T: Value>(values: &[T], dim: usize, entries: Option<Option<&[u32]>>, counts_one_hot: bool) -> Outline {
    let (lowest, highest, is_finite) = T::range(values);
    let num_one_hot = match entries {
        _ if !counts_one_hot => 0,
        None => num_one_hot_rows(values, dim),
        Some(offsets) => num_one_hot_entries(values, offsets),
    };
    Outline { num_samples: 0, lowest, highest, is_finite, num_one_hot }
}

impl Column {
    /// Figures of the samples; `None` for samples that are kept as their file stores them.
    fn outline(&self, counts_one_hot: bool) -> Option<Outline> {
        let of_values = |values: &Values, dim, entries| match values {
            Values::F32(values) => outline(values, dim, entries, counts_one_hot),
            Values::F64(values) => outline(values, dim, entries, counts_one_hot),
        };
        let found = match &self.samples {
            Samples::Dense { dim, values } => of_values(values, *dim, None),
            Samples::Sparse { dim, sample_offsets, values, .. } => of_values(values, *dim, Some(Some(sample_offsets))),
            Samples::Small(Small { dim, values, entries, .. }) => {
                let entries = entries.as_ref().map(|entries| entries.sample_offsets.as_deref());
                outline(values, *dim, entries, counts_one_hot)
            }
            Samples::Stored(_) | Samples::Frames(_) | Samples::Runs(_) => return None,
        };
        Some(Outline { num_samples: self.num_samples(), ..found })
    }
}

impl Chunk {
    /// Figures of the samples of a stream; `None` for samples that are kept as their file stores them.
    pub fn outline(&self, column: usize, counts_one_hot: bool) -> Option<Outline> {
        let nothing =
            Outline { num_samples: 0, lowest: NOTHING.0, highest: NOTHING.1, is_finite: true, num_one_hot: 0 };
        self.blocks.iter().try_fold(nothing, |all, block| {
            let found = block.columns.get(column)?.outline(counts_one_hot)?;
            Some(Outline {
                num_samples: all.num_samples + found.num_samples,
                lowest: all.lowest.min(found.lowest),
                highest: all.highest.max(found.highest),
                is_finite: all.is_finite && found.is_finite,
                num_one_hot: all.num_one_hot + found.num_one_hot,
            })
        })
    }

    /// Number of samples of each sequence of a stream, which must exist.
    pub fn lengths(&self, column: usize) -> Vec<u32> {
        let offsets = self.blocks.iter().flat_map(|block| block.columns[column].sequence_offsets.windows(2));
        offsets.map(|pair| pair[1] - pair[0]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{Block, Entries};

    fn outline_of(samples: Samples, num_samples: u32) -> Outline {
        let column = Column { sequence_offsets: vec![0, num_samples], samples };
        let columns = vec![column];
        let blocks = vec![Block { num_sequences: 1, columns: columns.clone() }, Block { num_sequences: 1, columns }];
        Chunk::new(blocks).outline(0, true).expect("a parsed column")
    }

    #[test]
    fn dense_samples_in_any_width_have_the_same_figures() {
        let wide: Vec<f32> = [1.0, 0.0, 0.0, 2.0, 1.0, 1.0].repeat(9);
        let expected = Outline { num_samples: 54, lowest: 0.0, highest: 2.0, is_finite: true, num_one_hot: 18 };
        assert_eq!(outline_of(Samples::Dense { dim: 2, values: Values::F32(wide.clone()) }, 27), expected);
        let double = Values::F64(wide.iter().map(|&value| value.into()).collect());
        assert_eq!(outline_of(Samples::Dense { dim: 2, values: double }, 27), expected);
        let values = wide.iter().map(|&value| value as u8).collect();
        let small = Small { dim: 2, becomes_double: false, values, entries: None };
        assert_eq!(outline_of(Samples::Small(small), 27), expected);
    }

    #[test]
    fn sparse_samples_in_any_width_have_the_same_figures() {
        let sample_offsets = vec![0, 1, 1, 3, 4];
        let wide = Values::F32(vec![1.0, 1.0, 3.0, 1.0]);
        let sparse =
            Samples::Sparse { dim: 9, sample_offsets: sample_offsets.clone(), indices: vec![0; 4], values: wide };
        let expected = Outline { num_samples: 8, lowest: 1.0, highest: 3.0, is_finite: true, num_one_hot: 4 };
        assert_eq!(outline_of(sparse, 4), expected);
        let entries = Entries { sample_offsets: Some(sample_offsets), indices: vec![0; 4] };
        let values = vec![1, 1, 3, 1];
        let small = Small { dim: 9, becomes_double: false, values: values.clone(), entries: Some(entries) };
        assert_eq!(outline_of(Samples::Small(small), 4), expected);
        let entries = Entries { sample_offsets: None, indices: vec![0; 4] };
        let small = Small { dim: 9, becomes_double: false, values, entries: Some(entries) };
        assert_eq!(outline_of(Samples::Small(small), 4), Outline { num_one_hot: 6, ..expected });
    }

    #[test]
    fn any_value_that_is_not_finite_is_noticed_and_does_not_hide_the_range() {
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..40 {
                let mut values = vec![3.0; 40];
                (values[20], values[at]) = (4.0, strange);
                let found = outline_of(Samples::Dense { dim: 1, values: Values::F32(values) }, 40);
                assert!(!found.is_finite, "{strange} at {at}");
            }
        }
        let empty = outline_of(Samples::Dense { dim: 1, values: Values::F32(Vec::new()) }, 0);
        assert_eq!((empty.lowest, empty.highest, empty.is_finite), (f64::INFINITY, f64::NEG_INFINITY, true));
    }
}
