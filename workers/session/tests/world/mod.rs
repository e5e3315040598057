//! The simulated network of sessions: shells whose replica is only the number of its step, wires that keep order, losses, proposals.
//! Asserts what must hold after every event; what a test is about stands in `simulation.rs`.

mod changes;
mod running;
mod wires;

pub use running::{begin, begin_as, begun};

use events_schema::fact::{Entry, Member, Proposal};
use events_schema::job::Determinism;
use events_schema::stride::Stride;
use events_schema::tree::{Node, place};
use events_schema::{Digest, ExecutorId, Generation, JobId, Step, TimeMs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use workers_session::{
    Config, Envelope, Input, Membership, Need, NodeSums, Output, PartDigests, Peer, ReplicaChecksum, Session,
    ShardWritten, Stops, Tag,
};

/// A small seeded generator; the test's only source of randomness.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    pub fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) as usize) % n.max(1)
    }
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[derive(Debug, Clone)]
pub enum Packet {
    Say(Envelope),
    Partial(Tag, Step),
    Reduced(Tag, Step),
    Replica {
        tag: Tag,
        step: Step,
        count: usize,
    },
    Gradient(Tag, Step),
    /// Parts for whom follows.
    Aside {
        tag: Tag,
        step: Step,
        count: usize,
    },
    Mean {
        tag: Tag,
        step: Step,
        count: usize,
    },
}

/// One executor's shell, with a replica that is only the number of its step.
pub struct Shell {
    pub session: Session,
    pub replica: Option<Step>,
    pub awaiting: Option<Need>,
    pub parts: usize,
    pub membership: Option<Membership>,
    /// In which membership each step of the replica was taken.
    pub history: Vec<Tag>,
    pub step: Step,
    pub partials: BTreeSet<(Tag, Step, Peer)>,
    pub reduced: BTreeSet<(Tag, Step, Peer)>,
    pub supplies: Vec<Packet>,
    /// A newcomer that follows: since when, and how many parts of the replica or gradients that led to later steps have come.
    pub following: Option<(Tag, Step, Stride)>,
    pub followed: BTreeMap<Step, usize>,
    pub sent_reduced: Option<(Tag, Step)>,
    pub contributed: Option<Step>,
    /// Work that ends some time later.
    pub pending: Vec<Input>,
    pub orders: VecDeque<Input>,
    pub last_computed: Option<(Tag, Step)>,
}

pub struct World {
    pub random: Random,
    pub workers: u16,
    pub behind_max: Option<u64>,
    pub determinism: Determinism,
    /// Where updates end, and whether each proposal has a stride of its own.
    pub stops: Stops,
    pub strides: bool,
    /// Of the replica of a step, as it was sent in a membership.
    pub histories: BTreeMap<(Tag, Step), Vec<Tag>>,
    /// How often a newcomer came in with the replica.
    pub caught_up: u64,
    /// Who was to go in the middle of a step, and how many members went so.
    pub asked_to_go: BTreeSet<Peer>,
    pub left_early: u64,
    /// Messages that came before bulk that was sent before them.
    pub before_bulk: u64,
    /// Who was said to fall behind, by how many steps.
    pub behind: BTreeMap<Peer, u64>,
    /// To whom parts of the replica and of gradients take for ever.
    pub slow: Option<Peer>,
    pub shells: BTreeMap<Peer, Shell>,
    pub links: BTreeSet<(Peer, Peer)>,
    pub dials: Vec<(Peer, Peer)>,
    pub wires: BTreeMap<(Peer, Peer), VecDeque<Packet>>,
    pub memberships: BTreeMap<Tag, Membership>,
    pub generation: u64,
    pub left: BTreeSet<Peer>,
    pub newest: Step,
    pub completed: u64,
    pub saved: BTreeSet<Step>,
    pub dissolved: bool,
}

