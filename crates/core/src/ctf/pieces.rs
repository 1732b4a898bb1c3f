//! Pieces: a chunk's text is divided among threads, and each piece is read and parsed part by part.
//!
//! ```text
//! chunk   ├── piece, one thread, one block ──┼── piece ──────────────────────┤
//!         ├─ part, read at once ─┼─ part ────┼─ part ───────────────┼─ part ──┤      all cut between sequences
//! ```
//!
//! If only some sequences of a chunk are wanted, a part is read run by run: a large gap between two runs is not read.

use super::builder::{Builder, builders, finish};
use super::findings::Stop;
use super::parse::Parser;
use super::{Extent, Finding, Findings, Schema, svmlight};
use crate::chunk::{Block, Chunk, Pool};
use crate::memory::{push, reserve, with_room};
use crate::parallel;
use crate::text::{Packed, Text};
use cntkio_simd::Kernel;
use std::sync::{Arc, Mutex, PoisonError};

/// The text of a chunk.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// The whole text, in memory.
    Memory(&'a [u8]),
    /// To be read.
    File(Text<'a>),
    /// To be decompressed.
    Packed(&'a dyn Packed),
}

/// Sizes of the parts of a chunk's text, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// Text that a thread parses into a block.
    pub piece: usize,
    /// Text that is parsed while it is in the cache.
    pub part: usize,
    /// Largest gap between two sequences that is read along with them.
    pub gap: usize,
}

/// Parse the sequences' text into a chunk, on all threads of the current pool if there is more than one piece.
///
/// The findings do not depend on where the text is cut. Every piece starts with the whole budget. A piece with more
/// errors than the earlier pieces have left of the budget is parsed again with the remaining budget, so that it stops
/// where a single parser would stop.
///
/// # Errors
/// The text cannot be read.
pub fn parse_chunk(
    source: Source,
    sequences: &[Extent],
    schema: &Schema,
    budget: u64,
    is_strict: bool,
    cut: Cut,
    pool: Option<&Arc<Pool>>,
) -> std::io::Result<(Chunk, Findings)> {
    let pieces: Vec<&[Extent]> = match source {
        Source::Packed(packed) => at_access_points(sequences, packed, cut.piece),
        Source::Memory(_) | Source::File(_) => in_pieces(sequences, cut.piece).collect(),
    };
    let parse_piece = |piece: &[Extent], budget| {
        let mut findings = Findings::new(budget, is_strict).in_full(schema.keeps_findings);
        let spare = pool.and_then(|pool| pool.take());
        parse_piece(source, piece, schema, &mut findings, cut, spare).map(|block| (block, findings))
    };
    // Passing a single piece to another thread would take as long as parsing some lines.
    let parsed: Vec<_> = match pieces[..] {
        [] => Vec::new(),
        [piece] => vec![parse_piece(piece, budget)],
        _ => parallel::map(pieces.len(), |number| parse_piece(pieces[number], budget)),
    };
    let mut all = Findings::new(budget, is_strict).in_full(schema.keeps_findings);
    let mut blocks = with_room(pieces.len());
    let mut first_sequence = 0;
    for (piece, parsed) in pieces.iter().zip(parsed) {
        let (mut block, mut findings) = parsed?;
        if findings.num_errors() > all.budget {
            (block, findings) = parse_piece(piece, all.budget)?;
        }
        all.append(&findings, first_sequence);
        first_sequence += piece.len();
        blocks.push(block);
        // A single parser would not reach the later pieces, so their findings must not count.
        if all.last_straw.is_some() {
            break;
        }
    }
    Ok((Chunk::new(blocks).of_pool(pool), all))
}

/// The most bytes of several sequences, with the gaps between them, that are read at once: they stay in the cache until
/// the sequences are moved together.
const MOST_RUN_BYTES: usize = 128 << 10;

/// The most bytes of a piece of several sequences: a block counts its samples and entries in 32 bits, and each of them
/// takes more than one byte of text.
pub(super) const MOST_PIECE_BYTES: usize = u32::MAX as usize;

/// Bytes of a sequence.
fn num_bytes(extent: &Extent) -> usize {
    extent.end.saturating_sub(extent.start)
}

/// Cut sequences into pieces of about `size` bytes, at least one sequence each.
fn in_pieces(sequences: &[Extent], size: usize) -> impl Iterator<Item = &[Extent]> {
    let size = size.min(MOST_PIECE_BYTES);
    let mut rest = sequences;
    std::iter::from_fn(move || {
        let mut total = 0usize;
        let fits = |extent: &&Extent| {
            total = total.saturating_add(num_bytes(extent));
            total <= size
        };
        // A sequence is never cut, so the first is taken even if it is larger than a piece.
        let count = rest.iter().take_while(fits).count().max(1);
        // After the last sequence, the empty piece ends the iteration.
        rest.split_off(..count.min(rest.len())).filter(|piece| !piece.is_empty())
    })
}

/// Cut sequences into pieces of about `size` bytes of text that begin next to an access point, so that no thread
/// decompresses much that belongs to another piece.
fn at_access_points<'a>(sequences: &'a [Extent], packed: &dyn Packed, size: usize) -> Vec<&'a [Extent]> {
    let range = sequences.first().map_or(0, |first| first.start)..sequences.last().map_or(0, |last| last.end);
    let mut pieces = Vec::new();
    let (mut rest, mut first_text, mut last_point) = (sequences, range.start, range.start);
    for point in packed.points_between(range.clone()).into_iter().chain([range.end]) {
        if point - first_text > size && last_point > first_text {
            // A sequence that crosses the point belongs to the piece before it.
            let count = rest.partition_point(|extent| extent.start < last_point);
            let (piece, others) = rest.split_at(count);
            pieces.push(piece);
            (rest, first_text) = (others, last_point);
        }
        last_point = point;
    }
    pieces.push(rest);
    // A large chunk has few, large pieces, and a point may be far from the next.
    pieces.into_iter().flat_map(|piece| in_pieces(piece, MOST_PIECE_BYTES)).collect()
}

