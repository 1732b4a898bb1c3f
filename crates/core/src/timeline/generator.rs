//! Random numbers: CNTK's generator, and remainders by one divisor without a division.

/// The 64-bit Mersenne Twister, as the C++ standard's `mt19937_64`.
pub(super) struct MersenneTwister {
    state: [u64; Self::SIZE],
    next: usize,
}

impl MersenneTwister {
    const SIZE: usize = 312;
    const SHIFT: usize = 156;

    /// A generator started with `seed`.
    pub(super) fn new(seed: u64) -> Self {
        let mut state = [seed; Self::SIZE];
        for i in 1..Self::SIZE {
            let before = state[i - 1];
            // The C++ standard defines this arithmetic modulo 2^64.
            state[i] = (before ^ (before >> 62)).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i as u64);
        }
        Self { state, next: Self::SIZE }
    }

    /// The next number of 64 bits.
    #[inline]
    pub(super) fn draw(&mut self) -> u64 {
        if self.next == Self::SIZE {
            self.refill();
        }
        let x = self.state[self.next];
        self.next += 1;
        tempered(x)
    }

    /// The number after the next `count` numbers; `None` if it is not computed yet.
    #[inline]
    pub(super) fn peek(&self, count: usize) -> Option<u64> {
        // The lookahead never refills, because that would overwrite numbers that are not drawn yet. Callers only
        // prefetch with it.
        self.state.get(self.next + count).copied().map(tempered)
    }

    // Only each 312th draw needs this, so `draw` stays small enough to become a part of the loops that call it.
    #[cold]
    #[inline(never)]
    fn refill(&mut self) {
        let state = &mut self.state;
        let twist = |high: u64, low: u64, far: u64| {
            let x = (high & 0xFFFF_FFFF_8000_0000) | (low & 0x7FFF_FFFF);
            far ^ (x >> 1) ^ ((x & 1).wrapping_neg() & 0xB502_6F5A_A966_19E9)
        };
        // The refill has three parts, so that no index needs a remainder by `SIZE`.
        for i in 0..Self::SIZE - Self::SHIFT {
            state[i] = twist(state[i], state[i + 1], state[i + Self::SHIFT]);
        }
        for i in Self::SIZE - Self::SHIFT..Self::SIZE - 1 {
            state[i] = twist(state[i], state[i + 1], state[i + Self::SHIFT - Self::SIZE]);
        }
        state[Self::SIZE - 1] = twist(state[Self::SIZE - 1], state[0], state[Self::SHIFT - 1]);
        self.next = 0;
    }
}

#[inline]
fn tempered(mut x: u64) -> u64 {
    x ^= (x >> 29) & 0x5555_5555_5555_5555;
    x ^= (x << 17) & 0x71D6_7FFF_EDA6_0000;
    x ^= (x << 37) & 0xFFF7_EEE0_0000_0000;
    x ^ (x >> 43)
}

/// The exact remainder of many dividends by one divisor: a multiplication instead of a division.
#[derive(Debug, Clone, Copy)]
pub(super) struct Remainder {
    divisor: u64,
    reciprocal: u64,
}

impl Remainder {
    /// The remainder by `divisor`, which lies in `1 .. 2^63`.
    pub(super) fn new(divisor: u64) -> Self {
        // `rest` in `of` can be almost twice the divisor, and has to fit 64 bits.
        debug_assert!((1..1 << 63).contains(&divisor));
        Self { divisor, reciprocal: u64::MAX / divisor }
    }

    /// `dividend % divisor`.
    #[inline]
    pub(super) fn of(self, dividend: u64) -> u64 {
        // reciprocal >= 2^64 / divisor - 1, so the quotient is exact or one too small.
        let quotient = ((u128::from(dividend) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = dividend - quotient * self.divisor;
        if rest >= self.divisor { rest - self.divisor } else { rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_generator_gives_the_standard_numbers() {
        let mut generator = MersenneTwister::new(5489);
        let tenthousandth = (0..10_000).map(|_| generator.draw()).last();
        assert_eq!(tenthousandth, Some(9_981_545_732_273_789_042));
    }

    #[test]
    fn numbers_seen_ahead_come_later() {
        let (mut generator, mut later) = (MersenneTwister::new(7), MersenneTwister::new(7));
        (0..16).for_each(|_| _ = later.draw());
        let mut num_seen = 0;
        for _ in 0..1000 {
            let (seen, number) = (generator.peek(16), later.draw());
            num_seen += usize::from(seen == Some(number));
            assert!(seen.is_none_or(|seen| seen == number));
            generator.draw();
        }
        assert!(num_seen > 900, "{num_seen}");
    }

    proptest! {
        #[test]
        fn remainders_are_exact(dividend: u64, divisor in 1u64..1 << 63, shift in 0u32..63) {
            for divisor in [divisor, (divisor >> shift).max(1), 1 << shift] {
                for dividend in [dividend, u64::MAX, dividend / divisor * divisor, (dividend / divisor * divisor).wrapping_sub(1)] {
                    prop_assert_eq!(Remainder::new(divisor).of(dividend), dividend % divisor);
                }
            }
        }
    }
}
