//! The world: hosts and the processes on them, and what goes on between. Holds no decisions of Ebb: those are in the real machines, one to a
//! process. An event is taken from the bus, given to the process it is for, and what its machine asks for is done: by `cell.rs`, `agent.rs`,
//! `executor.rs` and `gateway.rs`, through `net.rs`, `log.rs` and `store.rs`.

use crate::agent::AgentProcess;
use crate::bus::Bus;
use crate::cell::CellProcess;
use crate::checks::Checks;
use crate::executor::Executor;
use crate::gateway::Gateway;
use crate::log::Log;
use crate::mutants::Mutants;
use crate::net::{ConnId, Net};
use crate::numbers::Element;
use crate::people::People;
use crate::random::Random;
use crate::schedule::{Place, Schedule};
use crate::store::Store;
use crate::time::{At, Clock};
use controller_core::Policy;
use events_schema::batch::{Batch, InputStream};
use events_schema::control::{FromExecutor, ToExecutor};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The controller's host.
pub const CONTROL: Place = 0;

/// A process, of all that there ever were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pid(pub u64);

impl std::fmt::Display for Pid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}", self.0)
    }
}

/// What is going to happen.
#[derive(Debug)]
pub enum Event {
    /// Something for a process. Lost if that has ended; kept while it is stopped.
    To(Pid, Input),
    /// The time that a process asked for; only its newest wish counts.
    Wake(Pid, u64),
    /// The first packet of one direction of a connection is there.
    Arrive(ConnId, usize),
    /// A connection between executors is looked at: has it been silent for too long?
    Look(ConnId),
    /// An attempt to connect to an executor.
    Dial { from: Pid, to: Pid, place: Place, attempt: u32 },
    /// An append takes its place in the log.
    Land(crate::log::Append),
    /// The log answers.
    LogAnswer(crate::log::Asker, crate::log::Answer),
    /// The gateway's view of the log goes on.
    Tail,
    /// The time of a job has come.
    Submit(usize),
    /// Somebody asks again.
    AskAgain(crate::people::Wish),
    /// A call of a client is woken.
    CallWake(u64, u64),
    /// A process has been killed, or has ended, and is reaped.
    Reap(Pid),
    /// Something begins again that was down.
    Begin(Begin),
    /// A fault is over.
    Over(Over),
    /// The time of an entry of the schedule has come.
    Entry(usize),
    /// An entry of the schedule happens.
    Act(usize),
    /// An entry that comes again and again happens once more.
    Flap(usize),
    /// Controllers sweep the store.
    Sweep,
    /// One of them deletes what it found.
    SweepUp(Vec<String>),
    /// The core becomes healthy.
    Heal,
    /// The checks look around.
    Check,
}

/// What begins.
#[derive(Debug, Clone, Copy)]
pub enum Begin {
    Controller,
    Agent(Place),
}

/// What is over.
#[derive(Debug, Clone, Copy)]
pub enum Over {
    Stop(Pid),
    Cut(Place, Place),
    LogStall,
    /// An operator has repaired an input topic.
    Short(InputStream),
    Nothing,
}

/// Something for a process.
#[derive(Debug)]
pub enum Input {
    Cell(controller_cell::In),
    Agent(workers_agent_core::In),
    Member(workers_member::In<Vec<Element>>),
    /// From its agent.
    Frame(ToExecutor),
    Built,
    Alive,
    /// A write or read of the store has ended.
    Stored(crate::store::Job),
}

/// One process.
#[derive(Debug)]
pub struct Process {
    pub place: Place,
    pub stopped: bool,
    /// What came while it was stopped.
    pub held: VecDeque<Input>,
    /// Number of its newest wish to be woken.
    pub wake: u64,
    /// Whether that came while it was stopped.
    pub missed_wake: bool,
    pub body: Body,
}

/// What runs in a process.
#[derive(Debug)]
pub enum Body {
    Cell(Box<CellProcess>),
    Agent(Box<AgentProcess>),
    Executor(Box<Executor>),
}

/// One host.
#[derive(Debug)]
pub struct Host {
    pub clock: Clock,
    pub up: bool,
    /// Computing takes so many times longer.
    pub slow: u64,
    pub slow_until: At,
    pub disk_full_until: At,
    /// Slots that its agent wrote down as taken back.
    pub kept: BTreeSet<u16>,
    pub agent: Option<Pid>,
    /// When something last began or ended here that may keep its words from being heard.
    pub disturbed_at: At,
    /// The same of what lies between its agent and a controller: links of executors are not in it.
    pub heard_from: At,
}

