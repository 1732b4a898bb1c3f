//! Lines of sparse samples on x86-64: [`take_lines`], and steps of a line in blocks of 64 bytes.
//!
//! Entries are plain if their indices have few digits and their values are single digits. With AVX-512, indices have at
//! most eight digits, and a kernel converts other entries, too. Without AVX-512, indices have at most [`MOST_DIGITS`],
//! and a sample with other entries is left to the scalar kernel from the block with the first such entry on.

use std::mem::MaybeUninit;

use crate::block::{BLOCK_BYTES, MAX_ENTRIES, below, entry_errors};
use crate::bytes::{Pair, narrow_pairs};
use crate::forms::{LAST_OF_PAIR, MAX_STEPS, SparseColumn, SparseEntries, SparseForm, Step};
use crate::prefetch::{opaque, prefetch_from};
use crate::scalar::{Next, next_entry};

/// Largest number of digits of a plain entry's index without AVX-512.
const MOST_DIGITS: usize = 6;
/// Size of the text that ends with a plain entry's value: the most digits, the colon and the value.
pub(crate) const ENTRY_BYTES: usize = MOST_DIGITS + 2;
/// A plain entry's text.
pub(crate) type Entry = [u8; ENTRY_BYTES];

/// Text before a block that an entry's text reaches back to.
const LOOK_BACK_BYTES: usize = ENTRY_BYTES;
/// The text before a block, the block, the separator after its sample, and the next block.
const AREA_BYTES: usize = LOOK_BACK_BYTES + BLOCK_BYTES + 16 + BLOCK_BYTES;
/// Distance from the current block to the text that is prefetched.
const AHEAD_BYTES: usize = 512;
/// Entries that are always converted: a branch on their number would be unpredictable, and few blocks have more.
const USUAL_ENTRIES: usize = 12;

/// Define the function over lines of a kernel's table, for the `Vectors` of `kernel_of_blocks` and the function
/// `entries`, compiled for the instructions `$features`.
macro_rules! kernel_of_lines {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        fn sparse_lines(
            bytes: &[u8],
            at: usize,
            end: usize,
            form: &SparseForm,
            columns: &mut [SparseColumn],
            line_ends: &mut Vec<usize>,
        ) {
            let look = |text: &_| {
                let block = load_block(text);
                Look::new(block, digits(block), blanks(block), equal(block, b':'))
            };
            let convert = |plain: Plain<_>, indices: &mut _, values: &mut _| {
                plain.convert_fours(indices, values, |four, last, indices, values| entries(four, last, indices, values))
            };
            let convert = |plain: Plain<_>, room: Room| match room {
                Room::Wide(indices, values) => convert(plain, indices, values),
                Room::Pairs(pairs) => {
                    let mut entries = BlockEntries::zeros();
                    let beyond = convert(plain, &mut entries.indices, &mut entries.values);
                    let (indices, values) = entries.get();
                    join(indices, values, pairs);
                    beyond
                }
            };
            take_lines(bytes, [at, end], form, columns, line_ends, |lines, end| {
                lines.plain_entries(bytes, end, look, convert);
                if lines.at < end { lines.other_entries(bytes, end) } else { None }
            });
        }
    };
}
pub(crate) use kernel_of_lines;

/// Memory for the entries of a column.
enum Entries<'a> {
    Wide(&'a mut [MaybeUninit<i32>], &'a mut [MaybeUninit<f32>]),
    Pairs(&'a mut [MaybeUninit<Pair>]),
}

/// Memory for the pairs of a block: a kernel may write two more than there are.
pub(crate) type BlockPairs = [MaybeUninit<Pair>; MAX_ENTRIES + 2];

/// Memory for the entries of a block.
pub(crate) enum Room<'a> {
    Wide(&'a mut [MaybeUninit<i32>; MAX_ENTRIES], &'a mut [MaybeUninit<f32>; MAX_ENTRIES]),
    Pairs(&'a mut BlockPairs),
}

