//! Copies what fleets publish in their own topics into `demand`, by the rules of HTTP: the same parser, the same numbers, the same
//! call (`handlers/fleets.rs`). Which of it is published and when is decided in `gateway/call/src/copier.rs`.
//!
//! One task per gateway, owned by `lib.rs`, and one more for each fleet whose signal is on its way. It never ends by itself: topics
//! that cannot be read are tried again, and everything else that the gateway does goes on without them.

use crate::app::App;
use crate::handlers::fleets;
use crate::problem::ApiError;
use crate::read_model::Progress;
use crate::{body, parse, submit};
use events_log::{Cause, FLEET_RECORD_LEN_MAX, FleetReader, FleetTopic, FleetTopics};
use events_schema::command::{Command, Needs};
use events_schema::{FleetId, Offset, TimeMs};
use gateway_call::{Copier, CopyIn, CopyOut, Published, TopicPlace, TopicSignal};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How often it is looked which fleets there are: the topic of a new one is looked for within this.
const FLEETS_EVERY: Duration = Duration::from_secs(1);
/// Pause after topics could not be read at all.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Copies for as long as it is polled.
pub async fn copy(app: Arc<App>, topics: Arc<dyn FleetTopics>) {
    // What a signal is worth is said by the state, so not before it is known.
    let known = |progress: &Progress| matches!(progress, Progress::Following(_) | Progress::Disturbed(_));
    if app.model.subscribe().wait_for(known).await.is_err() {
        return;
    }
    loop {
        let cause = match topics.read() {
            Ok(reader) => Copying::new(app.clone(), reader).run().await,
            Err(cause) => cause,
        };
        tracing::error!(%cause, "fleets' topics cannot be read; trying again");
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

struct Copying {
    app: Arc<App>,
    reader: FleetReader,
    copier: Copier,
    begun: Instant,
    /// When each fleet is to be woken.
    wakes: BTreeMap<FleetId, TimeMs>,
    /// Signals and refusals on their way, at most one of each fleet.
    flights: JoinSet<(FleetId, CopyIn)>,
}

impl Copying {
    fn new(app: Arc<App>, reader: FleetReader) -> Self {
        let (copier, begun) = (Copier::default(), Instant::now());
        Self { app, reader, copier, begun, wakes: BTreeMap::new(), flights: JoinSet::new() }
    }

    /// Runs until topics cannot be read any more; why.
    async fn run(mut self) -> Cause {
        let mut look = tokio::time::interval(FLEETS_EVERY);
        loop {
            let wake = self.wakes.values().min().copied();
            let wake_at = self.begun + Duration::from_millis(wake.map_or(0, |at| at.0));
            tokio::select! {
                cause = self.reader.reading.ended() => return cause,
                _ = look.tick() => {
                    let fleets: BTreeSet<FleetId> = self.app.read().state().fleets().map(|(fleet, _)| fleet.clone()).collect();
                    self.reader.reading.watch(fleets);
                }
                Some(ended) = self.flights.join_next() => match ended {
                    Ok((fleet, input)) => self.handle(&fleet, input),
                    // The gateway stops when a task of it panics; this is one.
                    Err(panic) => std::panic::resume_unwind(panic.into_panic()),
                },
                Some((fleet, read)) = self.reader.records.recv() => self.handle(&fleet, understood(read)),
                () = tokio::time::sleep_until(wake_at.into()), if wake.is_some() => self.wake(),
            }
        }
    }

    fn now(&self) -> TimeMs {
        TimeMs(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn wake(&mut self) {
        let now = self.now();
        let due: Vec<FleetId> =
            self.wakes.iter().filter(|(_, at)| **at <= now).map(|(fleet, _)| fleet.clone()).collect();
        for fleet in due {
            self.wakes.remove(&fleet);
            self.handle(&fleet, CopyIn::Wake);
        }
    }

    fn handle(&mut self, fleet: &FleetId, input: CopyIn) {
        let now = self.now();
        for out in self.copier.handle(now, fleet, input) {
            let (app, fleet) = (self.app.clone(), fleet.clone());
            match out {
                CopyOut::Publish { sequence, needs } => {
                    self.flights.spawn(async move {
                        let outcome = publish(&app, &fleet, sequence, needs).await;
                        (fleet, CopyIn::Published { sequence, outcome })
                    });
                }
                CopyOut::Tell { offset, count, reason } => {
                    self.flights.spawn(async move {
                        let recorded = tell(&app, &fleet, offset, count, reason).await;
                        (fleet, CopyIn::Told { offset, recorded })
                    });
                }
                CopyOut::Keep(place) => self.reader.reading.keep(&fleet, place.next, note(place.number)),
                CopyOut::WakeAt(at) => {
                    self.wakes.insert(fleet, at);
                }
            }
        }
    }
}

async fn publish(app: &App, fleet: &FleetId, sequence: u64, needs: Needs) -> Published {
    match fleets::publish(app, fleet, sequence, needs).await {
        Ok(_) => Published::Done,
        Err(error) if error.kind.worth_retrying() => {
            tracing::warn!(%fleet, detail = error.detail, "a signal of a fleet's own topic is published again");
            Published::Again
        }
        Err(error) => Published::Refused(error.detail),
    }
}

/// Whether it is recorded, or never will be.
async fn tell(app: &App, fleet: &FleetId, offset: Offset, count: u64, reason: String) -> bool {
    tracing::warn!(%fleet, %offset, count, reason, "signals in a fleet's own topic cannot be used");
    let command = Command::TellRefused { fleet: fleet.clone(), offset, count, reason };
    submit::command(app, command).await.map_or_else(|error| !error.kind.worth_retrying(), |_| true)
}

fn understood(read: FleetTopic) -> CopyIn {
    match read {
        FleetTopic::Opened { next, note, end } => {
            CopyIn::Opened { place: TopicPlace { next, number: number(&note) }, end }
        }
        FleetTopic::Closed => CopyIn::Closed,
        FleetTopic::Record { offset, at, value } => {
            let signal = match value {
                Ok(bytes) => signal(&bytes).map_err(|error| error.detail),
                Err(len) => Err(format!("the record has {len} bytes; a signal has at most {FLEET_RECORD_LEN_MAX}")),
            };
            CopyIn::Read { offset, at, signal }
        }
    }
}

/// What a record says, as a body of `POST /v1/fleets/{fleet}/demand` in JSON would.
fn signal(bytes: &[u8]) -> Result<TopicSignal, ApiError> {
    let signal = parse::demand(&body::json(bytes)?)?;
    Ok(TopicSignal { sequence: signal.sequence, needs: signal.needs })
}

/// What is kept beside a place.
fn note(number: Option<u64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

fn number(note: &str) -> Option<u64> {
    note.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::command::Demand;

    #[test]
    fn records_are_read_by_the_rules_of_http() {
        let needs_two = TopicSignal { sequence: Some(7), needs: Demand::Needed(2).into() };
        assert_eq!(signal(br#"{"needed": 2, "sequence": 7}"#).unwrap(), needs_two);
        let shared = Demand::Utilization { sum_milli: 1_500, target_milli: 800 };
        assert_eq!(signal(br#"{"utilization": 1.5}"#).unwrap().needs.demand, shared);
        for (wrong, part) in [
            ("", "empty"),
            ("{\"needed\": 2", "not valid JSON"),
            (r#"{"needed": 2, "needed": 3}"#, "twice"),
            (r#"{"needed": -1}"#, "needed"),
            (r#"{"needed": 1, "fleet": "other"}"#, "no field here"),
        ] {
            let error = signal(wrong.as_bytes()).unwrap_err();
            assert!(error.detail.contains(part), "{wrong}: {}", error.detail);
        }
        let long = FleetTopic::Record { offset: Offset(3), at: None, value: Err(1 << 20) };
        assert!(matches!(understood(long), CopyIn::Read { signal: Err(reason), .. } if reason.contains("1048576")));
    }

    #[test]
    fn the_last_number_is_found_again_in_the_note() {
        assert_eq!([None, Some(0), Some(u64::MAX)].map(|n| number(&note(n))), [None, Some(0), Some(u64::MAX)]);
    }
}
