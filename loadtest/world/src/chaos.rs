//! Many runs, one seed after the other, and what they came to together.

use crate::checks::{Finding, Met};
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
    mutants: Mutants,
}

impl Found {
    /// The schedule with as few entries as are enough; written to a file, it replays. Takes many runs.
    #[must_use]
    pub fn smallest(&self) -> Schedule {
        shrink(&self.schedule, &self.mutants)
    }
}

/// What runs came to.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub schedules: u64,
    pub events: u64,
    pub steps: u64,
    pub batches: u64,
    /// How many runs took so many seconds of virtual time.
    pub lengths_s: BTreeMap<u64, u64>,
    pub entries: u64,
    pub findings: Vec<Found>,
    /// How often which fault met which phase of a schedule's first job, and of any other.
    pub met: Met,
    pub met_others: Met,
    mutants: Mutants,
}

impl Tally {
    /// Of no run yet; in all of them these mended defects are switched on again.
    #[must_use]
    pub fn with(mutants: Mutants) -> Self {
        Self { mutants, ..Self::default() }
    }

    /// Runs the schedule of a seed.
    pub fn add(&mut self, seed: u64) {
        self.run(seed, weather::schedule(seed));
    }

    /// Runs a schedule that goes by the name of a seed.
    pub fn run(&mut self, seed: u64, schedule: Schedule) {
        let outcome = run(&schedule, &self.mutants);
        self.count(&schedule, &outcome);
        if let Some(finding) = outcome.finding {
            self.findings.push(Found { seed, finding, schedule, mutants: self.mutants.clone() });
        }
    }

    fn count(&mut self, schedule: &Schedule, outcome: &Outcome) {
        self.schedules += 1;
        self.events += outcome.events;
        self.steps += outcome.steps;
        self.batches += outcome.batches;
        *self.lengths_s.entry(outcome.time_ms / 1_000).or_default() += 1;
        self.entries += schedule.entries.len() as u64;
        for (all, met) in [(&mut self.met, &outcome.met), (&mut self.met_others, &outcome.met_others)] {
            for (key, times) in met {
                *all.entry(*key).or_default() += times;
            }
        }
    }

    /// The length that so many percent of the runs do not exceed, in seconds of virtual time.
    fn length_s(&self, percent: u64) -> u64 {
        let wanted = (self.schedules * percent).div_ceil(100).max(1);
        let mut runs = 0;
        let reached = self.lengths_s.iter().find(|(_, times)| {
            runs += **times;
            runs >= wanted
        });
        reached.map_or(0, |(seconds, _)| *seconds)
    }

    /// How much was run, how fast by a clock that showed so many seconds, and how long the schedules are. All is done by one thread.
    #[must_use]
    pub fn summary(&self, seconds: f64) -> String {
        let Self { schedules, events, steps, batches, entries, .. } = self;
        let (per_second, per_schedule) =
            (*events as f64 / seconds.max(1e-9), *entries as f64 / (*schedules).max(1) as f64);
        let [half, most, all] = [50, 90, 100].map(|percent| self.length_s(percent));
        format!(
            "{schedules} schedules, {events} events, {seconds:.1} s, {per_second:.0} events/s on one core; {steps} steps, {batches} batches\n\
             a schedule has {per_schedule:.1} entries and takes {half} s of virtual time (median), {most} s (of 90 %), {all} s (the longest)"
        )
    }

    /// The counters as a table: one line for each fault, with the phases of jobs that it met.
    #[must_use]
    pub fn table(&self) -> String {
        let mut met = self.met.clone();
        self.met_others.iter().for_each(|(key, times)| *met.entry(*key).or_default() += times);
        let mut lines: BTreeMap<&str, String> = BTreeMap::new();
        for ((act, phase), times) in &met {
            let line = lines.entry(act).or_default();
            *line += &format!(" {phase} {times},");
        }
        lines.iter().map(|(act, line)| format!("{act:>22}:{}\n", line.trim_end_matches(','))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_of_so_many_percent_of_the_runs() {
        let tally = Tally { schedules: 10, lengths_s: [(60, 5), (90, 4), (700, 1)].into(), ..Tally::default() };
        assert_eq!([1, 50, 51, 90, 91, 100].map(|percent| tally.length_s(percent)), [60, 60, 90, 90, 700, 700]);
        assert_eq!(Tally::default().length_s(50), 0);
    }
}
