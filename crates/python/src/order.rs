//! The reader of the timeline for Python: the table's arrays, and the reader's state in a lock.

use crate::budget::Budget;
use crate::htk::ChunkRefs;
use crate::lengths::LengthsArray;
use crate::objects::IntoArray;
use crate::pool::{as_objects, attached, detached, no_memory};
use cntkio_core::find::ChunksOf;
use cntkio_core::memory::{self, OutOfMemory, or_out_of_memory};
use cntkio_core::timeline::{
    self, Cursor, Delivered, LeftOut, Load, MOST_READS_PASSED, Minibatches, Outcome, Partition, Pause, Pending,
    Randomization, Reader, Request, Slots, Stopped, Table, Truncation, Unread, Window,
};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyIndexError, PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

type Words<'py> = Bound<'py, PyArray1<u32>>;
/// A share of the data.
#[derive(FromPyObject)]
struct ShareOfData {
    index: u64,
    count: u64,
}

impl ShareOfData {
    /// # Errors
    /// `ValueError`: the data have no such share.
    fn partition(&self) -> PyResult<Partition> {
        let Self { index, count } = *self;
        if index >= count {
            return Err(PyValueError::new_err(format!("{count} shares have no number {index}")));
        }
        Ok(Partition { index, count })
    }
}

/// The window of a randomized order, from the attributes of an object.
#[derive(FromPyObject)]
struct WindowOfOrder {
    size: u64,
    unit: String,
    order: String,
}

impl WindowOfOrder {
    fn randomization(&self, seed: u64) -> Randomization {
        let window = if self.unit == "chunks" { Window::Chunks(self.size) } else { Window::Samples(self.size) };
        Randomization { window, seed, is_keyed: self.order == "keyed" }
    }
}

/// The rules of reads of whole sequences, from the attributes of an object.
#[derive(FromPyObject)]
struct ReadRules {
    share: u64,
    passed: u64,
    crosses_sweeps: bool,
    counts_sequences: bool,
    /// True if the share counts the sequences of all partitions.
    is_global: bool,
    /// True if the reads are dealt afterwards, for which lengths or rows are needed, and not chunks.
    is_dealt: bool,
    partition: ShareOfData,
    /// Further limits.
    budget: Option<Py<Budget>>,
}

impl ReadRules {
    fn request(&self) -> PyResult<Request> {
        Ok(Request {
            partition: self.partition.partition()?,
            share: self.share,
            passed: self.passed,
            crosses_sweeps: self.crosses_sweeps,
            counts_sequences: self.counts_sequences,
            is_global: self.is_global,
            limits: self.budget.as_ref().map(|budget| budget.get().limits),
        })
    }

    fn minibatches(&self) -> PyResult<Minibatches<'_>> {
        let budget = self.budget.as_ref().map(Py::get);
        Ok(Minibatches {
            request: self.request()?,
            pool: budget.and_then(|budget| budget.pool.as_ref()),
            schedules: budget.and_then(|budget| budget.schedules.as_ref()),
        })
    }
}

/// The rules of truncated minibatches, from the attributes of an object.
#[derive(FromPyObject)]
struct TruncatedRules {
    num_steps: u32,
    right_splice: u32,
    crosses_sweeps: bool,
    partition: ShareOfData,
}

impl TruncatedRules {
    /// The read of a slot: one sequence.
    fn request(&self) -> PyResult<Request> {
        Ok(Request {
            partition: self.partition.partition()?,
            // A sequence counts for at least one sample, so a share of one sample is always one sequence.
            share: 1,
            passed: u64::MAX,
            crosses_sweeps: self.crosses_sweeps,
            counts_sequences: false,
            is_global: false,
            limits: None,
        })
    }

    fn truncation(&self) -> PyResult<Truncation> {
        // Otherwise a full row would not move on.
        if self.right_splice >= self.num_steps {
            return Err(PyValueError::new_err("a truncated minibatch has more steps than its splice"));
        }
        Ok(Truncation { steps: self.num_steps, overlap: self.right_splice })
    }
}

/// The results of several reads.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct SeveralReads {
    /// The sequences.
    sequences: Py<PyArray1<i64>>,
    /// The chunk of each sequence.
    chunks: Py<PyArray1<i64>>,
    /// First sequence of each read and, last, the number of sequences.
    bounds: Vec<usize>,
    /// For each read, true if it met the end of a sweep.
    ends_of_sweep: Vec<bool>,
    /// The cursor after each read.
    cursors: Py<Cursors>,
    /// The result of `find_chunks`, unless the sequences are dealt afterwards.
    refs: Option<Py<ChunkRefs>>,
    /// The number that decides the deal, if the sequences are dealt afterwards: lengths or rows.
    loads: Option<Py<PyArray1<u32>>>,
}

