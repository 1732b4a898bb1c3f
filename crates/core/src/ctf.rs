//! The CNTK text format: the index scan and the parser. (docs/formats/ctf.md)
//!
//! Passes over a file's bytes, all pure functions:
//!
//! * [`scan`] cuts a block of whole lines into sequences by their ids (or by lines) and counts the lines. It looks
//!   at nothing else, but for the name of the stream that defines the size, where there is one.
//! * [`parse`] turns the bytes of sequences into a [`Block`] of columns, one for each stream, and notes what it had
//!   to forgive or to stop at. It allocates nothing for a sequence, a sample or a value but their place in a column.
//! * [`infer`] tells which streams there are and what they look like, for those who do not know.
//!
//! The law: no byte outside the given slice decides anything, no input makes either panic, and every fault has a
//! position. What a fault means, which number of them is too many and how to word it are Python's.

use crate::chunk::{Block, Chunk, Column, Pool, Samples, Values, expect};
use crate::number::{self, Element};
use crate::small::Small;
use cntkio_simd::{Kernel, LineForm, MAX_NUMBERS, SparseColumn, SparseForm, digits};
use memchr::{memchr, memchr2, memmem, memrchr};
use rayon::prelude::*;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

// ---------------------------------------------------------------------------------------------------- index

/// How a file's sequences are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each line is a sequence.
    Lines,
    /// Lines with the same number in front, or none, are a sequence.
    Ids,
}

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

/// Bytes of the word at the start of a line: up to white space. A pipe that follows at once belongs to it.
fn word_size(line: &[u8]) -> usize {
    line.iter().position(|byte| byte.is_ascii_whitespace() || *byte == 0x0B).unwrap_or(line.len())
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

// --------------------------------------------------------------------------------------------------- parser

/// What a stream of the file is: its name there and its form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// The name in the file (the alias).
    pub name: Vec<u8>,
    /// Whether samples are lists of `index:value`.
    pub is_sparse: bool,
    /// Values a sample, or the bound of its indices; at most 2^31 - 1.
    pub dim: usize,
    /// Whether values are stored in double precision.
    pub is_double: bool,
}

/// What the parser knows of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    /// The streams; columns come out in this order.
    pub streams: Vec<Stream>,
    /// The stream whose samples alone are counted against a sequence's lines.
    pub defining: Option<usize>,
    /// Whether ids are words.
    pub has_words: bool,
    /// Whether columns of small whole numbers are made [`Small`].
    pub is_compact: bool,
}

/// Where a sequence lies in the bytes, and how many samples it was counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: usize,
    /// Behind the last byte.
    pub end: usize,
    /// Lines that count.
    pub length: u32,
}

/// What was met in the text. The first `NUM_ERRORS` cost one error each, the others are worth a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A byte that cannot stand in a number.
    BadNumber,
    /// No digits where an index should be.
    BadIndex,
    /// An index at or above the dimension.
    IndexOutOfRange,
    /// No colon behind an index.
    MissingColon,
    /// A dense sample with more values than its dimension.
    TooManyValues,
    /// A printable byte where a sample should start.
    Junk,
    /// A pipe without a name behind it.
    PipeWithoutName,
    /// The data end inside a name.
    NameAtEnd,
    /// The data end where the first value should be.
    EmptyAtEnd,
    /// A line without a sample.
    LineWithoutSample,
    /// A stream without a sample in a sequence.
    MissingStream,
    /// More samples than lines.
    TooManySamples,
    /// Fewer samples than lines.
    TooFewSamples,
    /// A byte above 0x7F ended a sample's values.
    HighByte,
    /// A dense sample was filled up with zeros.
    ShortSample,
}

/// Kinds that cost an error.
pub const NUM_ERRORS: usize = 13;
/// All kinds.
pub const NUM_KINDS: usize = 15;
/// How many findings of a kind are kept in full.
pub const MOST_IN_FULL: usize = 10;

/// One thing met in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// Position in the bytes.
    pub at: usize,
    /// The sequence, as a number in the list that was given.
    pub sequence: usize,
    /// The stream, where one is concerned.
    pub stream: Option<usize>,
    /// What was counted or read: values, samples, an index.
    pub found: u64,
}

/// All that was met in a piece of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// How many of each kind.
    pub counts: [u64; NUM_KINDS],
    /// The first [`MOST_IN_FULL`] of each kind, in the order of the text.
    pub first: Vec<Finding>,
    /// The error that found the budget empty; parsing stopped there.
    pub last_straw: Option<Finding>,
    budget: u64,
    is_strict: bool,
}

impl Findings {
    /// Nothing yet, and `budget` errors to forgive; if `is_strict`, what is worth a warning costs an error too.
    pub fn new(budget: u64, is_strict: bool) -> Findings {
        Findings { counts: [0; NUM_KINDS], first: Vec::new(), last_straw: None, budget, is_strict }
    }

    /// Errors so far.
    pub fn num_errors(&self) -> u64 {
        self.counts[..if self.is_strict { NUM_KINDS } else { NUM_ERRORS }].iter().sum()
    }

    /// Note a finding; `Err` if the budget is empty.
    #[cold]
    fn note(&mut self, finding: Finding) -> Result<(), Stop> {
        let kind = finding.kind as usize;
        self.counts[kind] += 1;
        if self.counts[kind] <= MOST_IN_FULL as u64 {
            self.first.push(finding);
        }
        if kind < NUM_ERRORS || self.is_strict {
            if self.budget == 0 {
                self.last_straw = Some(finding);
                return Err(Stop);
            }
            self.budget -= 1;
        }
        Ok(())
    }

    /// Take up the findings of the text behind, whose sequences are numbered from `first_sequence`.
    fn append(&mut self, behind: &Findings, first_sequence: usize) {
        let renumbered = |finding: &Finding| Finding { sequence: finding.sequence + first_sequence, ..*finding };
        for finding in &behind.first {
            if self.first.iter().filter(|earlier| earlier.kind == finding.kind).count() < MOST_IN_FULL {
                self.first.push(renumbered(finding));
            }
        }
        for (count, more) in self.counts.iter_mut().zip(behind.counts) {
            *count += more;
        }
        self.budget = self.budget.saturating_sub(behind.num_errors());
        self.last_straw = behind.last_straw.as_ref().map(renumbered);
    }
}

/// The budget is spent.
#[derive(Debug)]
struct Stop;

/// The text that sequences lie in.
#[derive(Clone, Copy)]
pub enum Text<'a> {
    /// All of it in memory.
    Here(&'a [u8]),
    /// To be read: a function that fills a buffer from a position on.
    Read(Read<'a>),
}

/// How a chunk's text is cut, in bytes, at the ends of sequences.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// What one thread parses into one block.
    pub piece: usize,
    /// What is read at once, and parsed while it is in the cache.
    pub part: usize,
}

