//! The index: where the samples of a text are, and the range of their features.
//!
//! The scan looks at the beginning and at the end of a line: features ascend, so that the first has the least index,
//! and the last the largest. It finds no fault in a line; the parser does.

use super::super::index::in_shares;
use super::super::{BadId, Mode, Scan, Share, Unindexed};
use super::{QUERY, end_of_field, is_blank, skip_blanks};
use crate::memory;
use crate::text::Text;
use memchr::{memchr, memchr_iter, memrchr};
use std::ops::Range;

/// The features, labels and queries of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The least index of a feature; 2^64 - 1 in a text without features.
    pub least_index: u64,
    /// The largest index of a feature; 0 in a text without features.
    pub largest_index: u64,
    /// The largest label that is a whole number.
    pub largest_label: u64,
}

impl Facts {
    const NONE: Facts = Facts { least_index: u64::MAX, largest_index: 0, largest_label: 0 };

    fn and(self, other: Facts) -> Facts {
        Facts {
            least_index: self.least_index.min(other.least_index),
            largest_index: self.largest_index.max(other.largest_index),
            largest_label: self.largest_label.max(other.largest_label),
        }
    }
}

/// Find the samples of a text's lines that start in `range`, on all threads of the current pool. The first line of the
/// text starts at `first`. With ids, neighbouring lines with the same query are a sequence; otherwise each line is.
///
/// Neighbouring sequences of different shares may have the same query. The caller joins them. Lines without a sample
/// belong to the sequence before them. Each thread takes `share_bytes` at a time.
pub fn index(
    text: Text,
    first: usize,
    range: Range<usize>,
    mode: Mode,
    share_bytes: usize,
) -> Result<(Vec<Share>, Facts), Unindexed> {
    let scanned = in_shares(text, first, range, share_bytes, |mut blocks| {
        let (mut found, mut facts) = (Scan::default(), Facts::NONE);
        while let Some((offset, block)) = blocks.next_block()? {
            scan(&mut found, &mut facts, block, offset as u64, mode).map_err(Unindexed::BadId)?;
        }
        Ok((Share::from(found), facts))
    })?;
    let (shares, facts): (Vec<Share>, Vec<Facts>) = scanned.into_iter().unzip();
    Ok((shares, facts.into_iter().fold(Facts::NONE, Facts::and)))
}

/// Append the samples of a block of whole lines that starts at `offset`.
fn scan(found: &mut Scan, facts: &mut Facts, block: &[u8], offset: u64, mode: Mode) -> Result<(), BadId> {
    // If the block has no comment, this search replaces one in each line.
    let has_comments = memchr(b'#', block).is_some();
    let mut start = 0;
    // The last line of the text may lack its line feed.
    for end in memchr_iter(b'\n', block).chain((block.last() != Some(&b'\n')).then_some(block.len())) {
        let line = &block[start..end];
        let at = offset + start as u64;
        start = end + 1;
        let line = if has_comments { &line[..memchr(b'#', line).unwrap_or(line.len())] } else { line };
        let label = skip_blanks(line, 0);
        if label == line.len() {
            continue;
        }
        let query = scan_line(line, label, facts);
        if mode == Mode::Lines {
            memory::push(&mut found.starts, at);
            memory::push(&mut found.lines, 1);
            continue;
        }
        let query = query.ok_or(BadId { at })?;
        match (found.keys.last() == Some(&query), found.lines.last_mut()) {
            (true, Some(lines)) => *lines += 1,
            _ => {
                memory::push(&mut found.keys, query);
                memory::push(&mut found.starts, at);
                memory::push(&mut found.lines, 1);
            }
        }
    }
    Ok(())
}

