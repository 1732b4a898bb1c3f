//! Kernels that process blocks of 64 bytes with AVX-512 (VBMI2).
//!
//! ```text
//! bytes     "-1.25 7 30 |"         one block
//! masks     digit, point, sign, blank -> starts and ends of tokens, one bit each
//! compress  positions of starts, ends and points, one byte a token
//! permute   the digits of each token, right-aligned without the point, into lanes of 4, 8 or 16 bytes
//! multiply  pairs of digits, of pairs, of fours -> one integer a lane
//! finish    to float64, times a power of ten, to float32, sign
//! ```
//!
//! A block starts where a token may start. Only tokens that end inside the block are converted; the next block starts
//! after the last of them.
//!
//! Orders of lanes, for tokens A, B, C, …, right-aligned digits in each lane:
//!
//! ```text
//! LANES_OF_4            A B C D | E F G H | I J K L | M N O P    16 lanes of  4 bytes, for `values_of_4`
//! LANES_OF_8             A   B  |  C   D  |  E   F  |  G   H      8 lanes of  8 bytes, for `eight_u64`
//! LANES_OF_8_IN_FOURS    A   B  |  E   F  |  I   J  |  M   N      8 lanes of  8 bytes; a second vector, from token 2
//!                        C   D  |  G   H  |  K   L  |  O   P      on, completes the fours, for `sixteen_u32`
//! LANES_OF_16              A    |    B    |    C    |    D        4 lanes of 16 bytes, for `eight_u64_of_16_digits`
//! ```
//!
//! `_mm512_packus_epi32` works inside 128-bit parts (between the bars above): it joins A B of its first argument and C
//! D of its second to the four A B C D. Therefore `sixteen_u32` takes tokens in that order.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use crate::bytes::{self, Pair, TO_LOWEST_BITS};
use crate::forms::{MAX_STEPS, SparseColumn, SparseForm, Step};
use crate::functions::Functions;
use crate::prefetch::{prefetch, prefetch_from};
use crate::scalar::{self, INVERSE_POWERS, ends_sample};
use crate::sparse_lines::{BlockEntries, BlockPairs, Lines, Look, Plain, Room, Target, take_lines};

pub(crate) static KERNEL: Functions = Functions {
    name: "avx512",
    is_available,
    dense_f32,
    sparse_f32,
    sparse_lines,
    find_all,
    widen_u8,
    widen_u16,
    widen_pairs,
    narrow_u8,
    narrow_pairs,
    floats_le,
    floats_be,
};

/// Largest number of tokens in a block: a token has at least one byte, and at least one separates it from the next.
const MAX_TOKENS: usize = 32;
/// Largest number of sparse entries in a block: an entry and its separator have at least four bytes.
const MAX_ENTRIES: usize = 16;

/// Bytes of text for which `find_all` reserves memory at a time.
const FIND_PART_BYTES: usize = 1 << 14;

/// Distance from the current block to the text that is prefetched.
const AHEAD_BYTES: usize = 512;

fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

/// The numbers 0 to 63.
const POSITIONS: [u8; 64] = lanes(1).0;
/// For lanes of N bytes: the token (counted from the first) of each byte, and the byte's distance from its lane's last
/// byte.
const LANES_OF_4: ([u8; 64], [u8; 64]) = lanes(4);
const LANES_OF_8: ([u8; 64], [u8; 64]) = lanes(8);
/// Like `LANES_OF_8`, for the first two of every four tokens; see the module's drawing.
const LANES_OF_8_IN_FOURS: ([u8; 64], [u8; 64]) = {
    let (mut lane, distance) = lanes(8);
    let mut byte = 0;
    while byte < 64 {
        lane[byte] += lane[byte] / 2 * 2;
        byte += 1;
    }
    (lane, distance)
};
const LANES_OF_16: ([u8; 64], [u8; 64]) = lanes(16);

const fn lanes(width: usize) -> ([u8; 64], [u8; 64]) {
    let (mut lane, mut distance) = ([0; 64], [0; 64]);
    let mut byte = 0;
    while byte < 64 {
        lane[byte] = (byte / width) as u8;
        distance[byte] = (width - 1 - byte % width) as u8;
        byte += 1;
    }
    (lane, distance)
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn block(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the reference is to 64 bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// At most 64 bytes, and zeros after them.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn short_block(bytes: &[u8]) -> __m512i {
    // SAFETY: a masked load touches only the bytes of its mask, and those are in the slice.
    unsafe { _mm512_maskz_loadu_epi8(below(bytes.len()), bytes.as_ptr().cast()) }
}

/// The block at `at`; zeros stand for bytes after the end of the slice.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn load(bytes: &[u8], at: usize) -> __m512i {
    match bytes.get(at..).and_then(<[u8]>::first_chunk) {
        Some(whole) => block(whole),
        None => load_at_the_end(bytes, at),
    }
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[cold]
#[inline(never)]
fn load_at_the_end(bytes: &[u8], at: usize) -> __m512i {
    short_block(bytes.get(at..).unwrap_or_default())
}

/// Write the float32 values of sixteen integers.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn store_values(integers: __m512i, out: &mut [MaybeUninit<f32>; 16]) {
    // SAFETY: the store writes sixteen values.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr().cast(), _mm512_cvtepi32_ps(integers)) };
}

