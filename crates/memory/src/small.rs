//! Numbers: conversion to a small form and back, and the bytes of files.

use crate::requests::{extend, reserve};
use cntkio_simd::{Kernel, Pair};
use std::mem::MaybeUninit;

/// Types of numbers, which can be kept in fewer bytes while they are small.
///
/// Only this module implements the trait: `unsafe` code relies on [`widen`](Number::widen) writing every element.
pub trait Number: Copy + Send + Sync + From<u8> + private::Sealed {
    /// The small form of such a number.
    type Small: Copy + Send + Sync;
    /// Append the numbers of one short piece of a file, with the lowest byte first;
    /// [`append_stored`](crate::copy::append_stored) is for many or long pieces.
    fn append_le(out: &mut Vec<Self>, bytes: &[u8]);
    /// The number that a small form stands for.
    fn widened(small: Self::Small) -> Self;
    /// Append the small forms of the numbers and return true, if each has a small form that stands for the same bits;
    /// otherwise append nothing and return false.
    ///
    /// ```
    /// use cntkio_memory::small::Number;
    ///
    /// let mut out = vec![];
    /// assert!(f32::narrow(&[0.0, 255.0], &mut out));
    /// assert!(!f32::narrow(&[1.0, 0.5], &mut out) && !f32::narrow(&[-0.0], &mut out));
    /// assert_eq!(out, [0, 255]);
    /// ```
    fn narrow(numbers: &[Self], out: &mut Vec<Self::Small>) -> bool;
    /// Write the numbers that small forms stand for into every element of a destination of the same length.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    fn widen(kernel: Kernel, small: &[Self::Small], destination: &mut [MaybeUninit<Self>]);

    /// Append entries as pairs and return true, if each number has a small form in a pair that stands for the same bits;
    /// otherwise append nothing and return false. Only floats have such a form.
    ///
    /// # Panics
    ///
    /// If there are not as many values as indices.
    fn narrow_pairs(_indices: &[i32], _values: &[Self], _out: &mut Vec<Pair>) -> bool {
        false
    }

    /// Write the indices and the values of pairs into every element of two destinations of the same length.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    fn widen_pairs(_: Kernel, pairs: &[Pair], indices: &mut [MaybeUninit<i32>], values: &mut [MaybeUninit<Self>]) {
        // `unsafe` code relies on every element being written.
        assert!(indices.len() == pairs.len() && values.len() == pairs.len());
        for ((&[low, high, small], index), value) in pairs.iter().zip(indices).zip(values) {
            index.write(u16::from_le_bytes([low, high]).into());
            value.write(small.into());
        }
    }
}

pub(crate) mod private {
    /// Implemented only by types of which any bytes are a valid value: `unsafe` code relies on that.
    pub trait Sealed {}
}

impl private::Sealed for u8 {}

macro_rules! numbers {
    ($($number:ty, $small:ty, $narrow:expr, $widen:expr $(, $pairs:item)*;)*) => {$(
        impl private::Sealed for $number {}
        impl Number for $number {
            type Small = $small;

            #[inline]
            fn append_le(out: &mut Vec<$number>, bytes: &[u8]) {
                extend(out, bytes.as_chunks().0.iter().map(|&bytes| <$number>::from_le_bytes(bytes)));
            }

            #[inline]
            fn widened(small: $small) -> $number {
                small.into()
            }

            fn narrow(numbers: &[$number], out: &mut Vec<$small>) -> bool {
                let before = out.len();
                reserve(out, numbers.len());
                // Work in blocks, so that numbers without a small form are rejected after the first block.
                for block in numbers.chunks(NUMBERS_NARROWED_AT_ONCE) {
                    let small = &mut out.spare_capacity_mut()[..block.len()];
                    if !$narrow(block, small) {
                        out.truncate(before);
                        return false;
                    }
                    // SAFETY: `$narrow` has written a small form for each number.
                    unsafe { out.set_len(out.len() + block.len()) };
                }
                true
            }

            #[inline]
            fn widen(kernel: Kernel, small: &[$small], destination: &mut [MaybeUninit<$number>]) {
                $widen(kernel, small, destination);
            }

            $($pairs)*
        }
    )*};
}

