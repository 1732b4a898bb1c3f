//! The CNTK text format.

use crate::chunk::Chunk;
use crate::compressed::{PackedText, Rest, read_error};
use crate::file::{TextArgument, TextSource};
use crate::lengths::LengthsArray;
use crate::pool::{detached, pool};
use cntkio_core::chunk::Pool;
use cntkio_core::ctf::{self, Cut, Extent, Finding, Mode, NulInWord, Pass, Schema, Source, Stream, Unindexed};
use cntkio_core::keys::padded;
use cntkio_core::lengths::Lengths;
use cntkio_core::memory;
use cntkio_core::text::{Packed as _, Text};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// Size of the parts in which text is read: a part and its values fit a core's cache.
const PART_BYTES: usize = 512 << 10;

/// The sequences of a part of a text: their keys, offsets and numbers of lines.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct CTFScan {
    /// Lines before the first id.
    num_head_lines: u32,
    keys: Py<PyArray1<u64>>,
    offsets: Py<PyArray1<u64>>,
    lengths: Py<PyArray1<u32>>,
    /// Offsets of the sequences whose first line is blank or contains only comments.
    hollow: Py<PyArray1<u64>>,
    /// Offset of an id of 2^64 or more. The scan then has no sequences.
    overflow: Option<u64>,
    /// Offset of a line of 4 GiB or more. The scan then has no sequences.
    long_line: Option<u64>,
}

/// Find the sequences of the lines that start in a part of an open file. `first` is the position of the file's first
/// line, `share` the number of bytes that a thread scans at a time.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub(crate) fn ctf_index(
    py: Python<'_>,
    text: TextArgument<'_>,
    first: usize,
    part: (usize, usize),
    in_lines: bool,
    defining: Option<Vec<u8>>,
    share: usize,
    num_threads: usize,
) -> PyResult<CTFScan> {
    let source = text.source()?;
    let read = |at: usize, buffer: &mut [u8]| source.read(buffer, at as u64);
    let mode = if in_lines { Mode::Lines } else { Mode::Ids };
    let text = Text { size: source.end() as usize, read: &read };
    let part = part.0.max(first)..part.1.min(text.size);
    let pool = pool(num_threads)?;
    let index = || ctf::index(text, first, part, mode, defining.as_deref(), share.max(1));
    let (scan, overflow, long_line) = match detached(py, || pool.install(index))? {
        Ok(scan) => (scan, None, None),
        Err(Unindexed::Overflow(overflow)) => (ctf::Scan::default(), Some(overflow.at), None),
        Err(Unindexed::LongLine { at }) => (ctf::Scan::default(), None, Some(at)),
        Err(Unindexed::Unread(error)) => return Err(error.into()),
    };
    Ok(CTFScan { overflow, long_line, ..as_arrays(py, scan) })
}

/// For each sequence between two offsets of an open file: true if all of its lines are blank or contain only comments.
#[pyfunction]
pub(crate) fn ctf_are_nothing(
    py: Python<'_>,
    text: TextArgument<'_>,
    begins: PyReadonlyArray1<'_, u64>,
    ends: PyReadonlyArray1<'_, u64>,
    num_threads: usize,
) -> PyResult<Vec<bool>> {
    let source = text.source()?;
    let read = |at: usize, buffer: &mut [u8]| source.read(buffer, at as u64);
    let text = Text { size: source.end() as usize, read: &read };
    let bounds = std::iter::zip(begins.as_slice()?, ends.as_slice()?);
    let ranges: Vec<_> = bounds.map(|(&begin, &end)| begin as usize..end as usize).collect();
    let pool = pool(num_threads)?;
    Ok(detached(py, || pool.install(|| ctf::are_nothing(text, &ranges)))??)
}

/// The sizes in bytes of adjacent sequences, the last of which ends at `end`; or the first sequence of 4 GiB or more.
#[pyfunction]
pub(crate) fn ctf_sizes<'py>(
    py: Python<'py>,
    starts: PyReadonlyArray1<'py, u64>,
    end: u64,
) -> PyResult<(Bound<'py, PyArray1<u32>>, Option<usize>)> {
    let starts = starts.as_slice()?;
    let (sizes, too_long) = match detached(py, || ctf::sizes(starts, end))? {
        Ok(sizes) => (sizes, None),
        Err(too_long) => (Vec::new(), Some(too_long)),
    };
    Ok((sizes.into_pyarray(py), too_long))
}

