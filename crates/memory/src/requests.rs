//! Memory whose size depends on a corpus or its options. If the memory does not suffice, the work fails, but the
//! process continues.
//!
//! Parsers append numbers in their innermost loops, which should not return a `Result` for each number. So a failed
//! request unwinds to the caller of the parser, across the threads of a pool, and [`or_out_of_memory`] catches it
//! there.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A request for this number of bytes failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory(pub usize);

/// Reserve memory for `count` more values; unwind with [`OutOfMemory`] if the system has less.
#[inline]
pub fn reserve<T>(values: &mut Vec<T>, count: usize) {
    if values.try_reserve(count).is_err() {
        refused(values.len().saturating_add(count).saturating_mul(size_of::<T>()));
    }
}

/// Unwind with [`OutOfMemory`] if a request for about this number of bytes failed.
pub fn require<E>(reserved: Result<(), E>, num_bytes: usize) {
    if reserved.is_err() {
        refused(num_bytes);
    }
}

/// Unwind with [`OutOfMemory`]: a request for about this number of bytes failed.
#[cold]
pub fn refused(num_bytes: usize) -> ! {
    // Unlike a panic, this calls no hook, so nothing is printed.
    resume_unwind(Box::new(OutOfMemory(num_bytes)))
}

/// Append a value; unwind with [`OutOfMemory`] if the system has no memory for more values.
#[inline]
pub fn push<T>(values: &mut Vec<T>, value: T) {
    // `Vec::push` would end the process if it could not grow.
    if values.len() == values.capacity() {
        reserve(values, 1);
    }
    values.push(value);
}

/// Append values whose number is known; unwind with [`OutOfMemory`] if the system has less memory.
// In loops over short sequences, a call takes as long as its work.
#[inline(always)]
pub fn extend<T>(values: &mut Vec<T>, more: impl ExactSizeIterator<Item = T>) {
    reserve(values, more.len());
    values.extend(more);
}

/// An empty vector with room for `count` values; unwind with [`OutOfMemory`] if the system has less memory.
#[inline]
pub fn with_room<T>(count: usize) -> Vec<T> {
    let mut values = Vec::new();
    require(values.try_reserve_exact(count), count.saturating_mul(size_of::<T>()));
    values
}

/// Collect values whose number is known; unwind with [`OutOfMemory`] if the system has less memory.
pub fn collected<T>(values: impl ExactSizeIterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    extend(&mut all, values);
    all
}

/// Copy values; unwind with [`OutOfMemory`] if the system has less memory.
pub fn copied<T: Copy>(values: &[T]) -> Vec<T> {
    collected(values.iter().copied())
}

/// Append slices, or the last of several vectors; unwind with [`OutOfMemory`] if the system has less memory.
pub fn append<T: Copy>(values: &mut Vec<T>, more: &[T]) {
    reserve(values, more.len());
    values.extend_from_slice(more);
}

/// Change the number of values; unwind with [`OutOfMemory`] if the system has less memory.
pub fn resize<T: Clone>(values: &mut Vec<T>, count: usize, value: T) {
    reserve(values, count.saturating_sub(values.len()));
    values.resize(count, value);
}

/// Do some work; return an error if it ran out of memory. After an error, nothing that the work changed may be used.
pub fn or_out_of_memory<R>(work: impl FnOnce() -> R) -> Result<R, OutOfMemory> {
    // A caller uses nothing that the work changed after an error, so it may be in any state.
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| match payload.downcast_ref() {
        Some(&out_of_memory @ OutOfMemory(_)) => out_of_memory,
        // Other panics are faults of the program, and continue.
        None => resume_unwind(payload),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_request_is_an_error_with_its_size() {
        let mut values = vec![1u32];
        assert_eq!(or_out_of_memory(|| reserve(&mut values, 1 << 61)), Err(OutOfMemory((1 << 63) + 4)));
        assert_eq!(or_out_of_memory(|| reserve(&mut values, 1000)), Ok(()));
        assert!(values.capacity() > 1000);
    }
}
