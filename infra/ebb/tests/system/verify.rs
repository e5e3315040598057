//! `ebb verify`: a job that was disturbed is the job that is trained once more; one whose state was changed behind its back is not, and what nobody can train
//! again is refused.

use crate::gang::submit_script;
use crate::schedules::demand;
use crate::support::{System, finished, model_job, steps, submit, text, until, until_saved};
use crate::torch::{TRAIN, project, service};
use ebb::wire::Job;
use events_schema::Digest;
use gateway_client::Body;
use loadtest_harness::service::kill_process;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::path::PathBuf;
use storage::checkpoint::{Manifest, replica_digest};

/// Long enough to be disturbed and short enough to be trained several times; all of its checkpoints are kept.
fn document() -> Value {
    let mut document = model_job("cnn");
    document["steps"] = 1_500.into();
    document["checkpoint"] = json!({"every_steps": 200, "keep": 20});
    document
}

/// Runs `ebb verify`; its exit code and its document.
async fn verify(system: &System, arguments: &[&str]) -> (i32, Value) {
    let arguments: Vec<&str> = ["verify"].iter().chain(arguments).copied().chain(["-o", "json"]).collect();
    let output = system.ebb(&arguments).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {said}"));
    (output.status.code().unwrap(), document)
}

/// Executors that train a job in lock-step.
fn members(job: &Job) -> u16 {
    job.progress.map_or(0, |progress| progress.members)
}

