//! A service that is told to stop says so at `/readyz` before it closes its listener; and its log, looked at without it.

use crate::support::{EBB, System, WAIT_MAX};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::process::Command;

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_stops_says_so_before_it_closes() {
    let system = System::start(1).await;
    let url = format!("{}/readyz", system.service.ready().url);
    let kept = reqwest::Client::new();
    let anew = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
    assert_eq!(kept.get(&url).send().await.unwrap().status(), StatusCode::OK);
    let stopping = tokio::spawn(system.stop());
    let (mut on_kept, mut on_new) = (false, false);
    let asked = async {
        loop {
            // The one connects anew each time; the other has its connection as long as it is open.
            let (old, new) = tokio::join!(kept.get(&url).send(), anew.get(&url).send());
            let says = |answer: reqwest::Result<reqwest::Response>| {
                answer.is_ok_and(|answer| answer.status() == StatusCode::SERVICE_UNAVAILABLE)
            };
            let closed = new.as_ref().is_err_and(reqwest::Error::is_connect);
            (on_kept, on_new) = (on_kept || says(old), on_new || says(new));
            if closed {
                return;
            }
        }
    };
    tokio::time::timeout(WAIT_MAX, asked).await.expect("it closes");
    assert!(on_kept && on_new, "503 on a kept connection: {on_kept}, on a new one: {on_new}");

    let folder = stopping.await.unwrap();
    let data = folder.path().join("data");
    let log = async |arguments: &[&str]| {
        let said = Command::new(EBB).arg("log").args(arguments).arg("--data").arg(&data).output().await.unwrap();
        assert!(said.status.success(), "{said:?}");
        String::from_utf8(said.stdout).unwrap()
    };
    let said = log(&["verify"]).await;
    assert!(said.ends_with('\n') && !said.ends_with("\n\n"), "{said:?}");
    let verified: Value = serde_json::from_str(&log(&["verify", "-o", "json"]).await).unwrap();
    let exported: Vec<Value> = log(&["export"]).await.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let facts: usize = exported.iter().map(|batch| batch["facts"].as_array().unwrap().len()).sum();
    assert_eq!(
        (&json!(exported.len()), &json!(facts)),
        (&verified["batches"], &verified["facts"]),
        "nothing is left out"
    );
    assert!(exported.iter().any(|batch| batch["facts"].to_string().contains("fleet_declared")), "{exported:#?}");
}
