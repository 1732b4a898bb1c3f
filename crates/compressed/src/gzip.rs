//! Members of gzip, one after another.

use crate::inflate::{At, Damage, Inflater};
use crate::step::Stepped;

/// Checksum and size at the end of a member.
const FOOTER_BYTES: usize = 8;

/// A decompressor of members.
pub(super) struct Gzip {
    inflater: Inflater,
    /// The position is in a member whose beginning was not read, so that its checksum cannot be checked.
    is_resumed: bool,
    /// Bytes of the footer that are still to be skipped.
    footer: usize,
}

impl Gzip {
    pub(super) fn new() -> Result<Gzip, Damage> {
        Ok(Gzip { inflater: Inflater::new()?, is_resumed: false, footer: 0 })
    }

    /// Forget the member that was begun.
    pub(super) fn begin_anew(&mut self) {
        self.footer = 0;
    }

    /// Resume at a block; see [`Inflater::resume`].
    pub(super) fn resume(&mut self, window: &[u8], num_bits: u8, byte: u8) -> Result<(), Damage> {
        (self.is_resumed, self.footer) = (true, 0);
        self.inflater.resume(window, num_bits, byte)
    }

    pub(super) fn window(&self) -> Vec<u8> {
        self.inflater.window()
    }

    pub(super) fn step(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        begins: bool,
        stops_at_blocks: bool,
    ) -> Result<Stepped, Damage> {
        // In a member that was resumed, zlib-rs reads deflate data only, so it leaves the footer to this decoder.
        if self.footer > 0 {
            let num_read = self.footer.min(input.len());
            self.footer -= num_read;
            return Ok(Stepped { num_read, num_written: 0, is_end: self.footer == 0, unused_bits: None });
        }
        // The header is read now, so zlib-rs checks the checksum of this member.
        if begins {
            self.is_resumed = false;
            self.inflater.begin()?;
        }
        let step = self.inflater.step(input, output, stops_at_blocks)?;
        let unused_bits = match step.at {
            At::Block { unused_bits } => Some(unused_bits),
            At::Inside | At::End => None,
        };
        if step.at == At::End && self.is_resumed {
            self.footer = FOOTER_BYTES;
        }
        let is_end = step.at == At::End && self.footer == 0;
        Ok(Stepped { num_read: step.num_read, num_written: step.num_written, is_end, unused_bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decoder_that_stopped_inside_of_a_footer_resumes_elsewhere() {
        let stored = [1, 3, 0, 252, 255, b'a', b'b', b'c']; // the last block, of three bytes
        let member = [&stored[..], &[7; FOOTER_BYTES]].concat();
        let mut gzip = Gzip::new().unwrap();
        let read = |gzip: &mut Gzip, mut input: &[u8]| {
            let mut out = [0; 8];
            while !input.is_empty() {
                let step = gzip.step(input, &mut out, false, false).unwrap();
                if step.is_end {
                    return (step.num_read == input.len(), out);
                }
                input = &input[step.num_read..];
            }
            (false, out)
        };
        for num_left in [1, 4, FOOTER_BYTES, 0] {
            gzip.resume(&[], 0, 0).unwrap();
            assert_eq!(read(&mut gzip, &member[..member.len() - num_left]), (num_left == 0, *b"abc\0\0\0\0\0"));
        }
    }
}
