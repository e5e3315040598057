//! Jobs by phase, each phase with what is legal in it, and their executors and generations.
//!
//! ```text
//!            ┌──────────── no slots left ────────────┐
//!            ▼                                       │
//! accept ► Queued ── plan ──► Starting ── active ► Running ── completed ──► Finished
//!   │        ▲  └─ suspend ─┐    ▲ └── all lost ─────┘ │
//!   ▼        │              ▼    │                     ▼ suspend
//! Suspended ─┴── resume ── Suspended ◄── all gone ── Suspending          any but the ended ──► Cancelled, Failed
//! ```

use super::faults::Faults;
use super::profiled::Profiled;
use super::service::Service;
use super::shared;
use super::troubles::{Damage, GivenUp, Loss, Pause, Restart, Stall, Straggler, Unreadable};
use events_schema::fact::{
    CheckpointInfo, Entry, LeaveCause, PlanCause, PlanReason, Proposal, StallCause, StallRemedy,
};
use events_schema::job::JobSpec;
use events_schema::report::{Metrics, Outcome};
use events_schema::slot_type::TypeTime;
use events_schema::spread::Spread;
use events_schema::stride::Stride;
use events_schema::{CommandId, Digest, ExecutorId, Generation, SlotId, Step, TenantId, TimeMs};
use minicbor::{Decode, Encode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use storage_keys::CheckpointName;

/// One accepted job.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Job {
    /// The tenant that submitted it, and may change it. Whose quota it counts against, [`Job::tenant`] says.
    #[n(0)]
    pub submitter: TenantId,
    /// The command that asked for it.
    #[n(1)]
    pub command: CommandId,
    /// What to train; never changes.
    #[n(2)]
    #[cbor(with = "shared")]
    pub spec: Arc<JobSpec>,
    /// Digest of the submitted body.
    #[n(3)]
    pub body_digest: Digest,
    /// When it was accepted.
    #[n(4)]
    pub accepted_at: TimeMs,
    /// Its place among all accepted jobs, from 0.
    #[n(5)]
    pub arrival: u64,
    /// Where it stands.
    #[n(6)]
    pub phase: JobPhase,
    /// The highest generation proposed so far; 0 before the first.
    #[n(7)]
    pub generation: Generation,
    /// How many executors were numbered so far.
    #[n(8)]
    pub executors_numbered: u32,
    /// Checkpoints that count, oldest first.
    #[n(9)]
    pub checkpoints: Vec<CheckpointInfo>,
    /// The last evaluation.
    #[n(10)]
    pub evaluation: Option<Evaluation>,
    /// Why it has what it has, as its last plan said; [`crate::Reasons`] says what it waits for now.
    #[n(11)]
    pub reason: Option<PlanReason>,
    /// The last change of its size.
    #[n(12)]
    pub scaling: Option<Scaling>,
    /// How often every replica was lost.
    #[n(13)]
    pub restarts: u32,
    /// Failures of its own executors.
    #[n(14)]
    pub faults: Faults,
    /// Numeric class of the executors it began with; it runs on no other.
    #[n(15)]
    pub class: Option<Digest>,
    /// The newest generation that was begun by linking up anew: what was lost in an older one is made good by it.
    #[n(16)]
    pub round: Generation,
    /// The highest step whose checkpoint was ever accepted.
    #[n(17)]
    pub highest: Step,
    /// How long a step takes, in microseconds, as last reported: of an update that takes several, each of them.
    #[n(18)]
    pub step_us: Option<u64>,
    /// Slots it does not use for a while.
    #[n(19)]
    pub avoided: BTreeMap<SlotId, Pause>,
    /// It does not grow for a while.
    #[n(20)]
    pub growth: Pause,
    /// The step it did not get past, and what was tried.
    #[n(21)]
    pub stall: Option<Stall>,
    /// Checkpoints that were found damaged, oldest finding first; at most [`super::bounds::DAMAGED_MAX`].
    #[n(40)]
    pub damaged: Vec<Damage>,
    /// The checkpoint that it waits for another build for.
    #[n(41)]
    pub unreadable: Option<Unreadable>,
    /// The member that was lost last.
    #[n(42)]
    pub lost: Option<Loss>,
    /// The newcomer that was given up last; none once others came in.
    #[n(43)]
    pub given_up: Option<GivenUp>,
    /// Members that the others wait for, in the generation in force.
    #[n(44)]
    pub stragglers: BTreeMap<ExecutorId, Straggler>,
    /// How much of slots it has had.
    #[n(45)]
    #[cbor(skip_if = "Service::is_none")]
    pub service: Service,
    /// What the bits of its own code depended on where it began ([`Executor::class`]); it trains with no other. None of a model of Ebb's.
    #[n(46)]
    pub class_of_code: Option<Digest>,
    /// The last time that it went back to a checkpoint.
    #[n(47)]
    pub restart: Option<Restart>,
    /// How long a step took the fewest members that a step was told of; none where only an earlier build told.
    #[n(48)]
    pub pace: Option<Pace>,
    /// Of the slots that it avoids, those where its own code computes other bits ([`AvoidCause::Class`](events_schema::fact::AvoidCause::Class)).
    #[n(49)]
    #[cbor(default, skip_if = "BTreeSet::is_empty")]
    pub unlike: BTreeSet<SlotId>,
    /// What came of measuring it at the sizes of its spec; of a job whose spec asks for it.
    #[n(51)]
    #[cbor(default, skip_if = "Profiled::is_none")]
    pub profiled: Profiled,
    /// Of a job with a range of batches: the strides of its generations so far.
    #[n(52)]
    #[cbor(default, skip_if = "BTreeSet::is_empty")]
    pub strides: BTreeSet<Stride>,
    /// How long one rank's gradient takes it on slots of each type that it was measured on, in the order of types. Kept when it loses its slots: it is the
    /// types' and the model's.
    #[n(54)]
    #[cbor(default, skip_if = "Vec::is_empty")]
    pub type_times: Vec<TypeTime>,
}

