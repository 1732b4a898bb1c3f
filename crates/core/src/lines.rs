//! The lines of a text in memory, with their offsets.

use crate::memory;
use memchr::{memchr, memchr2};
use std::collections::HashMap;

/// The lines of a text: each with its offset, and without its end.
pub(crate) struct Lines<'a> {
    text: &'a [u8],
    at: usize,
    ends_at_returns: bool,
}

impl<'a> Lines<'a> {
    /// Lines that end with a line feed. A carriage return before the line feed belongs to the line.
    pub(crate) fn new(text: &'a [u8]) -> Lines<'a> {
        Lines { text, at: 0, ends_at_returns: false }
    }

    /// Lines that may also end with a carriage return alone, as in older readers.
    pub(crate) fn of_any_end(text: &'a [u8]) -> Lines<'a> {
        Lines { ends_at_returns: true, ..Lines::new(text) }
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = (usize, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<(usize, &'a [u8])> {
        let rest = self.text.get(self.at..).filter(|rest| !rest.is_empty())?;
        let end = if self.ends_at_returns {
            // Looks no further than this line: without line feeds, the text would be searched to its end for each line.
            // As in `new`, a carriage return stays in the line before a line feed and at the end of the text.
            memchr2(b'\n', b'\r', rest).map(|end| match rest[end..] {
                [b'\r'] | [b'\r', b'\n', ..] => end + 1,
                _ => end,
            })
        } else {
            memchr(b'\n', rest)
        };
        let end = end.unwrap_or(rest.len());
        let start = self.at;
        self.at += end + 1;
        Some((start, &rest[..end]))
    }
}

/// The different names in the lines of a list, numbered in the order in which they first occur.
#[derive(Default)]
pub(crate) struct Names {
    names: Vec<Vec<u8>>,
    numbers: HashMap<Vec<u8>, u32>,
}

impl Names {
    /// Return the number of a name.
    pub(crate) fn number(&mut self, name: Vec<u8>) -> u32 {
        if let Some(&number) = self.numbers.get(&name) {
            return number;
        }
        let number = self.names.len() as u32;
        memory::push(&mut self.names, memory::copied(&name));
        // `insert` alone would end the process if the memory is refused.
        memory::require(self.numbers.try_reserve(1), name.len());
        self.numbers.insert(name, number);
        number
    }

    /// Return the names, by number.
    pub(crate) fn into_names(self) -> Vec<Vec<u8>> {
        self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_text_has_the_lines_that_its_ends_make() {
        let text = b"a\r\nb\n\nc\rd";
        let found: Vec<_> = Lines::new(text).collect();
        assert_eq!(found, [(0, &b"a\r"[..]), (3, b"b"), (5, b""), (6, b"c\rd")]);
        let found: Vec<_> = Lines::of_any_end(text).collect();
        assert_eq!(found, [(0, &b"a\r"[..]), (3, b"b"), (5, b""), (6, b"c"), (8, b"d")]);
        assert_eq!(Lines::new(b"").next(), None);
        assert_eq!(Lines::new(b"\n").collect::<Vec<_>>(), [(0, &b""[..])]);
    }

    #[test]
    fn the_time_of_a_line_does_not_grow_with_the_text() {
        // A search for a line feed from each line on would take minutes.
        let text = b"x\r".repeat(2_000_000);
        let begin = Instant::now();
        assert_eq!(Lines::of_any_end(&text).count(), 2_000_000);
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
}
