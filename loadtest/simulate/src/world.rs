//! The turn of events: what is next happens, the core decides about it, its facts change the state and what the models do.
//!
//! The policy is asked where the live controller would ask it and something that it looks at has changed; that a job's size has rested long
//! enough (`lyra` looks at that) is such a change, and wakes whatever policy there is. Above [`EAGER_JOBS_MAX`] unfinished jobs it is asked with the tick after, as there.

use crate::agents::{Process, Server};
use crate::cluster::Group as Servers;
use crate::curve::whole_ms;
use crate::guarantees::Quotas;
use crate::information::{self, Classes, Curves, Information, Informed};
use crate::job::SimJob;
use crate::members::Mode;
use crate::outcome::{Ended, Measured, Outcome};
use crate::queue::{Event, Queue};
use crate::random::Random;
use crate::rounds::{self, InTurn};
use crate::setup::{DATASET, Setup};
use crate::tally::{FleetTally, Sizes, Tally};
use controller_core::limits::{EAGER_JOBS_MAX, SIZE_SETTLE_MS};
use controller_core::policy::WorkLeft;
use controller_core::state::JobPhase;
use controller_core::{Input, Planned, Policy, State, decide_input_folded, invariants, plan_until};
use events_schema::command::{Command, CommandRecord, Demand, DemandSignal, OfferMode};
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::fact::{Fact, Verdict};
use events_schema::{
    Cell, CommandId, DatasetName, Digest, ExecutorId, FleetId, JobId, ServerId, SlotId, TenantId, TimeMs,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// Everything begins here, so that no moment is the 0 that means never.
pub const BEGIN: TimeMs = TimeMs(1_000);
/// Between two ticks of the live controller: what waits for time is looked at that often.
const TICK_MS: u64 = 200;
/// A run in which only fleets speak for so long ends: nothing will come of its unfinished jobs any more. A week, because some fleets' need
/// is that of the day of the week.
const IDLE_MS_MAX: u64 = 7 * 86_400_000;

/// What becomes of a setup's jobs under a policy. `stopwatch` says how long ago something was, in nanoseconds: the only thing of a run that
/// is not the same twice. Whoever does not measure gives 0.
#[must_use]
pub fn run<'a>(setup: &'a Setup, policy: &'a dyn Policy, stopwatch: &'a mut (dyn FnMut() -> u64 + 'a)) -> Outcome {
    World::new(setup, policy, stopwatch).run()
}

/// The same, and what slots each job had when ([`Tally::sizes`]).
#[must_use]
pub fn run_with_sizes<'a>(
    setup: &'a Setup,
    policy: &'a dyn Policy,
    stopwatch: &'a mut (dyn FnMut() -> u64 + 'a),
) -> Outcome {
    let mut world = World::new(setup, policy, stopwatch);
    world.tally.sizes = Some(Sizes::of(setup.jobs.len()));
    world.run()
}

/// The core, and what stands around it.
pub(crate) struct World<'a> {
    pub setup: &'a Setup,
    policy: &'a dyn Policy,
    stopwatch: &'a mut (dyn FnMut() -> u64 + 'a),
    pub state: State,
    /// What stands there while it is decided about; none meanwhile.
    blank: Option<State>,
    /// As it was when it was last checked.
    checked: State,
    pub at: TimeMs,
    pub queue: Queue,
    pub jobs: Vec<SimJob>,
    pub servers: Vec<Server>,
    pub server_of: BTreeMap<ServerId, usize>,
    pub processes: BTreeMap<ExecutorId, Process>,
    /// Who is on a slot.
    pub on: BTreeMap<SlotId, ExecutorId>,
    fleets: Vec<FleetId>,
    fleet_of: BTreeMap<FleetId, usize>,
    curves: Curves,
    /// How long each job takes in all on the slots that it asked for.
    totals_ms: Vec<u64>,
    classes: Classes,
    quotas: Quotas,
    /// Whom the last plan kept from what its quota guarantees.
    denied: BTreeSet<usize>,
    pub tally: Tally,
    pub random: Random,
    ticks: BTreeSet<TimeMs>,
    /// When the policy wants to be asked again, if it is not asked before.
    wake: Option<TimeMs>,
    view_changed: bool,
    commands: u64,
    sequence: u64,
    ended: usize,
    /// When anything last happened that fleets did not bring about.
    moved_at: TimeMs,
    measured: Measured,
}