/// Parse the sequences' bytes into a chunk, on all threads of the current pool if there is more than one piece.
///
/// The result is that of one piece, whatever the number of threads: a piece whose errors the pieces before it left
/// no budget for is parsed again with what they left, and so stops where a single parser would have stopped.
///
/// # Errors
/// The text cannot be read.
pub fn parse_chunk(
    text: Text,
    sequences: &[Extent],
    schema: &Schema,
    budget: u64,
    is_strict: bool,
    cut: Cut,
    pool: Option<&Arc<Pool>>,
) -> std::io::Result<(Chunk, Findings)> {
    let pieces: Vec<&[Extent]> = in_pieces(sequences, cut.piece).collect();
    let parse_piece = |piece: &[Extent], budget| {
        let mut findings = Findings::new(budget, is_strict);
        let spare = pool.and_then(|pool| pool.take());
        parse_piece(text, piece, schema, &mut findings, cut.part, spare).map(|block| (block, findings))
    };
    // A single piece is not handed to another thread, which takes as long as some lines.
    let parsed: Vec<_> = match pieces[..] {
        [piece] => vec![parse_piece(piece, budget)],
        _ => pieces.par_iter().map(|piece| parse_piece(piece, budget)).collect(),
    };
    let mut all = Findings::new(budget, is_strict);
    let mut blocks = Vec::with_capacity(pieces.len());
    let mut first_sequence = 0;
    for (piece, parsed) in pieces.iter().zip(parsed) {
        let (mut block, mut findings) = parsed?;
        if findings.num_errors() > all.budget {
            (block, findings) = parse_piece(piece, all.budget)?;
        }
        all.append(&findings, first_sequence);
        first_sequence += piece.len();
        blocks.push(block);
        if all.last_straw.is_some() {
            break;
        }
    }
    let chunk = Chunk::new(blocks);
    Ok((if let Some(pool) = pool { chunk.of_pool(Arc::clone(pool)) } else { chunk }, all))
}

// ----------------------------------------------------------------------------- index and parser in one pass

/// A function that fills a buffer from a position of the text on.
type Read<'a> = &'a (dyn Fn(usize, &mut [u8]) -> std::io::Result<()> + Sync);

/// How far before and behind a position a sequence's start is looked for, at first and at last.
const LOOK_AROUND: [usize; 2] = [1 << 15, 1 << 19];

/// The last sequence that starts at `at` or before, in text of `size` bytes whose first sequence starts at `first`;
/// `None` if the text around does not tell.
fn last_start(read: Read, first: usize, at: usize, size: usize, mode: Mode) -> std::io::Result<Option<usize>> {
    for around in LOOK_AROUND {
        let begin = at.saturating_sub(around).max(first);
        let mut bytes = vec![0; at.saturating_add(around).min(size) - begin];
        read(begin, &mut bytes)?;
        let is_first = begin == first;
        let from = if is_first { Some(0) } else { memchr(b'\n', &bytes).map(|at| at + 1) };
        let to = if begin + bytes.len() == size { Some(bytes.len()) } else { memrchr(b'\n', &bytes).map(|at| at + 1) };
        let (Some(from), Some(to)) = (from, to) else { continue };
        if from >= to || begin + to <= at {
            continue;
        }
        let Ok(scan) = scan(&bytes[from..to], mode, None) else { return Ok(None) };
        // What the first lines belong to may have begun before.
        let num_unsure = usize::from(mode == Mode::Ids && !is_first);
        let starts = scan.starts.iter().skip(num_unsure).map(|&start| begin + from + start as usize);
        if let Some(start) = starts.take_while(|&start| start <= at).last() {
            return Ok(Some(start));
        }
    }
    Ok(None)
}

/// Where the chunks of a text begin and, last, where they end, as [`chunk_starts`] would cut it if all sequences were
/// kept; up to the first that the text around its end does not tell.
///
/// # Errors
/// The text cannot be read.
pub fn chunk_borders(read: Read, first: usize, size: usize, limit: usize, mode: Mode) -> std::io::Result<Vec<usize>> {
    let mut borders = vec![first];
    let mut start = first;
    while start < size {
        let end = start.saturating_add(limit);
        let border = if end >= size { Some(size) } else { last_start(read, start, end, size, mode)? };
        let Some(border) = border.filter(|&border| border > start) else { break };
        borders.push(border);
        start = border;
    }
    Ok(borders)
}

/// Chunks for each thread from which on none is cut into pieces.
const MANY_CHUNKS: usize = 4;

/// A chunk that was indexed and parsed in one pass: its sequences, found in pieces that start at these positions, and
/// what is in them.
pub type IndexedChunk = (Vec<(usize, Scan)>, Chunk);

/// Index and parse the chunks between some borders of a text, each in up to `num_pieces`, on all threads of the current
/// pool.
///
/// `None` for a chunk in which anything was met that is worth a word: what [`scan`] and [`parse_chunk`] say of it
/// counts.
///
/// # Errors
/// The text cannot be read.
pub fn index_chunks(
    read: Read,
    borders: &[usize],
    mode: Mode,
    schema: &Schema,
    num_pieces: usize,
    part_size: usize,
    pool: Option<&Arc<Pool>>,
) -> std::io::Result<Vec<Option<IndexedChunk>>> {
    // Many chunks keep all threads busy as they are, and large columns are cheaper than small ones.
    let num_pieces = if borders.len() > MANY_CHUNKS * num_pieces { 1 } else { num_pieces };
    let mut pieces = Vec::new();
    for (chunk, border) in borders.windows(2).enumerate() {
        let (mut begin, end) = (border[0], border[1]);
        let num_pieces = num_pieces.min((end - begin) / part_size + 1).max((end - begin) / MOST_PIECE_BYTES + 1);
        for piece in 1..num_pieces {
            let middle = border[0] + (end - border[0]) / num_pieces * piece;
            if let Some(cut) = last_start(read, begin, middle, end, mode)?.filter(|&cut| cut > begin) {
                pieces.push((chunk, begin, cut));
                begin = cut;
            }
        }
        pieces.push((chunk, begin, end));
    }
    let index = |&(_, begin, end): &(usize, usize, usize)| {
        index_piece(read, begin, end, mode, schema, part_size, pool.and_then(|pool| pool.take()))
    };
    let indexed = pieces.par_iter().map(index).collect::<std::io::Result<Vec<_>>>()?;
    let mut made: Vec<Option<(Vec<_>, Vec<_>)>> = borders.windows(2).map(|_| Some(Default::default())).collect();
    for ((chunk, begin, _), indexed) in pieces.into_iter().zip(indexed) {
        match (&mut made[chunk], indexed) {
            (Some((scans, blocks)), Some((scan, block))) => {
                scans.push((begin, scan));
                blocks.push(block);
            }
            (sound, _) => *sound = None,
        }
    }
    let chunk = |blocks| {
        let chunk = Chunk::new(blocks);
        if let Some(pool) = pool { chunk.of_pool(Arc::clone(pool)) } else { chunk }
    };
    Ok(made.into_iter().map(|made| made.map(|(scans, blocks)| (scans, chunk(blocks)))).collect())
}

