//! Minibatches whose array objects are created on first use.

use crate::chunk::{Chunk, Number, RaggedArrays, ragged_arrays, refused};
use crate::objects::IntoArray;
use crate::pool::{attached, detached, no_memory, pool, shared};
use cntkio_core::chunk;
use cntkio_core::memory::{OutOfMemory, collected};
use cntkio_core::pack::{self as core, Error, Job, Parts, Ragged, Selection, Sources, Wanted, gather_in_turn};
use cntkio_core::parallel;
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PySlice;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Size of the data, in bytes, from which on several threads are faster than one.
const WORTH_THREADS: usize = 128 << 10;
/// Size of the data, in bytes, from which on releasing the interpreter's lock is worth its cost.
const WORTH_UNLOCKING: usize = 16 << 10;

type OwnedArrays = (Py<PyAny>, Py<PyArray1<i64>>, Option<(Py<PyArray1<i64>>, Py<PyArray1<i32>>)>);

/// A stream of all minibatches.
struct Stream {
    // These two figures of each minibatch are asked for without the arrays, and the ragged samples leave when the arrays
    // are created.
    num_samples: Vec<i64>,
    longest: Vec<i64>,
    gathered: Mutex<Option<Ragged>>,
    arrays: PyOnceLock<OwnedArrays>,
}

/// A large minibatch, or several small minibatches that were gathered together. Their streams are ragged arrays.
///
/// Array objects are created on first use, because a small minibatch takes less time than its array objects.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct Packed {
    /// The first sequence of each minibatch and, last, the number of sequences.
    bounds: Vec<usize>,
    streams: Vec<Stream>,
}

impl Stream {
    fn new(ragged: Ragged, bounds: &[usize]) -> Stream {
        let offsets = |pair: &[usize]| &ragged.sequence_offsets[pair[0]..=pair[1]];
        let longest = |offsets: &[i64]| offsets.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        Stream {
            num_samples: bounds.windows(2).map(offsets).map(|own| own[own.len() - 1] - own[0]).collect(),
            longest: bounds.windows(2).map(|pair| longest(offsets(pair))).collect(),
            gathered: Mutex::new(Some(ragged)),
            arrays: PyOnceLock::new(),
        }
    }

    /// The arrays of all minibatches.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<RaggedArrays<'py>> {
        let (values, offsets, sparse) = self.arrays.get_or_try_init(py, || -> PyResult<_> {
            // The samples are taken once: they are gone if Python found no memory for their arrays then.
            let gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner).take();
            let (values, offsets, sparse) = ragged_arrays(py, gathered.ok_or_else(|| no_memory(OutOfMemory(0)))?)?;
            let sparse = sparse.map(|(offsets, indices)| (offsets.unbind(), indices.unbind()));
            Ok((values.unbind(), offsets.unbind(), sparse))
        })?;
        let sparse = sparse.as_ref().map(|(offsets, indices)| (offsets.bind(py).clone(), indices.bind(py).clone()));
        Ok((values.bind(py).clone(), offsets.bind(py).clone(), sparse))
    }
}

/// The arrays of some sequences: parts of the values and of the indices, and offsets of their own.
fn part<'py>(all: RaggedArrays<'py>, sequences: Range<usize>) -> PyResult<RaggedArrays<'py>> {
    let (values, offsets, sparse) = all;
    let part = |array: &Bound<'py, PyAny>, range: Range<usize>| {
        array.get_item(PySlice::new(array.py(), range.start as isize, range.end as isize, 1))
    };
    let (own, samples) = part_of(&offsets, sequences)?;
    let Some((sample_offsets, indices)) = sparse else {
        let num_samples = offsets.readonly().as_slice()?.last().map_or(0, |&last| last as usize);
        let dim = values.len()? / num_samples.max(1);
        return Ok((part(&values, samples.start * dim..samples.end * dim)?, own, None));
    };
    let (sample_offsets, entries) = part_of(&sample_offsets, samples)?;
    let indices = part(&indices, entries.clone())?.cast_into()?;
    Ok((part(&values, entries)?, own, Some((sample_offsets, indices))))
}

/// The offsets of some consecutive items, from 0 on, and the range that they had.
fn part_of<'py>(
    offsets: &Bound<'py, PyArray1<i64>>,
    items: Range<usize>,
) -> PyResult<(Bound<'py, PyArray1<i64>>, Range<usize>)> {
    let all = offsets.readonly();
    let own = &all.as_slice()?[items.start..=items.end];
    let (first, last) = (own[0], own[own.len() - 1]);
    let own = attached(|| collected(own.iter().map(|at| at - first)))?;
    Ok((own.into_array(offsets.py())?, first as usize..last as usize))
}

impl Packed {
    /// The minibatches of streams that were gathered together. `bounds`: the first sequence of each, counted in the
    /// streams, and, last, the number of sequences.
    pub(crate) fn of(ragged: Vec<Ragged>, bounds: Vec<usize>) -> Packed {
        Packed { streams: ragged.into_iter().map(|ragged| Stream::new(ragged, &bounds)).collect(), bounds }
    }

    fn stream(&self, number: usize) -> PyResult<&Stream> {
        self.streams.get(number).ok_or_else(|| PyIndexError::new_err("no such stream"))
    }

    /// The sequences of a minibatch.
    fn sequences(&self, number: usize) -> PyResult<Range<usize>> {
        match self.bounds.get(number..) {
            Some(&[first, last, ..]) => Ok(first..last),
            _ => Err(PyIndexError::new_err("no such minibatch")),
        }
    }
}

