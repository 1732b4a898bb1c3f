//! Inference: the streams of an unknown file, and their forms.

use super::ends_name;
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
}

/// A text with more names than this is not taken for the CNTK text format.
pub const MOST_NAMES: usize = 10_000;

/// Look at every sample of a block of whole lines; `None` if there are more than [`MOST_NAMES`] names.
///
/// Faults are ignored: the result says what to ask of a reader, not whether the text is right.
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
        let number = match all.get(expected) {
            Some(seen) if seen.name == name => expected,
            _ => match by_name.get(name) {
                Some(&number) => number,
                None if all.len() == MOST_NAMES => return None,
                None => {
                    by_name.insert(name.to_vec(), all.len());
                    all.push(Seen { name: name.to_vec(), ..Seen::default() });
                    all.len() - 1
                }
            },
        };
        expected = number + 1;
        all[number].add(&block[at..end]);
        at = end;
    }
    Some(all)
}

impl Seen {
    /// Add the values of one sample.
    fn add(&mut self, sample: &[u8]) {
        self.num_samples += 1;
        let mut num_values = 0;
        for value in sample.split(|&byte| byte <= b' ' || byte >= 0x80).filter(|value| !value.is_empty()) {
            num_values += 1;
            let num_digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if value.get(num_digits) == Some(&b':') {
                self.num_indexed += 1;
                let index = std::str::from_utf8(&value[..num_digits]).ok().and_then(|digits| digits.parse().ok());
                self.largest_index = self.largest_index.max(index.unwrap_or(0));
            } else {
                self.num_plain += 1;
            }
        }
        self.most_values = self.most_values.max(num_values);
    }
}
