//! Copies of many pieces into one vector: plain ([`append`]), of numbers that may be in their small form
//! ([`append_any_width`]), and of numbers in the bytes of files ([`append_stored`], [`append_floats`]); and of sparse
//! entries into two vectors ([`append_entries`]).
//!
//! Several threads copy, and prefetch what they copy next, because the pieces are usually in no cache.

use crate::huge_pages::advise_for;
use crate::requests::reserve;
use crate::small::Number;
use crate::small::private::Sealed;
use cntkio_simd::{Kernel, Pair, prefetch};
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
pub enum AnyWidth<'a, T: Number> {
    /// In full width.
    Wide(&'a [T]),
    /// In their small form.
    Small(&'a [T::Small]),
}

impl<T: Number> AnyWidth<'_, T> {
    /// Number of numbers.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> usize {
        match self {
            AnyWidth::Wide(values) => values.len(),
            AnyWidth::Small(values) => values.len(),
        }
    }

    /// The numbers of a range; `None` if the range ends after the last number.
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
/// use cntkio_memory::copy::{AnyWidth, append_any_width};
///
/// let mut out = vec![1.0f32];
/// append_any_width(&mut out, &[AnyWidth::Small(&[2, 255]), AnyWidth::Wide(&[-0.5])]);
/// assert_eq!(out, [1.0, 2.0, 255.0, -0.5]);
/// ```
pub fn append_any_width<T: Number>(out: &mut Vec<T>, pieces: &[AnyWidth<T>]) {
    append_pieces(out, pieces);
}

/// Entries of sparse samples: an index and a value each.
#[derive(Debug, Clone, Copy)]
pub enum AnyEntries<'a, T> {
    /// The indices and as many values.
    Wide(&'a [i32], &'a [T]),
    /// Small indices, each with a small value.
    Pairs(&'a [Pair]),
    /// Small indices, and the value that all of them have.
    Alike(&'a [u16], T),
}

impl<T: Copy> AnyEntries<'_, T> {
    /// Number of entries.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> usize {
        match self {
            AnyEntries::Wide(indices, _) => indices.len(),
            AnyEntries::Pairs(pairs) => pairs.len(),
            AnyEntries::Alike(indices, _) => indices.len(),
        }
    }

    /// The entries of a range; `None` if the range ends after the last entry.
    #[inline]
    pub fn get(self, range: std::ops::Range<usize>) -> Option<Self> {
        match self {
            AnyEntries::Wide(indices, values) => {
                Some(AnyEntries::Wide(indices.get(range.clone())?, values.get(range)?))
            }
            AnyEntries::Pairs(pairs) => pairs.get(range).map(AnyEntries::Pairs),
            AnyEntries::Alike(indices, value) => Some(AnyEntries::Alike(indices.get(range)?, value)),
        }
    }

    /// Ask the processor for at most `most` bytes of each array; see [`prefetch`].
    #[inline]
    pub fn prefetch(self, most: usize) {
        match self {
            AnyEntries::Wide(indices, values) => {
                prefetch(indices, most);
                prefetch(values, most);
            }
            AnyEntries::Pairs(pairs) => prefetch(pairs, most),
            AnyEntries::Alike(indices, _) => prefetch(indices, most),
        }
    }
}

