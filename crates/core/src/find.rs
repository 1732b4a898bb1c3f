//! Where the sequences of a selection lie: which utterance a frame is of, which chunk a sequence is in.
//!
//! The law: tables in, columns out, one pass over what is selected; no data is looked at.

/// For each item the last of the ascending `starts` that is not behind it, and how far behind that the item is.
pub fn locate(starts: &[i64], items: &[i64]) -> (Vec<i64>, Vec<u32>) {
    items
        .iter()
        .map(|&item| {
            let at = last_not_behind(starts, item);
            (at as i64, starts.get(at).map_or(0, |start| item - start) as u32)
        })
        .unzip()
}

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
    /// For each sequence the place of its chunk.
    pub places: Vec<u32>,
    /// For each sequence its number in the chunk.
    pub numbers: Vec<u32>,
}

/// Find the chunks of sequences. `partners` tells which sequence is meant by each; without it they are meant themselves.
/// `chunk_starts` ascends from 0. None if a sequence is not there.
pub fn places(sequences: &[i64], partners: Option<&[u32]>, chunk_starts: &[i64]) -> Option<Places> {
    let mut found = Places {
        chunks: Vec::new(),
        places: Vec::with_capacity(sequences.len()),
        numbers: Vec::with_capacity(sequences.len()),
    };
    let (mut chunk, mut range) = (0, 0..0);
    let (mut lowest, mut highest) = (usize::MAX, 0);
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
            (lowest, highest) = (lowest.min(chunk), highest.max(chunk));
        }
        found.places.push(chunk as u32);
        found.numbers.push((number - range.start) as u32);
    }
    if found.places.is_empty() {
        return Some(found);
    }
    let mut ranks = vec![u32::MAX; highest - lowest + 1];
    for place in &mut found.places {
        let rank = &mut ranks[*place as usize - lowest];
        if *rank == u32::MAX {
            *rank = found.chunks.len() as u32;
            found.chunks.push(*place as usize);
        }
        *place = *rank;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_located_in_their_utterances() {
        assert_eq!(locate(&[0, 3, 4, 9], &[0, 2, 3, 8]), (vec![0, 0, 1, 2], vec![0, 2, 0, 4]));
    }

    #[test]
    fn chunks_stand_in_the_order_in_which_they_come_first() {
        let starts = [0, 2, 2, 5, 6];
        let found = places(&[4, 5, 0, 2, 1], None, &starts).unwrap();
        assert_eq!(found, Places { chunks: vec![2, 3, 0], places: vec![0, 1, 2, 0, 2], numbers: vec![2, 0, 0, 0, 1] });
        let joined = places(&[1, 0], Some(&[5, 1]), &starts).unwrap();
        assert_eq!(joined, Places { chunks: vec![0, 3], places: vec![0, 1], numbers: vec![1, 0] });
        assert_eq!(places(&[], None, &starts), Some(Places::default()));
        for missing in [-1, 6, i64::MAX] {
            assert_eq!(places(&[0, missing], None, &starts), None);
        }
        assert_eq!(places(&[2], Some(&[0, 1]), &starts), None);
        assert_eq!(places(&[0], None, &[]), None);
    }
}
