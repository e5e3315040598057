//! The controller's way: one link at a time, opened again whenever it ends, with growing pauses. Up go the reports of the outbox, in order
//! and repeated until taken, then progress, which may be lost, then a sign of life. One message is under way at a time, so that a link that
//! takes nothing is noticed and nothing piles up behind it. Next file: `outbox.rs`.

use crate::machine::{Agent, Phase};
use crate::words::{LinkEnd, LinkWord, Note, Out};
use events_schema::control::Progress;
use events_schema::orders::{AgentMessage, ControllerMessage, FarEnd, Telemetry};
use events_schema::{ExecutorId, JobId};
use std::collections::BTreeMap;

/// The agent says this often that it lives, as the controller does.
pub const HEARTBEAT_INTERVAL_MS: u64 = 500;

/// A link on which nothing comes for this long, four heartbeats, or whose message finds no room for this long, is opened anew.
pub const SILENCE_MAX_MS: u64 = 2_000;

/// First and longest pause before another attempt; doubled in between and shortened by chance, so that the agents of a restarted
/// controller do not come in step.
const RETRY_PAUSE_MIN_MS: u64 = 50;
const RETRY_PAUSE_MAX_MS: u64 = 2_000;

/// Pause after a refusal, which only an operator can change.
const REFUSED_PAUSE_MS: u64 = 5_000;

/// Jobs whose newest progress waits for the link: more than a server has slots in use. More are left out; progress is stale soon.
const TELEMETRY_WAITING_MAX: usize = 64;

/// The link and what is needed to open the next one.
#[derive(Debug, Clone)]
pub(crate) struct Uplink {
    state: Link,
    /// Number of the newest link.
    newest: u64,
    pause_ms: u64,
    /// The newest of each job.
    telemetry: BTreeMap<JobId, Telemetry>,
    /// What each executor is at, by its newest word.
    progress: BTreeMap<ExecutorId, Progress>,
    /// On which link it was asked for what is measured now, if anything is, and the last answer that waits to be said.
    measures_for: Option<u64>,
    measured: Option<(u64, Option<u64>)>,
    /// The newest ask that came meanwhile, on this link.
    measures_next: Option<(u64, FarEnd)>,
}

#[derive(Debug, Clone)]
enum Link {
    Down { retry_at: u64 },
    Opening,
    Up(Open),
}

/// An open link.
#[derive(Debug, Clone)]
struct Open {
    /// The last report that was sent on it.
    sent: u64,
    /// Since when a message waits for room.
    sending_since: Option<u64>,
    heartbeat_at: u64,
    silent_at: u64,
    heard: bool,
}

impl Uplink {
    pub fn new(now: u64) -> Self {
        Self {
            state: Link::Down { retry_at: now },
            newest: 0,
            pause_ms: RETRY_PAUSE_MIN_MS,
            telemetry: BTreeMap::new(),
            progress: BTreeMap::new(),
            measures_for: None,
            measured: None,
            measures_next: None,
        }
    }
}

impl Agent {
    pub(crate) fn link(&mut self, link: u64, word: LinkWord) {
        if link != self.uplink.newest {
            return;
        }
        let now = self.now.ms;
        match (word, &mut self.uplink.state) {
            (LinkWord::Up, state @ Link::Opening) => {
                let silent_at = now.saturating_add(SILENCE_MAX_MS);
                *state = Link::Up(Open { sent: 0, sending_since: None, heartbeat_at: now, silent_at, heard: false });
                let (server, far_end) = (self.config.server.clone(), self.config.far_end.clone());
                self.send(AgentMessage::Hello { server, incarnation: self.incarnation(), far_end });
            }
            (LinkWord::Sent, Link::Up(open)) => open.sending_since = None,
            (LinkWord::Said(message), Link::Up(open)) => {
                open.heard = true;
                open.silent_at = now.saturating_add(SILENCE_MAX_MS);
                self.heed(message);
            }
            (LinkWord::Down(end), Link::Opening | Link::Up(_)) => self.link_down(end),
            (LinkWord::Up | LinkWord::Sent | LinkWord::Said(_) | LinkWord::Down(_), _) => {}
        }
    }

    fn heed(&mut self, message: ControllerMessage) {
        match message {
            ControllerMessage::Orders(orders) => self.take_orders(orders),
            ControllerMessage::ReportsTaken { through } => self.reports_taken(through),
            ControllerMessage::Heartbeat { term } => self.heard_controller(term),
            ControllerMessage::Alive => {}
            ControllerMessage::MeasureLink { number, far_end } => self.measure_link(number, far_end),
        }
    }

    /// Two at a time would disturb each other: another is begun when the one that was asked for before, on a link that is lost perhaps, is done.
    fn measure_link(&mut self, number: u64, far_end: FarEnd) {
        if self.uplink.measures_for.is_some() {
            self.uplink.measures_next = Some((number, far_end));
        } else {
            self.uplink.measures_for = Some(self.uplink.newest);
            self.outs.push(Out::MeasureLink { number, far_end });
        }
    }

    /// A link was measured; said if the stream is still the one on which it was asked for, or another controller would take it for its own.
    pub(crate) fn link_measured(&mut self, number: u64, bytes_per_s: Option<u64>) {
        let asked_on = self.uplink.measures_for.take();
        if asked_on == Some(self.uplink.newest) && matches!(self.uplink.state, Link::Up(_)) {
            self.uplink.measured = Some((number, bytes_per_s));
        }
        if let Some((number, far_end)) = self.uplink.measures_next.take() {
            self.measure_link(number, far_end);
        }
    }

