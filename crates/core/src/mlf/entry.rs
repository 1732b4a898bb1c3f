//! An entry: its rows, the first fault, and the frames that its rows cover.

use super::labels::{Fault, Labels, Remark, Stop};
use super::row::{Row, row};
use super::{Rules, Unit};
use crate::memory;

/// A key from a quoted line.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    /// The key without a leading `*/` and without its extension.
    pub(super) text: &'a [u8],
    /// True if the key began with `*/` and patterns are in use.
    pub(super) is_pattern: bool,
}

/// An entry that was begun.
pub(super) struct Entry<'a> {
    /// Offset of its first line.
    pub(super) begin: u64,
    /// Its key; an entry without a key is left out.
    key: Option<Key<'a>>,
    /// The first fault and its offset. A class beyond the dimension counts only if there is no other fault.
    fault: (Fault, u64),
    /// The offset of the last row, and whether its times are numbers.
    pub(super) last_row: Option<(u64, bool)>,
}

impl<'a> Entry<'a> {
    pub(super) fn new(begin: u64, key: Option<Key<'a>>) -> Entry<'a> {
        Entry { begin, key, fault: (Fault::None, 0), last_row: None }
    }

    /// Read a row.
    pub(super) fn row(&mut self, line: &[u8], at: u64, rules: &Rules, rows: &mut Vec<Row>) {
        match row(line, at, rules) {
            Ok(row) => {
                self.last_row = Some((at, true));
                // A later row may have another fault, which then takes the place of this fault.
                if row.class >= rules.dim && self.fault.0 == Fault::None {
                    self.fault = (Fault::LargeClass, at);
                }
                rows.push(row);
            }
            Err((fault, has_times)) => {
                self.last_row = Some((at, has_times));
                if matches!(self.fault.0, Fault::None | Fault::LargeClass) {
                    self.fault = (fault, at);
                }
            }
        }
    }

    /// End the entry with a dot line: append it to the labels, or remark that it is left out.
    ///
    /// # Errors
    /// CNTK 2.7 would fail here.
    pub(super) fn end(self, rows: &[Row], rules: &Rules, labels: &mut Labels) -> Result<(), (Stop, u64)> {
        let Some((last_row, has_times)) = self.last_row else {
            if self.key.is_some() {
                labels.remark(Remark::Empty, self.begin);
            }
            return Ok(());
        };
        // When CNTK opens a file, it reads the times of the last row of each entry, even if the key is not quoted.
        if rules.is_compatible && !has_times {
            return Err((Stop::NoTimes, last_row));
        }
        let Some(key) = self.key else { return Ok(()) };
        append_runs(labels, rows, self.fault, rules);
        memory::append(&mut labels.keys, key.text);
        memory::push(&mut labels.key_ends, labels.keys.len());
        memory::push(&mut labels.is_pattern, key.is_pattern);
        memory::push(&mut labels.at, self.begin);
        // CNTK refuses a file with such an entry when it opens the file.
        if rules.is_compatible && self.fault.0 == Fault::None && labels.frames.last() == Some(&0) {
            return Err((Stop::NoFrames, self.begin));
        }
        Ok(())
    }
}

/// Append an entry's rows as runs, and all columns of the entry except for its key and offset.
fn append_runs(labels: &mut Labels, rows: &[Row], mut fault: (Fault, u64), rules: &Rules) {
    let mut end = 0;
    let mut num_frames = 0;
    let first_run = labels.starts.len();
    let counts_time = counts_time(rows, rules);
    for row in rows {
        let counts_time = match rules.unit {
            // CNTK decides for each row, so rows of one entry can have different units.
            Unit::Auto if rules.is_compatible => row.end - row.start >= LONG,
            _ => counts_time,
        };
        // As in CNTK, half a frame is rounded up.
        let frame = |time: f64| floor(if counts_time { time / rules.frame_period + 0.5 } else { time });
        let (from, to) = (frame(row.start), frame(row.end));
        if !(0.0..=f64::from(u32::MAX - 1)).contains(&from) || to > f64::from(u32::MAX - 1) {
            keep_first(&mut fault, Fault::BadTime, row.at);
            continue;
        }
        let (from, to) = (from as u32, to as u32);
        // As in CNTK, the last row decides the length of the entry.
        num_frames = to;
        if from != end {
            let is_first = std::ptr::eq(row, &rows[0]);
            keep_first(&mut fault, if is_first { Fault::LateStart } else { Fault::OutOfOrder }, row.at);
        }
        end = to;
        // Empty rows are left out, because the runs of a chunk must ascend. (`Runs::check`)
        if to > from {
            labels.starts.push(from);
            labels.classes.push(row.class);
        }
    }
    if num_frames == 0 {
        keep_first(&mut fault, Fault::NoFrames, rows.first().map_or(0, |row| row.at));
    }
    labels.end_entry(first_run, num_frames, fault);
}

/// A row that is at least this long counts time, not frames: it would have 99,999 frames, and as time it is 9.9999 ms.
const LONG: f64 = 99_999.0;

/// True if the numbers of these rows count time. In compatible mode, each row decides for itself unless the rules name
/// the unit.
fn counts_time(rows: &[Row], rules: &Rules) -> bool {
    match rules.unit {
        Unit::Time => true,
        Unit::Frames => false,
        Unit::Auto => {
            let is_round = |time: f64| time % rules.frame_period == 0.0;
            rows.iter().any(|row| row.end - row.start >= LONG)
                || (rows.iter().all(|row| is_round(row.start) && is_round(row.end))
                    && rows.iter().any(|row| row.end > 0.0))
        }
    }
}

/// The largest whole number that is not above `value`.
#[inline]
fn floor(value: f64) -> f64 {
    // Not every processor has an instruction for this, so rounding is a call. Numbers beyond 64 bits saturate, which is
    // beyond all frames.
    if value >= 0.0 { value as u64 as f64 } else { value.floor() }
}

/// Keep the first fault.
fn keep_first(fault: &mut (Fault, u64), found: Fault, at: u64) {
    if fault.0 == Fault::None {
        *fault = (found, at);
    }
}
