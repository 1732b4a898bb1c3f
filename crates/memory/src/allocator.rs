//! An allocator that reuses the memory of large arrays.
//!
//! The first use of a page of memory costs as much as the work on it: the system has to find the page and clear it.
//! Arrays of minibatches and chunks come and go in a few sizes, and the user of the package decides when some of them
//! are freed. [`Recycler`] therefore keeps large freed blocks on two shelves, each up to a limit, and reuses them. The
//! system's allocator handles all other blocks.
//!
//! ```text
//! requested size   4 MB + 1        small shelf   24 of 1 MB
//! size class       4.25 MB         large shelf   3 of 4.25 MB, 1 of 16 MB
//! ```
//!
//! Where the system has no memory, [`Reserve`] has some megabytes. Most requests of the core are small and cannot
//! report a failure: the standard library would end the process. With the reserve the work continues up to the next
//! large request, which can report the failure, or up to its end.
//!
//! Invariant: the size of a block depends only on the requested layout, so any block can be returned to the system at
//! any time. No thread waits: if another thread is using the list of kept blocks (or was, when this process was
//! forked), the allocator asks the system instead.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

// The figures are processor times of sweeps over texts of 256 MB in minibatches of 1,024, on two cores of a Sapphire
// Rapids: medians of at least 12 turns, with a noise of about 4 %.

/// Smaller requests go to the system's allocator. With 32 KB, the time is the same; with 128 KB, a first sweep over sparse
/// text has twice the page faults.
const LEAST_BYTES: usize = 64 << 10;
/// Larger requests go to the system's allocator. With 16 MB, pixels take 1.09 times as long.
const MOST_BYTES: usize = 32 << 20;
/// Largest total size of the kept blocks of a shelf. With 16 MB on the small shelf, sparse text takes 1.04 to 1.09 times
/// as long, with 64 MB 0.92 to 1.00; minibatches of 8,192 pixels take 1.23 times as long without a large shelf, 0.95 with
/// a large shelf of 64 MB.
const KEPT_BYTES: usize = 32 << 20;
/// Largest number of kept blocks of a shelf. With half as many, the time is the same.
const NUM_SLOTS: usize = 256;
/// Size of the largest block on the shelf of small blocks. With 2 MB, pixels take 1.05 times as long, with 8 MB 1.03.
const MOST_SMALL_BYTES: usize = 4 << 20;
/// Size of a huge page. Blocks of this size and larger are backed by huge pages, if the system has them. If smaller blocks
/// share huge pages, a tenth of the page faults are left, but the time is the same and the memory 1.05 to 1.10 times as
/// large.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Blocks of this size and larger are maps of their own instead of blocks of the system's allocator. With 512 KB or 2 MB,
/// the time is the same; with 64 KB, 15 sweeps over sparse text take 0.9 of the memory but 1.01 to 1.04 times as long.
const LEAST_MAPPED_BYTES: usize = 1 << 20;
/// Alignment of every block that may be kept.
const ALIGN_BYTES: usize = 16;

// `give` would panic on a block larger than `KEPT_BYTES`, and an allocator must not panic. The largest block has the
// size class of `MOST_BYTES`, which is `MOST_BYTES` itself because that is a power of two.
const _: () = assert!(MOST_BYTES.is_power_of_two() && MOST_BYTES <= KEPT_BYTES && NUM_SLOTS > 0);

/// Size of the reserve in bytes. Pages of it that were never used take no memory.
const RESERVE_BYTES: usize = 16 << 20;
/// The part of the reserve that large requests may use. They can report a failure, so the rest is for small requests.
const RESERVE_BYTES_OF_LARGE: usize = 8 << 20;

/// Memory for requests that the system refuses: blocks one after the other. Their memory can be used again when the
/// last block is freed, or all blocks are.
#[repr(C, align(64))]
struct Reserve {
    memory: UnsafeCell<[u8; RESERVE_BYTES]>,
    /// The number of blocks in use in the upper half, and the end of the last block in the lower half: one number, so
    /// that no thread waits.
    state: AtomicU64,
}