/// Write the first of sixteen integers, one for each of at most sixteen elements.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn store_first(integers: __m512i, out: &mut [MaybeUninit<i32>]) {
    // SAFETY: a masked store touches only the elements of its mask, and those are in the slice.
    unsafe { _mm512_mask_storeu_epi32(out.as_mut_ptr().cast(), below(out.len()) as u16, integers) };
}

/// Write the float32 values of the first of sixteen integers, one for each of at most sixteen elements.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn store_first_values(integers: __m512i, out: &mut [MaybeUninit<f32>]) {
    // SAFETY: as in `store_first`.
    unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr().cast(), below(out.len()) as u16, _mm512_cvtepi32_ps(integers)) };
}

/// Prefetch the text `AHEAD_BYTES` after `at`: a block takes less time than a load from the second-level cache.
#[inline]
fn prefetch_ahead(bytes: &[u8], at: usize) {
    if let Some(text) = bytes.get(at + AHEAD_BYTES..) {
        prefetch(text, 1);
    }
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn equal(block: __m512i, byte: u8) -> u64 {
    _mm512_cmpeq_epi8_mask(block, _mm512_set1_epi8(byte as i8))
}

/// Classes of the bytes of a block, one bit for each byte.
struct Classes {
    /// The bytes minus the character `0`.
    digits: __m512i,
    digit: u64,
    blank: u64,
    colon: u64,
    /// Points directly after a digit.
    point: u64,
    /// Signs directly before a digit.
    sign: u64,
    /// The minus signs among them.
    negative: u64,
    /// All other bytes.
    other: u64,
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn classify<const SPARSE: bool>(block: __m512i) -> Classes {
    let mut classes = classify_without_signs::<SPARSE>(block);
    if classes.other != 0 {
        find_signs(block, &mut classes);
    }
    classes
}

/// Classify the bytes of a block, with points and signs in `other`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn classify_without_signs<const SPARSE: bool>(block: __m512i) -> Classes {
    let digits = _mm512_sub_epi8(block, _mm512_set1_epi8(b'0' as i8));
    let digit = _mm512_cmplt_epu8_mask(digits, _mm512_set1_epi8(10));
    let blank = equal(block, b' ') | equal(block, b'\t');
    let colon = if SPARSE { equal(block, b':') } else { 0 };
    Classes { digits, digit, blank, colon, point: 0, sign: 0, negative: 0, other: !(digit | blank | colon) }
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn find_signs(block: __m512i, classes: &mut Classes) {
    classes.point = equal(block, b'.') & (classes.digit << 1);
    classes.negative = equal(block, b'-') & (classes.digit >> 1);
    classes.sign = classes.negative;
    classes.other &= !(classes.point | classes.sign);
    if classes.other != 0 {
        classes.sign |= equal(block, b'+') & (classes.digit >> 1);
        classes.other &= !classes.sign;
    }
}

/// A mask of the lowest `count` bits; `count` is at most 64 (the instruction looks at its lowest 8 bits).
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn below(count: usize) -> u64 {
    _bzhi_u64(!0, count as u32)
}

/// Size of the certain part of a block, and true if the sample ends there. The certain part ends after the last blank,
/// or at the end of the sample.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn certain_part(bytes: &[u8], at: usize, blank: u64, other: u64) -> (usize, bool) {
    // The next block cannot start before this size is known, so the common case depends on `blank` only.
    if other == 0 {
        return (64 - _lzcnt_u64(blank) as usize, false);
    }
    let first_other = _tzcnt_u64(other) as usize;
    if bytes.get(at + first_other).is_some_and(|byte| ends_sample(*byte)) {
        (first_other, true)
    } else {
        (64 - _lzcnt_u64(blank & below(first_other)) as usize, false)
    }
}

/// Tokens of a block: runs of digits and points.
struct Tokens {
    /// The block's bytes minus the character `0`.
    digits: __m512i,
    /// Bytes of tokens, one bit for each.
    body: u64,
    /// Points of tokens, one bit for each.
    point: u64,
    /// Position of each token's first byte.
    first: __m512i,
    /// Position of each token's last byte.
    last: __m512i,
}

/// The tokens whose first and last bytes are these, one bit for each.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn tokens(digits: __m512i, body: u64, point: u64, starts: u64, ends: u64) -> Tokens {
    let first = _mm512_maskz_compress_epi8(starts, block(&POSITIONS));
    Tokens { digits, body, point, first, last: _mm512_maskz_compress_epi8(ends, block(&POSITIONS)) }
}

