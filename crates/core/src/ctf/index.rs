//! The index: which sequences a text has, where they start, and how many lines they have.
//!
//! The scan looks at line ends and leading ids, and at the name of the stream that defines the size of sequences, if
//! there is such a stream. It looks at nothing else.

use super::ids::{LeadingId, LineStart, leading_id, size_of_digits, size_of_word};
use super::nothing::is_nothing;
use super::{Mode, ends_name};
use crate::memory;
use crate::text::{Text, Unread};
use cntkio_simd::Kernel;
use memchr::{memchr, memmem};
use rayon::prelude::*;
use std::ops::Range;

/// The sequences that start in a block of whole lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Lines that count before the first id: they continue a sequence of the text before the block.
    pub head_lines: u32,
    /// The id of each sequence; empty in line mode.
    pub keys: Vec<u64>,
    /// Offset at which each sequence starts, in the block or in the text that has the block.
    pub starts: Vec<u64>,
    /// Lines that count, for each sequence: all lines, or the lines that hold the defining stream.
    pub lines: Vec<u32>,
    /// Starts of the sequences whose first line is blank or contains only comments, unless a stream defines sizes.
    pub hollow: Vec<u64>,
}

impl Scan {
    /// Add lines that count to the last sequence.
    fn add_lines(&mut self, num_lines: usize) {
        *self.lines.last_mut().unwrap_or(&mut self.head_lines) += num_lines as u32;
    }

    /// Remove the last sequence: its start.
    pub(super) fn pop(&mut self) -> Option<u64> {
        self.keys.pop();
        self.lines.pop();
        self.starts.pop()
    }
}

/// An id that does not fit 64 bits.
#[derive(Debug, PartialEq, Eq)]
pub struct IdOverflow {
    /// Offset of the id's first digit.
    pub at: u64,
}

/// Find the sequences of a block of whole lines.
///
/// Two neighbouring sequences of different blocks may have the same key. The caller joins them.
pub fn scan(block: &[u8], mode: Mode, defining: Option<&[u8]>) -> Result<Scan, IdOverflow> {
    let mut found = Scan::default();
    Scanner::new(mode, defining).scan(&mut found, block, 0)?;
    Ok(found)
}

/// Bytes in which line ends are found at once: the positions stay in the cache.
const LINE_ENDS_BYTES: usize = 1 << 15;

struct Scanner<'a> {
    mode: Mode,
    defining: Option<memmem::Finder<'a>>,
}

