//! The agents' streams, one task each: down go a server's whole orders whenever what counts has changed them, and
//! acknowledgements of reports that count; up come reports, which are appended as inputs, and telemetry.
//!
//! Nothing here decides. Orders derive from [`Committed`] alone, so nothing is ordered that could still be undone. Next file:
//! `presence.rs`.

use crate::failure::Chain;
use crate::presence::Presence;
use crate::recover::append_input;
use crate::run::{Committed, LogHealth};
use crate::telemetry::TelemetryBoard;
use controller_core::orders;
use controller_link::{
    AgentConnection, AgentReceiver, AgentSender, EndCause, HEARTBEAT_INTERVAL, Secret, SecretError, SendError,
};
use events_log::{EventLog, Stream};
use events_schema::batch::to_bytes;
use events_schema::orders::{AgentMessage, ControllerMessage, ExecutorOrder, Orders, Telemetry};
use events_schema::report::{Report, ReportRecord};
use events_schema::{Cell, JobId, ServerId};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

/// Time for the first message of a stream.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Servers of a cell, with room for streams that replace broken ones.
const STREAMS_MAX: usize = 2_048;

/// Accepted streams that wait for the hub.
pub(crate) const ACCEPTED_QUEUE_LEN: usize = 64;

/// Root of the keys that executors of a job prove themselves with. It never enters the log.
#[derive(Debug, Clone)]
pub struct CellSecret(Secret);

impl CellSecret {
    /// A new one.
    pub fn generate() -> Result<Self, SecretError> {
        Secret::generate().map(Self)
    }

    /// Reads it from a file that nobody else may read, or writes a new one there first.
    pub fn read_or_create(path: &Path) -> Result<Self, SecretError> {
        Secret::read_or_create(path).map(Self)
    }

    /// The key of one job: the same on every controller of the cell, and useless for any other job.
    #[must_use]
    pub fn job_key(&self, job: &JobId) -> [u8; 32] {
        *blake3::keyed_hash(self.0.bytes(), job.as_str().as_bytes()).as_bytes()
    }
}

/// What every stream needs.
pub(crate) struct Shared {
    pub log: Arc<dyn EventLog>,
    pub cell: Cell,
    pub committed: watch::Receiver<Option<Committed>>,
    pub presence: Presence,
    pub telemetry: TelemetryBoard,
    pub secret: CellSecret,
    pub health: LogHealth,
}

/// Who speaks for each server. Streams share it.
#[derive(Debug, Clone, Default)]
struct Speakers(Arc<Mutex<BTreeMap<ServerId, Speaker>>>);

#[derive(Debug, Clone)]
struct Speaker {
    incarnation: u64,
    stream: CancellationToken,
}

impl Speakers {
    /// Makes a stream the one that speaks for a server and ends the one before. Not if that is of another agent process that
    /// was heard just now: two agents of one name would throw each other out for ever.
    fn take_over(&self, server: &ServerId, speaker: Speaker, presence: &Presence) -> bool {
        let mut speakers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(older) = speakers.get(server).filter(|older| !older.stream.is_cancelled()) {
            if older.incarnation != speaker.incarnation && presence.was_heard(server) {
                return false;
            }
            older.stream.cancel();
        }
        speakers.insert(server.clone(), speaker);
        true
    }

    /// Forgets streams that have ended.
    fn sweep(&self) {
        let mut speakers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        speakers.retain(|_, speaker| !speaker.stream.is_cancelled());
    }
}

