//! Figures of the streams of a chunk: a hash of each sequence, ranges, columns that do not change, and classes.
//!
//! ```text
//! chunk ─┬─ part 0: some sequences of a block ── stream by stream, a cacheful at a time ─┬─ hashes of its sequences
//!        ├─ part 1                                                                       └─ figures, one per stream
//!        └─ ...                                   the figures of all parts are merged, in order
//! ```
//!
//! Values and indices are examined in the form in which the parser left them, mostly in a byte or two: widening them
//! would cost more than everything else here. Invariant: the form does not change a figure. A sequence of small numbers
//! in full width has the hash of the same sequence in small form.

use crate::chunk::{Block, Chunk, Column, Error, Samples, Values};
use crate::memory;
use crate::pack::in_full_width;
use cntkio_memory::small::Widens;
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range as Span;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A stream to examine, and what its caller wants to know about it.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// The stream, counted in the chunk.
    pub stream: usize,
    /// Of a dense stream: a sample, and the columns in which other samples may have its values; `None`: the chunk's
    /// first sample, and all columns.
    pub constant: Option<(&'a [f64], &'a [u32])>,
    /// True to look for samples that are not one-hot.
    pub one_hot: bool,
    /// Count the indices of a sparse stream if all are below this number; 0: count none.
    pub most_classes: usize,
    /// Look for the second-highest index of a sparse stream only if the highest is above this number; -1: in any case.
    pub beyond: i32,
    /// True to look for two samples of a sparse stream that differ in their indices.
    pub forms: bool,
}

/// The range of some values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The lowest value; infinite without values.
    pub lowest: f64,
    /// The highest value; negative infinity without values.
    pub highest: f64,
    /// True if no value is infinite or NaN.
    pub is_finite: bool,
}

impl Range {
    const NOTHING: Range = Range { lowest: f64::INFINITY, highest: f64::NEG_INFINITY, is_finite: true };

    fn with(self, other: Range) -> Range {
        Range {
            lowest: self.lowest.min(other.lowest),
            highest: self.highest.max(other.highest),
            is_finite: self.is_finite && other.is_finite,
        }
    }
}

/// Figures of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// Number of samples.
    pub num_samples: usize,
    /// Number of values: of all of a dense stream, or of the entries.
    pub num_values: usize,
    /// The range of the values.
    pub range: Range,
    /// Of a dense stream: the sample that is compared with the others.
    pub first_row: Vec<f64>,
    /// Of a dense stream: the columns in which all samples have the values of `first_row`.
    pub constant: Vec<u32>,
    /// Of a dense stream: the values of the chunk's first samples.
    pub tried: Tried,
    /// Of a sparse stream: the lowest index, `i32::MAX` without entries.
    pub first: i32,
    /// Of a sparse stream: the highest index, -1 without entries.
    pub last: i32,
    /// Of a sparse stream: the highest index below `last`, if `last` is above [`Wanted::beyond`]; -1: none was found.
    pub second: i32,
    /// Of a sparse stream: the indices of the first sample, and of the first one that has others.
    pub forms: Vec<Vec<i32>>,
    /// The samples that are not one-hot, counted in the chunk; `None`: so many of the first that the stream is not.
    pub not_one_hot: Option<Vec<u32>>,
    /// Number of samples of each class: with a value other than 0 in a column, or with an index.
    pub counts: Vec<i64>,
}

/// The values of the first samples of a dense stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tried {
    /// Number of values.
    pub num_values: usize,
    /// Number of values that are 0.
    pub num_zeros: usize,
    /// True if all are whole numbers.
    pub are_whole: bool,
}

