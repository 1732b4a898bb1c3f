//! Frames of zstd, one after another.
//!
//! The decoder gets a frame unit by unit: its header, each block, its checksum. So the text of damaged data does not
//! depend on how many bytes arrive at a time, and libzstd never decodes a frame as a whole, which follows other rules.

use crate::ReadAt;
use crate::inflate::Damage;
use crate::points::{Place, Points};
use crate::step::Stepped;
use cntkio_memory::requests;
use zstd_safe::zstd_sys::ZSTD_ErrorCode::ZSTD_error_memory_allocation;
use zstd_safe::{DCtx, InBuffer, OutBuffer, ResetDirective};

const MAGIC: u32 = 0xFD2F_B528;
const SKIPPABLE_MAGIC: u32 = 0x184D_2A50;
const SKIPPABLE_HEADER_BYTES: usize = 8;
/// Magic number, and the byte that determines the size of the header.
const LEAST_HEADER_BYTES: usize = 5;
const BLOCK_HEADER_BYTES: usize = 3;
const SUM_BYTES: usize = 4;
const MOST_BLOCK_BYTES: u64 = 128 << 10;
/// A text of more bytes has no offsets.
const MOST_TEXT_BYTES: u64 = 1 << 62;
/// About the memory that libzstd takes for a decoder, without the window.
const CONTEXT_BYTES: usize = 160 << 10;
/// The largest window that libzstd accepts by default.
const MOST_WINDOW_BYTES: u64 = 128 << 20;

/// A decompressor of frames.
pub(super) struct Zstd {
    context: DCtx<'static>,
    /// The most memory for decompressed text that a frame has asked the context for.
    ring_bytes: u64,
    state: State,
    /// The unit that is being collected or decompressed.
    unit: Vec<u8>,
    /// Bytes of the unit that libzstd has taken.
    used: usize,
    /// A byte of text that libzstd has written while the output was full.
    held: Option<u8>,
    has_sum: bool,
    /// libzstd has written all text of the frame.
    is_over: bool,
    /// Bytes of text that the header of the frame states and that are not written yet; None: it states no number.
    left: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Collects a unit.
    Collects(Unit),
    /// The unit is complete, and libzstd decompresses it. The next unit, if the frame has one.
    Decodes(Option<Unit>),
    /// The number of bytes that are left of a skippable frame.
    Skips(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Header,
    Block,
    Sum,
}

/// Facts in the header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    has_sum: bool,
    dictionary: u32,
    window: u64,
    /// Bytes of the frame's text, if the header states them.
    content: Option<u64>,
}

impl Zstd {
    pub(super) fn new() -> Zstd {
        let (context, state) = (context(), State::Collects(Unit::Header));
        let (unit, used, held, has_sum, is_over, left) = (Vec::new(), 0, None, false, false, None);
        Zstd { context, ring_bytes: 0, state, unit, used, held, has_sum, is_over, left }
    }

