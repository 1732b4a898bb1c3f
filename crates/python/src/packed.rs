//! A minibatch whose arrays are made when they are asked for.

use crate::chunk::{Chunk, RaggedArrays, ragged_arrays, refused};
use crate::pool::pool;
use cntkio_core::chunk;
use cntkio_core::pack::{self, Ragged, Selection};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::sync::{Mutex, PoisonError};

/// Bytes from which on more than one thread is worth while.
const WORTH_THREADS: usize = 128 << 10;
/// The same where chunks are as compact as their files: fewer places are waited for.
const WORTH_THREADS_COMPACT: usize = 512 << 10;
/// Bytes from which on it is worth while to let go of the interpreter's lock.
const WORTH_UNLOCKING: usize = 16 << 10;

type OwnedArrays = (Py<PyAny>, Py<PyArray1<i64>>, Option<(Py<PyArray1<i64>>, Py<PyArray1<i32>>)>);

struct Stream {
    num_samples: i64,
    longest: i64,
    gathered: Mutex<Option<Ragged>>,
    arrays: PyOnceLock<OwnedArrays>,
}

/// The streams of one minibatch, gathered, ragged. An array object is only made where one is asked for: a small minibatch
/// takes less time than the objects around it.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct Packed {
    /// Number of sequences.
    #[pyo3(get)]
    num_sequences: usize,
    /// Bytes of its arrays, roughly.
    #[pyo3(get)]
    num_bytes: usize,
    streams: Vec<Stream>,
}

impl Stream {
    fn of(ragged: Ragged) -> Stream {
        let lengths = ragged.sequence_offsets.windows(2).map(|pair| pair[1] - pair[0]);
        Stream {
            num_samples: ragged.sequence_offsets.last().copied().unwrap_or(0),
            longest: lengths.max().unwrap_or(0),
            gathered: Mutex::new(Some(ragged)),
            arrays: PyOnceLock::new(),
        }
    }
}

impl Packed {
    fn stream(&self, number: usize) -> PyResult<&Stream> {
        self.streams.get(number).ok_or_else(|| pyo3::exceptions::PyIndexError::new_err("no such stream"))
    }
}

#[pymethods]
impl Packed {
    /// Gather the selected sequences of all streams, as `gather` does.
    #[new]
    #[pyo3(signature = (chunks, places, sequences, streams, num_threads, parts=None))]
    fn new(
        py: Python<'_>,
        chunks: Vec<Py<Chunk>>,
        places: PyReadonlyArray1<'_, u32>,
        sequences: PyReadonlyArray1<'_, u32>,
        streams: Vec<(usize, bool, bool)>,
        num_threads: usize,
        parts: Option<(PyReadonlyArray1<'_, u32>, PyReadonlyArray1<'_, u32>)>,
    ) -> PyResult<Packed> {
        let handles: Vec<&chunk::Chunk> = chunks.iter().map(|chunk| &chunk.get().inner).collect();
        let parts = match &parts {
            Some((first, count)) => Some((first.as_slice()?, count.as_slice()?)),
            None => None,
        };
        let selection =
            Selection { chunks: &handles, places: places.as_slice()?, sequences: sequences.as_slice()?, parts };
        let gather_all = || pack::gather_all(selection, &streams);
        let num_sequences = selection.sequences.len();
        // What a minibatch takes: as much of its first chunk as it takes of that chunk's samples.
        let expected =
            handles.first().map_or(0, |first| first.packed_size(num_sequences, parts.map(|(_, count)| count)));
        let is_plain = handles.first().is_none_or(|first| first.is_plain());
        let worth_threads = if is_plain { WORTH_THREADS } else { WORTH_THREADS_COMPACT };
        let gathered = if expected >= worth_threads && num_threads > 1 {
            let pool = pool(num_threads)?;
            py.detach(|| pool.install(gather_all))
        } else if expected >= WORTH_UNLOCKING {
            py.detach(gather_all)
        } else {
            gather_all()
        };
        let streams = gathered.map_err(refused)?.into_iter().map(Stream::of).collect();
        Ok(Packed { num_sequences, num_bytes: expected, streams })
    }

    /// Samples of a stream.
    fn num_samples(&self, stream: usize) -> PyResult<i64> {
        Ok(self.stream(stream)?.num_samples)
    }

    /// Samples of a stream's longest sequence.
    fn longest(&self, stream: usize) -> PyResult<i64> {
        Ok(self.stream(stream)?.longest)
    }

    /// Values, sequence offsets and, if sparse, (sample offsets, indices) of a stream; the same objects each time.
    fn arrays<'py>(&self, py: Python<'py>, stream: usize) -> PyResult<RaggedArrays<'py>> {
        let stream = self.stream(stream)?;
        let (values, offsets, sparse) = stream.arrays.get_or_init(py, || {
            let gathered = stream.gathered.lock().unwrap_or_else(PoisonError::into_inner).take();
            let (values, offsets, sparse) = ragged_arrays(py, gathered.expect("it is taken here, and once"));
            (values.unbind(), offsets.unbind(), sparse.map(|(offsets, indices)| (offsets.unbind(), indices.unbind())))
        });
        let sparse = sparse.as_ref().map(|(offsets, indices)| (offsets.bind(py).clone(), indices.bind(py).clone()));
        Ok((values.bind(py).clone(), offsets.bind(py).clone(), sparse))
    }
}
