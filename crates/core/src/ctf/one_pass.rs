//! Index and parser in one pass: a file that is opened without an index is read once.
//!
//! 1. [`chunk_borders`] reads around the place where each chunk should end, and finds where it does end.
//! 2. [`index_chunks`] indexes and parses each chunk in pieces, part by part while the text is in the cache. If each line
//!    is a sequence, the ends of the lines that the parser reaches are the index, and so are other ids on lines of one-hot
//!    samples; other lines with ids are scanned first.
//!
//! Only text without a fault comes this way. A chunk with any finding is left to the index and the parser, which know
//! its lines and can tell where it is wrong.

use super::builder::{Builder, builders, finish};
use super::index::{Scan, scan};
use super::parse::Parser;
use super::pieces::MOST_PIECE_BYTES;
use super::{Findings, Mode, Schema};
use crate::chunk::{Block, Chunk, Pool, expect};
use crate::memory;
use crate::parallel;
use crate::text::{Text, Unread};
use memchr::memchr;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes before and after an offset in which a sequence's start is looked for, at first and at last.
const LOOK_AROUND_BYTES: [usize; 2] = [1 << 15, 1 << 19];

/// The last sequence that starts at `at` or before, if the text around that offset shows it. The first sequence starts
/// at `first`.
fn last_start(text: Text, first: usize, at: usize, mode: Mode) -> io::Result<Option<usize>> {
    for around in LOOK_AROUND_BYTES {
        let range = at.saturating_sub(around)..at.saturating_add(around);
        let Some((offset, lines)) = text.lines_within(first, range)? else { continue };
        // The line at `at` has no end in this range.
        if offset + lines.len() <= at {
            continue;
        }
        // The index reports an id beyond 64 bits, with its place.
        let Ok(scan) = scan(&lines, mode, None) else { return Ok(None) };
        // The first lines may belong to a sequence that started before them.
        let num_unsure = usize::from(mode == Mode::Ids && offset != first);
        let starts = scan.starts.iter().skip(num_unsure).map(|&start| offset + start as usize);
        if let Some(start) = starts.take_while(|&start| start <= at).last() {
            return Ok(Some(start));
        }
    }
    Ok(None)
}

/// The offsets where the chunks of a text begin and, last, where the last chunk ends. The chunks are as in
/// [`place`](super::place) if no sequence is left out. Stops at the first border that the text around it
/// does not show.
///
/// # Errors
/// The text cannot be read.
pub fn chunk_borders(text: Text, first: usize, limit: usize, mode: Mode) -> io::Result<Vec<usize>> {
    let mut borders = vec![first];
    let mut start = first;
    while start < text.size {
        let end = start.saturating_add(limit);
        let border = if end >= text.size { Some(text.size) } else { last_start(text, start, end, mode)? };
        // If the first sequence alone exceeds the limit, the last start is the beginning of the chunk itself.
        let Some(border) = border.filter(|&border| border > start) else { break };
        borders.push(border);
        start = border;
    }
    Ok(borders)
}

/// From this many chunks a thread on, chunks are not cut into pieces: there are enough of them to keep all threads
/// busy, and large columns are cheaper than small columns.
const MANY_CHUNKS: usize = 4;

/// A chunk that was indexed and parsed: the scan of each of its pieces, with starts that count from the beginning of
/// the text, and the chunk.
pub type IndexedChunk = (Vec<Scan>, Chunk);

/// The settings of a pass over a text.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    /// The text.
    pub text: Text<'a>,
    /// Rule by which lines are grouped into sequences.
    pub mode: Mode,
    /// The streams. None of them defines the size, and ids are not words.
    pub schema: &'a Schema,
    /// Bytes that are read at once.
    pub part_size: usize,
    /// Memory to use again.
    pub pool: Option<&'a Arc<Pool>>,
    /// A byte that the text of a parsed chunk must not contain.
    pub excluded: Option<u8>,
}

/// Index and parse the chunks between borders of a text, each in at most `num_pieces`, on all threads of the current
/// pool. A chunk with any error or warning, or with the excluded byte, is `None`.
///
/// # Errors
/// The text cannot be read.
pub fn index_chunks(pass: Pass, borders: &[usize], num_pieces: usize) -> io::Result<Vec<Option<IndexedChunk>>> {
    let num_pieces = if borders.len() > MANY_CHUNKS * num_pieces { 1 } else { num_pieces };
    let mut pieces = Vec::new();
    for (chunk, border) in borders.windows(2).enumerate() {
        let (mut begin, end) = (border[0], border[1]);
        let text = Text { size: end, ..pass.text };
        let size = end - begin;
        // A block cannot count the samples of more than `MOST_PIECE_BYTES`, so a larger chunk is cut in any case.
        let num_pieces = num_pieces.min(size / pass.part_size + 1).max(size / MOST_PIECE_BYTES + 1);
        for piece in 1..num_pieces {
            let middle = border[0] + size / num_pieces * piece;
            if let Some(cut) = last_start(text, begin, middle, pass.mode)?.filter(|&cut| cut > begin) {
                pieces.push((chunk, piece, begin..cut));
                begin = cut;
            }
        }
        pieces.push((chunk, num_pieces, begin..end));
    }
    // Each thread begins with an equal share of the list. The first pieces of all chunks come first in the list, then
    // all second pieces, so each thread also gets its share of a smaller last chunk. The pieces of a chunk stay in
    // order.
    pieces.sort_by_key(|&(_, piece, _)| piece);
    let indexed = parallel::map(pieces.len(), |number| pass.piece(pieces[number].2.clone()));
    let mut chunks: Vec<Option<(Vec<_>, Vec<_>)>> = borders.windows(2).map(|_| Some(Default::default())).collect();
    for ((chunk, ..), indexed) in pieces.into_iter().zip(indexed) {
        match (&mut chunks[chunk], indexed?) {
            (Some((scans, blocks)), Some((scan, block))) => {
                scans.push(scan);
                blocks.push(block);
            }
            (chunk, _) => *chunk = None,
        }
    }
    let finished = |(scans, blocks)| (scans, Chunk::new(blocks).of_pool(pass.pool));
    Ok(chunks.into_iter().map(|chunk| chunk.map(finished)).collect())
}

