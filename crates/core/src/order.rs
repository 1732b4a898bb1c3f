//! Which sequences come next: the order of a sweep, and the reads along it.
//!
//! The order of one sweep is a pure function of the table of chunks, the window and `seed + sweep`:
//!
//! ```text
//!  chunks in the file     0  1  2  3  4  5
//!                         │  shuffled over the whole range        (SweepPlan)
//!  places of the sweep    3  2  1  0  4  5
//!                        ╰── window ──╯
//!  positions in order    d1 d0 c1 b0 d2 …   a sequence strays no further than the windows allow   (SweepOrder)
//! ```
//!
//! A sequence is named by its *home*, the position that it has before the sequences are shuffled. The positions of one
//! place are consecutive, so "home is in this window of places" is a comparison of two positions, and the whole
//! shuffle runs on 32-bit numbers. It goes on only as far as a read needs, and what the reader has passed is forgotten.
//!
//! [`Reader`] walks along that order, or along the file, by the rules of `docs/timeline.md`. Nothing here touches
//! data, decides a setting, or knows of Python. Whoever calls passes `pause`, which is asked now and then whether to
//! go on, and a read that is stopped leaves the reader as it was.

use cntkio_simd::memory::prefetch;
use std::collections::VecDeque;
use std::sync::Arc;

/// How many sequences pass between two calls of `pause`: some ten milliseconds of work.
const SEQUENCES_BETWEEN_PAUSES: u32 = 1 << 19;

/// `pause` asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

/// Asked now and then whether to go on; `false` stops.
pub type Pause<'a> = dyn FnMut() -> bool + 'a;

/// The 64-bit Mersenne Twister, as the C++ standard's `mt19937_64`.
pub(crate) struct MersenneTwister {
    state: [u64; Self::SIZE],
    next: usize,
}

impl MersenneTwister {
    const SIZE: usize = 312;
    const SHIFT: usize = 156;

    /// The generator that `seed` starts.
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = [seed; Self::SIZE];
        for i in 1..Self::SIZE {
            let before = state[i - 1];
            state[i] = (before ^ (before >> 62)).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i as u64);
        }
        Self { state, next: Self::SIZE }
    }

    /// The next number of 64 bits.
    #[inline]
    pub(crate) fn draw(&mut self) -> u64 {
        if self.next == Self::SIZE {
            self.refill();
        }
        let mut x = self.state[self.next];
        self.next += 1;
        x ^= (x >> 29) & 0x5555_5555_5555_5555;
        x ^= (x << 17) & 0x71D6_7FFF_EDA6_0000;
        x ^= (x << 37) & 0xFFF7_EEE0_0000_0000;
        x ^ (x >> 43)
    }

    #[cold]
    #[inline(never)]
    fn refill(&mut self) {
        let state = &mut self.state;
        let twist = |high: u64, low: u64, far: u64| {
            let x = (high & 0xFFFF_FFFF_8000_0000) | (low & 0x7FFF_FFFF);
            far ^ (x >> 1) ^ ((x & 1).wrapping_neg() & 0xB502_6F5A_A966_19E9)
        };
        for i in 0..Self::SIZE - Self::SHIFT {
            state[i] = twist(state[i], state[i + 1], state[i + Self::SHIFT]);
        }
        for i in Self::SIZE - Self::SHIFT..Self::SIZE - 1 {
            state[i] = twist(state[i], state[i + 1], state[i + Self::SHIFT - Self::SIZE]);
        }
        state[Self::SIZE - 1] = twist(state[Self::SIZE - 1], state[0], state[Self::SHIFT - 1]);
        self.next = 0;
    }
}

/// The remainder by one divisor, exact, for many dividends: a multiplication in place of a division.
#[derive(Debug, Clone, Copy)]
struct Remainder {
    divisor: u64,
    reciprocal: u64,
}

impl Remainder {
    /// The remainder by `divisor`, which lies in `1 .. 2^63`.
    fn new(divisor: u64) -> Self {
        debug_assert!((1..1 << 63).contains(&divisor));
        Self { divisor, reciprocal: u64::MAX / divisor }
    }

    /// `dividend % divisor`.
    #[inline]
    fn of(self, dividend: u64) -> u64 {
        // reciprocal >= 2^64 / divisor - 1, so the quotient is exact or one too small.
        let quotient = ((u128::from(dividend) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = dividend - quotient * self.divisor;
        if rest >= self.divisor { rest - self.divisor } else { rest }
    }
}

/// How far a sequence may stray from its chunk's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// So many places of the shuffled order of chunks.
    Chunks(u64),
    /// As many whole places as hold about so many samples.
    Samples(u64),
}

/// What the order of every sweep follows from, beside the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Randomization {
    /// How far a sequence may stray.
    pub window: Window,
    /// Sweep number k is shuffled with `seed + k`, modulo 2^64.
    pub seed: u64,
}

/// The lengths of all sequences in file order, and where each chunk starts among them.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    /// Samples that each sequence counts for, at least 1.
    pub lengths: &'a [u32],
    /// First sequence of each chunk, and at the end the number of sequences.
    pub chunk_starts: &'a [i64],
}

impl Table<'_> {
    fn num_chunks(&self) -> usize {
        self.chunk_starts.len() - 1
    }

    fn start(&self, chunk: usize) -> usize {
        self.chunk_starts[chunk] as usize
    }
}

