//! Orders and an agent whose inputs and outputs a test writes out.

use events_schema::control::ToExecutor;
use events_schema::device::SlotDevice;
use events_schema::orders::{AgentMessage, ControllerMessage, ExecutorOrder, Orders};
use events_schema::report::Report;
use events_schema::{Digest, Offset, ServerId, Term, TimeMs};
use std::collections::BTreeSet;
use workers_agent_core::{Agent, Config, ExecutorWord, In, LinkWord, Moment, Out, ProcessEnd, SlotState};

#[path = "../../src/fixtures.rs"]
mod fixtures;
pub(crate) use fixtures::order;

pub const LEASE_MS: u64 = 600_000;

pub fn config(slots: u16) -> Config {
    Config {
        server: ServerId::parse("local").unwrap(),
        slots,
        guests: false,
        processors_milli: 1_000,
        class: Digest::of(b"class"),
        devices: Vec::new(),
        slot_type: None,
        address: "http://127.0.0.1:1".to_owned(),
        far_end: None,
        lease_ms: LEASE_MS,
    }
}

/// An order that says that its executor has to leave.
pub fn leaving(mut order: ExecutorOrder, by: u64, in_ms: u64) -> ExecutorOrder {
    (order.leave_by, order.leave_in_ms) = (Some(TimeMs(by)), Some(in_ms));
    order
}

/// An agent, a clock, and a controller that says what the test says.
pub struct Play {
    pub agent: Agent,
    pub now: u64,
    pub term: u64,
    pub position: u64,
    link: u64,
}

impl Play {
    pub fn new(slots: u16) -> Self {
        Self::restarted(slots, &BTreeSet::new())
    }

    pub fn restarted(slots: u16, taken_back: &BTreeSet<u16>) -> Self {
        Self::of(config(slots), taken_back)
    }

    fn of(config: Config, taken_back: &BTreeSet<u16>) -> Self {
        let now = 1_000;
        let agent = Agent::new(moment(now), config, 7, taken_back);
        Self { agent, now, term: 1, position: 1, link: 0 }
    }

    /// An agent that has joined, whose slots have guest slots, and these devices.
    pub fn shared(slots: u16, devices: Vec<SlotDevice>) -> Self {
        let mut play = Self::of(Config { guests: true, devices, ..config(slots) }, &BTreeSet::new());
        play.connect();
        play.taken(1);
        play
    }

    /// An agent whose link is open and whose first report was taken.
    pub fn joined(slots: u16) -> Self {
        let mut play = Self::new(slots);
        play.connect();
        play.taken(1);
        play
    }

    /// Lets something happen; what is sent is taken at once, and a write is durable at once.
    pub fn happens(&mut self, input: In) -> Vec<Out> {
        let mut all = self.alone(input);
        let mut seen = 0;
        while let Some(out) = all.get(seen).cloned() {
            seen += 1;
            match out {
                Out::Send { link, .. } => all.extend(self.alone(In::Link { link, word: LinkWord::Sent })),
                Out::Keep { write, .. } => all.extend(self.alone(In::Kept { write, durable: true })),
                _ => {}
            }
        }
        all
    }

    /// The same, with nobody doing anything about what comes out.
    pub fn alone(&mut self, input: In) -> Vec<Out> {
        let mut outs = self.agent.handle(moment(self.now), input);
        outs.retain(|out| !matches!(out, Out::WakeAt { .. }));
        outs
    }

    /// Time passes and the clock rings, once. The link stays, but nobody on it renews a lease.
    pub fn passes(&mut self, ms: u64) -> Vec<Out> {
        self.now += ms;
        let mut outs = self.link(LinkWord::Said(ControllerMessage::Heartbeat { term: Term(0) }));
        outs.extend(self.happens(In::Wake));
        outs
    }

    pub fn connect(&mut self) -> Vec<Out> {
        let outs = self.happens(In::Wake);
        let link = outs.iter().find_map(|out| if let Out::Connect { link } = out { Some(*link) } else { None });
        self.link = link.unwrap();
        self.happens(In::Link { link: self.link, word: LinkWord::Up })
    }

    pub fn link(&mut self, word: LinkWord) -> Vec<Out> {
        self.happens(In::Link { link: self.link, word })
    }

    pub fn taken(&mut self, through: u64) -> Vec<Out> {
        self.link(LinkWord::Said(ControllerMessage::ReportsTaken { through }))
    }

    pub fn orders(&mut self, executors: &[ExecutorOrder]) -> Vec<Out> {
        self.position += 1;
        let (term, position) = (Term(self.term), Offset(self.position));
        self.link(LinkWord::Said(ControllerMessage::Orders(Orders { term, position, executors: executors.to_vec() })))
    }

    pub fn executor(&mut self, order: &ExecutorOrder, word: ExecutorWord) -> Vec<Out> {
        self.happens(In::Executor { slot: order.slot.index, executor: order.executor.clone(), word })
    }

    pub fn exits(&mut self, order: &ExecutorOrder) -> Vec<Out> {
        self.executor(order, ExecutorWord::Ended(ProcessEnd::Exited(0)))
    }

    pub fn take_back(&mut self, request: u64, slots: &[u16], within_ms: u64) -> Vec<Out> {
        self.happens(In::TakeBack { request, slots: slots.iter().copied().collect(), within_ms })
    }

    pub fn states(&self) -> Vec<SlotState> {
        self.agent.slots().map(|slot| slot.state).collect()
    }
}

pub fn moment(ms: u64) -> Moment {
    Moment { ms, wall: TimeMs(1_770_000_000_000 + ms) }
}

pub fn started(outs: &[Out]) -> Vec<String> {
    let name = |out: &Out| if let Out::Start { executor, .. } = out { Some(executor.to_string()) } else { None };
    outs.iter().filter_map(name).collect()
}

pub fn killed(outs: &[Out]) -> Vec<u16> {
    outs.iter().filter_map(|out| if let Out::Kill { slot, .. } = out { Some(*slot) } else { None }).collect()
}

pub fn told(outs: &[Out]) -> Vec<ToExecutor> {
    outs.iter().filter_map(|out| if let Out::Tell { frame, .. } = out { Some(frame.clone()) } else { None }).collect()
}

pub fn reports(outs: &[Out]) -> Vec<(u64, Report)> {
    let report = |out: &Out| match out {
        Out::Send { message, .. } => match message.as_ref() {
            AgentMessage::Report { number, report, .. } => Some((*number, report.clone())),
            _ => None,
        },
        _ => None,
    };
    outs.iter().filter_map(report).collect()
}
