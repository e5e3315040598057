//! Whole executors on virtual time: each is the machine and a shell whose elements are hashes. The "sum" of two is neither associative nor
//! commutative, and a gradient depends on the replica, so that a wrong order, a wrong version or a hole shows in every later bit.
//!
//! Asserts what must hold after every event; what a test is about stands in `generations.rs`.

mod histories;
mod numbers;
mod reduction;
mod running;
mod wires;

pub use running::{begin, begin_as, begun};

use events_schema::control::WaitsFor;
use events_schema::fact::{Entry, Member as Seated, Proposal};
use events_schema::job::{CheckpointInterval, Determinism};
use events_schema::report::Report;
use events_schema::stride::Stride;
use events_schema::tree::{Node, place_on};
use events_schema::{Digest, ExecutorId, Generation, JobId, Rank, Step, TimeMs, WriterToken};
use numbers::{Element, PARAMETERS, REPLICA, Random, Reference, add, gradient_of, initial};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;
use workers_member::{Bulk, Config, Done, Exit, GradientFrom, In, Kind, Member, Need, Out, Saved, Task, Unit, Written};
use workers_session::{Membership, PartDigests, Peer, RankMetrics, ReplicaChecksum, ShardWritten, Tag};

const PIECE: usize = 4;
/// Of a gradient, that is final at once: neither of a piece's length nor aligned with any.
const PART: usize = 3;
/// Size of any control message, as the machine is told.
const MESSAGE_BYTES: usize = 200;

#[derive(Debug, Clone)]
enum Packet {
    Say(workers_session::Envelope),
    Bulk(Bulk, Vec<Element>),
}

/// One process: the machine, its buffers, and what has happened to it that it has not looked at.
pub struct Shell {
    pub member: Member<Vec<Element>>,
    sums: BTreeMap<Node, Vec<Element>>,
    total: Vec<Option<Element>>,
    replica: Vec<Element>,
    pub step: Option<Step>,
    gradient: Option<Vec<Element>>,
    supply: Option<(Need, Vec<Option<Element>>)>,
    inbox: VecDeque<In<Vec<Element>>>,
    /// A unit that is being computed: only what overtakes is handled meanwhile.
    unit: Option<Done>,
    /// The gradient of it, and where the stretches begin that are final, the next one last.
    computing: Option<(Node, Vec<Element>, Vec<usize>)>,
    /// What there is of sums that are not whole.
    begun: BTreeMap<Node, Vec<Option<Element>>>,
    idle: bool,
    wake: Option<Duration>,
    /// Links in use.
    links: BTreeMap<Peer, u64>,
    pub evaluated: BTreeSet<Step>,
}

impl Shell {
    pub fn replica(&self) -> &[Element] {
        &self.replica
    }

    /// Of the replica, or of one that is still arriving.
    fn parameters(&self) -> Vec<Element> {
        match &self.supply {
            Some((_, supply)) => supply[..PARAMETERS].iter().map(|e| e.unwrap()).collect(),
            None => self.replica[..PARAMETERS].to_vec(),
        }
    }

    /// A stretch of a sum, that may not be whole.
    fn stretch(&self, node: Node, range: Range<usize>) -> Vec<Element> {
        match self.sums.get(&node) {
            Some(sum) => sum[range].to_vec(),
            None => self.begun[&node][range].iter().map(|e| e.expect("only what is final is asked for")).collect(),
        }
    }

    fn begin(&mut self, node: Node, start: usize, elements: &[Element]) {
        let begun = self.begun.entry(node).or_insert_with(|| vec![None; PARAMETERS]);
        for (place, element) in begun[start..].iter_mut().zip(elements) {
            assert!(place.replace(*element).is_none(), "a stretch is final once");
        }
    }
}