/// How long a step takes so many members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Pace {
    /// So many.
    #[n(0)]
    pub members: u16,
    /// In microseconds.
    #[n(1)]
    pub step_us: u64,
}

/// Where a job stands.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum JobPhase {
    /// Waits for slots; has none.
    #[n(0)]
    Queued,
    /// Has slots, and no member with a replica yet.
    #[n(1)]
    Starting(#[n(0)] Placement),
    /// Has slots, and a membership that computes steps.
    #[n(2)]
    Running(#[n(0)] Placement, #[n(1)] Active),
    /// Writes a checkpoint, then gives back all slots.
    #[n(3)]
    Suspending(#[n(0)] Placement, #[n(1)] Option<Active>),
    /// Waits for its user; has no slots.
    #[n(4)]
    Suspended,
    /// Ended with a model.
    #[n(5)]
    Finished {
        #[n(0)]
        outcome: Outcome,
        #[n(1)]
        at: TimeMs,
    },
    /// Ended without a model.
    #[n(6)]
    Failed {
        /// What, where, and what to do.
        #[n(0)]
        reason: String,
        #[n(1)]
        at: TimeMs,
    },
    /// Ended by its user.
    #[n(7)]
    Cancelled {
        #[n(0)]
        at: TimeMs,
    },
}

/// A job's slots and what is on its way.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Placement {
    /// The plan: the slots it is to run on. Empty while it gives everything back.
    #[n(0)]
    pub slots: BTreeSet<SlotId>,
    /// The generation that is to become active; at most one at a time.
    #[n(1)]
    pub proposed: Option<Proposal>,
    /// Given-up generations newer than the active one: their leader may have been faster than the deadline.
    #[n(2)]
    pub abandoned: Vec<Proposal>,
    /// Deadlines missed in a row.
    #[n(3)]
    pub attempts: u32,
    /// Members of the proposed generation that cannot be linked, in pairs, and since when that is known.
    #[n(4)]
    pub unlinked: BTreeSet<(ExecutorId, ExecutorId)>,
    /// When the first of them was reported.
    #[n(5)]
    pub unlinked_at: TimeMs,
    /// How long a step was measured to take, in microseconds, by how many members did it.
    #[n(6)]
    #[cbor(skip_if = "BTreeMap::is_empty")]
    pub step_us_by_size: BTreeMap<u16, u64>,
    /// Of a job with a range of batches: how long an update was measured to take, in microseconds, by members and stride.
    #[n(7)]
    #[cbor(default, skip_if = "BTreeMap::is_empty")]
    pub update_us: BTreeMap<(u16, Stride), u64>,
    /// How far the steps were spread that [`Self::step_us_by_size`] is of, where that is known.
    #[n(8)]
    #[cbor(default, skip_if = "BTreeMap::is_empty")]
    pub spread_by_size: BTreeMap<u16, Spread>,
}

/// The generation in force.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Active {
    /// As it was proposed, which is what members know.
    #[n(0)]
    pub proposal: Proposal,
    /// Its members without those that departed.
    #[n(1)]
    pub members: BTreeSet<ExecutorId>,
    /// Who leads now.
    #[n(2)]
    pub leader: ExecutorId,
    /// Members of the generation before, which have to learn that they are left out.
    #[n(3)]
    pub before: BTreeSet<ExecutorId>,
    /// Members that exited with status 0, and until when the leader's word about it is awaited.
    #[n(4)]
    pub left: BTreeMap<ExecutorId, TimeMs>,
    /// First step that all its members computed; a later one since somebody departed.
    #[n(5)]
    pub step: Step,
    /// Since when.
    #[n(6)]
    pub at: TimeMs,
    /// From the boundary, or a loss, until all members were in lock-step, in microseconds.
    #[n(7)]
    pub pause_us: u64,
}

