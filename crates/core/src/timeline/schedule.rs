//! Limits that change with the position. (docs/schedules.md)

use super::batches::{Limits, Pool};
use crate::memory;

/// A whole number for each position, given at some positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    points: Vec<(u64, u64)>,
    is_linear: bool,
}

impl Schedule {
    /// A schedule of at least one point: a position and a value, both below 2^63. Between two points the value is on
    /// their line, rounded down, or without `is_linear` that of the first. `None`: the positions do not ascend.
    #[must_use]
    pub fn new(points: Vec<(u64, u64)>, is_linear: bool) -> Option<Self> {
        let ascends = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let is_small = points.iter().all(|&(position, value)| position.max(value) < 1 << 63);
        (ascends && is_small && !points.is_empty()).then_some(Self { points, is_linear })
    }

    /// The value at a position. The first and the last value hold before and after all points.
    #[must_use]
    pub fn at(&self, position: u64) -> u64 {
        let next = self.points.partition_point(|&(first, _)| first <= position);
        let Some(before) = next.checked_sub(1) else { return self.points[0].1 };
        let (begin, from) = self.points[before];
        match self.points.get(next) {
            Some(&(end, to)) if self.is_linear => {
                // The factors have 64 bits with their signs, so the product fits.
                let rise = (i128::from(to) - i128::from(from)) * i128::from(position - begin);
                // Between the two values, which fit.
                (i128::from(from) + rise.div_euclid(i128::from(end - begin))) as u64
            }
            _ => from,
        }
    }

    fn last(&self) -> u64 {
        self.points[self.points.len() - 1].0
    }
}

/// The limits that change with the position where a minibatch, or its pool, begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schedules {
    /// As in [`Limits`].
    pub samples: Option<Schedule>,
    /// As in [`Limits`].
    pub sequences: Option<Schedule>,
    /// As in [`Limits`].
    pub padded: Option<Schedule>,
    /// As in [`Limits`].
    pub longest: Option<Schedule>,
    /// As in [`Pool`].
    pub rows: Option<Schedule>,
    /// True if sequences that exceed a limit by themselves are left out.
    pub drops: bool,
}

impl Schedules {
    /// The limits and the pool of a minibatch that begins at a position; `limits` and `pool` have what does not change.
    #[must_use]
    pub fn at(&self, limits: Limits, pool: Option<&Pool>, position: u64) -> (Limits, Option<Pool>) {
        let value = |schedule: &Option<Schedule>, other: u64| schedule.as_ref().map_or(other, |it| it.at(position));
        let short = |schedule, other: u32| value(schedule, other.into()).min(u32::MAX.into()) as u32;
        let longest = short(&self.longest, u32::MAX);
        let limits = Limits {
            samples: value(&self.samples, limits.samples),
            sequences: value(&self.sequences, limits.sequences),
            padded: value(&self.padded, limits.padded),
            longest: limits.longest.min(longest),
            ..limits
        };
        let buckets = pool.map_or(&[][..], |pool| &pool.buckets);
        let limits = if self.drops { limits.dropping(buckets) } else { limits };
        let pool = pool.map(|pool| Pool {
            buckets: memory::copied(&pool.buckets),
            rows: short(&self.rows, pool.rows),
            ..*pool
        });
        (limits, pool)
    }

    /// The position from which on nothing changes.
    pub(super) fn last(&self) -> u64 {
        let all = [&self.samples, &self.sequences, &self.padded, &self.longest, &self.rows];
        all.into_iter().flatten().map(Schedule::last).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_on_the_line_and_rounded_down() {
        let schedule =
            |points: &[(u64, u64)], is_linear| Schedule::new(points.to_vec(), is_linear).expect("it ascends");
        let ramp = schedule(&[(10, 4), (20, 7), (23, 1)], true);
        let values: Vec<u64> = (0..26).map(|position| ramp.at(position)).collect();
        let expected = [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 6, 6, 6, 7, 5, 3, 1, 1, 1];
        assert_eq!(values, expected);
        let steps = schedule(&[(10, 4), (20, 7)], false);
        assert_eq!([9, 10, 19, 20, u64::MAX].map(|position| steps.at(position)), [4, 4, 4, 7, 7]);
        let most = (1 << 63) - 1;
        // The line is at 2 - 1 / most.
        assert_eq!(schedule(&[(0, most), (most, 1)], true).at(most - 1), 1);
        assert_eq!(schedule(&[(0, 1), (most, most)], true).at(most - 1), most - 1);
    }

    #[test]
    fn points_that_do_not_ascend_are_refused() {
        for points in [vec![], vec![(1, 1), (1, 2)], vec![(2, 1), (1, 2)], vec![(0, 1 << 63)]] {
            assert_eq!(Schedule::new(points, true), None);
        }
    }
}
