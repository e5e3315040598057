//! Which facts follow from an input. Pure: same state, time, input and policy, same facts, byte for byte.
//!
//! An input is handled by [`decide_input`]: its own file says what it means (`jobs.rs`, `datasets.rs`, `fleets.rs`, `agents.rs`),
//! then every job that was touched is brought into order (`generations.rs`: executors, proposals, losses). Only then, and apart
//! from it, the policy is asked by [`plan_until`], if [`plan_due`]: whatever becomes of the plan, what the input means stands, and what a
//! fleet takes back is on its way. Facts are folded into a copy of the state as they are decided, so each move sees what the one
//! before did; the copy shares all that it does not change.
//!
//! Next on a job's path: `controller/cell/src/lead.rs`, which makes the facts durable.

mod agents;
mod ahead;
pub(crate) mod bandwidth;
mod batches;
mod checkpoints;
pub(crate) mod classes;
mod datasets;
mod divergence;
mod elsewhere;
mod failures;
mod fleets;
mod generations;
pub(crate) mod guests;
mod idle;
mod jobs;
mod leaders;
mod links;
pub(crate) mod loans;
mod members;
mod mixed;
pub(crate) mod plan;
mod profile;
mod proposals;
mod reclaim;
mod retrains;
mod servers;
pub(crate) mod slow_members;
mod stalls;
mod tenants;
pub(crate) mod throughput;
pub(crate) mod types;
mod victims;

use crate::limits::{EAGER_JOBS_MAX, PLAN_PAUSE_MS};
use crate::policy::Policy;
use crate::policy::effort::{Effort, Interrupt};
use crate::state::{Slot, State};
use crate::version;
use events_schema::command::{Command, CommandRecord, DemandSignal};
use events_schema::fact::{Fact, Refusal};
use events_schema::report::ReportRecord;
use events_schema::{CommandId, JobId, SlotId, TimeMs};
use std::collections::BTreeSet;

/// Something to decide about.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Of a user, a fleet or an operator.
    Command(CommandRecord),
    /// Of a fleet.
    Demand(DemandSignal),
    /// Of an agent, or of the controller's server about one.
    Report(ReportRecord),
    /// Time has passed. Not logged; a tick without facts leaves no trace.
    Tick,
}

/// The facts that follow from an input at a time, and from the plan after it. The caller folds them into its state, in order.
///
/// For callers that trust the policy; others ask for the two parts by themselves, with a guard around each.
#[must_use]
pub fn decide(state: &State, at: TimeMs, input: &Input, policy: &dyn Policy) -> Vec<Fact> {
    let (mut facts, state) = decide_input_folded(state.clone(), at, input, policy.name());
    if plan_due(&state, at, input, !facts.is_empty()) {
        facts.extend(plan_until(&state, at, policy).facts);
    }
    facts
}

/// The facts that follow from an input itself. Of the policy it needs the name alone, which reasons carry.
#[must_use]
pub fn decide_input(state: &State, at: TimeMs, input: &Input, policy: &str) -> Vec<Fact> {
    decide_input_folded(state.clone(), at, input, policy).0
}

/// The same, and the state with these facts folded in: for callers that go on with it, who would fold them once more. What nobody else holds of the
/// state that is handed in is changed where it is.
#[must_use]
pub fn decide_input_folded(state: State, at: TimeMs, input: &Input, policy: &str) -> (Vec<Fact>, State) {
    let mut draft = Draft::new(state, at, policy);
    match input {
        Input::Command(record) => command(&mut draft, record),
        Input::Demand(signal) => fleets::demand(&mut draft, signal),
        Input::Report(record) => agents::report(&mut draft, record),
        Input::Tick => {
            generations::wake(&mut draft);
            generations::give_up_stuck(&mut draft);
            servers::forget(&mut draft);
        }
    }
    draft.follow_up();
    (draft.facts, draft.state)
}

/// Whether the policy is to be asked after an input, in the state with what followed from it; `changed`: whether anything did.
#[must_use]
pub fn plan_due(state: &State, at: TimeMs, input: &Input, changed: bool) -> bool {
    let pauses = state.planning.failed_at.is_some_and(|failed| state.at.max(at).since_ms(failed) < PLAN_PAUSE_MS);
    let eager = changed && state.live_len() <= EAGER_JOBS_MAX;
    !pauses && (eager || matches!(input, Input::Tick))
}

/// What follows from the policy's plan, and from what jobs avoid of it (`elsewhere.rs`).
#[must_use]
pub fn plan_until(state: &State, at: TimeMs, policy: &dyn Policy) -> Planned {
    plan_unless_pressed(state, at, policy, None)
}