/// A truncated minibatch: columns for the parts of sequences.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct TruncatedRead {
    slot: Py<PyArray1<i64>>,
    sequences: Py<PyArray1<i64>>,
    chunks: Py<PyArray1<i64>>,
    first_sample: Py<PyArray1<i64>>,
    num_samples: Py<PyArray1<i64>>,
    step: Py<PyArray1<i64>>,
    /// True if the sequence continues in the next minibatch.
    continues: Py<PyArray1<bool>>,
    /// True if the read met the end of a sweep.
    end_of_sweep: bool,
    /// Position in samples after the read.
    position: u64,
}

/// A bookmark of the reader.
#[pyclass(name = "Cursor", frozen, get_all, eq, hash, from_py_object, module = "cntkio._core")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CursorAt {
    /// Samples of all partitions before it.
    position: u64,
    sweep: u64,
    /// Sequences of the sweep before it.
    index: u32,
    /// Rank of the chunk in the sweep.
    rank: u32,
    /// Running count of sequences.
    count: u64,
    /// Minibatches of the pool that were delivered.
    batch: u32,
}

#[pymethods]
impl CursorAt {
    #[new]
    #[pyo3(signature = (position, *, sweep=0, index=0, rank=0, count=0, batch=0))]
    fn new(position: u64, sweep: u64, index: u32, rank: u32, count: u64, batch: u32) -> CursorAt {
        CursorAt { position, sweep, index, rank, count, batch }
    }

    fn __repr__(&self) -> String {
        let CursorAt { position, sweep, index, rank, count, batch } = self;
        format!("Cursor({position}, sweep={sweep}, index={index}, rank={rank}, count={count}, batch={batch})")
    }
}

impl From<Cursor> for CursorAt {
    fn from(cursor: Cursor) -> CursorAt {
        let Cursor { position, sweep, index, rank, count, batch } = cursor;
        CursorAt { position, sweep, index, rank, count, batch }
    }
}

impl From<CursorAt> for Cursor {
    fn from(cursor: CursorAt) -> Cursor {
        let CursorAt { position, sweep, index, rank, count, batch } = cursor;
        Cursor { position, sweep, index, rank, count, batch }
    }
}

/// Bookmarks of the reader, one after each of several reads. The objects are created on request, because few are used.
#[pyclass(frozen, sequence, module = "cntkio._core")]
pub(crate) struct Cursors(Vec<Cursor>);

#[pymethods]
impl Cursors {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __getitem__(&self, index: isize) -> PyResult<CursorAt> {
        let index = if index < 0 { index + self.0.len() as isize } else { index };
        let cursor = usize::try_from(index).ok().and_then(|index| self.0.get(index));
        Ok((*cursor.ok_or_else(|| PyIndexError::new_err("no such bookmark"))?).into())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyList::new(py, self.0.iter().map(|&cursor| CursorAt::from(cursor)))?.try_iter()
    }
}

/// A sequence pending in a slot: its number, its first undelivered sample, and whether its read met the end of a sweep.
type PendingTuple = (u32, u32, bool);

struct State {
    reader: Reader,
    slots: Slots,
    delivered: Vec<Delivered>,
}

/// The results of several reads, before they are arrays.
#[derive(Default)]
struct Found {
    sequences: Vec<i64>,
    chunks: Vec<i64>,
    bounds: Vec<usize>,
    ends_of_sweep: Vec<bool>,
    cursors: Vec<Cursor>,
    refs: Option<ChunksOf>,
    loads: Option<Vec<u32>>,
}

impl State {
    /// Run `work`; if it fails, go back. `run` knows only one error, `Stopped`, so refused memory is part of the value.
    fn or_back<R>(
        &mut self,
        work: impl FnOnce(&mut State) -> Result<R, Stopped>,
    ) -> Result<Result<R, OutOfMemory>, Stopped> {
        let begin = self.reader.cursor();
        // Refused memory is caught here, before `run` does, because the reader must go back while the state is locked.
        let done = or_out_of_memory(|| work(self));
        if !matches!(done, Ok(Ok(_))) {
            // A `clear` would keep the memory, which may be the reason for the failure.
            self.delivered = Vec::new();
            self.reader.rewind(begin);
        }
        done.map_or_else(|failed| Ok(Err(failed)), |done| done.map(Ok))
    }

