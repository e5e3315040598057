//! A checkpoint that cannot be used: the one before it is used and that is said, or the job waits for the build that reads it.

use crate::store::OnS3;
use crate::support::{System, finished, model_job, plain_digest, steps, submit, until, until_saved};
use ebb::wire::Job;
use gateway_client::Events;
use loadtest_harness::service::kill_process;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use serde_json::{Value, json};
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
    let on_s3 = OnS3::start(2).await;
    let (system, store) = (&on_s3.system, on_s3.store());
    let client = system.client();
    let (id, checkpoints) = suspended(system, "damaged").await;
    let newest = checkpoints[1]["manifest_key"].as_str().unwrap();
    let shard = newest.replace("manifest.json", "shard-0.safetensors");
    let object = Path::from(shard.as_str());
    let mut bytes = store.get(&object).await.unwrap().bytes().await.unwrap().to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    store.put(&object, bytes.into()).await.unwrap();
    system.ebb_json(&["resume", &id]).await;
    let digest = finished(&client, &id).await;
    // Datasets have the same names in every store.
    let beside = tempfile::tempdir().unwrap();
    let url = format!("file://{}", beside.path().display());
    storage::dataset::register_digits(&storage::open_store(&url).unwrap()).await.unwrap();
    assert_eq!(digest, plain_digest(&client, &url, &document()).await);

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

/// The interval of Young and Daly for a checkpoint that costs a second, as one counts before there was any, and one loss in the six hours before the job began:
/// √(2 · 1 s · 6 h), and what it has trained by then, which is less than a hundredth of that.
const FIRST_MS: f64 = 207_846.0;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_leaves_it_to_ebb_saves_more_often_the_more_often_it_began_anew() {
    let system = System::start(2).await;
    let (client, agent) = (system.client(), system.agent());
    let mut document = document();
    document["checkpoint"] = json!({"every": "auto"});
    let id = submit(&client, &document, "auto").await;
    let mut before_ms = u64::MAX;
    for losses in [0, 1] {
        let every_ms = |j: &Job| j.progress.and_then(|p| p.checkpoint_every_ms).filter(|ms| *ms < before_ms);
        let said = until(&client, &id, "its interval", |j| j.is_over() || every_ms(j).is_some()).await;
        let (pays_ms, said_ms) = (FIRST_MS / f64::from(losses + 1).sqrt(), every_ms(&said).unwrap());
        assert!((pays_ms - 1.0..pays_ms * 1.01).contains(&(said_ms as f64)), "{said_ms} ms after {losses} losses");
        let shown = String::from_utf8(system.ebb(&["job", &id]).await.stdout).unwrap();
        assert!(shown.contains(", a checkpoint every ") && shown.contains(" executors"), "{shown}");
        assert_eq!(said.restarts, losses);
        before_ms = said_ms;
        // One that ended by itself in between is no failure.
        agent.slots().await.unwrap().iter().filter_map(|slot| slot.pid).for_each(|pid| drop(kill_process(pid)));
    }
}
