//! Ebb's own log as a recording: what `ebb log export` prints becomes jobs and demand that run again under another policy.
//!
//! A job's work is what it trained, from its first generation to its end, each stretch as fast as its slots are by the assumption that jobs
//! without tables are under ([`Curve::Even`]); its duration is what that takes on its most slots. Jobs that failed or were cancelled are as long as
//! they trained; those that never trained, and those that go on after the log's end, are left out and counted.
//!
//! Of a [`Window`] are the jobs that came within it, with all that they trained until their end, whenever that was; and those that were there when it began, with
//! what they trained from then on.
//!
//! Of fleets only the sum is kept. What was never needed at once by all of them is lent all the time, and is the cluster; the rest serves.

mod jobs;

use crate::curve::Curve;
use crate::trace::{TraceJob, Work};
use jobs::{Recorded, Within};
use serde_json::Value;
use std::collections::BTreeMap;
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
    fleets: BTreeMap<String, Fleet>,
    /// Slots that all fleets together have and need, by time; one entry for a moment.
    needed: Vec<(u64, (u64, u64))>,
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

#[derive(Debug, Clone, Default)]
struct Fleet {
    slots: u64,
    needed: u64,
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
    /// Slots that were always lent.
    pub cluster_slots: u64,
    /// Slots of which fleets needed some at times.
    pub inference_slots: u64,
    /// What they needed of those, in slots: seconds from the first submission, and how many from then on.
    pub demand: Vec<(f64, u64)>,
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
        match (kind, number) {
            ("job_accepted", None) => {
                let job = fact["job"].as_str().unwrap_or_default().to_owned();
                self.numbers.insert(job, self.jobs.len());
                self.jobs.push(Recorded::new(at_ms, fact));
            }
            ("fleet_declared", _) => {
                let slots = fact["slots"].as_array().map_or(0, Vec::len) as u64;
                self.fleet(fact).slots = slots;
                self.note_need(at_ms);
            }
            ("demand_accepted", _) => {
                let needed = fact["needed"].as_u64().unwrap_or(0);
                self.fleet(fact).needed = needed;
                self.note_need(at_ms);
            }
            (_, Some(number)) => self.jobs[number].fact(at_ms, kind, fact),
            _ => {}
        }
    }

    fn fleet(&mut self, fact: &Value) -> &mut Fleet {
        self.fleets.entry(fact["fleet"].as_str().unwrap_or_default().to_owned()).or_default()
    }

    fn note_need(&mut self, at_ms: u64) {
        let slots = self.fleets.values().map(|fleet| fleet.slots).sum();
        let needed = self.fleets.values().map(|fleet| fleet.needed.min(fleet.slots)).sum();
        match self.needed.last_mut() {
            Some((at, last)) if *at == at_ms => *last = (slots, needed),
            Some((_, last)) if *last == (slots, needed) => {}
            _ => self.needed.push((at_ms, (slots, needed))),
        }
    }

    /// What all lines together came to within a window.
    #[must_use]
    pub fn finish(self, window: Window) -> Imported {
        let (mut jobs, mut untrained, mut unfinished) = (Vec::new(), 0, 0);
        // What fleets needed counts until the last job has ended.
        let (mut last_ms, mut before) = (window.to_ms.min(self.until_ms), 0);
        for recorded in self.jobs {
            let ended_ms = recorded.ended_ms();
            let speed = |job: &TraceJob, slots: u16| Curve::Even { workers: job.workers }.speed(slots).unwrap_or(0.0);
            match recorded.within(window, speed) {
                Within::Outside => {}
                Within::Unfinished => unfinished += 1,
                Within::Untrained => untrained += 1,
                Within::Ran { job, came_ms, began_before } => {
                    (before, last_ms) = (before + usize::from(began_before), last_ms.max(ended_ms.unwrap_or(0)));
                    jobs.push((came_ms, *job));
                }
            }
        }
        jobs.sort_by_key(|(came_ms, _)| *came_ms);
        let begins_ms = window.from_ms.max(self.from_ms.unwrap_or(0));
        let first_ms = jobs.first().map_or(begins_ms, |(came_ms, _)| *came_ms);
        let jobs =
            jobs.into_iter().map(|(came_ms, job)| TraceJob { submitted_ms: came_ms - first_ms, ..job }).collect();
        let needed = clipped(&self.needed, (first_ms, last_ms));
        let slots = needed.iter().map(|(_, (slots, _))| *slots).max().unwrap_or(0);
        let most = needed.iter().map(|(_, (_, needed))| *needed).max().unwrap_or(0);
        let demand = needed.iter().map(|(ms, (_, needed))| (*ms as f64 / 1e3, *needed)).collect();
        let (cluster_slots, inference_slots) = (slots.saturating_sub(most), most.min(slots));
        Imported { jobs, began_before: before, untrained, unfinished, cluster_slots, inference_slots, demand }
    }
}

