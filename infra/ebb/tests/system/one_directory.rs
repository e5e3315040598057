//! A data directory has one service, and the second is told who holds it; a fresh one has what its first job needs.

use crate::support::{EBB, LOOK_EVERY, System, WAIT_MAX, text};
use gateway_api::{DeclareFleet, ServerSlots, SlotsOfServer};
use gateway_client::Client;
use std::net::TcpListener;
use std::process::Stdio;
use tokio::process::Command;

/// Scripts wait for it, and submit: not before there is something to train on, and somewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_service_that_is_ready_has_what_its_first_job_needs() {
    let folder = tempfile::tempdir().unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut up = Command::new(EBB);
    up.args(["up", "--slots", "1", "--until-input-ends", "--listen", &address, "--data"])
        .arg(folder.path().join("data"));
    let mut up = up.stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let client = Client::new(&format!("http://{address}")).unwrap();
    let ready = async {
        while client.readiness().await.is_err() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, ready).await.expect("it becomes ready");
    for name in ["digits", "digits-test"] {
        assert!(client.find_dataset(name).await.unwrap().is_some(), "{name}");
    }
    assert_eq!(client.fleet("local").await.unwrap().slots.len(), 1);
    drop(up.stdin.take());
    assert!(up.wait().await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_service_on_one_directory_is_refused_by_name() {
    let system = System::start(1).await;
    let output = tokio::process::Command::new(EBB)
        .args(["up", "--listen", "127.0.0.1:0", "--data", &text(&system.path("data"))])
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("process {}", system.service.pid().unwrap())) && said.contains("--data"), "{said}");
    // The first one is none the worse for it.
    system.ebb_json(&["slots"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_service_goes_on_where_it_was() {
    let system = System::start(2).await;
    let before = system.ebb_json(&["dataset", "list"]).await;
    let system = system.crash().await;
    let others = std::process::Command::new("find").arg(system.path("data")).args(["-perm", "/077"]).output().unwrap();
    assert!(others.status.success() && others.stdout.is_empty(), "{others:?}");
    assert_eq!(system.ebb_json(&["dataset", "list"]).await, before);
    let ended = system.service.stop().await.unwrap();
    assert!(ended.success(), "SIGTERM is a clean end: {ended}");
}

/// A start claims no slot that its user has given to another fleet or taken out of this one; slots that were not there before are lent.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_leaves_fleets_as_their_user_made_them() {
    let system = System::start(3).await;
    let declare = |numbers: Vec<u16>| DeclareFleet {
        servers: vec![ServerSlots { server: "local".to_owned(), slots: SlotsOfServer::Numbers(numbers) }],
        offers: None,
        reclaim_deadline_ms: Some(5_000),
    };
    let client = system.client();
    client.declare_fleet("local", &declare(vec![0])).await.unwrap();
    client.declare_fleet("chat", &declare(vec![1])).await.unwrap();
    let system = system.kill().await.with_slots(4).start().await;
    let client = system.client();
    let local = client.fleet("local").await.unwrap();
    let names: Vec<&str> = local.slots.iter().map(|s| s.slot.as_str()).collect();
    assert_eq!((names, local.reclaim_deadline_ms), (vec!["local/0", "local/3"], 5_000));
    assert_eq!(client.fleet("chat").await.unwrap().slots.len(), 1);
}
