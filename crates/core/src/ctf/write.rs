//! The writer: columns into lines of text.
//!
//! Invariants: a number is written with the fewest digits that read back to the same bits. What the format cannot
//! express (infinities, a sequence without a sample) is a fault with its place, never a text with another meaning.
//! (docs/convert.md)

use crate::chunk::{PlainChunk, PlainColumn, in_any_type};
use crate::memory;
use crate::parallel;

pub(crate) fn put_integer(out: &mut Vec<u8>, mut value: u64) {
    // 2^64 - 1 has 20 digits.
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    memory::append(out, &digits[at..]);
}

/// A value that can be written.
pub(super) trait Decimal: Copy {
    /// Write the value. A failure is a value that is not finite.
    fn put(self, out: &mut Vec<u8>) -> Result<(), f64>;
    /// The value, perhaps rounded.
    fn wide(self) -> f64;
}

macro_rules! decimals {
    ($($float:ty)*; $($whole:ty)*) => {
        $(impl Decimal for $float {
            /// Whole numbers below 2^24 (2^53) are exact, and are written as integers.
            #[inline]
            fn put(self, out: &mut Vec<u8>) -> Result<(), f64> {
                let wide = self.wide();
                // NaN and infinities fail the first comparison.
                if wide.abs() < (1u64 << <$float>::MANTISSA_DIGITS) as f64 && wide == (wide as i64) as f64 {
                    // Not a comparison with 0: minus zero keeps its sign.
                    if wide.is_sign_negative() {
                        memory::push(out, b'-');
                    }
                    put_integer(out, wide.abs() as u64);
                    return Ok(());
                }
                if !wide.is_finite() {
                    return Err(wide);
                }
                memory::append(out, ryu::Buffer::new().format_finite(self).as_bytes());
                // `ryu` may end a whole number with these two bytes, which no reader needs.
                if out.ends_with(b".0") {
                    out.truncate(out.len() - 2);
                }
                Ok(())
            }

            #[inline]
            fn wide(self) -> f64 {
                self.into()
            }
        })*
        $(impl Decimal for $whole {
            #[inline]
            fn put(self, out: &mut Vec<u8>) -> Result<(), f64> {
                if self < 0 {
                    memory::push(out, b'-');
                }
                put_integer(out, self.unsigned_abs().into());
                Ok(())
            }

            #[inline]
            fn wide(self) -> f64 {
                self as f64
            }
        })*
    };
}
decimals!(f32 f64; i32 i64);

/// Reason why a sequence cannot be written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unwritable {
    /// A value that is not a number or infinite.
    Value {
        /// The sequence's number in the chunk.
        sequence: usize,
        /// The stream, as a number in the list of names.
        stream: usize,
        /// The value.
        value: f64,
    },
    /// A sequence without a sample in any stream.
    NoSample {
        /// Its number in the chunk.
        sequence: usize,
    },
}

/// Write some sequences of a chunk as text, in pieces of `piece` sequences on all threads of the current pool.
///
/// `streams`: for each its column, its name, and whether its whole numbers are classes, which are written as one-hot
/// samples; a column that does not exist is a bug of the caller, and is left out.
/// `keys` holds the number in front of each sequence's lines.
pub fn write(
    chunk: &PlainChunk,
    first: usize,
    keys: &[u64],
    streams: &[(usize, &[u8], bool)],
    piece: usize,
) -> Result<Vec<Vec<u8>>, Unwritable> {
    // A piece of 0 sequences would be a division by zero.
    let pieces: Vec<&[u64]> = keys.chunks(piece.max(1)).collect();
    let write = |number: usize| {
        let mut out = Vec::new();
        for (place, &key) in pieces[number].iter().enumerate() {
            write_sequence(chunk, first + number * piece.max(1) + place, key, streams, &mut out)?;
        }
        Ok(out)
    };
    parallel::map(pieces.len(), write).into_iter().collect()
}

