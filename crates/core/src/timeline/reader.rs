//! The reader: it moves along the timeline, read by read. (docs/timeline.md)
//!
//! A source prepares reads before its caller asks for them, and may have to return to an earlier position. So the
//! reader can go back, at no cost as long as the order of the sweep is kept. This table shows what each call changes:
//!
//! | call | cursor | kept for going back | cost |
//! |---|---|---|---|
//! | [`pass`](Reader::pass) | after the sequences passed | the start of the last read, or the held cursor | as `read`; a plan if all lengths are the same and no partition shares the data |
//! | [`read`](Reader::read) | after the sequences passed | the start of this read, or the held cursor | the sequences passed |
//! | [`rewind`](Reader::rewind) | to a former cursor | from there on | none if it was kept; otherwise the next read shuffles the sweep again |
//! | [`hold`](Reader::hold) | | the held cursor, until another is held | memory for the sequences since |
//! | [`set_position`](Reader::set_position) | to the first sequence at or after a position | from there on | shuffles the sweep up to there; a keyed order is entered at a known index |
//! | [`change_partition`](Reader::change_partition) | its count; or to the end, if the partition has no data | | none |
//! | [`read_minibatch`](Reader::read_minibatch) | as `read`; with a pool, to its next minibatch | as `read` | as `read`, once for a pool; twice with `only_full` |
//! | [`set_count`](Reader::set_count), [`set_batch`](Reader::set_batch) | its count | | none |
//! | [`set_end`](Reader::set_end) | | | none |
//! | [`rank`](Reader::rank), [`ranks`](Reader::ranks), [`rank_at`](Reader::rank_at), [`chunks_at`](Reader::chunks_at), [`chunks_from`](Reader::chunks_from) | | | at most the plan of a sweep |
//!
//! The plan of a sweep (the order of chunks, one number for each chunk) is kept for this sweep and the next. The order
//! of sequences is kept only for the sweep that was read last.

use super::batches::{Batches, Limits, Pool, Tally, batches};
use super::generator::Remainder;
use super::plan::{Randomization, Span, SweepPlan};
use super::schedule::Schedules;
use super::shuffle::{Located, SweepOrder};
use super::{MOST_READS_PASSED, Partition, Pause, Stopped, Table, UntilPause};
use crate::lengths::Lengths;
use crate::memory;
use std::sync::Arc;

/// The limits of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The partition whose sequences are delivered.
    pub partition: Partition,
    /// Largest number of samples to deliver, at least 1; a longer sequence is delivered alone.
    pub share: u64,
    /// Largest number of samples of all partitions to pass; `u64::MAX`: any number.
    pub passed: u64,
    /// True if the read continues in the next sweep.
    pub crosses_sweeps: bool,
    /// True if `share` and `passed` count sequences instead of samples.
    pub counts_sequences: bool,
    /// True if `share` counts the sequences of all partitions, although only sequences of `partition` are delivered,
    /// its part of a global minibatch. Only in randomized order.
    pub is_global: bool,
    /// Limits in addition to `share`. A read with limits continues to the next sequence that it would deliver, in file
    /// order as well.
    pub limits: Option<Limits>,
}

impl Request {
    /// Weight of a sequence of `length` samples in `share` and `passed`.
    #[inline]
    fn count(&self, length: u64) -> u64 {
        if self.counts_sequences { 1 } else { length }
    }

    /// The longest sequence that is delivered.
    fn longest(&self) -> u32 {
        self.limits.map_or(u32::MAX, |limits| limits.longest)
    }

    /// True if the partition has a part of minibatches of all partitions.
    fn has_part(&self) -> bool {
        self.is_global && self.partition.count > 1
    }

    /// The read of a pool.
    fn of_pool(self, pool: &Pool) -> Request {
        // The sequences of all partitions decide where the pool and its minibatches end.
        let partition = if self.has_part() { Partition { index: 0, count: 1 } } else { self.partition };
        let limits = Some(Limits::only_longest(self.longest()));
        let (share, counts_sequences) = (pool.size, pool.counts_sequences);
        Request { partition, share, passed: u64::MAX, counts_sequences, limits, ..self }
    }
}

/// The rules by which the order is cut into minibatches.
#[derive(Debug, Clone, Copy)]
pub struct Minibatches<'a> {
    /// The limits of a minibatch.
    pub request: Request,
    /// The pools from which minibatches come; `None`: they have consecutive sequences.
    pub pool: Option<&'a Pool>,
    /// The limits that change with the position; `None`: no limit does.
    pub schedules: Option<&'a Schedules>,
}

/// The end of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The read reached or crossed the end of a sweep.
    pub end_of_sweep: bool,
    /// The data end with this read, or before it.
    pub ended: bool,
    /// No sequence counted in the request's share.
    pub is_empty: bool,
}

/// A delivered sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Its number in file order.
    pub sequence: u32,
    /// The number of its chunk in file order.
    pub chunk: u32,
    /// Its samples, or of a minibatch of packed rows its row: what sequences are dealt by.
    pub load: u32,
}

/// A reader's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Samples of all partitions passed since the start.
    pub position: u64,
    /// The sweep that `index` and `rank` belong to.
    pub sweep: u64,
    /// The next sequence: in randomized order its position in the sweep, otherwise its number in file order.
    pub index: u32,
    /// The rank that `index` belongs to, otherwise the chunk.
    pub rank: u32,
    /// In file order: the running count of sequences, which decides whose turn it is.
    pub count: u64,
    /// Minibatches that were delivered of the pool that begins here.
    pub batch: u32,
}

/// Pools of a series, at most, of which each takes what the former pool leaves over: a restore cuts so many pools again.
const POOLS_OF_A_SERIES: u32 = 16;

/// A pool that was cut into minibatches. It is the last so far of a series of pools; without `carries`, the only one.
#[derive(Debug)]
struct OpenPool {
    /// The cursor before the first pool of the row.
    begin: Cursor,
    /// The cursor before the sequences that this pool adds, and after them.
    own_begin: Cursor,
    end: Cursor,
    request: Request,
    pool: Pool,
    outcome: Outcome,
    /// Pools of the row before this pool, and their minibatches.
    number: u32,
    num_before: u32,
    /// True if no pool follows in the row.
    is_last: bool,
    /// The sequences in delivered order.
    delivered: Vec<Delivered>,
    bounds: Vec<usize>,
    /// Chunks of this partition with sequences that came from the pool before.
    carried_chunks: Vec<u32>,
    /// Sequences for the next pool, and how many of the first came from the pool before.
    left: Vec<Delivered>,
    num_left_twice: u32,
}

