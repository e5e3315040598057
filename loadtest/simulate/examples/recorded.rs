//! A recording under all policies: `cargo run --release -p loadtest-simulate --example recorded -- FILE FORMAT CLUSTER [FIRST]`.
#![allow(clippy::unwrap_used)]

use controller_core::policy::POLICY_NAMES;
use controller_core::policy_by_name;
use loadtest_simulate::outcome::table;
use loadtest_simulate::setup::{Shape, jobs};
use loadtest_simulate::{Costs, Setup, Tables, run, trace};
use std::time::Instant;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let text = std::fs::read_to_string(&arguments[1]).unwrap();
    let mut trace = trace::parse(&text, arguments[2].parse().unwrap()).unwrap();
    trace.truncate(arguments.get(4).map_or(usize::MAX, |first| first.parse().unwrap()));
    let (costs, shape) =
        (Costs::measured(200), Shape { min_share: 0.0, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: false });
    let (jobs, notes) = jobs(&trace, &Tables::default(), &shape, &costs, 0).unwrap();
    println!("{} jobs, {notes:?}", jobs.len());
    let setup = Setup::of_training_alone(jobs, arguments[3].parse().unwrap(), costs, 0);
    let mut documents = Vec::new();
    for policy in POLICY_NAMES {
        let begun = Instant::now();
        let outcome = run(&setup, policy_by_name(policy).unwrap().as_ref(), &mut || begun.elapsed().as_nanos() as u64);
        println!("{policy}: {:?}", outcome.tally.violations);
        let deadlines: Vec<_> = setup.jobs.iter().map(|job| job.deadline_ms).collect();
        documents.push(outcome.document(&deadlines, begun.elapsed().as_secs_f64()));
    }
    print!("{}", table(&documents));
}
