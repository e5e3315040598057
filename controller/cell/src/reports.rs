//! Reports of agents on their way into the log: per server in their order, one append at a time, repeated until the log has
//! them. Repeating is harmless: a number that was taken has no further effect.
//!
//! Bounded: what does not fit is left for the agent to say again. So is what the log has lost, or was passed over there: each report names the
//! one before it, and where that is missing the core takes none behind it. Next file: `intake.rs`, which takes them from the log.

use crate::health::Health;
use crate::message::{AppendFailure, Attempt, Ticket};
use crate::note::Note;
use crate::outbox::{Backoff, Outbox};
use controller_core::State;
use events_rule::Stream;
use events_schema::batch::to_bytes;
use events_schema::report::ReportRecord;
use events_schema::{Offset, ServerId};
use std::collections::{BTreeMap, VecDeque};

/// Reports of one server that wait for the log: an agent has a few per executor, and keeps what was not taken.
const WAITING_MAX: usize = 256;

/// Longest pause before a report is tried again: short, because the log may be back any moment.
const PAUSE_MAX_MS: u64 = 250;

#[derive(Debug, Clone, Default)]
pub(crate) struct Reports {
    servers: BTreeMap<ServerId, Waiting>,
    /// Whether the cell is ours. Until then they wait: only who has read how far reports are taken can tell whether one comes to stand
    /// where nobody reads any more.
    open: bool,
    /// Whose append it is.
    appends: BTreeMap<Ticket, ServerId>,
    /// When something is due again.
    next_ms: Option<u64>,
}

#[derive(Debug, Clone)]
struct Waiting {
    /// In order; the first is the one on its way.
    records: VecDeque<ReportRecord>,
    /// The newest one taken in: its agent process and number.
    newest: (u64, u64),
    /// The number of the one that the next one follows; 0, none.
    after: u64,
    /// The newest one that the log has acknowledged since the stream began, until it is taken.
    standing: Option<Standing>,
    /// Something was left for the agent to say again.
    overflowed: bool,
    on_its_way: Option<Ticket>,
    /// The append of the first one that failed.
    failed: Option<Ticket>,
    again_ms: Option<u64>,
    backoff: Backoff,
}

/// A report that stands in the log.
#[derive(Debug, Clone, Copy)]
struct Standing {
    incarnation: u64,
    number: u64,
    offset: Offset,
    since_ms: u64,
}

impl Waiting {
    fn new() -> Self {
        Self {
            records: VecDeque::new(),
            newest: (0, 0),
            after: 0,
            standing: None,
            overflowed: false,
            on_its_way: None,
            failed: None,
            again_ms: None,
            backoff: Backoff::new(PAUSE_MAX_MS),
        }
    }

    fn begin(&mut self, now_ms: u64, health: &mut Health, out: &mut Outbox) -> Option<Ticket> {
        let record = self.records.front().filter(|_| self.on_its_way.is_none() && self.again_ms.is_none())?;
        let attempt = self.failed.take().map_or(Attempt::First, Attempt::Again);
        let ticket = out.append(Stream::Reports, to_bytes(record), attempt);
        health.append_begun(ticket, Stream::Reports, now_ms);
        self.on_its_way = Some(ticket);
        Some(ticket)
    }
}

impl Reports {
    /// The cell is ours: what waits goes into the log.
    pub fn open(&mut self, now_ms: u64, health: &mut Health, out: &mut Outbox) {
        self.open = true;
        let servers: Vec<ServerId> = self.servers.keys().cloned().collect();
        servers.iter().for_each(|server| self.begin(server, now_ms, health, out));
    }

    /// The cell may be somebody else's.
    pub fn close(&mut self) {
        self.open = false;
    }

    /// A new stream of an agent: it says again whatever was not taken, from the beginning and in order, so all of it goes into the log once
    /// more. What stands there already may have been passed over: its agent was not there when its turn came, or the log has lost it.
    pub fn hello(&mut self, server: &ServerId) {
        if let Some(waiting) = self.servers.get_mut(server) {
            let begun = waiting.on_its_way.is_some() || waiting.again_ms.is_some();
            waiting.records.truncate(usize::from(begun));
            (waiting.newest, waiting.after, waiting.standing, waiting.overflowed) = ((0, 0), 0, None, false);
        }
    }

    /// Takes a report in, unless it is on its way already or there is no room.
    pub fn push(&mut self, mut record: ReportRecord, now_ms: u64, health: &mut Health, out: &mut Outbox) {
        let server = record.server.clone();
        let waiting = self.servers.entry(server.clone()).or_insert_with(Waiting::new);
        let known = waiting.newest.0 == record.incarnation && record.number <= waiting.newest.1;
        // After one that was left none may be taken: they have to stand in the log in their order.
        if known || waiting.overflowed {
            return;
        }
        if waiting.records.len() >= WAITING_MAX {
            waiting.overflowed = true;
            out.note(Note::ReportsWait { server, kept: WAITING_MAX });
            return;
        }
        waiting.newest = (record.incarnation, record.number);
        record.after = Some(std::mem::replace(&mut waiting.after, record.number));
        waiting.records.push_back(record);
        self.begin(&server, now_ms, health, out);
    }

