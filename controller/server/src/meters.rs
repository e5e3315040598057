//! What a controller counts and measures, for whoever watches it. Everything follows from what passes the loop anyway: facts, progress, answers
//! of the log; and states are counted when somebody asks. Labels are of bounded sets; no id is one.

use crate::appends::Appends;
use crate::returns::{Returned, Returns};
use controller_cell::{AppendFailure, Attempt, Committed, Note, Ticket};
use controller_core::invariants::names;
use ebb_telemetry::KeyValue;
use ebb_telemetry::metrics::{Counter, Histogram, counter, meter, seconds};
use events_rule::Stream;
use events_schema::batch::{Batch, InputStream};
use events_schema::fact::{Fact, LossNotice};
use events_schema::job::ModelSpec;
use events_schema::orders::Telemetry;
use events_schema::{FleetId, Generation, JobId, Offset, TimeMs};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Jobs whose progress is remembered for what is new about it; when there are more, all of it begins anew and one word of each is not counted.
const JOBS_MAX: usize = 16_384;
/// Fleets that have a label of their own; those behind them count as `other`.
const FLEETS_MAX: usize = 100;

/// The instruments, and what they need to remember.
pub(crate) struct Meters {
    decision: Histogram<f64>,
    append: Histogram<f64>,
    returned: Histogram<f64>,
    scaled: Histogram<f64>,
    pause: Histogram<f64>,
    steps: Counter<u64>,
    samples: Counter<f64>,
    data_wait: Counter<f64>,
    facts: Counter<u64>,
    jobs_ended: Counter<u64>,
    restarts: Counter<u64>,
    members_lost: Counter<u64>,
    stalls: Counter<u64>,
    refused: Counter<u64>,
    plans_failed: Counter<u64>,
    invariants: Counter<u64>,
    committed: watch::Receiver<Option<Committed>>,
    appends: Appends,
    looks: BTreeMap<Ticket, Stream>,
    lag: Lag,
    returns: Returns,
    progress: BTreeMap<JobId, (Generation, u64)>,
    broken: BTreeMap<&'static str, u64>,
}

impl Meters {
    /// Of the controller whose state this is.
    pub fn new(committed: watch::Receiver<Option<Committed>>, board: crate::TelemetryBoard) -> Self {
        observe(&committed, board);
        let meters = Self {
            decision: seconds("ebb.decision", "Time to decide about one batch of inputs"),
            append: seconds("ebb.append", "Time until the log acknowledged a record, by stream"),
            returned: seconds(
                "ebb.slot.return",
                "Time from a reclaim to the free slot, by the way it was asked for and how its executor ended",
            ),
            scaled: seconds("ebb.job.scale", "Time from a plan until its job trains at the new size"),
            pause: seconds("ebb.job.pause", "What the first step at a new size took longer than one before"),
            steps: counter("ebb.steps", "Steps done by all jobs, as their leaders say"),
            samples: meter()
                .f64_counter("ebb.samples")
                .with_description("Samples trained on by all jobs, estimated from rates")
                .build(),
            data_wait: meter()
                .f64_counter("ebb.data.wait")
                .with_unit("s")
                .with_description("Time that leaders waited for the samples of steps, estimated from averages")
                .build(),
            facts: counter("ebb.facts", "Facts decided"),
            jobs_ended: counter("ebb.jobs.ended", "Jobs that ended, by outcome"),
            restarts: counter("ebb.job.restarts", "Jobs that went back to a checkpoint"),
            members_lost: counter("ebb.members.lost", "Members that nobody asked to leave, by how it was noticed"),
            stalls: counter("ebb.job.stalls", "Times that a job made no progress"),
            refused: counter("ebb.inputs.refused", "Inputs that could not be read or decided about; look at each"),
            plans_failed: counter("ebb.plans.failed", "Panics of the policy"),
            invariants: counter("ebb.invariants.broken", "What always holds and did not, by name: a defect of Ebb"),
            committed,
            appends: Appends::default(),
            looks: BTreeMap::new(),
            lag: Lag::default(),
            returns: Returns::default(),
            progress: BTreeMap::new(),
            broken: BTreeMap::new(),
        };
        meters.lag.observe();
        // What never happened is a zero: to Prometheus a series that begins with one has not grown.
        meters.plans_failed.add(0, &[]);
        meters.data_wait.add(0.0, &[]);
        for counter in [&meters.restarts, &meters.stalls, &meters.steps] {
            counter.add(0, &[]);
        }
        names().for_each(|name| meters.invariants.add(0, &[KeyValue::new("invariant", name)]));
        InputStream::ALL.iter().for_each(|stream| meters.refused.add(0, &[KeyValue::new("stream", stream.name())]));
        meters
    }

