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
use crate::prefetch::{opaque, prefetch, prefetch_from};
use crate::scalar::{self, ends_sample};
use crate::sparse_lines::{Lines, take_lines};

pub(crate) static KERNEL: Functions = Functions {
    name: "avx512",
    is_available,
    dense_f32,
    sparse_f32,
    sparse_lines,
    line_ends,
    widen_u8,
    widen_u16,
    widen_pairs,
    narrow_pairs,
    floats_le,
    floats_be,
};

/// Largest number of tokens in a block: a token has at least one byte, and at least one separates it from the next.
const MAX_TOKENS: usize = 32;
/// Largest number of sparse entries in a block: an entry and its separator have at least four bytes.
const MAX_ENTRIES: usize = 16;

/// Bytes of text for whose line ends `line_ends` reserves memory at a time.
const LINE_END_PART_BYTES: usize = 1 << 14;

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

/// Define a function that uses the instruction sets that [`is_available`] checks for.
macro_rules! with_avx512 {
    ($($function:tt)*) => {
        #[target_feature(
            enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt"
        )]
        $($function)*
    };
}

/// 10^-k for k = 0 to 15, the number of decimals, as near as float64 comes: the factors of `finish`.
const SCALES: [f64; 16] =
    [1e0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14, 1e-15];

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

with_avx512! {
#[inline]
fn block(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the reference is to 64 bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
} }

with_avx512! {
/// The block at `at`; zeros stand for bytes after the end of the slice.
#[inline]
fn load(bytes: &[u8], at: usize) -> __m512i {
    match bytes.get(at..).and_then(<[u8]>::first_chunk) {
        Some(whole) => block(whole),
        None => load_at_the_end(bytes, at),
    }
} }

with_avx512! {
#[cold]
#[inline(never)]
fn load_at_the_end(bytes: &[u8], at: usize) -> __m512i {
    let rest = bytes.get(at..).unwrap_or_default();
    let wanted = below(rest.len());
    // SAFETY: a masked load touches only the bytes of its mask, and those are bytes of `rest`.
    unsafe { _mm512_maskz_loadu_epi8(wanted, rest.as_ptr().cast()) }
} }

/// Prefetch the text `AHEAD_BYTES` after `at`: a block takes less time than a load from the second-level cache.
#[inline]
fn prefetch_ahead(bytes: &[u8], at: usize) {
    if let Some(text) = bytes.get(at + AHEAD_BYTES..) {
        prefetch(text, 1);
    }
}

with_avx512! {
#[inline]
fn equal(block: __m512i, byte: u8) -> u64 {
    _mm512_cmpeq_epi8_mask(block, _mm512_set1_epi8(byte as i8))
} }

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

with_avx512! {
#[inline]
fn classify<const SPARSE: bool>(block: __m512i) -> Classes {
    let mut classes = classify_without_signs::<SPARSE>(block);
    if classes.other != 0 {
        find_signs(block, &mut classes);
    }
    classes
} }

with_avx512! {
/// Classify the bytes of a block, with points and signs in `other`.
#[inline]
fn classify_without_signs<const SPARSE: bool>(block: __m512i) -> Classes {
    let digits = _mm512_sub_epi8(block, _mm512_set1_epi8(b'0' as i8));
    let digit = _mm512_cmplt_epu8_mask(digits, _mm512_set1_epi8(10));
    let blank = equal(block, b' ') | equal(block, b'\t');
    let colon = if SPARSE { equal(block, b':') } else { 0 };
    Classes { digits, digit, blank, colon, point: 0, sign: 0, negative: 0, other: !(digit | blank | colon) }
} }

with_avx512! {
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
} }

with_avx512! {
/// A mask of the lowest `count` bits; `count` is at most 64 (the instruction looks at its lowest 8 bits).
#[inline]
fn below(count: usize) -> u64 {
    _bzhi_u64(!0, count as u32)
} }

with_avx512! {
/// Size of the certain part of a block, and true if the sample ends there. The certain part ends after the last blank,
/// or at the end of the sample.
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
} }

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

/// Decimal points of the tokens.
struct Points {
    /// Bit k is set if token k has a point.
    has_point: u64,
    /// Position of each token's point.
    position: __m512i,
    /// Number of digits after each token's point; zero without a point.
    places: __m512i,
}

