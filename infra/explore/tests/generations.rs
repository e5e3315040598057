//! The generations of one job (`controller/core`: `decide/generations.rs`, `proposals.rs`, `leaders.rs`, `apply/generations.rs`) on two
//! or three slots: executors get ready, come to lock-step, depart, lose each other, exit, are late; their fleet takes a slot back and
//! offers it again; time passes. Whatever is reported in whatever order, a job that could train is on its way to it.
#![allow(clippy::unwrap_used)]

use controller_core::invariants;
use controller_core::limits::{BACKOFF_MS_MAX, LEFT_GRACE_MS, READY_DEADLINE_MS};
use controller_core::state::{Job, JobPhase, Placement, State};
use controller_core::{Input, decide, policy_by_name};
use events_schema::command::{Command, CommandRecord, Demand, DemandSignal, OfferMode};
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::fact::{AbandonCause, Entry, Fact, Proposal};
use events_schema::job::JobSpec;
use events_schema::report::{ExitCause, Report, ReportRecord};
use events_schema::{
    Cell, CommandId, DatasetName, Digest, ExecutorId, FleetId, Generation, JobId, ServerId, SlotId, Step, TenantId,
    TimeMs,
};
use explore::explore;
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

const SERVER: &str = "a";

fn dataset() -> DatasetInfo {
    DatasetInfo {
        name: DatasetName::parse("digits").unwrap(),
        sample: SampleShape::Classified { shape: vec![1, 8, 8], classes: 10 },
        rows: 1_437,
        metadata_key: "datasets/digits/metadata.json".to_owned(),
        metadata_digest: Digest::of(b"digits"),
    }
}

fn job_id() -> JobId {
    JobId::parse("job").unwrap()
}

/// The controller's state, and what the case still allows.
#[derive(Debug, Clone)]
struct World {
    core: State,
    at: TimeMs,
    faults_left: u16,
    passes_left: u8,
    signals: u8,
    /// Who departed, and the newest generation there was then.
    departed: BTreeMap<ExecutorId, Generation>,
    /// Broken invariants.
    broken: Vec<String>,
    seen: BTreeSet<Seen>,
    /// Of all of the above.
    digest: Digest,
}

/// What a path has come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Seen {
    Recovery,
    Switch,
    Deadline,
    Restart,
    Departure,
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.digest.hash(hasher);
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Action {
    Ready(ExecutorId),
    Active(Generation),
    /// A newcomer has been sent the replica.
    Held(ExecutorId),
    Departed(ExecutorId),
    /// One member has no link to another, in the generation in force or in the one that is to begin.
    Missing {
        by: ExecutorId,
        peer: ExecutorId,
        begun: bool,
    },
    Gone(ExecutorId, ExitCause),
    Demand(u32),
    Pass(u64),
}

/// One job of `min` to `slots` workers on as many slots.
struct Case {
    min: u16,
    slots: u16,
    faults: u16,
    passes: u8,
    signals: u8,
}

fn job(core: &State) -> &Job {
    core.job(&job_id()).unwrap()
}

fn proposals(job: &Job) -> impl Iterator<Item = &Proposal> {
    let placement = job.placement().into_iter().flat_map(|p| p.proposed.iter().chain(&p.abandoned));
    job.active().map(|active| &active.proposal).into_iter().chain(placement)
}

impl World {
    fn begin(case: &Case) -> Self {
        let mut world = Self {
            core: State::new(Cell(0)),
            at: TimeMs(1_000),
            faults_left: case.faults,
            passes_left: case.passes,
            signals: 0,
            departed: BTreeMap::new(),
            broken: vec![],
            seen: BTreeSet::new(),
            digest: Digest::of(b""),
        };
        let fleet = FleetId::parse("f").unwrap();
        let slots = (0..case.slots).map(|index| SlotId { server: ServerId::parse(SERVER).unwrap(), index }).collect();
        let spec = JobSpec::parse(&serde_json::json!({
            "name": "j", "model": {"kind": "cnn"}, "dataset": "digits", "workers": {"min": case.min, "max": case.slots},
            "batch_size": 8, "epochs": 1,
        }));
        world.report(Report::AgentJoined {
            slots: case.slots,
            class: Digest::of(b"c"),
            address: String::new(),
            devices: Vec::new(),
            quarantined: Default::default(),
            guests: false,
            slot_type: None,
        });
        world.command("1", Command::RegisterDataset { dataset: dataset() });
        world.command("2", Command::PutFleet { fleet, slots, offers: OfferMode::ByDemand, reclaim_deadline_ms: 2_000 });
        world.signal(0);
        let spec = Box::new(spec.unwrap());
        world.command("3", Command::SubmitJob { job: job_id(), spec, body_digest: Digest::of(b"") });
        world.seal()
    }