    fn read_several(
        &mut self,
        table: Table,
        rules: &ReadRules,
        minibatches: Minibatches,
        most: usize,
        pause: &mut Pause,
    ) -> Result<Found, Stopped> {
        self.delivered.clear();
        let mut found = Found { bounds: vec![0], ..Found::default() };
        let ranks = self.reader.ranks();
        while found.cursors.len() < most {
            let outcome = self.reader.read_minibatch(table, minibatches, &mut self.delivered, pause)?;
            if outcome.is_empty && outcome.ended {
                break;
            }
            found.bounds.push(self.delivered.len());
            // CNTK flags a minibatch without data in its classic readers only.
            found.ends_of_sweep.push(outcome.end_of_sweep && (!outcome.is_empty || !rules.crosses_sweeps));
            found.cursors.push(self.reader.cursor());
            if outcome.ended || self.reader.ranks() != ranks {
                break;
            }
        }
        let delivered = || self.delivered.iter();
        found.sequences = memory::collected(delivered().map(|delivered| i64::from(delivered.sequence)));
        found.chunks = memory::collected(delivered().map(|delivered| i64::from(delivered.chunk)));
        // Of reads that are dealt afterwards only a part is kept, and `Shares::refs` finds its chunks.
        if rules.is_dealt {
            found.loads = Some(memory::collected(delivered().map(|delivered| delivered.load)));
        } else {
            found.refs = Some(self.chunks(table));
        }
        Ok(found)
    }

    /// The chunks of the delivered sequences.
    fn chunks(&self, table: Table) -> ChunksOf {
        let place = |delivered: &Delivered| {
            let number = i64::from(delivered.sequence) - table.chunk_starts[delivered.chunk as usize];
            (delivered.chunk.into(), number as u32)
        };
        ChunksOf::of(self.delivered.iter().map(place))
    }
}

fn no_slots(num_slots: usize) -> PyErr {
    PyMemoryError::new_err(format!("no memory for {num_slots} slots of a truncated minibatch"))
}

/// Walks along the timeline of one table. (docs/timeline.md)
#[pyclass(frozen, module = "cntkio._core")]
pub(crate) struct TimelineReader {
    lengths: Py<PyAny>,
    chunk_starts: Py<PyArray1<i64>>,
    state: Mutex<State>,
    /// The mark of the thread that runs long work with the state; 0: none does.
    runner: AtomicUsize,
}

/// A number that no other running thread has; never 0.
fn mark_of_thread() -> usize {
    // Variables of threads that run at the same time have different addresses, and no variable has the address 0.
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// Says that a thread runs long work, until it is dropped.
struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn new(runner: &'a AtomicUsize) -> Running<'a> {
        // Relaxed, because the mark matters only to the thread that stored it, and a thread always sees its own stores.
        runner.store(mark_of_thread(), Ordering::Relaxed);
        Running(runner)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl TimelineReader {
    /// Refuse a call from the handler of a signal that interrupted long work of this thread: a wait for the end of that
    /// work would take forever.
    fn refuse_handlers(&self) -> PyResult<()> {
        if self.runner.load(Ordering::Relaxed) != mark_of_thread() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err("a signal handler cannot use the timeline whose call the signal interrupted"))
    }

    /// Run `work` without the interpreter's lock. A signal such as Ctrl-C can stop it.
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        work: impl Send + FnOnce(&mut State, Table, &mut Pause) -> Result<R, Stopped>,
    ) -> PyResult<R> {
        self.refuse_handlers()?;
        // A borrow of an array ends with the call, so every call borrows the arrays again.
        let lengths: LengthsArray = self.lengths.bind(py).extract()?;
        let chunk_starts = self.chunk_starts.bind(py).readonly();
        let table = Table { lengths: lengths.lengths()?, chunk_starts: chunk_starts.as_slice()? };
        interruptible(py, |pause| {
            // A panic or refused memory poisons the lock. The callers return to a bookmark, so the state stays usable.
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            // The mark is set after the lock is taken, so it replaces no other thread's mark, and removed before the
            // lock is released.
            let _running = Running::new(&self.runner);
            work(&mut state, table, pause)
        })
    }

    /// Run short `work` and keep the interpreter's lock. If another thread uses the state, release the lock for the
    /// wait, because that thread may need it.
    fn quick<R: Send>(&self, py: Python<'_>, work: impl Send + FnOnce(&mut State) -> R) -> PyResult<R> {
        match self.state.try_lock() {
            Ok(mut state) => return Ok(work(&mut state)),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(work(&mut poisoned.into_inner())),
            // A lock that is free proves that this call interrupts no work of its own thread, so only here a check is
            // needed.
            Err(TryLockError::WouldBlock) => self.refuse_handlers()?,
        }
        Ok(py.detach(|| work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))))
    }

    /// # Errors
    /// `ValueError`: the table has no such place.
    fn place(&self, py: Python<'_>, cursor: CursorAt) -> PyResult<Cursor> {
        let (cursor, chunk_starts) = (cursor.into(), self.chunk_starts.bind(py).readonly());
        let chunk_starts = chunk_starts.as_slice()?;
        if !self.quick(py, |state| state.reader.has(chunk_starts, cursor))? {
            return Err(PyValueError::new_err("a cursor of another table"));
        }
        Ok(cursor)
    }
}

