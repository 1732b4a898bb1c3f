//! Memory operations that need `unsafe`, as safe functions:
//!
//! - copies of many short pieces into one vector ([`append`], [`append_any_width`], [`append_stored`]), on several
//!   threads and with prefetches, because the pieces are usually in no cache
//! - conversion of numbers to a small form and back ([`Widens`])
//! - hints to the processor and the system ([`prefetch`], [`advise_huge_pages`])

use crate::Kernel;
use crate::bytes::widen;
pub use crate::prefetch::{prefetch, prefetch_first};
use std::mem::MaybeUninit;

/// A second thread helps to copy more bytes than this.
const SHARE_BYTES: usize = 128 << 10;
/// Pieces of this average size are prefetched two pieces ahead of the copy, shorter pieces eight pieces ahead.
const LONG_PIECE_BYTES: usize = 512;
/// Prefetch at most this many bytes of a piece; the processor prefetches the rest of a longer piece by itself.
const PREFETCHED_BYTES: usize = 1024;
/// Smallest allocation, in bytes, for which [`advise_huge_pages`] is worth its system call.
pub const WORTH_HUGE_PAGES: usize = 8 << 20;

/// Append the pieces to `out`, one after the other. A call on a thread of a rayon pool uses the pool's threads.
///
/// ```
/// let mut out = vec![1];
/// cntkio_simd::append(&mut out, &[&[2, 3], &[], &[4]]);
/// assert_eq!(out, [1, 2, 3, 4]);
/// ```
pub fn append<T: Copy + Send + Sync>(out: &mut Vec<T>, pieces: &[&[T]]) {
    append_pieces(out, pieces);
}

/// Numbers that can be kept in fewer bytes while they are small.
pub trait Widens: Copy + Send + Sync + private::Sealed {
    /// The small form of such a number.
    type Small: Copy + Send + Sync;
    /// The number that a small form stands for.
    fn widened(small: Self::Small) -> Self;
    /// Append the small forms of the numbers and return true, if each has a small form that stands for the same bits;
    /// otherwise append nothing and return false.
    ///
    /// ```
    /// use cntkio_simd::memory::Widens;
    ///
    /// let mut out = vec![];
    /// assert!(f32::narrow(&[0.0, 255.0], &mut out));
    /// assert!(!f32::narrow(&[1.0, 0.5], &mut out) && !f32::narrow(&[-0.0], &mut out));
    /// assert_eq!(out, [0, 255]);
    /// ```
    fn narrow(numbers: &[Self], out: &mut Vec<Self::Small>) -> bool;
    /// Write the numbers that small forms stand for into a destination of the same length.
    #[doc(hidden)]
    fn widen(kernel: Kernel, small: &[Self::Small], destination: &mut [MaybeUninit<Self>]);
}

macro_rules! widens {
    ($($number:ty, $small:ty, $narrow:expr, $bits:expr, $widen:expr;)*) => {$(
        impl Widens for $number {
            type Small = $small;

            #[inline]
            fn widened(small: $small) -> $number {
                small.into()
            }

            fn narrow(numbers: &[$number], out: &mut Vec<$small>) -> bool {
                let before = out.len();
                out.reserve(numbers.len());
                // Work in blocks, so that numbers without a small form are rejected after the first block.
                for block in numbers.chunks(NUMBERS_NARROWED_AT_ONCE) {
                    let mut wrong = 0;
                    out.extend(block.iter().map(|&number| {
                        let small: $small = $narrow(number);
                        wrong |= $bits(<$number>::from(small)) ^ $bits(number);
                        small
                    }));
                    if wrong != 0 {
                        out.truncate(before);
                        return false;
                    }
                }
                true
            }

            #[inline]
            fn widen(kernel: Kernel, small: &[$small], destination: &mut [MaybeUninit<$number>]) {
                $widen(kernel, small, destination);
            }
        }
    )*};
}

const NUMBERS_NARROWED_AT_ONCE: usize = 1 << 10;

// The significand of a float32 from 2^23 on (float64: 2^52) has a unit of 1, so adding 2^23 (2^52) to a small whole
// number puts that number into the lowest bits. `narrow` then compares bits, which rejects fractions, large numbers and
// -0.
widens! {
    f32, u8, |number: f32| (number + 8_388_608.0).to_bits() as u8, f32::to_bits, Kernel::widen_u8;
    f64, u8, |number: f64| (number + 4_503_599_627_370_496.0).to_bits() as u8, f64::to_bits,
        |_, small, destination| widen(small, destination);
    i32, u16, |number: i32| number as u16, |number: i32| number as u32, Kernel::widen_u16;
}

