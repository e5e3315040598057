//! A schedule: how a world is set up, and everything that people, fleets and bad luck do to it, with times. A run follows from it and its
//! seed alone, so a schedule kept as a JSON file replays.

use crate::groups::Group;
use crate::numbers::{PARAMETERS, REPLICA};
use crate::phase::Phase;
use events_schema::batch::InputStream;
use serde::{Deserialize, Serialize};

/// All that a run follows from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Of all randomness that is left while it runs: latencies, and whom a fault meets.
    pub seed: u64,
    /// What there is.
    pub setup: Setup,
    /// What happens, in the order of time.
    pub entries: Vec<Entry>,
    /// From then on the core is healthy, and jobs have to go on.
    pub heal_at_ms: u64,
}

/// What there is when the world begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Servers with slots, each of a fleet of its own.
    pub servers: u16,
    /// The same servers in groups, each of them one fleet; if nothing is said, all are alike and each is a fleet of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// The first so many servers are the core: healthy from the healing on.
    pub core_servers: u16,
    /// Slots of each server.
    pub slots: u16,
    /// Whether each of them has a guest slot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guests: bool,
    /// Jobs, submitted at the beginning or at their time.
    pub jobs: Vec<JobSetup>,
    /// Time that the gradient of one rank takes.
    pub unit_ms: u64,
    /// Time from an executor's start until it listens.
    pub build_ms: u64,
    /// Of a link between two hosts, one way.
    pub latency_us: u64,
    /// A packet takes up to so much longer, whatever the one before it on another connection took: what is sent first by one way comes
    /// later than what is sent afterwards by another.
    #[serde(default)]
    pub jitter_us: u64,
    /// Of a link between two executors, one way.
    pub link_bytes_per_s: u64,
    /// Sums of gradients weigh nothing there: what their exchange takes is in what jobs say of their steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub weightless_sums: bool,
    /// A server whose links to all others carry less, for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_link: Option<SlowLink>,
    /// Servers of a slower type, on several of which and others jobs may be at once; if nothing is said, all are of one type and no job says anything of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_type: Option<SlowType>,
    /// Of one executor's reads or writes.
    pub store_bytes_per_s: u64,
    /// How often controllers sweep it; if nothing is said, much more often than in production.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep_ms: Option<u64>,
    /// Bytes that one element stands for.
    pub element_bytes: u64,
    /// Time without a controller after which an agent gives all slots back.
    pub loan_lease_ms: u64,
    /// Time that fleets give an executor to leave.
    pub reclaim_deadline_ms: u64,
    /// Clocks of the hosts: the controller's first, then the servers'.
    pub clocks: Vec<ClockSetup>,
    /// Name of the policy.
    #[serde(default = "usual_policy")]
    pub policy: String,
    /// Whether it is told how fast jobs are measured to be.
    #[serde(default)]
    pub measured_speeds: bool,
    /// After how long fleets' needs come again, for what they are going to need; if nothing is said, a day, of which no run sees two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast_day_ms: Option<u64>,
    /// Whether fleets say, until the healing, what they are going to need, right or wrong.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foresees: bool,
    /// For how long jobs wait for the store; if nothing is said, for as long as those that say nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_patience_ms: Option<u64>,
    /// Failures of their programs that jobs outlive.
    #[serde(default = "many_restarts")]
    pub max_restarts: u32,
}

impl Setup {
    /// Steps that newcomers may be behind while they follow.
    #[must_use]
    pub fn behind_max(&self) -> Option<u64> {
        // The machine counts four bytes an element; here each stands for more.
        let elements = |count: usize| usize::try_from(count as u64 * self.element_bytes / 4).unwrap_or(usize::MAX);
        workers_member::behind_max(elements(REPLICA), elements(PARAMETERS))
    }

    /// Whether every job is promised to run on the core: its policy gives each its minimum, and there is room for all of them.
    #[must_use]
    pub fn grants_all(&self) -> bool {
        let minima: u16 = self.jobs.iter().map(|job| job.min).sum();
        self.policy == usual_policy() && minima <= self.core_servers * self.slots
    }
}

/// The most that a job may say.
fn many_restarts() -> u32 {
    1_000
}

/// The policy of the schedules that name none.
fn usual_policy() -> String {
    "ebb".to_owned()
}

/// A server with slow links.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SlowLink {
    /// The server.
    pub server: u16,
    /// What each of them carries, one way.
    pub bytes_per_s: u64,
}

impl SlowLink {
    /// Whether a connection between two hosts is one of its links.
    #[must_use]
    pub fn is_between(&self, places: [Place; 2]) -> bool {
        places[0] != places[1] && places.contains(&(self.server + 1))
    }
}

