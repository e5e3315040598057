//! `ebb simulate run`: recorded jobs under one policy after the other. What is simulated is in `loadtest/simulate`; here are only the files,
//! the clock, and what is printed.

use crate::failure::{Failure, exit_code};
use crate::output::{Output, advise, json as print_json, line};
use clap::{Args, ValueHint};
use controller_core::policy::POLICY_NAMES;
use controller_core::{Policy, policy_by_name};
use flate2::read::GzDecoder;
use loadtest::{FleetUsage, usage_svg};
use loadtest_simulate::outcome::{options, table};
use loadtest_simulate::pollux::PolluxModel;
use loadtest_simulate::setup::{Notes, Shape, jobs};
use loadtest_simulate::tally::Sums;
use loadtest_simulate::{Cluster, Costs, Demand, Failures, Format, Outcome, Setup, Tables, TraceJob, run, trace};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Longest recording: ten times the largest public one.
const FILE_LEN_MAX: u64 = 256 << 20;

/// Examples of `ebb simulate run`.
pub const HELP: &str = "\
Examples:
  ebb simulate run --jobs docs/examples/simulate/jobs.csv --cluster 2x4:t4
  ebb simulate run --jobs docs/examples/simulate/jobs.csv --cluster 2x4:t4 --policies fifo,ebb -o json \\
    --inference 1x8:t4 --demand docs/examples/load/servegen-day.csv:rate_req_s

The controller is the real one, on virtual time; executors are models, whose costs are measured ones. The same command gives the same
figures, but for those marked with *. A figure that cannot be had is null, or a dash. Exits with 1 if anything was done that must not be.
docs/simulator.md says what each figure means, how recordings are read, and what is left out.";

/// Arguments of `ebb simulate run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// The recorded jobs; compressed if it ends in .gz.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub jobs: PathBuf,
    /// How they are written: csv, msft, philly or pollux.
    #[arg(long, value_name = "FORMAT", default_value = "csv")]
    pub jobs_format: Format,
    /// What is lent all the time: `SERVERSxSLOTS:TYPE[@SPEED]`, several with commas.
    #[arg(long, value_name = "CLUSTER")]
    pub cluster: Cluster,
    /// Fleets that serve and lend what they do not need, written in the same way.
    #[arg(long, value_name = "CLUSTER", requires = "demand")]
    pub inference: Option<Cluster>,
    /// What they need: a curve, whose maximum needs all their slots; it begins again at its end.
    #[arg(long, value_name = "FILE:COLUMN", requires = "inference")]
    pub demand: Option<String>,
    /// Policies, each on the same jobs.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values = POLICY_NAMES)]
    pub policies: Vec<String>,
    /// Seed of everything that is by chance.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Measured speeds, a MODEL.csv or a folder of Pollux's each; without them workers are spread evenly, at no cost.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub tables: Option<PathBuf>,
    /// Only so many of the jobs, by their submission.
    #[arg(long, hide_short_help = true, value_name = "N")]
    pub first: Option<usize>,
    /// Jobs come so many times faster than they did.
    #[arg(long, hide_short_help = true, value_name = "X", default_value_t = 1.0)]
    pub speed_up: f64,
    /// Fewest slots of a job, as a share of those it asked for; 0: one.
    #[arg(long, hide_short_help = true, value_name = "X", default_value_t = 0.0)]
    pub min_share: f64,
    /// Most slots of a job, as a multiple of those it asked for.
    #[arg(long, hide_short_help = true, value_name = "X", default_value_t = 1.0)]
    pub max_share: f64,
    /// How long a step takes on the slots a job asked for.
    #[arg(long, hide_short_help = true, value_name = "MS", default_value_t = 500)]
    pub step_ms: u64,
    /// How large a replica is, for copies and checkpoints.
    #[arg(long, hide_short_help = true, value_name = "MB", default_value_t = loadtest_simulate::costs::REPLICA_MB)]
    pub replica_mb: u64,
    /// How long a process takes to start.
    #[arg(long, hide_short_help = true, value_name = "MS", default_value_t = loadtest_simulate::costs::START_MS)]
    pub start_ms: u64,
    /// How long a fleet waits for a slot until its executor is killed.
    #[arg(long, hide_short_help = true, value_name = "MS", default_value_t = 5_000)]
    pub reclaim_deadline_ms: u64,
    /// A server breaks after so many hours in the mean; never without it.
    #[arg(long, hide_short_help = true, value_name = "HOURS")]
    pub server_fails_hours: Option<f64>,
    /// How long its repair takes.
    #[arg(long, hide_short_help = true, value_name = "MINUTES", default_value_t = 30)]
    pub repair_minutes: u64,
    /// Write into this folder: results.json, and of each policy its picture (POLICY.svg) and its jobs (POLICY-jobs.csv).
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub report: Option<PathBuf>,
}

