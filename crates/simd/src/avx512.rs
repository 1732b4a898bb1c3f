//! 64 bytes at a time with AVX-512 (VBMI2).
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
//! A block starts where a token may start, and only tokens that end inside it are looked at; the next block starts
//! behind the last of them.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use crate::memory::{prefetch, prefetch_from};
use crate::scalar::ends_sample;
use crate::{LineForm, MAX_NUMBERS, MAX_STEPS, SparseColumn, SparseForm, Step};

/// No block has more tokens than this: each takes a byte and another to part it from the next.
const MAX_TOKENS: usize = 32;
/// No block has more sparse entries than this: each takes four bytes.
const MAX_ENTRIES: usize = 16;

/// Bytes whose line ends are given room for at once.
const LINES_AT_ONCE: usize = 1 << 14;

/// How far ahead text is asked for.
const AHEAD: usize = 512;

pub(crate) fn is_available() -> bool {
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

/// A function that needs what [`is_available`] finds.
macro_rules! with_avx512 {
    ($($function:tt)*) => {
        #[target_feature(
            enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt"
        )]
        $($function)*
    };
}

/// The negative powers of ten that `finish` multiplies by, for 0 to 15 places.
const SCALES: [f64; 16] =
    [1e0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14, 1e-15];

const POSITIONS: [u8; 64] = lanes(1).0;
/// For lanes of N bytes: the lane of each byte, and its distance from the lane's last byte.
const LANES_OF_4: ([u8; 64], [u8; 64]) = lanes(4);
const LANES_OF_8: ([u8; 64], [u8; 64]) = lanes(8);
/// The same for the first two of every four tokens, which is how [`values_of_8`] takes them.
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
/// The block at `at`, zeros behind the end of the slice.
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
    // SAFETY: a masked load touches the bytes of its mask alone, and those are bytes of `rest`.
    unsafe { _mm512_maskz_loadu_epi8(wanted, rest.as_ptr().cast()) }
} }

/// Ask for the text that comes soon: from block to block the way is too short for the second cache to answer in time.
#[inline]
fn prefetch_behind(bytes: &[u8], at: usize) {
    if let Some(text) = bytes.get(at + AHEAD..) {
        prefetch(text, 1);
    }
}

with_avx512! {
#[inline]
fn equal(block: __m512i, byte: u8) -> u64 {
    _mm512_cmpeq_epi8_mask(block, _mm512_set1_epi8(byte as i8))
} }

/// What the bytes of a block are, one bit each.
struct Classes {
    /// The bytes less `0`.
    digits: __m512i,
    digit: u64,
    blank: u64,
    colon: u64,
    /// Points behind a digit.
    point: u64,
    /// Signs before a digit, and those of them that are minus.
    sign: u64,
    negative: u64,
    /// Everything else.
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
/// Points and signs are among the others.
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
/// The first `count` bits from the bottom.
#[inline]
fn below(count: usize) -> u64 {
    _bzhi_u64(!0, count as u32)
} }

with_avx512! {
/// Where the certain part of a block ends, and whether its sample ends there: behind the last blank, or at the end of
/// the sample.
#[inline]
fn certain_part(bytes: &[u8], at: usize, blank: u64, other: u64) -> (usize, bool) {
    // The next block waits for this one's end: the common case asks for nothing but the blanks.
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
    digits: __m512i,
    body: u64,
    point: u64,
    /// Positions of the first and the last byte of each token.
    first: __m512i,
    last: __m512i,
}

/// The points of the tokens: which token has one, and where.
struct Points {
    has_point: u64,
    position: __m512i,
    /// Digits behind the point, zero without one.
    places: __m512i,
}

with_avx512! {
#[inline]
fn points(tokens: &Tokens, ends: u64) -> Points {
    // A point's bit added to its token's run of ones carries to the bit behind the token.
    let behind = tokens.body.wrapping_add(tokens.point) & !tokens.body;
    let has_point = _pext_u64(behind >> 1, ends);
    let positions = _mm512_maskz_compress_epi8(tokens.point, block(&POSITIONS));
    // A token without a point has it before all bytes, so that no digit is left of it.
    let position = _mm512_mask_expand_epi8(_mm512_set1_epi8(-128), has_point, positions);
    let places = _mm512_maskz_sub_epi8(has_point, tokens.last, position);
    Points { has_point, position, places }
} }

with_avx512! {
/// The digits of the tokens `from ..`, right-aligned in lanes, zeros before them.
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
/// Lanes of 4 digits to 16 integers of 32 bits.
#[inline]
fn value_of_4(digits: __m512i) -> __m512i {
    let pairs = _mm512_maddubs_epi16(digits, _mm512_set1_epi16(0x010a));
    _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x0001_0064))
} }

