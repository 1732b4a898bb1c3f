//! Kernels over blocks of 64 bytes for any instruction set with vectors of 16 or 32 bytes: short integers, decimals,
//! sparse entries and line ends. An instruction set implements the trait [`Block`]; everything else is here.
//!
//! ```text
//! bytes     "-1.25 7 30 |"         one block
//! masks     digit, point, sign, blank -> starts and ends of tokens, one bit each
//! window    the 16 bytes up to a token's end, from memory; a shuffle removes the point and what precedes the token
//! multiply  pairs of digits, of pairs, of fours -> one integer
//! finish    to float64, times a power of ten with the token's sign, to float32
//! ```
//!
//! The processor works on several blocks at a time if no block waits for the previous one, and if no branch depends on
//! the text. Therefore the next block is classified before this block is converted, and tokens are converted in groups
//! of four, the last group beyond the number of tokens.

use std::mem::MaybeUninit;

use crate::digits;
use crate::prefetch::opaque;
use crate::scalar;
use crate::scalar::ends_sample;

/// 64 bytes in vectors. A value exists only where the processor has the instructions of its type.
pub(crate) trait Block: Copy {
    /// Load the bytes.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions of this type.
    unsafe fn load(bytes: &[u8; BLOCK_BYTES]) -> Self;
    /// The bytes that equal `byte`, one bit for each.
    fn equal(self, byte: u8) -> u64;
    /// The bytes that are spaces or tabs, one bit for each.
    fn blanks(self) -> u64;
    /// The bytes that are digits, one bit for each.
    fn digits(self) -> u64;
    /// Write the values of four tokens. The result has a bit set for each token where two roundings (to float64, then
    /// to float32) may differ from one; see [`IS_NEAR_MIDDLE`].
    fn values(self, a: Token, b: Token, c: Token, d: Token, out: &mut [MaybeUninit<f32>; 4]) -> u32;
    /// Write the values of runs of one to four digits, in order: bit k of `ends` is set if a run ends directly before
    /// byte k of the block. `text` is the block and the four bytes before it. `ends` has at most 32 bits set, and
    /// elements of `out` after as many values may be written, too.
    fn short_integers(self, text: &[u8; 4 + BLOCK_BYTES], ends: u64, out: &mut [MaybeUninit<f32>; MAX_TOKENS + 8]);
}

