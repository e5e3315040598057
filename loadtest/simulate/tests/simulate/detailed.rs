//! The same jobs in both modes: by how much the detailed one may differ from what the models of the fast one say, that it is the same twice, and what it refuses.

use controller_core::{Policy, policy_by_name};
use loadtest_simulate::detailed::{self, WITHOUT, longest_ms, ratios};
use loadtest_simulate::outcome::Ended;
use loadtest_simulate::setup::{Shape, jobs};
use loadtest_simulate::sharing::Sharing;
use loadtest_simulate::trace::parse;
use loadtest_simulate::{Costs, Demand, Failures, Format, Information, Outcome, Setup, Tables, run};
use serde_json::Value;
use std::sync::Arc;

/// A step on the slots that jobs ask for.
const STEP_MS: u64 = 500;
const SHAPE: Shape = Shape { min_share: 0.0, max_share: 1.0, step_ms: STEP_MS, speed_up: 1.0, goodput: false };

fn setup(trace: &str, cluster: &str) -> Setup {
    let costs = Costs::measured(200);
    let made = jobs(&parse(trace, Format::Csv).unwrap(), &Tables::default(), &SHAPE, &costs, 0).unwrap().0;
    Setup::of_training_alone(made, cluster.parse().unwrap(), costs, 7)
}

/// Five jobs on four slots that are there all the time and four of a fleet that needs one of them, then all, then none.
fn tide() -> Setup {
    let text = "submitted_s,duration_s,workers,tenant\n0,60,4,a\n10,40,2,b\n25,30,1,a\n40,60,4,b\n90,20,2,a\n";
    let mut setup = setup(text, "1x4:t4");
    setup.inference = "2x2:t4".parse().unwrap();
    setup.demand = vec![Demand::new(vec![(0, 1), (45_000, 4), (80_000, 0)], 100_000)];
    setup
}

fn policy(name: &str) -> Arc<dyn Policy> {
    policy_by_name(name).unwrap().into()
}

fn both(setup: &Setup, name: &str) -> (Outcome, Outcome) {
    let policy = policy(name);
    let fast = run(setup, policy.as_ref(), &mut || 0);
    let detailed = detailed::run(setup, &policy, longest_ms(&fast)).unwrap();
    for outcome in [&fast, &detailed] {
        assert_eq!(outcome.tally.violations, Vec::<String>::new(), "{name}");
    }
    (fast, detailed)
}

fn documents(fast: &Outcome, detailed: &Outcome) -> [Value; 2] {
    let none = vec![None; fast.jobs.len()];
    [fast.document(&none, 0.0), detailed::document(detailed, &none, 0.0)]
}

fn ends_ms(outcome: &Outcome) -> Vec<u64> {
    outcome.jobs.iter().map(|job| job.ended.filter(|(how, _)| *how == Ended::Finished).unwrap().1).collect()
}

#[test]
fn a_job_alone_takes_longer_by_what_its_steps_read_and_its_end_writes() {
    let (fast, detailed) = both(&setup("submitted_s,duration_s,workers\n0,60,4\n", "1x4:t4"), "fifo");
    assert_eq!(ends_ms(&fast), [6_419 + 15 + 60_000]);
    // Each of 120 steps goes four times over a link of 0.2 ms at most, eight of them read their rows once in 15 ms, and in the end a replica is saved (438 ms)
    // and a third of one as the model (146 ms), with a request of 15 ms for each object. Orders and words on their way are some milliseconds each.
    let most_ms = 120 * 4 * 2 / 10 + 120 / 8 * 15 + 438 + 146 + 8 * 15 + 100;
    let longer_ms = ends_ms(&detailed)[0] - ends_ms(&fast)[0];
    assert!((225..=most_ms).contains(&longer_ms), "{longer_ms} ms, {most_ms} at most");
}

#[test]
fn every_job_ends_in_both_modes_and_sizes_that_nobody_changes_differ_little() {
    for (name, within) in [("fifo", 0.02), ("ebb", 0.1), ("tiresias", 0.1)] {
        let setup = tide();
        let (fast, detailed) = both(&setup, name);
        assert_eq!((ends_ms(&fast).len(), ends_ms(&detailed).len()), (5, 5), "{name}");
        let [fast_said, said] = documents(&fast, &detailed);
        let ratio = ratios(&fast_said, &said)["mean_completion_s"].as_f64().unwrap();
        assert!((ratio - 1.0).abs() <= within, "{name}: {ratio}");
        // A slot waits for the step in flight and, where that had begun before the word came, the next one; on half of their slots steps are twice as long.
        let returns = &detailed.tally.returns_ms;
        assert!(!returns.is_empty() && returns.iter().all(|ms| *ms < 2 * 2 * STEP_MS + 200), "{name}: {returns:?}");
        for key in ["utilization", "harvested_slot_s", "unmet_demand_slot_s", "fairness_mean"] {
            assert!(said[key].as_f64().is_some_and(|figure| figure > 0.0), "{name}: {key} is {}", said[key]);
        }
        assert!(WITHOUT.iter().all(|key| said.get(key) == Some(&Value::Null)));
    }
}

#[test]
fn the_same_setup_is_the_same_run_and_policies_know_what_they_know_in_the_fast_mode() {
    for information in [Information::Unknown, Information::Known] {
        let setup = Setup { information, ..tide() };
        let [(_, once), (_, again)] = [both(&setup, "ebb"), both(&setup, "ebb")];
        assert_eq!(documents(&once, &once)[1].to_string(), documents(&again, &again)[1].to_string());
        assert_eq!(once.jobs, again.jobs);
    }
}

#[test]
fn servers_that_are_twice_as_fast_are_so_in_detail_and_who_can_use_one_type_is_on_that() {
    let text = "submitted_s,duration_s,workers,slot_type\n0,60,2,fast\n0,60,2,slow\n";
    let (fast, detailed) = both(&setup(text, "1x2:slow,1x2:fast@2"), "fifo");
    assert_eq!(ends_ms(&fast), [36_434, 66_434]);
    for (fast, detailed) in ends_ms(&fast).iter().zip(ends_ms(&detailed)) {
        assert!(detailed.abs_diff(*fast) < 1_300, "{detailed} and not {fast}");
    }
}

#[test]
fn what_the_world_has_not_and_what_takes_too_long_is_refused_by_its_option() {
    let of = |setup: &Setup| detailed::run(setup, &policy("fifo"), 1).unwrap_err().to_string();
    let failures = Some(Failures { mean_ms: 1e6, repair_ms: 1_000 });
    for (setup, said) in [
        (Setup { sharing: Some(Sharing::OF_ANTMAN), ..tide() }, "expected a run without --guests"),
        (Setup { failures, ..tide() }, "`ebb simulate chaos` has; expected a run without --server-fails-hours"),
        (Setup { round_ms: Some(60_000), ..tide() }, "--round-s"),
        (Setup { cluster: "65x1:t4".parse().unwrap(), ..tide() }, "67 servers are too many"),
        (
            setup("submitted_s,duration_s,workers\n0,50001,4\n", "1x4:t4"),
            "400008 updates (steps × slots asked for) are too many for the detailed mode; expected 300000 at most, which --first, --scale, --to or a longer --step-ms can bring about",
        ),
        (
            setup("submitted_s,duration_s,workers\n0,1,1\n86401,1,1\n", "1x1:t4"),
            "86401 seconds between the first and the last submission are too many",
        ),
    ] {
        let error = of(&setup);
        assert!(error.contains(said), "{error}");
    }
}
