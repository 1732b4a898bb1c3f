//! The text of compressed data from access points on.

use crate::ReadAt;
use crate::inflate::Damage;
use crate::points::{Place, Points};
use crate::stream::{Decoder, Fault, Kind, Stream};
use crate::sums::{Check, Sums};
use cntkio_memory::requests;
use rayon::prelude::*;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Bytes of compressed data that are read at once, and of text that is skipped at once.
const READ_BYTES: usize = 1 << 17;

/// Compressed data and their access points.
#[derive(Clone, Copy)]
pub struct Packed<'a> {
    /// The kind of compression.
    pub kind: Kind,
    /// Reads the compressed data.
    pub read: ReadAt<'a>,
    /// Offset in the text of each point and, last, of the end of the last segment.
    pub texts: &'a [u64],
    /// Place of each point and, last, of the end of the last segment; see [`Points::places`].
    pub places: &'a [u64],
    /// For each point the beginning of its window in `windows` and, last, the end of the last window.
    pub window_bounds: &'a [u64],
    /// The windows.
    pub windows: &'a [u8],
    /// Decoders of earlier readers.
    pub spare: &'a SpareDecoders,
    /// Checksums of the frames, unless only the frames themselves have checksums.
    pub sums: Option<&'a Arc<Sums>>,
}

/// Decoders that readers have left, for later readers: their memory was used before.
pub struct SpareDecoders {
    most: usize,
    kept: Mutex<Vec<Buffers>>,
}

/// A decoder and its buffers.
struct Buffers {
    kind: Kind,
    decoder: Decoder,
    input: Vec<u8>,
    skipped: Vec<u8>,
}

impl SpareDecoders {
    /// Most decoders that are kept.
    #[must_use]
    pub fn new(most: usize) -> SpareDecoders {
        SpareDecoders { most, kept: Mutex::default() }
    }

    /// No thread waits for another thread, which may not exist in a fork of the process.
    fn take(&self, kind: Kind) -> Result<Buffers, Damage> {
        let spare = self.kept.try_lock().ok().and_then(|mut spare| spare.pop()).filter(|spare| spare.kind == kind);
        spare.map_or_else(
            || Ok(Buffers { kind, decoder: Decoder::new(kind)?, input: Vec::new(), skipped: Vec::new() }),
            Ok,
        )
    }

    fn give(&self, buffers: Buffers) {
        if let Ok(mut spare) = self.kept.try_lock()
            && spare.len() < self.most
        {
            spare.push(buffers);
        }
    }
}

impl<'a> Packed<'a> {
    /// The last access point at or before an offset of the text.
    fn segment_of(&self, text: u64) -> usize {
        // The last point is the end of the text, where no segment begins.
        self.texts.partition_point(|&point| point <= text).saturating_sub(1).min(self.texts.len().saturating_sub(2))
    }

    /// An error unless the access points belong together, and the range lies between the first and the last.
    fn check(&self, range: &Range<u64>) -> Result<(), Fault> {
        // The points may come from a cache or the seek table of a file, and the code below uses them as indices and in
        // differences.
        let fits = self.texts.is_sorted()
            && self.places.is_sorted()
            && self.window_bounds.is_sorted()
            && self.texts.len() > 1
            && self.places.len() == self.texts.len()
            && self.window_bounds.len() == self.texts.len()
            && self.window_bounds.last().is_some_and(|&end| end <= self.windows.len() as u64)
            && self.texts.first().is_some_and(|&first| first <= range.start)
            && self.texts.last().is_some_and(|&last| range.end <= last);
        let what = "access points that do not belong together";
        if fits { Ok(()) } else { Err(Fault { packed: 0, text: range.start, what: what.to_owned() }) }
    }

    /// The offsets in the text of the access points between two offsets.
    pub fn points_between(&self, range: Range<u64>) -> &'a [u64] {
        let first = self.texts.partition_point(|&text| text <= range.start);
        &self.texts[first..self.texts.partition_point(|&text| text < range.end).max(first)]
    }
}

/// Reads parts of a text, which should follow each other: it decompresses the text between them, or begins at the
/// access point before the part.
pub struct Reader<'a> {
    packed: Packed<'a>,
    cursor: Option<Cursor>,
}

/// A position in the text.
struct Cursor {
    stream: Stream,
    /// The segment that has the position. At its end, the next one.
    segment: usize,
    kind: Kind,
    input: Vec<u8>,
    /// The range of unused compressed data in `input`, and the offset of its end in the compressed data.
    unused: Range<usize>,
    input_end: u64,
    skipped: Vec<u8>,
}

