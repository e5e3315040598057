//! Arguments of the commands that run Ebb: `up`, `gateway`, `controller`, `agent`. What several of them take stands once.
//!
//! Every flag here but `--until-input-ends` is also a key of the configuration file and an environment variable: `crate::configuration` has the table.

use clap::{Args, ValueEnum, ValueHint};
use controller_core::Policy;
use controller_core::policy::WithLending;
use controller_core::state::past::DAY_MS;
use events_log::{LogUrl, TopicPrefix};
use events_schema::ServerId;
use events_schema::slot_type::SlotType;
use http_listener::door::HostName;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use workers_device::Wanted;
use workers_executor::side_by_side::THREADS_MAX;
use workers_torch::CACHE_MIB_DEFAULT;

/// Arguments of `ebb up`.
#[derive(Debug, Clone, Args)]
#[command(after_help = UP_HELP)]
pub struct UpArgs {
    /// Directory that holds log, store and secrets; made if missing.
    #[arg(long, value_name = "DIR", default_value = "./ebb-data", value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
    /// Slots of this machine [default: one per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub slots: Option<u16>,
    /// The gateway's.
    #[command(flatten)]
    pub api: ApiArgs,
    /// The controller's.
    #[command(flatten)]
    pub cell: CellArgs,
    /// Where the log is: kafka+ssl://HOST:PORT[,…] or file:///PATH [default: a file under --data]; kafka:// sends in plaintext
    /// and needs ?plaintext=allow to reach another machine.
    #[arg(long, value_name = "URL", value_parser = log_address)]
    pub log: Option<String>,
    /// Object store for datasets, checkpoints and models: s3://BUCKET/PREFIX, file:///PATH, … [default: a folder under --data].
    #[arg(long, value_name = "URL", value_parser = shared_store)]
    pub store: Option<String>,
    /// For models in PyTorch.
    #[command(flatten)]
    pub python: PythonArgs,
    /// Which GPUs are its slots.
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// How its executors compute, and speak with each other.
    #[command(flatten)]
    pub executors: ExecutorArgs,
    /// Until when.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Arguments of `ebb gateway`.
#[derive(Debug, Clone, Args)]
#[command(after_help = GATEWAY_HELP)]
pub struct GatewayArgs {
    /// The gateway's own.
    #[command(flatten)]
    pub api: ApiArgs,
    /// The log of the cell, which every role of it reaches: kafka+ssl://HOST:PORT[,…].
    #[arg(long, value_name = "URL", value_parser = log_address)]
    pub log: String,
    /// The object store of the cell: s3://BUCKET/PREFIX, file:///PATH on a folder that all share, …
    #[arg(long, value_name = "URL", value_parser = shared_store)]
    pub store: String,
    /// The controller's address, as `ebb controller` prints it, to learn how far jobs are [default: none, and nobody is told].
    #[arg(long, value_name = "URL", requires = "token_file")]
    pub controller: Option<String>,
    /// File with the token that the controller asks for: DIR/secrets/agent.token of its data directory.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,
    /// Until when.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Arguments of `ebb controller`.
#[derive(Debug, Clone, Args)]
#[command(after_help = CONTROLLER_HELP)]
pub struct ControllerArgs {
    /// Directory with the cell's secrets; made, and they with it, if missing. Every controller of a cell needs the same ones.
    #[arg(long, value_name = "DIR", default_value = "./ebb-data", value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
    /// The controller's own.
    #[command(flatten)]
    pub cell: CellArgs,
    /// Its name in the log, for people [default: this machine's].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Where GET /metrics is answered, without a token; not at all if nobody says. Beyond this machine only with --metrics-to-anyone.
    #[arg(long, value_name = "ADDRESS")]
    pub listen_metrics: Option<SocketAddr>,
    /// Who reads them.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// The log of the cell, which every role of it reaches: kafka+ssl://HOST:PORT[,…].
    #[arg(long, value_name = "URL", value_parser = log_address)]
    pub log: String,
    /// The object store of the cell: s3://BUCKET/PREFIX, file:///PATH on a folder that all share, …
    #[arg(long, value_name = "URL", value_parser = shared_store)]
    pub store: String,
    /// Until when.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Arguments of `ebb agent`.
#[derive(Debug, Clone, Args)]
#[command(after_help = AGENT_HELP)]
pub struct AgentArgs {
    /// The controller's address for agents, as `ebb up` or `ebb controller` prints it.
    #[arg(long, value_name = "URL")]
    pub controller: String,
    /// Slots of this machine [default: one per GPU that --devices names].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub slots: Option<u16>,
    /// Directory for its logs and secrets; made if missing.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
    /// Name of this machine, the first half of its slots' names.
    #[arg(long, value_name = "NAME")]
    pub server: ServerId,
    /// The object store, as the service uses it; must be reachable from here.
    #[arg(long, value_name = "URL", value_parser = shared_store)]
    pub store: String,
    /// Address of this machine at which executors of other machines reach the ones here.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// File with the token that the controller asks for: DIR/secrets/agent.token of its data directory.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub token_file: PathBuf,
    /// Address where fleets take slots back directly; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Who reads metrics there.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// For models in PyTorch.
    #[command(flatten)]
    pub python: PythonArgs,
    /// Which GPUs are its slots.
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// How its executors compute, and speak with each other.
    #[command(flatten)]
    pub executors: ExecutorArgs,
    /// Until when.
    #[command(flatten)]
    pub run: RunArgs,
}

/// What all jobs may read unless their operator says otherwise, where it is there.
pub const READABLE: &str = "/data";

/// What runs the models that users wrote in PyTorch.
#[derive(Debug, Clone, Args)]
pub struct PythonArgs {
    /// Python with torch, of jobs that name none.
    ///
    /// Needed by jobs whose model is in PyTorch only.
    #[arg(long, value_name = "PROGRAM", default_value = "python3", value_hint = ValueHint::ExecutablePath)]
    pub python: String,
    /// Folder of secrets that jobs may name: a file each, of that name, with mode 600 [default: none].
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, hide_short_help = true)]
    pub secrets: Option<PathBuf>,
    /// Most MiB of jobs' code and environments that are kept on this machine when no job uses them.
    #[arg(long, value_name = "MIB", default_value_t = CACHE_MIB_DEFAULT, hide_short_help = true)]
    pub cache_mib: u64,
    /// Whether programs of jobs reach only files that they need; `auto`: where the kernel has Landlock.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Isolate::Auto, hide_short_help = true)]
    pub isolate: Isolate,
    /// Folder or file of this machine that all jobs may read, beside their own and the system's; once per place.
    #[arg(long, value_name = "PATH", default_value = READABLE, value_hint = ValueHint::AnyPath, hide_short_help = true)]
    pub readable: Vec<PathBuf>,
}

/// Whether jobs are kept from files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Isolate {
    /// They reach what the agent's user does.
    Off,
    /// They reach what they need, where the kernel has Landlock.
    Auto,
    /// The same, and nothing is started where it has not.
    Require,
}

