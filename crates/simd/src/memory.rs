//! Copying many short runs out of memory that is in no cache, and asking for memory in large pages.

use crate::Kernel;
use std::mem::MaybeUninit;

/// Bytes that are worth a second thread.
const SHARE: usize = 128 << 10;
/// Runs of this many bytes are asked for two runs ahead of their turn, shorter ones earlier.
const LONG_RUN: usize = 512;
/// Bytes of a run that are asked for ahead; the processor sees by itself how a longer one goes on.
const MOST_AHEAD: usize = 1024;
#[cfg(target_arch = "x86_64")]
const CACHE_LINE_BYTES: usize = 64;
/// Bytes that are worth asking for huge pages.
pub const WORTH_HUGE_PAGES: usize = 8 << 20;

/// Append the runs to `out`, one behind the other; on several threads where it is called on those of a rayon pool.
///
/// ```
/// let mut out = vec![1];
/// cntkio_simd::append(&mut out, &[&[2, 3], &[], &[4]]);
/// assert_eq!(out, [1, 2, 3, 4]);
/// ```
pub fn append<T: Copy + Send + Sync>(out: &mut Vec<T>, runs: &[&[T]]) {
    append_runs(out, runs);
}

/// Numbers that can be kept in fewer bytes while they are small.
pub trait Widens: Copy + Send + Sync + private::Sealed {
    /// The form of those that are small.
    type Small: Copy + Send + Sync;
    /// The number that a small form stands for.
    fn widened(small: Self::Small) -> Self;
    /// Append the small forms of numbers that all have one, which stand for the same bits; otherwise nothing.
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
    /// Write the numbers that small forms stand for, as many as there is room for.
    #[doc(hidden)]
    fn widen(kernel: Kernel, small: &[Self::Small], room: &mut [MaybeUninit<Self>]);
}

#[inline(always)]
pub(crate) fn widen_each<T: Widens>(small: &[T::Small], room: &mut [MaybeUninit<T>]) {
    assert!(room.len() == small.len());
    for (slot, &small) in room.iter_mut().zip(small) {
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
                // In blocks, so that numbers that are not small cost next to nothing.
                for block in numbers.chunks(NARROWED_AT_ONCE) {
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
            fn widen(kernel: Kernel, small: &[$small], room: &mut [MaybeUninit<$number>]) {
                $widen(kernel, small, room);
            }
        }
    )*};
}

const NARROWED_AT_ONCE: usize = 1 << 10;

// The sum with 2^23, or 2^52, has a small whole number in its lowest bits.
widens! {
    f32, u8, |number: f32| (number + 8_388_608.0).to_bits() as u8, f32::to_bits, Kernel::widen_u8;
    f64, u8, |number: f64| (number + 4_503_599_627_370_496.0).to_bits() as u8, f64::to_bits, |_, small, room| widen_each(small, room);
    i32, u16, |number: i32| number as u16, |number: i32| number as u32, Kernel::widen_u16;
}

/// Numbers as they are, or all in their small form.
#[derive(Debug, Clone, Copy)]
pub enum AnyWidth<'a, T: Widens> {
    /// As they are.
    Wide(&'a [T]),
    /// In their small form.
    Small(&'a [T::Small]),
}

impl<T: Widens> AnyWidth<'_, T> {
    /// How many they are.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> usize {
        match self {
            AnyWidth::Wide(values) => values.len(),
            AnyWidth::Small(values) => values.len(),
        }
    }

    /// [`prefetch`] of them.
    #[inline]
    pub fn prefetch(self, most: usize) {
        match self {
            AnyWidth::Wide(values) => prefetch(values, most),
            AnyWidth::Small(values) => prefetch(values, most),
        }
    }
}

/// As [`append`], of runs that may be in their small form.
///
/// ```
/// use cntkio_simd::memory::{AnyWidth, append_any_width};
///
/// let mut out = vec![1.0f32];
/// append_any_width(&mut out, &[AnyWidth::Small(&[2, 255]), AnyWidth::Wide(&[-0.5])]);
/// assert_eq!(out, [1.0, 2.0, 255.0, -0.5]);
/// ```
pub fn append_any_width<T: Widens>(out: &mut Vec<T>, runs: &[AnyWidth<T>]) {
    append_runs(out, runs);
}

/// Values that are written to one place.
trait Run<T>: Copy + Send + Sync {
    fn size(self) -> usize;
    /// Write each value into `room`, which is of this size.
    fn write(self, room: &mut [MaybeUninit<T>], kernel: Kernel);
    fn ask(self);
    fn split_at(self, at: usize) -> (Self, Self);
}

impl<T: Copy + Send + Sync> Run<T> for &[T] {
    #[inline]
    fn size(self) -> usize {
        self.len()
    }

