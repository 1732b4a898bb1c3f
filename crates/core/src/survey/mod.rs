//! Figures of the streams of a chunk: a hash of each sequence, ranges, columns that do not change, and classes.
//!
//! ```text
//! chunk ─┬─ part 0: some sequences of a block ── stream by stream, a cacheful at a time ─┬─ hashes of its sequences
//!        ├─ part 1                                                                       └─ figures, one per stream
//!        └─ ...                                   the figures of all parts are merged, in order
//! ```
//!
//! | module | question |
//! |---|---|
//! | `view` | in which form does a block have the samples of a stream? |
//! | `figures` | what is said about the samples of a part, and of all parts? |
//! | `hashes` | which hash and which range do numbers have, and which numbers are repeated? |
//!
//! Values and indices are examined in the form in which the parser left them, mostly in a byte or two: widening them
//! would cost more than everything else here. Invariant: the form does not change a figure. A sequence of small numbers
//! in full width has the hash of the same sequence in small form.

mod figures;
mod hashes;
mod view;

pub use figures::survey;
pub use hashes::{hashes, repeated};

/// A stream to examine, and what its caller wants to know about it.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// The stream, counted in the chunk.
    pub stream: usize,
    /// Of a dense stream: a sample, and the columns in which other samples may have its values; `None`: the chunk's
    /// first sample, and all columns.
    pub constant: Option<(&'a [f64], &'a [u32])>,
    /// True to look for samples that are not one-hot.
    pub one_hot: bool,
    /// Count the indices of a sparse stream if all are below this number; 0: count none.
    pub most_classes: usize,
    /// Look for the second-highest index of a sparse stream only if the highest is above this number; -1: in any case.
    pub beyond: i32,
    /// True to look for two samples of a sparse stream that differ in their indices.
    pub forms: bool,
}

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

/// Figures of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// Number of samples.
    pub num_samples: usize,
    /// Number of values: of all of a dense stream, or of the entries.
    pub num_values: usize,
    /// The range of the values.
    pub range: Range,
    /// Of a dense stream: the sample that is compared with the others.
    pub first_row: Vec<f64>,
    /// Of a dense stream: the columns in which all samples have the values of `first_row`.
    pub constant: Vec<u32>,
    /// Of a dense stream: the values of the chunk's first samples.
    pub tried: Tried,
    /// Of a sparse stream: the lowest index, `i32::MAX` without entries.
    pub first: i32,
    /// Of a sparse stream: the highest index, -1 without entries.
    pub last: i32,
    /// Of a sparse stream: the highest index below `last`, if `last` is above [`Wanted::beyond`]; -1: none was found.
    pub second: i32,
    /// Of a sparse stream: the indices of the first sample, and of the first one that has others.
    pub forms: Vec<Vec<i32>>,
    /// The samples that are not one-hot, counted in the chunk; `None`: so many of the first that the stream is not.
    pub not_one_hot: Option<Vec<u32>>,
    /// Number of samples of each class: with a value other than 0 in a column, or with an index.
    pub counts: Vec<i64>,
}

/// The values of the first samples of a dense stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tried {
    /// Number of values.
    pub num_values: usize,
    /// Number of values that are 0.
    pub num_zeros: usize,
    /// True if all are whole numbers.
    pub are_whole: bool,
}

