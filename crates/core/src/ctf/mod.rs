//! The CNTK text format: index, parser, inference and writer. (docs/formats/ctf.md)
//!
//! ```text
//! bytes ── scan, index ──> Scan (ids, starts, lines) ── parse_chunk ──> Chunk and Findings
//!       ── index_chunks (both in one pass) ───────────────────────────> Scan and Chunk
//!       ── infer ──> Seen (names and forms)          columns ── write ──> bytes
//! ```
//!
//! | module | question |
//! |---|---|
//! | `index` | which sequences does the text have, and where? |
//! | `parse` | what does the text of a sequence say? The grammar, and the only place where a fault is reported |
//! | `shortcuts`, `known_lines` | faster ways over lines without a fault; they take what they are certain of, or nothing |
//! | `builder` | how do samples become columns, in memory that is used again? |
//! | `pieces` | how is a chunk divided among threads? |
//! | `one_pass` | how are a file's chunks indexed and parsed together? |
//! | `findings` | which faults were found? |
//! | `infer` | which streams does an unknown file have? |
//! | `write` | how do columns become text? |
//!
//! Invariants: all are pure functions of their arguments. No byte outside the given text decides anything, no input
//! makes them panic, and every fault has a position. Python decides what a fault means, how many are too many, and how
//! to word them.

mod builder;
mod findings;
mod index;
mod infer;
mod known_lines;
mod one_pass;
mod parse;
mod pieces;
mod shortcuts;
mod write;

pub use findings::{Finding, Findings, Kind, MOST_IN_FULL, NUM_ERRORS, NUM_KINDS};
pub use index::{IdOverflow, Scan, Unindexed, WordScan, chunk_starts, index, scan, scan_words, sizes};
pub use infer::{MOST_NAMES, Seen, infer};
pub use one_pass::{IndexedChunk, chunk_borders, index_chunks};
pub use pieces::{Cut, parse, parse_chunk, parse_with};
pub(crate) use write::put_integer;
pub use write::{Unwritable, write};

/// How a file's sequences are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each line is a sequence.
    Lines,
    /// Lines with the same number in front, or none, are a sequence.
    Ids,
}

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

/// The text that sequences lie in.
#[derive(Clone, Copy)]
pub enum Text<'a> {
    /// All of it in memory.
    Here(&'a [u8]),
    /// To be read: a function that fills a buffer from a position on.
    Read(Read<'a>),
}

/// A function that fills a buffer from a position of the text on.
pub type Read<'a> = &'a (dyn Fn(usize, &mut [u8]) -> std::io::Result<()> + Sync);

/// Bytes of the word at the start of a line: up to white space. A pipe that follows at once belongs to it.
fn word_size(line: &[u8]) -> usize {
    line.iter().position(|byte| byte.is_ascii_whitespace() || *byte == 0x0B).unwrap_or(line.len())
}

#[inline]
fn ends_name(byte: u8) -> bool {
    byte <= b' ' || byte == b'|' || byte >= 0x80
}