/// Entries of a block that become pairs. All elements have values, also where a kernel writes none.
pub(crate) struct BlockEntries {
    pub(crate) indices: [MaybeUninit<i32>; MAX_ENTRIES],
    pub(crate) values: [MaybeUninit<f32>; MAX_ENTRIES],
}

impl BlockEntries {
    #[inline(always)]
    pub(crate) fn zeros() -> BlockEntries {
        BlockEntries { indices: [MaybeUninit::new(0); MAX_ENTRIES], values: [MaybeUninit::new(0.0); MAX_ENTRIES] }
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> (&[i32; MAX_ENTRIES], &[f32; MAX_ENTRIES]) {
        // SAFETY: `zeros` gave each element a value, and kernels write only values. The layouts are equal.
        unsafe { (&*(&raw const self.indices).cast(), &*(&raw const self.values).cast()) }
    }
}

impl Room<'_> {
    /// Write the first of these entries. `None`: one should become a pair, and cannot.
    pub(crate) fn write(self, indices: &[i32], values: &[f32]) -> Option<()> {
        match self {
            Room::Wide(wide_indices, wide_values) => {
                wide_indices.iter_mut().zip(indices).for_each(|(out, &index)| _ = out.write(index));
                wide_values.iter_mut().zip(values).for_each(|(out, &value)| _ = out.write(value));
                Some(())
            }
            Room::Pairs(pairs) => narrow_pairs(indices, values, pairs.get_mut(..indices.len())?).then_some(()),
        }
    }
}

/// Memory for the samples of a column.
pub(crate) struct Target<'a> {
    entries: Entries<'a>,
    sample_offsets: &'a mut [MaybeUninit<u32>],
    /// Number of entries that the column had before these lines.
    before: u32,
    /// Number of entries of these lines written so far.
    pub(crate) written: usize,
}

impl Default for Target<'_> {
    fn default() -> Self {
        Target { entries: Entries::Pairs(&mut []), sample_offsets: &mut [], before: 0, written: 0 }
    }
}

impl<'a> Target<'a> {
    /// Memory for `most` entries and offsets; `None` if the system has too little.
    fn of(column: &'a mut SparseColumn, form: &SparseForm, most: usize) -> Option<Target<'a>> {
        column.sample_offsets.try_reserve(most).ok()?;
        let (entries, before) = match &mut column.entries {
            SparseEntries::Wide(indices, values) => {
                assert!(indices.len() == values.len());
                indices.try_reserve(most).ok()?;
                values.try_reserve(most).ok()?;
                let before = indices.len();
                (Entries::Wide(indices.spare_capacity_mut(), values.spare_capacity_mut()), before)
            }
            SparseEntries::Pairs(pairs) => {
                assert!(form.steps.iter().all(|step| step.last_index <= LAST_OF_PAIR));
                pairs.try_reserve(most).ok()?;
                let before = pairs.len();
                (Entries::Pairs(pairs.spare_capacity_mut()), before)
            }
        };
        let sample_offsets = column.sample_offsets.spare_capacity_mut();
        Some(Target { entries, sample_offsets, before: before as u32, written: 0 })
    }

    /// Memory for the next entries; `None` if too little is left.
    #[inline(always)]
    pub(crate) fn room(&mut self) -> Option<Room<'_>> {
        Some(match &mut self.entries {
            Entries::Wide(indices, values) => Room::Wide(
                indices.get_mut(self.written..)?.first_chunk_mut()?,
                values.get_mut(self.written..)?.first_chunk_mut()?,
            ),
            Entries::Pairs(pairs) => Room::Pairs(pairs.get_mut(self.written..)?.first_chunk_mut()?),
        })
    }
}