with_avx512! {
/// Lanes of 8 digits to integers of 32 bits; those of a 128-bit lane stand twice in it.
#[inline]
fn halves_of_8(digits: __m512i) -> __m512i {
    let fours = value_of_4(digits);
    let fours = _mm512_packus_epi32(fours, fours);
    _mm512_madd_epi16(fours, _mm512_set1_epi32(0x0001_2710))
} }

with_avx512! {
/// Lanes of 8 digits to 8 integers of 64 bits.
#[inline]
fn value_of_8(digits: __m512i) -> __m512i {
    _mm512_maskz_shuffle_epi32(0x5555, halves_of_8(digits), 0b01_01_00_00)
} }

with_avx512! {
/// Two times 8 lanes of 8 digits, in turns of two, to 16 integers of 32 bits.
#[inline]
fn values_of_8(low: __m512i, high: __m512i) -> __m512i {
    let fours = _mm512_packus_epi32(value_of_4(low), value_of_4(high));
    _mm512_madd_epi16(fours, _mm512_set1_epi32(0x0001_2710))
} }

with_avx512! {
/// Two times four lanes of 16 digits to 8 integers of 64 bits.
#[inline]
fn value_of_16(low: __m512i, high: __m512i) -> __m512i {
    let join = |halves: __m512i| {
        let upper = _mm512_mul_epu32(halves, _mm512_set1_epi64(100_000_000));
        _mm512_add_epi64(upper, _mm512_srli_epi64(halves, 32))
    };
    let even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
    _mm512_permutex2var_epi64(join(halves_of_8(low)), even, join(halves_of_8(high)))
} }

