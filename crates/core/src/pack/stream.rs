//! A stream that is gathered out of the columns of chunks.
//!
//! The chunks of a corpus have columns of one kind and form. The chunks of a corpus that joins several formats do not:
//! labels of a text are sparse samples, and labels of a label file are runs. Then neighbours in the selection whose
//! columns are alike are gathered together, one group after the other.

use crate::chunk::{
    Ahead, Chunk, Column, Error, Form, Gather, KnownColumn, Located, Neighbours, NumberType, Parts, Ragged,
    RaggedEntries, Samples, Takes, Values, try_reserve,
};
use crate::chunk::{frames, plain, runs, stored};
use crate::memory;
use std::mem::Discriminant;

/// A stream that is gathered, and the form that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The stream, counted in the chunks.
    pub stream: usize,
    /// True if its samples are lists of (index, value).
    pub is_sparse: bool,
    /// The type of its values.
    pub number: NumberType,
}

/// The step that follows when columns have gathered in single precision.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// None: the columns gather in the wanted type.
    Nothing,
    /// The values are widened.
    Widen,
    /// The only index of each sample is the wanted whole number.
    TakeClasses,
}

/// A stream that is gathered.
pub(super) struct Stream<'a> {
    wanted: Wanted,
    columns: Columns<'a>,
}

/// The columns of a stream in all blocks.
enum Columns<'a> {
    /// No column, of a selection without blocks.
    None,
    /// Columns that are all of one kind and form.
    Alike(Alike<'a>),
    /// Columns of several kinds or forms.
    Mixed {
        /// The columns of each kind and form.
        all: Vec<Alike<'a>>,
        /// For each block the position of its kind and form in `all`, and the block's number among those.
        of_blocks: Vec<(usize, u32)>,
    },
}

/// Columns of one kind and form.
struct Alike<'a> {
    columns: Box<dyn Gather + 'a>,
    /// The step after gathering.
    then: Then,
}

impl<'a> Stream<'a> {
    pub(super) fn new(chunks: &[&'a Chunk], wanted: Wanted) -> Result<Stream<'a>, Error> {
        let columns = chunks.iter().flat_map(|chunk| chunk.columns(wanted.stream));
        let columns: Vec<KnownColumn<'a>> = columns.collect::<Option<_>>().ok_or(Error::Missing)?;
        // An empty share of a minibatch can have no chunks, so no column says which form the stream has.
        let columns = match columns.first() {
            None => Columns::None,
            Some(&(first, _)) => match Alike::new(&columns, then(first, wanted)?) {
                Some(alike) => Columns::Alike(alike),
                None => mixed(&columns, wanted)?,
            },
        };
        Ok(Stream { wanted, columns })
    }

    /// Prefetch what gathering these sequences will read. Affects only speed.
    pub(super) fn prefetch(&self, sequences: &[Neighbours], what: Ahead) {
        if let Columns::Alike(alike) = &self.columns {
            alike.columns.prefetch(sequences, what);
        }
    }

    /// Gather the samples that are taken of the sequences.
    pub(super) fn gather(&self, located: &Located, parts: Option<Parts>) -> Result<Ragged, Error> {
        let mut out = Ragged::empty(self.wanted.is_sparse, self.wanted.number, located.num_sequences);
        self.append(located, parts, &mut out)?;
        Ok(out)
    }

    /// Append the samples that are taken of the sequences.
    ///
    /// After an error `out` must not be used any more.
    pub(super) fn append(&self, located: &Located, parts: Option<Parts>, out: &mut Ragged) -> Result<(), Error> {
        let (all, of_blocks) = match &self.columns {
            Columns::None => return Ok(()),
            Columns::Alike(alike) => return alike.append(self.wanted.stream, located, parts, out),
            Columns::Mixed { all, of_blocks } => (all, of_blocks),
        };
        let kind_of = |group: &Neighbours| of_blocks[group.block as usize].0;
        let mut first = 0;
        for groups in located.all.chunk_by(|group, next| kind_of(group) == kind_of(next)) {
            let own = |group: &Neighbours| Neighbours { block: of_blocks[group.block as usize].1, ..*group };
            let num_sequences = groups.iter().map(|group| (group.end - group.first) as usize).sum();
            let located = Located { all: memory::collected(groups.iter().map(own)), num_sequences };
            let parts = match parts {
                Some(parts) => Some(parts.slice(first..first + num_sequences).ok_or(Error::Missing)?),
                None => None,
            };
            let appended = all[kind_of(&groups[0])].append(self.wanted.stream, &located, parts, out);
            appended.map_err(|error| match error {
                Error::Length { sequence, stream, num_samples } => {
                    Error::Length { sequence: first + sequence, stream, num_samples }
                }
                other => other,
            })?;
            first += num_sequences;
        }
        Ok(())
    }
}

/// The step that follows when a column has been gathered; an error if no step leads to the wanted stream.
fn then(column: &Column, wanted: Wanted) -> Result<Then, Error> {
    let form = column.samples.form();
    let then = match (&column.samples, wanted.number) {
        // Frames and runs are decoded in single precision, and widened where doubles are wanted.
        (Samples::Frames(_) | Samples::Runs(_), NumberType::F64) => Then::Widen,
        // Labels are kept as one-hot samples, but can be delivered as class ids.
        (_, NumberType::I32) if form.number == NumberType::F32 && form.is_sparse && !wanted.is_sparse => {
            Then::TakeClasses
        }
        _ => Then::Nothing,
    };
    let is_other = form.is_sparse != wanted.is_sparse && then != Then::TakeClasses;
    if is_other || (form.number != wanted.number && then == Then::Nothing) { Err(Error::Mixed) } else { Ok(then) }
}

/// Columns of several kinds or forms; an error if they do not all lead to the wanted stream, in one dimension.
fn mixed<'a>(columns: &[KnownColumn<'a>], wanted: Wanted) -> Result<Columns<'a>, Error> {
    // Samples that are dense or sparse in full width, small or narrow are gathered together.
    let kind_of = |samples: &Samples| -> (Option<Discriminant<Samples>>, Form) {
        let is_plain = !matches!(samples, Samples::Stored(_) | Samples::Frames(_) | Samples::Runs(_));
        ((!is_plain).then(|| std::mem::discriminant(samples)), samples.form())
    };
    let mut kinds: Vec<(_, Then, Vec<KnownColumn<'a>>)> = Vec::new();
    let mut of_blocks = memory::with_room(columns.len());
    let mut dims = Vec::new();
    for &known in columns {
        let (column, then) = (known.0, then(known.0, wanted)?);
        let kind = kind_of(&column.samples);
        let number = kinds.iter().position(|(other, ..)| *other == kind).unwrap_or(kinds.len());
        if number == kinds.len() {
            kinds.push((kind, then, Vec::new()));
            // The class of a sample is a single value, however many classes there are.
            dims.push(if then == Then::TakeClasses { 1 } else { kind.1.dim });
        }
        of_blocks.push((number, kinds[number].2.len() as u32));
        memory::push(&mut kinds[number].2, known);
    }
    if dims.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(Error::Mixed);
    }
    let all = kinds.iter().map(|(_, then, columns)| Alike::new(columns, *then));
    Ok(Columns::Mixed { all: all.collect::<Option<_>>().ok_or(Error::Mixed)?, of_blocks })
}

