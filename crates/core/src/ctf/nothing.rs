//! Lines without content: blank lines, and lines that contain only comments.

use super::ids::size_of_digits;
use crate::parallel;
use crate::text::{Text, Unread};
use memchr::memchr2;
use std::io;
use std::ops::Range;

/// True if the line at the start of `text` is blank, or contains only comments. The first `id_size` bytes are its id. A
/// line with an id and no comment is not blank.
#[inline]
pub(super) fn is_nothing(text: &[u8], id_size: usize) -> bool {
    let (mut at, mut has_comment) = (id_size, false);
    loop {
        match text.get(at) {
            None | Some(b'\n') => return has_comment || id_size == 0,
            Some(b'|') if text.get(at + 1) == Some(&b'#') => {
                has_comment = true;
                at += 2;
                at += memchr2(b'|', b'\n', &text[at..]).unwrap_or(text.len() - at);
            }
            Some(&byte) if byte <= b' ' => at += 1,
            // Also a byte above 0x7F: it separates samples, but a line that contains it is not blank.
            Some(_) => return false,
        }
    }
}

/// Bytes that are read at once: most sequences have some content there.
const READ_BYTES: usize = 1 << 12;

/// For each range of a text, whether all of its lines are without content.
///
/// # Errors
/// The text cannot be read.
pub fn are_nothing(text: Text, ranges: &[Range<usize>]) -> io::Result<Vec<bool>> {
    let is_nothing = |range: &Range<usize>| {
        let mut blocks = Text { size: range.end, ..text }.blocks(range.clone(), READ_BYTES);
        loop {
            let block = match blocks.next_block() {
                Ok(Some((_, block))) => block,
                Ok(None) => return Ok(true),
                Err(Unread::Failed(error)) => return Err(error),
                // The index refuses such lines, so only a text that changed since then has one.
                Err(Unread::LongLine(_)) => return Ok(false),
            };
            if !block.split_inclusive(|&byte| byte == b'\n').all(|line| is_nothing(line, size_of_digits(line))) {
                return Ok(false);
            }
        }
    };
    parallel::map(ranges.len(), |number| is_nothing(&ranges[number])).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_and_comments_are_without_content() {
        for line in ["\n", "", " \t\r\n", "|#\n", "|# a ", " |# a|#|# b\r\n", "12 |# |#a\n", "\n|a 1"] {
            assert!(is_nothing(line.as_bytes(), size_of_digits(line.as_bytes())), "{line:?}");
        }
        for line in ["1\n", "1 \n", "|", "|a", "|# |a 1", "x", "|#\r|", "\u{e9}\n", "1 x|#"] {
            assert!(!is_nothing(line.as_bytes(), size_of_digits(line.as_bytes())), "{line:?}");
        }
    }
}
