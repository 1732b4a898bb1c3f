//! Pieces: a chunk's text is divided among threads, and each piece is read and parsed part by part.
//!
//! ```text
//! chunk   ├── piece, one thread, one block ──┼── piece ──────────────────────┤
//!         ├─ part, read at once ─┼─ part ────┼─ part ───────────────┼─ part ──┤      all cut between sequences
//! ```

use super::builder::{builders, finish};
use super::parse::Parser;
use super::{Extent, Findings, Schema};
use crate::chunk::{Block, Chunk, Pool};
use crate::text::Text;
use cntkio_simd::Kernel;
use rayon::prelude::*;
use std::sync::Arc;

/// The text of a chunk.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// All of it in memory.
    Memory(&'a [u8]),
    /// To be read.
    File(Text<'a>),
}

/// Sizes of the parts of a chunk's text, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// Text that a thread parses into a block.
    pub piece: usize,
    /// Text that is read at once, and parsed while it is in the cache.
    pub part: usize,
}

/// Parse the sequences' text into a chunk, on all threads of the current pool if there is more than one piece.
///
/// The findings do not depend on the cut. Every piece starts with the whole budget; a piece with more errors than the
/// pieces before it have left is parsed again with what is left, so that it stops where a single parser would stop.
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
    let pieces: Vec<&[Extent]> = in_pieces(sequences, cut.piece).collect();
    let parse_piece = |piece: &[Extent], budget| {
        let mut findings = Findings::new(budget, is_strict).in_full(schema.keeps_findings);
        let spare = pool.and_then(|pool| pool.take());
        parse_piece(source, piece, schema, &mut findings, cut.part, spare).map(|block| (block, findings))
    };
    // To hand a single piece to another thread would take as long as to parse some lines.
    let parsed: Vec<_> = match pieces[..] {
        [piece] => vec![parse_piece(piece, budget)],
        _ => pieces.par_iter().map(|piece| parse_piece(piece, budget)).collect(),
    };
    let mut all = Findings::new(budget, is_strict).in_full(schema.keeps_findings);
    let mut blocks = Vec::with_capacity(pieces.len());
    let mut first_sequence = 0;
    for (piece, parsed) in pieces.iter().zip(parsed) {
        let (mut block, mut findings) = parsed?;
        if findings.num_errors() > all.budget {
            (block, findings) = parse_piece(piece, all.budget)?;
        }
        all.append(&findings, first_sequence);
        first_sequence += piece.len();
        blocks.push(block);
        if all.last_straw.is_some() {
            break;
        }
    }
    Ok((Chunk::new(blocks).of_pool(pool), all))
}

/// The most bytes of a piece of several sequences: a block counts its samples and entries in 32 bits, and each of them
/// takes more than one byte of text.
pub(super) const MOST_PIECE_BYTES: usize = u32::MAX as usize;

/// Cut sequences into pieces of about `size` bytes, at least one sequence each.
fn in_pieces(sequences: &[Extent], size: usize) -> impl Iterator<Item = &[Extent]> {
    let size = size.min(MOST_PIECE_BYTES);
    let mut rest = sequences;
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let count = rest.iter().take_while(|extent| extent.end.saturating_sub(first.start) <= size).count().max(1);
        rest.split_off(..count)
    })
}

/// Parse the sequences' text into a block. Extents are clipped to `bytes`.
///
/// If `findings` has a last straw afterwards, the block is incomplete.
pub fn parse(bytes: &[u8], sequences: &[Extent], schema: &Schema, findings: &mut Findings) -> Block {
    parse_with(Kernel::selected(), bytes, sequences, schema, findings)
}

/// [`parse`] with a certain kernel, which makes no difference but in time.
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
    // If it stops, the findings have a last straw.
    let _ = parser.sequences(sequences, 0);
    finish(sequences.len(), builders)
}

fn parse_piece(
    source: Source,
    sequences: &[Extent],
    schema: &Schema,
    findings: &mut Findings,
    part_size: usize,
    spare: Option<Block>,
) -> std::io::Result<Block> {
    let mut builders = builders(schema, sequences.len(), spare);
    let text = match source {
        Source::Memory(bytes) => {
            let mut parser = Parser::new(bytes, 0, schema, &mut builders, findings);
            let _ = parser.sequences(sequences, 0);
            builders.iter_mut().for_each(|builder| builder.end_part(schema.is_compact, 1.0));
            return Ok(finish(sequences.len(), builders));
        }
        Source::File(text) => text,
    };
    let first_byte = sequences.first().map_or(0, |first| first.start);
    let last_byte = sequences.last().map_or(0, |last| last.end);
    let mut buffer = Vec::new();
    let mut number = 0;
    for part in in_pieces(sequences, part_size) {
        let (begin, end) = (part[0].start, part[part.len() - 1].end);
        let bytes = text.read_into(&mut buffer, begin, end)?;
        let ratio = (last_byte - first_byte) as f64 / bytes.len().max(1) as f64;
        if Parser::new(bytes, begin, schema, &mut builders, findings).sequences(part, number).is_err() {
            break;
        }
        builders.iter_mut().for_each(|builder| builder.end_part(schema.is_compact, ratio));
        number += part.len();
    }
    Ok(finish(sequences.len(), builders))
}
