//! The command line: every command, argument and example. Parsing only; `lib.rs` says what runs.

mod service;

pub use service::*;

use crate::output::Output;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use ebb_telemetry::LogFormat;
use events_schema::{DatasetName, FleetId, ServerId, SlotId};
use std::path::PathBuf;

const AFTER_HELP: &str = "\
A first job, in three commands (each in its own terminal or one after the other):
  ebb up                          gateway, controller and agent on this machine
  ebb submit job.yaml --wait      train; ids may be cut to their first characters
  ebb model get ID -o model.safetensors

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no service at the URL, 4 refused by the service,
5 the job that was waited for ended or was suspended without a model, 6 a threshold of `ebb load` does not hold.";

/// Elastic training on slots that inference does not need right now.
#[derive(Debug, Parser)]
#[command(name = "ebb", version, after_help = AFTER_HELP, max_term_width = 110, arg_required_else_help = true)]
pub struct Cli {
    /// Service to talk to.
    #[arg(long, global = true, default_value = "http://127.0.0.1:7878")]
    pub url: String,
    /// File with settings; `ebb config show` lists them and names the file.
    #[arg(long, global = true, value_name = "FILE", env = "EBB_CONFIG", hide_env_values = true, value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// How results are printed.
    #[arg(long, global = true, value_enum, default_value = "table")]
    pub output: Output,
    /// How log lines on standard error look: text or json (EBB_LOG says how much is logged)
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run everything on this machine: gateway, controller and agent in one process
    Up(UpArgs),
    /// Run a gateway alone, on the log of a cell
    Gateway(GatewayArgs),
    /// Run a controller alone, on the log of a cell
    Controller(ControllerArgs),
    /// Run a node agent alone, connected to a controller elsewhere
    Agent(AgentArgs),
    /// Look at the settings and where each comes from
    Config {
        /// What to do.
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Train one job's ranks; started by an agent, never by hand
    #[command(hide = true)]
    Executor,
    /// Submit a job from a YAML or JSON file
    #[command(after_help = SUBMIT_HELP)]
    Submit(SubmitArgs),
    /// List jobs, newest first
    Jobs,
    /// Show one job
    Job(JobArg),
    /// End a job; its last checkpoint stays
    Cancel(JobArg),
    /// Checkpoint a job and give its slots back
    Suspend(JobArg),
    /// Let a suspended job run again
    Resume(JobArg),
    /// Watch a job, or all unfinished ones
    Watch {
        /// Id of the job, or its first characters.
        id: Option<String>,
    },
    /// Fetch a finished job's model
    Model {
        /// What to do with it.
        #[command(subcommand)]
        command: ModelCommand,
    },
    /// Register, import and list datasets
    Dataset {
        /// What to do.
        #[command(subcommand)]
        command: DatasetCommand,
    },
    /// List fleets
    Fleets,
    /// Declare a fleet
    Fleet {
        /// What to do.
        #[command(subcommand)]
        command: FleetCommand,
    },
    /// Lend slots of a fleet
    Offer(SlotsArgs),
    /// Take slots of a fleet back through the controller
    Reclaim(SlotsArgs),
    /// Say how many of its slots a fleet needs for itself
    #[command(after_help = DEMAND_HELP)]
    Demand(DemandArgs),
    /// Take slots back directly at their agent; works with gateway and controller stopped
    #[command(after_help = TAKE_BACK_HELP)]
    TakeBack(TakeBackArgs),
    /// List slots: whose they are and what runs on them
    Slots,
    /// List a job's checkpoints
    Checkpoints(JobArg),
    /// Read events, of one job or of all
    Events(EventsArgs),
    /// Look at a log without a service: whether it folds, and what stands in it
    Log {
        /// What to do.
        #[command(subcommand)]
        command: crate::log::LogCommand,
    },
    /// Print the completion script of a shell
    #[command(after_help = COMPLETION_HELP)]
    Completion {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Train a real model through a rising and falling tide, and prove that nothing changed it
    Demo(DemoArgs),
    /// Measure this machine against its own baselines
    Bench(BenchArgs),
    /// Play fleets and users against a running service, measure it and judge it
    #[command(after_help = crate::load::HELP)]
    Load(crate::load::LoadArgs),
    /// Run all of Ebb on virtual time among faults
    Simulate {
        /// What to run.
        #[command(subcommand)]
        command: crate::simulate::SimulateCommand,
    },
    /// One process of a measured sum; started by `ebb bench`
    #[command(hide = true)]
    BenchMember(BenchMemberArgs),
}

/// `ebb config …`
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// Show every setting, its value (passwords hidden) and whether file, environment or default gave it
    Show,
}

/// Arguments of `ebb submit`.
#[derive(Debug, Clone, Args)]
pub struct SubmitArgs {
    /// The job, YAML or JSON; `-` reads standard input.
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Watch it to its end.
    #[arg(long)]
    pub wait: bool,
    /// Submitting again with the same key gives the same job.
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

/// A job.
#[derive(Debug, Clone, Args)]
pub struct JobArg {
    /// Id of the job, or its first characters.
    pub id: String,
}

/// `ebb model …`
#[derive(Debug, Clone, Subcommand)]
pub enum ModelCommand {
    /// Write the final model to a safetensors file
    Get {
        /// Id of the job, or its first characters.
        id: String,
        /// The file; `-` is standard output.
        #[arg(short = 'o', long = "to", value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

/// `ebb dataset …`
#[derive(Debug, Clone, Subcommand)]
pub enum DatasetCommand {
    /// Make Parquet or Arrow IPC files known where they are; nothing is copied
    #[command(
        after_help = "Example: ebb dataset register cifar s3://data/cifar/train-{0,1}.parquet --features image --label label --shape 3,32,32"
    )]
    Register(RegisterArgs),
    /// Convert files of this machine into the object store and register them
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArgs),
    /// List datasets
    List,
    /// Forget a dataset that no unfinished job reads; its files stay
    Remove {
        /// Its name.
        name: DatasetName,
    },
}

/// Arguments of `ebb dataset register`.
#[derive(Debug, Clone, Args)]
pub struct RegisterArgs {
    /// Name jobs call it by.
    pub name: DatasetName,
    /// Its files, in order.
    #[arg(required = true, value_name = "URI")]
    pub uris: Vec<String>,
    /// Column of the features.
    #[arg(long, value_name = "COLUMN", conflicts_with = "tokens")]
    pub features: Option<String>,
    /// Column of the class numbers.
    #[arg(long, value_name = "COLUMN", conflicts_with = "tokens")]
    pub label: Option<String>,
    /// Column of the token lists.
    #[arg(long, value_name = "COLUMN")]
    pub tokens: Option<String>,
    /// Dimensions of one sample, for binary columns.
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub shape: Vec<u32>,
    /// Number of classes.
    #[arg(long, value_name = "N")]
    pub classes: Option<u32>,
    /// Size of the vocabulary, for tokens.
    #[arg(long, value_name = "N")]
    pub vocabulary: Option<u32>,
    /// Tokens per row, for tokens.
    #[arg(long, value_name = "N")]
    pub length: Option<u32>,
}

/// Formats that can be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportFormat {
    /// Rows of numbers with one label column; plain or gzip.
    Csv,
    /// MNIST's format: the images file, then the labels file; plain or gzip.
    Idx,
    /// Plain text, one token per character or byte.
    Text,
}

