//! Random deliveries, losses, proposals and a store that refuses now and then, over whole executors: the sums are added in the order of
//! the tree, no replica skips or repeats a step, and whoever is missed is named. The world is `world/mod.rs`.
#![allow(clippy::unwrap_used)]

mod world;

use events_schema::fact::Entry;
use events_schema::job::Determinism;
use events_schema::{Generation, Step};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;
use workers_member::In;
use workers_session::Peer;
use world::{World, begin, begin_as, begun};

const TURNS_MAX: usize = 200_000;
/// Longest that the simulated controller waits before it proposes anew.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// One disturbance; the simulated controller answers losses as the real one does.
fn disturb(world: &mut World) {
    let (kind, alive) = (world.random.below(6), world.alive());
    let Some(current) = world.in_force() else { return };
    match kind {
        0 if alive.len() > 1 => {
            let victim = alive[world.random.below(alive.len())];
            let holds = |peer: &Peer| world.shells[peer].member.session().holding().is_some();
            let holders = alive.iter().filter(|peer| holds(peer)).count();
            if !holds(&victim) || holders > 1 {
                world.kill(victim);
                world.run_some();
                recover(world);
            }
        }
        1 | 2 => {
            let mut peers: Vec<Peer> = current.peers().filter(|p| world.shells.contains_key(p)).collect();
            while peers.len() > 1 && world.random.one_in(2) {
                let index = world.random.below(peers.len());
                peers.remove(index);
            }
            while peers.len() < usize::from(world.workers) && world.random.one_in(2) {
                peers.push(world.spawn());
            }
            peers.sort_unstable();
            let told: Vec<Peer> = current.peers().collect();
            if !peers.is_empty() {
                world.propose(Entry::Switch { from: current.tag.generation }, &peers, &told);
            }
        }
        3 if current.seats.len() > 1 => {
            let leaver = current.seats[world.random.below(current.seats.len())].peer;
            if world.shells.get(&leaver).is_some_and(|s| s.member.session().membership().is_some()) {
                // With time for the boundary, or with none.
                let within = if world.random.one_in(2) { Duration::ZERO } else { Duration::from_secs(3_600) };
                let before = world.left_early;
                world.tell(leaver, In::Leave(within));
                if world.random.one_in(3) {
                    let other = current.seats[world.random.below(current.seats.len())].peer;
                    world.tell(other, In::Leave(within));
                }
                world.run_some();
                if world.left_early > before {
                    recover(world);
                }
            }
        }
        4 if alive.len() > 1 => {
            let (one, other) = (alive[world.random.below(alive.len())], alive[world.random.below(alive.len())]);
            if one != other {
                world.cut(one, other, 3);
                world.run_some();
                recover(world);
            }
        }
        _ => {}
    }
    world.run_some();
}

fn recover(world: &mut World) {
    let told = world.alive();
    let chosen: Vec<Peer> = told.iter().copied().take(usize::from(world.workers)).collect();
    if !chosen.is_empty() {
        world.propose(Entry::Recover, &chosen, &told);
    }
}

fn finished(world: &World) -> bool {
    let mut members = world.shells.values().filter(|s| s.member.session().membership().is_some()).peekable();
    members.peek().is_some() && members.all(|s| s.step == Some(Step(world.steps_total)))
}

/// Faults are over. Everything is delivered, and whoever is still stuck after a while is proposed anew.
fn finish(world: &mut World) {
    for _ in 0..12 {
        let until = world.now + WAIT_MAX;
        loop {
            assert!(world.run_to_rest(TURNS_MAX), "it never comes to rest");
            if !world.sleep(until) {
                break;
            }
        }
        if world.dissolved || world.shells.is_empty() || (finished(world) && world.completed.is_some()) {
            return;
        }
        recover(world);
    }
    panic!("not at the end: {:#?}", world.progress());
}

