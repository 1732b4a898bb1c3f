//! HTK label files: text (MLF) and binary, into runs of classes. (docs/formats/htk.md)
//!
//! ```text
//! #!MLF!#
//! "*/u1.lab"            entry: its key is u1                       keys
//! 0 300000 sil          frames 0, 1, 2 are of the class of sil     starts 0   classes 0
//! 300000 500000 aa      frames 3, 4 are of the class of aa         starts 3   classes 7
//! .                     the entry's end                            frames 5
//! ```
//!
//! [`scan`] and [`scan_binary`] read entries into columns, one run for each row; [`expand`] makes samples of them when
//! they are packed.
//!
//! The law: no input panics; what is wrong with an entry is noted with it, by kind and place, and what that means is
//! decided in Python. Only what leaves no entry to note it with ends a scan.

use crate::chunk::Runs;
use crate::htk::{LONGEST_KEY, cut_extension};
use crate::lines::Lines;
use memchr::{memchr, memmem};
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// What the numbers of a row count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// What the rows of an entry tell; in compatible mode what each row tells.
    Auto,
    /// 100 ns.
    Time,
    /// Frames.
    Frames,
}

/// How labels are read.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Whether they are read as CNTK 2.7 reads them, to the letter.
    pub is_compatible: bool,
    /// What the numbers count.
    pub unit: Unit,
    /// 100 ns units of a frame.
    pub frame_period: f64,
    /// The class of each label; None: the fourth column is the class.
    pub classes: Option<Classes>,
    /// Number of classes.
    pub dim: u32,
}

/// The class of each label.
pub type Classes = HashMap<Vec<u8>, u32, BuildHasherDefault<LabelHasher>>;

/// A hash for short labels of files that nobody attacks with: the names are the mapping file's, and few.
#[derive(Debug, Clone, Copy, Default)]
pub struct LabelHasher(u64);

impl Hasher for LabelHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            self.write_u64(rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)));
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// What is noted with an entry; up to `OutOfOrder` it is invalid, beyond it is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// Nothing.
    #[default]
    None = 0,
    /// A row that does not begin where the one before ended.
    OutOfOrder = 1,
    /// The first row does not begin at frame 0.
    LateStart = 2,
    /// Fewer columns than a row needs, or not exactly four where there must be four.
    Columns = 3,
    /// A time that is no number, or not one of frames.
    BadTime = 4,
    /// A row that ends before it begins.
    Reversed = 5,
    /// A label that is not in the mapping file.
    UnknownLabel = 6,
    /// A class that is no number.
    BadClass = 7,
    /// A class beyond the dimension.
    LargeClass = 8,
    /// No frames at all.
    NoFrames = 9,
    /// Runs that do not sum up to the number of frames.
    WrongSum = 10,
}

/// What is passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remark {
    /// A key line without quotes; its entry is left out.
    Unquoted = 0,
    /// An entry without rows, which is left out.
    Empty = 1,
    /// An entry that the end of the file cuts off, which is left out.
    CutOff = 2,
    /// A key with a wildcard behind its beginning, which matches nothing.
    Pattern = 3,
}

/// How many kinds of remarks there are.
pub const NUM_REMARKS: usize = 4;
const MOST_PLACES: usize = 10;

/// What ends a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The text does not begin with `#!MLF!#`.
    NoHeader = 0,
    /// The last row of an entry has no times (compatible mode).
    NoTimes = 1,
    /// An entry of no frames (compatible mode).
    NoFrames = 2,
    /// A key that is too long.
    LongKey = 3,
    /// A binary file that does not begin with `MLF`.
    NotBinary = 4,
    /// A binary file of another version.
    Version = 5,
    /// A binary file that ends within an entry.
    Truncated = 6,
}

