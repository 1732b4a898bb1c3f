//! Memory operations that need `unsafe`, as safe functions:
//!
//! - copies of many short pieces into one vector ([`append`], [`append_any_width`], [`append_stored`]), on several
//!   threads and with prefetches, because the pieces are usually in no cache
//! - conversion of numbers to a small form and back ([`Widens`])
//! - hints to the processor and the system ([`prefetch`], [`advise_huge_pages`])
//! - bytes of a file, mapped or copied ([`FileBytes`])
//! - reads at a position of an open file ([`read_exact_at`], [`append_read`])

use crate::Kernel;
use std::mem::MaybeUninit;

/// A second thread helps to copy more bytes than this.
const SHARE_BYTES: usize = 128 << 10;
/// Pieces of this average size are prefetched two pieces ahead of the copy, shorter pieces eight pieces ahead.
const LONG_PIECE_BYTES: usize = 512;
/// Prefetch at most this many bytes of a piece; the processor prefetches the rest of a longer piece by itself.
const PREFETCHED_BYTES: usize = 1024;
#[cfg(target_arch = "x86_64")]
const CACHE_LINE_BYTES: usize = 64;
/// Smallest allocation, in bytes, for which [`advise_huge_pages`] is worth its system call.
pub const WORTH_HUGE_PAGES: usize = 8 << 20;

/// Append the pieces to `out`, one after the other. A call on a thread of a rayon pool uses the pool's threads.
///
/// ```
/// let mut out = vec![1];
/// cntkio_simd::append(&mut out, &[&[2, 3], &[], &[4]]);
/// assert_eq!(out, [1, 2, 3, 4]);
/// ```
pub fn append<T: Copy + Send + Sync>(out: &mut Vec<T>, pieces: &[&[T]]) {
    append_pieces(out, pieces);
}

/// Numbers that can be kept in fewer bytes while they are small.
pub trait Widens: Copy + Send + Sync + private::Sealed {
    /// The small form of such a number.
    type Small: Copy + Send + Sync;
    /// The number that a small form stands for.
    fn widened(small: Self::Small) -> Self;
    /// Append the small forms of the numbers and return true, if each has a small form that stands for the same bits;
    /// otherwise append nothing and return false.
    ///
    /// ```
    /// use cntkio_simd::memory::Widens;
    ///
    /// let mut out = vec![];
    /// assert!(f32::narrow(&[0.0, 255.0], &mut out));
    /// assert!(!f32::narrow(&[1.0, 0.5], &mut out) && !f32::narrow(&[-0.0], &mut out));
    /// assert_eq!(out, [0, 255]);
    /// ```
    fn narrow(numbers: &[Self], out: &mut Vec<Self::Small>) -> bool;
    /// Write the numbers that small forms stand for into a destination of the same length.
    #[doc(hidden)]
    fn widen(kernel: Kernel, small: &[Self::Small], destination: &mut [MaybeUninit<Self>]);
}

#[inline(always)]
pub(crate) fn widen_each<T: Widens>(small: &[T::Small], destination: &mut [MaybeUninit<T>]) {
    assert!(destination.len() == small.len());
    for (slot, &small) in destination.iter_mut().zip(small) {
        slot.write(T::widened(small));
    }
}

macro_rules! widens {
    ($($number:ty, $small:ty, $narrow:expr, $bits:expr, $widen:expr;)*) => {$(
        impl Widens for $number {
            type Small = $small;

            #[inline]
            fn widened(small: $small) -> $number {
                small.into()
            }

            fn narrow(numbers: &[$number], out: &mut Vec<$small>) -> bool {
                let before = out.len();
                out.reserve(numbers.len());
                // Work in blocks, so that numbers without a small form are rejected after the first block.
                for block in numbers.chunks(NUMBERS_NARROWED_AT_ONCE) {
                    let mut wrong = 0;
                    out.extend(block.iter().map(|&number| {
                        let small: $small = $narrow(number);
                        wrong |= $bits(<$number>::from(small)) ^ $bits(number);
                        small
                    }));
                    if wrong != 0 {
                        out.truncate(before);
                        return false;
                    }
                }
                true
            }

            #[inline]
            fn widen(kernel: Kernel, small: &[$small], destination: &mut [MaybeUninit<$number>]) {
                $widen(kernel, small, destination);
            }
        }
    )*};
}

