//! What holds for every list, tag, part and answer: pages, conditions, ranges, names of requests, and that answers are of the published types.

use crate::support::{Rig, Script, job_with, quick, script_one_job};
use events_log::MemoryLog;
use events_schema::fact::{Fact, Refusal};
use events_schema::report::{ExitCause, Outcome, Report};
use events_schema::{Digest, ExecutorId, Generation, JobId, SlotId, Step};
use gateway_api::{Dataset, Datasets, Fleets, Job, JobPage, Problem, Slots};
use object_store::ObjectStoreExt;
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::sync::Arc;

const JSON: (&str, &str) = ("content-type", "application/json");

/// Four slots of two fleets, one and a half of them lent.
async fn two_fleets() -> Rig {
    let rig = Rig::with_datasets().await;
    rig.report(Report::AgentJoined {
        slots: 12,
        class: Digest::of(b"c"),
        address: "http://127.0.0.1:1".into(),
        devices: Vec::new(),
        quarantined: Default::default(),
        guests: false,
        slot_type: None,
    })
    .await;
    rig.until("/v1/slots", |answer| answer["slots"].as_array().unwrap().len() == 12).await;
    for (fleet, slots) in [("chat", json!([0, 1, 10, 11])), ("search", json!([2, 3]))] {
        let body = json!({"servers": [{"server": "local", "slots": slots}]});
        assert_eq!(rig.put(&format!("/v1/fleets/{fleet}"), &body).await.status, StatusCode::OK);
    }
    rig
}

/// All entries of a list, page by page.
async fn walk(rig: &Rig, path: &str, list: &str, name: &str) -> (Vec<String>, usize) {
    let (mut seen, mut pages, mut cursor) = (Vec::new(), 0, String::new());
    loop {
        let page = rig.get(&format!("{path}{cursor}")).await;
        assert_eq!(page.status, StatusCode::OK, "{}", page.text);
        seen.extend(page.json[list].as_array().unwrap().iter().map(|item| item[name].as_str().unwrap().to_owned()));
        pages += 1;
        match page.json["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (seen, pages),
        }
    }
}

#[tokio::test]
async fn every_list_has_pages_and_filters() {
    let rig = two_fleets().await;
    let slots: Vec<String> = (0..12).map(|n| format!("local/{n}")).collect();
    assert_eq!(walk(&rig, "/v1/slots?limit=5", "slots", "slot").await, (slots, 3));
    let of = |numbers: &[u32]| numbers.iter().map(|n| format!("local/{n}")).collect::<Vec<_>>();
    assert_eq!(walk(&rig, "/v1/slots?limit=3&fleet=chat", "slots", "slot").await, (of(&[0, 1, 10, 11]), 2));
    assert_eq!(walk(&rig, "/v1/slots?state=unoffered&fleet=search", "slots", "slot").await.0, of(&[2, 3]));
    assert_eq!(walk(&rig, "/v1/slots?server=far", "slots", "slot").await.0, of(&[]));
    assert_eq!(
        walk(&rig, "/v1/fleets?limit=1", "fleets", "name").await,
        (vec!["chat".to_owned(), "search".to_owned()], 2)
    );
    assert_eq!(walk(&rig, "/v1/fleets?prefix=se", "fleets", "name").await.0, ["search"]);
    assert_eq!(
        walk(&rig, "/v1/datasets?limit=1", "datasets", "name").await,
        (vec!["digits".to_owned(), "text".to_owned()], 2)
    );
    assert_eq!(walk(&rig, "/v1/datasets?prefix=t", "datasets", "name").await.0, ["text"]);
    let job = rig.submit(&job_with(json!({"name": "Ä b"}))).await;
    rig.submit(&job_with(json!({"name": "other"}))).await;
    assert_eq!(walk(&rig, "/v1/jobs?name=%C3%84+b&dataset=digits", "jobs", "id").await.0, [job]);
    assert_eq!(walk(&rig, "/v1/jobs?dataset=text&limit=5", "jobs", "id").await.0, of(&[]));
    let slot_cursor = rig.get("/v1/slots?limit=1").await.json["next_cursor"].as_str().unwrap().to_owned();
    for wrong in
        [format!("/v1/fleets?cursor={slot_cursor}"), "/v1/slots?state=lent".into(), "/v1/datasets?prefix=".into()]
    {
        assert_eq!(rig.get(&wrong).await.slug(), "invalid-query", "{wrong}");
    }
}

