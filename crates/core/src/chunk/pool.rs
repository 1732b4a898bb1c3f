//! Memory of dropped chunks, for later chunks: fresh memory costs as much as parsing.

use super::Block;
use std::sync::Mutex;

/// Blocks of dropped chunks. A pool belongs to the chunks of one schema, whose blocks have the same columns.
#[derive(Debug, Default)]
pub struct Pool {
    spare: Mutex<Vec<Block>>,
    limit: usize,
}

impl Pool {
    /// Keeps at most `limit` bytes.
    pub fn new(limit: usize) -> Pool {
        Pool { spare: Mutex::default(), limit }
    }

    /// Take a block with its old content.
    ///
    /// It never waits for the lock: after a fork, a thread that does not exist in the child may hold the lock.
    pub fn take(&self) -> Option<Block> {
        self.spare.try_lock().ok()?.pop()
    }

    pub(super) fn give(&self, blocks: impl Iterator<Item = Block>) {
        // Blocks that find the lock taken are freed, as without a pool.
        let Ok(mut spare) = self.spare.try_lock() else { return };
        let mut room = self.limit.saturating_sub(spare.iter().map(Block::capacity_in_bytes).sum());
        // A block that is too large is freed; smaller blocks after it may still fit.
        for block in blocks {
            let size = block.capacity_in_bytes();
            if size <= room {
                room -= size;
                spare.push(block);
            }
        }
    }
}
