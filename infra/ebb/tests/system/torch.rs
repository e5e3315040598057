//! Models that their users wrote in PyTorch: the same promise as for Ebb's own. Submitted as a person does, from a folder and a job file.

use crate::schedules::schedule;
use crate::support::{LOOK_EVERY, System, WAIT_MAX, finished, job, plain_digest, submit, until};
use ebb::wire::Job;
use events_schema::Digest;
use gateway_client::{Body, Client};
use serde_json::{Value, json};
use std::path::PathBuf;
use storage::code::pack;

/// Slots of each service.
pub const SLOTS: u16 = 4;

/// Convolutions with BatchNorm and dropout on 8 × 8 digits: buffers, chance, and two parameter groups with a scheduler.
pub const TRAIN: &str = r#"
import torch, ebb
from torch import nn
from torch.nn import functional as F

class Job(ebb.Job):
    def model(self):
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10))

    def loss(self, model, batch):
        images, labels = batch
        return F.cross_entropy(model(images.reshape(-1, 1, 8, 8)), labels, reduction="sum"), len(labels)

    def optimizer(self, model):
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim <= 1]
        return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}], lr=3e-3)

    def scheduler(self, optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=10_000)
"#;

/// The Python with PyTorch that tests use.
pub fn python() -> String {
    std::env::var("EBB_TEST_TORCH")
        .expect("EBB_TEST_TORCH is not set: it names a Python with torch; `infra/run test` installs one")
}

/// A service whose jobs in PyTorch find that Python.
pub async fn service() -> System {
    System::start_with(SLOTS, &["--python", &python()]).await
}

/// A folder with one file of code, and a job file beside it.
pub fn project(system: &System, code: &str, more: &str) -> PathBuf {
    let folder = system.path("project");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("train.py"), code).unwrap();
    let text = format!(
        "name: mine\nengine: torch\nentry: train:Job\ndataset: digits\nworkers: {{min: 1, max: 4}}\nbatch_size: 8\ncheckpoint: {{every_steps: 20}}\nseed: 5\n{more}"
    );
    let file = folder.join("job.yaml");
    std::fs::write(&file, text).unwrap();
    file
}

/// The same job as a document, its code uploaded.
pub async fn document(system: &System, code: &str, steps: u64) -> Value {
    let file = project(system, code, "");
    let packed = pack(file.parent().unwrap()).unwrap();
    let digest = Digest::of(&packed).to_string();
    system.client().upload_code(&digest, packed).await.unwrap();
    json!({
        "name": "mine", "model": {"kind": "torch", "entry": "train:Job", "code": digest}, "dataset": "digits", "workers": {"min": 1, "max": 4},
        "batch_size": 8, "steps": steps, "seed": 5, "gradient_clip_norm": 1.0, "checkpoint": {"every_steps": 20, "keep": 2},
        "evaluation": {"dataset": "digits", "every_steps": 50},
    })
}

/// A job's record once it is over, however it ended.
pub async fn ended(client: &Client, id: &str) -> Job {
    let over = async {
        loop {
            let now = job(client, id).await;
            if now.is_over() {
                return now;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, over).await.expect("the job ends")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_and_ten_lines_make_a_model() {
    let system = service().await;
    let file = project(&system, TRAIN, "steps: 40\n");
    let submitted = system.ebb_json(&["submit", file.to_str().unwrap(), "--wait"]).await;
    assert_eq!(submitted["phase"], "finished", "{submitted}");
    let id = submitted["id"].as_str().unwrap();
    let model = system.path("model.safetensors");
    assert!(system.ebb(&["model", "get", id, "-o", model.to_str().unwrap()]).await.status.success());
    let load = "import sys, torch, safetensors.torch as s\n\
        t = s.load_file(sys.argv[1])\n\
        assert t['1.num_batches_tracked'].dtype == torch.int64 and int(t['1.num_batches_tracked']) == 40, t['1.num_batches_tracked']\n\
        assert t['0.weight'].shape == (8, 1, 3, 3)";
    let read = tokio::process::Command::new(python()).args(["-c", load]).arg(&model).output().await.unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pytorch_model_is_the_same_whatever_happens() {
    let system = service().await;
    let document = document(&system, TRAIN, 250).await;
    let expected = plain_digest(&system.client(), &system.service.ready().store_url, &document).await;
    // Each executor imports PyTorch, which takes seconds; more schedules are run by hand.
    let schedules = std::env::var("EBB_TORCH_SCHEDULES").ok().map_or(2, |text| text.parse().unwrap());
    for seed in 0..schedules {
        let (digest, story) = schedule(&system, &document, &format!("schedule-{seed}"), seed).await;
        assert_eq!(digest, expected, "seed {seed}: {story:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exception_in_the_jobs_code_fails_it_at_once_with_its_traceback() {
    let system = service().await;
    let code = TRAIN.replace(
        "images, labels = batch",
        "images, labels = batch\n        if self.step == 3: raise KeyError('no such thing')",
    );
    let client = system.client();
    let id = submit(&client, &document(&system, &code, 50).await, "raises").await;
    let failed = ended(&client, &id).await;
    let shown = client.job(&id).await.unwrap().as_it_came().to_string();
    assert_eq!(failed.phase, "failed", "{shown}");
    assert!(shown.contains("KeyError: 'no such thing'") && shown.contains("train.py"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_code_was_not_uploaded_is_refused() {
    let system = service().await;
    let mut document = document(&system, TRAIN, 5).await;
    document["model"]["code"] = "ab".repeat(32).into();
    let refused = system.client().submit_once(&Body::json(&document), None).await.unwrap_err().to_string();
    assert!(refused.contains("model.code"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_from_a_checkpoint_after_a_suspension() {
    let system = service().await;
    let document = document(&system, TRAIN, 400).await;
    let (client, store_url) = (system.client(), system.service.ready().store_url.clone());
    let expected = plain_digest(&client, &store_url, &document).await;
    let id = submit(&client, &document, "suspended").await;
    until(&client, &id, "some steps", |j| crate::support::steps(j) >= 30).await;
    client.suspend(&id).await.unwrap();
    until(&client, &id, "the suspension", |j| j.phase == "suspended").await;
    client.resume(&id).await.unwrap();
    assert_eq!(finished(&client, &id).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_that_cannot_be_started_is_named_on_the_job() {
    let system = service().await;
    let mut document = document(&system, TRAIN, 5).await;
    document["model"]["python"] = "/nowhere/bin/python".into();
    let client = system.client();
    let id = submit(&client, &document, "nowhere").await;
    ended(&client, &id).await;
    let shown = client.job(&id).await.unwrap().as_it_came().to_string();
    assert!(shown.contains("`/nowhere/bin/python` cannot be started"), "{shown}");
}
