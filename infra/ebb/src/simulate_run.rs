//! `ebb simulate run`: recorded jobs under one policy after the other. What is simulated is in `loadtest/simulate`, what is read for it in
//! `simulate_setup.rs`; here are only the clock and what is printed; the folder of a report is `simulate_report.rs`.

use crate::failure::{Failure, exit_code};
use crate::output::{Output, advise, json as print_json, line};
use crate::simulate_detailed::{compared, detailed, fits, side_by_side};
use crate::simulate_files::Files;
use crate::simulate_options::Given;
use crate::simulate_report::{ReportArgs, of_seed, prepare, write_files};
use crate::simulate_setup::{Rules, SetupArgs, resolved, setup};
use clap::Args;
use controller_core::Policy;
use controller_core::policy::POLICY_NAMES;
use events_schema::Digest;
use loadtest_simulate::outcome::{options, table};
use loadtest_simulate::paired::{difference, means};
use loadtest_simulate::report::{PAGE, over_seeds};
use loadtest_simulate::{Report, Setup, run, run_with_sizes};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Most seeds of a run: with more the intervals are hardly narrower.
const SEEDS_MAX: u64 = 1_000;
/// What policies are compared by.
const COMPARED: &str = "mean_completion_s";

/// Examples of `ebb simulate run`.
pub const HELP: &str = "\
Examples:
  ebb simulate run --jobs docs/examples/simulate/jobs.csv --cluster 2x4:t4 --report report
  ebb simulate run --jobs docs/examples/simulate/jobs.csv --cluster 2x4:t4 --policies fifo,ebb -o json \\
    --inference 1x8:t4 --demand docs/examples/load/servegen-day.csv:rate_req_s
  ebb simulate run --generate bursty:2x48 --cluster 16x4:t4 --policies tiresias,elastic-tiresias --seeds 10

The controller is the real one, on virtual time; executors are models, whose costs are measured ones. \
The same command gives the same figures, but for those marked with *. A figure that cannot be had is null, or a dash. \
Exits with 1 if anything was done that must not be.
docs/simulator.md says what each figure means, how recordings are read, and what is left out.";

/// Arguments of `ebb simulate run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// What is simulated.
    #[command(flatten)]
    pub setup: SetupArgs,
    /// Policies, each on the same jobs; without this all of them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values = POLICY_NAMES, hide_default_value = true)]
    pub policies: Vec<String>,
    /// So many runs, with this seed and those after it: figures are their means, and policies are compared seed by seed.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    pub seeds: u64,
    /// Also with the real agents, executors and messages between them
    ///
    /// Each policy runs once more so, beside the fast mode's models, and it is printed by how much those are off.
    /// It takes more than a thousand times as long, so recordings have to be short: --first, --scale, --to and a longer --step-ms make them so.
    #[arg(long)]
    pub detailed: bool,
    /// What is drawn of it.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// `ebb simulate run`.
pub fn simulate_run(args: &Given<RunArgs>, output: Output) -> Result<ExitCode, Failure> {
    run_of(args, &args.report, output, None).map(|(_, code)| code)
}

/// Runs and prints; gives what it prints as JSON. `inputs`: what the files have to be.
pub(crate) fn run_of(
    args: &Given<RunArgs>,
    report: &ReportArgs,
    output: Output,
    inputs: Option<&BTreeMap<String, Digest>>,
) -> Result<(Value, ExitCode), Failure> {
    let rules = Rules::of(&args.setup)?;
    let policies = args.policies.iter().map(|name| rules.policy(name, &args.setup).map(Arc::from));
    let policies = policies.collect::<Result<Vec<_>, _>>()?;
    let (mut said, mut violations) = (Value::Null, Vec::new());
    let (mut runs, mut in_detail) = (Vec::new(), Vec::new());
    let mut files = Files::default();
    for seed in (0..args.seeds).map(|more| args.setup.seed.wrapping_add(more)) {
        let (setup, notes, trace) = setup(&args.setup, &rules, seed, &mut files)?;
        inputs.map(|inputs| files.must_be(inputs)).transpose()?;
        if args.detailed {
            fits(&setup, &policies)?;
        }
        let mut options = args.options();
        options.extend(resolved(&args.setup, &rules, &setup, &trace, &notes));
        if runs.is_empty() {
            // Before anything takes time: what a folder holds that is not a report is known now.
            report.jobs(&setup)?;
            report.report.as_deref().map(prepare).transpose()?;
            said = json!({"arguments": args.arguments(), "inputs": files.digests(), "options": options});
            if let Output::Table | Output::Name = output {
                line(self::options(options.clone()).trim_end());
                line("");
            }
        }
        let of_seed = json!({"arguments": alone(args, seed), "inputs": files.digests(), "options": options});
        let drawn = report.begun(&setup, args.seeds > 1)?;
        let ran = run_seed(&setup, of_seed, &policies, args.detailed, drawn)?;
        runs.push(ran.documents);
        in_detail.push(ran.detailed);
        violations.extend(ran.violations);
    }
    let of_policy = |place: usize| runs.iter().map(|run| &run[place]).collect::<Vec<&Value>>();
    let documents = over(&runs);
    let detailed = compared(&documents, &over(&in_detail));
    let compared: Vec<Value> =
        (1..policies.len()).filter_map(|place| compare(&of_policy(0), &of_policy(place))).collect();
    let mut document = with(said, &documents, &detailed, &violations);
    if runs.len() > 1 {
        document["compared"] = Value::from(compared.clone());
        document["seeds"] = Value::from(runs);
        if let Some(folder) = &report.report {
            let told: Vec<String> = compared.iter().map(told).collect();
            let folders: Vec<String> =
                (0..args.seeds).map(|more| of_seed(args.setup.seed.wrapping_add(more))).collect();
            write_files(folder, &over_seeds(&document, &told, &folders))?;
        }
    }
    match output {
        Output::Json => print_json(&document),
        Output::Table | Output::Name => {
            line(if args.detailed {
                side_by_side(&documents, &detailed)
            } else {
                table(&documents).trim_end().to_owned()
            });
            compared.iter().for_each(|of| line(told(of)));
            if let Some(folder) = &report.report {
                line(format!("the report is in {}", folder.join(PAGE).display()));
            }
        }
    }
    violations.iter().for_each(|what| advise(format!("this must not be: {what}")));
    let code = if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit_code::FAILED) };
    Ok((document, code))
}