    /// A batch was decided in this time.
    pub fn decided(&self, took: Duration) {
        self.decision.record(took.as_secs_f64(), &[]);
    }

    /// A record goes to the log.
    pub fn asked(&mut self, ticket: Ticket, stream: Stream, attempt: Attempt) {
        self.appends.asked(ticket, stream, attempt, Instant::now());
    }

    /// The log has it.
    pub fn acknowledged(&mut self, ticket: Ticket) {
        if let Some((stream, took)) = self.appends.acknowledged(ticket, Instant::now()) {
            self.append.record(took.as_secs_f64(), &[KeyValue::new("stream", stream.name())]);
        }
    }

    /// It may not have it.
    pub fn failed(&mut self, ticket: Ticket, failure: &AppendFailure) {
        self.appends.failed(ticket, failure);
    }

    /// Somebody asks where a stream ends.
    pub fn looks(&mut self, ticket: Ticket, stream: Stream) {
        // One question of a stream replaces the one before.
        self.looks.retain(|_, known| *known != stream);
        self.looks.insert(ticket, stream);
    }

    /// It ends here, or the log does not say where.
    pub fn ends(&mut self, ticket: Ticket, end: Option<Offset>) {
        let Some(stream) = self.looks.remove(&ticket) else { return };
        let taken = self.committed.borrow().as_ref().map(|committed| match stream {
            Stream::Commands => committed.inputs.of(InputStream::Commands),
            Stream::Demand => committed.inputs.of(InputStream::Demand),
            Stream::Reports => committed.inputs.of(InputStream::Reports),
            Stream::Events | Stream::Public => committed.position,
        });
        self.lag.set(stream, end.zip(taken).map(|(end, taken)| end.0.saturating_sub(taken.0)));
    }

    /// A batch counts.
    pub fn counted(&mut self, batch: &Batch, broken: &BTreeMap<&'static str, u64>) {
        self.facts.add(batch.facts.len() as u64, &[]);
        batch.facts.iter().for_each(|fact| self.fact(fact, batch.at));
        for (name, count) in broken {
            let known = self.broken.insert(*name, *count).unwrap_or(0);
            self.invariants.add(count.saturating_sub(known), &[KeyValue::new("invariant", *name)]);
        }
    }

    fn fact(&mut self, fact: &Fact, at: TimeMs) {
        if let Some(Returned { took_ms, way, end }) = self.returns.take(fact, at) {
            self.returned.record(took_ms as f64 / 1e3, &[KeyValue::new("way", way), KeyValue::new("end", end)]);
        }
        let ended = |outcome: &'static str| self.jobs_ended.add(1, &[KeyValue::new("outcome", outcome)]);
        match fact {
            Fact::JobFinished { .. } => ended("finished"),
            Fact::JobFailed { .. } => ended("failed"),
            Fact::JobCancelled { .. } => ended("cancelled"),
            Fact::JobRestarted { .. } => self.restarts.add(1, &[]),
            Fact::JobStalled { .. } => self.stalls.add(1, &[]),
            Fact::JobScaled { took_ms, pause_us, .. } => {
                self.scaled.record(*took_ms as f64 / 1e3, &[]);
                pause_us.iter().for_each(|pause| self.pause.record(*pause as f64 / 1e6, &[]));
            }
            Fact::MemberLost { noticed, .. } => {
                self.members_lost.add(1, &[KeyValue::new("noticed", noticed_by(noticed))])
            }
            Fact::InputRefused { stream, .. } => {
                let stream = InputStream::ALL.into_iter().map(InputStream::name).find(|known| known == stream);
                self.refused.add(1, &[KeyValue::new("stream", stream.unwrap_or("unknown"))]);
            }
            Fact::PlanFailed { .. } => self.plans_failed.add(1, &[]),
            _ => {}
        }
    }

    /// A leader says how far its job is.
    pub fn progress(&mut self, said: &Telemetry) {
        if self.progress.len() >= JOBS_MAX {
            self.progress.clear();
        }
        let known = self.progress.insert(said.job.clone(), (said.generation, said.step.0));
        // After a restart steps are done again, and count again.
        if let Some((_, before)) = known {
            let steps = said.step.0.saturating_sub(before);
            self.steps.add(steps, &[]);
            let samples = steps as f64 * said.samples_per_second * said.step_us as f64 / 1e6;
            if samples.is_finite() && samples >= 0.0 {
                self.samples.add(samples, &[]);
            }
            let wait_us = said.data_wait_us.unwrap_or(0);
            self.data_wait.add(steps as f64 * wait_us as f64 / 1e6, &[]);
        }
    }