fn write_sequence(
    chunk: &PlainChunk,
    sequence: usize,
    key: u64,
    streams: &[(usize, &[u8], bool)],
    out: &mut Vec<u8>,
) -> Result<(), Unwritable> {
    let (columns, number) = chunk.locate(sequence);
    let samples = |column: usize| columns.get(column).map(|column| column.samples(number));
    let num_lines = streams.iter().filter_map(|&(column, ..)| samples(column)).map(|samples| samples.len()).max();
    let num_lines = num_lines.unwrap_or(0);
    // The text would lack the whole sequence.
    if num_lines == 0 {
        return Err(Unwritable::NoSample { sequence });
    }
    for line in 0..num_lines {
        put_integer(out, key);
        let mut before = b'\t';
        for (stream, &(column, name, are_classes)) in streams.iter().enumerate() {
            let Some(sample) = samples(column).and_then(|mut samples| samples.nth(line)) else { continue };
            memory::append(out, &[before, b'|']);
            memory::append(out, name);
            before = b' ';
            let put = put_sample(out, &columns[column], sample, are_classes);
            put.map_err(|value| Unwritable::Value { sequence, stream, value })?;
        }
        memory::push(out, b'\n');
    }
    Ok(())
}

fn put_sample(out: &mut Vec<u8>, column: &PlainColumn, sample: usize, are_classes: bool) -> Result<(), f64> {
    fn plain<T: Decimal>(out: &mut Vec<u8>, values: &[T]) -> Result<(), f64> {
        values.iter().try_for_each(|&value| {
            memory::push(out, b' ');
            value.put(out)
        })
    }
    fn classes<T: Decimal>(out: &mut Vec<u8>, classes: &[T]) -> Result<(), f64> {
        classes.iter().try_for_each(|&class| {
            // An index has no sign, so readers would refuse the line.
            if class.wide() < 0.0 {
                return Err(class.wide());
            }
            memory::push(out, b' ');
            class.put(out)?;
            memory::append(out, b":1");
            Ok(())
        })
    }
    fn indexed<T: Decimal>(out: &mut Vec<u8>, indices: &[i32], values: &[T]) -> Result<(), f64> {
        indices.iter().zip(values).try_for_each(|(&index, &value)| {
            memory::push(out, b' ');
            put_integer(out, index as u64);
            memory::push(out, b':');
            value.put(out)
        })
    }
    let range = column.range(sample..sample + 1);
    in_any_type!(column.values, values => match column.entries {
        None if are_classes => classes(out, &values[range]),
        None => plain(out, &values[range]),
        Some((_, indices)) => indexed(out, &indices[range.clone()], &values[range]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number;
    use proptest::prelude::*;

    fn written(value: f32) -> String {
        let mut out = Vec::new();
        value.put(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_number_is_written_with_the_fewest_digits() {
        let texts =
            [(1.0, "1"), (-0.0, "-0"), (0.1, "0.1"), (1e-45, "1e-45"), (16777216.0, "16777216"), (-2.5, "-2.5")];
        for (value, text) in texts {
            assert_eq!(written(value), text);
        }
        assert_eq!(written(3.4028235e38), "3.4028235e38");
        assert!(f32::NAN.put(&mut Vec::new()).is_err());
        assert!(f64::NEG_INFINITY.put(&mut Vec::new()).is_err());
    }

    proptest! {
        #[test]
        fn a_written_number_reads_back_to_the_same_bits(bits: u32, wide: u64) {
            let (value, double) = (f32::from_bits(bits), f64::from_bits(wide));
            let mut out = Vec::new();
            if value.put(&mut out).is_ok() {
                let (read, end) = number::read::<f32>(&out, 0).unwrap();
                prop_assert_eq!((read.to_bits(), end), (bits, out.len()));
            }
            out.clear();
            if double.put(&mut out).is_ok() {
                let (read, end) = number::read::<f64>(&out, 0).unwrap();
                prop_assert_eq!((read.to_bits(), end), (wide, out.len()));
            }
        }
    }
}