/// Decimal points of the tokens.
struct Points {
    /// Bit k is set if token k has a point.
    has_point: u64,
    /// Position of each token's point.
    position: __m512i,
    /// Number of digits after each token's point; zero without a point.
    places: __m512i,
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn points(tokens: &Tokens, ends: u64) -> Points {
    // Adding a point's bit to the set bits of its token carries into the bit after the token.
    let after_token = tokens.body.wrapping_add(tokens.point) & !tokens.body;
    let has_point = _pext_u64(after_token >> 1, ends);
    let positions = _mm512_maskz_compress_epi8(tokens.point, block(&POSITIONS));
    // For a token without a point, use a position before all bytes, so that no digit is left of the point.
    let position = _mm512_mask_expand_epi8(_mm512_set1_epi8(-128), has_point, positions);
    let places = _mm512_maskz_sub_epi8(has_point, tokens.last, position);
    Points { has_point, position, places }
}

/// Digits of the tokens from number `from` on, right-aligned in lanes and padded with zeros.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn gather(tokens: &Tokens, points: Option<&Points>, lanes: &([u8; 64], [u8; 64]), from: usize) -> __m512i {
    let token = _mm512_add_epi8(block(&lanes.0), _mm512_set1_epi8(from as i8));
    let mut source = _mm512_sub_epi8(_mm512_permutexvar_epi8(token, tokens.last), block(&lanes.1));
    if let Some(points) = points {
        let point = _mm512_permutexvar_epi8(token, points.position);
        let before = _mm512_cmple_epi8_mask(source, point);
        source = _mm512_mask_sub_epi8(source, before, source, _mm512_set1_epi8(1));
    }
    let inside = _mm512_cmpge_epi8_mask(source, _mm512_permutexvar_epi8(token, tokens.first));
    _mm512_maskz_permutexvar_epi8(inside, source, tokens.digits)
}

/// Convert 16 lanes of 4 digits to 16 integers of 32 bits.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn values_of_4(digits: __m512i) -> __m512i {
    let pairs = _mm512_maddubs_epi16(digits, _mm512_set1_epi16(0x010a));
    _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x0001_0064))
}

/// Convert 8 lanes of 8 digits to integers of 32 bits. Each 128-bit part holds its two integers twice: A B A B.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn eight_u32_twice(digits: __m512i) -> __m512i {
    let fours = values_of_4(digits);
    let fours = _mm512_packus_epi32(fours, fours);
    _mm512_madd_epi16(fours, _mm512_set1_epi32(0x0001_2710))
}

/// Convert 8 lanes of 8 digits to 8 integers of 64 bits.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn eight_u64(digits: __m512i) -> __m512i {
    _mm512_maskz_shuffle_epi32(0x5555, eight_u32_twice(digits), 0b01_01_00_00)
}

/// Convert two vectors of 8 lanes of 8 digits to 16 integers of 32 bits, in the order of the tokens. The lanes are
/// `LANES_OF_8_IN_FOURS`: `low` holds the first two of every four tokens, `high` the other two.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn sixteen_u32(low: __m512i, high: __m512i) -> __m512i {
    let fours = _mm512_packus_epi32(values_of_4(low), values_of_4(high));
    _mm512_madd_epi16(fours, _mm512_set1_epi32(0x0001_2710))
}

/// Convert two vectors of 4 lanes of 16 digits to 8 integers of 64 bits.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn eight_u64_of_16_digits(low: __m512i, high: __m512i) -> __m512i {
    let join = |halves: __m512i| {
        let upper = _mm512_mul_epu32(halves, _mm512_set1_epi64(100_000_000));
        _mm512_add_epi64(upper, _mm512_srli_epi64(halves, 32))
    };
    let even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
    _mm512_permutex2var_epi64(join(eight_u32_twice(low)), even, join(eight_u32_twice(high)))
}

