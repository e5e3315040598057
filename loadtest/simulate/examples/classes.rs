//! Policies beside each other in one class of information, over several seeds: what decision 0016 was made by.
//! `cargo run --release -p loadtest-simulate --example classes -- JOBS CLASS POLICIES [OPTION=VALUE …]`
//!
//! JOBS: `poisson:2x48` and the like, or `FORMAT:FILE`. CLASS: as `--information`. POLICIES: names with commas; `ebb` with OPTIONS of its tuning.
//! OPTIONS: seed (the first), seeds, cluster, first, thin (each so manyth job is left out, from the seed's on, so that one recording is several), slice (jobs of a part, one for each seed) and its load, speed (of arrivals), min, max, tables, batches (`best`: each job trains with the best one on the slots that it has, under every policy), start (ms), round (s), and step, elastic, gang, moved, begin, patience, run, fresh, guess, first-fit of `ebb`; low and high of [`Deadlines`].
#![allow(clippy::unwrap_used)]

mod inputs;

use controller_core::policy::Packing;
use controller_core::policy::ebb::{Ebb, Tuning};
use controller_core::policy::tiresias::Tiresias;
use controller_core::{Policy, policy_by_name};
use loadtest_simulate::paired::{difference, means};
use loadtest_simulate::setup::{Shape, jobs};
use loadtest_simulate::slice::slice;
use loadtest_simulate::{Cluster, Costs, Deadlines, Generator, Setup, TraceJob, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

struct Options(BTreeMap<String, String>);

impl Options {
    fn get<T: std::str::FromStr>(&self, name: &str, default: T) -> T {
        self.0.get(name).and_then(|text| text.parse().ok()).unwrap_or(default)
    }
}

fn policy(name: &str, options: &Options, is_pollux: bool) -> Box<dyn Policy> {
    let tuned = Tuning::default();
    match name {
        "ebb" => Box::new(Ebb::new(Tuning {
            step: options.get("step", tuned.step),
            kept_elastic: options.get("elastic", tuned.kept_elastic),
            kept_gang: options.get("gang", tuned.kept_gang),
            moved_percent: options.get("moved", tuned.moved_percent),
            begin_percent: options.get("begin", tuned.begin_percent),
            patience: options.get("patience", tuned.patience),
            patience_run_ms: options.get("run", tuned.patience_run_ms),
            fresh_ms: options.get("fresh", tuned.fresh_ms),
            guess_step: options.get("guess", tuned.guess_step),
            packing: if options.get("first-fit", false) { Packing::FirstFit } else { tuned.packing },
        })),
        "tiresias" if is_pollux => Box::new(Tiresias::new(vec![57_600_000], None).unwrap()),
        _ => policy_by_name(name).unwrap(),
    }
}

/// Those of a recording are a part of it for each seed, if parts of so many jobs are asked for.
fn jobs_of(named: &str, seed: u64, options: &Options, cluster: &Cluster) -> Vec<TraceJob> {
    if let Ok(generator) = named.parse::<Generator>() {
        return generator.jobs(seed);
    }
    let (format, file) = named.split_once(':').unwrap();
    let jobs = inputs::recorded(Path::new(file), format.parse().unwrap());
    match options.get("slice", 0) {
        0 => jobs,
        count => slice(&jobs, seed as usize, count, cluster.slots_total(), options.get("load", 1.0)),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let pairs = arguments[4..].iter().map(|pair| pair.split_once('=').unwrap());
    let options = Options(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect());
    let is_pollux = arguments[1].starts_with("pollux:");
    let mut tables = options.0.get("tables").map(|folder| inputs::tables(Path::new(folder))).unwrap_or_default();
    if options.get("batches", String::new()) == "best" {
        tables = tables.with_best_batches();
    }
    let (min_share, max_share) = (options.get("min", if is_pollux { 1.0 } else { 0.0 }), options.get("max", 1.0));
    let shape = Shape { min_share, max_share, step_ms: 500, speed_up: options.get("speed", 1.0), goodput: is_pollux };
    let costs = if is_pollux { Costs { start_ms: 30_000, ..Costs::none() } } else { Costs::measured(200) };
    let costs = Costs { start_ms: options.get("start", costs.start_ms), ..costs };
    let round_s: u64 = options.get("round", if is_pollux { 60 } else { 0 });
    let policies: Vec<_> = arguments[3].split(',').map(|name| policy(name, &options, is_pollux)).collect();
    let mut runs: Vec<Vec<Value>> = vec![Vec::new(); policies.len()];
    let begun = Instant::now();
    let cluster: Cluster = options.get("cluster", "16x4:t4".to_owned()).parse().unwrap();
    let from = options.get("seed", 0);
    for seed in from..from + options.get("seeds", 1) {
        let mut recorded = jobs_of(&arguments[1], seed, &options, &cluster);
        recorded.truncate(options.get("first", usize::MAX));
        if let thin @ 1.. = options.get("thin", 0_usize) {
            let mut place = 0;
            recorded.retain(|_| {
                place += 1;
                (place - 1) % thin != seed as usize % thin
            });
        }
        let mut made = jobs(&recorded, &tables, &shape, &costs, seed).unwrap().0;
        Deadlines { low: options.get("low", 1.1), high: options.get("high", 3.0) }.give(&mut made, &costs, seed);
        let setup = Setup {
            round_ms: (round_s > 0).then_some(round_s * 1_000),
            information: arguments[2].parse().unwrap(),
            ..Setup::of_training_alone(made, cluster.clone(), costs, seed)
        };
        for (policy, runs) in policies.iter().zip(&mut runs) {
            let outcome = run(&setup, policy.as_ref(), &mut || begun.elapsed().as_nanos() as u64);
            assert!(outcome.tally.violations.is_empty(), "{}: {:?}", policy.name(), outcome.tally.violations);
            let deadlines: Vec<Option<u64>> = setup.jobs.iter().map(|job| job.deadline_ms).collect();
            runs.push(outcome.document(&deadlines, 0.0));
        }
    }
    println!("{} {} {:?}: {:.0} s", arguments[1], arguments[2], options.0, begun.elapsed().as_secs_f64());
    for (of, policy) in runs.iter().zip(&policies) {
        let of: Vec<&Value> = of.iter().collect();
        let first: Vec<&Value> = runs[0].iter().collect();
        let mean = means(&of);
        let get = |key: &str| mean[key].as_f64().unwrap_or(f64::NAN);
        let apart = difference(&of, &first, "mean_completion_s")
            .map_or(String::new(), |found| format!(" {:+9.0} ± {:6.0}", found.mean, found.half_width));
        let met = difference(&of, &first, "deadline_attainment")
            .map_or(String::new(), |found| format!(" {:+.3} ± {:.3}", found.mean, found.half_width));
        println!(
            "  {:17} mean {:8.0}{apart} p99 {:8.0} median {:7.0} fair99 {:6.2} unfair {:.2} lost {:8.0} preempted {:.3} ({:5.0}) scalings {:6.0} util {:.3} met {:.3}{met} plans {:7.0} p99 {:.2} ms",
            policy.name(),
            get("mean_completion_s"),
            get("p99_completion_s"),
            get("median_completion_s"),
            get("fairness_p99"),
            get("unfair_share"),
            get("lost_slot_s"),
            get("preempted_job_share"),
            get("preemptions"),
            get("scalings"),
            get("utilization"),
            get("deadline_attainment"),
            get("plans"),
            get("decision_p99_ms"),
        );
    }
}
