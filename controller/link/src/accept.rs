//! The controller's end: accepts streams, checks token and server name, and hands each on as an [`AgentConnection`]. It does
//! not interpret messages. Next file: `connect.rs`.

use crate::incoming::{GREETING_TIME, Incoming};
use crate::wire::agent_link_server::{AgentLink, AgentLinkServer};
use crate::{AgentToken, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, MESSAGE_BYTES_MAX, SEND_QUEUE_LEN, SERVER_KEY};
use events_schema::ServerId;
use events_schema::orders::{AgentMessage, ControllerMessage, Telemetry, WatchProgress};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

/// A peer that does not take a message within this time is not alive.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Streams of one connection: an agent opens one, and while it replaces a broken one two may overlap.
const STREAMS_PER_CONNECTION_MAX: u32 = 4;

/// One agent's stream, authenticated.
#[derive(Debug)]
pub struct AgentConnection {
    /// The server it may speak for.
    pub server: ServerId,
    inbound: Streaming<AgentMessage>,
    outbound: mpsc::Sender<Result<ControllerMessage, Status>>,
}

/// Why a message was not sent. Both: the stream is over, drop it.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The agent closed the stream or its connection broke.
    #[error("the agent's stream is closed")]
    Closed,
    /// The agent does not take messages.
    #[error("the agent takes no messages")]
    Stuck,
}

/// Why the controller ends a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// The agent was given up meanwhile: it has to stop its executors and join as a new process.
    Rejoin,
    /// It broke the protocol.
    Refused,
    /// Another agent process speaks for this server and is heard.
    Taken,
    /// The controller goes away; try again, here or elsewhere.
    Leaving,
}

impl AgentConnection {
    /// Splits into the receiving and the sending half, which one task may then drive side by side.
    #[must_use]
    pub fn split(self) -> (AgentReceiver, AgentSender) {
        (AgentReceiver(self.inbound), AgentSender(self.outbound))
    }
}

/// Receiving half of an [`AgentConnection`].
#[derive(Debug)]
pub struct AgentReceiver(Streaming<AgentMessage>);

impl AgentReceiver {
    /// The next message; `None` when the agent closed the stream. An error means that the stream is over. Cancel safe.
    pub async fn receive(&mut self) -> Result<Option<AgentMessage>, Status> {
        self.0.message().await
    }
}

/// Sending half of an [`AgentConnection`].
#[derive(Debug, Clone)]
pub struct AgentSender(mpsc::Sender<Result<ControllerMessage, Status>>);

impl AgentSender {
    /// Queues a message; waits a bounded time if the agent is slow.
    pub async fn send(&self, message: ControllerMessage) -> Result<(), SendError> {
        self.send_result(Ok(message)).await
    }

    /// Ends the stream and says why.
    pub async fn end(&self, cause: EndCause) -> Result<(), SendError> {
        self.send_result(Err(match cause {
            EndCause::Rejoin => Status::failed_precondition("this agent was given up: join again"),
            EndCause::Refused => Status::invalid_argument("the stream broke the protocol"),
            EndCause::Taken => Status::already_exists(
                "another agent is connected for this server: stop it, or give this one another --server",
            ),
            EndCause::Leaving => Status::unavailable("this controller goes away"),
        }))
        .await
    }

    async fn send_result(&self, result: Result<ControllerMessage, Status>) -> Result<(), SendError> {
        match tokio::time::timeout(SEND_TIMEOUT, self.0.send(result)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(SendError::Closed),
            Err(_) => Err(SendError::Stuck),
        }
    }
}

/// What arrived after a mark about how far jobs are, each job once, and the mark to ask with next; 0 asks for everything.
pub type ProgressSince = Arc<dyn Fn(u64) -> (u64, Vec<Telemetry>) + Send + Sync>;

/// How often a gateway is told what changed: leaders speak twice a second.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Accepts agents, on so many connections at once, until `shutdown`; every stream goes to `accepted`.
///
/// Returns when shut down, or with the listener's error.
pub async fn serve(
    listener: TcpListener,
    connections_max: usize,
    token: AgentToken,
    accepted: mpsc::Sender<AgentConnection>,
    progress: ProgressSince,
    shutdown: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let service = AgentLinkServer::new(Acceptor { token, accepted, progress, shutdown: shutdown.clone() })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .add_service(service)
        .serve_with_incoming_shutdown(
            Incoming::new(listener, connections_max, GREETING_TIME),
            shutdown.cancelled_owned(),
        )
        .await
}

struct Acceptor {
    token: AgentToken,
    accepted: mpsc::Sender<AgentConnection>,
    progress: ProgressSince,
    shutdown: CancellationToken,
}

