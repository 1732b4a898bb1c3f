//! Every kind of samples packs in the same way as a slow, obvious packer: whole sequences and parts, alone, spread over
//! a table, as a whole corpus, and after a copy in full width.

use cntkio_core::cbf::{self, Selected, Stream, Written};
use cntkio_core::chunk::{
    Block, Bytes, Chunk, Column, Encoding, FrameStart, Frames, Narrow, Numbers, Runs, Samples, Small, Targets, Values,
};
use cntkio_core::pack::{
    self, Cell, Error, Job, NumberType, Parts, Ragged, RaggedEntries, Selection, Sources, Table, Wanted, Whole,
};
use proptest::prelude::*;
use std::sync::OnceLock;

/// A sample as it is delivered: its values, with an index each if it is sparse.
type Sample = Vec<(i32, f64)>;

/// The kinds of samples; of some there are several forms.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Wide,
    Small,
    /// True if the file has double precision.
    Stored(bool),
    /// With frames to the left and right, and perhaps in 16 bits.
    Frames(usize, usize, bool),
    Runs(bool),
    Targets,
}

/// Chunks, and the samples that they hold.
#[derive(Debug, Clone)]
struct Corpus {
    is_sparse: bool,
    number: NumberType,
    chunks: Vec<Chunk>,
    /// The truth: chunk, sequence, sample.
    samples: Vec<Vec<Vec<Sample>>>,
}

const DIM: usize = 3;

fn offsets(lengths: impl Iterator<Item = usize>) -> Vec<u32> {
    let mut offsets = vec![0];
    lengths.for_each(|length| offsets.push(offsets[offsets.len() - 1] + length as u32));
    offsets
}

/// Whole numbers below 256 as values of a type.
fn values(numbers: Vec<u8>, number: NumberType) -> Values {
    match number {
        NumberType::F32 => Values::F32(numbers.into_iter().map(f32::from).collect()),
        NumberType::F64 => Values::F64(numbers.into_iter().map(f64::from).collect()),
        NumberType::I32 => Values::I32(numbers.into_iter().map(i32::from).collect()),
        NumberType::I64 => Values::I64(numbers.into_iter().map(i64::from).collect()),
    }
}

fn numbers<T: From<u8>>(samples: &[Sample]) -> Vec<T> {
    samples.iter().flatten().map(|&(_, value)| T::from(value as u8)).collect()
}

/// A column in full width, or a small one.
fn column(sequences: &[Vec<Sample>], is_sparse: bool, number: NumberType, is_small: bool) -> Column {
    let sequence_offsets = offsets(sequences.iter().map(Vec::len));
    let samples: Vec<Sample> = sequences.concat();
    let sample_offsets = offsets(samples.iter().map(Vec::len));
    let indices = samples.iter().flatten().map(|&(index, _)| index);
    let values = values(numbers(&samples), number);
    let samples = match (is_small, is_sparse) {
        (false, false) => Samples::Dense { dim: DIM, values },
        (false, true) => Samples::Sparse { dim: DIM, sample_offsets, indices: indices.collect(), values },
        (true, _) if matches!(number, NumberType::I32 | NumberType::I64) => {
            Samples::Narrow(Narrow { dim: DIM, becomes_long: number == NumberType::I64, values: numbers(&samples) })
        }
        (true, _) => {
            let have_one = sample_offsets.iter().zip(0..).all(|(&at, sample)| at == sample);
            let (values, indices): (Vec<u8>, Vec<u16>) =
                (numbers(&samples), indices.map(|index| index as u16).collect());
            let pair = |(index, value): (&u16, &u8)| [index.to_le_bytes()[0], index.to_le_bytes()[1], *value];
            let numbers = match values.first() {
                _ if !is_sparse => Numbers::Dense(values),
                Some(&first) if values.iter().all(|&value| value == first) => Numbers::Alike(first, indices),
                _ => Numbers::Pairs(indices.iter().zip(&values).map(pair).collect()),
            };
            let sample_offsets = (is_sparse && !have_one).then_some(sample_offsets);
            Samples::Small(Small { dim: DIM, becomes_double: number == NumberType::F64, numbers, sample_offsets })
        }
    };
    Column { sequence_offsets, samples }
}

/// A chunk of blocks of `size` sequences.
fn in_blocks(sequences: &[Vec<Sample>], size: usize, column: impl Fn(&[Vec<Sample>]) -> Column) -> Chunk {
    let block = |part: &[Vec<Sample>]| Block { num_sequences: part.len(), columns: vec![column(part)] };
    Chunk::new(sequences.chunks(size).map(block).collect())
}