    fn input(&mut self, input: &Input) {
        let policy = policy_by_name("ebb").unwrap();
        let facts = decide(&self.core, self.at, input, policy.as_ref());
        let before = self.core.clone();
        facts.iter().for_each(|fact| self.core.apply(self.at, fact));
        let violations = [invariants::check(&self.core), invariants::check_step(&before, &self.core)].concat();
        self.broken.extend(violations.into_iter().map(|violation| format!("{violation:?}")));
        for fact in facts {
            if let Fact::MemberDeparted { executor, .. } = &fact {
                self.departed.insert(executor.clone(), job(&before).generation);
            }
            self.note(&fact);
        }
    }

    fn note(&mut self, fact: &Fact) {
        let seen = match fact {
            Fact::GenerationActive { generation, .. } => {
                match job(&self.core).active().map(|active| (&active.proposal.entry, active.proposal.generation)) {
                    Some((Entry::Recover, active)) if active == *generation => Seen::Recovery,
                    Some((Entry::Switch { .. }, active)) if active == *generation => Seen::Switch,
                    _ => return,
                }
            }
            Fact::GenerationAbandoned { cause: AbandonCause::Deadline, .. } => Seen::Deadline,
            Fact::JobRestarted { .. } => Seen::Restart,
            Fact::MemberDeparted { .. } => Seen::Departure,
            _ => return,
        };
        self.seen.insert(seen);
    }

    /// Not numbered: the controller's own observations are not either, and a number would tell equal states apart.
    fn report(&mut self, report: Report) {
        let server = ServerId::parse(SERVER).unwrap();
        self.input(&Input::Report(ReportRecord {
            server,
            incarnation: 1,
            number: 0,
            at: self.at,
            report,
            trace: None,
            after: None,
        }));
    }

    fn command(&mut self, id: &str, command: Command) {
        let (id, tenant) = (CommandId::parse(id).unwrap(), TenantId::parse("t").unwrap());
        self.input(&Input::Command(CommandRecord { id, tenant, at: self.at, command, trace: None, expected: None }));
    }

    fn signal(&mut self, needed: u32) {
        self.signals += 1;
        let (fleet, sequence) = (FleetId::parse("f").unwrap(), self.signals.into());
        self.input(&Input::Demand(DemandSignal::new(fleet, sequence, self.at, Demand::Needed(needed))));
    }

    fn seal(mut self) -> Self {
        let rest =
            (self.at, self.faults_left, self.passes_left, self.signals, &self.departed, &self.broken, &self.seen);
        self.digest = Digest::of(format!("{} {rest:?}", self.core.digest()).as_bytes());
        self
    }

    /// Whether members could come to lock-step in it: none has left of its own accord, and they are in the state it begins from.
    /// That the controller gave it up meanwhile does not keep them from it.
    fn can_come_into_force(&self, proposal: &Proposal) -> bool {
        let in_force = job(&self.core).active().map(|active| active.proposal.generation);
        let possible = match proposal.entry {
            Entry::Fresh | Entry::Checkpoint { .. } => in_force.is_none(),
            Entry::Switch { from } => in_force == Some(from),
            Entry::Recover => in_force.is_some(),
        };
        let has_left = |executor: &ExecutorId| self.departed.contains_key(executor);
        possible && Some(proposal.generation) > in_force && !proposal.members.iter().any(|m| has_left(&m.executor))
    }

    fn members_there(&self) -> impl Iterator<Item = &ExecutorId> {
        let members = job(&self.core).active().into_iter().flat_map(|active| &active.members);
        members.filter(|member| self.core.executor(member).is_some())
    }

    fn placement(&self) -> Option<&Placement> {
        job(&self.core).placement().filter(|placement| !placement.slots.is_empty())
    }

