//! Compressed texts: gzip (also in many members, as BGZF) and zstd (in any number of frames).
//!
//! ```text
//! Stream       all data in order; notes access points on the way
//! decompress   the text between two offsets, from the access points before them, on all threads
//! ```
//!
//! An access point is a place from which data can be decompressed: the begin of a member or a frame, or, in gzip data,
//! the begin of a block together with the 32 KB of text before it. The text between two points is a segment.

mod gzip;

use cntkio_memory::inflate::Damage;
use gzip::{Gzip, Stepped};
use rayon::prelude::*;
use std::io;
use zstd_safe::{DCtx, InBuffer, OutBuffer};

/// How a text is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Members of gzip.
    Gzip,
    /// Frames of zstd.
    Zstd,
}

/// Data that cannot be decompressed.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// Offset in the compressed data, to which they were read.
    pub packed: u64,
    /// Offset in the text, up to which it was decompressed.
    pub text: u64,
    /// What is wrong.
    pub what: String,
}

/// Why a text was not decompressed.
#[derive(Debug)]
pub enum Failure {
    /// The data cannot be read.
    Unread(io::Error),
    /// The data are damaged.
    Damaged(Fault),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Unread(error)
    }
}

/// Access points, in order.
#[derive(Debug, Default)]
pub struct Points {
    /// Offset of each point in the text.
    pub texts: Vec<u64>,
    /// Place of each point in the compressed data: 16 times the offset of the first byte that is not yet used; plus 8 at
    /// the begin of a member or a frame, or else plus the number of bits of the byte before that are not yet used.
    pub places: Vec<u64>,
    /// For each point the end of its window in `windows`.
    pub window_ends: Vec<u64>,
    /// The windows, concatenated.
    pub windows: Vec<u8>,
}

/// A place in compressed data; see [`Points::places`].
#[derive(Debug, Clone, Copy)]
struct Place {
    byte: u64,
    num_bits: u8,
    is_begin: bool,
}

impl From<u64> for Place {
    fn from(place: u64) -> Place {
        Place { byte: place >> 4, num_bits: (place & 7) as u8, is_begin: place & 8 != 0 }
    }
}

impl From<Place> for u64 {
    fn from(place: Place) -> u64 {
        place.byte << 4 | u64::from(place.is_begin) << 3 | u64::from(place.num_bits)
    }
}

enum Decoder {
    Gzip(Gzip),
    Zstd(DCtx<'static>),
}

/// A decompressor of all data in order.
pub struct Stream {
    decoder: Decoder,
    /// Bytes of the compressed data that were read.
    pub packed: u64,
    /// Bytes of the text that were written.
    pub text: u64,
    /// The access points so far, at least `spacing` bytes of text apart.
    pub points: Points,
    spacing: u64,
    is_between: bool,
}

impl Stream {
    /// A stream at the begin of compressed data. Note access points at least `spacing` bytes of text apart.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(kind: Kind, spacing: u64) -> Result<Stream, Fault> {
        let decoder = match kind {
            Kind::Gzip => Decoder::Gzip(Gzip::new().map_err(|Damage(what)| Fault { packed: 0, text: 0, what })?),
            Kind::Zstd => Decoder::Zstd(DCtx::create()),
        };
        Ok(Stream { decoder, packed: 0, text: 0, points: Points::default(), spacing, is_between: true })
    }

