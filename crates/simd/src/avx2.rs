//! Blocks of 64 bytes in vectors of 32 bytes with AVX2, and widening of small numbers.
//!
//! The digits of decimals are converted in vectors of 16 bytes, two numbers at a time: with four numbers in 32 bytes
//! the loop was 0.95 times as fast. `docs/performance.md` says what bounds this kernel.

use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm256_and_si256 as and, _mm256_cmpeq_epi8 as same, _mm256_or_si256 as or, _mm256_set1_epi8 as splat,
    _mm256_sub_epi8 as minus,
};
use std::mem::MaybeUninit;

use crate::block::{self, BLOCK_BYTES, Block, MAX_TOKENS, TO_THE_FRONT, Token, kernel_of_blocks};
use crate::bytes::{self, loops_over_bytes};
use crate::forms::{SparseColumn, SparseForm};
use crate::functions::Functions;
use crate::sparse_lines::{BlockEntries, Look, Plain, Room, kernel_of_lines, take_lines};
use crate::sse41::{entries, join, narrow_pairs, values_of_two, widen_pairs};

pub(crate) static KERNEL: Functions = Functions {
    name: "avx2",
    is_available,
    dense_f32,
    sparse_f32,
    sparse_lines,
    find_all,
    widen_u8: widen,
    widen_u16: widen,
    widen_pairs,
    narrow_u8,
    narrow_pairs,
    floats_le,
    floats_be,
};

fn is_available() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

loops_over_bytes!("avx2");
kernel_of_blocks!(__m256i, 2, 32, "avx2,bmi1,bmi2,lzcnt,popcnt");
kernel_of_lines!("avx2,bmi1,bmi2,lzcnt,popcnt");

#[target_feature(enable = "avx2")]
#[inline]
fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the reference is to 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// All bits set for each byte that is at most 9.
#[target_feature(enable = "avx2")]
#[inline]
fn is_digit(digits: __m256i) -> __m256i {
    _mm256_cmpeq_epi8(_mm256_min_epu8(digits, _mm256_set1_epi8(9)), digits)
}

#[target_feature(enable = "avx2")]
#[inline]
fn mask([low, high]: [__m256i; 2]) -> u64 {
    u64::from(_mm256_movemask_epi8(low) as u32) | u64::from(_mm256_movemask_epi8(high) as u32) << 32
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn runs(text: &[u8; 4 + 32]) -> [__m128i; 4] {
    let [thousands, hundreds, tens, units] = digits_of_runs(text);
    let value = |low, high| {
        let low = _mm256_maddubs_epi16(low, _mm256_set1_epi16(0x0a01));
        let high = _mm256_maddubs_epi16(high, _mm256_set1_epi16(0x0a01));
        _mm256_add_epi16(low, _mm256_mullo_epi16(high, _mm256_set1_epi16(100)))
    };
    // Unpacking works in both halves of a vector, so one result has the first eight values of each half.
    let first = value(_mm256_unpacklo_epi8(units, tens), _mm256_unpacklo_epi8(hundreds, thousands));
    let last = value(_mm256_unpackhi_epi8(units, tens), _mm256_unpackhi_epi8(hundreds, thousands));
    let (low, high) = (_mm256_castsi256_si128, _mm256_extracti128_si256::<1>);
    [low(first), low(last), high(first), high(last)]
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn write_front(values: __m128i, shuffle: &[u8; 16], out: &mut [MaybeUninit<f32>; 8]) {
    // SAFETY: the reference is to 16 bytes.
    let shuffle = unsafe { _mm_loadu_si128(shuffle.as_ptr().cast()) };
    let front = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(_mm_shuffle_epi8(values, shuffle)));
    // SAFETY: the store writes eight values.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr().cast(), front) };
}
