//! Archives (ark), lists (scp) and maps of Kaldi. (docs/formats/kaldi.md)
//!
//! * [`scan`] finds the objects of an archive, [`objects`] those at known offsets; both read headers only, except for
//!   text, whose rows have to be counted.
//! * [`decode`] turns objects into values, [`integers`] into whole numbers.
//! * [`scan_list`] and [`scan_map`] turn lines into columns.
//!
//! Invariants: no file is opened here, no input causes a panic, the memory is bounded by the window of the text and the
//! values that are asked for, and a fault has its offset.

use crate::chunk::{NumberType, PlainChunk, PlainColumn, Value, Values, in_any_type, in_either_precision};
use crate::htk::LONGEST_KEY;
use crate::lines::{Lines, Names};
use crate::memory;
use crate::named::named;
use crate::text::Text;
use memchr::{memchr, memrchr};
use rayon::prelude::*;
use std::io;
use std::ops::Range;

/// Values that one thread decodes.
const SHARE_VALUES: usize = 1 << 16;
/// Bytes of the first window of a pass; windows that follow each other grow.
const LEAST_WINDOW: usize = 1 << 12;
const MOST_WINDOW: usize = 1 << 20;
/// The byte order mark of UTF-8.
const BOM: &[u8] = b"\xEF\xBB\xBF";
/// Bytes of the longest header of an object.
const HEADER_SIZE: usize = 32;
/// Bytes of the range and the size of a compressed matrix.
const GLOBAL_SIZE: usize = 16;

named! {
    /// A kind of object.
    pub enum Kind {
        /// `FM`
        FloatMatrix = "float matrix",
        /// `DM`
        DoubleMatrix = "double matrix",
        /// `CM`: a byte for each value, and percentiles for each column.
        Compressed = "compressed matrix",
        /// `CM2`: two bytes for each value.
        TwoBytes = "compressed matrix of two bytes",
        /// `CM3`: a byte for each value.
        OneByte = "compressed matrix of one byte",
        /// `FV`
        FloatVector = "float vector",
        /// `DV`
        DoubleVector = "double vector",
        /// Whole numbers of 32 bits, each after its size in bytes.
        Integers = "vector of integers",
        /// Rows of numbers between brackets.
        TextMatrix = "text matrix",
        /// Numbers between brackets.
        TextVector = "text vector",
        /// Whole numbers on a line.
        TextIntegers = "line of integers",
    }
}

impl Kind {
    /// All kinds, in the order of their numbers.
    // Python passes kinds as numbers, and this list gives the kind of a number.
    pub const ALL: [Kind; 11] = [
        Kind::FloatMatrix,
        Kind::DoubleMatrix,
        Kind::Compressed,
        Kind::TwoBytes,
        Kind::OneByte,
        Kind::FloatVector,
        Kind::DoubleVector,
        Kind::Integers,
        Kind::TextMatrix,
        Kind::TextVector,
        Kind::TextIntegers,
    ];
}

named! {
    /// A fault of an archive.
    pub enum Fault {
        /// The key is missing, or has a zero byte.
        NoKey = "no key",
        /// The key is too long.
        LongKey = "long key",
        /// The data end before the object does.
        Truncated = "truncated",
        /// The type is unknown.
        UnknownType = "unknown type",
        /// A number of the header is not four bytes long.
        BadSize = "bad size",
        /// A negative number of rows, columns or values.
        Negative = "negative",
        /// Rows of a text have different numbers of values.
        RaggedRows = "ragged rows",
        /// Text that is not a number.
        BadNumber = "bad number",
    }
}

/// A fault and the byte where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken {
    /// The byte.
    pub at: usize,
    /// The fault.
    pub fault: Fault,
}

/// Reason why an object cannot be read.
#[derive(Debug)]
pub enum Unread {
    /// The text cannot be read.
    Failed(io::Error),
    /// It breaks its format.
    Broken(Broken),
    /// The window ends before the header does.
    Incomplete,
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Unread {
        Unread::Failed(error)
    }
}

fn broken<T>(at: usize, fault: Fault) -> Result<T, Unread> {
    Err(Unread::Broken(Broken { at, fault }))
}

