//! `Chunk` as a handle, and the packer.

use crate::objects::IntoArray;
use crate::pool::{attached, detached};
use cntkio_core::chunk::{self, Block, Column, Narrow, NumberType, PlainChunk, Samples, Values};
use cntkio_core::memory::copied;
use cntkio_core::pack::{self, Cell, Ragged, RaggedEntries, Selection, Table};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::num::TryFromIntError;

pyo3::import_exception!(cntkio.errors, CorpusError);

/// Consecutive sequences, parsed: immutable columns, one for each stream.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct Chunk {
    pub(crate) inner: chunk::Chunk,
}

impl Drop for Chunk {
    /// Unmapping takes half a millisecond, in which other threads of Python continue. Other memory is reused, which is
    /// quicker than giving up the interpreter's lock.
    fn drop(&mut self) {
        if self.inner.is_mapped() {
            let inner = std::mem::replace(&mut self.inner, chunk::Chunk::new(Vec::new()));
            Python::attach(|py| py.detach(|| drop(inner)));
        }
    }
}

/// A stream for `Chunk.from_columns`, from the attributes of an object.
#[derive(FromPyObject)]
struct ColumnArrays<'py> {
    sequence_offsets: PyReadonlyArray1<'py, u32>,
    values: Bound<'py, PyAny>,
    dim: usize,
    /// Sample offsets and indices; none if the stream is dense.
    sparse: Option<(PyReadonlyArray1<'py, u32>, PyReadonlyArray1<'py, i32>)>,
}

#[pymethods]
impl Chunk {
    /// Build a chunk from NumPy arrays, which are copied and checked. A chunk that will only be packed may keep whole
    /// numbers in two bytes.
    #[staticmethod]
    #[pyo3(signature = (num_sequences, columns, is_packed = false))]
    fn from_columns(
        py: Python<'_>,
        num_sequences: usize,
        columns: Vec<ColumnArrays<'_>>,
        is_packed: bool,
    ) -> PyResult<Chunk> {
        let columns = columns.into_iter().map(|arrays| column_from_arrays(py, arrays, is_packed));
        let columns = columns.collect::<PyResult<Vec<Column>>>()?;
        for (number, column) in columns.iter().enumerate() {
            // The packer relies on offsets and indices, and the arrays may come from a user's own deserializer.
            column.check(num_sequences).map_err(|why| PyValueError::new_err(format!("stream {number}: {why}")))?;
        }
        Ok(Chunk { inner: chunk::Chunk::new(vec![Block { num_sequences, columns }]) })
    }

    /// Number of sequences.
    #[getter]
    fn num_sequences(&self) -> usize {
        self.inner.num_sequences()
    }

    /// Size of the columns' memory in bytes.
    #[getter]
    fn num_bytes(&self) -> usize {
        self.inner.num_bytes()
    }

    /// Number of samples of each sequence of a stream.
    fn lengths<'py>(&self, py: Python<'py>, stream: usize) -> PyResult<Bound<'py, PyArray1<u32>>> {
        // `lengths` takes the column of each block without a check.
        if self.inner.blocks().iter().any(|block| stream >= block.columns.len()) {
            return Err(PyValueError::new_err(format!("the chunk has no stream {stream}")));
        }
        attached(|| self.inner.lengths(stream))?.into_array(py)
    }

    /// The chunk with dense and sparse columns in full width only, as writers need it; itself if it has no others.
    fn in_full_width(slf: Bound<'_, Self>) -> PyResult<Py<Self>> {
        let (py, chunk) = (slf.py(), slf.get());
        if chunk.inner.as_plain().is_some() {
            return Ok(slf.unbind());
        }
        let inner = detached(py, || pack::in_full_width(&chunk.inner, None))?.map_err(refused)?;
        Py::new(py, Chunk { inner })
    }

    /// A copy of some sequences, with dense and sparse columns in full width only.
    fn only(&self, py: Python<'_>, sequences: PyReadonlyArray1<'_, u32>) -> PyResult<Chunk> {
        let sequences = sequences.as_slice()?;
        let inner = detached(py, || pack::in_full_width(&self.inner, Some(sequences)))?.map_err(refused)?;
        Ok(Chunk { inner })
    }

    /// A copy with these columns in this order, dense and sparse in full width only.
    fn in_order(&self, py: Python<'_>, columns: Vec<usize>) -> PyResult<Chunk> {
        let inner = detached(py, || pack::in_order(&self.inner, &columns))?.map_err(refused)?;
        Ok(Chunk { inner })
    }

    fn __repr__(&self) -> String {
        format!("Chunk(num_sequences={}, num_bytes={})", self.inner.num_sequences(), self.inner.num_bytes())
    }
}

/// A type of values, as Python numbers it: float32, float64, int32, int64.
#[derive(Clone, Copy)]
pub(crate) struct Number(pub(crate) NumberType);