pub struct World {
    pub random: Random,
    pub now: Duration,
    /// How many members went in the middle of a step.
    pub left_early: u32,
    /// Inputs that were handled while a unit was computed, before others that had come earlier.
    pub overtaken: u32,
    pub workers: u16,
    pub steps_total: u64,
    /// Newcomers follow, so many steps behind at the most.
    pub behind_max: Option<u64>,
    /// Messages that came before bulk that was sent before them.
    pub before_bulk: usize,
    /// How often a part of the replica was sent beside the steps.
    pub asides: u64,
    /// Parts of gradients that were sent before their sender applied them.
    pub ahead: u64,
    reference: Reference,
    pub determinism: Determinism,
    /// Whether updates take several steps at once, in each generation another number of them.
    pub strides: bool,
    /// Who computed a gradient of which step in which membership.
    computed: BTreeSet<(Peer, Tag, Step)>,
    /// Of a job without determinism: every replica that came of a whole sum, and in which memberships its steps were taken.
    made: BTreeMap<Vec<Element>, Vec<Tag>>,
    pub shells: BTreeMap<Peer, Shell>,
    dials: Vec<(Peer, Peer)>,
    /// Both ends and the number of every link that is not cut.
    links: BTreeMap<(Peer, Peer), u64>,
    links_made: u64,
    wires: BTreeMap<(Peer, Peer, u64), VecDeque<Packet>>,
    memberships: BTreeMap<Tag, Membership>,
    pub generation: u64,
    spawned: u32,
    pub newest: Step,
    pub lost: Vec<(Peer, Peer, Generation)>,
    /// Stretches of sums sent, and added up, while a gradient was computed.
    pub parts_sent: usize,
    pub parts_summed: usize,
    /// Pieces that members of a host summed for the owner of a chunk on another one.
    pub summed_for_others: usize,
    /// Members are on as many, in turns.
    pub hosts: u32,
    pub completed: Option<Step>,
    pub dissolved: bool,
    /// Whether somebody who held a replica was killed, and not let go: on its word, said before, another may leave with the last one.
    pub killed_with_replica: bool,
    /// One in so many needed writes fails; 0 for none.
    pub store_fails: usize,
}

impl World {
    pub fn new(seed: u64, workers: u16, steps_total: u64) -> Self {
        Self {
            random: Random(seed | 1),
            now: Duration::ZERO,
            left_early: 0,
            overtaken: 0,
            workers,
            steps_total,
            behind_max: if seed.is_multiple_of(3) { None } else { Some(6) },
            before_bulk: 0,
            asides: 0,
            ahead: 0,
            reference: Reference::new(workers, steps_total),
            determinism: Determinism::D1,
            strides: false,
            computed: BTreeSet::new(),
            made: [(initial(), Vec::new())].into(),
            shells: BTreeMap::new(),
            dials: Vec::new(),
            links: BTreeMap::new(),
            links_made: 0,
            wires: BTreeMap::new(),
            memberships: BTreeMap::new(),
            generation: 0,
            spawned: 0,
            newest: Step(0),
            lost: Vec::new(),
            parts_sent: 0,
            parts_summed: 0,
            summed_for_others: 0,
            hosts: 1 + (seed % 3) as u32,
            completed: None,
            dissolved: false,
            killed_with_replica: false,
            store_fails: 0,
        }
    }

    pub fn spawn(&mut self) -> Peer {
        let peer = Peer(self.spawned);
        self.spawned += 1;
        let config = self.config(peer);
        let shell = Shell {
            member: Member::new(config),
            sums: BTreeMap::new(),
            total: Vec::new(),
            replica: Vec::new(),
            step: None,
            gradient: None,
            supply: None,
            inbox: VecDeque::new(),
            unit: None,
            computing: None,
            begun: BTreeMap::new(),
            idle: false,
            wake: None,
            links: BTreeMap::new(),
            evaluated: BTreeSet::new(),
        };
        self.shells.insert(peer, shell);
        peer
    }

    pub fn config(&self, peer: Peer) -> Config {
        // Where updates end early less often, the others are longer.
        let every = if self.strides { [7, 10, 12] } else { [5, 3, 4] };
        Config {
            job: JobId::parse("job-a").unwrap(),
            me: peer,
            workers: self.workers,
            determinism: self.determinism,
            steps_total: self.steps_total,
            steps_per_epoch: every[0],
            rows: 40,
            batch_size: 2,
            checkpoint: CheckpointInterval::Steps(every[1]),
            compare_every: if self.strides { None } else { Some(2) },
            restarts: 0,
            store_patience: Duration::from_secs(1_800),
            evaluation: Some(workers_member::Evaluation { every_steps: every[2], parts: 2 }),
            gradient_len: PARAMETERS,
            compute_len: PARAMETERS,
            replica_len: REPLICA,
            behind_max: self.behind_max,
            piece_elements: PIECE,
        }
    }

