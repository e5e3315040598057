//! Who is told something in the midst of a gradient that takes long.

use crate::driver::Driver;
use events_schema::control::{Phase, STOPPED_STATUS};
use events_schema::fact::Entry;
use events_schema::{Generation, Step};
use serde_json::json;
use std::time::{Duration, Instant};

/// A model whose gradient takes as long as it says, and two executors in the middle of their first.
fn in_a_long_gradient(gradient_ms: u64, steps: u64, workers: u64) -> Driver {
    let mut driver = Driver::digits(json!({
        "name": "long", "dataset": "digits", "workers": {"max": workers}, "batch_size": 4, "steps": steps, "seed": 7,
        "model": {"kind": "synthetic", "gradient_ms": gradient_ms}, "optimizer": {"kind": "sgd", "learning_rate": 0.1},
    }));
    let members = driver.ready(2);
    driver.propose(Entry::Fresh, &members, 0, &[]);
    driver.until(|d| members.iter().all(|n| matches!(d.progress.get(n).map(|p| p.phase), Some(Phase::Computing(_)))));
    driver
}

/// In the midst of the only gradient that its leader computes in a step.
#[test]
fn a_change_that_is_told_during_a_step_is_made_at_its_end() {
    let mut driver = in_a_long_gradient(5_000, 100, 2);
    let alone = driver.propose(Entry::Switch { from: Generation(1) }, &[0], 0, &[1]);
    assert_eq!(driver.until_active(alone).0, Step(1));
    assert!(driver.until_gone(1).success());
    driver.stop_all();
}

/// Of a gradient of a minute nothing is done when it goes, and the other one, which answers it, is in the middle of one too.
#[test]
fn who_has_to_go_does_not_wait_for_the_end_of_its_gradient() {
    const GRADIENT_MS: u64 = 60_000;
    for leaver in [0, 1] {
        let mut driver = in_a_long_gradient(GRADIENT_MS, 1, 2);
        let told = Instant::now();
        driver.leave_within(leaver, 1_000);
        assert_eq!(driver.until_gone(leaver).code(), Some(STOPPED_STATUS));
        assert!(told.elapsed() < Duration::from_millis(GRADIENT_MS), "it was at its end");
        assert_eq!(driver.alive(), [1 - leaver]);
    }
}

/// With the others' sums on their way, and one gradient of several done.
#[test]
fn a_gradient_that_nobody_waits_for_is_computed_by_who_stays() {
    for (leaver, workers) in [(0, 2), (1, 4)] {
        let mut driver = in_a_long_gradient(1_200, 2, workers);
        driver.leave_within(leaver, 1_000);
        assert_eq!(driver.until_gone(leaver).code(), Some(STOPPED_STATUS));
        driver.propose(Entry::Recover, &[1 - leaver], 1 - leaver, &[]);
        let outcome = driver.until_completed();
        driver.stop_all();
        let plain = driver.plain();
        assert_eq!((outcome.model_digest, outcome.step), (plain.model_digest, Step(2)));
    }
}

/// Each is told: nobody goes on the other's word, and the replica is saved before they go.
#[test]
fn of_two_that_have_to_go_none_leaves_its_gradient() {
    let mut driver = in_a_long_gradient(1_200, 100, 2);
    [0, 1].into_iter().for_each(|number| driver.leave_within(number, 60_000));
    [0, 1].into_iter().for_each(|number| assert!(driver.until_gone(number).success()));
    assert_eq!(driver.checkpoints().len(), 1);
}
