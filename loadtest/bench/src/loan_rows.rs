//! Loans: from a demand (or a direct take-back) to free slots, how long the others stand still, and how soon they train again
//! after a kill, again and again while a job trains. Compared with the undisturbed step of the same job, because a slot is given back at a boundary between steps.

use crate::Effort;
use crate::row::{Row, Times};
use crate::spans::Receiver;
use crate::subject::Subject;
use gateway_api::{NameSlots, PublishDemand};
use gateway_client::Client;
use loadtest_harness::HarnessError;
use loadtest_harness::LOCAL_FLEET;
use loadtest_harness::release::{occupied, until_free};
use loadtest_harness::service::{Service, fresh_topics, hang_process, kill_process};
use loadtest_harness::watched_job::WatchedJob;
use std::path::Path;
use std::time::{Duration, Instant};
use workers_agent_client::AgentClient;

/// Slots of the service, and logical workers of the job.
pub const SLOTS: u16 = 4;
/// Slots that a demand takes away.
const NEEDED: u32 = 2;
/// Steps between two disturbances.
const STEPS_BETWEEN: u64 = 5;
/// Kills of one job: the controller waits longer and longer before it replaces what keeps failing.
const KILLS: usize = 3;
/// Executors of one job that are made to hang; each is noticed after seconds only.
const HANGS: usize = 2;
/// How often an undisturbed step is read.
const STEP_LOOK_EVERY: Duration = Duration::from_millis(20);

/// All rows about loans, of a job with [`SLOTS`] logical workers.
pub async fn rows(
    folder: &Path,
    subject: &Subject,
    log: Option<&str>,
    effort: Effort,
) -> Result<Vec<Row>, HarnessError> {
    let data = folder.join("loan-service");
    let own = folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let log = log.map(|url| fresh_topics(url, &own));
    let options = subject.service(&data, SLOTS)?.with("--log", log.as_deref());
    let service = Service::start(options).await?;
    let (client, agent) = (service.client()?, service.agent()?);
    let job = subject.submit(&client, "bench-loans").await?;
    let mut watched = WatchedJob::follow(&client, &job.id, |_| ());
    watched.until_members(SLOTS).await?;
    watched.until_steps(4 * STEPS_BETWEEN).await?;
    let step = undisturbed(&client, &job.id, effort.pick(60, 200)).await?;
    let mut cycles = Cycles { client: &client, agent: &agent, rounds: effort.pick(4, 20), grown_ms: Vec::new() };
    let by_demand = cycles.by_demand(&mut watched).await?;
    let by_take_back = cycles.by_take_back(&mut watched).await?;
    let by_hang = cycles.by_loss(&mut watched, HANGS, hang_process).await?;
    let by_kill = cycles.by_loss(&mut watched, KILLS, kill_process).await?;
    let (shrinking, growing) = (Times::of_ms(watched.pauses_in_ms()), Times::of_ms(watched.pauses_out_ms()));
    drop(watched);
    client.cancel(&job.id).await?;
    service.stop().await?;
    let against_step = |name, times: &Times, what: &str| Row {
        name,
        value: times.at(0.99),
        unit: "ms p99",
        baseline_name: "ms an undisturbed step",
        baseline: step.median(),
        note: format!("{what}{}", times.spread()),
    };
    let spread = format!("step {}; ", step.spread());
    Ok(vec![
        Row {
            note: format!("{spread}{}", by_demand.spread()),
            ..against_step("demand accepted to slot free", &by_demand, "")
        },
        against_step("take-back to slot free", &by_take_back, ""),
        against_step("slots lent to steps with them", &Times::of_ms(cycles.grown_ms), "two slots; "),
        against_step("pause at scale in", &shrinking, ""),
        against_step("pause at scale out", &growing, ""),
        against_step("kill -9 to training again", &by_kill, ""),
        against_step("hung executor to training again", &by_hang, "SIGSTOP; "),
    ])
}

/// Where the time of a reclaim goes: the same again with a service that exports its spans, since that costs a little too.
pub async fn hops(
    folder: &Path,
    subject: &Subject,
    log: Option<&str>,
    effort: Effort,
) -> Result<Vec<Row>, HarnessError> {
    let receiver = Receiver::start().await?;
    let own = folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let log = log.map(|url| fresh_topics(url, &format!("{own}-spans")));
    let mut options = subject.service(&folder.join("span-service"), SLOTS)?.with("--log", log.as_deref());
    options.environment = receiver.environment();
    let service = Service::start(options).await?;
    let (client, agent) = (service.client()?, service.agent()?);
    let job = subject.submit(&client, "bench-spans").await?;
    let mut watched = WatchedJob::follow(&client, &job.id, |_| ());
    watched.until_members(SLOTS).await?;
    watched.until_steps(STEPS_BETWEEN).await?;
    let mut cycles = Cycles { client: &client, agent: &agent, rounds: effort.pick(10, 50), grown_ms: Vec::new() };
    cycles.by_demand(&mut watched).await?;
    let budget = receiver.budget(cycles.rounds).await;
    drop(watched);
    service.stop().await?;
    Ok(budget.rows())
}