impl World {
    pub fn new(seed: u64, workers: u16, steps_total: u64) -> Self {
        Self {
            random: Random(seed | 1),
            workers,
            behind_max: if seed.is_multiple_of(3) { None } else { Some(6) },
            determinism: Determinism::D1,
            stops: Stops { checkpoint: Some(3), total: steps_total, ..Stops::default() },
            strides: false,
            histories: BTreeMap::new(),
            caught_up: 0,
            asked_to_go: BTreeSet::new(),
            left_early: 0,
            before_bulk: 0,
            slow: None,
            behind: BTreeMap::new(),
            shells: BTreeMap::new(),
            links: BTreeSet::new(),
            dials: Vec::new(),
            wires: BTreeMap::new(),
            memberships: BTreeMap::new(),
            generation: 0,
            left: BTreeSet::new(),
            newest: Step(0),
            completed: 0,
            saved: BTreeSet::new(),
            dissolved: false,
        }
    }

    pub fn spawn(&mut self) -> Peer {
        let peer = Peer(self.shells.keys().chain(&self.left).map(|p| p.0 + 1).max().unwrap_or(0));
        let config = Config {
            me: peer,
            workers: self.workers,
            stops: self.stops,
            behind_max: self.behind_max,
            determinism: self.determinism,
        };
        let shell = Shell {
            session: Session::new(config),
            replica: None,
            awaiting: None,
            parts: 0,
            membership: None,
            history: Vec::new(),
            step: Step(0),
            partials: BTreeSet::new(),
            reduced: BTreeSet::new(),
            supplies: Vec::new(),
            following: None,
            followed: BTreeMap::new(),
            sent_reduced: None,
            contributed: None,
            pending: Vec::new(),
            orders: VecDeque::new(),
            last_computed: None,
        };
        self.shells.insert(peer, shell);
        peer
    }

    pub fn proposal(&mut self, entry: Entry, peers: &[Peer]) -> Proposal {
        self.generation += 1;
        let job = JobId::parse("job-a").unwrap();
        let id = |p: Peer| ExecutorId { job: job.clone(), number: p.0 };
        let shares = place(self.workers, peers.len() as u16);
        let members = peers
            .iter()
            .zip(shares)
            .map(|(&p, ranks)| Member { executor: id(p), address: format!("h{}:{}", p.0 % 2, p.0), ranks })
            .collect();
        // As the controller does: who leads a switch holds the replica.
        let in_force = self.in_force().filter(|_| matches!(entry, Entry::Switch { .. }));
        let leaders: Vec<Peer> =
            peers.iter().copied().filter(|&p| in_force.as_ref().is_none_or(|m| m.has(p))).collect();
        let leaders = if leaders.is_empty() { peers } else { &leaders };
        let leader = id(leaders[self.random.below(leaders.len())]);
        let stride = Stride::of(if self.strides { 1 + self.random.below(9) as u64 } else { 1 });
        Proposal { generation: Generation(self.generation), entry, members, leader, deadline: TimeMs(0), stride }
    }

    pub fn propose(&mut self, entry: Entry, peers: &[Peer], also_to: &[Peer]) {
        let proposal = self.proposal(entry, peers);
        for peer in peers.iter().chain(also_to).copied().collect::<BTreeSet<_>>() {
            if let Some(shell) = self.shells.get_mut(&peer) {
                shell.orders.push_back(Input::Proposal(proposal.clone()));
            }
        }
    }

    pub fn alive(&self) -> Vec<Peer> {
        self.shells.keys().copied().collect()
    }

    pub fn remove(&mut self, peer: Peer) {
        self.shells.remove(&peer);
        self.left.insert(peer);
        self.dials.retain(|d| d.0 != peer && d.1 != peer);
        let cut: Vec<(Peer, Peer)> = self.links.iter().copied().filter(|l| l.0 == peer || l.1 == peer).collect();
        for link in cut {
            self.links.remove(&link);
            let other = if link.0 == peer { link.1 } else { link.0 };
            self.wires.remove(&(other, peer));
            // What was sent before the end still arrives, then the end itself: kept as an order behind the wire.
            if let Some(shell) = self.shells.get_mut(&other) {
                shell.pending.push(Input::Lost(peer));
            }
        }
    }

