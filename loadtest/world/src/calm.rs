//! What comes to rest once the core is healthy. L4: few generations a job, one claim more at most, and nobody healthy given up. L5: when
//! nobody asks for anything and nothing breaks, only that goes on being decided which a training cell decides for as long as it trains.
//!
//! A generation is caused by something: by what a fleet lends or takes back after the healing, by a member outside the core, which comes and
//! goes and is tried again after pauses that double, or by the core itself, which gathers once. Causes are counted here, and no other counts.

use crate::cell::AGENT_LEASE_MS;
use crate::checks::{TAKE_OVER_MS, outside, patience_ms, patience_with_ms};
use crate::ends::FIRST_UNIT_STALL_MS;
use crate::time::At;
use crate::weather::CORE_NEEDS_MS;
use crate::world::{Body, Pid, Process, World};
use events_schema::batch::Batch;
use events_schema::control::STOPPED_STATUS;
use events_schema::fact::{AbandonCause, Entry, Fact};
use events_schema::report::ExitCause;
use events_schema::{ExecutorId, Generation, JobId, SlotId};
use std::collections::{BTreeMap, BTreeSet};

/// A run is over when nothing was decided for so long but what goes on for ever.
const REST_MS: u64 = 60_000;
/// Where something comes and goes for ever nothing comes to rest; whether jobs go on is looked at for so long.
const FLAPS_FOR_MS: u64 = 300_000;
/// Generations of a job after the healing, beside those that have a cause: its members come together, without whom they lost, and with all
/// that are there.
const GENERATIONS_MAX: u64 = 3;
/// Claims that a controller asks for after the healing, beside those that answer an older one of its own which landed only then.
const CLAIMS_MAX: u64 = 1;
/// And for each rival: its own, and that of whom it throws out, who is started again. Two that claim at the same time cannot know of each other.
const CLAIMS_OF_RIVAL: u64 = 2;

/// Generations for each unit that hangs: without whoever is in it, and with another one in its place.
const HUNG_GENERATIONS: u64 = 2;
/// Generations for each try to grow that fails, and each time that a link or server outside the core comes and goes: with the newcomer, and without it.
const FAILED_GENERATIONS: u64 = 2;

/// The generations of a job since the healing, and what some of them come from.
#[derive(Debug, Default)]
struct Generations {
    /// All, with their time, for whoever reads a finding.
    proposed: Vec<String>,
    /// Those that no change of its plan is the reason for.
    again: u64,
    /// The slots of its plan, and whether some were taken from it, or added, since a generation came from that: who leaves is let go at
    /// once, and who comes in has to be built first.
    slots: BTreeSet<SlotId>,
    shrinks: bool,
    grows: bool,
    /// Batches in which a slot was given up, or the try to grow with one, that is outside the core or cannot reach a member that is.
    failed: u64,
    /// Those that change a running generation.
    switches: BTreeSet<Generation>,
    /// Of these, those that were given up after a unit had hung: nobody comes to a boundary while one does.
    held_up: u64,
    /// Executors that members missed since the healing, on links that are no more.
    missed: BTreeSet<ExecutorId>,
    /// Words that came soon after the healing about executors that are gone: that it is, and before that that a member misses it.
    lost: u64,
    /// Whether new executors were held back at the healing, because others had failed just before. They come by themselves then, after those
    /// that were being built already.
    held_back: bool,
}

impl Generations {
    /// Its plan is of these slots now.
    fn plan(&mut self, slots: &BTreeSet<SlotId>) {
        self.shrinks |= !self.slots.is_subset(slots);
        self.grows |= !slots.is_subset(&self.slots);
        self.slots.clone_from(slots);
    }

    /// Whether a switch is given up because somebody is late or lost.
    fn is_held_up(&self, id: &JobId, fact: &Fact) -> bool {
        let Fact::GenerationAbandoned { job, generation, cause, .. } = fact else { return false };
        let in_vain = matches!(cause, AbandonCause::Deadline | AbandonCause::MemberLost);
        job == id && in_vain && self.switches.contains(generation)
    }
}

/// What happened since the healing.
#[derive(Debug, Default)]
pub struct Calm {
    /// Claims that stood in the log before.
    claims: u64,
    /// Controllers beside the one that agents find. Each may not know yet that it is not the one.
    rivals: u64,
    /// Claims that were asked for since.
    asked: u64,
    /// Batches that a mutant wrote otherwise since: whose they are reads the log and claims anew.
    written_otherwise: u64,
    jobs: BTreeMap<JobId, Generations>,
    /// When a job last ended: what it had is given back, and used by others.
    ended_at: At,
    /// How often a link or server outside the core has come and gone again.
    flaps: u64,
    /// When something was last decided that does not go on for ever, and what.
    restless: Option<(At, String)>,
}

