//! What a live run says of costs: how long processes start, come together and end, how much longer steps take than their gradients, and what a
//! job's end takes. The simulated run beside it is told these.

use crate::costs::Costs;
use crate::curve::Curve;
use crate::setup::{Job, Setup};
use serde::Serialize;

/// Fewest memberships by which a line is laid.
const POINTS_MIN: usize = 4;

/// Times that were seen, in milliseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Moves {
    starts: Mean,
    links: Mean,
    restores: Mean,
    switches: Mean,
    growths: Mean,
    exits: Mean,
    parks: Mean,
    /// A job, its members, and how long one of its steps usually takes, in µs.
    steps: Vec<(usize, u64, u64)>,
    stretches: Vec<Stretch>,
    last_stretches: Vec<Stretch>,
}

/// Steps of one membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub job: usize,
    pub members: usize,
    pub steps: u64,
    pub ms: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        (self.sum, self.count) = (self.sum + value, self.count + 1);
    }

    fn get(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }

    fn ms(self, otherwise: u64) -> u64 {
        self.get().map_or(otherwise, |mean| mean.max(0.0).round() as u64)
    }
}

/// How much longer a step takes than its gradients, in milliseconds: alone, and where members come together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct StepOverhead {
    /// On one slot.
    pub alone_ms: f64,
    /// On several.
    pub together_ms: f64,
}

/// How long the gradient of one logical worker takes, in whole milliseconds, so that a job without tables lasts what its recording says.
#[must_use]
pub fn gradient_ms(job: &Job) -> u32 {
    // Alone it computes all of them, one after the other.
    let alone_ms = job.takes_ms(1, 1.0).unwrap_or(0.0) / job.total();
    ((alone_ms / f64::from(job.spec.workers.max)).round() as u32).max(1)
}

/// What a step takes at least: the gradients of the fullest member.
fn nominal_ms(job: &Job, members: u64) -> f64 {
    let fullest = u64::from(job.spec.workers.max).div_ceil(members.max(1));
    f64::from(gradient_ms(job)) * fullest as f64
}

impl Moves {
    pub(crate) fn started(&mut self, ms: Option<u64>) {
        ms.into_iter().for_each(|ms| self.starts.add(ms as f64));
    }

    pub(crate) fn linked(&mut self, ms: u64) {
        self.links.add(ms as f64);
    }

    pub(crate) fn restored(&mut self, ms: u64) {
        self.restores.add(ms as f64);
    }

    pub(crate) fn switched(&mut self, ms: u64) {
        self.switches.add(ms as f64);
    }

    pub(crate) fn grew(&mut self, ms: u64) {
        self.growths.add(ms as f64);
    }

    pub(crate) fn exited(&mut self, ms: u64) {
        self.exits.add(ms as f64);
    }

    pub(crate) fn parked(&mut self, ms: u64) {
        self.parks.add(ms as f64);
    }

    pub(crate) fn step(&mut self, job: usize, members: u64, step_us: u64) {
        self.steps.push((job, members, step_us));
    }

    pub(crate) fn stretch(&mut self, stretch: Stretch) {
        self.stretches.push(stretch);
    }

    pub(crate) fn last_stretch(&mut self, stretch: Stretch) {
        self.last_stretches.push(stretch);
    }

    /// How much longer steps took than their gradients: by the memberships in which jobs ended, of which most was seen, where those tell it apart from
    /// what an end takes; else by the usual steps that were told, or by other memberships.
    #[must_use]
    pub fn step_overhead(&self, jobs: &[Job]) -> StepOverhead {
        let of = |wanted: fn(u64) -> bool| {
            let excess = |of: &Stretch| {
                let job = jobs.get(of.job).filter(|_| wanted(of.members as u64))?;
                Some((of.steps as f64, of.ms as f64 - nominal_ms(job, of.members as u64) * of.steps as f64))
            };
            let last: Vec<(f64, f64)> = self.last_stretches.iter().filter_map(excess).collect();
            let usual = || {
                let usual = self.steps.iter().filter(|(_, members, _)| wanted(*members));
                let mut usual: Vec<f64> = usual
                    .filter_map(|(job, members, us)| Some(*us as f64 / 1e3 - nominal_ms(jobs.get(*job)?, *members)))
                    .collect();
                usual.sort_by(f64::total_cmp);
                usual.get(usual.len() / 2).copied()
            };
            let others = || {
                let others = self.stretches.iter().filter_map(excess);
                let (steps, ms) = others.fold((0.0, 0.0), |(steps, ms), (of, more)| (steps + of, ms + more));
                if steps > 0.0 { ms / steps } else { 0.0 }
            };
            slope(&last).or_else(usual).unwrap_or_else(others).max(0.0)
        };
        StepOverhead { alone_ms: of(|members| members == 1), together_ms: of(|members| members > 1) }
    }

