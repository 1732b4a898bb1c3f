//! Runs of samples of one class each, as in label files.

use super::bytes::Bytes;
use super::ragged::{Error, Form, Gather, Located, RaggedEntries, Takes, span, try_reserve};
use super::values::{NumberType, Values};
use crate::memory;
use cntkio_simd::prefetch_first;
use std::ops::Range;
use std::sync::OnceLock;

/// Runs of samples of one class each.
///
/// They are packed in single precision: as sparse samples of one entry or, if classes have targets, as dense samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Runs {
    /// Number of classes.
    pub dim: usize,
    /// The first run of each sequence and, last, the number of runs.
    pub offsets: Vec<u32>,
    /// The first sample of each run, counted in its sequence: ascending from 0.
    pub starts: Vec<u32>,
    /// The class of each run.
    pub classes: Vec<u32>,
    /// True if the first sample of a run has the value 2 instead of 1.
    pub marks_starts: bool,
    /// The vectors that are delivered in place of one-hot vectors.
    pub targets: Option<Targets>,
    /// The class of each sample of the column, computed when single samples are first gathered.
    pub each: OnceLock<Vec<u32>>,
}

/// A dense vector of 0 and 1 for each class.
#[derive(Debug, Clone, PartialEq)]
pub struct Targets {
    /// Values of a vector.
    pub dim: usize,
    /// The vectors, class after class, a byte for each value.
    pub rows: Bytes,
}

impl Targets {
    /// The vector of a class; empty beyond the table.
    #[inline]
    fn row(&self, class: u32) -> &[u8] {
        // `check` has seen a row for each class below the dimension, so only classes beyond it have none.
        let begin = class as usize * self.dim;
        self.rows.as_slice().get(begin..begin + self.dim).unwrap_or_default()
    }
}

impl Runs {
    pub(crate) fn form(&self) -> Form {
        match &self.targets {
            None => Form { dim: self.dim, is_sparse: true, number: NumberType::F32 },
            Some(targets) => Form { dim: targets.dim, is_sparse: false, number: NumberType::F32 },
        }
    }

    /// The class of each sample of all sequences; `sequence_offsets` belong to the same column.
    fn each(&self, sequence_offsets: &[u32]) -> &[u32] {
        if let Some(each) = self.each.get() {
            return each;
        }
        // Computed outside `get_or_init`: if the process forked while another thread computes inside it, the child
        // would wait forever.
        let mut each = memory::with_room(sequence_offsets.last().map_or(0, |&end| end as usize));
        for (sequence, samples) in sequence_offsets.windows(2).enumerate() {
            let num_samples = (samples[1] - samples[0]) as usize;
            self.expand(sequence, num_samples, 0..num_samples, |class, _, count| {
                each.resize(each.len() + count, class);
            });
        }
        // If another thread was faster, its list stays; both lists are the same.
        self.each.get_or_init(|| each)
    }

    /// Split some samples of a sequence into runs: class, whether the first of the samples is marked, number of
    /// samples.
    #[inline]
    pub fn expand(
        &self,
        sequence: usize,
        num_samples: usize,
        samples: Range<usize>,
        mut take: impl FnMut(u32, bool, usize),
    ) {
        let (begin, end) = (self.offsets[sequence] as usize, self.offsets[sequence + 1] as usize);
        let starts = &self.starts[begin..end];
        let mut sample = samples.start;
        // The first run begins at 0, so a run at or before the sample exists, unless the sequence has no runs.
        let mut run = starts.partition_point(|&start| start as usize <= sample).saturating_sub(1);
        while sample < samples.end && run < starts.len() {
            let until = starts.get(run + 1).map_or(num_samples, |&start| start as usize).min(samples.end);
            let is_start = self.marks_starts && sample == starts[run] as usize;
            if until > sample {
                take(self.classes[begin + run], is_start, until - sample);
                sample = until;
            }
            run += 1;
        }
    }

