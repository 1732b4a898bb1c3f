//! Figures of the values of sequences.

use crate::pool::{detached, pool};
use cntkio_core::survey::{Range, survey as survey_of};
use numpy::{IntoPyArray, PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Hashes, the lowest and the highest value, and whether all values are finite.
type Figures<'py> = (Bound<'py, PyArray1<u64>>, f64, f64, bool);

/// The hash of the values of each sequence, and the range of all values: see `survey::survey`. The values are float32,
/// float64 or int32.
#[pyfunction]
pub(crate) fn survey<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    bytes: PyReadonlyArray1<'py, u8>,
    bounds: PyReadonlyArray1<'py, i64>,
    seeds: PyReadonlyArray1<'py, u64>,
    num_threads: usize,
) -> PyResult<Figures<'py>> {
    let (bytes, bounds, seeds, pool) = (bytes.as_slice()?, bounds.as_slice()?, seeds.as_slice()?, pool(num_threads)?);
    let found: Option<(Vec<u64>, Range)> = if let Ok(values) = values.cast::<PyArray1<f32>>() {
        let (array, survey) = (values.readonly(), survey_of::<f32>);
        let values = array.as_slice()?;
        detached(py, || pool.install(|| survey(values, bytes, bounds, seeds)))?
    } else if let Ok(values) = values.cast::<PyArray1<f64>>() {
        let (array, survey) = (values.readonly(), survey_of::<f64>);
        let values = array.as_slice()?;
        detached(py, || pool.install(|| survey(values, bytes, bounds, seeds)))?
    } else if let Ok(values) = values.cast::<PyArray1<i32>>() {
        let (array, survey) = (values.readonly(), survey_of::<i32>);
        let values = array.as_slice()?;
        detached(py, || pool.install(|| survey(values, bytes, bounds, seeds)))?
    } else {
        return Err(PyTypeError::new_err("values must be a float32, float64 or int32 array"));
    };
    let (hashes, range) = found.ok_or_else(|| PyValueError::new_err("the bounds do not fit the values"))?;
    Ok((hashes.into_pyarray(py), range.lowest, range.highest, range.is_finite))
}
