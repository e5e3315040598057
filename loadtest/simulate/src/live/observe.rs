//! Public events of a service become the tally and the outcomes that a simulated run comes to, by the same rules.
//!
//! A job trains from the moment at which its members are in force; the pause before that, of which the event tells afterwards, is taken off again. Its
//! slots are those of its members, who leave one by one; what is planned for it counts for queueing, preemptions and sizes alone.

use super::moves::{Moves, Stretch};
use crate::outcome::{Ended, JobOutcome, Measured, Outcome};
use crate::setup::Setup;
use crate::tally::{FleetTally, Sizes, Tally};
use events_schema::{SlotId, TimeMs};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What all types of events begin and end with.
const TYPES: (&str, &str) = ("dev.ebb.", ".v1");

/// A fleet of the service, as it was when the replay began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveFleet {
    /// Its name.
    pub name: String,
    /// Whether its demand is replayed.
    pub serves: bool,
    /// Its slots, and whether each was lent.
    pub slots: Vec<(SlotId, bool)>,
    /// Slots that it needed.
    pub needed: u32,
}

/// Follows a replay by its events.
#[derive(Debug)]
pub struct Observer {
    from: TimeMs,
    at: TimeMs,
    tally: Tally,
    fleets: BTreeMap<String, usize>,
    fleet_of: BTreeMap<String, usize>,
    lent: BTreeSet<String>,
    /// Jobs by their names, then by their ids.
    names: BTreeMap<String, usize>,
    ids: BTreeMap<String, usize>,
    jobs: Vec<Followed>,
    processes: BTreeMap<String, Process>,
    moves: Moves,
    policies: BTreeSet<String>,
    notes: BTreeSet<String>,
}

/// What a replay came to.
#[derive(Debug, Clone)]
pub struct Observed {
    /// As of a simulated run.
    pub outcome: Outcome,
    /// What moves and steps took.
    pub moves: Moves,
    /// What makes it another run than the one that was asked for, in words.
    pub notes: Vec<String>,
}

/// A job of the replay.
#[derive(Debug, Default)]
struct Followed {
    id: Option<String>,
    min: usize,
    /// Slots as planned.
    planned: usize,
    queued_since: Option<TimeMs>,
    planned_empty_at: Option<TimeMs>,
    members: BTreeSet<String>,
    trains: bool,
    proposed: BTreeMap<u64, Proposed>,
    /// Since when its members are these, and with which step they began.
    since: Option<(TimeMs, u64)>,
    /// Processes that are there.
    processes: usize,
    came_amid: (u64, u64),
    went_amid: (u64, u64),
    outcome: JobOutcome,
}

#[derive(Debug)]
struct Proposed {
    at: TimeMs,
    entry: String,
    members: BTreeSet<String>,
}

#[derive(Debug)]
struct Process {
    fleet: usize,
    job: usize,
    assigned_at: TimeMs,
    leaves: Option<(TimeMs, Leaves)>,
}

/// Why a process goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaves {
    /// Nobody waits for it.
    AtOnce,
    /// With all others of its job: what it holds is saved first.
    Parked,
    /// At a boundary, while others stay.
    AtBoundary,
}

impl Observer {
    /// Begins at a moment, with the fleets in the order of the setup (those that lend all the time, then those that serve), and with the names under
    /// which the setup's jobs will be submitted.
    #[must_use]
    pub fn new(from_ms: u64, fleets: &[LiveFleet], names: &[String], setup: &Setup) -> Self {
        let from = TimeMs(from_ms);
        let mut lent = BTreeSet::new();
        let mut fleet_of = BTreeMap::new();
        let of = |(index, fleet): (usize, &LiveFleet)| {
            for (slot, is_lent) in &fleet.slots {
                fleet_of.insert(slot.to_string(), index);
                if *is_lent {
                    lent.insert(slot.to_string());
                }
            }
            FleetTally {
                slots: fleet.slots.len() as u64,
                serves: fleet.serves,
                needed: fleet.needed.into(),
                lent: fleet.slots.iter().filter(|(_, is_lent)| *is_lent).count() as u64,
                ..FleetTally::default()
            }
        };
        let tallies = fleets.iter().enumerate().map(of).collect();
        let mut tally = Tally::new(from, tallies);
        tally.sizes = Some(Sizes::of(setup.jobs.len()));
        let job = |job: &crate::setup::Job| Followed { min: job.spec.workers.min.into(), ..Followed::default() };
        Self {
            from,
            at: from,
            tally,
            fleets: fleets.iter().enumerate().map(|(index, fleet)| (fleet.name.clone(), index)).collect(),
            fleet_of,
            lent,
            names: names.iter().cloned().zip(0..).collect(),
            ids: BTreeMap::new(),
            jobs: setup.jobs.iter().map(job).collect(),
            processes: BTreeMap::new(),
            moves: Moves::default(),
            policies: BTreeSet::new(),
            notes: BTreeSet::new(),
        }
    }