/// A chunk of a binary file with these sequences.
fn stored(sequences: &[Vec<Sample>], is_sparse: bool, is_double: bool, becomes_double: bool) -> Chunk {
    let plain = in_blocks(sequences, usize::MAX, |part| column(part, is_sparse, NumberType::float(is_double), false));
    let written = [Written { chunk: plain.as_plain().unwrap(), sequences: 0..sequences.len() }];
    let selected = [Selected { column: 0, is_double }];
    let (sizes, lengths) = cbf::sizes(&written, &selected, false);
    let mut bytes = vec![0; sizes.iter().sum::<u64>() as usize];
    cbf::write(&written, &selected, &lengths, &mut bytes).unwrap();
    let stream = Stream { is_sparse, dim: DIM, is_double, becomes_double };
    let whole = cbf::parse(Bytes::new(bytes.clone()), sequences.len(), &[stream], None).unwrap();
    let own: Vec<u32> = (0..sequences.len() as u32).filter(|number| number * number % 5 < 2).collect();
    let part = cbf::parse(Bytes::new(bytes), sequences.len(), &[stream], Some(&own)).unwrap();
    let plain = |chunk, own| pack::in_full_width(chunk, own).unwrap();
    assert_eq!(plain(&part.chunk, None), plain(&whole.chunk, Some(&own)));
    assert!(part.chunk.num_bytes() <= whole.chunk.num_bytes() + 8 * own.len());
    assert_eq!(part.num_used, whole.num_used);
    whole.chunk
}

/// Frames of two values, and their samples.
fn frames(lengths: &[usize], left: usize, right: usize, is_scaled: bool) -> (Frames, Vec<Vec<Sample>>) {
    let num_frames: usize = lengths.iter().sum();
    let whole: Vec<i16> = (0..2 * num_frames as i16).map(|value| value * 3 - 7).collect();
    let encoding = |is_big_endian| Encoding { is_big_endian, scales: is_scaled.then(|| (vec![1.0; 2], vec![0.0; 2])) };
    let encodings = [true, false].map(encoding).to_vec();
    let bytes_of = |value: i16, is_big_endian: bool| match (is_scaled, is_big_endian) {
        (true, true) => value.to_be_bytes().to_vec(),
        (true, false) => value.to_le_bytes().to_vec(),
        (false, true) => f32::from(value).to_be_bytes().to_vec(),
        (false, false) => f32::from(value).to_le_bytes().to_vec(),
    };
    let mut first = 0;
    let (mut bytes, mut starts, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for (sequence, &length) in lengths.iter().enumerate() {
        let encoding = sequence % 2;
        starts.push(FrameStart { block: 0, encoding: encoding as u32, offset: bytes.len() });
        let values = &whole[2 * first..2 * (first + length)];
        bytes.extend(values.iter().flat_map(|&value| bytes_of(value, encodings[encoding].is_big_endian)));
        let sample = |center: usize| {
            let at = |frame: isize| first + frame.clamp(0, length as isize - 1) as usize;
            let around = (center as isize - left as isize..=(center + right) as isize).map(at);
            around.flat_map(|at| [whole[2 * at], whole[2 * at + 1]]).map(|value| (0, f64::from(value))).collect()
        };
        all.push((0..length).map(sample).collect());
        first += length;
    }
    let blocks = vec![Bytes::new(bytes)];
    (Frames { frame_dim: 2, left, right, is_broadcast: false, blocks, starts, encodings }, all)
}

/// Runs of classes: the class changes where a sample's number is a multiple of three, or of its sequence's length.
fn runs(lengths: &[usize], marks_starts: bool, targets: Option<Targets>) -> (Runs, Vec<Vec<Sample>>) {
    let (mut offsets, mut starts, mut classes, mut all) = (vec![0], Vec::new(), Vec::new(), Vec::new());
    for (sequence, &length) in lengths.iter().enumerate() {
        let mut samples = Vec::new();
        for sample in 0..length {
            let is_start = sample % 3 == 0;
            if is_start {
                starts.push(sample as u32);
                classes.push(((sequence + sample / 3) % DIM) as u32);
            }
            let class = classes[classes.len() - 1] as usize;
            samples.push(match &targets {
                None => vec![(class as i32, if is_start && marks_starts { 2.0 } else { 1.0 })],
                Some(targets) => {
                    let row = &targets.rows.as_slice()[class * targets.dim..(class + 1) * targets.dim];
                    row.iter().map(|&value| (0, f64::from(value))).collect()
                }
            });
        }
        offsets.push(starts.len() as u32);
        all.push(samples);
    }
    (Runs { dim: DIM, offsets, starts, classes, marks_starts, targets, each: OnceLock::new() }, all)
}

fn single(lengths: &[usize], samples: Samples) -> Chunk {
    let columns = vec![Column { sequence_offsets: offsets(lengths.iter().copied()), samples }];
    Chunk::new(vec![Block { num_sequences: lengths.len(), columns }])
}

/// Chunks of these kinds, with sequences of these lengths.
fn corpus(kinds: &[Kind], lengths: &[Vec<usize>], is_sparse: bool, number: NumberType, entries: &[u8]) -> Corpus {
    let mut entry = entries.iter().cycle();
    let mut sample = || -> Sample {
        let count = if is_sparse { usize::from(entry.next().unwrap() % 4) } else { DIM };
        (0..count).map(|_| (i32::from(entry.next().unwrap() % DIM as u8), f64::from(*entry.next().unwrap()))).collect()
    };
    let targets = || Targets { dim: 2, rows: Bytes::new(vec![1, 0, 0, 1, 1, 1]) };
    let mut made = Corpus { is_sparse, number, chunks: Vec::new(), samples: Vec::new() };
    for (kind, lengths) in kinds.iter().zip(lengths) {
        let sequences: Vec<Vec<Sample>> =
            lengths.iter().map(|&length| (0..length).map(|_| sample()).collect()).collect();
        let (chunk, sequences) = match *kind {
            Kind::Wide => (in_blocks(&sequences, 2, |part| column(part, is_sparse, number, false)), sequences),
            Kind::Small => (in_blocks(&sequences, 3, |part| column(part, is_sparse, number, true)), sequences),
            Kind::Stored(in_file) => (stored(&sequences, is_sparse, in_file, number == NumberType::F64), sequences),
            Kind::Frames(left, right, is_scaled) => {
                let (frames, sequences) = frames(lengths, left, right, is_scaled);
                (single(lengths, Samples::Frames(frames)), sequences)
            }
            Kind::Runs(marks_starts) => {
                let (runs, sequences) = runs(lengths, marks_starts, None);
                (single(lengths, Samples::Runs(runs)), sequences)
            }
            Kind::Targets => {
                let (runs, sequences) = runs(lengths, false, Some(targets()));
                (single(lengths, Samples::Runs(runs)), sequences)
            }
        };
        for block in chunk.blocks() {
            block.columns.iter().for_each(|column| column.check(block.num_sequences).unwrap());
        }
        made.chunks.push(chunk);
        made.samples.push(sequences);
    }
    made
}

/// The slow, obvious packer.
fn packed<'a>(sequences: impl Iterator<Item = &'a [Sample]>, is_sparse: bool, number: NumberType) -> Ragged {
    let mut ragged = Ragged::empty(is_sparse, number, 0);
    for samples in sequences {
        ragged.sequence_offsets.push(ragged.num_samples() + samples.len() as i64);
        for sample in samples {
            for &(index, value) in sample {
                match &mut ragged.values {
                    Values::F32(values) => values.push(value as f32),
                    Values::F64(values) => values.push(value),
                    Values::I32(values) => values.push(value as i32),
                    Values::I64(values) => values.push(value as i64),
                }
                if let Some(RaggedEntries { indices, .. }) = &mut ragged.entries {
                    indices.push(index);
                }
            }
            if let Some(RaggedEntries { sample_offsets, indices }) = &mut ragged.entries {
                sample_offsets.push(indices.len() as i64);
            }
        }
    }
    ragged
}