/// Define a [`Block`] of `$count` vectors of `$width` bytes, and the functions over text of its kernel's table.
///
/// The module that uses this macro provides these functions for the instructions `$features`:
///
/// - on one vector of bytes `load`, `splat`, `same`, `is_digit`, `and`, `or` and `minus`;
/// - `mask`, which gives one bit for each byte of a block;
/// - `values_of_two`, like [`Block::values`] for two tokens;
/// - `runs`, the values of the runs of digits that end before each byte of a vector, in vectors of eight 16-bit
///   integers;
///   its argument is the vector's bytes and the four bytes before them;
/// - `write_front`, which moves some of eight such values to the front with a shuffle, and writes eight values.
macro_rules! kernel_of_blocks {
    ($vector:ty, $count:literal, $width:literal, $features:literal) => {
        /// 64 bytes. Only `load` creates such a value, so the processor has the instructions wherever there is one.
        #[derive(Clone, Copy)]
        struct Vectors([$vector; $count]);

        impl Block for Vectors {
            #[inline(always)]
            unsafe fn load(bytes: &[u8; BLOCK_BYTES]) -> Vectors {
                // SAFETY: the caller guarantees the instructions.
                unsafe { load_block(bytes) }
            }

            #[inline(always)]
            fn equal(self, byte: u8) -> u64 {
                // SAFETY: there is a value of this type.
                unsafe { equal(self, byte) }
            }

            #[inline(always)]
            fn blanks(self) -> u64 {
                // SAFETY: there is a value of this type.
                unsafe { blanks(self) }
            }

            #[inline(always)]
            fn digits(self) -> u64 {
                // SAFETY: there is a value of this type.
                unsafe { digits(self) }
            }

            #[inline(always)]
            fn values(self, a: Token, b: Token, c: Token, d: Token, out: &mut [MaybeUninit<f32>; 4]) -> u32 {
                let [low, high] = out.as_chunks_mut().0 else { unreachable!("four are two times two") };
                // SAFETY: there is a value of this type.
                unsafe { values_of_two(a, b, low) | values_of_two(c, d, high) << 2 }
            }

            #[inline(always)]
            fn short_integers(
                self,
                text: &[u8; 4 + BLOCK_BYTES],
                ends: u64,
                out: &mut [MaybeUninit<f32>; MAX_TOKENS + 8],
            ) {
                // SAFETY: there is a value of this type.
                unsafe { short_integers(text, ends, out) }
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn load_block(bytes: &[u8; BLOCK_BYTES]) -> Vectors {
            let parts = bytes.as_chunks().0.first_chunk::<$count>().expect("vectors divide a block");
            Vectors(parts.each_ref().map(|part| load(part)))
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn equal(Vectors(vectors): Vectors, byte: u8) -> u64 {
            mask(vectors.map(|vector| same(vector, splat(byte as _))))
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn blanks(Vectors(vectors): Vectors) -> u64 {
            let is_blank = |vector| or(same(vector, splat(b' ' as _)), same(vector, splat(b'\t' as _)));
            mask(vectors.map(is_blank))
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn digits(Vectors(vectors): Vectors) -> u64 {
            mask(vectors.map(|vector| is_digit(minus(vector, splat(b'0' as _)))))
        }

        /// Thousands, hundreds, tens and units of the runs of digits that end before each byte; `text` is the bytes and
        /// the four bytes before them. A run's missing digits are zero; without a run, the units have no meaning.
        #[target_feature(enable = $features)]
        #[inline]
        fn digits_of_runs(text: &[u8; 4 + $width]) -> [$vector; 4] {
            let digits = |first: usize| {
                let bytes = text[first..].first_chunk().expect("a vector follows the first four bytes");
                minus(load(bytes), splat(b'0' as _))
            };
            let [thousands, hundreds, tens, units] = [digits(0), digits(1), digits(2), digits(3)];
            let has_tens = is_digit(tens);
            let has_hundreds = and(has_tens, is_digit(hundreds));
            let has_thousands = and(has_hundreds, is_digit(thousands));
            [and(has_thousands, thousands), and(has_hundreds, hundreds), and(has_tens, tens), units]
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn short_integers(text: &[u8; 4 + BLOCK_BYTES], ends: u64, out: &mut [MaybeUninit<f32>; MAX_TOKENS + 8]) {
            let mut length = 0;
            for part in 0..$count {
                let eights = runs(text[$width * part..].first_chunk().expect("vectors divide a block"));
                for (eight, values) in eights.into_iter().enumerate() {
                    let ends = (ends >> ($width * part + 8 * eight)) as u8;
                    let eight_out = out[length..].first_chunk_mut().expect("room for eight more");
                    write_front(values, &TO_THE_FRONT[usize::from(ends)], eight_out);
                    length += ends.count_ones() as usize;
                }
            }
        }

        #[target_feature(enable = $features)]
        fn dense_f32(bytes: &[u8], at: usize, limit: usize, out: &mut Vec<f32>) -> usize {
            // SAFETY: this function has the same requirement.
            unsafe { block::dense_f32::<Vectors>(bytes, at, limit, out) }
        }

        #[target_feature(enable = $features)]
        fn sparse_f32(bytes: &[u8], at: usize, dim: u32, indices: &mut Vec<i32>, values: &mut Vec<f32>) -> usize {
            // SAFETY: this function has the same requirement.
            unsafe { block::sparse_f32::<Vectors>(bytes, at, dim, indices, values) }
        }

        #[target_feature(enable = $features)]
        fn find_all(wanted: u8, bytes: &[u8], out: &mut Vec<u32>) {
            // SAFETY: this function has the same requirement.
            unsafe { block::find_all::<Vectors>(wanted, bytes, out) }
        }
    };
}
pub(crate) use kernel_of_blocks;

pub(crate) const BLOCK_BYTES: usize = 64;

/// A run of digits with at most one point, which `values` converts.
#[derive(Clone, Copy)]
pub(crate) struct Token<'a> {
    /// The text that ends with the token.
    pub(crate) window: &'a [u8; MAX_TOKEN_BYTES],
    pub(crate) form: &'a TokenForm,
}

/// Shuffle and factor shared by all tokens of the same size, number of decimals and sign.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(crate) struct TokenForm {
    /// The shuffle that selects the digits of a window's token, with zeros before them.
    pub(crate) shuffle: [u8; MAX_TOKEN_BYTES],
    /// The power of ten that the integer of these digits is multiplied with; negative if the token is.
    pub(crate) scale: f64,
}

/// Largest number of tokens in a block: a token has at least one byte, and at least one separates it from the next.
pub(crate) const MAX_TOKENS: usize = 32;
/// Largest size of a token that is converted, the size of a vector.
pub(crate) const MAX_TOKEN_BYTES: usize = 16;
/// Largest number of sparse entries in a block: an entry and its separator have at least four bytes.
pub(crate) const MAX_ENTRIES: usize = 16;
/// A block, the text before it that windows reach back to, and the text after it for windows beyond its last token.
const AREA_BYTES: usize = MAX_TOKEN_BYTES + BLOCK_BYTES + MAX_TOKEN_BYTES;
/// An area, and another that begins 64 bytes later.
const TWO_AREAS_BYTES: usize = BLOCK_BYTES + AREA_BYTES;

/// A product of float64 is near the middle of two float32 numbers if its bits plus the first number are the third
/// number where the second has bits. The product's error is at most three units of float64, as in
/// [`scalar::rounded`]; this test allows for eight.
pub(crate) const IS_NEAR_MIDDLE: [i64; 3] = [8, 0x1fff_fff0, 0x1000_0000];

/// For each mask of 8 bits: the shuffle that moves the 16-bit lanes of the set bits to the front.
pub(crate) static TO_THE_FRONT: [[u8; 16]; 256] = {
    let mut shuffles = [[0x80; 16]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut target_lane) = (0, 0);
        while lane < 8 {
            if mask >> lane & 1 == 1 {
                shuffles[mask][2 * target_lane] = 2 * lane as u8;
                shuffles[mask][2 * target_lane + 1] = 2 * lane as u8 + 1;
                target_lane += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    shuffles
};

/// The forms of tokens, by [`form_number`].
static TOKEN_FORMS: [TokenForm; 1024] = {
    let mut forms = [TokenForm { shuffle: [0x80; MAX_TOKEN_BYTES], scale: 0.0 }; 1024];
    let mut point = 0;
    while point <= MAX_TOKEN_BYTES {
        let places = if point == 0 { 0 } else { point - 1 };
        let mut size = if point == 0 { 1 } else { point };
        while size <= MAX_TOKEN_BYTES {
            let mut form = TokenForm { shuffle: [0x80; MAX_TOKEN_BYTES], scale: scalar::INVERSE_POWERS[places] };
            let mut digit = 0; // counted from the last
            while digit < size - (point > 0) as usize {
                let from_last = digit + (point > 0 && digit >= places) as usize;
                form.shuffle[MAX_TOKEN_BYTES - 1 - digit] = (MAX_TOKEN_BYTES - 1 - from_last) as u8;
                digit += 1;
            }
            forms[form_number(point, size - 1, 0)] = form;
            form.scale = -form.scale;
            forms[form_number(point, size - 1, 1)] = form;
            size += 1;
        }
        point += 1;
    }
    forms
};

/// Number of a token's form: `point` is 0 without a point and n if n - 1 digits follow it, `span` is the token's size
/// less 1, and `sign` is 1 for a negative token.
#[inline(always)]
const fn form_number(point: usize, span: usize, sign: usize) -> usize {
    (point << 5 | span << 1 | sign) % 1024
}

/// A mask of the lowest `count` bits; `count` is at most 64.
#[inline(always)]
pub(crate) fn below(count: usize) -> u64 {
    if count >= 64 { !0 } else { (1 << count) - 1 }
}

/// A mask whose bits are moved by `count` bytes to later bytes; the first come from the end of the mask before it.
#[inline(always)]
fn later(mask: u64, before: u64, count: u32) -> u64 {
    mask << count | before >> (64 - count)
}

/// The text around the block at `at`, which is at least `MAX_TOKEN_BYTES`; `None` near the slice's end.
#[inline(always)]
fn area(bytes: &[u8], at: usize) -> Option<&[u8; AREA_BYTES]> {
    bytes.get(at - MAX_TOKEN_BYTES..)?.first_chunk()
}

/// The block of an area.
///
/// # Safety
///
/// The processor must have the instructions of the block.
#[inline(always)]
unsafe fn block_of<B: Block>(area: &[u8; AREA_BYTES]) -> B {
    let block = area[MAX_TOKEN_BYTES..].first_chunk().expect("an area contains a block");
    // SAFETY: the caller fulfils the same requirement.
    unsafe { B::load(block) }
}

/// Size of the certain part of a block, and true if the sample ends there. The certain part ends after the last blank,
/// or at the end of the sample.
#[inline(always)]
fn certain_part(area: &[u8; AREA_BYTES], blank: u64, other: u64) -> (usize, bool) {
    let after_last = |blank: u64| 64 - blank.leading_zeros() as usize;
    if other == 0 {
        return (after_last(blank), false);
    }
    let first_other = other.trailing_zeros() as usize;
    match ends_sample(area[MAX_TOKEN_BYTES + first_other]) {
        true => (first_other, true),
        false => (after_last(blank & below(first_other)), false),
    }
}

/// Append dense values; see [`Kernel::dense_f32`](crate::Kernel::dense_f32).
///
/// # Safety
///
/// The processor must have the instructions of the block.
#[inline(always)]
pub(crate) unsafe fn dense_f32<B: Block>(bytes: &[u8], mut at: usize, limit: usize, out: &mut Vec<f32>) -> usize {
    let before = out.len();
    // Blocks look back, so the first numbers of the text are left to the scalar kernel.
    while at < MAX_TOKEN_BYTES && out.len() - before < limit {
        let length = out.len();
        at = scalar::dense_f32(bytes, at, 1, out);
        if out.len() == length {
            return at;
        }
    }
    let limit = limit - (out.len() - before);
    if at < MAX_TOKEN_BYTES || limit == 0 {
        return at;
    }
    if out.try_reserve(limit.min(bytes.len().saturating_sub(at)) + MAX_TOKENS + 8).is_err() {
        return at;
    }
    let spare = out.spare_capacity_mut();
    // SAFETY: the caller fulfils the same requirement.
    let (at, written) = unsafe {
        let (at, written) = short_integers::<B>(bytes, at, limit, spare);
        let (at, written_later) = decimals::<B>(bytes, at, limit - written, &mut spare[written..]);
        (at, written + written_later)
    };
    // SAFETY: both functions return how many elements of the spare memory they wrote.
    unsafe { out.set_len(out.len() + written) };
    scalar::dense_f32(bytes, at, limit - written, out)
}

/// Convert integers of at most four digits from `at` on, as long as blocks contain nothing else; returns the position
/// after the last integer, and the number of values written.
///
/// A token is converted in the block that contains the byte after it. Positions of blocks therefore do not depend on
/// the text, and no block waits for the previous one.
///
/// # Safety
///
/// The processor must have the instructions of the block.
#[inline(always)]
unsafe fn short_integers<B: Block>(
    bytes: &[u8],
    at: usize,
    limit: usize,
    out: &mut [MaybeUninit<f32>],
) -> (usize, usize) {
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let (mut start, mut written) = (at, 0);
    if is_digit(at - 1) && is_digit(at) {
        return (at, 0); // inside a number
    }
    let (mut digit_before, mut pairs_before) = (0, 0);
    while let Some(area) = area(bytes, start) {
        // SAFETY: the caller fulfils the same requirement.
        let block: B = unsafe { block_of(area) };
        let digit = block.digits();
        let other = !(digit | block.blanks());
        let first_other = other.trailing_zeros() as usize;
        let sample_ends = other != 0 && ends_sample(area[(MAX_TOKEN_BYTES + first_other) % AREA_BYTES]);
        let looked_at = below(first_other + usize::from(sample_ends));
        let runs_of_2 = digit & later(digit, digit_before, 1);
        let runs_of_5 = runs_of_2 & later(runs_of_2, pairs_before, 2) & later(digit, digit_before, 4);
        let ends = !digit & later(digit, digit_before, 1) & looked_at;
        let count = ends.count_ones() as usize;
        let Some(block_out) = out.get_mut(written..).and_then(<[_]>::first_chunk_mut) else { break };
        if runs_of_5 & looked_at != 0 || count > limit - written {
            break;
        }
        let text = area[MAX_TOKEN_BYTES - 4..].first_chunk().expect("an area contains a block");
        block.short_integers(text, ends, block_out);
        written += count;
        if sample_ends {
            return (start + first_other, written);
        }
        if other != 0 {
            start += first_other;
            break;
        }
        (digit_before, pairs_before) = (digit, runs_of_2);
        start += BLOCK_BYTES;
    }
    // The digits before `start` belong to a number that was not converted.
    while start > at && is_digit(start - 1) {
        start -= 1;
    }
    (start, written)
}

/// Classes of the bytes of a block, one bit for each byte.
struct Classes<B> {
    block: B,
    digit: u64,
    blank: u64,
    /// Points directly after a digit.
    point: u64,
    /// Minus signs directly before a digit.
    negative: u64,
    /// All other bytes, except for plus signs directly before a digit.
    other: u64,
}

/// # Safety
///
/// The processor must have the instructions of the block.
#[inline(always)]
unsafe fn classify<B: Block>(area: &[u8; AREA_BYTES]) -> Classes<B> {
    // SAFETY: the caller fulfils the same requirement.
    let block: B = unsafe { block_of(area) };
    let digit = block.digits();
    let blank = block.blanks();
    let point = block.equal(b'.') & (digit << 1);
    let negative = block.equal(b'-') & (digit >> 1);
    let mut other = !(digit | blank | point | negative);
    if other != 0 {
        other &= !(block.equal(b'+') & (digit >> 1));
    }
    Classes { block, digit, blank, point, negative, other }
}

/// Convert at most `limit` numbers from `at` on; returns the position after the last number, and the number of values
/// written.
///
/// # Safety
///
/// The processor must have the instructions of the block.
#[inline(always)]
unsafe fn decimals<B: Block>(
    bytes: &[u8],
    mut at: usize,
    limit: usize,
    out: &mut [MaybeUninit<f32>],
) -> (usize, usize) {
    let mut written = 0;
    let Some(first) = area(bytes, at) else { return (at, 0) };
    // SAFETY: the caller fulfils the same requirement.
    let mut next = unsafe { classify::<B>(first) };
    while let Some(two_areas) = bytes.get(at - MAX_TOKEN_BYTES..).and_then(<[u8]>::first_chunk::<TWO_AREAS_BYTES>) {
        let text: &[u8; AREA_BYTES] = two_areas.first_chunk().expect("two areas contain one");
        let Classes { block, digit, blank, point, negative, other } = next;
        let (end, sample_ends) = certain_part(text, blank, other);
        let body = (digit | point) & below(end);
        let point = point & body;
        let (starts, ends) = (body & !(body << 1), body & !(body >> 1));
        let num_tokens = ends.count_ones() as usize;
        // Adding a point's bit to the set bits of its token carries into the bit after the token.
        let has_point = body.wrapping_add(point) & !body;
        let runs_of_2 = body & (body << 1);
        let runs_of_4 = runs_of_2 & (runs_of_2 << 2);
        let runs_of_8 = runs_of_4 & (runs_of_4 << 4);
        let runs_of_17 = runs_of_8 & (runs_of_8 << 8) & (body << 16);
        let has_two_points = has_point.count_ones() != point.count_ones();
        let Some(block_out) = out.get_mut(written..).and_then(<[_]>::first_chunk_mut::<MAX_TOKENS>) else {
            return (at, written);
        };
        if end == 0 || runs_of_17 != 0 || has_two_points {
            return (at, written);
        }
        let following = two_areas[end % 128..].first_chunk().expect("the second area begins after 64 bytes or earlier");
        // SAFETY: the caller fulfils the same requirement.
        next = unsafe { classify::<B>(following) };
        let tokens = Tokens { text, starts, ends, negative: negative << 1 };
        // Many texts have as many decimals in each number, which saves work on each token.
        let places = ends.trailing_zeros().wrapping_sub(point.trailing_zeros());
        let uncertain = if ends.wrapping_shr(places) == point {
            let point = places as usize + 1;
            convert(block, tokens, block_out, |_, _| point)
        } else {
            convert(block, tokens, block_out, |first, span| {
                // The bit after the token ends the search for a point.
                let digits_before = (point.wrapping_shr(first) | 2u64.wrapping_shl(span)).trailing_zeros();
                (span + 1).wrapping_sub(digits_before) as usize
            })
        };
        let certain = num_tokens.min(uncertain.trailing_zeros() as usize).min(limit - written);
        if certain < num_tokens {
            return (at + end_of_token(ends, certain), written + certain);
        }
        written += num_tokens;
        at += end;
        if sample_ends {
            break;
        }
    }
    (at, written)
}

/// Position after the token of this number, counted from 1; 0 for no token.
#[cold]
fn end_of_token(mut ends: u64, number: usize) -> usize {
    for _ in 1..number {
        ends &= ends - 1;
    }
    if number == 0 { 0 } else { ends.trailing_zeros() as usize + 1 }
}

/// The tokens of a block, one bit for each first byte, last byte, point, and first byte after a minus sign.
struct Tokens<'a> {
    text: &'a [u8; AREA_BYTES],
    starts: u64,
    ends: u64,
    negative: u64,
}

/// Write the values of all tokens; returns a mask of tokens that are not certain, in which bits after the last token
/// have no meaning. `point` gives a token's place of the point, as in [`form_number`], from its first byte's position
/// and its span.
#[inline(always)]
fn convert<B: Block>(
    block: B,
    tokens: Tokens,
    out: &mut [MaybeUninit<f32>; MAX_TOKENS],
    point: impl Fn(u32, u32) -> usize,
) -> u64 {
    let Tokens { text, mut starts, mut ends, negative } = tokens;
    let num_tokens = ends.count_ones() as usize;
    let mut uncertain = 0;
    let mut token = || {
        // After the last token both positions are 64, which is inside the area, and the value has no meaning.
        let (first, last) = (starts.trailing_zeros(), ends.trailing_zeros());
        starts &= starts.wrapping_sub(1);
        ends &= ends.wrapping_sub(1);
        let span = last - first;
        let sign = negative.wrapping_shr(first) as usize & 1;
        let window = text[(last as usize + 1) % 128..].first_chunk().expect("an area has room for 64 windows");
        // Without `opaque` the compiler computes four numbers in vectors, which takes more than twice as long.
        let number = opaque(form_number(point(first, span), span as usize, sign) as u64);
        Token { window, form: &TOKEN_FORMS[number as usize % 1024] }
    };
    for (number, four) in out.as_chunks_mut().0.iter_mut().take(num_tokens.div_ceil(4)).enumerate() {
        let (a, b, c, d) = (token(), token(), token(), token());
        uncertain |= u64::from(block.values(a, b, c, d, four)) << (4 * number);
    }
    uncertain
}

/// Errors in a text of entries with values of single digits, given its digits and its colons, one bit for each byte; and
/// the first bytes of the indices.
#[inline(always)]
pub(crate) fn entry_errors(run: u64, colon: u64) -> (u64, u64) {
    let value_starts = run & (colon << 1);
    let index_starts = run & !(run << 1) & !value_starts;
    // Adding a start's bit to the set bits of its run carries into the bit after the run. A colon must be there, and
    // nowhere else.
    let after_indices = run.wrapping_add(index_starts) & !run;
    let colon_errors = (after_indices ^ colon) | (value_starts ^ (colon << 1));
    let long_values = value_starts & (run >> 1);
    (colon_errors | long_values, index_starts)
}

/// Append sparse entries; see [`Kernel::sparse_f32`](crate::Kernel::sparse_f32). Blocks convert entries whose values
/// are single digits; the scalar kernel converts samples of a single entry, and the rest of a sample with other values.
///
/// # Safety
///
/// The processor must have the instructions of the block.
#[inline(always)]
pub(crate) unsafe fn sparse_f32<B: Block>(
    bytes: &[u8],
    mut at: usize,
    dim: u32,
    indices: &mut Vec<i32>,
    values: &mut Vec<f32>,
) -> usize {
    if let Some((end, index, value)) = scalar::only_entry(bytes, at, dim) {
        if indices.try_reserve(1).is_err() || values.try_reserve(1).is_err() {
            return at;
        }
        indices.push(index);
        values.push(value);
        return end;
    }
    while let Some(area) = at.checked_sub(MAX_TOKEN_BYTES).and_then(|_| area(bytes, at)) {
        // SAFETY: the caller fulfils the same requirement.
        let block: B = unsafe { block_of(area) };
        let (digit, blank, colon) = (block.digits(), block.blanks(), block.equal(b':'));
        let (end, sample_ends) = certain_part(area, blank, !(digit | blank | colon));
        let run = digit & below(end);
        let mut colon = colon & below(end);
        let (errors, mut index_starts) = entry_errors(run, colon);
        let runs_of_2 = run & (run << 1);
        let runs_of_4 = runs_of_2 & (runs_of_2 << 2);
        let runs_of_8 = runs_of_4 & (runs_of_4 << 4);
        if end == 0 || errors | runs_of_8 != 0 {
            break;
        }
        let num_entries = colon.count_ones() as usize;
        if indices.try_reserve(MAX_ENTRIES).is_err() || values.try_reserve(MAX_ENTRIES).is_err() {
            return at;
        }
        let (Some(indices_out), Some(values_out)) = (
            indices.spare_capacity_mut().first_chunk_mut::<MAX_ENTRIES>(),
            values.spare_capacity_mut().first_chunk_mut::<MAX_ENTRIES>(),
        ) else {
            break;
        };
        let mut largest = 0;
        let fours = indices_out.as_chunks_mut::<4>().0.iter_mut().zip(values_out.as_chunks_mut::<4>().0);
        for (indices, values) in fours.take(num_entries.div_ceil(4)) {
            for (index, value) in indices.iter_mut().zip(values) {
                // After the last entry both positions are 64: the index is 0, and the value has no meaning.
                let (first, end) = (index_starts.trailing_zeros() as usize, colon.trailing_zeros() as usize);
                index_starts &= index_starts.wrapping_sub(1);
                colon &= colon.wrapping_sub(1);
                let word = digits::word_at(area, end + MAX_TOKEN_BYTES - 8).expect("an area has room for 64 words");
                let number = digits::value_at_end(word, (end - first) as u32);
                largest = largest.max(number);
                index.write(number as i32);
                value.write(f32::from(area[end + MAX_TOKEN_BYTES + 1].wrapping_sub(b'0')));
            }
        }
        if largest >= dim {
            break;
        }
        // SAFETY: the loop wrote at least `num_entries` elements after each old length.
        unsafe {
            indices.set_len(indices.len() + num_entries);
            values.set_len(values.len() + num_entries);
        }
        at += end;
        if sample_ends {
            return at;
        }
    }
    scalar::sparse_f32(bytes, at, dim, indices, values)
}

/// Append the positions of a byte.
///
/// # Safety
///
/// The processor must have the instructions of the block.
#[inline(always)]
pub(crate) unsafe fn find_all<B: Block>(wanted: u8, bytes: &[u8], out: &mut Vec<u32>) {
    let (blocks, rest) = bytes.as_chunks();
    for (block, first) in blocks.iter().zip((0..).step_by(BLOCK_BYTES)) {
        // SAFETY: the caller fulfils the same requirement.
        let mut found = unsafe { B::load(block) }.equal(wanted);
        while found != 0 {
            out.push(first + found.trailing_zeros());
            found &= found - 1;
        }
    }
    let length = out.len();
    scalar::find_all(wanted, rest, out);
    out[length..].iter_mut().for_each(|at| *at += (bytes.len() - rest.len()) as u32);
}
