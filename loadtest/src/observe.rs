//! What events say came of a load: slots on their way back, jobs on their way to their first step, and what each fleet had over time.
//! Latencies between events are those of the service's own clock. Pure.

use crate::report::Measured;
use gateway_api::SlotState;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What every type of event begins with.
const TYPES: &str = "dev.ebb.";

/// A line over time: seconds from the beginning, and a number.
pub type Line = Vec<(f64, f64)>;

/// What a fleet needed and what of it was on loan, each from then on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FleetLines {
    /// Slots needed.
    pub needed: Line,
    /// Slots that jobs were on, until they were free.
    pub lent: Line,
    /// All slots.
    pub slots: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    /// With its fleet.
    Own,
    Offered,
    Borrowed,
    /// On its way back: from a job since when by a demand, or otherwise.
    Returning {
        demanded_ms: Option<u64>,
    },
}

impl Slot {
    fn lent(self) -> bool {
        matches!(self, Self::Borrowed | Self::Returning { .. })
    }
}

/// A signal that wants slots back.
#[derive(Debug, Clone, Copy)]
struct Rising {
    at_ms: u64,
    needed: usize,
}

#[derive(Debug, Default)]
struct Fleet {
    slots: BTreeMap<String, Slot>,
    /// When the demand that counts was accepted.
    demand_ms: Option<u64>,
    /// The highest number of a signal that was answered, and of one whose event came.
    answered: u64,
    told: u64,
    rising: Option<Rising>,
    lines: FleetLines,
}

#[derive(Debug)]
struct Job {
    accepted_ms: u64,
    stepped: bool,
    /// Steps that were seen.
    step: u64,
    over: bool,
}

/// Watches fleets and jobs of one run.
#[derive(Debug)]
pub struct Observer {
    began_ms: u64,
    fleets: BTreeMap<String, Fleet>,
    /// Names of the jobs that are this run's.
    names: BTreeSet<String>,
    jobs: BTreeMap<String, Job>,
    /// Jobs that were answered and whose acceptance has not come as an event.
    submitted: BTreeSet<String>,
    measured: Measured,
    steps: Line,
    steps_at_ms: Option<u64>,
    /// Steps since the last look, of jobs that ended meanwhile.
    steps_of_ended: u64,
}

impl Observer {
    /// Of these fleets, and of jobs by these names.
    #[must_use]
    pub fn new(began_ms: u64, fleets: impl IntoIterator<Item = String>, names: BTreeSet<String>) -> Self {
        Self {
            began_ms,
            fleets: fleets.into_iter().map(|fleet| (fleet, Fleet::default())).collect(),
            names,
            jobs: BTreeMap::new(),
            submitted: BTreeSet::new(),
            measured: Measured::default(),
            steps: Vec::new(),
            steps_at_ms: None,
            steps_of_ended: 0,
        }
    }

    /// What was measured, to add to.
    pub fn measured(&mut self) -> &mut Measured {
        &mut self.measured
    }

    /// A signal was answered: its event is on its way, if it has not come before the answer.
    pub fn answered_signal(&mut self, fleet: &str, number: u64) {
        if let Some(fleet) = self.fleets.get_mut(fleet) {
            fleet.answered = fleet.answered.max(number);
        }
    }

    /// A submitted job was answered, in the same sense.
    pub fn answered_submit(&mut self, id: &str) {
        if !self.jobs.contains_key(id) {
            self.submitted.insert(id.to_owned());
        }
    }

