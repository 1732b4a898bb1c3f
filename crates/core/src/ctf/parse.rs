//! The parser: the grammar of a sequence's text.

use super::builder::Builder;
use super::findings::Stop;
use super::known_lines::KnownLines;
use super::shortcuts::{SparseLines, num_adjacent};
use super::{Extent, Finding, Findings, Kind, Schema, Stream, ends_name, word_size};
use crate::chunk::{Samples, Values};
use crate::number::{self, Element};
use cntkio_simd::{Kernel, digits};
use memchr::{memchr, memchr2};

/// Why a sample was dropped.
struct Fault {
    kind: Kind,
    /// Where the fault is reported.
    at: usize,
    /// Where parsing goes on.
    resume: usize,
    found: u64,
}

/// A position in the text of one sequence. `bytes` ends where the sequence ends.
pub(super) struct Parser<'a> {
    pub(super) kernel: Kernel,
    pub(super) bytes: &'a [u8],
    /// What kernels may look at. They stop at every line feed, so that text behind one is safe to show them; it
    /// spares them the care for the end of the slice on every line.
    pub(super) view: &'a [u8],
    pub(super) at: usize,
    sequence: usize,
    pub(super) schema: &'a Schema,
    longest_name: usize,
    pub(super) names: Vec<Name>,
    /// The stream of the last sample, and for each stream the one that came behind it the last time.
    pub(super) last_stream: usize,
    follows: Vec<usize>,
    pub(super) builders: &'a mut [Builder],
    findings: &'a mut Findings,
    pub(super) lines: KnownLines,
    pub(super) sparse_lines: SparseLines,
    /// Where the text at hand begins in the whole.
    pub(super) first_byte: usize,
    pub(super) text: &'a [u8],
}

/// A stream's name as a word to compare with: a pipe, the name and a space.
pub(super) struct Name {
    word: u128,
    /// Its bytes; no text fits a name that is too long for it.
    mask: u128,
    pub(super) size: usize,
}

impl Name {
    fn new(stream: &Stream) -> Name {
        let size = stream.name.len() + 2;
        let mut bytes = [0; 16];
        match bytes.get_mut(..size) {
            Some(bytes) if !stream.name.iter().any(|&byte| ends_name(byte)) => {
                bytes[0] = b'|';
                bytes[1..size - 1].copy_from_slice(&stream.name);
                bytes[size - 1] = b' ';
            }
            _ => return Name { word: 1, mask: 0, size },
        }
        Name { word: u128::from_le_bytes(bytes), mask: u128::MAX >> (128 - 8 * size), size }
    }

    /// Whether these bytes, the first one lowest, begin with it.
    #[inline]
    fn begins(&self, head: u128) -> bool {
        head & self.mask == self.word
    }
}

