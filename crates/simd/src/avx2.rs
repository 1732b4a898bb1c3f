//! Kernels that process blocks of 32 bytes with AVX2: short integers, decimals, line ends, and widening of small
//! numbers. Sparse samples use the scalar kernel, because vectors of this size are not faster on them.
//!
//! Short integers are computed at all bytes of a block at once, wherever the integers end. Decimals are located with
//! masks of 64 bytes and converted one by one: load the 16 bytes up to the token's end, remove the point and the bytes
//! before the token with one shuffle, and combine the digits to an integer with three multiplications.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use crate::bytes;
use crate::functions::Functions;
use crate::scalar;
use crate::scalar::ends_sample;

pub(crate) static KERNEL: Functions = Functions {
    name: "avx2",
    is_available,
    dense_f32,
    line_ends,
    widen_u8: widen,
    widen_u16: widen,
    floats_le,
    floats_be,
    ..scalar::KERNEL
};

const BLOCK_BYTES: usize = 32;

fn is_available() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

/// For each mask of 8 bits: the shuffle that moves the 16-bit lanes of the set bits to the front.
static TO_THE_FRONT: [[u8; 16]; 256] = {
    let mut shuffles = [[0x80; 16]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut target_lane) = (0, 0);
        while lane < 8 {
            if mask >> lane & 1 == 1 {
                shuffles[mask][2 * target_lane] = 2 * lane as u8;
                shuffles[mask][2 * target_lane + 1] = 2 * lane as u8 + 1;
                target_lane += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    shuffles
};

#[target_feature(enable = "avx2")]
#[inline]
fn load(block: &[u8; BLOCK_BYTES]) -> __m256i {
    // SAFETY: the reference is to 32 bytes.
    unsafe { _mm256_loadu_si256(block.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn mask(bytes: __m256i) -> u32 {
    _mm256_movemask_epi8(bytes) as u32
}

/// Move every byte up by 16 - `REST` bytes, with zeros below.
#[target_feature(enable = "avx2")]
#[inline]
fn back<const REST: i32>(bytes: __m256i) -> __m256i {
    let lower_half_above = _mm256_permute2x128_si256(bytes, bytes, 0x08);
    _mm256_alignr_epi8(bytes, lower_half_above, REST)
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn dense_f32(bytes: &[u8], mut at: usize, limit: usize, out: &mut Vec<f32>) -> usize {
    let before = out.len();
    while let Some(block) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
        let block = load(block);
        let digits = _mm256_sub_epi8(block, _mm256_set1_epi8(b'0' as i8));
        let is_digit = _mm256_cmpeq_epi8(_mm256_min_epu8(digits, _mm256_set1_epi8(9)), digits);
        let is_blank = _mm256_or_si256(
            _mm256_cmpeq_epi8(block, _mm256_set1_epi8(b' ' as i8)),
            _mm256_cmpeq_epi8(block, _mm256_set1_epi8(b'\t' as i8)),
        );
        let (digit, blank) = (mask(is_digit), mask(is_blank));
        let first_other = _tzcnt_u32(!(digit | blank)) as usize;
        let sample_ends = first_other < BLOCK_BYTES && ends_sample(bytes[at + first_other]);
        let end = match sample_ends {
            true => first_other,
            false => 32 - _lzcnt_u32(blank & _bzhi_u32(!0, first_other as u32)) as usize,
        };
        let body = digit & _bzhi_u32(!0, end as u32);
        let runs_of_2 = body & (body << 1);
        let runs_of_5 = runs_of_2 & (runs_of_2 << 2) & (body << 4);
        let ends = body & !(body >> 1);
        let count = ends.count_ones() as usize;
        if end == 0 || runs_of_5 != 0 || count > limit - (out.len() - before) {
            break;
        }
        // Compute, for each byte, the value of the run of digits that ends there: the byte's digit plus ten, a hundred
        // and a thousand times the digits before it, as far as the run extends. No run starts before the block.
        let units = _mm256_and_si256(digits, is_digit);
        let is_tens = _mm256_and_si256(is_digit, back::<15>(is_digit));
        let is_hundreds = _mm256_and_si256(is_tens, back::<14>(is_digit));
        let is_thousands = _mm256_and_si256(is_hundreds, back::<13>(is_digit));
        let tens = _mm256_and_si256(is_tens, back::<15>(units));
        let hundreds = _mm256_and_si256(is_hundreds, back::<14>(units));
        let thousands = _mm256_and_si256(is_thousands, back::<13>(units));
        let low = [_mm256_unpacklo_epi8(units, tens), _mm256_unpackhi_epi8(units, tens)];
        let high = [_mm256_unpacklo_epi8(hundreds, thousands), _mm256_unpackhi_epi8(hundreds, thousands)];
        let value = |half: usize| {
            let low = _mm256_maddubs_epi16(low[half], _mm256_set1_epi16(0x0a01));
            let high = _mm256_maddubs_epi16(high[half], _mm256_set1_epi16(0x0a01));
            _mm256_add_epi16(low, _mm256_mullo_epi16(high, _mm256_set1_epi16(100)))
        };
        let (even, odd) = (value(0), value(1)); // bytes 0-7 and 16-23, bytes 8-15 and 24-31
        let eights = [
            _mm256_castsi256_si128(even),
            _mm256_castsi256_si128(odd),
            _mm256_extracti128_si256(even, 1),
            _mm256_extracti128_si256(odd, 1),
        ];
        out.reserve(count + 8);
        let mut length = out.len();
        for (eight, values) in eights.into_iter().enumerate() {
            let ends = (ends >> (8 * eight)) as u8;
            let shuffle = &TO_THE_FRONT[usize::from(ends)];
            // SAFETY: the shuffle has 16 bytes. The store writes 8 values at `length`, which is at most `count` after
            // the old length, where memory for `count` + 8 values is reserved. Values beyond the integers that end in
            // these 8 bytes are overwritten or not counted.
            unsafe {
                let front = _mm_shuffle_epi8(values, _mm_loadu_si128(shuffle.as_ptr().cast()));
                let front = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(front));
                _mm256_storeu_ps(out.as_mut_ptr().add(length), front);
            }
            length += ends.count_ones() as usize;
        }
        // SAFETY: the loop wrote `count` values, one for each bit of `ends`, after the old length.
        unsafe { out.set_len(length) };
        at += end;
        if sample_ends {
            return at;
        }
    }
    let at = decimals(bytes, at, limit - (out.len() - before), out);
    scalar::dense_f32(bytes, at, limit - (out.len() - before), out)
}

/// Largest number of tokens in 64 bytes: a token has at least one byte, and at least one separates it from the next.
const MAX_TOKENS: usize = 32;
/// Largest size of a token that is converted, the size of a vector.
const MAX_TOKEN_BYTES: usize = 16;

/// For each position of the point (0: no point; n: n - 1 digits follow it) and each number of digits: the shuffle that
/// selects the digits of a token that ends at the vector's end, with zeros before them.
static WITHOUT_POINT: [[[u8; MAX_TOKEN_BYTES]; MAX_TOKEN_BYTES + 1]; MAX_TOKEN_BYTES + 1] = {
    let mut shuffles = [[[0x80; MAX_TOKEN_BYTES]; MAX_TOKEN_BYTES + 1]; MAX_TOKEN_BYTES + 1];
    let mut point = 0;
    while point <= MAX_TOKEN_BYTES {
        let mut num_digits = 0;
        while num_digits <= MAX_TOKEN_BYTES {
            let mut digit = 0; // counted from the last
            while digit < num_digits {
                let from_last = digit + (point > 0 && digit + 1 >= point) as usize;
                if from_last < MAX_TOKEN_BYTES {
                    shuffles[point][num_digits][MAX_TOKEN_BYTES - 1 - digit] = (MAX_TOKEN_BYTES - 1 - from_last) as u8;
                }
                digit += 1;
            }
            num_digits += 1;
        }
        point += 1;
    }
    shuffles
};

/// A mask of 64 bytes: bit k is set if `is` holds for byte k.
#[target_feature(enable = "avx2")]
#[inline]
fn masks(low: __m256i, high: __m256i, is: impl Fn(__m256i) -> __m256i) -> u64 {
    u64::from(mask(is(low))) | u64::from(mask(is(high))) << BLOCK_BYTES
}

/// The integer that a token's digits form without its point; the token is the last bytes of `window`. `point` is the
/// first index into [`WITHOUT_POINT`].
#[target_feature(enable = "avx2")]
#[inline]
fn digits_of(window: &[u8; MAX_TOKEN_BYTES], point: usize, num_digits: usize) -> u64 {
    let shuffle = &WITHOUT_POINT[point][num_digits];
    // SAFETY: both references are to 16 bytes.
    let (text, shuffle) =
        unsafe { (_mm_loadu_si128(window.as_ptr().cast()), _mm_loadu_si128(shuffle.as_ptr().cast())) };
    let digits = _mm_shuffle_epi8(_mm_sub_epi8(text, _mm_set1_epi8(b'0' as i8)), shuffle);
    let pairs = _mm_maddubs_epi16(digits, _mm_set1_epi16(0x010a));
    let fours = _mm_madd_epi16(pairs, _mm_set1_epi32(0x0001_0064));
    let eights = _mm_madd_epi16(_mm_packus_epi32(fours, fours), _mm_set1_epi32(0x0001_2710));
    let halves = _mm_cvtsi128_si64(eights) as u64;
    (halves & 0xffff_ffff) * 100_000_000 + (halves >> 32)
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn decimals(bytes: &[u8], mut at: usize, limit: usize, out: &mut Vec<f32>) -> usize {
    let before = out.len();
    while let Some([low, high]) = bytes.get(at..).and_then(<[u8]>::first_chunk::<64>).map(|block| block.as_chunks().0) {
        let (low, high) = (load(low), load(high));
        let equal = |byte: u8| masks(low, high, |half| _mm256_cmpeq_epi8(half, _mm256_set1_epi8(byte as i8)));
        let digit = masks(low, high, |half| {
            let digits = _mm256_sub_epi8(half, _mm256_set1_epi8(b'0' as i8));
            _mm256_cmpeq_epi8(_mm256_min_epu8(digits, _mm256_set1_epi8(9)), digits)
        });
        let blank = equal(b' ') | equal(b'\t');
        let point = equal(b'.') & (digit << 1);
        let negative = equal(b'-') & (digit >> 1);
        let mut other = !(digit | blank | point | negative);
        if other != 0 {
            other &= !(equal(b'+') & (digit >> 1));
        }
        let first_other = _tzcnt_u64(other) as usize;
        let sample_ends = first_other < 64 && ends_sample(bytes[at + first_other]);
        let end = match sample_ends {
            true => first_other,
            false => 64 - _lzcnt_u64(blank & _bzhi_u64(!0, first_other as u32)) as usize,
        };
        if end == 0 {
            return at;
        }
        let body = (digit | point) & _bzhi_u64(!0, end as u32);
        let (mut starts, mut ends) = (body & !(body << 1), body & !(body >> 1));
        let num_wanted = limit - (out.len() - before);
        out.reserve(MAX_TOKENS);
        // SAFETY: the length is within the capacity.
        let block_out = unsafe { out.as_mut_ptr().add(out.len()) };
        let (mut num_written, mut after_token) = (0, at);
        while ends != 0 && num_written < num_wanted {
            let (first, last) = (_tzcnt_u64(starts) as usize, _tzcnt_u64(ends) as usize);
            let points = _bzhi_u64(point >> first, (last + 1 - first) as u32);
            let window = (at + last + 1).checked_sub(MAX_TOKEN_BYTES).and_then(|from| bytes[from..].first_chunk());
            let (Some(window), true) = (window, last - first < MAX_TOKEN_BYTES && points & points.wrapping_sub(1) == 0)
            else {
                break;
            };
            let (places, digits) = match points {
                0 => (0, digits_of(window, 0, last + 1 - first)),
                _ => {
                    let places = (last - first).wrapping_sub(_tzcnt_u64(points) as usize);
                    (places, digits_of(window, places + 1, last - first))
                }
            };
            let Some(value) = scalar::rounded(digits, places) else { break };
            let sign = (negative << 1 >> first & 1) as u32;
            // SAFETY: memory for MAX_TOKENS values was reserved, and 64 bytes contain no more tokens.
            unsafe { block_out.add(num_written).write(f32::from_bits(value.to_bits() | sign << 31)) };
            num_written += 1;
            after_token = at + last + 1;
            starts &= starts - 1;
            ends &= ends - 1;
        }
        // SAFETY: `num_written` values were written after the old length.
        unsafe { out.set_len(out.len() + num_written) };
        if ends != 0 {
            return after_token;
        }
        at += end;
        if sample_ends {
            return at;
        }
    }
    at
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn line_ends(bytes: &[u8], out: &mut Vec<u32>) {
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    let line_feed = _mm256_set1_epi8(b'\n' as i8);
    for (at, block) in blocks.iter().enumerate() {
        let mut ends = mask(_mm256_cmpeq_epi8(load(block), line_feed));
        while ends != 0 {
            out.push((at * BLOCK_BYTES) as u32 + _tzcnt_u32(ends));
            ends &= ends - 1;
        }
    }
    let first = out.len();
    scalar::line_ends(rest, out);
    out[first..].iter_mut().for_each(|end| *end += (blocks.len() * BLOCK_BYTES) as u32);
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
