//! HTK features and labels.

use crate::chunk::Chunk;
use crate::file::{FileNumber, TextArgument, TextSource, bytes_object, mapped, mapped_for, os_error, os_error_of};
use crate::objects::IntoArray;
use crate::pool::{attached, detached, pool};
use cntkio_core::chunk::{self, Block, Bytes, Column, Encoding, FrameStart, Frames, Runs, Samples, Targets};
use cntkio_core::find;
use cntkio_core::htk::{self, ListRules};
use cntkio_core::memory::{collected, copied, with_room};
use cntkio_core::mlf::{self, Labels, Numbers, Rules, Scan, Unit};
use cntkio_core::{keys, timeline};
use cntkio_memory::file;
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Texts padded with zeros to a common width, and that width. A single long text makes all rows long.
pub(crate) fn rows(py: Python<'_>, texts: &[u8], ends: &[usize]) -> PyResult<(Py<PyArray1<u8>>, usize)> {
    let (rows, width) = attached(|| keys::padded(texts, ends))?;
    Ok((rows.into_array(py)?.unbind(), width))
}

/// The utterances of a list, in its order: of each its key, file, first frame and last frame.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct HTKList {
    /// Keys padded with zeros, and the width of a key.
    keys: (Py<PyArray1<u8>>, usize),
    /// The files, each once.
    paths: Py<PyList>,
    files: Py<PyArray1<u32>>,
    first_frames: Py<PyArray1<u32>>,
    last_frames: Py<PyArray1<u32>>,
}

/// A line of a list that cannot be read.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct ListError {
    /// The line, from 1.
    pub(crate) line: u64,
    /// Its first byte.
    pub(crate) byte: usize,
    /// Index in `LIST_FAULTS`, or of a list or a map of Kaldi in `KALDI_LINE_FAULTS`.
    pub(crate) fault: u8,
}

/// The outcome of reading a list.
#[derive(IntoPyObject)]
pub(crate) enum Listed<L> {
    List(L),
    Error(ListError),
}

/// Read a list of utterances. Returns its content, or the line that cannot be understood.
#[pyfunction]
pub(crate) fn htk_scan_list(
    py: Python<'_>,
    text: PyBackedBytes,
    is_compatible: bool,
    folder: Option<Vec<u8>>,
    prefix: Vec<u8>,
    turns_backslashes: bool,
) -> PyResult<Listed<HTKList>> {
    let rules = ListRules { is_compatible, folder, prefix, turns_backslashes };
    Ok(match detached(py, || htk::scan_list(&text, &rules))? {
        Err(error) => Listed::Error(ListError { line: error.line, byte: error.at, fault: error.fault as u8 }),
        Ok(list) => {
            Listed::List(HTKList {
                keys: rows(py, &list.keys, &list.key_ends)?,
                // Paths are bytes, because a file system allows any bytes in them.
                paths: PyList::new(py, list.paths.iter().map(|path| PyBytes::new(py, path)))?.unbind(),
                files: list.files.into_array(py)?.unbind(),
                first_frames: list.first.into_array(py)?.unbind(),
                last_frames: list.last.into_array(py)?.unbind(),
            })
        }
    })
}

/// The first utterance of each chunk and, last, the number of utterances.
#[pyfunction]
pub(crate) fn htk_chunk_starts<'py>(
    py: Python<'py>,
    lengths: PyReadonlyArray1<'py, u32>,
    limit: u64,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    htk::chunk_starts(lengths.as_slice()?, limit).into_array(py)
}

/// The order of frames in a sweep with a rolling window.
#[pyfunction]
pub(crate) fn rolling_order(
    py: Python<'_>,
    num_frames: u32,
    window: u64,
    seed: u64,
) -> PyResult<Bound<'_, PyArray1<u32>>> {
    detached(py, || timeline::rolling_order(num_frames, window, seed))?.into_array(py)
}

/// The chunks of sequences, and where in them the sequences are.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct ChunkRefs {
    /// The chunks, each once, in the order of their first sequences.
    chunk_ids: Vec<u64>,
    /// The number of each chunk's first sequence.
    firsts: Vec<usize>,
    /// For each sequence the position of its chunk in `chunk_ids`, and its number in the chunk.
    chunk_indices: Py<PyArray1<u32>>,
    indices_in_chunk: Py<PyArray1<u32>>,
}