/// A half-open range of places or of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    from: u32,
    to: u32,
}

impl Span {
    #[inline]
    fn holds(self, x: u32) -> bool {
        x.wrapping_sub(self.from) < self.to - self.from
    }
}

/// The order of chunks of one sweep, and what follows from it for each place.
#[derive(Debug)]
struct SweepPlan {
    sweep: u64,
    seed: u64,
    /// The chunk at each place.
    chunks: Vec<u32>,
    /// First position of each place, and at the end the number of sequences.
    starts: Vec<u32>,
    /// The window of each place, in places.
    windows: Vec<Span>,
    /// The positions that a sequence at home in each place may take: those of all places whose window holds it.
    reach: Vec<Span>,
    /// The place of the first position of each block of `1 << block_shift` positions.
    block_places: Vec<u32>,
    block_shift: u32,
    /// Whether every window holds all places.
    is_one_window: bool,
}

/// All chunks in the order of one sweep.
pub fn chunk_order(num_chunks: usize, seed: u64) -> Vec<u32> {
    let mut generator = MersenneTwister::new(seed);
    let mut order: Vec<u32> = (0..num_chunks as u32).collect();
    if num_chunks > 0 {
        let remainder = Remainder::new(num_chunks as u64);
        // Every draw is over the whole range, so not all orders are equally likely. The order of every CNTK run
        // depends on it: do not turn this into Fisher-Yates. (docs/timeline.md, "Order of chunks")
        for i in 0..num_chunks {
            order.swap(i, remainder.of(generator.draw()) as usize);
        }
    }
    order
}

/// The numbers below `count`, shuffled as CNTK shuffles a window of sequences of a user-defined deserializer.
///
/// Unlike [`chunk_order`] this is Fisher-Yates. It returns early if `pause` asks it to stop.
pub fn shuffled(count: u32, seed: u64, pause: &mut Pause) -> Result<Vec<u32>, Stopped> {
    let mut generator = MersenneTwister::new(seed);
    let mut order: Vec<u32> = (0..count).collect();
    for at in 0..count {
        if at % SEQUENCES_BETWEEN_PAUSES == SEQUENCES_BETWEEN_PAUSES - 1 && !pause() {
            return Err(Stopped);
        }
        let step = generator.draw() % u64::from(count - at);
        order.swap(at as usize, at as usize + step as usize);
    }
    Ok(order)
}

impl SweepPlan {
    /// The plan of sweep number `sweep`. `chunk_samples` are the samples of each chunk, in file order.
    fn new(table: Table, chunk_samples: &[u64], randomization: Randomization, sweep: u64) -> Self {
        let seed = randomization.seed.wrapping_add(sweep);
        let chunks = chunk_order(table.num_chunks(), seed);
        let mut starts = Vec::with_capacity(chunks.len() + 1);
        starts.push(0);
        let mut sequences = 0;
        for &chunk in &chunks {
            sequences += table.start(chunk as usize + 1) - table.start(chunk as usize);
            starts.push(sequences as u32);
        }
        let windows = match randomization.window {
            Window::Chunks(size) => windows_in_chunks(chunks.len(), size.max(1)),
            Window::Samples(size) => {
                let samples = chunks.iter().map(|&chunk| chunk_samples[chunk as usize]);
                windows_in_samples(samples, size.max(1))
            }
        };
        let reach = reach(&windows, &starts);
        let per_place = (sequences / chunks.len().max(1)).max(1);
        let block_shift = per_place.ilog2();
        let mut block_places = Vec::with_capacity((sequences >> block_shift) + 2);
        let mut place = 0;
        for position in (0..=sequences as u64).step_by(1 << block_shift) {
            while place + 1 < chunks.len() && u64::from(starts[place + 1]) <= position {
                place += 1;
            }
            block_places.push(place as u32);
        }
        block_places.push(chunks.len() as u32 - 1);
        let is_one_window = windows.iter().all(|window| (window.from, window.to) == (0, chunks.len() as u32));
        Self { sweep, seed, chunks, starts, windows, reach, block_places, block_shift, is_one_window }
    }

    fn num_sequences(&self) -> u32 {
        self.starts[self.chunks.len()]
    }

    /// The place that owns a position.
    #[inline]
    fn place_of(&self, position: u32) -> u32 {
        let block = (position >> self.block_shift) as usize;
        let (first, last) = (self.block_places[block], self.block_places[block + 1]);
        if first == last {
            return first;
        }
        let ends = &self.starts[first as usize + 1..=last as usize];
        if ends.len() <= 8 {
            return first + ends.iter().take_while(|&&end| end <= position).count() as u32;
        }
        first + ends.partition_point(|&end| end <= position) as u32
    }

    /// How far the shuffle must have gone before `place` is final: past its own window, and past every place whose
    /// window holds it.
    #[inline]
    fn final_after(&self, place: u32) -> u32 {
        let window_end = self.starts[self.windows[place as usize].to as usize];
        self.reach[place as usize].to.max(window_end)
    }

    /// The sequence, as numbered in the file, that has this home in that place.
    #[inline]
    fn sequence(&self, table: Table, place: u32, home: u32) -> usize {
        table.start(self.chunks[place as usize] as usize) + (home - self.starts[place as usize]) as usize
    }
}

