//! The CNTK binary format.

use crate::chunk::{Chunk, plain};
use crate::ctf::Spare;
use crate::file::{TextArgument, TextSource, mapped, os_error, os_error_of};
use crate::objects::IntoArray;
use crate::pool::{detached, pool};
use cntkio_core::cbf::{self, Fault, Selected, Stream, Written};
use cntkio_core::chunk::Bytes;
use cntkio_memory::copy::zeros;
use cntkio_memory::file::{FileBytes, MappedFile};
use numpy::{PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// A fault in a chunk.
#[pyclass(frozen, get_all, module = "cntkio._core")]
#[derive(Clone)]
pub(crate) struct CBFFault {
    kind: u8,
    /// Byte in the chunk.
    offset: usize,
    stream: Option<usize>,
    /// Sequence in the chunk.
    sequence: Option<usize>,
    /// The number that was found, and the number with which it was compared.
    found: i64,
    limit: i64,
}

impl CBFFault {
    fn of(fault: Fault) -> CBFFault {
        let Fault { kind, at, stream, sequence, found, limit } = fault;
        CBFFault { kind: kind as u8, offset: at, stream, sequence, found, limit }
    }
}

/// A chunk that was read, or its fault.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct CBFChunk {
    chunk: Option<Py<Chunk>>,
    /// Bytes that were used.
    num_used: usize,
    /// Samples of each sequence, in the documented layout only.
    lengths: Py<PyArray1<u32>>,
    fault: Option<CBFFault>,
}

/// A stream of a file, from the attributes of an object.
#[derive(FromPyObject)]
struct ColumnSchema {
    is_sparse: bool,
    dim: usize,
    /// True if it has double precision in the file, and true if it is packed in double precision.
    is_double: bool,
    becomes_double: bool,
}

/// The place of a chunk in a file, from the attributes of an object.
#[derive(FromPyObject)]
struct ChunkInFile<'py> {
    /// The open file, or the bytes of the chunk in memory.
    source: TextArgument<'py>,
    begin: u64,
    size: usize,
    num_sequences: usize,
    /// The most samples that a stream may have, in the documented layout; none in the 2.x layout.
    most_samples: Option<u64>,
    /// Bytes that a thread parses at a time.
    piece_size: usize,
}

/// An open binary file; none if its bytes come from elsewhere, and each chunk is passed in memory.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct BinaryFile {
    file: Option<Arc<MappedFile>>,
    memory_map: bool,
}

impl BinaryFile {
    /// The bytes of a chunk: of the file, or a copy of the bytes in memory.
    fn bytes(&self, source: TextSource<'_>, begin: u64, size: usize) -> std::io::Result<FileBytes> {
        match &self.file {
            Some(file) if self.memory_map => mapped(file, begin, size),
            Some(file) => FileBytes::read(file, begin, size),
            None => {
                let mut bytes = zeros(size).ok_or(std::io::ErrorKind::OutOfMemory)?;
                source.read(&mut bytes, begin)?;
                Ok(FileBytes::here(bytes))
            }
        }
    }
}

#[pymethods]
impl BinaryFile {
    /// Share an open file: the caller may close it. Messages contain `name`. With `memory_map`, chunks are maps of the
    /// file; otherwise they are copies.
    #[new]
    fn new(source: TextArgument<'_>, name: String, memory_map: bool) -> PyResult<BinaryFile> {
        let TextSource::File(file, _) = source.source()? else {
            return Ok(BinaryFile { file: None, memory_map: false });
        };
        let opened = MappedFile::new(file, name.clone()).map_err(|error| os_error_of(error, Some(&name)))?;
        Ok(BinaryFile { file: Some(Arc::new(opened)), memory_map })
    }