/// Owns the streams: one per server.
pub(crate) async fn run(
    shared: Arc<Shared>,
    mut accepted: mpsc::Receiver<AgentConnection>,
    shutdown: CancellationToken,
) -> Result<(), String> {
    let mut streams = JoinSet::new();
    let speakers = Speakers::default();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            Some(ended) = streams.join_next() => {
                ended.map_err(|panic| format!("an agent's stream: {panic}"))?;
                speakers.sweep();
            }
            connection = accepted.recv() => match connection {
                None => break,
                Some(connection) if streams.len() >= STREAMS_MAX => {
                    tracing::error!(server = %connection.server, "more agents than a cell may have; one is turned away");
                }
                Some(connection) => {
                    streams.spawn(serve(Arc::clone(&shared), connection, speakers.clone(), shutdown.child_token()));
                }
            },
        }
    }
    // All of them were told to end with `shutdown`; their ends only wait for a bounded send.
    while let Some(ended) = streams.join_next().await {
        ended.map_err(|panic| format!("an agent's stream: {panic}"))?;
    }
    Ok(())
}

/// One stream from its first message to its end.
async fn serve(shared: Arc<Shared>, connection: AgentConnection, speakers: Speakers, ending: CancellationToken) {
    let server = connection.server.clone();
    let (mut receiver, sender) = connection.split();
    let hello = tokio::select! {
        () = ending.cancelled() => None,
        hello = timeout(HELLO_TIMEOUT, receiver.receive()) => hello.ok(),
    };
    let cause = match hello {
        Some(Ok(Some(AgentMessage::Hello { server: named, incarnation })))
            if named == server
                && !speakers.take_over(&server, Speaker { incarnation, stream: ending.clone() }, &shared.presence) =>
        {
            tracing::warn!(%server, "a second agent of this name is turned away");
            Some(EndCause::Taken)
        }
        Some(Ok(Some(AgentMessage::Hello { server: named, incarnation }))) if named == server => {
            tracing::info!(%server, incarnation, "an agent is there");
            let stream = AgentStream { shared: &shared, server: &server, incarnation };
            tokio::select! {
                () = ending.cancelled() => Some(EndCause::Leaving),
                cause = stream.listen(&mut receiver, &ending) => cause,
                cause = stream.tell(&sender) => cause,
            }
        }
        _ => Some(EndCause::Refused),
    };
    tracing::info!(%server, ?cause, "an agent's stream ended");
    if let Some(cause) = cause {
        // The agent may be gone already; it tries again in any case.
        let _ = sender.end(cause).await;
    }
    ending.cancel();
}

struct AgentStream<'a> {
    shared: &'a Shared,
    server: &'a ServerId,
    incarnation: u64,
}

