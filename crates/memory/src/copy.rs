//! Copies of many pieces into one vector: plain ([`append`]), of numbers that may be in their small form
//! ([`append_any_width`]), and of numbers in the bytes of files ([`append_stored`], [`append_floats`]).
//!
//! Several threads copy, and prefetch what they copy next, because the pieces are usually in no cache.

use crate::huge_pages::advise_for;
use crate::requests::{extend, reserve};
use crate::small::Widens;
use cntkio_simd::{Kernel, prefetch};
use std::mem::MaybeUninit;

/// A second thread helps to copy more bytes than this.
const SHARE_BYTES: usize = 128 << 10;
/// Pieces of this average size are prefetched two pieces ahead of the copy, shorter pieces eight pieces ahead.
const LONG_PIECE_BYTES: usize = 512;
/// Prefetch at most this many bytes of a piece; the processor prefetches the rest of a longer piece by itself.
const PREFETCHED_BYTES: usize = 1024;

/// Append the pieces to `out`, one after the other. A call on a thread of a rayon pool uses the pool's threads.
///
/// ```
/// let mut out = vec![1];
/// cntkio_memory::copy::append(&mut out, &[&[2, 3], &[], &[4]]);
/// assert_eq!(out, [1, 2, 3, 4]);
/// ```
pub fn append<T: Copy + Send + Sync>(out: &mut Vec<T>, pieces: &[&[T]]) {
    append_pieces(out, pieces);
}

/// Numbers in full width, or all in their small form.
#[derive(Debug, Clone, Copy)]
pub enum AnyWidth<'a, T: Widens> {
    /// In full width.
    Wide(&'a [T]),
    /// In their small form.
    Small(&'a [T::Small]),
    /// A number in its small form, and how many times it is repeated.
    Same(T::Small, usize),
}

impl<T: Widens> AnyWidth<'_, T> {
    /// Number of numbers.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> usize {
        match self {
            AnyWidth::Wide(values) => values.len(),
            AnyWidth::Small(values) => values.len(),
            AnyWidth::Same(_, count) => count,
        }
    }

    /// The numbers of a range; `None` if the range ends after the last number.
    #[inline]
    pub fn get(self, range: std::ops::Range<usize>) -> Option<Self> {
        match self {
            AnyWidth::Wide(values) => values.get(range).map(AnyWidth::Wide),
            AnyWidth::Small(values) => values.get(range).map(AnyWidth::Small),
            AnyWidth::Same(value, count) => {
                (range.start <= range.end && range.end <= count).then(|| AnyWidth::Same(value, range.len()))
            }
        }
    }

    /// Ask the processor for at most `most` bytes of the numbers; see [`prefetch`].
    #[inline]
    pub fn prefetch(self, most: usize) {
        match self {
            AnyWidth::Wide(values) => prefetch(values, most),
            AnyWidth::Small(values) => prefetch(values, most),
            AnyWidth::Same(..) => {}
        }
    }
}

/// Append pieces of which each may be in its small form; see [`append`].
///
/// ```
/// use cntkio_memory::copy::{AnyWidth, append_any_width};
///
/// let mut out = vec![1.0f32];
/// append_any_width(&mut out, &[AnyWidth::Small(&[2, 255]), AnyWidth::Wide(&[-0.5])]);
/// assert_eq!(out, [1.0, 2.0, 255.0, -0.5]);
/// ```
pub fn append_any_width<T: Widens>(out: &mut Vec<T>, pieces: &[AnyWidth<T>]) {
    append_pieces(out, pieces);
}

/// Float32 values in the bytes of a file: four bytes for each. One to three bytes left over at the end are ignored.
#[derive(Clone, Copy, Debug)]
pub struct Floats<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// True if the first byte of a value is its most significant.
    pub is_big_endian: bool,
}

