//! The stream between a controller and the node agents: one bidirectional HTTP/2 stream per server, opened by the agent. A second
//! method tells gateways in other processes how far jobs are ([`events_schema::orders::Telemetry`]), for whoever has the token.
//!
//! It carries [`events_schema::orders::AgentMessage`] up and [`events_schema::orders::ControllerMessage`] down, in the bytes
//! of [`events_schema::batch::to_bytes`]. It only carries: what a message means is decided by `controller-server` and
//! `workers-agent`, and nothing here knows the log.
//!
//! Identity. An agent shows a bearer token ([`AgentToken`]) and names its server in the metadata key [`SERVER_KEY`]; its
//! `Hello` must name the same one. There is **one token per data directory** so far: whoever holds it can speak for any
//! server of that cell. And there is **no transport encryption yet**: token, specs and keys travel in clear text, so a
//! controller has to listen on loopback or on a network whose every host is trusted.
//!
//! Reading order: `token.rs`, `codec.rs`, `incoming.rs` and `accept.rs` (the controller's end), `connect.rs` (the agent's end). Next on a job's
//! path: `workers/agent/src/uplink.rs`.

mod accept;
mod codec;
mod connect;
mod incoming;
mod token;

pub use accept::{AgentConnection, AgentReceiver, AgentSender, EndCause, ProgressSince, SendError, serve};
pub use connect::{ConnectError, ControllerConnection, LinkError, Progress, connect, progress};
pub use token::{AgentToken, Secret, SecretError, read_private};

use std::time::Duration;

/// The generated service: client and server of `Open`, the stream of an agent, and `Progress`, that of a gateway.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
mod wire {
    include!(concat!(env!("OUT_DIR"), "/ebb.link.v1.AgentLink.rs"));
}

/// Metadata key under which an agent names its server.
pub const SERVER_KEY: &str = "ebb-server";

/// Largest message in either direction: the orders of a server with a few hundred executors, each with a spec of some
/// kilobytes and a membership of 256, stay well below.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// Messages waiting to be sent on one stream before its sender has to wait. Orders are whole states, so a peer that is this
/// far behind gains nothing from a longer queue.
pub const SEND_QUEUE_LEN: usize = 16;

/// Each end says this often that it lives.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// An agent that hears nothing for this long, four heartbeats, opens its stream anew.
pub const SILENCE_MAX: Duration = Duration::from_secs(2);

/// A controller that hears nothing for this long, nine heartbeats, gives an agent up, so that its jobs train again within five seconds.
pub const AGENT_LEASE: Duration = Duration::from_millis(4_500);

const _: () = assert!(
    2 * SILENCE_MAX.as_millis() < AGENT_LEASE.as_millis(),
    "a healthy agent on a dead connection has to be back before it is given up"
);

/// A connection that carries nothing is probed this often, so that a vanished host is noticed below the messages' own beat.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// And given up when a probe is not answered for this long.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