impl AgentStream<'_> {
    /// Takes messages until the agent is silent, gone, or breaks the protocol. `None`: nobody is left to tell.
    async fn listen(&self, receiver: &mut AgentReceiver, ending: &CancellationToken) -> Option<EndCause> {
        self.shared.presence.heard(self.server);
        loop {
            let message = match timeout(self.shared.presence.lease(), receiver.receive()).await {
                Ok(Ok(Some(message))) => message,
                Ok(Ok(None)) | Err(_) => return None,
                Ok(Err(status)) => {
                    tracing::debug!(server = %self.server, error = %Chain(&status), "an agent's stream broke");
                    return None;
                }
            };
            self.shared.presence.heard(self.server);
            match message {
                AgentMessage::Heartbeat => {}
                AgentMessage::Telemetry(telemetry) => self.keep(telemetry),
                AgentMessage::Hello { .. }
                | AgentMessage::Report { report: Report::AgentGone, .. }
                | AgentMessage::Report { number: 0, .. } => {
                    return Some(EndCause::Refused);
                }
                AgentMessage::Report { number, at, report } => {
                    let record =
                        ReportRecord { server: self.server.clone(), incarnation: self.incarnation, number, at, report };
                    let Shared { log, cell, health, .. } = self.shared;
                    let appended =
                        append_input(&**log, Stream::Reports, *cell, &to_bytes(&record), health, ending).await;
                    if let Err(error) = appended {
                        tracing::error!(server = %self.server, error = %Chain(&error), "cannot write down a report; the agent will repeat it");
                        return Some(EndCause::Leaving);
                    }
                }
            }
        }
    }

    /// Keeps progress of a job that runs on this server; what an agent says of other jobs is not believed.
    fn keep(&self, telemetry: Telemetry) {
        let runs_here = self.shared.committed.borrow().as_ref().is_some_and(|committed| {
            committed.state.executors_of(&telemetry.job).any(|(_, executor)| executor.slot.server == *self.server)
        });
        if runs_here {
            self.shared.telemetry.put(telemetry);
        }
    }

    /// Tells the agent what counts, at every change that concerns it, and that the controller lives.
    async fn tell(&self, sender: &AgentSender) -> Option<EndCause> {
        let mut committed = self.shared.committed.clone();
        let mut told = Told::default();
        // That it and its log live, which renews the loans of the agent's slots.
        let mut heartbeat = interval(HEARTBEAT_INTERVAL);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = committed.borrow_and_update().clone();
            if let Some(now) = &now
                && let Err(end) = self.tell_change(now, &mut told, sender).await
            {
                return end;
            }
            tokio::select! {
                changed = committed.changed() => if changed.is_err() { return Some(EndCause::Leaving) },
                _ = heartbeat.tick() => {
                    // Without a log no fleet can ask for its slots here, so their loans must run out.
                    let Some(epoch) = now.filter(|_| self.shared.health.is_well()).map(|now| now.epoch) else { continue };
                    if let Err(error) = sender.send(ControllerMessage::Heartbeat { epoch }).await {
                        return self.unsent(&error);
                    }
                }
            }
        }
    }

    async fn tell_change(
        &self,
        now: &Committed,
        told: &mut Told,
        sender: &AgentSender,
    ) -> Result<(), Option<EndCause>> {
        match now.state.server(self.server) {
            Some(server) if server.incarnation == self.incarnation => {
                if !server.connected {
                    return Err(Some(EndCause::Rejoin));
                }
                told.joined = true;
                if server.reports_through > told.reports_through {
                    told.reports_through = server.reports_through;
                    // The acknowledgement goes first and orders always follow it: an agent that sees both knows that these
                    // orders come from a state that knew of its reports.
                    told.executors = None;
                    let taken = ControllerMessage::ReportsTaken { through: server.reports_through };
                    sender.send(taken).await.map_err(|error| self.unsent(&error))?;
                }
            }
            // Another process of this server joined after this one.
            _ if told.joined => return Err(Some(EndCause::Rejoin)),
            _ => {}
        }
        let executors = self.orders(now);
        if told.executors.as_ref() != Some(&executors) {
            let mut orders = Orders { epoch: now.epoch, position: now.position, executors: executors.clone() };
            orders.count_down(now.now());
            sender.send(ControllerMessage::Orders(orders)).await.map_err(|error| self.unsent(&error))?;
            told.executors = Some(executors);
        }
        Ok(())
    }

    fn orders(&self, now: &Committed) -> Vec<ExecutorOrder> {
        let mut executors = orders(&now.state, self.server);
        for order in &mut executors {
            order.job.key = self.shared.secret.job_key(&order.executor.job);
        }
        executors
    }

    fn unsent(&self, error: &SendError) -> Option<EndCause> {
        tracing::warn!(server = %self.server, error = %Chain(error), "an agent cannot be told");
        None
    }
}

/// What an agent was told on this stream.
#[derive(Debug, Default)]
struct Told {
    joined: bool,
    reports_through: u64,
    executors: Option<Vec<ExecutorOrder>>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn keys_differ_by_job_and_by_cell_and_come_again() {
        let (one, other) = (CellSecret::generate().unwrap(), CellSecret::generate().unwrap());
        let (a, b) = (JobId::parse("job-a").unwrap(), JobId::parse("job-b").unwrap());
        assert_eq!(one.job_key(&a), one.clone().job_key(&a));
        assert_ne!(one.job_key(&a), one.job_key(&b));
        assert_ne!(one.job_key(&a), other.job_key(&a));
    }
}
