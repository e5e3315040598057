//! `ebb` beside every other policy of its class, cell by cell: what docs/experiments.md prints.
//! `cargo run --release -p loadtest-simulate --example experiments -- DATA [CLASSES [WORKLOADS [LOADS [SEEDS [FIRST-SEED]]]]]`
//!
//! DATA: a folder with `jobs/` and `throughput/` (docs/simulator.md, "Results of papers"). CLASSES, WORKLOADS and LOADS: names with commas; all, if left out or `-`. A seed is a draw of the
//! jobs, or a part of the recording. One thread.
#![allow(clippy::unwrap_used)]

mod inputs;

use controller_core::policy_by_name;
use loadtest_simulate::paired::{Interval, interval};
use loadtest_simulate::setup::{Shape, jobs};
use loadtest_simulate::slice::slice;
use loadtest_simulate::{Cluster, Costs, Deadlines, Format, Generator, Setup, Tables, TraceJob, run};
use serde_json::Value;
use std::path::Path;
use std::time::Instant;

/// What policies are told, and who is compared on it: everybody whose paper says what to do with as much.
const CLASSES: [(&str, &[&str]); 5] = [
    ("known", INFORMED),
    ("estimated:0.5", INFORMED),
    ("estimated:1", INFORMED),
    ("estimated:1,0.5", INFORMED),
    ("unknown", &["srtf", "afs", "pollux-like", "tiresias", "elastic-tiresias"]),
];
const INFORMED: &[&str] = &["srtf", "afs", "optimus-like", "pollux-like", "tiresias"];

/// How fast jobs are by slots.
#[derive(Clone, Copy)]
enum Speeds {
    /// As their workers are spread.
    Even,
    /// As was measured, at one batch size.
    Measured,
    /// As was measured, with the best batch on each number of slots, under every policy.
    BestBatch,
}

/// Jobs, how small they can be as a share of what they ask for, and how fast they are.
const WORKLOADS: [(&str, f64, Speeds); 9] = [
    ("poisson", 0.0, Speeds::Even),
    ("bursty", 0.0, Speeds::Even),
    ("diurnal", 0.0, Speeds::Even),
    ("msft", 0.0, Speeds::Even),
    ("msft-measured", 0.0, Speeds::Measured),
    ("msft-batches", 0.0, Speeds::BestBatch),
    ("msft-fixed", 1.0, Speeds::Even),
    ("philly", 0.0, Speeds::Even),
    ("philly-fixed", 1.0, Speeds::Even),
];
const LOADS: [f64; 4] = [0.5, 1.0, 1.5, 2.0];
/// 64 slots, as Pollux's cluster.
const CLUSTER: &str = "16x4:t4";
/// Jobs of a part of a recording, and about as many of a draw.
const JOBS: usize = 100;
/// Jobs an hour that ask for all 64 slots in the mean (`loadtest/simulate/src/generate.rs`: 118,000 slot·s each).
const FULL_PER_HOUR: f64 = 2.0;
/// Others whose mean is so many times this one's at most are compared with it in the tail too.
const COMPARABLE: f64 = 1.1;
/// By when jobs are to be done, in what they take alone on what they ask for. Nobody is told.
const DEADLINES: Deadlines = Deadlines { low: 1.1, high: 3.0 };

struct Recordings {
    msft: Vec<TraceJob>,
    philly: Vec<TraceJob>,
    tables: Tables,
}

impl Recordings {
    fn jobs(&self, workload: &str, load: f64, seed: u64, slots: u64) -> Vec<TraceJob> {
        let part = |recorded: &[TraceJob]| slice(recorded, seed as usize, JOBS, slots, load);
        match workload.split('-').next().unwrap() {
            "msft" => part(&self.msft),
            "philly" => part(&self.philly),
            kind => {
                let (rate, hours) = (FULL_PER_HOUR * load, JOBS as f64 / (FULL_PER_HOUR * load));
                format!("{kind}:{rate}x{hours}").parse::<Generator>().unwrap().jobs(seed)
            }
        }
    }
}

