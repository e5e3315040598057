//! Models in PyTorch whose code brings its own rows, measures by names of its own, or begins with another model.

use crate::schedules::schedule;
use crate::support::{System, plain_digest, submit, until};
use crate::torch::{ended, python, service};
use ebb::wire::Job;
use gateway_client::{Body, WantedJobs};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Rows with augmentation, read ahead by a process, and held-out rows that are measured by two names.
const TRAIN: &str = r#"
import torch, ebb
from torch import nn
from torch.nn import functional as F

class Rows(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows
    def __len__(self):
        return self.rows
    def __getitem__(self, row):
        g = torch.Generator().manual_seed(row)
        return torch.randn(12, generator=g) + 0.1 * torch.randn(12), row % 3

class Job(ebb.Job):
    loader = {"num_workers": 1}
    def model(self):
        return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, self.parameters.get("classes", 3)))
    def dataset(self):
        return Rows(150)
    def held_out(self):
        return Rows(21)
    def loss(self, model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="sum"), len(y)
    def optimizer(self, model):
        matrices = [p for p in model.parameters() if p.ndim == 2]
        return [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], lr=1e-3)]
    def evaluate(self, model, batch):
        x, y = batch
        scores = model(x)
        return {"margin": scores.max(1).values.sum(), "largest": float("inf")}, len(y)
"#;

/// A folder with the code and a job file beside it.
fn project(system: &System, name: &str, more: &str) -> PathBuf {
    let folder = system.path(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("train.py"), TRAIN).unwrap();
    let text = format!(
        "name: {name}\nengine: torch\nentry: train:Job\nworkers: {{min: 1, max: 4}}\nbatch_size: 8\ncheckpoint: {{every_steps: 20}}\nseed: 5\n{more}"
    );
    let file = folder.join("job.yaml");
    std::fs::write(&file, text).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_the_codes_own_need_no_dataset() {
    let system = service().await;
    let file = project(&system, "own-rows", "steps: 150\nevaluation: {every_steps: 50}\n");
    let document = system.ebb_json(&["submit", file.to_str().unwrap(), "--dry-run"]).await["spec"].clone();
    assert_eq!((&document["dataset"], &document["evaluation"]["dataset"]), (&Value::Null, &Value::Null));
    let expected = plain_digest(&system.client(), &system.service.ready().store_url, &document).await;
    let (digest, story) = schedule(&system, &document, "own-rows", 3).await;
    assert_eq!(digest, expected, "{story:?}");
    let named = WantedJobs { name: Some("own-rows".to_owned()), ..WantedJobs::default() };
    let jobs = system.client().jobs(&named).await.unwrap();
    let job = jobs[0].as_it_came();
    // 150 rows are five steps of 32 rows.
    let found = &job["last_evaluation"];
    assert!(found["means"]["margin"].is_f64() && found["means"]["largest"].is_null(), "{job}");
    assert_eq!(
        (&found["accuracy"], &found["loss"], &found["count"]),
        (&Value::Null, &Value::Null, &json!(21)),
        "{job}"
    );
    let told = system.ebb(&["job", job["id"].as_str().unwrap()]).await;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(
        told.contains("margin ") && told.contains("largest not a finite number") && !told.contains("accuracy"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_begins_with_a_model_of_another() {
    let system = service().await;
    let system = &system;
    let submitted = async |file: PathBuf| system.ebb_json(&["submit", file.to_str().unwrap(), "--wait"]).await;
    let first = submitted(project(system, "first", "steps: 20\n")).await;
    let (id, digest) = (first["id"].as_str().unwrap(), first["outcome"]["model_digest"].as_str().unwrap());
    let model = system.path("model.safetensors");
    assert!(system.ebb(&["model", "get", id, "-o", model.to_str().unwrap()]).await.status.success());
    let folder = system.path("saved");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(&model, folder.join("model.safetensors")).unwrap();
    let mut ends = Vec::new();
    for (number, from) in [
        id.to_owned(),
        digest.to_owned(),
        model.display().to_string(),
        folder.display().to_string(),
        format!("{{path: {}}}", folder.display()),
    ]
    .into_iter()
    .enumerate()
    {
        let file = project(system, &format!("from-{number}"), &format!("steps: 10\nfrom: {from}\n"));
        let done = submitted(file).await;
        assert_eq!(done["phase"], "finished", "{done}");
        ends.push(done["outcome"]["model_digest"].clone());
    }
    assert!(ends.iter().all(|end| *end == ends[0] && *end != digest), "{ends:?}");
    let fresh = submitted(project(system, "fresh", "steps: 10\n")).await;
    assert_ne!(fresh["outcome"]["model_digest"], ends[0]);

    // Another head is refused by name and shape, unless it may be left as it is made.
    let other = |name: &str, strict: bool| {
        let text = format!("steps: 3\nparameters: {{classes: 4}}\nfrom: {{job: {id}, strict: {strict}}}\n");
        project(system, name, &text)
    };
    let refused = system.ebb_json(&["submit", other("refused", true).to_str().unwrap()]).await;
    let client = system.client();
    let refused = ended(&client, refused["id"].as_str().unwrap()).await;
    let failure = refused.failure.unwrap_or_default();
    assert!(failure.contains("`4.weight` [3, 16], not [4, 16]") && failure.contains("strict: false"), "{failure}");
    assert_eq!(submitted(other("head", false)).await["phase"], "finished");
    let mut nowhere =
        system.ebb_json(&["submit", other("nowhere", true).to_str().unwrap(), "--dry-run"]).await["spec"].clone();
    nowhere["model"]["from"] = json!({"job": "job-nowhere"});
    let told = client.submit_once(&Body::json(&nowhere), None).await.unwrap_err().to_string();
    assert!(told.contains("model.from.job") && told.contains("a job that has ended with a model"), "{told}");
    nowhere["model"]["from"] = json!({"upload": "ab".repeat(32)});
    let told = client.submit_once(&Body::json(&nowhere), None).await.unwrap_err().to_string();
    assert!(told.contains("model.from.upload"), "{told}");

    // At home the same three.
    let script = "import sys, ebb, torch\n\
        given = [ebb.load(source) for source in sys.argv[1:]]\n\
        assert all(list(one) == list(given[0]) and all(torch.equal(one[n], given[0][n]) for n in one) for one in given)";
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workers/torch/python");
    let read = tokio::process::Command::new(python())
        .args(["-c", script, model.to_str().unwrap(), folder.to_str().unwrap(), id, digest])
        .env("PYTHONPATH", package)
        .env("EBB_URL", &system.service.ready().url)
        .output();
    let read = read.await.unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
}

/// A source that is slower than the model is waited for, and that is told as such.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_the_codes_own_rows_is_the_jobs_data_wait() {
    let system = service().await;
    let file = project(&system, "slow", "steps: 100000\n");
    let code = file.with_file_name("train.py");
    let slow = TRAIN.replace(
        "    def __getitem__(self, row):\n",
        "    def __getitem__(self, row):\n        __import__('time').sleep(0.01)\n",
    );
    std::fs::write(code, slow).unwrap();
    let document = system.ebb_json(&["submit", file.to_str().unwrap(), "--dry-run"]).await["spec"].clone();
    let client = system.client();
    let id = submit(&client, &document, "slow").await;
    let waited = |job: &Job| job.progress.and_then(|progress| progress.data_wait_us).is_some_and(|wait| wait > 10_000);
    until(&client, &id, "a wait for data", waited).await;
    system.ebb(&["cancel", &id]).await;
}