    /// The machine says something to people.
    pub fn noted(&mut self, note: &Note) {
        if let Note::ReportDropped { .. } = note {
            self.refused.add(1, &[KeyValue::new("stream", Stream::Reports.name())]);
        }
    }
}

fn noticed_by(notice: &LossNotice) -> &'static str {
    match notice {
        LossNotice::Exit(_) => "exit",
        LossNotice::Silence => "silence",
        LossNotice::Lease => "lease",
        LossNotice::Agent => "agent",
        LossNotice::Link => "link",
        LossNotice::Stall(_) => "stall",
    }
}

fn family(model: &ModelSpec) -> &'static str {
    match model {
        ModelSpec::Mlp { .. } => "mlp",
        ModelSpec::Cnn { .. } => "cnn",
        ModelSpec::Gpt { .. } => "gpt",
        ModelSpec::Torch(_) => "torch",
        ModelSpec::Command(_) => "command",
        ModelSpec::Synthetic { .. } => "synthetic",
    }
}

/// Records of each stream that are not taken yet, as far as that is known: of a log that does not answer nothing is, and the last word would
/// look like the present one.
#[derive(Debug, Clone, Default)]
struct Lag(Arc<Mutex<BTreeMap<Stream, u64>>>);

impl Lag {
    fn set(&self, stream: Stream, records: Option<u64>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match records {
            Some(records) => drop(known.insert(stream, records)),
            None => drop(known.remove(&stream)),
        }
    }

    fn known(&self) -> BTreeMap<Stream, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn observe(&self) {
        let lag = self.clone();
        // The provider keeps what was built.
        let _ = meter()
            .u64_observable_gauge("ebb.log.lag")
            .with_unit("{record}")
            .with_description(
                "Records of a stream that are not taken yet; none while the log does not say where it ends",
            )
            .with_callback(move |observer| {
                lag.known().into_iter().for_each(|(stream, records)| {
                    observer.observe(records, &[KeyValue::new("stream", stream.name())]);
                });
            })
            .build();
    }
}

/// What is counted when somebody asks: states of jobs, slots and agents, and the loss that running jobs are at.
fn observe(committed: &watch::Receiver<Option<Committed>>, board: crate::TelemetryBoard) {
    let gauge = |name: &'static str, what: &'static str, count: fn(&Committed) -> Counts| {
        let committed = committed.clone();
        meter()
            .u64_observable_gauge(name)
            .with_description(what)
            .with_callback(move |observer| {
                let committed = committed.borrow().clone();
                committed.iter().flat_map(count).for_each(|(labels, value)| observer.observe(value, &labels));
            })
            .build()
    };
    // The provider keeps what was built.
    let _ = gauge("ebb.jobs", "Jobs, by phase", jobs);
    let _ = gauge("ebb.slots", "Slots, by fleet and state: offered and borrowed ones are lent to us", slots);
    let _ = gauge("ebb.agents", "Agents, by whether they are heard", agents);
    let _ = gauge("ebb.executors", "Executors that are to exist", executors);
    let _ = gauge("ebb.fleet.needed", "Slots that fleets said they need for themselves", needed);
    let committed = committed.clone();
    let _ = meter()
        .f64_observable_gauge("ebb.training.loss")
        .with_description("Mean training loss of running jobs, by family of model")
        .with_callback(move |observer| {
            let Some(committed) = committed.borrow().clone() else { return };
            let mut sums: BTreeMap<&'static str, (f64, f64)> = BTreeMap::new();
            for (id, job) in committed.state.live_jobs().filter(|(_, job)| job.active().is_some()) {
                if let Some(said) = board.get(id) {
                    let sum = sums.entry(family(&job.spec.model)).or_default();
                    *sum = (sum.0 + said.loss, sum.1 + 1.0);
                }
            }
            for (family, (sum, count)) in sums {
                observer.observe(sum / count, &[KeyValue::new("model", family)]);
            }
        })
        .build();
}

/// Values with their labels.
type Counts = Vec<(Vec<KeyValue>, u64)>;

/// A phase or a state without jobs or slots is a zero, not a gap.
const PHASES: [&str; 8] =
    ["queued", "starting", "running", "suspending", "suspended", "finished", "failed", "cancelled"];
const SLOT_STATES: [&str; 4] = ["unoffered", "offered", "borrowed", "reclaimed"];