/// `ebb simulate run`.
pub fn simulate_run(args: &RunArgs, output: Output) -> Result<ExitCode, Failure> {
    let policies = args.policies.iter().map(|name| policy(name)).collect::<Result<Vec<_>, _>>()?;
    let (setup, notes, trace) = setup(args)?;
    let options = options_of(args, &setup, &trace, &notes);
    if let (Output::Table | Output::Name, Value::Object(options)) = (output, &options) {
        line(self::options(options.clone()).trim_end());
        line("");
    }
    let deadlines: Vec<Option<u64>> = setup.jobs.iter().map(|job| job.deadline_ms).collect();
    let (mut documents, mut violations) = (Vec::new(), Vec::new());
    for policy in &policies {
        let begun = Instant::now();
        let outcome = run(&setup, policy.as_ref(), &mut || begun.elapsed().as_nanos() as u64);
        documents.push(outcome.document(&deadlines, begun.elapsed().as_secs_f64()));
        if let Some(folder) = &args.report {
            report_policy(folder, &setup, &outcome)?;
        }
        violations.extend(outcome.tally.violations.iter().map(|what| format!("{}: {what}", policy.name())));
    }
    let document = json!({"options": options, "policies": documents, "violations": violations});
    if let Some(folder) = &args.report {
        write(&folder.join("results.json"), &format!("{document:#}\n"))?;
    }
    match output {
        Output::Json => print_json(&document),
        Output::Table | Output::Name => line(table(&documents).trim_end()),
    }
    violations.iter().for_each(|what| advise(format!("this must not be: {what}")));
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit_code::FAILED) })
}

fn policy(name: &str) -> Result<Box<dyn Policy>, Failure> {
    let unknown =
        || Failure::Usage(format!("--policies: `{name}` is no policy; there are {}", POLICY_NAMES.join(", ")));
    policy_by_name(name).ok_or_else(unknown)
}

