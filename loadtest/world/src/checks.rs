//! What has to be true. Safety is looked at after every event that could break it; liveness from the healing on.
//!
//! L1: the highest completed step of every watched job rises, again and again. L2: a direct take-back is answered in time. L3: what was
//! acknowledged is decided. L4: few generations, one claim more, nobody healthy given up. L5: nothing goes on being decided for nothing.
//! The last two are in `calm.rs`; that the log gives again what it gave is in `replay.rs`.

use crate::calm::Calm;
use crate::cell::AGENT_LEASE_MS;
use crate::elsewhere::Elsewhere;
use crate::ends::Ends;
use crate::losses::Losses;
use crate::numbers::{Made, REPLICA, Reference};
use crate::people::{Asked, TAKE_BACK_GRACE_MS};
use crate::phase::Phase;
use crate::schedule::{Schedule, Setup};
use crate::slowed::Slowed;
use crate::time::At;
use crate::weather::CORE_NEEDS_MS;
use crate::world::{CONTROL, Event, Pid, World};
use controller_core::invariants;
use controller_core::state::{Job, JobPhase, SlotState, State};
use events_schema::batch::{Batch, InputStream, Taken};
use events_schema::fact::{AbandonCause, Entry, Fact, LeaveCause, StallCause, StallRemedy};
use events_schema::{ExecutorId, JobId, Offset, SlotId, Step, Term, TimeMs, host_index};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use workers_agent_core::KillCause;
use workers_session::{Membership, Tag};

/// How often liveness is looked at.
pub const LOOK_MS: u64 = 1_000;
/// A log's new controller, from the healing until it leads: start, claim, read, and a lease in which agents find it.
pub const TAKE_OVER_MS: u64 = 15_000;
/// What is acknowledged is decided so long after the healing, or after its acknowledgement.
const DECISION_MS: u64 = TAKE_OVER_MS;
/// A run is over when all has gone well for so long.
const CALM_MS: u64 = 60_000;
/// A job with fewer steps left than any makes in a run is near its end.
const NEAR_STEPS: u64 = 10_000;
/// Steps that every watched job makes in that time at least.
const CALM_STEPS: u64 = 3;
/// A kill may be so much early: the time of a batch, and clocks that drift.
const KILL_EARLY_MS: u64 = 1_000;
/// With a longer lease no loan ends by itself during a run.
const LONG_LEASE_MS: u64 = 300_000;
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

/// How often which fault met which phase, both by their names.
pub type Met = BTreeMap<(&'static str, &'static str), u64>;

/// A kind of fact: its name, and what of it.
pub type Kind = (String, &'static str);

fn kind(fact: &Fact) -> Kind {
    let detail = match fact {
        Fact::GenerationProposed { proposal, .. } => match proposal.entry {
            Entry::Fresh => "fresh",
            Entry::Checkpoint { .. } => "checkpoint",
            Entry::Switch { .. } => "switch",
            Entry::Recover => "recover",
        },
        Fact::GenerationAbandoned { cause: AbandonCause::Deadline, .. } => "deadline",
        Fact::GenerationAbandoned { cause: AbandonCause::MemberLost, .. } => "lost",
        Fact::GenerationAbandoned { cause: AbandonCause::Superseded, .. } => "superseded",
        Fact::GenerationAbandoned { cause: AbandonCause::Unlinked, .. } => "unlinked",
        Fact::ExecutorLeaving { cause: LeaveCause::Reclaim, .. } => "reclaim",
        Fact::ExecutorLeaving { cause: LeaveCause::Plan, .. } => "plan",
        Fact::ExecutorLeaving { cause: LeaveCause::JobEnd, .. } => "end",
        Fact::ExecutorLeaving { cause: LeaveCause::Useless, .. } => "useless",
        Fact::PlanAdopted { slots, .. } if slots.is_empty() => "nothing",
        Fact::PlanAdopted { slots, .. } if slots.iter().any(SlotId::is_guest) => "guest slots",
        Fact::ReplicasDiffered { slots, .. } if slots.is_empty() => "nobody",
        Fact::JobStalled { remedy, .. } => match remedy {
            StallRemedy::Wait => "wait",
            StallRemedy::Round => "round",
            StallRemedy::WithoutBlamed => "without the blamed",
            StallRemedy::Restart => "restart",
            StallRemedy::Suspend => "suspend",
            StallRemedy::Fail => "fail",
        },
        _ => "",
    };
    (name(fact), detail)
}

/// The name of a fact's kind.
fn name(fact: &Fact) -> String {
    /// Takes what a value's debug form begins with, and no more: the rest may be long.
    struct Name(String);
    impl fmt::Write for Name {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let letters = text.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(text.len());
            self.0.push_str(&text[..letters]);
            if letters == text.len() { Ok(()) } else { Err(fmt::Error) }
        }
    }
    let mut name = Name(String::new());
    // Ends by an error as soon as the name is whole.
    let _ = fmt::write(&mut name, format_args!("{fact:?}"));
    name.0
}

