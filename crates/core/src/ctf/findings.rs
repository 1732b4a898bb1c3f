//! Findings: faults and oddities of the text, counted, the first of each kind in full.

/// What was met in the text. The first `NUM_ERRORS` cost one error each, the others are worth a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A byte that cannot stand in a number.
    BadNumber,
    /// No digits where an index should be.
    BadIndex,
    /// An index at or above the dimension.
    IndexOutOfRange,
    /// No colon behind an index.
    MissingColon,
    /// A dense sample with more values than its dimension.
    TooManyValues,
    /// A printable byte where a sample should start.
    Junk,
    /// A pipe without a name behind it.
    PipeWithoutName,
    /// The data end inside a name.
    NameAtEnd,
    /// The data end where the first value should be.
    EmptyAtEnd,
    /// A line without a sample.
    LineWithoutSample,
    /// A stream without a sample in a sequence.
    MissingStream,
    /// More samples than lines.
    TooManySamples,
    /// Fewer samples than lines.
    TooFewSamples,
    /// A byte above 0x7F ended a sample's values.
    HighByte,
    /// A dense sample was filled up with zeros.
    ShortSample,
}

/// Kinds that cost an error.
pub const NUM_ERRORS: usize = 13;

/// All kinds.
pub const NUM_KINDS: usize = 15;

/// How many findings of a kind are kept in full.
pub const MOST_IN_FULL: usize = 10;

/// One thing met in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// Position in the bytes.
    pub at: usize,
    /// The sequence, as a number in the list that was given.
    pub sequence: usize,
    /// The stream, where one is concerned.
    pub stream: Option<usize>,
    /// What was counted or read: values, samples, an index.
    pub found: u64,
}

/// All that was met in a piece of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// How many of each kind.
    pub counts: [u64; NUM_KINDS],
    /// The first [`MOST_IN_FULL`] of each kind, in the order of the text.
    pub first: Vec<Finding>,
    /// The error that found the budget empty; parsing stopped there.
    pub last_straw: Option<Finding>,
    pub(super) budget: u64,
    is_strict: bool,
}

impl Findings {
    /// Nothing yet, and `budget` errors to forgive; if `is_strict`, what is worth a warning costs an error too.
    pub fn new(budget: u64, is_strict: bool) -> Findings {
        Findings { counts: [0; NUM_KINDS], first: Vec::new(), last_straw: None, budget, is_strict }
    }

    /// Errors so far.
    pub fn num_errors(&self) -> u64 {
        self.counts[..if self.is_strict { NUM_KINDS } else { NUM_ERRORS }].iter().sum()
    }

    /// Note a finding; `Err` if the budget is empty.
    #[cold]
    pub(super) fn note(&mut self, finding: Finding) -> Result<(), Stop> {
        let kind = finding.kind as usize;
        self.counts[kind] += 1;
        if self.counts[kind] <= MOST_IN_FULL as u64 {
            self.first.push(finding);
        }
        if kind < NUM_ERRORS || self.is_strict {
            if self.budget == 0 {
                self.last_straw = Some(finding);
                return Err(Stop);
            }
            self.budget -= 1;
        }
        Ok(())
    }

    /// Take up the findings of the text behind, whose sequences are numbered from `first_sequence`.
    pub(super) fn append(&mut self, behind: &Findings, first_sequence: usize) {
        let renumbered = |finding: &Finding| Finding { sequence: finding.sequence + first_sequence, ..*finding };
        for finding in &behind.first {
            if self.first.iter().filter(|earlier| earlier.kind == finding.kind).count() < MOST_IN_FULL {
                self.first.push(renumbered(finding));
            }
        }
        for (count, more) in self.counts.iter_mut().zip(behind.counts) {
            *count += more;
        }
        self.budget = self.budget.saturating_sub(behind.num_errors());
        self.last_straw = behind.last_straw.as_ref().map(renumbered);
    }
}

/// The budget is spent.
#[derive(Debug)]
pub(super) struct Stop;