const NUMBERS_NARROWED_AT_ONCE: usize = 1 << 10;

// The significand of a float32 from 2^23 on (float64: 2^52) has a unit of 1, so adding 2^23 (2^52) to a small whole
// number puts that number into the lowest bits. `narrow` then compares bits, which rejects fractions, large numbers and
// -0.
widens! {
    f32, u8, |number: f32| (number + 8_388_608.0).to_bits() as u8, f32::to_bits, Kernel::widen_u8;
    f64, u8, |number: f64| (number + 4_503_599_627_370_496.0).to_bits() as u8, f64::to_bits,
        |_, small, destination| widen_each(small, destination);
    i32, u16, |number: i32| number as u16, |number: i32| number as u32, Kernel::widen_u16;
}

/// Numbers in full width, or all in their small form.
#[derive(Debug, Clone, Copy)]
pub enum AnyWidth<'a, T: Widens> {
    /// In full width.
    Wide(&'a [T]),
    /// In their small form.
    Small(&'a [T::Small]),
}

impl<T: Widens> AnyWidth<'_, T> {
    /// Number of numbers.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> usize {
        match self {
            AnyWidth::Wide(values) => values.len(),
            AnyWidth::Small(values) => values.len(),
        }
    }

    /// Some of the numbers; `None` if there are not as many.
    #[inline]
    pub fn get(self, range: std::ops::Range<usize>) -> Option<Self> {
        match self {
            AnyWidth::Wide(values) => values.get(range).map(AnyWidth::Wide),
            AnyWidth::Small(values) => values.get(range).map(AnyWidth::Small),
        }
    }

    /// Ask the processor for at most `most` bytes of the numbers; see [`prefetch`].
    #[inline]
    pub fn prefetch(self, most: usize) {
        match self {
            AnyWidth::Wide(values) => prefetch(values, most),
            AnyWidth::Small(values) => prefetch(values, most),
        }
    }
}

/// Append pieces of which each may be in its small form; see [`append`].
///
/// ```
/// use cntkio_simd::memory::{AnyWidth, append_any_width};
///
/// let mut out = vec![1.0f32];
/// append_any_width(&mut out, &[AnyWidth::Small(&[2, 255]), AnyWidth::Wide(&[-0.5])]);
/// assert_eq!(out, [1.0, 2.0, 255.0, -0.5]);
/// ```
pub fn append_any_width<T: Widens>(out: &mut Vec<T>, pieces: &[AnyWidth<T>]) {
    append_pieces(out, pieces);
}

/// Consecutive values that are copied together.
trait Piece<T>: Copy + Send + Sync {
    /// Number of values.
    fn size(self) -> usize;
    /// Write each value into `destination`, which has this size. `unsafe` code relies on every element being written.
    fn write(self, destination: &mut [MaybeUninit<T>], kernel: Kernel);
    /// Prefetch the first values.
    fn prefetch_start(self);
    fn split_at(self, at: usize) -> (Self, Self);
}

impl<T: Copy + Send + Sync> Piece<T> for &[T] {
    #[inline]
    fn size(self) -> usize {
        self.len()
    }

    #[inline]
    fn write(self, destination: &mut [MaybeUninit<T>], _: Kernel) {
        assert!(destination.len() == self.len());
        // SAFETY: both slices have the same length, and a mutable borrow never overlaps a shared one.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), destination.as_mut_ptr().cast(), self.len()) };
    }

    #[inline]
    fn prefetch_start(self) {
        prefetch(self, PREFETCHED_BYTES);
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl<T: Widens> Piece<T> for AnyWidth<'_, T> {
    #[inline]
    fn size(self) -> usize {
        self.len()
    }

    #[inline]
    fn write(self, destination: &mut [MaybeUninit<T>], kernel: Kernel) {
        match self {
            AnyWidth::Wide(values) => values.write(destination, kernel),
            AnyWidth::Small(values) => T::widen(kernel, values, destination),
        }
    }

    #[inline]
    fn prefetch_start(self) {
        self.prefetch(PREFETCHED_BYTES);
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            AnyWidth::Wide(values) => {
                let (first, second) = values.split_at(at);
                (AnyWidth::Wide(first), AnyWidth::Wide(second))
            }
            AnyWidth::Small(values) => {
                let (first, second) = values.split_at(at);
                (AnyWidth::Small(first), AnyWidth::Small(second))
            }
        }
    }
}

