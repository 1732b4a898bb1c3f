//! The parser: the text of sequences, by shortcuts and line by line.
//!
//! ```text
//! sequence  line line …
//! ```
//!
//! [`LineParser::line`] is the exact parser, which reads any text and finds every fault. Before it, the parser tries
//! shortcuts over lines of a simple form. A shortcut takes whole lines or samples that it fully understands, and leaves
//! the rest to the exact parser. So a fault is found, numbered and reported in one place only.

use super::builder::Builder;
use super::findings::Stop;
use super::ids::{LeadingId, leading_id};
use super::index::Scan;
use super::line::LineParser;
use super::samples::Sight;
use super::shortcuts::{OneHotLines, SparseLines, Taken, num_adjacent};
use super::{Extent, Findings, Kind, Schema};
use crate::memory;

/// Longer sequences are left to the index: the last sequence of each text is parsed twice.
const MOST_SEQUENCE_BYTES: usize = 1 << 15;

/// A parser of the sequences in one text.
pub(super) struct Parser<'a> {
    pub(super) lines: LineParser<'a>,
    sparse_lines: SparseLines,
    one_hot_lines: OneHotLines,
}

impl<'a> Parser<'a> {
    /// A parser of sequences in `text`, which begins at `first_byte` of the whole.
    pub(super) fn new(
        text: &'a [u8],
        first_byte: usize,
        schema: &'a Schema,
        builders: &'a mut [Builder],
        findings: &'a mut Findings,
    ) -> Parser<'a> {
        Parser {
            lines: LineParser::new(text, first_byte, schema, builders, findings),
            sparse_lines: SparseLines::new(schema),
            one_hot_lines: OneHotLines::new(schema),
        }
    }

    /// Parse sequences, which are numbered from `first_number`.
    pub(super) fn sequences(&mut self, sequences: &[Extent], first_number: usize) -> Result<(), Stop> {
        let parsed = self.each_sequence(sequences, first_number);
        self.end(parsed)
    }

    /// Parse the whole text, in which each line is a sequence, and append the offset of each line in the whole. The
    /// sequences are numbered by their places in `starts`.
    ///
    /// # Errors
    /// There is a finding, or a line without content, which only the index leaves out.
    pub(super) fn sequences_of_lines(&mut self, starts: &mut Vec<u64>) -> Result<(), Stop> {
        let parsed = self.each_line(starts);
        self.end(parsed)
    }

    /// Parse the first sequences of a text that starts with an id, as far as their lines have samples of one entry each
    /// and nothing else, and append their keys, starts and numbers of lines. Returns the start of the next sequence, at
    /// the latest of the last one: it may continue after the text.
    pub(super) fn sequences_of_ids(&mut self, found: &mut Scan) -> usize {
        let text = self.lines.text;
        self.lines.sight = Sight { bytes: text, view: text };
        let (mut start, mut id) = (0, leading_id(text));
        while let LeadingId::Number(key, _) = id {
            self.lines.at = start;
            let most = text.len().min(start.saturating_add(MOST_SEQUENCE_BYTES));
            let Taken { num_lines, is_in_line } = self.one_hot_lines.take_samples(&mut self.lines, most);
            let end = self.lines.at;
            id = leading_id(&text[end..]);
            let is_followed = matches!(id, LeadingId::Number(next, size) if next != key && end + size < text.len());
            let counts = self.lines.builders.iter().map(Builder::num_in_sequence);
            let (least, most) = counts.fold((u32::MAX, 0), |(least, most), count| (least.min(count), most.max(count)));
            if is_in_line || !is_followed || least == 0 || most != num_lines {
                // The index and the exact parser, which know all cases, come next.
                self.one_hot_lines.go_back(self.lines.builders);
                self.lines.builders.iter_mut().for_each(Builder::drop_sequence);
                break;
            }
            memory::push(&mut found.keys, key);
            memory::push(&mut found.starts, (self.lines.first_byte + start) as u64);
            memory::push(&mut found.lines, num_lines);
            self.lines.builders.iter_mut().for_each(Builder::end_sequence);
            start = end;
        }
        start
    }

    fn end(&mut self, parsed: Result<(), Stop>) -> Result<(), Stop> {
        // Also after a stop: the samples whose entries wait are already counted, and the columns must agree with the
        // counts.
        self.one_hot_lines.flush(self.lines.builders);
        parsed
    }

    fn each_sequence(&mut self, sequences: &[Extent], first_number: usize) -> Result<(), Stop> {
        let (text, first_byte) = (self.lines.text, self.lines.first_byte);
        let (mut number, mut adjacent_end) = (0, 0);
        while let Some(extent) = sequences.get(number) {
            if self.sparse_lines.is_worth_a_try() {
                // The end of adjacent sequences is kept, so that failed attempts do not search for it again.
                if number >= adjacent_end {
                    adjacent_end = number + num_adjacent(&sequences[number..]);
                }
                // The kernel appends to the columns for which entries may wait.
                self.one_hot_lines.flush(self.lines.builders);
                let num_taken = self.sparse_lines.take_sequences(&mut self.lines, &sequences[number..adjacent_end]);
                if num_taken > 0 {
                    number += num_taken;
                    continue;
                }
            }
            // Extents are clipped, so that an index of another text causes no panic.
            let end = extent.end.saturating_sub(first_byte).min(text.len());
            let bytes = &text[..end];
            let lines = &mut self.lines;
            let view = if bytes.last() == Some(&b'\n') { text } else { of_unfinished_line(bytes) };
            lines.sight = Sight { bytes, view };
            lines.at = extent.start.saturating_sub(first_byte).min(end);
            lines.sequence = first_number + number;
            self.sequence(end, extent.length)?;
            number += 1;
        }
        Ok(())
    }

    fn each_line(&mut self, starts: &mut Vec<u64>) -> Result<(), Stop> {
        let text = self.lines.text;
        self.lines.sight = Sight { bytes: text, view: text };
        let mut at = 0;
        while at < text.len() {
            memory::push(starts, (self.lines.first_byte + at) as u64);
            if self.sparse_lines.is_worth_a_try() {
                // The kernel appends to the columns for which entries may wait.
                self.one_hot_lines.flush(self.lines.builders);
                if let Some((&end, line_ends)) = self.sparse_lines.take_lines(&mut self.lines, at).split_last() {
                    memory::extend(starts, line_ends.iter().map(|&end| (self.lines.first_byte + end) as u64));
                    at = end;
                    continue;
                }
            }
            (self.lines.at, self.lines.sequence) = (at, starts.len() - 1);
            // No further line of the sequence starts after its first byte.
            if self.sequence(at + 1, 1)? > 0 {
                return Err(Stop);
            }
            at = self.lines.at;
        }
        Ok(())
    }

    /// Parse the lines of a sequence, from the parser's position to the last line that starts before `end`. Returns the
    /// number of lines without content.
    fn sequence(&mut self, end: usize, length: u32) -> Result<u32, Stop> {
        let lines = &mut self.lines;
        let (start, num_findings) = (lines.at, lines.findings.first.len());
        let mut num_empty_lines = 0;
        while lines.at < end {
            let has_sample = self.one_hot_lines.take_samples(lines, end).is_in_line;
            if !has_sample && lines.at >= end {
                break;
            }
            self.one_hot_lines.flush(lines.builders);
            let line = lines.at;
            if !lines.line(has_sample)? {
                if lines.is_nothing(line) {
                    num_empty_lines += 1;
                // CNTK has this error only where a line feed ends the line. `line` moves by at least one byte, so there
                // is a byte before.
                } else if lines.sight.bytes[lines.at - 1] == b'\n' {
                    lines.add_finding(Kind::LineWithoutSample, line, None, 0)?;
                }
            }
        }
        // Lines without content belong to the length, and have no samples.
        let least = if lines.schema.defining.is_none() { length.saturating_sub(num_empty_lines) } else { length };
        let (mut most, mut longest, mut has_gaps) = (0, None, false);
        // As in CNTK, streams without a sample are reported before a wrong number of samples.
        for stream in 0..lines.builders.len() {
            let num_samples = lines.builders[stream].num_in_sequence();
            if num_samples == 0 {
                lines.add_finding(Kind::MissingStream, start, Some(stream), 0)?;
                has_gaps = true;
            }
            let defines_length = lines.schema.defining.is_none_or(|defining| defining == stream);
            if defines_length && (num_samples > most || longest.is_none()) {
                (most, longest) = (num_samples, Some(stream));
            }
        }
        if has_gaps {
            lines.findings.thin_out_gaps(num_findings, lines.builders.len());
        }
        // As in CNTK, a sequence has at most one of these two errors, however many streams have a wrong number of
        // samples.
        if most > length {
            lines.add_finding(Kind::TooManySamples, start, longest, most.into())?;
        } else if most < least {
            lines.add_finding(Kind::TooFewSamples, start, longest, most.into())?;
        }
        lines.builders.iter_mut().for_each(Builder::end_sequence);
        Ok(num_empty_lines)
    }
}

/// Return the argument. A branch to a function that is rarely called lets the processor continue before the last byte
/// of the sequence is in its cache.
#[cold]
#[inline(never)]
fn of_unfinished_line(bytes: &[u8]) -> &[u8] {
    bytes
}