/// Index and parse the text from a sequence's start to another's; `None` if anything was met that is worth a word.
fn index_piece(
    read: Read,
    begin: usize,
    end: usize,
    mode: Mode,
    schema: &Schema,
    part_size: usize,
    spare: Option<Block>,
) -> std::io::Result<Option<(Scan, Block)>> {
    if end - begin > MOST_PIECE_BYTES.saturating_mul(2) {
        return Ok(None); // no sequence's start was found where it could be cut
    }
    let mut findings = Findings::new(0, true);
    let mut builders = builders(schema, 0, spare);
    let mut all = Scan::default();
    let mut buffer = Vec::new();
    let (mut at, mut wanted) = (begin, part_size);
    while at < end {
        let size = wanted.min(end - at);
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        let bytes = &mut buffer[..size];
        read(at, bytes)?;
        let is_last = at + size == end;
        let num_whole = if is_last { size } else { memrchr(b'\n', bytes).map_or(0, |at| at + 1) };
        let Ok(mut found) = scan(&bytes[..num_whole], mode, None) else { return Ok(None) };
        let mut part_end = num_whole;
        if mode == Mode::Ids && !is_last {
            // The last sequence may go on.
            part_end = found.starts.pop().unwrap_or(0) as usize;
            found.keys.pop();
            found.lines.pop();
        }
        if found.head_lines > 0 || (is_last && found.starts.is_empty()) {
            return Ok(None);
        }
        if found.starts.is_empty() {
            wanted = wanted.saturating_mul(2);
            continue;
        }
        let ends = found.starts.iter().skip(1).map(|&start| start as usize).chain([part_end]);
        let extents: Vec<Extent> = std::iter::zip(&found.starts, ends)
            .zip(&found.lines)
            .map(|((&start, end), &length)| Extent { start: at + start as usize, end: at + end, length })
            .collect();
        let parsed = Parser::new(bytes, at, schema, &mut builders, &mut findings).sequences(&extents, all.starts.len());
        if parsed.is_err() {
            return Ok(None);
        }
        let ratio = (end - begin) as f64 / part_end as f64;
        builders.iter_mut().for_each(|builder| builder.end_part(schema.is_compact, ratio));
        all.keys.append(&mut found.keys);
        all.starts.extend(found.starts.iter().map(|start| (at - begin) as u64 + start));
        all.lines.append(&mut found.lines);
        if at == begin {
            expect(&mut all.keys, ratio);
            expect(&mut all.starts, ratio);
            expect(&mut all.lines, ratio);
        }
        at += part_end;
        wanted = part_size;
    }
    let num_sequences = all.starts.len();
    Ok(Some((all, finish(num_sequences, builders))))
}

// -------------------------------------------------------------------------------------------------- pieces

/// The most bytes of a piece with several sequences. A block counts its samples and entries in 32 bits, and each takes
/// more than one byte of text.
const MOST_PIECE_BYTES: usize = u32::MAX as usize;

/// Cut sequences into pieces of about `size` bytes, each of at least one sequence.
fn in_pieces(sequences: &[Extent], size: usize) -> impl Iterator<Item = &[Extent]> {
    let size = size.min(MOST_PIECE_BYTES);
    let mut rest = sequences;
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let count = rest.iter().take_while(|extent| extent.end.saturating_sub(first.start) <= size).count().max(1);
        let (piece, behind) = rest.split_at(count);
        rest = behind;
        Some(piece)
    })
}

/// Parse the sequences' bytes into a block. Extents that do not lie in `bytes` are taken as far as they do.
///
/// If `findings` has a last straw afterwards, the block holds the sequences before it and is of no use.
pub fn parse(bytes: &[u8], sequences: &[Extent], schema: &Schema, findings: &mut Findings) -> Block {
    parse_with(Kernel::selected(), bytes, sequences, schema, findings)
}

/// The same with a certain kernel, which changes nothing but time.
pub fn parse_with(
    kernel: Kernel,
    bytes: &[u8],
    sequences: &[Extent],
    schema: &Schema,
    findings: &mut Findings,
) -> Block {
    let mut builders = builders(schema, sequences.len(), None);
    let mut parser = Parser { kernel, ..Parser::new(bytes, 0, schema, &mut builders, findings) };
    // What stopped it is the last straw among the findings.
    let _ = parser.sequences(sequences, 0);
    finish(sequences.len(), builders)
}

fn parse_piece(
    text: Text,
    sequences: &[Extent],
    schema: &Schema,
    findings: &mut Findings,
    part_size: usize,
    spare: Option<Block>,
) -> std::io::Result<Block> {
    let mut builders = builders(schema, sequences.len(), spare);
    let read = match text {
        Text::Here(bytes) => {
            let mut parser = Parser::new(bytes, 0, schema, &mut builders, findings);
            let _ = parser.sequences(sequences, 0);
            builders.iter_mut().for_each(|builder| builder.end_part(schema.is_compact, 1.0));
            return Ok(finish(sequences.len(), builders));
        }
        Text::Read(read) => read,
    };
    let first_byte = sequences.first().map_or(0, |first| first.start);
    let last_byte = sequences.last().map_or(0, |last| last.end);
    let mut buffer = Vec::new();
    let mut number = 0;
    for part in in_pieces(sequences, part_size) {
        let (begin, end) = (part[0].start, part[part.len() - 1].end);
        let size = end.saturating_sub(begin);
        if buffer.len() < size {
            buffer.resize(size.max(part_size), 0);
        }
        let bytes = &mut buffer[..size];
        read(begin, bytes)?;
        if Parser::new(bytes, begin, schema, &mut builders, findings).sequences(part, number).is_err() {
            break;
        }
        let ratio = (last_byte - first_byte) as f64 / size.max(1) as f64;
        builders.iter_mut().for_each(|builder| builder.end_part(schema.is_compact, ratio));
        number += part.len();
    }
    Ok(finish(sequences.len(), builders))
}

fn builders(schema: &Schema, num_sequences: usize, spare: Option<Block>) -> Vec<Builder> {
    let spare = spare.map(|block| block.columns).filter(|columns| columns.len() == schema.streams.len());
    let mut columns = spare.into_iter().flatten();
    schema.streams.iter().map(|stream| Builder::new(stream, num_sequences, columns.next())).collect()
}

fn finish(num_sequences: usize, builders: Vec<Builder>) -> Block {
    Block { num_sequences, columns: builders.into_iter().map(Builder::finish).collect() }
}

/// A column in the making, part by part of the text.
struct Builder {
    /// All sequence offsets; the samples of this part, or of all parts if they are not made small.
    column: Column,
    num_samples: u32,
    /// The parts before, while all of them are small.
    small: Option<Small>,
    /// Samples of those parts.
    num_small: u32,
    is_first_part: bool,
    /// Memory to be used for what is made small.
    spare: Option<Small>,
    /// Whether the last sample that was read on the long way had one entry.
    is_one_hot: bool,
}

impl Builder {
    /// An empty column, in the memory of a spare one where there is one of the same form.
    fn new(stream: &Stream, num_sequences: usize, spare: Option<Column>) -> Builder {
        let (mut sequence_offsets, samples, spare) = match spare {
            Some(Column { sequence_offsets, samples: Samples::Small(small) }) => (sequence_offsets, None, Some(small)),
            Some(Column { sequence_offsets, samples }) => (sequence_offsets, emptied(stream, samples), None),
            None => (Vec::new(), None, None),
        };
        let samples = samples.unwrap_or_else(|| {
            let values = if stream.is_double { Values::F64(Vec::new()) } else { Values::F32(Vec::new()) };
            if stream.is_sparse {
                Samples::Sparse { dim: stream.dim, sample_offsets: vec![0], indices: Vec::new(), values }
            } else {
                Samples::Dense { dim: stream.dim, values }
            }
        });
        sequence_offsets.clear();
        sequence_offsets.reserve(num_sequences + 1);
        sequence_offsets.push(0);
        let column = Column { sequence_offsets, samples };
        Builder { column, num_samples: 0, small: None, num_small: 0, is_first_part: true, spare, is_one_hot: false }
    }

