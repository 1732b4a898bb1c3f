//! The index: which sequences a text has, and where.

use super::{Mode, Read, ends_name, word_size};
use cntkio_simd::{Kernel, digits};
use memchr::{memchr, memmem, memrchr};
use rayon::prelude::*;
use std::ops::Range;

/// The sequences that start in a block of whole lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Lines before the first id, which continue what came before the block; only those that count.
    pub head_lines: u32,
    /// The id of each sequence; empty in line mode.
    pub keys: Vec<u64>,
    /// Where each sequence starts in the block.
    pub starts: Vec<u64>,
    /// Lines that count, for each sequence: all, or those that hold the defining stream.
    pub lines: Vec<u32>,
}

/// Where an id does not fit 64 bits.
#[derive(Debug, PartialEq, Eq)]
pub struct IdOverflow {
    /// The id's first digit.
    pub at: u64,
}

/// Find the sequences of a block that starts at a line's start and ends at a line's end or with the file.
///
/// Two neighbouring sequences of different blocks may have the same key: joining them is the caller's.
pub fn scan(block: &[u8], mode: Mode, defining: Option<&[u8]>) -> Result<Scan, IdOverflow> {
    let mut found = Scan::default();
    let defining = defining.map(memmem::Finder::new);
    scan_block(&mut found, block, 0, mode, defining.as_ref())?;
    Ok(found)
}

/// Bytes whose line ends are found at once.
const LINE_ENDS_OF: usize = 1 << 15;

/// As [`scan`], of a block that lies behind those that `found` is of, `before` bytes from the first one's start.
fn scan_block(
    found: &mut Scan,
    block: &[u8],
    before: u64,
    mode: Mode,
    defining: Option<&memmem::Finder>,
) -> Result<(), IdOverflow> {
    match (mode, defining) {
        (Mode::Lines, None) => scan_lines(found, block, before),
        (Mode::Ids, None) => scan_ids(found, block, before)?,
        _ => {
            let mut start = 0;
            for end in memchr::memchr_iter(b'\n', block).map(|at| at + 1).chain([block.len()]) {
                let start = std::mem::replace(&mut start, end);
                if start < end {
                    scan_line(found, before, block, start..end, mode, defining)?;
                }
            }
        }
    }
    Ok(())
}

/// Each line is a sequence, and counts.
fn scan_lines(found: &mut Scan, block: &[u8], before: u64) {
    let kernel = Kernel::selected();
    let mut line_ends = Vec::new();
    found.starts.extend((!block.is_empty()).then_some(before));
    for (number, part) in block.chunks(LINE_ENDS_OF).enumerate() {
        line_ends.clear();
        kernel.line_ends(part, &mut line_ends);
        let first = before + (number * LINE_ENDS_OF + 1) as u64;
        found.starts.extend(line_ends.iter().map(|&end| first + u64::from(end)));
    }
    // What the last line feed ends is the last line.
    if block.last() == Some(&b'\n') {
        found.starts.pop();
    }
    found.lines.resize(found.starts.len(), 1);
}

/// All lines count.
fn scan_ids(found: &mut Scan, block: &[u8], before: u64) -> Result<(), IdOverflow> {
    let kernel = Kernel::selected();
    let mut line_ends = Vec::new();
    let mut same = SameId::at(block, 0);
    if !block.is_empty() {
        scan_line(found, before, block, 0..block.len(), Mode::Ids, None)?;
    }
    for (number, part) in block.chunks(LINE_ENDS_OF).enumerate() {
        line_ends.clear();
        kernel.line_ends(part, &mut line_ends);
        let first = number * LINE_ENDS_OF + 1;
        let mut rest = &line_ends[..];
        while let Some(other) = rest.iter().position(|&end| !same.is_at(block, first + end as usize)) {
            add_lines(found, other);
            let start = first + rest[other] as usize;
            if start < block.len() {
                same = SameId::at(block, start);
                scan_line(found, before, block, start..block.len(), Mode::Ids, None)?;
            }
            rest = &rest[other + 1..];
        }
        add_lines(found, rest.len());
    }
    Ok(())
}

/// Add lines that count to the last sequence.
fn add_lines(found: &mut Scan, num_lines: usize) {
    *found.lines.last_mut().unwrap_or(&mut found.head_lines) += num_lines as u32;
}

