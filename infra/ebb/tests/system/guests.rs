//! Two jobs on one slot: who has no quota trains beside who has, both leave when the fleet wants the slot, and neither model has another bit for it.

use crate::support::{LOOK_EVERY, System, WAIT_MAX, finished, job, model_job, plain_digest, steps, submit, until};
use gateway_api::PublishDemand;
use serde_json::{Value, json};
use std::time::Instant;

/// What is on the service's only slot.
async fn slot(system: &System) -> Value {
    system.ebb_json(&["slots"]).await["slots"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_trains_beside_its_host_and_leaves_with_it_and_no_bit_of_either_changes() {
    let system = System::start_with(1, &["--policy", "antman", "--guests"]).await;
    let client = system.client();
    system.ebb_json(&["tenant", "set", "research", "--quota", "1"]).await;
    let (mut host, mut guest) = (model_job("mlp"), model_job("cnn"));
    // Each is still there when the other has begun, and when their slot was taken back.
    // The guest begins when it is known what the host uses, which takes ten seconds; and it uses one processor of those that the slot has.
    host["model"]["hidden"] = json!([256, 256]);
    (host["tenant"], host["steps"], host["workers"]) = (json!("research"), json!(80_000), json!({"min": 1, "max": 1}));
    host["batch_size"] = json!(64);
    host["checkpoint"] = json!({"every_steps": 20_000, "keep": 2});
    (guest["tenant"], guest["steps"]) = (json!("labs"), json!(3_000));
    let store = &system.service.ready().store_url;
    let expected = (plain_digest(&client, store, &host).await, plain_digest(&client, store, &guest).await);

    let host = submit(&client, &host, "host").await;
    until(&client, &host, "the slot", |j| steps(j) > 10).await;
    let guest = submit(&client, &guest, "guest").await;
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
    // A guest computes at the lowest priority, and its host does not.
    let on = system.agent().slots().await.unwrap();
    let nice = |place: &str| {
        let pid = on.iter().find(|on| on.slot == place).and_then(|on| on.pid).unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<String> = stat.rsplit(") ").next().unwrap().split(' ').map(str::to_owned).collect();
        // The nineteenth of all, after the two that the name ends.
        fields[16].parse::<i32>().unwrap()
    };
    assert_eq!((nice("local/0-guest"), nice("local/0")), (19, 0));

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
    assert_eq!(finished(&client, &guest).await, expected.1);
    assert_eq!(finished(&client, &host).await, expected.0);
}
