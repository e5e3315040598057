//! Ebb's own log as a recording: what `ebb log export` prints becomes jobs and demand that run again under another policy.
//!
//! A job's work is what it trained, from its first generation to its end, each stretch as fast as its slots are by the assumption that jobs
//! without tables are under ([`Curve::Even`]); its duration is what that takes on its most slots. Jobs that failed or were cancelled are as long as
//! they trained; those that never trained, and those that go on after the log's end, are left out and counted.
//!
//! Of a [`Window`] are the jobs that came within it, with all that they trained until their end, whenever that was; and those that were there when it began, with
//! what they trained from then on.
//!
//! Servers that are alike are a group of each fleet. Those of whom everything was lent all the time are the cluster; of the others it is known how many slots were
//! kept when, by demand, by name or by a recall. What a run has no place for is said, and not left out in silence.

mod fleets;
mod jobs;
mod service;

pub use fleets::Serving;
pub use service::Policy;

use crate::cluster::Cluster;
use crate::curve::Curve;
use crate::trace::{TraceJob, Work};
use fleets::Fleets;
use jobs::{Recorded, Traits, Within};
use serde_json::Value;
use service::Service;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// What of a log is a recording, line by line.
#[derive(Debug, Clone, Default)]
pub struct Import {
    lines: usize,
    /// When the first batch and the last one were made.
    from_ms: Option<u64>,
    until_ms: u64,
    /// In the order of their acceptance.
    jobs: Vec<Recorded>,
    numbers: BTreeMap<String, usize>,
    fleets: Fleets,
    service: Service,
}

/// A part of a log, by its clock: from a moment on, and before another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// In milliseconds since 1970.
    pub from_ms: u64,
    /// The first that is not in it.
    pub to_ms: u64,
}

impl Default for Window {
    /// All of a log.
    fn default() -> Self {
        Self { from_ms: 0, to_ms: u64::MAX }
    }
}

/// Why a line is none of an export.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is no line of `ebb log export`: {why}")]
pub struct ImportError {
    line: usize,
    why: String,
}

/// A recording that a log came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// By their submission, as [`crate::Format::Csv`] has them.
    pub jobs: Vec<TraceJob>,
    /// Those among them that had come before the window began, and had not ended.
    pub began_before: usize,
    /// Jobs that never trained.
    pub untrained: usize,
    /// Jobs that had not ended where the log does.
    pub unfinished: usize,
    /// Servers all of whose slots were lent all the time.
    pub cluster: Cluster,
    /// Fleets' servers that were not.
    pub serving: Vec<Serving>,
    /// From a reclaim to the kill; the longest that a fleet allows.
    pub reclaim_deadline_ms: Option<u64>,
    /// Whether slots had guest slots.
    pub guests: bool,
    /// Whether the jobs may be on several types of slots at once, and whether they are measured before they settle.
    pub mixed_types: bool,
    /// See there.
    pub profile: bool,
    /// Slots that tenants had guaranteed.
    pub quotas: BTreeMap<String, u32>,
    /// Who planned.
    pub policy: Option<Policy>,
    /// How long a process took to start, and how large a replica was, in the mean.
    pub start_ms: Option<u64>,
    /// See there.
    pub replica_mb: Option<u64>,
    /// What a run cannot have as it was, in words.
    pub left_out: Vec<String>,
}

impl Import {
    /// Takes a line of the export; empty ones are passed over.
    pub fn line(&mut self, text: &str) -> Result<(), ImportError> {
        self.lines += 1;
        if text.trim().is_empty() {
            return Ok(());
        }
        let wrong = |why: &str| ImportError { line: self.lines, why: why.to_owned() };
        let record: Value = serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
        let Some(at_ms) = record["at_ms"].as_u64() else {
            return Err(wrong("it has no `at_ms`; expected the lines that the command prints, each a JSON object"));
        };
        let Some(facts) = record["facts"].as_array() else {
            // An operator's word that a record is passed over: nothing that happened.
            return record.get("passes_over").map(drop).ok_or_else(|| wrong("it has no `facts`"));
        };
        // The clock of another controller may be behind.
        let at_ms = at_ms.max(self.until_ms);
        self.from_ms.get_or_insert(at_ms);
        self.until_ms = at_ms;
        for fact in facts {
            self.fact(at_ms, fact);
        }
        Ok(())
    }

    /// When the first of what it took happened and when the last, if it took anything.
    #[must_use]
    pub fn lasts_ms(&self) -> Option<(u64, u64)> {
        Some((self.from_ms?, self.until_ms))
    }