/// Arguments of `ebb dataset import`.
#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// Name jobs call it by.
    pub name: DatasetName,
    /// The files.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// What they hold.
    #[arg(long, value_enum)]
    pub format: ImportFormat,
    /// csv: the label's column, by name (with a header line) or by number from 0 [default: the last].
    #[arg(long, value_name = "COLUMN")]
    pub label: Option<String>,
    /// csv: dimensions of one sample, for example 1,8,8.
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub shape: Vec<u32>,
    /// csv, idx: every feature is multiplied by this, for example 0.0625 for pixels up to 16.
    #[arg(long, value_name = "F", value_parser = finite_f32, allow_negative_numbers = true)]
    pub scale: Option<f32>,
    /// Keep every K-th row out, in a second dataset NAME-test.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(2..))]
    pub split_every: Option<u32>,
    /// text: tokens per row [default: 65].
    #[arg(long, value_name = "N")]
    pub length: Option<u32>,
    /// text: a token is a byte, not a character; takes any file.
    #[arg(long)]
    pub bytes: bool,
}

/// `ebb fleet …`
#[derive(Debug, Clone, Subcommand)]
pub enum FleetCommand {
    /// Declare a fleet and the slots it owns; again to change it
    #[command(after_help = "Example: ebb fleet put chat --server gpu-1 --slots 4 --server gpu-2 --slots 2")]
    Put(FleetPutArgs),
    /// Make a token with which a fleet takes its own slots back at an agent, and no others
    #[command(
        after_help = "Example, on the agent's machine: ebb fleet token chat --slot 0 --slot 1 --to chat.token\nThere is no list of such tokens: to end them all, remove take-back.token from the agent's directory and start it again."
    )]
    Token(crate::take_back::FleetTokenArgs),
    /// Show one fleet
    Show {
        /// Its name.
        name: FleetId,
    },
}

