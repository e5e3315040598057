//! The log: one small trait, three implementations, one contract suite that all of them pass.
//!
//! A log holds streams of records per cell. An append resolves when its record is durable and says where it stands; a read
//! gives what is there from an offset on. That is all: which batches *count* is a pure rule over the records (`events/rule`), who
//! owns a cell is decided by claims in the records themselves, and nothing here knows what a record means.
//!
//! Reading order: this file (the trait), `url.rs` (which log a URL names), `embedded.rs` (one redb file, the default),
//! `kafka.rs` (a cluster), `memory.rs` (for tests), `tail.rs` (the newest records, kept in memory by all three),
//! `contract.rs` (what every log must do), `pass_over.rs` (records that cannot be read), `fleet_topics.rs` (topics of others). Which records count says `events/rule/src/count.rs`.
//!
//! Next on a job's path: `controller/server/src/run.rs`.

mod embedded;
mod error;
mod fleet_topics;
#[cfg(feature = "kafka")]
mod kafka;
mod memory;
mod pass_over;
mod tail;
mod url;

#[cfg(feature = "testing")]
pub mod contract;
#[cfg(feature = "testing")]
pub mod faults;

pub use embedded::{EmbeddedLog, EmbeddedOptions};
pub use error::{Advice, AppendError, Cause, OpenError, ReadError};
pub use fleet_topics::{FLEET_RECORD_LEN_MAX, FleetReader, FleetReading, FleetTopic, FleetTopics};
#[cfg(feature = "kafka")]
pub use kafka::KafkaLog;
pub use memory::MemoryLog;
pub use pass_over::passed_over;
pub use url::{KafkaUrl, LogUrl, LogUrlError, Sasl, TopicPrefix};

pub use events_rule::{Bytes, RECORD_LEN_MAX, Record, Stream};
pub use futures::future::BoxFuture;

use events_schema::{Cell, Offset};
use std::sync::Arc;

/// A durable, ordered log of records. What every implementation must do is written down as tests in `contract.rs`.
///
/// All methods may be called at once from any number of tasks. Dropping a future of [`append`](Self::append) does not take the
/// record back: it may or may not be written.
pub trait EventLog: Send + Sync + 'static {
    /// Appends one record; resolves with its offset when it is durable and readable. Records of one caller that waits for each
    /// answer stand in the order of the calls.
    fn append(&self, stream: Stream, cell: Cell, record: Vec<u8>) -> BoxFuture<'_, Result<Offset, AppendError>>;

    /// What stands at `from` and after it now: at least one record if there is any, then as many as fit into `bytes_max` bytes.
    /// Empty when nothing was written there yet.
    fn read(
        &self,
        stream: Stream,
        cell: Cell,
        from: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, ReadError>>;

    /// The first offset not yet written, acknowledged appends of any process included.
    fn end(&self, stream: Stream, cell: Cell) -> BoxFuture<'_, Result<Offset, ReadError>>;

    /// Waits until the end is beyond `from`. Waits for ever if nobody appends: callers select it against their own stop.
    fn wait(&self, stream: Stream, cell: Cell, from: Offset) -> BoxFuture<'_, Result<(), ReadError>>;

    /// Removes records below an offset (at most the end); reading there is [`ReadError::Trimmed`] from then on.
    fn trim(&self, stream: Stream, cell: Cell, below: Offset) -> BoxFuture<'_, Result<(), AppendError>>;

    /// Where public events are written for subscribers with clients of their own; none where nobody but us reads the log.
    fn public(&self) -> Option<Arc<dyn PublicTopic>> {
        None
    }

    /// Topics `PREFIX.FLEET` in which fleets publish what they need; none where there are no topics of others.
    fn fleet_topics(&self, _prefix: &str, _cell: Cell) -> Option<Arc<dyn FleetTopics>> {
        None
    }
}

/// A topic of public events. Written by whoever leads the cell; a repeat carries the same id.
pub trait PublicTopic: Send + Sync + 'static {
    /// The id of the newest event that stands there.
    fn newest(&self, cell: Cell) -> BoxFuture<'_, Result<Option<String>, ReadError>>;

    /// Writes one event. Those of one caller stand in the order in which their futures were first polled.
    fn publish(&self, cell: Cell, message: PublicMessage) -> BoxFuture<'_, Result<(), AppendError>>;
}

/// One event as it stands in a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicMessage {
    /// Events of one key stay in order, whatever a subscriber does with partitions.
    pub key: String,
    /// Attributes of the event.
    pub headers: Vec<(&'static str, String)>,
    /// The event's data, a JSON document.
    pub data: Vec<u8>,
}

/// What becomes of a log that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// It is made: a service begins.
    Made,
    /// It is an error: somebody looks at a log, and a wrong address has to leave nothing behind.
    Refused,
}

/// Opens the log that a URL names: creates what is missing, checks what is there.
pub async fn open(url: &LogUrl) -> Result<Arc<dyn EventLog>, OpenError> {
    open_or(url, Missing::Made).await
}

/// Opens a log that is there, and creates nothing.
pub async fn open_existing(url: &LogUrl) -> Result<Arc<dyn EventLog>, OpenError> {
    open_or(url, Missing::Refused).await
}

async fn open_or(url: &LogUrl, missing: Missing) -> Result<Arc<dyn EventLog>, OpenError> {
    match url {
        LogUrl::Memory => Ok(Arc::new(MemoryLog::new())),
        LogUrl::File(path) if missing == Missing::Refused && !path.exists() => {
            Err(OpenError::Absent { what: path.display().to_string() })
        }
        LogUrl::File(path) => {
            let path = path.clone();
            // Repair after a kill reads the whole file.
            let opened = tokio::task::spawn_blocking(move || EmbeddedLog::open(&path)).await;
            let log = opened.map_err(|panic| OpenError::Thread { source: Arc::new(panic) })??;
            Ok(Arc::new(log))
        }
        #[cfg(feature = "kafka")]
        LogUrl::Kafka(kafka) => Ok(Arc::new(KafkaLog::connect_or(kafka, missing).await?)),
        #[cfg(not(feature = "kafka"))]
        LogUrl::Kafka(_) => Err(OpenError::NotBuilt),
    }
}

/// Reads every record of `from .. until` (or up to the end now, whichever is first), in order, in bounded pieces.
///
/// This is how a writer whose acknowledged offset does not follow the last one it knows learns what came between, how a
/// controller takes over, and how a read model catches up. Ends at the first error of `take`.
pub async fn read_range<E: From<ReadError>>(
    log: &dyn EventLog,
    stream: Stream,
    cell: Cell,
    from: Offset,
    until: Offset,
    mut take: impl FnMut(Record) -> Result<(), E>,
) -> Result<(), E> {
    /// Bytes held at once: one full record and then some.
    const PIECE_BYTES_MAX: usize = 16 << 20;
    let mut position = from;
    while position < until {
        let records = log.read(stream, cell, position, PIECE_BYTES_MAX).await?;
        if records.is_empty() {
            return Ok(());
        }
        for record in records {
            if record.offset >= until {
                return Ok(());
            }
            position = record.offset.next();
            take(record)?;
        }
    }
    Ok(())
}
