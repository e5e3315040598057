//! The Python process of an executor: forked from a warm one that the agent has (`warm.rs`), or else started here. Either way it is in the
//! executor's process group and prints to its standard error, and the kernel kills it when this process is gone, by whatever end: a pipe
//! that only this process holds is closed then. It knows nothing of what is asked.

use crate::ending::{End, explained};
use crate::frame;
use crate::job::{TorchError, unexpected};
use crate::memory::{MemoryWatch, kernel_kills};
use crate::output::Output;
use crate::variables;
use crate::warm::{Ask, AskError, Forked, ServerKey};
use rustix::io::{FdFlags, fcntl_setfd};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, pipe};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Names of the variables that say which descriptors are the child's end of the socket, and of the pipe that ends with this process.
const SOCKET_VARIABLE: &str = "EBB_TORCH_FD";
const LIFE_VARIABLE: &str = "EBB_TORCH_LIFE";

/// What is started. Its variables may hold secrets, so it cannot be printed.
pub(crate) struct Launch {
    /// The program.
    pub python: String,
    /// Everything that it finds in its environment, the descriptors that it is given apart.
    pub variables: BTreeMap<String, OsString>,
    /// Where the agent gives away processes that have imported torch.
    pub warm: Option<String>,
    /// Most memory of it and what it starts.
    pub memory_limit_mib: Option<u32>,
}

/// A process that answers.
#[derive(Debug)]
pub(crate) struct Python {
    process: Process,
    socket: UnixStream,
    output: Output,
    /// Present as long as it runs, if it has a limit.
    memory: Option<MemoryWatch>,
    limit_mib: Option<u32>,
    /// How often the kernel had killed for want of memory when it began.
    kernel_kills: u64,
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
    /// What users print goes where this process says what it does, and its end is told with why the process ended.
    said: PipeWriter,
    output: PipeReader,
}

impl Ends {
    fn new() -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let (ends_with_us, life) = pipe()?;
        let (output, said) = pipe()?;
        Ok(Self { socket, life, theirs, ends_with_us, said, output })
    }
}

impl Python {
    /// The fastest that is to be had.
    pub fn start(launch: &Launch) -> Result<Self, TorchError> {
        let Some(name) = &launch.warm else { return Self::start_cold(launch) };
        let begun = Instant::now();
        match Self::fork(launch, name)? {
            Ok((python, pid)) => {
                let ms = begun.elapsed().as_millis();
                tracing::info!(pid, ms, "forked Python from a process that has PyTorch imported");
                Ok(python)
            }
            Err(why) => {
                tracing::info!(%why, "starting Python from the beginning, which takes as long as importing PyTorch does");
                Self::start_cold(launch)
            }
        }
    }

    fn fork(launch: &Launch, name: &str) -> Result<Result<(Self, u32), AskError>, TorchError> {
        let Ends { socket, life, theirs, ends_with_us, said, output } = Ends::new()?;
        let Some((before, after)) = variables::split(launch.variables.clone()) else {
            return Ok(Err(AskError::NoText));
        };
        let ask = Ask { server: ServerKey::new(launch.python.clone(), before), environment: after };
        // If it comes too late, it finds the pipe closed and ends.
        let forked = Forked::ask(name, &ask, [theirs.as_fd(), said.as_fd(), ends_with_us.as_fd()]);
        drop(said);
        match forked {
            Ok(forked) => {
                let pid = forked.pid;
                Ok(Ok((Self::begin(Process::Forked(forked), pid, socket, life, output, launch)?, pid)))
            }
            Err(why) => Ok(Err(why)),
        }
    }

    /// One of its own, from the beginning.
    pub fn start_cold(launch: &Launch) -> Result<Self, TorchError> {
        let Ends { socket, life, theirs, ends_with_us, said, output } = Ends::new()?;
        // The two that it inherits beside its output.
        fcntl_setfd(&theirs, FdFlags::empty()).map_err(io::Error::from)?;
        fcntl_setfd(&ends_with_us, FdFlags::empty()).map_err(io::Error::from)?;
        let mut command = Command::new(&launch.python);
        command
            .args(["-m", "ebb.worker"])
            .env_clear()
            .envs(&launch.variables)
            .env(SOCKET_VARIABLE, theirs.as_raw_fd().to_string())
            .env(LIFE_VARIABLE, ends_with_us.as_raw_fd().to_string())
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said);
        let spawned = command.spawn();
        // Its ends of the pipe, or nobody would see that the child has closed its own.
        drop(command);
        let child = spawned.map_err(|source| TorchError::Start { python: launch.python.clone(), source })?;
        let pid = child.id();
        Self::begin(Process::Started(child), pid, socket, life, output, launch)
    }

    fn begin(
        process: Process,
        pid: u32,
        socket: UnixStream,
        life: PipeWriter,
        output: PipeReader,
        launch: &Launch,
    ) -> Result<Self, TorchError> {
        let limit_mib = launch.memory_limit_mib;
        let output = Output::follow(output)?;
        let mut python =
            Self { process, socket, output, memory: None, limit_mib, kernel_kills: kernel_kills(), _life: life };
        // Dropped where it cannot be watched, it is killed.
        python.memory = limit_mib.map(|mib| MemoryWatch::start(pid, mib)).transpose()?;
        Ok(python)
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
        frame::write_with(&mut self.socket, kind, payload, descriptors).map_err(|_| self.ended())
    }

    /// Hears the answer to the oldest question that has none.
    pub fn hear(&mut self, kind: u8) -> Result<(Vec<u8>, Vec<OwnedFd>), TorchError> {
        match frame::read(&mut self.socket) {
            Ok((answer, payload, descriptors)) if answer == kind.to_ascii_lowercase() => Ok((payload, descriptors)),
            Ok((answer, payload, _)) => Err(unexpected(answer, &payload)),
            Err(_) => Err(self.ended()),
        }
    }

    /// The socket is closed, so it ends or has ended: why.
    fn ended(&mut self) -> TorchError {
        let end = self.end();
        let over_mib = self.memory.take().and_then(|watch| watch.exceeded_mib());
        let kernel_killed = end == End::killed() && kernel_kills() > self.kernel_kills;
        let limit = over_mib.zip(self.limit_mib);
        TorchError::Ended(explained(&end, limit, kernel_killed, &self.output.last_lines()))
    }

    /// Kills it; how it ended, when it has.
    fn end(&mut self) -> End {
        match &mut self.process {
            Process::Started(child) => {
                // One that has ended takes no signal.
                let _ = child.kill();
                child.wait().map_or_else(|error| End::Unknown(error.to_string()), End::of)
            }
            Process::Forked(forked) => {
                forked.kill();
                End::parse(forked.wait())
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
