//! Files that the caller has opened: bytes at a position ([`OpenFile`]), and bytes that stay mapped ([`FileBytes`]).
//!
//! No function moves a file's cursor on Unix, so threads and forks may share a file. Windows moves the cursor with
//! every read, but no function here depends on it.

use crate::copy::zeros;
use std::fs::File;
use std::io::{ErrorKind, Result};
use std::mem::ManuallyDrop;
use std::ops::Range;
#[cfg(unix)]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd as Borrowed, FromRawFd, RawFd};
#[cfg(windows)]
use std::os::windows::io::{AsHandle, AsRawHandle, BorrowedHandle as Borrowed, FromRawHandle, RawHandle};
use std::sync::Arc;

/// Most bytes of a single read: macOS refuses 2^31 and more. The standard library has such a limit, too.
#[cfg(unix)]
const MOST_READ_BYTES: usize = 1 << 30;

/// A file that the caller has opened and keeps open.
///
/// ```
/// let file = std::fs::File::open("Cargo.toml").unwrap();
/// let mut start = [0; 9];
/// cntkio_memory::file::OpenFile::from(&file).read_exact_at(&mut start, 0).unwrap();
/// assert_eq!(&start, b"[package]");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct OpenFile<'a>(Borrowed<'a>);

impl<'a> From<&'a File> for OpenFile<'a> {
    fn from(file: &'a File) -> OpenFile<'a> {
        #[cfg(unix)]
        return OpenFile(file.as_fd());
        #[cfg(windows)]
        return OpenFile(file.as_handle());
    }
}

