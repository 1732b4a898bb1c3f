//! Compressed texts: gzip (also in many members, as BGZF) and zstd (in any number of frames).
//!
//! ```text
//! Stream         all data in order; notes access points on the way
//! stated_points  the same points, from the headers of zstd frames that state the size of their text
//! Reader         parts of the text that follow each other, from the access point before the first
//! decompress     the text between two offsets, from the access points before them, on all threads
//! ```
//!
//! An access point is a place from which data can be decompressed: the beginning of a member or a frame, or, in gzip
//! data, the beginning of a block together with the 32 KB of text before it. The text between two points is a segment.
//!
//! Refused memory unwinds as in [`cntkio_memory::requests`].
//!
//! The crate opens no file: a function reads the compressed data. It calls two libraries, `zlib-rs` and libzstd, which
//! is written in C; only [`inflate`] has `unsafe` code.

mod gzip;
mod inflate;
mod points;
mod reader;
mod step;
mod stream;
mod sums;
mod zstd;

pub use points::Points;
pub use reader::{Packed, Reader, SpareDecoders, decompress};
pub use stream::{Fault, Kind, Stream};
pub use sums::Sums;
pub use zstd::stated_points;

use cntkio_memory::requests;

/// Fill a buffer with the bytes of compressed data from an offset on.
pub type ReadAt<'a> = &'a (dyn Fn(usize, &mut [u8]) -> std::io::Result<()> + Sync);

/// Compress a text to one frame of zstd, which has its size and a checksum.
///
/// # Errors
/// The library fails; the text says why.
pub fn zstd_frame(text: &[u8], level: i32) -> Result<Vec<u8>, String> {
    let name = |code| zstd_safe::get_error_name(code).to_owned();
    let num_bytes = zstd_safe::compress_bound(text.len());
    let mut out: Vec<u8> = requests::with_room(num_bytes);
    let mut context = zstd_safe::CCtx::try_create().unwrap_or_else(|| requests::refused(num_bytes));
    context.set_parameter(zstd_safe::CParameter::CompressionLevel(level)).map_err(name)?;
    context.set_parameter(zstd_safe::CParameter::ChecksumFlag(true)).map_err(name)?;
    // A single call gets the whole text, so libzstd knows its size and states it in the header of the frame.
    context.compress2(&mut out, text).map_err(name)?;
    Ok(out)
}
