//! Fleets, their slots and their demand.

use crate::forms::{ExecutorName, FleetSlotName, Hash, Name, SlotName};
use crate::word::{Word, words};
use events_public::Offers;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

words! {
    /// Whose a slot is at the moment.
    SlotState {
        /// Of no fleet; it is never used.
        Undeclared = "undeclared",
        /// Its fleet's own.
        Unoffered = "unoffered",
        /// Lent, and no job was on it since.
        Offered = "offered",
        /// Lent, and a job is on it, or was since; `job` says which is now.
        Borrowed = "borrowed",
        /// On its way back to its fleet.
        Reclaimed = "reclaimed",
        /// Nothing is on it, and its device is not as it should be.
        Quarantined = "quarantined",
        /// To be free, on a server that cannot be reached.
        Unknown = "unknown",
    }
    /// What became of a demand signal.
    DemandState {
        /// It counts.
        Accepted = "accepted",
        /// It is durable, and no controller has decided yet.
        Undecided = "undecided",
    }
}

/// A fleet as it stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Fleet {
    /// Its name.
    #[schemars(with = "Name")]
    pub name: String,
    /// How its slots are offered.
    pub offers: Word<Offers>,
    /// Time from a reclaim to the kill of an executor.
    pub reclaim_deadline_ms: u64,
    /// Slots it needs for itself, as it last said.
    pub needed: Option<u32>,
    /// Number of that signal.
    pub sequence: Option<u64>,
    /// How many of its slots it keeps until it is released, while it is recalled.
    pub recalled: Option<u32>,
    /// What it is going to need, the nearest first; none of a fleet of whose past too little is known, or if all lending is reactive.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forecast: Vec<FleetForecast>,
    /// Its slots, sorted.
    pub slots: Vec<Slot>,
}

/// What a fleet is going to need, as it says itself or else as its past says, and how good such forecasts were.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FleetForecast {
    /// So long from the newest that the service knows of.
    pub in_ms: u64,
    /// As likely more slots as fewer.
    pub p50: u32,
    /// With nine chances in ten no more.
    pub p90: u32,
    /// How far off `p50` was until now, in the mean, in thousandths of a slot.
    pub error_milli: u64,
    /// How often no more than `p90` was needed until now, in thousandths; 900 is right.
    pub covered_milli: u64,
    /// Whether its last signal said so: then `p50` is needed at that time, and `p90` at most until then from the entry before on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub declared: bool,
}

/// Fleets, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Fleets {
    /// At most `limit` of them.
    pub fleets: Vec<Fleet>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A slot as it stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Slot {
    /// `SERVER/INDEX`.
    #[schemars(with = "SlotName")]
    pub slot: String,
    /// Whose it is; a slot of no fleet is never used.
    #[schemars(with = "Option<Name>")]
    pub fleet: Option<String>,
    /// Whose it is at the moment.
    pub state: Word<SlotState>,
    /// The job on it.
    #[schemars(with = "Option<Name>")]
    pub job: Option<String>,
    /// The executor on it.
    #[schemars(with = "Option<ExecutorName>")]
    pub executor: Option<String>,
    /// Numeric class of its server; `null` while no agent is there.
    #[schemars(with = "Option<Hash>")]
    pub class: Option<String>,
    /// What its server calls it by how fast it is; absent if that says nothing, and while no agent is there.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub slot_type: Option<String>,
    /// The device that it is; absent if it is none, and while no agent is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<SlotDevice>,
    /// What is wrong with its device, or what was computed wrongly on it; absent if nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantined: Option<String>,
    /// Who shares it, on its guest slot; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<SlotGuest>,
}

/// Who shares a slot with the job that has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SlotGuest {
    /// The job whose plan has the guest slot.
    #[schemars(with = "Option<Name>")]
    pub job: Option<String>,
    /// The executor on it.
    #[schemars(with = "Option<ExecutorName>")]
    pub executor: Option<String>,
    /// How many hundredths of the slot the executor of the job that has it used over 10 s, when that was last news. News is another figure by 10 or more, once a minute
    /// at most, and only while a job could begin as its guest, so it may be old. Absent until there was any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_busy_percent: Option<u8>,
}

