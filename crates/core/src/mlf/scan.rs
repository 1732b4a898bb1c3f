//! The scan of a text: it is divided into shares, and each share's lines are grouped into entries.

use super::Rules;
use super::entry::{Entry, Key};
use super::labels::{Labels, Remark, Stop};
use super::row::{Row, plain_rows};
use crate::htk::LONGEST_KEY;
use crate::keys::cut_extension;
use crate::lines::Lines;
use crate::parallel;
use crate::text::{Text, in_memory};
use memchr::memmem;
use std::io;

/// A scan of a text in shares, on all threads of the current pool.
///
/// A share has the entries that begin after the first end of an entry in its bytes, so each share can be read
/// independently. The results of the last shares are put together while the next shares are scanned.
pub struct Scan<'a> {
    text: Text<'a>,
    rules: &'a Rules,
    share_bytes: usize,
    next_share: usize,
    all: Labels,
    /// The results of the last shares.
    last: Vec<Labels>,
}

/// Shares that are scanned between two pauses.
const SHARES_AT_ONCE: usize = 16;
/// Bytes of a share: text, rows and columns stay in the cache.
pub const SHARE_BYTES: usize = 1 << 19;
/// Bytes that are read after a share, to find the end of its last entry.
const AFTER_SHARE_BYTES: usize = 1 << 14;

impl<'a> Scan<'a> {
    /// A scan at the start of a text.
    pub fn new(text: Text<'a>, rules: &'a Rules, share_bytes: usize) -> Scan<'a> {
        // The number of shares is a quotient by this size, so it must not be 0.
        let share_bytes = share_bytes.max(1);
        Scan { text, rules, share_bytes, next_share: 0, all: Labels::default(), last: Vec::new() }
    }

    /// Scan the next shares. Returns whether further shares follow.
    ///
    /// # Errors
    /// The text cannot be read.
    pub fn advance(&mut self) -> io::Result<bool> {
        let num_shares = self.text.size.div_ceil(self.share_bytes);
        let (first, end) = (self.next_share, num_shares.min(self.next_share + SHARES_AT_ONCE));
        let (last, all) = (std::mem::take(&mut self.last), &mut self.all);
        let put_together = || {
            let is_first = all.at.is_empty();
            last.into_iter().for_each(|labels| all.append(labels));
            if is_first && !all.at.is_empty() {
                // Make room for all entries, estimated from the first shares: growing step by step would cost more.
                all.expect(self.text.size as f64 / (first * self.share_bytes) as f64);
            }
        };
        let (text, share_bytes, rules) = (self.text, self.share_bytes, self.rules);
        let scan = |share| scan_share(text, (first + share) * share_bytes, share_bytes, rules);
        let (_, scanned) = rayon::join(put_together, || parallel::map(end - first, scan));
        self.last = scanned.into_iter().collect::<io::Result<_>>()?;
        self.next_share = end;
        // A stop ends the scan, so further shares would be read for nothing.
        Ok(end < num_shares && self.last.iter().all(|labels| labels.stop.is_none()))
    }

    /// All entries.
    pub fn finish(mut self) -> Labels {
        self.last.into_iter().for_each(|labels| self.all.append(labels));
        // An empty text has no share that could report this.
        if self.text.size == 0 {
            self.all.stop = Some((Stop::NoHeader, 0));
        }
        self.all
    }
}

/// Scan the share that begins at `first`.
fn scan_share(text: Text, first: usize, share_bytes: usize, rules: &Rules) -> io::Result<Labels> {
    let share_end = first.saturating_add(share_bytes).min(text.size);
    let mut bytes = Vec::new();
    text.append_to(&mut bytes, first, share_end.saturating_add(AFTER_SHARE_BYTES) - first)?;
    let begin = if first == 0 { Some(0) } else { next_end(&bytes, 0, share_end - first) };
    // A share without an end of an entry has only text that an earlier share reads.
    let Some(begin) = begin else { return Ok(Labels::default()) };
    let mut end = None;
    let mut from = share_end - first;
    while share_end < text.size && end.is_none() {
        let size = bytes.len();
        end = next_end(&bytes, from, size);
        if first + size == text.size {
            break;
        }
        if end.is_none() {
            // The end of the entry may be divided by the end of the bytes so far.
            from = from.max(size.saturating_sub(LONGEST_DOT_BYTES));
            // The bytes double each time, so the time for a long entry grows with its size alone.
            text.append_to(&mut bytes, first + size, size)?;
        }
    }
    let end = end.unwrap_or(bytes.len());
    Ok(scan_entries(&bytes[begin..end], (first + begin) as u64, first + end == text.size, rules))
}

