//! A disk that takes nothing more, in the middle of work: the service ends with a sentence, and loses nothing that it acknowledged.

use crate::support::{EBB, System, write_program};
use gateway_api::{DeclareFleet, ServerSlots, SlotsOfServer};
use gateway_client::ClientError;
use loadtest_harness::service::tail;
use std::path::PathBuf;

/// Declarations of a fleet sent at most: each makes the log 40 kB longer, and it may grow by two to four megabytes.
const DECLARATIONS_MAX: u64 = 500;

/// The program under test with a bound on the size of its files, which it meets as an I/O error.
fn on_a_small_disk(folder: &tempfile::TempDir) -> PathBuf {
    let program = folder.path().join("ebb-on-a-small-disk");
    let script = format!("#!/bin/sh\ntrap '' XFSZ\nulimit -f 4096\nexec '{EBB}' \"$@\"\n");
    write_program(&program, &script);
    program
}

/// The log's error was called retryable, and the service went on without ever taking a record again.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_whose_log_meets_an_error_ends_and_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let system = System::start_program(on_a_small_disk(&folder), 1, None).await;
    let (client, data) = (system.client(), system.path("data"));
    let mut acknowledged = 0;
    let refused = loop {
        assert!(acknowledged < DECLARATIONS_MAX, "the disk takes everything");
        let of_server = |n| ServerSlots { server: format!("s{n}"), slots: SlotsOfServer::Count(1_000) };
        let servers = (0..4).map(of_server).collect();
        let fleet = DeclareFleet { servers, offers: None, reclaim_deadline_ms: Some(2_000 + acknowledged) };
        match client.declare_fleet("big", &fleet).await {
            Ok(_) => acknowledged += 1,
            Err(failure) => break failure,
        }
    };
    assert!(
        matches!(refused, ClientError::Refused(_) | ClientError::NoAnswer { .. } | ClientError::Unreachable { .. }),
        "{refused}"
    );
    let (status, stopped) = system.ended().await;
    let said = tail(&data);
    assert!(
        status.code() == Some(1) && said.contains("start ebb again, what was acknowledged is there"),
        "{status}: {said}"
    );
    let system = stopped.start().await;
    let declared = system.client().fleet("big").await.unwrap().reclaim_deadline_ms - 2_000;
    // The last one may have come through although its answer did not.
    assert!(declared + 1 == acknowledged || declared == acknowledged, "{declared} of {acknowledged}");
}
