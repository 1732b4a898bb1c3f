//! Files that Python has opened, by the number that the system gave them; text that is in such a file or in memory; and
//! the number of threads to use.

use crate::objects::IntoArray;
use crate::pool::{detached, pool};
use cntkio_core::line_numbers::line_ends_before;
use cntkio_core::text::Text;
use cntkio_memory::copy::zeros;
use cntkio_memory::file::{FileBytes, MappedFile, OpenFile};
use numpy::{PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use rayon::prelude::*;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

/// The exception that Python's own functions would raise, with number and text of the system's error.
pub(crate) fn os_error(error: std::io::Error) -> PyErr {
    os_error_of(error, None)
}

/// The exception of [`os_error`], with the name of the file.
pub(crate) fn os_error_of(error: std::io::Error, name: Option<&str>) -> PyErr {
    // Python expects an `errno` here. On Windows the number is a code of the system, which is not an `errno`.
    let number = error.raw_os_error().filter(|_| cfg!(unix));
    let text = error.to_string();
    let text =
        // Rust appends the number to the text, and so would Python's exception.
        number.and_then(|number| text.strip_suffix(&format!(" (os error {number})"))).unwrap_or(&text).to_owned();
    match (number, name) {
        // The functions of `cntkio_memory::file` report refused memory as an error of reading.
        _ if error.kind() == ErrorKind::OutOfMemory => {
            PyMemoryError::new_err(name.map_or(text.clone(), |name| format!("{name}: {text}")))
        }
        (Some(number), Some(name)) => PyOSError::new_err((number, text, name.to_owned())),
        (Some(number), None) => PyOSError::new_err((number, text)),
        (None, _) => error.into(),
    }
}

/// The number of a file that Python has opened.
#[derive(FromPyObject, Clone, Copy)]
pub(crate) struct FileNumber(isize);

impl FileNumber {
    /// The file; an error if no file has such a number.
    pub(crate) fn file(&self) -> std::io::Result<OpenFile<'_>> {
        // SAFETY: the Python functions that call the core keep their files open until the call returns.
        unsafe { OpenFile::borrow_raw(self.0) }
    }
}

/// Map bytes of a file; an error if the file ends before the last of these bytes.
pub(crate) fn mapped(file: &Arc<MappedFile>, begin: u64, size: usize) -> std::io::Result<FileBytes> {
    // SAFETY: the core's parsers and packers accept any bytes, also bytes that change: they check each number after the
    // read, before they use it as a size or an index; they check a number that they read again again; and they copy
    // values and indices. Results of a file that has changed are an error.
    unsafe { FileBytes::map(file, begin, size) }
}

/// [`mapped`] bytes of which these ranges will be used.
pub(crate) fn mapped_for(
    file: &Arc<MappedFile>,
    begin: u64,
    size: usize,
    wanted: impl IntoIterator<Item = Range<usize>>,
) -> std::io::Result<FileBytes> {
    // SAFETY: as in `mapped`.
    unsafe { FileBytes::map_some(file, begin, size, wanted) }
}

/// A text, as Python passes it: an open file's number and the text's size; bytes in memory with the offset of the first
/// of them in the text; or all bytes of the text.
#[derive(FromPyObject)]
pub(crate) enum TextArgument<'py> {
    File(FileNumber, u64),
    Part(PyReadonlyArray1<'py, u8>, u64),
    Whole(PyReadonlyArray1<'py, u8>),
}

impl TextArgument<'_> {
    pub(crate) fn source(&self) -> PyResult<TextSource<'_>> {
        Ok(match self {
            TextArgument::File(number, size) => TextSource::File(number.file().map_err(os_error)?, *size),
            TextArgument::Part(bytes, begin) => TextSource::Memory(bytes.as_slice()?, *begin),
            TextArgument::Whole(bytes) => TextSource::Memory(bytes.as_slice()?, 0),
        })
    }

    /// Do work with the text, without the interpreter's lock.
    pub(crate) fn detached<R: Send>(&self, py: Python<'_>, work: impl Send + FnOnce(Text) -> R) -> PyResult<R> {
        let source = self.source()?;
        let read = |at: usize, buffer: &mut [u8]| source.read(buffer, at as u64);
        let text = Text { size: source.end() as usize, read: &read };
        detached(py, || work(text))
    }
}

