//! The classes of labels.

use rustc_hash::FxHashMap;

/// The class of each label. If a label is repeated, the last class counts.
///
/// The keys of this map come from the user's own mapping file, so a fast hash is safe.
#[derive(Debug, Clone)]
pub struct Classes {
    all: FxHashMap<Vec<u8>, u32>,
    /// The labels of at most 15 bytes without blanks, as numbers with the first byte lowest.
    short: FxHashMap<u128, u32>,
}

/// The most bytes of a short label.
const SHORT_BYTES: usize = 15;

impl Classes {
    /// The class of a label.
    pub fn get(&self, label: &[u8]) -> Option<u32> {
        self.all.get(label).copied()
    }

    /// The class of a short label.
    #[inline]
    pub(super) fn get_short(&self, label: u128) -> Option<u32> {
        self.short.get(&label).copied()
    }
}

impl FromIterator<(Vec<u8>, u32)> for Classes {
    fn from_iter<I: IntoIterator<Item = (Vec<u8>, u32)>>(labels: I) -> Classes {
        let all: FxHashMap<Vec<u8>, u32> = labels.into_iter().collect();
        // A short label and the blank after it fit the 16 bytes that `plain_rows` reads at once.
        let is_short = |label: &[u8]| label.len() <= SHORT_BYTES && label.iter().all(|&byte| byte > b' ');
        let as_number = |(label, &class): (&Vec<u8>, &u32)| {
            // `plain_rows` clears the bytes after the label, so they are 0 here, too.
            let mut bytes = [0; 16];
            bytes[..label.len()].copy_from_slice(label);
            (u128::from_le_bytes(bytes), class)
        };
        let short = all.iter().filter(|(label, _)| is_short(label)).map(as_number).collect();
        Classes { all, short }
    }
}
