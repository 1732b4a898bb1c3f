//! Decimal numbers of text formats: one scan by the grammar, one correctly rounded result.
//!
//! Invariant: the value equals the written decimal, rounded once to the element type, ties to even.
//! Most numbers take one multiplication in `f64`; where that cannot prove its result, the standard library's
//! correctly rounding parser decides. (docs/formats/ctf.md, "Numbers")

use crate::memory;
use cntkio_memory::small::Number;
use cntkio_simd::Kernel;
use memchr::{memchr, memchr2};

/// A scanned decimal: `(-1)^negative * mantissa * 10^exponent`, exact while `is_exact`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decimal {
    /// All digits; modulo 2^64 if there are more than 19.
    pub mantissa: u64,
    /// The power of ten; saturates far outside every element type's range.
    pub exponent: i32,
    /// True if there was a minus sign.
    pub negative: bool,
    /// True if `mantissa` holds all digits.
    pub is_exact: bool,
    /// Offset after the number's last byte.
    pub end: usize,
}

const MOST_EXACT_DIGITS: usize = 19; // 10^19 - 1 < 2^64
const SATURATED_EXPONENT: i64 = 1 << 24;

/// Scan the number that starts at `at`: `[+-]digits[.[digits[exponent]] | exponent]`.
///
/// It ends at the first byte that cannot belong to it. `Err` holds the position of the byte that was neither
/// acceptable nor a possible end.
#[inline]
pub fn scan(bytes: &[u8], at: usize) -> Result<Decimal, usize> {
    let (negative, first_digit) = sign(bytes, at);
    // More than 19 digits may wrap; `is_exact` is false then, and `round` does not use the mantissa.
    let mut mantissa = 0u64;
    let push_digit = |digit: u8| mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit));
    let mut p = digits(bytes, first_digit, push_digit);
    let mut num_digits = p - first_digit;
    if num_digits == 0 {
        return Err(p);
    }
    let mut exponent = 0i64;
    let mut may_have_exponent = true;
    if bytes.get(p) == Some(&b'.') {
        let first_fraction = p + 1;
        let push_digit = |digit: u8| mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit));
        p = digits(bytes, first_fraction, push_digit);
        let num_fraction = p - first_fraction;
        num_digits += num_fraction;
        exponent = -(num_fraction as i64);
        may_have_exponent = num_fraction > 0; // `1.e5` is the number `1.`, followed by junk
    }
    if may_have_exponent && matches!(bytes.get(p), Some(b'e' | b'E')) {
        let (is_below_one, first) = sign(bytes, p + 1);
        let mut written = 0i64;
        // The limit applies at each digit, so an exponent of any length cannot overflow.
        p = digits(bytes, first, |digit| written = (written * 10 + i64::from(digit)).min(SATURATED_EXPONENT));
        if p == first {
            return Err(p);
        }
        exponent += if is_below_one { -written } else { written };
    }
    let exponent = exponent.clamp(-SATURATED_EXPONENT, SATURATED_EXPONENT) as i32;
    Ok(Decimal { mantissa, exponent, negative, is_exact: num_digits <= MOST_EXACT_DIGITS, end: p })
}

/// Read a sign of either kind, if there is one at `at`. Returns whether it is a minus sign, and the offset after it.
#[inline(always)]
fn sign(bytes: &[u8], at: usize) -> (bool, usize) {
    match bytes.get(at) {
        Some(b'-') => (true, at + 1),
        Some(b'+') => (false, at + 1),
        _ => (false, at),
    }
}

/// Call `push` with each digit from `at` on. Returns the offset after them.
#[inline(always)]
fn digits(bytes: &[u8], mut at: usize, mut push: impl FnMut(u8)) -> usize {
    while let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit <= 9) {
        push(digit);
        at += 1;
    }
    at
}