    fn fact(&mut self, at_ms: u64, fact: &Value) {
        let kind = fact["fact"].as_str().unwrap_or_default();
        let number = fact["job"].as_str().and_then(|job| self.numbers.get(job).copied());
        match number {
            None if kind == "job_accepted" => {
                let job = fact["job"].as_str().unwrap_or_default().to_owned();
                self.numbers.insert(job, self.jobs.len());
                self.jobs.push(Recorded::new(at_ms, fact));
            }
            Some(number) => self.jobs[number].fact(at_ms, kind, fact),
            None => {}
        }
        self.fleets.fact(at_ms, kind, fact);
        self.service.fact(at_ms, kind, fact);
    }

    /// What all lines together came to within a window.
    #[must_use]
    pub fn finish(self, window: Window) -> Imported {
        let (mut ran, mut untrained, mut unfinished) = (Vec::new(), 0, 0);
        // What fleets needed counts until the last job has ended.
        let mut last_ms = window.to_ms.min(self.until_ms);
        for recorded in self.jobs {
            let ended_ms = recorded.ended_ms();
            let speed = |job: &TraceJob, slots: u16| Curve::Even { workers: job.workers }.speed(slots).unwrap_or(0.0);
            match recorded.within(window, speed) {
                Within::Outside => {}
                Within::Unfinished => unfinished += 1,
                Within::Untrained => untrained += 1,
                Within::Ran { job, traits, came_ms, began_before } => {
                    last_ms = last_ms.max(ended_ms.unwrap_or(0));
                    ran.push((came_ms, began_before, *job, traits));
                }
            }
        }
        ran.sort_by_key(|(came_ms, ..)| *came_ms);
        let begins_ms = window.from_ms.max(self.from_ms.unwrap_or(0));
        let first_ms = ran.first().map_or(begins_ms, |(came_ms, ..)| *came_ms);
        let fleets = self.fleets.between((first_ms, last_ms));
        let service = self.service.between((first_ms, last_ms));
        let traits: Vec<Traits> = ran.iter().map(|(.., traits)| *traits).collect();
        let mut found = Imported {
            began_before: ran.iter().filter(|(_, before, ..)| *before).count(),
            jobs: ran.into_iter().map(|(at, _, job, _)| TraceJob { submitted_ms: at - first_ms, ..job }).collect(),
            untrained,
            unfinished,
            cluster: fleets.cluster,
            serving: fleets.serving,
            reclaim_deadline_ms: fleets.deadline_ms,
            guests: fleets.guests,
            mixed_types: traits.iter().all(|of| of.any_type) && !traits.is_empty(),
            profile: traits.iter().all(|of| of.profiled) && !traits.is_empty(),
            quotas: service.quotas,
            policy: service.policy,
            start_ms: service.start_ms,
            replica_mb: service.replica_mb,
            left_out: Vec::new(),
        };
        found.of_devices(&traits, &fleets.devices, fleets.others);
        found.say_of_jobs(&traits);
        found.left_out.extend(fleets.left_out);
        found.left_out.extend(service.left_out);
        found
    }
}

impl Imported {
    /// Jobs that need a device have the only type of slots that are, where others are lent too.
    fn of_devices(&mut self, traits: &[Traits], devices: &BTreeSet<String>, others: bool) {
        if !others {
            return;
        }
        let need = || traits.iter().filter(|of| of.device).count();
        match devices.first() {
            Some(only) if devices.len() == 1 => {
                let those = self.jobs.iter_mut().zip(traits).filter(|(_, of)| of.device);
                those.for_each(|(job, _)| job.only = Some(only.clone()));
            }
            _ if need() > 0 => {
                self.left_out.push(format!("which slots are devices: jobs that need one take any ({})", need()));
            }
            _ => {}
        }
    }

    fn say_of_jobs(&mut self, traits: &[Traits]) {
        let sum = |of: fn(&Traits) -> usize| traits.iter().map(of).sum::<usize>();
        let some = |of: fn(&Traits) -> bool, all: bool| traits.iter().filter(|job| of(job) && !all).count();
        let said = [
            (self.untrained, "jobs that never trained"),
            (self.unfinished, "jobs that go on"),
            (sum(|of| of.suspensions), "suspensions: who was suspended goes on"),
            (sum(|of| of.restarts), "that jobs went back to checkpoints: what they trained again is more work"),
            (sum(|of| of.gang.into()), "that whole programs make no steps: they are jobs as others"),
            (some(|of| of.any_type, self.mixed_types), "that some jobs may be on several types at once: none is"),
            (some(|of| of.profiled, self.profile), "that some jobs are measured before they settle: none is"),
        ];
        let said = said.into_iter().filter(|(count, _)| *count > 0);
        self.left_out.extend(said.map(|(count, what)| format!("{what} ({count})")));
    }
}