impl<'a> Reader<'a> {
    /// A reader of compressed data.
    #[must_use]
    pub fn new(packed: Packed<'a>) -> Reader<'a> {
        Reader { packed, cursor: None }
    }

    /// Fill a buffer with the text from an offset on. The checksums of members and frames that end on the way, or with
    /// the buffer, are checked.
    ///
    /// # Errors
    ///
    /// The data cannot be read. A [`Fault`]: the data are damaged, or do not match the access points.
    pub fn read(&mut self, text: u64, out: &mut [u8]) -> io::Result<()> {
        let packed = self.packed;
        if out.is_empty() {
            return Ok(());
        }
        packed.check(&(text..text.saturating_add(out.len() as u64))).map_err(io::Error::other)?;
        let segment = packed.segment_of(text);
        // If the cursor is in an earlier segment, the access point of this segment is nearer to the part.
        let is_ahead = |cursor: &Cursor| {
            let at = cursor.stream.text;
            at <= text && (cursor.segment >= segment || at == text)
        };
        let damage = |Damage(what)| io::Error::other(Fault { packed: 0, text, what });
        // After an error, and where memory is refused, there is no cursor.
        let mut cursor = match self.cursor.take() {
            Some(cursor) if is_ahead(&cursor) => cursor,
            Some(cursor) => Cursor::at(&packed, segment, cursor.into_buffers())?,
            None => Cursor::at(&packed, segment, packed.spare.take(packed.kind).map_err(damage)?)?,
        };
        cursor.skip_to(&packed, text)?;
        cursor.fill(&packed, out)?;
        self.cursor = Some(cursor);
        Ok(())
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        if let Some(cursor) = self.cursor.take() {
            self.packed.spare.give(cursor.into_buffers());
        }
    }
}

impl Cursor {
    /// A cursor at the access point where a segment begins.
    fn at(packed: &Packed, segment: usize, buffers: Buffers) -> io::Result<Cursor> {
        let Buffers { kind, mut decoder, input, skipped } = buffers;
        let (place, text) = (Place::from(packed.places[segment]), packed.texts[segment]);
        let damage = |Damage(what)| io::Error::other(Fault { packed: place.byte, text, what });
        match &mut decoder {
            Decoder::Zstd(zstd) => zstd.begin_anew(),
            Decoder::Gzip(gzip) if place.is_begin => gzip.begin_anew(),
            Decoder::Gzip(gzip) => {
                let mut byte = [0];
                // The block begins within the byte before its place.
                if place.num_bits > 0 {
                    (packed.read)(place.byte.saturating_sub(1) as usize, &mut byte)?;
                }
                let window = packed.window_bounds[segment] as usize..packed.window_bounds[segment + 1] as usize;
                gzip.resume(&packed.windows[window], place.num_bits, byte[0]).map_err(damage)?;
            }
        }
        let stream = Stream {
            decoder,
            packed: place.byte,
            text,
            points: Points::default(),
            // A reader notes no points, so the decoder need not stop at blocks.
            spacing: u64::MAX,
            is_between: place.is_begin,
            check: packed.sums.cloned().map(Check::new),
        };
        Ok(Cursor { stream, segment, kind, input, unused: 0..0, input_end: place.byte, skipped })
    }

    fn into_buffers(self) -> Buffers {
        Buffers { kind: self.kind, decoder: self.stream.decoder, input: self.input, skipped: self.skipped }
    }

    fn fault(&self, what: &str) -> io::Error {
        io::Error::other(Fault { packed: self.stream.packed, text: self.stream.text, what: what.to_owned() })
    }

    fn skip_to(&mut self, packed: &Packed, text: u64) -> io::Result<()> {
        // `fill` borrows the whole cursor, so the buffer is taken out of it first.
        let mut skipped = std::mem::take(&mut self.skipped);
        requests::resize(&mut skipped, READ_BYTES, 0);
        while self.stream.text < text {
            let count = (text - self.stream.text).min(READ_BYTES as u64) as usize;
            self.fill(packed, &mut skipped[..count])?;
        }
        self.skipped = skipped;
        Ok(())
    }

    fn fill(&mut self, packed: &Packed, mut out: &mut [u8]) -> io::Result<()> {
        loop {
            // A frame without text may make a segment without text, so several segments may end here. This comes before
            // the test of `out`, so that a checksum at the end of the part is checked.
            while packed.texts.get(self.segment + 1) == Some(&self.stream.text) {
                self.end_segment(packed)?;
            }
            if out.is_empty() {
                return Ok(());
            }
            let Some(&end) = packed.texts.get(self.segment + 1) else { return Err(self.fault(ENDS_EARLY)) };
            let count = out.len().min((end - self.stream.text) as usize);
            let fed = self.feed(packed, &mut out[..count])?;
            if fed == (0, 0) {
                return Err(self.fault(ENDS_EARLY));
            }
            out = &mut out[fed.1..];
        }
    }

