//! What roles share: the log and the object store, opened and tried, so that an error comes at the start and not in the middle of a
//! job.

use crate::failure::Failure;
use events_log::{EventLog, LogUrl};
use object_store::ObjectStore;
use std::sync::Arc;
use storage::store::without_secrets;

/// Opens a log.
pub async fn log(url: &LogUrl) -> Result<Arc<dyn EventLog>, Failure> {
    events_log::open(url).await.map_err(|e| Failure::local("the log cannot be opened", e))
}

/// The log of a role that runs alone: one that several processes see.
pub fn shared_log(text: &str) -> Result<LogUrl, Failure> {
    let url = LogUrl::parse(text).map_err(|e| Failure::Usage(e.to_string()))?;
    match url {
        LogUrl::Kafka(_) => Ok(url),
        LogUrl::Memory | LogUrl::File(_) => Err(Failure::Usage(format!(
            "--log {text} is for one process: a gateway and a controller of their own need one that both reach, kafka+ssl://HOST:PORT[,…]; or run `ebb up`, which is both"
        ))),
    }
}

/// Opens the object store and asks it for something.
pub async fn store(url: &str) -> Result<Arc<dyn ObjectStore>, Failure> {
    let store = storage::open_store(url).map_err(|e| Failure::local("the object store cannot be opened", e))?;
    storage::store::probe(store.as_ref()).await.map_err(|e| {
        let shown = without_secrets(url);
        let failure = Failure::local(format!("the object store {shown} does not answer"), e);
        if url.starts_with("s3://") {
            return failure.advise(format!("`ebb store check {shown}` tells what it needs"));
        }
        failure
    })?;
    Ok(store)
}
