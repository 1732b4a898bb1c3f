//! Compressed texts.

use crate::file::{TextArgument, TextSource};
use crate::objects::IntoArray;
use crate::pool::{detached, pool};
use cntkio_compressed::{self as compressed, Fault, Kind, Packed, Points, ReadAt, Reader, SpareDecoders, Stream, Sums};
use cntkio_core::{memory, text};
use numpy::{PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::{PyException, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

fn kind(name: &str) -> PyResult<Kind> {
    match name {
        "gzip" => Ok(Kind::Gzip),
        "zstd" => Ok(Kind::Zstd),
        _ => Err(PyValueError::new_err("no such compression")),
    }
}

/// Bytes of compressed data that are read at once.
const READ_BYTES: usize = 1 << 18;

/// Checksums of frames: for each frame with text the end of its text, and the low 32 bits of the XXH64 of its text.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct FrameSums {
    sums: Arc<Sums>,
}

#[pymethods]
impl FrameSums {
    #[new]
    fn new(ends: PyReadonlyArray1<'_, u64>, sums: PyReadonlyArray1<'_, u32>) -> PyResult<FrameSums> {
        let sums = Sums::new(ends.as_slice()?.to_vec(), sums.as_slice()?.to_vec());
        Ok(FrameSums { sums: sums.ok_or_else(|| PyValueError::new_err("checksums that do not belong together"))? })
    }
}

/// A decompressor of all data in order, which records access points.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct CompressedStream {
    // `feed` releases the interpreter's lock, so another thread may call a method at the same time.
    inner: Mutex<Inner>,
}

/// Text that was decompressed.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct Fed {
    /// Numbers of bytes of text that were skipped, and written.
    num_skipped: u64,
    num_written: usize,
    /// The `DamagedDataError` about the data after this text.
    damage: Option<Py<PyAny>>,
}

struct Inner {
    stream: Stream,
    /// Buffers for compressed data and for text that is skipped.
    input: Vec<u8>,
    skipped: Vec<u8>,
}

#[pymethods]
impl CompressedStream {
    /// Begin at a member or a frame, at offset `packed` of the compressed data, which is offset `text` of the text.
    /// `spacing`: record access points at least this number of bytes of text apart; with None, only the first.
    /// `sums`: check these checksums, too.
    #[new]
    #[pyo3(signature = (name, packed=0, text=0, *, spacing=None, sums=None))]
    fn new(
        name: &str,
        packed: u64,
        text: u64,
        spacing: Option<u64>,
        sums: Option<&FrameSums>,
    ) -> PyResult<CompressedStream> {
        let sums = sums.map(|sums| sums.sums.clone());
        // With this value, the decoder of gzip does not stop at the ends of blocks.
        let stream = Stream::new(kind(name)?, spacing.unwrap_or(u64::MAX), sums);
        let mut stream = stream.map_err(|fault| PyRuntimeError::new_err(fault.what))?;
        (stream.packed, stream.text) = (packed, text);
        Ok(CompressedStream { inner: Mutex::new(Inner { stream, input: Vec::new(), skipped: Vec::new() }) })
    }

    /// Skip `skip` bytes of text, and then decompress up to offset `end` of the compressed data, until the output is
    /// full.
    fn feed(
        &self,
        py: Python<'_>,
        source: TextArgument<'_>,
        end: u64,
        skip: u64,
        mut out: PyReadwriteArray1<'_, u8>,
    ) -> PyResult<Fed> {
        let source = source.source()?;
        let out = out.as_slice_mut()?;
        let feed = || {
            // Refused memory unwinds through the lock and poisons it, which must not turn every later call into a
            // panic.
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let Inner { stream, input, skipped } = &mut *inner;
            memory::resize(input, READ_BYTES, 0);
            memory::resize(skipped, READ_BYTES, 0);
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
                        // The text before the fault is good: `first_text` in Python shows it, and pays no attention to
                        // the fault.
                        Err(fault) => return Ok((num_skipped, num_written, Some(fault))),
                    };
                    at += read;
                    if left > 0 {
                        num_skipped += written as u64;
                    } else {
                        num_written += written;
                    }
                    // A call may read nothing and write text that the decoder holds, or the reverse, so only both zeros
                    // are an end.
                    if (read, written) == (0, 0) {
                        break;
                    }
                }
                // The decoder wants more data than there are before `end`: another turn would read the same piece,
                // forever.
                if at == 0 {
                    break;
                }
            }
            std::io::Result::Ok((num_skipped, num_written, None))
        };
        let (num_skipped, num_written, fault) = detached(py, feed)??;
        let damage = fault.map(|fault| damage(fault).into_value(py).into_any());
        Ok(Fed { num_skipped, num_written, damage })
    }

    /// Bytes of the compressed data that were read, and bytes of the text.
    #[getter]
    fn position(&self) -> (u64, u64) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        (inner.stream.packed, inner.stream.text)
    }

    /// True at the start of a member or a frame, and at the end of complete data.
    #[getter]
    fn is_between(&self) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).stream.is_between()
    }

    /// Return and forget the access points.
    fn take_points(&self, py: Python<'_>) -> PyResult<AccessPoints> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        AccessPoints::new(py, std::mem::take(&mut inner.stream.points))
    }
}

/// Access points of compressed data.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct AccessPoints {
    /// Their offsets in the text.
    texts: Py<PyArray1<u64>>,
    /// Their places in the compressed data.
    places: Py<PyArray1<u64>>,
    /// The ends of their windows, and the windows.
    window_ends: Py<PyArray1<u64>>,
    windows: Py<PyArray1<u8>>,
}