impl Scanner<'_> {
    fn new(mode: Mode, defining: Option<&[u8]>) -> Scanner<'_> {
        Scanner { mode, defining: defining.map(memmem::Finder::new) }
    }

    /// Append the sequences of a block that starts at `offset`.
    fn scan(&self, found: &mut Scan, block: &[u8], offset: u64) -> Result<(), IdOverflow> {
        match (self.mode, &self.defining) {
            (Mode::Lines, None) => scan_lines(found, block, offset),
            (Mode::Ids, None) => self.scan_ids(found, block, offset)?,
            _ => {
                let mut start = 0;
                for end in memchr::memchr_iter(b'\n', block).map(|feed| feed + 1).chain([block.len()]) {
                    let start = std::mem::replace(&mut start, end);
                    if start < end {
                        self.scan_line(found, offset, block, start..end)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Lines with the same id are a sequence, and all lines count.
    fn scan_ids(&self, found: &mut Scan, block: &[u8], offset: u64) -> Result<(), IdOverflow> {
        let kernel = Kernel::selected();
        let mut line_ends = Vec::new();
        let mut last_id = LineStart::at(block, 0);
        if !block.is_empty() {
            self.scan_line(found, offset, block, 0..block.len())?;
        }
        for (number, part) in block.chunks(LINE_ENDS_BYTES).enumerate() {
            line_ends.clear();
            memory::reserve(&mut line_ends, part.len() + 64);
            kernel.line_ends(part, &mut line_ends);
            let first = number * LINE_ENDS_BYTES + 1;
            let mut rest = &line_ends[..];
            while let Some(other) = rest.iter().position(|&end| !last_id.is_at(block, first + end as usize)) {
                found.add_lines(other);
                let start = first + rest[other] as usize;
                if start < block.len() {
                    last_id = LineStart::at(block, start);
                    self.scan_line(found, offset, block, start..block.len())?;
                }
                rest = &rest[other + 1..];
            }
            found.add_lines(rest.len());
        }
        Ok(())
    }

    /// Add one line, or the line at the start of a range if all lines count.
    fn scan_line(&self, found: &mut Scan, offset: u64, block: &[u8], range: Range<usize>) -> Result<(), IdOverflow> {
        let (start, line) = (offset + range.start as u64, &block[range]);
        let counts = || u32::from(self.defining.as_ref().is_none_or(|name| holds(line, name)));
        let id = if self.mode == Mode::Lines { LeadingId::None } else { leading_id(line) };
        match id {
            LeadingId::Overflow => return Err(IdOverflow { at: start }),
            // Digits up to the end of the file are neither a line nor a sequence.
            LeadingId::Number(_, num_digits) if num_digits == line.len() => {}
            LeadingId::Number(key, num_digits) if found.keys.last() != Some(&key) => {
                if self.defining.is_none() && is_nothing(line, num_digits) {
                    memory::push(&mut found.hollow, start);
                }
                memory::push(&mut found.keys, key);
                memory::push(&mut found.starts, start);
                memory::push(&mut found.lines, counts());
            }
            LeadingId::None if self.mode == Mode::Lines => {
                memory::push(&mut found.starts, start);
                memory::push(&mut found.lines, counts());
            }
            LeadingId::Number(..) | LeadingId::None => found.add_lines(counts() as usize),
        }
        Ok(())
    }
}

/// Each line is a sequence, and all lines count.
fn scan_lines(found: &mut Scan, block: &[u8], offset: u64) {
    let kernel = Kernel::selected();
    let mut line_ends = Vec::new();
    let first_new = found.starts.len();
    found.starts.extend((!block.is_empty()).then_some(offset));
    for (number, part) in block.chunks(LINE_ENDS_BYTES).enumerate() {
        line_ends.clear();
        memory::reserve(&mut line_ends, part.len() + 64);
        kernel.line_ends(part, &mut line_ends);
        let first = offset + (number * LINE_ENDS_BYTES + 1) as u64;
        memory::extend(&mut found.starts, line_ends.iter().map(|&end| first + u64::from(end)));
    }
    // No line starts after the last line feed.
    if block.last() == Some(&b'\n') {
        found.starts.pop();
    }
    // Most lines begin with the pipe of a sample.
    for &start in &found.starts[first_new..] {
        let line = &block[(start - offset) as usize..];
        if (line[0] != b'|' || line.get(1) == Some(&b'#')) && is_nothing(line, size_of_digits(line)) {
            memory::push(&mut found.hollow, start);
        }
    }
    memory::resize(&mut found.lines, found.starts.len(), 1);
}

/// True if a line holds a pipe and the name, followed by the line's end or a byte that ends names.
///
/// This is a search in the text, so a name inside a comment counts, too.
fn holds(line: &[u8], name: &memmem::Finder) -> bool {
    let length = name.needle().len();
    name.find_iter(line)
        .any(|at| at > 0 && line[at - 1] == b'|' && line.get(at + length).is_none_or(|&byte| ends_name(byte)))
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

impl From<Unread> for Unindexed {
    fn from(unread: Unread) -> Unindexed {
        match unread {
            Unread::Failed(error) => Unindexed::Unread(error),
            Unread::LongLine(at) => Unindexed::LongLine { at: at as u64 },
        }
    }
}

/// Find the sequences of a text's lines that start in `range`, on all threads of the current pool. The first line of
/// the text starts at `first`.
///
/// Each thread takes `share_bytes` at a time. It reads an eighth of its share at once, which is still in the cache when
/// it is scanned.
pub fn index(
    text: Text,
    first: usize,
    range: Range<usize>,
    mode: Mode,
    defining: Option<&[u8]>,
    share_bytes: usize,
) -> Result<Scan, Unindexed> {
    let scanner = Scanner::new(mode, defining);
    let scan_share = |number: usize| {
        let begin = range.start + number * share_bytes;
        let mut blocks = text.blocks(begin..range.end.min(begin + share_bytes), share_bytes.div_ceil(8));
        if begin > first {
            blocks = blocks.skip_to_line_start()?;
        }
        let mut found = Scan::default();
        while let Some((offset, block)) = blocks.next_block()? {
            scanner.scan(&mut found, block, offset as u64).map_err(Unindexed::Overflow)?;
        }
        Ok(found)
    };
    let num_shares = range.len().div_ceil(share_bytes);
    let scans: Vec<Result<Scan, Unindexed>> = (0..num_shares).into_par_iter().map(scan_share).collect();
    let mut scans = scans.into_iter().collect::<Result<Vec<Scan>, _>>()?;
    let head_lines = join(&mut scans);
    // Each column is freed before the next column is joined, so that only one column is in memory twice.
    fn all<T: Copy + Send + Sync>(scans: &mut [Scan], column: impl Fn(&mut Scan) -> &mut Vec<T>) -> Vec<T> {
        let columns: Vec<Vec<T>> = scans.iter_mut().map(|scan| std::mem::take(column(scan))).collect();
        let columns: Vec<&[T]> = columns.iter().map(|column| &column[..]).collect();
        let mut out = Vec::new();
        memory::reserve(&mut out, columns.iter().map(|column| column.len()).sum());
        cntkio_memory::copy::append(&mut out, &columns);
        out
    }
    let hollow = all(&mut scans, |scan| &mut scan.hollow);
    let lines = all(&mut scans, |scan| &mut scan.lines);
    let starts = all(&mut scans, |scan| &mut scan.starts);
    let keys = all(&mut scans, |scan| &mut scan.keys);
    Ok(Scan { head_lines, keys, starts, lines, hollow })
}

/// Join the sequences that shares have in common: lines without an id, and lines with the id of the sequence before,
/// belong to that sequence. Returns the number of lines before the first sequence.
fn join(scans: &mut [Scan]) -> u32 {
    let (mut last, mut num_before) = (None, 0);
    for number in 0..scans.len() {
        let (earlier, rest) = scans.split_at_mut(number);
        let scan = &mut rest[0];
        let head_lines = std::mem::take(&mut scan.head_lines);
        match last {
            Some(last) => {
                let last: &mut Scan = &mut earlier[last];
                last.add_lines(head_lines as usize);
                if !scan.keys.is_empty() && last.keys.last() == scan.keys.first() {
                    last.add_lines(scan.lines.remove(0) as usize);
                    scan.keys.remove(0);
                    let start = scan.starts.remove(0);
                    scan.hollow.retain(|&hollow| hollow != start);
                }
            }
            None => num_before += head_lines,
        }
        if !scan.starts.is_empty() {
            last = Some(number);
        }
    }
    num_before
}

/// The sizes in bytes of adjacent sequences, the last of which ends at `end`.
///
/// # Errors
/// The number of the first sequence of 4 GiB or more.
pub fn sizes(starts: &[u64], end: u64) -> Result<Vec<u32>, usize> {
    let ends = starts.iter().skip(1).chain([&end]);
    let size = |(start, end): (&u64, &u64)| end.wrapping_sub(*start);
    let mut beyond = 0;
    let mut sizes = Vec::new();
    memory::reserve(&mut sizes, starts.len());
    sizes
        .extend(starts.iter().zip(ends.clone()).map(size).inspect(|size| beyond |= size >> 32).map(|size| size as u32));
    if beyond == 0 {
        return Ok(sizes);
    }
    Err(starts.iter().zip(ends).map(size).position(|size| size >> 32 != 0).unwrap_or_default())
}

/// The sequences that start in a block of whole lines whose ids are words.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WordScan {
    /// Lines that count before the first word: they continue a sequence of the text before the block.
    pub head_lines: u32,
    /// The words of all sequences, concatenated.
    pub words: Vec<u8>,
    /// End of each sequence's word in `words`.
    pub word_ends: Vec<usize>,
    /// Offset in the block at which each sequence starts.
    pub starts: Vec<u64>,
    /// Lines that count, for each sequence.
    pub lines: Vec<u32>,
}

/// A NUL byte in a word, at this offset in the block. Keys are kept in arrays, which do not show whether a key ends
/// with NUL bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct NulInWord(pub usize);

/// [`scan`] for files whose ids are words: lines with the same word in front, or none, are a sequence.
pub fn scan_words(block: &[u8], defining: Option<&[u8]>) -> Result<WordScan, NulInWord> {
    let mut found = WordScan::default();
    let defining = defining.map(memmem::Finder::new);
    let mut last: Option<&[u8]> = None;
    let mut start = 0;
    while start < block.len() {
        let end = memchr(b'\n', &block[start..]).map_or(block.len(), |feed| start + feed + 1);
        let line = &block[start..end];
        let counts = u32::from(defining.as_ref().is_none_or(|name| holds(line, name)));
        let word = &line[..size_of_word(line)];
        if word.is_empty() || last == Some(word) {
            *found.lines.last_mut().unwrap_or(&mut found.head_lines) += counts;
        } else if word.len() < line.len() {
            if let Some(nul) = memchr(0, word) {
                return Err(NulInWord(start + nul));
            }
            memory::append(&mut found.words, word);
            memory::push(&mut found.word_ends, found.words.len());
            memory::push(&mut found.starts, start as u64);
            memory::push(&mut found.lines, counts);
            last = Some(word);
        }
        start = end;
    }
    Ok(found)
}

/// The places of the sequences of each chunk in the text.
#[derive(Debug, PartialEq, Eq)]
pub struct Places {
    /// First byte of each chunk's first sequence.
    pub chunk_begins: Vec<u64>,
    /// The end of each chunk's last sequence.
    pub chunk_ends: Vec<u64>,
    /// Start of each sequence, from the first byte of its chunk on; empty if one does not fit 32 bits.
    pub starts: Vec<u32>,
    /// True if each sequence ends where the next one of its chunk starts.
    pub has_no_gaps: bool,
}

/// The places of sequences, from their offsets in the file and the chunks of [`chunk_starts`].
#[must_use]
pub fn places(offsets: &[u64], sizes: &[u32], chunk_starts: &[i64]) -> Places {
    let chunks = || chunk_starts.par_windows(2).map(|pair| pair[0] as usize..pair[1] as usize);
    let end = |sequence: usize| offsets[sequence] + u64::from(sizes[sequence]);
    let chunk_begins = memory::collected(chunk_starts.windows(2).map(|pair| offsets[pair[0] as usize]));
    let chunk_ends = memory::collected(chunk_starts.windows(2).map(|pair| end(pair[1] as usize - 1)));
    let has_no_gaps = chunks().all(|chunk| (chunk.start + 1..chunk.end).all(|next| end(next - 1) == offsets[next]));
    let is_small = chunks().all(|chunk| offsets[chunk.end - 1] - offsets[chunk.start] <= u64::from(u32::MAX));
    let mut starts = Vec::new();
    memory::resize(&mut starts, if is_small { offsets.len() } else { 0 }, 0);
    if is_small {
        let mut rest = &mut starts[..];
        let parts: Vec<(&mut [u32], Range<usize>)> = memory::collected(chunk_starts.windows(2).map(|pair| {
            let chunk = pair[0] as usize..pair[1] as usize;
            let (part, others) = std::mem::take(&mut rest).split_at_mut(chunk.len());
            rest = others;
            (part, chunk)
        }));
        parts.into_par_iter().for_each(|(part, chunk)| {
            let begin = offsets[chunk.start];
            part.iter_mut().zip(&offsets[chunk]).for_each(|(start, offset)| *start = (offset - begin) as u32);
        });
    }
    Places { chunk_begins, chunk_ends, starts, has_no_gaps }
}

/// Group sequences into chunks of at most `limit` bytes, counted from the start of a chunk's first sequence to the end
/// of its last.
///
/// Returns the first sequence of each chunk and, last, the number of sequences. A sequence is never cut.
pub fn chunk_starts(starts: &[u64], sizes: &[u32], limit: u64) -> Vec<i64> {
    let mut chunks = Vec::new();
    let (mut chunk_start, mut chunk_end) = (0u64, 0u64);
    for (sequence, (&start, &size)) in starts.iter().zip(sizes).enumerate() {
        let size = u64::from(size);
        if sequence == 0 || (chunk_end - chunk_start).saturating_add(size) > limit {
            memory::push(&mut chunks, sequence as i64);
            chunk_start = start;
        }
        chunk_end = start.saturating_add(size);
    }
    chunks.push(starts.len().min(sizes.len()) as i64);
    chunks
}
