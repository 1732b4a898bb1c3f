//! Vector kernels for numbers in text ([`Kernel`], [`digits`]) and in bytes ([`floats`]), and the project's only
//! `unsafe` code: copies and prefetches ([`memory`]), reads and maps of files ([`mod@file`]) and an [`allocator`].
//! Everything public is safe.
//!
//! A kernel consumes as many numbers as are *certain* to be in the common form, and leaves the rest, untouched, to an
//! exact parser.
//!
//! Rule of the fast prefix: a kernel starts at `bytes[at]`, directly after a stream's name or after a number, and
//! consumes tokens of the form
//!
//! ```text
//! dense    {blank} [+|-] digits [. digits]           blank = space or tab
//! sparse   {blank} digits : [+|-] digits [. digits]
//! ```
//!
//! as long as each is certain and is followed, inside the slice, by a blank or one of `|`, LF, CR. The kernel appends
//! the correctly rounded values and returns the position after the last number consumed, or after blanks that follow
//! that number. These end the prefix: an exponent, junk, an index out of range, a very long number, a value next to the
//! middle of two float32 numbers, and a token that touches the end of the slice. Kernels may differ in *how long* their
//! prefix is, but not in *what* is in it. No kernel reads outside the slice.
//!
//! The crate opens no files and reports no errors about their content.

pub mod allocator;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod digits;
pub mod file;
pub mod floats;
pub mod memory;
mod scalar;
mod short_text;

pub use memory::append;
pub use short_text::ShortText;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Environment variable that selects a kernel by its name, for tests.
pub const KERNEL_VARIABLE: &str = "CNTKIO_KERNEL";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// An implementation of the kernels that this processor can run.
///
/// A value of this type proves that the processor has the instructions: only [`Kernel::available`] creates such values.
///
/// ```
/// use cntkio_simd::Kernel;
///
/// let mut values = Vec::new();
/// let at = Kernel::selected().dense_f32(b" 1 -2.5 3e4|", 0, 3, &mut values);
/// assert_eq!(values, [1.0, -2.5]); // the exponent is left to the exact parser
/// assert!(at == 7 || at == 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kernel(Level);

impl Kernel {
    /// The kernels that this processor can run, the slowest first.
    pub fn available() -> Vec<Kernel> {
        #[allow(unused_mut)]
        let mut kernels = vec![Kernel(Level::Scalar)];
        #[cfg(target_arch = "x86_64")]
        {
            if avx2::is_available() {
                kernels.push(Kernel(Level::Avx2));
            }
            if avx512::is_available() {
                kernels.push(Kernel(Level::Avx512));
            }
        }
        kernels
    }

    /// The kernel that [`KERNEL_VARIABLE`] names, or the fastest if the variable is not set; an error message if this
    /// processor has no kernel of that name.
    pub fn from_environment() -> Result<Kernel, String> {
        Kernel::named(&std::env::var(KERNEL_VARIABLE).unwrap_or_default())
    }

    /// The kernel with this name; the fastest if the name is empty.
    ///
    /// ```
    /// use cntkio_simd::Kernel;
    ///
    /// assert_eq!(Kernel::named("scalar").unwrap().name(), "scalar");
    /// assert!(Kernel::named("abacus").unwrap_err().contains("scalar"));
    /// ```
    pub fn named(name: &str) -> Result<Kernel, String> {
        let available = Kernel::available();
        let kernel = match name {
            "" => available.last(),
            _ => available.iter().find(|kernel| kernel.name() == name),
        };
        kernel.copied().ok_or_else(|| {
            let names: Vec<&str> = available.iter().map(|kernel| kernel.name()).collect();
            format!("{KERNEL_VARIABLE} is {name:?}; expected one that this processor has: {}", names.join(", "))
        })
    }

    /// The kernel of this process, looked up once with [`from_environment`](Kernel::from_environment).
    ///
    /// If the variable names no kernel of this processor, this is the fastest one: the package refuses such a name when
    /// it is imported.
    pub fn selected() -> Kernel {
        static SELECTED: OnceLock<Kernel> = OnceLock::new();
        *SELECTED.get_or_init(|| {
            let fastest = || *Kernel::available().last().expect("the scalar kernel is always available");
            Kernel::from_environment().unwrap_or_else(|_| fastest())
        })
    }