with_avx512! {
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
} }

with_avx512! {
/// Digits of the tokens from number `from` on, right-aligned in lanes and padded with zeros.
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
} }

with_avx512! {
/// Convert 16 lanes of 4 digits to 16 integers of 32 bits.
#[inline]
fn values_of_4(digits: __m512i) -> __m512i {
    let pairs = _mm512_maddubs_epi16(digits, _mm512_set1_epi16(0x010a));
    _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x0001_0064))
} }

with_avx512! {
/// Convert 8 lanes of 8 digits to integers of 32 bits. Each 128-bit part holds its two integers twice: A B A B.
#[inline]
fn eight_u32_twice(digits: __m512i) -> __m512i {
    let fours = values_of_4(digits);
    let fours = _mm512_packus_epi32(fours, fours);
    _mm512_madd_epi16(fours, _mm512_set1_epi32(0x0001_2710))
} }

with_avx512! {
/// Convert 8 lanes of 8 digits to 8 integers of 64 bits.
#[inline]
fn eight_u64(digits: __m512i) -> __m512i {
    _mm512_maskz_shuffle_epi32(0x5555, eight_u32_twice(digits), 0b01_01_00_00)
} }

with_avx512! {
/// Convert two vectors of 8 lanes of 8 digits to 16 integers of 32 bits, in the order of the tokens. The lanes are
/// `LANES_OF_8_IN_FOURS`: `low` holds the first two of every four tokens, `high` the other two.
#[inline]
fn sixteen_u32(low: __m512i, high: __m512i) -> __m512i {
    let fours = _mm512_packus_epi32(values_of_4(low), values_of_4(high));
    _mm512_madd_epi16(fours, _mm512_set1_epi32(0x0001_2710))
} }

with_avx512! {
/// Convert two vectors of 4 lanes of 16 digits to 8 integers of 64 bits.
#[inline]
fn eight_u64_of_16_digits(low: __m512i, high: __m512i) -> __m512i {
    let join = |halves: __m512i| {
        let upper = _mm512_mul_epu32(halves, _mm512_set1_epi64(100_000_000));
        _mm512_add_epi64(upper, _mm512_srli_epi64(halves, 32))
    };
    let even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
    _mm512_permutex2var_epi64(join(eight_u32_twice(low)), even, join(eight_u32_twice(high)))
} }

with_avx512! {
/// Round `digits / 10^places` with its sign to float32. The result's mask has a bit set for each lane where two
/// roundings (to float64, then to float32) may differ from one.
///
/// The product's error is at most three units of float64: one for each of three roundings (of digits beyond 2^53, of
/// the power of ten, and of the product), because half a unit may become a whole unit beyond a power of two.
#[inline]
fn finish(digits: __m512i, places: __m512i, negative: u8) -> (__m256, u8) {
    let scales = |half: usize| {
        // SAFETY: the load reads eight of the sixteen numbers, from number 0 or 8 on.
        unsafe { _mm512_loadu_pd(SCALES[8 * half..8 * half + 8].as_ptr()) }
    };
    let scale = _mm512_permutex2var_pd(scales(0), places, scales(1));
    let product = _mm512_mul_pd(_mm512_cvtepu64_pd(digits), scale);
    let beyond_float32 = _mm512_and_si512(_mm512_castpd_si512(product), _mm512_set1_epi64(0x1fff_ffff));
    let distance = _mm512_sub_epi64(beyond_float32, _mm512_set1_epi64((1 << 28) - 4));
    let near_middle = _mm512_cmple_epu64_mask(distance, _mm512_set1_epi64(8));
    let size = _mm256_castps_si256(_mm512_cvtpd_ps(product));
    let value = _mm256_mask_or_epi32(size, negative, size, _mm256_set1_epi32(i32::MIN));
    (_mm256_castsi256_ps(value), near_middle)
} }

