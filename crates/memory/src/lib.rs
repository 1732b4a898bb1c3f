//! Safe functions for memory operations that need `unsafe`:
//!
//! - [`copy`]: many pieces into one vector, on several threads and with prefetches, because the pieces are usually in
//!   no cache
//! - [`mod@file`]: reads and maps of files that the caller has opened
//! - [`huge_pages`]: a hint to the system for large vectors
//! - [`requests`]: vectors whose growth can fail
//! - [`small`]: numbers in fewer bytes
//! - [`threads`]: the variables of threads, made when a thread begins
//! - [`allocator`]: reuse of the memory of large arrays
//!
//! The crate opens no files and reports no errors about their content. The kernels that it calls are in `cntkio_simd`.

pub mod allocator;
pub mod copy;
pub mod file;
pub mod huge_pages;
pub mod requests;
pub mod small;
pub mod threads;
