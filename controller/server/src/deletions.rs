//! Deletes the objects of checkpoints that no longer count. What is to be deleted derives from what counts; deleting twice is
//! harmless, so nothing is written down about it and a restart begins again.
//!
//! Next file: `storage/src/checkpoint/write.rs`, which knows what a checkpoint consists of.

use crate::failure::Chain;
use crate::run::Committed;
use controller_core::retired_objects;
use object_store::ObjectStore;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Pause after a store that did not answer; garbage can wait.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// Deletes until told to end.
pub(crate) async fn run(
    store: Arc<dyn ObjectStore>,
    mut committed: watch::Receiver<Option<Committed>>,
    shutdown: CancellationToken,
) -> Result<(), String> {
    // Everything retired below this number is deleted.
    let mut next = 0;
    loop {
        let state = committed.borrow_and_update().as_ref().map(|committed| committed.state.clone());
        let mut failed = false;
        let from = next;
        for retired in state.iter().flat_map(|state| retired_objects(state, from)) {
            let outcome = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                outcome = storage::checkpoint::delete(&store, retired.manifest_key) => outcome,
            };
            if let Err(error) = outcome {
                tracing::warn!(manifest_key = retired.manifest_key, error = %Chain(&error), "cannot delete a checkpoint yet");
                failed = true;
                break;
            }
            next = retired.number + 1;
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(RETRY_PAUSE), if failed => {}
            changed = committed.changed() => if changed.is_err() { return Ok(()) },
        }
    }
}