/// Round `digits / 10^places` with its sign to float32. The result's mask has a bit set for each lane where two
/// roundings (to float64, then to float32) may differ from one.
///
/// The product's error is at most three units of float64: one for each of three roundings (of digits beyond 2^53, of
/// the power of ten, and of the product), because half a unit may become a whole unit beyond a power of two.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn finish(digits: __m512i, places: __m512i, negative: u8) -> (__m256, u8) {
    let [low, high] = [0, 8].map(|first| {
        let powers: &[f64; 8] = INVERSE_POWERS[first..].first_chunk().expect("there are 20 powers");
        // SAFETY: the reference is to eight values.
        unsafe { _mm512_loadu_pd(powers.as_ptr()) }
    });
    let scale = _mm512_permutex2var_pd(low, places, high);
    let product = _mm512_mul_pd(_mm512_cvtepu64_pd(digits), scale);
    let beyond_float32 = _mm512_and_si512(_mm512_castpd_si512(product), _mm512_set1_epi64(0x1fff_ffff));
    let distance = _mm512_sub_epi64(beyond_float32, _mm512_set1_epi64((1 << 28) - 4));
    let near_middle = _mm512_cmple_epu64_mask(distance, _mm512_set1_epi64(8));
    let size = _mm256_castps_si256(_mm512_cvtpd_ps(product));
    let value = _mm256_mask_or_epi32(size, negative, size, _mm256_set1_epi32(i32::MIN));
    (_mm256_castsi256_ps(value), near_middle)
}

/// Convert up to `count` tokens, 8 at a time, into `out`; returns the number of tokens before the first uncertain one.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn convert(tokens: &Tokens, points: &Points, negative: u64, count: usize, out: &mut [MaybeUninit<f32>]) -> usize {
    let span = _mm512_sub_epi8(tokens.last, tokens.first);
    let span = _mm512_mask_sub_epi8(span, points.has_point, span, _mm512_set1_epi8(1));
    let longer_than = |digits: i8| _mm512_mask_cmpge_epu8_mask(below(count), span, _mm512_set1_epi8(digits));
    let is_long = longer_than(8) != 0;
    let count = if is_long { count.min(_tzcnt_u64(longer_than(16)) as usize) } else { count };
    let eights: &mut [[MaybeUninit<f32>; 8]] = out.as_chunks_mut().0;
    for (eight, done) in eights.iter_mut().zip((0..count).step_by(8)) {
        let digits = if is_long {
            eight_u64_of_16_digits(
                gather(tokens, Some(points), &LANES_OF_16, done),
                gather(tokens, Some(points), &LANES_OF_16, done + 4),
            )
        } else {
            eight_u64(gather(tokens, Some(points), &LANES_OF_8, done))
        };
        let token = _mm512_add_epi8(block(&LANES_OF_8.0), _mm512_set1_epi8(done as i8));
        let places = _mm512_maskz_permutexvar_epi8(0x0101_0101_0101_0101, token, points.places);
        let (values, near_middle) = finish(digits, places, (negative >> done) as u8);
        // SAFETY: the store writes eight values.
        unsafe { _mm256_storeu_ps(eight.as_mut_ptr().cast(), values) };
        if near_middle != 0 {
            return count.min(done + near_middle.trailing_zeros() as usize);
        }
    }
    count
}

/// Convert `count` integers of at most four digits, 16 at a time.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn convert_integers(tokens: &Tokens, count: usize, out: &mut [MaybeUninit<f32>; MAX_TOKENS]) {
    let (first, rest) = out.split_first_chunk_mut().expect("a block has room for 32 values");
    store_values(values_of_4(gather(tokens, None, &LANES_OF_4, 0)), first);
    if count > 16 {
        let last = rest.first_chunk_mut().expect("16 values follow the first 16");
        store_values(values_of_4(gather(tokens, None, &LANES_OF_4, 16)), last);
    }
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn dense_f32(bytes: &[u8], at: usize, limit: usize, out: &mut Vec<f32>) -> usize {
    let limit = limit.min(bytes.len().saturating_sub(at));
    if out.try_reserve(limit + MAX_TOKENS).is_err() {
        return at;
    }
    let (at, written) = dense_into(bytes, at, limit, out.spare_capacity_mut());
    // SAFETY: `dense_into` returns how many values it wrote.
    unsafe { out.set_len(out.len() + written) };
    at
}

/// Stride of the loop over short integers. Consecutive blocks overlap by 4 bytes, so a token of up to 4 digits is
/// complete in the block that contains the blank after it.
const SHORT_INTEGER_STRIDE_BYTES: usize = 60;

