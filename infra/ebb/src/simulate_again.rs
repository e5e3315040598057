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
with 1 if the figures are others than they were: another build of Ebb made them; with 2 if a file is not what it was, or is missing.";

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
    #[serde(default)]
    detailed: Vec<Map<String, Value>>,
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
    Files::are_there(&written.inputs)?;
    let (document, code) = run_of(&line.run, &args.report, output, Some(&written.inputs))?;
    let detailed = others(&written.detailed, &document["detailed"]);
    let mut differences = others(&written.policies, &document["policies"]);
    differences.extend(detailed.iter().map(|other| format!("detailed {other}")));
    differences.iter().for_each(|other| advise(format!("{other}; {shown} is of another build of Ebb")));
    Ok(if differences.is_empty() { code } else { ExitCode::from(exit_code::FAILED) })
}

/// What is not what it was: which policies were run, or of each the first figure that is another, which says enough.
fn others(before: &[Map<String, Value>], now: &Value) -> Vec<String> {
    // Over the same text, so that both are read alike.
    let now: Vec<Map<String, Value>> = serde_json::from_str(&now.to_string()).unwrap_or_default();
    let name = |of: &Map<String, Value>| of.get("policy").and_then(Value::as_str).unwrap_or_default().to_owned();
    let names = |of: &[Map<String, Value>]| of.iter().map(name).collect::<Vec<_>>();
    let (were, are) = (names(before), names(&now));
    if were != are {
        return vec![format!("it ran {}, and not {}", are.join(", "), were.join(", "))];
    }
    let other = |(before, now): (&Map<String, Value>, &Map<String, Value>)| {
        let (key, was) = before.iter().find(|(key, was)| !is_measured(key) && now.get(*key) != Some(*was))?;
        Some(format!("{}: {key} is {}, and not {was}", name(now), now.get(key).unwrap_or(&Value::Null)))
    };
    before.iter().zip(&now).filter_map(other).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn other_policies_are_a_difference_and_so_are_other_figures_but_for_the_clocks() {
        let (fifo, afs) = (json!({"policy": "fifo", "jobs": 1, "wall_s": 3.0}), json!({"policy": "afs", "jobs": 2}));
        let before: Vec<Map<String, Value>> = serde_json::from_value(json!([fifo, afs])).unwrap();
        let found = |policies: Value| others(&before, &policies);
        assert!(found(json!([{"policy": "fifo", "jobs": 1, "wall_s": 4.0}, afs])).is_empty());
        assert_eq!(found(json!([fifo])), ["it ran fifo, and not fifo, afs"]);
        assert_eq!(found(json!([fifo, afs, {"policy": "ebb"}])), ["it ran fifo, afs, ebb, and not fifo, afs"]);
        assert_eq!(found(json!([{"policy": "fifo", "jobs": 7}, afs])), ["fifo: jobs is 7, and not 1"]);
    }
}