/// One executor process, from its assignment until its agent has reaped it.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Executor {
    /// The slot it runs on.
    #[n(0)]
    pub slot: SlotId,
    /// Since when.
    #[n(1)]
    pub assigned_at: TimeMs,
    /// Where peers reach it; set once it is built and can join.
    #[n(2)]
    pub address: Option<String>,
    /// Set when it has to go.
    #[n(3)]
    pub leaving: Option<Leaving>,
    /// Whether it holds a replica: it began one since the job's last (re)start, or has been sent one.
    #[n(4)]
    pub replica: bool,
    /// Whether it left of its own accord, with its leader's consent, and is about to exit: nobody counts on it any more.
    #[n(5)]
    pub departed: bool,
    /// Whether it was to be gone long ago and is not: nobody waits for it any more.
    #[n(6)]
    pub stuck: bool,
    /// What the bits of its job's own code depend on there, as it said when it was ready.
    #[n(7)]
    pub class: Option<Digest>,
    /// Bytes of its job's replica, as it said then.
    #[n(8)]
    pub replica_bytes: Option<u64>,
    /// Bytes of a gradient of it.
    #[n(9)]
    pub gradient_bytes: Option<u64>,
    /// How much of its slot it uses, in hundredths; none before that was measured, or where nobody could be its guest.
    #[n(10)]
    pub busy_percent: Option<u8>,
}

/// Why and until when an executor has to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Leaving {
    /// Killed then.
    #[n(0)]
    pub deadline: TimeMs,
    /// What asked for its slot.
    #[n(1)]
    pub cause: LeaveCause,
}

/// An evaluation's result.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Evaluation {
    /// The replica's step.
    #[n(0)]
    pub step: Step,
    /// What came out.
    #[n(1)]
    pub metrics: Metrics,
}

/// A change of a job's size.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Scaling {
    /// When the plan was made.
    #[n(0)]
    pub at: TimeMs,
    /// Slots before.
    #[n(1)]
    pub from: u32,
    /// Slots after.
    #[n(2)]
    pub to: u32,
    /// What made the policy plan it.
    #[n(3)]
    pub cause: PlanCause,
    /// Whether the job has done a step on as many slots.
    #[n(4)]
    pub trained: bool,
}