/// Numbers in full width, or all in their small form.
#[derive(Debug, Clone, Copy)]
pub enum AnyWidth<'a, T: Widens> {
    /// In full width.
    Wide(&'a [T]),
    /// In their small form.
    Small(&'a [T::Small]),
}

impl<T: Widens> AnyWidth<'_, T> {
    /// Number of numbers.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> usize {
        match self {
            AnyWidth::Wide(values) => values.len(),
            AnyWidth::Small(values) => values.len(),
        }
    }

    /// Some of the numbers; `None` if there are not as many.
    #[inline]
    pub fn get(self, range: std::ops::Range<usize>) -> Option<Self> {
        match self {
            AnyWidth::Wide(values) => values.get(range).map(AnyWidth::Wide),
            AnyWidth::Small(values) => values.get(range).map(AnyWidth::Small),
        }
    }

    /// Ask the processor for at most `most` bytes of the numbers; see [`prefetch`].
    #[inline]
    pub fn prefetch(self, most: usize) {
        match self {
            AnyWidth::Wide(values) => prefetch(values, most),
            AnyWidth::Small(values) => prefetch(values, most),
        }
    }
}

/// Append pieces of which each may be in its small form; see [`append`].
///
/// ```
/// use cntkio_simd::memory::{AnyWidth, append_any_width};
///
/// let mut out = vec![1.0f32];
/// append_any_width(&mut out, &[AnyWidth::Small(&[2, 255]), AnyWidth::Wide(&[-0.5])]);
/// assert_eq!(out, [1.0, 2.0, 255.0, -0.5]);
/// ```
pub fn append_any_width<T: Widens>(out: &mut Vec<T>, pieces: &[AnyWidth<T>]) {
    append_pieces(out, pieces);
}

/// Consecutive values that are copied together.
trait Piece<T>: Copy + Send + Sync {
    /// Number of values.
    fn size(self) -> usize;
    /// Write each value into `destination`, which has this size. `unsafe` code relies on every element being written.
    fn write(self, destination: &mut [MaybeUninit<T>], kernel: Kernel);
    /// Prefetch the first values.
    fn prefetch_start(self);
    fn split_at(self, at: usize) -> (Self, Self);
}

impl<T: Copy + Send + Sync> Piece<T> for &[T] {
    #[inline]
    fn size(self) -> usize {
        self.len()
    }

    #[inline]
    fn write(self, destination: &mut [MaybeUninit<T>], _: Kernel) {
        assert!(destination.len() == self.len());
        // SAFETY: both slices have the same length, and a mutable borrow never overlaps a shared one.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), destination.as_mut_ptr().cast(), self.len()) };
    }

    #[inline]
    fn prefetch_start(self) {
        prefetch(self, PREFETCHED_BYTES);
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl<T: Widens> Piece<T> for AnyWidth<'_, T> {
    #[inline]
    fn size(self) -> usize {
        self.len()
    }

    #[inline]
    fn write(self, destination: &mut [MaybeUninit<T>], kernel: Kernel) {
        match self {
            AnyWidth::Wide(values) => values.write(destination, kernel),
            AnyWidth::Small(values) => T::widen(kernel, values, destination),
        }
    }

    #[inline]
    fn prefetch_start(self) {
        self.prefetch(PREFETCHED_BYTES);
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            AnyWidth::Wide(values) => {
                let (first, second) = values.split_at(at);
                (AnyWidth::Wide(first), AnyWidth::Wide(second))
            }
            AnyWidth::Small(values) => {
                let (first, second) = values.split_at(at);
                (AnyWidth::Small(first), AnyWidth::Small(second))
            }
        }
    }
}

fn append_pieces<T: Send, P: Piece<T>>(out: &mut Vec<T>, pieces: &[P]) {
    let total = length(pieces);
    out.reserve(total);
    advise_for(out, total);
    fill(&mut out.spare_capacity_mut()[..total], pieces);
    // SAFETY: memory for `total` more values is reserved, and `fill` has written each of them.
    unsafe { out.set_len(out.len() + total) };
}

/// Ask for huge pages if `count` more values are large enough for them.
pub(crate) fn advise_for<T>(out: &mut Vec<T>, count: usize) {
    if count * size_of::<T>() >= WORTH_HUGE_PAGES {
        advise_huge_pages(out, out.len() + count);
    }
}

/// Types of numbers in files, with the lowest byte first.
pub trait Number: Copy + Send + Sync + private::Sealed {
    /// Append the numbers of one short piece; [`append_stored`] is for many or long pieces.
    fn append_le(out: &mut Vec<Self>, bytes: &[u8]);
}

mod private {
    /// Implemented only by the types of this module: `unsafe` code relies on their implementations of the traits, and
    /// on any bytes being a valid value.
    pub trait Sealed {}
}

macro_rules! numbers {
    ($($number:ty, $size:literal;)*) => {$(
        impl private::Sealed for $number {}
        impl Number for $number {
            #[inline]
            fn append_le(out: &mut Vec<$number>, bytes: &[u8]) {
                let number = |bytes: &[u8]| <$number>::from_le_bytes(bytes.try_into().expect("as many bytes"));
                out.extend(bytes.chunks_exact($size).map(number));
            }
        }
    )*};
}

