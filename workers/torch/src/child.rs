//! The process of the user's Python: how it is started, and, when it has ended, why, as a sentence for people.

use crate::job::{TorchError, TorchStart};
use crate::memory::{MemoryWatch, kernel_kills};
use crate::output::Output;
use events_schema::torch::TorchDevice;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

/// Variables that programs of a job get of their executor's environment: where programs and libraries are, how texts are written, which GPU is
/// its slot's, and the mark by which what outlives its executor is found. Credentials of the store are not among them.
const NAMES: &[&str] = &[
    "PATH",
    "HOME",
    "LD_LIBRARY_PATH",
    "TMPDIR",
    "LANG",
    "LC_ALL",
    "TZ",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "EBB_EXECUTOR_NONCE",
];
/// Name of the variable that says which descriptor is the child's end of the socket.
const SOCKET_VARIABLE: &str = "EBB_TORCH_FD";

const SIGILL: i32 = 4;
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGFPE: i32 = 8;
const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;
const SIGTERM: i32 = 15;

/// A program of a job with nothing in its environment but what all of them get.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .envs(NAMES.iter().filter_map(|name| std::env::var_os(name).map(|value| (name, value))))
        .stdin(Stdio::null());
    command
}

/// The running process. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct PythonChild {
    child: Child,
    output: Output,
    memory: Option<MemoryWatch>,
    limit_mib: Option<u32>,
    kernel_kills: u64,
}

impl PythonChild {
    /// Starts it with its end of the socket.
    pub fn spawn(
        start: &TorchStart,
        python: &Path,
        package: &Path,
        secrets: &BTreeMap<String, String>,
        socket: &UnixStream,
    ) -> Result<Self, TorchError> {
        let threads = start.model.threads.to_string();
        // What users print goes where this process says what it does: its standard output belongs to the agent.
        let (reader, writer) = io::pipe()?;
        let mut command = command(python);
        command
            .args(["-m", "ebb.worker"])
            .env("OMP_NUM_THREADS", &threads)
            .env("MKL_NUM_THREADS", &threads)
            .env("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            .env("PYTHONUNBUFFERED", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            // Where compiled code crashes, the lines of Python that led there are the last that it says.
            .env("PYTHONFAULTHANDLER", "1")
            // The order of sets of texts is chance otherwise.
            .env("PYTHONHASHSEED", "0")
            .envs(&start.model.environment)
            .envs(secrets)
            .env("PYTHONPATH", package)
            .env(SOCKET_VARIABLE, socket.as_raw_fd().to_string())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        if start.model.device == TorchDevice::Cpu {
            command.env("CUDA_VISIBLE_DEVICES", "");
        }
        let kernel_kills = kernel_kills();
        let spawned = command.spawn();
        // Its ends of the pipe, or nobody would see that the child has closed its own.
        drop(command);
        let mut child = spawned.map_err(|source| TorchError::Start { python: python.display().to_string(), source })?;
        let limit_mib = start.model.memory_limit_mib;
        let watched = || Ok((Output::follow(reader)?, limit_mib.map(|mib| MemoryWatch::start(child.id(), mib)).transpose()?));
        match watched() {
            Ok((output, memory)) => Ok(Self { child, output, memory, limit_mib, kernel_kills }),
            Err(error) => {
                kill(&mut child);
                Err(TorchError::Io(error))
            }
        }
    }

    /// Why it ended. Its end of the socket is closed, so it ends or has ended.
    pub fn ended(&mut self) -> TorchError {
        // One that only closed the socket; who is ending already ends as it would have.
        let _ = self.child.kill();
        let status = match self.child.wait() {
            Ok(status) => status,
            Err(error) => return TorchError::Io(error),
        };
        let over_mib = self.memory.take().and_then(|watch| watch.exceeded_mib());
        let kernel_killed = status.signal() == Some(SIGKILL) && kernel_kills() > self.kernel_kills;
        let limit = over_mib.zip(self.limit_mib);
        TorchError::Ended(explained(status, limit, kernel_killed, &self.output.last_lines()))
    }
}

impl Drop for PythonChild {
    fn drop(&mut self) {
        // It may be deep in user code; nothing that it could still do counts.
        kill(&mut self.child);
    }
}

fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// The end of the Python process as its user can understand it.
fn explained(status: ExitStatus, over: Option<(u64, u32)>, kernel_killed: bool, last_lines: &str) -> String {
    let mut text = match (status.code(), status.signal()) {
        _ if let Some((used, limit)) = over => format!(
            "the Python process took {used} MiB of memory, more than its memory_limit_mib of {limit}, and was killed; raise the limit, or make batch_size or the model smaller"
        ),
        _ if kernel_killed => "the kernel killed the Python process because memory ran out (out of memory); make batch_size or the model smaller, or run fewer slots on a machine".to_owned(),
        (Some(code), _) => format!(
            "the Python process ended itself with exit status {code}; something in the job's code or its libraries called exit"
        ),
        (None, Some(signal)) => {
            let how = match signal {
                SIGSEGV => "crashed with a segmentation fault (SIGSEGV) in compiled code of a library or an extension",
                SIGABRT => "was aborted (SIGABRT) by compiled code of a library or an extension",
                SIGBUS => "crashed with a bus error (SIGBUS): a file or memory that it had mapped is gone, or /dev/shm is full",
                SIGFPE => "crashed with an arithmetic fault (SIGFPE) in compiled code",
                SIGILL => "used an instruction that this processor does not have (SIGILL)",
                SIGKILL => "was killed (SIGKILL) by somebody else on the machine",
                SIGTERM => "was told to end (SIGTERM) by somebody else on the machine",
                _ => "was ended by a signal",
            };
            format!("the Python process {how}, signal {signal}")
        }
        (None, None) => format!("the Python process ended ({status})"),
    };
    if !last_lines.is_empty() {
        // Writing to a text cannot fail.
        let _ = write!(text, "; it said last:\n{last_lines}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_a_sentence_that_says_what_happened() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        let signalled = ExitStatus::from_raw;
        for (status, over, kernel, said) in [
            (exited(3), None, false, "ended itself with exit status 3"),
            (signalled(11), None, false, "segmentation fault"),
            (signalled(9), None, true, "memory ran out"),
            (signalled(9), Some((900, 512)), true, "took 900 MiB of memory, more than its memory_limit_mib of 512"),
            (signalled(9), None, false, "killed (SIGKILL) by somebody else"),
            (signalled(31), None, false, "signal 31"),
        ] {
            let text = explained(status, over, kernel, "line 1\nline 2");
            assert!(text.contains(said) && text.ends_with("it said last:\nline 1\nline 2"), "{text}");
        }
        assert!(!explained(exited(1), None, false, "").contains("said last"));
    }
}
