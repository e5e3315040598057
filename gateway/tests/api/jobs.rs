//! Jobs over HTTP, decided by the real core.

use crate::support::{CELL, Rig, Script, job_with, quick};
use events_log::{EventLog, MemoryLog, Stream};
use events_schema::fact::{CheckpointInfo, Fact};
use events_schema::job::JobSpec;
use events_schema::orders::Telemetry;
use events_schema::report::{Metrics, Outcome};
use events_schema::*;
use object_store::ObjectStoreExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn a_job_submitted_as_json_or_yaml_is_there_and_queued() {
    let rig = Rig::with_datasets().await;
    let answer = rig.post("/v1/jobs", &job_with(json!({}))).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text);
    let job = &answer.json;
    let id = job["id"].as_str().unwrap();
    assert_eq!(answer.headers["location"], format!("/v1/jobs/{id}"));
    assert!(id.starts_with("job-") && id.len() == 30, "{id}");
    assert_eq!((&job["phase"], &job["name"], &job["tenant"]), (&json!("queued"), &json!("digits"), &json!("local")));
    assert_eq!(
        (&job["workers"], &job["slots"], &job["restarts"]),
        (&json!({"min": 1, "max": 2}), &json!([]), &json!(0))
    );
    assert_eq!(job["reason"]["policy"], "ebb");
    for absent in ["progress", "last_scaling", "last_checkpoint", "last_evaluation", "outcome", "failure", "generation"]
    {
        assert_eq!(job.get(absent), Some(&Value::Null), "{absent}");
    }
    let again = rig.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!((again.status, &again.json), (StatusCode::OK, job));

    let yaml = "name: by-yaml\nmodel: {kind: mlp}\ndataset: digits\nbatch_size: 4\nsteps: 10\nsuspend: true\n";
    for content_type in ["application/yaml", "text/yaml; charset=utf-8"] {
        let answer = rig.send(Method::POST, "/v1/jobs", &[("content-type", content_type)], Some(yaml.to_owned())).await;
        assert_eq!(
            (answer.status, &answer.json["phase"]),
            (StatusCode::CREATED, &json!("suspended")),
            "{}",
            answer.text
        );
    }
    // What is shown is what can be submitted.
    let clone = rig.post("/v1/jobs", &job["spec"]).await;
    assert_eq!((clone.status, &clone.json["spec"]), (StatusCode::CREATED, &job["spec"]));
}

