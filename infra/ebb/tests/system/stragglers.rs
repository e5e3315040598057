//! An executor that is slower than the others: that is said, it hosts fewer ranks until it keeps up again, and no bit changes.

use crate::support::{
    LOOK_EVERY, System, WAIT_MAX, assert_synthetic_suspended, job, submit, synthetic_job, until_told,
};
use gateway_client::Events;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use workers_agent_client::AgentClient;

/// The executors of one slot, which stand still for some of the time, as if they shared it.
pub struct Slowed {
    agent: AgentClient,
    slot: &'static str,
    stops: JoinHandle<()>,
}

impl Slowed {
    /// Whoever is on this slot stands still for so long of each stretch of both.
    pub fn new(agent: AgentClient, slot: &'static str, still: Duration, moving: Duration) -> Self {
        let there = agent.clone();
        let stops = tokio::spawn(async move {
            loop {
                if let Some(pid) = on(&there, slot).await {
                    // One that has just ended needs no signal.
                    kill_process(pid, Signal::STOP).ok();
                    tokio::time::sleep(still).await;
                    kill_process(pid, Signal::CONT).ok();
                }
                tokio::time::sleep(moving).await;
            }
        });
        Self { agent, slot, stops }
    }

    /// They are as quick as they can be again.
    pub async fn let_go(self) {
        self.stops.abort();
        let _ = self.stops.await;
        if let Some(pid) = on(&self.agent, self.slot).await {
            kill_process(pid, Signal::CONT).ok();
        }
    }
}

async fn on(agent: &AgentClient, slot: &str) -> Option<Pid> {
    let slots = agent.slots().await.unwrap_or_default();
    slots.into_iter().find(|shown| shown.slot == slot)?.pid.and_then(Pid::from_raw)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_straggler_is_named_hosts_fewer_ranks_until_it_keeps_up_and_no_bit_changes() {
    const SLOT: &str = "local/1";
    let system = System::start_beside(2).await;
    let client = system.client();
    let document = synthetic_job([2, 8], 10);
    let id = submit(&client, &document, "straggles").await;
    let slowed = Slowed::new(system.agent(), SLOT, Duration::from_millis(60), Duration::from_millis(10));
    let told = &until_told(&system, &id, "generation.member_straggles.v1", 1).await[0];
    assert_eq!((&told["slot"], &told["cause"]), (&json!(SLOT), &json!("compute")), "{told}");
    let shown = &system.ebb_json(&["job", &id]).await["stragglers"][0];
    assert_eq!((&shown["slot"], &shown["cause"]), (&json!(SLOT), &json!("compute")), "{shown}");
    let name = told["executor"].as_str().unwrap();
    until_hosted(&system, &id, "fewer ranks there", |ranks| ranks.len() == 2 && ranks[name] < 4).await;

    slowed.let_go().await;
    let told = &until_told(&system, &id, "generation.member_keeps_up.v1", 1).await[0];
    assert_eq!(told["executor"], name, "{told}");
    until_hosted(&system, &id, "as many on both", |ranks| ranks.values().all(|count| *count == 4)).await;
    assert!(job(&client, &id).await.stragglers.is_empty());

    assert_synthetic_suspended(&system, &id, &document).await;
}

/// Waits until the members of the newest membership host ranks as wanted.
async fn until_hosted(system: &System, id: &str, what: &str, wanted: impl Fn(&BTreeMap<String, usize>) -> bool) {
    let begun = Instant::now();
    loop {
        let ranks = ranks(system, id).await;
        if wanted(&ranks) {
            return;
        }
        assert!(begun.elapsed() < WAIT_MAX, "waited for {what}, but they host {ranks:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The ranks of each member of the newest membership.
pub async fn ranks(system: &System, id: &str) -> BTreeMap<String, usize> {
    let events = system.client().all_events(&Events::of_job(id)).await.unwrap();
    let members = events.iter().rev().find_map(|event| event["data"]["members"].as_array());
    let hosted = |member: &Value| {
        let name = member["executor"].as_str().unwrap().to_owned();
        (name, member["ranks"].as_array().map_or(0, Vec::len))
    };
    members.map(|members| members.iter().map(hosted).collect()).unwrap_or_default()
}
