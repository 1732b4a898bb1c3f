//! The figures of a stream: of no sequences, of a part, and of all parts.

use super::hashes::{AnyForm, hash_of_indices, lowest_and_highest};
use super::view::{Rows, View, in_any_form, view};
use super::{BYTES_AT_ONCE, Figures, Range, Tried, Wanted};
use crate::chunk::{Block, Chunk, Error};
use crate::memory;
use crate::pack::in_full_width;
use crate::parallel;
use std::ops::Range as Span;

/// Samples whose values are tried.
const NUM_TRIED: usize = 64;
/// Samples that show whether a dense stream may be one-hot: it is not if more than a tenth of them are not.
const NUM_TRIED_FOR_CLASSES: usize = 512;
/// Bytes that are worth a thread's turn.
const BYTES_OF_A_PART: usize = 1 << 20;

/// The hash of each sequence over the wanted streams, one stream after the other, and the figures of each stream, on
/// all threads of the current pool.
///
/// # Errors
/// The chunk lacks a stream or a column, or its file has changed.
pub fn survey(chunk: &Chunk, wanted: &[Wanted]) -> Result<(Vec<u64>, Vec<Figures>), Error> {
    let has_all = |block: &Block| wanted.iter().all(|one| one.stream < block.columns.len());
    if !chunk.blocks().iter().all(has_all) {
        return Err(Error::Missing);
    }
    let is_direct = |block: &Block| wanted.iter().all(|one| view(&block.columns[one.stream]).is_some());
    if !chunk.blocks().iter().all(is_direct) {
        return survey_views(&in_full_width(chunk, None)?, wanted);
    }
    survey_views(chunk, wanted)
}

fn survey_views(chunk: &Chunk, wanted: &[Wanted]) -> Result<(Vec<u64>, Vec<Figures>), Error> {
    let streams: Vec<Stream> =
        wanted.iter().map(|one| Stream::of(chunk, one)).collect::<Option<_>>().ok_or(Error::Missing)?;
    let parts = parts(chunk);
    let of_part = |part: &Part| {
        let mut hashes = memory::with_room(part.sequences.len());
        // The hash of a sequence in one stream seeds its hash in the next stream, so all begin with the seed 0.
        hashes.resize(part.sequences.len(), 0);
        let mut buffer = Vec::new();
        let figures = streams.iter().zip(wanted);
        let figures: Vec<Figures> =
            figures.map(|(stream, one)| stream.figures(one, part, &mut hashes, &mut buffer)).collect();
        (hashes, figures)
    };
    // The parts stay in the order of the chunk, which the hashes and the lists of samples need.
    let found: Vec<(Vec<u64>, Vec<Figures>)> = parallel::map(parts.len(), |number| of_part(&parts[number]));
    let mut hashes = memory::with_room(chunk.num_sequences());
    let mut figures: Vec<Figures> = streams.into_iter().map(|stream| stream.start).collect();
    for (of_part, more) in found {
        hashes.extend(of_part);
        figures.iter_mut().zip(more).for_each(|(all, more)| all.add(more));
    }
    Ok((hashes, figures))
}

/// Some sequences of a block.
struct Part {
    block: usize,
    sequences: Span<usize>,
}

fn parts(chunk: &Chunk) -> Vec<Part> {
    let mut parts = Vec::new();
    // At least 1, because it is a divisor.
    let bytes_of_a_sequence = chunk.num_bytes() / chunk.num_sequences().max(1) + 1;
    let size = (BYTES_OF_A_PART / bytes_of_a_sequence).max(1);
    for (block, of_block) in chunk.blocks().iter().enumerate() {
        let count = of_block.num_sequences;
        // The rest of a block is spread over its parts, because alone it would not be worth a thread's turn.
        let each = count.div_ceil((count / size).max(1)).max(1);
        parts.extend((0..count).step_by(each).map(|first| Part { block, sequences: first..count.min(first + each) }));
    }
    parts
}

/// A stream in all blocks.
struct Stream<'a> {
    views: Vec<View<'a>>,
    /// The first sample of each block.
    first_samples: Vec<usize>,
    /// The figures of no sequences.
    start: Figures,
}

