//! `kill -9` of the whole service at seeded random moments under load: nothing acknowledged is lost, and the job that ran is
//! still the same model.

use crate::support::{
    LOOK_EVERY, Random, System, WAIT_MAX, finished, job, model_job, plain_digest, steps, submit, until,
};
use gateway_client::{Body, Client};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// Crashes in a row.
const CRASHES: u64 = 5;
/// Clients that submit at the same time.
const SUBMITTERS: usize = 3;

/// What the service said is durable.
#[derive(Default)]
struct Acknowledged {
    jobs: BTreeSet<String>,
    demand: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_and_the_model_is_the_same() {
    let mut system = System::start(2).await;
    let document = model_job("cnn");
    let expected = plain_digest(&system.client(), &system.service.ready().store_url, &document).await;
    let trained = submit(&system.client(), &document, "trained").await;
    let acknowledged = Arc::new(Mutex::new(Acknowledged::default()));
    let mut random = Random::new(42);
    let mut checkpoint = 0;
    for crash in 0..CRASHES {
        let client = system.client();
        let load: Vec<_> = (0..SUBMITTERS)
            .map(|n| tokio::spawn(load(client.clone(), format!("{crash}-{n}"), acknowledged.clone())))
            .collect();
        // The moment: after a random amount of training, or of acknowledged commands, whichever comes first.
        let goal_steps = steps(&job(&client, &trained).await) + random.below(90);
        let goal_jobs = acknowledged.lock().unwrap().jobs.len() as u64 + random.below(60);
        until(&client, &trained, "the moment of the crash", |j| {
            j.is_over() || steps(j) > goal_steps || acknowledged.lock().unwrap().jobs.len() as u64 > goal_jobs
        })
        .await;
        let seen: BTreeSet<String> = event_ids(&client).await;
        let record: Value = client.get(&format!("/v1/jobs/{trained}")).await.unwrap();
        checkpoint = checkpoint.max(record["last_checkpoint"]["step"].as_u64().unwrap_or(0));

        system = system.crash().await;
        for task in load {
            task.await.unwrap();
        }
        let client = system.client();
        let known: BTreeSet<String> = client
            .list("/v1/jobs", "jobs")
            .await
            .unwrap()
            .iter()
            .map(|j| j["id"].as_str().unwrap().to_owned())
            .collect();
        let lost: Vec<String> = acknowledged.lock().unwrap().jobs.difference(&known).cloned().collect();
        assert!(lost.is_empty(), "crash {crash}: jobs lost: {lost:?}");
        let now: BTreeSet<String> = event_ids(&client).await;
        assert!(seen.is_subset(&now), "crash {crash}: events lost: {:?}", seen.difference(&now).collect::<Vec<_>>());
        let record: Value = client.get(&format!("/v1/jobs/{trained}")).await.unwrap();
        let still = record["last_checkpoint"]["step"].as_u64().unwrap_or(0);
        assert!(still >= checkpoint, "crash {crash}: checkpoint {checkpoint} is gone, the last is {still}");
        let fleet: Value = client.get("/v1/fleets/local").await.unwrap();
        assert!(
            fleet["sequence"].as_u64().unwrap_or(0) >= acknowledged.lock().unwrap().demand,
            "crash {crash}: a demand signal is lost: {fleet}"
        );
    }
    assert_eq!(finished(&system.client(), &trained).await, expected);
}

/// Their log has lost its reader with the agent, which must not keep them from ending.
#[tokio::test(flavor = "multi_thread")]
async fn executors_end_with_a_killed_service() {
    let system = System::start(2).await;
    let client = system.client();
    let mut document = model_job("mlp");
    document["steps"] = 1_000_000.into();
    let id = submit(&client, &document, "orphans").await;
    until(&client, &id, "two executors", |j| j.progress.is_some_and(|p| p.members == 2)).await;
    let executors: Vec<i32> = system.agent().slots().await.unwrap().iter().filter_map(|s| s.pid).collect();
    assert_eq!(executors.len(), 2);
    let _dead = system.kill().await;
    for pid in executors {
        until_gone(pid).await;
    }
}

async fn until_gone(pid: i32) {
    let begun = std::time::Instant::now();
    while std::path::Path::new(&format!("/proc/{pid}")).exists() {
        assert!(begun.elapsed() < WAIT_MAX, "process {pid} outlived its agent");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn event_ids(client: &Client) -> BTreeSet<String> {
    let all = client.all_events("/v1/events").await.unwrap_or_else(|e| panic!("{e}"));
    all.iter().map(|e| e["id"].as_str().unwrap().to_owned()).collect()
}

/// Submits suspended jobs and publishes demand until the service is gone.
async fn load(client: Client, name: String, acknowledged: Arc<Mutex<Acknowledged>>) {
    let mut document = model_job("mlp");
    document["suspend"] = true.into();
    for number in 0u64.. {
        let key = format!("{name}-{number}");
        match client.send(Method::POST, "/v1/jobs", Some(Body::json(&document)), &[("idempotency-key", &key)]).await {
            Ok(answer) => acknowledged.lock().unwrap().jobs.insert(answer["id"].as_str().unwrap().to_owned()),
            Err(_) => return,
        };
        match client.post("/v1/fleets/local/demand", &json!({"needed": number % 2})).await {
            Ok(answer) => {
                let mut acknowledged = acknowledged.lock().unwrap();
                acknowledged.demand = acknowledged.demand.max(answer["sequence"].as_u64().unwrap());
            }
            Err(_) => return,
        }
    }
}
