//! Shortcuts over lines without a fault.

use super::parse::{Parser, size_of_id};
use super::{Extent, Schema, ends_name};
use crate::chunk::{Samples, Values};
use cntkio_simd::{SparseColumn, SparseForm, digits};
use memchr::memchr;

/// So many lines more that have no known form than those that have one, and no more are tried.
pub(super) const MOST_PATIENCE: usize = 16;

/// Bytes of lines that are taken at once where all samples are sparse.
const SPARSE_RUN: usize = 1 << 16;

/// Shorter lines than this are taken at once as [`KnownLines`].
const SHORT_LINE: usize = 64;

/// Lines of sparse samples that are alike.
pub(super) struct SparseLines {
    form: Option<SparseForm>,
    line_ends: Vec<usize>,
    pub(super) patience: usize,
}

impl SparseLines {
    pub(super) fn new(schema: &Schema) -> SparseLines {
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
pub(super) fn num_adjacent(sequences: &[Extent]) -> usize {
    let first = sequences.first().map_or(0, |first| first.start);
    let is_next = |pair: &&[Extent]| pair[0].end == pair[1].start && pair[1].end.saturating_sub(first) <= SPARSE_RUN;
    1 + sequences.windows(2).take_while(is_next).count()
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

impl Parser<'_> {
    /// Take the first of these sequences, which lie one behind the other, as far as their lines are those of sparse
    /// samples that are alike; how many they are.
    pub(super) fn sparse_sequences(&mut self, sequences: &[Extent]) -> usize {
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

    /// Take samples of one entry each, as words and classes have, over lines of nothing else: where lines are short,
    /// the way over all cases takes most of the time. Stops at the start of a line, or behind a sample; whether behind
    /// one.
    pub(super) fn one_hot_lines(&mut self) -> bool {
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
}