numbers! { f32, 4; f64, 8; i32, 4; }

/// Append the numbers in pieces of a file's bytes; no piece may end inside a number. See [`append`].
///
/// ```
/// let mut out = vec![1];
/// cntkio_simd::memory::append_stored(&mut out, &[&[2, 0, 0, 0, 255, 255, 255, 255], &[]]);
/// assert_eq!(out, [1, 2, -1]);
/// ```
pub fn append_stored<T: Number>(out: &mut Vec<T>, pieces: &[&[u8]]) {
    let size = length(pieces);
    assert!(pieces.iter().all(|piece| piece.len().is_multiple_of(size_of::<T>())));
    if cfg!(target_endian = "big") {
        pieces.iter().for_each(|piece| T::append_le(out, piece));
        return;
    }
    let count = size / size_of::<T>();
    out.reserve(count);
    advise_for(out, count);
    let before = out.len();
    let spare = &mut out.spare_capacity_mut()[..count];
    // SAFETY: the same memory as `size` bytes; bytes have no alignment.
    let destination = unsafe { std::slice::from_raw_parts_mut(spare.as_mut_ptr().cast::<MaybeUninit<u8>>(), size) };
    fill(destination, pieces);
    // SAFETY: memory for `count` more values is reserved, `fill` has written all its bytes, and any bytes are a number.
    unsafe { out.set_len(before + count) };
}

/// Number of values of all pieces together.
fn length<T>(pieces: &[impl Piece<T>]) -> usize {
    pieces.iter().map(|piece| piece.size()).sum()
}

/// Write the pieces over all of `destination`, which has their total length.
fn fill<T: Send, P: Piece<T>>(mut destination: &mut [MaybeUninit<T>], pieces: &[P]) {
    assert!(destination.len() == length(pieces));
    if size_of_val(destination) > SHARE_BYTES && rayon::current_thread_index().is_some() {
        if let [piece] = *pieces {
            let (first, second) = piece.split_at(piece.size() / 2);
            let (first_destination, second_destination) = destination.split_at_mut(first.size());
            rayon::join(|| fill(first_destination, &[first]), || fill(second_destination, &[second]));
            return;
        }
        let (first, second) = pieces.split_at(pieces.len() / 2);
        let (first_destination, second_destination) = destination.split_at_mut(length(first));
        rayon::join(|| fill(first_destination, first), || fill(second_destination, second));
        return;
    }
    let pieces_ahead = if size_of_val(destination) / pieces.len().max(1) >= LONG_PIECE_BYTES { 2 } else { 8 };
    let kernel = Kernel::selected();
    for (number, piece) in pieces.iter().enumerate() {
        if let Some(next) = pieces.get(number + pieces_ahead) {
            next.prefetch_start();
        }
        let (piece_destination, rest) = destination.split_at_mut(piece.size());
        piece.write(piece_destination, kernel);
        destination = rest;
    }
}

/// Ask the system to back the first `count` values of a vector with huge pages, if it has them: the first use of the
/// memory then costs a third. Only whole huge pages inside that range are advised, so no unused memory is allocated.
pub fn advise_huge_pages<T>(values: &mut Vec<T>, count: usize) {
    #[cfg(target_os = "linux")]
    {
        const HUGE_PAGE_BYTES: usize = 2 << 20;
        let begin = values.as_mut_ptr() as usize;
        let end = begin + count.min(values.capacity()) * size_of::<T>();
        let (first, last) = (begin.next_multiple_of(HUGE_PAGE_BYTES), end / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES);
        if first < last {
            // SAFETY: the pages are inside the vector's own allocation. The advice changes neither their content nor
            // their protection, and an error of the call changes nothing.
            unsafe { libc::madvise(first as *mut libc::c_void, last - first, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (values, count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_pieces_in_order_on_one_and_several_threads() {
        let source: Vec<u32> = (0..600_000).collect();
        let pieces: Vec<&[u32]> =
            (0..2000).map(|number| &source[number * 131 % 7000..][..number * 37 % 500]).chain([&source[..]]).collect();
        let expected: Vec<u32> = [7].into_iter().chain(pieces.iter().flat_map(|piece| piece.iter().copied())).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let (mut alone, mut together) = (vec![7], vec![7]);
        append(&mut alone, &pieces);
        pool.install(|| append(&mut together, &pieces));
        assert_eq!(alone, expected);
        assert_eq!(together, expected);
    }

    #[test]
    fn advice_does_not_change_the_values() {
        let mut values: Vec<u32> = (0..3 << 20).collect();
        let count = values.len();
        advise_huge_pages(&mut values, count);
        advise_huge_pages(&mut values, usize::MAX / 8);
        assert!(values.iter().enumerate().all(|(at, &value)| at == value as usize));
        advise_huge_pages(&mut Vec::<u8>::new(), 0);
    }
}
