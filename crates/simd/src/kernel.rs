//! Kernels, and the choice of one for this processor.
//!
//! A kernel is a table of functions for one instruction set. To add a kernel, write a file with its functions and a
//! `static KERNEL`, and list that table in [`KERNELS`]; the tests then compare it with the others.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use crate::bytes::Pair;
use crate::forms::{SparseColumn, SparseForm};
use crate::functions::Functions;
#[cfg(target_arch = "aarch64")]
use crate::neon;
use crate::scalar;
#[cfg(target_arch = "x86_64")]
use crate::{avx2, avx512, sse41};

/// Environment variable that selects a kernel by its name, for tests.
pub const KERNEL_VARIABLE: &str = "CNTKIO_KERNEL";

/// The kernels for this architecture, the slowest first.
static KERNELS: &[&Functions] = &[
    &scalar::KERNEL,
    #[cfg(target_arch = "x86_64")]
    &sse41::KERNEL,
    #[cfg(target_arch = "x86_64")]
    &avx2::KERNEL,
    #[cfg(target_arch = "x86_64")]
    &avx512::KERNEL,
    #[cfg(target_arch = "aarch64")]
    &neon::KERNEL,
];

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
#[derive(Clone, Copy)]
pub struct Kernel(&'static Functions);

impl fmt::Debug for Kernel {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "Kernel({})", self.name())
    }
}

// SAFETY of all calls of a table's functions below: a Kernel of a table exists only where the table's `is_available`
// returned true (Kernel::available).
impl Kernel {
    /// The kernels that this processor can run, the slowest first.
    pub fn available() -> Vec<Kernel> {
        KERNELS.iter().filter(|functions| (functions.is_available)()).map(|functions| Kernel(functions)).collect()
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

    /// `scalar`; `sse41`, `avx2` or `avx512` on x86-64; `neon` on 64-bit ARM.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Append at most `limit` dense values from `bytes[at..]`; returns where the exact parser continues.
    #[inline]
    pub fn dense_f32(self, bytes: &[u8], at: usize, limit: usize, out: &mut Vec<f32>) -> usize {
        // SAFETY: see above.
        unsafe { (self.0.dense_f32)(bytes, at, limit, out) }
    }

    /// Append sparse entries with indices below `dim` from `bytes[at..]`, one index for each value; returns the
    /// position where the exact parser continues.
    #[inline]
    pub fn sparse_f32(self, bytes: &[u8], at: usize, dim: u32, indices: &mut Vec<i32>, values: &mut Vec<f32>) -> usize {
        // SAFETY: see above.
        unsafe { (self.0.sparse_f32)(bytes, at, dim, indices, values) }
    }

    /// Parse lines from `at` while they match `form` and end at or before `end`.
    ///
    /// Appends each line's samples and entries to `columns` and the line's end to `line_ends`; stops at the first line
    /// that differs from the form or is not certain. Offsets of samples count the entries that a column had before the
    /// call. A kernel looks back and ahead: near the ends of the slice it may stop early. The scalar kernel and NEON
    /// append nothing.
    ///
    /// # Panics
    ///
    /// If the number of columns is not the form's number of streams, a column has not as many values as indices, or it
    /// has pairs and the form is not one of pairs.
    pub fn sparse_lines(
        self,
        bytes: &[u8],
        at: usize,
        end: usize,
        form: &SparseForm,
        columns: &mut [SparseColumn],
        line_ends: &mut Vec<usize>,
    ) {
        // SAFETY: see above.
        unsafe { (self.0.sparse_lines)(bytes, at, end, form, columns, line_ends) }
    }

    /// Append the position of every `wanted` byte in `bytes`, in order.
    ///
    /// # Panics
    ///
    /// If `bytes` has 4 GiB or more.
    #[inline]
    pub fn find_all(self, wanted: u8, bytes: &[u8], out: &mut Vec<u32>) {
        assert!(u32::try_from(bytes.len()).is_ok());
        // SAFETY: see above.
        unsafe { (self.0.find_all)(wanted, bytes, out) }
    }

    /// Write the numbers that 8-bit forms stand for into every element of a destination of the same length.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    #[inline]
    pub fn widen_u8(self, small: &[u8], destination: &mut [MaybeUninit<f32>]) {
        // SAFETY: see above.
        unsafe { (self.0.widen_u8)(small, destination) }
    }

    /// Write the numbers that 16-bit forms stand for into every element of a destination of the same length.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    #[inline]
    pub fn widen_u16(self, small: &[u16], destination: &mut [MaybeUninit<i32>]) {
        // SAFETY: see above.
        unsafe { (self.0.widen_u16)(small, destination) }
    }

    /// Write the index and the value of each pair into every element of two destinations of the same length.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    #[inline]
    pub fn widen_pairs(self, pairs: &[Pair], indices: &mut [MaybeUninit<i32>], values: &mut [MaybeUninit<f32>]) {
        // SAFETY: see above.
        unsafe { (self.0.widen_pairs)(pairs, indices, values) }
    }

    /// Write the 8-bit forms of values into every element of a destination of the same length. Returns whether each form
    /// stands for the same bits.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    #[inline]
    pub fn narrow_u8(self, values: &[f32], small: &mut [MaybeUninit<u8>]) -> bool {
        // SAFETY: see above.
        unsafe { (self.0.narrow_u8)(values, small) }
    }

    /// Write the pairs of indices and values into every element of a destination of the same length. Returns whether
    /// each pair stands for the same bits.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    #[inline]
    pub fn narrow_pairs(self, indices: &[i32], values: &[f32], pairs: &mut [MaybeUninit<Pair>]) -> bool {
        // SAFETY: see above.
        unsafe { (self.0.narrow_pairs)(indices, values, pairs) }
    }

    /// Write the values of little-endian bytes, four for each, into every element of a destination of as many values.
    ///
    /// # Panics
    ///
    /// If the destination has another length.
    #[inline]
    pub fn floats_le(self, bytes: &[u8], destination: &mut [MaybeUninit<f32>]) {
        // SAFETY: see above.
        unsafe { (self.0.floats_le)(bytes, destination) }
    }

    /// Write the values of big-endian bytes, four for each, into every element of a destination of as many values.
    ///
    /// # Panics
    ///
    /// If the destination has another length.
    #[inline]
    pub fn floats_be(self, bytes: &[u8], destination: &mut [MaybeUninit<f32>]) {
        // SAFETY: see above.
        unsafe { (self.0.floats_be)(bytes, destination) }
    }
}
