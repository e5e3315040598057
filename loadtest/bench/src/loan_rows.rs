//! Loans: from a demand (or a direct take-back) to free slots, how long the others stand still, and how soon they train again
//! after a kill, again and again while a job trains, small or with a large replica. Compared with the undisturbed step of the same job, because a slot is given back at a
//! boundary between steps.

use crate::Effort;
use crate::row::{Row, Times, number};
use crate::spans::Receiver;
use crate::subject::Subject;
use gateway_api::{NameSlots, PublishDemand};
use gateway_client::Client;
use loadtest_harness::HarnessError;
use loadtest_harness::LOCAL_FLEET;
use loadtest_harness::release::{occupied, until_free};
use loadtest_harness::service::{Service, fresh_topics, hang_process, kill_process};
use loadtest_harness::watched_job::{Growth, WatchedJob};
use std::path::Path;
use std::time::{Duration, Instant};
use workers_agent_client::AgentClient;

/// Names of the rows of a job whose replica is so large.
macro_rules! names {
    ($size:literal) => {
        [
            concat!("demand accepted to slot free", $size),
            concat!("take-back to slot free", $size),
            concat!("slots lent to steps with them", $size),
            concat!("pause at scale in", $size),
            concat!("pause at scale out", $size),
            concat!("kill -9 to training again", $size),
            concat!("hung executor to training again", $size),
        ]
    };
}

/// Names of the rows of a small job.
pub const NAMES: [&str; 7] = names!("");
/// Names of the rows of jobs of the first sizes of `growth_rows.rs`.
pub const LARGE_NAMES: [[&str; 7]; 2] = [names!(", replica of 106 MB"), names!(", replica of 655 MB")];
/// Slots of the service of a small job, and its logical workers.
pub const SLOTS: u16 = 4;
/// The same of a large one.
pub const LARGE_SLOTS: u16 = crate::growth_rows::WORKERS;
/// Steps between two disturbances.
const STEPS_BETWEEN: u64 = 5;
/// Kills of one job: the controller waits longer and longer before it replaces what keeps failing.
const KILLS: usize = 3;
/// Executors of one job that are made to hang; each is noticed after seconds only.
const HANGS: usize = 2;
/// How often an undisturbed step is read.
const STEP_LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest wait for any one thing of a large job, whose replica is initialized and sent first.
const LARGE_WAIT_MAX: Duration = Duration::from_secs(300);

/// A job that is lent slots, and has all of them taken and given again.
pub struct Lent<'a> {
    /// The job, with as many logical workers as there are slots.
    pub subject: &'a Subject,
    /// Slots of its service; a demand takes half of them away.
    pub slots: u16,
    /// What the rows are called.
    pub names: [&'static str; 7],
}

impl Lent<'_> {
    fn is_large(&self) -> bool {
        self.names != NAMES
    }

    /// How many undisturbed steps are read, and how often slots go and come.
    fn repetitions(&self, effort: Effort) -> (usize, usize) {
        if self.is_large() {
            (effort.pick(12, 40), effort.pick(4, 10))
        } else {
            (effort.pick(60, 200), effort.pick(4, 20))
        }
    }
}

