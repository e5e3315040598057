//! One link to a controller, from the attempt to its end: messages down to the host as they come, messages up one at a time. It judges
//! nothing and opens no second one; `workers/agent-core/src/link.rs` decides both. Next file: `controller/server/src/agents.rs`, the other end.

use crate::host::{HostEvent, of_link};
use controller_link::{AgentToken, ConnectError, ControllerConnection, LinkError, connect};
use events_schema::ServerId;
use events_schema::orders::AgentMessage;
use shell::Chain;
use std::convert::Infallible;
use std::future::pending;
use tokio::sync::mpsc;
use workers_agent_core::{LinkEnd, LinkWord};

/// What a link needs.
pub(crate) struct Uplink {
    /// Its number.
    pub link: u64,
    pub server: ServerId,
    pub url: String,
    pub token: AgentToken,
    pub host: mpsc::Sender<HostEvent>,
}

/// Opens the link and serves it until it ends, or until nobody wants it any more and the task is aborted.
pub(crate) async fn run(uplink: Uplink, messages: mpsc::Receiver<AgentMessage>) {
    let end = match connect(&uplink.url, &uplink.token, &uplink.server).await {
        Ok(connection) => {
            uplink.tell(LinkWord::Up).await;
            converse(&uplink, connection, messages).await
        }
        Err(error @ ConnectError::Config { .. }) => {
            let reason = Chain(&error).to_string();
            // A host that is gone ends the agent, and this with it.
            let _ = uplink.host.send(HostEvent::Unusable(reason)).await;
            return;
        }
        Err(error @ ConnectError::Refused { .. }) => {
            tracing::error!(error = %Chain(&error), "the controller refuses this agent");
            LinkEnd::Refused
        }
        Err(error) => {
            tracing::debug!(error = %Chain(&error), "no controller");
            LinkEnd::Broken
        }
    };
    uplink.tell(LinkWord::Down(end)).await;
}

async fn converse(
    uplink: &Uplink,
    mut connection: ControllerConnection,
    messages: mpsc::Receiver<AgentMessage>,
) -> LinkEnd {
    let sender = connection.sender();
    tokio::select! {
        end = receive(uplink, &mut connection) => end,
        never = send(uplink, &sender, messages) => match never {},
    }
}

async fn receive(uplink: &Uplink, connection: &mut ControllerConnection) -> LinkEnd {
    loop {
        match connection.receive().await {
            Ok(message) => uplink.tell(LinkWord::Said(message)).await,
            Err(LinkError::Rejoin) => return LinkEnd::GivenUp,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "the stream to the controller broke");
                return LinkEnd::Broken;
            }
        }
    }
}

/// The sending half sees a stream end without its reason, so it rests then; the receiving half has the reason.
async fn send(
    uplink: &Uplink,
    sender: &mpsc::Sender<AgentMessage>,
    mut messages: mpsc::Receiver<AgentMessage>,
) -> Infallible {
    while let Some(message) = messages.recv().await {
        if sender.send(message).await.is_err() {
            break;
        }
        uplink.tell(LinkWord::Sent).await;
    }
    pending().await
}

impl Uplink {
    async fn tell(&self, word: LinkWord) {
        // A host that is gone ends the agent, and this with it.
        let _ = self.host.send(of_link(self.link, word)).await;
    }
}
