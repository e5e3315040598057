//! Ebb's own log as a recording: what `ebb log export` prints becomes jobs and demand that run again under another policy.
//!
//! A job's work is what it trained, from its first generation to its end, each stretch as fast as its slots are by the assumption that jobs
//! without tables are under ([`Curve::Even`]); its duration is what that takes on its most slots. Jobs that failed or were cancelled are as long as
//! they trained; those that never trained, and those that go on after the log's end, are left out and counted.
//!
//! Of fleets only the sum is kept. What was never needed at once by all of them is lent all the time, and is the cluster; the rest serves.

use crate::curve::Curve;
use crate::trace::{TraceJob, Work};
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
    /// Slots that all fleets together need, by time; one entry for a moment.
    needed: Vec<(u64, u64)>,
}

#[derive(Debug, Clone)]
struct Recorded {
    job: TraceJob,
    slots: u16,
    /// Whether it has trained: from then on slots count.
    trains: bool,
    since_ms: u64,
    /// Time on a single slot that it has trained for.
    done_ms: f64,
    ended: bool,
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
    /// Jobs that never trained.
    pub untrained: usize,
    /// Jobs that had not ended where the log does.
    pub unfinished: usize,
    /// Slots that were always lent.
    pub cluster_slots: u64,
    /// Slots of which fleets needed some at times.
    pub inference_slots: u64,
    /// What they needed of those, in slots: seconds from the log's beginning, and how many from then on.
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

    fn fact(&mut self, at_ms: u64, fact: &Value) {
        let number = fact["job"].as_str().and_then(|job| self.numbers.get(job).copied());
        match (fact["fact"].as_str().unwrap_or_default(), number) {
            ("job_accepted", None) => self.accepted(at_ms, fact),
            ("plan_adopted", Some(number)) => {
                let slots = fact["slots"].as_array().map_or(0, Vec::len);
                self.jobs[number].go_on(at_ms, slots as u16);
            }
            ("generation_active", Some(number)) => {
                let job = &mut self.jobs[number];
                job.go_on(at_ms, job.slots);
                job.trains = true;
            }
            ("job_suspended", Some(number)) => self.jobs[number].go_on(at_ms, 0),
            ("job_finished" | "job_failed" | "job_cancelled", Some(number)) => {
                let job = &mut self.jobs[number];
                job.go_on(at_ms, 0);
                job.ended = true;
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
            _ => {}
        }
    }

    fn accepted(&mut self, at_ms: u64, fact: &Value) {
        let (spec, text) = (&fact["spec"], |value: &Value| value.as_str().unwrap_or_default().to_owned());
        let bound = |key: &str| spec["workers"][key].as_u64().and_then(|bound| u16::try_from(bound).ok()).unwrap_or(1);
        let name = format!("{} {}", text(&fact["job"]), text(&spec["name"]));
        let job = TraceJob {
            submitted_ms: at_ms - self.from_ms.unwrap_or(at_ms),
            min: Some(bound("min")),
            max: Some(bound("max")),
            tenant: spec["tenant"].as_str().or(fact["tenant"].as_str()).map(str::to_owned),
            priority: spec["priority"].as_i64().and_then(|priority| i32::try_from(priority).ok()).unwrap_or(0),
            ..TraceJob::new(name, bound("max"), Work::Seconds(0.0))
        };
        self.numbers.insert(text(&fact["job"]), self.jobs.len());
        self.jobs.push(Recorded { job, slots: 0, trains: false, since_ms: at_ms, done_ms: 0.0, ended: false });
    }

    fn fleet(&mut self, fact: &Value) -> &mut Fleet {
        self.fleets.entry(fact["fleet"].as_str().unwrap_or_default().to_owned()).or_default()
    }

    fn note_need(&mut self, at_ms: u64) {
        let needed = self.fleets.values().map(|fleet| fleet.needed.min(fleet.slots)).sum();
        match self.needed.last_mut() {
            Some((at, last)) if *at == at_ms => *last = needed,
            Some((_, last)) if *last == needed => {}
            _ => self.needed.push((at_ms, needed)),
        }
    }

    /// What all lines together came to.
    #[must_use]
    pub fn finish(self) -> Imported {
        let from_ms = self.from_ms.unwrap_or(0);
        let (mut jobs, mut untrained, mut unfinished) = (Vec::new(), 0, 0);
        for recorded in self.jobs {
            match (recorded.ended, recorded.done_ms > 0.0) {
                (false, _) => unfinished += 1,
                (true, false) => untrained += 1,
                (true, true) => jobs.push(recorded.job()),
            }
        }
        let slots: u64 = self.fleets.values().map(|fleet| fleet.slots).sum();
        let most = self.needed.iter().map(|(_, needed)| *needed).max().unwrap_or(0);
        let mut demand: Vec<(f64, u64)> =
            self.needed.iter().map(|(at_ms, needed)| ((at_ms - from_ms) as f64 / 1e3, *needed)).collect();
        // A curve begins with the log and lasts as long.
        if demand.first().is_some_and(|(at_s, _)| *at_s > 0.0) {
            demand.insert(0, (0.0, 0));
        }
        let until_s = (self.until_ms - from_ms) as f64 / 1e3;
        if let Some((_, needed)) = demand.last().copied().filter(|(at_s, _)| *at_s < until_s) {
            demand.push((until_s, needed));
        }
        let (cluster_slots, inference_slots) = (slots.saturating_sub(most), most.min(slots));
        Imported { jobs, untrained, unfinished, cluster_slots, inference_slots, demand }
    }
}

impl Recorded {
    fn speed(&self, slots: u16) -> f64 {
        let most = self.job.workers;
        Curve::Even { workers: most }.speed(slots.min(most)).unwrap_or(0.0)
    }

    /// It has so many slots from now on.
    fn go_on(&mut self, at_ms: u64, slots: u16) {
        if self.trains {
            self.done_ms += (at_ms - self.since_ms) as f64 * self.speed(self.slots);
        }
        // Who has lost all its slots begins anew.
        self.trains &= slots > 0;
        (self.slots, self.since_ms) = (slots, at_ms);
    }

    fn job(self) -> TraceJob {
        let seconds = self.done_ms / 1e3 / self.speed(self.job.workers);
        TraceJob { work: Work::Seconds(seconds), ..self.job }
    }
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
        let mut import = Import::default();
        for (at_ms, facts) in batches {
            import
                .line(&json!({"offset": 1, "at_ms": at_ms, "term": 0, "sequence": 0, "facts": facts}).to_string())
                .unwrap();
        }
        import.finish()
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
