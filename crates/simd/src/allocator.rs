//! Memory for large arrays that is used again.
//!
//! A page that a process touches for the first time costs as much as the work on it: the system has to find it and to
//! clear it. Arrays of minibatches and of chunks come and go in a few sizes, some of them handed to whoever reads, who
//! lets go of them when it likes. [`Recycler`] therefore keeps large blocks that were given back, up to a limit, and
//! hands them out again; all else is the system's allocator's.
//!
//! ```text
//! size asked for   4 MB + 1        what is kept  [4 MB .. 4.5 MB) 3 blocks
//! its class        4.5 MB                        [14 MB .. 16 MB) 1 block
//! ```
//!
//! The law: the size of a block follows from what was asked for alone, so that any block can go back to the system at
//! any time. Nobody waits: where another thread (or the one that a fork has left behind) is just looking, the system is
//! asked.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// Smaller blocks are the system's alone.
const LEAST: usize = 128 << 10;
/// Larger ones, too.
const MOST: usize = 32 << 20;
/// Bytes that are kept at most.
const LIMIT: usize = 32 << 20;
/// Blocks that are kept at most.
const NUM_SLOTS: usize = 64;
/// Blocks of this size and more are backed by huge pages, where the system has them; the size of one.
const HUGE_PAGE: usize = 2 << 20;
/// Blocks of this size and more are asked of the system itself.
const LEAST_MAPPED: usize = 1 << 20;
/// Of every block that may be kept.
const ALIGN: usize = 16;

// `give` would panic on a block that is larger than `LIMIT`, and an allocator must not panic: the largest size of a block
// is the class of `MOST`, which is `MOST` itself as long as that is a power of two.
const _: () = assert!(MOST.is_power_of_two() && MOST <= LIMIT && NUM_SLOTS > 0);

/// An allocator that keeps large blocks; see the module.
pub struct Recycler {
    is_taken: AtomicBool,
    kept: UnsafeCell<Kept>,
}

struct Kept {
    blocks: [(*mut u8, usize); NUM_SLOTS],
    count: usize,
    bytes: usize,
}

// SAFETY: `kept` is only touched by the thread that has set `is_taken`.
unsafe impl Sync for Recycler {}

impl Default for Recycler {
    fn default() -> Recycler {
        Recycler::new()
    }
}

impl Recycler {
    /// An allocator that keeps nothing yet.
    pub const fn new() -> Recycler {
        let kept = Kept { blocks: [(std::ptr::null_mut(), 0); NUM_SLOTS], count: 0, bytes: 0 };
        Recycler { is_taken: AtomicBool::new(false), kept: UnsafeCell::new(kept) }
    }

    /// Call `work` with what is kept, unless another thread is just doing so.
    fn with<R>(&self, work: impl FnOnce(&mut Kept) -> Option<R>) -> Option<R> {
        if self.is_taken.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: `is_taken` was false and is true until the reference is gone: there is no other. `work` does not
        // allocate, so that it does not come here again.
        let found = work(unsafe { &mut *self.kept.get() });
        self.is_taken.store(false, Ordering::Release);
        found
    }

    /// A block of just that size that was given back.
    fn take(&self, size: usize) -> Option<*mut u8> {
        self.with(|kept| {
            let at = kept.blocks[..kept.count].iter().rposition(|block| block.1 == size)?;
            let block = kept.blocks[at].0;
            // The order is kept: the first has been there longest.
            kept.blocks.copy_within(at + 1..kept.count, at);
            kept.count -= 1;
            kept.bytes -= size;
            Some(block)
        })
    }