/// A matrix, a vector or a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// Rows of a matrix; 1 for a vector of numbers; the count of whole numbers.
    pub rows: u32,
    /// Columns of a matrix, values of a vector; 1 for whole numbers.
    pub cols: u32,
    /// The first byte of its values; of a compressed matrix, the first byte of its range.
    pub begin: usize,
    /// The byte after its values.
    pub end: usize,
}

impl Object {
    /// True if its values are bytes of the text, as many as its rows and columns need. Sizes of a text are not known.
    fn fits(&self, text: Text<'_>) -> bool {
        let is_text = matches!(self.kind, Kind::TextMatrix | Kind::TextVector | Kind::TextIntegers);
        // The rows and columns decide which bytes are read, and how many numbers they hold.
        let has_size = |size: usize| is_text || num_bytes(self.kind, self.rows, self.cols) == Some(size);
        self.end <= text.size && self.end.checked_sub(self.begin).is_some_and(has_size)
    }
}

/// The objects of an archive, in its order.
#[derive(Debug, Default)]
pub struct Scan {
    /// All keys, one after the other.
    pub keys: Vec<u8>,
    /// End of each key in `keys`.
    pub key_ends: Vec<usize>,
    /// The first byte of each object, after its key.
    pub offsets: Vec<u64>,
    /// The objects.
    pub objects: Vec<Object>,
    /// The byte after the last object.
    pub next: usize,
}

/// A part of a text in memory, which moves on.
struct Window<'a> {
    text: Text<'a>,
    begin: usize,
    buffer: Vec<u8>,
    wanted: usize,
}

