//! Losses of a conversion: the numbers of a text that a precision would change, and its comments. (docs/convert.md)
//!
//! float32 keeps a number whose digits are the fewest that read back to the same float32. float64 keeps a number if
//! the value, written with as many digits, has the same digits.
//!
//! ```text
//! bytes ── masks of 64 bytes ──> runs of 7 digits, exponents ── number::scan ──> kept or changed
//! ```
//!
//! Most texts have few numbers of 7 digits, and float32 keeps all shorter numbers, so most bytes only enter a mask.

use crate::memory;
use crate::number::{self, Decimal, Element};
use crate::parallel;
use memchr::{memchr, memchr_iter, memmem, memrchr2};

/// The format of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// CNTK's text format.
    Ctf,
    /// The svmlight format.
    Svmlight,
}

/// Numbers that a conversion of a text would change, and comments that it would leave out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Losses {
    /// Number of numbers that float32 changes, and the offset of the first.
    pub single: (u64, usize),
    /// Number of numbers that float64 changes, and the offset of the first.
    pub double: (u64, usize),
    /// Number of comments.
    pub num_comments: u64,
}

/// Bytes of lines that a thread searches at a time.
const SHARE: usize = 1 << 18;

/// Find the losses in a block of whole lines, on all threads of the current pool.
///
/// Only the numbers of these fields count; without a field, all numbers. The fields of svmlight are `label` and
/// `features`.
pub fn losses(text: &[u8], layout: Layout, fields: &[&[u8]]) -> Losses {
    let mut shares = Vec::new();
    let (mut begin, mut rest) = (0, text);
    while !rest.is_empty() {
        let past = rest.get(SHARE..).and_then(|later| memchr(b'\n', later)).map(|feed| SHARE + feed + 1);
        let (lines, later) = rest.split_at(past.unwrap_or(rest.len()));
        memory::push(&mut shares, (begin, lines));
        (begin, rest) = (begin + lines.len(), later);
    }
    let found = parallel::map(shares.len(), |number| losses_of_lines(shares[number].1, layout, fields));
    let joined = |all: (u64, usize), begin: usize, more: (u64, usize)| {
        (all.0 + more.0, if all.0 == 0 && more.0 > 0 { begin + more.1 } else { all.1 })
    };
    shares.iter().zip(found).fold(Losses::default(), |all, (&(begin, _), more)| Losses {
        single: joined(all.single, begin, more.single),
        double: joined(all.double, begin, more.double),
        num_comments: all.num_comments + more.num_comments,
    })
}

fn losses_of_lines(text: &[u8], layout: Layout, fields: &[&[u8]]) -> Losses {
    let mut search = Search { text, layout, fields, losses: Losses::default(), next: 0, context: (0, false) };
    let mut current = masks(text, 0);
    let mut before = 0;
    for begin in (0..text.len()).step_by(64) {
        let following = masks(text, begin + 64);
        let digits = u128::from(current.0) | u128::from(following.0) << 64;
        let pairs = digits & digits >> 1;
        let fours = pairs & pairs >> 2;
        let sevens = (fours & fours >> 3) as u64;
        let after_digit = current.0 << 1 | before;
        let mut candidates = sevens & !after_digit | current.1 & after_digit;
        while candidates != 0 {
            search.candidate(begin + candidates.trailing_zeros() as usize);
            candidates &= candidates - 1;
        }
        before = current.0 >> 63;
        current = following;
    }
    search.losses.num_comments = match layout {
        Layout::Ctf => memmem::find_iter(text, b"|#").count() as u64,
        Layout::Svmlight => num_commented_lines(text),
    };
    search.losses
}

/// For 64 bytes of a text, with a bit for each: the digits and points, and the letters `e`.
fn masks(text: &[u8], begin: usize) -> (u64, u64) {
    let mut bytes = [0; 64];
    let rest = text.get(begin..).unwrap_or_default();
    let count = rest.len().min(64);
    bytes[..count].copy_from_slice(&rest[..count]);
    let (mut digits, mut letters) = (0, 0);
    for (number, word) in bytes.chunks_exact(8).enumerate() {
        // The chunk has eight bytes, so the default is never used.
        let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
        digits |= bits_within(word, b'.', b'9') << (8 * number);
        letters |= bits_within(word | 0x2020_2020_2020_2020, b'e', b'e') << (8 * number);
    }
    (digits, letters)
}

