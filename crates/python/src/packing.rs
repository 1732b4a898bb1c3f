//! Minibatches that are packed while the first of them are already in use.

use crate::chunk::refused;
use crate::packed::{Arrays, PackRequest, Packed, estimated_bytes, wanted};
use crate::pool::{detached, together};
use cntkio_core::chunk;
use cntkio_core::pack::{Error, Job, Selection, Sources, gather_in_turn};
use pyo3::prelude::*;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time for which a thread that is far ahead of the reader waits for it, before it ends its work.
const PATIENCE: Duration = Duration::from_millis(1);
/// The most minibatches that may always be ahead of the reader, however large they are.
const LEAST_AHEAD: usize = 3;
/// Longest time of a call of `take`, so that Python can handle an interrupt.
const LONGEST_TAKE: Duration = Duration::from_millis(100);

/// The minibatches of a hand-over, packed in order by `run`, and taken in order by a reader on another thread.
///
/// `run` stays at most a few minibatches ahead of the reader. So their memory is reused while it is still in the cache,
/// and no thread has to be woken for each of them. It never waits long for the reader: it returns, and the reader lets a
/// thread call it again.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct Packing {
    requests: Vec<Py<PackRequest>>,
    /// The first minibatch of each request.
    firsts: Vec<usize>,
    num_minibatches: usize,
    /// Approximate size of all minibatches in bytes.
    #[pyo3(get)]
    num_bytes: usize,
    /// The most minibatches that are packed, or being packed, and not taken.
    most_ahead: usize,
    num_threads: usize,
    progress: Mutex<Progress>,
    changed: Condvar,
}

struct Progress {
    /// The next minibatch that a thread will pack.
    next: usize,
    /// For each minibatch that was packed and not taken, the parts of its requests.
    packed: Vec<Option<Vec<Packed>>>,
    /// The number of minibatches that are packed, up to the first that is not.
    num_ready: usize,
    num_taken: usize,
    /// The number of ready minibatches that the reader waits for.
    awaited: usize,
    /// True from a call of `resume` until the `run` that follows ends.
    is_active: bool,
    /// True if the threads of `run` shall end.
    is_ending: bool,
    is_stopped: bool,
    error: Option<PyErr>,
}

#[pymethods]
impl Packing {
    /// Begin with `requests`, of which the minibatches of each begin at an element of `firsts`. The first `run` follows.
    #[new]
    fn new(
        py: Python<'_>,
        requests: Vec<Py<PackRequest>>,
        firsts: Vec<usize>,
        num_minibatches: usize,
        num_threads: usize,
        bytes_ahead_per_thread: usize,
    ) -> PyResult<Packing> {
        let mut num_bytes = 0;
        for request in requests.iter().map(|request| request.get()) {
            num_bytes += estimated_bytes(&request.chunks(), request.arrays(py).selection()?);
        }
        let size = (num_bytes / num_minibatches.max(1)).max(1);
        let mut packed = Vec::new();
        packed.resize_with(num_minibatches, || None);
        let progress = Progress {
            next: 0,
            packed,
            num_ready: 0,
            num_taken: 0,
            awaited: usize::MAX,
            is_active: true,
            is_ending: false,
            is_stopped: false,
            error: None,
        };
        let most_ahead = (num_threads.saturating_mul(bytes_ahead_per_thread) / size).max(LEAST_AHEAD);
        let (progress, changed) = (Mutex::new(progress), Condvar::new());
        Ok(Packing { requests, firsts, num_minibatches, num_bytes, most_ahead, num_threads, progress, changed })
    }

    /// Pack minibatches, until all are packed or enough of them wait for the reader.
    fn run(&self, py: Python<'_>) {
        let outcome = self.pack(py);
        let mut progress = self.progress();
        if let Err(error) = outcome {
            progress.error.get_or_insert(error);
        }
        progress.is_active = false;
        self.changed.notify_all();
    }

    /// Take the minibatches that are ready, with a list for each request; wait a while for some. All lists are empty if
    /// none came in that time, and after the last.
    fn take(&self, py: Python<'_>) -> PyResult<(Vec<Vec<Packed>>, usize)> {
        let taken = py.detach(|| {
            let mut progress = self.progress();
            progress.awaited = (progress.num_taken + self.most_ahead.div_ceil(2)).min(self.num_minibatches);
            let is_waiting = |progress: &mut Progress| progress.num_ready < progress.awaited && progress.is_active;
            let waited = self.changed.wait_timeout_while(progress, LONGEST_TAKE, is_waiting);
            let mut progress = waited.unwrap_or_else(PoisonError::into_inner).0;
            progress.awaited = usize::MAX;
            let own = progress.num_taken..progress.num_ready;
            progress.num_taken = progress.num_ready;
            self.changed.notify_all();
            let taken: Vec<_> = own.clone().map(|number| (number, progress.packed[number].take())).collect();
            let error = if own.is_empty() && !progress.is_active { progress.error.take() } else { None };
            drop(progress);
            // A file that changed while its map was copied may have given values of both versions.
            let changed =
                self.requests.iter().flat_map(|request| request.get().chunks()).find_map(|chunk| chunk.changed());
            (taken, error.or_else(|| changed.map(|name| refused(Error::Changed(name.to_owned())))))
        });
        if let (_, Some(error)) = taken {
            return Err(error);
        }
        let num_taken = taken.0.len();
        let mut lists = Vec::new();
        lists.resize_with(self.requests.len(), Vec::new);
        for (number, packed) in taken.0 {
            let own = self.requests_of(number).map(|(request, _)| request);
            own.zip(packed.into_iter().flatten()).for_each(|(request, packed)| lists[request].push(packed));
        }
        Ok((lists, num_taken))
    }