with_avx512! {
/// Convert up to `count` tokens, 8 at a time, into `out`; returns the number of tokens before the first uncertain one.
///
/// # Safety
///
/// `out` must be valid for writes of `count` values, rounded up to a multiple of 8.
#[inline]
unsafe fn convert(tokens: &Tokens, points: &Points, negative: u64, count: usize, out: *mut f32) -> usize {
    let span = _mm512_sub_epi8(tokens.last, tokens.first);
    let span = _mm512_mask_sub_epi8(span, points.has_point, span, _mm512_set1_epi8(1));
    let longer_than = |digits: i8| _mm512_mask_cmpge_epu8_mask(below(count), span, _mm512_set1_epi8(digits));
    let is_long = longer_than(8) != 0;
    let count = if is_long { count.min(_tzcnt_u64(longer_than(16)) as usize) } else { count };
    let mut done = 0;
    while done < count {
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
        // SAFETY: `done` is a multiple of 8 below `count`, and the caller reserved `count` rounded up to a multiple of
        // 8.
        unsafe { _mm256_storeu_ps(out.add(done), values) };
        if near_middle != 0 {
            let uncertain = _tzcnt_u64(u64::from(near_middle)) as usize;
            return count.min(done + uncertain);
        }
        done += 8;
    }
    count
} }

with_avx512! {
fn dense_f32(bytes: &[u8], at: usize, limit: usize, out: &mut Vec<f32>) -> usize {
    let rest = bytes.len().saturating_sub(at);
    if out.try_reserve(limit.min(rest) + MAX_TOKENS).is_err() {
        return at;
    }
    // SAFETY: memory for the values that `dense_into` may write is reserved after the length; `dense_into` returns how
    // many values it wrote.
    unsafe {
        let (at, written) = dense_into(bytes, at, limit, out.as_mut_ptr().add(out.len()));
        out.set_len(out.len() + written);
        at
    }
} }

/// Stride of the loop over short integers. Consecutive blocks overlap by 4 bytes, so a token of up to 4 digits is
/// complete in the block that contains the blank after it.
const SHORT_INTEGER_STRIDE_BYTES: usize = 60;

with_avx512! {
/// Convert integers of at most four digits, each followed by a blank, from `at` on, as long as whole blocks contain
/// nothing else; returns the position after the last integer, and the number of values written.
///
/// A token is converted in the block that contains the blank after it. Positions of blocks therefore do not depend on
/// the text, and no block waits for the end of the previous one.
///
/// # Safety
///
/// The requirements of [`dense_into`].
#[inline]
unsafe fn short_integers(bytes: &[u8], at: usize, limit: usize, out: *mut f32) -> (usize, usize) {
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
        if !(digit | blank) | runs_of_5 != 0 || written + MAX_TOKENS > limit {
            return (start + size_before, written);
        }
        prefetch_from(bytes.as_ptr().wrapping_add(start + AHEAD_BYTES));
        let not_before = !below(size_before);
        let body = digit & not_before;
        let after_token = after_token & not_before;
        let tokens = Tokens {
            digits,
            body,
            point: 0,
            first: _mm512_maskz_compress_epi8(body & !(body << 1), block(&POSITIONS)),
            last: _mm512_maskz_compress_epi8(after_token >> 1, block(&POSITIONS)),
        };
        let convert_16 = |from: usize| {
            let values = values_of_4(gather(&tokens, None, &LANES_OF_4, from));
            // SAFETY: `written` is at most `limit` and at most the number of bytes consumed; memory for MAX_TOKENS more
            // values, two times 16, follows.
            unsafe { _mm512_storeu_ps(out.add(written + from), _mm512_cvtepi32_ps(values)) };
        };
        let count = after_token.count_ones() as usize;
        convert_16(0);
        if count > 16 {
            convert_16(16);
        }
        written += count;
        start += SHORT_INTEGER_STRIDE_BYTES;
        shared = below(64 - SHORT_INTEGER_STRIDE_BYTES);
    }
} }