/// For each of eight bytes, a bit: true if it is from `low` to `high`, both below 0x80.
fn bits_within(word: u64, low: u8, high: u8) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let ascii = word & (0x7f * ONES);
    // No byte carries into the next: both sums are below 256.
    let from_low = ascii + u64::from(0x80 - low) * ONES;
    let above_high = ascii + u64::from(0x7f - high) * ONES;
    let within = from_low & !above_high & !word & (0x80 * ONES);
    // The product moves the lowest bit of byte n to bit 56 + n.
    (within >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

fn num_commented_lines(text: &[u8]) -> u64 {
    let (mut count, mut line_end) = (0, 0);
    for at in memchr_iter(b'#', text) {
        if at >= line_end {
            count += 1;
            line_end = memchr(b'\n', &text[at..]).map_or(text.len(), |feed| at + feed);
        }
    }
    count
}

struct Search<'a> {
    text: &'a [u8],
    layout: Layout,
    fields: &'a [&'a [u8]],
    losses: Losses,
    /// Offset after the last number.
    next: usize,
    /// An offset, and whether it lies in a comment or in a field that does not count.
    context: (usize, bool),
}

impl Search<'_> {
    /// Examine the number that has a byte at an offset.
    fn candidate(&mut self, mut at: usize) {
        if at < self.next {
            return;
        }
        while at > self.next && matches!(self.text[at - 1], b'0'..=b'9' | b'.') {
            at -= 1;
        }
        let Some(number) = self.number(at) else { return };
        self.next = number.end;
        let text = &self.text[at..number.end];
        let (is_single, is_double) = (keeps_single(&number, text), keeps_double(&number, text));
        if (is_single && is_double) || self.is_left_out(at) || self.is_other_part(at) {
            return;
        }
        for (kept, count) in [(is_single, &mut self.losses.single), (is_double, &mut self.losses.double)] {
            if !kept {
                *count = (count.0 + 1, if count.0 == 0 { at } else { count.1 });
            }
        }
    }

    /// The number that begins at an offset; `None`: it is an id, an index, a query or a part of a word.
    fn number(&self, at: usize) -> Option<Decimal> {
        let before = &self.text[..at];
        let before = before.strip_suffix(b"-").or(before.strip_suffix(b"+")).unwrap_or(before);
        let begins_line = before.last().is_none_or(|&byte| byte == b'\n');
        let is_number = match self.layout {
            Layout::Ctf => !begins_line,
            Layout::Svmlight => !before.ends_with(b"qid:"),
        };
        let is_after_blank = begins_line || matches!(before.last(), Some(b' ' | b'\t' | b':' | b'0'..=b'9' | b'.'));
        let number = self.scanned(at).filter(|_| is_number && is_after_blank)?;
        (self.text.get(number.end) != Some(&b':')).then_some(number)
    }

    /// The number at an offset. svmlight and Kaldi read `.5`, too, which is `0.5`.
    fn scanned(&self, at: usize) -> Option<Decimal> {
        let text = &self.text[at..];
        if !text.starts_with(b".") {
            return number::scan(self.text, at).ok();
        }
        let is_part = |byte: &u8| byte.is_ascii_digit() || b".eE+-".contains(byte);
        let size = text.iter().position(|byte| !is_part(byte)).unwrap_or(text.len());
        let number = number::scan(&[b"0", &text[..size]].concat(), 0).ok()?;
        Some(Decimal { end: at + number.end - 1, ..number })
    }

    /// True if an offset lies in a comment, or in a field that does not count.
    ///
    /// The offsets of calls ascend, so all calls together search a text once.
    fn is_left_out(&mut self, at: usize) -> bool {
        let (known, was_left_out) = self.context;
        let mark = if self.layout == Layout::Ctf { b'|' } else { b'#' };
        let is_left_out = match memrchr2(mark, b'\n', &self.text[known..at]) {
            None => was_left_out,
            Some(place) => match self.layout {
                Layout::Ctf => self.is_field_left_out(&self.text[known + place..at]),
                Layout::Svmlight => self.text[known + place] == b'#',
            },
        };
        self.context = (at, is_left_out);
        is_left_out
    }

    /// True if an offset of an svmlight text lies in a part of its line that does not count.
    fn is_other_part(&self, at: usize) -> bool {
        // Only a feature has a colon before its value.
        let is_feature = matches!(self.text[..at].iter().rfind(|byte| !b"+-.".contains(byte)), Some(b':'));
        let part: &[u8] = if is_feature { b"features" } else { b"label" };
        self.layout == Layout::Svmlight && !self.fields.is_empty() && !self.fields.contains(&part)
    }

    /// True if the text from a pipe on, or from the end of a line, is a comment or a field that does not count.
    fn is_field_left_out(&self, text: &[u8]) -> bool {
        let Some(field) = text.strip_prefix(b"|") else { return false };
        let name = field.split(|byte| byte.is_ascii_whitespace()).next().unwrap_or_default();
        name.starts_with(b"#") || !(self.fields.is_empty() || self.fields.contains(&name))
    }
}

