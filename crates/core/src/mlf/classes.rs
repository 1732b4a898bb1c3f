//! The classes of labels.

use rustc_hash::FxHashMap;

/// The class of each label. If a label is repeated, the last class counts.
///
/// The keys of this map come from the user's own mapping file, so a fast hash is safe.
#[derive(Debug, Clone)]
pub struct Classes {
    all: FxHashMap<Vec<u8>, u32>,
    /// The labels of at most 15 bytes without blanks, as numbers with the first byte lowest: each in the slot that its
    /// hash names, or in one of the next slots. At most a quarter of the slots is used.
    short: Vec<Option<(u128, u32)>>,
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
        let mut slot = first_slot(label, self.short.len());
        while let Some((other, class)) = self.short[slot] {
            if other == label {
                return Some(class);
            }
            slot = (slot + 1) & (self.short.len() - 1);
        }
        None
    }
}

/// The slot where the search for a short label starts. The number of slots is a power of two.
#[inline]
fn first_slot(label: u128, num_slots: usize) -> usize {
    let mixed = (label as u64 ^ ((label >> 64) as u64).rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize & (num_slots - 1)
}

impl FromIterator<(Vec<u8>, u32)> for Classes {
    fn from_iter<I: IntoIterator<Item = (Vec<u8>, u32)>>(labels: I) -> Classes {
        let all: FxHashMap<Vec<u8>, u32> = labels.into_iter().collect();
        let mut short = vec![None; (4 * all.len() + 1).next_power_of_two()];
        let is_short = |label: &[u8]| label.len() <= SHORT_BYTES && label.iter().all(|&byte| byte > b' ');
        for (label, &class) in all.iter().filter(|(label, _)| is_short(label)) {
            let mut bytes = [0; 16];
            bytes[..label.len()].copy_from_slice(label);
            let label = u128::from_le_bytes(bytes);
            let mut slot = first_slot(label, short.len());
            while short[slot].is_some() {
                slot = (slot + 1) & (short.len() - 1);
            }
            short[slot] = Some((label, class));
        }
        Classes { all, short }
    }
}