/// The slow, obvious table of dense samples, row by row.
fn table<'a>(sequences: impl Iterator<Item = &'a [Sample]>, is_sparse: bool, number: NumberType, dim: usize) -> Values {
    let mut all: Vec<f64> = Vec::new();
    for sample in sequences.flatten() {
        let begin = all.len();
        all.resize(begin + dim, 0.0);
        for (at, &(index, value)) in sample.iter().enumerate() {
            all[begin + if is_sparse { index as usize } else { at }] = value;
        }
    }
    match number {
        NumberType::F32 => Values::F32(all.into_iter().map(|value| value as f32).collect()),
        _ => match values(all.iter().map(|&value| value as u8).collect(), number) {
            Values::F64(_) => Values::F64(all),
            whole => whole,
        },
    }
}

fn any_corpus() -> impl Strategy<Value = Corpus> {
    let in_columns = prop::collection::vec(prop_oneof![Just(Kind::Wide), Just(Kind::Small)], 1..4);
    let stored = prop::collection::vec(any::<bool>().prop_map(Kind::Stored), 1..4);
    let frames =
        (0usize..3, 0usize..3, prop::collection::vec(any::<bool>(), 1..4)).prop_map(|(left, right, scaled)| {
            scaled.into_iter().map(|is_scaled| Kind::Frames(left, right, is_scaled)).collect::<Vec<_>>()
        });
    let runs = prop::collection::vec(any::<bool>().prop_map(Kind::Runs), 1..4);
    let targets = prop::collection::vec(Just(Kind::Targets), 1..4);
    // Chunks of several formats: all of one dimension, sparse or dense, only sparse, only dense.
    let either = prop_oneof![Just(Kind::Wide), Just(Kind::Small), any::<bool>().prop_map(Kind::Stored)];
    let sparse = prop_oneof![2 => either.clone(), 1 => any::<bool>().prop_map(Kind::Runs)];
    let dense = prop_oneof![any::<bool>().prop_map(|is_scaled| Kind::Frames(0, 0, is_scaled)), Just(Kind::Targets)];
    let mixed = prop_oneof![
        prop::collection::vec(either, 2..5),
        prop::collection::vec(sparse, 2..5),
        prop::collection::vec(dense, 2..5)
    ];
    let kinds = prop_oneof![3 => in_columns, 3 => stored, 2 => frames, 2 => runs, 1 => targets, 4 => mixed];
    // Columns whose sequences have one sample each are packed without their table.
    let of_chunk = prop_oneof![2 => prop::collection::vec(1usize..8, 1..7), 1 => prop::collection::vec(Just(1), 1..7)];
    let lengths = prop::collection::vec(of_chunk, 4);
    // A value that all entries have is kept once.
    let entries =
        prop_oneof![2 => prop::collection::vec(any::<u8>(), 7..60), 1 => any::<u8>().prop_map(|same| vec![same; 60])];
    (kinds, lengths, any::<bool>(), 0usize..4, entries).prop_map(|(kinds, lengths, is_sparse, number, entries)| {
        let numbers = [NumberType::F32, NumberType::F64, NumberType::I32, NumberType::I64];
        let are_wide = kinds.iter().all(|kind| matches!(kind, Kind::Wide));
        let one_of = |which: fn(&Kind) -> bool| kinds.iter().copied().find(which);
        // The kind with the fewest forms decides for mixed kinds.
        let decides = one_of(|kind| !matches!(kind, Kind::Wide | Kind::Small | Kind::Stored(_)));
        let decides = decides.or_else(|| one_of(|kind| matches!(kind, Kind::Stored(_)))).unwrap_or(kinds[0]);
        let (is_sparse, number) = match decides {
            // Sparse samples of whole numbers have no small form.
            Kind::Wide | Kind::Small => (is_sparse, numbers[if is_sparse && !are_wide { number % 2 } else { number }]),
            Kind::Stored(_) => (is_sparse, numbers[number % 2]),
            Kind::Frames(..) | Kind::Targets => (false, NumberType::F32),
            Kind::Runs(_) => (true, NumberType::F32),
        };
        corpus(&kinds, &lengths, is_sparse, number, &entries)
    })
}

