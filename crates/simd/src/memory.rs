//! Copying many short runs out of memory that is in no cache, and asking for memory in large pages.

use std::mem::MaybeUninit;

/// Bytes that are worth a second thread.
const SHARE: usize = 128 << 10;
/// Runs of this many bytes are asked for two runs ahead of their turn, shorter ones earlier.
const LONG_RUN: usize = 512;
/// Bytes of a run that are asked for ahead; the processor sees by itself how a longer one goes on.
const MOST_AHEAD: usize = 1024;
const LINE: usize = 64;
/// Bytes that are worth asking for huge pages.
const WORTH_HUGE_PAGES: usize = 8 << 20;

/// Append the runs to `out`, one behind the other; on several threads where it is called on those of a rayon pool.
///
/// ```
/// let mut out = vec![1];
/// cntkio_simd::append(&mut out, &[&[2, 3], &[], &[4]]);
/// assert_eq!(out, [1, 2, 3, 4]);
/// ```
pub fn append<T: Copy + Send + Sync>(out: &mut Vec<T>, runs: &[&[T]]) {
    let total = length(runs);
    out.reserve(total);
    advise_for(out, total);
    fill(&mut out.spare_capacity_mut()[..total], runs);
    // SAFETY: there is room for `total` values more, and `fill` has written each of them.
    unsafe { out.set_len(out.len() + total) };
}

/// Ask for huge pages where `count` values more are worth it.
pub(crate) fn advise_for<T>(out: &mut Vec<T>, count: usize) {
    if count * size_of::<T>() >= WORTH_HUGE_PAGES {
        advise_huge_pages(out, out.len() + count);
    }
}

fn length<T>(runs: &[&[T]]) -> usize {
    runs.iter().map(|run| run.len()).sum()
}

/// Write the runs over all of `room`, which is as long as they are together.
fn fill<T: Copy + Send + Sync>(room: &mut [MaybeUninit<T>], runs: &[&[T]]) {
    assert!(room.len() == length(runs));
    if size_of_val(room) > SHARE && runs.len() > 1 && rayon::current_thread_index().is_some() {
        let (first, second) = runs.split_at(runs.len() / 2);
        let (first_room, second_room) = room.split_at_mut(length(first));
        rayon::join(|| fill(first_room, first), || fill(second_room, second));
        return;
    }
    let ahead = if size_of_val(room) / runs.len().max(1) >= LONG_RUN { 2 } else { 8 };
    let mut target = room.as_mut_ptr().cast::<T>();
    for (number, run) in runs.iter().enumerate() {
        if let Some(next) = runs.get(number + ahead) {
            prefetch(next, MOST_AHEAD);
        }
        // SAFETY: the lengths of all runs together are the room's, as was asserted, so that this run ends inside it; room
        // that is borrowed for writing does not overlap what is borrowed for reading.
        unsafe {
            std::ptr::copy_nonoverlapping(run.as_ptr(), target, run.len());
            target = target.add(run.len());
        }
    }
}

/// Ask the processor for at most `most` bytes of `values`. It changes nothing but time.
#[inline]
pub fn prefetch<T>(values: &[T], most: usize) {
    #[cfg(target_arch = "x86_64")]
    for byte in (0..size_of_val(values).min(most)).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the address is inside the slice, and a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(values.as_ptr().cast::<i8>().add(byte)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, most);
}

