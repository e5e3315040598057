//! Random weather; `world.rs` says what must hold in it.

use crate::world::{Act, SLOTS, World};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn act() -> impl Strategy<Value = Act> {
    let slot = 0..SLOTS;
    prop_oneof![
        6 => (1_u64..1_500).prop_map(Act::Pass),
        6 => slot.clone().prop_map(Act::Use),
        3 => slot.clone().prop_map(Act::Assign),
        2 => (slot.clone(), 0_u64..2_000).prop_map(|(slot, ms)| Act::Leave(slot, ms)),
        1 => slot.clone().prop_map(Act::Stay),
        1 => slot.clone().prop_map(Act::Drop),
        5 => Just(Act::Read),
        8 => Just(Act::Order),
        2 => Just(Act::Acknowledge),
        1 => Just(Act::Claim),
        1 => Just(Act::Zombie),
        1 => Just(Act::GiveUp),
        3 => slot.clone().prop_map(Act::Offer),
        3 => (prop::collection::btree_set(slot.clone(), 1..3), 0_u64..2_000)
            .prop_map(|(slots, ms): (BTreeSet<u16>, u64)| Act::TakeBack(slots, ms)),
        1 => Just(Act::Withdraw),
        4 => slot.clone().prop_map(Act::Say),
        2 => slot.clone().prop_map(Act::Exit),
        1 => slot.clone().prop_map(Act::Hang),
        1 => slot.prop_map(Act::Garbage),
        1 => prop::bool::weighted(0.3).prop_map(Act::Cut),
        1 => prop::bool::weighted(0.3).prop_map(Act::DiskFull),
        1 => Just(Act::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn what_the_agent_promises_holds_in_any_weather(acts in prop::collection::vec(act(), 1..150)) {
        let mut world = World::new();
        for act in &acts {
            world.act(act);
        }
        world.heal();
    }
}

/// A green property says nothing of what never happened.
#[test]
fn the_weather_meets_what_it_is_about() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let seed = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), seed);
    let (mut freed, mut starts) = (0, 0);
    for _ in 0..50 {
        let acts = prop::collection::vec(act(), 150).new_tree(&mut runner).unwrap().current();
        let mut world = World::new();
        acts.iter().for_each(|act| world.act(act));
        (freed, starts) = (freed + world.freed, starts + world.starts);
    }
    assert!(freed > 100 && starts > 200, "{freed} take-backs answered, {starts} executors started");
}