/// The source of a text's bytes.
#[derive(Clone, Copy)]
pub(crate) enum TextSource<'a> {
    /// An open file and the text's size.
    File(OpenFile<'a>, u64),
    /// Bytes, and the offset of the first of them in the text.
    Memory(&'a [u8], u64),
}

impl<'a> TextSource<'a> {
    /// The end of the text, or of the part of it that is in memory.
    pub(crate) fn end(self) -> u64 {
        match self {
            TextSource::File(_, size) => size,
            TextSource::Memory(bytes, begin) => begin.saturating_add(bytes.len() as u64),
        }
    }

    /// The bytes from an offset on, if they are in memory.
    pub(crate) fn bytes_from(self, at: u64) -> Option<&'a [u8]> {
        match self {
            TextSource::File(..) => None,
            TextSource::Memory(bytes, begin) => bytes.get(usize::try_from(at.checked_sub(begin)?).ok()?..),
        }
    }

    /// Fill `buffer` from an offset of the text; an error if not all of these bytes are there.
    pub(crate) fn read(self, buffer: &mut [u8], at: u64) -> std::io::Result<()> {
        match self {
            TextSource::File(file, _) => file.read_exact_at(buffer, at),
            TextSource::Memory(..) => {
                let bytes = self.bytes_from(at).and_then(|bytes| bytes.get(..buffer.len()));
                buffer.copy_from_slice(bytes.ok_or(std::io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }
}

/// Up to `size` bytes from position `at`; fewer only at the end of the file.
#[pyfunction]
pub(crate) fn file_read<'py>(py: Python<'py>, file: FileNumber, at: u64, size: usize) -> PyResult<Bound<'py, PyBytes>> {
    let mut bytes = Vec::new();
    // A caller may ask for more bytes than the file has, and memory is reserved only for existing bytes.
    let size = file.file().and_then(|file| file.most(size, at)).map_err(os_error)?;
    bytes.try_reserve_exact(size).map_err(|_| PyMemoryError::new_err(format!("no memory for {size} bytes")))?;
    py.detach(|| file.file()?.append_read(&mut bytes, size, at)).map_err(os_error)?;
    bytes_object(py, &bytes)
}

/// A copy of bytes for Python; an error if the system has no memory for it, where `PyBytes::new` would panic.
pub(crate) fn bytes_object<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, bytes.len(), |copy| {
        copy.copy_from_slice(bytes);
        Ok(())
    })
}

/// Fill an array from position `at`, as far as the file goes; returns the number of bytes.
#[pyfunction]
pub(crate) fn file_read_into(
    py: Python<'_>,
    file: FileNumber,
    at: u64,
    mut buffer: PyReadwriteArray1<'_, u8>,
) -> PyResult<usize> {
    let buffer = buffer.as_slice_mut()?;
    py.detach(|| file.file()?.read_at(buffer, at)).map_err(os_error)
}

/// The number of line ends of a text between an offset and each of some offsets, which ascend.
#[pyfunction]
pub(crate) fn text_line_ends<'py>(
    py: Python<'py>,
    text: TextArgument<'py>,
    begin: usize,
    offsets: PyReadonlyArray1<'py, u64>,
    num_threads: usize,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let (offsets, pool) = (offsets.as_slice()?, pool(num_threads)?);
    // The core finds the offsets of each thread's share by binary search.
    if !offsets.is_sorted() || offsets.first().is_some_and(|&first| first < begin as u64) {
        return Err(PyValueError::new_err("not offsets that ascend"));
    }
    let counts = text.detached(py, |text| pool.install(|| line_ends_before(text, begin, offsets)))?;
    counts.map_err(os_error)?.into_array(py)
}

/// Size of a file, times of the last change of its content and of its properties in nanoseconds, and inode. Windows has
/// neither the second time nor the inode.
type Stamp = [i64; 4];

fn stamp_of(file: &std::fs::Metadata) -> Stamp {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let [modified, changed] = [(file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec())]
            .map(|(seconds, rest)| seconds.wrapping_mul(1_000_000_000).wrapping_add(rest));
        [file.len() as i64, modified, changed, file.ino() as i64]
    }
    #[cfg(windows)]
    {
        use std::os::windows::fs::MetadataExt;
        [file.len() as i64, file.last_write_time() as i64, 0, 0]
    }
}

/// The stamp of an open file.
#[pyfunction]
pub(crate) fn file_stamp(py: Python<'_>, file: FileNumber) -> PyResult<Stamp> {
    py.detach(|| file.file()?.metadata()).map(|found| stamp_of(&found)).map_err(os_error)
}

/// The stamps of files, one after the other; a file that cannot be looked at has the size -1.
#[pyfunction]
pub(crate) fn file_stamps(
    py: Python<'_>,
    paths: Vec<PyBackedBytes>,
    num_threads: usize,
) -> PyResult<Bound<'_, PyArray1<i64>>> {
    let stamp = |path: &PyBackedBytes| {
        #[cfg(unix)]
        let path = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path);
        #[cfg(windows)]
        let path = &*String::from_utf8_lossy(path);
        std::fs::metadata(path).map_or([-1, 0, 0, 0], |found| stamp_of(&found))
    };
    let mut stamps = zeros(4 * paths.len()).ok_or_else(|| PyMemoryError::new_err("no memory for stamps of files"))?;
    let pool = pool(num_threads)?;
    let each = || stamps.par_chunks_mut(4).zip(&paths).for_each(|(row, path)| row.copy_from_slice(&stamp(path)));
    detached(py, || pool.install(each))?;
    stamps.into_array(py)
}

/// Write all bytes at position `at`.
#[pyfunction]
pub(crate) fn file_write(py: Python<'_>, file: FileNumber, at: u64, bytes: PyBackedBytes) -> PyResult<()> {
    py.detach(|| file.file()?.write_all_at(&bytes, at)).map_err(os_error)
}

/// The number of threads that this process may run at the same time: the processors that it may use, or fewer if the
/// container has a share of their time.
#[pyfunction]
pub(crate) fn available_parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}