    fn link_down(&mut self, end: LinkEnd) {
        if matches!(&self.uplink.state, Link::Up(open) if open.heard) {
            self.uplink.pause_ms = RETRY_PAUSE_MIN_MS;
        }
        let pause_ms = if end == LinkEnd::Refused { REFUSED_PAUSE_MS } else { self.uplink.pause_ms };
        // Between half and all of it.
        let shortened_ms = pause_ms - self.random() % (pause_ms / 2 + 1);
        self.uplink.pause_ms = (self.uplink.pause_ms * 2).min(RETRY_PAUSE_MAX_MS);
        self.uplink.state = Link::Down { retry_at: self.after(shortened_ms) };
        self.uplink.telemetry.clear();
        self.uplink.progress.clear();
        self.uplink.measured = None;
        self.uplink.measures_next = None;
        if end == LinkEnd::GivenUp && self.phase == Phase::Serving {
            self.outs.push(Out::Note(Note::GivenUp));
            self.end_all(Phase::Rejoining);
        }
    }

    /// Ends the link from this side.
    pub(crate) fn hang_up(&mut self) {
        if !matches!(self.uplink.state, Link::Down { .. }) {
            self.outs.push(Out::HangUp { link: self.uplink.newest });
            self.link_down(LinkEnd::Broken);
        }
    }

    /// Progress of a job; the newest counts, and progress that finds no room is stale by the time there is some.
    pub(crate) fn keep_telemetry(&mut self, telemetry: Telemetry) {
        let waiting = &mut self.uplink.telemetry;
        if waiting.len() < TELEMETRY_WAITING_MAX || waiting.contains_key(&telemetry.job) {
            waiting.insert(telemetry.job.clone(), telemetry);
        }
    }

    /// What an executor is at, for the controller's watch. There are never more than slots; a word that is overtaken is not sent.
    pub(crate) fn keep_progress(&mut self, executor: &ExecutorId, progress: Progress) {
        let waiting = &mut self.uplink.progress;
        if waiting.len() < TELEMETRY_WAITING_MAX || waiting.contains_key(executor) {
            waiting.insert(executor.clone(), progress);
        }
    }

    /// What the link has to do by the clock.
    pub(crate) fn pass_link_time(&mut self) {
        match &self.uplink.state {
            // One that was given up is a new process first.
            Link::Down { retry_at } if *retry_at <= self.now.ms && self.phase != Phase::Rejoining => {
                self.uplink.newest += 1;
                self.uplink.state = Link::Opening;
                self.outs.push(Out::Connect { link: self.uplink.newest });
            }
            Link::Up(open) if open.dead_at() <= self.now.ms => {
                self.outs.push(Out::Note(Note::ControllerSilent));
                self.hang_up();
            }
            Link::Down { .. } | Link::Opening | Link::Up(_) => {}
        }
    }

    pub(crate) fn link_alarm(&self) -> Option<u64> {
        match &self.uplink.state {
            Link::Down { retry_at } => (self.phase != Phase::Rejoining).then_some(*retry_at),
            Link::Opening => None,
            Link::Up(open) if open.sending_since.is_some() => Some(open.dead_at()),
            Link::Up(open) => Some(open.dead_at().min(open.heartbeat_at)),
        }
    }

    /// Sends the next message, if the link has room for one.
    pub(crate) fn pump(&mut self) {
        let Link::Up(open) = &mut self.uplink.state else { return };
        if open.sending_since.is_some() {
            return;
        }
        if let Some(next) = self.outbox.after(open.sent) {
            open.sent = next.number;
            let (number, at, report) = (next.number, next.at, next.report.clone());
            self.outbox.note_sent(number);
            self.send(AgentMessage::Report { number, at, report, trace: None });
        } else if let Some((number, bytes_per_s)) = self.uplink.measured.take() {
            self.send(AgentMessage::LinkMeasured { number, bytes_per_s });
        } else if let Some((_, telemetry)) = self.uplink.telemetry.pop_first() {
            self.send(AgentMessage::Telemetry(telemetry));
        } else if let Some((executor, progress)) = self.uplink.progress.pop_first() {
            self.send(AgentMessage::Progress { executor, progress });
        } else if open.heartbeat_at <= self.now.ms {
            self.send(AgentMessage::Heartbeat);
        }
    }

    fn send(&mut self, message: AgentMessage) {
        let now = self.now.ms;
        if let Link::Up(open) = &mut self.uplink.state {
            open.sending_since = Some(now);
            // Any message is a sign of life.
            open.heartbeat_at = now.saturating_add(HEARTBEAT_INTERVAL_MS);
            self.outs.push(Out::Send { link: self.uplink.newest, message: Box::new(message) });
        }
    }
}

impl Open {
    /// When it is given up, if nothing changes.
    fn dead_at(&self) -> u64 {
        let stuck_at = self.sending_since.map(|since| since.saturating_add(SILENCE_MAX_MS));
        stuck_at.map_or(self.silent_at, |stuck_at| stuck_at.min(self.silent_at))
    }
}