type Pick = (prop::sample::Index, prop::sample::Index, prop::sample::Index, prop::sample::Index);

proptest! {
    #[test]
    fn every_kind_packs_as_the_slow_packer_does(
        corpus in any_corpus(), picks in prop::collection::vec(any::<Pick>(), 1..20), takes_single_samples: bool,
    ) {
        let Corpus { is_sparse, number, ref chunks, ref samples } = corpus;
        let (mut chunk_of, mut sequences, mut firsts, mut counts) = (vec![], vec![], vec![], vec![]);
        for (chunk, sequence, first, count) in picks {
            let chunk = chunk.index(chunks.len());
            let sequence = sequence.index(samples[chunk].len());
            let length = samples[chunk][sequence].len();
            let first = first.index(length);
            chunk_of.push(chunk as u32);
            sequences.push(sequence as u32);
            firsts.push(first as u32);
            counts.push(if takes_single_samples { 1 } else { count.index(length - first + 1) as u32 });
        }
        let whole = || chunk_of.iter().zip(&sequences).map(|(&chunk, &at)| &samples[chunk as usize][at as usize][..]);
        let part = || whole().zip(firsts.iter().zip(&counts)).map(|(samples, (&first, &count))| {
            &samples[first as usize..(first + count) as usize]
        });
        let handles: Vec<&Chunk> = chunks.iter().collect();
        let selection = Selection { chunk_of: &chunk_of, sequences: &sequences, parts: None };
        let wanted = Wanted { stream: 0, is_sparse, number };
        prop_assert_eq!(pack::gather(&handles, selection, wanted), Ok(packed(whole(), is_sparse, number)));
        let in_parts = Selection { parts: Some(Parts { firsts: &firsts, counts: &counts }), ..selection };
        prop_assert_eq!(pack::gather(&handles, in_parts, wanted), Ok(packed(part(), is_sparse, number)));

        // A table with a cell between the parts.
        let dim = chunks[0].blocks()[0].columns[0].samples.form().dim;
        let (mut cells, mut next) = (Vec::new(), 0);
        for (at, samples) in whole().enumerate() {
            let (first_sample, num_samples) = (firsts[at], counts[at]);
            cells.push(Cell { first_sample, num_samples, cell: next, length: samples.len() });
            next += num_samples as usize + 1;
        }
        let empty = [vec![(0, 0.0); if is_sparse { 0 } else { dim }]];
        let expected = table(part().flat_map(|part| [part, &empty[..]]), is_sparse, number, dim);
        let stream = Table { stream: 0, dim, number };
        prop_assert_eq!(pack::spread(&handles, selection, &cells, &[stream], next), Ok(vec![expected]));
        cells[0].length += 1;
        let misfit = Error::Length { sequence: 0, stream: 0, num_samples: cells[0].length - 1 };
        prop_assert_eq!(pack::spread(&handles, selection, &cells, &[stream], next), Err(misfit));

        // All chunks, one after the other, as they are and in full width.
        let all = || samples.iter().flatten().map(|samples| &samples[..]);
        let expected = packed(all(), is_sparse, number);
        let plain: Vec<Chunk> = chunks.iter().map(|chunk| pack::in_full_width(chunk, None).unwrap()).collect();
        prop_assert!(plain.iter().all(|chunk| chunk.as_plain().is_some()));
        for chunks in [chunks, &plain] {
            let mut whole = Whole::new(&[wanted], all().count());
            chunks.iter().for_each(|chunk| whole.append(chunk).unwrap());
            prop_assert_eq!(whole.finish(), vec![expected.clone()]);
        }
    }

    #[test]
    fn selections_in_turn_are_gathered_as_each_alone(
        corpora in [any_corpus(), any_corpus()],
        picks in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<Pick>(), 0..5), any::<bool>()), 0..9),
    ) {
        let handles = corpora.each_ref().map(|corpus| corpus.chunks.iter().collect::<Vec<&Chunk>>());
        let sources = [0, 1].map(|at| {
            let Corpus { is_sparse, number, .. } = corpora[at];
            Sources::new(&handles[at], &[Wanted { stream: 0, is_sparse, number }]).unwrap()
        });
        let selected = picks.iter().map(|(from, picks, is_beyond)| {
            let samples = &corpora[usize::from(*from)].samples;
            let chunk_of: Vec<u32> = picks.iter().map(|(chunk, ..)| chunk.index(samples.len()) as u32).collect();
            let sequence = |(&chunk, (_, at, ..)): (&u32, &Pick)| at.index(samples[chunk as usize].len()) as u32;
            let mut sequences: Vec<u32> = chunk_of.iter().zip(picks).map(sequence).collect();
            if let Some(last) = sequences.last_mut().filter(|_| *is_beyond) {
                *last += 100;
            }
            (usize::from(*from), chunk_of, sequences)
        });
        let selected: Vec<(usize, Vec<u32>, Vec<u32>)> = selected.collect();
        let jobs = selected.iter().map(|(from, chunk_of, sequences)| {
            Job { sources: &sources[*from], selection: Selection { chunk_of, sequences, parts: None } }
        });
        let jobs: Vec<Job> = jobs.collect();
        let alone: Vec<_> = jobs.iter().map(|job| job.sources.gather(job.selection)).collect();
        prop_assert_eq!(pack::gather_in_turn(&jobs).collect::<Vec<_>>(), alone);
    }

    #[test]
    fn frames_and_runs_are_widened_where_doubles_are_wanted(
        kinds in prop_oneof![Just(Kind::Frames(1, 1, true)), Just(Kind::Runs(false)), Just(Kind::Targets)],
        lengths in prop::collection::vec(prop::collection::vec(1usize..8, 1..7), 2),
    ) {
        let is_sparse = matches!(kinds, Kind::Runs(_));
        let Corpus { ref chunks, ref samples, .. } = corpus(&[kinds; 2], &lengths, is_sparse, NumberType::F32, &[3, 1, 4, 1, 5, 9, 2]);
        let wanted = Wanted { stream: 0, is_sparse, number: NumberType::F64 };
        let mut whole = Whole::new(&[wanted], 1);
        chunks.iter().for_each(|chunk| whole.append(chunk).unwrap());
        prop_assert_eq!(whole.finish(), vec![packed(samples.iter().flatten().map(|samples| &samples[..]), is_sparse, NumberType::F64)]);
    }

    #[test]
    fn a_selection_beyond_its_chunks_is_an_error(corpus in any_corpus(), beyond in 1u32..3) {
        let Corpus { is_sparse, number, ref chunks, ref samples } = corpus;
        let handles: Vec<&Chunk> = chunks.iter().collect();
        let gathered = |chunk: u32, sequence: u32, part: Option<(u32, u32)>, wanted: Wanted| {
            let (firsts, counts) = part.unwrap_or_default();
            let (firsts, counts) = ([firsts], [counts]);
            let parts = part.map(|_| Parts { firsts: &firsts, counts: &counts });
            let (chunk_of, sequences) = (&[chunk][..], &[sequence][..]);
            pack::gather(&handles, Selection { chunk_of, sequences, parts }, wanted).map(|_| ())
        };
        let wanted = Wanted { stream: 0, is_sparse, number };
        let length = samples[0][0].len() as u32;
        prop_assert_eq!(gathered(0, 0, Some((length, 0)), wanted), Ok(()));
        prop_assert_eq!(gathered(chunks.len() as u32, 0, None, wanted), Err(Error::Missing));
        prop_assert_eq!(gathered(0, samples[0].len() as u32, None, wanted), Err(Error::Missing));
        prop_assert_eq!(gathered(0, samples[0].len() as u32, Some((0, 0)), wanted), Err(Error::Missing));
        prop_assert_eq!(gathered(0, u32::MAX, None, wanted), Err(Error::Missing));
        prop_assert_eq!(gathered(0, u32::MAX, Some((0, 0)), wanted), Err(Error::Missing));
        prop_assert_eq!(gathered(0, 0, None, Wanted { stream: 1, ..wanted }), Err(Error::Missing));
        prop_assert_eq!(gathered(0, 0, None, Wanted { is_sparse: !is_sparse, ..wanted }), Err(Error::Mixed));
        let is_decoded = |chunk: &Chunk| !matches!(chunk.blocks()[0].columns[0].samples, Samples::Frames(_) | Samples::Runs(_));
        let is_decoded = chunks.iter().any(is_decoded);
        let other = gathered(0, 0, None, Wanted { number: if number == NumberType::F32 { NumberType::F64 } else { NumberType::F32 }, ..wanted });
        prop_assert_eq!(other, if is_decoded { Err(Error::Mixed) } else { Ok(()) });
        let error = Error::Length { sequence: 0, stream: 0, num_samples: length as usize };
        prop_assert_eq!(gathered(0, 0, Some((length - 1, 1 + beyond)), wanted), Err(error));
    }
}

