//! The CNTK text format.

use crate::chunk::{Chunk, Number};
use crate::compressed::{PackedText, Rest, read_error};
use crate::file::{TextArgument, TextSource};
use crate::lengths::LengthsArray;
use crate::objects::IntoArray;
use crate::pool::{detached, pool};
use cntkio_core::chunk::{NumberType, Pool};
use cntkio_core::ctf::svmlight::{self, Facts};
use cntkio_core::ctf::{
    self, BadId, BadWord, Column, Cut, Extent, Finding, IndexedChunk, Mode, Pass, Schema, Source, Stream, Unindexed,
};
use cntkio_core::keys::{are_distinct, padded};
use cntkio_core::lengths::Lengths;
use cntkio_core::memory;
use cntkio_core::text::{Packed as _, Text};
use numpy::{PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ops::Range;
use std::sync::Arc;

/// Size of the parts in which text is read: a part and its values fit a core's cache.
const PART_BYTES: usize = 512 << 10;

/// The sequences of a part of a text: their keys, places and numbers of lines, in as few bytes as they take.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct CTFScan {
    /// Lines before the first id.
    num_head_lines: u32,
    keys: Py<PyAny>,
    /// Offset of the first sequence, and offsets that count from there.
    begin: u64,
    starts: Py<PyArray1<u32>>,
    /// Numbers of lines; a single number if all are the same.
    lengths: Py<PyAny>,
    /// Offsets of the sequences whose first line is blank or contains only comments.
    hollow: Py<PyArray1<u32>>,
}

/// The sequences of an area, share by share; or no sequences, and a line that cannot be indexed.
#[pyclass(frozen, get_all, module = "cntkio._core")]
#[derive(Default)]
pub(crate) struct CTFIndexed {
    scans: Vec<Py<CTFScan>>,
    /// Offset of an id of 2^64 or more, or of a line without a query.
    bad_id: Option<u64>,
    /// Offset of a line of 4 GiB or more.
    long_line: Option<u64>,
}

impl CTFIndexed {
    fn of(py: Python<'_>, indexed: Result<Vec<ctf::Share>, Unindexed>) -> PyResult<CTFIndexed> {
        let nothing = CTFIndexed::default();
        match indexed {
            Ok(shares) => Ok(CTFIndexed { scans: scans(py, shares)?, ..nothing }),
            Err(Unindexed::BadId(BadId { at })) => Ok(CTFIndexed { bad_id: Some(at), ..nothing }),
            Err(Unindexed::LongLine { at }) => Ok(CTFIndexed { long_line: Some(at), ..nothing }),
            Err(Unindexed::Unread(error)) => Err(error.into()),
        }
    }
}

/// An area of a text, from the attributes of an object.
#[derive(FromPyObject)]
pub(crate) struct Area<'py> {
    /// The text, or the part of it that has the area.
    source: TextArgument<'py>,
    /// The position of a line that begins at the area or before it.
    first_line: usize,
    begin: usize,
    end: usize,
    /// Bytes that a thread scans at a time.
    share: usize,
}

impl Area<'_> {
    /// Index the text with `work`, which takes the offset of the first line, the area and the size of shares.
    fn index<R: Send>(
        &self,
        py: Python<'_>,
        num_threads: usize,
        work: impl Send + FnOnce(Text, usize, Range<usize>, usize) -> R,
    ) -> PyResult<R> {
        let (pool, &Area { first_line, begin, end, share, .. }) = (pool(num_threads)?, self);
        let area = |size: usize| begin.max(first_line)..end.min(size);
        // The index divides the area by the share, which must not be 0.
        let share = share.max(1);
        self.source.detached(py, |text| pool.install(|| work(text, first_line, area(text.size), share)))
    }
}

/// Find the sequences of the lines that start in an area.
#[pyfunction]
pub(crate) fn ctf_index(
    py: Python<'_>,
    area: Area<'_>,
    in_lines: bool,
    defining: Option<Vec<u8>>,
    num_threads: usize,
) -> PyResult<CTFIndexed> {
    let mode = if in_lines { Mode::Lines } else { Mode::Ids };
    let index = |text: Text, first, area, share| ctf::index(text, first, area, mode, defining.as_deref(), share);
    CTFIndexed::of(py, area.index(py, num_threads, index)?)
}

