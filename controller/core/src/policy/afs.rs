//! `afs`: slots one after the other to whom it shortens the mean completion time most, by pairs (elastic-share, AFS-L; Hwang et al., NSDI 2021, §4).
//!
//! Everybody begins with its fewest slots, the shortest first. Every further one goes to the job that wins against all others one by one: of
//! a shorter job a and a longer one b, at their present sizes, a gets it if (h_a(p+1) − h_a(p)) / h_a(p) > (h_b(p+1) − h_b(p)) / h_b(p+1),
//! h being their speeds; else b. (What a gains counts more: after its end b has the slots of both.)
//!
//! What the paper leaves open. *Which is shorter*: what it takes at its present size. *Plateaus*: where one more slot is no faster, the next useful size, per slot. *Unknown work*: as
//! much as a job has had (`work.rs`); the paper's AFS-P has all jobs unknown take turns instead. No move is charged, as there.

use super::allotment::{Allotment, ordered};
use super::srtf::wake_in_ms;
use super::work::expected_ms;
use super::{Packing, Plan, Policy, View};

/// See the module.
pub struct Afs;

/// A job that may grow.
#[derive(Debug, Clone, Copy)]
struct Contender {
    job: usize,
    /// What it takes at its present size, in ms.
    takes_ms: f64,
    to: u16,
    /// What the next slot adds, as a share of the speed before and of the speed after it.
    of_before: f64,
    of_after: f64,
}

impl Policy for Afs {
    fn name(&self) -> &'static str {
        "afs"
    }

    fn plan(&self, view: &View) -> Plan {
        let mut allotment = Allotment::new(view);
        for job in ordered(view, |job| expected_ms(&view.jobs[job])) {
            allotment.start(job, view.jobs[job].min, view.jobs[job].min);
        }
        for class in 0..view.classes.len() {
            let here = |job: &usize| allotment.shares[*job].slots > 0 && allotment.shares[*job].class == class;
            let running: Vec<usize> = (0..view.jobs.len()).filter(here).collect();
            let begins = |&job: &usize| contender(view, job, allotment.shares[job].slots);
            let mut contenders: Vec<Contender> = running.iter().filter_map(begins).collect();
            while let Some(place) = first(&contenders) {
                let chosen = contenders[place];
                let next = allotment.grow(chosen.job, chosen.to).then(|| contender(view, chosen.job, chosen.to));
                match next.flatten() {
                    Some(next) => contenders[place] = next,
                    // It has all that it can use, or there is no room for its next size.
                    None => drop(contenders.remove(place)),
                }
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

fn contender(view: &View, job: usize, slots: u16) -> Option<Contender> {
    let (of, speeds) = (&view.jobs[job], view.speeds(job));
    let to = speeds.next_size(slots).filter(|&to| to <= of.max)?;
    let (before, after, more) = (speeds.speed(slots), speeds.speed(to), f64::from(to - slots));
    let takes_ms = expected_ms(of) as f64 * speeds.speed(of.asked()) / before.max(f64::MIN_POSITIVE);
    let gain = (after - before) / more;
    Some(Contender { job, takes_ms, to, of_before: gain / before.max(f64::MIN_POSITIVE), of_after: gain / after })
}

/// The place of the contender that wins against one after the other.
fn first(contenders: &[Contender]) -> Option<usize> {
    let wins = |challenger: &Contender, holder: &Contender| {
        if challenger.takes_ms < holder.takes_ms {
            holder.of_after < challenger.of_before
        } else {
            challenger.of_after >= holder.of_before
        }
    };
    let better = |best: usize, next: usize| if wins(&contenders[next], &contenders[best]) { next } else { best };
    (0..contenders.len()).reduce(better)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::speeds::SpeedCurve;
    use super::super::{ClassView, JobView, WorkLeft};
    use super::*;

    fn job(minutes: u64, curve: usize) -> JobView {
        let left = WorkLeft::Known { ms: minutes * 60_000 };
        JobView { min: 1, max: 4, left, curve: Some(curve), ..JobView::default() }
    }

    fn slots(capacity: u32, jobs: &[JobView]) -> Vec<u16> {
        let classes = vec![ClassView { capacity, declared: capacity, ..ClassView::default() }];
        let curve = |speeds: [u64; 4]| SpeedCurve::new((1..).zip(speeds.map(|speed| speed * 1_000)).collect()).unwrap();
        let curves = vec![curve([100, 200, 300, 400]), curve([100, 130, 140, 145])];
        let plan = Afs.plan(&View { classes, jobs: jobs.to_vec(), curves, ..View::default() });
        plan.shares.iter().map(|share| share.slots).collect()
    }

    #[test]
    fn with_straight_curves_the_shorter_one_is_a_step_ahead() {
        assert_eq!(slots(3, &[job(100, 0), job(10, 0)]), [1, 2]);
        // From two slots on it gains as much of what it has as the longer one would of what it then had.
        assert_eq!(slots(4, &[job(100, 0), job(10, 0)]), [2, 2]);
        assert_eq!(slots(5, &[job(100, 0), job(10, 0)]), [2, 3]);
    }

    #[test]
    fn who_uses_slots_badly_leaves_them_to_who_uses_them_well() {
        assert_eq!(slots(4, &[job(100, 0), job(10, 1)]), [3, 1]);
        assert_eq!(
            slots(5, &[job(100, 0), job(10, 1)]),
            [3, 2],
            "a quarter for the longer is less than three tenths for the shorter"
        );
        assert_eq!(slots(2, &[job(100, 0), job(10, 1), job(1, 1)]), [0, 1, 1], "everybody begins, the shortest first");
    }
}