/// Which GPUs are slots.
#[derive(Debug, Clone, Args)]
pub struct DeviceArgs {
    /// GPUs that are slots; `auto` is all of them.
    ///
    /// The first slots are these, in this order: UUIDs or numbers as `nvidia-smi -L` shows them, `auto` for all, or `none`. One named twice is two
    /// slots.
    #[arg(long, value_name = "GPUS", default_value = "none")]
    pub devices: Wanted,
    /// What those are called by how fast they are, or all slots where there are none, as in `epyc-9654` [default: the GPUs' model].
    #[arg(long = "type", value_name = "NAME", hide_short_help = true)]
    pub slot_type: Option<SlotType>,
}

/// How executors of a machine compute, and speak with each other.
#[derive(Debug, Clone, Args)]
pub struct ExecutorArgs {
    /// Whether executors of this machine read each other's gradients in memory, or are sent copies as between machines.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = GradientMemory::Lent, hide_short_help = true)]
    pub gradient_memory: GradientMemory,
    /// Of how many logical workers an executor computes gradients at once, a thread each, of a model of Ebb's; the processors of the machine shared out over
    /// its slots if it is left out, 4 at most. No bit depends on it. A thread holds a gradient and a model's activations.
    #[arg(long, value_name = "COUNT", hide_short_help = true, value_parser = clap::value_parser!(u16).range(1..=i64::from(THREADS_MAX)))]
    pub threads_per_slot: Option<u16>,
    /// Each slot also has a guest slot: under `--policy antman` opportunistic jobs share slots of guaranteed ones there, and rest where they slow them down.
    #[arg(long, hide_short_help = true)]
    pub guests: bool,
}