    pub fn tell(&mut self, peer: Peer, input: In<Vec<Element>>) {
        if let Some(shell) = self.shells.get_mut(&peer) {
            shell.inbox.push_back(input);
        }
    }

    pub fn propose(&mut self, entry: Entry, peers: &[Peer], also_to: &[Peer]) {
        self.generation += 1;
        let id = |p: Peer| ExecutorId { job: JobId::parse("job-a").unwrap(), number: p.0 };
        let host = |p: &Peer| p.0 % self.hosts;
        let shares = place_on(self.workers, &peers.iter().map(|p| host(p) as u16).collect::<Vec<_>>());
        let address = |p: &Peer| format!("h{}:{}", host(p), p.0);
        let seat = |(p, ranks): (&Peer, Vec<Rank>)| Seated { executor: id(*p), address: address(p), ranks };
        let members = peers.iter().zip(shares).map(seat).collect();
        // As the controller does: at a boundary somebody leads who holds the replica.
        let here: Vec<Peer> = match (&entry, self.in_force()) {
            (Entry::Switch { .. }, Some(current)) => peers.iter().copied().filter(|peer| current.has(*peer)).collect(),
            _ => Vec::new(),
        };
        let leaders = if here.is_empty() { peers } else { &here };
        let leader = id(leaders[self.random.below(leaders.len())]);
        let stride = Stride::of(if self.strides { 1 + self.random.below(5) as u64 } else { 1 });
        let generation = Generation(self.generation);
        let proposal = Proposal { generation, entry, members, leader, deadline: TimeMs(0), stride };
        for peer in peers.iter().chain(also_to).copied().collect::<BTreeSet<_>>() {
            self.tell(peer, In::Proposal(Box::new(proposal.clone())));
        }
    }

    pub fn alive(&self) -> Vec<Peer> {
        self.shells.keys().copied().collect()
    }

    /// The newest membership that any living member is in.
    pub fn in_force(&self) -> Option<Membership> {
        self.shells.values().filter_map(|s| s.member.session().membership()).max_by_key(|m| m.tag).cloned()
    }

    /// Whatever it is at.
    pub fn kill(&mut self, peer: Peer) {
        self.killed_with_replica |= self.shells.get(&peer).is_some_and(|s| s.member.session().holding().is_some());
        self.end(peer);
    }

    fn end(&mut self, peer: Peer) {
        self.shells.remove(&peer);
        self.dials.retain(|(from, _)| *from != peer);
        let ended: Vec<(Peer, Peer)> = self.links.keys().filter(|l| l.0 == peer || l.1 == peer).copied().collect();
        for (one, other) in ended {
            self.cut(one, other, usize::MAX);
        }
    }

    /// Ends a link. Of what was under way to each end at most `kept` messages arrive; then each end hears of it.
    pub fn cut(&mut self, one: Peer, other: Peer, kept: usize) {
        let ends = (one.min(other), one.max(other));
        let Some(number) = self.links.remove(&ends) else { return };
        for (from, to) in [(one, other), (other, one)] {
            if kept < usize::MAX {
                let kept = self.random.below(kept + 1);
                self.wires.entry((from, to, number)).or_default().truncate(kept);
            }
        }
    }

    fn post(&mut self, from: Peer, to: Peer, packet: Packet) {
        let number = self.shells[&from].links.get(&to).copied();
        let ends = (from.min(to), from.max(to));
        if let Some(number) = number.filter(|n| self.links.get(&ends) == Some(n)) {
            self.wires.entry((from, to, number)).or_default().push_back(packet);
        }
    }

