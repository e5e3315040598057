//! An agent among a controller, processes, a disk and a fleet, all of them disturbed. It checks after every happening what must always hold,
//! and panics with the name of what does not.

use crate::support::{config, moment, order};
use events_schema::control::{FromExecutor, ToExecutor};
use events_schema::orders::{AgentMessage, ControllerMessage, ExecutorOrder, Orders};
use events_schema::report::Report;
use events_schema::{ExecutorId, Offset, Term, TimeMs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use workers_agent_core::{
    Agent, Answer, Config, ExecutorWord, In, KillCause, LOOK_INTERVAL_MS, LinkEnd, LinkWord, Out, ProcessEnd,
    REAP_TIMEOUT_MS, SILENT_LOOKS_MAX,
};

pub const SLOTS: u16 = 3;

/// Longest time from a kill to the word that the process is reaped.
const REAP_MS: u64 = 300;

/// Longest time of a write.
const DISK_MS: u64 = 200;

/// A short lease, so that schedules meet its end.
const LEASE_MS: u64 = 6_000;

/// How often healthy processes and controllers say that they live.
const BEAT_MS: u64 = 500;

/// One disturbance, or one step of somebody's.
#[derive(Debug, Clone)]
pub enum Act {
    Pass(u64),
    // the controller's
    /// All that it takes to have an executor on a slot.
    Use(u16),
    Assign(u16),
    Leave(u16, u64),
    Stay(u16),
    Drop(u16),
    Read,
    Order,
    Acknowledge,
    Claim,
    Zombie,
    GiveUp,
    // the fleet's
    Offer(u16),
    TakeBack(BTreeSet<u16>, u64),
    Withdraw,
    // processes and machine
    Say(u16),
    Exit(u16),
    Hang(u16),
    Garbage(u16),
    Cut(bool),
    DiskFull(bool),
    Crash,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    /// As the controller knows it.
    offered: bool,
    executor: Option<(ExecutorId, Option<TimeMs>)>,
    /// The fleet was told that it is free, and has not offered it since.
    told_free: bool,
}

#[derive(Debug, Clone)]
struct Process {
    executor: ExecutorId,
    spoke: bool,
    hung_at: Option<u64>,
    killed: Option<KillCause>,
    ends_at: Option<u64>,
    /// Deadlines of direct take-backs and of orders that arrived.
    taken_by: Option<u64>,
    ordered_by: Option<u64>,
}

#[derive(Debug, Clone)]
struct Request {
    slots: BTreeSet<u16>,
    by: u64,
}

pub struct World {
    agent: Agent,
    inputs: VecDeque<In>,
    busy: bool,
    now: u64,
    wake_at: Option<u64>,
    beat_at: u64,
    // between agent and controller
    link: Option<u64>,
    cut: bool,
    last_sent: u64,
    inbox: VecDeque<(u64, u64, Report)>,
    // the controller
    term: u64,
    position: u64,
    incarnation: u64,
    through: u64,
    told_through: u64,
    slots: Vec<Slot>,
    executors: u32,
    // the machine
    processes: BTreeMap<u16, Process>,
    writing: Option<(u64, BTreeSet<u16>, u64)>,
    durable: BTreeSet<u16>,
    disk_full: bool,
    disk_failed_at: u64,
    crashes: u64,
    // the fleet
    requests: BTreeMap<u64, Request>,
    request: u64,
    pub freed: usize,
    pub starts: usize,
}

impl World {
    pub fn new() -> Self {
        let agent = Agent::new(moment(0), world_config(), 1, &BTreeSet::new());
        let slot = Slot { offered: true, ..Slot::default() };
        let mut world = Self {
            agent,
            inputs: VecDeque::new(),
            busy: false,
            now: 0,
            wake_at: None,
            beat_at: BEAT_MS,
            link: None,
            cut: false,
            last_sent: 0,
            inbox: VecDeque::new(),
            term: 1,
            position: 0,
            incarnation: 0,
            through: 0,
            told_through: 0,
            slots: vec![slot; usize::from(SLOTS)],
            executors: 0,
            processes: BTreeMap::new(),
            writing: None,
            durable: BTreeSet::new(),
            disk_full: false,
            disk_failed_at: 0,
            crashes: 0,
            requests: BTreeMap::new(),
            request: 0,
            freed: 0,
            starts: 0,
        };
        world.happens(In::Wake);
        world
    }

    pub fn act(&mut self, act: &Act) {
        match act {
            Act::Pass(ms) => self.pass(*ms),
            Act::Assign(slot) => {
                let executor = ExecutorId { job: "job-a".parse().unwrap(), number: self.executors };
                let place = &mut self.slots[usize::from(*slot)];
                if place.offered && place.executor.is_none() {
                    place.executor = Some((executor, None));
                    self.executors += 1;
                }
            }
            Act::Use(slot) => {
                for act in [Act::Read, Act::Offer(*slot), Act::Assign(*slot), Act::Order, Act::Say(*slot)] {
                    self.act(&act);
                }
            }
            Act::Leave(slot, ms) => self.leave(*slot, Some(TimeMs(self.now + ms))),
            Act::Stay(slot) => {
                if self.slots[usize::from(*slot)].offered {
                    self.leave(*slot, None);
                }
            }
            Act::Drop(slot) => self.slots[usize::from(*slot)].executor = None,
            Act::Read => self.read(),
            Act::Order => {
                self.acknowledge();
                self.order();
            }
            Act::Acknowledge => self.acknowledge(),
            Act::Claim => self.term += 1,
            Act::Zombie => self.zombie(),
            Act::GiveUp => self.down(LinkEnd::GivenUp),
            Act::Offer(slot) => {
                let is_awaited = self.requests.values().any(|request| request.slots.contains(slot));
                if !is_awaited {
                    let place = &mut self.slots[usize::from(*slot)];
                    (place.offered, place.told_free) = (true, false);
                }
            }
            Act::TakeBack(slots, within_ms) => self.take_back(slots, *within_ms),
            Act::Withdraw => {
                if let Some((request, _)) = self.requests.pop_first() {
                    self.happens(In::Withdrawn { request });
                }
            }
            Act::Say(slot) => self.say(*slot),
            Act::Exit(slot) => self.exit(*slot),
            Act::Hang(slot) => {
                let now = self.now;
                if let Some(process) = self.processes.get_mut(slot).filter(|process| process.spoke) {
                    process.hung_at.get_or_insert(now);
                }
            }
            Act::Garbage(slot) => {
                if let Some(executor) = self.processes.get(slot).map(|process| process.executor.clone()) {
                    self.happens(In::Executor { slot: *slot, executor, word: ExecutorWord::Garbage("?".to_owned()) });
                }
            }
            Act::Cut(cut) => {
                self.cut = *cut;
                if *cut {
                    self.down(LinkEnd::Broken);
                }
            }
            Act::DiskFull(full) => self.disk_full = *full,
            Act::Crash => self.crash(),
        }
    }

    /// All is well from here on: what is owed has to come.
    pub fn heal(&mut self) {
        (self.cut, self.disk_full) = (false, false);
        self.pass(700_000);
        assert!(self.requests.is_empty(), "every request is answered: {:?}", self.requests);
    }

    pub fn pass(&mut self, ms: u64) {
        let until = self.now + ms;
        loop {
            let ends = self.processes.values().filter_map(|process| process.ends_at).min();
            let written = self.writing.as_ref().map(|(_, _, at)| *at);
            let next =
                [Some(until), Some(self.beat_at), self.wake_at, ends, written].into_iter().flatten().min().unwrap();
            self.now = self.now.max(next);
            if written.is_some_and(|at| at <= self.now) {
                self.write();
            } else if let Some(slot) = self.ending() {
                self.exit(slot);
            } else if self.beat_at <= self.now {
                self.beat();
            } else if self.wake_at.is_some_and(|at| at <= self.now) {
                self.wake_at = None;
                self.happens(In::Wake);
            } else {
                self.check_deadlines();
                return;
            }
        }
    }

    fn ending(&self) -> Option<u16> {
        let ended = |process: &Process| process.ends_at.is_some_and(|at| at <= self.now);
        self.processes.iter().find(|(_, process)| ended(process)).map(|(slot, _)| *slot)
    }

    fn beat(&mut self) {
        self.beat_at += BEAT_MS;
        let alive = |process: &Process| process.spoke && process.hung_at.is_none();
        let healthy: Vec<(u16, ExecutorId)> =
            self.processes.iter().filter(|(_, p)| alive(p)).map(|(slot, p)| (*slot, p.executor.clone())).collect();
        for (slot, executor) in healthy {
            self.happens(In::Executor { slot, executor, word: ExecutorWord::Heard });
        }
        let term = Term(self.term);
        self.say_to_agent(ControllerMessage::Heartbeat { term });
    }

    /// Lets something happen, and then what follows from what was done about it, one after the other.
    fn happens(&mut self, input: In) {
        self.inputs.push_back(input);
        if std::mem::replace(&mut self.busy, true) {
            return;
        }
        while let Some(input) = self.inputs.pop_front() {
            for out in self.agent.handle(moment(self.now), input) {
                self.does(out);
            }
        }
        self.busy = false;
    }

    fn does(&mut self, out: Out) {
        match out {
            Out::Connect { link } => {
                self.link = (!self.cut).then_some(link);
                let word = if self.cut { LinkWord::Down(LinkEnd::Broken) } else { LinkWord::Up };
                self.happens(In::Link { link, word });
            }
            Out::Send { link, message } => {
                assert_eq!(Some(link), self.link, "a message goes up on the link that is open");
                self.hear(*message);
                self.happens(In::Link { link, word: LinkWord::Sent });
            }
            Out::HangUp { link } => {
                assert_eq!(Some(link), self.link);
                self.link = None;
            }
            Out::Start { slot, executor, .. } => self.start(slot, executor),
            Out::Tell { slot, frame } => {
                assert!(self.processes.contains_key(&slot), "who is told is there: {frame:?}");
                // Some obey at once, some never.
                if frame == ToExecutor::Stop && self.processes[&slot].executor.number.is_multiple_of(2) {
                    self.processes.get_mut(&slot).unwrap().ends_at.get_or_insert(self.now + 10);
                }
            }
            Out::Kill { slot, executor, cause } => self.kill(slot, &executor, cause),
            Out::Keep { write, slots } => {
                assert!(self.writing.is_none(), "one write at a time");
                self.writing = Some((write, slots, self.now + write % DISK_MS));
            }
            Out::MeasureLink { number, .. } => self.happens(In::LinkMeasured { number, bytes_per_s: None }),
            Out::Reply { request, answer } => self.answered(request, &answer),
            Out::WakeAt { ms } => self.wake_at = Some(ms),
            Out::Note(_) => {}
            Out::Ended => panic!("nobody asked it to end"),
        }
    }

    fn start(&mut self, slot: u16, executor: ExecutorId) {
        self.starts += 1;
        let place = &self.slots[usize::from(slot)];
        assert!(!place.told_free, "nothing is started on slot {slot}, whose fleet was told that it is free");
        let process = Process {
            executor,
            spoke: false,
            hung_at: None,
            killed: None,
            ends_at: None,
            taken_by: None,
            ordered_by: None,
        };
        assert!(self.processes.insert(slot, process).is_none(), "no slot in two hands: {slot}");
    }

    fn kill(&mut self, slot: u16, executor: &ExecutorId, cause: KillCause) {
        let now = self.now;
        // It may have ended just before, and the agent hears of it next.
        let Some(process) = self.processes.get_mut(&slot) else { return };
        assert_eq!(process.executor, *executor);
        assert_eq!(process.killed, None, "killed once");
        if cause == KillCause::Silent {
            assert!(process.hung_at.is_some(), "only who is silent is killed for it");
        }
        process.killed = Some(cause);
        process.ends_at = Some(now + u64::from(executor.number) * 37 % REAP_MS);
    }

    fn exit(&mut self, slot: u16) {
        let Some(process) = self.processes.remove(&slot) else { return };
        let end = if process.killed.is_some() { ProcessEnd::Signalled(9) } else { ProcessEnd::Exited(0) };
        self.happens(In::Executor { slot, executor: process.executor, word: ExecutorWord::Ended(end) });
    }

    fn say(&mut self, slot: u16) {
        let Some(process) = self.processes.get_mut(&slot).filter(|process| process.hung_at.is_none()) else { return };
        process.spoke = true;
        let executor = process.executor.clone();
        let report = Report::ExecutorReady {
            executor: executor.clone(),
            address: "127.0.0.1:1".to_owned(),
            class: None,
            replica_bytes: None,
            gradient_bytes: None,
        };
        let said = ExecutorWord::Said(FromExecutor::Report(report));
        self.happens(In::Executor { slot, executor: executor.clone(), word: ExecutorWord::Heard });
        self.happens(In::Executor { slot, executor, word: said });
    }

    fn write(&mut self) {
        let Some((write, slots, _)) = self.writing.take() else { return };
        if self.disk_full {
            self.disk_failed_at = self.now;
        } else {
            self.durable = slots;
        }
        self.happens(In::Kept { write, durable: !self.disk_full });
    }

    fn crash(&mut self) {
        self.crashes += 1;
        self.processes.clear();
        self.writing = None;
        self.link = None;
        self.requests.clear();
        self.agent = Agent::new(moment(self.now), world_config(), 1 + self.crashes, &self.durable);
        self.wake_at = None;
        self.happens(In::Wake);
    }
}

/// The fleet.
impl World {
    fn take_back(&mut self, slots: &BTreeSet<u16>, within_ms: u64) {
        self.request += 1;
        let by = self.now + within_ms;
        for slot in slots {
            if let Some(process) = self.processes.get_mut(slot) {
                process.taken_by = Some(process.taken_by.map_or(by, |known| known.min(by)));
            }
        }
        self.requests.insert(self.request, Request { slots: slots.clone(), by });
        self.happens(In::TakeBack { request: self.request, slots: slots.clone(), within_ms });
    }

    fn answered(&mut self, request: u64, answer: &Answer) {
        let request = self.requests.remove(&request).expect("a request is answered once");
        let Answer::Freed(freed) = answer else {
            assert!(
                matches!(answer, Answer::NotKept) && self.disk_failed_at > 0 || matches!(answer, Answer::Busy),
                "a working disk and a mortal executor lead to free slots: {answer:?}"
            );
            return;
        };
        assert!(
            freed.iter().map(|slot| slot.slot.index).eq(request.slots.iter().copied()),
            "all and only what was asked for"
        );
        let latest = request.by.max(self.disk_failed_at) + REAP_MS + 2 * DISK_MS;
        assert!(self.now <= latest.max(request.by + REAP_TIMEOUT_MS), "free by deadline and reaping");
        for slot in &request.slots {
            assert!(!self.processes.contains_key(slot), "slot {slot} is called free with a process on it");
            let place = &mut self.slots[usize::from(*slot)];
            let is_known = !place.offered;
            assert!(self.durable.contains(slot) || is_known, "slot {slot} is called free, and a crash would forget it");
            place.told_free = true;
        }
        self.freed += 1;
    }

    fn check_deadlines(&self) {
        for (slot, process) in &self.processes {
            let alive = process.killed.is_none();
            for (by, whose) in [(process.taken_by, "a take-back"), (process.ordered_by, "an order")] {
                assert!(
                    !(alive && by.is_some_and(|by| by <= self.now)),
                    "slot {slot} outlives the deadline of {whose}"
                );
            }
            let patience = (u64::from(SILENT_LOOKS_MAX) + 1) * LOOK_INTERVAL_MS;
            let hung = process.hung_at.is_some_and(|at| at + patience <= self.now);
            assert!(!(alive && hung), "slot {slot} has said nothing for too long and lives");
        }
        for request in self.requests.values() {
            assert!(request.by + REAP_TIMEOUT_MS >= self.now, "every request is answered in its time");
        }
    }
}

/// The controller.
impl World {
    fn down(&mut self, end: LinkEnd) {
        if let Some(link) = self.link.take() {
            self.happens(In::Link { link, word: LinkWord::Down(end) });
        }
    }

    fn hear(&mut self, message: AgentMessage) {
        match message {
            AgentMessage::Report { number, report, .. } => {
                assert_eq!(number, self.last_sent + 1, "reports are numbered without gaps and repeated until taken");
                self.last_sent = number;
                self.inbox.push_back((self.agent.incarnation(), number, report));
            }
            AgentMessage::Hello { incarnation, .. } => {
                assert_eq!(incarnation, self.agent.incarnation());
                self.last_sent = if incarnation == self.incarnation { self.told_through } else { 0 };
            }
            _ => {}
        }
    }

    /// Reports have their effect.
    fn read(&mut self) {
        while let Some((incarnation, number, report)) = self.inbox.pop_front() {
            let joins = matches!(report, Report::AgentJoined { .. });
            if joins && incarnation != self.incarnation && incarnation == self.agent.incarnation() {
                (self.incarnation, self.through, self.told_through) = (incarnation, 0, 0);
                self.slots.iter_mut().for_each(|slot| slot.executor = None);
            }
            if incarnation != self.incarnation || number <= self.through {
                continue;
            }
            self.through = number;
            match report {
                Report::SlotTakenBack { slot, .. } => {
                    let by = TimeMs(self.now + 900);
                    let slot = &mut self.slots[usize::from(slot.index)];
                    slot.offered = false;
                    if let Some((_, leave_by)) = &mut slot.executor {
                        leave_by.get_or_insert(by);
                    }
                }
                Report::ExecutorGone { executor, .. } => {
                    let gone = |slot: &&mut Slot| slot.executor.as_ref().is_some_and(|(there, _)| *there == executor);
                    self.slots.iter_mut().filter(gone).for_each(|slot| slot.executor = None);
                }
                _ => {}
            }
        }
    }

    fn leave(&mut self, slot: u16, by: Option<TimeMs>) {
        if let Some((_, leave_by)) = &mut self.slots[usize::from(slot)].executor {
            *leave_by = by;
        }
    }

    fn acknowledge(&mut self) {
        if self.incarnation == self.agent.incarnation() && self.through > self.told_through && self.link.is_some() {
            self.told_through = self.through;
            self.say_to_agent(ControllerMessage::ReportsTaken { through: self.through });
        }
    }

    fn orders(&self) -> Vec<ExecutorOrder> {
        let listed = |(index, slot): (usize, &Slot)| {
            let (executor, leave_by) = slot.executor.clone()?;
            let mut order = order(&executor.to_string(), &format!("local/{index}"));
            order.leave_by = leave_by;
            Some(order)
        };
        self.slots.iter().enumerate().filter_map(listed).collect()
    }

    fn order(&mut self) {
        if self.link.is_none() {
            return;
        }
        self.position += 1;
        let (term, position) = (Term(self.term), Offset(self.position));
        let mut orders = Orders { term, position, executors: self.orders() };
        orders.count_down(TimeMs(self.now));
        let counts = self.incarnation == self.agent.incarnation() && self.told_through >= 1;
        if counts {
            for order in &orders.executors {
                let process = self.processes.get_mut(&order.slot.index).filter(|p| p.executor == order.executor);
                if let Some(process) = process.filter(|process| process.ends_at.is_none()) {
                    process.ordered_by = order.leave_by.map(|by| by.0.max(self.now + 1));
                }
            }
        }
        self.say_to_agent(ControllerMessage::Orders(orders));
    }

    /// A controller that was replaced wants everything gone, and other things started.
    fn zombie(&mut self) {
        let Some(link) = self.link.filter(|_| self.term > 1 && self.told_through > 0) else { return };
        // The newest was heard on this link.
        self.say_to_agent(ControllerMessage::Heartbeat { term: Term(self.term) });
        let orders = Orders {
            term: Term(self.term - 1),
            position: Offset(u64::MAX),
            executors: (0..SLOTS).map(|slot| order("job-zombie/e0", &format!("local/{slot}"))).collect(),
        };
        let word = LinkWord::Said(ControllerMessage::Orders(orders));
        for out in self.agent.handle(moment(self.now), In::Link { link, word }) {
            let is_harmless = matches!(out, Out::Note(_) | Out::WakeAt { .. } | Out::Send { .. } | Out::Kill { .. });
            assert!(is_harmless, "orders of a lower term have no effect: {out:?}");
            self.does(out);
        }
    }

    fn say_to_agent(&mut self, message: ControllerMessage) {
        if let Some(link) = self.link {
            self.happens(In::Link { link, word: LinkWord::Said(message) });
        }
    }
}

fn world_config() -> Config {
    Config { lease_ms: LEASE_MS, ..config(SLOTS) }
}
