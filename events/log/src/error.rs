//! What can go wrong with a log, one enum per operation, and what to do about each: retry, refuse, recover or stop.

use events_schema::{Cell, Offset};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// An error of the layer below; shared, because one failed commit answers many appends.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// What a caller does about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Nothing happened; the same call may succeed later.
    Retry,
    /// Nothing happened, and never will with this input.
    Refuse,
    /// It may or may not have happened: drop what was derived and recover by reading.
    Recover,
    /// This log will not work again in this process.
    Stop,
}

/// Why an append was not acknowledged.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// The record may or may not be in the log.
    #[error("the outcome of an append is unknown")]
    Unknown(#[source] Cause),
    /// Longer than [`crate::RECORD_LEN_MAX`], or than the cluster takes.
    #[error("a record of {bytes} bytes is longer than the {bytes_max} that the log takes")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// Not written, because the file system is nearly full.
    #[error("{} is on a file system with {free_bytes} bytes free, and the log keeps {reserve_bytes} in reserve: free some space", path.display())]
    Full {
        /// The log's file.
        path: PathBuf,
        /// What is free.
        free_bytes: u64,
        /// What has to stay free.
        reserve_bytes: u64,
    },
    /// Not written; the log cannot be reached now.
    #[error("the log cannot be written now")]
    Unavailable(#[source] Cause),
    /// Not written; the cluster has no partition for this cell.
    #[error("the log has no cell {cell}; it was set up with {cells}")]
    NoSuchCell {
        /// Asked for.
        cell: Cell,
        /// How many there are.
        cells: u32,
    },
    /// Not written; an error of its file ended the log for this process.
    #[error("the log's file met an error, so it takes nothing more: start ebb again, what was acknowledged is there")]
    Stopped(#[source] Cause),
}

impl AppendError {
    /// What to do.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            AppendError::Unknown(_) => Advice::Recover,
            AppendError::TooLarge { .. } | AppendError::NoSuchCell { .. } => Advice::Refuse,
            AppendError::Full { .. } | AppendError::Unavailable(_) => Advice::Retry,
            AppendError::Stopped(_) => Advice::Stop,
        }
    }
}

/// Why a read gave nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// What stood there was removed: read from `first`, or from a snapshot.
    #[error("offset {from} was removed from the log; the first one left is {first}")]
    Trimmed {
        /// Asked for.
        from: Offset,
        /// The first one left.
        first: Offset,
    },
    /// The log cannot be reached now.
    #[error("the log cannot be read now")]
    Unavailable(#[source] Cause),
    /// No partition for this cell.
    #[error("the log has no cell {cell}; it was set up with {cells}")]
    NoSuchCell {
        /// Asked for.
        cell: Cell,
        /// How many there are.
        cells: u32,
    },
    /// An error of its file ended the log for this process.
    #[error("the log's file met an error, so it gives nothing more: start ebb again, what was acknowledged is there")]
    Stopped(#[source] Cause),
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
}

impl ReadError {
    /// What to do.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            ReadError::Trimmed { .. } => Advice::Recover,
            ReadError::Unavailable(_) => Advice::Retry,
            ReadError::NoSuchCell { .. } => Advice::Refuse,
            ReadError::Stopped(_) | ReadError::Closed => Advice::Stop,
        }
    }
}

/// Why a log could not be opened. All of them need a person; [`OpenError::Held`] and [`OpenError::Unreachable`] may pass by themselves.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum OpenError {
    /// The file is open in another process.
    #[error("{} is held by another process: stop the other ebb, or choose another data directory", path.display())]
    Held {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be created or opened.
    #[error("{} cannot be opened as a log", path.display())]
    File {
        /// The file.
        path: PathBuf,
        #[source]
        source: Cause,
    },
    /// The file is no log, or a broken one.
    #[error("{} is not a log of ebb, or is damaged: restore it from a backup, or move it away to begin anew", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        #[source]
        source: Cause,
    },
    /// The file was written by a newer ebb.
    #[error("{} has log format {found}; this ebb reads {expected}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// How many there are.
        found: u64,
        /// Read by this build.
        expected: u64,
    },
    /// No broker answered.
    #[error("no Kafka broker at {brokers} answered within {waited:?}")]
    Unreachable {
        /// `HOST:PORT,…`
        brokers: String,
        /// How long it was tried.
        waited: Duration,
        #[source]
        source: Cause,
    },
    /// A client setting was not accepted, for example a certificate file.
    #[error("the Kafka client cannot be set up for {brokers}")]
    Client {
        /// `HOST:PORT,…`
        brokers: String,
        #[source]
        source: Cause,
    },
    /// Plaintext to another machine, without being told to.
    #[error(
        "kafka://{brokers} would send records in plaintext over the network: use kafka+ssl://, or add ?plaintext=allow"
    )]
    Plaintext {
        /// `HOST:PORT,…`
        brokers: String,
    },
    /// A topic cannot be created or described.
    #[error("topic {topic} cannot be set up: {problem}")]
    Topic {
        topic: String,
        /// What the cluster says.
        problem: String,
    },
    /// Somebody looks at a log that is not there.
    #[error("there is no log: {what} is missing; check the address, and on Kafka its ?prefix=")]
    Absent {
        /// A file or topic of it.
        what: String,
    },
    /// Some topics of a log are gone while others hold records.
    #[error(
        "topic {missing} is missing, while {present} holds records: what was acknowledged there is lost. Restore it from a copy of the cluster, or begin anew with another ?prefix="
    )]
    Incomplete {
        /// Those that are gone.
        missing: String,
        /// One of those with records.
        present: String,
    },
    /// A topic was deleted and made anew, or is of another log.
    #[error(
        "topic {topic} was not made together with {other} (delete.retention.ms, by which the topics of one log know each other, is {found} instead of {expected}): it was deleted and made anew, or copied from elsewhere, and records that were acknowledged are lost. Restore it from a copy of the cluster, or begin anew with another ?prefix="
    )]
    Replaced {
        topic: String,
        /// The one it is compared with.
        other: String,
        /// Its mark.
        found: String,
        /// The mark of the other one.
        expected: String,
    },
    /// A topic is there, but would lose or refuse records.
    #[error(
        "topic {topic} has {setting}={found}; ebb needs {expected}: change it with kafka-configs, or use another ?prefix="
    )]
    Setting {
        topic: String,
        /// Name of the setting.
        setting: String,
        /// Its value.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// The URL asks for a log that this build lacks.
    #[error("this build has no Kafka support: build with the feature `kafka`")]
    NotBuilt,
    /// A variable of the environment is missing.
    #[error("the URL asks for sasl, but {name} is not set in the environment")]
    Credential { name: &'static str },
    /// A thread of this process could not be started or died.
    #[error("a thread of the log failed")]
    Thread {
        #[source]
        source: Cause,
    },
}
