//! Whole chunks: all chunks of a corpus in one array for each column of each stream, and one chunk with its columns in
//! full width.
//!
//! Invariant: the arrays are what [`gather_all`](super::gather_all) makes of all sequences in order. Chunks are copied
//! column by column and can be dropped at once, so that the data are in memory only once.

use super::stream::Stream;
use super::{Selection, Sources, Wanted};
use crate::chunk::{Block, Chunk, Column, Error, Form, Ragged, RaggedEntries, Samples, expect};
use crate::memory;
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
        let empty = |&wanted: &Wanted| (wanted, Ragged::empty(wanted.is_sparse, wanted.number, 0));
        Whole { streams: streams.iter().map(empty).collect(), num_sequences: 0, num_expected }
    }

    /// Append a chunk, on all threads of the current pool.
    ///
    /// # Errors
    /// The chunk lacks a stream, or has it in another form. After an error nothing more may be appended.
    pub fn append(&mut self, chunk: &Chunk) -> Result<(), Error> {
        let wanted: Vec<Wanted> = self.streams.iter().map(|(wanted, _)| *wanted).collect();
        let chunks = [chunk];
        let sources = Sources::new(&chunks, &wanted)?;
        let located = sources.all();
        // Estimate the memory of all chunks from the first: growing again and again would cost more than copying.
        let is_first = self.num_sequences == 0 && chunk.num_sequences() > 0;
        let ratio = self.num_expected as f64 / chunk.num_sequences() as f64;
        self.num_sequences += chunk.num_sequences();
        // Each stream grows a vector of its own, so the threads share the streams.
        self.streams.par_iter_mut().zip(&sources.streams).try_for_each(|((_, all), stream)| {
            stream.append(&located, None, all)?;
            if is_first {
                expect(&mut all.sequence_offsets, ratio);
                all.values.expect(ratio);
                if let Some(RaggedEntries { sample_offsets, indices }) = &mut all.entries {
                    expect(sample_offsets, ratio);
                    expect(indices, ratio);
                }
            }
            Ok(())
        })?;
        sources.check_unchanged()
    }

    /// The streams of all chunks that were appended.
    pub fn finish(self) -> Vec<Ragged> {
        self.streams.into_iter().map(|(_, ragged)| ragged).collect()
    }
}

/// Copy a chunk into one whose columns are dense or sparse in full width: all its sequences, or some.
///
/// # Errors
/// [`Error::LongChunk`], or the selection cannot be packed.
pub fn in_full_width(chunk: &Chunk, own: Option<&[u32]>) -> Result<Chunk, Error> {
    let num_columns = chunk.blocks().first().map_or(0, |block| block.columns.len());
    copied(chunk, own, 0..num_columns)
}

/// Copy a chunk into one with these of its columns, in this order, dense or sparse in full width.
///
/// # Errors
/// [`Error::LongChunk`], or [`Error::Missing`]: the chunk has no such column.
pub fn in_order(chunk: &Chunk, columns: &[usize]) -> Result<Chunk, Error> {
    copied(chunk, None, columns.iter().copied())
}

fn copied(chunk: &Chunk, own: Option<&[u32]>, columns: impl Iterator<Item = usize>) -> Result<Chunk, Error> {
    let offsets = |offsets: Vec<i64>| -> Result<Vec<u32>, Error> {
        let mut narrow = memory::with_room(offsets.len());
        for at in offsets {
            // A chunk has offsets of 32 bits, but the packer makes offsets of 64 bits, since a chunk can have several
            // blocks.
            narrow.push(u32::try_from(at).map_err(|_| Error::LongChunk)?);
        }
        Ok(narrow)
    };
    let first = chunk.blocks().first().map_or(&[][..], |block| &block.columns);
    let form = |stream: usize| first.get(stream).map(|column| (stream, column.samples.form()));
    let forms: Vec<(usize, Form)> = columns.map(form).collect::<Option<_>>().ok_or(Error::Missing)?;
    let wanted = |&(stream, Form { is_sparse, number, .. }): &(usize, Form)| Wanted { stream, is_sparse, number };
    let chunks = [chunk];
    let sources = Sources::new(&chunks, &forms.iter().map(wanted).collect::<Vec<_>>())?;
    let chunk_of = memory::collected(std::iter::repeat_n(0, own.map_or(0, <[u32]>::len)));
    let located = match own {
        None => sources.all(),
        Some(sequences) => sources.locate(Selection { chunk_of: &chunk_of, sequences, parts: None })?,
    };
    let column = |(stream, &(_, Form { dim, .. })): (&Stream, &(usize, Form))| {
        let Ragged { sequence_offsets, values, entries } = stream.gather(&located, None)?;
        let samples = match entries {
            None => Samples::Dense { dim, values },
            Some(RaggedEntries { sample_offsets, indices }) => {
                Samples::Sparse { dim, sample_offsets: offsets(sample_offsets)?, indices, values }
            }
        };
        Ok(Column { sequence_offsets: offsets(sequence_offsets)?, samples })
    };
    let columns = sources.streams.iter().zip(&forms).map(column).collect::<Result<Vec<Column>, Error>>()?;
    sources.check_unchanged()?;
    Ok(Chunk::new(vec![Block { num_sequences: located.num_sequences, columns }]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{NumberType, Values};
    use crate::pack::gather_all;

    fn wanted((stream, is_sparse, is_double): (usize, bool, bool)) -> Wanted {
        Wanted { stream, is_sparse, number: NumberType::float(is_double) }
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
        let selection = Selection { chunk_of: &chunk_of, sequences: &sequences, parts: None };
        assert_eq!(Ok(whole.finish()), gather_all(&handles, selection, &streams));
    }

    #[test]
    fn columns_are_copied_in_any_order() {
        let chunk = Chunk::new(vec![block(0, 4), block(90, 2)]);
        let whole = in_full_width(&chunk, None).unwrap();
        assert_eq!(in_order(&chunk, &[0, 1]), Ok(whole.clone()));
        let other = in_order(&chunk, &[1, 0]).unwrap();
        assert_eq!(other.blocks()[0].columns[0], whole.blocks()[0].columns[1]);
        assert_eq!(other.blocks()[0].columns[1], whole.blocks()[0].columns[0]);
        assert_eq!(in_order(&chunk, &[2]), Err(Error::Missing));
    }

    #[test]
    fn another_form_is_refused() {
        let chunk = Chunk::new(vec![block(0, 4)]);
        for streams in [(0, true, false), (0, false, true), (1, false, true), (1, true, false), (2, false, false)] {
            assert!(Whole::new(&[wanted(streams)], 4).append(&chunk).is_err());
        }
    }
}
