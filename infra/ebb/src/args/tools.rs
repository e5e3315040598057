//! Arguments of the commands that show and measure: `top`, `demo`, `bench`.

use super::duration;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `ebb top`.
#[derive(Debug, Clone, Args)]
#[command(after_help = TOP_HELP)]
pub struct TopArgs {
    /// How often the screen is drawn.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    pub every: Duration,
    /// Only once, also on a terminal.
    #[arg(long)]
    pub once: bool,
}

const TOP_HELP: &str = "\
A letter a slot: . the fleet's own, o lent and idle, # used, < on its way back, ? on a server that
cannot be reached. Elsewhere than on a terminal, and with -o json, it is one snapshot.";

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
    /// Fewer repetitions: minutes instead of half an hour. Some goals then stay `not known`.
    #[arg(long)]
    pub quick: bool,
    /// Also sums of 1 GB, growth of jobs with replicas of 0.1, 0.7 and 2 GB, and steps, memory, checkpoints and loans of the first two: up to 16 GB of memory, and an hour for each size
    #[arg(long)]
    pub large: bool,
    /// Whose models are trained.
    #[arg(long, value_enum, default_value_t = BenchEngine::Native)]
    pub engine: BenchEngine,
    /// A Python with torch, for `--engine torch`.
    #[arg(long, value_name = "PROGRAM", default_value = "python3", value_hint = ValueHint::ExecutablePath)]
    pub python: String,
    /// Where they train, for `--engine torch --large --only growth`: `cuda` is this machine's first GPU, which all slots share.
    #[arg(long, value_enum, default_value_t = BenchDevice::Cpu)]
    pub device: BenchDevice,
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

/// Whose models `ebb bench` trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchEngine {
    /// Ebb's own.
    Native,
    /// In PyTorch, beside plain PyTorch loops.
    Torch,
}

/// Where `ebb bench --engine torch` trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchDevice {
    /// The processor.
    Cpu,
    /// A GPU.
    Cuda,
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
    /// Elements of each.
    #[arg(long)]
    pub elements: usize,
    /// Send copies, as between hosts.
    #[arg(long)]
    pub copy: bool,
}