// SAFETY: `state` gives every byte of `memory` to one block at a time.
unsafe impl Sync for Reserve {}

static RESERVE: Reserve = Reserve::new();

impl Reserve {
    const fn new() -> Reserve {
        Reserve { memory: UnsafeCell::new([0; RESERVE_BYTES]), state: AtomicU64::new(0) }
    }

    fn start(&self) -> *mut u8 {
        self.memory.get().cast()
    }

    /// True if a block is in the reserve.
    fn contains(&self, block: *mut u8) -> bool {
        (block as usize).wrapping_sub(self.start() as usize) < RESERVE_BYTES
    }

    /// Allocate a block; null if the reserve is full.
    #[cold]
    fn alloc(&self, layout: Layout) -> *mut u8 {
        let mut begin = 0;
        let limit = if layout.size() < LEAST_BYTES { RESERVE_BYTES } else { RESERVE_BYTES_OF_LARGE };
        let taken = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            let first = self.start() as usize + (state as u32) as usize;
            begin = first.checked_next_multiple_of(layout.align())? - self.start() as usize;
            let end = begin.checked_add(layout.size()).filter(|&end| end <= limit)?;
            Some(((state >> 32) + 1) << 32 | end as u64)
        });
        // SAFETY: `begin` is inside the reserve.
        if taken.is_ok() { unsafe { self.start().add(begin) } } else { std::ptr::null_mut() }
    }

    /// Free a block of this reserve.
    #[cold]
    fn dealloc(&self, block: *mut u8, layout: Layout) {
        let begin = block as usize - self.start() as usize;
        let freed = |state: u64| {
            let (count, end) = ((state >> 32) - 1, (state as u32) as usize);
            let end = if begin + layout.size() == end { begin } else { end };
            Some(if count == 0 { 0 } else { count << 32 | end as u64 })
        };
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, freed);
    }
}

/// An allocator that keeps large freed blocks; see the module.
pub struct Recycler {
    /// Mostly arrays of minibatches.
    small: Shelf,
    /// Mostly arrays of chunks. On a shared shelf, the arrays of a freed chunk would displace the arrays of many
    /// minibatches.
    large: Shelf,
}

/// Freed blocks that are kept for reuse.
struct Shelf {
    is_taken: AtomicBool,
    kept: UnsafeCell<Kept>,
}

struct Kept {
    /// Address and size in bytes of each block, the block kept for longest first.
    blocks: [(*mut u8, usize); NUM_SLOTS],
    count: usize,
    bytes: usize,
}

// SAFETY: only the thread that has set `is_taken` accesses `kept`.
unsafe impl Sync for Shelf {}

impl Default for Recycler {
    fn default() -> Recycler {
        Recycler::new()
    }
}

impl Recycler {
    /// Create an allocator without kept blocks.
    pub const fn new() -> Recycler {
        Recycler { small: Shelf::new(), large: Shelf::new() }
    }

    /// The shelf for blocks of a size.
    fn shelf(&self, size: usize) -> &Shelf {
        if size <= MOST_SMALL_BYTES { &self.small } else { &self.large }
    }

    /// Take a kept block of exactly this size, or get a new one from the system; null if the system has no memory.
    fn block(&self, size: usize) -> *mut u8 {
        self.shelf(size).take(size).unwrap_or_else(|| fresh(size))
    }

    /// Release all kept blocks. Returns their total size in bytes.
    pub fn release_kept(&self) -> usize {
        self.small.release_kept() + self.large.release_kept()
    }
}

impl Shelf {
    const fn new() -> Shelf {
        let kept = Kept { blocks: [(std::ptr::null_mut(), 0); NUM_SLOTS], count: 0, bytes: 0 };
        Shelf { is_taken: AtomicBool::new(false), kept: UnsafeCell::new(kept) }
    }