    /// Keep a block, and let go of those that have been kept for longest where there is no room for it.
    fn give(&self, block: *mut u8, size: usize) {
        loop {
            // Room, or else the oldest block; nothing where another thread is here.
            let made_room = self.with(|kept| {
                if kept.count < NUM_SLOTS && kept.bytes + size <= LIMIT {
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
            match made_room {
                Some(None) => return,
                Some(Some((oldest, size))) => release(oldest, size),
                None => return release(block, size),
            }
        }
    }
}

/// The layout that the system's allocator gets for a block.
fn layout_of(size: usize) -> Layout {
    // SAFETY: sizes of blocks are at most `MOST`, and the alignment is a power of two.
    unsafe { Layout::from_size_align_unchecked(size, ALIGN) }
}

/// Whether a block is mapped for itself: the system's allocator would cut it out of more, which it would keep for long.
const fn is_mapped(size: usize) -> bool {
    cfg!(target_os = "linux") && size >= LEAST_MAPPED
}

/// A block from the system; null if it has none. Mapped ones are zero.
fn fresh(size: usize) -> *mut u8 {
    #[cfg(target_os = "linux")]
    if is_mapped(size) {
        use libc::{
            MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, madvise, mmap, munmap,
        };
        let (access, kind) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
        // Huge pages start at multiples of their size: there is one more to choose from, and what is not needed goes
        // back.
        let room = if size >= HUGE_PAGE { size + HUGE_PAGE } else { size };
        // SAFETY: memory of no file at a place that the system chooses touches nothing that is there. What is given
        // back is part of that memory, and outside of the block. The advice is about the block alone, and changes
        // neither its content nor whether it may be used.
        unsafe {
            let first = mmap(std::ptr::null_mut(), room, access, kind, -1, 0);
            if first == MAP_FAILED {
                return std::ptr::null_mut();
            }
            if room == size {
                return first.cast();
            }
            let lead = (first as usize).next_multiple_of(HUGE_PAGE) - first as usize;
            let block = first.cast::<u8>().add(lead);
            if lead > 0 {
                munmap(first, lead);
            }
            if lead < HUGE_PAGE {
                munmap(block.add(size).cast(), HUGE_PAGE - lead);
            }
            madvise(block.cast(), size, MADV_HUGEPAGE);
            return block;
        }
    }
    // SAFETY: its size is not 0.
    unsafe { System.alloc(layout_of(size)) }
}

/// Give a block back to the system.
fn release(block: *mut u8, size: usize) {
    #[cfg(target_os = "linux")]
    if is_mapped(size) {
        // SAFETY: only blocks that `fresh` has mapped with this size are kept, or come here to be kept.
        unsafe { libc::munmap(block.cast(), size) };
        return;
    }
    // SAFETY: the others came from there with this layout.
    unsafe { System.dealloc(block, layout_of(size)) };
}

/// The size of the block that a large layout gets; None for all that is the system's allocator's alone.
#[inline]
fn block_of(layout: Layout) -> Option<usize> {
    let size = layout.size();
    if !(LEAST..=MOST).contains(&size) || layout.align() > ALIGN {
        return None;
    }
    // Between a power of two and the next there are two classes, so that what is kept fits; eight where blocks have
    // huge pages, of which all memory is taken, not only what is touched.
    let shift = if size < HUGE_PAGE { 1 } else { 3 };
    Some(size.next_multiple_of(1 << (size.ilog2() - shift)))
}

// SAFETY: a layout that `block_of` knows gets a block of the size that it names, which is at least as large and as
// aligned, fresh from the system, or one of that size that was given back; all others go to the system's allocator as
// they are. Since `block_of` depends on nothing but the layout, a block goes back as what it came from.
unsafe impl GlobalAlloc for Recycler {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match block_of(layout) {
            Some(size) => self.take(size).unwrap_or_else(|| fresh(size)),
            // SAFETY: as the caller promises.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(size) = block_of(layout) else {
            // SAFETY: as the caller promises.
            return unsafe { System.alloc_zeroed(layout) };
        };
        let used = self.take(size);
        let block = used.unwrap_or_else(|| fresh(size));
        if !block.is_null() && (used.is_some() || !is_mapped(size)) {
            // SAFETY: the block has that size at least.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match block_of(layout) {
            Some(size) => self.give(pointer, size),
            // SAFETY: as the caller promises.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises a size that is a layout's with this alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (block_of(layout), block_of(wanted)) {
            // SAFETY: as the caller promises.
            (None, None) => unsafe { System.realloc(pointer, layout, new_size) },
            (Some(old), Some(new)) if old == new => pointer,
            // SAFETY: as the caller promises; the sizes are those of the two blocks, of which none reaches into the
            // other.
            _ => unsafe {
                let made = self.alloc(wanted);
                if !made.is_null() {
                    made.copy_from_nonoverlapping(pointer, layout.size().min(new_size));
                    self.dealloc(pointer, layout);
                }
                made
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 4).unwrap()
    }

    /// Blocks that are kept, the oldest first.
    fn kept(recycler: &Recycler) -> Vec<usize> {
        let mut sizes = [0; NUM_SLOTS];
        let count = recycler.with(|kept| {
            sizes.iter_mut().zip(&kept.blocks[..kept.count]).for_each(|(size, block)| *size = block.1);
            Some(kept.count)
        });
        sizes[..count.unwrap()].to_vec()
    }

    #[test]
    fn a_block_that_was_given_back_is_used_again_for_its_class() {
        let recycler = Recycler::new();
        // SAFETY: blocks are used within their layouts and go back with them.
        unsafe {
            let first = recycler.alloc(layout(1_000_000));
            first.write_bytes(7, 1_000_000);
            recycler.dealloc(first, layout(1_000_000));
            assert_eq!(kept(&recycler), [1 << 20]);
            let other = recycler.alloc(layout(700_000));
            assert_ne!(other, first);
            let again = recycler.alloc_zeroed(layout(1_040_000));
            assert_eq!(again, first);
            assert!((0..1_040_000).all(|at| again.add(at).read() == 0));
            recycler.dealloc(again, layout(1_040_000));
            recycler.dealloc(other, layout(700_000));
            assert_eq!(kept(&recycler), [1 << 20, 3 << 18]);
        }
    }

    #[test]
    fn no_more_is_kept_than_the_limit() {
        let recycler = Recycler::new();
        // SAFETY: blocks go back with their layouts.
        unsafe {
            let blocks: Vec<_> = (0..NUM_SLOTS + 3).map(|_| recycler.alloc(layout(LEAST))).collect();
            blocks.into_iter().for_each(|block| recycler.dealloc(block, layout(LEAST)));
            assert_eq!(kept(&recycler), [LEAST; NUM_SLOTS]);
            let large = layout(LIMIT - LEAST);
            recycler.dealloc(recycler.alloc(large), large);
            assert!(kept(&recycler).iter().sum::<usize>() <= LIMIT);
            let (too_large, small) = (layout(MOST + 1), layout(100));
            let before = kept(&recycler);
            recycler.dealloc(recycler.alloc(too_large), too_large);
            recycler.dealloc(recycler.alloc(small), small);
            assert_eq!(kept(&recycler), before);
        }
    }

    #[test]
    fn a_block_grows_and_shrinks_with_what_is_in_it() {
        let recycler = Recycler::new();
        let mut size = 1000;
        // SAFETY: the block is used within its layout, which changes with it.
        unsafe {
            let mut block = recycler.alloc(layout(size));
            (0..size).for_each(|at| block.add(at).write(at as u8));
            for new in [5000, LEAST, LEAST + 1, 3 * LEAST, MOST, MOST + 1, 2 * LEAST, 900] {
                block = recycler.realloc(block, layout(size), new);
                size = new;
                assert!((0..size.min(900)).all(|at| block.add(at).read() == at as u8));
            }
            recycler.dealloc(block, layout(size));
        }
    }

    #[test]
    fn threads_that_give_and_take_at_once_get_blocks_of_their_own() {
        let recycler = Recycler::new();
        std::thread::scope(|scope| {
            for mark in 0..4u8 {
                let recycler = &recycler;
                scope.spawn(move || {
                    for round in 0..2000usize {
                        let layout = layout(LEAST + round % 3 * LEAST);
                        // SAFETY: the block is used within its layout.
                        unsafe {
                            let block = recycler.alloc(layout);
                            block.write_bytes(mark, 64);
                            block.add(layout.size() - 64).write_bytes(mark, 64);
                            std::thread::yield_now();
                            assert!((0..64).all(|at| block.add(at).read() == mark));
                            assert!((1..=64).all(|at| block.add(layout.size() - at).read() == mark));
                            recycler.dealloc(block, layout);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn nobody_waits_for_a_thread_that_never_comes_back() {
        let recycler = Recycler::new();
        recycler.is_taken.store(true, Ordering::Relaxed);
        // SAFETY: the block goes back with its layout.
        unsafe { recycler.dealloc(recycler.alloc(layout(LEAST)), layout(LEAST)) };
    }
}