/// Servers of a slower type.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SlowType {
    /// They are those from this one on.
    pub from: u16,
    /// What a gradient takes there, as a multiple of what it takes on the others.
    pub times: u64,
    /// Whether the last server is of a numeric class of its own: whatever its type, nobody is on it and on others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub last_is_apart: bool,
}

impl SlowType {
    /// How many times as long a gradient takes on a host.
    #[must_use]
    pub fn times_at(&self, place: Place) -> u64 {
        if place > self.from { self.times.max(1) } else { 1 }
    }
}

/// One job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSetup {
    /// When it is submitted.
    #[serde(default, skip_serializing_if = "is_at_once")]
    pub submitted_ms: u64,
    /// What a step takes, in microseconds, with one member, with two, and so on to its most; if nothing is said, it follows from what gradients take.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub step_us: Vec<u64>,
    /// Fewest slots it runs on.
    pub min: u16,
    /// Its ranks, and most slots.
    pub max: u16,
    /// Its length.
    pub steps: u64,
    /// Steps between two checkpoints.
    pub checkpoint_every: u64,
    /// Steps between two comparisons of replicas; none: as the job's leader says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compare_every: Option<u64>,
    /// Who goes first.
    #[serde(default)]
    pub priority: i32,
    /// The number of the tenant whose it is; if nothing is said, that of all commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<u16>,
    /// Its replicas may depend on who was a member: `determinism: none`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_determinism: bool,
    /// For how long it may be measured at each of the usual sizes before it settles: `profile`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_s: Option<u16>,
    /// Steps that one of its updates may take: `batch_range`, of one without determinism.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stride_max: Option<u16>,
}

/// The clocks of one host.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClockSetup {
    /// Faster than true time, in millionths.
    pub drift_ppm: i64,
    /// Ahead of true time.
    pub ahead_ms: i64,
}

/// Something that happens at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// True time; not before it, if it waits for something.
    pub at_ms: u64,
    /// If given, it waits until a job is in this phase; until the healing, or never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Phase>,
    /// Which job's phase it waits for; the first one's, if nothing is said.
    #[serde(default, skip_serializing_if = "is_first")]
    pub of: u16,
    /// What is done to the world then.
    pub act: Act,
}

fn is_at_once(ms: &u64) -> bool {
    *ms == 0
}

fn is_first(job: &u16) -> bool {
    *job == 0
}

/// A topic that inputs are appended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    Commands,
    Demand,
    Reports,
}

impl From<Topic> for InputStream {
    fn from(topic: Topic) -> Self {
        match topic {
            Topic::Commands => InputStream::Commands,
            Topic::Demand => InputStream::Demand,
            Topic::Reports => InputStream::Reports,
        }
    }
}

/// A host: 0 is the controller's, `n` is server `n - 1`.
pub type Place = u16;

