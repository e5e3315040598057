//! Fleets, servers and slots, and the states of a loan.
//!
//! ```text
//! Unoffered ── offer ──► Offered ── a plan uses it ──► Borrowed
//!     ▲                     │                             │
//!     └── free ── Reclaimed(deadline) ◄── demand, by name, at the agent, a forecast
//! ```
//! A slot in no fleet is never used; a returned one not until it is offered again.

use super::shared;
use events_schema::command::{OfferMode, Recall};
use events_schema::device::SlotDevice;
use events_schema::fact::ReclaimCause;
use events_schema::orders::LINK_FAST_BYTES_PER_S;
use events_schema::slot_type::SlotType;
use events_schema::{Digest, ExecutorId, FleetId, JobId, ServerId, SlotId, TimeMs, host_index, is_guest_index};
use minicbor::{Decode, Encode};
use std::collections::BTreeSet;
use std::sync::Arc;

/// An inference fleet that lends slots.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Fleet {
    /// All its slots, sorted; shared, because each of its signals makes a copy of the rest.
    #[n(0)]
    #[cbor(with = "shared")]
    pub slots: Arc<Vec<SlotId>>,
    /// How they are offered.
    #[n(1)]
    pub offers: OfferMode,
    /// Time from a reclaim to the kill of the executor.
    #[n(2)]
    pub reclaim_deadline_ms: u64,
    /// Number of the newest demand signal; `None` before the first.
    #[n(3)]
    pub sequence: Option<u64>,
    /// How many of its slots it needs itself, as it said last.
    #[n(4)]
    pub needed: u32,
    /// Whether its slots were declared anew since the last demand signal, which then offers like a lower one.
    #[n(5)]
    pub redeclared: bool,
    /// How many of its slots it lends and does not want back: counted as slots change, because every slot that goes back asks.
    #[n(6)]
    pub lent: usize,
    /// How many of its slots stay with it until it is released, if it is recalled.
    #[n(7)]
    pub recalled: Option<Recall>,
    /// How many of its slots it neither lends nor has: they went back, and are in quarantine. Counted like `lent`.
    #[n(8)]
    #[cbor(skip_if = "is_zero")]
    pub withheld: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Fleet {
    /// Most slots it lends now by what it said of its need.
    #[must_use]
    pub fn lendable(&self) -> usize {
        match self.sequence {
            None if self.offers == OfferMode::ByDemand => 0,
            _ => self.lendable_by_name(),
        }
    }

    /// The same of slots that it names: one that offers by demand and has not said anything yet lends what it names. What it needs has to be
    /// among those that it can use.
    #[must_use]
    pub fn lendable_by_name(&self) -> usize {
        self.slots.len().saturating_sub(self.needs().max(self.held()) + self.withheld)
    }

    /// Slots that it needs itself; none before it said so.
    #[must_use]
    pub fn needs(&self) -> usize {
        self.sequence.map_or(0, |_| self.needed as usize)
    }

    /// Whether a signal of this need says that it does not need what it does not lend then: it needs less than before, or says so for the first time of
    /// these slots.
    pub(crate) fn falls_to(&self, needed: u32) -> bool {
        self.sequence.is_none() || self.redeclared || needed < self.needed
    }

    /// The number of its newest signal; 0 before the first.
    pub(crate) fn signals(&self) -> u64 {
        self.sequence.unwrap_or(0)
    }

    /// Slots that a recall keeps with it.
    #[must_use]
    pub fn held(&self) -> usize {
        self.recalled.map_or(0, |recall| recall.of(self.slots.len()))
    }
}