fn append_pieces<T: Send, P: Piece<T>>(out: &mut Vec<T>, pieces: &[P]) {
    let total = length(pieces);
    out.reserve(total);
    advise_for(out, total);
    fill(&mut out.spare_capacity_mut()[..total], pieces);
    // SAFETY: memory for `total` more values is reserved, and `fill` has written each of them.
    unsafe { out.set_len(out.len() + total) };
}

/// Ask for huge pages if `count` more values are large enough for them.
pub(crate) fn advise_for<T>(out: &mut Vec<T>, count: usize) {
    if count * size_of::<T>() >= WORTH_HUGE_PAGES {
        advise_huge_pages(out, out.len() + count);
    }
}

/// Types of numbers in files, with the lowest byte first.
pub trait Number: Copy + Send + Sync + private::Sealed {
    /// Append the numbers of one short piece; [`append_stored`] is for many or long pieces.
    fn append_le(out: &mut Vec<Self>, bytes: &[u8]);
}

mod private {
    /// Implemented only by the types of this module: `unsafe` code relies on their implementations of the traits, and
    /// on any bytes being a valid value.
    pub trait Sealed {}
}

macro_rules! numbers {
    ($($number:ty, $size:literal;)*) => {$(
        impl private::Sealed for $number {}
        impl Number for $number {
            #[inline]
            fn append_le(out: &mut Vec<$number>, bytes: &[u8]) {
                let number = |bytes: &[u8]| <$number>::from_le_bytes(bytes.try_into().expect("as many bytes"));
                out.extend(bytes.chunks_exact($size).map(number));
            }
        }
    )*};
}

numbers! { f32, 4; f64, 8; i32, 4; }

/// Append the numbers in pieces of a file's bytes; no piece may end inside a number. See [`append`].
///
/// ```
/// let mut out = vec![1];
/// cntkio_simd::memory::append_stored(&mut out, &[&[2, 0, 0, 0, 255, 255, 255, 255], &[]]);
/// assert_eq!(out, [1, 2, -1]);
/// ```
pub fn append_stored<T: Number>(out: &mut Vec<T>, pieces: &[&[u8]]) {
    let size = length(pieces);
    assert!(pieces.iter().all(|piece| piece.len().is_multiple_of(size_of::<T>())));
    if cfg!(target_endian = "big") {
        pieces.iter().for_each(|piece| T::append_le(out, piece));
        return;
    }
    let count = size / size_of::<T>();
    out.reserve(count);
    advise_for(out, count);
    let before = out.len();
    let spare = &mut out.spare_capacity_mut()[..count];
    // SAFETY: the same memory as `size` bytes; bytes have no alignment.
    let destination = unsafe { std::slice::from_raw_parts_mut(spare.as_mut_ptr().cast::<MaybeUninit<u8>>(), size) };
    fill(destination, pieces);
    // SAFETY: memory for `count` more values is reserved, `fill` has written all its bytes, and any bytes are a number.
    unsafe { out.set_len(before + count) };
}

/// Number of values of all pieces together.
fn length<T>(pieces: &[impl Piece<T>]) -> usize {
    pieces.iter().map(|piece| piece.size()).sum()
}

