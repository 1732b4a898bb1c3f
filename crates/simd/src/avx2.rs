//! Blocks of 64 bytes in vectors of 32 bytes with AVX2, and widening of small numbers.
//!
//! The digits of decimals are converted in vectors of 16 bytes, two numbers at a time: with four numbers in 32 bytes the
//! loop was 0.95 times as fast. `docs/performance.md` says what bounds this kernel.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use crate::block::{self, BLOCK_BYTES, Block, MAX_TOKENS, TO_THE_FRONT, Token};
use crate::bytes;
use crate::functions::Functions;
use crate::scalar;
use crate::sse41::values_of_two;

pub(crate) static KERNEL: Functions = Functions {
    name: "avx2",
    is_available,
    dense_f32,
    sparse_f32,
    line_ends,
    widen_u8: widen,
    widen_u16: widen,
    floats_le,
    floats_be,
    ..scalar::KERNEL
};

fn is_available() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

/// 64 bytes. Only `load` creates such a value, so the processor has the instructions wherever there is one.
#[derive(Clone, Copy)]
struct Halves([__m256i; 2]);

impl Block for Halves {
    #[inline(always)]
    unsafe fn load(bytes: &[u8; BLOCK_BYTES]) -> Halves {
        let halves = bytes.as_chunks().0;
        // SAFETY: the caller guarantees the instructions.
        unsafe { Halves([load(&halves[0]), load(&halves[1])]) }
    }

    #[inline(always)]
    fn equal(self, byte: u8) -> u64 {
        // SAFETY: there is a value of this type.
        unsafe { equal(self, byte) }
    }

    #[inline(always)]
    fn blanks(self) -> u64 {
        // SAFETY: there is a value of this type.
        unsafe { blanks(self) }
    }

    #[inline(always)]
    fn digits(self) -> u64 {
        // SAFETY: there is a value of this type.
        unsafe { digits(self) }
    }

    #[inline(always)]
    fn values(self, a: Token, b: Token, c: Token, d: Token, out: &mut [MaybeUninit<f32>; 4]) -> u32 {
        let [low, high] = out.as_chunks_mut().0 else { unreachable!("four are two times two") };
        // SAFETY: there is a value of this type.
        unsafe { values_of_two(a, b, low) | values_of_two(c, d, high) << 2 }
    }

