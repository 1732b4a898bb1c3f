//! A shortcut over short lines that are alike: with AVX-512, a line of at most 64 bytes is one block, which is parsed
//! at once.
//!
//! A worked example. The parser meets this line for the first time:
//!
//! ```text
//! 27 |word 536:1 |tag 25:1\n
//! ```
//!
//! 1. The kernel separates it ([`Kernel::line_form`]) into numbers and a *skeleton*, the bytes of the line without its
//!    numbers. A number belongs before each marked byte of the skeleton:
//!
//!    ```text
//!    numbers    27, 536, 1, 25, 1
//!    skeleton   " |word : |tag :\n"
//!                ^      ^^     ^^
//!    ```
//!
//! 2. [`meaning`] reads the skeleton once, as the grammar reads a line: number 0 is the id, numbers 1 and 2 are an
//!    entry of `word`, numbers 3 and 4 an entry of `tag`. These are two [`LineSample`]s. The dimensions of `word` and
//!    `tag` become the limits of numbers 1 and 3. A form that contains anything except an id and sparse samples is
//!    dropped.
//!
//! 3. From then on the kernel compares the following lines with the form ([`Kernel::lines_of_form`]), and appends a row
//!    of numbers for each equal line. It stops at a line of another skeleton, at a number that reaches its limit, and
//!    wherever it is not certain:
//!
//!    ```text
//!    27 |word 8596:1 |tag 25:1\n        row  27, 8596, 1, 25, 1
//!    27 |word 190:1 |tag 3:1\n          row  27, 190, 1, 3, 1
//!    27 |word 7:1 |tag 3:1 |class 2:1\n another form: the kernel stops here
//!    ```
//!
//! 4. Each [`LineSample`] appends its columns of the rows: `word` gets the indices 8596 and 190, `tag` gets 25 and 3.
//!
//! Without this shortcut, `seqs` is parsed at 0.72 times the speed; with the kernel for long lines in its place, at
//! 0.45 times the speed.

use super::builder::Builder;
use super::line::{LineParser, Prediction};
use super::shortcuts::MOST_PATIENCE;
use super::{Schema, ends_name};
use crate::chunk::{Samples, Values};
use crate::memory;
use cntkio_simd::{Kernel, LineForm, MAX_NUMBERS};

/// Forms of lines that are remembered.
const MOST_FORMS: usize = 4;
/// Lines that are taken at once.
const MOST_ROWS: usize = 256;

/// The forms of lines met so far.
pub(super) struct KnownLines {
    /// Each form, and the meaning of its numbers.
    forms: Vec<(LineForm, Vec<LineSample>)>,
    next_form: Prediction,
    /// The numbers of lines that were taken.
    rows: Vec<[u32; MAX_NUMBERS]>,
    /// Number of failed attempts after which the shortcut is no longer tried.
    patience: usize,
}

impl KnownLines {
    pub(super) fn new(schema: &Schema) -> KnownLines {
        let patience = if schema.has_words { 0 } else { MOST_PATIENCE };
        KnownLines { forms: Vec::new(), next_form: Prediction::new(MOST_FORMS), rows: Vec::new(), patience }
    }

    #[inline]
    pub(super) fn is_worth_a_try(&self) -> bool {
        self.patience > 0
    }

    /// Read the rows of the lines from `at` on that are of one known form. Returns the offset after them, and the form.
    #[inline]
    fn read(&mut self, kernel: Kernel, bytes: &[u8], at: usize, end: usize) -> Option<(usize, usize)> {
        self.rows.clear();
        let mut form = self.next_form.expected();
        for _ in 0..self.forms.len() {
            let stop = kernel.lines_of_form(bytes, at, end, &self.forms[form].0, MOST_ROWS, &mut self.rows);
            if stop > at {
                self.next_form.saw(form);
                return Some((stop, form));
            }
            form = if form + 1 == self.forms.len() { 0 } else { form + 1 };
        }
        None
    }

    /// Take the lines from here on that have a known form, and learn the form of the first line that does not.
    pub(super) fn take(&mut self, parser: &mut LineParser) {
        let (view, end) = (parser.sight.view, parser.sight.bytes.len());
        while parser.at < end {
            let Some((stop, form)) = self.read(parser.kernel, view, parser.at, end) else { break };
            for sample in &self.forms[form].1 {
                sample.append(&mut parser.builders[sample.stream], &self.rows);
            }
            self.patience = (self.patience + self.rows.len()).min(MOST_PATIENCE);
            parser.at = stop;
        }
        if parser.at < end {
            self.patience -= 1;
            if self.forms.len() < MOST_FORMS
                && let Some(mut form) = parser.kernel.line_form(view, parser.at)
                && let Some(samples) = meaning(&mut form, parser.schema)
                && self.forms.iter().all(|(known, _)| *known != form)
            {
                self.forms.push((form, samples));
            }
        }
    }
}

