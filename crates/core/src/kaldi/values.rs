//! The values of objects: five encodings of numbers, texts, and vectors of whole numbers.

use super::scan::{Broken, Fault, GLOBAL_SIZE, Kind, Object, Unread, broken};
use crate::memory;
use crate::text::Text;
use rayon::prelude::*;
use std::io;
use std::ops::Range;

/// Number of values that a thread decodes.
const SHARE_VALUES: usize = 1 << 16;

/// The rows and columns of an object that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The object; a vector may be seen as rows of one value.
    pub object: Object,
    /// The first row.
    pub first_row: u32,
    /// Number of rows.
    pub num_rows: u32,
    /// The first column.
    pub first_col: u32,
}

/// A value of either precision, as it is kept.
pub trait Cell: Copy + Send {
    /// Set it to a number in single precision.
    fn set_single(&mut self, value: f32);
    /// Set it to a number in double precision, rounded if necessary.
    fn set_double(&mut self, value: f64);
    /// Set it to a number that is rounded once; `None`: the text is not a number.
    fn set_text(&mut self, text: &str) -> Option<()>;
    /// The bytes, if the cells have the form of a file in single precision.
    fn bytes(cells: &mut [Self]) -> Option<&mut [u8]>;
}

/// A number in single precision, lowest byte first.
impl Cell for [u8; 4] {
    #[inline]
    fn set_single(&mut self, value: f32) {
        *self = value.to_le_bytes();
    }
    #[inline]
    fn set_double(&mut self, value: f64) {
        *self = (value as f32).to_le_bytes();
    }
    fn set_text(&mut self, text: &str) -> Option<()> {
        // A number that is parsed in double precision and then rounded to single precision would be rounded twice.
        text.parse().ok().map(|value| self.set_single(value))
    }
    fn bytes(cells: &mut [Self]) -> Option<&mut [u8]> {
        Some(cells.as_flattened_mut())
    }
}

impl Cell for f64 {
    #[inline]
    fn set_single(&mut self, value: f32) {
        *self = value.into();
    }
    #[inline]
    fn set_double(&mut self, value: f64) {
        *self = value;
    }
    fn set_text(&mut self, text: &str) -> Option<()> {
        text.parse().ok().map(|value| self.set_double(value))
    }
    fn bytes(_: &mut [Self]) -> Option<&mut [u8]> {
        None
    }
}

/// Read the wanted rows of objects, `num_cols` columns of each, into `out`, which has room for exactly these. On all
/// threads of the pool if there is much to do. Returns the first object with a fault.
pub fn decode<C: Cell>(
    text: Text<'_>,
    wanted: &[Wanted],
    num_cols: usize,
    out: &mut [C],
) -> io::Result<Option<(usize, Broken)>> {
    let (mut jobs, mut rest) = (memory::with_room(wanted.len()), out);
    for (number, each) in wanted.iter().enumerate() {
        let size = (each.num_rows as usize).saturating_mul(num_cols);
        let Some((mine, others)) = std::mem::take(&mut rest).split_at_mut_checked(size) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        jobs.push((number, each, mine));
        rest = others;
    }
    let decode = |buffer: &mut Buffer, (number, each, out): (usize, &Wanted, &mut [C])| match decode_one(
        text, each, num_cols, out, buffer,
    ) {
        Ok(()) => Ok(()),
        Err(Unread::Broken(fault)) => Err(Ok((number, fault))),
        Err(Unread::Failed(error)) => Err(Err(error)),
        Err(Unread::Incomplete) => Err(Err(io::ErrorKind::UnexpectedEof.into())),
    };
    let num_values: usize = jobs.iter().map(|(_, _, out)| out.len()).sum();
    // Few values take less time than waking threads, and a call outside of a pool must not start rayon's global
    // threads.
    let result = if num_values < SHARE_VALUES || rayon::current_thread_index().is_none() {
        let mut buffer = Buffer::default();
        jobs.into_iter().try_for_each(|job| decode(&mut buffer, job))
    } else {
        // The first fault counts, not the fault that is found first.
        jobs.into_par_iter().map_init(Buffer::default, decode).find_first(Result::is_err).unwrap_or(Ok(()))
    };
    match result {
        Ok(()) => Ok(None),
        Err(Ok(fault)) => Ok(Some(fault)),
        Err(Err(error)) => Err(error),
    }
}

