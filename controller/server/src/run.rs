//! The one loop of a cell: take inputs, decide, append one batch, and only then let anybody know. Everything that leaves the
//! controller derives from [`Committed`], which is published after the acknowledgement and nowhere else.
//!
//! It sends nothing itself. Next files: `intake.rs` (one batch), `agents.rs` (what becomes of it).

use crate::failure::{Chain, Interrupt};
use crate::intake::{Limits, Prepared, prepare};
use crate::recover::{Backoff, Identity, Recovered, append, recover};
use controller_cell::Fold;
use controller_core::{Policy, State};
use events_log::{Advice, EventLog, RECORD_LEN_MAX, ReadError, Record, Stream, read_range};
use events_rule::count::split;
use events_schema::batch::InputStream;
use events_schema::{Cell, Epoch, Offset, TimeMs};
use futures::future::select_all;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Attempts to take a cell over while a person waits for the start: about half a minute with the pauses between them.
const START_ATTEMPTS_MAX: u32 = 20;

/// Time between two looks at the end of `events` when nothing else leads there: how late an idle controller learns that it was
/// replaced, or that the log is gone.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// A log that does not answer a probe within this time counts as gone.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether the log answers. Clones share it. A controller without a log cannot take slots back for their fleets, so it must
/// not go on renewing the loans.
#[derive(Debug, Clone)]
pub(crate) struct LogHealth(Arc<AtomicBool>);

impl LogHealth {
    pub fn new() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    pub fn is_well(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn set(&self, well: bool) {
        if self.0.swap(well, Ordering::Relaxed) != well {
            tracing::warn!(well, "the log answers, or does not any more");
        }
    }
}

/// What counts: the state as of a place in the log. Cloning is cheap; the state's tables are shared.
#[derive(Debug, Clone)]
pub(crate) struct Committed {
    pub state: State,
    /// The claim it stands on.
    pub epoch: Epoch,
    /// First offset of `events` that is not in it.
    pub position: Offset,
    /// Time of its last batch, and when that was published.
    pub at: (TimeMs, Instant),
}

impl Committed {
    /// The time by which deadlines in the state are meant. It never stands behind the decisions that made them.
    pub fn now(&self) -> TimeMs {
        let (at, published) = self.at;
        wall_clock().max(at.plus_ms(u64::try_from(published.elapsed().as_millis()).unwrap_or(u64::MAX)))
    }
}

/// The loop and what it needs.
pub(crate) struct Runner {
    pub log: Arc<dyn EventLog>,
    pub cell: Cell,
    pub identity: Identity,
    pub policy: Box<dyn Policy>,
    /// Longest time between two looks at the clock.
    pub tick: Duration,
    /// How long an agent may be silent before it is given up.
    pub agent_lease: Duration,
    pub committed: watch::Sender<Option<Committed>>,
    pub health: LogHealth,
}

/// Why the loop looks again.
enum Wake {
    Inputs,
    Tick,
}

impl Runner {
    /// Runs until told to end, until another controller claims the cell, or until the log gives out.
    pub async fn run(self, shutdown: CancellationToken) -> Interrupt {
        let mut attempts_max = Some(START_ATTEMPTS_MAX);
        let mut backoff = Backoff::new();
        loop {
            let recovered = match recover(
                &*self.log,
                self.cell,
                &self.identity,
                attempts_max.take(),
                &self.health,
                &shutdown,
            )
            .await
            {
                Ok(recovered) => recovered,
                Err(interrupt) => return interrupt,
            };
            let begun = Instant::now();
            let interrupt = self.serve(recovered, &shutdown).await;
            if interrupt.advice() != Advice::Recover {
                return interrupt;
            }
            // The state is dropped with `recovered`; what was published stays true, it had counted.
            tracing::warn!(reason = %Chain(&interrupt), "dropping the state and recovering from the log");
            if begun.elapsed() > Duration::from_secs(60) {
                backoff = Backoff::new();
            }
            if let Err(interrupt) = backoff.pause(&shutdown).await {
                return interrupt;
            }
        }
    }

    /// One epoch. Returns what ended it.
    async fn serve(&self, recovered: Recovered, shutdown: &CancellationToken) -> Interrupt {
        let Recovered { mut fold, epoch, inputs_end } = recovered;
        let mut limits = Limits::default();
        let (begun, begun_at) = (Instant::now(), fold.at);
        // What happened while nobody decided is still on its way up from the agents. Time alone decides nothing before each of
        // them has had its chance to say it: a training job would be taken for one that never began.
        let is_awaited = fold.state.servers().any(|(_, server)| server.connected);
        let quiet = if is_awaited { self.agent_lease } else { Duration::ZERO };
        let (mut ticked_at, mut probed_at) = (Instant::now(), Instant::now());
        self.publish(&fold, epoch);
        loop {
            let caught_up = fold.positions.reached(&inputs_end) && begun.elapsed() >= quiet;
            let wait = self.tick.saturating_sub(ticked_at.elapsed());
            let tick_due = match self.wake(&fold, caught_up.then_some(wait), shutdown).await {
                Ok(Wake::Tick) => true,
                Ok(Wake::Inputs) => caught_up && ticked_at.elapsed() >= self.tick,
                Err(interrupt) => return interrupt,
            };
            if tick_due && probed_at.elapsed() >= PROBE_INTERVAL {
                if let Err(interrupt) = self.probe(&mut fold, epoch).await {
                    return interrupt;
                }
                probed_at = Instant::now();
            }
            // A clock that was ahead once must not stop time until the others have caught up with it.
            let at = wall_clock().max(fold.at).max(begun_at.plus_ms(begun.elapsed().as_millis() as u64));
            let prepared = match prepare(&*self.log, self.cell, &*self.policy, &fold, at, &limits, tick_due).await {
                Ok(prepared) => prepared,
                Err(error) if error.advice() == Advice::Retry => {
                    tracing::warn!(error = %Chain(&error), "inputs cannot be read now");
                    tokio::time::sleep(self.tick).await;
                    continue;
                }
                Err(error) => return error.into(),
            };
            if tick_due {
                ticked_at = Instant::now();
            }
            if prepared.is_empty() {
                continue;
            }
            let inputs = prepared.inputs;
            match self.commit(&mut fold, epoch, prepared, shutdown).await {
                Ok(()) => limits = Limits::default(),
                Err(Interrupt::TooLarge(error)) => limits = limits.after_too_large(inputs, &Chain(&error)),
                Err(interrupt) => return interrupt,
            }
            self.publish(&fold, epoch);
        }
    }

