//! Servers and processes as models: processes start, are ready, leave or are killed; servers break and are repaired.

use crate::cluster::Group;
use crate::members::Mode;
use crate::queue::Event;
use crate::sharing::busy_percent;
use crate::world::{World, number};
use controller_core::Input;
use events_schema::fact::LeaveCause;
use events_schema::report::{ExitCause, Report, ReportRecord};
use events_schema::slot_type::SlotType;
use events_schema::{Digest, ExecutorId, ServerId, SlotId, TimeMs};
use std::collections::BTreeMap;

/// From the start of a process until it is known how much of its slot it uses.
const SEEN_MS: u64 = 10_000;

/// A server and its agent.
pub(crate) struct Server {
    id: ServerId,
    fleet: usize,
    slots: u16,
    class: (Digest, Option<SlotType>),
    /// How many times as fast as curves say.
    speed: f64,
    /// The agent's process.
    incarnation: u64,
    /// Reports of it so far.
    reports: u64,
    up: bool,
}

/// An executor's process.
pub(crate) struct Process {
    pub slot: SlotId,
    pub server: usize,
    pub fleet: usize,
    pub speed: f64,
    pub ready: bool,
    /// Whether it holds the replica of its job.
    pub replica: bool,
}

/// The numeric class of servers of a type, and their type where all are of one class.
pub(crate) fn class_of(kind: &str, mixed_types: bool) -> (Digest, Option<SlotType>) {
    match mixed_types {
        true => (Digest::of(b"one class"), SlotType::of_device(kind)),
        false => (Digest::of(kind.as_bytes()), None),
    }
}

/// The other place on the same device.
fn beside(slot: &SlotId) -> SlotId {
    if slot.is_guest() { slot.host() } else { slot.guest() }
}