/// Samples whose values are tried.
const NUM_TRIED: usize = 64;
/// Samples that show whether a dense stream may be one-hot: it is not if more than a tenth of them are not.
const NUM_TRIED_FOR_CLASSES: usize = 512;
/// Bytes that are examined at a time, so that they stay in the cache.
const BYTES_AT_ONCE: usize = 64 << 10;
/// Bits for each number among which repeated numbers are found: a number is alone with its bit with a chance of 15 to
/// 16.
const BITS_OF_A_NUMBER: usize = 16;
/// Bytes that are worth a thread's turn.
const BYTES_OF_A_PART: usize = 1 << 20;
/// Seeds differ between the forms of numbers, in which the same bytes have different meanings.
const FULL_WIDTH: u64 = 0x9e37_79b9_7f4a_7c15;

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
    // The collected parts are in the order of the chunk, which the hashes and the lists of samples need.
    let found: Vec<(Vec<u64>, Vec<Figures>)> = parts.par_iter().map(of_part).collect();
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

/// The column of a block, in one of its forms.
enum View<'a> {
    F32(Rows<'a, f32, i32>),
    F64(Rows<'a, f64, i32>),
    I32(Rows<'a, i32, i32>),
    I64(Rows<'a, i64, i32>),
    Small(Rows<'a, u8, u16>),
}

/// Run the same code on the rows of any form.
macro_rules! in_any_form {
    ($view:expr, $rows:ident => $code:expr) => {
        match $view {
            View::F32($rows) => $code,
            View::F64($rows) => $code,
            View::I32($rows) => $code,
            View::I64($rows) => $code,
            View::Small($rows) => $code,
        }
    };
}

/// Of a sparse column: the first entry of each sample, and the indices; without offsets each sample has one entry.
type EntriesOf<'a, I> = Option<(Option<&'a [u32]>, Cow<'a, [I]>)>;

/// The samples of a column.
struct Rows<'a, T: Clone, I: Clone> {
    sequence_offsets: &'a [u32],
    dim: usize,
    values: Cow<'a, [T]>,
    entries: EntriesOf<'a, I>,
}

fn wide<'a>(sequence_offsets: &'a [u32], dim: usize, values: &'a Values, entries: EntriesOf<'a, i32>) -> View<'a> {
    fn of<'a, T: Clone>(
        sequence_offsets: &'a [u32],
        dim: usize,
        values: &'a [T],
        entries: EntriesOf<'a, i32>,
    ) -> Rows<'a, T, i32> {
        Rows { sequence_offsets, dim, values: Cow::Borrowed(values), entries }
    }
    match values {
        Values::F32(values) => View::F32(of(sequence_offsets, dim, values, entries)),
        Values::F64(values) => View::F64(of(sequence_offsets, dim, values, entries)),
        Values::I32(values) => View::I32(of(sequence_offsets, dim, values, entries)),
        Values::I64(values) => View::I64(of(sequence_offsets, dim, values, entries)),
    }
}

fn view(column: &Column) -> Option<View<'_>> {
    let sequence_offsets = &column.sequence_offsets[..];
    match &column.samples {
        Samples::Dense { dim, values } => Some(wide(sequence_offsets, *dim, values, None)),
        Samples::Sparse { dim, sample_offsets, indices, values } => {
            Some(wide(sequence_offsets, *dim, values, Some((Some(&sample_offsets[..]), Cow::Borrowed(&indices[..])))))
        }
        Samples::Small(small) => {
            let entries = small.numbers.indices().map(|indices| (small.sample_offsets.as_deref(), indices));
            // Indices and values are taken apart, and a value that the column keeps only once is repeated for each entry,
            // so that loops over rows have one case.
            Some(View::Small(Rows { sequence_offsets, dim: small.dim, values: small.numbers.values(), entries }))
        }
        // Numbers in two bytes, and samples that are as their file stores them: `survey` widens such a chunk first.
        _ => None,
    }
}

