//! The objects of an archive: their kinds, sizes and places.

use crate::htk::LONGEST_KEY;
use crate::memory;
use crate::named::named;
use crate::text::Text;
use std::io;

/// Bytes of the first window of a pass; windows that follow each other grow.
const LEAST_WINDOW: usize = 1 << 12;
const MOST_WINDOW: usize = 1 << 20;
/// The byte order mark of UTF-8.
const BOM: &[u8] = b"\xEF\xBB\xBF";
/// Bytes of the longest header of an object.
const HEADER_SIZE: usize = 32;
/// Bytes of the range and the size of a compressed matrix.
pub(super) const GLOBAL_SIZE: usize = 16;

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

pub(super) fn broken<T>(at: usize, fault: Fault) -> Result<T, Unread> {
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
    pub(super) fn fits(&self, text: Text<'_>) -> bool {
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