impl OpenPool {
    /// Minibatches of the row up to the end of this pool.
    fn num_batches(&self) -> u32 {
        self.num_before + self.bounds.len() as u32 - 1
    }

    /// The sequences of a minibatch of this pool.
    fn batch(&self, batch: u32) -> &[Delivered] {
        let number = (batch - self.num_before) as usize;
        &self.delivered[self.bounds[number]..self.bounds[number + 1]]
    }
}

/// Sequences that are left out of the data from some positions on. They keep their places in the order.
#[derive(Debug, Clone, Default)]
pub struct LeftOut {
    /// For each sequence 1 + the index in `from` of the position from which on it is left out; 0: never.
    pub since: Vec<u8>,
    /// The positions.
    pub from: Vec<u64>,
}

impl LeftOut {
    /// True if a sequence with its place at `position` is left out.
    #[inline]
    fn has(&self, sequence: u32, position: u64) -> bool {
        let since = usize::from(self.since[sequence as usize]);
        since > 0 && position >= self.from[since - 1]
    }
}

/// A reader of the timeline.
pub struct Reader {
    randomization: Option<Randomization>,
    end: u64,
    num_sequences: u32,
    /// Samples before each chunk in file order and, last, in a sweep.
    samples_before: Vec<u64>,
    chunk_samples: Vec<u64>,
    cursor: Cursor,
    /// The cursor before the last read, or the held cursor: from there on the order is kept.
    previous: Cursor,
    held: Option<Cursor>,
    order: Option<SweepOrder>,
    /// The last computed plan, often of the next sweep, before its order is needed.
    plan: Option<Arc<SweepPlan>>,
    /// The pool that was read last.
    open: Option<OpenPool>,
    /// None: nothing is left out.
    left_out: Option<Arc<LeftOut>>,
    /// True after a jump, until the next read: few sequences may follow.
    has_jumped: bool,
}

impl Reader {
    /// A reader at position 0. The data end at the position `end`.
    ///
    /// The table has at least one sequence and fewer than 2^32, none of length 0, and no chunk without a sequence.
    #[must_use]
    pub fn new(table: Table, randomization: Option<Randomization>, end: u64) -> Self {
        let chunk_samples: Vec<u64> = (0..table.num_chunks())
            .map(|chunk| table.lengths.sum(table.start(chunk)..table.start(chunk + 1)))
            .collect();
        // With these sums, a seek skips whole chunks and adds up lengths only inside of one chunk.
        let mut samples_before = vec![0];
        samples_before.extend(chunk_samples.iter().scan(0, |sum, samples| {
            *sum += samples;
            Some(*sum)
        }));
        let cursor = Cursor { position: 0, sweep: 0, index: 0, rank: 0, count: 0, batch: 0 };
        Self {
            randomization,
            end,
            // The table has fewer than 2^32 sequences, so the numbers of sequences have 32 bits in all structures.
            num_sequences: table.lengths.len() as u32,
            samples_before,
            chunk_samples,
            cursor,
            previous: cursor,
            held: None,
            order: None,
            plan: None,
            open: None,
            left_out: None,
            has_jumped: false,
        }
    }

    /// Leave sequences out. `since` has an entry for each sequence, and no entry is above the number of positions.
    pub fn leave_out(&mut self, left_out: LeftOut) {
        self.left_out = Some(Arc::new(left_out));
    }

    /// Samples in a sweep.
    #[must_use]
    pub fn num_samples(&self) -> u64 {
        self.samples_before[self.samples_before.len() - 1]
    }

    fn is_of_single_samples(&self) -> bool {
        // No sequence has length 0, so as many samples as sequences means that all lengths are 1.
        self.num_samples() == u64::from(self.num_sequences)
    }

    /// True if all lengths are known to be the same.
    fn is_even(&self, table: Table) -> bool {
        // Other tables may also have equal lengths, but finding that out takes a pass over them.
        matches!(table.lengths, Lengths::Same { .. }) || self.is_of_single_samples()
    }

    /// The reader's position.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// True if a cursor is a place of this table: [`rewind`](Reader::rewind) and [`hold`](Reader::hold) take no other.
    #[must_use]
    pub fn has(&self, chunk_starts: &[i64], cursor: Cursor) -> bool {
        let (index, rank) = (i64::from(cursor.index), cursor.rank as usize);
        match self.randomization {
            // The rank is looked up again.
            Some(_) => cursor.index <= self.num_sequences,
            None => chunk_starts.get(rank..=rank + 1).is_some_and(|chunk| (chunk[0]..chunk[1]).contains(&index)),
        }
    }

    /// Go back to a former position, at no cost if the last read began there.
    pub fn rewind(&mut self, cursor: Cursor) {
        self.cursor = cursor;
        // The next read forgets the order before `previous`, and a caller may return to this cursor again.
        self.previous = cursor;
    }

    /// Keep what [`rewind`](Reader::rewind) needs to come back at no cost to this position of the current sweep, or to
    /// a later position.
    pub fn hold(&mut self, cursor: Cursor) {
        self.held = Some(cursor);
    }

    /// Restore the count of a checkpoint.
    pub fn set_count(&mut self, count: u64) {
        self.cursor.count = count;
    }

    /// Restore the number of delivered minibatches of the pool that begins at the cursor.
    pub fn set_batch(&mut self, batch: u32) {
        self.cursor.batch = batch;
    }

    /// Number of minibatches of the pool that was read last, and of those before it in its row; 0 before the first.
    #[must_use]
    pub fn num_batches(&self) -> u32 {
        self.open.as_ref().map_or(0, OpenPool::num_batches)
    }

    /// Samples before the end of the data.
    pub fn num_left(&self) -> u64 {
        self.end.saturating_sub(self.cursor.position)
    }

    /// Move the end of the data.
    pub fn set_end(&mut self, end: u64) {
        self.end = end;
    }