    #[inline]
    fn write(self, room: &mut [MaybeUninit<T>], _: Kernel) {
        assert!(room.len() == self.len());
        // SAFETY: both are as long; room that is borrowed for writing does not overlap what is borrowed for reading.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), room.as_mut_ptr().cast(), self.len()) };
    }

    #[inline]
    fn ask(self) {
        prefetch(self, MOST_AHEAD);
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl<T: Widens> Run<T> for AnyWidth<'_, T> {
    #[inline]
    fn size(self) -> usize {
        self.len()
    }

    #[inline]
    fn write(self, room: &mut [MaybeUninit<T>], kernel: Kernel) {
        match self {
            AnyWidth::Wide(values) => values.write(room, kernel),
            AnyWidth::Small(values) => T::widen(kernel, values, room),
        }
    }

    #[inline]
    fn ask(self) {
        self.prefetch(MOST_AHEAD);
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

fn append_runs<T: Send, R: Run<T>>(out: &mut Vec<T>, runs: &[R]) {
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

/// Numbers that files hold, lowest byte first.
pub trait Number: Copy + Send + Sync + private::Sealed {
    /// Append the numbers that some bytes hold, one run of several that are short.
    fn append_le(out: &mut Vec<Self>, bytes: &[u8]);
}

mod private {
    /// Only for types of this module, of which any bytes are a value: `unsafe` code relies on what their traits do.
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

/// Append the numbers that runs of a file's bytes hold; each run holds whole ones. Otherwise as [`append`].
///
/// ```
/// let mut out = vec![1];
/// cntkio_simd::memory::append_stored(&mut out, &[&[2, 0, 0, 0, 255, 255, 255, 255], &[]]);
/// assert_eq!(out, [1, 2, -1]);
/// ```
pub fn append_stored<T: Number>(out: &mut Vec<T>, runs: &[&[u8]]) {
    let size = length(runs);
    assert!(runs.iter().all(|run| run.len().is_multiple_of(size_of::<T>())));
    if cfg!(target_endian = "big") {
        runs.iter().for_each(|run| T::append_le(out, run));
        return;
    }
    let count = size / size_of::<T>();
    out.reserve(count);
    advise_for(out, count);
    let before = out.len();
    let room = &mut out.spare_capacity_mut()[..count];
    // SAFETY: the same memory as bytes, which may have any address; they are `size` ones.
    fill(unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast::<MaybeUninit<u8>>(), size) }, runs);
    // SAFETY: there is room for `count` values more, `fill` has written all their bytes, and any bytes are a number.
    unsafe { out.set_len(before + count) };
}

fn length<T>(runs: &[impl Run<T>]) -> usize {
    runs.iter().map(|run| run.size()).sum()
}

/// Write the runs over all of `room`, which is as long as they are together.
fn fill<T: Send, R: Run<T>>(mut room: &mut [MaybeUninit<T>], runs: &[R]) {
    assert!(room.len() == length(runs));
    if size_of_val(room) > SHARE && rayon::current_thread_index().is_some() {
        if let [run] = *runs {
            let (first, second) = run.split_at(run.size() / 2);
            let (first_room, second_room) = room.split_at_mut(first.size());
            rayon::join(|| fill(first_room, &[first]), || fill(second_room, &[second]));
            return;
        }
        let (first, second) = runs.split_at(runs.len() / 2);
        let (first_room, second_room) = room.split_at_mut(length(first));
        rayon::join(|| fill(first_room, first), || fill(second_room, second));
        return;
    }
    let ahead = if size_of_val(room) / runs.len().max(1) >= LONG_RUN { 2 } else { 8 };
    let kernel = Kernel::selected();
    for (number, run) in runs.iter().enumerate() {
        if let Some(next) = runs.get(number + ahead) {
            next.ask();
        }
        let (mine, rest) = room.split_at_mut(run.size());
        run.write(mine, kernel);
        room = rest;
    }
}

/// Ask the processor for at most `most` bytes of `values`. It changes nothing but time.
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

/// Ask the processor for the bytes around an address, which need not be there.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn prefetch_from(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch reads nothing, and of an address that is nowhere it does nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

/// Ask the system to back the first `count` values of a vector's memory with huge pages, where it has them: fresh
/// memory costs a third then. Only whole huge pages inside are concerned, so that nothing is taken that will not be
/// used.
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

/// An open file whose bytes are shown where they lie in the page cache: neither copied nor held in fresh memory.
#[cfg(unix)]
#[derive(Debug)]
pub struct MappedFile {
    descriptor: std::os::fd::OwnedFd,
    name: String,
    opened: Status,
}

/// What changes when a file is changed: its size, and when it was modified last, in seconds and nanoseconds.
type Status = (i64, i64, i64);

#[cfg(unix)]
impl MappedFile {
    /// A file that is open, and what it is called; it stays open until this is dropped.
    pub fn new(descriptor: std::ffi::c_int, name: String) -> std::io::Result<MappedFile> {
        use std::os::fd::FromRawFd;
        // SAFETY: a number that is no open file is an error.
        let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: it was made just now, and belongs to nobody else.
        let descriptor = unsafe { std::os::fd::OwnedFd::from_raw_fd(copy) };
        let opened = status(&descriptor)?;
        Ok(MappedFile { descriptor, name, opened })
    }

    /// Its name, if it is not any more as it was when this was made.
    fn changed(&self) -> Option<&str> {
        if status(&self.descriptor).is_ok_and(|now| now == self.opened) { None } else { Some(&self.name) }
    }
}

#[cfg(unix)]
fn status(descriptor: &impl std::os::fd::AsRawFd) -> std::io::Result<Status> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the file is open, and there is room for its status.
    if unsafe { libc::fstat(descriptor.as_raw_fd(), status.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the call has filled it.
    let status = unsafe { status.assume_init() };
    Ok((status.st_size, status.st_mtime, status.st_mtime_nsec))
}

/// Some bytes of a file, shown or copied.
///
/// Shown bytes go with the file: whoever looks at them asks [`changed`](FileBytes::changed) first. A file that
/// another process makes shorter between the question and the look ends this process, as with every memory map.
#[derive(Debug)]
pub struct FileBytes(Kept);

#[derive(Debug)]
enum Kept {
    Here(Vec<u8>),
    #[cfg(unix)]
    Shown {
        file: std::sync::Arc<MappedFile>,
        first: *const u8,
        size: usize,
        mapped: *mut libc::c_void,
        mapped_size: usize,
    },
}

// SAFETY: the memory of a map is read only, belongs to no thread, and stays until the owner is dropped.
unsafe impl Send for FileBytes {}
// SAFETY: as above.
unsafe impl Sync for FileBytes {}

impl FileBytes {
    /// Bytes that were copied.
    pub fn here(bytes: Vec<u8>) -> FileBytes {
        FileBytes(Kept::Here(bytes))
    }

    /// `size` bytes from a position on, shown, or else copied; copied also where the file's system cannot show them. An
    /// error if the file ends before.
    #[cfg(unix)]
    pub fn of_file(
        file: &std::sync::Arc<MappedFile>,
        begin: u64,
        size: usize,
        is_shown: bool,
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
        if size == 0 || !is_shown {
            return copied();
        }
        // SAFETY: asking for the size of a page has no conditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64;
        let lead = (begin % page) as usize;
        #[cfg(target_os = "linux")]
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        #[cfg(not(target_os = "linux"))]
        let flags = libc::MAP_SHARED;
        let descriptor = file.descriptor.as_raw_fd();
        // SAFETY: memory for reading at an address of the system's choice, over bytes that the file was just seen to
        // have.
        let mapped = unsafe {
            let at = (begin - lead as u64) as libc::off_t;
            libc::mmap(std::ptr::null_mut(), lead + size, libc::PROT_READ, flags, descriptor, at)
        };
        if mapped == libc::MAP_FAILED {
            return copied();
        }
        // SAFETY: `lead` is inside the memory.
        let first = unsafe { mapped.cast::<u8>().add(lead) };
        Ok(FileBytes(Kept::Shown { file: file.clone(), first, size, mapped, mapped_size: lead + size }))
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Kept::Here(bytes) => bytes,
            // SAFETY: the memory is `size` bytes and stays as long as this does. That others may write to the file
            // while it is looked at is asked for just before; what is read is only copied, and all that is read is
            // checked.
            #[cfg(unix)]
            Kept::Shown { first, size, .. } => unsafe { std::slice::from_raw_parts(*first, *size) },
        }
    }

    /// The name of the file, if it is shown and is not any more as it was.
    pub fn changed(&self) -> Option<&str> {
        match &self.0 {
            Kept::Here(_) => None,
            #[cfg(unix)]
            Kept::Shown { file, .. } => file.changed(),
        }
    }
}

impl Drop for FileBytes {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Kept::Shown { mapped, mapped_size, .. } = self.0 {
            // SAFETY: it was mapped so, and nobody has a slice of it any more.
            unsafe { libc::munmap(mapped, mapped_size) };
        }
    }
}

impl PartialEq for FileBytes {
    fn eq(&self, other: &FileBytes) -> bool {
        self.as_slice() == other.as_slice()
    }
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
        // SAFETY: at most as many bytes are written as were made room for and are not there yet. A number that is no
        // open file is an error.
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

    #[cfg(unix)]
    #[test]
    fn bytes_of_a_file_are_shown_and_a_change_is_told() {
        use std::os::fd::AsRawFd;
        let path = std::env::temp_dir().join(format!("cntkio-simd-shown-{}", std::process::id()));
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
