//! What a run came to: percentiles of each latency, counts, and whether the scenario's thresholds hold. Pure.

use histogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// Longest latency that is told apart: a day.
pub const LATENCY_MS_MAX: u64 = 86_400_000;
/// Percentiles are right to a thousandth: buckets are so many powers of two finer than their values, which go up to the second power.
const GROUPING_POWER: u8 = 10;
const VALUE_POWER_MAX: u8 = 27;
const _: () = assert!(LATENCY_MS_MAX < 1 << VALUE_POWER_MAX, "a day is in the last bucket or before it");

/// Something that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// As scenarios call it.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Whether it is a number of times rather than a latency.
    pub counts: bool,
}

const fn latency(name: &'static str, about: &'static str) -> Measure {
    Measure { name, about, counts: false }
}

const fn count(name: &'static str, about: &'static str) -> Measure {
    Measure { name, about, counts: true }
}

/// Everything that is measured.
pub const MEASURES: &[Measure] = &[
    latency("signal_answer_ms", "a signal was due → the API answered it"),
    latency("slot_return_ms", "the fleet's demand counts → one slot that a job was on is free"),
    latency("demand_met_ms", "the fleet's demand counts → the fleet has all the slots it needs"),
    latency("submit_answer_ms", "a job was due → the API answered it"),
    latency("first_step_ms", "the job is accepted → its first step is complete"),
    latency("scale_ms", "a job's size is decided → it trains at that size"),
    latency("finish_ms", "the job is accepted → it has finished"),
    count("overtaken", "rising signals that the next one came before"),
    count("refused", "signals and jobs that the API refused"),
    count("unanswered", "signals and jobs that the API did not answer"),
    count("unmet", "rising signals that were not met when the run was over"),
    count("jobs_failed", "jobs that ended without a model"),
    count("not_sent", "signals and jobs that were not sent, because too many waited for an answer"),
];

/// A figure of a measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stat {
    /// The median.
    P50,
    /// Nine of ten are no longer.
    P90,
    /// Nineteen of twenty are no longer.
    P95,
    /// Ninety-nine of a hundred are no longer.
    P99,
    /// The longest, or the number of times.
    Max,
}

impl Stat {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::P50, Self::P90, Self::P95, Self::P99, Self::Max];

    /// As scenarios call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P95 => "p95",
            Self::P99 => "p99",
            Self::Max => "max",
        }
    }

    fn of(self, latency: &Recorded) -> u64 {
        // Nothing but what is no share is an error, and only without values there is no bucket.
        let bucket = |share| latency.histogram.quantile_bucket(share).ok().flatten();
        let quantile = |share| bucket(share).map_or(0, |bucket| bucket.end()).min(latency.longest_ms);
        match self {
            Self::P50 => quantile(0.5),
            Self::P90 => quantile(0.9),
            Self::P95 => quantile(0.95),
            Self::P99 => quantile(0.99),
            Self::Max => latency.longest_ms,
        }
    }
}

/// A limit that has to hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    /// Of this measure.
    pub measure: &'static str,
    /// Of this figure of it.
    pub stat: Stat,
    /// At most so much.
    pub limit: f64,
}

/// One latency, as it comes.
#[derive(Debug)]
struct Recorded {
    histogram: Histogram,
    /// To the millisecond, which the histogram is not.
    longest_ms: u64,
    count: u64,
}

impl Recorded {
    fn new() -> Self {
        let histogram = Histogram::new(GROUPING_POWER, VALUE_POWER_MAX)
            .unwrap_or_else(|_| unreachable!("the bounds are constants that the library takes"));
        Self { histogram, longest_ms: 0, count: 0 }
    }

    fn record(&mut self, ms: u64) {
        let ms = ms.min(LATENCY_MS_MAX);
        self.longest_ms = self.longest_ms.max(ms);
        // Never out of bounds: it is cut to them.
        self.count += u64::from(self.histogram.increment(ms).is_ok());
    }
}

/// What is measured, as it comes.
#[derive(Debug, Default)]
pub struct Measured {
    latencies: BTreeMap<&'static str, Recorded>,
    counts: BTreeMap<&'static str, u64>,
}

impl Measured {
    /// Notes one latency.
    pub fn latency(&mut self, measure: &'static str, ms: u64) {
        self.latencies.entry(measure).or_insert_with(Recorded::new).record(ms);
    }

    /// Notes that something happened so many times more.
    pub fn count(&mut self, measure: &'static str, times: u64) {
        *self.counts.entry(measure).or_default() += times;
    }

    /// How often something happened.
    #[must_use]
    pub fn counted(&self, measure: &str) -> u64 {
        self.counts.get(measure).copied().unwrap_or(0)
    }
}

