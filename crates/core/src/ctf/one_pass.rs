//! Index and parser in one pass: a file that is read for the first time is read once.

use super::builder::{builders, finish};
use super::index::{Scan, scan};
use super::parse::Parser;
use super::pieces::MOST_PIECE_BYTES;
use super::{Extent, Findings, Mode, Read, Schema};
use crate::chunk::{Block, Chunk, Pool, expect};
use memchr::{memchr, memrchr};
use rayon::prelude::*;
use std::sync::Arc;

/// How far before and behind a position a sequence's start is looked for, at first and at last.
const LOOK_AROUND: [usize; 2] = [1 << 15, 1 << 19];

/// The last sequence that starts at `at` or before, in text of `size` bytes whose first sequence starts at `first`;
/// `None` if the text around does not tell.
fn last_start(read: Read, first: usize, at: usize, size: usize, mode: Mode) -> std::io::Result<Option<usize>> {
    for around in LOOK_AROUND {
        let begin = at.saturating_sub(around).max(first);
        let mut bytes = vec![0; at.saturating_add(around).min(size) - begin];
        read(begin, &mut bytes)?;
        let is_first = begin == first;
        let from = if is_first { Some(0) } else { memchr(b'\n', &bytes).map(|at| at + 1) };
        let to = if begin + bytes.len() == size { Some(bytes.len()) } else { memrchr(b'\n', &bytes).map(|at| at + 1) };
        let (Some(from), Some(to)) = (from, to) else { continue };
        if from >= to || begin + to <= at {
            continue;
        }
        let Ok(scan) = scan(&bytes[from..to], mode, None) else { return Ok(None) };
        // What the first lines belong to may have begun before.
        let num_unsure = usize::from(mode == Mode::Ids && !is_first);
        let starts = scan.starts.iter().skip(num_unsure).map(|&start| begin + from + start as usize);
        if let Some(start) = starts.take_while(|&start| start <= at).last() {
            return Ok(Some(start));
        }
    }
    Ok(None)
}

/// Where the chunks of a text begin and, last, where they end, as [`chunk_starts`] would cut it if all sequences were
/// kept; up to the first that the text around its end does not tell.
///
/// # Errors
/// The text cannot be read.
pub fn chunk_borders(read: Read, first: usize, size: usize, limit: usize, mode: Mode) -> std::io::Result<Vec<usize>> {
    let mut borders = vec![first];
    let mut start = first;
    while start < size {
        let end = start.saturating_add(limit);
        let border = if end >= size { Some(size) } else { last_start(read, start, end, size, mode)? };
        let Some(border) = border.filter(|&border| border > start) else { break };
        borders.push(border);
        start = border;
    }
    Ok(borders)
}

/// Chunks for each thread from which on none is cut into pieces.
const MANY_CHUNKS: usize = 4;

/// A chunk that was indexed and parsed in one pass: its sequences, found in pieces that start at these positions, and
/// what is in them.
pub type IndexedChunk = (Vec<(usize, Scan)>, Chunk);

