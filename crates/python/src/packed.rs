//! A minibatch whose array objects are created on first use.

use crate::chunk::{Chunk, Number, RaggedArrays, ragged_arrays, refused, values_array};
use crate::objects::IntoArray;
use crate::pool::{attached, detached, no_memory, pool, shared};
use cntkio_core::chunk;
use cntkio_core::chunk::Values;
use cntkio_core::memory::{OutOfMemory, collected};
use cntkio_core::pack::{self as core, Error, Job, Parts, Ragged, Selection, Sources, Wanted, gather_in_turn};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PySlice;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Size of the data, in bytes, from which on several threads are faster than one.
const WORTH_THREADS: usize = 128 << 10;
/// Size of the data, in bytes, from which on releasing the interpreter's lock is worth its cost.
const WORTH_UNLOCKING: usize = 16 << 10;

type OwnedArrays = (Py<PyAny>, Py<PyArray1<i64>>, Option<(Py<PyArray1<i64>>, Py<PyArray1<i32>>)>);

struct Stream {
    num_samples: i64,
    longest: i64,
    gathered: Mutex<Option<Ragged>>,
    arrays: PyOnceLock<OwnedArrays>,
}

/// The streams of several small minibatches that were gathered together.
type Together = Arc<[SharedStream]>;

/// A stream of several minibatches. Each shows its own part of the values and of the indices.
struct SharedStream {
    /// The first sample of each sequence, and the first entry of each sample, counted over all minibatches.
    sequence_offsets: Vec<i64>,
    sample_offsets: Option<Vec<i64>>,
    gathered: Mutex<Option<(Values, Option<Vec<i32>>)>>,
    arrays: PyOnceLock<(Py<PyAny>, Option<Py<PyAny>>)>,
}

/// The streams of a minibatch, as ragged arrays.
///
/// Array objects are created on first use, because a small minibatch takes less time than its array objects.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct Packed {
    /// Number of sequences.
    #[pyo3(get)]
    num_sequences: usize,
    streams: Vec<Stream>,
    /// Small minibatches that were gathered together, and the sequences of this minibatch among them. `None`: each of
    /// `streams` has its own samples.
    together: Option<(Together, Range<usize>)>,
}

impl Stream {
    /// A stream that has no samples of its own yet.
    fn new(sequence_offsets: &[i64]) -> Stream {
        let lengths = sequence_offsets.windows(2).map(|pair| pair[1] - pair[0]);
        Stream {
            // These two figures are asked for without the arrays, and the ragged samples leave when the arrays are
            // created.
            num_samples: sequence_offsets[sequence_offsets.len() - 1] - sequence_offsets[0],
            longest: lengths.max().unwrap_or(0),
            gathered: Mutex::default(),
            arrays: PyOnceLock::new(),
        }
    }

    /// The arrays of the stream's own samples.
    fn own_arrays(&self, py: Python<'_>) -> PyResult<OwnedArrays> {
        let (values, offsets, sparse) = ragged_arrays(py, taken(&self.gathered)?)?;
        let sparse = sparse.map(|(offsets, indices)| (offsets.unbind(), indices.unbind()));
        Ok((values.unbind(), offsets.unbind(), sparse))
    }
}

impl SharedStream {
    fn new(ragged: Ragged) -> SharedStream {
        let (sample_offsets, indices) = ragged.entries.map(|entries| (entries.sample_offsets, entries.indices)).unzip();
        SharedStream {
            sequence_offsets: ragged.sequence_offsets,
            sample_offsets,
            gathered: Mutex::new(Some((ragged.values, indices))),
            arrays: PyOnceLock::new(),
        }
    }

    /// The arrays of some sequences.
    fn arrays(&self, py: Python<'_>, sequences: Range<usize>) -> PyResult<OwnedArrays> {
        let (values, indices) = self.arrays.get_or_try_init(py, || -> PyResult<_> {
            let (values, indices) = taken(&self.gathered)?;
            let indices = indices.map(|indices| indices.into_array(py)).transpose()?;
            Ok((values_array(py, values)?.unbind(), indices.map(|indices| indices.into_any().unbind())))
        })?;
        let part = |array: &Py<PyAny>, range: Range<usize>| {
            array.bind(py).get_item(PySlice::new(py, range.start as isize, range.end as isize, 1))
        };
        let (sequence_offsets, samples) = attached(|| part_of(&self.sequence_offsets, sequences))?;
        let sequence_offsets = sequence_offsets.into_array(py)?.unbind();
        let (Some(sample_offsets), Some(indices)) = (&self.sample_offsets, indices) else {
            let num_samples = self.sequence_offsets[self.sequence_offsets.len() - 1] as usize;
            let dim = values.bind(py).len()? / num_samples.max(1);
            return Ok((part(values, samples.start * dim..samples.end * dim)?.unbind(), sequence_offsets, None));
        };
        let (sample_offsets, entries) = attached(|| part_of(sample_offsets, samples))?;
        let indices = part(indices, entries.clone())?.cast_into()?.unbind();
        Ok((
            part(values, entries)?.unbind(),
            sequence_offsets,
            Some((sample_offsets.into_array(py)?.unbind(), indices)),
        ))
    }
}