/// Write the pieces over all of `destination`, which has their total length.
fn fill<T: Send, P: Piece<T>>(mut destination: &mut [MaybeUninit<T>], pieces: &[P]) {
    assert!(destination.len() == length(pieces));
    if size_of_val(destination) > SHARE_BYTES && rayon::current_thread_index().is_some() {
        if let [piece] = *pieces {
            let (first, second) = piece.split_at(piece.size() / 2);
            let (first_destination, second_destination) = destination.split_at_mut(first.size());
            rayon::join(|| fill(first_destination, &[first]), || fill(second_destination, &[second]));
            return;
        }
        let (first, second) = pieces.split_at(pieces.len() / 2);
        let (first_destination, second_destination) = destination.split_at_mut(length(first));
        rayon::join(|| fill(first_destination, first), || fill(second_destination, second));
        return;
    }
    let pieces_ahead = if size_of_val(destination) / pieces.len().max(1) >= LONG_PIECE_BYTES { 2 } else { 8 };
    let kernel = Kernel::selected();
    for (number, piece) in pieces.iter().enumerate() {
        if let Some(next) = pieces.get(number + pieces_ahead) {
            next.prefetch_start();
        }
        let (piece_destination, rest) = destination.split_at_mut(piece.size());
        piece.write(piece_destination, kernel);
        destination = rest;
    }
}

