//! Many runs, one seed after the other, and what they came to together.

use crate::checks::Finding;
use crate::mutants::Mutants;
use crate::run::{Outcome, run};
use crate::schedule::Schedule;
use crate::shrink::shrink;
use crate::weather;
use std::collections::BTreeMap;

/// A seed whose run was not as it has to be.
#[derive(Debug, Clone)]
pub struct Found {
    pub seed: u64,
    pub finding: Finding,
    pub schedule: Schedule,
}

impl Found {
    /// The schedule with as few entries as are enough; written to a file, it replays. Takes many runs.
    #[must_use]
    pub fn smallest(&self) -> Schedule {
        shrink(&self.schedule, &Mutants::default())
    }
}

/// What runs came to.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub schedules: u64,
    pub events: u64,
    pub steps: u64,
    pub batches: u64,
    /// The longest run, in milliseconds of true time.
    pub longest_ms: u64,
    pub entries: u64,
    pub findings: Vec<Found>,
    /// How often which fault met which phase.
    pub met: BTreeMap<(&'static str, &'static str), u64>,
}

impl Tally {
    /// Runs the schedule of a seed.
    pub fn add(&mut self, seed: u64) {
        self.run(seed, weather::schedule(seed));
    }

    /// Runs a schedule that goes by the name of a seed.
    pub fn run(&mut self, seed: u64, schedule: Schedule) {
        let outcome = run(&schedule, &Mutants::default());
        self.count(&schedule, &outcome);
        if let Some(finding) = outcome.finding {
            self.findings.push(Found { seed, finding, schedule });
        }
    }

    fn count(&mut self, schedule: &Schedule, outcome: &Outcome) {
        self.schedules += 1;
        self.events += outcome.events;
        self.steps += outcome.steps;
        self.batches += outcome.batches;
        self.longest_ms = self.longest_ms.max(outcome.time_ms);
        self.entries += schedule.entries.len() as u64;
        for (key, times) in &outcome.met {
            *self.met.entry(*key).or_default() += times;
        }
    }

    /// The counters as a table: one line for each fault, with the phases that it met.
    #[must_use]
    pub fn table(&self) -> String {
        let mut lines: BTreeMap<&str, String> = BTreeMap::new();
        for ((act, phase), times) in &self.met {
            let line = lines.entry(act).or_default();
            *line += &format!(" {phase} {times},");
        }
        lines.iter().map(|(act, line)| format!("{act:>22}:{}\n", line.trim_end_matches(','))).collect()
    }
}
