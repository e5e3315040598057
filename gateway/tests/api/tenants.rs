//! Tenants and their quotas over HTTP.

use crate::support::{Rig, job_with};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

const RESEARCH: &str = "/v1/tenants/research";

#[tokio::test]
async fn a_quota_is_set_shown_changed_and_taken_away() {
    let rig = Rig::with_datasets().await;
    assert_eq!(rig.get("/v1/tenants").await.json["tenants"], json!([]));
    let unknown = rig.get(RESEARCH).await;
    assert_eq!((unknown.status, unknown.slug()), (StatusCode::NOT_FOUND, "unknown-tenant"));
    let set = rig.put(RESEARCH, &json!({"quota_slots": 6})).await;
    let shown = json!({"name": "research", "quota_slots": 6, "jobs": 0, "slots": 0});
    assert_eq!((set.status, &set.json), (StatusCode::OK, &shown));
    rig.submit(&job_with(json!({"tenant": "research"}))).await;
    rig.submit(&job_with(json!({"tenant": "labs"}))).await;
    let listed = rig.get("/v1/tenants").await.json["tenants"].clone();
    let labs = json!({"name": "labs", "quota_slots": null, "jobs": 1, "slots": 0});
    assert_eq!(listed, json!([labs, {"name": "research", "quota_slots": 6, "jobs": 1, "slots": 0}]));
    assert_eq!(rig.get("/v1/tenants?prefix=res").await.json["tenants"].as_array().unwrap().len(), 1);
    assert_eq!(rig.get("/v1/tenants/labs").await.json, labs, "a tenant with jobs is one");
    assert_eq!(rig.put(RESEARCH, &json!({"quota_slots": 0})).await.json["quota_slots"], 0);
    assert_eq!(rig.delete(RESEARCH).await.status, StatusCode::NO_CONTENT);
    assert_eq!(rig.get(RESEARCH).await.json["quota_slots"], Value::Null);
    let again = rig.delete(RESEARCH).await;
    assert_eq!((again.status, again.slug()), (StatusCode::NOT_FOUND, "unknown-tenant"));
    let told = rig.get("/v1/events?from=0-0&type=tenant.*&limit=9").await.json;
    let quotas: Vec<&Value> = told["events"].as_array().unwrap().iter().map(|event| &event["data"]).collect();
    assert_eq!(quotas[0], &json!({"tenant": "research", "quota_slots": 6}));
    assert_eq!((quotas.len(), quotas[2]), (3, &json!({"tenant": "research"})));
}

#[tokio::test]
async fn what_is_no_quota_is_refused() {
    let rig = Rig::new().await;
    for (body, field) in [
        (json!({}), "quota_slots"),
        (json!({"quota_slots": -1}), "quota_slots"),
        (json!({"quota_slots": 100_001}), "quota_slots"),
        (json!({"quota_slots": "all"}), "quota_slots"),
        (json!({"quota_slots": 1, "quota": 2}), "quota"),
    ] {
        let refused = rig.put(RESEARCH, &body).await;
        assert_eq!((refused.slug(), &refused.json["problems"][0]["field"]), ("invalid-fields", &json!(field)));
    }
    assert_eq!(rig.put("/v1/tenants/Research", &json!({"quota_slots": 1})).await.slug(), "invalid-id");
}

#[tokio::test]
async fn a_change_may_depend_on_the_quota_that_was_read_and_on_nothing_else() {
    let rig = Rig::with_datasets().await;
    rig.put(RESEARCH, &json!({"quota_slots": 6})).await;
    let tag = async || rig.get(RESEARCH).await.headers["etag"].clone();
    let read = tag().await;
    rig.submit(&job_with(json!({"tenant": "research"}))).await;
    assert_eq!(tag().await, read, "what it uses is no reason to ask again");
    let body = |slots: u32| Some(json!({"quota_slots": slots}).to_string());
    let json = ("content-type", "application/json");
    let first = rig.send(Method::PUT, RESEARCH, &[("if-match", &read), json], body(7)).await;
    assert_eq!(first.status, StatusCode::OK, "{}", first.text);
    let second = rig.send(Method::PUT, RESEARCH, &[("if-match", &read), json], body(8)).await;
    assert_eq!((second.slug(), rig.get(RESEARCH).await.json["quota_slots"].clone()), ("precondition-failed", json!(7)));
}
