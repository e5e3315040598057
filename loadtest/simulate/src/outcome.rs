//! What a run came to, per policy: figures by the names that programs read, and a table for people.
//!
//! What cannot be computed is `null`. What was measured by a clock stands apart ([`Measured`]), because it alone is not the same twice.

use crate::setup::Setup;
use crate::tally::{FleetTally, Tally};
use controller_core::state::Forecast;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// What became of the jobs of a setup under a policy.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its name.
    pub policy: &'static str,
    /// In the order of the setup.
    pub jobs: Vec<JobOutcome>,
    /// What was counted.
    pub tally: Tally,
    /// When the last thing happened.
    pub until_ms: u64,
    /// By whoever ran it.
    pub measured: Measured,
    /// What was forecast at the end of each fleet that serves, and how good such forecasts were; empty where nothing was.
    pub forecasts: Vec<Vec<Forecast>>,
}

/// What became of one job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobOutcome {
    /// When it came.
    pub submitted_ms: u64,
    /// When its members first came together.
    pub began_ms: Option<u64>,
    /// How long it waited without any slot, all times together.
    pub queued_ms: u64,
    /// How often it lost all its slots.
    pub preemptions: u64,
    /// How often it had another number of slots than before, its first start and every preemption included.
    pub size_changes: u64,
    /// How it ended, and when.
    pub ended: Option<(Ended, u64)>,
    /// How long it takes on a single slot, where that was measured.
    pub single_ms: Option<u64>,
    /// How long it would have taken alone on an equal share of what was lent while it was there.
    pub alone_ms: Option<u64>,
}

/// Columns of [`Outcome::jobs_csv`].
pub const JOBS_HEADER: &str =
    "policy,job,tenant,arrival_s,first_start_s,end_s,completion_s,queueing_s,size_changes,preemptions,outcome\n";

impl JobOutcome {
    /// From its submission to its last step, if it got there.
    #[must_use]
    pub fn completion_ms(&self) -> Option<u64> {
        self.ended.filter(|(how, _)| *how == Ended::Finished).map(|(_, at)| at - self.submitted_ms)
    }

    /// In a word.
    #[must_use]
    pub fn outcome(&self) -> &'static str {
        match self.ended {
            Some((Ended::Finished, _)) => "finished",
            Some((Ended::Failed, _)) => "failed",
            None => "unfinished",
        }
    }
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its last step is done.
    Finished,
    /// It was given up.
    Failed,
}

/// Times of the machine that ran it, in nanoseconds.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// Of all decisions about inputs, plans left out.
    pub inputs_ns: u64,
    /// Of all events: decided, planned, folded and checked.
    pub events_ns: u64,
    /// Of each plan.
    pub plans_ns: Vec<u64>,
}