    /// Whether as many executors as the job needs are built and stay.
    fn could_train(&self) -> bool {
        let ready = self.core.executors_of(&job_id()).filter(|(_, executor)| executor.is_ready()).count();
        self.placement().is_some() && ready >= usize::from(job(&self.core).spec.workers.min)
    }

    /// Whether a generation is in force whose members are all there and did not stop for a recovery, or one is proposed.
    fn is_under_way(&self) -> bool {
        let job = job(&self.core);
        let Some(placement) = job.placement() else { return false };
        let whole = job.active().is_some_and(|active| {
            active.members.iter().all(|member| self.core.executor(member).is_some()) && !placement.is_broken_off()
        });
        whole || placement.proposed.is_some()
    }

    /// Whether a job that could train is on its way to it after one of these ticks, if nothing more happens but that agents end whom
    /// they are told to.
    fn goes_on(&self, ticks_ms: &[u64]) -> bool {
        let mut world = self.clone();
        ticks_ms.iter().any(|ms| {
            world.at = self.at.plus_ms(*ms);
            world.input(&Input::Tick);
            let told = world.core.executors_of(&job_id()).filter(|(_, e)| e.leaving.is_some_and(|l| l.at_once()));
            let told: Vec<_> = told.map(|(id, executor)| (id.clone(), executor.slot.clone())).collect();
            for (executor, slot) in told {
                world.report(Report::ExecutorGone { executor, slot, exit: ExitCause::Killed });
            }
            !world.could_train() || world.is_under_way()
        })
    }
}