/// The device that a slot is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SlotDevice {
    /// Its name everywhere and always.
    pub uuid: String,
    /// What it is.
    pub name: String,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// The version of its driver.
    pub driver: String,
}

/// Slots, by server and number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Slots {
    /// At most `limit` of them.
    pub slots: Vec<Slot>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A demand signal that is durable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DemandTaken {
    /// Whether it counts already.
    pub status: Word<DemandState>,
    /// The fleet whose need was published.
    #[schemars(with = "Name")]
    pub fleet: String,
    /// Its number.
    pub sequence: u64,
    /// Slots needed as they count: rounded up, and not more than the fleet has.
    pub needed: u32,
}

/// Declares a fleet: which slots are its own, and how it lends them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeclareFleet {
    /// Its slots by server; one that is not named is the fleet's no more.
    pub servers: Vec<ServerSlots>,
    /// How they are offered; `by_demand` if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offers: Option<Offers>,
    /// Time from a reclaim to the kill of an executor; 10000 if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 3_600_000))]
    pub reclaim_deadline_ms: Option<u64>,
}

/// A fleet's slots on one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerSlots {
    /// The server, as its agent names it.
    #[schemars(with = "Name")]
    pub server: String,
    /// Which of its slots.
    pub slots: SlotsOfServer,
}

/// Slots of one server: so many from 0, or exactly these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SlotsOfServer {
    /// The first so many.
    Count(#[schemars(range(min = 1, max = 1_024))] u16),
    /// These numbers, each once.
    Numbers(
        #[schemars(length(min = 1, max = 1_024), inner(range(max = 1_023)), extend("uniqueItems" = true))] Vec<u16>,
    ),
}

/// Names slots of a fleet: to lend them, or to take them back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NameSlots {
    /// Which: `SERVER/INDEX`.
    #[schemars(with = "Vec<FleetSlotName>", length(min = 1, max = 8_192))]
    pub slots: Vec<String>,
}

/// Takes slots of a fleet back at once, and keeps them until it is released.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RecallFleet {
    /// So many; all if it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 8_192))]
    pub slots: Option<u32>,
}

/// Says how many of its slots a fleet needs: `needed`, or `utilization` with a `target`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PublishDemand {
    /// So many slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1_000_000))]
    pub needed: Option<u32>,
    /// The sum of the slots' utilization: 2.4 is two and a half slots' work.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e6))]
    pub utilization: Option<f64>,
    /// The wanted utilization of one slot, beside `utilization`; 0.8 if it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.05, max = 1.0))]
    pub target: Option<f64>,
    /// The signal's number, above all before; minted if it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub sequence: Option<u64>,
    /// How many it is going to need, as it knows itself; counts until its next signal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 96))]
    pub forecast: Vec<DemandAhead>,
    /// How long its own requests take: all its slots go back while that is longer than they may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo: Option<DemandSlo>,
}

/// From some time on a fleet is going to need so many slots, until the next such time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DemandAhead {
    /// So long after the signal counts; each is later than the one before.
    #[schemars(range(min = 1, max = 604_800_000))]
    pub in_ms: u64,
    /// No more than so many, as far as it knows.
    #[schemars(range(max = 1_000_000))]
    pub needed: u32,
}

/// How long a fleet's own requests take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DemandSlo {
    /// What 99 of 100 take at most now.
    #[schemars(range(max = 86_400_000))]
    pub p99_ms: u64,
    /// What they may take.
    #[schemars(range(min = 1, max = 86_400_000))]
    pub limit_ms: u64,
}

impl PublishDemand {
    /// So many slots.
    #[must_use]
    pub fn needed(slots: u32) -> Self {
        Self { needed: Some(slots), ..Self::default() }
    }
}