#[test]
fn columns_of_other_dimensions_are_an_error() {
    for kinds in [[Kind::Wide, Kind::Targets], [Kind::Frames(0, 0, false), Kind::Stored(false)]] {
        let Corpus { chunks, .. } = corpus(&kinds, &[vec![2, 1], vec![3]], false, NumberType::F32, &[1, 2, 3, 4, 5]);
        let handles: Vec<&Chunk> = chunks.iter().collect();
        let selection = Selection { chunk_of: &[0, 1], sequences: &[0, 0], parts: None };
        let wanted = Wanted { stream: 0, is_sparse: false, number: NumberType::F32 };
        assert_eq!(pack::gather(&handles, selection, wanted), Err(Error::Mixed));
    }
}

#[test]
fn classes_of_runs_and_whole_numbers_are_one_stream() {
    let lengths = [vec![2, 1], vec![3]];
    let Corpus { chunks: labels, samples, .. } = corpus(&[Kind::Runs(false); 2], &lengths, true, NumberType::F32, &[1]);
    let ids = Column {
        sequence_offsets: vec![0, 2, 3],
        samples: Samples::Dense { dim: 1, values: Values::I32(vec![7, 8, 9]) },
    };
    let ids = Chunk::new(vec![Block { num_sequences: 2, columns: vec![ids] }]);
    let handles = [&labels[0], &ids, &labels[1]];
    let selection = Selection { chunk_of: &[0, 1, 2, 1, 0], sequences: &[0, 0, 0, 1, 1], parts: None };
    let wanted = Wanted { stream: 0, is_sparse: false, number: NumberType::I32 };
    let gathered = pack::gather(&handles, selection, wanted).unwrap();
    let classes = |chunk: usize, sequence: usize| samples[chunk][sequence].iter().map(|sample| sample[0].0);
    let expected: Vec<i32> = classes(0, 0).chain([7, 8]).chain(classes(1, 0)).chain([9]).chain(classes(0, 1)).collect();
    assert_eq!(gathered.values, Values::I32(expected));
    assert_eq!(gathered.sequence_offsets, [0, 2, 4, 7, 8, 9]);
    let parts = Some(Parts { firsts: &[0, 0, 0, 1, 0], counts: &[1, 1, 1, 1, 1] });
    let error = Error::Length { sequence: 3, stream: 0, num_samples: 1 };
    assert_eq!(pack::gather(&handles, Selection { parts, ..selection }, wanted), Err(error));
}