#[pymethods]
impl TimelineReader {
    /// Create a reader at position 0. It reads in order without a window.
    #[new]
    #[pyo3(signature = (lengths, chunk_starts, *, window, seed, end))]
    fn new(
        py: Python<'_>,
        lengths: Bound<'_, PyAny>,
        chunk_starts: PyReadonlyArray1<'_, i64>,
        window: Option<WindowOfOrder>,
        seed: u64,
        end: u64,
    ) -> PyResult<Self> {
        let array: LengthsArray = lengths.extract()?;
        let table = Table { lengths: array.lengths()?, chunk_starts: chunk_starts.as_slice()? };
        let starts = table.chunk_starts;
        let is_whole = starts.first() == Some(&0)
            && starts.last() == i64::try_from(table.lengths.len()).ok().as_ref()
            && starts.is_sorted_by(|a, b| a < b);
        // The reader relies on these properties, and counts sequences in 32 bits.
        if !is_whole || table.lengths.is_empty() || u32::try_from(table.lengths.len()).is_err() {
            return Err(PyValueError::new_err("not a table of chunks"));
        }
        let randomization = window.map(|window| window.randomization(seed));
        let reader = py.detach(|| Reader::new(table, randomization, end));
        // Positions are divided by the number of samples.
        if reader.num_samples() == 0 {
            return Err(PyValueError::new_err("a table without samples"));
        }
        Ok(Self {
            lengths: lengths.clone().unbind(),
            chunk_starts: (*chunk_starts).clone().unbind(),
            state: Mutex::new(State { reader, slots: Slots::default(), delivered: Vec::new() }),
            runner: AtomicUsize::new(0),
        })
    }

    /// Leave sequences out: `since` has for each sequence 1 + the index of the position in `from_positions`; 0: never.
    fn leave_out(&self, py: Python<'_>, since: PyReadonlyArray1<'_, u8>, from_positions: Vec<u64>) -> PyResult<()> {
        let array: LengthsArray = self.lengths.bind(py).extract()?;
        let since = since.as_slice()?;
        // The reader indexes both without a check.
        if since.len() != array.lengths()?.len() || since.iter().any(|&of| usize::from(of) > from_positions.len()) {
            return Err(PyValueError::new_err("not an entry for each sequence"));
        }
        let left_out = LeftOut { since: since.to_vec(), from: from_positions };
        self.quick(py, |state| state.reader.leave_out(left_out))
    }

    /// The array of lengths that the reader was created with.
    #[getter]
    fn lengths(&self, py: Python<'_>) -> Py<PyAny> {
        self.lengths.clone_ref(py)
    }

    /// The array of chunk starts that the reader was created with.
    #[getter]
    fn chunk_starts(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.chunk_starts.clone_ref(py)
    }

    /// Number of samples in a sweep.
    #[getter]
    fn num_samples(&self, py: Python<'_>) -> PyResult<u64> {
        self.quick(py, |state| state.reader.num_samples())
    }

    /// The cursor.
    #[getter]
    fn cursor(&self, py: Python<'_>) -> PyResult<CursorAt> {
        Ok(self.quick(py, |state| state.reader.cursor())?.into())
    }

    /// Return to an earlier cursor.
    fn rewind(&self, py: Python<'_>, cursor: CursorAt) -> PyResult<()> {
        let cursor = self.place(py, cursor)?;
        self.quick(py, |state| state.reader.rewind(cursor))
    }

    /// Keep the data that `rewind` needs to return to a cursor of this sweep.
    fn hold(&self, py: Python<'_>, cursor: CursorAt) -> PyResult<()> {
        let cursor = self.place(py, cursor)?;
        self.quick(py, |state| state.reader.hold(cursor))
    }