/// The entries of a text, in its order.
#[derive(Debug, Default, PartialEq)]
pub struct Labels {
    /// All keys, one after the other.
    pub keys: Vec<u8>,
    /// Where each key ends.
    pub key_ends: Vec<usize>,
    /// Where each entry begins.
    pub at: Vec<u64>,
    /// Frames of each.
    pub frames: Vec<u32>,
    /// What is wrong with each, a [`Fault`].
    pub faults: Vec<u8>,
    /// Where.
    pub fault_at: Vec<u64>,
    /// Where each entry's runs end.
    pub run_ends: Vec<u64>,
    /// The first frame of each run in its entry.
    pub starts: Vec<u32>,
    /// The class of each run.
    pub classes: Vec<u32>,
    /// For each kind of remark how many there were, and where the first few are.
    pub remarks: [(u64, Vec<u64>); NUM_REMARKS],
    /// What ended the scan, and where.
    pub stop: Option<(Stop, u64)>,
}

impl Labels {
    fn remark(&mut self, remark: Remark, at: u64) {
        let (count, places) = &mut self.remarks[remark as usize];
        *count += 1;
        if places.len() < MOST_PLACES {
            places.push(at);
        }
    }

    /// Put entries behind these.
    pub fn append(&mut self, mut other: Labels) {
        let (keys, runs) = (self.keys.len(), self.starts.len() as u64);
        self.keys.append(&mut other.keys);
        self.key_ends.extend(other.key_ends.iter().map(|end| end + keys));
        self.at.append(&mut other.at);
        self.frames.append(&mut other.frames);
        self.faults.append(&mut other.faults);
        self.fault_at.append(&mut other.fault_at);
        self.run_ends.extend(other.run_ends.iter().map(|end| end + runs));
        self.starts.append(&mut other.starts);
        self.classes.append(&mut other.classes);
        for ((count, places), (more, further)) in self.remarks.iter_mut().zip(&other.remarks) {
            *count += more;
            let room = MOST_PLACES.saturating_sub(places.len());
            places.extend(further.iter().take(room));
        }
        self.stop = self.stop.or(other.stop);
    }
}

// ------------------------------------------------------------------------------------------------------ text

/// The end of the last entry that is whole: behind the last line that is a dot.
pub fn last_end(text: &[u8]) -> usize {
    let mut end = text.len();
    while let Some(feed) = memmem::rfind(&text[..end], b"\n.") {
        let behind = &text[feed + 2..];
        if let Some(size) = dot_end(behind) {
            return feed + 2 + size;
        }
        end = feed + 1;
    }
    0
}

/// The end of the first entry that ends at `from` or later.
fn next_end(text: &[u8], from: usize) -> usize {
    let dots = memmem::find_iter(&text[from..], b"\n.");
    let mut ends = dots.filter_map(|feed| Some(from + feed + 2 + dot_end(&text[from + feed + 2..])?));
    ends.next().unwrap_or(text.len())
}

fn dot_end(behind: &[u8]) -> Option<usize> {
    match behind {
        [b'\n', ..] => Some(1),
        [b'\r', b'\n', ..] => Some(2),
        _ => None,
    }
}

/// Read the entries of a text that begins at an entry's begin, in pieces of about `piece` bytes, on all cores.
///
/// `first` is the text's place in its file; the file's header is wanted if it is 0. `is_last` tells that nothing comes
/// behind the text.
pub fn scan(text: &[u8], first: u64, is_last: bool, rules: &Rules, piece: usize) -> Labels {
    let mut cuts = vec![0];
    while cuts[cuts.len() - 1] < text.len() {
        let from = cuts[cuts.len() - 1].saturating_add(piece.max(1));
        cuts.push(if from < text.len() { next_end(text, from) } else { text.len() });
    }
    let pieces: Vec<Range<usize>> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
    let parts: Vec<Labels> = pieces
        .into_par_iter()
        .map(|range| {
            let begin = first + range.start as u64;
            scan_piece(&text[range.clone()], begin, is_last && range.end == text.len(), rules)
        })
        .collect();
    let mut all = Labels::default();
    if text.is_empty() && first == 0 && is_last {
        all.stop = Some((Stop::NoHeader, 0));
    }
    for part in parts {
        if all.stop.is_some() {
            break;
        }
        all.append(part);
    }
    all
}

struct Row {
    at: u64,
    start: f64,
    end: f64,
    class: u32,
}