    /// Check that the runs cover their sequences; the message names the fault.
    pub(crate) fn check(&self, sequence_offsets: &[u32]) -> Result<(), String> {
        if let Some(Targets { dim, rows }) = &self.targets
            && (*dim == 0 || dim.checked_mul(self.dim) != Some(rows.as_slice().len()))
        {
            return Err(format!("{} bytes of targets, but {} classes of {dim}", rows.as_slice().len(), self.dim));
        }
        // The offsets are indices below, so they are checked first.
        super::check_offsets("run offsets", &self.offsets, sequence_offsets.len() - 1)?;
        let num_runs = self.offsets[self.offsets.len() - 1] as usize;
        let (num_starts, num_classes) = (self.starts.len(), self.classes.len());
        if (num_starts, num_classes) != (num_runs, num_runs) {
            return Err(format!("{num_runs} runs, but {num_starts} starts and {num_classes} classes"));
        }
        if let Some(class) = self.classes.iter().find(|&&class| class as usize >= self.dim) {
            return Err(format!("class {class}, but the dimension is {}", self.dim));
        }
        for (runs, samples) in self.offsets.windows(2).zip(sequence_offsets.windows(2)) {
            let starts = &self.starts[runs[0] as usize..runs[1] as usize];
            let num_samples = samples[1] - samples[0];
            let is_sound = match starts {
                [] => num_samples == 0,
                [only] => *only == 0 && num_samples > 0,
                [first, .., last] => *first == 0 && *last < num_samples,
            };
            // A gap or an empty run would make `expand` deliver too few or wrong samples.
            if !is_sound || starts.windows(2).any(|pair| pair[0] >= pair[1]) {
                return Err("runs that do not cover their sequence".to_owned());
            }
        }
        Ok(())
    }

    /// Bytes of memory: more after single samples were gathered.
    pub(crate) fn num_bytes(&self) -> usize {
        // The classes of single samples take more memory than the runs, so a chunk can grow after it was loaded.
        let num_each = self.each.get().map_or(0, Vec::len);
        4 * (self.offsets.len() + self.starts.len() + self.classes.len() + num_each)
    }
}

/// Gathers columns of this kind, all of one form, each with its sequence offsets.
pub(crate) fn gatherer<'a>(columns: Vec<(&'a Runs, &'a [u32])>) -> Box<dyn Gather + 'a> {
    let are_marked = columns.iter().any(|(runs, _)| runs.marks_starts);
    Box::new(AllRuns { columns, are_marked, each: OnceLock::new() })
}

struct AllRuns<'a> {
    columns: Vec<(&'a Runs, &'a [u32])>,
    /// True if some starts are marked.
    are_marked: bool,
    /// The class of each sample, and the sequence offsets, of each column.
    each: OnceLock<Vec<(&'a [u32], &'a [u32])>>,
}

/// The samples that a selection takes from a sequence.
struct Taken<'a> {
    runs: &'a Runs,
    /// The sequence, counted in the column.
    sequence: usize,
    /// Samples of the sequence.
    num_samples: usize,
    /// The samples that are taken, counted in the sequence.
    samples: Range<usize>,
}

impl Taken<'_> {
    /// [`Runs::expand`] the samples that are taken.
    #[inline]
    fn expand(&self, take: impl FnMut(u32, bool, usize)) {
        self.runs.expand(self.sequence, self.num_samples, self.samples.clone(), take);
    }
}

impl Gather for AllRuns<'_> {
    fn gather(
        &self,
        located: &Located,
        mut takes: Takes,
        values: &mut Values,
        entries: Option<&mut RaggedEntries>,
    ) -> Result<(), Error> {
        // Labels are packed in single precision. The packer widens them afterwards.
        let Values::F32(values) = values else { return Err(Error::Mixed) };
        let Some(entries) = entries else {
            return append_targets(&self.taken(located, takes)?, values);
        };
        let indices = &mut entries.indices;
        let num_before = indices.len();
        // Only the runs tell which samples are marked, so marked columns expand them.
        if let Some(samples) = if self.are_marked { None } else { takes.single() } {
            self.append_single_samples(located, &takes, samples, indices)?;
            let num_values = values.len() + samples.len();
            memory::resize(values, num_values, 1.0);
        } else {
            let all = self.taken(located, takes)?;
            // The samples have memory from here on, so the growth in the loop cannot fail.
            let num_samples = num_samples(&all);
            try_reserve(values, num_samples)?;
            try_reserve(indices, num_samples)?;
            for taken in &all {
                taken.expand(|class, is_start, count| {
                    indices.resize(indices.len() + count, class as i32);
                    let end = values.len() + count;
                    if is_start {
                        values.push(2.0);
                    }
                    values.resize(end, 1.0);
                });
            }
        }
        let num_after = indices.len();
        entries.reserve(num_after - num_before);
        entries.sample_offsets.extend(num_before as i64 + 1..=num_after as i64);
        Ok(())
    }
}

