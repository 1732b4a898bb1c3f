//! Rows: the content of the lines of an entry.

use super::Rules;
use super::classes::Classes;
use super::labels::Fault;
use crate::lines::Lines;
use crate::text::Text;
use cntkio_simd::digits;
use memchr::memchr;
use std::collections::HashSet;
use std::io;

/// A row of an entry, as it is written.
pub(super) struct Row {
    /// Its offset.
    pub(super) at: u64,
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) class: u32,
}

/// Append the rows of plain lines from `at` on, and return the offset of the first line that is not plain.
///
/// A plain line is two whole numbers and a known label, with one blank between them; the second number is not below the
/// first, and the class of the label is below `dim`. [`row`] would read the same row.
pub(super) fn plain_rows(
    text: &[u8],
    mut at: usize,
    first: u64,
    classes: &Classes,
    dim: u32,
    rows: &mut Vec<Row>,
) -> usize {
    // With so many bytes left, none of the reads below is beyond the text. `row` reads the last lines.
    while let Some(bytes) = text.get(at..at + LONGEST_PLAIN_BYTES) {
        let Some((start, mut size)) = plain_number(bytes, 0) else { break };
        let Some((end, label_at)) = plain_number(bytes, size) else { break };
        size = label_at;
        // The two numbers and their blanks take at most 32 of the 64 bytes.
        let label = u128::from_le_bytes(*bytes[size..].first_chunk().expect("there is room for a label"));
        // The highest bit of each byte up to a blank; only the lowest of these bits is certain.
        let is_blank = label.wrapping_sub(ONES * 0x21) & !label & (ONES * 0x80);
        let length = is_blank.trailing_zeros() / 8;
        if length == 0 || length > 15 {
            break;
        }
        let Some(class) = classes.get(&bytes[size..size + length as usize]) else { break };
        size += length as usize;
        // Lines with further columns are left to `row`.
        size += match bytes[size..] {
            [b'\n', ..] => 1,
            [b'\r', b'\n', ..] => 2,
            _ => break,
        };
        // Faults are left to `row`, which names them.
        if end < start || class >= dim {
            break;
        }
        // Whole numbers of at most 15 digits are exact in double precision.
        rows.push(Row { at: first + at as u64, start: start as f64, end: end as f64, class });
        at += size;
    }
    at
}

/// The most bytes of a plain line: two numbers of at most 15 digits with a blank after each, a label of at most 15
/// bytes, and the end of the line.
const LONGEST_PLAIN_BYTES: usize = 64;

const ONES: u128 = u128::MAX / 0xff;

/// A number of at most 15 digits with a blank after it, and the offset after the blank.
#[inline(always)]
fn plain_number(bytes: &[u8], from: usize) -> Option<(u64, usize)> {
    let word = |at: usize| digits::word_at(bytes, at).unwrap_or(0);
    let value = |word: u64, count: u32| u64::from(digits::value(word, count));
    let first = word(from);
    let size = digits::count(first);
    if size == 0 {
        return None;
    }
    if size < 8 {
        let end = from + size as usize;
        return (bytes[end] == b' ').then(|| (value(first, size), end + 1));
    }
    let more = word(from + 8);
    let further = digits::count(more);
    let end = from + 8 + further as usize;
    if further == 8 || bytes[end] != b' ' {
        return None;
    }
    let (low, scale) = if further == 0 { (0, 1) } else { (value(more, further), 10u64.pow(further)) };
    Some((value(first, 8) * scale + low, end + 1))
}

/// Read a row.
///
/// # Errors
/// The fault, and whether at least the times are numbers.
pub(super) fn row(line: &[u8], at: u64, rules: &Rules) -> Result<Row, (Fault, bool)> {
    // In compatible mode each blank ends a column, but CNTK ignores blanks at the end of a line.
    let mut columns = Columns { rest: Some(line.trim_ascii_end()), is_single_blank: rules.is_compatible };
    let mut time = || match columns.next() {
        None => Err((Fault::Columns, false)),
        Some(column) => number(column).ok_or((Fault::BadTime, false)),
    };
    let (start, end) = (time()?, time()?);
    let class = match (&rules.classes, columns.next()) {
        (_, None) => return Err((Fault::Columns, true)),
        (Some(classes), Some(label)) => match classes.get(label) {
            Some(class) => Some(class),
            // For CNTK, quotes are a part of the label.
            None if rules.is_compatible => None,
            None => quoted_label(label, line).and_then(|label| classes.get(&label)),
        }
        .ok_or((Fault::UnknownLabel, true))?,
        // As in CNTK, a row without a mapping file has exactly four columns.
        (None, Some(_)) => {
            let class = columns.next().ok_or((Fault::Columns, true))?;
            if columns.next().is_some() {
                return Err((Fault::Columns, true));
            }
            whole(class, rules.is_compatible).ok_or((Fault::BadClass, true))?
        }
    };
    if end < start {
        return Err((Fault::Reversed, true));
    }
    Ok(Row { at, start, end, class })
}

