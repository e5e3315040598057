//! `ebb trace import`: what Ebb's own log recorded as files for `ebb simulate run`. What of a log is a recording is in
//! `loadtest/simulate/src/imported.rs`; here are only the files and what is printed.

use crate::failure::Failure;
use crate::output::{Output, json as print_json, line};
use crate::simulate_run::write;
use clap::{Args, Subcommand, ValueHint};
use loadtest_simulate::imported::{Import, Imported};
use serde_json::json;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// What `ebb trace` does.
#[derive(Debug, Clone, Subcommand)]
pub enum TraceCommand {
    /// Make jobs and demand of a log, so that last week runs again under another policy
    #[command(after_help = HELP)]
    Import(ImportArgs),
}

const HELP: &str = "\
Examples:
  ebb log export --data ./ebb-data > log.jsonl
  ebb trace import log.jsonl --into last-week

Writes jobs.csv, and demand.csv if fleets ever needed slots, and prints the `ebb simulate run` that runs them. docs/simulator.md says what
of a log becomes what.";

/// Arguments of `ebb trace import`.
#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// What `ebb log export` printed.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub export: PathBuf,
    /// Folder for the files; made if it is not there.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub into: PathBuf,
}

/// `ebb trace …`.
pub fn trace(command: &TraceCommand, output: Output) -> Result<(), Failure> {
    let TraceCommand::Import(args) = command;
    let found = read(&args.export)?;
    if found.jobs.is_empty() {
        let why = format!("no job of {} trained and ended, so there is nothing to run again", args.export.display());
        return Err(Failure::plain(why));
    }
    let (jobs, demand) = (args.into.join("jobs.csv"), args.into.join("demand.csv"));
    let cannot = |error| Failure::local(format!("{} cannot be made", args.into.display()), error);
    std::fs::create_dir_all(&args.into).map_err(cannot)?;
    write(&jobs, &found.jobs_csv())?;
    if found.inference_slots > 0 {
        write(&demand, &found.demand_csv())?;
    }
    let again = again(&found, &jobs, &demand);
    match output {
        Output::Json => print_json(&json!({
            "jobs": found.jobs.len(), "untrained": found.untrained, "unfinished": found.unfinished,
            "cluster_slots": found.cluster_slots, "inference_slots": found.inference_slots, "command": again,
        })),
        Output::Table | Output::Name => {
            let (trained, untrained, unfinished) = (found.jobs.len(), found.untrained, found.unfinished);
            line(format!("{trained} jobs; left out: {untrained} that never trained, {unfinished} that go on"));
            line(again);
        }
    }
    Ok(())
}

fn read(file: &Path) -> Result<Imported, Failure> {
    let cannot = |error| Failure::local(format!("{} cannot be read", file.display()), error);
    let mut import = Import::default();
    // A line is a batch, and a log may be longer than memory.
    for text in BufReader::new(File::open(file).map_err(cannot)?).lines() {
        let text = text.map_err(cannot)?;
        import.line(&text).map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))?;
    }
    Ok(import.finish())
}

/// What runs it again. Servers are not kept: each slot stands by itself.
fn again(found: &Imported, jobs: &Path, demand: &Path) -> String {
    let shown = |path: &Path| {
        let path = path.to_string_lossy().into_owned();
        shlex::try_quote(&path).map_or_else(|_| path.clone(), |quoted| quoted.into_owned())
    };
    // A cluster has a slot at least: of fleets that at some moment needed everything at once it is one more than there was.
    let cluster = format!("{}x1:slot", found.cluster_slots.max(1));
    let lent = format!(" --inference {}x1:slot --demand {}:needed", found.inference_slots, shown(demand));
    let lent = if found.inference_slots > 0 { lent } else { String::new() };
    format!("ebb simulate run --jobs {} --cluster {cluster}{lent}", shown(jobs))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_export_becomes_files_that_can_be_run() {
        let folder = tempfile::tempdir().unwrap();
        let (export, into) = (folder.path().join("log.jsonl"), folder.path().join("out"));
        let facts =
            |at_ms: u64, facts: serde_json::Value| json!({"offset": 1, "at_ms": at_ms, "facts": facts}).to_string();
        let spec = json!({"name": "a", "workers": {"min": 1, "max": 2}, "priority": 0});
        let lines = [
            facts(0, json!([{"fact": "fleet_declared", "fleet": "f", "slots": ["s/0", "s/1", "s/2"]}])),
            facts(
                1_000,
                json!([{"fact": "job_accepted", "job": "j", "tenant": "local", "spec": spec},
                {"fact": "plan_adopted", "job": "j", "slots": ["s/0", "s/1"]}]),
            ),
            facts(2_000, json!([{"fact": "generation_active", "job": "j"}])),
            facts(3_000, json!([{"fact": "demand_accepted", "fleet": "f", "needed": 1}])),
            facts(9_000, json!([{"fact": "job_finished", "job": "j"}])),
        ];
        std::fs::write(&export, lines.join("\n")).unwrap();
        trace(&TraceCommand::Import(ImportArgs { export: export.clone(), into: into.clone() }), Output::Json).unwrap();
        assert!(std::fs::read_to_string(into.join("jobs.csv")).unwrap().contains("\"j a\",1,7.000,2,1,2,\"local\",0"));
        assert_eq!(std::fs::read_to_string(into.join("demand.csv")).unwrap(), "t,needed\n0,0\n3,1\n9,1\n");
        let found = read(&export).unwrap();
        let command = again(&found, Path::new("jobs.csv"), Path::new("a b.csv"));
        assert_eq!(
            command,
            "ebb simulate run --jobs jobs.csv --cluster 2x1:slot --inference 1x1:slot --demand 'a b.csv':needed"
        );
    }
}
