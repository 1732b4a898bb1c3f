//! Frames of feature files as they were read.
//!
//! A sample is a frame with its neighbours in its sequence, earliest first. Beyond the ends of the sequence, its first
//! or last frame is repeated. Gathering first makes a list of pieces of bytes:
//!
//! ```text
//! frames of an utterance     f0 f1 f2 f3 f4 f5 f6          window of one frame to the left, two to the right
//! sample 0                f0|f0 f1 f2                      two pieces
//! sample 2                      f1 f2 f3 f4                one piece
//! ```
//!
//! Then it copies the pieces into the minibatch in the processor's byte order, on all threads. Compressed frames are
//! decoded one by one.

use super::bytes::Bytes;
use super::ragged::{Error, Form, Gather, Located, RaggedEntries, Takes, span, try_reserve};
use super::values::{NumberType, Values};
use crate::memory;
use cntkio_memory::copy::{Floats, append_floats};
use rayon::prelude::*;
use std::cell::OnceCell;
use std::iter::repeat_n;
use std::ops::Range;

/// Fewer values are not worth another thread.
const SHARE_VALUES: usize = 1 << 16;

/// Frames as they were read; in single precision when packed.
#[derive(Debug, Clone, PartialEq)]
pub struct Frames {
    /// Values of a frame.
    pub frame_dim: usize,
    /// Frames before each frame in its sample.
    pub left: usize,
    /// Frames after each frame in its sample.
    pub right: usize,
    /// True if a sequence's only frame stands for any number of frames.
    pub is_broadcast: bool,
    /// The bytes.
    pub blocks: Vec<Bytes>,
    /// The first frame of each sequence.
    pub starts: Vec<FrameStart>,
    /// The encodings of frames.
    pub encodings: Vec<Encoding>,
}

/// The way the values of a frame are stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoding {
    /// True if the first byte of a value is its highest.
    pub is_big_endian: bool,
    /// Scales `a` and `b` for each value: a 16-bit `x` means `(x + b) / a`. Without them values are in single
    /// precision.
    pub scales: Option<(Vec<f32>, Vec<f32>)>,
}

impl Encoding {
    /// Bytes of a frame of `dim` values.
    pub fn frame_size(&self, dim: usize) -> usize {
        dim * if self.scales.is_some() { 2 } else { 4 }
    }
}

/// The start of a sequence's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameStart {
    /// The block of bytes.
    pub block: u32,
    /// The encoding.
    pub encoding: u32,
    /// The first byte in the block.
    pub offset: usize,
}

impl Frames {
    /// Values of a sample.
    pub fn dim(&self) -> usize {
        self.frame_dim * (1 + self.left + self.right)
    }

    pub(crate) fn form(&self) -> Form {
        Form { dim: self.dim(), is_sparse: false, number: NumberType::F32 }
    }

    /// Check that every frame is inside its block; the message names the frame that is not.
    pub(crate) fn check(&self, sequence_offsets: &[u32]) -> Result<(), String> {
        // Window and dimension come from a caller, so each step of the product is checked.
        let window = self.left.checked_add(self.right).and_then(|frames| frames.checked_add(1));
        let dim = window.and_then(|frames| frames.checked_mul(self.frame_dim));
        if dim.is_none_or(|dim| dim == 0 || dim > i32::MAX as usize) {
            return Err("a sample of no values, or of 2^31 or more".to_owned());
        }
        if self.starts.len() + 1 != sequence_offsets.len() {
            return Err(format!("{} sequences, but {} starts", sequence_offsets.len() - 1, self.starts.len()));
        }
        for encoding in &self.encodings {
            // With too few scales, the `zip` in `decode` would end early and leave values undecoded.
            if let Some((a, b)) = &encoding.scales
                && (a.len(), b.len()) != (self.frame_dim, self.frame_dim)
            {
                return Err("scales that do not fit the dimension".to_owned());
            }
        }
        for (start, pair) in self.starts.iter().zip(sequence_offsets.windows(2)) {
            let encoding = self.encodings.get(start.encoding as usize).ok_or("an encoding that does not exist")?;
            let block = self.blocks.get(start.block as usize).ok_or("a block that does not exist")?;
            let size = (pair[1] - pair[0]) as usize * encoding.frame_size(self.frame_dim);
            // The offset comes from a caller, so the sum can overflow.
            if start.offset.checked_add(size).is_none_or(|end| end > block.as_slice().len()) {
                return Err("a sequence that ends beyond its block".to_owned());
            }
        }
        Ok(())
    }

