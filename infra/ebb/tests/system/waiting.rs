//! Scripts: one line with the id, and an exit code that says how a job ended, the same from every command that waits.

use crate::support::{EBB, System, model_job, submit, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Output;

/// Jobs that are watched at once.
const JOBS_WATCHED: usize = 24;

const JOB: &str = "
name: held
model: {kind: mlp, hidden: [8]}
dataset: digits
workers: {min: 1, max: 1}
batch_size: 16
steps: 20
suspend: true
";

fn code(output: &Output) -> (i32, String) {
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_code_says_how_a_job_ended() {
    let system = System::start(1).await;
    std::fs::write(system.path("job.yaml"), JOB).unwrap();
    // As scripts do it.
    let script =
        format!("ID=$({EBB} submit job.yaml) && [ \"$(printf %s \"$ID\" | wc -l)\" = 0 ] && printf %s \"$ID\"");
    let url = system.service.ready().url.clone();
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .env("EBB_URL", url)
        .current_dir(system.path("."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let id = String::from_utf8(output.stdout).unwrap();

    for arguments in [&["wait", &id][..], &["job", "wait", &id], &["watch", &id], &["submit", "job.yaml", "--wait"]] {
        let ended = system.ebb(arguments).await;
        assert_eq!(ended.status.code(), Some(7), "{arguments:?}: {}", code(&ended).1);
    }
    assert_eq!(code(&system.ebb(&["wait", &id, "--for", "state=suspended"]).await).0, 0);
    let late = system.ebb(&["wait", &id, "--for", "state=running", "--timeout", "3s"]).await;
    assert!(code(&late).0 == 8 && code(&late).1.contains("is suspended; waited 3s"), "{}", code(&late).1);
    system.ebb_json(&["cancel", &id]).await;
    for arguments in [&["wait", &id][..], &["watch", &id], &["wait", &id, "--for", "state=running"]] {
        assert_eq!(code(&system.ebb(arguments).await).0, 6, "{arguments:?}");
    }
    let mut document = model_job("mlp");
    document["steps"] = 5.into();
    let trained = submit(&system.client(), &document, "waited for").await;
    assert_eq!(code(&system.ebb(&["wait", &trained, "--for", "state=running"]).await).0, 0);
    let both = system.ebb(&["wait", &trained, &id]).await;
    assert_eq!(code(&both).0, 6, "one of them did not finish: {}", code(&both).1);
    assert_eq!(code(&system.ebb(&["wait", &trained, "-o", "name"]).await).0, 0);
}

/// More jobs than have bars on a screen.
#[tokio::test(flavor = "multi_thread")]
async fn all_unfinished_jobs_are_judged() {
    let system = System::start(1).await;
    let mut document = model_job("mlp");
    document["suspend"] = true.into();
    let mut ids = Vec::new();
    for number in 0..JOBS_WATCHED {
        ids.push(submit(&system.client(), &document, &number.to_string()).await);
    }
    let watched = system.ebb(&["watch", "-o", "json"]).await;
    assert_eq!(code(&watched).0, 7, "{}", code(&watched).1);
    let records = String::from_utf8(watched.stdout).unwrap();
    let seen = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
    let seen: BTreeSet<String> = records.lines().map(seen).collect();
    assert_eq!(seen, ids.iter().cloned().collect());
    let shown = system.ebb(&["watch"]).await;
    let said = String::from_utf8(shown.stdout.clone()).unwrap();
    assert!(code(&shown).0 == 7 && said.contains(&format!("20 of {JOBS_WATCHED} unfinished jobs")), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_checks_everything_and_changes_nothing() {
    let system = System::start(1).await;
    std::fs::write(system.path("job.yaml"), JOB).unwrap();
    let valid = system.ebb_json(&["submit", "job.yaml", "--dry-run"]).await;
    assert_eq!((&valid["known"], &valid["spec"]["batch_size"]), (&Value::Null, &Value::from(16)), "{valid}");
    assert!(valid["spec"]["checkpoint"].is_object(), "with what the file leaves out: {valid}");
    for (what, part) in [
        ("dataset: digitz", "digits"),
        ("model: {kind: gpt, context: 9, layers: 1, heads: 1, width: 8}", "tokens"),
        ("batchsize: 16", "batch_size"),
    ] {
        let (name, _) = what.split_once(':').unwrap();
        let kept: Vec<&str> = JOB.lines().filter(|line| !line.starts_with(&format!("{name}:"))).collect();
        std::fs::write(system.path("wrong.yaml"), format!("{}\n{what}\n", kept.join("\n"))).unwrap();
        let dry = system.ebb(&["submit", "wrong.yaml", "--dry-run"]).await;
        let real = system.ebb(&["submit", "wrong.yaml"]).await;
        for output in [dry, real] {
            assert!(code(&output).0 == 4 && code(&output).1.contains(part), "{what}: {}", code(&output).1);
        }
    }
    assert_eq!(system.ebb_json(&["jobs"]).await["jobs"].as_array().unwrap().len(), 0);
    // The same key and body again is the same job, which a dry run says too.
    let made = system.ebb_json(&["submit", "job.yaml", "--idempotency-key", "k"]).await;
    let known = system.ebb_json(&["submit", "job.yaml", "--idempotency-key", "k", "--dry-run"]).await;
    assert_eq!(known["known"], made["id"]);
    let job = text(&system.path("job.yaml"));
    let dry = system.ebb(&["submit", &job, "--dry-run", "-o", "name"]).await;
    assert!(dry.status.success() && dry.stdout.is_empty(), "{dry:?}");
}
