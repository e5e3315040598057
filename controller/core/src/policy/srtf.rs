//! `srtf`: whoever is done soonest goes first (shortest remaining time first, with preemption; the reference of Tiresias §5, there with gangs).
//!
//! A baseline with the freedom that `ebb` has. Jobs are walked by what they are expected to take on the slots that they asked for: each gets
//! that many, or what is left if that is enough for its fewest; then what is over makes them larger in the same order. Nobody is kept for having run, and no move is charged.
//!
//! What is left open there. *Unknown work*: as much as it has had (`work.rs`), which is least attained service in steps of a factor of two, looked at again
//! after `WAKE_MS`. *Useful sizes*: nobody gets slots that make it no faster.

use super::allotment::{Allotment, ordered};
use super::work::expected_ms;
use super::{Packing, Plan, Policy, View, WorkLeft};

/// Plans are looked at again after so long while anybody waits: jobs that run pass by those of whom nothing is known.
pub(super) const WAKE_MS: u64 = 60_000;

/// See the module.
pub struct Srtf;

impl Policy for Srtf {
    fn name(&self) -> &'static str {
        "srtf"
    }

    fn plan(&self, view: &View) -> Plan {
        let order = ordered(view, |job| expected_ms(&view.jobs[job]));
        let mut allotment = Allotment::new(view);
        for &job in &order {
            allotment.start(job, view.jobs[job].asked(), view.jobs[job].min);
        }
        for &job in &order {
            let share = allotment.shares[job];
            if share.slots > 0 {
                let most = (u32::from(share.slots) + allotment.free(job)).min(u32::from(view.jobs[job].max)) as u16;
                let useful = fastest(view, job, share.slots, most);
                allotment.grow(job, useful);
            }
        }
        let shares = allotment.shares;
        let wake_in_ms = wake_in_ms(view, &shares);
        Plan { shares, wake_in_ms, ..Plan::default() }
    }

    fn packing(&self) -> Packing {
        Packing::WorstFit
    }
}

/// The fastest size between two, the smallest of equals.
fn fastest(view: &View, job: usize, from: u16, most: u16) -> u16 {
    let speeds = view.speeds(job);
    let sizes = std::iter::successors(Some(from), |&size| speeds.next_size(size).filter(|&next| next <= most));
    sizes.last().unwrap_or(from)
}

/// When to look again: soon while somebody waits, never if nothing could be otherwise.
pub(super) fn wake_in_ms(view: &View, shares: &[super::Share]) -> Option<u64> {
    let waits = shares.iter().any(|share| share.slots == 0);
    let runs = view.jobs.iter().zip(shares).any(|(job, share)| share.slots > 0 && job.left == WorkLeft::Unknown);
    (waits && runs).then_some(WAKE_MS)
}

#[cfg(test)]
mod tests {
    use super::super::{ClassView, JobView};
    use super::*;

    fn job(min: u16, asked: u16, max: u16, minutes: u64) -> JobView {
        let left = WorkLeft::Known { ms: minutes * 60_000 };
        JobView { min, requested: Some(asked), max, left, ..JobView::default() }
    }

    fn slots(capacity: u32, jobs: &[JobView]) -> Vec<u16> {
        let classes = vec![ClassView { capacity, declared: capacity, ..ClassView::default() }];
        let plan = Srtf.plan(&View { classes, jobs: jobs.to_vec(), ..View::default() });
        plan.shares.iter().map(|share| share.slots).collect()
    }

    #[test]
    fn who_is_done_soonest_has_what_it_asked_for_and_others_what_is_left() {
        assert_eq!(slots(4, &[job(4, 4, 4, 60), job(4, 4, 4, 50)]), [0, 4]);
        assert_eq!(slots(6, &[job(1, 4, 4, 60), job(1, 4, 4, 50)]), [2, 4]);
        let runs = JobView { held: 4, class: Some(0), ..job(4, 4, 4, 60) };
        assert_eq!(slots(4, &[runs, job(4, 4, 4, 59)]), [0, 4], "who runs is not spared");
    }

    #[test]
    fn what_is_over_makes_the_shortest_larger() {
        assert_eq!(slots(16, &[job(1, 2, 8, 60), job(1, 2, 8, 50)]), [8, 8]);
        assert_eq!(slots(10, &[job(1, 2, 8, 60), job(1, 2, 8, 50)]), [2, 8]);
        assert_eq!(slots(9, &[job(1, 2, 8, 60), job(1, 2, 8, 50)]), [4, 4], "seven are no faster than four");
    }
}