/// Append entries as pairs, in blocks, which the function returns as float32 if they are the same numbers.
fn append_pairs<T>(
    indices: &[i32],
    values: &[T],
    out: &mut Vec<Pair>,
    mut in_float32: impl for<'a> FnMut(&'a [T], &'a mut [f32; NUMBERS_NARROWED_AT_ONCE]) -> Option<&'a [f32]>,
) -> bool {
    assert!(indices.len() == values.len());
    let (before, kernel) = (out.len(), Kernel::selected());
    reserve(out, indices.len());
    let mut buffer = [0.0; NUMBERS_NARROWED_AT_ONCE];
    let blocks = indices.chunks(NUMBERS_NARROWED_AT_ONCE).zip(values.chunks(NUMBERS_NARROWED_AT_ONCE));
    for (indices, values) in blocks {
        let pairs = &mut out.spare_capacity_mut()[..indices.len()];
        if !in_float32(values, &mut buffer).is_some_and(|values| kernel.narrow_pairs(indices, values, pairs)) {
            out.truncate(before);
            return false;
        }
        // SAFETY: the kernel has written as many pairs as there are indices.
        unsafe { out.set_len(out.len() + indices.len()) };
    }
    true
}

/// Write small forms, given the function that makes one; true if each stands for the same bits.
fn narrow_each<T: Copy + From<S>, S: Copy>(
    numbers: &[T],
    small: &mut [MaybeUninit<S>],
    narrow: impl Fn(T) -> S,
    bits: impl Fn(T) -> u64,
) -> bool {
    // `unsafe` code relies on every element being written.
    assert!(small.len() == numbers.len());
    let mut is_wrong = false;
    for (out, &number) in small.iter_mut().zip(numbers) {
        let small = narrow(number);
        is_wrong |= bits(small.into()) != bits(number);
        out.write(small);
    }
    !is_wrong
}

/// Compiled without vector instructions of a kernel: numbers of 64 bits are rare.
fn widen_each<S: Copy + Into<T>, T>(small: &[S], destination: &mut [MaybeUninit<T>]) {
    // `unsafe` code relies on every element being written.
    assert!(destination.len() == small.len());
    for (out, &small) in destination.iter_mut().zip(small) {
        out.write(small.into());
    }
}

const NUMBERS_NARROWED_AT_ONCE: usize = 1 << 10;

// A float64 from 2^52 on has a unit of 1, so adding 2^52 to a small whole number puts that number into the lowest bits.
// The comparison of bits then rejects fractions, large numbers and -0.
numbers! {
    f32, u8, |values, small| Kernel::selected().narrow_u8(values, small), Kernel::widen_u8,
        fn narrow_pairs(indices: &[i32], values: &[f32], out: &mut Vec<Pair>) -> bool {
            append_pairs(indices, values, out, |values, _| Some(values))
        },
        #[inline]
        fn widen_pairs(
            kernel: Kernel,
            pairs: &[Pair],
            indices: &mut [MaybeUninit<i32>],
            values: &mut [MaybeUninit<f32>],
        ) {
            kernel.widen_pairs(pairs, indices, values);
        };
    f64, u8,
        |values, small| narrow_each(values, small, |v: f64| (v + 4_503_599_627_370_496.0).to_bits() as u8, f64::to_bits),
        |_, small, destination| widen_each(small, destination),
        fn narrow_pairs(indices: &[i32], values: &[f64], out: &mut Vec<Pair>) -> bool {
            append_pairs(indices, values, out, |values, buffer| {
                let buffer = &mut buffer[..values.len()];
                buffer.iter_mut().zip(values).for_each(|(single, &value)| *single = value as f32);
                let are_same = buffer.iter().zip(values).all(|(&single, value)| f64::from(single) == *value);
                are_same.then_some(&*buffer)
            })
        };
    i32, u16, |values, small| narrow_each(values, small, |v| v as u16, |v: i32| v as u64), Kernel::widen_u16;
    i64, u16, |values, small| narrow_each(values, small, |v| v as u16, |v: i64| v as u64),
        |_, small, destination| widen_each(small, destination);
}
