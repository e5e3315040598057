//! The command line: every command. Parsing only; `lib.rs` says what runs.
//!
//! One file per noun, all re-exported here; a command that is a file of its own (`log.rs`, `store.rs`, `load.rs`, `simulate.rs`, …) has its
//! arguments beside what it does. A command is `ebb NOUN VERB`; the short forms of old are other names for those (`short.rs`).

mod dataset;
mod event;
mod fleet;
mod job;
mod service;
mod short;
mod tenant;
mod tools;

pub use dataset::*;
pub use event::*;
pub use fleet::*;
pub use job::*;
pub use service::*;
pub use short::*;
pub use tenant::*;
pub use tools::*;

use crate::output::Output;
use clap::{Parser, Subcommand, ValueHint};
use ebb_telemetry::LogFormat;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
A first job, in three commands (each in its own terminal or one after the other):
  ebb up                          gateway, controller and agent on this machine
  ebb submit job.yaml --wait      train; ids may be cut to their first characters
  ebb model get ID -o model.safetensors

Short forms:
  ebb job …    ebb submit, jobs, watch, wait, explain, logs, cancel, suspend, resume, checkpoints, verify
  the others   ebb fleets, demand, offer, reclaim; ebb slots, take-back; ebb tenants; ebb events
Exit codes: 0 done, 1 failed, 2 wrong use, 3 no service, 4 refused, 10 not found, 130 interrupted;
of what was waited for: 5 failed, 6 cancelled, 7 suspended, 8 time over; 9 `load`; 11, 12 `verify`.";

/// Elastic training on slots that inference does not need right now.
#[derive(Debug, Clone, Parser)]
#[command(name = "ebb", version, after_help = AFTER_HELP, max_term_width = 110, arg_required_else_help = true)]
pub struct Cli {
    /// Service to talk to.
    #[arg(long, global = true, default_value = "http://127.0.0.1:7878")]
    pub url: String,
    /// File with the credential that a proxy before the service asks for
    ///
    /// Sent as a bearer token, over https or within this machine only.
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub credential_file: Option<PathBuf>,
    /// Authorities (PEM) to trust beside the system's, for https
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ca_file: Option<PathBuf>,
    /// File with settings, which `ebb config show` lists
    #[arg(long, global = true, value_name = "FILE", env = "EBB_CONFIG", hide_env_values = true, value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, global = true, value_enum, default_value = "table")]
    pub output: Output,
    /// How log lines on standard error look: text or json
    ///
    /// EBB_LOG says how much is logged.
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Every command.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Submit, list, show, watch and end jobs
    Job(JobArgs),
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
    /// Declare fleets, say what they need, lend and take back their slots
    Fleet {
        /// What to do.
        #[command(subcommand)]
        command: FleetCommand,
    },
    /// List slots; take them back directly at their agent
    Slot {
        /// What to do.
        #[command(subcommand)]
        command: SlotCommand,
    },
    /// Say what tenants have guaranteed, list and show them
    Tenant {
        /// What to do.
        #[command(subcommand)]
        command: TenantCommand,
    },
    /// Read what happened
    Event {
        /// What to do.
        #[command(subcommand)]
        command: EventCommand,
    },
    /// Watch fleets, slots and jobs, live
    Top(TopArgs),
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
    Executor {
        /// Send copies of sums, as between hosts.
        #[arg(long)]
        copy: bool,
        /// Ranks whose gradients it computes at once.
        #[arg(long, default_value_t = 1)]
        threads: u16,
    },
    /// Look at a log without a service: whether it folds, and what stands in it
    Log {
        /// What to do.
        #[command(subcommand)]
        command: crate::log::LogCommand,
    },
    /// Look at the bucket of an S3 store: check it, set it up, end abandoned uploads
    Store {
        /// What to do.
        #[command(subcommand)]
        command: crate::store::StoreCommand,
    },
    /// Print the completion script of a shell
    #[command(after_help = COMPLETION_HELP)]
    Completion {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Train a real model through a rising and falling tide; prove that nothing changed it
    Demo(DemoArgs),
    /// Measure this machine against its own baselines
    #[command(after_long_help = loadtest_bench::listing())]
    Bench(BenchArgs),
    /// Play fleets and users against a running service, measure it and judge it
    #[command(after_help = crate::load::HELP)]
    Load(crate::load::LoadArgs),
    /// Run recorded jobs on a running service, and the simulator beside it
    #[command(after_help = crate::replay::HELP)]
    Replay(Box<crate::replay_setup::ReplayArgs>),
    /// Run recorded jobs under policies, or all of Ebb among faults, on virtual time
    Simulate {
        /// What to run.
        #[command(subcommand)]
        command: crate::simulate::SimulateCommand,
    },
    /// Make a recording for `ebb simulate run` of a log
    Trace {
        /// What to do.
        #[command(subcommand)]
        command: crate::trace::TraceCommand,
    },
    /// One process of a measured sum; started by `ebb bench`
    #[command(hide = true)]
    BenchMember(BenchMemberArgs),
    /// The same by fewer characters.
    #[command(flatten)]
    Short(Short),
}

/// `ebb config …`
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// Show every setting, its value (passwords hidden) and whether file, environment or default gave it
    Show,
}

