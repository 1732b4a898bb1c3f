//! `Chunk`: what every format's parser makes and the packer takes. Columns, immutable once made.
//!
//! ```text
//! chunk ── block 0 ─┬─ column of stream 0: sequence_offsets  0 2 3 5      (in samples, one more than sequences)
//!         │         │                      samples           dense: values [samples * dim]
//!         │         └─ column of stream 1: sequence_offsets  0 1 1 4      (a stream may lack samples)
//!         │                                samples           sparse: sample_offsets 0 3 3 7 9, indices, values
//!         └ block 1 ── …
//! ```
//!
//! A parser that works on several cores leaves one block per piece of its input, so that nothing is copied
//! together; sequence `n` of the chunk is found by the blocks' first sequences.
//!
//! Three kinds of column stay as their files have them: [`Stored`] and [`Frames`], which are bytes as they were read, and
//! [`Runs`], one entry for samples of the same class. [`Small`] ones are dense or sparse in fewer bytes. The packer makes
//! values of them; of runs one-hot vectors, or those of a table of [`Targets`].

use crate::small::Small;
use cntkio_simd::memory::{FileBytes, advise_huge_pages};

use std::sync::{Arc, Mutex, OnceLock};

/// Values in the precision in which they are stored.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Single precision.
    F32(Vec<f32>),
    /// Double precision.
    F64(Vec<f64>),
}

impl Default for Values {
    fn default() -> Values {
        Values::empty(false)
    }
}

impl Values {
    /// No values, of this precision.
    pub fn empty(is_double: bool) -> Values {
        if is_double { Values::F64(Vec::new()) } else { Values::F32(Vec::new()) }
    }
    pub(crate) fn clear(&mut self) {
        self.truncate(0);
    }
    pub(crate) fn truncate(&mut self, count: usize) {
        match self {
            Values::F32(v) => v.truncate(count),
            Values::F64(v) => v.truncate(count),
        }
    }
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::F64(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Make [room](expect) for `ratio` times as many.
    pub(crate) fn expect(&mut self, ratio: f64) {
        match self {
            Values::F32(values) => expect(values, ratio),
            Values::F64(values) => expect(values, ratio),
        }
    }

    /// Whether these are in double precision.
    pub fn is_double(&self) -> bool {
        matches!(self, Values::F64(_))
    }
}

/// The samples of one stream, sequence after sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Samples {
    /// `dim` values a sample.
    Dense {
        /// Values a sample.
        dim: usize,
        /// All samples, row by row.
        values: Values,
    },
    /// A list of (index, value) a sample, in the order of the source; indices may repeat.
    Sparse {
        /// Bound of the indices.
        dim: usize,
        /// Where each sample's entries begin, and where the last one's end.
        sample_offsets: Vec<u32>,
        /// 0 to `dim - 1` each.
        indices: Vec<i32>,
        /// One for each index.
        values: Values,
    },
    /// Dense or sparse, of small whole numbers.
    Small(Small),
    /// Sequences of a binary file as they were read.
    Stored(Stored),
    /// Frames of feature files as they were read, single precision when packed.
    Frames(Frames),
    /// Runs of samples of one class each, in single precision when packed: sparse with one value a sample, or dense
    /// where classes have targets.
    Runs(Runs),
}

impl Samples {
    /// Whether it packs as a list of (index, value) a sample.
    pub fn is_sparse(&self) -> bool {
        match self {
            Samples::Dense { .. } | Samples::Frames(_) => false,
            Samples::Sparse { .. } => true,
            Samples::Small(small) => small.entries.is_some(),
            Samples::Stored(stored) => stored.is_sparse,
            Samples::Runs(runs) => runs.targets.is_none(),
        }
    }

    /// Whether it packs in double precision.
    pub fn is_double(&self) -> bool {
        match self {
            Samples::Dense { values, .. } | Samples::Sparse { values, .. } => values.is_double(),
            Samples::Small(small) => small.becomes_double,
            Samples::Stored(stored) => stored.becomes_double,
            Samples::Frames(_) | Samples::Runs(_) => false,
        }
    }

