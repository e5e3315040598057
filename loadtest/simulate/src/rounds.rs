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
                    plan.parts.retain(|part| part.job != index);
                    plan.parts.extend(view.held_by_class(index));
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
    use controller_core::policy::{ClassView, JobView, ServiceView};
    use controller_core::policy_by_name;

    #[test]
    fn rounds_are_counted_from_the_beginning() {
        let after = |ms| next(BEGIN.plus_ms(ms), 60_000).since_ms(BEGIN);
        assert_eq!([0, 1, 60_000, 60_001].map(after), [0, 60_000, 60_000, 120_000]);
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
