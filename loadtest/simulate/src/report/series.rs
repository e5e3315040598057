//! What a run came to as rows of numbers: moments over time, completion times in order, and fewer of either where a picture or a file has
//! no room for all. It draws nothing and writes nothing.

use crate::outcome::Outcome;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Moments of a policy at most, in pictures and files: more than a picture of half a page has pixels.
pub const MOMENTS_MAX: usize = 600;

/// A run between a moment and the next one, in the mean.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Moment {
    /// Since the run began.
    pub at_s: f64,
    /// Jobs that wait without any slot.
    pub jobs_waiting: f64,
    /// Slots that may be used.
    pub slots_lent: f64,
    /// Slots with a process on them.
    pub slots_held: f64,
    /// Slots whose process makes steps.
    pub slots_training: f64,
    /// Slots that fleets need themselves.
    pub slots_needed: f64,
}

impl Moment {
    /// The columns that [`Self::csv`] has.
    pub const HEADER: &str = "policy,at_s,jobs_waiting,slots_lent,slots_held,slots_training,slots_needed,utilization\n";

    /// The share of the lent slots in which steps are made.
    #[must_use]
    pub fn utilization(&self) -> Option<f64> {
        (self.slots_lent > 0.0).then(|| self.slots_training / self.slots_lent)
    }

    /// A row of CSV.
    #[must_use]
    pub fn csv(&self, policy: &str) -> String {
        let utilization = self.utilization().map_or_else(String::new, |share| format!("{share:.4}"));
        format!(
            "{policy},{},{:.3},{:.3},{:.3},{:.3},{:.3},{utilization}\n",
            self.at_s, self.jobs_waiting, self.slots_lent, self.slots_held, self.slots_training, self.slots_needed
        )
    }
}

/// A run over time: at most [`MOMENTS_MAX`] of the moments that were counted.
#[must_use]
pub fn moments(outcome: &Outcome) -> Vec<Moment> {
    let (course, every_ms) = (&outcome.tally.course, outcome.tally.course_every_ms as f64);
    let pairs = course.iter().zip(course.iter().skip(1)).enumerate();
    let all: Vec<Moment> = pairs
        .map(|(place, (from, to))| {
            // The sums only grow, so their difference is what was between the two.
            let slots = |which: usize| {
                let sum = |sums: &crate::tally::Sums| sums.fleets.iter().map(|fleet| fleet[which]).sum::<u64>();
                (sum(to) - sum(from)) as f64 / every_ms
            };
            Moment {
                at_s: place as f64 * every_ms / 1e3,
                jobs_waiting: (to.waiting_ms - from.waiting_ms) as f64 / every_ms,
                slots_needed: slots(0),
                slots_lent: slots(1),
                slots_training: slots(2),
                slots_held: slots(3),
            }
        })
        .collect();
    // Lows count as much as highs do: a picture of the highs alone would have everything busier than it was.
    let extremes =
        |of: &Moment| [of.jobs_waiting, -of.jobs_waiting, of.slots_training, -of.slots_training, of.slots_lent];
    thin(&all, MOMENTS_MAX, extremes).into_iter().map(|place| all[place]).collect()
}

/// Which share of all jobs was finished after how many seconds of its own, from the shortest on.
#[must_use]
pub fn completions(outcome: &Outcome) -> Vec<(f64, f64)> {
    let mut in_order: Vec<u64> = outcome.jobs.iter().filter_map(|job| job.completion_ms()).collect();
    in_order.sort_unstable();
    let jobs = outcome.jobs.len() as f64;
    let all: Vec<(f64, f64)> =
        in_order.iter().zip(1..).map(|(ms, place)| (*ms as f64 / 1e3, f64::from(place) / jobs)).collect();
    thin(&all, MOMENTS_MAX, |of| [of.1]).into_iter().map(|place| all[place]).collect()
}

/// The places of at most so many rows: all if they are no more, else the first, the last, and of each stretch the one where each value is
/// highest.
#[must_use]
pub fn thin<T, const VALUES: usize>(rows: &[T], most: usize, values: impl Fn(&T) -> [f64; VALUES]) -> Vec<usize> {
    if rows.len() <= most {
        return (0..rows.len()).collect();
    }
    let stretches = (most.saturating_sub(2) / VALUES).max(1);
    let mut kept = BTreeSet::from([0, rows.len() - 1]);
    for stretch in 0..stretches {
        let (from, to) = (stretch * rows.len() / stretches, (stretch + 1) * rows.len() / stretches);
        for value in 0..VALUES {
            let of = |place: &usize| values(&rows[*place])[value];
            kept.extend((from..to).max_by(|a, b| of(a).total_cmp(&of(b)).then(Reverse(a).cmp(&Reverse(b)))));
        }
    }
    kept.into_iter().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn fewer_rows_keep_the_first_the_last_and_the_highest() {
        let rows: Vec<(f64, f64)> = (0..10_000).map(|n| (f64::from(n * 7 % 1_000), f64::from(n * 13 % 999))).collect();
        let kept = thin(&rows, 600, |of| [of.0, -of.1]);
        assert!(kept.len() <= 600 && kept.len() > 500, "{}", kept.len());
        assert_eq!((kept[0], *kept.last().unwrap()), (0, 9_999));
        assert!(kept.is_sorted() && kept.iter().any(|place| rows[*place].0 == 999.0));
        assert!(kept.iter().any(|place| rows[*place].1 == 0.0));
        assert_eq!(thin(&rows[..600], 600, |of| [of.0]).len(), 600);
        assert_eq!(thin(&[] as &[(f64, f64)], 600, |of| [of.0]), Vec::<usize>::new());
    }

    #[test]
    fn a_moment_in_which_nothing_is_lent_has_no_utilization() {
        let row = Moment { at_s: 2.0, slots_held: 1.5, ..Moment::default() }.csv("ebb");
        assert_eq!(row, "ebb,2,0.000,0.000,1.500,0.000,0.000,\n");
        assert_eq!(row.matches(',').count(), Moment::HEADER.matches(',').count());
    }
}