/// All shorter numbers are kept by float32, and by float64.
const FEWEST_SINGLE: u64 = 1_000_000;
const FEWEST_DOUBLE: u64 = 1_000_000_000_000_000;
/// The fewest digits of a float32 are at most nine.
const MOST_SINGLE: u64 = 1_000_000_000;

/// The digits of a number as one whole number without zeros at its end, and the power of ten.
fn without_zeros(number: &Decimal) -> (u64, i32) {
    let (mut mantissa, mut exponent) = (number.mantissa, number.exponent);
    while mantissa != 0 && mantissa.is_multiple_of(10) {
        mantissa /= 10;
        exponent += 1;
    }
    (mantissa, exponent)
}

fn keeps_single(number: &Decimal, text: &[u8]) -> bool {
    if !number.is_exact {
        return false;
    }
    // Most numbers have few digits, and a usual size.
    if number.mantissa < FEWEST_SINGLE && (-30..=30).contains(&number.exponent) {
        return true;
    }
    let (mantissa, exponent) = without_zeros(number);
    if mantissa >= MOST_SINGLE {
        return false;
    }
    let value = <f32 as Element>::round(number, text).abs();
    if !(-22..=22).contains(&exponent) {
        return value.is_finite() && (mantissa == 0) == (value == 0.0) && is_shortest(value, mantissa, exponent);
    }
    let unit = 10f64.powi(exponent);
    let below = mantissa / 10 * 10;
    // A tie counts: either neighbour may be written. The difference is rounded, so the bound is a little larger.
    let is_nearest = (f64::from(value) - mantissa as f64 * unit).abs() * 2.0 <= unit * 1.000_001;
    // These digits are the fewest if both neighbors with one digit less are other float32 numbers.
    let are_fewest = [below, below + 10].iter().all(|&shorter| (shorter as f64 * unit) as f32 != value);
    mantissa < FEWEST_SINGLE || (is_nearest && are_fewest)
}

/// True if a number has the fewest digits that read back to a value.
fn is_shortest(value: f32, mantissa: u64, exponent: i32) -> bool {
    let mut buffer = ryu::Buffer::new();
    let written = number::scan(buffer.format_finite(value).as_bytes(), 0);
    written.is_ok_and(|written| without_zeros(&written) == (mantissa, exponent) || mantissa == 0)
}

fn keeps_double(number: &Decimal, text: &[u8]) -> bool {
    if number.is_exact && number.mantissa < FEWEST_DOUBLE && (-290..=290).contains(&number.exponent) {
        return true;
    }
    let value = <f64 as Element>::round(number, text).abs();
    let (mantissa, exponent) = without_zeros(number);
    if number.is_exact && (-22..=0).contains(&exponent) && value.is_normal() {
        // value = fraction * 2^-shift; both sides are multiplied by 10^-exponent * 2^shift, and stay whole.
        let fraction = u128::from(value.to_bits() & ((1 << 52) - 1) | 1 << 52);
        let shift = 1075 - (value.to_bits() >> 52) as i32;
        let num_bits = 64 - mantissa.leading_zeros() as i32;
        if (1..127 - num_bits).contains(&shift) {
            let value = fraction * TENS[exponent.unsigned_abs() as usize];
            return value.abs_diff(u128::from(mantissa) << shift) << 1 <= 1 << shift;
        }
    }
    has_digits(value, text)
}

/// The powers of ten up to 10^22.
const TENS: [u128; 23] = {
    let mut powers = [1; 23];
    let mut exponent = 1;
    while exponent < powers.len() {
        powers[exponent] = powers[exponent - 1] * 10;
        exponent += 1;
    }
    powers
};

