//! `ebb job …` and `ebb model …`.

use super::{Since, duration};
use crate::output::Output;
use clap::{Args, Subcommand, ValueHint};
use events_schema::TenantId;
use gateway_api::JobPhase;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// `ebb job …`
#[derive(Debug, Clone, Args)]
#[command(arg_required_else_help = true, override_usage = "ebb job COMMAND …\n       ebb job ID")]
pub struct JobArgs {
    /// Show this job: the same as `ebb job show ID`.
    pub id: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub command: Option<JobCommand>,
}

/// `ebb jobs`, `ebb job list`
#[derive(Debug, Clone, Args)]
pub struct JobsArgs {
    /// Only those of this tenant.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<TenantId>,
}

/// What can be done with jobs.
#[derive(Debug, Clone, Subcommand)]
pub enum JobCommand {
    /// Submit a job from a YAML or JSON file
    Submit(SubmitArgs),
    /// List jobs, newest first
    List(JobsArgs),
    /// Show one job
    Show(JobArg),
    /// Watch a job, or all unfinished ones
    Watch(WatchArgs),
    /// Wait until jobs are over, or have come to a phase; the exit code says how they ended
    Wait(WaitArgs),
    /// Tell every decision about a job, its reason, and what else was decided at that moment
    Explain(ExplainArgs),
    /// Show what a job's executors said, also of those that are gone
    Logs(LogsArgs),
    /// End a job; its last checkpoint stays
    Cancel(JobArg),
    /// Checkpoint a job and give its slots back
    Suspend(JobArg),
    /// Let a suspended job run again
    Resume(JobArg),
    /// List a job's checkpoints
    Checkpoints(CheckpointsArgs),
    /// Train a job, or a stretch of it, once more on fixed slots, and compare it bit for bit with what was recorded
    Verify(VerifyArgs),
}

/// Arguments of `ebb job submit`.
#[derive(Debug, Clone, Args)]
#[command(after_help = SUBMIT_HELP)]
pub struct SubmitArgs {
    /// The job, YAML or JSON; `-` reads standard input.
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Watch it to its end; the exit code says how it ended (see `ebb help`).
    #[arg(long)]
    pub wait: bool,
    /// With --wait: no longer than that, for example 90s, 15m, 2h.
    #[arg(long, value_name = "DURATION", requires = "wait", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Only say whether it would be taken: everything is checked as for a real submit, and nothing changes. A PyTorch job is tried on this
    /// machine as well: its environment is built, and what its executors would refuse is told.
    #[arg(long, conflicts_with = "wait")]
    pub dry_run: bool,
    /// With --dry-run: the Python of this machine to try a PyTorch job with [default: the job's own, or python3, where it has torch].
    #[arg(long, value_name = "PROGRAM", value_hint = ValueHint::ExecutablePath)]
    pub python: Option<String>,
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

/// Arguments of `ebb job explain`.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// Id of the job, or its first characters.
    pub id: String,
    /// Only so many of the newest decisions.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub newest: Option<u64>,
}

/// Arguments of `ebb job watch`.
#[derive(Debug, Clone, Args)]
pub struct WatchArgs {
    /// Id of the job, or its first characters.
    pub id: Option<String>,
}

/// Arguments of `ebb job logs`.
#[derive(Debug, Clone, Args)]
#[command(after_help = LOGS_HELP)]
pub struct LogsArgs {
    /// Id of the job, or its first characters.
    pub id: String,
    /// Go on as they say more, until the job is over.
    #[arg(short, long)]
    pub follow: bool,
    /// Only of this executor: its number within the job.
    #[arg(long, value_name = "NUMBER")]
    pub executor: Option<u32>,
    /// Only of executors that said something since then: RFC 3339, or so long ago (`1h`).
    #[arg(long, value_name = "TIME|DURATION")]
    pub since: Option<Since>,
}

/// Arguments of `ebb job checkpoints`.
#[derive(Debug, Clone, Args)]
pub struct CheckpointsArgs {
    /// Id of the job, or its first characters.
    pub id: String,
    /// Only those of this step and later ones.
    #[arg(long, value_name = "STEP")]
    pub from_step: Option<u64>,
    /// Only those of this step and earlier ones.
    #[arg(long, value_name = "STEP")]
    pub to_step: Option<u64>,
    /// Of those, only so many of the newest.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub newest: Option<u64>,
}

