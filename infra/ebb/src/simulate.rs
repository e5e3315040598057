//! `ebb simulate`: recorded jobs under policies (`simulate_run.rs`), and `ebb simulate chaos`: runs all of Ebb on virtual time among faults, one seed after the other, for as long as asked. What is simulated and
//! what is checked is in `loadtest/world`; here is only the clock, and what is printed.

use crate::failure::{Failure, exit_code};
use crate::output::{Output, json as print_json, line};
use crate::simulate_run::RunArgs;
use clap::{Args, Subcommand};
use loadtest_world::{Found, Tally};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What can be simulated.
#[derive(Debug, Clone, Subcommand)]
pub enum SimulateCommand {
    /// One schedule of faults after the other, until one does what must not be
    #[command(after_help = CHAOS_HELP)]
    Chaos(ChaosArgs),
    /// Recorded jobs on a cluster, under one policy after the other
    #[command(after_help = crate::simulate_run::HELP)]
    Run(Box<RunArgs>),
}

/// Arguments of `ebb simulate chaos`.
#[derive(Debug, Clone, Args)]
pub struct ChaosArgs {
    /// How long to go on.
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub seconds: u64,
    /// The first seed; the ones after it follow.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
}

const CHAOS_HELP: &str = "\
Example:
  ebb simulate chaos --seconds 600 --seed 1

The controller, the agents, the executors and the gateway are the real ones, without their sockets and clocks. Exits with 1
and the seed when something was done that must not be, or a job did not go on though nothing was left to hinder it.";

/// `ebb simulate chaos`.
pub fn chaos(args: &ChaosArgs, output: Output) -> Result<ExitCode, Failure> {
    // A machine that panics is a finding, with its words; they are not to stand between the lines as well.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let (begun, limit) = (Instant::now(), Duration::from_secs(args.seconds));
    let mut tally = Tally::default();
    let mut seed = args.seed;
    while begun.elapsed() < limit && tally.findings.is_empty() {
        tally.add(seed);
        seed = seed.wrapping_add(1);
    }
    std::panic::set_hook(hook);
    let seconds = begun.elapsed().as_secs_f64();
    match output {
        Output::Json => print_json(&document(&tally, seconds)),
        Output::Table | Output::Name => print(&tally, seconds),
    }
    Ok(if tally.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit_code::FAILED) })
}

fn document(tally: &Tally, seconds: f64) -> Value {
    let finding = |found: &Found| {
        json!({
            "seed": found.seed, "property": found.finding.property, "detail": found.finding.detail,
            "at_ms": found.finding.at_ms, "schedule": found.smallest(),
        })
    };
    let findings: Vec<Value> = tally.findings.iter().map(finding).collect();
    json!({"schedules": tally.schedules, "events": tally.events, "seconds": seconds, "findings": findings})
}

fn print(tally: &Tally, seconds: f64) {
    line(tally.table().trim_end());
    let (schedules, events, per_second) = (tally.schedules, tally.events, tally.events as f64 / seconds.max(1e-9));
    line(format!("{schedules} schedules, {events} events, {seconds:.1} s, {per_second:.0} events/s"));
    for found in &tally.findings {
        let Found { seed, finding, .. } = found;
        line(format!("seed {seed}: {} [at {} ms] {}", finding.property, finding.at_ms, finding.detail));
        line(format!("replays as: {}", json!(found.smallest())));
    }
}
