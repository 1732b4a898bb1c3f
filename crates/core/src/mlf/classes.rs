//! The classes of labels.

use rustc_hash::FxHashMap;

/// The class of each label. If a label is repeated, the last class counts.
///
/// The keys of this map come from the user's own mapping file, so a fast hash is safe.
#[derive(Debug, Clone)]
pub struct Classes(FxHashMap<Vec<u8>, u32>);

impl Classes {
    /// The class of a label.
    pub fn get(&self, label: &[u8]) -> Option<u32> {
        self.0.get(label).copied()
    }
}

impl FromIterator<(Vec<u8>, u32)> for Classes {
    fn from_iter<I: IntoIterator<Item = (Vec<u8>, u32)>>(labels: I) -> Classes {
        Classes(labels.into_iter().collect())
    }
}
