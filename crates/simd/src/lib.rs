//! The few loops that are worth vector instructions: numbers in text, [digits](digits), line ends, and [numbers in
//! bytes](floats); and what else a core without `unsafe` cannot do for itself about [memory] and [where it comes
//! from](allocator).
//!
//! Job: consume as much of a run of numbers as is *certain* to be in the common form, and leave the rest, untouched,
//! to an exact parser. This crate is the only place of the project with `unsafe`; everything public is safe.
//!
//! Law ("fast prefix"): a kernel starts at `bytes[at]`, right behind a stream's name or behind a number, and consumes
//! tokens as long as each is certain:
//!
//! ```text
//! dense    {blank} [+|-] digits [. digits]           blank = space or tab
//! sparse   {blank} digits : [+|-] digits [. digits]
//! ```
//!
//! and each is followed, inside the slice, by a blank or one of `|`, LF, CR. It appends the correctly rounded values
//! and returns the position behind the last number consumed (or behind blanks that follow it). Exponents, junk, an
//! index out of range, very long numbers, values next to the middle of two float32 numbers, a token that touches the
//! end of the slice: all of these end the prefix. *How long* the prefix is may differ from kernel to kernel; *what* is
//! in it may not. Nothing is ever read outside the slice.
//!
//! What it does not do: no lines, no names, no errors, no opening of files.

pub mod allocator;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod digits;
pub mod floats;
pub mod memory;
mod scalar;
mod short_text;

pub use memory::append;
pub use short_text::ShortText;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Environment variable that asks for a kernel by its name, for tests.
pub const KERNEL_VARIABLE: &str = "CNTKIO_KERNEL";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// One implementation of the kernels that this processor can run.
///
/// A value of this type is the proof that the processor has the instructions: only [`Kernel::available`] makes them.
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
    /// The kernels that this processor can run, the plainest first.
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

    /// The kernel that [`KERNEL_VARIABLE`] names, or without it the fastest; what is wrong with the name if there is
    /// none.
    pub fn from_environment() -> Result<Kernel, String> {
        Kernel::named(&std::env::var(KERNEL_VARIABLE).unwrap_or_default())
    }

    /// The kernel of that name; without a name the fastest.
    ///
    /// ```
    /// use cntkio_simd::Kernel;
    ///
    /// assert_eq!(Kernel::named("scalar").unwrap().name(), "scalar");
    /// assert!(Kernel::named("abacus").unwrap_err().contains("scalar"));
    /// ```
    pub fn named(name: &str) -> Result<Kernel, String> {
        let available = Kernel::available();
        let found = match name {
            "" => available.last(),
            _ => available.iter().find(|kernel| kernel.name() == name),
        };
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = available.iter().map(|kernel| kernel.name()).collect();
            format!("{KERNEL_VARIABLE} is {name:?}; expected one that this processor has: {}", names.join(", "))
        })
    }

    /// The kernel of this process, looked up once: that of [`from_environment`](Kernel::from_environment), or the
    /// fastest if there is none of that name, which whoever starts the process should have refused.
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

    /// Append at most `limit` dense values from `bytes[at..]`; returns where the exact parser goes on.
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

    /// Append sparse entries with indices below `dim` from `bytes[at..]`, one index for each value; returns where the
    /// exact parser goes on.
    #[inline]
    pub fn sparse_f32(self, bytes: &[u8], at: usize, dim: u32, indices: &mut Vec<i32>, values: &mut Vec<f32>) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
            Level::Avx512 => unsafe { avx512::sparse_f32(bytes, at, dim, indices, values) },
            // Vectors of 16 or 32 bytes gave nothing on index:value pairs.
            _ => scalar::sparse_f32(bytes, at, dim, indices, values),
        }
    }

    /// Append samples and entries of the lines from `at` on, up to the first that is of another form or not certain,
    /// and to `end`, to the form's columns, and where each line ends to `line_ends`. A column's offsets count the
    /// entries that were there before. Nothing is taken of the last 143 bytes of the slice.
    ///
    /// # Panics
    ///
    /// There are not as many columns as the form has streams, or one has not as many values as indices.
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

    /// Append the position of every LF of `bytes`, in order.
    ///
    /// # Panics
    ///
    /// There are 4 GiB or more.
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

    /// Write the numbers that small forms stand for into room for as many.
    #[inline]
    pub(crate) fn widen_u8(self, small: &[u8], room: &mut [MaybeUninit<f32>]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
            Level::Avx512 => unsafe { avx512::widen_u8(small, room) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx2::is_available() held (Kernel::available).
            Level::Avx2 => unsafe { avx2::widen(small, room) },
            Level::Scalar => memory::widen_each(small, room),
        }
    }

    /// The same of 16 bits to 32.
    #[inline]
    pub(crate) fn widen_u16(self, small: &[u16], room: &mut [MaybeUninit<i32>]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
            Level::Avx512 => unsafe { avx512::widen_u16(small, room) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx2::is_available() held (Kernel::available).
            Level::Avx2 => unsafe { avx2::widen(small, room) },
            Level::Scalar => memory::widen_each(small, room),
        }
    }

    /// The form of the line at `at`, if this kernel knows forms, and the line has one (see [`LineForm`]).
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

    /// Append the numbers of the lines from `at` on, up to the first that is of another form or has a number beyond the
    /// form's limits, to `end`, and to `most` lines; returns where the first line that was not taken starts. What a row
    /// holds behind the line's last number means nothing.
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

