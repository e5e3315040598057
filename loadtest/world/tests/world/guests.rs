//! A job that has no guarantee shares the slots of one that has, among faults of every kind: whoever has a slot has it, and its guest has left it, whatever
//! happened to agents, controllers and the log.

use loadtest_world::random::Random;
use loadtest_world::schedule::JobSetup;
use loadtest_world::{Mutants, Schedule, run, weather};
use std::collections::BTreeMap;

/// Steps of a job that ends while it is watched.
const STEPS: (u64, u64) = (20, 200);

/// The schedule of a seed, with a job on all slots of the core, and another one that is to share them.
fn schedule(seed: u64) -> Schedule {
    let (mut schedule, mut random) = (weather::schedule(seed), Random::new(seed ^ 0x06e5_7005));
    let setup = &mut schedule.setup;
    "antman".clone_into(&mut setup.policy);
    (setup.guests, setup.max_restarts) = (true, 1_000);
    let first = setup.jobs[0].clone();
    setup.jobs.truncate(1);
    let all = setup.core_servers * setup.slots;
    // Executors of one job are as many as it has ranks at most.
    setup.jobs[0] =
        JobSetup { min: 1, max: all.min(6), priority: 0, profile_s: None, stride_max: None, ..first.clone() };
    let max = random.between(1, 4) as u16;
    let steps = random.between(STEPS.0, STEPS.1);
    setup.jobs.push(JobSetup { min: 1, max, steps, priority: -1, profile_s: None, stride_max: None, ..first });
    schedule
}

#[test]
fn guests_leave_with_their_hosts_whatever_happens() {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..400 {
        let schedule = schedule(seed);
        let outcome = run(&schedule, &Mutants::default());
        let replay = || serde_json::to_string(&schedule).unwrap();
        assert!(outcome.finding.is_none(), "seed {seed}: {:?}; replays as {}", outcome.finding, replay());
        for ((kind, detail), times) in outcome.facts {
            *seen.entry(format!("{kind} {detail}")).or_default() += times;
        }
    }
    println!("{seen:#?}");
    // Not vacuous: in most of them somebody was a guest.
    assert!(seen["PlanAdopted guest slots"] > 200, "{seen:?}");
}
