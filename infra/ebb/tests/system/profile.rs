//! A job that says `profile` is measured at the sizes that it names, then settles, and is the model that it would have been.

use crate::support::{LOOK_EVERY, System, WAIT_MAX, finished, model_job, plain_digest, submit, until};
use gateway_client::{Client, Events};
use serde_json::{Value, json};
use std::time::Instant;

/// As many as it takes to be measured at each size, and some more.
const SECONDS: u64 = 30;

async fn events_of(client: &Client, job: &str) -> Vec<Value> {
    client.all_events(&Events::of_job(job)).await.unwrap_or_else(|e| panic!("{e}"))
}

/// The sizes that were measured.
fn measured(events: &[Value]) -> Vec<u64> {
    let told = events.iter().filter(|event| event["type"] == "dev.ebb.generation.throughput_measured.v1");
    told.map(|event| event["data"]["members"].as_u64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_measured_at_each_size_and_its_model_stays_the_same() {
    let system = System::start_with(4, &["--speeds", "measured"]).await;
    let client = system.client();
    let mut spec = model_job("mlp");
    (spec["steps"], spec["workers"]) = (json!(1_000_000), json!({"min": 1, "max": 4}));
    spec["profile"] = json!({"sizes": [1, 2, 4], "seconds": SECONDS});
    let job = submit(&client, &spec, "profiled").await;
    let planned = |events: &[Value], cause: &str| {
        let of =
            events.iter().filter(|event| event["type"] == "dev.ebb.job.planned.v1" && event["data"]["cause"] == cause);
        of.map(|event| event["data"]["slots"].as_array().unwrap().len()).collect::<Vec<_>>()
    };
    // A size that its policy gives it anyhow is measured as its own, so that between two that it is measured at it may have its own.
    let begun = Instant::now();
    let mut events = events_of(&client, &job).await;
    while ![1, 2, 4].iter().all(|size| measured(&events).contains(size)) {
        assert!(begun.elapsed() < WAIT_MAX, "measured at {:?}", measured(&events));
        tokio::time::sleep(LOOK_EVERY).await;
        events = events_of(&client, &job).await;
    }
    let settled = until(&client, &job, "its own size", |job| {
        let cause = job.reason.as_ref().map(|reason| serde_json::to_value(&reason.cause).unwrap());
        cause.is_some_and(|cause| cause != "profile")
    })
    .await;
    assert_eq!(settled.restarts, 0);
    let events = events_of(&client, &job).await;
    let tried = planned(&events, "profile");
    assert!(!tried.is_empty() && tried.len() <= 3, "{tried:?}");
    client.cancel(&job).await.unwrap();

    // The same job, short enough to end amid its profile.
    spec["steps"] = json!(3_000);
    let plain = plain_digest(&client, &system.service.ready().store_url, &spec).await;
    let job = submit(&client, &spec, "short").await;
    assert_eq!(finished(&client, &job).await, plain);
}
