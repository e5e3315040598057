//! Growth of a job whose replica is large: how long its steps are while a newcomer is sent the replica beside them, and what the first step of both
//! costs, against a step before. Two slots of one machine, or of one GPU; each executor is pinned to its half of the processors.

use crate::Effort;
use crate::goal;
use crate::pinned::Pinned;
use crate::row::{Row, Times, number};
use crate::subject::{Subject, document};
use crate::torch_code::{Device, Model, TorchCode};
use gateway_api::{Job, PublishDemand};
use gateway_client::Client;
use loadtest_harness::service::Service;
use loadtest_harness::watched_job::WatchedJob;
use loadtest_harness::{HarnessError, LOCAL_FLEET};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A network of two hidden layers and its replica under AdamW, three times its parameters; and one in PyTorch whose replica, with momentum, is as large.
struct Size {
    name: &'static str,
    hidden: u32,
    /// Of each of the three square layers of the one in PyTorch.
    torch_width: u32,
    /// Samples of a step of one logical worker: as many as make a step last longer than the quarter of a second after which an executor tells
    /// another one, so that each is seen.
    rows: u16,
}

/// The sizes that are measured.
const SIZES: [Size; 3] = [
    Size { name: NAMES[0], hidden: 2_930, torch_width: 2_090, rows: 128 },
    Size { name: NAMES[1], hidden: 7_350, torch_width: 5_212, rows: 32 },
    Size { name: NAMES[2], hidden: 12_880, torch_width: 9_116, rows: 16 },
];
/// Names of the rows.
pub const NAMES: [&str; 3] = ["growth, replica of 106 MB", "growth, replica of 655 MB", "growth, replica of 2 GB"];
/// Logical workers of a job on processors, and slots of its service.
pub const WORKERS: u16 = 2;
/// On a GPU, where a gradient takes as long as its way to the host, and a step of two would be too short to be seen.
const WORKERS_CUDA: u16 = 8;
/// Of its service: one of who is there, and one of the newcomer. Each has processors of its own.
const SLOTS: u16 = 2;
/// Steps before each growth that say what a step usually takes, after as many that do not count; and steps of both after it.
const STEPS_BEFORE: u64 = 6;
/// Longest wait for any one thing: gigabytes are initialized, sent and copied.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// Steps as they were told: how long each took, and of how many members.
type Steps = BTreeMap<u64, (u64, u16)>;

/// A row for each size whose name is wanted; of Ebb's own models, or of those of `code`.
pub async fn rows(
    folder: &Path,
    code: Option<&TorchCode>,
    effort: Effort,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Row>, HarnessError> {
    let mut rows = Vec::new();
    for model in models(code).filter(|model| wanted(model.size.name)) {
        rows.push(row(folder, effort, model.size, &model.job(workers(code), crate::ENDLESS)).await?);
    }
    Ok(rows)
}

/// Jobs of each size, the smallest first.
pub fn subjects(code: Option<&TorchCode>) -> impl Iterator<Item = Subject> {
    models(code).map(move |model| model.job(workers(code), crate::ENDLESS))
}

fn workers(code: Option<&TorchCode>) -> u16 {
    if code.is_some_and(|code| code.device() == Device::Cuda) { WORKERS_CUDA } else { WORKERS }
}

/// A model of one of the sizes: Ebb's own, or that of some code.
pub struct LargeModel<'a> {
    size: &'static Size,
    code: Option<&'a TorchCode>,
}

/// Models of each size, the smallest first.
pub fn models(code: Option<&TorchCode>) -> impl Iterator<Item = LargeModel<'_>> {
    SIZES.iter().map(move |size| LargeModel { size, code })
}