#[tokio::test]
async fn a_key_makes_one_job_even_over_restarts() {
    let mut rig = Rig::with_datasets().await;
    let body = job_with(json!({})).to_string();
    let submit = async |rig: &Rig, key: &str, body: &str| {
        rig.send(Method::POST, "/v1/jobs", &[JSON, ("idempotency-key", key)], Some(body.to_owned())).await
    };
    let first = submit(&rig, "key 1", &body).await;
    assert_eq!(first.status, StatusCode::CREATED);
    for _ in 0..2 {
        let repeat = submit(&rig, "key 1", &body).await;
        assert_eq!((repeat.status, &repeat.json["id"]), (StatusCode::OK, &first.json["id"]));
        let other = submit(&rig, "key 1", &job_with(json!({"seed": 1})).to_string()).await;
        assert_eq!((other.status, other.slug()), (StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused"));
        rig.restart_gateway().await;
    }
    let another = submit(&rig, "key 2", &body).await;
    assert_eq!(another.status, StatusCode::CREATED);
    assert_ne!(another.json["id"], first.json["id"]);
    assert_eq!(rig.get("/v1/jobs").await.json["jobs"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn submits_of_one_key_at_once_make_one_job() {
    let rig = Rig::with_datasets().await;
    let body = job_with(json!({})).to_string();
    let other = job_with(json!({"seed": 9})).to_string();
    let submit =
        |body: &str| rig.send(Method::POST, "/v1/jobs", &[("idempotency-key", "k"), JSON], Some(body.to_owned()));
    let answers = futures::future::join_all((0..20).map(|n| submit(if n % 4 == 0 { &other } else { &body }))).await;
    let ids: BTreeSet<_> = answers.iter().filter_map(|answer| answer.json["id"].as_str()).collect();
    assert_eq!(ids.len(), 1);
    let made: Vec<_> = answers.iter().map(|answer| answer.status.as_u16()).collect();
    assert!(made.iter().all(|status| [200, 201, 422].contains(status)), "{made:?}");
    // Every sender learns the truth about its own body.
    let winner = rig.get("/v1/jobs").await.json["jobs"][0]["spec"]["seed"].clone();
    for (n, answer) in answers.iter().enumerate() {
        let seed = if n % 4 == 0 { 9 } else { 0 };
        assert_eq!(answer.status == 422, winner != json!(seed), "{n}: {}", answer.text);
    }
}

#[tokio::test]
async fn a_refused_submit_does_not_bind_its_key() {
    let rig = Rig::new().await;
    let body = job_with(json!({})).to_string();
    let submit = || rig.send(Method::POST, "/v1/jobs", &[JSON, ("idempotency-key", "k")], Some(body.clone()));
    for _ in 0..2 {
        let refused = submit().await;
        assert_eq!(
            (refused.status, refused.slug()),
            (StatusCode::UNPROCESSABLE_ENTITY, "unknown-reference"),
            "{}",
            refused.text
        );
    }
    for dataset in crate::support::datasets() {
        rig.command(events_schema::command::Command::RegisterDataset { dataset }).await;
    }
    rig.until("/v1/datasets", |answer| answer["datasets"].as_array().unwrap().len() == 2).await;
    assert_eq!(submit().await.status, StatusCode::CREATED);
    assert_eq!(submit().await.status, StatusCode::OK);
}

#[tokio::test]
async fn without_a_controller_a_submit_is_durable_and_says_so() {
    let rig = Rig::without_controller(Arc::new(MemoryLog::new()), quick()).await;
    let body = job_with(json!({})).to_string();
    let submit = || rig.send(Method::POST, "/v1/jobs", &[JSON, ("idempotency-key", "k")], Some(body.clone()));
    let answer = submit().await;
    assert_eq!((answer.status, &answer.json["status"]), (StatusCode::ACCEPTED, &json!("undecided")));
    let id = answer.json["id"].as_str().unwrap().to_owned();
    assert_eq!(
        (&answer.headers["location"], &answer.headers["retry-after"]),
        (&format!("/v1/commands/{}", answer.json["command"].as_str().unwrap()), &"2".to_owned())
    );
    assert_eq!(answer.json["path"], format!("/v1/jobs/{id}"));
    assert_eq!(rig.log.end(Stream::Commands, CELL).await.unwrap(), Offset(1));
    assert_eq!(rig.get(&answer.headers["location"]).await.json["status"], "undecided");
    assert_eq!(rig.get(&format!("/v1/jobs/{id}")).await.slug(), "unknown-job");
    assert_eq!(submit().await.json["id"], json!(id));

    // A cancel stands behind the submit and is decided behind it.
    assert_eq!(rig.delete(&format!("/v1/jobs/{id}")).await.status, StatusCode::ACCEPTED);
    for dataset in crate::support::datasets() {
        // Too late for the submit, which is refused; the key is free again.
        rig.command(events_schema::command::Command::RegisterDataset { dataset }).await;
    }
    let _controller = crate::support::TestController::start(rig.log.clone());
    rig.until("/v1/datasets", |answer| answer["datasets"].as_array().unwrap().len() == 2).await;
    // Whoever looks for what became of it is told, at both places.
    let status = rig.get(&answer.headers["location"]).await.json;
    assert_eq!((&status["status"], &status["problem"]["status"]), (&json!("refused"), &json!(422)), "{status}");
    let never = rig.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!((never.status, never.slug()), (StatusCode::NOT_FOUND, "unknown-job"));
    assert!(never.text.contains("never made") && never.text.contains("there is no dataset `digits`"), "{}", never.text);
    let made = submit().await;
    assert_eq!((made.status, &made.json["id"]), (StatusCode::CREATED, &json!(id)));
}

#[tokio::test]
async fn suspend_resume_and_cancel_follow_the_phases() {
    let rig = Rig::with_datasets().await;
    let id = rig.submit(&job_with(json!({}))).await;
    let act = async |verb: &str| rig.send(Method::POST, &format!("/v1/jobs/{id}/{verb}"), &[], None).await;
    let phase = |answer: crate::support::Answer| {
        (answer.status.as_u16(), answer.json["phase"].as_str().unwrap_or(answer.slug()).to_owned())
    };
    assert_eq!(phase(act("resume").await), (409, "wrong-phase".to_owned()));
    assert_eq!(phase(act("suspend").await), (200, "suspended".to_owned()));
    assert_eq!(phase(act("suspend").await), (409, "wrong-phase".to_owned()));
    assert_eq!(phase(act("resume").await), (200, "queued".to_owned()));
    assert_eq!(phase(rig.delete(&format!("/v1/jobs/{id}")).await), (200, "cancelled".to_owned()));
    let late = rig.delete(&format!("/v1/jobs/{id}")).await;
    assert_eq!((late.json["problems"][0]["value"].as_str().unwrap(), late.status.as_u16()), ("cancelled", 409));
    let model = rig.get(&format!("/v1/jobs/{id}/model")).await;
    assert_eq!((model.status.as_u16(), model.slug()), (409, "model-not-ready"));
    let link = rig.get(&format!("/v1/jobs/{id}/model/link")).await;
    assert_eq!((link.status.as_u16(), link.slug()), (409, "model-not-ready"));
}

#[tokio::test]
async fn pages_hold_every_job_once_newest_first() {
    let rig = Rig::with_datasets().await;
    let mut ids = Vec::new();
    for n in 0..23 {
        ids.push(rig.submit(&job_with(json!({"seed": n, "suspend": n % 2 == 0}))).await);
    }
    ids.reverse();
    let walk = async |query: &str| {
        let (mut seen, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let page = rig.get(&format!("/v1/jobs?{query}{cursor}")).await.json;
            pages += 1;
            seen.extend(page["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return (seen, pages),
            }
            // Newer jobs do not disturb a walk.
            rig.submit(&job_with(json!({}))).await;
        }
    };
    let (seen, pages) = walk("limit=5&phase=suspended").await;
    assert_eq!(seen, ids.iter().step_by(2).cloned().collect::<Vec<_>>());
    assert_eq!(pages, 3);
    let (seen, _) = walk("limit=7").await;
    assert_eq!(seen[seen.len() - 23..], ids);
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), seen.len());
    let (seen, pages) = walk("limit=200").await;
    assert!(seen.len() >= 23 && pages == 1);
}

#[tokio::test]
async fn a_job_says_whose_it_is_and_tenants_jobs_are_found_and_changed_by_whoever_submitted_them() {
    let rig = Rig::with_datasets().await;
    let theirs = rig.submit(&job_with(json!({"tenant": "research"}))).await;
    let ours = rig.submit(&job_with(json!({}))).await;
    for (tenant, id) in [("research", &theirs), ("local", &ours)] {
        let page = rig.get(&format!("/v1/jobs?tenant={tenant}")).await.json;
        let found: Vec<&str> = page["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
        assert_eq!((found, &page["jobs"][0]["tenant"]), (vec![id.as_str()], &json!(tenant)));
    }
    assert_eq!(rig.get("/v1/jobs?tenant=nobody").await.json["jobs"], json!([]));
    assert_eq!(rig.get("/v1/jobs?tenant=").await.slug(), "invalid-query");
    assert_eq!(rig.delete(&format!("/v1/jobs/{theirs}")).await.json["phase"], "cancelled");
}

#[tokio::test]
async fn jobs_are_found_by_the_beginning_of_their_id() {
    let rig = Rig::with_datasets().await;
    let ids = [rig.submit(&job_with(json!({}))).await, rig.submit(&job_with(json!({}))).await];
    for id in &ids {
        let page = rig.get(&format!("/v1/jobs?prefix={}", &id[..14])).await.json;
        assert_eq!((page["jobs"].as_array().unwrap().len(), page["jobs"][0]["id"].as_str()), (1, Some(id.as_str())));
    }
    assert_eq!(rig.get("/v1/jobs?prefix=job-").await.json["jobs"].as_array().unwrap().len(), 2);
    assert_eq!(rig.get("/v1/jobs?prefix=nothing").await.json["jobs"], json!([]));
    assert_eq!(rig.get("/v1/jobs?prefix=").await.slug(), "invalid-query");
}

#[tokio::test]
async fn an_unchanged_job_is_304() {
    let rig = Rig::with_datasets().await;
    let id = rig.submit(&job_with(json!({}))).await;
    let path = format!("/v1/jobs/{id}");
    let etag = rig.get(&path).await.headers["etag"].clone();
    let ask = async |tag: &str| rig.send(Method::GET, &path, &[("if-none-match", tag)], None).await;
    let unchanged = ask(&etag).await;
    assert_eq!(
        (unchanged.status, unchanged.bytes.len(), &unchanged.headers["etag"]),
        (StatusCode::NOT_MODIFIED, 0, &etag)
    );
    assert!(etag.starts_with("W/"), "progress changes under it: {etag}");
    assert_eq!(ask(etag.trim_start_matches("W/")).await.status, StatusCode::NOT_MODIFIED);
    assert_eq!(ask("\"other\"").await.status, StatusCode::OK);
    rig.delete(&path).await;
    let changed = ask(&etag).await;
    assert_eq!(changed.status, StatusCode::OK);
    assert_ne!(changed.headers["etag"], etag);
}

#[tokio::test]
async fn progress_is_shown_and_is_no_change() {
    let log = Arc::new(MemoryLog::new());
    crate::support::script_one_job(&log).await;
    let step = Arc::new(AtomicU64::new(1));
    let now = step.clone();
    let telemetry = move |job: &JobId| {
        let step = Step(now.load(Ordering::SeqCst));
        let job = job.clone();
        Some(Telemetry {
            job,
            generation: Generation(1),
            step,
            steps_total: 9,
            epoch: 0,
            loss: 0.5,
            samples_per_second: 8.0,
            step_us: 7,
            members: 2,
            data_wait_us: Some(3),
            checkpoint_every_ms: Some(66_000),
        })
    };
    let rig = Rig::with_telemetry(log, quick(), Arc::new(telemetry)).await;
    let before = rig.get("/v1/jobs/job-a").await;
    let expected = json!({"step": 1, "steps_total": 9, "epoch": 0, "loss": 0.5, "samples_per_second": 8.0, "step_us": 7, "members": 2, "data_wait_us": 3, "checkpoint_every_ms": 66000});
    assert_eq!(before.json["progress"], expected);
    step.store(2, Ordering::SeqCst);
    let after = rig.get("/v1/jobs/job-a").await;
    assert_eq!((&after.json["progress"]["step"], &after.headers["etag"]), (&json!(2), &before.headers["etag"]));
}

#[tokio::test]
async fn a_finished_job_shows_its_outcome_and_gives_its_model() {
    let log = Arc::new(MemoryLog::new());
    let mut script = Script::new(&log).await;
    let job = JobId::parse("job-done").unwrap();
    let spec = Box::new(JobSpec::parse(&job_with(json!({}))).unwrap());
    let accepted = Fact::JobAccepted {
        job: job.clone(),
        tenant: TenantId::parse("local").unwrap(),
        command: CommandId::parse("c").unwrap(),
        spec,
        body_digest: Digest::of(b""),
    };
    let checkpoint = CheckpointInfo {
        step: Step(10),
        generation: Generation(1),
        manifest_key: "jobs/job-done/m.json".into(),
        replica_digest: Digest::of(b"r"),
        bytes: 64,
    };
    let later = CheckpointInfo { step: Step(11), manifest_key: "jobs/job-done/n.json".into(), ..checkpoint.clone() };
    let metrics = Metrics { loss_micro: 250_000, correct: 97, count: 100, named: None };
    let outcome = Outcome {
        step: Step(12),
        model_key: "jobs/job-done/model.safetensors".into(),
        model_digest: Digest::of(b"m"),
        train_loss_micro: Some(125_000),
        metrics: Some(metrics.clone()),
    };
    script.batch(vec![accepted]).await;
    script
        .batch(vec![
            Fact::CheckpointAccepted { job: job.clone(), checkpoint },
            Fact::CheckpointAccepted { job: job.clone(), checkpoint: later },
            Fact::Evaluated { job: job.clone(), step: Step(12), metrics },
            Fact::JobFinished { job: job.clone(), outcome },
        ])
        .await;
    let rig = Rig::without_controller(log, quick()).await;
    let shown = rig.get("/v1/jobs/job-done").await.json;
    assert_eq!(shown["phase"], "finished");
    assert_eq!(
        shown["outcome"]["metrics"],
        json!({"loss_micro": 250_000, "correct": 97, "count": 100, "loss": 0.25, "accuracy": 0.97})
    );
    assert_eq!((&shown["outcome"]["train_loss"], &shown["last_evaluation"]["step"]), (&json!(0.125), &json!(12)));
    let checkpoints = rig.get("/v1/jobs/job-done/checkpoints").await.json;
    assert_eq!(checkpoints["checkpoints"][0]["manifest_key"], "jobs/job-done/m.json");
    let first = rig.get("/v1/jobs/job-done/checkpoints?limit=1").await.json;
    assert_eq!((first["checkpoints"].as_array().unwrap().len(), &first["checkpoints"][0]["step"]), (1, &json!(10)));
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = rig.get(&format!("/v1/jobs/job-done/checkpoints?limit=1&cursor={cursor}")).await.json;
    assert_eq!((&second["checkpoints"][0]["step"], &second["next_cursor"]), (&json!(11), &json!(null)));
    let steps = async |query: &str| {
        let shown = rig.get(&format!("/v1/jobs/job-done/checkpoints?{query}")).await.json;
        shown["checkpoints"].as_array().unwrap().iter().map(|one| one["step"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    for (query, wanted) in [
        ("from_step=11", [11].as_slice()),
        ("to_step=10", &[10]),
        ("from_step=10&to_step=11", &[10, 11]),
        ("from_step=12", &[]),
        ("newest=1", &[11]),
        ("newest=1&to_step=10", &[10]),
        ("newest=5&limit=1", &[10]),
    ] {
        assert_eq!(steps(query).await, wanted, "{query}");
    }
    let refused = rig.get("/v1/jobs/job-done/checkpoints?newest=0").await;
    assert_eq!((refused.status.as_u16(), refused.slug()), (400, "invalid-query"));

    let missing = rig.get("/v1/jobs/job-done/model").await;
    assert_eq!((missing.status.as_u16(), missing.slug()), (410, "model-lost"), "asking again does not help");
    assert!(missing.text.contains("jobs/job-done/model.safetensors"), "{}", missing.text);
    let missing = rig.get("/v1/jobs/job-done/model/link").await;
    assert_eq!((missing.status.as_u16(), missing.slug()), (410, "model-lost"), "a link to nothing");
    let model: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    rig.store.put(&"jobs/job-done/model.safetensors".into(), model.clone().into()).await.unwrap();
    let file = rig.get("/v1/jobs/job-done/model").await;
    assert_eq!((file.status, file.headers["content-length"].as_str()), (StatusCode::OK, "1200000"));
    assert!(file.bytes == model);

    let link = rig.get("/v1/jobs/job-done/model/link").await;
    assert_eq!((link.status, link.headers["cache-control"].as_str()), (StatusCode::OK, "no-store"));
    let url = link.json["url"].as_str().unwrap();
    assert!(url.starts_with("https://s3.example/bucket/prefix/jobs/job-done/model.safetensors?"), "{url}");
    assert!(url.contains("X-Amz-Expires=900") && !url.contains("secret"), "{url}");
    assert_eq!(link.json["bytes"], 1_200_000);
    assert!(link.json["expires_at"].as_str().unwrap().ends_with('Z'), "{}", link.text);
}
