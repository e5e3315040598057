//! Results of papers as named scenarios: each sets a run up as its paper says, and puts the paper's figures beside ours.
//!
//! No paper's full trace is public and some numbers are not printed. What had to be chosen is a *free parameter* of its scenario, named with
//! its value and how it was chosen; those that were fitted were fitted on the paper's baseline alone, and rows of the baseline say so. A
//! scenario without any data of its paper says that it is by construction. Nothing is fitted on a result.
//!
//! Pure: whoever runs a scenario brings the recordings that it needs ([`Data`]) and the clock.

pub mod amoeba;
pub mod amoeba_transient;
pub mod antman;
mod by_chance;
mod document;
pub mod easyscale;
pub mod easyscale_cluster;
pub mod ibm;
pub mod lyra;
mod picture;
pub mod pollux_peer;

use crate::cluster::Cluster;
use crate::curve::Tables;
use crate::outcome::Outcome;
use crate::paired::interval;
use crate::random::Random;
use crate::setup::{Setup, SetupError};
use crate::table::TableError;
use controller_core::Policy;
use serde::Serialize;

pub use document::{markdown, table};
pub use picture::picture;

/// The servers that a scenario of ours runs on.
fn cluster(of_ours: &str) -> Cluster {
    of_ours.parse().unwrap_or_else(|error| unreachable!("a cluster of ours: {error}"))
}

/// The GPUs of a job, by chance, of sizes and how many jobs of as many as all of them together have each.
fn size_by_chance(random: &mut Random, sizes: &[(u16, usize)]) -> u16 {
    let (mut place, mut chosen) = (random.below(sizes.iter().map(|(_, share)| share).sum()), 1);
    for (size, share) in sizes {
        chosen = *size;
        match place.checked_sub(*share) {
            Some(left) => place = left,
            None => break,
        }
    }
    chosen
}

/// A result of a paper that can be run.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Scenario {
    /// By which it is asked for.
    pub name: &'static str,
    /// What is compared with what.
    pub about: &'static str,
    /// The paper, and where in it the figures stand.
    pub paper: &'static str,
    /// How far its numbers are the paper's.
    pub kind: Kind,
    /// Where the numbers of its set-up are from.
    pub sources: &'static [&'static str],
    /// What the paper does not print.
    pub free: &'static [Free],
    /// What is to be known of the result: which rows do not come out, and what was found to be the reason.
    pub notes: &'static [&'static str],
    /// What it reads of [`Data`], in words; nothing if it needs none.
    pub needs: Option<&'static str>,
    /// Of the first run; the runs after it have the seeds after it.
    pub seed: u64,
    /// How many runs figures are means of.
    pub seeds: u64,
    #[serde(skip)]
    run: fn(&Inputs<'_>, &mut Found<'_>) -> Result<(), PapersError>,
}

/// How far the numbers of a scenario are its paper's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The paper's own recording and rules.
    Recorded,
    /// The paper's distributions; free parameters fitted on its baseline.
    Calibrated,
    /// Other data of the same kind; free parameters chosen beforehand and fitted on nothing.
    Declared,
    /// None of the paper's data: only what it says of the set-up.
    ByConstruction,
}

/// A number that the paper does not print.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Free {
    /// What it is.
    pub name: &'static str,
    /// As it is here.
    pub value: &'static str,
    /// How it was chosen.
    pub how: &'static str,
}

/// A figure of the paper, and ours.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// What was run.
    pub run: String,
    /// What is measured.
    pub figure: &'static str,
    /// In which unit.
    pub unit: &'static str,
    /// As printed.
    pub paper: f64,
    /// The mean of ours.
    pub ours: f64,
    /// Ours ÷ the paper's.
    pub ratio: f64,
    /// Ours is known to this, to both sides, with 95 % confidence; none of a single run.
    pub half_width_95: Option<f64>,
    /// Whether free parameters were fitted on it.
    pub baseline: bool,
}

/// What a scenario came to.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What was run.
    #[serde(flatten)]
    pub scenario: Scenario,
    /// Its figures.
    pub rows: Vec<Row>,
    /// Everything that must not be, in words.
    pub violations: Vec<String>,
    /// Times of the machine that ran it; not the same twice.
    pub decisions: Vec<Decisions>,
}

/// How long the plans of a policy took, by the clock of the machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decisions {
    /// What was run.
    pub run: String,
    /// How many plans were made.
    pub count: usize,
    /// Half of them took no longer, in ms.
    pub p50_ms: f64,
    /// All but a hundredth took no longer, in ms.
    pub p99_ms: f64,
}

/// Recordings that do not come with Ebb.
#[derive(Debug, Clone, Default)]
pub struct Data {
    /// Pollux's workloads 1 to 4, as CSV.
    pub pollux_workloads: Vec<String>,
    /// Pollux's measurements.
    pub pollux_tables: Tables,
    /// Philly's jobs, as CSV.
    pub philly: Option<String>,
    /// ElasticFlow's measurements.
    pub elasticflow_tables: Tables,
}

/// All that a scenario follows from.
pub(crate) struct Inputs<'a> {
    pub data: Option<&'a Data>,
    pub seeds: std::ops::Range<u64>,
    /// How much of its time is run: 1 is all.
    pub scale: f64,
}

/// What was found of a scenario until now.
pub(crate) struct Found<'a> {
    rows: Vec<Row>,
    violations: Vec<String>,
    plans_ns: Vec<(String, Vec<u64>)>,
    stopwatch: &'a mut dyn FnMut() -> u64,
}

