//! The packer's way for columns that are as compact as their files: frames as they were read, and runs of classes.
//!
//! Both are gathered in one pass over the selection. Of frames it makes a list of runs of bytes first,
//!
//! ```text
//! frames of an utterance     f0 f1 f2 f3 f4 f5 f6          window of one frame to the left, two to the right
//! sample 0                f0|f0 f1 f2                      two runs
//! sample 2                      f1 f2 f3 f4                one run
//! ```
//!
//! which are copied into the minibatch, byte order and all, where they may be in no cache, by all cores. Compressed frames,
//! and whatever is wrong, are left to [`crate::pack`].

use crate::chunk::{Column, Encoding, Frames, Samples, Values};
use crate::mlf;
use crate::pack::{Ragged, Selection};
use cntkio_simd::floats::{Floats, append_floats};
use cntkio_simd::memory::prefetch;
use std::ops::Range;

/// One stream of a selection; `None` where it is neither of the two, or not that plain.
pub(crate) fn gather(selection: Selection, stream: usize, is_sparse: bool, is_double: bool) -> Option<Ragged> {
    // Every chunk is looked into once, not for every sequence. Files that are kept as they are make chunks of one block.
    let columns: Vec<&Column> = selection
        .chunks
        .iter()
        .map(|chunk| if let [block] = chunk.blocks() { block.columns.get(stream) } else { None })
        .collect::<Option<_>>()?;
    match &columns.get(*selection.places.first()? as usize)?.samples {
        Samples::Frames(_) if !is_sparse && !is_double => frames(selection, &columns),
        Samples::Runs(_) if is_sparse && !is_double => {
            let is_single = selection.parts.is_some_and(|(_, counts)| counts.iter().all(|&count| count == 1));
            let single = if is_single { single_samples(selection, &columns) } else { None };
            single.or_else(|| runs(selection, &columns))
        }
        _ => None,
    }
}

/// One sequence: the place of its chunk, its number there, how many samples it has and which of them are taken.
struct Taken {
    place: usize,
    number: usize,
    length: usize,
    samples: Range<usize>,
}

/// The sequences of a selection; the iterator yields `None` for one that is not there.
fn taken<'a>(selection: Selection<'a>, columns: &'a [&Column]) -> impl Iterator<Item = Option<Taken>> + 'a {
    selection.places.iter().zip(selection.sequences).enumerate().map(move |(at, (&place, &number))| {
        let (place, number) = (place as usize, number as usize);
        let bounds = columns.get(place)?.sequence_offsets.get(number..)?;
        let length = (bounds.get(1)? - bounds[0]) as usize;
        let samples = match selection.parts {
            None => 0..length,
            Some((first, count)) => {
                let first = *first.get(at)? as usize;
                first..first + *count.get(at)? as usize
            }
        };
        Some(Taken { place, number, length, samples })
    })
}

/// The frames of a chunk, whose blocks of bytes begin at `first_block` of a list of all chunks'.
struct Home<'a> {
    frames: &'a Frames,
    first_block: usize,
}

fn frames(selection: Selection, columns: &[&Column]) -> Option<Ragged> {
    let (mut homes, mut blocks): (Vec<Home>, Vec<&[u8]>) = (Vec::with_capacity(columns.len()), Vec::new());
    for column in columns {
        let Samples::Frames(frames) = &column.samples else { return None };
        if frames.encodings.iter().any(|encoding| encoding.scales.is_some()) {
            return None;
        }
        homes.push(Home { frames, first_block: blocks.len() });
        blocks.extend(frames.blocks.iter().map(|block| block.as_slice()));
    }
    let mut sequence_offsets = Vec::with_capacity(selection.sequences.len() + 1);
    sequence_offsets.push(0i64);
    let mut num_samples = 0;
    let mut runs: Vec<Floats> = Vec::with_capacity(selection.sequences.len());
    let mut num_values = 0usize;
    for sequence in taken(selection, columns) {
        let Taken { place, number, length, samples } = sequence?;
        let Home { frames, first_block } = &homes[place];
        if samples.end > length && !frames.is_broadcast {
            return None;
        }
        num_samples += samples.len();
        sequence_offsets.push(num_samples as i64);
        num_values = num_values.checked_add(samples.len().checked_mul(frames.dim())?)?;
        let at = frames.places.get(number)?;
        let Encoding { is_big_endian, .. } = *frames.encodings.get(at.encoding as usize)?;
        let block = *blocks.get(first_block + at.block as usize)?;
        let bytes = block.get(at.at..at.at + 4 * frames.frame_dim * length)?;
        push_runs(frames, Floats { bytes, is_big_endian }, length, samples, &mut runs);
    }
    let mut values = Vec::new();
    values.try_reserve_exact(num_values).ok()?;
    append_floats(&mut values, &runs);
    (values.len() == num_values).then_some(Ragged { sequence_offsets, values: Values::F32(values), sparse: None })
}