    /// Prepare for another partition or size of minibatches: turns are counted from the sweep's start again, and a
    /// randomized partition beyond the number of chunks has no data.
    pub fn change_partition(&mut self, partition: Partition) {
        // CNTK counts turns from the index in the sweep again whenever size or partition change.
        self.cursor.count = u64::from(self.cursor.index);
        if self.randomization.is_some() && partition.index >= self.chunk_samples.len() as u64 {
            // A partition beyond the chunks would pass whole sweeps in search of its sequences. CNTK reports the end at
            // once.
            // In no sweep, since the end need not be the start of a sequence.
            self.cursor = Cursor { position: self.end, sweep: u64::MAX, index: 0, rank: 0, count: 0, batch: 0 };
        }
    }

    /// Go to the first sequence that starts at or after `position`. `known` is the number of sequences of the sweep
    /// before it, if the caller knows that a sequence starts there. A keyed order then needs no search, unless its window
    /// shows that the number is wrong.
    ///
    /// # Errors
    /// `pause` asked the work to stop; the reader is as it was.
    pub fn set_position(
        &mut self,
        table: Table,
        position: u64,
        known: Option<u32>,
        pause: &mut Pause,
    ) -> Result<(), Stopped> {
        let samples = self.num_samples();
        let (sweep, offset) = (position / samples, position % samples);
        let cursor = match self.randomization {
            None => self.seek_in_order(table, sweep, offset),
            Some(randomization) => self.seek_randomized(table, randomization, (sweep, offset), known, pause)?,
        };
        self.cursor = cursor;
        self.previous = cursor;
        Ok(())
    }

    fn seek_in_order(&self, table: Table, sweep: u64, offset: u64) -> Cursor {
        // The sums begin with 0, so at least one of them is not above the offset.
        let chunk = self.samples_before.partition_point(|&before| before <= offset) - 1;
        let mut index = table.start(chunk);
        let mut passed = self.samples_before[chunk];
        while passed < offset {
            passed += u64::from(table.lengths.get(index));
            index += 1;
        }
        // The sequence that was found may begin after the offset.
        let position = sweep.saturating_mul(self.num_samples()).saturating_add(passed);
        // The last sequence of the sweep may span the offset. Then the next sequence is the first of the next sweep.
        if index as u32 == self.num_sequences {
            return Cursor { position, sweep: sweep + 1, index: 0, rank: 0, count: 0, batch: 0 };
        }
        // The last sequence of a chunk may span the offset, too. Then the next sequence is in the next chunk.
        let rank = if index == table.start(chunk + 1) { chunk + 1 } else { chunk } as u32;
        Cursor { position, sweep, index: index as u32, rank, count: index as u64, batch: 0 }
    }

    fn seek_randomized(
        &mut self,
        table: Table,
        randomization: Randomization,
        (sweep, offset): (u64, u64),
        known: Option<u32>,
        pause: &mut Pause,
    ) -> Result<Cursor, Stopped> {
        let num_sequences = self.num_sequences;
        let start = sweep.saturating_mul(self.num_samples());
        let mut cursor = Cursor { position: start, sweep, index: 0, rank: 0, count: 0, batch: 0 };
        if randomization.is_keyed {
            let plan = self.plan(table, randomization, sweep);
            // Nothing before the window decides its order.
            let (rank, before) = plan.window_at(&self.chunk_samples, offset);
            cursor = Cursor { position: start + before, index: plan.starts[rank as usize], rank, ..cursor };
            let length = self.num_samples() / u64::from(num_sequences);
            if self.is_even(table) && offset.div_ceil(length) < u64::from(num_sequences) {
                let index = offset.div_ceil(length);
                let rank = plan.rank_of(index as u32);
                cursor = Cursor { position: start.saturating_add(index * length), index: index as u32, rank, ..cursor };
            } else if let Some(index) = known.filter(|&index| plan.can_start(&self.chunk_samples, index, offset)) {
                let position = start.saturating_add(offset);
                return Ok(Cursor { position, index, rank: plan.rank_of(index), ..cursor });
            } else {
                let own = self.cursor.position.saturating_sub(start);
                let is_on_the_way = self.cursor.sweep == sweep && (before..=offset).contains(&own);
                let after_window = before + plan.samples_in_window(&self.chunk_samples, rank);
                // The end of the window may be nearer than its beginning, or than the reader.
                if after_window.saturating_sub(offset) < offset - if is_on_the_way { own } else { before } {
                    let (index, passed) = plan.walk_back(table, rank, after_window, offset, pause)?;
                    let rank = if index < num_sequences { plan.rank_of(index) } else { plan.chunks.len() as u32 - 1 };
                    return Ok(Cursor { position: start.saturating_add(passed), index, rank, ..cursor });
                }
            }
        }
        // A position ahead in the same sweep is sought from the cursor on, since the order before it may be forgotten.
        if self.cursor.sweep == sweep && (cursor.position..=start + offset).contains(&self.cursor.position) {
            cursor = Cursor { batch: 0, ..self.cursor };
        }
        let mut passed = cursor.position - start;
        let mut until_pause = UntilPause::new();
        let is_of_single_samples = self.is_of_single_samples();
        let order = self.order(table, randomization, sweep);
        let mut walk = Walk { order, table, is_of_single_samples, pause, until_pause: &mut until_pause };
        while passed < offset && cursor.index < num_sequences {
            let before = cursor.rank;
            for located in walk.next(&mut cursor)?.0 {
                passed += u64::from(located.length);
                cursor.index += 1;
                if passed >= offset {
                    break;
                }
            }
            // A long seek needs no more memory than a read: the order of passed ranks is forgotten on the way.
            if cursor.rank != before {
                walk.order.forget(cursor.index - 1);
            }
        }
        cursor.position = start.saturating_add(passed);
        Ok(cursor)
    }

