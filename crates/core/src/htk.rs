//! HTK features: lists of utterances (scp). (docs/formats/htk.md)
//!
//! * [`scan_list`] turns the text of a list into columns: key, file, first and last frame of each utterance.
//! * [`chunk_starts`] cuts utterances into chunks by their frames, which stay as they were read
//!   ([`Frames`](crate::chunk::Frames)).
//!
//! Invariants: no file is opened here, no input causes a panic, and a line that cannot be understood is an error with
//! its number.

use crate::keys::cut_extension;
use crate::lines::{Lines, Names};
use crate::memory;
use crate::named::named;
use memchr::{memchr, memmem, memrchr};
use std::borrow::Cow;

// ----------------------------------------------------------------------------------------------------- lists

/// The last frame of a line without a range: the whole file.
pub const WHOLE_FILE: u32 = u32::MAX;
/// Longer keys are refused: they are padded to one width.
pub const LONGEST_KEY: usize = 4096;

/// Rules for reading the lines of a list.
#[derive(Debug, Clone, Default)]
pub struct ListRules {
    /// True if lines are read exactly as CNTK 2.7 reads them.
    pub is_compatible: bool,
    /// The list's path up to its last separator, which is what `...` stands for; None if it has no separator.
    pub folder: Option<Vec<u8>>,
    /// Text before each path, without a separator at the end.
    pub prefix: Vec<u8>,
    /// True if backslashes in paths become slashes.
    pub turns_backslashes: bool,
}

/// The utterances of a list, in its order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct List {
    /// All keys, one after the other.
    pub keys: Vec<u8>,
    /// End of each key in `keys`.
    pub key_ends: Vec<usize>,
    /// The files, each once.
    pub paths: Vec<Vec<u8>>,
    /// The file of each utterance.
    pub files: Vec<u32>,
    /// The first frame.
    pub first: Vec<u32>,
    /// The last frame, or [`WHOLE_FILE`].
    pub last: Vec<u32>,
}

named! {
    /// The fault of a line.
    pub enum ListFault {
        /// The `=` is missing.
        NoId = "no id",
        /// The `[` is missing.
        NoRange = "no range",
        /// A range is not two numbers.
        BadRange = "bad range",
        /// The last frame is before the first.
        Reversed = "reversed",
        /// The path is missing.
        NoPath = "no path",
        /// The key is missing or too long.
        BadKey = "bad key",
        /// A quote that is not closed.
        OpenQuote = "open quote",
    }
}

/// A line that cannot be understood.
#[derive(Debug, PartialEq, Eq)]
pub struct ListError {
    /// The line, from 1.
    pub line: u64,
    /// The line's first byte.
    pub at: usize,
    /// Its fault.
    pub fault: ListFault,
}

struct Line<'a> {
    key: Cow<'a, [u8]>,
    path: Vec<u8>,
    first: u32,
    last: u32,
}

/// Read a list.
pub fn scan_list(text: &[u8], rules: &ListRules) -> Result<List, ListError> {
    let mut list = List::default();
    let mut paths = Names::default();
    // CNTK's older reader also accepted lines that end with a carriage return alone.
    let lines = if rules.is_compatible { Lines::new(text) } else { Lines::of_any_end(text) };
    for ((at, line), number) in lines.zip(1..) {
        let read = if rules.is_compatible { literal_line(line, rules) } else { free_line(line, rules) };
        if let Some(Line { key, path, first, last }) = read.map_err(|fault| ListError { line: number, at, fault })? {
            let refuse = |fault| Err(ListError { line: number, at, fault });
            if key.is_empty() || key.len() > LONGEST_KEY {
                return refuse(ListFault::BadKey);
            }
            if path.is_empty() {
                return refuse(ListFault::NoPath);
            }
            // An error here names the line. CNTK reports this only when it reads the file.
            if last < first {
                return refuse(ListFault::Reversed);
            }
            memory::append(&mut list.keys, &key);
            memory::push(&mut list.key_ends, list.keys.len());
            memory::push(&mut list.files, paths.number(path));
            memory::push(&mut list.first, first);
            memory::push(&mut list.last, last);
        }
    }
    list.paths = paths.into_names();
    Ok(list)
}

