//! What is asked: commands of users and fleets, and demand signals. A command may be refused, and the refusal is a fact.
//!
//! Numbered and append-only: a kind or field is added with a new number, never reused.
//!
//! Next on a job's path: `events/log/src/lib.rs`.

use crate::dataset::DatasetInfo;
use crate::job::JobSpec;
use crate::{CommandId, DatasetName, Digest, FleetId, JobId, Offset, SlotId, TenantId, TimeMs, TraceContext};
use minicbor::{Decode, Encode};
use serde::Serialize;

/// One record of the `commands` stream.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct CommandRecord {
    /// The same id twice has one effect.
    #[n(0)]
    pub id: CommandId,
    /// Who asks.
    #[n(1)]
    pub tenant: TenantId,
    /// When it entered.
    #[n(2)]
    pub at: TimeMs,
    /// What is asked.
    #[n(3)]
    pub command: Command,
    /// What led to it; decides nothing.
    #[n(4)]
    pub trace: Option<TraceContext>,
    /// What is asked holds only for this; whatever is there, if nothing is said.
    #[n(5)]
    pub expected: Option<Expected>,
}

/// What whoever asks for a change takes the job, fleet or dataset to be that it changes. Compared where the command is decided, so of two
/// changes that expect the same only the first comes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Expected {
    /// There is none of this name.
    #[n(0)]
    Absent,
    /// It is as it was when it had this digest.
    #[n(1)]
    As(#[n(0)] Digest),
}

/// What a user, a fleet or an operator can ask.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum Command {
    /// Train this.
    #[n(0)]
    SubmitJob {
        /// Minted by the gateway.
        #[n(0)]
        job: JobId,
        /// What to train; boxed because it is much larger than the other commands.
        #[n(1)]
        spec: Box<JobSpec>,
        /// Digest of the whole body, so that the same `Idempotency-Key` with another body is told apart.
        #[n(2)]
        body_digest: Digest,
    },
    /// End a job; its last checkpoint stays.
    #[n(1)]
    CancelJob {
        #[n(0)]
        job: JobId,
    },
    /// Checkpoint a job and give back its slots.
    #[n(2)]
    SuspendJob {
        #[n(0)]
        job: JobId,
    },
    /// Let a suspended job run again.
    #[n(3)]
    ResumeJob {
        #[n(0)]
        job: JobId,
    },
    /// Make a dataset known; its metadata object is already in the store.
    #[n(4)]
    RegisterDataset {
        /// Name, shape and metadata.
        #[n(0)]
        dataset: DatasetInfo,
    },
    /// Forget a dataset that no unfinished job reads.
    #[n(5)]
    RemoveDataset {
        #[n(0)]
        dataset: DatasetName,
    },
    /// Declare a fleet and the slots it owns.
    #[n(6)]
    PutFleet {
        #[n(0)]
        fleet: FleetId,
        /// Its slots; a slot belongs to at most one fleet.
        #[n(1)]
        slots: Vec<SlotId>,
        /// How slots are offered.
        #[n(2)]
        offers: OfferMode,
        /// Time from a reclaim to the kill of the executor.
        #[n(3)]
        reclaim_deadline_ms: u64,
    },
    /// Lend these slots: they are drained and may be used until taken back.
    #[n(7)]
    OfferSlots {
        /// By whom.
        #[n(0)]
        fleet: FleetId,
        #[n(1)]
        slots: Vec<SlotId>,
    },
    /// Give these slots back now; they are not used again until offered again.
    #[n(8)]
    ReclaimSlots {
        /// By whom.
        #[n(0)]
        fleet: FleetId,
        #[n(1)]
        slots: Vec<SlotId>,
    },
    /// The red button: a fleet gets slots back at once, and they stay with it until it is released, whatever its demand signals say.
    #[n(9)]
    RecallFleet {
        #[n(0)]
        fleet: FleetId,
        /// How many.
        #[n(1)]
        slots: Recall,
    },
    /// Ends a recall: the fleet's demand signals decide again.
    #[n(10)]
    ReleaseFleet {
        #[n(0)]
        fleet: FleetId,
    },
    /// Say that a fleet's own topic holds signals that cannot be used. By the gateway that copies them; nobody else could tell its
    /// publisher.
    #[n(12)]
    TellRefused {
        /// Whose topic.
        #[n(0)]
        fleet: FleetId,
        /// Where the newest of them stands in it.
        #[n(1)]
        offset: Offset,
        /// How many, since it was last said.
        #[n(2)]
        count: u64,
        /// What is wrong with the newest, and what would be right.
        #[n(3)]
        reason: String,
    },
    /// Say how many slots a tenant has guaranteed, under a policy that knows of quotas.
    #[n(13)]
    SetQuota {
        #[n(0)]
        tenant: TenantId,
        /// So many, of all kinds together; none takes its quota away.
        #[n(1)]
        quota_slots: Option<u32>,
    },
}