    /// End a part of the text, of which there are `ratio` in all: make its samples small, if those before are.
    fn end_part(&mut self, is_compact: bool, ratio: f64) {
        let is_first = std::mem::take(&mut self.is_first_part);
        let are_small = match &mut self.small {
            Some(small) => small.append(&self.column.samples),
            None if is_first && is_compact => {
                self.small = Small::of(&self.column.samples, self.spare.take());
                self.small.is_some()
            }
            None => false,
        };
        if are_small {
            self.num_small = self.num_samples;
            clear(&mut self.column.samples);
        } else if let Some(small) = self.small.take() {
            small.widen_before(&mut self.column.samples, self.num_small as usize);
            self.num_small = 0;
        }
        if is_first {
            // What the rest will take, going by the first part: to grow again and again would cost more than to parse.
            expect(&mut self.column.sequence_offsets, ratio);
            match &mut self.small {
                Some(small) => small.expect(ratio),
                None => self.expect(ratio),
            }
        }
    }

    fn finish(mut self) -> Column {
        if let Some(small) = self.small {
            self.column.samples = Samples::Small(small);
        }
        self.column
    }

    /// Make room for `ratio` times what there is.
    fn expect(&mut self, ratio: f64) {
        match &mut self.column.samples {
            Samples::Dense { values, .. } => values.expect(ratio),
            Samples::Sparse { sample_offsets, indices, values, .. } => {
                expect(sample_offsets, ratio);
                expect(indices, ratio);
                values.expect(ratio);
            }
            _ => {}
        }
    }

    #[inline]
    fn num_in_sequence(&self) -> u32 {
        self.num_samples - self.column.sequence_offsets[self.column.sequence_offsets.len() - 1]
    }

    fn has_entries_in_sequence(&self) -> bool {
        match &self.column.samples {
            Samples::Sparse { sample_offsets, .. } => {
                let first = self.column.sequence_offsets[self.column.sequence_offsets.len() - 1] - self.num_small;
                sample_offsets[sample_offsets.len() - 1] > sample_offsets[first as usize]
            }
            _ => self.num_in_sequence() > 0,
        }
    }

    /// Drop the last samples, which are sparse.
    fn drop_last(&mut self, num_samples: usize) {
        if let Samples::Sparse { sample_offsets, indices, values, .. } = &mut self.column.samples {
            sample_offsets.truncate(sample_offsets.len() - num_samples);
            let num_entries = sample_offsets.last().map_or(0, |&end| end as usize);
            indices.truncate(num_entries);
            match values {
                Values::F32(values) => values.truncate(num_entries),
                Values::F64(values) => values.truncate(num_entries),
            }
        }
    }

    #[inline]
    fn end_sequence(&mut self) {
        self.column.sequence_offsets.push(self.num_samples);
    }
}

/// Samples of this form without their content; `None` of another.
fn emptied(stream: &Stream, mut samples: Samples) -> Option<Samples> {
    let form = (stream.is_sparse, stream.is_double, stream.dim);
    let is_this = matches!(samples, Samples::Dense { .. } | Samples::Sparse { .. })
        && (samples.is_sparse(), samples.is_double(), samples.dim()) == form;
    clear(&mut samples);
    is_this.then_some(samples)
}

fn clear(samples: &mut Samples) {
    let values = match samples {
        Samples::Dense { values, .. } => values,
        Samples::Sparse { sample_offsets, indices, values, .. } => {
            sample_offsets.truncate(1);
            indices.clear();
            values
        }
        _ => return,
    };
    match values {
        Values::F32(values) => values.clear(),
        Values::F64(values) => values.clear(),
    }
}

/// Why a sample was dropped.
struct Fault {
    kind: Kind,
    /// Where the fault is reported.
    at: usize,
    /// Where parsing goes on.
    resume: usize,
    found: u64,
}

/// A position in the text of one sequence. `bytes` ends where the sequence ends.
struct Parser<'a> {
    kernel: Kernel,
    bytes: &'a [u8],
    /// What kernels may look at. They stop at every line feed, so that text behind one is safe to show them; it
    /// spares them the care for the end of the slice on every line.
    view: &'a [u8],
    at: usize,
    sequence: usize,
    schema: &'a Schema,
    longest_name: usize,
    names: Vec<Name>,
    /// The stream of the last sample, and for each stream the one that came behind it the last time.
    last_stream: usize,
    follows: Vec<usize>,
    builders: &'a mut [Builder],
    findings: &'a mut Findings,
    lines: KnownLines,
    sparse_lines: SparseLines,
    /// Where the text at hand begins in the whole.
    first_byte: usize,
    text: &'a [u8],
}

/// A stream's name as a word to compare with: a pipe, the name and a space.
struct Name {
    word: u128,
    /// Its bytes; no text fits a name that is too long for it.
    mask: u128,
    size: usize,
}

impl Name {
    fn new(stream: &Stream) -> Name {
        let size = stream.name.len() + 2;
        let mut bytes = [0; 16];
        match bytes.get_mut(..size) {
            Some(bytes) if !stream.name.iter().any(|&byte| ends_name(byte)) => {
                bytes[0] = b'|';
                bytes[1..size - 1].copy_from_slice(&stream.name);
                bytes[size - 1] = b' ';
            }
            _ => return Name { word: 1, mask: 0, size },
        }
        Name { word: u128::from_le_bytes(bytes), mask: u128::MAX >> (128 - 8 * size), size }
    }

    /// Whether these bytes, the first one lowest, begin with it.
    #[inline]
    fn begins(&self, head: u128) -> bool {
        head & self.mask == self.word
    }
}

/// Forms of lines that are remembered.
const MOST_FORMS: usize = 4;
/// Lines that are taken at once.
const MOST_ROWS: usize = 256;
/// So many lines more that have no known form than those that have one, and no more are tried.
const MOST_PATIENCE: usize = 16;

/// Forms of lines that were met, and what their numbers mean.
struct KnownLines {
    forms: Vec<(LineForm, Vec<LineSample>)>,
    /// The form of the last line, and for each form the one that came behind it the last time.
    last: usize,
    follows: [usize; MOST_FORMS],
    rows: Vec<[u32; MAX_NUMBERS]>,
    patience: usize,
}

impl KnownLines {
    fn new(schema: &Schema) -> KnownLines {
        let patience = if schema.has_words { 0 } else { MOST_PATIENCE };
        KnownLines { forms: Vec::new(), last: 0, follows: [0; MOST_FORMS], rows: Vec::new(), patience }
    }

    /// Read the numbers of the lines from a position on that are alike, and of a form that is known; where it ends, and
    /// the form.
    #[inline]
    fn read(&mut self, kernel: Kernel, bytes: &[u8], at: usize, end: usize) -> Option<(usize, usize)> {
        self.rows.clear();
        let mut form = self.follows[self.last];
        for _ in 0..self.forms.len() {
            let stop = kernel.lines_of_form(bytes, at, end, &self.forms[form].0, MOST_ROWS, &mut self.rows);
            if stop > at {
                self.follows[self.last] = form;
                self.last = form;
                return Some((stop, form));
            }
            form = if form + 1 == self.forms.len() { 0 } else { form + 1 };
        }
        None
    }
}

/// A sparse sample: its entries are an index and a value each, from number `first` of the line on.
struct LineSample {
    stream: usize,
    first: usize,
    num_entries: usize,
}

