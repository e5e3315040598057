//! Requests as a browser sends them for pages of others: none has an effect, none gets an answer that says anything.

use crate::support::{CELL, Rig};
use events_log::{EventLog, Stream};
use events_schema::Offset;
use reqwest::{Method, StatusCode};
use serde_json::json;

/// A fleet with two slots, and how many records the log has when that is done.
async fn rig() -> (Rig, Offset, Offset) {
    let rig = Rig::with_datasets().await;
    rig.put("/v1/fleets/chat", &json!({"servers": [{"server": "local", "slots": 2}]})).await;
    let (demand, commands) = ends(&rig).await;
    (rig, demand, commands)
}

async fn ends(rig: &Rig) -> (Offset, Offset) {
    (rig.log.end(Stream::Demand, CELL).await.unwrap(), rig.log.end(Stream::Commands, CELL).await.unwrap())
}

#[tokio::test]
async fn a_page_of_another_site_takes_no_slot() {
    let (rig, demand, commands) = rig().await;
    let taking = json!({"needed": 2}).to_string();
    // fetch("http://127.0.0.1:7878/v1/fleets/chat/demand", {method: "POST", mode: "no-cors", body: …}), by what browsers add to it.
    let plain = ("content-type", "text/plain;charset=UTF-8");
    let origin = ("origin", "http://evil.example");
    let cross = ("sec-fetch-site", "cross-site");
    let json = ("content-type", "application/json");
    type Case<'a> = (Vec<(&'a str, &'a str)>, u16, &'a str);
    let cases: Vec<Case<'_>> = vec![
        (vec![plain, origin, cross, ("sec-fetch-mode", "no-cors")], 403, "foreign-origin"),
        // Each protection alone: browsers without the newer header, requests without an origin, a body that says nothing.
        (vec![plain, origin], 403, "foreign-origin"),
        (vec![json, origin], 403, "foreign-origin"),
        (vec![json, cross], 403, "foreign-origin"),
        (vec![json, ("origin", "null")], 403, "foreign-origin"),
        // Another program of this machine, whose page is of the same site.
        (vec![json, ("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")], 403, "foreign-origin"),
        (vec![plain], 415, "unsupported-media-type"),
        (vec![("content-type", "application/x-www-form-urlencoded")], 415, "unsupported-media-type"),
        (vec![], 415, "unsupported-media-type"),
    ];
    for (headers, status, slug) in cases {
        let answer = rig.send(Method::POST, "/v1/fleets/chat/demand", &headers, Some(taking.clone())).await;
        assert_eq!((answer.status.as_u16(), answer.slug()), (status, slug), "{headers:?}: {}", answer.text);
        assert_eq!(answer.headers.get("access-control-allow-origin"), None);
    }
    // A form can ask for what has no body.
    for path in ["/v1/jobs/job-a/suspend", "/v1/jobs/job-a/resume"] {
        let answer = rig.send(Method::POST, path, &[origin], None).await;
        assert_eq!((answer.status.as_u16(), answer.slug()), (403, "foreign-origin"), "{}", answer.text);
    }
    assert_eq!(ends(&rig).await, (demand, commands), "nothing was recorded");
    assert_eq!(rig.get("/v1/fleets/chat").await.json["needed"], serde_json::Value::Null);
}

#[tokio::test]
async fn a_preflight_gets_no_permission() {
    let (rig, ..) = rig().await;
    let headers = [("origin", "http://evil.example"), ("access-control-request-method", "PUT")];
    let answer = rig.send(Method::OPTIONS, "/v1/fleets/chat", &headers, None).await;
    assert_eq!((answer.status.as_u16(), answer.slug()), (403, "foreign-origin"));
    assert!(answer.headers.keys().all(|name| !name.starts_with("access-control-")), "{:?}", answer.headers);
}

#[tokio::test]
async fn a_host_name_that_was_pointed_here_reads_nothing() {
    let (rig, demand, commands) = rig().await;
    let port = rig.gateway.address().port();
    let rebound = format!("rebound.example:{port}");
    // To its browser the page is of the same origin: only the name tells.
    let page = format!("http://{rebound}");
    let headers = [
        ("host", rebound.as_str()),
        ("origin", page.as_str()),
        ("sec-fetch-site", "same-origin"),
        ("content-type", "application/json"),
    ];
    for path in
        ["/v1/jobs", "/v1/jobs/job-a/model", "/v1/events?from=0-0", "/v1/server", "/healthz", "/readyz", "/nowhere"]
    {
        let answer = rig.send(Method::GET, path, &headers, None).await;
        assert_eq!((answer.status.as_u16(), answer.slug()), (421, "unknown-host"), "{path}: {}", answer.text);
        assert!(answer.text.contains("--allow-host"), "{}", answer.text);
    }
    let answer =
        rig.send(Method::POST, "/v1/fleets/chat/demand", &headers, Some(json!({"needed": 2}).to_string())).await;
    assert_eq!(answer.status, StatusCode::MISDIRECTED_REQUEST);
    assert_eq!(ends(&rig).await, (demand, commands), "nothing was recorded");
}

#[tokio::test]
async fn names_of_its_own_and_its_own_pages_are_answered() {
    let (rig, ..) = rig().await;
    let port = rig.gateway.address().port();
    for host in [
        format!("localhost:{port}"),
        format!("127.0.0.1:{port}"),
        "ebb.example.org".to_owned(),
        "EBB.example.org:443".to_owned(),
    ] {
        let origin = format!("http://{host}");
        let headers = [("host", host.as_str()), ("origin", origin.as_str()), ("sec-fetch-site", "same-origin")];
        assert_eq!(rig.send(Method::GET, "/v1/jobs", &headers, None).await.status, StatusCode::OK, "{host}");
    }
}
