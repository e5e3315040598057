//! An `ebb agent` as a child process, as on a server of its own: started beside a service, made silent, and heard again. For the benchmarks; knows nothing of what
//! they do with it.

use crate::HarnessError;
use crate::service::{Service, continue_process, hang_process};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use workers_agent_client::AgentClient;

/// Its name.
pub const SERVER: &str = "far";
/// Longest start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running agent.
#[derive(Debug)]
pub struct FarServer {
    child: Child,
    agent: AgentClient,
    /// Who is stopped.
    silent: Vec<i32>,
}

impl Drop for FarServer {
    fn drop(&mut self) {
        // Who is stopped would not see that its agent ends.
        self.hear();
    }
}

impl FarServer {
    /// Starts it with so many slots, and a Python if its jobs need one.
    pub async fn start(service: &Service, data: &Path, slots: u16, python: Option<&str>) -> Result<Self, HarnessError> {
        let program =
            std::env::current_exe().map_err(|e| HarnessError::local("this program's own path is unknown", e))?;
        let ready = service.ready();
        let mut command = Command::new(program);
        command.args(["agent", "--output", "json", "--server", SERVER, "--slots", &slots.to_string()]);
        command.args(["--controller", &ready.controller, "--store", &ready.store_url]);
        command.arg("--data").arg(data).arg("--token-file").arg(&ready.agent_token_file);
        if let Some(python) = python {
            command.args(["--python", python]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|e| HarnessError::local("an agent cannot be started", e))?;
        let out = child.stdout.take().ok_or_else(|| HarnessError::plain("the agent has no standard output"))?;
        let mut lines = BufReader::new(out).lines();
        match tokio::time::timeout(START_TIMEOUT, lines.next_line()).await {
            Ok(Ok(Some(_))) => Ok(Self { child, agent: AgentClient::of_directory(data)?, silent: Vec::new() }),
            _ => Err(HarnessError::plain("the agent did not start")),
        }
    }

    /// Makes the agent and its executors silent, as a server that is cut off.
    pub async fn silence(&mut self) -> Result<(), HarnessError> {
        self.silent = self.agent.slots().await?.iter().filter_map(|slot| slot.pid).collect();
        self.silent.extend(self.child.id().and_then(|pid| i32::try_from(pid).ok()));
        self.silent.iter().try_for_each(|pid| hang_process(*pid))
    }

    /// Lets them go on.
    pub fn hear(&mut self) {
        for pid in self.silent.drain(..) {
            // It may have ended meanwhile.
            let _ = continue_process(pid);
        }
    }
}