with_avx512! {
/// Convert at most `limit` values into `out`; returns the end of the prefix and the number of values written.
///
/// # Safety
///
/// `out` must be valid for writes of n + `MAX_TOKENS` values, where n is the smaller of `limit` and the number of bytes
/// after `at`.
#[inline]
unsafe fn dense_into(bytes: &[u8], mut at: usize, limit: usize, out: *mut f32) -> (usize, usize) {
    let mut written = 0;
    let mut next = classify::<false>(load(bytes, at));
    if next.other | next.point | next.sign == 0 {
        // SAFETY: the caller fulfils the same requirements.
        (at, written) = unsafe { short_integers(bytes, at, limit, out) };
        next = classify::<false>(load(bytes, at));
    }
    loop {
        let Classes { digits, digit, blank, point, sign, negative, other, .. } = next;
        let (end, sample_ends) = certain_part(bytes, at, blank, other);
        if end == 0 {
            return (at, written);
        }
        // Classify the next block before this block is converted: its end is on the critical path.
        next = classify::<false>(load(bytes, at + end));
        prefetch_ahead(bytes, at);
        let body = (digit | point) & below(end);
        let starts = body & !(body << 1);
        let ends = body & !(body >> 1);
        let num_tokens = ends.count_ones() as usize;
        let wanted = num_tokens.min(limit - written);
        let tokens = Tokens {
            digits,
            body,
            point: point & body,
            first: _mm512_maskz_compress_epi8(starts, block(&POSITIONS)),
            last: _mm512_maskz_compress_epi8(ends, block(&POSITIONS)),
        };
        // SAFETY: `written` is at most `limit` and at most the number of bytes consumed; memory for MAX_TOKENS more
        // values follows.
        let block_out = unsafe { out.add(written) };
        let runs_of_2 = body & (body << 1);
        let runs_of_5 = runs_of_2 & (runs_of_2 << 2) & (body << 4);
        let certain = if point | sign | runs_of_5 == 0 {
            let convert_16 = |from: usize| {
                let values = values_of_4(gather(&tokens, None, &LANES_OF_4, from));
                // SAFETY: `from` is 0 or 16, and `block_out` has memory for MAX_TOKENS values, two times 16.
                unsafe { _mm512_storeu_ps(block_out.add(from), _mm512_cvtepi32_ps(values)) };
            };
            convert_16(0);
            if num_tokens > 16 {
                convert_16(16);
            }
            wanted
        } else {
            let points = points(&tokens, ends);
            if tokens.point.count_ones() != points.has_point.count_ones() {
                return (at, written); // a token with two points
            }
            let negative = _pext_u64(negative << 1, starts);
            // SAFETY: `wanted` is at most MAX_TOKENS, a multiple of 8, and `block_out` has memory for MAX_TOKENS
            // values.
            unsafe { convert(&tokens, &points, negative, wanted, block_out) }
        };
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
} }

with_avx512! {
/// Misplaced colons and signs of a block of sparse entries. A colon must stand between a digit and a number, and a sign
/// after a colon.
#[inline]
fn misplaced(classes: &Classes) -> u64 {
    let Classes { digit, colon, sign, .. } = *classes;
    (colon & !((digit << 1) & ((digit | sign) >> 1))) | (sign & !(colon << 1))
} }

with_avx512! {
/// Write the entries of the first `end` bytes of a block, where no colon or sign is [`misplaced`], to `indices` and
/// `values`; returns their number. `None` if an entry is not certain; the elements written then have no meaning.
///
/// `CALLER` gives each caller a copy of its own, which the compiler inlines; without the inlining, `sparse_f32` is 0.93
/// times as fast.
///
/// # Safety
///
/// `indices` and `values` must be valid for writes of `MAX_ENTRIES` elements.
#[inline]
unsafe fn entries<const CALLER: u8>(
    classes: &Classes,
    end: usize,
    last_index: __m512i,
    indices: *mut i32,
    values: *mut f32,
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
    let compress = |mask: u64| _mm512_maskz_compress_epi8(mask, block(&POSITIONS));
    if value_starts == value_ends && (point | sign) & inside == 0 {
        let units = _mm512_castsi512_si128(_mm512_maskz_compress_epi8(value_starts, digits));
        // SAFETY: the caller reserved memory for MAX_ENTRIES values, 16.
        unsafe { _mm512_storeu_ps(values, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(units))) };
    } else {
        let tokens = Tokens {
            digits,
            body,
            point: point & inside,
            first: compress(value_starts),
            last: compress(value_ends),
        };
        let points = points(&tokens, value_ends);
        if tokens.point.count_ones() != points.has_point.count_ones() {
            return None; // a value with two points, or an index with one
        }
        let negative = _pext_u64(negative << 1, value_starts);
        // SAFETY: `count` is at most MAX_ENTRIES, a multiple of 8, for which the caller reserved memory.
        if unsafe { convert(&tokens, &points, negative, count, values) } < count {
            return None;
        }
    }
    let tokens =
        Tokens { digits, body, point: 0, first: compress(starts & !value_starts), last: compress(index_ends) };
    // Convert sixteen at once: a branch on "more than eight" is unpredictable, and its mispredictions cost more.
    let sixteen = sixteen_u32(
        gather(&tokens, None, &LANES_OF_8_IN_FOURS, 0),
        gather(&tokens, None, &LANES_OF_8_IN_FOURS, 2),
    );
    // SAFETY: the caller reserved memory for MAX_ENTRIES indices, 16.
    unsafe { _mm512_storeu_si512(indices.cast(), sixteen) };
    let is_beyond = u64::from(_mm512_cmpgt_epu32_mask(sixteen, last_index)) & below(count);
    if is_beyond != 0 { None } else { Some(count) }
} }

