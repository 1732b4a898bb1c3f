//! The CNTK text format: index, parser, inference and writer. (docs/formats/ctf.md)
//!
//! ```text
//! bytes ── index ──────> Share: ids, starts, lines ── parse_chunk ──> Chunk, Findings
//!       ── index_chunks: both in one pass ─────────────────────────> Scan, Chunk
//!       ── infer ──────> Seen: names and forms of streams
//! columns ── write ────> bytes
//! ```
//!
//! | module | question |
//! |---|---|
//! | `ids` | which id starts a line? |
//! | `index` | which sequences does a text have, and where? |
//! | `parse` | what does the text of a sequence say? |
//! | `line` | what does a line say, by the full grammar? Only `parse` and `line` record faults |
//! | `samples` | what do the values of one sample say? |
//! | `shortcuts` | how are lines without a fault read faster? |
//! | `builder` | how do samples become columns, in memory that is used again? |
//! | `pieces` | how is a chunk divided among threads? |
//! | `one_pass` | how are the chunks of a file indexed and parsed together? |
//! | `findings` | which faults were found? |
//! | `svmlight` | what do the lines of the svmlight format say? |
//! | `infer` | which streams does an unknown file have? |
//! | `write` | how do columns become text? |
//!
//! Invariants: everything here is a pure function of its arguments. No byte outside the given text decides anything, no
//! input causes a panic, and every fault has an offset. Python decides what a fault means, how many are too many, and
//! how to word them.

mod builder;
mod findings;
mod ids;
mod index;
mod infer;
mod line;
mod nothing;
mod one_pass;
mod parse;
mod pieces;
mod samples;
mod shortcuts;
pub mod svmlight;
mod write;

use crate::chunk::NumberType;
pub use findings::{Finding, Findings, Kind, NUM_COSTLY, NUM_ERRORS, NUM_KINDS};
pub use index::{
    BadId, BadWord, Begun, Column, Open, Scan, Share, Unindexed, WordScan, index, place, scan, scan_words,
};
pub use infer::{MOST_NAMES, Seen, infer};
pub use nothing::are_nothing;
pub use one_pass::{IndexedChunk, Pass, chunk_borders, index_chunks};
pub use pieces::{Cut, Source, parse, parse_chunk, parse_with};
// The converters of other texts write ids and indices with this function, too.
pub(crate) use write::put_integer;
pub use write::{Unwritable, write};

/// Rule by which a file's lines are grouped into sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each line is a sequence.
    Lines,
    /// Lines with the same number in front, or none, are a sequence.
    Ids,
}

/// A stream of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Its name in the file (the alias).
    pub name: Vec<u8>,
    /// True if samples are lists of `index:value`.
    pub is_sparse: bool,
    /// Values of a sample, or the bound of its indices; at most 2^31 - 1.
    pub dim: usize,
    /// The type of the values. Only a svmlight text has whole numbers.
    pub number: NumberType,
}

/// The facts that the parser needs about the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    /// The streams, in the order of the columns.
    pub streams: Vec<Stream>,
    /// The only stream whose samples are counted against a sequence's lines; `None`: the stream with the most samples.
    pub defining: Option<usize>,
    /// True if ids are words.
    pub has_words: bool,
    /// True if columns of small whole numbers are stored in fewer bytes.
    pub is_compact: bool,
    /// True if the file has other streams, so that a line or a sequence may lack all samples of these.
    pub is_subset: bool,
    /// True if all findings are kept in full, not only the first few of each kind.
    pub keeps_findings: bool,
    /// True if a name that belongs to no stream is a finding.
    pub notes_unknown_names: bool,
    /// The layout of a svmlight text; `None`: the text is in CNTK's format.
    pub svmlight: Option<svmlight::Layout>,
}

impl Schema {
    /// The facts about a file in CNTK's format that has these streams alone.
    pub fn of(streams: Vec<Stream>) -> Schema {
        Schema {
            streams,
            defining: None,
            has_words: false,
            is_compact: false,
            is_subset: false,
            keeps_findings: false,
            notes_unknown_names: false,
            svmlight: None,
        }
    }
}

/// The place of a sequence in the text, and the number of samples that the index counted for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset of the first byte.
    pub start: usize,
    /// Offset after the last byte.
    pub end: usize,
    /// Lines that count.
    // A sequence has less than 4 GiB of text, so it has fewer than 2^32 lines.
    pub length: u32,
}

/// True if a byte ends the name of a stream.
#[inline]
fn ends_name(byte: u8) -> bool {
    // CNTK compares signed bytes, so bytes from 0x80 on count as smaller than a blank.
    byte <= b' ' || byte == b'|' || byte >= 0x80
}