impl<'a> Stream<'a> {
    fn of(chunk: &'a Chunk, wanted: &Wanted) -> Option<Stream<'a>> {
        let columns = || chunk.blocks().iter().map(|block| &block.columns[wanted.stream]);
        let views: Vec<View> = columns().map(view).collect::<Option<_>>()?;
        let mut first_samples = vec![0];
        columns().for_each(|column| first_samples.push(first_samples[first_samples.len() - 1] + column.num_samples()));
        let num_samples = first_samples[views.len()];
        let is_sparse = views.first().is_some_and(|view| in_any_form!(view, rows => rows.entries.is_some()));
        let mut stream = Stream { views, first_samples, start: Figures::nothing() };
        if num_samples == 0 {
            return Some(stream);
        }
        if is_sparse {
            if wanted.forms {
                stream.start.forms = stream.forms();
            }
        } else {
            stream.start.tried = stream.tried();
            (stream.start.first_row, stream.start.constant) = match wanted.constant {
                Some((row, columns)) => {
                    let dim =
                        stream.views.first().map_or(0, |view| in_any_form!(view, rows => rows.dim)).min(row.len());
                    // `retain_constant` takes these columns of each sample without a check.
                    if columns.iter().any(|&column| column as usize >= dim) {
                        return None;
                    }
                    (row.to_vec(), columns.to_vec())
                }
                None => {
                    let row: Vec<f64> = stream.each_row(1, |row| row.to_vec()).into_iter().flatten().collect();
                    let columns = (0..row.len() as u32).collect();
                    (row, columns)
                }
            };
        }
        // A dense stream that may be one-hot is counted column by column, so some samples decide first whether that is
        // worth it. One entry decides about a sparse sample, so sparse streams need no trial.
        let is_clearly_not = || {
            let num_tried = if is_sparse { 0 } else { num_samples.min(NUM_TRIED_FOR_CLASSES) };
            let num_others = stream
                .places()
                .take(num_tried)
                .filter(|&(block, sample)| in_any_form!(&stream.views[block], rows => !rows.is_one_hot(sample)));
            10 * num_others.count() > num_tried
        };
        stream.start.not_one_hot = (wanted.one_hot && !is_clearly_not()).then(Vec::new);
        Some(stream)
    }

    /// All samples: their block, and their number in it.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let num_samples = |view: &View| in_any_form!(view, rows => rows.num_samples());
        self.views.iter().enumerate().flat_map(move |(block, view)| (0..num_samples(view)).map(move |at| (block, at)))
    }

    fn each_row<R>(&self, count: usize, mut take: impl FnMut(&[f64]) -> R) -> Vec<R> {
        let wide = |(block, sample): (usize, usize)| -> Vec<f64> {
            in_any_form!(&self.views[block], rows => rows.sample(sample).iter().map(|value| value.wide()).collect())
        };
        self.places().take(count).map(|place| take(&wide(place))).collect()
    }

    fn tried(&self) -> Tried {
        let mut tried = Tried { are_whole: true, ..Tried::default() };
        self.each_row(NUM_TRIED, |row| {
            tried.num_values += row.len();
            tried.num_zeros += row.iter().filter(|&&value| value == 0.0).count();
            tried.are_whole &= row.iter().all(|&value| value == value.floor());
        });
        tried
    }

    fn forms(&self) -> Vec<Vec<i32>> {
        let indices = |(block, sample): (usize, usize)| -> Vec<i32> {
            in_any_form!(&self.views[block], rows => rows.form(sample))
        };
        let mut places = self.places();
        let mut forms: Vec<Vec<i32>> = places.next().map(indices).into_iter().collect();
        let other = places.map(indices).find(|form| forms.first() != Some(form));
        forms.extend(other);
        forms
    }

    fn figures(&self, wanted: &Wanted, part: &Part, hashes: &mut [u64], buffer: &mut Vec<u8>) -> Figures {
        let first_sample = self.first_samples[part.block];
        in_any_form!(&self.views[part.block], rows => rows.figures(wanted, part, first_sample, &self.start, hashes, buffer))
    }
}