/// Times of single steps while nothing happens.
async fn undisturbed(client: &Client, id: &str, samples: usize) -> Result<Times, HarnessError> {
    let mut times_ms = Vec::with_capacity(samples);
    let mut seen = 0;
    while times_ms.len() < samples {
        let job = client.job(id).await?.into_typed();
        if job.is_over() {
            return Err(HarnessError::plain(format!("the bench's job ended as {}", job.phase)));
        }
        if let Some(progress) = job.progress.filter(|p| p.step > seen) {
            seen = progress.step;
            times_ms.push(progress.step_us as f64 / 1e3);
        }
        tokio::time::sleep(STEP_LOOK_EVERY).await;
    }
    Ok(Times::of_ms(times_ms))
}

/// Disturbances, one after the other.
struct Cycles<'a> {
    client: &'a Client,
    agent: &'a AgentClient,
    rounds: usize,
    /// From lending two slots again to the first steps with them, in milliseconds.
    grown_ms: Vec<f64>,
}

impl Cycles<'_> {
    async fn demand(&self, needed: u32) -> Result<Instant, HarnessError> {
        self.client.demand(LOCAL_FLEET, &PublishDemand::needed(needed)).await?;
        Ok(Instant::now())
    }

    async fn by_demand(&mut self, watched: &mut WatchedJob<'_>) -> Result<Times, HarnessError> {
        let mut times_ms = Vec::new();
        for _ in 0..self.rounds {
            let before = occupied(&self.agent.slots().await?);
            let accepted = self.demand(NEEDED).await?;
            times_ms.extend(until_free(self.agent, &before, NEEDED as usize, accepted).await?);
            watched.until_members(SLOTS - NEEDED as u16).await?;
            watched.until_steps(STEPS_BETWEEN).await?;
            let lent = self.demand(0).await?;
            watched.until_members(SLOTS).await?;
            self.grown_ms.push(lent.elapsed().as_secs_f64() * 1e3);
            watched.until_steps(STEPS_BETWEEN).await?;
        }
        Ok(Times::of_ms(times_ms))
    }

    async fn by_take_back(&self, watched: &mut WatchedJob<'_>) -> Result<Times, HarnessError> {
        let mut times_ms = Vec::new();
        for _ in 0..self.rounds {
            let slots = self.agent.slots().await?;
            let Some(slot) = slots.iter().rev().find(|s| s.executor.is_some()) else {
                return Err(HarnessError::plain("no slot is in use"));
            };
            let freed = self.agent.take_back(std::slice::from_ref(&slot.slot), None).await?;
            times_ms.extend(freed.iter().map(|f| f.elapsed_ms as f64));
            watched.until_members(SLOTS - 1).await?;
            watched.until_steps(STEPS_BETWEEN).await?;
            self.client.offer(LOCAL_FLEET, &NameSlots { slots: vec![slot.slot.clone()] }).await?;
            until_whole(watched).await?;
        }
        Ok(Times::of_ms(times_ms))
    }

    /// From the loss of one of the executors, leader included, to the event that the others train again.
    async fn by_loss(
        &self,
        watched: &mut WatchedJob<'_>,
        losses: usize,
        lose: fn(i32) -> Result<(), HarnessError>,
    ) -> Result<Times, HarnessError> {
        let mut times_ms = Vec::new();
        for round in 0..losses {
            let processes: Vec<i32> = self.agent.slots().await?.iter().filter_map(|s| s.pid).collect();
            let Some(victim) = processes.get(round % processes.len().max(1)) else {
                return Err(HarnessError::plain("no executor runs on any slot"));
            };
            watched.disturbed();
            let lost = Instant::now();
            lose(*victim)?;
            let recovered = watched.until_recovered().await?;
            times_ms.push(recovered.duration_since(lost).as_secs_f64() * 1e3);
            until_whole(watched).await?;
        }
        Ok(Times::of_ms(times_ms))
    }
}

async fn until_whole(watched: &mut WatchedJob<'_>) -> Result<(), HarnessError> {
    watched.until_members(SLOTS).await?;
    watched.until_steps(STEPS_BETWEEN).await
}
