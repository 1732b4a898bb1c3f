//! Samples: the grammar of the values after a stream's name, and the only place that knows it in full.
//!
//! ```text
//! dense     1 -0.5 3e4         values, white space between them; too few are filled up with zeros
//! sparse    3:1 17:0.5         entries: an index below the dimension, a colon, a value
//! one-hot   17:1               an entry of few digits, which the shortcut over short lines takes
//! ```
//!
//! A kernel parses the prefix of which it is certain. The loops of this module parse the rest, and find every fault.

use super::Kind;
use crate::memory::{push, reserve};
use crate::number::{self, Element};
use cntkio_simd::Kernel;

/// Why a sample was dropped.
pub(super) struct Fault {
    pub(super) kind: Kind,
    /// Offset at which the fault is reported.
    pub(super) at: usize,
    /// Offset at which parsing continues.
    pub(super) resume: usize,
    /// The number that was counted or read.
    pub(super) found: u64,
}

/// The text of one sequence, as two slices from the same first byte.
#[derive(Clone, Copy)]
pub(super) struct Sight<'a> {
    /// The text up to the sequence's end: the grammar must not look further.
    pub(super) bytes: &'a [u8],
    /// The text that kernels and shortcuts may look at. They stop at every line feed, so the slice may extend beyond
    /// the sequence's last line feed. Then they need not check for the end of the slice on every line.
    pub(super) view: &'a [u8],
}

/// True if a byte ends a sample's values: a pipe, a control byte other than a tab, a byte above 0x7F.
#[inline]
fn ends_values(byte: u8) -> bool {
    byte < b' ' || byte == b'|' || byte >= 0x80
}

/// After a number at which a kernel stopped, the kernel is called again only if its last call took at least this many
/// values: where exponents are frequent, a kernel would cost more than it saves.
const VALUES_WORTH_A_KERNEL: u64 = 8;

/// Append a sample of exactly `dim` values. Returns the offset after the sample and the number of values in the text.
/// On a fault nothing is appended.
#[inline]
pub(super) fn dense_values<T: Element>(
    kernel: Kernel,
    Sight { bytes, view }: Sight,
    start: usize,
    dim: usize,
    out: &mut Vec<T>,
) -> Result<(usize, usize), Fault> {
    let before = out.len();
    let mut at = T::dense_prefix(kernel, view, start, dim, out);
    let mut num_values = (out.len() - before) as u64;
    let mut is_prefix_worth_it = num_values >= VALUES_WORTH_A_KERNEL;
    // Surplus values are a fault only at the end of the sample, so a bad number among them is reported instead.
    let mut surplus = None;
    let fault = loop {
        match bytes.get(at) {
            Some(b' ' | b'\t') => at += 1,
            Some(&byte) if ends_values(byte) => match surplus {
                Some(surplus) => break Fault { kind: Kind::TooManyValues, at: surplus, resume: at, found: num_values },
                None => {
                    // If memory is refused, `resize` alone would end the process.
                    reserve(out, before + dim - out.len());
                    out.resize(before + dim, T::default());
                    return Ok((at, num_values as usize));
                }
            },
            None if num_values == 0 => break Fault { kind: Kind::EmptyAtEnd, at, resume: at, found: 0 },
            None => {
                // At the end of the data, surplus values are not an error and are dropped.
                reserve(out, before + dim - out.len());
                out.resize(before + dim, T::default());
                return Ok((at, num_values as usize));
            }
            Some(_) => match number::read(bytes, at) {
                Ok((value, end)) => {
                    if num_values < dim as u64 {
                        push(out, value);
                    } else if surplus.is_none() {
                        surplus = Some(at);
                    }
                    num_values += 1;
                    at = end;
                    // Without surplus values, `num_values` is at most `dim`, so the difference below is not negative.
                    if is_prefix_worth_it && surplus.is_none() {
                        at = T::dense_prefix(kernel, view, end, dim - num_values as usize, out);
                        is_prefix_worth_it = (out.len() - before) as u64 - num_values >= VALUES_WORTH_A_KERNEL;
                        num_values = (out.len() - before) as u64;
                    }
                }
                Err(bad) => break Fault { kind: Kind::BadNumber, at: bad, resume: bad, found: num_values },
            },
        }
    };
    out.truncate(before);
    Err(fault)
}

/// Append a sample's entries. Returns the offset after the sample. On a fault nothing is appended.
#[inline]
pub(super) fn sparse_entries<T: Element>(
    kernel: Kernel,
    Sight { bytes, view }: Sight,
    start: usize,
    dim: u64,
    indices: &mut Vec<i32>,
    values: &mut Vec<T>,
) -> Result<usize, Fault> {
    let before = indices.len();
    let small_dim = dim.min(u32::MAX.into()) as u32;
    let mut at = T::sparse_prefix(kernel, view, start, small_dim, indices, values);
    let mut is_prefix_worth_it = (indices.len() - before) as u64 >= VALUES_WORTH_A_KERNEL;
    let fault = loop {
        match bytes.get(at) {
            Some(b' ' | b'\t') => at += 1,
            Some(&byte) if ends_values(byte) => return Ok(at),
            None if indices.len() > before => return Ok(at),
            None => break Fault { kind: Kind::EmptyAtEnd, at, resume: at, found: 0 },
            Some(_) => match sparse_entry(bytes, at, dim) {
                Ok((index, value, end)) => {
                    push(indices, index);
                    push(values, value);
                    at = end;
                    if is_prefix_worth_it {
                        let so_far = indices.len();
                        at = T::sparse_prefix(kernel, view, end, small_dim, indices, values);
                        is_prefix_worth_it = (indices.len() - so_far) as u64 >= VALUES_WORTH_A_KERNEL;
                    }
                }
                Err(fault) => break fault,
            },
        }
    };
    indices.truncate(before);
    values.truncate(before);
    Err(fault)
}

/// Read an entry: its index, its value and the offset after it.
#[inline]
fn sparse_entry<T: Element>(bytes: &[u8], start: usize, dim: u64) -> Result<(i32, T, usize), Fault> {
    let mut index = 0u64;
    let mut at = start;
    while let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit <= 9) {
        // An index with any number of digits must stay out of range, so it does not wrap.
        index = index.saturating_mul(10).saturating_add(digit.into());
        at += 1;
    }
    let fault = |kind, position| Fault { kind, at: position, resume: at, found: index };
    if at == start {
        return Err(fault(Kind::BadIndex, at));
    }
    // The order of the faults is documented (docs/formats/ctf.md, "Algorithm"): the range before the colon.
    if index >= dim {
        return Err(fault(Kind::IndexOutOfRange, start));
    }
    if bytes.get(at) != Some(&b':') {
        return Err(fault(Kind::MissingColon, at));
    }
    match number::read(bytes, at + 1) {
        // The index is below the dimension, which is less than 2^31.
        Ok((value, end)) => Ok((index as i32, value, end)),
        Err(bad) => Err(Fault { kind: Kind::BadNumber, at: bad, resume: bad, found: index }),
    }
}
