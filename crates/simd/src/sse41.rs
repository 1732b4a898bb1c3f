//! Blocks of 64 bytes in vectors of 16 bytes with SSE4.1, for x86-64 processors without AVX2.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use crate::block::{self, BLOCK_BYTES, Block, IS_NEAR_MIDDLE, MAX_TOKENS, TO_THE_FRONT, Token};
use crate::bytes;
use crate::functions::Functions;
use crate::scalar;

pub(crate) static KERNEL: Functions = Functions {
    name: "sse41",
    is_available: || is_x86_feature_detected!("sse4.1") && is_x86_feature_detected!("popcnt"),
    dense_f32,
    sparse_f32,
    line_ends,
    widen_u8: widen,
    widen_u16: widen,
    floats_le,
    floats_be,
    ..scalar::KERNEL
};

/// 64 bytes. Only `load` creates such a value, so the processor has the instructions wherever there is one.
#[derive(Clone, Copy)]
struct Sixteens([__m128i; 4]);

impl Block for Sixteens {
    #[inline(always)]
    unsafe fn load(bytes: &[u8; BLOCK_BYTES]) -> Sixteens {
        let [a, b, c, d] = bytes.as_chunks().0 else { unreachable!("64 bytes are four times 16") };
        // SAFETY: the caller guarantees the instructions.
        unsafe { Sixteens([load(a), load(b), load(c), load(d)]) }
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
fn mask(part: __m128i) -> u64 {
    u64::from(_mm_movemask_epi8(part) as u32)
}

#[target_feature(enable = "sse4.1")]
#[inline]
fn equal(Sixteens([a, b, c, d]): Sixteens, byte: u8) -> u64 {
    let wanted = _mm_set1_epi8(byte as i8);
    let equal = |part| mask(_mm_cmpeq_epi8(part, wanted));
    equal(a) | equal(b) << 16 | equal(c) << 32 | equal(d) << 48
}

#[target_feature(enable = "sse4.1")]
#[inline]
fn blanks(Sixteens([a, b, c, d]): Sixteens) -> u64 {
    let blanks = |part| {
        let is_space = _mm_cmpeq_epi8(part, _mm_set1_epi8(b' ' as i8));
        mask(_mm_or_si128(is_space, _mm_cmpeq_epi8(part, _mm_set1_epi8(b'\t' as i8))))
    };
    blanks(a) | blanks(b) << 16 | blanks(c) << 32 | blanks(d) << 48
}

#[target_feature(enable = "sse4.1")]
#[inline]
fn digits(Sixteens([a, b, c, d]): Sixteens) -> u64 {
    let digits = |part| mask(is_digit(_mm_sub_epi8(part, _mm_set1_epi8(b'0' as i8))));
    digits(a) | digits(b) << 16 | digits(c) << 32 | digits(d) << 48
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

/// The values of the runs of digits that end before each of 16 bytes, in order; `text` is the bytes and the four bytes
/// before them.
#[target_feature(enable = "sse4.1")]
#[inline]
fn runs(text: &[u8; 4 + 16]) -> [__m128i; 2] {
    let digits = |first: usize| {
        let bytes = text[first..].first_chunk().expect("16 bytes follow the first four");
        _mm_sub_epi8(load(bytes), _mm_set1_epi8(b'0' as i8))
    };
    let [thousands, hundreds, tens, units] = [digits(0), digits(1), digits(2), digits(3)];
    let has_tens = is_digit(tens);
    let has_hundreds = _mm_and_si128(has_tens, is_digit(hundreds));
    let has_thousands = _mm_and_si128(has_hundreds, is_digit(thousands));
    let tens = _mm_and_si128(has_tens, tens);
    let hundreds = _mm_and_si128(has_hundreds, hundreds);
    let thousands = _mm_and_si128(has_thousands, thousands);
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
fn short_integers(text: &[u8; 4 + BLOCK_BYTES], ends: u64, out: &mut [MaybeUninit<f32>; MAX_TOKENS + 8]) {
    let mut length = 0;
    for part in 0..4 {
        let eights = runs(text[16 * part..].first_chunk().expect("the block has four parts"));
        for (half, values) in eights.into_iter().enumerate() {
            let ends = (ends >> (16 * part + 8 * half)) as u8;
            let front = _mm_shuffle_epi8(values, load(&TO_THE_FRONT[usize::from(ends)]));
            let low = _mm_cvtepi32_ps(_mm_cvtepu16_epi32(front));
            let high = _mm_cvtepi32_ps(_mm_unpackhi_epi16(front, _mm_setzero_si128()));
            let eight_out: &mut [_; 8] = out[length..].first_chunk_mut().expect("room for eight more");
            // SAFETY: the stores write eight values.
            unsafe {
                _mm_storeu_ps(eight_out.as_mut_ptr().cast(), low);
                _mm_storeu_ps(eight_out.as_mut_ptr().add(4).cast(), high);
            }
            length += ends.count_ones() as usize;
        }
    }
}

#[target_feature(enable = "sse4.1,popcnt")]
fn dense_f32(bytes: &[u8], at: usize, limit: usize, out: &mut Vec<f32>) -> usize {
    // SAFETY: this function has the same requirement.
    unsafe { block::dense_f32::<Sixteens>(bytes, at, limit, out) }
}

#[target_feature(enable = "sse4.1,popcnt")]
fn sparse_f32(bytes: &[u8], at: usize, dim: u32, indices: &mut Vec<i32>, values: &mut Vec<f32>) -> usize {
    // SAFETY: this function has the same requirement.
    unsafe { block::sparse_f32::<Sixteens>(bytes, at, dim, indices, values) }
}

#[target_feature(enable = "sse4.1,popcnt")]
fn line_ends(bytes: &[u8], out: &mut Vec<u32>) {
    // SAFETY: this function has the same requirement.
    unsafe { block::line_ends::<Sixteens>(bytes, out) }
}

#[target_feature(enable = "sse4.1")]
fn widen<Small: Copy, T: From<Small>>(small: &[Small], destination: &mut [MaybeUninit<T>]) {
    bytes::widen(small, destination);
}

#[target_feature(enable = "sse4.1")]
fn floats_le(bytes: &[u8], destination: &mut [MaybeUninit<f32>]) {
    bytes::floats_le(bytes, destination);
}

#[target_feature(enable = "sse4.1")]
fn floats_be(bytes: &[u8], destination: &mut [MaybeUninit<f32>]) {
    bytes::floats_be(bytes, destination);
}
