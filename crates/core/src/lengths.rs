//! Lengths of sequences, in as few bytes as they take.

use cntkio_simd::prefetch;
use std::ops::Range;

/// The lengths of sequences, in samples.
#[derive(Debug, Clone, Copy)]
pub enum Lengths<'a> {
    /// All sequences have one length.
    Same {
        /// The length.
        length: u32,
        /// Number of sequences.
        count: usize,
    },
    /// Lengths below 2^8.
    Bytes(&'a [u8]),
    /// Lengths below 2^16.
    Shorts(&'a [u16]),
    /// Any lengths.
    Words(&'a [u32]),
}

impl Lengths<'_> {
    /// Number of sequences.
    #[must_use]
    pub fn len(self) -> usize {
        match self {
            Lengths::Same { count, .. } => count,
            Lengths::Bytes(lengths) => lengths.len(),
            Lengths::Shorts(lengths) => lengths.len(),
            Lengths::Words(lengths) => lengths.len(),
        }
    }

    /// True if there are no lengths.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Length of a sequence.
    // Reads call this for each sequence.
    #[inline]
    #[must_use]
    pub fn get(self, sequence: usize) -> u32 {
        match self {
            Lengths::Same { length, .. } => length,
            Lengths::Bytes(lengths) => lengths[sequence].into(),
            Lengths::Shorts(lengths) => lengths[sequence].into(),
            Lengths::Words(lengths) => lengths[sequence],
        }
    }

    /// Samples of a range of sequences.
    #[must_use]
    pub fn sum(self, sequences: Range<usize>) -> u64 {
        match self {
            // The sum of many lengths can exceed 32 bits.
            Lengths::Same { length, .. } => u64::from(length) * sequences.len() as u64,
            Lengths::Bytes(lengths) => lengths[sequences].iter().map(|&length| u64::from(length)).sum(),
            Lengths::Shorts(lengths) => lengths[sequences].iter().map(|&length| u64::from(length)).sum(),
            Lengths::Words(lengths) => lengths[sequences].iter().map(|&length| u64::from(length)).sum(),
        }
    }

    /// Have the processor fetch the length of a sequence, which may be any number.
    #[inline]
    pub fn prefetch(self, sequence: usize) {
        // A hint for a sequence that does not exist must not panic.
        match self {
            Lengths::Same { .. } => {}
            Lengths::Bytes(lengths) => prefetch(lengths.get(sequence..=sequence).unwrap_or(&[]), 1),
            Lengths::Shorts(lengths) => prefetch(lengths.get(sequence..=sequence).unwrap_or(&[]), 1),
            Lengths::Words(lengths) => prefetch(lengths.get(sequence..=sequence).unwrap_or(&[]), 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_any_width_are_the_same_numbers() {
        let all = [Lengths::Bytes(&[7; 5]), Lengths::Shorts(&[7; 5]), Lengths::Words(&[7; 5])];
        for lengths in [Lengths::Same { length: 7, count: 5 }].into_iter().chain(all) {
            assert_eq!((lengths.len(), lengths.is_empty(), lengths.get(4), lengths.sum(1..4)), (5, false, 7, 21));
            lengths.prefetch(4);
            lengths.prefetch(5);
        }
    }
}
