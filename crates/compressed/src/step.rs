//! Result of a step of a decoder.

/// Result of a step.
pub(super) struct Stepped {
    pub(super) num_read: usize,
    pub(super) num_written: usize,
    /// At the end of a member or a frame.
    pub(super) is_end: bool,
    /// At the end of a block: bits that were read and not used.
    pub(super) unused_bits: Option<u8>,
}
