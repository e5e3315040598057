//! What handlers share: the log, the store, the read model, the limits. Decides nothing.

use crate::limits::Limits;
use crate::problem::{ApiError, Kind};
use crate::read_model::{Model, Progress, ReadModel};
use events_log::{EventLog, Stream};
use events_schema::orders::Telemetry;
use events_schema::{Cell, FleetId, JobId, TenantId};
use object_store::ObjectStore;
use shell::wall_clock;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLockReadGuard};
use storage::Links;
use storage::dataset::DatasetRoots;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Where a job's progress is asked for.
pub type TelemetrySource = Arc<dyn Fn(&JobId) -> Option<Telemetry> + Send + Sync>;

/// Everything a handler may use.
pub struct App {
    /// Commands and demand are appended here, events read.
    pub log: Arc<dyn EventLog>,
    /// Datasets and models.
    pub store: Arc<dyn ObjectStore>,
    /// Links into the store.
    pub links: Links,
    /// Address of the store, without credentials.
    pub store_url: String,
    /// Places from which files may be registered.
    pub dataset_roots: DatasetRoots,
    /// The cell whose streams these are.
    pub cell: Cell,
    /// Whose commands these are.
    pub tenant: TenantId,
    /// Progress of jobs.
    pub telemetry: TelemetrySource,
    /// What is known.
    pub model: Arc<ReadModel>,
    /// What bodies, waits and lists are bounded by.
    pub limits: Limits,
    /// Whether what clients look for at once is there.
    pub set_up: Arc<AtomicBool>,
    /// Cancelled when the gateway is about to stop: it answers, but asks for no more requests.
    pub leaving: CancellationToken,
    /// Cancelled when the gateway stops; event streams end then.
    pub stop: CancellationToken,
    /// Places for requests.
    pub requests: Arc<Semaphore>,
    /// Places for event streams.
    pub streams: Arc<Semaphore>,
    /// Places for requests that read what datasets are.
    pub dataset_reads: Arc<Semaphore>,
    /// Places for uploads of code.
    pub code_uploads: Arc<Semaphore>,
    /// Places for uploads of tensors.
    pub model_uploads: Arc<Semaphore>,
    /// Highest number minted for a signal of each fleet; at most one entry per fleet ever asked for by a legal signal.
    pub minted: Mutex<BTreeMap<FleetId, u64>>,
}

impl App {
    /// Looks at the read model. Never hold the guard across an await.
    pub fn read(&self) -> RwLockReadGuard<'_, Model> {
        self.model.read()
    }

    /// A number for a fleet's signal: this moment in milliseconds, but above `taken` and every number minted before.
    pub fn mint_sequence(&self, fleet: &FleetId, taken: Option<u64>) -> u64 {
        let mut minted = self.minted.lock().unwrap_or_else(PoisonError::into_inner);
        let above = |number: Option<u64>| number.map_or(0, |number| number.saturating_add(1));
        let sequence = wall_clock().0.max(above(taken)).max(above(minted.get(fleet).copied()));
        minted.insert(fleet.clone(), sequence);
        sequence
    }

    /// Waits until the model holds everything that was in the log when this was called, so that "there is no such job" is said
    /// only if it is true.
    pub async fn catch_up(&self) -> Result<(), ApiError> {
        let reached = async {
            let end = self.log.end(Stream::Events, self.cell).await?;
            let mut bell = self.model.subscribe();
            let progress = bell.wait_for(|progress| match progress {
                Progress::Following(next) | Progress::Disturbed(next) => *next >= end,
                Progress::CatchingUp => false,
                Progress::Stopped => true,
            });
            Ok::<bool, ApiError>(progress.await.is_ok_and(|progress| *progress != Progress::Stopped))
        };
        match tokio::time::timeout(self.limits.catch_up, reached).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Err(error)) => Err(error),
            Ok(Ok(false)) | Err(_) => {
                let detail = "the log does not answer, or is ahead of what is known here; try again in a moment";
                Err(ApiError::new(Kind::NotReady, detail))
            }
        }
    }
}
