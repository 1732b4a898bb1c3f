//! The index: which sequences a text has, where they start, and how many lines they have.
//!
//! The scan looks at line ends and leading ids, and at the name of the stream that defines the size of sequences, if
//! there is such a stream. It looks at nothing else.

use super::ids::{LeadingId, LineStart, leading_id, size_of_digits, size_of_word};
use super::nothing::is_nothing;
use super::{Extent, Mode, ends_name};
use crate::htk::LONGEST_KEY;
use crate::memory;
use crate::parallel;
use crate::text::{Blocks, Text, Unread};
use cntkio_simd::Kernel;
use memchr::{memchr, memmem};
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
        // Fewer than 2^32 lines start in a share of a text or in a piece of a chunk, so the count fits.
        *self.lines.last_mut().unwrap_or(&mut self.head_lines) += num_lines as u32;
    }

    /// The places of the sequences in the text, whose block starts at `offset`. The last sequence ends at `end` of the
    /// block.
    pub fn extents(&self, offset: usize, end: usize) -> Vec<Extent> {
        let ends = self.starts.iter().skip(1).map(|&start| start as usize).chain([end]);
        let mut extents = memory::with_room(self.starts.len());
        extents.extend(std::iter::zip(&self.starts, ends).zip(&self.lines).map(|((&start, end), &length)| Extent {
            start: offset + start as usize,
            end: offset + end,
            length,
        }));
        extents
    }

    /// Remove the last sequence: its start.
    pub(super) fn pop(&mut self) -> Option<u64> {
        self.keys.pop();
        self.lines.pop();
        self.starts.pop()
    }
}

/// An id that does not fit 64 bits, or a line without an id in a text where each line has one.
#[derive(Debug, PartialEq, Eq)]
pub struct BadId {
    /// Offset of the line.
    pub at: u64,
}