/// Append the values of all pieces; see [`append`].
///
/// ```
/// use cntkio_memory::copy::{Floats, append_floats};
///
/// let mut out = vec![0.5];
/// append_floats(&mut out, &[Floats { bytes: &[0x3f, 0x80, 0, 0], is_big_endian: true }]);
/// assert_eq!(out, [0.5, 1.0]);
/// ```
pub fn append_floats(out: &mut Vec<f32>, pieces: &[Floats]) {
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
        // The copy is sound only if both slices have the same length.
        assert!(destination.len() == self.len());
        // SAFETY: both slices have the same length, and a mutable borrow never overlaps a shared one.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), destination.as_mut_ptr().cast(), self.len()) };
    }

    #[inline]
    fn prefetch_start(self) {
        prefetch(self, PREFETCHED_BYTES);
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        // This calls the method of slices, which comes before the method of the trait.
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
            AnyWidth::Same(value, count) => {
                assert!(destination.len() == count);
                destination.fill(MaybeUninit::new(T::widened(value)));
            }
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
            AnyWidth::Same(value, count) => (AnyWidth::Same(value, at), AnyWidth::Same(value, count - at)),
        }
    }
}

impl Piece<f32> for Floats<'_> {
    #[inline]
    fn size(self) -> usize {
        self.bytes.len() / 4
    }

    #[inline]
    fn write(self, destination: &mut [MaybeUninit<f32>], kernel: Kernel) {
        match self.is_big_endian {
            true => kernel.floats_be(self.bytes, destination),
            false => kernel.floats_le(self.bytes, destination),
        }
    }

    #[inline]
    fn prefetch_start(self) {
        prefetch(self.bytes, PREFETCHED_BYTES);
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        let (first, second) = self.bytes.split_at(4 * at);
        (Floats { bytes: first, ..self }, Floats { bytes: second, ..self })
    }
}

fn append_pieces<T: Send, P: Piece<T>>(out: &mut Vec<T>, pieces: &[P]) {
    append_with(Kernel::selected(), out, pieces);
}

fn append_with<T: Send, P: Piece<T>>(kernel: Kernel, out: &mut Vec<T>, pieces: &[P]) {
    let total = length(pieces);
    reserve(out, total);
    // Huge pages save time only if the advice comes before the first use of the memory.
    advise_for(out, total);
    fill(kernel, &mut out.spare_capacity_mut()[..total], pieces);
    // SAFETY: memory for `total` more values is reserved, and `fill` has written each of them.
    unsafe { out.set_len(out.len() + total) };
}

/// Types of numbers in files, with the lowest byte first.
pub trait Number: Copy + Send + Sync + private::Sealed {
    /// Append the numbers of one short piece; [`append_stored`] is for many or long pieces.
    fn append_le(out: &mut Vec<Self>, bytes: &[u8]);
}

/// Zeros. Their pages take no memory before other numbers are written; `None` if the system refuses the size.
///
/// ```
/// use cntkio_memory::copy::zeros;
///
/// assert_eq!(zeros::<f32>(3), Some(vec![0.0; 3]));
/// assert_eq!(zeros::<f64>(1 << 60), None);
/// ```
pub fn zeros<T: Number>(count: usize) -> Option<Vec<T>> {
    let layout = std::alloc::Layout::array::<T>(count).ok()?;
    // `alloc_zeroed` must not be called with a size of 0.
    if layout.size() == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the size is not 0.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    // SAFETY: the global allocator gave the memory for `count` numbers, and zero bytes are a number.
    (!memory.is_null()).then(|| unsafe { Vec::from_raw_parts(memory.cast(), count, count) })
}

mod private {
    /// Implemented only by the types of this module: `unsafe` code relies on any bytes being a valid value.
    pub trait Sealed {}
}

macro_rules! numbers {
    ($($number:ty, $size:literal;)*) => {$(
        impl private::Sealed for $number {}
        impl Number for $number {
            #[inline]
            fn append_le(out: &mut Vec<$number>, bytes: &[u8]) {
                let number = |bytes: &[u8]| <$number>::from_le_bytes(bytes.try_into().expect("as many bytes"));
                extend(out, bytes.chunks_exact($size).map(number));
            }
        }
    )*};
}

numbers! { u8, 1; f32, 4; f64, 8; i32, 4; i64, 8; }

