//! A text that is read block by block, each block made of whole lines.
//!
//! Index, one-pass parser and label files all read this way. The reader of a text is a function of an offset and a
//! buffer, so the core opens no file, and a test reads from memory.

use crate::memory;
use memchr::{memchr, memrchr};
use std::io;
use std::ops::Range;

/// Fill a buffer with the bytes of a text from an offset on.
pub type ReadAt<'a> = &'a (dyn Fn(usize, &mut [u8]) -> io::Result<()> + Sync);

/// A text of a known size, and the function that reads it.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    /// Number of bytes.
    pub size: usize,
    /// The function that reads it. It is never asked for bytes beyond the size.
    pub read: ReadAt<'a>,
}

/// A reader of a text in memory.
pub fn in_memory(text: &[u8]) -> impl Fn(usize, &mut [u8]) -> io::Result<()> + Sync {
    |at, buffer| {
        buffer.copy_from_slice(&text[at..at + buffer.len()]);
        Ok(())
    }
}

/// Fills a buffer with the bytes of a compressed text from an offset on.
pub type PackedReader<'a> = Box<dyn FnMut(usize, &mut [u8]) -> io::Result<()> + Send + 'a>;

/// A compressed text, or the rest of one. Offsets count from its first byte.
pub trait Packed: Sync {
    /// Number of bytes of the text.
    fn size(&self) -> usize;
    /// The access points between two offsets: a reader begins there without decompressing other text.
    fn points_between(&self, range: Range<usize>) -> Vec<usize>;
    /// A reader of parts of the text, which should follow each other.
    fn reader(&self) -> PackedReader<'_>;
}

impl<'a> Text<'a> {
    /// Read the bytes from `at` to before `end` into a buffer, which grows as needed, after its first `used` bytes.
    pub(crate) fn read_into(
        self,
        buffer: &'_ mut Vec<u8>,
        used: usize,
        at: usize,
        end: usize,
    ) -> io::Result<&'_ mut [u8]> {
        let count = end.min(self.size).saturating_sub(at);
        if buffer.len() < used + count {
            if used == 0 {
                // All bytes are read again, so a buffer that is too small is freed first: a long line takes memory
                // once.
                *buffer = Vec::new();
            }
            memory::resize(buffer, used + count, 0);
        }
        let bytes = &mut buffer[used..used + count];
        (self.read)(at, bytes)?;
        Ok(bytes)
    }

    /// Append at most `count` bytes from `at` on, as many as the text has.
    pub(crate) fn append_to(self, bytes: &mut Vec<u8>, at: usize, count: usize) -> io::Result<()> {
        let size = bytes.len();
        memory::resize(bytes, size + count.min(self.size.saturating_sub(at)), 0);
        (self.read)(at, &mut bytes[size..])
    }

    /// The whole lines that lie in a range, and the offset of the first of them; `None` if there are none. The text's
    /// first line starts at `first`.
    pub(crate) fn lines_within(self, first: usize, range: Range<usize>) -> io::Result<Option<(usize, Vec<u8>)>> {
        let begin = range.start.max(first);
        let mut bytes = Vec::new();
        self.append_to(&mut bytes, begin, range.end.saturating_sub(begin))?;
        let lead = if begin == first { Some(0) } else { memchr(b'\n', &bytes).map(|feed| feed + 1) };
        // Only the last line of the text may lack a line feed; any other line is cut at the end of the range.
        if begin + bytes.len() < self.size {
            bytes.truncate(memrchr(b'\n', &bytes).map_or(0, |feed| feed + 1));
        }
        let Some(lead) = lead.filter(|&lead| lead < bytes.len()) else { return Ok(None) };
        bytes.drain(..lead);
        Ok(Some((begin + lead, bytes)))
    }

    /// The lines that start in a range, in blocks of about `block_size` bytes. A line starts at the range's start.
    pub(crate) fn blocks(self, range: Range<usize>, block_size: usize) -> Blocks<'a> {
        // Blocks of 0 bytes would be read forever.
        let block_size = block_size.max(1);
        Blocks {
            text: self,
            at: range.start,
            end: range.end.min(self.size),
            block_size,
            wanted: block_size,
            last: (0, 0),
            longest_line: LONGEST_LINE,
            buffer: Vec::new(),
        }
    }
}

/// Bytes beyond which a line is refused: lengths of sequences have 32 bits.
const LONGEST_LINE: usize = u32::MAX as usize;

/// Reason why a text has no further block.
#[derive(Debug)]
pub(crate) enum Unread {
    /// It cannot be read.
    Failed(io::Error),
    /// A line of 4 GiB or more, which starts here.
    LongLine(usize),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Unread {
        Unread::Failed(error)
    }
}

impl From<Unread> for io::Error {
    fn from(unread: Unread) -> io::Error {
        match unread {
            Unread::Failed(error) => error,
            Unread::LongLine(at) => io::Error::other(format!("a line of 4 GiB or more starts at byte {at}")),
        }
    }
}

/// Whole lines of a text, block after block.
///
/// ```text
///        start of the range                         end of the range
///              v                                        v
///  …line\nline\nline\nline\nline\nline\nline\nline\nline\nline\nline\n…
///         └─── block ───┘└──── block ──────┘└──── block ─────┘
/// ```
pub(crate) struct Blocks<'a> {
    text: Text<'a>,
    /// Start of the next block.
    at: usize,
    /// End of the range. The last block ends with the line that contains it.
    end: usize,
    block_size: usize,
    /// Bytes to read for the next block.
    wanted: usize,
    /// Start of the last block, and bytes that were read for it.
    last: (usize, usize),
    longest_line: usize,
    buffer: Vec<u8>,
}

