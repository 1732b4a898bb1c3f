//! Compressed texts.

use crate::file::TextArgument;
use crate::pool::pool;
use cntkio_core::compressed::{self, Failure, Fault, Kind, Packed, Stream};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Mutex, PoisonError};

/// Offset in the compressed data, offset in the text, and what is wrong.
type FaultTuple = (u64, u64, String);

fn tuple(fault: Fault) -> FaultTuple {
    (fault.packed, fault.text, fault.what)
}

fn kind(name: &str) -> PyResult<Kind> {
    match name {
        "gzip" => Ok(Kind::Gzip),
        "zstd" => Ok(Kind::Zstd),
        _ => Err(PyValueError::new_err("no such compression")),
    }
}

/// Bytes of compressed data that are read at once.
const READ_BYTES: usize = 1 << 18;

/// A decompressor of all data in order, which notes access points.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct CompressedStream {
    inner: Mutex<Inner>,
}

struct Inner {
    stream: Stream,
    /// Compressed data, and text that is skipped.
    input: Vec<u8>,
    skipped: Vec<u8>,
}

#[pymethods]
impl CompressedStream {
    /// Begin at a member or a frame: at offset `packed` of the compressed data, which is offset `text` of the text.
    /// `spacing`: note access points at least so many bytes of text apart; None: none.
    #[new]
    #[pyo3(signature = (name, packed=0, text=0, *, spacing=None))]
    fn new(name: &str, packed: u64, text: u64, spacing: Option<u64>) -> PyResult<CompressedStream> {
        let stream = Stream::new(kind(name)?, spacing.unwrap_or(u64::MAX));
        let mut stream = stream.map_err(|fault| PyRuntimeError::new_err(fault.what))?;
        (stream.packed, stream.text) = (packed, text);
        Ok(CompressedStream { inner: Mutex::new(Inner { stream, input: Vec::new(), skipped: Vec::new() }) })
    }

    /// Decompress the compressed data up to `end`, as far as the output goes: skip `skip` bytes of text first.
    ///
    /// Returns the number of bytes that were skipped and written, and the fault, if there is one.
    fn feed(
        &self,
        py: Python<'_>,
        source: TextArgument<'_>,
        end: u64,
        skip: u64,
        mut out: PyReadwriteArray1<'_, u8>,
    ) -> PyResult<(u64, usize, Option<FaultTuple>)> {
        let source = source.source()?;
        let out = out.as_slice_mut()?;
        let feed = || {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let Inner { stream, input, skipped } = &mut *inner;
            input.resize(READ_BYTES, 0);
            skipped.resize(READ_BYTES, 0);
            let (mut num_skipped, mut num_written) = (0, 0);
            // Text that was decompressed, but not yet written, may be left.
            while (stream.packed < end || !stream.is_between()) && (num_written < out.len() || num_skipped < skip) {
                let piece = &mut input[..(end.saturating_sub(stream.packed).min(READ_BYTES as u64)) as usize];
                source.read(piece, stream.packed)?;
                let mut at = 0;
                loop {
                    let left = (skip - num_skipped).min(READ_BYTES as u64) as usize;
                    let target = if left > 0 { &mut skipped[..left] } else { &mut out[num_written..] };
                    let (read, written) = match stream.feed(&piece[at..], target) {
                        Ok(fed) => fed,
                        Err(fault) => return Ok((num_skipped, num_written, Some(tuple(fault)))),
                    };
                    at += read;
                    if left > 0 {
                        num_skipped += written as u64;
                    } else {
                        num_written += written;
                    }
                    if (read, written) == (0, 0) {
                        break;
                    }
                }
                if at == 0 {
                    break;
                }
            }
            std::io::Result::Ok((num_skipped, num_written, None))
        };
        Ok(py.detach(feed)?)
    }

    /// Bytes of the compressed data that were read, and bytes of the text.
    #[getter]
    fn position(&self) -> (u64, u64) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        (inner.stream.packed, inner.stream.text)
    }

    /// True at the begin of a member or a frame, and at the end of whole data.
    #[getter]
    fn is_between(&self) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).stream.is_between()
    }

    /// Offsets in the text, places, ends of windows, and the windows of the access points, which are forgotten.
    fn take_points<'py>(&self, py: Python<'py>) -> [Bound<'py, PyAny>; 4] {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let points = std::mem::take(&mut inner.stream.points);
        [
            points.texts.into_pyarray(py).into_any(),
            points.places.into_pyarray(py).into_any(),
            points.window_ends.into_pyarray(py).into_any(),
            points.windows.into_pyarray(py).into_any(),
        ]
    }
}

/// The text of some segments from `begin` on, of `size` bytes; or the fault. See `cntkio_core::compressed::Packed`.
#[pyfunction]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
pub(crate) fn decompress<'py>(
    py: Python<'py>,
    name: &str,
    source: TextArgument<'py>,
    texts: PyReadonlyArray1<'py, u64>,
    places: PyReadonlyArray1<'py, u64>,
    window_bounds: PyReadonlyArray1<'py, u64>,
    windows: PyReadonlyArray1<'py, u8>,
    begin: u64,
    size: usize,
    num_threads: usize,
) -> PyResult<(Option<Bound<'py, PyArray1<u8>>>, Option<FaultTuple>)> {
    let source = source.source()?;
    let read = |at: usize, buffer: &mut [u8]| source.read(buffer, at as u64);
    let packed = Packed {
        kind: kind(name)?,
        read: &read,
        texts: texts.as_slice()?,
        places: places.as_slice()?,
        window_bounds: window_bounds.as_slice()?,
        windows: windows.as_slice()?,
    };
    let pool = pool(num_threads)?;
    let work = || {
        let mut out = vec![0; size];
        let made = pool.install(|| compressed::decompress(packed, begin, &mut out));
        made.map(|()| out)
    };
    match py.detach(work) {
        Ok(out) => Ok((Some(out.into_pyarray(py)), None)),
        Err(Failure::Damaged(fault)) => Ok((None, Some(tuple(fault)))),
        Err(Failure::Unread(error)) => Err(error.into()),
    }
}

/// Compress a text to a frame of zstd, which has its size and a check sum.
#[pyfunction]
pub(crate) fn zstd_frame<'py>(py: Python<'py>, text: &[u8], level: i32) -> PyResult<Bound<'py, PyBytes>> {
    let frame = py.detach(|| compressed::zstd_frame(text, level)).map_err(PyRuntimeError::new_err)?;
    Ok(PyBytes::new(py, &frame))
}