/// The samples, which are taken once: they are gone if Python found no memory for their arrays then.
fn taken<T>(gathered: &Mutex<Option<T>>) -> PyResult<T> {
    gathered.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(|| no_memory(OutOfMemory(0)))
}

/// The offsets of some consecutive items, from 0 on, and the range that they had.
fn part_of(offsets: &[i64], items: Range<usize>) -> (Vec<i64>, Range<usize>) {
    let offsets = &offsets[items.start..=items.end];
    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
    (collected(offsets.iter().map(|at| at - first)), first as usize..last as usize)
}

impl Packed {
    pub(crate) fn of(ragged: Vec<Ragged>, num_sequences: usize) -> Packed {
        let stream = |ragged: Ragged| {
            let mut stream = Stream::new(&ragged.sequence_offsets);
            stream.gathered = Mutex::new(Some(ragged));
            stream
        };
        Packed { num_sequences, streams: ragged.into_iter().map(stream).collect(), together: None }
    }

    /// The minibatches of streams that were gathered together. `bounds`: the first sequence of each and, last, the end.
    fn several(ragged: Vec<Ragged>, bounds: &[usize]) -> impl Iterator<Item = Packed> {
        let all: Together = ragged.into_iter().map(SharedStream::new).collect();
        bounds.windows(2).map(move |pair| {
            let own = pair[0] - bounds[0]..pair[1] - bounds[0];
            let streams = all.iter().map(|shared| Stream::new(&shared.sequence_offsets[own.start..=own.end]));
            Packed { num_sequences: own.len(), streams: streams.collect(), together: Some((all.clone(), own)) }
        })
    }

    fn stream(&self, number: usize) -> PyResult<&Stream> {
        self.streams.get(number).ok_or_else(|| PyIndexError::new_err("no such stream"))
    }
}

#[pymethods]
impl Packed {
    /// Number of samples of a stream's longest sequence.
    fn longest(&self, stream: usize) -> PyResult<i64> {
        Ok(self.stream(stream)?.longest)
    }

    /// Values, sequence offsets and, if sparse, (sample offsets, indices) of a stream; the same objects each time.
    fn arrays<'py>(&self, py: Python<'py>, stream: usize) -> PyResult<RaggedArrays<'py>> {
        let own = self.stream(stream)?;
        let (values, offsets, sparse) = own.arrays.get_or_try_init(py, || match &self.together {
            Some((all, sequences)) => all[stream].arrays(py, sequences.clone()),
            None => own.own_arrays(py),
        })?;
        let sparse = sparse.as_ref().map(|(offsets, indices)| (offsets.bind(py).clone(), indices.bind(py).clone()));
        Ok((values.bind(py).clone(), offsets.bind(py).clone(), sparse))
    }
}

/// Number of samples of a stream in each of several minibatches.
#[pyfunction]
pub(crate) fn num_samples(packed: Vec<PyRef<'_, Packed>>, stream: usize) -> PyResult<Vec<i64>> {
    packed.iter().map(|packed| Ok(packed.stream(stream)?.num_samples)).collect()
}

/// For each stream its number in the chunks, whether it is sparse, and the type of its values.
pub(crate) type Streams = Vec<(usize, bool, Number)>;

pub(crate) fn wanted(streams: &Streams) -> Vec<Wanted> {
    let wanted = |&(stream, is_sparse, Number(number))| Wanted { stream, is_sparse, number };
    streams.iter().map(wanted).collect()
}

/// The contents of several minibatches.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct PackRequest {
    chunks: Vec<Py<Chunk>>,
    /// For each sequence the position of its chunk in `chunks`, and its number in the chunk.
    chunk_indices: Words,
    indices_in_chunk: Words,
    pub(crate) streams: Streams,
    /// The first sequence of each minibatch and, last, the number of sequences.
    pub(crate) bounds: Vec<usize>,
    /// For parts of sequences the first sample and the number of samples of each.
    parts: Option<(Words, Words)>,
}

type Words = Py<PyArray1<u32>>;