/// A server and its agent.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Server {
    /// The agent process that joined last.
    #[n(0)]
    pub incarnation: u64,
    /// Highest number of its reports that had their effect.
    #[n(1)]
    pub reports_through: u64,
    /// Slots it holds, numbered from 0.
    #[n(2)]
    pub slots: u16,
    /// Numeric class of its executors.
    #[n(3)]
    pub class: Digest,
    /// Where fleets reach it directly.
    #[n(4)]
    pub address: String,
    /// Whether it is there; nothing is started on an absent one.
    #[n(5)]
    pub connected: bool,
    /// Since when it is not.
    #[n(6)]
    pub gone_at: Option<TimeMs>,
    /// The devices that its first slots are; the others have none.
    #[n(7)]
    #[cbor(skip_if = "Vec::is_empty")]
    pub devices: Vec<SlotDevice>,
    /// Whether each of its slots has a guest slot.
    #[cbor(n(8), default, skip_if = "is_not")]
    pub guests: bool,
    /// The type of its devices, or of all its slots where it has none; none if it says none.
    #[n(9)]
    pub slot_type: Option<SlotType>,
}

fn is_not(said: &bool) -> bool {
    !*said
}

/// How fast a server's link to others was when it was last found to be slow.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Link {
    /// The servers that it was sent something from, together.
    #[n(0)]
    pub from: Vec<ServerId>,
    /// Bytes per second.
    #[n(1)]
    pub bytes_per_s: u64,
    /// It is counted on until then.
    #[n(2)]
    pub until: TimeMs,
    /// How often in a row it was found to be no faster.
    #[n(3)]
    pub found: u32,
}

impl Link {
    /// Whether it says something of what a server gets from these at this time: measured over two other servers or more, it is the server's own link that is slow;
    /// over one alone it may as well be that one's.
    pub(crate) fn is_between(&self, others: &BTreeSet<ServerId>, at: TimeMs) -> bool {
        at < self.until && (self.from.len() > 1 || self.from.iter().any(|server| others.contains(server)))
    }

    /// Whether it was found to be slow. One that was found to be faster than it was known to be carries at least so much.
    pub(crate) fn is_slow(&self) -> bool {
        self.bytes_per_s < LINK_FAST_BYTES_PER_S || self.found > 0
    }

    /// Whether it still counts so long after a time.
    pub(crate) fn is_known_for(&self, at: TimeMs, ms: u64) -> bool {
        at.plus_ms(ms) < self.until
    }
}

/// What a job can find on a slot. A job's slots are of one kind, or of several that differ in their type alone; which jobs can use which kinds is for the planner
/// to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotKind {
    /// Numeric class of the executors there.
    pub class: Digest,
    /// Whether the slot is a device.
    pub device: bool,
    /// Whether it is a guest slot. Those come after all others.
    pub guest: bool,
    /// How fast slots of it are called to be; none of servers that say none.
    pub slot_type: Option<SlotType>,
}

impl SlotKind {
    /// Whether a job can be on slots of both at once: the same bits come out there, and its members do not wait for hosts.
    #[must_use]
    pub fn mixes_with(&self, other: &Self) -> bool {
        (self.class, self.device, self.guest) == (other.class, other.device, other.guest)
    }
}

impl Server {
    /// Whether something can be started on a slot of it.
    pub(crate) fn has(&self, index: u16) -> bool {
        self.connected && host_index(index) < self.slots && (self.guests || !is_guest_index(index))
    }

    /// The device that a slot of it is.
    #[must_use]
    pub fn device(&self, index: u16) -> Option<&SlotDevice> {
        self.devices.get(usize::from(host_index(index)))
    }

    /// The type of its devices, or of its other slots, which have none beside devices.
    pub(crate) fn type_of(&self, device: bool) -> Option<SlotType> {
        self.slot_type.filter(|_| device || self.devices.is_empty())
    }

    /// What a job can find on a slot of it.
    #[must_use]
    pub fn kind(&self, index: u16) -> SlotKind {
        let device = self.device(index).is_some();
        SlotKind { class: self.class, device, guest: is_guest_index(index), slot_type: self.type_of(device) }
    }
}