/// Add the facts of a line whose first field is at `label`. Returns its query, if it has one that fits 64 bits.
#[inline]
fn scan_line(line: &[u8], label: usize, facts: &mut Facts) -> Option<u64> {
    let mut field = label;
    let end = end_of_field(line, label);
    // With several labels, a line may have none. Then its first field is a feature or a query, which has a colon.
    if memchr(b':', &line[label..end]).is_none() {
        for label in line[label..end].split(|&byte| byte == b',') {
            // A label that is not a whole number is not a class, so it must not decide how many classes there are.
            facts.largest_label = facts.largest_label.max(number(label).unwrap_or(0));
        }
        field = skip_blanks(line, end);
    }
    let mut query = None;
    if line[field..].starts_with(QUERY) {
        let end = end_of_field(line, field);
        query = number(&line[field + QUERY.len()..end]);
        field = skip_blanks(line, end);
    }
    let features = &line[field..];
    if let Some(last) = memrchr(b':', features) {
        let is_digit = |byte: &&u8| byte.is_ascii_digit();
        let first_end = features.iter().take_while(is_digit).count();
        let last_begin = last - features[..last].iter().rev().take_while(is_digit).count();
        // A line with a fault may be forgiven, so a word that is not an index must not decide where all indices begin,
        // or how many there are.
        let is_first = first_end > 0 && features[first_end] == b':';
        let is_last = last_begin < last && (last_begin == 0 || is_blank(features[last_begin - 1]));
        if is_first && is_last {
            facts.least_index = facts.least_index.min(index_in(&features[..first_end]));
            facts.largest_index = facts.largest_index.max(index_in(&features[last_begin..last]));
        }
    }
    query
}

/// The index that some digits are, at most 2^64 - 2.
#[inline]
fn index_in(digits: &[u8]) -> u64 {
    let add = |index: u64, digit: &u8| index.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    // 2^64 - 1 stands for a text without features.
    digits.iter().fold(0, add).min(u64::MAX - 1)
}

/// The whole number that a text is, if it fits 64 bits.
#[inline]
fn number(text: &[u8]) -> Option<u64> {
    let mut number = (!text.is_empty()).then_some(0u64)?;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(digit.into())?;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scanned(text: &str, mode: Mode) -> Result<(Scan, Facts), BadId> {
        let (mut found, mut facts) = (Scan::default(), Facts::NONE);
        scan(&mut found, &mut facts, text.as_bytes(), 100, mode).map(|()| (found, facts))
    }

    #[test]
    fn samples_start_at_lines_that_are_not_blank_or_comments() {
        let (found, facts) = scanned("# a:9\n1 3:1 7:2 # 99:1\n\n \r\n3,12 qid:5 2:1\n0\n4:1", Mode::Lines).unwrap();
        assert_eq!((found.starts, found.lines), (vec![106, 127, 142, 144], vec![1; 4]));
        assert_eq!(facts, Facts { least_index: 2, largest_index: 7, largest_label: 12 });
        assert_eq!(scanned("\n", Mode::Lines).unwrap(), (Scan::default(), Facts::NONE));
    }

    #[test]
    fn words_that_are_not_indices_are_no_facts() {
        let facts = scanned("1 3:1 7:2\n", Mode::Lines).unwrap().1;
        for line in
            ["1 x:1", "1 0 9:1", "1 0x:1 9:1", "1 2:1 x9:1", "1 2:1 -9:1", "1 2:1 8:9:1", "1 2:1 :1", "1 :1 9:1", "1 :"]
        {
            assert_eq!(scanned(&format!("{line}\n1 3:1 7:2\n"), Mode::Lines).unwrap().1, facts, "{line}");
        }
    }

    #[test]
    fn neighbouring_lines_with_a_query_are_a_sequence() {
        let (found, _) = scanned("1 qid:7 1:1\n# c\n2 qid:7 1:1\n1 qid:3 2:1\n1 qid:7\n", Mode::Ids).unwrap();
        assert_eq!((found.keys, found.lines), (vec![7, 3, 7], vec![2, 1, 1]));
        assert_eq!(found.starts, [100, 128, 140]);
        for text in ["1 1:1\n", "1 qid:-1 1:1\n", "1 qid: 1:1\n", "1 qid:18446744073709551616 1:1\n"] {
            assert_eq!(scanned(text, Mode::Ids), Err(BadId { at: 100 }));
        }
    }
}
