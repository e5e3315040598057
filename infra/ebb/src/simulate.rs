//! `ebb simulate`: recorded jobs under policies (`simulate_run.rs`, and `simulate_again.rs` for a run as it was), operators' questions (`simulate_ask.rs`), results of papers (`simulate_papers.rs`), and `ebb simulate chaos`: runs all of Ebb on virtual time among faults, one seed after the other, for as long as asked. What is simulated and
//! what is checked is in `loadtest/world`; here is only the clock, what is printed, and the files that schedules are kept in.

use crate::failure::{Failure, exit_code};
use crate::output::{Output, advise, json as print_json, line};
use crate::simulate_again::AgainArgs;
use crate::simulate_ask::AskArgs;
use crate::simulate_options::Given;
use crate::simulate_papers::PapersArgs;
use crate::simulate_run::RunArgs;
use clap::{Args, Subcommand};
use loadtest_world::{Found, Mutant, Mutants, Schedule, Tally};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
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
    Run(Box<Given<RunArgs>>),
    /// A run as it was, of what it wrote
    #[command(after_help = crate::simulate_again::HELP)]
    Again(AgainArgs),
    /// What an operator asks before anything is changed, answered by several such runs
    #[command(after_help = crate::simulate_ask::HELP)]
    Ask(Box<Given<AskArgs>>),
    /// Results of papers beside ours
    #[command(after_help = crate::simulate_papers::HELP)]
    Papers(PapersArgs),
}

/// Arguments of `ebb simulate chaos`.
#[derive(Debug, Clone, Args)]
pub struct ChaosArgs {
    /// How long to go on.
    #[arg(long, value_name = "N", default_value_t = 60, conflicts_with = "replay")]
    pub seconds: u64,
    /// The first seed; the ones after it follow.
    #[arg(long, value_name = "S", default_value_t = 0, conflicts_with = "replay")]
    pub seed: u64,
    /// Where the schedule of a finding is written to, made as small as it goes.
    #[arg(long, value_name = "DIR", default_value = ".", conflicts_with = "replay")]
    pub write: PathBuf,
    /// Runs the schedule of this file again, and nothing else.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// Switches a mended defect on again, so that there is something to find.
    #[arg(long, value_name = "NAME", hide = true, value_parser = mutant)]
    pub mutant: Vec<Mutant>,
}

const CHAOS_HELP: &str = "\
Examples:
  ebb simulate chaos --seconds 600 --seed 1
  ebb simulate chaos --replay chaos-seed-1.json

The controller, the agents, the executors and the gateway are the real ones, without their sockets and clocks. Exits with 1
and the seed when something was done that must not be, or a job did not go on though nothing was left to hinder it. The
schedule that shows it is written to a file, which --replay runs again.";

fn mutant(name: &str) -> Result<Mutant, String> {
    let known = || Mutant::ALL.map(Mutant::name).join(", ");
    Mutant::named(name).ok_or_else(|| format!("there is no such defect; there are {}", known()))
}

/// A finding, and where its schedule is kept.
struct Kept<'a> {
    found: &'a Found,
    smallest: Schedule,
    /// None if it could not be written.
    file: Option<PathBuf>,
}

/// `ebb simulate chaos`.
pub fn chaos(args: &ChaosArgs, output: Output) -> Result<ExitCode, Failure> {
    let replayed = args.replay.as_deref().map(read).transpose()?;
    // A machine that panics is a finding, with its words; they are not to stand between the lines as well.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let (begun, mut tally) = (Instant::now(), Tally::with(Mutants(args.mutant.clone())));
    match replayed {
        Some(schedule) => tally.run(schedule.seed, schedule),
        None => run_seeds(args, begun, &mut tally),
    }
    let seconds = begun.elapsed().as_secs_f64();
    let kept: Vec<Kept<'_>> = tally.findings.iter().map(|found| keep(found, args)).collect();
    std::panic::set_hook(hook);
    match output {
        Output::Json => print_json(&document(&tally, seconds, &kept, args)),
        Output::Table | Output::Name => print(&tally, seconds, &kept, args),
    }
    Ok(if kept.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit_code::FAILED) })
}