    /// Read a chunk.
    ///
    /// `own`: keep only these sequences, counted in the chunk, which ascend; for the 2.x layout only.
    fn read(
        &self,
        py: Python<'_>,
        chunk: ChunkInFile<'_>,
        streams: Vec<ColumnSchema>,
        own: Option<PyReadonlyArray1<'_, u32>>,
        spare: Py<Spare>,
        num_threads: usize,
    ) -> PyResult<CBFChunk> {
        let pool = pool(num_threads)?;
        // The parser of the documented layout divides rows by the dimension.
        if streams.iter().any(|stream| stream.dim == 0 || u32::try_from(stream.dim).is_err()) {
            return Err(PyValueError::new_err("a dimension must be 1 to 2^32 - 1"));
        }
        let stream = |column: ColumnSchema| {
            let ColumnSchema { is_sparse, dim, is_double, becomes_double } = column;
            Stream { is_sparse, dim, is_double, becomes_double }
        };
        let streams: Vec<Stream> = streams.into_iter().map(stream).collect();
        let ChunkInFile { source, begin, size, num_sequences, most_samples, piece_size } = chunk;
        let own = own.as_ref().map(|own| own.as_slice()).transpose()?;
        let are_there = |own: &[u32]| {
            // The parser walks over the chunk once and compares each sequence with the next of these, so it would miss
            // a sequence that is out of order.
            own.is_sorted_by(|a, b| a < b) && own.last().is_none_or(|&last| (last as usize) < num_sequences)
        };
        if !own.is_none_or(are_there) {
            return Err(PyValueError::new_err("expected ascending sequences of the chunk"));
        }
        let (spare, source) = (&spare.get().pool, source.source()?);
        let parsed: std::io::Result<_> = detached(py, || {
            let bytes = self.bytes(source, begin, size)?;
            Ok(pool.install(|| match most_samples {
                None => cbf::parse(Bytes::of(bytes), num_sequences, &streams, own),
                // The columns of this layout are copies, so its bytes are released here. A chunk of the 2.x layout
                // keeps them.
                Some(most) => {
                    cbf::parse_documented(bytes.as_slice(), num_sequences, &streams, most, piece_size, Some(spare))
                }
            }))
        })?;
        Ok(match parsed.map_err(os_error)? {
            Ok(parsed) => CBFChunk {
                chunk: Some(Py::new(py, Chunk { inner: parsed.chunk })?),
                num_used: parsed.num_used,
                lengths: parsed.lengths.into_array(py)?.unbind(),
                fault: None,
            },
            // A fault has no path and no stream's name, so Python makes the exception.
            Err(fault) => {
                let lengths = Vec::new().into_array(py)?.unbind();
                CBFChunk { chunk: None, num_used: 0, lengths, fault: Some(CBFFault::of(fault)) }
            }
        })
    }
}

/// The size of each sequence, and the number of samples of its longest stream.
type SizeArrays<'py> = (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<u32>>);

/// Sequences of a chunk, from the attributes of a slice.
#[derive(FromPyObject)]
pub(crate) struct Run {
    start: usize,
    stop: usize,
}

fn written<'a>(runs: &'a [(Py<Chunk>, Run)], selected: &[Selected]) -> PyResult<Vec<Written<'a>>> {
    let written = |&(ref chunk, Run { start, stop }): &'a (Py<Chunk>, Run)| {
        let chunk = plain(&chunk.get().inner)?;
        let are_there = selected.iter().all(|selected| chunk.has_column(selected.column));
        // The writers look up sequences and columns without a check. A run without sequences needs no columns.
        if start > stop || stop > chunk.num_sequences() || (start < stop && !are_there) {
            return Err(PyValueError::new_err("no such sequences or columns in the chunk"));
        }
        Ok(Written { chunk, sequences: start..stop })
    };
    runs.iter().map(written).collect()
}

fn selected(columns: Vec<(usize, bool)>) -> Vec<Selected> {
    columns.into_iter().map(|(column, is_double)| Selected { column, is_double }).collect()
}

/// The size of each sequence in a chunk of a file, and the number of samples of its longest stream, at least 1.
/// `columns`: for each stream its number in the chunks, and true if it is written in double precision.
#[pyfunction]
pub(crate) fn cbf_sizes<'py>(
    py: Python<'py>,
    sequences: Vec<(Py<Chunk>, Run)>,
    columns: Vec<(usize, bool)>,
    is_documented: bool,
) -> PyResult<SizeArrays<'py>> {
    let selected = selected(columns);
    let written = written(&sequences, &selected)?;
    let (sizes, lengths) = detached(py, || cbf::sizes(&written, &selected, is_documented))?;
    Ok((sizes.into_array(py)?, lengths.into_array(py)?))
}

/// Write sequences as one chunk of a file into `out`, which must have exactly the chunk's size. Returns the fault, if
/// the sequences cannot be written.
#[pyfunction]
pub(crate) fn cbf_write(
    py: Python<'_>,
    sequences: Vec<(Py<Chunk>, Run)>,
    columns: Vec<(usize, bool)>,
    lengths: PyReadonlyArray1<'_, u32>,
    is_documented: bool,
    mut out: PyReadwriteArray1<'_, u8>,
) -> PyResult<Option<CBFFault>> {
    let selected = selected(columns);
    let written = written(&sequences, &selected)?;
    let (lengths, out) = (lengths.as_slice()?, out.as_slice_mut()?);
    // The writers only fill `out` and ask for no memory, so `detached` is not needed.
    let result = py.detach(|| {
        if is_documented {
            cbf::write_documented(&written, &selected, out)
        } else {
            cbf::write(&written, &selected, lengths, out)
        }
    });
    Ok(result.err().map(CBFFault::of))
}