    /// How many of its jobs have ended.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.jobs.iter().filter(|job| job.outcome.ended.is_some()).count()
    }

    /// How many train.
    #[must_use]
    pub fn training(&self) -> usize {
        self.jobs.iter().filter(|job| job.trains).count()
    }

    /// Ids of its jobs that were accepted and have not ended.
    pub fn unfinished(&self) -> impl Iterator<Item = &str> {
        let going = self.jobs.iter().filter(|job| job.outcome.ended.is_none());
        going.filter_map(|job| job.id.as_deref())
    }

    /// Whether the job at a place has come.
    #[must_use]
    pub fn has_come(&self, number: usize) -> bool {
        self.jobs.get(number).is_some_and(|job| job.id.is_some())
    }

    /// What makes it another run than the one that was asked for.
    pub fn note(&mut self, what: String) {
        self.notes.insert(what);
    }

    /// Takes in an event, and when it was by the service's clock.
    pub fn event(&mut self, at_ms: u64, event: &Value) {
        // The clock of the next controller may be behind.
        self.at = self.at.max(TimeMs(at_ms));
        self.tally.pass(self.at);
        let kind = event["type"].as_str().unwrap_or_default();
        let kind = kind.trim_start_matches(TYPES.0).trim_end_matches(TYPES.1);
        let data = &event["data"];
        match kind.split_once('.') {
            Some(("slot", what)) => self.of_slot(what, data),
            Some(("fleet", what)) => self.of_fleet(what, data),
            _ => {
                if kind == "job.accepted" {
                    self.accepted(data);
                }
                let Some(number) = data["job"].as_str().and_then(|id| self.ids.get(id).copied()) else { return };
                self.tally.events += 1;
                self.of_job(kind, number, data);
            }
        }
    }

    fn of_fleet(&mut self, what: &str, data: &Value) {
        let Some(name) = data["fleet"].as_str() else { return };
        let Some(index) = self.fleets.get(name).copied() else { return };
        match what {
            "demand" => {
                let fleet = &mut self.tally.fleets[index];
                fleet.needed = data["needed"].as_u64().unwrap_or(0);
                fleet.rose_to = fleet.needed;
                if !fleet.serves {
                    self.note(format!("fleet {name} said what it needs meanwhile, and its demand was not replayed"));
                }
            }
            "declared" | "recalled" | "released" => self.note(format!("fleet {name} was {what} meanwhile")),
            _ => {}
        }
    }

    fn of_slot(&mut self, what: &str, data: &Value) {
        match what {
            "offered" => {
                for slot in data["slots"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    self.lend(slot, true);
                }
            }
            "reclaimed" | "returned" => {
                let Some(slot) = data["slot"].as_str() else { return };
                self.lend(slot, false);
                let (Some(index), Ok(id)) = (self.fleet_of.get(slot).copied(), slot.parse::<SlotId>()) else { return };
                let fleet = &mut self.tally.fleets[index];
                if what == "reclaimed" {
                    fleet.returning.entry(id).or_insert(data["job"].is_string());
                } else {
                    let busy = fleet.returning.remove(&id);
                    self.tally.returns_ms.extend(data["took_ms"].as_u64().filter(|_| busy == Some(true)));
                }
            }
            "quarantined" => self.note("a slot was in quarantine".to_owned()),
            _ => {}
        }
    }

    fn lend(&mut self, slot: &str, is_lent: bool) {
        let Some(index) = self.fleet_of.get(slot).copied() else { return };
        let changed = if is_lent { self.lent.insert(slot.to_owned()) } else { self.lent.remove(slot) };
        let lent = &mut self.tally.fleets[index].lent;
        match (changed, is_lent) {
            (true, true) => *lent += 1,
            (true, false) => *lent = lent.saturating_sub(1),
            (false, _) => {}
        }
    }

    fn accepted(&mut self, data: &Value) {
        let (Some(id), Some(name)) = (data["job"].as_str(), data["name"].as_str()) else { return };
        let Some(number) = self.names.get(name).copied() else { return };
        self.ids.insert(id.to_owned(), number);
        let (live_ms, lent_ms) = (self.tally.live_ms, self.tally.lent_ms());
        let (at, from) = (self.at, self.from);
        let job = &mut self.jobs[number];
        if job.id.replace(id.to_owned()).is_none() {
            job.outcome.submitted_ms = at.since_ms(from);
            job.came_amid = (live_ms, lent_ms);
            self.tally.live += 1;
            self.queue_up(number);
        }
    }

    fn of_job(&mut self, kind: &str, number: usize, data: &Value) {
        match kind {
            "job.planned" => self.planned(number, data),
            "executor.assigned" => self.assigned(number, data),
            "executor.ready" => {
                let begun = text(data, "executor").and_then(|id| self.processes.get(id)).map(|of| of.assigned_at);
                self.moves.started(begun.map(|begun| self.at.since_ms(begun)));
            }
            "executor.leaving" => self.leaving(data),
            "executor.gone" => self.gone(number, data),
            "generation.proposed" => self.proposed(number, data),
            "generation.active" => self.active(number, data),
            "generation.departed" => self.departed(number, data),
            "generation.member_lost" => {
                self.note("a process was lost".to_owned());
                self.train(number, false);
            }
            "generation.throughput_measured" => {
                let stride = data["stride"].as_u64().unwrap_or(1).max(1);
                let (members, step_us) = (data["members"].as_u64(), data["step_us"].as_u64().map(|us| us / stride));
                if let (Some(members), Some(step_us)) = (members, step_us) {
                    self.moves.step(number, members, step_us);
                }
            }
            "job.restarted" => {
                self.note("a job went back to a checkpoint; steps done again are not told apart".to_owned())
            }
            "job.finished" => self.end(number, Some(Ended::Finished), data["step"].as_u64()),
            "job.failed" => {
                let why = data["reason"].as_str().unwrap_or("nobody says why");
                self.note(format!("a job failed: {why}"));
                self.end(number, Some(Ended::Failed), None);
            }
            "job.cancelled" => {
                self.note("a job was cancelled".to_owned());
                self.end(number, None, None);
            }
            "job.suspended" => self.note("a job was suspended".to_owned()),
            _ => {}
        }
    }

    fn planned(&mut self, number: usize, data: &Value) {
        if let Some(policy) = data["policy"].as_str() {
            self.policies.insert(policy.to_owned());
        }
        let at = self.at;
        let job = &mut self.jobs[number];
        let to = data["slots"].as_array().map_or(0, Vec::len);
        let from = std::mem::replace(&mut job.planned, to);
        // An end is no change of its size.
        if job.outcome.ended.is_some() {
            return;
        }
        let waited_ms = || job.queued_since.take().map(|since| at.since_ms(since));
        if !self.tally.replanned(&mut job.outcome, (from, to), waited_ms) {
            return;
        }
        if from == 0 || to == 0 {
            job.planned_empty_at = (to == 0).then_some(at);
        }
        if let Some(sizes) = &mut self.tally.sizes {
            sizes.note(number, at.since_ms(self.from), to);
        }
        self.requeue_if_empty(number);
    }

    fn queue_up(&mut self, number: usize) {
        let since = &mut self.jobs[number].queued_since;
        self.tally.waiting += u64::from(since.is_none());
        since.get_or_insert(self.at);
    }

    /// A job that gave back all its slots waits again when its last process is gone, as for the controller.
    fn requeue_if_empty(&mut self, number: usize) {
        let job = &self.jobs[number];
        if job.planned_empty_at.is_some() && job.processes == 0 && job.outcome.ended.is_none() {
            self.queue_up(number);
        }
    }

    fn assigned(&mut self, number: usize, data: &Value) {
        let (Some(executor), Some(slot)) = (text(data, "executor"), text(data, "slot")) else { return };
        let Some(fleet) = self.fleet_of.get(slot).copied() else { return };
        self.tally.fleets[fleet].occupied += 1;
        self.jobs[number].processes += 1;
        let process = Process { fleet, job: number, assigned_at: self.at, leaves: None };
        self.processes.insert(executor.to_owned(), process);
    }

    fn leaving(&mut self, data: &Value) {
        let at = self.at;
        let Some(process) = text(data, "executor").and_then(|executor| self.processes.get_mut(executor)) else {
            return;
        };
        let how = match data["cause"].as_str() {
            Some("job_end" | "useless") => Leaves::AtOnce,
            _ if self.jobs[process.job].planned == 0 => Leaves::Parked,
            _ => Leaves::AtBoundary,
        };
        process.leaves = Some((at, how));
    }

    fn gone(&mut self, number: usize, data: &Value) {
        let Some(executor) = text(data, "executor") else { return };
        self.part(number, executor);
        let Some(process) = self.processes.remove(executor) else { return };
        let occupied = &mut self.tally.fleets[process.fleet].occupied;
        *occupied = occupied.saturating_sub(1);
        let job = &mut self.jobs[number];
        job.processes = job.processes.saturating_sub(1);
        match process.leaves.map(|(since, how)| (self.at.since_ms(since), how)) {
            Some((ms, Leaves::AtOnce)) => self.moves.exited(ms),
            Some((ms, Leaves::Parked)) => self.moves.parked(ms),
            Some((_, Leaves::AtBoundary)) | None => {}
        }
        self.requeue_if_empty(number);
    }

    fn proposed(&mut self, number: usize, data: &Value) {
        let Some(generation) = data["generation"].as_u64() else { return };
        let members = data["members"].as_array().into_iter().flatten();
        let members = members.filter_map(|member| text(member, "executor")).map(str::to_owned).collect();
        let entry = text(data, "entry").unwrap_or_default().to_owned();
        self.jobs[number].proposed.insert(generation, Proposed { at: self.at, entry, members });
    }

    fn active(&mut self, number: usize, data: &Value) {
        let (Some(generation), Some(step)) = (data["generation"].as_u64(), data["step"].as_u64()) else { return };
        let pause_ms = data["pause_us"].as_u64().unwrap_or(0) / 1_000;
        let (at, from) = (self.at, self.from);
        self.close_stretch(number, step, pause_ms);
        self.train(number, false);
        let job = &mut self.jobs[number];
        let Some(proposed) = job.proposed.remove(&generation) else { return };
        job.proposed.retain(|other, _| *other > generation);
        let grew = proposed.members.difference(&job.members).next().is_some();
        match proposed.entry.as_str() {
            "fresh" => self.moves.linked(at.since_ms(proposed.at)),
            "checkpoint" => self.moves.restored(at.since_ms(proposed.at)),
            "switch" if grew => self.moves.grew(pause_ms),
            "switch" => self.moves.switched(pause_ms),
            _ => {}
        }
        job.members = proposed.members.into_iter().filter(|id| self.processes.contains_key(id)).collect();
        self.tally.below_minimum += u64::from(job.members.len() < job.min);
        job.outcome.began_ms.get_or_insert(at.since_ms(from));
        job.since = Some((at, step));
        self.train(number, true);
    }

    fn departed(&mut self, number: usize, data: &Value) {
        let Some(executor) = text(data, "executor") else { return };
        let step = data["step"].as_u64().unwrap_or(0);
        self.close_stretch(number, step, 0);
        self.part(number, executor);
        if let Some(process) = self.processes.get_mut(executor) {
            process.leaves = Some((self.at, Leaves::AtOnce));
        }
        self.jobs[number].since = Some((self.at, step));
    }

    /// Notes how long the members of now took for their steps, until a pause before now, which was none of training.
    fn close_stretch(&mut self, number: usize, step: u64, pause_ms: u64) {
        let at = self.at;
        let job = &mut self.jobs[number];
        let Some((since, from_step)) = job.since.take().filter(|_| job.trains) else { return };
        let ms = at.since_ms(since).saturating_sub(pause_ms);
        let (members, fleets) = (job.members.len(), self.fleets_of(number));
        for (fleet, count) in fleets {
            let training_ms = &mut self.tally.fleets[fleet].training_ms;
            *training_ms = training_ms.saturating_sub(count * pause_ms.min(at.since_ms(since)));
        }
        self.moves.stretch(Stretch { job: number, members, steps: step.saturating_sub(from_step), ms });
    }

    /// How many members of a job each fleet has.
    fn fleets_of(&self, number: usize) -> BTreeMap<usize, u64> {
        let mut counts = BTreeMap::new();
        for process in self.jobs[number].members.iter().filter_map(|id| self.processes.get(id)) {
            *counts.entry(process.fleet).or_default() += 1;
        }
        counts
    }

    /// A process is a member no more.
    fn part(&mut self, number: usize, executor: &str) {
        if self.jobs[number].members.contains(executor) {
            let trains = self.jobs[number].trains;
            self.train(number, false);
            self.jobs[number].members.remove(executor);
            self.train(number, trains && !self.jobs[number].members.is_empty());
        }
    }

    /// Its members step from now on, or do not.
    fn train(&mut self, number: usize, trains: bool) {
        if std::mem::replace(&mut self.jobs[number].trains, trains) == trains {
            return;
        }
        for (fleet, count) in self.fleets_of(number) {
            let training = &mut self.tally.fleets[fleet].training;
            *training = if trains { *training + count } else { training.saturating_sub(count) };
        }
    }

    fn end(&mut self, number: usize, how: Option<Ended>, step: Option<u64>) {
        let (at, from) = (self.at, self.from);
        if let (Some(Ended::Finished), Some(step), Some((since, from_step))) =
            (how, step, self.jobs[number].since.take())
        {
            let (members, ms) = (self.jobs[number].members.len(), at.since_ms(since));
            self.moves.last_stretch(Stretch { job: number, members, steps: step.saturating_sub(from_step), ms });
        }
        self.train(number, false);
        let went_amid = (self.tally.live_ms, self.tally.lent_ms());
        let job = &mut self.jobs[number];
        job.members.clear();
        self.tally.waiting -= u64::from(job.queued_since.take().is_some());
        // One that was cancelled counts as one that had not ended.
        if job.outcome.ended.is_none() {
            job.outcome.ended = how.map(|how| (how, at.since_ms(from)));
            job.went_amid = went_amid;
            self.tally.live = self.tally.live.saturating_sub(1);
        }
    }

    /// What it came to. The setup is that of the simulated run beside it, whose curves and costs say what jobs would have taken alone.
    #[must_use]
    pub fn finish(mut self, setup: impl FnOnce(&Moves) -> Setup) -> (Observed, Setup) {
        let setup = setup(&self.moves);
        let ended = self.jobs.iter().filter_map(|job| job.outcome.ended.map(|(_, at)| at)).max();
        let until_ms = ended.unwrap_or_else(|| self.at.since_ms(self.from));
        for (number, job) in self.jobs.iter_mut().enumerate().filter(|(_, job)| job.outcome.ended.is_some()) {
            let (live_ms, lent_ms) = (job.went_amid.0 - job.came_amid.0, job.went_amid.1 - job.came_amid.1);
            job.outcome.alone_ms = setup.alone_ms(number, live_ms, lent_ms);
            job.outcome.single_ms = setup.jobs[number].takes_ms(1, 1.0).map(|ms| ms.round() as u64);
        }
        for (job, of) in self.jobs.iter_mut().zip(&setup.jobs).filter(|(job, _)| job.id.is_none()) {
            job.outcome.submitted_ms = of.submitted_ms;
        }
        if self.policies.len() > 1 {
            let names: Vec<&str> = self.policies.iter().map(String::as_str).collect();
            self.notes.insert(format!("several policies planned: {}", names.join(", ")));
        }
        let outcome = Outcome {
            policy: "live",
            jobs: self.jobs.iter().map(|job| job.outcome).collect(),
            tally: self.tally,
            until_ms,
            forecasts: Vec::new(),
            measured: Measured::default(),
        };
        (Observed { outcome, moves: self.moves, notes: self.notes.into_iter().collect() }, setup)
    }

    /// The policy that plans, once it has planned anything for these jobs.
    #[must_use]
    pub fn policy(&self) -> Option<&str> {
        self.policies.iter().next().map(String::as_str)
    }
}

fn text<'a>(of: &'a Value, key: &str) -> Option<&'a str> {
    of[key].as_str()
}