impl<'a> AllRuns<'a> {
    /// The samples that the selection takes from each sequence.
    fn taken(&self, located: &Located, mut takes: Takes) -> Result<Vec<Taken<'_>>, Error> {
        let mut all = memory::with_room(located.num_sequences);
        located.each(&self.columns, |&(runs, sequence_offsets), sequence| {
            let (begin, end) = span(sequence_offsets, sequence)?;
            let num_samples = end - begin;
            let (first, count) = takes.next(num_samples, false)?;
            let samples = first as usize..first as usize + count as usize;
            all.push(Taken { runs, sequence, num_samples: num_samples as usize, samples });
            Ok(())
        })?;
        Ok(all)
    }

    /// Append the class of one sample of each sequence. All samples are prefetched before the first is read.
    fn append_single_samples(
        &self,
        located: &Located,
        takes: &Takes,
        samples: &[u32],
        indices: &mut Vec<i32>,
    ) -> Result<(), Error> {
        let mut classes: Vec<&u32> = memory::with_room(samples.len());
        let each = |&(runs, sequence_offsets): &(&'a Runs, &'a [u32])| (runs.each(sequence_offsets), sequence_offsets);
        let columns = self.each.get_or_init(|| self.columns.iter().map(each).collect());
        located.each(columns, |(each, sequence_offsets), sequence| {
            let (begin, end) = span(sequence_offsets, sequence)?;
            let sample = samples[classes.len()];
            if sample >= end - begin {
                return Err(takes.too_short(classes.len(), end - begin));
            }
            // A reference is kept, because reading the class here would wait for memory.
            let class = &each[begin as usize + sample as usize];
            prefetch_first(std::slice::from_ref(class));
            classes.push(class);
            Ok(())
        })?;
        memory::extend(indices, classes.into_iter().map(|&class| class as i32));
        Ok(())
    }
}

fn num_samples(all: &[Taken]) -> usize {
    all.iter().map(|taken| taken.samples.len()).sum()
}

/// Append the target vectors of the classes.
fn append_targets(all: &[Taken], out: &mut Vec<f32>) -> Result<(), Error> {
    let Some(first) = all.first() else { return Ok(()) };
    try_reserve(out, num_samples(all).checked_mul(first.runs.form().dim).ok_or(Error::TooLarge(usize::MAX))?)?;
    for taken in all {
        let targets = taken.runs.targets.as_ref().ok_or(Error::Mixed)?;
        taken.expand(|class, _, count| {
            let row = targets.row(class);
            (0..count).for_each(|_| out.extend(row.iter().map(|&value| f32::from(value))));
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_expanded_from_any_sample_on() {
        let runs = Runs {
            dim: 9,
            offsets: vec![0, 1, 3],
            starts: vec![0, 0, 2],
            classes: vec![8, 3, 4],
            marks_starts: true,
            targets: None,
            each: OnceLock::new(),
        };
        let all = |range| {
            let mut found = Vec::new();
            runs.expand(1, 5, range, |class, is_start, count| found.push((class, is_start, count)));
            found
        };
        assert_eq!(all(0..5), [(3, true, 2), (4, true, 3)]);
        assert_eq!(all(1..4), [(3, false, 1), (4, true, 2)]);
        assert_eq!(all(4..5), [(4, false, 1)]);
        assert_eq!(all(2..2), []);
        assert_eq!(runs.num_bytes(), 4 * (3 + 3 + 3));
        assert_eq!(runs.each(&[0, 2, 7]), [8, 8, 3, 3, 4, 4, 4]);
        assert_eq!(runs.num_bytes(), 4 * (3 + 3 + 3 + 7));
    }
}
