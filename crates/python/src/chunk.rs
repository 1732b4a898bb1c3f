//! `Chunk` as a handle, and the packer.

use cntkio_core::chunk::{self, Block, Column, Samples, Values};
use cntkio_core::pack::{self, Cell, Ragged, Selection};
use numpy::{IntoPyArray, PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;

pyo3::import_exception!(cntkio.errors, CorpusError);

/// The parsed form of a run of consecutive sequences: immutable columns, one for each stream.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct Chunk {
    pub(crate) inner: chunk::Chunk,
}

/// One stream for `Chunk.from_columns`: sequence offsets, values, dimension and, if sparse, (sample offsets, indices).
type ColumnArrays<'py> = (
    PyReadonlyArray1<'py, u32>,
    Bound<'py, PyAny>,
    usize,
    Option<(PyReadonlyArray1<'py, u32>, PyReadonlyArray1<'py, i32>)>,
);

#[pymethods]
impl Chunk {
    /// Build a chunk from NumPy arrays, which are copied and checked.
    #[staticmethod]
    fn from_columns(num_sequences: usize, columns: Vec<ColumnArrays<'_>>) -> PyResult<Chunk> {
        let columns = columns.into_iter().map(column_from_arrays).collect::<PyResult<Vec<Column>>>()?;
        for (number, column) in columns.iter().enumerate() {
            column.check(num_sequences).map_err(|why| PyValueError::new_err(format!("stream {number}: {why}")))?;
        }
        Ok(Chunk { inner: chunk::Chunk::new(vec![Block { num_sequences, columns }]) })
    }

    /// Number of sequences.
    #[getter]
    fn num_sequences(&self) -> usize {
        self.inner.num_sequences()
    }

    /// Bytes of memory that the columns take.
    #[getter]
    fn num_bytes(&self) -> usize {
        self.inner.num_bytes()
    }

    /// The same with dense and sparse columns only, as writers need them; itself if it is so already.
    fn plain(slf: Bound<'_, Self>) -> PyResult<Py<Self>> {
        if slf.get().inner.is_plain() {
            return Ok(slf.unbind());
        }
        let py = slf.py();
        let inner = slf.get();
        let made = py.detach(|| pack::plain(&inner.inner)).map_err(refused)?;
        Py::new(py, Chunk { inner: made })
    }

    fn __repr__(&self) -> String {
        format!("Chunk(num_sequences={}, num_bytes={})", self.inner.num_sequences(), self.inner.num_bytes())
    }
}

fn column_from_arrays((offsets, values, dim, sparse): ColumnArrays<'_>) -> PyResult<Column> {
    let values = if let Ok(values) = values.cast::<PyArray1<f32>>() {
        Values::F32(values.readonly().as_slice()?.to_vec())
    } else if let Ok(values) = values.cast::<PyArray1<f64>>() {
        Values::F64(values.readonly().as_slice()?.to_vec())
    } else {
        return Err(PyTypeError::new_err("values must be a one-dimensional float32 or float64 array"));
    };
    let samples = match sparse {
        None => Samples::Dense { dim, values },
        Some((sample_offsets, indices)) => Samples::Sparse {
            dim,
            sample_offsets: sample_offsets.as_slice()?.to_vec(),
            indices: indices.as_slice()?.to_vec(),
            values,
        },
    };
    Ok(Column { sequence_offsets: offsets.as_slice()?.to_vec(), samples })
}

/// Values, sequence offsets and, if sparse, (sample offsets, indices).
pub(crate) type RaggedArrays<'py> =
    (Bound<'py, PyAny>, Bound<'py, PyArray1<i64>>, Option<(Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i32>>)>);

/// The values of each stream; or which sequence, in which stream, has how many samples, when that is not its length.
type SpreadArrays<'py> = (Vec<Bound<'py, PyAny>>, Option<(usize, usize, usize)>);

