//! Shortcuts over lines of sparse samples without a fault.
//!
//! | shortcut | takes | gain of the parser, one thread |
//! |---|---|---|
//! | [`SparseLines`] | long lines that are alike, with AVX-512 | 1.7 times on `sparse` |
//! | [`one_hot_lines`] | samples of one entry each, with any kernel | 1.5 times on `seqs` |
//!
//! `bench/corpora.py` writes these corpora. Each shortcut has a limited number of attempts: the parser soon stops trying
//! a shortcut that takes no lines.

use super::ids::size_of_id;
use super::line::LineParser;
use super::samples::{OneHotEntry, one_hot_entry};
use super::{Extent, Schema, ends_name};
use crate::chunk::{NumberType, Samples, Values};
use crate::memory;
use cntkio_simd::{SparseColumn, SparseForm};
use memchr::memchr;

/// Largest number of failed attempts in a row. A success allows as many more attempts as it took lines or sequences.
const MOST_PATIENCE: usize = 16;
/// Bytes of lines of sparse samples that are taken at once.
const SPARSE_BYTES: usize = 1 << 16;
/// Lines of at most this many bytes are left to [`one_hot_lines`]: the kernel for long lines parses half as many of them in
/// the same time.
const SHORT_LINE_BYTES: usize = 64;

/// Long lines that are alike: a sparse sample of each stream, always in the same order.
pub(super) struct SparseLines {
    form: Option<SparseForm>,
    line_ends: Vec<usize>,
    patience: usize,
}

impl SparseLines {
    pub(super) fn new(schema: &Schema) -> SparseLines {
        let is_possible = !schema.has_words
            && schema.streams.iter().all(|stream| stream.is_sparse && stream.number == NumberType::F32);
        SparseLines { form: None, line_ends: Vec::new(), patience: if is_possible { MOST_PATIENCE } else { 0 } }
    }

    #[inline]
    pub(super) fn is_worth_a_try(&self) -> bool {
        self.patience > 0
    }

    /// Take the first of these adjacent sequences, as far as their lines are sparse samples and alike. Returns how many
    /// sequences were taken.
    pub(super) fn take_sequences(&mut self, parser: &mut LineParser, sequences: &[Extent]) -> usize {
        self.patience -= 1;
        let in_text = |offset: usize| offset.checked_sub(parser.first_byte).filter(|&at| at <= parser.text.len());
        let (Some(at), Some(end)) = (in_text(sequences[0].start), in_text(sequences[sequences.len() - 1].end)) else {
            return 0;
        };
        if self.form.is_none() {
            self.form = sparse_form(&parser.text[at..], parser.schema);
        }
        let Some(form) = &self.form else { return 0 };
        self.line_ends.clear();
        let columns = parser.builders.iter_mut().map(|builder| match &mut builder.column.samples {
            Samples::Sparse { sample_offsets, indices, values: Values::F32(values), .. } => {
                SparseColumn { sample_offsets, indices, values }
            }
            _ => unreachable!("all streams are sparse, none is double"),
        });
        let mut columns: Vec<SparseColumn> = columns.collect();
        parser.kernel.sparse_lines(parser.text, at, end, form, &mut columns, &mut self.line_ends);
        let (mut num_taken, mut num_lines) = (0, 0);
        for extent in sequences {
            // Each line has a sample of each stream: a sequence is sound if it ends with as many lines as the index
            // counted.
            let last_line = (num_lines + extent.length as usize).checked_sub(1);
            let line_end = last_line.and_then(|line| self.line_ends.get(line));
            if line_end != Some(&extent.end.wrapping_sub(parser.first_byte)) || extent.length == 0 {
                break;
            }
            num_lines += extent.length as usize;
            num_taken += 1;
            for builder in &mut *parser.builders {
                memory::push(&mut builder.column.sequence_offsets, builder.num_samples + num_lines as u32);
            }
        }
        let num_beyond = self.line_ends.len() - num_lines;
        for builder in &mut *parser.builders {
            builder.num_samples += num_lines as u32;
            if num_beyond > 0 {
                builder.drop_last(num_beyond);
            }
        }
        if num_taken > 0 {
            self.patience = (self.patience + 1 + num_taken).min(MOST_PATIENCE);
        } else {
            self.form = None;
        }
        num_taken
    }
}

/// The form of the text's first line, if it is a long line with a sample of each stream.
fn sparse_form(text: &[u8], schema: &Schema) -> Option<SparseForm> {
    let line = &text[..=memchr(b'\n', &text[..text.len().min(SPARSE_BYTES)])?];
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
    let is_whole = streams.len() == schema.streams.len() && line.len() > SHORT_LINE_BYTES;
    if is_whole { SparseForm::new(line[0].is_ascii_digit(), line_end, &streams) } else { None }
}

/// Number of these sequences, at least 1, that are adjacent in the text, up to [`SPARSE_BYTES`].
pub(super) fn num_adjacent(sequences: &[Extent]) -> usize {
    let first = sequences.first().map_or(0, |first| first.start);
    let is_next = |pair: &&[Extent]| pair[0].end == pair[1].start && pair[1].end.saturating_sub(first) <= SPARSE_BYTES;
    1 + sequences.windows(2).take_while(is_next).count()
}

/// Take samples of one entry each, such as words and classes, from lines that contain nothing else. On short lines, the
/// exact parser, which handles all cases, would take most of the time.
///
/// Stops at the start of a line, or after a sample. Returns whether it stopped after a sample.
pub(super) fn one_hot_lines(parser: &mut LineParser) -> bool {
    let view = parser.sight.view;
    let (mut line, mut at) = (parser.at, parser.at);
    let mut is_in_line = false;
    'lines: while line < parser.sight.bytes.len() {
        parser.line_number = parser.first_byte + at + 1;
        at += size_of_id(view, at);
        loop {
            let Some(stream) = parser.stream_at(at) else { break 'lines };
            let builder = &mut parser.builders[stream];
            let Samples::Sparse { dim, sample_offsets, indices, values: Values::F32(values) } =
                &mut builder.column.samples
            else {
                break 'lines;
            };
            let Some(entry) = one_hot_entry(view, at + parser.names[stream].size()) else { break 'lines };
            let OneHotEntry { index, value, end, next_byte } = entry;
            if !builder.is_one_hot || index as usize >= *dim || builder.line == parser.line_number {
                break 'lines;
            }
            builder.line = parser.line_number;
            memory::push(indices, index as i32);
            memory::push(values, f32::from(value));
            memory::push(sample_offsets, indices.len() as u32);
            builder.num_samples += 1;
            parser.streams.saw(stream);
            (at, is_in_line) = (end, true);
            match next_byte {
                b'|' => {}
                b'\n' => break,
                _ => break 'lines,
            }
        }
        at += 1;
        (line, is_in_line) = (at, false);
    }
    parser.at = if is_in_line { at } else { line };
    is_in_line
}
