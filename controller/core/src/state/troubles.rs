//! What befell a job and its user has to know: each stands on the job until it is over, or until the next of its kind. Kept here, shown by the
//! gateway; what is done about it is decided elsewhere.

use events_schema::fact::{GrowthFailure, LossNotice, RestartCause, StallCause, StallRemedy, StragglerCause};
use events_schema::{ExecutorId, Generation, Rank, SlotId, Step, TimeMs};
use minicbor::{Decode, Encode};
use std::collections::BTreeSet;

/// A job that made no progress.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Stall {
    /// The step that did not end, the last time.
    #[n(0)]
    pub step: Step,
    /// What was tried since the job last got further than ever.
    #[n(1)]
    pub tried: Vec<StallRemedy>,
    /// What its members waited for, the last time.
    #[n(2)]
    pub cause: StallCause,
    /// Ranks whose computation hung at this step, and where.
    #[n(3)]
    pub hung: BTreeSet<(Rank, SlotId)>,
    /// When it was seen last.
    #[n(4)]
    pub at: TimeMs,
    /// Whether the store has answered the job since, or its user began it anew: nobody waits for the store any more.
    #[n(5)]
    #[cbor(skip_if = "is_false")]
    pub answered: bool,
    /// The furthest step that it stood still at meanwhile, if it went back before that since.
    #[n(6)]
    pub furthest: Option<Step>,
}

impl Stall {
    /// The furthest step that the job stood still at while what was tried was tried.
    #[must_use]
    pub fn furthest(&self) -> Step {
        self.furthest.map_or(self.step, |furthest| furthest.max(self.step))
    }
}

fn is_false(is: &bool) -> bool {
    !*is
}

/// A member that was lost.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Loss {
    /// When that was noticed.
    #[n(0)]
    pub at: TimeMs,
    /// The executor it is about.
    #[n(1)]
    pub executor: ExecutorId,
    /// Where it was.
    #[n(2)]
    pub slot: SlotId,
    /// How it was noticed.
    #[n(3)]
    pub noticed: LossNotice,
}

/// A job went back to its last checkpoint, or to its beginning.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Restart {
    /// When that was decided.
    #[n(0)]
    pub at: TimeMs,
    /// The step it went on from.
    #[n(1)]
    pub from: Step,
    /// Why it could not go on from where it was.
    #[n(2)]
    pub cause: RestartCause,
}

/// A newcomer that did not come in.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct GivenUp {
    /// When it was given up.
    #[n(0)]
    pub at: TimeMs,
    /// The executor it is about.
    #[n(1)]
    pub executor: ExecutorId,
    /// What kept it from becoming a member.
    #[n(2)]
    pub cause: GrowthFailure,
}

/// How slow a member is.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Straggler {
    /// Since when that is known.
    #[n(0)]
    pub since: TimeMs,
    /// Where it is.
    #[n(1)]
    pub slot: SlotId,
    /// How long one rank's gradient takes it, in microseconds; because of its link: how long a step takes everybody.
    #[n(2)]
    pub unit_us: u64,
    /// How long it takes the others: their median; because of its link: how long a step took before.
    #[n(3)]
    pub peers_unit_us: u64,
    /// What takes it longer, if that is known.
    #[n(4)]
    pub cause: Option<StragglerCause>,
}

/// A checkpoint that no longer counts because it cannot be restored from.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Damage {
    /// When that was found.
    #[n(0)]
    pub at: TimeMs,
    /// The generation that wrote it.
    #[n(1)]
    pub generation: Generation,
    /// The replica's step.
    #[n(2)]
    pub step: Step,
    /// Key of the object that is damaged.
    #[n(3)]
    pub object: String,
    /// What is wrong with it.
    #[n(4)]
    pub reason: String,
    /// The step of the checkpoint that is used instead; 0 is the beginning.
    #[n(5)]
    pub instead: Step,
}

/// A checkpoint of a format that the build in use cannot read.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Unreadable {
    /// When that was found.
    #[n(0)]
    pub at: TimeMs,
    /// The generation that wrote it.
    #[n(1)]
    pub generation: Generation,
    /// The replica's step.
    #[n(2)]
    pub step: Step,
    /// Which build can read it, and what to do.
    #[n(3)]
    pub reason: String,
}

/// Something is not done for a while because it failed; longer each time it fails in a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub struct Pause {
    /// Failures in a row.
    #[n(0)]
    pub failures: u32,
    /// Not before then.
    #[n(1)]
    pub until: TimeMs,
}

impl Pause {
    pub(crate) fn fail(&mut self, until: TimeMs) {
        *self = Self { failures: self.failures.saturating_add(1), until };
    }
}
