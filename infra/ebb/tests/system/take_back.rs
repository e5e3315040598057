//! A fleet gets its slot back with gateway, controller and log dead: the agent alone does it, and training loses nothing.

use crate::support::{System, agent_alone, finished, job, model_job, plain_digest, submit, until, until_slot};
use gateway_api::{PublishDemand, rfc3339};
use serde_json::json;
use shell::wall_clock;

#[tokio::test(flavor = "multi_thread")]
async fn slots_come_back_with_everything_else_dead() {
    let system = System::start(1).await;
    let client = system.client();
    let (_far, agent) = agent_alone(&system, 4).await;
    // The service's own slot is not lent; the four far away are.
    client.demand("local", &PublishDemand::needed(1)).await.unwrap();
    until_slot(&system, "far/3").await;
    system.ebb_json(&["fleet", "put", "distant", "--server", "far", "--slots", "4"]).await;
    client.demand("distant", &PublishDemand::needed(0)).await.unwrap();
    let document = model_job("cnn");
    let expected = plain_digest(&client, &system.service.ready().store_url, &document).await;
    let id = submit(&client, &document, "far").await;
    until(&client, &id, "four executors far away", |j| j.progress.is_some_and(|p| p.members == 4 && p.step > 10)).await;

    let dead = system.kill().await;
    let killed_at = wall_clock();
    let victim = agent.slots().await.unwrap().into_iter().find(|s| s.executor.is_some()).unwrap().slot;
    let freed = agent.take_back(std::slice::from_ref(&victim), None).await.unwrap();
    assert_eq!(
        (freed.len(), freed[0].slot.as_str(), freed[0].killed),
        (1, victim.as_str(), false),
        "it leaves at a boundary, by itself"
    );
    let after = agent.slots().await.unwrap();
    assert!(after.iter().any(|s| s.slot == victim && s.state == "taken_back" && s.pid.is_none()), "{after:?}");
    assert_eq!(after.iter().filter(|s| s.executor.is_some()).count(), 3, "the others train on: {after:?}");

    let back_at = wall_clock();
    let system = dead.start().await;
    let client = system.client();
    assert_eq!(finished(&client, &id).await, expected);
    assert_eq!(job(&client, &id).await.restarts, 0, "it never went back to a checkpoint");

    let ledger = system.ebb_json(&["fleet", "ledger", "distant"]).await;
    let rows = ledger["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["return"]["cause"] == "direct").unwrap_or_else(|| panic!("{ledger}"));
    let (asked, to) = (row["return"]["asked"].as_str().unwrap(), row["to"].as_str().unwrap());
    assert_eq!((&row["slot"], &row["job"]), (&json!(victim), &json!(id)), "{row}");
    assert!(
        rfc3339(killed_at).as_str() <= asked && to <= rfc3339(back_at).as_str(),
        "all of it while nobody decided: {row}"
    );
    assert!(row["return"]["took_ms"].as_u64() >= Some(freed[0].elapsed_ms), "as long as the agent answered: {row}");
    assert_eq!(row["return"]["in_time"], true, "{row}");
}
