//! The scripted agents: they carry out orders, number their reports and repeat them, hold deadlines, and get lost.

use super::{Agent, Process, World, name};
use controller_core::{Input, orders};
use events_schema::fact::Entry;
use events_schema::orders::ExecutorOrder;
use events_schema::report::{ExitCause, Report, ReportRecord};
use events_schema::slot_type::SlotType;
use events_schema::{Digest, ExecutorId, ServerId, SlotId, Step};
use std::collections::BTreeMap;

impl World {
    /// Starts an agent; one that runs under this name is gone with all its processes.
    pub fn start_agent(&mut self, server: &str, slots: u16) {
        self.start_agent_of(server, slots, b"class");
    }

    /// The same, on a server of this type.
    pub fn start_agent_of_type(&mut self, server: &str, slots: u16, slot_type: &str) {
        self.join(server, slots, b"class", (false, Some(slot_type.parse().unwrap())));
    }

    /// The same, on a server of this numeric class.
    pub fn start_agent_of(&mut self, server: &str, slots: u16, class: &[u8]) {
        self.join(server, slots, class, (false, None));
    }

    /// The same, on a server whose slots have guest slots.
    pub fn start_agent_with_guests(&mut self, server: &str, slots: u16) {
        self.join(server, slots, b"class", (true, None));
    }

    fn join(&mut self, server: &str, slots: u16, class: &[u8], (guests, slot_type): (bool, Option<SlotType>)) {
        let agent = self.agents.entry(name(server, ServerId::parse)).or_default();
        let incarnation = agent.incarnation + 1;
        *agent = Agent { up: true, incarnation, slots, guests, slot_type, ..Agent::default() };
        let report = Report::AgentJoined {
            slots,
            class: Digest::of(class),
            address: "http://127.0.0.1:1".to_owned(),
            devices: Vec::new(),
            quarantined: BTreeMap::new(),
            guests,
            slot_type,
        };
        self.report(&name(server, ServerId::parse), report);
    }

    /// The watch finds out how much of their slots those use that are ready where there are guest slots. Whether that was news.
    pub fn measure_hosts(&mut self) -> bool {
        let mut news = Vec::new();
        for (guest, _) in self.state.guests() {
            let host = guest.host();
            let executor = self.state.slot(&host).and_then(|slot| slot.executor.clone());
            let Some(known) = executor.as_ref().and_then(|executor| self.state.executor(executor)) else { continue };
            let busy = self.busy.get(&host).copied().unwrap_or(Some(0));
            if known.is_ready() && known.leaving.is_none() && busy.is_some() && known.busy_percent != busy {
                news.extend(executor.zip(busy));
            }
        }
        for (executor, busy_percent) in &news {
            let server = self.state.executor(executor).map(|executor| executor.slot.server.clone());
            let Some((id, server)) = server.and_then(|id| Some((id.clone(), self.state.server(&id)?))) else {
                continue;
            };
            let (executor, busy_percent) = (executor.clone(), *busy_percent);
            self.foreign_report(id, server.incarnation, Report::LoadMeasured { executor, busy_percent });
        }
        !news.is_empty()
    }

    /// From now on executors of a server say that the bits of their job's own code depend on this.
    pub fn computes(&mut self, server: &str, class: &[u8]) {
        let agent = self.agents.entry(name(server, ServerId::parse)).or_default();
        agent.class_of_code = Some(Digest::of(class));
    }

    /// Starts the agent of the same server again.
    pub fn restart_agent(&mut self, server: &ServerId) {
        if let Some((slots, said)) = self.agents.get(server).map(|agent| (agent.slots, (agent.guests, agent.slot_type)))
        {
            self.join(&server.to_string(), slots, b"class", said);
        }
    }

    /// A server is gone with everything on it, and the brain's server noticed.
    pub fn lose_agent(&mut self, server: &ServerId) {
        let Some(agent) = self.agents.get_mut(server) else { return };
        agent.up = false;
        agent.processes.clear();
        agent.outbox.clear();
        // The lease that ran out is that of the process the brain knows; a newer one may never have got a word through.
        let Some(incarnation) = self.state.server(server).map(|server| server.incarnation) else { return };
        self.foreign_report(server.clone(), incarnation, Report::AgentGone);
    }