impl<T: Number, I: Index> Rows<'_, T, I> {
    fn num_samples(&self) -> usize {
        self.sequence_offsets.last().map_or(0, |&end| end as usize)
    }

    /// The values of some samples.
    #[inline]
    fn range(&self, samples: Span<usize>) -> Span<usize> {
        match &self.entries {
            None => samples.start * self.dim..samples.end * self.dim,
            Some((None, _)) => samples,
            Some((Some(offsets), _)) => offsets[samples.start] as usize..offsets[samples.end] as usize,
        }
    }

    /// The hash of the numbers of entries of some samples; `seed` if each has one, because only then a small column may
    /// lack offsets.
    #[inline]
    fn hash_of_sizes(&self, samples: Span<usize>, seed: u64, buffer: &mut Vec<u8>) -> u64 {
        let Some((Some(offsets), _)) = &self.entries else { return seed };
        let offsets = &offsets[samples.start..=samples.end];
        let first = offsets[0];
        if offsets.iter().zip(first..).all(|(&offset, one_by_one)| offset == one_by_one) {
            return seed;
        }
        hash_of(offsets, seed, buffer, |offset| (offset - first).to_le_bytes())
    }

    fn sample(&self, sample: usize) -> &[T] {
        &self.values[self.range(sample..sample + 1)]
    }

    fn indices_of(&self, samples: Span<usize>) -> &[I] {
        self.entries.as_ref().map_or(&[], |(_, indices)| &indices[self.range(samples)])
    }

    /// True if a sample has a single 1, and nothing else.
    #[inline]
    fn is_one_hot(&self, sample: usize) -> bool {
        let values = self.sample(sample);
        if self.entries.is_some() {
            return values.len() == 1 && values[0].is_one();
        }
        let (mut num_others, mut num_ones) = (0u32, 0u32);
        for value in values {
            num_others += u32::from(!value.is_zero());
            num_ones += u32::from(value.is_one());
        }
        (num_others, num_ones) == (1, 1)
    }
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
            in_any_form!(&self.views[block], rows => {
                rows.indices_of(sample..sample + 1).iter().map(|index| index.widened()).collect()
            })
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

