//! The role that has the slots of a server: starts and ends executors, which are this program again. `ebb agent` runs it alone, for
//! another machine than the controller's.

use crate::args::{AgentArgs, ExecutorArgs, GradientMemory, Isolate, MetricsArgs, PythonArgs, READABLE};
use crate::failure::Failure;
use crate::home::keep_private;
use crate::output::{Output, mention};
use crate::roles::ending::run_until_stopped;
use crate::roles::signals::Signals;
use crate::roles::{descriptors, open};
use events_schema::ServerId;
use events_schema::control::FileAccess;
use events_schema::slot_type::SlotType;
use serde_json::json;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use storage::store::without_secrets;
use url::Url;
use workers_agent::{Agent, AgentConfig, AgentEnd, AgentToken, Devices, LEASE, MetricsReaders, PythonConfig};
use workers_device::{ChooseError, Device, Driver, Nvml, UNIFIED_MEMORY, Wanted, choose, missing};
use workers_torch::isolation::{hidden_of_python, is_offered, shortcomings};

/// Threads of an executor if nobody says: each holds a gradient and a model's activations, which nobody asked for.
const THREADS_USUAL: u16 = 4;
/// Processors where the system does not tell how many it has.
const CORES_FALLBACK: u16 = 2;

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
    /// Who reads metrics there.
    pub metrics: MetricsArgs,
    /// Where executors listen to their peers.
    pub host: String,
    /// The object store.
    pub store_url: String,
    /// For models in PyTorch.
    pub python: PythonArgs,
    /// What no job may read, wherever it lies, beside that folder and the secrets.
    pub hidden: Vec<PathBuf>,
    /// GPUs that are its slots.
    pub devices: Option<Devices>,
    /// Their type, or that of all slots where there are none, if its operator says one.
    pub slot_type: Option<SlotType>,
    /// How executors compute, and speak with each other.
    pub executors: ExecutorArgs,
}

/// The driver's own helper. It makes the files of devices when the first CUDA program of a machine starts, with rights that programs of jobs do not
/// have where files are kept from them.
const MAKES_NODES: &str = "nvidia-modprobe";

/// The GPUs that are to be slots.
pub async fn devices(wanted: &Wanted) -> Result<Option<Devices>, Failure> {
    if *wanted == Wanted::None {
        return Ok(None);
    }
    let wanted = wanted.clone();
    let asked = tokio::task::spawn_blocking(move || -> Result<Devices, ChooseError> {
        let driver = Nvml::load(None).map_err(ChooseError::from)?;
        let chosen = choose(&wanted, &driver)?;
        with_nodes(&chosen)?;
        let version = driver.version().map_err(ChooseError::from)?;
        for (slot, device) in chosen.iter().enumerate() {
            let (mib, used_mib) = (device.total_bytes >> 20, device.used_bytes >> 20);
            tracing::info!(slot, device = %device.uuid, name = device.name, mib, used_mib, driver = version, "a GPU is a slot");
        }
        Ok(Devices::new(Arc::new(driver), chosen))
    });
    let found = asked.await.map_err(|e| Failure::local("the NVIDIA driver could not be asked", e))?;
    let advice = "`nvidia-smi -L` shows the GPUs of this machine; --devices none makes slots without";
    found.map(Some).map_err(|e| Failure::local("--devices names no GPUs", e).advise(advice))
}

/// CUDA needs a device's file and that of its memory. Nobody has to have made them: CUDA has its helper do that at its first use, so it is done here.
fn with_nodes(chosen: &[Device]) -> Result<(), ChooseError> {
    let there = |path: &Path| path.exists();
    if missing(chosen, there).is_empty() && Path::new(UNIFIED_MEMORY).exists() {
        return Ok(());
    }
    for number in chosen.iter().filter_map(Device::node_number) {
        // Where the helper is not there or may not, it is told below.
        drop(Command::new(MAKES_NODES).args(["-u", &format!("-c={number}")]).stdin(Stdio::null()).status());
    }
    match missing(chosen, there).into_iter().next() {
        None => Ok(()),
        Some((device, node)) => Err(ChooseError::Unreachable { device, node }),
    }
}

