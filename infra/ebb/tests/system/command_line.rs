//! The user's way: commands, their answers, their exit codes, and a model that others can read.

use crate::support::{EBB, System, finished, model_job, submit, text};
use serde_json::Value;
use std::fs::OpenOptions;
use std::process::{Command, Output, Stdio};
use tokio::io::{AsyncBufReadExt, BufReader};

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
    for missing in [
        ["job", "nothing"].as_slice(),
        &["fleet", "show", "nobody"],
        &["dataset", "show", "nothing"],
        &["wait", "nothing"],
    ] {
        let output = system.ebb(missing).await;
        assert_eq!(output.status.code(), Some(10), "{missing:?}");
    }
    let output = system.ebb(&["demand", "locl", "--needed", "1"]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(10) && said.contains("local"), "the nearest fleet is named: {said}");
    let output = Command::new(EBB).args(["jobs", "--url", "http://127.0.0.1:1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let output = Command::new(EBB).args(["jobs", "--no-such-option"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_uploaded_is_not_sent_again() {
    let system = System::start(1).await;
    // A folder of its own: beside it, the service's files change.
    std::fs::create_dir(system.path("gang")).unwrap();
    std::fs::write(system.path("gang/train.py"), "print('tide')").unwrap();
    let job = "name: gang\nengine: command\ncode: ./\ncommand: python3 train.py\nworkers: {max: 1}\n";
    std::fs::write(system.path("gang/job.yaml"), job).unwrap();
    for said_of_it in ["uploaded", "is there already"] {
        let output = system.ebb(&["submit", "gang/job.yaml", "--dry-run"]).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains(said_of_it), "{said_of_it}: {said}");
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn a_model_goes_where_it_was_asked_to_and_nowhere_else() {
    let system = System::start(1).await;
    let client = system.client();
    let mut document = model_job("mlp");
    document["steps"] = 20.into();
    let id = submit(&client, &document, "models").await;
    finished(&client, &id).await;
    let folder = system.path("models");
    std::fs::create_dir(&folder).unwrap();
    let refused = system.ebb(&["model", "get", &id, "-o", &text(&folder)]).await;
    assert!(refused.status.code() == Some(2) && said(&refused).contains("model.safetensors"), "{}", said(&refused));
    let file = system.path("model.safetensors");
    system.ebb_json(&["model", "get", &id, "-o", &text(&file)]).await;
    let piped = system.ebb(&["model", "get", &id, "-o", "-"]).await;
    assert_eq!(piped.stdout, std::fs::read(&file).unwrap());
    // A pipe is written into; a file in its place would never reach its reader.
    let pipe = system.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = tokio::task::spawn_blocking({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).unwrap()
    });
    system.ebb_json(&["model", "get", &id, "-o", &text(&pipe)]).await;
    assert_eq!(reader.await.unwrap(), piped.stdout);
    let parts = |name: &str| std::fs::read_dir(system.path(name)).unwrap().count();
    assert!(
        parts("models") == 0 && !system.path("pipe.part").exists() && !system.path("model.safetensors.part").exists()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_for_programs_are_a_document_a_line() {
    let system = System::start(1).await;
    let nothing = system.ebb(&["watch", "--output", "json"]).await;
    assert!(nothing.status.success() && nothing.stdout.is_empty(), "{nothing:?}");
    std::fs::write(system.path("job.yaml"), format!("{JOB}suspend: true\n")).unwrap();
    let waited = system.ebb(&["submit", "job.yaml", "--wait"]).await;
    assert!(waited.status.code() == Some(7) && said(&waited).contains("ebb resume job-"), "{}", said(&waited));
    // A script reads the id, and nothing else.
    let submitted = system.ebb(&["submit", "job.yaml"]).await;
    let id = String::from_utf8(submitted.stdout.clone()).unwrap();
    assert!(id.starts_with("job-") && id.ends_with('\n') && id.lines().count() == 1, "{submitted:?}");
    assert!(said(&submitted).contains("ebb watch job-"), "{}", said(&submitted));
    let shown = system.ebb_json(&["job", &id.trim()[4..12]]).await;
    assert_eq!(shown["id"], id.trim());
    let watched = system.ebb(&["watch", "--output", "json"]).await;
    assert!(watched.status.code() == Some(7), "it is suspended: {}", said(&watched));
    let records: Vec<Value> = watched
        .stdout
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect();
    assert_eq!((records.len(), &records.last().unwrap()["phase"]), (2, &Value::from("suspended")));
    // What happened before somebody followed is part of the story.
    let mut following = tokio::process::Command::new(EBB)
        .args(["events", records[0]["id"].as_str().unwrap(), "--follow", "--output", "json"])
        .env("EBB_URL", &system.service.ready().url)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let first = BufReader::new(following.stdout.take().unwrap()).lines().next_line().await.unwrap().unwrap();
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(first["type"], "dev.ebb.job.accepted.v1");
}

#[test]
fn output_that_cannot_be_written_is_a_failure_and_a_closed_pipe_is_none() {
    let completion =
        |out: Stdio| Command::new(EBB).args(["completion", "bash"]).stdout(out).stderr(Stdio::piped()).spawn().unwrap();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = completion(full.into()).wait_with_output().unwrap();
    assert!(output.status.code() == Some(1) && said(&output).contains("standard output"), "{}", said(&output));
    let mut child = completion(Stdio::piped());
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
}

#[test]
fn a_service_that_cannot_begin_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let up = Command::new(EBB).args(["up", "--listen", &address, "--data", &text(&data)]).output().unwrap();
    assert!(up.status.code() == Some(1) && said(&up).contains("--listen"), "{}", said(&up));
    let agent = ["agent", "--server", "far", "--slots", "1", "--token-file", "none", "--store", "s3://b", "--data"];
    let agent = Command::new(EBB).args(agent).arg(&data).args(["--controller", "10.0.0.1:7879"]).output().unwrap();
    assert!(agent.status.code() == Some(2) && said(&agent).contains("http://"), "{}", said(&agent));
    let agent = ["agent", "--server", "far", "--token-file", "none", "--store", "s3://b", "--data"];
    let agent =
        Command::new(EBB).args(agent).arg(&data).args(["--controller", "http://10.0.0.1:7879"]).output().unwrap();
    assert!(agent.status.code() == Some(2) && said(&agent).contains("--slots N"), "{}", said(&agent));
    let open = Command::new(EBB).args(["up", "--listen", "0.0.0.0:0", "--data", &text(&data)]).output().unwrap();
    assert!(open.status.code() == Some(2) && said(&open).contains("--allow-anyone"), "{}", said(&open));
    let role = ["controller", "--log", "kafka://127.0.0.1:1", "--store", "s3://b", "--listen-metrics", "0.0.0.0:0"];
    let role = Command::new(EBB).args(role).args(["--data", &text(&data)]).output().unwrap();
    assert!(role.status.code() == Some(2) && said(&role).contains("--metrics-to-anyone"), "{}", said(&role));
    assert!(!data.exists());
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