#[test]
fn samples_without_exactly_one_entry_have_no_class() {
    let entries = |counts: &[usize]| {
        let samples: Vec<Sample> = counts.iter().map(|&count| vec![(2, 1.0); count]).collect();
        in_blocks(&[samples], 1, |part| column(part, true, NumberType::F32, false))
    };
    let gathered = |chunk: &Chunk| {
        let selection = Selection { chunk_of: &[0], sequences: &[0], parts: None };
        pack::gather(&[chunk], selection, Wanted { stream: 0, is_sparse: false, number: NumberType::I32 })
    };
    assert_eq!(gathered(&entries(&[1, 1, 1])).unwrap().values, Values::I32(vec![2; 3]));
    for counts in [&[2, 0, 1][..], &[1, 0, 2], &[0, 2, 1], &[2, 1], &[1, 0]] {
        assert_eq!(gathered(&entries(counts)), Err(Error::Mixed), "{counts:?}");
    }
}

#[test]
fn parts_of_long_sequences_take_no_memory_for_the_rest() {
    let long: Vec<Sample> = vec![vec![(1, 3.0), (2, 4.0)]; 10_000];
    let chunk = stored(&[long], true, false, false);
    let (firsts, counts) = ([5; 64], [1; 64]);
    let parts = Some(Parts { firsts: &firsts, counts: &counts });
    let selection = Selection { chunk_of: &[0; 64], sequences: &[0; 64], parts };
    let wanted = Wanted { stream: 0, is_sparse: true, number: NumberType::F32 };
    let Ragged { values: Values::F32(values), entries: Some(entries), .. } =
        pack::gather(&[&chunk], selection, wanted).unwrap()
    else {
        panic!("another form")
    };
    assert_eq!(values, [3.0, 4.0].repeat(64));
    assert!(values.capacity() <= 1000 && entries.indices.capacity() <= 1000);
}

