//! The agent's end: opens one stream to a controller and says whether it is worth trying again. It does not reconnect; its
//! caller does, `workers/agent/src/uplink.rs`.

use crate::wire::agent_link_client::AgentLinkClient;
use crate::{AgentToken, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, MESSAGE_BYTES_MAX, SEND_QUEUE_LEN, SERVER_KEY};
use events_schema::ServerId;
use events_schema::orders::{AgentMessage, ControllerMessage};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status, Streaming};

/// Time for a controller to answer a connection and an opened stream.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Why no stream could be opened.
#[derive(Debug, thiserror::Error)]
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
        /// Why.
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

/// Opens a stream as `server` to the controller at `url` (`http://HOST:PORT`).
pub async fn connect(url: &str, token: &AgentToken, server: &ServerId) -> Result<ControllerConnection, ConnectError> {
    let config = |reason: String| ConnectError::Config { url: url.to_owned(), reason };
    let endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(|e| config(e.to_string()))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let unreachable = |source| ConnectError::Unreachable { url: url.to_owned(), source };
    let channel = endpoint.connect().await.map_err(|e| unreachable(Box::new(e)))?;
    let mut client = AgentLinkClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);

    let (outbound, messages) = mpsc::channel(SEND_QUEUE_LEN);
    let mut request = Request::new(ReceiverStream::new(messages));
    let mut bearer: MetadataValue<_> =
        token.bearer().parse().map_err(|_| config("the token is no header value".to_owned()))?;
    bearer.set_sensitive(true);
    let name = server.as_str().parse().map_err(|_| config("the server name is no header value".to_owned()))?;
    request.metadata_mut().insert("authorization", bearer);
    request.metadata_mut().insert(SERVER_KEY, name);

    match tokio::time::timeout(CONNECT_TIMEOUT, client.open(request)).await {
        Ok(Ok(response)) => Ok(ControllerConnection { inbound: response.into_inner(), outbound }),
        Ok(Err(status)) => Err(match status.code() {
            Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument => {
                ConnectError::Refused { url: url.to_owned(), source: Box::new(status) }
            }
            _ => unreachable(Box::new(status)),
        }),
        Err(elapsed) => Err(unreachable(Box::new(elapsed))),
    }
}