#[tokio::test]
async fn a_change_may_depend_on_what_was_read() {
    let rig = two_fleets().await;
    let path = "/v1/fleets/chat";
    let first = rig.get(path).await.headers["etag"].clone();
    let body = json!({"servers": [{"server": "local", "slots": [0, 1]}]}).to_string();
    let put = async |headers: &[(&str, &str)]| {
        let headers: Vec<(&str, &str)> = headers.iter().copied().chain([JSON]).collect();
        rig.send(Method::PUT, path, &headers, Some(body.clone())).await
    };
    let unmodified = rig.send(Method::GET, path, &[("if-none-match", &first)], None).await;
    assert_eq!((unmodified.status.as_u16(), unmodified.bytes.len()), (304, 0));
    assert_eq!(put(&[("if-match", "W/\"another\"")]).await.slug(), "precondition-failed");
    assert_eq!(put(&[("if-none-match", "*")]).await.status, StatusCode::PRECONDITION_FAILED);
    let changed = put(&[("if-match", &first)]).await;
    assert_eq!(
        (changed.status, changed.json["slots"].as_array().unwrap().len()),
        (StatusCode::OK, 2),
        "{}",
        changed.text
    );
    assert_ne!(changed.headers["etag"], first);
    assert_eq!(
        put(&[("if-match", &first)]).await.status,
        StatusCode::PRECONDITION_FAILED,
        "it was read before the change"
    );

    let job = rig.submit(&job_with(json!({"suspend": true}))).await;
    let path = format!("/v1/jobs/{job}");
    let tag = rig.get(&path).await.headers["etag"].clone();
    let resumed = rig.send(Method::POST, &format!("{path}/resume"), &[("if-match", &tag)], None).await;
    assert_eq!(resumed.status, StatusCode::OK, "{}", resumed.text);
    let cancel = async |tag: &str| rig.send(Method::DELETE, &path, &[("if-match", tag)], None).await;
    assert_eq!(cancel(&tag).await.status, StatusCode::PRECONDITION_FAILED);
    assert_eq!(cancel(&resumed.headers["etag"]).await.json["phase"], "cancelled");

    let tag = rig.get("/v1/datasets/text").await.headers["etag"].clone();
    let remove = async |tag: &str| rig.send(Method::DELETE, "/v1/datasets/text", &[("if-match", tag)], None).await;
    assert_eq!(remove("\"x\"").await.status, StatusCode::PRECONDITION_FAILED);
    assert_eq!(remove(&tag).await.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_model_is_given_in_parts() {
    let log = Arc::new(MemoryLog::new());
    script_one_job(&log).await;
    let job = JobId::parse("job-a").unwrap();
    let outcome = Outcome {
        step: Step(12),
        model_key: "jobs/job-a/model.safetensors".into(),
        model_digest: Digest::of(b"m"),
        train_loss_micro: Some(125_000),
        metrics: None,
    };
    Script::new(&log).await.batch(vec![Fact::JobFinished { job, outcome }]).await;
    let rig = Rig::without_controller(log, quick()).await;
    let model: Vec<u8> = (0..=255).collect();
    rig.store.put(&"jobs/job-a/model.safetensors".into(), model.clone().into()).await.unwrap();
    let get = async |headers: &[(&str, &str)]| rig.send(Method::GET, "/v1/jobs/job-a/model", headers, None).await;
    let whole = get(&[]).await;
    let etag = &whole.headers["etag"];
    assert_eq!(
        (whole.status, whole.headers["accept-ranges"].as_str(), &whole.bytes),
        (StatusCode::OK, "bytes", &model)
    );
    let part = get(&[("range", "bytes=200-")]).await;
    assert_eq!((part.status, &part.bytes[..]), (StatusCode::PARTIAL_CONTENT, &model[200..]));
    assert_eq!(
        (part.headers["content-range"].as_str(), part.headers["content-length"].as_str()),
        ("bytes 200-255/256", "56")
    );
    assert_eq!(get(&[("range", "bytes=-6"), ("if-range", etag)]).await.bytes, &model[250..]);
    assert_eq!(get(&[("range", "bytes=-6"), ("if-range", "\"other\"")]).await.status, StatusCode::OK);
    let beyond = get(&[("range", "bytes=256-")]).await;
    assert_eq!(
        (beyond.status.as_u16(), beyond.slug(), beyond.headers["content-range"].as_str()),
        (416, "range-beyond", "bytes */256")
    );
    assert_eq!(get(&[("if-none-match", etag)]).await.status, StatusCode::NOT_MODIFIED);
    // A range means nothing but to GET.
    for range in ["bytes=200-", "bytes=256-"] {
        let head = rig.send(Method::HEAD, "/v1/jobs/job-a/model", &[("range", range)], None).await;
        let told = [&head.headers["content-length"], &head.headers["accept-ranges"], &head.headers["etag"]];
        assert_eq!((head.status, told), (StatusCode::OK, [&"256".to_owned(), &"bytes".to_owned(), etag]), "{range}");
        assert!(head.bytes.is_empty() && !head.headers.contains_key("content-range"), "{head:?}");
    }
}

#[tokio::test]
async fn every_request_has_a_name() {
    let rig = Rig::with_datasets().await;
    let named = async |path: &str, id: &str| rig.send(Method::GET, path, &[("x-request-id", id)], None).await;
    let found = named("/v1/server", "mine-1").await;
    assert_eq!((found.status, found.headers["x-request-id"].as_str()), (StatusCode::OK, "mine-1"));
    let refused = named("/v1/jobs/job-b", "mine-2").await;
    assert_eq!((refused.headers["x-request-id"].as_str(), &refused.json["request_id"]), ("mine-2", &json!("mine-2")));
    assert_eq!(refused.headers["content-type"], "application/problem+json");
    assert_eq!(refused.headers["content-length"], refused.bytes.len().to_string());
    let made = named("/nowhere", "two words").await;
    let id = made.headers["x-request-id"].as_str();
    assert!(id.starts_with("req-") && made.json["request_id"] == id, "{made:?}");
}

#[tokio::test]
async fn a_job_shows_when_it_trained_and_what_it_held() {
    let log = Arc::new(MemoryLog::new());
    script_one_job(&log).await;
    let mut script = Script::new(&log).await;
    let job = JobId::parse("job-a").unwrap();
    let (executor, slot) = (ExecutorId { job: job.clone(), number: 0 }, "local/0".parse::<SlotId>().unwrap());
    script.batch(vec![Fact::ExecutorAssigned { executor: executor.clone(), slot: slot.clone() }]).await;
    script
        .batch(vec![Fact::GenerationActive { job: job.clone(), generation: Generation(1), step: Step(0), pause_us: 0 }])
        .await;
    script
        .batch(vec![Fact::ExecutorGone { executor, slot, exit: ExitCause::Left, awaited_until: None, verdict: None }])
        .await;
    script.batch(vec![Fact::JobCancelled { job }]).await;
    let rig = Rig::without_controller(log, quick()).await;
    let shown = rig.get("/v1/jobs/job-a").await.json;
    assert_eq!(shown["slot_seconds"], json!(0.002));
    let times = [&shown["started_at"], &shown["finished_at"]];
    assert_eq!(times, [&json!("1970-01-01T00:00:01.002Z"), &json!("1970-01-01T00:00:01.004Z")]);
}

/// Who asked was answered before anybody had decided, and looks later.
#[tokio::test]
async fn a_refused_command_says_what_its_request_would_have_been_answered() {
    let log = Arc::new(MemoryLog::new());
    let refused = |command: &str, subject: &str, refusal| Fact::CommandRefused {
        command: command.parse().unwrap(),
        subject: subject.to_owned(),
        refusal,
    };
    let unknown = |kind: &str, name: &str| Refusal::Unknown { kind: kind.into(), name: name.into(), nearest: None };
    let facts = vec![
        refused("cmd-1", "job-z", unknown("job", "job-z")),
        refused("cmd-2", "job-z", unknown("dataset", "digits")),
        refused("cmd-3", "digits", Refusal::InUse { by: "job job-a".into() }),
    ];
    Script::new(&log).await.batch(facts).await;
    let rig = Rig::without_controller(log, quick()).await;
    for (command, kind, part) in [
        ("cmd-1", "unknown-job", "`job-z`"),
        ("cmd-2", "unknown-reference", "`digits`"),
        ("cmd-3", "in-use", "dataset `digits` is used by job job-a"),
    ] {
        let status = rig.get(&format!("/v1/commands/{command}")).await.json;
        let problem: Problem = serde_json::from_value(status["problem"].clone()).unwrap();
        assert!(problem.kind.ends_with(kind) && problem.detail.contains(part), "{status}");
    }
}

/// An answer, read and written again as the published type: nothing is lost and nothing is added, and every word in it is a published one.
fn same<T: Debug + Serialize + DeserializeOwned>(answer: &Value) {
    let read: T = serde_json::from_value(answer.clone()).unwrap();
    // A word that is not published is kept as `Other`, and would be written again as it was.
    let shown = format!("{read:?}");
    assert!(!shown.contains("Other("), "{shown}");
    assert_eq!(serde_json::to_value(read).unwrap(), *answer);
}

#[tokio::test]
async fn answers_are_of_the_published_types() {
    let rig = two_fleets().await;
    let id =
        rig.submit(&job_with(json!({"shuffle": {"window": 8}, "schedule": {"kind": "step", "every_steps": 4}}))).await;
    same::<Job>(&rig.get(&format!("/v1/jobs/{id}")).await.json);
    same::<JobPage>(&rig.get("/v1/jobs?limit=1").await.json);
    same::<Datasets>(&rig.get("/v1/datasets").await.json);
    same::<Dataset>(&rig.get("/v1/datasets/text").await.json);
    same::<Fleets>(&rig.get("/v1/fleets").await.json);
    same::<Slots>(&rig.get("/v1/slots?limit=2").await.json);
    same::<Problem>(&rig.get("/v1/jobs/job-b").await.json);
    same::<gateway_api::EventPage>(&rig.get("/v1/events?limit=5").await.json);
    same::<gateway_api::Server>(&rig.get("/v1/server").await.json);
    assert_eq!(rig.get("/v1/openapi.json").await.json, gateway_api::openapi());
}