impl Outcome {
    /// The figures; the same setup, policy and build give the same bytes. `deadlines_ms`: of the jobs, in their order.
    #[must_use]
    pub fn figures(&self, deadlines_ms: &[Option<u64>]) -> Value {
        let finished = || {
            self.jobs.iter().filter_map(|job| match job.ended {
                Some((Ended::Finished, at)) => Some((job, at)),
                _ => None,
            })
        };
        let completion = Sorted::new(finished().map(|(job, at)| at - job.submitted_ms));
        let queueing = Sorted::new(finished().map(|(job, _)| job.queued_ms));
        let returns = Sorted::new(self.tally.returns_ms.iter().copied());
        let failed = self.jobs.iter().filter(|job| matches!(job.ended, Some((Ended::Failed, _)))).count();
        // Whoever was never on a slot failed of nothing else.
        let dropped = |job: &&JobOutcome| matches!(job.ended, Some((Ended::Failed, _))) && job.began_ms.is_none();
        let dropped = self.jobs.iter().filter(dropped).count();
        let single_ms = finished().map(|(job, _)| job.single_ms).sum::<Option<u64>>();
        let preempted = self.jobs.iter().filter(|job| job.preemptions > 0).count();
        let last = finished().map(|(_, at)| at).max();
        let first = self.jobs.iter().map(|job| job.submitted_ms).min().unwrap_or(0);
        let sum = |of: fn(&FleetTally) -> u64| self.tally.fleets.iter().map(of).sum::<u64>();
        let of_servers =
            |of: fn(&FleetTally) -> u64| self.tally.fleets.iter().filter(|f| f.serves).map(of).sum::<u64>();
        let (lent, occupied, training) = (sum(|f| f.lent_ms), sum(|f| f.occupied_ms), sum(|f| f.training_ms));
        // All slot·time that there was, lent or not.
        let until_ms = self.until_ms;
        let all_ms = |fleet: &FleetTally| fleet.slots * until_ms;
        let all = self.tally.fleets.iter().map(all_ms).sum::<u64>();
        let all_of_servers = self.tally.fleets.iter().filter(|fleet| fleet.serves).map(all_ms).sum::<u64>();
        let with_deadline: Vec<bool> = self
            .jobs
            .iter()
            .zip(deadlines_ms)
            .filter_map(|(job, deadline)| {
                let ended = job.ended.filter(|(how, _)| *how == Ended::Finished).map(|(_, at)| at);
                deadline.map(|deadline| ended.is_some_and(|at| at <= deadline))
            })
            .collect();
        let mut fairness: Vec<f64> = finished()
            .filter_map(|(job, at)| job.alone_ms.map(|alone| (at - job.submitted_ms) as f64 / alone.max(1) as f64))
            .collect();
        fairness.sort_by(f64::total_cmp);
        let unfair = fairness.iter().filter(|ratio| **ratio > 1.0).count();
        let fairness_mean = (!fairness.is_empty()).then(|| fairness.iter().sum::<f64>() / fairness.len() as f64);
        let met = with_deadline.iter().filter(|met| **met).count();
        json!({
            "policy": self.policy,
            "jobs": self.jobs.len(),
            "finished": completion.len(),
            "failed": failed,
            "unfinished": self.jobs.len() - completion.len() - failed,
            "mean_completion_s": completion.mean().map(seconds),
            "median_completion_s": completion.at(50).map(seconds_of),
            "p95_completion_s": completion.at(95).map(seconds_of),
            "p99_completion_s": completion.at(99).map(seconds_of),
            "mean_queueing_s": queueing.mean().map(seconds),
            "median_queueing_s": queueing.at(50).map(seconds_of),
            "p95_queueing_s": queueing.at(95).map(seconds_of),
            "makespan_s": last.map(|last| seconds_of(last - first)),
            "utilization": ratio(training, lent),
            "training_utilization": ratio(training - of_servers(|f| f.training_ms), all - all_of_servers),
            "overall_utilization": ratio(training + of_servers(|f| f.needed_ms), all),
            "sjs_efficiency": single_ms.and_then(|single| ratio(single, occupied)),
            "drop_ratio": ratio(dropped as u64, self.jobs.len() as u64),
            "fairness_mean": fairness_mean,
            "fairness_p99": fairness.get(rank(fairness.len(), 99)),
            "unfair_share": ratio(unfair as u64, fairness.len() as u64),
            "deadline_attainment": ratio(met as u64, with_deadline.len() as u64),
            "harvested_slot_s": seconds_of(of_servers(|f| f.training_ms)),
            "lost_slot_s": seconds_of(occupied - training + self.tally.undone_ms),
            "preemptions": self.tally.preemptions,
            "preempted_job_share": ratio(preempted as u64, self.jobs.len() as u64),
            "scalings": self.tally.scalings,
            "guarantee_violations": self.tally.below_minimum + self.tally.denied,
            "unmet_demand_slot_s": seconds_of(of_servers(|f| f.unmet_ms)),
            "shortfall_from_rise_slot_s": seconds_of(of_servers(|f| f.short_ms)),
            "forecasts": self.forecasts_said(),
            "return_p99_ms": returns.at(99),
            "returns": returns.len(),
            "server_failures": self.tally.failures,
            "below_measured_sizes": self.tally.unmeasured,
            "events": self.tally.events,
            "plans": self.tally.plans,
        })
    }

