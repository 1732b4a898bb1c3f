//! Archives, lists and maps of Kaldi.

use crate::chunk::{Chunk, plain};
use crate::file::{TextArgument, os_error};
use crate::htk::{FileBytes, ListError, Listed, rows};
use crate::objects::{IntoArray, arrays};
use crate::pool::{attached, detached, pool};
use cntkio_core::kaldi::{self, Broken, Kind, LineError, List, Object, Wanted};
use cntkio_core::memory::{collected, reserve, resize, with_room};
use cntkio_memory::huge_pages::advise_for;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};

/// Objects of an archive.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct KaldiObjects {
    /// Kinds as indices in `KALDI_KINDS`.
    kinds: Py<PyArray1<u8>>,
    rows: Py<PyArray1<u32>>,
    cols: Py<PyArray1<u32>>,
    /// Begins and ends of their values.
    begins: Py<PyArray1<u64>>,
    ends: Py<PyArray1<u64>>,
}

/// A fault of an object.
#[pyclass(frozen, get_all, module = "cntkio._core")]
#[derive(Clone)]
pub(crate) struct KaldiFault {
    /// The object, counted from the first of the call.
    object: usize,
    byte: usize,
    /// Index in `KALDI_FAULTS`.
    fault: u8,
}

impl KaldiFault {
    fn of((object, fault): (usize, Broken)) -> KaldiFault {
        KaldiFault { object, byte: fault.at, fault: fault.fault as u8 }
    }
}

impl KaldiObjects {
    fn of(py: Python<'_>, objects: &[Object]) -> PyResult<KaldiObjects> {
        let objects = || objects.iter();
        attached(|| {
            Ok(KaldiObjects {
                kinds: collected(objects().map(|object| object.kind as u8)).into_array(py)?.unbind(),
                rows: collected(objects().map(|object| object.rows)).into_array(py)?.unbind(),
                cols: collected(objects().map(|object| object.cols)).into_array(py)?.unbind(),
                begins: collected(objects().map(|object| object.begin as u64)).into_array(py)?.unbind(),
                ends: collected(objects().map(|object| object.end as u64)).into_array(py)?.unbind(),
            })
        })?
    }
}

/// Objects that Python has selected, from the attributes of an object.
#[derive(FromPyObject)]
pub(crate) struct SelectedObjects<'py> {
    kinds: PyReadonlyArray1<'py, u8>,
    rows: PyReadonlyArray1<'py, u32>,
    cols: PyReadonlyArray1<'py, u32>,
    begins: PyReadonlyArray1<'py, u64>,
    ends: PyReadonlyArray1<'py, u64>,
    /// The rows that are read, and the first of the columns.
    first_rows: PyReadonlyArray1<'py, u32>,
    lengths: PyReadonlyArray1<'py, u32>,
    first_cols: PyReadonlyArray1<'py, u32>,
}

impl SelectedObjects<'_> {
    fn objects(&self) -> PyResult<Vec<Object>> {
        let (kinds, rows, cols) = (self.kinds.as_slice()?, self.rows.as_slice()?, self.cols.as_slice()?);
        let bounds = self.begins.as_slice()?.iter().zip(self.ends.as_slice()?);
        let mut objects = attached(|| with_room(kinds.len()))?;
        for (((&kind, &rows), &cols), (&begin, &end)) in kinds.iter().zip(rows).zip(cols).zip(bounds) {
            // An index of Python may be damaged, so a kind may be any number.
            let kind = *Kind::ALL.get(kind as usize).ok_or_else(|| PyValueError::new_err("not a kind of object"))?;
            objects.push(Object { kind, rows, cols, begin: begin as usize, end: end as usize });
        }
        Ok(objects)
    }

    fn wanted(&self) -> PyResult<Vec<Wanted>> {
        let (objects, first_rows) = (self.objects()?, self.first_rows.as_slice()?);
        let (num_rows, first_cols) = (self.lengths.as_slice()?, self.first_cols.as_slice()?);
        // `zip` would leave out objects without a part, and the values would move to other objects.
        if [first_rows.len(), num_rows.len(), first_cols.len()] != [objects.len(); 3] {
            return Err(PyValueError::new_err("parts that do not fit the objects"));
        }
        let parts = objects.into_iter().zip(first_rows).zip(num_rows).zip(first_cols);
        let wanted = parts.map(|(((object, &first_row), &num_rows), &first_col)| Wanted {
            object,
            first_row,
            num_rows,
            first_col,
        });
        attached(|| collected(wanted))
    }
}