/// What has to be typed for one of the seeds alone.
fn alone(args: &Given<RunArgs>, seed: u64) -> Vec<String> {
    let arguments = args.arguments();
    if args.seeds == 1 {
        return arguments;
    }
    let is_seed = |argument: &String| argument.starts_with("--seed=") || argument.starts_with("--seeds=");
    arguments.into_iter().filter(|argument| !is_seed(argument)).chain([format!("--seed={seed}")]).collect()
}

/// What was said of a run, and what came of it.
fn with(mut said: Value, policies: &[Value], detailed: &[Value], violations: &[String]) -> Value {
    (said["policies"], said["violations"]) = (json!(policies), json!(violations));
    if !detailed.is_empty() {
        said["detailed"] = json!(detailed);
    }
    said
}

/// The figures of each policy, means where there are several seeds.
fn over(runs: &[Vec<Value>]) -> Vec<Value> {
    match runs {
        [run] => run.clone(),
        _ => {
            let policies = runs.first().map_or(0, Vec::len);
            (0..policies).map(|place| means(&runs.iter().map(|run| &run[place]).collect::<Vec<_>>())).collect()
        }
    }
}

/// What came of one seed, under each policy.
#[derive(Default)]
struct Ran {
    documents: Vec<Value>,
    /// The same in detail, if that was asked for.
    detailed: Vec<Value>,
    violations: Vec<String>,
}

/// One seed's figures under each policy, and what must not be; its report is written where one is wanted.
fn run_seed(
    setup: &Setup,
    said: Value,
    policies: &[Arc<dyn Policy>],
    is_detailed: bool,
    mut report: Option<(PathBuf, Report)>,
) -> Result<Ran, Failure> {
    let deadlines: Vec<Option<u64>> = setup.jobs.iter().map(|job| job.deadline_ms).collect();
    let mut ran = Ran::default();
    for policy in policies {
        let begun = Instant::now();
        let mut stopwatch = || begun.elapsed().as_nanos() as u64;
        let outcome = match report {
            Some(_) => run_with_sizes(setup, policy.as_ref(), &mut stopwatch),
            None => run(setup, policy.as_ref(), &mut stopwatch),
        };
        ran.documents.push(outcome.document(&deadlines, begun.elapsed().as_secs_f64()));
        if let Some((_, report)) = &mut report {
            report.add(setup, &outcome);
        }
        let mut violations = outcome.tally.violations.clone();
        if is_detailed {
            let (figures, broken) = detailed(setup, policy, &outcome)?;
            ran.detailed.push(figures);
            violations.extend(broken);
        }
        ran.violations.extend(violations.iter().map(|what| format!("{}: {what}", policy.name())));
    }
    if let Some((folder, report)) = report {
        let document = with(said, &ran.documents, &compared(&ran.documents, &ran.detailed), &ran.violations);
        write_files(&folder, &report.files(&document))?;
    }
    Ok(ran)
}

/// How far a policy's mean completion is above the first one's, over several seeds.
fn compare(first: &[&Value], of: &[&Value]) -> Option<Value> {
    let found = difference(of, first, COMPARED)?;
    let name = |runs: &[&Value]| runs.first().map(|run| run["policy"].clone());
    Some(json!({
        "policy": name(of), "with": name(first), "figure": COMPARED, "seeds": of.len(),
        "mean_difference": found.mean, "half_width_95": found.half_width,
    }))
}

fn told(of: &Value) -> String {
    let text = |key: &str| of[key].as_str().unwrap_or_default().to_owned();
    let number = |key: &str| of[key].as_f64().unwrap_or_default();
    format!(
        "{}: {} is {:+.1} ± {:.1} s beside {} (95 %, {} seeds in pairs)",
        text("figure"),
        text("policy"),
        number("mean_difference"),
        number("half_width_95"),
        text("with"),
        of["seeds"]
    )
}

pub(crate) fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|error| Failure::local(format!("{} cannot be written", file.display()), error))
}
