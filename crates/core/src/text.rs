//! Writing the CNTK text format: columns, token files and columns of numbers into its lines.
//!
//! The law: a number is written with the fewest digits that read back to the same bits; what the format cannot
//! express (infinities, a sequence without a sample) is a fault with its place, never a text that reads differently.
//! (docs/convert.md)

use crate::chunk::{Chunk, Samples, Values};
use memchr::memchr;
use rayon::prelude::*;
use std::collections::HashMap;

// --------------------------------------------------------------------------------------------------- numbers

fn put_integer(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// A value that can be written: whole numbers below `2^digits` are exact and take the short way.
trait Decimal: Copy + Into<f64> {
    const EXACT_BELOW: f64;
    fn put_shortest(self, out: &mut Vec<u8>);
}

impl Decimal for f32 {
    const EXACT_BELOW: f64 = (1u64 << 24) as f64;
    fn put_shortest(self, out: &mut Vec<u8>) {
        out.extend_from_slice(ryu::Buffer::new().format_finite(self).as_bytes());
    }
}

impl Decimal for f64 {
    const EXACT_BELOW: f64 = (1u64 << 53) as f64;
    fn put_shortest(self, out: &mut Vec<u8>) {
        out.extend_from_slice(ryu::Buffer::new().format_finite(self).as_bytes());
    }
}

#[inline]
fn put_number<T: Decimal>(out: &mut Vec<u8>, value: T) -> Result<(), f64> {
    let wide: f64 = value.into();
    if wide.abs() < T::EXACT_BELOW && wide == (wide as i64) as f64 {
        if wide.is_sign_negative() {
            out.push(b'-');
        }
        put_integer(out, wide.abs() as u64);
        return Ok(());
    }
    if !wide.is_finite() {
        return Err(wide);
    }
    value.put_shortest(out);
    if out.ends_with(b".0") {
        out.truncate(out.len() - 2);
    }
    Ok(())
}

// --------------------------------------------------------------------------------------------------- columns

/// Why a sequence cannot be written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unwritable {
    /// A value that is not a number or infinite.
    Value {
        /// The sequence's number in the chunk.
        sequence: usize,
        /// The stream, as a number in the list of names.
        stream: usize,
        /// The value.
        value: f64,
    },
    /// A sequence without a sample in any stream.
    NoSample {
        /// Its number in the chunk.
        sequence: usize,
    },
}

/// Write some sequences of a chunk as text, in pieces of `piece` sequences on all threads of the current pool.
///
/// `streams`: for each its column and its name; a column that is not there is a caller's fault and left out. `keys`
/// holds the number in front of each sequence's lines.
pub fn write(
    chunk: &Chunk,
    first: usize,
    keys: &[u64],
    streams: &[(usize, &[u8])],
    piece: usize,
) -> Result<Vec<Vec<u8>>, Unwritable> {
    let written: Vec<Result<Vec<u8>, Unwritable>> = keys
        .par_chunks(piece.max(1))
        .enumerate()
        .map(|(number, keys)| {
            let mut out = Vec::new();
            for (place, &key) in keys.iter().enumerate() {
                write_sequence(chunk, first + number * piece.max(1) + place, key, streams, &mut out)?;
            }
            Ok(out)
        })
        .collect();
    written.into_iter().collect()
}

fn write_sequence(
    chunk: &Chunk,
    sequence: usize,
    key: u64,
    streams: &[(usize, &[u8])],
    out: &mut Vec<u8>,
) -> Result<(), Unwritable> {
    let (block, number) = chunk.locate(sequence);
    let spans = |column: usize| {
        let offsets = &block.columns.get(column)?.sequence_offsets;
        Some((offsets[number] as usize, offsets[number + 1] as usize))
    };
    let num_lines =
        streams.iter().filter_map(|&(column, _)| spans(column)).map(|(first, last)| last - first).max().unwrap_or(0);
    if num_lines == 0 {
        return Err(Unwritable::NoSample { sequence });
    }
    for line in 0..num_lines {
        put_integer(out, key);
        let mut before = b'\t';
        for (stream, &(column, name)) in streams.iter().enumerate() {
            let Some((first, last)) = spans(column) else { continue };
            if first + line >= last {
                continue;
            }
            out.extend_from_slice(&[before, b'|']);
            out.extend_from_slice(name);
            before = b' ';
            put_sample(out, &block.columns[column].samples, first + line).map_err(|value| Unwritable::Value {
                sequence,
                stream,
                value,
            })?;
        }
        out.push(b'\n');
    }
    Ok(())
}