impl Command {
    /// The command itself, also of a short form.
    #[must_use]
    pub fn in_full(self) -> Self {
        match self {
            Self::Short(short) => short.in_full(),
            other => other,
        }
    }
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

/// A time span with its unit: `500ms`, `90s`, `15m`, `2h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "expected a number with its unit, for example 500ms, 90s, 15m or 2h".to_owned())
}

/// In whole milliseconds; what is too long for them is as long as can be.
pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

const COMPLETION_HELP: &str = "\
Example:
  mkdir -p ~/.local/share/bash-completion/completions
  ebb completion bash > ~/.local/share/bash-completion/completions/ebb";

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

    /// Every short form is another name of a command in full, with the same arguments.
    #[test]
    fn short_forms_are_commands_in_full() {
        let parsed = |line: &str| {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
            format!("{:?}", cli.command.in_full())
        };
        for (short, full) in [
            ("ebb submit f --wait", "ebb job submit f --wait"),
            ("ebb jobs --tenant labs", "ebb job list --tenant labs"),
            ("ebb wait j --for state=running", "ebb job wait j --for state=running"),
            ("ebb watch", "ebb job watch"),
            ("ebb explain j", "ebb job explain j"),
            ("ebb logs j -f", "ebb job logs j --follow"),
            ("ebb cancel j", "ebb job cancel j"),
            ("ebb suspend j", "ebb job suspend j"),
            ("ebb resume j", "ebb job resume j"),
            ("ebb checkpoints j", "ebb job checkpoints j"),
            ("ebb fleets", "ebb fleet list"),
            ("ebb demand local --needed 3", "ebb fleet demand local --needed 3"),
            ("ebb offer local local/0", "ebb fleet offer local local/0"),
            ("ebb reclaim local local/0", "ebb fleet reclaim local local/0"),
            ("ebb slots", "ebb slot list"),
            ("ebb tenants", "ebb tenant list"),
            ("ebb take-back local/2", "ebb slot take-back local/2"),
            ("ebb events j --follow", "ebb event list j --follow"),
        ] {
            assert_eq!(parsed(short), parsed(full), "{short}");
        }
    }

    /// Short forms are hidden from the list of commands, not from shells.
    #[test]
    fn shells_complete_short_forms_and_verbs() {
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ebb", &mut script);
            let script = String::from_utf8(script).unwrap();
            for word in ["submit", "take-back", "recall", "ledger", "dry-run", "name"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    /// `-o` is the output everywhere, but the file of a model.
    #[test]
    fn output_may_stand_anywhere() {
        for line in [
            "ebb -o json jobs",
            "ebb job -o json list",
            "ebb job list -o json",
            "ebb job j -o json",
            "ebb jobs --output json",
        ] {
            assert_eq!(Cli::try_parse_from(line.split(' ')).unwrap().output, Output::Json, "{line}");
        }
        let get = Cli::try_parse_from("ebb model get j -o model.safetensors --output json".split(' ')).unwrap();
        let Command::Model { command: ModelCommand::Get { file, output, .. } } = get.command else {
            panic!("no model")
        };
        assert_eq!((file.to_str(), output), (Some("model.safetensors"), Output::Json));
        let before = Cli::try_parse_from("ebb --output json model get j -o f".split(' ')).unwrap();
        assert!(matches!(before.command, Command::Model { command: ModelCommand::Get { output: Output::Json, .. } }));
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
            ("wait j --timeout 5", "for example 500ms, 90s"),
            ("job wait j --timeout m", "for example 500ms, 90s"),
            ("wait j --for state=done", "suspended, finished"),
            ("submit f --timeout 5s", "--wait"),
            ("submit f --dry-run --wait", "cannot be used"),
            ("fleet ledger chat --since yesterday", "2026-01-01T00:00:00Z"),
            ("up --allow-host http://a.example", "for example ebb.example.org"),
        ] {
            let error = Cli::try_parse_from(["ebb"].into_iter().chain(arguments.split(' '))).unwrap_err().to_string();
            assert!(error.contains(part), "{arguments}: {error}");
        }
        let below_zero = "ebb dataset import d f --format csv --scale -1".split(' ');
        assert!(Cli::try_parse_from(below_zero).is_ok());
    }
}