/// Spread parts of sequences over `num_cells` dense samples, for each of the streams (number, dimension, double).
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub(crate) fn spread<'py>(
    py: Python<'py>,
    chunks: Vec<Py<Chunk>>,
    places: PyReadonlyArray1<'py, u32>,
    sequences: PyReadonlyArray1<'py, u32>,
    first_samples: PyReadonlyArray1<'py, i64>,
    num_samples: PyReadonlyArray1<'py, i64>,
    cells: PyReadonlyArray1<'py, i64>,
    lengths: PyReadonlyArray1<'py, u32>,
    streams: Vec<(usize, usize, bool)>,
    num_cells: usize,
) -> PyResult<SpreadArrays<'py>> {
    let handles: Vec<&chunk::Chunk> = chunks.iter().map(|chunk| &chunk.get().inner).collect();
    let selection =
        Selection { chunks: &handles, places: places.as_slice()?, sequences: sequences.as_slice()?, parts: None };
    let cells: Vec<Cell> = first_samples
        .as_slice()?
        .iter()
        .zip(num_samples.as_slice()?)
        .zip(cells.as_slice()?)
        .zip(lengths.as_slice()?)
        .map(|(((&first, &count), &place), &length)| Cell {
            first_sample: first as usize,
            num_samples: count as usize,
            place: place as usize,
            length: length as usize,
        })
        .collect();
    let spread: Result<Vec<Values>, pack::Error> = py.detach(|| {
        let one = |&(stream, dim, is_double): &(usize, usize, bool)| {
            if is_double {
                pack::spread(selection, &cells, stream, dim, num_cells, pack::doubles).map(Values::F64)
            } else {
                pack::spread(selection, &cells, stream, dim, num_cells, pack::singles).map(Values::F32)
            }
        };
        streams.iter().map(one).collect()
    });
    match spread {
        Err(pack::Error::Length { number, stream, num_samples }) => Ok((vec![], Some((number, stream, num_samples)))),
        spread => Ok((spread.map_err(refused)?.into_iter().map(|values| values_array(py, values)).collect(), None)),
    }
}

pub(crate) fn refused(why: pack::Error) -> PyErr {
    match why {
        pack::Error::Changed(name) => CorpusError::new_err(format!("{name}: changed while in use; open it again")),
        pack::Error::TooLarge => PyMemoryError::new_err("the minibatch does not fit into memory"),
        _ => PyValueError::new_err(format!("cannot pack: {why:?}")),
    }
}

pub(crate) fn ragged_arrays(py: Python<'_>, ragged: Ragged) -> RaggedArrays<'_> {
    let sparse = ragged.sparse.map(|(offsets, indices)| (offsets.into_pyarray(py), indices.into_pyarray(py)));
    (values_array(py, ragged.values), ragged.sequence_offsets.into_pyarray(py), sparse)
}

fn values_array(py: Python<'_>, values: Values) -> Bound<'_, PyAny> {
    match values {
        Values::F32(values) => values.into_pyarray(py).into_any(),
        Values::F64(values) => values.into_pyarray(py).into_any(),
    }
}

/// Spread ragged samples over `sequences * steps * dim` values, zeros behind each sequence's end.
#[pyfunction]
pub(crate) fn pad<'py>(
    py: Python<'py>,
    values: Bound<'py, PyAny>,
    sequence_offsets: PyReadonlyArray1<'py, i64>,
    steps: usize,
    dim: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let offsets = sequence_offsets.as_slice()?;
    let padded = if let Ok(values) = values.cast::<PyArray1<f32>>() {
        let values = values.readonly();
        let values = values.as_slice()?;
        py.detach(|| pack::pad(values, offsets, steps, dim)).map(Values::F32)
    } else if let Ok(values) = values.cast::<PyArray1<f64>>() {
        let values = values.readonly();
        let values = values.as_slice()?;
        py.detach(|| pack::pad(values, offsets, steps, dim)).map(Values::F64)
    } else {
        return Err(PyTypeError::new_err("values must be a one-dimensional float32 or float64 array"));
    };
    padded
        .map(|values| values_array(py, values))
        .map_err(|_| PyValueError::new_err("offsets and steps do not fit the values"))
}