/// The same, but it unwinds with [`Abandoned`](crate::policy::effort::Abandoned) if something presses meanwhile.
#[must_use]
pub fn plan_unless_pressed(state: &State, at: TimeMs, policy: &dyn Policy, interrupt: Option<&Interrupt>) -> Planned {
    let effort = Effort::until(interrupt.cloned());
    let mut draft = Draft::new(state.clone(), at, policy.name());
    elsewhere::exchange(&mut draft);
    let until = plan::replan(&mut draft, policy, &effort);
    elsewhere::exchange(&mut draft);
    elsewhere::ask(&mut draft);
    draft.follow_up();
    Planned { facts: draft.facts, state: draft.state, until }
}

/// What follows from a policy's plan.
#[derive(Debug)]
pub struct Planned {
    /// In order.
    pub facts: Vec<Fact>,
    /// The state with them folded in.
    pub state: State,
    /// When the policy wants to be asked again, though nothing has changed by then: for callers that do not ask every tick.
    pub until: Option<TimeMs>,
}

fn command(draft: &mut Draft<'_>, record: &CommandRecord) {
    if draft.state.commands.knows(&record.id) {
        return;
    }
    let done = version::ensure(&draft.state, &record.command, record.expected).and_then(|()| perform(draft, record));
    draft.emit(match done {
        Ok(()) => Fact::CommandTaken { command: record.id.clone() },
        Err(refusal) => refused(&record.id, &record.command, refusal),
    });
}

fn perform(draft: &mut Draft<'_>, record: &CommandRecord) -> Result<(), Refusal> {
    match &record.command {
        Command::SubmitJob { job, spec, body_digest } => jobs::submit(draft, record, job, spec, *body_digest),
        Command::CancelJob { job } => jobs::cancel(draft, &record.tenant, job),
        Command::SuspendJob { job } => jobs::suspend(draft, &record.tenant, job),
        Command::ResumeJob { job } => jobs::resume(draft, &record.tenant, job),
        Command::RegisterDataset { dataset } => datasets::register(draft, dataset),
        Command::RemoveDataset { dataset } => datasets::remove(draft, dataset),
        Command::PutFleet { fleet, slots, offers, reclaim_deadline_ms } => {
            fleets::put(draft, fleet, slots, *offers, *reclaim_deadline_ms)
        }
        Command::OfferSlots { fleet, slots } => fleets::offer(draft, fleet, slots),
        Command::ReclaimSlots { fleet, slots } => fleets::reclaim(draft, fleet, slots),
        Command::RecallFleet { fleet, slots } => fleets::recall(draft, fleet, *slots),
        Command::ReleaseFleet { fleet } => fleets::release(draft, fleet),
        Command::TellRefused { fleet, offset, count, reason } => {
            fleets::tell_refused(draft, fleet, *offset, *count, reason)
        }
        Command::SetQuota { tenant, quota_slots } => tenants::set_quota(draft, tenant, *quota_slots),
    }
}

fn refused(id: &CommandId, command: &Command, refusal: Refusal) -> Fact {
    let subject = match command {
        Command::SubmitJob { job, .. }
        | Command::CancelJob { job }
        | Command::SuspendJob { job }
        | Command::ResumeJob { job } => job.to_string(),
        Command::RegisterDataset { dataset } => dataset.name.to_string(),
        Command::RemoveDataset { dataset } => dataset.to_string(),
        Command::PutFleet { fleet, .. }
        | Command::OfferSlots { fleet, .. }
        | Command::ReclaimSlots { fleet, .. }
        | Command::RecallFleet { fleet, .. }
        | Command::ReleaseFleet { fleet }
        | Command::TellRefused { fleet, .. } => fleet.to_string(),
        Command::SetQuota { tenant, .. } => tenant.to_string(),
    };
    Fact::CommandRefused { command: id.clone(), subject, refusal }
}

/// A copy of the state in which facts take effect as they are decided.
pub(crate) struct Draft<'a> {
    pub state: State,
    pub at: TimeMs,
    /// Name of the policy in force.
    pub policy: &'a str,
    pub facts: Vec<Fact>,
    /// Jobs that something happened to since they were last brought into order.
    touched: BTreeSet<JobId>,
}

/// Rounds after which bringing one job into order has to have come to rest; each round decides at least one fact.
const FOLLOW_UP_ROUNDS_MAX: u32 = 10_000;

impl<'a> Draft<'a> {
    fn new(state: State, at: TimeMs, policy: &'a str) -> Self {
        let at = at.max(state.at);
        Self { state, at, policy, facts: Vec::new(), touched: BTreeSet::new() }
    }

