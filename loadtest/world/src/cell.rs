//! The controller's process: the real cell machine, and what it asks for done.

use crate::log::{Append, Asker, Word};
use crate::mutants::Mutants;
use crate::net::{ConnId, Kind, Packet};
use crate::schedule::{Place, Setup};
use crate::world::{Body, CONTROL, Event, Input, Pid, Process, World};
use controller_cell::{CellConfig, CellMachine, In, LinkId, Out, Ticket};
use controller_core::policy::ibm_dp::{IbmDp, Unfit};
use controller_core::policy::{Plan, Policy, View, WithAssumedSpeeds, WithLending, Wraps};
use controller_core::policy_by_name;
use events_rule::Stream;
use events_schema::orders::AgentMessage;
use events_schema::{Cell, Term, TimeMs};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// As in production: `controller/server` and `controller/link`.
const TICK_MS: u64 = 200;
/// How long the controller waits for an agent's word.
pub const AGENT_LEASE_MS: u64 = 4_500;
const HEARTBEAT_INTERVAL_MS: u64 = 500;

/// A controller.
#[derive(Debug)]
pub struct CellProcess {
    pub machine: CellMachine,
    streams: BTreeMap<LinkId, ConnId>,
    /// How long its time has stood still, and what it shows, where a mutant has it do so.
    still_ms: u64,
    shown_ms: u64,
}

/// The policy that is shipped, which panics when it is told to, and is told what mutants say.
struct Panicky {
    policy: Arc<dyn Policy>,
    panics: Arc<AtomicBool>,
    mutants: Mutants,
}

impl Wraps for Panicky {
    fn inner(&self) -> &dyn Policy {
        &*self.policy
    }

    fn wrapped_plan(&self, view: &View) -> Plan {
        assert!(!self.panics.load(Ordering::Relaxed), "a policy panics, as the schedule says");
        let told = self.mutants.told(view, self.policy.forecast_day_ms());
        self.policy.plan(told.as_ref().unwrap_or(view))
    }
}

/// Seconds in which a job is promised to go on are fewer than pass between two decisions of `ibm-dp`, so here a second does.
const DELTA_MS: u64 = 1_000;

/// The policy of a schedule.
fn policy_of(setup: &Setup) -> Option<Box<dyn Policy>> {
    let policy = match setup.policy.as_str() {
        "ibm-dp" => Box::new(IbmDp::new(DELTA_MS, Unfit::Wait)),
        name => policy_by_name(name)?,
    };
    let policy = match setup.forecast_day_ms {
        Some(_) => Box::new(WithLending { policy, forecast_day_ms: setup.forecast_day_ms }),
        None => policy,
    };
    Some(if setup.measured_speeds { policy } else { Box::new(WithAssumedSpeeds(policy)) })
}

impl World {
    /// Who plans.
    #[must_use]
    pub fn policy(&self) -> Option<Arc<dyn Policy>> {
        let of_schedule = || policy_of(&self.schedule.setup).map(Arc::from);
        self.planner.clone().or_else(of_schedule)
    }

    /// A controller's process begins; agents and callers find this one from now on.
    pub fn begin_controller(&mut self) {
        let Some(policy) = self.policy() else { return };
        let (panics, mutants) = (Arc::clone(&self.policy_panics), self.mutants.clone());
        let policy: Arc<dyn Policy> = Arc::new(Panicky { policy, panics, mutants });
        let incarnation = self.random.draw();
        let config = CellConfig {
            cell: Cell(0),
            name: format!("controller-{}", self.pids),
            incarnation,
            tick_ms: TICK_MS,
            agent_lease_ms: AGENT_LEASE_MS,
            heartbeat_interval_ms: HEARTBEAT_INTERVAL_MS,
        };
        let process = CellProcess {
            machine: CellMachine::new(config, policy),
            streams: BTreeMap::new(),
            still_ms: 0,
            shown_ms: 0,
        };
        let pid = self.spawn(CONTROL, Body::Cell(Box::new(process)));
        self.controller = Some(pid);
        let wall = self.clock(pid).wall(self.now());
        self.send_in(0, pid, Input::Cell(In::Start { wall }));
    }

    /// Whether a controller takes the cell for its own.
    #[must_use]
    pub fn leads(&self, pid: Pid) -> bool {
        let body = self.processes.get(&pid).map(|process| &process.body);
        matches!(body, Some(Body::Cell(cell)) if cell.machine.is_leading())
    }

    /// What time it is for the controller that took the cell over with this term; if it lives no more, for the one that agents find.
    #[must_use]
    pub fn time_of_term(&self, term: Term) -> Option<TimeMs> {
        let of_term = self
            .processes
            .values()
            .filter_map(cell_of)
            .find(|cell| cell.machine.committed().is_some_and(|committed| committed.term == term));
        let found = of_term.or_else(|| cell_of(self.processes.get(&self.controller?)?))?;
        Some(found.machine.at())
    }

    /// The wall clock of a host jumps; a mutant has the time of the controllers there stand still.
    pub fn jump_clock(&mut self, place: Place, by_ms: i64) {
        self.hosts[usize::from(place)].clock.ahead_ms += by_ms;
        let still_ms = self.mutants.stands_still_ms(by_ms);
        for process in self.processes.values_mut().filter(|process| process.place == place) {
            if let Body::Cell(cell) = &mut process.body {
                cell.still_ms += still_ms;
            }
        }
    }

