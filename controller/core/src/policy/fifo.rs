//! `fifo`: gangs of fixed size in order of priority and arrival (the YARN capacity scheduler as AntMan §5.2 and EasyScale §5.2
//! compare with it; no job is preempted for another).
//!
//! A job's size is what it asked for. It waits until so many slots are free, and nobody overtakes it, unless that many could never
//! be had. It is resized only by fleets: what they take back it does without, and regains before later jobs start.

use super::{Gangs, Plan, Policy, Share, View, service_order};

/// See the module.
pub struct Fifo;

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn plan(&self, view: &View) -> Plan {
        let mut gangs = Gangs::new(view);
        let mut shares = vec![Share::default(); view.jobs.len()];
        // Who runs keeps what it has, whatever waits.
        let running = |job: usize| view.jobs[job].class.filter(|_| view.jobs[job].held > 0);
        for (job, share) in view.effort.each(shares.iter_mut().enumerate()) {
            if let Some(class) = running(job).filter(|&class| gangs.keep(class, view.jobs[job].held)) {
                *share = Share { class, slots: view.jobs[job].held, waits: None };
            }
        }
        let mut order = service_order(view);
        order.sort_by_key(|&job| (std::cmp::Reverse(view.jobs[job].priority), job));
        for job in view.effort.each(order.into_iter()) {
            let share = &mut shares[job];
            if share.slots == 0 {
                *share = gangs.start(job, view.jobs[job].asked());
            } else {
                let regained =
                    u32::from(view.jobs[job].asked().saturating_sub(share.slots)).min(gangs.pool[share.class]);
                gangs.pool[share.class] -= regained;
                share.slots += regained as u16;
            }
        }
        Plan { shares, ..Plan::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClassView, JobView, Wait};
    use super::*;

    fn job(max: u16, held: u16, priority: i32) -> JobView {
        JobView { min: 1, max, held, priority, class: (held > 0).then_some(0), settled: true, ..JobView::default() }
    }

    fn plan(capacity: u32, declared: u32, jobs: &[JobView]) -> Vec<u16> {
        let view = View {
            classes: vec![ClassView { capacity, declared, ..ClassView::default() }],
            jobs: jobs.to_vec(),
            ..View::default()
        };
        Fifo.plan(&view).shares.iter().map(|share| share.slots).collect()
    }

    #[test]
    fn gangs_start_in_order_and_are_not_overtaken() {
        assert_eq!(plan(8, 8, &[job(4, 0, 0), job(6, 0, 0), job(2, 0, 0)]), [4, 0, 0]);
        assert_eq!(plan(8, 8, &[job(4, 0, 0), job(6, 0, 0), job(2, 0, 9)]), [4, 0, 2]);
        // What could never be had blocks nobody.
        assert_eq!(plan(8, 8, &[job(4, 0, 0), job(9, 0, 0), job(2, 0, 0)]), [4, 0, 2]);
        // But what is only away for a while does.
        assert_eq!(plan(8, 9, &[job(4, 0, 0), job(9, 0, 0), job(2, 0, 0)]), [4, 0, 0]);
    }

    #[test]
    fn what_a_fleet_took_is_regained_before_later_jobs_start() {
        assert_eq!(plan(4, 4, &[job(4, 2, 0), job(2, 0, 0)]), [4, 0]);
        assert_eq!(plan(3, 4, &[job(4, 2, 0), job(2, 0, 0)]), [3, 0]);
    }

    #[test]
    fn who_waits_is_told_for_what() {
        let view = View {
            classes: vec![ClassView { capacity: 3, declared: 8, ..ClassView::default() }],
            jobs: vec![job(4, 0, 0), job(1, 0, 0), job(1, 0, 0)],
            ..View::default()
        };
        let waits: Vec<_> = Fifo.plan(&view).shares.iter().map(|share| share.waits).collect();
        assert_eq!(waits, [Some(Wait::Slots(1)), Some(Wait::Behind(0)), Some(Wait::Behind(1))]);
    }
}
