//! The CNTK binary format.

use crate::chunk::{Chunk, plain};
use crate::ctf::Spare;
use crate::file::{FileNumber, mapped, os_error, os_error_of};
use crate::pool::{detached, pool};
use cntkio_core::cbf::{self, Fault, Selected, Stream, Written};
use cntkio_core::chunk::Bytes;
use cntkio_memory::file::{FileBytes, MappedFile};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// Kind, byte in the chunk, stream, sequence in the chunk, the number found, the number it was compared with.
type FaultTuple = (u8, usize, Option<usize>, Option<usize>, i64, i64);

fn tuple(fault: Fault) -> FaultTuple {
    (fault.kind as u8, fault.at, fault.stream, fault.sequence, fault.found, fault.limit)
}

/// The chunk, bytes that were used, samples of each sequence (documented layout only); or the fault.
type ParsedChunk<'py> = (Option<Chunk>, usize, Bound<'py, PyArray1<u32>>, Option<FaultTuple>);

/// An open binary file.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct BinaryFile {
    file: Arc<MappedFile>,
}

#[pymethods]
impl BinaryFile {
    /// Share an open file: the caller may close it. Messages contain `name`.
    #[new]
    fn new(file: FileNumber, name: String) -> PyResult<BinaryFile> {
        let opened = file.file().and_then(|file| MappedFile::new(file, name.clone()));
        Ok(BinaryFile { file: Arc::new(opened.map_err(|error| os_error_of(error, Some(&name)))?) })
    }
}

/// Read a chunk, the `size` bytes of a file from `begin` on, as a memory map or as a copy.
///
/// `streams`: for each stream true if it is sparse, its dimension, true if it has double precision in the file, and true
/// if it is packed in double precision.
/// `most_samples`: the most samples that a stream may have, for the documented layout only.
/// `own`: keep only these sequences, counted in the chunk, which ascend; for the 2.x layout only.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub(crate) fn cbf_read<'py>(
    py: Python<'py>,
    file: Py<BinaryFile>,
    begin: u64,
    size: usize,
    memory_map: bool,
    num_sequences: usize,
    streams: Vec<(bool, usize, bool, bool)>,
    most_samples: Option<u64>,
    num_threads: usize,
    piece_size: usize,
    spare: Py<Spare>,
    own: Option<PyReadonlyArray1<'py, u32>>,
) -> PyResult<ParsedChunk<'py>> {
    let pool = pool(num_threads)?;
    if streams.iter().any(|&(_, dim, ..)| dim == 0 || u32::try_from(dim).is_err()) {
        return Err(PyValueError::new_err("a dimension must be 1 to 2^32 - 1"));
    }
    let stream = |(is_sparse, dim, is_double, becomes_double)| Stream { is_sparse, dim, is_double, becomes_double };
    let streams: Vec<Stream> = streams.into_iter().map(stream).collect();
    let spare = &spare.get().pool;
    let own = own.as_ref().map(|own| own.as_slice()).transpose()?;
    let exist =
        |own: &[u32]| own.is_sorted_by(|a, b| a < b) && own.last().is_none_or(|&last| (last as usize) < num_sequences);
    if !own.is_none_or(exist) {
        return Err(PyValueError::new_err("expected ascending sequences of the chunk"));
    }
    let parsed: std::io::Result<_> = detached(py, || {
        let file = &file.get().file;
        let bytes = if memory_map { mapped(file, begin, size)? } else { FileBytes::read(file, begin, size)? };
        Ok(pool.install(|| match most_samples {
            None => cbf::parse(Bytes::of(bytes), num_sequences, &streams, own),
            Some(most) => {
                cbf::parse_documented(bytes.as_slice(), num_sequences, &streams, most, piece_size, Some(spare))
            }
        }))
    })?;
    Ok(match parsed.map_err(os_error)? {
        Ok(parsed) => {
            let lengths = parsed.lengths.into_pyarray(py);
            (Some(Chunk { inner: parsed.chunk }), parsed.num_used, lengths, None)
        }
        Err(fault) => (None, 0, Vec::new().into_pyarray(py), Some(tuple(fault))),
    })
}

/// A chunk, the first of its sequences, and the end of its sequences.
type RunTuple = (Py<Chunk>, usize, usize);

fn written<'a>(tuples: &'a [RunTuple], selected: &[Selected]) -> PyResult<Vec<Written<'a>>> {
    let written = |(chunk, first, last): &'a RunTuple| {
        let chunk = plain(&chunk.get().inner)?;
        let are_there = selected.iter().all(|selected| chunk.has_column(selected.column));
        if first > last || *last > chunk.num_sequences() || (first < last && !are_there) {
            return Err(PyValueError::new_err("no such sequences or columns in the chunk"));
        }
        Ok(Written { chunk, sequences: *first..*last })
    };
    tuples.iter().map(written).collect()
}

fn selected(columns: Vec<(usize, bool)>) -> Vec<Selected> {
    columns.into_iter().map(|(column, is_double)| Selected { column, is_double }).collect()
}

/// The size of each sequence in a chunk of a file, and the number of samples of its longest stream, at least 1.
/// `columns`: for each stream its number in the chunks, and true if it is written in double precision.
#[pyfunction]
#[allow(clippy::type_complexity)]
pub(crate) fn cbf_sizes<'py>(
    py: Python<'py>,
    sequences: Vec<RunTuple>,
    columns: Vec<(usize, bool)>,
    is_documented: bool,
) -> PyResult<(Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<u32>>)> {
    let selected = selected(columns);
    let written = written(&sequences, &selected)?;
    let (sizes, lengths) = detached(py, || cbf::sizes(&written, &selected, is_documented))?;
    Ok((sizes.into_pyarray(py), lengths.into_pyarray(py)))
}

/// Write sequences as one chunk of a file into `out`, which must have exactly the chunk's size. Returns the fault, if
/// the sequences cannot be written.
#[pyfunction]
pub(crate) fn cbf_write(
    py: Python<'_>,
    sequences: Vec<RunTuple>,
    columns: Vec<(usize, bool)>,
    lengths: PyReadonlyArray1<'_, u32>,
    is_documented: bool,
    mut out: PyReadwriteArray1<'_, u8>,
) -> PyResult<Option<FaultTuple>> {
    let selected = selected(columns);
    let written = written(&sequences, &selected)?;
    let (lengths, out) = (lengths.as_slice()?, out.as_slice_mut()?);
    let result = py.detach(|| {
        if is_documented {
            cbf::write_documented(&written, &selected, out)
        } else {
            cbf::write(&written, &selected, lengths, out)
        }
    });
    Ok(result.err().map(tuple))
}