    /// Values of a sample, or the bound of its indices.
    pub fn dim(&self) -> usize {
        match self {
            Samples::Dense { dim, .. } | Samples::Sparse { dim, .. } => *dim,
            Samples::Small(small) => small.dim,
            Samples::Stored(stored) => stored.dim,
            Samples::Frames(frames) => frames.dim(),
            Samples::Runs(runs) => runs.targets.as_ref().map_or(runs.dim, |targets| targets.dim),
        }
    }
}

/// Bytes of a file, shared: as they were read, or shown where the system has them.
#[derive(Clone)]
pub struct Bytes(Arc<FileBytes>);

impl Bytes {
    /// Bytes that were read.
    pub fn new(bytes: Vec<u8>) -> Bytes {
        Bytes::of(FileBytes::here(bytes))
    }

    /// Bytes that were read, or are shown.
    pub fn of(bytes: FileBytes) -> Bytes {
        Bytes(Arc::new(bytes))
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Bytes({})", self.as_slice().len())
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        self.as_slice() == other.as_slice()
    }
}

/// Sequences of a binary file as they were read and checked. (docs/formats/cbf.md, "The 2.x layout")
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Values of a sample, or the bound of its indices.
    pub dim: usize,
    /// Whether samples are lists of index and value.
    pub is_sparse: bool,
    /// Whether values are in double precision here.
    pub is_double: bool,
    /// Whether they are when packed.
    pub becomes_double: bool,
    /// The bytes of the chunk, all streams'.
    pub bytes: Arc<FileBytes>,
    /// Where each sequence begins, and where the last one ends.
    pub places: Vec<usize>,
}

/// How the values of a frame are stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoding {
    /// Whether the first byte of a value is its highest.
    pub is_big_endian: bool,
    /// Single precision without; with `a` and `b` for each value it is a 16-bit `x` that means `(x + b) / a`.
    pub scales: Option<(Vec<f32>, Vec<f32>)>,
}

impl Encoding {
    /// Bytes of a frame of `dim` values.
    pub fn frame_size(&self, dim: usize) -> usize {
        dim * if self.scales.is_some() { 2 } else { 4 }
    }
}

/// Where a sequence's frames are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramesPlace {
    /// Which of the blocks of bytes.
    pub block: u32,
    /// Which of the encodings.
    pub encoding: u32,
    /// The first frame's first byte.
    pub at: usize,
}

/// Frames as they were read. A sample is a frame with its neighbours in its sequence; beyond the sequence's ends the
/// first and the last frame are repeated.
#[derive(Debug, Clone, PartialEq)]
pub struct Frames {
    /// Values of a frame.
    pub frame_dim: usize,
    /// Frames before each in its sample.
    pub left: usize,
    /// Frames behind each in its sample.
    pub right: usize,
    /// Whether a sequence's only frame stands for any number of them.
    pub is_broadcast: bool,
    /// The bytes.
    pub blocks: Vec<Bytes>,
    /// Where each sequence's frames are.
    pub places: Vec<FramesPlace>,
    /// How frames are stored.
    pub encodings: Vec<Encoding>,
}

impl Frames {
    /// Values of a sample.
    pub fn dim(&self) -> usize {
        self.frame_dim * (1 + self.left + self.right)
    }

    fn check(&self, sequence_offsets: &[u32]) -> Result<(), String> {
        let window = self.left.checked_add(self.right).and_then(|frames| frames.checked_add(1));
        let dim = window.and_then(|frames| frames.checked_mul(self.frame_dim));
        if dim.is_none_or(|dim| dim == 0 || dim > i32::MAX as usize) {
            return Err("a sample of no values, or of 2^31 or more".to_owned());
        }
        if self.places.len() + 1 != sequence_offsets.len() {
            return Err(format!("{} sequences, but {} places", sequence_offsets.len() - 1, self.places.len()));
        }
        for encoding in &self.encodings {
            if let Some((a, b)) = &encoding.scales
                && (a.len(), b.len()) != (self.frame_dim, self.frame_dim)
            {
                return Err("scales that do not fit the dimension".to_owned());
            }
        }
        for (place, pair) in self.places.iter().zip(sequence_offsets.windows(2)) {
            let encoding = self.encodings.get(place.encoding as usize).ok_or("an encoding that is not there")?;
            let block = self.blocks.get(place.block as usize).ok_or("a block that is not there")?;
            let size = (pair[1] - pair[0]) as usize * encoding.frame_size(self.frame_dim);
            if place.at.checked_add(size).is_none_or(|end| end > block.as_slice().len()) {
                return Err("a sequence that ends beyond its block".to_owned());
            }
        }
        Ok(())
    }
}