#[test]
fn four_members_finish_undisturbed() {
    let mut world = begin(7, 8, 4, 10);
    finish(&mut world);
    assert_eq!((world.newest, world.completed), (Step(10), Some(Step(10))));
    assert_eq!(world.lost, []);
    let evaluated = |s: &world::Shell| s.evaluated.iter().copied().collect::<Vec<_>>() == [4, 8, 10].map(Step);
    assert!(world.shells.values().all(evaluated));
    assert!(
        world.parts_sent > 0 && world.parts_summed > 0,
        "nothing overlaps: {} {}",
        world.parts_sent,
        world.parts_summed
    );
}

/// Two of each: pieces are summed within a host before the other gets them, all bits are those of one process, and so they are when one of them is killed
/// with such a piece under way.
#[test]
fn members_of_hosts_sum_for_each_other() {
    for seed in 1..30 {
        let mut world = World::new(seed, 8, 12);
        world.hosts = 2;
        let peers: Vec<Peer> = (0..4).map(|_| world.spawn()).collect();
        world.propose(Entry::Fresh, &peers, &[]);
        while world.newest < Step(4) {
            assert!(world.turn(), "stuck at {:#?}", world.progress());
        }
        let before = world.summed_for_others;
        assert!(before > 0, "each sends for itself");
        while world.summed_for_others == before {
            assert!(world.turn(), "stuck at {:#?}", world.progress());
        }
        world.kill(peers[seed as usize % peers.len()]);
        recover(&mut world);
        finish(&mut world);
        assert_eq!((world.newest, world.completed), (Step(12), Some(Step(12))));
    }
}

#[test]
fn one_member_alone_finishes_and_leaves() {
    let mut world = begin(5, 4, 1, 6);
    finish(&mut world);
    assert_eq!(world.completed, Some(Step(6)));
    world.tell(Peer(0), In::Leave(Duration::ZERO));
    assert!(world.run_to_rest(TURNS_MAX) && world.shells.is_empty());
}

/// It does not wait for the boundary, and the others make up for what it was at; told to both at once, nobody goes on the other's word.
#[test]
fn who_has_no_time_goes_in_the_middle_of_a_step_if_somebody_stays() {
    let (mut early, mut overtaken, mut before_bulk) = (0, 0, 0);
    for seed in 1..40 {
        let mut world = begin(seed, 8, 3, 20);
        while world.newest < Step(4) {
            assert!(world.turn(), "stuck at {:#?}", world.progress());
        }
        let leavers: u32 = if seed % 3 == 0 { 3 } else { 1 };
        (0..leavers).for_each(|peer| world.tell(Peer(peer), In::Leave(Duration::ZERO)));
        assert!(world.run_to_rest(TURNS_MAX));
        assert!(leavers == 1 || world.left_early == 0, "seed {seed}");
        early += world.left_early;
        overtaken += world.overtaken;
        before_bulk += world.before_bulk;
        if leavers == 1 {
            recover(&mut world);
            finish(&mut world);
            assert_eq!((world.newest, world.shells.len()), (Step(20), 2), "seed {seed}");
        }
    }
    assert!(early > 0 && overtaken > 0, "{early} went, {overtaken} were heard while a unit was computed");
    assert!(before_bulk > 0, "nothing came before bulk that was sent before it");
}

/// Two newcomers come in while two others go on: what they are sent beside the steps makes the same bits.
#[test]
fn newcomers_follow_until_they_hold_the_replica() {
    for seed in 1..60 {
        let mut world = begin(seed, 8, 2, 60);
        world.behind_max = Some(6);
        world.shells.clear();
        let members = [world.spawn(), world.spawn()];
        world.propose(Entry::Fresh, &members, &[]);
        while world.newest < Step(2) {
            assert!(world.turn(), "stuck at {:#?}", world.progress());
        }
        let all = [members[0], members[1], world.spawn(), world.spawn()];
        world.propose(Entry::Switch { from: Generation(world.generation) }, &all, &[]);
        finish(&mut world);
        assert_eq!((world.newest, world.shells.len(), world.asides), (Step(60), 4, 2), "seed {seed}");
        assert!(world.ahead > 0, "newcomers apply gradients while the others do");
        assert_eq!(world.in_force().unwrap().seats.len(), 4);
    }
}