#[test]
fn a_broadcast_frame_is_taken_as_often_as_asked_for() {
    let (mut frames, _) = frames(&[1, 2], 1, 0, false);
    frames.is_broadcast = true;
    let chunk = single(&[1, 2], Samples::Frames(frames));
    let parts = Some(Parts { firsts: &[7, 1], counts: &[3, 3] });
    let selection = Selection { chunk_of: &[0, 0], sequences: &[0, 1], parts };
    let ragged =
        pack::gather(&[&chunk], selection, Wanted { stream: 0, is_sparse: false, number: NumberType::F32 }).unwrap();
    let (only, first, second) = ([-7.0, -4.0], [-1.0, 2.0], [5.0, 8.0]);
    let expected = [[only, only], [only, only], [only, only], [first, second], [first, second], [first, second]];
    assert_eq!(ragged.sequence_offsets, [0, 3, 6]);
    assert_eq!(ragged.values, Values::F32(expected.as_flattened().as_flattened().to_vec()));
}

#[cfg(unix)]
#[test]
fn indices_that_change_between_two_reads_stay_below_the_dimension() {
    use cntkio_memory::file::{FileBytes, MappedFile, OpenFile};
    use std::os::unix::fs::FileExt;
    let path = std::env::temp_dir().join(format!("cntkio-core-indices-{}", std::process::id()));
    let sequences = vec![vec![vec![(1, 1.0)]]; 3000];
    let written = in_blocks(&sequences, 3000, |part| column(part, true, NumberType::F32, false));
    let selected = [Selected { column: 0, is_double: false }];
    let all = [Written { chunk: written.as_plain().unwrap(), sequences: 0..3000 }];
    let (sizes, lengths) = cbf::sizes(&all, &selected, false);
    let mut content = vec![0; sizes.iter().sum::<u64>() as usize];
    cbf::write(&all, &selected, &lengths, &mut content).unwrap();
    std::fs::write(&path, &content).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let mapped = MappedFile::new(OpenFile::from(&file), "its name".to_owned()).unwrap();
    // SAFETY: the parser checks the bytes before it uses them, and the packer copies them and checks the copy.
    let bytes = unsafe { FileBytes::map(&std::sync::Arc::new(mapped), 0, content.len()) }.unwrap();
    let stream = Stream { is_sparse: true, dim: DIM, is_double: false, becomes_double: false };
    let chunk = cbf::parse(Bytes::of(bytes), 3000, &[stream], None).unwrap().chunk;

    let (handles, wanted) = ([&chunk], [Wanted { stream: 0, is_sparse: true, number: NumberType::F32 }]);
    let order: Vec<u32> = (0..3000).collect();
    let selection = Selection { chunk_of: &vec![0; 3000], sequences: &order, parts: None };
    let sources = Sources::new(&handles, &wanted).unwrap();
    let sound = sources.gather(selection).unwrap();
    // A sequence has 20 bytes after the list of lengths; its index is the fourth of its five numbers.
    for sequence in [0, 2999] {
        for (index, is_sound) in [(-1, false), (DIM as i32, false), (DIM as i32 - 1, true), (1, true)] {
            file.write_all_at(&index.to_le_bytes(), 4 * 3000 + 20 * sequence + 12).unwrap();
            let gathered = sources.gather(selection);
            assert_eq!(gathered.is_ok(), is_sound, "{sequence} {index}");
            assert!(is_sound || gathered == Err(Error::Changed("its name".to_owned())));
        }
    }
    assert_eq!(sources.gather(selection).unwrap(), sound);
    std::fs::remove_file(path).unwrap();
}

