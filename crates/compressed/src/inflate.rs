//! Decompression of deflate data, which can stop at the end of a block and resume there: safe functions around
//! `zlib-rs`, whose safe interface does not report the bit at which a block ends.

use cntkio_memory::requests;
use libz_rs_sys::{
    Z_BLOCK, Z_BUF_ERROR, Z_MEM_ERROR, Z_NO_FLUSH, Z_OK, Z_STREAM_END, inflate, inflateEnd, inflateGetDictionary,
    inflateInit2_, inflatePrime, inflateReset2, inflateSetDictionary, z_stream, zlibVersion,
};
use std::ffi::CStr;

/// Bytes of decompressed data that deflate data may refer back to.
pub(crate) const WINDOW_BYTES: usize = 1 << 15;

/// About the memory that zlib-rs takes, with the window.
const STATE_BYTES: usize = 2 * WINDOW_BYTES;

/// Window of 32 KB, after a header of gzip.
const GZIP: i32 = 15 + 16;
/// Window of 32 KB, without a header.
const RAW: i32 = -15;

/// A decompressor of one member of gzip, or of deflate data from a block on.
pub(crate) struct Inflater {
    stream: Box<z_stream>,
}

// SAFETY: the stream owns all that its pointers refer to between calls, and no thread-local data belong to it.
unsafe impl Send for Inflater {}

/// The position in the deflate data after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// Anywhere.
    Inside,
    /// At the end of the header, or of a block before the last block. Some bits were read, but not used.
    Block {
        /// Number of these bits.
        unused_bits: u8,
    },
    /// At the end of the data.
    End,
}

/// The outcome of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Bytes of the input that were read.
    pub(crate) num_read: usize,
    /// Bytes of the output that were written.
    pub(crate) num_written: usize,
    /// The position.
    pub(crate) at: At,
}

/// Data that cannot be decompressed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Damage(pub(crate) String);

impl Inflater {
    /// A decompressor that is at the header of gzip data.
    ///
    /// # Errors
    /// zlib-rs cannot begin.
    pub(crate) fn new() -> Result<Inflater, Damage> {
        let mut stream = Box::<z_stream>::default();
        let size = size_of::<z_stream>() as i32;
        // SAFETY: the stream is valid, has an allocator, and has no state yet.
        match unsafe { inflateInit2_(&raw mut *stream, GZIP, zlibVersion(), size) } {
            Z_OK => Ok(Inflater { stream }),
            Z_MEM_ERROR => requests::refused(STATE_BYTES),
            code => Err(Damage(format!("zlib-rs cannot begin (code {code})"))),
        }
    }

    /// Begin at the header of gzip data. The checksum at their end is checked.
    ///
    /// # Errors
    /// The state is damaged.
    pub(crate) fn begin(&mut self) -> Result<(), Damage> {
        self.reset(GZIP)
    }

    fn reset(&mut self, window_bits: i32) -> Result<(), Damage> {
        // SAFETY: the stream was initialised by `new`.
        let code = unsafe { inflateReset2(&raw mut *self.stream, window_bits) };
        self.checked(code)
    }

    /// Resume at the start of a block. No checksum is checked.
    ///
    /// `window`: up to [`WINDOW_BYTES`] bytes of the data before the block. The upper `num_bits` bits of `byte` come
    /// before the input.
    ///
    /// # Errors
    /// The window is too large, or there are more than seven bits.
    pub(crate) fn resume(&mut self, window: &[u8], num_bits: u8, byte: u8) -> Result<(), Damage> {
        if window.len() > WINDOW_BYTES || num_bits > 7 {
            return Err(Damage("an access point that is not possible".to_owned()));
        }
        self.reset(RAW)?;
        if num_bits > 0 {
            let value = i32::from(byte >> (8 - num_bits));
            // SAFETY: the stream was initialised by `new`.
            let code = unsafe { inflatePrime(&raw mut *self.stream, num_bits.into(), value) };
            self.checked(code)?;
        }
        // SAFETY: the stream was initialised by `new`, and the pointer is valid for the length.
        let code = unsafe { inflateSetDictionary(&raw mut *self.stream, window.as_ptr(), window.len() as u32) };
        self.checked(code)
    }