/// How many of a fleet's slots a recall keeps with it. More are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recall {
    /// So many.
    #[n(0)]
    Slots(#[n(0)] u32),
    /// All that it has, and will have.
    #[n(1)]
    All,
}

impl Recall {
    /// How many that are of so many.
    #[must_use]
    pub fn of(self, slots: usize) -> usize {
        match self {
            Recall::Slots(count) => slots.min(count as usize),
            Recall::All => slots,
        }
    }
}

/// How a fleet's slots are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OfferMode {
    /// Only by `OfferSlots`.
    #[n(0)]
    Explicit,
    /// A demand signal that needs fewer slots than the fleet holds offers the difference: whoever publishes it vouches that
    /// they are drained.
    #[n(1)]
    ByDemand,
}

/// One record of the `demand` stream: how many of its slots a fleet needs for itself.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct DemandSignal {
    /// The fleet whose need it is.
    #[n(0)]
    pub fleet: FleetId,
    /// Grows with each signal of the fleet; a lower one is refused as old.
    #[n(1)]
    pub sequence: u64,
    /// When it was published.
    #[n(2)]
    pub at: TimeMs,
    /// How much.
    #[n(3)]
    pub demand: Demand,
    /// What led to it; decides nothing.
    #[n(4)]
    pub trace: Option<TraceContext>,
    /// What it is going to need, as it knows itself: counts until its next signal, in place of what its past says.
    #[n(5)]
    pub forecast: Option<Vec<Foreseen>>,
    /// How long its own requests take, and may take.
    #[n(6)]
    pub slo: Option<Slo>,
}

/// From some time on a fleet is going to need so many slots, until the next such time if it names another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Foreseen {
    /// So long after its signal counts.
    #[n(0)]
    pub in_ms: u64,
    /// No more than so many, as far as it knows.
    #[n(1)]
    pub slots: u32,
}

/// What a fleet's own requests are promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Slo {
    /// What 99 of 100 requests take at most now.
    #[n(0)]
    pub p99_ms: u64,
    /// What they may take.
    #[n(1)]
    pub limit_ms: u64,
}

impl Slo {
    /// Whether requests take longer than they may.
    #[must_use]
    pub fn is_missed(self) -> bool {
        self.p99_ms > self.limit_ms
    }
}

/// What a fleet says of its needs, as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    /// How many slots now.
    pub demand: Demand,
    /// How many later.
    pub forecast: Option<Vec<Foreseen>>,
    /// How long its requests take.
    pub slo: Option<Slo>,
}

impl From<Demand> for Needs {
    fn from(demand: Demand) -> Self {
        Self { demand, forecast: None, slo: None }
    }
}

impl Needs {
    /// The need of a fleet of so many slots, as it counts.
    #[must_use]
    pub fn counted(&self, slots: u32) -> u32 {
        counted(self.demand, self.slo, slots)
    }
}

