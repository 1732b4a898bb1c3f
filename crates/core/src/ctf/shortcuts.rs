//! Shortcuts over lines of sparse samples without a fault.
//!
//! | shortcut | takes | gain of the parser, one thread |
//! |---|---|---|
//! | [`SparseLines`] | long lines that are alike, on x86-64 | 1.7 times on `sparse` |
//! | [`OneHotLines`] | samples of one entry each, with any kernel | 2.7 times on `seqs` |
//!
//! `bench/corpora.py` writes these corpora. Each shortcut has a limited number of attempts: the parser soon stops
//! trying a shortcut that takes no lines.

use super::builder::Builder;
use super::ids::size_of_id;
use super::index::find_all;
use super::line::LineParser;
use super::{Extent, Schema, ends_name};
use crate::chunk::{MOST_AT_ONCE, NumberType, Samples, Values};
use crate::memory;
use cntkio_simd::{Kernel, ShortText, SparseColumn, SparseForm, digits};
use memchr::memchr;

/// Largest number of failed attempts in a row. A success allows as many more attempts as it took lines or sequences.
const MOST_PATIENCE: usize = 16;
/// Bytes of lines of sparse samples that are taken at once.
const SPARSE_BYTES: usize = 1 << 16;
// A kernel asks for memory for an entry every four bytes, and for 64 more. A longer line only takes more time.
const _: () = assert!(SPARSE_BYTES / 4 + 64 <= MOST_AT_ONCE);
/// Lines of at most this many bytes are left to [`OneHotLines`]: the kernel for long lines parses half as many of them
/// in the same time.
const SHORT_LINE_BYTES: usize = 64;

/// Long lines that are alike: a sparse sample of each stream, always in the same order.
pub(super) struct SparseLines {
    form: Option<SparseForm>,
    /// True if the entries of these lines are appended to the small form as pairs.
    are_pairs: bool,
    line_ends: Vec<usize>,
    patience: usize,
}

impl SparseLines {
    pub(super) fn new(schema: &Schema) -> SparseLines {
        // The kernel takes digits for ids, and writes float32.
        let is_possible = !schema.has_words
            && schema.streams.iter().all(|stream| stream.is_sparse && stream.number == NumberType::F32);
        let patience = if is_possible { MOST_PATIENCE } else { 0 };
        SparseLines { form: None, are_pairs: false, line_ends: Vec::new(), patience }
    }

    #[inline]
    pub(super) fn is_worth_a_try(&self) -> bool {
        self.patience > 0
    }

    /// Take the first of these adjacent sequences, as far as their lines are sparse samples and alike. Returns how many
    /// sequences were taken.
    pub(super) fn take_sequences(&mut self, parser: &mut LineParser, sequences: &[Extent]) -> usize {
        // The exact parser clips extents that lie outside the text.
        let in_text = |offset: usize| offset.checked_sub(parser.first_byte).filter(|&at| at <= parser.text.len());
        let (Some(at), Some(end)) = (in_text(sequences[0].start), in_text(sequences[sequences.len() - 1].end)) else {
            self.patience -= 1;
            return 0;
        };
        self.take(parser, at, end);
        let (mut num_taken, mut num_lines) = (0, 0);
        for extent in sequences {
            // Each line has a sample of each stream: a sequence is sound if it ends with as many lines as the index
            // counted.
            let last_line = (num_lines + extent.length as usize).checked_sub(1);
            let line_end = last_line.and_then(|line| self.line_ends.get(line));
            // An end before the text wraps to a number that is not the end of a line.
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
            builder.count(self.line_ends.len(), self.are_pairs);
            // The exact parser reads the lines of an unsound sequence again, and reports its fault.
            if num_beyond > 0 {
                builder.drop_last(num_beyond as u32);
            }
        }
        self.note(num_taken);
        num_taken
    }

    /// Take the lines at `at` as far as they are sparse samples and alike, each as a sequence. Returns the ends of the
    /// lines that were taken.
    pub(super) fn take_lines(&mut self, parser: &mut LineParser, at: usize) -> &[usize] {
        self.take(parser, at, parser.text.len().min(at.saturating_add(SPARSE_BYTES)));
        let num_lines = self.line_ends.len();
        for builder in &mut *parser.builders {
            let before = builder.num_samples;
            memory::extend(&mut builder.column.sequence_offsets, (0..num_lines as u32).map(|line| before + line + 1));
            builder.count(num_lines, self.are_pairs);
        }
        self.note(num_lines);
        &self.line_ends
    }