    /// Ends the link between two that both live. Of what was under way, any end may be lost; each side hears of it some time.
    pub fn cut(&mut self, one: Peer, other: Peer) {
        if !self.links.remove(&(one.min(other), one.max(other))) {
            return;
        }
        for (from, to) in [(one, other), (other, one)] {
            let kept = self.random.below(4);
            self.wires.entry((from, to)).or_default().truncate(kept);
            self.shells.get_mut(&to).unwrap().pending.push(Input::Lost(from));
        }
    }

    pub fn feed(&mut self, peer: Peer, input: Input) {
        let Some(shell) = self.shells.get_mut(&peer) else { return };
        let outputs = shell.session.handle(input);
        for output in outputs {
            self.perform(peer, output);
        }
        self.progress(peer);
    }

    pub fn post(&mut self, from: Peer, to: Peer, packet: Packet) {
        if self.links.contains(&(from.min(to), from.max(to))) {
            self.wires.entry((from, to)).or_default().push_back(packet);
        }
    }

    pub fn perform(&mut self, me: Peer, output: Output) {
        let chance_loaded = Step(0);
        let Some(shell) = self.shells.get_mut(&me) else { return };
        match output {
            Output::Connect(to, _) => self.dials.push((me, to)),
            Output::Send(to, envelope) => self.post(me, to, Packet::Say(envelope)),
            Output::Load(generation, _) => {
                shell.replica = Some(chance_loaded);
                shell.history.clear();
                (shell.awaiting, shell.following) = (None, None);
                shell.pending.push(Input::Loaded(generation, chance_loaded));
            }
            Output::Warm(generation, _, _) => shell.pending.push(Input::Warmed(generation)),
            Output::Prefetch(..) => {}
            Output::Abandon => {
                (shell.contributed, shell.awaiting, shell.following) = (None, None, None);
                shell.pending.retain(|i| !matches!(i, Input::Computed(..) | Input::ShardWritten(_)));
            }
            Output::Enter(membership, step) => {
                let known = self.memberships.entry(membership.tag).or_insert_with(|| membership.clone());
                assert_eq!(*known, membership, "two memberships of one tag");
                assert!(membership.is_whole(self.workers));
                let tag = membership.tag;
                shell.partials.retain(|(t, ..)| *t >= tag);
                shell.reduced.retain(|(t, ..)| *t >= tag);
                shell.membership = Some(membership);
                shell.step = step;
                shell.contributed = None;
            }
            Output::Await(need) => {
                if need == Need::Replica {
                    shell.replica = None;
                }
                shell.awaiting = Some(need);
                (shell.parts, shell.following) = (0, None);
            }
            Output::Follow(tag, step, stride) => {
                (shell.replica, shell.following) = (None, Some((tag, step, stride)));
                shell.followed.clear();
            }
            Output::CatchUp => {
                assert!(shell.following.is_some(), "nothing brings it here");
                shell.awaiting = Some(Need::Replica);
                self.caught_up += 1;
            }
            Output::SendReplicaAside { to, tag, step, count, .. } => {
                assert_eq!(shell.replica, Some(step), "only the replica of the boundary is sent");
                self.sends(me, tag, step);
                to.into_iter().for_each(|p| self.post(me, p, Packet::Aside { tag, step, count }));
            }
            Output::SendMean { to, tag, step, count, .. } => {
                assert!(shell.replica < Some(step), "a gradient is sent before it is applied");
                self.sends(me, tag, step);
                to.into_iter().for_each(|p| self.post(me, p, Packet::Mean { tag, step, count }));
            }
            Output::SendReplica { to, count, .. } => {
                let (tag, step) = (shell.membership.as_ref().unwrap().tag, shell.step);
                assert_eq!(shell.replica, Some(step), "only the replica of the entered step is sent");
                self.sends(me, tag, step);
                to.into_iter().for_each(|p| self.post(me, p, Packet::Replica { tag, step, count }));
            }
            Output::SendGradient(to) => {
                let (tag, step) = (shell.membership.as_ref().unwrap().tag, shell.step);
                assert_eq!(shell.replica, Some(step));
                self.sends(me, tag, step);
                to.into_iter().for_each(|p| self.post(me, p, Packet::Gradient(tag, step)));
            }
            Output::Compute(step) => {
                shell.step = step;
                let membership = shell.membership.clone().unwrap();
                let key = (membership.tag, step);
                assert_ne!(shell.last_computed.replace(key), Some(key), "computed twice in one membership");
                let (workers, computing) = membership.computing(self.workers, self.determinism);
                let sums = Node::root(workers).cover(computing.ranks(me)).into_iter();
                // As many samples as ranks: of a node's ranks, or of all that are hosted.
                let weight = |node: Node| match self.determinism {
                    Determinism::D1 => f64::from(node.count),
                    Determinism::None => membership.ranks(me).len() as f64,
                };
                let sums = sums.map(|node| NodeSums { node, weight: weight(node), loss: 0.0 }).collect();
                shell.pending.push(Input::Computed(step, sums));
            }
            Output::Contributed(step, sums) => {
                let membership = shell.membership.as_ref().unwrap();
                let (workers, _) = membership.computing(self.workers, self.determinism);
                let total = NodeSums::total(workers, &sums).unwrap();
                assert_eq!(total.weight, f64::from(self.workers), "a step without every rank");
                shell.contributed = Some(step);
            }
            Output::WriteShard { checkpoint, index, count } => {
                assert_eq!(shell.replica, Some(checkpoint.step), "a shard of another step");
                let digest = Digest::of(&checkpoint.step.0.to_le_bytes());
                let shard = ShardWritten {
                    checkpoint,
                    index,
                    count,
                    first_element: 0,
                    elements: 0,
                    bytes: 0,
                    digest,
                    checksum: checksum(checkpoint.step),
                    writer: None,
                    part_digests: PartDigests::default(),
                };
                shell.pending.push(Input::ShardWritten(shard));
            }
            Output::WriteManifest(checkpoint, shards) => {
                assert_eq!(shards.len(), usize::from(shards[0].count));
                self.saved.insert(checkpoint.step);
                shell.pending.push(Input::Saved(checkpoint));
            }
            Output::Checksum(at) => {
                assert_eq!(shell.replica, Some(at.step), "a checksum of another step");
                shell.pending.push(Input::Checksum(at, checksum(at.step)));
            }
            Output::Diverged { .. } => panic!("replicas cannot differ here"),
            Output::StandStill(step) => shell.step = step,
            Output::Active(generation, _) => assert!(generation.0 <= self.generation),
            Output::Disconnect(peer) => panic!("{me} takes {peer} for broken"),
            Output::Held(_, step) => assert_eq!(shell.replica, Some(step)),
            Output::FallsBehind(peer, steps) => drop(self.behind.insert(peer, steps)),
            Output::Departed(..) | Output::Evaluation(..) => {}
            Output::Exit => self.remove(me),
            Output::ExitEarly => {
                self.left_early += 1;
                let held = shell.session.holding().is_some();
                self.remove(me);
                let holds = self.shells.values().any(|other| other.session.holding().is_some());
                assert!(holds || !held, "the last replica left with {me}");
            }
            Output::ExitWithoutReplica => {
                self.dissolved = true;
                self.remove(me);
            }
        }
    }