    /// The servers, in order.
    #[must_use]
    pub fn servers(&self) -> Vec<ServerId> {
        self.agents.keys().cloned().collect()
    }

    /// The processes that exist, in order.
    #[must_use]
    pub fn processes(&self) -> Vec<ExecutorId> {
        self.agents.values().flat_map(|agent| agent.processes.keys().cloned()).collect()
    }

    pub(super) fn report(&mut self, server: &ServerId, report: Report) {
        let at = self.at;
        if let Some(agent) = self.agents.get_mut(server) {
            agent.reports += 1;
            let (incarnation, number) = (agent.incarnation, agent.reports);
            agent.outbox.push_back(ReportRecord {
                server: server.clone(),
                incarnation,
                number,
                at,
                report,
                trace: None,
                after: None,
            });
        }
    }

    /// The oldest waiting report of a server arrives. Whether there was one.
    pub fn deliver_report(&mut self, server: &ServerId) -> bool {
        let Some(record) = self.agents.get_mut(server).and_then(|agent| agent.outbox.pop_front()) else { return false };
        self.input(&Input::Report(record.clone()));
        let again = self.input(&Input::Report(record));
        assert!(again.is_empty(), "a repeated report decides nothing: {again:?}");
        true
    }

    /// A server gets its present orders and carries them out. Whether anything came of it.
    pub fn deliver_orders(&mut self, server: &ServerId) -> bool {
        let wanted: BTreeMap<ExecutorId, ExecutorOrder> =
            orders(&self.state, server).into_iter().map(|order| (order.executor.clone(), order)).collect();
        let Some(agent) = self.agents.get_mut(server).filter(|agent| agent.up) else { return false };
        let mut changed = false;
        let stopped: Vec<ExecutorId> = agent.processes.keys().filter(|id| !wanted.contains_key(id)).cloned().collect();
        let mut never_started = Vec::new();
        for (id, order) in wanted {
            match agent.processes.get_mut(&id) {
                Some(process) => {
                    changed |= process.order != order;
                    process.take(order);
                }
                None if order.leave_by.is_some() => never_started.push((id, order.slot)),
                None => {
                    let busy = agent.processes.values().any(|process| process.slot == order.slot);
                    assert!(!busy || !stopped.is_empty(), "two processes on {}", order.slot);
                    agent.processes.insert(id, Process::start(order));
                    changed = true;
                }
            }
        }
        changed |= !stopped.is_empty();
        for id in stopped {
            self.end_process(&id, ExitCause::Left);
        }
        for (executor, slot) in never_started {
            let gone = Report::ExecutorGone {
                executor,
                slot,
                exit: ExitCause::NotStarted("it had to leave already".to_owned()),
            };
            let waits = self.agents[server].outbox.iter().any(|record| record.report == gone);
            if !waits {
                self.report(server, gone);
                changed = true;
            }
        }
        changed
    }

    pub(super) fn kill_overdue(&mut self, server: &ServerId) {
        let Some(agent) = self.agents.get(server) else { return };
        let overdue = |process: &Process| process.order.leave_by.is_some_and(|by| by <= self.at);
        let late: Vec<ExecutorId> =
            agent.processes.iter().filter(|(_, process)| overdue(process)).map(|(id, _)| id.clone()).collect();
        for id in late {
            self.end_process(&id, ExitCause::Killed);
        }
    }

    pub(super) fn host(&self, id: &ExecutorId) -> Option<ServerId> {
        self.agents.iter().find(|(_, agent)| agent.processes.contains_key(id)).map(|(server, _)| server.clone())
    }

    pub(super) fn process(&self, id: &ExecutorId) -> Option<&Process> {
        self.agents.values().find_map(|agent| agent.processes.get(id))
    }

