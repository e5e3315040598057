//! Ebb's own log as a recording: what `ebb log export` prints becomes jobs and demand that run again under another policy.
//!
//! A job's work is what it trained from its first generation to its end, but for the times when nobody had its replica: each stretch as fast as jobs of its kind
//! were measured to be on as many members with as large a batch ([`SpeedTable`]), on slots of its type; its duration is what that takes on its most slots. Where nothing was measured of any, workers are taken to be spread evenly. Jobs that failed or
//! were cancelled are as long as they trained; those that never trained, and those that go on after the log's end, are left out and counted.
//!
//! Of a [`Window`] are the jobs that came within it, with all that they trained until their end, whenever that was; and those that were there when it began, with
//! what they trained from then on.
//!
//! Servers that are alike are a group of each fleet. Those of whom everything was lent all the time are the cluster; of the others it is known how many slots were
//! kept when, by demand, by name or by a recall. What a run has no place for is said, and not left out in silence.

mod fleets;
mod jobs;
mod service;
mod speeds;

pub use fleets::Serving;
pub use service::Policy;
pub use speeds::SpeedTable;

use crate::cluster::Cluster;
use crate::trace::{TraceJob, Work};
use events_schema::SlotId;
use fleets::Fleets;
use jobs::{Ran, Recorded, Traits, Within};
use serde_json::Value;
use service::Service;
use speeds::{Kind, Measured, median};
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
    /// How fast kinds of jobs were; none where nothing was measured.
    pub tables: Vec<SpeedTable>,
    /// How long a step took on a job's most slots: that of the job in the middle of those that were measured.
    pub step_ms: Option<u64>,
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
        let factors = self.fleets.factors();
        let factor = |slot: &SlotId| self.fleets.factor(&factors, slot);
        let known = tables(&self.jobs, factor);
        let (ran, untrained, unfinished) = ran(self.jobs, window, &known, factor);
        let begins_ms = window.from_ms.max(self.from_ms.unwrap_or(0));
        let first_ms = ran.first().map_or(begins_ms, |of| of.came_ms);
        // What fleets needed counts until the last job has ended.
        let ended_ms = ran.iter().map(|of| of.ended_ms).max().unwrap_or(0);
        let lasts = (first_ms, ended_ms.max(window.to_ms.min(self.until_ms)));
        let (fleets, service) = (self.fleets.between(lasts), self.service.between(lasts));
        let all = |is: fn(&Traits) -> bool| !ran.is_empty() && ran.iter().all(|of| is(&of.traits));
        let (mixed_types, profile) = (all(|of| of.any_type), all(|of| of.profiled));
        let began_before = ran.iter().filter(|of| of.began_before).count();
        let (mut jobs, mut of_jobs) = (Vec::new(), Vec::new());
        for Ran { job, traits, kind, came_ms, .. } in ran {
            jobs.push(TraceJob { submitted_ms: came_ms - first_ms, ..job });
            of_jobs.push((traits, kind));
        }
        let mut found = Imported {
            jobs,
            began_before,
            untrained,
            unfinished,
            cluster: fleets.cluster,
            serving: fleets.serving,
            reclaim_deadline_ms: fleets.deadline_ms,
            guests: fleets.guests,
            mixed_types,
            profile,
            quotas: service.quotas,
            policy: service.policy,
            start_ms: service.start_ms,
            replica_mb: service.replica_mb,
            tables: Vec::new(),
            step_ms: None,
            left_out: Vec::new(),
        };
        found.of_devices(&of_jobs, &fleets.devices, fleets.others);
        found.say_of_jobs(&of_jobs);
        found.of_speeds(&of_jobs, known);
        found.left_out.extend(fleets.left_out);
        found.left_out.extend(service.left_out);
        found
    }
}

/// The jobs that ran within a window, by their submission, and how many never trained there, and go on.
fn ran(
    jobs: Vec<Recorded>,
    window: Window,
    known: &BTreeMap<Kind, SpeedTable>,
    factor: impl Fn(&SlotId) -> f64,
) -> (Vec<Ran>, usize, usize) {
    let (mut ran, mut untrained, mut unfinished) = (Vec::new(), 0, 0);
    for recorded in jobs {
        let Some(table) = known.get(recorded.speeds().0) else { continue };
        match recorded.within(window, table, &factor) {
            Within::Outside => {}
            Within::Unfinished => unfinished += 1,
            Within::Untrained => untrained += 1,
            Within::Ran(of) => ran.push(*of),
        }
    }
    ran.sort_by_key(|of| of.came_ms);
    (ran, untrained, unfinished)
}