fn windows_in_chunks(num_chunks: usize, size: u64) -> Vec<Span> {
    let n = num_chunks as u64;
    let half = size / 2;
    (0..n)
        .map(|c| {
            let from = c.saturating_sub(half);
            let to = from.saturating_add(size);
            let (from, to) = if to > n { (n.saturating_sub(size), n) } else { (from, to) };
            Span { from: from as u32, to: to as u32 }
        })
        .collect()
}

/// `samples` are those of each place, in order.
fn windows_in_samples(samples: impl Iterator<Item = u64>, size: u64) -> Vec<Span> {
    let half = size / 2;
    let mut before = vec![0];
    before.extend(samples.scan(0u64, |sum, samples| {
        *sum += samples;
        Some(*sum)
    }));
    let n = before.len() - 1;
    let (mut from, mut to) = (0, 1);
    (0..n)
        .map(|c| {
            while before[c] - before[from] > half {
                from += 1;
            }
            to = to.max(c + 1);
            while to < n && before[to + 1] - before[c] < half {
                to += 1;
            }
            Span { from: from as u32, to: to as u32 }
        })
        .collect()
}

/// For each place the positions of all places whose window holds it. Both ends of the windows never decrease, so these
/// places are consecutive.
fn reach(windows: &[Span], starts: &[u32]) -> Vec<Span> {
    let (mut from, mut to) = (0, 0);
    (0..windows.len() as u32)
        .map(|place| {
            while windows[from].to <= place {
                from += 1;
            }
            while to < windows.len() && windows[to].from <= place {
                to += 1;
            }
            Span { from: starts[from], to: starts[to] }
        })
        .collect()
}

/// The order of sequences of one sweep, shuffled as far as it was asked for and forgotten where it was passed.
struct SweepOrder {
    plan: Arc<SweepPlan>,
    generator: MersenneTwister,
    /// Homes of what sits at the positions `base ..`; none is in here yet whose position no window has reached.
    slots: Vec<u32>,
    base: u32,
    /// The shuffle has been done for all positions below, which are those of the places below `shuffled_places`,
    /// and of some of that place.
    shuffled: u32,
    shuffled_places: u32,
}

impl SweepOrder {
    fn new(plan: Arc<SweepPlan>) -> Self {
        let generator = MersenneTwister::new(plan.seed);
        Self { plan, generator, slots: Vec::new(), base: 0, shuffled: 0, shuffled_places: 0 }
    }

    /// Makes sure that what is at `position`, which belongs to `place`, is known and final.
    #[inline]
    fn prepare(&mut self, place: u32, position: u32, pause: &mut Pause) -> Result<(), Stopped> {
        if position < self.base {
            self.start_again(place, position, pause)?;
        }
        let until = self.plan.final_after(place);
        if self.shuffled < until { self.shuffle(until, pause) } else { Ok(()) }
    }

    /// The same from the start of the sweep, for a position that was forgotten.
    #[cold]
    fn start_again(&mut self, place: u32, position: u32, pause: &mut Pause) -> Result<(), Stopped> {
        *self = Self::new(Arc::clone(&self.plan));
        for passed in 0..place {
            self.shuffle(self.plan.final_after(passed), pause)?;
            self.forget(position);
        }
        Ok(())
    }

    /// Goes on with the shuffle to the position `until`.
    fn shuffle(&mut self, until: u32, pause: &mut Pause) -> Result<(), Stopped> {
        let plan = Arc::clone(&self.plan);
        while self.shuffled < until {
            let place = self.shuffled_places as usize;
            let end = plan.starts[place + 1].min(until);
            if self.shuffled == end {
                self.shuffled_places += 1;
                continue;
            }
            let window = plan.windows[place];
            let window = Span { from: plan.starts[window.from as usize], to: plan.starts[window.to as usize] };
            let known = self.base + self.slots.len() as u32;
            if known < window.to {
                let more = (window.to - known) as usize;
                // A first window is reserved to the size, so that a window over all the data costs no more than it.
                if self.slots.is_empty() {
                    self.slots.reserve_exact(more);
                }
                self.slots.extend(known..window.to);
            }
            let remainder = Remainder::new(u64::from(window.to - window.from));
            let step_end = end.min(self.shuffled.saturating_add(SEQUENCES_BETWEEN_PAUSES));
            let slots = &mut self.slots[..];
            let base = self.base;
            if plan.is_one_window {
                // Every place may take every sequence, so that no draw is in vain.
                for t in self.shuffled..step_end {
                    let other = remainder.of(self.generator.draw()) as u32;
                    slots.swap((t - base) as usize, (other - base) as usize);
                }
            } else {
                for t in self.shuffled..step_end {
                    let here = slots[(t - base) as usize];
                    let reach = plan.reach[plan.place_of(here) as usize];
                    let other = loop {
                        let other = window.from + remainder.of(self.generator.draw()) as u32;
                        if window.holds(slots[(other - base) as usize]) & reach.holds(other) {
                            break other;
                        }
                    };
                    slots.swap((t - base) as usize, (other - base) as usize);
                }
            }
            let paused = self.shuffled / SEQUENCES_BETWEEN_PAUSES != step_end / SEQUENCES_BETWEEN_PAUSES;
            self.shuffled = step_end;
            if paused && !pause() {
                return Err(Stopped);
            }
        }
        Ok(())
    }

