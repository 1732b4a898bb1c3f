//! Checksums of blocks of bytes.

use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 64 << 10;

/// The checksum of each block, on all threads of the current pool. The last block may be shorter.
#[must_use]
pub fn check_sums(bytes: &[u8]) -> Vec<u64> {
    bytes.par_chunks(BLOCK_BYTES).with_min_len(BLOCKS_PER_THREAD).map(xxh3_64).collect()
}

/// True if each block of the bytes has its checksum. This works on the calling thread.
#[must_use]
pub fn are_sound(bytes: &[u8], sums: &[u64]) -> bool {
    let blocks = bytes.chunks(BLOCK_BYTES);
    // `zip` alone would accept a list of too few checksums.
    blocks.len() == sums.len() && blocks.zip(sums).all(|(block, &sum)| xxh3_64(block) == sum)
}

/// Checking fewer blocks takes less time than waking a thread.
const BLOCKS_PER_THREAD: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_changes_the_check_sum_of_its_block() {
        for size in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES] {
            let mut bytes: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
            let sums = check_sums(&bytes);
            assert!(are_sound(&bytes, &sums));
            for at in (0..size).step_by(997) {
                bytes[at] ^= 1 << (at % 8);
                let other = check_sums(&bytes);
                let different: Vec<usize> = (0..sums.len()).filter(|&block| sums[block] != other[block]).collect();
                assert_eq!(different, [at / BLOCK_BYTES]);
                assert!(!are_sound(&bytes, &sums));
                bytes[at] ^= 1 << (at % 8);
            }
            assert!(!are_sound(&bytes, &[&sums[..], &[0]].concat()));
        }
    }
}