fn scan_line(
    found: &mut Scan,
    before: u64,
    block: &[u8],
    place: Range<usize>,
    mode: Mode,
    defining: Option<&memmem::Finder>,
) -> Result<(), IdOverflow> {
    let (start, line) = (before + place.start as u64, &block[place]);
    let counts = || u32::from(defining.is_none_or(|name| holds(line, name)));
    let id = if mode == Mode::Lines { LeadingId::None } else { leading_id(line) };
    match id {
        LeadingId::Overflow => return Err(IdOverflow { at: start }),
        // Digits up to the end of the file are neither a line nor a sequence.
        LeadingId::Number(_, digits) if digits == line.len() => {}
        LeadingId::Number(key, _) if found.keys.last() != Some(&key) => {
            found.keys.push(key);
            found.starts.push(start);
            found.lines.push(counts());
        }
        LeadingId::None if mode == Mode::Lines => {
            found.starts.push(start);
            found.lines.push(counts());
        }
        LeadingId::Number(..) | LeadingId::None => add_lines(found, counts() as usize),
    }
    Ok(())
}

/// What a line starts with, as a word to compare with: most lines start like the one before.
struct SameId {
    word: u64,
    /// The id's digits and the byte behind them.
    mask: u64,
}

impl SameId {
    fn at(block: &[u8], start: usize) -> SameId {
        // Neither empty lines have an id, nor those that start with the same byte if it is not a digit.
        let empty_lines = SameId { word: u64::from_le_bytes([b'\n'; 8]), mask: !0 };
        let Some(word) = digits::word_at(block, start) else { return empty_lines };
        match digits::count(word) {
            8 => empty_lines,
            count => SameId { word, mask: u64::MAX >> (56 - 8 * count) },
        }
    }

    #[inline]
    fn is_at(&self, block: &[u8], start: usize) -> bool {
        digits::word_at(block, start).is_some_and(|word| (word ^ self.word) & self.mask == 0)
    }
}

/// Why a text cannot be indexed.
#[derive(Debug)]
pub enum Unindexed {
    /// It cannot be read.
    Unread(std::io::Error),
    /// An id does not fit 64 bits.
    Overflow(IdOverflow),
    /// A line of 4 GiB or more.
    LongLine {
        /// Its first byte.
        at: u64,
    },
}

/// Find the sequences of a text's lines that start in `part`, on all threads of the current pool. The text has `size`
/// bytes, and `first` is where its first line starts.
///
/// Each thread takes `share` bytes at a time, and reads an eighth of that at once, which is still in its cache when it
/// is looked at.
pub fn index(
    read: Read,
    first: usize,
    part: Range<usize>,
    size: usize,
    mode: Mode,
    defining: Option<&[u8]>,
    share: usize,
) -> Result<Scan, Unindexed> {
    let finder = defining.map(memmem::Finder::new);
    let num_shares = part.len().div_ceil(share);
    let scan = |buffer: &mut Vec<u8>, number: usize| {
        let begin = part.start + number * share;
        let mut lines = LineBlocks {
            read,
            at: begin,
            end: part.end.min(begin + share),
            size,
            most: share.div_ceil(8),
            longest: u32::MAX as usize,
            buffer,
        };
        let mut found = Scan::default();
        if begin > first {
            lines.skip_to_start()?;
        }
        while let Some((before, block)) = lines.next_block()? {
            scan_block(&mut found, block, before as u64, mode, finder.as_ref()).map_err(Unindexed::Overflow)?;
        }
        Ok(found)
    };
    let scans: Vec<_> = (0..num_shares).into_par_iter().map_init(Vec::new, scan).collect();
    let mut scans = scans.into_iter().collect::<Result<Vec<Scan>, _>>()?;
    let head_lines = join(&mut scans);
    fn all<'a, T: Copy + Send + Sync + 'a>(scans: &'a [Scan], column: impl Fn(&'a Scan) -> &'a [T]) -> Vec<T> {
        let mut out = Vec::new();
        cntkio_simd::append(&mut out, &scans.iter().map(column).collect::<Vec<_>>());
        out
    }
    let (keys, starts) = (all(&scans, |scan| &scan.keys[..]), all(&scans, |scan| &scan.starts[..]));
    Ok(Scan { head_lines, keys, starts, lines: all(&scans, |scan| &scan.lines[..]) })
}

