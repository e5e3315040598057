//! Who asks for things: users with jobs, fleets with slots. Whoever gets no clear answer asks again under the same number, as `docs/http.md` tells
//! clients to.

use crate::random::Random;
use crate::schedule::{JobSetup, Place, Schedule, Setup};
use crate::time::At;
use crate::world::{Event, Input, Pid, World};
use controller_core::state::SlotState;
use controller_core::watch::UNIT_STALL_MS_MIN;
use events_schema::batch::{InputStream, to_bytes};
use events_schema::command::{Command, CommandRecord, Demand, DemandSignal, Foreseen, Needs, OfferMode, Recall};
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::job::JobSpec;
use events_schema::{CommandId, DatasetName, Digest, FleetId, GUEST_INDEX_MIN, JobId, SlotId, TenantId};
use gateway_call::{Outcome, Question};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use workers_agent_core::{Answer, In};

/// Pause before somebody asks again.
const ASK_AGAIN_US: u64 = 500_000;
/// A direct take-back has to be answered so long after its deadline.
pub const TAKE_BACK_GRACE_MS: u64 = 2_000;

/// Fleets say of so many times at most what they are going to need, and from one to the next passes so long at most.
const FORESEEN_EACH_MAX: u64 = 4;
const FORESEEN_EACH_MS: u64 = 30_000;

/// What somebody wants.
#[derive(Debug, Clone)]
pub enum Wish {
    /// A command; the same record is sent until it is decided.
    Command(Box<CommandRecord>),
    /// A fleet's need.
    Signal { place: Place, signal: DemandSignal },
}

impl Wish {
    /// Where it is written down.
    #[must_use]
    pub fn stream(&self) -> InputStream {
        match self {
            Wish::Command(_) => InputStream::Commands,
            Wish::Signal { .. } => InputStream::Demand,
        }
    }
}

/// One fleet: the slots of one server, or of a group of them; it goes by the first one's place.
#[derive(Debug, Default)]
pub struct Fleet {
    sequence: u64,
    pub needed: u32,
    /// The signal that is not decided yet.
    pub open: Option<u64>,
    /// Slots that it was told are free, and has not lent again since.
    pub hands: BTreeSet<u16>,
    /// Whether no signal has followed its last declaration.
    redeclared: bool,
    /// Whether its last signal said what it is going to need.
    foresees: bool,
}

/// What a fleet says with a signal of what it is going to need: anything, within the time of a run as a rule.
fn foreseen(place: Place, sequence: u64, slots: u64) -> Vec<Foreseen> {
    let mut random = Random::new((sequence << 8) ^ u64::from(place));
    let mut in_ms = 0;
    let mut next = |_| {
        in_ms += random.between(1, FORESEEN_EACH_MS);
        Foreseen { in_ms, slots: random.below(slots + 1) as u32 }
    };
    (0..1 + sequence % FORESEEN_EACH_MAX).map(&mut next).collect()
}

/// What a fleet's command does with its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Lends,
    Declares,
    Takes,
}

/// A direct take-back that is not answered.
#[derive(Debug)]
pub struct Asked {
    pub agent: Pid,
    pub place: Place,
    slots: BTreeSet<u16>,
    /// When it has to be answered, if its agent runs until then.
    pub until: At,
    /// Since when its agent is stopped or down: that time is not counted.
    pub paused_at: Option<At>,
}

impl Asked {
    /// Its agent does not run from now on.
    fn pause(&mut self, now: At) {
        self.paused_at.get_or_insert(now);
    }

    /// It runs again.
    fn go_on(&mut self, now: At) {
        if let Some(paused_at) = self.paused_at.take() {
            self.until = At(self.until.0 + now.0.saturating_sub(paused_at.0));
        }
    }
}

