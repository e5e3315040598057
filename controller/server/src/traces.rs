//! What a decision does to the traces that its inputs carry: a span for each, after the span that wrote the input, and beside those of all others
//! that were decided together; then whose orders follow from it. Decides nothing, and nothing is decided from it: the machine carries
//! contexts as data, and orders get theirs here, as they get their keys, when they are sent.
//!
//! While nothing is exported no input carries a trace, and all of this is a look at an empty list.

use controller_cell::{Note, Ticket};
use ebb_telemetry::{HopKind, NewHop};
use events_schema::batch::Batch;
use events_schema::fact::Fact;
use events_schema::orders::ExecutorOrder;
use events_schema::trace::cause_of;
use events_schema::{JobId, TraceContext};
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

/// Inputs of one batch that get a span of their own; a batch of more is one of a crowd, where nobody looks for each.
const SPANS_MAX: usize = 64;
/// Others that a span names beside the one it follows from.
const LINKS_MAX: usize = 32;
/// Jobs whose last decision belongs to a trace; when there are more, the one decided about longest ago is forgotten.
const JOBS_MAX: usize = 1_024;

/// The traces of a cell.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    deciding: Option<Deciding>,
    /// The decision that was last taken about a job, with a number that grows, if it belongs to a trace.
    jobs: BTreeMap<JobId, (u64, TraceContext)>,
    decisions: u64,
}

/// A batch on its way into the log.
#[derive(Debug)]
struct Deciding {
    /// Of the last attempt at its last record.
    ticket: Ticket,
    begun: SystemTime,
    asked: SystemTime,
    appended: Option<SystemTime>,
}

impl Traces {
    /// The time, if anybody wants to know what begins now.
    pub fn begin() -> Option<SystemTime> {
        ebb_telemetry::is_on().then(SystemTime::now)
    }

    /// A batch was decided from `begun` until now, and goes to the log.
    pub fn decided(&mut self, ticket: Ticket, begun: Option<SystemTime>) {
        self.deciding = begun.map(|begun| Deciding { ticket, begun, asked: SystemTime::now(), appended: None });
    }

    /// It goes there once more, or one more of its records does.
    pub fn asked(&mut self, ticket: Ticket) {
        if let Some(deciding) = &mut self.deciding {
            (deciding.ticket, deciding.appended) = (ticket, None);
        }
    }

    /// The machine says something to people: it may have dropped what was on its way.
    pub fn noted(&mut self, note: &Note) {
        if matches!(note, Note::Recovering { .. } | Note::BatchTooLarge { .. }) {
            self.deciding = None;
        }
    }

    /// An append is answered.
    pub fn appended(&mut self, ticket: Ticket) {
        if let Some(deciding) = self.deciding.as_mut().filter(|deciding| deciding.ticket == ticket) {
            deciding.appended = Some(SystemTime::now());
        }
    }

    /// A batch counts: spans for its inputs, and from now on the orders of its jobs follow from them, or from none.
    pub fn counted(&mut self, batch: &Batch) {
        let deciding = self.deciding.take();
        if batch.causes.is_empty() && self.jobs.is_empty() {
            return;
        }
        let inputs: BTreeSet<TraceContext> = batch.causes.iter().map(|run| run.trace).collect();
        let spans = deciding.map(|deciding| deciding.spans(&inputs, batch)).unwrap_or_default();
        for (place, fact) in batch.facts.iter().enumerate() {
            let Some(job) = job_of(fact) else { continue };
            let decision = cause_of(&batch.causes, place).map(|input| *spans.get(&input).unwrap_or(&input));
            self.follow(job, decision);
        }
    }

    fn follow(&mut self, job: &JobId, decision: Option<TraceContext>) {
        let Some(decision) = decision else {
            // What is decided about it now has nothing to do with the request of then.
            self.jobs.remove(job);
            return;
        };
        self.decisions += 1;
        self.jobs.insert(job.clone(), (self.decisions, decision));
        if self.jobs.len() > JOBS_MAX {
            let oldest = self.jobs.iter().min_by_key(|(_, (number, _))| *number).map(|(job, _)| job.clone());
            if let Some(oldest) = oldest {
                self.jobs.remove(&oldest);
            }
        }
    }

    /// Says in an order which decision it follows from.
    pub fn fill_in(&self, order: &mut ExecutorOrder) {
        order.trace = self.jobs.get(&order.executor.job).map(|(_, decision)| *decision);
    }
}