/// The bytes of an object, which many ranges of it may need.
#[derive(Default)]
struct Buffer {
    /// Memory, which only grows, so that it is cleared once and not for each object.
    bytes: Vec<u8>,
    /// The place of the bytes in the text.
    place: Range<usize>,
    /// Of a text: where each of its first rows begins, as far as known.
    rows: Vec<usize>,
}

impl Buffer {
    /// Return the bytes at a place of the text.
    fn read(&mut self, text: Text<'_>, place: Range<usize>) -> io::Result<&[u8]> {
        let size = place.len();
        if self.place != place {
            let room = size.max(self.bytes.len());
            memory::resize(&mut self.bytes, room, 0);
            // After an error the bytes are of no place.
            (self.place, self.rows) = (0..0, Vec::new());
            (text.read)(place.start, &mut self.bytes[..size])?;
            self.place = place;
        }
        Ok(&self.bytes[..size])
    }

    /// Return where a row of a text begins, or a place before its first field; `None` if the text ends before.
    fn row(&mut self, row: usize, cols: usize) -> Option<usize> {
        let bytes = &self.bytes[..self.place.len()];
        if self.rows.is_empty() {
            self.rows.push(0);
        }
        while self.rows.len() <= row {
            let begin = *self.rows.last()?;
            let (at, field) = fields(&bytes[begin..]).nth(cols.checked_sub(1)?)?;
            memory::push(&mut self.rows, begin + at + field.len());
        }
        Some(self.rows[row])
    }
}

/// The values of an object that are wanted.
struct Part {
    first_row: usize,
    num_rows: usize,
    rows: usize,
    cols: usize,
    chosen: Range<usize>,
}

impl Part {
    /// `None`: the text has no such values. Objects and ranges are plain numbers from Python.
    fn of(wanted: &Wanted, num_cols: usize, text: Text<'_>) -> Option<Part> {
        let Wanted { object, first_row, num_rows, first_col } = *wanted;
        let (first_row, num_rows, first_col) = (first_row as usize, num_rows as usize, first_col as usize);
        let (rows, cols) = (object.rows as usize, object.cols as usize);
        let chosen = first_col..first_col.checked_add(num_cols)?;
        let is_inside = first_row + num_rows <= rows && chosen.end <= cols && num_cols > 0 && object.fits(text);
        is_inside.then_some(Part { first_row, num_rows, rows, cols, chosen })
    }

    /// The place of the rows, if each value has `width` bytes. `fits` has seen that all rows are inside the object, so
    /// the places of some of them do not overflow.
    fn place(&self, object: &Object, width: usize) -> Range<usize> {
        let begin = object.begin + self.first_row * self.cols * width;
        begin..begin + self.num_rows * self.cols * width
    }
}

fn decode_one<C: Cell>(
    text: Text<'_>,
    wanted: &Wanted,
    num_cols: usize,
    out: &mut [C],
    buffer: &mut Buffer,
) -> Result<(), Unread> {
    let object = &wanted.object;
    let Some(part) = Part::of(wanted, num_cols, text) else { return broken(object.begin, Fault::Truncated) };
    // The rows of some kinds are read whole: they are small, or without a place.
    let whole = object.begin..object.end;
    match object.kind {
        Kind::FloatMatrix | Kind::FloatVector => {
            let place = part.place(object, 4);
            // Whole rows of floats are stored as they are delivered, so they need no buffer.
            match C::bytes(out).filter(|_| num_cols == part.cols) {
                Some(bytes) => (text.read)(place.start, bytes)?,
                None => {
                    let values = buffer.read(text, place)?.as_chunks().0;
                    by_rows(values, |cell, value| cell.set_single(f32::from_le_bytes(value)), &part, out);
                }
            }
        }
        Kind::DoubleMatrix | Kind::DoubleVector => {
            let values = buffer.read(text, part.place(object, 8))?.as_chunks().0;
            by_rows(values, |cell, value| cell.set_double(f64::from_le_bytes(value)), &part, out);
        }
        Kind::Compressed | Kind::TwoBytes | Kind::OneByte => {
            compressed(object.kind, buffer.read(text, whole)?, &part, out);
        }
        Kind::TextMatrix | Kind::TextVector => {
            buffer.read(text, whole)?;
            return written(object, buffer, &part, out);
        }
        Kind::Integers | Kind::TextIntegers => return broken(object.begin, Fault::UnknownType),
    }
    Ok(())
}

