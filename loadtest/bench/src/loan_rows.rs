//! Loans: from a demand (or a direct take-back) to free slots, how long the others stand still, and how soon they train again
//! after a kill, again and again while a job trains, small or with a large replica. Compared with the undisturbed step of the same job, because a slot is given back at a
//! boundary between steps.

use crate::Effort;
use crate::goal::{self, Goal};
use crate::pinned::Pinned;
use crate::row::{Row, Times, number};
use crate::spans::Receiver;
use crate::spread::Compared;
use crate::subject::Subject;
use gateway_api::{NameSlots, PublishDemand};
use gateway_client::Client;
use loadtest_harness::HarnessError;
use loadtest_harness::LOCAL_FLEET;
use loadtest_harness::release::{occupied, until_free};
use loadtest_harness::service::{Service, fresh_topics, hang_process, kill_process};
use loadtest_harness::watched_job::{Switch, WatchedJob};
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
            concat!("steps lost", $size),
        ]
    };
}

/// Names of the rows of a small job.
pub const NAMES: [&str; 8] = names!("");
/// Names of the rows of jobs of the first sizes of `growth_rows.rs`.
pub const LARGE_NAMES: [[&str; 8]; 2] = [names!(", replica of 106 MB"), names!(", replica of 655 MB")];
/// Slots of the service of a small job, and its logical workers.
pub const SLOTS: u16 = 4;
/// The same of a large one.
pub const LARGE_SLOTS: u16 = crate::growth_rows::WORKERS;
/// Steps between two disturbances where none is compared with another.
const STEPS_BETWEEN: u64 = 5;
/// Of a large job. An executor tells a step every quarter of a second, which is every second or third of the shortest, and the first is compared with
/// five others at least.
const LARGE_STEPS_BETWEEN: u64 = 16;
/// Of a small job, whose steps are of a few milliseconds: as many others take more than a second.
const SHORT_STEPS_BETWEEN: u64 = 500;
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
    pub names: [&'static str; 8],
}