/// Bytes of the longest end of an entry: line feed, dot, carriage return, line feed.
const LONGEST_DOT_BYTES: usize = 4;

/// The end of the first entry whose last line, a dot, starts after a line feed in `from .. until`.
fn next_end(text: &[u8], from: usize, until: usize) -> Option<usize> {
    let dots = memmem::find_iter(&text[from..], b"\n.").map(|feed| from + feed).take_while(|&feed| feed < until);
    // A longer line that begins with a dot, such as `.5 1 a`, is not the end of an entry.
    dots.filter_map(|feed| Some(feed + 2 + line_end(&text[feed + 2..])?)).next()
}

/// Number of bytes of the line end at the start of a text.
fn line_end(text: &[u8]) -> Option<usize> {
    match text {
        [b'\n', ..] => Some(1),
        [b'\r', b'\n', ..] => Some(2),
        _ => None,
    }
}

/// Read the entries of a text in memory.
pub fn scan(text: &[u8], rules: &Rules, share_bytes: usize) -> Labels {
    let read = in_memory(text);
    let mut scan = Scan::new(Text { size: text.len(), read: &read }, rules, share_bytes);
    while scan.advance().is_ok_and(|has_more| has_more) {}
    scan.finish()
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Read the entries of a share. The text begins at `first` of the whole text.
fn scan_entries(text: &[u8], first: u64, is_last: bool, rules: &Rules) -> Labels {
    let mut share = Share { rules, labels: Labels::default(), rows: Vec::new(), entry: None, needs_header: first == 0 };
    // Most rows take about 16 bytes.
    share.labels.starts.reserve(text.len() / 16);
    share.labels.classes.reserve(text.len() / 16);
    // CNTK refuses a text with a byte order mark, because its first line is not the header.
    let has_mark = first == 0 && !rules.is_compatible && text.starts_with(BYTE_ORDER_MARK);
    let mut next = if has_mark { BYTE_ORDER_MARK.len() } else { 0 };
    loop {
        if let (Some(entry), Some(classes)) = (&mut share.entry, &rules.classes) {
            let rows_end = plain_rows(text, next, first, classes, rules.dim, &mut share.rows);
            if rows_end > next {
                // `Entry::row` does not see these rows.
                entry.last_row = share.rows.last().map(|row| (row.at, true));
                next = rows_end;
            }
        }
        let Some((at, line)) = text.get(next..).and_then(|rest| Lines::new(rest).next()) else { break };
        let at = first + (next + at) as u64;
        next += line.len() + 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // In CNTK, a dot with a blank after it is a row.
        let line = if rules.is_compatible { line } else { line.trim_ascii_end() };
        // A text that was appended to others may begin with the mark.
        let line = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| !rules.is_compatible).unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        if let Err(stop) = share.line(line, at) {
            share.labels.stop = Some(stop);
            return share.labels;
        }
    }
    // A text of empty lines has no line that could be refused.
    if share.needs_header && is_last {
        share.labels.stop = Some((Stop::NoHeader, first));
    }
    if let (true, Some(entry)) = (is_last, share.entry) {
        share.labels.remark(Remark::CutOff, entry.begin);
    }
    share.labels
}

/// A share that is being read.
struct Share<'a> {
    rules: &'a Rules,
    labels: Labels,
    /// The rows of the entry.
    rows: Vec<Row>,
    /// The entry that was begun; `None` between entries.
    entry: Option<Entry<'a>>,
    needs_header: bool,
}

impl<'a> Share<'a> {
    /// Read a line that is not empty. `Err` ends the scan.
    fn line(&mut self, line: &'a [u8], at: u64) -> Result<(), (Stop, u64)> {
        match &mut self.entry {
            None => self.line_between_entries(line, at),
            Some(entry) if line != b"." => {
                entry.row(line, at, self.rules, &mut self.rows);
                Ok(())
            }
            Some(_) => match self.entry.take() {
                Some(entry) => entry.end(&self.rows, self.rules, &mut self.labels),
                None => Ok(()),
            },
        }
    }

    fn line_between_entries(&mut self, line: &'a [u8], at: u64) -> Result<(), (Stop, u64)> {
        if line == b"#!MLF!#" {
            self.needs_header = false;
            return Ok(());
        }
        if self.needs_header {
            return Err((Stop::NoHeader, at));
        }
        if line == b"." {
            self.labels.remark(Remark::Empty, at);
            return Ok(());
        }
        let key = key_of(line, self.rules.is_compatible);
        match key {
            None => self.labels.remark(Remark::Unquoted, at),
            // All keys are padded to the width of the longest, so a damaged key must not become that width.
            Some(key) if key.text.len() > LONGEST_KEY => return Err((Stop::LongKey, at)),
            Some(key) if !self.rules.is_compatible && key.text.iter().any(|byte| matches!(byte, b'*' | b'?')) => {
                self.labels.remark(Remark::Pattern, at);
            }
            Some(_) => {}
        }
        // An entry without a usable key is read as well, because its rows would otherwise be taken for keys.
        self.entry = Some(Entry::new(at, key));
        self.rows.clear();
        Ok(())
    }
}