/// A fleet cannot need more slots than it has, and needs all of them while its requests take longer than they may.
fn counted(demand: Demand, slo: Option<Slo>, slots: u32) -> u32 {
    if slo.is_some_and(Slo::is_missed) { slots } else { demand.needed().min(slots) }
}

/// Times at which a fleet can say that it is going to need another number: a quarter of an hour each of a day.
pub const FORESEEN_MAX: usize = 96;
/// So far ahead a fleet can say what it is going to need: a week, after which nothing is asked.
pub const FORESEEN_MS_MAX: u64 = 7 * 86_400_000;
/// Longest time of a request that a fleet can name: a day.
pub const SLO_MS_MAX: u64 = 86_400_000;

/// Highest number of a signal: half the range, so that above any that is given there is still one to mint.
pub const SEQUENCE_MAX: u64 = u64::MAX / 2;
/// Most slots that a fleet can say it needs.
pub const NEEDED_MAX: u32 = 1_000_000;
/// Highest sum over a fleet's slots, in thousandths of a slot.
pub const UTILIZATION_MILLI_MAX: u64 = 1_000 * NEEDED_MAX as u64;
/// Lowest and highest utilization that a fleet can want of a slot, in thousandths.
pub const TARGET_MILLI: std::ops::RangeInclusive<u64> = 50..=1_000;

impl DemandSignal {
    /// Of a fleet that says so much; nothing is known to have led to it.
    #[must_use]
    pub fn new(fleet: FleetId, sequence: u64, at: TimeMs, needs: impl Into<Needs>) -> Self {
        let Needs { demand, forecast, slo } = needs.into();
        Self { fleet, sequence, at, demand, trace: None, forecast, slo }
    }

    /// Whether it may be given, by the rule of the doors. Asked where signals are decided; what stands in a log is read whatever it is.
    #[must_use]
    pub fn is_fit(&self) -> bool {
        let may_be = match self.demand {
            Demand::Needed(needed) => needed <= NEEDED_MAX,
            Demand::Utilization { sum_milli, target_milli } => {
                sum_milli <= UTILIZATION_MILLI_MAX && TARGET_MILLI.contains(&target_milli)
            }
        };
        may_be && self.sequence <= SEQUENCE_MAX && self.forecast.as_deref().is_none_or(is_foreseen)
    }

    /// The need of a fleet of so many slots, as it counts.
    #[must_use]
    pub fn counted(&self, slots: u32) -> u32 {
        counted(self.demand, self.slo, slots)
    }
}

/// Whether a forecast may be given: some times, each after the one before.
#[must_use]
pub fn is_foreseen(forecast: &[Foreseen]) -> bool {
    let fits = |of: &Foreseen| (1..=FORESEEN_MS_MAX).contains(&of.in_ms) && of.slots <= NEEDED_MAX;
    let rises = forecast.is_sorted_by(|one, next| one.in_ms < next.in_ms);
    (1..=FORESEEN_MAX).contains(&forecast.len()) && rises && forecast.iter().all(fits)
}

/// How much a fleet needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Demand {
    /// So many slots.
    #[n(0)]
    Needed(#[n(0)] u32),
    /// ⌈sum ÷ target⌉ slots.
    #[n(1)]
    Utilization {
        /// Sum over the fleet's slots, in thousandths of a slot.
        #[n(0)]
        sum_milli: u64,
        /// Wanted utilization of one slot, in thousandths.
        #[n(1)]
        target_milli: u64,
    },
}

impl Demand {
    /// The slots needed, rounded up.
    #[must_use]
    pub fn needed(self) -> u32 {
        match self {
            Demand::Needed(n) => n,
            Demand::Utilization { sum_milli, target_milli } => {
                u32::try_from(sum_milli.div_ceil(target_milli.max(1))).unwrap_or(u32::MAX)
            }
        }
    }
}
