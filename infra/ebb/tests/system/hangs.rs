//! Processes that hang (SIGSTOP) instead of dying: nobody hears of their end, and their connections stay open. Their job goes on
//! without them all the same, loses no step, and is the same model. So it does where only the thread that trains hangs, and all else of its process lives.

use crate::gang::until_said;
use crate::support::{
    LOOK_EVERY, System, WAIT_MAX, agent_alone, assert_synthetic_suspended, finished, job, plain_digest, steps, submit,
    synthetic_job, until, until_slot,
};
use crate::torch;
use gateway_api::PublishDemand;
use gateway_client::{Client, Events};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;
use workers_agent_client::AgentClient;

/// How long a gradient takes: so short that who hangs does so anywhere in a step.
const GRADIENT_MS: u64 = 2;

/// A stopped process; it goes on when this is dropped, so that it can end with its agent.
pub struct Stopped(Pid);

impl Stopped {
    pub fn new(pid: i32) -> Self {
        let pid = Pid::from_raw(pid).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may be gone.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Processes of an agent's executors by the executor's name.
pub async fn executors(agent: &AgentClient) -> BTreeMap<String, i32> {
    agent.slots().await.unwrap().into_iter().filter_map(|slot| Some((slot.executor?, slot.pid?))).collect()
}

/// Who leads the newest generation.
pub async fn leader(client: &Client, job: &str) -> String {
    let events = client.all_events(&Events::of_job(job)).await.unwrap_or_else(|e| panic!("{e}"));
    let proposed = events.iter().rfind(|event| event["type"] == "dev.ebb.generation.proposed.v1").unwrap();
    proposed["data"]["leader"].as_str().unwrap().to_owned()
}

/// Waits until the agent has killed an executor.
async fn until_off_its_slot(agent: &AgentClient, name: &str) {
    let begun = Instant::now();
    while executors(agent).await.contains_key(name) {
        assert!(begun.elapsed() < WAIT_MAX, "{name} still has its slot");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_executor_is_killed_and_its_job_goes_on_without_a_lost_step() {
    let system = System::start_beside(4).await;
    let (client, agent, document) = (system.client(), system.agent(), synthetic_job([1, 4], GRADIENT_MS));
    let id = submit(&client, &document, "hangs").await;
    for leads in [false, true] {
        until(&client, &id, "four members that step", |j| j.progress.is_some_and(|p| p.members == 4)).await;
        let leader = leader(&client, &id).await;
        let running = executors(&agent).await;
        let (name, pid) = running.iter().find(|(name, _)| (**name == leader) == leads).unwrap();
        let _stopped = Stopped::new(*pid);
        until_off_its_slot(&agent, name).await;
        let then = steps(&job(&client, &id).await);
        until(&client, &id, "the others to go on", |j| steps(j) > then + 20).await;
    }
    assert_eq!(job(&client, &id).await.restarts, 0, "it never went back to a checkpoint");
    assert_synthetic_suspended(&system, &id, &document).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_falls_silent_with_everything_on_it_is_given_up_and_comes_back() {
    let system = System::start_beside(2).await;
    let (client, document) = (system.client(), synthetic_job([1, 4], GRADIENT_MS));
    let (far, agent) = agent_alone(&system, 2).await;
    until_slot(&system, "far/1").await;
    system.ebb_json(&["fleet", "put", "distant", "--server", "far", "--slots", "2"]).await;
    client.demand("distant", &PublishDemand::needed(0)).await.unwrap();
    let id = submit(&client, &document, "silent").await;
    let before = until(&client, &id, "four members", |j| j.progress.is_some_and(|p| p.members == 4)).await;

    // The agent first: it would kill what it sees hang.
    let running = executors(&agent).await;
    let mut stopped = vec![Stopped::new(i32::try_from(far.id().unwrap()).unwrap())];
    stopped.extend(running.into_values().map(Stopped::new));
    until(&client, &id, "the two others to go on", |j| {
        j.progress.zip(before.progress).is_some_and(|(now, then)| now.members == 2 && now.step > then.step + 20)
    })
    .await;
    drop(stopped);
    until(&client, &id, "the server to be back", |j| j.progress.is_some_and(|p| p.members == 4)).await;
    assert_eq!(job(&client, &id).await.restarts, 0, "it never went back to a checkpoint");
    assert_synthetic_suspended(&system, &id, &document).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gradient_that_never_ends_is_named_and_the_job_trains_on_without_it() {
    let shared = tempfile::tempdir().unwrap();
    let opened = shared.path().to_str().unwrap();
    let system = System::start_with(torch::SLOTS, &["--python", &torch::python(), "--readable", opened]).await;
    let client = system.client();
    let plain = torch::document(&system, torch::TRAIN, 60).await;
    let expected = plain_digest(&client, &system.service.ready().store_url, &plain).await;
    // Whoever has the lock hangs, and holds Python's own lock meanwhile, so that nothing written in Python could end it. Only once the model has
    // been trained a little: what checks a program before its first step computes gradients of it too, and what that prints nobody reads.
    let lock = shared.path().join("lock");
    std::fs::write(&lock, "").unwrap();
    let hang = format!(
        "images, labels = batch\n        import fcntl, os\n        try: int(model[1].num_batches_tracked) >= 8 and fcntl.flock(os.open({lock:?}, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB) is None and hang()\n        except OSError: pass"
    );
    let hangs = "import torch, ebb\n\ndef hang():\n    import ctypes\n    print('it hangs', flush=True)\n    ctypes.PyDLL(None).sleep(100_000)\n";
    let code = torch::TRAIN.replacen("import torch, ebb\n", hangs, 1).replace("images, labels = batch", &hang);
    let document = torch::document(&system, &code, 60).await;
    let id = submit(&client, &document, "hangs").await;
    until_said(&system, &id, "it hangs").await;
    std::fs::remove_file(&lock).unwrap();
    assert_eq!(finished(&client, &id).await, expected);
    let events = client.all_events(&Events::of_job(&id)).await.unwrap_or_else(|e| panic!("{e}"));
    let stalls: Vec<&Value> = events.iter().filter(|event| event["type"] == "dev.ebb.job.stalled.v1").collect();
    assert_eq!(stalls.len(), 1, "{stalls:?}");
    let (stall, blamed) = (&stalls[0]["data"], &stalls[0]["data"]["blamed"]);
    assert_eq!(
        (&stall["cause"], blamed.as_array().map(Vec::len)),
        (&json!("unit"), Some(1)),
        "who waits is not blamed: {stall}"
    );
}