/// Names with commas, of those that there are.
fn chosen<T: Copy>(argument: Option<&String>, all: &[T], name: impl Fn(&T) -> String) -> Vec<T> {
    let wanted = argument.filter(|text| *text != "-");
    let is_wanted = |of: &&T| wanted.is_none_or(|text| text.split(',').any(|part| part == name(of)));
    all.iter().filter(is_wanted).copied().collect()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let data = Path::new(&arguments[1]);
    let number = |at: usize, default: u64| arguments.get(at).map_or(default, |text| text.parse().unwrap());
    let recordings = Recordings {
        msft: inputs::recorded(&data.join("jobs/msft_cluster06.csv.gz"), Format::Msft),
        philly: inputs::recorded(&data.join("jobs/philly.csv.gz"), Format::Philly),
        tables: inputs::tables(&data.join("throughput/elasticflow_t4")),
    };
    let seeds = number(6, 0)..number(6, 0) + number(5, 10);
    for (class, others) in chosen(arguments.get(2), &CLASSES, |of| of.0.replace(',', ";")) {
        println!("\n**{class}**, seeds {} to {}\n", seeds.start, seeds.end - 1);
        println!(
            "| jobs | load | `ebb`, s | best other | takes longer, % | p99 ÷ best | preempted | elastic | fair99 | lost, % |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        let names: Vec<String> = std::iter::once(&"ebb").chain(others).map(|name| format!("`{name}`")).collect();
        let mut met =
            format!("| jobs | load | {} | best other |\n|{}\n", names.join(" | "), " --- |".repeat(names.len() + 3));
        for (workload, min_share, speeds) in chosen(arguments.get(3), &WORKLOADS, |of| of.0.to_owned()) {
            for load in chosen(arguments.get(4), &LOADS, f64::to_string) {
                let policies: Vec<&str> = ["ebb"].iter().chain(others).copied().collect();
                let mut runs: Vec<Vec<Value>> = vec![Vec::new(); policies.len()];
                for seed in seeds.clone() {
                    let setup = setup(&recordings, workload, min_share, speeds, load, class, seed);
                    for (name, runs) in policies.iter().zip(&mut runs) {
                        runs.push(outcome(&setup, name));
                    }
                }
                println!("{}", row(workload, load, &policies, &runs));
                met += &deadlines(workload, load, &policies, &runs);
            }
        }
        println!("\n{met}");
    }
}

fn setup(
    recordings: &Recordings,
    workload: &str,
    min_share: f64,
    speeds: Speeds,
    load: f64,
    class: &str,
    seed: u64,
) -> Setup {
    let (cluster, costs): (Cluster, Costs) = (CLUSTER.parse().unwrap(), Costs::measured(200));
    let shape = Shape { min_share, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: false };
    let tables = match speeds {
        Speeds::Even => Tables::default(),
        Speeds::Measured => recordings.tables.clone(),
        Speeds::BestBatch => recordings.tables.clone().with_best_batches(),
    };
    let recorded = recordings.jobs(workload, load, seed, cluster.slots_total());
    let mut jobs = jobs(&recorded, &tables, &shape, &costs, seed).unwrap().0;
    DEADLINES.give(&mut jobs, &costs, seed);
    let setup = Setup::of_training_alone(jobs, cluster, costs, seed);
    Setup { information: class.parse().unwrap(), ..setup }
}

fn outcome(setup: &Setup, name: &str) -> Value {
    let begun = Instant::now();
    let outcome = run(setup, policy_by_name(name).unwrap().as_ref(), &mut || begun.elapsed().as_nanos() as u64);
    assert!(outcome.tally.violations.is_empty(), "{name}: {:?}", outcome.tally.violations);
    let deadlines: Vec<Option<u64>> = setup.jobs.iter().map(|job| job.deadline_ms).collect();
    let mut document = outcome.document(&deadlines, 0.0);
    let elastic =
        || setup.jobs.iter().zip(&outcome.jobs).filter(|(job, _)| job.spec.workers.min < job.spec.workers.max);
    let stopped = elastic().filter(|(_, of)| of.preemptions > 0).count() as f64 / elastic().count().max(1) as f64;
    document["preempted_elastic_share"] = Value::from(stopped);
    document
}

/// How much longer jobs take than under the first policy, in percent of that, seed by seed.
fn longer(runs: &[Value], first: &[Value]) -> Interval {
    let pairs = runs.iter().zip(first);
    let percent =
        pairs.map(|(of, first)| 100.0 * (figure(of, "mean_completion_s") / figure(first, "mean_completion_s") - 1.0));
    interval(&percent.collect::<Vec<_>>()).unwrap_or(Interval { mean: f64::NAN, half_width: f64::NAN })
}

fn figure(run: &Value, key: &str) -> f64 {
    run[key].as_f64().unwrap_or(f64::NAN)
}

fn row(workload: &str, load: f64, policies: &[&str], runs: &[Vec<Value>]) -> String {
    let mean = |at: usize, key: &str| runs[at].iter().map(|run| figure(run, key)).sum::<f64>() / runs[at].len() as f64;
    let apart: Vec<Interval> = runs.iter().map(|of| longer(of, &runs[0])).collect();
    let best = (1..policies.len()).min_by(|a, b| apart[*a].mean.total_cmp(&apart[*b].mean)).unwrap();
    let comparable =
        (0..policies.len()).filter(|&at| mean(at, "mean_completion_s") <= COMPARABLE * mean(0, "mean_completion_s"));
    let tail = comparable.map(|at| mean(at, "p99_completion_s")).fold(f64::INFINITY, f64::min);
    let held = mean(0, "lost_slot_s") + mean(0, "utilization") * mean(0, "makespan_s") * 64.0;
    format!(
        "| {workload} | {load} | {:.0} | `{}` | {:+.1} ± {:.1} | {:.2} | {:.1} % | {:.1} % | {:.1} | {:.2} |",
        mean(0, "mean_completion_s"),
        policies[best],
        apart[best].mean,
        apart[best].half_width,
        mean(0, "p99_completion_s") / tail,
        100.0 * mean(0, "preempted_job_share"),
        100.0 * mean(0, "preempted_elastic_share"),
        mean(0, "fairness_p99"),
        100.0 * mean(0, "lost_slot_s") / held,
    )
}

/// The share of jobs that were done in time under each policy, and how far the best of the others is above the first.
fn deadlines(workload: &str, load: f64, policies: &[&str], runs: &[Vec<Value>]) -> String {
    let percent = |at: usize| runs[at].iter().map(|run| 100.0 * figure(run, "deadline_attainment")).collect::<Vec<_>>();
    let mean = |at: usize| percent(at).iter().sum::<f64>() / runs[at].len() as f64;
    let best = (1..policies.len()).max_by(|a, b| mean(*a).total_cmp(&mean(*b))).unwrap();
    let apart: Vec<f64> = percent(best).iter().zip(percent(0)).map(|(of, first)| of - first).collect();
    let apart = interval(&apart).map_or(f64::NAN, |of| of.half_width);
    let all: Vec<String> = (0..policies.len()).map(|at| format!("{:.1}", mean(at))).collect();
    let above = mean(best) - mean(0);
    format!("| {workload} | {load} | {} | `{}` {above:+.1} ± {apart:.1} |\n", all.join(" | "), policies[best])
}
