//! Where the sequences of a selection lie: which utterance a frame is of, which chunk a sequence is in.
//!
//! The law: tables in, columns out, one pass over what is selected; no data is looked at.

use crate::owners::Owners;

#[inline]
fn last_not_behind(starts: &[i64], item: i64) -> usize {
    starts.partition_point(|&start| start <= item).saturating_sub(1)
}

/// The chunks of sequences in the order in which they come first, and for each sequence the place of its chunk in that
/// list and its number in the chunk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The chunks.
    pub chunks: Vec<usize>,
    /// The first sequence of each, as a place in the selection.
    pub firsts: Vec<usize>,
    /// For each sequence the place of its chunk.
    pub places: Vec<u32>,
    /// For each sequence its number in the chunk.
    pub numbers: Vec<u32>,
}

impl Places {
    /// Of the chunk of each sequence, below `num_chunks`, and its number there.
    fn of(mut chunks: Vec<u32>, numbers: Vec<u32>) -> Places {
        let (lowest, highest) = chunks.iter().fold((u32::MAX, 0), |(low, high), &one| (low.min(one), high.max(one)));
        let mut ranks = vec![u32::MAX; (highest + 1).saturating_sub(lowest) as usize];
        let (mut which, mut firsts) = (Vec::new(), Vec::new());
        for (at, chunk) in chunks.iter_mut().enumerate() {
            let rank = &mut ranks[(*chunk - lowest) as usize];
            if *rank == u32::MAX {
                *rank = which.len() as u32;
                which.push(*chunk as usize);
                firsts.push(at);
            }
            *chunk = *rank;
        }
        Places { chunks: which, firsts, places: chunks, numbers }
    }
}

/// Find the chunks of sequences. `partners` tells which sequence is meant by each; without it they are meant themselves.
/// `chunk_starts` ascends from 0. None if a sequence is not there.
pub fn places(sequences: &[i64], partners: Option<&[u32]>, chunk_starts: &[i64]) -> Option<Places> {
    let (mut chunks, mut numbers) = (Vec::with_capacity(sequences.len()), Vec::with_capacity(sequences.len()));
    let (mut chunk, mut range) = (0, 0..0);
    for &sequence in sequences {
        let number = match partners {
            Some(partners) => i64::from(*partners.get(usize::try_from(sequence).ok()?)?),
            None => sequence,
        };
        if !range.contains(&number) {
            chunk = last_not_behind(chunk_starts, number);
            range = *chunk_starts.get(chunk)?..*chunk_starts.get(chunk + 1)?;
            if !range.contains(&number) {
                return None;
            }
        }
        chunks.push(chunk as u32);
        numbers.push((number - range.start) as u32);
    }
    Some(Places::of(chunks, numbers))
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

/// Where frames are.
#[derive(Debug, PartialEq, Eq)]
pub struct FramesFound {
    /// The utterance of each.
    pub utterances: Vec<i64>,
    /// Which of its frames each is.
    pub frames: Vec<u32>,
    /// The same in each corpus.
    pub places: Vec<Places>,
}

impl FrameFinder {
    /// `starts` ascends from 0 to the number of frames. For each corpus there is what [`places`] takes. None if an
    /// utterance is not there.
    pub fn new(starts: &[i64], corpora: &[(Option<&[u32]>, &[i64])]) -> Option<FrameFinder> {
        let num_utterances = starts.len().checked_sub(1)?;
        if num_utterances == 0 || starts[0] != 0 || !starts.is_sorted() {
            return None;
        }
        let all: Vec<i64> = (0..num_utterances as i64).collect();
        let home = |&(partners, chunk_starts): &(Option<&[u32]>, &[i64])| {
            let found = places(&all, partners, chunk_starts)?;
            let chunks = found.places.iter().map(|&place| found.chunks[place as usize] as u32);
            Some(chunks.zip(found.numbers).collect())
        };
        let homes = corpora.iter().map(home).collect::<Option<_>>()?;
        Some(FrameFinder { utterances: Owners::new(starts), starts: starts.to_vec(), homes })
    }

    /// Find frames; None if one is not there.
    pub fn find(&self, frames: &[i64]) -> Option<FramesFound> {
        let count = frames.len();
        let (mut utterances, mut numbers) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for &frame in frames {
            let utterance = self.utterances.find(&self.starts, frame)? as usize;
            if frame >= self.starts[utterance + 1] {
                return None;
            }
            utterances.push(utterance as i64);
            numbers.push((frame - self.starts[utterance]) as u32);
        }
        let of_corpus = |homes: &Vec<(u32, u32)>| {
            let (chunks, numbers) = utterances.iter().map(|&utterance| homes[utterance as usize]).unzip();
            Places::of(chunks, numbers)
        };
        let places = self.homes.iter().map(of_corpus).collect();
        Some(FramesFound { utterances, frames: numbers, places })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn chunks_stand_in_the_order_in_which_they_come_first() {
        let starts = [0, 2, 2, 5, 6];
        let found = places(&[4, 5, 0, 2, 1], None, &starts).unwrap();
        let (chunks, firsts) = (vec![2, 3, 0], vec![0, 1, 2]);
        assert_eq!(found, Places { chunks, firsts, places: vec![0, 1, 2, 0, 2], numbers: vec![2, 0, 0, 0, 1] });
        let joined = places(&[1, 0], Some(&[5, 1]), &starts).unwrap();
        assert_eq!(joined, Places { chunks: vec![0, 3], firsts: vec![0, 1], places: vec![0, 1], numbers: vec![1, 0] });
        assert_eq!(places(&[], None, &starts), Some(Places::default()));
        for missing in [-1, 6, i64::MAX] {
            assert_eq!(places(&[0, missing], None, &starts), None);
        }
        assert_eq!(places(&[2], Some(&[0, 1]), &starts), None);
        assert_eq!(places(&[0], None, &[]), None);
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
            prop_assert_eq!(&found.places[0], &places(&found.utterances, None, &chunk_starts).unwrap());
            prop_assert_eq!(&found.places[1], &places(&found.utterances, Some(&partners), &[0, count as i64]).unwrap());
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
