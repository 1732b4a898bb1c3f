//! Some places of a shuffle, without the order of all others.
//!
//! In a window over the whole sweep no draw is rejected, so the draws do not depend on the order. The exchanges are then
//! followed backward from the places that are asked for:
//!
//! ```text
//!   t      0    1    2    3        exchanges of the places t and j, first to last
//!   j      2    3    0    1
//!   place 1 after them  ◄── t = 3: place 3 ◄── t = 1: place 1 ◄── the sequence that begins at place 1
//! ```
//!
//! A shuffle of 10^8 places waits for memory at each exchange. This waits for none: nearly every exchange is of two
//! places that no read asks for, and a small table of bits shows which.

use super::generator::{MersenneTwister, Remainder};
use super::{Pause, SEQUENCES_BETWEEN_PAUSES, Stopped};
use crate::memory;
use cntkio_memory::huge_pages::advise_for;
use std::collections::HashMap;
use std::ops::Range;

/// Places that are traced at once.
pub(super) const MOST_TRACED: u32 = 1 << 14;
/// Bits of the table: 64 for each place, in 128 KB, which stay in a cache.
const NUM_BITS: u32 = 1 << 20;

/// The homes of the sequences at some places, after a shuffle of `count` places in one window.
///
/// # Errors
/// `pause` asked the work to stop.
pub(super) fn traced(count: u32, seed: u64, places: Range<u32>, pause: &mut Pause) -> Result<Vec<u32>, Stopped> {
    let (mut generator, remainder) = (MersenneTwister::new(seed), Remainder::new(u64::from(count)));
    let mut others: Vec<u32> = memory::with_room(count as usize);
    advise_for(&mut others, count as usize);
    let steps = |first: u32| first..count.min(first.saturating_add(SEQUENCES_BETWEEN_PAUSES));
    let starts = (0..count).step_by(SEQUENCES_BETWEEN_PAUSES as usize);
    for first in starts.clone() {
        others.extend(steps(first).map(|_| remainder.of(generator.draw()) as u32));
        if !pause() {
            return Err(Stopped);
        }
    }
    let mut bits = vec![0u64; NUM_BITS as usize / 64];
    let slot = |place: u32| ((place % NUM_BITS / 64) as usize, 1u64 << (place % 64));
    // For each place that a wanted sequence had before the exchanges that were followed: which sequence is wanted.
    let mut wanted: HashMap<u32, u32> = (0..).zip(places.clone()).map(|(number, place)| (place, number)).collect();
    let mark = |bits: &mut [u64], place: u32| bits[slot(place).0] |= slot(place).1;
    places.for_each(|place| mark(&mut bits, place));
    for first in starts.rev() {
        for t in steps(first).rev() {
            let other = others[t as usize];
            let (here, there) = (slot(t), slot(other));
            // A bit stands for many places, and stays set: the map decides.
            if (bits[here.0] & here.1) | (bits[there.0] & there.1) == 0 {
                continue;
            }
            let (of_here, of_other) = (wanted.remove(&t), wanted.remove(&other));
            for (place, number) in [(other, of_here), (t, of_other)] {
                if let Some(number) = number {
                    wanted.insert(place, number);
                    mark(&mut bits, place);
                }
            }
        }
        if !pause() {
            return Err(Stopped);
        }
    }
    let mut homes = vec![0; wanted.len()];
    wanted.into_iter().for_each(|(home, number)| homes[number as usize] = home);
    Ok(homes)
}