/// Whether a fact goes on being decided in a healthy cell of which nobody asks anything, for as long as its jobs train. Of everything else
/// there is an end.
fn goes_on(fact: &Fact) -> bool {
    match fact {
        // As often as the job's spec says, and each that counts retires an older one.
        Fact::CheckpointAccepted { .. } | Fact::CheckpointRetired { .. }
        // Once a job, and it is what everybody waits for.
        | Fact::JobFinished { .. }
        // Measurements: as often as the job's spec says, and once a generation.
        | Fact::Evaluated { .. } | Fact::GenerationStepped { .. } | Fact::ThroughputMeasured { .. }
        // As service is attained: once a queue, and each promotion takes a longer wait.
        | Fact::QueueEntered { .. }
        // How far the reports are taken that the above came from; alone it is not: see `is_restless`.
        | Fact::ReportsTaken { .. } => true,
        // Said in old logs only.
        Fact::JobExplained { .. }
        // Asked for by somebody.
        | Fact::JobAccepted { .. } | Fact::CommandRefused { .. } | Fact::CommandTaken { .. } | Fact::JobSuspending { .. }
        | Fact::JobSuspended { .. } | Fact::JobResumed { .. } | Fact::JobCancelled { .. } | Fact::DatasetRegistered { .. }
        | Fact::DatasetRemoved { .. } | Fact::FleetDeclared { .. } | Fact::DemandAccepted { .. } | Fact::SignalsRefused { .. } | Fact::FleetRecalled { .. } | Fact::FleetReleased { .. } | Fact::SlotsOffered { .. } | Fact::QuotaSet { .. }
        | Fact::SlotReclaimed { .. } | Fact::SlotReturned { .. }
        // A device fails, or is as it was.
        | Fact::SlotQuarantined { .. } | Fact::SlotRecovered { .. }
        // Somebody comes or goes, or something is tried.
        | Fact::JobFailed { .. } | Fact::PlanAdopted { .. } | Fact::ExecutorAssigned { .. } | Fact::ExecutorReady { .. }
        | Fact::ExecutorLeaving { .. } | Fact::ExecutorGone { .. } | Fact::GenerationProposed { .. } | Fact::GenerationActive { .. }
        | Fact::GenerationAbandoned { .. } | Fact::MemberDeparted { .. } | Fact::JobRestarted { .. } | Fact::SlotBorrowed { .. }
        | Fact::AgentJoined { .. } | Fact::AgentGone { .. } | Fact::PeersMissing { .. } | Fact::ReplicaHeld { .. }
        | Fact::JobScaled { .. } | Fact::JobStalled { .. } | Fact::SlotAvoided { .. } | Fact::GrowthPaused { .. } | Fact::LinkMeasured { .. } | Fact::PolicyChosen { .. }
        | Fact::MemberLost { .. } | Fact::MemberStraggles { .. } | Fact::MemberKeepsUp { .. } | Fact::TypesMeasured { .. } | Fact::LoadMeasured { .. } | Fact::ExecutorStuck { .. }
        | Fact::ServerForgotten { .. } | Fact::CheckpointDamaged { .. } | Fact::CheckpointUnreadable { .. }
        // Something is wrong.
        | Fact::InputRefused { .. } | Fact::PlanFailed { .. } | Fact::ReplicasDiffered { .. }
        // By the store's sweep, which the world does not have.
        | Fact::ObjectsSwept { .. } => false,
    }
}

/// What of a batch has to end, if anything. Reports that nothing follows from are as bad as any other fact that is repeated.
fn restless(batch: &Batch) -> Option<String> {
    let only_taken = !batch.facts.is_empty() && batch.facts.iter().all(|f| matches!(f, Fact::ReportsTaken { .. }));
    let ends = batch.facts.iter().find(|fact| only_taken || !goes_on(fact))?;
    Some(format!("{ends:?}"))
}