#[pymethods]
impl PackRequest {
    #[new]
    #[pyo3(signature = (chunks, chunk_indices, indices_in_chunk, streams, bounds, parts=None))]
    fn new(
        chunks: Vec<Py<Chunk>>,
        chunk_indices: Words,
        indices_in_chunk: Words,
        streams: Streams,
        bounds: Vec<usize>,
        parts: Option<(Words, Words)>,
    ) -> PyResult<PackRequest> {
        if !bounds.is_sorted() {
            return Err(PyValueError::new_err("not the bounds of minibatches"));
        }
        Ok(PackRequest { chunks, chunk_indices, indices_in_chunk, streams, bounds, parts })
    }
}

/// The arrays of a request, while they are in use.
pub(crate) struct Arrays<'py> {
    chunk_indices: PyReadonlyArray1<'py, u32>,
    indices_in_chunk: PyReadonlyArray1<'py, u32>,
    parts: Option<(PyReadonlyArray1<'py, u32>, PyReadonlyArray1<'py, u32>)>,
}

impl PackRequest {
    pub(crate) fn chunks(&self) -> Vec<&chunk::Chunk> {
        self.chunks.iter().map(|chunk| &chunk.get().inner).collect()
    }

    pub(crate) fn arrays<'py>(&self, py: Python<'py>) -> Arrays<'py> {
        let borrowed = |words: &Words| words.bind(py).readonly();
        Arrays {
            chunk_indices: borrowed(&self.chunk_indices),
            indices_in_chunk: borrowed(&self.indices_in_chunk),
            parts: self.parts.as_ref().map(|(firsts, counts)| (borrowed(firsts), borrowed(counts))),
        }
    }
}

impl Arrays<'_> {
    pub(crate) fn selection(&self) -> PyResult<Selection<'_>> {
        let parts = match &self.parts {
            Some((firsts, counts)) => Some(Parts { firsts: firsts.as_slice()?, counts: counts.as_slice()? }),
            None => None,
        };
        Ok(Selection { chunk_of: self.chunk_indices.as_slice()?, sequences: self.indices_in_chunk.as_slice()?, parts })
    }
}

