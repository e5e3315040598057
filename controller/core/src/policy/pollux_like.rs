//! `pollux-like`: speed-ups shared fairly (after Pollux; Qiao et al., OSDI 2021, §4.2, with the batch size fixed; Sia has the same aim).
//!
//! A job's speed-up is its speed as a multiple of that on a fair share, slots ÷ jobs. What is maximized is their power mean with exponent −1 (the
//! paper's p): everybody begins with its fewest slots in the order of arrival, and each further slot goes to the largest fall of fair speed ÷ speed. Work that is left plays no part.
//!
//! What differs. Pollux searches with a genetic algorithm and changes batch sizes and learning rates on the way; here sums of falling gains are climbed step by step, which is
//! exact for curves that bend, and a step stays the same step. Its penalty for restarts is left out, like every charge in the other baselines.

use super::allotment::ordered;
use super::optimus_like::by_gain;
use super::{Packing, Plan, Policy, View};

/// See the module.
pub struct PolluxLike;

/// A fair share's speed ÷ a job's is counted in these parts, so that gains of a thousandth are told apart.
const PARTS: f64 = 1e6;

impl Policy for PolluxLike {
    fn name(&self) -> &'static str {
        "pollux-like"
    }

    fn plan(&self, view: &View) -> Plan {
        let slots: u64 = view.classes.iter().map(|class| u64::from(class.capacity)).sum();
        let fair = (slots / (view.jobs.len() as u64).max(1)).clamp(1, u64::from(u16::MAX)) as u16;
        let shares = by_gain(view, &ordered(view, |_| ()), |job, from, to| {
            let (of, speeds) = (&view.jobs[job], view.speeds(job));
            let fair = speeds.speed(fair.clamp(of.min, of.max.max(of.min)));
            PARTS * (fair / speeds.speed(from).max(f64::MIN_POSITIVE) - fair / speeds.speed(to).max(f64::MIN_POSITIVE))
        });
        Plan { shares, ..Plan::default() }
    }

    fn packing(&self) -> Packing {
        Packing::WorstFit
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::speeds::SpeedCurve;
    use super::super::{ClassView, JobView};
    use super::*;

    #[test]
    fn who_uses_slots_badly_gets_fewer_but_everybody_gets_some() {
        let curve = |speeds: [u64; 4]| SpeedCurve::new((1..).zip(speeds.map(|speed| speed * 1_000)).collect()).unwrap();
        let curves = vec![curve([100, 200, 300, 400]), curve([100, 130, 140, 145])];
        let job = |curve| JobView { min: 1, max: 4, curve: Some(curve), ..JobView::default() };
        let classes = |capacity| vec![ClassView { capacity, declared: capacity, ..ClassView::default() }];
        let slots = |capacity, jobs: &[JobView]| {
            let view =
                View { classes: classes(capacity), jobs: jobs.to_vec(), curves: curves.clone(), ..View::default() };
            PolluxLike.plan(&view).shares.iter().map(|share| share.slots).collect::<Vec<_>>()
        };
        assert_eq!(slots(4, &[job(0), job(0)]), [2, 2]);
        assert_eq!(slots(6, &[job(0), job(1)]), [4, 2]);
        assert_eq!(slots(2, &[job(1), job(1), job(0)]), [1, 1, 0], "who came first");
    }
}