impl Imported {
    /// Jobs that need a device have the only type of slots that are, where others are lent too.
    fn of_devices(&mut self, jobs: &[(Traits, Kind)], devices: &BTreeSet<String>, others: bool) {
        if !others {
            return;
        }
        let need = || jobs.iter().filter(|(of, _)| of.device).count();
        match devices.first() {
            Some(only) if devices.len() == 1 => {
                let those = self.jobs.iter_mut().zip(jobs).filter(|(_, (of, _))| of.device);
                those.for_each(|(job, _)| job.only = Some(only.clone()));
            }
            _ if need() > 0 => {
                self.left_out.push(format!("which slots are devices: jobs that need one take any ({})", need()));
            }
            _ => {}
        }
    }

    /// Jobs have the table of their kind as their model, if anything was measured at all.
    fn of_speeds(&mut self, jobs: &[(Traits, Kind)], mut known: BTreeMap<Kind, SpeedTable>) {
        let (mut names, mut steps_ms) = (BTreeMap::<&Kind, usize>::new(), Vec::new());
        let (mut never, mut beyond, mut batches) = (0, 0, 0);
        for (job, (of, kind)) in self.jobs.iter_mut().zip(jobs) {
            let Some(table) = known.get(kind) else { continue };
            let next = names.len() + 1;
            job.model = Some(format!("kind-{}", names.entry(kind).or_insert(next)));
            job.batch_size = Some(kind.samples);
            job.batch_max = of.batch_times.filter(|_| table.has_larger_batches()).map(|k| kind.samples * u32::from(k));
            batches += usize::from(of.batch_times.is_some() && job.batch_max.is_none());
            never += usize::from(!table.is_measured());
            let reaches = table.reaches(job.min.unwrap_or(1), job.max.unwrap_or(job.workers));
            beyond += usize::from(table.is_measured() && !reaches);
            let rate = table.curve(1).speed(job.workers).filter(|_| table.is_measured());
            steps_ms.extend(rate.map(|rate| 1e3 / rate));
        }
        self.step_ms = median(steps_ms).map(|ms| (ms.round() as u64).max(1));
        if never == self.jobs.len() {
            self.jobs.iter_mut().for_each(|job| (job.model, job.batch_size, job.batch_max) = (None, None, None));
        } else {
            let named = |(kind, number): (&Kind, usize)| Some(known.remove(kind)?.named(format!("kind-{number}")));
            let mut numbered: Vec<(&Kind, usize)> = names.into_iter().collect();
            numbered.sort_by_key(|(_, number)| *number);
            self.tables = numbered.into_iter().filter_map(named).collect();
        }
        let said = [
            (never, "speeds of jobs of which none was measured: their workers are taken to be spread evenly"),
            (
                beyond,
                "speeds of jobs on fewer or more slots than were measured: their workers are taken to be spread evenly from there on",
            ),
            (batches, "batches that move, of jobs of which no larger one was measured: theirs stay"),
        ];
        let said = said.into_iter().filter(|(count, _)| *count > 0);
        self.left_out.extend(said.map(|(count, what)| format!("{what} ({count})")));
    }

    fn say_of_jobs(&mut self, jobs: &[(Traits, Kind)]) {
        let sum = |of: fn(&Traits) -> usize| jobs.iter().map(|(traits, _)| of(traits)).sum::<usize>();
        let some = |of: fn(&Traits) -> bool, all: bool| jobs.iter().filter(|(job, _)| of(job) && !all).count();
        let said = [
            (self.untrained, "jobs that never trained"),
            (self.unfinished, "jobs that go on"),
            (sum(|of| of.suspensions), "suspensions: who was suspended goes on"),
            (sum(|of| of.restarts), "that jobs went back to checkpoints: what they trained again is more work"),
            (
                sum(|of| of.guest.into()),
                "that jobs were on guest slots: their time there counts as on a whole one, and what was measured of them there does not",
            ),
            (sum(|of| of.gang.into()), "that whole programs make no steps: they are jobs as others"),
            (some(|of| of.any_type, self.mixed_types), "that some jobs may be on several types at once: none is"),
            (some(|of| of.profiled, self.profile), "that some jobs are measured before they settle: none is"),
        ];
        let said = said.into_iter().filter(|(count, _)| *count > 0);
        self.left_out.extend(said.map(|(count, what)| format!("{what} ({count})")));
    }
}