#[test]
fn a_store_that_refuses_now_and_then_costs_nothing_but_time() {
    let mut world = begin(11, 4, 3, 4);
    world.store_fails = 3;
    finish(&mut world);
    assert_eq!((world.completed, world.shells.len(), world.generation), (Some(Step(4)), 3, 1));
}

#[test]
fn a_silent_member_is_named_by_the_others() {
    for seed in 1..40 {
        let mut world = begin(seed, 8, 3, 40);
        world.run_some();
        while world.newest < Step(2) {
            assert!(world.turn(), "stuck at {:#?}", world.progress());
        }
        let generation = Generation(1);
        world.cut(Peer(0), Peer(2), 3);
        let until = world.now + Duration::from_secs(5);
        while world.run_to_rest(TURNS_MAX) && world.sleep(until) {}
        assert!(world.newest < Step(40), "nobody goes on without the sums of everybody");
        for pair in [(Peer(0), Peer(2), generation), (Peer(2), Peer(0), generation)] {
            assert!(world.lost.contains(&pair), "seed {seed}: {:?} lacks {pair:?}", world.lost);
        }
        assert!(world.lost.iter().all(|(by, of, _)| *by != Peer(1) && *of != Peer(1)));
        recover(&mut world);
        finish(&mut world);
        assert_eq!((world.newest, world.shells.len()), (Step(40), 3));
    }
}

#[test]
fn a_member_that_died_before_the_round_is_named_in_it() {
    let mut world = begin(3, 4, 3, 20);
    world.kill(Peer(1));
    let until = world.now + Duration::from_secs(7);
    while world.run_to_rest(TURNS_MAX) && world.sleep(until) {}
    let named: Vec<Peer> = world.lost.iter().map(|(_, of, _)| *of).collect();
    assert_eq!(named, [Peer(1), Peer(1)], "by both survivors");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, .. ProptestConfig::default() })]

    #[test]
    fn whatever_happens_everybody_alive_gets_to_the_end(seed: u64, workers in 1u16..=9, share in 0u16..9, disturbances in 0usize..10, fails in 0usize..4) {
        let mut world = begin(seed, workers, 1 + share % workers, 14);
        world.store_fails = if fails > 1 { fails } else { 0 };
        world.run_some();
        (0..disturbances).for_each(|_| disturb(&mut world));
        finish(&mut world);
        if !world.dissolved && !world.shells.is_empty() {
            prop_assert_eq!(world.newest, Step(14));
        }
    }

    /// Of a job with `determinism: none`: every replica is made of one whole sum of each step, over members that host all workers, and at the end all have
    /// the same.
    #[test]
    fn without_determinism_every_step_counts_once_whatever_happens(seed: u64, workers in 1u16..=9, share in 0u16..9, disturbances in 0usize..10) {
        counts_once(begin_as(Determinism::None, seed, workers, 1 + share % workers, 14), disturbances);
    }

    /// The same where updates take several steps at once, in each generation another number of them.
    #[test]
    fn whatever_the_strides_every_step_counts_once(seed: u64, workers in 1u16..=9, share in 0u16..9, disturbances in 0usize..10) {
        let mut world = World::new(seed, workers, 38);
        (world.determinism, world.strides) = (Determinism::None, true);
        counts_once(begun(world, 1 + share % workers), disturbances);
    }
}

fn counts_once(mut world: World, disturbances: usize) {
    let last = Step(world.steps_total);
    world.run_some();
    (0..disturbances).for_each(|_| disturb(&mut world));
    finish(&mut world);
    if !world.dissolved && !world.shells.is_empty() {
        assert_eq!(world.newest, last);
        let members = world.shells.values().filter(|s| s.member.session().membership().is_some());
        let replicas: BTreeSet<&[u64]> = members.map(|s| s.replica()).collect();
        assert_eq!(replicas.len(), 1);
    }
}
