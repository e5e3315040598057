//! `gandiva-like`: gangs of fixed size in order of arrival, packed onto slots of others where none are idle (Gandiva; Xiao et al., OSDI 2018, as AntMan §5.2 compares with it:
//! "the packing strategy of Gandiva […], which greedily schedules jobs to the GPUs with lowest GPU utilization and sufficient GPU memory").
//!
//! A job has what it asked for, or nothing. It begins on idle slots, which nobody uses anything of; if there are not that many, on guest slots beside the least busy hosts. Nobody is
//! asked whether that is worth it, any job's slots are shared, no tenant counts, and nobody is to be protected. Nobody overtakes who waits, as under `fifo`, so that what differs from that is packing
//! alone. Who runs stays where it is.
//!
//! What differs. Two jobs share a slot at most. Gandiva's migration and time-slicing are left out, as in that comparison; memory bounds nobody. A slot whose host has gone counts as idle,
//! also where its guest is still there. Live the agents protect hosts whatever the policy is, so what packing costs is seen in the simulator alone.

use super::{Gangs, Plan, Policy, Share, View};
use std::cmp::Reverse;

/// The queue of all jobs.
const EVERYBODY: u8 = 0;

/// See the module.
pub struct GandivaLike;

impl Policy for GandivaLike {
    fn name(&self) -> &'static str {
        "gandiva-like"
    }

    fn plan(&self, view: &View) -> Plan {
        let mut gangs = Gangs::new(view);
        let mut shares = vec![Share::default(); view.jobs.len()];
        for (share, job) in shares.iter_mut().zip(&view.jobs) {
            let runs = job.class.filter(|_| job.held > 0);
            if let Some(class) = runs.filter(|&class| gangs.keep(class, job.held)) {
                *share = Share { class, slots: job.held, waits: None };
            }
        }
        let mut order: Vec<usize> = (0..view.jobs.len()).collect();
        order.sort_by_key(|&job| (Reverse(view.jobs[job].priority), job));
        for job in order {
            let (share, asked) = (&mut shares[job], view.jobs[job].asked());
            if share.slots == 0 {
                *share = packed(view, &mut gangs, job).unwrap_or_else(|| gangs.start(job, asked));
            } else {
                // What a fleet took.
                let regained = u32::from(asked.saturating_sub(share.slots)).min(gangs.pool[share.class]);
                gangs.pool[share.class] -= regained;
                share.slots += regained as u16;
            }
        }
        Plan { shares, ..Plan::default() }
    }

    fn shared_queue(&self) -> Option<u8> {
        Some(EVERYBODY)
    }
}

/// All that a job asked for on guest slots, where it waits, nobody is before it, and it finds no idle slots.
fn packed(view: &View, gangs: &mut Gangs<'_>, job: usize) -> Option<Share> {
    let (known, slots) = (&view.jobs[job], view.jobs[job].asked());
    let has_room = view.suiting(job).any(|class| gangs.pool[class] >= u32::from(slots));
    let is_next = known.held == 0 && view.suiting(job).all(|class| gangs.is_open(class));
    let class = view.freest(job, &gangs.pool, slots).filter(|_| is_next && !has_room)?;
    gangs.keep(class, slots).then_some(Share { class, slots, waits: None })
}

#[cfg(test)]
mod tests {
    use super::super::{ClassView, JobView, Wait};
    use super::*;

    fn job(asked: u16, held: u16, class: usize) -> JobView {
        let class = (held > 0).then_some(class);
        let numeric = class.map(|_| 0);
        JobView { min: 1, max: asked, held, class, numeric, settled: true, ..JobView::default() }
    }

    /// Slots of a kind, and guest slots of two kinds beside others of them, the second ones beside hosts that are busier.
    fn planned(own: u32, guests: [u32; 2], jobs: &[JobView]) -> Vec<(usize, u16)> {
        let class = |capacity, guest, busy_percent| ClassView {
            capacity,
            declared: 8,
            guest,
            busy_percent,
            ..ClassView::default()
        };
        let classes = vec![class(own, false, 0), class(guests[0], true, 30), class(guests[1], true, 95)];
        let view = View { classes, jobs: jobs.to_vec(), ..View::default() };
        GandivaLike.plan(&view).shares.iter().map(|share| (share.class, share.slots)).collect()
    }

    #[test]
    fn who_finds_no_idle_slots_is_packed_beside_the_least_busy_and_all_of_it() {
        assert_eq!(planned(4, [0, 8], &[job(4, 0, 0), job(4, 0, 0)]), [(0, 4), (2, 4)], "however busy they are");
        assert_eq!(planned(4, [4, 8], &[job(4, 4, 0), job(4, 0, 0)]), [(0, 4), (1, 4)]);
        assert_eq!(planned(4, [4, 8], &[job(4, 4, 0), job(6, 0, 0)]), [(0, 4), (2, 6)]);
        assert_eq!(planned(4, [2, 2], &[job(4, 4, 0), job(4, 0, 0)])[1].1, 0, "nor in part");
    }

    #[test]
    fn nobody_overtakes_who_waits_and_who_runs_stays() {
        let jobs = [job(4, 4, 1), job(6, 0, 0), job(2, 0, 0)];
        assert_eq!(planned(4, [4, 4], &jobs), [(1, 4), (0, 0), (0, 0)], "its host has gone, and it is where it was");
        let view = View {
            classes: vec![ClassView { capacity: 4, declared: 8, ..ClassView::default() }],
            jobs: vec![job(6, 0, 0), job(2, 0, 0)],
            ..View::default()
        };
        let waits: Vec<_> = GandivaLike.plan(&view).shares.iter().map(|share| share.waits).collect();
        assert_eq!(waits, [Some(Wait::Slots(2)), Some(Wait::Behind(0))]);
    }
}