/// Figures of one latency.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latency {
    /// As scenarios call it.
    pub name: &'static str,
    /// How many there were.
    pub count: u64,
    /// The median.
    pub p50: u64,
    /// Nine of ten are no longer.
    pub p90: u64,
    /// Nineteen of twenty are no longer.
    pub p95: u64,
    /// Ninety-nine of a hundred are no longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// Whether a threshold holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// Of this measure.
    pub measure: &'static str,
    /// Of this figure of it.
    pub stat: &'static str,
    /// At most so much.
    pub limit: f64,
    /// So much; nothing if there was nothing to measure, which no limit forgives.
    pub found: Option<f64>,
    /// Whether it holds.
    pub holds: bool,
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// Its seed.
    pub seed: u64,
    /// When it began, RFC 3339.
    pub began: String,
    /// How long it took, with what was waited for afterwards.
    pub took_s: f64,
    /// Signals that were sent.
    pub signals: u64,
    /// Jobs that were sent.
    pub jobs: u64,
    /// Every latency, in the order of [`MEASURES`].
    pub latencies: Vec<Latency>,
    /// Every count.
    pub counts: BTreeMap<&'static str, u64>,
    /// Every threshold.
    pub thresholds: Vec<Verdict>,
}

impl Report {
    /// Latencies, counts and verdicts of what was measured.
    #[must_use]
    pub fn figures(
        measured: &Measured,
        thresholds: &[Threshold],
    ) -> (Vec<Latency>, BTreeMap<&'static str, u64>, Vec<Verdict>) {
        let of = |name: &'static str| {
            let never = Recorded::new();
            let latency = measured.latencies.get(name).unwrap_or(&never);
            let [p50, p90, p95, p99, max] = Stat::ALL.map(|stat| stat.of(latency));
            Latency { name, count: latency.count, p50, p90, p95, p99, max }
        };
        let latencies = MEASURES.iter().filter(|m| !m.counts).map(|m| of(m.name)).collect();
        let counts = MEASURES.iter().filter(|m| m.counts).map(|m| (m.name, measured.counted(m.name))).collect();
        (latencies, counts, thresholds.iter().map(|threshold| verdict(measured, threshold)).collect())
    }

    /// Whether every threshold holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.thresholds.iter().all(|verdict| verdict.holds)
    }
}

fn verdict(measured: &Measured, threshold: &Threshold) -> Verdict {
    let Threshold { measure, stat, limit } = threshold;
    let counts = MEASURES.iter().any(|m| m.counts && m.name == *measure);
    let found = if counts {
        Some(measured.counted(measure) as f64)
    } else {
        measured.latencies.get(measure).map(|latency| stat.of(latency) as f64)
    };
    let holds = found.is_some_and(|found| found <= *limit);
    Verdict { measure, stat: stat.name(), limit: *limit, found, holds }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} (seed {}): {} signals and {} jobs in {:.1} s, from {}\n",
            self.scenario, self.seed, self.signals, self.jobs, self.took_s, self.began
        )?;
        writeln!(f, "{:<18} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8}", "", "times", "p50", "p90", "p95", "p99", "max")?;
        for l in &self.latencies {
            let mut figures = String::new();
            for figure in [l.p50, l.p90, l.p95, l.p99, l.max] {
                let _ = if l.count > 0 { write!(figures, " {figure:>8}") } else { write!(figures, " {:>8}", "-") };
            }
            writeln!(f, "{:<18} {:>7}{figures}", l.name, l.count)?;
        }
        writeln!(f)?;
        for (name, count) in &self.counts {
            writeln!(f, "{name:<18} {count:>7}")?;
        }
        for (index, v) in self.thresholds.iter().enumerate() {
            let found = v.found.map_or_else(|| "never measured".to_owned(), |found| found.to_string());
            let holds = if v.holds { "holds" } else { "FAILS" };
            let apart = if index == 0 { "\n" } else { "" };
            writeln!(f, "{apart}{holds}  {} {} ≤ {}: {found}", v.measure, v.stat, v.limit)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_most(measure: &'static str, stat: Stat, limit: f64) -> Threshold {
        Threshold { measure, stat, limit }
    }

    #[test]
    fn figures_are_of_what_was_measured() {
        let mut measured = Measured::default();
        (1..=100).for_each(|ms| measured.latency("slot_return_ms", ms));
        measured.count("refused", 2);
        let thresholds = [
            at_most("slot_return_ms", Stat::P99, 99.0),
            at_most("slot_return_ms", Stat::Max, 99.0),
            at_most("refused", Stat::Max, 2.0),
            at_most("unanswered", Stat::Max, 0.0),
            at_most("first_step_ms", Stat::Max, 1e9),
        ];
        let (latencies, counts, verdicts) = Report::figures(&measured, &thresholds);
        let returns = latencies.iter().find(|l| l.name == "slot_return_ms");
        assert_eq!(returns.map(|l| (l.count, l.p50, l.p90, l.p99, l.max)), Some((100, 50, 90, 99, 100)));
        assert_eq!((counts["refused"], counts["unmet"]), (2, 0));
        assert_eq!(verdicts.iter().map(|v| v.holds).collect::<Vec<_>>(), [true, false, true, true, false]);
        assert_eq!(verdicts[4].found, None, "what never happened holds nothing");
    }

    #[test]
    fn nothing_is_out_of_bounds() {
        let mut measured = Measured::default();
        measured.latency("finish_ms", u64::MAX);
        measured.latency("finish_ms", 0);
        let (latencies, ..) = Report::figures(&measured, &[]);
        assert_eq!(latencies.iter().map(|l| l.count).sum::<u64>(), 2);
    }
}