impl ChunkRefs {
    pub(crate) fn of(py: Python<'_>, found: find::ChunksOf) -> PyResult<ChunkRefs> {
        Ok(ChunkRefs {
            chunk_ids: found.chunks,
            firsts: found.firsts,
            chunk_indices: found.chunk_of.into_array(py)?.unbind(),
            indices_in_chunk: found.numbers.into_array(py)?.unbind(),
        })
    }
}

fn not_there() -> PyErr {
    PyValueError::new_err("a sequence is out of range")
}

/// Find the chunks of sequences, or of their partners.
#[pyfunction]
pub(crate) fn find_chunks<'py>(
    py: Python<'py>,
    sequences: PyReadonlyArray1<'py, i64>,
    partners: Option<PyReadonlyArray1<'py, u32>>,
    chunk_starts: PyReadonlyArray1<'py, i64>,
) -> PyResult<ChunkRefs> {
    let partners = partners.as_ref().map(|partners| partners.as_slice()).transpose()?;
    let (sequences, chunk_starts) = (sequences.as_slice()?, chunk_starts.as_slice()?);
    let found = attached(|| find::chunks_of(sequences, partners, chunk_starts))?.ok_or_else(not_there)?;
    ChunkRefs::of(py, found)
}

/// The distinct chunks of each read, as positions in `ChunkRefs.chunk_ids`, given `ChunkRefs.chunk_indices`. `bounds`:
/// the first sequence of each read and, last, the number of sequences.
#[pyfunction]
pub(crate) fn chunks_of_reads(chunk_indices: PyReadonlyArray1<'_, u32>, bounds: Vec<usize>) -> PyResult<Vec<Vec<u32>>> {
    let chunk_indices = chunk_indices.as_slice()?;
    attached(|| find::chunks_of_reads(chunk_indices, &bounds))?.ok_or_else(not_there)
}

/// Number of frames from which on releasing the interpreter's lock is worth the cost of acquiring it again.
const WORTH_UNLOCKING: usize = 1 << 15;

/// Finds the utterances of frames, and the chunk of each utterance in each of several corpora.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct FrameFinder {
    inner: find::FrameFinder,
}

/// The places of frames.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct FoundFrames {
    /// The utterance of each frame, and the frame's number in the utterance.
    utterances: Py<PyArray1<i64>>,
    frames: Py<PyArray1<u32>>,
    /// For each corpus the result of `find_chunks`.
    refs: Vec<Py<ChunkRefs>>,
}

#[pymethods]
impl FrameFinder {
    /// `frame_starts`: the first frame of each utterance and, last, the number of frames. `corpora`: for each corpus
    /// the partners of utterances and the chunk starts, as for `find_chunks`.
    #[new]
    fn new(
        frame_starts: PyReadonlyArray1<'_, i64>,
        corpora: Vec<(Option<PyReadonlyArray1<'_, u32>>, PyReadonlyArray1<'_, i64>)>,
    ) -> PyResult<FrameFinder> {
        let corpora = corpora.iter().map(|(partners, chunk_starts)| {
            let partners = partners.as_ref().map(|partners| partners.as_slice()).transpose()?;
            PyResult::Ok((partners, chunk_starts.as_slice()?))
        });
        let (frame_starts, corpora) = (frame_starts.as_slice()?, corpora.collect::<PyResult<Vec<_>>>()?);
        // The finder has tables of its own, so it keeps no array of Python.
        let inner = attached(|| find::FrameFinder::new(frame_starts, &corpora))?;
        Ok(FrameFinder { inner: inner.ok_or_else(not_there)? })
    }

    /// Find frames.
    fn find<'py>(&self, py: Python<'py>, frames: PyReadonlyArray1<'py, i64>) -> PyResult<FoundFrames> {
        let frames = frames.as_slice()?;
        let find = || self.inner.find(frames);
        let found =
            if frames.len() < WORTH_UNLOCKING { attached(find)? } else { detached(py, find)? }.ok_or_else(not_there)?;
        let refs = found.chunks.into_iter().map(|chunks| Py::new(py, ChunkRefs::of(py, chunks)?));
        Ok(FoundFrames {
            utterances: found.utterances.into_array(py)?.unbind(),
            frames: found.frames.into_array(py)?.unbind(),
            refs: refs.collect::<PyResult<_>>()?,
        })
    }
}

/// For each row of `width` bytes, the number of the first equal row.
#[pyfunction]
pub(crate) fn first_same<'py>(
    py: Python<'py>,
    rows: PyReadonlyArray1<'py, u8>,
    width: usize,
) -> PyResult<Bound<'py, PyArray1<u32>>> {
    let rows = rows.as_slice()?;
    detached(py, || keys::first_same(rows, width))?.into_array(py)
}

