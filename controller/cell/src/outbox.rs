//! What a machine collects while it handles one input: outputs in order, and the numbers of requests.

use crate::message::{Attempt, LinkEnd, LinkId, Out, Ticket};
use crate::note::Note;
use events_rule::Stream;
use events_schema::Offset;
use events_schema::orders::ControllerMessage;

/// Outputs not yet handed over.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outbox {
    outs: Vec<Out>,
    tickets: u64,
}

impl Outbox {
    pub fn push(&mut self, out: Out) {
        self.outs.push(out);
    }

    pub fn note(&mut self, note: Note) {
        self.push(Out::Note(note));
    }

    pub fn take(&mut self) -> Vec<Out> {
        std::mem::take(&mut self.outs)
    }

    pub fn append(&mut self, stream: Stream, record: Vec<u8>, attempt: Attempt) -> Ticket {
        let ticket = self.ticket();
        self.push(Out::Append { ticket, stream, record, attempt });
        ticket
    }

    pub fn read(&mut self, stream: Stream, from: Offset, bytes_max: usize) -> Ticket {
        let ticket = self.ticket();
        self.push(Out::Read { ticket, stream, from, bytes_max });
        ticket
    }

    pub fn follow(&mut self, stream: Stream, from: Offset, bytes_max: usize) -> Ticket {
        let ticket = self.ticket();
        self.push(Out::Follow { ticket, stream, from, bytes_max });
        ticket
    }

    pub fn ask_end(&mut self, stream: Stream) -> Ticket {
        let ticket = self.ticket();
        self.push(Out::AskEnd { ticket, stream });
        ticket
    }

    pub fn tell(&mut self, link: LinkId, message: ControllerMessage) {
        self.push(Out::Tell { link, message });
    }

    pub fn end_link(&mut self, link: LinkId, cause: Option<LinkEnd>) {
        self.push(Out::EndLink { link, cause });
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }
}

/// A pause that doubles each time, up to a bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    next_ms: u64,
    max_ms: u64,
}

/// The first pause after a failure: nothing is lost by asking again so soon once.
const PAUSE_MIN_MS: u64 = 20;

impl Backoff {
    pub fn new(max_ms: u64) -> Self {
        Self { next_ms: PAUSE_MIN_MS, max_ms }
    }

    pub fn pause_ms(&mut self) -> u64 {
        let pause = self.next_ms;
        self.next_ms = (pause * 2).min(self.max_ms);
        pause
    }
}
