//! Jobs that nobody recorded: arrivals by chance, sizes and durations as in a recording. The same seed gives the same jobs.
//!
//! Sizes and durations are those of Microsoft's cluster 06 as ElasticFlow published it (2,396 jobs): shares by size, and a log-normal
//! distribution with the mean and the deviation of the logarithms there. Models are drawn from the tables, as for any recording that names none.

use crate::random::Random;
use crate::trace::{TraceJob, Work};
use serde::Serialize;
use std::f64::consts::TAU;
use std::str::FromStr;

/// Most jobs: as many as a recording may have.
const JOBS_MAX: f64 = 1_000_000.0;
/// Slots that jobs ask for, and in how many of a hundred.
const SIZES: [(u16, usize); 4] = [(1, 45), (4, 6), (8, 45), (16, 4)];
/// Durations: the logarithm's mean as a time, and its deviation.
const DURATION_S: f64 = 6_542.0;
const DURATION_SIGMA: f64 = 1.612;
/// No job is longer than a month; one in 10,000 would be.
const DURATION_S_MAX: f64 = 30.0 * 86_400.0;
/// Bursty: this share of all jobs comes in bursts, which are this share of the time and so long in the mean.
const BURSTS_JOBS: f64 = 0.5;
const BURSTS_TIME: f64 = 0.1;
const BURST_MS: f64 = 360_000.0;
/// Diurnal: how far the rate goes up and down within a day, as a share of its mean; the peak is at three in the afternoon.
const SWING: f64 = 0.8;
const TROUGH_MS: f64 = 3.0 * HOUR_MS;
const DAY_MS: f64 = 24.0 * HOUR_MS;
const HOUR_MS: f64 = 3_600_000.0;

/// How jobs come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Each by itself.
    Poisson,
    /// Half of them within a tenth of the time.
    Bursty,
    /// More by day than by night.
    Diurnal,
}

/// Jobs to be made.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Generator {
    arrivals: Arrivals,
    jobs_per_hour: f64,
    hours: f64,
}

/// Why a text is no generator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` makes no jobs; expected KIND:JOBSxHOURS, as in poisson:20x12 for 20 jobs an hour over twelve hours (poisson, bursty or diurnal; at most a million jobs)"
)]
pub struct GeneratorError {
    text: String,
}

impl FromStr for Generator {
    type Err = GeneratorError;
    fn from_str(text: &str) -> Result<Self, GeneratorError> {
        parsed(text).ok_or_else(|| GeneratorError { text: text.to_owned() })
    }
}

fn parsed(text: &str) -> Option<Generator> {
    let (kind, counts) = text.split_once(':')?;
    let arrivals = match kind {
        "poisson" => Arrivals::Poisson,
        "bursty" => Arrivals::Bursty,
        "diurnal" => Arrivals::Diurnal,
        _ => return None,
    };
    let (jobs, hours) = counts.split_once('x')?;
    let positive = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    let (jobs_per_hour, hours) = (positive(jobs)?, positive(hours)?);
    (jobs_per_hour * hours <= JOBS_MAX).then_some(Generator { arrivals, jobs_per_hour, hours })
}

impl Generator {
    /// The jobs of a seed, by their submission.
    #[must_use]
    pub fn jobs(&self, seed: u64) -> Vec<TraceJob> {
        let mut random = Random::new(seed);
        let moments = self.moments(&mut random);
        moments.into_iter().enumerate().map(|(number, at_ms)| job(&mut random, number, at_ms)).collect()
    }

    fn moments(&self, random: &mut Random) -> Vec<u64> {
        let (mean, until) = (self.jobs_per_hour / HOUR_MS, self.hours * HOUR_MS);
        match self.arrivals {
            Arrivals::Poisson => thinned(random, mean, until, |_| 1.0),
            Arrivals::Diurnal => thinned(random, mean * (1.0 + SWING), until, |at| {
                (1.0 - SWING * libm::cos(TAU * (at - TROUGH_MS) / DAY_MS)) / (1.0 + SWING)
            }),
            Arrivals::Bursty => bursty(random, mean, until),
        }
    }
}

/// A rate per millisecond, of which at any time a share counts.
fn thinned(random: &mut Random, rate: f64, until: f64, share: impl Fn(f64) -> f64) -> Vec<u64> {
    let (mut at, mut moments) = (0.0, Vec::new());
    loop {
        at += random.exponential_ms(1.0 / rate) as f64;
        if at >= until {
            return moments;
        }
        if random.share() < share(at) {
            moments.push(at as u64);
        }
    }
}