impl LineSample {
    /// Append the samples of lines that are alike.
    fn append(&self, builder: &mut Builder, rows: &[[u32; MAX_NUMBERS]]) {
        let Samples::Sparse { sample_offsets, indices, values, .. } = &mut builder.column.samples else {
            unreachable!("a sparse stream has a sparse column")
        };
        let first_entry = indices.len() as u32;
        // One entry a sample is by far the most frequent, and the loop without an inner one is the fastest.
        if let (1, Values::F32(values), index) = (self.num_entries, &mut *values, self.first % MAX_NUMBERS) {
            let value = (index + 1) % MAX_NUMBERS;
            indices.extend(rows.iter().map(|row| row[index] as i32));
            values.extend(rows.iter().map(|row| row[value] as f32));
        } else {
            for row in rows {
                for entry in row[self.first..self.first + 2 * self.num_entries].chunks_exact(2) {
                    indices.push(entry[0] as i32);
                    match values {
                        Values::F32(values) => values.push(entry[1] as f32),
                        Values::F64(values) => values.push(entry[1].into()),
                    }
                }
            }
        }
        let num_entries = self.num_entries as u32;
        sample_offsets.extend((1..=rows.len() as u32).map(|row| first_entry + row * num_entries));
        builder.num_samples += rows.len() as u32;
    }
}

/// What a line of this form means, if all of its samples are sparse, each with an entry at least. Gives the form the
/// dimensions as limits.
fn meaning(form: &mut LineForm, schema: &Schema) -> Option<Vec<LineSample>> {
    let mut limits = form.limits;
    let text = form.skeleton();
    let mut samples = Vec::new();
    let mut at = 0;
    let mut number = usize::from(form.has_number_before(0)); // the id
    let skip = |at: &mut usize, bytes: &[u8]| {
        let start = *at;
        while bytes.contains(&text[*at]) && (*at == start || !form.has_number_before(*at)) {
            *at += 1;
        }
        *at > start
    };
    skip(&mut at, b" \t");
    while text[at] == b'|' {
        let rest = &text[at + 1..];
        let size = rest.iter().position(|&byte| ends_name(byte))?;
        let stream = schema.streams.iter().position(|stream| stream.is_sparse && stream.name == rest[..size])?;
        if (at + 1..=at + 1 + size).any(|at| form.has_number_before(at)) {
            return None;
        }
        at += 1 + size;
        let first = number;
        while skip(&mut at, b" \t") && form.has_number_before(at) {
            if text[at] != b':' || !form.has_number_before(at + 1) {
                return None;
            }
            limits[number] = schema.streams[stream].dim as u32;
            number += 2;
            at += 1;
        }
        if number == first {
            return None;
        }
        samples.push(LineSample { stream, first, num_entries: (number - first) / 2 });
    }
    if text[at] == b'\r' {
        at += 1;
    }
    if text[at..] != *b"\n" || samples.is_empty() {
        return None;
    }
    form.limits = limits;
    Some(samples)
}

/// Bytes of lines that are taken at once where all samples are sparse.
const SPARSE_RUN: usize = 1 << 16;
/// Shorter lines than this are taken at once as [`KnownLines`].
const SHORT_LINE: usize = 64;

/// Lines of sparse samples that are alike.
struct SparseLines {
    form: Option<SparseForm>,
    line_ends: Vec<usize>,
    patience: usize,
}

impl SparseLines {
    fn new(schema: &Schema) -> SparseLines {
        let is_possible =
            !schema.has_words && schema.streams.iter().all(|stream| stream.is_sparse && !stream.is_double);
        SparseLines { form: None, line_ends: Vec::new(), patience: if is_possible { MOST_PATIENCE } else { 0 } }
    }
}

/// What lines like the first of this text have in common, if it is a long one with a sample of each stream.
fn sparse_form(text: &[u8], schema: &Schema) -> Option<SparseForm> {
    let line = &text[..=memchr(b'\n', &text[..text.len().min(SPARSE_RUN)])?];
    let line_end = if line.ends_with(b"\r\n") { &b"\r\n"[..] } else { b"\n" };
    let mut streams: Vec<(usize, &[u8], u32)> = Vec::new();
    for pipe in memchr::memchr_iter(b'|', line) {
        let rest = &line[pipe + 1..];
        let name = &rest[..rest.iter().position(|&byte| ends_name(byte))?];
        let number = schema.streams.iter().position(|stream| stream.name == name)?;
        if streams.iter().any(|&(column, ..)| column == number) {
            return None;
        }
        streams.push((number, name, schema.streams[number].dim.try_into().ok()?));
    }
    let is_whole = streams.len() == schema.streams.len() && line.len() > SHORT_LINE;
    if is_whole { SparseForm::new(line[0].is_ascii_digit(), line_end, &streams) } else { None }
}

/// How many of these sequences, at least one, lie one behind the other, up to [`SPARSE_RUN`] bytes.
fn num_adjacent(sequences: &[Extent]) -> usize {
    let first = sequences.first().map_or(0, |first| first.start);
    let is_next = |pair: &&[Extent]| pair[0].end == pair[1].start && pair[1].end.saturating_sub(first) <= SPARSE_RUN;
    1 + sequences.windows(2).take_while(is_next).count()
}

/// What became of an item.
enum Item {
    Sample,
    /// A comment, an unknown name or a fault: nothing is kept up to the next pipe or line feed.
    Nothing,
}

