//! Which agents are there: when each was last heard, and the report `AgentGone` about one that stays silent for a lease. That
//! report is an input like any other; what follows from it the core decides. Next file: `deletions.rs`.

use crate::failure::Chain;
use crate::recover::append_input;
use crate::run::{Committed, LogHealth, wall_clock};
use events_log::{EventLog, Stream};
use events_schema::batch::to_bytes;
use events_schema::report::{Report, ReportRecord};
use events_schema::{Cell, ServerId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Looks per lease: an agent is given up at most a tenth of a lease late.
const LOOKS_PER_LEASE: u32 = 10;

/// After a start agents need time to find the controller: so many leases pass before one that was never heard is given up.
const LEASES_AT_START: u32 = 2;

/// When agents were last heard. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Presence {
    lease: Duration,
    heard: Arc<Mutex<Heard>>,
}

#[derive(Debug)]
struct Heard {
    /// A server that is not listed counts as heard then.
    unheard: Instant,
    servers: BTreeMap<ServerId, Instant>,
}

impl Presence {
    pub fn new(lease: Duration) -> Self {
        let unheard = Instant::now() + lease * (LEASES_AT_START - 1);
        Self { lease, heard: Arc::new(Mutex::new(Heard { unheard, servers: BTreeMap::new() })) }
    }

    /// Time of silence after which an agent is given up.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// An agent said something.
    pub fn heard(&self, server: &ServerId) {
        self.lock().servers.insert(server.clone(), Instant::now());
    }

    /// Whether an agent was heard so lately that it counts as there: a few heartbeats, which go every second.
    pub fn was_heard(&self, server: &ServerId) -> bool {
        let heard = self.lock().servers.get(server).copied();
        heard.is_some_and(|at| at.elapsed() < self.lease / 2)
    }

    /// How long an agent has been silent.
    fn silence(&self, server: &ServerId, now: Instant) -> Duration {
        let heard = self.lock();
        now.saturating_duration_since(*heard.servers.get(server).unwrap_or(&heard.unheard))
    }

    /// Counts every agent as heard now: the silence was our own.
    fn forgive(&self, now: Instant) {
        let mut heard = self.lock();
        heard.unheard = heard.unheard.max(now);
        heard.servers.values_mut().for_each(|at| *at = now);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches until told to end.
pub(crate) async fn watch(
    log: Arc<dyn EventLog>,
    cell: Cell,
    presence: Presence,
    committed: watch::Receiver<Option<Committed>>,
    health: LogHealth,
    shutdown: CancellationToken,
) -> Result<(), String> {
    let look_interval = presence.lease / LOOKS_PER_LEASE;
    let mut looked = Instant::now();
    // Agents reported gone, until the state shows it; so that the report is repeated only if it had no effect for a lease.
    let mut reported: BTreeMap<(ServerId, u64), Instant> = BTreeMap::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(look_interval) => {}
        }
        let now = Instant::now();
        if now - looked > look_interval + presence.lease / 2 {
            tracing::warn!(
                stalled_ms = (now - looked).as_millis(),
                "this controller stood still; no agent is given up for that"
            );
            presence.forgive(now);
        }
        looked = now;
        let Some(state) = committed.borrow().as_ref().map(|committed| committed.state.clone()) else { continue };
        let connected = |server: &ServerId, incarnation: u64| {
            state.server(server).is_some_and(|known| known.connected && known.incarnation == incarnation)
        };
        reported.retain(|(server, incarnation), at| connected(server, *incarnation) && now - *at < presence.lease);
        for (server, known) in state.servers().filter(|(_, known)| known.connected) {
            let key = (server.clone(), known.incarnation);
            if presence.silence(server, now) < presence.lease || reported.contains_key(&key) {
                continue;
            }
            tracing::warn!(%server, "an agent was not heard for its lease");
            let record = ReportRecord {
                server: server.clone(),
                incarnation: known.incarnation,
                number: 0,
                at: wall_clock(),
                report: Report::AgentGone,
            };
            match append_input(&*log, Stream::Reports, cell, &to_bytes(&record), &health, &shutdown).await {
                Ok(()) => drop(reported.insert(key, now)),
                Err(_) if shutdown.is_cancelled() => return Ok(()),
                Err(error) => return Err(Chain(&error).to_string()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn silence_counts_from_the_last_word_and_a_start_gives_time() {
        let lease = Duration::from_secs(5);
        let presence = Presence::new(lease);
        let (known, unknown) = (ServerId::parse("a").unwrap(), ServerId::parse("b").unwrap());
        let now = Instant::now();
        presence.heard(&known);
        let later = now + Duration::from_secs(6);
        assert!(presence.silence(&known, later) >= lease);
        assert!(presence.silence(&unknown, later) < lease, "it may still be on its way");
        assert!(presence.silence(&unknown, now + lease * 2 + Duration::from_secs(1)) >= lease);
        presence.forgive(later);
        assert!(presence.silence(&known, later) < lease);
    }
}
