//! An executor's process: the real member machine, and what it asks for done on hashes instead of numbers. Everything that is computed is
//! compared with what one process alone would have computed.

use crate::net::{ConnId, Packet};
use crate::numbers::{self, Element, PARAMETERS, PIECE, REPLICA};
use crate::schedule::Setup;
use crate::store;
use crate::time::At;
use crate::world::{Body, Event, Input, Pid, World};
use events_schema::control::{ALIVE_INTERVAL_MS, FromExecutor, STOPPED_STATUS, STORE_STATUS, ToExecutor, WaitsFor};
use events_schema::job::Length;
use events_schema::orders::JobOrder;
use events_schema::report::Report;
use events_schema::stride::Stride;
use events_schema::tree::Node;
use events_schema::{ExecutorId, Generation, Rank, Step};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use workers_agent_core::ProcessEnd;
use workers_member::{
    Action, Bulk, Config, Done, Exit, GradientFrom, In, Kind, Member, Need, Out, STORE_PATIENCE_FACTOR, StateTransfer,
    SumOp, Unit,
};
use workers_session::{Peer, RankMetrics, Tag};

/// Exit status of an executor that ends because no member has a replica.
const STATUS_NO_REPLICA: i32 = 3;
/// Of one that found replicas different.
const STATUS_DIVERGED: i32 = 6;
/// How long computing a checksum takes.
const CHECKSUM_US: u64 = 2_000;
/// Making room for a growth takes so long.
const ROOM_US: u64 = 100_000;

/// An executor.
#[derive(Debug)]
pub struct Executor {
    pub id: ExecutorId,
    pub slot: u16,
    pub agent: Pid,
    pub member: Member<Vec<Element>>,
    /// Built, and reachable for its peers.
    pub listens: bool,
    /// Set when its process has ended; it is reaped a little later.
    pub end: Option<ProcessEnd>,
    /// The next unit never ends.
    pub hangs: bool,
    /// Since when it cannot go on without the store.
    pub store_since: Option<At>,
    /// The data that each rank has, by their number.
    pub blocks: BTreeMap<Rank, u64>,
    /// A bit of its job has flipped in this run, here or elsewhere: what it computes may be wrong, and is not looked at but where it is saved.
    pub spoiled: bool,
    order: JobOrder,
    /// What its agent said while it was built.
    unread: Vec<ToExecutor>,
    /// What it does not hear while it computes, if it is as it once was.
    unheard: Vec<In<Vec<Element>>>,
    unit: bool,
    sums: BTreeMap<Node, Vec<Element>>,
    total: Vec<Option<Element>>,
    pub replica: Vec<Element>,
    pub step: Option<Step>,
    gradient: Option<Vec<Element>>,
    supply: Option<(Need, Vec<Option<Element>>)>,
    loaded: Option<Vec<Element>>,
    links: BTreeMap<Peer, ConnId>,
    dialed: BTreeMap<Pid, Peer>,
}

impl Executor {
    /// A process that has just begun.
    #[must_use]
    pub fn new(setup: &Setup, id: &ExecutorId, slot: u16, agent: Pid, order: &JobOrder) -> Self {
        let Length::Steps(steps_total) = order.spec.length else { unreachable!("jobs of the world count steps") };
        let config = Config {
            job: id.job.clone(),
            me: Peer(id.number),
            workers: order.spec.workers.max,
            determinism: order.spec.determinism,
            steps_total,
            steps_per_epoch: steps_total,
            rows: order.dataset.as_ref().map_or(0, |dataset| dataset.rows),
            batch_size: order.spec.batch_size,
            checkpoint: order.spec.checkpoint.every,
            compare_every: order.spec.compare_every_steps,
            restarts: order.restarts,
            store_patience: Duration::from_millis(order.spec.store_patience_ms.ms()),
            evaluation: None,
            gradient_len: PARAMETERS,
            compute_len: PARAMETERS,
            replica_len: REPLICA,
            behind_max: setup.behind_max(),
            piece_elements: PIECE,
        };
        Self {
            id: id.clone(),
            slot,
            agent,
            member: Member::new(config),
            listens: false,
            end: None,
            hangs: false,
            store_since: None,
            blocks: BTreeMap::new(),
            spoiled: false,
            order: order.clone(),
            unread: Vec::new(),
            unheard: Vec::new(),
            unit: false,
            sums: BTreeMap::new(),
            total: Vec::new(),
            replica: Vec::new(),
            step: None,
            gradient: None,
            supply: None,
            loaded: None,
            links: BTreeMap::new(),
            dialed: BTreeMap::new(),
        }
    }