/// Objects of an archive, one after the other.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct KaldiScan {
    /// Keys padded with zeros, and the width of a key.
    keys: (Py<PyArray1<u8>>, usize),
    offsets: Py<PyArray1<u64>>,
    objects: Py<KaldiObjects>,
    /// The byte after the last object.
    next: usize,
    /// The fault that ends the pass.
    fault: Option<KaldiFault>,
}

/// Find the objects of an archive of `total` bytes that begin from `begin` on, in the text or the part of it.
#[pyfunction]
pub(crate) fn kaldi_scan(py: Python<'_>, text: TextArgument<'_>, begin: usize, total: usize) -> PyResult<KaldiScan> {
    let (scan, fault) = text.detached(py, |text| kaldi::scan(text, begin, total))?.map_err(os_error)?;
    Ok(KaldiScan {
        keys: rows(py, &scan.keys, &scan.key_ends)?,
        offsets: scan.offsets.into_array(py)?.unbind(),
        objects: Py::new(py, KaldiObjects::of(py, &scan.objects)?)?,
        next: scan.next,
        fault: fault.map(|fault| KaldiFault::of((scan.objects.len(), fault))),
    })
}

/// Read the headers of objects at offsets. Returns the objects that the part of the text has, and the next one's fault.
#[pyfunction]
pub(crate) fn kaldi_objects(
    py: Python<'_>,
    text: TextArgument<'_>,
    offsets: PyReadonlyArray1<'_, u64>,
    total: usize,
) -> PyResult<(KaldiObjects, Option<KaldiFault>)> {
    let offsets = offsets.as_slice()?;
    let (objects, fault) = text.detached(py, |text| kaldi::objects(text, offsets, total))?.map_err(os_error)?;
    Ok((KaldiObjects::of(py, &objects)?, fault.map(|fault| KaldiFault::of((objects.len(), fault)))))
}

/// Read the selected rows of objects, and `num_cols` columns of each.
///
/// Appends the values in single precision to `bytes`; without it, returns them in double precision. Returns also the
/// first object with a fault.
#[pyfunction]
pub(crate) fn kaldi_read<'py>(
    py: Python<'py>,
    text: TextArgument<'py>,
    objects: SelectedObjects<'py>,
    num_cols: usize,
    bytes: Option<&FileBytes>,
    num_threads: usize,
) -> PyResult<(Bound<'py, PyArray1<f64>>, Option<KaldiFault>)> {
    let wanted = objects.wanted()?;
    let num_values =
        // The rows and columns come from the headers of files, so their product may be larger than any memory.
        wanted.iter().try_fold(0usize, |sum, one| sum.checked_add(num_cols.checked_mul(one.num_rows as usize)?));
    let num_values = num_values.ok_or_else(|| PyValueError::new_err("too many values"))?;
    let pool = pool(num_threads)?;
    let (doubles, fault) = match bytes {
        Some(bytes) => {
            // The blocks are taken out, because a thread that waits for their lock would hold the interpreter's lock.
            let mut blocks = bytes.take();
            let decoded = text.detached(py, |text| {
                let begin = blocks.0.len();
                reserve(&mut blocks.0, 4 * num_values);
                // The advice precedes the first use of the memory, because it makes that use cheaper.
                advise_for(&mut blocks.0, 4 * num_values);
                resize(&mut blocks.0, begin + 4 * num_values, 0);
                pool.install(|| kaldi::decode(text, &wanted, num_cols, blocks.0[begin..].as_chunks_mut::<4>().0))
            });
            // The blocks are put back before an error returns, because they hold the values of earlier calls, too.
            bytes.put(blocks);
            (Vec::new(), decoded?)
        }
        None => {
            let mut doubles = Vec::new();
            let decoded = text.detached(py, |text| {
                reserve(&mut doubles, num_values);
                advise_for(&mut doubles, num_values);
                resize(&mut doubles, num_values, 0.0);
                pool.install(|| kaldi::decode(text, &wanted, num_cols, &mut doubles[..]))
            });
            (doubles, decoded?)
        }
    };
    Ok((doubles.into_array(py)?, fault.map_err(os_error)?.map(KaldiFault::of)))
}

