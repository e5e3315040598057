//! An `ebb up` (or `ebb agent`) as a child process: started on free ports, killed for real, started again. For the demo, the
//! benchmarks and the whole-system tests; knows nothing of what they do with it.

use crate::HarnessError;

use gateway_client::Client;
use rustix::process::{Pid, Signal};
use serde::Deserialize;
use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use workers_agent_client::AgentClient;

/// Longest start: on Kafka, topics are created and the log is read first.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest clean stop: executors get their grace, then are killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of its standard error that are shown when it fails.
const TAIL_SHOWN: usize = 2_000;

/// How a service is started.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// The `ebb` program.
    pub program: PathBuf,
    /// Its data directory.
    pub data: PathBuf,
    /// Its slots.
    pub slots: u16,
    /// More arguments.
    pub arguments: Vec<OsString>,
    /// Variables beside ours.
    pub environment: Vec<(OsString, OsString)>,
}

impl ServiceOptions {
    /// A service of this very program.
    pub fn new(data: &Path, slots: u16) -> Result<Self, HarnessError> {
        let program =
            std::env::current_exe().map_err(|e| HarnessError::local("this program's own path is unknown", e))?;
        Ok(Self { program, data: data.to_path_buf(), slots, arguments: Vec::new(), environment: Vec::new() })
    }

    /// With `--name value`, if there is a value.
    #[must_use]
    pub fn with(mut self, name: &str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            self.arguments.extend([name.into(), value.into()]);
        }
        self
    }
}

/// What `ebb up --output json` says when it is ready, in one line.
#[derive(Debug, Clone, Deserialize)]
pub struct Ready {
    /// The HTTP API.
    pub url: String,
    /// Where agents reach the controller.
    pub controller: String,
    /// File with the token that the controller asks of agents.
    pub agent_token_file: PathBuf,
    /// The object store.
    pub store_url: String,
}

/// A running service.
#[derive(Debug)]
pub struct Service {
    child: Child,
    ready: Ready,
    options: ServiceOptions,
}

impl Service {
    /// Starts it and waits until it is ready.
    pub async fn start(options: ServiceOptions) -> Result<Self, HarnessError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&options.data)
            .map_err(|e| HarnessError::local(format!("`{}` cannot be made", options.data.display()), e))?;
        let errors = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(error_file(&options.data))
            .map_err(|e| HarnessError::local("the service's error file cannot be made", e))?;
        let mut command = Command::new(&options.program);
        command.args(["up", "--output", "json", "--listen", "127.0.0.1:0", "--slots"]).arg(options.slots.to_string());
        // Its slots share the processors of one machine, where more of them may be slower: what follows from demand is to be seen all the same.
        if !options.arguments.iter().any(|argument| argument == "--speeds") {
            command.args(["--speeds", "assumed"]);
        }
        command.arg("--data").arg(&options.data).args(&options.arguments);
        command.envs(options.environment.iter().map(|(name, value)| (name, value)));
        // It must not outlive us, whatever ends us.
        command
            .arg("--until-input-ends")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .kill_on_drop(true);
        let mut child = command
            .spawn()
            .map_err(|e| HarnessError::local(format!("`{}` cannot be started", options.program.display()), e))?;
        let out = child.stdout.take().ok_or_else(|| HarnessError::plain("the service has no standard output"))?;
        let mut lines = BufReader::new(out).lines();
        let first = tokio::time::timeout(START_TIMEOUT, lines.next_line()).await;
        let Ok(Ok(Some(first))) = first else {
            let _ = child.start_kill();
            return Err(HarnessError::plain(format!("the service did not start: {}", tail(&options.data))));
        };
        let ready = serde_json::from_str(&first)
            .map_err(|e| HarnessError::local(format!("the service's first line is not understood: {first}"), e))?;
        Ok(Self { child, ready, options })
    }

    /// What it said when it was ready.
    #[must_use]
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// A client of its API.
    pub fn client(&self) -> Result<Client, HarnessError> {
        Ok(Client::new(&self.ready.url)?)
    }

    /// A client of its agent's own listener.
    pub fn agent(&self) -> Result<AgentClient, HarnessError> {
        Ok(AgentClient::of_directory(&self.options.data)?)
    }

    /// `kill -9`, and how to start it again on the same directory.
    pub async fn kill(mut self) -> Result<ServiceOptions, HarnessError> {
        self.child.kill().await.map_err(|e| HarnessError::local("the service cannot be killed", e))?;
        Ok(self.options)
    }

    /// SIGTERM; waits until it has ended.
    pub async fn stop(self) -> Result<ExitStatus, HarnessError> {
        if let Some(pid) =
            self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw)
        {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)
                .map_err(|e| HarnessError::local("the service cannot be told to stop", std::io::Error::from(e)))?;
        }
        self.ended().await
    }

    /// Waits until it ends by itself.
    pub async fn ended(mut self) -> Result<ExitStatus, HarnessError> {
        match tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await {
            Ok(ended) => ended.map_err(|e| HarnessError::local("the service's end was not seen", e)),
            Err(_) => Err(HarnessError::plain(format!(
                "the service did not end within {} s: {}",
                STOP_TIMEOUT.as_secs(),
                tail(&self.options.data)
            ))),
        }
    }
}

/// The same brokers with topics of our own, unless the URL already names some.
#[must_use]
pub fn fresh_topics(url: &str, name: &str) -> String {
    if url.contains("prefix=") || !url.starts_with("kafka") {
        return url.to_owned();
    }
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}prefix={name}")
}

/// Where a service's standard error goes.
fn error_file(data: &Path) -> PathBuf {
    data.join("service.stderr")
}

/// The end of what a service said on standard error.
#[must_use]
pub fn tail(data: &Path) -> String {
    let bytes = std::fs::read(error_file(data)).unwrap_or_default();
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL_SHOWN)..]).trim().to_owned()
}

/// `kill -9` of a process by its number.
pub fn kill_process(pid: i32) -> Result<(), HarnessError> {
    signal(pid, Signal::KILL)
}

/// Makes a process hang: it lives, but does nothing more.
pub fn hang_process(pid: i32) -> Result<(), HarnessError> {
    signal(pid, Signal::STOP)
}

/// Lets a process that hangs go on.
pub fn continue_process(pid: i32) -> Result<(), HarnessError> {
    signal(pid, Signal::CONT)
}

fn signal(pid: i32, signal: Signal) -> Result<(), HarnessError> {
    let process = Pid::from_raw(pid).ok_or_else(|| HarnessError::plain(format!("{pid} is no process number")))?;
    rustix::process::kill_process(process, signal)
        .map_err(|e| HarnessError::local("the process cannot be sent a signal", std::io::Error::from(e)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_demo_has_its_own_topics_on_shared_brokers() {
        assert_eq!(fresh_topics("kafka://h:1", "x"), "kafka://h:1?prefix=x");
        assert_eq!(fresh_topics("kafka://h:1?plaintext=allow", "x"), "kafka://h:1?plaintext=allow&prefix=x");
        assert_eq!(fresh_topics("kafka://h:1?prefix=mine", "x"), "kafka://h:1?prefix=mine");
        assert_eq!(fresh_topics("file:///log", "x"), "file:///log");
    }
}
