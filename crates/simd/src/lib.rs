//! Vector kernels for numbers in text and in bytes ([`Kernel`], [`digits`]), and [`prefetch`]. Everything public is
//! safe.
//!
//! A kernel consumes as many numbers as are *certain* to be in the common form, and leaves the rest, untouched, to an
//! exact parser.
//!
//! Rule of the fast prefix: a kernel starts at `bytes[at]`, directly after a stream's name or after a number, and
//! consumes tokens of the form
//!
//! ```text
//! dense    {blank} [+|-] digits [. digits]           blank = space or tab
//! sparse   {blank} digits : [+|-] digits [. digits]
//! ```
//!
//! as long as each is certain and is followed, inside the slice, by a blank or one of `|`, LF, CR. The kernel appends
//! the correctly rounded values and returns the position after the last number consumed, or after blanks that follow
//! that number. These end the prefix: an exponent, junk, an index out of range, a very long number, a value next to the
//! middle of two float32 numbers, and a token that touches the end of the slice. Kernels may differ in *how long* their
//! prefix is, but not in *what* is in it. No kernel reads outside the slice.
//!
//! The crate starts no threads and calls no function of the operating system.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod block;
mod bytes;
pub mod digits;
mod forms;
mod functions;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
mod prefetch;
mod scalar;
mod short_text;
#[cfg(target_arch = "x86_64")]
mod sparse_lines;
#[cfg(target_arch = "x86_64")]
mod sse41;

pub use bytes::Pair;
pub use forms::{MAX_STREAMS, SparseColumn, SparseEntries, SparseForm};
pub use kernel::{KERNEL_VARIABLE, Kernel};
pub use prefetch::{prefetch, prefetch_first};
pub use short_text::ShortText;