    /// Lets go of the positions below `position`, as far as the shuffle can do without them.
    fn forget(&mut self, position: u32) {
        let place = (self.shuffled_places as usize).min(self.plan.chunks.len() - 1);
        let shuffle_needs = if self.shuffled == self.plan.num_sequences() {
            self.shuffled
        } else {
            self.plan.starts[self.plan.windows[place].from as usize]
        };
        let passed = position.min(shuffle_needs).saturating_sub(self.base);
        // Half of the slots at once, so that each is moved about once.
        if passed as usize > self.slots.len() / 2 {
            self.slots.drain(..passed as usize);
            self.base += passed;
        }
    }
}

/// Share `index` of `count` of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// Which share, below `count`.
    pub index: u64,
    /// How many shares, at least 1.
    pub count: u64,
}

/// What one read may take.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The share of the sequences that is delivered.
    pub partition: Partition,
    /// Samples of this partition, at least 1.
    pub share: u64,
    /// Samples of all partitions that may be passed, foreign ones too; `u64::MAX` where they do not count.
    pub passed: u64,
    /// Whether the read goes on into the next sweep.
    pub crosses_sweeps: bool,
    /// Whether `share` and `passed` count sequences instead of samples.
    pub counts_sequences: bool,
}

impl Request {
    /// What a sequence of so many samples counts for.
    #[inline]
    fn count(&self, length: u64) -> u64 {
        if self.counts_sequences { 1 } else { length }
    }
}

/// How a read ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The read reached or crossed the end of a sweep.
    pub end_of_sweep: bool,
    /// The data end with this read.
    pub ended: bool,
}

/// A sequence that a read delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Its number in file order.
    pub sequence: u32,
    /// The number of its chunk in file order.
    pub chunk: u32,
}

/// Where a reader stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Samples of all partitions passed since the start.
    pub position: u64,
    /// The sweep that `index` and `place` belong to.
    pub sweep: u64,
    /// The next sequence: in randomized order its position in the sweep's order, else its number in file order.
    pub index: u32,
    /// The place, or the chunk, of `index`.
    pub place: u32,
    /// In order: the running count of sequences, which says whose turn it is.
    pub count: u64,
}

/// Walks along the timeline.
pub struct Reader {
    randomization: Option<Randomization>,
    end: u64,
    num_sequences: u32,
    /// Samples before each chunk, in file order, and at the end of a sweep.
    samples_before: Vec<u64>,
    chunk_samples: Vec<u64>,
    cursor: Cursor,
    /// Where the last read began, or what `hold` was told: a caller that reads ahead may come back here at no cost.
    previous: Cursor,
    held: Option<Cursor>,
    order: Option<SweepOrder>,
    /// The plan made last, often that of the next sweep before its order is needed.
    plan: Option<Arc<SweepPlan>>,
}

impl Reader {
    /// A reader at position 0. The data end at the position `end`.
    ///
    /// The table has at least one sequence and fewer than 2^32, none of length 0, and no chunk without a sequence.
    #[must_use]
    pub fn new(table: Table, randomization: Option<Randomization>, end: u64) -> Self {
        let chunk_samples: Vec<u64> = (0..table.num_chunks())
            .map(|chunk| table.lengths[table.start(chunk)..table.start(chunk + 1)].iter().map(|&n| u64::from(n)).sum())
            .collect();
        let mut samples_before = vec![0];
        samples_before.extend(chunk_samples.iter().scan(0, |sum, samples| {
            *sum += samples;
            Some(*sum)
        }));
        let cursor = Cursor { position: 0, sweep: 0, index: 0, place: 0, count: 0 };
        Self {
            randomization,
            end,
            num_sequences: table.lengths.len() as u32,
            samples_before,
            chunk_samples,
            cursor,
            previous: cursor,
            held: None,
            order: None,
            plan: None,
        }
    }

    /// Samples in a sweep.
    #[must_use]
    pub fn num_samples(&self) -> u64 {
        self.samples_before[self.samples_before.len() - 1]
    }

    fn is_of_single_samples(&self) -> bool {
        self.num_samples() == u64::from(self.num_sequences)
    }

    /// Where the reader stands.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Goes where this reader once stood: at no cost if its last read began there.
    pub fn rewind(&mut self, cursor: Cursor) {
        self.cursor = cursor;
        self.previous = cursor;
    }

    /// Keeps what `rewind` needs to come back at no cost to a place of the current sweep, from there on.
    pub fn hold(&mut self, cursor: Cursor) {
        self.held = Some(cursor);
    }

    /// Takes up a count where a full state left off.
    pub fn set_count(&mut self, count: u64) {
        self.cursor.count = count;
    }

    /// Moves the end of the data.
    pub fn set_end(&mut self, end: u64) {
        self.end = end;
    }

    /// What follows when the partition or the size changes: turns are counted from the sweep's start again, and a
    /// randomized partition beyond the number of chunks has nothing.
    pub fn settle(&mut self, partition: Partition) {
        self.cursor.count = u64::from(self.cursor.index);
        if self.randomization.is_some() && partition.index >= self.chunk_samples.len() as u64 {
            // In no sweep: the end need not be where a sequence starts.
            self.cursor = Cursor { position: self.end, sweep: u64::MAX, index: 0, place: 0, count: 0 };
        }
    }