/// Runs of samples of one class each.
#[derive(Debug, Clone, PartialEq)]
pub struct Runs {
    /// Number of classes.
    pub dim: usize,
    /// Where each sequence's runs begin, and where the last one's end.
    pub offsets: Vec<u32>,
    /// The first sample of each run in its sequence, ascending from 0.
    pub starts: Vec<u32>,
    /// The class of each run.
    pub classes: Vec<u32>,
    /// Whether the first sample of a run has the value 2 instead of 1.
    pub marks_starts: bool,
    /// What is delivered in place of one-hot vectors.
    pub targets: Option<Targets>,
    /// The class of each sample, for whoever asks for single samples; made when that is done first.
    pub each: OnceLock<Vec<u32>>,
}

/// A dense vector of zeros and ones for each class.
#[derive(Debug, Clone, PartialEq)]
pub struct Targets {
    /// Values of a vector.
    pub dim: usize,
    /// The vectors, class after class, a byte for each value.
    pub rows: Bytes,
}

impl Targets {
    /// The vector of a class; none beyond the table.
    #[inline]
    pub fn row(&self, class: u32) -> &[u8] {
        let begin = class as usize * self.dim;
        self.rows.as_slice().get(begin..begin + self.dim).unwrap_or_default()
    }
}

impl Runs {
    /// The class of each sample of all sequences, one after the other; `sequence_offsets` are those of the column.
    pub fn each(&self, sequence_offsets: &[u32]) -> &[u32] {
        if let Some(each) = self.each.get() {
            return each;
        }
        // Worked out first and handed in then: a fork would wait for ever for a thread that it has caught at it.
        let mut each = Vec::with_capacity(sequence_offsets.last().map_or(0, |&end| end as usize));
        for (runs, samples) in self.offsets.windows(2).zip(sequence_offsets.windows(2)) {
            let ends = self.starts[runs[0] as usize..runs[1] as usize].iter().skip(1).copied();
            let ends = ends.chain([samples[1] - samples[0]]).map(|end| (samples[0] + end) as usize);
            for (&class, end) in self.classes[runs[0] as usize..runs[1] as usize].iter().zip(ends) {
                each.resize(end, class);
            }
        }
        self.each.get_or_init(|| each)
    }

    fn check(&self, sequence_offsets: &[u32]) -> Result<(), String> {
        if let Some(Targets { dim, rows }) = &self.targets
            && (*dim == 0 || dim.checked_mul(self.dim) != Some(rows.as_slice().len()))
        {
            return Err(format!("{} bytes of targets, but {} classes of {dim}", rows.as_slice().len(), self.dim));
        }
        check_offsets("run offsets", &self.offsets, sequence_offsets.len() - 1)?;
        let num_runs = self.offsets[self.offsets.len() - 1] as usize;
        if (self.starts.len(), self.classes.len()) != (num_runs, num_runs) {
            return Err(format!(
                "{num_runs} runs, but {} starts and {} classes",
                self.starts.len(),
                self.classes.len()
            ));
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
            if !is_sound || starts.windows(2).any(|pair| pair[0] >= pair[1]) {
                return Err("runs that do not cover their sequence".to_owned());
            }
        }
        Ok(())
    }
}

/// One stream of a block.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Where each sequence's samples begin, and where the last one's end.
    pub sequence_offsets: Vec<u32>,
    /// The samples themselves.
    pub samples: Samples,
}

impl Column {
    /// Number of samples.
    pub fn num_samples(&self) -> usize {
        self.sequence_offsets.last().map_or(0, |&end| end as usize)
    }