/// All rows about loans.
pub async fn rows(folder: &Path, lent: &Lent<'_>, log: Option<&str>, effort: Effort) -> Result<Vec<Row>, HarnessError> {
    let Lent { subject, slots, names } = *lent;
    let data = folder.join(names[0].replace([' ', ','], "-"));
    let own = folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let log = log.map(|url| fresh_topics(url, &own));
    // How many slots it has is said from here, also where it would be faster on fewer.
    let speeds = lent.is_large().then_some("assumed");
    let options = subject.service(&data, slots)?.with("--log", log.as_deref()).with("--speeds", speeds);
    let service = Service::start(options).await?;
    let (client, agent) = (service.client()?, service.agent()?);
    let job = subject.submit(&client, "bench-loans").await?;
    let mut watched = WatchedJob::follow(&client, &job.id, |_| ());
    if lent.is_large() {
        watched = watched.waiting(LARGE_WAIT_MAX);
    }
    watched.until_members(slots).await?;
    watched.until_steps(4 * STEPS_BETWEEN).await?;
    let (samples, rounds) = lent.repetitions(effort);
    let step = undisturbed(&client, &job.id, samples).await?;
    let mut cycles = Cycles { client: &client, agent: &agent, slots, rounds, grown_ms: Vec::new() };
    let begun = watched.growths().len();
    let by_demand = cycles.by_demand(&mut watched).await?;
    let by_take_back = cycles.by_take_back(&mut watched).await?;
    let by_hang = cycles.by_loss(&mut watched, HANGS, hang_process).await?;
    let by_kill = cycles.by_loss(&mut watched, KILLS, kill_process).await?;
    let growing = Times::of_ms(watched.growths()[begun..].iter().map(|growth| beyond_later(growth, &step)).collect());
    let shrinking = Times::of_ms(watched.pauses_in_ms());
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
    let (grown, taken) = (Times::of_ms(cycles.grown_ms), slots / 2);
    let [demand, take_back, lent_to_steps, scale_in, scale_out, kill, hang] = names;
    Ok(vec![
        against_step(demand, &by_demand, &format!("step {}; ", step.spread())),
        against_step(take_back, &by_take_back, ""),
        against_step(lent_to_steps, &grown, &format!("{taken} at once; ")),
        against_step(scale_in, &shrinking, "beyond a step of before; "),
        against_step(
            scale_out,
            &growing,
            &format!(
                "the first step of all beyond the middle one of those after it; p50 at most {} at 95 %; ",
                number(growing.median_at_most())
            ),
        ),
        against_step(kill, &by_kill, ""),
        against_step(hang, &by_hang, "SIGSTOP; "),
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
    let (slots, rounds) = (SLOTS, effort.pick(10, 50));
    let mut cycles = Cycles { client: &client, agent: &agent, slots, rounds, grown_ms: Vec::new() };
    cycles.by_demand(&mut watched).await?;
    let budget = receiver.budget(cycles.rounds).await;
    drop(watched);
    service.stop().await?;
    Ok(budget.rows())
}

/// How much longer the first step of all was than those after it, in milliseconds: the machine of a minute ago is another one. Than an undisturbed one where none was told.
fn beyond_later(growth: &Growth, undisturbed: &Times) -> f64 {
    let later = Times::of_ms(growth.later_ms.clone());
    growth.first_ms - if growth.later_ms.is_empty() { undisturbed.median() } else { later.median() }
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
    /// Of the service, all of them the job's but for what is taken.
    slots: u16,
    rounds: usize,
    /// From lending half of them again to the first steps with them, in milliseconds.
    grown_ms: Vec<f64>,
}

impl Cycles<'_> {
    async fn demand(&self, needed: u32) -> Result<Instant, HarnessError> {
        self.client.demand(LOCAL_FLEET, &PublishDemand::needed(needed)).await?;
        Ok(Instant::now())
    }

    async fn by_demand(&mut self, watched: &mut WatchedJob<'_>) -> Result<Times, HarnessError> {
        let (mut times_ms, needed) = (Vec::new(), self.slots / 2);
        for _ in 0..self.rounds {
            let before = occupied(&self.agent.slots().await?);
            let accepted = self.demand(needed.into()).await?;
            times_ms.extend(until_free(self.agent, &before, needed.into(), accepted).await?);
            watched.until_members(self.slots - needed).await?;
            watched.until_steps(STEPS_BETWEEN).await?;
            let lent = self.demand(0).await?;
            watched.until_members(self.slots).await?;
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
            watched.until_members(self.slots - 1).await?;
            watched.until_steps(STEPS_BETWEEN).await?;
            self.client.offer(LOCAL_FLEET, &NameSlots { slots: vec![slot.slot.clone()] }).await?;
            self.until_whole(watched).await?;
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
            self.until_whole(watched).await?;
        }
        Ok(Times::of_ms(times_ms))
    }

    async fn until_whole(&self, watched: &mut WatchedJob<'_>) -> Result<(), HarnessError> {
        watched.until_members(self.slots).await?;
        watched.until_steps(STEPS_BETWEEN).await
    }
}
