//! Whole corpora: chunk behind chunk into one array for each column of each stream.
//!
//! The law: what comes out is what [`crate::pack`] gathers of all sequences in order. Chunks are copied column by
//! column and can go at once, so that the data are in memory once. Columns that are neither dense nor sparse nor small are
//! made plain first.

use crate::chunk::{Chunk, Column, Samples, Values, expect};
use crate::pack::{self, Error, Ragged, Wanted};
use crate::small::{Entries, Small};
use cntkio_simd::memory::{AnyWidth, append_any_width};
use rayon::prelude::*;

/// The streams of the chunks so far.
#[derive(Debug)]
pub struct Whole {
    streams: Vec<(usize, Ragged)>,
    num_sequences: usize,
    num_expected: usize,
}

impl Whole {
    /// None yet, and `num_expected` sequences to come.
    pub fn new(streams: &[Wanted], num_expected: usize) -> Whole {
        let empty = |&(stream, is_sparse, is_double): &Wanted| {
            let values = if is_double { Values::F64(Vec::new()) } else { Values::F32(Vec::new()) };
            let sparse = is_sparse.then(|| (vec![0], Vec::new()));
            (stream, Ragged { sequence_offsets: vec![0], values, sparse })
        };
        Whole { streams: streams.iter().map(empty).collect(), num_sequences: 0, num_expected }
    }

    /// Append a chunk, on all threads of the current pool.
    ///
    /// # Errors
    /// It lacks a stream, or has one in another form; nothing must be appended any more then.
    pub fn append(&mut self, chunk: &Chunk) -> Result<(), Error> {
        let is_taken = |column: &Column| {
            matches!(column.samples, Samples::Dense { .. } | Samples::Sparse { .. } | Samples::Small(_))
        };
        let plain = match chunk.blocks().iter().flat_map(|block| &block.columns).all(is_taken) {
            true => None,
            false => Some(pack::plain(chunk)?),
        };
        let chunk = plain.as_ref().unwrap_or(chunk);
        // What all chunks will take, going by the first: to grow again and again would cost more than to copy.
        let is_first = self.num_sequences == 0 && chunk.num_sequences() > 0;
        let ratio = self.num_expected as f64 / chunk.num_sequences() as f64;
        self.num_sequences += chunk.num_sequences();
        self.streams.par_iter_mut().try_for_each(|(stream, all)| {
            append_stream(all, chunk, *stream)?;
            if is_first {
                expect(&mut all.sequence_offsets, ratio);
                all.values.expect(ratio);
                if let Some((offsets, indices)) = &mut all.sparse {
                    expect(offsets, ratio);
                    expect(indices, ratio);
                }
            }
            Ok(())
        })
    }

    /// What was appended, for each stream.
    pub fn finish(self) -> Vec<Ragged> {
        self.streams.into_iter().map(|(_, ragged)| ragged).collect()
    }
}

fn append_stream(all: &mut Ragged, chunk: &Chunk, stream: usize) -> Result<(), Error> {
    let mut singles: Vec<AnyWidth<f32>> = Vec::new();
    let mut doubles: Vec<AnyWidth<f64>> = Vec::new();
    let mut indices: Vec<AnyWidth<i32>> = Vec::new();
    for block in chunk.blocks() {
        let column = block.columns.get(stream).ok_or(Error::Missing)?;
        append_offsets(&mut all.sequence_offsets, &column.sequence_offsets);
        let values = match (&column.samples, &mut all.sparse) {
            (Samples::Dense { values, .. }, None) => values,
            (Samples::Sparse { sample_offsets, indices: of_block, values, .. }, Some((offsets, _))) => {
                append_offsets(offsets, sample_offsets);
                indices.push(AnyWidth::Wide(of_block));
                values
            }
            (Samples::Small(Small { values, entries, becomes_double, .. }), sparse) => {
                match (entries, sparse) {
                    (None, None) => {}
                    (Some(entries), Some((offsets, _))) => {
                        append_entries(offsets, entries, column.num_samples());
                        indices.push(AnyWidth::Small(&entries.indices));
                    }
                    _ => return Err(Error::Mixed),
                }
                if *becomes_double {
                    doubles.push(AnyWidth::Small(values));
                } else {
                    singles.push(AnyWidth::Small(values));
                }
                continue;
            }
            _ => return Err(Error::Mixed),
        };
        match values {
            Values::F32(values) => singles.push(AnyWidth::Wide(values)),
            Values::F64(values) => doubles.push(AnyWidth::Wide(values)),
        }
    }
    match &mut all.values {
        Values::F32(values) if doubles.is_empty() => append_any_width(values, &singles),
        Values::F64(values) if singles.is_empty() => append_any_width(values, &doubles),
        _ => return Err(Error::Mixed),
    }
    if let Some((_, all)) = &mut all.sparse {
        append_any_width(all, &indices);
    }
    Ok(())
}