/// All parts of one installation, what is between them, and the time.
pub struct World {
    pub schedule: Schedule,
    pub bus: Bus<Event>,
    pub random: Random,
    /// How much bulk messages overtake. Of its own, so that this changes nothing else that is drawn.
    pub overtaking: Random,
    pub hosts: Vec<Host>,
    pub processes: BTreeMap<Pid, Process>,
    pub pids: u64,
    /// The controller that agents and callers find.
    pub controller: Option<Pid>,
    pub net: Net,
    pub log: Log,
    pub store: Store,
    pub gateway: Gateway,
    pub people: People,
    pub checks: Checks,
    pub mutants: Mutants,
    /// What executors said that a mutant holds back.
    pub held_back: Vec<(Pid, FromExecutor)>,
    pub policy_panics: Arc<AtomicBool>,
    pub policy_panics_until: At,
    /// Set by the healing.
    pub healed_at: Option<At>,
    /// Entries of the schedule that wait for a phase.
    pub awaited: Vec<usize>,
    pub events: u64,
    /// What controllers and agents noted, for whoever looks at one run; nothing is kept for others.
    pub notes: Option<Vec<String>>,
    /// Batches that counted, in the same way.
    pub counted: Option<Vec<Batch>>,
    /// Who plans instead of the schedule's policy.
    pub planner: Option<Arc<dyn Policy>>,
}

impl World {
    /// A world in which nothing has happened.
    #[must_use]
    pub fn new(schedule: Schedule, mutants: Mutants) -> Self {
        Self::planned_by(schedule, mutants, None)
    }

    /// The same, where somebody plans instead of the schedule's policy, if anybody is given.
    #[must_use]
    pub fn planned_by(schedule: Schedule, mutants: Mutants, planner: Option<Arc<dyn Policy>>) -> Self {
        let host = |clock: &crate::schedule::ClockSetup| Host {
            clock: Clock { drift_ppm: clock.drift_ppm, ahead_ms: clock.ahead_ms },
            up: true,
            slow: 1,
            slow_until: At(0),
            disk_full_until: At(0),
            kept: BTreeSet::new(),
            agent: None,
            disturbed_at: At(0),
            heard_from: At(0),
        };
        let mut world = Self {
            bus: Bus::new(),
            random: Random::new(schedule.seed),
            overtaking: Random::new(!schedule.seed),
            hosts: schedule.setup.clocks.iter().map(host).collect(),
            processes: BTreeMap::new(),
            pids: 0,
            controller: None,
            net: Net::default(),
            log: Log::default(),
            store: Store::default(),
            gateway: Gateway::default(),
            people: People::new(&schedule),
            checks: Checks::new(&schedule),
            mutants,
            held_back: Vec::new(),
            policy_panics: Arc::new(AtomicBool::new(false)),
            policy_panics_until: At(0),
            healed_at: None,
            awaited: Vec::new(),
            events: 0,
            notes: None,
            counted: None,
            planner,
            schedule,
        };
        world.begin_controller();
        for place in 1..=world.schedule.setup.servers {
            world.begin_agent(place);
        }
        world.open();
        for (index, entry) in world.schedule.entries.iter().enumerate() {
            world.bus.put(At(0).plus_ms(entry.at_ms), Event::Entry(index));
        }
        world.bus.put(At(0).plus_ms(world.schedule.heal_at_ms), Event::Heal);
        world.bus.put(At(0).plus_ms(crate::checks::LOOK_MS), Event::Check);
        world.next_sweep();
        world
    }

    /// True time.
    #[must_use]
    pub fn now(&self) -> At {
        self.bus.now()
    }

    /// The next event happens. `false` when there is none.
    pub fn turn(&mut self) -> bool {
        let Some(event) = self.bus.take() else { return false };
        self.events += 1;
        match event {
            Event::To(pid, input) => self.give(pid, input),
            Event::Wake(pid, number) => self.wake(pid, number),
            Event::Arrive(conn, direction) => self.arrive(conn, direction),
            Event::Look(conn) => self.look_at_link(conn),
            Event::Dial { from, to, place, attempt } => self.dial(from, to, place, attempt),
            Event::Land(append) => self.land(append),
            Event::LogAnswer(asker, answer) => self.log_answers(asker, answer),
            Event::Tail => self.tail(),
            Event::Submit(index) => self.submit(index),
            Event::AskAgain(wish) => self.ask(wish),
            Event::CallWake(call, number) => self.wake_call(call, number),
            Event::Reap(pid) => self.reap(pid),
            // Whoever starts it again does so where none runs; a rival is another matter.
            Event::Begin(Begin::Controller) if self.controller.is_some() => {}
            Event::Begin(Begin::Controller) => self.begin_controller(),
            Event::Begin(Begin::Agent(place)) => self.begin_agent(place),
            Event::Over(over) => self.over(over),
            Event::Entry(index) => self.entry_is_due(index),
            // What found its phase just before the healing does not break what has become healthy.
            Event::Act(_) if self.healed_at.is_some() => {}
            Event::Act(index) => self.act(index),
            Event::Flap(index) => drop(self.flap(index)),
            Event::Sweep => self.sweep(),
            Event::SweepUp(keys) => self.sweep_up(keys),
            Event::Heal => {
                self.begin_calm();
                self.heal();
            }
            Event::Check => self.check(),
        }
        if !self.awaited.is_empty() {
            self.act_in_phase();
        }
        true
    }

