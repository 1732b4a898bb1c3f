//! Writers of the CNTK text format.

use crate::chunk::{Chunk, plain};
use crate::objects::{IntoArray, arrays};
use crate::pool::{attached, detached, pool};
use cntkio_core::convert::{self, Labels, LineFault, TokenStyle};
use cntkio_core::ctf::{self, Unwritable, svmlight};
use cntkio_core::losses::{Layout, Losses, losses};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

type Bytes<'py> = Bound<'py, PyArray1<u8>>;

/// A sequence that cannot be written.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct UnwritableSequence {
    /// Its number in the chunk.
    sequence: usize,
    /// The stream and its value; `None`: the sequence has no sample.
    stream: Option<usize>,
    value: Option<f64>,
}

/// The pieces of a text, or why there are none.
fn written(
    py: Python<'_>,
    pieces: Result<Vec<Vec<u8>>, Unwritable>,
) -> PyResult<(Vec<Bytes<'_>>, Option<UnwritableSequence>)> {
    let (sequence, stream, value) = match pieces {
        Ok(pieces) => return Ok((arrays(py, pieces)?, None)),
        Err(Unwritable::Value { sequence, stream, value }) => (sequence, Some(stream), Some(value)),
        Err(Unwritable::NoSample { sequence }) => (sequence, None, None),
    };
    Ok((vec![], Some(UnwritableSequence { sequence, stream, value })))
}

/// Write the sequences of a chunk from `first` on as text, one sequence for each key. `streams`: column and name.
#[pyfunction]
pub(crate) fn text_write<'py>(
    py: Python<'py>,
    chunk: Py<Chunk>,
    first: usize,
    keys: PyReadonlyArray1<'py, u64>,
    streams: Vec<(usize, Vec<u8>, bool)>,
    num_threads: usize,
    piece: usize,
) -> PyResult<(Vec<Bytes<'py>>, Option<UnwritableSequence>)> {
    let (chunk, keys) = (&chunk.get().inner, keys.as_slice()?);
    // The writer looks up a sequence for each key without a check.
    if first.checked_add(keys.len()).is_none_or(|last| last > chunk.num_sequences()) {
        return Err(PyValueError::new_err("no such sequences in the chunk"));
    }
    let chunk = &plain(chunk)?;
    let streams: Vec<_> =
        streams.iter().map(|(column, name, are_classes)| (*column, &name[..], *are_classes)).collect();
    let pool = pool(num_threads)?;
    written(py, detached(py, || pool.install(|| ctf::write(chunk, first, keys, &streams, piece)))?)
}

/// Write the sequences of a chunk as svmlight text. `columns`: features, label and query; `keys`: the query of each
/// sequence, or none.
#[pyfunction]
pub(crate) fn svmlight_write<'py>(
    py: Python<'py>,
    chunk: Py<Chunk>,
    keys: PyReadonlyArray1<'py, u64>,
    columns: (usize, usize, Option<usize>),
    base: u32,
    num_threads: usize,
    piece: usize,
) -> PyResult<(Vec<Bytes<'py>>, Option<UnwritableSequence>)> {
    let (chunk, keys) = (&plain(&chunk.get().inner)?, keys.as_slice()?);
    let columns = svmlight::Columns { features: columns.0, label: columns.1, query: columns.2, base };
    let pool = pool(num_threads)?;
    written(py, detached(py, || pool.install(|| svmlight::write(chunk, keys, columns, piece)))?)
}

/// Numbers that a precision changes, and comments.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct TextLosses {
    /// The number of numbers that float32 changes, and the offset of the first.
    num_single: u64,
    first_single: usize,
    /// The number of numbers that float64 changes, and the offset of the first.
    num_double: u64,
    first_double: usize,
    num_comments: u64,
}

/// The losses in a block of whole lines. Of CNTK's text format, only the numbers of `fields` count; without a field, all
/// numbers.
#[pyfunction]
pub(crate) fn text_losses(
    py: Python<'_>,
    block: PyReadonlyArray1<'_, u8>,
    form: &str,
    fields: Vec<PyBackedBytes>,
    num_threads: usize,
) -> PyResult<TextLosses> {
    let layout = if form == "svmlight" { Layout::Svmlight } else { Layout::Ctf };
    let (block, pool) = (block.as_slice()?, pool(num_threads)?);
    let fields: Vec<&[u8]> = fields.iter().map(|field| &**field).collect();
    let Losses { single, double, num_comments } = detached(py, || pool.install(|| losses(block, layout, &fields)))?;
    let ((num_single, first_single), (num_double, first_double)) = (single, double);
    Ok(TextLosses { num_single, first_single, num_double, first_double, num_comments })
}