impl World {
    /// The healing has come.
    pub fn begin_calm(&mut self) {
        let is_rival =
            |(pid, process): &(&Pid, &Process)| matches!(process.body, Body::Cell(_)) && self.controller != Some(**pid);
        let (claims, rivals) = (self.log.claims, self.processes.iter().filter(is_rival).count() as u64);
        let truth = &self.log.truth;
        let slots = |id: &JobId| truth.job(id).map(|job| job.slots().clone()).unwrap_or_default();
        let wall = self.controller.map_or(truth.at(), |pid| self.clock(pid).wall(self.now()));
        let held_back = |id: &JobId| truth.job(id).is_some_and(|job| wall < job.faults.backoff_until());
        let generations =
            |id: &JobId| Generations { slots: slots(id), held_back: held_back(id), ..Generations::default() };
        let jobs = self.people.jobs.iter().map(|id| (id.clone(), generations(id)));
        self.checks.calm = Calm { claims, rivals, jobs: jobs.collect(), ..Calm::default() };
    }

    /// A batch counts.
    pub fn note_batch(&mut self, batch: &Batch) {
        let (Some(healed_at), now) = (self.healed_at, self.now()) else { return };
        let calm = &mut self.checks.calm;
        if let Some(what) = restless(batch) {
            calm.restless = Some((now, what));
        }
        if batch.facts.iter().any(|fact| matches!(fact, Fact::JobFinished { .. })) {
            calm.ended_at = now;
        }
        let since_ms = now.since_ms(healed_at);
        for job in self.people.jobs.clone() {
            self.note_generations(&job, batch, since_ms);
        }
    }

    /// L4: the generations that a batch proposes for a job, and what they may come from.
    fn note_generations(&mut self, id: &JobId, batch: &Batch, since_ms: u64) {
        let setup = &self.schedule.setup;
        let outside_core = |slot: &SlotId| Self::place_of(&slot.server) > setup.core_servers;
        // Nobody promised that it reaches every other one that the job has: it is outside the core itself, or one of them is.
        let kept_apart = |slot: &SlotId| {
            let at = Self::place_of(&slot.server);
            let cut = |other: u16| !self.net.is_whole(at, other) || !self.net.is_whole(other, at);
            let has_cut = |other: &SlotId| {
                outside_core(other) && other.server != slot.server && cut(Self::place_of(&other.server))
            };
            outside_core(slot) || self.log.truth.job(id).is_some_and(|job| job.slots().iter().any(has_cut))
        };
        let hung = self.hung_units(Some(id));
        let truth = &self.log.truth;
        let is_apart = |executor: &ExecutorId| truth.executor(executor).is_none_or(|e| kept_apart(&e.slot));
        let fails = |fact: &Fact| match fact {
            Fact::SlotAvoided { job, slot, .. } => job == id && kept_apart(slot),
            Fact::GrowthPaused { job, executor, .. } => job == id && is_apart(executor),
            _ => false,
        };
        let slots = truth.job(id).map(|job| job.slots().clone()).unwrap_or_default();
        let (failed, flaps) = (batch.facts.iter().any(fails), self.checks.calm.flaps);
        let known = self.checks.calm.jobs.entry(id.clone()).or_default();
        known.failed += u64::from(failed);
        if since_ms <= TAKE_OVER_MS {
            for fact in &batch.facts {
                match fact {
                    Fact::PeersMissing { job, peers, begun: true, .. } if job == id => {
                        known.missed.extend(peers.iter().cloned());
                    }
                    Fact::ExecutorGone { executor, .. } if executor.job == *id => {
                        known.lost += 1 + u64::from(known.missed.remove(executor));
                    }
                    _ => {}
                }
            }
        }
        // Who leaves in the middle of a step, or not before its slot's deadline, at its plan's word, is left out by a generation more.
        let returned =
            |of: &SlotId| batch.facts.iter().any(|fact| matches!(fact, Fact::SlotReturned { slot, .. } if slot == of));
        let early = |fact: &&Fact| match fact {
            Fact::ExecutorGone { executor, exit: ExitCause::Status(STOPPED_STATUS), .. } => executor.job == *id,
            Fact::ExecutorGone { executor, slot, exit: ExitCause::Killed, .. } => executor.job == *id && returned(slot),
            _ => false,
        };
        if since_ms > TAKE_OVER_MS {
            known.lost += batch.facts.iter().filter(early).count() as u64;
        }
        if hung > 0 {
            known.held_up += batch.facts.iter().filter(|fact| known.is_held_up(id, fact)).count() as u64;
        }
        // A batch may have a second plan after the generation that came from the first.
        if !batch.facts.iter().any(|fact| matches!(fact, Fact::PlanAdopted { job, .. } if job == id)) {
            known.plan(&slots);
        }
        for fact in &batch.facts {
            let proposal = match fact {
                Fact::GenerationProposed { job, proposal } if job == id => proposal,
                Fact::PlanAdopted { job, slots, .. } if job == id => {
                    known.plan(&slots.iter().cloned().collect());
                    continue;
                }
                _ => continue,
            };
            if matches!(proposal.entry, Entry::Switch { .. }) {
                known.switches.insert(proposal.generation);
            }
            let by_plan = std::mem::take(&mut known.shrinks) || std::mem::take(&mut known.grows);
            known.again += u64::from(!by_plan);
            let other = if by_plan { " on other slots" } else { "" };
            known.proposed.push(format!("{} {:?} at {since_ms} ms{other}", proposal.generation, proposal.entry));
        }
        known.plan(&slots);
        let Generations { failed, lost, held_up, held_back, again, .. } = *known;
        let hung = held_up + HUNG_GENERATIONS * hung;
        let most = outside(setup)
            + GENERATIONS_MAX
            + lost
            + u64::from(held_back)
            + FAILED_GENERATIONS * (failed + flaps)
            + hung;
        if again > most && since_ms <= patience_ms(setup) {
            let detail =
                format!("{id}, {again} that come from no new plan, more than {most}: {}", known.proposed.join(", "));
            self.found("L4: few generations are enough", detail);
        }
    }

