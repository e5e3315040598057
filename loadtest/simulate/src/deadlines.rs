//! Deadlines by chance, for jobs whose recording says none: so many times as long as each takes alone. No policy is told of them; they are what a run is judged by.

use crate::costs::Costs;
use crate::random::Random;
use crate::setup::Job;
use serde::Serialize;
use std::str::FromStr;

/// Beside the seed, so that deadlines do not come of the same chance as the jobs.
const DEADLINES: u64 = 0x6465_6164;
/// The latest deadline that can be asked for: a hundred times what a job takes alone is none.
const TIMES_MAX: f64 = 100.0;

/// Between how many times, and how many, of what a job takes alone on the slots that it asked for, its start included. Uniformly distributed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Deadlines {
    /// The tightest.
    pub low: f64,
    /// The loosest.
    pub high: f64,
}

/// Why a text says nothing of deadlines.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` makes no deadlines; expected LOW-HIGH, how many times what a job takes alone, as in 1.1-3 (LOW above 0 and not above HIGH, up to 100)"
)]
pub struct DeadlinesError {
    text: String,
}

impl FromStr for Deadlines {
    type Err = DeadlinesError;
    fn from_str(text: &str) -> Result<Self, DeadlinesError> {
        let within = |low: f64, high: f64| low > 0.0 && low <= high && high <= TIMES_MAX;
        let both = text.split_once('-').and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
        let both = both.filter(|(low, high)| within(*low, *high));
        let (low, high) = both.ok_or_else(|| DeadlinesError { text: text.to_owned() })?;
        Ok(Self { low, high })
    }
}

impl Deadlines {
    /// Gives one to each job that has none, where it is known how long it takes.
    pub fn give(self, jobs: &mut [Job], costs: &Costs, seed: u64) {
        for (number, job) in jobs.iter_mut().enumerate().filter(|(_, job)| job.deadline_ms.is_none()) {
            let mut random = Random::new(seed ^ DEADLINES ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let times = self.low + (self.high - self.low) * random.share();
            let alone_ms = job.takes_ms(job.asked, 1.0).map(|ms| ms + (costs.start_ms + costs.link_ms) as f64);
            job.deadline_ms = alone_ms.map(|ms| job.submitted_ms + (ms * times) as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::curve::Tables;
    use crate::setup::{Shape, jobs};
    use crate::trace::{Format, parse};

    fn given(text: &str, seed: u64) -> Vec<u64> {
        let rows = (0..200).map(|n| format!("{n},100,4,\n")).collect::<String>();
        let recorded = format!("submitted_s,duration_s,workers,deadline_s\n500,100,4,7\n{rows}");
        let shape = Shape { min_share: 0.0, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: false };
        let recorded = parse(&recorded, Format::Csv).unwrap();
        let mut jobs = jobs(&recorded, &Tables::default(), &shape, &Costs::none(), 0).unwrap().0;
        text.parse::<Deadlines>().unwrap().give(&mut jobs, &Costs { start_ms: 1_000, ..Costs::none() }, seed);
        jobs.iter().map(|job| job.deadline_ms.unwrap() - job.submitted_ms).collect()
    }

    #[test]
    fn deadlines_are_between_what_was_asked_for_and_who_has_one_keeps_it() {
        let all = given("1.1-3", 5);
        assert_eq!((all.len(), all[200]), (201, 7_000));
        assert!(all[..200].iter().all(|ms| (111_100..=303_000).contains(ms)));
        let mean = all[..200].iter().sum::<u64>() / 200;
        assert!((195_000..=215_000).contains(&mean), "{mean}");
        assert!(all == given("1.1-3", 5) && all != given("1.1-3", 6));
        assert_eq!(given("2-2", 5)[0], 202_000);
    }

    #[test]
    fn what_makes_no_deadlines_is_said() {
        for text in ["", "2", "3-2", "0-1", "-1-2", "1-101", "a-b", "1-NaN", "NaN-NaN"] {
            let error = text.parse::<Deadlines>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` makes no deadlines; expected LOW-HIGH")), "{error}");
        }
    }
}