    /// Peers do not reach a process any more, or again. A group that has lost a link waits for a round.
    pub fn cut_off(&mut self, id: &ExecutorId, cut_off: bool) {
        let process = self.agents.values_mut().find_map(|agent| agent.processes.get_mut(id));
        let Some(process) = process else { return };
        process.cut_off = cut_off;
        if let Some(group) = self.groups.get_mut(&id.job).filter(|group| cut_off && group.members.len() > 1) {
            group.broken |= group.members.contains(id);
        }
    }

    /// Cuts the links of a process, or mends them: the others miss it, and say so.
    pub fn unlink(&mut self, id: &ExecutorId, unlinked: bool) {
        self.cut_off(id, unlinked);
        if let Some(process) = self.agents.values_mut().find_map(|agent| agent.processes.get_mut(id)) {
            process.unlinked = unlinked;
        }
    }

    /// A process ends. Whether it existed.
    pub fn end_process(&mut self, id: &ExecutorId, exit: ExitCause) -> bool {
        let Some(server) = self.host(id) else { return false };
        let Some(process) = self.agents.get_mut(&server).and_then(|agent| agent.processes.remove(id)) else {
            return false;
        };
        self.report(&server, Report::ExecutorGone { executor: id.clone(), slot: process.slot, exit });
        true
    }

    /// A fleet takes a slot back at its agent: a member of a larger group departs with its leader's consent, anybody else just
    /// ends. `late` delays the agent's own words behind the leader's.
    pub fn take_back(&mut self, slot: &SlotId, late: bool) {
        if !self.agents.get(&slot.server).is_some_and(|agent| agent.up) {
            return;
        }
        if !late {
            self.report(&slot.server, Report::SlotTakenBack { slot: slot.clone(), asked_ms: None, within_ms: None });
        }
        let there = self.agents[&slot.server].processes.iter().find(|(_, process)| process.slot == *slot);
        if let Some(id) = there.map(|(id, _)| id.clone()) {
            self.depart(&id);
            self.end_process(&id, ExitCause::Left);
        }
        if late {
            self.report(&slot.server, Report::SlotTakenBack { slot: slot.clone(), asked_ms: None, within_ms: None });
        }
    }

    /// A fleet asked an agent for a slot so long ago, within so long; who was on it is gone now, with its leader's consent.
    pub fn took_back(&mut self, slot: &SlotId, asked_ms: u64, within_ms: u64) {
        let there = self.agents[&slot.server].processes.iter().find(|(_, process)| process.slot == *slot);
        let there = there.map(|(id, _)| id.clone());
        there.iter().for_each(|id| self.depart(id));
        let (asked_ms, within_ms) = (Some(asked_ms), Some(within_ms));
        self.report(&slot.server, Report::SlotTakenBack { slot: slot.clone(), asked_ms, within_ms });
        if let Some(id) = there {
            self.end_process(&id, ExitCause::Left);
        }
    }

    pub(super) fn depart(&mut self, id: &ExecutorId) {
        if !self.is_whole(&id.job) {
            return;
        }
        let Some(group) = self.groups.get_mut(&id.job).filter(|group| group.members.len() > 1) else { return };
        if !group.members.remove(id) {
            return;
        }
        if group.leader == *id {
            group.leader = group.members.iter().next().cloned().unwrap_or_else(|| id.clone());
        }
        let (job, generation, leader, step) =
            (id.job.clone(), group.generation, group.leader.clone(), Step(group.step));
        if let Some(server) = self.host(&leader) {
            self.report(&server, Report::MemberDeparted { job, generation, executor: id.clone(), leader, step });
        }
    }
}

impl Process {
    fn start(order: ExecutorOrder) -> Self {
        Self {
            slot: order.slot.clone(),
            ready: false,
            order,
            replica: false,
            stopped_for: None,
            cut_off: false,
            unlinked: false,
        }
    }

    fn take(&mut self, order: ExecutorOrder) {
        let recovery = order.job.proposal.as_ref().filter(|proposal| matches!(proposal.entry, Entry::Recover));
        self.stopped_for = self.stopped_for.max(recovery.map(|proposal| proposal.generation));
        self.order = order;
    }
}