/// Why a scenario cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PapersError {
    /// There is none of that name.
    #[error("`{name}` is no scenario; there are {known}")]
    Unknown {
        /// As it was asked for.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// Its recordings are not there.
    #[error("{name} needs {needs}, which does not come with Ebb; give the folder that has it as `--data`")]
    Needs {
        /// The scenario.
        name: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// A recording cannot be read.
    #[error("a recording cannot be used: {0}")]
    Recording(#[from] TableError),
    /// A job cannot be made of it.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

/// All scenarios, in the order in which they are run.
pub const SCENARIOS: [Scenario; 11] = [
    ibm::TABLE_3,
    ibm::TABLE_4,
    amoeba::SCENARIO,
    amoeba_transient::SCENARIO,
    lyra::BASIC_SCENARIO,
    lyra::ADVANCED_SCENARIO,
    lyra::IDEAL_SCENARIO,
    antman::SCENARIO,
    easyscale::SCENARIO,
    easyscale_cluster::SCENARIO,
    pollux_peer::SCENARIO,
];

/// The scenarios of these names, in the order of [`SCENARIOS`]; all if none is named.
pub fn named(names: &[String]) -> Result<Vec<Scenario>, PapersError> {
    let is_known = |name: &&String| SCENARIOS.iter().any(|scenario| scenario.name == name.as_str());
    if let Some(name) = names.iter().find(|name| !is_known(name)) {
        let known = SCENARIOS.map(|scenario| scenario.name).join(", ");
        return Err(PapersError::Unknown { name: name.clone(), known });
    }
    let asked = |scenario: &Scenario| names.is_empty() || names.iter().any(|name| name == scenario.name);
    Ok(SCENARIOS.into_iter().filter(asked).collect())
}

impl Scenario {
    /// Runs it, all of it or a share of its time with a single seed. `stopwatch`: as for [`crate::run`].
    pub fn run(
        &self,
        data: Option<&Data>,
        scale: f64,
        stopwatch: &mut dyn FnMut() -> u64,
    ) -> Result<Report, PapersError> {
        if let (Some(needs), None) = (self.needs, data) {
            return Err(PapersError::Needs { name: self.name, needs });
        }
        let seeds = if scale < 1.0 { 1 } else { self.seeds };
        let inputs = Inputs { data, seeds: self.seed..self.seed + seeds, scale };
        let mut found = Found { rows: Vec::new(), violations: Vec::new(), plans_ns: Vec::new(), stopwatch };
        (self.run)(&inputs, &mut found)?;
        let decisions = found.plans_ns.into_iter().filter_map(|(run, ns)| decisions(run, ns)).collect();
        // As it was run.
        let scenario = Scenario { seeds, ..*self };
        Ok(Report { scenario, rows: found.rows, violations: found.violations, decisions })
    }
}

impl Found<'_> {
    /// Runs a setup, and keeps what must not be.
    pub fn ran(&mut self, run: &str, setup: &Setup, policy: &dyn Policy) -> Outcome {
        let outcome = crate::run(setup, policy, &mut *self.stopwatch);
        self.violations.extend(outcome.tally.violations.iter().map(|what| format!("{run}: {what}")));
        let known = self.plans_ns.iter_mut().find(|(of, _)| of == run);
        match known {
            Some((_, plans)) => plans.extend(&outcome.measured.plans_ns),
            None => self.plans_ns.push((run.to_owned(), outcome.measured.plans_ns.clone())),
        }
        outcome
    }

    /// Adds a figure: the paper's, and that of each of our runs.
    pub fn add(
        &mut self,
        run: &str,
        (figure, unit): (&'static str, &'static str),
        paper: f64,
        ours: &[f64],
        baseline: bool,
    ) {
        let mean = ours.iter().sum::<f64>() / ours.len().max(1) as f64;
        let half_width_95 = interval(ours).map(|of| of.half_width);
        let run = run.to_owned();
        self.rows.push(Row { run, figure, unit, paper, ours: mean, ratio: mean / paper, half_width_95, baseline });
    }
}

fn decisions(run: String, mut ns: Vec<u64>) -> Option<Decisions> {
    ns.sort_unstable();
    let at = |percent: usize| ns.get((ns.len() * percent).div_ceil(100).saturating_sub(1)).map(|ns| *ns as f64 / 1e6);
    Some(Decisions { run, count: ns.len(), p50_ms: at(50)?, p99_ms: at(99)? })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn scenarios_are_found_by_name() {
        let names = |asked: &[&str]| {
            let asked: Vec<String> = asked.iter().map(|&name| name.to_owned()).collect();
            named(&asked).map(|found| found.iter().map(|scenario| scenario.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), SCENARIOS.len());
        assert_eq!(names(&["ibm-table4", "ibm-table3"]).unwrap(), ["ibm-table3", "ibm-table4"]);
        let error = names(&["ibm-table5"]).unwrap_err().to_string();
        assert!(error.starts_with("`ibm-table5` is no scenario; there are ibm-table3, ibm-table4"), "{error}");
    }

    #[test]
    fn who_needs_a_recording_says_which() {
        let error = pollux_peer::SCENARIO.run(None, 1.0, &mut || 0).unwrap_err().to_string();
        assert!(error.starts_with("pollux-peer needs Pollux's workloads"), "{error}");
    }
}