/// Ask the system to back the first `count` values of a vector's memory with huge pages, where it has them: fresh memory
/// costs a third then. Only whole huge pages inside are concerned, so that nothing is taken that will not be used.
pub fn advise_huge_pages<T>(values: &mut Vec<T>, count: usize) {
    #[cfg(target_os = "linux")]
    {
        const HUGE: usize = 2 << 20;
        let begin = values.as_mut_ptr() as usize;
        let end = begin + count.min(values.capacity()) * size_of::<T>();
        let (first, last) = (begin.next_multiple_of(HUGE), end / HUGE * HUGE);
        if first < last {
            // SAFETY: whole pages inside the vector's own allocation; the advice changes neither their content nor
            // whether they may be used. Where it is not taken, nothing happens.
            unsafe { libc::madvise(first as *mut libc::c_void, last - first, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (values, count);
}

/// Fill `buffer` from a position of an open file; an error if the file ends before.
#[cfg(unix)]
pub fn read_exact_at(descriptor: std::ffi::c_int, mut buffer: &mut [u8], mut at: u64) -> std::io::Result<()> {
    use std::io::{Error, ErrorKind};
    while !buffer.is_empty() {
        let position = i64::try_from(at).map_err(|_| Error::from(ErrorKind::InvalidInput))?;
        // SAFETY: at most as many bytes are written as `buffer` has. A number that is no open file is an error.
        let count = unsafe { libc::pread(descriptor, buffer.as_mut_ptr().cast(), buffer.len(), position) };
        match usize::try_from(count) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                buffer = &mut buffer[count..];
                at += count as u64;
            }
            Err(_) => {
                let error = Error::last_os_error();
                if error.kind() != ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// Append `size` bytes from a position of an open file, or fewer where it ends before; how many they are.
#[cfg(unix)]
pub fn append_read(out: &mut Vec<u8>, descriptor: std::ffi::c_int, size: usize, mut at: u64) -> std::io::Result<usize> {
    use std::io::{Error, ErrorKind};
    out.reserve(size);
    let mut done = 0;
    while done < size {
        let position = i64::try_from(at).map_err(|_| Error::from(ErrorKind::InvalidInput))?;
        let room = out.spare_capacity_mut();
        // SAFETY: at most as many bytes are written as were made room for and are not there yet. A number that is no open
        // file is an error.
        let count = unsafe { libc::pread(descriptor, room.as_mut_ptr().cast(), size - done, position) };
        match usize::try_from(count) {
            Ok(0) => break,
            Ok(count) => {
                // SAFETY: so many bytes were written behind those that are there.
                unsafe { out.set_len(out.len() + count) };
                done += count;
                at += count as u64;
            }
            Err(_) => {
                let error = Error::last_os_error();
                if error.kind() != ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_appended_in_order_on_one_thread_and_on_several() {
        let source: Vec<u32> = (0..600_000).collect();
        let runs: Vec<&[u32]> =
            (0..2000).map(|number| &source[number * 131 % 7000..][..number * 37 % 500]).chain([&source[..]]).collect();
        let expected: Vec<u32> = [7].into_iter().chain(runs.iter().flat_map(|run| run.iter().copied())).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let (mut alone, mut together) = (vec![7], vec![7]);
        append(&mut alone, &runs);
        pool.install(|| append(&mut together, &runs));
        assert_eq!(alone, expected);
        assert_eq!(together, expected);
    }

    #[test]
    fn advice_leaves_the_values_alone() {
        let mut values: Vec<u32> = (0..3 << 20).collect();
        let count = values.len();
        advise_huge_pages(&mut values, count);
        advise_huge_pages(&mut values, usize::MAX / 8);
        assert!(values.iter().enumerate().all(|(at, &value)| at == value as usize));
        advise_huge_pages(&mut Vec::<u8>::new(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_is_read_at_a_position_and_its_end_is_an_error() {
        use std::os::fd::AsRawFd;
        let path = std::env::temp_dir().join(format!("cntkio-simd-{}", std::process::id()));
        std::fs::write(&path, b"0123456789").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let mut buffer = [0; 4];
        read_exact_at(file.as_raw_fd(), &mut buffer, 3).unwrap();
        assert_eq!(&buffer, b"3456");
        let error = read_exact_at(file.as_raw_fd(), &mut buffer, 8).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        assert!(read_exact_at(-1, &mut buffer, 0).is_err());
        let mut bytes = vec![b'x'];
        assert_eq!(append_read(&mut bytes, file.as_raw_fd(), 4, 2).unwrap(), 4);
        assert_eq!(append_read(&mut bytes, file.as_raw_fd(), 9, 7).unwrap(), 3);
        assert_eq!(append_read(&mut bytes, file.as_raw_fd(), 9, 10).unwrap(), 0);
        assert_eq!(bytes, b"x2345789");
        assert!(append_read(&mut bytes, -1, 1, 0).is_err());
        std::fs::remove_file(path).unwrap();
    }
}
