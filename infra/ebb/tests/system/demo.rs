//! The demo, as a user runs it: on the embedded log, and on a real Kafka.

use crate::support::{EBB, LOOK_EVERY, WAIT_MAX, kafka, text};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;
use tokio::io::{AsyncBufReadExt, BufReader};

async fn demo(arguments: &[&str], environment: &[(&str, String)]) {
    let mut command = tokio::process::Command::new(EBB);
    command.args(["demo", "--output", "json"]).args(arguments).envs(environment.iter().cloned());
    let output = command.output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let last = String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned();
    let result: Value = serde_json::from_str(&last).unwrap_or_else(|e| panic!("{e}: {last}\n{said}"));
    assert_eq!(result["model_digest_elastic"], result["model_digest_fixed"], "{result}");
    assert!(result["accuracy"].as_f64().unwrap() >= 0.96, "{result}");
    assert_eq!(result["steps_lost"], 0, "{result}");
    assert!(result["release_ms"].as_array().unwrap().len() >= 4, "three by demand, one by take-back: {result}");
    assert!(!result["scale_out_pause_ms"].as_array().unwrap().is_empty(), "{result}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_keeps_its_promises() {
    demo(&[], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_keeps_its_promises_on_kafka_and_s3() {
    let brokers = kafka();
    let url = if brokers.contains("://") { brokers } else { format!("kafka://{brokers}") };
    let s3 = |name: &str| {
        std::env::var(name).unwrap_or_else(|_| {
            panic!("{name} is not set: start an S3 server with `infra/servers/s3.sh start DIR`, which prints it")
        })
    };
    let environment = [
        ("AWS_ENDPOINT", s3("EBB_TEST_S3")),
        ("AWS_ACCESS_KEY_ID", s3("EBB_TEST_S3_ACCESS")),
        ("AWS_SECRET_ACCESS_KEY", s3("EBB_TEST_S3_SECRET")),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
    ];
    demo(&["--log", &url, "--store", &format!("s3://{}/demo", s3("EBB_TEST_S3_BUCKET"))], &environment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_demo_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let ended = ended_by(Signal::TERM, folder.path()).await;
    assert_eq!(ended.code(), Some(130), "{ended}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "its directory is removed");
    until_no_process_names(folder.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_demo_takes_its_service_along() {
    let folder = tempfile::tempdir().unwrap();
    ended_by(Signal::KILL, folder.path()).await;
    until_no_process_names(folder.path()).await;
}

/// A demo with its directory in `folder`, sent a signal once its job trains; how it ended.
async fn ended_by(signal: Signal, folder: &Path) -> std::process::ExitStatus {
    let mut command = tokio::process::Command::new(EBB);
    let mut demo = command.arg("demo").env("TMPDIR", folder).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut said = BufReader::new(demo.stderr.take().unwrap()).lines();
    while !said.next_line().await.unwrap().expect("the demo went on").contains("4 train") {}
    let pid = rustix::process::Pid::from_raw(i32::try_from(demo.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
    demo.wait().await.unwrap()
}

/// The service and its executors were started with paths in `folder`, as arguments or in their environment.
async fn until_no_process_names(folder: &Path) {
    let named = |process: &Path| {
        let read = |what: &str| std::fs::read(process.join(what)).unwrap_or_default();
        let all = [read("cmdline"), read("environ")].concat();
        String::from_utf8_lossy(&all).contains(&text(folder))
    };
    let running = || std::fs::read_dir("/proc").unwrap().flatten().filter(|p| named(&p.path())).count();
    let begun = Instant::now();
    while running() > 0 {
        assert!(begun.elapsed() < WAIT_MAX, "{} processes outlived the demo", running());
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