fn put_sample(out: &mut Vec<u8>, samples: &Samples, sample: usize) -> Result<(), f64> {
    fn plain<T: Decimal>(out: &mut Vec<u8>, values: &[T]) -> Result<(), f64> {
        values.iter().try_for_each(|&value| {
            out.push(b' ');
            put_number(out, value)
        })
    }
    fn indexed<T: Decimal>(out: &mut Vec<u8>, indices: &[i32], values: &[T]) -> Result<(), f64> {
        indices.iter().zip(values).try_for_each(|(&index, &value)| {
            out.push(b' ');
            put_integer(out, index as u64);
            out.push(b':');
            put_number(out, value)
        })
    }
    match samples {
        Samples::Dense { dim, values } => {
            let range = sample * dim..(sample + 1) * dim;
            match values {
                Values::F32(values) => plain(out, &values[range]),
                Values::F64(values) => plain(out, &values[range]),
            }
        }
        Samples::Sparse { sample_offsets, indices, values, .. } => {
            let range = sample_offsets[sample] as usize..sample_offsets[sample + 1] as usize;
            match values {
                Values::F32(values) => indexed(out, &indices[range.clone()], &values[range]),
                Values::F64(values) => indexed(out, &indices[range.clone()], &values[range]),
            }
        }
        Samples::Small(_) | Samples::Stored(_) | Samples::Frames(_) | Samples::Runs(_) => Ok(()), // the caller has looked
    }
}

// ---------------------------------------------------------------------------------------------- dictionaries

/// Tokens and their numbers: the lines of a text, counted from 0, white space around them ignored.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Dictionary {
    numbers: HashMap<String, u32>,
    num_lines: u32,
}

impl Dictionary {
    /// The lines of a text; of equal lines the last one counts. `None` if there are 2^32 or more.
    pub fn new(text: &str) -> Option<Dictionary> {
        let mut made = Dictionary::default();
        for line in text.split_terminator('\n') {
            made.numbers.insert(line.trim().to_owned(), made.num_lines);
            made.num_lines = made.num_lines.checked_add(1)?;
        }
        Some(made)
    }

    /// Number of lines.
    pub fn len(&self) -> usize {
        self.num_lines as usize
    }

    /// Whether there is no line.
    pub fn is_empty(&self) -> bool {
        self.num_lines == 0
    }

    /// A token's number.
    pub fn number(&self, token: &str) -> Option<u32> {
        self.numbers.get(token).copied()
    }
}

/// What is wrong with a line that is to be converted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineFault {
    /// Bytes that are not UTF-8.
    Encoding,
    /// Another number of columns, or too few.
    Columns {
        /// How many.
        found: usize,
    },
    /// A token, or a label, that the dictionary of its column lacks.
    Unknown {
        /// The column, from 0.
        column: usize,
        /// The token.
        token: String,
    },
}

/// The lines of a block, without their ends.
fn lines(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = block;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = memchr(b'\n', rest);
        let line = &rest[..end.unwrap_or(rest.len())];
        rest = &rest[end.map_or(rest.len(), |end| end + 1)..];
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    })
}

/// How tokens are written: names of the columns' streams, the token for unknown ones, and whether comments name them.
#[derive(Debug, Clone, Copy)]
pub struct TokenStyle<'a> {
    /// One name for each column.
    pub names: &'a [&'a [u8]],
    /// What stands in for a token that is not in the dictionary.
    pub unknown: Option<&'a str>,
    /// Whether a comment holds the token.
    pub is_annotated: bool,
}