    /// Append the sequences of the next minibatch, of a pool if there is one.
    ///
    /// With [`Limits::only_full`], the minibatch before one that is left out reaches the end of the sweep. If no
    /// minibatch of a whole sweep is delivered, the data end.
    ///
    /// # Errors
    /// As for [`read`](Reader::read), but the reader may be after a minibatch that is left out.
    pub fn read_minibatch(
        &mut self,
        table: Table,
        minibatches: Minibatches<'_>,
        out: &mut Vec<Delivered>,
        pause: &mut Pause,
    ) -> Result<Outcome, Stopped> {
        let Minibatches { request, pool, schedules } = minibatches;
        let mut read = |reader: &mut Self, out: &mut _| match (schedules, request.limits) {
            (Some(schedules), Some(limits)) => {
                let (limits, pool) = schedules.at(limits, pool, reader.cursor.position);
                let request = Request { limits: Some(limits), ..request };
                reader.read_by_limits(table, request, pool.as_ref(), out, pause)
            }
            _ => reader.read_by_limits(table, request, pool, out, pause),
        };
        let mut outcome = read(self, out)?;
        let only_full = request.limits.is_some_and(|limits| limits.only_full);
        if !only_full && schedules.is_none() && (self.left_out.is_none() || request.limits.is_none()) {
            return Ok(outcome);
        }
        // `only_full` leaves the remainder of a pool or a sweep out, and what follows it may be a full minibatch. The
        // rest of a sweep may also consist of sequences that are left out. Later limits may take them.
        let begin = self.cursor.position.max(schedules.map_or(0, Schedules::last));
        while outcome.is_empty && !outcome.ended {
            outcome = read(self, out)?;
            // After a whole sweep without a full minibatch the data end, because the loop might not.
            outcome.ended |= outcome.is_empty && self.cursor.position.saturating_sub(begin) > self.num_samples();
        }
        // The last delivered minibatch of a sweep carries the flag, so this looks for another minibatch before the end.
        let (after, previous, num_delivered) = (self.cursor, self.previous, out.len());
        while only_full && !outcome.end_of_sweep && !outcome.ended && self.cursor.batch == 0 {
            let ahead = read(self, out)?;
            if !ahead.is_empty {
                out.truncate(num_delivered);
                // The next call reads this minibatch again; its order is kept, since `previous` goes back, too.
                (self.cursor, self.previous) = (after, previous);
                break;
            }
            (outcome.end_of_sweep, outcome.ended) = (ahead.end_of_sweep, ahead.ended);
        }
        Ok(outcome)
    }

    fn read_by_limits(
        &mut self,
        table: Table,
        request: Request,
        pool: Option<&Pool>,
        out: &mut Vec<Delivered>,
        pause: &mut Pause,
    ) -> Result<Outcome, Stopped> {
        match pool {
            None => self.read(table, request, out, pause),
            Some(pool) => self.read_pooled(table, request, pool, out, pause),
        }
    }

    /// Append the sequences of a read.
    ///
    /// # Errors
    /// `pause` asked the work to stop; the reader is as it was, and the sequences appended so far must be ignored.
    pub fn read(
        &mut self,
        table: Table,
        request: Request,
        out: &mut Vec<Delivered>,
        pause: &mut Pause,
    ) -> Result<Outcome, Stopped> {
        let mut cursor = self.cursor;
        let outcome = match self.randomization {
            None => self.read_in_order(table, request, &mut cursor, out, pause)?,
            Some(randomization) => self.read_randomized(table, randomization, request, &mut cursor, out, pause)?,
        };
        // A caller may return to the start of this read, so the order is kept from there on, or from a held cursor.
        self.previous = self.held.unwrap_or(self.cursor);
        self.cursor = cursor;
        Ok(outcome)
    }

    /// Append the sequences of the next minibatch of a pool.
    ///
    /// The cursor stays at the beginning of the pool, and counts its minibatches, until the last one is read. If pools
    /// leave sequences to the next, it stays at the beginning of a series of pools: from there the series can be cut again.
    ///
    /// # Errors
    /// As for [`read`](Reader::read).
    fn read_pooled(
        &mut self,
        table: Table,
        request: Request,
        pool: &Pool,
        out: &mut Vec<Delivered>,
        pause: &mut Pause,
    ) -> Result<Outcome, Stopped> {
        let cursor = self.cursor;
        let begin = Cursor { batch: 0, ..cursor };
        // A pool stays open for one request: another budget or partition arranges the same sequences in another way.
        let is_open = |open: &OpenPool| {
            (open.begin, open.request) == (begin, request) && open.pool == *pool && open.num_before <= cursor.batch
        };
        if !self.open.as_ref().is_some_and(is_open) {
            self.open = None;
        }
        self.open_batch(table, request, pool, begin, cursor, pause)?;
        let open = self.open.as_ref().expect("it was opened");
        // A pool has no minibatch if all its sequences are left out.
        if open.num_batches() == open.num_before {
            self.cursor = open.end;
            return Ok(Outcome { is_empty: true, ..open.outcome });
        }
        let batch = cursor.batch.min(open.num_batches() - 1);
        memory::extend(out, open.batch(batch).iter().copied());
        // A further pool of the row may have no minibatch. Then this minibatch is the last.
        let next = Cursor { batch: batch + 1, ..begin };
        self.cursor = cursor;
        self.open_batch(table, request, pool, begin, next, pause)?;
        let open = self.open.as_ref().expect("it was opened");
        if next.batch < open.num_batches() {
            self.cursor = next;
            return Ok(Outcome { end_of_sweep: false, ended: false, is_empty: false });
        }
        self.cursor = open.end;
        Ok(Outcome { is_empty: false, ..open.outcome })
    }

    /// Open the pool of a row that has the minibatch of the cursor `wanted`, or the last pool of the row.
    fn open_batch(
        &mut self,
        table: Table,
        request: Request,
        pool: &Pool,
        begin: Cursor,
        wanted: Cursor,
        pause: &mut Pause,
    ) -> Result<(), Stopped> {
        while self.open.as_ref().is_none_or(|open| !open.is_last && open.num_batches() <= wanted.batch) {
            let (cursor, former) = (self.cursor, self.open.take());
            self.cursor = former.as_ref().map_or(begin, |open| open.end);
            let opened = self.open_pool(table, request, pool, begin, former, pause);
            // The read moves the cursor even if cutting the pool is stopped. The caller must find it where it was.
            self.cursor = cursor;
            self.open = Some(opened?);
            // A caller may return to any minibatch of the row.
            self.previous = self.held.unwrap_or(begin);
        }
        Ok(())
    }