    /// Bytes of the frames and of their table. A mapped block may have other frames in between, which take no memory.
    pub(crate) fn num_bytes(&self, sequence_offsets: &[u32]) -> usize {
        let size = |(start, pair): (&FrameStart, &[u32])| {
            let frame_size = self.encodings.get(start.encoding as usize)?.frame_size(self.frame_dim);
            Some((pair[1] - pair[0]) as usize * frame_size)
        };
        let sizes = self.starts.iter().zip(sequence_offsets.windows(2)).filter_map(size);
        size_of_val(&self.starts[..]) + sizes.sum::<usize>()
    }

    /// All bytes of a sequence of this number of frames, and their encoding.
    #[inline]
    fn sequence(&self, sequence: usize, num_frames: usize) -> Option<(&[u8], &Encoding)> {
        let FrameStart { block, encoding, offset } = *self.starts.get(sequence)?;
        let encoding = self.encodings.get(encoding as usize)?;
        let block = self.blocks.get(block as usize)?.as_slice();
        Some((block.get(offset..offset + num_frames * encoding.frame_size(self.frame_dim))?, encoding))
    }

    /// Write the values of some samples of a sequence of `num_frames` frames.
    ///
    /// `out` has room for exactly these samples. Zeros stay for samples of a sequence without frames.
    pub fn decode(&self, sequence: usize, num_frames: usize, samples: Range<usize>, out: &mut [f32]) {
        let Some((bytes, encoding)) = self.sequence(sequence, num_frames) else { return };
        if num_frames == 0 || samples.is_empty() || out.len() != samples.len() * self.dim() {
            return;
        }
        let (dim, size) = (self.frame_dim, encoding.frame_size(self.frame_dim));
        let (left, right) = (self.left, self.right);
        // The samples of a broadcast frame are not consecutive frames, even without a window.
        if left + right == 0 && !self.is_broadcast {
            encoding.decode(dim, &bytes[samples.start * size..samples.end * size], out);
            return;
        }
        let last = num_frames - 1;
        let frame = |number: usize, out: &mut [f32]| {
            encoding.decode(dim, &bytes[number * size..(number + 1) * size], out);
        };
        let width = self.dim();
        for (row, sample) in samples.clone().enumerate() {
            let center = sample.min(last);
            // Only samples of a broadcast frame are beyond the last frame, and they are all the same.
            if row > 0 && sample > last {
                out.copy_within((row - 1) * width..row * width, row * width);
                continue;
            }
            // A window has all frames but one of the window before, so each frame is decoded only once.
            if row > 0 {
                // The sample before, one frame later.
                out.copy_within((row - 1) * width + dim..row * width, row * width);
                frame((center + right).min(last), &mut out[(row + 1) * width - dim..(row + 1) * width]);
                continue;
            }
            // The first window has no window before it, so it is put together from repeated and consecutive frames.
            let lead = left.saturating_sub(center);
            let (first, end) = (center.saturating_sub(left), (center + right + 1).min(num_frames));
            let (head, rest) = out[..width].split_at_mut(lead * dim);
            let (middle, tail) = rest.split_at_mut((end - first) * dim);
            head.chunks_exact_mut(dim).for_each(|out| frame(0, out));
            encoding.decode(dim, &bytes[first * size..end * size], middle);
            tail.chunks_exact_mut(dim).for_each(|out| frame(last, out));
        }
    }

    /// Append the pieces that make up some samples of a sequence of `num_frames` frames, at least one.
    #[inline]
    fn push_pieces<'a>(
        &self,
        sequence: Floats<'a>,
        num_frames: usize,
        samples: Range<usize>,
        pieces: &mut Vec<Floats<'a>>,
    ) {
        let size = 4 * self.frame_dim;
        let piece = |from: usize, to: usize| Floats { bytes: &sequence.bytes[from * size..to * size], ..sequence };
        let (left, right) = (self.left, self.right);
        // Without a window, consecutive samples are consecutive bytes.
        if left + right == 0 && !self.is_broadcast {
            memory::push(pieces, piece(samples.start, samples.end));
            return;
        }
        // Most samples are one piece. Those at the ends of the sequence have more, for which the vector grows.
        memory::reserve(pieces, samples.len());
        for sample in samples {
            let center = sample.min(num_frames - 1);
            // The file has the repeated frame only once, so each repetition is a piece.
            for _ in center..left {
                memory::push(pieces, piece(0, 1));
            }
            memory::push(pieces, piece(center.saturating_sub(left), (center + right + 1).min(num_frames)));
            for _ in num_frames..center + right + 1 {
                memory::push(pieces, piece(num_frames - 1, num_frames));
            }
        }
    }
}

