//! Whether the log answers: what is outstanding for longer than usual, and a look at the end of every stream now and then.
//!
//! A controller whose log is unwell cannot take slots back for their fleets, so it must not go on renewing the loans; and it
//! cannot write down what agents say, so it must not give any of them up. Next file: `presence.rs`.

use crate::message::{ReadFailure, Ticket};
use crate::outbox::Outbox;
use events_rule::Stream;
use events_schema::Offset;
use std::collections::{BTreeMap, BTreeSet};

/// Time between two looks at the ends of the streams: how late a controller learns that it was replaced, or that the log is gone, where it appends nothing or
/// waits for what it appended.
pub(crate) const PROBE_INTERVAL_MS: u64 = 2_000;

/// An append or a look that takes longer says that the log is unwell: far beyond a commit of any log that works.
pub(crate) const USUAL_MS: u64 = 1_000;

/// So many looks in a row have to find a stream shorter than it was before that is believed: after a broker took over a partition
/// it may not yet know how far the stream is acknowledged.
const SHORT_LOOKS_MAX: u32 = 8;

/// The streams looked at: without facts nothing is decided, and without any one of the inputs somebody is not heard.
pub(crate) const PROBED: [Stream; 4] = [Stream::Events, Stream::Demand, Stream::Reports, Stream::Commands];

#[derive(Debug, Clone, Default)]
pub(crate) struct Health {
    /// Appends on their way.
    appends: BTreeMap<Ticket, Append>,
    /// Up to where streams were read by this process.
    read: BTreeMap<Stream, Offset>,
    /// Streams whose last append was refused as impossible now.
    unwritable: BTreeSet<Stream>,
    /// Streams that could not be read the last time.
    unreadable: BTreeSet<Stream>,
    looks: BTreeMap<Stream, Look>,
    /// Looks in a row that found a stream shorter than it was.
    short: BTreeMap<Stream, u32>,
    /// When they were last looked at.
    looked_ms: Option<u64>,
}

/// An append on its way.
#[derive(Debug, Clone, Copy)]
struct Append {
    stream: Stream,
    since_ms: u64,
    /// Up to where the stream was read when it began: it takes its place behind that.
    read: Offset,
}

/// An outstanding look at a stream's end.
#[derive(Debug, Clone, Copy)]
struct Look {
    ticket: Ticket,
    at_ms: u64,
    /// What the machine knew of the stream when it asked: it cannot end before.
    known: Offset,
}

/// What a look has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// The stream ended here when it was asked, at this time.
    End(Stream, Offset, u64),
    /// The stream ends before what was known of it, and that is no passing matter.
    Shortened { stream: Stream, end: Offset, known: Offset },
    /// Its end cannot be learnt now, for the first time.
    Unreadable(Stream, String),
    /// It will not be learnt any more.
    Stopped(Stream, String),
    /// Nothing that matters.
    Nothing,
}

impl Health {
    /// Whether everything outstanding is within its usual time and nothing failed the last time.
    pub fn is_well(&self, now_ms: u64) -> bool {
        let usual = |since_ms: u64| now_ms.saturating_sub(since_ms) <= USUAL_MS;
        self.unwritable.is_empty()
            && self.unreadable.is_empty()
            && self.appends.values().all(|append| usual(append.since_ms))
            && self.looks.values().all(|look| usual(look.at_ms))
    }

    /// A stream was read up to here.
    pub fn has_read(&mut self, stream: Stream, to: Offset) {
        let read = self.read.entry(stream).or_default();
        *read = to.max(*read);
    }

    pub fn append_begun(&mut self, ticket: Ticket, stream: Stream, now_ms: u64) {
        let read = self.read.get(&stream).copied().unwrap_or_default();
        self.appends.insert(ticket, Append { stream, since_ms: now_ms, read });
    }

    /// An append took its place. One before what was read when it began can only have it in a stream that was shortened meanwhile, however
    /// long that is again at the next look.
    pub fn appended(&mut self, ticket: Ticket, offset: Offset) -> Option<Found> {
        let Append { stream, read, .. } = self.appends.get(&ticket).copied()?;
        self.append_ended(ticket, true);
        (offset < read).then_some(Found::Shortened { stream, end: offset, known: read })
    }

    /// An append is answered; `taken` unless the log could not take it now. An unknown outcome is one of a log that is unwell.
    /// The stream, if it was writable until now and is not any more.
    pub fn append_ended(&mut self, ticket: Ticket, taken: bool) -> Option<Stream> {
        let Append { stream, .. } = self.appends.remove(&ticket)?;
        if taken {
            self.unwritable.remove(&stream);
            return None;
        }
        self.unwritable.insert(stream).then_some(stream)
    }

    /// A read is answered; whether the stream was readable until now and is not any more.
    pub fn read_ended(&mut self, stream: Stream, readable: bool) -> bool {
        if readable {
            self.unreadable.remove(&stream);
            return false;
        }
        self.unreadable.insert(stream)
    }

    pub fn next_look_ms(&self) -> u64 {
        self.looked_ms.map_or(0, |looked_ms| looked_ms + PROBE_INTERVAL_MS)
    }

    /// Looks at every stream that no look is outstanding for, if it is time. `known` says up to where a stream is known.
    pub fn look(&mut self, now_ms: u64, known: impl Fn(Stream) -> Offset, out: &mut Outbox) {
        if now_ms < self.next_look_ms() {
            return;
        }
        self.looked_ms = Some(now_ms);
        for stream in PROBED {
            let known = known(stream);
            self.looks.entry(stream).or_insert_with(|| Look { ticket: out.ask_end(stream), at_ms: now_ms, known });
        }
    }

    /// A look is answered. `None`: it was not one.
    pub fn found(&mut self, ticket: Ticket, end: Result<Offset, ReadFailure>) -> Option<Found> {
        let (stream, look) = self.looks.iter().find(|(_, look)| look.ticket == ticket).map(|(s, l)| (*s, *l))?;
        self.looks.remove(&stream);
        let reason = match end {
            Ok(end) if end >= look.known => {
                self.short.remove(&stream);
                self.read_ended(stream, true);
                return Some(Found::End(stream, end, look.at_ms));
            }
            Ok(end) => {
                let short = self.short.entry(stream).or_default();
                *short += 1;
                if *short >= SHORT_LOOKS_MAX {
                    return Some(Found::Shortened { stream, end, known: look.known });
                }
                format!("it ends at offset {end}, and was known to reach {}", look.known)
            }
            Err(ReadFailure::Trimmed { first }) => format!("its records below {first} were removed"),
            Err(ReadFailure::Unavailable(reason)) => reason,
            Err(ReadFailure::Stopped(reason)) => return Some(Found::Stopped(stream, reason)),
        };
        let first = self.read_ended(stream, false);
        Some(if first { Found::Unreadable(stream, reason) } else { Found::Nothing })
    }

    /// A new beginning: what is outstanding is answered for nobody, except appends.
    pub fn forget_looks(&mut self) {
        self.looks.clear();
        self.short.clear();
        self.unreadable.clear();
        self.looked_ms = None;
    }
}
