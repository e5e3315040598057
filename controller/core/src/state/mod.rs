//! Everything the controller knows: plain, ordered, comparable data, the fold of all facts. Nothing here decides.
//!
//! Cloning is free until written to ([`crate::table`]). Reading order: [`job`] (jobs, executors, generations), [`fleet`]
//! (fleets, servers, slots), [`memory`] (what is remembered of commands), [`bounds`] (how much is kept). Next: `apply/mod.rs`.

pub mod bounds;
mod declared;
pub(crate) mod executors;
pub mod faults;
pub mod fleet;
pub mod job;
pub mod memory;
pub mod past;
mod profiled;
mod service;
mod shared;
pub(crate) mod slots;
pub mod troubles;
pub(crate) mod type_times;

pub use faults::Faults;
pub use fleet::{Ahead, Fleet, Link, Server, Slot, SlotKind, SlotState};
pub use job::{Active, Executor, Job, JobPhase, Leaving, Pace, Placement, Scaling};
pub use memory::CommandMemory;
pub use past::{Forecast, Past};
pub use profiled::Profiled;
pub use service::Service;

use crate::table::Table;
use events_schema::dataset::DatasetInfo;
use events_schema::fact::ReclaimCause;
use events_schema::fold::FoldVersion;
use events_schema::slot_type::TypeTime;
use events_schema::{Cell, DatasetName, Digest, ExecutorId, FleetId, JobId, ServerId, SlotId, TenantId, TimeMs, batch};
use executors::Executors;
use minicbor::{Decode, Encode};
use slots::Slots;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Bound;

/// The state of one cell.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct State {
    #[n(0)]
    pub(crate) cell: Cell,
    /// Time of the newest fact; never goes back.
    #[n(1)]
    pub(crate) at: TimeMs,
    /// Unfinished jobs.
    #[n(2)]
    pub(crate) live: Table<JobId, Job>,
    /// Ended jobs; they never change.
    #[n(3)]
    pub(crate) ended: Table<JobId, Job>,
    /// Ended jobs in the order of their end, for forgetting.
    #[n(4)]
    pub(crate) ends: Table<u64, JobId>,
    /// Unfinished jobs with a placement: the ones that a tick looks at.
    #[n(5)]
    pub(crate) placed: Table<JobId, ()>,
    /// Every process that exists or is to exist, whatever became of its job.
    #[n(6)]
    pub(crate) executors: Executors,
    #[n(7)]
    pub(crate) fleets: Table<FleetId, Fleet>,
    #[n(8)]
    pub(crate) servers: Table<ServerId, Server>,
    /// Slots that a fleet declares or declared.
    #[n(9)]
    pub(crate) slots: Slots,
    #[n(10)]
    pub(crate) datasets: Table<DatasetName, DatasetInfo>,
    #[n(11)]
    pub(crate) commands: CommandMemory,
    /// Checkpoints whose objects may be deleted, by the number of their retirement.
    #[n(12)]
    pub(crate) retired: Table<u64, Retired>,
    /// Numbers used so far.
    #[n(13)]
    pub(crate) counters: Counters,
    /// What is known of the policy; boxed, because it is seldom looked at and a state is handed on by value.
    #[n(14)]
    pub(crate) planning: Box<Planning>,
    /// Slots that tenants have guaranteed; one that is not here has no quota.
    #[n(15)]
    #[cbor(default, skip_if = "Table::is_empty")]
    pub(crate) tenants: Table<TenantId, u32>,
    /// Servers whose links were found to be slow, until they are forgotten.
    #[n(16)]
    #[cbor(default, skip_if = "Table::is_empty")]
    pub(crate) links: Table<ServerId, Link>,
    /// What fleets needed until now, while that is asked for.
    #[n(18)]
    #[cbor(default, skip_if = "Table::is_empty")]
    pub(crate) pasts: Table<FleetId, Past>,
    /// The guest slots beside declared slots, of servers that have them. They count nowhere as slots.
    #[n(19)]
    #[cbor(default, skip_if = "Table::is_empty")]
    pub(crate) guests: Table<SlotId, Slot>,
}