impl AccessPoints {
    fn new(py: Python<'_>, points: Points) -> PyResult<AccessPoints> {
        Ok(AccessPoints {
            texts: points.texts.into_array(py)?.unbind(),
            places: points.places.into_array(py)?.unbind(),
            window_ends: points.window_ends.into_array(py)?.unbind(),
            windows: points.windows.into_array(py)?.unbind(),
        })
    }
}

/// Find access points of zstd, at least `spacing` bytes of text apart, from the headers of frames and blocks. Returns
/// the points and the size of the text; None if the headers do not state the sizes.
#[pyfunction]
pub(crate) fn zstd_points(
    py: Python<'_>,
    source: TextArgument<'_>,
    spacing: u64,
) -> PyResult<Option<(AccessPoints, u64)>> {
    let source = source.source()?;
    let read = |at: usize, buffer: &mut [u8]| source.read(buffer, at as u64);
    let found = detached(py, || compressed::stated_points(&read, source.end(), spacing))??;
    found.map(|(points, size)| Ok((AccessPoints::new(py, points)?, size))).transpose()
}

pyo3::create_exception!(
    _core,
    DamagedDataError,
    PyException,
    "Compressed data are damaged. Its arguments: offset in the compressed data, offset in the text, what is wrong."
);

fn damage(Fault { packed, text, what }: Fault) -> PyErr {
    DamagedDataError::new_err((packed, text, what))
}

/// The exception for a text that cannot be read.
pub(crate) fn read_error(error: std::io::Error) -> PyErr {
    // Functions that read a text return the errors of files, so damage travels inside such an error.
    match error.downcast::<Fault>() {
        Ok(fault) => damage(fault),
        Err(error) => error.into(),
    }
}

/// Decoders of earlier calls for a text, whose memory later calls use.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct Decoders {
    spare: SpareDecoders,
    sums: Option<Arc<Sums>>,
}

#[pymethods]
impl Decoders {
    /// `most`: most decoders that are kept; `sums`: checksums that they check.
    #[new]
    #[pyo3(signature = (most, sums=None))]
    fn new(most: usize, sums: Option<&FrameSums>) -> Decoders {
        Decoders { spare: SpareDecoders::new(most), sums: sums.map(|sums| sums.sums.clone()) }
    }
}

/// Some segments of a compressed text, from the attributes of an object; see `cntkio_compressed::Packed`.
#[derive(FromPyObject)]
pub(crate) struct PackedText<'py> {
    compression: String,
    /// The compressed data.
    source: TextArgument<'py>,
    /// The offsets of the access points in the text, and their places in the compressed data.
    texts: PyReadonlyArray1<'py, u64>,
    places: PyReadonlyArray1<'py, u64>,
    window_bounds: PyReadonlyArray1<'py, u64>,
    windows: PyReadonlyArray1<'py, u8>,
    decoders: PyRef<'py, Decoders>,
}

impl PackedText<'_> {
    /// The source of the compressed data.
    pub(crate) fn source(&self) -> PyResult<TextSource<'_>> {
        self.source.source()
    }

    pub(crate) fn packed<'a>(&'a self, read: ReadAt<'a>) -> PyResult<Packed<'a>> {
        Ok(Packed {
            kind: kind(&self.compression)?,
            read,
            texts: self.texts.as_slice()?,
            places: self.places.as_slice()?,
            window_bounds: self.window_bounds.as_slice()?,
            windows: self.windows.as_slice()?,
            spare: &self.decoders.spare,
            sums: self.decoders.sums.as_ref(),
        })
    }
}

/// A compressed text from an offset on.
pub(crate) struct Rest<'a> {
    pub(crate) packed: Packed<'a>,
    pub(crate) begin: u64,
}

impl text::Packed for Rest<'_> {
    fn size(&self) -> usize {
        self.packed.texts.last().map_or(0, |&end| end.saturating_sub(self.begin)) as usize
    }

    fn points_between(&self, range: Range<usize>) -> Vec<usize> {
        let points = self.packed.points_between(self.begin + range.start as u64..self.begin + range.end as u64);
        // The points are after the start of the range, so the difference is not negative.
        points.iter().map(|point| (point - self.begin) as usize).collect()
    }

    fn reader(&self) -> text::PackedReader<'_> {
        let mut reader = Reader::new(self.packed);
        Box::new(move |at, buffer| reader.read(self.begin + at as u64, buffer))
    }
}

/// Fill an array with the text from `begin` on.
#[pyfunction]
pub(crate) fn decompress(
    py: Python<'_>,
    text: PackedText<'_>,
    begin: u64,
    mut out: PyReadwriteArray1<'_, u8>,
    num_threads: usize,
) -> PyResult<()> {
    let source = text.source()?;
    let read = |at: usize, buffer: &mut [u8]| source.read(buffer, at as u64);
    let packed = text.packed(&read)?;
    let out = out.as_slice_mut()?;
    let pool = pool(num_threads)?;
    detached(py, || pool.install(|| compressed::decompress(packed, begin, out)))?.map_err(read_error)
}

/// Compress a text to a frame of zstd, which has its size and a checksum.
#[pyfunction]
pub(crate) fn zstd_frame<'py>(py: Python<'py>, text: &[u8], level: i32) -> PyResult<Bound<'py, PyBytes>> {
    let frame = detached(py, || compressed::zstd_frame(text, level))?.map_err(PyRuntimeError::new_err)?;
    // `PyBytes::new` would panic if the system has no memory for the copy.
    PyBytes::new_with(py, frame.len(), |bytes| {
        bytes.copy_from_slice(&frame);
        Ok(())
    })
}
