//! Steps that last longer than whoever wants a slot back will wait.

use crate::schedules::demand;
use crate::support::{LOOK_EVERY, System, WAIT_MAX, finished, plain_digest, steps, submit, until};
use crate::torch::{TRAIN, document, python};
use gateway_client::Events;
use serde_json::Value;
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
    let asked_for = ("status".to_owned(), Some(143));
    assert_eq!(ends(&system, 1).await, std::slice::from_ref(&asked_for));
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
    assert_eq!(ends(&system, 2).await[..2], [asked_for.clone(), asked_for]);
    assert_eq!(crate::support::job(&client, &id).await.restarts, 0, "it never went back to a checkpoint");
}