/// A watched job.
#[derive(Debug)]
struct Watched {
    /// Its highest step at the healing, and since.
    healed: Step,
    newest: Step,
    rose_at: At,
    /// The longest that it was given since then. A step that is done again tells how long steps take, and takes nothing off the time that it was waited for.
    patience_ms: u64,
}

/// What is remembered to check by.
#[derive(Debug)]
pub struct Checks {
    pub findings: Vec<Finding>,
    references: BTreeMap<JobId, Reference>,
    /// Of jobs with `determinism: none`.
    pub made: BTreeMap<JobId, Made>,
    memberships: BTreeMap<(JobId, Tag), Membership>,
    /// The highest step that any replica of a job was ever at.
    newest: BTreeMap<JobId, (Step, At)>,
    watched: BTreeMap<JobId, Watched>,
    /// Jobs that were suspended because they did not get on, and not for their store's sake: nobody asked for that.
    given_up: BTreeSet<JobId>,
    undecided: BTreeMap<(InputStream, Offset), At>,
    /// Since when slots are on their way back.
    reclaimed: BTreeMap<SlotId, At>,
    pub ends: Ends,
    pub calm: Calm,
    pub losses: Losses,
    pub elsewhere: Elsewhere,
    pub slowed: Slowed,
    /// Executors that did not leave in time.
    pub killed_at_deadlines: u64,
    pub controllers_ended: u64,
    /// How often each kind of fact counted.
    pub facts: BTreeMap<Kind, u64>,
    /// How often a fault met a phase of the first job, and of any other.
    pub met: Met,
    pub met_others: Met,
    pub generations: u64,
    pub steps: u64,
    pub batches: u64,
    /// What slots of each host have spent on steps, where jobs say what those take.
    pub made_us: BTreeMap<u16, u64>,
    /// Jobs in whose present run a bit flipped.
    pub flipped: BTreeSet<JobId>,
    /// Nothing is left to be seen.
    pub done: bool,
}

impl Checks {
    /// Of a world in which nothing has happened.
    #[must_use]
    pub fn new(schedule: &Schedule) -> Self {
        let id = |index| JobId::parse(&format!("job-{index}")).unwrap_or_else(|e| unreachable!("{e}"));
        let reference = |(index, job): (usize, &crate::schedule::JobSetup)| (id(index), Reference::new(job.max));
        let without = schedule.setup.jobs.iter().enumerate().filter(|(_, job)| job.without_determinism);
        Self {
            findings: Vec::new(),
            references: schedule.setup.jobs.iter().enumerate().map(reference).collect(),
            made: without.map(|(index, _)| (id(index), Made::default())).collect(),
            memberships: BTreeMap::new(),
            newest: BTreeMap::new(),
            watched: BTreeMap::new(),
            given_up: BTreeSet::new(),
            undecided: BTreeMap::new(),
            reclaimed: BTreeMap::new(),
            ends: Ends::default(),
            calm: Calm::default(),
            losses: Losses::default(),
            elsewhere: Elsewhere::default(),
            slowed: Slowed::default(),
            killed_at_deadlines: 0,
            controllers_ended: 0,
            facts: BTreeMap::new(),
            met: Met::new(),
            met_others: Met::new(),
            generations: 0,
            steps: 0,
            batches: 0,
            made_us: BTreeMap::new(),
            flipped: BTreeSet::new(),
            done: false,
        }
    }