    /// Read a pool from the cursor on, and cut it. `former` is the pool before it in the row that begins at `begin`.
    fn open_pool(
        &mut self,
        table: Table,
        request: Request,
        pool: &Pool,
        begin: Cursor,
        former: Option<OpenPool>,
        pause: &mut Pause,
    ) -> Result<OpenPool, Stopped> {
        let own_begin = self.cursor;
        let limits = request.limits.unwrap_or(Limits::only_longest(u32::MAX));
        let (number, num_before, num_left_twice, mut sequences) = former.map_or((0, 0, 0, Vec::new()), |former| {
            (former.number + 1, former.num_batches(), former.num_left_twice, former.left)
        });
        let num_carried = sequences.len();
        let outcome = self.read(table, request.of_pool(pool), &mut sequences, pause)?;
        let end = self.cursor;
        let sweep = own_begin.position / self.num_samples();
        // A cursor at the end of a sweep still has that sweep's index.
        let first = if sweep == own_begin.sweep { own_begin.index } else { 0 };
        let seed = self.randomization.map_or(0, |randomization| randomization.seed);
        let seed = seed.wrapping_add(sweep).wrapping_add(first.into());
        let lengths: Vec<u32> = memory::collected(sequences.iter().map(|sequence| sequence.load));
        let is_last = !pool.carries || number + 1 == POOLS_OF_A_SERIES || outcome.end_of_sweep || outcome.ended;
        // A sequence is left over at most twice, so that its chunk is not needed for long.
        let keeps = (!is_last).then_some(num_left_twice);
        let Batches { order, mut bounds, rows, left } = batches(&lengths, limits, pool, keeps, seed, pause)?;
        let num_left_twice = left.partition_point(|&index| (index as usize) < num_carried) as u32;
        let left = memory::collected(left.into_iter().map(|index| sequences[index as usize]));
        let mut delivered: Vec<Delivered> = memory::collected(order.iter().map(|&index| sequences[index as usize]));
        delivered.iter_mut().zip(rows).for_each(|(delivered, row)| delivered.load = row);
        sequences.truncate(num_carried);
        // The deal comes after the cut, so that the ranks cut the same minibatches.
        if let Some(randomization) = self.randomization.filter(|_| request.has_part()) {
            let plan = self.plan(table, randomization, sweep);
            let mut is_own = vec![false; plan.chunks.len()];
            for (rank, &chunk) in (0u64..).zip(&plan.chunks) {
                // As in CNTK's randomized partitions, the rank of a chunk in the sweep decides who owns it.
                is_own[chunk as usize] = rank % request.partition.count == request.partition.index;
            }
            keep_own(&is_own, &mut delivered, &mut bounds);
            sequences.retain(|carried| is_own[carried.chunk as usize]);
        }
        let mut carried_chunks: Vec<u32> = memory::collected(sequences.iter().map(|carried| carried.chunk));
        carried_chunks.sort_unstable();
        carried_chunks.dedup();
        let pool = pool.clone();
        Ok(OpenPool {
            begin,
            own_begin,
            end,
            request,
            pool,
            outcome,
            number,
            num_before,
            is_last,
            delivered,
            bounds,
            carried_chunks,
            left,
            num_left_twice,
        })
    }

    /// Pass over reads whose sequences are not needed. Returns their number: at most `most`, all of which end at
    /// `until` or before.
    ///
    /// # Errors
    /// `pause` asked the work to stop; the reader is after one of the reads.
    pub fn pass(
        &mut self,
        table: Table,
        minibatches: Minibatches<'_>,
        most: u64,
        until: u64,
        pause: &mut Pause,
    ) -> Result<u64, Stopped> {
        let mut num_passed = self.jump(table, minibatches.request, most, until);
        // The caller may then see that the rest is too long.
        let most = most.min(num_passed.saturating_add(MOST_READS_PASSED));
        let mut out = Vec::new();
        while num_passed < most {
            let before = self.cursor;
            out.clear();
            // A read that ends after `until` is not passed: the caller reads it.
            let outcome = self.read_minibatch(table, minibatches, &mut out, pause)?;
            if (outcome.is_empty && outcome.ended) || self.cursor.position > until {
                self.rewind(before);
                break;
            }
            num_passed += 1;
        }
        Ok(num_passed)
    }

    /// [`pass`](Reader::pass) without the order of sequences, as far as that is possible: if all sequences have one
    /// length, and belong to one partition, each read ends after a known number of sequences.
    fn jump(&mut self, table: Table, request: Request, most: u64, until: u64) -> u64 {
        let num_sequences = u64::from(self.num_sequences);
        let length = self.num_samples() / num_sequences;
        let is_global = request.is_global && self.randomization.is_some();
        let (position, is_whole) = (self.cursor.position, request.partition.count == 1 || is_global);
        // Limits, foreign sequences and a position inside a sequence need the loop of `pass`.
        if !self.is_even(table)
            || !is_whole
            || request.limits.is_some()
            || self.left_out.is_some()
            || position >= self.end.min(until)
            || !position.is_multiple_of(length)
        {
            return 0;
        }
        // The first sequence is taken regardless of its length, so each read has at least one.
        let share = u128::from((request.share.min(request.passed) / request.count(length)).max(1));
        let (first, sweep) = (position / length, u128::from(num_sequences));
        let left = sweep - u128::from(first % num_sequences);
        // The number of sequences in a number of reads.
        // Products of reads and shares can exceed 64 bits.
        let passed = |num_reads: u64| {
            let (num_reads, in_sweep) = (u128::from(num_reads), left.div_ceil(share));
            if request.crosses_sweeps {
                num_reads.saturating_mul(share)
            } else if num_reads < in_sweep {
                num_reads * share
            } else {
                // The last read of a sweep is short, so this sweep, whole further sweeps and the rest are counted
                // apart.
                let (more, of_a_sweep) = (num_reads - in_sweep, sweep.div_ceil(share));
                left + more / of_a_sweep * sweep + (more % of_a_sweep * share).min(sweep)
            }
        };
        // A read is complete if its last sequence begins before the end of the data.
        let most_sequences = u128::from(((self.end - position).div_ceil(length)).min((until - position) / length));
        // The number of sequences is not linear in the number of reads, so a bisection inverts it.
        let num_reads = largest(most, |num_reads| passed(num_reads) <= most_sequences);
        if num_reads == 0 {
            return 0;
        }
        let next = first + passed(num_reads) as u64;
        let (sweep, index) = (next / num_sequences, (next % num_sequences) as u32);
        let mut cursor = Cursor { position: next * length, sweep, index, rank: 0, count: self.cursor.count, batch: 0 };
        cursor.rank = match self.randomization {
            Some(randomization) => {
                let plan = self.plan(table, randomization, sweep);
                plan.starts.partition_point(|&start| start <= index) as u32 - 1
            }
            None => {
                cursor.count += next - first;
                table.chunk_starts.partition_point(|&start| start <= i64::from(index)) as u32 - 1
            }
        };
        self.rewind(cursor);
        self.has_jumped = true;
        num_reads
    }

