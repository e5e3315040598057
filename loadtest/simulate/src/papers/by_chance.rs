//! Recordings of jobs by chance, where a paper says how many there are and how long, and nobody has them.

use crate::random::Random;
use crate::trace::{TraceJob, Work};

/// GPUs of a job, and how many of a hundred jobs have so many.
const SIZES: [(u16, usize); 4] = [(1, 45), (4, 20), (8, 25), (16, 10)];

/// Jobs that come evenly within a time, with lengths that are log-normal up to a longest one.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByChance {
    pub jobs: f64,
    pub within_ms: f64,
    pub length_s: f64,
    pub length_sigma: f64,
    pub length_s_max: f64,
}

impl ByChance {
    /// The jobs of a share of all and of their time, in order; `more` adds what else is said of each.
    pub fn recording(&self, scale: f64, seed: u64, more: impl Fn(&mut Random, TraceJob) -> TraceJob) -> Vec<TraceJob> {
        let mut random = Random::new(seed);
        let count = (self.jobs * scale).ceil() as usize;
        let mut moments: Vec<u64> = (0..count).map(|_| (random.share() * self.within_ms * scale) as u64).collect();
        moments.sort_unstable();
        let job = |(number, at_ms)| {
            let job = self.job(&mut random, number, at_ms);
            more(&mut random, job)
        };
        moments.into_iter().enumerate().map(job).collect()
    }

    fn job(&self, random: &mut Random, number: usize, submitted_ms: u64) -> TraceJob {
        let workers = super::size_by_chance(random, &SIZES);
        let seconds = self.length_s * libm::exp(self.length_sigma * random.normal());
        let work = Work::Seconds(seconds.min(self.length_s_max));
        TraceJob { submitted_ms, ..TraceJob::new(format!("{number}"), workers, work) }
    }
}
