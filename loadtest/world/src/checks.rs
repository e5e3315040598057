//! What has to be true. Safety is looked at after every event that could break it; liveness from the healing on.
//!
//! L1: the highest completed step of every watched job rises, again and again. L2: a direct take-back is answered in time. L3: what was
//! acknowledged is decided. L4: few generations, and nobody healthy is given up. L5: nothing goes on being written for nothing.

use crate::cell::AGENT_LEASE_MS;
use crate::numbers::{REPLICA, Reference};
use crate::schedule::{Schedule, Setup};
use crate::time::At;
use crate::world::{Event, Pid, World};
use controller_core::invariants;
use controller_core::state::{JobPhase, SlotState, State};
use events_schema::batch::{Batch, InputStream, Taken};
use events_schema::fact::{Fact, Proposal};
use events_schema::{ExecutorId, JobId, Offset, SlotId, Step};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use workers_session::{Membership, Tag};

/// How often liveness is looked at.
pub const LOOK_MS: u64 = 1_000;
/// A log's new controller, from the healing until it leads: start, claim, read, and a lease in which agents find it.
const TAKE_OVER_MS: u64 = 15_000;
/// What is acknowledged is decided so long after the healing, or after its acknowledgement.
const DECISION_MS: u64 = TAKE_OVER_MS;
/// A run is over when all has gone well for so long.
const CALM_MS: u64 = 60_000;
/// Steps that every watched job makes in that time at least.
const CALM_STEPS: u64 = 3;
/// The core's own words for these are of production, with its own grace; the world measures them itself.
const MEASURED_HERE: [&str; 1] = ["a reclaimed slot is free by its deadline"];

/// Something that is not as it has to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The property.
    pub property: String,
    /// Who broke it, and how.
    pub detail: String,
    /// True time.
    pub at_ms: u64,
}

/// A watched job.
#[derive(Debug)]
struct Watched {
    /// Its highest step at the healing, and since.
    healed: Step,
    newest: Step,
    rose_at: At,
    generations: u64,
}

/// What is remembered to check by.
#[derive(Debug)]
pub struct Checks {
    pub findings: Vec<Finding>,
    references: BTreeMap<JobId, Reference>,
    memberships: BTreeMap<(JobId, Tag), Membership>,
    /// The highest step that any replica of a job was ever at.
    newest: BTreeMap<JobId, (Step, At)>,
    watched: BTreeMap<JobId, Watched>,
    undecided: BTreeMap<(InputStream, Offset), At>,
    pub controllers_ended: u64,
    /// How often a fault met a phase.
    pub met: BTreeMap<(&'static str, &'static str), u64>,
    pub generations: u64,
    pub steps: u64,
    pub batches: u64,
    /// Nothing is left to be seen.
    pub done: bool,
}

impl Checks {
    /// Of a world in which nothing has happened.
    #[must_use]
    pub fn new(schedule: &Schedule) -> Self {
        let reference = |(index, job): (usize, &crate::schedule::JobSetup)| {
            let id = JobId::parse(&format!("job-{index}")).unwrap_or_else(|e| unreachable!("{e}"));
            (id, Reference::new(job.max))
        };
        Self {
            findings: Vec::new(),
            references: schedule.setup.jobs.iter().enumerate().map(reference).collect(),
            memberships: BTreeMap::new(),
            newest: BTreeMap::new(),
            watched: BTreeMap::new(),
            undecided: BTreeMap::new(),
            controllers_ended: 0,
            met: BTreeMap::new(),
            generations: 0,
            steps: 0,
            batches: 0,
            done: false,
        }
    }

    /// Whether nobody knows this tag by another membership.
    pub fn membership(&mut self, job: &JobId, membership: &Membership) -> bool {
        let known = self.memberships.entry((job.clone(), membership.tag)).or_insert_with(|| membership.clone());
        known == membership
    }

    /// A fault met a phase.
    pub fn note_act(&mut self, act: &'static str, phase: &'static str) {
        *self.met.entry((act, phase)).or_default() += 1;
    }

    /// An input was acknowledged.
    pub fn acknowledged(&mut self, stream: InputStream, offset: Offset, at: At) {
        self.undecided.entry((stream, offset)).or_insert(at);
    }

    /// Inputs were decided.
    pub fn decided(&mut self, taken: &[Taken]) {
        for Taken { stream, to, .. } in taken {
            self.undecided.retain(|(of, offset), _| of != stream || offset >= to);
        }
    }

