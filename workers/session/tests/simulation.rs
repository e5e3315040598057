//! Random deliveries, losses and proposals in a simulated network of sessions. Checks, after every event, what must always hold:
//! who shares a tag agrees on its membership, no step completes without every rank, no replica skips or repeats a step; and, once faults
//! stop and the survivors are proposed, that everybody gets to the end.
#![allow(clippy::unwrap_used)]

use events_schema::fact::{Entry, Member, Proposal};
use events_schema::tree::{Node, place};
use events_schema::{Digest, ExecutorId, Generation, JobId, Rank, Step, TimeMs};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use workers_session::{Config, Envelope, Input, Membership, Need, NodeSums, Output, Peer, Session, ShardWritten, Tag};

const EVENTS_MAX: usize = 60_000;

/// A small seeded generator; the test's only source of chance.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) as usize) % n.max(1)
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[derive(Debug, Clone)]
enum Packet {
    Say(Envelope),
    Partial(Tag, Step),
    Reduced(Tag, Step),
    Replica { tag: Tag, step: Step, count: usize },
    Gradient(Tag, Step),
}

/// One executor's shell, with a replica that is only the number of its step.
struct Shell {
    session: Session,
    replica: Option<Step>,
    awaiting: Option<Need>,
    parts: usize,
    membership: Option<Membership>,
    step: Step,
    partials: BTreeSet<(Tag, Step, Peer)>,
    reduced: BTreeSet<(Tag, Step, Peer)>,
    supplies: Vec<Packet>,
    sent_reduced: Option<(Tag, Step)>,
    contributed: Option<Step>,
    /// Work that ends some time later.
    pending: Vec<Input>,
    orders: VecDeque<Input>,
    last_computed: Option<(Tag, Step)>,
}

struct World {
    chance: Chance,
    workers: u16,
    steps_total: u64,
    shells: BTreeMap<Peer, Shell>,
    links: BTreeSet<(Peer, Peer)>,
    dials: Vec<(Peer, Peer)>,
    wires: BTreeMap<(Peer, Peer), VecDeque<Packet>>,
    memberships: BTreeMap<Tag, Membership>,
    generation: u64,
    left: BTreeSet<Peer>,
    newest: Step,
    completed: u64,
    saved: BTreeSet<Step>,
    dissolved: bool,
}