impl Model for Case {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::begin(self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let (job, may_fail) = (job(&world.core), world.faults_left > 0);
        for (id, executor) in world.core.executors_of(&job_id()) {
            if executor.address.is_none() {
                actions.push(Action::Ready(id.clone()));
            }
            // Who was told to go does; anybody else's exit is a fault.
            if executor.leaving.is_some() {
                actions.push(Action::Gone(id.clone(), ExitCause::Left));
            } else if may_fail {
                let exits = [ExitCause::Killed, ExitCause::Status(1), ExitCause::Left];
                actions.extend(exits.map(|exit| Action::Gone(id.clone(), exit)));
            }
        }
        let ripe = proposals(job).filter(|proposal| world.can_come_into_force(proposal));
        actions.extend(ripe.map(|proposal| Action::Active(proposal.generation)));
        let without = |member: &&ExecutorId| world.core.executor(member).is_some_and(|executor| !executor.replica);
        actions.extend(world.members_there().filter(without).map(|member| Action::Held(member.clone())));
        // Somebody else has to be there to say so.
        let there: Vec<&ExecutorId> = world.members_there().collect();
        if may_fail && there.len() > 1 {
            actions.extend(there.iter().map(|member| Action::Departed((*member).clone())));
            actions.push(Action::Missing { by: there[0].clone(), peer: there[1].clone(), begun: true });
        }
        let beginning = job.placement().and_then(|placement| placement.proposed.as_ref()).map(|p| &p.members[..]);
        if let Some([one, other, ..]) = beginning.filter(|_| may_fail) {
            let (by, peer) = (one.executor.clone(), other.executor.clone());
            actions.push(Action::Missing { by, peer, begun: false });
        }
        if world.signals < self.signals {
            let needed = world.core.fleets().next().unwrap().1.needed;
            actions.push(Action::Demand(1 - needed));
        }
        if world.passes_left > 0 {
            actions.extend([Action::Pass(LEFT_GRACE_MS), Action::Pass(READY_DEADLINE_MS)]);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        let job = job_id();
        let active = |world: &World| self::job(&world.core).active().cloned();
        match action {
            Action::Ready(executor) => {
                let address = format!("127.0.0.1:{}", executor.number);
                world.report(Report::ExecutorReady {
                    executor,
                    address,
                    class: None,
                    replica_bytes: None,
                    gradient_bytes: None,
                });
            }
            Action::Active(generation) => {
                world.report(Report::GenerationActive { job, generation, step: Step(1), pause_us: 1 });
            }
            Action::Departed(executor) => {
                world.faults_left -= 1;
                let leader = world.members_there().find(|member| **member != executor)?.clone();
                let generation = active(&world)?.proposal.generation;
                world.report(Report::MemberDeparted { job, generation, executor, leader, step: Step(2) });
            }
            Action::Held(executor) => {
                let generation = active(&world)?.proposal.generation;
                world.report(Report::ReplicaHeld { executor, generation, step: Step(1) });
            }
            Action::Missing { by, peer, begun } => {
                world.faults_left -= 1;
                let proposed = self::job(&world.core).placement()?.proposed.as_ref().map(|p| p.generation);
                let in_force = active(&world).map(|active| active.proposal.generation);
                let generation = if begun { in_force? } else { proposed? };
                let (revision, step, peers) = (0, Step(1), vec![peer]);
                world.report(Report::PeersMissing { job, generation, revision, step, by, peers, begun });
            }
            Action::Gone(executor, exit) => {
                let found = world.core.executor(&executor)?;
                world.faults_left -= u16::from(found.leaving.is_none());
                let slot = found.slot.clone();
                world.report(Report::ExecutorGone { executor, slot, exit });
            }
            Action::Demand(needed) => world.signal(needed),
            Action::Pass(ms) => {
                world.passes_left -= 1;
                world.at = world.at.plus_ms(ms);
                world.input(&Input::Tick);
            }
        }
        Some(world.seal())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every named invariant of the core", |_, world: &World| world.broken.is_empty()),
            Property::always("at most one generation is proposed, and it is the newest", |_, world: &World| {
                let job = job(&world.core);
                let proposed = job.placement().and_then(|placement| placement.proposed.as_ref());
                proposed.is_none_or(|proposal| proposal.generation == job.generation)
            }),
            Property::always("a proposal names only executors that are there", |_, world: &World| {
                let proposed = job(&world.core).placement().and_then(|placement| placement.proposed.as_ref());
                let mut members = proposed.into_iter().flat_map(|proposal| &proposal.members);
                members.all(|member| world.core.executor(&member.executor).is_some())
            }),
            Property::always("a departed member is in no later generation", |_, world: &World| {
                let later = |proposal: &Proposal, newest: Generation| proposal.generation > newest;
                proposals(job(&world.core)).all(|proposal| {
                    proposal.members.iter().all(|member| {
                        world.departed.get(&member.executor).is_none_or(|newest| !later(proposal, *newest))
                    })
                })
            }),
            Property::always("who trains and has a replica left goes on at the next tick", |_, world: &World| {
                let survives = world.core.executors_of(&job_id()).any(|(_, executor)| executor.can_recover());
                let trains = matches!(job(&world.core).phase, JobPhase::Running(..)) && survives && world.could_train();
                let awaited = job(&world.core).active().is_some_and(|active| !active.left.is_empty());
                !trains || world.goes_on(if awaited { &[LEFT_GRACE_MS] } else { &[0] })
            }),
            Property::always("who could train does so when time passes", |_, world: &World| {
                let late = LEFT_GRACE_MS + READY_DEADLINE_MS;
                !world.could_train() || world.goes_on(&[0, LEFT_GRACE_MS, late, late + BACKOFF_MS_MAX])
            }),
            Property::sometimes("a generation recovers", |_, world: &World| world.seen.contains(&Seen::Recovery)),
            Property::sometimes("a generation switches", |_, world: &World| world.seen.contains(&Seen::Switch)),
            Property::sometimes("a deadline is missed", |_, world: &World| world.seen.contains(&Seen::Deadline)),
            Property::sometimes("all replicas are lost", |case: &Case, world: &World| {
                case.faults < case.slots || world.seen.contains(&Seen::Restart)
            }),
            Property::sometimes("a member departs and the rest switches", |_, world: &World| {
                world.seen.is_superset(&BTreeSet::from([Seen::Departure, Seen::Switch]))
            }),
        ]
    }
}

#[test]
fn two_slots() {
    let case = Case { min: 1, slots: 2, faults: 2, passes: 1, signals: 2 };
    explore("one to two workers, two faults, a long wait, a slot taken back", case);
}

#[test]
fn three_slots() {
    let case = Case { min: 2, slots: 3, faults: 2, passes: 1, signals: 1 };
    explore("two to three workers, two faults, a long wait", case);
}