    fn read_in_order(
        &self,
        table: Table,
        request: Request,
        cursor: &mut Cursor,
        out: &mut Vec<Delivered>,
        pause: &mut Pause,
    ) -> Result<Outcome, Stopped> {
        if cursor.position >= self.end {
            return Ok(Outcome { end_of_sweep: self.ends_sweep(cursor.position), ended: true, is_empty: true });
        }
        let (partition, samples) = (request.partition, self.num_samples());
        let first_sweep = cursor.position / samples;
        let (mut taken, mut passed) = (0, 0);
        let (mut nothing_yet, before, begin_sweep) = (true, out.len(), cursor.sweep);
        let mut turn = cursor.count % partition.count;
        let mut until_pause = UntilPause::new();
        let (mut tally, longest) = (request.limits.map(Tally::new), request.longest());
        let left_out = self.left_out.as_deref();
        // All sequences that would be this partition's may be left out.
        let is_futile =
            |nothing_yet: bool, sweep: u64| left_out.is_some() && nothing_yet && sweep - begin_sweep > partition.count;
        // Without limits, a full minibatch ends at once: foreign sequences after it remain for the next read, as in
        // CNTK. Sequences that are left out are passed, so that the data do not end with a read of nothing else.
        while tally.is_some() || left_out.is_some() || (taken < request.share && passed < request.passed) {
            let samples = table.lengths.get(cursor.index as usize);
            let length = u64::from(samples);
            let is_left_out = left_out.is_some_and(|left_out| left_out.has(cursor.index, cursor.position));
            let counted = if is_left_out { 0 } else { request.count(length) };
            let is_ours = turn == partition.index && samples <= longest && !is_left_out;
            let is_full = |tally: Tally| is_ours && !tally.fits(samples, samples);
            if !nothing_yet
                && ((is_ours && taken + counted > request.share)
                    || passed.saturating_add(counted) > request.passed
                    || tally.is_some_and(is_full))
            {
                break;
            }
            // CNTK checks the end after the size, so a sequence that does not fit ends the read without the end of the
            // data.
            if cursor.position >= self.end {
                break;
            }
            if is_ours {
                memory::push(out, Delivered { sequence: cursor.index, chunk: cursor.rank, load: samples });
                taken += counted;
                nothing_yet = false;
                tally.iter_mut().for_each(|tally| tally.take(samples, samples));
            }
            passed += counted;
            // A remainder for each sequence would take a division.
            turn = if turn + 1 == partition.count { 0 } else { turn + 1 };
            let is_at_end = self.step(table, cursor, length);
            if is_at_end && (!request.crosses_sweeps || is_futile(nothing_yet, cursor.sweep)) {
                break;
            }
            until_pause.count(1, pause)?;
        }
        let end_of_sweep = first_sweep != cursor.position / samples;
        let ended = cursor.position >= self.end || is_futile(nothing_yet, cursor.sweep);
        if (end_of_sweep || ended) && tally.is_some_and(|tally| !tally.is_delivered_last()) {
            out.truncate(before);
            nothing_yet = true;
        }
        Ok(Outcome { end_of_sweep, ended, is_empty: nothing_yet })
    }

    /// Move a cursor over a sequence in file order. Returns true at the end of a sweep.
    #[inline]
    fn step(&self, table: Table, cursor: &mut Cursor, length: u64) -> bool {
        // In file order the data may end at any position of 64 bits, so the sum may exceed them.
        cursor.position = cursor.position.saturating_add(length);
        cursor.count += 1;
        cursor.index += 1;
        if cursor.index as usize != table.start(cursor.rank as usize + 1) {
            return false;
        }
        cursor.rank += 1;
        let is_at_end = cursor.index == self.num_sequences;
        if is_at_end {
            (cursor.index, cursor.rank) = (0, 0);
            cursor.sweep += 1;
        }
        is_at_end
    }

    /// True if a sweep ends at a position. As in CNTK, a read after the end of the data has the flag then.
    fn ends_sweep(&self, position: u64) -> bool {
        position > 0 && position.is_multiple_of(self.num_samples())
    }

    fn read_randomized(
        &mut self,
        table: Table,
        randomization: Randomization,
        request: Request,
        cursor: &mut Cursor,
        out: &mut Vec<Delivered>,
        pause: &mut Pause,
    ) -> Result<Outcome, Stopped> {
        let samples = self.num_samples();
        let mut outcome = Outcome { end_of_sweep: false, ended: false, is_empty: true };
        let (mut taken, mut passed) = (0, 0);
        let mut nothing_yet = true;
        let (end, previous, mut has_jumped) = (self.end, self.previous, std::mem::take(&mut self.has_jumped));
        let is_of_single_samples = self.is_of_single_samples();
        let mut until_pause = UntilPause::new();
        let mut is_first_sweep = true;
        let left_out = self.left_out.clone();
        loop {
            if cursor.position >= end {
                outcome.ended = true;
                outcome.end_of_sweep |= self.ends_sweep(cursor.position);
                break;
            }
            let sweep = cursor.position / samples;
            // A cursor stays at the end of a finished sweep, so the next sweep is prepared only when a read needs it.
            if sweep != cursor.sweep {
                *cursor = Cursor { sweep, index: 0, rank: 0, ..*cursor };
                // Starting a sweep takes as long as reading many sequences, because two generators are seeded.
                until_pause.0 = until_pause.0.saturating_sub(1000).max(1);
            }
            let order = self.order(table, randomization, sweep);
            if std::mem::take(&mut has_jumped) {
                order.trace(cursor.index, pause)?;
            }
            if is_first_sweep {
                // A cursor in another sweep needs nothing of this sweep's order.
                let came_from = if previous.sweep == sweep { previous.index } else { cursor.index };
                order.forget(came_from.min(cursor.index));
            }
            let walk = Walk { order, table, is_of_single_samples, pause, until_pause: &mut until_pause };
            let room =
                Request { share: request.share - taken, passed: request.passed.saturating_sub(passed), ..request };
            let (moved, counted, took) =
                read_one_sweep(walk, room, nothing_yet, end - cursor.position, cursor, left_out.as_deref(), out)?;
            outcome.end_of_sweep |= cursor.position % samples + moved >= samples;
            cursor.position += moved;
            outcome.ended = cursor.position >= end;
            taken += took;
            passed += counted;
            outcome.is_empty &= took == 0;
            // The rule "at least one sequence" holds for the first sweep that the read touches.
            if !is_first_sweep && moved == 0 {
                break;
            }
            is_first_sweep = false;
            nothing_yet &= left_out.is_some() && took == 0;
            // CNTK's condition: a minibatch that is full at the end of the sweep does not look into the next sweep.
            let goes_on = request.crosses_sweeps && outcome.end_of_sweep && !outcome.ended && taken < request.share;
            if !goes_on {
                break;
            }
        }
        Ok(outcome)
    }

