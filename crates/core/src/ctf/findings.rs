//! Findings: faults and oddities of the text, counted by kind, the first of each kind in full.

use crate::MOST_IN_FULL;
use crate::named::named;
use memchr::memchr;

named! {
    /// A kind of finding. The first [`NUM_ERRORS`] kinds cost one error each; the other kinds cause a warning.
    pub enum Kind {
        /// A byte that cannot be part of a number.
        BadNumber = "bad number",
        /// No digits where an index should be.
        BadIndex = "bad index",
        /// An index at or above the dimension.
        IndexOutOfRange = "index out of range",
        /// No colon after an index.
        MissingColon = "missing colon",
        /// A dense sample with more values than its dimension.
        TooManyValues = "too many values",
        /// A printable byte where a sample should start.
        Junk = "junk",
        /// A pipe without a name after it.
        PipeWithoutName = "pipe without a name",
        /// The data end inside a name.
        NameAtEnd = "name at the end",
        /// The data end where the first value should be.
        EmptyAtEnd = "no value at the end",
        /// A line without a sample.
        LineWithoutSample = "line without a sample",
        /// A stream without a sample in a sequence.
        MissingStream = "stream without a sample",
        /// More samples than lines.
        TooManySamples = "too many samples",
        /// Fewer samples than lines.
        TooFewSamples = "too few samples",
        /// An index that is not above the index before it, in a svmlight text.
        Descending = "index not ascending",
        /// A label that is not a number, or not the number of a class, in a svmlight text.
        BadLabel = "bad label",
        /// No query, or not a whole number, in a svmlight text.
        BadQuery = "bad query",
        /// A byte above 0x7F ended a sample's values.
        HighByte = "byte above 0x7F",
        /// A dense sample was filled up with zeros.
        ShortSample = "short dense sample",
        /// A second sample of a stream on a line.
        StreamAgain = "stream twice on a line",
        /// The name of no stream; a finding only on request.
        UnknownName = "unknown name",
        /// A carriage return, counted on request, once for each part of the text, which costs nothing.
        CarriageReturn = "carriage return",
    }
}

/// Number of kinds that cost an error.
pub const NUM_ERRORS: usize = Kind::BadQuery as usize + 1;
/// Number of kinds that cost an error if warnings are errors.
pub const NUM_COSTLY: usize = Kind::CarriageReturn as usize;
/// Number of kinds.
pub const NUM_KINDS: usize = Kind::NAMES.len();

/// A fault or an oddity of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// Its offset in the text.
    pub at: usize,
    /// The sequence, as an index into the list of extents.
    pub sequence: usize,
    /// The stream, if the finding concerns one.
    pub stream: Option<usize>,
    /// The number that was counted or read: values, samples, an index. Of a stream without a sample: for how many other
    /// sequences this finding stands.
    pub found: u64,
}

/// The findings of a piece of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// Number of findings of each kind.
    pub counts: [u64; NUM_KINDS],
    /// The first [`MOST_IN_FULL`] of each kind, or all of them, in the order of the text.
    pub first: Vec<Finding>,
    /// The error for which no budget was left. Parsing stopped there.
    pub last_straw: Option<Finding>,
    /// Errors that may still be forgiven.
    pub(super) budget: u64,
    is_strict: bool,
    /// Number of findings of a kind to keep in `first`.
    most: usize,
    gaps: Vec<Gaps>,
}

/// The missing samples of a stream that are kept, if all findings are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Gaps {
    /// In sequences without and with an unknown name: their number, and where in `Findings::first` the last of them is.
    kept: [(usize, usize); 2],
    /// The last sequence, counted from 1, with a finding that explains why the stream has no sample.
    explained: usize,
}

/// A sequence may lack more samples than its text has bytes, so of each stream only the first are kept.
const MOST_GAPS: usize = 3;
/// Findings that explain each missing sample of their sequence.
const BAD_LINES: [Kind; 5] =
    [Kind::Junk, Kind::PipeWithoutName, Kind::NameAtEnd, Kind::EmptyAtEnd, Kind::LineWithoutSample];
/// Findings of a sample that is dropped.
const BAD_SAMPLES: [Kind; 5] =
    [Kind::BadNumber, Kind::BadIndex, Kind::IndexOutOfRange, Kind::MissingColon, Kind::TooManyValues];

impl Findings {
    /// No findings so far, and a budget of errors to forgive. If `is_strict`, a warning costs an error, too.
    pub fn new(budget: u64, is_strict: bool) -> Findings {
        Findings {
            counts: [0; NUM_KINDS],
            first: Vec::new(),
            last_straw: None,
            budget,
            is_strict,
            most: MOST_IN_FULL,
            gaps: Vec::new(),
        }
    }