impl Placement {
    /// A placement without anything on its way.
    #[must_use]
    pub fn new(slots: BTreeSet<SlotId>) -> Self {
        Self {
            slots,
            proposed: None,
            abandoned: Vec::new(),
            attempts: 0,
            unlinked: BTreeSet::new(),
            unlinked_at: TimeMs(0),
            step_us_by_size: BTreeMap::new(),
            update_us: BTreeMap::new(),
            spread_by_size: BTreeMap::new(),
        }
    }

    /// Whether a leader's word that a generation is in force counts: it is proposed, or was given up and its leader was faster than that. Who is told
    /// to begin from a checkpoint, or afresh, lets go of the replica it has; so of a generation before that there may be no replica left.
    #[must_use]
    pub fn may_be_in_force(&self, generation: Generation) -> bool {
        let known = || self.abandoned.iter().chain(&self.proposed);
        let lets_go = |entry: &Entry| match entry {
            Entry::Fresh | Entry::Checkpoint { .. } => true,
            Entry::Switch { .. } | Entry::Recover => false,
        };
        known().any(|proposal| proposal.generation == generation)
            && !known().any(|proposal| proposal.generation > generation && lets_go(&proposal.entry))
    }

    /// Whether members stopped for a recovery that came to nothing: only another one makes them step again.
    #[must_use]
    pub fn is_broken_off(&self) -> bool {
        self.abandoned.iter().any(|proposal| matches!(proposal.entry, Entry::Recover))
    }
}

impl Leaving {
    /// Whether it is of no use any more, rather than awaited at the next boundary.
    #[must_use]
    pub fn at_once(&self) -> bool {
        match self.cause {
            LeaveCause::JobEnd | LeaveCause::Useless => true,
            LeaveCause::Reclaim | LeaveCause::Plan => false,
        }
    }
}

impl Executor {
    /// Whether it is built and stays.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.address.is_some() && self.leaving.is_none()
    }

    /// Whether it is being built and stays.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        self.address.is_none() && self.leaving.is_none()
    }

    /// Whether its replica can be built on: also that of a leaver, as long as it is not told to stop at once and did not leave by itself.
    #[must_use]
    pub fn can_recover(&self) -> bool {
        self.replica
            && !self.departed
            && !self.stuck
            && self.address.is_some()
            && self.leaving.is_none_or(|l| !l.at_once())
    }
}

impl JobPhase {
    /// Its name in the API and in refusals.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            JobPhase::Queued => "queued",
            JobPhase::Starting(_) => "starting",
            JobPhase::Running(..) => "running",
            JobPhase::Suspending(..) => "suspending",
            JobPhase::Suspended => "suspended",
            JobPhase::Finished { .. } => "finished",
            JobPhase::Failed { .. } => "failed",
            JobPhase::Cancelled { .. } => "cancelled",
        }
    }

    /// Whether it never changes again.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        match self {
            JobPhase::Finished { .. } | JobPhase::Failed { .. } | JobPhase::Cancelled { .. } => true,
            JobPhase::Queued
            | JobPhase::Starting(_)
            | JobPhase::Running(..)
            | JobPhase::Suspending(..)
            | JobPhase::Suspended => false,
        }
    }
}

impl Job {
    /// Whose it is, as its quota counts.
    #[must_use]
    pub fn tenant(&self) -> &TenantId {
        self.spec.tenant.as_ref().unwrap_or(&self.submitter)
    }

    /// Its slots and what is on its way, in the phases that have them.
    #[must_use]
    pub fn placement(&self) -> Option<&Placement> {
        match &self.phase {
            JobPhase::Starting(placement) | JobPhase::Running(placement, _) | JobPhase::Suspending(placement, _) => {
                Some(placement)
            }
            _ => None,
        }
    }

    /// How long an update of the generation in force takes, in microseconds, by what was last reported of a step.
    pub(crate) fn update_us(&self) -> Option<u64> {
        let steps = self.active().map_or(1, |active| active.proposal.stride.steps());
        self.step_us.map(|step_us| step_us.saturating_mul(steps))
    }

    /// A step of so many members was told of. That of the fewest is kept, so that what follows from it does not change with each size.
    pub(crate) fn note_pace(&mut self, members: u16, step_us: u64) {
        if self.pace.is_none_or(|pace| members <= pace.members) {
            self.pace = Some(Pace { members, step_us });
        }
    }

