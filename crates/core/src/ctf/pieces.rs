//! Pieces: a chunk's text is divided among threads, and each piece is read and parsed part by part.

use super::builder::{builders, finish};
use super::parse::Parser;
use super::{Extent, Findings, Schema, Text};
use crate::chunk::{Block, Chunk, Pool};
use cntkio_simd::Kernel;
use rayon::prelude::*;
use std::sync::Arc;

/// How a chunk's text is cut, in bytes, at the ends of sequences.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// What one thread parses into one block.
    pub piece: usize,
    /// What is read at once, and parsed while it is in the cache.
    pub part: usize,
}

/// Parse the sequences' bytes into a chunk, on all threads of the current pool if there is more than one piece.
///
/// The result is that of one piece, whatever the number of threads: a piece whose errors the pieces before it left
/// no budget for is parsed again with what they left, and so stops where a single parser would have stopped.
///
/// # Errors
/// The text cannot be read.
pub fn parse_chunk(
    text: Text,
    sequences: &[Extent],
    schema: &Schema,
    budget: u64,
    is_strict: bool,
    cut: Cut,
    pool: Option<&Arc<Pool>>,
) -> std::io::Result<(Chunk, Findings)> {
    let pieces: Vec<&[Extent]> = in_pieces(sequences, cut.piece).collect();
    let parse_piece = |piece: &[Extent], budget| {
        let mut findings = Findings::new(budget, is_strict);
        let spare = pool.and_then(|pool| pool.take());
        parse_piece(text, piece, schema, &mut findings, cut.part, spare).map(|block| (block, findings))
    };
    // A single piece is not handed to another thread, which takes as long as some lines.
    let parsed: Vec<_> = match pieces[..] {
        [piece] => vec![parse_piece(piece, budget)],
        _ => pieces.par_iter().map(|piece| parse_piece(piece, budget)).collect(),
    };
    let mut all = Findings::new(budget, is_strict);
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
    let chunk = Chunk::new(blocks);
    Ok((if let Some(pool) = pool { chunk.of_pool(Arc::clone(pool)) } else { chunk }, all))
}

/// The most bytes of a piece with several sequences. A block counts its samples and entries in 32 bits, and each takes
/// more than one byte of text.
pub(super) const MOST_PIECE_BYTES: usize = u32::MAX as usize;

/// Cut sequences into pieces of about `size` bytes, each of at least one sequence.
fn in_pieces(sequences: &[Extent], size: usize) -> impl Iterator<Item = &[Extent]> {
    let size = size.min(MOST_PIECE_BYTES);
    let mut rest = sequences;
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let count = rest.iter().take_while(|extent| extent.end.saturating_sub(first.start) <= size).count().max(1);
        let (piece, behind) = rest.split_at(count);
        rest = behind;
        Some(piece)
    })
}

/// Parse the sequences' bytes into a block. Extents that do not lie in `bytes` are taken as far as they do.
///
/// If `findings` has a last straw afterwards, the block holds the sequences before it and is of no use.
pub fn parse(bytes: &[u8], sequences: &[Extent], schema: &Schema, findings: &mut Findings) -> Block {
    parse_with(Kernel::selected(), bytes, sequences, schema, findings)
}

/// The same with a certain kernel, which changes nothing but time.
pub fn parse_with(
    kernel: Kernel,
    bytes: &[u8],
    sequences: &[Extent],
    schema: &Schema,
    findings: &mut Findings,
) -> Block {
    let mut builders = builders(schema, sequences.len(), None);
    let mut parser = Parser::new(bytes, 0, schema, &mut builders, findings);
    parser.kernel = kernel;
    // What stopped it is the last straw among the findings.
    let _ = parser.sequences(sequences, 0);
    finish(sequences.len(), builders)
}

fn parse_piece(
    text: Text,
    sequences: &[Extent],
    schema: &Schema,
    findings: &mut Findings,
    part_size: usize,
    spare: Option<Block>,
) -> std::io::Result<Block> {
    let mut builders = builders(schema, sequences.len(), spare);
    let read = match text {
        Text::Here(bytes) => {
            let mut parser = Parser::new(bytes, 0, schema, &mut builders, findings);
            let _ = parser.sequences(sequences, 0);
            builders.iter_mut().for_each(|builder| builder.end_part(schema.is_compact, 1.0));
            return Ok(finish(sequences.len(), builders));
        }
        Text::Read(read) => read,
    };
    let first_byte = sequences.first().map_or(0, |first| first.start);
    let last_byte = sequences.last().map_or(0, |last| last.end);
    let mut buffer = Vec::new();
    let mut number = 0;
    for part in in_pieces(sequences, part_size) {
        let (begin, end) = (part[0].start, part[part.len() - 1].end);
        let size = end.saturating_sub(begin);
        if buffer.len() < size {
            buffer.resize(size.max(part_size), 0);
        }
        let bytes = &mut buffer[..size];
        read(begin, bytes)?;
        if Parser::new(bytes, begin, schema, &mut builders, findings).sequences(part, number).is_err() {
            break;
        }
        let ratio = (last_byte - first_byte) as f64 / size.max(1) as f64;
        builders.iter_mut().for_each(|builder| builder.end_part(schema.is_compact, ratio));
        number += part.len();
    }
    Ok(finish(sequences.len(), builders))
}
