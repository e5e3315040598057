//! A job that was suspended and resumed is the job that never was.

use crate::support::{System, finished, model_job, plain_digest, steps, submit, until, until_saved};

#[tokio::test(flavor = "multi_thread")]
async fn suspended_and_resumed_equals_never_stopped() {
    let system = System::start(2).await;
    let client = system.client();
    let mut document = model_job("cnn");
    document["steps"] = 8_000.into();
    let id = submit(&client, &document, "suspended").await;
    until(&client, &id, "some steps", |j| steps(j) > 20).await;
    system.ebb_json(&["suspend", &id]).await;
    let suspended = until(&client, &id, "the suspension", |j| j.phase == "suspended").await;
    assert!(suspended.slots.is_empty(), "a suspended job costs nothing: {suspended:?}");
    let checkpoints = system.ebb_json(&["checkpoints", &id]).await;
    let last = checkpoints["checkpoints"].as_array().unwrap().last().unwrap().clone();
    assert!(last["step"].as_u64().unwrap() > 20, "its state is in a checkpoint of that very step: {last}");
    system.ebb_json(&["resume", &id]).await;
    let digest = finished(&client, &id).await;
    assert_eq!(digest, plain_digest(&client, &system.service.ready().store_url, &document).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_frees_its_slots_and_keeps_its_checkpoint() {
    let system = System::start(1).await;
    let client = system.client();
    let mut document = model_job("mlp");
    document["steps"] = 1_000_000.into();
    let id = submit(&client, &document, "cancelled").await;
    until_saved(&system, &id, 1).await;
    system.ebb_json(&["cancel", &id[..12]]).await;
    until(&client, &id, "the end", |j| j.phase == "cancelled").await;
    // The slot is free for another one, to its end.
    let mut next = model_job("mlp");
    next["steps"] = 20.into();
    let next = submit(&client, &next, "after").await;
    finished(&client, &next).await;
    assert!(!system.ebb_json(&["checkpoints", &id]).await["checkpoints"].as_array().unwrap().is_empty());
}