    #[inline(always)]
    fn short_integers(self, text: &[u8; 4 + BLOCK_BYTES], ends: u64, out: &mut [MaybeUninit<f32>; MAX_TOKENS + 8]) {
        // SAFETY: there is a value of this type.
        unsafe { short_integers(text, ends, out) }
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the reference is to 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the reference is to 16 bytes.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// All bits set for each byte that is at most 9.
#[target_feature(enable = "avx2")]
#[inline]
fn is_digit(digits: __m256i) -> __m256i {
    _mm256_cmpeq_epi8(_mm256_min_epu8(digits, _mm256_set1_epi8(9)), digits)
}

#[target_feature(enable = "avx2")]
#[inline]
fn mask(low: __m256i, high: __m256i) -> u64 {
    u64::from(_mm256_movemask_epi8(low) as u32) | u64::from(_mm256_movemask_epi8(high) as u32) << 32
}

#[target_feature(enable = "avx2")]
#[inline]
fn equal(Halves([low, high]): Halves, byte: u8) -> u64 {
    let wanted = _mm256_set1_epi8(byte as i8);
    mask(_mm256_cmpeq_epi8(low, wanted), _mm256_cmpeq_epi8(high, wanted))
}

#[target_feature(enable = "avx2")]
#[inline]
fn blanks(Halves(halves): Halves) -> u64 {
    let [low, high] = halves.map(|half| {
        let is_space = _mm256_cmpeq_epi8(half, _mm256_set1_epi8(b' ' as i8));
        _mm256_or_si256(is_space, _mm256_cmpeq_epi8(half, _mm256_set1_epi8(b'\t' as i8)))
    });
    mask(low, high)
}

#[target_feature(enable = "avx2")]
#[inline]
fn digits(Halves([low, high]): Halves) -> u64 {
    let zeros = _mm256_set1_epi8(b'0' as i8);
    mask(is_digit(_mm256_sub_epi8(low, zeros)), is_digit(_mm256_sub_epi8(high, zeros)))
}

/// The values of the runs of digits that end before each of 32 bytes; `text` is the bytes and the four bytes before
/// them. The first vector has the values at bytes 0 to 7 and 16 to 23, the second at bytes 8 to 15 and 24 to 31.
#[target_feature(enable = "avx2")]
#[inline]
fn runs(text: &[u8; 4 + 32]) -> [__m256i; 2] {
    let digits = |first: usize| {
        let bytes = text[first..].first_chunk().expect("32 bytes follow the first four");
        _mm256_sub_epi8(load(bytes), _mm256_set1_epi8(b'0' as i8))
    };
    let [thousands, hundreds, tens, units] = [digits(0), digits(1), digits(2), digits(3)];
    let has_tens = is_digit(tens);
    let has_hundreds = _mm256_and_si256(has_tens, is_digit(hundreds));
    let has_thousands = _mm256_and_si256(has_hundreds, is_digit(thousands));
    let tens = _mm256_and_si256(has_tens, tens);
    let hundreds = _mm256_and_si256(has_hundreds, hundreds);
    let thousands = _mm256_and_si256(has_thousands, thousands);
    let value = |low, high| {
        let low = _mm256_maddubs_epi16(low, _mm256_set1_epi16(0x0a01));
        let high = _mm256_maddubs_epi16(high, _mm256_set1_epi16(0x0a01));
        _mm256_add_epi16(low, _mm256_mullo_epi16(high, _mm256_set1_epi16(100)))
    };
    [
        value(_mm256_unpacklo_epi8(units, tens), _mm256_unpacklo_epi8(hundreds, thousands)),
        value(_mm256_unpackhi_epi8(units, tens), _mm256_unpackhi_epi8(hundreds, thousands)),
    ]
}

#[target_feature(enable = "avx2,popcnt")]
#[inline]
fn short_integers(text: &[u8; 4 + BLOCK_BYTES], ends: u64, out: &mut [MaybeUninit<f32>; MAX_TOKENS + 8]) {
    let mut length = 0;
    for half in 0..2 {
        let [even, odd] = runs(text[32 * half..].first_chunk().expect("the block has two halves"));
        let eights = [
            _mm256_castsi256_si128(even),
            _mm256_castsi256_si128(odd),
            _mm256_extracti128_si256(even, 1),
            _mm256_extracti128_si256(odd, 1),
        ];
        for (eight, values) in eights.into_iter().enumerate() {
            let ends = (ends >> (32 * half + 8 * eight)) as u8;
            let front = _mm_shuffle_epi8(values, load_16(&TO_THE_FRONT[usize::from(ends)]));
            let eight_out: &mut [_; 8] = out[length..].first_chunk_mut().expect("room for eight more");
            // SAFETY: the store writes eight values.
            unsafe {
                let front = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(front));
                _mm256_storeu_ps(eight_out.as_mut_ptr().cast(), front);
            }
            length += ends.count_ones() as usize;
        }
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn dense_f32(bytes: &[u8], at: usize, limit: usize, out: &mut Vec<f32>) -> usize {
    // SAFETY: this function has the same requirement.
    unsafe { block::dense_f32::<Halves>(bytes, at, limit, out) }
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn sparse_f32(bytes: &[u8], at: usize, dim: u32, indices: &mut Vec<i32>, values: &mut Vec<f32>) -> usize {
    // SAFETY: this function has the same requirement.
    unsafe { block::sparse_f32::<Halves>(bytes, at, dim, indices, values) }
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn line_ends(bytes: &[u8], out: &mut Vec<u32>) {
    // SAFETY: this function has the same requirement.
    unsafe { block::line_ends::<Halves>(bytes, out) }
}

#[target_feature(enable = "avx2")]
fn widen<Small: Copy, T: From<Small>>(small: &[Small], destination: &mut [MaybeUninit<T>]) {
    bytes::widen(small, destination);
}

#[target_feature(enable = "avx2")]
fn floats_le(bytes: &[u8], destination: &mut [MaybeUninit<f32>]) {
    bytes::floats_le(bytes, destination);
}

#[target_feature(enable = "avx2")]
fn floats_be(bytes: &[u8], destination: &mut [MaybeUninit<f32>]) {
    bytes::floats_be(bytes, destination);
}