    /// The sweep and the rank (in file order: the chunk) of the next sequence; `None` when the data have ended.
    #[must_use]
    pub fn rank(&self) -> Option<(u64, u32)> {
        self.rank_at(self.cursor)
    }

    /// The sweep and the rank of the next sequence at a former cursor; `None` if the data end there.
    #[must_use]
    pub fn rank_at(&self, cursor: Cursor) -> Option<(u64, u32)> {
        if cursor.position >= self.end {
            return None;
        }
        let sweep = cursor.position / self.num_samples();
        // A cursor at the end of its sweep stands for the start of the next sweep. In file order, cursors move there at
        // once.
        if self.randomization.is_none() || sweep == cursor.sweep {
            Some((sweep, cursor.rank))
        } else {
            Some((sweep, 0))
        }
    }

    /// The sweep of the next sequence, its rank, and the last rank of the pool that has begun; `None` when the data
    /// have ended. Of a pool that has begun, the rank is that of its first sequence.
    #[must_use]
    pub fn ranks(&self) -> Option<(u64, u32, u32)> {
        // A pool that has begun delivers sequences of all its ranks in any order.
        let open = self.begun_pool();
        let (sweep, rank) = self.rank_at(open.map_or(self.cursor, |open| open.own_begin))?;
        let last = open.map_or(rank, |open| if open.end.sweep == sweep { open.end.rank } else { rank });
        Some((sweep, rank, last.max(rank)))
    }

    /// The open pool, if it has the next minibatch and others before it.
    fn begun_pool(&self) -> Option<&OpenPool> {
        let (begin, batch) = (Cursor { batch: 0, ..self.cursor }, self.cursor.batch);
        let has_next = |open: &&OpenPool| open.begin == begin && (open.num_before..open.num_batches()).contains(&batch);
        self.open.as_ref().filter(|_| batch > 0).filter(has_next)
    }

    /// The chunks with sequences that the former pool left to the pool that has begun.
    #[must_use]
    pub fn carried_chunks(&self) -> &[u32] {
        self.begun_pool().map_or(&[], |open| &open.carried_chunks)
    }

    /// The chunks of `partition` that can hold a sequence delivered at the ranks from `rank` to `last`, and the rank
    /// after them.
    pub fn chunks_at(
        &mut self,
        table: Table,
        sweep: u64,
        rank: u32,
        last: u32,
        partition: Partition,
    ) -> (Vec<i64>, u32) {
        let Some(randomization) = self.randomization else {
            // In file order sequences stay in their chunks.
            return ((rank..=last).map(i64::from).collect(), last + 1);
        };
        let plan = self.plan(table, randomization, sweep);
        // The ends of windows never decrease, so these two windows cover all windows between them.
        let window = Span { from: plan.windows[rank as usize].from, to: plan.windows[last as usize].to };
        let chunks = (window.from..window.to)
            .filter(|&rank| u64::from(rank) % partition.count == partition.index)
            .map(|rank| i64::from(plan.chunks[rank as usize]))
            .collect();
        (chunks, window.to)
    }

    /// The next at most `limit` chunks that `partition` needs from `rank` on in one sweep, and the rank after them,
    /// which is the number of chunks if the sweep needs no more.
    pub fn chunks_from(
        &mut self,
        table: Table,
        sweep: u64,
        rank: u32,
        limit: usize,
        partition: Partition,
    ) -> (Vec<i64>, u32) {
        let num_chunks = table.num_chunks() as u32;
        let mut chunks = Vec::new();
        let mut rank = rank;
        if let Some(randomization) = self.randomization {
            let plan = self.plan(table, randomization, sweep);
            while rank < num_chunks && chunks.len() < limit {
                if u64::from(rank) % partition.count == partition.index {
                    chunks.push(i64::from(plan.chunks[rank as usize]));
                }
                rank += 1;
            }
            return (chunks, rank);
        }
        // Partitions take sequences in turn, so a chunk of fewer sequences than partitions may hold none of this
        // partition. Sequence number s of this sweep has turn s - index + count; for a later sweep, add the sequences
        // of the sweeps before it.
        let later_sweeps = (i128::from(sweep) - i128::from(self.cursor.sweep)) * i128::from(self.num_sequences);
        let shift = i128::from(self.cursor.count) - i128::from(self.cursor.index) + later_sweeps;
        while rank < num_chunks && chunks.len() < limit {
            let (start, end) = (table.start(rank as usize) as u64, table.start(rank as usize + 1) as u64);
            let turn = (shift + i128::from(start)).rem_euclid(i128::from(partition.count)) as u64;
            let until_ours = match partition.index.checked_sub(turn) {
                Some(turns) => turns,
                None => partition.count - turn + partition.index,
            };
            if until_ours < end - start {
                chunks.push(i64::from(rank));
            }
            rank += 1;
        }
        (chunks, rank)
    }