impl<'a> OpenFile<'a> {
    /// The file with the number by which the system knows it: the descriptor on Unix, the handle on Windows. An error
    /// if no file has such a number.
    ///
    /// # Safety
    /// The file stays open during `'a`.
    pub unsafe fn borrow_raw(number: isize) -> Result<OpenFile<'a>> {
        #[cfg(unix)]
        {
            let descriptor = RawFd::try_from(number).ok().filter(|&descriptor| descriptor >= 0);
            let descriptor = descriptor.ok_or_else(|| std::io::Error::from_raw_os_error(libc::EBADF))?;
            // SAFETY: the caller keeps the file open, and the number is not the reserved one, -1.
            Ok(OpenFile(unsafe { Borrowed::borrow_raw(descriptor) }))
        }
        #[cfg(windows)]
        {
            if matches!(number, 0 | -1) {
                return Err(ErrorKind::InvalidInput.into());
            }
            // SAFETY: the caller keeps the file open, and the handle is valid.
            Ok(OpenFile(unsafe { Borrowed::borrow_raw(number as RawHandle) }))
        }
    }

    /// The file as the type of the standard library that has its functions.
    fn file(self) -> ManuallyDrop<File> {
        #[cfg(unix)]
        // SAFETY: the file is open, and `ManuallyDrop` does not close it.
        let file = unsafe { File::from_raw_fd(self.0.as_raw_fd()) };
        #[cfg(windows)]
        // SAFETY: the file is open, and `ManuallyDrop` does not close it.
        let file = unsafe { File::from_raw_handle(self.0.as_raw_handle()) };
        ManuallyDrop::new(file)
    }

    /// Fill `buffer` from position `at`; an error if the file ends before the buffer is full.
    pub fn read_exact_at(self, buffer: &mut [u8], at: u64) -> Result<()> {
        if self.read_at(buffer, at)? < buffer.len() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Fill `buffer` from position `at`, as far as the file goes; returns the number of bytes.
    pub fn read_at(self, buffer: &mut [u8], at: u64) -> Result<usize> {
        read_up_to(&self.file(), buffer, at)
    }

    /// The number of bytes that the file has from position `at` on, at most `size`. A file that the system generates
    /// during the read (such as a file in `/proc`) has no known size; then the result is `size`.
    pub fn most(self, size: usize, at: u64) -> Result<usize> {
        let file = self.file().metadata()?;
        let known = file.is_file() && file.len() > 0;
        Ok(if known { size.min(usize::try_from(file.len().saturating_sub(at)).unwrap_or(size)) } else { size })
    }

    /// The properties of the file as they are now.
    pub fn metadata(self) -> Result<std::fs::Metadata> {
        self.file().metadata()
    }

    /// Append `size` bytes from position `at`, or fewer if the file ends before; returns their number.
    pub fn append_read(self, out: &mut Vec<u8>, size: usize, at: u64) -> Result<usize> {
        // The callers have reserved this memory already, in a way that can fail.
        out.reserve(size);
        #[cfg(unix)]
        let done = {
            let descriptor = self.0.as_raw_fd();
            let spare = &mut out.spare_capacity_mut()[..size];
            let mut done = 0;
            while done < size {
                let rest = &mut spare[done..size.min(done + MOST_READ_BYTES)];
                let position = at.checked_add(done as u64).and_then(|position| libc::off_t::try_from(position).ok());
                let position = position.ok_or(ErrorKind::InvalidInput)?;
                // SAFETY: the call writes at most as many bytes as `rest` has. The standard library can read only into
                // memory that is already initialised, which costs as much as the copy.
                let count = unsafe { libc::pread(descriptor, rest.as_mut_ptr().cast(), rest.len(), position) };
                match usize::try_from(count) {
                    Ok(0) => break,
                    Ok(count) => done += count,
                    Err(_) => {
                        let error = std::io::Error::last_os_error();
                        if error.kind() != ErrorKind::Interrupted {
                            return Err(error);
                        }
                    }
                }
            }
            // SAFETY: the calls wrote `done` bytes after the old length, in memory that was reserved.
            unsafe { out.set_len(out.len() + done) };
            done
        };
        #[cfg(not(unix))]
        let done = {
            let before = out.len();
            out.resize(before + size, 0);
            let read = self.read_at(&mut out[before..], at);
            out.truncate(before + *read.as_ref().unwrap_or(&0));
            read?
        };
        Ok(done)
    }

    /// Write all bytes at position `at`.
    pub fn write_all_at(self, mut bytes: &[u8], mut at: u64) -> Result<()> {
        let file = self.file();
        while !bytes.is_empty() {
            #[cfg(unix)]
            let written = file.write_at(bytes, at);
            #[cfg(windows)]
            let written = file.seek_write(bytes, at);
            match written {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => (bytes, at) = (&bytes[count..], at + count as u64),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(unix)]
use std::os::unix::fs::FileExt;
#[cfg(windows)]
use std::os::windows::fs::FileExt;

/// Fill `buffer` from position `at`, as far as the file goes; returns the number of bytes.
fn read_up_to(file: &File, buffer: &mut [u8], at: u64) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        let (rest, position) = (&mut buffer[done..], at.saturating_add(done as u64));
        #[cfg(unix)]
        let read = file.read_at(rest, position);
        #[cfg(windows)]
        let read = file.seek_read(rest, position);
        match read {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// A file whose bytes can be mapped: they are used in place in the page cache, without a copy or memory of our own. The
/// file stays open until this value is dropped.
#[derive(Debug)]
pub struct MappedFile {
    file: File,
    name: String,
    opened: Status,
}

impl MappedFile {
    /// Share a file that the caller has opened, and may close afterwards. `name` is returned when the file has changed.
    pub fn new(file: OpenFile<'_>, name: String) -> Result<MappedFile> {
        let file = file.file().try_clone()?;
        let opened = status(&file)?;
        Ok(MappedFile { file, name, opened })
    }

    /// An error if the file ends before the last of these bytes.
    fn check_has(&self, begin: u64, size: usize) -> Result<()> {
        let file_size = status(&self.file)?.size;
        let is_there = begin.checked_add(size as u64).is_some_and(|end| end <= file_size);
        if is_there { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }

    /// The file's name, if the file has changed since this value was created.
    fn changed(&self) -> Option<&str> {
        if status(&self.file).is_ok_and(|now| now == self.opened) { None } else { Some(&self.name) }
    }
}

/// Properties of a file that reveal a change.
#[derive(Debug, PartialEq)]
struct Status {
    size: u64,
    /// In seconds and nanoseconds.
    modified: (i64, i64),
}

/// Get the status with `fstat`. The standard library asks the system for more properties, which takes twice as long:
/// half a microsecond more for each minibatch.
#[cfg(unix)]
fn status(file: &File) -> Result<Status> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the pointer is valid for a write of the status.
    if unsafe { libc::fstat(file.as_raw_fd(), status.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the successful call has filled the status.
    let status = unsafe { status.assume_init() };
    Ok(Status { size: status.st_size as u64, modified: (status.st_mtime, status.st_mtime_nsec) })
}

#[cfg(windows)]
fn status(file: &File) -> Result<Status> {
    use std::os::windows::fs::MetadataExt;
    let metadata = file.metadata()?;
    Ok(Status { size: metadata.len(), modified: (0, metadata.last_write_time() as i64) })
}

/// Bytes of a file, mapped or copied.
///
/// Mapped bytes change when the file changes: call [`changed`](FileBytes::changed) before you use them. If another
/// process truncates the file between that call and the use, the operating system kills this process (SIGBUS), as with
/// every memory map. Windows does not let a process truncate a file that is mapped.
#[derive(Debug)]
pub struct FileBytes(Storage);

#[derive(Debug)]
enum Storage {
    Copied(Vec<u8>),
    Mapped { file: Arc<MappedFile>, map: memmap2::Mmap },
}

impl FileBytes {
    /// Wrap bytes that were copied.
    pub fn here(bytes: Vec<u8>) -> FileBytes {
        FileBytes(Storage::Copied(bytes))
    }

    /// Copy `size` bytes of a file from position `begin` on. An error if the file ends before the last of these bytes.
    pub fn read(file: &MappedFile, begin: u64, size: usize) -> Result<FileBytes> {
        file.check_has(begin, size)?;
        // A refused request for a chunk is an error, and does not end the process.
        let mut bytes = zeros(size).ok_or(ErrorKind::OutOfMemory)?;
        if read_up_to(&file.file, &mut bytes, begin)? < size {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(FileBytes::here(bytes))
    }

    /// Map `size` bytes of a file from position `begin` on, or copy them if the file system does not support maps. An
    /// error if the file ends before the last of these bytes.
    ///
    /// # Safety
    /// Another process may write to the file at any time, so two reads of the same byte may differ. The caller uses the
    /// bytes only in ways that are sound for any content and for content that changes: copies them, reads each number
    /// once, and checks a number that was read before using it as a size or an index. Afterwards it asks
    /// [`changed`](FileBytes::changed) whether the results are valid.
    pub unsafe fn map(file: &Arc<MappedFile>, begin: u64, size: usize) -> Result<FileBytes> {
        // SAFETY: as for this function.
        unsafe { FileBytes::map_with(file, begin, size, true) }
    }

    /// [`map`](FileBytes::map) for a caller that will use some of the bytes only: the pages of these ranges are made
    /// ready, and no others. On Linux before 5.14, and on other systems, each page is made ready at its first use.
    ///
    /// # Safety
    /// As for [`map`](FileBytes::map).
    pub unsafe fn map_some(
        file: &Arc<MappedFile>,
        begin: u64,
        size: usize,
        wanted: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<FileBytes> {
        // SAFETY: as for this function.
        let bytes = unsafe { FileBytes::map_with(file, begin, size, false) }?;
        #[cfg(target_os = "linux")]
        if let Storage::Mapped { map, .. } = &bytes.0 {
            for range in wanted {
                let range = range.start.min(size)..range.end.min(size);
                if !range.is_empty()
                    && map.advise_range(memmap2::Advice::PopulateRead, range.start, range.len()).is_err()
                {
                    break;
                }
            }
        }
        #[cfg(not(target_os = "linux"))]
        drop(wanted);
        Ok(bytes)
    }

    /// # Safety
    /// As for [`map`](FileBytes::map).
    unsafe fn map_with(file: &Arc<MappedFile>, begin: u64, size: usize, populates: bool) -> Result<FileBytes> {
        // The first access to a page after the end of the file would kill the process (SIGBUS).
        file.check_has(begin, size)?;
        // The system refuses a map of 0 bytes.
        if size > 0 {
            let mut options = memmap2::MmapOptions::new();
            options.offset(begin).len(size);
            // SAFETY: the map is read only, and inside the file's size that was checked above. The caller expects that
            // the bytes change.
            let mut map = unsafe { options.map(&file.file) };
            if populates && map.as_ref().is_ok_and(|map| !make_ready(map)) {
                // SAFETY: as above.
                map = unsafe { options.populate().map(&file.file) };
            }
            if let Ok(map) = map {
                return Ok(FileBytes(Storage::Mapped { file: file.clone(), map }));
            }
        }
        FileBytes::read(file, begin, size)
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Storage::Copied(bytes) => bytes,
            Storage::Mapped { map, .. } => map,
        }
    }

    /// The name of the file, if its bytes are mapped.
    pub fn mapped_name(&self) -> Option<&str> {
        match &self.0 {
            Storage::Copied(_) => None,
            Storage::Mapped { file, .. } => Some(&file.name),
        }
    }

    /// The name of the file, if its bytes are mapped and it has changed since it was opened.
    pub fn changed(&self) -> Option<&str> {
        match &self.0 {
            Storage::Copied(_) => None,
            Storage::Mapped { file, .. } => file.changed(),
        }
    }
}

/// Make the pages of a map ready; false if the system cannot do that for a part of a map.
///
/// For one page of each 64 KB, because Linux makes ready all cached pages of the 64 KB around it. That takes two thirds of
/// the time of `MAP_POPULATE`, which looks up each page once more.
fn make_ready(map: &memmap2::Mmap) -> bool {
    #[cfg(target_os = "linux")]
    {
        const MADE_READY_AT_ONCE: usize = 64 << 10;
        let second = map.as_ptr().align_offset(MADE_READY_AT_ONCE).max(1);
        let pages = std::iter::once(0).chain((second..map.len()).step_by(MADE_READY_AT_ONCE));
        pages.map(|at| map.advise_range(memmap2::Advice::PopulateRead, at, 1)).all(|made| made.is_ok())
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = map;
        true
    }
}

impl PartialEq for FileBytes {
    fn eq(&self, other: &FileBytes) -> bool {
        self.as_slice() == other.as_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped_bytes(file: &Arc<MappedFile>, begin: u64, size: usize) -> Result<FileBytes> {
        // SAFETY: the test compares copies of the bytes.
        unsafe { FileBytes::map(file, begin, size) }
    }

    /// A read of a page after the end of the file would kill the process.
    #[test]
    #[cfg(target_os = "linux")]
    fn pages_after_the_end_of_a_file_that_was_cut_are_not_made_ready() {
        let path = std::env::temp_dir().join(format!("cntkio memory cut {}", std::process::id()));
        std::fs::write(&path, vec![7u8; 300_000]).unwrap();
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        // SAFETY: the test reads no byte of the map after the file is cut.
        let map = unsafe { memmap2::MmapOptions::new().offset(5).map(&file) }.unwrap();
        assert!(map.iter().all(|&byte| byte == 7));
        make_ready(&map);
        file.set_len(10).unwrap();
        assert!(!make_ready(&map));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn file_bytes_are_mapped_and_report_a_change_of_the_file() {
        let path = std::env::temp_dir().join(format!("cntkio memory ü mapped {}", std::process::id()));
        let content: Vec<u8> = (0..20_000u32).map(|number| (number % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let mapped = std::sync::Arc::new(MappedFile::new(OpenFile::from(&file), "its name".to_owned()).unwrap());
        drop(file); // it stays open
        for (begin, size) in [(0, 20_000), (1, 19_999), (5000, 1), (8192, 4096), (20_000, 0)] {
            let bytes = mapped_bytes(&mapped, begin as u64, size).unwrap();
            assert_eq!(bytes.as_slice(), &content[begin..begin + size]);
            let copy = FileBytes::read(&mapped, begin as u64, size).unwrap();
            assert_eq!(bytes, copy);
            let wanted = [
                0..1,
                size / 2..size / 2 + 4097,
                size..size + 1,
                usize::MAX - 1..usize::MAX,
                Range { start: 9, end: 3 },
            ];
            // SAFETY: the test compares copies of the bytes.
            assert_eq!(unsafe { FileBytes::map_some(&mapped, begin as u64, size, wanted) }.unwrap(), copy);
            assert_eq!(
                (bytes.changed(), bytes == FileBytes::here(content[begin..begin + size].to_vec())),
                (None, true)
            );
        }
        for (begin, size) in [(0, 20_001), (20_001, 0), (u64::MAX, 1)] {
            for bytes in [mapped_bytes(&mapped, begin, size), FileBytes::read(&mapped, begin, size)] {
                assert_eq!(bytes.map_err(|error| error.kind()), Err(ErrorKind::UnexpectedEof));
            }
        }
        let (bytes, copy) = (mapped_bytes(&mapped, 3, 100).unwrap(), FileBytes::read(&mapped, 3, 100));
        let opened = mapped.file.metadata().unwrap().modified().unwrap();
        let writable = File::options().write(true).open(&path).unwrap();
        writable.set_modified(opened + std::time::Duration::from_nanos(100)).unwrap(); // the step of clocks on Windows
        assert_eq!((bytes.changed(), bytes.as_slice()), (Some("its name"), &content[3..103]));
        writable.set_modified(opened).unwrap();
        assert_eq!(bytes.changed(), None);
        drop(writable);
        std::fs::write(&path, &content[..10_000]).unwrap();
        assert_eq!((bytes.changed(), copy.unwrap().changed()), (Some("its name"), None));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn reads_and_writes_at_a_position_and_reports_the_end_of_the_file() {
        let path = std::env::temp_dir().join(format!("cntkio-memory-{}", std::process::id()));
        std::fs::write(&path, b"0123456789").unwrap();
        let opened = File::options().read(true).write(true).open(&path).unwrap();
        let file = OpenFile::from(&opened);
        let mut buffer = [0; 4];
        file.read_exact_at(&mut buffer, 3).unwrap();
        assert_eq!(&buffer, b"3456");
        assert_eq!(file.read_at(&mut buffer, 8).unwrap(), 2);
        assert_eq!(&buffer, b"8956");
        let error = file.read_exact_at(&mut buffer, 8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        let mut bytes = vec![b'x'];
        assert_eq!(file.append_read(&mut bytes, 4, 2).unwrap(), 4);
        assert_eq!(file.append_read(&mut bytes, 9, 7).unwrap(), 3);
        assert_eq!(file.append_read(&mut bytes, 9, 10).unwrap(), 0);
        assert_eq!(bytes, b"x2345789");
        file.write_all_at(b"abc", 9).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"012345678abc");
        for impossible in [-1, isize::MIN] {
            // SAFETY: there is no such file that could be closed.
            assert!(unsafe { OpenFile::borrow_raw(impossible) }.is_err());
        }
        assert!(file.append_read(&mut bytes, 1, u64::MAX).is_err() && file.read_at(&mut buffer, u64::MAX).is_err());
        drop(opened);
        std::fs::remove_file(path).unwrap();
    }
}
