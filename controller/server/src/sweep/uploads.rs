//! Sweeps uploads that no job names. Each installation looks at its own notes of them alone, and what another one notes stays, because installations
//! may share a store. Next file: `storage/src/uploads.rs`.

use super::{Sweep, Swept};
use controller_core::{State, UnnamedUploads};
use events_log::{ReadError, Stream};
use events_schema::batch::InputStream;
use shell::{Chain, wall_clock};
use std::collections::BTreeSet;
use std::time::Duration;
use storage::keys::Upload;
use storage::retry::StoreFault;
use storage::uploads::{Noted, forget, note, noted, noted_at, others};

/// Uploads noted, and uploads deleted, before jobs have their turn again. A note is one request, a deletion five and one more for each other
/// installation; before them the notes are listed once.
const UPLOADS_PER_TURN_MAX: usize = 200;
/// Longest wait for what stands in the log to be decided; if it takes longer, uploads have time until the next round.
const DECIDED_WITHIN: Duration = Duration::from_secs(60);

/// Why uploads were not swept this time round. All: the next time.
#[derive(Debug, thiserror::Error)]
enum NotSwept {
    /// As the store said.
    #[error(transparent)]
    Store(#[from] StoreFault),
    /// As the log said.
    #[error("the log cannot be read")]
    Log(#[from] ReadError),
}

impl Sweep {
    /// Deletes what no job names, as much as one turn allows; whether there may be more.
    pub(super) async fn sweep_uploads(&self, swept: &mut Swept) -> bool {
        self.turn(swept).await.unwrap_or_else(|error| {
            tracing::warn!(error = %Chain(&error), "uploads that no job names are not swept up this time round");
            false
        })
    }

    async fn turn(&self, swept: &mut Swept) -> Result<bool, NotSwept> {
        let Some((installation, state)) = self.after_all_commands().await? else { return Ok(false) };
        let unnamed = UnnamedUploads::of(&state, wall_clock());
        // However long the listing is, what is held is a page of it, the uploads of one turn, and what jobs name: two of each that the state holds at most.
        let mut unnoted: BTreeSet<Upload> = unnamed.named().collect();
        let is_unnamed = |found: &Noted| {
            unnoted.remove(&found.upload);
            unnamed.has(&found.upload, found.at)
        };
        let found = noted(&self.store, installation, is_unnamed, UPLOADS_PER_TURN_MAX).await?;
        let is_full = found.len().max(unnoted.len()) >= UPLOADS_PER_TURN_MAX;
        // A job that was accepted before there were notes named what nobody noted; another installation would take that for nobody's.
        for upload in unnoted.into_iter().take(UPLOADS_PER_TURN_MAX) {
            note(&*self.store, upload, installation).await.map_err(|e| StoreFault::of(&upload.object(), e))?;
        }
        let others = if found.is_empty() { Vec::new() } else { others(&self.store, installation).await? };
        for noted in found {
            // Others first: whoever of this installation wants it while they are asked has noted that before he looked for it, and our own note, which
            // is looked at last, is new then.
            let elsewhere = self.is_noted_by(noted.upload, &others).await?;
            if let Some(bytes) = forget(&self.store, noted, installation, !elsewhere).await? {
                tracing::info!(key = noted.upload.object(), bytes, "swept up an upload that no job names");
                swept.objects += 1;
                swept.bytes += bytes;
            }
        }
        Ok(is_full)
    }

    /// Which installation this is, and what counts when everything that is in `commands` now is decided; nothing if some of it is not for long. A job that
    /// names an upload may have been submitted long ago, while nobody decided.
    async fn after_all_commands(&self) -> Result<Option<(u64, State)>, NotSwept> {
        let end = self.log.end(Stream::Commands, self.cell).await?;
        let mut committed = self.committed.clone();
        let decided =
            committed.wait_for(|now| now.as_ref().is_some_and(|now| now.inputs.of(InputStream::Commands) >= end));
        let decided = tokio::time::timeout(DECIDED_WITHIN, decided).await;
        let decided = decided.ok().and_then(Result::ok);
        Ok(decided.and_then(|now| now.as_ref().and_then(|now| Some((now.installation?, now.state.clone())))))
    }

    async fn is_noted_by(&self, upload: Upload, others: &[u64]) -> Result<bool, NotSwept> {
        for other in others {
            if noted_at(&self.store, upload, *other).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
#[path = "uploads_tests.rs"]
mod tests;
