//! How much of slots a job has had: what policies go by that let whoever had least go first.

use events_schema::TimeMs;
use minicbor::{Decode, Encode};

/// How much of slots a job has had, and the queue that a policy keeps it in for that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub struct Service {
    /// Slot·ms that it had held when its size last changed; since then its slots are to be added ([`Job::attained_slot_ms`](super::Job::attained_slot_ms)).
    #[n(0)]
    pub attained_slot_ms: u64,
    /// What it had attained when a policy last promoted it; 0 if none did.
    #[n(1)]
    pub promoted_slot_ms: u64,
    /// Its queue: those of lower numbers go first.
    #[n(2)]
    pub queue: u8,
    /// Since when it is in that queue; none of a job that never left the first.
    #[n(3)]
    pub queued_at: Option<TimeMs>,
    /// Since when it has no slots, if it had some before and is not suspended.
    #[n(4)]
    pub waits_since: Option<TimeMs>,
}

impl Service {
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}
