//! The exact parser of lines: it reads any text, and finds every fault.
//!
//! ```text
//! line      [id] item item … LF
//! item      |name samples' values   |# a comment, up to the next pipe or line feed   |an unknown name, likewise
//! ```
//!
//! The shortcuts use the same [`LineParser`]: they take samples or whole lines from its position on, and advance the
//! position.

use super::builder::Builder;
use super::findings::Stop;
use super::ids::{size_of_digits, size_of_id, size_of_word};
use super::nothing::is_nothing;
use super::samples::{Fault, Sight, dense_values, sparse_entries};
use super::{Finding, Findings, Kind, Schema, Stream, ends_name};
use crate::chunk::{Samples, in_either_precision};
use cntkio_simd::{Kernel, ShortText};
use memchr::{memchr, memchr2};
use std::collections::HashMap;

/// Prediction of the next item: for each item, the item that followed it last time. Most lines of a file are alike.
pub(super) struct Prediction {
    last: usize,
    next: Vec<usize>,
}

impl Prediction {
    /// A prediction for items below `count`.
    pub(super) fn new(count: usize) -> Prediction {
        // `expected` reads an item even if the schema has no streams.
        Prediction { last: 0, next: vec![0; count.max(1)] }
    }

    /// The item that is expected to come next.
    #[inline(always)]
    pub(super) fn expected(&self) -> usize {
        self.next[self.last]
    }

    /// Note an item.
    #[inline(always)]
    pub(super) fn saw(&mut self, item: usize) {
        self.next[self.last] = item;
        self.last = item;
    }
}

/// A parser of the lines in one text, at some offset of one sequence.
pub(super) struct LineParser<'a> {
    pub(super) kernel: Kernel,
    pub(super) schema: &'a Schema,
    pub(super) builders: &'a mut [Builder],
    pub(super) findings: &'a mut Findings,
    /// The text, which begins at `first_byte` of the whole.
    pub(super) text: &'a [u8],
    pub(super) first_byte: usize,
    /// The text of the sequence, the sequence's number, and the offset that the parser has reached.
    pub(super) sight: Sight<'a>,
    pub(super) sequence: usize,
    pub(super) at: usize,
    /// Identifier of the line: the offset of its first byte in the whole text, plus 1. A builder remembers the line of
    /// its last sample, so a second sample on the line is noticed.
    pub(super) line_number: usize,
    /// A pipe, the name and a space, for each stream.
    pub(super) names: Vec<ShortText>,
    /// The stream of each name, if there are too many for a linear search.
    by_name: Option<HashMap<&'a [u8], usize>>,
    longest_name: usize,
    pub(super) streams: Prediction,
}

/// A stream's name between a pipe and a space; a name that does not fit is left to [`LineParser::name`].
fn between_pipe_and_space(stream: &Stream) -> ShortText {
    let is_name = !stream.name.iter().any(|&byte| ends_name(byte));
    is_name.then(|| ShortText::new(&[b"|", &stream.name, b" "])).flatten().unwrap_or(ShortText::NEVER)
}

/// Largest number of streams whose names are compared one after the other.
const MOST_SEARCHED: usize = 64;

/// The stream of each name. `None` if there are few streams, if a name contains a byte that ends names, or if two names
/// are equal.
fn by_name(streams: &[Stream]) -> Option<HashMap<&[u8], usize>> {
    // A look-up ends the name at the first byte that ends names, so it would never find a name with such a byte in it.
    if streams.len() <= MOST_SEARCHED || streams.iter().any(|stream| stream.name.iter().any(|&byte| ends_name(byte))) {
        return None;
    }
    let by_name: HashMap<_, _> = streams.iter().zip(0..).map(|(stream, number)| (&stream.name[..], number)).collect();
    (by_name.len() == streams.len()).then_some(by_name)
}

/// The outcome of an item.
enum Item {
    /// A sample.
    Sample,
    /// A comment, an unknown name or a fault: the text up to the next pipe or line feed is skipped.
    Nothing,
}