    /// Begins to watch the jobs that are to run.
    pub fn watch(&mut self, truth: &State, jobs: &[JobId], at: At) {
        for id in jobs {
            let runs = truth.job(id).is_some_and(|job| {
                matches!(job.phase, JobPhase::Queued | JobPhase::Starting(_) | JobPhase::Running(..))
            });
            if runs {
                let newest = self.newest.get(id).map_or(Step(0), |(step, _)| *step);
                let watched = Watched { healed: newest, newest, rose_at: at, generations: 0 };
                self.watched.insert(id.clone(), watched);
            }
        }
    }
}

/// Longest time without a new highest step.
fn patience_ms(setup: &Setup) -> u64 {
    let unit_ms = setup.unit_ms;
    let silence_ms = (8 * unit_ms).max(60_000);
    let replica = REPLICA as u64 * setup.element_bytes;
    let copy_ms = 1_000 * replica / setup.link_bytes_per_s;
    let read_ms = 1_000 * replica / setup.store_bytes_per_s;
    let outside = u64::from((setup.servers - setup.core_servers) * setup.slots);
    let rounds_ms = (outside + 1) * (3 * silence_ms + 30_000 + 2 * copy_ms + 3 * unit_ms);
    let back_off_ms = controller_core::limits::BACKOFF_MS_MAX;
    TAKE_OVER_MS + 2 * AGENT_LEASE_MS + rounds_ms + back_off_ms + setup.build_ms + read_ms + 2 * unit_ms
}

impl World {
    /// Writes a finding down.
    pub fn found(&mut self, property: &str, detail: String) {
        let at_ms = self.now().since_ms(At(0));
        self.checks.findings.push(Finding { property: property.to_owned(), detail, at_ms });
    }

    /// What one process alone would have computed.
    pub fn reference(&mut self, job: &JobId) -> &mut Reference {
        self.checks.references.entry(job.clone()).or_insert_with(|| Reference::new(1))
    }

    /// A replica has come to a step.
    pub fn step_is_done(&mut self, job: &JobId, step: Step) {
        let now = self.now();
        self.checks.steps += 1;
        let (newest, at) = self.checks.newest.entry(job.clone()).or_insert((Step(0), now));
        if step.0 > newest.0 + 1 {
            let detail = format!("{job} at step {step}, nobody was beyond {newest}");
            return self.found("nobody is two steps ahead of everybody", detail);
        }
        if step > *newest {
            (*newest, *at) = (step, now);
            if let Some(watched) = self.checks.watched.get_mut(job) {
                (watched.newest, watched.rose_at) = (step, now);
            }
        }
    }

    /// An executor is started.
    pub fn check_start(&mut self, agent: Pid, slot: u16, executor: &ExecutorId) {
        let Some(place) = self.processes.get(&agent).map(|process| process.place) else { return };
        let id = SlotId { server: Self::server_at(place), index: slot };
        if let Some(other) = self.executor_on(place, slot) {
            self.found("no slot is in two hands", format!("{executor} starts on {id} beside {other:?}"));
        }
        if self.people.fleets.get(&place).is_some_and(|fleet| fleet.hands.contains(&slot)) {
            self.found("nothing starts on a slot that its fleet was told is free", format!("{executor} on {id}"));
        }
        if self.log.truth.slot(&id).is_none_or(|slot| slot.state == SlotState::Unoffered) {
            self.found("nothing starts on a slot that is not lent", format!("{executor} on {id}"));
        }
    }

    /// A batch counts: what the state has to be like then.
    pub fn check_batch(&mut self, before: &State, batch: &Batch) {
        self.checks.batches += 1;
        let broken = invariants::check(&self.log.truth).into_iter();
        for violation in broken.chain(invariants::check_step(before, &self.log.truth)) {
            if !MEASURED_HERE.contains(&violation.invariant) {
                self.found(violation.invariant, violation.detail);
            }
        }
        for fact in &batch.facts {
            match fact {
                Fact::SlotReturned { slot } => self.check_returned(slot),
                Fact::GenerationProposed { job, proposal } => self.count_generation(job, proposal),
                Fact::AgentGone { server } => self.check_given_up(server),
                Fact::JobFailed { job, reason } => {
                    self.found("no job fails for what its servers did", format!("{job}: {reason}"));
                }
                _ => {}
            }
        }
    }

    fn place_of(server: &events_schema::ServerId) -> u16 {
        let number = server.as_str().rsplit('-').next().and_then(|number| number.parse::<u16>().ok());
        number.map_or(0, |number| number + 1)
    }

    fn check_returned(&mut self, slot: &SlotId) {
        if let Some(pid) = self.executor_on(Self::place_of(&slot.server), slot.index) {
            let detail = format!("{slot} is returned with {pid:?} on it");
            self.found("a slot is returned when nobody is on it any more", detail);
        }
    }

