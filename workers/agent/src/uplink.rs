//! The agent's stream to a controller: opened again whenever it breaks, with growing pauses. Up go the reports of the outbox,
//! in order and repeated until taken, and telemetry, which may be lost. Down come orders, passed to the host as they are.
//!
//! It does not judge orders; `host.rs` does. Next file: `controller/server/src/agents.rs`, the other end.

use crate::host::HostEvent;
use crate::outbox::{Numbered, Outbox};
use controller_link::{
    AgentToken, ConnectError, ControllerConnection, HEARTBEAT_INTERVAL, LinkError, SILENCE_MAX, connect,
};
use events_schema::ServerId;
use events_schema::orders::{AgentMessage, ControllerMessage, Telemetry};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// A message that finds no room for this long means that the stream is stuck.
const SEND_TIMEOUT: Duration = SILENCE_MAX;

/// First and longest pause before another attempt; doubled in between and shortened by chance, so that the agents of a
/// restarted controller do not come in step.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Pause after a refusal, which only an operator can change.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

pub(crate) struct Uplink {
    pub server: ServerId,
    pub url: String,
    pub token: AgentToken,
    pub outbox: watch::Receiver<Outbox>,
    pub telemetry: mpsc::Receiver<Telemetry>,
    pub host: mpsc::Sender<HostEvent>,
}

/// How a session ended.
enum SessionEnd {
    /// Open another one.
    Broken(LinkError),
    /// The controller said nothing.
    Silent,
    /// The host became a new process.
    Renewed,
    /// The controller gave this incarnation up: wait for a new one.
    Rejoin { incarnation: u64 },
    /// The agent ends.
    Shutdown,
}

impl Uplink {
    /// Runs until `shutdown`. An error means that the configuration cannot work.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), ConnectError> {
        let mut pause = RETRY_PAUSE_MIN;
        while !shutdown.is_cancelled() {
            let attempt = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                attempt = connect(&self.url, &self.token, &self.server) => attempt,
            };
            let wait = match attempt {
                Ok(connection) => {
                    let (end, heard) = self.session(connection, &shutdown).await;
                    self.after(end, &shutdown).await;
                    if heard {
                        pause = RETRY_PAUSE_MIN;
                    }
                    pause
                }
                Err(error @ ConnectError::Config { .. }) => return Err(error),
                Err(error @ ConnectError::Refused { .. }) => {
                    tracing::error!(error = %Chain(&error), "the controller refuses this agent");
                    REFUSED_PAUSE
                }
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "no controller");
                    pause
                }
            };
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(shortened(wait)) => {}
            }
        }
        Ok(())
    }

    async fn after(&mut self, end: SessionEnd, shutdown: &CancellationToken) {
        match end {
            SessionEnd::Broken(error) => tracing::warn!(error = %Chain(&error), "the stream to the controller broke"),
            SessionEnd::Silent => tracing::warn!("the controller says nothing"),
            SessionEnd::Renewed | SessionEnd::Shutdown => {}
            SessionEnd::Rejoin { incarnation } => {
                tracing::warn!("the controller gave this agent up: ending all executors to join again");
                let renewed = async {
                    // A host that is gone ends the agent, which ends this task.
                    let _ = self.host.send(HostEvent::Rejoin { incarnation }).await;
                    let _ = self.outbox.wait_for(|outbox| outbox.incarnation() != incarnation).await;
                };
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = renewed => {}
                }
            }
        }
    }

    /// One stream; also says whether the controller was heard on it.
    async fn session(
        &mut self,
        mut connection: ControllerConnection,
        shutdown: &CancellationToken,
    ) -> (SessionEnd, bool) {
        let incarnation = self.outbox.borrow().incarnation();
        let mut heard = false;
        let mut silent_at = Instant::now() + SILENCE_MAX;
        let mut heartbeat = interval(HEARTBEAT_INTERVAL);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sent = 0;
        let mut next = Some(AgentMessage::Hello { server: self.server.clone(), incarnation });
        loop {
            if let Some(message) = next.take() {
                match timeout(SEND_TIMEOUT, connection.send(message)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return (self.broken(error, &mut connection, incarnation).await, heard),
                    Err(_) => return (SessionEnd::Silent, heard),
                }
            }
            if let Some(Numbered { number, at, report }) = self.outbox.borrow_and_update().after(sent).cloned() {
                sent = number;
                next = Some(AgentMessage::Report { number, at, report });
            }
            if self.outbox.borrow().incarnation() != incarnation {
                return (SessionEnd::Renewed, heard);
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return (SessionEnd::Shutdown, heard),
                message = connection.receive() => match message {
                    Ok(message) => {
                        heard = true;
                        silent_at = Instant::now() + SILENCE_MAX;
                        self.pass_on(message, incarnation).await;
                    }
                    Err(LinkError::Rejoin) => return (SessionEnd::Rejoin { incarnation }, heard),
                    Err(error) => return (SessionEnd::Broken(error), heard),
                },
                () = std::future::ready(()), if next.is_some() => {}
                Ok(()) = self.outbox.changed() => {}
                Some(telemetry) = self.telemetry.recv() => next = Some(AgentMessage::Telemetry(telemetry)),
                _ = heartbeat.tick() => next = Some(AgentMessage::Heartbeat),
                () = sleep_until(silent_at) => return (SessionEnd::Silent, heard),
            }
        }
    }

    /// The sending half sees a stream end without its reason; the receiving half has it.
    async fn broken(&self, error: LinkError, connection: &mut ControllerConnection, incarnation: u64) -> SessionEnd {
        loop {
            match timeout(SEND_TIMEOUT, connection.receive()).await {
                Ok(Ok(message)) => self.pass_on(message, incarnation).await,
                Ok(Err(LinkError::Rejoin)) => return SessionEnd::Rejoin { incarnation },
                Ok(Err(reason)) => return SessionEnd::Broken(reason),
                Err(_) => return SessionEnd::Broken(error),
            }
        }
    }

    async fn pass_on(&self, message: ControllerMessage, incarnation: u64) {
        let event = match message {
            ControllerMessage::Orders(orders) => HostEvent::Orders { incarnation, orders },
            ControllerMessage::ReportsTaken { through } => HostEvent::Taken { incarnation, through },
            ControllerMessage::Heartbeat { epoch } => HostEvent::Heard { epoch },
            // That it came keeps the stream; no loan is renewed by it.
            ControllerMessage::Alive => return,
        };
        // A host that is gone ends the agent, which ends this task.
        let _ = self.host.send(event).await;
    }
}

/// Between half and all of a pause. Chance that cannot be had costs only the spread.
fn shortened(pause: Duration) -> Duration {
    let chance = getrandom::u32().unwrap_or(u32::MAX);
    pause.mul_f64(0.5 + 0.5 * f64::from(chance) / f64::from(u32::MAX))
}

/// An error with its causes, in one line.
pub(crate) struct Chain<'a>(pub &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