/// Quiet times and bursts in turn, each of a length by chance and with a rate of its own.
fn bursty(random: &mut Random, mean: f64, until: f64) -> Vec<u64> {
    let quiet_ms = BURST_MS * (1.0 - BURSTS_TIME) / BURSTS_TIME;
    let rates = [mean * (1.0 - BURSTS_JOBS) / (1.0 - BURSTS_TIME), mean * BURSTS_JOBS / BURSTS_TIME];
    let (mut begins, mut moments) = (0.0, Vec::new());
    for burst in [false, true].into_iter().cycle() {
        let (length, rate) = if burst { (BURST_MS, rates[1]) } else { (quiet_ms, rates[0]) };
        let ends = begins + random.exponential_ms(length) as f64;
        let within = thinned(random, rate, ends.min(until) - begins, |_| 1.0);
        moments.extend(within.into_iter().map(|at| begins as u64 + at));
        if ends >= until {
            break;
        }
        begins = ends;
    }
    moments
}

fn job(random: &mut Random, number: usize, submitted_ms: u64) -> TraceJob {
    let mut place = random.below(SIZES.iter().map(|(_, share)| share).sum());
    let fits = SIZES.iter().find(|(_, share)| {
        let found = place < *share;
        place = place.saturating_sub(*share);
        found
    });
    let seconds = DURATION_S * libm::exp(DURATION_SIGMA * random.normal());
    let (workers, work) = (fits.map_or(1, |(size, _)| *size), Work::Seconds(seconds.min(DURATION_S_MAX)));
    TraceJob { submitted_ms, ..TraceJob::new(format!("generated-{number}"), workers, work) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(text: &str, seed: u64) -> Vec<TraceJob> {
        text.parse::<Generator>().unwrap().jobs(seed)
    }

    #[test]
    fn as_many_come_as_were_asked_for_and_the_same_seed_has_the_same() {
        for kind in ["poisson", "bursty", "diurnal"] {
            let jobs = of(&format!("{kind}:100x240"), 3);
            assert!((20_000..28_000).contains(&jobs.len()), "{kind}: {}", jobs.len());
            assert!(
                jobs.is_sorted_by_key(|job| job.submitted_ms) && jobs.last().unwrap().submitted_ms < 240 * 3_600_000
            );
            assert!(jobs == of(&format!("{kind}:100x240"), 3) && jobs != of(&format!("{kind}:100x240"), 4));
        }
    }

    #[test]
    fn arrivals_are_as_uneven_as_they_are_named() {
        // Variance of the number in six minutes, in means: 1 where each comes by itself.
        let spread = |kind: &str| {
            let mut counts = vec![0.0; 10 * 960];
            of(&format!("{kind}:100x960"), 1)
                .iter()
                .for_each(|job| counts[(job.submitted_ms / 360_000) as usize] += 1.0);
            let mean = counts.iter().sum::<f64>() / counts.len() as f64;
            counts.iter().map(|count| (count - mean) * (count - mean)).sum::<f64>() / counts.len() as f64 / mean
        };
        let (poisson, bursty, diurnal) = (spread("poisson"), spread("bursty"), spread("diurnal"));
        assert!((0.9..1.1).contains(&poisson) && bursty > 5.0 && diurnal > 2.0, "{poisson} {bursty} {diurnal}");
        let night = |job: &&TraceJob| job.submitted_ms % 86_400_000 < 6 * 3_600_000;
        let jobs = of("diurnal:100x240", 1);
        assert!(jobs.iter().filter(night).count() * 8 < jobs.len());
    }

    #[test]
    fn sizes_and_durations_are_those_of_the_recording() {
        let jobs = of("poisson:1000x20", 5);
        let share = |size| jobs.iter().filter(|job| job.workers == size).count() as f64 / jobs.len() as f64;
        assert!((share(1) - 0.45).abs() < 0.02 && (share(8) - 0.45).abs() < 0.02 && (share(16) - 0.04).abs() < 0.01);
        let mut seconds: Vec<f64> =
            jobs.iter().map(|job| if let Work::Seconds(seconds) = job.work { seconds } else { 0.0 }).collect();
        seconds.sort_by(f64::total_cmp);
        let (median, high) = (seconds[seconds.len() / 2], seconds[seconds.len() * 84 / 100]);
        assert!((6_000.0..7_100.0).contains(&median), "{median}");
        assert!((4.4..5.7).contains(&(high / median)), "one deviation is a factor of 5.01: {}", high / median);
    }

    #[test]
    fn what_makes_no_jobs_is_said() {
        for text in ["poisson", "poisson:4", "often:4x4", "poisson:0x4", "poisson:1e9x1e9", "poisson:4x-1"] {
            let error = text.parse::<Generator>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` makes no jobs; expected KIND:JOBSxHOURS")), "{error}");
        }
    }
}
