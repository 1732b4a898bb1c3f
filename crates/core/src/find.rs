//! Look-ups of the utterance of each frame of a selection, and of the chunk of each sequence.
//!
//! Invariant: tables in, columns out, in one pass over the selection; no data is read.

use crate::memory;
use crate::owners::Owners;
use rustc_hash::FxHashMap;

#[inline]
fn last_not_after(starts: &[i64], item: i64) -> usize {
    // An item before the first start has no owner; the caller checks the range of the result.
    starts.partition_point(|&start| start <= item).saturating_sub(1)
}

/// The chunks, or parts of chunks, of the sequences of a selection, each once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ChunksOf {
    /// The chunks, in the order of their first sequences in the selection.
    pub chunks: Vec<u64>,
    /// For each chunk its first sequence, counted in the selection.
    pub firsts: Vec<usize>,
    /// For each sequence its chunk, counted in `chunks`.
    pub chunk_of: Vec<u32>,
    /// For each sequence its number in the chunk.
    pub numbers: Vec<u32>,
}

/// Number of chunks that are found without the hash table: sequences in random order come from a few chunks in turn,
/// and the chunks of a corpus have consecutive numbers.
const NUM_RECENT: usize = 64;

impl ChunksOf {
    /// Make the lists, given the chunk of each sequence and its number in the chunk.
    pub fn of(places: impl ExactSizeIterator<Item = (u64, u32)>) -> ChunksOf {
        // No user chooses the numbers of chunks, so a fast hash is safe.
        let mut indices: FxHashMap<u64, u32> = FxHashMap::default();
        // At first each place has a number that belongs to the next place, so no chunk is found there.
        let mut recent: [(u64, u32); NUM_RECENT] = std::array::from_fn(|place| (place as u64 + 1, 0));
        let count = places.len();
        let mut found =
            ChunksOf { chunk_of: memory::with_room(count), numbers: memory::with_room(count), ..ChunksOf::default() };
        for (at, (chunk, number)) in places.enumerate() {
            let known = &mut recent[chunk as usize % NUM_RECENT];
            // A write for each sequence would delay the next read of the same place.
            if known.0 != chunk {
                let index = *indices.entry(chunk).or_insert_with(|| {
                    found.chunks.push(chunk);
                    found.firsts.push(at);
                    found.chunks.len() as u32 - 1
                });
                *known = (chunk, index);
            }
            found.chunk_of.push(known.1);
            found.numbers.push(number);
        }
        found
    }
}

/// The distinct chunks of each of several reads, in the order of their first sequences, given the chunk of each
/// sequence.
///
/// `bounds` has the first sequence of each read and, last, the number of sequences. `None` if a range does not exist.
pub fn chunks_of_reads(chunk_of: &[u32], bounds: &[usize]) -> Option<Vec<Vec<u32>>> {
    // With the number of the latest read of each chunk, the table need not be cleared for each read.
    let mut latest: FxHashMap<u32, usize> = FxHashMap::default();
    let mut reads = Vec::new();
    memory::reserve(&mut reads, bounds.len());
    for (read, pair) in bounds.windows(2).enumerate() {
        let (mut chunks, mut last) = (Vec::new(), None);
        for &chunk in chunk_of.get(pair[0]..pair[1])? {
            // Neighbours are often of one chunk, so the hash table is asked only when the chunk changes.
            if last != Some(chunk) && latest.insert(chunk, read) != Some(read) {
                memory::push(&mut chunks, chunk);
            }
            last = Some(chunk);
        }
        reads.push(chunks);
    }
    Some(reads)
}

/// Find the chunks of sequences or, with `partners`, of the partner of each sequence.
///
/// `chunk_starts` ascends from 0. `None` if a sequence does not exist.
pub fn chunks_of(sequences: &[i64], partners: Option<&[u32]>, chunk_starts: &[i64]) -> Option<ChunksOf> {
    let mut places = memory::with_room(sequences.len());
    // The range is empty, so the first sequence is looked up.
    let (mut chunk, mut range) = (0, 0..0);
    for &sequence in sequences {
        let number = match partners {
            Some(partners) => i64::from(*partners.get(usize::try_from(sequence).ok()?)?),
            None => sequence,
        };
        // In file order, most sequences are in the chunk of the sequence before.
        if !range.contains(&number) {
            chunk = last_not_after(chunk_starts, number);
            range = *chunk_starts.get(chunk)?..*chunk_starts.get(chunk + 1)?;
            if !range.contains(&number) {
                return None;
            }
        }
        // A table has fewer than 2^32 sequences.
        places.push((chunk as u64, (number - range.start) as u32));
    }
    Some(ChunksOf::of(places.into_iter()))
}

/// Finds frames: their utterance, and the chunk of the utterance in each of several corpora.
#[derive(Debug)]
pub struct FrameFinder {
    /// The first frame of each utterance and, last, the number of frames.
    starts: Vec<i64>,
    utterances: Owners,
    /// For each corpus the chunk of each utterance, and its number there.
    homes: Vec<Vec<(u32, u32)>>,
}

/// The utterances of frames, and their chunks.
#[derive(Debug, PartialEq, Eq)]
pub struct FramesFound {
    /// The utterance of each.
    pub utterances: Vec<i64>,
    /// Each frame, counted in its utterance.
    pub frames: Vec<u32>,
    /// For each corpus the chunks of the utterances.
    pub chunks: Vec<ChunksOf>,
}