/// What was so between two moments, by what changed when: in milliseconds from the first of them, at which something is said, and so it is at the last.
fn clipped<T: Clone + Default>(changes: &[(u64, T)], (from_ms, until_ms): (u64, u64)) -> Vec<(u64, T)> {
    let begins = changes.partition_point(|(at_ms, _)| *at_ms <= from_ms);
    let ends = changes.partition_point(|(at_ms, _)| *at_ms <= until_ms).max(begins);
    let first =
        begins.checked_sub(1).and_then(|at| changes.get(at)).map_or_else(T::default, |(_, first)| first.clone());
    let mut found = vec![(0, first)];
    found.extend(changes[begins..ends].iter().map(|(at_ms, of)| (at_ms - from_ms, of.clone())));
    let last_ms = until_ms.saturating_sub(from_ms);
    if let Some((_, last)) = found.last().filter(|(ms, _)| *ms < last_ms).cloned() {
        found.push((last_ms, last));
    }
    found
}

impl Imported {
    /// The jobs as CSV that [`crate::Format::Csv`] reads.
    #[must_use]
    pub fn jobs_csv(&self) -> String {
        let mut text =
            "name,submitted_s,duration_s,workers,min_workers,max_workers,tenant,priority,slot_type\n".to_owned();
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        for job in &self.jobs {
            let seconds = if let Work::Seconds(seconds) = job.work { seconds } else { f64::NAN };
            let (min, max) = (job.min.unwrap_or(1), job.max.unwrap_or(job.workers));
            let (submitted_s, tenant) = (job.submitted_ms as f64 / 1e3, job.tenant.as_deref().unwrap_or_default());
            let (name, workers, priority) = (quoted(&job.name), job.workers, job.priority);
            let (tenant, only) = (quoted(tenant), job.only.as_deref().unwrap_or_default());
            let _ =
                writeln!(text, "{name},{submitted_s},{seconds:.3},{workers},{min},{max},{tenant},{priority},{only}");
        }
        text
    }

    /// What fleets keep, as CSV: `t` in seconds, and a column of slots for each of them.
    #[must_use]
    pub fn demand_csv(&self) -> String {
        let moments: BTreeSet<u64> = self.serving.iter().flat_map(|of| of.kept.iter().map(|(ms, _)| *ms)).collect();
        let header = self.serving.iter().map(|of| format!(",{}", of.column()));
        let mut text = format!("t{}\n", header.collect::<String>());
        for ms in moments {
            let _ = write!(text, "{}", ms as f64 / 1e3);
            for of in &self.serving {
                let so_far = of.kept.partition_point(|(at, _)| *at <= ms);
                let kept = so_far.checked_sub(1).and_then(|last| of.kept.get(last)).map_or(0, |(_, kept)| *kept);
                let _ = write!(text, ",{kept}");
            }
            text.push('\n');
        }
        text
    }
}

