//! What tenants' quotas guarantee, and which jobs a plan keeps from it. Under `antman` (Xiao et al., OSDI 2020, §3.3) nobody is, and that is a test; other
//! policies know of no quotas, and here is seen what that costs. Nothing is decided here, and policies do not hear of it.

use crate::setup::Setup;
use controller_core::policy::{Plan, View};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Who has how many slots guaranteed.
#[derive(Debug)]
pub(crate) struct Quotas {
    /// Of each tenant that has a quota.
    slots: Vec<u32>,
    /// The place of its tenant, by a job's place in the setup; none of one whose tenant has no quota.
    of_job: Vec<Option<usize>>,
}

impl Quotas {
    /// Of a setup.
    pub fn of(setup: &Setup) -> Self {
        let names: Vec<String> = setup.quotas.keys().map(ToString::to_string).collect();
        let place = |tenant: &String| names.iter().position(|name| name == tenant);
        let of_job = setup.jobs.iter().map(|job| job.tenant.as_ref().and_then(place)).collect();
        Self { slots: setup.quotas.values().copied().collect(), of_job }
    }

    /// Jobs, by their place in the setup, that a plan leaves waiting though all that they ask for fits into what their tenant's quota leaves beside its jobs that
    /// have slots, and into the slots that there are beside those that quotas keep for others: for jobs that have slots, and for those that come before.
    pub fn denied(&self, view: &View, plan: &Plan) -> BTreeSet<usize> {
        let mut denied = BTreeSet::new();
        if self.slots.is_empty() {
            return denied;
        }
        let Left { mut quota, mut room } = self.left(view, plan);
        let mut is_closed = vec![false; quota.len()];
        let mut waiting: Vec<usize> = (0..view.jobs.len()).filter(|&job| waits(view, plan, job)).collect();
        waiting.sort_by_key(|&job| (Reverse(view.jobs[job].priority), job));
        for job in waiting {
            // A tenant's jobs go in order, and one that asks for more than all of its quota keeps nothing from others.
            let Some(of) = self.tenant(view, job).filter(|of| !is_closed[*of]) else { continue };
            let asked = u32::from(view.jobs[job].asked());
            let suits = |class: &usize| view.suits(job, *class);
            let roomiest = (0..room.len()).filter(suits).max_by_key(|&class| (room[class], Reverse(class)));
            let class = roomiest.filter(|&class| room[class] >= asked);
            is_closed[of] = class.is_none() || asked > quota[of];
            if !is_closed[of] {
                denied.insert(number(view, job));
                quota[of] -= asked;
            }
            match class {
                _ if asked > self.slots[of] => {}
                Some(class) => room[class] -= asked,
                // What there is, is reserved for it.
                None => (0..room.len()).filter(suits).for_each(|class| room[class] = 0),
            }
        }
        denied
    }

    /// What is left beside jobs of tenants that have slots.
    fn left(&self, view: &View, plan: &Plan) -> Left {
        let mut quota = self.slots.clone();
        // By tenant and class: what its jobs ask for.
        let mut kept = vec![vec![0; view.classes.len()]; quota.len()];
        for job in (0..view.jobs.len()).filter(|&job| !waits(view, plan, job)) {
            let Some(of) = self.tenant(view, job) else { continue };
            let (share, asked) = (plan.shares[job], u32::from(view.jobs[job].asked()));
            kept[of][share.class] += asked.saturating_sub(u32::from(share.slots));
            plan.by_class(job).iter().for_each(|part| kept[of][part.class] += u32::from(part.slots));
            quota[of] = quota[of].saturating_sub(asked);
        }
        let kept =
            |class: usize| kept.iter().zip(&self.slots).map(|(kept, quota)| kept[class].min(*quota)).sum::<u32>();
        let own = view.classes.iter().map(|class| if class.guest { 0 } else { class.capacity });
        Left { quota, room: own.zip(0..).map(|(slots, class)| slots.saturating_sub(kept(class))).collect() }
    }

    /// Whose a job is, if its tenant has a quota that goes for it.
    fn tenant(&self, view: &View, job: usize) -> Option<usize> {
        let of = self.of_job.get(number(view, job)).copied().flatten();
        of.filter(|_| view.jobs[job].priority >= 0)
    }
}

/// Slots of each tenant's quota, and of each class.
struct Left {
    quota: Vec<u32>,
    room: Vec<u32>,
}

/// The place in the setup of a job of a view.
fn number(view: &View, job: usize) -> usize {
    view.jobs[job].arrival as usize
}

/// Whether a plan gives a job no slot of its own.
fn waits(view: &View, plan: &Plan, job: usize) -> bool {
    let share = plan.shares[job];
    share.slots == 0 || view.classes[share.class].guest
}
