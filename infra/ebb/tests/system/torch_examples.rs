//! The examples of jobs in PyTorch, `docs/examples/torch/`: each runs as it is, but for fewer steps, and gives the model that it gives
//! without any of the service. (That which is a program of its own is tried in `gang.rs`.)

use crate::support::{System, finished, import_text, plain_digest};
use crate::torch::service;
use std::path::{Path, PathBuf};

/// Every folder in it is an example.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/torch");
/// Enough for schedules to move and for momentum to count.
const STEPS: &str = "steps: 6";
/// Lines of an example's code, so that it stays one.
const LINES_MAX: usize = 60;

fn examples() -> Vec<PathBuf> {
    let mut folders: Vec<_> = std::fs::read_dir(EXAMPLES).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| !folder.ends_with("gang"));
    folders.sort();
    assert!(!folders.is_empty(), "no examples in {EXAMPLES}");
    folders
}

/// A copy of an example that ends sooner; its job file.
fn shortened(example: &Path, copy: &Path) -> PathBuf {
    std::fs::create_dir_all(copy).unwrap();
    let code = std::fs::read_to_string(example.join("train.py")).unwrap();
    assert!(code.lines().count() < LINES_MAX, "{} has {LINES_MAX} lines or more", example.display());
    std::fs::write(copy.join("train.py"), code).unwrap();
    let job = std::fs::read_to_string(example.join("job.yaml")).unwrap();
    let lines: Vec<&str> = job.lines().map(|line| if line.starts_with("steps:") { STEPS } else { line }).collect();
    assert!(lines.contains(&STEPS), "{} does not say its steps", example.display());
    let file = copy.join("job.yaml");
    std::fs::write(&file, lines.join("\n")).unwrap();
    file
}

async fn run(system: &System, example: &Path) {
    let name = example.file_name().unwrap().to_str().unwrap();
    let file = shortened(example, &system.path(name));
    let file = file.to_str().unwrap();
    // The same job as a document: the packed code instead of the folder.
    let document = system.ebb_json(&["submit", file, "--dry-run"]).await["spec"].clone();
    let submitted = system.ebb_json(&["submit", file, "--wait"]).await;
    assert_eq!(submitted["phase"], "finished", "{name}: {submitted}");
    let client = system.client();
    let digest = finished(&client, submitted["id"].as_str().unwrap()).await;
    let expected = plain_digest(&client, &system.service.ready().store_url, &document).await;
    assert_eq!(digest, expected, "{name}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_runs_as_pasted() {
    let system = service().await;
    import_text(&system).await;
    for example in examples() {
        run(&system, &example).await;
    }
}