with_avx512! {
fn sparse_f32(
    bytes: &[u8],
    mut at: usize,
    dim: u32,
    indices: &mut Vec<i32>,
    values: &mut Vec<f32>,
) -> usize {
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
    let last_index = splat_last_index(dim);
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
        // SAFETY: memory for MAX_ENTRIES elements is reserved after each vector's length.
        let count = unsafe {
            let (indices, values) = (indices.as_mut_ptr().add(indices.len()), values.as_mut_ptr().add(values.len()));
            entries::<0>(&classes, end, last_index, indices, values)
        };
        let Some(count) = count else { return at };
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
} }

with_avx512! {
/// The largest index below `dim`, in all lanes.
#[inline]
fn splat_last_index(dim: u32) -> __m512i {
    _mm512_set1_epi32(dim.min(1 << 31).wrapping_sub(1) as i32)
} }

/// Number of bytes that `plain_entries` reads from `at` on: this block (64), the separator after its sample (16), the
/// next block (64).
const LOOK_AHEAD_BYTES: usize = 64 + 16 + 64;

/// Classes of the bytes of a block of a sparse sample, one bit for each byte.
struct Look {
    /// The bytes minus the character `0`.
    digits: __m512i,
    digit: u64,
    blank: u64,
    colon: u64,
    /// Position of the first byte of another class, which ends the sample; 64 if there is no such byte.
    first_other: u64,
}

with_avx512! {
/// Classify the block at `bytes`.
///
/// # Safety
///
/// `bytes` must be valid for reads of 64 bytes.
#[inline]
unsafe fn look(bytes: *const u8) -> Look {
    // SAFETY: the caller guarantees 64 bytes.
    let text = unsafe { _mm512_loadu_si512(bytes.cast()) };
    let digits = _mm512_sub_epi8(text, _mm512_set1_epi8(b'0' as i8));
    let digit = _mm512_cmplt_epu8_mask(digits, _mm512_set1_epi8(10));
    let blank = equal(text, b' ') | equal(text, b'\t');
    let colon = equal(text, b':');
    Look { digits, digit, blank, colon, first_other: opaque(_tzcnt_u64(!(digit | blank | colon))) }
} }