fn all_equal(compared: &[Value]) -> bool {
    compared.iter().all(|one| one["equal"] == true)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disturbed_job_is_the_same_from_its_start_and_over_a_stretch() {
    let system = System::start(4).await;
    let client = system.client();
    let mut long = document();
    // So long that executors come and go within it.
    long["steps"] = 8_000.into();
    long["checkpoint"]["every_steps"] = 1_000.into();
    let id = submit(&client, &long, "verified").await;
    until(&client, &id, "some steps", |j| steps(j) > 70).await;
    demand(&system, 3).await;
    let before = steps(&until(&client, &id, "one executor", |j| members(j) == 1).await);
    until(&client, &id, "steps on it", |j| steps(j) > before + 20).await;
    demand(&system, 1).await;
    let before = steps(&until(&client, &id, "newcomers", |j| members(j) > 1).await);
    until(&client, &id, "steps on them", |j| steps(j) > before + 20).await;
    let pid = system.agent().slots().await.unwrap().iter().find_map(|slot| slot.pid);
    pid.map(kill_process).transpose().unwrap();
    finished(&client, &id).await;
    demand(&system, 0).await;

    let file = system.path("verified.json");
    let (code, whole) = verify(&system, &[&id, "--file", &text(&file)]).await;
    assert_eq!((code, &whole["verdict"]), (0, &json!("equal")), "{whole:#}");
    assert_eq!(serde_json::from_slice::<Value>(&std::fs::read(file).unwrap()).unwrap(), whole);
    let compared = whole["compared"].as_array().unwrap();
    let saved: Vec<Value> = until_saved(&system, &id, 4).await.iter().map(|one| one["step"].clone()).collect();
    let (replicas, model) = compared.split_at(saved.len());
    // Of a checkpoint that the retraining was too fast to write there is nothing to compare.
    assert!(!compared.iter().any(|one| one["equal"] == false) && all_equal(model), "{whole:#}");
    assert_eq!(replicas.iter().map(|one| one["step"].clone()).collect::<Vec<_>>(), saved, "the end is one of them");
    assert_eq!(model.iter().map(|one| &one["what"]).collect::<Vec<_>>(), ["model"]);
    let run = &whole["original_run"];
    assert_eq!((&run["slots_least"], &run["slots_most"], &run["losses"]), (&json!(1), &json!(4), &json!(1)), "{run:#}");
    assert!(run["scalings"].as_u64().unwrap() >= 2, "{run:#}");
    assert_eq!(whole["retraining"]["run"]["slots_most"], 1, "{whole:#}");
    let again = system.ebb_json(&["job", whole["retraining"]["job"].as_str().unwrap()]).await;
    assert_eq!((&again["name"], &again["spec"]["retrains"]["job"]), (&json!("verify cnn"), &json!(id)));
    assert_eq!(again["numeric_class"], whole["job"]["numeric_class"]);

    let (from, to) = (saved[0].to_string(), saved[2].to_string());
    let (code, stretch) = verify(&system, &[&id, "--from", &from, "--to", &to, "--slots", "3"]).await;
    assert_eq!((code, &stretch["verdict"]), (0, &json!("equal")), "{stretch:#}");
    let compared: Vec<&Value> = stretch["compared"].as_array().unwrap().iter().map(|one| &one["step"]).collect();
    assert_eq!(compared, [&saved[1], &saved[2]]);
    assert_eq!(stretch["retraining"]["run"]["slots_least"], 3, "{stretch:#}");
    let (code, last) = verify(&system, &[&id, "--last"]).await;
    assert_eq!(
        (code, &last["stretch"]["from_step"], &last["stretch"]["to_step"]),
        (0, &saved[saved.len() - 2], &json!(8_000)),
        "{last:#}"
    );
    // The same job cannot be said to retrain another one.
    let mut other = long;
    other["seed"] = 12.into();
    other["retrains"] = json!({"job": id, "from_step": saved[0]});
    let refused = client.submit_once(&Body::json(&other), None).await.unwrap_err().to_string();
    assert!(refused.contains("a job with the same spec as this one"), "{refused}");
}

/// Changes one bit of a checkpoint's first parameter, and all digests in it that tell.
fn forge(system: &System, manifest_key: &str) {
    let store = PathBuf::from(system.service.ready().store_url.strip_prefix("file://").unwrap());
    let place = store.join(manifest_key);
    let mut manifest = Manifest::parse(&std::fs::read(&place).unwrap()).unwrap();
    let mut replica = Vec::new();
    for (number, shard) in manifest.shards.iter_mut().enumerate() {
        let mut bytes = std::fs::read(store.join(&shard.key)).unwrap();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        if number == 0 {
            bytes[header + 2] ^= 0x40;
        }
        shard.blake3 = Digest::of(&bytes);
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let elements = tensors.tensor("replica").unwrap().data().chunks_exact(4);
        replica.extend(elements.map(|b| f32::from_le_bytes(b.try_into().unwrap())));
        std::fs::write(store.join(&shard.key), bytes).unwrap();
    }
    manifest.replica_digest = replica_digest(&replica);
    std::fs::write(place, manifest.to_bytes()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_state_was_changed_is_another_one_from_then_on() {
    let system = System::start(2).await;
    let client = system.client();
    let mut long = document();
    // So long that it is not over before it is suspended.
    long["steps"] = 6_000.into();
    long["checkpoint"]["every_steps"] = 1_000.into();
    let id = submit(&client, &long, "forged").await;
    // One to be equal, and another that is made when it is suspended.
    let saved = until_saved(&system, &id, 1).await;
    let goal = saved[0]["step"].as_u64().unwrap() + 20;
    until(&client, &id, "some steps more", |j| steps(j) > goal).await;
    system.ebb_json(&["suspend", &id]).await;
    until(&client, &id, "the suspension", |j| j.phase == "suspended").await;
    let checkpoints = system.ebb_json(&["checkpoints", &id]).await["checkpoints"].as_array().unwrap().clone();
    let forged = checkpoints.last().unwrap();
    forge(&system, forged["manifest_key"].as_str().unwrap());
    system.ebb_json(&["resume", &id]).await;
    finished(&client, &id).await;

    let (code, found) = verify(&system, &[&id]).await;
    assert_eq!((code, &found["verdict"]), (11, &json!("different")), "{found:#}");
    let (at, difference) = (forged["step"].as_u64().unwrap(), &found["difference"]);
    let first = difference["first_step"].as_u64().unwrap();
    let mut after = until_saved(&system, &id, 2).await.into_iter().filter_map(|one| one["step"].as_u64());
    assert_eq!(after.find(|step| *step > at), Some(first), "the next that was saved: {difference:#}");
    assert!(difference["last_equal_step"].as_u64().unwrap() <= at, "{difference:#}");
    let named = &difference["tensors"]["first"];
    assert!(!named["name"].as_str().unwrap().is_empty() && named["recorded"] != named["recomputed"], "{difference:#}");

    // Up to where it was changed it is what it was, and it begins nowhere with what is not what was recorded.
    let at = at.to_string();
    assert_eq!(verify(&system, &[&id, "--to", &at]).await.0, 0);
    let (code, refused) = verify(&system, &[&id, "--from", &at]).await;
    assert_eq!(code, 12, "{refused:#}");
    assert!(refused["says"].as_str().unwrap().contains("is of another replica"), "{refused:#}");
    // In the midst of a run there is no model; the recorded replica is made one.
    let (code, midst) = verify(&system, &[&id, "--to", &first.to_string()]).await;
    assert_eq!((code, &midst["difference"]["tensors"]["at_step"]), (11, &json!(first)), "{midst:#}");
    // The change is in the first parameter, and what follows from it was a step or more ago.
    assert_eq!(midst["difference"]["tensors"]["first"]["name"], *named["name"].as_str().unwrap(), "{midst:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_refused_by_name() {
    let system = System::start(1).await;
    let id = submit_script(&system, "gang", "exit 0", "").await;
    let (code, refused) = verify(&system, &[&id]).await;
    assert_eq!((code, &refused["verdict"], &refused["retraining"]), (12, &json!("impossible"), &Value::Null));
    assert!(refused["says"].as_str().unwrap().contains("a whole program (`command`)"), "{refused:#}");
}

/// Buffers, a scheduler's state and two parameter groups: all of it is in the replica that a stretch begins with.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_in_pytorch_is_verified_over_a_stretch() {
    let system = service().await;
    let client = system.client();
    let file = project(&system, TRAIN, "steps: 90");
    let id = system.ebb_json(&["submit", &text(&file)]).await["id"].as_str().unwrap().to_owned();
    until(&client, &id, "some steps", |j| steps(j) > 25).await;
    demand(&system, 3).await;
    finished(&client, &id).await;
    demand(&system, 0).await;
    let (code, found) = verify(&system, &[&id, "--last", "--slots", "2"]).await;
    assert_eq!((code, &found["verdict"]), (0, &json!("equal")), "{found:#}");
    let (from, to) = (found["stretch"]["from_step"].as_u64().unwrap(), &found["stretch"]["to_step"]);
    assert!(from < 90 && from.is_multiple_of(20) && *to == 90, "{found:#}");
    let what: Vec<&Value> = found["compared"].as_array().unwrap().iter().map(|one| &one["what"]).collect();
    assert_eq!(what, ["replica", "model"], "{found:#}");
}