    /// A newcomer takes what has come of the replica that it follows, and of the gradients after it.
    pub fn follow(&mut self, me: Peer) {
        let Some(shell) = self.shells.get_mut(&me) else { return };
        let Some((tag, since, stride)) = shell.following else { return };
        let stops = self.stops;
        let next = shell.replica.map_or(since, |step| stops.after(step, stride));
        let is_in = shell.session.membership().is_some_and(|m| m.tag == tag);
        if is_in && shell.replica == Some(shell.step) {
            (shell.awaiting, shell.following) = (None, None);
            let step = shell.step;
            return self.feed(me, Input::Supplied(step));
        }
        if shell.followed.get(&next) == Some(&0) {
            let mean = shell.replica.replace(next).is_some();
            self.receives(me, tag, next, mean);
            let Some(shell) = self.shells.get_mut(&me) else { return };
            let more = shell.followed.get(&stops.after(next, stride)) == Some(&0);
            if is_in { self.follow(me) } else { self.feed(me, Input::Followed(next, !more)) }
        }
    }

    /// All who send a replica, or the gradient that led to it, in one membership have the same one.
    fn sends(&mut self, me: Peer, tag: Tag, step: Step) {
        let history = &self.shells[&me].history;
        assert_eq!(history.len() as u64, step.0, "each step is taken once");
        let known = self.histories.entry((tag, step)).or_insert_with(|| history.clone());
        assert!(self.determinism == Determinism::D1 || known == history, "{me} sends another replica in {tag}");
    }

