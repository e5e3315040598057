//! The product's promise: whatever happens to the fleet, the model is the one that a single thread computes, bit for bit.
//!
//! Seeded random schedules of demand, direct take-backs, kills and suspensions over the three models; one service per model.

use crate::support::{Random, System, finished, import_text, job, model_job, plain_digest, steps, submit, until};
use ebb::wire::Job;
use gateway_api::{ProblemKind, PublishDemand};
use gateway_client::{Answer, ClientError};
use loadtest_harness::service::kill_process;
use workers_agent_client::AgentClient;

/// Slots of each service.
const SLOTS: u16 = 4;
/// Schedules of each model; together at least 20.
const SCHEDULES: u64 = 7;
/// Of the large replica.
const LARGE_SCHEDULES: u64 = 20;
/// Disturbances of one schedule.
const EVENTS: u64 = 6;
/// Most steps between two disturbances.
const STEPS_BETWEEN_MAX: u64 = 25;
/// Fewest events that a job has to live through.
const DISTURBED_MIN: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn mlp_is_the_same_whatever_happens() {
    whatever_happens("mlp").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cnn_is_the_same_whatever_happens() {
    whatever_happens("cnn").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gpt_is_the_same_whatever_happens() {
    whatever_happens("gpt").await;
}

/// A replica of 200 MB, of which gradients are 67 MB: followed while a job grows, lent and sent within a step, saved in shards. Run it in a network namespace
/// whose loopback is shaped to see it over slow links: docs/measurements.md says how.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "some twenty minutes and 6 GB: cargo test … --test system -- --ignored large_replica"]
async fn a_large_replica_is_the_same_whatever_happens() {
    let system = System::start(SLOTS).await;
    let mut document = model_job("mlp");
    document["model"]["hidden"] = [4_050, 4_050].into();
    (document["batch_size"], document["steps"]) = (8.into(), 24.into());
    document["checkpoint"]["every_steps"] = 8.into();
    let expected = plain_digest(&system.client(), &system.service.ready().store_url, &document).await;
    for seed in large_seeds() {
        let (digest, story) = schedule(&system, &document, &format!("large-{seed}"), seed).await;
        println!("seed {seed}: {story:?}");
        assert_eq!(digest, expected, "seed {seed}: {story:?}");
    }
}

/// All of them, or those from `EBB_TEST_SEED` on, as many as `EBB_TEST_SEEDS` says: one that failed alone, or some on each of several machines.
fn large_seeds() -> std::ops::Range<u64> {
    let given = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let first = given("EBB_TEST_SEED").unwrap_or(0);
    first..first + given("EBB_TEST_SEEDS").unwrap_or(LARGE_SCHEDULES)
}

async fn whatever_happens(kind: &str) {
    let system = System::start(SLOTS).await;
    if kind == "gpt" {
        import_text(&system).await;
    }
    let mut document = model_job(kind);
    document["steps"] = if kind == "mlp" { 8_000 } else { 4_000 }.into();
    let expected = plain_digest(&system.client(), &system.service.ready().store_url, &document).await;
    for seed in 0..SCHEDULES {
        let (digest, story) = schedule(&system, &document, &format!("schedule-{seed}"), seed).await;
        assert_eq!(digest, expected, "{kind}, seed {seed}: {story:?}");
    }
}

/// Trains once through a schedule, as a job of a name; the model's digest and what happened, which is enough to say something.
pub async fn schedule(system: &System, document: &serde_json::Value, name: &str, seed: u64) -> (String, Vec<String>) {
    let (client, agent) = (system.client(), system.agent());
    let mut random = Random::new(seed);
    let mut story = Vec::new();
    lend_all(system).await;
    let id = submit(&client, document, name).await;
    // Of a short job too all of them fall into it: it goes on while they happen.
    let between_max = STEPS_BETWEEN_MAX.min(document["steps"].as_u64().unwrap() / (2 * EVENTS)).max(1);
    for _ in 0..EVENTS {
        let goal = steps(&job(&client, &id).await) + 1 + random.below(between_max);
        let now = until(&client, &id, "steps between two events", |j| j.is_over() || steps(j) >= goal).await;
        if now.is_over() {
            break;
        }
        if let Some(what) = disturb(system, &agent, &now, &mut random).await {
            story.push(format!("step {}: {what}", steps(&now)));
        }
    }
    // Nothing may be left that keeps the job from ending.
    lend_all(system).await;
    let digest = finished(&client, &id).await;
    assert!(story.len() >= DISTURBED_MIN, "{name} was over too soon; make it longer: {story:?}");
    (digest, story)
}

/// What was done to the job; none where there was nobody to do it to.
async fn disturb(system: &System, agent: &AgentClient, now: &Job, random: &mut Random) -> Option<String> {
    let what = match random.below(8) {
        0..=2 => {
            let needed = random.below(u64::from(SLOTS)) as u32;
            demand(system, needed).await;
            format!("demand {needed}")
        }
        3..=5 => {
            let victims: Vec<i32> = agent.slots().await.unwrap().iter().filter_map(|s| s.pid).collect();
            let count = 1 + random.below(2) as usize;
            let first = random.below(victims.len().max(1) as u64) as usize;
            let killed: Vec<i32> = victims.iter().cycle().skip(first).take(count.min(victims.len())).copied().collect();
            // A model in PyTorch has a process of its own, which may die alone.
            let alone: Vec<i32> =
                killed.iter().filter_map(|pid| python_of(*pid)).filter(|_| random.below(2) == 0).collect();
            let chosen = if alone.is_empty() { &killed } else { &alone };
            // One that ended by itself in between is no failure.
            let died = chosen.iter().filter(|pid| kill_process(**pid).is_ok()).count();
            let what = if alone.is_empty() { "kill" } else { "kill the Python of" };
            if died == 0 {
                return None;
            }
            format!("{what} {died} of {}", victims.len())
        }
        6 => {
            let slot = random.below(u64::from(SLOTS)).to_string();
            agent.take_back(std::slice::from_ref(&slot), None).await.unwrap();
            lend_all(system).await;
            format!("take back {slot}")
        }
        _ => {
            let client = system.client();
            unless_over(client.suspend(&now.id).await);
            let over = until(&client, &now.id, "the suspension", |j| j.is_over() || j.phase == "suspended").await;
            if over.phase == "suspended" {
                client.resume(&now.id).await.unwrap_or_else(|e| panic!("{e}"));
            }
            "suspend and resume".to_owned()
        }
    };
    Some(what)
}

/// The first process of an executor's group beside itself, if there is one: its Python is no child of it where it was forked from one that has
/// PyTorch imported.
fn python_of(executor: i32) -> Option<i32> {
    let all = std::fs::read_dir("/proc").ok()?.flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| *pid != executor && group_of(*pid) == Some(executor)).min()
}

/// The group of a process, by what the kernel says after its name, which may hold anything.
fn group_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(2)?.parse().ok()
}

/// A job goes on while it is looked at: one that finished in between is refused, and that is the right answer.
fn unless_over(answer: Result<Answer<Job>, ClientError>) {
    if let Err(error) = answer {
        let ClientError::Refused(problem) = &error else { panic!("{error}") };
        assert_eq!(problem.known_kind(), Some(ProblemKind::WrongPhase), "{error}");
    }
}

/// A need that falls to nothing offers every slot, also those that were taken back by name.
async fn lend_all(system: &System) {
    demand(system, 1).await;
    demand(system, 0).await;
}

pub async fn demand(system: &System, needed: u32) {
    system.client().demand("local", &PublishDemand::needed(needed)).await.unwrap_or_else(|e| panic!("{e}"));
}