/// The least and the largest index of a feature, and the largest label.
#[pyclass(frozen, get_all, module = "cntkio._core")]
#[derive(Default)]
pub(crate) struct SvmlightFacts {
    least_index: u64,
    largest_index: u64,
    largest_label: u64,
}

/// Find the samples of the lines of a svmlight text that start in an area, as `ctf_index` does. With `by_query`,
/// neighbouring lines of a query are a sequence. Returns also facts about the samples.
#[pyfunction]
pub(crate) fn svmlight_index(
    py: Python<'_>,
    area: Area<'_>,
    by_query: bool,
    num_threads: usize,
) -> PyResult<(CTFIndexed, SvmlightFacts)> {
    let mode = if by_query { Mode::Ids } else { Mode::Lines };
    let index = |text: Text, first, area, share| svmlight::index(text, first, area, mode, share);
    let (indexed, facts) = match area.index(py, num_threads, index)? {
        Ok((shares, Facts { least_index, largest_index, largest_label })) => {
            (Ok(shares), SvmlightFacts { least_index, largest_index, largest_label })
        }
        Err(unindexed) => (Err(unindexed), SvmlightFacts::default()),
    };
    Ok((CTFIndexed::of(py, indexed)?, facts))
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
    let bounds = std::iter::zip(begins.as_slice()?, ends.as_slice()?);
    let ranges: Vec<_> = bounds.map(|(&begin, &end)| begin as usize..end as usize).collect();
    let pool = pool(num_threads)?;
    Ok(text.detached(py, |text| pool.install(|| ctf::are_nothing(text, &ranges)))??)
}

fn as_array(py: Python<'_>, column: Column) -> PyResult<Py<PyAny>> {
    Ok(match column {
        Column::Same(number) => vec![number].into_array(py)?.into_any().unbind(),
        Column::Bytes(numbers) => numbers.into_array(py)?.into_any().unbind(),
        Column::Shorts(numbers) => numbers.into_array(py)?.into_any().unbind(),
        Column::Words(numbers) => numbers.into_array(py)?.into_any().unbind(),
        Column::Longs(numbers) => numbers.into_array(py)?.into_any().unbind(),
    })
}

fn scans(py: Python<'_>, shares: Vec<ctf::Share>) -> PyResult<Vec<Py<CTFScan>>> {
    shares.into_iter().map(|share| Py::new(py, as_arrays(py, share)?)).collect()
}

fn as_arrays(py: Python<'_>, share: ctf::Share) -> PyResult<CTFScan> {
    Ok(CTFScan {
        num_head_lines: share.head_lines,
        keys: as_array(py, share.keys)?,
        begin: share.begin,
        starts: share.starts.into_array(py)?.unbind(),
        lengths: as_array(py, share.lines)?,
        hollow: share.hollow.into_array(py)?.unbind(),
    })
}

/// The streams of a text corpus, and its other properties that the parser needs.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct CTFSchema {
    inner: Schema,
}

/// A stream of a text, from the attributes of an object.
#[derive(FromPyObject)]
struct StreamSchema {
    /// Its name in the file.
    alias: Vec<u8>,
    is_sparse: bool,
    dim: usize,
    /// The type of its values: floats, or in a svmlight text any.
    number: Number,
}

/// The choice of what the parser notes for observers, from the attributes of an object.
#[derive(FromPyObject, Default)]
struct Notes {
    /// True if findings are kept that cost time.
    keeps_findings: bool,
    unknown_names: bool,
}

/// The form of a svmlight text.
#[pyclass(frozen, from_py_object, module = "cntkio._core")]
#[derive(Clone, Copy)]
pub(crate) struct SvmlightLayout(svmlight::Layout);

