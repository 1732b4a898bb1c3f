//! Loops over numbers in bytes and in small forms. Kernels compile them for their instructions: the compiler turns each
//! into vector instructions.

use std::mem::MaybeUninit;

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