/// True if a value has the digits of a number, written with as many.
fn has_digits(value: f64, text: &[u8]) -> bool {
    let digits = |text: &[u8]| -> Vec<u8> {
        let mantissa = text.split(|byte| matches!(byte, b'e' | b'E')).next().unwrap_or_default();
        let all: Vec<u8> = mantissa.iter().copied().filter(u8::is_ascii_digit).collect();
        let first = all.iter().position(|&digit| digit != b'0').unwrap_or(all.len());
        all[first..].trim_ascii().to_vec()
    };
    let stripped = |mut digits: Vec<u8>| {
        digits.truncate(digits.iter().rposition(|&digit| digit != b'0').map_or(0, |last| last + 1));
        digits
    };
    let wanted = digits(text);
    let written = format!("{value:.*e}", wanted.len().saturating_sub(1));
    value.is_finite() && stripped(digits(written.as_bytes())) == stripped(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(text: &str) -> (bool, bool) {
        let found = losses(format!("7 |x 1 {text} 2\n").as_bytes(), Layout::Ctf, &[]);
        (found.single.0 == 0, found.double.0 == 0)
    }

    #[test]
    fn a_number_that_a_precision_changes_is_counted() {
        for text in
            ["0.1", "16777216", "1e10", "0.12345679", "3.4028235e38", "1e-45", "0.0000001", "100000000000", "-0"]
        {
            assert_eq!(kept(text), (true, true), "{text}");
        }
        for text in ["16777217", "0.123456789012", "0.100000001", "1e39", "1e-46", "-0.12345678901234568", "1e300"] {
            assert_eq!(kept(text), (false, true), "{text}");
        }
        for text in ["9007199254740992", "0.1000000000000000056", "1.7976931348623157e308", "5e-324"] {
            assert_eq!(kept(text), (false, true), "{text}");
        }
        for text in ["9007199254740993", "0.123456789012345678901", "1e309", "1e-324", "18446744073709551615"] {
            assert_eq!(kept(text), (false, false), "{text}");
        }
    }

    #[test]
    fn ids_indices_queries_and_comments_are_not_counted() {
        for text in ["9007199254740993 |x 1\n", "1 |x 9007199254740993:1\n", "1 |x 1 |# 9007199254740993 1e999\n"] {
            assert_eq!(losses(text.as_bytes(), Layout::Ctf, &[]).double.0, 0, "{text}");
        }
        let text = "9007199254740993 qid:9007199254740993 1:9007199254740993 # 9007199254740993\n# 9007199254740993\n";
        let found = losses(text.as_bytes(), Layout::Svmlight, &[]);
        assert_eq!((found.double, found.num_comments), ((2, 0), 2));
        let found = losses(b"1 |x 1 |# a |y 2 |# 9007199254740993 |x 9007199254740993 |# b\n", Layout::Ctf, &[]);
        assert_eq!((found.double, found.num_comments), ((1, 40), 3));
        let text = b"1 |x 9007199254740993 |y 16777217 9007199254740993 |xx 9007199254740993\n |y\t16777217\n";
        assert_eq!(losses(text, Layout::Ctf, &[b"y", b"x"]).single, (4, 5));
        assert_eq!(losses(text, Layout::Ctf, &[b"y"]).single, (3, 25));
    }

    /// True if a value lies in the middle between a number and the neighbor that would be written for it.
    fn is_tie(value: f32, mantissa: u64, exponent: i32) -> bool {
        let mut buffer = ryu::Buffer::new();
        let written = number::scan(buffer.format_finite(value).as_bytes(), 0).unwrap();
        let (other, same) = without_zeros(&written);
        let middle = (mantissa + other) as f64 / 2.0 * 10f64.powi(exponent);
        same == exponent && mantissa.abs_diff(other) == 1 && (f64::from(value) / middle - 1.0).abs() < 1e-14
    }

    #[test]
    fn both_neighbors_of_a_tie_are_kept() {
        for text in ["1100000.2", "1100000.3", "11000003e-1"] {
            assert_eq!(kept(text), (true, true), "{text}");
        }
        assert_eq!(kept("8.4573975"), (false, true)); // 8.457397 is the same float32, 8.457398 is not
    }

    proptest! {
        #[test]
        fn the_fewest_digits_of_a_value_are_kept(bits: u32, wide: u64, blanks in 0usize..70) {
            let (single, double) = (f32::from_bits(bits), f64::from_bits(wide));
            let pad = " ".repeat(blanks);
            if single.is_finite() {
                let text = format!("1 |x{pad} {} 1\n", ryu::Buffer::new().format_finite(single));
                prop_assert_eq!(losses(text.as_bytes(), Layout::Ctf, &[]).single.0, 0, "{}", text);
            }
            if double.is_finite() {
                let text = format!("1 |x{pad} {} 1\n", ryu::Buffer::new().format_finite(double));
                prop_assert_eq!(losses(text.as_bytes(), Layout::Ctf, &[]).double.0, 0, "{}", text);
            }
        }

        #[test]
        fn a_number_is_kept_exactly_if_it_is_written_again(text in "[0-9]{1,12}(\\.[0-9]{1,12})?(e-?[0-9]{1,2})?") {
            let line = format!("1 |x {text} 1\n");
            let value: f32 = text.parse().unwrap();
            let number = number::scan(text.as_bytes(), 0).unwrap();
            let (mantissa, exponent) = without_zeros(&number);
            let is_written = is_shortest(value, mantissa, exponent) || is_tie(value, mantissa, exponent);
            let is_kept = value.is_finite() && number.is_exact && is_written && (mantissa == 0 || value != 0.0);
            prop_assert_eq!(losses(line.as_bytes(), Layout::Ctf, &[]).single.0 == 0, is_kept, "{}", text);
        }
    }
}