impl Encoding {
    /// Decode whole frames of `dim` values.
    fn decode(&self, dim: usize, bytes: &[u8], out: &mut [f32]) {
        let Some((a, b)) = &self.scales else {
            // The byte order is chosen before the loop, so the loop has no branch.
            let single = if self.is_big_endian { f32::from_be_bytes } else { f32::from_le_bytes };
            out.iter_mut().zip(bytes.as_chunks().0).for_each(|(out, &value)| *out = single(value));
            return;
        };
        let whole = if self.is_big_endian { i16::from_be_bytes } else { i16::from_le_bytes };
        for (out, frame) in out.chunks_exact_mut(dim).zip(bytes.chunks_exact(2 * dim)) {
            for ((out, &value), (a, b)) in out.iter_mut().zip(frame.as_chunks().0).zip(a.iter().zip(b)) {
                // CNTK rounds each step to single precision. A product with the inverse of `a` would have other bits.
                *out = (f32::from(whole(value)) + b) / a;
            }
        }
    }
}

/// Gathers columns of this kind, all of one form, each with its sequence offsets.
pub(crate) fn gatherer<'a>(columns: Vec<(&'a Frames, &'a [u32])>) -> Box<dyn Gather + 'a> {
    let is_scaled = |encoding: &Encoding| encoding.scales.is_some();
    // Scaled frames are not copied as pieces, so a single scaled file needs the decoder for all frames.
    let are_scaled = columns.iter().any(|(frames, _)| frames.encodings.iter().any(is_scaled));
    Box::new(AllFrames { columns, are_scaled })
}

struct AllFrames<'a> {
    columns: Vec<(&'a Frames, &'a [u32])>,
    /// True if some frames are scaled.
    are_scaled: bool,
}

/// The frames that a selection takes from a sequence.
struct Taken<'a> {
    frames: &'a Frames,
    /// The sequence, counted in the column.
    sequence: usize,
    /// Frames of the sequence.
    num_frames: usize,
    /// The samples that are taken, counted in the sequence.
    samples: Range<usize>,
}

impl AllFrames<'_> {
    /// Call a function with the frames that the selection takes from each sequence.
    #[inline]
    fn each<'a>(
        &'a self,
        located: &Located,
        mut takes: Takes,
        mut take: impl FnMut(Taken<'a>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        located.each(&self.columns, |&(frames, sequence_offsets), sequence| {
            let (begin, end) = span(sequence_offsets, sequence)?;
            let num_frames = end - begin;
            let (first, count) = takes.next(num_frames, frames.is_broadcast)?;
            let samples = first as usize..first as usize + count as usize;
            take(Taken { frames, sequence, num_frames: num_frames as usize, samples })
        })
    }
}

impl Gather for AllFrames<'_> {
    fn gather(
        &self,
        located: &Located,
        takes: Takes,
        values: &mut Values,
        _: Option<&mut RaggedEntries>,
    ) -> Result<(), Error> {
        // Frames are packed in single precision. The packer widens them afterwards.
        let Values::F32(values) = values else { return Err(Error::Mixed) };
        if self.are_scaled {
            let mut all = memory::with_room(located.num_sequences);
            self.each(located, takes, |taken| {
                all.push(taken);
                Ok(())
            })?;
            return decode_all(&all, values);
        }
        // Sequences without frames are rare. The first of them makes the zeros, once for the minibatch.
        let zeros = OnceCell::new();
        let mut pieces: Vec<Floats> = memory::with_room(located.num_sequences);
        let mut num_values = 0usize;
        self.each(located, takes, |Taken { frames, sequence, num_frames, samples }| {
            // A broadcast frame can be asked for any number of samples, so the sizes can overflow.
            let size = samples.len().checked_mul(frames.dim()).ok_or(Error::TooLarge(usize::MAX))?;
            num_values = num_values.checked_add(size).ok_or(Error::TooLarge(usize::MAX))?;
            if num_frames == 0 {
                let bytes = zeros.get_or_init(|| memory::collected(repeat_n(0, 4 * frames.dim())));
                memory::extend(&mut pieces, samples.map(|_| Floats { bytes, is_big_endian: false }));
                return Ok(());
            }
            let (bytes, encoding) = frames.sequence(sequence, num_frames).ok_or(Error::Mixed)?;
            let floats = Floats { bytes, is_big_endian: encoding.is_big_endian };
            frames.push_pieces(floats, num_frames, samples, &mut pieces);
            Ok(())
        })?;
        // A refused request is an error of this read. `append_floats` then finds the memory reserved.
        try_reserve(values, num_values)?;
        append_floats(values, &pieces);
        Ok(())
    }
}

