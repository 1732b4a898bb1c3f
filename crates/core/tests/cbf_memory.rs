//! Parsing a binary chunk takes at most ten times its bytes of memory, however damaged it is.

use cntkio_core::cbf::{self, Stream};
use cntkio_core::chunk::Bytes;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does all the work; only sizes are recorded.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        MOST.fetch_max(now, Ordering::SeqCst);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes taken at most while `work` ran, beyond those before.
fn most_taken(work: impl FnOnce()) -> usize {
    let before = NOW.load(Ordering::SeqCst);
    MOST.store(before, Ordering::SeqCst);
    work();
    MOST.load(Ordering::SeqCst) - before
}

/// Sequences of one dense and one sparse sample each, in either layout.
fn chunk(num_sequences: usize, is_documented: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |numbers: &[u32]| numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    if is_documented {
        put(&vec![7; 2 * num_sequences]);
        put(&[num_sequences as u32]);
        put(&vec![9; num_sequences]);
        put(&vec![3; num_sequences]);
        put(&(0..=num_sequences as u32).collect::<Vec<_>>());
    } else {
        put(&vec![1; num_sequences]);
        (0..num_sequences).for_each(|_| put(&[1, 7, 7]));
        (0..num_sequences).for_each(|_| put(&[1, 1, 9, 3, 1]));
    }
    bytes
}

#[test]
fn no_flipped_bit_takes_more_than_ten_times_the_chunk() {
    // A separate thread pool takes memory when it is first used.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for becomes_double in [false, true] {
        let stream = |is_sparse, dim| Stream { is_sparse, dim, is_double: false, becomes_double };
        let streams = [stream(false, 2), stream(true, 10)];
        for is_documented in [false, true] {
            let mut bytes = chunk(64, is_documented);
            let check = |bytes: &[u8], num_sequences: usize| {
                let most_samples = 2 * bytes.len() as u64;
                let parse = || match is_documented {
                    false => cbf::parse(Bytes::new(bytes.to_vec()), num_sequences, &streams, None).is_ok(),
                    true => cbf::parse_documented(bytes, num_sequences, &streams, most_samples, 1 << 20, None).is_ok(),
                };
                let mut is_fine = false;
                let taken = most_taken(|| is_fine = pool.install(parse));
                assert!(taken <= 10 * bytes.len() + 4096, "{taken} bytes for {}", bytes.len());
                is_fine
            };
            assert!(check(&bytes, 64));
            for num_sequences in [0, 1, 63, 65, 1000, u32::MAX as usize] {
                check(&bytes, num_sequences);
            }
            for bit in 0..8 * bytes.len() {
                bytes[bit / 8] ^= 1 << (bit % 8);
                check(&bytes, 64);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            for size in 0..bytes.len() {
                assert!(!check(&bytes[..size], 64));
            }
        }
    }
}