impl<'a> Window<'a> {
    fn new(text: Text<'a>) -> Window<'a> {
        Window { text, begin: 0, buffer: Vec::new(), wanted: LEAST_WINDOW }
    }

    /// The bytes from `at` on that are in memory: at least `count`, or all that the text has.
    fn at(&mut self, at: usize, count: usize) -> io::Result<&[u8]> {
        let end = self.begin + self.buffer.len();
        let is_here = at >= self.begin && at.saturating_add(count).min(self.text.size) <= end && at <= end;
        if !is_here {
            // Objects that follow closely are read together; between large objects, only the headers are.
            let follows = at >= self.begin && at <= end;
            self.wanted = if follows { (2 * self.wanted).min(MOST_WINDOW) } else { LEAST_WINDOW };
            self.buffer.clear();
            self.begin = at;
            self.text.append_to(&mut self.buffer, at, count.max(self.wanted))?;
        }
        Ok(self.buffer.get(at - self.begin..).unwrap_or_default())
    }

    fn byte(&mut self, at: usize) -> io::Result<Option<u8>> {
        Ok(self.at(at, 1)?.first().copied())
    }
}

/// Find the objects of an archive of `total` bytes that begin from `begin` up to the end of the text, which may be a
/// part of the archive. [`Scan::next`] is the first byte that belongs to none of them.
pub fn scan(text: Text<'_>, begin: usize, total: usize) -> Result<(Scan, Option<Broken>), io::Error> {
    let mut window = Window::new(text);
    // A text archive may begin with a byte order mark.
    let begin = if begin == 0 && window.at(0, BOM.len())?.starts_with(BOM) { BOM.len() } else { begin };
    let mut scan = Scan { next: begin, ..Scan::default() };
    while scan.next < text.size {
        match next_object(&mut window, &mut scan, total) {
            Ok(true) => {}
            // A part of an archive may end inside an object. The caller continues at `next` with more text.
            Ok(false) | Err(Unread::Incomplete) => break,
            Err(Unread::Failed(error)) => return Err(error),
            Err(Unread::Broken(fault)) => return Ok((scan, Some(fault))),
        }
    }
    Ok((scan, None))
}

/// Append the next object; false: there are only blanks.
fn next_object(window: &mut Window<'_>, scan: &mut Scan, total: usize) -> Result<bool, Unread> {
    let mut at = scan.next;
    while window.byte(at)?.is_some_and(|byte| byte.is_ascii_whitespace()) {
        at += 1;
    }
    if at >= window.text.size {
        scan.next = at;
        return Ok(false);
    }
    // These bytes decide whether a key is too long, so a damaged file is not searched to its end for a blank.
    let bytes = window.at(at, LONGEST_KEY + 2)?;
    let bytes = &bytes[..bytes.len().min(LONGEST_KEY + 2)];
    let size = bytes.iter().position(|byte| byte.is_ascii_whitespace());
    let Some(size) = size else {
        if bytes.len() > LONGEST_KEY {
            return broken(at, Fault::LongKey);
        }
        // In a part of an archive, the blank after the key may be in the next part.
        return if window.text.size < total { Err(Unread::Incomplete) } else { broken(at, Fault::Truncated) };
    };
    if size > LONGEST_KEY {
        return broken(at, Fault::LongKey);
    }
    // The window moves when the object is read, so the key is copied before.
    let key = memory::copied(&bytes[..size]);
    // Keys are padded with zeros, so a key with a zero byte could not be told from a shorter key.
    if key.contains(&0) {
        return broken(at, Fault::NoKey);
    }
    // A line that has only a key is a line without numbers.
    let offset = if bytes[size] == b'\n' { at + size } else { at + size + 1 };
    let object = object(window, offset, total)?;
    // The columns grow only after the object was read, because all of them must have the same length.
    memory::append(&mut scan.keys, &key);
    memory::push(&mut scan.key_ends, scan.keys.len());
    memory::push(&mut scan.offsets, offset as u64);
    memory::push(&mut scan.objects, object);
    // The end of the values is the closing bracket in these texts.
    scan.next = object.end + usize::from(matches!(object.kind, Kind::TextMatrix | Kind::TextVector));
    Ok(true)
}

/// Read the headers of the objects at these offsets, in this order, as far as the text has them; and the fault of the
/// next one.
pub fn objects(text: Text<'_>, offsets: &[u64], total: usize) -> Result<(Vec<Object>, Option<Broken>), io::Error> {
    let mut window = Window::new(text);
    let mut found: Vec<Object> = memory::with_room(offsets.len());
    for (number, &offset) in offsets.iter().enumerate() {
        // A list may have many ranges of one object, and the header of a text is its whole text.
        if number > 0 && offset == offsets[number - 1] {
            found.push(found[number - 1]);
            continue;
        }
        // An offset that does not fit the memory is beyond every text.
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        match object(&mut window, offset, total) {
            Ok(object) => found.push(object),
            Err(Unread::Incomplete) => break,
            Err(Unread::Failed(error)) => return Err(error),
            Err(Unread::Broken(fault)) => return Ok((found, Some(fault))),
        }
    }
    Ok((found, None))
}

fn object(window: &mut Window<'_>, at: usize, total: usize) -> Result<Object, Unread> {
    let is_part = window.text.size < total;
    if at >= window.text.size {
        return if is_part && at < total { Err(Unread::Incomplete) } else { broken(at, Fault::Truncated) };
    }
    let bytes = window.at(at, HEADER_SIZE)?;
    let bytes = &bytes[..bytes.len().min(HEADER_SIZE)];
    match bytes.strip_prefix(b"\0B") {
        Some(_) if bytes.len() < HEADER_SIZE && is_part => Err(Unread::Incomplete),
        Some(rest) => binary_object(rest, at + 2, total),
        // Text never begins with a zero byte, so this is a binary object of another kind.
        None if bytes[0] == 0 => broken(at, Fault::UnknownType),
        None => text_object(window, at, total),
    }
}

fn binary_object(bytes: &[u8], at: usize, total: usize) -> Result<Object, Unread> {
    // Vectors of integers have no name of their type.
    let (kind, name) = match bytes {
        [b'F', b'M', b' ', ..] => (Kind::FloatMatrix, 3),
        [b'D', b'M', b' ', ..] => (Kind::DoubleMatrix, 3),
        [b'C', b'M', b' ', ..] => (Kind::Compressed, 3),
        [b'C', b'M', b'2', b' ', ..] => (Kind::TwoBytes, 4),
        [b'C', b'M', b'3', b' ', ..] => (Kind::OneByte, 4),
        [b'F', b'V', b' ', ..] => (Kind::FloatVector, 3),
        [b'D', b'V', b' ', ..] => (Kind::DoubleVector, 3),
        [4, ..] => (Kind::Integers, 0),
        // The longest name has four bytes, so a name could be cut off here.
        _ if bytes.len() < 5 => return broken(at + bytes.len(), Fault::Truncated),
        _ => return broken(at, Fault::UnknownType),
    };
    let number = |place: usize| -> Result<u32, Unread> {
        let Some(&four) = bytes.get(place..).and_then(|rest| rest.first_chunk()) else {
            return broken(at + bytes.len(), Fault::Truncated);
        };
        // Sizes are signed in Kaldi's files.
        match u32::try_from(i32::from_le_bytes(four)) {
            Ok(number) => Ok(number),
            Err(_) => broken(at + place, Fault::Negative),
        }
    };
    // A mark before a number says how many bytes it has.
    let marked = |place: usize| match bytes.get(place) {
        Some(4) => number(place + 1),
        Some(_) => broken(at + place, Fault::BadSize),
        None => broken(at + place, Fault::Truncated),
    };
    let (rows, cols, begin) = match kind {
        Kind::FloatMatrix | Kind::DoubleMatrix => (marked(name)?, marked(name + 5)?, at + name + 10),
        Kind::FloatVector | Kind::DoubleVector => (1, marked(name)?, at + name + 5),
        Kind::Integers => (marked(name)?, 1, at + name + 5),
        // The header of a compressed matrix has two numbers of its range first, and its sizes have no marks.
        _ => (number(name + 8)?, number(name + 12)?, at + name),
    };
    let size = num_bytes(kind, rows, cols);
    // The caller requests memory for the values, so a damaged size must not exceed the archive.
    let end = size.and_then(|size| begin.checked_add(size)).filter(|&end| end <= total);
    match end {
        Some(end) => Ok(Object { kind, rows, cols, begin, end }),
        None => broken(total, Fault::Truncated),
    }
}

/// Bytes of the values of a binary object; `None`: more than fit the memory.
fn num_bytes(kind: Kind, rows: u32, cols: u32) -> Option<usize> {
    // A damaged header can have any sizes, so the products can overflow.
    let values = (rows as usize).checked_mul(cols as usize)?;
    let size = match kind {
        Kind::DoubleMatrix | Kind::DoubleVector => values.checked_mul(8)?,
        Kind::Integers => values.checked_mul(5)?,
        // Each column has four percentiles of two bytes.
        Kind::Compressed => values.checked_add(8 * cols as usize)?.checked_add(GLOBAL_SIZE)?,
        Kind::TwoBytes => values.checked_mul(2)?.checked_add(GLOBAL_SIZE)?,
        Kind::OneByte => values.checked_add(GLOBAL_SIZE)?,
        _ => values.checked_mul(4)?,
    };
    Some(size)
}

/// Count the rows of `[ 1 2`, `3 4 ]`, or the numbers of a line.
fn text_object(window: &mut Window<'_>, offset: usize, total: usize) -> Result<Object, Unread> {
    let mut at = offset;
    // A line feed here ends a line without numbers.
    while window.byte(at)?.is_some_and(|byte| byte.is_ascii_whitespace() && byte != b'\n') {
        at += 1;
    }
    let has_bracket = window.byte(at)? == Some(b'[');
    let begin = if has_bracket { at + 1 } else { at };
    let (mut rows, mut cols, mut fields, mut was_blank, mut is_matrix) = (0u32, 0u32, 0u32, true, false);
    at = begin;
    loop {
        let bytes = window.at(at, 1)?;
        if bytes.is_empty() {
            // The last line may lack its line feed.
            if !has_bracket && window.text.size >= total {
                return Ok(Object { kind: Kind::TextIntegers, rows: fields, cols: 1, begin, end: at });
            }
            return if window.text.size < total { Err(Unread::Incomplete) } else { broken(at, Fault::Truncated) };
        }
        for &byte in bytes {
            let ends_row = matches!(byte, b'\n' | b';' | b']');
            if !has_bracket && byte == b'\n' {
                return Ok(Object { kind: Kind::TextIntegers, rows: fields, cols: 1, begin, end: at });
            }
            // If a closing bracket is missing, the next object must not become a part of this object.
            if byte == 0 || (byte == b'[') {
                return broken(at, Fault::BadNumber);
            }
            if has_bracket && ends_row {
                // Kaldi's texts have a line feed after the opening bracket, which does not end a row.
                if fields > 0 {
                    if rows > 0 && fields != cols {
                        return broken(at, Fault::RaggedRows);
                    }
                    (rows, cols, fields) = (rows.saturating_add(1), fields, 0);
                }
                // A matrix of one row differs from a vector only by its line feed or semicolon.
                is_matrix |= byte != b']' && rows <= 1;
                if byte == b']' {
                    let kind = if is_matrix { Kind::TextMatrix } else { Kind::TextVector };
                    return Ok(Object { kind, rows, cols, begin, end: at });
                }
            }
            let is_blank = byte.is_ascii_whitespace() || ends_row;
            fields = fields.saturating_add(u32::from(was_blank && !is_blank));
            was_blank = is_blank;
            at += 1;
        }
    }
}

// ---------------------------------------------------------------------------------------------------- values

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
    /// True if it has single precision.
    const IS_SINGLE: bool;
    /// Set it to a number in single precision.
    fn set_single(&mut self, value: f32);
    /// Set it to a number in double precision, rounded if necessary.
    fn set_double(&mut self, value: f64);
    /// The bytes, if the cells have the form of a file in single precision.
    fn bytes(cells: &mut [Self]) -> Option<&mut [u8]>;
}