/// A sparse sample of a line: `num_entries` entries, each an index and a value, from number `first` of the line on.
struct LineSample {
    stream: usize,
    first: usize,
    num_entries: usize,
}

impl LineSample {
    /// Append this sample of each line.
    fn append(&self, builder: &mut Builder, rows: &[[u32; MAX_NUMBERS]]) {
        let Samples::Sparse { sample_offsets, indices, values, .. } = &mut builder.column.samples else {
            unreachable!("a sparse stream has a sparse column")
        };
        let first_entry = indices.len() as u32;
        // Most samples have one entry, and a loop without an inner loop is the fastest.
        if let (1, Values::F32(values), index) = (self.num_entries, &mut *values, self.first % MAX_NUMBERS) {
            let value = (index + 1) % MAX_NUMBERS;
            memory::extend(indices, rows.iter().map(|row| row[index] as i32));
            memory::extend(values, rows.iter().map(|row| row[value] as f32));
        } else {
            for row in rows {
                for entry in row[self.first..self.first + 2 * self.num_entries].as_chunks::<2>().0 {
                    memory::push(indices, entry[0] as i32);
                    match values {
                        Values::F32(values) => memory::push(values, entry[1] as f32),
                        Values::F64(values) => memory::push(values, entry[1].into()),
                        _ => unreachable!("a text in CNTK's format has floats"),
                    }
                }
            }
        }
        let num_entries = self.num_entries as u32;
        memory::reserve(sample_offsets, rows.len());
        sample_offsets.extend((1..=rows.len() as u32).map(|row| first_entry + row * num_entries));
        builder.num_samples += rows.len() as u32;
    }
}

/// The meaning of a line of this form, if it is an id and sparse samples of at least one entry each. Sets the form's
/// limits to the dimensions.
fn meaning(form: &mut LineForm, schema: &Schema) -> Option<Vec<LineSample>> {
    let mut skeleton = Skeleton { text: form.skeleton(), form, at: 0 };
    let mut limits = form.limits;
    let mut samples = Vec::new();
    let mut number = usize::from(skeleton.is_number_next()); // the id
    skeleton.skip(b" \t");
    while skeleton.next_byte() == b'|' {
        let name_start = skeleton.at + 1;
        let size = skeleton.text[name_start..].iter().position(|&byte| ends_name(byte))?;
        let name_end = name_start + size;
        if (name_start..=name_end).any(|at| form.has_number_before(at)) {
            return None;
        }
        let name = &skeleton.text[name_start..name_end];
        let stream = schema.streams.iter().position(|stream| stream.is_sparse && stream.name == name)?;
        skeleton.at = name_end;
        let first = number;
        while skeleton.skip(b" \t") && skeleton.is_number_next() {
            if skeleton.next_byte() != b':' || !form.has_number_before(skeleton.at + 1) {
                return None;
            }
            limits[number] = schema.streams[stream].dim as u32;
            number += 2;
            skeleton.at += 1;
        }
        if number == first {
            return None;
        }
        if samples.iter().any(|other: &LineSample| other.stream == stream) {
            return None; // worth a warning
        }
        samples.push(LineSample { stream, first, num_entries: (number - first) / 2 });
    }
    let is_at_end = matches!(&skeleton.text[skeleton.at..], b"\n" | b"\r\n");
    if !is_at_end || samples.is_empty() {
        return None;
    }
    form.limits = limits;
    Some(samples)
}

/// A position in a line of which numbers are left out.
struct Skeleton<'a> {
    /// Ends with a line feed, beyond which no function moves.
    text: &'a [u8],
    form: &'a LineForm,
    at: usize,
}

impl Skeleton<'_> {
    fn next_byte(&self) -> u8 {
        self.text[self.at]
    }

    fn is_number_next(&self) -> bool {
        self.form.has_number_before(self.at)
    }

    /// Skip bytes that are among `bytes`, up to the next number. Returns whether any byte was skipped.
    fn skip(&mut self, bytes: &[u8]) -> bool {
        let start = self.at;
        while bytes.contains(&self.next_byte()) && (self.at == start || !self.is_number_next()) {
            self.at += 1;
        }
        self.at > start
    }
}