fn jobs(committed: &Committed) -> Counts {
    let mut counts = BTreeMap::from(PHASES.map(|phase| (phase, 0)));
    // Those that ended are among them, all of them: no text is made for each.
    for (_, job) in committed.state.jobs() {
        *counts.entry(job.phase.name()).or_default() += 1;
    }
    counts.into_iter().map(|(phase, count)| (vec![KeyValue::new("phase", phase)], count)).collect()
}

fn slots(committed: &Committed) -> Counts {
    let labelled = labelled_fleets(committed);
    let mut counts: BTreeMap<(&str, &'static str), u64> =
        labelled.iter().flat_map(|fleet| SLOT_STATES.map(|state| ((*fleet, state), 0))).collect();
    for (_, slot) in committed.state.slots() {
        let fleet = slot.fleet.as_ref().map_or("none", |fleet| label(fleet, &labelled));
        *counts.entry((fleet, slot.state.name())).or_default() += 1;
    }
    let labels = |(fleet, state): (&str, &'static str)| {
        vec![KeyValue::new("fleet", fleet.to_owned()), KeyValue::new("state", state)]
    };
    counts.into_iter().map(|(key, count)| (labels(key), count)).collect()
}

fn labelled_fleets(committed: &Committed) -> BTreeSet<&str> {
    committed.state.fleets().take(FLEETS_MAX).map(|(fleet, _)| fleet.as_str()).collect()
}

fn label<'a>(fleet: &'a FleetId, labelled: &BTreeSet<&str>) -> &'a str {
    if labelled.contains(fleet.as_str()) { fleet.as_str() } else { "other" }
}

fn agents(committed: &Committed) -> Counts {
    let heard = committed.state.servers().filter(|(_, server)| server.connected).count() as u64;
    let known = committed.state.servers().count() as u64;
    let state = |state: &'static str, count| (vec![KeyValue::new("state", state)], count);
    vec![state("heard", heard), state("lost", known - heard)]
}

fn executors(committed: &Committed) -> Counts {
    vec![(Vec::new(), committed.state.executors().count() as u64)]
}

fn needed(committed: &Committed) -> Counts {
    let labelled = labelled_fleets(committed);
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (id, fleet) in committed.state.fleets() {
        *counts.entry(label(id, &labelled)).or_default() += u64::from(fleet.needed);
    }
    counts.into_iter().map(|(fleet, count)| (vec![KeyValue::new("fleet", fleet.to_owned())], count)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use controller_cell::Positions;
    use controller_core::State;
    use events_schema::command::OfferMode;
    use events_schema::{Cell, Term};

    fn committed(facts: &[Fact]) -> Committed {
        let mut state = State::new(Cell(0));
        facts.iter().for_each(|fact| state.apply(TimeMs(1), fact));
        Committed { state, term: Term(0), position: Offset(0), inputs: Positions::default(), installation: None }
    }

    fn fleet(name: &str, slot: &str) -> Fact {
        let (fleet, slots) = (FleetId::parse(name).unwrap(), vec![slot.parse().unwrap()]);
        Fact::FleetDeclared { fleet, slots, offers: OfferMode::ByDemand, reclaim_deadline_ms: 1 }
    }

    fn shown(counts: Counts) -> BTreeMap<String, u64> {
        let labels = |labels: Vec<KeyValue>| labels.iter().map(|l| format!("{}={} ", l.key, l.value)).collect();
        counts.into_iter().map(|(of, count)| (labels(of), count)).collect()
    }

    /// A state that the last slot has left was a gap in its series: to whoever draws it, the slot was still there.
    #[test]
    fn a_fleet_has_a_number_for_every_state() {
        let counts = shown(slots(&committed(&[fleet("local", "s1/0")])));
        let of = |state: &str| counts.get(&format!("fleet=local state={state} ")).copied();
        assert_eq!(SLOT_STATES.map(of), [Some(1), Some(0), Some(0), Some(0)], "{counts:?}");
    }

    #[test]
    fn fleets_beyond_those_with_a_label_are_one() {
        let facts: Vec<Fact> =
            (0..FLEETS_MAX + 2).map(|number| fleet(&format!("f{number:03}"), &format!("s{number}/0"))).collect();
        let counts = shown(slots(&committed(&facts)));
        assert_eq!(counts["fleet=other state=unoffered "], 2, "{counts:?}");
        assert_eq!(counts.len(), FLEETS_MAX * SLOT_STATES.len() + 1);
        assert_eq!(shown(needed(&committed(&facts))).len(), FLEETS_MAX + 1);
    }

    #[test]
    fn a_phase_without_jobs_is_a_zero() {
        assert!(shown(jobs(&committed(&[]))).into_values().eq([0; PHASES.len()]));
    }
}