    /// A gradient that leads to `step` is of the replica that it is applied to.
    fn receives(&mut self, me: Peer, tag: Tag, step: Step, gradient: bool) {
        let sent = &self.histories[&(tag, step)];
        let Some(shell) = self.shells.get_mut(&me) else { return };
        // What it has not of it is the one update that the gradient is of.
        let update = sent.strip_prefix(&shell.history[..]);
        let fits = update.is_some_and(|update| update.first().is_some_and(|tag| update.iter().all(|of| of == tag)));
        assert!(!gradient || fits || self.determinism == Determinism::D1, "{me} applies a gradient of another replica");
        shell.history.clone_from(sent);
    }

    /// Where the model may depend on who was a member, all have the one of the same history.
    pub fn assert_one_history(&self) {
        let of_members = self.shells.values().filter(|s| s.session.membership().is_some());
        let mut histories = of_members.map(|s| &s.history);
        let first = histories.next();
        assert!(self.determinism == Determinism::D1 || histories.all(|history| Some(history) == first));
    }

    /// What the trainer does between events: supplies, reduction, update.
    pub fn progress(&mut self, me: Peer) {
        self.follow(me);
        let Some(shell) = self.shells.get_mut(&me) else { return };
        let Some(membership) = shell.membership.clone() else { return };
        if shell.session.membership().map(|m| m.tag) != Some(membership.tag) {
            return;
        }
        let (tag, step) = (membership.tag, shell.step);
        if let Some(need) = shell.awaiting.filter(|_| shell.following.is_none()) {
            let mut whole = false;
            for packet in std::mem::take(&mut shell.supplies) {
                match packet {
                    Packet::Replica { tag: t, step: s, count } if need == Need::Replica && (t, s) == (tag, step) => {
                        shell.parts += 1;
                        whole |= shell.parts == count;
                    }
                    Packet::Gradient(t, s) if need == Need::Gradient && (t, s) == (tag, step) => {
                        assert!(shell.replica.is_some_and(|held| held < step), "a gradient that does not fit");
                        whole = true;
                    }
                    Packet::Replica { tag: t, .. } | Packet::Gradient(t, _) if t > tag => shell.supplies.push(packet),
                    _ => {}
                }
            }
            if whole {
                shell.replica = Some(step);
                shell.awaiting = None;
                self.receives(me, tag, step, need == Need::Gradient);
                return self.feed(me, Input::Supplied(step));
            }
        }
        let from_all = |set: &BTreeSet<(Tag, Step, Peer)>| membership.others(me).all(|p| set.contains(&(tag, step, p)));
        let computed = shell.session.membership().is_some()
            && !shell.pending.iter().any(|i| matches!(i, Input::Computed(s, _) if *s == step));
        if computed
            && from_all(&shell.partials)
            && shell.last_computed == Some((tag, step))
            && shell.sent_reduced != Some((tag, step))
        {
            shell.sent_reduced = Some((tag, step));
            membership.others(me).for_each(|p| self.post(me, p, Packet::Reduced(tag, step)));
        }
        let Some(shell) = self.shells.get_mut(&me) else { return };
        let whole = from_all(&shell.reduced) && shell.sent_reduced == Some((tag, step)) && shell.awaiting.is_none();
        if whole && shell.contributed == Some(step) {
            assert_eq!(shell.replica, Some(step), "an update on another step's replica");
            let next = self.stops.after(step, membership.stride);
            shell.contributed = None;
            // Of what is sent now it is known which update it is of.
            (step.0..next.0).for_each(|_| shell.history.push(tag));
            self.feed(me, Input::Summed(step));
            let Some(shell) = self.shells.get_mut(&me) else { return };
            shell.replica = Some(next);
            assert!(step <= self.newest, "two updates ahead of everybody");
            self.newest = self.newest.max(next);
            self.completed += 1;
            self.feed(me, Input::Completed(step));
        }
    }

