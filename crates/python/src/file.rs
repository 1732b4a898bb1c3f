//! Files that Python has opened, by the number that the system gave them, and the number of threads to use.

use cntkio_simd::file::OpenFile;
use numpy::PyReadwriteArray1;
use pyo3::exceptions::{PyMemoryError, PyOSError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

/// The exception that Python's own functions would raise, with number and text of the system's error.
fn os_error(error: std::io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) if cfg!(unix) => {
            let text = error.to_string();
            let text = text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text);
            PyOSError::new_err((number, text.to_owned()))
        }
        _ => error.into(),
    }
}

/// Up to `size` bytes from position `at`; fewer only at the end of the file.
#[pyfunction]
pub(crate) fn file_read<'py>(py: Python<'py>, file: isize, at: u64, size: usize) -> PyResult<Bound<'py, PyBytes>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|_| PyMemoryError::new_err(format!("no memory for {size} bytes")))?;
    py.detach(|| OpenFile::new(file).append_read(&mut bytes, size, at)).map_err(os_error)?;
    Ok(PyBytes::new(py, &bytes))
}

/// Fill an array from position `at`, as far as the file goes; returns the number of bytes.
#[pyfunction]
pub(crate) fn file_read_into(
    py: Python<'_>,
    file: isize,
    at: u64,
    mut buffer: PyReadwriteArray1<'_, u8>,
) -> PyResult<usize> {
    let buffer = buffer.as_slice_mut()?;
    py.detach(|| OpenFile::new(file).read_at(buffer, at)).map_err(os_error)
}

/// Write all bytes at position `at`.
#[pyfunction]
pub(crate) fn file_write(py: Python<'_>, file: isize, at: u64, bytes: PyBackedBytes) -> PyResult<()> {
    py.detach(|| OpenFile::new(file).write_all_at(&bytes, at)).map_err(os_error)
}

/// The number of threads that this process may run at the same time: the processors that it may use, or fewer if the
/// container has a share of their time.
#[pyfunction]
pub(crate) fn available_parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}