/// How a gradient gets from one executor of a machine to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GradientMemory {
    /// It is read where it lies, if the kernel lets it be.
    Lent,
    /// It is sent.
    Copied,
}

/// Where the HTTP API listens, and for whom.
#[derive(Debug, Clone, Args)]
pub struct ApiArgs {
    /// Address of the HTTP API; port 0 takes a free one. Beyond this machine only with --allow-anyone.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7878")]
    pub listen: SocketAddr,
    /// Let anybody who reaches --listen do anything: there are no users yet.
    #[arg(long)]
    pub allow_anyone: bool,
    /// Another host name by which the API is asked for, for example behind a proxy; once per name.
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<HostName>,
    /// Folder of this machine, or store prefix such as s3://BUCKET/DATA, from which files may be registered as datasets; once
    /// per place [default: the folder in which this is started].
    #[arg(long, value_name = "PLACE", value_hint = ValueHint::DirPath)]
    pub dataset_root: Vec<String>,
    /// With a log on Kafka: read what fleets need from their own topics PREFIX.FLEET, too.
    #[arg(long, value_name = "PREFIX")]
    pub demand_topics: Option<TopicPrefix>,
}

/// How a cell is led.
#[derive(Debug, Clone, Args)]
pub struct CellArgs {
    /// Address where agents of other machines, with their token, reach the controller; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen_agents: SocketAddr,
    /// How slots are shared among jobs.
    #[arg(long, value_enum, default_value = "ebb")]
    pub policy: PolicyName,
    /// How fast jobs are taken to be on more slots or fewer.
    #[arg(long, value_enum, default_value = "measured", hide_short_help = true)]
    pub speeds: SpeedsName,
    /// Whether slots go back before fleets need them, as their past says; without it they do not.
    #[arg(long, hide_short_help = true, value_name = "HOW")]
    pub lending: Option<LendingName>,
}

/// For whom a role that has no API answers `GET /metrics`.
#[derive(Debug, Clone, Default, Args)]
pub struct MetricsArgs {
    /// Let anybody who reaches the listener read GET /metrics, also beyond this machine.
    #[arg(long)]
    pub metrics_to_anyone: bool,
    /// Another host name by which metrics are asked for; once per name.
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<HostName>,
}

/// Until when a role runs.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Stop when standard input, a pipe, ends: with the program that started this one, however that ends.
    #[arg(long)]
    pub until_input_ends: bool,
}

/// Where a policy knows the speeds of jobs from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SpeedsName {
    /// As their steps were measured, size by size: no job is given two slots where it is faster on one.
    Measured,
    /// As follows from their numbers of workers, for slots that share processors and would be measured to be slow.
    Assumed,
}

/// When slots go back to fleets that need more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LendingName {
    /// Once they say so.
    Reactive,
    /// A little before, as far as their past says when that will be; and once they say so.
    Forecast,
}

/// A policy with lending as is said, or as it has it.
pub fn lending_as(said: Option<LendingName>, policy: Box<dyn Policy>) -> Box<dyn Policy> {
    let forecast_day_ms = match said {
        None => return policy,
        Some(LendingName::Reactive) => None,
        Some(LendingName::Forecast) => Some(DAY_MS),
    };
    Box::new(WithLending { policy, forecast_day_ms })
}

