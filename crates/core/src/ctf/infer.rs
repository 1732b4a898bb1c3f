//! Inference: the streams of an unknown file, and their forms.

use super::ends_name;
use crate::memory;
use memchr::memchr2;
use std::collections::HashMap;

/// The samples of one name in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// The name.
    pub name: Vec<u8>,
    /// Number of samples.
    pub num_samples: u64,
    /// Number of values without an index in front.
    pub num_plain: u64,
    /// Number of values with an index.
    pub num_indexed: u64,
    /// Most values of a sample.
    pub most_values: u64,
    /// Largest index below 2^64.
    pub largest_index: u64,
    /// Offset in the block of the sample with the largest index.
    pub largest_at: usize,
    /// Number of indices by magnitude: `magnitudes[k]` counts indices of `2k` and `2k + 1` bits.
    pub magnitudes: [u64; 32],
    /// Numbers of values of samples without indices, and how many samples have each; the first `MOST_SIZES` numbers.
    pub sizes: Vec<(u64, u64)>,
    /// Position in `sizes` of the last sample; most samples have as many values as the previous sample.
    last_size: usize,
}

/// Number of different numbers of values that are counted for each name.
const MOST_SIZES: usize = 64;

/// A text with more names than this is not taken for the CNTK text format.
pub const MOST_NAMES: usize = 10_000;

/// Examine every sample of a block of whole lines; `None` if there are more than [`MOST_NAMES`] names.
///
/// Faults are ignored: the result describes the streams, and does not say whether the text is valid.
pub fn infer(block: &[u8]) -> Option<Vec<Seen>> {
    let mut all: Vec<Seen> = Vec::new();
    let mut by_name: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut expected = 0;
    let mut at = 0;
    while let Some(pipe) = memchr::memchr(b'|', &block[at..]) {
        let name_start = at + pipe + 1;
        let rest = &block[name_start..];
        let name = &rest[..rest.iter().position(|&byte| ends_name(byte)).unwrap_or(rest.len())];
        at = name_start + name.len();
        let end = at + memchr2(b'|', b'\n', &block[at..]).unwrap_or(block.len() - at);
        if name.is_empty() || name[0] == b'#' {
            at = end;
            continue;
        }
        // Names usually follow each other in the same order, so that most need no look-up in the map.
        let number = match all.get(expected) {
            Some(seen) if seen.name == name => expected,
            _ => match by_name.get(name) {
                Some(&number) => number,
                None if all.len() == MOST_NAMES => return None,
                None => {
                    // If memory is refused, `insert` alone would end the process.
                    memory::require(by_name.try_reserve(1), 2 * size_of::<(Vec<u8>, usize)>() * all.len());
                    by_name.insert(name.to_vec(), all.len());
                    memory::push(&mut all, Seen { name: name.to_vec(), ..Seen::default() });
                    all.len() - 1
                }
            },
        };
        expected = number + 1;
        let seen = &mut all[number];
        let largest = seen.largest_index;
        seen.add(&block[at..end]);
        // Of equal indices the first counts, so the message names the first line.
        if seen.largest_index > largest {
            seen.largest_at = name_start - 1;
        }
        at = end;
    }
    Some(all)
}

/// True for a byte between values: up to the blank, or from 0x80 on. A single comparison, for the vectoriser.
fn is_blank(byte: u8) -> bool {
    byte.cast_signed() <= b' '.cast_signed()
}

/// The number of values of a sample. The inner sums fit into a byte, so the compiler adds many of them at a time.
fn num_values(sample: &[u8]) -> u64 {
    let Some((&first, after)) = sample.split_first() else { return 0 };
    let pairs = sample.chunks(255).zip(after.chunks(255));
    let count = |(before, after): (&[u8], &[u8])| {
        let starts = before.iter().zip(after).map(|(&before, &after)| u8::from(is_blank(before) & !is_blank(after)));
        // At most 255 pairs are counted, so the sum does not wrap.
        u64::from(starts.fold(0u8, u8::wrapping_add))
    };
    u64::from(!is_blank(first)) + pairs.map(count).sum::<u64>()
}

/// A sample of fewer bytes is too short for vector instructions to help.
const SHORT: usize = 64;