impl<'a, 'py> FromPyObject<'a, 'py> for Number {
    type Error = PyErr;

    fn extract(number: Borrowed<'a, 'py, PyAny>) -> PyResult<Number> {
        const TYPES: [NumberType; 4] = [NumberType::F32, NumberType::F64, NumberType::I32, NumberType::I64];
        let number: usize = number.extract()?;
        TYPES.get(number).map(|&number| Number(number)).ok_or_else(|| PyValueError::new_err("no such type of values"))
    }
}

/// Run the same code on a one-dimensional array of any type of values, and put the result into the variant of the type.
macro_rules! of_any_type {
    ($array:expr, $values:ident => $code:expr) => {
        if let Ok(array) = $array.cast::<PyArray1<f32>>() {
            let array = array.readonly();
            let $values = array.as_slice()?;
            Ok(Values::F32($code))
        } else if let Ok(array) = $array.cast::<PyArray1<f64>>() {
            let array = array.readonly();
            let $values = array.as_slice()?;
            Ok(Values::F64($code))
        } else if let Ok(array) = $array.cast::<PyArray1<i32>>() {
            let array = array.readonly();
            let $values = array.as_slice()?;
            Ok(Values::I32($code))
        } else if let Ok(array) = $array.cast::<PyArray1<i64>>() {
            let array = array.readonly();
            let $values = array.as_slice()?;
            Ok(Values::I64($code))
        } else {
            Err(PyTypeError::new_err("values must be a one-dimensional array of float32, float64, int32 or int64"))
        }
    };
}

/// The chunk as writers take it.
pub(crate) fn plain(chunk: &chunk::Chunk) -> PyResult<PlainChunk<'_>> {
    let refused = || PyValueError::new_err("only columns in full width can be written: see Chunk.in_full_width");
    chunk.as_plain().ok_or_else(refused)
}

fn column_from_arrays(py: Python<'_>, column: ColumnArrays<'_>, is_packed: bool) -> PyResult<Column> {
    let ColumnArrays { sequence_offsets, values, dim, sparse } = column;
    // A chunk never changes, but its caller may write to the arrays later, so the arrays are copied.
    let sequence_offsets = attached(|| sequence_offsets.as_slice().map(copied))??;
    let Some((sample_offsets, indices)) = sparse else {
        return Ok(Column { sequence_offsets, samples: dense(py, dim, &values, is_packed)? });
    };
    let values: PyResult<Values> = of_any_type!(values, values => detached(py, || copied(values))?);
    let sample_offsets = attached(|| sample_offsets.as_slice().map(copied))??;
    let indices = attached(|| indices.as_slice().map(copied))??;
    Ok(Column { sequence_offsets, samples: Samples::Sparse { dim, sample_offsets, indices, values: values? } })
}

/// Dense samples; if they will be packed, whole numbers in two bytes each if all of them fit.
fn dense(py: Python<'_>, dim: usize, values: &Bound<'_, PyAny>, is_packed: bool) -> PyResult<Samples> {
    // Writers take columns in full width only, so a chunk that may be written keeps its values as they are.
    let narrow = if !is_packed {
        None
    } else if let Ok(array) = values.cast::<PyArray1<i64>>() {
        let array = array.readonly();
        let values = array.as_slice()?;
        detached(py, || Narrow::of(dim, values))?
    } else if let Ok(array) = values.cast::<PyArray1<i32>>() {
        let array = array.readonly();
        let values = array.as_slice()?;
        detached(py, || Narrow::of(dim, values))?
    } else {
        None
    };
    if let Some(narrow) = narrow {
        return Ok(Samples::Narrow(narrow));
    }
    let values: PyResult<Values> = of_any_type!(values, values => detached(py, || copied(values))?);
    Ok(Samples::Dense { dim, values: values? })
}

/// Values, sequence offsets and, if sparse, (sample offsets, indices).
pub(crate) type RaggedArrays<'py> =
    (Bound<'py, PyAny>, Bound<'py, PyArray1<i64>>, Option<(Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i32>>)>);

/// A sequence with another number of samples in a stream than its length.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct Misfit {
    sequence: usize,
    stream: usize,
    num_samples: usize,
}

/// The places of sequences in some chunks, from the attributes of an object.
#[derive(FromPyObject)]
pub(crate) struct Refs<'py> {
    chunk_indices: PyReadonlyArray1<'py, u32>,
    indices_in_chunk: PyReadonlyArray1<'py, u32>,
}

/// The parts of sequences in a truncated minibatch, from the attributes of an object.
#[derive(FromPyObject)]
pub(crate) struct PartArrays<'py> {
    first_sample: PyReadonlyArray1<'py, i64>,
    num_samples: PyReadonlyArray1<'py, i64>,
    /// The samples that each whole sequence counts for.
    lengths: PyReadonlyArray1<'py, u32>,
}

