//! Sweeps the store: job after job it deletes what nothing counts (`controller/core/src/sweep.rs` says what that is) and says in the
//! log how much it was. Bounded and slow on purpose: rubbish can wait, the store is the jobs'.
//!
//! Goes round the jobs by id and rests when it has seen all; a restart begins at the first. Next file: `storage/src/stored.rs`.

use crate::failure::Chain;
use crate::recover::append_input;
use crate::run::{Committed, LogHealth, wall_clock};
use controller_core::Orphans;
use events_log::{EventLog, Stream};
use events_schema::batch::to_bytes;
use events_schema::report::{Report, ReportRecord};
use events_schema::{Cell, JobId, ServerId};
use object_store::ObjectStore;
use std::sync::Arc;
use std::time::Duration;
use storage::retry::StoreFault;
use storage::stored::{delete_object, objects_of_job};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Jobs looked at between two pauses: each costs a listing.
const JOBS_PER_ROUND: usize = 20;
/// Objects deleted of one job before the next one has its turn; the rest is for the next time round.
const OBJECTS_PER_JOB_MAX: usize = 1_000;
/// Between two rounds: a cell's 100,000 ended jobs are seen in three hours, at four listings a second.
const ROUND_PAUSE: Duration = Duration::from_secs(5);
/// Between the last job and the first one again: nothing becomes rubbish in less than a day.
const REST: Duration = Duration::from_secs(6 * 3_600);

/// Who the report is from, since no agent saw it.
const SWEEPER: &str = "controller";

/// What a sweep needs.
pub(crate) struct Sweep {
    pub store: Arc<dyn ObjectStore>,
    pub log: Arc<dyn EventLog>,
    pub cell: Cell,
    pub committed: watch::Receiver<Option<Committed>>,
    pub health: LogHealth,
}

/// What a round deleted.
#[derive(Debug, Default, Clone, Copy)]
struct Swept {
    objects: u64,
    bytes: u64,
}

impl Sweep {
    /// Sweeps until told to end.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), String> {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            known = self.committed.wait_for(Option::is_some) => if known.is_err() { return Ok(()) },
        }
        let mut last = None;
        loop {
            let (swept, pause) = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                round = self.round(&mut last) => round,
            };
            if swept.objects > 0 {
                tracing::info!(objects = swept.objects, bytes = swept.bytes, "swept objects that nothing counts");
                self.say(swept, &shutdown).await?;
            }
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// The next few jobs; what was deleted and how long to wait.
    async fn round(&self, last: &mut Option<JobId>) -> (Swept, Duration) {
        let mut swept = Swept::default();
        for _ in 0..JOBS_PER_ROUND {
            let next = self.committed.borrow().as_ref().map(|now| now.state.job_after(last.as_ref()).cloned());
            match next {
                None => return (swept, ROUND_PAUSE),
                Some(None) => {
                    *last = None;
                    return (swept, REST);
                }
                Some(Some(job)) => {
                    if let Err(fault) = self.sweep_job(&job, &mut swept).await {
                        tracing::warn!(%job, error = %Chain(&fault), "the store cannot be swept now");
                        return (swept, ROUND_PAUSE);
                    }
                    *last = Some(job);
                }
            }
        }
        (swept, ROUND_PAUSE)
    }

    async fn sweep_job(&self, job: &JobId, swept: &mut Swept) -> Result<(), StoreFault> {
        let Some(state) = self.committed.borrow().as_ref().map(|now| now.state.clone()) else { return Ok(()) };
        let Some(orphans) = Orphans::of(&state, job, wall_clock()) else { return Ok(()) };
        let is_orphan = |object: &storage::stored::StoredObject| orphans.has(&object.key, object.written_at);
        for object in objects_of_job(&self.store, job, is_orphan, OBJECTS_PER_JOB_MAX).await? {
            delete_object(&self.store, &object).await?;
            tracing::info!(key = object.key, bytes = object.bytes, "deleted an object that nothing counts");
            swept.objects += 1;
            swept.bytes += object.bytes;
        }
        Ok(())
    }

    /// Puts on record what is gone.
    async fn say(&self, swept: Swept, shutdown: &CancellationToken) -> Result<(), String> {
        let server = ServerId::parse(SWEEPER).map_err(|error| error.to_string())?;
        let report = Report::ObjectsSwept { objects: swept.objects, bytes: swept.bytes };
        let record = ReportRecord { server, incarnation: 0, number: 0, at: wall_clock(), report };
        let bytes = to_bytes(&record);
        match append_input(&*self.log, Stream::Reports, self.cell, &bytes, &self.health, shutdown).await {
            Ok(()) => Ok(()),
            Err(_) if shutdown.is_cancelled() => Ok(()),
            Err(error) => Err(Chain(&error).to_string()),
        }
    }
}
