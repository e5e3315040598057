//! Publishes what counts to the log's public topic, if it has one, for subscribers with clients of their own. Run by whoever leads the cell.
//!
//! It finds its place in the newest event that stands there, so it keeps no position of its own; after a crash some events may stand there twice, under the same id.
//! What is said of a fact is decided in `events/public`, which batches count in `events/rule`.

use crate::failure::Chain;
use controller_cell::Committed;
use events_log::{AppendError, EventLog, PublicMessage, PublicTopic, ReadError, Stream};
use events_public::{CloudEvent, FactPosition, PublicEvent};
use events_rule::count::{Counter, UnreadableEvent, Verdict, read_event};
use events_schema::batch::{Batch, EventRecord, from_bytes};
use events_schema::{Cell, Offset};
use futures::future::try_join_all;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Bytes of the log held at once.
const READ_BYTES_MAX: usize = 1 << 20;
/// Events on their way to the broker at once: they go out in order, and a failure repeats so many at most.
const IN_FLIGHT_MAX: usize = 256;
/// Between two tries after a failure: nobody waits for public events, and the log has its own patience.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// What a projector needs.
pub(crate) struct Projector {
    pub topic: Arc<dyn PublicTopic>,
    pub log: Arc<dyn EventLog>,
    pub cell: Cell,
    pub committed: watch::Receiver<Option<Committed>>,
}

/// Why it begins again from what stands in the topic.
#[derive(Debug, thiserror::Error)]
enum ProjectError {
    /// The log or the topic cannot be read now. Retry.
    #[error("the log cannot be read")]
    Read(#[from] ReadError),
    /// The topic takes nothing now. Retry.
    #[error("the public topic takes nothing")]
    Publish(#[from] AppendError),
    /// A record is none. Stop: the controller has met it too.
    #[error(transparent)]
    Record(#[from] UnreadableEvent),
}

impl Projector {
    /// Publishes until told to end.
    pub async fn run(mut self, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.project() => {}
        }
    }

    async fn project(&mut self) {
        // Whoever does not lead yet may never.
        if self.committed.wait_for(Option::is_some).await.is_err() {
            return;
        }
        loop {
            let Err(error) = self.go_on_from_the_newest().await;
            if let ProjectError::Record(_) = error {
                // The loop meets it too, and says how the controller ends.
                tracing::error!(error = %Chain(&error), "public events end here");
                return std::future::pending().await;
            }
            tracing::warn!(error = %Chain(&error), "public events wait");
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Goes on behind the newest event that stands in the topic; ends by an error only.
    async fn go_on_from_the_newest(&self) -> Result<std::convert::Infallible, ProjectError> {
        let newest = self.topic.newest(self.cell).await?;
        let mut after = newest.and_then(|id| id.parse().ok());
        let (mut counter, mut next, mut installation) = (Counter::new(), Offset(0), None);
        loop {
            let records = self.log.read(Stream::Events, self.cell, next, READ_BYTES_MAX).await?;
            if records.is_empty() {
                self.log.wait(Stream::Events, self.cell, next).await?;
                continue;
            }
            for record in records {
                next = record.offset.next();
                if installation.is_none()
                    && let Ok(EventRecord::Claim { incarnation, .. }) = from_bytes(&record.bytes)
                {
                    installation = Some(incarnation);
                }
                if let Verdict::Counts(batch) = counter.offer(record.offset, read_event(&record)?) {
                    let events = events_of(installation.unwrap_or(0), self.cell, record.offset, &batch, after);
                    after = self.publish(events).await?.or(after);
                }
            }
        }
    }

    /// Publishes events in order; the place of the last one.
    async fn publish(&self, events: Vec<(FactPosition, CloudEvent)>) -> Result<Option<FactPosition>, AppendError> {
        for some in events.chunks(IN_FLIGHT_MAX) {
            try_join_all(some.iter().map(|(_, event)| self.topic.publish(self.cell, message(event)))).await?;
        }
        Ok(events.last().map(|(place, _)| *place))
    }
}

/// The public events of a batch that are not published yet.
fn events_of(
    installation: u64,
    cell: Cell,
    offset: Offset,
    batch: &Batch,
    after: Option<FactPosition>,
) -> Vec<(FactPosition, CloudEvent)> {
    let places = (0..).map(|index| FactPosition { offset, index });
    let new = places.zip(&batch.facts).filter(|(place, _)| after.is_none_or(|after| *place > after));
    let event = |(place, fact)| {
        PublicEvent::of(fact).map(|event| (place, CloudEvent::new(installation, cell, place, batch.at, &event)))
    };
    new.filter_map(event).collect()
}

fn message(event: &CloudEvent) -> PublicMessage {
    PublicMessage { key: event.subject.clone(), headers: event.headers(), data: event.data.to_string().into_bytes() }
}
