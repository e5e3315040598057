//! The user's way: commands, their answers, their exit codes, and a model that others can read.

use crate::support::{EBB, System, text};
use std::process::Command;

const JOB: &str = "
name: first
model: {kind: mlp, hidden: [32]}
dataset: digits
evaluation: {dataset: digits-test, every_steps: 50}
workers: {min: 1, max: 2}
batch_size: 32
epochs: 4
optimizer: {kind: adamw, learning_rate: 0.01}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_submitted_job_becomes_a_model_that_opens() {
    let system = System::start(2).await;
    std::fs::write(system.path("job.yaml"), JOB).unwrap();
    let ended = system.ebb_json(&["submit", "job.yaml", "--wait"]).await;
    assert_eq!(ended["phase"], "finished", "{ended}");
    let accuracy = ended["outcome"]["metrics"]["accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.8, "it learned something: {accuracy}");
    let id = ended["id"].as_str().unwrap();
    let file = system.path("model.safetensors");
    let got = system.ebb_json(&["model", "get", &id[4..14], "-o", &text(&file)]).await;
    assert_eq!(got["model_digest"], ended["outcome"]["model_digest"]);
    let bytes = std::fs::read(&file).unwrap();
    let model = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let parameters: usize = model.iter().map(|(_, view)| view.shape().iter().product::<usize>()).sum();
    assert_eq!(parameters, 64 * 32 + 32 + 32 * 10 + 10);
    opens_in_python(&text(&file), parameters);
}

/// Somebody else's reader sees the same tensors.
fn opens_in_python(file: &str, parameters: usize) {
    const SCRIPT: &str = "import sys; from safetensors.numpy import load_file; print(sum(t.size for t in load_file(sys.argv[1]).values()))";
    let python = std::env::var("EBB_TEST_PYTHON").expect("EBB_TEST_PYTHON is not set: it names a python3 with the packages safetensors and numpy; `infra/run test tests` sets one up");
    let output = Command::new(python).args(["-c", SCRIPT, file]).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        parameters.to_string(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_the_field_and_have_their_own_exit_code() {
    let system = System::start(1).await;
    std::fs::write(system.path("bad.yaml"), JOB.replace("batch_size", "batchsize").replace("max: 2", "max: 0"))
        .unwrap();
    let output = system.ebb(&["submit", "bad.yaml"]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    for part in ["batchsize", "batch_size", "workers.max"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let output = system.ebb(&["job", "nothing"]).await;
    assert_eq!(output.status.code(), Some(1));
    let output = system.ebb(&["demand", "locl", "--needed", "1"]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(4) && said.contains("local"), "the nearest fleet is named: {said}");
    let output = Command::new(EBB).args(["jobs", "--url", "http://127.0.0.1:1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let output = Command::new(EBB).args(["jobs", "--no-such-option"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_is_the_same_job() {
    let system = System::start(1).await;
    std::fs::write(system.path("job.yaml"), format!("{JOB}suspend: true\n")).unwrap();
    let first = system.ebb_json(&["submit", "job.yaml", "--idempotency-key", "k"]).await;
    let again = system.ebb_json(&["submit", "job.yaml", "--idempotency-key", "k"]).await;
    assert_eq!(first["id"], again["id"]);
    assert_eq!(system.ebb_json(&["jobs"]).await["jobs"].as_array().unwrap().len(), 1);
}