    /// Bytes of memory in use, without the table's arrays.
    #[getter]
    fn num_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.quick(py, |state| state.reader.num_bytes())
    }

    fn set_count(&self, py: Python<'_>, count: u64) -> PyResult<()> {
        self.quick(py, |state| state.reader.set_count(count))
    }

    fn set_batch(&self, py: Python<'_>, batch: u32) -> PyResult<()> {
        self.quick(py, |state| state.reader.set_batch(batch))
    }

    /// Number of minibatches of the pool that was read last.
    #[getter]
    fn num_batches(&self, py: Python<'_>) -> PyResult<u32> {
        self.quick(py, |state| state.reader.num_batches())
    }

    fn set_end(&self, py: Python<'_>, end: u64) -> PyResult<()> {
        self.quick(py, |state| state.reader.set_end(end))
    }

    /// Go to the first sequence that starts at or after `position`, with no slots.
    #[pyo3(signature = (position, known=None))]
    fn set_position(&self, py: Python<'_>, position: u64, known: Option<u32>) -> PyResult<()> {
        self.run(py, |state, table, pause| {
            state.reader.set_position(table, position, known, pause)?;
            state.slots = Slots::default();
            Ok(())
        })
    }

    /// Prepare for another partition or size, with empty slots.
    fn change_partition(&self, py: Python<'_>, index: u64, count: u64, num_slots: usize) -> PyResult<()> {
        let partition = ShareOfData { index, count }.partition()?;
        self.quick(py, |state| {
            state.reader.change_partition(partition);
            state.slots = Slots::new(num_slots);
        })
    }

    /// Do at most `most` reads. Stop early after a read that changes the rank (the next read may need other chunks),
    /// and at the end of the data. None if the data have ended before the first read.
    fn read_several(&self, py: Python<'_>, rules: ReadRules, most: usize) -> PyResult<Option<SeveralReads>> {
        let minibatches = rules.minibatches()?;
        let reads = self.run(py, |state, table, pause| {
            state.or_back(|state| state.read_several(table, &rules, minibatches, most, pause))
        })?;
        let Found { sequences, chunks, bounds, ends_of_sweep, cursors, refs, loads } = reads.map_err(no_memory)?;
        if cursors.is_empty() {
            return Ok(None);
        }
        let refs = refs.map(|refs| Py::new(py, ChunkRefs::of(py, refs)?)).transpose()?;
        Ok(Some(SeveralReads {
            sequences: sequences.into_array(py)?.unbind(),
            chunks: chunks.into_array(py)?.unbind(),
            bounds,
            ends_of_sweep,
            cursors: Py::new(py, Cursors(cursors))?,
            refs,
            loads: loads.map(|loads| loads.into_array(py)).transpose()?.map(Bound::unbind),
        }))
    }

    /// Pass over at most `most` reads of `read_several` that end at position `until` or before; returns their number.
    fn pass_reads(&self, py: Python<'_>, rules: ReadRules, most: u64, until: u64) -> PyResult<u64> {
        let minibatches = rules.minibatches()?;
        let num_passed = self.run(py, |state, table, pause| {
            state.or_back(|state| state.reader.pass(table, minibatches, most, until, pause))
        })?;
        num_passed.map_err(no_memory)
    }

    /// Pass over at most `most` truncated minibatches; returns their number.
    fn pass_truncated(&self, py: Python<'_>, rules: TruncatedRules, most: u64) -> PyResult<u64> {
        let (request, truncation) = (rules.request()?, rules.truncation()?);
        let num_passed = self.run(py, |state, table, pause| {
            let (mut parts, mut num_passed) = (Vec::new(), 0);
            while num_passed < most.min(MOST_READS_PASSED) {
                parts.clear();
                match state.slots.read(&mut state.reader, table, truncation, request, &mut parts, pause) {
                    Ok(_) if parts.is_empty() => break,
                    Ok(_) => num_passed += 1,
                    Err(Unread::OutOfMemory(num_slots)) => return Ok(Err(num_slots)),
                    Err(Unread::Stopped) => return Err(Stopped),
                }
            }
            Ok(Ok(num_passed))
        })?;
        num_passed.map_err(no_slots)
    }

    /// Read a truncated minibatch; None if the data have ended.
    fn read_truncated(&self, py: Python<'_>, rules: TruncatedRules) -> PyResult<Option<TruncatedRead>> {
        let (request, truncation) = (rules.request()?, rules.truncation()?);
        let read = self.run(py, |state, table, pause| {
            let mut parts = Vec::new();
            match state.slots.read(&mut state.reader, table, truncation, request, &mut parts, pause) {
                Ok(outcome) => Ok(Ok((parts, outcome, state.reader.cursor().position))),
                Err(Unread::OutOfMemory(num_slots)) => Ok(Err(num_slots)),
                Err(Unread::Stopped) => Err(Stopped),
            }
        })?;
        let (parts, Outcome { end_of_sweep, .. }, position) = read.map_err(no_slots)?;
        if parts.is_empty() {
            return Ok(None);
        }
        let column = |value: &dyn Fn(&cntkio_core::timeline::Part) -> u32| {
            let column = attached(|| memory::collected(parts.iter().map(|part| i64::from(value(part)))))?;
            column.into_array(py).map(Bound::unbind)
        };
        Ok(Some(TruncatedRead {
            slot: column(&|part| part.slot)?,
            sequences: column(&|part| part.delivered.sequence)?,
            chunks: column(&|part| part.delivered.chunk)?,
            first_sample: column(&|part| part.first_sample)?,
            num_samples: column(&|part| part.num_samples)?,
            step: column(&|part| part.step)?,
            continues: attached(|| memory::collected(parts.iter().map(|part| part.continues)))?
                .into_array(py)?
                .unbind(),
            end_of_sweep,
            position,
        }))
    }

    /// The sequences that are pending in each of the first slots; the other slots are empty.
    #[getter]
    fn pending<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let tuple = |pending: &Pending| (pending.delivered.sequence, pending.next, pending.end_of_sweep);
        let queues: Vec<Vec<PendingTuple>> = self
            .quick(py, |state| state.slots.queues().iter().map(|queue| queue.iter().map(tuple).collect()).collect())?;
        as_objects(py, queues)
    }

    /// Restore the slots. Every sequence is in the table and has samples left.
    fn restore_pending(&self, py: Python<'_>, slots: Vec<Vec<PendingTuple>>) -> PyResult<()> {
        let restored = self.run(py, |state, table, _| {
            let pending = |&(sequence, next, end_of_sweep): &PendingTuple| {
                let exists = (sequence as usize) < table.lengths.len();
                let load = exists.then(|| table.lengths.get(sequence as usize)).filter(|&load| next < load)?;
                // The first chunk starts at 0, as `new` has checked, so at least one start is counted.
                let chunk = table.chunk_starts.partition_point(|&start| start <= i64::from(sequence)) - 1;
                Some(Pending { delivered: Delivered { sequence, chunk: chunk as u32, load }, next, end_of_sweep })
            };
            let queues = slots.iter().map(|slot| slot.iter().map(pending).collect::<Option<VecDeque<_>>>());
            Ok(queues.collect::<Option<_>>().map(|queues| state.slots.restore(queues)))
        })?;
        restored.ok_or_else(|| PyValueError::new_err("a sequence that is not in the table, or has ended"))
    }

    /// The chunks of all pending sequences, and of the sequences that a pool left to the next pool, each once.
    #[getter]
    fn pending_chunks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let chunks = self.quick(py, |state| {
            let queues = state.slots.queues().iter();
            let mut chunks: Vec<u32> = queues.flatten().map(|pending| pending.delivered.chunk).collect();
            chunks.extend_from_slice(state.reader.carried_chunks());
            // A chunk that several slots need is one chunk to load.
            chunks.sort_unstable();
            chunks.dedup();
            chunks
        })?;
        as_objects(py, chunks)
    }

    /// Sweep and rank of the next sequence; None if the data have ended.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<Option<(u64, u32)>> {
        self.quick(py, |state| state.reader.rank())
    }

    /// Sweep and rank of the next sequence, and the last rank of the pool that has begun; None if the data have ended.
    #[getter]
    fn ranks(&self, py: Python<'_>) -> PyResult<Option<(u64, u32, u32)>> {
        self.quick(py, |state| state.reader.ranks())
    }

    /// Sweep and rank of the next sequence at an earlier cursor; None if the data end there.
    fn rank_at(&self, py: Python<'_>, cursor: CursorAt) -> PyResult<Option<(u64, u32)>> {
        self.quick(py, |state| state.reader.rank_at(cursor.into()))
    }

    /// The chunks that can contain a sequence delivered at the ranks from `rank` to `last`, and the rank after them.
    fn chunks_at(
        &self,
        py: Python<'_>,
        sweep: u64,
        rank: u32,
        last: u32,
        index: u64,
        count: u64,
    ) -> PyResult<(Vec<i64>, u32)> {
        let partition = ShareOfData { index, count }.partition()?;
        let found = self.run(py, |state, table, _| {
            let exist = rank <= last && (last as usize) + 1 < table.chunk_starts.len();
            Ok(exist.then(|| state.reader.chunks_at(table, sweep, rank, last, partition)))
        })?;
        found.ok_or_else(|| PyValueError::new_err(format!("no ranks from {rank} to {last}")))
    }

    /// The next at most `limit` chunks needed from a rank on in one sweep, and the rank after them.
    fn chunks_from(
        &self,
        py: Python<'_>,
        sweep: u64,
        rank: u32,
        limit: usize,
        index: u64,
        count: u64,
    ) -> PyResult<(Vec<i64>, u32)> {
        let partition = ShareOfData { index, count }.partition()?;
        self.run(py, |state, table, _| Ok(state.reader.chunks_from(table, sweep, rank, limit, partition)))
    }
}