#[pymethods]
impl Packed {
    /// Number of sequences of a minibatch.
    #[pyo3(signature = (number=0))]
    fn num_sequences(&self, number: usize) -> PyResult<usize> {
        Ok(self.sequences(number)?.len())
    }

    /// Number of samples of a stream's longest sequence in each minibatch.
    fn longest(&self, stream: usize) -> PyResult<Vec<i64>> {
        Ok(self.stream(stream)?.longest.clone())
    }

    /// Values, sequence offsets and, if sparse, (sample offsets, indices) of a stream of a minibatch. The arrays of a
    /// single minibatch are the same objects each time; arrays of several minibatches show the same values and indices.
    #[pyo3(signature = (stream, number=0))]
    fn arrays<'py>(&self, py: Python<'py>, stream: usize, number: usize) -> PyResult<RaggedArrays<'py>> {
        let (own, all) = (self.sequences(number)?, self.stream(stream)?.arrays(py)?);
        if self.bounds.len() == 2 { Ok(all) } else { part(all, own) }
    }
}

/// For each minibatch what it was gathered together with, its number there, and the number of samples of a stream.
type Places = (Vec<Py<Packed>>, Vec<usize>, Vec<i64>);

/// The places of all minibatches.
#[pyfunction]
pub(crate) fn places(py: Python<'_>, packed: Vec<Py<Packed>>, stream: usize) -> PyResult<Places> {
    let (mut of_several, mut numbers, mut num_samples) = (Vec::new(), Vec::new(), Vec::new());
    for packed in packed {
        let own = &packed.get().stream(stream)?.num_samples;
        of_several.extend(own.iter().map(|_| packed.clone_ref(py)));
        numbers.extend(0..own.len());
        num_samples.extend_from_slice(own);
    }
    Ok((of_several, numbers, num_samples))
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
    let from_0 = |bounds: &[usize]| bounds.iter().map(|at| at - bounds[0]).collect();
    gather_in_turn(jobs).zip(bounds).map(|(ragged, bounds)| Ok(Packed::of(ragged?, from_0(bounds)))).collect()
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
/// long as packing a small minibatch. The result has the minibatches of each request, in order, with an object for
/// each group that was gathered together (groups are of one size for all requests), and their approximate size in bytes.
#[pyfunction]
pub(crate) fn pack(
    py: Python<'_>,
    requests: Vec<Py<PackRequest>>,
    num_threads: usize,
) -> PyResult<(Vec<Vec<Packed>>, usize)> {
    // `pack_all` releases the interpreter's lock itself, and only where the data are large enough.
    attached(|| pack_all(py, &requests, num_threads))?
}

/// The size of a selection, if its sequences take the same share of their first chunk's bytes as of the chunk's samples.
pub(crate) fn estimated_bytes(chunks: &[&chunk::Chunk], selection: Selection) -> usize {
    let counts = selection.parts.map(|parts| parts.counts);
    chunks.first().map_or(0, |first| first.packed_bytes(selection.sequences.len(), counts))
}

fn pack_all(py: Python<'_>, requests: &[Py<PackRequest>], num_threads: usize) -> PyResult<(Vec<Vec<Packed>>, usize)> {
    let requests: Vec<&PackRequest> = requests.iter().map(|request| request.get()).collect();
    let chunks: Vec<Vec<&chunk::Chunk>> = requests.iter().map(|request| request.chunks()).collect();
    let streams = requests.iter().map(|request| wanted(&request.streams));
    let sources = chunks.iter().zip(streams).map(|(chunks, streams)| Sources::new(chunks, &streams));
    let sources: Vec<Sources> = sources.collect::<Result<_, Error>>().map_err(refused)?;
    let arrays: Vec<Arrays> = requests.iter().map(|request| request.arrays(py)).collect();
    let selections = arrays.iter().map(Arrays::selection).collect::<PyResult<Vec<Selection>>>()?;
    let sizes: Vec<usize> = chunks.iter().zip(&selections).map(|(chunks, &own)| estimated_bytes(chunks, own)).collect();
    let num_bytes = sizes.iter().sum();
    let together = requests.iter().zip(sizes).map(|(request, size)| num_together(&request.bounds, size)).min();
    let (mut jobs, mut bounds, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for ((request, selection), sources) in requests.iter().zip(selections).zip(&sources) {
        let last = request.bounds.len().saturating_sub(1);
        for first in (0..last).step_by(together.unwrap_or(1)) {
            let own = &request.bounds[first..=(first + together.unwrap_or(1)).min(last)];
            let selection = selection.slice(own[0]..own[own.len() - 1]).ok_or_else(|| refused(Error::Missing))?;
            jobs.push(Job { sources, selection });
            bounds.push(own);
        }
        ends.push(jobs.len());
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
            let turns = turns(1);
            py.detach(|| pool.install(|| parallel::map(turns.len(), |number| packed_in_turn(&turns[number]))))
        } else if num_bytes >= WORTH_UNLOCKING {
            vec![py.detach(|| packed_in_turn(&(&jobs, &bounds)))]
        } else {
            vec![packed_in_turn(&(&jobs, &bounds))]
        };
    let packed = packed.into_iter().collect::<Result<Vec<_>, Error>>().map_err(refused)?;
    // A file that changed while its map was copied may have given values of both versions.
    sources.iter().try_for_each(Sources::check_unchanged).map_err(refused)?;
    let mut packed = packed.into_iter().flatten();
    let mut begin = 0;
    let of_request = |end| packed.by_ref().take(end - std::mem::replace(&mut begin, end)).collect();
    Ok((ends.into_iter().map(of_request).collect(), num_bytes))
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
        Ok(Packed::of(streams, vec![0, self.num_sequences]))
    }
}
