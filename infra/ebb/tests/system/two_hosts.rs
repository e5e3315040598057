//! Executors of two hosts, which are two addresses of this machine: those of each sum for each other before anything goes across, and the model is that of one process,
//! also after one of them was killed in the middle of its steps.

use crate::support::{System, agent_with, finished, model_job, plain_digest, steps, submit, until, until_slot};
use gateway_api::PublishDemand;
use gateway_client::Events;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;

/// Another address of the loopback than the one at which executors of the service's own agent listen.
const FAR: &str = "127.0.0.2";

/// The ranks of a host's two members: its executors have slots of one server.
fn ranks_of(members: &[Value], of: &[&Value]) -> BTreeSet<u64> {
    let is_of = |member: &&Value| of.contains(&&member["executor"]);
    let ranks = members.iter().filter(is_of).flat_map(|member| member["ranks"].as_array().into_iter().flatten());
    ranks.filter_map(Value::as_u64).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_two_hosts_become_the_model_of_one_process_also_when_one_is_killed() {
    let system = System::start(2).await;
    let client = system.client();
    let (_far, far) = agent_with(&system, 2, &[("EBB_AGENT_HOST", FAR)]).await;
    for slot in ["far/0", "far/1"] {
        until_slot(&system, slot).await;
    }
    system.ebb_json(&["fleet", "put", "distant", "--server", "far", "--slots", "2"]).await;
    client.demand("distant", &PublishDemand::needed(0)).await.unwrap();
    let mut document = model_job("cnn");
    // Long enough for some before and some after.
    document["steps"] = 6_000.into();
    let expected = plain_digest(&client, &system.service.ready().store_url, &document).await;
    let id = submit(&client, &document, "apart").await;
    let trains = |members: u16| {
        move |j: &gateway_api::Job| j.is_over() || j.progress.as_ref().is_some_and(|p| p.members == members)
    };
    let together = until(&client, &id, "two members on each host", trains(4)).await;
    assert!(!together.is_over(), "{together:?}");
    let events = client.all_events(&Events::of_job(&id)).await.unwrap();
    let proposed = events.iter().rev().find(|event| event["data"]["members"].as_array().is_some_and(|m| m.len() == 4));
    let members = proposed.unwrap()["data"]["members"].as_array().unwrap();
    let there: Vec<_> = far.slots().await.unwrap();
    let names: Vec<Value> = there.iter().filter_map(|slot| slot.executor.clone().map(Value::from)).collect();
    let ranks = ranks_of(members, &names.iter().collect::<Vec<_>>());
    assert!(ranks == [0, 1].into() || ranks == [2, 3].into(), "a node of the tree: {ranks:?}");
    let victim = there.iter().find_map(|slot| slot.pid).unwrap();
    kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
    let then = steps(&together);
    until(&client, &id, "steps without it", |j| j.is_over() || (steps(j) > then && trains(3)(j)) || trains(4)(j)).await;
    assert_eq!(finished(&client, &id).await, expected);
}