impl Acceptor {
    fn ensure_known(&self, metadata: &MetadataMap) -> Result<(), Status> {
        if self.token.accepts(text(metadata, "authorization")) {
            return Ok(());
        }
        Err(Status::unauthenticated("the token is not this cell's"))
    }
}

fn text<'m>(metadata: &'m MetadataMap, key: &str) -> Option<&'m str> {
    metadata.get(key).and_then(|value| value.to_str().ok())
}

#[tonic::async_trait]
impl AgentLink for Acceptor {
    type OpenStream = ReceiverStream<Result<ControllerMessage, Status>>;

    async fn open(&self, request: Request<Streaming<AgentMessage>>) -> Result<Response<Self::OpenStream>, Status> {
        self.ensure_known(request.metadata())?;
        let server = text(request.metadata(), SERVER_KEY)
            .and_then(|name| ServerId::parse(name).ok())
            .ok_or_else(|| Status::invalid_argument("the metadata name no server"))?;
        let (outbound, messages) = mpsc::channel(SEND_QUEUE_LEN);
        let connection = AgentConnection { server, inbound: request.into_inner(), outbound };
        self.accepted.try_send(connection).map_err(|_| Status::unavailable("the controller takes no agents now"))?;
        Ok(Response::new(ReceiverStream::new(messages)))
    }

    type ProgressStream = ReceiverStream<Result<Telemetry, Status>>;

    async fn progress(&self, request: Request<WatchProgress>) -> Result<Response<Self::ProgressStream>, Status> {
        self.ensure_known(request.metadata())?;
        let (outbound, messages) = mpsc::channel(SEND_QUEUE_LEN);
        // Owned by the stream: it ends with its reader, or with this controller.
        tokio::spawn(tell_progress(self.progress.clone(), outbound, self.shutdown.clone()));
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}

/// Sends what changes until nobody reads it any more. A slow reader gets less, but no news that is older than [`PROGRESS_INTERVAL`] when it is sent:
/// what waits is replaced by what is newer, in its place.
async fn tell_progress(
    since: ProgressSince,
    outbound: mpsc::Sender<Result<Telemetry, Status>>,
    shutdown: CancellationToken,
) {
    let (mut mark, mut asked): (u64, Option<Instant>) = (0, None);
    let (mut waiting, mut order) = (BTreeMap::new(), VecDeque::new());
    loop {
        let place = tokio::select! {
            () = shutdown.cancelled() => return,
            place = outbound.reserve() => place,
        };
        let Ok(place) = place else { return };
        if asked.is_none_or(|asked| asked.elapsed() >= PROGRESS_INTERVAL) {
            let (next, changed) = since(mark);
            (mark, asked) = (next, Some(Instant::now()));
            for telemetry in changed {
                let job = telemetry.job.clone();
                if waiting.insert(job.clone(), telemetry).is_none() {
                    order.push_back(job);
                }
            }
        }
        if let Some(telemetry) = order.pop_front().and_then(|job| waiting.remove(&job)) {
            place.send(Ok(telemetry));
            continue;
        }
        drop(place);
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = outbound.closed() => return,
            () = tokio::time::sleep(PROGRESS_INTERVAL) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::{Generation, JobId, Step};
    use std::sync::Mutex;

    fn telemetry(job: &str, step: u64) -> Telemetry {
        Telemetry {
            job: JobId::parse(job).unwrap(),
            generation: Generation(1),
            step: Step(step),
            steps_total: 100,
            epoch: 0,
            loss: 1.0,
            samples_per_second: 1.0,
            step_us: 1,
            members: 1,
            data_wait_us: None,
            checkpoint_every_ms: None,
        }
    }

    /// What waited for a slow reader was told when it was long overtaken.
    #[tokio::test]
    async fn a_slow_reader_is_told_what_is_new() {
        let news = Mutex::new(VecDeque::from([
            vec![telemetry("job-a", 1), telemetry("job-b", 1)],
            vec![telemetry("job-b", 2), telemetry("job-c", 2)],
        ]));
        let since: ProgressSince =
            Arc::new(move |mark| (mark + 1, news.lock().unwrap().pop_front().unwrap_or_default()));
        let (outbound, mut messages) = mpsc::channel(1);
        let telling = tokio::spawn(tell_progress(since, outbound, CancellationToken::new()));
        while messages.is_empty() {
            tokio::task::yield_now().await;
        }
        // The reader is slow.
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        let mut told = Vec::new();
        for _ in 0..3 {
            let telemetry = messages.recv().await.unwrap().unwrap();
            told.push((telemetry.job.to_string(), telemetry.step.0));
        }
        assert_eq!(told, [("job-a".to_owned(), 1), ("job-b".to_owned(), 2), ("job-c".to_owned(), 2)]);
        drop(messages);
        telling.await.unwrap();
    }
}