/// What was so between two moments, by what changed when: in milliseconds from the first of them, at which something is said, and so it is at the last.
fn clipped<T: Copy + Default + PartialEq>(changes: &[(u64, T)], (from_ms, until_ms): (u64, u64)) -> Vec<(u64, T)> {
    let begins = changes.partition_point(|(at_ms, _)| *at_ms <= from_ms);
    let ends = changes.partition_point(|(at_ms, _)| *at_ms <= until_ms).max(begins);
    let first = begins.checked_sub(1).and_then(|at| changes.get(at)).map_or_else(T::default, |(_, first)| *first);
    let mut found = vec![(0, first)];
    found.extend(changes[begins..ends].iter().map(|(at_ms, of)| (at_ms - from_ms, *of)));
    let (last_ms, last) = (until_ms.saturating_sub(from_ms), found[found.len() - 1]);
    if last.0 < last_ms {
        found.push((last_ms, last.1));
    }
    found
}

impl Imported {
    /// The jobs as CSV that [`crate::Format::Csv`] reads.
    #[must_use]
    pub fn jobs_csv(&self) -> String {
        let mut text = "name,submitted_s,duration_s,workers,min_workers,max_workers,tenant,priority\n".to_owned();
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        for job in &self.jobs {
            let seconds = if let Work::Seconds(seconds) = job.work { seconds } else { f64::NAN };
            let (min, max) = (job.min.unwrap_or(1), job.max.unwrap_or(job.workers));
            let (submitted_s, tenant) = (job.submitted_ms as f64 / 1e3, job.tenant.as_deref().unwrap_or_default());
            let (name, workers, priority) = (quoted(&job.name), job.workers, job.priority);
            let tenant = quoted(tenant);
            let _ = writeln!(text, "{name},{submitted_s},{seconds:.3},{workers},{min},{max},{tenant},{priority}");
        }
        text
    }

    /// The demand as CSV: `t` in seconds and `needed` in slots, where it changes.
    #[must_use]
    pub fn demand_csv(&self) -> String {
        let rows = self.demand.iter().map(|(at_s, needed)| format!("{at_s},{needed}\n"));
        rows.fold("t,needed\n".to_owned(), |text, row| text + &row)
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
        let needs = |needed: u64| json!({"fact": "demand_accepted", "fleet": "f", "needed": needed});
        vec![
            (1_000, vec![fleet, needs(3)]),
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
        assert_eq!((found.cluster_slots, found.demand), (2, vec![(0.0, 1), (5.0, 2), (20.0, 0)]));
        let all = within(Window::default(), &four());
        assert_eq!((all.jobs.len(), all.jobs[3].submitted_ms, all.demand[0]), (4, 18_000, (0.0, 3)));
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
    fn what_nobody_ever_needs_is_the_cluster() {
        let fleet =
            |name: &str, slots: usize| json!({"fact": "fleet_declared", "fleet": name, "slots": vec!["s/0"; slots]});
        let needs = |name: &str, needed: u64| json!({"fact": "demand_accepted", "fleet": name, "sequence": 1, "needed": needed});
        let found = imported(&[
            (1_000, vec![fleet("a", 8), fleet("b", 4)]),
            (3_000, vec![needs("a", 5), needs("b", 1)]),
            (4_000, vec![needs("a", 2)]),
            (9_000, vec![]),
        ]);
        assert_eq!((found.cluster_slots, found.inference_slots), (6, 6));
        assert_eq!(found.demand, [(0.0, 0), (2.0, 6), (3.0, 3), (8.0, 3)]);
        assert_eq!(found.demand_csv(), "t,needed\n0,0\n2,6\n3,3\n8,3\n");
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
