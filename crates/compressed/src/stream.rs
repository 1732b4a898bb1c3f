//! A decompressor of all data in order.

use crate::gzip::Gzip;
use crate::inflate::Damage;
use crate::points::{Place, Points};
use crate::sums::{Check, Sums};
use crate::zstd::Zstd;
use std::sync::Arc;

/// A kind of compression.
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
    /// Offset in the compressed data up to which they were read.
    pub packed: u64,
    /// Offset in the text up to which it was decompressed.
    pub text: u64,
    /// The fault, in words.
    pub what: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "byte {} of the compressed data: {}", self.packed, self.what)
    }
}

impl std::error::Error for Fault {}

pub(super) enum Decoder {
    Gzip(Gzip),
    Zstd(Zstd),
}

impl Decoder {
    pub(super) fn new(kind: Kind) -> Result<Decoder, Damage> {
        Ok(match kind {
            Kind::Gzip => Decoder::Gzip(Gzip::new()?),
            Kind::Zstd => Decoder::Zstd(Zstd::new()),
        })
    }
}

/// A decompressor of all data in order.
pub struct Stream {
    pub(super) decoder: Decoder,
    /// Bytes of the compressed data that were read.
    pub packed: u64,
    /// Bytes of the text that were written.
    pub text: u64,
    /// The access points so far, at least `spacing` bytes of text apart.
    pub points: Points,
    pub(super) spacing: u64,
    pub(super) is_between: bool,
    pub(super) check: Option<Check>,
}

impl Stream {
    /// A stream at the beginning of compressed data. Note access points at least `spacing` bytes of text apart. `sums`:
    /// checksums of the frames, unless only the frames themselves have checksums.
    ///
    /// # Errors
    /// The decoder cannot begin.
    pub fn new(kind: Kind, spacing: u64, sums: Option<Arc<Sums>>) -> Result<Stream, Fault> {
        let decoder = Decoder::new(kind).map_err(|Damage(what)| Fault { packed: 0, text: 0, what })?;
        let (points, check) = (Points::default(), sums.map(Check::new));
        Ok(Stream { decoder, packed: 0, text: 0, points, spacing, is_between: true, check })
    }

    /// True at the beginning of a member or a frame, and at the end of complete data.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.is_between
    }

    fn is_due(&self) -> bool {
        self.points.texts.last().is_none_or(|&last| self.text - last >= self.spacing)
    }

    fn note(&mut self, num_bits: u8, window: &[u8]) {
        self.points.note(self.text, Place { byte: self.packed, num_bits, is_begin: self.is_between }, window);
    }

    /// Decompress until the input is used up or the output is full; returns the numbers of bytes read and written.
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
                // A point at the end of the data would begin nothing, so a point waits for the first byte after it.
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
                // Whole unused bytes come after the point; only the remaining bits belong to the byte before it.
                self.packed -= u64::from(bits / 8);
                self.note(bits % 8, &window);
                self.packed += u64::from(bits / 8);
            }
            // After a stop at a block, the next step continues, even if this step moved no byte.
            let is_stuck = step == (0, 0) && bits.is_none() && !self.is_between;
            if is_stuck || (read == input.len() && written == output.len() && !self.is_between) {
                return Ok((read, written));
            }
        }
    }

    /// A step; returns the numbers of bytes read and written and, at the end of a block, the number of unused bits.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<((usize, usize), Option<u8>), Fault> {
        let was_between = self.is_between;
        let stepped = match &mut self.decoder {
            // The decoder stops at blocks only if points are noted.
            Decoder::Gzip(gzip) => gzip.step(input, output, was_between, self.spacing < u64::MAX),
            Decoder::Zstd(zstd) => zstd.step(input, output),
        };
        match stepped {
            Ok(stepped) => {
                self.packed += stepped.num_read as u64;
                self.text += stepped.num_written as u64;
                if let Some(check) = &mut self.check {
                    check.add(&output[..stepped.num_written]);
                    let checked = if stepped.is_end { check.end(self.text) } else { Ok(()) };
                    checked.map_err(|Damage(what)| Fault { packed: self.packed, text: self.text, what })?;
                }
                // A member that ends without a byte of input had ended before.
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