impl<'a> World<'a> {
    fn new(setup: &'a Setup, policy: &'a dyn Policy, stopwatch: &'a mut (dyn FnMut() -> u64 + 'a)) -> Self {
        Self {
            setup,
            policy,
            stopwatch,
            state: State::new(Cell(0)),
            blank: None,
            checked: State::new(Cell(0)),
            at: BEGIN,
            queue: Queue::default(),
            jobs: setup.jobs.iter().zip(0..).map(|(job, number)| SimJob::new(job, number)).collect(),
            servers: Vec::new(),
            server_of: BTreeMap::new(),
            processes: BTreeMap::new(),
            on: BTreeMap::new(),
            fleets: Vec::new(),
            fleet_of: BTreeMap::new(),
            curves: Curves::new(setup.jobs.len()),
            totals_ms: setup.jobs.iter().map(|job| whole_ms(job.takes_ms(job.asked, 1.0))).collect(),
            classes: Classes::of(setup),
            quotas: Quotas::of(setup),
            denied: BTreeSet::new(),
            tally: Tally::new(BEGIN, Vec::new()),
            random: Random::new(setup.seed),
            ticks: BTreeSet::new(),
            wake: None,
            view_changed: false,
            commands: 0,
            sequence: 0,
            ended: 0,
            moved_at: BEGIN,
            measured: Measured::default(),
        }
    }

    fn run(mut self) -> Outcome {
        self.begin();
        while let Some((at, event)) = self.queue.next() {
            let is_idle = event.is_around() && self.queue.of_jobs == 0;
            if self.ended == self.setup.jobs.len() || is_idle && at.since_ms(self.moved_at) > IDLE_MS_MAX {
                break;
            }
            if setup_ends(self.setup, at) {
                break;
            }
            self.tally.pass(at);
            self.at = at;
            self.happen(event);
            self.end_moment();
        }
        self.outcome()
    }

    /// Servers join, fleets are declared, and all that is known beforehand is put into the queue.
    fn begin(&mut self) {
        let setup = self.setup;
        let dataset = DatasetInfo {
            name: name(DatasetName::parse, DATASET),
            sample: SampleShape::Classified { shape: vec![1], classes: 2 },
            rows: 1,
            metadata_key: format!("datasets/{DATASET}/metadata.json"),
            metadata_digest: Digest::of(DATASET.as_bytes()),
        };
        self.command(None, Command::RegisterDataset { dataset });
        for (tenant, quota) in &setup.quotas {
            self.command(None, Command::SetQuota { tenant: tenant.clone(), quota_slots: Some(*quota) });
        }
        let cluster = setup.cluster.groups.iter().map(|group| (group, false));
        let groups = cluster.chain(setup.inference.groups.iter().map(|group| (group, true)));
        for (number, (group, serves)) in groups.enumerate() {
            self.add_fleet(number, group, serves);
        }
        let training = setup.cluster.groups.len();
        for fleet in 0..self.fleets.len() {
            let demand = fleet.checked_sub(training).and_then(|serving| setup.demand.get(serving));
            if demand.is_some_and(|demand| !demand.signals.is_empty()) {
                self.queue.put(BEGIN, Event::Demand { fleet, signal: 0 });
                if demand.is_some_and(|demand| !demand.curve.is_empty()) {
                    self.queue.put(BEGIN, Event::Curve { fleet, point: 0 });
                }
            } else {
                self.say_need(fleet, 0, 0);
            }
        }
        for (number, job) in setup.jobs.iter().enumerate() {
            self.queue.put(BEGIN.plus_ms(job.submitted_ms), Event::Submit(number));
        }
        self.plan_failures();
        // What the beginning took is no decision of interest.
        (self.measured, self.tally.events, self.tally.plans) = (Measured::default(), 0, 0);
    }

    fn add_fleet(&mut self, number: usize, group: &Servers, serves: bool) {
        let fleet = name(FleetId::parse, &format!("{}-{number}", if serves { "inference" } else { "cluster" }));
        let mut slots = Vec::new();
        for index in 0..group.servers {
            let server = name(ServerId::parse, &format!("g{number}-{index:05}"));
            slots.extend((0..group.slots).map(|index| SlotId { server: server.clone(), index }));
            self.add_server(server, number, group);
        }
        let tally = FleetTally { slots: slots.len() as u64, serves, ..FleetTally::default() };
        self.tally.fleets.push(tally);
        self.fleet_of.insert(fleet.clone(), number);
        self.fleets.push(fleet.clone());
        let (offers, reclaim_deadline_ms) = (OfferMode::ByDemand, self.setup.reclaim_deadline_ms);
        self.command(None, Command::PutFleet { fleet, slots, offers, reclaim_deadline_ms });
    }

    fn happen(&mut self, event: Event) {
        if !event.is_around() {
            self.moved_at = self.at;
        }
        match event {
            Event::Submit(number) => self.submit(number),
            Event::Demand { fleet, signal } => self.demand(fleet, signal),
            Event::Curve { fleet, point } => self.curve(fleet, point),
            Event::Ready(executor) => self.ready(&executor),
            Event::Exit(executor) => self.exit(&executor),
            Event::Overdue(executor) => self.kill_overdue(&executor),
            Event::Late { executor, until } => self.leave_early(&executor, until),
            Event::LeftEarly(executor) => self.left_early(&executor),
            Event::Linked { job, generation } => self.linked(job, generation),
            Event::Boundary { job, stamp } => self.boundary(job, stamp),
            Event::Resumed { job, stamp } => self.resumed(job, stamp),
            Event::Stepped { job, stamp } => self.stepped(job, stamp),
            Event::Measured { job, stamp } => self.tell_throughput(job, stamp),
            Event::Saved { job, stamp } => self.saved(job, stamp),
            Event::Done { job, stamp } => self.done(job, stamp),
            Event::Finished { job, stamp } => self.finished(job, stamp),
            Event::Seen(executor) => self.seen(&executor),
            Event::Shared { job } => self.share(job),
            Event::Breaks(server) => self.breaks(server),
            Event::GivenUp(server) => self.given_up(server),
            Event::Repaired(server) => self.repaired(server),
            Event::Tick => {
                self.ticks.remove(&self.at);
                self.tick();
            }
            Event::Wake if self.wake == Some(self.at) => self.tick(),
            // It has been asked since, and said another time.
            Event::Wake => {}
        }
    }

    fn tick(&mut self) {
        self.view_changed = true;
        self.feed(&Input::Tick);
    }

    fn submit(&mut self, number: usize) {
        let setup = self.setup;
        let job = &setup.jobs[number];
        let spec = Box::new(job.spec.clone());
        let submit = Command::SubmitJob { job: self.jobs[number].id.clone(), spec, body_digest: Digest::of(b"") };
        self.command(job.tenant.as_deref(), submit);
    }

    fn demand(&mut self, fleet: usize, signal: usize) {
        let setup = self.setup;
        let Some(demand) = setup.demand.get(fleet - setup.cluster.groups.len()) else { return };
        let Some((at_ms, needed)) = demand.signals.get(signal) else { return };
        if demand.curve.is_empty() {
            self.tally.fleets[fleet].rose_to = u64::from(*needed);
        }
        let slots = u32::try_from(self.tally.fleets[fleet].slots).unwrap_or(u32::MAX);
        self.say_need(fleet, *needed, demand.asks_for(*needed, slots));
        // The next one, or the first one again.
        let (next, wait_ms) = match demand.signals.get(signal + 1) {
            Some((next_ms, _)) => (signal + 1, next_ms - at_ms),
            None => (0, demand.period_ms.saturating_sub(*at_ms)),
        };
        if demand.signals.len() > 1 {
            self.queue.put(self.at.plus_ms(wait_ms.max(1)), Event::Demand { fleet, signal: next });
        }
    }

    /// What a fleet really needs is another number now.
    fn curve(&mut self, fleet: usize, point: usize) {
        let setup = self.setup;
        let Some(demand) = setup.demand.get(fleet - setup.cluster.groups.len()) else { return };
        let Some((at_ms, needed)) = demand.curve.get(point) else { return };
        self.tally.fleets[fleet].rose_to = u64::from(*needed);
        let (next, wait_ms) = match demand.curve.get(point + 1) {
            Some((next_ms, _)) => (point + 1, next_ms - at_ms),
            None => (0, demand.period_ms.saturating_sub(*at_ms).max(1)),
        };
        if demand.curve.len() > 1 {
            self.queue.put(self.at.plus_ms(wait_ms), Event::Curve { fleet, point: next });
        }
    }

    /// A fleet needs so many slots, and asks for so many.
    fn say_need(&mut self, fleet: usize, needed: u32, asked: u32) {
        self.sequence += 1;
        self.tally.fleets[fleet].needed = u64::from(needed);
        let signal = DemandSignal::new(self.fleets[fleet].clone(), self.sequence, self.at, Demand::Needed(asked));
        // What it is going to need follows from that, and no other fact says so.
        self.view_changed |=
            self.state.past(&signal.fleet).is_some_and(|past| past.forecasts(self.at).next().is_some());
        self.feed(&Input::Demand(signal));
    }

    fn command(&mut self, tenant: Option<&str>, command: Command) {
        self.commands += 1;
        let id = name(CommandId::parse, &format!("c{}", self.commands));
        let tenant = tenant.and_then(|tenant| TenantId::parse(tenant).ok());
        let tenant = tenant.unwrap_or_else(|| name(TenantId::parse, "recorded"));
        self.feed(&Input::Command(CommandRecord { id, tenant, at: self.at, command, trace: None, expected: None }));
    }

    /// Has an input decided, and the policy asked if it is due.
    pub fn feed(&mut self, input: &Input) {
        self.tally.events += 1;
        let begun = (self.stopwatch)();
        // Handed over, and not lent: what nobody else holds of it is changed where it is.
        let blank = self.blank.take().unwrap_or_else(|| State::new(Cell(0)));
        let state = std::mem::replace(&mut self.state, blank);
        let (facts, state) = decide_input_folded(state, self.at, input, self.policy.name());
        self.blank = Some(std::mem::replace(&mut self.state, state));
        let decided = (self.stopwatch)();
        self.take(&facts);
        let live = self.state.live_len();
        if self.view_changed && live > 0 && self.setup.round_ms.is_none() {
            if live <= EAGER_JOBS_MAX || matches!(input, Input::Tick) {
                self.plan();
            } else {
                self.wake_at(self.at.plus_ms(1));
            }
        }
        let ended = (self.stopwatch)();
        self.measured.inputs_ns += decided.saturating_sub(begun);
        self.measured.events_ns += ended.saturating_sub(begun);
    }

    /// Checks the cheap invariants of all that a moment has changed: the executors of a job are ready in the same one, and each of them is no
    /// reason to look at all the others again.
    fn check(&mut self) {
        for violation in invariants::check_changes(&self.checked, &self.state) {
            self.tally.broken(format!("{}: {}", violation.invariant, violation.detail));
        }
        self.checked = self.state.clone();
    }

    /// Where plans are made in rounds, one is made when all of a round's moment has happened.
    fn end_moment(&mut self) {
        if self.queue.next_at() != Some(self.at) {
            let begun = (self.stopwatch)();
            self.check();
            self.measured.events_ns += (self.stopwatch)().saturating_sub(begun);
        }
        let Some(every_ms) = self.setup.round_ms.filter(|_| self.view_changed && self.state.live_len() > 0) else {
            return;
        };
        let round = rounds::next(self.at, every_ms);
        if round > self.at {
            self.wake_at(round);
        } else if self.queue.next_at() != Some(self.at) {
            let begun = (self.stopwatch)();
            self.plan();
            self.measured.events_ns += (self.stopwatch)().saturating_sub(begun);
        }
    }

    fn plan(&mut self) {
        self.view_changed = false;
        self.tally.plans += 1;
        let begun = (self.stopwatch)();
        let (Planned { facts, state, until }, denied) = self.planned();
        let ended = (self.stopwatch)();
        self.tally.denied += denied.difference(&self.denied).count() as u64;
        self.denied = denied;
        self.measured.plans_ns.push(ended.saturating_sub(begun));
        // In a round somebody may have to be asked for again, who waited for others to give way.
        let gives_way = facts.iter().any(rounds::gives_way);
        self.state = state;
        self.take(&facts);
        self.view_changed = gives_way && self.setup.round_ms.is_some();
        self.wake = until.map(|until| self.tick_from(until));
        if let Some(at) = self.wake {
            self.queue.put(at, Event::Wake);
        }
    }

    /// What the policy's plan brings about, told of jobs what it may know, and whom it keeps from what is guaranteed.
    fn planned(&self) -> (Planned, BTreeSet<usize>) {
        let (setup, jobs, totals_ms, at) = (self.setup, &self.jobs, &self.totals_ms, self.at);
        let left = |number: usize| {
            let (job, of) = (&jobs[number], &setup.jobs[number]);
            let left_ms = || whole_ms(of.takes_from_ms(job.done_at(at), of.asked, 1.0));
            match setup.information {
                Information::Unknown => WorkLeft::Unknown,
                of => of.told(setup.seed, number, totals_ms[number], left_ms()),
            }
        };
        let restart_ms = setup.costs.stopped_and_started_ms();
        let informed = Informed {
            policy: self.policy,
            jobs: &setup.jobs,
            curves: &self.curves,
            restart_ms,
            classes: &self.classes,
            left: &left,
            quotas: &self.quotas,
            denied: Mutex::default(),
        };
        let in_turn = InTurn(&informed);
        let policy: &dyn Policy = if setup.round_ms.is_some() { &in_turn } else { &informed };
        let planned = plan_until(&self.state, self.at, policy);
        (planned, informed.denied.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has the models do what follows from facts that were folded into the state.
    fn take(&mut self, facts: &[Fact]) {
        if facts.is_empty() {
            return;
        }
        self.view_changed |= facts.iter().any(information::is_seen_by_policies);
        let mut touched = BTreeSet::new();
        for fact in facts {
            self.heed(fact, &mut touched);
        }
        for job in touched {
            self.look(job);
        }
        self.tally.check();
    }

    fn heed(&mut self, fact: &Fact, touched: &mut BTreeSet<usize>) {
        match fact {
            Fact::JobAccepted { job, .. } => {
                self.tally.live += 1;
                self.jobs[number(job)].came_amid = (self.tally.live_ms, self.tally.lent_ms());
                self.queue_up(number(job));
            }
            Fact::CommandRefused { subject, refusal, .. } => {
                self.tally.broken(format!("{subject} is refused: {refusal:?}"))
            }
            Fact::PlanAdopted { job, slots, from, .. } => {
                touched.insert(number(job));
                self.replanned(number(job), from.unwrap_or(0) as usize, slots.len());
            }
            Fact::JobFinished { job, .. } => self.end(number(job), Ended::Finished),
            Fact::JobFailed { job, .. } => self.end(number(job), Ended::Failed),
            Fact::JobRestarted { job, .. } => self.restart(number(job)),
            Fact::ExecutorAssigned { executor, slot } => self.start(executor, slot),
            Fact::ExecutorLeaving { executor, deadline, cause, .. } => {
                touched.insert(number(&executor.job));
                self.leave(executor, *deadline, *cause);
            }
            Fact::ExecutorGone { executor, verdict, .. } => {
                touched.insert(number(&executor.job));
                if let Some(Verdict::Failure(_)) = verdict
                    && let Some(job) = self.state.job(&executor.job)
                {
                    self.wake_at(job.faults.backoff_until());
                }
            }
            Fact::GenerationProposed { job, proposal } => {
                touched.insert(number(job));
                self.proposed(number(job), proposal);
            }
            Fact::GenerationActive { job, .. } | Fact::JobSuspending { job } => drop(touched.insert(number(job))),
            Fact::ReplicaHeld { executor, .. } => drop(touched.insert(number(&executor.job))),
            Fact::SlotsOffered { fleet, .. } => self.count_lent(Some(fleet)),
            Fact::SlotReclaimed { slot, fleet, .. } => {
                if let Some(index) = fleet.as_ref().and_then(|fleet| self.fleet_of.get(fleet)) {
                    let busy = self.on.contains_key(slot);
                    self.tally.fleets[*index].returning.entry(slot.clone()).or_insert(busy);
                }
                self.count_lent(fleet.as_ref());
            }
            Fact::SlotReturned { slot, fleet, took_ms } => {
                if let Some(index) = fleet.as_ref().and_then(|fleet| self.fleet_of.get(fleet)) {
                    let busy = self.tally.fleets[*index].returning.remove(slot);
                    self.tally.returns_ms.extend(took_ms.filter(|_| busy == Some(true)));
                }
                self.count_lent(fleet.as_ref());
            }
            _ => {}
        }
    }

    fn count_lent(&mut self, fleet: Option<&FleetId>) {
        let Some(id) = fleet else { return };
        let lent = self.state.fleet(id).map_or(0, |fleet| fleet.lent as u64);
        if let Some(index) = self.fleet_of.get(id) {
            self.tally.fleets[*index].lent = lent;
        }
    }

    fn replanned(&mut self, number: usize, from: usize, to: usize) {
        let at = self.at;
        let job = &mut self.jobs[number];
        let waited_ms = || job.queued_since.take().map(|since| at.since_ms(since));
        if !self.tally.replanned(&mut job.outcome, (from, to), waited_ms) {
            return;
        }
        if let Some(sizes) = &mut self.tally.sizes {
            sizes.note(number, at.since_ms(BEGIN), to);
        }
        self.wake_at(at.plus_ms(SIZE_SETTLE_MS));
    }

    /// Has a tick come at the first one of the live controller's that is not before a moment.
    pub fn wake_at(&mut self, at: TimeMs) {
        let at = self.tick_from(at);
        if self.ticks.insert(at) {
            self.queue.put(at, Event::Tick);
        }
    }

    /// The first tick of the live controller's that is after now and not before a moment.
    fn tick_from(&self, at: TimeMs) -> TimeMs {
        TimeMs(at.max(self.at.plus_ms(1)).0.div_ceil(TICK_MS) * TICK_MS)
    }

    /// What the models do about a job that something was decided of.
    fn look(&mut self, number: usize) {
        let Some(job) = self.state.job(&self.jobs[number].id) else { return };
        if matches!(job.phase, JobPhase::Queued) {
            self.queue_up(number);
        }
        self.seek_boundary(number);
    }

    fn queue_up(&mut self, number: usize) {
        let since = &mut self.jobs[number].queued_since;
        self.tally.waiting += u64::from(since.is_none());
        since.get_or_insert(self.at);
    }

    fn end(&mut self, number: usize, how: Ended) {
        if self.jobs[number].outcome.ended.is_some() {
            self.tally.broken(format!("job {number} ended twice"));
            return;
        }
        self.stop(number, Mode::Still);
        self.ended += 1;
        self.tally.waiting -= u64::from(self.jobs[number].queued_since.take().is_some());
        self.jobs[number].training = None;
        self.jobs[number].outcome.ended = Some((how, self.at.since_ms(BEGIN)));
        let (live_ms, lent_ms) = self.jobs[number].came_amid;
        let amid = (self.tally.live_ms - live_ms, self.tally.lent_ms() - lent_ms);
        self.jobs[number].outcome.alone_ms = self.setup.alone_ms(number, amid.0, amid.1);
        self.jobs[number].outcome.single_ms = self.setup.jobs[number].takes_ms(1, 1.0).map(|ms| ms.round() as u64);
        self.tally.live -= 1;
    }

    fn outcome(self) -> Outcome {
        let serve = |(id, _): &(&FleetId, _)| self.fleet_of.get(*id).is_some_and(|at| self.tally.fleets[*at].serves);
        let past = |(id, _)| self.state.past(id).map(|past| past.forecasts(self.at).collect());
        let forecasts = self.state.fleets().filter(serve).filter_map(past).collect();
        let jobs = self.jobs.into_iter().map(|job| job.outcome).collect();
        let (tally, measured) = (self.tally, self.measured);
        Outcome { policy: self.policy.name(), jobs, tally, until_ms: self.at.since_ms(BEGIN), measured, forecasts }
    }
}

fn setup_ends(setup: &Setup, at: TimeMs) -> bool {
    setup.until_ms.is_some_and(|until_ms| at.since_ms(BEGIN) > until_ms)
}

/// The place of a job in its setup.
pub(crate) fn number(job: &JobId) -> usize {
    // Ids are made here, from such numbers.
    job.as_str().trim_start_matches('j').parse().unwrap_or_default()
}

pub(crate) fn name<T, E: std::fmt::Display>(parse: impl Fn(&str) -> Result<T, E>, text: &str) -> T {
    parse(text).unwrap_or_else(|e| unreachable!("a name of ours: {e}"))
}
