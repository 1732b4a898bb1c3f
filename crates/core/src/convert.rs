//! Conversion to the CNTK text format: files of tokens, and columns of numbers. (docs/convert.md)

use crate::ctf::put_integer;
use crate::lines::Lines;
use crate::memory;
use crate::number::scan;
use std::collections::HashMap;
use std::ops::Range;

/// Tokens and their numbers: the lines of a text, counted from 0, white space around them ignored.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Dictionary {
    numbers: HashMap<String, u32>,
    num_lines: u32,
}

impl Dictionary {
    /// The lines of a text; the last of equal lines counts. `None` if there are 2^32 or more.
    pub fn new(text: &str) -> Option<Dictionary> {
        let mut made = Dictionary::default();
        // No further line begins after the last line feed: it would count as a token.
        for line in text.split_terminator('\n') {
            let num_bytes = 2 * size_of::<(String, u32)>() * made.numbers.len();
            // `insert` alone would end the process if the memory is refused.
            memory::require(made.numbers.try_reserve(1), num_bytes);
            made.numbers.insert(line.trim().to_owned(), made.num_lines);
            made.num_lines = made.num_lines.checked_add(1)?;
        }
        Some(made)
    }

    /// Number of lines.
    pub fn len(&self) -> usize {
        self.num_lines as usize
    }

    /// True if the table has no lines.
    pub fn is_empty(&self) -> bool {
        self.num_lines == 0
    }

    /// A token's number.
    pub fn number(&self, token: &str) -> Option<u32> {
        self.numbers.get(token).copied()
    }
}

/// A fault of a line that is to be converted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineFault {
    /// Bytes that are not UTF-8.
    Encoding,
    /// The number of columns is wrong.
    Columns {
        /// Number of columns of the line.
        found: usize,
    },
    /// A token, or a label, that the dictionary of its column lacks; or a value that is not a number of the text
    /// format.
    Unknown {
        /// The column, from 0.
        column: usize,
        /// The token.
        token: String,
    },
}

/// The lines of a block, without their ends.
fn lines(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    Lines::new(block).map(|(_, line)| line.strip_suffix(b"\r").unwrap_or(line))
}

/// Form of the text that tokens are converted to.
#[derive(Debug, Clone, Copy)]
pub struct TokenStyle<'a> {
    /// A stream's name for each column.
    pub names: &'a [&'a [u8]],
    /// Token in place of a token that is not in the dictionary.
    pub unknown: Option<&'a str>,
    /// True if a comment holds the token.
    pub is_annotated: bool,
}

/// The text of a block in CNTK's text format.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// The text.
    pub text: Vec<u8>,
    /// Number of lines, each of which is a sequence.
    pub num_lines: u64,
    /// Number of columns of tokens that have none.
    pub num_empty: u64,
    /// The first line with such a column, from 0.
    pub first_empty: Option<u64>,
}

/// Turn lines of tab-separated columns of tokens into sequences numbered from `first_key`, one dictionary a column.
/// A fault comes with its line's number in the block.
pub fn tokens(
    block: &[u8],
    first_key: u64,
    dictionaries: &[&Dictionary],
    style: TokenStyle,
) -> Result<Converted, (u64, LineFault)> {
    let mut made = Converted::default();
    let mut columns: Vec<Vec<(&str, u32)>> = vec![Vec::new(); dictionaries.len()];
    for line in lines(block) {
        let number = made.num_lines;
        let line = std::str::from_utf8(line).map_err(|_| (number, LineFault::Encoding))?;
        let found = line.split('\t').count();
        // Without this check, a line with more columns would need dictionaries that do not exist.
        if found != dictionaries.len() {
            return Err((number, LineFault::Columns { found }));
        }
        for (column, text) in line.split('\t').enumerate() {
            columns[column].clear();
            for token in text.trim().split(' ').filter(|token| !token.is_empty()) {
                let dictionary = dictionaries[column];
                let known = dictionary.number(token).or_else(|| dictionary.number(style.unknown?));
                let fault = || (number, LineFault::Unknown { column, token: token.to_owned() });
                memory::push(&mut columns[column], (token, known.ok_or_else(fault)?));
            }
            if columns[column].is_empty() {
                made.num_empty += 1;
                made.first_empty.get_or_insert(number);
            }
        }
        // Streams of a sequence may have different lengths, so the longest column decides the number of lines.
        let num_samples = columns.iter().map(Vec::len).max().unwrap_or(0);
        for sample in 0..num_samples {
            put_integer(&mut made.text, first_key + number);
            for (column, tokens) in columns.iter().enumerate() {
                memory::push(&mut made.text, b'\t');
                let Some(&(token, index)) = tokens.get(sample) else { continue };
                memory::push(&mut made.text, b'|');
                memory::append(&mut made.text, style.names[column]);
                memory::push(&mut made.text, b' ');
                put_integer(&mut made.text, index.into());
                memory::append(&mut made.text, b":1");
                if style.is_annotated {
                    put_comment(&mut made.text, token.as_bytes());
                }
            }
            memory::push(&mut made.text, b'\n');
        }
        made.num_lines += 1;
    }
    Ok(made)
}

/// Append a comment with a token: a hash follows each pipe, because a pipe alone would end the comment.
fn put_comment(out: &mut Vec<u8>, token: &[u8]) {
    // After a blank, a pipe would begin another comment.
    memory::append(out, if token.starts_with(b"|") { b" |#" } else { b" |# " });
    for &byte in token {
        memory::push(out, byte);
        if byte == b'|' {
            memory::push(out, b'#');
        }
    }
}