    /// True if `run` must be called again; the caller has to do so.
    fn resume(&self) -> bool {
        let mut progress = self.progress();
        let resumes = !progress.is_active
            && !progress.is_stopped
            && progress.error.is_none()
            && progress.num_ready < self.num_minibatches;
        progress.is_active |= resumes;
        resumes
    }

    /// True if all minibatches are packed.
    fn is_complete(&self) -> bool {
        self.progress().num_ready == self.num_minibatches
    }

    /// End the work of `run` soon.
    fn stop(&self) {
        self.progress().is_stopped = true;
        self.changed.notify_all();
    }
}

/// A request while it is packed.
struct Open<'a> {
    sources: &'a Sources<'a>,
    selection: Selection<'a>,
    bounds: &'a [usize],
}

impl Packing {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests that a minibatch is part of, and the number of the minibatch in each.
    fn requests_of(&self, number: usize) -> impl Iterator<Item = (usize, usize)> {
        self.requests.iter().zip(&self.firsts).enumerate().filter_map(move |(index, (request, first))| {
            let own = number.checked_sub(*first)?;
            (own + 1 < request.get().bounds.len()).then_some((index, own))
        })
    }

    fn pack(&self, py: Python<'_>) -> PyResult<()> {
        let requests: Vec<&PackRequest> = self.requests.iter().map(|request| request.get()).collect();
        let chunks: Vec<Vec<&chunk::Chunk>> = requests.iter().map(|request| request.chunks()).collect();
        let streams = requests.iter().map(|request| wanted(&request.streams));
        let sources = chunks.iter().zip(streams).map(|(chunks, streams)| Sources::new(chunks, &streams));
        let sources: Vec<Sources> = sources.collect::<Result<_, Error>>().map_err(refused)?;
        let arrays: Vec<Arrays> = requests.iter().map(|request| request.arrays(py)).collect();
        let mut open = Vec::new();
        for ((request, sources), arrays) in requests.iter().zip(&sources).zip(&arrays) {
            open.push(Open { sources, selection: arrays.selection()?, bounds: &request.bounds });
        }
        self.progress().is_ending = false;
        detached(py, || together(self.num_threads, self.most_ahead, || self.pack_in_turn(&open)))??;
        Ok(())
    }

    /// Pack the next minibatches, in turn with other threads.
    fn pack_in_turn(&self, open: &[Open]) {
        while let Some(number) = self.begin_next() {
            let packed = self.packed(open, number);
            let mut progress = self.progress();
            match packed {
                Ok(packed) => progress.packed[number] = Some(packed),
                Err(error) => {
                    progress.error.get_or_insert_with(|| refused(error));
                }
            }
            while progress.packed.get(progress.num_ready).is_some_and(Option::is_some) {
                progress.num_ready += 1;
            }
            if progress.num_ready >= progress.awaited {
                self.changed.notify_all();
            }
        }
    }

    fn begin_next(&self) -> Option<usize> {
        let mut progress = self.progress();
        loop {
            let is_over = progress.next == self.num_minibatches || progress.error.is_some();
            if is_over || progress.is_ending || progress.is_stopped {
                return None;
            }
            if progress.next - progress.num_taken < self.most_ahead {
                progress.next += 1;
                return Some(progress.next - 1);
            }
            let (waited, outcome) =
                self.changed.wait_timeout(progress, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            progress = waited;
            progress.is_ending |= outcome.timed_out();
        }
    }

    fn packed(&self, open: &[Open], number: usize) -> Result<Vec<Packed>, Error> {
        let mut jobs = Vec::new();
        let mut counts = Vec::new();
        for (request, own) in self.requests_of(number) {
            let Open { sources, selection, bounds } = &open[request];
            let selection = selection.slice(bounds[own]..bounds[own + 1]).ok_or(Error::Missing)?;
            jobs.push(Job { sources, selection });
            counts.push(bounds[own + 1] - bounds[own]);
        }
        let packed = gather_in_turn(&jobs).zip(counts).map(|(ragged, count)| Ok(Packed::of(ragged?, vec![0, count])));
        packed.collect()
    }
}
