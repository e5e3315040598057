//! The Python process of an executor: forked from a warm one that the agent has (`warm.rs`), or else started here. Either way it is in the
//! executor's process group and prints to its standard error, and the kernel kills it when this process is gone, by whatever end: a pipe
//! that only this process holds is closed then. It knows nothing of what is asked.

use crate::frame;
use crate::job::{TorchError, TorchStart, unexpected};
use crate::warm::{Ask, AskError, Forked, ServerKey};
use crate::{package, variables};
use rustix::io::{FdFlags, fcntl_setfd};
use std::io::{self, PipeReader, PipeWriter, pipe};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Names of the variables that say which descriptors are the child's end of the socket, and of the pipe that ends with this process.
const SOCKET_VARIABLE: &str = "EBB_TORCH_FD";
const LIFE_VARIABLE: &str = "EBB_TORCH_LIFE";

/// A process that answers.
#[derive(Debug)]
pub(crate) struct Python {
    process: Process,
    socket: UnixStream,
    /// Held for as long as the process may live.
    _life: PipeWriter,
}

#[derive(Debug)]
enum Process {
    Started(Child),
    Forked(Forked),
}

/// Both ends of what a process is given.
struct Ends {
    socket: UnixStream,
    life: PipeWriter,
    theirs: UnixStream,
    ends_with_us: PipeReader,
    /// What users print goes where this process says what it does: its standard output belongs to the agent.
    said: OwnedFd,
}

impl Ends {
    fn new() -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let (ends_with_us, life) = pipe()?;
        Ok(Self { socket, life, theirs, ends_with_us, said: io::stderr().as_fd().try_clone_to_owned()? })
    }
}

impl Python {
    /// The fastest that is to be had.
    pub fn start(start: &TorchStart) -> Result<Self, TorchError> {
        let Some(name) = &start.host.warm else { return Self::start_cold(start) };
        let begun = Instant::now();
        match Self::fork(start, name)? {
            Ok((python, pid)) => {
                let ms = begun.elapsed().as_millis();
                tracing::info!(pid, ms, "forked Python from a process that has PyTorch imported");
                Ok(python)
            }
            Err(why) => {
                tracing::info!(%why, "starting Python from the beginning, which takes as long as importing PyTorch does");
                Self::start_cold(start)
            }
        }
    }

    fn fork(start: &TorchStart, name: &str) -> Result<Result<(Self, u32), AskError>, TorchError> {
        let package = lay_out(start)?;
        let Ends { socket, life, theirs, ends_with_us, said } = Ends::new()?;
        let Some((before, after)) = variables::split(variables::all(start, &package)) else {
            return Ok(Err(AskError::NoText));
        };
        let ask = Ask { server: ServerKey::new(program(start).to_owned(), before), environment: after };
        // If it comes too late, it finds the pipe closed and ends.
        let forked = Forked::ask(name, &ask, [theirs.as_fd(), said.as_fd(), ends_with_us.as_fd()]);
        Ok(forked.map(|forked| {
            let pid = forked.pid;
            (Self { process: Process::Forked(forked), socket, _life: life }, pid)
        }))
    }

    /// One of its own, from the beginning.
    pub fn start_cold(start: &TorchStart) -> Result<Self, TorchError> {
        let package = lay_out(start)?;
        let Ends { socket, life, theirs, ends_with_us, said } = Ends::new()?;
        // The two that it inherits beside its output.
        fcntl_setfd(&theirs, FdFlags::empty()).map_err(io::Error::from)?;
        fcntl_setfd(&ends_with_us, FdFlags::empty()).map_err(io::Error::from)?;
        let child = Command::new(program(start))
            .args(["-m", "ebb.worker"])
            .env_clear()
            .envs(variables::all(start, &package))
            .env(SOCKET_VARIABLE, theirs.as_raw_fd().to_string())
            .env(LIFE_VARIABLE, ends_with_us.as_raw_fd().to_string())
            .stdin(Stdio::null())
            .stdout(said)
            .spawn()
            .map_err(|source| TorchError::Start { python: program(start).to_owned(), source })?;
        Ok(Self { process: Process::Started(child), socket, _life: life })
    }

    /// Whether it was forked.
    pub fn is_forked(&self) -> bool {
        matches!(self.process, Process::Forked(_))
    }

    /// Asks one thing; the answer, and descriptors that came with it.
    pub fn exchange(&mut self, kind: u8, payload: &[u8]) -> Result<(Vec<u8>, Vec<OwnedFd>), TorchError> {
        self.say(kind, payload, &[])?;
        self.hear(kind)
    }

    /// Asks one thing, and gives descriptors with it.
    pub fn say(&mut self, kind: u8, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), TorchError> {
        // What it did wrong it may have said before it ended, but to another question.
        frame::write_with(&mut self.socket, kind, payload, descriptors).map_err(|_| TorchError::Ended(self.end()))
    }

    /// Hears the answer to the oldest question that has none.
    pub fn hear(&mut self, kind: u8) -> Result<(Vec<u8>, Vec<OwnedFd>), TorchError> {
        match frame::read(&mut self.socket) {
            Ok((answer, payload, descriptors)) if answer == kind.to_ascii_lowercase() => Ok((payload, descriptors)),
            Ok((answer, payload, _)) => Err(unexpected(answer, &payload)),
            // The socket is closed, so it ends or has ended.
            Err(_) => Err(TorchError::Ended(self.end())),
        }
    }

    /// Kills it; how it ended, when it has.
    fn end(&mut self) -> String {
        match &mut self.process {
            Process::Started(child) => {
                // One that has ended takes no signal.
                let _ = child.kill();
                child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
            }
            Process::Forked(forked) => {
                forked.kill();
                forked.wait()
            }
        }
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // It may be deep in user code; nothing that it could still do counts.
        self.end();
    }
}

/// The Python of a job: its own, or the host's.
fn program(start: &TorchStart) -> &str {
    start.model.python.as_ref().unwrap_or(&start.host.python)
}

fn lay_out(start: &TorchStart) -> io::Result<PathBuf> {
    let folder = Path::new(&start.host.folder);
    std::fs::create_dir_all(folder)?;
    package::lay_out(folder)
}