impl World {
    fn new(seed: u64, workers: u16, steps_total: u64) -> Self {
        Self {
            chance: Chance(seed | 1),
            workers,
            steps_total,
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

    fn spawn(&mut self) -> Peer {
        let peer = Peer(self.shells.keys().chain(&self.left).map(|p| p.0 + 1).max().unwrap_or(0));
        let config = Config { me: peer, workers: self.workers, steps_total: self.steps_total, checkpoint_every: 3 };
        let shell = Shell {
            session: Session::new(config),
            replica: None,
            awaiting: None,
            parts: 0,
            membership: None,
            step: Step(0),
            partials: BTreeSet::new(),
            reduced: BTreeSet::new(),
            supplies: Vec::new(),
            sent_reduced: None,
            contributed: None,
            pending: Vec::new(),
            orders: VecDeque::new(),
            last_computed: None,
        };
        self.shells.insert(peer, shell);
        peer
    }

    fn proposal(&mut self, entry: Entry, peers: &[Peer]) -> Proposal {
        self.generation += 1;
        let job = JobId::parse("job-a").unwrap();
        let id = |p: Peer| ExecutorId { job: job.clone(), number: p.0 };
        let shares = place(self.workers, peers.len() as u16);
        let members = peers
            .iter()
            .zip(shares)
            .map(|(&p, ranks)| Member { executor: id(p), address: format!("h:{}", p.0), ranks })
            .collect();
        let leader = id(peers[self.chance.below(peers.len())]);
        Proposal { generation: Generation(self.generation), entry, members, leader, deadline: TimeMs(0) }
    }

    fn propose(&mut self, entry: Entry, peers: &[Peer], also_to: &[Peer]) {
        let proposal = self.proposal(entry, peers);
        for peer in peers.iter().chain(also_to).copied().collect::<BTreeSet<_>>() {
            if let Some(shell) = self.shells.get_mut(&peer) {
                shell.orders.push_back(Input::Proposal(proposal.clone()));
            }
        }
    }

    fn alive(&self) -> Vec<Peer> {
        self.shells.keys().copied().collect()
    }

    fn remove(&mut self, peer: Peer) {
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

    fn feed(&mut self, peer: Peer, input: Input) {
        let Some(shell) = self.shells.get_mut(&peer) else { return };
        let outputs = shell.session.handle(input);
        for output in outputs {
            self.perform(peer, output);
        }
        self.progress(peer);
    }

    fn post(&mut self, from: Peer, to: Peer, packet: Packet) {
        if self.links.contains(&(from.min(to), from.max(to))) {
            self.wires.entry((from, to)).or_default().push_back(packet);
        }
    }

    fn perform(&mut self, me: Peer, output: Output) {
        let chance_loaded = Step(0);
        let Some(shell) = self.shells.get_mut(&me) else { return };
        match output {
            Output::Connect(to, _) => self.dials.push((me, to)),
            Output::Send(to, envelope) => self.post(me, to, Packet::Say(envelope)),
            Output::Load(generation, _) => {
                shell.replica = Some(chance_loaded);
                shell.awaiting = None;
                shell.pending.push(Input::Loaded(generation, chance_loaded));
            }
            Output::Warm(generation, _, _) => shell.pending.push(Input::Warmed(generation)),
            Output::Prefetch(_) => {}
            Output::Abandon => {
                shell.contributed = None;
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
                shell.parts = 0;
            }
            Output::SendReplica { to, count, .. } => {
                let (tag, step) = (shell.membership.as_ref().unwrap().tag, shell.step);
                assert_eq!(shell.replica, Some(step), "only the replica of the entered step is sent");
                to.into_iter().for_each(|p| self.post(me, p, Packet::Replica { tag, step, count }));
            }
            Output::SendGradient(to) => {
                let (tag, step) = (shell.membership.as_ref().unwrap().tag, shell.step);
                assert_eq!(shell.replica, Some(step));
                to.into_iter().for_each(|p| self.post(me, p, Packet::Gradient(tag, step)));
            }
            Output::Compute(step) => {
                shell.step = step;
                let membership = shell.membership.clone().unwrap();
                let key = (membership.tag, step);
                assert_ne!(shell.last_computed.replace(key), Some(key), "computed twice in one membership");
                let sums = Node::root(self.workers).cover(membership.ranks(me)).into_iter();
                let sums = sums.map(|node| NodeSums { node, weight: f64::from(node.count), loss: 0.0 }).collect();
                shell.pending.push(Input::Computed(step, sums));
            }
            Output::Contributed(step, sums) => {
                let total = NodeSums::total(self.workers, &sums).unwrap();
                assert_eq!(total.weight, f64::from(self.workers), "a step without every rank");
                shell.contributed = Some(step);
            }
            Output::WriteShard { checkpoint, index, count } => {
                assert_eq!(shell.replica, Some(checkpoint.step), "a shard of another step");
                let replica_digest = Digest::of(&checkpoint.step.0.to_le_bytes());
                let digest = replica_digest;
                let shard = ShardWritten {
                    checkpoint,
                    index,
                    count,
                    key: String::new(),
                    first_element: 0,
                    elements: 0,
                    bytes: 0,
                    digest,
                    replica_digest,
                };
                shell.pending.push(Input::ShardWritten(shard));
            }
            Output::WriteManifest(checkpoint, shards) => {
                assert_eq!(shards.len(), usize::from(shards[0].count));
                self.saved.insert(checkpoint.step);
                shell.pending.push(Input::Saved(checkpoint));
            }
            Output::Diverged(_) => panic!("replicas cannot differ here"),
            Output::StandStill(step) => shell.step = step,
            Output::Active(generation, _) => assert!(generation.0 <= self.generation),
            Output::Departed(..) | Output::Evaluation(..) | Output::Disconnect(_) => {}
            Output::Exit => self.remove(me),
            Output::ExitWithoutReplica => {
                self.dissolved = true;
                self.remove(me);
            }
        }
    }

    /// What the trainer does between events: supplies, reduction, update.
    fn progress(&mut self, me: Peer) {
        let Some(shell) = self.shells.get_mut(&me) else { return };
        let Some(membership) = shell.membership.clone() else { return };
        if shell.session.membership().map(|m| m.tag) != Some(membership.tag) {
            return;
        }
        let (tag, step) = (membership.tag, shell.step);
        if let Some(need) = shell.awaiting {
            let mut whole = false;
            for packet in std::mem::take(&mut shell.supplies) {
                match packet {
                    Packet::Replica { tag: t, step: s, count } if need == Need::Replica && (t, s) == (tag, step) => {
                        shell.parts += 1;
                        whole |= shell.parts == count;
                    }
                    Packet::Gradient(t, s) if need == Need::Gradient && (t, s) == (tag, step) => {
                        assert_eq!(shell.replica.map(Step::next), Some(step), "a gradient that does not fit");
                        whole = true;
                    }
                    Packet::Replica { tag: t, .. } | Packet::Gradient(t, _) if t > tag => shell.supplies.push(packet),
                    _ => {}
                }
            }
            if whole {
                shell.replica = Some(step);
                shell.awaiting = None;
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
            shell.replica = Some(step.next());
            shell.contributed = None;
            assert!(step.next() <= self.newest.next(), "two steps ahead of everybody");
            self.newest = self.newest.max(step.next());
            self.completed += 1;
            self.feed(me, Input::Completed(step));
        }
    }

    /// One random event; `false` when nothing can happen any more.
    fn turn(&mut self) -> bool {
        let mut choices: Vec<(u8, Peer, Peer)> = Vec::new();
        for (&peer, shell) in &self.shells {
            (!shell.pending.is_empty()).then(|| choices.push((0, peer, peer)));
            (!shell.orders.is_empty()).then(|| choices.push((1, peer, peer)));
        }
        self.wires.iter().filter(|(_, wire)| !wire.is_empty()).for_each(|(&(from, to), _)| choices.push((2, from, to)));
        self.dials.iter().for_each(|&(from, to)| choices.push((3, from, to)));
        let Some(&(kind, from, to)) = choices.get(self.chance.below(choices.len())) else { return false };
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
            _ => self.dial(from, to),
        }
        true
    }

    fn finish_pending(&mut self, me: Peer) {
        let index = self.shells.get(&me).map_or(0, |s| s.pending.len());
        let index = self.chance.below(index);
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

    fn deliver(&mut self, from: Peer, to: Peer, packet: Packet) {
        let Some(shell) = self.shells.get_mut(&to) else { return };
        match packet {
            Packet::Say(envelope) => return self.feed(to, Input::Message(from, envelope)),
            Packet::Partial(tag, step) => drop(shell.partials.insert((tag, step, from))),
            Packet::Reduced(tag, step) => drop(shell.reduced.insert((tag, step, from))),
            supply => shell.supplies.push(supply),
        }
        self.progress(to);
    }

    fn dial(&mut self, from: Peer, to: Peer) {
        self.dials.retain(|d| *d != (from, to));
        let link = (from.min(to), from.max(to));
        if self.shells.contains_key(&from) && self.shells.contains_key(&to) && self.links.insert(link) {
            self.wires.remove(&(from, to));
            self.wires.remove(&(to, from));
            self.feed(to, Input::Linked(from));
            self.feed(from, Input::Linked(to));
        }
    }

    fn run(&mut self, turns: usize) -> bool {
        (0..turns).all(|_| self.turn())
    }

    /// The newest membership that every one of its living members was told of.
    fn in_force(&self) -> Option<Membership> {
        self.shells.values().filter_map(|s| s.session.membership()).max_by_key(|m| m.tag).cloned()
    }

    fn disturb(&mut self) {
        let kind = self.chance.below(6);
        self.change(kind);
        self.run_some();
    }

    fn change(&mut self, kind: usize) {
        let alive = self.alive();
        let current = self.in_force();
        match (kind, current) {
            (0, Some(current)) if alive.len() > 1 => {
                let victim = alive[self.chance.below(alive.len())];
                let holders = alive.iter().filter(|p| self.shells[p].replica.is_some()).count();
                if self.shells[&victim].replica.is_none() || holders > 1 {
                    self.remove(victim);
                    self.run_some();
                    self.recover(&current);
                }
            }
            (1 | 2, Some(current)) => {
                let mut peers: Vec<Peer> = current.peers().filter(|p| self.shells.contains_key(p)).collect();
                while peers.len() > 1 && self.chance.one_in(2) {
                    let index = self.chance.below(peers.len());
                    peers.remove(index);
                }
                while peers.len() < usize::from(self.workers) && self.chance.one_in(2) {
                    peers.push(self.spawn());
                }
                peers.sort_unstable();
                let from = current.tag.generation;
                let told: Vec<Peer> = current.peers().collect();
                if !peers.is_empty() {
                    self.propose(Entry::Switch { from }, &peers, &told);
                }
            }
            (3, Some(current)) if current.seats.len() > 1 => {
                let leaver = current.seats[self.chance.below(current.seats.len())].peer;
                // A newcomer that goes before it knows that it is in is a loss like any other.
                if let Some(shell) = self.shells.get_mut(&leaver).filter(|s| s.session.membership().is_some()) {
                    shell.orders.push_back(Input::Leave);
                }
            }
            _ => {}
        }
    }

    fn run_some(&mut self) {
        let turns = self.chance.below(120);
        self.run(turns);
    }

    fn recover(&mut self, _lost_from: &Membership) {
        let mut alive: Vec<Peer> = self.alive();
        alive.truncate(usize::from(self.workers));
        let told = self.alive();
        if !alive.is_empty() {
            self.propose(Entry::Recover, &alive, &told);
        }
    }
}

fn begin(seed: u64, workers: u16, members: u16, steps_total: u64) -> World {
    let mut world = World::new(seed, workers, steps_total);
    let peers: Vec<Peer> = (0..members).map(|_| world.spawn()).collect();
    world.propose(Entry::Fresh, &peers, &[]);
    world
}

#[test]
fn four_members_finish_undisturbed_and_save() {
    let mut world = begin(7, 8, 4, 10);
    assert!(!world.run(EVENTS_MAX));
    assert_eq!(world.newest, Step(10));
    assert_eq!(world.completed, 40);
    assert_eq!(world.saved, [3, 6, 9, 10].map(Step).into_iter().collect());
}

#[test]
fn one_member_that_leaves_writes_a_checkpoint_first() {
    let mut world = begin(7, 4, 1, 1_000);
    world.run(40);
    world.shells.get_mut(&Peer(0)).unwrap().orders.push_back(Input::Leave);
    world.run(EVENTS_MAX);
    assert!(world.shells.is_empty() && !world.saved.is_empty() && world.saved.last() == Some(&world.newest));
}

#[test]
fn parked_members_stand_still_after_one_common_checkpoint() {
    let mut world = begin(9, 8, 3, 1_000);
    world.run(300);
    world.shells.values_mut().for_each(|s| s.orders.push_back(Input::Park));
    assert!(!world.run(EVENTS_MAX));
    assert!(world.newest < Step(1_000) && world.saved.contains(&world.newest));
    assert!(world.shells.values().all(|s| s.replica == Some(world.newest)));
}

#[test]
fn a_scale_in_lets_the_leavers_go_and_moves_no_state() {
    let mut world = begin(3, 8, 4, 30);
    world.run(400);
    world.propose(Entry::Switch { from: Generation(1) }, &[Peer(2)], &[Peer(0), Peer(1), Peer(3)]);
    assert!(!world.run(EVENTS_MAX));
    assert_eq!(world.alive(), vec![Peer(2)]);
    assert_eq!(world.newest, Step(30));
}

#[test]
fn messages_of_older_memberships_have_no_effect() {
    let mut world = begin(5, 4, 2, 20);
    world.run(200);
    let old = world.in_force().unwrap();
    world.propose(Entry::Recover, &[Peer(0), Peer(1)], &[]);
    while world.in_force().is_none_or(|m| m.tag == old.tag) {
        assert!(world.turn());
    }
    let before = format!("{:?}", world.shells[&Peer(0)].session);
    for message in [
        workers_session::Message::LeaveRequest,
        workers_session::Message::Dissolve,
        workers_session::Message::Done { step: Step(3) },
    ] {
        world.feed(Peer(0), Input::Message(Peer(1), Envelope { tag: old.tag, message }));
    }
    assert_eq!(before, format!("{:?}", world.shells[&Peer(0)].session));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, .. ProptestConfig::default() })]

    #[test]
    fn whatever_happens_everybody_alive_gets_to_the_end(seed: u64, workers in 1u16..=9, share in 0u16..9, disturbances in 0usize..12) {
        let members = 1 + share % workers;
        let mut world = begin(seed, workers, members, 40);
        world.run_some();
        for _ in 0..disturbances {
            world.disturb();
        }
        // Faults are over: everybody alive is proposed once more, and everything is delivered.
        let alive: Vec<Peer> = world.alive();
        if world.alive().iter().any(|p| world.shells[p].replica.is_some()) {
            let chosen: Vec<Peer> = alive.into_iter().take(usize::from(workers)).collect();
            let told = world.alive();
            world.propose(Entry::Recover, &chosen, &told);
        }
        prop_assert!(!world.run(EVENTS_MAX), "it never comes to rest");
        // An exit in between needs one more proposal, as the controller would make.
        for _ in 0..workers {
            let stuck = world.shells.values().any(|s| s.session.membership().is_none() || s.replica != Some(Step(40)));
            let rest: Vec<Peer> = world.alive().into_iter().take(usize::from(workers)).collect();
            if stuck && !rest.is_empty() && !world.dissolved {
                let told = world.alive();
                world.propose(Entry::Recover, &rest, &told);
                prop_assert!(!world.run(EVENTS_MAX));
            }
        }
        let finished = world.shells.values().filter(|s| s.session.membership().is_some()).all(|s| s.replica == Some(Step(40)));
        prop_assert!(finished || world.dissolved, "not at the end: {:?}", world.shells.values().map(|s| (s.replica, format!("{:?}", s.session))).collect::<Vec<_>>());
        if !world.shells.is_empty() && !world.dissolved {
            prop_assert!(world.saved.contains(&Step(40)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, .. ProptestConfig::default() })]

    /// Switches and departures are not faults: no controller is needed to get through them.
    #[test]
    fn planned_changes_need_no_recovery(seed: u64, workers in 2u16..=9, share in 0u16..9, changes in 1usize..10) {
        let mut world = begin(seed, workers, 1 + share % workers, 60);
        world.run_some();
        for _ in 0..changes {
            let kind = 1 + world.chance.below(3);
            world.change(kind);
            world.run_some();
        }
        prop_assert!(!world.run(EVENTS_MAX), "it never comes to rest");
        let finished = world.newest == Step(60) || world.shells.is_empty() || world.saved.contains(&world.newest);
        prop_assert!(finished, "stuck at {}: {:?}", world.newest, world.shells.values().map(|s| (s.replica, format!("{:?}", s.session))).collect::<Vec<_>>());
    }
}

#[test]
fn ranks_of_a_departure_are_placed_like_any_other() {
    let seat = |peer, ranks: std::ops::Range<u16>| workers_session::Seat {
        peer: Peer(peer),
        ranks: ranks.map(Rank).collect(),
    };
    let tag = Tag { generation: Generation(4), revision: 2 };
    let membership = Membership { tag, seats: vec![seat(1, 0..4), seat(5, 4..6), seat(6, 6..8)], leader: Peer(1) };
    let without = membership.without(&[Peer(1)], 8).unwrap();
    assert!(without.is_whole(8) && without.leader == Peer(5) && without.tag.revision == 3);
    assert_eq!(membership.without(&[Peer(1), Peer(5), Peer(6)], 8), None);
}