fn as_arrays(py: Python<'_>, scan: ctf::Scan) -> CTFScan {
    CTFScan {
        num_head_lines: scan.head_lines,
        keys: scan.keys.into_pyarray(py).unbind(),
        offsets: scan.starts.into_pyarray(py).unbind(),
        lengths: scan.lines.into_pyarray(py).unbind(),
        hollow: scan.hollow.into_pyarray(py).unbind(),
        overflow: None,
        long_line: None,
    }
}

/// The streams of a text corpus, and its other properties that the parser needs.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct CTFSchema {
    inner: Schema,
}

#[pymethods]
impl CTFSchema {
    /// `streams`: name in the file, whether it is sparse, dimension, whether it is in double precision.
    #[new]
    #[pyo3(signature = (streams, *, defining=None, has_words=false, is_compact=false, is_subset=false, keeps_findings=false, notes_unknown_names=false))]
    fn new(
        streams: Vec<(Vec<u8>, bool, usize, bool)>,
        defining: Option<usize>,
        has_words: bool,
        is_compact: bool,
        is_subset: bool,
        keeps_findings: bool,
        notes_unknown_names: bool,
    ) -> CTFSchema {
        let stream = |(name, is_sparse, dim, is_double)| Stream { name, is_sparse, dim, is_double };
        let streams = streams.into_iter().map(stream).collect();
        CTFSchema {
            inner: Schema { streams, defining, has_words, is_compact, is_subset, keeps_findings, notes_unknown_names },
        }
    }
}

/// Number of lines before the first word; the words padded with zeros to a common width, and that width; start and
/// number of lines of each sequence; offset of a NUL byte in a word, and no sequences then.
type WordScanArrays<'py> =
    (u32, (Bound<'py, PyArray1<u8>>, usize), Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<u32>>, Option<usize>);

/// Find the sequences that start in a block of whole lines, whose ids are words.
#[pyfunction]
pub(crate) fn ctf_scan_words<'py>(
    py: Python<'py>,
    block: PyReadonlyArray1<'py, u8>,
    defining: Option<Vec<u8>>,
) -> PyResult<WordScanArrays<'py>> {
    let block = block.as_slice()?;
    let (scan, nul) = match detached(py, || ctf::scan_words(block, defining.as_deref()))? {
        Ok(scan) => (scan, None),
        Err(NulInWord(at)) => (ctf::WordScan::default(), Some(at)),
    };
    let (words, width) = detached(py, || padded(&scan.words, &scan.word_ends))?;
    let words = (words.into_pyarray(py), width);
    Ok((scan.head_lines, words, scan.starts.into_pyarray(py), scan.lines.into_pyarray(py), nul))
}

/// The first sequence of each chunk and, last, the number of sequences.
#[pyfunction]
pub(crate) fn ctf_chunk_starts<'py>(
    py: Python<'py>,
    starts: PyReadonlyArray1<'py, u64>,
    sizes: PyReadonlyArray1<'py, u32>,
    chunk_size_in_bytes: u64,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let (starts, sizes) = (starts.as_slice()?, sizes.as_slice()?);
    Ok(detached(py, || ctf::chunk_starts(starts, sizes, chunk_size_in_bytes))?.into_pyarray(py))
}

/// First byte of each chunk, end of each chunk, start of each sequence from the first byte of its chunk on (of 32 bits,
/// or else of 64), and whether each sequence ends where the next one of its chunk starts.
type PlacesTuple<'py> = (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<u64>>, Bound<'py, PyAny>, bool);

/// The places of the sequences of each chunk in the text. `chunk_starts` is a result of [`ctf_chunk_starts`].
#[pyfunction]
pub(crate) fn ctf_places<'py>(
    py: Python<'py>,
    offsets: PyReadonlyArray1<'py, u64>,
    sizes: PyReadonlyArray1<'py, u32>,
    chunk_starts: PyReadonlyArray1<'py, i64>,
    num_threads: usize,
) -> PyResult<PlacesTuple<'py>> {
    let (offsets, sizes, chunk_starts) = (offsets.as_slice()?, sizes.as_slice()?, chunk_starts.as_slice()?);
    let pool = pool(num_threads)?;
    let places = detached(py, || pool.install(|| ctf::places(offsets, sizes, chunk_starts)))?;
    let starts = if places.starts.len() == offsets.len() {
        places.starts.into_pyarray(py).into_any()
    } else {
        let chunks = chunk_starts.windows(2).map(|pair| &offsets[pair[0] as usize..pair[1] as usize]);
        let starts: Vec<u64> = chunks.flat_map(|chunk| chunk.iter().map(|start| start - chunk[0])).collect();
        starts.into_pyarray(py).into_any()
    };
    let (begins, ends) = (places.chunk_begins.into_pyarray(py), places.chunk_ends.into_pyarray(py));
    Ok((begins, ends, starts, places.has_no_gaps))
}

