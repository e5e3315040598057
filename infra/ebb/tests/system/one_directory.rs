//! A data directory has one service, and the second is told who holds it.

use crate::support::{EBB, System, text};

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