    /// Of each horizon, in the mean over fleets.
    fn forecasts_said(&self) -> Vec<Value> {
        let Some(first) = self.forecasts.iter().find(|of| !of.is_empty()) else { return Vec::new() };
        let of = |(place, forecast): (usize, &Forecast)| {
            let known: Vec<&Forecast> = self.forecasts.iter().filter_map(|of| of.get(place)).collect();
            let mean = |of: fn(&Forecast) -> u64| {
                known.iter().map(|forecast| of(forecast)).sum::<u64>() as f64 / known.len() as f64 / 1e3
            };
            json!({
                "ahead_s": seconds_of(forecast.in_ms), "error_slots": mean(|of| of.error_milli),
                "covered": mean(|of| of.covered_milli),
            })
        };
        first.iter().enumerate().map(of).collect()
    }

    /// What became of each job: rows of CSV below [`JOBS_HEADER`].
    #[must_use]
    pub fn jobs_csv(&self, setup: &Setup) -> String {
        let mut text = String::new();
        let shown = |ms: Option<u64>| ms.map_or_else(String::new, |ms| seconds_of(ms).to_string());
        // Names are a recording's, so a comma in one is not a column.
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        for (job, of) in self.jobs.iter().zip(&setup.jobs) {
            let tenant = of.tenant.as_deref().map_or_else(String::new, quoted);
            let (arrival, first_start) = (shown(Some(job.submitted_ms)), shown(job.began_ms));
            let (end, completion) = (shown(job.ended.map(|(_, at)| at)), shown(job.completion_ms()));
            // Of who waits still it is not known how long.
            let queueing = shown(job.ended.map(|_| job.queued_ms));
            let _ = writeln!(
                text,
                "{},{},{tenant},{arrival},{first_start},{end},{completion},{queueing},{},{},{}",
                self.policy,
                quoted(&of.name),
                job.size_changes,
                job.preemptions,
                job.outcome()
            );
        }
        text
    }

    /// The figures, and those of the machine beside them.
    #[must_use]
    pub fn document(&self, deadlines_ms: &[Option<u64>], wall_s: f64) -> Value {
        let plans = Sorted::new(self.measured.plans_ns.iter().copied());
        let ms = |ns: u64| ns as f64 / 1e6;
        let mut figures = self.figures(deadlines_ms);
        let measured = json!({
            "decision_p50_ms": plans.at(50).map(ms),
            "decision_p99_ms": plans.at(99).map(ms),
            "event_mean_ms": ratio(self.measured.events_ns, self.tally.events).map(|ns| ns / 1e6),
            "wall_s": wall_s,
        });
        if let (Some(figures), Value::Object(measured)) = (figures.as_object_mut(), measured) {
            figures.extend(measured);
        }
        figures
    }
}

/// The rows of the table for people: a name, the figure's key, and how many digits after the point. Names of what the clock of the machine
/// says, which is not the same twice, end in `*`.
pub(crate) const ROWS: [(&str, &str, usize); 35] = [
    ("jobs", "jobs", 0),
    ("finished", "finished", 0),
    ("unfinished", "unfinished", 0),
    ("completion mean, s", "mean_completion_s", 1),
    ("completion median, s", "median_completion_s", 1),
    ("completion p95, s", "p95_completion_s", 1),
    ("completion p99, s", "p99_completion_s", 1),
    ("queueing mean, s", "mean_queueing_s", 1),
    ("queueing median, s", "median_queueing_s", 1),
    ("queueing p95, s", "p95_queueing_s", 1),
    ("makespan, s", "makespan_s", 0),
    ("utilization", "utilization", 3),
    ("of the cluster", "training_utilization", 3),
    ("of all, served too", "overall_utilization", 3),
    ("scaling efficiency", "sjs_efficiency", 3),
    ("dropped, share", "drop_ratio", 3),
    ("fairness mean", "fairness_mean", 2),
    ("fairness p99", "fairness_p99", 2),
    ("unfair, share", "unfair_share", 3),
    ("deadlines met, share", "deadline_attainment", 3),
    ("harvested, slot·s", "harvested_slot_s", 0),
    ("lost, slot·s", "lost_slot_s", 0),
    ("preemptions", "preemptions", 0),
    ("preempted jobs, share", "preempted_job_share", 3),
    ("scalings", "scalings", 0),
    ("guarantees broken", "guarantee_violations", 0),
    ("unmet demand, slot·s", "unmet_demand_slot_s", 1),
    ("short from rise, slot·s", "shortfall_from_rise_slot_s", 1),
    ("slot returned p99, ms", "return_p99_ms", 0),
    ("events", "events", 0),
    ("plans", "plans", 0),
    ("decision p50, ms *", "decision_p50_ms", 3),
    ("decision p99, ms *", "decision_p99_ms", 3),
    ("event mean, ms *", "event_mean_ms", 3),
    ("wall, s *", "wall_s", 1),
];
/// Whether a figure is of the machine's clock, and so not the same twice.
#[must_use]
pub fn is_measured(key: &str) -> bool {
    ROWS.iter().any(|(name, of, _)| *of == key && name.ends_with('*'))
}

