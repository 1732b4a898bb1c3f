//! Ids at the start of a line: digits or, in some files, a word. Lines with the same id belong together.

use cntkio_simd::digits;

/// The number at the start of a line.
pub(super) enum LeadingId {
    None,
    /// The number and how many digits it has.
    Number(u64, usize),
    /// It does not fit 64 bits.
    Overflow,
}

/// Read the number at the start of a line.
pub(super) fn leading_id(line: &[u8]) -> LeadingId {
    let mut key = 0u64;
    let mut num_digits = 0;
    for byte in line {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        // CNTK's test for overflow misses some ids, which wrap to other ids. Then two sequences might get the same key.
        key = match key.checked_mul(10).and_then(|key| key.checked_add(u64::from(digit))) {
            Some(key) => key,
            None => return LeadingId::Overflow,
        };
        num_digits += 1;
    }
    if num_digits == 0 { LeadingId::None } else { LeadingId::Number(key, num_digits) }
}

/// Number of bytes of the digits at a position, if there are any, and of one space after them.
#[inline]
pub(super) fn size_of_id(text: &[u8], at: usize) -> usize {
    if let Some(word) = digits::word_at(text, at)
        // After eight digits, more digits may follow the word.
        && let size @ 0..8 = digits::count(word)
    {
        return size as usize + usize::from((word >> (8 * size)) as u8 == b' ');
    }
    size_of_long_id(&text[at..])
}

/// [`size_of_id`] for eight digits and more, and near the end of the text.
#[cold]
#[inline(never)]
fn size_of_long_id(rest: &[u8]) -> usize {
    let size = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    size + usize::from(rest.get(size) == Some(&b' '))
}

/// Number of digits at the start of a line.
pub(super) fn size_of_digits(line: &[u8]) -> usize {
    line.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(line.len())
}

/// Number of bytes of the word at the start of a line: up to white space. A pipe directly after other bytes belongs to
/// the word.
pub(super) fn size_of_word(line: &[u8]) -> usize {
    // `is_ascii_whitespace` lacks the vertical tab, which is white space in CNTK.
    line.iter().position(|byte| byte.is_ascii_whitespace() || *byte == 0x0B).unwrap_or(line.len())
}

/// The start of a line as a machine word: a single comparison shows that a line starts like the line before, as most
/// do.
pub(super) struct LineStart {
    word: u64,
    /// Covers the id's digits and the byte after them.
    mask: u64,
}

impl LineStart {
    /// The start of the line at a position.
    pub(super) fn at(block: &[u8], start: usize) -> LineStart {
        // Eight line feeds: only eight empty lines are equal to them, and these have no id, either.
        let unlike_any = LineStart { word: u64::from_le_bytes([b'\n'; 8]), mask: !0 };
        let Some(word) = digits::word_at(block, start) else { return unlike_any };
        match digits::count(word) {
            8 => unlike_any,
            count => LineStart { word, mask: u64::MAX >> (56 - 8 * count) },
        }
    }

    /// True if the line at a position starts with the same id. Without an id: with the same byte, which is not a digit.
    #[inline]
    pub(super) fn is_at(&self, block: &[u8], start: usize) -> bool {
        digits::word_at(block, start).is_some_and(|word| (word ^ self.word) & self.mask == 0)
    }
}
