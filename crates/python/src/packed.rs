//! A minibatch whose arrays are made when they are asked for.

use crate::chunk::{Chunk, RaggedArrays, ragged_arrays, refused};
use crate::pool::{pool, shared};
use cntkio_core::chunk;
use cntkio_core::pack::{Error, Ragged, Selection, Wanted, gather_all};
use cntkio_core::whole;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use rayon::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Bytes from which on more than one thread is worth while.
const WORTH_THREADS: usize = 128 << 10;
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

/// What several minibatches take: chunks; for each sequence the place of its chunk in them, and its number in the chunk; for
/// each stream its number, whether it is sparse, and whether it is double; unless whole sequences are taken, the first of
/// the samples of each, and how many; and where each minibatch's sequences begin, and the last one's end.
type Request<'py> = (
    Vec<Py<Chunk>>,
    PyReadonlyArray1<'py, u32>,
    PyReadonlyArray1<'py, u32>,
    Vec<(usize, bool, bool)>,
    Option<(PyReadonlyArray1<'py, u32>, PyReadonlyArray1<'py, u32>)>,
    Vec<usize>,
);

/// Gather the selected sequences of all streams, for several minibatches at once: waking other threads takes as long as
/// making a small one. They come in the order of the requests.
#[pyfunction]
pub(crate) fn pack(py: Python<'_>, requests: Vec<Request<'_>>, num_threads: usize) -> PyResult<Vec<Packed>> {
    let handles: Vec<Vec<&chunk::Chunk>> =
        requests.iter().map(|(chunks, ..)| chunks.iter().map(|chunk| &chunk.get().inner).collect()).collect();
    let mut selections = Vec::new();
    for ((_, places, sequences, streams, parts, bounds), chunks) in requests.iter().zip(&handles) {
        let (places, sequences) = (places.as_slice()?, sequences.as_slice()?);
        let parts = match parts {
            Some((first, count)) => Some((first.as_slice()?, count.as_slice()?)),
            None => None,
        };
        for pair in bounds.windows(2) {
            let range = pair[0]..pair[1];
            let cut = || {
                let parts = match parts {
                    Some((first, count)) => Some((first.get(range.clone())?, count.get(range.clone())?)),
                    None => None,
                };
                Some(Selection {
                    chunks,
                    places: places.get(range.clone())?,
                    sequences: sequences.get(range.clone())?,
                    parts,
                })
            };
            let selection = cut().ok_or_else(|| refused(Error::Missing))?;
            // What it takes: as much of its first chunk as it takes of that chunk's samples.
            let counts = selection.parts.map(|(_, count)| count);
            let expected = chunks.first().map_or(0, |first| first.packed_size(range.len(), counts));
            selections.push((selection, &streams[..], expected));
        }
    }
    let one = |&(selection, streams, expected): &(Selection, &[Wanted], usize)| {
        let streams = gather_all(selection, streams)?.into_iter().map(Stream::of).collect();
        Ok(Packed { num_sequences: selection.sequences.len(), num_bytes: expected, streams })
    };
    let expected: usize = selections.iter().map(|&(.., expected)| expected).sum();
    let packed: Result<Vec<Packed>, Error> =
        if expected >= WORTH_THREADS && selections.len() >= 2 * num_threads && num_threads > 1 {
            py.detach(|| shared(&selections, num_threads, one))?.into_iter().collect()
        } else if expected >= WORTH_THREADS && num_threads > 1 {
            let pool = pool(num_threads)?;
            py.detach(|| pool.install(|| selections.par_iter().map(one).collect()))
        } else if expected >= WORTH_UNLOCKING {
            py.detach(|| selections.iter().map(one).collect())
        } else {
            selections.iter().map(one).collect()
        };
    packed.map_err(refused)
}

/// A corpus in the making: the streams of its chunks so far, ragged.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct Whole {
    num_sequences: usize,
    so_far: Mutex<Option<whole::Whole>>,
}

#[pymethods]
impl Whole {
    /// Nothing yet: for each stream its number, whether it is sparse, and whether it is double; and how many sequences
    /// will come.
    #[new]
    fn new(streams: Vec<Wanted>, num_sequences: usize) -> Whole {
        Whole { num_sequences, so_far: Mutex::new(Some(whole::Whole::new(&streams, num_sequences))) }
    }

    /// Append the next chunk.
    fn append(&self, py: Python<'_>, chunk: Py<Chunk>, num_threads: usize) -> PyResult<()> {
        let pool = pool(num_threads)?;
        let chunk = &chunk.get().inner;
        py.detach(|| {
            let mut so_far = self.so_far.lock().unwrap_or_else(PoisonError::into_inner);
            let so_far = so_far.as_mut().ok_or(Error::Missing)?;
            pool.install(|| so_far.append(chunk))
        })
        .map_err(refused)
    }

    /// What was appended. Nothing can be appended any more.
    fn finish(&self) -> PyResult<Packed> {
        let so_far = self.so_far.lock().unwrap_or_else(PoisonError::into_inner).take();
        let streams = so_far.ok_or_else(|| refused(Error::Missing))?.finish();
        let num_bytes = streams.iter().map(|stream| stream.values.len() * 4).sum();
        Ok(Packed {
            num_sequences: self.num_sequences,
            num_bytes,
            streams: streams.into_iter().map(Stream::of).collect(),
        })
    }
}