    /// One random event; `false` when nothing can happen before time goes on.
    pub fn turn(&mut self) -> bool {
        #[derive(Clone, Copy)]
        enum Choice {
            Inbox(Peer),
            Overtake(Peer, usize),
            Unit(Peer),
            Part(Peer),
            Free(Peer),
            Wire(Peer, Peer, u64),
            BeforeBulk(Peer, Peer, u64),
            Dial(usize),
        }
        let mut choices = Vec::new();
        for (&peer, shell) in &self.shells {
            let overtakes = shell.inbox.iter().position(|input| shell.unit.is_some() && shell.member.overtakes(input));
            choices.extend(overtakes.map(|index| Choice::Overtake(peer, index)));
            match &shell.unit {
                Some(_) if shell.computing.as_ref().is_some_and(|(.., parts)| !parts.is_empty()) => {
                    choices.push(Choice::Part(peer));
                }
                Some(_) => choices.push(Choice::Unit(peer)),
                None if !shell.inbox.is_empty() => choices.push(Choice::Inbox(peer)),
                None if !shell.idle => choices.push(Choice::Free(peer)),
                None => {}
            }
        }
        // A wire that is empty and cut has its end still to tell.
        let tells = |key: &(Peer, Peer, u64), wire: &VecDeque<Packet>| {
            !wire.is_empty() || self.links.get(&(key.0.min(key.1), key.0.max(key.1))) != Some(&key.2)
        };
        let wires = self.wires.iter().filter(|(key, wire)| tells(key, wire));
        choices.extend(wires.map(|(key, _)| Choice::Wire(key.0, key.1, key.2)));
        let ahead = self.wires.iter().filter(|(_, wire)| wires::before_bulk(wire).is_some());
        choices.extend(ahead.map(|(key, _)| Choice::BeforeBulk(key.0, key.1, key.2)));
        choices.extend((0..self.dials.len()).map(Choice::Dial));
        if choices.is_empty() {
            return false;
        }
        match choices[self.random.below(choices.len())] {
            Choice::Inbox(peer) => {
                let input = self.shells.get_mut(&peer).unwrap().inbox.pop_front().unwrap();
                self.feed(peer, input);
            }
            Choice::Overtake(peer, index) => {
                let input = self.shells.get_mut(&peer).unwrap().inbox.remove(index).unwrap();
                self.overtaken += 1;
                self.feed(peer, input);
            }
            Choice::Unit(peer) => {
                let shell = self.shells.get_mut(&peer).unwrap();
                let done = shell.unit.take().unwrap();
                shell.begun.clear();
                if let Some((leaf, gradient, _)) = shell.computing.take() {
                    assert!(shell.sums.insert(leaf, gradient).is_none(), "a gradient that was there is computed again");
                }
                self.feed(peer, In::Done(done));
            }
            Choice::Part(peer) => self.part(peer),
            Choice::Free(peer) => self.feed(peer, In::Free),
            Choice::Wire(from, to, number) => {
                let packet = self.wires.get_mut(&(from, to, number)).and_then(VecDeque::pop_front);
                self.deliver(from, to, number, packet);
            }
            Choice::BeforeBulk(from, to, number) => {
                let wire = self.wires.get_mut(&(from, to, number)).unwrap();
                let packet = wires::before_bulk(wire).and_then(|index| wire.remove(index));
                self.before_bulk += 1;
                self.deliver(from, to, number, packet);
            }
            Choice::Dial(index) => self.dial(index),
        }
        true
    }

    fn feed(&mut self, peer: Peer, input: In<Vec<Element>>) {
        let Some(shell) = self.shells.get_mut(&peer) else { return };
        let free = matches!(input, In::Free);
        let out = shell.member.handle(self.now, input);
        shell.idle = free && out.is_empty();
        let progress = shell.member.progress();
        if let WaitsFor::Peers(of) = &progress.waits_for {
            assert!(!of.contains(&peer.0), "nobody waits for itself: {progress:?}");
        }
        for out in out {
            self.perform(peer, out);
        }
    }