impl Pass<'_> {
    /// Index and parse the text from one sequence's start to another's; `None` if there is any finding.
    fn piece(self, range: Range<usize>) -> io::Result<Option<(Scan, Block)>> {
        if range.len() > MOST_PIECE_BYTES {
            return Ok(None); // no sequence's start was found where it should be cut
        }
        let text = Text { size: range.end, ..self.text };
        let mut blocks = text.blocks(range.clone(), self.part_size);
        let mut piece = Piece {
            size: range.len(),
            // Without a budget, and with warnings as errors, the first finding of any kind stops the parser.
            findings: Findings::new(0, true),
            builders: builders(self.schema, 0, self.pool.and_then(|pool| pool.take())),
            scan: Scan::default(),
        };
        loop {
            let (offset, lines) = match blocks.next_block() {
                Ok(Some(block)) => block,
                Ok(None) => break,
                Err(Unread::Failed(error)) => return Err(error),
                // The index reports the line, with its place.
                Err(Unread::LongLine(_)) => return Ok(None),
            };
            let is_last = offset + lines.len() == range.end;
            match piece.take(self, offset, lines, is_last) {
                Some(num_taken) if is_last || num_taken == lines.len() => {}
                Some(num_taken) => blocks.go_back(offset + num_taken),
                None => return Ok(None),
            }
        }
        let num_sequences = piece.scan.starts.len();
        Ok(Some((piece.scan, finish(num_sequences, piece.builders))))
    }
}

/// A piece under construction.
struct Piece {
    size: usize,
    findings: Findings,
    builders: Vec<Builder>,
    scan: Scan,
}

impl Piece {
    /// Index and parse lines. Unless they are the last lines, leave out a last sequence that may continue. Returns the
    /// number of bytes that were taken; `None` if there is a finding.
    fn take(&mut self, pass: Pass, offset: usize, lines: &[u8], is_last: bool) -> Option<usize> {
        if pass.excluded.is_some_and(|byte| memchr(byte, lines).is_some()) {
            return None;
        }
        let is_first = self.scan.starts.is_empty();
        let num_taken = match pass.mode {
            Mode::Lines => self.take_lines(pass, offset, lines)?,
            Mode::Ids => self.take_ids(pass, offset, lines, is_last)?,
        };
        if num_taken > 0 {
            let ratio = self.size as f64 / num_taken as f64;
            self.builders.iter_mut().for_each(|builder| builder.end_part(pass.schema.is_compact, ratio));
            if is_first {
                let all = &mut self.scan;
                expect(&mut all.keys, ratio);
                expect(&mut all.starts, ratio);
                expect(&mut all.lines, ratio);
            }
        }
        Some(num_taken)
    }

    /// Parse lines that are a sequence each: the parser finds where they end, so they are not scanned before.
    fn take_lines(&mut self, pass: Pass, offset: usize, lines: &[u8]) -> Option<usize> {
        let all = &mut self.scan;
        Parser::new(lines, offset, pass.schema, &mut self.builders, &mut self.findings)
            .sequences_of_lines(&mut all.starts)
            .ok()?;
        memory::resize(&mut all.lines, all.starts.len(), 1);
        Some(lines.len())
    }

    /// Scan and parse lines whose ids tell the sequences.
    fn take_ids(&mut self, pass: Pass, offset: usize, lines: &[u8], is_last: bool) -> Option<usize> {
        let mut parser = Parser::new(lines, offset, pass.schema, &mut self.builders, &mut self.findings);
        // The parser finds sequences of simple lines by itself. The others are scanned before.
        let begin = parser.sequences_of_ids(&mut self.scan);
        let (offset, lines) = (offset + begin, &lines[begin..]);
        let mut found = scan(lines, pass.mode, None).ok()?;
        let end = if is_last { lines.len() } else { found.pop().unwrap_or(0) as usize };
        // Only the index can leave out a sequence, or add lines to the sequence before the chunk.
        if found.head_lines > 0 || !found.hollow.is_empty() || (is_last && found.starts.is_empty()) {
            return None;
        }
        let all = &mut self.scan;
        parser.sequences(&found.extents(offset, end), all.starts.len()).ok()?;
        memory::append(&mut all.keys, &found.keys);
        memory::extend(&mut all.starts, found.starts.iter().map(|start| offset as u64 + start));
        memory::append(&mut all.lines, &found.lines);
        Some(begin + end)
    }
}
