//! Line numbers of bytes in a text, and the search for a byte.

use crate::memory;
use crate::text::Text;
use memchr::memchr_iter;
use rayon::prelude::*;
use std::io;

/// Bytes that a thread reads and counts at a time.
const SHARE_BYTES: usize = 1 << 20;

/// The number of line ends between `first` and each of some bytes, on all threads of the current pool. The bytes ascend,
/// and none is beyond the end of the text.
///
/// # Errors
/// The text cannot be read.
pub fn line_ends_before(text: Text, first: usize, bytes: &[u64]) -> io::Result<Vec<u64>> {
    let end = bytes.last().map_or(first, |&last| last as usize);
    let count = |share: usize| -> io::Result<(Vec<u64>, u64)> {
        let begin = first + share * SHARE_BYTES;
        let mut buffer = Vec::new();
        text.append_to(&mut buffer, begin, SHARE_BYTES.min(end.saturating_sub(begin)))?;
        let mine = &bytes[bytes.partition_point(|&byte| byte < begin as u64)..];
        let mine = &mine[..mine.partition_point(|&byte| byte < (begin + SHARE_BYTES) as u64)];
        let (mut counted, mut num_ends) = (0, 0);
        let mut count_to = |to: usize| {
            num_ends += memchr_iter(b'\n', buffer.get(counted..to).unwrap_or_default()).count() as u64;
            counted = to;
            num_ends
        };
        let counts = mine.iter().map(|&byte| count_to(byte as usize - begin)).collect();
        Ok((counts, count_to(buffer.len())))
    };
    // The division rounds down, and 1 is added, because an offset at the end of a whole share belongs to the next one.
    let shares: Vec<(Vec<u64>, u64)> =
        (0..end.saturating_sub(first) / SHARE_BYTES + 1).into_par_iter().map(count).collect::<io::Result<_>>()?;
    let mut before = 0;
    let mut all = memory::with_room(bytes.len());
    for (counts, num_ends) in shares {
        all.extend(counts.into_iter().map(|count| before + count));
        before += num_ends;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_are_counted_across_shares() {
        let text: Vec<u8> = (0..SHARE_BYTES * 5 / 2).map(|at| if at * at % 97 < 9 { b'\n' } else { b'x' }).collect();
        let read = |at: usize, buffer: &mut [u8]| {
            buffer.copy_from_slice(text.get(at..at + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        };
        let of = Text { size: text.len(), read: &read };
        let borders =
            [0, 1, SHARE_BYTES - 1, SHARE_BYTES, SHARE_BYTES + 1, 2 * SHARE_BYTES, text.len() - 1, text.len()];
        for chosen in [&borders[..], &borders[3..4], &borders[5..6], &[7, 7, 8], &[]] {
            let bytes: Vec<u64> = chosen.iter().map(|&byte| byte as u64).collect();
            let expected = |&byte: &usize| text[..byte].iter().filter(|&&byte| byte == b'\n').count() as u64;
            let expected: Vec<u64> = chosen.iter().map(expected).collect();
            assert_eq!(line_ends_before(of, 0, &bytes).unwrap(), expected);
            let later: Vec<u64> = bytes.iter().filter(|&&byte| byte > 5).copied().collect();
            let num_before = line_ends_before(of, 0, &[5]).unwrap()[0];
            let expected: Vec<u64> = expected[bytes.len() - later.len()..].iter().map(|end| end - num_before).collect();
            assert_eq!(line_ends_before(of, 5, &later).unwrap(), expected);
        }
    }
}
