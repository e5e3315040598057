//! `kill -9` of the whole service at seeded random moments under load: nothing acknowledged is lost, and the job that ran is
//! still the same model.

use crate::support::{
    LOOK_EVERY, Random, System, WAIT_MAX, finished, job, model_job, plain_digest, steps, submit, until,
};
use gateway_api::PublishDemand;
use gateway_client::{Body, Client, Events, WantedJobs};
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
        checkpoint = checkpoint.max(last_checkpoint(&client, &trained).await);

        system = system.crash().await;
        for task in load {
            task.await.unwrap();
        }
        let client = system.client();
        let jobs = client.jobs(&WantedJobs::default()).await.unwrap();
        let known: BTreeSet<String> = jobs.iter().map(|job| job.id.clone()).collect();
        let lost: Vec<String> = acknowledged.lock().unwrap().jobs.difference(&known).cloned().collect();
        assert!(lost.is_empty(), "crash {crash}: jobs lost: {lost:?}");
        let now: BTreeSet<String> = event_ids(&client).await;
        assert!(seen.is_subset(&now), "crash {crash}: events lost: {:?}", seen.difference(&now).collect::<Vec<_>>());
        let still = last_checkpoint(&client, &trained).await;
        assert!(still >= checkpoint, "crash {crash}: checkpoint {checkpoint} is gone, the last is {still}");
        let fleet = client.fleet("local").await.unwrap();
        assert!(
            fleet.sequence.unwrap_or(0) >= acknowledged.lock().unwrap().demand,
            "crash {crash}: a demand signal is lost: {fleet:?}"
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

/// The step of the newest checkpoint that counts.
async fn last_checkpoint(client: &Client, id: &str) -> u64 {
    client.job(id).await.unwrap().last_checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.step)
}

async fn event_ids(client: &Client) -> BTreeSet<String> {
    let all = client.all_events(&Events::all()).await.unwrap_or_else(|e| panic!("{e}"));
    all.iter().map(|e| e["id"].as_str().unwrap().to_owned()).collect()
}

/// Submits suspended jobs and publishes demand until the service is gone.
async fn load(client: Client, name: String, acknowledged: Arc<Mutex<Acknowledged>>) {
    let mut document = model_job("mlp");
    document["suspend"] = true.into();
    for number in 0u64.. {
        let key = format!("{name}-{number}");
        match client.submit_once(&Body::json(&document), Some(&key)).await {
            Ok(job) => acknowledged.lock().unwrap().jobs.insert(job.into_typed().id),
            Err(_) => return,
        };
        match client.demand("local", &PublishDemand::needed(u32::from(number % 2 == 1))).await {
            Ok(taken) => {
                let mut acknowledged = acknowledged.lock().unwrap();
                acknowledged.demand = acknowledged.demand.max(taken.sequence);
            }
            Err(_) => return,
        }
    }
}
