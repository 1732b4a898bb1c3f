//! Kernels without vector instructions. Tests compare the other kernels with them, and processors without suitable
//! vector instructions use them.

use crate::bytes::{floats_be, floats_le, narrow_pairs, narrow_u8, widen, widen_pairs};
use crate::digits;
use crate::forms::{SparseColumn, SparseForm};
use crate::functions::Functions;

pub(crate) static KERNEL: Functions = Functions {
    name: "scalar",
    is_available: || true,
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

/// 10^-k for k = 0 to 19, as near as float64 comes.
pub(crate) const INVERSE_POWERS: [f64; 20] = [
    1e0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14, 1e-15, 1e-16, 1e-17,
    1e-18, 1e-19,
];
/// Numbers of more digits may not fit a signed 64-bit integer, which processors convert to floats faster than an
/// unsigned one.
const MAX_DIGITS: usize = 18;
/// Size of the window in which a number is read: a sign, the digits, a point and the byte after them fit.
const WINDOW_BYTES: usize = 24;

#[inline(always)]
fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

#[inline(always)]
pub(crate) fn ends_sample(byte: u8) -> bool {
    byte == b'|' || byte == b'\n' || byte == b'\r'
}

/// Round `digits / 10^places` to float32; `None` if two roundings (to float64, then to float32) might differ from one.
///
/// The product's error is at most three units of float64: one for each of three roundings (of digits beyond 2^53, of
/// the power of ten, and of the product), because half a unit may become a whole unit beyond a power of two. The second
/// rounding is therefore right unless the middle of two float32 numbers is within that error. Exact ties are left to
/// the exact parser too.
#[inline(always)]
pub(crate) fn rounded(digits: u64, places: usize) -> Option<f32> {
    let product = digits as i64 as f64 * INVERSE_POWERS.get(places)?;
    let beyond_float32 = product.to_bits() & 0x1fff_ffff;
    if beyond_float32.wrapping_sub((1 << 28) - 4) <= 8 { None } else { Some(product as f32) }
}

/// End and value of the number at `at`, if it is certain and a blank or the sample's end follows it.
#[inline(always)]
fn number(bytes: &[u8], at: usize) -> Option<(usize, f32)> {
    // Read from a window of fixed size, so that single bytes need no bounds checks.
    match bytes.get(at..)?.first_chunk() {
        Some(window) => number_in(window, at),
        None => number_at_the_end(bytes, at),
    }
}

#[cold]
#[inline(never)]
fn number_at_the_end(bytes: &[u8], at: usize) -> Option<(usize, f32)> {
    // A zero is neither a digit nor a separator, so a number that touches the end of the slice is not certain.
    let mut window = [0; WINDOW_BYTES];
    let rest = &bytes[at..];
    window[..rest.len()].copy_from_slice(rest);
    number_in(&window, at)
}

#[inline(always)]
fn number_in(window: &[u8; WINDOW_BYTES], at: usize) -> Option<(usize, f32)> {
    let is_negative = window[0] == b'-';
    let start = usize::from(is_negative | (window[0] == b'+')); // no branch, because signs are unpredictable
    let (mut p, mut digits) = (start, 0u64);
    // Wrapped digits are never used: a run that reaches the end of the window is not certain, and neither is a run of
    // more than `MAX_DIGITS`, which fit 64 bits.
    let mut run = |from: usize| {
        let mut p = from;
        while p < WINDOW_BYTES {
            let digit = window[p].wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            digits = digits.wrapping_mul(10).wrapping_add(u64::from(digit));
            p += 1;
        }
        p
    };
    p = run(p);
    let mut num_digits = p - start;
    if num_digits == 0 || p >= WINDOW_BYTES {
        return None;
    }
    let mut places = 0;
    if window[p] == b'.' {
        let point = p + 1;
        p = run(point);
        places = p - point;
        num_digits += places;
    }
    let byte = *window.get(p)?;
    if num_digits > MAX_DIGITS || !(is_blank(byte) || ends_sample(byte)) {
        return None;
    }
    // Whole numbers below 2^24 are exact in float32.
    let size = if places == 0 && digits < 1 << 24 { digits as i32 as f32 } else { rounded(digits, places)? };
    Some((at + p, f32::from_bits(size.to_bits() | u32::from(is_negative) << 31)))
}

#[inline(never)]
pub(crate) fn dense_f32(bytes: &[u8], mut at: usize, limit: usize, out: &mut Vec<f32>) -> usize {
    for _ in 0..limit {
        // The exact parser continues here, and reports that memory was refused.
        if out.try_reserve(1).is_err() {
            return at;
        }
        let mut p = at;
        let (mut byte, mut next);
        loop {
            let Some(&[a, b]) = bytes.get(p..p + 2).and_then(<[u8]>::first_chunk) else { return at };
            (byte, next) = (a, b);
            if !is_blank(byte) {
                break;
            }
            p += 1;
        }
        if ends_sample(byte) {
            return p;
        }
        // Handle a single digit first: one-hot vectors and most pixels consist of single digits.
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 && is_blank(next) {
            out.push(f32::from(digit));
            at = p + 1;
            continue;
        }
        let Some((end, value)) = number(bytes, p) else { return at };
        out.push(value);
        at = end;
    }
    at
}

/// Length and value of the run of digits at `at`, if it has at most 7 digits and ends before the end of the slice.
#[inline(always)]
fn short_digits(bytes: &[u8], at: usize) -> Option<(usize, u32)> {
    let Some(word) = digits::word_at(bytes, at) else {
        let mut value = 0;
        for length in 0..8 {
            let digit = bytes.get(at + length)?.wrapping_sub(b'0');
            if digit > 9 {
                return Some((length, value));
            }
            value = value * 10 + u32::from(digit);
        }
        return None;
    };
    match digits::count(word) {
        0 => Some((0, 0)),
        // The run may have further digits after these eight.
        8 => None,
        length => Some((length as usize, digits::value(word, length))),
    }
}

/// The next element of a sparse sample, after blanks.
pub(crate) enum Next {
    /// The end of the sample, and its position.
    End(usize),
    /// An entry: the position after it, its index and its value.
    Entry(usize, i32, f32),
    /// Anything else.
    Uncertain,
}

#[inline(always)]
pub(crate) fn next_entry(bytes: &[u8], at: usize, dim: u32) -> Next {
    let mut p = at;
    loop {
        match bytes.get(p) {
            Some(&byte) if is_blank(byte) => p += 1,
            Some(&byte) if ends_sample(byte) => return Next::End(p),
            Some(_) => break,
            None => return Next::Uncertain,
        }
    }
    let Some((length, index)) = short_digits(bytes, p) else { return Next::Uncertain };
    p += length;
    if length == 0 || index >= dim {
        return Next::Uncertain;
    }
    let Some(&[colon, byte, next]) = bytes.get(p..).and_then(<[u8]>::first_chunk) else { return Next::Uncertain };
    if colon != b':' {
        return Next::Uncertain;
    }
    // An index has at most eight digits, so it fits a signed 32-bit integer.
    let digit = byte.wrapping_sub(b'0');
    if digit <= 9 && (is_blank(next) || ends_sample(next)) {
        return Next::Entry(p + 2, index as i32, f32::from(digit));
    }
    match number(bytes, p + 1) {
        Some((end, value)) => Next::Entry(end, index as i32, value),
        None => Next::Uncertain,
    }
}

/// End, index and value of the only entry of the sample at `at`. `None` if the sample has another number of entries,
/// the value is not a single digit, or the separators are unusual. Vector kernels begin with this function, because a
/// sample of one entry, such as a word, is not worth a block.
#[inline(always)]
pub(crate) fn only_entry(bytes: &[u8], at: usize, dim: u32) -> Option<(usize, i32, f32)> {
    // A blank, up to eight digits and the four bytes that are examined after them are inside these 16 bytes.
    let text: &[u8; 16] = bytes.get(at..)?.first_chunk()?;
    let word = digits::word_at(text, 1)?;
    let length = digits::count(word) as usize;
    let [colon, value, next, after_next] = *text[1 + length..].first_chunk()?;
    let value = value.wrapping_sub(b'0');
    let has_blank = is_blank(next);
    if !is_blank(text[0]) || length == 0 || colon != b':' || value > 9 {
        return None;
    }
    let index = digits::value(word, length as u32);
    let is_only = ends_sample(if has_blank { after_next } else { next });
    (is_only && index < dim).then_some((at + length + 3 + usize::from(has_blank), index as i32, f32::from(value)))
}

#[inline(never)]
pub(crate) fn sparse_f32(
    bytes: &[u8],
    mut at: usize,
    dim: u32,
    indices: &mut Vec<i32>,
    values: &mut Vec<f32>,
) -> usize {
    loop {
        match next_entry(bytes, at, dim) {
            Next::End(end) => return end,
            Next::Uncertain => return at,
            Next::Entry(end, index, value) => {
                if indices.try_reserve(1).is_err() || values.try_reserve(1).is_err() {
                    return at;
                }
                indices.push(index);
                values.push(value);
                at = end;
            }
        }
    }
}

#[inline]
pub(crate) fn find_all(wanted: u8, bytes: &[u8], out: &mut Vec<u32>) {
    out.extend((0..).zip(bytes).filter(|(_, byte)| **byte == wanted).map(|(at, _)| at));
}

/// Parses no lines.
pub(crate) fn sparse_lines(_: &[u8], _: usize, _: usize, _: &SparseForm, _: &mut [SparseColumn], _: &mut Vec<usize>) {}
