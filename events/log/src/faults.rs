//! A log that fails where a test wants it to: wraps any other one. Only for tests.

use crate::{AppendError, BoxFuture, EventLog, ReadError, Record, Stream};
use events_schema::{Cell, Offset};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// What happens to one append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing goes wrong.
    None,
    /// It is written, but its caller is told that the outcome is unknown.
    AcknowledgementLost,
    /// It is not written, and its caller is told that the outcome is unknown.
    Lost,
    /// It is written twice; its caller learns the first offset.
    Doubled,
    /// It is refused as unavailable and not written.
    Unavailable,
}

/// The wrapped log, what happens to the next appends, and whether anything new is read.
pub struct FaultyLog {
    inner: Arc<dyn EventLog>,
    is_readable: watch::Sender<bool>,
    planned: Mutex<VecDeque<(Option<Stream>, Fault)>>,
}

/// The cause that planned faults carry.
#[derive(Debug, thiserror::Error)]
#[error("a fault that a test planned")]
pub struct Planned;

impl FaultyLog {
    /// Wraps a log; without plans it behaves like it.
    #[must_use]
    pub fn new(inner: Arc<dyn EventLog>) -> Self {
        Self { inner, is_readable: watch::Sender::new(true), planned: Mutex::default() }
    }

    /// Whether reads are answered; those that are asked for meanwhile wait.
    pub fn set_readable(&self, is_readable: bool) {
        self.is_readable.send_replace(is_readable);
    }

    /// Plans what happens to the next append to a stream (`None`: any stream) that has no plan yet.
    pub fn plan(&self, stream: Option<Stream>, fault: Fault) {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).push_back((stream, fault));
    }

    fn next(&self, stream: Stream) -> Fault {
        let mut planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
        let place = planned.iter().position(|(wanted, _)| wanted.is_none_or(|wanted| wanted == stream));
        place.and_then(|place| planned.remove(place)).map_or(Fault::None, |(_, fault)| fault)
    }
}

impl EventLog for FaultyLog {
    fn append(&self, stream: Stream, cell: Cell, record: Vec<u8>) -> BoxFuture<'_, Result<Offset, AppendError>> {
        Box::pin(async move {
            match self.next(stream) {
                Fault::None => self.inner.append(stream, cell, record).await,
                Fault::AcknowledgementLost => {
                    self.inner.append(stream, cell, record).await?;
                    Err(AppendError::Unknown(Arc::new(Planned)))
                }
                Fault::Lost => Err(AppendError::Unknown(Arc::new(Planned))),
                Fault::Doubled => {
                    let offset = self.inner.append(stream, cell, record.clone()).await?;
                    self.inner.append(stream, cell, record).await?;
                    Ok(offset)
                }
                Fault::Unavailable => Err(AppendError::Unavailable(Arc::new(Planned))),
            }
        })
    }

    fn read(
        &self,
        stream: Stream,
        cell: Cell,
        from: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, ReadError>> {
        Box::pin(async move {
            self.is_readable.subscribe().wait_for(|is_readable| *is_readable).await.map_err(|_| ReadError::Closed)?;
            self.inner.read(stream, cell, from, bytes_max).await
        })
    }

    fn end(&self, stream: Stream, cell: Cell) -> BoxFuture<'_, Result<Offset, ReadError>> {
        self.inner.end(stream, cell)
    }

    fn wait(&self, stream: Stream, cell: Cell, from: Offset) -> BoxFuture<'_, Result<(), ReadError>> {
        self.inner.wait(stream, cell, from)
    }

    fn trim(&self, stream: Stream, cell: Cell, below: Offset) -> BoxFuture<'_, Result<(), AppendError>> {
        self.inner.trim(stream, cell, below)
    }
}
