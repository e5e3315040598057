//! A broker of three is lost, and at the same moment a fleet wants slots back: how long until they are free, beside what a bare
//! producer and consumer need to go on in the same trial. Again and again while a job trains.

use crate::Effort;
use crate::goal;
use crate::row::{Row, Times};
use gateway_api::PublishDemand;
use gateway_client::{Body, Client, Events};
use loadtest_harness::HarnessError;
use loadtest_harness::LOCAL_FLEET;
use loadtest_harness::brokers::{Bare, Brokers, Loss};
use loadtest_harness::release::occupied;
use loadtest_harness::service::{Service, ServiceOptions};
use loadtest_harness::watched_job::WatchedJob;
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};
use workers_agent_client::AgentClient;

/// Slots of the service, and logical workers of the job.
const SLOTS: u16 = 4;
/// Slots that a demand takes away.
const NEEDED: u32 = 2;
/// Steps between two losses.
const STEPS_BETWEEN: u64 = 5;
/// Longest trial; one that takes longer counts as this long.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(120);
/// How often the agent is asked: seconds are measured.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Streams whose leader is lost, in turns.
const LED: [&str; 4] = ["demand", "events", "reports", "commands"];

/// Adds the rows that are wanted by name, each as soon as it is whole.
pub async fn rows(
    folder: &Path,
    brokers: &Path,
    effort: Effort,
    wanted: &impl Fn(&[&str]) -> bool,
    rows: &mut Vec<Row>,
) -> Result<(), HarnessError> {
    let brokers = Brokers::of_folder(brokers)?;
    brokers.until_whole().await?;
    let prefix = folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let data = folder.join("broker-service");
    let log = brokers.log_url(&prefix);
    let service = Service::start(ServiceOptions::new(&data, SLOTS)?.with("--log", Some(&log))).await?;
    let bare = Bare::start(&brokers, &format!("{prefix}.bare")).await?;
    let (client, agent) = (service.client()?, service.agent()?);
    let document = json!({
        "name": "bench",
        "model": {"kind": "cnn", "channels": [16, 32], "blocks": 1, "groups": 4},
        "dataset": "digits",
        "workers": {"min": 1, "max": SLOTS},
        "batch_size": 16,
        "steps": 10_000_000,
        "checkpoint": {"every_steps": 1_000_000_000u64},
    });
    let job = client.submit(&Body::json(&document), "bench-brokers").await?;
    let mut watched = WatchedJob::follow(&client, &job.id, |_| ());
    watched.until_members(SLOTS).await?;
    let trials = Trials { brokers: &brokers, bare: &bare, client: &client, agent: &agent, prefix: &prefix };
    for (loss, name) in
        [(Loss::Killed, "demand to slot free, broker killed"), (Loss::Stopped, "demand to slot free, broker stopped")]
    {
        if !wanted(&[name]) {
            continue;
        }
        let mut seen = Vec::new();
        for round in 0..effort.pick(4, 20) {
            brokers.until_whole().await?;
            watched.until_members(SLOTS).await?;
            watched.until_steps(STEPS_BETWEEN).await?;
            let trial = trials.run(loss, LED[round % LED.len()]).await?;
            eprintln!("measuring: {name}, {}: {trial:?}", LED[round % LED.len()]);
            seen.push(trial);
        }
        let given_up = trials.agents_given_up().await?;
        rows.push(row(name, &seen, given_up));
    }
    drop(watched);
    client.cancel(&job.id).await?;
    service.stop().await.map(drop)
}

fn row(name: &'static str, trials: &[Trial], given_up: usize) -> Row {
    let times = |of: fn(&Trial) -> f64| Times::of_ms(trials.iter().map(of).collect());
    let (free, bare) = (times(|t| t.free_ms), times(|t| t.bare_ms));
    let beyond = times(|t| t.free_ms - t.bare_ms);
    let note = format!(
        "{}; bare {}; beyond that of the same trial, which is judged, {}; accepted {}; agents given up so far: {given_up}",
        free.spread(),
        bare.spread(),
        beyond.spread(),
        times(|t| t.accepted_ms).spread()
    );
    let baseline_name = "ms for a bare producer and consumer to go on";
    // What is beyond each trial's own, on top of the middle one that stands beside the goal.
    let of_bare = Times::of_ms(beyond.iter().map(|ms| ms + bare.median()).collect());
    let goal = Some(goal::LIKE_BARE.of_each(&of_bare, bare.median(), None));
    Row { name, value: free.median(), unit: "ms", baseline_name, baseline: bare.median(), goal, note }
}

/// One loss, in milliseconds from it.
#[derive(Debug, Clone, Copy)]
struct Trial {
    accepted_ms: f64,
    free_ms: f64,
    bare_ms: f64,
}

struct Trials<'a> {
    brokers: &'a Brokers,
    bare: &'a Bare,
    client: &'a Client,
    agent: &'a AgentClient,
    prefix: &'a str,
}

impl Trials<'_> {
    async fn run(&self, loss: Loss, led: &str) -> Result<Trial, HarnessError> {
        let lost = self.brokers.leader(&format!("{}.{led}", self.prefix), 0).await?;
        let before = occupied(&self.agent.slots().await?);
        let since = Instant::now();
        self.brokers.lose(lost, loss)?;
        let measured = tokio::join!(
            self.until_accepted(NEEDED, since),
            self.until_free(&before, since),
            self.bare.gap(self.brokers, lost, since),
        );
        self.brokers.heal(lost, loss).await?;
        let (accepted_ms, free_ms, bare) = (measured.0?, measured.1?, measured.2?);
        self.until_accepted(0, Instant::now()).await?;
        Ok(Trial { accepted_ms, free_ms, bare_ms: bare.as_secs_f64() * 1e3 })
    }

    /// Sends a need until it is accepted, as the answers say how.
    async fn until_accepted(&self, needed: u32, since: Instant) -> Result<f64, HarnessError> {
        loop {
            match self.client.demand(LOCAL_FLEET, &PublishDemand::needed(needed)).await {
                Ok(_) => return Ok(since.elapsed().as_secs_f64() * 1e3),
                Err(failure) if since.elapsed() > TRIAL_TIMEOUT => return Err(failure.into()),
                Err(failure) => eprintln!("measuring: a demand is sent again: {failure}"),
            }
        }
    }

    async fn until_free(
        &self,
        before: &std::collections::BTreeSet<String>,
        since: Instant,
    ) -> Result<f64, HarnessError> {
        loop {
            let now = occupied(&self.agent.slots().await?);
            if before.difference(&now).count() >= NEEDED as usize || since.elapsed() > TRIAL_TIMEOUT {
                return Ok(since.elapsed().as_secs_f64() * 1e3);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn agents_given_up(&self) -> Result<usize, HarnessError> {
        let events = self.client.all_events(&Events::all()).await?;
        Ok(events.iter().filter(|event| event["type"] == "dev.ebb.agent.gone.v1").count())
    }
}
