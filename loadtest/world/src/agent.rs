//! An agent's process on a server: the real agent machine, and what it asks for done: processes, its stream, its disk.

use crate::executor::Executor;
use crate::net::{ConnId, Kind, Packet};
use crate::schedule::{Place, Setup, SlowLink, SlowType};
use crate::world::{Begin, Body, Event, Input, Pid, World};
use controller_cell::LinkEnd as Cause;
use events_schema::control::FromExecutor;
use events_schema::orders::{ControllerMessage, FarEnd};
use events_schema::slot_type::SlotType;
use events_schema::{Digest, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use workers_agent_core::{
    Agent, BURST_BYTES_MAX, BURST_TIME_MAX, Config, ExecutorWord, In, LinkEnd, LinkWord, Moment, Out, ProcessEnd,
};

/// Time of a write to a server's disk, of a word through a pipe, and from a process's end until it is reaped.
const DISK_US: u64 = 4_000;
const PIPE_US: u64 = 300;
const REAP_US: u64 = 5_000;
/// Time until an agent learns that no controller can be reached.
const CONNECT_TIMEOUT_US: u64 = 1_500_000;
/// Pause until a new agent begins after the last executor of the old one is gone.
const LEFTOVERS_MS: u64 = 50;
const SIGKILL: i32 = 9;
/// Of a link that executors wait for a burst reads one of so many parts at the least, and nothing once in so many times: as of 40 Mbit/s under gradients of 35 MB,
/// of which 3.4, 2.5, 0.7, 0.2 and 0.1 MB/s were read.
const LEFT_OVER_PARTS_MAX: u64 = 25;
const CUT_SHORT_ONE_IN: u64 = 3;

/// An agent.
#[derive(Debug)]
pub struct AgentProcess {
    pub server: ServerId,
    pub machine: Agent,
    stream: Option<(u64, ConnId)>,
    /// Executors on the slots.
    pub slots: BTreeMap<u16, Pid>,
}

/// The numeric class of a server.
fn class_of(setup: &Setup, place: Place) -> Digest {
    if let Some(group) = setup.group_at(place) {
        return group.digest();
    }
    let is_apart = setup.slow_type.is_some_and(|slow| slow.last_is_apart && place == setup.servers);
    Digest([if is_apart { 8 } else { 7 }; 32])
}

/// The type of a server's slots.
fn type_of(slow: SlowType, place: Place) -> SlotType {
    let name = if place > slow.from { "slow" } else { "fast" };
    name.parse().unwrap_or_else(|error| unreachable!("{error}"))
}

/// Where others measure the link to a place; of each process another.
fn far_end(place: Place, seed: u64) -> FarEnd {
    FarEnd { address: place.to_string(), key: (u128::from(seed) << 64).to_be_bytes() }
}

fn is_executor(body: &Body) -> bool {
    matches!(body, Body::Executor(_))
}

impl World {
    /// The name of a server.
    #[must_use]
    pub fn server_at(place: Place) -> ServerId {
        ServerId::parse(&format!("server-{}", place.saturating_sub(1))).unwrap_or_else(|e| unreachable!("{e}"))
    }

    /// The server of an agent's process.
    #[must_use]
    pub fn server_of(&self, pid: Pid) -> Option<ServerId> {
        match &self.processes.get(&pid)?.body {
            Body::Agent(agent) => Some(agent.server.clone()),
            _ => None,
        }
    }

    /// An agent.
    pub fn agent(&mut self, pid: Pid) -> Option<&mut AgentProcess> {
        match &mut self.processes.get_mut(&pid)?.body {
            Body::Agent(agent) => Some(agent),
            _ => None,
        }
    }

    /// An agent's process begins, once nothing of an earlier one is left.
    pub fn begin_agent(&mut self, place: Place) {
        let host = &self.hosts[usize::from(place)];
        if host.agent.is_some() {
            return;
        }
        let leftovers = self.processes.values().any(|process| process.place == place);
        if leftovers {
            let at = self.bus.now().plus_ms(LEFTOVERS_MS);
            return self.bus.put(at, Event::Begin(Begin::Agent(place)));
        }
        let (clock, now) = (host.clock, self.bus.now());
        let moment = Moment { ms: clock.ms(now), wall: clock.wall(now) };
        let server = Self::server_at(place);
        let config = Config {
            server: server.clone(),
            slots: self.schedule.setup.slots_at(place),
            guests: self.schedule.setup.guests,
            processors_milli: 1_000,
            class: class_of(&self.schedule.setup, place),
            devices: Vec::new(),
            slot_type: self.schedule.setup.slow_type.map(|slow| type_of(slow, place)),
            address: format!("http://{server}:1"),
            far_end: None,
            lease_ms: self.schedule.setup.loan_lease_ms,
        };
        let seed = self.random.draw();
        let config = Config { far_end: Some(far_end(place, seed)), ..config };
        let machine = Agent::new(moment, config, seed, &self.hosts[usize::from(place)].kept);
        let process = AgentProcess { server, machine, stream: None, slots: BTreeMap::new() };
        let pid = self.spawn(place, Body::Agent(Box::new(process)));
        let host = &mut self.hosts[usize::from(place)];
        (host.agent, host.up) = (Some(pid), true);
        self.send_in(0, pid, Input::Agent(In::Wake));
        self.ask_new_agent(place, pid);
    }

    /// The machine takes an input.
    pub fn feed_agent(&mut self, pid: Pid, input: In) {
        let (clock, now) = (self.clock(pid), self.now());
        let moment = Moment { ms: clock.ms(now), wall: clock.wall(now) };
        let Some(agent) = self.agent(pid) else { return };
        for out in agent.machine.handle(moment, input) {
            self.perform_agent(pid, out);
        }
    }

    fn perform_agent(&mut self, pid: Pid, out: Out) {
        match out {
            Out::Connect { link } => {
                if !self.open_stream(pid, link) {
                    let word = LinkWord::Down(LinkEnd::Broken);
                    self.send_in(CONNECT_TIMEOUT_US, pid, Input::Agent(In::Link { link, word }));
                }
            }
            Out::Send { link, message } => {
                if let Some(conn) = self.stream(pid, link) {
                    self.post(conn, 0, Packet::Up(*message));
                }
            }
            Out::HangUp { link } => {
                if let Some(conn) = self.stream(pid, link) {
                    self.close(conn, 0, None, true);
                }
            }
            Out::Start { slot, executor, order, .. } => {
                self.check_start(pid, slot, &executor);
                let Some(place) = self.processes.get(&pid).map(|process| process.place) else { return };
                let shell = Executor::new(&self.schedule.setup, &executor, slot, pid, &order);
                let child = self.spawn(place, Body::Executor(Box::new(shell)));
                if let Some(agent) = self.agent(pid) {
                    agent.slots.insert(slot, child);
                }
                self.begin_executor(child);
            }
            Out::Tell { slot, frame } => {
                if let Some(child) = self.agent(pid).and_then(|agent| agent.slots.get(&slot).copied()) {
                    self.send_in(PIPE_US, child, Input::Frame(frame));
                }
            }
            Out::Kill { slot, executor, cause } => {
                self.check_kill(pid, slot, &executor, cause);
                if let Some(child) = self.agent(pid).and_then(|agent| agent.slots.get(&slot).copied()) {
                    self.kill(child);
                }
            }
            Out::Keep { write, slots } => self.keep(pid, write, slots),
            Out::MeasureLink { number, far_end } => self.measure_link(pid, number, &far_end),
            Out::Reply { request, answer } => self.fleet_is_told(pid, request, answer),
            Out::WakeAt { ms } => self.wake_at(pid, ms * 1_000),
            Out::Note(note) => self.note(pid, &note),
            Out::Ended => self.end_process(pid),
        }
    }

    /// A burst in each direction. Executors' links are apart from each other here, so it does not slow them, nor they it; but where a link became slow under
    /// them it reads what they leave of it, which is another part each time, and now and then too little to tell.
    fn measure_link(&mut self, pid: Pid, number: u64, far_end: &FarEnd) {
        let Some(place) = self.processes.get(&pid).map(|process| process.place) else { return };
        let other = far_end.address.parse::<Place>().ok().filter(|other| {
            let host = self.hosts.get(usize::from(*other));
            let there = host.and_then(|host| host.agent).is_some_and(|agent| self.runs(agent));
            there && self.net.is_whole(place, *other) && self.net.is_whole(*other, place)
        });
        let times = if self.now() < self.net.slow_until { self.net.slow.max(1) } else { 1 };
        let bytes_per_s = other.map(|other| self.net.bytes_per_s(&self.schedule.setup, [place, other]) / times);
        let bytes_per_s = match bytes_per_s {
            Some(carries) if other.is_some_and(|other| self.is_shared([place, other])) => self.left_over(carries),
            other => other,
        };
        let burst_us = |bytes_per_s: u64| {
            let whole_us = BURST_BYTES_MAX * 1_000_000 / bytes_per_s.max(1);
            2 * whole_us.min(BURST_TIME_MAX.as_micros() as u64) + 8 * self.schedule.setup.latency_us
        };
        let us = bytes_per_s.map_or(CONNECT_TIMEOUT_US, burst_us);
        self.send_in(us, pid, Input::Agent(In::LinkMeasured { number, bytes_per_s }));
    }

    /// Whether a link that became slow has executors at its end.
    fn is_shared(&self, places: [Place; 2]) -> bool {
        let slow = self.net.slow_link.filter(|slow| slow.is_between(places));
        let there = |slow: SlowLink| {
            self.processes.values().any(|process| process.place == slow.server + 1 && is_executor(&process.body))
        };
        slow.is_some_and(there)
    }

    fn left_over(&mut self, carries: u64) -> Option<u64> {
        (!self.random.one_in(CUT_SHORT_ONE_IN)).then(|| carries / self.random.between(1, LEFT_OVER_PARTS_MAX))
    }

    fn keep(&mut self, pid: Pid, write: u64, slots: BTreeSet<u16>) {
        let Some(place) = self.processes.get(&pid).map(|process| process.place) else { return };
        let now = self.now();
        let host = &mut self.hosts[usize::from(place)];
        let durable = now >= host.disk_full_until;
        if durable {
            host.kept = slots;
        }
        self.send_in(DISK_US, pid, Input::Agent(In::Kept { write, durable }));
    }

    fn stream(&mut self, pid: Pid, link: u64) -> Option<ConnId> {
        let (number, conn) = self.agent(pid)?.stream?;
        (number == link).then_some(conn)
    }

    /// A stream of an agent is open.
    pub fn agent_is_up(&mut self, pid: Pid, number: u64, conn: ConnId) {
        if let Some(agent) = self.agent(pid) {
            agent.stream = Some((number, conn));
        }
        let us = 2 * self.schedule.setup.latency_us;
        self.send_in(us, pid, Input::Agent(In::Link { link: number, word: LinkWord::Up }));
    }

    /// What an agent sent was taken.
    pub fn tell_sent(&mut self, pid: Pid, kind: Kind) {
        if let Kind::Stream(link) = kind {
            self.send_in(0, pid, Input::Agent(In::Link { link, word: LinkWord::Sent }));
        }
    }

    /// A controller says something to an agent.
    pub fn hear_controller(&mut self, pid: Pid, kind: Kind, message: ControllerMessage) {
        if let Kind::Stream(link) = kind {
            self.send_in(0, pid, Input::Agent(In::Link { link, word: LinkWord::Said(message) }));
        }
    }

    /// One end of a stream hears that the other is closed.
    pub fn stream_closed(&mut self, pid: Pid, conn: ConnId, end: usize, number: u64, cause: Option<Cause>) {
        if end == 1 {
            return self.agent_hung_up(pid, conn);
        }
        let end = match cause {
            Some(Cause::Rejoin) => LinkEnd::GivenUp,
            Some(Cause::Refused | Cause::Taken | Cause::Leaving) | None => LinkEnd::Broken,
        };
        self.send_in(0, pid, Input::Agent(In::Link { link: number, word: LinkWord::Down(end) }));
    }

    /// An executor says something to its agent.
    pub fn say_to_agent(&mut self, child: Pid, frame: FromExecutor) {
        let Some((agent, slot, executor)) = self.executor(child).map(|e| (e.agent, e.slot, e.id.clone())) else {
            return;
        };
        self.note_report(child, &frame);
        let Some(frame) = self.said_in_time(child, frame) else { return };
        if matches!(frame, FromExecutor::Alive) {
            let word = ExecutorWord::Heard;
            return self.send_in(PIPE_US, agent, Input::Agent(In::Executor { slot, executor, word }));
        }
        let heard = In::Executor { slot, executor: executor.clone(), word: ExecutorWord::Heard };
        self.send_in(PIPE_US, agent, Input::Agent(heard));
        self.send_in(PIPE_US, agent, Input::Agent(In::Executor { slot, executor, word: ExecutorWord::Said(frame) }));
    }

    /// SIGKILL for an executor, by whomever.
    pub fn kill(&mut self, child: Pid) {
        self.end_executor(child, ProcessEnd::Signalled(SIGKILL));
    }

    /// An executor's process ends: its links with it. Its agent hears when it is reaped.
    pub fn end_executor(&mut self, child: Pid, end: ProcessEnd) {
        let Some(executor) = self.executor_mut(child) else { return };
        if executor.end.is_some() {
            return;
        }
        executor.end = Some(end);
        executor.listens = false;
        let place = self.processes[&child].place;
        let up = self.hosts[usize::from(place)].up;
        self.close_all(child, up);
        self.bus.put(self.bus.now().plus_us(REAP_US), Event::Reap(child));
    }

    /// A process that has ended is reaped: its slot is free.
    pub fn reap(&mut self, child: Pid) {
        let Some(process) = self.processes.remove(&child) else { return };
        let Body::Executor(executor) = process.body else { return };
        let Some(end) = executor.end else { return };
        if let Some(agent) = self.agent(executor.agent) {
            agent.slots.retain(|_, pid| *pid != child);
        }
        let word = ExecutorWord::Ended(end);
        let input = In::Executor { slot: executor.slot, executor: executor.id, word };
        self.send_in(0, executor.agent, Input::Agent(input));
    }

    /// A process is gone, with everything it had open. Executors end with their agent.
    pub fn end_process(&mut self, pid: Pid) {
        let Some(place) = self.processes.get(&pid).map(|process| process.place) else { return };
        let up = self.hosts[usize::from(place)].up;
        self.close_all(pid, up);
        let children: Vec<Pid> = self.agent(pid).map(|a| a.slots.values().copied().collect()).unwrap_or_default();
        for child in children {
            // One that is stopped cannot see the end of its input; the next agent kills it.
            self.end_executor(child, ProcessEnd::Signalled(SIGKILL));
        }
        self.processes.remove(&pid);
        let host = &mut self.hosts[usize::from(place)];
        if host.agent == Some(pid) {
            host.agent = None;
            self.fleet_is_hung_up_on(pid);
        }
    }
}