/// Starts of sequences, of 32 or 64 bits.
#[derive(FromPyObject)]
pub(crate) enum Starts<'py> {
    Short(PyReadonlyArray1<'py, u32>),
    Long(PyReadonlyArray1<'py, u64>),
}

/// Memory of released chunks, kept for later chunks.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct Spare {
    pub(crate) pool: Arc<Pool>,
}

#[pymethods]
impl Spare {
    /// Keep at most `limit` bytes.
    #[new]
    fn new(limit: usize) -> Spare {
        Spare { pool: Arc::new(Pool::new(limit)) }
    }
}

/// The text of a chunk, compressed or not.
#[derive(FromPyObject)]
pub(crate) enum ChunkText<'py> {
    Plain(TextArgument<'py>),
    Packed(PackedText<'py>),
}

impl ChunkText<'_> {
    /// The source of the text, or the compressed data.
    fn source(&self) -> PyResult<TextSource<'_>> {
        match self {
            ChunkText::Plain(text) => text.source(),
            ChunkText::Packed(text) => text.source(),
        }
    }
}

/// Kind, offset in the text, sequence, stream or None, and the number in the text.
type FindingTuple = (u8, usize, usize, Option<usize>, u64);

/// The extents of sequences in a text of `size` bytes; None if one lies outside it, or if their numbers differ.
fn extents(
    starts: impl ExactSizeIterator<Item = u64> + Clone,
    sizes: Option<&[u32]>,
    size: u64,
    lengths: Lengths,
) -> Option<Vec<Extent>> {
    if lengths.len() != starts.len() || sizes.is_some_and(|sizes| sizes.len() != starts.len()) {
        return None;
    }
    let mut ends = starts.clone().skip(1).chain([size]);
    let mut extents = Vec::new();
    memory::reserve(&mut extents, starts.len());
    for (sequence, start) in starts.enumerate() {
        let next = ends.next()?;
        let end = sizes.map_or(next, |sizes| start.saturating_add(sizes[sequence].into()));
        if start > end || end > size {
            return None;
        }
        extents.push(Extent { start: start as usize, end: end as usize, length: lengths.get(sequence) });
    }
    Some(extents)
}

/// Parse the text of a chunk's sequences, which are between `begin` and `end`. Their starts count from `begin`. Without
/// sizes each sequence ends where the next one starts. Text between sequences is read if it is at most `gap_size` long.
///
/// Returns the chunk, the number of findings of each kind, the first findings of each kind, and the error that exceeded
/// the budget, if there is one.
#[pyfunction]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
pub(crate) fn ctf_parse(
    py: Python<'_>,
    text: ChunkText<'_>,
    begin: u64,
    end: u64,
    starts: Starts<'_>,
    sizes: Option<PyReadonlyArray1<'_, u32>>,
    lengths: LengthsArray<'_>,
    schema: &CTFSchema,
    budget: u64,
    is_strict: bool,
    num_threads: usize,
    piece_size: usize,
    gap_size: usize,
    spare: Option<&Spare>,
) -> PyResult<(Chunk, Vec<u64>, Vec<FindingTuple>, Option<FindingTuple>)> {
    let (short, long) = match &starts {
        Starts::Short(starts) => (starts.as_slice()?, &[][..]),
        Starts::Long(starts) => (&[][..], starts.as_slice()?),
    };
    let sizes = sizes.as_ref().map(|sizes| sizes.as_slice()).transpose()?;
    let lengths = lengths.lengths()?;
    let source = text.source()?;
    let offset = if matches!(text, ChunkText::Packed(_)) { 0 } else { begin };
    let read = |at: usize, buffer: &mut [u8]| source.read(buffer, offset.saturating_add(at as u64));
    let rest = match &text {
        ChunkText::Packed(text) => Some(Rest { packed: text.packed(&read)?, begin }),
        ChunkText::Plain(_) => None,
    };
    let (text, text_size) = match &rest {
        Some(rest) => (Source::Packed(rest), rest.size() as u64),
        None => {
            let size = source.end().saturating_sub(begin);
            let file = Text { size: size as usize, read: &read };
            (source.bytes_from(begin).map_or(Source::File(file), Source::Memory), size)
        }
    };
    let spare = spare.map(|spare| &spare.pool);
    let pool = pool(num_threads)?;
    let schema = &schema.inner;
    let cut = Cut { piece: piece_size, part: PART_BYTES, gap: gap_size };
    let parsed = detached(py, || {
        // A table that does not fit the text (a file that shrank, a damaged cache) must not be trusted.
        let all = end.checked_sub(begin).filter(|&all| all <= text_size)?;
        let sequences = if long.is_empty() {
            extents(short.iter().map(|&start| start.into()), sizes, all, lengths)
        } else {
            extents(long.iter().copied(), sizes, all, lengths)
        }?;
        let parse = || ctf::parse_chunk(text, &sequences, schema, budget, is_strict, cut, spare);
        let size: usize = sequences.iter().map(|extent| extent.end - extent.start).sum();
        Some(if size <= cut.piece { parse() } else { pool.install(parse) })
    })?;
    let parsed = parsed.ok_or_else(|| PyValueError::new_err("a sequence lies outside the text"))?;
    let (chunk, findings) = parsed.map_err(read_error)?;
    let tuple = |found: &Finding| (found.kind as u8, found.at, found.sequence, found.stream, found.found);
    let first = findings.first.iter().map(tuple).collect();
    let last_straw = findings.last_straw.as_ref().map(tuple);
    Ok((Chunk { inner: chunk }, findings.counts.to_vec(), first, last_straw))
}