// ---------------------------------------------------------------------------------------- columns of numbers

/// The columns of labels.
#[derive(Debug, Clone, Copy)]
pub enum Labels<'a> {
    /// The lines have no labels.
    None,
    /// The labels are copied.
    Copied {
        /// The first column.
        start: usize,
        /// Number of columns.
        count: usize,
    },
    /// A column of categories.
    Category {
        /// The column.
        start: usize,
        /// The names of the categories.
        names: &'a Dictionary,
        /// Dimension of the one-hot vector.
        dim: usize,
        /// True if the vector is written as `index:1`.
        is_sparse: bool,
    },
}

impl Labels<'_> {
    /// Append the labels of a line.
    fn put(self, out: &mut Vec<u8>, columns: &[&[u8]]) -> Result<(), LineFault> {
        match self {
            Labels::None => return Ok(()),
            Labels::Copied { start, count } => put_columns(out, b"|labels", columns, start..start + count)?,
            Labels::Category { start, names, dim, is_sparse } => {
                let label = std::str::from_utf8(columns[start]).map_err(|_| LineFault::Encoding)?;
                let unknown = || LineFault::Unknown { column: start, token: label.to_owned() };
                let index = names.number(label).ok_or_else(unknown)? as usize;
                memory::append(out, b"|labels");
                if is_sparse {
                    memory::push(out, b' ');
                    put_integer(out, index as u64);
                    memory::append(out, b":1");
                } else {
                    (0..dim).for_each(|at| memory::append(out, if at == index { b" 1" } else { b" 0" }));
                }
            }
        }
        memory::push(out, b'\t');
        Ok(())
    }
}

/// Turn lines of columns into `|labels …` and `|features …`, values copied as they are. `separator` is white space if
/// not given. A fault comes with its line's number in the block.
pub fn numbers(
    block: &[u8],
    features: (usize, usize),
    labels: Labels,
    separator: Option<u8>,
) -> Result<Converted, (u64, LineFault)> {
    // The values are copied as they are, and the rest is for names. Short lines may need more.
    let mut made = Converted { text: memory::with_room(block.len() + block.len() / 8), ..Converted::default() };
    let mut columns: Vec<&[u8]> = Vec::new();
    let last = match labels {
        Labels::None => 0,
        Labels::Copied { start, count } => start.saturating_add(count),
        Labels::Category { start, .. } => start.saturating_add(1),
    };
    let num_needed = last.max(features.0.saturating_add(features.1));
    for line in lines(block) {
        split_columns(line, separator, &mut columns);
        // Further columns are fine: options choose the columns that are converted.
        if columns.len() < num_needed {
            return Err((made.num_lines, LineFault::Columns { found: columns.len() }));
        }
        let features = features.0..features.0 + features.1;
        labels
            .put(&mut made.text, &columns)
            .and_then(|()| put_columns(&mut made.text, b"|features", &columns, features))
            .map_err(|fault| (made.num_lines, fault))?;
        memory::push(&mut made.text, b'\n');
        made.num_lines += 1;
    }
    Ok(made)
}

fn split_columns<'a>(line: &'a [u8], separator: Option<u8>, columns: &mut Vec<&'a [u8]>) {
    columns.clear();
    match separator {
        None => {
            // Blanks in a row are one separator here, but with a separator an empty column keeps its place.
            let filled = line.split(u8::is_ascii_whitespace).filter(|column| !column.is_empty());
            filled.for_each(|column| memory::push(columns, column));
        }
        Some(separator) => {
            let trimmed = line.split(|&byte| byte == separator).map(<[u8]>::trim_ascii);
            trimmed.for_each(|column| memory::push(columns, column));
        }
    }
}

/// Append a range of the columns of a line, each of which must be a number.
fn put_columns(out: &mut Vec<u8>, name: &[u8], columns: &[&[u8]], range: Range<usize>) -> Result<(), LineFault> {
    memory::append(out, name);
    for column in range {
        let text = columns[column];
        // The text of a value is copied, so without this check only the reader of the result would find the mistake.
        if !scan(text, 0).is_ok_and(|number| number.end == text.len()) {
            return Err(LineFault::Unknown { column, token: String::from_utf8_lossy(text).into_owned() });
        }
        memory::push(out, b' ');
        memory::append(out, text);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_beyond_all_numbers_are_missing() {
        let missing = Err((0, LineFault::Columns { found: 2 }));
        assert_eq!(numbers(b"1 2\n", (usize::MAX, 2), Labels::None, None), missing);
        let labels = Labels::Copied { start: usize::MAX, count: 2 };
        assert_eq!(numbers(b"1 2\n", (0, 1), labels, None), missing);
        let labels = Labels::Category { start: usize::MAX, names: &Dictionary::default(), dim: 2, is_sparse: true };
        assert_eq!(numbers(b"1 2\n", (0, 1), labels, None), missing);
    }

    #[test]
    fn a_pipe_in_a_comment_is_followed_by_a_hash() {
        for (token, text) in [("a|b", " |# a|#b"), ("a|", " |# a|#"), ("|#", " |#|##"), ("||", " |#|#|#")] {
            let mut out = Vec::new();
            put_comment(&mut out, token.as_bytes());
            assert_eq!(out, text.as_bytes());
        }
    }
}