#[cfg(unix)]
#[test]
fn a_changed_file_is_an_error_before_and_after_gathering() {
    use cntkio_memory::file::{FileBytes, MappedFile, OpenFile};
    let path = std::env::temp_dir().join(format!("cntkio-core-changed-{}", std::process::id()));
    let written =
        in_blocks(&[vec![vec![(0, 1.0), (0, 2.0), (0, 3.0)]]], 1, |part| column(part, false, NumberType::F32, false));
    let selected = [Selected { column: 0, is_double: false }];
    let sequences = [Written { chunk: written.as_plain().unwrap(), sequences: 0..1 }];
    let (sizes, lengths) = cbf::sizes(&sequences, &selected, false);
    let mut content = vec![0; sizes[0] as usize];
    cbf::write(&sequences, &selected, &lengths, &mut content).unwrap();
    std::fs::write(&path, &content).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let mapped = MappedFile::new(OpenFile::from(&file), "its name".to_owned()).unwrap();
    // SAFETY: the parser checks the bytes before it uses them, and the packer copies them.
    let bytes = unsafe { FileBytes::map(&std::sync::Arc::new(mapped), 0, content.len()) }.unwrap();
    let stream = Stream { is_sparse: false, dim: DIM, is_double: false, becomes_double: false };
    let chunk = cbf::parse(Bytes::of(bytes), 1, &[stream], None).unwrap().chunk;

    let (handles, wanted) = ([&chunk], [Wanted { stream: 0, is_sparse: false, number: NumberType::F32 }]);
    let selection = Selection { chunk_of: &[0], sequences: &[0], parts: None };
    let sources = Sources::new(&handles, &wanted).unwrap();
    assert_eq!(sources.gather(selection).unwrap()[0].values, Values::F32(vec![1.0, 2.0, 3.0]));
    assert_eq!(sources.check_unchanged(), Ok(()));
    std::fs::File::options().append(true).open(&path).and_then(|file| file.set_len(1 << 20)).unwrap();
    let changed = Err(Error::Changed("its name".to_owned()));
    assert_eq!(sources.check_unchanged(), changed);
    assert_eq!(Sources::new(&handles, &wanted).map(|_| ()), changed);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn offsets_and_cells_whose_products_exceed_64_bits_are_missing() {
    // The products wrap to 0 and to the first values.
    for offsets in [[0, 1 << 62], [1 << 62, (1 << 62) + 1], [-1, 0], [0, -1]] {
        assert_eq!(pack::pad(&[1f32; 4], &offsets, 2, 4), Err(Error::Missing), "{offsets:?}");
    }
    let samples = Samples::Dense { dim: 4, values: Values::F32(vec![1.0; 4]) };
    let chunk =
        Chunk::new(vec![Block { num_sequences: 1, columns: vec![Column { sequence_offsets: vec![0, 1], samples }] }]);
    let selection = Selection { chunk_of: &[0], sequences: &[0], parts: None };
    let table = Table { stream: 0, dim: 4, number: NumberType::F32 };
    for cell in [1 << 62, usize::MAX] {
        let cells = [Cell { first_sample: 0, num_samples: 1, cell, length: 1 }];
        assert_eq!(pack::spread(&[&chunk], selection, &cells, &[table], 2), Err(Error::Missing), "{cell}");
    }
}

#[test]
fn a_chunk_with_more_samples_than_32_bits_is_not_copied_in_full_width() {
    // Samples of no values take no memory.
    let block = || {
        let samples = Samples::Dense { dim: 0, values: Values::F32(vec![]) };
        Block { num_sequences: 1, columns: vec![Column { sequence_offsets: vec![0, u32::MAX], samples }] }
    };
    assert!(pack::in_full_width(&Chunk::new(vec![block()]), None).is_ok());
    assert_eq!(pack::in_full_width(&Chunk::new(vec![block(), block()]), None), Err(Error::LongChunk));
}
