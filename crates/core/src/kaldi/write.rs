//! Columns as an archive.

use crate::chunk::{NumberType, PlainChunk, PlainColumn, Value, Values, in_any_type, in_either_precision};
use crate::memory;
use std::ops::Range;

/// Sequences as an archive.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The first byte of each object, after its key.
    pub offsets: Vec<u64>,
}

/// Write a stream of all sequences of a chunk: dense samples as matrices, one-hot samples as vectors of whole numbers.
/// `keys` has rows of `width` bytes, padded with zeros. Returns the number of a sequence that cannot be written.
pub fn write(
    chunk: &PlainChunk<'_>,
    keys: &[u8],
    width: usize,
    column: usize,
    is_text: bool,
) -> Result<Written, usize> {
    let mut written = Written::default();
    for number in 0..chunk.num_sequences() {
        let key = keys.get(number * width..(number + 1) * width).unwrap_or_default();
        let key = &key[..key.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)];
        // A reader ends a key at the first blank, so such keys cannot be read again.
        let is_key = !key.is_empty() && !key.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0);
        let (columns, sequence) = chunk.locate(number);
        let column = columns.get(column).filter(|_| is_key).ok_or(number)?;
        let out = &mut written.bytes;
        memory::append(out, key);
        memory::push(out, b' ');
        memory::push(&mut written.offsets, out.len() as u64);
        let samples = column.samples(sequence);
        match (column.entries, column.values.number()) {
            (None, NumberType::F32 | NumberType::F64) => write_matrix(column, samples, is_text, out),
            _ => write_integers(column, samples, is_text, out).ok_or(number)?,
        }
    }
    Ok(written)
}

fn write_matrix(column: &PlainColumn<'_>, samples: Range<usize>, is_text: bool, out: &mut Vec<u8>) {
    // A chunk has fewer than 2^32 samples, because its offsets have 32 bits.
    let (rows, cols, range) = (samples.len() as u32, column.dim as u32, column.range(samples));
    if is_text {
        memory::append(out, b" [");
        // `step_by` panics for a step of 0.
        for row in range.clone().step_by(column.dim.max(1)) {
            memory::append(out, b"\n  ");
            for at in row..(row + column.dim).min(range.end) {
                in_either_precision!(
                    column.values,
                    values => write_number(values[at], out),
                    else {}
                );
            }
        }
        memory::append(out, b"]\n");
        return;
    }
    let is_double = column.values.number() == NumberType::F64;
    memory::append(out, if is_double { b"\0BDM " } else { b"\0BFM " });
    for number in [rows, cols] {
        // In Kaldi's binary format, each size follows a byte with its number of bytes.
        memory::push(out, 4);
        memory::append(out, &number.to_le_bytes());
    }
    memory::reserve(out, range.len() * if is_double { 8 } else { 4 });
    in_either_precision!(
        column.values,
        values => values[range].iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes())),
        else {}
    );
}

fn write_number<T: ryu::Float + Into<f64>>(value: T, out: &mut Vec<u8>) {
    let wide: f64 = value.into();
    if wide.is_finite() {
        memory::append(out, ryu::Buffer::new().format_finite(value).as_bytes());
    } else {
        memory::append(
            out,
            if wide.is_nan() {
                b"nan"
            } else if wide > 0.0 {
                b"inf"
            } else {
                b"-inf"
            },
        );
    }
    memory::push(out, b' ');
}

/// Write the whole number, or the only index, of each sample; `None`: a sample has another form.
fn write_integers(column: &PlainColumn<'_>, samples: Range<usize>, is_text: bool, out: &mut Vec<u8>) -> Option<()> {
    if column.entries.is_none() && column.dim != 1 {
        return None;
    }
    if !is_text {
        memory::append(out, b"\0B\x04");
        memory::append(out, &(samples.len() as u32).to_le_bytes());
    }
    for sample in samples {
        let range = column.range(sample..sample + 1);
        let index = match (column.entries, column.values) {
            (None, Values::I32(values)) => values[range.start],
            // Kaldi's whole numbers have 32 bits.
            (None, Values::I64(values)) => values[range.start].try_into().ok()?,
            (Some((_, indices)), values) => {
                // The archive has indices alone, so no value but 1 may be lost.
                let is_one = range.len() == 1 && in_any_type!(values, values => values[range.start] == Value::ONE);
                *indices.get(range.start).filter(|_| is_one)?
            }
            _ => return None,
        };
        if is_text {
            memory::append(out, index.to_string().as_bytes());
            memory::push(out, b' ');
        } else {
            memory::push(out, 4);
            memory::append(out, &index.to_le_bytes());
        }
    }
    if is_text {
        memory::push(out, b'\n');
    }
    Some(())
}