fn scan_piece(text: &[u8], first: u64, is_last: bool, rules: &Rules) -> Labels {
    let mut labels = Labels::default();
    let mut rows: Vec<Row> = Vec::new();
    let has_mark = first == 0 && !rules.is_compatible && text.starts_with(b"\xef\xbb\xbf");
    let begin = if has_mark { 3 } else { 0 };
    let mut needs_header = first == 0;
    // Between entries, or in one: where it begins, and its key if it has one.
    let mut entry: Option<(u64, Option<&[u8]>)> = None;
    let mut fault = (Fault::None, 0u64);
    let mut last_row: Option<(u64, bool)> = None;
    for (at, line) in Lines::new(&text[begin..]) {
        let place = first + (begin + at) as u64;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = if rules.is_compatible { line } else { line.trim_ascii_end() };
        if line.is_empty() {
            continue;
        }
        let Some((begin, key)) = entry else {
            if line == b"#!MLF!#" {
                needs_header = false;
            } else if needs_header {
                labels.stop = Some((Stop::NoHeader, place));
                return labels;
            } else if line == b"." {
                labels.remark(Remark::Empty, place);
            } else {
                let key = key_of(line, rules.is_compatible);
                match key {
                    None => labels.remark(Remark::Unquoted, place),
                    Some(key) if key.len() > LONGEST_KEY => {
                        labels.stop = Some((Stop::LongKey, place));
                        return labels;
                    }
                    Some(key) => {
                        if !rules.is_compatible && key.iter().any(|byte| matches!(byte, b'*' | b'?')) {
                            labels.remark(Remark::Pattern, place);
                        }
                    }
                }
                entry = Some((place, key));
                rows.clear();
                fault = (Fault::None, 0);
                last_row = None;
            }
            continue;
        };
        if line != b"." {
            match row(line, place, rules) {
                Ok(row) => {
                    last_row = Some((place, true));
                    if row.class >= rules.dim && fault.0 == Fault::None {
                        fault = (Fault::LargeClass, place);
                    }
                    rows.push(row);
                }
                Err((found, has_times)) => {
                    last_row = Some((place, has_times));
                    if matches!(fault.0, Fault::None | Fault::LargeClass) {
                        fault = (found, place);
                    }
                }
            }
            continue;
        }
        entry = None;
        let Some((last_place, has_times)) = last_row else {
            if key.is_some() {
                labels.remark(Remark::Empty, begin);
            }
            continue;
        };
        if rules.is_compatible && !has_times {
            labels.stop = Some((Stop::NoTimes, last_place));
            return labels;
        }
        let Some(key) = key else { continue };
        finish(&mut labels, &rows, fault, rules);
        labels.keys.extend_from_slice(key);
        labels.key_ends.push(labels.keys.len());
        labels.at.push(begin);
        if rules.is_compatible && fault.0 == Fault::None && labels.frames.last() == Some(&0) {
            labels.stop = Some((Stop::NoFrames, begin));
            return labels;
        }
    }
    if needs_header && is_last {
        labels.stop = Some((Stop::NoHeader, first));
    }
    if let (true, Some((begin, _))) = (is_last, entry) {
        labels.remark(Remark::CutOff, begin);
    }
    labels
}

/// What is between the quotes, without a leading `*/` and without its extension.
fn key_of(line: &[u8], is_compatible: bool) -> Option<&[u8]> {
    let line = if is_compatible { line.trim_ascii_end() } else { line.trim_ascii() };
    let is_quoted = line.len() >= 3 && line[0] == b'"' && line[line.len() - 1] == b'"';
    let key = is_quoted.then(|| &line[1..line.len() - 1])?;
    Some(cut_extension(key.strip_prefix(b"*/").unwrap_or(key), !is_compatible))
}