impl<'a> Alike<'a> {
    /// Columns, at least one; `None` if they are not all of one kind and form.
    fn new(columns: &[KnownColumn<'a>], then: Then) -> Option<Alike<'a>> {
        let first = &columns.first()?.0.samples;
        let form = first.form();
        let columns = match first {
            Samples::Dense { .. } | Samples::Sparse { .. } | Samples::Small(_) | Samples::Narrow(_) => {
                plain::gatherer(columns, form)
            }
            Samples::Stored(_) => narrowed(columns, |samples| samples.as_stored(form)).map(stored::gatherer),
            Samples::Frames(_) => narrowed(columns, |samples| samples.as_frames(form)).map(frames::gatherer),
            Samples::Runs(_) => narrowed(columns, |samples| samples.as_runs(form)).map(runs::gatherer),
        };
        Some(Alike { columns: columns?, then })
    }

    /// Append the samples that are taken of the sequences; see [`Stream::append`].
    fn append(&self, stream: usize, located: &Located, parts: Option<Parts>, out: &mut Ragged) -> Result<(), Error> {
        let Ragged { sequence_offsets, values, entries } = &mut *out;
        let takes = Takes::new(located.num_sequences, parts, stream, sequence_offsets);
        if self.then == Then::Nothing {
            return self.columns.gather(located, takes, values, entries.as_mut());
        }
        let mut singles = Values::empty(NumberType::F32);
        if let (Then::TakeClasses, Values::I32(classes)) = (self.then, &mut *values) {
            // The indices are the classes, so they are gathered where the classes belong, without a copy.
            let mut taken = RaggedEntries { sample_offsets: vec![0], indices: std::mem::take(classes) };
            self.columns.gather(located, takes, &mut singles, Some(&mut taken))?;
            *classes = taken.indices;
            // A sample with another number of entries has no class. The entries of all samples before are not in
            // `taken`, so the first offset says nothing, and the number of classes decides.
            let ends = taken.sample_offsets.get(1..).unwrap_or_default();
            // A fold without a branch: nearly always all samples have one entry.
            let are_single = ends.windows(2).fold(0, |all, pair| all | ((pair[1] - pair[0]) ^ 1)) == 0;
            return if are_single && classes.len() as i64 == out.num_samples() { Ok(()) } else { Err(Error::Mixed) };
        }
        self.columns.gather(located, takes, &mut singles, entries.as_mut())?;
        // Other types were refused when the columns were looked up.
        let (Values::F64(doubles), Values::F32(singles)) = (values, singles) else { return Err(Error::Mixed) };
        try_reserve(doubles, singles.len())?;
        doubles.extend(singles.into_iter().map(f64::from));
        Ok(())
    }
}

/// For each column, the samples as their kind, and the sequence offsets; `None` if a column is of another kind or form.
fn narrowed<'a, K>(
    columns: &[KnownColumn<'a>],
    narrow: impl Fn(&'a Samples) -> Option<&'a K>,
) -> Option<Vec<(&'a K, &'a [u32])>> {
    columns.iter().map(|(column, _)| Some((narrow(&column.samples)?, &column.sequence_offsets[..]))).collect()
}
