//! Objects that are made with the C functions of Python and NumPy, because the wrappers of these functions do not check
//! whether there was memory: arrays that own vectors of the core, and the function with which a thread begins.

use cntkio_memory::threads;
use numpy::npyffi::{NPY_ARRAY_WRITEABLE, NpyTypes, PY_ARRAY_API, get_type_object, npy_intp};
use numpy::{Element, PyArray1, PyArrayDescrMethods};
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;

/// The memory of a vector, which is freed with the last array that uses it.
#[pyclass(frozen)]
struct Memory {
    values: *mut u8,
    len: usize,
    capacity: usize,
    free: unsafe fn(*mut u8, usize, usize),
}

// SAFETY: only vectors of values that are `Send` and `Sync` become a `Memory`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `free` and its arguments come from the same vector.
        unsafe { (self.free)(self.values, self.len, self.capacity) };
    }
}

/// # Safety
/// The arguments are the parts of a vector of this type.
unsafe fn free<T>(values: *mut u8, len: usize, capacity: usize) {
    // SAFETY: as the caller says.
    drop(unsafe { Vec::from_raw_parts(values.cast::<T>(), len, capacity) });
}

/// Conversion into an array without a copy.
pub(crate) trait IntoArray<T> {
    /// # Errors
    /// `MemoryError`: Python or NumPy found no memory for an object.
    fn into_array(self, py: Python<'_>) -> PyResult<Bound<'_, PyArray1<T>>>;
}

impl<T: Element + Send + Sync> IntoArray<T> for Vec<T> {
    fn into_array(self, py: Python<'_>) -> PyResult<Bound<'_, PyArray1<T>>> {
        let mut vector = ManuallyDrop::new(self);
        let (values, len, capacity) = (vector.as_mut_ptr(), vector.len(), vector.capacity());
        let owner = Bound::new(py, Memory { values: values.cast(), len, capacity, free: free::<T> })?;
        let (mut shape, no_memory) = ([len as npy_intp], || PyMemoryError::new_err("no memory for an array"));
        // SAFETY: the array has one dimension, whose values are in the vector, and keeps the vector's owner. Both
        // functions take a reference: the first to the type of the values, the second to the owner.
        unsafe {
            let array = PY_ARRAY_API.PyArray_NewFromDescr(
                py,
                get_type_object(py, NpyTypes::PyArray_Type),
                T::get_dtype(py).into_dtype_ptr(),
                1,
                shape.as_mut_ptr(),
                null_mut(),
                values.cast(),
                NPY_ARRAY_WRITEABLE,
                null_mut(),
            );
            // NumPy does not set an error in every case.
            let array = Bound::from_owned_ptr_or_opt(py, array);
            let array = array.ok_or_else(|| PyErr::take(py).unwrap_or_else(no_memory))?;
            if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), owner.into_ptr()) != 0 {
                return Err(PyErr::take(py).unwrap_or_else(no_memory));
            }
            Ok(array.cast_into_unchecked())
        }
    }
}

/// Several arrays.
///
/// # Errors
/// As for [`IntoArray::into_array`].
pub(crate) fn arrays<T: Element + Send + Sync>(
    py: Python<'_>,
    vectors: impl IntoIterator<Item = Vec<T>>,
) -> PyResult<Vec<Bound<'_, PyArray1<T>>>> {
    vectors.into_iter().map(|vector| vector.into_array(py)).collect()
}

/// `begin_thread()`, without a wrapper of PyO3: that would use a variable of the thread before this function makes it.
unsafe extern "C" fn begin_thread(_: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: Python calls the function while this thread holds the interpreter's lock.
    unsafe { if threads::begin().is_ok() { ffi::Py_NewRef(ffi::Py_None()) } else { ffi::PyErr_NoMemory() } }
}

/// Add the function `begin_thread` to the compiled module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    static mut BEGIN_THREAD: ffi::PyMethodDef = ffi::PyMethodDef {
        ml_name: c"begin_thread".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunction: begin_thread },
        ml_flags: ffi::METH_NOARGS,
        ml_doc: c"Make the variables of this thread, or raise a MemoryError.".as_ptr(),
    };
    // SAFETY: the description of the function is static, and nothing changes it.
    let function = unsafe {
        let function = ffi::PyCFunction_NewEx(&raw mut BEGIN_THREAD, std::ptr::null_mut(), std::ptr::null_mut());
        Bound::from_owned_ptr_or_err(module.py(), function)?
    };
    module.add("begin_thread", function)
}