/// Convert integers of at most four digits, each followed by a blank, from `at` on, as long as whole blocks contain
/// nothing else; returns the position after the last integer, and the number of values written.
///
/// A token is converted in the block that contains the blank after it. Positions of blocks therefore do not depend on
/// the text, and no block waits for the end of the previous one.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn short_integers(bytes: &[u8], at: usize, out: &mut [MaybeUninit<f32>]) -> (usize, usize) {
    let (mut start, mut written, mut shared) = (at, 0, 0);
    loop {
        let text = load(bytes, start);
        let digits = _mm512_sub_epi8(text, _mm512_set1_epi8(b'0' as i8));
        let digit = _mm512_cmplt_epu8_mask(digits, _mm512_set1_epi8(10));
        let blank = equal(text, b' ') | equal(text, b'\t');
        let after_token = !digit & (digit << 1);
        let size_before = 64 - _lzcnt_u64(after_token & shared) as usize;
        let runs_of_2 = digit & (digit << 1);
        let runs_of_5 = runs_of_2 & (runs_of_2 << 2) & (digit << 4);
        let room = out.get_mut(written..).and_then(<[_]>::first_chunk_mut);
        let (Some(block_out), 0) = (room, !(digit | blank) | runs_of_5) else { return (start + size_before, written) };
        prefetch_from(bytes.as_ptr().wrapping_add(start + AHEAD_BYTES));
        let not_before = !below(size_before);
        let body = digit & not_before;
        let after_token = after_token & not_before;
        let count = after_token.count_ones() as usize;
        convert_integers(&tokens(digits, body, 0, body & !(body << 1), after_token >> 1), count, block_out);
        written += count;
        start += SHORT_INTEGER_STRIDE_BYTES;
        shared = below(64 - SHORT_INTEGER_STRIDE_BYTES);
    }
}

/// Convert at most `limit` values into `out`, which has room for `MAX_TOKENS` more; returns the end of the prefix and
/// the number of values written.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn dense_into(bytes: &[u8], mut at: usize, limit: usize, out: &mut [MaybeUninit<f32>]) -> (usize, usize) {
    let mut written = 0;
    let mut next = classify::<false>(load(bytes, at));
    if next.other | next.point | next.sign == 0 {
        (at, written) = short_integers(bytes, at, &mut out[..limit]);
        next = classify::<false>(load(bytes, at));
    }
    loop {
        let classes = next;
        let (end, sample_ends) = certain_part(bytes, at, classes.blank, classes.other);
        let room = out.get_mut(written..).and_then(<[_]>::first_chunk_mut);
        let (Some(block_out), 1..) = (room, end) else { return (at, written) };
        // Classify the next block before this block is converted: its end is on the critical path.
        next = classify::<false>(load(bytes, at + end));
        prefetch_ahead(bytes, at);
        let body = (classes.digit | classes.point) & below(end);
        let ends = body & !(body >> 1);
        let num_tokens = ends.count_ones() as usize;
        let certain = numbers(&classes, body, num_tokens.min(limit - written), block_out);
        written += certain;
        if certain < num_tokens {
            if certain > 0 {
                at += _tzcnt_u64(_pdep_u64(1 << (certain - 1), ends)) as usize + 1;
            }
            return (at, written);
        }
        at += end;
        if sample_ends {
            return (at, written);
        }
    }
}

/// Convert up to `wanted` numbers of a block, those with bytes in `body`; returns the number of values before the first
/// uncertain one.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn numbers(classes: &Classes, body: u64, wanted: usize, out: &mut [MaybeUninit<f32>; MAX_TOKENS]) -> usize {
    let (starts, ends) = (body & !(body << 1), body & !(body >> 1));
    let tokens = tokens(classes.digits, body, classes.point & body, starts, ends);
    let runs_of_2 = body & (body << 1);
    let runs_of_5 = runs_of_2 & (runs_of_2 << 2) & (body << 4);
    if classes.point | classes.sign | runs_of_5 == 0 {
        convert_integers(&tokens, ends.count_ones() as usize, out);
        return wanted;
    }
    let points = points(&tokens, ends);
    if tokens.point.count_ones() != points.has_point.count_ones() {
        return 0; // a token with two points
    }
    convert(&tokens, &points, _pext_u64(classes.negative << 1, starts), wanted, out)
}

/// Misplaced colons and signs of a block of sparse entries. A colon must stand between a digit and a number, and a sign
/// after a colon.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn misplaced(classes: &Classes) -> u64 {
    let Classes { digit, colon, sign, .. } = *classes;
    (colon & !((digit << 1) & ((digit | sign) >> 1))) | (sign & !(colon << 1))
}

