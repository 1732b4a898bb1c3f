//! Values in the type in which they are stored, and memory for columns.

use crate::memory;
use crate::number::Element;
use cntkio_memory::copy::AnyWidth;
use cntkio_memory::huge_pages::{advise_for, advise_huge_pages};
use cntkio_memory::small::Number;

/// A type of values. CNTK's formats have floats; tables, svmlight texts and Python also have whole numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberType {
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// Whole numbers of 32 bits.
    I32,
    /// Whole numbers of 64 bits.
    I64,
}

impl NumberType {
    /// Double or single precision.
    pub fn float(is_double: bool) -> NumberType {
        if is_double { NumberType::F64 } else { NumberType::F32 }
    }
}

/// Values of one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Single precision.
    F32(Vec<f32>),
    /// Double precision.
    F64(Vec<f64>),
    /// Whole numbers of 32 bits.
    I32(Vec<i32>),
    /// Whole numbers of 64 bits.
    I64(Vec<i64>),
}

/// Run the same code on the vector of any type.
// This is a macro, because closures are not generic over the type of the vector.
macro_rules! in_any_type {
    ($values:expr, $vector:ident => $code:expr) => {
        match $values {
            $crate::chunk::Values::F32($vector) => $code,
            $crate::chunk::Values::F64($vector) => $code,
            $crate::chunk::Values::I32($vector) => $code,
            $crate::chunk::Values::I64($vector) => $code,
        }
    };
}
pub(crate) use in_any_type;

/// Run the same code on the vector of either precision, and other code for whole numbers.
macro_rules! in_either_precision {
    ($values:expr, $vector:ident => $code:expr, else $other:expr) => {
        match $values {
            $crate::chunk::Values::F32($vector) => $code,
            $crate::chunk::Values::F64($vector) => $code,
            _ => $other,
        }
    };
}
pub(crate) use in_either_precision;

impl Default for Values {
    fn default() -> Values {
        Values::empty(NumberType::F32)
    }
}

impl Values {
    /// No values, of this type.
    pub fn empty(number: NumberType) -> Values {
        match number {
            NumberType::F32 => Values::F32(Vec::new()),
            NumberType::F64 => Values::F64(Vec::new()),
            NumberType::I32 => Values::I32(Vec::new()),
            NumberType::I64 => Values::I64(Vec::new()),
        }
    }

    /// The type of the values.
    pub fn number(&self) -> NumberType {
        match self {
            Values::F32(_) => NumberType::F32,
            Values::F64(_) => NumberType::F64,
            Values::I32(_) => NumberType::I32,
            Values::I64(_) => NumberType::I64,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        in_any_type!(self, values => values.len())
    }

    /// True if the column is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the values.
    pub(crate) fn num_bytes(&self) -> usize {
        in_any_type!(self, values => size_of_val(&values[..]))
    }

    /// Bytes of memory that is reserved for the values.
    pub(crate) fn capacity_in_bytes(&self) -> usize {
        // The macro hides the type of the values, and `size_of` needs its name.
        fn bytes<T>(values: &Vec<T>) -> usize {
            size_of::<T>() * values.capacity()
        }
        in_any_type!(self, values => bytes(values))
    }

    /// Drop all values but keep the memory.
    pub(crate) fn clear(&mut self) {
        in_any_type!(self, values => values.clear());
    }

    /// Keep only the first values.
    pub(crate) fn truncate(&mut self, count: usize) {
        in_any_type!(self, values => values.truncate(count));
    }

    /// Empty the vector for `count` values, as [`empty_for`].
    pub(crate) fn empty_for(&mut self, count: usize) {
        in_any_type!(self, values => empty_for(values, count));
    }

    /// [`expect`] `ratio` times as many values.
    pub(crate) fn expect(&mut self, ratio: f64) {
        in_any_type!(self, values => expect(values, ratio));
    }

    /// Append values that a file stores, lowest byte first, in double precision or in single.
    pub(crate) fn append_stored(&mut self, bytes: &[u8], is_double: bool) {
        fn append<T: Element>(out: &mut Vec<T>, bytes: &[u8], is_double: bool) {
            if is_double == T::IS_DOUBLE { T::append_le(out, bytes) } else { T::append_converted(out, bytes) }
        }
        // The caller's column has the type of a stream of a file, which is a float.
        in_either_precision!(self, values => append(values, bytes, is_double), else unreachable!("files store floats"));
    }
}

/// A type of [`Values`].
pub trait Value: Number + Default + PartialEq + std::fmt::Debug + 'static {
    /// 1.
    const ONE: Self;
    /// The values, if they are of this type.
    fn of(values: &Values) -> Option<&[Self]>;
    /// The vector of the values, if they are of this type.
    fn vector(values: &mut Values) -> Option<&mut Vec<Self>>;
    /// Values in the form of [`Small`](super::Small), which only floats have.
    fn small(_: &[u8]) -> Option<AnyWidth<'_, Self>> {
        None
    }
    /// Values in the form of [`Narrow`](super::Narrow), which only whole numbers have.
    fn of_narrow(_: &[u16]) -> Option<AnyWidth<'_, Self>> {
        None
    }
}

