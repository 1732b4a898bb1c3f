//! Blocks of 64 bytes in vectors of 16 bytes with SSE4.1, for x86-64 processors without AVX2.

use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm_and_si128 as and, _mm_cmpeq_epi8 as same, _mm_or_si128 as or, _mm_set1_epi8 as splat, _mm_sub_epi8 as minus,
};
use std::mem::MaybeUninit;

use crate::block::{
    self, BLOCK_BYTES, Block, IS_NEAR_MIDDLE, MAX_ENTRIES, MAX_TOKENS, TO_THE_FRONT, Token, kernel_of_blocks,
};
use crate::bytes::{self, Pair, TO_LOWEST_BITS, loops_over_bytes};
use crate::forms::{SparseColumn, SparseForm};
use crate::functions::Functions;
use crate::sparse_lines::{BlockEntries, BlockPairs, Entry, Look, Plain, Room, kernel_of_lines, take_lines};

pub(crate) static KERNEL: Functions = Functions {
    name: "sse41",
    is_available: || is_x86_feature_detected!("sse4.1") && is_x86_feature_detected!("popcnt"),
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

loops_over_bytes!("sse4.1");
kernel_of_blocks!(__m128i, 4, 16, "sse4.1,popcnt");
kernel_of_lines!("sse4.1,popcnt");

#[target_feature(enable = "sse4.1")]
#[inline]
fn load(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the reference is to 16 bytes.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// All bits set for each byte that is at most 9.
#[target_feature(enable = "sse4.1")]
#[inline]
fn is_digit(digits: __m128i) -> __m128i {
    _mm_cmpeq_epi8(_mm_min_epu8(digits, _mm_set1_epi8(9)), digits)
}

#[target_feature(enable = "sse4.1")]
#[inline]
fn mask(vectors: [__m128i; 4]) -> u64 {
    let [a, b, c, d] = vectors.map(|vector| u64::from(_mm_movemask_epi8(vector) as u32));
    a | b << 16 | c << 32 | d << 48
}

/// The digits of a token as four integers of four digits.
#[target_feature(enable = "sse4.1")]
#[inline]
fn fours(token: Token) -> __m128i {
    let digits = _mm_sub_epi8(load(token.window), _mm_set1_epi8(b'0' as i8));
    let digits = _mm_shuffle_epi8(digits, load(&token.form.shuffle));
    _mm_madd_epi16(_mm_maddubs_epi16(digits, _mm_set1_epi16(0x010a)), _mm_set1_epi32(0x0001_0064))
}

/// Like [`Block::values`], for two tokens.
#[target_feature(enable = "sse4.1")]
#[inline]
pub(crate) fn values_of_two(a: Token, b: Token, out: &mut [MaybeUninit<f32>; 2]) -> u32 {
    let eights = _mm_madd_epi16(_mm_packus_epi32(fours(a), fours(b)), _mm_set1_epi32(0x0001_2710));
    // The first eight digits of both tokens, then the last eight. The product is exact, so the sum is rounded like an
    // integer of 64 bits.
    let halves = _mm_shuffle_epi32(eights, 0b11_01_10_00);
    let high = _mm_mul_pd(_mm_cvtepi32_pd(halves), _mm_set1_pd(1e8));
    let number = _mm_add_pd(high, _mm_cvtepi32_pd(_mm_srli_si128(halves, 8)));
    let product = _mm_mul_pd(number, _mm_setr_pd(a.form.scale, b.form.scale));
    let [error, masked, middle] = IS_NEAR_MIDDLE.map(|bits| _mm_set1_epi64x(bits));
    let near = _mm_and_si128(_mm_add_epi64(_mm_castpd_si128(product), error), masked);
    // SAFETY: the store writes eight bytes, two values.
    unsafe { _mm_storel_epi64(out.as_mut_ptr().cast(), _mm_castps_si128(_mm_cvtpd_ps(product))) };
    _mm_movemask_pd(_mm_castsi128_pd(_mm_cmpeq_epi64(near, middle))) as u32
}

#[target_feature(enable = "sse4.1,popcnt")]
#[inline]
fn runs(text: &[u8; 4 + 16]) -> [__m128i; 2] {
    let [thousands, hundreds, tens, units] = digits_of_runs(text);
    let value = |low, high| {
        let low = _mm_maddubs_epi16(low, _mm_set1_epi16(0x0a01));
        let high = _mm_maddubs_epi16(high, _mm_set1_epi16(0x0a01));
        _mm_add_epi16(low, _mm_mullo_epi16(high, _mm_set1_epi16(100)))
    };
    [
        value(_mm_unpacklo_epi8(units, tens), _mm_unpacklo_epi8(hundreds, thousands)),
        value(_mm_unpackhi_epi8(units, tens), _mm_unpackhi_epi8(hundreds, thousands)),
    ]
}

#[target_feature(enable = "sse4.1,popcnt")]
#[inline]
fn write_front(values: __m128i, shuffle: &[u8; 16], out: &mut [MaybeUninit<f32>; 8]) {
    let front = _mm_shuffle_epi8(values, load(shuffle));
    let low = _mm_cvtepi32_ps(_mm_cvtepu16_epi32(front));
    let high = _mm_cvtepi32_ps(_mm_unpackhi_epi16(front, _mm_setzero_si128()));
    // SAFETY: the stores write eight values.
    unsafe {
        _mm_storeu_ps(out.as_mut_ptr().cast(), low);
        _mm_storeu_ps(out.as_mut_ptr().add(4).cast(), high);
    }
}

/// The digits of two entries as two integers each: the value times 128 plus the last two digits of the index, and the
/// index without these.
#[target_feature(enable = "sse4.1")]
#[inline]
fn two_entries(a: &Entry, b: &Entry) -> __m128i {
    let (a, b) = (u64::from_le_bytes(*a) as i64, u64::from_le_bytes(*b) as i64);
    let digits = _mm_sub_epi8(_mm_set_epi64x(b, a), _mm_set1_epi8(b'0' as i8));
    // Each value, a zero, and the digits of the index from the last on.
    let digits = _mm_shuffle_epi8(digits, load(&[7, 0x80, 5, 4, 3, 2, 1, 0, 15, 0x80, 13, 12, 11, 10, 9, 8]));
    let digit = is_digit(digits);
    // Adding 1 carries through the digits to the byte after them, and clears them.
    let after = _mm_add_epi64(digit, _mm_set1_epi64x(1));
    let digits = _mm_and_si128(digits, _mm_andnot_si128(after, digit));
    let pairs = _mm_maddubs_epi16(digits, _mm_set1_epi64x(0x0a01_0a01_0a01_0001));
    _mm_madd_epi16(pairs, _mm_set1_epi64x(0x0064_0001_0001_0080))
}

/// Write the indices and values of four entries; the result has a bit set for each index above `last_index`.
#[target_feature(enable = "sse4.1")]
#[inline]
pub(crate) fn entries(
    [a, b, c, d]: [&Entry; 4],
    last_index: u32,
    indices: &mut [MaybeUninit<i32>; 4],
    values: &mut [MaybeUninit<f32>; 4],
) -> u32 {
    let (first, last) = (_mm_castsi128_ps(two_entries(a, b)), _mm_castsi128_ps(two_entries(c, d)));
    let low = _mm_castps_si128(_mm_shuffle_ps(first, last, 0b10_00_10_00));
    let high = _mm_castps_si128(_mm_shuffle_ps(first, last, 0b11_01_11_01));
    let index = _mm_madd_epi16(high, _mm_set1_epi32(100));
    let index = _mm_add_epi32(index, _mm_and_si128(low, _mm_set1_epi32(127)));
    // SAFETY: the stores write four numbers each.
    unsafe {
        _mm_storeu_si128(indices.as_mut_ptr().cast(), index);
        _mm_storeu_ps(values.as_mut_ptr().cast(), _mm_cvtepi32_ps(_mm_srli_epi32(low, 7)));
    }
    _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpgt_epi32(index, _mm_set1_epi32(last_index as i32)))) as u32
}