    /// Decompress until the input is used up, the output is full, or the data end. With `stops_at_blocks`, stop at the
    /// end of a block, too.
    ///
    /// # Errors
    /// The input is not deflate data, or its checksum is wrong.
    pub(crate) fn step(&mut self, input: &[u8], output: &mut [u8], stops_at_blocks: bool) -> Result<Step, Damage> {
        let stream = &mut *self.stream;
        let (num_in, num_out) = (input.len().min(u32::MAX as usize), output.len().min(u32::MAX as usize));
        (stream.next_in, stream.avail_in) = (input.as_ptr(), num_in as u32);
        (stream.next_out, stream.avail_out) = (output.as_mut_ptr(), num_out as u32);
        // SAFETY: the stream was initialised by `new`, and its pointers are valid for the lengths next to them.
        let code = unsafe { inflate(stream, if stops_at_blocks { Z_BLOCK } else { Z_NO_FLUSH }) };
        let at = match code {
            Z_STREAM_END => At::End,
            // More than seven unused bits are whole bytes.
            Z_OK | Z_BUF_ERROR if stream.data_type & 0b1100_0000 == 128 => {
                At::Block { unused_bits: (stream.data_type & 0b11_1111) as u8 }
            }
            // Z_BUF_ERROR says only that nothing could be read or written; the next step continues.
            Z_OK | Z_BUF_ERROR => At::Inside,
            code => {
                self.checked(code)?;
                At::Inside
            }
        };
        let stream = &mut *self.stream;
        let step =
            Step { num_read: num_in - stream.avail_in as usize, num_written: num_out - stream.avail_out as usize, at };
        // The stream moves between threads, so no pointer to memory of the caller may stay in it.
        (stream.next_in, stream.avail_in) = (std::ptr::null(), 0);
        (stream.next_out, stream.avail_out) = (std::ptr::null_mut(), 0);
        Ok(step)
    }

    /// The data before the position, as far as the next block may refer back to them.
    pub(crate) fn window(&self) -> Vec<u8> {
        let mut window = requests::collected(std::iter::repeat_n(0, WINDOW_BYTES));
        let mut size = 0;
        // SAFETY: the stream was initialised by `new`, and the buffer has the size that the function asks for.
        unsafe { inflateGetDictionary(&raw const *self.stream, window.as_mut_ptr(), &raw mut size) };
        window.truncate(size as usize);
        window
    }

    fn checked(&self, code: i32) -> Result<(), Damage> {
        if code == Z_OK {
            return Ok(());
        }
        let message = self.stream.msg;
        Err(Damage(match code {
            Z_MEM_ERROR => requests::refused(STATE_BYTES),
            // SAFETY: the message of the library is a text that ends with NUL, and is never freed.
            _ if !message.is_null() => unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned(),
            code => format!("zlib-rs stops with code {code}"),
        }))
    }
}

impl Drop for Inflater {
    fn drop(&mut self) {
        // SAFETY: the stream was initialised by `new`, and is not used afterwards.
        unsafe { inflateEnd(&raw mut *self.stream) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deflate_data_without_a_header_are_decompressed() {
        let stored = [1, 3, 0, 252, 255, b'a', b'b', b'c']; // the last block, of three bytes
        let mut inflater = Inflater::new().unwrap();
        inflater.resume(&[], 0, 0).unwrap();
        let mut out = [0; 8];
        let step = inflater.step(&stored, &mut out, false).unwrap();
        assert_eq!((step.num_read, step.num_written, step.at), (8, 3, At::End));
        assert_eq!(&out[..3], b"abc");
    }
}