    /// A new process on a host.
    pub fn spawn(&mut self, place: Place, body: Body) -> Pid {
        let pid = Pid(self.pids);
        self.pids += 1;
        if !matches!(body, Body::Executor(_)) {
            let host = &mut self.hosts[usize::from(place)];
            (host.disturbed_at, host.heard_from) = (self.bus.now(), self.bus.now());
        }
        let process = Process { place, stopped: false, held: VecDeque::new(), wake: 0, missed_wake: false, body };
        self.processes.insert(pid, process);
        pid
    }

    /// Whether a process is there and not stopped.
    #[must_use]
    pub fn runs(&self, pid: Pid) -> bool {
        self.processes.get(&pid).is_some_and(|process| !process.stopped)
    }

    /// The clock of a process's host.
    #[must_use]
    pub fn clock(&self, pid: Pid) -> Clock {
        let place = self.processes.get(&pid).map_or(CONTROL, |process| process.place);
        self.hosts[usize::from(place)].clock
    }

    /// Something for a process, a little later.
    pub fn send_in(&mut self, us: u64, pid: Pid, input: Input) {
        self.bus.put(self.bus.now().plus_us(us), Event::To(pid, input));
    }

    fn give(&mut self, pid: Pid, input: Input) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if process.stopped {
            return process.held.push_back(input);
        }
        match (&process.body, input) {
            (Body::Cell(_), Input::Cell(input)) => self.feed_cell(pid, input),
            (Body::Agent(_), Input::Agent(input)) => self.feed_agent(pid, input),
            (Body::Executor(_), input) => self.feed_executor(pid, input),
            _ => {}
        }
    }

    fn wake(&mut self, pid: Pid, number: u64) {
        let Some(process) = self.processes.get_mut(&pid).filter(|process| process.wake == number) else { return };
        if process.stopped {
            process.missed_wake = true;
            return;
        }
        self.wake_now(pid);
    }

    fn wake_now(&mut self, pid: Pid) {
        match self.processes.get(&pid).map(|process| &process.body) {
            Some(Body::Cell(_)) => self.feed_cell(pid, controller_cell::In::Wake),
            Some(Body::Agent(_)) => self.feed_agent(pid, workers_agent_core::In::Wake),
            Some(Body::Executor(_)) => self.feed_executor(pid, Input::Member(workers_member::In::Wake)),
            None => {}
        }
    }

    /// A process wants to be woken when its host's clock shows so many microseconds; that is its only wish now.
    pub fn wake_at(&mut self, pid: Pid, us: u64) {
        let at = self.clock(pid).when(us);
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.wake += 1;
        let number = process.wake;
        self.bus.put(at, Event::Wake(pid, number));
    }

    /// A process notes something.
    pub fn note(&mut self, pid: Pid, note: &impl std::fmt::Debug) {
        if let Some(notes) = &mut self.notes {
            notes.push(format!("{pid} notes {note:?}"));
        }
    }

    /// A process stops, or goes on.
    fn disturb_process(&mut self, pid: Pid) {
        let Some(process) = self.processes.get(&pid) else { return };
        let (host, now) = (&mut self.hosts[usize::from(process.place)], self.bus.now());
        host.disturbed_at = now;
        if !matches!(process.body, Body::Executor(_)) {
            host.heard_from = now;
        }
    }

    /// A process is suspended, as by SIGSTOP: it does nothing, and its links stay.
    pub fn stop(&mut self, pid: Pid) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.stopped = true;
        self.disturb_process(pid);
        self.note_agent_stops(pid, true);
    }

    /// SIGCONT: what came meanwhile is taken, in order.
    pub fn go_on(&mut self, pid: Pid) {
        let Some(process) = self.processes.get_mut(&pid).filter(|process| process.stopped) else { return };
        process.stopped = false;
        let (held, missed) = (std::mem::take(&mut process.held), std::mem::take(&mut process.missed_wake));
        self.disturb_process(pid);
        self.note_agent_stops(pid, false);
        for input in held {
            self.send_in(0, pid, input);
        }
        if missed {
            self.wake_now(pid);
        }
    }

    fn over(&mut self, over: Over) {
        match over {
            Over::Stop(pid) => self.go_on(pid),
            Over::Cut(from, to) => self.join(from, to),
            Over::LogStall => self.log_goes_on(),
            Over::Short(input) => self.repair(input),
            Over::Nothing => {}
        }
        let panics = self.now() < self.policy_panics_until;
        self.policy_panics.store(panics, std::sync::atomic::Ordering::Relaxed);
    }
}