impl<T: Number, I: Index> Rows<'_, T, I> {
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
        let Span { start: mut sequence, end } = part.sequences;
        let first = sequence;
        while sequence < end {
            // As many sequences as fit the cache, at least one.
            let from = self.sequence_offsets[sequence] as usize;
            let begin = self.range(from..from).start;
            let mut next = sequence;
            let mut values = begin..begin;
            let mut samples = from..from;
            while next < end && (next == sequence || size_of_val(&self.values[values.clone()]) < BYTES_AT_ONCE) {
                let sample = self.sequence_offsets[next + 1] as usize;
                let span = samples.end..sample;
                let own = self.range(span.clone());
                let seed = self.hash_of_sizes(span.clone(), hashes[next - first], buffer);
                let seed = T::hash(&self.values[own], seed, buffer);
                // The hash of the values seeds the hash of the indices, so equal values at other indices have another
                // hash.
                hashes[next - first] =
                    if self.entries.is_none() { seed } else { I::hash(self.indices_of(span), seed, buffer) };
                values.end = self.range(sample..sample).start;
                samples.end = sample;
                next += 1;
            }
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
            sequence = next;
        }
        found
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
                *count += i64::from(!value.is_zero());
            }
        }
    }

    fn add_indices(&self, wanted: &Wanted, samples: Span<usize>, found: &mut Figures) {
        let indices = self.indices_of(samples);
        let Some((first, last)) = I::range(indices) else { return };
        found.first = found.first.min(first);
        // If earlier samples had a higher index, no index below `last` is the second-highest, and the search is not
        // needed.
        let below = match last > wanted.beyond && last >= found.last {
            true => indices.iter().map(|index| index.widened()).filter(|&index| index < last).fold(-1, i32::max),
            false => -1,
        };
        (found.last, found.second) = two_highest([found.last, found.second, last, below]);
        // An index may be up to 2^31 - 2, and counting needs 8 bytes for each class.
        if (last as usize) < wanted.most_classes && found.last < wanted.most_classes as i32 {
            if found.counts.len() <= last as usize {
                found.counts.resize(last as usize + 1, 0);
            }
            indices.iter().for_each(|index| found.counts[index.widened() as usize] += 1);
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

/// Values in any form.
trait Number: Copy + Sync {
    fn hash(values: &[Self], seed: u64, buffer: &mut Vec<u8>) -> u64;
    fn range(values: &[Self]) -> Range;
    fn wide(self) -> f64;
    fn is_zero(self) -> bool;
    fn is_one(self) -> bool;
}

/// Indices in any form.
trait Index: Copy + Sync {
    fn hash(indices: &[Self], seed: u64, buffer: &mut Vec<u8>) -> u64;
    /// The lowest and the highest; `None` if there are none.
    fn range(indices: &[Self]) -> Option<(i32, i32)>;
    fn widened(self) -> i32;
}

impl Number for u8 {
    #[inline]
    fn hash(values: &[u8], seed: u64, _: &mut Vec<u8>) -> u64 {
        xxh3_64_with_seed(values, seed)
    }

    fn range(values: &[u8]) -> Range {
        let (low, high) =
            values.iter().fold((u8::MAX, u8::MIN), |(low, high), &value| (low.min(value), high.max(value)));
        if values.is_empty() {
            Range::NOTHING
        } else {
            Range { lowest: low.into(), highest: high.into(), is_finite: true }
        }
    }

    #[inline]
    fn wide(self) -> f64 {
        self.into()
    }

    #[inline]
    fn is_zero(self) -> bool {
        self == 0
    }

    #[inline]
    fn is_one(self) -> bool {
        self == 1
    }
}

/// The hash of numbers in full width that are not all small.
#[inline]
fn hash_of<const SIZE: usize, T: Copy>(
    numbers: &[T],
    seed: u64,
    buffer: &mut Vec<u8>,
    bytes: impl Fn(T) -> [u8; SIZE],
) -> u64 {
    let size = SIZE * numbers.len();
    if buffer.len() < size {
        memory::resize(buffer, size, 0);
    }
    let all = &mut buffer[..size];
    // The numbers are copied, because safe code cannot view them as bytes.
    all.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(out, &number)| *out = bytes(number));
    xxh3_64_with_seed(all, seed ^ FULL_WIDTH)
}

// This many float32 values fill the longest vector, of 64 bytes.
const NUM_LANES: usize = 16;

macro_rules! float {
    ($float:ty) => {
        impl Number for $float {
            fn hash(values: &[$float], seed: u64, buffer: &mut Vec<u8>) -> u64 {
                // The first value spares most measurements the conversion. A cast saturates and makes 0 of NaN, so the
                // cast of such a value differs from it.
                let may_be_small = values.first().is_none_or(|&first| <$float>::from(first as u8) == first);
                if may_be_small {
                    buffer.clear();
                    if <$float>::narrow(values, buffer) {
                        return xxh3_64_with_seed(buffer, seed);
                    }
                }
                hash_of(values, seed, buffer, <$float>::to_le_bytes)
            }

            /// Lanes, because the compiler must not change the order in which floating-point numbers are compared.
            fn range(values: &[$float]) -> Range {
                let (mut low, mut high) = ([<$float>::INFINITY; NUM_LANES], [<$float>::NEG_INFINITY; NUM_LANES]);
                let mut nothing = [0.0; NUM_LANES]; // becomes NaN with the first value that is not finite
                let mut add = |lane: usize, value: $float| {
                    // A comparison with NaN is false, so NaN does not change the range.
                    low[lane] = if value < low[lane] { value } else { low[lane] };
                    high[lane] = if value > high[lane] { value } else { high[lane] };
                    nothing[lane] += value * 0.0;
                };
                let groups = values.chunks_exact(NUM_LANES);
                groups.remainder().iter().enumerate().for_each(|(lane, &value)| add(lane, value));
                for group in groups {
                    (0..NUM_LANES).for_each(|lane| add(lane, group[lane]));
                }
                Range {
                    lowest: low.into_iter().fold(<$float>::INFINITY, <$float>::min).into(),
                    highest: high.into_iter().fold(<$float>::NEG_INFINITY, <$float>::max).into(),
                    is_finite: nothing.iter().all(|&sum| sum == 0.0),
                }
            }

            #[inline]
            fn wide(self) -> f64 {
                self.into()
            }

            #[inline]
            fn is_zero(self) -> bool {
                self == 0.0
            }

            #[inline]
            fn is_one(self) -> bool {
                self == 1.0
            }
        }
    };
}
float!(f32);
float!(f64);

macro_rules! whole_number {
    ($whole:ty) => {
        impl Number for $whole {
            fn hash(values: &[$whole], seed: u64, buffer: &mut Vec<u8>) -> u64 {
                if values.iter().all(|&value| u8::try_from(value).is_ok()) {
                    buffer.clear();
                    memory::extend(buffer, values.iter().map(|&value| value as u8));
                    return xxh3_64_with_seed(buffer, seed);
                }
                hash_of(values, seed, buffer, <$whole>::to_le_bytes)
            }

            fn range(values: &[$whole]) -> Range {
                let Some((&first, rest)) = values.split_first() else { return Range::NOTHING };
                let range = |(low, high): ($whole, $whole), &value: &$whole| (low.min(value), high.max(value));
                let (low, high) = rest.iter().fold((first, first), range);
                Range { lowest: low as f64, highest: high as f64, is_finite: true }
            }

            #[inline]
            fn wide(self) -> f64 {
                self as f64
            }

            #[inline]
            fn is_zero(self) -> bool {
                self == 0
            }

            #[inline]
            fn is_one(self) -> bool {
                self == 1
            }
        }
    };
}
whole_number!(i32);
whole_number!(i64);

impl Index for i32 {
    fn hash(indices: &[i32], seed: u64, buffer: &mut Vec<u8>) -> u64 {
        // These are the indices that `Small` keeps in two bytes, so both forms have the same hash.
        let are_small = indices.iter().all(|&index| u16::try_from(index).is_ok());
        if are_small {
            return hash_of(indices, seed, buffer, |index| (index as u16).to_le_bytes());
        }
        // Another seed, because in this form the same bytes are other indices.
        hash_of(indices, !seed, buffer, i32::to_le_bytes)
    }

    fn range(indices: &[i32]) -> Option<(i32, i32)> {
        let range = |(low, high): (i32, i32), &index: &i32| (low.min(index), high.max(index));
        (!indices.is_empty()).then(|| indices.iter().fold((i32::MAX, i32::MIN), range))
    }

    #[inline]
    fn widened(self) -> i32 {
        self
    }
}

impl Index for u16 {
    #[inline]
    fn hash(indices: &[u16], seed: u64, buffer: &mut Vec<u8>) -> u64 {
        hash_of(indices, seed, buffer, u16::to_le_bytes)
    }

    fn range(indices: &[u16]) -> Option<(i32, i32)> {
        let range = |(low, high): (u16, u16), &index: &u16| (low.min(index), high.max(index));
        let (low, high) = indices.iter().fold((u16::MAX, u16::MIN), range);
        (!indices.is_empty()).then_some((low.into(), high.into()))
    }

    #[inline]
    fn widened(self) -> i32 {
        self.into()
    }
}

/// The hash of each of some sequences of numbers, whose bytes are `bytes`, on all threads of the current pool.
///
/// Sequences end where the next one begins, and the last bound ends the last one; bounds count numbers of `size` bytes.
/// `seeds` has a number for each sequence, such as its hash in another stream. `None` if the bounds do not ascend, or
/// do not fit the bytes or the seeds.
#[must_use]
pub fn hashes(bytes: &[u8], size: usize, bounds: &[i64], seeds: &[u64]) -> Option<Vec<u64>> {
    if bounds.len() != seeds.len() + 1 {
        return None;
    }
    let place = |bound: i64| usize::try_from(bound).ok()?.checked_mul(size);
    let hash =
        |(pair, &seed): (&[i64], &u64)| Some(xxh3_64_with_seed(bytes.get(place(pair[0])?..place(pair[1])?)?, seed));
    let at_once = (BYTES_AT_ONCE * seeds.len() / bytes.len().max(1)).max(1);
    // Sequences may have a few bytes, so a thread takes many at a time.
    bounds.par_windows(2).zip(seeds).with_min_len(at_once).map(hash).collect()
}

/// The places of all numbers that occur more than once, in the order of the numbers and then of the places.
///
/// A number's high bits choose a bit. Numbers that are alone with their bit, mostly all of them, are not sorted.
#[must_use]
pub fn repeated(numbers: &[u64]) -> Vec<i64> {
    // The bits fill at least one word of 64.
    let shift = 64 - (BITS_OF_A_NUMBER * numbers.len().max(1)).next_power_of_two().ilog2().max(6);
    let num_words = 1 << (64 - shift - 6);
    // Two shifts, because a single word would need a shift by all 64 bits.
    let place = |number: u64| ((number >> shift >> 6) as usize, 1u64 << (number >> shift & 63));
    let [mut seen, mut seen_again] = [0, 1].map(|_| {
        let mut words: Vec<u64> = memory::with_room(num_words);
        words.resize(num_words, 0);
        words
    });
    for (word, bit) in numbers.iter().map(|&number| place(number)) {
        seen_again[word] |= seen[word] & bit;
        seen[word] |= bit;
    }
    let may_be_repeated = |&(_, &number): &(usize, &u64)| {
        let (word, bit) = place(number);
        seen_again[word] & bit != 0
    };
    let candidates = || numbers.iter().enumerate().filter(may_be_repeated);
    let mut sorted: Vec<(u64, i64)> = memory::with_room(candidates().count());
    sorted.extend(candidates().map(|(at, &number)| (number, at as i64)));
    // Places differ, so no two pairs are equal, and the sort need not be stable.
    sorted.sort_unstable();
    let groups = || sorted.chunk_by(|one, next| one.0 == next.0).filter(|group| group.len() > 1);
    let mut places = memory::with_room(groups().map(<[_]>::len).sum());
    places.extend(groups().flatten().map(|&(_, place)| place));
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENSE: Wanted =
        Wanted { stream: 0, constant: None, one_hot: true, most_classes: 0, beyond: -1, forms: false };
    const SPARSE: Wanted =
        Wanted { stream: 0, constant: None, one_hot: true, most_classes: 1 << 16, beyond: -1, forms: true };

    fn block(offsets: &[u32], samples: Samples) -> Block {
        let column = Column { sequence_offsets: offsets.to_vec(), samples };
        column.check(offsets.len() - 1).expect("a sound column");
        Block { num_sequences: offsets.len() - 1, columns: vec![column] }
    }

    fn dense(offsets: &[u32], dim: usize, values: &[f32]) -> Block {
        block(offsets, Samples::Dense { dim, values: Values::F32(values.to_vec()) })
    }

    fn sparse(offsets: &[u32], sample_offsets: &[u32], entries: &[(i32, f32)]) -> Block {
        let (indices, values): (Vec<i32>, Vec<f32>) = entries.iter().copied().unzip();
        let (sample_offsets, values) = (sample_offsets.to_vec(), Values::F32(values));
        block(offsets, Samples::Sparse { dim: 1 << 20, sample_offsets, indices, values })
    }

    /// Store the values of a block in small form.
    fn small(block: &Block) -> Block {
        let column = &block.columns[0];
        let (dim, values, entries) = column.samples.wide().expect("full width");
        let samples = crate::chunk::Small::of(dim, values, entries, None).expect("small numbers");
        let column = Column { sequence_offsets: column.sequence_offsets.clone(), samples: Samples::Small(samples) };
        Block { num_sequences: block.num_sequences, columns: vec![column] }
    }

    fn figures(blocks: &[Block], wanted: &Wanted) -> (Vec<u64>, Figures) {
        let (hashes, mut figures) =
            survey(&Chunk::new(blocks.to_vec()), std::slice::from_ref(wanted)).expect("a sound chunk");
        (hashes, figures.remove(0))
    }

    #[test]
    fn the_form_of_a_column_changes_no_figure() {
        let one_hot = dense(&[0, 1, 3], 3, &[1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
        let words = sparse(&[0, 2, 3], &[0, 1, 3, 4], &[(7, 1.0), (9, 1.0), (3, 2.0), (7, 1.0)]);
        for (block, wanted) in [(one_hot, DENSE), (words, SPARSE)] {
            assert_eq!(figures(std::slice::from_ref(&block), &wanted), figures(&[small(&block)], &wanted));
            let (hashes, both) = figures(&[block.clone(), small(&block)], &wanted);
            assert_eq!((hashes[0], hashes[1], hashes[0] != hashes[1]), (hashes[2], hashes[3], true));
            assert_eq!(both.num_samples, 6);
        }
    }

    #[test]
    fn equal_sequences_have_equal_hashes_next_to_numbers_of_any_size() {
        let (hashes, _) = figures(&[dense(&[0, 1, 2, 3, 4], 1, &[1.0, 0.5, 1.0, 300.0])], &DENSE);
        assert!(hashes[0] == hashes[2] && hashes[0] != hashes[1] && hashes[1] != hashes[3]);
        let wide = sparse(&[0, 1, 2, 3], &[0, 1, 2, 3], &[(7, 1.0), (70_000, 1.0), (7, 0.5)]);
        let (all, _) = figures(&[small(&sparse(&[0, 1], &[0, 1], &[(7, 1.0)])), wide], &SPARSE);
        assert!(all[0] == all[1] && all[1] != all[2] && all[1] != all[3]);
    }

    #[test]
    fn equal_entries_in_other_samples_have_another_hash() {
        // Samples of one entry each; of two and none; of none and two; a sample of two.
        let words = sparse(&[0, 2, 4, 6, 7], &[0, 1, 2, 4, 4, 4, 6, 8], &[(7, 1.0), (9, 1.0)].repeat(4));
        let (hashes, _) = figures(&[words.clone(), small(&words)], &SPARSE);
        assert_eq!(hashes[..4], hashes[4..]);
        assert_eq!(repeated(&hashes[..4]), []);
        let empty = figures(&[sparse(&[0, 1, 3], &[0, 0, 0, 0], &[])], &SPARSE).0;
        assert_ne!(empty[0], empty[1]);
        // The small form has no offsets while each sample has one entry.
        let tags = sparse(&[0, 1, 2], &[0, 1, 2], &[(7, 1.0), (7, 1.0)]);
        let later = sparse(&[0, 1, 2], &[0, 1, 3], &[(7, 1.0), (7, 1.0), (9, 1.0)]);
        let all = figures(&[small(&tags), later], &SPARSE).0;
        assert!(all[0] == all[1] && all[1] == all[2] && all[2] != all[3]);
    }

    #[test]
    fn a_dense_stream_has_its_range_its_constant_columns_and_its_classes() {
        let (_, found) = figures(&[dense(&[0, 1], 2, &[0.0, 1.0]), dense(&[0, 2], 2, &[1.0, 1.0, 0.5, 1.0])], &DENSE);
        assert_eq!((found.range.lowest, found.range.highest, found.num_values), (0.0, 1.0, 6));
        assert_eq!((found.first_row, found.constant, found.not_one_hot), (vec![0.0, 1.0], vec![1], None));
        assert_eq!(found.tried, Tried { num_values: 6, num_zeros: 1, are_whole: false });
        let mut rows = [0.0, 1.0].repeat(20);
        rows[0] = 1.0;
        let (_, found) = figures(&[dense(&(0..=20).collect::<Vec<_>>(), 2, &rows)], &DENSE);
        assert_eq!((found.not_one_hot, found.counts), (Some(vec![0]), vec![1, 20]));
        let known = Wanted { constant: Some((&[0.0, 1.0], &[1])), one_hot: false, ..DENSE };
        assert_eq!(figures(&[dense(&[0, 1], 2, &[5.0, 2.0])], &known).1.constant, []);
    }

    #[test]
    fn a_sparse_stream_has_its_two_highest_indices_its_forms_and_its_classes() {
        let blocks = [
            sparse(&[0, 2], &[0, 1, 2], &[(4, 1.0), (4, 1.0)]),
            sparse(&[0, 1, 2], &[0, 2, 3], &[(9, 1.0), (2, 1.0), (9, 3.0)]),
        ];
        let (_, found) = figures(&blocks, &SPARSE);
        assert_eq!((found.first, found.last, found.second, found.num_values), (2, 9, 4, 5));
        assert_eq!((found.forms, found.not_one_hot), (vec![vec![4], vec![9, 2]], Some(vec![2, 3])));
        assert_eq!((found.counts[2], found.counts[4], found.counts[9]), (1, 2, 2));
        let nothing = figures(&[sparse(&[0, 1], &[0, 0], &[])], &SPARSE).1;
        assert_eq!((nothing.first, nothing.last, nothing.range), (i32::MAX, -1, Range::NOTHING));
    }

    #[test]
    fn large_chunks_have_the_figures_of_their_parts() {
        let values: Vec<f32> = (0..1_000_000).map(|at| (at % 501) as f32).collect();
        let offsets: Vec<u32> = (0..=1000).map(|at| at * 100).collect();
        let (hashes, found) = figures(&[dense(&offsets, 10, &values)], &DENSE);
        assert_eq!((hashes.len(), found.range.lowest, found.range.highest), (1000, 0.0, 500.0));
        assert_eq!((found.num_samples, found.num_values), (100_000, 1_000_000));
        assert!(hashes[0] != hashes[1] && hashes[0] == hashes[501]);
        // The last cacheful has the second-highest index.
        let mut entries = vec![(9, 1.0); 60_000];
        entries[59_998].0 = 5;
        let offsets: Vec<u32> = (0..=60_000).collect();
        let (_, found) = figures(&[sparse(&offsets, &offsets, &entries)], &SPARSE);
        assert_eq!((found.first, found.last, found.second), (5, 9, 5));
    }

    #[test]
    fn any_value_that_is_not_finite_is_noticed_and_does_not_hide_the_range() {
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..40 {
                let mut values = vec![3.0; 40];
                (values[20], values[at]) = (4.0, strange);
                assert!(!f32::range(&values).is_finite, "{strange} at {at}");
            }
        }
        assert_eq!(f32::range(&[]), Range::NOTHING);
    }

    #[test]
    fn repeated_numbers_are_found_with_all_their_places() {
        assert_eq!(repeated(&[]), []);
        assert_eq!(repeated(&[7]), []);
        assert_eq!(repeated(&[u64::MAX, 3, 0, 3, u64::MAX, 5, 3]), [1, 3, 6, 0, 4]);
        // The high bits are equal, so all numbers have the same bit.
        assert_eq!(repeated(&[1, 2, 3, 2]), [1, 3]);
        let mut numbers: Vec<u64> = (0..10_000u64).map(|number| number.wrapping_mul(FULL_WIDTH)).collect();
        assert_eq!(repeated(&numbers), []);
        numbers[9_000] = numbers[17];
        assert_eq!(repeated(&numbers), [17, 9_000]);
    }

    #[test]
    fn hashes_of_arrays_depend_on_bytes_and_seeds() {
        let bytes = [1, 2, 1, 2, 1, 3];
        let found = hashes(&bytes, 2, &[0, 1, 2, 3], &[1, 1, 1]).expect("good bounds");
        assert!(found[0] == found[1] && found[1] != found[2]);
        assert_ne!(hashes(&bytes, 2, &[0, 1], &[2]).expect("good bounds")[0], found[0]);
        assert!([&[0, 4][..], &[2, 1], &[-1, 2], &[0]].iter().all(|bounds| hashes(&bytes, 2, bounds, &[1]).is_none()));
        assert!(hashes(&bytes, 8, &[0, 1 << 61], &[1]).is_none());
    }
}