/// Decode values of the wanted rows, which are stored row by row.
fn by_rows<const SIZE: usize, C: Cell>(
    values: &[[u8; SIZE]],
    set: impl Fn(&mut C, [u8; SIZE]),
    part: &Part,
    out: &mut [C],
) {
    for (row, out) in values.chunks_exact(part.cols).zip(out.chunks_exact_mut(part.chosen.len())) {
        out.iter_mut().zip(&row[part.chosen.clone()]).for_each(|(cell, &value)| set(cell, value));
    }
}

/// Decode the numbers of a text, which the buffer has.
fn written<C: Cell>(object: &Object, buffer: &mut Buffer, part: &Part, out: &mut [C]) -> Result<(), Unread> {
    // The place of a row in a text is found by counting the fields before it.
    let Some(begin) = buffer.row(part.first_row, part.cols) else { return broken(object.end, Fault::Truncated) };
    let mut fields = fields(&buffer.bytes[begin..buffer.place.len()]);
    for row in out.chunks_exact_mut(part.chosen.len()) {
        for col in 0..part.cols {
            let Some((at, field)) = fields.next() else { return broken(object.end, Fault::Truncated) };
            if !part.chosen.contains(&col) {
                continue;
            }
            let cell = &mut row[col - part.chosen.start];
            if std::str::from_utf8(field).ok().and_then(|number| cell.set_text(number)).is_none() {
                return broken(object.begin + begin + at, Fault::BadNumber);
            }
        }
    }
    Ok(())
}

fn compressed<C: Cell>(kind: Kind, bytes: &[u8], part: &Part, out: &mut [C]) {
    let (global, data) = bytes.split_at(GLOBAL_SIZE);
    // A compressed matrix begins with 16 bytes.
    let single_at = |at: usize| f32::from_le_bytes(global[at..at + 4].try_into().expect("four bytes"));
    let (least, range) = (single_at(0), single_at(4));
    // Kaldi computes the step in double precision and rounds it once.
    let step = |num_steps: f64| (f64::from(range) * (1.0 / num_steps)) as f32;
    let before = part.first_row * part.cols;
    match kind {
        Kind::TwoBytes => {
            let step = step(65535.0);
            let value = |code: [u8; 2]| least + step * f32::from(u16::from_le_bytes(code));
            by_rows(&data.as_chunks().0[before..], |cell, code| cell.set_single(value(code)), part, out);
        }
        Kind::OneByte => {
            let step = step(255.0);
            let value = |[code]: [u8; 1]| least + step * f32::from(code);
            by_rows(&data.as_chunks().0[before..], |cell, code| cell.set_single(value(code)), part, out);
        }
        _ => by_columns(data, least, range, part, out),
    }
}

/// Rows from which on a table of the values of all codes takes less time than the values themselves.
const WORTH_A_TABLE: usize = 192;

/// Decode codes that are stored column by column, each column with its percentiles: the values of the codes 0, 64, 192
/// and 255. Others lie on straight lines between them.
fn by_columns<C: Cell>(data: &[u8], least: f32, range: f32, part: &Part, out: &mut [C]) {
    let (heads, codes) = data.split_at(8 * part.cols);
    let width = part.chosen.len();
    for (place, col) in part.chosen.clone().enumerate() {
        let head = &heads[8 * col..8 * col + 8];
        // This is Kaldi's constant for 1 / 65535, in single precision.
        let percentile = |at: usize| {
            least + range * 1.525_902_2e-5_f32 * f32::from(u16::from_le_bytes([head[2 * at], head[2 * at + 1]]))
        };
        let points = [percentile(0), percentile(1), percentile(2), percentile(3)];
        let begin = col * part.rows + part.first_row;
        let codes = &codes[begin..begin + part.num_rows];
        // No rows have no cells.
        let cells = out.get_mut(place..).unwrap_or_default().iter_mut().step_by(width);
        if codes.len() < WORTH_A_TABLE {
            cells.zip(codes).for_each(|(cell, &code)| cell.set_single(between(&points, code)));
        } else {
            let table: [f32; 256] = std::array::from_fn(|code| between(&points, code as u8));
            cells.zip(codes).for_each(|(cell, &code)| cell.set_single(table[code as usize]));
        }
    }
}

