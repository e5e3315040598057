//! `optimus-like`: slots to whoever's own completion they bring nearest (after Optimus; Peng et al., EuroSys 2018, §4.1).
//!
//! Everybody begins with its fewest slots, whoever takes least at its asked size first; each further slot goes to the largest fall of a job's own remaining time, r/h(p) − r/h(p+1), until
//! nobody gains. It knows the work; of a job of which nothing is known as much is expected as it has had (`work.rs`).
//!
//! What differs. Optimus fits the number of epochs and the speed of steps online; here both come from the view. It has parameter servers beside
//! workers, Ebb has none. Resources are slots of one kind, so its division by the dominant resource is one by slots. No move is charged.

use super::allotment::{Allotment, ordered};
use super::srtf::wake_in_ms;
use super::work::expected_ms;
use super::{Packing, Plan, Policy, View};

/// See the module.
pub struct OptimusLike;

impl Policy for OptimusLike {
    fn name(&self) -> &'static str {
        "optimus-like"
    }

    fn plan(&self, view: &View) -> Plan {
        let order = ordered(view, |job| expected_ms(&view.jobs[job]));
        let shares = by_gain(view, &order, |job, from, to| {
            let (of, speeds) = (&view.jobs[job], view.speeds(job));
            let ms = expected_ms(of) as f64 * speeds.speed(of.asked());
            ms / speeds.speed(from).max(f64::MIN_POSITIVE) - ms / speeds.speed(to).max(f64::MIN_POSITIVE)
        });
        let wake_in_ms = wake_in_ms(view, &shares);
        Plan { shares, wake_in_ms, ..Plan::default() }
    }

    fn packing(&self) -> Packing {
        Packing::WorstFit
    }
}

/// Everybody's fewest slots in an order, then each further size to the largest gain per slot; of equals to the earlier job.
pub(super) fn by_gain(view: &View, order: &[usize], gain: impl Fn(usize, u16, u16) -> f64) -> Vec<super::Share> {
    let mut allotment = Allotment::new(view);
    for &job in order {
        allotment.start(job, view.jobs[job].min, view.jobs[job].min);
    }
    let next = |job: usize, from: u16| {
        let to = view.speeds(job).next_size(from).filter(|&to| to <= view.jobs[job].max)?;
        // Thousandths, so that equal gains are equal.
        let per_slot = (gain(job, from, to) / f64::from(to - from) * 1e3).clamp(0.0, u64::MAX as f64) as u64;
        (per_slot > 0).then_some((per_slot, to))
    };
    allotment.grow_by_gain(next);
    allotment.shares
}

#[cfg(test)]
mod tests {
    use super::super::{ClassView, JobView, WorkLeft};
    use super::*;

    fn job(minutes: u64, held: u16) -> JobView {
        let left = WorkLeft::Known { ms: minutes * 60_000 };
        JobView { min: 1, max: 8, held, class: (held > 0).then_some(0), left, ..JobView::default() }
    }

    fn slots(capacity: u32, jobs: &[JobView]) -> Vec<u16> {
        let classes = vec![ClassView { capacity, declared: capacity, ..ClassView::default() }];
        let plan = OptimusLike.plan(&View { classes, jobs: jobs.to_vec(), ..View::default() });
        plan.shares.iter().map(|share| share.slots).collect()
    }

    #[test]
    fn the_longest_gains_most_time_by_another_slot() {
        assert_eq!(slots(5, &[job(10, 0), job(100, 0)]), [1, 4]);
        assert_eq!(slots(2, &[job(100, 2), job(10, 0), job(20, 0)]), [0, 1, 1], "but the shortest begin first");
    }
}