/// Pairs whose bytes are loaded, or stored, at once.
const PAIRS: usize = 4;
/// Pairs that take the bytes of a vector, or more.
const MOST_IN_A_VECTOR: usize = 6;

/// Write the index and the value of each pair, four at a time.
#[target_feature(enable = "sse4.1")]
pub(crate) fn widen_pairs(pairs: &[Pair], indices: &mut [MaybeUninit<i32>], values: &mut [MaybeUninit<f32>]) {
    let (count, text) = (pairs.len(), pairs.as_flattened());
    assert!(indices.len() == count && values.len() == count);
    if count < MOST_IN_A_VECTOR {
        return bytes::widen_pairs(pairs, indices, values);
    }
    let mut four = |number: usize, bytes: &[u8], shuffle: &[u8; 16]| {
        let words = _mm_shuffle_epi8(load(bytes.first_chunk().expect("a vector of pairs")), load(shuffle));
        let (indices, values) = (&mut indices[number..number + PAIRS], &mut values[number..number + PAIRS]);
        // SAFETY: the stores write four numbers each.
        unsafe {
            _mm_storeu_si128(indices.as_mut_ptr().cast(), _mm_and_si128(words, _mm_set1_epi32(0xffff)));
            _mm_storeu_ps(values.as_mut_ptr().cast(), _mm_cvtepi32_ps(_mm_srli_epi32(words, 16)));
        }
    };
    const FIRST: [u8; 16] = [0, 1, 2, 0x80, 3, 4, 5, 0x80, 6, 7, 8, 0x80, 9, 10, 11, 0x80];
    const LAST: [u8; 16] = [4, 5, 6, 0x80, 7, 8, 9, 0x80, 10, 11, 12, 0x80, 13, 14, 15, 0x80];
    for number in (0..=count - MOST_IN_A_VECTOR).step_by(PAIRS) {
        four(number, &text[3 * number..], &FIRST);
    }
    // Up to five are left. Some of the last six may be written twice, which takes less time than a branch.
    four(count - MOST_IN_A_VECTOR, &text[3 * (count - MOST_IN_A_VECTOR)..], &FIRST);
    four(count - PAIRS, &text[3 * count - 16..], &LAST);
}