#[inline]
fn between(&[p0, p25, p75, p100]: &[f32; 4], code: u8) -> f32 {
    let (from, to, steps, share) = match code {
        0..=64 => (p0, p25, code, 1.0 / 64.0),
        65..=192 => (p25, p75, code - 64, 1.0 / 128.0),
        _ => (p75, p100, code - 192, 1.0 / 63.0),
    };
    // Kaldi multiplies in single precision, then divides and adds in double precision.
    (f64::from(from) + f64::from((to - from) * f32::from(steps)) * share) as f32
}

/// The fields of a text between blanks and semicolons, each with its offset.
fn fields(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let is_gap = |byte: &u8| byte.is_ascii_whitespace() || *byte == b';';
    let mut at = 0;
    std::iter::from_fn(move || {
        at += text[at..].iter().position(|byte| !is_gap(byte))?;
        let size = text[at..].iter().position(is_gap).unwrap_or(text.len() - at);
        at += size;
        Some((at - size, &text[at - size..at]))
    })
}

/// Read vectors of whole numbers, one after the other, into `out`, which has room for exactly these. Returns the first
/// vector with a fault.
pub fn integers(text: Text<'_>, objects: &[Object], out: &mut [i32]) -> io::Result<Option<(usize, Broken)>> {
    let (mut buffer, mut rest) = (Vec::new(), out);
    for (number, object) in objects.iter().enumerate() {
        let fault = |at, fault| Ok(Some((number, Broken { at, fault })));
        let (mine, others) = match std::mem::take(&mut rest).split_at_mut_checked(object.rows as usize) {
            Some(parts) if object.fits(text) => parts,
            _ => return fault(object.begin, Fault::Truncated),
        };
        rest = others;
        let size = object.end - object.begin;
        let room = size.max(buffer.len());
        memory::resize(&mut buffer, room, 0);
        let bytes = &mut buffer[..size];
        (text.read)(object.begin, bytes)?;
        if object.kind == Kind::Integers {
            for (number_of_value, (out, &[size, value @ ..])) in
                mine.iter_mut().zip(bytes.as_chunks::<5>().0).enumerate()
            {
                // Each number follows a byte with its size.
                if size != 4 {
                    return fault(object.begin + 5 * number_of_value, Fault::BadSize);
                }
                *out = i32::from_le_bytes(value);
            }
            continue;
        }
        let mut fields = fields(bytes);
        for out in mine {
            let Some((at, field)) = fields.next() else { return fault(object.end, Fault::Truncated) };
            match std::str::from_utf8(field).ok().and_then(|number| number.parse().ok()) {
                Some(value) => *out = value,
                None => return fault(object.begin + at, Fault::BadNumber),
            }
        }
    }
    Ok(None)
}

/// Put the neighbours of each row of `dim` values around it: `left` rows before it, `right` rows after it. The first
/// and the last row of a sequence are repeated beyond its ends. `values` has whole sequences.
pub fn windows(values: &[f64], lengths: &[u32], dim: usize, left: usize, right: usize) -> Vec<f64> {
    let mut out = memory::with_room(values.len().saturating_mul(1 + left + right));
    let mut begin = 0;
    for &length in lengths {
        let length = length as usize;
        for row in 0..length {
            for number in 0..=left + right {
                // There is a row here, so the length is at least 1.
                let frame = begin + (row + number).saturating_sub(left).min(length - 1);
                memory::append(&mut out, &values[frame * dim..(frame + 1) * dim]);
            }
        }
        begin += length;
    }
    out
}
