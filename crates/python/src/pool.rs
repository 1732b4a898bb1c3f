//! Threads that parse, and threads that help to pack. Their first use creates them, and so does the first
//! use after a fork, because the child has none of its parent's threads.

use cntkio_core::memory::{OutOfMemory, or_out_of_memory};
use cntkio_memory::threads;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyMemoryError, PyOSError};
use pyo3::prelude::*;
use rayon::{ThreadBuilder, ThreadPool, ThreadPoolBuilder};
use std::error::Error;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// For each generation the generation's number, the number of threads, and the pool. A forked process uses a lock of
/// its own, because a thread of its parent may have held the parent's lock. Generations share the 16 elements in turn.
type Kept = [Mutex<Option<(usize, usize, Arc<ThreadPool>)>>; 16];

/// Advice of messages about threads that the operating system does not start.
pub(crate) const LIMITS: &str = "the limits of processes (ulimit -u, pids of the control group) or of memory (ulimit -v) \
    leave no room, and CNTKIO_NUM_THREADS=1 takes the fewest threads";

static PARSERS: Kept = [const { Mutex::new(None) }; 16];
static HELPERS: Kept = [const { Mutex::new(None) }; 16];

/// Number of forks between the first process and this process.
static GENERATION: AtomicUsize = AtomicUsize::new(0);

/// Begin a new generation, in a process that was just forked and has no threads.
#[pyfunction]
pub(crate) fn begin_in_fork() {
    // The new process has a single thread, so no other memory must be in order with this number.
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The pool of this process, with `num_threads` threads.
pub(crate) fn pool(num_threads: usize) -> PyResult<Arc<ThreadPool>> {
    kept(&PARSERS, num_threads, "parse")
}

fn kept(current: &Kept, num_threads: usize, what: &str) -> PyResult<Arc<ThreadPool>> {
    let generation = GENERATION.load(Ordering::Relaxed);
    let mut current = current[generation % current.len()].lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((owner, size, pool)) = &*current
        && (*owner, *size) == (generation, num_threads)
    {
        return Ok(pool.clone());
    }
    let what = what.to_owned();
    let pool = ThreadPoolBuilder::new()
        .num_threads(num_threads)
        .thread_name(move |number| format!("cntkio-{what}-{number}"))
        .spawn_handler(start)
        .build()
        .map_err(not_started)?;
    let pool = Arc::new(pool);
    if let Some((owner, _, old)) = current.replace((generation, num_threads, pool.clone()))
        && owner != generation
    {
        // The threads of this pool exist only in the parent process: a wait for their end would take forever.
        std::mem::forget(old);
    }
    Ok(pool)
}

/// Start a thread, and wait until it has its variables.
fn start(thread: ThreadBuilder) -> io::Result<()> {
    // The answer of the thread. A channel of the standard library would need a variable of this thread.
    let answer = Arc::new((Mutex::new(None), Condvar::new()));
    let asked = answer.clone();
    let name = thread.name().unwrap_or_default().to_owned();
    let begin = move || {
        let begun = threads::begin();
        *asked.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
        asked.1.notify_one();
        drop(asked);
        if begun.is_ok() {
            thread.run();
        }
    };
    threads::start(&name, begin)?;
    let waiting = answer.0.lock().unwrap_or_else(PoisonError::into_inner);
    let begun = answer.1.wait_while(waiting, |begun| begun.is_none()).unwrap_or_else(PoisonError::into_inner);
    begun.unwrap_or(Ok(())).map_err(without_memory)
}

fn without_memory(OutOfMemory(_): OutOfMemory) -> io::Error {
    io::ErrorKind::OutOfMemory.into()
}

fn not_started(error: rayon::ThreadPoolBuildError) -> PyErr {
    let reason = error.source().and_then(|reason| reason.downcast_ref::<io::Error>()).map(io::Error::kind);
    if reason == Some(io::ErrorKind::OutOfMemory) {
        return PyMemoryError::new_err("no memory for another thread");
    }
    PyOSError::new_err(format!("cannot start threads: {error}; {LIMITS}"))
}

/// Do the same work on this thread and on helper threads, `most` in all, but at most `num_threads`. This thread begins
/// while the helpers are still waking.
pub(crate) fn together(num_threads: usize, most: usize, work: impl Fn() + Sync) -> PyResult<()> {
    if num_threads > 1 {
        let helpers = kept(&HELPERS, num_threads - 1, "help")?;
        helpers.in_place_scope(|scope| {
            (1..num_threads.min(most)).for_each(|_| scope.spawn(|_| work()));
            work();
        });
    } else {
        work();
    }
    Ok(())
}

/// Do the jobs on `num_threads` threads, of which each takes the next job in turn. A job runs on one thread only: pass
/// several jobs for each thread, so that the work balances.
pub(crate) fn shared<J: Sync, R: Send>(
    jobs: &[J],
    num_threads: usize,
    one: impl Fn(&J) -> R + Sync,
) -> PyResult<Vec<R>> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(jobs.len())));
    together(num_threads, jobs.len(), || {
        let mut own = Vec::new();
        // Only the number itself must be unique; the end of the threads makes the results visible.
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && let Some(job) = jobs.get(number)
        {
            own.push((number, one(job)));
        }
        done.lock().unwrap_or_else(PoisonError::into_inner).append(&mut own);
    })?;
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    // The threads took the jobs in turn. No two jobs have the same number, so the sort need not be stable.
    done.sort_unstable_by_key(|&(number, _)| number);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

/// Do work without the interpreter's lock.
///
/// # Errors
/// `MemoryError`: the system refused a request of the core.
pub(crate) fn detached<R: Send>(py: Python<'_>, work: impl Send + FnOnce() -> R) -> PyResult<R> {
    py.detach(|| or_out_of_memory(work)).map_err(no_memory)
}

/// [`detached`] for work that may be too short to release the lock, or releases it itself.
pub(crate) fn attached<R>(work: impl FnOnce() -> R) -> PyResult<R> {
    or_out_of_memory(work).map_err(no_memory)
}

/// Turn a value into objects of Python.
///
/// # Errors
/// `MemoryError`: Python found no memory for an object. PyO3 panics then.
pub(crate) fn as_objects<'py, T: IntoPyObjectExt<'py>>(py: Python<'py>, value: T) -> PyResult<Bound<'py, PyAny>> {
    std::panic::catch_unwind(AssertUnwindSafe(|| value.into_bound_py_any(py)))
        .unwrap_or_else(|_| Err(PyMemoryError::new_err("no memory for objects of Python")))
}

/// The error for a request that the system refused.
pub(crate) fn no_memory(OutOfMemory(num_bytes): OutOfMemory) -> PyErr {
    PyMemoryError::new_err(format!("no memory for {num_bytes} bytes"))
}