/// Write the pairs of sixteen indices below 2^16 and of digits.
#[target_feature(enable = "sse4.1")]
#[inline]
pub(crate) fn join(indices: &[i32; MAX_ENTRIES], values: &[f32; MAX_ENTRIES], pairs: &mut BlockPairs) {
    let shuffle = load(&[0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 0x80, 0x80, 0x80, 0x80]);
    for number in (0..MAX_ENTRIES).step_by(PAIRS) {
        let (indices, values) = (&indices[number..number + PAIRS], &values[number..number + PAIRS]);
        // SAFETY: the loads read four numbers each.
        let (index, value) = unsafe { (_mm_loadu_si128(indices.as_ptr().cast()), _mm_loadu_ps(values.as_ptr())) };
        let words = _mm_or_si128(index, _mm_slli_epi32(_mm_cvttps_epi32(value), 16));
        let out = &mut pairs[number..number + MOST_IN_A_VECTOR];
        // SAFETY: six pairs have 18 bytes, of which the store writes 16.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), _mm_shuffle_epi8(words, shuffle)) };
    }
}

/// Write pairs, four at a time; true if each stands for the same bits.
#[target_feature(enable = "sse4.1")]
pub(crate) fn narrow_pairs(indices: &[i32], values: &[f32], pairs: &mut [MaybeUninit<Pair>]) -> bool {
    let count = pairs.len();
    assert!(indices.len() == count && values.len() == count);
    let shuffle = load(&[0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 0x80, 0x80, 0x80, 0x80]);
    let (mut number, mut wrong) = (0, _mm_setzero_si128());
    // A store writes 16 bytes, of which the last four are written again.
    while number + MOST_IN_A_VECTOR <= count {
        // SAFETY: the loads read four numbers each.
        let (index, value) = unsafe {
            let (indices, values) = (&indices[number..number + PAIRS], &values[number..number + PAIRS]);
            (_mm_loadu_si128(indices.as_ptr().cast()), _mm_loadu_ps(values.as_ptr()))
        };
        let moved = _mm_castps_si128(_mm_add_ps(value, _mm_set1_ps(TO_LOWEST_BITS)));
        let small = _mm_and_si128(moved, _mm_set1_epi32(0xff));
        let other = _mm_castps_si128(_mm_xor_ps(value, _mm_cvtepi32_ps(small)));
        wrong = _mm_or_si128(wrong, _mm_or_si128(other, _mm_srli_epi32(index, 16)));
        let words = _mm_or_si128(index, _mm_slli_epi32(small, 16));
        let out = &mut pairs[number..number + MOST_IN_A_VECTOR];
        // SAFETY: six pairs have 18 bytes, of which the store writes 16.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), _mm_shuffle_epi8(words, shuffle)) };
        number += PAIRS;
    }
    let are_small = bytes::narrow_pairs(&indices[number..], &values[number..], &mut pairs[number..]);
    are_small & (_mm_testz_si128(wrong, wrong) == 1)
}