with_avx512! {
/// Parse blocks of ids and of entries whose values are single digits, up to the first block of another kind or form.
///
/// The end of a sample is unpredictable, so no branch depends on it: the text after the sample is compared with the
/// step's separator, and the next block starts after the separator. The next block is classified before this block is
/// converted, because all further work waits for the position of its end.
///
/// # Safety
///
/// `lines.at` must be below `stop`, and `stop` at least `LOOK_AHEAD_BYTES - 1` bytes before the slice's end. The lines
/// must be from [`take_lines`], with an end that is not before `stop`.
#[inline(never)]
unsafe fn plain_entries(bytes: &[u8], stop: usize, lines: &mut Lines) {
    let form = lines.form;
    let (mut at, mut step_number, mut num_lines) = (lines.at, lines.step, lines.count);
    // SAFETY: `at` is before `stop`.
    let mut next = unsafe { look(bytes.as_ptr().add(at)) };
    while at < stop {
        let Look { digits, digit, blank, colon, first_other } = next;
        let step = &form.steps[step_number % MAX_STEPS];
        let to_blank = 64 - _lzcnt_u64(blank);
        let ended = (first_other >> 6).wrapping_sub(1);
        let size = ((first_other & ended) | (to_blank & !ended)) as usize;
        let part_end = at + size;
        let next_at = part_end + (step.separator.size & ended as usize);
        // SAFETY: `at` is below `stop`, `size` at most 64 and a separator at most 16 bytes, so both loads end at most
        // LOOK_AHEAD_BYTES after `at`.
        let has_separator = unsafe {
            next = look(bytes.as_ptr().add(next_at));
            let after_part = _mm_loadu_si128(bytes.as_ptr().add(part_end).cast());
            let difference = _mm_xor_si128(after_part, word(&step.separator.word));
            _mm_testz_si128(difference, word(&step.separator.mask)) as u64
        };
        prefetch_from(bytes.as_ptr().wrapping_add(at + AHEAD_BYTES));
        let inside = below(size);
        let colon = colon & inside;
        // For an id, `id_mask` is -1, so the subtraction adds 1, and the carry clears the digits at the first byte:
        // there must be such digits, and nothing else. The block must end the id: another number could begin the next
        // block, after blanks.
        let run = digit & inside;
        let run = run & run.wrapping_sub(step.id_mask);
        let id_errors = step.id_mask & (colon | (!digit & 1) | !ended);
        let value_starts = run & (colon << 1);
        let index_starts = run & !(run << 1) & !value_starts;
        // Adding a start's bit to the set bits of its run carries into the bit after the run. A colon must be there,
        // and nowhere else.
        let after_indices = run.wrapping_add(index_starts) & !run;
        let colon_errors = (after_indices ^ colon) | (value_starts ^ (colon << 1));
        let long_values = value_starts & (run >> 1);
        if ((has_separator ^ 1) & ended) | id_errors | colon_errors | long_values != 0 || ended | blank == 0 {
            break;
        }
        let count = colon.count_ones() as usize;
        let units = _mm512_castsi512_si128(_mm512_maskz_compress_epi8(value_starts, digits));
        let tokens = Tokens {
            digits,
            body: run,
            point: 0,
            first: _mm512_maskz_compress_epi8(index_starts, block(&POSITIONS)),
            last: _mm512_maskz_compress_epi8(colon >> 1, block(&POSITIONS)),
        };
        let sixteen = sixteen_u32(
            gather(&tokens, None, &LANES_OF_8_IN_FOURS, 0),
            gather(&tokens, None, &LANES_OF_8_IN_FOURS, 2),
        );
        let last_index = _mm512_set1_epi32(step.last_index as i32);
        let beyond = u64::from(_mm512_cmpgt_epu32_mask(sixteen, last_index)) & below(count);
        let span = _mm512_sub_epi8(tokens.last, tokens.first);
        if beyond | _mm512_cmpgt_epu8_mask(span, _mm512_set1_epi8(7)) != 0 {
            break;
        }
        let target = &mut lines.targets[step.column % MAX_STEPS];
        let written = target.written + count;
        // SAFETY: the entries and lines up to `at` fit the memory for that text, and memory for MAX_ENTRIES (16) more
        // entries and for one more line follows; see the invariant of `Lines`.
        unsafe {
            let values_out = target.values.as_mut_ptr().add(target.written);
            _mm512_storeu_ps(values_out.cast(), _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(units)));
            _mm512_storeu_si512(target.indices.as_mut_ptr().add(target.written).cast(), sixteen);
            target.sample_offsets.get_unchecked_mut(num_lines).write(target.before.wrapping_add(written as u32));
            lines.line_ends.get_unchecked_mut(num_lines).write(part_end + form.line_end.size);
        }
        target.written = written;
        at = next_at;
        let ended = ended as usize;
        num_lines += step.ends_line & ended;
        step_number = (step.next & ended) | (step_number & !ended);
    }
    (lines.at, lines.step, lines.count) = (at, step_number, num_lines);
} }

with_avx512! {
#[inline]
fn word(bytes: &u128) -> __m128i {
    // SAFETY: the reference is to 16 bytes.
    unsafe { _mm_loadu_si128(std::ptr::from_ref(bytes).cast()) }
} }