/// Lines that are being parsed.
///
/// Invariant of the memory: an entry with its separator has at least four bytes, and so has a line (the shortest is
/// `|a ` and LF). Text up to any position thus has at most a quarter as many entries, and lines. The last block may
/// reach beyond the end of the text; memory for 64 more elements is for its 16 entries and its lines.
pub(crate) struct Lines<'a> {
    pub(crate) form: &'a SparseForm,
    pub(crate) targets: [Target<'a>; MAX_STEPS],
    pub(crate) line_ends: &'a mut [MaybeUninit<usize>],
    /// Position of the next step, and its number.
    pub(crate) at: usize,
    pub(crate) step: usize,
    /// Number of whole lines.
    pub(crate) count: usize,
}

impl Lines<'_> {
    /// End a sample at `at`; the last of the lines ends at `end`. `None`: no further lines can be taken.
    pub(crate) fn end_sample(&mut self, bytes: &[u8], at: usize, end: usize) -> Option<()> {
        let step = &self.form.steps[self.step % MAX_STEPS];
        let line_end = at + self.form.line_end.size;
        let has_separator = step.separator.is_at(bytes, at);
        // No further line of the form needs to follow the last line.
        let is_last = step.ends_line == 1 && line_end == end && self.form.line_end.is_at(bytes, at);
        if !has_separator && !is_last {
            return None;
        }
        let target = &mut self.targets[step.column % MAX_STEPS];
        target.sample_offsets.get_mut(self.count)?.write(target.before.wrapping_add(target.written as u32));
        self.line_ends.get_mut(self.count)?.write(line_end);
        self.at = at + step.separator.size;
        self.count += step.ends_line;
        self.step = step.next;
        has_separator.then_some(())
    }
}

/// Parse lines; see [`Kernel::sparse_lines`](crate::Kernel::sparse_lines). `take` takes steps of the lines up to an end;
/// `None`: it can take no more.
#[inline(always)]
pub(crate) fn take_lines(
    bytes: &[u8],
    [at, end]: [usize; 2],
    form: &SparseForm,
    columns: &mut [SparseColumn],
    line_ends: &mut Vec<usize>,
    mut take: impl FnMut(&mut Lines, usize) -> Option<()>,
) {
    assert!(columns.len() == form.num_streams);
    let end = end.min(bytes.len());
    if at >= end || !form.start.is_at(bytes, at) {
        return;
    }
    let most = (end - at) / 4 + 64;
    let mut targets: [Target; MAX_STEPS] = Default::default();
    for (target, column) in targets.iter_mut().zip(&mut *columns) {
        let Some(reserved) = Target::of(column, form, most) else { return };
        *target = reserved;
    }
    let num_before = line_ends.len();
    if line_ends.try_reserve(most).is_err() {
        return;
    }
    let spare = line_ends.spare_capacity_mut();
    let mut lines = Lines { form, targets, line_ends: spare, at: at + form.start.size, step: 0, count: 0 };
    while lines.at < end && take(&mut lines, end).is_some() {}
    let num_lines = lines.count;
    // SAFETY: the ends of `num_lines` lines were written after the old length.
    unsafe { line_ends.set_len(num_before + num_lines) };
    line_ends.truncate(num_before + line_ends[num_before..].partition_point(|&line_end| line_end <= end));
    let num_lines = line_ends.len() - num_before;
    if num_lines == 0 {
        return;
    }
    for SparseColumn { sample_offsets, entries } in columns {
        // SAFETY: the offsets of the lines were written, and all entries that the last offset counts.
        unsafe {
            sample_offsets.set_len(sample_offsets.len() + num_lines);
            let last = sample_offsets[sample_offsets.len() - 1];
            let grown = |before: usize| before + last.wrapping_sub(before as u32) as usize;
            match entries {
                SparseEntries::Wide(indices, values) => {
                    values.set_len(grown(values.len()));
                    indices.set_len(grown(indices.len()));
                }
                SparseEntries::Pairs(pairs) => pairs.set_len(grown(pairs.len())),
            }
        }
    }
}

/// Classes of the bytes of a block of a sparse sample, one bit for each byte.
pub(crate) struct Look<B> {
    block: B,
    digit: u64,
    blank: u64,
    colon: u64,
    /// Position of the first byte of another class, which ends the sample; 64 if there is no such byte.
    first_other: u64,
}

