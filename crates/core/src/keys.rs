//! Keys of sequences: texts of one width, equal rows, names without an extension.

use crate::memory;
use crate::parallel;
use memchr::memrchr;
use std::collections::HashMap;

/// An id without its extension: cut at its last dot, or at the last dot of its last component.
pub fn cut_extension(id: &[u8], in_last_component: bool) -> &[u8] {
    match memrchr(b'.', id) {
        Some(dot) if in_last_component => {
            let name = id.iter().rposition(|byte| matches!(byte, b'/' | b'\\')).map_or(0, |separator| separator + 1);
            // A name that begins with its only dot is kept: its key would be empty.
            if dot > name { &id[..dot] } else { id }
        }
        Some(dot) => &id[..dot],
        None => id,
    }
}

/// For each row of `width` bytes, the number of the first equal row.
pub fn first_same(rows: &[u8], width: usize) -> Vec<u32> {
    if width == 0 {
        return Vec::new();
    }
    // Rows come from files, and the standard hash is safe against rows that were chosen to collide.
    let mut first = HashMap::new();
    memory::require(first.try_reserve(rows.len() / width), rows.len());
    memory::collected(
        rows.chunks_exact(width).enumerate().map(|(number, row)| *first.entry(row).or_insert(number as u32)),
    )
}

/// Texts padded with zeros to the width of the longest, and that width, at least 1.
pub fn padded(texts: &[u8], ends: &[usize]) -> (Vec<u8>, usize) {
    let lengths = || ends.iter().scan(0, |begin, &end| Some((std::mem::replace(begin, end), end)));
    let width = lengths().map(|(begin, end)| end - begin).max().unwrap_or(0).max(1);
    let mut rows = Vec::new();
    memory::resize(&mut rows, ends.len().saturating_mul(width), 0);
    for (row, (begin, end)) in rows.chunks_exact_mut(width).zip(lengths()) {
        row[..end - begin].copy_from_slice(&texts[begin..end]);
    }
    (rows, width)
}

/// Parts of the keys of which [`are_distinct`] sorts one at a time, so that the sorted keys take little memory.
const NUM_PARTS: usize = 16;

/// True if no two keys are the same.
#[must_use]
pub fn are_distinct<T: Copy + Ord + Into<u64> + Sync + Send>(keys: &[T]) -> bool {
    let is_distinct = |part: usize| {
        // The upper bits of a product depend on all bits of a key.
        let is_in = |&&key: &&T| Into::<u64>::into(key).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 == part as u64;
        let mut mine: Vec<T> = Vec::new();
        memory::reserve(&mut mine, keys.iter().filter(is_in).count());
        mine.extend(keys.iter().filter(is_in));
        mine.sort_unstable();
        mine.windows(2).all(|pair| pair[0] != pair[1])
    };
    parallel::map(NUM_PARTS, is_distinct).into_iter().all(|is_distinct| is_distinct)
}