/// What became of an item.
enum Item {
    Sample,
    /// A comment, an unknown name or a fault: nothing is kept up to the next pipe or line feed.
    Nothing,
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
            kernel: Kernel::selected(),
            bytes: &[],
            view: &[],
            at: 0,
            sequence: 0,
            schema,
            longest_name: schema.streams.iter().map(|stream| stream.name.len()).max().unwrap_or(0),
            names: schema.streams.iter().map(Name::new).collect(),
            last_stream: schema.streams.len().saturating_sub(1),
            follows: (1..schema.streams.len()).chain([0]).collect(),
            builders,
            findings,
            lines: KnownLines::new(schema),
            sparse_lines: SparseLines::new(schema),
            first_byte,
            text,
        }
    }

    /// Parse sequences, which are numbered from `first_number`.
    pub(super) fn sequences(&mut self, sequences: &[Extent], first_number: usize) -> Result<(), Stop> {
        let (text, first_byte) = (self.text, self.first_byte);
        let (mut number, mut run_end) = (0, 0);
        while let Some(extent) = sequences.get(number) {
            if self.sparse_lines.patience > 0 {
                if number >= run_end {
                    run_end = number + num_adjacent(&sequences[number..]);
                }
                let num_taken = self.sparse_sequences(&sequences[number..run_end]);
                if num_taken > 0 {
                    number += num_taken;
                    continue;
                }
            }
            let end = extent.end.saturating_sub(first_byte).min(text.len());
            self.bytes = &text[..end];
            self.at = extent.start.saturating_sub(first_byte).min(end);
            self.sequence = first_number + number;
            self.view = if self.bytes.last() == Some(&b'\n') { text } else { self.bytes };
            self.sequence(extent)?;
            number += 1;
        }
        Ok(())
    }

    fn note(&mut self, kind: Kind, at: usize, stream: Option<usize>, found: u64) -> Result<(), Stop> {
        self.findings.note(Finding { kind, at: self.first_byte + at, sequence: self.sequence, stream, found })
    }

    fn sequence(&mut self, extent: &Extent) -> Result<(), Stop> {
        let first_byte = self.at;
        while self.at < self.bytes.len() {
            if self.lines.patience > 0 {
                self.known_lines();
                if self.at >= self.bytes.len() {
                    break;
                }
            }
            let has_sample = self.one_hot_lines();
            if self.at >= self.bytes.len() {
                break;
            }
            let line = self.at;
            if !self.line(has_sample)? {
                self.note(Kind::LineWithoutSample, line, None, 0)?;
            }
        }
        let (mut most, mut longest) = (0, None);
        for stream in 0..self.builders.len() {
            let num_samples = self.builders[stream].num_in_sequence();
            if num_samples == 0 {
                self.note(Kind::MissingStream, first_byte, Some(stream), 0)?;
            }
            let defines_length = self.schema.defining.is_none_or(|defining| defining == stream);
            if defines_length && (num_samples > most || longest.is_none()) {
                (most, longest) = (num_samples, Some(stream));
            }
        }
        if most > extent.length {
            self.note(Kind::TooManySamples, first_byte, longest, most.into())?;
        } else if most < extent.length {
            self.note(Kind::TooFewSamples, first_byte, longest, most.into())?;
        }
        self.builders.iter_mut().for_each(Builder::end_sequence);
        Ok(())
    }

    /// Parse a line, or the rest of one that had a sample; whether it had one, or ended with the data.
    fn line(&mut self, mut has_sample: bool) -> Result<bool, Stop> {
        if !has_sample {
            self.skip_id();
        }
        while let Some(&byte) = self.bytes.get(self.at) {
            if byte == b'\n' {
                self.at += 1;
                return Ok(has_sample);
            }
            if byte <= b' ' || byte >= 0x80 {
                self.at += 1;
                continue;
            }
            let pipe = self.at;
            let item = match self.stream_at(pipe, self.last_stream) {
                Some(stream) => {
                    self.at += self.names[stream].size - 1;
                    self.last_stream = stream;
                    self.sample(pipe, stream)?
                }
                None => self.item(byte)?,
            };
            match item {
                Item::Sample => has_sample = true,
                Item::Nothing => self.skip_to_pipe_or_line_end(),
            }
        }
        Ok(true)
    }

    #[inline]
    fn skip_id(&mut self) {
        if self.schema.has_words {
            let rest = &self.bytes[self.at..];
            let word = &rest[..word_size(rest)];
            self.at += memchr(b'|', word).unwrap_or(word.len());
        } else {
            self.at += size_of_id(self.bytes, self.at);
        }
    }

    /// The stream whose name is here, between a pipe and a space: most often what came behind the `last` one before.
    #[inline(always)]
    pub(super) fn stream_at(&mut self, at: usize, last: usize) -> Option<usize> {
        // A name ends before the line does, so that the view may be used where it goes on behind the sequence.
        let head = self.view.get(at..).and_then(<[u8]>::first_chunk)?;
        let head = u128::from_le_bytes(*head);
        let expected = self.follows[last];
        if self.names[expected].begins(head) {
            return Some(expected);
        }
        let stream = self.names.iter().position(|name| name.begins(head))?;
        self.follows[last] = stream;
        Some(stream)
    }

    fn skip_to_pipe_or_line_end(&mut self) {
        let rest = &self.bytes[self.at..];
        self.at += memchr2(b'|', b'\n', rest).unwrap_or(rest.len());
    }

    fn item(&mut self, byte: u8) -> Result<Item, Stop> {
        let pipe = self.at;
        if byte != b'|' {
            self.note(Kind::Junk, pipe, None, byte.into())?;
            return Ok(Item::Nothing);
        }
        self.at += 1;
        let Some(stream) = self.name(pipe)? else { return Ok(Item::Nothing) };
        self.sample(pipe, stream)
    }

    /// Read the values of a sample, whose pipe is given.
    #[inline]
    fn sample(&mut self, pipe: usize, stream: usize) -> Result<Item, Stop> {
        let is_sparse = self.schema.streams[stream].is_sparse;
        match if is_sparse { self.sparse(stream) } else { self.dense(stream) } {
            Ok(short) => {
                if let Some(num_values) = short {
                    self.note(Kind::ShortSample, pipe, Some(stream), num_values)?;
                }
                if let Some(&end) = self.bytes.get(self.at)
                    && end >= 0x80
                {
                    self.note(Kind::HighByte, self.at, Some(stream), end.into())?;
                }
                Ok(Item::Sample)
            }
            Err(fault) => {
                self.at = fault.resume;
                let at = if fault.kind == Kind::EmptyAtEnd { pipe } else { fault.at };
                self.note(fault.kind, at, Some(stream), fault.found)?;
                Ok(Item::Nothing)
            }
        }
    }

    /// Read a name: the stream that it means.
    fn name(&mut self, pipe: usize) -> Result<Option<usize>, Stop> {
        let rest = &self.bytes[self.at..];
        // Streams tend to come in the same order on every line.
        let num_streams = self.schema.streams.len();
        let mut stream = self.follows[self.last_stream];
        for _ in 0..num_streams {
            let name = &self.schema.streams[stream].name[..];
            if starts_with(rest, name) && rest.get(name.len()).is_some_and(|&byte| ends_name(byte)) {
                self.at += name.len();
                self.follows[self.last_stream] = stream;
                self.last_stream = stream;
                return Ok(Some(stream));
            }
            stream = if stream + 1 == num_streams { 0 } else { stream + 1 };
        }
        if rest.first() == Some(&b'#') {
            return Ok(None);
        }
        match rest.iter().take(self.longest_name + 1).position(|&byte| ends_name(byte)) {
            Some(0) => self.note(Kind::PipeWithoutName, pipe, None, 0)?,
            None if rest.len() <= self.longest_name => {
                self.at = self.bytes.len();
                self.note(Kind::NameAtEnd, pipe, None, 0)?;
            }
            _ => {}
        }
        Ok(None)
    }

    /// Read a dense sample; how many values it had, if it was too short.
    fn dense(&mut self, stream: usize) -> Result<Option<u64>, Fault> {
        let Samples::Dense { dim, values } = &mut self.builders[stream].column.samples else {
            unreachable!("a dense stream has a dense column")
        };
        let dim = *dim;
        let (end, num_values) = match values {
            Values::F32(values) => dense_values(self.kernel, self.view, self.bytes, self.at, dim, values)?,
            Values::F64(values) => dense_values(self.kernel, self.view, self.bytes, self.at, dim, values)?,
        };
        self.at = end;
        self.builders[stream].num_samples += 1;
        Ok((num_values < dim).then_some(num_values as u64))
    }

    /// Read a sparse sample. It is never too short.
    fn sparse(&mut self, stream: usize) -> Result<Option<u64>, Fault> {
        let (kernel, view, bytes, at) = (self.kernel, self.view, self.bytes, self.at);
        let Samples::Sparse { dim, indices, values, .. } = &mut self.builders[stream].column.samples else {
            unreachable!("a sparse stream has a sparse column")
        };
        let dim = *dim as u64;
        let read = match values {
            Values::F32(values) => sparse_entries(kernel, view, bytes, at, dim, indices, values),
            Values::F64(values) => sparse_entries(kernel, view, bytes, at, dim, indices, values),
        };
        let end = match read {
            Ok(end) => end,
            // At the end of the data a sample may be empty if the stream had an entry before.
            Err(Fault { kind: Kind::EmptyAtEnd, at, .. }) if self.builders[stream].has_entries_in_sequence() => at,
            Err(fault) => return Err(fault),
        };
        let Samples::Sparse { sample_offsets, indices, .. } = &mut self.builders[stream].column.samples else {
            unreachable!("a sparse stream has a sparse column")
        };
        let is_one_hot = sample_offsets.last().is_some_and(|&first| first as usize + 1 == indices.len());
        sample_offsets.push(indices.len() as u32);
        self.at = end;
        self.builders[stream].num_samples += 1;
        self.builders[stream].is_one_hot = is_one_hot;
        Ok(None)
    }
}