/// The vectors `a` and `b` of a compressed file.
type Scales = (Py<PyArray1<f32>>, Py<PyArray1<f32>>);

/// The encoding of a file's values.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct FrameEncoding {
    is_big_endian: bool,
    scales: Option<Scales>,
}

#[pymethods]
impl FrameEncoding {
    /// `scales`: none if the file is not compressed.
    #[new]
    fn new(is_big_endian: bool, scales: Option<Scales>) -> FrameEncoding {
        FrameEncoding { is_big_endian, scales }
    }
}

/// Bytes of files for `frames_chunk`: block 0 has the bytes that were read, every other block maps a file.
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct FileBytes {
    blocks: Mutex<(Vec<u8>, Vec<file::FileBytes>)>,
}

impl FileBytes {
    pub(crate) fn take(&self) -> (Vec<u8>, Vec<file::FileBytes>) {
        std::mem::take(&mut *self.blocks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn put(&self, blocks: (Vec<u8>, Vec<file::FileBytes>)) {
        *self.blocks.lock().unwrap_or_else(PoisonError::into_inner) = blocks;
    }
}

#[pymethods]
impl FileBytes {
    /// Reserve memory for `size` bytes to be read; the memory grows if more are read.
    #[new]
    fn new(size: usize) -> PyResult<FileBytes> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| PyMemoryError::new_err(format!("no memory for {size} bytes")))?;
        Ok(FileBytes { blocks: Mutex::new((bytes, Vec::new())) })
    }

    /// Append bytes of an open file, or of bytes in memory. Returns their number, which is smaller than `size` only at
    /// the end of the source.
    fn read(&self, py: Python<'_>, source: TextArgument<'_>, at: u64, size: usize) -> PyResult<usize> {
        let file = match source.source()? {
            TextSource::File(file, _) => file,
            memory => {
                let bytes = memory.bytes_from(at).unwrap_or_default();
                let (mut blocks, bytes) = (self.take(), &bytes[..size.min(bytes.len())]);
                let room = blocks.0.try_reserve(bytes.len());
                if room.is_ok() {
                    blocks.0.extend_from_slice(bytes);
                }
                self.put(blocks);
                let refused = |_| PyMemoryError::new_err(format!("no memory for {} bytes", bytes.len()));
                return room.map(|()| bytes.len()).map_err(refused);
            }
        };
        // A list may promise more frames than its file has, and memory is reserved only for existing bytes.
        let size = file.most(size, at).map_err(os_error)?;
        // The blocks are taken out during the read: a thread that waits for their lock would hold the interpreter's
        // lock, which this thread needs to return.
        let mut blocks = self.take();
        let read = match blocks.0.try_reserve(size) {
            Ok(()) => py.detach(|| file.append_read(&mut blocks.0, size, at)).map_err(os_error),
            Err(_) => Err(PyMemoryError::new_err(format!("no memory for {size} bytes"))),
        };
        self.put(blocks);
        read
    }

    /// A copy of the bytes that were read.
    fn copy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        bytes_object(py, &self.blocks.lock().unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Map bytes of an open file, all of which must exist; returns the number of the block. Messages contain `name`.
    /// `wanted`: begins and ends of the ranges that will be used, counted from `at`; None: all bytes will be.
    #[pyo3(signature = (file, name, at, size, wanted=None))]
    fn show(
        &self,
        py: Python<'_>,
        file: FileNumber,
        name: String,
        at: u64,
        size: usize,
        wanted: Option<(PyReadonlyArray1<'_, i64>, PyReadonlyArray1<'_, i64>)>,
    ) -> PyResult<usize> {
        let wanted = match &wanted {
            Some((begins, ends)) => Some((begins.as_slice()?, ends.as_slice()?)),
            None => None,
        };
        let shown = py.detach(|| {
            let file = Arc::new(file::MappedFile::new(file.file()?, name.clone())?);
            match wanted {
                Some((begins, ends)) => {
                    let ranges = std::iter::zip(begins, ends).map(|(&begin, &end)| begin as usize..end as usize);
                    mapped_for(&file, at, size, ranges)
                }
                None => mapped(&file, at, size),
            }
        });
        let shown = shown.map_err(|error| os_error_of(error, Some(&name)))?;
        let mut blocks = self.take();
        blocks.1.push(shown);
        // Block 0 is the bytes that were read, so the first map is block 1.
        let number = blocks.1.len();
        self.put(blocks);
        Ok(number)
    }
}

/// The frames of utterances in their encoding, from the attributes of an object.
#[derive(FromPyObject)]
pub(crate) struct FrameArrays<'py> {
    bytes: Py<FileBytes>,
    /// For each utterance its block, its encoding, and its offset in the block.
    block_of: PyReadonlyArray1<'py, u32>,
    encoding_of: PyReadonlyArray1<'py, u32>,
    offsets: PyReadonlyArray1<'py, u64>,
    encodings: Vec<Py<FrameEncoding>>,
}

