//! What came of measuring a job at the sizes of its spec (`decide/profile.rs`).

use super::Job;
use events_schema::TimeMs;
use events_schema::fact::PlanCause;
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;

/// The sizes at which a job was, or is, to be measured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct Profiled {
    /// Slots that it had when it was last given others for that: what policies take it to have meanwhile.
    #[n(0)]
    pub base: u16,
    /// When it was given so many slots for that. No size is tried twice.
    #[n(1)]
    pub tried: BTreeMap<u16, TimeMs>,
}

impl Profiled {
    pub(super) fn is_none(&self) -> bool {
        self.tried.is_empty()
    }
}

impl Job {
    /// Since when it has its slots to be measured on them, if it has them for that.
    #[must_use]
    pub fn profiled_since(&self) -> Option<TimeMs> {
        let is_profiled = self.reason.as_ref().is_some_and(|reason| reason.cause == PlanCause::Profile);
        let size = u16::try_from(self.slots().len()).ok().filter(|_| is_profiled)?;
        self.profiled.tried.get(&size).copied()
    }

    /// Slots that it has beyond those that its policy gave it, to be measured on them: nobody else's loss, and the first to go.
    #[must_use]
    pub fn profile_extra(&self) -> u16 {
        let held = self.slots().len() as u16;
        self.profiled_since().map_or(0, |_| held.saturating_sub(self.profiled.base))
    }
}
