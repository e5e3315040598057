//! Sweeps the store: job after job it deletes what nothing counts (`controller/core/src/sweep.rs` says what that is) and says in the
//! log how much it was. Bounded and slow on purpose: rubbish can wait, the store is the jobs'.
//!
//! Goes round the jobs by id, then looks at uploads (`sweep/uploads.rs`), and rests; a restart begins at the first job. Next file: `storage/src/stored.rs`.

mod uploads;

use controller_cell::Committed;
use controller_core::Orphans;
use events_log::{EventLog, Stream};
use events_schema::batch::to_bytes;
use events_schema::report::{Report, ReportRecord};
use events_schema::{Cell, JobId, ServerId};
use object_store::ObjectStore;
use shell::{Chain, wall_clock};
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
/// Between two rounds: at four listings a second a cell's 100,000 ended jobs are seen in seven hours.
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
}

/// What was deleted and is not on record yet.
#[derive(Debug, Default, Clone, Copy)]
struct Swept {
    objects: u64,
    bytes: u64,
}

impl Sweep {
    /// Sweeps until told to end.
    pub async fn run(mut self, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.sweep() => {}
        }
    }

    /// Goes round until nothing counts any more.
    async fn sweep(&mut self) {
        if self.committed.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let (mut last, mut swept) = (None, Swept::default());
        loop {
            let pause = self.round(&mut last, &mut swept).await;
            if swept.objects > 0 {
                self.say(&mut swept).await;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// The next few jobs; how long to wait then.
    async fn round(&self, last: &mut Option<JobId>, swept: &mut Swept) -> Duration {
        for _ in 0..JOBS_PER_ROUND {
            let next = self.committed.borrow().as_ref().and_then(|now| now.state.job_after(last.as_ref()).cloned());
            let Some(job) = next else {
                *last = None;
                return if self.sweep_uploads(swept).await { ROUND_PAUSE } else { REST };
            };
            let done = self.sweep_job(&job, swept).await;
            if let Err(fault) = &done {
                tracing::warn!(%job, error = %Chain(fault), "what the job left in the store is not swept up this time round");
            }
            *last = Some(job);
            if done.is_err() {
                return ROUND_PAUSE;
            }
        }
        ROUND_PAUSE
    }

    async fn sweep_job(&self, job: &JobId, swept: &mut Swept) -> Result<(), StoreFault> {
        let Some(state) = self.committed.borrow().as_ref().map(|now| now.state.clone()) else { return Ok(()) };
        let Some(orphans) = Orphans::of(&state, job, wall_clock()) else { return Ok(()) };
        let is_orphan = |object: &storage::stored::StoredObject| orphans.has(&object.key, object.written_at);
        for object in objects_of_job(&self.store, job, is_orphan, OBJECTS_PER_JOB_MAX).await? {
            delete_object(&self.store, &object).await?;
            tracing::info!(key = object.key, bytes = object.bytes, "swept up an object that nothing counts");
            swept.objects += 1;
            swept.bytes += object.bytes;
        }
        Ok(())
    }

    /// Puts on record what is gone. A log that does not take it has it with the next round; one that took it without saying so
    /// has it twice, which is a number too large and no more.
    async fn say(&self, swept: &mut Swept) {
        let Ok(server) = ServerId::parse(SWEEPER) else { return };
        let report = Report::ObjectsSwept { objects: swept.objects, bytes: swept.bytes };
        let record =
            ReportRecord { server, incarnation: 0, number: 0, at: wall_clock(), report, trace: None, after: None };
        match self.log.append(Stream::Reports, self.cell, to_bytes(&record)).await {
            Ok(_) => *swept = Swept::default(),
            Err(error) => tracing::warn!(error = %Chain(&error), "what was swept up is not on record yet"),
        }
    }
}
