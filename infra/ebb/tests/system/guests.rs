//! Two jobs on one slot: who has no quota trains beside who has, both leave when the fleet wants the slot, and neither model has another bit for it.

use crate::support::{
    LOOK_EVERY, System, WAIT_MAX, assert_synthetic_suspended, finished, job, model_job, plain_digest, steps, submit,
    synthetic_job, until,
};
use gateway_api::PublishDemand;
use serde_json::{Value, json};
use std::time::Instant;

/// What is on the service's only slot.
async fn slot(system: &System) -> Value {
    system.ebb_json(&["slots"]).await["slots"][0].clone()
}

/// The priority of a process.
fn nice(process: &str) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The nineteenth of all, after the two that the name ends.
    stat.rsplit(") ").next().unwrap().split(' ').nth(16).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_trains_beside_its_host_and_leaves_with_it_and_no_bit_of_either_changes() {
    let system = System::start_with(1, &["--policy", "antman", "--guests"]).await;
    let client = system.client();
    system.ebb_json(&["tenant", "set", "research", "--quota", "1"]).await;
    // The host is there until it is suspended. The guest begins when it is known what the host uses, which takes ten seconds, and is still there when their slot
    // is taken back.
    let (mut of_host, mut of_guest) = (synthetic_job([1, 1], 10), model_job("cnn"));
    of_host["tenant"] = json!("research");
    (of_guest["tenant"], of_guest["steps"]) = (json!("labs"), json!(3_000));
    let expected = plain_digest(&client, &system.service.ready().store_url, &of_guest).await;

    let host = submit(&client, &of_host, "host").await;
    until(&client, &host, "the slot", |j| steps(j) > 10).await;
    let guest = submit(&client, &of_guest, "guest").await;
    // Its first gradient it computes at once; how soon others follow is its host's affair, and the noise's of what else runs here.
    let shares = until(&client, &guest, "a place beside it", |j| steps(j) > 0).await;
    assert_eq!((shares.slots, job(&client, &host).await.slots), (vec!["local/0-guest".into()], vec!["local/0".into()]));
    let shown = slot(&system).await;
    assert_eq!(
        (&shown["job"], &shown["guest"]["job"], &shown["state"]),
        (&json!(host), &json!(guest), &json!("borrowed"))
    );
    let told = system.ebb(&["explain", &guest]).await;
    assert!(String::from_utf8_lossy(&told.stdout).contains("on 1 guest slot,"), "{told:?}");
    // A guest computes at the lowest priority, and its host at that of the service.
    let on = system.agent().slots().await.unwrap();
    let process = |place: &str| on.iter().find(|on| on.slot == place).and_then(|on| on.pid).unwrap().to_string();
    assert_eq!((nice(&process("local/0-guest")), nice(&process("local/0"))), (19, nice("self")));

    let freed = system.agent().take_back(&["local/0".to_owned()], None).await.unwrap();
    assert_eq!((freed.len(), freed[0].slot.as_str()), (1, "local/0"));
    assert!(system.agent().slots().await.unwrap().iter().all(|on| on.pid.is_none()), "free is what nobody is on");
    until(&client, &guest, "no place", |j| j.slots.is_empty()).await;
    // The agent has it free before that is on record.
    let begun = Instant::now();
    while slot(&system).await["state"] != "unoffered" {
        assert!(begun.elapsed() < WAIT_MAX, "{}", slot(&system).await);
        tokio::time::sleep(LOOK_EVERY).await;
    }

    client.demand("local", &PublishDemand::needed(1)).await.unwrap();
    client.demand("local", &PublishDemand::needed(0)).await.unwrap();
    until(&client, &host, "the slot again", |j| !j.slots.is_empty()).await;
    assert_eq!(finished(&client, &guest).await, expected);
    assert_synthetic_suspended(&system, &host, &of_host).await;
}