impl<B> Look<B> {
    #[inline(always)]
    pub(crate) fn new(block: B, digit: u64, blank: u64, colon: u64) -> Look<B> {
        Look { block, digit, blank, colon, first_other: opaque((!(digit | blank | colon)).trailing_zeros().into()) }
    }
}

/// The entries of a block. Their values are single digits; the indices were not looked at.
pub(crate) struct Plain<'a, B> {
    pub(crate) block: B,
    /// The text before the block, the block, and what follows it.
    text: &'a [u8; AREA_BYTES],
    /// The digits, the colons, and the first digits of indices, one bit for each byte.
    pub(crate) run: u64,
    pub(crate) colon: u64,
    pub(crate) index_starts: u64,
    pub(crate) step: &'a Step,
}

impl<B> Plain<'_, B> {
    /// Write the indices and values without AVX-512; the result is as in [`Lines::plain_entries`]. `convert` writes four
    /// entries, and its result has a bit set for each entry whose index is above the second argument.
    #[inline(always)]
    pub(crate) fn convert_fours(
        self,
        indices: &mut [MaybeUninit<i32>; MAX_ENTRIES],
        values: &mut [MaybeUninit<f32>; MAX_ENTRIES],
        convert: impl Fn([&Entry; 4], u32, &mut [MaybeUninit<i32>; 4], &mut [MaybeUninit<f32>; 4]) -> u32,
    ) -> u64 {
        let Plain { text, run, mut colon, step, .. } = self;
        let count = colon.count_ones() as usize;
        let runs_of_2 = run & (run << 1);
        let runs_of_4 = runs_of_2 & (runs_of_2 << 2);
        let runs_of_7 = runs_of_4 & (runs_of_4 << 3);
        let mut entry = || {
            // After the last entry the position is 64, which is inside the area, and the entry has no meaning.
            let position = colon.trailing_zeros() as usize;
            colon &= colon.wrapping_sub(1);
            let first = LOOK_BACK_BYTES - MOST_DIGITS + position;
            text[first % 128..].first_chunk().expect("an area has room for 64 entries")
        };
        let mut beyond = 0;
        let fours = indices.as_chunks_mut().0.iter_mut().zip(values.as_chunks_mut().0).enumerate();
        for (number, (indices, values)) in fours.take(if count > USUAL_ENTRIES { 4 } else { USUAL_ENTRIES / 4 }) {
            let entries = [entry(), entry(), entry(), entry()];
            beyond |= u64::from(convert(entries, step.last_index, indices, values)) << (4 * number);
        }
        beyond & below(count) | runs_of_7
    }
}

/// The digits of a part without the digits of an id, and errors of the id, whose mask is in its [`Step`]. An id has no
/// bits of `other`: no colons, and an end in the block, because another number could begin the next block, after blanks.
#[inline(always)]
fn after_id(digit: u64, other: u64, id_mask: u64) -> (u64, u64) {
    // For an id, the mask is -1, so the subtraction adds 1, and the carry clears the digits at the first byte: there must
    // be such digits. Nothing else may be there.
    (digit & digit.wrapping_sub(id_mask), id_mask & (other | (!digit & 1)))
}

