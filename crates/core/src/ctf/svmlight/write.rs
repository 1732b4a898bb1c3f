//! The writer: columns into lines. Numbers are written with the fewest digits that read back to the same bits.

use super::super::write::{Decimal, Unwritable, put_integer};
use crate::chunk::{PlainChunk, PlainColumn, Values, in_any_type};
use crate::memory;
use crate::parallel;

/// The columns of a chunk that are written.
#[derive(Debug, Clone, Copy)]
pub struct Columns {
    /// The features: sparse, or dense, whose zeros are left out.
    pub features: usize,
    /// The label: one value, or sparse entries of 1, the labels.
    pub label: usize,
    /// The query: one whole number.
    pub query: Option<usize>,
    /// The index of the first feature in the file.
    pub base: u32,
}

/// Write the sequences of a chunk as text, in pieces of `piece` sequences on all threads of the current pool. A column
/// that does not exist is a bug of the caller, and is taken as empty.
///
/// With `keys`, the key of each sequence is the query of its lines. A fault names the features as stream 0, the label
/// as 1 and the query as 2.
///
/// # Errors
/// A sequence has different numbers of features and labels; a label or a query is not a whole number.
pub fn write(chunk: &PlainChunk, keys: &[u64], columns: Columns, piece: usize) -> Result<Vec<Vec<u8>>, Unwritable> {
    // A piece of 0 sequences would be a division by zero.
    let (count, piece) = (chunk.num_sequences(), piece.max(1));
    let write = |number: usize| {
        let mut out = Vec::new();
        for sequence in number * piece..count.min((number + 1) * piece) {
            write_sequence(chunk, sequence, keys.get(sequence).copied(), columns, &mut out)?;
        }
        Ok(out)
    };
    parallel::map(count.div_ceil(piece), write).into_iter().collect()
}

fn write_sequence(
    chunk: &PlainChunk,
    sequence: usize,
    key: Option<u64>,
    wanted: Columns,
    out: &mut Vec<u8>,
) -> Result<(), Unwritable> {
    let (columns, number) = chunk.locate(sequence);
    let samples = |column: usize| columns.get(column).map_or(0..0, |column| column.samples(number));
    let features = samples(wanted.features);
    let others = [Some(wanted.label), wanted.query].into_iter().flatten();
    if features.is_empty() || others.map(samples).any(|samples| samples.len() != features.len()) {
        return Err(Unwritable::NoSample { sequence });
    }
    let fault = |stream| move |value| Unwritable::Value { sequence, stream, value };
    for (line, sample) in features.enumerate() {
        let sample_of = |column: usize| samples(column).start + line;
        put_label(out, &columns[wanted.label], sample_of(wanted.label)).map_err(fault(1))?;
        let query = match wanted.query {
            Some(column) => Some(whole(&columns[column], sample_of(column)).map_err(fault(2))?),
            None => key.map(|key| (false, key)),
        };
        if let Some((is_negative, query)) = query {
            memory::append(out, if is_negative { b" qid:-" } else { b" qid:" });
            put_integer(out, query);
        }
        put_features(out, &columns[wanted.features], sample, wanted.base).map_err(fault(0))?;
        memory::push(out, b'\n');
    }
    Ok(())
}

fn put_value<T: Decimal>(out: &mut Vec<u8>, value: T) {
    // Unlike CNTK's text format, this format has texts for these values. Also the sign of NaN is read back.
    if let Err(wide) = value.put(out) {
        let text: &[u8] = if wide.is_nan() { b"nan" } else { b"inf" };
        memory::append(out, if wide.is_sign_negative() { b"-" } else { b"" });
        memory::append(out, text);
    }
}

/// True if a vector whose first value other than 0 is at `class` has only a 1.
fn is_one_hot<T: Decimal>(vector: &[T], class: usize) -> bool {
    vector[class].wide() == 1.0 && vector[class + 1..].iter().all(|value| value.wide() == 0.0)
}

/// Write a label, or several; a one-hot vector of dense values is its class. A failure is the number of values of a
/// dense sample that is neither one value nor one-hot, or an entry that is not 1.
fn put_label(out: &mut Vec<u8>, column: &PlainColumn, sample: usize) -> Result<(), f64> {
    let range = column.range(sample..sample + 1);
    in_any_type!(column.values, values => match column.entries {
        None => match &values[range] {
            &[value] => put_value(out, value),
            several => match several.iter().position(|value| value.wide() != 0.0) {
                Some(class) if is_one_hot(several, class) => put_integer(out, class as u64),
                _ => return Err(several.len() as f64),
            },
        },
        Some((_, indices)) => {
            for (number, (&index, &value)) in indices[range.clone()].iter().zip(&values[range]).enumerate() {
                // A line has room only for the labels, which are read back with the value 1.
                if value.wide() != 1.0 {
                    return Err(value.wide());
                }
                if number > 0 {
                    memory::push(out, b',');
                }
                put_integer(out, index as u64);
            }
        }
    });
    Ok(())
}

/// The whole number that a sample is, as its sign and its absolute value. A failure is another value.
fn whole(column: &PlainColumn, sample: usize) -> Result<(bool, u64), f64> {
    let range = column.range(sample..sample + 1);
    // A sample with several values is not one number, and the value of an entry is not its index.
    if column.entries.is_some() || range.len() != 1 {
        return Err(f64::NAN);
    }
    // As float64, queries beyond 2^53 would be rounded.
    if let Values::I64(values) = column.values {
        return values[range].first().map(|value| (*value < 0, value.unsigned_abs())).ok_or(f64::NAN);
    }
    let value = in_any_type!(column.values, values => values[range].first().map_or(f64::NAN, |&value| value.wide()));
    // Beyond 2^53 float64 skips whole numbers, so the query may have been rounded before.
    let is_whole = value.abs() <= (1u64 << 53) as f64 && value.fract() == 0.0;
    if is_whole { Ok((value < 0.0, value.abs() as u64)) } else { Err(value) }
}

/// Write features. A failure is an index that is not above the index before it.
fn put_features(out: &mut Vec<u8>, column: &PlainColumn, sample: usize, base: u32) -> Result<(), f64> {
    let range = column.range(sample..sample + 1);
    let put_index = |out: &mut Vec<u8>, index: u64| {
        memory::push(out, b' ');
        put_integer(out, index + u64::from(base));
        memory::push(out, b':');
    };
    in_any_type!(column.values, values => match column.entries {
        None => {
            for (index, &value) in values[range].iter().enumerate().filter(|&(_, &value)| value.wide() != 0.0) {
                put_index(out, index as u64);
                put_value(out, value);
            }
        }
        Some((_, indices)) => {
            let mut least = 0;
            for (&index, &value) in indices[range.clone()].iter().zip(&values[range]) {
                if i64::from(index) < least {
                    return Err(index.into());
                }
                least = i64::from(index) + 1;
                put_index(out, index as u64);
                put_value(out, value);
            }
        }
    });
    Ok(())
}
