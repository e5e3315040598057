//! Deletes the objects of checkpoints as they are retired. What is to be deleted derives from what counts; deleting twice is
//! harmless, so nothing is written down about it. What was retired before this process, and is still there, the sweep finds.
//!
//! Next files: `storage/src/checkpoint/write.rs`, which knows what a checkpoint consists of, and `sweep.rs`.

use crate::failure::Chain;
use crate::run::Committed;
use controller_core::{next_retirement, retired_objects};
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
    // Everything retired below this number is deleted, or for the sweep.
    let mut next = None;
    loop {
        let state = committed.borrow_and_update().as_ref().map(|committed| committed.state.clone());
        let mut failed = false;
        let from = state.as_ref().map_or(0, |state| *next.get_or_insert_with(|| next_retirement(state)));
        for retired in state.iter().flat_map(|state| retired_objects(state, from)) {
            let outcome = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                outcome = storage::checkpoint::delete(&store, &retired.name) => outcome,
            };
            if let Err(error) = outcome {
                tracing::warn!(manifest_key = retired.name.manifest(), error = %Chain(&error), "cannot delete a checkpoint yet");
                failed = true;
                break;
            }
            next = Some(retired.number + 1);
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(RETRY_PAUSE), if failed => {}
            changed = committed.changed() => if changed.is_err() { return Ok(()) },
        }
    }
}
