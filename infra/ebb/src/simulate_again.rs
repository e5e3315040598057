//! `ebb simulate again`: a run as it was, of the `run.json` of its report or of what `-o json` printed. It has the same arguments, so it is the same run, if the
//! files are the same, which is looked at before; and if the build is, which shows in the figures.

use crate::failure::{Failure, exit_code};
use crate::output::{Output, advise};
use crate::simulate_files::Files;
use crate::simulate_options::Given;
use crate::simulate_report::ReportArgs;
use crate::simulate_run::{RunArgs, run_of};
use clap::{Args, Parser, ValueHint};
use events_schema::Digest;
use loadtest_simulate::outcome::is_measured;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Examples of `ebb simulate again`.
pub const HELP: &str = "\
Examples:
  ebb simulate run --jobs docs/examples/simulate/jobs.csv --cluster 2x4:t4 --report report
  ebb simulate again report

It prints what the run printed, but for the figures marked with *. Where files are named relatively, it has to be called from where the run was. Exits
with 1 if the figures are others than they were: another build of Ebb made them; with 2 if a file is not what it was.";

/// Arguments of `ebb simulate again`.
#[derive(Debug, Clone, Args)]
pub struct AgainArgs {
    /// The folder of a report, its run.json, or what `ebb simulate run -o json` printed.
    #[arg(value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub file: PathBuf,
    /// What is drawn of it.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// What a run wrote, as far as it says how it is run again and what came out.
#[derive(Deserialize)]
struct Written {
    arguments: Vec<String>,
    inputs: BTreeMap<String, Digest>,
    policies: Vec<Map<String, Value>>,
}

/// The command line that a run had.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    run: Given<RunArgs>,
}

/// `ebb simulate again`.
pub fn again(args: &AgainArgs, output: Output) -> Result<ExitCode, Failure> {
    let file = if args.file.is_dir() { args.file.join("run.json") } else { args.file.clone() };
    let shown = file.display();
    let no_run = |why: String| {
        Failure::Usage(format!("{shown} is of no run: {why}; expected the report or the JSON of an `ebb simulate run`"))
    };
    let written: Written =
        serde_json::from_str(&Files::default().text(&file)?).map_err(|error| no_run(error.to_string()))?;
    let line = ["run".to_owned()].into_iter().chain(written.arguments);
    let line = Line::try_parse_from(line).map_err(|error| no_run(error.to_string()))?;
    let (document, code) = run_of(&line.run, &args.report, output, Some(&written.inputs))?;
    let others = others(&written.policies, &document);
    others.iter().for_each(|other| advise(format!("{other} as {shown} has it: another build of Ebb made that")));
    Ok(if others.is_empty() { code } else { ExitCode::from(exit_code::FAILED) })
}

/// Figures that are not what they were; the first of each policy says enough.
fn others(before: &[Map<String, Value>], document: &Value) -> Vec<String> {
    // Over the same text, so that both are read alike.
    let now: Vec<Map<String, Value>> = serde_json::from_str(&document["policies"].to_string()).unwrap_or_default();
    let other = |(before, now): (&Map<String, Value>, &Map<String, Value>)| {
        let (key, was) = before.iter().find(|(key, was)| !is_measured(key) && now.get(*key) != Some(*was))?;
        let is = now.get(key).unwrap_or(&Value::Null);
        Some(format!("{}: {key} is {is}, and not {was}", now["policy"].as_str().unwrap_or_default()))
    };
    before.iter().zip(&now).filter_map(other).collect()
}
