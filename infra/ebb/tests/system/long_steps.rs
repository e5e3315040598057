//! Steps that last longer than whoever wants a slot back will wait.

use crate::schedules::demand;
use crate::support::{LOOK_EVERY, System, WAIT_MAX, finished, plain_digest, steps, submit, until};
use crate::torch::{TRAIN, document, python};
use gateway_client::Events;
use serde_json::{Value, json};
use std::time::Instant;

/// While they are slow, of ten seconds each on one executor: longer than any wait of a test.
const UNHURRIED_STEPS: u64 = 40;

/// How executors ended, in order, once so many have: what is said of it, and the status if it is one. A slot is free a moment before the log says so.
async fn ends(system: &System, count: usize) -> Vec<(String, Option<i64>)> {
    let begun = Instant::now();
    loop {
        let all = system.client().all_events(&Events::all()).await.unwrap();
        let all = all.iter().map(|event| serde_json::to_value(event).unwrap());
        let gone = all.filter(|event: &Value| event["type"] == "dev.ebb.executor.gone.v1");
        let ended =
            |event: Value| (event["data"]["exit"].as_str().unwrap().to_owned(), event["data"]["status"].as_i64());
        let ends: Vec<_> = gone.map(ended).collect();
        if ends.len() >= count {
            return ends;
        }
        assert!(begun.elapsed() < WAIT_MAX, "only these ended: {ends:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Sixteen gradients of 0.3 s each for either of two executors: one that has three seconds, and one that has ten, goes after at most one and the gradient
/// that it is at. Neither is killed, and nobody who looks at the model can tell.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_to_go_does_not_wait_for_the_end_of_a_long_step() {
    let system = System::start_with(2, &["--python", &python()]).await;
    let client = system.client();
    let seen = system.path("seen");
    let slow = TRAIN.replace(
        "images, labels = batch",
        &format!("images, labels = batch\n        import os, time; os.path.exists({seen:?}) or time.sleep(0.3)"),
    );
    let of = async |code: &str| {
        let mut document = document(&system, code, UNHURRIED_STEPS).await;
        document["workers"]["max"] = 32.into();
        document
    };
    let expected = plain_digest(&client, &system.service.ready().store_url, &of(TRAIN).await).await;
    let id = submit(&client, &of(&slow).await, "long").await;
    let two = async |step: u64| {
        let trains = |j: &ebb::wire::Job| j.progress.as_ref().is_some_and(|p| p.members == 2) && steps(j) >= step;
        until(&client, &id, "a step of two", trains).await
    };
    let then = steps(&two(1).await);
    system.agent().take_back(&["local/1".to_owned()], Some(3_000)).await.unwrap();
    assert_eq!(ends(&system, 1).await, [left()]);
    demand(&system, 1).await;
    demand(&system, 0).await;
    two(then + 1).await;
    demand(&system, 1).await;
    let free = async || system.agent().slots().await.unwrap().iter().any(|slot| slot.executor.is_none());
    while !free().await {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    std::fs::write(&seen, "").unwrap();
    assert_eq!(finished(&client, &id).await, expected);
    assert_eq!(ends(&system, 2).await[..2], [left(), left()]);
    assert_eq!(crate::support::job(&client, &id).await.restarts, 0, "it never went back to a checkpoint");
}

/// Status of an executor that left as it was asked to, in the middle of a step.
fn left() -> (String, Option<i64>) {
    ("status".to_owned(), Some(143))
}

/// A step is one gradient of each of two executors, and longer than who wants a slot back waits.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_to_go_does_not_wait_for_the_end_of_a_gradient() {
    let system = System::start(2).await;
    let document = json!({
        "name": "long", "model": {"kind": "synthetic", "gradient_ms": 6_000}, "dataset": "digits", "batch_size": 1,
        "workers": {"max": 2}, "steps": 1_000,
    });
    let id = submit(&system.client(), &document, "long").await;
    let two = |j: &ebb::wire::Job| j.progress.as_ref().is_some_and(|p| p.members == 2) && steps(j) >= 1;
    until(&system.client(), &id, "a step of two", two).await;
    let freed = system.agent().take_back(&["local/1".to_owned()], Some(2_000)).await.unwrap();
    assert_eq!((freed.len(), freed[0].killed), (1, false), "{freed:?}");
    assert_eq!(ends(&system, 1).await, [left()]);
}

/// The same of a model in PyTorch, whose gradient would take a minute. Its process goes too, and who stays computes what it was at.
#[tokio::test(flavor = "multi_thread")]
async fn nor_for_the_end_of_one_in_python() {
    let system = System::start_with(2, &["--python", &python()]).await;
    let client = system.client();
    let [long, seen] = ["long", "seen"].map(|name| system.path(name));
    let waits = format!(
        "images, labels = batch
        import os, time
        is_long = os.path.exists({long:?}) and not os.path.exists({seen:?})
        if is_long:
            print('a long gradient begins', flush=True)
        until = time.monotonic() + (60 if is_long else 0.2)
        while time.monotonic() < until and not os.path.exists({seen:?}):
            time.sleep(0.01)"
    );
    let of = async |code: &str| {
        let mut document = document(&system, code, UNHURRIED_STEPS).await;
        document["workers"]["max"] = 2.into();
        document
    };
    let expected = plain_digest(&client, &system.service.ready().store_url, &of(TRAIN).await).await;
    let id = submit(&client, &of(&TRAIN.replace("images, labels = batch", &waits)).await, "long").await;
    let two = |j: &ebb::wire::Job| j.progress.as_ref().is_some_and(|p| p.members == 2) && steps(j) >= 1;
    until(&client, &id, "a step of two", two).await;
    std::fs::write(&long, "").unwrap();
    let begun = async || {
        let said = system.ebb(&["logs", &id]).await;
        String::from_utf8_lossy(&said.stdout).matches("a long gradient begins").count()
    };
    while begun().await < 2 {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let freed = system.agent().take_back(&["local/1".to_owned()], Some(3_000)).await.unwrap();
    assert_eq!((freed.len(), freed[0].killed), (1, false), "{freed:?}");
    std::fs::write(&seen, "").unwrap();
    assert_eq!(finished(&client, &id).await, expected);
    assert_eq!(ends(&system, 1).await[..1], [left()]);
    assert_eq!(crate::support::job(&client, &id).await.restarts, 0, "it never went back to a checkpoint");
}