    /// One random event; `false` when nothing can happen any more.
    pub fn turn(&mut self) -> bool {
        let mut choices: Vec<(u8, Peer, Peer)> = Vec::new();
        for (&peer, shell) in &self.shells {
            (!shell.pending.is_empty()).then(|| choices.push((0, peer, peer)));
            (!shell.orders.is_empty()).then(|| choices.push((1, peer, peer)));
        }
        let wires = self.wires.iter().filter(|(ends, wire)| !self.stands(ends.1, wire.front()));
        wires.for_each(|(&(from, to), _)| choices.push((2, from, to)));
        let wires = self.wires.iter().filter(|(_, wire)| wires::before_bulk(wire).is_some());
        wires.for_each(|(&(from, to), _)| choices.push((4, from, to)));
        self.dials.iter().for_each(|&(from, to)| choices.push((3, from, to)));
        let Some(&(kind, from, to)) = choices.get(self.random.below(choices.len())) else { return false };
        match kind {
            0 => self.finish_pending(from),
            1 => {
                let order = self.shells.get_mut(&from).and_then(|s| s.orders.pop_front());
                order.into_iter().for_each(|o| self.feed(from, o));
            }
            2 => {
                let packet = self.wires.get_mut(&(from, to)).and_then(VecDeque::pop_front);
                packet.into_iter().for_each(|p| self.deliver(from, to, p));
            }
            4 => {
                let wire = self.wires.get_mut(&(from, to));
                let packet = wire.and_then(|wire| wires::before_bulk(wire).and_then(|index| wire.remove(index)));
                self.before_bulk += 1;
                packet.into_iter().for_each(|p| self.deliver(from, to, p));
            }
            _ => self.dial(from, to),
        }
        true
    }

    pub fn finish_pending(&mut self, me: Peer) {
        let index = self.shells.get(&me).map_or(0, |s| s.pending.len());
        let index = self.random.below(index);
        let Some(shell) = self.shells.get_mut(&me) else { return };
        if let Input::Lost(peer) = shell.pending[index]
            && self.wires.get(&(peer, me)).is_some_and(|w| !w.is_empty())
        {
            return;
        }
        // Parameters must be there before anything is computed from them.
        if matches!(shell.pending[index], Input::Computed(..)) && shell.awaiting.is_some() {
            return;
        }
        let input = shell.pending.remove(index);
        if let Input::Computed(step, _) = input {
            let tag = shell.membership.as_ref().unwrap().tag;
            let others: Vec<Peer> = shell.membership.as_ref().unwrap().others(me).collect();
            others.into_iter().for_each(|p| self.post(me, p, Packet::Partial(tag, step)));
        }
        self.feed(me, input);
    }

    pub fn deliver(&mut self, from: Peer, to: Peer, packet: Packet) {
        let Some(shell) = self.shells.get_mut(&to) else { return };
        match packet {
            Packet::Say(envelope) => return self.feed(to, Input::Message(from, envelope)),
            Packet::Partial(tag, step) => drop(shell.partials.insert((tag, step, from))),
            Packet::Reduced(tag, step) => drop(shell.reduced.insert((tag, step, from))),
            Packet::Aside { tag, step, count } => {
                if shell.following.is_some_and(|(of, since, _)| (of, since) == (tag, step)) {
                    *shell.followed.entry(step).or_insert(count) -= 1;
                }
            }
            Packet::Mean { tag, step, count } => {
                if shell.following.is_some_and(|(of, since, _)| of == tag && step > since) {
                    *shell.followed.entry(step).or_insert(count) -= 1;
                }
            }
            supply => shell.supplies.push(supply),
        }
        self.progress(to);
    }
}

/// Of the replica of a step, which all have.
fn checksum(step: Step) -> ReplicaChecksum {
    ReplicaChecksum(u128::from(step.0).to_le_bytes())
}
