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

use crate::chunk::{Runs, expect};
use crate::htk::LONGEST_KEY;
use crate::keys::cut_extension;
use crate::lines::Lines;
use cntkio_simd::digits;
use memchr::{memchr, memmem};
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
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

/// The class of each label. Of a name that comes again the last class counts.
#[derive(Debug, Clone, Default)]
pub struct Classes {
    all: HashMap<Vec<u8>, u32, BuildHasherDefault<LabelHasher>>,
    /// Those of at most 15 bytes that are no blanks, as numbers, where their hash says or behind that; some places are
    /// free.
    short: Vec<Option<(u128, u32)>>,
}

impl Classes {
    /// The class of a label.
    pub fn get(&self, label: &[u8]) -> Option<u32> {
        self.all.get(label).copied()
    }

    /// The same of a short one.
    #[inline]
    fn get_short(&self, label: u128) -> Option<u32> {
        let mut at = place_of(label, self.short.len());
        while let Some((found, class)) = self.short[at] {
            if found == label {
                return Some(class);
            }
            at = (at + 1) & (self.short.len() - 1);
        }
        None
    }
}

/// Where a short label is looked for first in a table of some power of two.
#[inline]
fn place_of(label: u128, size: usize) -> usize {
    let mixed = (label as u64 ^ ((label >> 64) as u64).rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize & (size - 1)
}

impl FromIterator<(Vec<u8>, u32)> for Classes {
    fn from_iter<I: IntoIterator<Item = (Vec<u8>, u32)>>(labels: I) -> Classes {
        let all: HashMap<Vec<u8>, u32, _> = labels.into_iter().collect();
        let mut short = vec![None; (4 * all.len() + 1).next_power_of_two()];
        let is_short = |label: &[u8]| label.len() <= 15 && label.iter().all(|&byte| byte > b' ');
        for (label, &class) in all.iter().filter(|(label, _)| is_short(label)) {
            let mut bytes = [0; 16];
            bytes[..label.len()].copy_from_slice(label);
            let label = u128::from_le_bytes(bytes);
            let mut at = place_of(label, short.len());
            while short[at].is_some() {
                at = (at + 1) & (short.len() - 1);
            }
            short[at] = Some((label, class));
        }
        Classes { all, short }
    }
}

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

/// Numbers of 32 bits, kept in 16 while all are small.
#[derive(Debug, Default, PartialEq)]
pub struct Numbers {
    /// Their lower halves.
    pub low: Vec<u16>,
    /// Their upper halves; none while all are zero.
    pub high: Vec<u16>,
}

impl Numbers {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.low.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.low.is_empty()
    }

    /// Some of them.
    pub fn part(&self, range: Range<usize>) -> Vec<u32> {
        let low = self.low[range.clone()].iter().map(|&low| u32::from(low));
        if self.high.is_empty() {
            return low.collect();
        }
        low.zip(&self.high[range]).map(|(low, &high)| low | u32::from(high) << 16).collect()
    }

    #[inline]
    fn push(&mut self, number: u32) {
        let high = (number >> 16) as u16;
        if high > 0 || !self.high.is_empty() {
            self.high.resize(self.low.len(), 0);
            self.high.push(high);
        }
        self.low.push(number as u16);
    }

    fn truncate(&mut self, count: usize) {
        self.low.truncate(count);
        self.high.truncate(count);
        if self.high.iter().all(|&high| high == 0) {
            self.high.clear();
        }
    }

    fn append(&mut self, mut other: Numbers) {
        if !self.high.is_empty() || !other.high.is_empty() {
            self.high.resize(self.low.len(), 0);
            other.high.resize(other.low.len(), 0);
            self.high.append(&mut other.high);
        }
        self.low.append(&mut other.low);
    }
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
    pub starts: Numbers,
    /// The class of each run.
    pub classes: Numbers,
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

    /// Make room for `ratio` times what there is.
    fn expect(&mut self, ratio: f64) {
        expect(&mut self.keys, ratio);
        expect(&mut self.key_ends, ratio);
        expect(&mut self.at, ratio);
        expect(&mut self.frames, ratio);
        expect(&mut self.faults, ratio);
        expect(&mut self.fault_at, ratio);
        expect(&mut self.run_ends, ratio);
        for numbers in [&mut self.starts, &mut self.classes] {
            expect(&mut numbers.low, ratio);
            expect(&mut numbers.high, ratio);
        }
    }

    /// Put entries behind these, unless these have been stopped.
    fn append(&mut self, mut other: Labels) {
        if self.stop.is_some() {
            return;
        }
        let (keys, runs) = (self.keys.len(), self.starts.len() as u64);
        self.keys.append(&mut other.keys);
        self.key_ends.extend(other.key_ends.iter().map(|end| end + keys));
        self.at.append(&mut other.at);
        self.frames.append(&mut other.frames);
        self.faults.append(&mut other.faults);
        self.fault_at.append(&mut other.fault_at);
        self.run_ends.extend(other.run_ends.iter().map(|end| end + runs));
        self.starts.append(other.starts);
        self.classes.append(other.classes);
        for ((count, places), (more, further)) in self.remarks.iter_mut().zip(&other.remarks) {
            *count += more;
            let room = MOST_PLACES.saturating_sub(places.len());
            places.extend(further.iter().take(room));
        }
        self.stop = other.stop;
    }
}