    /// `scalar`, `avx2` or `avx512`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
        }
    }

    /// Append at most `limit` dense values from `bytes[at..]`; returns where the exact parser continues.
    #[inline]
    pub fn dense_f32(self, bytes: &[u8], at: usize, limit: usize, out: &mut Vec<f32>) -> usize {
        match self.0 {
            Level::Scalar => scalar::dense_f32(bytes, at, limit, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx2::is_available() held (Kernel::available).
            Level::Avx2 => unsafe { avx2::dense_f32(bytes, at, limit, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
            Level::Avx512 => unsafe { avx512::dense_f32(bytes, at, limit, out) },
        }
    }

    /// Append sparse entries with indices below `dim` from `bytes[at..]`, one index for each value; returns the
    /// position where the exact parser continues.
    #[inline]
    pub fn sparse_f32(self, bytes: &[u8], at: usize, dim: u32, indices: &mut Vec<i32>, values: &mut Vec<f32>) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
            Level::Avx512 => unsafe { avx512::sparse_f32(bytes, at, dim, indices, values) },
            // Vectors of 16 or 32 bytes were not faster on index:value pairs.
            _ => scalar::sparse_f32(bytes, at, dim, indices, values),
        }
    }

    /// Parse lines from `at` while they match `form` and end at or before `end`.
    ///
    /// Appends each line's samples and entries to `columns` and the line's end to `line_ends`; stops at the first line
    /// that differs from the form or is not certain. Offsets of samples count the entries that a column had before the
    /// call. The kernel looks ahead, so it never starts to parse in the last 143 bytes of the slice. Only AVX-512
    /// parses lines; the other kernels append nothing.
    ///
    /// # Panics
    ///
    /// If the number of columns is not the form's number of streams, or a column has not as many values as indices.
    pub fn sparse_lines(
        self,
        bytes: &[u8],
        at: usize,
        end: usize,
        form: &SparseForm,
        columns: &mut [SparseColumn],
        line_ends: &mut Vec<usize>,
    ) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
            Level::Avx512 => unsafe { avx512::sparse_lines(bytes, at, end, form, columns, line_ends) },
            _ => {
                let _ = (bytes, at, end, form, columns, line_ends);
            }
        }
    }

    /// Append the position of every LF in `bytes`, in order.
    ///
    /// # Panics
    ///
    /// If `bytes` has 4 GiB or more.
    #[inline]
    pub fn line_ends(self, bytes: &[u8], out: &mut Vec<u32>) {
        assert!(u32::try_from(bytes.len()).is_ok());
        match self.0 {
            Level::Scalar => scalar::line_ends(bytes, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx2::is_available() held (Kernel::available).
            Level::Avx2 => unsafe { avx2::line_ends(bytes, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
            Level::Avx512 => unsafe { avx512::line_ends(bytes, out) },
        }
    }

    /// Write the numbers that 8-bit forms stand for into a destination of the same length.
    #[inline]
    pub(crate) fn widen_u8(self, small: &[u8], destination: &mut [MaybeUninit<f32>]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
            Level::Avx512 => unsafe { avx512::widen_u8(small, destination) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx2::is_available() held (Kernel::available).
            Level::Avx2 => unsafe { avx2::widen(small, destination) },
            Level::Scalar => memory::widen_each(small, destination),
        }
    }

    /// Write the numbers that 16-bit forms stand for into a destination of the same length.
    #[inline]
    pub(crate) fn widen_u16(self, small: &[u16], destination: &mut [MaybeUninit<i32>]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
            Level::Avx512 => unsafe { avx512::widen_u16(small, destination) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx2::is_available() held (Kernel::available).
            Level::Avx2 => unsafe { avx2::widen(small, destination) },
            Level::Scalar => memory::widen_each(small, destination),
        }
    }

    /// The form of the line at `at`, if this kernel supports forms and the line has one (see [`LineForm`]).
    pub fn line_form(self, bytes: &[u8], at: usize) -> Option<LineForm> {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
            Level::Avx512 => unsafe { avx512::line_form(bytes, at) },
            _ => {
                let _ = (bytes, at);
                None
            }
        }
    }

    /// Append the numbers of at most `most` lines that start at `at` or later and before `end`, a row for each line;
    /// returns where the first line that was not consumed starts.
    ///
    /// Stops at the first line that has another form or a number beyond the form's limits. The elements of a row after
    /// the line's last number have no meaning.
    #[inline]
    pub fn lines_of_form(
        self,
        bytes: &[u8],
        at: usize,
        end: usize,
        form: &LineForm,
        most: usize,
        rows: &mut Vec<[u32; MAX_NUMBERS]>,
    ) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
            Level::Avx512 => unsafe { avx512::lines_of_form(bytes, at, end, form, most, rows) },
            _ => {
                let _ = (bytes, end, form, most, rows);
                at
            }
        }
    }
}

/// Largest number of streams in lines of a [`SparseForm`].
pub const MAX_STREAMS: usize = MAX_STEPS - 1;
/// Largest number of steps in a line: the streams and an id.
const MAX_STEPS: usize = 8;

