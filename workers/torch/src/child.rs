//! The Python process of an executor: forked from a warm one that the agent has (`warm.rs`), or else started here. Either way it is in the
//! executor's process group and prints to its standard error, and the kernel kills it when this process is gone, by whatever end: a pipe
//! that only this process holds is closed then. It knows nothing of what is asked.

use crate::answers::unexpected;
use crate::computing::ComputingProcess;
use crate::ending::{End, explained};
use crate::frame;
use crate::isolation::Isolation;
use crate::job::TorchError;
use crate::memory::{MemoryBound, kernel_kills};
use crate::output::Output;
use crate::own_folder::OwnFolder;
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
pub(crate) const SOCKET_VARIABLE: &str = "EBB_TORCH_FD";
pub(crate) const LIFE_VARIABLE: &str = "EBB_TORCH_LIFE";

/// What is started. Its variables may hold secrets, so it cannot be printed.
pub(crate) struct Launch {
    /// The program.
    pub python: String,
    /// Everything that it finds in its environment, the descriptors that it is given apart.
    pub variables: BTreeMap<String, OsString>,
    /// What is this process's alone of that: it comes as late as a fork.
    pub own_variables: BTreeMap<String, OsString>,
    /// Where it works and may write.
    pub own: Option<OwnFolder>,
    /// Which files it can reach.
    pub isolation: Option<Isolation>,
    /// Where the agent gives away processes that have imported torch.
    pub warm: Option<String>,
    /// Most memory of it and what it starts.
    pub memory_limit_mib: Option<u32>,
    /// Where it is said which process it is.
    pub computing: ComputingProcess,
}

/// A process that answers.
#[derive(Debug)]
pub(crate) struct Python {
    process: Process,
    socket: UnixStream,
    output: Output,
    /// Present as long as it runs, if it has a limit.
    memory: Option<MemoryBound>,
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
        let texts = variables::split(launch.variables.clone()).zip(variables::texts(launch.own_variables.clone()));
        let Some(((before, mut after), own)) = texts else {
            return Ok(Err(AskError::NoText));
        };
        after.extend(own);
        let folder = launch.own.as_ref().map(|own| own.home().display().to_string());
        let ask = Ask { server: ServerKey::new(launch.python.clone(), before), environment: after, folder };
        // If it comes too late, it finds the pipe closed and ends.
        let mut descriptors = vec![theirs.as_fd(), said.as_fd(), ends_with_us.as_fd()];
        descriptors.extend(launch.isolation.as_ref().map(AsFd::as_fd));
        let forked = Forked::ask(name, &ask, &descriptors);
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
            .envs(&launch.own_variables)
            .env(SOCKET_VARIABLE, theirs.as_raw_fd().to_string())
            .env(LIFE_VARIABLE, ends_with_us.as_raw_fd().to_string())
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said);
        if let Some(own) = &launch.own {
            command.current_dir(own.home());
        }
        let spawned = Isolation::spawn(launch.isolation.as_ref(), &mut command);
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
        launch.computing.is(pid);
        let limit_mib = launch.memory_limit_mib;
        let output = Output::follow(output)?;
        let mut python =
            Self { process, socket, output, memory: None, limit_mib, kernel_kills: kernel_kills(), _life: life };
        // Dropped where its memory cannot be bounded, it is killed.
        python.memory = limit_mib.map(|mib| MemoryBound::start(pid, mib)).transpose()?;
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
        frame::write_with(&mut self.socket, kind, payload, descriptors).map_err(|error| self.failed(error))
    }

    /// Hears the answer to the oldest question that has none.
    pub fn hear(&mut self, kind: u8) -> Result<(Vec<u8>, Vec<OwnedFd>), TorchError> {
        match frame::read(&mut self.socket) {
            Ok((answer, payload, descriptors)) if answer == kind.to_ascii_lowercase() => Ok((payload, descriptors)),
            Ok((answer, payload, _)) => Err(unexpected(answer, &payload)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// What it means that nothing can be said to it or heard from it.
    fn failed(&mut self, error: io::Error) -> TorchError {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => self.ended(),
            io::ErrorKind::InvalidData => TorchError::Protocol(error.to_string()),
            _ => TorchError::Io(error),
        }
    }

    /// Hears what is said of this kind before the answer to the oldest question, or that answer; gives which.
    pub fn hear_before(&mut self, before: u8, kind: u8) -> Result<(bool, Vec<u8>), TorchError> {
        match frame::read(&mut self.socket) {
            Ok((said, payload, _)) if said == before => Ok((true, payload)),
            Ok((said, payload, _)) if said == kind.to_ascii_lowercase() => Ok((false, payload)),
            Ok((said, payload, _)) => Err(unexpected(said, &payload)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// The socket is closed, so it ends or has ended: why.
    fn ended(&mut self) -> TorchError {
        let end = self.end();
        let exceeded = self.memory.take().zip(self.limit_mib).and_then(|(bound, mib)| bound.exceeded(mib));
        let kernel_killed = end == End::killed() && kernel_kills() > self.kernel_kills;
        let by_code = exceeded.is_some() || kernel_killed || end.is_of_code();
        TorchError::Ended { why: explained(&end, exceeded, kernel_killed, &self.output.last_lines()), by_code }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;
    use std::net::Shutdown;
    use std::time::Duration;

    /// A process that says what the test says for it.
    fn python() -> (Python, UnixStream) {
        let Ends { socket, life, theirs, said, output, .. } = Ends::new().unwrap();
        let child = Command::new("sleep").arg("600").stdin(Stdio::null()).stdout(said).spawn().unwrap();
        let output = Output::follow(output).unwrap();
        let (process, limit_mib, kernel_kills) = (Process::Started(child), None, kernel_kills());
        (Python { process, socket, output, memory: None, limit_mib, kernel_kills, _life: life }, theirs)
    }

    #[test]
    fn only_a_closed_socket_means_that_it_ended() {
        let (mut garbled, mut theirs) = python();
        theirs.write_all(&[0; 8]).unwrap();
        let heard = garbled.hear(b'B').unwrap_err();
        assert!(matches!(&heard, TorchError::Protocol(what) if what.contains("0 bytes")), "{heard}");
        let (mut silent, _theirs) = python();
        silent.socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let heard = silent.hear(b'B').unwrap_err();
        assert!(matches!(heard, TorchError::Io(_)), "{heard}");
        let (mut gone, theirs) = python();
        // Closed for every process: one that another test is just starting holds a copy until it runs its program.
        theirs.shutdown(Shutdown::Both).unwrap();
        let said = gone.say(b'B', b"", &[]).unwrap_err();
        assert!(matches!(&said, TorchError::Ended { why, by_code: false } if why.contains("SIGKILL")), "{said}");
    }
}