/// The runs that make up some samples of a sequence of `length` frames.
#[inline]
fn push_runs<'a>(
    frames: &Frames,
    sequence: Floats<'a>,
    length: usize,
    samples: Range<usize>,
    runs: &mut Vec<Floats<'a>>,
) {
    let size = 4 * frames.frame_dim;
    let run = |from: usize, to: usize| Floats { bytes: &sequence.bytes[from * size..to * size], ..sequence };
    let (left, right) = (frames.left, frames.right);
    if length == 0 {
        return;
    }
    if left + right == 0 && !frames.is_broadcast {
        runs.push(run(samples.start, samples.end));
        return;
    }
    runs.reserve(samples.len());
    for sample in samples {
        let center = sample.min(length - 1);
        for _ in center..left {
            runs.push(run(0, 1));
        }
        runs.push(run(center.saturating_sub(left), (center + right + 1).min(length)));
        for _ in length..center + right + 1 {
            runs.push(run(length - 1, length));
        }
    }
}

fn runs(selection: Selection, columns: &[&Column]) -> Option<Ragged> {
    let count = taken(selection, columns).map(|sequence| sequence.map_or(0, |taken| taken.samples.len())).sum();
    let mut sequence_offsets = Vec::with_capacity(selection.sequences.len() + 1);
    sequence_offsets.push(0i64);
    let (mut indices, mut values) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for sequence in taken(selection, columns) {
        let Taken { place, number, length, samples } = sequence?;
        let Samples::Runs(runs) = &columns[place].samples else { return None };
        if samples.end > length {
            return None;
        }
        mlf::expand(runs, number, length, samples, |class, is_start, count| {
            indices.resize(indices.len() + count, class as i32);
            if is_start {
                values.push(2.0);
            }
            values.resize(indices.len(), 1.0);
        });
        sequence_offsets.push(values.len() as i64);
    }
    let sample_offsets = (0..=values.len() as i64).collect();
    Some(Ragged { sequence_offsets, values: Values::F32(values), sparse: Some((sample_offsets, indices)) })
}

