//! Hints: to the processor, the values that are needed next; to the compiler, a number whose origin stays
//! hidden.

const CACHE_LINE_BYTES: usize = 64;

/// Ask the processor to load at most `most` bytes of `values` into its cache. Affects only speed.
#[inline]
pub fn prefetch<T>(values: &[T], most: usize) {
    for byte in (0..size_of_val(values).min(most)).step_by(CACHE_LINE_BYTES) {
        prefetch_from(values.as_ptr().cast::<u8>().wrapping_add(byte));
    }
}

/// Ask the processor to load the first of `values` into its cache. Affects only speed.
#[inline(always)]
pub fn prefetch_first<T>(values: &[T]) {
    prefetch_from(values.as_ptr().cast());
}

/// Ask the processor to load the cache line of an address, which need not be valid.
#[inline(always)]
pub(crate) fn prefetch_from(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing, and does nothing for an invalid address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch reads nothing, and does nothing for an invalid address.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Return `number`, and hide from the compiler how it was computed.
///
/// An empty `asm!` keeps the number in a register; `std::hint::black_box` would store it in memory.
#[inline(always)]
pub(crate) fn opaque(mut number: u64) -> u64 {
    // SAFETY: the assembly text is a comment, not an instruction.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) number, options(pure, nomem, nostack, preserves_flags)) };
    number
}