    /// Forget the frame that was begun.
    pub(super) fn begin_anew(&mut self) {
        // The reset keeps the memory of the context for the next frame. The other fields are set when its header is
        // complete.
        if self.context.reset(ResetDirective::SessionOnly).is_err() {
            (self.context, self.ring_bytes) = (context(), 0);
        }
        (self.state, self.held) = (State::Collects(Unit::Header), None);
        self.unit.clear();
    }

    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Stepped, Damage> {
        let (mut num_read, mut num_written) = (0, 0);
        let is_end = loop {
            match self.state {
                State::Collects(unit) => {
                    num_read += self.collect(unit, &input[num_read..])?;
                    // If the last byte has completed a unit, the unit is decompressed in this step.
                    if num_read == input.len() && matches!(self.state, State::Collects(_)) {
                        break false;
                    }
                }
                State::Decodes(next) => {
                    let room = &mut output[num_written..];
                    let room_bytes = room.len();
                    let (written, is_done) = self.decode(room)?;
                    num_written += written;
                    self.left = self.left.map(|left| left.saturating_sub(written as u64));
                    match next {
                        // libzstd lets an empty last block end a frame with less text than its header states.
                        None if is_done && self.left.is_some_and(|left| left > 0) => {
                            return Err(Damage("the frame has less text than its header states".to_owned()));
                        }
                        None if is_done => {
                            self.state = State::Collects(Unit::Header);
                            self.unit.clear();
                            break true;
                        }
                        // libzstd may have more text for an output that is full.
                        _ if self.held.is_some() || (written == room_bytes && room_bytes > 0) => break false,
                        Some(unit) => {
                            self.state = State::Collects(unit);
                            self.unit.clear();
                        }
                        // libzstd counts calls without progress, and the 16th of them is an error, so this does not
                        // repeat forever.
                        None if room_bytes == 0 => {}
                        None => return Err(Damage("the frame ends early".to_owned())),
                    }
                }
                State::Skips(left) => {
                    let count = left.min((input.len() - num_read) as u64);
                    num_read += count as usize;
                    self.state = State::Skips(left - count);
                    if count == left {
                        self.state = State::Collects(Unit::Header);
                    }
                    break count == left;
                }
            }
        };
        Ok(Stepped { num_read, num_written, is_end, unused_bits: None })
    }

    /// Let libzstd decompress the unit; returns the number of bytes written, and whether the frame is at its end.
    fn decode(&mut self, mut room: &mut [u8]) -> Result<(usize, bool), Damage> {
        let mut written = 0;
        if let Some(byte) = self.held {
            let Some((first, rest)) = room.split_first_mut() else { return Ok((0, false)) };
            (*first, self.held, written, room) = (byte, None, 1, rest);
            if room.is_empty() {
                return Ok((written, self.is_over));
            }
        }
        if !self.is_over {
            let mut little = [0];
            let has_room = !room.is_empty();
            let mut into = OutBuffer::around(if has_room { room } else { &mut little[..] });
            let mut from = InBuffer::around(&self.unit[self.used..]);
            self.is_over =
                self.context.decompress_stream(&mut into, &mut from).map_err(|code| damage(code, self.ring_bytes))?
                    == 0;
            self.used += from.pos();
            let count = into.pos();
            if has_room {
                written += count;
            } else if count == 1 {
                self.held = Some(little[0]);
            }
        }
        Ok((written, self.is_over && self.held.is_none()))
    }

    /// Add bytes to the unit; returns their number. If the unit is complete, go to the next state.
    fn collect(&mut self, unit: Unit, input: &[u8]) -> Result<usize, Damage> {
        let mut num_read = 0;
        loop {
            let size = match unit {
                Unit::Header => header_bytes(&self.unit)?,
                Unit::Block => block_bytes(&self.unit),
                Unit::Sum => SUM_BYTES,
            };
            if self.unit.len() == size {
                self.begin(unit)?;
                return Ok(num_read);
            }
            // The header of a block has 21 bits for its size, so damaged data request at most 2 MB.
            let count = (size - self.unit.len()).min(input.len() - num_read);
            if count == 0 {
                return Ok(num_read);
            }
            requests::append(&mut self.unit, &input[num_read..num_read + count]);
            num_read += count;
        }
    }

    /// Begin with a complete unit.
    fn begin(&mut self, unit: Unit) -> Result<(), Damage> {
        self.used = 0;
        self.state = match unit {
            Unit::Header if is_skippable(&self.unit) => {
                let num_bytes = number(&self.unit[4..8]);
                self.unit.clear();
                State::Skips(num_bytes)
            }
            Unit::Header => {
                let header = header(&self.unit);
                self.make_ready(&header)?;
                (self.has_sum, self.is_over, self.left) = (header.has_sum, false, header.content);
                // Without room for text, libzstd does not look for the whole frame.
                let mut none = [];
                let mut into = OutBuffer::around(&mut none[..]);
                let done = self.context.decompress_stream(&mut into, &mut InBuffer::around(&self.unit));
                done.map_err(|code| damage(code, self.ring_bytes))?;
                self.unit.clear();
                State::Collects(Unit::Block)
            }
            // The lowest bit of a block marks the last block of the frame.
            Unit::Block if self.unit[0] & 1 == 0 => State::Decodes(Some(Unit::Block)),
            Unit::Block => State::Decodes(self.has_sum.then_some(Unit::Sum)),
            Unit::Sum => State::Decodes(None),
        };
        Ok(())
    }

