//! The agent's end: opens one stream to a controller and says whether it is worth trying again. It does not reconnect; its
//! caller does, `workers/agent/src/uplink.rs`. A gateway in a process of its own asks the same way how far jobs are.

use crate::wire::agent_link_client::AgentLinkClient;
use crate::{AgentToken, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, MESSAGE_BYTES_MAX, SEND_QUEUE_LEN, SERVER_KEY};
use events_schema::ServerId;
use events_schema::orders::{AgentMessage, ControllerMessage, Telemetry, WatchProgress};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, Streaming};

/// Time for a controller to answer a connection and an opened stream.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Why no stream could be opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum ConnectError {
    /// The URL or token cannot be used. Stop.
    #[error("cannot connect to a controller at `{url}`: {reason}")]
    Config {
        /// As configured.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Nobody answers. Retry.
    #[error("no controller answers at `{url}`")]
    Unreachable {
        /// As configured.
        url: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The controller refuses this agent's token or name. Retry slowly: an operator has to act.
    #[error("the controller at `{url}` refuses this agent")]
    Refused {
        /// As configured.
        url: String,
        /// Its words.
        #[source]
        source: Box<Status>,
    },
}

/// How a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The connection broke or the controller went away. Retry.
    #[error("the stream to the controller ended")]
    Ended(#[source] Option<Box<Status>>),
    /// The controller gave this agent up: stop all executors, then join again as a new process.
    #[error("the controller gave this agent up")]
    Rejoin,
}

impl LinkError {
    fn of(status: Status) -> Self {
        match status.code() {
            Code::FailedPrecondition => LinkError::Rejoin,
            _ => LinkError::Ended(Some(Box::new(status))),
        }
    }
}

/// An open stream to a controller.
#[derive(Debug)]
pub struct ControllerConnection {
    inbound: Streaming<ControllerMessage>,
    outbound: mpsc::Sender<AgentMessage>,
}

impl ControllerConnection {
    /// The next message. An error means that the stream is over. Cancel safe.
    pub async fn receive(&mut self) -> Result<ControllerMessage, LinkError> {
        match self.inbound.message().await {
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(LinkError::Ended(None)),
            Err(status) => Err(LinkError::of(status)),
        }
    }

    /// Queues a message, waiting for room.
    pub async fn send(&self, message: AgentMessage) -> Result<(), LinkError> {
        self.outbound.send(message).await.map_err(|_| LinkError::Ended(None))
    }

    /// The sending half, which can be used beside [`ControllerConnection::receive`].
    #[must_use]
    pub fn sender(&self) -> mpsc::Sender<AgentMessage> {
        self.outbound.clone()
    }
}

/// A controller that answers connections, and how to show it the token.
struct Controller<'a> {
    url: &'a str,
    client: AgentLinkClient<Channel>,
    bearer: MetadataValue<Ascii>,
}

impl<'a> Controller<'a> {
    async fn reach(url: &'a str, token: &AgentToken) -> Result<Self, ConnectError> {
        let endpoint = Endpoint::from_shared(url.to_owned())
            .map_err(|e| misconfigured(url, e.to_string()))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        let channel = endpoint.connect().await.map_err(|e| unreachable(url, e))?;
        let client = AgentLinkClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let mut bearer: MetadataValue<_> =
            token.bearer().parse().map_err(|_| misconfigured(url, "the token is no header value".to_owned()))?;
        bearer.set_sensitive(true);
        Ok(Self { url, client, bearer })
    }

    /// Waits a bounded time for the answer to a request for a stream.
    async fn answer<T>(
        url: &str,
        opening: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
    ) -> Result<Streaming<T>, ConnectError> {
        match tokio::time::timeout(CONNECT_TIMEOUT, opening).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(match status.code() {
                Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument => {
                    ConnectError::Refused { url: url.to_owned(), source: Box::new(status) }
                }
                _ => unreachable(url, status),
            }),
            Err(elapsed) => Err(unreachable(url, elapsed)),
        }
    }
}

/// Opens a stream as `server` to the controller at `url` (`http://HOST:PORT`).
pub async fn connect(url: &str, token: &AgentToken, server: &ServerId) -> Result<ControllerConnection, ConnectError> {
    let mut controller = Controller::reach(url, token).await?;
    let (outbound, messages) = mpsc::channel(SEND_QUEUE_LEN);
    let mut request = Request::new(ReceiverStream::new(messages));
    let name =
        server.as_str().parse().map_err(|_| misconfigured(url, "the server name is no header value".to_owned()))?;
    request.metadata_mut().insert("authorization", controller.bearer);
    request.metadata_mut().insert(SERVER_KEY, name);
    let inbound = Controller::answer(controller.url, controller.client.open(request)).await?;
    Ok(ControllerConnection { inbound, outbound })
}

/// How far jobs are, as a controller in another process knows it.
#[derive(Debug)]
pub struct Progress(Streaming<Telemetry>);

impl Progress {
    /// What a job's leader said last. An error means that the stream is over. Cancel safe.
    pub async fn next(&mut self) -> Result<Telemetry, LinkError> {
        match self.0.message().await {
            Ok(Some(telemetry)) => Ok(telemetry),
            Ok(None) => Err(LinkError::Ended(None)),
            Err(status) => Err(LinkError::of(status)),
        }
    }
}

/// Asks the controller at `url` how far jobs are: all of them first, then whatever changes.
pub async fn progress(url: &str, token: &AgentToken) -> Result<Progress, ConnectError> {
    let mut controller = Controller::reach(url, token).await?;
    let mut request = Request::new(WatchProgress {});
    request.metadata_mut().insert("authorization", controller.bearer);
    Controller::answer(controller.url, controller.client.progress(request)).await.map(Progress)
}

fn misconfigured(url: &str, reason: String) -> ConnectError {
    ConnectError::Config { url: url.to_owned(), reason }
}

fn unreachable(url: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ConnectError {
    ConnectError::Unreachable { url: url.to_owned(), source: source.into() }
}
