//! Lengths of sequences as arrays of Python.

use cntkio_core::lengths::Lengths;
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// An array of lengths of 8, 16 or 32 bits. If all are the same, it may keep a single number (its stride is 0).
pub(crate) enum LengthsArray<'py> {
    Words(PyReadonlyArray1<'py, u32>),
    Bytes(PyReadonlyArray1<'py, u8>),
    Shorts(PyReadonlyArray1<'py, u16>),
}

// Not derived: derived code formats an error for each variant that does not fit, which takes 20 microseconds.
impl<'py> FromPyObject<'_, 'py> for LengthsArray<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(array) = object.cast::<PyArray1<u8>>() {
            Ok(LengthsArray::Bytes(array.readonly()))
        } else if let Ok(array) = object.cast::<PyArray1<u16>>() {
            Ok(LengthsArray::Shorts(array.readonly()))
        } else if let Ok(array) = object.cast::<PyArray1<u32>>() {
            Ok(LengthsArray::Words(array.readonly()))
        } else {
            Err(PyTypeError::new_err("not an array of lengths"))
        }
    }
}

impl LengthsArray<'_> {
    pub(crate) fn lengths(&self) -> PyResult<Lengths<'_>> {
        Ok(match self {
            LengthsArray::Words(array) => match array.as_slice() {
                Ok(lengths) => Lengths::Words(lengths),
                // `numpy.broadcast_to` makes such an array, which is not contiguous and so has no slice.
                Err(_) if array.strides() == [0] && array.len() > 0 => {
                    Lengths::Same { length: array.get(0).copied().unwrap_or_default(), count: array.len() }
                }
                Err(error) => return Err(error.into()),
            },
            LengthsArray::Bytes(array) => Lengths::Bytes(array.as_slice()?),
            LengthsArray::Shorts(array) => Lengths::Shorts(array.as_slice()?),
        })
    }
}
