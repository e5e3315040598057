//! A job on slots of two types at once: two agents say which, one of them is slower, and once that was measured its executor hosts fewer ranks; the model is that of
//! one process.

use crate::stragglers::{Slowed, ranks};
use crate::support::{System, WAIT_MAX, agent_with, finished, model_job, plain_digest, submit, until, until_slot};
use gateway_api::PublishDemand;
use serde_json::{Value, json};
use std::time::Duration;

/// The slower type's executors stand still for so long of each stretch of both, so that a gradient takes four times as long.
const STILL: Duration = Duration::from_millis(30);
const MOVING: Duration = Duration::from_millis(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_job_on_two_types_hosts_more_ranks_on_the_faster_one_and_is_the_same_model() {
    let system = System::start_with(1, &["--type", "fast", "--policy", "easyscale"]).await;
    let client = system.client();
    let (_far, far) = agent_with(&system, 1, &[("EBB_AGENT_TYPE", "slow")]).await;
    until_slot(&system, "far/0").await;
    let slots = system.ebb_json(&["slots"]).await;
    let types = |slots: &Value| slots.as_array().unwrap().iter().map(|slot| slot["type"].clone()).collect::<Vec<_>>();
    let mut shown = types(slots.get("slots").unwrap_or(&slots));
    shown.sort_by_key(ToString::to_string);
    assert_eq!(shown, [json!("fast"), json!("slow")], "{slots}");
    system.ebb_json(&["fleet", "put", "distant", "--server", "far", "--slots", "1"]).await;
    client.demand("distant", &PublishDemand::needed(0)).await.unwrap();
    let slowed = Slowed::new(far, "far/0", STILL, MOVING);
    let mut document = model_job("cnn");
    document["workers"] = json!({"min": 2, "max": 8});
    document["types"] = json!("any");
    // Long enough to be measured, and for some steps with other shares.
    document["steps"] = 8_000.into();
    let expected = plain_digest(&client, &system.service.ready().store_url, &document).await;
    let id = submit(&client, &document, "mixed").await;
    until(&client, &id, "a member on each", |j| j.is_over() || j.progress.as_ref().is_some_and(|p| p.members == 2))
        .await;
    let begun = std::time::Instant::now();
    loop {
        let ranks = ranks(&system, &id).await;
        if ranks.values().any(|count| *count > 4) {
            break;
        }
        let is_over = crate::support::job(&client, &id).await.is_over();
        assert!(!is_over && begun.elapsed() < WAIT_MAX, "nobody hosts more than half, over {is_over}: {ranks:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let record = crate::support::job(&client, &id).await;
    assert!(!record.is_over(), "it is measured while it trains: {record:?}");
    let told = system.ebb(&["explain", &id]).await;
    let told = String::from_utf8_lossy(&told.stdout);
    assert!(told.contains(" µs on fast, ") && told.contains("faster types host more ranks"), "{told}");
    slowed.let_go().await;
    assert_eq!(finished(&client, &id).await, expected);
    assert!(record.stragglers.is_empty(), "{:?}", record.stragglers);
}