/// Spread parts of sequences over `num_cells` dense samples, for each of the streams (number, dimension, type).
/// `cells`: the cell of the first sample of each part.
#[pyfunction]
pub(crate) fn spread<'py>(
    py: Python<'py>,
    chunks: Vec<Py<Chunk>>,
    refs: Refs<'py>,
    parts: PartArrays<'py>,
    cells: PyReadonlyArray1<'py, i64>,
    streams: Vec<(usize, usize, Number)>,
    num_cells: usize,
) -> PyResult<(Vec<Bound<'py, PyAny>>, Option<Misfit>)> {
    let chunks: Vec<&chunk::Chunk> = chunks.iter().map(|chunk| &chunk.get().inner).collect();
    let (chunk_of, sequences) = (refs.chunk_indices.as_slice()?, refs.indices_in_chunk.as_slice()?);
    let selection = Selection { chunk_of, sequences, parts: None };
    let (firsts, counts) = (parts.first_sample.as_slice()?.iter(), parts.num_samples.as_slice()?.iter());
    let cells = firsts.zip(counts).zip(cells.as_slice()?).zip(parts.lengths.as_slice()?);
    let cells: Vec<Cell> = cells
        .map(|(((&first, &count), &cell), &length)| {
            let (first_sample, num_samples) = (u32::try_from(first)?, u32::try_from(count)?);
            Ok(Cell { first_sample, num_samples, cell: usize::try_from(cell)?, length: length as usize })
        })
        .collect::<Result<_, TryFromIntError>>()
        // A number that is negative or has more than 32 bits is a sample that no sequence has.
        .map_err(|_| refused(pack::Error::Missing))?;
    let tables: Vec<Table> =
        streams.into_iter().map(|(stream, dim, Number(number))| Table { stream, dim, number }).collect();
    match detached(py, || pack::spread(&chunks, selection, &cells, &tables, num_cells))? {
        // Only Python knows the key of the sequence and the name of the stream for a message.
        Err(pack::Error::Length { sequence, stream, num_samples }) => {
            Ok((vec![], Some(Misfit { sequence, stream, num_samples })))
        }
        spread => {
            let arrays = spread.map_err(refused)?.into_iter().map(|values| values_array(py, values));
            Ok((arrays.collect::<PyResult<_>>()?, None))
        }
    }
}

pub(crate) fn refused(why: pack::Error) -> PyErr {
    match why {
        pack::Error::Changed(name) => CorpusError::new_err(format!("{name}: changed while in use; open it again")),
        // The core reports a size that does not fit a `usize` as the largest `usize`.
        pack::Error::TooLarge(usize::MAX) => PyMemoryError::new_err("the minibatch needs 2^64 bytes or more"),
        pack::Error::TooLarge(num_bytes) => {
            PyMemoryError::new_err(format!("no memory for an array of {num_bytes} bytes in a minibatch"))
        }
        pack::Error::LongChunk => CorpusError::new_err(
            "a chunk has 2^32 or more samples or entries, which cannot be copied together; expected smaller chunks \
             (chunk_size_in_bytes)",
        ),
        _ => PyValueError::new_err(format!("cannot pack: {why:?}")),
    }
}

pub(crate) fn ragged_arrays(py: Python<'_>, ragged: Ragged) -> PyResult<RaggedArrays<'_>> {
    let arrays = |entries: RaggedEntries| -> PyResult<_> {
        Ok((entries.sample_offsets.into_array(py)?, entries.indices.into_array(py)?))
    };
    let sparse = ragged.entries.map(arrays).transpose()?;
    Ok((values_array(py, ragged.values)?, ragged.sequence_offsets.into_array(py)?, sparse))
}

pub(crate) fn values_array(py: Python<'_>, values: Values) -> PyResult<Bound<'_, PyAny>> {
    Ok(match values {
        Values::F32(values) => values.into_array(py)?.into_any(),
        Values::F64(values) => values.into_array(py)?.into_any(),
        Values::I32(values) => values.into_array(py)?.into_any(),
        Values::I64(values) => values.into_array(py)?.into_any(),
    })
}

/// Spread ragged samples over `sequences * steps * dim` values, with zeros after each sequence's end.
#[pyfunction]
pub(crate) fn pad<'py>(
    py: Python<'py>,
    values: Bound<'py, PyAny>,
    sequence_offsets: PyReadonlyArray1<'py, i64>,
    steps: usize,
    dim: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let offsets = sequence_offsets.as_slice()?;
    let misfit = |error| match error {
        pack::Error::TooLarge(_) => refused(error),
        _ => PyValueError::new_err("offsets and steps do not fit the values"),
    };
    let padded: PyResult<Values> = of_any_type!(values, values => {
        // `pad` returns refused memory as an error of its own, so `detached` is not needed.
        py.detach(|| pack::pad(values, offsets, steps, dim)).map_err(misfit)?
    });
    values_array(py, padded?)
}
