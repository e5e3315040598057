//! Topics of others, one a fleet, in which they publish what they need: read from where they were left, and the place kept beside them.
//!
//! Only a log on Kafka has them. What their records say is the gateway's to judge; nothing here looks into one.

use crate::{BoxFuture, Cause};
use bytes::Bytes;
use events_schema::{FleetId, Offset, TimeMs};
use std::collections::BTreeSet;
use tokio::sync::mpsc;

/// Longest record that is handed on: what is needed fits a hundredth of it.
pub const FLEET_RECORD_LEN_MAX: usize = 64 << 10;

/// Where fleets' topics can be read.
pub trait FleetTopics: Send + Sync + 'static {
    /// Begins to read: of no fleet yet.
    fn read(&self) -> Result<FleetReader, Cause>;
}

/// What tells a [`FleetReader`]'s reading thread what to do.
pub trait FleetReading: Send + Sync + 'static {
    /// Reads the topics of these fleets, as far as there are such topics, from where their places were kept. Those of other fleets are
    /// closed. To be repeated, because topics come and go; cheap if nothing changes.
    fn watch(&self, fleets: BTreeSet<FleetId>);

    /// Keeps a fleet's place: the first offset that is not done with, and a note to be given back with it. In the background; an older
    /// place than was asked for may be found again after a crash.
    fn keep(&self, fleet: &FleetId, next: Offset, note: String);

    /// Resolves when the thread has ended, which it does by itself only if it cannot go on: why.
    fn ended(&self) -> BoxFuture<'_, Cause>;
}

/// Topics that are being read. Dropping it ends that.
pub struct FleetReader {
    /// What was read, in order within each topic.
    pub records: mpsc::Receiver<(FleetId, FleetTopic)>,
    /// What to read, and places.
    pub reading: Box<dyn FleetReading>,
}

/// What is read of a fleet's topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetTopic {
    /// It is read from `next` on.
    Opened {
        /// As it was kept; the beginning, if it never was.
        next: Offset,
        /// The note that was kept with it.
        note: String,
        /// The first offset that is not written yet.
        end: Offset,
    },
    /// It is not read any more.
    Closed,
    /// A record.
    Record {
        /// Where it stands.
        offset: Offset,
        /// Its time, as its publisher or its broker set it.
        at: Option<TimeMs>,
        /// What it holds, if that is no longer than [`FLEET_RECORD_LEN_MAX`]; else its length.
        value: Result<Bytes, usize>,
    },
}
