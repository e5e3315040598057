//! A checkpoint that cannot be used: the one before it is used and that is said, or the job waits for the build that reads it.

use crate::support::{System, finished, model_job, plain_digest, steps, submit, until, until_saved};
use gateway_client::Events;
use serde_json::Value;
use std::path::PathBuf;

/// Long enough to be suspended before it ends.
fn document() -> Value {
    let mut document = model_job("cnn");
    document["steps"] = 8_000.into();
    document
}

/// A job that stands still with two checkpoints at least: its id, and the newest two, oldest first.
async fn suspended(system: &System, key: &str) -> (String, Vec<Value>) {
    let client = system.client();
    let id = submit(&client, &document(), key).await;
    let before = until_saved(system, &id, 1).await;
    let goal = before[0]["step"].as_u64().unwrap() + 20;
    until(&client, &id, "some steps more", |j| steps(j) > goal).await;
    system.ebb_json(&["suspend", &id]).await;
    until(&client, &id, "the suspension", |j| j.phase == "suspended").await;
    (id.clone(), newest_two(system, &id).await)
}

async fn newest_two(system: &System, id: &str) -> Vec<Value> {
    let saved = until_saved(system, id, 2).await;
    saved[saved.len() - 2..].to_vec()
}

fn file(system: &System, key: &str) -> PathBuf {
    PathBuf::from(system.service.ready().store_url.strip_prefix("file://").unwrap()).join(key)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_checkpoint_is_passed_over_and_everybody_is_told() {
    let system = System::start(2).await;
    let client = system.client();
    let (id, checkpoints) = suspended(&system, "damaged").await;
    let newest = checkpoints[1]["manifest_key"].as_str().unwrap();
    let shard = newest.replace("manifest.json", "shard-0.safetensors");
    let mut bytes = std::fs::read(file(&system, &shard)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(file(&system, &shard), bytes).unwrap();
    system.ebb_json(&["resume", &id]).await;
    let digest = finished(&client, &id).await;
    assert_eq!(digest, plain_digest(&client, &system.service.ready().store_url, &document()).await);

    let record = system.ebb_json(&["job", &id]).await;
    let found = record["damaged_checkpoints"].as_array().unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    for (field, expected) in [
        ("step", &checkpoints[1]["step"]),
        ("generation", &checkpoints[1]["generation"]),
        ("instead", &checkpoints[0]["step"]),
        ("object", &Value::from(shard.as_str())),
    ] {
        assert_eq!(&found[0][field], expected, "{field} of {found:?}");
    }
    let (of, instead) = (&checkpoints[1]["step"], &checkpoints[0]["step"]);
    let shown = String::from_utf8(system.ebb(&["job", &id]).await.stdout).unwrap();
    let words = [format!("the checkpoint of step {of} is damaged"), format!("of step {instead} is used instead")];
    assert!(words.iter().all(|words| shown.contains(words)), "{shown}");
    let damaged = Events::of_job(&id).of_types(&["checkpoint.damaged.v1"]);
    let said = client.all_events(&damaged).await.unwrap();
    assert_eq!(said.len(), 1, "once, however many members found it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_of_another_build_suspends_the_job_until_that_build_is_there() {
    let system = System::start(1).await;
    let client = system.client();
    let (id, checkpoints) = suspended(&system, "another build").await;
    let manifest = file(&system, checkpoints[1]["manifest_key"].as_str().unwrap());
    let readable = std::fs::read_to_string(&manifest).unwrap();
    let later = readable.replace(r#""format_version": 1"#, r#""format_version": 9"#);
    assert_ne!(later, readable);
    std::fs::write(&manifest, later).unwrap();
    system.ebb_json(&["resume", &id]).await;
    let shown = |j: &ebb::wire::Job| j.unreadable_checkpoint.as_ref().map(|found| found.reason.clone());
    let waiting = until(&client, &id, "its end", |j| j.phase == "suspended" && shown(j).is_some()).await;
    let reason = shown(&waiting).unwrap();
    assert!(reason.contains("format 9") && reason.contains("run the build that wrote it, ebb "), "{reason}");
    assert_eq!(newest_two(&system, &id).await, checkpoints, "nothing was thrown away");
    std::fs::write(&manifest, readable).unwrap();
    system.ebb_json(&["resume", &id]).await;
    let digest = finished(&client, &id).await;
    assert_eq!(digest, plain_digest(&client, &system.service.ready().store_url, &document()).await);
}