/// Parse the sequences' text into a block. Extents are clipped to `bytes`.
///
/// If `findings.last_straw` is set afterwards, the block is incomplete.
pub fn parse(bytes: &[u8], sequences: &[Extent], schema: &Schema, findings: &mut Findings) -> Block {
    parse_with(Kernel::selected(), bytes, sequences, schema, findings)
}

/// [`parse`] with the given kernel, which affects only the time.
pub fn parse_with(
    kernel: Kernel,
    bytes: &[u8],
    sequences: &[Extent],
    schema: &Schema,
    findings: &mut Findings,
) -> Block {
    let mut builders = builders(schema, sequences.len(), None);
    let mut parser = Parser::new(bytes, 0, schema, &mut builders, findings);
    parser.lines.kernel = kernel;
    // If the parser stops early, it sets `findings.last_straw`.
    let _ = parser.sequences(sequences, 0);
    finish(sequences.len(), builders)
}

fn parse_piece(
    source: Source,
    sequences: &[Extent],
    schema: &Schema,
    findings: &mut Findings,
    cut: Cut,
    spare: Option<Block>,
) -> std::io::Result<Block> {
    let mut builders = builders(schema, sequences.len(), spare);
    let packed = match source {
        Source::Memory(bytes) => {
            findings.note_line_ends(bytes);
            let _ = parse_sequences(bytes, 0, schema, &mut builders, findings, sequences, 0);
            builders.iter_mut().for_each(|builder| builder.end_part(schema.is_compact, 1.0));
            return Ok(finish(sequences.len(), builders));
        }
        Source::File(text) => return parse_parts(text, sequences, schema, findings, cut, builders),
        Source::Packed(packed) => packed,
    };
    // A text is read through a shared function, but a decompressor changes with each read. Only this thread reads, so
    // it never waits.
    let reader = Mutex::new(packed.reader());
    let read = |at: usize, buffer: &mut [u8]| reader.lock().unwrap_or_else(PoisonError::into_inner)(at, buffer);
    parse_parts(Text { size: packed.size(), read: &read }, sequences, schema, findings, cut, builders)
}

/// Parse sequences of a text that begins at `first_byte` of the whole, numbered from `first_number`, by the grammar of
/// the schema.
fn parse_sequences(
    text: &[u8],
    first_byte: usize,
    schema: &Schema,
    builders: &mut [Builder],
    findings: &mut Findings,
    sequences: &[Extent],
    first_number: usize,
) -> Result<(), Stop> {
    match schema.svmlight {
        None => Parser::new(text, first_byte, schema, builders, findings).sequences(sequences, first_number),
        Some(layout) => {
            let kernel = Kernel::selected();
            svmlight::Parser { text, first_byte, layout, kernel, builders, findings }.sequences(sequences, first_number)
        }
    }
}