    fn perform(&mut self, me: Peer, out: Out<Vec<Element>>) {
        let Some(shell) = self.shells.get_mut(&me) else { return };
        match out {
            Out::Dial(to, _) => self.dials.push((me, to)),
            Out::Use(link) => drop(shell.links.insert(link.peer, link.number)),
            Out::Cut(link, cause) => {
                assert!(cause == workers_member::Cause::Replaced, "correct members were taken for others: {cause}");
                if shell.links.get(&link.peer) == Some(&link.number) {
                    shell.links.remove(&link.peer);
                }
                let ends = (me.min(link.peer), me.max(link.peer));
                if self.links.get(&ends) == Some(&link.number) {
                    self.cut(me, link.peer, 3);
                }
            }
            Out::Say(to, envelope) => self.post(me, to, Packet::Say(envelope)),
            Out::Send(transfer) => {
                let (kind, source) = match transfer.of {
                    Need::Replica => (Kind::Replica, shell.replica.clone()),
                    Need::Gradient => (Kind::Gradient, shell.gradient.clone().unwrap()),
                };
                // A gradient is sent before it is applied; whoever applies it checks it.
                let leads_there = transfer.of == Need::Gradient && shell.step < Some(transfer.step);
                assert!(leads_there || shell.step == Some(transfer.step), "only what is of the entered step is sent");
                self.ahead += u64::from(leads_there);
                let offset = transfer.range.start as u64;
                let bulk = Bulk { kind, tag: transfer.tag, step: transfer.step, offset, elements: 0 };
                self.post_bulk(me, transfer.to, bulk, &source[transfer.range]);
            }
            Out::SendAside { to, tag, step, ranges } => {
                assert_eq!(shell.step, Some(step), "only what is of the boundary is sent");
                let replica = shell.replica.clone();
                self.asides += 1;
                for (to, range) in to.iter().flat_map(|to| ranges.iter().map(move |range| (*to, range.clone()))) {
                    let (kind, offset) = (Kind::Replica, range.start as u64);
                    self.post_bulk(me, to, Bulk { kind, tag, step, offset, elements: 0 }, &replica[range]);
                }
            }
            Out::Reduce(tag, step, action) => self.reduce(me, tag, step, action),
            Out::Begin { .. } => {
                shell.total = vec![None; PARAMETERS];
                let membership = shell.member.session().membership().cloned();
                self.check_membership(membership);
            }
            Out::Join(node) => {
                let (left, right) = node.children().unwrap();
                let sum = add(&shell.sums.remove(&left).unwrap(), &shell.sums.remove(&right).unwrap());
                shell.sums.insert(node, sum);
            }
            Out::Release(node) => assert!(shell.sums.remove(&node).is_some(), "{node:?} is not there"),
            Out::MakeMean { weight } => {
                assert_eq!(weight, f64::from(self.workers), "a step without every rank");
                shell.gradient = Some(std::mem::take(&mut shell.total).into_iter().map(Option::unwrap).collect());
            }
            Out::Compute(unit) => {
                let done = self.compute(me, unit);
                self.shells.get_mut(&me).unwrap().unit = Some(done);
            }
            Out::Load(generation, _) => shell.inbox.push_back(In::Loaded(generation, Step(0))),
            Out::Adopt(step) => {
                assert_eq!(step, Step(0));
                (shell.replica, shell.step, shell.gradient) = (initial(), Some(step), None);
            }
            Out::Expect(need) => {
                let len = if need == Need::Replica { REPLICA } else { PARAMETERS };
                if need == Need::Replica {
                    (shell.step, shell.gradient) = (None, None);
                }
                shell.supply = Some((need, vec![None; len]));
            }
            Out::Fill { offset, payload } => {
                let (_, supply) = shell.supply.as_mut().unwrap();
                for (place, element) in supply[offset..].iter_mut().zip(payload) {
                    assert!(place.replace(element).is_none());
                }
            }
            Out::Supplied(step) => {
                let (need, supply) = shell.supply.take().unwrap();
                assert_eq!(need, Need::Replica);
                shell.replica = supply.into_iter().map(Option::unwrap).collect();
                shell.step = Some(step);
                let replica = shell.replica.clone();
                self.check_replica(&replica, step);
            }
            Out::Unexpect => shell.supply = None,
            Out::MakeRoom(_) => shell.inbox.push_back(In::RoomMade),
            Out::Warm(generation, ..) => shell.inbox.push_back(In::Warmed(generation)),
            Out::Prefetch(..) | Out::Telemetry(_) => {}
            Out::Write { task, needed } => self.write(me, task, needed),
            Out::Checksum(at) => {
                assert_eq!(shell.step, Some(at.step), "a checksum of another step");
                let Digest(of) = Digest::of(&shell.replica.iter().flat_map(|e| e.to_le_bytes()).collect::<Vec<u8>>());
                let checksum = ReplicaChecksum(std::array::from_fn(|place| of[place]));
                shell.inbox.push_back(In::Checksum { at, checksum, took: Duration::from_millis(1) });
            }
            Out::Report(report) => self.hear(me, report),
            Out::WakeAt(at) => {
                assert!(at >= self.now, "a wake in the past");
                shell.wake = Some(at);
            }
            Out::Exit(exit) => {
                assert_ne!(exit, Exit::NotSaved);
                self.dissolved |= exit == Exit::NoReplica;
                self.end(me);
                if exit == Exit::LeftEarly {
                    self.left_early += 1;
                    let holds = self.shells.values().any(|other| other.member.session().holding().is_some());
                    assert!(holds || self.killed_with_replica, "the last replica left with {me}");
                    // A checkpoint is what is left.
                    self.dissolved |= !holds;
                }
            }
        }
    }