impl LargeModel<'_> {
    /// A job of so many logical workers.
    pub fn job(&self, workers: u16, steps: u64) -> Subject {
        if let Some((code, model)) = self.code() {
            return code.job(model, workers, steps);
        }
        let model = json!({"kind": "mlp", "hidden": [self.size.hidden, self.size.hidden]});
        let mut document = document(&model, workers, self.size.rows, steps);
        document["optimizer"] = json!({"kind": "adamw", "learning_rate": 0.001});
        Subject { document, torch: None }
    }

    /// A job of next to no size.
    pub fn small(&self, workers: u16, steps: u64) -> Subject {
        match self.code() {
            Some((code, model)) => code.job(Model { width: 16, ..model }, workers, steps),
            None => Subject::native(workers, self.size.rows, steps),
        }
    }

    /// Its code and the model's description in it, if it is one in PyTorch.
    pub fn code(&self) -> Option<(&TorchCode, Model)> {
        let Size { torch_width: width, rows, .. } = *self.size;
        self.code.map(|code| (code, Model { kind: "mlp", width, momentum: 0.9, rows }))
    }

    /// Elements of a gradient, and of the replica: with AdamW's two moments, or with momentum.
    pub fn elements(&self) -> (u64, u64) {
        /// Pixels and classes of the digits.
        const ENDS: [u64; 2] = [64, 10];
        let (width, layers, states) = match self.code {
            Some(_) => (u64::from(self.size.torch_width), 3, 2),
            None => (u64::from(self.size.hidden), 1, 3),
        };
        let gradient = layers * width * (width + 1) + (ENDS[0] + 1) * width + ENDS[1] * (width + 1);
        (gradient, states * gradient)
    }

    /// The same in MB.
    pub fn megabytes(&self) -> (f64, f64) {
        let (gradient, replica) = self.elements();
        (gradient as f64 * 4e-6, replica as f64 * 4e-6)
    }
}

async fn row(folder: &Path, effort: Effort, size: &Size, subject: &Subject) -> Result<Row, HarnessError> {
    let service = Service::start(subject.service(&folder.join(format!("growth-{}", size.hidden)), SLOTS)?).await?;
    let client = service.client()?;
    let pinned = Pinned::slots(service.agent()?, SLOTS)?;
    demand(&client, 1).await?;
    let job = subject.submit(&client, "bench-growth").await?;
    let told = Mutex::new(Steps::new());
    let note = |job: &Job| {
        if let (Some(progress), Ok(mut told)) = (job.progress, told.lock()) {
            told.insert(progress.step, (progress.step_us, progress.members));
        }
    };
    let mut watched = WatchedJob::follow(&client, &job.id, note).waiting(WAIT_MAX);
    let (mut before, mut beside, mut both, mut lent_s) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.pick(1, 3) {
        watched.until_members(1).await?;
        watched.until_steps(STEPS_BEFORE).await?;
        let from = newest(&told);
        watched.until_steps(STEPS_BEFORE).await?;
        let lent_at = newest(&told);
        let lent = Instant::now();
        demand(&client, 0).await?;
        watched.until_members(2).await?;
        lent_s.push(lent.elapsed().as_secs_f64());
        watched.until_steps(STEPS_BEFORE).await?;
        let seen = told.lock().map(|told| told.clone()).unwrap_or_default();
        let of = |count: u16, from, to| {
            let told = seen.range(from..to).filter(move |(_, (_, members))| *members == count);
            told.map(|(_, (us, _))| *us as f64 / 1e3)
        };
        before.extend(of(1, from + 1, lent_at + 1));
        beside.extend(of(1, lent_at + 1, u64::MAX));
        both.extend(of(2, lent_at + 1, u64::MAX).skip(1));
        demand(&client, 1).await?;
    }
    let pauses = Times::of_ms(watched.pauses_out_ms());
    drop((watched, pinned));
    service.stop().await?;
    let (before, beside, both) = (Times::of_ms(before), Times::of_ms(beside), Times::of_ms(both));
    Ok(Row {
        name: size.name,
        value: beside.at(1.0),
        unit: "ms, longest step while it follows",
        baseline_name: "ms p50 of a step before",
        baseline: before.median(),
        goal: Some(goal::WITH_ADDED.of_each(&beside, before.median(), Some(&before))),
        note: format!(
            "before: {}; while it follows: {}; first step of both beyond one of one: {}; later ones of both: {}; lent to both training: {} s at most",
            before.spread(),
            beside.spread(),
            pauses.spread(),
            both.spread(),
            number(lent_s.into_iter().fold(0.0, f64::max)),
        ),
    })
}

fn newest(told: &Mutex<Steps>) -> u64 {
    told.lock().ok().and_then(|told| told.last_key_value().map(|(step, _)| *step)).unwrap_or(0)
}

/// Says what the only fleet needs of its slots.
pub async fn demand(client: &Client, needed: u32) -> Result<(), HarnessError> {
    client.demand(LOCAL_FLEET, &PublishDemand::needed(needed)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_as_large_as_rows_say() {
        let replicas_mb = models(None).map(|model| model.megabytes().1.round());
        assert_eq!(replicas_mb.collect::<Vec<_>>(), [106.0, 655.0, 2_002.0]);
    }
}
