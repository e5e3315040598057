//! The traces that orders and direct take-backs belong to: a span for each order that an agent follows, spans of what executors say they did, and the
//! context that goes on with frames and reports. Decides nothing: the machine never sees any of it.

use ebb_telemetry::{Hop, HopKind, NewHop};
use events_schema::control::{ExecutorHop, ExecutorSpan};
use events_schema::orders::Orders;
use events_schema::report::Report;
use events_schema::{ExecutorId, JobId, TraceContext};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

/// Executors whose orders are followed for a trace, those included whose end was not reported yet: far more than run on a server.
const FOLLOWED_MAX: usize = 1_024;

/// What this server does for traces.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    executors: BTreeMap<ExecutorId, Followed>,
    /// Slots that a fleet took back for a trace.
    taken_back: BTreeMap<u16, TraceContext>,
}

#[derive(Debug)]
struct Followed {
    /// As it came.
    cause: TraceContext,
    /// When it came, if anybody wants to know.
    since: Option<SystemTime>,
    /// What goes on: our own span once the executor is told, until then the cause.
    context: TraceContext,
    hop: Option<Hop>,
    /// Whether the executor knows.
    told: bool,
    /// When it may leave, or was made to.
    left: Option<SystemTime>,
}

impl Followed {
    fn new(cause: TraceContext) -> Self {
        let since = ebb_telemetry::is_on().then(SystemTime::now);
        Self { cause, since, context: cause, hop: None, told: false, left: None }
    }
}

impl Traces {
    /// Orders came. Those that belong to a trace begin a span when their executor is told.
    pub fn orders(&mut self, orders: &Orders) {
        for order in &orders.executors {
            let known = self.executors.get(&order.executor).map(|followed| followed.cause);
            match order.trace {
                Some(cause) if known == Some(cause) => {}
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
        executors.into_iter().for_each(|executor| self.follow(executor, Followed::new(trace)));
    }

    fn follow(&mut self, executor: ExecutorId, followed: Followed) {
        if self.executors.len() >= FOLLOWED_MAX {
            self.executors.clear();
        }
        self.executors.insert(executor, followed);
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
        let exit = NewHop::new("exit", HopKind::Internal).after(Some(followed.context));
        if let Some(exit) = exit.since(followed.left.unwrap_or_else(SystemTime::now)).begin() {
            exit.set("ebb.executor", executor.to_string());
            exit.end();
        }
        followed.hop.take().into_iter().for_each(Hop::end);
    }

    /// What a report follows from. What an executor does on its own account follows from nothing.
    pub fn of(&self, report: &Report) -> Option<TraceContext> {
        match report {
            Report::ExecutorReady { executor, .. }
            | Report::ExecutorGone { executor, .. }
            | Report::ReplicaHeld { executor, .. } => self.executors.get(executor).map(|followed| followed.context),
            Report::GenerationActive { job, .. }
            | Report::GenerationStepped { job, .. }
            | Report::MemberDeparted { job, .. } => self.of_job(job),
            Report::SlotTakenBack { slot } => self.taken_back.get(&slot.index).copied(),
            _ => None,
        }
    }

    fn of_job(&self, job: &JobId) -> Option<TraceContext> {
        let of_job = self.executors.iter().filter(|(executor, _)| executor.job == *job);
        of_job.map(|(_, followed)| followed.context).next()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::report::ExitCause;

    fn trace(span: u8) -> TraceContext {
        TraceContext::new([1; 16], [span; 8], 1).unwrap()
    }

    #[test]
    fn an_executor_is_told_once_and_its_end_follows_from_what_made_it_leave() {
        let executor: ExecutorId = "job-a/e1".parse().unwrap();
        let slot: events_schema::SlotId = "local/1".parse().unwrap();
        let mut traces = Traces::default();
        assert_eq!(traces.tell(&executor), None);
        traces.taken_back(Some(trace(3)), &BTreeSet::from([1]), vec![executor.clone()]);
        assert_eq!((traces.tell(&executor), traces.tell(&executor)), (Some(trace(3)), None));
        traces.ended(&executor);
        let gone = Report::ExecutorGone { executor: executor.clone(), slot: slot.clone(), exit: ExitCause::Left };
        assert_eq!(traces.of(&gone), Some(trace(3)));
        assert_eq!(traces.of(&Report::SlotTakenBack { slot: slot.clone() }), Some(trace(3)));
        traces.taken_back(None, &BTreeSet::from([1]), Vec::new());
        assert_eq!(traces.of(&Report::SlotTakenBack { slot }), None, "taken back again, for no trace");
    }
}
