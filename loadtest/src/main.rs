//! Drivers against a running Ebb. `loadtest replay` publishes a recorded demand curve as a fleet's demand signals, over the
//! public API and faster than it happened, and tells how the service kept up.
//!
//! Uses the HTTP API only, as a fleet would. Next: `trace.rs` (the curve), then `replay.rs` (publishing it).

mod replay;
mod trace;

use anyhow::Result;
use clap::{Parser, Subcommand};
use events_schema::FleetId;
use std::path::PathBuf;
use std::process::ExitCode;

/// Load for a running Ebb.
#[derive(Debug, Parser)]
#[command(name = "loadtest", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replay a demand trace as a fleet's demand signals
    #[command(after_help = REPLAY_HELP)]
    Replay(ReplayArgs),
}

const REPLAY_HELP: &str = "\
The trace is CSV with a header. Times come from the column `t` (seconds) or `timestamp` (YYYY-MM-DD HH:MM:SS); the demand
column is scaled so that its maximum needs all slots of the fleet.

Example: an hour of a day's curve in ten seconds each, for a fleet of 4 slots:
  loadtest replay --trace demand.csv --column rate_req_s --fleet local --slots 4 --speedup 360 --signals-max 144";

/// Arguments of `loadtest replay`.
#[derive(Debug, clap::Args)]
pub struct ReplayArgs {
    /// The trace.
    #[arg(long, value_name = "CSV")]
    trace: PathBuf,
    /// The column that is demand.
    #[arg(long, value_name = "NAME")]
    column: String,
    /// Whose demand it is.
    #[arg(long, value_name = "FLEET")]
    fleet: FleetId,
    /// Slots of the fleet: what the trace's maximum needs.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slots: u32,
    /// So many times faster than recorded.
    #[arg(long, value_name = "K", default_value_t = 60.0)]
    speedup: f64,
    /// Stop after so many signals.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    signals_max: usize,
    /// Where the service listens.
    #[arg(long, env = "EBB_URL", default_value = "http://127.0.0.1:7878")]
    url: String,
}

fn main() -> ExitCode {
    let Cli { command: Command::Replay(args) } = Cli::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loadtest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &ReplayArgs) -> Result<()> {
    anyhow::ensure!(
        args.speedup.is_finite() && args.speedup > 0.0,
        "--speedup is {}: expected a number above 0",
        args.speedup
    );
    let curve = trace::read(&args.trace, &args.column)?;
    let signals = trace::signals(&curve, args.slots, args.signals_max);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let summary = runtime.block_on(replay::replay(args, &signals))?;
    println!("{summary}");
    Ok(())
}