/// Selections for one thread to gather, and the bounds of the minibatches in each.
type Turn<'a> = (&'a [Job<'a>], &'a [&'a [usize]]);

/// The most selections in a turn of a thread.
const MOST_IN_TURN: usize = 8;
/// Smaller minibatches are gathered together, because a few sequences take less time than an array for each stream.
const SMALL: usize = 64 << 10;
/// The most bytes that are gathered together. A minibatch keeps all of them in memory.
const MOST_TOGETHER: usize = 256 << 10;
/// The most minibatches and, about, sequences that are gathered together.
const MOST_MINIBATCHES_TOGETHER: usize = 64;
const MOST_SEQUENCES_TOGETHER: usize = 256;

fn packed_in_turn(&(jobs, bounds): &Turn) -> Result<Vec<Packed>, Error> {
    let mut packed = Vec::new();
    for (ragged, bounds) in gather_in_turn(jobs).zip(bounds) {
        match bounds {
            [first, last] => packed.push(Packed::of(ragged?, last - first)),
            _ => packed.extend(Packed::several(ragged?, bounds)),
        }
    }
    Ok(packed)
}

/// The number of minibatches of a request that are gathered together, all minibatches taking `num_bytes`.
fn num_together(bounds: &[usize], num_bytes: usize) -> usize {
    let num_minibatches = bounds.len().saturating_sub(1).max(1);
    let size = num_bytes / num_minibatches;
    if size > SMALL {
        return 1;
    }
    let num_sequences = bounds.last().map_or(0, |last| last - bounds[0]) / num_minibatches;
    let most = (MOST_TOGETHER / size.max(1)).min(MOST_SEQUENCES_TOGETHER / num_sequences.max(1));
    most.clamp(1, MOST_MINIBATCHES_TOGETHER)
}

/// Gather the selected sequences of all streams for several minibatches at once, because waking other threads takes as
/// long as packing a small minibatch. The minibatches are returned in the order of the requests, with their approximate
/// size in bytes.
#[pyfunction]
pub(crate) fn pack(
    py: Python<'_>,
    requests: Vec<Py<PackRequest>>,
    num_threads: usize,
) -> PyResult<(Vec<Packed>, usize)> {
    // `pack_all` releases the interpreter's lock itself, and only where the data are large enough.
    attached(|| pack_all(py, &requests, num_threads))?
}

/// The size of a selection, if its sequences take the same share of their first chunk's bytes as of the chunk's samples.
pub(crate) fn estimated_bytes(chunks: &[&chunk::Chunk], selection: Selection) -> usize {
    let counts = selection.parts.map(|parts| parts.counts);
    chunks.first().map_or(0, |first| first.packed_bytes(selection.sequences.len(), counts))
}

fn pack_all(py: Python<'_>, requests: &[Py<PackRequest>], num_threads: usize) -> PyResult<(Vec<Packed>, usize)> {
    let requests: Vec<&PackRequest> = requests.iter().map(|request| request.get()).collect();
    let chunks: Vec<Vec<&chunk::Chunk>> = requests.iter().map(|request| request.chunks()).collect();
    let streams = requests.iter().map(|request| wanted(&request.streams));
    let sources = chunks.iter().zip(streams).map(|(chunks, streams)| Sources::new(chunks, &streams));
    let sources: Vec<Sources> = sources.collect::<Result<_, Error>>().map_err(refused)?;
    let arrays: Vec<Arrays> = requests.iter().map(|request| request.arrays(py)).collect();
    let (mut jobs, mut bounds, mut num_bytes) = (Vec::new(), Vec::new(), 0);
    for (((request, arrays), chunks), sources) in requests.iter().zip(&arrays).zip(&chunks).zip(&sources) {
        let whole = arrays.selection()?;
        let own_bytes = estimated_bytes(chunks, whole);
        num_bytes += own_bytes;
        let count = num_together(&request.bounds, own_bytes);
        let last = request.bounds.len().saturating_sub(1);
        for first in (0..last).step_by(count) {
            let own = &request.bounds[first..=(first + count).min(last)];
            let selection = whole.slice(own[0]..own[own.len() - 1]).ok_or_else(|| refused(Error::Missing))?;
            jobs.push(Job { sources, selection });
            bounds.push(own);
        }
    }
    let turns = |count| jobs.chunks(count).zip(bounds.chunks(count)).collect::<Vec<Turn>>();
    let packed: Vec<Result<Vec<Packed>, Error>> =
        if num_bytes >= WORTH_THREADS && jobs.len() >= 2 * num_threads && num_threads > 1 {
            // Two turns for each thread or more, so that a thread with small minibatches takes over work of another.
            let turns = turns((jobs.len() / (2 * num_threads)).min(MOST_IN_TURN));
            py.detach(|| shared(&turns, num_threads, packed_in_turn))?
        } else if num_bytes >= WORTH_THREADS && num_threads > 1 {
            // With few minibatches, each is a job of its own, and in a pool the streams of a large one are shared, too.
            let pool = pool(num_threads)?;
            py.detach(|| pool.install(|| turns(1).par_iter().map(packed_in_turn).collect()))
        } else if num_bytes >= WORTH_UNLOCKING {
            vec![py.detach(|| packed_in_turn(&(&jobs, &bounds)))]
        } else {
            vec![packed_in_turn(&(&jobs, &bounds))]
        };
    let packed = packed.into_iter().collect::<Result<Vec<_>, Error>>().map_err(refused)?;
    // A file that changed while its map was copied may have given values of both versions.
    sources.iter().try_for_each(Sources::check_unchanged).map_err(refused)?;
    Ok((packed.into_iter().flatten().collect(), num_bytes))
}

/// The streams of the chunks appended so far, as ragged arrays.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct Whole {
    num_sequences: usize,
    so_far: Mutex<Option<core::Whole>>,
}

#[pymethods]
impl Whole {
    /// Create a value without chunks; `num_sequences` sequences will be appended.
    #[new]
    fn new(streams: Streams, num_sequences: usize) -> Whole {
        Whole { num_sequences, so_far: Mutex::new(Some(core::Whole::new(&wanted(&streams), num_sequences))) }
    }

    /// Append the next chunk.
    fn append(&self, py: Python<'_>, chunk: Py<Chunk>, num_threads: usize) -> PyResult<()> {
        let pool = pool(num_threads)?;
        let chunk = &chunk.get().inner;
        detached(py, || {
            let mut so_far = self.so_far.lock().unwrap_or_else(PoisonError::into_inner);
            // `finish` has taken the value, so this is a call after the end.
            let so_far = so_far.as_mut().ok_or(Error::Missing)?;
            pool.install(|| so_far.append(chunk))
        })?
        .map_err(refused)
    }

    /// The streams of all appended chunks. No chunk can be appended afterwards.
    fn finish(&self) -> PyResult<Packed> {
        let so_far = self.so_far.lock().unwrap_or_else(PoisonError::into_inner).take();
        let streams = so_far.ok_or_else(|| refused(Error::Missing))?.finish();
        Ok(Packed::of(streams, self.num_sequences))
    }
}
