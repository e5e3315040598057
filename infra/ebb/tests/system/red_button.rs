//! A fleet is recalled in the middle of a job, and what happened can be read afterwards: why, from the log; who had which slot and how long
//! each return took; what the executors said that are gone.

use crate::gang::until_said;
use crate::support::{System, finished, model_job, plain_digest, submit, until};
use gateway_api::PublishDemand;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_recalled_fleet_has_its_slots_until_it_is_released_and_the_story_can_be_read() {
    let system = System::start(4).await;
    let client = system.client();
    let mut document = model_job("cnn");
    // It has to be there still when everything was taken back.
    document["steps"] = 8_000.into();
    let expected = plain_digest(&client, &system.service.ready().store_url, &document).await;
    let id = submit(&client, &document, "recalled").await;
    until(&client, &id, "four executors", |j| j.progress.is_some_and(|p| p.members == 4 && p.step > 10)).await;

    let recalled = system.ebb_json(&["fleet", "recall", "local"]).await;
    assert_eq!(recalled["recalled"], 4, "{recalled}");
    until(&client, &id, "nothing left", |j| j.phase == "queued").await;
    // No signal lends what is held, also not one that needs less than before.
    for needed in [4, 0] {
        client.demand("local", &PublishDemand::needed(needed)).await.unwrap();
    }
    let offer = system.ebb(&["offer", "local", "local/0"]).await;
    let refused = String::from_utf8_lossy(&offer.stderr).into_owned();
    assert!(offer.status.code() == Some(4) && refused.contains("recalled"), "{refused}");
    let top = system.ebb_json(&["top"]).await;
    assert_eq!((&top["totals"]["lent"], &top["totals"]["used"]), (&json!(0), &json!(0)), "{top}");
    let shown = system.ebb(&["fleet", "show", "local"]).await;
    assert!(String::from_utf8_lossy(&shown.stdout).contains("until `ebb fleet release local`"), "{shown:?}");

    // Nobody of the job is there any more, but what they said is.
    for executor in ["e0 | ", "e1 | ", "e2 | ", "e3 | "] {
        until_said(&system, &id, executor).await;
    }
    let one = system.ebb(&["job", "logs", &id, "--executor", "2"]).await;
    let said = String::from_utf8_lossy(&one.stdout).into_owned();
    assert!(one.status.success() && !said.is_empty() && said.lines().all(|line| line.starts_with("e2 | ")), "{one:?}");

    let released = system.ebb_json(&["fleet", "release", "local"]).await;
    assert_eq!(released["recalled"], Value::Null, "{released}");
    until(&client, &id, "four again", |j| j.progress.is_some_and(|p| p.members == 4)).await;
    let back = system.agent().take_back(&["local/1".to_owned()], None).await.unwrap();
    assert_eq!(back.len(), 1);
    assert_eq!(finished(&client, &id).await, expected);

    explained(&system, &id).await;
    in_the_ledger(&system, &id, back[0].elapsed_ms).await;
    let followed = system.ebb(&["logs", &id, "-f"]).await;
    assert!(followed.status.success() && followed.stdout.len() > said.len(), "it ends with the job");
}

/// Every loss of slots has its cause beside it, and the cause of that.
async fn explained(system: &System, id: &str) {
    let explained = system.ebb_json(&["explain", id]).await;
    let decisions = explained["decisions"].as_array().unwrap();
    let evicted = decisions.iter().find(|d| d["data"]["cause"] == "reclaimed" && d["data"]["to"] == 0);
    let evicted = evicted.unwrap_or_else(|| panic!("{explained}"));
    let also: Vec<&str> = evicted["also"].as_array().unwrap().iter().map(|e| e["type"].as_str().unwrap()).collect();
    assert_eq!(also[0], "dev.ebb.fleet.recalled.v1", "{evicted}");
    assert_eq!(also.iter().filter(|kind| **kind == "dev.ebb.slot.reclaimed.v1").count(), 4, "{evicted}");
    let newest = system.ebb_json(&["explain", id, "--newest", "1"]).await;
    let last: Vec<&Value> = decisions.iter().rev().take(1).collect();
    assert_eq!(newest["decisions"].as_array().unwrap().iter().collect::<Vec<_>>(), last);
    assert_eq!(newest["earlier_decisions"], decisions.len() - 1, "{newest}");
    let text = system.ebb(&["explain", id]).await;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("fleet local was recalled: all its slots stay with it"), "{text}");
    assert!(text.contains("→ 0 slots: a fleet takes slots back"), "{text}");
}

/// Five returns, each with what was asked and what it took.
async fn in_the_ledger(system: &System, id: &str, took_ms: u64) {
    let ledger = system.ebb_json(&["fleet", "ledger", "local", "--since", "1h"]).await;
    let rows = ledger["rows"].as_array().unwrap();
    let returned = |cause: &str| rows.iter().filter(|row| row["return"]["cause"] == cause).collect::<Vec<_>>();
    let recalled = returned("recall");
    assert_eq!(recalled.len(), 4, "{ledger}");
    for row in &recalled {
        assert_eq!((&row["job"], &row["return"]["in_time"]), (&Value::from(id), &Value::from(true)), "{row}");
        assert!(
            row["to"].is_string()
                && row["return"]["took_ms"].is_u64()
                && row["return"]["deadline_ms"].as_u64() > Some(0),
            "{row}"
        );
    }
    let direct = returned("direct");
    assert!(direct.len() == 1 && direct[0]["slot"] == "local/1" && direct[0]["job"] == id, "{ledger}");
    // As the agent answered: within the fleet's time, and as long as it really took.
    assert!(direct[0]["return"]["took_ms"].as_u64() >= Some(took_ms), "{ledger}");
    assert_eq!((&ledger["totals"]["returns"], &ledger["totals"]["returns_in_time"]), (&json!(5), &json!(5)));
    assert!(ledger["totals"]["used_slot_seconds"].as_f64() > Some(0.0), "{ledger}");
    let later = system.ebb_json(&["fleet", "ledger", "local", "--since", "2100-01-01T00:00:00Z"]).await;
    assert!(later["rows"].as_array().unwrap().is_empty(), "everything is over by then: {later}");
}