#[pymethods]
impl SvmlightLayout {
    /// `base`: the index of the first feature; `has_queries`: queries are a stream; `is_bounded`: larger features are
    /// errors.
    #[new]
    #[pyo3(signature = (base, *, has_queries, is_bounded))]
    fn new(base: u32, has_queries: bool, is_bounded: bool) -> SvmlightLayout {
        SvmlightLayout(svmlight::Layout { base, has_queries, is_bounded })
    }
}

#[pymethods]
impl CTFSchema {
    #[new]
    #[pyo3(signature = (streams, *, defining=None, has_words=false, is_compact=false, is_subset=false, notes=None, svmlight=None))]
    fn new(
        streams: Vec<StreamSchema>,
        defining: Option<usize>,
        has_words: bool,
        is_compact: bool,
        is_subset: bool,
        notes: Option<Notes>,
        svmlight: Option<SvmlightLayout>,
    ) -> PyResult<CTFSchema> {
        let stream = |stream: StreamSchema| {
            let StreamSchema { alias, is_sparse, dim, number: Number(number) } = stream;
            Stream { name: alias, is_sparse, dim, number }
        };
        let Notes { keeps_findings, unknown_names } = notes.unwrap_or_default();
        let streams: Vec<Stream> = streams.into_iter().map(stream).collect();
        // The parser of CNTK's format reads only floating-point numbers.
        if svmlight.is_none()
            && !streams.iter().all(|stream| matches!(stream.number, NumberType::F32 | NumberType::F64))
        {
            return Err(PyValueError::new_err("only a svmlight text has whole numbers"));
        }
        Ok(CTFSchema {
            inner: Schema {
                streams,
                defining,
                has_words,
                is_compact,
                is_subset,
                keeps_findings,
                notes_unknown_names: unknown_names,
                svmlight: svmlight.map(|layout| layout.0),
            },
        })
    }
}

/// The sequences of a block whose ids are words.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct CTFWordScan {
    /// Number of lines before the first word.
    num_head_lines: u32,
    /// The words padded with zeros to a common width, and that width.
    words: (Py<PyArray1<u8>>, usize),
    /// Start and number of lines of each sequence.
    starts: Py<PyArray1<u64>>,
    lengths: Py<PyArray1<u32>>,
    /// Offset of a NUL byte in a word, and no sequences then.
    nul: Option<usize>,
    /// Offset of a word that is too long, and no sequences then.
    long: Option<usize>,
}

/// Find the sequences that start in a block of whole lines, whose ids are words.
#[pyfunction]
pub(crate) fn ctf_scan_words(
    py: Python<'_>,
    block: PyReadonlyArray1<'_, u8>,
    defining: Option<Vec<u8>>,
) -> PyResult<CTFWordScan> {
    let block = block.as_slice()?;
    let (scan, nul, long) = match detached(py, || ctf::scan_words(block, defining.as_deref()))? {
        Ok(scan) => (scan, None, None),
        // Words are padded with zeros, so a word with a NUL byte could not be told from a shorter word.
        Err(BadWord::Nul(at)) => (ctf::WordScan::default(), Some(at), None),
        Err(BadWord::Long(at)) => (ctf::WordScan::default(), None, Some(at)),
    };
    let (words, width) = detached(py, || padded(&scan.words, &scan.word_ends))?;
    Ok(CTFWordScan {
        num_head_lines: scan.head_lines,
        words: (words.into_array(py)?.unbind(), width),
        starts: scan.starts.into_array(py)?.unbind(),
        lengths: scan.lines.into_array(py)?.unbind(),
        nul,
        long,
    })
}

/// Starts of sequences, of 32 or 64 bits, that are replaced.
#[derive(FromPyObject)]
pub(crate) enum StartsToPlace<'py> {
    Short(PyReadwriteArray1<'py, u32>),
    Long(PyReadwriteArray1<'py, u64>),
}

/// The chunks that begin in a part of a text.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct CTFBegun {
    /// The first sequence of each chunk, and its first byte.
    firsts: Py<PyArray1<i64>>,
    begins: Py<PyArray1<u64>>,
    /// The ends of chunks that end in the part.
    ends: Py<PyArray1<u64>>,
    /// The first byte and the end of the last chunk.
    open: Option<(u64, u64)>,
}

