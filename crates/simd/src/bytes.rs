//! Loops over numbers in bytes and in small forms. Kernels compile them for their instructions: the compiler turns each
//! into vector instructions.

use std::mem::MaybeUninit;

/// An entry of small numbers: an index below 2^16, its lowest byte first, and a value below 2^8.
pub type Pair = [u8; 3];

/// Define the functions of this module once more, compiled for the instructions `$features`.
#[cfg(target_arch = "x86_64")]
macro_rules! loops_over_bytes {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        fn widen<Small: Copy, T: From<Small>>(small: &[Small], destination: &mut [MaybeUninit<T>]) {
            // The loop is inlined here, so the compiler may use the instructions of this function for it.
            bytes::widen(small, destination);
        }

        #[target_feature(enable = $features)]
        fn narrow_u8(values: &[f32], small: &mut [MaybeUninit<u8>]) -> bool {
            bytes::narrow_u8(values, small)
        }

        #[target_feature(enable = $features)]
        fn floats_le(bytes: &[u8], destination: &mut [MaybeUninit<f32>]) {
            bytes::floats_le(bytes, destination);
        }

        #[target_feature(enable = $features)]
        fn floats_be(bytes: &[u8], destination: &mut [MaybeUninit<f32>]) {
            bytes::floats_be(bytes, destination);
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use loops_over_bytes;

/// Write the numbers that small forms stand for into a destination of the same length.
#[inline(always)]
pub(crate) fn widen<Small: Copy, T: From<Small>>(small: &[Small], destination: &mut [MaybeUninit<T>]) {
    // The caller uses every element afterwards, and `zip` would silently leave out the rest of a longer destination.
    assert!(destination.len() == small.len());
    for (out, &small) in destination.iter_mut().zip(small) {
        out.write(small.into());
    }
}

/// Write the index and the value of each pair.
#[inline(always)]
pub(crate) fn widen_pairs(pairs: &[Pair], indices: &mut [MaybeUninit<i32>], values: &mut [MaybeUninit<f32>]) {
    assert!(indices.len() == pairs.len() && values.len() == pairs.len());
    for ((&[low, high, small], index), value) in pairs.iter().zip(indices).zip(values) {
        index.write(u16::from_le_bytes([low, high]).into());
        value.write(small.into());
    }
}

/// A float32 from 2^23 on has a unit of 1, so adding 2^23 to a small whole number puts that number into the lowest bits.
/// A comparison of bits then rejects fractions, large numbers and -0.
pub(crate) const TO_LOWEST_BITS: f32 = 8_388_608.0;

/// Write the small forms of values; true if each stands for the same bits.
#[inline(always)]
pub(crate) fn narrow_u8(values: &[f32], small: &mut [MaybeUninit<u8>]) -> bool {
    assert!(values.len() == small.len());
    let mut wrong = 0;
    for (&value, out) in values.iter().zip(small) {
        let small = (value + TO_LOWEST_BITS).to_bits() as u8;
        // The differences are collected without a branch for each value.
        wrong |= f32::from(small).to_bits() ^ value.to_bits();
        out.write(small);
    }
    wrong == 0
}

/// Write pairs; true if each stands for the same bits.
#[inline(always)]
pub(crate) fn narrow_pairs(indices: &[i32], values: &[f32], pairs: &mut [MaybeUninit<Pair>]) -> bool {
    assert!(indices.len() == pairs.len() && values.len() == pairs.len());
    let mut wrong = 0;
    for ((&index, &value), pair) in indices.iter().zip(values).zip(pairs) {
        let ([low, high], small) = ((index as u16).to_le_bytes(), (value + TO_LOWEST_BITS).to_bits() as u8);
        wrong |= (index >> 16) as u32 | (f32::from(small).to_bits() ^ value.to_bits());
        pair.write([low, high, small]);
    }
    wrong == 0
}

/// Write the values of little-endian bytes into a destination of as many values.
#[inline(always)]
pub(crate) fn floats_le(bytes: &[u8], destination: &mut [MaybeUninit<f32>]) {
    assert!(destination.len() == bytes.len() / 4);
    for (out, value) in destination.iter_mut().zip(bytes.as_chunks().0) {
        out.write(f32::from_le_bytes(*value));
    }
}

/// Write the values of big-endian bytes into a destination of as many values.
#[inline(always)]
pub(crate) fn floats_be(bytes: &[u8], destination: &mut [MaybeUninit<f32>]) {
    assert!(destination.len() == bytes.len() / 4);
    for (out, value) in destination.iter_mut().zip(bytes.as_chunks().0) {
        out.write(f32::from_be_bytes(*value));
    }
}