    fn count_generation(&mut self, job: &JobId, proposal: &Proposal) {
        self.checks.generations = self.checks.generations.max(proposal.generation.0);
        if let Some(watched) = self.checks.watched.get_mut(job) {
            watched.generations += 1;
        }
    }

    /// L4: an agent of the core is heard from the healing on.
    fn check_given_up(&mut self, server: &events_schema::ServerId) {
        let Some(healed_at) = self.healed_at else { return };
        let core = Self::place_of(server) <= self.schedule.setup.core_servers;
        if core && self.now() > healed_at.plus_ms(2 * AGENT_LEASE_MS) {
            self.found("L4: nobody healthy is given up", format!("{server}"));
        }
    }

    /// Looks around, and again a second later.
    pub fn check(&mut self) {
        self.bus.put(self.bus.now().plus_ms(LOOK_MS), Event::Check);
        self.check_take_backs();
        let Some(healed_at) = self.healed_at else { return };
        (1..=self.schedule.setup.core_servers).for_each(|place| self.lend_again(place));
        self.check_decisions(healed_at);
        self.check_progress(healed_at);
    }

    /// L2.
    fn check_take_backs(&mut self) {
        let now = self.now();
        let late: Vec<u64> = self.people.asked.iter().filter(|(_, a)| a.until < now).map(|(id, _)| *id).collect();
        for request in late {
            let Some(asked) = self.people.asked.remove(&request) else { continue };
            if !asked.excused {
                let detail = format!("at {} for {request}", Self::server_at(asked.place));
                self.found("L2: a direct take-back is answered in time", detail);
            }
        }
    }

    /// L3.
    fn check_decisions(&mut self, healed_at: At) {
        let now = self.now();
        let late = self.checks.undecided.iter().find(|(_, at)| now > (**at).max(healed_at).plus_ms(DECISION_MS));
        if let Some(((stream, offset), at)) = late {
            let detail = format!("{} {offset}, acknowledged at {} ms", stream.name(), at.since_ms(At(0)));
            self.found("L3: what was acknowledged is decided", detail);
            self.checks.undecided.clear();
        }
    }

    /// L1 and the end of a run.
    fn check_progress(&mut self, healed_at: At) {
        let (now, patience_ms) = (self.now(), patience_ms(&self.schedule.setup));
        let truth = &self.log.truth;
        let ended = |id: &JobId| {
            truth.job(id).is_none_or(|job| job.phase.is_terminal() || matches!(job.phase, JobPhase::Suspending(..) | JobPhase::Suspended))
        };
        self.checks.watched.retain(|id, _| !ended(id));
        let stuck = self.checks.watched.iter().find(|(_, watched)| now > watched.rose_at.plus_ms(patience_ms));
        if let Some((id, watched)) = stuck {
            let (id, detail) = (id.clone(), format!("no step after {} for {patience_ms} ms", watched.newest));
            let state = self.describe(&id);
            self.found("L1: a job goes on", format!("{id}: {detail}; {state}"));
        }
        let calm = |watched: &Watched| {
            watched.newest.0 >= watched.healed.0 + CALM_STEPS && now.since_ms(watched.rose_at) < CALM_MS / 3
        };
        let settled = now > healed_at.plus_ms(CALM_MS) && self.checks.watched.values().all(calm);
        self.checks.done |= settled && self.checks.undecided.is_empty();
    }

    /// What a job is at, for whoever reads a finding.
    fn describe(&self, id: &JobId) -> String {
        let Some(job) = self.log.truth.job(id) else { return "unknown".to_owned() };
        let active = job.active().map(|active| active.proposal.generation);
        let proposed = job.placement().and_then(|p| p.proposed.as_ref()).map(|p| (p.generation, p.entry.clone()));
        let mut text = format!("{} active {active:?} proposed {proposed:?}", job.phase.name());
        for (pid, process) in &self.processes {
            if let Some(executor) = self.executor(*pid).filter(|executor| executor.id.job == *id) {
                let progress = executor.member.progress();
                text += &format!(
                    "; {} on {} {}at {:?} {}.{} {:?} {:?}",
                    executor.peer(),
                    Self::server_at(process.place),
                    if process.stopped { "stopped " } else { "" },
                    executor.step,
                    progress.generation,
                    progress.revision,
                    progress.phase,
                    progress.waits_for
                );
            }
        }
        text
    }

    /// Everything that acts had to do with, for the report of a run.
    #[must_use]
    pub fn acts_met(&self) -> BTreeSet<(&'static str, &'static str)> {
        self.checks.met.keys().copied().collect()
    }
}