/// The offsets where the chunks of a file begin, of at most `chunk_size_in_bytes` each, and the end of the last chunk. Only
/// the text around each border is read.
#[pyfunction]
pub(crate) fn ctf_chunk_borders(
    py: Python<'_>,
    text: TextArgument<'_>,
    first: u64,
    chunk_size_in_bytes: u64,
    in_lines: bool,
) -> PyResult<Vec<usize>> {
    let source = text.source()?;
    let read = |at: usize, buffer: &mut [u8]| source.read(buffer, at as u64);
    let mode = if in_lines { Mode::Lines } else { Mode::Ids };
    let text = Text { size: source.end() as usize, read: &read };
    let (first, limit) = (first as usize, chunk_size_in_bytes as usize);
    Ok(detached(py, || ctf::chunk_borders(text, first, limit, mode))??)
}

/// The scans of a chunk's pieces, and the chunk.
type IndexedTuple = (Vec<CTFScan>, Chunk);

/// Index and parse the chunks between borders of a file in one pass. A chunk with an error or a warning is None.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub(crate) fn ctf_index_chunks(
    py: Python<'_>,
    text: TextArgument<'_>,
    borders: Vec<usize>,
    in_lines: bool,
    schema: &CTFSchema,
    num_threads: usize,
    part_size: usize,
    spare: &Spare,
) -> PyResult<Vec<Option<IndexedTuple>>> {
    let source = text.source()?;
    let read = |at: usize, buffer: &mut [u8]| source.read(buffer, at as u64);
    let mode = if in_lines { Mode::Lines } else { Mode::Ids };
    if borders.windows(2).any(|pair| pair[0] > pair[1]) {
        return Err(PyValueError::new_err("borders that do not ascend"));
    }
    let (pool, spare, schema) = (pool(num_threads)?, &spare.pool, &schema.inner);
    if schema.defining.is_some() || schema.has_words {
        return Err(PyValueError::new_err("only text of numbered sequences is indexed and parsed in one pass"));
    }
    let text = Text { size: source.end() as usize, read: &read };
    let pass = Pass { text, mode, schema, part_size: part_size.max(1), pool: Some(spare) };
    let indexed = detached(py, || pool.install(|| ctf::index_chunks(pass, &borders, num_threads)))??;
    let indexed = indexed.into_iter().map(|indexed| {
        let (scans, inner) = indexed?;
        Some((scans.into_iter().map(|scan| as_arrays(py, scan)).collect(), Chunk { inner }))
    });
    Ok(indexed.collect())
}

/// Name, samples, plain values, indexed values, most values in a sample, largest index, numbers of values, magnitudes
/// of indices, offset of the largest.
type SeenTuple = (Vec<u8>, u64, u64, u64, u64, u64, Vec<(u64, u64)>, [u64; 32], usize);

/// Statistics of the samples in a block of whole lines, by name; None if there are too many names.
#[pyfunction]
pub(crate) fn ctf_infer(py: Python<'_>, block: PyReadonlyArray1<'_, u8>) -> PyResult<Option<Vec<SeenTuple>>> {
    let block = block.as_slice()?;
    let tuple = |seen: ctf::Seen| {
        let ctf::Seen { name, num_samples, num_plain, num_indexed, most_values, largest_index, sizes, .. } = seen;
        let (magnitudes, at) = (seen.magnitudes, seen.largest_at);
        (name, num_samples, num_plain, num_indexed, most_values, largest_index, sizes, magnitudes, at)
    };
    Ok(py.detach(|| ctf::infer(block)).map(|all| all.into_iter().map(tuple).collect()))
}
