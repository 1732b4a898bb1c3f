//! Copies of float32 values from bytes of either byte order. The bytes may be in no cache.

use crate::Kernel;
use crate::memory::{advise_for, prefetch};
use std::mem::MaybeUninit;

/// A second thread helps to copy more values than this.
const SHARE_VALUES: usize = 128 << 10;
/// Prefetch at most this many bytes of a piece; the processor prefetches the rest of a longer piece by itself.
const PREFETCHED_BYTES: usize = 1024;
/// Distance, in pieces, from the piece that is copied to the piece that is prefetched.
const PIECES_AHEAD: usize = 3;

/// Float32 values in the bytes of a file: four bytes for each. One to three bytes left over at the end are ignored.
#[derive(Clone, Copy, Debug)]
pub struct Floats<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// True if the first byte of a value is its most significant.
    pub is_big_endian: bool,
}

impl Floats<'_> {
    /// Number of values.
    #[inline]
    pub fn num_values(&self) -> usize {
        self.bytes.len() / 4
    }
}

/// Append the values of all pieces to `out`. A call on a thread of a rayon pool uses the pool's threads.
///
/// ```
/// use cntkio_simd::floats::{Floats, append_floats};
///
/// let mut out = vec![0.5];
/// append_floats(&mut out, &[Floats { bytes: &[0x3f, 0x80, 0, 0], is_big_endian: true }]);
/// assert_eq!(out, [0.5, 1.0]);
/// ```
pub fn append_floats(out: &mut Vec<f32>, pieces: &[Floats]) {
    append_with(Kernel::selected(), out, pieces);
}

fn append_with(kernel: Kernel, out: &mut Vec<f32>, pieces: &[Floats]) {
    let total = num_values(pieces);
    out.reserve(total);
    advise_for(out, total);
    fill(kernel, &mut out.spare_capacity_mut()[..total], pieces);
    // SAFETY: memory for `total` more values is reserved, and `fill` has written each of them.
    unsafe { out.set_len(out.len() + total) };
}

fn num_values(pieces: &[Floats]) -> usize {
    pieces.iter().map(Floats::num_values).sum()
}

/// Write the values of the pieces over all of `destination`, which has their total length.
fn fill(kernel: Kernel, mut destination: &mut [MaybeUninit<f32>], pieces: &[Floats]) {
    if destination.len() > SHARE_VALUES && rayon::current_thread_index().is_some() {
        if let [only] = pieces {
            let half = only.num_values() / 2;
            let (first, second) = only.bytes.split_at(4 * half);
            let (first_destination, second_destination) = destination.split_at_mut(half);
            let part = |bytes| [Floats { bytes, ..*only }];
            rayon::join(
                || fill(kernel, first_destination, &part(first)),
                || fill(kernel, second_destination, &part(second)),
            );
        } else {
            let (first, second) = pieces.split_at(pieces.len() / 2);
            let (first_destination, second_destination) = destination.split_at_mut(num_values(first));
            rayon::join(|| fill(kernel, first_destination, first), || fill(kernel, second_destination, second));
        }
        return;
    }
    for (number, piece) in pieces.iter().enumerate() {
        if let Some(next) = pieces.get(number + PIECES_AHEAD) {
            prefetch(next.bytes, PREFETCHED_BYTES);
        }
        let (piece_destination, rest) = destination.split_at_mut(piece.num_values());
        match piece.is_big_endian {
            true => kernel.floats_be(piece.bytes, piece_destination),
            false => kernel.floats_le(piece.bytes, piece_destination),
        }
        destination = rest;
    }
    assert!(destination.is_empty(), "every value of the destination is written");
}

#[cfg(test)]
mod tests {
    use super::*;

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
