//! Asking for a Python that has imported torch already: what is said between an executor, its agent, which owns such processes, and those
//! (`python/ebb/forkserver.py`). An executor that is not given one in time starts Python itself; nothing here may fail a job.
//!
//! The way of a request: executor → agent, over a socket in the kernel's table of names, with everything that the child is to have; agent → the process with
//! that [`ServerKey`], with the executor's process group, which the agent knows from the kernel and not from the request; that process →
//! executor, over the connection that the request came on, which travels along.

use crate::frame;
use events_schema::Digest;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Signal, Uid, geteuid, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::Command;
use std::time::Duration;

/// Executor to agent, and agent to server: fork, with these descriptors.
pub const FORK: u8 = b'F';
/// Server to executor: this is your child. Server to agent: it is forked.
pub const FORKED: u8 = b'f';
/// Server to executor and agent: a child has ended.
pub const ENDED: u8 = b'x';
/// Agent to server: the pipe that ends with the agent.
pub const LIFE: u8 = b'L';
/// Server to agent: torch is imported; how many bytes of memory are its own.
pub const WARM: u8 = b'w';
/// Agent to executor, or server to agent: no, because of this.
pub const REFUSED: u8 = b'!';
/// What an executor sends along: the child's end of their socket, where it may print, and the pipe that ends with the executor. Then the rules
/// that the child takes on for its files, where it has any.
pub const DESCRIPTORS: RangeInclusive<usize> = 3..=4;

/// Longest wait for a child. An agent gives up on a server before, and says so by closing; this is for an agent that says nothing.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest wait for a word that is said at once: for the agent to take a request or an executor to say it, and for the status of a child that has
/// ended already.
pub const WORD_TIMEOUT: Duration = Duration::from_secs(2);

/// Which warm processes are alike: the same Python, begun with the same variables. An environment that is built for a job is a Python at a
/// path of its own, named by its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerKey {
    python: String,
    environment: BTreeMap<String, String>,
}

impl ServerKey {
    /// Of a Python, and all variables that it has to be started with.
    #[must_use]
    pub fn new(python: String, environment: BTreeMap<String, String>) -> Self {
        Self { python, environment }
    }

    /// The program.
    #[must_use]
    pub fn python(&self) -> &str {
        &self.python
    }

    /// Equal for equal keys.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let parts = self.environment.iter().flat_map(|(name, value)| [name, value]).chain([&self.python]);
        Digest::of(&parts.flat_map(|part| [part.as_bytes(), b"\0"].concat()).collect::<Vec<u8>>())
    }

    /// How such a process is started; its standard input has to be a socket.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.args(["-m", "ebb.forkserver"]).env_clear().envs(&self.environment);
        command
    }
}

/// What an executor asks for. Its variables may hold secrets, so it cannot be printed.
#[derive(Serialize, Deserialize)]
pub struct Ask {
    /// From which process.
    pub server: ServerKey,
    /// What the child finds in its environment beside the server's.
    pub environment: BTreeMap<String, String>,
    /// Where the child works, if not where the server does.
    pub folder: Option<String>,
}

impl Ask {
    /// Reads one that came in a frame.
    pub fn parse(payload: &[u8]) -> io::Result<Self> {
        Ok(serde_json::from_slice(payload)?)
    }

    /// What the server is told, for an executor that leads this group.
    pub fn for_server(&self, group: i32) -> Vec<u8> {
        serde_json::json!({ "group": group, "environment": self.environment, "folder": self.folder })
            .to_string()
            .into_bytes()
    }
}

/// Why there is no forked child. All: start Python from the beginning.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// The agent, or its server, went away or took too long.
    #[error("nobody forked it: {0}")]
    Io(#[from] io::Error),
    /// The agent said why not.
    #[error("{0}")]
    Refused(String),
    /// A variable that is no text.
    #[error("a variable of the environment is no text")]
    NoText,
    /// Who listens under that name is not this user's agent, and what is asked for holds secrets.
    #[error("a process of another user (uid {0}) listens where this server's agent should")]
    Stranger(u32),
}

/// A child of a warm process, which that process reaps; this one sees its end.
#[derive(Debug)]
pub(crate) struct Forked {
    pub pid: u32,
    handle: OwnedFd,
    server: UnixStream,
}

impl Forked {
    /// Asks the agent that listens under this name.
    pub fn ask(name: &str, ask: &Ask, descriptors: &[BorrowedFd<'_>]) -> Result<Self, AskError> {
        let mut server = connect(name, geteuid())?;
        server.set_write_timeout(Some(WORD_TIMEOUT))?;
        server.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        frame::write_with(&mut server, FORK, &serde_json::to_vec(ask).map_err(io::Error::other)?, descriptors)?;
        let (kind, payload, descriptors) = frame::read(&mut server)?;
        let text = String::from_utf8_lossy(&payload);
        match (kind, text.parse(), descriptors.into_iter().next()) {
            (FORKED, Ok(pid), Some(handle)) => {
                server.set_read_timeout(Some(WORD_TIMEOUT))?;
                Ok(Self { pid, handle, server })
            }
            _ => Err(AskError::Refused(text.into_owned())),
        }
    }

    /// Kills it, if it is still there.
    pub fn kill(&self) {
        // One that has ended takes no signal, which is as well.
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
    }

    /// Waits for its end, and says how it came.
    pub fn wait(&mut self) -> String {
        loop {
            match poll(&mut [PollFd::new(&self.handle.as_fd(), PollFlags::IN)], None) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break,
                Err(error) => return error.to_string(),
            }
        }
        match frame::read(&mut self.server) {
            Ok((ENDED, status, _)) => String::from_utf8_lossy(&status).into_owned(),
            // The process that forked it is gone, and with it who could know.
            _ => "nobody is left to say how".to_owned(),
        }
    }
}

/// A name of such a socket is anybody's to take once the agent is gone; the kernel says whose it is.
fn connect(name: &str, owner: Uid) -> Result<UnixStream, AskError> {
    let server = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    let listens = socket_peercred(&server).map_err(io::Error::from)?.uid;
    if listens == owner { Ok(server) } else { Err(AskError::Stranger(listens.as_raw())) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn nothing_is_said_to_a_listener_of_another_user() {
        let name = format!("ebb-warm-test-{}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let (own, other) = (geteuid(), Uid::from_raw(geteuid().as_raw() + 1));
        connect(&name, own).unwrap();
        assert!(matches!(connect(&name, other), Err(AskError::Stranger(uid)) if uid == own.as_raw()));
        drop(listener);
        assert!(matches!(connect(&name, own), Err(AskError::Io(_))));
    }
}