/// Everybody who asks.
#[derive(Debug)]
pub struct People {
    pub fleets: BTreeMap<Place, Fleet>,
    pub jobs: Vec<JobId>,
    commands: u64,
    /// Commands of fleets that are not decided yet.
    open: BTreeMap<CommandId, (Place, Order)>,
    requests: u64,
    pub asked: BTreeMap<u64, Asked>,
    /// Slots that were ever taken back directly.
    pub taken: BTreeSet<(Place, u16)>,
}

impl People {
    /// Those of a schedule.
    #[must_use]
    pub fn new(schedule: &Schedule) -> Self {
        let job = |index| JobId::parse(&format!("job-{index}")).unwrap_or_else(|e| unreachable!("{e}"));
        Self {
            fleets: schedule.setup.fleet_places().into_iter().map(|place| (place, Fleet::default())).collect(),
            jobs: (0..schedule.setup.jobs.len()).map(job).collect(),
            commands: 0,
            open: BTreeMap::new(),
            requests: 0,
            asked: BTreeMap::new(),
            taken: BTreeSet::new(),
        }
    }
}

fn name<T, E: std::fmt::Display>(parsed: Result<T, E>) -> T {
    parsed.unwrap_or_else(|e| unreachable!("{e}"))
}

fn dataset() -> DatasetInfo {
    DatasetInfo {
        name: name(DatasetName::parse("digits")),
        sample: SampleShape::Classified { shape: vec![1, 8, 8], classes: 10 },
        rows: 1_437,
        metadata_key: "datasets/digits/metadata.json".to_owned(),
        metadata_digest: Digest([1; 32]),
    }
}

fn spec(setup: &Setup, job: &JobSetup) -> JobSpec {
    let mut document = json!({
        "name": "world", "model": {"kind": "cnn"}, "dataset": "digits",
        "workers": {"min": job.min, "max": job.max}, "batch_size": 1, "steps": job.steps,
        "checkpoint": {"every_steps": job.checkpoint_every, "keep": 2}, "max_restarts": setup.max_restarts,
        "priority": job.priority,
    });
    if setup.slow_type.is_some() && job.profile_s.is_none() {
        document["types"] = json!("any");
    }
    if let Some(patience_ms) = setup.store_patience_ms {
        document["store_patience_ms"] = json!(patience_ms);
    }
    if let Some(steps) = job.compare_every {
        document["compare_every_steps"] = json!(steps);
    }
    if let Some(number) = job.tenant {
        document["tenant"] = json!(tenant_name(number));
    }
    if job.without_determinism {
        document["determinism"] = json!("none");
        // As long as gradients have where no job says more; by default each has ten minutes.
        document["unit_timeout_ms"] = json!(UNIT_STALL_MS_MIN);
    }
    if let Some(most) = job.stride_max {
        document["batch_range"] = json!({"max": most, "learning_rate_rule": "linear"});
    }
    if let Some(seconds) = job.profile_s {
        document["profile"] = json!({"seconds": seconds});
    }
    match JobSpec::parse(&document) {
        Ok(spec) => spec,
        Err(problems) => unreachable!("{problems:?}"),
    }
}

fn fleet_name(place: Place) -> FleetId {
    name(FleetId::parse(&format!("fleet-{}", place - 1)))
}

/// What a tenant is called, by its number.
fn tenant_name(number: u16) -> TenantId {
    name(TenantId::parse(&format!("tenant-{number}")))
}

impl World {
    /// What the world begins with: a dataset, fleets, jobs.
    pub fn open(&mut self) {
        self.command(Command::RegisterDataset { dataset: dataset() });
        for place in self.schedule.setup.fleet_places() {
            self.declare(place, u16::MAX);
        }
        for index in 0..self.people.jobs.len() {
            match self.schedule.setup.jobs[index].submitted_ms {
                0 => self.submit(index),
                at_ms => self.bus.put(At(0).plus_ms(at_ms), Event::Submit(index)),
            }
        }
    }