    fn cell(&mut self, pid: Pid) -> Option<&mut CellProcess> {
        match &mut self.processes.get_mut(&pid)?.body {
            Body::Cell(cell) => Some(cell),
            _ => None,
        }
    }

    /// The machine takes an input.
    pub fn feed_cell(&mut self, pid: Pid, input: In) {
        let now_ms = self.clock(pid).ms(self.now());
        let Some(cell) = self.cell(pid) else { return };
        let now_ms = now_ms.saturating_sub(cell.still_ms).max(cell.shown_ms);
        cell.shown_ms = now_ms;
        for out in cell.machine.handle(now_ms, input) {
            self.perform_cell(pid, out);
        }
    }

    fn perform_cell(&mut self, pid: Pid, out: Out) {
        match out {
            Out::Append { ticket, stream: Stream::Events, record, .. } => self.write_batch(pid, ticket, record),
            Out::Append { ticket, stream: Stream::Reports, record, attempt } => {
                let record = self.mutants.written_report(record);
                self.ask_log(pid, Out::Append { ticket, stream: Stream::Reports, record, attempt });
            }
            Out::Append { .. } | Out::Read { .. } | Out::Follow { .. } | Out::AskEnd { .. } => self.ask_log(pid, out),
            Out::Tell { link, message } => {
                let message = self.mutants.orders(message, &self.hosts, self.bus.now());
                if let Some(conn) = self.cell(pid).and_then(|cell| cell.streams.get(&link).copied()) {
                    self.post(conn, 1, Packet::Down(message));
                }
            }
            Out::EndLink { link, cause } => {
                if let Some(conn) = self.cell(pid).and_then(|cell| cell.streams.remove(&link)) {
                    self.close(conn, 1, cause, true);
                }
            }
            Out::Delete { number, name } => self.delete(pid, number, &name),
            Out::StandDown(end) => self.stand_down(pid, &end),
            Out::WakeAt(ms) => {
                let still_ms = self.cell(pid).map_or(0, |cell| cell.still_ms);
                self.wake_at(pid, (ms + still_ms) * 1_000);
            }
            Out::Committed(committed) => {
                self.note_leader(pid);
                self.check_committed(&committed);
            }
            Out::Note(note) => self.note(pid, &note),
            Out::Telemetry(_) | Out::Counted(_) => {}
        }
    }

    /// A controller writes a batch down. Of one that is written otherwise than it was decided the controller does not learn what became of
    /// it, and reads.
    fn write_batch(&mut self, pid: Pid, ticket: Ticket, record: Vec<u8>) {
        if !self.leads(pid) {
            self.note_claim();
        }
        let written = self.mutants.written(&record, self.now() < self.policy_panics_until, &self.log.truth);
        let word = if written.is_some() { Word::Unknown } else { Word::Acknowledged };
        if written.is_some() {
            self.forgive_claim();
        }
        let (asker, record) = (Asker::Cell(pid), written.unwrap_or(record));
        self.append(Append { asker, ticket: ticket.0, stream: Stream::Events, record, word });
    }

    fn stand_down(&mut self, pid: Pid, end: &controller_cell::CellEnd) {
        self.checks.controllers_ended += 1;
        if let controller_cell::CellEnd::Failed(failure) = end
            && !self.is_rightly_refused(failure)
        {
            self.found("no controller fails on a log that keeps its word", failure.to_string());
        }
        self.end_process(pid);
        if self.controller == Some(pid) {
            self.controller = None;
            self.bus.put(self.bus.now().plus_ms(1_000), Event::Begin(crate::world::Begin::Controller));
        }
    }

    /// An agent's stream reaches the controller.
    pub fn open_stream(&mut self, agent: Pid, number: u64) -> bool {
        let Some(controller) = self.controller.filter(|pid| self.runs(*pid)) else { return false };
        let (Some(place), Some(server)) = (self.processes.get(&agent).map(|p| p.place), self.server_of(agent)) else {
            return false;
        };
        if !self.net.is_whole(place, CONTROL) || !self.net.is_whole(CONTROL, place) {
            return false;
        }
        let nobody = workers_session::Peer(0);
        let Some(conn) = self.connect(Kind::Stream(number), (agent, nobody), (controller, nobody)) else {
            return false;
        };
        let link = LinkId(conn.0);
        let Some(cell) = self.cell(controller) else { return false };
        cell.streams.insert(link, conn);
        self.send_in(0, controller, Input::Cell(In::LinkOpened { link, server }));
        self.agent_is_up(agent, number, conn);
        true
    }

    /// An agent says something to a controller.
    pub fn hear_agent(&mut self, pid: Pid, conn: ConnId, message: AgentMessage) {
        if let Some(message) = self.mutants.heard(message, &self.log, self.bus.now()) {
            self.send_in(0, pid, Input::Cell(In::Said { link: LinkId(conn.0), message }));
        }
    }

    /// An agent has closed its stream.
    pub fn agent_hung_up(&mut self, pid: Pid, conn: ConnId) {
        let Some(cell) = self.cell(pid) else { return };
        cell.streams.remove(&LinkId(conn.0));
        self.send_in(0, pid, Input::Cell(In::LinkClosed { link: LinkId(conn.0) }));
    }
}

fn cell_of(process: &Process) -> Option<&CellProcess> {
    match &process.body {
        Body::Cell(cell) => Some(cell),
        _ => None,
    }
}