/// Group the sequences of a part of a text into chunks; see `cntkio_core::ctf::place`.
#[pyfunction]
pub(crate) fn ctf_place<'py>(
    py: Python<'py>,
    begin: u64,
    mut starts: StartsToPlace<'py>,
    sizes: Option<PyReadonlyArray1<'py, u32>>,
    end: u64,
    limit: u64,
    open: Option<(u64, u64)>,
) -> PyResult<CTFBegun> {
    let sizes = sizes.as_ref().map(|sizes| sizes.as_slice()).transpose()?;
    let mut open = open.map(|(begin, end)| ctf::Open { begin, end });
    // The starts are replaced in place, so that a large text has them in memory only once.
    let begun = match &mut starts {
        StartsToPlace::Short(starts) => {
            let starts = starts.as_slice_mut()?;
            detached(py, || ctf::place(begin, starts, sizes, end, limit, &mut open))?
        }
        StartsToPlace::Long(starts) => {
            let starts = starts.as_slice_mut()?;
            detached(py, || ctf::place(begin, starts, sizes, end, limit, &mut open))?
        }
    };
    Ok(CTFBegun {
        firsts: begun.firsts.into_array(py)?.unbind(),
        begins: begun.begins.into_array(py)?.unbind(),
        ends: begun.ends.into_array(py)?.unbind(),
        open: open.map(|open| (open.begin, open.end)),
    })
}

/// True if no two keys are the same.
#[pyfunction]
pub(crate) fn ctf_are_distinct(py: Python<'_>, keys: Starts<'_>, num_threads: usize) -> PyResult<bool> {
    let pool = pool(num_threads)?;
    match &keys {
        Starts::Short(keys) => {
            let keys = keys.as_slice()?;
            detached(py, || pool.install(|| are_distinct(keys)))
        }
        Starts::Long(keys) => {
            let keys = keys.as_slice()?;
            detached(py, || pool.install(|| are_distinct(keys)))
        }
    }
}

/// Starts or keys of sequences, of 32 or 64 bits.
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
        // Chunks share it, because they give their memory back when they are dropped, maybe after the corpus.
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

/// An error or a warning.
#[pyclass(frozen, get_all, module = "cntkio._core")]
#[derive(Clone)]
pub(crate) struct CTFFinding {
    /// Index in `CTF_KINDS`.
    kind: u8,
    /// Offset, counted from the first byte of the chunk.
    offset: usize,
    /// Sequence, counted from the first one that was parsed.
    sequence: usize,
    stream: Option<usize>,
    /// The number that was counted or read.
    found: u64,
}

impl CTFFinding {
    fn of(finding: &Finding) -> CTFFinding {
        let &Finding { kind, at, sequence, stream, found } = finding;
        CTFFinding { kind: kind as u8, offset: at, sequence, stream, found }
    }
}

/// The extents of sequences in a text of `size` bytes; None if one lies outside it, or if their numbers differ.
fn extents(
    starts: impl ExactSizeIterator<Item = u64> + Clone,
    sizes: Option<&[u32]>,
    size: u64,
    lengths: Lengths,
) -> Option<Vec<Extent>> {
    // The arrays come from an index cache or from Python, so nothing about them is certain yet.
    if lengths.len() != starts.len() || sizes.is_some_and(|sizes| sizes.len() != starts.len()) {
        return None;
    }
    let mut ends = starts.clone().skip(1).chain([size]);
    let mut extents = Vec::new();
    memory::reserve(&mut extents, starts.len());
    for (sequence, start) in starts.enumerate() {
        let next = ends.next()?;
        // The start may be any number of a damaged cache; the sum must not wrap to a place inside the text.
        let end = sizes.map_or(next, |sizes| start.saturating_add(sizes[sequence].into()));
        if start > end || end > size {
            return None;
        }
        extents.push(Extent { start: start as usize, end: end as usize, length: lengths.get(sequence) });
    }
    Some(extents)
}

