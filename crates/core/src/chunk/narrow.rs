//! Columns of whole numbers in two bytes each: ids of tokens and classes, counts and labels of tables.
//!
//! Tables keep such numbers in four or eight bytes. In two bytes, a window of a table takes a half or a quarter of the
//! memory, and fresh memory costs as much as the conversion.
//!
//! Invariant: a widened number is the number that was made narrow.

use super::ragged::Form;
use super::values::{NumberType, Value};
use crate::memory;

/// Dense samples whose values are whole numbers from 0 to 65,535.
#[derive(Debug, Clone, PartialEq)]
pub struct Narrow {
    /// Values of a sample.
    pub dim: usize,
    /// True if values have 64 bits when packed, false if they have 32.
    pub becomes_long: bool,
    /// All samples, row by row.
    pub values: Vec<u16>,
}

impl Narrow {
    /// Make samples narrow; `None` if one of their numbers does not fit.
    pub fn of<T: Value<Small = u16>>(dim: usize, values: &[T]) -> Option<Narrow> {
        let mut narrow = memory::with_room(values.len());
        // `narrow` stops after the first block that does not fit, so a failed attempt takes little time.
        T::narrow(values, &mut narrow).then_some(Narrow { dim, becomes_long: size_of::<T>() == 8, values: narrow })
    }

    pub(crate) fn form(&self) -> Form {
        let number = if self.becomes_long { NumberType::I64 } else { NumberType::I32 };
        Form { dim: self.dim, is_sparse: false, number }
    }

    /// Check that there are values for all samples; the message says how many there are.
    pub(crate) fn check(&self, num_samples: usize) -> Result<(), String> {
        let (dim, num_values) = (self.dim, self.values.len());
        // The product can overflow, because the dimension comes from a caller.
        match num_samples.checked_mul(dim) == Some(num_values) {
            true => Ok(()),
            false => Err(format!("{num_samples} samples of {dim} values, but {num_values} values")),
        }
    }

    /// Bytes of the values when packed.
    pub(crate) fn packed_bytes(&self) -> usize {
        self.values.len() * if self.becomes_long { 8 } else { 4 }
    }

    /// Bytes of memory.
    pub(crate) fn num_bytes(&self) -> usize {
        size_of_val(&self.values[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_two_bytes_are_narrow() {
        let narrow = Narrow::of(2, &[0i64, 65_535]).unwrap();
        assert_eq!((narrow.values, narrow.becomes_long), (vec![0, 65_535], true));
        assert!(!Narrow::of(1, &[7i32]).unwrap().becomes_long);
        for wrong in [-1, 65_536, 1 << 32, i64::MIN] {
            assert_eq!(Narrow::of(1, &[5, wrong]), None);
        }
        assert_eq!(Narrow::of(1, &[-1i32]), None);
    }
}