with_avx512! {
/// Convert the certain part of a block of any entries, as [`sparse_f32`] does; returns the part's size, true if the
/// sample ends there, and the number of entries.
///
/// # Safety
///
/// The requirements of [`entries`].
#[inline(never)]
unsafe fn certain_entries(
    bytes: &[u8],
    at: usize,
    step: &Step,
    indices: *mut i32,
    values: *mut f32,
) -> Option<(usize, bool, usize)> {
    let classes = classify::<true>(load(bytes, at));
    let (end, sample_ends) = certain_part(bytes, at, classes.blank, classes.other | misplaced(&classes));
    if step.id_mask != 0 || end == 0 && !sample_ends {
        return None;
    }
    // SAFETY: the caller fulfils the requirements of `entries`.
    let count = unsafe { entries::<1>(&classes, end, _mm512_set1_epi32(step.last_index as i32), indices, values) }?;
    Some((end, sample_ends, count))
} }

with_avx512! {
fn sparse_lines(
    bytes: &[u8],
    at: usize,
    end: usize,
    form: &SparseForm,
    columns: &mut [SparseColumn],
    line_ends: &mut Vec<usize>,
) {
    take_lines(bytes, [at, end], form, columns, line_ends, |lines, end| {
        let stop = end.min((bytes.len() + 1).saturating_sub(LOOK_AHEAD_BYTES));
        if lines.at < stop {
            // SAFETY: `lines.at` is below `stop`, and the lines are those of `take_lines`.
            unsafe { plain_entries(bytes, stop, lines) };
        }
        if lines.at >= stop {
            return None;
        }
        let step = &form.steps[lines.step % MAX_STEPS];
        let target = &mut lines.targets[step.column % MAX_STEPS];
        // SAFETY: the text up to `at` has at least four bytes for each entry written, so memory for the entries of a
        // block is left; see the invariant of `Lines`.
        let (size, sample_ends, count) = unsafe {
            let indices = target.indices.as_mut_ptr().add(target.written);
            let values = target.values.as_mut_ptr().add(target.written);
            certain_entries(bytes, lines.at, step, indices.cast(), values.cast())
        }?;
        target.written += count;
        let part_end = lines.at + size;
        if sample_ends {
            return lines.end_sample(bytes, part_end, end);
        }
        lines.at = part_end;
        Some(())
    });
} }

with_avx512! {
/// Append the positions of line ends, always sixteen at a time: the number of line ends in a block is unpredictable.
fn line_ends(bytes: &[u8], out: &mut Vec<u32>) {
    for (part_number, part) in bytes.chunks(LINE_END_PART_BYTES).enumerate() {
        out.reserve(part.len() + 16);
        let mut length = out.len();
        for at in (0..part.len()).step_by(64) {
            let text = load(part, at);
            let mut ends = equal(text, b'\n');
            loop {
                let positions = _mm512_castsi512_si128(_mm512_maskz_compress_epi8(ends, block(&POSITIONS)));
                let first = _mm512_set1_epi32((part_number * LINE_END_PART_BYTES + at) as i32);
                let positions = _mm512_add_epi32(_mm512_cvtepu8_epi32(positions), first);
                // SAFETY: memory for one position for each byte of the part, and for sixteen more, is reserved after
                // the old length; the part has at most one line end for each byte before here.
                unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(length).cast(), positions) };
                let count = ends.count_ones() as usize;
                if count <= 16 {
                    length += count;
                    break;
                }
                length += 16;
                ends &= !below(_tzcnt_u64(_pdep_u64(1 << 16, ends)) as usize);
            }
        }
        // SAFETY: all elements up to `length` were written.
        unsafe { out.set_len(length) };
    }
} }

with_avx512! {
/// Write the numbers that 8-bit forms stand for into a destination of the same length. Inputs are short, so masks treat
/// their ends instead of a second loop.
fn widen_u8(small: &[u8], destination: &mut [MaybeUninit<f32>]) {
    assert!(small.len() == destination.len());
    for at in (0..small.len()).step_by(16) {
        let wanted = below((small.len() - at).min(16)) as u16;
        // SAFETY: a masked load touches only the bytes of its mask, and those are inside the slice.
        let bytes = unsafe { _mm_maskz_loadu_epi8(wanted, small.as_ptr().add(at).cast()) };
        let values = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
        // SAFETY: the destination is as long as `small`, and the store touches only the values of the same mask.
        unsafe { _mm512_mask_storeu_ps(destination.as_mut_ptr().add(at).cast(), wanted, values) };
    }
} }