/// Find the sequences of a block of whole lines.
///
/// Two neighbouring sequences of different blocks may have the same key. The caller joins them.
pub fn scan(block: &[u8], mode: Mode, defining: Option<&[u8]>) -> Result<Scan, BadId> {
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
        // The search for the name is prepared once for all lines.
        Scanner { mode, defining: defining.map(memmem::Finder::new) }
    }

    /// Append the sequences of a block that starts at `offset`.
    fn scan(&self, found: &mut Scan, block: &[u8], offset: u64) -> Result<(), BadId> {
        match (self.mode, &self.defining) {
            (Mode::Lines, None) => scan_lines(found, block, offset),
            (Mode::Ids, None) => self.scan_ids(found, block, offset)?,
            // If a stream defines the size, only a search in the whole line shows whether the line counts.
            _ => {
                let mut start = 0;
                // The last line may lack its line feed. If it has one, the last range is empty.
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
    fn scan_ids(&self, found: &mut Scan, block: &[u8], offset: u64) -> Result<(), BadId> {
        let kernel = Kernel::selected();
        let mut line_ends = Vec::new();
        let mut last_id = LineStart::at(block, 0);
        // All lines count here, so `scan_line` looks only at the start of its range and needs no end of the line.
        if !block.is_empty() {
            self.scan_line(found, offset, block, 0..block.len())?;
        }
        for (number, part) in block.chunks(LINE_ENDS_BYTES).enumerate() {
            find_all(kernel, b'\n', part, &mut line_ends);
            let first = number * LINE_ENDS_BYTES + 1;
            let mut rest = &line_ends[..];
            // Most lines have the id of the line before. A single comparison shows this, so their ids are not read.
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
    fn scan_line(&self, found: &mut Scan, offset: u64, block: &[u8], range: Range<usize>) -> Result<(), BadId> {
        let (start, line) = (offset + range.start as u64, &block[range]);
        let counts = || u32::from(self.defining.as_ref().is_none_or(|name| holds(line, name)));
        // Digits mean nothing in line mode, so an id beyond 64 bits is not a fault there.
        let id = if self.mode == Mode::Lines { LeadingId::None } else { leading_id(line) };
        match id {
            LeadingId::Overflow => return Err(BadId { at: start }),
            // Digits up to the end of the file are neither a line nor a sequence.
            LeadingId::Number(_, num_digits) if num_digits == line.len() => {}
            // Only the line before is compared: as in CNTK, an id that comes back later begins another sequence with
            // the same key.
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

/// Replace `places` by the positions of every `wanted` byte in a part of a text.
pub(super) fn find_all(kernel: Kernel, wanted: u8, part: &[u8], places: &mut Vec<u32>) {
    places.clear();
    // Kernels also request memory, for a little more than one position for each byte, but there a refused request would
    // end the process.
    memory::reserve(places, part.len() + 64);
    kernel.find_all(wanted, part, places);
}

/// Each line is a sequence, and all lines count.
fn scan_lines(found: &mut Scan, block: &[u8], offset: u64) {
    let kernel = Kernel::selected();
    let mut line_ends = Vec::new();
    let first_new = found.starts.len();
    found.starts.extend((!block.is_empty()).then_some(offset));
    for (number, part) in block.chunks(LINE_ENDS_BYTES).enumerate() {
        find_all(kernel, b'\n', part, &mut line_ends);
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
    /// An id does not fit 64 bits, or is missing.
    BadId(BadId),
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
/// Two neighbouring sequences of different shares may have the same key. The caller joins them. Each thread takes
/// `share_bytes` at a time. It reads an eighth of its share at once, which is still in the cache when it is scanned.
pub fn index(
    text: Text,
    first: usize,
    range: Range<usize>,
    mode: Mode,
    defining: Option<&[u8]>,
    share_bytes: usize,
) -> Result<Vec<Share>, Unindexed> {
    let scanner = Scanner::new(mode, defining);
    in_shares(text, first, range, share_bytes, |mut blocks| {
        let mut found = Scan::default();
        while let Some((offset, block)) = blocks.next_block()? {
            scanner.scan(&mut found, block, offset as u64).map_err(Unindexed::BadId)?;
        }
        Ok(found.into())
    })
}

/// Scan a range of a text in shares; see [`index`].
pub(super) fn in_shares<T: Send>(
    text: Text,
    first: usize,
    range: Range<usize>,
    share_bytes: usize,
    scan: impl Fn(Blocks) -> Result<T, Unindexed> + Sync,
) -> Result<Vec<T>, Unindexed> {
    let scan_share = |number: usize| {
        let begin = range.start + number * share_bytes;
        let blocks = text.blocks(begin..range.end.min(begin + share_bytes), share_bytes.div_ceil(8));
        // The byte before the first line may belong to a byte order mark, so only later shares look for a line feed
        // there.
        scan(if begin > first { blocks.skip_to_line_start()? } else { blocks })
    };
    let num_shares = range.len().div_ceil(share_bytes);
    parallel::map(num_shares, scan_share).into_iter().collect()
}

/// Numbers in as few bytes as they take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column {
    /// All are the same number.
    Same(u32),
    /// Numbers below 2^8.
    Bytes(Vec<u8>),
    /// Numbers below 2^16.
    Shorts(Vec<u16>),
    /// Numbers below 2^32.
    Words(Vec<u32>),
    /// Any numbers.
    Longs(Vec<u64>),
}

/// The sequences that start in a share of a text, in as few bytes as they take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Lines that count before the first id: they continue a sequence of the text before the share.
    pub head_lines: u32,
    /// The id of each sequence; empty in line mode.
    pub keys: Column,
    /// Offset of the first sequence.
    pub begin: u64,
    /// Offset at which each sequence starts, counted from `begin`.
    pub starts: Vec<u32>,
    /// Lines that count, for each sequence.
    pub lines: Column,
    /// Starts of the sequences whose first line is blank or contains only comments, counted from `begin`.
    pub hollow: Vec<u32>,
}

impl From<Scan> for Share {
    /// The starts of the scan are less than 4 GiB apart.
    fn from(scan: Scan) -> Share {
        let begin = scan.starts.first().copied().unwrap_or_default();
        // Each list of the scan is freed before the next one is copied.
        let hollow = memory::collected(scan.hollow.into_iter().map(|start| (start - begin) as u32));
        let starts = memory::collected(scan.starts.into_iter().map(|start| (start - begin) as u32));
        let largest = scan.keys.iter().max().copied().unwrap_or_default();
        let keys = match u32::try_from(largest) {
            Ok(_) => Column::Words(memory::collected(scan.keys.iter().map(|&key| key as u32))),
            Err(_) => Column::Longs(memory::collected(scan.keys.iter().copied())),
        };
        let lines = scan.lines.iter();
        // Without a sequence, `least` stays above `most`.
        let (least, most) = lines.clone().fold((u32::MAX, 0), |(least, most), &line| (least.min(line), most.max(line)));
        let lines = match most {
            _ if least >= most => Column::Same(most),
            0..=0xff => Column::Bytes(memory::collected(lines.map(|&line| line as u8))),
            0x100..=0xffff => Column::Shorts(memory::collected(lines.map(|&line| line as u16))),
            _ => Column::Words(memory::collected(lines.copied())),
        };
        Share { head_lines: scan.head_lines, keys, begin, starts, lines, hollow }
    }
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

/// A word that cannot be a key.
#[derive(Debug, PartialEq, Eq)]
pub enum BadWord {
    /// It has a NUL byte, at this offset in the block. Keys are kept in arrays, which do not show whether a key ends
    /// with NUL bytes.
    Nul(usize),
    /// It has more than [`LONGEST_KEY`] bytes, and begins at this offset in the block. All keys take as many bytes as
    /// the longest, so one long word could take all memory.
    Long(usize),
}

/// [`scan`] for files whose ids are words: lines with the same word in front, or none, are a sequence.
pub fn scan_words(block: &[u8], defining: Option<&[u8]>) -> Result<WordScan, BadWord> {
    let mut found = WordScan::default();
    let defining = defining.map(memmem::Finder::new);
    let mut last: Option<&[u8]> = None;
    let mut start = 0;
    while start < block.len() {
        let end = memchr(b'\n', &block[start..]).map_or(block.len(), |feed| start + feed + 1);
        let line = &block[start..end];
        let counts = u32::from(defining.as_ref().is_none_or(|name| holds(line, name)));
        let word = &line[..size_of_word(line)];
        if word.len() == line.len() {
            // A word up to the end of the file is neither a line nor a sequence, as digits are not.
        } else if word.is_empty() || last == Some(word) {
            *found.lines.last_mut().unwrap_or(&mut found.head_lines) += counts;
        } else {
            if let Some(nul) = memchr(0, word) {
                return Err(BadWord::Nul(start + nul));
            }
            if word.len() > LONGEST_KEY {
                return Err(BadWord::Long(start));
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

/// Chunks that begin in a part of a text.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Begun {
    /// The first sequence of each chunk, counted in the part.
    pub firsts: Vec<i64>,
    /// First byte of each chunk.
    pub begins: Vec<u64>,
    /// End of each chunk that ends before one of these: the last of the parts before may be the first that ends.
    pub ends: Vec<u64>,
}

/// The chunk that the next sequence may belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// Its first byte.
    pub begin: u64,
    /// The end of its last sequence.
    pub end: u64,
}

/// Group the sequences of a part of a text into chunks of at most `limit` bytes, counted from the start of a chunk's
/// first sequence to the end of its last. A sequence is never cut.
///
/// `starts` count from `begin`, and then from the first byte of their chunk; the caller chooses a type that fits. If it
/// does not fit, the sequence begins another chunk, so that no start is ever wrong. Without sizes, each sequence ends
/// where the next one starts, the last at `end`.
pub fn place<T: Copy + Into<u64> + TryFrom<u64>>(
    begin: u64,
    starts: &mut [T],
    sizes: Option<&[u32]>,
    end: u64,
    limit: u64,
    open: &mut Option<Open>,
) -> Begun {
    let mut begun = Begun::default();
    for sequence in 0..starts.len() {
        let start = begin + starts[sequence].into();
        let end = match sizes {
            Some(sizes) => start + u64::from(sizes.get(sequence).copied().unwrap_or_default()),
            None => starts.get(sequence + 1).map_or(end, |&next| begin + next.into()),
        };
        // As in CNTK, text that was left out inside the chunk counts, but not the text directly before this sequence.
        let chunk = match *open {
            Some(chunk)
                if (chunk.end - chunk.begin).saturating_add(end - start) <= limit
                    && T::try_from(start - chunk.begin).is_ok() =>
            {
                Open { end, ..chunk }
            }
            chunk => {
                chunk.iter().for_each(|chunk| memory::push(&mut begun.ends, chunk.end));
                memory::push(&mut begun.firsts, sequence as i64);
                memory::push(&mut begun.begins, start);
                Open { begin: start, end }
            }
        };
        *open = Some(chunk);
        // The conversion always succeeds: it was tested above, or the sequence begins the chunk and its start is 0.
        if let Ok(start) = T::try_from(start - chunk.begin) {
            starts[sequence] = start;
        }
    }
    begun
}