    /// A user submits a job.
    pub fn submit(&mut self, index: usize) {
        let (job, spec) =
            (self.people.jobs[index].clone(), spec(&self.schedule.setup, &self.schedule.setup.jobs[index]));
        self.command(Command::SubmitJob { job, spec: Box::new(spec), body_digest: Digest([2; 32]) });
    }

    /// A fleet says which slots are its own. The next signal lends all that it does not need, whatever was taken back before.
    pub fn declare(&mut self, place: Place, slots: u16) {
        let (offers, reclaim_deadline_ms) = (OfferMode::ByDemand, self.schedule.setup.reclaim_deadline_ms);
        let slots = self.slots_at(place).into_iter().take(usize::from(slots)).collect();
        self.command_of(place, Command::PutFleet { fleet: fleet_name(place), slots, offers, reclaim_deadline_ms });
    }

    /// An operator says what a tenant has guaranteed.
    pub fn set_quota(&mut self, tenant: u16, quota_slots: Option<u32>) {
        self.command(Command::SetQuota { tenant: tenant_name(tenant), quota_slots });
    }

    fn slots_at(&self, place: Place) -> Vec<SlotId> {
        let setup = &self.schedule.setup;
        let of = |place| (0..setup.slots_at(place)).map(move |index| SlotId { server: Self::server_at(place), index });
        setup.places_of(place).flat_map(of).collect()
    }

    /// A fleet gives a command.
    fn command_of(&mut self, place: Place, command: Command) {
        let order = match command {
            Command::OfferSlots { .. } | Command::ReleaseFleet { .. } => Order::Lends,
            Command::PutFleet { .. } => Order::Declares,
            _ => Order::Takes,
        };
        let overtakes =
            self.people.fleets.get_mut(&place).filter(|fleet| order == Order::Declares && fleet.open.is_some());
        // Its signal may count after its declaration, and then lends all that is not needed.
        overtakes.into_iter().for_each(|fleet| fleet.hands.clear());
        self.people.open.insert(self.next_command(), (place, order));
        self.command(command);
    }

    /// The id of the command that is given next.
    fn next_command(&self) -> CommandId {
        name(CommandId::parse(&format!("c{}", self.people.commands + 1)))
    }

    /// Gives a command.
    pub fn command(&mut self, command: Command) {
        let id = self.next_command();
        self.people.commands += 1;
        let at = self.control_clock().wall(self.now());
        let record =
            CommandRecord { id, tenant: name(TenantId::parse("local")), at, command, trace: None, expected: None };
        self.ask(Wish::Command(Box::new(record)));
    }

    /// A fleet says how many of its slots it needs, unless it waits for one that it takes back. One that needs fewer vouches for all that it
    /// does not need; one that needs as many, for what went back to it early, which it has not asked its agent for.
    pub fn demand(&mut self, place: Place, needed: u32) -> bool {
        let at = self.control_clock().wall(self.now());
        let waits = self.people.asked.values().any(|asked| asked.place == place);
        // What is said of the time after the healing would keep slots from jobs that are promised to go on.
        let foresees = self.schedule.setup.foresees && self.healed_at.is_none();
        let slots = self.slots_at(place).len() as u64;
        let Some(fleet) = self.people.fleets.get_mut(&place).filter(|_| !waits) else { return false };
        fleet.sequence += 1;
        let declares = self.people.open.values().any(|open| *open == (place, Order::Declares));
        let redeclared = std::mem::take(&mut fleet.redeclared) || declares;
        if needed < fleet.needed || redeclared {
            fleet.hands.clear();
        }
        let forecast = foresees.then(|| foreseen(place, fleet.sequence, slots));
        fleet.foresees = forecast.is_some();
        (fleet.needed, fleet.open) = (needed, Some(fleet.sequence));
        let needs = Needs { demand: Demand::Needed(needed), forecast, slo: None };
        let signal = DemandSignal::new(fleet_name(place), fleet.sequence, at, needs);
        self.ask(Wish::Signal { place, signal });
        true
    }

