//! What stands around the core in the scenarios: agents that carry out orders, executors that get ready, train, leave and die, reports
//! that wait. A script: nothing happens that a scenario does not ask for, and nothing goes wrong by itself. After every input all
//! invariants are checked and the facts kept.

mod agents;
mod executors;

use controller_core::invariants::{self, Violation};
use controller_core::{Input, Policy, State, decide};
use events_schema::command::{Command, CommandRecord, Demand, DemandSignal, Expected, Needs, OfferMode};
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::fact::Fact;
use events_schema::job::JobSpec;
use events_schema::orders::ExecutorOrder;
use events_schema::report::{Report, ReportRecord};
use events_schema::slot_type::SlotType;
use events_schema::{
    Cell, CommandId, DatasetName, Digest, ExecutorId, FleetId, Generation, JobId, ServerId, SlotId, TenantId, TimeMs,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Steps a job makes in one [`World::train`].
const STEPS_AT_ONCE: u64 = 10;

/// The brain, the agents and what runs on them.
pub struct World {
    /// What the brain knows.
    pub state: State,
    /// The time everybody reads.
    pub at: TimeMs,
    /// Every input's facts, for replay.
    pub log: Vec<(TimeMs, Vec<Fact>)>,
    /// Broken invariants; empty as long as all is well.
    pub violations: Vec<Violation>,
    /// What plans from now on.
    pub policy: Box<dyn Policy>,
    agents: BTreeMap<ServerId, Agent>,
    groups: BTreeMap<JobId, Group>,
    /// Steps of written checkpoints, by manifest key.
    store: BTreeMap<String, u64>,
    /// How much of their slots hosts use, by the slot: nothing, if nothing else is said, or none where nobody measures it.
    pub busy: BTreeMap<SlotId, Option<u8>>,
    /// What executors say that a gradient has.
    pub gradient_bytes: Option<u64>,
    commands: u64,
    sequence: u64,
}

#[derive(Default)]
struct Agent {
    up: bool,
    incarnation: u64,
    reports: u64,
    slots: u16,
    guests: bool,
    slot_type: Option<SlotType>,
    /// What its executors say that the bits of a job's own code depend on, if anything.
    class_of_code: Option<Digest>,
    outbox: VecDeque<ReportRecord>,
    processes: BTreeMap<ExecutorId, Process>,
}

struct Process {
    slot: SlotId,
    ready: bool,
    order: ExecutorOrder,
    /// Has held the replica of its group.
    replica: bool,
    /// The newest recovery it has heard of: it steps in no older generation any more.
    stopped_for: Option<Generation>,
    /// Its agent hears it, its peers do not.
    cut_off: bool,
    /// It is cut off by its links, and the others know: they name it when a round cannot link it.
    unlinked: bool,
}

/// What is really going on among the members of a job, whatever the brain thinks.
struct Group {
    generation: Generation,
    members: BTreeSet<ExecutorId>,
    leader: ExecutorId,
    step: u64,
    parked: bool,
    done: bool,
    /// A link between members was lost: the step in flight never ends.
    broken: bool,
}

impl World {
    /// A world without servers.
    #[must_use]
    pub fn new(policy: Box<dyn Policy>) -> Self {
        Self {
            state: State::new(Cell(0)),
            at: TimeMs(1_000),
            log: Vec::new(),
            violations: Vec::new(),
            policy,
            agents: BTreeMap::new(),
            groups: BTreeMap::new(),
            store: BTreeMap::new(),
            busy: BTreeMap::new(),
            gradient_bytes: None,
            commands: 0,
            sequence: 0,
        }
    }

    /// One server `local` whose slots all belong to the fleet `local` and are offered, and a dataset `digits`.
    #[must_use]
    pub fn local(policy: Box<dyn Policy>, slots: u16) -> Self {
        let mut world = Self::new(policy);
        world.start_agent("local", slots);
        world.deliver_all();
        world.register(dataset("digits"));
        world.put_fleet("local", "local", slots, 2_000);
        world.demand("local", 0);
        world
    }

    /// Takes a report that no agent of this world made.
    pub fn foreign_report(&mut self, server: ServerId, incarnation: u64, report: Report) -> Vec<Fact> {
        let at = self.at;
        self.input(&Input::Report(ReportRecord {
            server,
            incarnation,
            number: 0,
            at,
            report,
            trace: None,
            after: None,
        }))
    }

    /// Decides one input, folds its facts and checks everything. Gives the facts back.
    pub fn input(&mut self, input: &Input) -> Vec<Fact> {
        let facts = decide(&self.state, self.at, input, self.policy.as_ref());
        let before = self.state.clone();
        for fact in &facts {
            self.state.apply(self.at, fact);
        }
        self.violations.extend(invariants::check(&self.state));
        self.violations.extend(invariants::check_step(&before, &self.state));
        self.violations.extend(invariants::check_changes(&before, &self.state));
        if !facts.is_empty() {
            self.log.push((self.at, facts.clone()));
        }
        facts
    }

    /// Gives a command of the tenant `local`; its facts.
    pub fn command(&mut self, command: Command) -> Vec<Fact> {
        self.command_if(None, command)
    }

    /// Gives a command that holds only for what it expects.
    pub fn command_if(&mut self, expected: Option<Expected>, command: Command) -> Vec<Fact> {
        self.commands += 1;
        let id = CommandId::parse(&format!("c{}", self.commands)).unwrap_or_else(|e| unreachable!("{e}"));
        self.input(&Input::Command(CommandRecord {
            id,
            tenant: name("local", TenantId::parse),
            at: self.at,
            command,
            trace: None,
            expected,
        }))
    }

    /// Registers a dataset.
    pub fn register(&mut self, dataset: DatasetInfo) -> Vec<Fact> {
        self.command(Command::RegisterDataset { dataset })
    }

    /// Submits a job; its id.
    pub fn submit(&mut self, spec: JobSpec) -> JobId {
        let job = name(&format!("job-{}", self.commands), JobId::parse);
        self.command(Command::SubmitJob { job: job.clone(), spec: Box::new(spec), body_digest: Digest::of(b"body") });
        job
    }

    /// Declares a fleet with the first slots of a server, offered by demand.
    pub fn put_fleet(&mut self, fleet: &str, server: &str, slots: u16, reclaim_deadline_ms: u64) -> Vec<Fact> {
        let slots = (0..slots).map(|index| slot(server, index)).collect();
        self.command(Command::PutFleet {
            fleet: name(fleet, FleetId::parse),
            slots,
            offers: OfferMode::ByDemand,
            reclaim_deadline_ms,
        })
    }

    /// Publishes a fleet's need.
    pub fn demand(&mut self, fleet: &str, needed: u32) -> Vec<Fact> {
        self.needs(fleet, Demand::Needed(needed).into())
    }

    /// Publishes what a fleet says of its needs.
    pub fn needs(&mut self, fleet: &str, needs: Needs) -> Vec<Fact> {
        self.sequence += 1;
        let signal = DemandSignal::new(name(fleet, FleetId::parse), self.sequence, self.at, needs);
        self.input(&Input::Demand(signal))
    }

    /// Lets time pass: members miss each other, agents kill what is overdue, then the brain gets a tick.
    pub fn pass(&mut self, ms: u64) -> Vec<Fact> {
        self.at = self.at.plus_ms(ms);
        self.job_ids().iter().for_each(|job| self.miss_members(job));
        let servers: Vec<ServerId> = self.agents.keys().cloned().collect();
        for server in servers {
            self.kill_overdue(&server);
        }
        self.input(&Input::Tick)
    }

    /// All waiting reports arrive, server by server.
    pub fn deliver_all(&mut self) {
        for server in self.servers() {
            while self.deliver_report(&server) {}
        }
    }

    /// Everything that can happen without a fault or a further step of training happens, until nothing more does.
    pub fn run(&mut self) {
        for _ in 0..200 {
            let servers = self.servers();
            let mut changed = false;
            for server in &servers {
                changed |= self.deliver_orders(server);
                self.kill_overdue(server);
            }
            for id in self.processes() {
                changed |= self.get_ready(&id);
            }
            for job in self.job_ids() {
                changed |= self.activate(&job);
                changed |= self.supply(&job);
                let parks = self.groups.get(&job).is_some_and(|group| !group.parked)
                    && self.process(&self.groups[&job].leader).is_some_and(|process| process.order.job.park);
                changed |= parks && self.train(&job);
            }
            for server in &servers {
                while self.deliver_report(server) {
                    changed = true;
                }
            }
            changed |= self.measure_hosts();
            if !changed {
                assert_eq!(
                    invariants::overdue(&self.state, self.at, 0).next(),
                    None,
                    "all agents have said what they know"
                );
                return;
            }
        }
        unreachable!("the world does not come to rest");
    }

    /// Runs and trains, a second at a time, until every job has ended. Whether they all did within so many seconds.
    pub fn run_to_end(&mut self, seconds: u64) -> bool {
        for _ in 0..seconds {
            self.run();
            for job in self.job_ids() {
                self.train(&job);
            }
            self.run();
            if self.state.live_len() == 0 {
                return true;
            }
            self.pass(1_000);
        }
        false
    }

    /// Jobs, in order.
    #[must_use]
    pub fn job_ids(&self) -> Vec<JobId> {
        self.state.jobs().map(|(id, _)| id.clone()).collect()
    }
}

fn name<T, E: std::fmt::Display>(text: &str, parse: impl Fn(&str) -> Result<T, E>) -> T {
    parse(text).unwrap_or_else(|e| unreachable!("{e}"))
}

/// A slot by its server's name.
#[must_use]
pub fn slot(server: &str, index: u16) -> SlotId {
    SlotId { server: name(server, ServerId::parse), index }
}

/// A dataset of small classified images.
#[must_use]
pub fn dataset(text: &str) -> DatasetInfo {
    DatasetInfo {
        name: name(text, DatasetName::parse),
        sample: SampleShape::Classified { shape: vec![1, 8, 8], classes: 10 },
        rows: 1_437,
        metadata_key: format!("datasets/{text}/metadata.json"),
        metadata_digest: Digest::of(text.as_bytes()),
    }
}