    /// Whether the event of something that was answered has not come, a fleet waits for slots, or a job of this run for its first step.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.fleets.values().any(|fleet| fleet.rising.is_some() || fleet.answered > fleet.told)
            || !self.submitted.is_empty()
            || self.jobs.values().any(Job::waits)
    }

    /// Jobs of this run that have not ended.
    pub fn unfinished(&self) -> impl Iterator<Item = &String> {
        let known = self.jobs.iter().filter(|(_, job)| !job.over).map(|(id, _)| id);
        known.chain(&self.submitted)
    }

    /// Takes in a fleet as `GET /v1/fleets/{fleet}` shows it.
    pub fn fleet(&mut self, at_ms: u64, shown: &gateway_api::Fleet) {
        let at_s = self.at_s(at_ms);
        let Some(fleet) = self.fleets.get_mut(&shown.name) else { return };
        for slot in &shown.slots {
            let state = match slot.state.known() {
                Some(SlotState::Unoffered) => Slot::Own,
                Some(SlotState::Offered) => Slot::Offered,
                Some(SlotState::Borrowed) => Slot::Borrowed,
                _ => Slot::Returning { demanded_ms: None },
            };
            fleet.slots.insert(slot.slot.clone(), state);
        }
        fleet.lines.slots = fleet.slots.len();
        if let Some(needed) = shown.needed {
            fleet.lines.needed.push((at_s, f64::from(needed)));
        }
        fleet.drawn(at_s);
    }

    /// Takes in an event.
    pub fn event(&mut self, at_ms: u64, event: &Value) {
        let kind = event["type"].as_str().unwrap_or_default();
        let Some(kind) = kind.strip_prefix(TYPES) else { return };
        let data = &event["data"];
        match kind.split_once('.') {
            Some(("fleet" | "slot", _)) => self.of_fleet(at_ms, kind, data),
            _ => self.of_job(at_ms, kind, data),
        }
    }

    fn of_fleet(&mut self, at_ms: u64, kind: &str, data: &Value) {
        let at_s = self.at_s(at_ms);
        let Some(fleet) = data["fleet"].as_str().and_then(|name| self.fleets.get_mut(name)) else { return };
        let slot = data["slot"].as_str().unwrap_or_default().to_owned();
        match kind {
            "fleet.declared.v1" => {
                let slots: BTreeSet<&str> =
                    data["slots"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                fleet.slots.retain(|slot, _| slots.contains(slot.as_str()));
                for slot in slots {
                    fleet.slots.entry(slot.to_owned()).or_insert(Slot::Own);
                }
                fleet.lines.slots = fleet.slots.len();
            }
            "fleet.demand.v1" => {
                let needed = data["needed"].as_u64().unwrap_or(0);
                fleet.told = fleet.told.max(data["sequence"].as_u64().unwrap_or(0));
                fleet.lines.needed.push((at_s, needed as f64));
                fleet.demand_ms = Some(at_ms);
                let needed = needed as usize;
                if fleet.rising.take().is_some() {
                    self.measured.count("overtaken", 1);
                }
                if fleet.own() < needed {
                    fleet.rising = Some(Rising { at_ms, needed });
                }
            }
            "slot.offered.v1" => {
                for slot in data["slots"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    fleet.slots.insert(slot.to_owned(), Slot::Offered);
                }
            }
            "slot.borrowed.v1" => {
                fleet.slots.insert(slot, Slot::Borrowed);
            }
            "slot.reclaimed.v1" => {
                // One that was lent and that no job is on now is free at once, which says nothing.
                let demanded_ms = fleet.demand_ms.filter(|_| data["job"].is_string() && data["cause"] == "demand");
                fleet.slots.insert(slot, Slot::Returning { demanded_ms });
            }
            "slot.returned.v1" => {
                let before = fleet.slots.insert(slot, Slot::Own);
                if let Some(Slot::Returning { demanded_ms: Some(asked_ms) }) = before {
                    self.measured.latency("slot_return_ms", at_ms.saturating_sub(asked_ms));
                }
            }
            _ => {}
        }
        if let Some(met) = fleet.rising.filter(|rising| fleet.own() >= rising.needed) {
            fleet.rising = None;
            self.measured.latency("demand_met_ms", at_ms.saturating_sub(met.at_ms));
        }
        fleet.drawn(at_s);
    }

    fn of_job(&mut self, at_ms: u64, kind: &str, data: &Value) {
        let Some(id) = data["job"].as_str() else { return };
        if kind == "job.accepted.v1" {
            self.submitted.remove(id);
            if data["name"].as_str().is_some_and(|name| self.names.contains(name)) {
                self.jobs.insert(id.to_owned(), Job { accepted_ms: at_ms, stepped: false, step: 0, over: false });
            }
            return;
        }
        let Some(job) = self.jobs.get_mut(id) else { return };
        let since_ms = at_ms.saturating_sub(job.accepted_ms);
        match kind {
            "generation.stepped.v1" if !job.stepped => {
                job.stepped = true;
                self.measured.latency("first_step_ms", since_ms);
            }
            "job.scaled.v1" => self.measured.latency("scale_ms", data["took_ms"].as_u64().unwrap_or(0)),
            "job.finished.v1" => {
                let step = data["step"].as_u64().unwrap_or(job.step);
                self.steps_of_ended += step.saturating_sub(job.step);
                (job.over, job.step) = (true, step);
                self.measured.latency("finish_ms", since_ms);
            }
            "job.failed.v1" => {
                job.over = true;
                self.measured.count("jobs_failed", 1);
            }
            "job.cancelled.v1" => job.over = true,
            _ => {}
        }
    }

    /// Takes in how far running jobs are, as a page of `GET /v1/jobs` shows them. Those of this run count.
    pub fn progress(&mut self, at_ms: u64, jobs: &[gateway_api::Job]) {
        let mut more = std::mem::take(&mut self.steps_of_ended);
        for shown in jobs {
            let Some(step) = shown.progress.map(|progress| progress.step) else { continue };
            if let Some(job) = self.jobs.get_mut(&shown.id) {
                more += step.saturating_sub(job.step);
                job.step = job.step.max(step);
            }
        }
        let since_ms = self.steps_at_ms.replace(at_ms).map(|before| at_ms.saturating_sub(before));
        if let Some(since_ms) = since_ms.filter(|since_ms| *since_ms > 0) {
            self.steps.push((self.at_s(at_ms), more as f64 * 1e3 / since_ms as f64));
        }
    }

    /// Ends it: what still waits was not met. It counts as the longest latency that there is, so that a percentile is one of all that
    /// was asked for and not of what came.
    pub fn end(&mut self, at_ms: u64) {
        for fleet in self.fleets.values() {
            if fleet.rising.is_some() {
                self.measured.count("unmet", 1);
                self.measured.latency("demand_met_ms", u64::MAX);
            }
            let never = fleet.slots.values().filter(|slot| matches!(slot, Slot::Returning { demanded_ms: Some(_) }));
            never.for_each(|_| self.measured.latency("slot_return_ms", u64::MAX));
        }
        self.jobs.values().filter(|job| job.waits()).for_each(|_| self.measured.latency("first_step_ms", u64::MAX));
        let at_s = self.at_s(at_ms);
        for fleet in self.fleets.values_mut() {
            for line in [&mut fleet.lines.needed, &mut fleet.lines.lent] {
                line.extend(line.last().map(|(_, value)| (at_s, *value)));
            }
        }
    }

    /// What was measured, and the lines of each fleet and of steps per second.
    #[must_use]
    pub fn lines(&self) -> (Vec<(&String, &FleetLines)>, &Line) {
        (self.fleets.iter().map(|(name, fleet)| (name, &fleet.lines)).collect(), &self.steps)
    }

    fn at_s(&self, at_ms: u64) -> f64 {
        at_ms.saturating_sub(self.began_ms) as f64 / 1e3
    }
}