/// All chunks in the order of a sweep with this seed.
#[pyfunction]
pub(crate) fn chunk_order(py: Python<'_>, num_chunks: u32, seed: u64) -> PyResult<Bound<'_, PyArray1<u32>>> {
    detached(py, || timeline::chunk_order(num_chunks as usize, seed))?.into_array(py)
}

/// The numbers below `count`, in the order in which the sequences of user-defined deserializers are shuffled.
#[pyfunction]
pub(crate) fn shuffled(py: Python<'_>, count: u32, seed: u64) -> PyResult<Bound<'_, PyArray1<u32>>> {
    // A window may have up to 2^32 sequences, so a signal such as Ctrl-C must be able to stop the shuffle.
    interruptible(py, |pause| timeline::shuffled(count, seed, pause))?.into_array(py)
}

/// Run `work` without the interpreter's lock. A signal such as Ctrl-C can stop it.
fn interruptible<R: Send>(py: Python<'_>, work: impl Send + FnOnce(&mut Pause) -> Result<R, Stopped>) -> PyResult<R> {
    let mut signal = Ok(());
    let done = detached(py, || {
        work(&mut || {
            // Handlers of signals run in the main thread, between two steps of Python: while that thread is here, only
            // this call runs them.
            signal = Python::attach(|py| py.check_signals());
            signal.is_ok()
        })
    });
    // If a handler raised an exception, that exception explains why the work stopped.
    signal?;
    // Only the pause stops the work, and then `signal` is an error, which has returned above.
    done?.map_err(|Stopped| PyValueError::new_err("stopped without a signal"))
}

/// A rank's share of several global minibatches: the kept sequences, and the first of each minibatch among them.
///
/// `bounds` ascend from 0 to the number of sequences. The `loads` are lengths, or with packed rows the rows that are
/// dealt.
#[pyfunction]
pub(crate) fn deal<'py>(
    py: Python<'py>,
    loads: PyReadonlyArray1<'py, u32>,
    bounds: Vec<usize>,
    num_ranks: u64,
    rank: u64,
    by_padded_area: bool,
    budget: Option<&Budget>,
) -> PyResult<(Bound<'py, PyArray1<u32>>, Vec<usize>)> {
    let loads = loads.as_slice()?;
    check_bounds(&bounds, loads.len(), "minibatches")?;
    let partition = ShareOfData { index: rank, count: num_ranks }.partition()?;
    let (kept, kept_bounds) = detached(py, || dealt(loads, &bounds, partition, by_padded_area, budget))?;
    Ok((kept.into_array(py)?, kept_bounds))
}

/// Check that bounds ascend from 0 to a number of sequences. The core cuts arrays at them without a check.
fn check_bounds(bounds: &[usize], num_sequences: usize, of: &str) -> PyResult<()> {
    if bounds.first() != Some(&0) || bounds.last() != Some(&num_sequences) || !bounds.is_sorted() {
        return Err(PyValueError::new_err(format!("not the bounds of {of}")));
    }
    Ok(())
}

/// The result of `timeline::deal`, or with packed rows of `timeline::deal_rows`.
fn dealt(
    loads: &[u32],
    bounds: &[usize],
    partition: Partition,
    by_padded_area: bool,
    budget: Option<&Budget>,
) -> (Vec<u32>, Vec<usize>) {
    let pool = budget.and_then(|budget| budget.pool.as_ref());
    let load = if by_padded_area { Load::PaddedArea } else { Load::Samples };
    let load = pool.and_then(|pool| pool.balance).map_or(load, Load::Cost);
    match pool {
        Some(pool) if pool.rows > 0 => timeline::deal_rows(loads, bounds, partition.count, partition.index),
        _ => timeline::deal(loads, bounds, partition.count, partition.index, load),
    }
}

/// The sequences that a rank holds of several minibatches in rows, if the ranks share each row. `bounds` as for `deal`.
#[pyfunction]
pub(crate) fn deal_slices<'py>(
    py: Python<'py>,
    lengths: PyReadonlyArray1<'py, u32>,
    bounds: Vec<usize>,
    num_ranks: u64,
    rank: u64,
    row_length: u32,
) -> PyResult<(Bound<'py, PyArray1<u32>>, Vec<usize>)> {
    let lengths = lengths.as_slice()?;
    check_bounds(&bounds, lengths.len(), "minibatches")?;
    let Partition { index, count } = ShareOfData { index: rank, count: num_ranks }.partition()?;
    if count > u64::from(row_length) {
        return Err(PyValueError::new_err(format!("rows of {row_length} samples have no {count} parts")));
    }
    let (kept, kept_bounds) = detached(py, || timeline::deal_slices(lengths, &bounds, count, index, row_length))?;
    Ok((kept.into_array(py)?, kept_bounds))
}