/// `id=path[first,last]`, as CNTK 2.7 takes it apart.
fn literal_line<'a>(line: &'a [u8], rules: &ListRules) -> Result<Option<Line<'a>>, ListFault> {
    let folder = rules.folder.as_deref().unwrap_or_default();
    let line = match memmem::find(line, b"...") {
        // CNTK replaces the first dots of the line before it takes the line apart, even dots in the id.
        Some(dots) if rules.prefix.is_empty() => Cow::Owned([&line[..dots], folder, &line[dots + 3..]].concat()),
        _ => Cow::Borrowed(line),
    };
    // CNTK takes the first `=` as the end of the id, and the first `[` after it as the end of the path.
    let equals = memchr(b'=', &line).ok_or(ListFault::NoId)?;
    let (id, mut rest) = (&line[..equals], memory::copied(&line[equals + 1..]));
    // CNTK puts the prefix before any path, even an absolute path, and then leaves `...` as it is.
    if !rules.prefix.is_empty() {
        rest = [&rules.prefix, &b"/"[..], &rest].concat();
    }
    let open = memchr(b'[', &rest).ok_or(ListFault::NoRange)?;
    let range = &rest[open + 1..];
    let comma = memchr(b',', range).filter(|&at| at + 1 < range.len()).ok_or(ListFault::BadRange)?;
    let first = literal_number(&range[..comma])?;
    let tail = &range[comma + 1..];
    let last = match memchr(b']', tail) {
        // CNTK ignores all bytes after a carriage return.
        Some(close) if tail.get(close + 1).is_none_or(|&byte| byte == b'\r') => literal_number(&tail[..close])?,
        Some(_) => return Err(ListFault::BadRange),
        // CNTK takes 0 as the last frame if the bracket is not closed.
        None => 0,
    };
    let key = Cow::Owned(memory::copied(cut_extension(id, false)));
    Ok(Some(Line { key, path: rest[..open].to_vec(), first, last }))
}

/// Leading blanks, one sign, digits up to the first other byte; 0 without digits.
fn literal_number(text: &[u8]) -> Result<u32, ListFault> {
    let text = text.trim_ascii_start();
    let digits = text.strip_prefix(b"+").or(text.strip_prefix(b"-")).unwrap_or(text);
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let value = if end == 0 { 0 } else { plain_number(&digits[..end]).ok_or(ListFault::BadRange)? };
    // In CNTK, a negative number wraps to a large number, which is beyond every file.
    if text.starts_with(b"-") && value > 0 { Err(ListFault::BadRange) } else { Ok(value) }
}

fn plain_number(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().try_fold(0u32, |value, digit| value.checked_mul(10)?.checked_add((digit - b'0').into()));
    // This number stands for the whole file.
    value.filter(|&value| value != WHOLE_FILE)
}

/// Read `[id=]path[[first,last]]`, where blanks may surround each part, and quotes the id and the path. `None` for an
/// empty line.
fn free_line<'a>(line: &'a [u8], rules: &ListRules) -> Result<Option<Line<'a>>, ListFault> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Ok(None);
    }
    let (id, rest) = match memchr(b'=', line) {
        // An `=` inside of quotes belongs to the path.
        Some(equals) if !starts_with_quote(line) || is_quoted(line[..equals].trim_ascii()) => {
            (Some(unquoted(line[..equals].trim_ascii())), line[equals + 1..].trim_ascii())
        }
        _ => (None, line),
    };
    let (path, range) = if starts_with_quote(rest) {
        let close = memchr(rest[0], &rest[1..]).ok_or(ListFault::OpenQuote)?;
        (&rest[1..=close], rest[close + 2..].trim_ascii())
    } else if let Some(open) = memrchr(b'[', rest).filter(|&open| !closes_inside(&rest[open..])) {
        // A path can have brackets, too, so the last one begins the range.
        (rest[..open].trim_ascii(), &rest[open..])
    } else {
        (rest, &b""[..])
    };
    let (first, last) = if range.is_empty() {
        (0, WHOLE_FILE)
    } else {
        let inside = range.strip_prefix(b"[").and_then(|range| range.strip_suffix(b"]")).ok_or(ListFault::BadRange)?;
        let comma = memchr(b',', inside).ok_or(ListFault::BadRange)?;
        let number = |text: &[u8]| plain_number(text.trim_ascii()).ok_or(ListFault::BadRange);
        (number(&inside[..comma])?, number(&inside[comma + 1..])?)
    };
    let key = Cow::Borrowed(cut_extension(id.unwrap_or(path), true));
    Ok(Some(Line { key, path: placed(path, rules), first, last }))
}

