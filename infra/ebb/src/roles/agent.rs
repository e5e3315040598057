//! The role that has the slots of a server: starts and ends executors, which are this program again. `ebb agent` runs it alone, for
//! another machine than the controller's.

use crate::args::{AgentArgs, PythonArgs};
use crate::failure::Failure;
use crate::home::keep_private;
use crate::output::{Output, mention};
use crate::roles::ending::run_until_stopped;
use crate::roles::{descriptors, open};
use events_schema::ServerId;
use serde_json::json;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use storage::store::without_secrets;
use url::Url;
use workers_agent::{Agent, AgentConfig, AgentEnd, AgentToken, LEASE, PythonConfig};

/// What differs between the agent of `ebb up` and one alone.
pub struct AgentParts {
    /// Name of its server.
    pub server: ServerId,
    /// Slots it holds.
    pub slots: u16,
    /// Its controller.
    pub controller_url: String,
    /// What it shows to the controller.
    pub token: AgentToken,
    /// Its folder.
    pub data_dir: PathBuf,
    /// Its own listener.
    pub listen: SocketAddr,
    /// Where executors listen to their peers.
    pub host: String,
    /// The object store.
    pub store_url: String,
    /// For models in PyTorch.
    pub python: PythonArgs,
}

/// Starts an agent whose executors are this program.
pub async fn start(parts: AgentParts) -> Result<Agent, Failure> {
    let program = std::env::current_exe().map_err(|e| Failure::local("this program's own path is unknown", e))?;
    // The test runs for up to 200 ms on its thread.
    let class = tokio::task::spawn_blocking(workers_engine::known_answer)
        .await
        .map_err(|e| Failure::local("the known-answer test of the engine failed", e))?;
    let config = AgentConfig {
        server: parts.server,
        slots: parts.slots,
        controller_url: parts.controller_url,
        token: parts.token,
        data_dir: parts.data_dir,
        listen: parts.listen,
        executor_command: executor_command(program),
        executor_host: parts.host,
        store_url: parts.store_url,
        python: of_python(parts.python)?,
        class,
        lease: LEASE,
    };
    workers_agent::start(config).await.map_err(|e| Failure::local("the agent did not start", e))
}

/// A folder of secrets that is not there is refused now, not when the first job wants one. Executors may be started elsewhere, so its path is whole.
fn of_python(PythonArgs { python, secrets, cache_mib }: PythonArgs) -> Result<PythonConfig, Failure> {
    let whole = |folder: PathBuf| {
        std::fs::canonicalize(&folder)
            .map_err(|e| Failure::local(format!("the folder of secrets `{}` cannot be read", folder.display()), e))
    };
    Ok(PythonConfig { program: python, secrets: secrets.map(whole).transpose()?, cache_mib })
}

/// The command first: it is what says that no configuration is read, which an executor would find in whoever's home it runs.
fn executor_command(program: PathBuf) -> Vec<OsString> {
    let format = ebb_telemetry::log_format().name();
    vec![program.into_os_string(), "executor".into(), "--log-format".into(), format.into()]
}

/// `ebb agent`: runs until a signal or a fatal error.
pub async fn run(args: &AgentArgs, output: Output) -> Result<(), Failure> {
    ensure_controller_address(&args.controller)?;
    descriptors::raise();
    keep_private(&args.data).map_err(|e| {
        Failure::local(format!("the agent's directory `{}` cannot be made its owner's alone", args.data.display()), e)
            .advise("choose another with --data DIR")
    })?;
    open::store(&args.store).await?;
    let parts = AgentParts {
        server: args.server.clone(),
        slots: args.slots,
        controller_url: args.controller.clone(),
        token: controller_token(&args.token_file)?,
        data_dir: args.data.clone(),
        listen: args.listen,
        host: args.host.clone(),
        store_url: args.store.clone(),
        python: args.python.clone(),
    };
    let agent = start(parts).await?;
    let address = format!("http://{}", agent.address());
    match output {
        Output::Json => mention(json!({"agent": address, "server": args.server, "slots": args.slots}).to_string()),
        // Whether the controller takes it is not known yet; a refusal comes as a line on standard error.
        _ => mention(format!(
            "agent of `{0}` with {1} slots, looking for its controller at {2}; take-back: {address}\n\nnext: ebb slots (lists {0}/0 once the controller has it)\n      ebb fleet put NAME --server {0} --slots {1}\n\nCtrl-C stops it.",
            args.server, args.slots, args.controller
        )),
    }
    let failed = async |agent: &Agent| ended(&agent.stopped().await).unwrap_or_else(|| "the agent ended".to_owned());
    let stop = async |agent: Agent| ended(&agent.shutdown().await).map_or(Ok(()), |what| Err(Failure::plain(what)));
    run_until_stopped(agent, failed, stop, args.run.until_input_ends, None).await
}

/// What to say of an agent's end; nothing of one that was asked for.
#[must_use]
pub fn ended(end: &AgentEnd) -> Option<String> {
    match end {
        AgentEnd::Failed(reason) => Some(format!("the agent ended: {reason}")),
        AgentEnd::Shutdown => None,
    }
}

/// The token that the controller asks for, from its file.
pub fn controller_token(file: &Path) -> Result<AgentToken, Failure> {
    AgentToken::read(file).map_err(|e| {
        Failure::local("the token for the controller cannot be read", e).advise(
            "copy DIR/secrets/agent.token of its `ebb up` or `ebb controller`, with mode 600, and name it with --token-file",
        )
    })
}

/// An agent shows its token, never a password of its address.
fn is_plain_http(url: &Url) -> bool {
    url.scheme() == "http" && url.has_host() && url.username().is_empty() && url.password().is_none()
}

/// Refuses what would only show as a line in the log when the controller is first looked for.
pub fn ensure_controller_address(controller: &str) -> Result<(), Failure> {
    let url = Url::parse(controller).ok().filter(is_plain_http);
    url.map(drop).ok_or_else(|| {
        Failure::Usage(format!(
            "--controller `{}` is no http:// address without a user; its `ebb up` or `ebb controller` prints the one for agents, for example http://10.0.0.1:7879",
            without_secrets(controller)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executors read the configuration of the home they ran in, and one wrong line there ended all of them.
    #[test]
    fn an_executor_reads_no_configuration() {
        let command = executor_command(PathBuf::from("ebb"));
        assert!(!crate::reads_configuration(&command), "{command:?}");
        assert!(crate::reads_configuration(&["ebb".into(), "agent".into()]));
    }
}