/// Write the entries of the first `end` bytes of a block, where no colon or sign is [`misplaced`], to `indices` and
/// `values`; returns their number. `None` if an entry is not certain; the elements written then have no meaning.
///
/// `CALLER` gives each caller a copy of its own, which the compiler inlines; without the inlining, `sparse_f32` is 0.93
/// times as fast.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn entries<const CALLER: u8>(
    classes: &Classes,
    end: usize,
    last_index: u32,
    indices: &mut [MaybeUninit<i32>; MAX_ENTRIES],
    values: &mut [MaybeUninit<f32>; MAX_ENTRIES],
) -> Option<usize> {
    let Classes { digits, digit, colon, point, sign, negative, .. } = *classes;
    let inside = below(end);
    let body = (digit | point) & inside;
    let starts = body & !(body << 1);
    let ends = body & !(body >> 1);
    let index_ends = ends & (colon >> 1);
    let value_starts = starts & ((colon << 1) | (sign << 1));
    let count = index_ends.count_ones() as usize;
    // Tokens must alternate: an index, which a colon follows, and a value, which a colon precedes.
    let turns = 0x5555_5555_5555_5555 & below(2 * count);
    let runs_of_2 = body & (body << 1);
    let runs_of_4 = runs_of_2 & (runs_of_2 << 2);
    let runs_of_9 = runs_of_4 & (runs_of_4 << 4) & (body << 8);
    if starts.count_ones() as usize != 2 * count || _pext_u64(index_ends, ends) != turns || runs_of_9 != 0 {
        return None;
    }
    let value_ends = ends & !index_ends;
    if value_starts == value_ends && (point | sign) & inside == 0 {
        store_values(digits_at(digits, value_starts), values);
    } else {
        let tokens = tokens(digits, body, point & inside, value_starts, value_ends);
        let points = points(&tokens, value_ends);
        if tokens.point.count_ones() != points.has_point.count_ones() {
            return None; // a value with two points, or an index with one
        }
        let negative = _pext_u64(negative << 1, value_starts);
        if convert(&tokens, &points, negative, count, values) < count {
            return None;
        }
    }
    let tokens = tokens(digits, body, 0, starts & !value_starts, index_ends);
    let sixteen = self::indices(&tokens);
    store_first(sixteen, indices);
    let is_beyond = _mm512_cmpgt_epu32_mask(sixteen, _mm512_set1_epi32(last_index as i32)) & below(count) as u16;
    if is_beyond != 0 { None } else { Some(count) }
}

/// The first sixteen of these digits, one bit for each.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn digits_at(digits: __m512i, wanted: u64) -> __m512i {
    _mm512_cvtepu8_epi32(_mm512_castsi512_si128(_mm512_maskz_compress_epi8(wanted, digits)))
}

/// Sixteen indices of at most eight digits.
///
/// It converts sixteen at once: a branch on "more than eight" is unpredictable, and its mispredictions cost more.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn indices(tokens: &Tokens) -> __m512i {
    let low = gather(tokens, None, &LANES_OF_8_IN_FOURS, 0);
    sixteen_u32(low, gather(tokens, None, &LANES_OF_8_IN_FOURS, 2))
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn sparse_f32(bytes: &[u8], mut at: usize, dim: u32, indices: &mut Vec<i32>, values: &mut Vec<f32>) -> usize {
    if dim == 0 {
        return at;
    }
    if let Some((end, index, value)) = scalar::only_entry(bytes, at, dim) {
        if indices.try_reserve(1).is_err() || values.try_reserve(1).is_err() {
            return at;
        }
        indices.push(index);
        values.push(value);
        return end;
    }
    let last_index = dim.min(1 << 31) - 1;
    let mut next = classify::<true>(load(bytes, at));
    loop {
        let classes = next;
        let (end, sample_ends) = certain_part(bytes, at, classes.blank, classes.other | misplaced(&classes));
        if end == 0 {
            return at;
        }
        next = classify::<true>(load(bytes, at + end));
        prefetch_ahead(bytes, at);
        if indices.try_reserve(MAX_ENTRIES).is_err() || values.try_reserve(MAX_ENTRIES).is_err() {
            return at;
        }
        let room = (indices.spare_capacity_mut().first_chunk_mut(), values.spare_capacity_mut().first_chunk_mut());
        let (Some(indices_out), Some(values_out)) = room else { return at };
        let Some(count) = entries::<0>(&classes, end, last_index, indices_out, values_out) else { return at };
        // SAFETY: `entries` wrote `count` values and `count` indices after the old lengths.
        unsafe {
            values.set_len(values.len() + count);
            indices.set_len(indices.len() + count);
        }
        at += end;
        if sample_ends {
            return at;
        }
    }
}