/// One slot of a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Slot {
    /// Whose; none when it is on its way back to a fleet that no longer declares it.
    #[n(0)]
    pub fleet: Option<FleetId>,
    /// Where it stands between the fleet and us.
    #[n(1)]
    pub state: SlotState,
    /// In that state since; a loan's time is counted from its offer.
    #[n(2)]
    pub since: TimeMs,
    /// The job whose plan has it.
    #[n(3)]
    pub job: Option<JobId>,
    /// The process on it, also one that is leaving.
    #[n(4)]
    pub executor: Option<ExecutorId>,
    /// When it was first asked back, while it is on its way.
    #[n(5)]
    pub reclaimed_at: Option<TimeMs>,
    /// What is wrong with its device, as its agent says: it is of no use to anybody meanwhile.
    #[n(6)]
    pub quarantined: Option<String>,
    /// What was computed wrong on it, until its fleet has had it or its agent was started anew: it is of no use to us, whatever its device is like.
    #[n(7)]
    pub diverged: Option<String>,
    /// That a forecast took it, or keeps it with its fleet.
    #[n(8)]
    pub ahead: Option<Ahead>,
}

/// What a forecast did to a slot that its fleet does not need yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Ahead {
    /// Its fleet said that it does not need it, and has it all the same.
    #[n(0)]
    Kept,
    /// It went back early, its fleet's newest signal being of this number. No forecast takes it again before there is another.
    #[n(1)]
    Taken(#[n(0)] u64),
}

/// Where a slot stands between its fleet and us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum SlotState {
    /// The fleet's own.
    #[n(0)]
    Unoffered,
    /// Drained; we may use it.
    #[n(1)]
    Offered,
    /// We use it, or did and keep it.
    #[n(2)]
    Borrowed,
    /// Has to be free by the deadline.
    #[n(3)]
    Reclaimed {
        /// An executor on it is killed then.
        #[n(0)]
        deadline: TimeMs,
        #[n(1)]
        cause: ReclaimCause,
    },
}

impl SlotState {
    /// Its name in the API.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            SlotState::Unoffered => "unoffered",
            SlotState::Offered => "offered",
            SlotState::Borrowed => "borrowed",
            SlotState::Reclaimed { .. } => "reclaimed",
        }
    }
}

impl Slot {
    /// Whether its fleet has it because of a forecast alone.
    pub(crate) fn has_ahead(&self) -> bool {
        self.state == SlotState::Unoffered && self.ahead.is_some()
    }

    /// A slot its fleet keeps for itself.
    #[must_use]
    pub fn unoffered(fleet: FleetId, since: TimeMs) -> Self {
        Self {
            fleet: Some(fleet),
            state: SlotState::Unoffered,
            since,
            job: None,
            executor: None,
            reclaimed_at: None,
            quarantined: None,
            diverged: None,
            ahead: None,
        }
    }

    /// Whether we may use it.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        matches!(self.state, SlotState::Offered | SlotState::Borrowed)
    }

    /// Whether its fleet has no use of it, though it is not lent.
    #[must_use]
    pub fn is_withheld(&self) -> bool {
        !self.comes_free() && !self.is_lent()
    }

    /// Whether its fleet can have it as soon as nothing is on it: nothing is wrong with its device.
    #[must_use]
    pub fn comes_free(&self) -> bool {
        self.quarantined.is_none()
    }

    /// Why it is of no use to us, if it is not: what is wrong with its device, else what was computed wrong on it.
    #[must_use]
    pub fn unfit(&self) -> Option<&String> {
        self.quarantined.as_ref().or(self.diverged.as_ref())
    }

    /// Whether nothing is on it any more and it is of no use to us.
    #[must_use]
    pub fn is_quarantined(&self) -> bool {
        self.unfit().is_some() && self.executor.is_none()
    }

    /// Whether we may use it and nobody does.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_lent() && self.job.is_none() && self.executor.is_none() && self.unfit().is_none()
    }
}