/// True if a bracket is closed, but not at the end, as in `a[1].mfc`: it belongs to the path. A bracket that is not
/// closed begins a range that was cut off.
fn closes_inside(bracket: &[u8]) -> bool {
    !bracket.ends_with(b"]") && memchr(b']', bracket).is_some()
}

fn starts_with_quote(text: &[u8]) -> bool {
    matches!(text.first(), Some(b'"' | b'\''))
}

fn is_quoted(text: &[u8]) -> bool {
    text.len() >= 2 && starts_with_quote(text) && text.last() == text.first()
}

fn unquoted(text: &[u8]) -> &[u8] {
    if is_quoted(text) { &text[1..text.len() - 1] } else { text }
}

/// A path with its folder in front: the folder of the list in place of `...`, or the prefix.
fn placed(path: &[u8], rules: &ListRules) -> Vec<u8> {
    let mut placed = match path.strip_prefix(b"...") {
        // Only a separator after the dots makes them a folder; `...a` is a name.
        Some(rest) if matches!(rest.first(), Some(b'/' | b'\\')) => {
            [rules.folder.as_deref().unwrap_or(b"."), rest].concat()
        }
        // An empty path stays empty, so that it is refused.
        _ if rules.prefix.is_empty() || path.is_empty() => path.to_vec(),
        _ => [&rules.prefix, &b"/"[..], path].concat(),
    };
    if rules.turns_backslashes {
        placed.iter_mut().filter(|byte| **byte == b'\\').for_each(|byte| *byte = b'/');
    }
    placed
}

