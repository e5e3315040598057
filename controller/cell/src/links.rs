//! The streams to the agents: one that speaks for each server. Up come reports and telemetry, down go acknowledgements, orders
//! and the word that the controller lives.
//!
//! What agents are told derives from [`Committed`] alone, so nothing is ordered that could still be undone, and it is told only
//! where something has changed. Next file: `reports.rs`.
//!
//! Next on a job's path: `workers/agent-core/src/lib.rs`.

use crate::message::{Committed, LinkEnd, LinkId};
use crate::note::Note;
use crate::outbox::Outbox;
use crate::presence::Presence;
use controller_core::orders::{Touched, orders};
use controller_core::survey::Ask;
use events_schema::control::Progress;
use events_schema::orders::{AgentMessage, ControllerMessage, ExecutorOrder, FarEnd, Orders, Telemetry};
use events_schema::report::ReportRecord;
use events_schema::{ExecutorId, ServerId, Term, TimeMs};
use std::collections::BTreeMap;

/// Servers of a cell, with room for streams that replace broken ones.
const LINKS_MAX: usize = 2_048;

/// Time for the first message of a stream.
const HELLO_TIMEOUT_MS: u64 = 5_000;

/// Looks for streams that are silent, per lease of an agent.
const LOOKS_PER_LEASE: u64 = 10;

#[derive(Debug, Clone)]
pub(crate) struct Links {
    links: BTreeMap<LinkId, Link>,
    /// The newest link of each server, which alone counts.
    current_links: BTreeMap<ServerId, LinkId>,
    heartbeat_interval_ms: u64,
    beat_ms: u64,
    look_ms: u64,
}

#[derive(Debug, Clone)]
struct Link {
    server: ServerId,
    /// The agent process, once it has said hello.
    incarnation: Option<u64>,
    heard_ms: u64,
    told: Told,
}

/// What an agent was told on its stream.
#[derive(Debug, Clone, Default)]
struct Told {
    joined: bool,
    reports_through: u64,
    executors: Option<Vec<ExecutorOrder>>,
}

/// What an agent said, if it is more than that it lives.
#[derive(Debug)]
pub(crate) enum Word {
    /// It is there, and the link to its server is measured here.
    Hello(LinkId, ServerId, Option<FarEnd>),
    /// It saw something.
    Report(ReportRecord),
    /// How far a job is that runs on this server, by its own word.
    Telemetry(ServerId, Telemetry),
    /// What an executor on this server is at, by its own word.
    Progress(ServerId, ExecutorId, Progress),
    /// What it measured of a link, as it was asked by this number.
    LinkMeasured(ServerId, u64, Option<u64>),
}

impl Links {
    pub fn new(heartbeat_interval_ms: u64) -> Self {
        Self { links: BTreeMap::new(), current_links: BTreeMap::new(), heartbeat_interval_ms, beat_ms: 0, look_ms: 0 }
    }

    pub fn opened(&mut self, link: LinkId, server: ServerId, now_ms: u64, out: &mut Outbox) {
        if self.links.len() >= LINKS_MAX {
            out.note(Note::TooManyAgents { server });
            out.end_link(link, Some(LinkEnd::Leaving));
            return;
        }
        self.links.insert(link, Link { server, incarnation: None, heard_ms: now_ms, told: Told::default() });
    }

    /// A stream is over; its server, if nobody speaks for it any more.
    pub fn closed(&mut self, link: LinkId) -> Option<ServerId> {
        let server = self.links.remove(&link)?.server;
        if self.current_links.get(&server) == Some(&link) {
            self.current_links.remove(&server);
            return Some(server);
        }
        None
    }

    /// Takes a message. A stream that breaks the protocol is ended.
    pub fn said(
        &mut self,
        link: LinkId,
        message: AgentMessage,
        now_ms: u64,
        presence: &mut Presence,
        out: &mut Outbox,
    ) -> Option<Word> {
        let Link { server, incarnation, heard_ms, .. } = self.links.get_mut(&link)?;
        *heard_ms = now_ms;
        let (server, incarnation) = (server.clone(), *incarnation);
        let word = match (incarnation, message) {
            (None, AgentMessage::Hello { server: named, incarnation, far_end }) if named == server => {
                if !self.take_over(link, &server, incarnation, now_ms, presence, out) {
                    return None;
                }
                Some(Word::Hello(link, server.clone(), far_end))
            }
            (Some(_), AgentMessage::Heartbeat) => None,
            (Some(_), AgentMessage::Telemetry(telemetry)) => Some(Word::Telemetry(server.clone(), telemetry)),
            (Some(_), AgentMessage::Progress { executor, progress }) => {
                Some(Word::Progress(server.clone(), executor, progress))
            }
            (Some(_), AgentMessage::LinkMeasured { number, bytes_per_s }) => {
                Some(Word::LinkMeasured(server.clone(), number, bytes_per_s))
            }
            (Some(incarnation), AgentMessage::Report { number, at, report, trace })
                if number > 0 && !report.is_the_controllers() =>
            {
                let server = server.clone();
                Some(Word::Report(ReportRecord { server, incarnation, number, at, report, trace, after: None }))
            }
            // Nothing before hello, one hello, and nobody speaks for another server or for the controller.
            _ => {
                self.end(link, Some(LinkEnd::Refused), out);
                return None;
            }
        };
        presence.heard(&server, now_ms);
        word
    }