impl<'a> Parser<'a> {
    /// A parser of sequences in `text`, which begins at `first_byte` of the whole.
    fn new(
        text: &'a [u8],
        first_byte: usize,
        schema: &'a Schema,
        builders: &'a mut [Builder],
        findings: &'a mut Findings,
    ) -> Parser<'a> {
        Parser {
            kernel: Kernel::selected(),
            bytes: &[],
            view: &[],
            at: 0,
            sequence: 0,
            schema,
            longest_name: schema.streams.iter().map(|stream| stream.name.len()).max().unwrap_or(0),
            names: schema.streams.iter().map(Name::new).collect(),
            last_stream: schema.streams.len().saturating_sub(1),
            follows: (1..schema.streams.len()).chain([0]).collect(),
            builders,
            findings,
            lines: KnownLines::new(schema),
            sparse_lines: SparseLines::new(schema),
            first_byte,
            text,
        }
    }

    /// Parse sequences, which are numbered from `first_number`.
    fn sequences(&mut self, sequences: &[Extent], first_number: usize) -> Result<(), Stop> {
        let (text, first_byte) = (self.text, self.first_byte);
        let (mut number, mut run_end) = (0, 0);
        while let Some(extent) = sequences.get(number) {
            if self.sparse_lines.patience > 0 {
                if number >= run_end {
                    run_end = number + num_adjacent(&sequences[number..]);
                }
                let num_taken = self.sparse_sequences(&sequences[number..run_end]);
                if num_taken > 0 {
                    number += num_taken;
                    continue;
                }
            }
            let end = extent.end.saturating_sub(first_byte).min(text.len());
            self.bytes = &text[..end];
            self.at = extent.start.saturating_sub(first_byte).min(end);
            self.sequence = first_number + number;
            self.view = if self.bytes.last() == Some(&b'\n') { text } else { self.bytes };
            self.sequence(extent)?;
            number += 1;
        }
        Ok(())
    }

    /// Take the first of these sequences, which lie one behind the other, as far as their lines are those of sparse
    /// samples that are alike; how many they are.
    fn sparse_sequences(&mut self, sequences: &[Extent]) -> usize {
        let lines = &mut self.sparse_lines;
        lines.patience -= 1;
        let place = |position: usize| position.checked_sub(self.first_byte).filter(|&at| at <= self.text.len());
        let (Some(at), Some(end)) = (place(sequences[0].start), place(sequences[sequences.len() - 1].end)) else {
            return 0;
        };
        if lines.form.is_none() {
            lines.form = sparse_form(&self.text[at..], self.schema);
        }
        let Some(form) = &lines.form else { return 0 };
        lines.line_ends.clear();
        let columns = self.builders.iter_mut().map(|builder| match &mut builder.column.samples {
            Samples::Sparse { sample_offsets, indices, values: Values::F32(values), .. } => {
                SparseColumn { sample_offsets, indices, values }
            }
            _ => unreachable!("all streams are sparse, none is double"),
        });
        let mut columns: Vec<SparseColumn> = columns.collect();
        self.kernel.sparse_lines(self.text, at, end, form, &mut columns, &mut lines.line_ends);
        let (mut num_taken, mut num_lines) = (0, 0);
        for extent in sequences {
            // Each line has a sample of each stream: a sequence is sound if it ends with as many lines as were counted.
            let last_line = (num_lines + extent.length as usize).checked_sub(1);
            let line_end = last_line.and_then(|line| lines.line_ends.get(line));
            if line_end != Some(&extent.end.wrapping_sub(self.first_byte)) || extent.length == 0 {
                break;
            }
            num_lines += extent.length as usize;
            num_taken += 1;
            for builder in &mut *self.builders {
                builder.column.sequence_offsets.push(builder.num_samples + num_lines as u32);
            }
        }
        let num_behind = lines.line_ends.len() - num_lines;
        for builder in &mut *self.builders {
            builder.num_samples += num_lines as u32;
            if num_behind > 0 {
                builder.drop_last(num_behind);
            }
        }
        if num_taken > 0 {
            lines.patience = (lines.patience + 1 + num_taken).min(MOST_PATIENCE);
        } else {
            lines.form = None;
        }
        num_taken
    }

    fn note(&mut self, kind: Kind, at: usize, stream: Option<usize>, found: u64) -> Result<(), Stop> {
        self.findings.note(Finding { kind, at: self.first_byte + at, sequence: self.sequence, stream, found })
    }

    fn sequence(&mut self, extent: &Extent) -> Result<(), Stop> {
        let first_byte = self.at;
        while self.at < self.bytes.len() {
            if self.lines.patience > 0 {
                self.known_lines();
                if self.at >= self.bytes.len() {
                    break;
                }
            }
            let has_sample = self.one_hot_lines();
            if self.at >= self.bytes.len() {
                break;
            }
            let line = self.at;
            if !self.line(has_sample)? {
                self.note(Kind::LineWithoutSample, line, None, 0)?;
            }
        }
        let (mut most, mut longest) = (0, None);
        for stream in 0..self.builders.len() {
            let num_samples = self.builders[stream].num_in_sequence();
            if num_samples == 0 {
                self.note(Kind::MissingStream, first_byte, Some(stream), 0)?;
            }
            let defines_length = self.schema.defining.is_none_or(|defining| defining == stream);
            if defines_length && (num_samples > most || longest.is_none()) {
                (most, longest) = (num_samples, Some(stream));
            }
        }
        if most > extent.length {
            self.note(Kind::TooManySamples, first_byte, longest, most.into())?;
        } else if most < extent.length {
            self.note(Kind::TooFewSamples, first_byte, longest, most.into())?;
        }
        self.builders.iter_mut().for_each(Builder::end_sequence);
        Ok(())
    }

    /// Parse a line, or the rest of one that had a sample; whether it had one, or ended with the data.
    fn line(&mut self, mut has_sample: bool) -> Result<bool, Stop> {
        if !has_sample {
            self.skip_id();
        }
        while let Some(&byte) = self.bytes.get(self.at) {
            if byte == b'\n' {
                self.at += 1;
                return Ok(has_sample);
            }
            if byte <= b' ' || byte >= 0x80 {
                self.at += 1;
                continue;
            }
            let pipe = self.at;
            let item = match self.stream_at(pipe, self.last_stream) {
                Some(stream) => {
                    self.at += self.names[stream].size - 1;
                    self.last_stream = stream;
                    self.sample(pipe, stream)?
                }
                None => self.item(byte)?,
            };
            match item {
                Item::Sample => has_sample = true,
                Item::Nothing => self.skip_to_pipe_or_line_end(),
            }
        }
        Ok(true)
    }

    #[inline]
    fn skip_id(&mut self) {
        if self.schema.has_words {
            let rest = &self.bytes[self.at..];
            let word = &rest[..word_size(rest)];
            self.at += memchr(b'|', word).unwrap_or(word.len());
        } else {
            self.at += size_of_id(self.bytes, self.at);
        }
    }

    /// The stream whose name is here, between a pipe and a space: most often what came behind the `last` one before.
    #[inline(always)]
    fn stream_at(&mut self, at: usize, last: usize) -> Option<usize> {
        // A name ends before the line does, so that the view may be used where it goes on behind the sequence.
        let head = self.view.get(at..).and_then(<[u8]>::first_chunk)?;
        let head = u128::from_le_bytes(*head);
        let expected = self.follows[last];
        if self.names[expected].begins(head) {
            return Some(expected);
        }
        let stream = self.names.iter().position(|name| name.begins(head))?;
        self.follows[last] = stream;
        Some(stream)
    }

    /// Take samples of one entry each, as words and classes have, over lines of nothing else: where lines are short,
    /// the way over all cases takes most of the time. Stops at the start of a line, or behind a sample; whether behind
    /// one.
    fn one_hot_lines(&mut self) -> bool {
        let view = self.view;
        let (mut line, mut at, mut last) = (self.at, self.at, self.last_stream);
        let mut is_in_line = false;
        'lines: while line < self.bytes.len() {
            at += size_of_id(view, at);
            loop {
                let Some(stream) = self.stream_at(at, last) else { break 'lines };
                let builder = &mut self.builders[stream];
                let Samples::Sparse { dim, sample_offsets, indices, values: Values::F32(values) } =
                    &mut builder.column.samples
                else {
                    break 'lines;
                };
                let Some(entry) = one_hot_entry(view, at + self.names[stream].size) else { break 'lines };
                if !builder.is_one_hot || entry.index as usize >= *dim {
                    break 'lines;
                }
                indices.push(entry.index as i32);
                values.push(f32::from(entry.value));
                sample_offsets.push(indices.len() as u32);
                builder.num_samples += 1;
                (last, at, is_in_line) = (stream, entry.end, true);
                match entry.behind {
                    b'|' => {}
                    b'\n' => break,
                    _ => break 'lines,
                }
            }
            at += 1;
            (line, is_in_line) = (at, false);
        }
        self.last_stream = last;
        self.at = if is_in_line { at } else { line };
        is_in_line
    }

    /// Take the lines from here on that are like one of those before, and get to know the first that is not.
    fn known_lines(&mut self) {
        let lines = &mut self.lines;
        while self.at < self.bytes.len() {
            let Some((end, form)) = lines.read(self.kernel, self.view, self.at, self.bytes.len()) else { break };
            for sample in &lines.forms[form].1 {
                sample.append(&mut self.builders[sample.stream], &lines.rows);
            }
            lines.patience = (lines.patience + lines.rows.len()).min(MOST_PATIENCE);
            self.at = end;
        }
        if self.at < self.bytes.len() {
            lines.patience -= 1;
            if lines.forms.len() < MOST_FORMS
                && let Some(mut form) = self.kernel.line_form(self.view, self.at)
                && let Some(samples) = meaning(&mut form, self.schema)
                && lines.forms.iter().all(|(known, _)| *known != form)
            {
                lines.forms.push((form, samples));
            }
        }
    }

    fn skip_to_pipe_or_line_end(&mut self) {
        let rest = &self.bytes[self.at..];
        self.at += memchr2(b'|', b'\n', rest).unwrap_or(rest.len());
    }

    fn item(&mut self, byte: u8) -> Result<Item, Stop> {
        let pipe = self.at;
        if byte != b'|' {
            self.note(Kind::Junk, pipe, None, byte.into())?;
            return Ok(Item::Nothing);
        }
        self.at += 1;
        let Some(stream) = self.name(pipe)? else { return Ok(Item::Nothing) };
        self.sample(pipe, stream)
    }

    /// Read the values of a sample, whose pipe is given.
    #[inline]
    fn sample(&mut self, pipe: usize, stream: usize) -> Result<Item, Stop> {
        let is_sparse = self.schema.streams[stream].is_sparse;
        match if is_sparse { self.sparse(stream) } else { self.dense(stream) } {
            Ok(short) => {
                if let Some(num_values) = short {
                    self.note(Kind::ShortSample, pipe, Some(stream), num_values)?;
                }
                if let Some(&end) = self.bytes.get(self.at)
                    && end >= 0x80
                {
                    self.note(Kind::HighByte, self.at, Some(stream), end.into())?;
                }
                Ok(Item::Sample)
            }
            Err(fault) => {
                self.at = fault.resume;
                let at = if fault.kind == Kind::EmptyAtEnd { pipe } else { fault.at };
                self.note(fault.kind, at, Some(stream), fault.found)?;
                Ok(Item::Nothing)
            }
        }
    }

    /// Read a name: the stream that it means.
    fn name(&mut self, pipe: usize) -> Result<Option<usize>, Stop> {
        let rest = &self.bytes[self.at..];
        // Streams tend to come in the same order on every line.
        let num_streams = self.schema.streams.len();
        let mut stream = self.follows[self.last_stream];
        for _ in 0..num_streams {
            let name = &self.schema.streams[stream].name[..];
            if starts_with(rest, name) && rest.get(name.len()).is_some_and(|&byte| ends_name(byte)) {
                self.at += name.len();
                self.follows[self.last_stream] = stream;
                self.last_stream = stream;
                return Ok(Some(stream));
            }
            stream = if stream + 1 == num_streams { 0 } else { stream + 1 };
        }
        if rest.first() == Some(&b'#') {
            return Ok(None);
        }
        match rest.iter().take(self.longest_name + 1).position(|&byte| ends_name(byte)) {
            Some(0) => self.note(Kind::PipeWithoutName, pipe, None, 0)?,
            None if rest.len() <= self.longest_name => {
                self.at = self.bytes.len();
                self.note(Kind::NameAtEnd, pipe, None, 0)?;
            }
            _ => {}
        }
        Ok(None)
    }

    /// Read a dense sample; how many values it had, if it was too short.
    fn dense(&mut self, stream: usize) -> Result<Option<u64>, Fault> {
        let Samples::Dense { dim, values } = &mut self.builders[stream].column.samples else {
            unreachable!("a dense stream has a dense column")
        };
        let dim = *dim;
        let (end, num_values) = match values {
            Values::F32(values) => dense_values(self.kernel, self.view, self.bytes, self.at, dim, values)?,
            Values::F64(values) => dense_values(self.kernel, self.view, self.bytes, self.at, dim, values)?,
        };
        self.at = end;
        self.builders[stream].num_samples += 1;
        Ok((num_values < dim).then_some(num_values as u64))
    }

    /// Read a sparse sample. It is never too short.
    fn sparse(&mut self, stream: usize) -> Result<Option<u64>, Fault> {
        let (kernel, view, bytes, at) = (self.kernel, self.view, self.bytes, self.at);
        let Samples::Sparse { dim, indices, values, .. } = &mut self.builders[stream].column.samples else {
            unreachable!("a sparse stream has a sparse column")
        };
        let dim = *dim as u64;
        let read = match values {
            Values::F32(values) => sparse_entries(kernel, view, bytes, at, dim, indices, values),
            Values::F64(values) => sparse_entries(kernel, view, bytes, at, dim, indices, values),
        };
        let end = match read {
            Ok(end) => end,
            // At the end of the data a sample may be empty if the stream had an entry before.
            Err(Fault { kind: Kind::EmptyAtEnd, at, .. }) if self.builders[stream].has_entries_in_sequence() => at,
            Err(fault) => return Err(fault),
        };
        let Samples::Sparse { sample_offsets, indices, .. } = &mut self.builders[stream].column.samples else {
            unreachable!("a sparse stream has a sparse column")
        };
        let is_one_hot = sample_offsets.last().is_some_and(|&first| first as usize + 1 == indices.len());
        sample_offsets.push(indices.len() as u32);
        self.at = end;
        self.builders[stream].num_samples += 1;
        self.builders[stream].is_one_hot = is_one_hot;
        Ok(None)
    }
}