    pub(crate) fn placement_mut(&mut self) -> Option<&mut Placement> {
        match &mut self.phase {
            JobPhase::Starting(placement) | JobPhase::Running(placement, _) | JobPhase::Suspending(placement, _) => {
                Some(placement)
            }
            _ => None,
        }
    }

    /// The generation in force, in the phases that can have one.
    #[must_use]
    pub fn active(&self) -> Option<&Active> {
        match &self.phase {
            JobPhase::Running(_, active) | JobPhase::Suspending(_, Some(active)) => Some(active),
            _ => None,
        }
    }

    pub(crate) fn active_mut(&mut self) -> Option<&mut Active> {
        match &mut self.phase {
            JobPhase::Running(_, active) | JobPhase::Suspending(_, Some(active)) => Some(active),
            _ => None,
        }
    }

    /// Slot·ms that it has held in all until a time, by its plans: a slot is held from the plan that gives it to the plan that does not.
    #[must_use]
    pub fn attained_slot_ms(&self, at: TimeMs) -> u64 {
        let held_ms = self.scaling.as_ref().map_or(0, |scaling| at.since_ms(scaling.at));
        let now = (self.slots().len() as u64).saturating_mul(held_ms);
        self.service.attained_slot_ms.saturating_add(now)
    }

    /// The slots it is planned on.
    #[must_use]
    pub fn slots(&self) -> &BTreeSet<SlotId> {
        static NONE: BTreeSet<SlotId> = BTreeSet::new();
        self.placement().map_or(&NONE, |placement| &placement.slots)
    }

    /// Whether it does not use this slot now.
    #[must_use]
    pub fn avoids(&self, slot: &SlotId, at: TimeMs) -> bool {
        self.avoided.get(slot).is_some_and(|pause| at < pause.until)
    }

    /// Whether it does not use this slot now because its own code computes other bits there.
    #[must_use]
    pub fn is_unlike(&self, slot: &SlotId, at: TimeMs) -> bool {
        self.unlike.contains(slot) && self.avoids(slot, at)
    }

    /// Whether it was said of this step that it waits for the store, and the store has not answered since.
    #[must_use]
    pub fn waits_for_store_at(&self, step: Step) -> bool {
        let waits = |stall: &Stall| stall.step == step && stall.tried.contains(&StallRemedy::Wait) && !stall.answered;
        self.stall.as_ref().is_some_and(waits)
    }

    /// Whether it was said lately that it waits for the store, which has not answered since: for as long as its spec is patient, nobody is
    /// given up for being late, as who comes next would wait as well.
    #[must_use]
    pub fn waits_for_store(&self, at: TimeMs) -> bool {
        let patience_ms = self.spec.store_patience_ms.ms();
        let waits =
            |stall: &Stall| stall.cause == StallCause::Store && !stall.answered && at.since_ms(stall.at) < patience_ms;
        self.stall.as_ref().is_some_and(waits)
    }

    /// The store answered it, or its user began it anew. What is known of its stall stays for its user.
    pub(crate) fn note_answered(&mut self) {
        let waited = |stall: &&mut Stall| stall.cause == StallCause::Store || stall.tried.contains(&StallRemedy::Wait);
        if let Some(stall) = self.stall.as_mut().filter(waited) {
            stall.answered = true;
        }
    }

    /// The newest checkpoint that counts.
    #[must_use]
    pub fn last_checkpoint(&self) -> Option<&CheckpointInfo> {
        self.checkpoints.last()
    }

    /// The checkpoint that counts and that a generation wrote at a step.
    #[must_use]
    pub fn checkpoint(&self, generation: Generation, step: Step) -> Option<&CheckpointInfo> {
        let wrote = |checkpoint: &&CheckpointInfo| {
            // Of those that earlier builds accepted only the name says who wrote them.
            CheckpointName::of_manifest(&checkpoint.manifest_key).is_some_and(|name| name.generation == generation)
        };
        self.checkpoints.iter().filter(|checkpoint| checkpoint.step == step).find(wrote)
    }
}