/// Append the numbers in pieces of a file's bytes; no piece may end inside a number. See [`append`].
///
/// ```
/// let mut out = vec![1];
/// cntkio_memory::copy::append_stored(&mut out, &[&[2, 0, 0, 0, 255, 255, 255, 255], &[]]);
/// assert_eq!(out, [1, 2, -1]);
/// ```
pub fn append_stored<T: Number>(out: &mut Vec<T>, pieces: &[&[u8]]) {
    let size = length(pieces);
    // A piece that ends inside a number would shift all numbers after it.
    assert!(pieces.iter().all(|piece| piece.len().is_multiple_of(size_of::<T>())));
    // The bytes can be copied as they are only if the processor's lowest byte comes first, too.
    if cfg!(target_endian = "big") {
        pieces.iter().for_each(|piece| T::append_le(out, piece));
        return;
    }
    let count = size / size_of::<T>();
    reserve(out, count);
    advise_for(out, count);
    let before = out.len();
    let spare = &mut out.spare_capacity_mut()[..count];
    // SAFETY: the same memory as `size` bytes; bytes have no alignment.
    let destination = unsafe { std::slice::from_raw_parts_mut(spare.as_mut_ptr().cast::<MaybeUninit<u8>>(), size) };
    fill(Kernel::selected(), destination, pieces);
    // SAFETY: memory for `count` more values is reserved, `fill` has written all its bytes, and any bytes are a number.
    unsafe { out.set_len(before + count) };
}

/// Number of values of all pieces together.
fn length<T>(pieces: &[impl Piece<T>]) -> usize {
    pieces.iter().map(|piece| piece.size()).sum()
}

/// Write the pieces over all of `destination`, which has their total length.
fn fill<T: Send, P: Piece<T>>(kernel: Kernel, mut destination: &mut [MaybeUninit<T>], pieces: &[P]) {
    // `unsafe` code relies on all of the destination being written.
    assert!(destination.len() == length(pieces));
    // A call outside of a pool must not start rayon's global threads, which a forked child would lack.
    if size_of_val(destination) > SHARE_BYTES && rayon::current_thread_index().is_some() {
        if let [piece] = *pieces {
            let (first, second) = piece.split_at(piece.size() / 2);
            let (first_destination, second_destination) = destination.split_at_mut(first.size());
            rayon::join(|| fill(kernel, first_destination, &[first]), || fill(kernel, second_destination, &[second]));
            return;
        }
        let (first, second) = pieces.split_at(pieces.len() / 2);
        let (first_destination, second_destination) = destination.split_at_mut(length(first));
        rayon::join(|| fill(kernel, first_destination, first), || fill(kernel, second_destination, second));
        return;
    }
    let pieces_ahead = if size_of_val(destination) / pieces.len().max(1) >= LONG_PIECE_BYTES { 2 } else { 8 };
    for (number, piece) in pieces.iter().enumerate() {
        if let Some(next) = pieces.get(number + pieces_ahead) {
            next.prefetch_start();
        }
        let (piece_destination, rest) = destination.split_at_mut(piece.size());
        piece.write(piece_destination, kernel);
        destination = rest;
    }
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
    fn every_kernel_reads_both_byte_orders_on_one_and_several_threads() {
        let bytes: Vec<u8> = (0..1_200_003u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let pieces: Vec<Floats> = (0..3000usize)
            .map(|number| (number * 397 % 5000, number * 37 % 900, number % 3 > 0))
            .chain([(1, bytes.len() - 1, true), (0, 3, true), (2, 4, false)])
            .map(|(at, size, is_big_endian)| Floats { bytes: &bytes[at..at + size], is_big_endian })
            .collect();
        let value = |piece: &Floats, value: &[u8; 4]| match piece.is_big_endian {
            true => u32::from_be_bytes(*value),
            false => u32::from_le_bytes(*value),
        };
        let expected: Vec<u32> =
            pieces.iter().flat_map(|piece| piece.bytes.as_chunks().0.iter().map(|bytes| value(piece, bytes))).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for kernel in Kernel::available() {
            let (mut alone, mut together) = (vec![1.0f32], vec![1.0f32]);
            append_with(kernel, &mut alone, &pieces);
            pool.install(|| append_with(kernel, &mut together, &pieces));
            let bits = |values: &[f32]| values[1..].iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            assert!(bits(&alone) == expected && bits(&together) == expected, "{}", kernel.name());
        }
    }

    #[test]
    fn appends_nothing_for_no_values() {
        let mut out = Vec::new();
        append_floats(&mut out, &[]);
        append_floats(&mut out, &[Floats { bytes: &[1, 2, 3], is_big_endian: false }]);
        assert!(out.is_empty());
    }
}