/// Names of the scheduling policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyName {
    /// First come, first served: the earliest job gets all it asked for.
    Fifo,
    /// Slots go where they shorten the mean completion time most; who runs keeps its fewest.
    Ebb,
    /// Whoever has had least of the slots so far, on all it asked for; others are preempted for it.
    Tiresias,
    /// The same, but older jobs run on half while many wait, and idle slots go to who gains most.
    ElasticTiresias,
    /// Shortest job first, then slots to whose running time they shorten most; needs to know how long jobs take.
    Lyra,
    /// Everybody's fewest by arrival, then slots to whom they speed up most per slot, with little waste.
    #[value(name = "easyscale")]
    EasyScale,
    /// Guaranteed jobs within their tenants' quotas (`ebb tenant set`); others use what is idle, and give way at once.
    Antman,
    /// As many jobs as fit, on the sizes with the largest sum of speeds; decided every ten minutes.
    IbmDp,
    /// The same, but who finds no room is rejected instead of waiting.
    IbmDpDrop,
    /// Whoever is done soonest, on all it asked for; others are preempted for it.
    Srtf,
    /// Everybody's fewest, then slot by slot to whom it shortens the mean completion time most, by pairs.
    Afs,
    /// Everybody's fewest, then slot by slot to whoever's own completion it brings nearest.
    OptimusLike,
    /// Everybody's fewest, then slot by slot for the fairest speed-ups.
    PolluxLike,
    /// What they asked for, by arrival; beside others on their slots where none are idle, whatever that does to both.
    GandivaLike,
}

impl PolicyName {
    /// The name that is taken here; the policy has the same one.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The address of a log.
pub fn log_address(text: &str) -> Result<String, String> {
    LogUrl::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// The address of a store that several processes see; whether it can be opened, opening it tells.
fn shared_store(text: &str) -> Result<String, String> {
    if text.starts_with("memory:") {
        return Err("executors are other processes and would not see it; expected s3://BUCKET/PREFIX, file:///PATH, …"
            .to_owned());
    }
    storage::store::check_address(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

const UP_HELP: &str = "\
Examples:
  ebb up --data /srv/ebb --slots 8
  ssh -NL 7878:127.0.0.1:7878 HOST         from another machine; there: ebb jobs
  ebb up --log kafka+ssl://broker-1:9093,broker-2:9093 --store s3://bucket/ebb

Ctrl-C or SIGTERM stops it cleanly, a second one at once. After any end, also kill -9, the next start on the
same directory goes on where the log ends. `ebb config show` lists the file keys and variables of settings.";

const GATEWAY_HELP: &str = "\
Example:
  ebb gateway --log kafka+ssl://broker-1:9093 --store s3://bucket/ebb \\
              --controller http://10.0.0.1:7879 --token-file agent-token

Any number of gateways may answer for one cell. `ebb config show` lists the file keys and variables of settings.";

const CONTROLLER_HELP: &str = "\
Example:
  ebb controller --log kafka+ssl://broker-1:9093 --store s3://bucket/ebb --data /srv/ebb --listen-agents 10.0.0.1:7879

One controller at a time has the cell: a second one takes it over, and the first stands down. `ebb config show`
lists the file keys and variables of settings.";

const AGENT_HELP: &str = "\
Example:
  ebb agent --controller http://10.0.0.1:7879 --server gpu-1 --slots 4 --data /srv/ebb-agent \\
            --store s3://bucket/ebb --token-file agent-token";

#[cfg(test)]
mod tests {
    use super::*;
    use controller_core::policy::{POLICY_NAMES, policy_by_name};

    #[test]
    fn a_policy_is_chosen_by_the_name_that_it_has_and_none_is_left_out() {
        let mut taken = Vec::new();
        for choice in PolicyName::value_variants() {
            let name = choice.name();
            let policy = policy_by_name(&name).unwrap_or_else(|| {
                panic!("`--policy` takes `{name}` for {choice:?}, and there is no such policy: `#[value(name = \"…\")]` gives it another one")
            });
            assert_eq!(policy.name(), name, "the policy of {choice:?} calls itself so");
            taken.push(name);
        }
        for name in POLICY_NAMES {
            assert!(
                taken.iter().any(|taken| taken == name),
                "`--policy` does not take `{name}`: `PolicyName` needs it"
            );
        }
    }
}