/// Index and parse the chunks between some borders of a text, each in up to `num_pieces`, on all threads of the current
/// pool.
///
/// `None` for a chunk in which anything was met that is worth a word: what [`scan`] and [`parse_chunk`] say of it
/// counts.
///
/// # Errors
/// The text cannot be read.
pub fn index_chunks(
    read: Read,
    borders: &[usize],
    mode: Mode,
    schema: &Schema,
    num_pieces: usize,
    part_size: usize,
    pool: Option<&Arc<Pool>>,
) -> std::io::Result<Vec<Option<IndexedChunk>>> {
    // Many chunks keep all threads busy as they are, and large columns are cheaper than small ones.
    let num_pieces = if borders.len() > MANY_CHUNKS * num_pieces { 1 } else { num_pieces };
    let mut pieces = Vec::new();
    for (chunk, border) in borders.windows(2).enumerate() {
        let (mut begin, end) = (border[0], border[1]);
        let num_pieces = num_pieces.min((end - begin) / part_size + 1).max((end - begin) / MOST_PIECE_BYTES + 1);
        for piece in 1..num_pieces {
            let middle = border[0] + (end - border[0]) / num_pieces * piece;
            if let Some(cut) = last_start(read, begin, middle, end, mode)?.filter(|&cut| cut > begin) {
                pieces.push((chunk, begin, cut));
                begin = cut;
            }
        }
        pieces.push((chunk, begin, end));
    }
    let index = |&(_, begin, end): &(usize, usize, usize)| {
        index_piece(read, begin, end, mode, schema, part_size, pool.and_then(|pool| pool.take()))
    };
    let indexed = pieces.par_iter().map(index).collect::<std::io::Result<Vec<_>>>()?;
    let mut made: Vec<Option<(Vec<_>, Vec<_>)>> = borders.windows(2).map(|_| Some(Default::default())).collect();
    for ((chunk, begin, _), indexed) in pieces.into_iter().zip(indexed) {
        match (&mut made[chunk], indexed) {
            (Some((scans, blocks)), Some((scan, block))) => {
                scans.push((begin, scan));
                blocks.push(block);
            }
            (sound, _) => *sound = None,
        }
    }
    let chunk = |blocks| {
        let chunk = Chunk::new(blocks);
        if let Some(pool) = pool { chunk.of_pool(Arc::clone(pool)) } else { chunk }
    };
    Ok(made.into_iter().map(|made| made.map(|(scans, blocks)| (scans, chunk(blocks)))).collect())
}

/// Index and parse the text from a sequence's start to another's; `None` if anything was met that is worth a word.
fn index_piece(
    read: Read,
    begin: usize,
    end: usize,
    mode: Mode,
    schema: &Schema,
    part_size: usize,
    spare: Option<Block>,
) -> std::io::Result<Option<(Scan, Block)>> {
    if end - begin > MOST_PIECE_BYTES.saturating_mul(2) {
        return Ok(None); // no sequence's start was found where it could be cut
    }
    let mut findings = Findings::new(0, true);
    let mut builders = builders(schema, 0, spare);
    let mut all = Scan::default();
    let mut buffer = Vec::new();
    let (mut at, mut wanted) = (begin, part_size);
    while at < end {
        let size = wanted.min(end - at);
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        let bytes = &mut buffer[..size];
        read(at, bytes)?;
        let is_last = at + size == end;
        let num_whole = if is_last { size } else { memrchr(b'\n', bytes).map_or(0, |at| at + 1) };
        let Ok(mut found) = scan(&bytes[..num_whole], mode, None) else { return Ok(None) };
        let mut part_end = num_whole;
        if mode == Mode::Ids && !is_last {
            // The last sequence may go on.
            part_end = found.starts.pop().unwrap_or(0) as usize;
            found.keys.pop();
            found.lines.pop();
        }
        if found.head_lines > 0 || (is_last && found.starts.is_empty()) {
            return Ok(None);
        }
        if found.starts.is_empty() {
            wanted = wanted.saturating_mul(2);
            continue;
        }
        let ends = found.starts.iter().skip(1).map(|&start| start as usize).chain([part_end]);
        let extents: Vec<Extent> = std::iter::zip(&found.starts, ends)
            .zip(&found.lines)
            .map(|((&start, end), &length)| Extent { start: at + start as usize, end: at + end, length })
            .collect();
        let parsed = Parser::new(bytes, at, schema, &mut builders, &mut findings).sequences(&extents, all.starts.len());
        if parsed.is_err() {
            return Ok(None);
        }
        let ratio = (end - begin) as f64 / part_end as f64;
        builders.iter_mut().for_each(|builder| builder.end_part(schema.is_compact, ratio));
        all.keys.append(&mut found.keys);
        all.starts.extend(found.starts.iter().map(|start| (at - begin) as u64 + start));
        all.lines.append(&mut found.lines);
        if at == begin {
            expect(&mut all.keys, ratio);
            expect(&mut all.starts, ratio);
            expect(&mut all.lines, ratio);
        }
        at += part_end;
        wanted = part_size;
    }
    let num_sequences = all.starts.len();
    Ok(Some((all, finish(num_sequences, builders))))
}