/// Append the indices and the values of pieces, each to a vector; see [`append`].
///
/// # Panics
///
/// If a piece in full width has not as many values as indices.
///
/// ```
/// use cntkio_memory::copy::{AnyEntries, append_entries};
///
/// let (mut indices, mut values) = (vec![7], vec![0.5f32]);
/// let pieces = [AnyEntries::Pairs(&[[1, 2, 3]]), AnyEntries::Alike(&[4, 5], 1.0), AnyEntries::Wide(&[-6], &[-1.0])];
/// append_entries(&mut indices, &mut values, &pieces);
/// assert_eq!(indices, [7, 513, 4, 5, -6]);
/// assert_eq!(values, [0.5, 3.0, 1.0, 1.0, -1.0]);
/// ```
pub fn append_entries<T: Number>(indices: &mut Vec<i32>, values: &mut Vec<T>, pieces: &[AnyEntries<T>]) {
    let total = pieces.iter().map(|piece| piece.len()).sum();
    reserve(indices, total);
    reserve(values, total);
    advise_for(indices, total);
    advise_for(values, total);
    let destination = (&mut indices.spare_capacity_mut()[..total], &mut values.spare_capacity_mut()[..total]);
    fill(Kernel::selected(), destination, pieces);
    // SAFETY: memory for `total` more numbers is reserved in both vectors, and `fill` has written each of them.
    unsafe {
        indices.set_len(indices.len() + total);
        values.set_len(values.len() + total);
    }
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

/// Memory that pieces are written to.
trait Destination: Send + Sized {
    /// Number of values.
    fn size(&self) -> usize;
    fn num_bytes(&self) -> usize;
    fn split_at(self, at: usize) -> (Self, Self);
}

impl<T: Send> Destination for &mut [MaybeUninit<T>] {
    #[inline]
    fn size(&self) -> usize {
        self.len()
    }

    #[inline]
    fn num_bytes(&self) -> usize {
        size_of_val(*self)
    }

    #[inline]
    fn split_at(self, at: usize) -> (Self, Self) {
        self.split_at_mut(at)
    }
}

/// For entries: the indices, and as many values.
impl<T: Send> Destination for (&mut [MaybeUninit<i32>], &mut [MaybeUninit<T>]) {
    #[inline]
    fn size(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn num_bytes(&self) -> usize {
        size_of_val(self.0) + size_of_val(self.1)
    }

    #[inline]
    fn split_at(self, at: usize) -> (Self, Self) {
        let ((first_indices, indices), (first_values, values)) = (self.0.split_at_mut(at), self.1.split_at_mut(at));
        ((first_indices, first_values), (indices, values))
    }
}

/// Consecutive values that are copied together.
trait Piece<D>: Copy + Send + Sync {
    /// Number of values.
    fn size(self) -> usize;
    /// Write each value into `destination`, which has this size. `unsafe` code relies on every element being written.
    fn write(self, destination: D, kernel: Kernel);
    /// Prefetch the first values.
    fn prefetch_start(self);
    fn split_at(self, at: usize) -> (Self, Self);
}

impl<T: Copy + Send + Sync> Piece<&mut [MaybeUninit<T>]> for &[T] {
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

impl<T: Number> Piece<&mut [MaybeUninit<T>]> for AnyWidth<'_, T> {
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

impl<T: Number> Piece<(&mut [MaybeUninit<i32>], &mut [MaybeUninit<T>])> for AnyEntries<'_, T> {
    #[inline]
    fn size(self) -> usize {
        self.len()
    }

    #[inline]
    fn write(self, (indices, values): (&mut [MaybeUninit<i32>], &mut [MaybeUninit<T>]), kernel: Kernel) {
        match self {
            AnyEntries::Wide(wide_indices, wide_values) => {
                wide_indices.write(indices, kernel);
                wide_values.write(values, kernel);
            }
            AnyEntries::Pairs(pairs) => T::widen_pairs(kernel, pairs, indices, values),
            AnyEntries::Alike(small, value) => {
                i32::widen(kernel, small, indices);
                assert!(values.len() == small.len());
                values.fill(MaybeUninit::new(value));
            }
        }
    }

    #[inline]
    fn prefetch_start(self) {
        self.prefetch(PREFETCHED_BYTES);
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        let both = self.get(0..at).zip(self.get(at..self.len()));
        both.expect("a piece has as many indices as values, and more than `at`")
    }
}

impl Piece<&mut [MaybeUninit<f32>]> for Floats<'_> {
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

fn append_pieces<T: Send, P: for<'a> Piece<&'a mut [MaybeUninit<T>]>>(out: &mut Vec<T>, pieces: &[P]) {
    append_with(Kernel::selected(), out, pieces);
}

fn append_with<T: Send, P: for<'a> Piece<&'a mut [MaybeUninit<T>]>>(kernel: Kernel, out: &mut Vec<T>, pieces: &[P]) {
    let total = pieces.iter().map(|piece| piece.size()).sum();
    reserve(out, total);
    // Huge pages save time only if the advice comes before the first use of the memory.
    advise_for(out, total);
    fill(kernel, &mut out.spare_capacity_mut()[..total], pieces);
    // SAFETY: memory for `total` more values is reserved, and `fill` has written each of them.
    unsafe { out.set_len(out.len() + total) };
}

/// Zeros. Their pages take no memory before other numbers are written; `None` if the system refuses the size.
///
/// ```
/// use cntkio_memory::copy::zeros;
///
/// assert_eq!(zeros::<f32>(3), Some(vec![0.0; 3]));
/// assert_eq!(zeros::<f64>(1 << 60), None);
/// ```
pub fn zeros<T: Sealed>(count: usize) -> Option<Vec<T>> {
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

/// Append the numbers in pieces of a file's bytes; no piece may end inside a number. See [`append`].
///
/// ```
/// let mut out = vec![1];
/// cntkio_memory::copy::append_stored(&mut out, &[&[2, 0, 0, 0, 255, 255, 255, 255], &[]]);
/// assert_eq!(out, [1, 2, -1]);
/// ```
pub fn append_stored<T: Number>(out: &mut Vec<T>, pieces: &[&[u8]]) {
    let size = pieces.iter().map(|piece| piece.len()).sum();
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
fn length<D>(pieces: &[impl Piece<D>]) -> usize {
    pieces.iter().map(|piece| piece.size()).sum()
}

/// Write the pieces over all of `destination`, which has their total length.
fn fill<D: Destination, P: Piece<D>>(kernel: Kernel, mut destination: D, pieces: &[P]) {
    // `unsafe` code relies on all of the destination being written.
    assert!(destination.size() == length(pieces));
    // A call outside of a pool must not start rayon's global threads, which a forked child would lack.
    if destination.num_bytes() > SHARE_BYTES && rayon::current_thread_index().is_some() {
        if let [piece] = *pieces {
            let (first, second) = piece.split_at(piece.size() / 2);
            let (first_destination, second_destination) = destination.split_at(first.size());
            rayon::join(|| fill(kernel, first_destination, &[first]), || fill(kernel, second_destination, &[second]));
            return;
        }
        let (first, second) = pieces.split_at(pieces.len() / 2);
        let (first_destination, second_destination) = destination.split_at(length(first));
        rayon::join(|| fill(kernel, first_destination, first), || fill(kernel, second_destination, second));
        return;
    }
    let pieces_ahead = if destination.num_bytes() / pieces.len().max(1) >= LONG_PIECE_BYTES { 2 } else { 8 };
    for (number, piece) in pieces.iter().enumerate() {
        if let Some(next) = pieces.get(number + pieces_ahead) {
            next.prefetch_start();
        }
        let (piece_destination, rest) = destination.split_at(piece.size());
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