/// The places of a chunk's sequences, from the attributes of an object.
#[derive(FromPyObject)]
pub(crate) struct ChunkPlaces<'py> {
    /// All sequences are between these bytes.
    begin: u64,
    end: u64,
    /// The starts of sequences count from `begin`.
    starts: Starts<'py>,
    /// Without sizes each sequence ends where the next one starts.
    sizes: Option<PyReadonlyArray1<'py, u32>>,
}

/// The rules for parsing a chunk, from the attributes of an object.
#[derive(FromPyObject)]
pub(crate) struct ParseRules {
    /// The most errors.
    budget: u64,
    /// True if warnings are errors.
    is_strict: bool,
    num_threads: usize,
    /// Bytes that a thread parses at a time.
    piece_size: usize,
    /// Text between sequences is read if it is at most this long.
    gap_size: usize,
}

/// A chunk, and the findings in its text.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct CTFChunk {
    chunk: Py<Chunk>,
    /// The number of findings of each kind.
    counts: Vec<u64>,
    /// The first findings of each kind.
    first: Vec<CTFFinding>,
    /// The error that exceeded the budget, if there is one.
    last_straw: Option<CTFFinding>,
}

/// Parse the text of a chunk's sequences.
#[pyfunction]
pub(crate) fn ctf_parse(
    py: Python<'_>,
    text: ChunkText<'_>,
    places: ChunkPlaces<'_>,
    lengths: LengthsArray<'_>,
    schema: &CTFSchema,
    rules: ParseRules,
    spare: Option<&Spare>,
) -> PyResult<CTFChunk> {
    let ChunkPlaces { begin, end, starts, sizes } = places;
    let ParseRules { budget, is_strict, num_threads, piece_size, gap_size } = rules;
    let (short, long) = match &starts {
        Starts::Short(starts) => (starts.as_slice()?, &[][..]),
        Starts::Long(starts) => (&[][..], starts.as_slice()?),
    };
    let sizes = sizes.as_ref().map(|sizes| sizes.as_slice()).transpose()?;
    let lengths = lengths.lengths()?;
    let source = text.source()?;
    // Of a compressed text, `read` reads the compressed data, whose offsets count from the beginning; `Rest` moves the
    // offsets of the text.
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
            // Bytes in memory are parsed where they are; a file is read part by part into a buffer that stays in the
            // cache.
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
        // Text between the sequences, such as sequences of other ranks, is not parsed, so it does not count.
        let size: usize = sequences.iter().map(|extent| extent.end - extent.start).sum();
        // A chunk of a single piece is parsed on this thread: in the pool, another thread would only have to wake up.
        Some(if size <= cut.piece { parse() } else { pool.install(parse) })
    })?;
    let parsed = parsed.ok_or_else(|| PyValueError::new_err("a sequence lies outside the text"))?;
    let (chunk, findings) = parsed.map_err(read_error)?;
    Ok(CTFChunk {
        chunk: Py::new(py, Chunk { inner: chunk })?,
        counts: findings.counts.to_vec(),
        first: findings.first.iter().map(CTFFinding::of).collect(),
        last_straw: findings.last_straw.as_ref().map(CTFFinding::of),
    })
}

/// The offsets where the chunks of a file begin, of at most `chunk_size_in_bytes` each, and the end of the last chunk.
/// Only the text around each border is read.
#[pyfunction]
pub(crate) fn ctf_chunk_borders(
    py: Python<'_>,
    text: TextArgument<'_>,
    first: u64,
    chunk_size_in_bytes: u64,
    in_lines: bool,
) -> PyResult<Vec<usize>> {
    let mode = if in_lines { Mode::Lines } else { Mode::Ids };
    let (first, limit) = (first as usize, chunk_size_in_bytes as usize);
    Ok(text.detached(py, |text| ctf::chunk_borders(text, first, limit, mode))??)
}

/// A chunk, and the scans of its pieces.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct CTFIndexedChunk {
    scans: Vec<Py<CTFScan>>,
    chunk: Py<Chunk>,
}