/// One seed after the other, for as long as asked and until one finds something.
fn run_seeds(args: &ChaosArgs, begun: Instant, tally: &mut Tally) {
    let (limit, mut seed) = (Duration::from_secs(args.seconds), args.seed);
    while begun.elapsed() < limit && tally.findings.is_empty() {
        tally.add(seed);
        seed = seed.wrapping_add(1);
    }
}

fn read(file: &Path) -> Result<Schedule, Failure> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::local(format!("the schedule `{shown}` cannot be read"), error))?;
    serde_json::from_str(&text).map_err(|error| {
        let failure = Failure::local(format!("`{shown}` is no schedule of the simulation"), error);
        failure.advise("name a file that `ebb simulate chaos` wrote")
    })
}

/// Writes the schedule of a finding down, unless it came from a file. That it cannot be written takes nothing from what was found.
fn keep<'a>(found: &'a Found, args: &ChaosArgs) -> Kept<'a> {
    if let Some(file) = &args.replay {
        return Kept { found, smallest: found.schedule.clone(), file: Some(file.clone()) };
    }
    let (smallest, file) = (found.smallest(), args.write.join(format!("chaos-seed-{}.json", found.seed)));
    let text = serde_json::to_string_pretty(&smallest).unwrap_or_default();
    let written = std::fs::create_dir_all(&args.write).and_then(|()| std::fs::write(&file, text));
    if let Err(error) = &written {
        advise(format!("ebb: {} cannot be written: {error}", file.display()));
    }
    Kept { found, smallest, file: written.is_ok().then_some(file) }
}

/// What runs a kept schedule again.
fn command(file: &Path, args: &ChaosArgs) -> String {
    let file = file.to_string_lossy();
    let quoted = shlex::try_quote(&file).unwrap_or_else(|_| file.clone());
    let defects: String = args.mutant.iter().map(|mutant| format!(" --mutant {}", mutant.name())).collect();
    format!("ebb simulate chaos --replay {quoted}{defects}")
}

fn document(tally: &Tally, seconds: f64, kept: &[Kept<'_>], args: &ChaosArgs) -> Value {
    let finding = |Kept { found, smallest, file }: &Kept<'_>| {
        json!({
            "seed": found.seed, "property": found.finding.property, "detail": found.finding.detail,
            "at_ms": found.finding.at_ms, "schedule": smallest, "file": file,
            "replay": file.as_deref().map(|file| command(file, args)),
        })
    };
    let findings: Vec<Value> = kept.iter().map(finding).collect();
    json!({"schedules": tally.schedules, "events": tally.events, "seconds": seconds, "findings": findings})
}

fn print(tally: &Tally, seconds: f64, kept: &[Kept<'_>], args: &ChaosArgs) {
    line(tally.table().trim_end());
    line(tally.summary(seconds));
    for Kept { found: Found { seed, finding, .. }, smallest, file } in kept {
        line(format!("seed {seed}: {} [at {} ms] {}", finding.property, finding.at_ms, finding.detail));
        match file {
            Some(file) => {
                line(format!("its schedule is in {}; `{}` runs it again", file.display(), command(file, args)));
            }
            None => line(format!("its schedule: {}", json!(smallest))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn args(of: &[&str]) -> Result<ChaosArgs, clap::Error> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            chaos: ChaosArgs,
        }
        clap::Parser::try_parse_from(std::iter::once(&"chaos").chain(of)).map(|Line { chaos }| chaos)
    }

    #[test]
    fn the_document_of_runs_that_found_nothing_has_four_fields() {
        let mut tally = Tally::default();
        tally.add(0);
        let document = document(&tally, 0.5, &[], &args(&[]).unwrap());
        let events = tally.events;
        assert!(events > 0);
        assert_eq!(document, json!({"schedules": 1, "events": events, "seconds": 0.5, "findings": []}));
    }

    #[test]
    fn a_replay_is_of_one_file_and_a_defect_has_a_name() {
        assert!(args(&["--replay", "a.json", "--seed", "1"]).is_err());
        let error = args(&["--mutant", "nothing"]).unwrap_err().to_string();
        assert!(error.contains("late_orders_start"), "{error}");
        let args = args(&["--mutant", "late_orders_start"]).unwrap();
        let command = command(Path::new("a file.json"), &args);
        assert_eq!(command, "ebb simulate chaos --replay 'a file.json' --mutant late_orders_start");
    }
}