/// Ask the processor to load at most `most` bytes of `values` into its cache. Affects only speed.
#[inline]
pub fn prefetch<T>(values: &[T], most: usize) {
    #[cfg(target_arch = "x86_64")]
    for byte in (0..size_of_val(values).min(most)).step_by(CACHE_LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the address is inside the slice, and a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(values.as_ptr().cast::<i8>().add(byte)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, most);
}

/// Ask the processor to load the cache line of an address, which need not be valid.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn prefetch_from(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch reads nothing, and does nothing for an invalid address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

/// Ask the system to back the first `count` values of a vector with huge pages, if it has them: the first use of the
/// memory then costs a third. Only whole huge pages inside that range are advised, so no unused memory is allocated.
pub fn advise_huge_pages<T>(values: &mut Vec<T>, count: usize) {
    #[cfg(target_os = "linux")]
    {
        const HUGE_PAGE_BYTES: usize = 2 << 20;
        let begin = values.as_mut_ptr() as usize;
        let end = begin + count.min(values.capacity()) * size_of::<T>();
        let (first, last) = (begin.next_multiple_of(HUGE_PAGE_BYTES), end / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES);
        if first < last {
            // SAFETY: the pages are inside the vector's own allocation. The advice changes neither their content nor
            // their protection, and an error of the call changes nothing.
            unsafe { libc::madvise(first as *mut libc::c_void, last - first, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (values, count);
}

/// An open file whose bytes can be mapped: they are used in place in the page cache, without a copy or memory of our
/// own.
#[cfg(unix)]
#[derive(Debug)]
pub struct MappedFile {
    descriptor: std::os::fd::OwnedFd,
    name: String,
    opened: Status,
}

/// Properties of a file that reveal a change: its size in bytes, and its last modification in seconds and nanoseconds.
type Status = (i64, i64, i64);

#[cfg(unix)]
impl MappedFile {
    /// Duplicate the descriptor of an open file, so that the file stays open until this value is dropped.
    ///
    /// `name` is returned when the file has changed.
    pub fn new(descriptor: std::ffi::c_int, name: String) -> std::io::Result<MappedFile> {
        use std::os::fd::FromRawFd;
        // SAFETY: the call fails if the number is not an open file.
        let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor was created just now, and nothing else owns it.
        let descriptor = unsafe { std::os::fd::OwnedFd::from_raw_fd(copy) };
        let opened = status(&descriptor)?;
        Ok(MappedFile { descriptor, name, opened })
    }

    /// The file's name, if the file has changed since this value was created.
    fn changed(&self) -> Option<&str> {
        if status(&self.descriptor).is_ok_and(|now| now == self.opened) { None } else { Some(&self.name) }
    }
}

#[cfg(unix)]
fn status(descriptor: &impl std::os::fd::AsRawFd) -> std::io::Result<Status> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the pointer is valid for a write of the status; the call fails if the file is not open.
    if unsafe { libc::fstat(descriptor.as_raw_fd(), status.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the successful call has filled the status.
    let status = unsafe { status.assume_init() };
    Ok((status.st_size, status.st_mtime, status.st_mtime_nsec))
}

/// Bytes of a file, mapped or copied.
///
/// Mapped bytes change when the file changes: call [`changed`](FileBytes::changed) before you use them. If another
/// process truncates the file between that call and the use, the operating system kills this process (SIGBUS), as with
/// every memory map.
#[derive(Debug)]
pub struct FileBytes(Storage);

#[derive(Debug)]
enum Storage {
    Copied(Vec<u8>),
    #[cfg(unix)]
    Mapped {
        file: std::sync::Arc<MappedFile>,
        first: *const u8,
        size: usize,
        /// The whole map, from a multiple of the page size on.
        mapped: *mut libc::c_void,
        mapped_size: usize,
    },
}

// SAFETY: the memory of a map is only read, is not bound to a thread, and stays mapped until its owner is dropped.
unsafe impl Send for FileBytes {}
// SAFETY: as above.
unsafe impl Sync for FileBytes {}

impl FileBytes {
    /// Wrap bytes that were copied.
    pub fn here(bytes: Vec<u8>) -> FileBytes {
        FileBytes(Storage::Copied(bytes))
    }

    /// Map `size` bytes of a file from position `begin` on. Copy them instead if `is_mapped` is false or the file
    /// system does not support maps. An error if the file ends before the last of these bytes.
    #[cfg(unix)]
    pub fn of_file(
        file: &std::sync::Arc<MappedFile>,
        begin: u64,
        size: usize,
        is_mapped: bool,
    ) -> std::io::Result<FileBytes> {
        use std::os::fd::AsRawFd;
        let file_size = u64::try_from(status(&file.descriptor)?.0).unwrap_or(0);
        if begin.checked_add(size as u64).is_none_or(|end| end > file_size) {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let copied = || {
            let mut bytes = vec![0; size];
            read_exact_at(file.descriptor.as_raw_fd(), &mut bytes, begin)?;
            Ok(FileBytes::here(bytes))
        };
        if size == 0 || !is_mapped {
            return copied();
        }
        // SAFETY: asking for the page size has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64;
        let lead = (begin % page) as usize;
        #[cfg(target_os = "linux")]
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        #[cfg(not(target_os = "linux"))]
        let flags = libc::MAP_SHARED;
        let descriptor = file.descriptor.as_raw_fd();
        // SAFETY: the system chooses the address of the new map, so it replaces no other memory. The map is read only,
        // and its range is inside the file's size that was checked above.
        let mapped = unsafe {
            let at = (begin - lead as u64) as libc::off_t;
            libc::mmap(std::ptr::null_mut(), lead + size, libc::PROT_READ, flags, descriptor, at)
        };
        if mapped == libc::MAP_FAILED {
            return copied();
        }
        // SAFETY: `lead` is inside the map.
        let first = unsafe { mapped.cast::<u8>().add(lead) };
        Ok(FileBytes(Storage::Mapped { file: file.clone(), first, size, mapped, mapped_size: lead + size }))
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Storage::Copied(bytes) => bytes,
            // SAFETY: the map has `size` bytes from `first` on and lives as long as `self`. Callers check `changed`
            // just before the use, because another process may write to the file. Any content is handled: the bytes are
            // copied, and values read from them are checked before use.
            #[cfg(unix)]
            Storage::Mapped { first, size, .. } => unsafe { std::slice::from_raw_parts(*first, *size) },
        }
    }

    /// The name of the file, if its bytes are mapped and it has changed since it was opened.
    pub fn changed(&self) -> Option<&str> {
        match &self.0 {
            Storage::Copied(_) => None,
            #[cfg(unix)]
            Storage::Mapped { file, .. } => file.changed(),
        }
    }
}

impl Drop for FileBytes {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Storage::Mapped { mapped, mapped_size, .. } = self.0 {
            // SAFETY: `of_file` created this map, and no slice of it outlives `self`.
            unsafe { libc::munmap(mapped, mapped_size) };
        }
    }
}

impl PartialEq for FileBytes {
    fn eq(&self, other: &FileBytes) -> bool {
        self.as_slice() == other.as_slice()
    }
}

/// Fill `buffer` from position `at` of an open file; an error if the file ends before the buffer is full.
#[cfg(unix)]
pub fn read_exact_at(descriptor: std::ffi::c_int, mut buffer: &mut [u8], mut at: u64) -> std::io::Result<()> {
    use std::io::{Error, ErrorKind};
    while !buffer.is_empty() {
        let position = i64::try_from(at).map_err(|_| Error::from(ErrorKind::InvalidInput))?;
        // SAFETY: the call writes at most `buffer.len()` bytes; it fails if the number is not an open file.
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

/// Append `size` bytes from position `at` of an open file, or fewer if the file ends before; returns their number.
#[cfg(unix)]
pub fn append_read(out: &mut Vec<u8>, descriptor: std::ffi::c_int, size: usize, mut at: u64) -> std::io::Result<usize> {
    use std::io::{Error, ErrorKind};
    out.reserve(size);
    let mut done = 0;
    while done < size {
        let position = i64::try_from(at).map_err(|_| Error::from(ErrorKind::InvalidInput))?;
        let spare = out.spare_capacity_mut();
        // SAFETY: `size` bytes were reserved and `done` of them written, so `size - done` bytes fit. The call fails if
        // the number is not an open file.
        let count = unsafe { libc::pread(descriptor, spare.as_mut_ptr().cast(), size - done, position) };
        match usize::try_from(count) {
            Ok(0) => break,
            Ok(count) => {
                // SAFETY: the call wrote `count` bytes after the old length.
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

    #[cfg(unix)]
    #[test]
    fn file_bytes_are_mapped_and_report_a_change_of_the_file() {
        use std::os::fd::AsRawFd;
        let path = std::env::temp_dir().join(format!("cntkio-simd-mapped-{}", std::process::id()));
        let content: Vec<u8> = (0..20_000u32).map(|number| (number % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let mapped = std::sync::Arc::new(MappedFile::new(file.as_raw_fd(), "its name".to_owned()).unwrap());
        drop(file); // it stays open
        for (begin, size) in [(0, 20_000), (1, 19_999), (5000, 1), (8192, 4096), (20_000, 0)] {
            let bytes = FileBytes::of_file(&mapped, begin as u64, size, true).unwrap();
            assert_eq!(bytes.as_slice(), &content[begin..begin + size]);
            let copy = FileBytes::of_file(&mapped, begin as u64, size, false).unwrap();
            assert_eq!(bytes, copy);
            assert_eq!(
                (bytes.changed(), bytes == FileBytes::here(content[begin..begin + size].to_vec())),
                (None, true)
            );
        }
        for (begin, size) in [(0, 20_001), (20_001, 0), (u64::MAX, 1)] {
            let kind = FileBytes::of_file(&mapped, begin, size, true).map_err(|error| error.kind());
            assert_eq!(kind, Err(std::io::ErrorKind::UnexpectedEof));
        }
        let (bytes, copy) =
            (FileBytes::of_file(&mapped, 3, 100, true).unwrap(), FileBytes::of_file(&mapped, 3, 100, false));
        std::fs::write(&path, &content[..10_000]).unwrap();
        assert_eq!((bytes.changed(), copy.unwrap().changed()), (Some("its name"), None));
        assert!(MappedFile::new(-1, String::new()).is_err());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn appends_pieces_in_order_on_one_and_several_threads() {
        let source: Vec<u32> = (0..600_000).collect();
        let pieces: Vec<&[u32]> =
            (0..2000).map(|number| &source[number * 131 % 7000..][..number * 37 % 500]).chain([&source[..]]).collect();
        let expected: Vec<u32> = [7].into_iter().chain(pieces.iter().flat_map(|piece| piece.iter().copied())).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let (mut alone, mut together) = (vec![7], vec![7]);
        append(&mut alone, &pieces);
        pool.install(|| append(&mut together, &pieces));
        assert_eq!(alone, expected);
        assert_eq!(together, expected);
    }

    #[test]
    fn advice_does_not_change_the_values() {
        let mut values: Vec<u32> = (0..3 << 20).collect();
        let count = values.len();
        advise_huge_pages(&mut values, count);
        advise_huge_pages(&mut values, usize::MAX / 8);
        assert!(values.iter().enumerate().all(|(at, &value)| at == value as usize));
        advise_huge_pages(&mut Vec::<u8>::new(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn reads_at_a_position_and_reports_the_end_of_the_file() {
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