    /// Goes to the first sequence that starts at or after `position`.
    ///
    /// # Errors
    /// `pause` asked to stop; the reader is where it was.
    pub fn set_position(&mut self, table: Table, position: u64, pause: &mut Pause) -> Result<(), Stopped> {
        let samples = self.num_samples();
        let (sweep, offset) = (position / samples, position % samples);
        let cursor = match self.randomization {
            None => self.seek_in_order(table, sweep, offset),
            Some(randomization) => self.seek_randomized(table, randomization, sweep, offset, pause)?,
        };
        self.cursor = cursor;
        self.previous = cursor;
        Ok(())
    }

    fn seek_in_order(&self, table: Table, sweep: u64, offset: u64) -> Cursor {
        let chunk = self.samples_before.partition_point(|&before| before <= offset) - 1;
        let mut index = table.start(chunk);
        let mut passed = self.samples_before[chunk];
        while passed < offset {
            passed += u64::from(table.lengths[index]);
            index += 1;
        }
        let position = sweep.saturating_mul(self.num_samples()).saturating_add(passed);
        if index as u32 == self.num_sequences {
            return Cursor { position, sweep: sweep + 1, index: 0, place: 0, count: 0 };
        }
        let place = if index == table.start(chunk + 1) { chunk + 1 } else { chunk } as u32;
        Cursor { position, sweep, index: index as u32, place, count: index as u64 }
    }

    fn seek_randomized(
        &mut self,
        table: Table,
        randomization: Randomization,
        sweep: u64,
        offset: u64,
        pause: &mut Pause,
    ) -> Result<Cursor, Stopped> {
        let num_sequences = self.num_sequences;
        let start = sweep.saturating_mul(self.num_samples());
        let mut cursor = Cursor { position: start, sweep, index: 0, place: 0, count: 0 };
        if self.cursor.sweep == sweep && (start..=start + offset).contains(&self.cursor.position) {
            cursor = self.cursor;
        }
        let mut passed = cursor.position - start;
        let mut until_pause = SEQUENCES_BETWEEN_PAUSES;
        let is_of_single_samples = self.is_of_single_samples();
        let order = self.order(table, randomization, sweep);
        let mut walk = Walk { order, table, is_of_single_samples, pause, until_pause: &mut until_pause };
        while passed < offset && cursor.index < num_sequences {
            let before = cursor.place;
            let (_, sequence) = walk.at(&mut cursor)?;
            passed += walk.length(sequence);
            cursor.index += 1;
            if cursor.place != before {
                walk.order.forget(cursor.index - 1);
            }
        }
        cursor.position = start.saturating_add(passed);
        Ok(cursor)
    }