/// A chunk of frames in their encoding, with windows of `context` frames before and after each. The chunk takes the
/// bytes, so the bytes of `frames` are empty afterwards.
#[pyfunction]
pub(crate) fn frames_chunk(
    py: Python<'_>,
    frames: FrameArrays<'_>,
    lengths: PyReadonlyArray1<'_, u32>,
    frame_dim: usize,
    context: (usize, usize),
    is_broadcast: bool,
) -> PyResult<Chunk> {
    let FrameArrays { bytes, block_of, encoding_of, offsets, encodings } = frames;
    let encodings = encodings.iter().map(|encoding| {
        let FrameEncoding { is_big_endian, scales } = encoding.get();
        // The chunk outlives the arrays of Python.
        let copy = |scales: &Py<PyArray1<f32>>| PyResult::Ok(copied(scales.bind(py).readonly().as_slice()?));
        let scales = scales.as_ref().map(|(a, b)| PyResult::Ok((copy(a)?, copy(b)?))).transpose()?;
        Ok(Encoding { is_big_endian: *is_big_endian, scales })
    });
    let starts = block_of.as_slice()?.iter().zip(encoding_of.as_slice()?).zip(offsets.as_slice()?);
    let start = |((&block, &encoding), &at): ((&u32, &u32), &u64)| FrameStart { block, encoding, offset: at as usize };
    let ((read, shown), (left, right)) = (bytes.get().take(), context);
    let frames = Frames {
        frame_dim,
        left,
        right,
        is_broadcast,
        blocks: std::iter::once(Bytes::new(read)).chain(shown.into_iter().map(Bytes::of)).collect(),
        starts: attached(|| collected(starts.map(start)))?,
        encodings: attached(|| encodings.collect::<PyResult<_>>())??,
    };
    chunk_of(lengths.as_slice()?, Samples::Frames(frames))
}

/// A chunk of runs of classes. `targets`: the dimension, and the vectors of all classes with one byte for each value.
#[pyfunction]
#[pyo3(signature = (lengths, offsets, starts, classes, dim, marks_starts, targets=None))]
pub(crate) fn runs_chunk(
    lengths: PyReadonlyArray1<'_, u32>,
    offsets: PyReadonlyArray1<'_, u32>,
    starts: PyReadonlyArray1<'_, u32>,
    classes: PyReadonlyArray1<'_, u32>,
    dim: usize,
    marks_starts: bool,
    targets: Option<(usize, PyBackedBytes)>,
) -> PyResult<Chunk> {
    let runs = || {
        PyResult::Ok(Runs {
            dim,
            offsets: copied(offsets.as_slice()?),
            starts: copied(starts.as_slice()?),
            classes: copied(classes.as_slice()?),
            marks_starts,
            targets: targets.map(|(dim, rows)| Targets { dim, rows: Bytes::new(copied(&rows)) }),
            each: OnceLock::new(),
        })
    };
    chunk_of(lengths.as_slice()?, Samples::Runs(attached(runs)??))
}

fn chunk_of(lengths: &[u32], samples: Samples) -> PyResult<Chunk> {
    // Room for all offsets, so that `push` asks for no memory below, whose refusal would end the process.
    let mut sequence_offsets = attached(|| with_room(lengths.len() + 1))?;
    sequence_offsets.push(0u32);
    for &length in lengths {
        let end = sequence_offsets[sequence_offsets.len() - 1].checked_add(length);
        sequence_offsets.push(end.ok_or_else(|| PyValueError::new_err("a chunk of 2^32 samples or more"))?);
    }
    let column = Column { sequence_offsets, samples };
    // The packer trusts a chunk, but places and classes come from lists, label files and caches.
    column.check(lengths.len()).map_err(PyValueError::new_err)?;
    Ok(Chunk { inner: chunk::Chunk::new(vec![Block { num_sequences: lengths.len(), columns: vec![column] }]) })
}

