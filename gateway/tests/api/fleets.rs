//! Fleets, slots, demand and datasets over HTTP.

use crate::support::{CELL, Rig, quick};
use events_log::{EventLog, MemoryLog, Stream};
use events_schema::report::Report;
use events_schema::{Digest, Offset};
use reqwest::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;

fn states(fleet: &Value) -> Vec<&str> {
    fleet["slots"].as_array().unwrap().iter().map(|slot| slot["state"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_fleet_is_declared_offers_by_demand_and_takes_back() {
    let rig = Rig::with_datasets().await;
    rig.report(Report::AgentJoined {
        slots: 4,
        class: Digest::of(b"c"),
        address: "http://127.0.0.1:1".into(),
        devices: Vec::new(),
        quarantined: Default::default(),
        guests: false,
        slot_type: None,
    })
    .await;
    let slots = rig.until("/v1/slots", |answer| answer["slots"].as_array().unwrap().len() == 4).await;
    assert_eq!(
        slots["slots"][0],
        json!({"slot": "local/0", "fleet": null, "state": "undeclared", "job": null, "executor": null, "class": Digest::of(b"c").to_string()})
    );

    let body = json!({"servers": [{"server": "local", "slots": [0, 1, 2]}], "offers": "by_demand", "reclaim_deadline_ms": 2_000});
    let fleet = rig.put("/v1/fleets/chat", &body).await;
    assert_eq!((fleet.status, states(&fleet.json)), (StatusCode::OK, vec!["unoffered"; 3]), "{}", fleet.text);
    assert_eq!((&fleet.json["needed"], &fleet.json["reclaim_deadline_ms"]), (&Value::Null, &json!(2_000)));
    let demand = rig.post("/v1/fleets/chat/demand", &json!({"utilization": 0.7, "sequence": 5})).await;
    assert_eq!(
        (demand.status, &demand.json),
        (StatusCode::OK, &json!({"status": "accepted", "fleet": "chat", "sequence": 5, "needed": 1}))
    );
    let shown = rig.get("/v1/fleets/chat").await.json;
    assert_eq!((&shown["needed"], &shown["sequence"]), (&json!(1), &json!(5)));
    assert_eq!(states(&shown), ["offered", "offered", "unoffered"]);
    let offered = rig.post("/v1/fleets/chat/reclaims", &json!({"slots": ["local/0"]})).await;
    assert_eq!((offered.status, states(&offered.json)), (StatusCode::OK, vec!["unoffered", "offered", "unoffered"]));
    let offered = rig.post("/v1/fleets/chat/offers", &json!({"slots": ["local/0"]})).await;
    assert_eq!(states(&offered.json), ["offered", "offered", "unoffered"]);
    let all = rig.get("/v1/slots").await.json;
    assert_eq!((all["slots"].as_array().unwrap().len(), &all["slots"][3]["state"]), (4, &json!("undeclared")));
    assert_eq!(rig.get("/v1/fleets").await.json["fleets"][0]["name"], "chat");
}

#[tokio::test]
async fn signals_have_one_effect_and_minted_numbers_grow() {
    let mut rig = Rig::with_datasets().await;
    rig.put("/v1/fleets/chat", &json!({"servers": [{"server": "local", "slots": 2}]})).await;
    let send = async |rig: &Rig, body: Value| rig.post("/v1/fleets/chat/demand", &body).await;
    let far = u64::MAX / 2 - 10;
    assert_eq!(send(&rig, json!({"needed": 1, "sequence": far})).await.status, StatusCode::OK);
    assert_eq!(send(&rig, json!({"needed": 1, "sequence": far})).await.status, StatusCode::OK, "a repeat is no error");
    let other = send(&rig, json!({"needed": 2, "sequence": far})).await;
    assert_eq!(other.status, StatusCode::CONFLICT, "another need under the same number does not count: {}", other.text);
    let old = send(&rig, json!({"needed": 2, "sequence": far - 1})).await;
    assert_eq!((old.status.as_u16(), old.slug()), (409, "old-signal"));
    // More than it has is all that it has, and the answer says what counts.
    let all = send(&rig, json!({"needed": 900, "sequence": far + 1})).await;
    assert_eq!((all.status, &all.json["needed"]), (StatusCode::OK, &json!(2)), "{}", all.text);
    let mut last = far + 1;
    for _ in 0..3 {
        let minted = send(&rig, json!({"needed": 2})).await;
        assert_eq!(minted.status, StatusCode::OK, "{}", minted.text);
        assert!(minted.json["sequence"].as_u64().unwrap() > last);
        last = minted.json["sequence"].as_u64().unwrap();
        rig.restart_gateway().await;
    }
}

#[tokio::test]
async fn without_a_controller_demand_is_durable() {
    let log = Arc::new(MemoryLog::new());
    let mut script = crate::support::Script::new(&log).await;
    let chat = events_schema::FleetId::parse("chat").unwrap();
    let offers = events_schema::command::OfferMode::ByDemand;
    script
        .batch(vec![events_schema::fact::Fact::FleetDeclared {
            fleet: chat,
            slots: vec![],
            offers,
            reclaim_deadline_ms: 1,
        }])
        .await;
    let rig = Rig::without_controller(log, quick()).await;
    let answer = rig.post("/v1/fleets/chat/demand", &json!({"needed": 1})).await;
    assert_eq!((answer.status, &answer.json["status"]), (StatusCode::ACCEPTED, &json!("undecided")));
    assert_eq!(rig.log.end(Stream::Demand, CELL).await.unwrap(), Offset(1));
}

#[tokio::test]
async fn an_imported_dataset_is_registered_by_its_metadata() {
    let rig = Rig::new().await;
    let imported = storage::dataset::register_digits(&rig.store).await.unwrap().dataset;
    let body = json!({"name": "digits", "metadata_key": imported.metadata_key, "metadata_digest": imported.metadata_digest.to_string()});
    let made = rig.post("/v1/datasets", &body).await;
    assert_eq!(
        (made.status, &made.headers["location"]),
        (StatusCode::CREATED, &"/v1/datasets/digits".to_owned()),
        "{}",
        made.text
    );
    assert_eq!((&made.json["rows"], &made.json["sample"]["classes"]), (&json!(imported.rows), &json!(10)));
    assert_eq!(rig.post("/v1/datasets", &body).await.status, StatusCode::OK, "the very same again");
    let wrong = json!({"name": "other", "metadata_key": body["metadata_key"], "metadata_digest": "0".repeat(64)});
    let refused = rig.post("/v1/datasets", &wrong).await;
    assert_eq!(
        (refused.status.as_u16(), refused.slug(), &refused.json["problems"][0]["field"]),
        (422, "dataset-unreadable", &json!("metadata_digest"))
    );

    let id = rig.submit(&crate::support::job_with(json!({}))).await;
    let in_use = rig.delete("/v1/datasets/digits").await;
    assert_eq!((in_use.status.as_u16(), in_use.slug()), (409, "in-use"));
    assert!(in_use.text.contains(&id));
    rig.delete(&format!("/v1/jobs/{id}")).await;
    assert_eq!(rig.delete("/v1/datasets/digits").await.status, StatusCode::NO_CONTENT);
    assert_eq!(rig.get("/v1/datasets/digits").await.slug(), "unknown-dataset");
    assert_eq!(rig.get("/v1/datasets").await.json, json!({"datasets": []}));
}

#[tokio::test]
async fn files_are_registered_where_they_lie() {
    let rig = Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let address = format!("file://{}", folder.path().display());
    let elsewhere = storage::open_store(&address).unwrap();
    let imported = storage::dataset::register_digits(&elsewhere).await.unwrap().dataset;
    let metadata = storage::dataset::load_metadata(&elsewhere, &imported).await.unwrap();
    let uris: Vec<_> = metadata.partitions.iter().map(|part| format!("{address}/{}", part.location.as_str())).collect();
    let body = json!({"name": "mine", "uris": uris, "sample": imported.sample});
    let made = rig.post("/v1/datasets", &body).await;
    assert_eq!((made.status, &made.json["rows"]), (StatusCode::CREATED, &json!(imported.rows)), "{}", made.text);
    let taken =
        rig.post("/v1/datasets", &json!({"name": "mine", "uris": uris, "sample": imported.sample, "scale": 0.5})).await;
    assert_eq!((taken.status.as_u16(), taken.slug()), (409, "name-taken"), "{}", taken.text);
}

#[tokio::test]
async fn the_server_tells_what_it_is_without_secrets() {
    let rig = Rig::new().await;
    let server = rig.get("/v1/server").await.json;
    assert_eq!((&server["store_url"], &server["cell"]), (&json!("s3://bucket/prefix"), &json!(0)));
    assert!(server["version"].is_string());
    assert_eq!((rig.get("/healthz").await.status, rig.get("/readyz").await.status), (StatusCode::OK, StatusCode::OK));
}
