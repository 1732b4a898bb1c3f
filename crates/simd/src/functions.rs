//! The table of a kernel's functions.

use std::mem::MaybeUninit;

use crate::bytes::Pair;
use crate::forms::{SparseColumn, SparseForm};

/// The functions of a kernel, as documented at the methods of [`Kernel`](crate::Kernel). A function that an instruction
/// set cannot speed up comes from the scalar kernel's table.
///
/// The functions may only be called on a processor where `is_available` returns true.
#[allow(clippy::type_complexity)] // the methods of `Kernel` name the arguments
pub(crate) struct Functions {
    pub(crate) name: &'static str,
    pub(crate) is_available: fn() -> bool,
    pub(crate) dense_f32: unsafe fn(&[u8], usize, usize, &mut Vec<f32>) -> usize,
    pub(crate) sparse_f32: unsafe fn(&[u8], usize, u32, &mut Vec<i32>, &mut Vec<f32>) -> usize,
    pub(crate) sparse_lines: unsafe fn(&[u8], usize, usize, &SparseForm, &mut [SparseColumn], &mut Vec<usize>),
    pub(crate) find_all: unsafe fn(u8, &[u8], &mut Vec<u32>),
    pub(crate) widen_u8: unsafe fn(&[u8], &mut [MaybeUninit<f32>]),
    pub(crate) widen_u16: unsafe fn(&[u16], &mut [MaybeUninit<i32>]),
    pub(crate) widen_pairs: unsafe fn(&[Pair], &mut [MaybeUninit<i32>], &mut [MaybeUninit<f32>]),
    pub(crate) narrow_u8: unsafe fn(&[f32], &mut [MaybeUninit<u8>]) -> bool,
    pub(crate) narrow_pairs: unsafe fn(&[i32], &[f32], &mut [MaybeUninit<Pair>]) -> bool,
    pub(crate) floats_le: unsafe fn(&[u8], &mut [MaybeUninit<f32>]),
    pub(crate) floats_be: unsafe fn(&[u8], &mut [MaybeUninit<f32>]),
}
