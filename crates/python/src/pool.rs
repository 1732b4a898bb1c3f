//! The threads that parse: none before the first use, and a fresh set after a fork, which takes threads away.

use pyo3::PyResult;
use pyo3::exceptions::PyRuntimeError;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::{Arc, Mutex, PoisonError};

static POOL: Mutex<Option<(u32, usize, Arc<ThreadPool>)>> = Mutex::new(None);

/// The pool of this process, with so many threads.
pub(crate) fn pool(num_threads: usize) -> PyResult<Arc<ThreadPool>> {
    let process = std::process::id();
    let mut current = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((owner, size, pool)) = &*current
        && (*owner, *size) == (process, num_threads)
    {
        return Ok(pool.clone());
    }
    let pool = ThreadPoolBuilder::new()
        .num_threads(num_threads)
        .thread_name(|number| format!("cntkio-parse-{number}"))
        .build()
        .map_err(|error| PyRuntimeError::new_err(format!("no threads to parse on: {error}")))?;
    let pool = Arc::new(pool);
    if let Some((owner, _, old)) = current.replace((process, num_threads, pool.clone()))
        && owner != process
    {
        // A fork left its threads behind: waiting for them to end would never end.
        std::mem::forget(old);
    }
    Ok(pool)
}
