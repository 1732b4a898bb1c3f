//! The svmlight (libsvm) text format: index and parser. (docs/formats/svmlight.md)
//!
//! ```text
//! line      label [qid:query] index:value index:value … [# comment] LF
//! label     a number; with several labels: numbers with commas between them, or nothing
//! ```
//!
//! The format has the values, the findings, the columns and the division among threads of CNTK's text format, and only
//! its own lines: `scan` finds them, `line` parses them, `write` writes them.

mod line;
mod scan;
mod write;

pub(super) use line::Parser;
pub use scan::{Facts, index};
pub use write::{Columns, write};

/// The layout of a svmlight text, whose columns are the features, the label and, if wanted, the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The index of the first feature in the file: 0 or 1.
    pub base: u32,
    /// True if the queries are a column.
    pub has_queries: bool,
    /// True if features beyond the dimension are faults; otherwise the dimension was made from the largest feature.
    pub is_bounded: bool,
}

/// True if a byte separates the fields of a line.
#[inline(always)]
fn is_blank(byte: u8) -> bool {
    // The white space of Python's `bytes.split`, by which scikit-learn divides a line. With CR in it, line ends may be
    // CR LF.
    matches!(byte, b' ' | b'\t' | b'\r' | 0x0B | 0x0C)
}

/// The offset of the first byte at `at` or after that is not blank.
#[inline(always)]
fn skip_blanks(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(|&byte| is_blank(byte)) {
        at += 1;
    }
    at
}

/// The offset at which the field at `at` ends: at a blank, a comment or the end of the line.
#[inline]
fn end_of_field(bytes: &[u8], at: usize) -> usize {
    // scikit-learn cuts a line at the first hash, so a comment needs no blank before it.
    let ends = |&byte: &u8| is_blank(byte) || byte == b'#' || byte == b'\n';
    bytes[at..].iter().position(ends).map_or(bytes.len(), |size| at + size)
}

/// The begin of a field with a query.
const QUERY: &[u8] = b"qid:";