impl FrameFinder {
    /// `starts` ascends from 0 to the number of frames. `corpora` has the arguments of [`chunks_of`] for each
    /// corpus. `None` if an utterance does not exist.
    pub fn new(starts: &[i64], corpora: &[(Option<&[u32]>, &[i64])]) -> Option<FrameFinder> {
        let num_utterances = starts.len().checked_sub(1)?;
        if num_utterances == 0 || starts[0] != 0 || !starts.is_sorted() {
            return None;
        }
        let all: Vec<i64> = (0..num_utterances as i64).collect();
        let home = |&(partners, chunk_starts): &(Option<&[u32]>, &[i64])| {
            let found = chunks_of(&all, partners, chunk_starts)?;
            let chunks = found.chunk_of.iter().map(|&chunk| found.chunks[chunk as usize] as u32);
            Some(chunks.zip(found.numbers).collect())
        };
        let homes = corpora.iter().map(home).collect::<Option<_>>()?;
        Some(FrameFinder { utterances: Owners::new(starts), starts: starts.to_vec(), homes })
    }

    /// Find frames; `None` if a frame does not exist.
    pub fn find(&self, frames: &[i64]) -> Option<FramesFound> {
        let count = frames.len();
        let (mut utterances, mut numbers) = (memory::with_room(count), memory::with_room(count));
        for &frame in frames {
            let utterance = self.utterances.find(&self.starts, frame)? as usize;
            // For a position beyond the end, `Owners::find` may return any owner.
            if frame >= self.starts[utterance + 1] {
                return None;
            }
            utterances.push(utterance as i64);
            numbers.push((frame - self.starts[utterance]) as u32);
        }
        // The chunk of each utterance was looked up once, in `new`, so a frame needs no search for its chunk.
        let of_corpus = |homes: &Vec<(u32, u32)>| {
            let home = |&utterance: &i64| {
                let (chunk, number) = homes[utterance as usize];
                (chunk.into(), number)
            };
            ChunksOf::of(utterances.iter().map(home))
        };
        let chunks = self.homes.iter().map(of_corpus).collect();
        Some(FramesFound { utterances, frames: numbers, chunks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_read_lists_its_chunks_once() {
        let chunk_of = [0, 0, 1, 0, 2, 2, 1];
        assert_eq!(chunks_of_reads(&chunk_of, &[0, 4, 4, 7]), Some(vec![vec![0, 1], vec![], vec![2, 1]]));
        assert_eq!(chunks_of_reads(&chunk_of, &[3, 8]), None);
        assert_eq!(chunks_of_reads(&chunk_of, &[4, 3]), None);
    }

    #[test]
    fn chunks_stand_in_the_order_in_which_they_come_first() {
        let starts = [0, 2, 2, 5, 6];
        let found = chunks_of(&[4, 5, 0, 2, 1], None, &starts).unwrap();
        let (chunks, firsts) = (vec![2, 3, 0], vec![0, 1, 2]);
        assert_eq!(found, ChunksOf { chunks, firsts, chunk_of: vec![0, 1, 2, 0, 2], numbers: vec![2, 0, 0, 0, 1] });
        let joined = chunks_of(&[1, 0], Some(&[5, 1]), &starts).unwrap();
        assert_eq!(
            joined,
            ChunksOf { chunks: vec![0, 3], firsts: vec![0, 1], chunk_of: vec![0, 1], numbers: vec![1, 0] }
        );
        assert_eq!(chunks_of(&[], None, &starts), Some(ChunksOf::default()));
        for missing in [-1, 6, i64::MAX] {
            assert_eq!(chunks_of(&[0, missing], None, &starts), None);
        }
        assert_eq!(chunks_of(&[2], Some(&[0, 1]), &starts), None);
        assert_eq!(chunks_of(&[0], None, &[]), None);
    }

    proptest! {
        #[test]
        fn frames_are_found_in_their_utterances(
            lengths in proptest::collection::vec(prop_oneof![0i64..4, 1i64..300], 1..80),
            per_chunk in 1usize..9, seed: u64,
        ) {
            let mut starts = vec![0];
            starts.extend(lengths.iter().scan(0, |sum, length| { *sum += length; Some(*sum) }));
            let count = lengths.len();
            let partners: Vec<u32> = (0..count as u32).rev().collect();
            let mut chunk_starts: Vec<i64> = (0..count as i64).step_by(per_chunk).collect();
            chunk_starts.push(count as i64);
            let finder = FrameFinder::new(&starts, &[(None, &chunk_starts), (Some(&partners), &[0, count as i64])]).unwrap();
            let frames: Vec<i64> = (0..starts[count]).map(|at| at * (seed % 1000) as i64 % starts[count]).collect();
            let found = finder.find(&frames).unwrap();
            for (at, &frame) in frames.iter().enumerate() {
                let utterance = starts.partition_point(|&start| start <= frame) - 1;
                prop_assert_eq!(found.utterances[at], utterance as i64);
                prop_assert_eq!(i64::from(found.frames[at]), frame - starts[utterance]);
            }
            prop_assert_eq!(&found.chunks[0], &chunks_of(&found.utterances, None, &chunk_starts).unwrap());
            prop_assert_eq!(&found.chunks[1], &chunks_of(&found.utterances, Some(&partners), &[0, count as i64]).unwrap());
            for missing in [-1, starts[count], i64::MAX] {
                prop_assert_eq!(finder.find(&[0, missing]), None);
            }
        }
    }

    #[test]
    fn a_finder_of_what_is_not_there_is_refused() {
        assert!(FrameFinder::new(&[0, 3], &[(Some(&[2]), &[0, 2])]).is_none());
        for starts in [&[][..], &[0], &[1, 2], &[0, 2, 1]] {
            assert!(FrameFinder::new(starts, &[]).is_none());
        }
    }
}