/// The most streams in lines of a [`SparseForm`].
pub const MAX_STREAMS: usize = MAX_STEPS - 1;
/// Those, and an id.
const MAX_STEPS: usize = 8;

/// What lines of sparse samples have in common: one sample of each stream, in the same order, behind an id or none.
///
/// ```text
/// {digits} {blank} |name space entries {blank} |name space entries {blank} LF
/// ```
///
/// Without an id, the line begins with the pipe. For entries, and what stands between them, see the law.
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
///         assert_eq!(line_ends, [23]); // in the second line something else follows the second name
///         assert_eq!(arrays[0], (vec![2], vec![1, 40], vec![2.0, 1.0]));
///         assert_eq!(arrays[1], (vec![1], vec![8], vec![1.0]));
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub struct SparseForm {
    num_streams: usize,
    /// What the first line starts with, but for an id, and what each line ends with.
    start: ShortText,
    line_end: ShortText,
    steps: [Step; MAX_STEPS],
}

/// A part of a line: an id, or a sample's entries.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
struct Step {
    /// All bits, if it is an id.
    id_mask: u64,
    column: usize,
    last_index: u32,
    /// What comes behind it, what then, and how many lines end between the two.
    behind: ShortText,
    next: usize,
    ends_line: usize,
}

impl SparseForm {
    /// The form of lines that end with `line_end` and hold these streams in this order: for each the column that its
    /// entries go to, one of its own, its name, and what its indices must be below. `None` if a name is too long, or
    /// there are too many.
    pub fn new(has_id: bool, line_end: &[u8], streams: &[(usize, &[u8], u32)]) -> Option<SparseForm> {
        let num_streams = streams.len();
        let has_column = |number| streams.iter().any(|&(column, ..)| column == number);
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
            steps[0] = Step { id_mask: !0, behind: ShortText::new(&first)?, next: 1, ..Step::default() };
        }
        for (place, &(column, _, dim)) in streams.iter().enumerate() {
            let (behind, next) = match streams.get(place + 1) {
                Some(&(_, name, _)) => (ShortText::new(&[b"|", name, b" "])?, num_ids + place + 1),
                None if has_id => (ShortText::new(&[line_end])?, 0),
                None => (ShortText::new(&[line_end, &first.concat()])?, 0),
            };
            let last_index = dim.min(1 << 31) - 1;
            let ends_line = usize::from(place + 1 == num_streams);
            steps[num_ids + place] = Step { id_mask: 0, column, last_index, behind, next, ends_line };
        }
        let start = ShortText::new(if has_id { &[] } else { &first })?;
        Some(SparseForm { num_streams, start, line_end: ShortText::new(&[line_end])?, steps })
    }
}

/// Where sparse samples go: where each ends among the entries, and the entries.
#[derive(Debug)]
pub struct SparseColumn<'a> {
    /// Entries up to each sample's end.
    pub sample_offsets: &'a mut Vec<u32>,
    /// Indices.
    pub indices: &'a mut Vec<i32>,
    /// As many values.
    pub values: &'a mut Vec<f32>,
}

/// The most numbers in a line that has a form.
pub const MAX_NUMBERS: usize = 8;

/// What a line of at most 64 bytes, its LF among them, is but for its numbers: short lines are mostly all alike.
///
/// A *number* is a run of at most 8 digits at the line's start or behind a blank or a colon; there are at most
/// [`MAX_NUMBERS`].
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
    places: u64,
    /// What each number must be below; without a limit all are.
    pub limits: [u32; MAX_NUMBERS],
}

impl LineForm {
    /// The line without its numbers, its LF last.
    pub fn skeleton(&self) -> &[u8] {
        let size = self.skeleton.iter().position(|byte| *byte == b'\n').map_or(64, |at| at + 1);
        &self.skeleton[..size]
    }

    /// Whether a number stands before this byte of the skeleton.
    pub fn has_number_before(&self, at: usize) -> bool {
        at < 64 && self.places >> at & 1 == 1
    }
}