impl<T: AnyForm, I: Copy + Ord + Into<i32>> Rows<'_, T, I> {
    fn figures(
        &self,
        wanted: &Wanted,
        part: &Part,
        first_sample: usize,
        start: &Figures,
        hashes: &mut [u64],
        buffer: &mut Vec<u8>,
    ) -> Figures {
        let mut found = Figures { num_samples: 0, num_values: 0, counts: Vec::new(), ..start.clone() };
        let (mut sequence, mut hashes) = (part.sequences.start, hashes.iter_mut());
        while hashes.len() > 0 {
            let (samples, values) = self.hash_some(&mut sequence, &mut hashes, buffer);
            found.num_samples += samples.len();
            found.num_values += values.len();
            let range = T::range(&self.values[values]);
            found.range = found.range.with(range);
            if self.entries.is_some() {
                self.add_indices(wanted, samples.clone(), &mut found);
            } else {
                self.retain_constant(samples.clone(), &mut found);
            }
            // Taken out, because `count_columns` needs all of `found`.
            if let Some(mut others) = found.not_one_hot.take() {
                // Only small columns lack offsets: each sample has one entry, and no value is NaN, which a range would
                // hide. So no sample needs a look if all values are 1.
                let all_are = self.entries.as_ref().is_some_and(|(offsets, _)| offsets.is_none());
                if !all_are || (range.lowest, range.highest) != (1.0, 1.0) {
                    let wrong = samples.clone().filter(|&sample| !self.is_one_hot(sample));
                    others.extend(wrong.map(|sample| (first_sample + sample) as u32));
                }
                if self.entries.is_none() {
                    self.count_columns(samples, &mut found);
                }
                found.not_one_hot = Some(others);
            }
        }
        found
    }

    /// Hash as many sequences as fit the cache, at least one, from `sequence` on. Returns their samples and values.
    fn hash_some(
        &self,
        sequence: &mut usize,
        hashes: &mut std::slice::IterMut<u64>,
        buffer: &mut Vec<u8>,
    ) -> (Span<usize>, Span<usize>) {
        let from = self.sequence_offsets[*sequence] as usize;
        let begin = self.range(from..from).start;
        let (mut samples, mut values) = (from..from, begin..begin);
        for hash in hashes {
            let end = self.sequence_offsets[*sequence + 1] as usize;
            let span = samples.end..end;
            let own = self.range(span.clone());
            let seed = self.hash_of_sizes(span.clone(), *hash, buffer);
            let seed = T::hash(&self.values[own], seed, buffer);
            // The hash of the values seeds the hash of the indices, so equal values at other indices have another hash.
            *hash = if self.entries.is_none() { seed } else { hash_of_indices(self.indices_of(span), seed, buffer) };
            values.end = self.range(end..end).start;
            samples.end = end;
            *sequence += 1;
            if size_of_val(&self.values[values.clone()]) >= BYTES_AT_ONCE {
                break;
            }
        }
        (samples, values)
    }

    /// The indices of a sample.
    fn form(&self, sample: usize) -> Vec<i32> {
        self.indices_of(sample..sample + 1).iter().map(|&index| index.into()).collect()
    }

    fn retain_constant(&self, samples: Span<usize>, found: &mut Figures) {
        let first_row = &found.first_row;
        for sample in samples {
            if found.constant.is_empty() {
                return;
            }
            let row = self.sample(sample);
            // NaN differs from itself, so a column with NaN is not constant.
            found.constant.retain(|&column| row[column as usize].wide() == first_row[column as usize]);
        }
    }

    fn count_columns(&self, samples: Span<usize>, found: &mut Figures) {
        found.counts.resize(self.dim, 0);
        for sample in samples {
            for (count, value) in found.counts.iter_mut().zip(self.sample(sample)) {
                *count += i64::from(*value != T::from(0));
            }
        }
    }

    fn add_indices(&self, wanted: &Wanted, samples: Span<usize>, found: &mut Figures) {
        let indices = self.indices_of(samples);
        let Some((first, last)) = lowest_and_highest(indices) else { return };
        let (first, last): (i32, i32) = (first.into(), last.into());
        found.first = found.first.min(first);
        // If earlier samples had a higher index, no index below `last` is the second-highest, and the search is not
        // needed.
        let below = match last > wanted.beyond && last >= found.last {
            true => indices.iter().map(|&index| index.into()).filter(|&index| index < last).fold(-1, i32::max),
            false => -1,
        };
        (found.last, found.second) = two_highest([found.last, found.second, last, below]);
        // An index may be up to 2^31 - 2, and counting needs 8 bytes for each class.
        if (last as usize) < wanted.most_classes && found.last < wanted.most_classes as i32 {
            if found.counts.len() <= last as usize {
                found.counts.resize(last as usize + 1, 0);
            }
            indices.iter().for_each(|&index| found.counts[index.into() as usize] += 1);
        }
    }
}

/// The two highest of some indices that differ; -1 stands for none.
fn two_highest(indices: [i32; 4]) -> (i32, i32) {
    let last = indices.into_iter().fold(-1, i32::max);
    (last, indices.into_iter().filter(|&index| index < last).fold(-1, i32::max))
}

impl Figures {
    fn nothing() -> Figures {
        Figures {
            num_samples: 0,
            num_values: 0,
            range: Range::NOTHING,
            first_row: Vec::new(),
            constant: Vec::new(),
            tried: Tried { are_whole: true, ..Tried::default() },
            first: i32::MAX,
            last: -1,
            second: -1,
            forms: Vec::new(),
            not_one_hot: None,
            counts: Vec::new(),
        }
    }

    /// Add the figures of the next part.
    fn add(&mut self, more: Figures) {
        self.num_samples += more.num_samples;
        self.num_values += more.num_values;
        self.range = self.range.with(more.range);
        if self.constant.len() > more.constant.len() || self.constant != more.constant {
            // Both lists ascend, because every part has retained some of the same columns.
            self.constant.retain(|column| more.constant.binary_search(column).is_ok());
        }
        self.first = self.first.min(more.first);
        (self.last, self.second) = two_highest([self.last, self.second, more.last, more.second]);
        if let (Some(all), Some(more)) = (&mut self.not_one_hot, more.not_one_hot) {
            all.extend(more);
        }
        if self.counts.len() < more.counts.len() {
            self.counts.resize(more.counts.len(), 0);
        }
        self.counts.iter_mut().zip(more.counts).for_each(|(all, more)| *all += more);
    }
}
