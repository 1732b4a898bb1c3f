//! Shares of chunks: which sequences of each chunk were dealt to a rank. (docs/timeline.md, "Global partitions")
//!
//! ```text
//! reads, dealt ahead    s7 s2 s9 | s1 s4 s8 | ...        chunk 0: s0 .. s4, chunk 1: s5 .. s9
//! kept by this rank     s7 s2    | s4       |
//! parts                 0: s2 s4        1: s7            in file order, as they are loaded
//! ```
//!
//! A *part* is a rank's share of a chunk in one sweep. Its number is the sweep times the number of chunks, plus the chunk.

use std::collections::HashMap;

/// A rank's share of each chunk, as far as reads were dealt.
#[derive(Debug)]
pub struct Shares {
    num_samples: u64,
    num_chunks: u64,
    parts: HashMap<u64, Part>,
}

/// The sequences of a part, by their indices in the chunk.
#[derive(Debug, Default)]
struct Part {
    indices: Vec<u32>,
    /// True if the indices ascend: they are put in order once the part is complete.
    is_in_order: bool,
}

impl Part {
    fn in_order(&mut self) -> &[u32] {
        if !self.is_in_order {
            self.indices.sort_unstable();
            self.is_in_order = true;
        }
        &self.indices
    }
}

/// A list of parts, each once, in the order of their first sequence; the first sequence of each; for each sequence the
/// index of its part in the list, and its index in the part.
pub type PartRefs = (Vec<u64>, Vec<usize>, Vec<u32>, Vec<u32>);

impl Shares {
    /// No shares, of a table with so many samples and chunks.
    #[must_use]
    pub fn new(num_samples: u64, num_chunks: u64) -> Shares {
        Shares { num_samples, num_chunks, parts: HashMap::new() }
    }

    /// Add the kept sequences of several reads, and return the part of each.
    ///
    /// `lengths`, `chunks` and `indices` (in the chunk) describe all sequences of the reads, `bounds` the first sequence
    /// of each read and, last, their number; `ends` the positions after each read. `kept` ascends.
    pub fn add(
        &mut self,
        lengths: &[u32],
        chunks: &[i64],
        indices: &[u32],
        bounds: &[usize],
        ends: &[u64],
        kept: &[u32],
    ) -> Vec<u64> {
        let mut parts = Vec::with_capacity(kept.len());
        let mut kept = kept.iter().map(|&at| at as usize).peekable();
        for (read, &end) in bounds.windows(2).zip(ends) {
            let samples: u64 = lengths[read[0]..read[1]].iter().map(|&length| u64::from(length)).sum();
            let (mut position, mut next) = (end.saturating_sub(samples), read[0]);
            let is_in_one_sweep = position / self.num_samples == end.saturating_sub(1) / self.num_samples;
            while let Some(at) = kept.next_if(|&at| at < read[1]) {
                if !is_in_one_sweep {
                    position += lengths[next..at].iter().map(|&length| u64::from(length)).sum::<u64>();
                    next = at;
                }
                let part = position / self.num_samples * self.num_chunks + chunks[at] as u64;
                let members = self.parts.entry(part).or_default();
                members.is_in_order = false;
                members.indices.push(indices[at]);
                parts.push(part);
            }
        }
        parts
    }

    /// The sequences of a part that will get no more of them, in file order.
    pub fn complete(&mut self, part: u64) -> &[u32] {
        self.parts.get_mut(&part).map_or(&[], Part::in_order)
    }

    /// Forget a part.
    pub fn forget(&mut self, part: u64) {
        self.parts.remove(&part);
    }

    /// Forget the parts of all earlier sweeps.
    pub fn forget_before(&mut self, sweep: u64) {
        let first = sweep.saturating_mul(self.num_chunks);
        self.parts.retain(|&part, _| part >= first);
    }

    /// Where sequences are in their parts, which will get no more of them; `None` if a sequence is not in its part.
    pub fn refs(&mut self, parts: &[u64], indices: &[u32]) -> Option<PartRefs> {
        let (mut listed, mut firsts) = (Vec::new(), Vec::new());
        let mut numbers: HashMap<u64, u32> = HashMap::new();
        let mut part_indices = Vec::with_capacity(parts.len());
        for (at, part) in parts.iter().enumerate() {
            let number = *numbers.entry(*part).or_insert_with(|| {
                listed.push(*part);
                firsts.push(at);
                listed.len() as u32 - 1
            });
            part_indices.push(number);
        }
        for part in &listed {
            self.parts.get_mut(part)?.in_order();
        }
        let members: Vec<&[u32]> = listed.iter().map(|part| self.parts[part].indices.as_slice()).collect();
        let place = |(&number, index)| members[number as usize].binary_search(index).ok().map(|at| at as u32);
        let indices_in_part = part_indices.iter().zip(indices).map(place).collect::<Option<_>>()?;
        Some((listed, firsts, part_indices, indices_in_part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_sequences_are_found_in_their_parts() {
        // Chunk 0 has three sequences, chunk 1 has two; a sweep has 9 samples.
        let mut shares = Shares::new(9, 2);
        let lengths = [2, 1, 3, 1, 2, 3, 2];
        let (chunks, indices) = ([1, 0, 0, 1, 0, 0, 0], [0, 2, 0, 1, 1, 0, 1]);
        let parts = shares.add(&lengths, &chunks, &indices, &[0, 3, 7], &[6, 14], &[0, 1, 2, 4, 5, 6]);
        assert_eq!(parts, [1, 0, 0, 0, 2, 2]); // the last two are of the second sweep
        assert_eq!(shares.complete(0), [0, 1, 2]);
        assert_eq!(shares.complete(1), [0]);
        assert_eq!(shares.complete(2), [0, 1]);
        assert_eq!(shares.complete(3), []);
        let refs = shares.refs(&parts, &[0, 2, 0, 1, 0, 1]);
        assert_eq!(refs, Some((vec![1, 0, 2], vec![0, 1, 4], vec![0, 1, 1, 1, 2, 2], vec![0, 2, 0, 1, 0, 1])));
        assert_eq!(shares.refs(&[1], &[1]), None); // not kept
        shares.forget_before(1);
        assert_eq!(shares.complete(2), [0, 1]);
        assert_eq!(shares.refs(&[1], &[0]), None);
    }
}
