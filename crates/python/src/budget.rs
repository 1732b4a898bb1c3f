//! Budgets of minibatches for Python.

use crate::objects::IntoArray;
use crate::pool::{attached, detached};
use cntkio_core::memory::collected;
use cntkio_core::timeline::{self, Batches, Cost, Limits, Pool, Schedule, Schedules};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::mem::take;

/// The limits of a minibatch, and how the order is cut into pools. (docs/batches.md)
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct Budget {
    pub(crate) limits: Limits,
    pub(crate) pool: Option<Pool>,
    pub(crate) schedules: Option<Schedules>,
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
    /// Longer sequences are dropped, and with `drops` also sequences that exceed another limit by themselves.
    longest: u32,
    drops: bool,
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
    /// True if what a pool leaves over goes into the next pool.
    carries: bool,
}

/// The limits that change with the position, from the attributes of an object.
#[derive(FromPyObject)]
struct SchedulesOfBatch {
    samples: Option<PointsOfLimit>,
    sequences: Option<PointsOfLimit>,
    padded: Option<PointsOfLimit>,
    rows: Option<PointsOfLimit>,
    longest: Option<PointsOfLimit>,
}

/// A limit at some positions, from the attributes of an object.
#[derive(FromPyObject)]
pub(crate) struct PointsOfLimit {
    points: Vec<u64>,
    values: Vec<u64>,
    /// "linear", or the value of a point holds up to the next.
    between: String,
}

impl PointsOfLimit {
    fn schedule(self) -> PyResult<Schedule> {
        let points = self.points.into_iter().zip(self.values).collect();
        Schedule::new(points, self.between == "linear").ok_or_else(|| PyValueError::new_err("points do not ascend"))
    }
}

impl SchedulesOfBatch {
    fn schedules(self, drops: bool) -> PyResult<Schedules> {
        let of = |limit: Option<PointsOfLimit>| limit.map(PointsOfLimit::schedule).transpose();
        let Self { samples, sequences, padded, longest, rows } = self;
        Ok(Schedules {
            samples: of(samples)?,
            sequences: of(sequences)?,
            padded: of(padded)?,
            longest: of(longest)?,
            rows: of(rows)?,
            drops,
        })
    }
}

/// The values of a limit at some positions.
#[pyfunction]
pub(crate) fn scheduled<'py>(
    py: Python<'py>,
    limit: PointsOfLimit,
    positions: PyReadonlyArray1<'_, u64>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let (schedule, positions) = (limit.schedule()?, positions.as_slice()?);
    detached(py, || collected(positions.iter().map(|&position| schedule.at(position))))?.into_array(py)
}

#[pymethods]
impl Budget {
    #[new]
    fn new(limits: LimitsOfBatch, pool: Option<PoolOfBatches>, schedules: Option<SchedulesOfBatch>) -> PyResult<Self> {
        // The core finds the bucket of a sequence by binary search.
        if pool.as_ref().is_some_and(|pool| !pool.buckets.is_sorted()) {
            return Err(PyValueError::new_err("buckets do not ascend"));
        }
        let LimitsOfBatch { samples, sequences, padded, quadratic, longest, drops, only_full } = limits;
        let mut limits = Limits { samples, sequences, padded, quadratic, longest, only_full };
        let pool =
            pool.map(|PoolOfBatches { size, counts_sequences, rows, row_length, buckets, balance, carries }| Pool {
                size,
                counts_sequences,
                rows,
                row_length,
                buckets,
                balance: balance.map(|(linear, square)| Cost { linear, square }),
                carries,
            });
        if drops && schedules.is_none() {
            limits = limits.dropping(pool.as_ref().map_or(&[], |pool| &pool.buckets));
        }
        Ok(Self { limits, pool, schedules: schedules.map(|of| of.schedules(drops)).transpose()? })
    }

    /// The longest sequence that a minibatch which begins at a position takes.
    fn longest_at(&self, position: u64) -> u32 {
        self.at(position).0.longest
    }

    /// The minibatches of consecutive sequences: with a pool, of one pool, in an order that the seed decides. All have
    /// the limits of one that begins at a position.
    fn batches<'py>(
        &self,
        py: Python<'py>,
        lengths: PyReadonlyArray1<'py, u32>,
        seed: u64,
        position: u64,
    ) -> PyResult<CutMinibatches> {
        let lengths = lengths.as_slice()?;
        let (Batches { order, bounds, .. }, loads) = detached(py, || {
            let (limits, pool) = self.at(position);
            let mut found = match &pool {
                None => Batches {
                    order: collected(0..lengths.len() as u32),
                    bounds: timeline::cut(lengths, limits),
                    ..Batches::default()
                },
                // The function that is called between steps always returns true, so the work is never stopped.
                Some(pool) => {
                    timeline::batches(lengths, limits, pool, None, seed, &mut || true).expect("nothing stops it")
                }
            };
            let mut loads = take(&mut found.rows);
            if pool.as_ref().is_none_or(|pool| pool.rows == 0) {
                loads = collected(found.order.iter().map(|&index| lengths[index as usize]));
            }
            (found, loads)
        })?;
        let (order, loads) = (order.into_array(py)?.unbind(), loads.into_array(py)?.unbind());
        Ok(CutMinibatches { order, loads, bounds })
    }
}

impl Budget {
    /// The limits and the pool of a minibatch that begins at a position.
    fn at(&self, position: u64) -> (Limits, Option<Pool>) {
        match &self.schedules {
            Some(schedules) => schedules.at(self.limits, self.pool.as_ref(), position),
            None => (self.limits, self.pool.clone()),
        }
    }
}

/// Minibatches of consecutive sequences.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct CutMinibatches {
    /// The index of each sequence, in delivered order.
    order: Py<PyArray1<u32>>,
    /// The length or the row by which each sequence is dealt.
    loads: Py<PyArray1<u32>>,
    /// The first sequence of each minibatch and, last, the number of sequences.
    bounds: Vec<usize>,
}

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