/// Bytes of an id, if there is one, and of a space behind it.
#[inline]
pub(super) fn size_of_id(text: &[u8], at: usize) -> usize {
    if let Some(word) = digits::word_at(text, at)
        && let size @ 0..8 = digits::count(word)
    {
        return size as usize + usize::from((word >> (8 * size)) as u8 == b' ');
    }
    size_of_long_id(&text[at..])
}

/// The same of eight digits and more, and at the end of the text: out of the way of all others.
#[cold]
#[inline(never)]
fn size_of_long_id(rest: &[u8]) -> usize {
    let size = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    size + usize::from(rest.get(size) == Some(&b' '))
}

/// What ends a sample's values: a pipe, a control byte other than a tab, a byte above 0x7F.
#[inline]
fn ends_values(byte: u8) -> bool {
    byte < b' ' || byte == b'|' || byte >= 0x80
}

/// After a number that a kernel was not certain of it is asked again only if it last took this many at once: where
/// exponents are the rule, a kernel would cost more than it saves.
const WORTH_A_KERNEL: u64 = 8;

/// Whether `text` starts with a name; without a call, for names are short.
#[inline]
fn starts_with(text: &[u8], name: &[u8]) -> bool {
    text.len() >= name.len() && text.iter().zip(name).all(|(a, b)| a == b)
}