    /// Call `work` with the kept blocks; `None` without a call if another thread is using them.
    fn with<R>(&self, work: impl FnOnce(&mut Kept) -> Option<R>) -> Option<R> {
        if self.is_taken.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: `is_taken` was false, and stays true until the reference is gone, so this reference is unique.
        // `work` does not allocate, so it does not enter this function again.
        let result = work(unsafe { &mut *self.kept.get() });
        self.is_taken.store(false, Ordering::Release);
        result
    }

    /// Take a kept block of exactly this size.
    fn take(&self, size: usize) -> Option<*mut u8> {
        self.with(|kept| {
            let at = kept.blocks[..kept.count].iter().rposition(|block| block.1 == size)?;
            let block = kept.blocks[at].0;
            // Preserve the order: the first block has been kept for longest.
            kept.blocks.copy_within(at + 1..kept.count, at);
            kept.count -= 1;
            kept.bytes -= size;
            Some(block)
        })
    }

    /// Release all kept blocks. Returns their total size in bytes.
    fn release_kept(&self) -> usize {
        let last = || {
            self.with(|kept| {
                let &(block, size) = kept.blocks[..kept.count].last()?;
                kept.count -= 1;
                kept.bytes -= size;
                Some((block, size))
            })
        };
        std::iter::from_fn(last).map(|(block, size)| (release(block, size), size).1).sum()
    }

    /// Keep a block; release the blocks kept for longest until it fits.
    fn give(&self, block: *mut u8, size: usize) {
        loop {
            // `Some(None)`: the block is kept. `Some(oldest)`: the oldest block was removed and must be released.
            // `None`: another thread uses the list.
            let outcome = self.with(|kept| {
                if kept.count < NUM_SLOTS && kept.bytes + size <= KEPT_BYTES {
                    kept.blocks[kept.count] = (block, size);
                    kept.count += 1;
                    kept.bytes += size;
                    return Some(None);
                }
                let oldest = kept.blocks[0];
                kept.blocks.copy_within(1..kept.count, 0);
                kept.count -= 1;
                kept.bytes -= oldest.1;
                Some(Some(oldest))
            });
            match outcome {
                Some(None) => return,
                Some(Some((oldest, size))) => release(oldest, size),
                None => return release(block, size),
            }
        }
    }
}

/// The layout that the system's allocator gets for a block.
fn layout_of(size: usize) -> Layout {
    // SAFETY: the size of a block is at most `MOST_BYTES`, and the alignment is a power of two.
    unsafe { Layout::from_size_align_unchecked(size, ALIGN_BYTES) }
}

/// True for blocks that are maps of their own. The system's allocator would take them from larger maps, which it
/// returns late.
const fn is_mapped(size: usize) -> bool {
    cfg!(target_os = "linux") && size >= LEAST_MAPPED_BYTES
}

/// Get a new block from the system; null if the system has no memory. Mapped blocks are filled with zeros.
fn fresh(size: usize) -> *mut u8 {
    #[cfg(target_os = "linux")]
    if is_mapped(size) {
        use libc::{
            MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, madvise, mmap, munmap,
        };
        let (access, kind) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
        // Huge pages start at multiples of their size. Map one huge page more, and unmap what lies before and after the
        // aligned block.
        let mapped_size = if size >= HUGE_PAGE_BYTES { size + HUGE_PAGE_BYTES } else { size };
        // SAFETY: an anonymous map at an address of the system's choice replaces no other memory. The parts that are
        // unmapped belong to this map and are outside of the block. The advice is about the block only, and changes
        // neither its content nor its protection.
        unsafe {
            let first = mmap(std::ptr::null_mut(), mapped_size, access, kind, -1, 0);
            if first == MAP_FAILED {
                return std::ptr::null_mut();
            }
            if mapped_size == size {
                return first.cast();
            }
            let lead = (first as usize).next_multiple_of(HUGE_PAGE_BYTES) - first as usize;
            let block = first.cast::<u8>().add(lead);
            if lead > 0 {
                munmap(first, lead);
            }
            if lead < HUGE_PAGE_BYTES {
                munmap(block.add(size).cast(), HUGE_PAGE_BYTES - lead);
            }
            madvise(block.cast(), size, MADV_HUGEPAGE);
            return block;
        }
    }
    // SAFETY: the size of a block is not 0.
    unsafe { System.alloc(layout_of(size)) }
}

