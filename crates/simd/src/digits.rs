//! Decimal digits in eight bytes, processed together in one machine word.
//!
//! ```
//! use cntkio_simd::digits;
//!
//! let word = digits::word_at(b"|x 1024:1 |", 3).unwrap();
//! assert_eq!((digits::count(word), digits::value(word, 4)), (4, 1024));
//! ```

const ZEROS: u64 = 0x3030_3030_3030_3030;

/// Eight bytes from `at` on, the first in the lowest bits; `None` if the slice has fewer.
#[inline(always)]
pub fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
}

/// Number of digits at the start of a word: 0 to 8.
#[inline(always)]
pub fn count(word: u64) -> u32 {
    others(word ^ ZEROS).trailing_zeros() / 8
}

/// The high bit of each byte above 9. Carries may spoil bytes after the first such byte, never before it.
#[inline(always)]
fn others(digits: u64) -> u64 {
    (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080
}

/// Value of the first `count` bytes of a word, which must be 1 to 8 digits.
#[inline(always)]
pub fn value(word: u64, count: u32) -> u32 {
    // Shift the last digit into the highest byte, with zeros before the first digit.
    combined((word ^ ZEROS) << (64 - 8 * count))
}

/// Value of the first `count` bytes of a word, 1 to 8; `None` if they are not all digits.
#[inline(always)]
pub fn whole(word: u64, count: u32) -> Option<u32> {
    let digits = (word ^ ZEROS) << (64 - 8 * count);
    (others(digits) == 0).then(|| combined(digits))
}

/// Value of the last `count` bytes of a word, which must be 0 to 8 digits.
#[inline(always)]
pub(crate) fn value_at_end(word: u64, count: u32) -> u32 {
    // Shift twice by half, because a shift by 64 bits does nothing.
    let digits = (word ^ ZEROS) & !(!0 >> (4 * count) >> (4 * count));
    combined(digits)
}

/// The integer that eight bytes from 0 to 9 form, the first in the lowest bits.
#[inline(always)]
fn combined(digits: u64) -> u32 {
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul(10_000).wrapping_add(fours >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_of_digits_does_not_depend_on_the_byte_after_them() {
        for (digits, expected) in
            [("7", 7), ("90", 90), ("00405", 405), ("1234567", 1_234_567), ("98765432", 98_765_432)]
        {
            for next_byte in [0, b' ', b'/', b':', b'|', 0x7f, 0xb5, 0xff] {
                let mut bytes = [next_byte; 9];
                bytes[..digits.len()].copy_from_slice(digits.as_bytes());
                let word = word_at(&bytes, 0).unwrap();
                assert_eq!(count(word) as usize, digits.len(), "{digits} {next_byte}");
                assert_eq!(value(word, count(word)), expected, "{digits} {next_byte}");
                assert_eq!(whole(word, count(word)), Some(expected), "{digits} {next_byte}");
                assert!(digits.len() == 8 || whole(word, count(word) + 1).is_none(), "{digits} {next_byte}");
            }
        }
        let word = word_at(b"x 501234", 0).unwrap();
        assert_eq!([0, 1, 4, 6].map(|count| value_at_end(word, count)), [0, 4, 1234, 501_234]);
        assert_eq!(value_at_end(word_at(b"12345678", 0).unwrap(), 8), 12_345_678);
        assert_eq!(word_at(b"12345678", 1), None);
        assert_eq!(word_at(b"1", 2), None);
    }
}