    /// Makes a stream the one that speaks for its server and ends the one before. Not if that is of another agent process that
    /// was heard just now: two agents of one name would throw each other out for ever.
    fn take_over(
        &mut self,
        link: LinkId,
        server: &ServerId,
        incarnation: u64,
        now_ms: u64,
        presence: &Presence,
        out: &mut Outbox,
    ) -> bool {
        if let Some(older) = self.current_links.get(server).copied() {
            let other = self.links.get(&older).is_some_and(|older| older.incarnation != Some(incarnation));
            if other && presence.was_heard(server, now_ms) {
                out.note(Note::AgentTurnedAway { server: server.clone() });
                self.end(link, Some(LinkEnd::Taken), out);
                return false;
            }
            self.end(older, Some(LinkEnd::Leaving), out);
        }
        out.note(Note::AgentThere { server: server.clone(), incarnation });
        self.current_links.insert(server.clone(), link);
        if let Some(link) = self.links.get_mut(&link) {
            link.incarnation = Some(incarnation);
        }
        true
    }

    /// Whether this agent process is the one that speaks for its server now.
    pub fn speaks(&self, server: &ServerId, incarnation: u64) -> bool {
        let link = self.current_links.get(server).and_then(|link| self.links.get(link));
        link.is_some_and(|link| link.incarnation == Some(incarnation))
    }

    /// Ends the stream that speaks for a server, so that its agent opens another and says again what was not taken.
    pub fn renew(&mut self, server: &ServerId, out: &mut Outbox) {
        if let Some(link) = self.current_links.get(server).copied() {
            self.end(link, Some(LinkEnd::Leaving), out);
        }
    }

    fn end(&mut self, link: LinkId, cause: Option<LinkEnd>, out: &mut Outbox) {
        self.closed(link);
        out.end_link(link, cause);
    }

    /// Tells the agents what has changed for them.
    pub fn publish(&mut self, committed: &Committed, touched: &Touched, at: TimeMs, out: &mut Outbox) {
        let links: Vec<LinkId> = match touched {
            Touched::All => self.current_links.values().copied().collect(),
            Touched::Servers(servers) => {
                servers.iter().filter_map(|server| self.current_links.get(server)).copied().collect()
            }
        };
        links.into_iter().for_each(|link| self.tell(link, committed, at, out));
    }

    /// Tells one agent what counts, as far as it does not know it on this stream. `at` is the controller's time.
    pub fn tell(&mut self, number: LinkId, committed: &Committed, at: TimeMs, out: &mut Outbox) {
        let Some(link) = self.links.get_mut(&number) else { return };
        let told = &mut link.told;
        match committed.state.server(&link.server) {
            Some(server) if Some(server.incarnation) == link.incarnation => {
                if !server.connected {
                    return self.end(number, Some(LinkEnd::Rejoin), out);
                }
                told.joined = true;
                if server.reports_through > told.reports_through {
                    told.reports_through = server.reports_through;
                    // The acknowledgement goes first and orders always follow it: an agent that sees both knows that these
                    // orders come from a state that knew of its reports.
                    told.executors = None;
                    out.tell(number, ControllerMessage::ReportsTaken { through: server.reports_through });
                }
            }
            // Another process of this server joined after this one.
            _ if told.joined => return self.end(number, Some(LinkEnd::Rejoin), out),
            _ => {}
        }
        let executors = orders(&committed.state, &link.server);
        if told.executors.as_ref() != Some(&executors) {
            told.executors = Some(executors.clone());
            let mut orders = Orders { term: committed.term, position: committed.position, executors };
            orders.count_down(at);
            out.tell(number, ControllerMessage::Orders(orders));
        }
    }

    /// Has an agent measure the link to another server.
    pub fn have_measured(&self, Ask { server, number, far_end }: Ask, out: &mut Outbox) {
        if let Some(link) = self.current_links.get(&server) {
            out.tell(*link, ControllerMessage::MeasureLink { number, far_end });
        }
    }

    /// Says that the controller lives, if it is time, and ends streams that say nothing. `renews` has the term if the word is
    /// to renew the loans of the agents' slots.
    pub fn go_on(&mut self, now_ms: u64, lease_ms: u64, renews: Option<Term>, out: &mut Outbox) {
        if now_ms >= self.beat_ms {
            self.beat_ms = now_ms + self.heartbeat_interval_ms;
            for link in self.current_links.values() {
                out.tell(*link, beat(renews));
            }
        }
        if now_ms >= self.look_ms {
            self.look_ms = now_ms + (lease_ms / LOOKS_PER_LEASE).max(1);
            let silent = |link: &Link| {
                let silence_max_ms = if link.incarnation.is_none() { HELLO_TIMEOUT_MS } else { lease_ms };
                now_ms.saturating_sub(link.heard_ms) >= silence_max_ms
            };
            let silent: Vec<LinkId> = self.links.iter().filter(|(_, link)| silent(link)).map(|(id, _)| *id).collect();
            for link in silent {
                let greeted = self.links.get(&link).is_some_and(|link| link.incarnation.is_some());
                self.end(link, (!greeted).then_some(LinkEnd::Refused), out);
            }
        }
    }

    /// The first word on a stream, and the first after the log is back, does not wait for its turn.
    pub fn greet(&self, link: LinkId, renews: Option<Term>, out: &mut Outbox) {
        out.tell(link, beat(renews));
    }

    /// Has everybody told at once that the controller lives.
    pub fn hurry(&mut self) {
        self.beat_ms = 0;
    }

    /// No stream was read for a while, and that was not the agents' doing.
    pub fn forgive(&mut self, now_ms: u64) {
        self.links.values_mut().for_each(|link| link.heard_ms = now_ms);
    }

    /// When something is due.
    pub fn next_ms(&self) -> Option<u64> {
        (!self.links.is_empty()).then_some(self.beat_ms.min(self.look_ms))
    }
}

fn beat(renews: Option<Term>) -> ControllerMessage {
    match renews {
        Some(term) => ControllerMessage::Heartbeat { term },
        None => ControllerMessage::Alive,
    }
}
