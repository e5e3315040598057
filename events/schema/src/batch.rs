//! How facts stand in the `events` stream: claims, batches, and what an operator had passed over. One append is one record, so a batch is atomic on any log.
//!
//! Which batches count is decided by one rule in `events/rule/src/count.rs`, not here.

use crate::fact::Fact;
use crate::trace::CausedFacts;
use crate::{Offset, Sequence, Term, TimeMs};
use minicbor::{Decode, Encode};
use serde::Serialize;

/// One record of the `events` stream.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum EventRecord {
    /// Opens a term: the record's own offset is the term of what follows.
    #[n(0)]
    Claim {
        /// Name of the controller, for people.
        #[n(0)]
        controller: String,
        /// Its process, a random number of its start.
        #[n(1)]
        incarnation: u64,
    },
    /// The facts that one decision made, in order.
    #[n(1)]
    Batch(#[n(0)] Batch),
    /// An operator's word: a record before this one that cannot be read is passed over by every reader.
    #[n(2)]
    PassOver(#[n(0)] PassOver),
}

/// A record of `events` that no ebb wrote, or that is damaged, and that an operator had passed over.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct PassOver {
    /// Where it stands. A record that can be read is not passed over, whatever is said of it.
    #[n(0)]
    pub offset: Offset,
    /// The operator.
    #[n(1)]
    pub by: String,
    /// When, by the operator's clock.
    #[n(2)]
    pub at: TimeMs,
    /// Why the operator passes over it.
    #[n(3)]
    pub reason: String,
}

/// The facts decided from some inputs.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Batch {
    /// The claim it stands on.
    #[n(0)]
    pub term: Term,
    /// Its place after the claim.
    #[n(1)]
    pub sequence: Sequence,
    /// Set when the batch was larger than a record: parts count only together.
    #[n(2)]
    pub part: Option<Part>,
    /// The inputs it took, in the order taken.
    #[n(3)]
    pub taken: Vec<Taken>,
    /// The controller's time for all of it.
    #[n(4)]
    pub at: TimeMs,
    /// What was decided, in order.
    #[n(5)]
    pub facts: Vec<Fact>,
    /// Which facts follow from inputs that carried a trace, in order. Nobody decides from them, and no state holds them.
    #[n(6)]
    #[cbor(skip_if = "Vec::is_empty")]
    pub causes: Vec<CausedFacts>,
}

/// Which part of a batch a record holds. All parts of a batch share its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Part {
    /// From 0.
    #[n(0)]
    pub index: u32,
    /// How many there are.
    #[n(1)]
    pub count: u32,
}

/// A run of inputs of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Taken {
    /// Which stream.
    #[n(0)]
    pub stream: InputStream,
    /// First offset taken.
    #[n(1)]
    pub from: Offset,
    /// First offset not taken.
    #[n(2)]
    pub to: Offset,
}

/// A stream of inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub enum InputStream {
    /// Of users, fleets and operators.
    #[n(0)]
    Commands,
    /// Of fleets.
    #[n(1)]
    Demand,
    /// Of agents and executors.
    #[n(2)]
    Reports,
}

impl InputStream {
    /// All of them, in the order in which a batch takes them.
    pub const ALL: [InputStream; 3] = [InputStream::Demand, InputStream::Reports, InputStream::Commands];

    /// Its name in facts, topics and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            InputStream::Commands => "commands",
            InputStream::Demand => "demand",
            InputStream::Reports => "reports",
        }
    }
}

/// Why bytes are not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a record of this stream: {0}")]
pub struct DecodeError(pub String);

/// The bytes of any log record or stream message: one byte of format version, then CBOR with numbered fields.
pub fn to_bytes<T: Encode<()>>(value: &T) -> Vec<u8> {
    let mut bytes = vec![FORMAT_VERSION];
    if let Err(never) = minicbor::encode(value, &mut bytes) {
        unreachable!("writing to memory cannot fail: {never}");
    }
    bytes
}

/// Reads back what [`to_bytes`] wrote; the whole input must be used.
pub fn from_bytes<T: for<'b> Decode<'b, ()>>(bytes: &[u8]) -> Result<T, DecodeError> {
    match bytes.split_first() {
        Some((&FORMAT_VERSION, body)) => {
            let mut decoder = minicbor::Decoder::new(body);
            let value = decoder.decode().map_err(|e| DecodeError(e.to_string()))?;
            if decoder.position() == body.len() { Ok(value) } else { Err(DecodeError("bytes left over".to_owned())) }
        }
        Some((version, _)) => Err(DecodeError(format!("format version {version}, this build reads {FORMAT_VERSION}"))),
        None => Err(DecodeError("empty".to_owned())),
    }
}

/// Whether bytes that this build cannot read look like a record all the same, which another build may read: a version, then one array that begins
/// with the number of its kind.
#[must_use]
pub fn looks_like_a_record(bytes: &[u8]) -> bool {
    /// Versions are counted from 1, and there will never be many.
    const VERSION_MAX: u8 = 31;
    let Some((version, body)) = bytes.split_first() else { return false };
    let mut decoder = minicbor::Decoder::new(body);
    let array = matches!(decoder.array(), Ok(Some(1..))) && decoder.u32().is_ok();
    let mut decoder = minicbor::Decoder::new(body);
    (1..=VERSION_MAX).contains(version) && array && decoder.skip().is_ok() && decoder.position() == body.len()
}

/// Version of the record format; old versions are converted here when there are any.
pub const FORMAT_VERSION: u8 = 1;