    /// Decides a fact: it takes effect, and whom it concerns is looked at again.
    pub fn emit(&mut self, fact: Fact) {
        self.state.apply(self.at, &fact);
        if let Some(job) = concerned(&fact) {
            self.touched.insert(job.clone());
        }
        self.facts.push(fact);
    }

    /// Decides the same fact of each of some slots, those that are known: one after the other, and they take effect together.
    pub fn emit_of_each(&mut self, slots: &[&SlotId], fact: impl Fn(&SlotId, &Slot) -> Fact) {
        let begin = self.facts.len();
        self.facts.reserve(slots.len());
        let known = slots.iter().zip(self.state.slots.each(slots.iter().copied()));
        self.facts.extend(known.filter_map(|(id, slot)| Some(fact(id, slot?))));
        let facts = &self.facts[begin..];
        self.state.apply_all(self.at, facts);
        self.touched.extend(facts.iter().filter_map(concerned).cloned());
    }

    /// Has a job looked at again.
    pub fn touch(&mut self, job: &JobId) {
        self.touched.insert(job.clone());
    }

    fn follow_up(&mut self) {
        while let Some(job) = self.touched.pop_first() {
            let mut rounds = 0;
            while generations::act_on_due(self, &job) {
                rounds += 1;
                assert!(
                    rounds < FOLLOW_UP_ROUNDS_MAX,
                    "job {job} does not come to rest: {:?}",
                    &self.facts[self.facts.len().saturating_sub(4)..]
                );
            }
            self.touched.remove(&job);
        }
    }
}

/// The job that a fact gives a reason to look at.
fn concerned(fact: &Fact) -> Option<&JobId> {
    match fact {
        Fact::JobAccepted { job, .. }
        | Fact::JobSuspending { job }
        | Fact::JobSuspended { job, .. }
        | Fact::JobResumed { job }
        | Fact::JobCancelled { job }
        | Fact::JobFailed { job, .. }
        | Fact::JobFinished { job, .. }
        | Fact::PlanAdopted { job, .. }
        | Fact::GenerationProposed { job, .. }
        | Fact::GenerationActive { job, .. }
        | Fact::GenerationAbandoned { job, .. }
        | Fact::MemberDeparted { job, .. }
        | Fact::PeersMissing { job, .. }
        | Fact::JobStalled { job, .. }
        | Fact::SlotAvoided { job, .. }
        | Fact::GrowthPaused { job, .. }
        | Fact::ReplicasDiffered { job, .. }
        | Fact::ThroughputMeasured { job, .. }
        | Fact::TypesMeasured { job, .. }
        | Fact::JobRestarted { job, .. } => Some(job),
        Fact::ExecutorAssigned { executor, .. }
        | Fact::ExecutorReady { executor, .. }
        | Fact::ExecutorLeaving { executor, .. }
        | Fact::ReplicaHeld { executor, .. }
        | Fact::ExecutorStuck { executor, .. }
        | Fact::MemberStraggles { executor, .. }
        | Fact::MemberKeepsUp { executor }
        | Fact::ExecutorGone { executor, .. } => Some(&executor.job),
        Fact::CommandRefused { .. }
        | Fact::CommandTaken { .. }
        | Fact::JobExplained { .. }
        | Fact::LoadMeasured { .. }
        | Fact::QueueEntered { .. }
        | Fact::CheckpointAccepted { .. }
        | Fact::CheckpointDamaged { .. }
        | Fact::CheckpointUnreadable { .. }
        | Fact::ObjectsSwept { .. }
        | Fact::CheckpointRetired { .. }
        | Fact::Evaluated { .. }
        | Fact::DatasetRegistered { .. }
        | Fact::DatasetRemoved { .. }
        | Fact::FleetDeclared { .. }
        | Fact::DemandAccepted { .. }
        | Fact::FleetRecalled { .. }
        | Fact::FleetReleased { .. }
        | Fact::SignalsRefused { .. }
        | Fact::SlotsOffered { .. }
        | Fact::SlotBorrowed { .. }
        | Fact::SlotReclaimed { .. }
        | Fact::SlotReturned { .. }
        | Fact::SlotQuarantined { .. }
        | Fact::SlotRecovered { .. }
        | Fact::AgentJoined { .. }
        | Fact::AgentGone { .. }
        | Fact::ReportsTaken { .. }
        | Fact::GenerationStepped { .. }
        | Fact::JobScaled { .. }
        | Fact::MemberLost { .. }
        | Fact::InputRefused { .. }
        | Fact::PlanFailed { .. }
        | Fact::PolicyChosen { .. }
        | Fact::LinkMeasured { .. }
        | Fact::QuotaSet { .. }
        | Fact::ServerForgotten { .. } => None,
    }
}
