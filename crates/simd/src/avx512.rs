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

use crate::memory::prefetch;
use crate::scalar::ends_sample;
use crate::{LineForm, MAX_NUMBERS};

/// No block has more tokens than this: each takes a byte and another to part it from the next.
const MAX_TOKENS: usize = 32;
/// No block has more sparse entries than this: each takes four bytes.
const MAX_ENTRIES: usize = 16;

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
    if let Some(whole) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
        return block(whole);
    }
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
    let digits = _mm512_sub_epi8(block, _mm512_set1_epi8(b'0' as i8));
    let digit = _mm512_cmplt_epu8_mask(digits, _mm512_set1_epi8(10));
    let blank = equal(block, b' ') | equal(block, b'\t');
    let colon = if SPARSE { equal(block, b':') } else { 0 };
    let mut other = !(digit | blank | colon);
    let (mut point, mut sign, mut negative) = (0, 0, 0);
    if other != 0 {
        point = equal(block, b'.') & (digit << 1);
        negative = equal(block, b'-') & (digit >> 1);
        sign = negative;
        other &= !(point | sign);
        if other != 0 {
            sign |= equal(block, b'+') & (digit >> 1);
            other &= !sign;
        }
    }
    Classes { digits, digit, blank, colon, point, sign, negative, other }
} }

with_avx512! {
/// The first `count` bits from the bottom.
#[inline]
fn below(count: usize) -> u64 {
    _bzhi_u64(!0, count as u32)
} }

with_avx512! {
/// Where the certain part of a block ends, and whether its sample ends there: behind the last blank, or at the end of the
/// sample.
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
pub(crate) fn sparse_f32(
    bytes: &[u8],
    mut at: usize,
    dim: u32,
    indices: &mut Vec<i32>,
    values: &mut Vec<f32>,
) -> usize {
    let last_index = _mm512_set1_epi32(dim.min(1 << 31).wrapping_sub(1) as i32);
    if dim == 0 {
        return at;
    }
    let mut next = classify::<true>(load(bytes, at));
    loop {
        let Classes { digits, digit, blank, colon, point, sign, negative, mut other, .. } = next;
        // A colon stands between a digit and a number, a sign behind a colon.
        let bad = (colon & !((digit << 1) & ((digit | sign) >> 1))) | (sign & !(colon << 1));
        other |= bad;
        let (end, sample_ends) = certain_part(bytes, at, blank, other);
        if end == 0 {
            return at;
        }
        next = classify::<true>(load(bytes, at + end));
        prefetch_behind(bytes, at);
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
        if starts.count_ones() as usize != 2 * count
            || _pext_u64(index_ends, ends) != turns
            || runs_of_9 != 0
        {
            return at;
        }
        let value_ends = ends & !index_ends;
        let compress = |mask: u64| _mm512_maskz_compress_epi8(mask, block(&POSITIONS));
        indices.reserve(MAX_ENTRIES);
        values.reserve(MAX_ENTRIES);
        // SAFETY: the length is within the capacity.
        let room = unsafe { values.as_mut_ptr().add(values.len()) };
        if value_starts == value_ends && (point | sign) & inside == 0 {
            let units = _mm512_castsi512_si128(_mm512_maskz_compress_epi8(value_starts, digits));
            // SAFETY: room for MAX_ENTRIES values, 16, was reserved.
            unsafe { _mm512_storeu_ps(room, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(units))) };
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
                return at; // a value with two points, or an index with one
            }
            let negative = _pext_u64(negative << 1, value_starts);
            // SAFETY: `count` is at most MAX_ENTRIES, a multiple of 8, and room for that was reserved.
            if unsafe { convert(&tokens, &points, negative, count, room) } < count {
                return at;
            }
        }
        // SAFETY: the length is within the capacity.
        let room = unsafe { indices.as_mut_ptr().add(indices.len()) };
        let tokens =
            Tokens { digits, body, point: 0, first: compress(starts & !value_starts), last: compress(index_ends) };
        // All sixteen at once: whether there are more than eight is a coin toss, and to guess wrong costs more.
        let sixteen = values_of_8(
            gather(&tokens, None, &LANES_OF_8_IN_FOURS, 0),
            gather(&tokens, None, &LANES_OF_8_IN_FOURS, 2),
        );
        if u64::from(_mm512_cmpgt_epu32_mask(sixteen, last_index)) & below(count) != 0 {
            return at;
        }
        // SAFETY: room for MAX_ENTRIES indices, 16, was reserved.
        unsafe { _mm512_storeu_si512(room.cast(), sixteen) };
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
pub(crate) fn for_each_line_end(bytes: &[u8], mut each: impl FnMut(usize)) {
    let mut at = 0;
    while at < bytes.len() {
        let mut ends = equal(load(bytes, at), b'\n');
        while ends != 0 {
            each(at + _tzcnt_u64(ends) as usize);
            ends &= ends - 1;
        }
        at += 64;
    }
} }

with_avx512! {
/// Write the numbers that small forms stand for into room for as many. Runs are short: none is left for a loop of its own.
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
