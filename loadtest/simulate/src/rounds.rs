//! Plans in rounds, as simulators of the field make them: every so often, for all that is there by then, and those who give way are gone
//! before anybody is placed.
//!
//! The policy is the real one. The core starts jobs on what is free while others still leave; in a round nobody starts before they have
//! left, so the policy is asked twice within the same moment, and first only those who give way are heard of.

use crate::world::BEGIN;
use controller_core::Policy;
use controller_core::policy::{Plan, Share, View, Wait, Wraps};
use events_schema::TimeMs;
use events_schema::fact::Fact;

/// The first round at or after a moment.
pub(crate) fn next(at: TimeMs, every_ms: u64) -> TimeMs {
    BEGIN.plus_ms(at.since_ms(BEGIN).div_ceil(every_ms) * every_ms)
}

/// Whether a job is left fewer slots by a plan.
pub(crate) fn gives_way(fact: &Fact) -> bool {
    matches!(fact, Fact::PlanAdopted { slots, from, .. } if from.is_some_and(|from| slots.len() < from as usize))
}

/// A policy of which nobody hears who gets more, as long as it has others give way.
pub(crate) struct InTurn<'a>(pub &'a dyn Policy);

impl Wraps for InTurn<'_> {
    fn inner(&self) -> &dyn Policy {
        self.0
    }

    fn wrapped_plan(&self, view: &View) -> Plan {
        let mut plan = self.0.plan(view);
        let lets_go = |plan: &Plan, job: usize| {
            (0..view.classes.len()).any(|class| plan.given_of(job, class) < view.held_of(job, class))
        };
        if (0..view.jobs.len()).any(|job| lets_go(&plan, job)) {
            for (index, job) in view.jobs.iter().enumerate() {
                if plan.shares[index].slots > job.held && !lets_go(&plan, index) {
                    let share = plan.shares[index];
                    let waits = (job.held == 0).then_some(Wait::Slots(u32::from(share.slots)));
                    plan.shares[index] = Share { class: job.class.unwrap_or(share.class), slots: job.held, waits };
                    let at = |is_before: fn(usize, usize) -> bool| {
                        plan.parts.partition_point(|part| is_before(part.job, index))
                    };
                    let its_own = at(|job, index| job < index)..at(|job, index| job <= index);
                    plan.parts.splice(its_own, view.held_by_class(index));
                }
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use controller_core::policy::{ClassView, JobView, Part, ServiceView};
    use controller_core::policy_by_name;

    #[test]
    fn rounds_are_counted_from_the_beginning() {
        let after = |ms| next(BEGIN.plus_ms(ms), 60_000).since_ms(BEGIN);
        assert_eq!([0, 1, 60_000, 60_001].map(after), [0, 60_000, 60_000, 120_000]);
    }

    /// Plans this, whatever there is.
    struct Fixed(Plan);

    impl Policy for Fixed {
        fn name(&self) -> &'static str {
            "fixed"
        }

        fn plan(&self, _: &View) -> Plan {
            self.0.clone()
        }
    }

    /// They were put at the end, where whoever looks for a job's parts did not find them: the job was taken to let go of what it has of other classes.
    #[test]
    fn what_a_job_keeps_stands_in_its_place() {
        let job = |held| JobView { min: 1, max: 4, held, class: Some(0), ..JobView::default() };
        let class = || ClassView { capacity: 4, declared: 4, ..ClassView::default() };
        let view = View { classes: vec![class(), class()], jobs: vec![job(1), job(2), job(2)], ..View::default() };
        let share = |slots| Share { class: 0, slots, waits: None };
        let part = |job, class, slots| Part { job, class, slots };
        // The first grows onto another class, the second gives way, and the third has what it had.
        let parts = vec![part(0, 0, 1), part(0, 1, 1), part(2, 0, 2)];
        let plan = Plan { shares: vec![share(2), share(1), share(2)], parts, ..Plan::default() };
        let plan = InTurn(&Fixed(plan)).plan(&view);
        assert_eq!(plan.parts, [part(0, 0, 1), part(2, 0, 2)]);
    }

    #[test]
    fn whoever_gives_way_goes_first() {
        let tiresias = policy_by_name("tiresias").unwrap();
        let job = |held, queue| JobView {
            min: 4,
            max: 4,
            held,
            class: (held > 0).then_some(0),
            service: ServiceView { queue, ..ServiceView::default() },
            ..JobView::default()
        };
        let sizes = |jobs: &[JobView]| {
            let classes = vec![ClassView { capacity: 4, declared: 4, ..ClassView::default() }];
            let plan = InTurn(&*tiresias).plan(&View { classes, jobs: jobs.to_vec(), ..View::default() });
            plan.shares.iter().map(|share| share.slots).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[job(4, 1), job(0, 0)]), [0, 0]);
        assert_eq!(sizes(&[job(0, 1), job(0, 0)]), [0, 4]);
    }
}