impl Seen {
    /// Add the values of one sample, byte by byte; return their number.
    fn add_value_by_value(&mut self, sample: &[u8]) -> u64 {
        let mut num_values = 0;
        let mut rest = sample;
        while let Some((&byte, after)) = rest.split_first() {
            if is_blank(byte) {
                rest = after;
                continue;
            }
            num_values += 1;
            let num_digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if rest.get(num_digits) == Some(&b':') {
                self.add_index(&rest[..num_digits]);
            } else {
                self.num_plain += 1;
            }
            let rest_of_value = rest[num_digits..].iter().take_while(|&&byte| !is_blank(byte)).count();
            rest = &rest[num_digits + rest_of_value..];
        }
        num_values
    }

    /// Count a number of values.
    #[inline]
    fn add_size(&mut self, num_values: u64) {
        if self.sizes.get(self.last_size).is_none_or(|&(size, _)| size != num_values) {
            // The list is short (`MOST_SIZES`), so a search from its beginning is enough.
            let known = self.sizes.iter().position(|&(size, _)| size == num_values);
            self.last_size = match known {
                Some(position) => position,
                None if self.sizes.len() == MOST_SIZES => return,
                None => {
                    self.sizes.push((num_values, 0));
                    self.sizes.len() - 1
                }
            };
        }
        self.sizes[self.last_size].1 += 1;
    }

    #[inline]
    fn add_index(&mut self, digits: &[u8]) {
        self.num_indexed += 1;
        // This number of digits fits 64 bits.
        let index = if digits.len() < 20 {
            Some(digits.iter().fold(0, |index, digit| 10 * index + u64::from(digit - b'0')))
        } else {
            std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok())
        };
        // The parser reports an index beyond 64 bits, so it must not decide the dimension.
        let index = index.unwrap_or(0);
        self.largest_index = self.largest_index.max(index);
        let num_bits = (u64::BITS - index.leading_zeros()) as usize;
        // The list has 32 items, so indices of 64 bits count with indices of 62 and 63 bits.
        self.magnitudes[(num_bits / 2).min(31)] += 1;
    }

    /// Add the values of one sample.
    fn add(&mut self, sample: &[u8]) {
        self.num_samples += 1;
        let before = self.num_indexed;
        let num_values = if sample.len() < SHORT { self.add_value_by_value(sample) } else { self.add_at_once(sample) };
        self.most_values = self.most_values.max(num_values);
        if self.num_indexed == before {
            self.add_size(num_values);
        }
    }

    /// Add the values of one sample, many at a time; return their number.
    fn add_at_once(&mut self, sample: &[u8]) -> u64 {
        let num_values = num_values(sample);
        let before = self.num_indexed;
        for colon in memchr::memchr_iter(b':', sample) {
            let num_digits = sample[..colon].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
            let (first, digits) = sample[..colon].split_at(colon - num_digits);
            // The first colon of a value ends its index: only digits, and before them a blank, precede that colon.
            if first.last().is_none_or(|&byte| is_blank(byte)) {
                self.add_index(digits);
            }
        }
        self.num_plain += num_values - (self.num_indexed - before);
        num_values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_indices_are_counted_as_value_by_value() {
        let alphabet = b" 12:9.a\t\x80\xff";
        let mut state = 1u64;
        for size in (0..40).chain([254, 255, 256, 257, 700, 99_999]) {
            for _ in 0..200_000 / (size + 100) {
                let mut sample = Vec::new();
                for _ in 0..size {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    sample.push(alphabet[(state >> 33) as usize % alphabet.len()]);
                }
                let (mut seen, mut expected) = (Seen::default(), Seen::default());
                let found = (seen.add_at_once(&sample), expected.add_value_by_value(&sample));
                assert_eq!(found.0, found.1, "{:?}", sample.escape_ascii().to_string());
                assert_eq!(seen, expected, "{:?}", sample.escape_ascii().to_string());
            }
        }
    }

    #[test]
    fn numbers_of_values_of_dense_samples_are_counted() {
        let all = infer(b"|x 1 2 |y 3:1\n|x 1 2 |y 3\n|x 4\n|x\n|x 1 2\n").unwrap();
        assert_eq!(all[0].sizes, [(2, 3), (1, 1), (0, 1)]);
        assert_eq!(all[1].sizes, [(1, 1)]);
        let many: String = (0..200).map(|size| format!("|x{}\n", " 1".repeat(size))).collect();
        let sizes = &infer(format!("{many}{many}").as_bytes()).unwrap()[0].sizes;
        assert_eq!(*sizes, (0..MOST_SIZES as u64).map(|size| (size, 2)).collect::<Vec<_>>());
    }
}
