//! How long a large recording takes to simulate: `cargo run --release -p loadtest-simulate --example large -- JOBS CLUSTER INFERENCE|- POLICIES [FIRST]`.
//!
//! JOBS is a file of ours (csv), or makes jobs by chance (`diurnal:140x72`, as for `ebb simulate run --generate`).
//! The fleet that serves needs 40 to 95 % of its slots by a sine of a day, told of every ten minutes. Policies know all of a job's work.
#![allow(clippy::unwrap_used)]

use controller_core::policy_by_name;
use loadtest_simulate::outcome::table;
use loadtest_simulate::setup::{Shape, jobs};
use loadtest_simulate::{Cluster, Costs, Demand, Format, Generator, Information, Setup, Tables, run, trace};
use std::f64::consts::TAU;
use std::time::Instant;

fn demand(slots: u64) -> Demand {
    let share = |minute: u32| 0.675 - 0.275 * libm::cos(TAU * (f64::from(minute) / 1_440.0 - 3.0 / 24.0));
    let signal = |minute: u32| (u64::from(minute) * 60_000, (share(minute) * slots as f64) as u32);
    Demand::new((0..1_440).step_by(10).map(signal).collect(), 86_400_000)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let mut trace = match arguments[1].parse::<Generator>() {
        Ok(made) => made.jobs(0),
        Err(_) => trace::parse(&std::fs::read_to_string(&arguments[1]).unwrap(), Format::Csv).unwrap(),
    };
    trace.truncate(arguments.get(5).map_or(usize::MAX, |first| first.parse().unwrap()));
    let (costs, shape) =
        (Costs::measured(200), Shape { min_share: 1.0, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: false });
    let (jobs, _) = jobs(&trace, &Tables::default(), &shape, &costs, 0).unwrap();
    let inference: Cluster = if arguments[3] == "-" { Cluster::default() } else { arguments[3].parse().unwrap() };
    let setup = Setup {
        jobs,
        cluster: arguments[2].parse().unwrap(),
        demand: inference.groups.iter().map(|group| demand(group.slots_total())).collect(),
        inference,
        reclaim_deadline_ms: 5_000,
        quotas: Default::default(),
        sharing: None,
        costs,
        failures: None,
        round_ms: None,
        information: Information::Known,
        mixed_types: false,
        until_ms: None,
        seed: 0,
    };
    let mut documents = Vec::new();
    for policy in arguments[4].split(',') {
        let begun = Instant::now();
        let outcome = run(&setup, policy_by_name(policy).unwrap().as_ref(), &mut || begun.elapsed().as_nanos() as u64);
        println!("{policy}: {:?}", outcome.tally.violations);
        let deadlines: Vec<_> = setup.jobs.iter().map(|job| job.deadline_ms).collect();
        documents.push(outcome.document(&deadlines, begun.elapsed().as_secs_f64()));
    }
    print!("{}", table(&documents));
}