    /// Findings that keep every finding in full.
    pub(super) fn in_full(self, is_wanted: bool) -> Findings {
        Findings { most: if is_wanted { usize::MAX } else { self.most }, ..self }
    }

    /// Number of errors so far.
    pub fn num_errors(&self) -> u64 {
        self.counts[..if self.is_strict { NUM_COSTLY } else { NUM_ERRORS }].iter().sum()
    }

    /// Add a finding.
    ///
    /// # Errors
    /// The budget is spent.
    // Sound text has no findings, so the code around each call is laid out for the case without a call.
    #[cold]
    pub(super) fn add(&mut self, finding: Finding) -> Result<(), Stop> {
        let kind = finding.kind as usize;
        self.counts[kind] += 1;
        if self.counts[kind] <= self.most as u64 {
            self.first.push(finding);
        }
        if kind < NUM_ERRORS || self.is_strict {
            // As in CNTK, a budget of n forgives n errors, and the error after them ends the parse.
            if self.budget == 0 {
                self.last_straw = Some(finding);
                return Err(Stop);
            }
            self.budget -= 1;
        }
        Ok(())
    }

    /// After a sequence that lacks samples: keep only the findings that no other finding of the sequence explains, and of each
    /// stream the first [`MOST_GAPS`], the last of which counts the others. `known` findings precede the sequence.
    #[cold]
    pub(super) fn thin_out_gaps(&mut self, known: usize, num_streams: usize) {
        if self.most != usize::MAX {
            return;
        }
        self.gaps.resize(num_streams, Gaps::default());
        let own = self.first.split_off(known);
        let has = |kinds: &[Kind]| own.iter().any(|finding| kinds.contains(&finding.kind));
        let (is_explained, has_unknown) = (has(&BAD_LINES), usize::from(has(&[Kind::UnknownName])));
        let mut is_any_kept = false;
        for finding in &own {
            let gaps = finding.stream.map(|stream| &mut self.gaps[stream]);
            match gaps {
                Some(gaps) if finding.kind == Kind::MissingStream => {
                    let (num_kept, last) = &mut gaps.kept[has_unknown];
                    if is_explained || gaps.explained == finding.sequence + 1 {
                        continue;
                    }
                    if *num_kept == MOST_GAPS {
                        self.first[*last].found += 1;
                        continue;
                    }
                    (*num_kept, *last, is_any_kept) = (*num_kept + 1, self.first.len(), true);
                }
                Some(gaps) if BAD_SAMPLES.contains(&finding.kind) => gaps.explained = finding.sequence + 1,
                _ => {}
            }
            self.first.push(*finding);
        }
        // A name that is unknown because it is misspelled is the cause of a missing sample, and has no finding then.
        if !is_any_kept && has_unknown == 1 {
            let own = self.first.split_off(known);
            self.first.extend(own.into_iter().filter(|finding| finding.kind != Kind::UnknownName));
        }
    }

    /// Note whether a part of the text has a carriage return, if every finding is wanted.
    pub(super) fn note_line_ends(&mut self, part: &[u8]) {
        let is_wanted = self.most == usize::MAX;
        // A part without a carriage return is searched to its end, so the search is left out unless its result is
        // wanted.
        self.counts[Kind::CarriageReturn as usize] += u64::from(is_wanted && memchr(b'\r', part).is_some());
    }

    /// Append the findings of the following text, whose sequences are numbered from `first_sequence`.
    pub(super) fn append(&mut self, next: &Findings, first_sequence: usize) {
        let renumbered = |finding: &Finding| Finding { sequence: finding.sequence + first_sequence, ..*finding };
        // Up to the limit, every counted finding of a kind is also kept.
        let mut num_kept = self.counts;
        for finding in &next.first {
            let num_kept = &mut num_kept[finding.kind as usize];
            if *num_kept < self.most as u64 {
                *num_kept += 1;
                self.first.push(renumbered(finding));
            }
        }
        for (count, more) in self.counts.iter_mut().zip(next.counts) {
            *count += more;
        }
        // The last straw counts as an error, so there may be one error more than the budget allows.
        self.budget = self.budget.saturating_sub(next.num_errors());
        self.last_straw = next.last_straw.as_ref().map(renumbered);
    }
}

/// The budget is spent: parsing stops.
#[derive(Debug)]
pub(super) struct Stop;