/// How many slots there are: as many as GPUs, or more, of which the first are the GPUs.
pub fn slots(told: Option<u16>, devices: Option<&Devices>) -> Result<Option<u16>, Failure> {
    let Some(count) = devices.map(Devices::count) else { return Ok(told) };
    let count = u16::try_from(count).map_err(|e| Failure::local("there are too many GPUs", e))?;
    match told {
        Some(told) if told < count => Err(Failure::Usage(format!(
            "--slots is {told}, and --devices names {count} slots; name fewer devices, or let there be {count} slots or more"
        ))),
        told => Ok(Some(told.unwrap_or(count))),
    }
}

fn no_slots() -> Failure {
    let text = "how many slots this machine has is not said; say --slots N, or --devices auto for one on each GPU";
    Failure::Usage(text.to_owned())
}

/// Starts an agent whose executors are this program.
pub async fn start(parts: AgentParts) -> Result<Agent, Failure> {
    let program = std::env::current_exe().map_err(|e| Failure::local("this program's own path is unknown", e))?;
    // The test runs for up to 200 ms on its thread.
    let class = tokio::task::spawn_blocking(workers_engine::known_answer)
        .await
        .map_err(|e| Failure::local("the known-answer test of the engine failed", e))?;
    let hidden = parts.hidden.into_iter().chain([parts.data_dir.clone()]).collect();
    let python = of_python(parts.python, hidden)?;
    if parts.devices.is_some() && python.files.is_some() && is_offered() && rustix::process::geteuid().is_root() {
        tracing::warn!(
            "programs of jobs on GPUs can change this machine's settings (/proc/sys), because CUDA has to write to /proc and this agent runs as root; run it as a user of its own"
        );
    }
    let config = AgentConfig {
        server: parts.server,
        slots: parts.slots,
        guests: parts.executors.guests,
        controller_url: parts.controller_url,
        token: parts.token,
        data_dir: parts.data_dir,
        listen: parts.listen,
        metrics_readers: metrics_readers(parts.metrics, &parts.host),
        executor_command: executor_command(program, &parts.executors, parts.slots),
        executor_host: parts.host,
        store_url: parts.store_url,
        python,
        devices: parts.devices,
        slot_type: parts.slot_type,
        class,
        lease: LEASE,
    };
    workers_agent::start(config).await.map_err(|e| Failure::local("the agent did not start", e))
}

/// Who reads the agent's metrics. Executors' peers know this machine by a name or an address, so it is asked for by that too.
fn metrics_readers(args: MetricsArgs, host: &str) -> MetricsReaders {
    let own_name = host.parse().ok();
    MetricsReaders { anyone: args.metrics_to_anyone, host_names: args.allow_host.into_iter().chain(own_name).collect() }
}

/// A folder of secrets that is not there is refused now, not when the first job wants one. Executors may be started elsewhere, so its path is whole.
fn of_python(args: PythonArgs, hidden: Vec<PathBuf>) -> Result<PythonConfig, Failure> {
    let files = files(&args, hidden)?;
    let PythonArgs { python, secrets, cache_mib, .. } = args;
    let whole = |folder: PathBuf| {
        std::fs::canonicalize(&folder)
            .map_err(|e| Failure::local(format!("the folder of secrets `{}` cannot be read", folder.display()), e))
    };
    Ok(PythonConfig { program: python, secrets: secrets.map(whole).transpose()?, cache_mib, files })
}

/// Which files jobs may reach. Said once, where that is more than their operator may think, or less.
fn files(args: &PythonArgs, hidden: Vec<PathBuf>) -> Result<Option<FileAccess>, Failure> {
    let required = args.isolate == Isolate::Require;
    if args.isolate == Isolate::Off {
        tracing::warn!("programs of jobs can read and write every file that this user can: --isolate off");
        return Ok(None);
    }
    if !is_offered() {
        if required {
            return Err(Failure::plain("this kernel has no Landlock (Linux 5.13, and `landlock` in the kernel's `lsm=`), so jobs cannot be kept from files of this machine")
                .advise("say --isolate auto to run them all the same, and let only people submit whom you would give a shell"));
        }
        tracing::warn!(
            "this kernel has no Landlock, so programs of jobs can read and write every file that this user can; --isolate require refuses to start instead"
        );
    }
    let shortcomings = shortcomings();
    if is_offered() && !shortcomings.is_empty() {
        tracing::warn!(
            "this kernel has not all rules that keep programs of jobs from files: {}",
            shortcomings.join("; ")
        );
    }
    for path in args.readable.iter().filter(|path| !path.exists() && *path != Path::new(READABLE)) {
        tracing::warn!(path = %path.display(), "--readable names what is not there; programs of jobs that start later can read it once it is");
    }
    let closed: Vec<PathBuf> = hidden.iter().chain(&args.secrets).cloned().collect();
    if let Some(part) = hidden_of_python(&args.python, &closed).filter(|_| is_offered()) {
        let (python, part) = (&args.python, part.display());
        return Err(Failure::plain(format!(
            "--python is `{python}`, and programs of jobs could not read `{part}`, which lies in a folder that is closed to them"
        ))
        .advise("install that Python outside of the data directory and of the folder of secrets, or say --isolate off"));
    }
    let shown = |paths: Vec<PathBuf>| {
        paths.iter().filter_map(|path| std::path::absolute(path).ok()).map(|path| path.display().to_string()).collect()
    };
    Ok(Some(FileAccess { required, readable: shown(args.readable.clone()), hidden: shown(hidden) }))
}