/// Decode the samples that are taken of each sequence; on all threads if there are many.
fn decode_all(all: &[Taken], out: &mut Vec<f32>) -> Result<(), Error> {
    let mut num_values = 0usize;
    for taken in all {
        let size = taken.samples.len().checked_mul(taken.frames.dim());
        num_values = size.and_then(|size| num_values.checked_add(size)).ok_or(Error::TooLarge(usize::MAX))?;
    }
    try_reserve(out, num_values)?;
    let num_before = out.len();
    // Threads write into parts of the vector, so it has its full length before they start.
    out.resize(num_before + num_values, 0.0);
    // A call outside of a pool must not start rayon's global threads, which a forked child would lack.
    let num_threads = rayon::current_thread_index().map_or(1, |_| rayon::current_num_threads());
    // A thread's share alone would leave a second job without values if the last sequences take no samples.
    let share = if num_threads == 1 { usize::MAX } else { num_values.div_ceil(num_threads).max(SHARE_VALUES) };
    let (mut jobs, mut rest, mut at) = (Vec::new(), &mut out[num_before..], 0);
    while at < all.len() {
        let (begin, mut size) = (at, 0);
        while at < all.len() && size < share {
            size += all[at].samples.len() * all[at].frames.dim();
            at += 1;
        }
        // The sizes add up to `num_values`, so there is always enough to split.
        let (mine, others) = std::mem::take(&mut rest).split_at_mut_checked(size).ok_or(Error::Mixed)?;
        jobs.push((&all[begin..at], mine));
        rest = others;
    }
    let decode = |(part, mut out): (&[Taken], &mut [f32])| {
        for Taken { frames, sequence, num_frames, samples } in part {
            let (mine, others) = std::mem::take(&mut out).split_at_mut(samples.len() * frames.dim());
            frames.decode(*sequence, *num_frames, samples.clone(), mine);
            out = others;
        }
    };
    if jobs.len() == 1 {
        jobs.into_iter().for_each(decode);
    } else {
        jobs.into_par_iter().for_each(decode);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames(is_big_endian: bool, left: usize, right: usize, values: &[f32]) -> Frames {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| if is_big_endian { value.to_be_bytes() } else { value.to_le_bytes() })
            .collect();
        Frames {
            frame_dim: 2,
            left,
            right,
            is_broadcast: false,
            blocks: vec![Bytes::new(bytes)],
            starts: vec![FrameStart { block: 0, encoding: 0, offset: 0 }],
            encodings: vec![Encoding { is_big_endian, scales: None }],
        }
    }

    proptest! {
        #[test]
        fn a_window_repeats_the_ends_and_never_reaches_beyond(
            num_frames in 1usize..6, left in 0usize..8, right in 0usize..8, is_big_endian: bool,
            first in 0usize..6, count in 0usize..6, is_broadcast: bool,
        ) {
            let values: Vec<f32> = (0..2 * num_frames).map(|number| number as f32).collect();
            let end = if is_broadcast { usize::MAX } else { num_frames };
            let range = first.min(end)..(first + count).min(end);
            let mut found = vec![0f32; range.len() * 2 * (1 + left + right)];
            let frames = Frames { is_broadcast, ..frames(is_big_endian, left, right, &values) };
            frames.decode(0, num_frames, range.clone(), &mut found);
            let mut expected = Vec::new();
            for center in range.map(|sample| sample.min(num_frames - 1)) {
                for at in center as isize - left as isize..=(center + right) as isize {
                    let frame = at.clamp(0, num_frames as isize - 1) as usize;
                    expected.extend_from_slice(&values[2 * frame..2 * frame + 2]);
                }
            }
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn compressed_values_are_scaled_in_single_precision() {
        let mut frames = frames(true, 0, 0, &[]);
        frames.blocks = vec![Bytes::new([0x7f, 0xff, 0x80, 0x01].to_vec())];
        frames.encodings[0].scales = Some((vec![2.0, 3.0], vec![1.0, 0.5]));
        let mut found = [0f32; 2];
        frames.decode(0, 1, 0..1, &mut found);
        assert_eq!(found, [16384.0, (-32767.0f32 + 0.5) / 3.0]);
    }
}
