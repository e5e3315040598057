//! Step times: the elastic loop against the same engine in a plain loop without membership, many logical workers on one
//! executor against as many separate runs, and two executors of one host against one that does the same alone.

use crate::Effort;
use crate::goal;
use crate::one_slot::Best;
use crate::row::Row;
use crate::subject::Subject;
use gateway_client::Client;
use loadtest_harness::HarnessError;
use loadtest_harness::service::Service;
use std::path::Path;
use std::time::{Duration, Instant};
use workers_executor::plain::train_plain_steps;

/// Logical workers of the job that has many.
const MANY: u16 = 4;
/// Executors of the job that has several, a logical worker each.
const PAIR: u16 = 2;
/// One part in so many of a run is left out at its beginning: caches fill, the processor wakes up, and an executor has not yet trained for as long as it
/// averages its rate over, so what it tells is the rate of its start. A run is to be longer than that many windows.
const WARM_SHARE: u64 = 3;
/// Samples of a step of one logical worker.
const BATCH: u16 = 32;
/// What is averaged over: as long as an executor averages its rate over.
const WINDOW: Duration = Duration::from_secs(1);
/// How often progress is read: rarely, as reading takes processor time from the step.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Longest wait for a job of the bench.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// All rows. Each kind of loop has its turn in every round, so that a slower spell of the machine meets all; the best second of
/// each is the least disturbed one.
pub async fn rows(folder: &Path, effort: Effort) -> Result<Vec<Row>, HarnessError> {
    let (rounds, steps) = (goal::TURNS, effort.pick(2_000, 4_000));
    let subject = |workers: u16| native(workers, steps / u64::from(workers));
    let service = Service::start(subject(1).service(&folder.join("step-service"), 1)?).await?;
    let pair = Service::start(subject(PAIR).service(&folder.join("pair-service"), PAIR)?).await?;
    let (client, pair_client) = (service.client()?, pair.client()?);
    let [mut one, mut many, mut two, mut plain] = [const { Best::new() }; 4];
    for round in 0..rounds {
        one.take(elastic_step_ms(&client, &subject(1), 1, round).await?, 0.0);
        many.take(elastic_step_ms(&client, &subject(MANY), MANY, round).await?, 0.0);
        two.take(elastic_step_ms(&pair_client, &together(subject(1), PAIR), PAIR, round).await?, 0.0);
        plain.take(plain_step_ms(folder, &subject(1), steps).await?, 0.0);
    }
    service.stop().await?;
    pair.stop().await?;
    let elastic = Row {
        name: "elastic loop step",
        value: one.step(),
        unit: "ms",
        baseline_name: "ms the same engine in a plain loop",
        baseline: plain.step(),
        goal: Some(goal::LIKE_PLAIN.of_ratios(&one.of_turns(&plain, 1.0))),
        note: format!("best second of {rounds} runs in turns, residual network, batch {BATCH}"),
    };
    let shared = Row {
        name: "logical workers on one executor",
        value: many.step(),
        unit: "ms",
        baseline_name: "ms as many separate jobs",
        baseline: f64::from(MANY) * one.step(),
        goal: Some(goal::LIKE_PLAIN.of_ratios(&many.of_turns(&one, f64::from(MANY)))),
        note: format!("best second of {rounds} runs in turns; {MANY} workers, a step of all"),
    };
    let apart = Row {
        name: "two executors of a host",
        value: two.step(),
        unit: "ms",
        baseline_name: "ms the same engine in a plain loop",
        baseline: plain.step(),
        goal: None,
        note: format!(
            "best second of {rounds} runs in turns; a logical worker each, which is computed at the same time"
        ),
    };
    Ok(vec![elastic, shared, apart])
}

/// The job with so many logical workers, which trains on as many executors or not at all.
pub fn together(mut subject: Subject, executors: u16) -> Subject {
    subject.document["workers"] = serde_json::json!({"min": executors, "max": executors});
    subject
}

/// The residual network with AdamW, which makes an update take what it takes in earnest.
fn native(workers: u16, steps: u64) -> Subject {
    let mut subject = Subject::native(workers, BATCH, steps);
    subject.document["optimizer"] = serde_json::json!({"kind": "adamw", "learning_rate": 0.001});
    subject
}

/// Step time of a job on the service over its best second, by its executor's own clock.
async fn elastic_step_ms(client: &Client, subject: &Subject, workers: u16, round: u32) -> Result<f64, HarnessError> {
    let job = subject.submit(client, &format!("bench-step-{workers}-{round}")).await?;
    let begun = Instant::now();
    let mut best_rate = 0.0f64;
    while begun.elapsed() < WAIT_MAX {
        let now = client.job(&job.id).await?;
        let warm = now.progress.filter(|p| p.step >= p.steps_total / WARM_SHARE);
        best_rate = best_rate.max(warm.map_or(0.0, |p| p.samples_per_second));
        if now.is_over() {
            if now.phase != "finished" || best_rate == 0.0 {
                let why = now.failure.clone().unwrap_or_else(|| "its rate was not seen".to_owned());
                return Err(HarnessError::plain(format!("the bench's job ended as {}: {why}", now.phase)));
            }
            return Ok(f64::from(BATCH * workers) / best_rate * 1e3);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Err(HarnessError::plain("the bench's job did not end"))
}

/// Step time of the job with one worker in the plain loop, in this process, over its best second.
async fn plain_step_ms(folder: &Path, subject: &Subject, steps: u64) -> Result<f64, HarnessError> {
    let (job, order, address) = subject.order(folder).await?;
    let run = tokio::task::spawn_blocking(move || train_plain_steps(&job, &order, &address, None, steps)).await;
    let run = run
        .map_err(|e| HarnessError::local("the plain loop failed", e))?
        .map_err(|e| HarnessError::local("the plain loop failed", e))?;
    Ok(best_window_ms(&run.step_times[run.step_times.len() / WARM_SHARE as usize..]))
}

/// Mean of the fastest steps in a row that fill a window; of all, if they do not fill one.
pub fn best_window_ms(steps: &[Duration]) -> f64 {
    let mean_ms = |steps: &[Duration]| steps.iter().sum::<Duration>().as_secs_f64() * 1e3 / steps.len().max(1) as f64;
    let mut best = mean_ms(steps);
    let mut first = 0;
    let mut time = Duration::ZERO;
    for last in 0..steps.len() {
        time += steps[last];
        while time - steps[first] >= WINDOW {
            time -= steps[first];
            first += 1;
        }
        if time >= WINDOW {
            best = best.min(mean_ms(&steps[first..=last]));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_second_leaves_out_the_slow_spell() {
        let spell = |ms, steps| std::iter::repeat_n(Duration::from_millis(ms), steps);
        let steps: Vec<Duration> = spell(50, 30).chain(spell(10, 200)).chain(spell(90, 30)).collect();
        assert_eq!(best_window_ms(&steps), 10.0);
        assert_eq!((best_window_ms(&steps[..2]), best_window_ms(&[])), (50.0, 0.0));
    }
}