macro_rules! values {
    ($($number:ty, $variant:ident, $small:item;)*) => {$(
        impl Value for $number {
            const ONE: $number = 1 as $number;

            #[inline]
            fn of(values: &Values) -> Option<&[$number]> {
                if let Values::$variant(values) = values { Some(values) } else { None }
            }

            #[inline]
            fn vector(values: &mut Values) -> Option<&mut Vec<$number>> {
                if let Values::$variant(values) = values { Some(values) } else { None }
            }

            #[inline]
            $small
        }
    )*};
}

values! {
    f32, F32, fn small(values: &[u8]) -> Option<AnyWidth<'_, f32>> { Some(AnyWidth::Small(values)) };
    f64, F64, fn small(values: &[u8]) -> Option<AnyWidth<'_, f64>> { Some(AnyWidth::Small(values)) };
    i32, I32, fn of_narrow(values: &[u16]) -> Option<AnyWidth<'_, i32>> { Some(AnyWidth::Small(values)) };
    i64, I64, fn of_narrow(values: &[u16]) -> Option<AnyWidth<'_, i64>> { Some(AnyWidth::Small(values)) };
}

/// Reserve memory for `count` more values, in huge pages if they are large enough.
pub(crate) fn reserve<T>(values: &mut Vec<T>, count: usize) {
    memory::reserve(values, count);
    advise_for(values, count);
}

/// Reserve memory for `ratio` times as many values and a little more.
///
/// Most of the memory will be used, so it may be in huge pages.
pub(crate) fn expect<T>(values: &mut Vec<T>, ratio: f64) {
    expect_and(values, ratio, 4096);
}

/// [`expect`] `ratio` times as many values, and `more` of them.
pub(crate) fn expect_and<T>(values: &mut Vec<T>, ratio: f64, more: usize) {
    let expected = values.len() as f64 * ratio;
    // The margin covers an estimate that is a little too low, since a growth would copy all values.
    let with_margin = ((expected * 1.02) as usize).saturating_add(more);
    let mut larger = Vec::new();
    // The size is only an estimate. If the system refuses it, the vector grows as usual.
    if values.capacity() < with_margin && larger.try_reserve_exact(with_margin).is_ok() {
        // The advice comes before the first use: growing in place would copy the values into small pages.
        advise_huge_pages(&mut larger, (expected * 0.98) as usize);
        larger.append(values);
        *values = larger;
    }
}

/// Empty a vector that will hold `count` values.
///
/// A vector that is too small, or several times too large, is replaced, so the memory in use stays close to the memory
/// needed.
pub(crate) fn empty_for<T>(values: &mut Vec<T>, count: usize) {
    values.clear();
    if values.capacity() < count || values.capacity() > 4 * count {
        // Growing the cleared vector would copy its old content.
        *values = Vec::new();
        memory::reserve(values, count);
        advise_huge_pages(values, count);
    }
}
