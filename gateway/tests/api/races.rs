//! Changes that depend on what was read, when others are made at the very same moment: nobody has decided about either while both are asked for.

use crate::support::{Rig, job_with};
use events_schema::command::{Command, OfferMode};
use events_schema::report::Report;
use events_schema::{Digest, FleetId, SlotId};
use reqwest::{Method, StatusCode};
use serde_json::json;

const JSON: (&str, &str) = ("content-type", "application/json");

/// The fleet `chat` with slots 0 and 1, of which it needs both, and its tag.
async fn fleet() -> (Rig, String) {
    let rig = Rig::with_datasets().await;
    rig.report(Report::AgentJoined {
        slots: 2,
        class: Digest::of(b"c"),
        address: "http://127.0.0.1:1".into(),
        devices: Vec::new(),
        quarantined: Default::default(),
        guests: false,
        slot_type: None,
    })
    .await;
    rig.until("/v1/slots", |answer| answer["slots"].as_array().unwrap().len() == 2).await;
    let body = json!({"servers": [{"server": "local", "slots": [0, 1]}]});
    assert_eq!(rig.put("/v1/fleets/chat", &body).await.status, StatusCode::OK);
    assert_eq!(rig.post("/v1/fleets/chat/demand", &json!({"needed": 2})).await.status, StatusCode::OK);
    let tag = rig.get("/v1/fleets/chat").await.headers["etag"].clone();
    (rig, tag)
}

#[tokio::test]
async fn of_two_changes_with_the_same_tag_one_comes_through() {
    let (mut rig, tag) = fleet().await;
    let job = format!("/v1/jobs/{}", rig.submit(&job_with(json!({}))).await);
    let (suspension, job_tag) = (format!("{job}/suspend"), rig.get(&job).await.headers["etag"].clone());
    let before = rig.asked().await;
    rig.controller_ends();
    let recall = async |slots: u32| {
        let (headers, body) = ([("if-match", tag.as_str()), JSON], json!({"slots": slots}).to_string());
        rig.send(Method::POST, "/v1/fleets/chat/recall", &headers, Some(body)).await
    };
    let change = async |method: Method, path: &str| rig.send(method, path, &[("if-match", &job_tag)], None).await;
    let (one_slot, two_slots, suspended, cancelled, _controller) = tokio::join!(
        recall(1),
        recall(2),
        change(Method::POST, &suspension),
        change(Method::DELETE, &job),
        rig.decide_when_asked(before + 4)
    );
    for (one, other) in [(one_slot, two_slots), (suspended, cancelled)] {
        let (passed, refused) = if one.status == StatusCode::OK { (one, other) } else { (other, one) };
        assert_eq!(passed.status, StatusCode::OK, "{}", passed.text);
        assert_eq!((refused.status.as_u16(), refused.slug()), (412, "precondition-failed"), "{}", refused.text);
    }
}

/// What changed is nothing that a reader is shown, so no reader is told to look again.
#[tokio::test]
async fn a_change_that_nobody_is_shown_refuses_nobody() {
    let (mut rig, tag) = fleet().await;
    let before = rig.asked().await;
    rig.controller_ends();
    let (slots, fleet) =
        (["local/0", "local/1"].map(|slot| slot.parse::<SlotId>().unwrap()), FleetId::parse("chat").unwrap());
    let deadline_ms = rig.get("/v1/fleets/chat").await.json["reclaim_deadline_ms"].as_u64().unwrap();
    for reclaim_deadline_ms in [deadline_ms + 1, deadline_ms] {
        let (fleet, slots, offers) = (fleet.clone(), slots.to_vec(), OfferMode::ByDemand);
        rig.command(Command::PutFleet { fleet, slots, offers, reclaim_deadline_ms }).await;
    }
    let headers = [("if-match", tag.as_str()), JSON];
    let (released, _controller) = tokio::join!(
        rig.send(Method::POST, "/v1/fleets/chat/release", &headers, Some("{}".to_owned())),
        rig.decide_when_asked(before + 3)
    );
    assert_eq!(released.status, StatusCode::OK, "{}", released.text);
    assert_eq!(rig.asked().await, before + 4, "it was asked for again");
}
