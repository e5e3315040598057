//! The contract suite on the logs that need no server.

use events_log::{EmbeddedLog, MemoryLog, contract};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread")]
async fn memory_keeps_the_contract() {
    assert!(contract::check(Arc::new(MemoryLog::new())).await > 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_keeps_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    let log = Arc::new(EmbeddedLog::open(directory.path().join("log.redb")).unwrap());
    assert!(contract::check(log).await > 10);
}

#[tokio::test]
async fn embedded_keeps_the_contract_on_one_thread() {
    let directory = tempfile::tempdir().unwrap();
    let log = Arc::new(EmbeddedLog::open(directory.path().join("log.redb")).unwrap());
    assert!(contract::check(log).await > 10);
}
