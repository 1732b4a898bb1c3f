//! Forms of long lines of sparse samples that are mostly alike ([`SparseForm`]).

use crate::{Pair, ShortText};

/// Largest number of streams in lines of a [`SparseForm`].
pub const MAX_STREAMS: usize = MAX_STEPS - 1;
/// Largest index of a pair.
pub(crate) const LAST_OF_PAIR: u32 = u16::MAX as u32;
/// Largest number of steps in a line: the streams and an id.
pub(crate) const MAX_STEPS: usize = 8;

/// Common form of lines of sparse samples: an optional id, then one sample of each stream, always in the same order.
///
/// ```text
/// {digits} {blank} |name space entries {blank} |name space entries {blank} LF
/// ```
///
/// Without an id, the line begins with the pipe. The crate's documentation defines entries and what separates them.
///
/// ```
/// use cntkio_simd::{Kernel, SparseColumn, SparseEntries, SparseForm};
///
/// let form = SparseForm::new(false, b"\n", &[(0, b"src", 50), (1, b"tgt", 9)]).unwrap();
/// let text = b"|src 1:2 40:1 |tgt 8:1\n|src 3:4.5 |tgt\n".iter().copied().chain([b' '; 200]).collect::<Vec<u8>>();
/// for kernel in Kernel::available() {
///     let mut arrays = [(vec![], vec![], vec![]), (vec![], vec![], vec![])];
///     let mut columns: Vec<SparseColumn> = arrays
///         .iter_mut()
///         .map(|(sample_offsets, indices, values)| (sample_offsets, SparseEntries::Wide(indices, values)))
///         .map(|(sample_offsets, entries)| SparseColumn { sample_offsets, entries })
///         .collect();
///     let mut line_ends = vec![];
///     kernel.sparse_lines(&text, 0, text.len(), &form, &mut columns, &mut line_ends);
///     if !line_ends.is_empty() {
///         assert_eq!(line_ends, [23]); // no space follows the second name in the second line
///         assert_eq!(arrays[0], (vec![2], vec![1, 40], vec![2.0, 1.0]));
///         assert_eq!(arrays[1], (vec![1], vec![8], vec![1.0]));
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub struct SparseForm {
    pub(crate) num_streams: usize,
    /// Text that the first line starts with (empty if it starts with an id).
    pub(crate) start: ShortText,
    /// Text that each line ends with.
    pub(crate) line_end: ShortText,
    pub(crate) steps: [Step; MAX_STEPS],
}

/// A step through a line: an id, or the entries of a sample.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) struct Step {
    /// All bits set for an id, none for a sample.
    pub(crate) id_mask: u64,
    /// Column of the sample.
    pub(crate) column: usize,
    /// Largest index that the sample may have.
    pub(crate) last_index: u32,
    /// Text between this step and the next.
    pub(crate) separator: ShortText,
    /// Number of the next step.
    pub(crate) next: usize,
    /// 1 if a line ends in the separator, otherwise 0.
    pub(crate) ends_line: usize,
}

impl SparseForm {
    /// The form of lines that end with `line_end` and contain these streams in this order. A stream is given as the
    /// column of its entries (each stream has its own), its name, and its dimension, which bounds the indices.
    ///
    /// `None` if `line_end` or a name is empty or too long, a dimension is 0, the number of streams is 0 or above
    /// [`MAX_STREAMS`], or the columns are not a permutation of `0..streams.len()`.
    pub fn new(has_id: bool, line_end: &[u8], streams: &[(usize, &[u8], u32)]) -> Option<SparseForm> {
        let num_streams = streams.len();
        // A kernel adds one sample to each column in each line, so no two streams may share a column.
        let has_column = |wanted| streams.iter().any(|&(column, ..)| column == wanted);
        // A dimension of 0 has no last index.
        let is_possible = streams.iter().all(|&(_, name, dim)| !name.is_empty() && dim > 0);
        if !(1..=MAX_STREAMS).contains(&num_streams) || !(0..num_streams).all(has_column) {
            return None;
        }
        if line_end.is_empty() || !is_possible {
            return None;
        }
        let first = [&b"|"[..], streams[0].1, b" "];
        let mut steps = [Step::default(); MAX_STEPS];
        let num_ids = usize::from(has_id);
        if has_id {
            steps[0] = Step { id_mask: !0, separator: ShortText::new(&first)?, next: 1, ..Step::default() };
        }
        for (position, &(column, _, dim)) in streams.iter().enumerate() {
            let (separator, next) = match streams.get(position + 1) {
                Some(&(_, name, _)) => (ShortText::new(&[b"|", name, b" "])?, num_ids + position + 1),
                None if has_id => (ShortText::new(&[line_end])?, 0),
                // Without an id, the next line begins with its first name, so one comparison reads both.
                None => (ShortText::new(&[line_end, &first.concat()])?, 0),
            };
            // Columns keep indices in 32 bits with a sign.
            let last_index = dim.min(1 << 31) - 1;
            let ends_line = usize::from(position + 1 == num_streams);
            steps[num_ids + position] = Step { id_mask: 0, column, last_index, separator, next, ends_line };
        }
        let start = ShortText::new(if has_id { &[] } else { &first })?;
        Some(SparseForm { num_streams, start, line_end: ShortText::new(&[line_end])?, steps })
    }

    /// Return the form of these lines with indices below 2^16, so that entries can become pairs.
    pub fn of_pairs(mut self) -> SparseForm {
        for step in &mut self.steps {
            step.last_index = step.last_index.min(LAST_OF_PAIR);
        }
        self
    }
}

/// Vectors that sparse samples are appended to.
#[derive(Debug)]
pub struct SparseColumn<'a> {
    /// Number of entries up to the end of each sample.
    pub sample_offsets: &'a mut Vec<u32>,
    /// The entries.
    pub entries: SparseEntries<'a>,
}

/// Vectors that sparse entries are appended to.
#[derive(Debug)]
pub enum SparseEntries<'a> {
    /// The index and the value of each entry.
    Wide(&'a mut Vec<i32>, &'a mut Vec<f32>),
    /// Both together. Other entries are not certain. The form must be one [of pairs](SparseForm::of_pairs).
    Pairs(&'a mut Vec<Pair>),
}