/// Bytes of an id, if there is one, and of a space behind it.
#[inline]
fn size_of_id(text: &[u8], at: usize) -> usize {
    if let Some(word) = digits::word_at(text, at)
        && let size @ 0..8 = digits::count(word)
    {
        return size as usize + usize::from((word >> (8 * size)) as u8 == b' ');
    }
    size_of_long_id(&text[at..])
}

/// The same of eight digits and more, and at the end of the text: out of the way of all others.
#[cold]
#[inline(never)]
fn size_of_long_id(rest: &[u8]) -> usize {
    let size = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    size + usize::from(rest.get(size) == Some(&b' '))
}

/// The only entry of a sample.
struct OneHotEntry {
    index: u32,
    value: u8,
    /// Where the sample ends, and the byte there.
    end: usize,
    behind: u8,
}

/// An index of up to five digits with one digit as its value, if a pipe or the end of the line is behind it, or a space
/// before that.
#[inline]
fn one_hot_entry(text: &[u8], at: usize) -> Option<OneHotEntry> {
    let word = digits::word_at(text, at)?;
    let num_digits = digits::count(word);
    if num_digits == 0 || num_digits > 5 {
        return None;
    }
    let [colon, value, behind, ..] = (word >> (8 * num_digits)).to_le_bytes();
    let value = value.wrapping_sub(b'0');
    let end = at + num_digits as usize + 2 + usize::from(behind == b' ');
    let behind = *text.get(end)?;
    let index = digits::value(word, num_digits);
    let is_sound = colon == b':' && value <= 9 && matches!(behind, b'|' | b'\n' | b'\r');
    is_sound.then_some(OneHotEntry { index, value, end, behind })
}

#[inline]
fn ends_name(byte: u8) -> bool {
    byte <= b' ' || byte == b'|' || byte >= 0x80
}

/// What ends a sample's values: a pipe, a control byte other than a tab, a byte above 0x7F.
#[inline]
fn ends_values(byte: u8) -> bool {
    byte < b' ' || byte == b'|' || byte >= 0x80
}

/// After a number that a kernel was not certain of it is asked again only if it last took this many at once: where
/// exponents are the rule, a kernel would cost more than it saves.
const WORTH_A_KERNEL: u64 = 8;