impl Deciding {
    /// A span for each input, with the append as a part of it; gives what follows from which.
    fn spans(&self, inputs: &BTreeSet<TraceContext>, batch: &Batch) -> BTreeMap<TraceContext, TraceContext> {
        let mut spans = BTreeMap::new();
        let now = SystemTime::now();
        for input in inputs.iter().take(SPANS_MAX) {
            let others: Vec<TraceContext> =
                inputs.iter().filter(|other| *other != input).take(LINKS_MAX).copied().collect();
            let span = NewHop::new("decide", HopKind::Consumer).after(Some(*input)).beside(&others).since(self.begun);
            let Some(span) = span.begin() else { continue };
            span.set("ebb.term", number(batch.term.0));
            span.set(
                "ebb.inputs",
                number(batch.taken.iter().map(|taken| taken.to.0.saturating_sub(taken.from.0)).sum()),
            );
            span.set("ebb.facts", number(batch.facts.len() as u64));
            let append = NewHop::new("append events", HopKind::Producer).after(span.context()).since(self.asked);
            if let Some(append) = append.begin() {
                append.set("messaging.operation.type", "send");
                append.set("messaging.destination.name", "events");
                append.end_at(self.appended.unwrap_or(now));
            }
            if let Some(context) = span.context() {
                spans.insert(*input, context);
            }
            let (term, sequence, facts) = (batch.term.0, batch.sequence.0, batch.facts.len());
            span.within(|| tracing::info!(term, sequence, facts, "a decision is on record"));
            span.end_at(now);
        }
        spans
    }
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The job whose orders a fact may change.
fn job_of(fact: &Fact) -> Option<&JobId> {
    match fact {
        Fact::JobAccepted { job, .. }
        | Fact::JobSuspending { job, .. }
        | Fact::JobResumed { job, .. }
        | Fact::JobCancelled { job, .. }
        | Fact::JobFailed { job, .. }
        | Fact::JobFinished { job, .. }
        | Fact::JobRestarted { job, .. }
        | Fact::PlanAdopted { job, .. }
        | Fact::GenerationProposed { job, .. }
        | Fact::GenerationActive { job, .. }
        | Fact::GenerationAbandoned { job, .. }
        | Fact::GenerationStepped { job, .. }
        | Fact::MemberDeparted { job, .. } => Some(job),
        Fact::ExecutorAssigned { executor, .. }
        | Fact::ExecutorReady { executor, .. }
        | Fact::ExecutorLeaving { executor, .. }
        | Fact::ExecutorGone { executor, .. }
        | Fact::MemberLost { executor, .. } => Some(&executor.job),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::trace::CausedFacts;
    use events_schema::{Sequence, Term, TimeMs};

    fn batch(jobs: &[&str], causes: Vec<CausedFacts>) -> Batch {
        let facts = jobs.iter().map(|job| Fact::JobSuspending { job: JobId::parse(job).unwrap() }).collect();
        Batch { term: Term(0), sequence: Sequence(0), part: None, taken: vec![], at: TimeMs(0), facts, causes }
    }

    fn trace(span: u8) -> TraceContext {
        TraceContext::new([1; 16], [span; 8], 1).unwrap()
    }

    #[test]
    fn a_job_follows_the_last_decision_about_it_and_none_that_had_another_cause() {
        let mut traces = Traces::default();
        let known = |traces: &Traces, job: &str| traces.jobs.get(&JobId::parse(job).unwrap()).map(|(_, trace)| *trace);
        let causes =
            vec![CausedFacts { from: 0, to: 1, trace: trace(1) }, CausedFacts { from: 1, to: 2, trace: trace(2) }];
        traces.counted(&batch(&["job-a", "job-b", "job-c"], causes));
        assert_eq!(["job-a", "job-b", "job-c"].map(|job| known(&traces, job)), [Some(trace(1)), Some(trace(2)), None]);
        traces.counted(&batch(&["job-a"], Vec::new()));
        assert_eq!(["job-a", "job-b"].map(|job| known(&traces, job)), [None, Some(trace(2))], "a tick decided about a");
    }

    /// A span began at the last repetition, and hid the outage that it was to show.
    #[test]
    fn a_decision_that_is_appended_again_began_when_it_was_taken() {
        let (mut traces, begun) = (Traces::default(), SystemTime::UNIX_EPOCH);
        traces.decided(Ticket(1), Some(begun));
        let asked = traces.deciding.as_ref().unwrap().asked;
        traces.asked(Ticket(2));
        traces.appended(Ticket(1));
        assert!(traces.deciding.as_ref().unwrap().appended.is_none(), "an answer that is too late");
        traces.appended(Ticket(2));
        let deciding = traces.deciding.as_ref().unwrap();
        assert!(deciding.begun == begun && deciding.asked == asked && deciding.appended.is_some());
        traces.noted(&Note::Recovering { reason: "planned".to_owned() });
        assert!(traces.deciding.is_none(), "the decision was dropped");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut traces = Traces::default();
        for number in 0..=JOBS_MAX {
            let cause = CausedFacts { from: 0, to: 1, trace: trace(1) };
            traces.counted(&batch(&[&format!("job-{number}")], vec![cause]));
        }
        assert_eq!(traces.jobs.len(), JOBS_MAX);
        assert!(!traces.jobs.contains_key(&JobId::parse("job-0").unwrap()), "the oldest is forgotten");
    }
}
