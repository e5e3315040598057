//! A service with a slot or a few, on which jobs are run to their end one after the other: how long their steps take, and what of processor and memory.

use crate::processor::GroupUse;
use crate::row::Times;
use crate::subject::Subject;
use gateway_client::Client;
use loadtest_harness::HarnessError;
use loadtest_harness::service::Service;
use std::path::Path;
use std::time::{Duration, Instant};
use workers_agent_client::AgentClient;

/// How often progress is read: rarely, as reading takes processor time from the step.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// An executor tells one mean of its waits for so long, again and again.
const WAIT_MEAN_OF: Duration = Duration::from_secs(1);
/// Longest job of the bench, the start of its Python included.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Share of a run's steps at its beginning that are not looked at: caches fill, the processor wakes up.
pub const WARM_SHARE: u64 = 10;

/// What was seen of a job.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Step time over its best second.
    pub best_ms: f64,
    /// Processor time of a step, of all executors and their Python together.
    pub processor_ms: f64,
    /// Most memory of both; of several executors, of the one that has most.
    pub memory_mb: f64,
    /// How long steps waited for their rows, in the mean over a second each, as far as that was told.
    pub data_waits_ms: Vec<f64>,
}

/// Means of waits as they are told.
#[derive(Debug, Default)]
struct DataWaits {
    means_ms: Vec<f64>,
    /// The step with which one counted last, and when. What is told first does not: it is of less than a second, in which the job started.
    newest: Option<(u64, Duration)>,
}

impl DataWaits {
    fn look(&mut self, step: u64, told_us: Option<u64>, now: Duration) {
        let Some(told_us) = told_us else { return };
        match self.newest {
            Some((of, at)) if step == of || now < at + WAIT_MEAN_OF => return,
            Some(_) => self.means_ms.push(told_us as f64 / 1e3),
            None => {}
        }
        self.newest = Some((step, now));
    }
}

/// A service with a few slots.
pub struct Slots {
    service: Service,
    client: Client,
    agent: AgentClient,
}

impl Slots {
    /// One with one slot that can run such jobs.
    pub async fn one(subject: &Subject, folder: &Path) -> Result<Self, HarnessError> {
        Self::start(subject, folder, 1, None).await
    }

    /// One with so many slots, whose executors come by each other's gradients as this says.
    pub async fn start(
        subject: &Subject,
        folder: &Path,
        slots: u16,
        memory: Option<&str>,
    ) -> Result<Self, HarnessError> {
        // Several logical workers are compared with a plain loop, which has one processor.
        let options =
            subject.service(folder, slots)?.with("--threads-per-slot", Some("1")).with("--gradient-memory", memory);
        let service = Service::start(options).await?;
        let (client, agent) = (service.client()?, service.agent()?);
        Ok(Self { service, client, agent })
    }

    /// Runs a job to its end.
    pub async fn run(&self, subject: &Subject, key: &str, memory: bool) -> Result<Seen, HarnessError> {
        let steps = subject.document["steps"].as_u64().unwrap_or(0);
        let rows = subject.document["batch_size"].as_f64().unwrap_or(0.0)
            * subject.document["workers"]["max"].as_f64().unwrap_or(1.0);
        let job = subject.submit(&self.client, key).await?;
        let (begun, mut best_rate, mut memory_mb) = (Instant::now(), 0.0f64, 0.0f64);
        let mut data_waits = DataWaits::default();
        let mut first: Option<(u64, Duration)> = None;
        let mut last = first;
        while begun.elapsed() < WAIT_MAX {
            let now = self.client.job(&job.id).await?;
            if now.is_over() {
                let (Some((from, used_from)), Some((to, used_to)), "finished") = (first, last, now.phase.as_str())
                else {
                    let why = now.failure.clone().unwrap_or_else(|| "its steps were not seen".to_owned());
                    return Err(HarnessError::plain(format!("the bench's job ended as {}: {why}", now.phase)));
                };
                let processor_ms = (used_to.saturating_sub(used_from)).as_secs_f64() * 1e3 / (to - from).max(1) as f64;
                let (best_ms, data_waits_ms) = (rows / best_rate * 1e3, data_waits.means_ms);
                return Ok(Seen { best_ms, processor_ms, memory_mb, data_waits_ms });
            }
            if let Some(progress) = now.progress.filter(|p| p.step > steps / WARM_SHARE && p.step < steps) {
                best_rate = best_rate.max(progress.samples_per_second);
                data_waits.look(progress.step, progress.data_wait_us, begun.elapsed());
                let slots = self.agent.slots().await?;
                let used: Vec<GroupUse> =
                    slots.iter().filter_map(|slot| slot.pid).map(|pid| GroupUse::of(pid, memory)).collect();
                if !used.is_empty() {
                    memory_mb = used.iter().map(|used| used.memory_bytes as f64 / 1e6).fold(memory_mb, f64::max);
                    let processor = used.iter().map(|used| used.processor).sum();
                    // Only where the step is news: an old one with today's processor time would make the last steps dear.
                    if last.is_none_or(|(step, _)| step != progress.step) {
                        last = Some((progress.step, processor));
                        first = first.or(last);
                    }
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Err(HarnessError::plain("the bench's job did not end"))
    }

    /// Ends it.
    pub async fn stop(self) -> Result<(), HarnessError> {
        self.service.stop().await?;
        Ok(())
    }
}

/// The least disturbed of some runs.
#[derive(Debug, Clone)]
pub struct Best {
    step_ms: Vec<f64>,
    processor_ms: Vec<f64>,
}

impl Best {
    /// None yet.
    pub const fn new() -> Self {
        Self { step_ms: Vec::new(), processor_ms: Vec::new() }
    }

    /// One more run.
    pub fn take(&mut self, step_ms: f64, processor_ms: f64) {
        self.step_ms.push(step_ms);
        self.processor_ms.push(processor_ms);
    }

    /// Step times, one of each run.
    pub fn steps(&self) -> Times {
        Times::of_ms(self.step_ms.clone())
    }

    /// The fastest.
    pub fn step(&self) -> f64 {
        self.steps().at(0.0)
    }

    /// What each run took of the run of another kind in the same turn.
    pub fn of_turns(&self, other: &Self, times: f64) -> Times {
        let turns = self.step_ms.iter().zip(&other.step_ms);
        Times::of_ms(turns.map(|(ours, theirs)| ours / (theirs * times)).collect())
    }

    /// The middle one.
    pub fn processor(&self) -> f64 {
        Times::of_ms(self.processor_ms.clone()).median()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_of_waits_counts_once_and_only_if_it_was_told() {
        let mut waits = DataWaits::default();
        let told = [
            (250, 1, None),
            (500, 2, Some(90_000)),
            (1_000, 4, Some(90_000)),
            (1_500, 6, Some(2_000)),
            (2_000, 8, Some(2_000)),
            (2_500, 9, None),
            (2_750, 10, Some(1_000)),
            (3_800, 10, Some(1_000)),
        ];
        for (ms, step, told_us) in told {
            waits.look(step, told_us, Duration::from_millis(ms));
        }
        assert_eq!(waits.means_ms, [2.0, 1.0], "not that of the start, none twice, none that was not told");
    }
}
