//! How a controller's work on its cell ends, and what a person has to know and do about it. Next file: `machine.rs`.

use controller_fold::Contradiction;
use events_rule::Stream;
use events_rule::count::UnreadableEvent;
use events_schema::{Offset, Term};

/// Why a controller stands down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CellEnd {
    /// Another controller claimed the cell.
    Superseded {
        /// Its name.
        by: String,
        /// Its term.
        term: Term,
    },
    /// It cannot go on.
    Failed(CellFailure),
}

/// Why a controller cannot go on. All of them: stop and tell the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CellFailure {
    /// The log does not take records any more.
    #[error("the log cannot be written: {reason}")]
    Append {
        /// What it says.
        reason: String,
    },
    /// The log cannot be read any more.
    #[error("`{stream}` cannot be read: {reason}")]
    Read {
        /// Which stream.
        stream: Stream,
        /// What the log says.
        reason: String,
    },
    /// The log holds what this build cannot read.
    #[error("the log cannot be understood: {0}: {cause}", cause = .0.source)]
    Unreadable(UnreadableEvent),
    /// The log has a record passed over that this controller has read.
    #[error("the log cannot be understood: {0}")]
    Contradicted(Contradiction),
    /// The log stayed unreachable for as long as a start may take.
    #[error("the log did not answer for {attempts} attempts: {last}")]
    Attempts {
        /// How many.
        attempts: u32,
        /// What it said last.
        last: String,
    },
    /// Inputs were removed before they were taken.
    #[error(
        "records {from} to {last} of `{stream}` were removed from the log before this cell took them: what they asked is lost. Give the topic \
         a longer retention, restore the records from a backup and start again; without them this cell cannot go on",
        last = first.0.saturating_sub(1)
    )]
    InputTrimmed {
        /// Which stream.
        stream: Stream,
        /// The first record not taken.
        from: Offset,
        /// The first one left.
        first: Offset,
    },
    /// Facts were removed: there are no snapshots to begin from.
    #[error(
        "records of `events` below {first} were removed from the log: the cell's state cannot be read back. Restore `events` from a backup, \
         and keep it without retention limit"
    )]
    EventsTrimmed {
        /// The first one left.
        first: Offset,
    },
    /// Facts that were there are not there any more.
    #[error(
        "`events` ends at offset {end}, but this controller knows its records below {known}: the topic was emptied or an older copy of it took \
         over. Restore `events` from a backup and start again"
    )]
    EventsShortened {
        /// Where it ends.
        end: Offset,
        /// Up to where it was known.
        known: Offset,
    },
    /// An input stream ends before what was taken of it: new inputs would be passed over in silence.
    #[error(
        "`{stream}` ends at offset {end}, but this cell has taken its records below {taken}: the topic was deleted, emptied or belongs to \
         another installation, and the next {missing} inputs would be passed over in silence. Restore the topic from a backup, or start on \
         the log that belongs to `events`",
        missing = taken.0.saturating_sub(end.0)
    )]
    InputShortened {
        /// Which stream.
        stream: Stream,
        /// Where it ends.
        end: Offset,
        /// Up to where it was taken.
        taken: Offset,
    },
    /// Inputs without any fact: whatever they asked would be done a second time.
    #[error(
        "`events` is empty, but `{stream}` holds records up to offset {end}: the facts that followed from them are lost, and everything ever \
         asked would be done again. Restore `events` from a backup; or, to begin anew without the old jobs, start on an empty log"
    )]
    EventsMissing {
        /// A stream that has records.
        stream: Stream,
        /// Where it ends.
        end: Offset,
    },
}