/// One sample of each sequence: all of them are asked for before the first is looked at.
fn single_samples(selection: Selection, columns: &[&Column]) -> Option<Ragged> {
    let classes: Vec<&[u32]> = columns
        .iter()
        .map(|column| match &column.samples {
            Samples::Runs(runs) if !runs.marks_starts => Some(runs.each(&column.sequence_offsets)),
            _ => None,
        })
        .collect::<Option<_>>()?;
    let mut found: Vec<&u32> = Vec::with_capacity(selection.sequences.len());
    for sequence in taken(selection, columns) {
        let Taken { place, number, length, samples } = sequence?;
        if samples.start >= length {
            return None;
        }
        let at = columns[place].sequence_offsets[number] as usize + samples.start;
        prefetch(classes[place].get(at..=at)?, 1);
        found.push(&classes[place][at]);
    }
    let offsets: Vec<i64> = (0..=found.len() as i64).collect();
    let indices: Vec<i32> = found.into_iter().map(|&class| class as i32).collect();
    let values = Values::F32(vec![1.0; indices.len()]);
    Some(Ragged { sequence_offsets: offsets.clone(), values, sparse: Some((offsets, indices)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{Block, Bytes, Chunk, FramesPlace, Runs};
    use crate::htk;
    use proptest::prelude::*;
    use std::sync::OnceLock;

    fn chunk(lengths: &[u32], samples: Samples) -> Chunk {
        let mut sequence_offsets = vec![0];
        lengths.iter().for_each(|length| sequence_offsets.push(sequence_offsets[sequence_offsets.len() - 1] + length));
        let column = Column { sequence_offsets, samples };
        column.check(lengths.len()).unwrap();
        Chunk::new(vec![Block { num_sequences: lengths.len(), columns: vec![column] }])
    }

    /// Utterances one behind the other; every value tells its place.
    fn frames_of(lengths: &[u32], left: usize, right: usize, is_broadcast: bool, seed: u8) -> Frames {
        let count: u32 = lengths.iter().sum();
        let bytes: Vec<u8> = (0..8 * count).map(|at| (at as u8).wrapping_mul(37).wrapping_add(seed)).collect();
        let mut at = 0;
        let places = lengths.iter().enumerate().map(|(number, &length)| {
            at += 8 * length as usize;
            FramesPlace { block: 0, encoding: number as u32 % 2, at: at - 8 * length as usize }
        });
        Frames {
            frame_dim: 2,
            left,
            right,
            is_broadcast,
            places: places.collect(),
            blocks: vec![Bytes::new(bytes)],
            encodings: [true, false].map(|is_big_endian| Encoding { is_big_endian, scales: None }).to_vec(),
        }
    }

    proptest! {
        #[test]
        fn frames_of_several_chunks_are_what_the_decoder_makes_of_each(
            lengths in proptest::collection::vec(1u32..5, 1..5), left in 0usize..3, right in 0usize..4,
            is_broadcast: bool, picks in proptest::collection::vec((0u32..2, 0usize..5, 0u32..4, 0u32..4), 1..12),
            takes_parts: bool,
        ) {
            let all: Vec<Frames> = (0..2).map(|seed| frames_of(&lengths, left, right, is_broadcast, seed)).collect();
            let chunks: Vec<Chunk> = all.iter().map(|frames| chunk(&lengths, Samples::Frames(frames.clone()))).collect();
            let (mut places, mut sequences, mut firsts, mut counts) = (vec![], vec![], vec![], vec![]);
            let mut expected = Vec::new();
            for (place, number, first, count) in picks {
                let number = number % lengths.len();
                let length = lengths[number];
                let first = if is_broadcast { first } else { first.min(length) };
                let count = if is_broadcast { count } else { count.min(length - first) };
                let samples = if takes_parts { first as usize..(first + count) as usize } else { 0..length as usize };
                let mut out = vec![0f32; samples.len() * 2 * (1 + left + right)];
                htk::decode(&all[place as usize], number, length as usize, samples, &mut out);
                expected.extend(out.iter().map(|value| value.to_bits()));
                places.push(place);
                sequences.push(number as u32);
                firsts.push(first);
                counts.push(count);
            }
            let parts = takes_parts.then_some((&firsts[..], &counts[..]));
            let handles: Vec<&Chunk> = chunks.iter().collect();
            let selection = Selection { chunks: &handles, places: &places, sequences: &sequences, parts };
            let Ragged { values: Values::F32(values), sequence_offsets, .. } = gather(selection, 0, false, false).unwrap()
            else { panic!("single precision") };
            prop_assert_eq!(values.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), expected);
            prop_assert_eq!(sequence_offsets.len(), sequences.len() + 1);
        }
    }

    #[test]
    fn single_samples_of_runs_are_those_of_the_whole() {
        let runs = |marks_starts| Runs {
            dim: 9,
            offsets: vec![0, 1, 3],
            starts: vec![0, 0, 2],
            classes: vec![8, 3, 4],
            marks_starts,
            targets: None,
            each: OnceLock::new(),
        };
        for marks_starts in [false, true] {
            let chunk = chunk(&[2, 5], Samples::Runs(runs(marks_starts)));
            let gathered = |sequences: &[u32], firsts: &[u32], counts: &[u32]| {
                let places = vec![0; sequences.len()];
                let parts = Some((firsts, counts));
                let selection = Selection { chunks: &[&chunk], places: &places, sequences, parts };
                let Ragged { values: Values::F32(values), sparse: Some((offsets, indices)), .. } =
                    gather(selection, 0, true, false)?
                else {
                    panic!("sparse, single precision")
                };
                assert_eq!(offsets, (0..=indices.len() as i64).collect::<Vec<_>>());
                Some((indices, values))
            };
            let mark = if marks_starts { 2.0 } else { 1.0 };
            let single = gathered(&[1, 0, 1, 1], &[4, 1, 2, 0], &[1; 4]);
            assert_eq!(single, Some((vec![4, 8, 4, 3], vec![1.0, 1.0, mark, mark])));
            assert_eq!(gathered(&[1, 0], &[1, 0], &[3, 1]), Some((vec![3, 4, 4, 8], vec![1.0, mark, 1.0, mark])));
            assert_eq!(gathered(&[0], &[2], &[1]), None);
        }
    }
}