/// The step of each sequence if each lane spreads its sequences evenly over a number of steps.
///
/// `bounds` ascend from 0 to the number of sequences, and have one entry more than `lanes`.
#[pyfunction]
pub(crate) fn steps_of_lanes<'py>(
    py: Python<'py>,
    lengths: PyReadonlyArray1<'py, u32>,
    bounds: Vec<usize>,
    lanes: Vec<u64>,
    num_steps: u32,
    seed: u64,
) -> PyResult<Words<'py>> {
    let lengths = lengths.as_slice()?;
    check_bounds(&bounds, lengths.len(), "lanes")?;
    // Without steps, the core has no bin for a sequence.
    if lanes.len() + 1 != bounds.len() || num_steps == 0 {
        return Err(PyValueError::new_err("not the bounds of lanes"));
    }
    interruptible(py, |pause| timeline::steps_of_lanes(lengths, &bounds, &lanes, num_steps, seed, pause))?
        .into_array(py)
}

/// The sequences of several reads that a rank keeps.
#[pyclass(frozen, get_all, module = "cntkio._core")]
pub(crate) struct Dealt {
    sequences: Py<PyArray1<i64>>,
    /// The part of each, and its index in its chunk.
    parts: Py<PyArray1<i64>>,
    indices: Py<PyArray1<u32>>,
    /// The first kept sequence of each read and, last, their number.
    bounds: Vec<usize>,
}