    /// Check that the offsets, indices and values belong together; the message says what does not.
    pub fn check(&self, num_sequences: usize) -> Result<(), String> {
        check_offsets("sequence offsets", &self.sequence_offsets, num_sequences)?;
        let num_samples = self.num_samples();
        match &self.samples {
            Samples::Dense { dim, values } => {
                if num_samples.checked_mul(*dim) != Some(values.len()) {
                    return Err(format!("{num_samples} samples of {dim} values, but {} values", values.len()));
                }
            }
            Samples::Sparse { dim, sample_offsets, indices, values } => {
                check_offsets("sample offsets", sample_offsets, num_samples)?;
                let num_entries = sample_offsets[num_samples] as usize;
                if indices.len() != num_entries || values.len() != num_entries {
                    return Err(format!(
                        "{num_entries} entries, but {} indices and {} values",
                        indices.len(),
                        values.len()
                    ));
                }
                if let Some(index) = indices.iter().find(|&&index| index < 0 || index as usize >= *dim) {
                    return Err(format!("index {index}, but the dimension is {dim}"));
                }
            }
            Samples::Small(_) | Samples::Stored(_) => {} // checked where they were made
            Samples::Frames(frames) => frames.check(&self.sequence_offsets)?,
            Samples::Runs(runs) => runs.check(&self.sequence_offsets)?,
        }
        Ok(())
    }
}

fn check_offsets(what: &str, offsets: &[u32], count: usize) -> Result<(), String> {
    if offsets.len() != count + 1 || offsets[0] != 0 || offsets.windows(2).any(|pair| pair[0] > pair[1]) {
        return Err(format!("{what}: expected {} ascending numbers from 0", count + 1));
    }
    Ok(())
}

/// A run of sequences: for each block its streams' columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// Number of sequences.
    pub num_sequences: usize,
    /// One for each stream.
    pub columns: Vec<Column>,
}

impl Block {
    /// Bytes of memory that are set aside for it.
    fn capacity(&self) -> usize {
        let of_values = |values: &Values| match values {
            Values::F32(values) => 4 * values.capacity(),
            Values::F64(values) => 8 * values.capacity(),
        };
        let of_column = |column: &Column| {
            4 * column.sequence_offsets.capacity()
                + match &column.samples {
                    Samples::Dense { values, .. } => of_values(values),
                    Samples::Sparse { sample_offsets, indices, values, .. } => {
                        4 * (sample_offsets.capacity() + indices.capacity()) + of_values(values)
                    }
                    Samples::Small(small) => small.capacity(),
                    Samples::Stored(_) | Samples::Frames(_) | Samples::Runs(_) => 0, // not in blocks of a pool
                }
        };
        self.columns.iter().map(of_column).sum()
    }
}

/// Make room for `ratio` times as many, and a little more; most of it will be used, and so may be in huge pages.
pub(crate) fn expect<T>(values: &mut Vec<T>, ratio: f64) {
    let expected = values.len() as f64 * ratio;
    let with_margin = (expected * 1.02) as usize + 4096;
    if values.capacity() < with_margin {
        values.reserve_exact(with_margin - values.len());
        advise_huge_pages(values, (expected * 0.98) as usize);
    }
}

/// Memory of chunks that are gone, for the chunks to come: fresh memory costs as much as parsing.
///
/// Belongs to the chunks of one schema, whose blocks have the same columns.
#[derive(Debug, Default)]
pub struct Pool {
    spare: Mutex<Vec<Block>>,
    limit: usize,
}

impl Pool {
    /// Keeps at most `limit` bytes.
    pub fn new(limit: usize) -> Pool {
        Pool { spare: Mutex::default(), limit }
    }

    /// A block to use again, as it was left. Nobody waits: a thread that a fork has left behind would not let go.
    pub fn take(&self) -> Option<Block> {
        self.spare.try_lock().ok()?.pop()
    }

    fn give(&self, blocks: impl Iterator<Item = Block>) {
        let Ok(mut spare) = self.spare.try_lock() else { return };
        let mut room = self.limit.saturating_sub(spare.iter().map(Block::capacity).sum());
        for block in blocks {
            let size = block.capacity();
            if size <= room {
                room -= size;
                spare.push(block);
            }
        }
    }
}

/// The unit of reading: the parsed form of a run of consecutive sequences.
#[derive(Debug, Clone)]
pub struct Chunk {
    blocks: Vec<Block>,
    first_sequences: Vec<usize>,
    pool: Option<Arc<Pool>>,
}