    fn publish(&self, fold: &Fold, epoch: Epoch) {
        let at = (fold.at, Instant::now());
        self.committed.send_replace(Some(Committed { state: fold.state.clone(), epoch, position: fold.known, at }));
    }

    /// Waits for an input beyond what was taken, or for time to pass (`None`: not for time).
    async fn wake(&self, fold: &Fold, wait: Option<Duration>, shutdown: &CancellationToken) -> Result<Wake, Interrupt> {
        let inputs = InputStream::ALL.map(|stream| self.log.wait(stream.into(), self.cell, fold.positions.of(stream)));
        tokio::select! {
            biased;
            () = shutdown.cancelled() => Err(Interrupt::Shutdown),
            (woken, _, _) = select_all(inputs) => match woken {
                Ok(()) => Ok(Wake::Inputs),
                Err(error) if error.advice() == Advice::Retry => {
                    self.health.set(false);
                    tracing::warn!(error = %Chain(&error), "cannot wait for inputs now");
                    tokio::time::sleep(self.tick).await;
                    Ok(Wake::Inputs)
                }
                Err(error) => Err(error.into()),
            },
            () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => Ok(Wake::Tick),
        }
    }

    /// Appends the batch and folds what stands in the log up to it, ours or not. When this returns, the batch counts.
    async fn commit(
        &self,
        fold: &mut Fold,
        epoch: Epoch,
        prepared: Prepared,
        shutdown: &CancellationToken,
    ) -> Result<(), Interrupt> {
        let sequence = fold.counter.next_sequence();
        let batch = prepared.batch(epoch, sequence);
        for bytes in split(batch, RECORD_LEN_MAX) {
            let offset = append(&*self.log, Stream::Events, self.cell, &bytes, &self.health, shutdown).await?;
            if offset == fold.known {
                // Nobody came between: the record is the next one, and its bytes are in our hands.
                take(fold, &Record { offset, bytes: bytes.into() })?;
            } else {
                self.read_gap(fold, offset).await?;
            }
            if fold.epoch() != Some(epoch) {
                return Err(self.superseded(fold));
            }
        }
        // Its own claim is in force and yet it did not count: a record before it was lost. What is true only the log knows.
        if fold.counter.counted(epoch, sequence) { Ok(()) } else { Err(Interrupt::Recover(None)) }
    }

    /// Looks whether the log is there and whether anybody wrote to it.
    async fn probe(&self, fold: &mut Fold, epoch: Epoch) -> Result<(), Interrupt> {
        let end = match tokio::time::timeout(PROBE_TIMEOUT, self.log.end(Stream::Events, self.cell)).await {
            Ok(Ok(end)) => end,
            Ok(Err(error)) if error.advice() != Advice::Retry => return Err(error.into()),
            Ok(Err(_)) | Err(_) => {
                self.health.set(false);
                return Ok(());
            }
        };
        self.health.set(true);
        if end > fold.known {
            self.read_gap(fold, Offset(end.0 - 1)).await?;
        }
        if fold.epoch() == Some(epoch) { Ok(()) } else { Err(self.superseded(fold)) }
    }

    /// Folds everything up to and with `offset`.
    async fn read_gap(&self, fold: &mut Fold, offset: Offset) -> Result<(), Interrupt> {
        let from = fold.known;
        read_range(&*self.log, Stream::Events, self.cell, from, offset.next(), |record| take(fold, &record))
            .await
            .map_err(|interrupt| match interrupt {
                // The batch is in the log, so its outcome is not known to us.
                Interrupt::Read(ReadError::Unavailable(_)) => Interrupt::Recover(None),
                other => other,
            })
    }

    /// Who claimed the cell over us: another one, or a late claim of our own whose outcome had stayed unknown.
    fn superseded(&self, fold: &Fold) -> Interrupt {
        match &fold.claimant {
            Some(claimant) if claimant.incarnation == self.identity.incarnation => Interrupt::Recover(None),
            claimant => {
                let by = claimant.as_ref().map_or_else(String::new, |claimant| claimant.controller.clone());
                Interrupt::Superseded { by, epoch: fold.epoch().unwrap_or_default() }
            }
        }
    }
}

/// Folds a record, and says so if it has no effect.
pub(crate) fn take(fold: &mut Fold, record: &Record) -> Result<(), Interrupt> {
    if let Some(cause) = fold.take(record)? {
        tracing::info!(offset = %record.offset, cause = cause.name(), "a record without effect");
    }
    Ok(())
}

/// The wall clock; enters decisions only as the time of a batch.
pub(crate) fn wall_clock() -> TimeMs {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    TimeMs(u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX))
}