/// The lower and the upper 16 bits of numbers; the upper array is empty if all upper bits are zero.
type HalvesArrays = (Py<PyArray1<u16>>, Py<PyArray1<u16>>);

/// The entries of a label file, in its order.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct MLFLabels {
    /// The keys, padded with zeros to a common width, and that width.
    keys: (Py<PyArray1<u8>>, usize),
    /// True if each key stands for all keys that end with a slash and this key, too.
    is_pattern: Py<PyArray1<bool>>,
    /// Offset of each entry.
    offsets: Py<PyArray1<u64>>,
    /// Number of frames of each entry.
    frames: Py<PyArray1<u32>>,
    /// Index in `MLF_FAULTS` of each entry.
    faults: Py<PyArray1<u8>>,
    /// Offset of each fault.
    fault_offsets: Py<PyArray1<u64>>,
    /// End of each entry's runs.
    run_ends: Py<PyArray1<u64>>,
    /// First frame of each run.
    starts: HalvesArrays,
    /// Class of each run.
    classes: HalvesArrays,
    /// For each of `MLF_REMARKS` its number of cases, and the offsets of the first cases.
    remarks: Vec<(u64, Vec<u64>)>,
    /// Reason why the scan ended early, as an index in `MLF_STOPS`, and the offset.
    stop: Option<(u8, u64)>,
}

fn halves(py: Python<'_>, numbers: Numbers) -> PyResult<HalvesArrays> {
    Ok((numbers.low.into_array(py)?.unbind(), numbers.high.into_array(py)?.unbind()))
}

fn label_arrays(py: Python<'_>, labels: Labels) -> PyResult<MLFLabels> {
    Ok(MLFLabels {
        keys: rows(py, &labels.keys, &labels.key_ends)?,
        is_pattern: labels.is_pattern.into_array(py)?.unbind(),
        offsets: labels.at.into_array(py)?.unbind(),
        frames: labels.frames.into_array(py)?.unbind(),
        faults: labels.faults.into_array(py)?.unbind(),
        fault_offsets: labels.fault_at.into_array(py)?.unbind(),
        run_ends: labels.run_ends.into_array(py)?.unbind(),
        starts: halves(py, labels.starts)?,
        classes: halves(py, labels.classes)?,
        remarks: labels.remarks.into(),
        stop: labels.stop.map(|(stop, at)| (stop as u8, at)),
    })
}

/// Read the entries of an open file, given as number and size. `times`: whether rows count time, or None if the rows
/// determine that, and the duration of a frame.
#[pyfunction]
pub(crate) fn mlf_scan(
    py: Python<'_>,
    text: TextArgument<'_>,
    is_compatible: bool,
    times: (Option<bool>, f64),
    names: Option<Vec<PyBackedBytes>>,
    dim: u32,
    num_threads: usize,
) -> PyResult<MLFLabels> {
    let (counts_time, frame_period) = times;
    let unit = match counts_time {
        None => Unit::Auto,
        Some(true) => Unit::Time,
        Some(false) => Unit::Frames,
    };
    let classes = names.map(|names| names.iter().zip(0..).map(|(name, class)| (name.to_vec(), class)).collect());
    let rules = Rules { is_compatible, unit, frame_period, classes, dim };
    let pool = pool(num_threads)?;
    let labels = text.detached(py, |text| {
        let mut scan = Scan::new(text, &rules, mlf::SHARE_BYTES);
        // A long scan stops between rounds, because only here can Python's handlers of signals such as Ctrl-C run.
        while pool.install(|| scan.advance())? {
            Python::attach(|py| py.check_signals())?;
        }
        PyResult::Ok(scan.finish())
    })??;
    label_arrays(py, labels)
}

/// Read a binary label file.
#[pyfunction]
pub(crate) fn mlf_scan_binary(py: Python<'_>, data: PyBackedBytes, dim: u32) -> PyResult<MLFLabels> {
    let labels = detached(py, || mlf::scan_binary(&data, dim))?;
    label_arrays(py, labels)
}

/// The labels in the rows of a text, each once, sorted by their bytes.
#[pyfunction]
pub(crate) fn mlf_names<'py>(py: Python<'py>, text: TextArgument<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let names = text.detached(py, mlf::label_names)??;
    Ok(names.iter().map(|name| PyBytes::new(py, name)).collect())
}
