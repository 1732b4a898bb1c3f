//! The shuffle of a sweep's sequences.

use super::generator::{MersenneTwister, Remainder};
use super::plan::{Span, SweepPlan};
use super::{Pause, SEQUENCES_BETWEEN_PAUSES, Stopped};
use std::sync::Arc;

/// The numbers below `count`, shuffled as CNTK shuffles a window of sequences of a user-defined deserializer.
///
/// Unlike [`chunk_order`] this is Fisher-Yates. It returns early if `pause` asks it to stop.
pub fn shuffled(count: u32, seed: u64, pause: &mut Pause) -> Result<Vec<u32>, Stopped> {
    let mut generator = MersenneTwister::new(seed);
    let mut order: Vec<u32> = (0..count).collect();
    for at in 0..count {
        if at % SEQUENCES_BETWEEN_PAUSES == SEQUENCES_BETWEEN_PAUSES - 1 && !pause() {
            return Err(Stopped);
        }
        let step = generator.draw() % u64::from(count - at);
        order.swap(at as usize, at as usize + step as usize);
    }
    Ok(order)
}

/// The order of sequences of one sweep, shuffled as far as it was asked for and forgotten where it was passed.
pub(super) struct SweepOrder {
    pub(super) plan: Arc<SweepPlan>,
    generator: MersenneTwister,
    /// Homes of what sits at the positions `base ..`; none is in here yet whose position no window has reached.
    pub(super) slots: Vec<u32>,
    pub(super) base: u32,
    /// The shuffle has been done for all positions below, which are those of the places below `shuffled_places`,
    /// and of some of that place.
    shuffled: u32,
    shuffled_places: u32,
}

impl SweepOrder {
    pub(super) fn new(plan: Arc<SweepPlan>) -> Self {
        let generator = MersenneTwister::new(plan.seed);
        Self { plan, generator, slots: Vec::new(), base: 0, shuffled: 0, shuffled_places: 0 }
    }

    /// Makes sure that what is at `position`, which belongs to `place`, is known and final.
    #[inline]
    pub(super) fn prepare(&mut self, place: u32, position: u32, pause: &mut Pause) -> Result<(), Stopped> {
        if position < self.base {
            self.start_again(place, position, pause)?;
        }
        let until = self.plan.final_after(place);
        if self.shuffled < until { self.shuffle(until, pause) } else { Ok(()) }
    }

    /// The same from the start of the sweep, for a position that was forgotten.
    #[cold]
    fn start_again(&mut self, place: u32, position: u32, pause: &mut Pause) -> Result<(), Stopped> {
        *self = Self::new(Arc::clone(&self.plan));
        for passed in 0..place {
            self.shuffle(self.plan.final_after(passed), pause)?;
            self.forget(position);
        }
        Ok(())
    }

    /// Goes on with the shuffle to the position `until`.
    fn shuffle(&mut self, until: u32, pause: &mut Pause) -> Result<(), Stopped> {
        let plan = Arc::clone(&self.plan);
        while self.shuffled < until {
            let place = self.shuffled_places as usize;
            let end = plan.starts[place + 1].min(until);
            if self.shuffled == end {
                self.shuffled_places += 1;
                continue;
            }
            let window = plan.windows[place];
            let window = Span { from: plan.starts[window.from as usize], to: plan.starts[window.to as usize] };
            let known = self.base + self.slots.len() as u32;
            if known < window.to {
                let more = (window.to - known) as usize;
                // A first window is reserved to the size, so that a window over all the data costs no more than it.
                if self.slots.is_empty() {
                    self.slots.reserve_exact(more);
                }
                self.slots.extend(known..window.to);
            }
            let remainder = Remainder::new(u64::from(window.to - window.from));
            let step_end = end.min(self.shuffled.saturating_add(SEQUENCES_BETWEEN_PAUSES));
            let slots = &mut self.slots[..];
            let base = self.base;
            if plan.is_one_window {
                // Every place may take every sequence, so that no draw is in vain.
                for t in self.shuffled..step_end {
                    let other = remainder.of(self.generator.draw()) as u32;
                    slots.swap((t - base) as usize, (other - base) as usize);
                }
            } else {
                for t in self.shuffled..step_end {
                    let here = slots[(t - base) as usize];
                    let reach = plan.reach[plan.place_of(here) as usize];
                    let other = loop {
                        let other = window.from + remainder.of(self.generator.draw()) as u32;
                        if window.holds(slots[(other - base) as usize]) & reach.holds(other) {
                            break other;
                        }
                    };
                    slots.swap((t - base) as usize, (other - base) as usize);
                }
            }
            let paused = self.shuffled / SEQUENCES_BETWEEN_PAUSES != step_end / SEQUENCES_BETWEEN_PAUSES;
            self.shuffled = step_end;
            if paused && !pause() {
                return Err(Stopped);
            }
        }
        Ok(())
    }

    /// Lets go of the positions below `position`, as far as the shuffle can do without them.
    pub(super) fn forget(&mut self, position: u32) {
        let place = (self.shuffled_places as usize).min(self.plan.chunks.len() - 1);
        let shuffle_needs = if self.shuffled == self.plan.num_sequences() {
            self.shuffled
        } else {
            self.plan.starts[self.plan.windows[place].from as usize]
        };
        let passed = position.min(shuffle_needs).saturating_sub(self.base);
        // Half of the slots at once, so that each is moved about once.
        if passed as usize > self.slots.len() / 2 {
            self.slots.drain(..passed as usize);
            self.base += passed;
        }
    }
}

/// The order of a sweep over frames with a window that rolls over them: which frame comes at each place.
///
/// A frame strays by at most half of `window` from its place, which is why a reader needs only the frames around the
/// place where it is. Nearly every frame finds another to change places with; one that did not in five draws stays.
pub fn rolling_order(num_frames: u32, window: u64, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..num_frames).collect();
    let (half, count) = (window / 2, u64::from(num_frames));
    if half == 0 {
        return order;
    }
    let mut generator = MersenneTwister::new(seed);
    let is_near = |place: u64, frame: u32| {
        let frame = u64::from(frame);
        place <= frame.saturating_add(half) && frame < place.saturating_add(half)
    };
    for place in 0..count {
        let (low, high) = (place.saturating_sub(half), place.saturating_add(half).min(count));
        for _ in 0..5 {
            let other = low + generator.draw() % (high - low);
            let (mine, its) = (order[place as usize], order[other as usize]);
            if is_near(other, mine) && is_near(place, its) {
                order.swap(place as usize, other as usize);
                break;
            }
        }
    }
    order
}