/// Parse blocks of ids and of entries whose values are single digits; see [`Lines::plain_entries`].
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline(never)]
fn plain_entries(bytes: &[u8], end: usize, lines: &mut Lines) {
    let look = |text: &[u8; 64]| {
        let text = block(text);
        let Classes { digits, digit, blank, colon, .. } = classify_without_signs::<true>(text);
        Look::new(digits, digit, blank, colon)
    };
    lines.plain_entries(bytes, end, look, |plain: Plain<_>, room: Room| {
        let values = digits_at(plain.block, plain.run & (plain.colon << 1));
        let tokens = tokens(plain.block, plain.run, 0, plain.index_starts, plain.colon >> 1);
        let span = _mm512_sub_epi8(tokens.last, tokens.first);
        let too_long = _mm512_cmpgt_epu8_mask(span, _mm512_set1_epi8(7));
        let indices = indices(&tokens);
        match room {
            Room::Wide(wide_indices, wide_values) => {
                store_first(indices, wide_indices);
                store_values(values, wide_values);
            }
            Room::Pairs(pairs) => store_pairs(indices, values, pairs),
        }
        let is_beyond = u64::from(_mm512_cmpgt_epu32_mask(indices, _mm512_set1_epi32(plain.step.last_index as i32)));
        too_long | is_beyond & below(plain.colon.count_ones() as usize)
    });
}

/// Write the pairs of sixteen indices below 2^16 and values below 2^8.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn store_pairs(indices: __m512i, values: __m512i, pairs: &mut BlockPairs) {
    let words = _mm512_or_si512(indices, _mm512_slli_epi32(values, 16));
    let bytes = _mm512_permutexvar_epi8(block(&PAIRS_OF_WORDS), words);
    // SAFETY: the store touches only the first 48 bytes, and the pairs have more.
    unsafe { _mm512_mask_storeu_epi8(pairs.as_mut_ptr().cast(), below(3 * MAX_ENTRIES), bytes) };
}

/// Take the certain part of a block of any entries, as [`sparse_f32`] does; returns the part's size, and true if the
/// sample ends there.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
#[inline(never)]
fn certain_entries(bytes: &[u8], at: usize, step: &Step, target: &mut Target) -> Option<(usize, bool)> {
    let classes = classify::<true>(load(bytes, at));
    let (end, sample_ends) = certain_part(bytes, at, classes.blank, classes.other | misplaced(&classes));
    if step.id_mask != 0 || end == 0 && !sample_ends {
        return None;
    }
    let count = match target.room()? {
        Room::Wide(indices, values) => entries::<1>(&classes, end, step.last_index, indices, values)?,
        room => {
            let mut block = BlockEntries::zeros();
            let count = entries::<2>(&classes, end, step.last_index, &mut block.indices, &mut block.values)?;
            let (indices, values) = block.get();
            room.write(&indices[..count], &values[..count])?;
            count
        }
    };
    target.written += count;
    Some((end, sample_ends))
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn sparse_lines(
    bytes: &[u8],
    at: usize,
    end: usize,
    form: &SparseForm,
    columns: &mut [SparseColumn],
    line_ends: &mut Vec<usize>,
) {
    take_lines(bytes, [at, end], form, columns, line_ends, |lines, end| {
        plain_entries(bytes, end, lines);
        if lines.at >= end {
            return None;
        }
        let step = &form.steps[lines.step % MAX_STEPS];
        let target = &mut lines.targets[step.column % MAX_STEPS];
        let (size, sample_ends) = certain_entries(bytes, lines.at, step, target)?;
        let part_end = lines.at + size;
        if sample_ends {
            return lines.end_sample(bytes, part_end, end);
        }
        lines.at = part_end;
        Some(())
    });
}

/// Append the positions of a byte, always sixteen at a time: the number of them in a block is unpredictable.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn find_all(wanted: u8, bytes: &[u8], out: &mut Vec<u32>) {
    for (part_number, part) in bytes.chunks(FIND_PART_BYTES).enumerate() {
        out.reserve(part.len() + 16);
        let (spare, mut length) = (out.spare_capacity_mut(), 0);
        for at in (0..part.len()).step_by(64) {
            let text = load(part, at);
            let mut found = equal(text, wanted);
            loop {
                let positions = _mm512_castsi512_si128(_mm512_maskz_compress_epi8(found, block(&POSITIONS)));
                let first = _mm512_set1_epi32((part_number * FIND_PART_BYTES + at) as i32);
                let positions = _mm512_add_epi32(_mm512_cvtepu8_epi32(positions), first);
                // SAFETY: memory for one position for each byte of the part, and for sixteen more, is reserved; at most
                // every byte of the part before here is one of them.
                unsafe { _mm512_storeu_si512(spare.as_mut_ptr().add(length).cast(), positions) };
                let count = found.count_ones() as usize;
                if count <= 16 {
                    length += count;
                    break;
                }
                length += 16;
                found &= !below(_tzcnt_u64(_pdep_u64(1 << 16, found)) as usize);
            }
        }
        // SAFETY: so many elements were written after the old length.
        unsafe { out.set_len(out.len() + length) };
    }
}

