//! Copying float32 values out of bytes of either order, and out of memory that may be in no cache.

use crate::memory::{advise_for, prefetch};
use crate::{Kernel, Level};
use std::mem::MaybeUninit;

/// Values that are worth a second thread.
const SHARE: usize = 128 << 10;
/// Bytes of a run that are asked for ahead; the processor sees by itself how a longer one goes on.
const MOST_AHEAD: usize = 1024;
/// How many runs ahead of its turn a run is asked for.
const AHEAD: usize = 3;

/// Float32 values as they stand in a file: four bytes each, and what is left over does not count.
#[derive(Clone, Copy, Debug)]
pub struct Floats<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// Whether the first byte of a value is its highest.
    pub is_big_endian: bool,
}

impl Floats<'_> {
    /// Number of values.
    #[inline]
    pub fn num_values(&self) -> usize {
        self.bytes.len() / 4
    }
}

/// Append the values of all runs to `out`; on several threads where it is called on those of a rayon pool.
///
/// ```
/// use cntkio_simd::floats::{Floats, append_floats};
///
/// let mut out = vec![0.5];
/// append_floats(&mut out, &[Floats { bytes: &[0x3f, 0x80, 0, 0], is_big_endian: true }]);
/// assert_eq!(out, [0.5, 1.0]);
/// ```
pub fn append_floats(out: &mut Vec<f32>, runs: &[Floats]) {
    append_with(Kernel::selected(), out, runs);
}

fn append_with(kernel: Kernel, out: &mut Vec<f32>, runs: &[Floats]) {
    let total = num_values(runs);
    out.reserve(total);
    advise_for(out, total);
    fill(kernel, &mut out.spare_capacity_mut()[..total], runs);
    // SAFETY: there is room for `total` values more, and `fill` has written each of them.
    unsafe { out.set_len(out.len() + total) };
}

fn num_values(runs: &[Floats]) -> usize {
    runs.iter().map(Floats::num_values).sum()
}

/// Write the values of the runs over all of `room`, which has room for just so many.
fn fill(kernel: Kernel, mut room: &mut [MaybeUninit<f32>], runs: &[Floats]) {
    if room.len() > SHARE && rayon::current_thread_index().is_some() {
        if let [only] = runs {
            let half = only.num_values() / 2;
            let (first, second) = only.bytes.split_at(4 * half);
            let (first_room, second_room) = room.split_at_mut(half);
            let part = |bytes| [Floats { bytes, ..*only }];
            rayon::join(|| fill(kernel, first_room, &part(first)), || fill(kernel, second_room, &part(second)));
        } else {
            let (first, second) = runs.split_at(runs.len() / 2);
            let (first_room, second_room) = room.split_at_mut(num_values(first));
            rayon::join(|| fill(kernel, first_room, first), || fill(kernel, second_room, second));
        }
        return;
    }
    for (number, run) in runs.iter().enumerate() {
        if let Some(next) = runs.get(number + AHEAD) {
            prefetch(next.bytes, MOST_AHEAD);
        }
        let (mine, others) = room.split_at_mut(run.num_values());
        write(kernel, mine, *run);
        room = others;
    }
    assert!(room.is_empty(), "every value of the room is written");
}

#[inline]
fn write(kernel: Kernel, room: &mut [MaybeUninit<f32>], run: Floats) {
    match kernel.0 {
        Level::Scalar => write_scalar(room, run),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a Kernel of this level exists only where avx2::is_available() held (Kernel::available).
        Level::Avx2 => unsafe { write_avx2(room, run) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
        Level::Avx512 => unsafe { write_avx512(room, run) },
    }
}

/// The compiler makes one shuffle of the reversal where the processor has it, and a plain copy of the other order.
#[inline(always)]
fn write_scalar(room: &mut [MaybeUninit<f32>], run: Floats) {
    let values = room.iter_mut().zip(run.bytes.as_chunks::<4>().0);
    if run.is_big_endian {
        values.for_each(|(out, value)| _ = out.write(f32::from_be_bytes(*value)));
    } else {
        values.for_each(|(out, value)| _ = out.write(f32::from_le_bytes(*value)));
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn write_avx2(room: &mut [MaybeUninit<f32>], run: Floats) {
    write_scalar(room, run);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn write_avx512(room: &mut [MaybeUninit<f32>], run: Floats) {
    write_scalar(room, run);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_reads_both_orders_alone_and_on_several_threads() {
        let bytes: Vec<u8> = (0..1_200_003u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let runs: Vec<Floats> = (0..3000usize)
            .map(|number| (number * 397 % 5000, number * 37 % 900, number % 3 > 0))
            .chain([(1, bytes.len() - 1, true), (0, 3, true), (2, 4, false)])
            .map(|(at, size, is_big_endian)| Floats { bytes: &bytes[at..at + size], is_big_endian })
            .collect();
        let value = |run: &Floats, value: &[u8; 4]| match run.is_big_endian {
            true => u32::from_be_bytes(*value),
            false => u32::from_le_bytes(*value),
        };
        let expected: Vec<u32> =
            runs.iter().flat_map(|run| run.bytes.as_chunks().0.iter().map(|one| value(run, one))).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for kernel in Kernel::available() {
            let (mut alone, mut together) = (vec![1.0f32], vec![1.0f32]);
            append_with(kernel, &mut alone, &runs);
            pool.install(|| append_with(kernel, &mut together, &runs));
            let bits = |values: &[f32]| values[1..].iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            assert!(bits(&alone) == expected && bits(&together) == expected, "{}", kernel.name());
        }
    }

    #[test]
    fn nothing_is_appended_of_no_runs() {
        let mut out = Vec::new();
        append_floats(&mut out, &[]);
        append_floats(&mut out, &[Floats { bytes: &[1, 2, 3], is_big_endian: false }]);
        assert!(out.is_empty());
    }
}
