//! The result of a scan: columns of entries and of runs, and remarks on skipped text.

use crate::MOST_IN_FULL;
use crate::chunk::expect;
use crate::memory;
use crate::named::named;
use std::ops::Range;

named! {
    /// The fault of an entry.
    #[derive(Default)]
    pub enum Fault {
        /// The entry is sound.
        #[default]
        None = "none",
        /// A row does not begin where the row before ended.
        OutOfOrder = "out of order",
        /// The first row does not begin at frame 0.
        LateStart = "late start",
        /// A row has fewer columns than it needs, or not exactly four where it must have four.
        Columns = "columns",
        /// A time is not a number, or not a number of frames.
        BadTime = "bad time",
        /// A row ends before it begins.
        Reversed = "reversed",
        /// A label is not in the mapping file.
        UnknownLabel = "unknown label",
        /// A class is not a number.
        BadClass = "bad class",
        /// A class is beyond the dimension.
        LargeClass = "large class",
        /// The entry has no frames.
        NoFrames = "no frames",
        /// The runs do not add up to the number of frames.
        WrongSum = "wrong sum",
    }
}

named! {
    /// The reason why text was skipped.
    pub enum Remark {
        /// A key line without quotes; its entry is left out.
        Unquoted = "unquoted key",
        /// An entry without rows, which is left out.
        Empty = "empty entry",
        /// An entry that the end of the file cuts off, which is left out.
        CutOff = "entry cut off",
        /// A key with a wildcard after its beginning, which matches nothing.
        Pattern = "pattern",
    }
}

/// Number of kinds of remarks.
pub const NUM_REMARKS: usize = Remark::NAMES.len();

named! {
    /// The reason why a scan ended early.
    pub enum Stop {
        /// The text does not begin with `#!MLF!#`.
        NoHeader = "no header",
        /// The last row of an entry has no times (compatible mode).
        NoTimes = "no times",
        /// An entry has no frames (compatible mode).
        NoFrames = "no frames",
        /// A key is too long.
        LongKey = "long key",
        /// A binary file does not begin with `MLF`.
        NotBinary = "not binary",
        /// A binary file is of an unknown version.
        Version = "version",
        /// A binary file ends within an entry.
        Truncated = "truncated",
    }
}

/// Numbers of 32 bits, stored in 16 bits while all are small.
#[derive(Debug, Default, PartialEq)]
pub struct Numbers {
    /// Their lower halves.
    pub low: Vec<u16>,
    /// Their upper halves; empty while all are zero.
    pub high: Vec<u16>,
}

impl Numbers {
    /// Number of numbers.
    pub fn len(&self) -> usize {
        self.low.len()
    }

    /// True if it is empty.
    pub fn is_empty(&self) -> bool {
        self.low.is_empty()
    }

    /// The numbers of a range.
    pub fn part(&self, range: Range<usize>) -> Vec<u32> {
        let low = self.low[range.clone()].iter().map(|&low| u32::from(low));
        if self.high.is_empty() {
            return low.collect();
        }
        low.zip(&self.high[range]).map(|(low, &high)| low | u32::from(high) << 16).collect()
    }

    pub(super) fn reserve(&mut self, count: usize) {
        // Few files need upper halves, so no memory is reserved for them.
        memory::reserve(&mut self.low, count);
    }

    #[inline]
    pub(super) fn push(&mut self, number: u32) {
        let high = (number >> 16) as u16;
        if high > 0 || !self.high.is_empty() {
            // The numbers before the first large number have no upper half yet.
            memory::resize(&mut self.high, self.low.len(), 0);
            memory::push(&mut self.high, high);
        }
        memory::push(&mut self.low, number as u16);
    }

    pub(super) fn truncate(&mut self, count: usize) {
        // The numbers that stay are looked at only if a high number goes: each of many entries may drop its own
        // numbers.
        let drops_high = self.high.get(count..).is_some_and(|dropped| dropped.iter().any(|&high| high != 0));
        self.low.truncate(count);
        self.high.truncate(count);
        if drops_high && self.high.iter().all(|&high| high == 0) {
            self.high.clear();
        }
    }

