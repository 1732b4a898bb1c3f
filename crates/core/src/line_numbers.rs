//! Line numbers of bytes in a text, and the search for a byte.

use crate::memory;
use crate::parallel;
use crate::text::Text;
use memchr::memchr_iter;
use std::io;

/// Bytes that a thread reads and counts at a time.
const SHARE_BYTES: usize = 1 << 20;

/// The number of line ends between `first` and each of some bytes, on all threads of the current pool. The bytes
/// ascend, and none is beyond the end of the text.
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
    let num_shares = end.saturating_sub(first) / SHARE_BYTES + 1;
    let mut before = 0;
    let mut all = memory::with_room(bytes.len());
    for share in parallel::map(num_shares, count) {
        let (counts, num_ends) = share?;
        all.extend(counts.into_iter().map(|count| before + count));
        before += num_ends;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    #[test]
    fn the_first_of_several_faults_is_returned() {
        let num_failed = AtomicUsize::new(0);
        let read = |at: usize, _: &mut [u8]| {
            // The first share fails after another share, or after a second if a single thread reads all shares.
            let since = Instant::now();
            while at == 0 && since.elapsed() < Duration::from_secs(1) && num_failed.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            num_failed.fetch_add(1, SeqCst);
            if at == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(io::Error::other(format!("byte {at}")))
        };
        let size = 4 * SHARE_BYTES;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let error = pool.install(|| line_ends_before(Text { size, read: &read }, 0, &[size as u64])).unwrap_err();
        assert_eq!(error.to_string(), "byte 0");
    }

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