    /// Delivers into `out` what one read takes.
    ///
    /// # Errors
    /// `pause` asked to stop; the reader is where it was, and what is in `out` does not count.
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
        self.previous = self.held.unwrap_or(self.cursor);
        self.cursor = cursor;
        Ok(outcome)
    }

    fn read_in_order(
        &self,
        table: Table,
        request: Request,
        cursor: &mut Cursor,
        out: &mut Vec<Delivered>,
        pause: &mut Pause,
    ) -> Result<Outcome, Stopped> {
        let samples = self.num_samples();
        if cursor.position >= self.end {
            let end_of_sweep = cursor.position >= samples && cursor.position.is_multiple_of(samples);
            return Ok(Outcome { end_of_sweep, ended: true });
        }
        let partition = request.partition;
        let first_sweep = cursor.position / samples;
        let (mut taken, mut passed) = (0, 0);
        let mut nothing_yet = true;
        let mut turn = cursor.count % partition.count;
        let mut until_pause = SEQUENCES_BETWEEN_PAUSES;
        while taken < request.share && passed < request.passed {
            let length = u64::from(table.lengths[cursor.index as usize]);
            let counted = request.count(length);
            let is_local = turn == partition.index;
            if !nothing_yet
                && ((is_local && taken + counted > request.share) || passed.saturating_add(counted) > request.passed)
            {
                break;
            }
            if cursor.position >= self.end {
                break;
            }
            if is_local {
                out.push(Delivered { sequence: cursor.index, chunk: cursor.place });
                taken += counted;
                nothing_yet = false;
            }
            passed += counted;
            cursor.position = cursor.position.saturating_add(length);
            cursor.count += 1;
            turn = if turn + 1 == partition.count { 0 } else { turn + 1 };
            cursor.index += 1;
            if cursor.index as usize == table.start(cursor.place as usize + 1) {
                cursor.place += 1;
                if cursor.index == self.num_sequences {
                    (cursor.index, cursor.place) = (0, 0);
                    cursor.sweep += 1;
                    if !request.crosses_sweeps {
                        break;
                    }
                }
            }
            until_pause -= 1;
            if until_pause == 0 {
                until_pause = SEQUENCES_BETWEEN_PAUSES;
                if !pause() {
                    return Err(Stopped);
                }
            }
        }
        Ok(Outcome { end_of_sweep: first_sweep != cursor.position / samples, ended: cursor.position >= self.end })
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
        let mut outcome = Outcome { end_of_sweep: false, ended: false };
        let (mut taken, mut passed) = (0, 0);
        let mut nothing_yet = true;
        let (end, previous) = (self.end, self.previous);
        let is_of_single_samples = self.is_of_single_samples();
        let mut until_pause = SEQUENCES_BETWEEN_PAUSES;
        let mut is_first_sweep = true;
        loop {
            if cursor.position >= end {
                outcome.ended = true;
                outcome.end_of_sweep |= cursor.position >= samples && cursor.position.is_multiple_of(samples);
                break;
            }
            let sweep = cursor.position / samples;
            if sweep != cursor.sweep {
                *cursor = Cursor { sweep, index: 0, place: 0, ..*cursor };
                // A new sweep costs as much as many sequences: two generators are seeded.
                until_pause = until_pause.saturating_sub(1000).max(1);
            }
            let order = self.order(table, randomization, sweep);
            if is_first_sweep {
                let came_from = if previous.sweep == sweep { previous.index } else { cursor.index };
                order.forget(came_from.min(cursor.index));
            }
            let walk = Walk { order, table, is_of_single_samples, pause, until_pause: &mut until_pause };
            let room =
                Request { share: request.share - taken, passed: request.passed.saturating_sub(passed), ..request };
            let (moved, counted, took) = read_one_sweep(walk, room, nothing_yet, end - cursor.position, cursor, out)?;
            outcome.end_of_sweep |= cursor.position % samples + moved >= samples;
            cursor.position += moved;
            outcome.ended = cursor.position >= end;
            taken += took;
            passed += counted;
            // "At least one sequence" holds for the first sweep that the read touches.
            if !is_first_sweep && moved == 0 {
                break;
            }
            is_first_sweep = false;
            nothing_yet = false;
            let goes_on = request.crosses_sweeps && outcome.end_of_sweep && !outcome.ended && taken < request.share;
            if !goes_on {
                break;
            }
        }
        Ok(outcome)
    }

    /// The sweep, and in it the place (in order: the chunk), of the next sequence; `None` when the data have ended.
    #[must_use]
    pub fn place(&self) -> Option<(u64, u32)> {
        let cursor = self.cursor;
        if cursor.position >= self.end {
            return None;
        }
        let sweep = cursor.position / self.num_samples();
        if self.randomization.is_none() || sweep == cursor.sweep {
            Some((sweep, cursor.place))
        } else {
            Some((sweep, 0))
        }
    }

    /// The chunks of `partition` that can hold a sequence delivered at `place`, and the place behind them.
    pub fn chunks_at(&mut self, table: Table, sweep: u64, place: u32, partition: Partition) -> (Vec<i64>, u32) {
        let Some(randomization) = self.randomization else {
            return (vec![i64::from(place)], place + 1);
        };
        let plan = self.plan(table, randomization, sweep);
        let window = plan.windows[place as usize];
        let chunks = (window.from..window.to)
            .filter(|&place| u64::from(place) % partition.count == partition.index)
            .map(|place| i64::from(plan.chunks[place as usize]))
            .collect();
        (chunks, window.to)
    }

    /// The next at most `limit` chunks that `partition` needs from `place` on in one sweep, and the place behind them,
    /// which is the number of chunks when the sweep has no more.
    pub fn chunks_from(
        &mut self,
        table: Table,
        sweep: u64,
        place: u32,
        limit: usize,
        partition: Partition,
    ) -> (Vec<i64>, u32) {
        let num_chunks = table.num_chunks() as u32;
        let mut chunks = Vec::new();
        let mut place = place;
        if let Some(randomization) = self.randomization {
            let plan = self.plan(table, randomization, sweep);
            while place < num_chunks && chunks.len() < limit {
                if u64::from(place) % partition.count == partition.index {
                    chunks.push(i64::from(plan.chunks[place as usize]));
                }
                place += 1;
            }
            return (chunks, place);
        }
        // Sequences take turns; a chunk of fewer sequences than partitions may hold none of ours. Sequence number s of
        // this sweep has the turn s - index + count, of a later sweep that many sequences more.
        let later_sweeps = i128::from(sweep - self.cursor.sweep) * i128::from(self.num_sequences);
        let shift = i128::from(self.cursor.count) - i128::from(self.cursor.index) + later_sweeps;
        while place < num_chunks && chunks.len() < limit {
            let (start, end) = (table.start(place as usize) as u64, table.start(place as usize + 1) as u64);
            let turn = (shift + i128::from(start)).rem_euclid(i128::from(partition.count)) as u64;
            let until_ours = (partition.index + partition.count - turn) % partition.count;
            if start + until_ours < end {
                chunks.push(i64::from(place));
            }
            place += 1;
        }
        (chunks, place)
    }

    fn plan(&mut self, table: Table, randomization: Randomization, sweep: u64) -> Arc<SweepPlan> {
        let made = [self.order.as_ref().map(|order| &order.plan), self.plan.as_ref()];
        if let Some(plan) = made.into_iter().flatten().find(|plan| plan.sweep == sweep) {
            return Arc::clone(plan);
        }
        let plan = Arc::new(SweepPlan::new(table, &self.chunk_samples, randomization, sweep));
        self.plan = Some(Arc::clone(&plan));
        plan
    }

    /// The order of `sweep`, begun unless it is there.
    fn order(&mut self, table: Table, randomization: Randomization, sweep: u64) -> &mut SweepOrder {
        if self.order.as_ref().is_some_and(|order| order.plan.sweep != sweep) {
            // The old order goes before the new one comes: two would need twice the memory.
            self.order = None;
        }
        let plan = self.plan(table, randomization, sweep);
        self.order.get_or_insert_with(|| SweepOrder::new(plan))
    }

    /// Bytes that the reader holds: order state and tables of chunks.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        let plan = |plan: &SweepPlan| {
            4 * (plan.chunks.capacity() + plan.starts.capacity() + plan.block_places.capacity())
                + 8 * (plan.windows.capacity() + plan.reach.capacity())
        };
        8 * (self.samples_before.capacity() + self.chunk_samples.capacity())
            + self.plan.as_deref().map_or(0, plan)
            + self.order.as_ref().map_or(0, |order| plan(&order.plan) + 4 * order.slots.capacity())
    }
}