/// A precision: `f32` or `f64`.
pub trait Element: Number<Small = u8> + Default + From<f32> + PartialEq + std::fmt::Debug + 'static {
    /// True if this is double precision.
    const IS_DOUBLE: bool;

    /// Append values that a file stores in the other precision, lowest byte first.
    fn append_converted(out: &mut Vec<Self>, bytes: &[u8]);

    /// The value of a scanned number; `text` is the number as written.
    fn round(decimal: &Decimal, text: &[u8]) -> Self;

    /// Append the values of a dense sample that a vector kernel is certain of, at most `limit`. Returns the
    /// offset after them.
    #[inline]
    fn dense_prefix(_: Kernel, _: &[u8], at: usize, _limit: usize, _: &mut Vec<Self>) -> usize {
        at
    }

    /// Append the entries of a sparse sample that a vector kernel is certain of. Returns the offset after them.
    #[inline]
    fn sparse_prefix(_: Kernel, _: &[u8], at: usize, _dim: u32, _: &mut Vec<i32>, _: &mut Vec<Self>) -> usize {
        at
    }
}

#[rustfmt::skip]
const POWERS: [f64; 45] = [
    1e-22, 1e-21, 1e-20, 1e-19, 1e-18, 1e-17, 1e-16, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8,
    1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

impl Element for f32 {
    const IS_DOUBLE: bool = false;

    #[inline]
    fn append_converted(out: &mut Vec<f32>, bytes: &[u8]) {
        memory::extend(out, bytes.as_chunks().0.iter().map(|&value| f64::from_le_bytes(value) as f32));
    }

    #[inline]
    fn dense_prefix(kernel: Kernel, bytes: &[u8], at: usize, limit: usize, out: &mut Vec<f32>) -> usize {
        kernel.dense_f32(bytes, at, limit, out)
    }

    #[inline]
    fn sparse_prefix(
        kernel: Kernel,
        bytes: &[u8],
        at: usize,
        dim: u32,
        indices: &mut Vec<i32>,
        values: &mut Vec<f32>,
    ) -> usize {
        kernel.sparse_f32(bytes, at, dim, indices, values)
    }

    #[inline]
    fn round(decimal: &Decimal, text: &[u8]) -> f32 {
        let Decimal { mantissa, exponent, negative, is_exact, .. } = *decimal;
        if is_exact && (-22..=22).contains(&exponent) {
            let wide = mantissa as f64 * POWERS[(exponent + 22) as usize];
            // Three roundings of half a unit each (mantissa, power, product) leave the product within 2 units of
            // the exact value. Unless a midpoint of two f32 lies within 4 units, rounding again cannot go wrong.
            // The 29 bits that f32 lacks are 2^28 at a midpoint. All values are 0 or at least 1e-22, so no
            // subnormal f32, whose midpoints lie elsewhere, can come this way.
            let from_midpoint = (wide.to_bits().wrapping_add(4).wrapping_sub(1 << 28)) & 0x1fff_ffff;
            if from_midpoint > 8 {
                let value = wide as f32;
                return if negative { -value } else { value };
            }
        }
        parse_exactly(text)
    }
}

impl Element for f64 {
    const IS_DOUBLE: bool = true;

    #[inline]
    fn append_converted(out: &mut Vec<f64>, bytes: &[u8]) {
        memory::extend(out, bytes.as_chunks().0.iter().map(|&value| f64::from(f32::from_le_bytes(value))));
    }

    #[inline]
    fn round(decimal: &Decimal, text: &[u8]) -> f64 {
        let Decimal { mantissa, exponent, negative, is_exact, .. } = *decimal;
        // Both operands are exact, so a single operation rounds once. (Clinger's fast path)
        if is_exact && mantissa <= 1 << 53 && (-22..=22).contains(&exponent) {
            let value = if exponent < 0 {
                mantissa as f64 / POWERS[(22 - exponent) as usize]
            } else {
                mantissa as f64 * POWERS[(22 + exponent) as usize]
            };
            return if negative { -value } else { value };
        }
        parse_exactly(text)
    }
}

#[cold]
fn parse_exactly<T: std::str::FromStr + Default>(text: &[u8]) -> T {
    // The standard library accepts everything that `scan` accepts, so the default is never returned.
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Read the number at `at`. Returns its value and the offset after it.
#[inline]
pub fn read<T: Element>(bytes: &[u8], at: usize) -> Result<(T, usize), usize> {
    let decimal = scan(bytes, at)?;
    Ok((T::round(&decimal, &bytes[at..decimal.end]), decimal.end))
}

/// The whole number that a text is, exactly, in any form of a number: `3`, `3.0`, `.5e1`. `None`: the text is another
/// number, or none. A number of 2^64 or more is some number of at least 2^64, and so for negative numbers.
#[cold]
pub fn whole(text: &[u8]) -> Option<i128> {
    let (is_negative, first) = sign(text, 0);
    let text = &text[first..];
    let (mantissa, exponent) = match memchr2(b'e', b'E', text) {
        Some(at) => (&text[..at], written_exponent(&text[at + 1..])?),
        None => (text, 0),
    };
    let (before, after) = match memchr(b'.', mantissa) {
        Some(point) => (&mantissa[..point], &mantissa[point + 1..]),
        None => (mantissa, &[][..]),
    };
    let digits = || before.iter().chain(after).map(|byte| byte.wrapping_sub(b'0'));
    if digits().next().is_none() || digits().any(|digit| digit > 9) {
        return None;
    }
    if digits().all(|digit| digit == 0) {
        return Some(0);
    }
    // The exponent moves the point: this many digits are before it then.
    let num_whole = usize::try_from((before.len() as i64).saturating_add(exponent)).unwrap_or(0);
    if digits().skip(num_whole).any(|digit| digit != 0) {
        return None;
    }
    let mut number = 0i128;
    for digit in digits().chain(std::iter::repeat(0)).take(num_whole) {
        number = number * 10 + i128::from(digit);
        // No type has larger numbers, and an exponent may stand for millions of zeros.
        if number > 1 << 64 {
            break;
        }
    }
    Some(if is_negative { -number } else { number })
}

/// The exponent that a text is. An exponent of any length saturates far beyond the digits that a line can have.
fn written_exponent(text: &[u8]) -> Option<i64> {
    let (is_below_one, first) = sign(text, 0);
    let mut exponent = 0i64;
    let end = digits(text, first, |digit| exponent = exponent.saturating_mul(10).saturating_add(digit.into()));
    (first < end && end == text.len()).then_some(if is_below_one { -exponent } else { exponent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_accepted_form_has_its_value() {
        for (text, value) in [
            ("1", 1.0),
            ("-1", -1.0),
            ("+1", 1.0),
            ("1.", 1.0),
            ("-1.", -1.0),
            ("1.5", 1.5),
            ("1.5e3", 1500.0),
            ("1e5", 1e5),
            ("1E+05", 1e5),
            ("1e-2", 0.01),
            ("00001", 1.0),
            ("0.000", 0.0),
            ("1e39", f32::INFINITY),
            ("1e-46", 0.0),
            ("1e-45", 1e-45),
            ("0e400", 0.0),
            ("0.5236994326114654541015625", 0.523_699_4),
            ("16777217", 16_777_216.0),
            ("16777217.0000000001", 16_777_218.0),
            ("16777218.9999999999", 16_777_218.0),
            ("340282350000000000000000000000000000000", f32::MAX),
        ] {
            let (read, end): (f32, usize) = read(text.as_bytes(), 0).unwrap();
            assert_eq!((read.to_bits(), end), (value.to_bits(), text.len()), "{text}");
        }
        assert_eq!(read::<f32>(b"-0", 0).unwrap().0.to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn an_unacceptable_byte_is_named_by_its_position() {
        for (text, bad) in
            [(".5", 0), ("-.5", 1), ("1e", 2), ("1e+", 3), ("1.5ex", 4), ("--1", 1), ("nan", 0), ("", 0), ("-", 1)]
        {
            assert_eq!(scan(text.as_bytes(), 0).map(|_| ()), Err(bad), "{text}");
        }
    }

    #[test]
    fn a_number_ends_at_the_first_byte_that_cannot_belong_to_it() {
        for (text, end) in [("1.e5", 2), ("1.2.3", 3), ("1-2", 1), ("1e5.5", 3), ("0x10", 1), ("1|b", 1), ("1e5-3", 3)]
        {
            assert_eq!(scan(text.as_bytes(), 0).map(|decimal| decimal.end), Ok(end), "{text}");
        }
    }

    #[test]
    fn a_whole_number_is_exact_in_every_form() {
        let most = i128::from(u64::MAX);
        for (text, number) in [
            ("3", 3),
            ("-3.0", -3),
            ("+3e2", 300),
            (".5e1", 5),
            ("1.e3", 1000),
            ("1200E-2", 12),
            ("1.25e+2", 125),
            ("-0", 0),
            ("0.000e-999999999999999999999", 0),
            ("0e999999999999999999999", 0),
            ("9007199254740993.0", 9_007_199_254_740_993),
            ("-9223372036854775808e0", i64::MIN.into()),
            ("0000000000000000000000000000001.000000000000000000000000000000", 1),
            ("18446744073709551615", most),
        ] {
            assert_eq!(whole(text.as_bytes()), Some(number), "{text}");
        }
        for text in ["18446744073709551616", "1e20", "1e999999999999999999999"] {
            assert!(whole(text.as_bytes()).is_some_and(|number| number > most), "{text}");
            assert!(whole(format!("-{text}").as_bytes()).is_some_and(|number| number < -most), "-{text}");
        }
        for text in [
            "2.99999999999999999999",
            "1e-400",
            "125e-2",
            "0.5",
            "",
            "-",
            ".",
            ".e1",
            "1e",
            "1e+",
            "nan",
            "inf",
            "1_0",
            "1 ",
        ] {
            assert_eq!(whole(text.as_bytes()), None, "{text}");
        }
    }

    fn decimals() -> impl Strategy<Value = String> {
        prop_oneof![
            "[-+]?[0-9]{1,25}(\\.[0-9]{0,30})?",
            "[-+]?[0-9]{1,12}(\\.[0-9]{1,12})?[eE][-+]?[0-9]{1,3}",
            any::<f32>().prop_filter("finite", |v| v.is_finite()).prop_map(|v| format!("{v}")),
            any::<f64>().prop_filter("finite", |v| v.is_finite()).prop_map(|v| format!("{v:e}")),
            // Midpoints between two f32, and their neighbours: where one multiplication is not enough.
            (0u32..0x7f7f_ffff, -2i64..3).prop_map(|(bits, off)| {
                let midpoint = (f64::from(f32::from_bits(bits)) + f64::from(f32::from_bits(bits + 1))) / 2.0;
                format!("{}", f64::from_bits((midpoint.to_bits() as i64 + off).max(0) as u64))
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn values_are_correctly_rounded(text in decimals()) {
            let (narrow, end) = read::<f32>(text.as_bytes(), 0).unwrap();
            prop_assert_eq!(end, text.len());
            prop_assert_eq!(narrow.to_bits(), text.parse::<f32>().unwrap().to_bits());
            let (wide, _) = read::<f64>(text.as_bytes(), 0).unwrap();
            prop_assert_eq!(wide.to_bits(), text.parse::<f64>().unwrap().to_bits());
        }

        #[test]
        fn any_bytes_are_a_number_or_a_position(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            match scan(&bytes, 0) {
                Ok(decimal) => prop_assert!(decimal.end <= bytes.len() && decimal.end > 0),
                Err(bad) => prop_assert!(bad <= bytes.len()),
            }
        }
    }
}