// ------------------------------------------------------------------------------------------------------ text

/// A text of which parts are read: `read` fills a buffer from a place on.
pub struct Text<R> {
    /// Its bytes.
    pub size: usize,
    /// Fills a buffer.
    pub read: R,
}

/// A scan of a text in shares of some bytes, on all threads of the current pool.
///
/// A share is what the entries take that begin behind an entry's end in it, so that each is read by itself; what was
/// found is put together while the next ones are scanned.
pub struct Scan<'a, R> {
    text: Text<R>,
    rules: &'a Rules,
    share: usize,
    /// The share that comes next.
    next: usize,
    all: Labels,
    /// What was found last.
    found: Vec<Labels>,
}

/// Shares that are scanned between two pauses.
const SHARES_AT_ONCE: usize = 16;
/// Bytes of a share: text, rows and columns stay in the cache.
pub const SHARE: usize = 1 << 19;
/// Bytes behind a share that are read with it, to find the end of its last entry.
const BEHIND: usize = 1 << 14;

impl<'a, R, E> Scan<'a, R>
where
    R: Fn(usize, &mut [u8]) -> Result<(), E> + Sync,
    E: Send,
{
    /// None of it so far.
    pub fn new(text: Text<R>, rules: &'a Rules, share: usize) -> Scan<'a, R> {
        Scan { text, rules, share: share.max(1), next: 0, all: Labels::default(), found: Vec::new() }
    }

    /// Scan the next shares; whether there are more.
    ///
    /// # Errors
    /// The text cannot be read.
    pub fn advance(&mut self) -> Result<bool, E> {
        let num_shares = self.text.size.div_ceil(self.share);
        let last = num_shares.min(self.next + SHARES_AT_ONCE);
        let before = std::mem::take(&mut self.found);
        let (all, next) = (&mut self.all, self.next);
        let scanned = (next * self.share) as f64;
        let scan =
            || (next..last).into_par_iter().map(|number| self.text.labels_of(number, self.share, self.rules)).collect();
        let (_, found): (_, Result<Vec<Labels>, E>) = rayon::join(
            || {
                let is_first = all.at.is_empty();
                before.into_iter().for_each(|labels| all.append(labels));
                if is_first && !all.at.is_empty() {
                    // What the rest will take, going by the first shares: to grow again and again would cost more.
                    all.expect(self.text.size as f64 / scanned);
                }
            },
            scan,
        );
        self.found = found?;
        self.next = last;
        Ok(last < num_shares && self.found.iter().all(|labels| labels.stop.is_none()))
    }

    /// All that was found.
    pub fn finish(mut self) -> Labels {
        self.found.into_iter().for_each(|labels| self.all.append(labels));
        if self.text.size == 0 {
            self.all.stop = Some((Stop::NoHeader, 0));
        }
        self.all
    }
}

impl<R, E> Text<R>
where
    R: Fn(usize, &mut [u8]) -> Result<(), E>,
{
    /// The labels of the share of that number.
    fn labels_of(&self, number: usize, share: usize, rules: &Rules) -> Result<Labels, E> {
        let first = number * share;
        let behind = first.saturating_add(share).min(self.size);
        let mut text = vec![0; behind.saturating_add(BEHIND).min(self.size) - first];
        (self.read)(first, &mut text)?;
        let mut end = None;
        let begin = if number == 0 { Some(0) } else { next_end(&text, 0, behind - first) };
        let Some(begin) = begin else { return Ok(Labels::default()) };
        let mut from = behind - first;
        while behind < self.size && end.is_none() {
            let size = text.len();
            end = next_end(&text, from, size);
            if first + size == self.size {
                break;
            }
            if end.is_none() {
                from = from.max(size.saturating_sub(LONGEST_DOT));
                text.resize((2 * size).min(self.size - first), 0);
                (self.read)(first + size, &mut text[size..])?;
            }
        }
        let end = end.unwrap_or(text.len());
        Ok(scan_piece(&text[begin..end], (first + begin) as u64, first + end == self.size, rules))
    }
}

/// Bytes of the longest end of an entry.
const LONGEST_DOT: usize = 4;

/// The end of the first entry that ends with a dot line whose line feed in front is in `from .. until`.
fn next_end(text: &[u8], from: usize, until: usize) -> Option<usize> {
    let dots = memmem::find_iter(&text[from..], b"\n.").map(|feed| from + feed).take_while(|&feed| feed < until);
    dots.filter_map(|feed| Some(feed + 2 + dot_end(&text[feed + 2..])?)).next()
}

fn dot_end(behind: &[u8]) -> Option<usize> {
    match behind {
        [b'\n', ..] => Some(1),
        [b'\r', b'\n', ..] => Some(2),
        _ => None,
    }
}

/// Read the entries of a text in shares of some bytes.
pub fn scan(text: &[u8], rules: &Rules, share: usize) -> Labels {
    let read = |at: usize, buffer: &mut [u8]| {
        buffer.copy_from_slice(&text[at..at + buffer.len()]);
        Ok::<(), Infallible>(())
    };
    let mut scan = Scan::new(Text { size: text.len(), read }, rules, share);
    while scan.advance().unwrap_or_else(|never| match never {}) {}
    scan.finish()
}

struct Row {
    at: u64,
    start: f64,
    end: f64,
    class: u32,
}

fn scan_piece(text: &[u8], first: u64, is_last: bool, rules: &Rules) -> Labels {
    let mut labels = Labels::default();
    // As many rows as there mostly are.
    labels.starts.low.reserve(text.len() / 16);
    labels.classes.low.reserve(text.len() / 16);
    let mut rows: Vec<Row> = Vec::new();
    let has_mark = first == 0 && !rules.is_compatible && text.starts_with(b"\xef\xbb\xbf");
    let begin = if has_mark { 3 } else { 0 };
    let mut needs_header = first == 0;
    // Between entries, or in one: where it begins, and its key if it has one.
    let mut entry: Option<(u64, Option<&[u8]>)> = None;
    let mut fault = (Fault::None, 0u64);
    let mut last_row: Option<(u64, bool)> = None;
    let mut next = begin;
    loop {
        if entry.is_some()
            && let Some(classes) = &rules.classes
        {
            let behind = plain_rows(text, next, first, classes, rules.dim, &mut rows);
            if behind > next {
                last_row = rows.last().map(|row| (row.at, true));
                next = behind;
            }
        }
        let Some((at, line)) = text.get(next..).and_then(|rest| Lines::new(rest).next()) else { break };
        let place = first + (next + at) as u64;
        next += line.len() + 1;
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

/// Append the rows of lines that are nothing but two whole numbers and a known label, with a blank between them, and
/// that end behind their begin and below `dim`; and the place of the first line that is another. What they say is what
/// [`row`] says.
fn plain_rows(text: &[u8], mut at: usize, first: u64, classes: &Classes, dim: u32, rows: &mut Vec<Row>) -> usize {
    while let Some(bytes) = text.get(at..at + LONGEST_PLAIN) {
        let Some((start, mut size)) = plain_number(bytes, 0) else { break };
        let Some((end, behind)) = plain_number(bytes, size) else { break };
        size = behind;
        let label = u128::from_le_bytes(*bytes[size..].first_chunk().expect("there is room for a label"));
        // The highest bit of each byte up to a blank; above the lowest of them there may be wrong ones.
        let is_blank = label.wrapping_sub(ONES * 0x21) & !label & (ONES * 0x80);
        let length = is_blank.trailing_zeros() / 8;
        if length == 0 || length > 15 {
            break;
        }
        size += length as usize;
        let Some(class) = classes.get_short(label & !(u128::MAX << (8 * length))) else { break };
        size += match bytes[size..] {
            [b'\n', ..] => 1,
            [b'\r', b'\n', ..] => 2,
            _ => break,
        };
        if end < start || class >= dim {
            break;
        }
        rows.push(Row { at: first + at as u64, start: start as f64, end: end as f64, class });
        at += size;
    }
    at
}

/// Bytes in which a plain row must be: two numbers of at most 16 digits with a blank behind each, a label of at most 15
/// bytes, and the end of the line.
const LONGEST_PLAIN: usize = 64;
const ONES: u128 = u128::MAX / 0xff;

/// A number of at most 15 digits with a blank behind it, and where that ends.
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
        let behind = from + size as usize;
        return (bytes[behind] == b' ').then(|| (value(first, size), behind + 1));
    }
    let more = word(from + 8);
    let further = digits::count(more);
    let behind = from + 8 + further as usize;
    if further == 8 || bytes[behind] != b' ' {
        return None;
    }
    let (low, scale) = if further == 0 { (0, 1) } else { (value(more, further), 10u64.pow(further)) };
    Some((value(first, 8) * scale + low, behind + 1))
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
            Some(class) => Some(class),
            None if rules.is_compatible => None,
            None => quoted_label(label, line).and_then(|label| classes.get(&label)),
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
        scan(text.as_bytes(), &rules(false), 1)
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
                let runs = labels.starts.part(range.clone()).into_iter().zip(labels.classes.part(range)).collect();
                (name, labels.frames[at], runs, labels.faults[at])
            })
            .collect()
    }

    proptest! {
        #[test]
        fn numbers_are_kept_whether_they_are_small_or_not(
            numbers in proptest::collection::vec(prop_oneof![3 => 0u32..70_000, 1 => any::<u32>()], 0..40),
            cut in 0usize..40, count in 0usize..40,
        ) {
            let of = |numbers: &[u32]| {
                let mut kept = Numbers::default();
                numbers.iter().for_each(|&number| kept.push(number));
                kept
            };
            let cut = cut.min(numbers.len());
            let mut kept = of(&numbers[..cut]);
            kept.append(of(&numbers[cut..]));
            prop_assert_eq!(&kept, &of(&numbers));
            prop_assert_eq!(kept.high.is_empty(), numbers.iter().all(|&number| number < 1 << 16));
            prop_assert_eq!(kept.part(cut..numbers.len()), &numbers[cut..]);
            let count = count.min(numbers.len());
            kept.truncate(count);
            prop_assert_eq!(kept, of(&numbers[..count]));
        }
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
            prop_assert_eq!(scan(text.as_bytes(), &rules, piece), scan(text.as_bytes(), &rules, usize::MAX));
        }

        #[test]
        fn plain_rows_are_read_as_others_are(
            times in proptest::collection::vec((0u64..10_000_000_000_000_000, 0u32..16, 0usize..7, 0usize..12), 1..30),
            end in prop_oneof![Just("\n"), Just("\r\n"), Just(" \n")], is_compatible: bool, dim in 1u32..5,
        ) {
            let names = ["sil", "aa", "b c", "\u{e9}", "fifteen-bytes-ab", "fifteen-bytes-a", "unknown"];
            let blanks = [" ", " ", " ", " ", " ", " ", " ", " ", " ", "  ", "\t", ""];
            let rules = Rules { dim, ..rules(is_compatible) };
            let rules = Rules {
                classes: Some(names[..6].iter().zip(0..).map(|(name, class)| (name.as_bytes().to_vec(), class)).collect()),
                ..rules
            };
            let line = |&(time, digits, name, blank): &(u64, u32, usize, usize)| {
                let (name, blank) = (names[name], blanks[blank]);
                format!("{} {}{blank}{name}{end}", time / 3, time % 10u64.pow(digits))
            };
            // With many bytes behind it a line is taken as a plain one, near the end of the text it is not.
            for line in times.iter().map(line) {
                let alone = format!("#!MLF!#\n\"u\"\n{line}.\n");
                let far = format!("{alone}{}", "\n".repeat(100));
                prop_assert_eq!(scan(alone.as_bytes(), &rules, 1000), scan(far.as_bytes(), &rules, 1000));
            }
        }

        #[test]
        fn any_bytes_give_entries_or_a_reason(
            text in "[#!MLF\"*/u1. \t\r\nsila0-9+-]{0,60}", data: Vec<u8>, is_compatible: bool, version in 1u8..3,
        ) {
            let text = format!("#!MLF!#\n{text}");
            let found = scan(text.as_bytes(), &rules(is_compatible), 16);
            prop_assert_eq!(found.at.len(), found.key_ends.len());
            let found = scan_binary(&[b"MLF", &[version, 0][..], &data].concat(), 100);
            prop_assert_eq!(found.at.len(), found.run_ends.len());
        }
    }
}