/// Arguments of `ebb job verify`.
#[derive(Debug, Clone, Args)]
#[command(after_help = VERIFY_HELP)]
pub struct VerifyArgs {
    /// Id of the job, or its first characters.
    pub id: String,
    /// Begin with the job's checkpoint of this step; 0 is its beginning [default: 0].
    #[arg(long, value_name = "STEP")]
    pub from: Option<u64>,
    /// End at this step, of which the log has a digest [default: the job's end, or its newest checkpoint].
    #[arg(long, value_name = "STEP")]
    pub to: Option<u64>,
    /// Only the newest stretch: from the checkpoint before the last one.
    #[arg(long, conflicts_with_all = ["from", "to"])]
    pub last: bool,
    /// Train it on so many slots, neither more nor fewer [default: the job's `workers.min`].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub slots: Option<u16>,
    /// Write the document there [default: verification-JOB-RETRAINING.json; with `-o json` to standard output alone].
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Wait no longer than that for the retraining, for example 90s, 15m, 2h.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
}

/// Arguments of `ebb job wait`.
#[derive(Debug, Clone, Args)]
#[command(after_help = WAIT_HELP)]
pub struct WaitArgs {
    /// Ids of jobs, or their first characters.
    #[arg(required = true, value_name = "JOB")]
    pub ids: Vec<String>,
    /// Until they are `finished` (or have ended otherwise, or are suspended), or have come to a phase: `state=running`.
    #[arg(long = "for", value_name = "finished|state=PHASE", default_value = "finished")]
    pub until: WaitFor,
    /// No longer than that, for example 90s, 15m, 2h.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// The end.
    Finished,
    /// A phase.
    State(JobPhase),
}

impl WaitFor {
    /// The phase, if it is one.
    #[must_use]
    pub fn phase(self) -> Option<JobPhase> {
        match self {
            Self::Finished => None,
            Self::State(phase) => Some(phase),
        }
    }
}

impl FromStr for WaitFor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "finished" {
            return Ok(Self::Finished);
        }
        let phase = text.strip_prefix("state=").and_then(JobPhase::parse);
        let names: Vec<&str> = JobPhase::ALL.iter().map(|phase| phase.as_str()).collect();
        phase
            .map(Self::State)
            .ok_or_else(|| format!("expected `finished` or `state=` with one of {}", names.join(", ")))
    }
}

/// `ebb model …`
#[derive(Debug, Clone, Subcommand)]
pub enum ModelCommand {
    /// Write the final model to a safetensors file
    Get {
        /// Id of the job, or its first characters.
        id: String,
        /// How the result is printed. (`-o` is the file here.)
        #[arg(long, value_enum, default_value = "table")]
        output: Output,
        /// The file; `-` is standard output.
        #[arg(short = 'o', long = "to", value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Take the bytes straight from the object store (S3), not through the service.
        #[arg(long)]
        direct: bool,
    },
    /// Print a link by which anybody may read the model from the object store for a quarter of an hour
    Link {
        /// Id of the job, or its first characters.
        id: String,
    },
}

const SUBMIT_HELP: &str = "\
Example job.yaml:
  name: digits
  model: {kind: cnn, channels: [8, 16]}
  dataset: digits
  workers: {min: 1, max: 4}
  batch_size: 16
  epochs: 10
  evaluation: {dataset: digits-test, every_steps: 100}";

const LOGS_HELP: &str = "\
A line begins with the number of its executor (`e3 | …`). Of each the newest 8 MiB are kept in the
object store, for a week. They come within three seconds, by way of the store: of an executor that
was killed, what its agent had read of it is there.";

const VERIFY_HELP: &str = "\
The service trains the stretch as a job of its own (`retrains` in its spec), which is visible as any
other and whose objects are swept up a day later. The document says what was compared and what came
of it. A stretch that begins at a checkpoint needs that checkpoint to be kept (`checkpoint.keep`).

Exit codes: 0 equal, 11 different, 12 nothing can be said (a `command`, another numeric class, …),
8 not within --timeout (the retraining goes on).";

const WAIT_HELP: &str = "\
Examples:
  ebb wait $ID && ebb model get $ID -o model.safetensors
  ebb wait $ID --for state=running --timeout 2m

Exit codes: 0 as wanted, 5 failed, 6 cancelled, 7 suspended, 8 not within --timeout (the job goes
on); of several jobs that of the first which is not as wanted. A job that has finished also meets
`state=running`. With `state=…`, a suspended job is waited for: somebody may resume it.";