/// Give lines without an id, and those of an id that goes on, to the sequence before them; those that have none are
/// counted.
fn join(scans: &mut [Scan]) -> u32 {
    let (mut owner, mut num_before) = (None, 0);
    for number in 0..scans.len() {
        let (earlier, rest) = scans.split_at_mut(number);
        let scan = &mut rest[0];
        let head_lines = std::mem::take(&mut scan.head_lines);
        match owner {
            Some(owner) => {
                let owner: &mut Scan = &mut earlier[owner];
                add_lines(owner, head_lines as usize);
                if !scan.keys.is_empty() && owner.keys.last() == scan.keys.first() {
                    add_lines(owner, scan.lines.remove(0) as usize);
                    scan.keys.remove(0);
                    scan.starts.remove(0);
                }
            }
            None => num_before += head_lines,
        }
        if !scan.starts.is_empty() {
            owner = Some(number);
        }
    }
    num_before
}

/// Blocks of the whole lines of a text that start at `at` or behind it, and before `end`.
struct LineBlocks<'a> {
    read: Read<'a>,
    at: usize,
    end: usize,
    size: usize,
    /// Bytes of a block, but for longer lines; and of a line.
    most: usize,
    longest: usize,
    buffer: &'a mut Vec<u8>,
}

impl LineBlocks<'_> {
    /// At most so many bytes from here on.
    fn read(&mut self, count: usize) -> Result<&[u8], Unindexed> {
        let count = count.min(self.size - self.at);
        if self.buffer.len() < count {
            self.buffer.resize(count, 0);
        }
        let bytes = &mut self.buffer[..count];
        (self.read)(self.at, bytes).map_err(Unindexed::Unread)?;
        Ok(bytes)
    }

    /// Go to the first line that starts here or behind.
    fn skip_to_start(&mut self) -> Result<(), Unindexed> {
        self.at -= 1; // a line starts here if the byte before is a line feed
        while self.at < self.end {
            let bytes = self.read(self.most)?;
            let (found, count) = (memchr(b'\n', bytes), bytes.len());
            self.at += found.map_or(count, |end| end + 1);
            if found.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Where the next block begins, and the block.
    fn next_block(&mut self) -> Result<Option<(usize, &[u8])>, Unindexed> {
        if self.at >= self.end {
            return Ok(None);
        }
        let (begin, left) = (self.at, self.end - self.at);
        // Of the last block the rest of its last line, too.
        let mut count = if self.most < left { self.most } else { left + self.most / 16 };
        loop {
            let (size, end) = (self.size, self.end);
            let bytes = self.read(count)?;
            let num_read = bytes.len();
            let line_end = if begin + num_read < end {
                memrchr(b'\n', bytes).map(|at| at + 1)
            } else {
                let in_last_line = left - 1;
                let line_end = memchr(b'\n', &bytes[in_last_line..]).map(|at| in_last_line + at + 1);
                line_end.or((begin + num_read == size).then_some(num_read))
            };
            if let Some(line_end) = line_end {
                self.at = begin + line_end;
                return Ok(Some((begin, &self.buffer[..line_end])));
            }
            if num_read > self.longest {
                return Err(Unindexed::LongLine { at: begin as u64 });
            }
            count = 2 * num_read;
        }
    }
}

/// The sizes of sequences that lie one behind the other, the last of them up to `end`; or the first of 4 GiB or more.
pub fn sizes(starts: &[u64], end: u64) -> Result<Vec<u32>, usize> {
    let ends = starts.iter().skip(1).chain([&end]);
    let size = |(start, end): (&u64, &u64)| end.wrapping_sub(*start);
    let mut beyond = 0;
    let sizes = starts.iter().zip(ends.clone()).map(size).inspect(|size| beyond |= size >> 32).map(|size| size as u32);
    let sizes = sizes.collect();
    if beyond == 0 {
        return Ok(sizes);
    }
    Err(starts.iter().zip(ends).map(size).position(|size| size >> 32 != 0).unwrap_or_default())
}

/// The sequences that start in a block of whole lines, by words.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WordScan {
    /// Lines before the first word, which continue what came before the block; only those that count.
    pub head_lines: u32,
    /// All words, one after the other.
    pub words: Vec<u8>,
    /// Where each sequence's word ends.
    pub word_ends: Vec<usize>,
    /// Where each sequence starts in the block.
    pub starts: Vec<u64>,
    /// Lines that count, for each sequence.
    pub lines: Vec<u32>,
}

