//! Budgets of minibatches for Python.

use crate::objects::IntoArray;
use crate::pool::{attached, detached};
use cntkio_core::memory::collected;
use cntkio_core::timeline::{self, Batches, Cost, Limits, Pool};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::mem::take;

/// The limits of a minibatch, and how the order is cut into pools. (docs/batches.md)
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct Budget {
    pub(crate) limits: Limits,
    pub(crate) pool: Option<Pool>,
}

/// The limits of a minibatch, from the attributes of an object.
#[derive(FromPyObject)]
struct LimitsOfBatch {
    /// Most samples, sequences, and samples with padding; 2^64 - 1 sets no limit.
    samples: u64,
    sequences: u64,
    padded: u64,
    /// The length whose square counts as many samples as itself; 0: squares add nothing.
    quadratic: u64,
    /// Longer sequences are dropped.
    longest: u32,
    /// True if minibatches that are not full are dropped.
    only_full: bool,
}

/// The pools of minibatches, from the attributes of an object.
#[derive(FromPyObject)]
struct PoolOfBatches {
    /// Samples of a pool, or sequences.
    size: u64,
    counts_sequences: bool,
    /// Rows of a minibatch, and samples of a row; 0 rows: no rows are packed.
    rows: u32,
    row_length: u32,
    /// The longest length of each bucket.
    buckets: Vec<u32>,
    /// The cost of a sample and of the square of a length, of which ranks get equal parts.
    balance: Option<(f64, f64)>,
}

#[pymethods]
impl Budget {
    #[new]
    fn new(limits: LimitsOfBatch, pool: Option<PoolOfBatches>) -> PyResult<Self> {
        // The core finds the bucket of a sequence by binary search.
        if pool.as_ref().is_some_and(|pool| !pool.buckets.is_sorted()) {
            return Err(PyValueError::new_err("buckets do not ascend"));
        }
        let LimitsOfBatch { samples, sequences, padded, quadratic, longest, only_full } = limits;
        let limits = Limits { samples, sequences, padded, quadratic, longest, only_full };
        let pool = pool.map(|PoolOfBatches { size, counts_sequences, rows, row_length, buckets, balance }| Pool {
            size,
            counts_sequences,
            rows,
            row_length,
            buckets,
            balance: balance.map(|(linear, square)| Cost { linear, square }),
        });
        Ok(Self { limits, pool })
    }

    /// The minibatches of consecutive sequences: with a pool, of one pool, in an order that the seed decides. Returns
    /// the index of each sequence in delivered order, what it is dealt by (its length or its row), and the first
    /// sequence of each minibatch and, last, their number.
    fn batches<'py>(
        &self,
        py: Python<'py>,
        lengths: PyReadonlyArray1<'py, u32>,
        seed: u64,
    ) -> PyResult<Minibatches<'py>> {
        let lengths = lengths.as_slice()?;
        let (Batches { order, bounds, .. }, loads) = detached(py, || {
            let mut found = match &self.pool {
                None => Batches {
                    order: collected(0..lengths.len() as u32),
                    bounds: timeline::cut(lengths, self.limits),
                    rows: Vec::new(),
                },
                // The function that is called between steps always returns true, so the work is never stopped.
                Some(pool) => {
                    timeline::batches(lengths, self.limits, pool, seed, &mut || true).expect("nothing stops it")
                }
            };
            let mut loads = take(&mut found.rows);
            if self.pool.as_ref().is_none_or(|pool| pool.rows == 0) {
                loads = collected(found.order.iter().map(|&index| lengths[index as usize]));
            }
            (found, loads)
        })?;
        Ok((order.into_array(py)?, loads.into_array(py)?, bounds))
    }
}

type Minibatches<'py> = (Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<u32>>, Vec<usize>);

/// The first cell of each sequence if consecutive sequences fill rows of a length one after the other.
#[pyfunction]
pub(crate) fn cells_in_rows<'py>(
    py: Python<'py>,
    lengths: PyReadonlyArray1<'_, u32>,
    row_length: u32,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let lengths = lengths.as_slice()?;
    // A few operations for each sequence of a minibatch take too little time to release the interpreter's lock.
    attached(|| timeline::cells_in_rows(lengths, row_length))?.into_array(py)
}
