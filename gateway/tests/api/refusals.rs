//! Bad inputs: each refused with its own clear problem, none with a 5xx.

use crate::support::{Rig, job_with};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A request and what its refusal has to say.
struct Bad {
    method: Method,
    path: String,
    headers: Vec<(&'static str, &'static str)>,
    body: Option<String>,
    status: u16,
    slug: &'static str,
    field: &'static str,
    phrase: &'static str,
}

fn bad(
    method: Method,
    path: &str,
    body: Option<String>,
    (status, slug, field, phrase): (u16, &'static str, &'static str, &'static str),
) -> Bad {
    let headers = if body.is_some() { vec![("content-type", "application/json")] } else { vec![] };
    Bad { method, path: path.to_owned(), headers, body, status, slug, field, phrase }
}

impl Bad {
    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, value));
        self
    }
}

type Says = (u16, &'static str, &'static str, &'static str);

fn get(path: &str, says: Says) -> Bad {
    bad(Method::GET, path, None, says)
}

fn job(changes: Value, field: &'static str, phrase: &'static str) -> Bad {
    bad(Method::POST, "/v1/jobs", Some(job_with(changes).to_string()), (422, "invalid-fields", field, phrase))
}

fn body(path: &str, body: &Value, field: &'static str, phrase: &'static str) -> Bad {
    let method =
        if path.starts_with("/v1/fleets/") && path.matches('/').count() == 3 { Method::PUT } else { Method::POST };
    bad(method, path, Some(body.to_string()), (422, "invalid-fields", field, phrase))
}

fn raw(content_type: &'static str, text: &str, says: Says) -> Bad {
    bad(Method::POST, "/v1/jobs", Some(text.to_owned()), says).with("content-type", content_type)
}

fn specs() -> Vec<Bad> {
    vec![
        job(json!({"name": null}), "name", "1 to 63 characters"),
        job(json!({"name": 7}), "name", "a text"),
        job(json!({"name": "x".repeat(64)}), "name", "printable"),
        job(json!({"model": null}), "model", "an object such as"),
        job(json!({"model": {"kind": "mpl"}}), "model.kind", "did you mean `mlp`"),
        job(
            json!({"model": {"kind": "torch", "entry": "train.py", "code": "ab".repeat(32)}}),
            "model.entry",
            "`module:Class`",
        ),
        job(json!({"model": {"kind": "mlp", "hidden": [0]}}), "model.hidden", "whole numbers from 1"),
        job(json!({"model": {"kind": "mlp", "hiden": [4]}}), "model.hiden", "did you mean `hidden`"),
        job(json!({"model": {"kind": "cnn", "channels": [10], "groups": 3}}), "model.groups", "divides every entry"),
        job(json!({"model": {"kind": "gpt", "width": 10, "heads": 3}}), "model.heads", "divides `width`"),
        job(json!({"model": {"kind": "mlp", "dropout": 1.5}}), "model.dropout", "from 0 to 0.95"),
        job(json!({"dataset": "Digits!"}), "dataset", "a-z, 0-9"),
        job(json!({"workers": {"min": 3, "max": 2}}), "workers.min", "at most `max`"),
        job(json!({"workers": {"max": 0}}), "workers.max", "from 1 to 256"),
        job(json!({"workers": 4}), "workers", "an object"),
        job(json!({"batch_size": 0}), "batch_size", "from 1 to 65536"),
        job(json!({"batch_size": "8"}), "batch_size", "a whole number"),
        job(json!({"steps": 5}), "steps", "not both"),
        job(json!({"epochs": null}), "epochs", "or `steps`"),
        job(json!({"epochs": 0}), "epochs", "from 1 to 1000000"),
        job(json!({"seed": -1}), "seed", "from 0"),
        job(json!({"shuffle": "random"}), "shuffle", "`blocks`, `full`"),
        job(json!({"tail": "keep"}), "tail", "one of short, drop"),
        job(json!({"optimizer": {"kind": "adam"}}), "optimizer.kind", "did you mean `adamw`"),
        job(json!({"optimizer": {"kind": "sgd", "momentum": 1}}), "optimizer.momentum", "from 0 to 0.99"),
        job(json!({"schedule": {"kind": "step"}}), "schedule.every_steps", "whole number"),
        job(json!({"gradient_clip_norm": 0}), "gradient_clip_norm", "from 0.000001"),
        job(json!({"evaluation": {"every_steps": 5}}), "evaluation.dataset", "a registered dataset"),
        job(json!({"checkpoint": {"keep": 0}}), "checkpoint.keep", "from 1 to 1000"),
        job(json!({"priority": 1.5}), "priority", "whole number; higher"),
        job(json!({"suspend": "no"}), "suspend", "true or false"),
        job(json!({"unit_timeout_ms": "10m"}), "unit_timeout_ms", "a whole number of milliseconds from 1000 to"),
        job(json!({"store_patience_ms": 5}), "store_patience_ms", "from 180000 to 86400000: a request is tried"),
        job(json!({"epoch": 3}), "epoch", "did you mean `epochs`"),
        job(json!({"zzz": 3}), "zzz", "the fields here are name"),
    ]
}

fn bodies() -> Vec<Bad> {
    let malformed = |field, phrase| (400, "malformed-body", field, phrase);
    let decided = |changes: Value, slug, field, phrase| {
        bad(Method::POST, "/v1/jobs", Some(job_with(changes).to_string()), (422, slug, field, phrase))
    };
    vec![
        raw("application/json", "{\"name\": \"a\",\n  \"model\" 3}", malformed("", "expected `:`")),
        raw("application/json", "{\"name\": \"a\", \"name\": \"b\"}", malformed("", "stands twice")),
        raw("application/json", "{\"name\": \"a\"", malformed("", "EOF")),
        raw("application/yaml", "name: [a\n", malformed("", "did not find expected")),
        raw("application/yaml", "name: .inf\n", malformed("", "not finite")),
        raw("application/json", "   ", malformed("", "a JSON or YAML object")),
        raw("application/yaml", "--- a\n--- b\n", malformed("", "more than one document")),
        raw("application/json", "[1, 2]", (422, "invalid-fields", "", "an object")),
        raw(
            "application/xml",
            "<job/>",
            (415, "unsupported-media-type", "content-type", "application/json or application/yaml"),
        ),
        raw("application/json; charset=utf-16", "{}", (415, "unsupported-media-type", "content-type", "UTF-8")),
        decided(json!({"dataset": "digit"}), "unknown-reference", "dataset", "did you mean `digits`"),
        decided(json!({"dataset": "text"}), "unfit-value", "dataset", "which the model `mlp` reads"),
        decided(
            json!({"dataset": "text", "model": {"kind": "gpt", "context": 65}}),
            "unfit-value",
            "model.context",
            "at most 64",
        ),
        decided(json!({"evaluation": {"dataset": "text"}}), "unfit-value", "evaluation.dataset", "rows are like those"),
    ]
}

fn paths_queries_and_headers() -> Vec<Bad> {
    let query = |field, phrase| (400, "invalid-query", field, phrase);
    let header = |field, phrase| (400, "invalid-header", field, phrase);
    let unknown = "job-aaaaaaaaaaaaaaaaaaaaaaaaaa";
    vec![
        get("/v1/job", (404, "unknown-path", "path", "did you mean `/v1/jobs`")),
        get("/", (404, "unknown-path", "path", "a path of this API")),
        bad(Method::PATCH, "/v1/jobs", None, (405, "method-not-allowed", "method", "POST")),
        bad(Method::POST, "/v1/slots", None, (405, "method-not-allowed", "method", "GET")),
        get("/v1/jobs/NOT-AN-ID", (400, "invalid-id", "job id", "a-z, 0-9")),
        get("/v1/datasets/%ff", (400, "invalid-id", "path", "UTF-8")),
        get(&format!("/v1/jobs/{unknown}"), (404, "unknown-job", "job", "GET /v1/jobs lists them")),
        bad(Method::POST, "/v1/jobs/job-nowhere/suspend", None, (404, "unknown-job", "job", "a job that exists")),
        get("/v1/datasets/digts", (404, "unknown-dataset", "dataset", "did you mean `digits`")),
        bad(
            Method::DELETE,
            "/v1/datasets/pictures",
            None,
            (404, "unknown-dataset", "dataset", "GET /v1/datasets lists them"),
        ),
        get("/v1/fleets/nobody", (404, "unknown-fleet", "fleet", "GET /v1/fleets lists them")),
        get("/v1/jobs?limit=0", query("limit", "from 1 to 200")),
        get("/v1/jobs?phase=runing", query("phase", "one of queued, starting")),
        get("/v1/jobs?cursor=abc", query("cursor", "a `next_cursor` of an earlier page")),
        get("/v1/jobs?fase=queued", query("fase", "did you mean `phase`")),
        get("/v1/jobs?limit=1&limit=2", query("limit", "stands once")),
        get(
            &format!("/v1/jobs/{unknown}/checkpoints?from_step=2&to_step=1"),
            query("from_step", "at most `to_step`, which is 1"),
        ),
        get(
            "/v1/datasets/digits/links?from_number=8&to_number=7",
            query("from_number", "at most `to_number`, which is 7"),
        ),
        get("/v1/server?verbose=1", query("verbose", "no query parameters here")),
        get("/v1/events?from=yesterday", query("from", "0-0 for the beginning")),
        get("/v1/events?from=999999-0", query("from", "a cursor of this log")),
        get("/v1/events?limit=1001", query("limit", "from 1 to 1000")),
        get("/v1/events", header("Last-Event-ID", "the `id` of an earlier event")).with("last-event-id", "12"),
        get("/v1/events", header("Last-Event-ID", "may be of another service")).with("last-event-id", "999999-3"),
        bad(Method::POST, "/v1/jobs", Some("{}".into()), header("Idempotency-Key", "1 to 255 printable"))
            .with("idempotency-key", "a\tb"),
    ]
}

/// A dataset from somewhere.
fn source(from: Value, says: Says) -> Bad {
    let mut dataset = json!({"name": "d"});
    dataset.as_object_mut().unwrap().extend(from.as_object().unwrap().clone());
    bad(Method::POST, "/v1/datasets", Some(dataset.to_string()), says)
}

fn fleets_and_datasets() -> Vec<Bad> {
    let digest = "0".repeat(64);
    let fleet = "/v1/fleets/chat";
    let demand = "/v1/fleets/chat/demand";
    let datasets = "/v1/datasets";
    vec![
        body(fleet, &json!({}), "servers", "a list such as"),
        body(fleet, &json!({"servers": [{"server": "a"}]}), "servers[0].slots", "a number of slots from 1"),
        body(
            fleet,
            &json!({"servers": [{"server": "a", "slots": 1}, {"server": "a", "slots": [0]}]}),
            "servers[1]",
            "each slot once",
        ),
        body(fleet, &json!({"servers": [], "offers": "by-demand"}), "offers", "did you mean `by_demand`"),
        body(fleet, &json!({"servers": [], "reclaim_deadline_ms": 5}), "reclaim_deadline_ms", "from 100"),
        bad(
            Method::POST,
            "/v1/fleets/chat/offers",
            Some(json!({"slots": ["local/7"]}).to_string()),
            (422, "unfit-value", "slots", "slots that fleet `chat` declares"),
        ),
        body("/v1/fleets/chat/reclaims", &json!({"slots": ["local-0"]}), "slots[0]", "SERVER/INDEX"),
        body("/v1/fleets/chat/offers", &json!({"slots": []}), "slots", "a list of 1 to"),
        body(demand, &json!({}), "needed", "`needed` (slots) or `utilization`"),
        body(demand, &json!({"needed": 1, "utilization": 1}), "utilization", "not both"),
        body(demand, &json!({"utilization": -0.5}), "utilization", "from 0 to"),
        body(demand, &json!({"utilization": 1, "target": 0.01}), "target", "from 0.05 to 1"),
        body(demand, &json!({"needed": 1, "target": 0.5}), "target", "only beside `utilization`"),
        body(demand, &json!({"needed": 1, "sequence": -1}), "sequence", "whole number"),
        bad(
            Method::POST,
            demand,
            Some(json!({"needed": 1, "sequence": 3}).to_string()),
            (409, "old-signal", "sequence", "above 10"),
        ),
        bad(
            Method::POST,
            "/v1/fleets/chta/demand",
            Some(json!({"needed": 1}).to_string()),
            (404, "unknown-fleet", "fleet", "did you mean `chat`"),
        ),
        bad(
            Method::PUT,
            "/v1/fleets/thief",
            Some(json!({"servers": [{"server": "local", "slots": 1}]}).to_string()),
            (409, "name-taken", "slot", "belongs to fleet chat"),
        ),
        body(datasets, &json!({"name": "d"}), "uris", "Parquet or Arrow"),
        body(datasets, &json!({"name": "d", "uris": [""]}), "uris[0]", "a text of 1 to"),
        body(datasets, &json!({"name": "d", "metadata_key": "k"}), "metadata_digest", "the digest of the object"),
        body(
            datasets,
            &json!({"name": "d", "metadata_key": "k", "metadata_digest": "xyz"}),
            "metadata_digest",
            "64 hexadecimal",
        ),
        body(
            datasets,
            &json!({"name": "d", "uris": ["file:///x"], "sample": {"kind": "tokens"}}),
            "sample.length",
            "from 2 to",
        ),
        body(
            datasets,
            &json!({"name": "d", "metadata_key": "k", "metadata_digest": digest, "sample": {"kind": "tokens", "length": 2, "vocabulary": 2}}),
            "sample",
            "the metadata object says it",
        ),
        source(
            json!({"metadata_key": "datasets/d/metadata-0.json", "metadata_digest": digest}),
            (422, "dataset-unreadable", "metadata_key", "missing from the store"),
        ),
        source(
            json!({"metadata_key": "jobs/job-a/model.safetensors", "metadata_digest": digest}),
            (403, "dataset-not-allowed", "metadata_key", "as an import writes it"),
        ),
        source(json!({"uris": ["gopher://x"]}), (403, "dataset-not-allowed", "uris", "below one of")),
        source(json!({"uris": ["s3://bucket/x.parquet"]}), (403, "dataset-not-allowed", "uris", "below one of")),
        source(json!({"uris": ["file:///etc/passwd"]}), (403, "dataset-not-allowed", "uris", "below one of")),
        source(
            json!({"uris": [std::env::temp_dir().join("no/such/file.parquet")]}),
            (422, "dataset-unreadable", "uris", "file.parquet"),
        ),
    ]
}

#[tokio::test]
async fn every_bad_input_has_its_own_refusal() {
    let rig = Rig::with_datasets().await;
    let fleet = rig.put("/v1/fleets/chat", &json!({"servers": [{"server": "local", "slots": 2}]})).await;
    assert_eq!(fleet.status, StatusCode::OK, "{}", fleet.text);
    assert_eq!(rig.post("/v1/fleets/chat/demand", &json!({"needed": 2, "sequence": 10})).await.status, StatusCode::OK);

    let rows: Vec<Bad> =
        [specs(), bodies(), paths_queries_and_headers(), fleets_and_datasets()].into_iter().flatten().collect();
    assert!(rows.len() >= 40, "{} rows", rows.len());
    let mut refusals = BTreeSet::new();
    for row in rows {
        let what = format!("{} {} {:?} {:?}", row.method, row.path, row.headers, row.body);
        let answer = rig.send(row.method, &row.path, &row.headers, row.body).await;
        let context = format!("{what}\n{} {}", answer.status, answer.text);
        assert_eq!((answer.status.as_u16(), answer.slug()), (row.status, row.slug), "{context}");
        assert_eq!(answer.headers["content-type"], "application/problem+json", "{context}");
        assert_eq!(
            (answer.json["status"].as_u64(), answer.json["title"].is_string()),
            (Some(u64::from(row.status)), true),
            "{context}"
        );
        let problems = answer.json["problems"].as_array().unwrap();
        let told = problems
            .iter()
            .any(|problem| problem["field"] == row.field && !problem["expected"].as_str().unwrap().is_empty());
        assert!(told, "field `{}` in\n{context}", row.field);
        assert!(answer.json["detail"].as_str().unwrap().contains(row.phrase), "the detail says it\n{context}");
        assert!(refusals.insert(answer.text.clone()), "the same refusal for two inputs\n{context}");
    }
}

#[tokio::test]
async fn malformed_bodies_name_line_and_column() {
    let rig = Rig::with_datasets().await;
    for (content_type, text) in
        [("application/json", "{\n  \"a\": 1,\n  oops\n}"), ("application/yaml", "a: 1\nb: 2\n  c: 3\n")]
    {
        let answer = rig.send(Method::POST, "/v1/jobs", &[("content-type", content_type)], Some(text.to_owned())).await;
        assert_eq!(
            answer.json["problems"][0]["value"].as_str().map(|place| place.starts_with("line 3, column")),
            Some(true),
            "{}",
            answer.text
        );
    }
}

#[tokio::test]
async fn methods_that_are_legal_stand_in_allow() {
    let rig = Rig::with_datasets().await;
    let answer = rig.send(Method::PATCH, "/v1/fleets/chat", &[], None).await;
    let allowed: BTreeSet<_> = answer.headers["allow"].split(',').map(|method| method.trim().to_owned()).collect();
    assert_eq!(allowed, ["GET", "HEAD", "PUT"].map(str::to_owned).into());
}

/// Any JSON, often with the names of real fields.
fn any_json() -> impl Strategy<Value = Value> {
    const NAMES: [&str; 29] = [
        "name",
        "model",
        "kind",
        "dataset",
        "workers",
        "min",
        "max",
        "batch_size",
        "epochs",
        "steps",
        "shuffle",
        "optimizer",
        "schedule",
        "servers",
        "server",
        "slots",
        "offers",
        "needed",
        "utilization",
        "target",
        "forecast",
        "in_ms",
        "slo",
        "p99_ms",
        "limit_ms",
        "uris",
        "sample",
        "metadata_key",
        "metadata_digest",
    ];
    const TEXTS: [&str; 10] =
        ["", "mlp", "gpt", "cnn", "digits", "local/0", "local", "by_demand", "\u{0}\u{7f}é", "tokens"];
    let name = prop_oneof![3 => prop::sample::select(&NAMES[..]).prop_map(str::to_owned), 1 => any::<String>()];
    let text = prop_oneof![prop::sample::select(&TEXTS[..]).prop_map(str::to_owned), any::<String>()];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0u64..9).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(name.clone(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

#[tokio::test]
async fn no_body_whatever_gives_a_5xx() {
    /// Bodies tried; each path gets all of them.
    const BODIES: usize = 300;
    let rig = Rig::with_datasets().await;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let near_job = any_json().prop_map(|value| job_with(json!({"model": value, "workers": {"max": 2}})));
    let bodies = prop_oneof![any_json(), near_job];
    let targets = [
        (Method::POST, "/v1/jobs"),
        (Method::PUT, "/v1/fleets/local"),
        (Method::POST, "/v1/fleets/local/offers"),
        (Method::POST, "/v1/fleets/local/demand"),
        (Method::POST, "/v1/datasets"),
    ];
    for _ in 0..BODIES {
        let body = bodies.new_tree(&mut runner).unwrap().current().to_string();
        for (method, path) in &targets {
            let answer = rig.send(method.clone(), path, &[], Some(body.clone())).await;
            assert!(!answer.status.is_server_error(), "{method} {path} {body}\n{}", answer.text);
        }
    }
}