/// Arguments of `ebb fleet put`.
#[derive(Debug, Clone, Args)]
pub struct FleetPutArgs {
    /// Its name.
    pub name: FleetId,
    /// A server of the fleet; give it once per server.
    #[arg(long, required = true)]
    pub server: Vec<ServerId>,
    /// How many slots of the server before it (all of 0..N).
    #[arg(long, required = true, value_name = "N")]
    pub slots: Vec<u16>,
    /// How slots are offered.
    #[arg(long, value_enum, default_value = "by-demand")]
    pub offers: OffersName,
    /// From a reclaim to the kill of an executor that did not leave.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub reclaim_deadline_ms: u64,
}

/// How a fleet's slots are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OffersName {
    /// A demand signal that needs fewer offers the rest.
    ByDemand,
    /// Only `ebb offer` does.
    Explicit,
}

/// A fleet and some of its slots.
#[derive(Debug, Clone, Args)]
pub struct SlotsArgs {
    /// The fleet.
    pub fleet: FleetId,
    /// Its slots, as SERVER/INDEX.
    #[arg(required = true, value_name = "SLOT")]
    pub slots: Vec<SlotId>,
}

/// `ebb demand …`
#[derive(Debug, Clone, Subcommand)]
pub enum DemandCommand {
    /// Keep saying it, from the metrics that Prometheus has of the fleet's servers
    #[command(after_help = crate::demand_follow::HELP)]
    Follow(crate::demand_follow::FollowArgs),
}

/// Arguments of `ebb demand`.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct DemandArgs {
    /// What to do instead of saying it once.
    #[command(subcommand)]
    pub command: Option<DemandCommand>,
    /// The fleet.
    #[arg(required = true)]
    pub fleet: Option<FleetId>,
    /// So many slots.
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        required_unless_present = "utilization",
        conflicts_with = "utilization"
    )]
    pub needed: Option<u32>,
    /// Utilization summed over the fleet's slots, for example 1.7.
    #[arg(long, value_name = "U", value_parser = finite_f64, allow_negative_numbers = true)]
    pub utilization: Option<f64>,
    /// Wanted utilization of one slot.
    #[arg(long, value_name = "T", default_value_t = 0.8, requires = "utilization", value_parser = finite_f64, allow_negative_numbers = true)]
    pub target: f64,
}

/// Arguments of `ebb take-back`.
#[derive(Debug, Clone, Args)]
pub struct TakeBackArgs {
    /// Slots, as SERVER/INDEX, or as INDEX at that agent.
    #[arg(required = true, value_name = "SLOT")]
    pub slots: Vec<String>,
    /// The agent's own address [default: as the agent of --data wrote it down].
    #[arg(long, value_name = "URL", requires = "token_file")]
    pub agent: Option<String>,
    /// File with the token that the agent asks of fleets.
    #[arg(long, value_name = "FILE", requires = "agent", value_hint = ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,
    /// Data directory of the `ebb up` or `ebb agent` that runs on this machine.
    #[arg(long, value_name = "DIR", default_value = "./ebb-data", value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
    /// Kill executors that have not left by then [default: 5000].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=600_000))]
    pub deadline_ms: Option<u64>,
}

/// Arguments of `ebb events`.
#[derive(Debug, Clone, Args)]
pub struct EventsArgs {
    /// Only of this job: its id, or its first characters.
    pub id: Option<String>,
    /// Print them as they happen: of a job after what has happened so far, of all from now on (--from 0-0: from the beginning).
    #[arg(long)]
    pub follow: bool,
    /// Begin after this cursor.
    #[arg(long, value_name = "CURSOR")]
    pub from: Option<String>,
}

/// Arguments of `ebb demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Run on this log, for example kafka://127.0.0.1:9092 [default: a file in the demo's own directory].
    #[arg(long, value_name = "URL")]
    pub log: Option<String>,
    /// Run on this object store [default: a folder in the demo's own directory].
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Write slots and loss over time as a picture (SVG).
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub plot: Option<PathBuf>,
    /// Keep the demo's directory, to look at.
    #[arg(long)]
    pub keep: bool,
}

