//! What an agent counts and measures of its server: slots, take-backs, how executors end and what they wait for. Labels are of bounded sets.

use ebb_telemetry::KeyValue;
use ebb_telemetry::metrics::{Counter, Gauge, Histogram, counter, meter, seconds};
use events_schema::ExecutorId;
use events_schema::control::{Progress, WaitsFor};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use workers_agent_core::{Answer, KillCause, ProcessEnd, SlotState, SlotView};

/// Between two words of an executor at most so much counts as waiting: one that was silent longer did not say what it was at.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The instruments.
pub(crate) struct Meters {
    take_back: Histogram<f64>,
    ended: Counter<u64>,
    killed: Counter<u64>,
    waits: Counter<f64>,
    slots: Gauge<u64>,
    heard: BTreeMap<ExecutorId, Instant>,
}

impl Meters {
    pub fn new() -> Self {
        let killed = counter("ebb.agent.executors.killed", "Executors that this agent killed, by why");
        // What never happened is a zero: to Prometheus a series that begins with one has not grown.
        ["deadline", "dismissed", "protocol", "silent", "device"]
            .into_iter()
            .for_each(|cause| killed.add(0, &[KeyValue::new("cause", cause)]));
        let what = "Time that executors waited, by what they could not go on without; sampled twice a second";
        let waits = meter().f64_counter("ebb.agent.executor.wait").with_unit("s").with_description(what).build();
        ["peers", "store", "controller"]
            .into_iter()
            .for_each(|waits_for| waits.add(0.0, &[KeyValue::new("waits_for", waits_for)]));
        Self {
            take_back: seconds(
                "ebb.agent.take_back",
                "Time from a direct take-back to the free slot, by whether its executor had to be killed",
            ),
            ended: counter("ebb.agent.executors.ended", "Executors that ended, by how"),
            killed,
            waits,
            slots: meter()
                .u64_gauge("ebb.agent.slots")
                .with_description("Slots of this server, by what they are used for")
                .build(),
            heard: BTreeMap::new(),
        }
    }

    /// A request for slots is answered.
    pub fn answered(&self, answer: &Answer) {
        let Answer::Freed(slots) = answer else { return };
        for slot in slots {
            self.take_back.record(slot.elapsed_ms as f64 / 1e3, &[KeyValue::new("killed", slot.killed)]);
        }
    }

    /// An executor is reaped.
    pub fn ended(&mut self, executor: &ExecutorId, end: &ProcessEnd) {
        self.heard.remove(executor);
        let end = match end {
            ProcessEnd::Exited(0) => "left",
            ProcessEnd::Exited(_) => "status",
            ProcessEnd::Signalled(_) => "signal",
            ProcessEnd::Unknown => "unknown",
            ProcessEnd::NotStarted(_) => "not_started",
        };
        self.ended.add(1, &[KeyValue::new("end", end)]);
    }

    /// An executor is killed.
    pub fn killed(&self, cause: KillCause) {
        let cause = match cause {
            KillCause::Deadline => "deadline",
            KillCause::Dismissed => "dismissed",
            KillCause::Protocol => "protocol",
            KillCause::Silent => "silent",
            KillCause::Device => "device",
        };
        self.killed.add(1, &[KeyValue::new("cause", cause)]);
    }

    /// An executor says what it is at.
    pub fn heard(&mut self, executor: &ExecutorId, progress: &Progress) {
        let now = Instant::now();
        let since = self.heard.insert(executor.clone(), now).map_or(Duration::ZERO, |before| now - before);
        let waits_for = match progress.waits_for {
            WaitsFor::Nothing => return,
            WaitsFor::Peers(_) => "peers",
            WaitsFor::Store => "store",
            WaitsFor::Controller => "controller",
        };
        self.waits.add(since.min(WAIT_MAX).as_secs_f64(), &[KeyValue::new("waits_for", waits_for)]);
    }

    /// What the slots are used for now; guest slots are none.
    pub fn slots<'a>(&self, slots: impl Iterator<Item = SlotView<'a>>) {
        let mut counts =
            BTreeMap::from([("free", 0), ("running", 0), ("leaving", 0), ("taken_back", 0), ("quarantined", 0)]);
        for slot in slots.filter(|view| !view.slot.is_guest()) {
            let state = match slot.state {
                SlotState::Free => "free",
                SlotState::Running => "running",
                SlotState::Leaving => "leaving",
                SlotState::TakenBack => "taken_back",
                SlotState::Quarantined => "quarantined",
            };
            *counts.entry(state).or_insert(0) += 1;
        }
        counts.into_iter().for_each(|(state, count)| self.slots.record(count, &[KeyValue::new("state", state)]));
    }
}
