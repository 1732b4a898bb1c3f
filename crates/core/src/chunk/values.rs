//! Values in the precision in which they are stored, and memory for columns.

use crate::memory;
use crate::number::Element;
use cntkio_memory::copy::Number;
use cntkio_memory::huge_pages::{WORTH_HUGE_PAGES, advise_huge_pages};

/// Values in single or in double precision.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Single precision.
    F32(Vec<f32>),
    /// Double precision.
    F64(Vec<f64>),
}

/// Run the same code on the vector of either precision.
macro_rules! in_either_precision {
    ($values:expr, $vector:ident => $code:expr) => {
        match $values {
            $crate::chunk::Values::F32($vector) => $code,
            $crate::chunk::Values::F64($vector) => $code,
        }
    };
}
pub(crate) use in_either_precision;

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

    /// Number of values.
    pub fn len(&self) -> usize {
        in_either_precision!(self, values => values.len())
    }

    /// True if the column is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the values are in double precision.
    pub fn is_double(&self) -> bool {
        matches!(self, Values::F64(_))
    }

    /// Bytes of the values.
    pub(crate) fn num_bytes(&self) -> usize {
        in_either_precision!(self, values => size_of_val(&values[..]))
    }

    /// Bytes of memory that is reserved for the values.
    pub(crate) fn capacity_in_bytes(&self) -> usize {
        match self {
            Values::F32(values) => 4 * values.capacity(),
            Values::F64(values) => 8 * values.capacity(),
        }
    }

    /// Drop all values but keep the memory.
    pub(crate) fn clear(&mut self) {
        in_either_precision!(self, values => values.clear());
    }

    /// Keep only the first values.
    pub(crate) fn truncate(&mut self, count: usize) {
        in_either_precision!(self, values => values.truncate(count));
    }

    /// Empty the vector for `count` values, as [`empty_for`].
    pub(crate) fn empty_for(&mut self, count: usize) {
        in_either_precision!(self, values => empty_for(values, count));
    }

    /// [`expect`] `ratio` times as many values.
    pub(crate) fn expect(&mut self, ratio: f64) {
        in_either_precision!(self, values => expect(values, ratio));
    }

    /// Append values that a file stores, lowest byte first, in double precision or in single.
    pub(crate) fn append_stored(&mut self, bytes: &[u8], is_double: bool) {
        fn append<T: Precision>(out: &mut Vec<T>, bytes: &[u8], is_double: bool) {
            if is_double == T::IS_DOUBLE { T::append_le(out, bytes) } else { T::append_converted(out, bytes) }
        }
        in_either_precision!(self, values => append(values, bytes, is_double));
    }
}

/// A precision of [`Values`]: `f32` or `f64`.
pub trait Precision: Element + Number {
    /// True if this is double precision.
    const IS_DOUBLE: bool;
    /// The values, if they are in this precision.
    fn of(values: &Values) -> Option<&[Self]>;
    /// The vector of the values, if they are in this precision.
    fn vector(values: &mut Values) -> Option<&mut Vec<Self>>;
    /// Append values that a file stores in the other precision, lowest byte first.
    fn append_converted(out: &mut Vec<Self>, bytes: &[u8]);
}

impl Precision for f32 {
    const IS_DOUBLE: bool = false;

    #[inline]
    fn of(values: &Values) -> Option<&[f32]> {
        if let Values::F32(values) = values { Some(values) } else { None }
    }

    #[inline]
    fn vector(values: &mut Values) -> Option<&mut Vec<f32>> {
        if let Values::F32(values) = values { Some(values) } else { None }
    }

    #[inline]
    fn append_converted(out: &mut Vec<f32>, bytes: &[u8]) {
        memory::extend(out, bytes.as_chunks().0.iter().map(|&value| f64::from_le_bytes(value) as f32));
    }
}

impl Precision for f64 {
    const IS_DOUBLE: bool = true;

    #[inline]
    fn of(values: &Values) -> Option<&[f64]> {
        if let Values::F64(values) = values { Some(values) } else { None }
    }

    #[inline]
    fn vector(values: &mut Values) -> Option<&mut Vec<f64>> {
        if let Values::F64(values) = values { Some(values) } else { None }
    }

    #[inline]
    fn append_converted(out: &mut Vec<f64>, bytes: &[u8]) {
        memory::extend(out, bytes.as_chunks().0.iter().map(|&value| f64::from(f32::from_le_bytes(value))));
    }
}

/// Reserve memory for `count` more values, in huge pages if they are large enough.
pub(crate) fn reserve<T>(values: &mut Vec<T>, count: usize) {
    memory::reserve(values, count);
    if count * size_of::<T>() >= WORTH_HUGE_PAGES {
        advise_huge_pages(values, values.len() + count);
    }
}

/// Reserve memory for `ratio` times as many values and a little more.
///
/// Most of the memory will be used, so it may be in huge pages.
pub(crate) fn expect<T>(values: &mut Vec<T>, ratio: f64) {
    let expected = values.len() as f64 * ratio;
    let with_margin = (expected * 1.02) as usize + 4096;
    if values.capacity() < with_margin && values.try_reserve_exact(with_margin - values.len()).is_ok() {
        advise_huge_pages(values, (expected * 0.98) as usize);
    }
}

/// Empty a vector that will hold `count` values.
///
/// A vector that is too small, or several times too large, is replaced, so the memory in use stays close to the memory
/// needed.
pub(crate) fn empty_for<T>(values: &mut Vec<T>, count: usize) {
    values.clear();
    if values.capacity() < count || values.capacity() > 4 * count {
        *values = Vec::new();
        memory::reserve(values, count);
        advise_huge_pages(values, count);
    }
}
