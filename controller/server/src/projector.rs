//! Publishes what counts to the log's public topic, if it has one, for subscribers with clients of their own. Run by whoever leads the cell.
//!
//! It finds its place in the newest event that stands there, so it keeps no position of its own; after a crash some events may stand there twice, under the same id.
//! What is said of a fact is decided in `events/public`, which batches count in `events/rule`.

use controller_cell::Committed;
use events_log::{EventLog, PublicMessage, PublicTopic, ReadError, Stream, passed_over};
use events_public::{CloudEvent, FactPosition, PublicEvent};
use events_rule::count::{Counter, UnreadableEvent, Verdict, Words, read_event};
use events_schema::batch::Batch;
use events_schema::fact::Fact;
use events_schema::trace::cause_of;
use events_schema::{Cell, Offset, TraceContext};
use futures::future::try_join_all;
use shell::{Chain, Pauses};
use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Bytes of the log held at once.
const READ_BYTES_MAX: usize = 1 << 20;
/// Events on their way to the broker at once: they go out in order, and a failure repeats so many at most.
const IN_FLIGHT_MAX: usize = 256;
/// Between two tries after a failure: nobody waits for public events, and the log has its own patience.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

/// What a projector needs.
pub(crate) struct Projector {
    pub topic: Arc<dyn PublicTopic>,
    pub log: Arc<dyn EventLog>,
    pub cell: Cell,
    pub committed: watch::Receiver<Option<Committed>>,
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
        let installation = match self.committed.wait_for(Option::is_some).await {
            Ok(now) => now.as_ref().and_then(|now| now.installation).unwrap_or(0),
            Err(_) => return,
        };
        let Err(error) = self.go_on(installation).await;
        // The loop meets it too, and says how the controller ends.
        tracing::error!(error = %Chain(&error), "public events end here");
        std::future::pending().await
    }

    /// Goes on behind the newest event that stands in the topic. What does not answer is asked again; only a record that is none ends it.
    async fn go_on(&self, installation: u64) -> Result<Infallible, UnreadableEvent> {
        let newest = again(|| self.topic.newest(self.cell)).await;
        let mut after = newest.and_then(|id| id.parse().ok());
        let (mut counter, mut words, mut next) = (Counter::new(), Words::default(), Offset(0));
        loop {
            let records = again(|| self.log.read(Stream::Events, self.cell, next, READ_BYTES_MAX)).await;
            if records.is_empty() {
                again(|| self.log.wait(Stream::Events, self.cell, next)).await;
                continue;
            }
            for record in records {
                next = record.offset.next();
                let event = match read_event(&record) {
                    Ok(event) => event,
                    Err(unreadable) if self.is_passed_over(&mut words, &unreadable).await => continue,
                    Err(unreadable) => return Err(unreadable),
                };
                if let Verdict::Counts(batch) = counter.offer(record.offset, event) {
                    let events = events_of(installation, self.cell, record.offset, &batch, after);
                    self.publish(&events).await;
                    after = events.last().map(|(place, ..)| *place).or(after);
                }
            }
        }
    }

    /// Whether an operator had a record passed over.
    async fn is_passed_over(&self, words: &mut Words, unreadable: &UnreadableEvent) -> bool {
        let known = &*words;
        let seek = || async {
            let mut met = known.clone();
            let word = passed_over(self.log.as_ref(), self.cell, &mut met, unreadable).await?;
            Ok::<_, ReadError>((word.is_some(), met))
        };
        let (passed_over, met) = again(seek).await;
        *words = met;
        passed_over
    }

    /// Publishes events in order. If one of a chunk did not arrive, the whole chunk goes out again, so that each stands behind those before it.
    async fn publish(&self, events: &[Placed]) {
        for some in events.chunks(IN_FLIGHT_MAX) {
            let all = || {
                try_join_all(some.iter().map(|(_, event, trace)| self.topic.publish(self.cell, message(event, *trace))))
            };
            again(all).await;
        }
    }
}

/// Asks until there is an answer: whoever leads the cell has no other place to publish to, and its own patience with the log ends it if need be.
async fn again<T, E: Error, F: Future<Output = Result<T, E>>>(ask: impl Fn() -> F) -> T {
    let mut pauses = Pauses::between(RETRY_PAUSE_MIN, RETRY_PAUSE_MAX);
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => tracing::warn!(error = %Chain(&error), "public events wait"),
        }
        tokio::time::sleep(pauses.after_failure()).await;
    }
}

/// The public events of a batch that are not published yet.
fn events_of(installation: u64, cell: Cell, offset: Offset, batch: &Batch, after: Option<FactPosition>) -> Vec<Placed> {
    let places = (0..).map(|index| FactPosition { offset, index });
    let new = places.zip(&batch.facts).filter(|(place, _)| after.is_none_or(|after| *place > after));
    let event = |(place, fact): (FactPosition, &Fact)| {
        let event = PublicEvent::of(fact)?;
        let trace = cause_of(&batch.causes, place.index as usize);
        Some((place, CloudEvent::new(installation, cell, place, batch.at, &event), trace))
    };
    new.filter_map(event).collect()
}

/// An event, where its fact stands, and the span that led to it.
type Placed = (FactPosition, CloudEvent, Option<TraceContext>);

fn message(event: &CloudEvent, trace: Option<TraceContext>) -> PublicMessage {
    PublicMessage {
        key: event.subject.clone(),
        headers: event.headers(trace),
        data: event.data.to_string().into_bytes(),
    }
}