/// Whether `text` starts with a name; without a call, for names are short.
#[inline]
fn starts_with(text: &[u8], name: &[u8]) -> bool {
    text.len() >= name.len() && text.iter().zip(name).all(|(a, b)| a == b)
}

/// Append a sample of exactly `dim` values; the position behind and the number of values that were written.
/// On a fault nothing is appended.
#[inline]
fn dense_values<T: Element>(
    kernel: Kernel,
    view: &[u8],
    bytes: &[u8],
    start: usize,
    dim: usize,
    out: &mut Vec<T>,
) -> Result<(usize, usize), Fault> {
    let before = out.len();
    let mut at = T::dense_prefix(kernel, view, start, dim, out);
    let mut num_values = (out.len() - before) as u64;
    let mut is_prefix_worth_it = num_values >= WORTH_A_KERNEL;
    let mut surplus = None;
    let failed = loop {
        match bytes.get(at) {
            Some(b' ' | b'\t') => at += 1,
            Some(&byte) if ends_values(byte) => match surplus {
                Some(surplus) => break Fault { kind: Kind::TooManyValues, at: surplus, resume: at, found: num_values },
                None => {
                    out.resize(before + dim, T::default());
                    return Ok((at, num_values as usize));
                }
            },
            None if num_values == 0 => break Fault { kind: Kind::EmptyAtEnd, at, resume: at, found: 0 },
            None => {
                // At the end of the data surplus values are no error and get lost.
                out.resize(before + dim, T::default());
                return Ok((at, num_values as usize));
            }
            Some(_) => match number::read(bytes, at) {
                Ok((value, end)) => {
                    if num_values < dim as u64 {
                        out.push(value);
                    } else if surplus.is_none() {
                        surplus = Some(at);
                    }
                    num_values += 1;
                    at = end;
                    if is_prefix_worth_it && surplus.is_none() {
                        at = T::dense_prefix(kernel, view, end, dim - num_values as usize, out);
                        is_prefix_worth_it = (out.len() - before) as u64 - num_values >= WORTH_A_KERNEL;
                        num_values = (out.len() - before) as u64;
                    }
                }
                Err(bad) => break Fault { kind: Kind::BadNumber, at: bad, resume: bad, found: num_values },
            },
        }
    };
    out.truncate(before);
    Err(failed)
}

/// Append a sample's entries; the position behind. On a fault nothing is appended.
#[inline]
fn sparse_entries<T: Element>(
    kernel: Kernel,
    view: &[u8],
    bytes: &[u8],
    start: usize,
    dim: u64,
    indices: &mut Vec<i32>,
    values: &mut Vec<T>,
) -> Result<usize, Fault> {
    let before = indices.len();
    let small_dim = dim.min(u32::MAX.into()) as u32;
    let mut at = T::sparse_prefix(kernel, view, start, small_dim, indices, values);
    let mut is_prefix_worth_it = (indices.len() - before) as u64 >= WORTH_A_KERNEL;
    let failed = loop {
        match bytes.get(at) {
            Some(b' ' | b'\t') => at += 1,
            Some(&byte) if ends_values(byte) => return Ok(at),
            None if indices.len() > before => return Ok(at),
            None => break Fault { kind: Kind::EmptyAtEnd, at, resume: at, found: 0 },
            Some(_) => match sparse_entry(bytes, at, dim) {
                Ok((index, value, end)) => {
                    indices.push(index);
                    values.push(value);
                    at = end;
                    if is_prefix_worth_it {
                        let so_far = indices.len();
                        at = T::sparse_prefix(kernel, view, end, small_dim, indices, values);
                        is_prefix_worth_it = (indices.len() - so_far) as u64 >= WORTH_A_KERNEL;
                    }
                }
                Err(fault) => break fault,
            },
        }
    };
    indices.truncate(before);
    values.truncate(before);
    Err(failed)
}

#[inline]
fn sparse_entry<T: Element>(bytes: &[u8], start: usize, dim: u64) -> Result<(i32, T, usize), Fault> {
    let mut index = 0u64;
    let mut at = start;
    while let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit <= 9) {
        index = index.saturating_mul(10).saturating_add(digit.into());
        at += 1;
    }
    let fault = |kind, position| Fault { kind, at: position, resume: at, found: index };
    if at == start {
        return Err(fault(Kind::BadIndex, at));
    }
    if index >= dim {
        return Err(fault(Kind::IndexOutOfRange, start));
    }
    if bytes.get(at) != Some(&b':') {
        return Err(fault(Kind::MissingColon, at));
    }
    match number::read(bytes, at + 1) {
        Ok((value, end)) => Ok((index as i32, value, end)),
        Err(bad) => Err(Fault { kind: Kind::BadNumber, at: bad, resume: bad, found: index }),
    }
}

// ------------------------------------------------------------------------------------------------- inference

/// What a file's samples of one name look like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// The name.
    pub name: Vec<u8>,
    /// Samples.
    pub num_samples: u64,
    /// Values without an index in front.
    pub num_plain: u64,
    /// Values with one.
    pub num_indexed: u64,
    /// Most values in a sample.
    pub most_values: u64,
    /// Largest index that is a number below 2^64.
    pub largest_index: u64,
}

/// Names beyond which a text is not believed to be in this format.
pub const MOST_NAMES: usize = 10_000;

/// Look at every sample of a block of whole lines; `None` if there are more than [`MOST_NAMES`] names.
///
/// Faults are passed over: it tells what a reader should be asked for, not whether the text is right.
pub fn infer(block: &[u8]) -> Option<Vec<Seen>> {
    let mut all: Vec<Seen> = Vec::new();
    let mut by_name: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut expected = 0;
    let mut at = 0;
    while let Some(pipe) = memchr::memchr(b'|', &block[at..]) {
        let name_start = at + pipe + 1;
        let rest = &block[name_start..];
        let name = &rest[..rest.iter().position(|&byte| ends_name(byte)).unwrap_or(rest.len())];
        at = name_start + name.len();
        let end = at + memchr2(b'|', b'\n', &block[at..]).unwrap_or(block.len() - at);
        if name.is_empty() || name[0] == b'#' {
            at = end;
            continue;
        }
        let number = match all.get(expected) {
            Some(seen) if seen.name == name => expected,
            _ => match by_name.get(name) {
                Some(&number) => number,
                None if all.len() == MOST_NAMES => return None,
                None => {
                    by_name.insert(name.to_vec(), all.len());
                    all.push(Seen { name: name.to_vec(), ..Seen::default() });
                    all.len() - 1
                }
            },
        };
        expected = number + 1;
        all[number].add(&block[at..end]);
        at = end;
    }
    Some(all)
}

impl Seen {
    fn add(&mut self, sample: &[u8]) {
        self.num_samples += 1;
        let mut num_values = 0;
        for value in sample.split(|&byte| byte <= b' ' || byte >= 0x80).filter(|value| !value.is_empty()) {
            num_values += 1;
            let num_digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if value.get(num_digits) == Some(&b':') {
                self.num_indexed += 1;
                let index = std::str::from_utf8(&value[..num_digits]).ok().and_then(|digits| digits.parse().ok());
                self.largest_index = self.largest_index.max(index.unwrap_or(0));
            } else {
                self.num_plain += 1;
            }
        }
        self.most_values = self.most_values.max(num_values);
    }
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
