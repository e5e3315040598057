//! Step times: the elastic loop against the same engine in a plain loop without membership, and many logical workers on one
//! executor against as many separate runs.

use super::Effort;
use super::row::Row;
use super::store_rows::spec;
use crate::client::{Body, Client};
use crate::failure::Failure;
use crate::jobs;
use crate::service::{Service, ServiceOptions};
use crate::wire::{self, Job};
use events_schema::JobId;
use events_schema::orders::JobOrder;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use workers_executor::plain::train_plain_steps;

/// Logical workers of the job that has many.
const MANY: u16 = 4;
/// Steps left out at the beginning: caches fill, the processor wakes up.
const WARM_STEPS: u64 = 20;
/// How often progress is read; a reading is as exact as this.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Longest wait for a job of the bench.
const PATIENCE: Duration = Duration::from_secs(300);

/// Both rows. Each kind of loop has its turn in every round, so that a slower spell of the machine meets all; the best round
/// of each is the least disturbed one.
pub async fn rows(folder: &Path, effort: Effort) -> Result<Vec<Row>, Failure> {
    let (rounds, steps) = (effort.pick(2, 5), effort.pick(100, 200));
    let service = Service::start(ServiceOptions::new(&folder.join("step-service"), 1)?).await?;
    let client = service.client()?;
    let (mut one, mut many, mut plain) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
    for round in 0..rounds {
        one = one.min(elastic_step_ms(&client, &document(1, steps), &format!("one-{round}")).await?);
        many = many.min(elastic_step_ms(&client, &document(MANY, steps), &format!("many-{round}")).await?);
        plain = plain.min(plain_step_ms(folder, steps).await?);
    }
    service.stop().await?;
    let of = format!("best of {rounds} means of {} steps", steps - WARM_STEPS);
    let elastic = Row {
        name: "elastic loop step",
        value: one,
        unit: "ms",
        baseline_name: "ms the same engine in a plain loop",
        baseline: plain,
        note: format!("{of}, residual network, batch 32"),
    };
    let shared = Row {
        name: "logical workers on one executor",
        value: many,
        unit: "ms",
        baseline_name: "ms as many separate jobs",
        baseline: f64::from(MANY) * one,
        note: format!("{of}; {MANY} workers, a step of all"),
    };
    Ok(vec![elastic, shared])
}

fn document(workers: u16, steps: u64) -> Value {
    json!({
        "name": "bench",
        "model": {"kind": "cnn", "channels": [16, 32], "blocks": 1, "groups": 4},
        "dataset": "digits",
        "workers": {"min": 1, "max": workers},
        "batch_size": 32,
        "steps": steps,
        "tail": "drop",
        "optimizer": {"kind": "adamw", "learning_rate": 0.001},
        "checkpoint": {"every_steps": 1_000_000_000u64},
    })
}

/// Mean step time of a job on the service, from its progress after the first steps to its last.
async fn elastic_step_ms(client: &Client, document: &Value, key: &str) -> Result<f64, Failure> {
    let job: Job = wire::read(&jobs::post_job(client, &Body::json(document), &format!("bench-step-{key}")).await?)?;
    let begun = Instant::now();
    let mut first: Option<(u64, Instant)> = None;
    let mut last: Option<(u64, Instant)> = None;
    while begun.elapsed() < PATIENCE {
        let now: Job = client.get(&format!("/v1/jobs/{}", job.id)).await?;
        let seen = Instant::now();
        if let Some(progress) = now.progress.filter(|p| p.step >= WARM_STEPS) {
            // A reading counts when the step has just changed.
            if last.is_none_or(|(step, _)| step < progress.step) {
                first = first.or(Some((progress.step, seen)));
                last = Some((progress.step, seen));
            }
        }
        if now.is_over() {
            let (Some((a, from)), Some((b, to))) = (first, last) else {
                return Err(Failure::plain("the bench's job ended before its progress was seen"));
            };
            if now.phase != "finished" || a == b {
                return Err(Failure::plain(format!(
                    "the bench's job ended as {}: {}",
                    now.phase,
                    now.failure.unwrap_or_default()
                )));
            }
            return Ok(to.duration_since(from).as_secs_f64() * 1e3 / (b - a) as f64);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Err(Failure::plain("the bench's job did not end"))
}

/// Mean step time of the job with one worker in the plain loop, in this process.
async fn plain_step_ms(folder: &Path, steps: u64) -> Result<f64, Failure> {
    let address = format!("file://{}", folder.join("plain-store").display());
    let store = storage::open_store(&address).map_err(|e| Failure::local("the bench's store cannot be opened", e))?;
    let digits = storage::dataset::register_digits(&store)
        .await
        .map_err(|e| Failure::local("the digits cannot be written", e))?;
    let order = JobOrder {
        spec: Box::new(spec(&document(1, steps))?),
        dataset: digits.dataset,
        evaluation: None,
        key: [0; 32],
        proposal: None,
        park: false,
    };
    let job = JobId::parse("job-bench").map_err(|e| Failure::plain(e.to_string()))?;
    let run = tokio::task::spawn_blocking(move || train_plain_steps(&job, &order, &address, steps)).await;
    let run = run
        .map_err(|e| Failure::local("the plain loop failed", e))?
        .map_err(|e| Failure::local("the plain loop failed", e))?;
    let counted = &run.step_times[(WARM_STEPS as usize).min(run.step_times.len())..];
    Ok(counted.iter().sum::<Duration>().as_secs_f64() * 1e3 / counted.len().max(1) as f64)
}