    /// At the end of a segment's text: go to the next segment. Where a member or a frame ends, its checksum is read.
    fn end_segment(&mut self, packed: &Packed) -> io::Result<()> {
        let next = Place::from(packed.places[self.segment + 1]);
        if next.is_begin {
            let is_there = |stream: &Stream| stream.is_between() && stream.packed == next.byte;
            while !is_there(&self.stream) {
                // Without room for text, the decoder reads only the checksum, and finds out whether more text follows.
                if self.feed(packed, &mut [])? == (0, 0) && !is_there(&self.stream) {
                    return Err(self.fault(HOLDS_MORE));
                }
            }
        }
        self.segment += 1;
        Ok(())
    }

    /// Decompress some bytes; returns the numbers of bytes that were read and written.
    fn feed(&mut self, packed: &Packed, out: &mut [u8]) -> io::Result<(usize, usize)> {
        if self.unused.is_empty() {
            let end = Place::from(packed.places[self.segment + 1]).byte;
            // The caller may have fetched only the bytes of the wanted segments, so nothing is read beyond the end of a
            // segment.
            let count = end.saturating_sub(self.input_end).min(READ_BYTES as u64) as usize;
            requests::resize(&mut self.input, READ_BYTES, 0);
            (packed.read)(self.input_end as usize, &mut self.input[..count])?;
            (self.unused, self.input_end) = (0..count, self.input_end + count as u64);
        }
        let fed = self.stream.feed(&self.input[self.unused.clone()], out).map_err(io::Error::other)?;
        self.unused.start += fed.0;
        Ok(fed)
    }
}

const ENDS_EARLY: &str = "the data hold less text than their table says";
const HOLDS_MORE: &str = "the data hold more text than their table says";

/// Decompress the text from `begin` on into `out`, on all threads of the current pool, segment by segment.
///
/// # Errors
/// As for [`Reader::read`]: the first fault of the text.
pub fn decompress(packed: Packed, begin: u64, out: &mut [u8]) -> io::Result<()> {
    let end = begin + out.len() as u64;
    packed.check(&(begin..end)).map_err(io::Error::other)?;
    let mut jobs = Vec::new();
    let (mut first, mut rest) = (begin, out);
    for &last in packed.points_between(begin..end).iter().chain([&end]) {
        let (part, others) = std::mem::take(&mut rest).split_at_mut((last - first) as usize);
        jobs.push((first, part));
        (first, rest) = (last, others);
    }
    // `try_for_each` would return the fault of any segment, so that the reported place would depend on the threads.
    let read = |(first, part): (u64, &mut [u8])| Reader::new(packed).read(first, part);
    jobs.into_par_iter().map(read).find_first(Result::is_err).unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    #[test]
    fn the_first_of_several_faults_is_reported() {
        let frames: Vec<Vec<u8>> = (0..4).map(|number| crate::zstd_frame(&[number; 100], 1).unwrap()).collect();
        let ends = frames.iter().scan(0, |end, frame| {
            *end += frame.len() as u64;
            Some(*end)
        });
        let begins: Vec<u64> = std::iter::once(0).chain(ends).collect();
        let mut bytes = frames.concat();
        for &begin in &begins[1..3] {
            bytes[begin as usize] ^= 1;
        }
        // The first segment is read only after the fault of the third, or after a second if a single thread reads all.
        let is_third_read = AtomicBool::new(false);
        let read = |at: usize, buffer: &mut [u8]| {
            let since = Instant::now();
            while at == 0 && since.elapsed() < Duration::from_secs(1) && !is_third_read.load(SeqCst) {
                std::thread::yield_now();
            }
            if at == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
            is_third_read.fetch_or(at as u64 == begins[2], SeqCst);
            buffer.copy_from_slice(&bytes[at..at + buffer.len()]);
            Ok(())
        };
        let places: Vec<u64> =
            begins.iter().map(|&byte| u64::from(Place { byte, num_bits: 0, is_begin: true })).collect();
        let packed = Packed {
            kind: Kind::Zstd,
            read: &read,
            texts: &[0, 100, 200, 300, 400],
            places: &places,
            window_bounds: &[0; 5],
            windows: &[],
            spare: &SpareDecoders::new(2),
            sums: None,
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let error = pool.install(|| decompress(packed, 0, &mut [0; 400])).unwrap_err();
        let fault = error.get_ref().and_then(|fault| fault.downcast_ref::<Fault>()).unwrap();
        assert_eq!(fault.text, 100);
    }
}