/// The key in a line of quotes.
fn key_of(line: &[u8], is_compatible: bool) -> Option<Key<'_>> {
    // CNTK removes blanks only at the end of a key line.
    let line = if is_compatible { line.trim_ascii_end() } else { line.trim_ascii() };
    // As in CNTK, a key line has at least three bytes, so an empty key is not a key.
    let is_quoted = line.len() >= 3 && line[0] == b'"' && line[line.len() - 1] == b'"';
    let key = is_quoted.then(|| &line[1..line.len() - 1])?;
    let after_star = key.strip_prefix(b"*/");
    let text = cut_extension(after_star.unwrap_or(key), !is_compatible);
    Some(Key { text, is_pattern: after_star.is_some() && !is_compatible })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mlf::{Fault, Numbers, Unit, label_names, scan_binary};
    use proptest::prelude::*;
    use std::time::{Duration, Instant};

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
    fn the_unit_is_found_entry_by_entry() {
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
        assert_eq!(labels.is_pattern, [true, false, false]);
    }

    #[test]
    fn a_row_of_99_999_counts_time() {
        for (end, is_compatible, num_frames) in
            [(99_998, false, 99_998), (99_998, true, 99_998), (99_999, false, 1), (99_999, true, 1)]
        {
            let text = format!("#!MLF!#\n\"u\"\n0 {end} sil\n.\n");
            let labels = scan(text.as_bytes(), &rules(is_compatible), 1);
            assert_eq!((labels.frames, labels.faults), (vec![num_frames], vec![0]), "{end} {is_compatible}");
        }
    }

    #[test]
    fn a_fault_is_stored_with_its_entry_and_offset() {
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
    fn skipped_lines_and_entries_are_remarked() {
        let labels = read("#!MLF!#\nu\n0 1 sil\n.\n\"v\"\n.\n\"*/a*\"\n0 1 aa\n.\n\"w\"\n0 1 aa\n");
        let counts: Vec<u64> = labels.remarks.iter().map(|(count, _)| *count).collect();
        assert_eq!((counts, labels.at.len()), (vec![1, 1, 1, 1], 1));
        assert_eq!(read("").stop, Some((Stop::NoHeader, 0)));
        assert_eq!(read("\n\"u\"\n").stop, Some((Stop::NoHeader, 1)));
    }

    #[test]
    fn labels_are_found_in_rows_alone() {
        let text = b"#!MLF!#\n\"u v w\"\n0 1 b 3\r\n 1\t2  'a\\040c' x\n2 3\n.\n-1 1 b";
        let read = in_memory(text);
        let names = label_names(Text { size: text.len(), read: &read }).unwrap();
        assert_eq!(names, [b"a c".to_vec(), b"b".to_vec()]);
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

    #[test]
    fn the_time_of_a_broken_entry_does_not_grow_with_the_entries_before() {
        // A look at all runs before each broken entry would take minutes.
        let entry = |frames: u32, runs: &[[u16; 2]]| {
            let count = (runs.len() as u16).to_le_bytes();
            let halves: Vec<u8> = runs.as_flattened().iter().flat_map(|half| half.to_le_bytes()).collect();
            [&b"\x01\0u"[..], &frames.to_le_bytes(), &count, &halves].concat()
        };
        let far = [[1, 65_535], [2, 65_535], [1, 1]];
        let sound = [entry(65_535, &[[1, 1]; 65_535]).repeat(100), entry(131_071, &far)].concat();
        let broken = [entry(7, &far), entry(7, &[])].concat().repeat(50_000);
        let data = [&b"MLF\x02\0"[..], &sound, &broken].concat();
        let begin = Instant::now();
        let labels = scan_binary(&data, 3);
        assert!(begin.elapsed() < Duration::from_secs(60));
        let wrong = Fault::WrongSum as u8;
        assert_eq!((labels.stop, &labels.faults[99..103]), (None, &[0, 0, wrong, wrong][..]));
        assert_eq!(labels.starts.part(100 * 65_535..labels.starts.len())[..4], [0, 65_535, 131_070, 0]);
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
            // A line is read as a plain line if many bytes follow it, and otherwise not.
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