    /// Take a new context if the memory of the old context is larger than the frame requests, and the text does not fit
    /// into it, because the output of a damaged frame depends on the size.
    fn make_ready(&mut self, header: &Header) -> Result<(), Damage> {
        // The errors of libzstd name neither the dictionary nor the size of the window.
        if header.dictionary != 0 {
            let id = header.dictionary;
            return Err(Damage(format!("the frame needs the dictionary {id}; compress the text without a dictionary")));
        }
        if header.window > MOST_WINDOW_BYTES {
            let (window, most) = (header.window >> 20, MOST_WINDOW_BYTES >> 20);
            let what = format!("the frame needs a window of {window} MB; expected at most {most} MB (zstd --long=27)");
            return Err(Damage(what));
        }
        // libzstd computes the same, and adds a constant.
        let ring_bytes = header.window + 2 * header.window.min(MOST_BLOCK_BYTES);
        let ring_bytes = header.content.map_or(ring_bytes, |content| content.min(ring_bytes));
        if ring_bytes < self.ring_bytes && header.content != Some(ring_bytes) {
            self.context = context();
            self.ring_bytes = 0;
        }
        self.ring_bytes = self.ring_bytes.max(ring_bytes);
        Ok(())
    }
}

/// Find access points without decompressing anything, if all frames state the size of their text.
///
/// Returns the points that a [`Stream`](crate::Stream) notes, and the size of the text. None: a frame does not state
/// its size, or the headers of frames and blocks do not lead to the end of the data. The content of blocks is not
/// checked.
///
/// # Errors
/// The data cannot be read.
pub fn stated_points(read: ReadAt, size: u64, spacing: u64) -> std::io::Result<Option<(Points, u64)>> {
    let mut points = Points::default();
    let (mut packed, mut text) = (0, 0_u64);
    let mut unit = Vec::new();
    while packed < size {
        // `Stream` has the same rule, so both find the same points.
        if points.texts.last().is_none_or(|&last| text - last >= spacing) {
            points.note(text, Place { byte: packed, num_bits: 0, is_begin: true }, &[]);
        }
        unit.clear();
        while let Ok(num_bytes) = header_bytes(&unit) {
            if num_bytes == unit.len() || size - packed < num_bytes as u64 {
                break;
            }
            unit.resize(num_bytes, 0);
            read(packed as usize, &mut unit)?;
        }
        if header_bytes(&unit).ok() != Some(unit.len()) {
            return Ok(None);
        }
        packed += unit.len() as u64;
        let ends = if is_skippable(&unit) {
            packed.checked_add(number(&unit[4..8]))
        } else {
            let header = header(&unit);
            let is_read = header.dictionary == 0 && header.window <= MOST_WINDOW_BYTES;
            // A frame that is not read is an error, which the pass over the data reports with its place.
            let Some(content) = header.content.filter(|_| is_read) else { return Ok(None) };
            let Some(sum) = text.checked_add(content).filter(|&sum| sum < MOST_TEXT_BYTES) else { return Ok(None) };
            text = sum;
            let end = end_of_blocks(read, packed, size)?;
            // A reader does not decompress such a frame, so its text would be lost in silence.
            if content == 0 && end.is_some_and(|end| end > packed + BLOCK_HEADER_BYTES as u64) {
                return Ok(None);
            }
            end.map(|end| end + if header.has_sum { SUM_BYTES as u64 } else { 0 })
        };
        match ends {
            Some(end) if end <= size => packed = end,
            _ => return Ok(None),
        }
    }
    Ok(Some((points, text)))
}