/// Looks up what sits at a cursor in randomized order.
struct Walk<'a, 'b, 'c> {
    order: &'a mut SweepOrder,
    table: Table<'a>,
    /// Whether all lengths are 1, so that nobody has to look at them, who would wait for memory.
    is_of_single_samples: bool,
    pause: &'b mut Pause<'c>,
    until_pause: &'b mut u32,
}

/// How many sequences ahead lengths are asked for: in random order they are in no cache.
const AHEAD: usize = 16;

impl Walk<'_, '_, '_> {
    /// Samples of a sequence.
    #[inline]
    fn length(&self, sequence: usize) -> u64 {
        if self.is_of_single_samples { 1 } else { u64::from(self.table.lengths[sequence]) }
    }

    /// Home place and number of the sequence at the cursor, whose place is brought up to date.
    #[inline]
    fn at(&mut self, cursor: &mut Cursor) -> Result<(u32, usize), Stopped> {
        while self.order.plan.starts[cursor.place as usize + 1] <= cursor.index {
            cursor.place += 1;
        }
        self.order.prepare(cursor.place, cursor.index, self.pause)?;
        *self.until_pause -= 1;
        if *self.until_pause == 0 {
            *self.until_pause = SEQUENCES_BETWEEN_PAUSES;
            if !(self.pause)() {
                return Err(Stopped);
            }
        }
        let at = (cursor.index - self.order.base) as usize;
        if !self.is_of_single_samples
            && let Some(&home) = self.order.slots.get(at + AHEAD)
        {
            // Where the shuffle has not got there yet it is a wrong guess, which does no harm.
            let sequence = self.sequence_at(home).1;
            prefetch(self.table.lengths.get(sequence..=sequence).unwrap_or(&[]), 1);
        }
        Ok(self.sequence_at(self.order.slots[at]))
    }

    /// Place and number of the sequence with a home.
    #[inline]
    fn sequence_at(&self, home: u32) -> (u32, usize) {
        let place = self.order.plan.place_of(home);
        (place, self.order.plan.sequence(self.table, place, home))
    }
}

/// Takes sequences up to the end of the cursor's sweep at most; moves the cursor but for its position.
/// Returns the samples passed, and what was passed and what was taken as the request counts.
fn read_one_sweep(
    mut walk: Walk,
    request: Request,
    mut nothing_yet: bool,
    until_end: u64,
    cursor: &mut Cursor,
    out: &mut Vec<Delivered>,
) -> Result<(u64, u64, u64), Stopped> {
    let count = Remainder::new(request.partition.count.min(1 << 62));
    let num_sequences = walk.order.plan.num_sequences();
    let (mut moved, mut passed, mut taken) = (0, 0, 0);
    while cursor.index < num_sequences {
        let (place, sequence) = walk.at(cursor)?;
        let length = walk.length(sequence);
        let counted = request.count(length);
        let is_local = count.of(u64::from(place)) == request.partition.index;
        if !nothing_yet && ((is_local && taken + counted > request.share) || passed + counted > request.passed) {
            break;
        }
        if moved >= until_end {
            break;
        }
        if is_local {
            out.push(Delivered { sequence: sequence as u32, chunk: walk.order.plan.chunks[place as usize] });
            taken += counted;
            nothing_yet = false;
        }
        moved += length;
        passed += counted;
        cursor.index += 1;
    }
    Ok((moved, passed, taken))
}

/// A sequence in a slot, of which `next ..` is not delivered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owed {
    /// The sequence and its chunk.
    pub delivered: Delivered,
    /// Its samples.
    pub length: u32,
    /// The first sample that was not delivered.
    pub next: u32,
    /// Whether the read that brought it met the end of a sweep.
    pub end_of_sweep: bool,
}

/// A part of a sequence, which fills some steps of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The row.
    pub slot: u32,
    /// The sequence and its chunk.
    pub delivered: Delivered,
    /// Which of its samples come.
    pub first_sample: u32,
    /// How many samples come.
    pub num_samples: u32,
    /// The step of the first of them.
    pub step: u32,
    /// Whether the sequence goes on in the next minibatch.
    pub goes_on: bool,
}

/// The rows of truncated minibatches, each a queue of sequences.
#[derive(Debug, Clone, Default)]
pub struct Slots {
    queues: Vec<VecDeque<Owed>>,
}

/// How sequences are cut.
#[derive(Clone, Copy, Debug)]
pub struct Truncation {
    /// Steps of a minibatch, at least 1.
    pub steps: u32,
    /// Samples that a full row and the next part of its sequence have in common, fewer than `steps`.
    pub overlap: u32,
}