    /// True at the begin of a member or a frame, and at the end of whole data.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.is_between
    }

    fn is_due(&self) -> bool {
        self.points.texts.last().is_none_or(|&last| self.text - last >= self.spacing)
    }

    fn note(&mut self, num_bits: u8, window: &[u8]) {
        let place = Place { byte: self.packed, num_bits, is_begin: self.is_between };
        self.points.texts.push(self.text);
        self.points.places.push(place.into());
        self.points.windows.extend_from_slice(window);
        self.points.window_ends.push(self.points.windows.len() as u64);
    }

    /// Decompress until the input is used up or the output is full; returns how many bytes were read and written.
    ///
    /// # Errors
    /// The data are damaged.
    pub fn feed(&mut self, input: &[u8], output: &mut [u8]) -> Result<(usize, usize), Fault> {
        let (mut read, mut written) = (0, 0);
        loop {
            if self.is_between {
                if let Decoder::Gzip(_) = self.decoder
                    && self.packed > 0
                {
                    // Zeros may fill up the last sector of a tape or a disk.
                    let padding = input[read..].iter().take_while(|&&byte| byte == 0).count();
                    read += padding;
                    self.packed += padding as u64;
                }
                if read == input.len() {
                    return Ok((read, written));
                }
                if self.is_due() {
                    self.note(0, &[]);
                }
            }
            let (step, bits) = self.step(&input[read..], &mut output[written..])?;
            read += step.0;
            written += step.1;
            if let Some(bits) = bits
                && self.is_due()
                && let Decoder::Gzip(gzip) = &self.decoder
            {
                let window = gzip.window();
                self.packed -= u64::from(bits / 8);
                self.note(bits % 8, &window);
                self.packed += u64::from(bits / 8);
            }
            let is_stuck = step == (0, 0) && bits.is_none() && !self.is_between;
            if is_stuck || (read == input.len() && written == output.len() && !self.is_between) {
                return Ok((read, written));
            }
        }
    }

    /// A step; returns how many bytes were read and written and, at the end of a block, the number of unused bits.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<((usize, usize), Option<u8>), Fault> {
        let was_between = self.is_between;
        let stepped = match &mut self.decoder {
            Decoder::Gzip(gzip) => gzip.step(input, output, was_between, self.spacing < u64::MAX),
            Decoder::Zstd(context) => zstd_step(context, input, output),
        };
        match stepped {
            Ok(stepped) => {
                self.packed += stepped.num_read as u64;
                self.text += stepped.num_written as u64;
                // What ends without a byte of input had ended before.
                self.is_between = stepped.is_end || (was_between && stepped.num_read == 0);
                Ok(((stepped.num_read, stepped.num_written), stepped.unused_bits))
            }
            Err(Damage(what)) => {
                let what = if was_between && self.packed > 0 {
                    format!("{what}; only whole members or frames may follow each other")
                } else {
                    what
                };
                Err(Fault { packed: self.packed, text: self.text, what })
            }
        }
    }
}

fn zstd_step(context: &mut DCtx, input: &[u8], output: &mut [u8]) -> Result<Stepped, Damage> {
    let mut from = InBuffer::around(input);
    let mut into = OutBuffer::around(output);
    let left = context.decompress_stream(&mut into, &mut from).map_err(zstd_damage)?;
    Ok(Stepped { num_read: from.pos(), num_written: into.pos(), is_end: left == 0, unused_bits: None })
}

fn zstd_damage(code: zstd_safe::ErrorCode) -> Damage {
    Damage(zstd_safe::get_error_name(code).to_owned())
}

/// Compressed data and their access points.
#[derive(Clone, Copy)]
pub struct Packed<'a> {
    /// How they are compressed.
    pub kind: Kind,
    /// Reads the compressed data.
    pub read: crate::text::ReadAt<'a>,
    /// Offset in the text of each point and, last, of the end of the last segment.
    pub texts: &'a [u64],
    /// Place of each point and, last, of the end of the last segment; see [`Points::places`].
    pub places: &'a [u64],
    /// For each point the begin of its window in `windows` and, last, the end of the last window.
    pub window_bounds: &'a [u64],
    /// The windows.
    pub windows: &'a [u8],
}

/// Bytes of compressed data that are read at once.
const READ_BYTES: usize = 1 << 17;

/// Decompress the text from `begin` on into `out`, on all threads of the current pool, segment by segment.
///
/// # Errors
/// The data cannot be read, are damaged, or do not match the access points.
pub fn decompress(packed: Packed, begin: u64, out: &mut [u8]) -> Result<(), Failure> {
    let end = begin + out.len() as u64;
    let num_segments = packed.texts.len().saturating_sub(1);
    let fits = packed.texts.is_sorted()
        && packed.places.is_sorted()
        && packed.window_bounds.is_sorted()
        && packed.places.len() == packed.texts.len()
        && packed.window_bounds.len() == packed.texts.len()
        && packed.window_bounds.last().is_some_and(|&end| end <= packed.windows.len() as u64)
        && packed.texts.first().is_some_and(|&first| first <= begin)
        && packed.texts.last().is_some_and(|&last| end <= last);
    if !fits {
        let what = "access points that do not belong together".to_owned();
        return Err(Failure::Damaged(Fault { packed: 0, text: begin, what }));
    }
    let mut jobs = Vec::new();
    let mut rest = out;
    for segment in 0..num_segments {
        let (first, last) = (packed.texts[segment].max(begin), packed.texts[segment + 1].min(end));
        if first < last {
            let (part, others) = std::mem::take(&mut rest).split_at_mut((last - first) as usize);
            rest = others;
            jobs.push((segment, first, part));
        }
    }
    jobs.into_par_iter().try_for_each(|(segment, first, part)| match packed.kind {
        Kind::Gzip => packed.gzip_segment(segment, first, part),
        Kind::Zstd => packed.zstd_segment(segment, first, part),
    })
}

