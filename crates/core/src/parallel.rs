//! Work of several parts, on all threads of the current pool.
//!
//! The results are in order, so that a caller returns the first of several faults; rayon would return any of them. rayon
//! gets a function without type parameters: its code is compiled once for all callers, and would otherwise be a fifth of
//! the core.

use crate::memory;
use rayon::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Do the work for each number below `count`; return the results in order.
pub fn map<R: Send>(count: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let results: Vec<Mutex<Option<R>>> = memory::collected((0..count).map(|_| Mutex::new(None)));
    each(count, &|number| {
        let result = work(number);
        *results[number].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    });
    let mut all = memory::with_room(count);
    // Each number has a result now: a panic of the work would have left this function.
    all.extend(results.into_iter().filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner)));
    all
}

fn each(count: usize, work: &(dyn Fn(usize) + Sync)) {
    (0..count).into_par_iter().for_each(work);
}
