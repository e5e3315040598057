//! The traces that orders and direct take-backs belong to: a span for each order that an agent follows, spans of what executors say they did, and the
//! context that goes on with frames and reports. Decides nothing: the machine never sees any of it.

use ebb_telemetry::{Hop, HopKind, NewHop};
use events_schema::control::{ExecutorHop, ExecutorSpan};
use events_schema::orders::Orders;
use events_schema::report::Report;
use events_schema::{ExecutorId, JobId, TraceContext};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

/// Executors whose orders are followed for a trace, those included whose end was not reported yet: far more than run on a server. When there are
/// more, one that has ended is forgotten first, of those the one followed longest.
const FOLLOWED_MAX: usize = 1_024;

/// What this server does for traces.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    executors: BTreeMap<ExecutorId, Followed>,
    /// Slots that a fleet took back for a trace.
    taken_back: BTreeMap<u16, TraceContext>,
    /// Executors followed so far.
    followed: u64,
}

#[derive(Debug)]
struct Followed {
    /// Grows from one to the next.
    number: u64,
    /// As it came.
    cause: TraceContext,
    /// What it was followed for before its slot was taken back here. Orders come with it until the controller has heard of that.
    outdated: Option<TraceContext>,
    /// When it came, if anybody wants to know.
    since: Option<SystemTime>,
    /// What goes on: our own span once the executor is told, until then the cause.
    context: TraceContext,
    hop: Option<Hop>,
    /// Whether the executor knows.
    told: bool,
    /// When it may leave, or was made to.
    left: Option<SystemTime>,
    /// Whether it is reaped; that is still to be reported.
    ended: bool,
}

impl Followed {
    fn new(cause: TraceContext) -> Self {
        let since = ebb_telemetry::is_on().then(SystemTime::now);
        Self {
            number: 0,
            cause,
            outdated: None,
            since,
            context: cause,
            hop: None,
            told: false,
            left: None,
            ended: false,
        }
    }
}

impl Traces {
    /// Orders came. Those that belong to a trace begin a span when their executor is told.
    pub fn orders(&mut self, orders: &Orders) {
        for order in &orders.executors {
            let known = self.executors.get(&order.executor);
            match order.trace {
                Some(cause) if known.is_some_and(|f| f.cause == cause || f.outdated == Some(cause)) => {}
                Some(cause) => {
                    self.taken_back.remove(&order.slot.index);
                    self.follow(order.executor.clone(), Followed::new(cause));
                }
                // What its fleet asked for here goes on, whatever the controller decides meanwhile.
                None if self.taken_back.contains_key(&order.slot.index) => {}
                None => drop(self.executors.remove(&order.executor)),
            }
        }
    }

    /// A fleet takes slots back, with these executors on them.
    pub fn taken_back(&mut self, trace: Option<TraceContext>, slots: &BTreeSet<u16>, executors: Vec<ExecutorId>) {
        self.taken_back.retain(|slot, _| !slots.contains(slot));
        let Some(trace) = trace else { return };
        self.taken_back.extend(slots.iter().map(|slot| (*slot, trace)));
        for executor in executors {
            // Taken back twice before the controller heard of it: its orders are still those of before the first time.
            let outdated = self.executors.get(&executor).map(|known| known.outdated.unwrap_or(known.cause));
            self.follow(executor, Followed { outdated, ..Followed::new(trace) });
        }
    }

    fn follow(&mut self, executor: ExecutorId, followed: Followed) {
        self.followed += 1;
        self.executors.insert(executor, Followed { number: self.followed, ..followed });
        if self.executors.len() > FOLLOWED_MAX {
            let oldest = self.executors.iter().min_by_key(|(_, followed)| (!followed.ended, followed.number));
            if let Some(oldest) = oldest.map(|(executor, _)| executor.clone()) {
                self.executors.remove(&oldest);
            }
        }
    }