/// The pass that indexes and parses, from the attributes of an object.
#[derive(FromPyObject)]
pub(crate) struct FirstPass {
    /// Memory for the chunks.
    spare: Py<Spare>,
    /// A byte; chunks that contain it are not parsed.
    excluded: Option<u8>,
    /// Bytes that a thread reads, indexes and parses at a time.
    part_size: usize,
}

/// Index and parse the chunks between borders of a file in one pass. A chunk with an error, a warning or the excluded
/// byte is None.
#[pyfunction]
pub(crate) fn ctf_index_chunks(
    py: Python<'_>,
    text: TextArgument<'_>,
    borders: Vec<usize>,
    in_lines: bool,
    schema: &CTFSchema,
    first_pass: FirstPass,
    num_threads: usize,
) -> PyResult<Vec<Option<CTFIndexedChunk>>> {
    let mode = if in_lines { Mode::Lines } else { Mode::Ids };
    // The pass computes the sizes of chunks from their borders without a check.
    if borders.windows(2).any(|pair| pair[0] > pair[1]) {
        return Err(PyValueError::new_err("borders that do not ascend"));
    }
    let (pool, spare, schema) = (pool(num_threads)?, &first_pass.spare.get().pool, &schema.inner);
    // The pass counts all lines of a sequence, not the samples of one stream, and reads ids as numbers.
    if schema.defining.is_some() || schema.has_words {
        return Err(PyValueError::new_err("only text of numbered sequences is indexed and parsed in one pass"));
    }
    let FirstPass { part_size, excluded, .. } = first_pass;
    let index = |text: Text| {
        // The pass divides by the size of a part.
        let pass = Pass { text, mode, schema, part_size: part_size.max(1), pool: Some(spare), excluded };
        let indexed = ctf::index_chunks(pass, &borders, num_threads)?.into_iter();
        // The conversion requests memory for each sequence, so it belongs to the work that may be refused memory.
        let in_few_bytes = |(scans, chunk): IndexedChunk| (scans.into_iter().map(ctf::Share::from).collect(), chunk);
        std::io::Result::Ok(indexed.map(|indexed| indexed.map(in_few_bytes)).collect())
    };
    let indexed: Vec<Option<(Vec<ctf::Share>, _)>> = text.detached(py, |text| pool.install(|| index(text)))??;
    // Arrays are made only here, because making them needs the interpreter's lock.
    let in_arrays = |(shares, inner): (Vec<ctf::Share>, _)| {
        Ok(CTFIndexedChunk { scans: scans(py, shares)?, chunk: Py::new(py, Chunk { inner })? })
    };
    indexed.into_iter().map(|indexed| indexed.map(in_arrays).transpose()).collect()
}

/// Statistics of the samples of a name.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct CTFSeen {
    name: Py<PyBytes>,
    num_samples: u64,
    /// Numbers of values without and with an index.
    num_plain: u64,
    num_indexed: u64,
    /// Most values in a sample.
    most_values: u64,
    largest_index: u64,
    /// Numbers of values of samples without indices, each with its number of samples.
    sizes: Vec<(u64, u64)>,
    /// The item k counts indices of 2k and 2k + 1 bits.
    magnitudes: [u64; 32],
    /// Offset of the largest index.
    largest_at: usize,
}

/// Statistics of the samples in a block of whole lines, by name; None if there are too many names.
#[pyfunction]
pub(crate) fn ctf_infer(py: Python<'_>, block: PyReadonlyArray1<'_, u8>) -> PyResult<Option<Vec<CTFSeen>>> {
    let block = block.as_slice()?;
    let as_seen = |seen: ctf::Seen| {
        let ctf::Seen { name, num_samples, num_plain, num_indexed, most_values, largest_index, sizes, .. } = seen;
        let (name, magnitudes, largest_at) = (PyBytes::new(py, &name).unbind(), seen.magnitudes, seen.largest_at);
        CTFSeen { name, num_samples, num_plain, num_indexed, most_values, largest_index, sizes, magnitudes, largest_at }
    };
    Ok(detached(py, || ctf::infer(block))?.map(|all| all.into_iter().map(as_seen).collect()))
}
