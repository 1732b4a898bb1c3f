//! Shares of chunks: the sequences of each chunk that were dealt to a rank. (docs/timeline.md, "Global partitions")
//!
//! ```text
//! reads, dealt ahead    s7 s2 s9 | s1 s4 s8 | ...        chunk 0: s0 .. s4, chunk 1: s5 .. s9
//! kept by this rank     s7 s2    | s4       |
//! parts                 0: s2 s4        1: s7            in file order, as they are loaded
//! ```
//!
//! A *part* is a rank's share of a chunk in one sweep. Its number is the sweep times the number of chunks, plus the
//! chunk.

use crate::find::ChunksOf;
use crate::memory;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// A rank's share of each chunk, from the reads that were dealt so far.
#[derive(Debug)]
pub struct Shares {
    num_samples: u64,
    num_chunks: u64,
    /// By the number of the part. No user chooses the numbers, so a fast hash is safe.
    parts: FxHashMap<u64, Part>,
}

/// The sequences of a part: a bit for each sequence of the chunk.
#[derive(Debug, Default)]
struct Part {
    bits: Vec<u64>,
    /// The number of sequences before each word of bits: computed once the part is complete.
    before: Vec<u32>,
}

impl Part {
    fn add(&mut self, index: u32) {
        let word = (index / 64) as usize;
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        self.bits[word] |= 1 << (index % 64);
        // A new sequence changes the counts of all later words.
        self.before.clear();
    }

    fn complete(&mut self) {
        // With these counts, the time of a look-up does not depend on the size of the chunk.
        if self.before.is_empty() {
            let mut count = 0;
            self.before.extend(self.bits.iter().map(|word| {
                let before = count;
                count += word.count_ones();
                before
            }));
        }
    }

    /// The place of a sequence among the sequences of the part, which is complete; `None` if it is not one of them.
    fn place(&self, index: u32) -> Option<u32> {
        let (word, bit) = ((index / 64) as usize, 1u64 << (index % 64));
        let bits = *self.bits.get(word)?;
        (bits & bit != 0).then(|| self.before[word] + (bits & (bit - 1)).count_ones())
    }

    fn indices(&self) -> Vec<u32> {
        let count = self.bits.iter().map(|word| word.count_ones() as usize).sum();
        let mut indices = memory::with_room(count);
        for (&word, first) in self.bits.iter().zip((0..).step_by(64)) {
            let mut rest = word;
            while rest != 0 {
                indices.push(first + rest.trailing_zeros());
                rest &= rest - 1;
            }
        }
        indices
    }
}

/// The kept sequences of several reads.
#[derive(Debug, PartialEq)]
pub struct Kept {
    /// Their numbers.
    pub sequences: Vec<i64>,
    /// The part of each.
    pub parts: Vec<i64>,
    /// The index of each in its chunk.
    pub indices: Vec<u32>,
}

/// The sequences of several reads: their numbers, chunks and lengths.
#[derive(Debug, Clone, Copy)]
pub struct Sequences<'a> {
    /// Their numbers.
    pub sequences: &'a [i64],
    /// The chunk of each.
    pub chunks: &'a [i64],
    /// The length of each; `None`: no read extends into the next sweep, as the minibatches of pools.
    pub lengths: Option<&'a [u32]>,
}

impl Shares {
    /// No shares yet, of a table with this number of samples and chunks.
    #[must_use]
    pub fn new(num_samples: u64, num_chunks: u64) -> Shares {
        Shares { num_samples, num_chunks, parts: FxHashMap::default() }
    }