impl Serving {
    /// Its column of [`Imported::demand_csv`].
    #[must_use]
    pub fn column(&self) -> String {
        format!("{}_keeps", self.name)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::trace::{Format, parse};
    use serde_json::json;

    fn imported(batches: &[(u64, Vec<Value>)]) -> Imported {
        within(Window::default(), batches)
    }

    fn within(window: Window, batches: &[(u64, Vec<Value>)]) -> Imported {
        let mut import = Import::default();
        for (at_ms, facts) in batches {
            import
                .line(&json!({"offset": 1, "at_ms": at_ms, "term": 0, "sequence": 0, "facts": facts}).to_string())
                .unwrap();
        }
        import.finish(window)
    }

    fn accepted(job: &str, min: u16, max: u16) -> Value {
        let spec = json!({"name": "a \"b\", c", "workers": {"min": min, "max": max}, "priority": 2});
        json!({"fact": "job_accepted", "job": job, "tenant": "local", "spec": spec})
    }

    fn planned(job: &str, slots: usize) -> Value {
        json!({"fact": "plan_adopted", "job": job, "slots": vec!["s/0"; slots]})
    }

    fn of(fact: &str, job: &str) -> Value {
        json!({"fact": fact, "job": job})
    }

    #[test]
    fn work_is_what_was_trained_on_the_slots_that_there_were() {
        let found = imported(&[
            (5_000, vec![accepted("a", 1, 4), planned("a", 2)]),
            (9_000, vec![of("generation_active", "a")]),
            // Ten seconds on two slots, five on four, and a minute of waiting and starting that is none.
            (19_000, vec![planned("a", 4)]),
            (24_000, vec![planned("a", 0)]),
            (80_000, vec![planned("a", 1)]),
            (84_000, vec![of("generation_active", "a")]),
            (88_000, vec![of("job_finished", "a")]),
        ]);
        assert_eq!((found.jobs.len(), found.untrained, found.unfinished), (1, 0, 0));
        // (10 × 2 + 5 × 4 + 4 × 1) ÷ 4.
        assert_eq!(found.jobs[0].work, Work::Seconds(11.0));
        let read = parse(&found.jobs_csv(), Format::Csv).unwrap();
        let job = &read[0];
        assert_eq!((job.workers, job.min, job.max, job.priority), (4, Some(1), Some(4), 2));
        assert_eq!((job.name.as_str(), job.tenant.as_deref()), ("a a \"b\", c", Some("local")));
        assert_eq!(job.work, Work::Seconds(11.0));
    }

    /// Four jobs: one over before 10 s, one from before it to 22 s, one from 12 to 30 s, and one that comes at 20 s.
    fn four() -> Vec<(u64, Vec<Value>)> {
        let starts = |job: &str| vec![accepted(job, 1, 1), planned(job, 1), of("generation_active", job)];
        let fleet = json!({"fact": "fleet_declared", "fleet": "f", "slots": ["s/0", "s/1", "s/2", "s/3"]});
        let server = json!({"fact": "agent_joined", "server": "s", "slots": 4, "class": "c"});
        let needs = |needed: u64| json!({"fact": "demand_accepted", "fleet": "f", "needed": needed});
        vec![
            (1_000, vec![server, fleet, needs(3)]),
            (2_000, starts("over")),
            (4_000, [starts("before"), vec![of("job_finished", "over"), needs(1)]].concat()),
            (12_000, starts("in")),
            (15_000, vec![needs(2)]),
            (20_000, starts("after")),
            (22_000, vec![of("job_finished", "before")]),
            (30_000, vec![of("job_finished", "in"), needs(0)]),
            (40_000, vec![of("job_finished", "after")]),
        ]
    }

    #[test]
    fn of_a_window_are_the_jobs_that_were_there_with_all_that_they_trained_from_its_beginning_on() {
        let found = within(Window { from_ms: 10_000, to_ms: 20_000 }, &four());
        let of = |job: &TraceJob| (job.name.clone(), job.submitted_ms, job.work);
        let jobs: Vec<_> = found.jobs.iter().map(of).collect();
        let named = |name: &str| format!("{name} a \"b\", c");
        assert_eq!(
            jobs,
            [(named("before"), 0, Work::Seconds(12.0)), (named("in"), 2_000, Work::Seconds(18.0))],
            "the first was there already, the second ended after it, and what was over or had not come is none of it"
        );
        assert_eq!((found.began_before, found.untrained, found.unfinished), (1, 0, 0));
        // Needs count from the first job's beginning to the last one's end.
        assert_eq!(found.serving[0].kept, [(0, 1), (5_000, 2), (20_000, 0)]);
        let all = within(Window::default(), &four());
        assert_eq!((all.jobs.len(), all.jobs[3].submitted_ms, all.serving[0].kept[0]), (4, 18_000, (0, 3)));
    }

    #[test]
    fn who_never_trained_or_goes_on_is_counted_and_left_out() {
        let found = imported(&[
            (0, vec![accepted("a", 1, 1), accepted("b", 1, 1), accepted("c", 1, 1), planned("c", 1)]),
            (1_000, vec![of("job_cancelled", "a"), of("generation_active", "c")]),
            (3_000, vec![of("job_failed", "c")]),
        ]);
        assert_eq!((found.jobs.len(), found.untrained, found.unfinished), (1, 1, 1));
        assert_eq!(found.jobs[0].work, Work::Seconds(2.0));
    }

    #[test]
    fn a_line_of_something_else_is_named() {
        let mut import = Import::default();
        import.line("").unwrap();
        import.line("{\"offset\":2,\"at_ms\":5,\"passes_over\":{}}").unwrap();
        let error = import.line("{\"a\":1}").unwrap_err().to_string();
        assert!(error.starts_with("line 3 is no line of `ebb log export`: it has no `at_ms`"), "{error}");
        assert!(import.line("x").is_err());
    }
}