/// What [`tokens`] made of a block.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TokenText {
    /// The text.
    pub text: Vec<u8>,
    /// Lines read, each one a sequence.
    pub num_lines: u64,
    /// Columns without a token.
    pub num_empty: u64,
    /// The first line that has one, from 0.
    pub first_empty: Option<u64>,
}

/// Turn lines of tab-separated columns of tokens into sequences numbered from `first_key`, one dictionary a column.
/// A fault comes with its line's number in the block.
pub fn tokens(
    block: &[u8],
    first_key: u64,
    dictionaries: &[&Dictionary],
    style: TokenStyle,
) -> Result<TokenText, (u64, LineFault)> {
    let mut made = TokenText::default();
    let mut columns: Vec<Vec<(&str, u32)>> = vec![Vec::new(); dictionaries.len()];
    for line in lines(block) {
        let number = made.num_lines;
        let line = std::str::from_utf8(line).map_err(|_| (number, LineFault::Encoding))?;
        let found = line.split('\t').count();
        if found != dictionaries.len() {
            return Err((number, LineFault::Columns { found }));
        }
        for (column, text) in line.split('\t').enumerate() {
            columns[column].clear();
            for token in text.trim().split(' ').filter(|token| !token.is_empty()) {
                let dictionary = dictionaries[column];
                let known = dictionary.number(token).or_else(|| dictionary.number(style.unknown?));
                let fault = || (number, LineFault::Unknown { column, token: token.to_owned() });
                columns[column].push((token, known.ok_or_else(fault)?));
            }
            if columns[column].is_empty() {
                made.num_empty += 1;
                made.first_empty.get_or_insert(number);
            }
        }
        let num_samples = columns.iter().map(Vec::len).max().unwrap_or(0);
        for sample in 0..num_samples {
            put_integer(&mut made.text, first_key + number);
            for (column, tokens) in columns.iter().enumerate() {
                made.text.push(b'\t');
                let Some(&(token, index)) = tokens.get(sample) else { continue };
                made.text.push(b'|');
                made.text.extend_from_slice(style.names[column]);
                made.text.push(b' ');
                put_integer(&mut made.text, index.into());
                made.text.extend_from_slice(b":1");
                if style.is_annotated {
                    made.text.extend_from_slice(b" |# ");
                    put_escaped(&mut made.text, token.as_bytes());
                }
            }
            made.text.push(b'\n');
        }
        made.num_lines += 1;
    }
    Ok(made)
}

/// Within a comment a pipe is followed by a hash, or the comment would end.
fn put_escaped(out: &mut Vec<u8>, token: &[u8]) {
    for (at, &byte) in token.iter().enumerate() {
        out.push(byte);
        if byte == b'|' && token.get(at + 1) != Some(&b'#') {
            out.push(b'#');
        }
    }
}

// ---------------------------------------------------------------------------------------- columns of numbers

/// What becomes of the columns of labels.
#[derive(Debug, Clone, Copy)]
pub enum Labels<'a> {
    /// There are none.
    None,
    /// They are copied.
    Copied {
        /// The first column.
        start: usize,
        /// How many.
        count: usize,
    },
    /// One column, a category.
    Category {
        /// The column.
        start: usize,
        /// The names of the categories.
        names: &'a Dictionary,
        /// Values of the vector with a one in it.
        dim: usize,
        /// Whether only the one is written, with its index.
        is_sparse: bool,
    },
}