    /// Add the kept sequences of several reads, and return them.
    ///
    /// `all` describes all sequences of the reads, `bounds` the first sequence of each read and, last, their number;
    /// `ends` are the positions after each read, or any later position of its sweep than the first if the read is of a
    /// single sweep. `kept` ascends. `chunk_starts` has the first sequence of each chunk and, last, their number.
    /// `None`: a kept sequence is not in its chunk, and nothing was added.
    pub fn add(
        &mut self,
        all: Sequences,
        bounds: &[usize],
        ends: &[u64],
        kept: &[u32],
        chunk_starts: &[i64],
    ) -> Option<Kept> {
        let with_room = || memory::with_room(kept.len());
        let mut own = Kept { sequences: with_room(), parts: with_room(), indices: memory::with_room(kept.len()) };
        // `kept` ascends over all reads, so one pass finds the read of each kept sequence.
        let mut kept = kept.iter().map(|&at| at as usize).peekable();
        for (read, &end) in bounds.windows(2).zip(ends) {
            let samples_of = |span: Range<usize>| -> u64 {
                all.lengths.map_or(1, |lengths| lengths[span].iter().map(|&length| u64::from(length)).sum())
            };
            // Only the positions after the reads are known, so the positions inside a read are counted back from its
            // end.
            let (mut position, mut next) = (end.saturating_sub(samples_of(read[0]..read[1])), read[0]);
            // Most reads are in one sweep. For them, no lengths are summed up for each kept sequence.
            let is_in_one_sweep = position / self.num_samples == end.saturating_sub(1) / self.num_samples;
            let mut first_part = position / self.num_samples * self.num_chunks;
            while let Some(at) = kept.next_if(|&at| at < read[1]) {
                if !is_in_one_sweep {
                    // A read may extend into the next sweep, where the same chunk is another part.
                    position += samples_of(next..at);
                    next = at;
                    first_part = position / self.num_samples * self.num_chunks;
                }
                let (sequence, chunk) = (all.sequences[at], usize::try_from(all.chunks[at]).ok()?);
                let (first, end) = (*chunk_starts.get(chunk)?, *chunk_starts.get(chunk + 1)?);
                if !(first..end).contains(&sequence) {
                    return None;
                }
                own.sequences.push(sequence);
                own.parts.push(i64::try_from(first_part.checked_add(chunk as u64)?).ok()?);
                own.indices.push(u32::try_from(sequence - first).ok()?);
            }
        }
        for (&part, &index) in own.parts.iter().zip(&own.indices) {
            self.parts.entry(part as u64).or_default().add(index);
        }
        Some(own)
    }

    /// True if a part has any sequences.
    #[must_use]
    pub fn is_filled(&self, part: u64) -> bool {
        self.parts.contains_key(&part)
    }

    /// The sequences of a part, in file order.
    #[must_use]
    pub fn indices(&self, part: u64) -> Vec<u32> {
        self.parts.get(&part).map_or_else(Vec::new, Part::indices)
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

    /// The positions of sequences in their parts, which are complete; `None` if a sequence is not in its part.
    pub fn refs(&mut self, parts: &[i64], indices: &[u32]) -> Option<ChunksOf> {
        // Parts take the place of chunks, so the packer needs no other lists than for whole chunks.
        let mut found = ChunksOf::of(parts.iter().zip(indices).map(|(&part, &index)| (part as u64, index)));
        for part in &found.chunks {
            self.parts.get_mut(part)?.complete();
        }
        let members: Vec<&Part> = found.chunks.iter().map(|part| &self.parts[part]).collect();
        for (&part, index) in found.chunk_of.iter().zip(&mut found.numbers) {
            *index = members[part as usize].place(*index)?;
        }
        Some(found)
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
        let (sequences, chunks, lengths) = (&[3, 2, 0, 4, 1, 0, 1], &[1, 0, 0, 1, 0, 0, 0], Some(&lengths[..]));
        let all = Sequences { sequences, chunks, lengths };
        let kept = shares.add(all, &[0, 3, 7], &[6, 14], &[0, 1, 2, 4, 5, 6], &[0, 3, 5]).expect("all in their chunks");
        assert_eq!(kept.sequences, [3, 2, 0, 1, 0, 1]);
        assert_eq!(kept.parts, [1, 0, 0, 0, 2, 2]); // the last two are of the second sweep
        assert_eq!(kept.indices, [0, 2, 0, 1, 0, 1]);
        assert_eq!(shares.indices(0), [0, 1, 2]);
        assert_eq!(shares.indices(1), [0]);
        assert_eq!(shares.indices(2), [0, 1]);
        assert_eq!((shares.indices(3), shares.is_filled(2), shares.is_filled(3)), (vec![], true, false));
        let refs = shares.refs(&kept.parts, &kept.indices);
        let (chunks, firsts, chunk_of) = (vec![1, 0, 2], vec![0, 1, 4], vec![0, 1, 1, 1, 2, 2]);
        assert_eq!(refs, Some(ChunksOf { chunks, firsts, chunk_of, numbers: vec![0, 2, 0, 1, 0, 1] }));
        assert_eq!(shares.refs(&[1], &[1]), None); // not kept
        shares.forget_before(1);
        assert_eq!(shares.indices(2), [0, 1]);
        assert_eq!(shares.refs(&[1], &[0]), None);
    }

    #[test]
    fn places_count_the_sequences_before_in_chunks_of_any_size() {
        let mut part = Part::default();
        let members: Vec<u32> = (0..500).filter(|index| index * index % 7 == 2).collect();
        members.iter().rev().for_each(|&index| part.add(index));
        part.complete();
        assert_eq!(part.indices(), members);
        for index in 0..600 {
            assert_eq!(part.place(index), members.binary_search(&index).ok().map(|place| place as u32));
        }
    }
}
