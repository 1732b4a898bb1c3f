//! Figures of the streams of chunks, and hashes of the values of sequences.

use crate::chunk::{Chunk, refused};
use crate::objects::IntoArray;
use crate::pool::{detached, pool};
use cntkio_core::survey::{Figures, Wanted, hashes as hashes_of, repeated as repeated_in, survey as survey_of};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Figures of a stream of a chunk: see `survey::Figures`.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct StreamFigures {
    num_samples: usize,
    num_values: usize,
    lowest: f64,
    highest: f64,
    is_finite: bool,
    first_row: Py<PyArray1<f64>>,
    constant: Py<PyArray1<u32>>,
    num_tried: usize,
    num_zeros: usize,
    are_whole: bool,
    first: i32,
    last: i32,
    second: i32,
    forms: Vec<Vec<i32>>,
    not_one_hot: Option<Py<PyArray1<u32>>>,
    counts: Py<PyArray1<i64>>,
}

impl StreamFigures {
    fn of(py: Python<'_>, found: Figures) -> PyResult<StreamFigures> {
        Ok(StreamFigures {
            num_samples: found.num_samples,
            num_values: found.num_values,
            lowest: found.range.lowest,
            highest: found.range.highest,
            is_finite: found.range.is_finite,
            first_row: found.first_row.into_array(py)?.unbind(),
            constant: found.constant.into_array(py)?.unbind(),
            num_tried: found.tried.num_values,
            num_zeros: found.tried.num_zeros,
            are_whole: found.tried.are_whole,
            first: found.first,
            last: found.last,
            second: found.second,
            forms: found.forms,
            not_one_hot: found.not_one_hot.map(|samples| samples.into_array(py)).transpose()?.map(Bound::unbind),
            counts: found.counts.into_array(py)?.unbind(),
        })
    }
}

/// The fields of `survey::Wanted`, from the attributes of an object.
#[derive(FromPyObject)]
pub(crate) struct Asked<'py> {
    stream: usize,
    constant: Option<(PyReadonlyArray1<'py, f64>, PyReadonlyArray1<'py, u32>)>,
    one_hot: bool,
    most_classes: usize,
    beyond: i32,
    forms: bool,
}

/// The hash of each sequence over the streams, and the figures of each stream.
type Found<'py> = (Bound<'py, PyArray1<u64>>, Vec<StreamFigures>);

/// The hash of each sequence of a chunk over some streams, and the figures of each of them: see `survey::survey`.
#[pyfunction]
pub(crate) fn survey<'py>(
    py: Python<'py>,
    chunk: Py<Chunk>,
    streams: Vec<Asked<'py>>,
    num_threads: usize,
) -> PyResult<Found<'py>> {
    let wanted = streams.iter().map(|asked| {
        let constant = match &asked.constant {
            Some((row, columns)) => Some((row.as_slice()?, columns.as_slice()?)),
            None => None,
        };
        Ok(Wanted {
            stream: asked.stream,
            constant,
            one_hot: asked.one_hot,
            most_classes: asked.most_classes,
            beyond: asked.beyond,
            forms: asked.forms,
        })
    });
    let (wanted, pool) = (wanted.collect::<PyResult<Vec<Wanted>>>()?, pool(num_threads)?);
    let chunk = &chunk.get().inner;
    let (hashes, figures) = detached(py, || pool.install(|| survey_of(chunk, &wanted)))?.map_err(refused)?;
    let figures = figures.into_iter().map(|found| StreamFigures::of(py, found)).collect::<PyResult<_>>()?;
    Ok((hashes.into_array(py)?, figures))
}

/// The hash of each of some sequences of numbers of a size in bytes: see `survey::hashes`.
#[pyfunction]
pub(crate) fn hashes<'py>(
    py: Python<'py>,
    bytes: PyReadonlyArray1<'py, u8>,
    size: usize,
    bounds: PyReadonlyArray1<'py, i64>,
    seeds: PyReadonlyArray1<'py, u64>,
    num_threads: usize,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let (bytes, bounds, seeds, pool) = (bytes.as_slice()?, bounds.as_slice()?, seeds.as_slice()?, pool(num_threads)?);
    let found = detached(py, || pool.install(|| hashes_of(bytes, size, bounds, seeds)))?;
    let found = found.ok_or_else(|| PyValueError::new_err("the bounds do not fit the bytes"))?;
    found.into_array(py)
}

/// The places of all numbers that occur more than once: see `survey::repeated`.
#[pyfunction]
pub(crate) fn repeated<'py>(
    py: Python<'py>,
    numbers: PyReadonlyArray1<'py, u64>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let numbers = numbers.as_slice()?;
    detached(py, || repeated_in(numbers))?.into_array(py)
}