impl Packed<'_> {
    fn fault(&self, segment: usize, text: u64, what: impl Into<String>) -> Failure {
        let packed = Place::from(self.places[segment]).byte;
        Failure::Damaged(Fault { packed, text, what: what.into() })
    }

    fn gzip_segment(&self, segment: usize, first: u64, out: &mut [u8]) -> Result<(), Failure> {
        let (begin, end) = (Place::from(self.places[segment]), Place::from(self.places[segment + 1]).byte);
        let fault = |Damage(what)| self.fault(segment, first, what);
        let mut gzip = Gzip::new().map_err(fault)?;
        if !begin.is_begin {
            let mut byte = [0];
            if begin.num_bits > 0 {
                (self.read)(begin.byte.saturating_sub(1) as usize, &mut byte)?;
            }
            let window = self.window_bounds[segment] as usize..self.window_bounds[segment + 1] as usize;
            gzip.resume(&self.windows[window], begin.num_bits, byte[0]).map_err(fault)?;
        }
        let mut stream = Stream {
            decoder: Decoder::Gzip(gzip),
            packed: begin.byte,
            text: self.texts[segment],
            points: Points::default(),
            spacing: u64::MAX,
            is_between: begin.is_begin,
        };
        // The first point is not due.
        stream.points.texts.push(stream.text);
        let mut skipped = vec![0; READ_BYTES];
        let mut input = vec![0; READ_BYTES.min(end.saturating_sub(begin.byte) as usize)];
        let is_whole = first + out.len() as u64 == self.texts[segment + 1];
        let mut written = 0;
        while stream.packed < end {
            let piece = &mut input[..((end - stream.packed) as usize).min(READ_BYTES)];
            (self.read)(stream.packed as usize, piece)?;
            let mut at = 0;
            loop {
                let skips = stream.text < first;
                let count = (first.saturating_sub(stream.text) as usize).min(READ_BYTES);
                let target = if skips { &mut skipped[..count] } else { &mut out[written..] };
                let (num_read, num_written) = stream.feed(&piece[at..], target).map_err(Failure::Damaged)?;
                at += num_read;
                written += if skips { 0 } else { num_written };
                let is_done = written == out.len() && (!is_whole || stream.is_between);
                if is_done {
                    return Ok(());
                }
                if (num_read, num_written) == (0, 0) {
                    break;
                }
            }
            if at == 0 {
                break;
            }
        }
        if written == out.len() { Ok(()) } else { Err(self.fault(segment, stream.text, ENDS_EARLY)) }
    }

    fn zstd_segment(&self, segment: usize, first: u64, out: &mut [u8]) -> Result<(), Failure> {
        let (begin, end) = (Place::from(self.places[segment]).byte, Place::from(self.places[segment + 1]).byte);
        let mut input = vec![0; (end - begin) as usize];
        (self.read)(begin as usize, &mut input)?;
        let size = (self.texts[segment + 1] - self.texts[segment]) as usize;
        let mut whole = Vec::new();
        let target = if out.len() == size {
            &mut out[..]
        } else {
            whole.resize(size, 0);
            &mut whole[..]
        };
        let written = DCtx::create().decompress(target, &input);
        let written = written.map_err(|code| self.fault(segment, self.texts[segment], zstd_damage(code).0))?;
        if written < size {
            return Err(self.fault(segment, self.texts[segment] + written as u64, ENDS_EARLY));
        }
        if !whole.is_empty() {
            let skipped = (first - self.texts[segment]) as usize;
            out.copy_from_slice(&whole[skipped..skipped + out.len()]);
        }
        Ok(())
    }
}

const ENDS_EARLY: &str = "the data hold less text than their table says";

/// Compress a text to one frame of zstd, which has its size and a check sum.
///
/// # Errors
/// The library fails; the text says why.
pub fn zstd_frame(text: &[u8], level: i32) -> Result<Vec<u8>, String> {
    let name = |code| zstd_safe::get_error_name(code).to_owned();
    let mut context = zstd_safe::CCtx::create();
    context.set_parameter(zstd_safe::CParameter::CompressionLevel(level)).map_err(name)?;
    context.set_parameter(zstd_safe::CParameter::ChecksumFlag(true)).map_err(name)?;
    let mut out = vec![0; zstd_safe::compress_bound(text.len())];
    let size = context.compress2(&mut out[..], text).map_err(name)?;
    out.truncate(size);
    Ok(out)
}