    /// An append is answered. `None`: not one of a report. Otherwise the server, if its agent has to say again what was left.
    pub fn answered(
        &mut self,
        ticket: Ticket,
        appended: Result<Offset, AppendFailure>,
        now_ms: u64,
        health: &mut Health,
        out: &mut Outbox,
    ) -> Option<Option<ServerId>> {
        let server = self.appends.remove(&ticket)?;
        let waiting = self.servers.get_mut(&server)?;
        waiting.on_its_way = None;
        let dropped = match &appended {
            Ok(_) => None,
            Err(AppendFailure::Unknown(_) | AppendFailure::Unavailable(_)) => {
                let again_ms = now_ms + waiting.backoff.pause_ms();
                (waiting.again_ms, waiting.failed) = (Some(again_ms), Some(ticket));
                self.next_ms = Some(self.next_ms.map_or(again_ms, |next_ms| next_ms.min(again_ms)));
                return Some(None);
            }
            Err(AppendFailure::TooLarge(reason) | AppendFailure::Stopped(reason)) => Some(reason.clone()),
        };
        if let Some(ReportRecord { incarnation, number, after, .. }) = waiting.records.pop_front() {
            match (appended, waiting.records.front_mut()) {
                (Ok(offset), _) => {
                    waiting.standing = Some(Standing { incarnation, number, offset, since_ms: now_ms });
                }
                // What follows one that is dropped follows what that one followed.
                (Err(_), Some(next)) if next.after == Some(number) => next.after = after,
                (Err(_), None) if waiting.after == number => waiting.after = after.unwrap_or(0),
                (Err(_), _) => {}
            }
        }
        waiting.backoff = Backoff::new(PAUSE_MAX_MS);
        if let Some(reason) = dropped {
            out.note(Note::ReportDropped { server: server.clone(), reason });
        }
        let say_again = waiting.records.is_empty() && waiting.overflowed;
        self.begin(&server, now_ms, health, out);
        Some(say_again.then_some(server))
    }

    /// Where the stream of reports ended when somebody asked. Whose newest report stood in the log before that, and is not taken although all
    /// up to its place is, or is not there any more: each with its agent process and the report's number. It is remembered no longer.
    pub fn lost(&mut self, state: &State, taken: Offset, (end, asked_ms): (Offset, u64)) -> Vec<(ServerId, u64, u64)> {
        let mut lost = Vec::new();
        for (server, waiting) in &mut self.servers {
            let Some(Standing { incarnation, number, offset, since_ms }) = waiting.standing else { continue };
            let through = state.reports_taken(server).filter(|(known, _)| *known == incarnation);
            let is_taken = through.is_some_and(|(_, through)| number <= through);
            let is_lost = !is_taken && (offset < taken || (end <= offset && since_ms < asked_ms));
            if is_taken || is_lost {
                waiting.standing = None;
            }
            if is_lost {
                lost.push((server.clone(), incarnation, number));
            }
        }
        lost
    }

    /// Tries again what is due.
    pub fn go_on(&mut self, now_ms: u64, health: &mut Health, out: &mut Outbox) {
        if !self.open || self.next_ms.take_if(|next_ms| *next_ms <= now_ms).is_none() {
            return;
        }
        for (server, waiting) in &mut self.servers {
            if waiting.again_ms.take_if(|again_ms| *again_ms <= now_ms).is_some()
                && let Some(ticket) = waiting.begin(now_ms, health, out)
            {
                self.appends.insert(ticket, server.clone());
            }
        }
        self.next_ms = self.servers.values().filter_map(|waiting| waiting.again_ms).min();
    }

    /// When something is due again.
    pub fn next_ms(&self) -> Option<u64> {
        self.next_ms.filter(|_| self.open)
    }

    fn begin(&mut self, server: &ServerId, now_ms: u64, health: &mut Health, out: &mut Outbox) {
        if !self.open {
            return;
        }
        let begun = self.servers.get_mut(server).and_then(|waiting| waiting.begin(now_ms, health, out));
        if let Some(ticket) = begun {
            self.appends.insert(ticket, server.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::message::Out;
    use events_schema::TimeMs;
    use events_schema::batch::from_bytes;
    use events_schema::report::Report;

    fn record(number: u64) -> ReportRecord {
        let (server, report) = (ServerId::parse("s1").unwrap(), Report::AgentGone);
        ReportRecord { server, incarnation: 7, number, at: TimeMs(1), report, trace: None, after: None }
    }

    /// The report that is appended last, with the append's ticket.
    fn appended(out: &mut Outbox) -> (Ticket, ReportRecord) {
        let outs = out.take();
        let append = outs.iter().rev().find_map(|out| match out {
            Out::Append { ticket, record, .. } => Some((*ticket, record)),
            _ => None,
        });
        let (ticket, record) = append.unwrap();
        (ticket, from_bytes(record).unwrap())
    }

    #[test]
    fn what_follows_a_report_that_does_not_fit_the_log_follows_what_that_one_followed() {
        let (mut reports, mut health, mut out) = (Reports::default(), Health::default(), Outbox::default());
        reports.open(0, &mut health, &mut out);
        let too_large = || Err(AppendFailure::TooLarge("planned".to_owned()));
        [4, 5, 6].into_iter().for_each(|number| reports.push(record(number), 0, &mut health, &mut out));
        let mut follows = Vec::new();
        for answer in [Ok(Offset(9)), too_large(), too_large()] {
            let (ticket, record) = appended(&mut out);
            follows.push((record.number, record.after));
            reports.answered(ticket, answer, 0, &mut health, &mut out).unwrap();
        }
        out.take();
        reports.push(record(7), 0, &mut health, &mut out);
        let (_, record) = appended(&mut out);
        follows.push((record.number, record.after));
        assert_eq!(follows, [(4, Some(0)), (5, Some(4)), (6, Some(4)), (7, Some(4))]);
    }
}