/// Processors that this process may use.
pub fn cores() -> u16 {
    std::thread::available_parallelism().ok().and_then(|n| u16::try_from(n.get()).ok()).unwrap_or(CORES_FALLBACK)
}

/// The command first: it is what says that no configuration is read, which an executor would find in whoever's home it runs.
fn executor_command(program: PathBuf, args: &ExecutorArgs, slots: u16) -> Vec<OsString> {
    let format = ebb_telemetry::log_format().name();
    let threads = args.threads_per_slot.unwrap_or_else(|| (cores() / slots.max(1)).clamp(1, THREADS_USUAL)).to_string();
    let command = [program.into_os_string(), "executor".into(), "--log-format".into(), format.into()];
    let command = command.into_iter().chain(["--threads".into(), threads.into()]);
    let copies = args.gradient_memory == GradientMemory::Copied;
    command.chain(copies.then(|| "--copy".into())).collect()
}

/// `ebb agent`: runs until a signal or a fatal error.
pub async fn run(args: &AgentArgs, output: Output) -> Result<(), Failure> {
    ensure_controller_address(&args.controller)?;
    if args.slots.is_none() && args.devices.devices == Wanted::None {
        return Err(no_slots());
    }
    descriptors::raise();
    keep_private(&args.data).map_err(|e| {
        Failure::local(format!("the agent's directory `{}` cannot be made its owner's alone", args.data.display()), e)
            .advise("choose another with --data DIR")
    })?;
    open::store(&args.store).await?;
    let devices = devices(&args.devices.devices).await?;
    let slots = slots(args.slots, devices.as_ref())?.ok_or_else(no_slots)?;
    let parts = AgentParts {
        server: args.server.clone(),
        slots,
        controller_url: args.controller.clone(),
        token: controller_token(&args.token_file)?,
        data_dir: args.data.clone(),
        listen: args.listen,
        metrics: args.metrics.clone(),
        host: args.host.clone(),
        store_url: args.store.clone(),
        python: args.python.clone(),
        hidden: vec![args.token_file.clone()],
        devices,
        slot_type: args.devices.slot_type,
        executors: args.executors.clone(),
    };
    let agent = start(parts).await?;
    let address = format!("http://{}", agent.address());
    let signals = Signals::listen()?;
    match output {
        Output::Json => mention(json!({"agent": address, "server": args.server, "slots": slots}).to_string()),
        // Whether the controller takes it is not known yet; a refusal comes as a line on standard error.
        _ => mention(format!(
            "agent of `{0}` with {1} slots, looking for its controller at {2}; take-back: {address}\n\nnext: ebb slots (lists {0}/0 once the controller has it)\n      ebb fleet put NAME --server {0} --slots {1}\n\nCtrl-C stops it.",
            args.server, slots, args.controller
        )),
    }
    let failed = async |agent: &Agent| ended(&agent.stopped().await).unwrap_or_else(|| "the agent ended".to_owned());
    let stop = async |agent: Agent| ended(&agent.shutdown().await).map_or(Ok(()), |what| Err(Failure::plain(what)));
    run_until_stopped(agent, failed, stop, args.run.until_input_ends, None, signals).await
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
        let args = ExecutorArgs { gradient_memory: GradientMemory::Copied, threads_per_slot: None, guests: false };
        let command = executor_command(PathBuf::from("ebb"), &args, 2);
        assert!(!crate::reads_configuration(&command), "{command:?}");
        assert!(crate::reads_configuration(&["ebb".into(), "agent".into()]));
    }
}
