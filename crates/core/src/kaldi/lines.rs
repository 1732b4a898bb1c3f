//! The lines of lists and of maps as columns.

use crate::htk::LONGEST_KEY;
use crate::lines::{Lines, Names};
use crate::memory;
use crate::named::named;
use memchr::{memchr, memrchr};

/// The last row or column of a range that has no end.
pub const WHOLE: u32 = u32::MAX;

/// The lines of a list or of a map, in its order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct List {
    /// All keys, one after the other.
    pub keys: Vec<u8>,
    /// End of each key in `keys`.
    pub key_ends: Vec<usize>,
    /// The files, or the values of a map, each once.
    pub names: Vec<Vec<u8>>,
    /// The file or the value of each line.
    pub name_of: Vec<u32>,
    /// The first byte of each line.
    pub lines: Vec<u64>,
    /// The first byte of each object; of a map, nothing.
    pub offsets: Vec<u64>,
    /// First and last row, first and last column; or [`WHOLE`]. Of a map, nothing.
    pub ranges: [Vec<u32>; 4],
}

named! {
    /// The fault of a line.
    pub enum LineFault {
        /// The key is too long, or has a zero byte.
        BadKey = "bad key",
        /// There is nothing after the key.
        NoValue = "no value",
        /// A command instead of a file.
        Command = "command",
        /// A range is not pairs of numbers.
        BadRange = "bad range",
        /// A map has several values for a key.
        SeveralValues = "several values",
    }
}

/// A line that cannot be understood.
#[derive(Debug, PartialEq, Eq)]
pub struct LineError {
    /// The line, from 1.
    pub line: u64,
    /// The line's first byte.
    pub at: usize,
    /// Its fault.
    pub fault: LineFault,
}

/// Read a list: a key and `file`, `file:offset` or `file:offset[rows,columns]` on each line.
pub fn scan_list(text: &[u8]) -> Result<List, LineError> {
    scan_lines(text, |list, value| {
        // Kaldi runs such commands; this crate runs no programs.
        if value.ends_with(b"|") || value.starts_with(b"|") {
            return Err(LineFault::Command);
        }
        // Without a closing bracket at the end, a bracket belongs to the name of the file.
        let (place, ranges) = match memrchr(b'[', value).filter(|_| value.ends_with(b"]")) {
            Some(open) => (value[..open].trim_ascii(), ranges_of(&value[open + 1..value.len() - 1])?),
            None => (value, [0, WHOLE, 0, WHOLE]),
        };
        // A colon without digits after it belongs to the path, as in `C:\a.ark`.
        let (path, offset) = match memrchr(b':', place) {
            Some(colon) => match number::<u64>(&place[colon + 1..]) {
                Some(offset) => (&place[..colon], offset),
                None => (place, 0),
            },
            None => (place, 0),
        };
        if path.is_empty() {
            return Err(LineFault::NoValue);
        }
        memory::push(&mut list.offsets, offset);
        list.ranges.iter_mut().zip(ranges).for_each(|(column, bound)| memory::push(column, bound));
        Ok(memory::copied(path))
    })
}

/// Read a map: a key and a value on each line.
pub fn scan_map(text: &[u8]) -> Result<List, LineError> {
    scan_lines(text, |_, value| match value.iter().any(u8::is_ascii_whitespace) {
        true => Err(LineFault::SeveralValues),
        false => Ok(memory::copied(value)),
    })
}

fn scan_lines(
    text: &[u8],
    mut read: impl FnMut(&mut List, &[u8]) -> Result<Vec<u8>, LineFault>,
) -> Result<List, LineError> {
    let mut list = List::default();
    let mut names = Names::default();
    for ((at, line), number) in Lines::new(text).zip(1..) {
        let refuse = |fault| LineError { line: number, at, fault };
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let size = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
        let (key, value) = (&line[..size], line[size..].trim_ascii());
        if key.len() > LONGEST_KEY || memchr(0, line).is_some() {
            return Err(refuse(LineFault::BadKey));
        }
        if value.is_empty() {
            return Err(refuse(LineFault::NoValue));
        }
        let name = read(&mut list, value).map_err(refuse)?;
        memory::append(&mut list.keys, key);
        memory::push(&mut list.key_ends, list.keys.len());
        memory::push(&mut list.lines, at as u64);
        memory::push(&mut list.name_of, names.number(name));
    }
    list.names = names.into_names();
    Ok(list)
}

/// `first:last`, or `first:last,first:last`; a part may be only a colon, but not empty, as in Kaldi.
fn ranges_of(text: &[u8]) -> Result<[u32; 4], LineFault> {
    let mut bounds = [0, WHOLE, 0, WHOLE];
    for (number_of_part, part) in text.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).enumerate() {
        let at = 2 * number_of_part;
        if at >= bounds.len() {
            return Err(LineFault::BadRange);
        }
        if part == b":" {
            continue;
        }
        let colon = memchr(b':', part).ok_or(LineFault::BadRange)?;
        let (first, last) = (number(&part[..colon]), number(&part[colon + 1..]));
        match (first, last) {
            // `WHOLE` stands for a range without an end, so it is not a number of a row.
            (Some(first), Some(last)) if first <= last && last < WHOLE => (bounds[at], bounds[at + 1]) = (first, last),
            _ => return Err(LineFault::BadRange),
        }
    }
    Ok(bounds)
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    // `parse` would accept a sign, too.
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}