/// Write the numbers that 8-bit forms stand for into a destination of the same length. Inputs are short, so masks treat
/// their ends instead of a second loop.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn widen_u8(small: &[u8], destination: &mut [MaybeUninit<f32>]) {
    assert!(small.len() == destination.len());
    for (small, out) in small.chunks(16).zip(destination.chunks_mut(16)) {
        // SAFETY: a masked load touches only the bytes of its mask, and those are in the slice.
        let bytes = unsafe { _mm_maskz_loadu_epi8(below(small.len()) as u16, small.as_ptr().cast()) };
        store_first_values(_mm512_cvtepu8_epi32(bytes), out);
    }
}

/// Write the numbers that 16-bit forms stand for into a destination of the same length.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn widen_u16(small: &[u16], destination: &mut [MaybeUninit<i32>]) {
    assert!(small.len() == destination.len());
    for (small, out) in small.chunks(16).zip(destination.chunks_mut(16)) {
        // SAFETY: as in `widen_u8`.
        let words = unsafe { _mm256_maskz_loadu_epi16(below(small.len()) as u16, small.as_ptr().cast()) };
        store_first(_mm512_cvtepu16_epi32(words), out);
    }
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn narrow_u8(values: &[f32], small: &mut [MaybeUninit<u8>]) -> bool {
    bytes::narrow_u8(values, small)
}

/// The bytes of sixteen pairs in words of four bytes; see [`PAIRS_OF_WORDS`].
const WORDS_OF_PAIRS: [u8; 64] = {
    let (lane, distance) = lanes(4);
    let (mut bytes, mut byte) = ([0; 64], 0);
    while byte < 64 {
        bytes[byte] = 3 * lane[byte] + 3 - distance[byte];
        byte += 1;
    }
    bytes
};
/// The first three bytes of sixteen words.
const PAIRS_OF_WORDS: [u8; 64] = {
    let (mut bytes, mut byte) = ([0; 64], 0);
    while byte < 48 {
        bytes[byte] = (byte / 3 * 4 + byte % 3) as u8;
        byte += 1;
    }
    bytes
};

/// Write the index and the value of each pair, sixteen at a time.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn widen_pairs(pairs: &[Pair], indices: &mut [MaybeUninit<i32>], values: &mut [MaybeUninit<f32>]) {
    assert!(indices.len() == pairs.len() && values.len() == pairs.len());
    for ((pairs, indices), values) in pairs.chunks(16).zip(indices.chunks_mut(16)).zip(values.chunks_mut(16)) {
        let bytes = short_block(pairs.as_flattened());
        let words = _mm512_maskz_permutexvar_epi8(0x7777_7777_7777_7777, block(&WORDS_OF_PAIRS), bytes);
        store_first(_mm512_and_si512(words, _mm512_set1_epi32(0xffff)), indices);
        store_first_values(_mm512_srli_epi32(words, 16), values);
    }
}

/// Write pairs, sixteen at a time; true if each stands for the same bits.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn narrow_pairs(indices: &[i32], values: &[f32], pairs: &mut [MaybeUninit<Pair>]) -> bool {
    assert!(indices.len() == pairs.len() && values.len() == pairs.len());
    let mut wrong = _mm512_setzero_si512();
    for ((indices, values), pairs) in indices.chunks(16).zip(values.chunks(16)).zip(pairs.chunks_mut(16)) {
        let wanted = below(pairs.len()) as u16;
        // SAFETY: the masked loads touch only the numbers of the mask, and both slices have these.
        let (index, value) = unsafe {
            (_mm512_maskz_loadu_epi32(wanted, indices.as_ptr()), _mm512_maskz_loadu_ps(wanted, values.as_ptr()))
        };
        let moved = _mm512_castps_si512(_mm512_add_ps(value, _mm512_set1_ps(TO_LOWEST_BITS)));
        let small = _mm512_and_si512(moved, _mm512_set1_epi32(0xff));
        let other = _mm512_xor_si512(_mm512_castps_si512(value), _mm512_castps_si512(_mm512_cvtepi32_ps(small)));
        wrong = _mm512_or_si512(wrong, _mm512_or_si512(other, _mm512_srli_epi32(index, 16)));
        let words = _mm512_or_si512(index, _mm512_slli_epi32(small, 16));
        let bytes = _mm512_permutexvar_epi8(block(&PAIRS_OF_WORDS), words);
        // SAFETY: the store touches only the bytes of the mask, and those are bytes of `pairs`.
        unsafe { _mm512_mask_storeu_epi8(pairs.as_mut_ptr().cast(), below(3 * pairs.len()), bytes) };
    }
    _mm512_test_epi32_mask(wrong, wrong) == 0
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn floats_le(bytes: &[u8], destination: &mut [MaybeUninit<f32>]) {
    bytes::floats_le(bytes, destination);
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn floats_be(bytes: &[u8], destination: &mut [MaybeUninit<f32>]) {
    bytes::floats_be(bytes, destination);
}