    /// A fleet that needs nothing declares all its slots and lends what it took back, one question at a time.
    pub fn lend_again(&mut self, place: Place) {
        let waits = self.people.asked.values().any(|asked| asked.place == place)
            || self.people.open.values().any(|(of, _)| *of == place);
        let is_whole = self.slots_at(place).iter().all(|slot| self.log.truth.slot(slot).is_some());
        let Some(fleet) = self.people.fleets.get_mut(&place).filter(|fleet| !waits && fleet.open.is_none()) else {
            return;
        };
        if fleet.needed > 0 || fleet.foresees {
            self.demand(place, 0);
            return;
        }
        if !is_whole {
            return self.declare(place, u16::MAX);
        }
        if self.log.truth.fleet(&fleet_name(place)).is_some_and(|fleet| fleet.recalled.is_some()) {
            // Whoever releases vouches for all that is not needed.
            fleet.hands.clear();
            self.command_of(place, Command::ReleaseFleet { fleet: fleet_name(place) });
            return;
        }
        let unoffered = |slot: &SlotId| self.log.truth.slot(slot).is_some_and(|s| s.state == SlotState::Unoffered);
        let slots: Vec<SlotId> = self.slots_at(place).into_iter().filter(unoffered).collect();
        if slots.is_empty() {
            return;
        }
        if let Some(fleet) = self.people.fleets.get_mut(&place) {
            fleet.hands.retain(|index| !slots.iter().any(|slot| slot.index == *index));
        }
        self.command_of(place, Command::OfferSlots { fleet: fleet_name(place), slots });
    }

    /// A fleet takes all its slots back: by name, or it is recalled; every other time.
    pub fn red_button(&mut self, place: Place) {
        let (fleet, slots) = (fleet_name(place), self.slots_at(place));
        let command = match self.people.commands % 2 {
            0 => Command::ReclaimSlots { fleet, slots },
            _ => Command::RecallFleet { fleet, slots: Recall::All },
        };
        self.command_of(place, command);
    }

    /// Asks, for the first time or again.
    pub fn ask(&mut self, wish: Wish) {
        let (question, record) = match &wish {
            Wish::Command(record) => (Question::Command(record.id.clone()), to_bytes(&**record)),
            Wish::Signal { signal, .. } => {
                // As the gateway does, by the fleet as it is decided: of two declarations under way at once either may be the last.
                let declared = self.log.truth.fleet(&signal.fleet).map_or(u32::MAX, |fleet| fleet.slots.len() as u32);
                let needed = signal.demand.needed().min(declared);
                let question = Question::Signal { fleet: signal.fleet.clone(), sequence: signal.sequence, needed };
                (question, to_bytes(signal))
            }
        };
        self.call(question, record, wish);
    }

    /// A call has ended.
    pub fn is_answered(&mut self, wish: Wish, outcome: &Outcome) {
        let decided = matches!(outcome, Outcome::Decided(_));
        if let Wish::Command(record) = &wish
            && decided
        {
            let declared = self.people.open.remove(&record.id).filter(|(_, order)| *order == Order::Declares);
            let fleet = declared.and_then(|(place, _)| self.people.fleets.get_mut(&place));
            fleet.into_iter().for_each(|fleet| fleet.redeclared = true);
        }
        if let Wish::Signal { place, signal } = &wish
            && let Some(fleet) = self.people.fleets.get_mut(place)
        {
            if fleet.sequence > signal.sequence {
                return;
            }
            // A signal may be older than its fleet; then it has to be said again, as a new one.
            let unremarked = matches!(outcome, Outcome::Decided(gateway_call::Answer::Unremarked));
            if unremarked {
                let needed = fleet.needed;
                self.demand(*place, needed);
                return;
            }
            if decided {
                fleet.open = None;
            }
        }
        if !decided {
            self.bus.put(self.bus.now().plus_us(ASK_AGAIN_US), Event::AskAgain(wish));
        }
    }