    fn plan(&mut self, table: Table, randomization: Randomization, sweep: u64) -> Arc<SweepPlan> {
        // The plan of the next sweep is often needed early, for its chunks, while the order is still of this sweep.
        let plans = [self.order.as_ref().map(|order| &order.plan), self.plan.as_ref()];
        if let Some(plan) = plans.into_iter().flatten().find(|plan| plan.sweep == sweep) {
            return Arc::clone(plan);
        }
        let plan = Arc::new(SweepPlan::new(table, &self.chunk_samples, randomization, sweep));
        self.plan = Some(Arc::clone(&plan));
        plan
    }

    /// The order of `sweep`.
    fn order(&mut self, table: Table, randomization: Randomization, sweep: u64) -> &mut SweepOrder {
        if self.order.as_ref().is_some_and(|order| order.plan.sweep != sweep) {
            // Drop the old order before computing the new order, because two orders would take twice the memory.
            self.order = None;
        }
        let plan = self.plan(table, randomization, sweep);
        self.order.get_or_insert_with(|| SweepOrder::new(plan))
    }

    /// Bytes of memory of the order of the sweep and of the tables of chunks.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        8 * (self.samples_before.capacity() + self.chunk_samples.capacity())
            + self.plan.as_ref().map_or(0, |plan| plan.num_bytes())
            + self.order.as_ref().map_or(0, SweepOrder::num_bytes)
    }
}

/// The largest number up to `most` that fits, if all smaller numbers fit, too; 0 fits in any case.
fn largest(most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut fitting, mut too_many) = (0, most.saturating_add(1));
    while too_many - fitting > 1 {
        let middle = fitting + (too_many - fitting) / 2;
        *(if fits(middle) { &mut fitting } else { &mut too_many }) = middle;
    }
    fitting
}

/// Keep the sequences of own chunks. `bounds`: the first sequence of each minibatch and, last, their number.
fn keep_own(is_own: &[bool], delivered: &mut Vec<Delivered>, bounds: &mut [usize]) {
    let (mut num_own, mut own_before) = (0, Vec::new());
    for delivered in &*delivered {
        memory::push(&mut own_before, num_own);
        num_own += usize::from(is_own[delivered.chunk as usize]);
    }
    memory::push(&mut own_before, num_own);
    bounds.iter_mut().for_each(|bound| *bound = own_before[*bound]);
    delivered.retain(|delivered| is_own[delivered.chunk as usize]);
}

/// Look-up of the sequences from a cursor on, in randomized order.
struct Walk<'a, 'b, 'c> {
    order: &'a mut SweepOrder,
    table: Table<'a>,
    /// True if all lengths are 1. Then no length is looked up, which would wait for memory.
    is_of_single_samples: bool,
    pause: &'b mut Pause<'c>,
    until_pause: &'b mut UntilPause,
}

impl Walk<'_, '_, '_> {
    /// Some sequences from the cursor on, at least one, all at positions of one rank; and the plan of the sweep. The
    /// cursor's rank is brought up to date.
    #[inline]
    fn next(&mut self, cursor: &mut Cursor) -> Result<(&[Located], &SweepPlan), Stopped> {
        let mut num_located = self.order.located_from(cursor.index).len();
        if num_located == 0 {
            cursor.rank = self.order.plan.rank_of(cursor.index);
            num_located =
                self.order.locate(self.table, self.is_of_single_samples, cursor.rank, cursor.index, self.pause)?;
            // The shuffle pauses by itself. This pause is for long reads of an order that is known already.
            self.until_pause.count(num_located as u32, self.pause)?;
        }
        cursor.rank = self.order.rank_of_located;
        Ok((self.order.located_from(cursor.index), &self.order.plan))
    }
}

/// Take sequences, up to the end of the cursor's sweep at most. Moves the cursor except for its position. Returns the
/// number of samples that were passed, and two sizes in the unit of the request: passed and taken.
fn read_one_sweep(
    mut walk: Walk,
    request: Request,
    mut nothing_yet: bool,
    until_end: u64,
    cursor: &mut Cursor,
    left_out: Option<&LeftOut>,
    out: &mut Vec<Delivered>,
) -> Result<(u64, u64, u64), Stopped> {
    // Ranks have 32 bits, so a smaller divisor of more than 32 bits leaves the same remainders.
    let count = Remainder::new(request.partition.count.min(1 << 62));
    let is_only_partition = request.partition.count == 1;
    let num_sequences = walk.order.plan.num_sequences();
    let (mut tally, longest) = (request.limits.map(Tally::new), request.longest());
    let (mut moved, mut passed, mut taken, before) = (0, 0, 0, out.len());
    'sweep: while cursor.index < num_sequences {
        let (located, plan) = walk.next(cursor)?;
        for &Located { sequence, rank, length } in located {
            let is_left_out = left_out.is_some_and(|left_out| left_out.has(sequence, cursor.position + moved));
            let counted = if is_left_out { 0 } else { request.count(length.into()) };
            let is_in_partition = is_only_partition || count.of(u64::from(rank)) == request.partition.index;
            let is_ours = is_in_partition && length <= longest && !is_left_out;
            // In a global minibatch the sequences of all partitions fill the share.
            let counts = (is_in_partition | request.is_global) && length <= longest && !is_left_out;
            let is_full = |tally: Tally| counts && !tally.fits(length, length);
            if !nothing_yet
                && ((counts && taken + counted > request.share)
                    || passed + counted > request.passed
                    || tally.is_some_and(is_full))
            {
                break 'sweep;
            }
            // CNTK checks the end after the size, as in file order.
            if moved >= until_end {
                break 'sweep;
            }
            if is_ours {
                memory::push(out, Delivered { sequence, chunk: plan.chunks[rank as usize], load: length });
            }
            // Sequences that do not count leave the minibatch empty, so the rule "at least one" stays in force.
            if counts {
                taken += counted;
                nothing_yet = false;
                tally.iter_mut().for_each(|tally| tally.take(length, length));
            }
            moved += u64::from(length);
            passed += counted;
            cursor.index += 1;
        }
    }
    let is_last = cursor.index == num_sequences || moved >= until_end;
    if is_last && tally.is_some_and(|tally| !tally.is_delivered_last()) {
        // `out` may hold the sequences of earlier reads, which stay.
        out.truncate(before);
        taken = 0;
    }
    Ok((moved, passed, taken))
}