/// Give a block back to the system.
fn release(block: *mut u8, size: usize) {
    #[cfg(target_os = "linux")]
    if is_mapped(size) {
        // SAFETY: blocks of this size come from `fresh`, which mapped them with this size.
        unsafe { libc::munmap(block.cast(), size) };
        return;
    }
    // SAFETY: `fresh` got all other blocks from the system's allocator with this layout.
    unsafe { System.dealloc(block, layout_of(size)) };
}

/// The size of the block for a layout; `None` if the system's allocator handles the layout.
#[inline]
fn block_of(layout: Layout) -> Option<usize> {
    let size = layout.size();
    if !(LEAST_BYTES..=MOST_BYTES).contains(&size) || layout.align() > ALIGN_BYTES {
        return None;
    }
    // There are two size classes from one power of two to the next, so that kept blocks often fit. There are sixteen
    // for blocks with huge pages, because such a block takes all its memory, not only the pages that are used: with
    // eight, sparse text takes 1.03 times the memory in the same time.
    let shift = if size < HUGE_PAGE_BYTES { 1 } else { 4 };
    Some(size.next_multiple_of(1 << (size.ilog2() - shift)))
}

/// The block, or a block of the reserve if the system has refused it.
#[inline]
fn or_reserve(block: *mut u8, layout: Layout) -> *mut u8 {
    if block.is_null() { RESERVE.alloc(layout) } else { block }
}

