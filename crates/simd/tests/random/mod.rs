//! Random numbers for the tests of several crates.

/// Number of random rounds to run: a third of `all`, or all if `CNTKIO_ALL_ROUNDS` is set, as in `make test-all`.
pub(crate) fn rounds(all: usize) -> usize {
    if std::env::var_os("CNTKIO_ALL_ROUNDS").is_some() { all } else { all / 3 }
}

/// A generator of random numbers (xorshift64*).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    /// A random element of `choices`.
    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
