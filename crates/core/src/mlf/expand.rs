//! Runs into samples, when they are packed.

use crate::chunk::Runs;
use std::ops::Range;

/// The samples of a sequence, run by run: class, whether the first of them is marked, and how many.
pub fn expand(
    runs: &Runs,
    number: usize,
    num_samples: usize,
    samples: Range<usize>,
    mut take: impl FnMut(u32, bool, usize),
) {
    let (begin, end) = (runs.offsets[number] as usize, runs.offsets[number + 1] as usize);
    let starts = &runs.starts[begin..end];
    let mut sample = samples.start;
    let mut run = starts.partition_point(|&start| start as usize <= sample).saturating_sub(1);
    while sample < samples.end && run < starts.len() {
        let until = starts.get(run + 1).map_or(num_samples, |&start| start as usize).min(samples.end);
        let is_start = runs.marks_starts && sample == starts[run] as usize;
        if until > sample {
            take(runs.classes[begin + run], is_start, until - sample);
            sample = until;
        }
        run += 1;
    }
}
