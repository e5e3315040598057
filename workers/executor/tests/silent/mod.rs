//! Executors that wait for a store which says nothing, and are asked to leave: they go before they would be killed, and who stays trains the same model.

use super::{begin, finish, long, with_checkpoints};
use crate::driver::Driver;
use events_schema::control::{Phase, STOPPED_STATUS, WaitsFor};
use events_schema::fact::Entry;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Until the kill; much shorter than a read is waited for.
const WITHIN: Duration = Duration::from_secs(10);

/// Two ranks, each with two of the four files and 45 steps in each, of next to nothing.
fn short_steps(evaluated_every: u64) -> Value {
    json!({
        "name": "silent", "dataset": "digits-test", "workers": {"max": 2}, "batch_size": 8, "steps": 80, "seed": 5,
        "shuffle": "none", "model": {"kind": "mlp", "hidden": [16]}, "optimizer": {"kind": "sgd", "learning_rate": 0.1},
        "evaluation": {"dataset": "digits-test", "every_steps": evaluated_every},
    })
}

/// Waits until all are in this phase at this step and say that the store is what they wait for. None of them does anything else then.
fn until_waiting(driver: &mut Driver, members: &[u32], step: u64, phase: fn(&Phase) -> bool) {
    driver.until(|d| {
        members.iter().all(|number| {
            let at = d.progress.get(number);
            at.is_some_and(|at| at.waits_for == WaitsFor::Store && at.step.0 == step && phase(&at.phase))
        })
    });
}

fn leaves_early(driver: &mut Driver, leaver: u32) {
    let told = Instant::now();
    driver.leave_within(leaver, WITHIN.as_millis() as u64);
    assert_eq!(driver.until_gone(leaver).code(), Some(STOPPED_STATUS));
    assert!(told.elapsed() < WITHIN, "it would have been killed");
}

/// Of both nobody expects a long gradient, neither of who goes nor of who has to say that it stays.
#[test]
fn who_waits_for_rows_after_many_short_steps_leaves() {
    for leaver in [0, 1] {
        let mut driver = Driver::digits_in_files(short_steps(80));
        let members = driver.ready(2);
        let silent = driver.silence_files(&[1, 3]);
        driver.propose(Entry::Fresh, &members, 0, &[]);
        until_waiting(&mut driver, &members, 45, |phase| matches!(phase, Phase::Computing(_)));
        leaves_early(&mut driver, leaver);
        drop(silent);
        driver.propose(Entry::Recover, &[1 - leaver], 1 - leaver, &[]);
        finish(driver);
    }
}

#[test]
fn who_waits_for_rows_of_an_evaluation_after_many_short_parts_leaves() {
    for leaver in [0, 1] {
        let mut driver = Driver::digits_in_files(short_steps(20));
        let members = driver.ready(2);
        let silent = driver.silence_files(&[1, 3]);
        driver.propose(Entry::Fresh, &members, 0, &[]);
        until_waiting(&mut driver, &members, 20, |phase| matches!(phase, Phase::Evaluating(_)));
        leaves_early(&mut driver, leaver);
        drop(silent);
        driver.propose(Entry::Recover, &[1 - leaver], 1 - leaver, &[]);
        finish(driver);
    }
}

/// It waits for what it is built from, and has nothing yet that could be left.
#[test]
fn who_is_not_built_yet_leaves() {
    let mut driver = Driver::digits(short_steps(80));
    let key = driver.order().dataset.unwrap().metadata_key;
    let _silent = driver.silence(&key);
    let started = driver.spawn(1);
    until_waiting(&mut driver, &started, 0, |phase| matches!(phase, Phase::Building));
    leaves_early(&mut driver, started[0]);
}

/// Nobody is asked: each of them may go, and who stays begins without the others.
#[test]
fn who_reads_its_replica_leaves() {
    let mut driver = begin(long(16), 2, 0, 0);
    let (step, manifest_key) = with_checkpoints(&mut driver, 1).pop().unwrap();
    let silent = driver.silence(&manifest_key.replace("manifest.json", "shard-1.safetensors"));
    let entry = Entry::Checkpoint { manifest_key, earlier: Vec::new() };
    let members = driver.ready(3);
    driver.propose(entry.clone(), &members, members[0], &[]);
    until_waiting(&mut driver, &members, 0, |phase| matches!(phase, Phase::Loading));
    leaves_early(&mut driver, members[0]);
    leaves_early(&mut driver, members[2]);
    drop(silent);
    let generation = driver.propose(entry, &members[1..2], members[1], &[]);
    assert_eq!(driver.until_active(generation).0, step);
    finish(driver);
}

/// What is read ahead is not waited for by who leaves at a boundary.
#[test]
fn who_has_its_rows_leaves_whatever_is_read_ahead() {
    let mut spec = short_steps(1_000);
    spec["batch_size"] = json!(90);
    spec["steps"] = json!(8);
    spec["model"] = json!({"kind": "synthetic", "gradient_ms": 400});
    let mut driver = Driver::digits_in_files(spec);
    let members = driver.ready(2);
    let _silent = driver.silence_files(&[1, 3]);
    driver.propose(Entry::Fresh, &members, 0, &[]);
    driver.until_step(1);
    // The leader, which lets itself go at the next boundary.
    driver.leave(0);
    assert_eq!(driver.until_gone(0).code(), Some(0));
    assert!(driver.step().0 < 4, "there were no rows for this step");
}
