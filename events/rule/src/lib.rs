//! What stands in a log, whoever keeps it, and which of it counts: streams, records, and one rule that every reader applies.
//!
//! Pure: no I/O, no clock, no chance. It knows neither a log ([`events-log`](../events_log/index.html) does) nor what a fact does
//! to the state (`controller/fold/src/lib.rs` does). Reading order: this file, then [`count`].

pub mod count;

pub use bytes::Bytes;

use events_schema::Offset;
use events_schema::batch::InputStream;

/// Longest record of any log, in bytes. Kafka's `max.message.bytes` of our topics is 8 MiB and counts the record's own
/// framing too; all logs share the lower bound, so that what fits one fits all.
pub const RECORD_LEN_MAX: usize = (8 << 20) - (16 << 10);

/// One kind of records of a cell, in one order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// Input: what users, fleets and operators ask.
    Commands,
    /// Input: what fleets need.
    Demand,
    /// Input: what agents saw.
    Reports,
    /// Output: claims and batches of facts; kept for ever.
    Events,
    /// Reserved for facts in a public form. Nothing writes it yet: subscribers read `GET /v1/events` of the gateway.
    Public,
}

impl Stream {
    /// All of them.
    pub const ALL: [Stream; 5] = [Stream::Commands, Stream::Demand, Stream::Reports, Stream::Events, Stream::Public];

    /// Its name in topics and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Stream::Commands => "commands",
            Stream::Demand => "demand",
            Stream::Reports => "reports",
            Stream::Events => "events",
            Stream::Public => "public",
        }
    }

    /// Its number in the embedded log's file; fixed for ever.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Stream::Commands => 0,
            Stream::Demand => 1,
            Stream::Reports => 2,
            Stream::Events => 3,
            Stream::Public => 4,
        }
    }
}

impl std::fmt::Display for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl From<InputStream> for Stream {
    fn from(stream: InputStream) -> Self {
        match stream {
            InputStream::Commands => Stream::Commands,
            InputStream::Demand => Stream::Demand,
            InputStream::Reports => Stream::Reports,
        }
    }
}

/// A record and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Where it stands in its stream of its cell. Offsets grow; that they have no gaps holds on the embedded log only.
    pub offset: Offset,
    /// What was appended.
    pub bytes: Bytes,
}
