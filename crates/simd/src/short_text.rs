//! Texts of at most 16 bytes as machine words, so that a comparison with the bytes of a slice is one operation.

/// A text of at most 16 bytes.
///
/// ```
/// use cntkio_simd::ShortText;
///
/// let name = ShortText::new(&[b"|", b"features", b" "]).unwrap();
/// assert!(name.begins(b"|features 1 2 3 "));
/// assert!(!name.begins(b"|features2 1 2 3"));
/// assert!(!ShortText::NEVER.begins(&[0; 16]));
/// assert!(ShortText::new(&[b"longer than sixteen"]).is_none());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ShortText {
    /// The bytes, the first in the lowest bits.
    pub(crate) word: u128,
    /// All bits of the text's bytes set, all others clear.
    pub(crate) mask: u128,
    pub(crate) size: usize,
}

impl ShortText {
    /// A text that no bytes begin with.
    // With an empty mask, any bytes become the word 0, which is not 1.
    pub const NEVER: ShortText = ShortText { word: 1, mask: 0, size: 0 };

    /// The concatenated parts; `None` if they have more than 16 bytes.
    pub fn new(parts: &[&[u8]]) -> Option<ShortText> {
        let text = parts.concat();
        let mut bytes = [0; 16];
        bytes.get_mut(..text.len())?.copy_from_slice(&text);
        Some(ShortText::of(&bytes, text.len()))
    }

    /// The first `size` bytes, at most 16.
    pub fn of(bytes: &[u8; 16], size: usize) -> ShortText {
        // A shift by all 128 bits would overflow.
        let mask = if size == 0 { 0 } else { u128::MAX >> (128 - 8 * size) };
        ShortText { word: u128::from_le_bytes(*bytes) & mask, mask, size }
    }

    /// This text, with any bytes in a range of it.
    ///
    /// ```
    /// use cntkio_simd::ShortText;
    ///
    /// let text = ShortText::of(b"7 |word 36:1    ", 8).with_any(0..1);
    /// assert!(text.begins(b"8 |word 421:1 | ") && !text.begins(b"8 |tag 421:1 | c"));
    /// ```
    pub fn with_any(self, range: std::ops::Range<usize>) -> ShortText {
        let mask = range.filter(|&at| at < 16).fold(self.mask, |mask, at| mask & !(0xff << (8 * at)));
        ShortText { word: self.word & mask, mask, ..self }
    }

    /// Number of bytes.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// True if the bytes begin with this text.
    #[inline]
    pub fn begins(&self, bytes: &[u8; 16]) -> bool {
        u128::from_le_bytes(*bytes) & self.mask == self.word
    }

    /// True if the bytes have this text at offset `at`.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn is_at(&self, bytes: &[u8], at: usize) -> bool {
        bytes.get(at..).is_some_and(|rest| rest.starts_with(&self.word.to_le_bytes()[..self.size]))
    }
}