/// The end of the blocks of a frame; None: they do not end before the end of the data.
fn end_of_blocks(read: ReadAt, mut packed: u64, size: u64) -> std::io::Result<Option<u64>> {
    let mut block = [0; BLOCK_HEADER_BYTES];
    while size - packed >= block.len() as u64 {
        read(packed as usize, &mut block)?;
        packed += block_bytes(&block) as u64;
        if packed > size {
            break;
        }
        if block[0] & 1 == 1 {
            return Ok(Some(packed));
        }
    }
    Ok(None)
}

/// A decoder of libzstd.
fn context() -> DCtx<'static> {
    DCtx::try_create().unwrap_or_else(|| requests::refused(CONTEXT_BYTES))
}

/// The damage that libzstd reports. It may also have no memory, of which it needs `num_bytes` and a context.
fn damage(code: zstd_safe::ErrorCode, num_bytes: u64) -> Damage {
    // libzstd returns its error codes as negative numbers.
    if code == (ZSTD_error_memory_allocation as usize).wrapping_neg() {
        requests::refused(CONTEXT_BYTES.saturating_add(num_bytes as usize));
    }
    Damage(zstd_safe::get_error_name(code).to_owned())
}

/// A number of little-endian bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn is_skippable(bytes: &[u8]) -> bool {
    number(&bytes[..4]) as u32 & !15 == SKIPPABLE_MAGIC
}

/// Sizes of the optional fields of a header: of the window, the dictionary and the content.
fn field_bytes(descriptor: u8) -> [usize; 3] {
    let is_single_segment = descriptor & 32 != 0;
    let content = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        exponent => 1 << exponent,
    };
    [usize::from(!is_single_segment), [0, 1, 2, 4][usize::from(descriptor & 3)], content]
}

/// The size of a header of which some bytes are known, or the number of bytes that determine it.
fn header_bytes(known: &[u8]) -> Result<usize, Damage> {
    let begins_with = |magic: u32, of: u32| {
        let bytes = std::iter::zip(magic.to_le_bytes(), of.to_le_bytes());
        // `zip` ends with the known bytes, so the beginning of a magic number fits, too.
        std::iter::zip(known, bytes).all(|(byte, (magic, of))| byte & of == magic)
    };
    if begins_with(SKIPPABLE_MAGIC, !15) {
        return Ok(if known.len() < LEAST_HEADER_BYTES { LEAST_HEADER_BYTES } else { SKIPPABLE_HEADER_BYTES });
    }
    if !begins_with(MAGIC, !0) {
        return Err(Damage("neither a frame of zstd nor a skippable frame begins here".to_owned()));
    }
    let descriptor = known.get(LEAST_HEADER_BYTES - 1);
    Ok(LEAST_HEADER_BYTES + descriptor.map_or(0, |&descriptor| field_bytes(descriptor).iter().sum()))
}

fn header(unit: &[u8]) -> Header {
    let descriptor = unit[4];
    let [window, dictionary, content] = field_bytes(descriptor);
    let (window, rest) = unit[LEAST_HEADER_BYTES..].split_at(window);
    let (dictionary, rest) = rest.split_at(dictionary);
    // A size of two bytes counts from 256, because smaller sizes fit one byte.
    let content = (content > 0).then(|| number(&rest[..content]) + if content == 2 { 256 } else { 0 });
    let window = match window {
        [window] => {
            let base = 1 << (10 + (window >> 3));
            base + base / 8 * u64::from(window & 7)
        }
        // A frame of a single segment has no size of its window: the window is all of its text.
        _ => content.unwrap_or(0),
    };
    Header { has_sum: descriptor & 4 != 0, dictionary: number(dictionary) as u32, window, content }
}

/// The size of a block with its header, of which some bytes are known, or the number of bytes that determine it.
fn block_bytes(known: &[u8]) -> usize {
    if known.len() < BLOCK_HEADER_BYTES {
        return BLOCK_HEADER_BYTES;
    }
    let header = number(&known[..BLOCK_HEADER_BYTES]);
    // Such a block states the size of its text, but has only the byte.
    let is_repeated_byte = header >> 1 & 3 == 1;
    BLOCK_HEADER_BYTES + if is_repeated_byte { 1 } else { (header >> 3) as usize }
}