impl Lines<'_> {
    /// Parse blocks of ids and of plain entries, up to the first block of another kind or form.
    ///
    /// No branch depends on the end of a sample, which is unpredictable: the text after the sample is compared with the
    /// step's separator, and the next block starts after the separator. The next block is classified before this block
    /// is converted, because all further work waits for the position of its end.
    ///
    /// `look` classifies a block. `convert` writes a block's entries; some bit of its result is set if an index is too
    /// long or too large.
    #[inline(always)]
    pub(crate) fn plain_entries<B>(
        &mut self,
        bytes: &[u8],
        end: usize,
        look: impl Fn(&[u8; BLOCK_BYTES]) -> Look<B>,
        convert: impl Fn(Plain<B>, Room) -> u64,
    ) {
        let (mut step_number, mut num_lines) = (self.step, self.count);
        // The last area begins `LOOK_BACK_BYTES` before a byte that is before `end`.
        let bytes = &bytes[..bytes.len().min(end + AREA_BYTES - LOOK_BACK_BYTES - 1)];
        let Some(mut start) = self.at.checked_sub(LOOK_BACK_BYTES) else { return };
        let Some(first) = bytes.get(self.at..).and_then(<[u8]>::first_chunk) else { return };
        let mut next = look(first);
        while let Some(text) = bytes.get(start..).and_then(<[u8]>::first_chunk::<AREA_BYTES>) {
            prefetch_from(text.as_ptr().wrapping_add(AHEAD_BYTES));
            let Look { block, digit, blank, colon, first_other } = next;
            let step = &self.form.steps[step_number % MAX_STEPS];
            let ended = (first_other >> 6).wrapping_sub(1);
            if ended | blank >> 1 == 0 {
                break;
            }
            let last_blank = u64::from(63 ^ blank.leading_zeros());
            let size = ((first_other & 63) | (last_blank & !ended)) as usize;
            let next_size = size + (step.separator.size & ended as usize | (first_other >> 6) as usize);
            let after = text[LOOK_BACK_BYTES + size..].first_chunk().expect("a separator follows the block");
            // In this form, unlike in `ShortText::begins`, the comparison is one vector instruction.
            let difference = (u128::from_le_bytes(*after) ^ step.separator.word) & step.separator.mask;
            let lacks_separator = u64::from(difference != 0);
            let Some(following) = text[LOOK_BACK_BYTES..].get(next_size..).and_then(<[u8]>::first_chunk) else { break };
            next = look(following);
            let inside = (1u64 << (size % 64)) - 1;
            let colon = colon & inside;
            let (run, id_errors) = after_id(digit & inside, colon | !ended, step.id_mask);
            let (errors, index_starts) = entry_errors(run, colon);
            if (lacks_separator & ended) | id_errors | errors != 0 {
                break;
            }
            let target = &mut self.targets[step.column % MAX_STEPS];
            // SAFETY: the block begins before `end`, so memory for its entries is left; see the invariant of `Lines`.
            let room = unsafe { target.room().unwrap_unchecked() };
            if convert(Plain { block, text, run, colon, index_starts, step }, room) != 0 {
                break;
            }
            let written = target.written + colon.count_ones() as usize;
            let line_end = start + LOOK_BACK_BYTES + size + self.form.line_end.size;
            // SAFETY: as above, memory for its line is left.
            unsafe {
                target.sample_offsets.get_unchecked_mut(num_lines).write(target.before.wrapping_add(written as u32));
                self.line_ends.get_unchecked_mut(num_lines).write(line_end);
            }
            target.written = written;
            start += next_size;
            num_lines += step.ends_line & ended as usize;
            step_number = (step.next & ended as usize) | (step_number & !(ended as usize));
        }
        (self.at, self.step, self.count) = (start + LOOK_BACK_BYTES, step_number, num_lines);
    }

    /// Take the rest of a sample with other entries. `None`: no further lines can be taken.
    #[inline(never)]
    pub(crate) fn other_entries(&mut self, bytes: &[u8], end: usize) -> Option<()> {
        let step = &self.form.steps[self.step % MAX_STEPS];
        let target = &mut self.targets[step.column % MAX_STEPS];
        if step.id_mask != 0 {
            return None;
        }
        let mut at = self.at;
        loop {
            match next_entry(bytes, at, step.last_index + 1) {
                Next::End(sample_end) => return self.end_sample(bytes, sample_end, end),
                Next::Uncertain => return None,
                Next::Entry(entry_end, index, value) => {
                    target.room()?.write(&[index], &[value])?;
                    target.written += 1;
                    at = entry_end;
                }
            }
        }
    }
}