/// Append a sample of exactly `dim` values; the position behind and the number of values that were written.
/// On a fault nothing is appended.
#[inline]
fn dense_values<T: Element>(
    kernel: Kernel,
    view: &[u8],
    bytes: &[u8],
    start: usize,
    dim: usize,
    out: &mut Vec<T>,
) -> Result<(usize, usize), Fault> {
    let before = out.len();
    let mut at = T::dense_prefix(kernel, view, start, dim, out);
    let mut num_values = (out.len() - before) as u64;
    let mut is_prefix_worth_it = num_values >= WORTH_A_KERNEL;
    let mut surplus = None;
    let failed = loop {
        match bytes.get(at) {
            Some(b' ' | b'\t') => at += 1,
            Some(&byte) if ends_values(byte) => match surplus {
                Some(surplus) => break Fault { kind: Kind::TooManyValues, at: surplus, resume: at, found: num_values },
                None => {
                    out.resize(before + dim, T::default());
                    return Ok((at, num_values as usize));
                }
            },
            None if num_values == 0 => break Fault { kind: Kind::EmptyAtEnd, at, resume: at, found: 0 },
            None => {
                // At the end of the data surplus values are no error and get lost.
                out.resize(before + dim, T::default());
                return Ok((at, num_values as usize));
            }
            Some(_) => match number::read(bytes, at) {
                Ok((value, end)) => {
                    if num_values < dim as u64 {
                        out.push(value);
                    } else if surplus.is_none() {
                        surplus = Some(at);
                    }
                    num_values += 1;
                    at = end;
                    if is_prefix_worth_it && surplus.is_none() {
                        at = T::dense_prefix(kernel, view, end, dim - num_values as usize, out);
                        is_prefix_worth_it = (out.len() - before) as u64 - num_values >= WORTH_A_KERNEL;
                        num_values = (out.len() - before) as u64;
                    }
                }
                Err(bad) => break Fault { kind: Kind::BadNumber, at: bad, resume: bad, found: num_values },
            },
        }
    };
    out.truncate(before);
    Err(failed)
}

/// Append a sample's entries; the position behind. On a fault nothing is appended.
#[inline]
fn sparse_entries<T: Element>(
    kernel: Kernel,
    view: &[u8],
    bytes: &[u8],
    start: usize,
    dim: u64,
    indices: &mut Vec<i32>,
    values: &mut Vec<T>,
) -> Result<usize, Fault> {
    let before = indices.len();
    let small_dim = dim.min(u32::MAX.into()) as u32;
    let mut at = T::sparse_prefix(kernel, view, start, small_dim, indices, values);
    let mut is_prefix_worth_it = (indices.len() - before) as u64 >= WORTH_A_KERNEL;
    let failed = loop {
        match bytes.get(at) {
            Some(b' ' | b'\t') => at += 1,
            Some(&byte) if ends_values(byte) => return Ok(at),
            None if indices.len() > before => return Ok(at),
            None => break Fault { kind: Kind::EmptyAtEnd, at, resume: at, found: 0 },
            Some(_) => match sparse_entry(bytes, at, dim) {
                Ok((index, value, end)) => {
                    indices.push(index);
                    values.push(value);
                    at = end;
                    if is_prefix_worth_it {
                        let so_far = indices.len();
                        at = T::sparse_prefix(kernel, view, end, small_dim, indices, values);
                        is_prefix_worth_it = (indices.len() - so_far) as u64 >= WORTH_A_KERNEL;
                    }
                }
                Err(fault) => break fault,
            },
        }
    };
    indices.truncate(before);
    values.truncate(before);
    Err(failed)
}

#[inline]
fn sparse_entry<T: Element>(bytes: &[u8], start: usize, dim: u64) -> Result<(i32, T, usize), Fault> {
    let mut index = 0u64;
    let mut at = start;
    while let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit <= 9) {
        index = index.saturating_mul(10).saturating_add(digit.into());
        at += 1;
    }
    let fault = |kind, position| Fault { kind, at: position, resume: at, found: index };
    if at == start {
        return Err(fault(Kind::BadIndex, at));
    }
    if index >= dim {
        return Err(fault(Kind::IndexOutOfRange, start));
    }
    if bytes.get(at) != Some(&b':') {
        return Err(fault(Kind::MissingColon, at));
    }
    match number::read(bytes, at + 1) {
        Ok((value, end)) => Ok((index as i32, value, end)),
        Err(bad) => Err(Fault { kind: Kind::BadNumber, at: bad, resume: bad, found: index }),
    }
}