with_avx512! {
/// Write the numbers that 16-bit forms stand for into a destination of the same length.
fn widen_u16(small: &[u16], destination: &mut [MaybeUninit<i32>]) {
    assert!(small.len() == destination.len());
    for at in (0..small.len()).step_by(16) {
        let wanted = below((small.len() - at).min(16)) as u16;
        // SAFETY: as in `widen_u8`.
        let words = unsafe { _mm256_maskz_loadu_epi16(wanted, small.as_ptr().add(at).cast()) };
        // SAFETY: as in `widen_u8`.
        unsafe {
            let numbers = _mm512_cvtepu16_epi32(words);
            _mm512_mask_storeu_epi32(destination.as_mut_ptr().add(at).cast(), wanted, numbers);
        }
    }
} }

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

with_avx512! {
/// Write the index and the value of each pair, sixteen at a time.
fn widen_pairs(pairs: &[Pair], indices: &mut [MaybeUninit<i32>], values: &mut [MaybeUninit<f32>]) {
    assert!(indices.len() == pairs.len() && values.len() == pairs.len());
    for at in (0..pairs.len()).step_by(16) {
        let count = (pairs.len() - at).min(16);
        let wanted = below(count) as u16;
        // SAFETY: a masked load touches only the bytes of its mask, and those are bytes of `pairs`.
        let bytes = unsafe { _mm512_maskz_loadu_epi8(below(3 * count), pairs.as_ptr().add(at).cast()) };
        let words = _mm512_maskz_permutexvar_epi8(0x7777_7777_7777_7777, block(&WORDS_OF_PAIRS), bytes);
        let index = _mm512_and_si512(words, _mm512_set1_epi32(0xffff));
        let value = _mm512_cvtepi32_ps(_mm512_srli_epi32(words, 16));
        // SAFETY: the destinations are as long as `pairs`, and the stores touch only the numbers of the mask.
        unsafe {
            _mm512_mask_storeu_epi32(indices.as_mut_ptr().add(at).cast(), wanted, index);
            _mm512_mask_storeu_ps(values.as_mut_ptr().add(at).cast(), wanted, value);
        }
    }
} }

with_avx512! {
/// Write pairs, sixteen at a time; true if each stands for the same bits.
fn narrow_pairs(indices: &[i32], values: &[f32], pairs: &mut [MaybeUninit<Pair>]) -> bool {
    assert!(indices.len() == pairs.len() && values.len() == pairs.len());
    let mut wrong = _mm512_setzero_si512();
    for at in (0..pairs.len()).step_by(16) {
        let count = (pairs.len() - at).min(16);
        let wanted = below(count) as u16;
        // SAFETY: the masked loads touch only the numbers of the mask, and both slices have these.
        let (index, value) = unsafe {
            let index = _mm512_maskz_loadu_epi32(wanted, indices.as_ptr().add(at));
            (index, _mm512_maskz_loadu_ps(wanted, values.as_ptr().add(at)))
        };
        let moved = _mm512_castps_si512(_mm512_add_ps(value, _mm512_set1_ps(TO_LOWEST_BITS)));
        let small = _mm512_and_si512(moved, _mm512_set1_epi32(0xff));
        let other = _mm512_xor_si512(_mm512_castps_si512(value), _mm512_castps_si512(_mm512_cvtepi32_ps(small)));
        wrong = _mm512_or_si512(wrong, _mm512_or_si512(other, _mm512_srli_epi32(index, 16)));
        let words = _mm512_or_si512(index, _mm512_slli_epi32(small, 16));
        let bytes = _mm512_permutexvar_epi8(block(&PAIRS_OF_WORDS), words);
        // SAFETY: the store touches only the bytes of the mask, and those are bytes of `pairs`.
        unsafe { _mm512_mask_storeu_epi8(pairs.as_mut_ptr().add(at).cast(), below(3 * count), bytes) };
    }
    _mm512_test_epi32_mask(wrong, wrong) == 0
} }

with_avx512! {
fn floats_le(bytes: &[u8], destination: &mut [MaybeUninit<f32>]) {
    bytes::floats_le(bytes, destination);
} }

with_avx512! {
fn floats_be(bytes: &[u8], destination: &mut [MaybeUninit<f32>]) {
    bytes::floats_be(bytes, destination);
} }
