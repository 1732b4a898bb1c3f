//! The few loops that are worth vector instructions: numbers in text, line ends, and [numbers in bytes](floats); and what
//! else a core without `unsafe` cannot do for itself about [memory] and [where it comes from](allocator).
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
//! and each is followed, inside the slice, by a blank or one of `|`, LF, CR. It appends the correctly rounded values and
//! returns the position behind the last number consumed (or behind blanks that follow it). Exponents, junk, an index
//! out of range, very long numbers, values next to the middle of two float32 numbers, a token that touches the end of
//! the slice: all of these end the prefix. *How long* the prefix is may differ from kernel to kernel; *what* is in it may
//! not. Nothing is ever read outside the slice.
//!
//! What it does not do: no lines, no names, no errors, no opening of files.

pub mod allocator;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod floats;
pub mod memory;
mod scalar;

pub use memory::append;
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

    /// The kernel that [`KERNEL_VARIABLE`] names, or without it the fastest; what is wrong with the name if there is none.
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

    /// The kernel of this process, looked up once: that of [`from_environment`](Kernel::from_environment), or the fastest if
    /// there is none of that name, which whoever starts the process should have refused.
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

    /// Call `each` with the position of every LF of `bytes`, in order.
    #[inline]
    pub fn for_each_line_end(self, bytes: &[u8], each: impl FnMut(usize)) {
        match self.0 {
            Level::Scalar => scalar::for_each_line_end(bytes, each),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx2::is_available() held (Kernel::available).
            Level::Avx2 => unsafe { avx2::for_each_line_end(bytes, each) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
            Level::Avx512 => unsafe { avx512::for_each_line_end(bytes, each) },
        }
    }

    /// Write the numbers that small forms stand for into room for as many.
    #[inline]
    pub(crate) fn widen_u8(self, small: &[u8], room: &mut [MaybeUninit<f32>]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
            Level::Avx512 => unsafe { avx512::widen_u8(small, room) },
            _ => memory::widen_each(small, room),
        }
    }

    /// The same of 16 bits to 32.
    #[inline]
    pub(crate) fn widen_u16(self, small: &[u16], room: &mut [MaybeUninit<i32>]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Kernel of this level exists only where avx512::is_available() held (Kernel::available).
            Level::Avx512 => unsafe { avx512::widen_u16(small, room) },
            _ => memory::widen_each(small, room),
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