/// The sequences of several reads, from the attributes of an object.
#[derive(FromPyObject)]
struct Dealing<'py> {
    sequences: PyReadonlyArray1<'py, i64>,
    chunks: PyReadonlyArray1<'py, i64>,
    loads: PyReadonlyArray1<'py, u32>,
}

/// A rank's share of each chunk, from reads that are dealt before the chunks are loaded.
#[pyclass(module = "cntkio._core")]
pub(crate) struct Shares {
    inner: timeline::Shares,
    chunk_starts: Py<PyArray1<i64>>,
    /// The budget of the reads.
    budget: Option<Py<Budget>>,
}

#[pymethods]
impl Shares {
    /// No shares yet. `chunk_starts` has the first sequence of each chunk and, last, the number of sequences.
    #[new]
    #[pyo3(signature = (num_samples, chunk_starts, budget=None))]
    fn new(num_samples: u64, chunk_starts: PyReadonlyArray1<'_, i64>, budget: Option<Py<Budget>>) -> PyResult<Self> {
        let num_chunks = chunk_starts.as_slice()?.len().saturating_sub(1) as u64;
        // The position of a read is divided by the number of samples to find its sweep. Each chunk has a sample, so
        // the number of a part is not above the position.
        if num_chunks == 0 || num_chunks > num_samples {
            return Err(PyValueError::new_err("not a table of chunks"));
        }
        let inner = timeline::Shares::new(num_samples, num_chunks);
        Ok(Self { inner, chunk_starts: (*chunk_starts).clone().unbind(), budget })
    }

    /// Deal several reads, or with one rank keep all. `ends` are the positions after each read, or in a pool any later
    /// position of its sweep than the first.
    fn deal(
        &mut self,
        py: Python<'_>,
        all: Dealing<'_>,
        bounds: Vec<usize>,
        ends: Vec<u64>,
        partition: ShareOfData,
        by_padded_area: bool,
    ) -> PyResult<Dealt> {
        let chunk_starts = self.chunk_starts.bind(py).readonly();
        let chunk_starts = chunk_starts.as_slice()?;
        let (sequences, chunks, loads) = (all.sequences.as_slice()?, all.chunks.as_slice()?, all.loads.as_slice()?);
        let count = sequences.len();
        check_bounds(&bounds, count, "minibatches")?;
        if ends.len() + 1 != bounds.len() || [chunks.len(), loads.len()] != [count; 2] {
            return Err(PyValueError::new_err("not the sequences of minibatches"));
        }
        let partition = partition.partition()?;
        let budget = self.budget.as_ref().map(Py::get);
        let lengths = budget.is_none_or(|budget| budget.pool.is_none()).then_some(loads);
        let (kept, bounds) = detached(py, || {
            let (kept, kept_bounds) = dealt(loads, &bounds, partition, by_padded_area, budget);
            let all = timeline::Sequences { sequences, chunks, lengths };
            (self.inner.add(all, &bounds, &ends, &kept, chunk_starts), kept_bounds)
        })?;
        let kept = kept.ok_or_else(|| PyValueError::new_err("a sequence is not in its chunk"))?;
        let timeline::Kept { sequences, parts, indices } = kept;
        Ok(Dealt {
            sequences: sequences.into_array(py)?.unbind(),
            parts: parts.into_array(py)?.unbind(),
            indices: indices.into_array(py)?.unbind(),
            bounds,
        })
    }

    /// The parts that have sequences, among some parts that are complete.
    fn filled(&self, parts: Vec<u64>) -> Vec<u64> {
        parts.into_iter().filter(|&part| self.inner.is_filled(part)).collect()
    }

    /// The sequences of a part that is complete: their indices in the chunk, which ascend.
    fn part<'py>(&self, py: Python<'py>, part: u64) -> PyResult<Words<'py>> {
        attached(|| self.inner.indices(part))?.into_array(py)
    }

    /// Forget parts, and all parts of earlier sweeps.
    fn forget(&mut self, sweep: u64, parts: Vec<u64>) {
        self.inner.forget_before(sweep);
        parts.into_iter().for_each(|part| self.inner.forget(part));
    }

    /// The positions of sequences in their parts, which are complete.
    fn refs<'py>(
        &mut self,
        py: Python<'py>,
        parts: PyReadonlyArray1<'py, i64>,
        indices: PyReadonlyArray1<'py, u32>,
    ) -> PyResult<ChunkRefs> {
        let (parts, indices) = (parts.as_slice()?, indices.as_slice()?);
        let refs = attached(|| self.inner.refs(parts, indices))?;
        ChunkRefs::of(py, refs.ok_or_else(|| PyValueError::new_err("a sequence is not in its part"))?)
    }
}