    pub(super) fn append(&mut self, mut other: Numbers) {
        if !self.high.is_empty() || !other.high.is_empty() {
            memory::resize(&mut self.high, self.low.len(), 0);
            memory::resize(&mut other.high, other.low.len(), 0);
            memory::append(&mut self.high, &other.high);
        }
        memory::append(&mut self.low, &other.low);
    }
}

/// The entries of a text, in its order.
#[derive(Debug, Default, PartialEq)]
pub struct Labels {
    /// All keys, one after the other.
    pub keys: Vec<u8>,
    /// End of each key in `keys`.
    pub key_ends: Vec<usize>,
    /// True if each key began with `*/`, so that it stands for all keys that end with a slash and this key, too.
    pub is_pattern: Vec<bool>,
    /// Offset of each entry.
    pub at: Vec<u64>,
    /// Number of frames of each entry.
    pub frames: Vec<u32>,
    /// The [`Fault`] of each entry.
    pub faults: Vec<u8>,
    /// Offset of the fault.
    pub fault_at: Vec<u64>,
    /// End of each entry's runs in `starts` and `classes`.
    pub run_ends: Vec<u64>,
    /// The first frame of each run in its entry.
    pub starts: Numbers,
    /// The class of each run.
    pub classes: Numbers,
    /// For each kind of remark: the number of remarks, and the offsets of the first [`MOST_IN_FULL`].
    pub remarks: [(u64, Vec<u64>); NUM_REMARKS],
    /// Reason and offset of an early end of the scan.
    pub stop: Option<(Stop, u64)>,
}

impl Labels {
    pub(super) fn remark(&mut self, remark: Remark, at: u64) {
        let (count, offsets) = &mut self.remarks[remark as usize];
        *count += 1;
        // A damaged file may have millions of remarks, and messages list only the first.
        if offsets.len() < MOST_IN_FULL {
            offsets.push(at);
        }
    }

    /// End an entry, whose runs from `first_run` on were appended.
    pub(super) fn end_entry(&mut self, first_run: usize, num_frames: u32, (fault, fault_at): (Fault, u64)) {
        if fault != Fault::None {
            // A single run, which is never delivered, replaces the runs.
            self.starts.truncate(first_run);
            self.classes.truncate(first_run);
            self.starts.push(0);
            self.classes.push(0);
        }
        memory::push(&mut self.frames, num_frames);
        // Python gets the fault as a number, an index in `Fault::NAMES`.
        memory::push(&mut self.faults, fault as u8);
        memory::push(&mut self.fault_at, fault_at);
        memory::push(&mut self.run_ends, self.starts.len() as u64);
    }

    /// Make room for `ratio` times as many entries.
    pub(super) fn expect(&mut self, ratio: f64) {
        expect(&mut self.keys, ratio);
        expect(&mut self.key_ends, ratio);
        expect(&mut self.is_pattern, ratio);
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

    /// Append the entries of the following text, unless the scan ended in this text.
    pub(super) fn append(&mut self, other: Labels) {
        // A scan without shares would have ended here, so later shares do not count.
        if self.stop.is_some() {
            return;
        }
        let (keys, runs) = (self.keys.len(), self.starts.len() as u64);
        memory::append(&mut self.keys, &other.keys);
        memory::extend(&mut self.key_ends, other.key_ends.iter().map(|end| end + keys));
        memory::append(&mut self.is_pattern, &other.is_pattern);
        memory::append(&mut self.at, &other.at);
        memory::append(&mut self.frames, &other.frames);
        memory::append(&mut self.faults, &other.faults);
        memory::append(&mut self.fault_at, &other.fault_at);
        memory::extend(&mut self.run_ends, other.run_ends.iter().map(|end| end + runs));
        self.starts.append(other.starts);
        self.classes.append(other.classes);
        for ((count, offsets), (more, further)) in self.remarks.iter_mut().zip(&other.remarks) {
            *count += more;
            let room = MOST_IN_FULL.saturating_sub(offsets.len());
            offsets.extend(further.iter().take(room));
        }
        self.stop = other.stop;
    }
}
