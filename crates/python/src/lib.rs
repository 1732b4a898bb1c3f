//! `cntkio._core`: the core's functions for Python. They take bytes and arrays, return arrays, and release the
//! interpreter's lock while they work.
//!
//! Python decides what is read and what an error means. This crate decides only what affects nothing but time: how many
//! threads help, how they share the work, and when the lock is released. A wrong argument that only a bug of the
//! package can cause is a `ValueError`; errors in users' files are returned as data, except for compressed data that
//! are damaged, a `DamagedDataError`.

use cntkio_memory::allocator::Recycler;
use pyo3::prelude::*;

mod budget;
mod cbf;
mod check_sums;
mod chunk;
mod compressed;
mod ctf;
mod file;
mod htk;
mod kaldi;
mod lengths;
mod objects;
mod order;
mod packed;
mod packing;
mod pool;
mod survey;
mod text;

/// NumPy arrays that own vectors of the core are freed by this allocator too. AddressSanitizer needs the system's
/// allocator instead, because it does not see the borders of blocks that are kept.
#[cfg_attr(not(sanitized), global_allocator)]
static ALLOCATOR: Recycler = Recycler::new();

/// Return the memory that the allocator keeps for the next large arrays to the system. Returns its size in bytes.
#[pyfunction]
fn release_kept_memory() -> usize {
    ALLOCATOR.release_kept()
}

/// The compiled part of cntkio. Not public: its functions change without notice.
// No test has run without the interpreter's lock. (docs/installation.md)
#[pymodule(gil_used = true)]
mod _core {
    use super::*;

    #[pymodule_export]
    use super::release_kept_memory;

    #[pymodule_export]
    use super::budget::{Budget, CutMinibatches, cells_in_rows, scheduled};

    #[pymodule_export]
    use super::cbf::{BinaryFile, CBFChunk, CBFFault, cbf_sizes, cbf_write};

    #[pymodule_export]
    use super::check_sums::{of_array, of_file, read};

    #[pymodule_export]
    use super::chunk::{Chunk, Misfit, pad, spread};

    #[pymodule_export]
    use super::compressed::{
        AccessPoints, CompressedStream, DamagedDataError, Decoders, Fed, FrameSums, decompress, zstd_frame, zstd_points,
    };

    #[pymodule_export]
    use super::ctf::{
        CTFBegun, CTFChunk, CTFFinding, CTFIndexed, CTFIndexedChunk, CTFScan, CTFSchema, CTFSeen, CTFWordScan, Spare,
        SvmlightFacts, SvmlightLayout, ctf_are_distinct, ctf_are_nothing, ctf_chunk_borders, ctf_index,
        ctf_index_chunks, ctf_infer, ctf_parse, ctf_place, ctf_scan_words, svmlight_index,
    };

    #[pymodule_export]
    use super::file::{
        available_parallelism, file_read, file_read_into, file_stamp, file_stamps, file_write, text_line_ends,
    };

    #[pymodule_export]
    use super::order::{
        CursorAt, Cursors, Dealt, SeveralReads, Shares, TimelineReader, TruncatedRead, chunk_order, deal, deal_slices,
        shuffled, steps_of_lanes,
    };

    #[pymodule_export]
    use super::packed::{PackRequest, Packed, Whole, pack, places};

    #[pymodule_export]
    use super::packing::Packing;

    #[pymodule_export]
    use super::pool::begin_in_fork;

    #[pymodule_export]
    use super::survey::{StreamFigures, hashes, repeated, survey};

    #[pymodule_export]
    use super::text::{
        Categories, ConvertedText, Dictionary, TextLosses, UnreadLine, UnwritableSequence, svmlight_write, text_losses,
        text_numbers, text_tokens, text_write,
    };

    #[pymodule_export]
    use super::htk::{
        ChunkRefs, FileBytes, FoundFrames, FrameEncoding, FrameFinder, HTKList, ListError, MLFLabels, chunks_of_reads,
        find_chunks, first_same, frames_chunk, htk_chunk_starts, htk_scan_list, mlf_names, mlf_scan, mlf_scan_binary,
        rolling_order, runs_chunk,
    };

    #[pymodule_export]
    use super::kaldi::{
        KaldiFault, KaldiList, KaldiObjects, KaldiScan, KaldiWritten, kaldi_integers, kaldi_list, kaldi_map,
        kaldi_objects, kaldi_read, kaldi_scan, kaldi_windows, kaldi_write,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // A wrong name is an error of the import: `selected` would silently take the fastest kernel.
        cntkio_simd::Kernel::from_environment().map_err(pyo3::exceptions::PyValueError::new_err)?;
        cntkio_simd::Kernel::selected(); // now, before a fork can interrupt another thread that initialises it
        super::objects::register(module)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("THREAD_LIMITS", super::pool::LIMITS)?;
        module.add("CHECK_SUM_BLOCK", cntkio_core::check_sums::BLOCK_BYTES)?;
        module.add("CTF_NUM_ERROR_KINDS", cntkio_core::ctf::NUM_ERRORS)?;
        module.add("CTF_NUM_COSTLY_KINDS", cntkio_core::ctf::NUM_COSTLY)?;
        // The names of numbered results; a name's index is the result's number.
        for (name, names) in [
            ("CTF_KINDS", cntkio_core::ctf::Kind::NAMES),
            ("KALDI_KINDS", cntkio_core::kaldi::Kind::NAMES),
            ("KALDI_FAULTS", cntkio_core::kaldi::Fault::NAMES),
            ("KALDI_LINE_FAULTS", cntkio_core::kaldi::LineFault::NAMES),
            ("LIST_FAULTS", cntkio_core::htk::ListFault::NAMES),
            ("MLF_FAULTS", cntkio_core::mlf::Fault::NAMES),
            ("MLF_REMARKS", cntkio_core::mlf::Remark::NAMES),
            ("MLF_STOPS", cntkio_core::mlf::Stop::NAMES),
        ] {
            module.add(name, pyo3::types::PyTuple::new(module.py(), names)?)?;
        }
        Ok(())
    }
}
