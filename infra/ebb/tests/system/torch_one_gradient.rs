//! `determinism: none` of a model in PyTorch: every sample counts exactly once per epoch while executors come, go and are killed, counted by the model
//! itself.
//!
//! Sample i is the i-th unit vector, and the loss is its label's score, whose gradient is the same at any parameters. What a step adds is a power of two
//! divided by a power of two, so the weights *are* the counts, without rounding.

use crate::exactly_once::{SAMPLES, import_unit_vectors};
use crate::schedules::demand;
use crate::support::{finished, job, plain_digest, steps, submit, text, until};
use crate::torch::{TRAIN, document, python, service};
use ebb::wire::Job;
use loadtest_harness::service::kill_process;
use serde_json::json;

/// Divides the samples, so that every step has the same weight.
const GLOBAL_BATCH: u32 = 16;
/// So many that the job outlives all that happens to it, with steps that take a while.
const EPOCHS: usize = 200;

/// In batches of at most five rows, of which an executor may host as many as sixteen.
const COUNTS: &str = r#"
import time, torch, ebb
from torch import nn

class Job(ebb.Job):
    micro_batch_rows = 5

    def model(self):
        layer = nn.Linear(480, 10, bias=False)
        nn.init.zeros_(layer.weight)
        return layer

    def loss(self, model, batch):
        features, labels = batch
        assert len(labels) <= 5, len(labels)
        time.sleep(0.004)
        return -model(features).gather(1, labels[:, None]).sum(), len(labels)

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=16.0)
"#;

/// Fails with what is wrong.
const CHECK: &str = r"
import sys, torch, ebb
counts = ebb.load(sys.argv[1])['weight']
rows = torch.arange(480)
expected = torch.zeros(10, 480)
expected[rows % 10, rows] = float(sys.argv[2])
wrong = [(int(row), float(counts[row % 10, row])) for row in rows if not torch.equal(counts[:, row], expected[:, row])]
assert not wrong, wrong
";

fn members(job: &Job) -> u16 {
    job.progress.map_or(0, |progress| progress.members)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_counts_once_per_epoch_in_pytorch_without_determinism() {
    let system = service().await;
    import_unit_vectors(&system).await;
    let client = system.client();
    let mut document = document(&system, COUNTS, 1).await;
    let counted = json!({"dataset": "unit", "batch_size": GLOBAL_BATCH / 4, "determinism": "none", "epochs": EPOCHS, "checkpoint": {"every_steps": 40}});
    document.as_object_mut().unwrap().extend(counted.as_object().unwrap().clone());
    document
        .as_object_mut()
        .unwrap()
        .retain(|name, _| !["steps", "gradient_clip_norm", "evaluation"].contains(&name.as_str()));

    demand(&system, 3).await;
    let id = submit(&client, &document, "counted").await;
    let more = async |members_now: u16| {
        until(&client, &id, "this many executors", |j| members(j) == members_now).await;
        let goal = steps(&job(&client, &id).await) + 20;
        until(&client, &id, "steps on them", |j| steps(j) >= goal && members(j) == members_now).await;
    };
    more(1).await;
    // Not three, which with four workers are no faster than two.
    demand(&system, 0).await;
    more(4).await;
    let pid = system.agent().slots().await.unwrap().iter().find_map(|slot| slot.pid).unwrap();
    kill_process(pid).unwrap();
    until(&client, &id, "the loss of one", |j| members(j) < 4).await;
    more(4).await;
    demand(&system, 2).await;
    more(2).await;
    let before = job(&client, &id).await;
    assert!(!before.is_over(), "it was over before all that was to happen to it: {before:?}");
    finished(&client, &id).await;

    let model = system.path("counted.safetensors");
    system.ebb_json(&["model", "get", &id, "-o", &text(&model)]).await;
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workers/torch/python");
    let check = tokio::process::Command::new(python())
        .args(["-c", CHECK])
        .arg(&model)
        .arg(EPOCHS.to_string())
        .env("PYTHONPATH", package)
        .output();
    let check = check.await.unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    assert_eq!(SAMPLES % GLOBAL_BATCH as usize, 0);

    let refused = system.ebb(&["verify", &id]).await;
    let said = String::from_utf8_lossy(&refused.stdout).into_owned() + &String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(12) && said.contains("`determinism: none`"), "{said}");
}

/// Chance, running statistics and a batch in several parts, whoever reads the rows: as the plain loop has it that is one executor.
#[tokio::test(flavor = "multi_thread")]
async fn one_executor_without_determinism_is_the_plain_loop() {
    let system = service().await;
    let code = TRAIN.replace("class Job(ebb.Job):", "class Job(ebb.Job):\n    micro_batch_rows = 12");
    assert_ne!(code, TRAIN);
    let mut document = document(&system, &code, 60).await;
    let with = plain_digest(&system.client(), &system.service.ready().store_url, &document).await;
    document["determinism"] = "none".into();
    let expected = plain_digest(&system.client(), &system.service.ready().store_url, &document).await;
    assert_ne!(expected, with);
    demand(&system, 3).await;
    let id = submit(&system.client(), &document, "alone").await;
    assert_eq!(finished(&system.client(), &id).await, expected);
}