/// Columns of the table: figures' names, and figures.
const NAME_WIDTH: usize = 24;
const FIGURE_WIDTH: usize = 14;

/// A column for each policy; a dash where there is no figure.
#[must_use]
pub fn table(documents: &[Value]) -> String {
    let names = || documents.iter().map(|document| document["policy"].as_str().unwrap_or_default());
    // A long name has a wider column, not one that runs into the next.
    let widths: Vec<usize> = names().map(|name| FIGURE_WIDTH.max(name.len() + 2)).collect();
    let mut text = format!("{:NAME_WIDTH$}", "");
    for (name, &width) in names().zip(&widths) {
        let _ = write!(text, "{name:>width$}");
    }
    for (name, key, digits) in ROWS {
        let _ = write!(text, "\n{name:NAME_WIDTH$}");
        for (document, &width) in documents.iter().zip(&widths) {
            let figure = document.get(key).and_then(Value::as_f64);
            let shown = figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"));
            let _ = write!(text, "{shown:>width$}");
        }
    }
    text + "\n* by the clock of this machine, so not the same twice\n"
}

/// What the keys of a document are for.
#[must_use]
pub fn options(of: Map<String, Value>) -> String {
    of.into_iter().fold(String::new(), |mut text, (name, value)| {
        let value = match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let _ = writeln!(text, "{name:NAME_WIDTH$}{value}");
        text
    })
}

/// Whole numbers in order.
struct Sorted(Vec<u64>);

impl Sorted {
    fn new(values: impl Iterator<Item = u64>) -> Self {
        let mut values: Vec<u64> = values.collect();
        values.sort_unstable();
        Self(values)
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn mean(&self) -> Option<f64> {
        let sum: u128 = self.0.iter().map(|value| u128::from(*value)).sum();
        (!self.0.is_empty()).then(|| sum as f64 / self.0.len() as f64)
    }

    /// The smallest that this share (in hundredths) of all are not above.
    fn at(&self, percent: usize) -> Option<u64> {
        self.0.get(rank(self.0.len(), percent)).copied()
    }
}

/// The place among so many in order that so many of a hundred are not above.
fn rank(count: usize, percent: usize) -> usize {
    (count * percent).div_ceil(100).saturating_sub(1)
}

fn seconds(ms: f64) -> f64 {
    ms / 1_000.0
}

fn seconds_of(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

fn ratio(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let sorted = Sorted::new((1..=200).rev());
        assert_eq!(
            (sorted.at(50), sorted.at(99), sorted.at(100), sorted.mean()),
            (Some(100), Some(198), Some(200), Some(100.5))
        );
        assert_eq!((Sorted::new([].into_iter()).at(99), Sorted::new([7].into_iter()).at(50)), (None, Some(7)));
    }

    #[test]
    fn every_row_of_the_table_has_a_figure_of_that_name() {
        let outcome = Outcome {
            policy: "fifo",
            jobs: Vec::new(),
            tally: Tally::default(),
            until_ms: 0,
            measured: Measured::default(),
            forecasts: Vec::new(),
        };
        let document = outcome.document(&[], 0.0);
        for (_, key, _) in ROWS {
            assert!(document.get(key).is_some(), "{key}");
        }
        assert!(table(&[document]).contains("completion mean, s"));
    }

    #[test]
    fn a_long_name_does_not_run_into_the_next_column() {
        let names = ["elastic-tiresias", "a-name-that-is-longer-than-any", "ebb"];
        let text = table(&names.map(|policy| serde_json::json!({ "policy": policy, "jobs": 60 })));
        let head: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(head, names);
        let mut ends = text.lines().take(1 + ROWS.len()).map(|line| line.chars().count());
        let first = ends.next().unwrap();
        assert!(ends.all(|end| end == first), "{text}");
    }
}
