//! Bytes of files, shared by the columns that show them, and the integers in such bytes.

use cntkio_memory::file::FileBytes;
use std::sync::Arc;

/// Bytes of a file, shared: read into memory, or mapped.
#[derive(Clone)]
pub struct Bytes(Arc<FileBytes>);

impl Bytes {
    /// Bytes that were read.
    pub fn new(bytes: Vec<u8>) -> Bytes {
        Bytes::of(FileBytes::here(bytes))
    }

    /// Bytes that were read, or are mapped.
    pub fn of(bytes: FileBytes) -> Bytes {
        Bytes(Arc::new(bytes))
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// The name of the file, if its bytes are mapped.
    pub(crate) fn mapped_name(&self) -> Option<&str> {
        self.0.mapped_name()
    }

    /// The name of the file, if its bytes are mapped and it has changed since.
    pub(crate) fn changed(&self) -> Option<&str> {
        self.0.changed()
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The content may be gigabytes, so its size is printed instead.
        write!(formatter, "Bytes({})", self.as_slice().len())
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        self.as_slice() == other.as_slice()
    }
}

/// The integer in the four bytes from `at` on, lowest byte first.
#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    // The range has four bytes, so the conversion to an array cannot fail.
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// As [`u32_at`], signed.
#[inline]
pub(crate) fn i32_at(bytes: &[u8], at: usize) -> i32 {
    u32_at(bytes, at) as i32
}

/// All integers in some bytes, lowest byte first.
pub(crate) fn i32s(bytes: &[u8]) -> impl ExactSizeIterator<Item = i32> + '_ {
    bytes.as_chunks().0.iter().map(|&four| i32::from_le_bytes(four))
}
