//! Reports that the controller has not yet taken, in the order in which they were seen.
//!
//! They are numbered from 1 within an incarnation and repeated after every reconnect until acknowledged; the controller's
//! state ignores numbers it has seen. Next file: `lib.rs`.

use events_schema::TimeMs;
use events_schema::report::Report;
use std::collections::VecDeque;

/// Most reports kept for a controller that cannot be reached. A server with 64 executors that evaluate every second for the
/// ten minutes of a lease stays below it only by shedding (see [`Outbox::push`]); everything else stays far below.
pub(crate) const WAITING_MAX: usize = 4096;

/// One report and its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Numbered {
    pub number: u64,
    pub at: TimeMs,
    pub report: Report,
}

/// The reports of one incarnation that wait for their acknowledgement.
#[derive(Debug, Clone)]
pub(crate) struct Outbox {
    incarnation: u64,
    last: u64,
    /// The highest number that was ever sent: a controller may know of everything up to it.
    sent: u64,
    waiting: VecDeque<Numbered>,
}

impl Outbox {
    pub fn new(incarnation: u64) -> Self {
        Self { incarnation, last: 0, sent: 0, waiting: VecDeque::new() }
    }

    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a report and gives its number. When full, one that a later report replaces is left out: progress that nobody
    /// acts on first (evaluations), then checkpoints older than another of the same job. None when nothing can be left out: the agent has to
    /// join as a new process, which makes all waiting reports obsolete.
    pub fn push(&mut self, at: TimeMs, report: Report) -> Option<u64> {
        if self.waiting.len() >= WAITING_MAX {
            let shed = self.replaceable()?;
            self.waiting.remove(shed);
        }
        self.last += 1;
        self.waiting.push_back(Numbered { number: self.last, at, report });
        Some(self.last)
    }

    /// The first report after `number`.
    pub fn after(&self, number: u64) -> Option<&Numbered> {
        let place = self.waiting.partition_point(|waiting| waiting.number <= number);
        self.waiting.get(place)
    }

    /// This one is on its way.
    pub fn note_sent(&mut self, number: u64) {
        self.sent = self.sent.max(number);
    }

    /// Whether a controller may have acted on the report of this number.
    pub fn may_be_known(&self, number: u64) -> bool {
        number <= self.sent
    }

    /// Everything up to `through` is taken.
    pub fn taken(&mut self, through: u64) {
        while self.waiting.front().is_some_and(|first| first.number <= through) {
            self.waiting.pop_front();
        }
    }

    fn replaceable(&self) -> Option<usize> {
        let evaluation = self.waiting.iter().position(|w| matches!(w.report, Report::Evaluated { .. }));
        evaluation.or_else(|| {
            self.waiting.iter().enumerate().position(|(place, older)| match &older.report {
                Report::CheckpointSaved { job, .. } => self
                    .waiting
                    .iter()
                    .skip(place + 1)
                    .any(|newer| matches!(&newer.report, Report::CheckpointSaved { job: same, .. } if same == job)),
                _ => false,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::report::Metrics;
    use events_schema::{Digest, Generation, JobId, Step, WriterToken};

    fn evaluated() -> Report {
        let metrics = Metrics { loss_micro: 1, correct: 1, count: 1, named: None };
        Report::Evaluated { job: JobId::parse("job-a").unwrap(), generation: Generation(1), step: Step(1), metrics }
    }

    fn checkpoint(step: u64) -> Report {
        Report::CheckpointSaved {
            job: JobId::parse("job-a").unwrap(),
            generation: Generation(1),
            step: Step(step),
            written_in: Generation(1),
            writer: WriterToken([1; 16]),
            replica_digest: Digest::of(b""),
            bytes: 1,
            stands_still: None,
        }
    }

    #[test]
    fn reports_are_repeated_in_order_until_taken() {
        let mut outbox = Outbox::new(9);
        for _ in 0..3 {
            outbox.push(TimeMs(0), Report::AgentGone).unwrap();
        }
        assert_eq!(outbox.after(0).unwrap().number, 1);
        assert_eq!(outbox.after(1).unwrap().number, 2);
        outbox.taken(2);
        assert_eq!(outbox.after(0).unwrap().number, 3);
        outbox.taken(1);
        assert!(outbox.after(3).is_none() && !outbox.is_empty());
        outbox.taken(3);
        assert!(outbox.is_empty());
        assert_eq!(outbox.push(TimeMs(0), Report::AgentGone).unwrap(), 4);
    }

    #[test]
    fn a_full_outbox_leaves_out_only_what_a_later_report_replaces() {
        let mut outbox = Outbox::new(9);
        outbox.push(TimeMs(0), checkpoint(1)).unwrap();
        outbox.push(TimeMs(0), evaluated()).unwrap();
        outbox.push(TimeMs(0), checkpoint(2)).unwrap();
        while outbox.waiting.len() < WAITING_MAX {
            outbox.push(TimeMs(0), Report::AgentGone).unwrap();
        }
        outbox.push(TimeMs(0), Report::AgentGone).unwrap();
        assert_eq!(outbox.after(1).unwrap().number, 3, "the evaluation goes first");
        outbox.push(TimeMs(0), Report::AgentGone).unwrap();
        assert_eq!(outbox.after(0).unwrap().number, 3, "then the older checkpoint");
        assert_eq!(outbox.push(TimeMs(0), Report::AgentGone), None, "the newest checkpoint stays");
    }
}
