//! `ebb simulate papers`: results of papers beside ours. What is run is in `loadtest/simulate/src/papers`; here are only the files, the clock,
//! and what is printed.

use crate::failure::{Failure, exit_code};
use crate::output::{Output, advise, json as print_json, line};
use crate::simulate_files::Files;
use crate::simulate_run::write;
use clap::{Args, ValueHint};
use loadtest_simulate::live::{Replayed, section};
use loadtest_simulate::papers::{Data, PapersError, Report, SCENARIOS, Scenario, markdown, named, picture, table};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Workloads of Pollux.
const POLLUX_WORKLOADS: u32 = 4;

/// Examples of `ebb simulate papers`.
pub const HELP: &str = "\
Examples:
  ebb simulate papers --list
  ebb simulate papers ibm-table3
  ebb simulate papers --data RECORDINGS --write docs/results.md

Each scenario is a set-up of a paper with its seeds. What the paper does not print is a free parameter, named with how it was chosen;
rows marked `fitted` are those of the baseline that free parameters were fitted on, and all others are what then comes out. Exits with 1 if
anything was done that must not be. docs/simulator.md says what a scenario is made of.";

/// Arguments of `ebb simulate papers`.
#[derive(Debug, Clone, Args)]
pub struct PapersArgs {
    /// Scenarios, by name; all that can be run without any.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Only say which there are, and what of them is free.
    #[arg(long)]
    pub list: bool,
    /// Recordings that do not come with Ebb: jobs/philly.csv.gz, jobs/pollux_workloads/workload-N.csv, throughput/elasticflow_t4 and
    /// throughput/pollux_t4.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub data: Option<PathBuf>,
    /// Write the results as a page of Markdown, with a picture beside it.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "list")]
    pub write: Option<PathBuf>,
    /// What `ebb replay --report FOLDER` wrote, for the page, too; once for each.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath, requires = "write")]
    pub replay: Vec<PathBuf>,
    /// Run this share of each scenario's time, and one seed: to see that it runs, and not for its figures.
    #[arg(long, hide_short_help = true, value_name = "X", default_value_t = 1.0, conflicts_with = "write")]
    pub scale: f64,
}

/// `ebb simulate papers`.
pub fn simulate_papers(args: &PapersArgs, output: Output) -> Result<ExitCode, Failure> {
    let mut scenarios = named(&args.names).map_err(usage)?;
    if args.list {
        list(&scenarios, output);
        return Ok(ExitCode::SUCCESS);
    }
    if !(args.scale > 0.0 && args.scale <= 1.0) {
        let why = format!("--scale: {} makes no sense; expected a number above 0, 1 at most", args.scale);
        return Err(Failure::Usage(why));
    }
    let data = args.data.as_deref().map(read).transpose()?;
    let replays = args.replay.iter().map(|folder| replayed(folder)).collect::<Result<Vec<_>, _>>()?;
    if args.names.is_empty() && data.is_none() {
        // Whoever names one is told what it needs.
        for left_out in scenarios.extract_if(.., |scenario| scenario.needs.is_some()) {
            let needs = left_out.needs.unwrap_or_default();
            advise(format!("{} is left out: it needs {needs} as `--data`", left_out.name));
        }
    }
    let mut reports = Vec::new();
    for scenario in &scenarios {
        let report = timed(scenario, data.as_ref(), args.scale)?;
        if matches!(output, Output::Table | Output::Name) {
            line(table(&report));
        }
        reports.push(report);
    }
    if let Some(file) = &args.write {
        let drawn = file.with_extension("svg");
        write(&drawn, &picture(&reports).file())?;
        let name = drawn.file_name().map(|name| name.to_string_lossy());
        write(file, &(markdown(&reports, name.as_deref()) + &section(&replays)))?;
    }
    if output == Output::Json {
        print_json(&json!({"scenarios": reports}));
    }
    let mut is_clean = true;
    for report in &reports {
        for what in &report.violations {
            advise(format!("this must not be: {}: {what}", report.scenario.name));
            is_clean = false;
        }
    }
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::from(exit_code::FAILED) })
}

/// The replay whose report is in a folder.
fn replayed(folder: &Path) -> Result<Replayed, Failure> {
    let file = folder.join("run.json");
    let wrong = |why: String| {
        Failure::Usage(format!("--replay: {}: {why}; expected the folder of an `ebb replay --report`", file.display()))
    };
    let document = serde_json::from_str(&Files::default().text(&file)?).map_err(|error| wrong(error.to_string()))?;
    Replayed::parse(document).map_err(|error| wrong(error.to_string()))
}

fn timed(scenario: &Scenario, data: Option<&Data>, scale: f64) -> Result<Report, Failure> {
    let begun = Instant::now();
    scenario.run(data, scale, &mut || begun.elapsed().as_nanos() as u64).map_err(usage)
}

fn usage(error: PapersError) -> Failure {
    Failure::Usage(error.to_string())
}

fn list(scenarios: &[Scenario], output: Output) {
    match output {
        Output::Json => print_json(&json!({"scenarios": scenarios})),
        Output::Name => scenarios.iter().for_each(|scenario| line(scenario.name)),
        Output::Table => {
            let width = SCENARIOS.iter().map(|scenario| scenario.name.len()).max().unwrap_or(0);
            for of in scenarios {
                line(format!("{:width$}  {}", of.name, of.about));
                of.free.iter().for_each(|free| line(format!("{:width$}  free: {} = {}", "", free.name, free.value)));
            }
        }
    }
}

/// The recordings of a folder.
fn read(folder: &Path) -> Result<Data, Failure> {
    let mut files = Files::default();
    let workload = |number: u32| folder.join(format!("jobs/pollux_workloads/workload-{number}.csv"));
    let workloads = (1..=POLLUX_WORKLOADS).map(|number| files.text(&workload(number)));
    Ok(Data {
        pollux_workloads: workloads.collect::<Result<_, _>>()?,
        pollux_tables: files.tables(&folder.join("throughput/pollux_t4"))?,
        philly: Some(files.text(&folder.join("jobs/philly.csv.gz"))?),
        elasticflow_tables: files.tables(&folder.join("throughput/elasticflow_t4"))?,
    })
}