/// A table of each kind of jobs, by all that was measured of jobs of that kind.
fn tables(jobs: &[Recorded], factor: impl Fn(&SlotId) -> f64) -> BTreeMap<Kind, SpeedTable> {
    let mut measured = BTreeMap::<&Kind, Vec<&Measured>>::new();
    for (kind, of) in jobs.iter().map(Recorded::speeds) {
        measured.entry(kind).or_default().extend(of);
    }
    measured.into_iter().map(|(kind, of)| (kind.clone(), SpeedTable::new(kind, &of, &factor))).collect()
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
            "name,submitted_s,duration_s,workers,min_workers,max_workers,tenant,priority,slot_type,model,batch_size,batch_max\n".to_owned();
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        for job in &self.jobs {
            let seconds = if let Work::Seconds(seconds) = job.work { seconds } else { f64::NAN };
            let (min, max) = (job.min.unwrap_or(1), job.max.unwrap_or(job.workers));
            let (submitted_s, tenant) = (job.submitted_ms as f64 / 1e3, job.tenant.as_deref().unwrap_or_default());
            let (name, workers, priority) = (quoted(&job.name), job.workers, job.priority);
            let number = |number: Option<u32>| number.map_or_else(String::new, |number| number.to_string());
            let (model, size, most) =
                (job.model.as_deref().unwrap_or_default(), number(job.batch_size), number(job.batch_max));
            let (tenant, only) = (quoted(tenant), job.only.as_deref().unwrap_or_default());
            let _ = writeln!(
                text,
                "{name},{submitted_s},{seconds:.3},{workers},{min},{max},{tenant},{priority},{only},{model},{size},{most}"
            );
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

    fn proposed(job: &str, generation: u64, members: usize) -> Value {
        let proposal = json!({"generation": generation, "members": vec![json!({}); members]});
        json!({"fact": "generation_proposed", "job": job, "proposal": proposal})
    }

    fn of(fact: &str, job: &str) -> Value {
        json!({"fact": fact, "job": job})
    }

    #[test]
    fn work_is_what_was_trained_on_the_slots_that_there_were() {
        let found = imported(&[
            (5_000, vec![accepted("a", 1, 4), planned("a", 2)]),
            (9_000, vec![of("generation_active", "a")]),
            // Ten seconds on two slots, while two more start; five on four, and a minute of waiting and starting that is none.
            (14_000, vec![planned("a", 4), proposed("a", 2, 4)]),
            (19_000, vec![json!({"fact": "generation_active", "job": "a", "generation": 2})]),
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
    fn speeds_that_were_measured_are_a_table_and_work_is_by_them() {
        let told = |members: u16, step_us: u64, stride: u16| json!({"fact": "throughput_measured", "job": "a", "members": members, "step_us": step_us, "stride": stride});
        let began =
            |generation: u64| json!({"fact": "generation_active", "job": "a", "generation": generation, "step": 0});
        let mut batched = accepted("a", 1, 4);
        batched["spec"]["batch_size"] = json!(8);
        batched["spec"]["batch_range"] = json!({"max": 24, "learning_rate_rule": "linear"});
        let mut other = accepted("b", 1, 2);
        other["spec"]["model"] = json!({"kind": "gpt"});
        let found = imported(&[
            (0, vec![batched, planned("a", 1), proposed("a", 1, 1), other, planned("b", 2)]),
            (1_000, vec![began(1), of("generation_active", "b")]),
            (3_000, vec![told(1, 100_000, 1)]),
            (11_000, vec![proposed("a", 2, 4), began(2), told(4, 50_000, 1), told(4, 75_000, 3)]),
            (21_000, vec![of("job_finished", "a"), of("job_finished", "b")]),
        ]);
        let files: Vec<_> = found.tables.iter().map(|of| (of.name.as_str(), of.csv())).collect();
        let first = "global_batch_size,1,2,3,4\n32,10,nan,nan,20\n96,3.33333,6.66667,6.66667,13.3333\n";
        assert_eq!(files, [("kind-1", first.to_owned()), ("kind-2", "global_batch_size,1,2\n2,1,2\n".to_owned())]);
        // Ten seconds of ten steps a second, ten of twenty: fifteen of twenty.
        let of = |job: &TraceJob| (job.work, job.model.clone(), job.batch_size, job.batch_max);
        let kind = |number: u32| Some(format!("kind-{number}"));
        assert_eq!(
            found.jobs.iter().map(of).collect::<Vec<_>>(),
            [(Work::Seconds(15.0), kind(1), Some(32), Some(96)), (Work::Seconds(20.0), kind(2), Some(2), None)]
        );
        assert_eq!(found.step_ms, Some(50));
        assert_eq!(parse(&found.jobs_csv(), Format::Csv).unwrap()[0].batch_max, Some(96));
        assert!(found.left_out.iter().any(|what| what.starts_with("speeds of jobs of which none was measured")));
        assert!(
            found
                .left_out
                .iter()
                .any(|what| what.contains("fewer or more slots than were measured") && what.ends_with("(1)"))
        );
    }

    fn active(generation: u64, step: u64) -> Value {
        json!({"fact": "generation_active", "job": "a", "generation": generation, "step": step})
    }

    fn ends(step: u64) -> Value {
        json!({"fact": "job_finished", "job": "a", "outcome": {"step": step}})
    }

    fn told(us: u64, stride: u64) -> Value {
        json!({"fact": "throughput_measured", "job": "a", "members": 1, "step_us": us, "stride": stride})
    }

    #[test]
    fn a_restart_ends_a_stretch_and_no_pace_is_measured_over_it() {
        let found = imported(&[
            (0, vec![accepted("a", 1, 1), planned("a", 1), proposed("a", 1, 1), active(1, 0)]),
            (4_000, vec![of("job_restarted", "a")]),
            (34_000, vec![proposed("a", 2, 1), active(2, 100)]),
            (36_000, vec![ends(110)]),
        ]);
        assert_eq!(found.jobs[0].work, Work::Seconds(6.0));
        assert!(found.tables.is_empty(), "{:?}", found.tables);
    }

    #[test]
    fn work_is_by_the_speed_with_the_batch_that_there_was() {
        let mut batched = accepted("a", 1, 1);
        batched["spec"]["batch_size"] = json!(8);
        batched["spec"]["batch_range"] = json!({"max": 32, "learning_rate_rule": "linear"});
        let strided = |generation: u64, stride: u64| {
            let mut proposed = proposed("a", generation, 1);
            proposed["proposal"]["stride"] = json!(stride);
            proposed
        };
        let found = imported(&[
            (0, vec![batched, planned("a", 1), proposed("a", 1, 1), active(1, 0), told(100_000, 1)]),
            (10_000, vec![strided(2, 2), active(2, 100), told(125_000, 2)]),
            (20_000, vec![strided(3, 4), active(3, 260)]),
            (30_000, vec![ends(400)]),
        ]);
        // Ten steps a second, eight updates of two, and of four nothing was measured.
        assert_eq!(found.jobs[0].work, Work::Seconds(10.0 + 16.0 + 10.0));
    }

    /// A server of each of two types, of which the second is three times as fast; the slots of the first are devices.
    fn two_types() -> Vec<Value> {
        let server = |name: &str, slot_type: &str, devices: &[&str]| json!({"fact": "agent_joined", "server": name, "slots": 2, "slot_type": slot_type, "devices": devices});
        let times = json!([{"slot_type": "t4", "unit_us": 9_000}, {"slot_type": "v100", "unit_us": 3_000}]);
        let measured = json!({"fact": "types_measured", "job": "b", "times": times});
        vec![server("s", "t4", &["a", "b"]), server("u", "v100", &[]), measured]
    }

    fn on(slot: &str) -> Value {
        json!({"fact": "plan_adopted", "job": "a", "slots": [slot]})
    }

    #[test]
    fn a_stretch_is_of_the_type_that_its_members_are_on() {
        let found = imported(&[
            (0, two_types()),
            (0, vec![accepted("a", 1, 1), on("s/0"), proposed("a", 1, 1), active(1, 0)]),
            (8_000, vec![on("u/0")]),
            (9_000, vec![proposed("a", 2, 1)]),
            (10_000, vec![active(2, 1)]),
            (20_000, vec![on("s/0-guest"), proposed("a", 3, 1), active(3, 2)]),
            (30_000, vec![ends(3)]),
        ]);
        let Work::Seconds(seconds) = found.jobs[0].work else { panic!("{:?}", found.jobs) };
        assert!((seconds - (3.33 + 10.0 + 3.33)).abs() < 1e-6, "{seconds}");
    }

    #[test]
    fn what_was_measured_on_guest_slots_is_in_no_table_and_that_is_said() {
        let found = |slot: &str| {
            let begins = vec![accepted("a", 1, 1), on(slot), proposed("a", 1, 1), active(1, 0)];
            imported(&[(0, two_types()), (0, begins), (5_000, vec![told(100_000, 1)]), (10_000, vec![ends(100)])])
        };
        let (whole, guest) = (found("s/0"), found("s/0-guest"));
        let says = |found: &Imported| found.left_out.iter().any(|what| what.contains("guest") && what.ends_with("(1)"));
        assert_eq!((whole.tables.len(), says(&whole)), (1, false), "{:?}", whole.left_out);
        assert_eq!((guest.tables.len(), says(&guest)), (0, true), "{:?}", guest.left_out);
    }

    #[test]
    fn without_a_measured_speed_there_is_no_table_but_the_pace_of_a_membership_is_one() {
        let began = json!({"fact": "generation_active", "job": "a", "generation": 1, "step": 10});
        let log = |step: u64| {
            let begins = vec![accepted("a", 2, 2), planned("a", 2), proposed("a", 1, 2), began.clone()];
            imported(&[(0, begins), (4_000, vec![ends(step)])])
        };
        assert_eq!((log(12).tables.len(), log(12).step_ms, log(12).jobs[0].model.clone()), (0, None, None));
        assert_eq!((log(50).tables[0].csv().as_str(), log(50).step_ms), ("global_batch_size,1,2\n2,5,10\n", Some(100)));
        assert_eq!(log(50).jobs[0].work, Work::Seconds(4.0));
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