impl PartialEq for Chunk {
    fn eq(&self, other: &Chunk) -> bool {
        self.blocks == other.blocks
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.give(self.blocks.drain(..));
        }
    }
}

impl Chunk {
    /// Put a chunk together from its blocks.
    pub fn new(blocks: Vec<Block>) -> Chunk {
        let mut first_sequences = vec![0];
        for block in &blocks {
            first_sequences.push(first_sequences[first_sequences.len() - 1] + block.num_sequences);
        }
        Chunk { blocks, first_sequences, pool: None }
    }

    /// Give the blocks' memory to a pool when they are not needed any more.
    pub fn of_pool(mut self, pool: Arc<Pool>) -> Chunk {
        self.pool = Some(pool);
        self
    }

    /// Number of sequences.
    pub fn num_sequences(&self) -> usize {
        self.first_sequences[self.blocks.len()]
    }

    /// Whether all columns are dense or sparse: writers take no others.
    pub fn is_plain(&self) -> bool {
        let mut columns = self.blocks.iter().flat_map(|block| &block.columns);
        columns.all(|column| matches!(column.samples, Samples::Dense { .. } | Samples::Sparse { .. }))
    }

    /// Its blocks, in order.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The block that holds a sequence and the sequence's number in it; the sequence must exist.
    #[inline]
    pub fn locate(&self, sequence: usize) -> (&Block, usize) {
        let at = match self.blocks.len() {
            1 => 0,
            _ => self.first_sequences.partition_point(|&first| first <= sequence) - 1,
        };
        (&self.blocks[at], sequence - self.first_sequences[at])
    }

    /// The name of the file whose bytes it shows, if that is not any more as it was.
    pub fn changed(&self) -> Option<&str> {
        match self.blocks.first()?.columns.first() {
            Some(Column { samples: Samples::Stored(stored), .. }) => stored.bytes.changed(),
            Some(Column { samples: Samples::Frames(frames), .. }) => {
                frames.blocks.iter().find_map(|block| block.0.changed())
            }
            _ => None,
        }
    }

    /// Bytes that so many of its sequences take when packed, or so many samples of each, roughly.
    pub fn packed_size(&self, num_sequences: usize, counts: Option<&[u32]>) -> usize {
        let is_as_large = |column: &Column| {
            matches!(column.samples, Samples::Dense { .. } | Samples::Sparse { .. } | Samples::Stored(_))
        };
        if self.blocks.iter().flat_map(|block| &block.columns).all(is_as_large) {
            return self.num_bytes() / self.num_sequences().max(1) * num_sequences;
        }
        let Some(block) = self.blocks.first() else { return 0 };
        let packed = |column: &Column| {
            let samples = match counts {
                Some(counts) => counts.iter().map(|&count| count as usize).sum(),
                None => column.num_samples() / block.num_sequences.max(1) * num_sequences,
            };
            samples
                * match &column.samples {
                    Samples::Small(small) => small.packed_size() / column.num_samples().max(1),
                    samples if samples.is_sparse() => 16,
                    samples => 4 * samples.dim(),
                }
        };
        block.columns.iter().map(packed).sum()
    }

    /// Bytes of memory that the columns take.
    pub fn num_bytes(&self) -> usize {
        let width = |values: &Values| values.len() * if values.is_double() { 8 } else { 4 };
        let column_bytes = |column: &Column| {
            4 * column.sequence_offsets.len()
                + match &column.samples {
                    Samples::Dense { values, .. } => width(values),
                    Samples::Sparse { sample_offsets, indices, values, .. } => {
                        4 * sample_offsets.len() + 4 * indices.len() + width(values)
                    }
                    Samples::Small(small) => small.num_bytes(),
                    Samples::Stored(Stored { places, .. }) => {
                        size_of_val(&places[..]) + places.last().map_or(0, |last| last - places[0])
                    }
                    Samples::Frames(frames) => {
                        size_of_val(&frames.places[..])
                            + frames.blocks.iter().map(|block| block.as_slice().len()).sum::<usize>()
                    }
                    Samples::Runs(runs) => 4 * (runs.offsets.len() + runs.starts.len() + runs.classes.len()),
                }
        };
        self.blocks.iter().flat_map(|block| &block.columns).map(column_bytes).sum()
    }
}