/// The columns of a line.
struct Columns<'a> {
    rest: Option<&'a [u8]>,
    /// True if each blank ends a column, as in CNTK 2.7.
    is_single_blank: bool,
}

impl<'a> Iterator for Columns<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let mut rest = self.rest?;
        if self.is_single_blank {
            let end = memchr(b' ', rest);
            self.rest = end.map(|end| &rest[end + 1..]);
            return Some(&rest[..end.unwrap_or(rest.len())]);
        }
        while let [b' ' | b'\t', tail @ ..] = rest {
            rest = tail;
        }
        let end = rest.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(rest.len());
        self.rest = Some(&rest[end..]);
        if end == 0 {
            self.rest = None;
            return None;
        }
        Some(&rest[..end])
    }
}

/// The text of a label in quotes, which may hold blanks and octal escapes.
fn quoted_label(label: &[u8], line: &[u8]) -> Option<Vec<u8>> {
    let quote = *label.first().filter(|byte| matches!(byte, b'"' | b'\''))?;
    // A quoted label can have blanks, so it may end in a later column. `label` is a part of `line`.
    let begin = label.as_ptr().addr() - line.as_ptr().addr() + 1;
    let mut text = Vec::new();
    let mut bytes = line.get(begin..)?;
    loop {
        match bytes {
            // Three octal digits fit a byte only if the first is 0 to 3.
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..] => {
                text.push(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'));
                bytes = rest;
            }
            [b'\\', byte, rest @ ..] => {
                text.push(*byte);
                bytes = rest;
            }
            [byte, ..] if *byte == quote => return Some(text),
            [byte, rest @ ..] => {
                text.push(*byte);
                bytes = rest;
            }
            [] => return None,
        }
    }
}

/// Read a number: sign, digits, fraction, exponent. Anything after it is ignored. `None` without digits.
#[inline]
fn number(text: &[u8]) -> Option<f64> {
    let mut value = 0u64;
    let mut digits = 0;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        // 18 digits always fit 64 bits.
        if digit > 9 || digits == 18 {
            return long_number(text);
        }
        value = value * 10 + u64::from(digit);
        digits += 1;
    }
    (digits > 0).then_some(value as f64)
}

#[cold]
fn long_number(text: &[u8]) -> Option<f64> {
    let digits = |from: usize| text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let whole = digits(sign);
    let mut end = sign + whole;
    if text.get(end) == Some(&b'.') {
        let fraction = digits(end + 1);
        // `1.` and `.5` are numbers, but a point alone is not.
        if whole + fraction == 0 {
            return None;
        }
        end += 1 + fraction;
    } else if whole == 0 {
        return None;
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        // An `e` without digits after it is not an exponent, and is ignored as other text is.
        let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits(end + 1 + sign);
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    // `1e999` is read as infinity, which has no frame.
    std::str::from_utf8(&text[..end]).ok()?.parse().ok().filter(|value: &f64| value.is_finite())
}

/// Read a class: digits; in compatible mode with a sign in front and anything after them.
fn whole(text: &[u8], is_compatible: bool) -> Option<u32> {
    let text = if is_compatible { text.strip_prefix(b"+").unwrap_or(text) } else { text };
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // CNTK reads `3q` as 3.
    if count == 0 || (count < text.len() && !is_compatible) {
        return None;
    }
    text[..count].iter().try_fold(0u32, |value, byte| value.checked_mul(10)?.checked_add((byte - b'0').into()))
}

/// Bytes of text in which labels are looked for at once.
const LABEL_BLOCK_BYTES: usize = 16 << 20;

/// The labels of a text's rows, each once, in the order of their bytes: the third columns of lines that begin with a
/// time.
///
/// # Errors
/// The text cannot be read.
pub fn label_names(text: Text) -> io::Result<Vec<Vec<u8>>> {
    let mut names = HashSet::new();
    let mut blocks = text.blocks(0..text.size, LABEL_BLOCK_BYTES);
    while let Some((_, block)) = blocks.next_block()? {
        for (_, line) in Lines::new(block) {
            add_label(line.trim_ascii(), &mut names);
        }
    }
    let mut names: Vec<Vec<u8>> = names.into_iter().collect();
    names.sort_unstable();
    Ok(names)
}

fn add_label(line: &[u8], names: &mut HashSet<Vec<u8>>) {
    // Only rows begin with a time: keys begin with a quote, headers with `#`, and ends are a dot.
    let has_time = line.first().is_some_and(|byte| byte.is_ascii_digit() || matches!(byte, b'+' | b'-'));
    let mut columns = Columns { rest: has_time.then_some(line), is_single_blank: false };
    if let Some(label) = columns.nth(2)
        && !names.contains(label)
    {
        names.insert(quoted_label(label, line).unwrap_or_else(|| label.to_vec()));
    }
}