fn setup(args: &RunArgs) -> Result<(Setup, Notes, Vec<TraceJob>), Failure> {
    let positive = |name: &str, value: f64| {
        let fits = value.is_finite() && value > 0.0;
        let wrong = || Failure::Usage(format!("--{name}: {value} makes no sense; expected a number above 0"));
        if fits { Ok(()) } else { Err(wrong()) }
    };
    positive("speed-up", args.speed_up)?;
    positive("max-share", args.max_share)?;
    positive("step-ms", args.step_ms as f64)?;
    positive("server-fails-hours", args.server_fails_hours.unwrap_or(1.0))?;
    if !(0.0..=1.0).contains(&args.min_share) {
        return Err(Failure::Usage(format!("--min-share: {} makes no sense; expected 0 to 1", args.min_share)));
    }
    let unusable = |file: &Path, why: &dyn std::fmt::Display| {
        Failure::Usage(format!("{} cannot be used as recorded: {why}", file.display()))
    };
    let mut trace = trace::parse(&text(&args.jobs)?, args.jobs_format).map_err(|error| unusable(&args.jobs, &error))?;
    trace.truncate(args.first.unwrap_or(usize::MAX));
    let tables = args.tables.as_deref().map(tables).transpose()?.unwrap_or_default();
    let costs = Costs { start_ms: args.start_ms, ..Costs::measured(args.replica_mb) };
    let made = jobs(&trace, &tables, &shape(args), &costs, args.seed);
    let (jobs, notes) = made.map_err(|error| unusable(&args.jobs, &error))?;
    let inference = args.inference.clone().unwrap_or_default();
    let demand = args.demand.as_deref().map(|named| demand(named, &inference)).transpose()?.unwrap_or_default();
    let failures = args
        .server_fails_hours
        .map(|hours| Failures { mean_ms: hours * 3_600_000.0, repair_ms: args.repair_minutes * 60_000 });
    let (cluster, reclaim_deadline_ms, seed) = (args.cluster.clone(), args.reclaim_deadline_ms, args.seed);
    Ok((Setup { jobs, cluster, inference, demand, reclaim_deadline_ms, costs, failures, seed }, notes, trace))
}

fn shape(args: &RunArgs) -> Shape {
    Shape { min_share: args.min_share, max_share: args.max_share, step_ms: args.step_ms, speed_up: args.speed_up }
}

fn open(file: &Path) -> Result<File, Failure> {
    File::open(file).map_err(|error| Failure::local(format!("{} cannot be opened", file.display()), error))
}

/// What stands in a file, unpacked if it is compressed.
fn text(file: &Path) -> Result<String, Failure> {
    let packed = file.extension().is_some_and(|extension| extension == "gz");
    let opened = open(file)?;
    let source: Box<dyn Read> = if packed { Box::new(GzDecoder::new(opened)) } else { Box::new(opened) };
    let mut text = String::new();
    let read = source.take(FILE_LEN_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::local(format!("{} cannot be read", file.display()), error))?;
    if text.len() as u64 > FILE_LEN_MAX {
        let why = format!("{} has more than {FILE_LEN_MAX} bytes; cut it", file.display());
        return Err(Failure::Usage(why));
    }
    Ok(text)
}

/// `MODEL.csv` with iterations per second, or `MODEL/` with what Pollux measured.
fn tables(folder: &Path) -> Result<Tables, Failure> {
    let mut tables = Tables::default();
    for (name, path) in listed(folder)? {
        let unusable = |error| Failure::Usage(format!("{} cannot be used as a table: {error}", path.display()));
        if path.is_dir() {
            tables.add_pollux(&name, pollux(&path)?);
        } else if let Some(model) = name.strip_suffix(".csv") {
            tables.add(model, &text(&path)?).map_err(unusable)?;
        }
    }
    if tables.models().next().is_none() {
        return Err(Failure::Usage(format!("--tables: neither MODEL.csv nor MODEL/ is in {}", folder.display())));
    }
    Ok(tables)
}

fn pollux(folder: &Path) -> Result<PolluxModel, Failure> {
    let unusable =
        |file: &Path, error| Failure::Usage(format!("{} cannot be used as a table: {error}", file.display()));
    let (placements, scalability) = (folder.join("placements.csv"), folder.join("scalability.csv"));
    let read = PolluxModel::read(&text(&placements)?, &text(&scalability)?);
    let mut model = read.map_err(|error| unusable(folder, error))?;
    for (name, file) in listed(folder)? {
        let size = name.strip_prefix("validation-").and_then(|name| name.strip_suffix(".csv"));
        if let Some(size) = size.and_then(|size| size.parse().ok()) {
            model.add_validation(size, &text(&file)?).map_err(|error| unusable(&file, error))?;
        }
    }
    Ok(model)
}

