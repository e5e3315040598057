//! What each job has had: when it first trained, and for how long it held slots. Folded from facts and their times. Pure.
//!
//! A slot is held from the moment at which an executor is put on it until that executor's process is gone: so long nobody else could use it.

use events_schema::fact::Fact;
use events_schema::{ExecutorId, JobId, TimeMs};
use std::collections::BTreeMap;

/// What one job has had.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// When a membership of it was first in force.
    pub started_at: Option<TimeMs>,
    /// Slot time of executors that are gone.
    ended_ms: u64,
    /// Since when those that are there hold their slots, by number.
    held: BTreeMap<u32, TimeMs>,
}

impl Usage {
    /// Slot time up to a moment, in milliseconds.
    #[must_use]
    pub fn slot_ms(&self, now: TimeMs) -> u64 {
        self.held.values().fold(self.ended_ms, |sum, since| sum.saturating_add(now.since_ms(*since)))
    }
}

/// What all jobs have had.
#[derive(Debug, Default)]
pub struct Usages(BTreeMap<JobId, Usage>);

impl Usages {
    /// What a job has had.
    #[must_use]
    pub fn of(&self, job: &JobId) -> &Usage {
        const NOTHING: &Usage = &Usage { started_at: None, ended_ms: 0, held: BTreeMap::new() };
        self.0.get(job).unwrap_or(NOTHING)
    }

    /// Takes in a fact of this time.
    pub fn apply(&mut self, at: TimeMs, fact: &Fact) {
        match fact {
            // A job of this id may have been there before: forgotten, and submitted again.
            Fact::JobAccepted { job, .. } => {
                self.0.insert(job.clone(), Usage::default());
            }
            Fact::GenerationActive { job, .. } => {
                if let Some(usage) = self.0.get_mut(job) {
                    usage.started_at.get_or_insert(at);
                }
            }
            Fact::ExecutorAssigned { executor: ExecutorId { job, number }, .. } => {
                if let Some(usage) = self.0.get_mut(job) {
                    usage.held.insert(*number, at);
                }
            }
            Fact::ExecutorGone { executor: ExecutorId { job, number }, .. } => {
                let Some(usage) = self.0.get_mut(job) else { return };
                if let Some(since) = usage.held.remove(number) {
                    usage.ended_ms = usage.ended_ms.saturating_add(at.since_ms(since));
                }
            }
            _ => {}
        }
    }

    /// Drops jobs that are remembered by nobody else.
    pub fn retain(&mut self, is_remembered: impl Fn(&JobId) -> bool) {
        self.0.retain(|job, _| is_remembered(job));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::report::ExitCause;
    use events_schema::{Generation, SlotId, Step};
    use serde_json::json;

    #[test]
    fn a_slot_is_held_until_its_process_is_gone() {
        let job: JobId = "job-a".parse().unwrap();
        let slot: SlotId = "local/0".parse().unwrap();
        let executor = |number| ExecutorId { job: job.clone(), number };
        let document = json!({"name": "a", "model": {"kind": "mlp"}, "dataset": "d", "batch_size": 8, "epochs": 3});
        let accepted = Fact::JobAccepted {
            job: job.clone(),
            tenant: "local".parse().unwrap(),
            command: "cmd-1".parse().unwrap(),
            spec: Box::new(events_schema::job::JobSpec::parse(&document).unwrap()),
            body_digest: events_schema::Digest([1; 32]),
        };
        let active = |generation| Fact::GenerationActive { job: job.clone(), generation, step: Step(0), pause_us: 0 };
        let gone = |number| Fact::ExecutorGone {
            executor: executor(number),
            slot: slot.clone(),
            exit: ExitCause::Killed,
            awaited_until: None,
            verdict: None,
        };
        let assigned = |number| Fact::ExecutorAssigned { executor: executor(number), slot: slot.clone() };
        let mut usages = Usages::default();
        for (at, fact) in [
            (1_000, accepted),
            (2_000, assigned(0)),
            (2_500, assigned(1)),
            (3_000, active(Generation(1))),
            (5_000, gone(1)),
            // Told again.
            (5_500, gone(1)),
            (6_000, active(Generation(2))),
        ] {
            usages.apply(TimeMs(at), &fact);
        }
        let usage = usages.of(&job);
        assert_eq!(usage.started_at, Some(TimeMs(3_000)));
        assert_eq!(usage.slot_ms(TimeMs(7_000)), 2_500 + 5_000);
        usages.apply(TimeMs(8_000), &gone(0));
        assert_eq!(usages.of(&job).slot_ms(TimeMs(60_000)), 2_500 + 6_000);
        usages.retain(|_| false);
        assert_eq!(*usages.of(&job), Usage::default());
    }
}