/// Looking a job up costs about as much as passing so many by.
const LOOKUP_COST: usize = 8;

/// How planning goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct Planning {
    /// When the policy last panicked instead of planning.
    #[n(0)]
    pub failed_at: Option<TimeMs>,
    /// The policy that planned last; `None` before the first plan.
    #[n(1)]
    pub policy: Option<String>,
    /// That no speeds are measured, as that policy was chosen with.
    #[n(2)]
    pub assumed_speeds: Option<bool>,
    /// After how long fleets' needs come again, where they are forecast.
    #[n(3)]
    pub forecast_day_ms: Option<u64>,
    /// What types took jobs so far, for those that were not measured on them.
    #[n(4)]
    #[cbor(default, skip_if = "Vec::is_empty")]
    pub type_times: Vec<TypeTime>,
    /// By which rules this state follows from its facts.
    #[n(5)]
    pub fold_version: Option<FoldVersion>,
}

impl Planning {
    /// Whether facts are folded by the rules of a version, which came in with it or before.
    pub fn folds_by(&self, version: FoldVersion) -> bool {
        self.fold_version >= Some(version)
    }
}

/// A checkpoint that no longer counts.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Retired {
    /// The job that wrote it.
    #[n(0)]
    pub job: JobId,
    /// Key of its manifest.
    #[n(1)]
    pub manifest_key: String,
}

/// Numbers handed out, each from 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub struct Counters {
    /// Jobs accepted.
    #[n(0)]
    pub arrivals: u64,
    /// Jobs ended.
    #[n(1)]
    pub ends: u64,
    /// Checkpoints retired.
    #[n(2)]
    pub retirements: u64,
    /// Inputs that could not be read or broke `decide`; each pages an operator.
    #[n(3)]
    pub inputs_refused: u64,
    /// Plans that the policy did not give; each pages an operator.
    #[n(4)]
    pub plans_failed: u64,
}

/// A slot in Ebb's hands or on its way back, for accounting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loan<'a> {
    /// The slot on loan.
    pub slot: &'a SlotId,
    /// Whose; none when the fleet no longer declares it.
    pub fleet: Option<&'a FleetId>,
    /// Lent since.
    pub since: TimeMs,
    /// Set while it is on its way back.
    pub reclaimed: Option<(TimeMs, ReclaimCause)>,
}

impl State {
    /// The state before the first fact.
    #[must_use]
    pub fn new(cell: Cell) -> Self {
        Self {
            cell,
            at: TimeMs(0),
            live: Table::new(),
            ended: Table::new(),
            ends: Table::new(),
            placed: Table::new(),
            executors: Executors::default(),
            fleets: Table::new(),
            servers: Table::new(),
            slots: Slots::default(),
            datasets: Table::new(),
            commands: CommandMemory::default(),
            retired: Table::new(),
            counters: Counters::default(),
            planning: Box::default(),
            tenants: Table::new(),
            links: Table::new(),
            pasts: Table::new(),
            guests: Table::new(),
        }
    }

    /// Whether the link of a server is counted on to be slow, for one job or another.
    #[must_use]
    pub fn is_link_slow(&self, server: &ServerId) -> bool {
        self.links.get(server).is_some_and(|link| self.at < link.until)
    }

    /// The server set this is the state of.
    #[must_use]
    pub fn cell(&self) -> Cell {
        self.cell
    }

    /// Time of the newest fact.
    #[must_use]
    pub fn at(&self) -> TimeMs {
        self.at
    }