/// What is in a folder, by name.
fn listed(folder: &Path) -> Result<Vec<(String, PathBuf)>, Failure> {
    let unreadable = |error| Failure::local(format!("{} cannot be listed", folder.display()), error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    found.sort();
    Ok(found)
}

/// The demand of each fleet: the same curve, for the slots of each.
fn demand(named: &str, inference: &Cluster) -> Result<Vec<Demand>, Failure> {
    let wrong = || Failure::Usage(format!("--demand: `{named}` names no column; expected FILE:COLUMN"));
    let (file, column) = named.rsplit_once(':').ok_or_else(wrong)?;
    let file = Path::new(file);
    let unusable = |error| Failure::Usage(format!("{} cannot be used as demand: {error:#}", file.display()));
    let curve = loadtest::trace::curve(text(file)?.as_bytes(), column).map_err(unusable)?;
    let last_s = curve.last().map_or(0.0, |point| point.at_s);
    // The last point holds as long as the one before it did.
    let before_s = curve.len().checked_sub(2).and_then(|at| curve.get(at)).map_or(last_s, |point| point.at_s);
    let ms = |seconds: f64| (seconds * 1_000.0).round() as u64;
    let of = |slots: u64| {
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        let signals = loadtest::trace::signals(&curve, slots);
        let signals = signals.iter().map(|signal| (ms(signal.at_s), signal.needed)).collect();
        Demand { signals, period_ms: ms(2.0 * last_s - before_s) }
    };
    Ok(inference.groups.iter().map(|group| of(group.slots_total())).collect())
}

/// What became of each job, and who had which slots when.
fn report_policy(folder: &Path, setup: &Setup, outcome: &Outcome) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)
        .map_err(|error| Failure::local(format!("{} cannot be made", folder.display()), error))?;
    write(&folder.join(format!("{}-jobs.csv", outcome.policy)), &outcome.jobs_csv(setup))?;
    write(&folder.join(format!("{}.svg", outcome.policy)), &picture(setup, outcome))
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|error| Failure::local(format!("{} cannot be written", file.display()), error))
}

fn picture(setup: &Setup, outcome: &Outcome) -> String {
    let every_ms = outcome.tally.course_every_ms as f64;
    // What was in the mean between two moments, from the first of them on.
    let line = |of: &dyn Fn(&Sums) -> u64| -> Vec<(f64, f64)> {
        let course = &outcome.tally.course;
        let pairs = course.iter().zip(course.iter().skip(1)).enumerate();
        pairs
            .map(|(place, (from, to))| {
                (place as f64 * every_ms / 1e3, of(to).saturating_sub(of(from)) as f64 / every_ms)
            })
            .collect()
    };
    let groups = setup.cluster.groups.iter().chain(&setup.inference.groups);
    let fleets: Vec<FleetUsage> = groups
        .enumerate()
        .map(|(fleet, group)| FleetUsage {
            name: format!("{}x{}:{}", group.servers, group.slots, group.kind),
            slots: group.slots_total() as f64,
            needed: line(&|sums| sums.fleets[fleet][0]),
            lent: line(&|sums| sums.fleets[fleet][1]),
            training: line(&|sums| sums.fleets[fleet][2]),
        })
        .collect();
    usage_svg(&fleets, &line(&|sums| sums.waiting_ms), outcome.until_ms as f64 / 1e3)
}

/// All that the figures follow from.
fn options_of(args: &RunArgs, setup: &Setup, trace: &[TraceJob], notes: &Notes) -> Value {
    let slots = (setup.cluster.slots_total(), setup.inference.slots_total());
    json!({
        "jobs": {"file": args.jobs, "format": args.jobs_format, "count": trace.len()},
        "cluster": setup.cluster.groups, "cluster_slots": slots.0,
        "inference": setup.inference.groups, "inference_slots": slots.1,
        "demand": args.demand, "policies": args.policies, "seed": args.seed,
        "tables": args.tables, "shape": shape(args), "costs": setup.costs,
        "reclaim_deadline_ms": setup.reclaim_deadline_ms, "server_failures": setup.failures,
        "notes": notes,
    })
}