/// Read vectors of whole numbers, one after the other. Returns also the first vector with a fault.
#[pyfunction]
pub(crate) fn kaldi_integers<'py>(
    py: Python<'py>,
    text: TextArgument<'py>,
    objects: SelectedObjects<'py>,
) -> PyResult<(Bound<'py, PyArray1<i32>>, Option<KaldiFault>)> {
    let objects = objects.objects()?;
    let num_values = objects.iter().map(|object| object.rows as usize).sum();
    let mut values = Vec::new();
    let fault = text.detached(py, |text| {
        resize(&mut values, num_values, 0);
        kaldi::integers(text, &objects, &mut values)
    })?;
    let fault = fault.map_err(os_error)?;
    Ok((values.into_array(py)?, fault.map(KaldiFault::of)))
}

/// Rows of `dim` values with their neighbours.
#[pyfunction]
pub(crate) fn kaldi_windows<'py>(
    py: Python<'py>,
    values: PyReadonlyArray1<'py, f64>,
    lengths: PyReadonlyArray1<'py, u32>,
    dim: usize,
    left: usize,
    right: usize,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let (values, lengths) = (values.as_slice()?, lengths.as_slice()?);
    let num_rows: usize = lengths.iter().map(|&length| length as usize).sum();
    // `windows` takes rows out of the values without a check.
    if num_rows.checked_mul(dim) != Some(values.len()) {
        return Err(PyValueError::new_err("lengths that do not fit the values"));
    }
    detached(py, || kaldi::windows(values, lengths, dim, left, right))?.into_array(py)
}

/// The lines of a list or of a map.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct KaldiList {
    /// Keys padded with zeros, and the width of a key.
    keys: (Py<PyArray1<u8>>, usize),
    /// Files or values, each once.
    names: Py<PyList>,
    /// The file or the value of each line.
    name_of: Py<PyArray1<u32>>,
    /// The first byte of each line.
    lines: Py<PyArray1<u64>>,
    /// The first byte of each object.
    offsets: Py<PyArray1<u64>>,
    /// First and last row, first and last column of each line.
    ranges: Vec<Py<PyArray1<u32>>>,
}

/// Read a list of objects in archives.
#[pyfunction]
pub(crate) fn kaldi_list(py: Python<'_>, text: PyBackedBytes) -> PyResult<Listed<KaldiList>> {
    listed(py, detached(py, || kaldi::scan_list(&text))?)
}

/// Read a map from keys to values.
#[pyfunction]
pub(crate) fn kaldi_map(py: Python<'_>, text: PyBackedBytes) -> PyResult<Listed<KaldiList>> {
    listed(py, detached(py, || kaldi::scan_map(&text))?)
}

fn listed(py: Python<'_>, list: Result<List, LineError>) -> PyResult<Listed<KaldiList>> {
    Ok(match list {
        Err(error) => Listed::Error(ListError { line: error.line, byte: error.at, fault: error.fault as u8 }),
        Ok(list) => {
            Listed::List(KaldiList {
                keys: rows(py, &list.keys, &list.key_ends)?,
                // Paths and values are bytes, because they need not be UTF-8.
                names: PyList::new(py, list.names.iter().map(|name| PyBytes::new(py, name)))?.unbind(),
                name_of: list.name_of.into_array(py)?.unbind(),
                lines: list.lines.into_array(py)?.unbind(),
                offsets: list.offsets.into_array(py)?.unbind(),
                ranges: arrays(py, list.ranges)?.into_iter().map(Bound::unbind).collect(),
            })
        }
    })
}

/// An archive, or the number of a sequence that cannot be written.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct KaldiWritten {
    bytes: Py<PyArray1<u8>>,
    /// The first byte of each object.
    offsets: Py<PyArray1<u64>>,
    unwritable: Option<usize>,
}

/// Write a stream of a chunk, whose columns are in full width. `keys`: rows of `width` bytes, padded with zeros.
#[pyfunction]
pub(crate) fn kaldi_write<'py>(
    py: Python<'py>,
    chunk: Py<Chunk>,
    keys: PyReadonlyArray1<'py, u8>,
    width: usize,
    column: usize,
    is_text: bool,
) -> PyResult<KaldiWritten> {
    let (chunk, keys) = (&plain(&chunk.get().inner)?, keys.as_slice()?);
    let (written, unwritable) = match detached(py, || kaldi::write(chunk, keys, width, column, is_text))? {
        Ok(written) => (written, None),
        // Python has the key of the sequence, which the message needs.
        Err(number) => (kaldi::Written::default(), Some(number)),
    };
    let (bytes, offsets) = (written.bytes.into_array(py)?.unbind(), written.offsets.into_array(py)?.unbind());
    Ok(KaldiWritten { bytes, offsets, unwritable })
}