/// A row; or what is wrong with it, and whether at least its times are fine.
fn row(line: &[u8], at: u64, rules: &Rules) -> Result<Row, (Fault, bool)> {
    let mut columns = Columns { rest: Some(line.trim_ascii_end()), is_single_blank: rules.is_compatible };
    let mut time = || match columns.next() {
        None => Err((Fault::Columns, false)),
        Some(column) => number(column).ok_or((Fault::BadTime, false)),
    };
    let (start, end) = (time()?, time()?);
    let class = match (&rules.classes, columns.next()) {
        (_, None) => return Err((Fault::Columns, true)),
        (Some(classes), Some(label)) => match classes.get(label) {
            Some(&class) => Some(class),
            None if rules.is_compatible => None,
            None => quoted_label(label, line).and_then(|label| classes.get(&label).copied()),
        }
        .ok_or((Fault::UnknownLabel, true))?,
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

struct Columns<'a> {
    rest: Option<&'a [u8]>,
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
        while let [b' ' | b'\t', behind @ ..] = rest {
            rest = behind;
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

/// A label in quotes, which may hold blanks and octal escapes: what it says.
fn quoted_label(label: &[u8], line: &[u8]) -> Option<Vec<u8>> {
    let quote = *label.first().filter(|byte| matches!(byte, b'"' | b'\''))?;
    let begin = label.as_ptr().addr() - line.as_ptr().addr() + 1;
    let mut text = Vec::new();
    let mut bytes = line.get(begin..)?;
    loop {
        match bytes {
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

/// Sign, digits, fraction, exponent; what follows is ignored. None without digits.
#[inline]
fn number(text: &[u8]) -> Option<f64> {
    let mut value = 0u64;
    let mut digits = 0;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
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
        if whole + fraction == 0 {
            return None;
        }
        end += 1 + fraction;
    } else if whole == 0 {
        return None;
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits(end + 1 + sign);
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    std::str::from_utf8(&text[..end]).ok()?.parse().ok().filter(|value: &f64| value.is_finite())
}

/// A class: digits; in compatible mode a sign in front and anything behind.
fn whole(text: &[u8], is_compatible: bool) -> Option<u32> {
    let text = if is_compatible { text.strip_prefix(b"+").unwrap_or(text) } else { text };
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 || (count < text.len() && !is_compatible) {
        return None;
    }
    text[..count].iter().try_fold(0u32, |value, byte| value.checked_mul(10)?.checked_add((byte - b'0').into()))
}

/// Turn an entry's rows into runs, and put it behind the others but for its key.
fn finish(labels: &mut Labels, rows: &[Row], mut fault: (Fault, u64), rules: &Rules) {
    const LONG: f64 = 99_999.0;
    let counts_time = match rules.unit {
        Unit::Time => true,
        Unit::Frames => false,
        Unit::Auto => {
            let is_round = |time: f64| time % rules.frame_period == 0.0;
            rows.iter().any(|row| row.end - row.start >= LONG)
                || (rows.iter().all(|row| is_round(row.start) && is_round(row.end))
                    && rows.iter().any(|row| row.end > 0.0))
        }
    };
    let mut end = 0;
    let first_run = labels.starts.len();
    let mut num_frames = 0;
    for row in rows {
        let counts_time = match rules.unit {
            Unit::Auto if rules.is_compatible => row.end - row.start >= LONG,
            _ => counts_time,
        };
        let frame = |time: f64| floor(if counts_time { time / rules.frame_period + 0.5 } else { time });
        let (from, to) = (frame(row.start), frame(row.end));
        if !(0.0..=f64::from(u32::MAX - 1)).contains(&from) || to > f64::from(u32::MAX - 1) {
            note(&mut fault, Fault::BadTime, row.at);
            continue;
        }
        let (from, to) = (from as u32, to as u32);
        num_frames = to;
        if from != end {
            let is_first = std::ptr::eq(row, &rows[0]);
            note(&mut fault, if is_first { Fault::LateStart } else { Fault::OutOfOrder }, row.at);
        }
        end = to;
        if to > from {
            labels.starts.push(from);
            labels.classes.push(row.class);
        }
    }
    if num_frames == 0 {
        note(&mut fault, Fault::NoFrames, rows.first().map_or(0, |row| row.at));
    }
    if fault.0 != Fault::None {
        // One run that covers it: nobody will see it.
        labels.starts.truncate(first_run);
        labels.classes.truncate(first_run);
        labels.starts.push(0);
        labels.classes.push(0);
    }
    labels.frames.push(num_frames);
    labels.faults.push(fault.0 as u8);
    labels.fault_at.push(fault.1);
    labels.run_ends.push(labels.starts.len() as u64);
}

/// Rounded down; what is beyond 64 bits stays there.
#[inline]
fn floor(value: f64) -> f64 {
    // Without an instruction for it, which not every processor has, rounding is a call.
    if value >= 0.0 { value as u64 as f64 } else { value.floor() }
}

/// The first fault counts, but for one that is only of the dimension.
fn note(fault: &mut (Fault, u64), found: Fault, at: u64) {
    if fault.0 == Fault::None {
        *fault = (found, at);
    }
}

/// Add the labels of a text's rows to `names`: third columns of lines that begin with a time. The text is whole lines.
pub fn label_names(text: &[u8], names: &mut HashSet<Vec<u8>>) {
    for (_, line) in Lines::new(text) {
        let line = line.trim_ascii();
        if !line.first().is_some_and(|byte| byte.is_ascii_digit() || matches!(byte, b'+' | b'-')) {
            continue;
        }
        let Some(label) = (Columns { rest: Some(line), is_single_blank: false }).nth(2) else { continue };
        if names.contains(label) {
            continue;
        }
        names.insert(quoted_label(label, line).unwrap_or_else(|| label.to_vec()));
    }
}

// ---------------------------------------------------------------------------------------------------- binary

/// Read a binary file.
pub fn scan_binary(data: &[u8], dim: u32) -> Labels {
    let mut labels = Labels::default();
    let stop = |mut labels: Labels, stop, at: usize| {
        labels.stop = Some((stop, at as u64));
        labels
    };
    let Some((b"MLF", rest)) = data.split_at_checked(3) else {
        return stop(labels, Stop::NotBinary, 0);
    };
    let mut bytes = Reader { data: rest };
    let version = match bytes.short() {
        Some(version @ (1 | 2)) => version,
        _ => return stop(labels, Stop::Version, 3),
    };
    while !bytes.data.is_empty() {
        let at = data.len() - bytes.data.len();
        let Some((key, frames, runs)) = bytes.entry(version) else {
            return stop(labels, Stop::Truncated, at);
        };
        if key.len() > LONGEST_KEY {
            return stop(labels, Stop::LongKey, at);
        }
        let first_run = labels.starts.len();
        let (mut end, mut fault) = (0u32, Fault::None);
        for run in runs.chunks_exact(4) {
            let class = u32::from(u16::from_le_bytes([run[0], run[1]]));
            let count = u32::from(u16::from_le_bytes([run[2], run[3]]));
            if class >= dim && fault == Fault::None {
                fault = Fault::LargeClass;
            }
            if count > 0 {
                labels.starts.push(end);
                labels.classes.push(class);
            }
            end = end.saturating_add(count);
        }
        if end != frames {
            fault = Fault::WrongSum;
        } else if frames == 0 {
            fault = Fault::NoFrames;
        }
        if fault != Fault::None {
            labels.starts.truncate(first_run);
            labels.classes.truncate(first_run);
            labels.starts.push(0);
            labels.classes.push(0);
        }
        labels.keys.extend_from_slice(&key);
        labels.key_ends.push(labels.keys.len());
        labels.at.push(at as u64);
        labels.frames.push(frames);
        labels.faults.push(fault as u8);
        labels.fault_at.push(at as u64);
        labels.run_ends.push(labels.starts.len() as u64);
    }
    labels
}

struct Reader<'a> {
    data: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.data.split_at_checked(size)?;
        self.data = rest;
        Some(taken)
    }

    fn short(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn long(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Key, frames and the bytes of the runs.
    fn entry(&mut self, version: u16) -> Option<(Vec<u8>, u32, &'a [u8])> {
        let key = if version == 1 {
            self.long()?.to_string().into_bytes()
        } else {
            let size = self.short()?;
            self.take(size.into())?.to_vec()
        };
        let frames = self.long()?;
        let num_runs = self.short()?;
        Some((key, frames, self.take(4 * usize::from(num_runs))?))
    }
}

// --------------------------------------------------------------------------------------------------- packing

/// The samples of a sequence, run by run: class, whether the first of them is marked, and how many.
pub fn expand(
    runs: &Runs,
    number: usize,
    num_samples: usize,
    samples: Range<usize>,
    mut take: impl FnMut(u32, bool, usize),
) {
    let (begin, end) = (runs.offsets[number] as usize, runs.offsets[number + 1] as usize);
    let starts = &runs.starts[begin..end];
    let mut sample = samples.start;
    let mut run = starts.partition_point(|&start| start as usize <= sample).saturating_sub(1);
    while sample < samples.end && run < starts.len() {
        let until = starts.get(run + 1).map_or(num_samples, |&start| start as usize).min(samples.end);
        let is_start = runs.marks_starts && sample == starts[run] as usize;
        if until > sample {
            take(runs.classes[begin + run], is_start, until - sample);
            sample = until;
        }
        run += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::OnceLock;

    fn rules(is_compatible: bool) -> Rules {
        let names = ["sil", "aa", "b c", "\u{e9}"];
        let classes = names.iter().zip(0..).map(|(name, class)| (name.as_bytes().to_vec(), class)).collect();
        Rules { is_compatible, unit: Unit::Auto, frame_period: 100_000.0, classes: Some(classes), dim: 4 }
    }

    fn read(text: &str) -> Labels {
        scan(text.as_bytes(), 0, true, &rules(false), 1)
    }

    /// Key, frames, runs and fault.
    type Entry = (String, u32, Vec<(u32, u32)>, u8);

    fn entries(labels: &Labels) -> Vec<Entry> {
        let (mut key, mut run) = (0, 0);
        (0..labels.at.len())
            .map(|at| {
                let name = String::from_utf8_lossy(&labels.keys[key..labels.key_ends[at]]).into_owned();
                key = labels.key_ends[at];
                let range = run..labels.run_ends[at] as usize;
                run = range.end;
                let runs = range.map(|run| (labels.starts[run], labels.classes[run])).collect();
                (name, labels.frames[at], runs, labels.faults[at])
            })
            .collect()
    }

    #[test]
    fn times_and_frames_are_told_apart_entry_by_entry() {
        let labels = read(concat!(
            "\u{feff}#!MLF!# \n\"*/u1.lab\"\n0 300000 sil 1.5 x\n300000\t400000  aa\n.\n\n",
            "#!MLF!#\n\"d.1/u2\" \r\n0 2 aa\r\n2 2 sil\r\n2 3 \"b\\040c\"\r\n.\r\n\"u3.x.lab\"\n0 100000 '\\303\\251'\n.\n",
        ));
        assert_eq!(
            entries(&labels),
            [
                ("u1".to_owned(), 4, vec![(0, 0), (3, 1)], 0),
                ("d.1/u2".to_owned(), 3, vec![(0, 1), (2, 2)], 0),
                ("u3.x".to_owned(), 1, vec![(0, 3)], 0),
            ]
        );
        assert_eq!((labels.stop, labels.at), (None, vec![12, 71, 116]));
    }

    #[test]
    fn a_fault_is_noted_with_its_entry_and_place() {
        for (rows, fault, line) in [
            ("0 1 sil\n2 3 aa", Fault::OutOfOrder, 1),
            ("1 2 sil\n2 3 aa", Fault::LateStart, 0),
            ("0 1 sil\n1 2", Fault::Columns, 1),
            ("0 1 sil\nx 2 aa", Fault::BadTime, 1),
            ("-1 1 sil", Fault::BadTime, 0),
            ("0 1e30 sil", Fault::BadTime, 0),
            ("0 2 sil\n2 1 aa", Fault::Reversed, 1),
            ("0 1 sil\n1 2 zz", Fault::UnknownLabel, 1),
            ("0 0 sil", Fault::NoFrames, 0),
        ] {
            let labels = read(&format!("#!MLF!#\n\"u\"\n{rows}\n.\n\"v\"\n0 1 aa\n.\n"));
            let at = 12 + if line == 1 { rows.find('\n').unwrap() as u64 + 1 } else { 0 };
            assert_eq!((labels.faults, labels.fault_at[0]), (vec![fault as u8, 0], at), "{rows}");
        }
    }

    #[test]
    fn what_is_passed_over_is_remarked() {
        let labels = read("#!MLF!#\nu\n0 1 sil\n.\n\"v\"\n.\n\"*/a*\"\n0 1 aa\n.\n\"w\"\n0 1 aa\n");
        let counts: Vec<u64> = labels.remarks.iter().map(|(count, _)| *count).collect();
        assert_eq!((counts, labels.at.len()), (vec![1, 1, 1, 1], 1));
        assert_eq!(read("").stop, Some((Stop::NoHeader, 0)));
        assert_eq!(read("\n\"u\"\n").stop, Some((Stop::NoHeader, 1)));
    }

    #[test]
    fn labels_are_found_in_rows_alone() {
        let mut names = HashSet::new();
        label_names(b"#!MLF!#\n\"u v w\"\n0 1 b 3\r\n 1\t2  'a\\040c' x\n2 3\n.\n-1 1 b", &mut names);
        assert_eq!(names, HashSet::from([b"b".to_vec(), b"a c".to_vec()]));
    }

    #[test]
    fn runs_are_expanded_from_any_sample_on() {
        let runs = Runs {
            dim: 9,
            offsets: vec![0, 1, 3],
            starts: vec![0, 0, 2],
            classes: vec![8, 3, 4],
            marks_starts: true,
            targets: None,
            each: OnceLock::new(),
        };
        let all = |range| {
            let mut found = Vec::new();
            expand(&runs, 1, 5, range, |class, is_start, count| found.push((class, is_start, count)));
            found
        };
        assert_eq!(all(0..5), [(3, true, 2), (4, true, 3)]);
        assert_eq!(all(1..4), [(3, false, 1), (4, true, 2)]);
        assert_eq!(all(4..5), [(4, false, 1)]);
        assert_eq!(all(2..2), []);
        assert_eq!(runs.each(&[0, 2, 7]), [8, 8, 3, 3, 4, 4, 4]);
    }

    #[test]
    fn a_binary_file_is_read_in_both_versions() {
        let runs = [[1u8, 0, 2, 0], [3, 0, 1, 0]].concat();
        let first = [b"MLF\x01\0\x07\0\0\0\x03\0\0\0\x02\0".to_vec(), runs.clone()].concat();
        assert_eq!(entries(&scan_binary(&first, 4)), [("7".to_owned(), 3, vec![(0, 1), (2, 3)], 0)]);
        let second = [b"MLF\x02\0\x02\0u1\x03\0\0\0\x02\0".to_vec(), runs].concat();
        assert_eq!(entries(&scan_binary(&second, 3))[0].3, Fault::LargeClass as u8);
        for end in 0..second.len() {
            assert!(end == 5 || scan_binary(&second[..end], 4).stop.is_some(), "{end}");
        }
    }

    proptest! {
        #[test]
        fn pieces_change_nothing(
            text in "(#!MLF!#\n)(\"u[0-9]{1,2}\"\n([0-9]{1,2} [0-9]{1,2} (sil|aa|zz)\n){0,3}(\\.|\\. |\\.\r)\n){0,6}",
            piece in 1usize..80, is_compatible: bool,
        ) {
            let rules = rules(is_compatible);
            prop_assert_eq!(
                scan(text.as_bytes(), 0, true, &rules, piece),
                scan(text.as_bytes(), 0, true, &rules, usize::MAX)
            );
            prop_assert!(last_end(text.as_bytes()) <= text.len());
        }

        #[test]
        fn any_bytes_give_entries_or_a_reason(
            text in "[#!MLF\"*/u1. \t\r\nsila0-9+-]{0,60}", data: Vec<u8>, is_compatible: bool, version in 1u8..3,
        ) {
            let text = format!("#!MLF!#\n{text}");
            let found = scan(text.as_bytes(), 0, true, &rules(is_compatible), 16);
            prop_assert_eq!(found.at.len(), found.key_ends.len());
            let found = scan_binary(&[b"MLF", &[version, 0][..], &data].concat(), 100);
            prop_assert_eq!(found.at.len(), found.run_ends.len());
        }
    }
}
