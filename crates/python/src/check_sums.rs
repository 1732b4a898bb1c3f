//! Checksums of arrays and files.

use crate::file::FileNumber;
use crate::objects::IntoArray;
use crate::pool::{detached, pool};
use cntkio_core::check_sums::{self, BLOCK_BYTES};
use cntkio_core::memory::refused;
use cntkio_core::parallel;
use cntkio_memory::copy::zeros;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use rayon::prelude::*;

/// The checksum of each block of an array of bytes.
#[pyfunction(name = "check_sums")]
pub(crate) fn of_array<'py>(
    py: Python<'py>,
    bytes: PyReadonlyArray1<'py, u8>,
    num_threads: usize,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let (bytes, pool) = (bytes.as_slice()?, pool(num_threads)?);
    py.detach(|| pool.install(|| check_sums::check_sums(bytes))).into_array(py)
}

/// The bytes `begin` to `end` of the `size` bytes at a position of an open file, or None if the file is shorter or a
/// block that holds them does not have its checksum.
#[pyfunction(name = "read_checked")]
pub(crate) fn read<'py>(
    py: Python<'py>,
    file: FileNumber,
    at: u64,
    size: usize,
    range: (usize, usize),
    sums: PyReadonlyArray1<'py, u64>,
    num_threads: usize,
) -> PyResult<Option<Bound<'py, PyArray1<u8>>>> {
    let (begin, end) = range;
    let first_block = begin / BLOCK_BYTES;
    // Only whole blocks have a checksum, so the blocks at both ends are read completely, and cut after the check.
    let (first, last) = (first_block * BLOCK_BYTES, end.next_multiple_of(BLOCK_BYTES).min(size));
    let Some(sums) = sums.as_slice()?.get(first_block..last.div_ceil(BLOCK_BYTES)) else { return Ok(None) };
    if begin > end || end > size {
        return Ok(None);
    }
    let (pool, file) = (pool(num_threads)?, file.file()?);
    let read = || {
        let mut bytes = zeros(last - first).unwrap_or_else(|| refused(last - first));
        let share = |(number, share): (usize, &mut [u8])| {
            let first = first + number * SHARE_BYTES;
            // A share is a multiple of a block, so its first checksum is found by division.
            let sums = &sums[number * SHARE_BYTES / BLOCK_BYTES..][..share.len().div_ceil(BLOCK_BYTES)];
            // A part that cannot be read is treated as damaged: in both cases Python makes the cache again.
            file.read_exact_at(share, at + first as u64).is_ok() && check_sums::are_sound(share, sums)
        };
        // A single share is read on this thread, because no other thread could help.
        let is_sound = if bytes.len() <= SHARE_BYTES {
            share((0, &mut bytes))
        } else {
            pool.install(|| bytes.par_chunks_mut(SHARE_BYTES).enumerate().all(share))
        };
        is_sound.then_some(bytes)
    };
    let Some(mut bytes) = detached(py, read)? else { return Ok(None) };
    bytes.truncate(end - first);
    bytes.drain(..begin - first);
    Ok(Some(bytes.into_array(py)?))
}

/// Bytes that a thread reads and checks at a time.
const SHARE_BYTES: usize = 16 * BLOCK_BYTES;

/// The checksum of all bytes of an open file.
///
/// # Errors
/// The file cannot be read, or has fewer bytes.
#[pyfunction(name = "file_check_sum")]
pub(crate) fn of_file(py: Python<'_>, file: (FileNumber, u64), num_threads: usize) -> PyResult<u64> {
    let (number, size) = file;
    let file = number.file()?;
    let sum = |number: usize| -> std::io::Result<Vec<u64>> {
        let at = number as u64 * SHARE_BYTES as u64;
        let mut bytes = vec![0; (size - at).min(SHARE_BYTES as u64) as usize];
        file.read_exact_at(&mut bytes, at)?;
        Ok(check_sums::check_sums(&bytes))
    };
    let pool = pool(num_threads)?;
    let num_shares = size.div_ceil(SHARE_BYTES as u64) as usize;
    let sums = py.detach(|| pool.install(|| parallel::map(num_shares, sum)));
    let sums = sums.into_iter().collect::<std::io::Result<Vec<_>>>()?;
    let sums: Vec<u8> = sums.iter().flatten().flat_map(|sum| sum.to_le_bytes()).collect();
    let sums = py.detach(|| pool.install(|| check_sums::check_sums(&sums)));
    // Without the rotation, two parts of the file could change places and the result would be the same.
    Ok(sums.iter().fold(size, |all, sum| all.rotate_left(1) ^ sum))
}
