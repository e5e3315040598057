//! `elastic-tiresias`: [`super::tiresias`], whose jobs give way and grow (Amoeba §6.2, rules R1 and R2).
//!
//! - *R1*: "if the number of pending jobs exceeds N", jobs outside queue 0 run on ⌊p/2⌋ of the p slots that they asked for, one at least.
//! - *R2*: "if there is no pending job and there are idle GPUs", these go one after the other to whoever gains most by the next: the largest
//!   (t(p+1) − t(p)) / t(p), until nobody gains.
//! - Both make one plan: a job that R1 makes smaller and R2 larger again is resized once, or not at all.
//!
//! What the paper leaves open. *p* is what a job asked for, as under Tiresias; R2 gives back what R1 or a fleet took, and more where a job can use more. *N* ([`PENDING_MAX`]). *With 1 to N jobs pending* all are on p. *Pending* are those that would find no room if
//! all were on p, so that what R1 has made of them does not undo R1. *The next slot*: where W workers cannot be spread evenly over p+1 slots
//! these are no faster than p, so a job's next size is the next one that shortens its step, and its gain is that per slot.

use super::allotment::{Allotment, settled};
use super::tiresias::{Queues, Tiresias, requested, walk};
use super::{Packing, Plan, Policy, Share, View};

/// *N* of R1. The paper prints none; ten jobs are more than come between two plans, and few beside those that run on a cluster of
/// hundreds of slots.
pub const PENDING_MAX: usize = 10;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElasticTiresias {
    queues: Tiresias,
    pending_max: usize,
}

impl Default for ElasticTiresias {
    fn default() -> Self {
        Self { queues: Tiresias::default(), pending_max: PENDING_MAX }
    }
}

impl ElasticTiresias {
    /// With other queues, and another *N*.
    #[must_use]
    pub fn new(queues: Tiresias, pending_max: usize) -> Self {
        Self { queues, pending_max }
    }

    fn shares(&self, view: &View, queues: &Queues) -> Vec<Share> {
        let asked: Vec<u16> = view.places().map(|job| requested(view, job)).collect();
        // All on what they asked for, as if nobody had been resized.
        let unsized_view = View { jobs: view.jobs.iter().map(whole).collect(), ..view.clone() };
        let (full, _) = walk(&unsized_view, &queues.order, |job| asked[job], |_| None);
        let is_pending = |job: &usize| full[*job].slots == 0 && could_run(view, *job);
        let presses = (0..full.len()).filter(is_pending).count() > self.pending_max;
        let size = |job: usize| match queues.of[job] {
            0 => asked[job],
            _ if presses => (asked[job] / 2).max(view.jobs[job].min),
            _ => asked[job],
        };
        // Where there was room for a whole job, so that the next plan finds it there too.
        let bound = |job: usize| (full[job].slots > 0).then_some(full[job].class);
        let (shares, pool) = walk(view, &queues.order, size, bound);
        let none_pending = (0..shares.len()).all(|job| shares[job].slots > 0 || !could_run(view, job));
        if none_pending { grown(view, shares, pool) } else { shares }
    }
}

/// A job as if it had never been resized: on all it asked for where it is on any.
fn whole(job: &super::JobView) -> super::JobView {
    super::JobView { held: if job.held > 0 { job.asked() } else { 0 }, ..*job }
}

/// Whether fleets declare enough for its fewest slots.
fn could_run(view: &View, job: usize) -> bool {
    let fits =
        |class: &usize| view.suits(job, *class) && view.classes[*class].declared >= u32::from(view.jobs[job].min);
    (0..view.classes.len()).any(|class| fits(&class))
}

/// Rule R2: who gains most from another slot gets it, as long as there are any.
fn grown(view: &View, shares: Vec<Share>, pool: Vec<u32>) -> Vec<Share> {
    let mut allotment = Allotment::of(view, shares, pool);
    allotment.grow_by_gain(|job, from| {
        let speeds = view.speeds(job);
        let to = speeds.next_size(from)?;
        let gain = (speeds.ratio(from, to) - 1.0) / f64::from(to - from);
        // Millionths, so that equal gains are equal.
        (gain > 0.0).then_some(((gain * 1e6) as u64, to))
    });
    allotment.shares
}

impl Policy for ElasticTiresias {
    fn name(&self) -> &'static str {
        "elastic-tiresias"
    }

    fn plan(&self, view: &View) -> Plan {
        let queues = self.queues.queues(view);
        // Half of what a job asked for is less on a kind of slots of which there are fewer than that, once it is on one.
        let shares = settled(view, |view| self.shares(view, &queues));
        let wake_in_ms = self.queues.wake_in_ms(view, &queues, &shares);
        Plan { shares, moves: queues.moves, wake_in_ms, ..Plan::default() }
    }

    fn packing(&self) -> Packing {
        Packing::WorstFit
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{ClassView, JobView, ServiceView};
    use super::*;

    fn job(max: u16, held: u16, queue: u8) -> JobView {
        let service = ServiceView { queue, attained_slot_ms: u64::from(queue) * 20_000_000, ..ServiceView::default() };
        let class = (held > 0).then_some(0);
        JobView { min: 1, max, held, class, numeric: class, settled: true, service, ..JobView::default() }
    }

    fn slots(pending_max: usize, capacity: u32, jobs: &[JobView]) -> Vec<u16> {
        let classes = vec![ClassView { capacity, declared: capacity, ..ClassView::default() }];
        let policy = ElasticTiresias::new(Tiresias::default(), pending_max);
        policy
            .plan(&View { classes, jobs: jobs.to_vec(), ..View::default() })
            .shares
            .iter()
            .map(|share| share.slots)
            .collect()
    }

    #[test]
    fn many_pending_jobs_halve_all_that_are_not_in_the_first_queue() {
        // At full size the first finds no room. With N = 0 that is too much: the old ones go to ⌊8/2⌋ and ⌊5/2⌋.
        let jobs = [job(8, 8, 1), job(5, 5, 1), job(4, 0, 0), job(4, 0, 0)];
        assert_eq!(slots(0, 14, &jobs), [4, 2, 4, 4]);
        // With N = 1 it is as under Tiresias: the first queue first, then who fits.
        assert_eq!(slots(1, 14, &jobs), [0, 5, 4, 4]);
        assert_eq!(slots(0, 5, &[job(1, 1, 1), job(3, 0, 0), job(2, 2, 1)]), [1, 3, 1], "one slot is the least");
    }

    #[test]
    fn who_was_halved_is_whole_again_when_nobody_is_pending() {
        assert_eq!(slots(10, 16, &[job(8, 4, 1), job(4, 2, 1)]), [8, 4]);
    }

    #[test]
    fn what_makes_a_job_smaller_and_larger_is_one_change() {
        // R1 halves both old ones, nobody is pending then, and of the three idle slots R2 gives two to the second, which has them already;
        // the first would need four more to be faster.
        let jobs = [job(8, 8, 1), job(4, 4, 1), job(4, 0, 0)];
        assert_eq!(slots(0, 13, &jobs), [4, 4, 4]);
        assert_eq!(slots(1, 13, &jobs), [8, 0, 4]);
    }

    #[test]
    fn what_is_idle_goes_to_whoever_gains_most() {
        // R1 makes three and two of six and four. Of the three idle slots the second job gains 45 % by each of two, the first 30 % by each of
        // three.
        let jobs = [job(6, 6, 1), job(4, 4, 1), job(3, 0, 0)];
        assert_eq!(slots(0, 11, &jobs), [3, 4, 3]);
    }
}