/// Common form of lines of sparse samples: an optional id, then one sample of each stream, always in the same order.
///
/// ```text
/// {digits} {blank} |name space entries {blank} |name space entries {blank} LF
/// ```
///
/// Without an id, the line begins with the pipe. The crate's documentation defines entries and what separates them.
///
/// ```
/// use cntkio_simd::{Kernel, SparseColumn, SparseForm};
///
/// let form = SparseForm::new(false, b"\n", &[(0, b"src", 50), (1, b"tgt", 9)]).unwrap();
/// let text = b"|src 1:2 40:1 |tgt 8:1\n|src 3:4.5 |tgt\n".iter().copied().chain([b' '; 200]).collect::<Vec<u8>>();
/// for kernel in Kernel::available() {
///     let mut arrays = [(vec![], vec![], vec![]), (vec![], vec![], vec![])];
///     let mut columns: Vec<SparseColumn> = arrays
///         .iter_mut()
///         .map(|(sample_offsets, indices, values)| SparseColumn { sample_offsets, indices, values })
///         .collect();
///     let mut line_ends = vec![];
///     kernel.sparse_lines(&text, 0, text.len(), &form, &mut columns, &mut line_ends);
///     if kernel.name() == "avx512" {
///         assert_eq!(line_ends, [23]); // no space follows the second name in the second line
///         assert_eq!(arrays[0], (vec![2], vec![1, 40], vec![2.0, 1.0]));
///         assert_eq!(arrays[1], (vec![1], vec![8], vec![1.0]));
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub struct SparseForm {
    num_streams: usize,
    /// Text that the first line starts with (empty if it starts with an id).
    start: ShortText,
    /// Text that each line ends with.
    line_end: ShortText,
    steps: [Step; MAX_STEPS],
}

/// A step through a line: an id, or the entries of a sample.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
struct Step {
    /// All bits set for an id, none for a sample.
    id_mask: u64,
    /// Column of the sample.
    column: usize,
    /// Largest index that the sample may have.
    last_index: u32,
    /// Text between this step and the next.
    separator: ShortText,
    /// Number of the next step.
    next: usize,
    /// 1 if a line ends in the separator, otherwise 0.
    ends_line: usize,
}

impl SparseForm {
    /// The form of lines that end with `line_end` and contain these streams in this order. A stream is given as the
    /// column of its entries (each stream has its own), its name, and its dimension, which bounds the indices.
    ///
    /// `None` if `line_end` or a name is empty or too long, a dimension is 0, the number of streams is 0 or above
    /// [`MAX_STREAMS`], or the columns are not a permutation of `0..streams.len()`.
    pub fn new(has_id: bool, line_end: &[u8], streams: &[(usize, &[u8], u32)]) -> Option<SparseForm> {
        let num_streams = streams.len();
        let has_column = |wanted| streams.iter().any(|&(column, ..)| column == wanted);
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
                None => (ShortText::new(&[line_end, &first.concat()])?, 0),
            };
            let last_index = dim.min(1 << 31) - 1;
            let ends_line = usize::from(position + 1 == num_streams);
            steps[num_ids + position] = Step { id_mask: 0, column, last_index, separator, next, ends_line };
        }
        let start = ShortText::new(if has_id { &[] } else { &first })?;
        Some(SparseForm { num_streams, start, line_end: ShortText::new(&[line_end])?, steps })
    }
}

/// Vectors that sparse samples are appended to.
#[derive(Debug)]
pub struct SparseColumn<'a> {
    /// Number of entries up to the end of each sample.
    pub sample_offsets: &'a mut Vec<u32>,
    /// Index of each entry.
    pub indices: &'a mut Vec<i32>,
    /// Value of each entry.
    pub values: &'a mut Vec<f32>,
}

/// Largest number of numbers in a line that has a form.
pub const MAX_NUMBERS: usize = 8;

/// A line of at most 64 bytes (including its LF) without its numbers. Most short lines of a file have the same form.
///
/// A *number* is a run of at most 8 digits at the line's start or after a blank or a colon; a line with a form has at
/// most [`MAX_NUMBERS`].
///
/// ```
/// use cntkio_simd::Kernel;
///
/// let text = b"7 |S0 12:1\n7 |S0 5:3\n";
/// for kernel in Kernel::available() {
///     let Some(form) = kernel.line_form(text, 0) else { continue };
///     assert_eq!(form.skeleton(), b" |S0 :\n");
///     assert!(form.has_number_before(0) && form.has_number_before(5) && form.has_number_before(6));
///     let mut rows = vec![];
///     kernel.lines_of_form(text, 0, text.len(), &form, 100, &mut rows);
///     assert_eq!((&rows[0][..3], &rows[1][..3]), (&[7, 12, 1][..], &[7, 5, 3][..]));
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineForm {
    skeleton: [u8; 64],
    /// Bit k is set if a number stands before byte k of the skeleton.
    number_positions: u64,
    /// Exclusive upper bound of each number; `u32::MAX` if there is no other bound.
    pub limits: [u32; MAX_NUMBERS],
}

impl LineForm {
    /// The line without its numbers; its last byte is the LF.
    pub fn skeleton(&self) -> &[u8] {
        let size = self.skeleton.iter().position(|byte| *byte == b'\n').map_or(64, |at| at + 1);
        &self.skeleton[..size]
    }

    /// True if a number stands before byte `at` of the skeleton.
    pub fn has_number_before(&self, at: usize) -> bool {
        at < 64 && self.number_positions >> at & 1 == 1
    }
}
