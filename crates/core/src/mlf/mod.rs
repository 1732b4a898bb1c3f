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
//! | module | question |
//! |---|---|
//! | `scan` | how is a text divided among threads, and which lines are an entry? |
//! | `entry` | when is an entry sound, and how many frames has it? |
//! | `row` | what does one row say? |
//! | `classes` | which class does a label have? |
//! | `binary` | what does a binary file say? |
//! | `labels` | the result: columns of entries and of runs, faults and remarks |
//!
//! Invariants: no input causes a panic. A fault is stored with its entry, by kind and offset, and Python decides what
//! it means. A scan stops only at a fault that leaves no entry to store it with.

mod binary;
mod classes;
mod entry;
mod labels;
mod row;
mod scan;

pub use binary::scan_binary;
pub use classes::Classes;
pub use labels::{Fault, Labels, NUM_REMARKS, Numbers, Remark, Stop};
pub use row::label_names;
pub use scan::{SHARE_BYTES, Scan, scan};

/// The unit of the numbers in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// As the rows of an entry suggest; in compatible mode as each row suggests.
    Auto,
    /// 100 ns.
    Time,
    /// Frames.
    Frames,
}

/// Rules for reading labels.
#[derive(Debug, Clone)]
pub struct Rules {
    /// True if they are read exactly as CNTK 2.7 reads them.
    pub is_compatible: bool,
    /// The unit of the numbers.
    pub unit: Unit,
    // Times can have fractions and exponents, so they are doubles, and so is the period.
    /// Length of a frame in units of 100 ns.
    pub frame_period: f64,
    /// The class of each label; `None`: the fourth column is the class.
    pub classes: Option<Classes>,
    /// Number of classes.
    pub dim: u32,
}