    /// Digest of the canonical bytes; equal states have equal digests.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&batch::to_bytes(self))
    }

    /// All jobs remembered: the unfinished ones by id, then the ended ones by id.
    pub fn jobs(&self) -> impl Iterator<Item = (&JobId, &Job)> {
        self.live.iter().chain(self.ended.iter())
    }

    /// One job.
    #[must_use]
    pub fn job(&self, job: &JobId) -> Option<&Job> {
        self.live.get(job).or_else(|| self.ended.get(job))
    }

    /// The first job remembered, unfinished or ended, whose id comes after another one's.
    #[must_use]
    pub fn job_after(&self, last: Option<&JobId>) -> Option<&JobId> {
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        let (live, ended) = (self.live.range_from(after).next(), self.ended.range_from(after).next());
        live.into_iter().chain(ended).map(|(id, _)| id).min()
    }

    /// The slots, with what is noted beside them; of a state that was just read from bytes it is worked out.
    pub(crate) fn noted_slots(&self) -> Cow<'_, Slots> {
        if self.slots.knows_servers() {
            return Cow::Borrowed(&self.slots);
        }
        let mut slots = self.slots.clone();
        slots.note_servers(self.servers.iter());
        Cow::Owned(slots)
    }

    /// Unfinished jobs in the order of their arrival.
    pub fn live_jobs(&self) -> impl Iterator<Item = (&JobId, &Job)> {
        let mut jobs: Vec<(&JobId, &Job)> = self.live.iter().collect();
        jobs.sort_unstable_by_key(|(_, job)| job.arrival);
        jobs.into_iter()
    }

    /// Unfinished jobs with a placement, by id.
    pub(crate) fn placed_jobs(&self) -> impl Iterator<Item = (&JobId, &Job)> {
        // Where few of all jobs are placed they are looked up, else the others are passed by.
        let few = self.placed.len() * LOOKUP_COST < self.live.len();
        let looked_up = few.then(|| self.placed.keys().filter_map(|id| Some((id, self.live.get(id)?))));
        let passed = (!few).then(|| self.live.iter().filter(|(_, job)| job.placement().is_some()));
        looked_up.into_iter().flatten().chain(passed.into_iter().flatten())
    }

    /// How many jobs are unfinished.
    #[must_use]
    pub fn live_len(&self) -> usize {
        self.live.len()
    }

    /// All executors, by job and number.
    pub fn executors(&self) -> impl Iterator<Item = (&ExecutorId, &Executor)> {
        self.executors.iter()
    }

    /// One executor.
    #[must_use]
    pub fn executor(&self, executor: &ExecutorId) -> Option<&Executor> {
        self.executors.get(executor)
    }

    /// Whether a job has an executor whose end can be waited for.
    #[must_use]
    pub fn has_awaited(&self, job: &JobId) -> bool {
        self.executors_of(job).any(|(_, executor)| !executor.stuck)
    }

    /// The executors of a job, by number, also those that are leaving.
    pub fn executors_of<'a>(&'a self, job: &JobId) -> impl Iterator<Item = (&'a ExecutorId, &'a Executor)> + use<'a> {
        let from = ExecutorId { job: job.clone(), number: 0 };
        self.executors.range_from(Bound::Included(&from)).take_while(move |(id, _)| id.job == from.job)
    }

    /// All fleets.
    pub fn fleets(&self) -> impl Iterator<Item = (&FleetId, &Fleet)> {
        self.fleets.iter()
    }

    /// One fleet.
    #[must_use]
    pub fn fleet(&self, fleet: &FleetId) -> Option<&Fleet> {
        self.fleets.get(fleet)
    }

    /// What a fleet needed until now, if its lending is by forecast.
    #[must_use]
    pub fn past(&self, fleet: &FleetId) -> Option<&Past> {
        self.pasts.get(fleet).filter(|_| self.planning.forecast_day_ms.is_some())
    }

    /// All servers that joined and are not forgotten.
    pub fn servers(&self) -> impl Iterator<Item = (&ServerId, &Server)> {
        self.servers.iter()
    }

    /// One server.
    #[must_use]
    pub fn server(&self, server: &ServerId) -> Option<&Server> {
        self.servers.get(server)
    }

    /// All slots that belong, or until their return belonged, to a fleet.
    pub fn slots(&self) -> impl Iterator<Item = (&SlotId, &Slot)> {
        self.slots.iter()
    }

    /// One slot, or guest slot.
    #[must_use]
    pub fn slot(&self, slot: &SlotId) -> Option<&Slot> {
        if slot.is_guest() { self.guests.get(slot) } else { self.slots.get(slot) }
    }

    /// Changes who has a slot, or guest slot, or is on it; nothing if it is not there.
    pub(crate) fn change_slot(&mut self, slot: &SlotId, to: impl FnOnce(&mut Slot)) {
        match slot.is_guest() {
            true => self.guests.get_mut(slot).map(to),
            false => self.slots.change(slot, to),
        };
    }

    /// All guest slots.
    pub fn guests(&self) -> impl Iterator<Item = (&SlotId, &Slot)> {
        self.guests.iter()
    }

    /// The guest slots of one server.
    pub fn guests_of<'a>(&'a self, server: &ServerId) -> impl Iterator<Item = (&'a SlotId, &'a Slot)> + use<'a> {
        let from = SlotId { server: server.clone(), index: 0 };
        self.guests.range_from(Bound::Included(&from)).take_while(move |(id, _)| id.server == from.server)
    }

    /// The slots of one server, and its guest slots: wherever something may be on it.
    pub fn places_of<'a>(&'a self, server: &ServerId) -> impl Iterator<Item = (&'a SlotId, &'a Slot)> + use<'a> {
        self.slots_of(server).chain(self.guests_of(server))
    }

    /// Whether somebody is on the guest slot beside a slot.
    pub(crate) fn has_guest(&self, host: &SlotId) -> bool {
        !self.guests.is_empty() && self.guests.get(&host.guest()).is_some_and(|guest| guest.executor.is_some())
    }

    /// The slots of one server.
    pub fn slots_of<'a>(&'a self, server: &ServerId) -> impl Iterator<Item = (&'a SlotId, &'a Slot)> + use<'a> {
        let from = SlotId { server: server.clone(), index: 0 };
        self.slots.range_from(Bound::Included(&from)).take_while(move |(id, _)| id.server == from.server)
    }

    /// Slots that are lent or on their way back.
    pub fn loans(&self) -> impl Iterator<Item = Loan<'_>> {
        self.slots.iter().filter_map(|(id, slot)| {
            let reclaimed = match slot.state {
                SlotState::Unoffered => return None,
                SlotState::Offered | SlotState::Borrowed => None,
                SlotState::Reclaimed { deadline, cause } => Some((deadline, cause)),
            };
            Some(Loan { slot: id, fleet: slot.fleet.as_ref(), since: slot.since, reclaimed })
        })
    }

    /// All datasets.
    pub fn datasets(&self) -> impl Iterator<Item = &DatasetInfo> {
        self.datasets.iter().map(|(_, dataset)| dataset)
    }

    /// One dataset.
    #[must_use]
    pub fn dataset(&self, name: &DatasetName) -> Option<&DatasetInfo> {
        self.datasets.get(name)
    }

    /// Slots that tenants have guaranteed under a policy that knows of quotas, by the tenants' names.
    pub fn quotas(&self) -> impl Iterator<Item = (&TenantId, u32)> {
        self.tenants.iter().map(|(tenant, quota)| (tenant, *quota))
    }

    /// Those of one tenant; none if it has no quota.
    #[must_use]
    pub fn quota(&self, tenant: &TenantId) -> Option<u32> {
        self.tenants.get(tenant).copied()
    }

    /// Ids of recent commands.
    #[must_use]
    pub fn commands(&self) -> &CommandMemory {
        &self.commands
    }

    /// Numbers used so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The highest report number taken from the server's present agent; `None` if it never joined.
    #[must_use]
    pub fn reports_taken(&self, server: &ServerId) -> Option<(u64, u64)> {
        self.servers.get(server).map(|s| (s.incarnation, s.reports_through))
    }

    /// What a job can find on a slot, if its server is known.
    #[must_use]
    pub fn kind(&self, slot: &SlotId) -> Option<SlotKind> {
        self.servers.get(&slot.server).map(|server| server.kind(slot.index))
    }

    /// The servers of slots: quick, because those of one server stand side by side, and it is looked up once for them.
    pub(crate) fn hosts<'a>(
        &'a self,
        slots: &'a BTreeSet<SlotId>,
    ) -> impl Iterator<Item = (&'a SlotId, Option<&'a Server>)> {
        let mut last: Option<(&ServerId, Option<&Server>)> = None;
        slots.iter().map(move |slot| {
            let known = last.filter(|(id, _)| **id == slot.server);
            let (_, server) = *last.insert(known.unwrap_or_else(|| (&slot.server, self.servers.get(&slot.server))));
            (slot, server)
        })
    }

    /// The kinds of slots, of those whose server is known.
    pub(crate) fn kinds<'a>(&'a self, slots: &'a BTreeSet<SlotId>) -> impl Iterator<Item = SlotKind> {
        self.hosts(slots).filter_map(|(slot, server)| Some(server?.kind(slot.index)))
    }

    /// Whether the slot's agent is there and holds such a slot.
    #[must_use]
    pub fn is_present(&self, slot: &SlotId) -> bool {
        self.servers.get(&slot.server).is_some_and(|server| server.has(slot.index))
    }

    /// Whether a server is known and its agent was given up.
    pub(crate) fn is_away(&self, server: &ServerId) -> bool {
        self.servers.get(server).is_some_and(|server| !server.connected)
    }

    /// How a slot is shown: its state, or `unknown` when it is to be free and only an agent that cannot be reached could say whether it
    /// is; `quarantined` when it is of no use to us; `undeclared` when no fleet has it.
    #[must_use]
    pub fn slot_shown(&self, id: &SlotId) -> &'static str {
        match self.slots.get(id) {
            None => "undeclared",
            Some(Slot { state: SlotState::Reclaimed { .. }, .. }) if self.is_away(&id.server) => "unknown",
            Some(slot) if slot.unfit().is_some() => "quarantined",
            Some(slot) => slot.state.name(),
        }
    }

    /// Whether every member that still holds the job's replica has to go, so that it has to be written down: the job is to
    /// stand still at the next boundary and write a checkpoint. A gang has to as soon as it is not as planned any more.
    #[must_use]
    pub fn is_parking(&self, job: &JobId) -> bool {
        self.live.get(job).is_some_and(|known| self.is_parking_job(job, known))
    }

    /// The same of a job that has been looked up.
    pub(crate) fn is_parking_job(&self, id: &JobId, job: &Job) -> bool {
        let (Some(placement), Some(active)) = (job.placement(), job.active()) else { return false };
        if placement.slots.is_empty() || matches!(job.phase, JobPhase::Suspending(..)) {
            return true;
        }
        if job.spec.gang().is_some() {
            return !self.is_as_planned(placement, active);
        }
        if !self.executors.any_leaving(id) {
            return false;
        }
        let mut alive = self.executors.each(active.members.iter()).flatten().peekable();
        alive.peek().is_some() && alive.all(|executor| executor.leaving.is_some())
    }

    /// Whether the members of a gang are those that its plan is for: none was lost, and none has to go. Whoever ended well is not lost.
    fn is_as_planned(&self, placement: &Placement, active: &Active) -> bool {
        let well = |member: &ExecutorId| match self.executors.get(member) {
            Some(executor) => executor.leaving.is_none() && placement.slots.contains(&executor.slot),
            None => active.left.contains_key(member),
        };
        placement.slots.len() == active.members.len() && active.members.iter().all(well)
    }
}
