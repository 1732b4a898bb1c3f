//! Whole chunks: all chunks of a corpus in one array for each column of each stream, and one chunk with its columns in
//! full width.
//!
//! Invariant: the arrays are what [`gather_all`](super::gather_all) makes of all sequences in order. Chunks are copied
//! column by column and can be dropped at once, so that the data are in memory only once.

use super::{Located, Wanted, append};
use crate::chunk::{Block, Chunk, Column, Error, Ragged, RaggedEntries, Samples, expect};
use rayon::prelude::*;

/// The streams of the chunks so far.
#[derive(Debug)]
pub struct Whole {
    streams: Vec<(Wanted, Ragged)>,
    num_sequences: usize,
    num_expected: usize,
}

impl Whole {
    /// No chunks yet; about `num_expected` sequences will come.
    pub fn new(streams: &[Wanted], num_expected: usize) -> Whole {
        let empty = |&wanted: &Wanted| (wanted, Ragged::empty(wanted.is_sparse, wanted.is_double, 0));
        Whole { streams: streams.iter().map(empty).collect(), num_sequences: 0, num_expected }
    }

    /// Append a chunk, on all threads of the current pool.
    ///
    /// # Errors
    /// The chunk lacks a stream, or has it in another form. After an error nothing more may be appended.
    pub fn append(&mut self, chunk: &Chunk) -> Result<(), Error> {
        let located = all_sequences(chunk)?;
        // What all chunks will take, going by the first: growing again and again would cost more than copying.
        let is_first = self.num_sequences == 0 && chunk.num_sequences() > 0;
        let ratio = self.num_expected as f64 / chunk.num_sequences() as f64;
        self.num_sequences += chunk.num_sequences();
        self.streams.par_iter_mut().try_for_each(|(wanted, all)| {
            append(&located, None, *wanted, all)?;
            if is_first {
                expect(&mut all.sequence_offsets, ratio);
                all.values.expect(ratio);
                if let Some(RaggedEntries { sample_offsets, indices }) = &mut all.entries {
                    expect(sample_offsets, ratio);
                    expect(indices, ratio);
                }
            }
            Ok(())
        })
    }

    /// The streams of all chunks that were appended.
    pub fn finish(self) -> Vec<Ragged> {
        self.streams.into_iter().map(|(_, ragged)| ragged).collect()
    }
}

/// All sequences of a chunk.
fn all_sequences<'a>(chunk: &'a Chunk) -> Result<Located<'a>, Error> {
    if let Some(name) = chunk.changed() {
        return Err(Error::Changed(name.to_owned()));
    }
    let of_block = |block: &'a Block| (0..block.num_sequences).map(move |sequence| (block, sequence));
    Ok(Located::InBlocks(chunk.blocks().iter().flat_map(of_block).collect()))
}

/// Copy a chunk into one whose columns are dense or sparse in full width.
pub fn in_full_width(chunk: &Chunk) -> Result<Chunk, Error> {
    let located = all_sequences(chunk)?;
    let offsets = |offsets: Vec<i64>| -> Result<Vec<u32>, Error> {
        offsets.into_iter().map(|at| u32::try_from(at).map_err(|_| Error::TooLarge)).collect()
    };
    let column = |(stream, column): (usize, &Column)| {
        let form = column.samples.form();
        let mut ragged = Ragged::empty(form.is_sparse, form.is_double, located.len());
        let wanted = Wanted { stream, is_sparse: form.is_sparse, is_double: form.is_double };
        append(&located, None, wanted, &mut ragged)?;
        let Ragged { sequence_offsets, values, entries } = ragged;
        let samples = match entries {
            None => Samples::Dense { dim: form.dim, values },
            Some(RaggedEntries { sample_offsets, indices }) => {
                Samples::Sparse { dim: form.dim, sample_offsets: offsets(sample_offsets)?, indices, values }
            }
        };
        Ok(Column { sequence_offsets: offsets(sequence_offsets)?, samples })
    };
    let first = chunk.blocks().first().map_or(&[][..], |block| &block.columns);
    let columns = first.iter().enumerate().map(column).collect::<Result<Vec<Column>, Error>>()?;
    Ok(Chunk::new(vec![Block { num_sequences: chunk.num_sequences(), columns }]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Values;
    use crate::pack::{Selection, gather};

    fn wanted((stream, is_sparse, is_double): (usize, bool, bool)) -> Wanted {
        Wanted { stream, is_sparse, is_double }
    }

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
    fn chunks_in_order_are_what_the_packer_gathers_of_all_sequences() {
        let chunks = [
            Chunk::new(vec![block(0, 4), block(90, 0), block(7, 3)]),
            Chunk::new(vec![]),
            Chunk::new(vec![block(500, 9)]),
        ];
        let streams = [(0, false, false), (1, true, true)].map(wanted);
        let mut whole = Whole::new(&streams, 16);
        chunks.iter().for_each(|chunk| whole.append(chunk).unwrap());
        let (mut chunk_of, mut sequences) = (vec![], vec![]);
        for (number, chunk) in chunks.iter().enumerate() {
            chunk_of.extend(vec![number as u32; chunk.num_sequences()]);
            sequences.extend(0..chunk.num_sequences() as u32);
        }
        let handles: Vec<&Chunk> = chunks.iter().collect();
        let selection = Selection { chunks: &handles, chunk_of: &chunk_of, sequences: &sequences, parts: None };
        let expected: Vec<Ragged> = streams.iter().map(|&wanted| gather(selection, wanted).unwrap()).collect();
        assert_eq!(whole.finish(), expected);
    }

    #[test]
    fn another_form_is_refused() {
        let chunk = Chunk::new(vec![block(0, 4)]);
        for streams in [(0, true, false), (0, false, true), (1, false, true), (1, true, false), (2, false, false)] {
            assert!(Whole::new(&[wanted(streams)], 4).append(&chunk).is_err());
        }
    }
}
