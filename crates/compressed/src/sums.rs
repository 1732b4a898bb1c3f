//! Checksums of frames, from a table that is not part of the frames.

use crate::inflate::Damage;
use std::sync::Arc;
use xxhash_rust::xxh64::Xxh64;

/// The checksums of the frames of a text: for each frame with text, in order, the end of its text, and the low 32 bits
/// of the XXH64 of its text.
#[derive(Debug)]
pub struct Sums {
    ends: Vec<u64>,
    sums: Vec<u32>,
}

impl Sums {
    /// The checksums of frames: as many ends, which ascend, as sums.
    #[must_use]
    pub fn new(ends: Vec<u64>, sums: Vec<u32>) -> Option<Arc<Sums>> {
        (ends.is_sorted() && ends.len() == sums.len()).then(|| Arc::new(Sums { ends, sums }))
    }
}

/// The checksum of a frame whose text is being written.
pub(super) struct Check {
    sums: Arc<Sums>,
    hash: Xxh64,
    num_bytes: u64,
}

impl Check {
    /// At the beginning of a frame.
    pub(super) fn new(sums: Arc<Sums>) -> Check {
        Check { sums, hash: Xxh64::new(0), num_bytes: 0 }
    }

    /// Add text of the frame.
    pub(super) fn add(&mut self, text: &[u8]) {
        self.hash.update(text);
        self.num_bytes += text.len() as u64;
    }

    /// Compare the checksum at the end of a frame, which is at an offset of the text.
    pub(super) fn end(&mut self, text: u64) -> Result<(), Damage> {
        if self.num_bytes == 0 {
            return Ok(()); // a skippable frame, or a frame without text
        }
        let begin = text - self.num_bytes;
        let entry = self.sums.ends.partition_point(|&end| end <= begin);
        match self.sums.ends.get(entry) {
            Some(&end) if end == text => {}
            Some(&end) if end > text => return Ok(()), // the entry is for several frames
            _ => return Err(Damage("a frame holds more text than its table says".to_owned())),
        }
        let (sum, expected) = (self.hash.digest() as u32, self.sums.sums[entry]);
        if sum != expected {
            let what = format!("the text of a frame has the checksum {sum:08x}, but its table says {expected:08x}");
            return Err(Damage(what));
        }
        self.hash.reset(0);
        self.num_bytes = 0;
        Ok(())
    }
}