/// Arguments of `ebb bench`.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Fewer repetitions: a minute instead of several.
    #[arg(long)]
    pub quick: bool,
    /// Only rows whose name contains this.
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Measure this log too, for example kafka://127.0.0.1:9092.
    #[arg(long, value_name = "URL")]
    pub log: Option<String>,
    /// Kill and stop brokers, one after the other, of the three that `infra/servers/kafka3.sh start DIR` started.
    #[arg(long, value_name = "DIR")]
    pub brokers: Option<PathBuf>,
}

/// Arguments of `ebb bench-member`.
#[derive(Debug, Clone, Args)]
pub struct BenchMemberArgs {
    /// Which member, from 0.
    #[arg(long)]
    pub member: u16,
    /// How many there are.
    #[arg(long)]
    pub members: u16,
    /// Sums to make after a first one.
    #[arg(long)]
    pub rounds: u64,
}

/// JSON has no other numbers, so a NaN would reach the service as a missing field.
fn finite_f64(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| "expected a finite number, for example 1.7".to_owned())
}

fn finite_f32(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| "expected a finite number, for example 0.0625".to_owned())
}

const COMPLETION_HELP: &str = "\
Example:
  mkdir -p ~/.local/share/bash-completion/completions
  ebb completion bash > ~/.local/share/bash-completion/completions/ebb";

const SUBMIT_HELP: &str = "\
Example job.yaml:
  name: digits
  model: {kind: cnn, channels: [8, 16]}
  dataset: digits
  workers: {min: 1, max: 4}
  batch_size: 16
  epochs: 10
  evaluation: {dataset: digits-test, every_steps: 100}";

const DEMAND_HELP: &str = "\
Examples:
  ebb demand local --needed 3              the fleet takes 3 of its slots, lends the rest
  ebb demand local --utilization 1.7       1.7 slots' worth of work at 0.8 each: 3 slots
  ebb demand follow chat --prometheus http://127.0.0.1:9090 --metrics vllm --requests-per-slot 16";

const TAKE_BACK_HELP: &str = "\
Examples:
  ebb take-back local/2                    on the machine of `ebb up`, from where it was started
  ebb take-back 0 1 --agent http://127.0.0.1:41203 --token-file /srv/ebb/agent/take-back.token

Returns when the slots are free. They are not used again until offered again.";

const IMPORT_HELP: &str = "\
Examples:
  ebb dataset import mnist train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz --format idx --split-every 6
  ebb dataset import digits digits.csv --format csv --label label --shape 1,8,8 --scale 0.0625
  ebb dataset import shakespeare tinyshakespeare.txt --format text --length 65";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// A screen: 24 lines is the terminal of old, 50 what people have.
    const HELP_LINES_MAX: usize = 50;

    #[test]
    fn every_help_fits_a_screen() {
        fn check(command: &mut clap::Command) {
            let lines = command.render_help().to_string().lines().count();
            assert!(lines <= HELP_LINES_MAX, "help of `{}` has {lines} lines", command.get_name());
            command.get_subcommands_mut().for_each(check);
        }
        check(&mut Cli::command());
    }

    #[test]
    fn demand_is_one_of_two() {
        assert!(Cli::try_parse_from(["ebb", "demand", "local", "--needed", "3"]).is_ok());
        assert!(Cli::try_parse_from(["ebb", "demand", "local"]).is_err());
        assert!(Cli::try_parse_from(["ebb", "demand", "local", "--needed", "3", "--utilization", "1"]).is_err());
    }

    #[test]
    fn wrong_values_are_told_what_would_be_right() {
        for (arguments, part) in [
            ("demand local --utilization nan", "finite number"),
            ("demand local --utilization 1 --target inf", "finite number"),
            ("demand local --needed -1", "-1 is not in 0.."),
            ("dataset import d f --format csv --scale NaN", "finite number"),
            ("up --store memory:///", "other processes"),
            ("up --allow-host http://a.example", "for example ebb.example.org"),
        ] {
            let error = Cli::try_parse_from(["ebb"].into_iter().chain(arguments.split(' '))).unwrap_err().to_string();
            assert!(error.contains(part), "{arguments}: {error}");
        }
        let below_zero = "ebb dataset import d f --format csv --scale -1".split(' ');
        assert!(Cli::try_parse_from(below_zero).is_ok());
    }
}