/// As [`scan`], for files whose ids are words: lines with the same word in front, or none, are a sequence.
pub fn scan_words(block: &[u8], defining: Option<&[u8]>) -> WordScan {
    let mut found = WordScan::default();
    let defining = defining.map(|name| memmem::Finder::new(name).into_owned());
    let mut last: Option<&[u8]> = None;
    let mut start = 0;
    while start < block.len() {
        let end = memchr(b'\n', &block[start..]).map_or(block.len(), |at| start + at + 1);
        let line = &block[start..end];
        let counts = u32::from(defining.as_ref().is_none_or(|name| holds(line, name)));
        let word = &line[..word_size(line)];
        if word.is_empty() || last == Some(word) {
            *found.lines.last_mut().unwrap_or(&mut found.head_lines) += counts;
        } else if word.len() < line.len() {
            found.words.extend_from_slice(word);
            found.word_ends.push(found.words.len());
            found.starts.push(start as u64);
            found.lines.push(counts);
            last = Some(word);
        }
        start = end;
    }
    found
}

enum LeadingId {
    None,
    /// The number and how many digits it has.
    Number(u64, usize),
    Overflow,
}

fn leading_id(line: &[u8]) -> LeadingId {
    let mut key = 0u64;
    let mut digits = 0;
    for byte in line {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        key = match key.checked_mul(10).and_then(|key| key.checked_add(u64::from(digit))) {
            Some(key) => key,
            None => return LeadingId::Overflow,
        };
        digits += 1;
    }
    if digits == 0 { LeadingId::None } else { LeadingId::Number(key, digits) }
}

/// Whether a line holds a pipe, the name, and behind it the line's end or a byte that ends names.
/// A search in the text: inside a comment it counts too.
fn holds(line: &[u8], name: &memmem::Finder) -> bool {
    let length = name.needle().len();
    name.find_iter(line)
        .any(|at| at > 0 && line[at - 1] == b'|' && line.get(at + length).is_none_or(|&byte| ends_name(byte)))
}

/// Group sequences into chunks of at most `limit` bytes, counted from a chunk's first to behind its last sequence.
///
/// Returns the first sequence of each chunk and, last, the number of sequences. A sequence is never cut.
pub fn chunk_starts(starts: &[u64], sizes: &[u32], limit: u64) -> Vec<i64> {
    let mut chunks = Vec::new();
    let (mut chunk_start, mut chunk_end) = (0u64, 0u64);
    for (sequence, (&start, &size)) in starts.iter().zip(sizes).enumerate() {
        let size = u64::from(size);
        if sequence == 0 || (chunk_end - chunk_start).saturating_add(size) > limit {
            chunks.push(sequence as i64);
            chunk_start = start;
        }
        chunk_end = start.saturating_add(size);
    }
    chunks.push(starts.len().min(sizes.len()) as i64);
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_told_and_no_shorter_one() {
        let text = b"|a 1\n|a 2 3 4 5 6 7 8 9\n|a 1\n";
        let read = |at: usize, buffer: &mut [u8]| {
            buffer.copy_from_slice(&text[at..at + buffer.len()]);
            Ok(())
        };
        let blocks = |longest| {
            let (end, size, mut buffer) = (text.len(), text.len(), Vec::new());
            let mut blocks = LineBlocks { read: &read, at: 0, end, size, most: 5, longest, buffer: &mut buffer };
            let mut starts = vec![];
            loop {
                match blocks.next_block() {
                    Ok(Some((begin, _))) => starts.push(begin),
                    Ok(None) => return (starts, None),
                    Err(Unindexed::LongLine { at }) => return (starts, Some(at)),
                    Err(other) => panic!("{other:?}"),
                }
            }
        };
        assert_eq!(blocks(20), (vec![0, 5, 24], None));
        assert_eq!(blocks(9), (vec![0], Some(5)));
    }
}