// SAFETY: for a layout that `block_of` gives a size, the allocator returns a block of that size, new from the system or
// kept; it is at least as large and as aligned as the layout. All other layouts go to the system's allocator unchanged.
// A request that the system refuses gets a block of the reserve, which fits the layout, or null. `block_of` depends
// only on the layout, and the reserve knows its blocks by their address, so a block is freed in the way in which it was
// allocated.
unsafe impl GlobalAlloc for Recycler {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = match block_of(layout) {
            Some(size) => self.block(size),
            // SAFETY: the caller fulfils the contract of `alloc`.
            None => unsafe { System.alloc(layout) },
        };
        or_reserve(block, layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (block, is_zero) = match block_of(layout) {
            // SAFETY: the caller fulfils the contract of `alloc_zeroed`.
            None => (unsafe { System.alloc_zeroed(layout) }, true),
            Some(size) => {
                self.shelf(size).take(size).map_or_else(|| (fresh(size), is_mapped(size)), |used| (used, false))
            }
        };
        let (block, is_zero) = if block.is_null() { (RESERVE.alloc(layout), false) } else { (block, is_zero) };
        if !block.is_null() && !is_zero {
            // SAFETY: the block has at least the size of the layout.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if RESERVE.contains(pointer) {
            return RESERVE.dealloc(pointer, layout);
        }
        match block_of(layout) {
            Some(size) => self.shelf(size).give(pointer, size),
            // SAFETY: the caller fulfils the contract of `dealloc`, and the system's allocator allocated this layout.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that the new size and this alignment form a valid layout.
        let wanted = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if !RESERVE.contains(pointer) {
            match (block_of(layout), block_of(wanted)) {
                (None, None) => {
                    // SAFETY: the caller fulfils the contract of `realloc`, and the system's allocator allocated this
                    // layout.
                    let block = unsafe { System.realloc(pointer, layout, new_size) };
                    if !block.is_null() {
                        return block;
                    }
                }
                (Some(old), Some(new)) if old == new => return pointer,
                _ => {}
            }
        }
        // SAFETY: the caller fulfils the contract of `realloc`; both blocks have at least the number of bytes copied,
        // and they do not overlap.
        unsafe {
            let new_block = self.alloc(wanted);
            if !new_block.is_null() {
                new_block.copy_from_nonoverlapping(pointer, layout.size().min(new_size));
                self.dealloc(pointer, layout);
            }
            new_block
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 4).unwrap()
    }

    /// Sizes of the kept blocks, the oldest first.
    fn kept(shelf: &Shelf) -> Vec<usize> {
        let mut sizes = [0; NUM_SLOTS];
        let count = shelf.with(|kept| {
            sizes.iter_mut().zip(&kept.blocks[..kept.count]).for_each(|(size, block)| *size = block.1);
            Some(kept.count)
        });
        sizes[..count.unwrap()].to_vec()
    }

    #[test]
    fn reuses_freed_blocks_for_requests_of_the_same_size_class() {
        let recycler = Recycler::new();
        // SAFETY: blocks are used within their layouts and freed with the same layouts.
        unsafe {
            let first = recycler.alloc(layout(1_000_000));
            first.write_bytes(7, 1_000_000);
            recycler.dealloc(first, layout(1_000_000));
            assert_eq!(kept(&recycler.small), [1 << 20]);
            let other = recycler.alloc(layout(700_000));
            assert_ne!(other, first);
            let again = recycler.alloc_zeroed(layout(1_040_000));
            assert_eq!(again, first);
            assert!((0..1_040_000).all(|at| again.add(at).read() == 0));
            recycler.dealloc(again, layout(1_040_000));
            recycler.dealloc(other, layout(700_000));
            assert_eq!(kept(&recycler.small), [1 << 20, 3 << 18]);
        }
    }

    #[test]
    fn keeps_no_more_bytes_and_blocks_than_its_limits() {
        let recycler = Recycler::new();
        let free_many = |size: usize, count: usize| {
            // SAFETY: blocks are freed with their layouts.
            unsafe {
                let blocks: Vec<_> = (0..count).map(|_| recycler.alloc(layout(size))).collect();
                blocks.into_iter().for_each(|block| recycler.dealloc(block, layout(size)));
            }
        };
        free_many(LEAST_BYTES, NUM_SLOTS + 3);
        assert_eq!(kept(&recycler.small), [LEAST_BYTES; NUM_SLOTS]);
        free_many(MOST_SMALL_BYTES, KEPT_BYTES / MOST_SMALL_BYTES + 3);
        assert_eq!(kept(&recycler.small), [MOST_SMALL_BYTES; KEPT_BYTES / MOST_SMALL_BYTES]);
        free_many(MOST_BYTES / 2, 3);
        assert_eq!(kept(&recycler.large), [MOST_BYTES / 2; 2]);
        free_many(MOST_BYTES + 1, 1);
        free_many(100, 1);
        assert_eq!(kept(&recycler.large), [MOST_BYTES / 2; 2]);
    }

    #[test]
    fn freed_arrays_of_chunks_do_not_displace_arrays_of_minibatches() {
        let recycler = Recycler::new();
        let (of_minibatch, of_chunk) = (layout(1 << 20), layout(MOST_BYTES));
        // SAFETY: blocks are freed with their layouts.
        unsafe {
            let arrays: Vec<_> = (0..24).map(|_| recycler.alloc(of_minibatch)).collect();
            let chunks = [recycler.alloc(of_chunk), recycler.alloc(of_chunk)];
            arrays.into_iter().for_each(|array| recycler.dealloc(array, of_minibatch));
            chunks.into_iter().for_each(|chunk| recycler.dealloc(chunk, of_chunk));
        }
        assert_eq!(kept(&recycler.small), [1 << 20; 24]);
        assert_eq!(kept(&recycler.large), [MOST_BYTES]);
    }

    #[test]
    fn releases_all_kept_blocks_at_once() {
        let recycler = Recycler::new();
        let sizes = [LEAST_BYTES, LEAST_MAPPED_BYTES, MOST_BYTES];
        // SAFETY: blocks are freed with their layouts.
        unsafe {
            let blocks = sizes.map(|size| recycler.alloc(layout(size)));
            sizes.iter().zip(blocks).for_each(|(&size, block)| recycler.dealloc(block, layout(size)));
        }
        assert_eq!(recycler.release_kept(), sizes.iter().sum());
        assert_eq!((kept(&recycler.small), kept(&recycler.large), recycler.release_kept()), (vec![], vec![], 0));
    }

    #[test]
    fn the_reserve_serves_requests_that_the_system_refuses() {
        let recycler = Recycler::new();
        let refused = Layout::from_size_align(1 << 62, 4).unwrap();
        // SAFETY: blocks are used within their layouts and freed with the same layouts.
        unsafe {
            // Without `black_box` the compiler removes requests whose blocks are not used, and assumes that they
            // succeed.
            assert!(std::hint::black_box(recycler.alloc(refused)).is_null());
            let (small, large) = (Layout::from_size_align(100, 64).unwrap(), layout(1 << 20));
            let first = or_reserve(std::ptr::null_mut(), small);
            let second = or_reserve(std::ptr::null_mut(), large);
            assert!(RESERVE.contains(first) && RESERVE.contains(second) && (first as usize).is_multiple_of(64));
            second.write_bytes(7, 1 << 20);
            let moved = recycler.realloc(second, large, 2 << 20);
            assert!(!RESERVE.contains(moved) && (0..1 << 20).all(|at| moved.add(at).read() == 7));
            recycler.dealloc(moved, layout(2 << 20));
            recycler.dealloc(first, small);
            assert_eq!(RESERVE.state.load(Ordering::Relaxed), 0);
            let all: Vec<_> = (0..9).map(|_| or_reserve(std::ptr::null_mut(), large)).collect();
            assert!(all[..8].iter().all(|block| !block.is_null()) && all[8].is_null());
            // Only small requests, which cannot report a failure, get the rest.
            let last = or_reserve(std::ptr::null_mut(), small);
            assert!(RESERVE.contains(last));
            recycler.dealloc(last, small);
            all[..8].iter().for_each(|&block| recycler.dealloc(block, large));
            assert_eq!(RESERVE.state.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn realloc_preserves_the_content() {
        let recycler = Recycler::new();
        let mut size = 1000;
        // SAFETY: the block is used within its current layout.
        unsafe {
            let mut block = recycler.alloc(layout(size));
            (0..size).for_each(|at| block.add(at).write(at as u8));
            for new in
                [5000, LEAST_BYTES, LEAST_BYTES + 1, 3 * LEAST_BYTES, MOST_BYTES, MOST_BYTES + 1, 2 * LEAST_BYTES, 900]
            {
                block = recycler.realloc(block, layout(size), new);
                size = new;
                assert!((0..size.min(900)).all(|at| block.add(at).read() == at as u8));
            }
            recycler.dealloc(block, layout(size));
        }
    }

    #[test]
    fn concurrent_threads_never_share_a_block() {
        let recycler = Recycler::new();
        std::thread::scope(|scope| {
            for mark in 0..4u8 {
                let recycler = &recycler;
                scope.spawn(move || {
                    // Between two requests pass a few nanoseconds, so that many requests come at the same time.
                    for round in 0..100_000u32 {
                        let layout = layout(LEAST_BYTES + round as usize % 3 * LEAST_BYTES);
                        // SAFETY: the block is used within its layout.
                        unsafe {
                            let first = recycler.alloc(layout).cast::<(u8, u32)>();
                            let last = first.byte_add(layout.size() - size_of::<(u8, u32)>());
                            for place in [first, last] {
                                place.write_volatile((mark, round));
                            }
                            (0..round % 32).for_each(|_| std::hint::spin_loop());
                            assert_eq!([first, last].map(|place| place.read_volatile()), [(mark, round); 2]);
                            recycler.dealloc(first.cast(), layout);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn allocates_without_waiting_for_a_thread_that_never_continues() {
        let recycler = Recycler::new();
        recycler.small.is_taken.store(true, Ordering::Relaxed);
        // SAFETY: the block is freed with its layout.
        unsafe { recycler.dealloc(recycler.alloc(layout(LEAST_BYTES)), layout(LEAST_BYTES)) };
    }
}