/// Bytes that are examined at a time, so that they stay in the cache.
const BYTES_AT_ONCE: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::hashes::{AnyForm, FULL_WIDTH};
    use super::*;
    use crate::chunk::{Block, Chunk, Column, Samples, Values};

    const DENSE: Wanted =
        Wanted { stream: 0, constant: None, one_hot: true, most_classes: 0, beyond: -1, forms: false };
    const SPARSE: Wanted =
        Wanted { stream: 0, constant: None, one_hot: true, most_classes: 1 << 16, beyond: -1, forms: true };

    fn block(offsets: &[u32], samples: Samples) -> Block {
        let column = Column { sequence_offsets: offsets.to_vec(), samples };
        column.check(offsets.len() - 1).expect("a sound column");
        Block { num_sequences: offsets.len() - 1, columns: vec![column] }
    }

    fn dense(offsets: &[u32], dim: usize, values: &[f32]) -> Block {
        block(offsets, Samples::Dense { dim, values: Values::F32(values.to_vec()) })
    }

    fn sparse(offsets: &[u32], sample_offsets: &[u32], entries: &[(i32, f32)]) -> Block {
        let (indices, values): (Vec<i32>, Vec<f32>) = entries.iter().copied().unzip();
        let (sample_offsets, values) = (sample_offsets.to_vec(), Values::F32(values));
        block(offsets, Samples::Sparse { dim: 1 << 20, sample_offsets, indices, values })
    }

    /// Store the values of a block in small form.
    fn small(block: &Block) -> Block {
        let column = &block.columns[0];
        let (dim, values, entries) = column.samples.wide().expect("full width");
        let samples = crate::chunk::Small::of(dim, values, entries, None).expect("small numbers");
        let column = Column { sequence_offsets: column.sequence_offsets.clone(), samples: Samples::Small(samples) };
        Block { num_sequences: block.num_sequences, columns: vec![column] }
    }

    fn figures(blocks: &[Block], wanted: &Wanted) -> (Vec<u64>, Figures) {
        let (hashes, mut figures) =
            survey(&Chunk::new(blocks.to_vec()), std::slice::from_ref(wanted)).expect("a sound chunk");
        (hashes, figures.remove(0))
    }

    #[test]
    fn the_form_of_a_column_changes_no_figure() {
        let one_hot = dense(&[0, 1, 3], 3, &[1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
        let words = sparse(&[0, 2, 3], &[0, 1, 3, 4], &[(7, 1.0), (9, 1.0), (3, 2.0), (7, 1.0)]);
        for (block, wanted) in [(one_hot, DENSE), (words, SPARSE)] {
            assert_eq!(figures(std::slice::from_ref(&block), &wanted), figures(&[small(&block)], &wanted));
            let (hashes, both) = figures(&[block.clone(), small(&block)], &wanted);
            assert_eq!((hashes[0], hashes[1], hashes[0] != hashes[1]), (hashes[2], hashes[3], true));
            assert_eq!(both.num_samples, 6);
        }
    }

    #[test]
    fn equal_sequences_have_equal_hashes_next_to_numbers_of_any_size() {
        let (hashes, _) = figures(&[dense(&[0, 1, 2, 3, 4], 1, &[1.0, 0.5, 1.0, 300.0])], &DENSE);
        assert!(hashes[0] == hashes[2] && hashes[0] != hashes[1] && hashes[1] != hashes[3]);
        let wide = sparse(&[0, 1, 2, 3], &[0, 1, 2, 3], &[(7, 1.0), (70_000, 1.0), (7, 0.5)]);
        let (all, _) = figures(&[small(&sparse(&[0, 1], &[0, 1], &[(7, 1.0)])), wide], &SPARSE);
        assert!(all[0] == all[1] && all[1] != all[2] && all[1] != all[3]);
    }

    #[test]
    fn equal_entries_in_other_samples_have_another_hash() {
        // Samples of one entry each; of two and none; of none and two; a sample of two.
        let words = sparse(&[0, 2, 4, 6, 7], &[0, 1, 2, 4, 4, 4, 6, 8], &[(7, 1.0), (9, 1.0)].repeat(4));
        let (hashes, _) = figures(&[words.clone(), small(&words)], &SPARSE);
        assert_eq!(hashes[..4], hashes[4..]);
        assert_eq!(repeated(&hashes[..4]), []);
        let empty = figures(&[sparse(&[0, 1, 3], &[0, 0, 0, 0], &[])], &SPARSE).0;
        assert_ne!(empty[0], empty[1]);
        // The small form has no offsets while each sample has one entry.
        let tags = sparse(&[0, 1, 2], &[0, 1, 2], &[(7, 1.0), (7, 1.0)]);
        let later = sparse(&[0, 1, 2], &[0, 1, 3], &[(7, 1.0), (7, 1.0), (9, 1.0)]);
        let all = figures(&[small(&tags), later], &SPARSE).0;
        assert!(all[0] == all[1] && all[1] == all[2] && all[2] != all[3]);
    }

    #[test]
    fn a_dense_stream_has_its_range_its_constant_columns_and_its_classes() {
        let (_, found) = figures(&[dense(&[0, 1], 2, &[0.0, 1.0]), dense(&[0, 2], 2, &[1.0, 1.0, 0.5, 1.0])], &DENSE);
        assert_eq!((found.range.lowest, found.range.highest, found.num_values), (0.0, 1.0, 6));
        assert_eq!((found.first_row, found.constant, found.not_one_hot), (vec![0.0, 1.0], vec![1], None));
        assert_eq!(found.tried, Tried { num_values: 6, num_zeros: 1, are_whole: false });
        let mut rows = [0.0, 1.0].repeat(20);
        rows[0] = 1.0;
        let (_, found) = figures(&[dense(&(0..=20).collect::<Vec<_>>(), 2, &rows)], &DENSE);
        assert_eq!((found.not_one_hot, found.counts), (Some(vec![0]), vec![1, 20]));
        let known = Wanted { constant: Some((&[0.0, 1.0], &[1])), one_hot: false, ..DENSE };
        assert_eq!(figures(&[dense(&[0, 1], 2, &[5.0, 2.0])], &known).1.constant, []);
    }

    #[test]
    fn a_sparse_stream_has_its_two_highest_indices_its_forms_and_its_classes() {
        let blocks = [
            sparse(&[0, 2], &[0, 1, 2], &[(4, 1.0), (4, 1.0)]),
            sparse(&[0, 1, 2], &[0, 2, 3], &[(9, 1.0), (2, 1.0), (9, 3.0)]),
        ];
        let (_, found) = figures(&blocks, &SPARSE);
        assert_eq!((found.first, found.last, found.second, found.num_values), (2, 9, 4, 5));
        assert_eq!((found.forms, found.not_one_hot), (vec![vec![4], vec![9, 2]], Some(vec![2, 3])));
        assert_eq!((found.counts[2], found.counts[4], found.counts[9]), (1, 2, 2));
        let nothing = figures(&[sparse(&[0, 1], &[0, 0], &[])], &SPARSE).1;
        assert_eq!((nothing.first, nothing.last, nothing.range), (i32::MAX, -1, Range::NOTHING));
    }

    #[test]
    fn large_chunks_have_the_figures_of_their_parts() {
        let values: Vec<f32> = (0..1_000_000).map(|at| (at % 501) as f32).collect();
        let offsets: Vec<u32> = (0..=1000).map(|at| at * 100).collect();
        let (hashes, found) = figures(&[dense(&offsets, 10, &values)], &DENSE);
        assert_eq!((hashes.len(), found.range.lowest, found.range.highest), (1000, 0.0, 500.0));
        assert_eq!((found.num_samples, found.num_values), (100_000, 1_000_000));
        assert!(hashes[0] != hashes[1] && hashes[0] == hashes[501]);
        // The last cacheful has the second-highest index.
        let mut entries = vec![(9, 1.0); 60_000];
        entries[59_998].0 = 5;
        let offsets: Vec<u32> = (0..=60_000).collect();
        let (_, found) = figures(&[sparse(&offsets, &offsets, &entries)], &SPARSE);
        assert_eq!((found.first, found.last, found.second), (5, 9, 5));
    }

    #[test]
    fn any_value_that_is_not_finite_is_noticed_and_does_not_hide_the_range() {
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..40 {
                let mut values = vec![3.0; 40];
                (values[20], values[at]) = (4.0, strange);
                assert!(!f32::range(&values).is_finite, "{strange} at {at}");
            }
        }
        assert_eq!(f32::range(&[]), Range::NOTHING);
    }

    #[test]
    fn repeated_numbers_are_found_with_all_their_places() {
        assert_eq!(repeated(&[]), []);
        assert_eq!(repeated(&[7]), []);
        assert_eq!(repeated(&[u64::MAX, 3, 0, 3, u64::MAX, 5, 3]), [1, 3, 6, 0, 4]);
        // The high bits are equal, so all numbers have the same bit.
        assert_eq!(repeated(&[1, 2, 3, 2]), [1, 3]);
        let mut numbers: Vec<u64> = (0..10_000u64).map(|number| number.wrapping_mul(FULL_WIDTH)).collect();
        assert_eq!(repeated(&numbers), []);
        numbers[9_000] = numbers[17];
        assert_eq!(repeated(&numbers), [17, 9_000]);
    }

    #[test]
    fn hashes_of_arrays_depend_on_bytes_and_seeds() {
        let bytes = [1, 2, 1, 2, 1, 3];
        let found = hashes(&bytes, 2, &[0, 1, 2, 3], &[1, 1, 1]).expect("good bounds");
        assert!(found[0] == found[1] && found[1] != found[2]);
        assert_ne!(hashes(&bytes, 2, &[0, 1], &[2]).expect("good bounds")[0], found[0]);
        assert!([&[0, 4][..], &[2, 1], &[-1, 2], &[0]].iter().all(|bounds| hashes(&bytes, 2, bounds, &[1]).is_none()));
        assert!(hashes(&bytes, 8, &[0, 1 << 61], &[1]).is_none());
    }
}