    /// A fleet takes slots back at the agent. Not while a signal or a command of its own is undecided that may lend them.
    pub fn take_back(&mut self, place: Place, slots: BTreeSet<u16>, within_ms: u64) -> bool {
        let lends = self.people.open.values().any(|open| *open == (place, Order::Lends));
        let open = lends || self.people.fleets.get(&place).is_none_or(|fleet| fleet.open.is_some());
        let Some(agent) = self.hosts[usize::from(place)].agent.filter(|_| !open) else { return false };
        let now = self.now();
        let request = self.people.requests;
        self.people.requests += 1;
        let until = now.plus_ms(within_ms + TAKE_BACK_GRACE_MS);
        self.people.taken.extend(slots.iter().map(|slot| (place, *slot)));
        let paused_at = (!self.runs(agent)).then_some(now);
        self.people.asked.insert(request, Asked { agent, place, slots: slots.clone(), until, paused_at });
        self.send_in(500, agent, Input::Agent(In::TakeBack { request, slots, within_ms }));
        true
    }

    /// An agent's process is stopped, or goes on.
    pub fn note_agent_stops(&mut self, pid: Pid, stops: bool) {
        let now = self.now();
        for asked in self.people.asked.values_mut().filter(|asked| asked.agent == pid) {
            if stops { asked.pause(now) } else { asked.go_on(now) }
        }
    }

    /// A server has an agent again: whoever still wants slots back asks that one, with the time that is left.
    pub fn ask_new_agent(&mut self, place: Place, pid: Pid) {
        let now = self.now();
        let mut again = Vec::new();
        for (request, asked) in self.people.asked.iter_mut().filter(|(_, asked)| asked.place == place) {
            asked.go_on(now);
            asked.agent = pid;
            let within_ms = asked.until.since_ms(now).saturating_sub(TAKE_BACK_GRACE_MS);
            again.push(In::TakeBack { request: *request, slots: asked.slots.clone(), within_ms });
        }
        for input in again {
            self.send_in(500, pid, Input::Agent(input));
        }
    }

    /// An agent answers a fleet.
    pub fn fleet_is_told(&mut self, pid: Pid, request: u64, answer: Answer) {
        let Some(asked) = self.people.asked.remove(&request) else { return };
        let Answer::Freed(freed) = answer else { return };
        for slot in freed {
            if let Some(other) = self.executor_or_guest_on(asked.place, slot.slot.index) {
                self.found(
                    "a slot that its fleet was told is free is free",
                    format!("{} of {pid:?}: {other:?}", slot.slot),
                );
            }
            if let Some(fleet) = self.people.fleets.get_mut(&asked.place) {
                fleet.hands.insert(slot.slot.index);
            }
        }
    }

    /// An agent's process has ended: every other one who asked asks the next agent, and the others leave it at that.
    pub fn fleet_is_hung_up_on(&mut self, pid: Pid) {
        let now = self.now();
        self.people.asked.retain(|request, asked| asked.agent != pid || request % 2 == 0);
        self.people.asked.values_mut().filter(|asked| asked.agent == pid).for_each(|asked| asked.pause(now));
    }

    /// The executor that is on a slot, or on the guest slot beside it.
    #[must_use]
    pub fn executor_or_guest_on(&self, place: Place, slot: u16) -> Option<Pid> {
        self.executor_on(place, slot).or_else(|| self.executor_on(place, slot | GUEST_INDEX_MIN))
    }

    /// The executor that is on a slot.
    #[must_use]
    pub fn executor_on(&self, place: Place, slot: u16) -> Option<Pid> {
        let on = |pid: &Pid| self.executor(*pid).is_some_and(|executor| executor.slot == slot);
        self.processes.iter().find(|(pid, process)| process.place == place && on(pid)).map(|(pid, _)| *pid)
    }
}