impl Job {
    fn waits(&self) -> bool {
        !self.stepped && !self.over
    }
}

impl Fleet {
    fn own(&self) -> usize {
        self.slots.values().filter(|slot| **slot == Slot::Own).count()
    }

    fn drawn(&mut self, at_s: f64) {
        let lent = self.slots.values().filter(|slot| slot.lent()).count() as f64;
        if self.lines.lent.last().is_none_or(|(_, before)| *before != lent) {
            self.lines.lent.push((at_s, lent));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::report::{LATENCY_MS_MAX, Report};
    use serde_json::json;

    fn read<T: serde::de::DeserializeOwned>(said: Value) -> T {
        serde_json::from_value(said).unwrap()
    }

    fn observer() -> Observer {
        let mut observer = Observer::new(1_000, ["chat".to_owned()], BTreeSet::from(["two-small-0".to_owned()]));
        let slots = json!([{"slot": "local/0", "state": "borrowed"}, {"slot": "local/1", "state": "offered"}]);
        observer.fleet(1_000, &read(json!({"name": "chat", "needed": 0, "slots": slots})));
        observer
    }

    fn demand(observer: &mut Observer, at_ms: u64, needed: u32) {
        let data = json!({"fleet": "chat", "sequence": at_ms, "needed": needed});
        observer.event(at_ms, &json!({"type": "dev.ebb.fleet.demand.v1", "data": data}));
    }

    fn slot(observer: &mut Observer, at_ms: u64, kind: &str, slot: &str) {
        let job = (slot == "local/0").then_some("job-a");
        let data = json!({"fleet": "chat", "slot": slot, "cause": "demand", "job": job});
        observer.event(at_ms, &json!({"type": format!("dev.ebb.slot.{kind}.v1"), "data": data}));
    }

    fn counts(observer: &Observer, latency: &str) -> (u64, u64) {
        let (latencies, ..) = Report::figures(&observer.measured, &[]);
        latencies.iter().find(|l| l.name == latency).map_or((0, 0), |l| (l.count, l.max))
    }

    #[test]
    fn a_demand_is_met_when_the_fleet_has_its_slots() {
        let mut observer = observer();
        demand(&mut observer, 2_000, 2);
        slot(&mut observer, 2_000, "reclaimed", "local/1");
        slot(&mut observer, 2_000, "returned", "local/1");
        slot(&mut observer, 2_000, "reclaimed", "local/0");
        assert!(observer.waits());
        slot(&mut observer, 2_040, "returned", "local/0");
        assert!(!observer.waits());
        assert_eq!(counts(&observer, "slot_return_ms"), (1, 40), "the other was idle, which is no feat");
        assert_eq!(counts(&observer, "demand_met_ms"), (1, 40));
        observer.end(3_000);
        let (fleets, _) = observer.lines();
        assert_eq!(fleets[0].1.lent.first(), Some(&(0.0, 1.0)));
        assert_eq!(fleets[0].1.lent.last(), Some(&(2.0, 0.0)));
        assert_eq!(fleets[0].1.needed, [(0.0, 0.0), (1.0, 2.0), (2.0, 2.0)]);
    }

    #[test]
    fn a_lent_slot_that_no_job_is_on_any_more_is_no_return() {
        let mut observer = observer();
        slot(&mut observer, 1_500, "offered", "local/1");
        slot(&mut observer, 1_600, "borrowed", "local/1");
        demand(&mut observer, 2_000, 1);
        slot(&mut observer, 2_000, "reclaimed", "local/1");
        slot(&mut observer, 2_000, "returned", "local/1");
        assert_eq!(counts(&observer, "slot_return_ms").0, 0);
    }

    #[test]
    fn a_signal_that_is_overtaken_is_not_met() {
        let mut observer = observer();
        demand(&mut observer, 2_000, 1);
        demand(&mut observer, 3_000, 2);
        slot(&mut observer, 3_050, "reclaimed", "local/0");
        observer.end(4_000);
        assert_eq!((observer.measured.counted("overtaken"), observer.measured.counted("unmet")), (1, 1));
        assert_eq!(counts(&observer, "demand_met_ms"), (1, LATENCY_MS_MAX), "what never came breaks any threshold");
        assert_eq!(counts(&observer, "slot_return_ms"), (1, LATENCY_MS_MAX));
    }

    #[test]
    fn what_was_answered_is_waited_for_until_its_event_comes() {
        let mut observer = observer();
        observer.answered_signal("chat", 2_000);
        assert!(observer.waits());
        demand(&mut observer, 2_000, 0);
        assert!(!observer.waits());
        observer.answered_submit("job-a");
        assert!(observer.waits());
        assert_eq!(observer.unfinished().collect::<Vec<_>>(), ["job-a"], "so it is cancelled at the end");
        let accepted = json!({"job": "job-a", "name": "two-small-0"});
        observer.event(2_100, &json!({"type": "dev.ebb.job.accepted.v1", "data": accepted}));
        observer.answered_submit("job-a");
        assert_eq!(observer.unfinished().count(), 1);
        observer.end(3_000);
        assert_eq!(counts(&observer, "first_step_ms"), (1, LATENCY_MS_MAX));
    }

    #[test]
    fn jobs_of_this_run_are_followed_to_their_end() {
        let mut observer = observer();
        for (name, job) in [("two-small-0", "job-a"), ("somebody's", "job-b")] {
            observer.event(2_000, &json!({"type": "dev.ebb.job.accepted.v1", "data": {"job": job, "name": name}}));
        }
        assert_eq!(observer.unfinished().collect::<Vec<_>>(), ["job-a"]);
        for (at_ms, kind, data) in [
            (2_700, "generation.stepped", json!({"job": "job-a"})),
            (2_800, "generation.stepped", json!({"job": "job-a"})),
            (2_900, "generation.stepped", json!({"job": "job-b"})),
            (3_000, "job.scaled", json!({"job": "job-a", "took_ms": 300})),
        ] {
            observer.event(at_ms, &json!({"type": format!("dev.ebb.{kind}.v1"), "data": data}));
        }
        observer.progress(3_000, &[read(json!({"id": "job-a", "progress": {"step": 10}}))]);
        observer.progress(4_000, &[read(json!({"id": "job-a", "progress": {"step": 50}}))]);
        observer.event(4_500, &json!({"type": "dev.ebb.job.finished.v1", "data": {"job": "job-a", "step": 60}}));
        observer.progress(5_000, &[]);
        assert_eq!(counts(&observer, "first_step_ms"), (1, 700));
        assert_eq!(counts(&observer, "scale_ms"), (1, 300));
        assert_eq!(counts(&observer, "finish_ms"), (1, 2_500));
        assert_eq!(observer.lines().1, &[(3.0, 40.0), (4.0, 10.0)]);
        assert_eq!(observer.unfinished().count(), 0);
    }
}
