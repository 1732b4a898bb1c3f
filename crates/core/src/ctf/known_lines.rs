//! Short lines that are alike.

use super::builder::Builder;
use super::parse::Parser;
use super::shortcuts::MOST_PATIENCE;
use super::{Schema, ends_name};
use crate::chunk::{Samples, Values};
use cntkio_simd::{Kernel, LineForm, MAX_NUMBERS};

/// Forms of lines that are remembered.
const MOST_FORMS: usize = 4;

/// Lines that are taken at once.
const MOST_ROWS: usize = 256;

/// Forms of lines that were met, and what their numbers mean.
pub(super) struct KnownLines {
    forms: Vec<(LineForm, Vec<LineSample>)>,
    /// The form of the last line, and for each form the one that came behind it the last time.
    last: usize,
    follows: [usize; MOST_FORMS],
    rows: Vec<[u32; MAX_NUMBERS]>,
    pub(super) patience: usize,
}

impl KnownLines {
    pub(super) fn new(schema: &Schema) -> KnownLines {
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

impl Parser<'_> {
    /// Take the lines from here on that are like one of those before, and get to know the first that is not.
    pub(super) fn known_lines(&mut self) {
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
}