/// The first utterance of each chunk and, last, the number of utterances: a chunk is full when it has more than `limit`
/// frames, and before it would have 2^32 or more, which the offsets of its samples cannot count. A damaged label file
/// may promise so many, and the other utterances must stay readable.
pub fn chunk_starts(lengths: &[u32], limit: u64) -> Vec<i64> {
    let (mut starts, mut frames) = (Vec::new(), 0u64);
    for (number, &length) in lengths.iter().enumerate() {
        if number == 0 || frames > limit || frames + u64::from(length) > u64::from(u32::MAX) {
            starts.push(number as i64);
            frames = 0;
        }
        frames += u64::from(length);
    }
    starts.push(lengths.len() as i64);
    starts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn free(text: &str) -> Result<List, ListError> {
        scan_list(text.as_bytes(), &ListRules::default())
    }

    fn rows(list: &List) -> Vec<(String, String, u32, u32)> {
        let mut begin = 0;
        (0..list.files.len())
            .map(|at| {
                let key = String::from_utf8_lossy(&list.keys[begin..list.key_ends[at]]).into_owned();
                begin = list.key_ends[at];
                let path = String::from_utf8_lossy(&list.paths[list.files[at] as usize]).into_owned();
                (key, path, list.first[at], list.last[at])
            })
            .collect()
    }

    fn row(key: &str, path: &str, first: u32, last: u32) -> (String, String, u32, u32) {
        (key.to_owned(), path.to_owned(), first, last)
    }

    #[test]
    fn lines_of_every_form_are_understood() {
        let list = free(concat!(
            "a.mfc=x/a.mfc[0,9]\r\n",
            "\n",
            "  b.plp = \"my files/b [1].plp\" [ 3 , 4 ]\n",
            "x/c.mfc\n",
            "d=.../d.fea\r",
            "'e' = e.fea\n",
            "f=x[1].mfc\n",
            "g = x[1].mfc [ 2,3 ] \n",
            "x[0,1]/h [2].mfc",
        ))
        .unwrap();
        assert_eq!(
            rows(&list),
            [
                row("a", "x/a.mfc", 0, 9),
                row("b", "my files/b [1].plp", 3, 4),
                row("x/c", "x/c.mfc", 0, WHOLE_FILE),
                row("d", "./d.fea", 0, WHOLE_FILE),
                row("e", "e.fea", 0, WHOLE_FILE),
                row("f", "x[1].mfc", 0, WHOLE_FILE),
                row("g", "x[1].mfc", 2, 3),
                row("x[0,1]/h [2]", "x[0,1]/h [2].mfc", 0, WHOLE_FILE),
            ]
        );
    }

    #[test]
    fn a_line_that_cannot_be_understood_is_an_error_with_its_number() {
        for (text, fault) in [
            ("a=x\nb=y[x,3.9]", ListFault::BadRange),
            ("a=x\nb=y[1,2", ListFault::BadRange),
            ("a=x\nb=y[4]", ListFault::BadRange),
            ("a=x\nb=y[4,3]", ListFault::Reversed),
            ("a=x\nb=y[4,99999999999]", ListFault::BadRange),
            ("a=x\nb=", ListFault::NoPath),
            ("a=x\n=y", ListFault::BadKey),
            ("a=x\nb=\"y", ListFault::OpenQuote),
        ] {
            assert_eq!(free(text), Err(ListError { line: 2, at: 4, fault }), "{text}");
        }
    }

    #[test]
    fn folders_come_from_the_list_or_from_the_prefix() {
        let rules = |folder: Option<&str>, prefix: &str| ListRules {
            folder: folder.map(|folder| folder.as_bytes().to_vec()),
            prefix: prefix.as_bytes().to_vec(),
            turns_backslashes: true,
            ..ListRules::default()
        };
        let path = |line: &str, rules: ListRules| rows(&scan_list(line.as_bytes(), &rules).unwrap())[0].1.clone();
        assert_eq!(path("a=.../b/../c", rules(Some("/lists"), "")), "/lists/b/../c");
        assert_eq!(path("a=...\\b", rules(Some("lists"), "p")), "lists/b");
        assert_eq!(path("a=x\\b", rules(Some("lists"), "p")), "p/x/b");
        assert_eq!(path("a=\\\\host\\share\\b", rules(None, "")), "//host/share/b");
    }

    #[test]
    fn compatible_lists_have_their_folder_in_place_of_the_first_dots_of_a_line() {
        let row = |line: &str, prefix: &str| {
            let prefix = prefix.as_bytes().to_vec();
            let rules =
                ListRules { is_compatible: true, folder: Some(b"x/lists".to_vec()), prefix, ..ListRules::default() };
            rows(&scan_list(line.as_bytes(), &rules).unwrap()).remove(0)
        };
        assert_eq!(row("a=.../b/.../c[0,1]", ""), self::row("a", "x/lists/b/.../c", 0, 1));
        assert_eq!(row("a...b.mfc=.../c[0,1]", ""), self::row("ax/listsb", ".../c", 0, 1));
        assert_eq!(row("a...b.mfc=.../c[0,1]", "p"), self::row("a...b", "p/.../c", 0, 1));
    }

    #[test]
    fn an_extension_is_cut_where_the_rule_says() {
        assert_eq!(cut_extension(b"v1.0/a", true), b"v1.0/a");
        assert_eq!(cut_extension(b"v1.0/a", false), b"v1");
        assert_eq!(cut_extension(b"a.b.mfc", true), b"a.b");
    }

    #[test]
    fn chunks_are_full_when_they_have_more_than_the_limit() {
        assert_eq!(chunk_starts(&[4, 6, 1, 20, 1, 9, 1, 1], 10), [0, 3, 4, 7, 8]);
        assert_eq!(chunk_starts(&[], 10), [0]);
        assert_eq!(chunk_starts(&[5, 5, u32::MAX - 10, u32::MAX, 1], u64::MAX), [0, 3, 4, 5]);
    }

    proptest! {
        #[test]
        fn any_text_is_a_list_or_an_error(text: Vec<u8>, is_compatible: bool) {
            let _ = scan_list(&text, &ListRules { is_compatible, ..ListRules::default() });
        }

        #[test]
        fn any_line_is_a_list_or_an_error(text in "[a=\\[\\],0-9 .\"/\\\\\r\n-]{0,40}", is_compatible: bool) {
            let _ = scan_list(text.as_bytes(), &ListRules { is_compatible, ..ListRules::default() });
        }
    }
}