    /// The costs of a run with such moves. What was not seen takes no time.
    #[must_use]
    pub fn costs(&self, jobs: &[Job], before: &Costs) -> Costs {
        let overhead = self.step_overhead(jobs);
        let (link_ms, exit_ms) = (self.links.ms(0), self.exits.ms(0));
        let took = |of: &Stretch| {
            let job = jobs.get(of.job)?;
            let step_ms = nominal_ms(job, of.members as u64) + overhead.of(of.members as u64);
            Some(of.ms as f64 - step_ms * of.steps as f64)
        };
        let mut finish = Mean::default();
        self.last_stretches.iter().filter_map(took).for_each(|ms| finish.add(ms));
        // Who has to go waits for the step in flight, half of one in the mean, and one more on which it is announced; then all is saved.
        let step_ms = jobs.iter().map(|job| nominal_ms(job, job.asked.into())).sum::<f64>() / jobs.len().max(1) as f64;
        let save_ms = self.parks.get().map_or(0.0, |ms| ms - step_ms / 2.0 - exit_ms as f64);
        Costs {
            start_ms: self.starts.ms(0),
            link_ms,
            switch_ms: self.switches.ms(0),
            recover_ms: link_ms,
            exit_ms,
            grow_ms: self.growths.ms(0),
            save_ms: save_ms.max(0.0).round() as u64,
            restore_ms: self.restores.ms(link_ms).saturating_sub(link_ms),
            finish_ms: finish.ms(0),
            ..*before
        }
    }

    /// The setup of the simulated run: the same jobs as fast as they were, and moves that cost what they did.
    #[must_use]
    pub fn told(&self, setup: &Setup) -> Setup {
        let overhead = self.step_overhead(&setup.jobs);
        let mut told = setup.clone();
        told.costs = self.costs(&setup.jobs, &setup.costs);
        for (job, of) in told.jobs.iter_mut().zip(&setup.jobs) {
            let speed = |slots: u16| 1.0 / (nominal_ms(of, slots.into()) + overhead.of(slots.into()));
            job.curve = Curve::Measured((1..=of.spec.workers.max).map(|slots| (slots, speed(slots))).collect());
            job.steps_per_ms = 1.0;
        }
        told
    }
}

/// The slope of the line nearest to some points by least squares; none of points too few, or too near to each other, to have one.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|(x, _)| *x), mean(|(_, y)| *y));
    let along: f64 = points.iter().map(|(of, _)| (of - x) * (of - x)).sum();
    let both: f64 = points.iter().map(|(of, other)| (of - x) * (other - y)).sum();
    (points.len() >= POINTS_MIN && along > 0.0).then(|| both / along)
}

impl StepOverhead {
    fn of(self, members: u64) -> f64 {
        if members > 1 { self.together_ms } else { self.alone_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steps_and_what_an_end_take_are_told_apart_by_jobs_of_different_lengths() {
        let points: Vec<(f64, f64)> = [10.0, 40.0, 90.0, 200.0].map(|steps| (steps, 3.0 * steps + 50.0)).into();
        assert!(slope(&points).is_some_and(|slope| (slope - 3.0).abs() < 1e-9));
        assert_eq!((slope(&points[..3]), slope(&[(7.0, 1.0); 9])), (None, None));
    }
}
