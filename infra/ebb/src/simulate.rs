//! `ebb simulate chaos`: runs all of Ebb on virtual time among faults, one seed after the other, for as long as asked. What is simulated and
//! what is checked is in `loadtest/world`; here is only the clock, and what is printed.

use crate::args::ChaosArgs;
use crate::failure::{Failure, exit_code};
use crate::output::{Output, json as print_json, line};
use loadtest_world::{Found, Tally};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

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
    match args.format.unwrap_or(output) {
        Output::Json => print_json(&document(&tally, seconds)),
        Output::Table => print(&tally, seconds),
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
