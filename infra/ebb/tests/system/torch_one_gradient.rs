//! `determinism: none` of a model in PyTorch: every sample counts exactly once per epoch while executors come, go and are killed, counted by the model
//! itself.
//!
//! Sample i is the i-th unit vector, and the loss is its label's score, whose gradient is the same at any parameters. What a step adds is a power of two
//! divided by a power of two, so the weights *are* the counts, without rounding.

use crate::exactly_once::{SAMPLES, import_unit_vectors};
use crate::schedules::demand;
use crate::support::{System, finished, job, plain_digest, steps, submit, text, until};
use crate::torch::{SLOTS, TRAIN, document, python, service};
use ebb::wire::Job;
use loadtest_harness::service::kill_process;
use serde_json::{Value, json};

/// Divides the samples, so that every step has the same weight.
const GLOBAL_BATCH: u32 = 16;
/// So many that the job outlives all that happens to it, at the pace that it has meanwhile.
const EPOCHS: usize = 100;

/// In batches of at most five rows, of which an executor may host as many as sixteen. Slow for as long as the file `PACE` is there.
const COUNTS: &str = r#"
import os, time, torch, ebb
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
        time.sleep(0.02 if os.path.exists(PACE) else 0)
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

/// The same rows, which the code brings and processes of it read ahead, beside what has to count steps whatever batches there were.
const OWN_ROWS: &str = r#"
    loader = {"num_workers": 1}

    def dataset(self):
        rows = torch.arange(480)
        return torch.utils.data.TensorDataset(torch.eye(480), rows % 10)

    def scheduler(self, optimizer):
        self.rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        return self.rates

    def state(self, model):
        self.taken = torch.zeros((), dtype=torch.int64)
        return {"taken": self.taken}

    def on_step(self, model, step):
        self.taken += self.update_steps
        assert int(self.taken) == step + 1 == self.rates.last_epoch, (self.taken, step, self.rates.last_epoch)
"#;

/// With a learning rate in proportion to the batch a delivery adds the same to the weights in each of them.
fn range() -> Value {
    json!({"max": GLOBAL_BATCH, "learning_rate_rule": "linear"})
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_counts_once_per_epoch_in_pytorch_without_determinism() {
    let counted = Counted::start().await;
    let (system, id) = (&counted.system, counted.count(COUNTS, json!({"dataset": "unit", "epochs": EPOCHS})).await);
    let refused = system.ebb(&["verify", &id]).await;
    let said = String::from_utf8_lossy(&refused.stdout).into_owned() + &String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(12) && said.contains("`determinism: none`"), "{said}");
}

/// Where updates take as many steps as the job has executors.
#[tokio::test(flavor = "multi_thread")]
async fn every_sample_counts_once_per_epoch_in_pytorch_whatever_the_batches() {
    let counted = Counted::start().await;
    let id = counted.count(COUNTS, json!({"dataset": "unit", "epochs": EPOCHS, "batch_range": range()})).await;
    batches_moved(&job(&counted.system.client(), &id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_the_code_and_its_schedule_count_steps_whatever_the_batches() {
    let counted = Counted::start().await;
    let code = COUNTS.to_owned() + OWN_ROWS;
    let steps = EPOCHS * SAMPLES / GLOBAL_BATCH as usize;
    let id = counted.count(&code, json!({"steps": steps, "batch_range": range()})).await;
    batches_moved(&job(&counted.system.client(), &id).await);
}

/// One of one step, of two and of four at least, as it had so many executors.
fn batches_moved(job: &Job) {
    let batches = job.batches.as_ref().unwrap();
    let of = u64::from(GLOBAL_BATCH);
    assert!([of, 2 * of, 4 * of].iter().all(|samples| batches.used.contains(samples)), "{batches:?}");
    assert!(batches.used.iter().all(|samples| samples % of == 0 && *samples <= 4 * of), "{batches:?}");
}

/// A service whose jobs find the file that slows them.
struct Counted {
    system: System,
    folder: tempfile::TempDir,
}

impl Counted {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let readable = text(folder.path());
        let system = System::start_with(SLOTS, &["--python", &python(), "--readable", &readable]).await;
        Self { system, folder }
    }

    /// Trains a job of this code that says this, on other executors again and again, and counts how often it used each sample. Gives its id.
    async fn count(&self, code: &str, said: Value) -> String {
        let system = &self.system;
        import_unit_vectors(system).await;
        let pace = self.folder.path().join("pace");
        std::fs::write(&pace, "").unwrap();
        let code = &code.replace("PACE", &format!("{pace:?}"));
        let client = system.client();
        let mut document = document(system, code, 1).await;
        let fields = document.as_object_mut().unwrap();
        fields.retain(|name, _| !["dataset", "steps", "gradient_clip_norm", "evaluation"].contains(&name.as_str()));
        let counted = json!({"batch_size": GLOBAL_BATCH / 4, "determinism": "none", "checkpoint": {"every_steps": 40}});
        fields.extend(counted.as_object().unwrap().clone());
        fields.extend(said.as_object().unwrap().clone());

        demand(system, 3).await;
        let id = submit(&client, &document, "counted").await;
        let more = async |members_now: u16| {
            until(&client, &id, "this many executors", |j| members(j) == members_now).await;
            let goal = steps(&job(&client, &id).await) + 20;
            until(&client, &id, "steps on them", |j| steps(j) >= goal && members(j) == members_now).await;
        };
        more(1).await;
        // Not three, which with four workers are no faster than two.
        demand(system, 0).await;
        more(4).await;
        let pid = system.agent().slots().await.unwrap().iter().find_map(|slot| slot.pid).unwrap();
        kill_process(pid).unwrap();
        until(&client, &id, "the loss of one", |j| members(j) < 4).await;
        more(4).await;
        demand(system, 2).await;
        more(2).await;
        let before = job(&client, &id).await;
        assert!(!before.is_over(), "it was over before all that was to happen to it: {before:?}");
        std::fs::remove_file(&pace).unwrap();
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
        id
    }
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