    /// Append the samples of the lines from `at` to `end`, as far as they are alike, to the columns, and find the ends
    /// of these lines.
    fn take(&mut self, parser: &mut LineParser, at: usize, end: usize) {
        self.patience -= 1;
        self.line_ends.clear();
        if self.form.is_none() {
            self.form = sparse_form(&parser.text[at..], parser.schema);
        }
        let Some(form) = &self.form else { return };
        // Single lines that the exact parser read are in full width.
        parser.builders.iter_mut().for_each(Builder::settle);
        self.are_pairs = parser.builders.iter_mut().all(Builder::takes_pairs);
        let form = if self.are_pairs { &form.clone().of_pairs() } else { form };
        let columns = parser.builders.iter_mut().map(|builder| builder.sparse(self.are_pairs));
        let mut columns: Vec<SparseColumn> = columns.collect();
        parser.kernel.sparse_lines(parser.text, at, end, form, &mut columns, &mut self.line_ends);
    }

    /// Note the outcome of an attempt.
    fn note(&mut self, num_taken: usize) {
        if num_taken > 0 {
            self.patience = (self.patience + 1 + num_taken).min(MOST_PATIENCE);
        } else {
            // The next attempt learns the form at its own place, where lines may be of another form.
            self.form = None;
        }
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
        // A second sample of a stream on a line is a finding, which only the exact parser records.
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

/// The most streams of a corpus whose one-hot samples are taken by [`OneHotLines`].
const MOST_ONE_HOT_STREAMS: usize = 64;
/// The most entries of a stream that wait for their column.
const MOST_WAITING: usize = 64;
/// Bytes that an index of at most five digits and a [`Tail`] take.
const WINDOW_BYTES: usize = 5 + 16;
/// Bytes in which colons are found at once: their positions stay in the cache.
const COLONS_BYTES: usize = 1 << 13;

/// The colons of a text, found a part of the text at a time.
///
/// An index ends at a colon. So the place of an entry is known before the entries in front of it are read, and the
/// processor reads several entries at once.
#[derive(Default)]
struct Colons {
    /// The colons of the part, counted from its first byte.
    places: Vec<u32>,
    /// The first byte of the part.
    begin: usize,
    /// The first colon that was not asked for yet, counted in `places`.
    next: usize,
}

impl Colons {
    /// The first colon at `at` or after it that was not asked for yet; `None` if the text has none in a part from there.
    #[inline(always)]
    fn next(&mut self, kernel: Kernel, text: &[u8], at: usize) -> Option<usize> {
        loop {
            let Some(&place) = self.places.get(self.next) else {
                self.find(kernel, text, at)?;
                continue;
            };
            self.next += 1;
            let colon = self.begin + place as usize;
            if colon >= at {
                return Some(colon);
            }
        }
    }

    /// Find the colons of the part from `at` on; `None` if there are none.
    #[cold]
    #[inline(never)]
    fn find(&mut self, kernel: Kernel, text: &[u8], at: usize) -> Option<()> {
        let rest = text.get(at..)?;
        let part = &rest[..rest.len().min(COLONS_BYTES)];
        (self.begin, self.next) = (at, 0);
        find_all(kernel, b':', part, &mut self.places);
        (!self.places.is_empty()).then_some(())
    }
}

/// The text between the index of an entry and the index of the next entry.
///
/// ```text
/// 7 |word 536:1 |tag 25:1          the tail of the word   ":1 |tag "
/// 7 |word 8596:1 |tag 25:1         the tail of the tag    ":1 LF ? |word ", with any id of one digit
/// ```
#[derive(Clone, Copy)]
struct Tail {
    text: ShortText,
    /// The number after the colon.
    value: f32,
    /// The end of the sample, counted from the colon.
    sample_end: usize,
    /// The start of the next line, counted from the colon; 0: the line continues after the sample.
    next_line: usize,
    /// The stream of the next entry; `None` if its name does not fit into the text.
    next: Option<usize>,
}

impl Tail {
    const NEVER: Tail = Tail { text: ShortText::NEVER, value: 0.0, sample_end: 0, next_line: 0, next: None };

    /// The tail from the colon at `colon` on. `None`: this byte is another, or the sample does not end after a value of
    /// a single digit and at most a single space.
    fn at(parser: &LineParser, colon: usize) -> Option<Tail> {
        let text = parser.sight.view;
        let head: &[u8; 16] = text.get(colon..)?.first_chunk()?;
        let value = head[1].wrapping_sub(b'0');
        if head[0] != b':' || value > 9 {
            return None;
        }
        let sample_end = if head[2] == b' ' { 3 } else { 2 };
        let next_line = match head[sample_end..] {
            [b'|', ..] => 0,
            [b'\n', ..] => sample_end + 1,
            [b'\r', b'\n', ..] => sample_end + 2,
            _ => return None,
        };
        let pipe = if next_line > 0 { next_line + size_of_id(text, colon + next_line) } else { sample_end };
        let named = parser.stream_at(colon + pipe).map(|stream| (stream, pipe + parser.names[stream].size()));
        let (next, size) = match named {
            Some((stream, size)) if size <= head.len() => (Some(stream), size),
            // The byte that ends the sample belongs to the text in any case.
            _ => (None, next_line.max(sample_end + 1)),
        };
        // The id of the next line is compared by itself.
        let any = if next_line > 0 { next_line..pipe } else { 0..0 };
        let text = ShortText::of(head, size).with_any(any);
        Some(Tail { text, value: value.into(), sample_end, next_line, next })
    }
}

/// Samples of a stream, of one entry each, that wait for their column, and the last two tails.
///
/// A tail is usually one of the last two of its stream: in the middle of a line, or at its end. Then a comparison stands
/// for reading a value, the end of a line and a name. Appending many entries at once takes fewer instructions than single
/// entries.
struct OneHots {
    /// Bound of the indices; 0 if samples of this stream do not have one entry.
    dim: usize,
    /// The line of the last sample.
    line: usize,
    tail: Tail,
    /// The tail before it.
    other: Tail,
    /// Samples that the builder does not count yet.
    num_new: u32,
    num_waiting: usize,
    indices: [i32; MOST_WAITING],
    values: [f32; MOST_WAITING],
}

impl OneHots {
    fn new() -> OneHots {
        let (tail, other) = (Tail::NEVER, Tail::NEVER);
        let (indices, values) = ([0; MOST_WAITING], [0.0; MOST_WAITING]);
        OneHots { dim: 0, line: 0, tail, other, num_new: 0, num_waiting: 0, indices, values }
    }

    fn begin(&mut self, builder: &Builder) {
        self.line = builder.line;
        self.dim = match &builder.column.samples {
            Samples::Sparse { dim, values: Values::F32(_), .. } if builder.is_one_hot => *dim,
            _ => 0,
        };
    }

    /// Make the tail at a colon the last tail; `None` as in [`Tail::at`].
    #[cold]
    #[inline(never)]
    fn change_tail(&mut self, parser: &LineParser, colon: usize) -> Option<()> {
        let is_other = parser.sight.view[colon..].first_chunk().is_some_and(|head| self.other.text.begins(head));
        let tail = if is_other { self.other } else { Tail::at(parser, colon)? };
        self.other = std::mem::replace(&mut self.tail, tail);
        Some(())
    }

    /// Move the waiting samples into their column.
    #[inline(never)]
    fn flush(&mut self, builder: &mut Builder) {
        let count = std::mem::take(&mut self.num_waiting);
        builder.append_one_hots(&self.indices[..count], &self.values[..count]);
        // The exact parser compares this line, to notice a second sample of the stream on it.
        builder.line = self.line;
    }
}

/// Samples of one entry each, such as words and classes, in lines that contain nothing else. On short lines, the exact
/// parser, which handles all cases, would take most of the time.
///
/// Samples count at once, but their entries wait, also from sequence to sequence: [`OneHotLines::flush`] has to come
/// before anything else reads or changes the columns.
pub(super) struct OneHotLines {
    /// For each stream; none if there are too many streams.
    all: Vec<OneHots>,
    /// True if entries may wait.
    is_ahead: bool,
    colons: Colons,
}

/// Samples that [`OneHotLines::take_samples`] took.
#[derive(Default)]
pub(super) struct Taken {
    /// Whole lines.
    pub(super) num_lines: u32,
    /// True if it stopped after a sample, false if at the start of a line.
    pub(super) is_in_line: bool,
}

impl OneHotLines {
    pub(super) fn new(schema: &Schema) -> OneHotLines {
        let count = schema.streams.len();
        let count = if count > MOST_ONE_HOT_STREAMS { 0 } else { count };
        let all = (0..count).map(|_| OneHots::new()).collect();
        OneHotLines { all, is_ahead: false, colons: Colons::default() }
    }

    /// Move the waiting entries into their columns.
    #[inline]
    pub(super) fn flush(&mut self, builders: &mut [Builder]) {
        if std::mem::take(&mut self.is_ahead) {
            let waiting = self.all.iter_mut().zip(builders).filter(|(one, _)| one.num_waiting > 0);
            waiting.for_each(|(one, builder)| one.flush(builder));
        }
    }

    /// [`OneHotLines::flush`], before the parser goes back to an earlier place.
    pub(super) fn go_back(&mut self, builders: &mut [Builder]) {
        self.flush(builders);
        self.colons = Colons::default();
    }

    /// Take samples from the parser's position on, of lines that start before `end`. Stops after a sample, or at the
    /// start of a line, at the latest of a line with another id.
    pub(super) fn take_samples(&mut self, parser: &mut LineParser, end: usize) -> Taken {
        let (text, first_byte) = (parser.sight.view, parser.first_byte);
        // The start of the line, and the end of its last sample.
        let (mut line, mut sample_end) = (parser.at, None);
        let pipe = line + size_of_id(text, line);
        let mut next = parser.stream_at(pipe);
        let Some(first) = next.filter(|&stream| !self.all.is_empty() && parser.builders[stream].is_one_hot) else {
            return Taken::default();
        };
        let id = id_at(text, line, pipe + 1 - line);
        let mut at = pipe + parser.names[first].size();
        if !self.is_ahead {
            self.is_ahead = true;
            self.all.iter_mut().zip(&*parser.builders).for_each(|(one, builder)| one.begin(builder));
        }
        let (all, colons) = (&mut self.all[..], &mut self.colons);
        let mut line_number = first_byte + line + 1;
        let mut num_lines = 0;
        while line < end {
            let stream = match next {
                Some(stream) => stream,
                None => {
                    let pipe = sample_end.unwrap_or_else(|| line + size_of_id(text, line));
                    let Some(stream) = parser.stream_at(pipe) else { break };
                    at = pipe + parser.names[stream].size();
                    stream
                }
            };
            let Some(colon) = colons.next(parser.kernel, parser.text, at) else { break };
            let Some(window) = text.get(at..).and_then(<[u8]>::first_chunk::<WINDOW_BYTES>) else { break };
            // After more digits, the window would have fewer than the sixteen bytes of a tail.
            let num_digits = colon - at;
            if !(1..=5).contains(&num_digits) {
                break;
            }
            let word = u64::from_le_bytes(*window.first_chunk().expect("a window has eight bytes"));
            let Some(index) = digits::whole(word, num_digits as u32) else { break };
            let one = &mut all[stream];
            // An index out of range and a second sample on a line are findings, which only the exact parser records.
            // The bound 0 leaves other streams to it.
            if index as usize >= one.dim || one.line == line_number {
                break;
            }
            let head = window[num_digits..].first_chunk().expect("sixteen bytes follow five digits");
            if !one.tail.text.begins(head) && one.change_tail(parser, colon).is_none() {
                break;
            }
            one.line = line_number;
            // Fewer than `MOST_WAITING` samples wait here. The remainder shows this to the compiler, which then checks
            // no bounds.
            one.indices[one.num_waiting % MOST_WAITING] = index as i32;
            one.values[one.num_waiting % MOST_WAITING] = one.tail.value;
            one.num_waiting += 1;
            one.num_new += 1;
            if one.num_waiting == MOST_WAITING {
                one.flush(&mut parser.builders[stream]);
            }
            at = colon + one.tail.text.size();
            next = one.tail.next;
            sample_end = Some(colon + one.tail.sample_end);
            if one.tail.next_line > 0 {
                (line, sample_end) = (colon + one.tail.next_line, None);
                line_number = first_byte + line + 1;
                num_lines += 1;
                if !text.get(line..).and_then(<[u8]>::first_chunk).is_some_and(|head| id.begins(head)) {
                    break;
                }
            }
        }
        for (one, builder) in all.iter_mut().zip(&mut *parser.builders) {
            builder.num_samples += std::mem::take(&mut one.num_new);
        }
        parser.line_number = line_number;
        parser.at = sample_end.unwrap_or(line);
        Taken { num_lines, is_in_line: sample_end.is_some() }
    }
}

/// The id at a position, of `size` bytes with the pipe after it; nothing begins with an id that is too long.
fn id_at(text: &[u8], at: usize, size: usize) -> ShortText {
    let head = text.get(at..).and_then(<[u8]>::first_chunk).filter(|_| size <= 16);
    head.map_or(ShortText::NEVER, |head| ShortText::of(head, size))
}