/// Append offsets that count from 0 to those that end with what came before.
fn append_offsets(all: &mut Vec<i64>, offsets: &[u32]) {
    let before = all[all.len() - 1];
    all.extend(offsets.iter().skip(1).map(|&offset| before + i64::from(offset)));
}

fn append_entries(all: &mut Vec<i64>, entries: &Entries, num_samples: usize) {
    match &entries.sample_offsets {
        Some(offsets) => append_offsets(all, offsets),
        None => {
            let before = all[all.len() - 1];
            all.extend((1..=num_samples as i64).map(|entry| before + entry));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Block;
    use crate::pack::{Selection, gather};

    fn block(first: u32, num_sequences: u32) -> Block {
        let sequence_offsets: Vec<u32> = (0..=num_sequences).map(|number| number * 2).collect();
        let num_samples = 2 * num_sequences;
        let dense = Samples::Dense {
            dim: 3,
            values: Values::F32((0..3 * num_samples).map(|value| (first + value) as f32).collect()),
        };
        let sample_offsets: Vec<u32> = (0..=num_samples).map(|sample| sample * (sample + 1) / 2).collect();
        let num_entries = sample_offsets[num_samples as usize];
        let sparse = Samples::Sparse {
            dim: 1000,
            sample_offsets,
            indices: (0..num_entries).map(|entry| entry as i32).collect(),
            values: Values::F64((0..num_entries).map(|entry| f64::from(first + entry)).collect()),
        };
        let columns = [dense, sparse]
            .map(|samples| Column { sequence_offsets: sequence_offsets.clone(), samples })
            .into_iter()
            .collect();
        Block { num_sequences: num_sequences as usize, columns }
    }

    #[test]
    fn chunks_in_order_are_what_the_packer_gathers_of_all() {
        let chunks = [
            Chunk::new(vec![block(0, 4), block(90, 0), block(7, 3)]),
            Chunk::new(vec![]),
            Chunk::new(vec![block(500, 9)]),
        ];
        let streams = [(0, false, false), (1, true, true)];
        let mut whole = Whole::new(&streams, 16);
        chunks.iter().for_each(|chunk| whole.append(chunk).unwrap());
        let (mut places, mut sequences) = (vec![], vec![]);
        for (place, chunk) in chunks.iter().enumerate() {
            places.extend(vec![place as u32; chunk.num_sequences()]);
            sequences.extend(0..chunk.num_sequences() as u32);
        }
        let handles: Vec<&Chunk> = chunks.iter().collect();
        let selection = Selection { chunks: &handles, places: &places, sequences: &sequences, parts: None };
        let expected: Vec<Ragged> = streams
            .iter()
            .map(|&(stream, is_sparse, is_double)| gather(selection, stream, is_sparse, is_double).unwrap())
            .collect();
        assert_eq!(whole.finish(), expected);
    }

    #[test]
    fn another_form_is_refused() {
        let chunk = Chunk::new(vec![block(0, 4)]);
        for streams in [(0, true, false), (0, false, true), (1, false, true), (1, true, false), (2, false, false)] {
            assert!(Whole::new(&[streams], 4).append(&chunk).is_err());
        }
    }
}