/// Parse a piece that is read part by part.
fn parse_parts(
    text: Text,
    sequences: &[Extent],
    schema: &Schema,
    findings: &mut Findings,
    cut: Cut,
    mut builders: Vec<Builder>,
) -> std::io::Result<Block> {
    let all_bytes: usize = sequences.iter().map(num_bytes).sum();
    let mut part_reader = PartReader { text, gap: cut.gap, buffer: Vec::new(), moved: Vec::new() };
    let mut number = 0;
    for part in in_pieces(sequences, cut.part) {
        let (bytes, first_byte, extents) = part_reader.read(part)?;
        let ratio = all_bytes as f64 / bytes.len().max(1) as f64;
        findings.note_line_ends(bytes);
        let known = findings.first.len();
        let parsed = parse_sequences(bytes, first_byte, schema, &mut builders, findings, extents, number);
        // The parser sees the buffer, in which sequences may have been moved together, so its offsets are converted.
        if findings.first.len() > known || findings.last_straw.is_some() {
            let place = |found: &mut Finding| found.at = part_reader.place_in_text(part, found.at);
            findings.first[known..].iter_mut().chain(&mut findings.last_straw).for_each(place);
        }
        if parsed.is_err() {
            break;
        }
        builders.iter_mut().for_each(|builder| builder.end_part(schema.is_compact, ratio));
        number += part.len();
    }
    Ok(finish(sequences.len(), builders))
}

/// Reads the sequences of a part into one buffer.
struct PartReader<'a> {
    text: Text<'a>,
    gap: usize,
    buffer: Vec<u8>,
    /// The extents of the sequences that were moved together in the buffer, counted from the first byte of the part;
    /// empty if the buffer contains the part as it is in the text.
    moved: Vec<Extent>,
}

impl PartReader<'_> {
    /// Read a part: its bytes, the place of the first, and the sequences' places. No two parts share a place, because
    /// the parser numbers lines by their places.
    ///
    /// Sequences with gaps between them are moved together: the parser is faster if no other text lies between.
    fn read<'a>(&'a mut self, part: &'a [Extent]) -> std::io::Result<(&'a [u8], usize, &'a [Extent])> {
        let (first_byte, end) = (part[0].start, part[part.len() - 1].end);
        let wanted: usize = part.iter().map(num_bytes).sum();
        self.moved.clear();
        if wanted + wanted / 8 >= end.saturating_sub(first_byte) {
            return Ok((self.text.read_into(&mut self.buffer, 0, first_byte, end)?, first_byte, part));
        }
        // The sequences of a run are read with the gaps between them, before they are moved together.
        let room = wanted.saturating_add(MOST_RUN_BYTES).saturating_sub(self.buffer.len());
        reserve(&mut self.buffer, room);
        let (mut used, mut rest) = (0, part);
        while let Some((first, later)) = rest.split_first() {
            let (begin, mut end) = (first.start, first.end);
            let joins = |next: &&Extent| {
                let is_near = next.start.saturating_sub(end) <= self.gap;
                let joins = is_near && next.end.saturating_sub(begin) <= MOST_RUN_BYTES;
                end = if joins { next.end } else { end };
                joins
            };
            let run = rest.split_off(..1 + later.iter().take_while(joins).count()).unwrap_or_default();
            let (place, num_read) = (used, self.text.read_into(&mut self.buffer, used, begin, end)?.len());
            for extent in run {
                // The text may end before the extents do; then fewer bytes were read.
                let here = |at: usize| place + at.saturating_sub(begin).min(num_read);
                let bytes = here(extent.start)..here(extent.end).max(here(extent.start));
                let start = first_byte + used;
                if bytes.start > used {
                    self.buffer.copy_within(bytes.clone(), used);
                }
                used += bytes.len();
                push(&mut self.moved, Extent { start, end: first_byte + used, ..*extent });
            }
        }
        Ok((&self.buffer[..used], first_byte, &self.moved))
    }

    /// The offset in the text of an offset that a parser of the last part found.
    fn place_in_text(&self, part: &[Extent], at: usize) -> usize {
        let sequence = self.moved.partition_point(|moved| moved.start <= at).checked_sub(1);
        sequence.map_or(at, |sequence| part[sequence].start + (at - self.moved[sequence].start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::PackedReader;
    use std::ops::Range;

    /// The access points of a text that is not read.
    struct Points(Vec<usize>);

    impl Packed for Points {
        fn size(&self) -> usize {
            usize::MAX
        }

        fn points_between(&self, range: Range<usize>) -> Vec<usize> {
            self.0.iter().copied().filter(|point| range.contains(point)).collect()
        }

        fn reader(&self) -> PackedReader<'_> {
            unreachable!("the text is not read")
        }
    }

    #[test]
    fn no_piece_has_more_text_than_a_block_counts() {
        let sequences: Vec<Extent> =
            (0..40).map(|number| Extent { start: number << 30, end: (number + 1) << 30, length: 1 }).collect();
        for points in [vec![], vec![5 << 30, 7 << 30, 30 << 30], (1..40).map(|number| number << 30).collect()] {
            let pieces = at_access_points(&sequences, &Points(points), 20 << 30);
            assert_eq!(pieces.concat(), sequences);
            assert!(pieces.iter().all(|piece| piece.iter().map(num_bytes).sum::<usize>() <= MOST_PIECE_BYTES));
        }
    }
}