impl<'a> LineParser<'a> {
    /// A parser of lines in `text`, which begins at `first_byte` of the whole.
    pub(super) fn new(
        text: &'a [u8],
        first_byte: usize,
        schema: &'a Schema,
        builders: &'a mut [Builder],
        findings: &'a mut Findings,
    ) -> LineParser<'a> {
        LineParser {
            kernel: Kernel::selected(),
            schema,
            builders,
            findings,
            text,
            first_byte,
            sight: Sight { bytes: &[], view: &[] },
            sequence: 0,
            at: 0,
            line_number: 0,
            names: schema.streams.iter().map(between_pipe_and_space).collect(),
            by_name: by_name(&schema.streams),
            longest_name: schema.streams.iter().map(|stream| stream.name.len()).max().unwrap_or(0),
            streams: Prediction::new(schema.streams.len()),
        }
    }

    pub(super) fn add_finding(&mut self, kind: Kind, at: usize, stream: Option<usize>, found: u64) -> Result<(), Stop> {
        if self.schema.is_subset && matches!(kind, Kind::LineWithoutSample | Kind::MissingStream | Kind::TooFewSamples)
        {
            return Ok(());
        }
        self.findings.add(Finding { kind, at: self.first_byte + at, sequence: self.sequence, stream, found })
    }

    /// True if the line at an offset is blank or contains only comments.
    pub(super) fn is_nothing(&self, line: usize) -> bool {
        let rest = &self.sight.bytes[line..];
        // Names and comments begin at a pipe, even if it follows the word without white space; see `skip_id`.
        let id_size = if self.schema.has_words {
            let word = &rest[..size_of_word(rest)];
            memchr(b'|', word).unwrap_or(word.len())
        } else {
            size_of_digits(rest)
        };
        is_nothing(rest, id_size)
    }

    /// Parse a line, or the rest of a line that had a sample. Returns whether it had a sample.
    pub(super) fn line(&mut self, mut has_sample: bool) -> Result<bool, Stop> {
        // The shortcut that took a sample of this line has set the line's number and skipped the id.
        if !has_sample {
            self.line_number = self.first_byte + self.at + 1;
            self.skip_id();
            self.note_lost_head()?;
        }
        while let Some(&byte) = self.sight.bytes.get(self.at) {
            if byte == b'\n' {
                self.at += 1;
                return Ok(has_sample);
            }
            // As in CNTK, control bytes and bytes above 0x7F separate samples, without a fault.
            if byte <= b' ' || byte >= 0x80 {
                self.at += 1;
                continue;
            }
            let pipe = self.at;
            let item = match self.stream_at(pipe) {
                Some(stream) => {
                    // The space after the name stays, because kernels expect a blank before the first value.
                    self.at += self.names[stream].size() - 1;
                    self.streams.saw(stream);
                    self.sample(pipe, stream)?
                }
                None => self.item(byte)?,
            };
            match item {
                Item::Sample => has_sample = true,
                Item::Nothing => self.skip_to_pipe_or_line_end(),
            }
        }
        Ok(has_sample)
    }

    #[inline]
    fn skip_id(&mut self) {
        if self.schema.has_words {
            let rest = &self.sight.bytes[self.at..];
            let word = &rest[..size_of_word(rest)];
            // The index takes a pipe into the word, but, as in CNTK, the sample after the pipe is read.
            self.at += memchr(b'|', word).unwrap_or(word.len());
        } else {
            self.at += size_of_id(self.sight.bytes, self.at);
        }
    }

    /// Note a line that begins with another character than ASCII and blanks, such as the digit of another script. As
    /// in CNTK, such a line has no id and continues the sequence before it.
    fn note_lost_head(&mut self) -> Result<(), Stop> {
        let rest = &self.sight.bytes[self.at..];
        let Some(&byte) =
            rest.first().filter(|&&byte| byte >= 0x80 && self.first_byte + self.at + 1 == self.line_number)
        else {
            return Ok(());
        };
        let head = String::from_utf8_lossy(&rest[..rest.len().min(4)]);
        match head.chars().next() {
            Some(first) if first.is_whitespace() || first == '\u{feff}' => Ok(()),
            _ => self.add_finding(Kind::HighByte, self.at, None, byte.into()),
        }
    }

    /// The stream whose name is at `at` between a pipe and a space. This is the usual case, which needs no look at
    /// single bytes. If there are many streams, only the name of the expected stream is compared.
    #[inline(always)]
    pub(super) fn stream_at(&self, at: usize) -> Option<usize> {
        // A name ends before its line ends, so the comparison may use the view, which may extend beyond the sequence.
        let head = self.sight.view.get(at..)?.first_chunk()?;
        let expected = self.streams.expected();
        if self.names.get(expected)?.begins(head) {
            return Some(expected);
        }
        if self.by_name.is_some() {
            return None;
        }
        self.names.iter().position(|name| name.begins(head))
    }

    fn skip_to_pipe_or_line_end(&mut self) {
        let rest = &self.sight.bytes[self.at..];
        self.at += memchr2(b'|', b'\n', rest).unwrap_or(rest.len());
    }

    fn item(&mut self, byte: u8) -> Result<Item, Stop> {
        let pipe = self.at;
        if byte != b'|' {
            self.add_finding(Kind::Junk, pipe, None, byte.into())?;
            return Ok(Item::Nothing);
        }
        self.at += 1;
        let Some(stream) = self.name(pipe)? else { return Ok(Item::Nothing) };
        self.sample(pipe, stream)
    }

    /// Read a name of any length, with anything after it. Returns the stream of that name.
    fn name(&mut self, pipe: usize) -> Result<Option<usize>, Stop> {
        let rest = &self.sight.bytes[self.at..];
        if let Some(stream) = self.named_stream(rest) {
            self.at += self.schema.streams[stream].name.len();
            self.streams.saw(stream);
            return Ok(Some(stream));
        }
        if rest.first() == Some(&b'#') {
            return Ok(None);
        }
        // As in CNTK, a name that is longer than every known name is not a fault at the end of the data.
        match rest.iter().take(self.longest_name + 1).position(|&byte| ends_name(byte)) {
            Some(0) => self.add_finding(Kind::PipeWithoutName, pipe, None, 0)?,
            None if rest.len() <= self.longest_name => {
                self.at = self.sight.bytes.len();
                self.add_finding(Kind::NameAtEnd, pipe, None, 0)?;
            }
            _ if self.schema.notes_unknown_names => self.add_finding(Kind::UnknownName, pipe, None, 0)?,
            _ => {}
        }
        Ok(None)
    }

    /// The stream whose name the text begins with, up to a byte that ends it.
    fn named_stream(&self, text: &[u8]) -> Option<usize> {
        if let Some(by_name) = &self.by_name {
            let size = text.iter().take(self.longest_name + 1).position(|&byte| ends_name(byte))?;
            return by_name.get(&text[..size]).copied();
        }
        let streams = &self.schema.streams;
        let expected = self.streams.expected();
        (expected..streams.len()).chain(0..expected).find(|&stream| {
            let name = &streams[stream].name[..];
            starts_with(text, name) && text.get(name.len()).is_some_and(|&byte| ends_name(byte))
        })
    }

    /// Read the values of a sample whose pipe is at `pipe`.
    #[inline]
    fn sample(&mut self, pipe: usize, stream: usize) -> Result<Item, Stop> {
        let is_sparse = self.schema.streams[stream].is_sparse;
        match if is_sparse { self.sparse(stream) } else { self.dense(stream) } {
            Ok(short) => {
                if let Some(num_values) = short {
                    self.add_finding(Kind::ShortSample, pipe, Some(stream), num_values)?;
                }
                // CNTK ends a sample at such a byte in silence, but this is rarely intended.
                if let Some(&end) = self.sight.bytes.get(self.at)
                    && end >= 0x80
                {
                    self.add_finding(Kind::HighByte, self.at, Some(stream), end.into())?;
                }
                if std::mem::replace(&mut self.builders[stream].line, self.line_number) == self.line_number {
                    self.add_finding(Kind::StreamAgain, pipe, Some(stream), 0)?;
                }
                Ok(Item::Sample)
            }
            Err(fault) => {
                self.at = fault.resume;
                // The end of the data has no byte to show, so the fault is reported at the pipe.
                let at = if fault.kind == Kind::EmptyAtEnd { pipe } else { fault.at };
                self.add_finding(fault.kind, at, Some(stream), fault.found)?;
                Ok(Item::Nothing)
            }
        }
    }

    /// Read a dense sample. Returns its number of values if that is below the dimension.
    fn dense(&mut self, stream: usize) -> Result<Option<u64>, Fault> {
        let Samples::Dense { dim, values } = &mut self.builders[stream].column.samples else {
            unreachable!("a dense stream has a dense column")
        };
        let dim = *dim;
        let (end, num_values) = in_either_precision!(
            values,
            values => dense_values(self.kernel, self.sight, self.at, dim, values)?,
            else unreachable!("a text in CNTK's format has floats")
        );
        self.at = end;
        self.builders[stream].num_samples += 1;
        Ok((num_values < dim).then_some(num_values as u64))
    }

    /// Read a sparse sample, which is never too short.
    fn sparse(&mut self, stream: usize) -> Result<Option<u64>, Fault> {
        let (kernel, sight, at) = (self.kernel, self.sight, self.at);
        let Samples::Sparse { dim, indices, values, .. } = &mut self.builders[stream].column.samples else {
            unreachable!("a sparse stream has a sparse column")
        };
        let dim = *dim as u64;
        let read = in_either_precision!(
            values,
            values => sparse_entries(kernel, sight, at, dim, indices, values),
            else unreachable!("a text in CNTK's format has floats")
        );
        let end = match read {
            Ok(end) => end,
            // At the end of the data a sample may be empty if the stream had an entry in this sequence.
            Err(Fault { kind: Kind::EmptyAtEnd, at, .. }) if self.builders[stream].has_entries_in_sequence() => at,
            Err(fault) => return Err(fault),
        };
        self.at = end;
        self.builders[stream].end_sparse_sample();
        Ok(None)
    }
}

/// True if `text` starts with a name. Names are short, so a call of `memcmp` would take longer than this loop.
#[inline]
fn starts_with(text: &[u8], name: &[u8]) -> bool {
    text.len() >= name.len() && text.iter().zip(name).all(|(a, b)| a == b)
}