/// Turn lines of columns into `|labels …` and `|features …`, values copied as they are. `separator` is white space if
/// not given. Returns the text and the number of lines; a fault comes with its line's number in the block.
pub fn numbers(
    block: &[u8],
    features: (usize, usize),
    labels: Labels,
    separator: Option<u8>,
) -> Result<(Vec<u8>, u64), (u64, LineFault)> {
    let mut out = Vec::with_capacity(block.len() + block.len() / 8);
    let mut num_lines = 0;
    let mut columns: Vec<&[u8]> = Vec::new();
    let last = match labels {
        Labels::None => 0,
        Labels::Copied { start, count } => start + count,
        Labels::Category { start, .. } => start + 1,
    };
    let num_needed = last.max(features.0 + features.1);
    for line in lines(block) {
        columns.clear();
        match separator {
            None => columns.extend(line.split(u8::is_ascii_whitespace).filter(|column| !column.is_empty())),
            Some(separator) => columns.extend(line.split(|&byte| byte == separator).map(<[u8]>::trim_ascii)),
        }
        if columns.len() < num_needed {
            return Err((num_lines, LineFault::Columns { found: columns.len() }));
        }
        match labels {
            Labels::None => {}
            Labels::Copied { start, count } => {
                put_columns(&mut out, b"|labels", &columns[start..start + count]);
                out.push(b'\t');
            }
            Labels::Category { start, names, dim, is_sparse } => {
                let label = std::str::from_utf8(columns[start]).map_err(|_| (num_lines, LineFault::Encoding))?;
                let unknown = || (num_lines, LineFault::Unknown { column: start, token: label.to_owned() });
                let index = names.number(label).ok_or_else(unknown)? as usize;
                out.extend_from_slice(b"|labels");
                if is_sparse {
                    out.push(b' ');
                    put_integer(&mut out, index as u64);
                    out.extend_from_slice(b":1");
                } else {
                    (0..dim).for_each(|at| out.extend_from_slice(if at == index { b" 1" } else { b" 0" }));
                }
                out.push(b'\t');
            }
        }
        put_columns(&mut out, b"|features", &columns[features.0..features.0 + features.1]);
        out.push(b'\n');
        num_lines += 1;
    }
    Ok((out, num_lines))
}

fn put_columns(out: &mut Vec<u8>, name: &[u8], columns: &[&[u8]]) {
    out.extend_from_slice(name);
    for column in columns {
        out.push(b' ');
        out.extend_from_slice(column);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number;
    use proptest::prelude::*;

    fn written(value: f32) -> String {
        let mut out = Vec::new();
        put_number(&mut out, value).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_number_is_written_with_the_fewest_digits() {
        let texts =
            [(1.0, "1"), (-0.0, "-0"), (0.1, "0.1"), (1e-45, "1e-45"), (16777216.0, "16777216"), (-2.5, "-2.5")];
        for (value, text) in texts {
            assert_eq!(written(value), text);
        }
        assert_eq!(written(3.4028235e38), "3.4028235e38");
        assert!(put_number(&mut Vec::new(), f32::NAN).is_err());
        assert!(put_number(&mut Vec::new(), f64::NEG_INFINITY).is_err());
    }

    #[test]
    fn a_pipe_in_a_comment_is_followed_by_a_hash() {
        for (token, text) in [("a|b", "a|#b"), ("a|", "a|#"), ("|#", "|#"), ("||", "|#|#")] {
            let mut out = Vec::new();
            put_escaped(&mut out, token.as_bytes());
            assert_eq!(out, text.as_bytes());
        }
    }

    proptest! {
        #[test]
        fn a_written_number_reads_back_to_the_same_bits(bits: u32, wide: u64) {
            let (value, double) = (f32::from_bits(bits), f64::from_bits(wide));
            let mut out = Vec::new();
            if put_number(&mut out, value).is_ok() {
                let (read, end) = number::read::<f32>(&out, 0).unwrap();
                prop_assert_eq!((read.to_bits(), end), (bits, out.len()));
            }
            out.clear();
            if put_number(&mut out, double).is_ok() {
                let (read, end) = number::read::<f64>(&out, 0).unwrap();
                prop_assert_eq!((read.to_bits(), end), (wide, out.len()));
            }
        }
    }
}