impl<'a> Blocks<'a> {
    /// Skip to the first line that starts in the range. Without this, a line must start with the range.
    pub(crate) fn skip_to_line_start(mut self) -> Result<Blocks<'a>, Unread> {
        self.at -= 1; // a line starts here if the byte before is a line feed
        while self.at < self.end {
            let bytes = self.text.read_into(&mut self.buffer, 0, self.at, self.at + self.block_size)?;
            let (feed, count) = (memchr(b'\n', bytes), bytes.len());
            self.at += feed.map_or(count, |feed| feed + 1);
            if feed.is_some() {
                break;
            }
        }
        Ok(self)
    }

    /// The next block and its offset; `None` at the end of the range.
    pub(crate) fn next_block(&mut self) -> Result<Option<(usize, &[u8])>, Unread> {
        if self.at >= self.end {
            return Ok(None);
        }
        let (begin, left) = (self.at, self.end - self.at);
        // With the last block, read the bytes that its last line probably has beyond the end of the range.
        let mut count = if self.wanted < left { self.wanted } else { left + self.block_size / 16 };
        loop {
            let bytes = self.text.read_into(&mut self.buffer, 0, begin, begin.saturating_add(count))?;
            let num_read = bytes.len();
            let line_end = if num_read < left {
                memrchr(b'\n', bytes).map(|feed| feed + 1)
            } else {
                let in_last_line = left - 1;
                let line_end = memchr(b'\n', &bytes[in_last_line..]).map(|feed| in_last_line + feed + 1);
                line_end.or((begin + num_read == self.text.size).then_some(num_read))
            };
            if let Some(line_end) = line_end {
                self.at = begin + line_end;
                self.wanted = self.block_size;
                self.last = (begin, num_read);
                return Ok(Some((begin, &self.buffer[..line_end])));
            }
            // Whole lines may come before the line that goes beyond the range.
            let line = memrchr(b'\n', &bytes[..num_read.min(left - 1)]).map_or(0, |feed| feed + 1);
            if num_read - line > self.longest_line {
                return Err(Unread::LongLine(begin + line));
            }
            // Each try reads the block again from its start, so a fixed step would make the time quadratic in the
            // line's length.
            count = 2 * num_read;
        }
    }

    /// Go back to the start of a line in the last block; the next block will start with this line. If this is the first
    /// line of the last block, the next block will be larger.
    pub(crate) fn go_back(&mut self, at: usize) {
        self.at = at;
        let (begin, num_read) = self.last;
        // Without more bytes, the same block would come again, forever.
        if at == begin {
            self.wanted = num_read.saturating_mul(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_reported_and_no_shorter_one() {
        let text = b"|a 1\n|a 2 3 4 5 6 7 8 9\n|a 1\n";
        let read = in_memory(text);
        let starts = |longest_line| {
            let text = Text { size: text.len(), read: &read };
            let mut blocks = Blocks { longest_line, ..text.blocks(0..text.size, 5) };
            let mut starts = vec![];
            loop {
                match blocks.next_block() {
                    Ok(Some((begin, _))) => starts.push(begin),
                    Ok(None) => return (starts, None),
                    Err(Unread::LongLine(at)) => return (starts, Some(at)),
                    Err(other) => panic!("{other:?}"),
                }
            }
        };
        assert_eq!(starts(20), (vec![0, 5, 24], None));
        assert_eq!(starts(9), (vec![0], Some(5)));
    }

    #[test]
    fn a_long_line_is_named_by_its_start_in_the_last_block_of_a_range() {
        let text = b"|a 1\n|a 2 3 4 5 6 7 8 9\n|a 1\n";
        let read = in_memory(text);
        let text = Text { size: text.len(), read: &read };
        let first = |longest_line| {
            let mut blocks = Blocks { longest_line, ..text.blocks(0..6, 100) };
            match blocks.next_block() {
                Ok(Some((_, block))) => Ok(block.len()),
                Err(Unread::LongLine(at)) => Err(at),
                other => panic!("{other:?}"),
            }
        };
        // The first read has the line before and seven bytes of the long line.
        assert_eq!((first(6), first(7), first(11)), (Err(5), Ok(24), Ok(24)));
    }

    #[test]
    fn blocks_of_neighbouring_ranges_have_each_line_once() {
        let lines: Vec<u8> = (0..60).flat_map(|size| [vec![b'x'; size * 7 % 23], vec![b'\n']].concat()).collect();
        for text in [&lines[..], &lines[..lines.len() - 1], b"", b"\n", b"abc"] {
            let read = in_memory(text);
            let text_of = Text { size: text.len(), read: &read };
            for (middle, block_size) in (0..=text.len()).flat_map(|middle| [1, 4, 1000].map(|size| (middle, size))) {
                let mut whole = vec![];
                for range in [0..middle, middle..text.len()] {
                    let is_first = range.start == 0;
                    let blocks = text_of.blocks(range, block_size);
                    let mut blocks = if is_first { blocks } else { blocks.skip_to_line_start().unwrap() };
                    while let Some((begin, block)) = blocks.next_block().unwrap() {
                        assert_eq!(begin, whole.len());
                        assert!(block.ends_with(b"\n") || begin + block.len() == text.len());
                        whole.extend_from_slice(block);
                    }
                }
                assert_eq!(whole, text);
            }
        }
    }

    #[test]
    fn lines_within_a_range_are_whole() {
        let text = b"one\ntwo\nthree";
        let read = in_memory(text);
        let text = Text { size: text.len(), read: &read };
        let within = |range| text.lines_within(0, range).unwrap().map(|(at, lines)| (at, String::from_utf8(lines)));
        assert_eq!(within(0..9), Some((0, Ok("one\ntwo\n".to_owned()))));
        assert_eq!(within(1..13), Some((4, Ok("two\nthree".to_owned()))));
        assert_eq!(within(1..6), None);
    }
}