impl Slots {
    /// So many empty rows.
    #[must_use]
    pub fn new(num_slots: usize) -> Self {
        Self { queues: vec![VecDeque::new(); num_slots] }
    }

    /// Rows that owe this.
    #[must_use]
    pub fn owing(queues: Vec<VecDeque<Owed>>) -> Self {
        Self { queues }
    }

    /// What the rows owe.
    #[must_use]
    pub fn queues(&self) -> &[VecDeque<Owed>] {
        &self.queues
    }

    /// One truncated minibatch. `request` is that of a read of one sequence.
    ///
    /// # Errors
    /// `pause` asked to stop; no minibatch was made, and a next call goes on.
    pub fn read(
        &mut self,
        reader: &mut Reader,
        table: Table,
        Truncation { steps, overlap }: Truncation,
        request: Request,
        parts: &mut Vec<Part>,
        pause: &mut Pause,
    ) -> Result<Outcome, Stopped> {
        let mut delivered = Vec::new();
        for queue in &mut self.queues {
            let mut unread: u64 = queue.iter().map(|owed| u64::from(owed.length - owed.next)).sum();
            // A row that holds exactly one minibatch reads one sequence more.
            while unread <= u64::from(steps) {
                delivered.clear();
                let outcome = reader.read(table, request, &mut delivered, pause)?;
                for &delivered in &delivered {
                    let length = table.lengths[delivered.sequence as usize];
                    unread += u64::from(length);
                    queue.push_back(Owed { delivered, length, next: 0, end_of_sweep: outcome.end_of_sweep });
                }
                if outcome.ended {
                    break;
                }
            }
        }
        let mut end_of_sweep = false;
        for (slot, queue) in self.queues.iter_mut().enumerate() {
            let mut step = 0;
            while step < steps
                && let Some(owed) = queue.front_mut()
            {
                let num_samples = (steps - step).min(owed.length - owed.next);
                // What fills a whole row is overlapped by what follows, be it only by samples that were there already.
                let moved = if num_samples == steps { steps - overlap } else { num_samples };
                let goes_on = owed.next + moved < owed.length;
                parts.push(Part {
                    slot: slot as u32,
                    delivered: owed.delivered,
                    first_sample: owed.next,
                    num_samples,
                    step,
                    goes_on,
                });
                step += num_samples;
                owed.next += moved;
                if !goes_on {
                    end_of_sweep |= owed.end_of_sweep;
                    queue.pop_front();
                }
            }
        }
        Ok(Outcome { end_of_sweep, ended: self.queues.iter().all(VecDeque::is_empty) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_generator_gives_the_standard_numbers() {
        let mut generator = MersenneTwister::new(5489);
        let tenthousandth = (0..10_000).map(|_| generator.draw()).last();
        assert_eq!(tenthousandth, Some(9_981_545_732_273_789_042));
    }

    #[test]
    fn chunks_come_in_the_known_order() {
        assert_eq!(chunk_order(10, 0), [4, 7, 3, 9, 1, 2, 8, 6, 5, 0]);
        assert_eq!(chunk_order(10, 5), [3, 6, 2, 1, 5, 7, 8, 9, 0, 4]);
    }

    proptest! {
        #[test]
        fn remainders_are_exact(dividend: u64, divisor in 1u64..1 << 63, shift in 0u32..63) {
            for divisor in [divisor, (divisor >> shift).max(1), 1 << shift] {
                for dividend in [dividend, u64::MAX, dividend / divisor * divisor, (dividend / divisor * divisor).wrapping_sub(1)] {
                    prop_assert_eq!(Remainder::new(divisor).of(dividend), dividend % divisor);
                }
            }
        }

        #[test]
        fn a_place_reaches_the_places_whose_windows_hold_it(
            samples in prop::collection::vec(1u64..9, 1..20),
            size in 1u64..60,
            counts_samples: bool,
        ) {
            let windows = if counts_samples {
                windows_in_samples(samples.iter().copied(), size)
            } else {
                windows_in_chunks(samples.len(), size)
            };
            let starts: Vec<u32> = (0..=samples.len() as u32).map(|place| 3 * place).collect();
            let reach = reach(&windows, &starts);
            for place in 0..samples.len() as u32 {
                prop_assert!(windows[place as usize].holds(place));
                for other in 0..samples.len() as u32 {
                    prop_assert_eq!(reach[place as usize].holds(3 * other), windows[other as usize].holds(place));
                }
            }
        }

        #[test]
        fn the_place_of_a_position_is_found(sizes in prop::collection::vec(prop_oneof![Just(1i64), 1i64..300], 1..60), seed: u64) {
            let mut chunk_starts = vec![0];
            chunk_starts.extend(sizes.iter().scan(0, |sum, size| { *sum += size; Some(*sum) }));
            let lengths = vec![1; sizes.iter().sum::<i64>() as usize];
            let table = Table { lengths: &lengths, chunk_starts: &chunk_starts };
            let samples: Vec<u64> = sizes.iter().map(|&size| size as u64).collect();
            let randomization = Randomization { window: Window::Chunks(3), seed };
            let plan = SweepPlan::new(table, &samples, randomization, 0);
            for place in 0..sizes.len() as u32 {
                for position in plan.starts[place as usize]..plan.starts[place as usize + 1] {
                    prop_assert_eq!(plan.place_of(position), place);
                }
            }
        }
    }
}
