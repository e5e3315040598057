//! A service that is told to stop says so at `/readyz` before it closes its listener; and its log, looked at without it.

use crate::support::{EBB, System, WAIT_MAX};
use reqwest::StatusCode;
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
    let verified =
        Command::new(EBB).args(["log", "verify", "--data"]).arg(folder.path().join("data")).output().await.unwrap();
    let said = String::from_utf8(verified.stdout).unwrap();
    assert!(verified.status.success() && said.ends_with('\n') && !said.ends_with("\n\n"), "{said:?}");
}