    /// What an executor is told before its next frame, once.
    pub fn tell(&mut self, executor: &ExecutorId) -> Option<TraceContext> {
        let followed = self.executors.get_mut(executor).filter(|followed| !followed.told)?;
        followed.told = true;
        let hop = NewHop::new("follow order", HopKind::Consumer).after(Some(followed.cause));
        followed.hop = followed.since.and_then(|since| hop.since(since).begin());
        if let Some(hop) = &followed.hop {
            hop.set("ebb.executor", executor.to_string());
            followed.context = hop.context().unwrap_or(followed.cause);
        }
        Some(followed.context)
    }

    /// An executor is made to end.
    pub fn ends(&mut self, executor: &ExecutorId) {
        if let Some(followed) = self.executors.get_mut(executor) {
            followed.left.get_or_insert_with(SystemTime::now);
        }
    }

    /// An executor did something for a trace.
    pub fn did(&mut self, executor: &ExecutorId, span: &ExecutorSpan) {
        // Times that no clock holds are said by nobody who means a span.
        let since_1970 = Duration::from_millis(span.from.0).checked_add(Duration::from_micros(span.from_us.into()));
        let Some(from) = since_1970.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)) else { return };
        let Some(to) = from.checked_add(Duration::from_micros(span.took_us)) else { return };
        let name = match span.hop {
            ExecutorHop::Prepare => "prepare executor",
            ExecutorHop::Join => "join generation",
            ExecutorHop::Boundary => "reach boundary",
        };
        if let Some(hop) = NewHop::new(name, HopKind::Internal).after(Some(span.parent)).since(from).begin() {
            hop.set("ebb.executor", executor.to_string());
            hop.end_at(to);
        }
        let Some(followed) = self.executors.get_mut(executor) else { return };
        match span.hop {
            // It is still to join.
            ExecutorHop::Prepare => {}
            ExecutorHop::Join => followed.hop.take().into_iter().for_each(Hop::end),
            ExecutorHop::Boundary => followed.left = Some(to),
        }
    }

    /// An executor is reaped: its order is followed, and its slot free.
    pub fn ended(&mut self, executor: &ExecutorId) {
        let Some(followed) = self.executors.get_mut(executor) else { return };
        followed.ended = true;
        let exit = NewHop::new("exit", HopKind::Internal).after(Some(followed.context));
        if let Some(exit) = exit.since(followed.left.unwrap_or_else(SystemTime::now)).begin() {
            exit.set("ebb.executor", executor.to_string());
            exit.end();
        }
        followed.hop.take().into_iter().for_each(Hop::end);
    }

    /// What a line about an executor belongs to.
    pub fn of_executor(&self, executor: &ExecutorId) -> Option<TraceContext> {
        self.executors.get(executor).map(|followed| followed.context)
    }

    /// What a report follows from. What an executor does on its own account follows from nothing.
    pub fn of(&self, report: &Report) -> Option<TraceContext> {
        match report {
            Report::ExecutorReady { executor, .. }
            | Report::ExecutorGone { executor, .. }
            | Report::ReplicaHeld { executor, .. } => self.of_executor(executor),
            Report::GenerationActive { job, .. }
            | Report::GenerationStepped { job, .. }
            | Report::MemberDeparted { job, .. } => self.of_job(job),
            Report::SlotTakenBack { slot, .. } => self.taken_back.get(&slot.index).copied(),
            _ => None,
        }
    }

    /// Of the newest executor of the job that is there: whoever it replaced has nothing to do with what the job does now.
    fn of_job(&self, job: &JobId) -> Option<TraceContext> {
        let of_job = self.executors.iter().filter(|(executor, followed)| executor.job == *job && !followed.ended);
        of_job.map(|(_, followed)| followed.context).next_back()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures;
    use events_schema::report::ExitCause;
    use events_schema::{Offset, Term};

    fn trace(span: u8) -> TraceContext {
        TraceContext::new([1; 16], [span; 8], 1).unwrap()
    }

    #[test]
    fn an_executor_is_told_once_and_its_end_follows_from_what_made_it_leave() {
        let executor: ExecutorId = "job-a/e1".parse().unwrap();
        let slot: events_schema::SlotId = "local/1".parse().unwrap();
        let taken_back = || Report::SlotTakenBack { slot: slot.clone(), asked_ms: None, within_ms: None };
        let mut traces = Traces::default();
        assert_eq!(traces.tell(&executor), None);
        traces.taken_back(Some(trace(3)), &BTreeSet::from([1]), vec![executor.clone()]);
        assert_eq!((traces.tell(&executor), traces.tell(&executor)), (Some(trace(3)), None));
        traces.ended(&executor);
        let gone = Report::ExecutorGone { executor: executor.clone(), slot: slot.clone(), exit: ExitCause::Left };
        assert_eq!(traces.of(&gone), Some(trace(3)));
        assert_eq!(traces.of(&taken_back()), Some(trace(3)));
        traces.taken_back(None, &BTreeSet::from([1]), Vec::new());
        assert_eq!(traces.of(&taken_back()), None, "taken back again, for no trace");
    }

    fn orders(executor: &ExecutorId, cause: Option<TraceContext>) -> Orders {
        let mut order = fixtures::order(&executor.to_string(), "local/1");
        order.trace = cause;
        Orders { term: Term(1), position: Offset(1), executors: vec![order] }
    }

    /// Orders that are on their way meanwhile carry the trace of a decision from before, which must not take its place.
    #[test]
    fn a_take_back_is_followed_until_the_controller_has_decided_upon_it() {
        let executor: ExecutorId = "job-a/e1".parse().unwrap();
        let mut traces = Traces::default();
        let cause = |traces: &Traces| traces.executors.get(&executor).map(|followed| followed.cause);
        traces.orders(&orders(&executor, Some(trace(1))));
        traces.taken_back(Some(trace(3)), &BTreeSet::from([1]), vec![executor.clone()]);
        for late in [Some(trace(1)), None] {
            traces.orders(&orders(&executor, late));
            assert_eq!(cause(&traces), Some(trace(3)), "{late:?}");
        }
        traces.orders(&orders(&executor, Some(trace(4))));
        assert_eq!(cause(&traces), Some(trace(4)), "a decision after it");
    }

    /// Else a job's words would go into the trace of the executor that was there first, for good.
    #[test]
    fn what_a_job_does_follows_from_its_newest_executor_that_is_there() {
        let [first, second]: [ExecutorId; 2] = ["job-a/e1", "job-a/e2"].map(|id| id.parse().unwrap());
        let mut traces = Traces::default();
        traces.orders(&orders(&first, Some(trace(1))));
        traces.orders(&orders(&second, Some(trace(2))));
        assert_eq!(traces.of_job(&first.job), Some(trace(2)));
        traces.ended(&second);
        assert_eq!(traces.of_job(&first.job), Some(trace(1)));
        traces.ended(&first);
        assert_eq!(traces.of_job(&first.job), None);
    }

    /// Were everything forgotten at once, spans in flight would never be told.
    #[test]
    fn what_is_followed_is_bounded_and_who_has_ended_is_forgotten_first() {
        let mut traces = Traces::default();
        let id = |number: usize| ExecutorId { job: JobId::parse("job-a").unwrap(), number: number as u32 };
        for number in 0..FOLLOWED_MAX {
            traces.follow(id(number), Followed::new(trace(1)));
        }
        traces.ended(&id(7));
        traces.follow(id(FOLLOWED_MAX), Followed::new(trace(1)));
        traces.follow(id(FOLLOWED_MAX + 1), Followed::new(trace(1)));
        assert_eq!(traces.executors.len(), FOLLOWED_MAX);
        let forgotten: Vec<usize> = (0..FOLLOWED_MAX + 2).filter(|n| !traces.executors.contains_key(&id(*n))).collect();
        assert_eq!(forgotten, [0, 7], "the one that has ended, then the oldest");
    }
}