/// What happens. Whatever lasts says how long, in milliseconds; `pick` chooses among those that are there then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// A user cancels a job.
    Cancel { job: u16 },
    /// A user suspends a job.
    Suspend { job: u16 },
    /// A user lets a suspended job go on.
    Resume { job: u16 },
    /// A fleet says how many of its slots it needs.
    Demand { server: u16, needed: u32 },
    /// A fleet takes slots back at the agent.
    TakeBack { server: u16, slots: Vec<u16>, within_ms: u64 },
    /// A fleet takes all its slots back by name.
    RedButton { server: u16 },
    /// A fleet declares the first so many slots of its server, and no others.
    Declare { server: u16, slots: u16 },
    /// An operator says what a tenant has guaranteed; none: it has no quota any more.
    SetQuota { tenant: u16, slots: Option<u32> },
    /// An executor is killed by somebody else.
    KillExecutor { pick: u64 },
    /// An executor ends by itself: its program failed.
    ExitExecutor { pick: u64, status: i32 },
    /// An executor's process is stopped for a while.
    StopExecutor { pick: u64, for_ms: u64 },
    /// The next unit that an executor computes never ends; its process lives on.
    HangInUnit { pick: u64 },
    /// A bit flips in one executor's replica.
    FlipBit { pick: u64, element: u64 },
    /// An agent's process ends, and another begins later.
    CrashAgent { server: u16, down_ms: u64 },
    /// An agent's process is stopped for a while.
    StopAgent { server: u16, for_ms: u64 },
    /// A server loses power, and comes back later.
    CrashServer { server: u16, down_ms: u64 },
    /// A server's processors are slower for a while.
    SlowServer { server: u16, times: u64, for_ms: u64 },
    /// The controller's process ends, and another begins later.
    CrashController { down_ms: u64 },
    /// The controller's process is stopped for a while.
    StopController { for_ms: u64 },
    /// Another controller claims the cell while this one lives.
    RivalController,
    /// Nothing comes through from one host to another for a while.
    Cut { from: Place, to: Place, for_ms: u64 },
    /// The same again and again, for ever: cut for so long, whole for so long. Not between hosts of the core once that is healthy.
    FlapLink { from: Place, to: Place, cut_ms: u64, whole_ms: u64 },
    /// A server loses power and comes back, again and again, for ever. Not one of the core once that is healthy.
    FlapServer { server: u16, down_ms: u64, up_ms: u64 },
    /// All links end at once.
    ResetLinks { from: Place, to: Place },
    /// One host forgets all its connections with another, which hears nothing of it: they stay half open.
    ForgetConnections { at: Place, other: Place },
    /// Links between executors are so many times slower for a while.
    SlowLinks { times: u64, for_ms: u64 },
    /// A server's links to all others carry less from now on, for ever.
    SlowLinkOf { server: u16, bytes_per_s: u64 },
    /// The log answers nothing for a while.
    StallLog { for_ms: u64 },
    /// Appends are done but not acknowledged.
    LoseAcknowledgements { for_ms: u64 },
    /// Appends are said to be unknown and are done seconds later.
    AppendLate { for_ms: u64 },
    /// Appends are refused.
    RefuseAppends { for_ms: u64 },
    /// An input topic loses its newest records: an older copy takes over, or an empty one. After a while its operator restores it, if somebody
    /// misses something.
    ShortenInput { topic: Topic, records: u64, for_ms: u64 },
    /// The store answers nothing for a while.
    StoreAway { for_ms: u64 },
    /// The store refuses everybody for a while: a right was taken away.
    StoreRefuses { for_ms: u64 },
    /// The store is so many times slower for a while.
    SlowStore { times: u64, for_ms: u64 },
    /// For a while the store lists what it was like some time ago.
    ListLate { for_ms: u64 },
    /// A shard of the newest checkpoint of a job is damaged: it is gone, or some of its bytes are others.
    DamageCheckpoint {
        job: u16,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        bytes: bool,
    },
    /// A server's disk is full for a while.
    FullDisk { server: u16, for_ms: u64 },
    /// A server's wall clock jumps.
    JumpClock { place: Place, by_ms: i64 },
    /// The policy panics for a while.
    PolicyPanics { for_ms: u64 },
}

impl Act {
    /// Its name in counters.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Act::Cancel { .. } => "cancel",
            Act::Suspend { .. } => "suspend",
            Act::Resume { .. } => "resume",
            Act::Demand { .. } => "demand",
            Act::TakeBack { .. } => "take_back",
            Act::RedButton { .. } => "red_button",
            Act::Declare { .. } => "declare",
            Act::SetQuota { .. } => "set_quota",
            Act::KillExecutor { .. } => "kill_executor",
            Act::ExitExecutor { .. } => "exit_executor",
            Act::StopExecutor { .. } => "stop_executor",
            Act::HangInUnit { .. } => "hang_in_unit",
            Act::FlipBit { .. } => "flip_bit",
            Act::CrashAgent { .. } => "crash_agent",
            Act::StopAgent { .. } => "stop_agent",
            Act::CrashServer { .. } => "crash_server",
            Act::SlowServer { .. } => "slow_server",
            Act::CrashController { .. } => "crash_controller",
            Act::StopController { .. } => "stop_controller",
            Act::RivalController => "rival_controller",
            Act::Cut { .. } => "cut",
            Act::FlapLink { .. } => "flap_link",
            Act::FlapServer { .. } => "flap_server",
            Act::ResetLinks { .. } => "reset_links",
            Act::ForgetConnections { .. } => "forget_connections",
            Act::SlowLinks { .. } => "slow_links",
            Act::SlowLinkOf { .. } => "slow_link_of",
            Act::StallLog { .. } => "stall_log",
            Act::LoseAcknowledgements { .. } => "lose_acknowledgements",
            Act::AppendLate { .. } => "append_late",
            Act::RefuseAppends { .. } => "refuse_appends",
            Act::ShortenInput { .. } => "shorten_input",
            Act::StoreAway { .. } => "store_away",
            Act::StoreRefuses { .. } => "store_refuses",
            Act::SlowStore { .. } => "slow_store",
            Act::ListLate { .. } => "list_late",
            Act::DamageCheckpoint { bytes: false, .. } => "damage_checkpoint",
            Act::DamageCheckpoint { bytes: true, .. } => "damage_bytes",
            Act::FullDisk { .. } => "full_disk",
            Act::JumpClock { .. } => "jump_clock",
            Act::PolicyPanics { .. } => "policy_panics",
        }
    }
}