    fn compute(&mut self, me: Peer, unit: Unit) -> Done {
        let shell = self.shells.get_mut(&me).unwrap();
        match unit {
            Unit::Evaluate { step, rank, part } => {
                let expected = &self.reference.replicas[step.0 as usize][..PARAMETERS];
                assert!(self.determinism == Determinism::None || shell.parameters() == expected);
                shell.evaluated.insert(step);
                assert!(part < 2);
                Done::Evaluated(RankMetrics { loss: 1.0, correct: 1, count: 2, ..RankMetrics::none(rank) })
            }
            Unit::Gradient { step, stride, rank } => {
                let parameters = shell.parameters();
                let expected = &self.reference.replicas[step.0 as usize][..PARAMETERS];
                assert!(self.determinism == Determinism::None || parameters == expected);
                let workers = shell.member.workers_of(rank);
                let tag = shell.member.session().membership().unwrap().tag;
                let first = self.computed.insert((me, tag, step));
                assert!(first || self.determinism == Determinism::D1, "more than one gradient a step");
                let gradient = gradient_of(step, stride, &workers, &parameters);
                let leaf = Node { first: rank.0, count: 1 };
                // Some are said to be final from the end on, as backward finishes them; what is left over is so with the whole.
                let parts =
                    (0..PARAMETERS).step_by(PART).skip(self.random.below(2 + PARAMETERS.div_ceil(PART))).collect();
                shell.computing = Some((leaf, gradient, parts));
                Done::Gradient { weight: workers.len() as f64, loss: 1.0, data_wait: Duration::ZERO, took: None }
            }
            Unit::Update { step, stride, from } => {
                assert_eq!(shell.step, Some(step), "a step that is skipped or taken twice");
                let mean: Vec<Element> = match from {
                    GradientFrom::Sum => shell.gradient.clone().unwrap(),
                    GradientFrom::Supply => shell.supply.take().unwrap().1.into_iter().map(Option::unwrap).collect(),
                };
                self.apply(me, (step, stride), mean, from);
                assert!(step <= self.newest, "two steps ahead of everybody");
                self.newest = self.newest.max(stride.end(step));
                Done::Updated
            }
        }
    }

    fn write(&mut self, me: Peer, task: Task, needed: bool) {
        let fails = needed && self.store_fails > 0 && self.random.one_in(self.store_fails);
        let shell = self.shells.get_mut(&me).unwrap();
        let digest = Digest::of(&shell.step.unwrap_or(Step(0)).0.to_le_bytes());
        let input = match task {
            _ if fails => In::NotWritten { checkpoint: task.checkpoint(), later: true },
            Task::Shard { checkpoint, index, count } => {
                assert_eq!(shell.step, Some(checkpoint.step), "a shard of another step");
                In::Written(Written::Shard(ShardWritten {
                    checkpoint,
                    index,
                    count,
                    first_element: 0,
                    elements: 0,
                    bytes: 0,
                    digest,
                    checksum: ReplicaChecksum([0; 16]),
                    writer: None,
                    part_digests: PartDigests::default(),
                }))
            }
            Task::Manifest(checkpoint, shards) => {
                assert_eq!(shards.len(), usize::from(shards[0].count));
                let saved = Saved { writer: WriterToken([0; 16]), replica_digest: digest, bytes: 0 };
                In::Written(Written::Manifest(checkpoint, saved))
            }
            Task::Model => In::Written(Written::Model(digest)),
        };
        shell.inbox.push_back(input);
    }

    fn hear(&mut self, me: Peer, report: Report) {
        match report {
            Report::PeersMissing { generation, peers, .. } => {
                self.lost.extend(peers.iter().map(|peer| (me, Peer(peer.number), generation)));
            }
            Report::JobCompleted { outcome, .. } => self.completed = Some(outcome.step),
            Report::JobBroken { reason, .. } => panic!("{reason}"),
            Report::ReplicasDiffer { .. } => panic!("replicas cannot differ here"),
            _ => {}
        }
    }

    /// What everybody is at, for a test that fails.
    pub fn progress(&self) -> Vec<String> {
        self.shells.iter().map(|(peer, s)| format!("{peer} {:?} {:?}", s.step, s.member.progress())).collect()
    }
}