    /// Whether nobody knows this tag by another membership.
    pub fn membership(&mut self, job: &JobId, membership: &Membership) -> bool {
        let known = self.memberships.entry((job.clone(), membership.tag)).or_insert_with(|| membership.clone());
        known == membership
    }

    /// A fault met every job in its phase.
    pub fn note_act(&mut self, act: &'static str, phases: &[Phase]) {
        for (index, phase) in phases.iter().enumerate() {
            let met = if index == 0 { &mut self.met } else { &mut self.met_others };
            *met.entry((act, phase.name())).or_default() += 1;
        }
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

    /// The highest step of a job.
    #[must_use]
    pub fn newest_step(&self, job: &JobId) -> Step {
        self.newest.get(job).map_or(Step(0), |(step, _)| *step)
    }

    /// When the highest step of a job was done.
    pub fn stepped_at(&self, job: &JobId) -> At {
        self.newest.get(job).map_or(At(0), |(_, at)| *at)
    }

    /// A shortened topic has lost what stands from `cut` on; what of it was acknowledged and is not decided.
    pub fn lose(&mut self, stream: InputStream, cut: Offset) -> Vec<Offset> {
        let lost = self.undecided.extract_if(.., |(of, offset), _| *of == stream && *offset >= cut);
        lost.map(|((_, offset), _)| offset).collect()
    }

    /// It has `lost` records back, before those that were appended since.
    pub fn restore(&mut self, stream: InputStream, cut: Offset, lost: u64, acknowledged: Vec<Offset>, at: At) {
        let since = self.lose(stream, cut).into_iter().map(|offset| Offset(offset.0 + lost));
        let all: Vec<Offset> = since.chain(acknowledged).collect();
        self.undecided.extend(all.into_iter().map(|offset| ((stream, offset), at)));
    }

    /// Begins to watch the jobs that are to run.
    pub fn watch(&mut self, truth: &State, jobs: &[JobId], at: At) {
        for id in jobs {
            let runs = truth.job(id).is_some_and(|job| {
                matches!(job.phase, JobPhase::Queued | JobPhase::Starting(_) | JobPhase::Running(..))
            });
            if runs {
                let newest = self.newest_step(id);
                let watched = Watched { healed: newest, newest, rose_at: at, patience_ms: 0 };
                self.watched.insert(id.clone(), watched);
            }
        }
    }
}

/// Slots of servers outside the core, each of which may hold one member.
#[must_use]
pub fn outside(setup: &Setup) -> u64 {
    u64::from((setup.servers - setup.core_servers) * setup.slots)
}

/// Longest time without a new highest step.
#[must_use]
pub fn patience_ms(setup: &Setup) -> u64 {
    patience_with_ms(setup, (8 * setup.unit_ms).max(60_000))
}

/// The same, by how long a unit of computing may be silent.
pub fn patience_with_ms(setup: &Setup, silence_ms: u64) -> u64 {
    let unit_ms = setup.unit_ms;
    let replica = REPLICA as u64 * setup.element_bytes;
    let copy_ms = 1_000 * replica / setup.link_bytes_per_s;
    let read_ms = 1_000 * replica / setup.store_bytes_per_s;
    let rounds_ms = (outside(setup) + 1) * (3 * silence_ms + 30_000 + 2 * copy_ms + 3 * unit_ms);
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

    /// A replica has come from one step to another.
    pub fn step_is_done(&mut self, job: &JobId, from: Step, step: Step) {
        let now = self.now();
        self.checks.steps += 1;
        let (newest, at) = self.checks.newest.entry(job.clone()).or_insert((Step(0), now));
        if from > *newest {
            let detail = format!("{job} at step {step} from {from}, nobody was beyond {newest}");
            return self.found("nobody is two steps ahead of everybody", detail);
        }
        if step > *newest {
            (*newest, *at) = (step, now);
            if let Some(watched) = self.checks.watched.get_mut(job) {
                (watched.newest, watched.rose_at, watched.patience_ms) = (step, now, 0);
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
        if self.people.fleets.get(&place).is_some_and(|fleet| fleet.hands.contains(&host_index(slot))) {
            self.found("nothing starts on a slot that its fleet was told is free", format!("{executor} on {id}"));
        }
        if self.log.truth.slot(&id).is_none_or(|slot| slot.state == SlotState::Unoffered) {
            self.found("nothing starts on a slot that is not lent", format!("{executor} on {id}"));
        }
    }

    /// An agent kills an executor. At the deadline of a reclaim, and for no other reason that could be: not before it.
    pub fn check_kill(&mut self, agent: Pid, slot: u16, executor: &ExecutorId, cause: KillCause) {
        self.checks.killed_at_deadlines += u64::from(cause == KillCause::Deadline);
        let (now, setup) = (self.now(), &self.schedule.setup);
        let Some(place) = self.processes.get(&agent).map(|process| process.place) else { return };
        let id = SlotId { server: Self::server_at(place), index: slot };
        let truth = &self.log.truth;
        let leaving = truth.executor(executor).and_then(|executor| executor.leaving);
        let by_order = leaving.is_some_and(|leaving| leaving.cause == LeaveCause::Reclaim)
            && truth.server(&id.server).is_some_and(|server| server.connected)
            && matches!(cause, KillCause::Deadline | KillCause::Dismissed)
            && setup.loan_lease_ms > LONG_LEASE_MS
            && !self.people.taken.contains(&(place, host_index(slot)));
        let quiet_ms = setup.reclaim_deadline_ms + 2 * AGENT_LEASE_MS;
        // A deadline counts from the decision, which may have waited for the log: its fleet has waited as long.
        let calm = [self.log.well_since(), self.hosts[usize::from(place)].disturbed_at, self.hosts[0].disturbed_at];
        let calm = calm.iter().all(|at| at.0 == 0 || now.since_ms(*at) > quiet_ms);
        let Some(at) = self.checks.reclaimed.get(&id.host()).filter(|_| by_order && calm) else { return };
        if at.plus_ms(setup.reclaim_deadline_ms) > now.plus_ms(KILL_EARLY_MS) {
            let detail = format!("{executor} on {id} after {} of {} ms", now.since_ms(*at), setup.reclaim_deadline_ms);
            self.found("L2: nobody is killed before its deadline", detail);
        }
    }

    /// A batch counts: what the state has to be like then.
    pub fn check_batch(&mut self, before: &State, batch: &Batch) {
        self.checks.batches += 1;
        let truth = &self.log.truth;
        let whole = invariants::check(truth).into_iter().chain(invariants::check_batch(before, truth));
        // The cheap look of production finds what the look at everything does.
        for violation in whole.chain(invariants::check_changes(before, truth)) {
            if !MEASURED_HERE.contains(&violation.invariant) {
                self.found(violation.invariant, violation.detail);
            }
        }
        self.note_batch(batch);
        for fact in &batch.facts {
            *self.checks.facts.entry(kind(fact)).or_default() += 1;
            match fact {
                Fact::SlotReturned { slot, .. } => {
                    self.checks.reclaimed.remove(slot);
                    self.check_returned(slot);
                }
                Fact::SlotsOffered { slots, .. } => self.checks.reclaimed.retain(|slot, _| !slots.contains(slot)),
                Fact::SlotReclaimed { slot, .. } => {
                    self.checks.reclaimed.entry(slot.clone()).or_insert(self.bus.now());
                }
                Fact::GenerationProposed { proposal, .. } => {
                    self.checks.generations = self.checks.generations.max(proposal.generation.0);
                }
                Fact::AgentGone { server } => {
                    let given_up = before.server(server).map(|known| known.incarnation);
                    self.check_given_up(server, given_up, (batch.term, batch.at));
                }
                Fact::ExecutorGone { executor, verdict, .. } => self.check_gone(executor, verdict.as_ref()),
                Fact::JobStalled { job, cause, blamed, remedy, .. } => {
                    if *remedy == StallRemedy::Suspend && *cause != StallCause::Store {
                        self.checks.given_up.insert(job.clone());
                    }
                    self.check_stalled(job, *cause, blamed, *remedy);
                }
                Fact::JobResumed { job } => drop(self.checks.given_up.remove(job)),
                Fact::JobRestarted { job, .. } => drop(self.checks.flipped.remove(job)),
                Fact::JobFailed { job, reason } => self.check_failed(job, reason),
                Fact::JobFinished { job, outcome } => self.check_finished(job, outcome),
                Fact::JobCancelled { job } => self.note_end(job),
                Fact::CheckpointAccepted { job, checkpoint } => self.check_accepted(job, &checkpoint.manifest_key),
                Fact::CheckpointRetired { job, manifest_key } => self.note_retired(job, manifest_key),
                _ => {}
            }
        }
    }

    pub(crate) fn place_of(server: &events_schema::ServerId) -> u16 {
        let number = server.as_str().rsplit('-').next().and_then(|number| number.parse::<u16>().ok());
        number.map_or(0, |number| number + 1)
    }

    fn check_returned(&mut self, slot: &SlotId) {
        if let Some(pid) = self.executor_or_guest_on(Self::place_of(&slot.server), slot.index) {
            let detail = format!("{slot} is returned with {pid} on it");
            self.found("a slot is returned when nobody is on it any more", detail);
        }
    }

    /// L4: nobody is given up who could speak to a controller that could hear, for two leases and more.
    fn check_given_up(
        &mut self,
        server: &events_schema::ServerId,
        given_up: Option<u64>,
        (term, decided): (Term, TimeMs),
    ) {
        let place = Self::place_of(server);
        let present = self.hosts[usize::from(place)].agent;
        let present = present.and_then(|pid| self.agent(pid)).map(|agent| agent.machine.incarnation());
        // One that died before is rightly gone, however long the log took to say so, and whoever has come since.
        if present != given_up {
            return;
        }
        // Judged by what was so when it was decided, which may be long before the log has it.
        // The wall clock may have jumped since; the own time of who decided it only goes on.
        let wall = self.hosts[usize::from(CONTROL)].clock.wall(self.now());
        let shown = self.time_of_term(term).unwrap_or(wall);
        let ago_ms = shown.since_ms(decided);
        let decided_at = At(self.now().0.saturating_sub(ago_ms * 1_000));
        let quiet = |place: u16| decided_at.since_ms(self.hosts[usize::from(place)].disturbed_at) > 3 * AGENT_LEASE_MS;
        let speaks = self.hosts[usize::from(place)].agent.is_some_and(|pid| self.runs(pid));
        let hears = self.controller.is_some_and(|pid| self.runs(pid));
        let whole = self.net.is_whole(place, CONTROL) && self.net.is_whole(CONTROL, place);
        let calm = quiet(place) && quiet(CONTROL) && speaks && hears && whole;
        if calm || self.is_spared(place, decided_at) {
            self.found("L4: nobody healthy is given up", format!("{server}"));
        }
    }

    /// Looks around, and again a second later.
    pub fn check(&mut self) {
        self.bus.put(self.bus.now().plus_ms(LOOK_MS), Event::Check);
        self.check_take_backs();
        self.check_short_inputs();
        self.check_settled();
        self.check_losses();
        self.check_elsewhere();
        self.check_slowed();
        let Some(healed_at) = self.healed_at else { return };
        let since_ms = self.now().since_ms(healed_at);
        if since_ms + LOOK_MS < CORE_NEEDS_MS.0 || since_ms > CORE_NEEDS_MS.1 {
            (1..=self.schedule.setup.core_servers).for_each(|place| self.lend_again(place));
        }
        self.check_reclaims(healed_at);
        self.check_decisions(healed_at);
        self.check_left_behind(healed_at);
        self.check_claims();
        self.check_progress(healed_at);
    }

    /// L2: an accepted direct take-back is free by its deadline, the time in which its agent is stopped or down not counted.
    fn check_take_backs(&mut self) {
        let now = self.now();
        let is_late = |asked: &Asked| asked.paused_at.is_none() && asked.until < now;
        let late: Vec<u64> = self.people.asked.iter().filter(|(_, asked)| is_late(asked)).map(|(id, _)| *id).collect();
        for request in late {
            let Some(asked) = self.people.asked.remove(&request) else { continue };
            let detail = format!("at {} for {request}", Self::server_at(asked.place));
            self.found("L2: a direct take-back is answered in time", detail);
        }
    }

    /// L2, through the log: a slot of the core is free by its deadline, or by when all that was asked before the healing is decided.
    fn check_reclaims(&mut self, healed_at: At) {
        let (now, truth) = (self.now(), &self.log.truth);
        let reclaimed =
            |slot: &SlotId| truth.slot(slot).is_some_and(|s| matches!(s.state, SlotState::Reclaimed { .. }));
        self.checks.reclaimed.retain(|slot, _| reclaimed(slot));
        let within_ms = self.schedule.setup.reclaim_deadline_ms;
        let able_at = healed_at.plus_ms(DECISION_MS);
        let due = |at: At| at.plus_ms(within_ms).max(able_at).plus_ms(TAKE_BACK_GRACE_MS);
        let core = |slot: &SlotId| Self::place_of(&slot.server) <= self.schedule.setup.core_servers;
        let late = self.checks.reclaimed.iter().find(|(slot, at)| core(slot) && now > due(**at));
        if let Some((slot, at)) = late {
            let detail = format!("{slot}, reclaimed at {} ms, within {within_ms} ms", at.since_ms(At(0)));
            self.found("L2: a reclaimed slot is free by its deadline", detail);
            self.checks.reclaimed.clear();
        }
    }

    /// L3: what was acknowledged is decided in time.
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
        let now = self.now();
        let truth = &self.log.truth;
        // Suspended for the store's sake, or because its user wants it; whoever is for another reason has to go on.
        let suspended = |job: &Job, id: &JobId| {
            matches!(job.phase, JobPhase::Suspending(..) | JobPhase::Suspended) && !self.checks.given_up.contains(id)
        };
        let ended = |id: &JobId| truth.job(id).is_none_or(|job| job.phase.is_terminal() || suspended(job, id));
        let granted = self.schedule.setup.grants_all();
        // Where the core has no room for everybody's minimum, who waits, or has to do with slots that may never be reached, is promised nothing.
        let core = self.schedule.setup.core_servers;
        let outside = |slot: &SlotId| Self::place_of(&slot.server) > core;
        let flaps = self.flaps();
        // A policy may leave a job on slots that come and go, whose plan stays as it is for as long as they come again.
        let is_left_outside = |job: &Job| {
            let there = job.slots().iter().filter(|slot| !outside(slot)).count();
            flaps && there < usize::from(job.spec.workers.min)
        };
        let waits = |id: &JobId| {
            let known = truth.job(id);
            known.is_some_and(is_left_outside)
                || !granted && known.is_some_and(|job| job.phase == JobPhase::Queued || job.slots().iter().any(outside))
        };
        let over: Vec<JobId> = self.checks.watched.keys().filter(|id| ended(id)).cloned().collect();
        for id in &over {
            self.checks.watched.remove(id);
        }
        let waiting: BTreeSet<JobId> = self.checks.watched.keys().filter(|id| waits(id)).cloned().collect();
        let watched = self.checks.watched.iter_mut().filter(|(id, _)| waiting.contains(id));
        watched.for_each(|(_, watched)| watched.rose_at = now);
        let patience: Vec<u64> = self.checks.watched.keys().map(|id| self.patience_ms(id)).collect();
        for (watched, patience_ms) in self.checks.watched.values_mut().zip(patience) {
            watched.patience_ms = watched.patience_ms.max(patience_ms);
        }
        let stuck = self.checks.watched.iter().find(|(_, watched)| now > watched.rose_at.plus_ms(watched.patience_ms));
        if let Some((id, watched)) = stuck {
            let detail = format!("no step after {} for {} ms", watched.newest, watched.patience_ms);
            let id = id.clone();
            let state = self.describe(&id);
            self.found("L1: a job goes on", format!("{id}: {detail}; {state}"));
        }
        let index = |id: &JobId| self.people.jobs.iter().position(|known| known == id);
        let steps = |id: &JobId| index(id).map_or(0, |index| self.schedule.setup.jobs[index].steps);
        let calm = |(id, watched): (&JobId, &Watched)| {
            // One that is near its end is watched until it is there.
            waiting.contains(id)
                || watched.newest.0 + NEAR_STEPS < steps(id)
                    && watched.newest.0 >= watched.healed.0 + CALM_STEPS
                    && now.since_ms(watched.rose_at) < CALM_MS / 3
        };
        let calm_everywhere = now > healed_at.plus_ms(CALM_MS) && self.checks.watched.iter().all(calm);
        if self.check_rest(healed_at) && calm_everywhere && self.checks.undecided.is_empty() {
            self.check_bytes();
            self.checks.done = true;
        }
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
}
