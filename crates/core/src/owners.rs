//! Look-up of the owner of a position, where each owner has consecutive positions: chunks own positions of a sweep,
//! utterances own frames.
//!
//! Positions in random order miss every cache, so a binary search over all owners would wait for memory many times.
//! This table gives the owner at the start of every block of positions. A block has at most about as many positions as
//! an owner, so there are few owners between two entries of the table. If there are few owners, the blocks are smaller:
//! then most blocks have a single owner, and the processor predicts the branches.

use crate::memory;

/// An integer that numbers positions.
pub(crate) trait Position: Copy + PartialOrd {
    fn as_usize(self) -> usize;
}

impl Position for u32 {
    #[inline]
    fn as_usize(self) -> usize {
        self as usize
    }
}

impl Position for i64 {
    #[inline]
    fn as_usize(self) -> usize {
        // A negative position then is beyond all blocks, and `find` returns `None`.
        usize::try_from(self).unwrap_or(usize::MAX)
    }
}

/// Least number of blocks. A table of this size fits the fastest cache.
const LEAST_BLOCKS: usize = 1 << 11;

/// The owner at the start of each block of `1 << shift` positions and, last, the last owner.
#[derive(Debug)]
pub(crate) struct Owners {
    of_block: Vec<u32>,
    shift: u32,
}

impl Owners {
    /// A table for owners that start at these positions, which ascend from 0; the last number is the number of
    /// positions.
    pub(crate) fn new<P: Position>(starts: &[P]) -> Owners {
        let num_owners = starts.len().saturating_sub(1);
        let num_positions = starts.last().map_or(0, |last| last.as_usize());
        // The size of a block is a power of two, so that a look-up shifts and does not divide.
        let shift = (num_positions / num_owners.max(LEAST_BLOCKS)).max(1).ilog2();
        let mut of_block = memory::with_room((num_positions >> shift) + 2);
        let mut owner = 0;
        for position in (0..=num_positions).step_by(1 << shift) {
            while owner + 1 < num_owners && starts[owner + 1].as_usize() <= position {
                owner += 1;
            }
            of_block.push(owner as u32);
        }
        // A look-up reads the entry of a block and the next entry, so the last block needs an entry after it.
        of_block.push(num_owners.saturating_sub(1) as u32);
        Owners { of_block, shift }
    }

    /// The owner of a position. For a position at or beyond the number of positions it is `None` or any owner. `starts`
    /// are the starts from which the table was made.
    #[inline(always)]
    pub(crate) fn find<P: Position>(&self, starts: &[P], position: P) -> Option<u32> {
        let block = position.as_usize() >> self.shift;
        let (first, last) = (*self.of_block.get(block)?, *self.of_block.get(block + 1)?);
        Some(if first == last { first } else { between(starts, first, last, position) })
    }

    /// Bytes of memory.
    pub(crate) fn num_bytes(&self) -> usize {
        4 * self.of_block.capacity()
    }
}

/// The owner of a position that belongs to one of two owners or of those between them.
#[inline(always)]
fn between<P: Position>(starts: &[P], first: u32, last: u32, position: P) -> u32 {
    let ends = &starts[first as usize + 1..=last as usize];
    if ends.len() <= 8 {
        return first + ends.iter().take_while(|&&end| end <= position).count() as u32;
    }
    first + ends.partition_point(|&end| end <= position) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_position_has_the_owner_whose_range_holds_it(
            sizes in prop::collection::vec(prop_oneof![Just(1u32), 0u32..300], 1..60),
        ) {
            let mut starts = vec![0];
            starts.extend(sizes.iter().scan(0, |sum, size| { *sum += size; Some(*sum) }));
            let owners = Owners::new(&starts);
            for (owner, range) in starts.windows(2).enumerate() {
                for position in range[0]..range[1] {
                    prop_assert_eq!(owners.find(&starts, position), Some(owner as u32));
                }
            }
            prop_assert_eq!(owners.find(&starts, u32::MAX), None);
        }
    }
}