/// Tokens and their numbers. A token is a line of a text, and its number is the line's number from 0.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct Dictionary {
    inner: convert::Dictionary,
}

#[pymethods]
impl Dictionary {
    #[new]
    fn new(text: &str) -> PyResult<Dictionary> {
        let inner =
            attached(|| convert::Dictionary::new(text))?.ok_or_else(|| PyValueError::new_err("2^32 lines or more"))?;
        Ok(Dictionary { inner })
    }

    /// Number of lines.
    fn __len__(&self) -> usize {
        self.inner.len()
    }

    fn __contains__(&self, token: &str) -> bool {
        self.inner.number(token).is_some()
    }
}

/// A line that cannot be read. A line that is not UTF-8 has neither a number of columns nor a token.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct UnreadLine {
    /// Its number in the block.
    line: u64,
    /// Its number of columns, if that is wrong.
    num_columns: Option<usize>,
    /// An unknown token, and its column.
    column: Option<usize>,
    token: Option<String>,
}

impl UnreadLine {
    fn of((line, fault): (u64, LineFault)) -> UnreadLine {
        let (num_columns, column, token) = match fault {
            LineFault::Encoding => (None, None, None),
            LineFault::Columns { found } => (Some(found), None, None),
            LineFault::Unknown { column, token } => (None, Some(column), Some(token)),
        };
        UnreadLine { line, num_columns, column, token }
    }
}

/// Lines in CNTK's text format, or a fault.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct ConvertedText {
    text: Py<PyArray1<u8>>,
    num_lines: u64,
    /// The number of columns of tokens that have none, and the first line with such a column.
    num_empty: u64,
    first_empty: Option<u64>,
    fault: Option<Py<UnreadLine>>,
}

impl ConvertedText {
    fn of(py: Python<'_>, made: Result<convert::Converted, (u64, LineFault)>) -> PyResult<ConvertedText> {
        let (made, fault) = match made {
            Ok(made) => (made, None),
            // Python knows the file and the line before the block, so it makes the exception.
            Err(fault) => (convert::Converted::default(), Some(Py::new(py, UnreadLine::of(fault))?)),
        };
        let convert::Converted { text, num_lines, num_empty, first_empty } = made;
        Ok(ConvertedText { text: text.into_array(py)?.unbind(), num_lines, num_empty, first_empty, fault })
    }
}

/// Turn lines of columns of tokens into sequences.
#[pyfunction]
pub(crate) fn text_tokens(
    py: Python<'_>,
    block: &[u8],
    first_key: u64,
    dictionaries: Vec<Py<Dictionary>>,
    names: Vec<Vec<u8>>,
    unknown: Option<String>,
    is_annotated: bool,
) -> PyResult<ConvertedText> {
    // The core takes the name of a column by the number of its dictionary.
    if names.len() != dictionaries.len() {
        return Err(PyValueError::new_err("the number of names must be the number of dictionaries"));
    }
    // The class is frozen, so its content can be read while the interpreter's lock is released.
    let dictionaries: Vec<&convert::Dictionary> = dictionaries.iter().map(|one| &one.get().inner).collect();
    let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    let style = TokenStyle { names: &names, unknown: unknown.as_deref(), is_annotated };
    let made = detached(py, || convert::tokens(block, first_key, &dictionaries, style))?;
    ConvertedText::of(py, made)
}

/// The categories of labels.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct Categories {
    names: Py<Dictionary>,
    dim: usize,
    is_sparse: bool,
}

#[pymethods]
impl Categories {
    /// `dim`: values of a label's vector; `is_sparse`: it is written as index:1.
    #[new]
    fn new(names: Py<Dictionary>, dim: usize, is_sparse: bool) -> Categories {
        Categories { names, dim, is_sparse }
    }
}

/// Turn lines of columns of numbers into labels and features, which are a first column and a number of columns.
#[pyfunction]
pub(crate) fn text_numbers(
    py: Python<'_>,
    block: &[u8],
    features: (usize, usize),
    labels: Option<(usize, usize)>,
    categories: Option<&Categories>,
    separator: Option<u8>,
) -> PyResult<ConvertedText> {
    let chosen = match (labels, categories) {
        (None, _) => Labels::None,
        (Some((start, count)), None) => Labels::Copied { start, count },
        (Some((start, _)), Some(&Categories { ref names, dim, is_sparse })) => {
            Labels::Category { start, names: &names.get().inner, dim, is_sparse }
        }
    };
    let made = detached(py, || convert::numbers(block, features, chosen, separator))?;
    ConvertedText::of(py, made)
}