    /// A link or server outside the core comes and goes once more.
    pub fn note_flap(&mut self) {
        self.checks.calm.flaps += u64::from(self.healed_at.is_some());
    }

    /// Whether something outside the core comes and goes for ever, so that there is no end of what is decided about it.
    #[must_use]
    pub fn flaps(&self) -> bool {
        self.checks.calm.flaps > 0
    }

    /// A controller that does not lead appends a claim.
    pub fn note_claim(&mut self) {
        self.checks.calm.asked += u64::from(self.healed_at.is_some());
    }

    /// A mutant writes a batch otherwise.
    pub fn forgive_claim(&mut self) {
        self.checks.calm.written_otherwise += u64::from(self.healed_at.is_some());
    }

    /// L4: whoever leads the cell is found within one claim.
    pub fn check_claims(&mut self) {
        let Calm { claims, rivals, written_otherwise, .. } = self.checks.calm;
        let asked = self.checks.calm.asked.saturating_sub(written_otherwise);
        // Those that were asked for before and stand only now throw their own controller back once.
        let late = (self.log.claims - claims).saturating_sub(asked);
        if self.controller.is_some_and(|pid| self.leads(pid)) && asked > CLAIMS_MAX + CLAIMS_OF_RIVAL * rivals + late {
            let detail = format!("{asked} times, with {rivals} rivals and {late} claims that came late");
            self.found("L4: the cell is claimed once more at most", detail);
        }
    }

    /// L5: whether all is at rest; it has to be in time.
    pub fn check_rest(&mut self, healed_at: At) -> bool {
        let now = self.now();
        // The last of what people and fleets of the core ask for, or that a job has come to its end.
        let asked_at = healed_at.plus_ms(CORE_NEEDS_MS.1).max(self.checks.calm.ended_at);
        let restless = self.checks.calm.restless.as_ref();
        let rests = now.since_ms(restless.map_or(asked_at, |(at, _)| (*at).max(asked_at))) >= REST_MS;
        // A unit that hung holds its job up for as long as a first one may take, whatever is known of the job by now.
        let first_unit_ms = patience_with_ms(&self.schedule.setup, FIRST_UNIT_STALL_MS);
        let patience_ms = if self.hung_units(None) > 0 { first_unit_ms } else { self.longest_patience_ms() };
        let by = asked_at.plus_ms(patience_ms + REST_MS);
        if self.flaps() {
            return now.since_ms(healed_at) >= FLAPS_FOR_MS;
        }
        if !rests && now > by {
            let detail = restless.map_or_else(String::new, |(_, what)| format!("what was decided last is {what}"));
            self.found("L5: with constant input nothing new is decided", detail);
        }
        rests
    }

    /// L4: from a lease after the healing on no agent of the core is given up that runs.
    #[must_use]
    pub fn is_spared(&self, place: crate::schedule::Place, decided_at: At) -> bool {
        let healed = self.healed_at.is_some_and(|healed_at| decided_at > healed_at.plus_ms(AGENT_LEASE_MS));
        healed && place <= self.schedule.setup.core_servers
    }
}
