//! A broker of three is lost, killed or stopped, while a job trains and people ask for things: nothing acknowledged is lost, a
//! demand is accepted and its slots come free, training goes on, a fleet takes slots back directly all the while, and nobody who is healthy is given up.
//!
//! Needs three brokers, which hold 1.2 GB; so these are ignored unless asked for, as `infra/run test` does. How long it takes is
//! measured by `ebb bench --brokers`.

use crate::support::{LOOK_EVERY, System, WAIT_MAX, job, model_job, steps, submit, until};
use ebb::wire::Job;
use gateway_api::{DeclareFleet, PublishDemand, ServerSlots, SlotsOfServer};
use gateway_client::{Client, Events};
use loadtest_harness::brokers::{Brokers, Loss};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};
use workers_agent_client::AgentClient;

fn brokers() -> Brokers {
    let folder = std::env::var("EBB_TEST_KAFKA3_DIR").unwrap_or_else(|_| {
        panic!("EBB_TEST_KAFKA3_DIR is not set: start three brokers with `infra/servers/kafka3.sh start DIR`, which prints it")
    });
    Brokers::of_folder(Path::new(&folder)).unwrap_or_else(|e| panic!("{e}"))
}

async fn executors(agent: &AgentClient) -> BTreeMap<String, i32> {
    agent.slots().await.unwrap().into_iter().filter_map(|slot| Some((slot.slot, slot.pid?))).collect()
}

/// Sends a need again until it is accepted, as the answer to an unknown outcome says.
async fn demand(client: &Client, needed: u32) {
    let begun = Instant::now();
    while let Err(failure) = client.demand("local", &PublishDemand::needed(needed)).await {
        assert!(begun.elapsed() < WAIT_MAX, "the demand was never accepted: {failure}");
    }
}

/// Says that nothing is needed until the job has all slots: again and again as a fleet does, because what its agent was asked for during an outage may come
/// to stand in the log behind the first of these signals.
async fn lend_all(client: &Client, id: &str) -> Job {
    let begun = Instant::now();
    loop {
        demand(client, 0).await;
        let now = job(client, id).await;
        if now.progress.is_some_and(|progress| progress.members == 4) {
            return now;
        }
        assert!(begun.elapsed() < WAIT_MAX, "the job does not get all slots: {now:?}");
        tokio::time::sleep(TAKE_EVERY).await;
    }
}

/// Declares fleets of a server that does not exist, one after the other, until told to end: those that were acknowledged.
async fn declare(client: &Client, enough: impl Fn(usize) -> bool) -> BTreeSet<String> {
    let mut acknowledged = BTreeSet::new();
    for number in 0.. {
        let name = format!("spare-{number}");
        let servers = vec![ServerSlots { server: "nowhere".to_owned(), slots: SlotsOfServer::Numbers(vec![number]) }];
        let fleet = DeclareFleet { servers, offers: None, reclaim_deadline_ms: None };
        if client.declare_fleet(&name, &fleet).await.is_ok() {
            acknowledged.insert(name);
        }
        if enough(acknowledged.len()) {
            return acknowledged;
        }
    }
    acknowledged
}

/// The slot that is taken back directly, the time its executor gets, and what its agent may take beyond that.
const TAKEN: &str = "local/3";
const TAKE_BACK_MS: u64 = 3_000;
const TAKE_BACK_SLACK_MS: u64 = 2_000;
/// Between two take-backs: each is a report, which waits for the log.
const TAKE_EVERY: Duration = Duration::from_millis(500);

/// Takes a slot back at its agent, first from an executor that trains and then again and again, until told to end. How often.
async fn take_back_all_the_while(agent: &AgentClient, enough: impl Fn() -> bool) -> usize {
    for count in 1.. {
        let freed = agent.take_back(&[TAKEN.to_owned()], Some(TAKE_BACK_MS)).await.unwrap_or_else(|e| panic!("{e}"));
        let [freed] = freed.as_slice() else { panic!("{freed:?}") };
        assert!(freed.slot == TAKEN && freed.elapsed_ms <= TAKE_BACK_MS + TAKE_BACK_SLACK_MS, "{freed:?}");
        if enough() {
            return count;
        }
        tokio::time::sleep(TAKE_EVERY).await;
    }
    unreachable!("it returns")
}

async fn a_broker_is_lost(loss: Loss) {
    let brokers = brokers();
    // A broker that a test before this one lost may not be back: new topics want all three.
    brokers.until_whole().await.unwrap();
    let prefix = format!("test-{:x}", getrandom::u64().unwrap());
    let system = System::start_on(4, Some(&brokers.log_url(&prefix))).await;
    let (client, agent) = (system.client(), system.agent());
    let mut document = model_job("cnn");
    document["steps"] = 1_000_000.into();
    let id = submit(&client, &document, "brokers").await;
    for stream in ["demand", "events", "reports"] {
        brokers.until_whole().await.unwrap();
        let before = lend_all(&client, &id).await;
        let running = executors(&agent).await;
        let lost = brokers.leader(&format!("{prefix}.{stream}"), 0).await.unwrap();
        brokers.lose(lost, loss).unwrap();
        let freed = std::cell::Cell::new(false);
        let free = async {
            demand(&client, 2).await;
            let begun = Instant::now();
            while executors(&agent).await.len() > 2 {
                assert!(begun.elapsed() < WAIT_MAX, "no slots come free with the leader of {stream} {loss:?}");
                tokio::time::sleep(LOOK_EVERY).await;
            }
            freed.set(true);
        };
        let declaring = declare(&client, |count| freed.get() && count > 0);
        let (acknowledged, (), taken) = tokio::join!(declaring, free, take_back_all_the_while(&agent, || freed.get()));
        println!("the leader of {stream} {loss:?}: {TAKEN} was taken back {taken} times meanwhile");
        let left = executors(&agent).await;
        assert!(left.iter().all(|(slot, pid)| running.get(slot) == Some(pid)), "of {running:?} are left {left:?}");
        until(&client, &id, "two members that step", |j| steps(j) > steps(&before) + 20).await;
        brokers.heal(lost, loss).await.unwrap();

        let fleets = client.fleets(None).await.unwrap();
        let known: BTreeSet<&str> = fleets.iter().map(|fleet| fleet.name.as_str()).collect();
        let missing: Vec<&String> = acknowledged.iter().filter(|name| !known.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "acknowledged and lost: {missing:?}");
    }
    assert_eq!(job(&client, &id).await.restarts, 0, "it never went back to a checkpoint");
    let events = client.all_events(&Events::all()).await.unwrap();
    assert!(events.iter().all(|event| event["type"] != "dev.ebb.agent.gone.v1"), "a healthy agent was given up");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs three brokers: infra/servers/kafka3.sh start DIR"]
async fn nothing_is_lost_and_slots_come_free_when_a_broker_is_killed() {
    a_broker_is_lost(Loss::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs three brokers: infra/servers/kafka3.sh start DIR"]
async fn nothing_is_lost_and_slots_come_free_when_a_broker_is_stopped() {
    a_broker_is_lost(Loss::Stopped).await;
}