impl World<'_> {
    pub fn add_server(&mut self, id: ServerId, fleet: usize, group: &Group) {
        let server = Server {
            id: id.clone(),
            fleet,
            slots: group.slots,
            class: class_of(&group.kind, self.setup.mixed_types),
            speed: group.speed,
            incarnation: 0,
            reports: 0,
            up: false,
        };
        self.server_of.insert(id, self.servers.len());
        self.servers.push(server);
        self.join(self.servers.len() - 1);
    }

    fn join(&mut self, server: usize) {
        let agent = &mut self.servers[server];
        (agent.incarnation, agent.reports, agent.up) = (agent.incarnation + 1, 0, true);
        let (slots, (class, slot_type)) = (agent.slots, agent.class);
        let address = "http://simulated:1".to_owned();
        let (devices, quarantined) = (Vec::new(), BTreeMap::new());
        let guests = self.setup.sharing.is_some();
        self.report(server, Report::AgentJoined { slots, class, address, devices, quarantined, guests, slot_type });
    }

    /// An agent says something.
    pub fn report(&mut self, server: usize, report: Report) {
        let agent = &mut self.servers[server];
        agent.reports += 1;
        let number = agent.reports;
        self.say(server, number, report);
    }

    fn say(&mut self, server: usize, number: u64, report: Report) {
        let agent = &self.servers[server];
        let (server, incarnation) = (agent.id.clone(), agent.incarnation);
        self.feed(&Input::Report(ReportRecord {
            server,
            incarnation,
            number,
            at: self.at,
            report,
            trace: None,
            after: None,
        }));
    }

    /// A process begins on its slot.
    pub fn start(&mut self, executor: &ExecutorId, slot: &SlotId) {
        let Some(server) = self.server_of.get(&slot.server).copied() else { return };
        let agent = &self.servers[server];
        if !agent.up {
            return;
        }
        let (fleet, speed) = (agent.fleet, agent.speed);
        if let Some(other) = self.on.insert(slot.clone(), executor.clone()) {
            self.tally.broken(format!("{executor} starts on {slot}, where {other} is"));
        }
        self.tally.fleets[fleet].occupied += u64::from(!slot.is_guest());
        self.is_joined(slot);
        let process = Process { slot: slot.clone(), server, fleet, speed, ready: false, replica: false };
        self.processes.insert(executor.clone(), process);
        self.queue.put(self.at.plus_ms(self.setup.costs.start_ms), Event::Ready(executor.clone()));
    }

    pub fn ready(&mut self, executor: &ExecutorId) {
        let Some(process) = self.processes.get_mut(executor) else { return };
        process.ready = true;
        let server = process.server;
        if self.setup.sharing.is_some() && !process.slot.is_guest() {
            self.queue.put(self.at.plus_ms(SEEN_MS), Event::Seen(executor.clone()));
        }
        let address = format!("simulated:{}", executor.number);
        let replica_bytes = Some(self.setup.costs.replica_mb * 1_000_000).filter(|bytes| *bytes > 0);
        self.report(
            server,
            Report::ExecutorReady {
                executor: executor.clone(),
                address,
                class: None,
                replica_bytes,
                gradient_bytes: None,
            },
        );
    }

    /// A process is told to go: at once, or at a boundary and by its deadline.
    pub fn leave(&mut self, executor: &ExecutorId, deadline: TimeMs, cause: LeaveCause) {
        match cause {
            LeaveCause::JobEnd | LeaveCause::Useless => {
                self.queue.put(self.at.plus_ms(self.setup.costs.exit_ms), Event::Exit(executor.clone()));
            }
            LeaveCause::Reclaim | LeaveCause::Plan => {
                self.queue.put(deadline, Event::Overdue(executor.clone()));
                self.told_to_leave(executor, deadline);
            }
        }
    }

    /// A process ends as it was asked to.
    pub fn exit(&mut self, executor: &ExecutorId) {
        self.end_process(executor, ExitCause::Left);
    }

    pub fn kill_overdue(&mut self, executor: &ExecutorId) {
        let leaving = self.state.executor(executor).and_then(|executor| executor.leaving);
        if leaving.is_some_and(|leaving| leaving.deadline <= self.at) {
            self.keep_last_checkpoint(number(&executor.job), executor);
            self.end_process(executor, ExitCause::Killed);
        }
    }

    pub fn end_process(&mut self, executor: &ExecutorId, exit: ExitCause) {
        let Some(process) = self.remove(executor) else { return };
        let (executor, slot) = (executor.clone(), process.slot);
        self.report(process.server, Report::ExecutorGone { executor, slot, exit });
    }

    /// A process is no more; nobody has said so yet.
    fn remove(&mut self, executor: &ExecutorId) -> Option<Process> {
        let job = number(&executor.job);
        let process = self.processes.remove(executor)?;
        let is_member = self.jobs[job].training.as_ref().is_some_and(|t| t.members.contains(executor));
        if is_member {
            // The step in flight cannot end without it.
            self.stop(job, Mode::Broken);
        }
        self.on.remove(&process.slot);
        self.tally.fleets[process.fleet].occupied -= u64::from(!process.slot.is_guest());
        self.is_joined(&process.slot);
        Some(process)
    }

    /// Somebody begins or ends on a slot: whoever shares it is faster or slower from then on.
    fn is_joined(&mut self, slot: &SlotId) {
        if self.setup.sharing.is_some()
            && let Some(other) = self.on.get(&beside(slot))
        {
            self.queue.put(self.at, Event::Shared { job: number(&other.job) });
        }
    }

    /// How fast a process of a job is, of what it is alone on its slot.
    pub fn beside_others(&self, job: usize, slot: &SlotId) -> f64 {
        let shares = self.setup.sharing.zip(self.on.get(&beside(slot)));
        shares.map_or(1.0, |(sharing, other)| sharing.speed((job, slot.is_guest()), number(&other.job)))
    }

    /// The watch knows how much of its slot a process uses.
    pub fn seen(&mut self, executor: &ExecutorId) {
        let Some(server) = self.processes.get(executor).map(|process| process.server) else { return };
        let busy_percent = busy_percent(number(&executor.job));
        // Of the controller itself, which numbers none.
        self.say(server, 0, Report::LoadMeasured { executor: executor.clone(), busy_percent });
    }

    /// Every server breaks at some time, if any do.
    pub fn plan_failures(&mut self) {
        for server in 0..self.servers.len() {
            self.plan_failure(server);
        }
    }

    fn plan_failure(&mut self, server: usize) {
        if let Some(failures) = self.setup.failures {
            let after_ms = self.random.exponential_ms(failures.mean_ms);
            self.queue.put(self.at.plus_ms(after_ms), Event::Breaks(server));
        }
    }

    pub fn breaks(&mut self, server: usize) {
        let Some(failures) = self.setup.failures else { return };
        self.tally.failures += 1;
        let there: Vec<ExecutorId> =
            self.processes.iter().filter(|(_, process)| process.server == server).map(|(id, _)| id.clone()).collect();
        for executor in &there {
            // What its job had written before is in the store.
            self.keep_last_checkpoint(number(&executor.job), executor);
        }
        self.servers[server].up = false;
        for executor in &there {
            self.remove(executor);
        }
        self.queue.put(self.at.plus_ms(self.setup.costs.lease_ms), Event::GivenUp(server));
        self.queue.put(self.at.plus_ms(failures.repair_ms.max(self.setup.costs.lease_ms + 1)), Event::Repaired(server));
    }

    pub fn given_up(&mut self, server: usize) {
        // Of the controller itself, which numbers none.
        self.say(server, 0, Report::AgentGone);
    }

    pub fn repaired(&mut self, server: usize) {
        self.join(server);
        self.plan_failure(server);
    }
}