impl Lent<'_> {
    fn is_large(&self) -> bool {
        self.names != NAMES
    }

    /// How many undisturbed steps are read, and how often slots go and come.
    fn repetitions(&self, effort: Effort) -> (usize, usize) {
        if self.is_large() {
            (effort.pick(12, 40), effort.pick(5, 10))
        } else {
            (effort.pick(60, 200), effort.pick(5, 20))
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
    // A small job has more slots than a small machine has processors.
    let pinned = lent.is_large().then(|| Pinned::slots(service.agent()?, slots)).transpose()?;
    let job = subject.submit(&client, "bench-loans").await?;
    let mut watched = WatchedJob::follow(&client, &job.id, |_| ());
    if lent.is_large() {
        watched = watched.waiting(LARGE_WAIT_MAX);
    }
    watched.until_members(slots).await?;
    watched.until_steps(4 * STEPS_BETWEEN).await?;
    let (samples, rounds) = lent.repetitions(effort);
    let step = undisturbed(&client, &job.id, samples).await?;
    let steps_between = if lent.is_large() { LARGE_STEPS_BETWEEN } else { SHORT_STEPS_BETWEEN };
    let mut cycles = Cycles { client: &client, agent: &agent, slots, rounds, steps_between, grown_ms: Vec::new() };
    let begun = watched.switches().len();
    let by_demand = cycles.by_demand(&mut watched).await?;
    let by_take_back = cycles.by_take_back(&mut watched).await?;
    let by_hang = cycles.by_loss(&mut watched, HANGS, hang_process).await?;
    let by_kill = cycles.by_loss(&mut watched, KILLS, kill_process).await?;
    let switched = watched.switches()[begun..].to_vec();
    let lost = watched.steps_lost();
    drop((watched, pinned));
    client.cancel(&job.id).await?;
    service.stop().await?;
    let against_step = |name, times: &Times, to_be: Option<Goal>, what: &str| Row {
        name,
        value: times.at(0.99),
        unit: "ms p99",
        baseline_name: "ms an undisturbed step",
        baseline: step.median(),
        goal: to_be.map(|to_be| to_be.of_each(times, step.median(), None)),
        note: format!("{what}{}", times.spread()),
    };
    let (grown, taken) = (Times::of_ms(std::mem::take(&mut cycles.grown_ms)), slots / 2);
    let [demand, take_back, lent_to_steps, scale_in, scale_out, kill, hang, steps_lost] = names;
    Ok(vec![
        against_step(
            demand,
            &by_demand,
            Some(goal::GIVEN_BACK),
            &format!("the later of {taken} slots; step {}; ", step.spread()),
        ),
        against_step(take_back, &by_take_back, Some(goal::GIVEN_BACK), ""),
        against_step(lent_to_steps, &grown, None, &format!("{taken} at once; ")),
        scaled_in(scale_in, &switched),
        scaled_out(scale_out, &switched, &step),
        against_step(kill, &by_kill, Some(goal::AFTER_A_KILL), ""),
        against_step(hang, &by_hang, Some(goal::AFTER_SILENCE), "SIGSTOP; "),
        Row {
            name: steps_lost,
            value: lost as f64,
            unit: "steps",
            baseline_name: "slots taken back, executors lost",
            baseline: (rounds * usize::from(taken) + rounds + HANGS + KILLS) as f64,
            goal: Some(goal::NONE.counted(lost as f64, 0.0)),
            note: "done when they happened, as far as that had been told, and done again".to_owned(),
        },
    ])
}

/// How the first step of each growth, or shrinking, stands to later ones of the same members, where enough were told: the machine of a minute ago is another one.
/// And the later ones, beyond the middle one of theirs.
fn compared(switched: &[Switch], is_growth: bool) -> (Vec<Compared>, Times) {
    let (mut compared, mut later_ms) = (Vec::new(), Vec::new());
    for switch in switched.iter().filter(|switch| switch.is_growth == is_growth) {
        if let Some(first) = Compared::new(switch.first_ms, &switch.later_ms) {
            let middle_ms = switch.first_ms - first.beyond_middle_ms;
            later_ms.extend(switch.later_ms.iter().map(|ms| ms - middle_ms));
            compared.push(first);
        }
    }
    (compared, Times::of_ms(later_ms))
}

/// The first step of who stays, against the spread of those after it.
fn scaled_in(name: &'static str, switched: &[Switch]) -> Row {
    let (compared, _) = compared(switched, false);
    let pauses = Times::of_ms(compared.iter().map(|it| it.beyond_middle_ms).collect());
    Row {
        name,
        value: pauses.median(),
        unit: "ms p50, beyond the middle one after it",
        baseline_name: "ms by which the longest one after it is",
        baseline: Times::of_ms(compared.iter().map(|it| it.spread_ms).collect()).median(),
        goal: Some(goal::NO_MORE.of_ratios(&Times::of_ms(compared.iter().map(|it| it.of_spread(0.0)).collect()))),
        note: format!("the first step of who stays; {}", pauses.spread()),
    }
}

/// The first step of all, against those after it: each, but for what is as much longer than theirs anyhow.
fn scaled_out(name: &'static str, switched: &[Switch], step: &Times) -> Row {
    let (compared, later) = compared(switched, true);
    let pauses = Times::of_ms(compared.iter().map(|it| it.beyond_middle_ms).collect());
    Row {
        name,
        value: pauses.median(),
        unit: "ms p50, beyond the middle one after it",
        baseline_name: "ms an undisturbed step",
        baseline: step.median(),
        goal: Some(goal::ADDED.of_each(&pauses, step.median(), Some(&later))),
        note: format!(
            "the first step of all; p50 at most {} at 95 %; {}; later ones beyond the middle one: {}",
            number(pauses.median_at_most()),
            pauses.spread(),
            later.spread()
        ),
    }
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
    let (steps_between, grown_ms) = (STEPS_BETWEEN, Vec::new());
    let mut cycles = Cycles { client: &client, agent: &agent, slots, rounds, steps_between, grown_ms };
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
    /// Of the service, all of them the job's but for what is taken.
    slots: u16,
    rounds: usize,
    steps_between: u64,
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
            watched.disturbed();
            let accepted = self.demand(needed.into()).await?;
            // Slots that one demand takes are one event.
            let freed_ms = until_free(self.agent, &before, needed.into(), accepted).await?;
            times_ms.push(Times::of_ms(freed_ms).at(1.0));
            watched.until_members(self.slots - needed).await?;
            watched.until_steps(self.steps_between).await?;
            watched.disturbed();
            let lent = self.demand(0).await?;
            watched.until_members(self.slots).await?;
            self.grown_ms.push(lent.elapsed().as_secs_f64() * 1e3);
            watched.until_steps(self.steps_between).await?;
        }
        Ok(Times::of_ms(times_ms))
    }

    async fn by_take_back(&self, watched: &mut WatchedJob<'_>) -> Result<Times, HarnessError> {
        let mut times_ms = Vec::new();
        for _ in 0..self.rounds {
            let slots = self.agent.slots().await?;
            watched.disturbed();
            let Some(slot) = slots.iter().rev().find(|s| s.executor.is_some()) else {
                return Err(HarnessError::plain("no slot is in use"));
            };
            let freed = self.agent.take_back(std::slice::from_ref(&slot.slot), None).await?;
            times_ms.extend(freed.iter().map(|f| f.elapsed_ms as f64));
            watched.until_members(self.slots - 1).await?;
            watched.until_steps(self.steps_between).await?;
            watched.disturbed();
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
        watched.until_steps(self.steps_between).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_steps_are_compared_with_five_later_ones_of_the_same_members() {
        let switch =
            |is_growth, first_ms, later_ms: &[f64]| Switch { is_growth, first_ms, later_ms: later_ms.to_vec() };
        let switched = [
            switch(false, 300.0, &[100.0, 104.0]),
            switch(false, 103.0, &[100.0, 101.0, 102.0, 104.0, 102.0]),
            switch(true, 130.0, &[100.0, 101.0, 102.0, 103.0, 123.0]),
        ];
        let shrunk = scaled_in("in", &switched);
        assert_eq!((shrunk.value, shrunk.baseline), (1.0, 2.0), "of two the middle one is the longest");
        let grown = scaled_out("out", &switched, &Times::of_ms(vec![100.0; 5]));
        assert_eq!(grown.value, 28.0);
        assert_eq!(
            grown.goal.map(|goal| goal.verdict()),
            Some(goal::Verdict::NotKnown),
            "one of five is beyond 20 ms anyhow"
        );
    }
}
