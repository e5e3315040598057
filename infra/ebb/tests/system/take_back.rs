//! A fleet gets its slot back with gateway, controller and log dead: the agent alone does it, and training loses nothing.

use crate::support::{EBB, System, finished, job, model_job, plain_digest, submit, text, until};
use ebb::take_back::AgentClient;
use serde_json::{Value, json};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// An agent in a process of its own, connected to a service.
async fn agent_alone(system: &System, slots: u16) -> (Child, AgentClient) {
    let ready = system.service.ready();
    let data = system.path("far");
    let mut child = Command::new(EBB)
        .args([
            "agent",
            "--output",
            "json",
            "--server",
            "far",
            "--slots",
            &slots.to_string(),
            "--controller",
            &ready.controller,
            "--store",
            &ready.store_url,
        ])
        .args(["--data", &text(&data), "--token-file", &text(&ready.agent_token_file)])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["server"], "far");
    let client = AgentClient::of_directory(&data).unwrap();
    (child, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_come_back_with_everything_else_dead() {
    let system = System::start(1).await;
    let client = system.client();
    let (_far, agent) = agent_alone(&system, 4).await;
    // The service's own slot is not lent; the four far away are.
    client.post("/v1/fleets/local/demand", &json!({"needed": 1})).await.unwrap();
    until_slot(&system, "far/3").await;
    system.ebb_json(&["fleet", "put", "distant", "--server", "far", "--slots", "4"]).await;
    client.post("/v1/fleets/distant/demand", &json!({"needed": 0})).await.unwrap();
    let document = model_job("cnn");
    let expected = plain_digest(&client, &system.service.ready().store_url, &document).await;
    let id = submit(&client, &document, "far").await;
    until(&client, &id, "four executors far away", |j| j.progress.is_some_and(|p| p.members == 4 && p.step > 10)).await;

    let dead = system.kill().await;
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

    let system = dead.start().await;
    let client = system.client();
    assert_eq!(finished(&client, &id).await, expected);
    assert_eq!(job(&client, &id).await.restarts, 0, "it never went back to a checkpoint");
}

/// Waits until the service knows a slot.
async fn until_slot(system: &System, slot: &str) {
    let begun = std::time::Instant::now();
    loop {
        let slots = system.ebb_json(&["slots"]).await;
        if slots["slots"].as_array().unwrap().iter().any(|s| s["slot"] == slot && !s["class"].is_null()) {
            return;
        }
        assert!(begun.elapsed() < crate::support::PATIENCE, "{slot} is unknown: {slots}");
    }
}