with_avx512! {
/// `digits / 10^places` with its sign as float32, and a bit for each lane where rounding twice may differ from once.
///
/// The product is off by at most three units of float64: one rounding each of digits beyond 2^53, of the power of ten
/// and of the product, where a half unit may count as a whole one beyond a power of two.
#[inline]
fn finish(digits: __m512i, places: __m512i, negative: u8) -> (__m256, u8) {
    let scales = |half: usize| {
        // SAFETY: eight numbers from element 0 or 8 of the sixteen.
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
/// Convert up to `count` tokens, 8 at a time, into `out`; returns how many of them are certain.
///
/// # Safety
///
/// `out` must have room for `count` values rounded up to a multiple of 8.
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
            value_of_16(
                gather(tokens, Some(points), &LANES_OF_16, done),
                gather(tokens, Some(points), &LANES_OF_16, done + 4),
            )
        } else {
            value_of_8(gather(tokens, Some(points), &LANES_OF_8, done))
        };
        let token = _mm512_add_epi8(block(&LANES_OF_8.0), _mm512_set1_epi8(done as i8));
        let places = _mm512_maskz_permutexvar_epi8(0x0101_0101_0101_0101, token, points.places);
        let (values, near_middle) = finish(digits, places, (negative >> done) as u8);
        // SAFETY: `done` is a multiple of 8 below `count`; the caller gives room for whole eights.
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
pub(crate) fn dense_f32(bytes: &[u8], at: usize, limit: usize, out: &mut Vec<f32>) -> usize {
    let rest = bytes.len().saturating_sub(at);
    out.reserve(limit.min(rest) + MAX_TOKENS);
    // SAFETY: room for that many values behind the length was reserved; as many as are said to be written are counted.
    unsafe {
        let (at, written) = dense_into(bytes, at, limit, out.as_mut_ptr().add(out.len()));
        out.set_len(out.len() + written);
        at
    }
} }

/// Bytes from block to block of short integers: those that two blocks share hold all digits of a token that ends in the
/// second, but for the blank behind it.
const SHORT_INTEGERS: usize = 60;

with_avx512! {
/// Integers of at most four digits, each with a blank behind it, from `at` on, as long as whole blocks hold nothing
/// else; where they end, and how many were written.
///
/// A token is taken in the block that has the blank behind it, so that blocks are where they are, whatever is in them:
/// none waits for where the one before ends.
///
/// # Safety
///
/// As for [`dense_into`].
#[inline]
unsafe fn short_integers(bytes: &[u8], at: usize, limit: usize, out: *mut f32) -> (usize, usize) {
    let (mut start, mut written, mut shared) = (at, 0, 0);
    loop {
        let text = load(bytes, start);
        let digits = _mm512_sub_epi8(text, _mm512_set1_epi8(b'0' as i8));
        let digit = _mm512_cmplt_epu8_mask(digits, _mm512_set1_epi8(10));
        let blank = equal(text, b' ') | equal(text, b'\t');
        let behind = !digit & (digit << 1);
        let size_before = 64 - _lzcnt_u64(behind & shared) as usize;
        let runs_of_2 = digit & (digit << 1);
        let runs_of_5 = runs_of_2 & (runs_of_2 << 2) & (digit << 4);
        if !(digit | blank) | runs_of_5 != 0 || written + MAX_TOKENS > limit {
            return (start + size_before, written);
        }
        prefetch_from(bytes.as_ptr().wrapping_add(start + AHEAD));
        let not_before = !below(size_before);
        let body = digit & not_before;
        let behind = behind & not_before;
        let tokens = Tokens {
            digits,
            body,
            point: 0,
            first: _mm512_maskz_compress_epi8(body & !(body << 1), block(&POSITIONS)),
            last: _mm512_maskz_compress_epi8(behind >> 1, block(&POSITIONS)),
        };
        let convert_16 = |from: usize| {
            let values = value_of_4(gather(&tokens, None, &LANES_OF_4, from));
            // SAFETY: fewer than `limit` values were written, and no more than bytes were consumed; behind them is room
            // for MAX_TOKENS more, two times 16.
            unsafe { _mm512_storeu_ps(out.add(written + from), _mm512_cvtepi32_ps(values)) };
        };
        let count = behind.count_ones() as usize;
        convert_16(0);
        if count > 16 {
            convert_16(16);
        }
        written += count;
        start += SHORT_INTEGERS;
        shared = below(64 - SHORT_INTEGERS);
    }
} }

with_avx512! {
/// Where the prefix ends, and how many values were written.
///
/// # Safety
///
/// `out` must have room for `MAX_TOKENS` values more than `limit` or the bytes behind `at`, whichever is less.
#[inline]
unsafe fn dense_into(bytes: &[u8], mut at: usize, limit: usize, out: *mut f32) -> (usize, usize) {
    let mut written = 0;
    let mut next = classify::<false>(load(bytes, at));
    if next.other | next.point | next.sign == 0 {
        // SAFETY: the caller's.
        (at, written) = unsafe { short_integers(bytes, at, limit, out) };
        next = classify::<false>(load(bytes, at));
    }
    loop {
        let Classes { digits, digit, blank, point, sign, negative, other, .. } = next;
        let (end, sample_ends) = certain_part(bytes, at, blank, other);
        if end == 0 {
            return (at, written);
        }
        // Where the block behind ends is asked for before this one is converted: the way from block to block is long.
        next = classify::<false>(load(bytes, at + end));
        prefetch_behind(bytes, at);
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
        // SAFETY: at most `limit` values were written, and no more than bytes were consumed; behind them is room for
        // MAX_TOKENS more.
        let room = unsafe { out.add(written) };
        let runs_of_2 = body & (body << 1);
        let runs_of_5 = runs_of_2 & (runs_of_2 << 2) & (body << 4);
        let certain = if point | sign | runs_of_5 == 0 {
            let convert_16 = |from: usize| {
                let values = value_of_4(gather(&tokens, None, &LANES_OF_4, from));
                // SAFETY: `from` is 0 or 16, and there is room for MAX_TOKENS, two times 16.
                unsafe { _mm512_storeu_ps(room.add(from), _mm512_cvtepi32_ps(values)) };
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
            // SAFETY: `wanted` is at most MAX_TOKENS, a multiple of 8, and there is room for that.
            unsafe { convert(&tokens, &points, negative, wanted, room) }
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
/// Colons and signs of a block of sparse entries that are out of place: a colon stands between a digit and a number, a
/// sign behind a colon.
#[inline]
fn misplaced(classes: &Classes) -> u64 {
    let Classes { digit, colon, sign, .. } = *classes;
    (colon & !((digit << 1) & ((digit | sign) >> 1))) | (sign & !(colon << 1))
} }

with_avx512! {
/// Write the entries of the first `end` bytes of a block, where no colon or sign is [`misplaced`], to `indices` and
/// `values`; how many they are. `None` if one of them is not certain: what was written means nothing then.
///
/// # Safety
///
/// `indices` and `values` must have room for `MAX_ENTRIES`.
#[inline]
unsafe fn entries(
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
    // Tokens take turns: an index, which a colon follows, and a value, which a colon comes before.
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
        // SAFETY: the caller gives room for MAX_ENTRIES values, 16.
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
        // SAFETY: `count` is at most MAX_ENTRIES, a multiple of 8, and the caller gives room for that.
        if unsafe { convert(&tokens, &points, negative, count, values) } < count {
            return None;
        }
    }
    let tokens =
        Tokens { digits, body, point: 0, first: compress(starts & !value_starts), last: compress(index_ends) };
    // All sixteen at once: whether there are more than eight is a coin toss, and to guess wrong costs more.
    let sixteen = values_of_8(
        gather(&tokens, None, &LANES_OF_8_IN_FOURS, 0),
        gather(&tokens, None, &LANES_OF_8_IN_FOURS, 2),
    );
    // SAFETY: the caller gives room for MAX_ENTRIES indices, 16.
    unsafe { _mm512_storeu_si512(indices.cast(), sixteen) };
    let is_beyond = u64::from(_mm512_cmpgt_epu32_mask(sixteen, last_index)) & below(count);
    if is_beyond != 0 { None } else { Some(count) }
} }

with_avx512! {
pub(crate) fn sparse_f32(
    bytes: &[u8],
    mut at: usize,
    dim: u32,
    indices: &mut Vec<i32>,
    values: &mut Vec<f32>,
) -> usize {
    if dim == 0 {
        return at;
    }
    let last_index = last_index(dim);
    let mut next = classify::<true>(load(bytes, at));
    loop {
        let classes = next;
        let (end, sample_ends) = certain_part(bytes, at, classes.blank, classes.other | misplaced(&classes));
        if end == 0 {
            return at;
        }
        next = classify::<true>(load(bytes, at + end));
        prefetch_behind(bytes, at);
        indices.reserve(MAX_ENTRIES);
        values.reserve(MAX_ENTRIES);
        // SAFETY: the lengths are within the capacities, and behind them is room for MAX_ENTRIES each.
        let count = unsafe {
            let (indices, values) = (indices.as_mut_ptr().add(indices.len()), values.as_mut_ptr().add(values.len()));
            entries(&classes, end, last_index, indices, values)
        };
        let Some(count) = count else { return at };
        // SAFETY: that many values and indices behind the old lengths were written above.
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
fn last_index(dim: u32) -> __m512i {
    _mm512_set1_epi32(dim.min(1 << 31).wrapping_sub(1) as i32)
} }

/// Where the entries of a column go.
#[derive(Clone, Copy)]
struct Target {
    indices: *mut i32,
    values: *mut f32,
    sample_offsets: *mut u32,
    /// Entries of the column before these lines, and of these lines so far.
    before: u32,
    written: usize,
}

/// A number that the compiler knows nothing about.
#[inline]
fn unforeseen(mut number: u64) -> u64 {
    // SAFETY: no instruction at all.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) number, options(pure, nomem, nostack, preserves_flags)) };
    number
}

/// A block, 16 bytes behind where the part of it ends that is taken, and the next block.
const LOOKED_AT: usize = 64 + 16 + 64;

/// The block at a position, and what its bytes are. The sample ends at the first byte that is none of these.
struct Look {
    digits: __m512i,
    digit: u64,
    blank: u64,
    colon: u64,
    first_other: u64,
}

with_avx512! {
/// # Safety
///
/// There are 64 bytes.
#[inline]
unsafe fn look(bytes: *const u8) -> Look {
    // SAFETY: the caller's.
    let text = unsafe { _mm512_loadu_si512(bytes.cast()) };
    let digits = _mm512_sub_epi8(text, _mm512_set1_epi8(b'0' as i8));
    let digit = _mm512_cmplt_epu8_mask(digits, _mm512_set1_epi8(10));
    let blank = equal(text, b' ') | equal(text, b'\t');
    let colon = equal(text, b':');
    Look { digits, digit, blank, colon, first_other: unforeseen(_tzcnt_u64(!(digit | blank | colon))) }
} }

with_avx512! {
/// Take blocks of entries whose values are single digits, and of ids, up to the first of another kind or of another
/// form.
///
/// Where a sample ends and what comes behind it nothing foretells, so that no branch depends on it: what follows is
/// compared with what should, and the next block starts behind that. It is looked at before this one is converted,
/// since all that comes waits for where it ends.
///
/// # Safety
///
/// `stop` is LOOKED_AT bytes before the slice's end, or more. There is room for as many entries in each target as fit
/// the text up to `stop`, and a block's more; and for an offset and an end of as many lines, and one more.
#[allow(clippy::too_many_arguments)]
#[inline(never)]
unsafe fn plain_entries(
    bytes: &[u8],
    start: &mut usize,
    stop: usize,
    form: &SparseForm,
    start_place: &mut usize,
    targets: &mut [Target; MAX_STEPS],
    lines: &mut usize,
    line_ends: *mut usize,
) {
    let (mut at, mut place, mut num_lines) = (*start, *start_place, *lines);
    // SAFETY: `at` is before `stop`.
    let mut next = unsafe { look(bytes.as_ptr().add(at)) };
    while at < stop {
        let Look { digits, digit, blank, colon, first_other } = next;
        let step = &form.steps[place % MAX_STEPS];
        let to_blank = 64 - _lzcnt_u64(blank);
        let ended = (first_other >> 6).wrapping_sub(1);
        let size = ((first_other & ended) | (to_blank & !ended)) as usize;
        let behind = at + size;
        let next_at = behind + (step.behind.size & ended as usize);
        // SAFETY: `at` is before `stop`, and `size` at most 64: this ends within LOOKED_AT bytes.
        let is_behind = unsafe {
            next = look(bytes.as_ptr().add(next_at));
            let difference = _mm_xor_si128(_mm_loadu_si128(bytes.as_ptr().add(behind).cast()), word(&step.behind.word));
            _mm_testz_si128(difference, word(&step.behind.mask)) as u64
        };
        prefetch_from(bytes.as_ptr().wrapping_add(at + AHEAD));
        let inside = below(size);
        let colon = colon & inside;
        // Without the id, from the first byte on, which there must be, and nothing else.
        let run = digit & inside;
        let run = run & run.wrapping_sub(step.id_mask);
        let id_amiss = step.id_mask & (colon | (!digit & 1));
        let value_starts = run & (colon << 1);
        let index_starts = run & !(run << 1) & !value_starts;
        // A start's bit added to its run of ones carries to the bit behind, where a colon must stand, and nowhere else.
        let behind_indices = run.wrapping_add(index_starts) & !run;
        let colons_amiss = (behind_indices ^ colon) | (value_starts ^ (colon << 1));
        let long_values = value_starts & (run >> 1);
        if ((is_behind ^ 1) & ended) | id_amiss | colons_amiss | long_values != 0 || ended | blank == 0 {
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
        let sixteen = values_of_8(
            gather(&tokens, None, &LANES_OF_8_IN_FOURS, 0),
            gather(&tokens, None, &LANES_OF_8_IN_FOURS, 2),
        );
        let last_index = _mm512_set1_epi32(step.last_index as i32);
        let beyond = u64::from(_mm512_cmpgt_epu32_mask(sixteen, last_index)) & below(count);
        let span = _mm512_sub_epi8(tokens.last, tokens.first);
        if beyond | _mm512_cmpgt_epu8_mask(span, _mm512_set1_epi8(7)) != 0 {
            break;
        }
        let target = &mut targets[step.column % MAX_STEPS];
        let written = target.written + count;
        // SAFETY: entries that were written take no more than the bytes up to `at`, so that there is room for
        // MAX_ENTRIES more, 16; and no line takes less than four bytes, so that there is room for one more.
        unsafe {
            _mm512_storeu_ps(target.values.add(target.written), _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(units)));
            _mm512_storeu_si512(target.indices.add(target.written).cast(), sixteen);
            target.sample_offsets.add(num_lines).write(target.before.wrapping_add(written as u32));
            line_ends.add(num_lines).write(behind + form.line_end.size);
        }
        target.written = written;
        at = next_at;
        let ended = ended as usize;
        num_lines += step.ends_line & ended;
        place = (step.next & ended) | (place & !ended);
    }
    (*start, *start_place, *lines) = (at, place, num_lines);
} }

with_avx512! {
#[inline]
fn word(bytes: &u128) -> __m128i {
    // SAFETY: the reference is to 16 bytes.
    unsafe { _mm_loadu_si128(std::ptr::from_ref(bytes).cast()) }
} }

with_avx512! {
/// The certain part of a block of any entries, as [`sparse_f32`] takes it: its size, whether the sample ends
/// there, and how many entries it has.
///
/// # Safety
///
/// As for [`entries`].
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
    // SAFETY: the caller's.
    let count = unsafe { entries(&classes, end, _mm512_set1_epi32(step.last_index as i32), indices, values) }?;
    Some((end, sample_ends, count))
} }

with_avx512! {
pub(crate) fn sparse_lines(
    bytes: &[u8],
    mut at: usize,
    end: usize,
    form: &SparseForm,
    columns: &mut [SparseColumn],
    line_ends: &mut Vec<usize>,
) {
    assert!(columns.len() == form.num_streams);
    let end = end.min(bytes.len());
    let stop = end.min((bytes.len() + 1).saturating_sub(LOOKED_AT));
    if at >= stop || !form.start.is_at(bytes, at) {
        return;
    }
    // An entry takes four bytes with what parts it from the next, and no line takes less. A block may go beyond the
    // end.
    let room = (end - at) / 4 + 64;
    line_ends.reserve(room);
    // SAFETY: the length is within the capacity.
    let room_for_ends = unsafe { line_ends.as_mut_ptr().add(line_ends.len()) };
    let nowhere =
        Target { indices: null_mut(), values: null_mut(), sample_offsets: null_mut(), before: 0, written: 0 };
    let mut targets = [nowhere; MAX_STEPS];
    for (target, column) in targets.iter_mut().zip(&mut *columns) {
        let SparseColumn { sample_offsets, indices, values } = column;
        assert!(indices.len() == values.len());
        sample_offsets.reserve(room);
        indices.reserve(room);
        values.reserve(room);
        let before = indices.len();
        // SAFETY: the lengths are within the capacities.
        *target = unsafe {
            Target {
                indices: indices.as_mut_ptr().add(before),
                values: values.as_mut_ptr().add(before),
                sample_offsets: sample_offsets.as_mut_ptr().add(sample_offsets.len()),
                before: before as u32,
                written: 0,
            }
        };
    }
    let (mut num_lines, mut place) = (0, 0);
    at += form.start.size;
    while at < stop {
        // SAFETY: `at` is before `stop`; the steps lead to columns there are.
        unsafe { plain_entries(bytes, &mut at, stop, form, &mut place, &mut targets, &mut num_lines, room_for_ends) };
        if at >= stop {
            break;
        }
        let step = &form.steps[place % MAX_STEPS];
        let target = &mut targets[step.column % MAX_STEPS];
        // SAFETY: entries that were written take no more than the bytes up to `at`, so that there is room for a
        // block's.
        let part = unsafe {
            let (indices, values) = (target.indices.add(target.written), target.values.add(target.written));
            certain_entries(bytes, at, step, indices, values)
        };
        let Some((size, sample_ends, count)) = part else { break };
        let behind = at + size;
        let is_behind = step.behind.is_at(bytes, behind);
        // Behind the last line comes something else.
        let is_last = sample_ends
            && !is_behind
            && step.ends_line == 1
            && behind + form.line_end.size == end
            && form.line_end.is_at(bytes, behind);
        if sample_ends && !is_behind && !is_last {
            break;
        }
        target.written += count;
        at = behind;
        if sample_ends {
            // SAFETY: no line takes less than four bytes, so that there is room for one more.
            unsafe {
                target.sample_offsets.add(num_lines).write(target.before.wrapping_add(target.written as u32));
                room_for_ends.add(num_lines).write(behind + form.line_end.size);
            }
            at += step.behind.size;
            num_lines += step.ends_line;
            place = step.next;
        }
        if is_last {
            break;
        }
    }
    // SAFETY: of so many lines all ends were written.
    unsafe { line_ends.set_len(line_ends.len() + num_lines) };
    let num_beyond = line_ends.iter().rev().take(num_lines).take_while(|line_end| **line_end > end).count();
    num_lines -= num_beyond;
    line_ends.truncate(line_ends.len() - num_beyond);
    if num_lines == 0 {
        return;
    }
    for SparseColumn { sample_offsets, indices, values } in columns {
        // SAFETY: of so many lines all offsets were written, and as many entries as the last one says.
        unsafe {
            sample_offsets.set_len(sample_offsets.len() + num_lines);
            let last = sample_offsets[sample_offsets.len() - 1];
            let num_entries = last.wrapping_sub(indices.len() as u32) as usize;
            indices.set_len(indices.len() + num_entries);
            values.set_len(values.len() + num_entries);
        }
    }
} }

with_avx512! {
/// Always sixteen at a time: how many there are in a block nothing foretells.
pub(crate) fn line_ends(bytes: &[u8], out: &mut Vec<u32>) {
    for (number, part) in bytes.chunks(LINES_AT_ONCE).enumerate() {
        out.reserve(part.len() + 16);
        let mut length = out.len();
        for at in (0..part.len()).step_by(64) {
            let text = load(part, at);
            let mut ends = equal(text, b'\n');
            loop {
                let places = _mm512_castsi512_si128(_mm512_maskz_compress_epi8(ends, block(&POSITIONS)));
                let first = _mm512_set1_epi32((number * LINES_AT_ONCE + at) as i32);
                let places = _mm512_add_epi32(_mm512_cvtepu8_epi32(places), first);
                // SAFETY: as many as there are bytes before, and sixteen more, have room behind the old length.
                unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(length).cast(), places) };
                let count = ends.count_ones() as usize;
                if count <= 16 {
                    length += count;
                    break;
                }
                length += 16;
                ends &= !below(_tzcnt_u64(_pdep_u64(1 << 16, ends)) as usize);
            }
        }
        // SAFETY: all up to here were written.
        unsafe { out.set_len(length) };
    }
} }

with_avx512! {
/// Write the numbers that small forms stand for into room for as many. Runs are short: none is left for a loop of its
/// own.
pub(crate) fn widen_u8(small: &[u8], room: &mut [MaybeUninit<f32>]) {
    assert!(small.len() == room.len());
    for at in (0..small.len()).step_by(16) {
        let wanted = below((small.len() - at).min(16)) as u16;
        // SAFETY: a masked load touches the bytes of its mask alone, and those are inside the slice.
        let bytes = unsafe { _mm_maskz_loadu_epi8(wanted, small.as_ptr().add(at).cast()) };
        let values = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
        // SAFETY: the room is as long, and the store touches the values of the same mask alone.
        unsafe { _mm512_mask_storeu_ps(room.as_mut_ptr().add(at).cast(), wanted, values) };
    }
} }

with_avx512! {
/// The same of 16 bits to 32.
pub(crate) fn widen_u16(small: &[u16], room: &mut [MaybeUninit<i32>]) {
    assert!(small.len() == room.len());
    for at in (0..small.len()).step_by(16) {
        let wanted = below((small.len() - at).min(16)) as u16;
        // SAFETY: as in `widen_u8`.
        let words = unsafe { _mm256_maskz_loadu_epi16(wanted, small.as_ptr().add(at).cast()) };
        // SAFETY: as in `widen_u8`.
        unsafe { _mm512_mask_storeu_epi32(room.as_mut_ptr().add(at).cast(), wanted, _mm512_cvtepu16_epi32(words)) };
    }
} }

/// A line of at most a block: what it is without its numbers, and where they are.
struct Line {
    end: usize,
    digits: __m512i,
    number: u64,
    starts: u64,
    skeleton: __m512i,
    places: u64,
}

with_avx512! {
/// The line at `at`, if it ends within a block and has no more than 8 numbers, none of more than 8 digits.
#[inline]
fn line(bytes: &[u8], at: usize) -> Option<Line> {
    let text = load(bytes, at);
    let digits = _mm512_sub_epi8(text, _mm512_set1_epi8(b'0' as i8));
    let digit = _mm512_cmplt_epu8_mask(digits, _mm512_set1_epi8(10));
    let line_feed = equal(text, b'\n');
    let before_numbers = equal(text, b' ') | equal(text, b'\t') | equal(text, b':');
    if line_feed == 0 {
        return None;
    }
    let size = _tzcnt_u64(line_feed) as usize + 1;
    let inside = below(size);
    // A run of digits that starts elsewhere belongs to a word: its first bit, added, carries through all of it.
    let foreign = digit & !(digit << 1) & !(before_numbers << 1 | 1);
    let number = digit & digit.wrapping_add(foreign) & inside;
    let starts = number & !(number << 1);
    let runs_of_2 = number & (number << 1);
    let runs_of_4 = runs_of_2 & (runs_of_2 << 2);
    let runs_of_9 = runs_of_4 & (runs_of_4 << 4) & (number << 8);
    if starts.count_ones() as usize > MAX_NUMBERS || runs_of_9 != 0 {
        return None;
    }
    let kept = inside & !number;
    let skeleton = _mm512_maskz_compress_epi8(kept, text);
    Some(Line { end: at + size, digits, number, starts, skeleton, places: _pext_u64(number << 1, kept) })
} }

with_avx512! {
pub(crate) fn line_form(bytes: &[u8], at: usize) -> Option<LineForm> {
    let Line { skeleton, places, .. } = line(bytes, at)?;
    let mut form = LineForm { skeleton: [0; 64], places, limits: [u32::MAX; MAX_NUMBERS] };
    // SAFETY: the skeleton is 64 bytes.
    unsafe { _mm512_storeu_si512(form.skeleton.as_mut_ptr().cast(), skeleton) };
    Some(form)
} }

with_avx512! {
pub(crate) fn lines_of_form(
    bytes: &[u8],
    mut at: usize,
    end: usize,
    form: &LineForm,
    most: usize,
    rows: &mut Vec<[u32; MAX_NUMBERS]>,
) -> usize {
    rows.reserve(most);
    // SAFETY: the limits are eight numbers of 32 bits.
    let limits = unsafe { _mm256_loadu_si256(form.limits.as_ptr().cast()) };
    let skeleton = block(&form.skeleton);
    let mut num_rows = 0;
    while at < end && num_rows < most {
        let Some(line) = line(bytes, at) else { break };
        if form.places != line.places || _mm512_cmpneq_epi8_mask(line.skeleton, skeleton) != 0 {
            break;
        }
        let positions = |mask: u64| _mm512_maskz_compress_epi8(mask, block(&POSITIONS));
        let tokens = Tokens {
            digits: line.digits,
            body: line.number,
            point: 0,
            first: positions(line.starts),
            last: positions(line.number & !(line.number >> 1)),
        };
        let numbers = _mm512_cvtepi64_epi32(value_of_8(gather(&tokens, None, &LANES_OF_8, 0)));
        if _mm256_cmpge_epu32_mask(numbers, limits) != 0 {
            break;
        }
        // SAFETY: room for `most` rows of eight numbers of 32 bits was reserved, and this is one of them.
        unsafe {
            _mm256_storeu_si256(rows.as_mut_ptr().add(rows.len()).cast(), numbers);
            rows.set_len(rows.len() + 1);
        }
        num_rows += 1;
        at = line.end;
    }
    at
} }
