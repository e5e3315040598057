//! Holds the client against the table of operations: each can be asked for, as the table says, and nothing else is.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::canned::{answer, serve};
use crate::{Body, Events};
use gateway_api::operations::{Operation, operations};
use gateway_api::{JobPhase, SlotState};
use serde_json::json;
use std::collections::BTreeSet;

/// Everything that the API has, asked for with all that can be said about it.
async fn ask_for_everything(client: &Client) {
    let some = || Some("a".to_owned());
    let jobs =
        WantedJobs { phase: Some(JobPhase::Running), prefix: some(), name: some(), dataset: some(), tenant: some() };
    let slots = WantedSlots { fleet: some(), server: some(), job: some(), state: Some(SlotState::Offered) };
    let logs = WantedLogs { executor: Some(1), changed_since: some() };
    let stretch = Stretch { from: Some(1), to: Some(2) };
    let named = NameSlots { slots: vec!["local/0".to_owned()] };
    let declared = DeclareFleet { servers: Vec::new(), offers: None, reclaim_deadline_ms: None };
    let spec = Body::json(&json!({}));
    // What is answered fits none of the lists and is no model, and what is asked for is all that counts here.
    let _ = client.submit_once(&spec, Some("key")).await;
    let _ = client.rehearse(&spec, None).await;
    let _ = client.job("a").await;
    let _ = client.jobs(&jobs).await;
    let _ = client.newest_jobs(&jobs, 7).await;
    let _ = client.cancel("a").await;
    let _ = client.suspend("a").await;
    let _ = client.resume("a").await;
    let _ = client.checkpoints("a", stretch, Some(1)).await;
    let _ = client.logs("a", &logs).await;
    let _ = client.log("a", 0, 7).await;
    let _ = client.download_model("a", &mut Vec::new()).await;
    let _ = client.model_link("a").await;
    let _ = client.upload_code("a", Vec::new()).await;
    let _ = client.uploaded_code("a").await;
    let _ = client.upload_model("a", 0, std::iter::empty()).await;
    let _ = client.uploaded_model("a").await;
    let _ = client.register_dataset(&RegisterDataset::default()).await;
    let _ = client.datasets(Some("a")).await;
    let _ = client.dataset("a").await;
    let _ = client.find_dataset("a").await;
    let _ = client.dataset_links("a", stretch).await;
    let _ = client.remove_dataset("a").await;
    let _ = client.fleets(Some("a")).await;
    let _ = client.fleet("a").await;
    let _ = client.find_fleet("a").await;
    let _ = client.declare_fleet("a", &declared).await;
    let _ = client.offer("a", &named).await;
    let _ = client.reclaim("a", &named).await;
    let _ = client.recall("a", &RecallFleet::default()).await;
    let _ = client.release("a").await;
    let _ = client.demand("a", &PublishDemand::needed(1)).await;
    let _ = client.slots(&slots).await;
    let _ = client.tenants(Some("a")).await;
    let _ = client.tenant("a").await;
    let _ = client.set_quota("a", &SetQuota { quota_slots: 4 }).await;
    let _ = client.remove_quota("a").await;
    let _ = client.command("a").await;
    let _ = client.server().await;
    let _ = client.openapi().await;
    let _ = client.health().await;
    let _ = client.readiness().await;
    let _ = client.metrics().await;
    for events in [Events::all(), Events::of_job("a"), Events::of_fleet("a")] {
        let _ = client.all_events(&events.of_types(&["job.*", "slot.*"]).about("a")).await;
    }
}

fn is_of(operation: &Operation, method: &str, path: &str) -> bool {
    let (wanted, given): (Vec<&str>, Vec<&str>) = (operation.path.split('/').collect(), path.split('/').collect());
    let fits = |(wanted, given): (&&str, &&str)| wanted.starts_with('{') || wanted == given;
    operation.method == method && wanted.len() == given.len() && wanted.iter().zip(&given).all(fits)
}

#[tokio::test]
async fn every_operation_can_be_asked_for_and_nothing_else() {
    let answers = vec![answer("200 OK", "{}"); 64];
    let (address, mut heads) = serve(answers, false).await;
    ask_for_everything(&Client::new(&address).unwrap()).await;
    let all = operations();
    let mut asked = BTreeSet::new();
    while let Ok(head) = heads.try_recv() {
        let mut line = head.split(' ');
        let (method, target) = (line.next().unwrap(), line.next().unwrap());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let operation = all.iter().find(|operation| is_of(operation, method, path));
        let operation = operation.unwrap_or_else(|| panic!("{method} {target} is no operation of the API"));
        for (name, _) in url::form_urlencoded::parse(query.as_bytes()) {
            let known =
                operation.parameters.iter().any(|parameter| parameter.place == "query" && parameter.name == name);
            assert!(known, "{} takes no `{name}`: {target}", operation.id);
        }
        let has_body = head.lines().any(|line| line.starts_with("content-type: "));
        assert_eq!(has_body, operation.body.is_some(), "the body of {}", operation.id);
        asked.insert(operation.id);
    }
    let missing: Vec<&str> = all.iter().map(|operation| operation.id).filter(|id| !asked.contains(id)).collect();
    assert!(missing.is_empty(), "the client has no method for {missing:?}");
}