    /// Its number within the job.
    #[must_use]
    pub fn peer(&self) -> Peer {
        Peer(self.id.number)
    }

    /// How long it waits for the store before it ends by itself.
    #[must_use]
    pub fn store_patience_ms(&self) -> u64 {
        self.order.spec.store_patience_ms.ms() * u64::from(STORE_PATIENCE_FACTOR)
    }

    /// Whether the replica, or the gradient it lacks, is on its way.
    #[must_use]
    pub fn is_copying(&self) -> bool {
        self.supply.is_some()
    }

    /// Of the replica, or of one that is still arriving.
    fn parameters(&self) -> Option<Vec<Element>> {
        match &self.supply {
            Some((_, supply)) => supply[..PARAMETERS].iter().copied().collect(),
            None => self.replica.get(..PARAMETERS).map(<[Element]>::to_vec),
        }
    }
}

impl World {
    /// An executor whose process has not ended.
    #[must_use]
    pub fn executor(&self, pid: Pid) -> Option<&Executor> {
        match &self.processes.get(&pid)?.body {
            Body::Executor(executor) => Some(executor).filter(|executor| executor.end.is_none()).map(|e| &**e),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub fn executor_mut(&mut self, pid: Pid) -> Option<&mut Executor> {
        match &mut self.processes.get_mut(&pid)?.body {
            Body::Executor(executor) => Some(executor).filter(|executor| executor.end.is_none()).map(|e| &mut **e),
            _ => None,
        }
    }

    /// Whom an executor tried to reach.
    #[must_use]
    pub fn peers_of(&self, pid: Pid) -> BTreeMap<Pid, Peer> {
        self.executor(pid).map(|executor| executor.dialed.clone()).unwrap_or_default()
    }

    /// A process begins to build its model.
    pub fn begin_executor(&mut self, pid: Pid) {
        let times = self.slowness(pid);
        let us = self.schedule.setup.build_ms * 1_000 * times;
        let job = self.executor(pid).map(|executor| executor.id.job.clone());
        let spoiled = job.is_some_and(|job| self.checks.flipped.contains(&job));
        self.executor_mut(pid).into_iter().for_each(|executor| executor.spoiled = spoiled);
        self.send_in(us, pid, Input::Built);
    }

    fn slowness(&self, pid: Pid) -> u64 {
        let Some(place) = self.processes.get(&pid).map(|process| process.place) else { return 1 };
        let host = &self.hosts[usize::from(place)];
        let of_type = self.schedule.setup.slow_type.map_or(1, |slow| slow.times_at(place));
        if self.now() < host.slow_until { host.slow.max(1) * of_type } else { of_type }
    }

    /// Something for an executor.
    pub fn feed_executor(&mut self, pid: Pid, input: Input) {
        let (element_bytes, gives_store_up) = (self.schedule.setup.element_bytes, self.mutants.gives_store_up());
        let Some(executor) = self.executor_mut(pid) else { return };
        match input {
            Input::Frame(frame) if !executor.listens => executor.unread.push(frame),
            Input::Frame(frame) => self.on_frame(pid, frame),
            Input::Built => self.on_built(pid),
            Input::Alive => {
                let mut progress = executor.member.progress();
                // The member counts four bytes an element; here each stands for more.
                progress.bytes_done = progress.bytes_done / 4 * element_bytes;
                if executor.store_since.is_some() && !gives_store_up {
                    progress.waits_for = WaitsFor::Store;
                }
                self.say_to_agent(pid, FromExecutor::Progress(progress));
                self.send_in(ALIVE_INTERVAL_MS * 1_000, pid, Input::Alive);
            }
            Input::Stored(job) => self.on_stored(pid, job),
            Input::Member(input) => self.feed_member(pid, input),
            Input::Cell(_) | Input::Agent(_) => {}
        }
    }

    fn on_built(&mut self, pid: Pid) {
        let Some(place) = self.processes.get(&pid).map(|process| process.place) else { return };
        let bytes = |elements: usize| Some(elements as u64 * self.schedule.setup.element_bytes);
        let weighs = !self.schedule.setup.weightless_sums;
        let (replica_bytes, gradient_bytes) = (bytes(REPLICA), bytes(PARAMETERS).filter(|_| weighs));
        let Some(executor) = self.executor_mut(pid) else { return };
        executor.listens = true;
        let (id, order) = (executor.id.clone(), executor.order.clone());
        let unread = std::mem::take(&mut executor.unread);
        let address = format!("{place}:{}", pid.0);
        let ready = Report::ExecutorReady { executor: id, address, class: None, replica_bytes, gradient_bytes };
        self.say_to_agent(pid, FromExecutor::Report(ready));
        self.send_in(0, pid, Input::Alive);
        self.on_frame(pid, ToExecutor::Order(Box::new(order)));
        unread.into_iter().for_each(|frame| self.on_frame(pid, frame));
    }

    fn on_frame(&mut self, pid: Pid, frame: ToExecutor) {
        match frame {
            ToExecutor::Start(_) => {}
            ToExecutor::Order(order) => {
                self.feed_member(pid, In::Park(order.park));
                if let Some(proposal) = order.proposal {
                    self.feed_member(pid, In::Proposal(Box::new(proposal)));
                }
            }
            ToExecutor::Leave { within_ms } => self.feed_member(pid, In::Leave(Duration::from_millis(within_ms))),
            ToExecutor::Deadline { within_ms } => {
                self.feed_member(pid, In::Deadline(Duration::from_millis(within_ms)));
            }
            ToExecutor::Trace(_) | ToExecutor::Share { .. } => {}
            ToExecutor::Stop => self.end_executor(pid, ProcessEnd::Exited(0)),
        }
    }

    /// The machine takes an input, and computes if nothing else is to be done.
    pub fn feed_member(&mut self, pid: Pid, input: In<Vec<Element>>) {
        let now = Duration::from_micros(self.clock(pid).us(self.now()));
        let (done, hears_nothing) = (matches!(input, In::Done(_)), self.mutants.hears_nothing());
        let Some(executor) = self.executor_mut(pid) else { return };
        if hears_nothing && executor.unit && !done {
            return executor.unheard.push(input);
        }
        let mut inputs = VecDeque::from([input]);
        if done {
            executor.unit = false;
            inputs.extend(std::mem::take(&mut executor.unheard));
        }
        while let Some(input) = inputs.pop_front() {
            let Some(executor) = self.executor_mut(pid) else { return };
            let free = matches!(input, In::Free);
            let outs = executor.member.handle(now, input);
            let nothing = outs.is_empty();
            for out in outs {
                self.perform_member(pid, out);
            }
            let Some(executor) = self.executor_mut(pid) else { return };
            let at_rest = free && nothing;
            if inputs.is_empty() && !executor.unit && !at_rest {
                inputs.push_back(In::Free);
            }
        }
    }

    fn perform_member(&mut self, pid: Pid, out: Out<Vec<Element>>) {
        let Some(executor) = self.executor_mut(pid) else { return };
        match out {
            Out::Dial(peer, address) => {
                let Some((place, to)) = address.split_once(':') else { return };
                let (Ok(place), Ok(to)) = (place.parse(), to.parse().map(Pid)) else { return };
                executor.dialed.insert(to, peer);
                let us = self.schedule.setup.latency_us;
                self.bus.put(self.bus.now().plus_us(us), Event::Dial { from: pid, to, place, attempt: 1 });
            }
            Out::Use(link) => drop(executor.links.insert(link.peer, ConnId(link.number))),
            Out::Cut(link, cause) => {
                if executor.links.get(&link.peer) == Some(&ConnId(link.number)) {
                    executor.links.remove(&link.peer);
                }
                if cause != workers_member::Cause::Replaced {
                    self.found("no correct member is taken for another", format!("{pid:?} cut {link:?}: {cause}"));
                }
                self.hang_up(pid, ConnId(link.number));
            }
            Out::Say(to, envelope) => self.post_to(pid, to, Packet::Say(envelope)),
            Out::Send(transfer) => self.send_state(pid, transfer),
            Out::SendAside { to, tag, step, ranges } => {
                for (to, range) in to.iter().flat_map(|to| ranges.iter().map(move |range| (*to, range.clone()))) {
                    self.send_state(pid, StateTransfer { to, of: Need::Replica, tag, step, range });
                }
            }
            Out::Reduce(tag, step, action) => self.reduce(pid, tag, step, action),
            Out::Begin { .. } => {
                executor.total = vec![None; PARAMETERS];
                self.check_membership(pid);
            }
            Out::Join(node) => {
                let halves = node.children();
                let parts = halves.and_then(|(l, r)| Some((executor.sums.remove(&l)?, executor.sums.remove(&r)?)));
                match parts {
                    Some((left, right)) => drop(executor.sums.insert(node, numbers::add(&left, &right))),
                    None => self.found("what is joined is there", format!("{pid:?} {node:?}")),
                }
            }
            Out::Release(node) => drop(executor.sums.remove(&node)),
            Out::MakeMean { .. } => executor.gradient = std::mem::take(&mut executor.total).into_iter().collect(),
            Out::Compute(unit) => self.compute(pid, unit),
            Out::Load(generation, entry) => self.load(pid, generation, &entry),
            Out::Adopt(step) => {
                (executor.replica, executor.step, executor.gradient) =
                    (executor.loaded.take().unwrap_or_else(numbers::initial), Some(step), None);
                self.check_replica(pid, step);
            }
            Out::Expect(need) => {
                let len = if need == Need::Replica { REPLICA } else { PARAMETERS };
                if need == Need::Replica {
                    (executor.step, executor.gradient) = (None, None);
                }
                executor.supply = Some((need, vec![None; len]));
            }
            Out::Fill { offset, payload } => {
                let Some((_, supply)) = executor.supply.as_mut() else { return };
                let twice = supply[offset..].iter_mut().zip(payload).any(|(place, e)| place.replace(e).is_some());
                if twice {
                    self.found("every element of a copy comes once", format!("{pid:?} at {offset}"));
                }
            }
            Out::Supplied(step) => {
                let whole = executor.supply.take().and_then(|(_, s)| s.into_iter().collect::<Option<Vec<Element>>>());
                (executor.replica, executor.step) = (whole.unwrap_or_default(), Some(step));
                self.check_replica(pid, step);
            }
            Out::Unexpect => executor.supply = None,
            Out::MakeRoom(_) => self.send_in(ROOM_US, pid, Input::Member(In::RoomMade)),
            Out::Warm(generation, ..) => self.send_in(50_000, pid, Input::Member(In::Warmed(generation))),
            Out::Prefetch(..) => {}
            Out::Write { task, .. } => self.write(pid, task),
            Out::Checksum(at) => {
                if executor.step != Some(at.step) {
                    let told = format!("{pid:?} at {:?}: {at:?}", executor.step);
                    return self.found("a checksum is of its boundary's step", told);
                }
                let replica = executor.replica.clone();
                let (checksum, took) = (self.mutants.checksum(&replica), Duration::from_micros(CHECKSUM_US));
                self.send_in(CHECKSUM_US, pid, Input::Member(In::Checksum { at, checksum, took }));
            }
            Out::Report(mut report) => {
                // The member counts four bytes to an element; here one stands for more.
                if let Report::LinkMeasured { bytes_per_s, .. } = &mut report {
                    *bytes_per_s = *bytes_per_s / 4 * self.schedule.setup.element_bytes;
                }
                self.say_to_agent(pid, FromExecutor::Report(report));
            }
            Out::Telemetry(telemetry) => self.say_to_agent(pid, FromExecutor::Telemetry(telemetry)),
            Out::WakeAt(at) => self.wake_at(pid, at.as_micros() as u64),
            Out::Exit(exit) => {
                let status = match exit {
                    Exit::Left => 0,
                    Exit::LeftEarly => STOPPED_STATUS,
                    Exit::NoReplica => STATUS_NO_REPLICA,
                    Exit::NotSaved => return self.end_for_store(pid, STORE_STATUS),
                    Exit::Diverged => STATUS_DIVERGED,
                };
                self.end_executor(pid, ProcessEnd::Exited(status));
            }
        }
    }

    fn hang_up(&mut self, pid: Pid, conn: ConnId) {
        let end = self.net.conn(conn).and_then(|conn| (0..2).find(|end| conn.ends[*end].pid == pid));
        if let Some(end) = end {
            self.close(conn, end, None, true);
        }
    }

    fn post_to(&mut self, from: Pid, to: Peer, packet: Packet) {
        let Some(conn) = self.executor(from).and_then(|executor| executor.links.get(&to).copied()) else { return };
        let end = self.net.conn(conn).and_then(|conn| (0..2).find(|end| conn.ends[*end].pid == from));
        if let Some(end) = end {
            self.post(conn, end, packet);
        }
    }

    fn post_bulk(&mut self, from: Pid, to: Peer, bulk: Bulk, elements: &[Element]) {
        for (index, piece) in elements.chunks(PIECE).enumerate() {
            let offset = bulk.offset + (index * PIECE) as u64;
            let bulk = Bulk { offset, elements: piece.len(), ..bulk };
            self.post_to(from, to, Packet::Bulk(bulk, piece.to_vec()));
        }
    }

    fn send_state(&mut self, pid: Pid, transfer: StateTransfer) {
        let Some(executor) = self.executor(pid) else { return };
        let (kind, source) = match transfer.of {
            Need::Replica => (Kind::Replica, executor.replica.get(transfer.range.clone())),
            Need::Gradient => (Kind::Gradient, executor.gradient.as_ref().and_then(|g| g.get(transfer.range.clone()))),
        };
        // A gradient is sent before it is applied.
        let leads_there = transfer.of == Need::Gradient && executor.step < Some(transfer.step);
        let fits = leads_there || executor.step == Some(transfer.step);
        let Some(elements) = source.filter(|_| fits).map(<[Element]>::to_vec) else {
            let at = executor.step.unwrap_or(Step(0));
            let detail = format!("{pid} is at {at} and sends to {} of step {}", transfer.to, transfer.step);
            return self.found("only what is of the entered step is sent", detail);
        };
        let offset = transfer.range.start as u64;
        let bulk = Bulk { kind, tag: transfer.tag, step: transfer.step, offset, elements: 0 };
        self.post_bulk(pid, transfer.to, bulk, &elements);
    }

    fn reduce(&mut self, pid: Pid, tag: Tag, step: Step, action: Action<Vec<Element>>) {
        let Some(executor) = self.executor_mut(pid) else { return };
        let bulk = |kind, offset: usize| Bulk { kind, tag, step, offset: offset as u64, elements: 0 };
        match action {
            Action::Send { to, node, range } => {
                let elements = executor.sums.get(&node).map(|sum| sum[range.clone()].to_vec()).unwrap_or_default();
                self.post_bulk(pid, to, bulk(Kind::Partial(node), range.start), &elements);
            }
            Action::Sum { kind, range, operations, to } => {
                let mut stack: Vec<Vec<Element>> = Vec::new();
                for operation in operations {
                    match operation {
                        SumOp::Own(node) => {
                            let own = executor.sums.get(&node).map(|sum| sum[range.clone()].to_vec());
                            stack.push(own.unwrap_or_default());
                        }
                        SumOp::Foreign(_, payload) => stack.push(payload),
                        SumOp::Add => {
                            if let (Some(right), Some(left)) = (stack.pop(), stack.pop()) {
                                stack.push(numbers::add(&left, &right));
                            }
                        }
                    }
                }
                let sum = stack.pop().unwrap_or_default();
                let whole = kind == Kind::Reduced;
                if whole {
                    executor.total[range.clone()].iter_mut().zip(&sum).for_each(|(place, e)| *place = Some(*e));
                }
                let (job, spoiled) = (executor.id.job.clone(), executor.spoiled);
                let along_ranks = self.made(&job).is_none();
                if whole && !spoiled && along_ranks && self.reference(&job).sum(step)[range.clone()] != sum[..] {
                    self.found(
                        "sums are added in the order of the tree",
                        format!("{pid:?} {tag} step {step} {range:?}"),
                    );
                }
                to.into_iter().for_each(|to| self.post_bulk(pid, to, bulk(kind, range.start), &sum));
            }
            Action::Place { offset, payload, to } => {
                executor.total[offset..].iter_mut().zip(&payload).for_each(|(place, e)| *place = Some(*e));
                to.into_iter().for_each(|to| self.post_bulk(pid, to, bulk(Kind::Reduced, offset), &payload));
            }
            Action::Whole(node) => {
                executor.total = executor.sums.remove(&node).unwrap_or_default().into_iter().map(Some).collect();
            }
        }
    }

    fn compute(&mut self, pid: Pid, unit: Unit) {
        let (times, (unit_us, update_us)) = (self.slowness(pid), self.unit_us(pid));
        let Some(executor) = self.executor_mut(pid) else { return };
        executor.unit = true;
        let hangs = std::mem::take(&mut executor.hangs);
        let (unit_us, update_us) = (unit_us * times, update_us * times);
        let at = if let Unit::Gradient { step, rank, .. } = unit { Some((step, rank)) } else { None };
        let (done, us) = match unit {
            Unit::Evaluate { rank, .. } => {
                (Done::Evaluated(RankMetrics { loss: 1.0, correct: 1, count: 2, ..RankMetrics::none(rank) }), unit_us)
            }
            Unit::Gradient { step, stride, rank } => {
                let Some(parameters) = executor.parameters() else {
                    return self.found("a gradient has its parameters", format!("{pid:?} step {step}"));
                };
                let ranks = executor.member.workers_of(rank);
                let gradient = numbers::gradient_of(step, stride, &ranks, &parameters);
                executor.sums.insert(Node { first: rank.0, count: 1 }, gradient);
                let (job, spoiled) = (executor.id.job.clone(), executor.spoiled);
                if !spoiled && !self.are_parameters(&job, step, &parameters) {
                    self.found("a gradient is of its step's parameters", format!("{pid:?} step {step} rank {rank}"));
                }
                if hangs {
                    self.note_hung(pid, at);
                }
                return self.read_and_compute(pid, step, rank, (!hangs).then_some(unit_us.max(1)));
            }
            Unit::Update { step, stride, from } => {
                self.update(pid, (step, stride), from);
                (Done::Updated, update_us)
            }
        };
        if hangs {
            self.note_hung(pid, at);
        } else {
            self.send_in(us.max(1), pid, Input::Member(In::Done(done)));
        }
    }

    fn update(&mut self, pid: Pid, (step, stride): (Step, Stride), from: GradientFrom) {
        let Some(executor) = self.executor_mut(pid) else { return };
        let at = executor.step;
        let mean: Option<Vec<Element>> = match from {
            GradientFrom::Sum => executor.gradient.clone(),
            GradientFrom::Supply => executor.supply.take().and_then(|(_, supply)| supply.into_iter().collect()),
        };
        if at != Some(step) {
            return self.found("no replica skips a step or takes one twice", format!("{pid:?} at {at:?}, step {step}"));
        }
        let Some(mean) = mean else {
            return self.found("no update with a hole", format!("{pid:?} step {step}"));
        };
        let job = executor.id.job.clone();
        let (spoiled, membership) = (executor.spoiled, executor.member.session().membership().cloned());
        let before = executor.replica.clone();
        numbers::update(&mut executor.replica, &mean, step);
        let done = stride.end(step);
        (executor.step, executor.gradient) = (Some(done), Some(mean.clone()));
        if let (Some(made), Some(membership), GradientFrom::Sum) = (self.made(&job), membership, from)
            && !spoiled
            && !made.make(&membership, stride, &before, &mean)
        {
            self.found("without determinism a sum is of all members' gradients", format!("{pid:?} step {step}"));
        }
        self.check_replica(pid, done);
        if from == GradientFrom::Sum {
            self.note_made(pid);
        }
        self.step_is_done(&job, step, done);
    }

    fn check_replica(&mut self, pid: Pid, step: Step) {
        let sound = self.executor(pid).filter(|executor| !executor.spoiled);
        let Some((job, replica)) = sound.map(|e| (e.id.job.clone(), e.replica.clone())) else { return };
        if !self.is_replica(&job, step, &replica) {
            self.found("replicas of one step are equal", format!("{pid:?} of {job} at step {step}"));
        }
    }

    /// A bit of an executor's replica flips, as in memory that fails. From then on until its job begins anew nobody knows what that has spoiled.
    pub fn flip(&mut self, pid: Pid, element: u64) {
        let Some(executor) = self.executor_mut(pid).filter(|executor| !executor.replica.is_empty()) else { return };
        let len = executor.replica.len() as u64;
        executor.replica[(element % len) as usize] ^= 1 << (element % 61);
        let job = executor.id.job.clone();
        self.checks.flipped.insert(job.clone());
        for pid in self.processes.keys().copied().collect::<Vec<_>>() {
            let of_job = self.executor_mut(pid).filter(|executor| executor.id.job == job);
            of_job.into_iter().for_each(|executor| executor.spoiled = true);
        }
    }

    fn check_membership(&mut self, pid: Pid) {
        let Some(executor) = self.executor(pid) else { return };
        let Some(membership) = executor.member.session().membership().cloned() else { return };
        let (job, whole) = (executor.id.job.clone(), membership.is_whole(executor.order.spec.workers.max));
        let known = self.checks.membership(&job, &membership);
        if !whole || !known {
            self.found("members of one tag agree who is in it", format!("{pid:?} of {job}: {membership:?}"));
        }
    }

    /// What the store did for an executor.
    pub fn loaded(&mut self, pid: Pid, generation: Generation, step: Step, replica: Vec<Element>) {
        if let Some(executor) = self.executor_mut(pid) {
            executor.loaded = Some(replica);
            self.feed_member(pid, In::Loaded(generation, step));
        }
    }

    /// The replica that an executor holds, to be written.
    #[must_use]
    pub fn replica_of(&self, pid: Pid) -> Option<store::Snapshot> {
        let executor = self.executor(pid)?;
        Some(store::Snapshot { job: executor.id.job.clone(), step: executor.step?, replica: executor.replica.clone() })
    }
}