/// A number in single precision, lowest byte first.
impl Cell for [u8; 4] {
    const IS_SINGLE: bool = true;
    #[inline]
    fn set_single(&mut self, value: f32) {
        *self = value.to_le_bytes();
    }
    #[inline]
    fn set_double(&mut self, value: f64) {
        *self = (value as f32).to_le_bytes();
    }
    fn bytes(cells: &mut [Self]) -> Option<&mut [u8]> {
        Some(cells.as_flattened_mut())
    }
}

impl Cell for f64 {
    const IS_SINGLE: bool = false;
    #[inline]
    fn set_single(&mut self, value: f32) {
        *self = value.into();
    }
    #[inline]
    fn set_double(&mut self, value: f64) {
        *self = value;
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

fn decode_one<C: Cell>(
    text: Text<'_>,
    wanted: &Wanted,
    num_cols: usize,
    out: &mut [C],
    buffer: &mut Buffer,
) -> Result<(), Unread> {
    let Wanted { object, first_row, num_rows, first_col } = *wanted;
    let (first_row, num_rows, first_col) = (first_row as usize, num_rows as usize, first_col as usize);
    let (rows, cols) = (object.rows as usize, object.cols as usize);
    // Objects and ranges are plain numbers from Python, so they are checked here.
    let is_inside =
        first_row + num_rows <= rows && first_col.checked_add(num_cols).is_some_and(|end| end <= cols) && num_cols > 0;
    if !is_inside || !object.fits(text) {
        return broken(object.begin, Fault::Truncated);
    }
    let chosen = first_col..first_col + num_cols;
    let width = match object.kind {
        Kind::FloatMatrix | Kind::FloatVector => 4,
        Kind::DoubleMatrix | Kind::DoubleVector => 8,
        _ => 0,
    };
    // The rows of other kinds are read whole: they are small, or without a place. `fits` has seen that all rows are
    // inside the object, so the places of some of them do not overflow.
    let (begin, end) = match width {
        0 => (object.begin, object.end),
        _ => (object.begin + first_row * cols * width, object.begin + (first_row + num_rows) * cols * width),
    };
    // Whole rows of floats are stored as they are delivered, so they need no buffer.
    if num_cols == cols
        && width == 4
        && let Some(bytes) = C::bytes(out)
    {
        return Ok((text.read)(begin, bytes)?);
    }
    let bytes = buffer.read(text, begin..end)?;
    let rows_of = |range: Range<usize>, width: usize| range.start * width..range.end * width;
    match object.kind {
        Kind::FloatMatrix | Kind::FloatVector => {
            for (row, out) in bytes.chunks_exact(4 * cols).zip(out.chunks_exact_mut(num_cols)) {
                let values = row[rows_of(chosen.clone(), 4)].as_chunks().0;
                out.iter_mut().zip(values).for_each(|(out, &value)| out.set_single(f32::from_le_bytes(value)));
            }
        }
        Kind::DoubleMatrix | Kind::DoubleVector => {
            for (row, out) in bytes.chunks_exact(8 * cols).zip(out.chunks_exact_mut(num_cols)) {
                let values = row[rows_of(chosen.clone(), 8)].as_chunks().0;
                out.iter_mut().zip(values).for_each(|(out, &value)| out.set_double(f64::from_le_bytes(value)));
            }
        }
        Kind::Compressed | Kind::TwoBytes | Kind::OneByte => {
            let (global, data) = bytes.split_at(GLOBAL_SIZE);
            let part = Part { first_row, num_rows, rows, cols, chosen };
            let (least, range) = (single_at(global, 0), single_at(global, 4));
            match object.kind {
                Kind::Compressed => by_columns(data, least, range, &part, out),
                Kind::TwoBytes => {
                    // Kaldi computes the step in double precision and rounds it once.
                    let step = (f64::from(range) * (1.0 / 65535.0)) as f32;
                    let value = |code: [u8; 2]| least + step * f32::from(u16::from_le_bytes(code));
                    by_rows(data.as_chunks().0, value, &part, out);
                }
                _ => {
                    let step = (f64::from(range) * (1.0 / 255.0)) as f32;
                    let value = |[code]: [u8; 1]| least + step * f32::from(code);
                    by_rows(data.as_chunks().0, value, &part, out);
                }
            }
        }
        Kind::TextMatrix | Kind::TextVector => {
            // The place of a row in a text is found by counting the fields before it.
            let Some(begin) = buffer.row(first_row, cols) else { return broken(object.end, Fault::Truncated) };
            let mut fields = fields(&buffer.bytes[begin..end - object.begin]);
            for row in 0..num_rows {
                for col in 0..cols {
                    let Some((at, field)) = fields.next() else { return broken(object.end, Fault::Truncated) };
                    if !chosen.contains(&col) {
                        continue;
                    }
                    let at = begin + at;
                    let number = std::str::from_utf8(field).ok();
                    let cell = &mut out[row * num_cols + col - first_col];
                    // A number that is parsed in double precision and then rounded to single precision would be rounded
                    // twice.
                    if C::IS_SINGLE {
                        match number.and_then(|number| number.parse().ok()) {
                            Some(value) => cell.set_single(value),
                            None => return broken(object.begin + at, Fault::BadNumber),
                        }
                    } else {
                        match number.and_then(|number| number.parse().ok()) {
                            Some(value) => cell.set_double(value),
                            None => return broken(object.begin + at, Fault::BadNumber),
                        }
                    }
                }
            }
        }
        Kind::Integers | Kind::TextIntegers => return broken(object.begin, Fault::UnknownType),
    }
    Ok(())
}

/// The values of a compressed matrix that are wanted.
struct Part {
    first_row: usize,
    num_rows: usize,
    rows: usize,
    cols: usize,
    chosen: Range<usize>,
}

fn single_at(bytes: &[u8], at: usize) -> f32 {
    // The callers pass the first bytes of a compressed matrix, which has at least 16.
    f32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Decode codes that are stored row by row.
fn by_rows<const SIZE: usize, C: Cell>(
    codes: &[[u8; SIZE]],
    value: impl Fn([u8; SIZE]) -> f32,
    part: &Part,
    out: &mut [C],
) {
    let rows = codes.chunks_exact(part.cols).skip(part.first_row);
    for (row, out) in rows.zip(out.chunks_exact_mut(part.chosen.len())) {
        out.iter_mut().zip(&row[part.chosen.clone()]).for_each(|(out, &code)| out.set_single(value(code)));
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

// ----------------------------------------------------------------------------------------------------- lines

/// The last row or column of a range that has no end.
pub const WHOLE: u32 = u32::MAX;

/// The lines of a list or of a map, in its order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct List {
    /// All keys, one after the other.
    pub keys: Vec<u8>,
    /// End of each key in `keys`.
    pub key_ends: Vec<usize>,
    /// The files, or the values of a map, each once.
    pub names: Vec<Vec<u8>>,
    /// The file or the value of each line.
    pub name_of: Vec<u32>,
    /// The first byte of each line.
    pub lines: Vec<u64>,
    /// The first byte of each object; of a map, nothing.
    pub offsets: Vec<u64>,
    /// First and last row, first and last column; or [`WHOLE`]. Of a map, nothing.
    pub ranges: [Vec<u32>; 4],
}

named! {
    /// The fault of a line.
    pub enum LineFault {
        /// The key is too long, or has a zero byte.
        BadKey = "bad key",
        /// There is nothing after the key.
        NoValue = "no value",
        /// A command instead of a file.
        Command = "command",
        /// A range is not pairs of numbers.
        BadRange = "bad range",
        /// A map has several values for a key.
        SeveralValues = "several values",
    }
}

/// A line that cannot be understood.
#[derive(Debug, PartialEq, Eq)]
pub struct LineError {
    /// The line, from 1.
    pub line: u64,
    /// The line's first byte.
    pub at: usize,
    /// Its fault.
    pub fault: LineFault,
}

/// Read a list: a key and `file`, `file:offset` or `file:offset[rows,columns]` on each line.
pub fn scan_list(text: &[u8]) -> Result<List, LineError> {
    scan_lines(text, |list, value| {
        // Kaldi runs such commands; this crate runs no programs.
        if value.ends_with(b"|") || value.starts_with(b"|") {
            return Err(LineFault::Command);
        }
        // Without a closing bracket at the end, a bracket belongs to the name of the file.
        let (place, ranges) = match memrchr(b'[', value).filter(|_| value.ends_with(b"]")) {
            Some(open) => (value[..open].trim_ascii(), ranges_of(&value[open + 1..value.len() - 1])?),
            None => (value, [0, WHOLE, 0, WHOLE]),
        };
        // A colon without digits after it belongs to the path, as in `C:\a.ark`.
        let (path, offset) = match memrchr(b':', place) {
            Some(colon) => match number::<u64>(&place[colon + 1..]) {
                Some(offset) => (&place[..colon], offset),
                None => (place, 0),
            },
            None => (place, 0),
        };
        if path.is_empty() {
            return Err(LineFault::NoValue);
        }
        memory::push(&mut list.offsets, offset);
        list.ranges.iter_mut().zip(ranges).for_each(|(column, bound)| memory::push(column, bound));
        Ok(memory::copied(path))
    })
}

/// Read a map: a key and a value on each line.
pub fn scan_map(text: &[u8]) -> Result<List, LineError> {
    scan_lines(text, |_, value| match value.iter().any(u8::is_ascii_whitespace) {
        true => Err(LineFault::SeveralValues),
        false => Ok(memory::copied(value)),
    })
}

fn scan_lines(
    text: &[u8],
    mut read: impl FnMut(&mut List, &[u8]) -> Result<Vec<u8>, LineFault>,
) -> Result<List, LineError> {
    let mut list = List::default();
    let mut names = Names::default();
    for ((at, line), number) in Lines::new(text).zip(1..) {
        let refuse = |fault| LineError { line: number, at, fault };
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let size = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
        let (key, value) = (&line[..size], line[size..].trim_ascii());
        if key.len() > LONGEST_KEY || memchr(0, line).is_some() {
            return Err(refuse(LineFault::BadKey));
        }
        if value.is_empty() {
            return Err(refuse(LineFault::NoValue));
        }
        let name = read(&mut list, value).map_err(refuse)?;
        memory::append(&mut list.keys, key);
        memory::push(&mut list.key_ends, list.keys.len());
        memory::push(&mut list.lines, at as u64);
        memory::push(&mut list.name_of, names.number(name));
    }
    list.names = names.into_names();
    Ok(list)
}

/// `first:last`, or `first:last,first:last`; a part may be only a colon, but not empty, as in Kaldi.
fn ranges_of(text: &[u8]) -> Result<[u32; 4], LineFault> {
    let mut bounds = [0, WHOLE, 0, WHOLE];
    for (number_of_part, part) in text.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).enumerate() {
        let at = 2 * number_of_part;
        if at >= bounds.len() {
            return Err(LineFault::BadRange);
        }
        if part == b":" {
            continue;
        }
        let colon = memchr(b':', part).ok_or(LineFault::BadRange)?;
        let (first, last) = (number(&part[..colon]), number(&part[colon + 1..]));
        match (first, last) {
            // `WHOLE` stands for a range without an end, so it is not a number of a row.
            (Some(first), Some(last)) if first <= last && last < WHOLE => (bounds[at], bounds[at + 1]) = (first, last),
            _ => return Err(LineFault::BadRange),
        }
    }
    Ok(bounds)
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    // `parse` would accept a sign, too.
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

// --------------------------------------------------------------------------------------------------- writing

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rows_of_any_kind_are_decoded_to_no_values() {
        let matrices: [&[u8]; 5] = [b"CM ", b"CM2 ", b"CM3 ", b"FM ", b"DM "];
        for name in matrices {
            let sizes: &[u8] = if name[0] == b'C' { &[0; 8] } else { &[] };
            let number = |number: u8| if name[0] == b'C' { vec![number, 0, 0, 0] } else { vec![4, number, 0, 0, 0] };
            let bytes = [b"\0B", name, sizes, &number(0), &number(3), &[0; 32]].concat();
            let read = |at: usize, buffer: &mut [u8]| {
                buffer.copy_from_slice(&bytes[at..at + buffer.len()]);
                Ok(())
            };
            let text = Text { size: bytes.len(), read: &read };
            let (found, _) = objects(text, &[0], bytes.len()).unwrap();
            assert_eq!((found[0].rows, found[0].cols), (0, 3));
            let wanted = [Wanted { object: found[0], first_row: 0, num_rows: 0, first_col: 0 }];
            assert_eq!(decode(text, &wanted, 3, &mut [0f64; 0]).unwrap(), None);
        }
    }

    #[test]
    fn objects_whose_sizes_do_not_fit_their_bytes_are_refused() {
        let bytes: Vec<u8> = (0..100).collect();
        let read = |at: usize, buffer: &mut [u8]| {
            buffer.copy_from_slice(bytes.get(at..at + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        };
        let text = Text { size: bytes.len(), read: &read };
        let refused = Some((0, Broken { at: 20, fault: Fault::Truncated }));
        // The place of row 2^30 among rows of 2^31 doubles is 2^64 bytes, which would wrap to the first row.
        let sizes = [
            (Kind::DoubleMatrix, 1 << 31, 1 << 31, 1 << 30),
            (Kind::FloatMatrix, 1 << 31, 1 << 31, 1 << 31),
            (Kind::FloatMatrix, 4, 2, 2),
            (Kind::DoubleVector, 1, 3, 0),
            (Kind::FloatVector, 1, 3, 0),
            (Kind::OneByte, u32::MAX, u32::MAX, 0),
        ];
        for (kind, rows, cols, first_row) in sizes {
            let object = Object { kind, rows, cols, begin: 20, end: 40 };
            for num_rows in [0, 1] {
                let wanted = [Wanted { object, first_row, num_rows, first_col: 1 }];
                let mut doubles = vec![0f64; num_rows as usize];
                assert_eq!(decode(text, &wanted, 1, &mut doubles).unwrap(), refused, "{kind:?} in double precision");
                let mut singles = vec![[0u8; 4]; num_rows as usize];
                assert_eq!(decode(text, &wanted, 1, &mut singles).unwrap(), refused, "{kind:?}");
            }
        }
        // Numbers without bytes would stay 0.
        let vector = Object { kind: Kind::Integers, rows: 5, cols: 1, begin: 20, end: 40 };
        assert_eq!(integers(text, &[vector], &mut [0; 5]).unwrap(), refused);
    }
}
