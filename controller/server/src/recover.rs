//! Taking over a cell: claim it, then read everything below the claim. From the claim's own offset on no other controller's
//! batch counts, so what is read is all there will ever be.
//!
//! There are no snapshots yet: recovery reads the whole `events` stream. Next file: `run.rs`.

use crate::failure::{Chain, Interrupt};
use crate::run::{LogHealth, take};
use controller_cell::{Fold, Positions};
use events_log::{Advice, AppendError, EventLog, Stream, read_range};
use events_schema::batch::{EventRecord, InputStream, to_bytes};
use events_schema::{Cell, Epoch, Offset};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Pauses between attempts when the log cannot be reached, doubled from the first to the last.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A pause that doubles each time.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub fn new() -> Self {
        Self(PAUSE_MIN)
    }

    /// Waits; ends early with an interrupt when told to end.
    pub async fn pause(&mut self, shutdown: &CancellationToken) -> Result<(), Interrupt> {
        let pause = self.0;
        self.0 = (pause * 2).min(PAUSE_MAX);
        tokio::select! {
            () = shutdown.cancelled() => Err(Interrupt::Shutdown),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }
}

/// Who claims.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// Name of the controller, for people.
    pub name: String,
    /// Its process.
    pub incarnation: u64,
}

/// A cell in our hands.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub fold: Fold,
    pub epoch: Epoch,
    /// Ends of the inputs at the take-over: all before them is read before anything is decided from time alone.
    pub inputs_end: Positions,
}

/// Claims the cell and reads it, trying again while the log says so. `attempts_max` bounds that at a start, where a person
/// waits; later it goes on until told to end.
pub(crate) async fn recover(
    log: &dyn EventLog,
    cell: Cell,
    identity: &Identity,
    attempts_max: Option<u32>,
    health: &LogHealth,
    shutdown: &CancellationToken,
) -> Result<Recovered, Interrupt> {
    let mut backoff = Backoff::new();
    let mut attempts = 0;
    loop {
        let attempt = tokio::select! {
            () = shutdown.cancelled() => return Err(Interrupt::Shutdown),
            attempt = claim_and_read(log, cell, identity) => attempt,
        };
        attempts += 1;
        match attempt {
            Ok(recovered) => {
                health.set(true);
                return Ok(recovered);
            }
            Err(error) if matches!(error.advice(), Advice::Retry) || matches!(error, Interrupt::Recover(_)) => {
                if attempts_max.is_some_and(|max| attempts >= max) {
                    return Err(Interrupt::Attempts { attempts, last: Box::new(error) });
                }
                health.set(false);
                tracing::warn!(error = %Chain(&error), attempts, "taking the cell over once more");
                backoff.pause(shutdown).await?;
            }
            Err(error) => return Err(error),
        }
    }
}

async fn claim_and_read(log: &dyn EventLog, cell: Cell, identity: &Identity) -> Result<Recovered, Interrupt> {
    let begun = Instant::now();
    let claim = EventRecord::Claim { controller: identity.name.clone(), incarnation: identity.incarnation };
    let offset = log.append(Stream::Events, cell, to_bytes(&claim)).await?;
    let mut fold = Fold::new(cell);
    read_range(log, Stream::Events, cell, Offset(0), offset.next(), |record| take(&mut fold, &record)).await?;
    let epoch = Epoch::of_claim(offset);
    if fold.epoch() != Some(epoch) {
        // The log acknowledged what it does not show: its copy is behind. Claim and read again.
        return Err(Interrupt::Recover(None));
    }
    let mut inputs_end = Positions::default();
    for stream in InputStream::ALL {
        inputs_end.set(stream, log.end(stream.into(), cell).await?);
    }
    let elapsed_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let skipped = fold.counter.skipped().total();
    tracing::info!(%epoch, name = identity.name, elapsed_ms, skipped, jobs = fold.state.live_len(), "took the cell over");
    Ok(Recovered { fold, epoch, inputs_end })
}

/// Appends a record, trying again while the log says that nothing happened.
pub(crate) async fn append(
    log: &dyn EventLog,
    stream: Stream,
    cell: Cell,
    record: &[u8],
    health: &LogHealth,
    shutdown: &CancellationToken,
) -> Result<Offset, Interrupt> {
    let mut backoff = Backoff::new();
    let mut complained = false;
    loop {
        match log.append(stream, cell, record.to_vec()).await {
            Ok(offset) => {
                health.set(true);
                return Ok(offset);
            }
            Err(error) if error.advice() == Advice::Retry => {
                health.set(false);
                if !complained {
                    tracing::error!(%stream, error = %Chain(&error), "the log takes no records now; trying until it does");
                    complained = true;
                }
                backoff.pause(shutdown).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Appends an input whose repetition has no further effect, so that an unknown outcome is a reason to repeat it.
pub(crate) async fn append_input(
    log: &dyn EventLog,
    stream: Stream,
    cell: Cell,
    record: &[u8],
    health: &LogHealth,
    shutdown: &CancellationToken,
) -> Result<(), Interrupt> {
    let mut backoff = Backoff::new();
    loop {
        match append(log, stream, cell, record, health, shutdown).await {
            Ok(_) => return Ok(()),
            Err(Interrupt::Recover(Some(AppendError::Unknown(cause)))) => {
                tracing::warn!(%stream, %cause, "an input may not have been written; repeating it");
                backoff.pause(shutdown).await?;
            }
            Err(error) => return Err(error),
        }
    }
}
