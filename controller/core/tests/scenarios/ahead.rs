//! Slots that go back a little before their fleet is going to need them.

use crate::stories::*;
use crate::world::{World, dataset};
use controller_core::policy::WithLending;
use controller_core::state::past::DAY_MS;
use controller_core::{Policy, policy_by_name};
use events_schema::command::{Command, Demand, Foreseen, Needs, Slo};
use events_schema::fact::{Fact, ReclaimCause, WaitCause};
use events_schema::{FleetId, JobId};

const HOUR_MS: u64 = 3_600_000;

fn policy(forecast_day_ms: Option<u64>) -> Box<dyn Policy> {
    Box::new(WithLending { policy: policy_by_name("ebb").unwrap(), forecast_day_ms })
}

fn world(forecast_day_ms: Option<u64>) -> World {
    World::local(policy(forecast_day_ms), 6)
}

/// Passes the time until then within its day.
fn pass_until(world: &mut World, of_day_ms: u64) -> Vec<Fact> {
    let ms = (of_day_ms + DAY_MS - world.at.0 % DAY_MS) % DAY_MS;
    world.pass(ms)
}

/// A fleet of six slots whose load crosses one at eight, two at ten and three at noon, and goes back over them every two hours, on so many days; then eight again,
/// with a job of `least` to `most` slots on what is lent.
fn on_the_morning(world: &mut World, days: u32, [least, most]: [u16; 2]) -> JobId {
    let job = world.submit(spec_with(|spec| spec["workers"] = serde_json::json!({"min": least, "max": most})));
    world.demand("local", 1);
    world.run();
    for _ in 0..days {
        for (hour, needed) in [(8, 2), (10, 3), (12, 4), (14, 3), (16, 2), (18, 1)] {
            pass_until(world, hour * HOUR_MS);
            world.demand("local", needed);
            world.run();
        }
    }
    pass_until(world, 8 * HOUR_MS);
    world.demand("local", 2);
    world.run();
    job
}

fn reclaimed(facts: &[Fact]) -> Vec<ReclaimCause> {
    let cause = |fact: &Fact| if let Fact::SlotReclaimed { cause, .. } = fact { Some(*cause) } else { None };
    facts.iter().filter_map(cause).collect()
}

/// What is decided until a minute after ten, while nobody says anything; no more once something is.
fn until_ten(world: &mut World) -> Vec<Fact> {
    (0..726).map(|_| world.pass(10_000)).find(|facts| !facts.is_empty()).unwrap_or_default()
}

#[test]
fn a_forecast_ends_no_job() {
    let mut world = world(Some(DAY_MS));
    let job = on_the_morning(&mut world, 20, [4, 6]);
    assert_eq!(members(&world, &job).len(), 4);
    assert_eq!(reclaimed(&until_ten(&mut world)), []);
    world.pass(1_000);
    assert_eq!(reclaimed(&world.demand("local", 3)), [ReclaimCause::Demand]);
}

#[test]
fn slots_that_no_job_uses_go_back_early_too() {
    let mut world = world(Some(DAY_MS));
    let job = on_the_morning(&mut world, 20, [1, 6]);
    world.command(Command::CancelJob { job });
    world.run();
    assert_eq!((world.state.live_len(), slots(&world)), (0, 4));
    assert_eq!(reclaimed(&until_ten(&mut world)), [ReclaimCause::Forecast]);
    assert_eq!(slots(&world), 3);
}

#[test]
fn needs_are_forecast_without_any_job_and_no_more_once_lending_is_reactive_again() {
    let mut world = world(Some(DAY_MS));
    let fleet = FleetId::parse("local").unwrap();
    world.pass(1_000);
    world.demand("local", 1);
    assert!(world.state.past(&fleet).is_some());
    world.policy = policy(None);
    world.pass(1_000);
    assert_eq!(world.state.past(&fleet), None);
}

#[test]
fn without_a_forecast_slots_go_back_when_they_are_asked_for() {
    let mut world = world(None);
    let job = on_the_morning(&mut world, 20, [1, 6]);
    assert_eq!(reclaimed(&until_ten(&mut world)), []);
    assert_eq!(world.state.past(&FleetId::parse("local").unwrap()), None);
    world.pass(1_000);
    assert_eq!(reclaimed(&world.demand("local", 3)), [ReclaimCause::Demand]);
    world.run();
    assert_eq!(members(&world, &job).len(), 3);
}

fn slots(world: &World) -> usize {
    world.state.fleet(&FleetId::parse("local").unwrap()).unwrap().lent
}

#[test]
fn a_slot_goes_back_before_it_is_needed_and_is_lent_again_when_that_is_said() {
    let mut world = world(Some(DAY_MS));
    let job = on_the_morning(&mut world, 20, [1, 6]);
    let facts = until_ten(&mut world);
    assert_eq!(reclaimed(&facts), [ReclaimCause::Forecast]);
    world.run();
    assert_eq!((slots(&world), members(&world, &job).len()), (3, 3));
    // Its fleet knows better: no forecast takes it again before the next signal.
    let early = world.state.slots().find(|(_, slot)| !slot.is_lent() && slot.ahead.is_some()).unwrap().0.clone();
    let fleet = FleetId::parse("local").unwrap();
    world.command(Command::OfferSlots { fleet, slots: vec![early] });
    assert_eq!(slots(&world), 4);
    (0..100).for_each(|_| assert_eq!(reclaimed(&world.pass(10_000)), []));
    let mut again = world.demand("local", 2);
    again.extend((0..100).flat_map(|_| world.pass(10_000)).collect::<Vec<Fact>>());
    assert_eq!(reclaimed(&again), [ReclaimCause::Forecast], "once for a signal");
    // It is wanted still, so that a fleet which repeats its need keeps it.
    assert_eq!((reclaimed(&world.demand("local", 2)), slots(&world)), (vec![], 3));
}

#[test]
fn what_a_forecast_keeps_after_a_need_has_fallen_is_lent_by_a_signal_that_repeats_it() {
    let mut world = world(Some(DAY_MS));
    on_the_morning(&mut world, 20, [1, 6]);
    for (of_day_ms, needed) in [(9 * HOUR_MS, 3), (10 * HOUR_MS - 10_000, 2)] {
        pass_until(&mut world, of_day_ms);
        world.demand("local", needed);
        world.run();
    }
    assert_eq!(slots(&world), 3, "it is likely to rise at once again");
    // As long as other days had it higher, and some hours more.
    for _ in 0..72 {
        world.pass(600_000);
        world.demand("local", 2);
    }
    assert_eq!(slots(&world), 4, "and has not");
}

/// A job that has three slots three minutes before a fourth is going to be wanted back, when another one leaves that; how many it has then.
fn beside_an_idle_slot(gradient_bytes: Option<u64>) -> (World, JobId) {
    let mut world = world(Some(DAY_MS));
    world.gradient_bytes = gradient_bytes;
    let other = world.submit(spec_with(|spec| spec["workers"] = serde_json::json!({"min": 1, "max": 1})));
    // Of eight units, so that a fourth slot is worth having.
    let job = on_the_morning(&mut world, 20, [1, 8]);
    assert_eq!((members(&world, &job).len(), slots(&world)), (3, 4));
    pass_until(&mut world, 10 * HOUR_MS - 180_000);
    world.command(Command::CancelJob { job: other });
    for _ in 0..3 {
        world.run();
        world.pass(10_000);
    }
    world.run();
    (world, job)
}

#[test]
fn a_job_does_not_grow_onto_a_slot_that_is_wanted_before_its_replica_is_there() {
    let (world, id) = beside_an_idle_slot(None);
    assert_eq!((members(&world, &id).len(), slots(&world)), (4, 4), "a small one is there in time");
    // Its replica of 12 GB takes two minutes.
    let (world, id) = beside_an_idle_slot(Some(4_000_000_000));
    assert_eq!((members(&world, &id).len(), slots(&world)), (3, 4));
    assert_eq!(reason(&world, &id).waits, Some(WaitCause::Offers));
}

/// What a fleet needs now, and from so many seconds on.
fn foresees(needed: u32, later: &[(u64, u32)]) -> Needs {
    let foreseen = later.iter().map(|&(seconds, slots)| Foreseen { in_ms: seconds * 1_000, slots }).collect();
    Needs { forecast: Some(foreseen), ..Demand::Needed(needed).into() }
}

#[test]
fn what_a_fleet_foresees_counts_from_its_first_day_on_and_ends_with_its_next_signal() {
    let mut world = world(Some(DAY_MS));
    let job = world.submit(spec_with(|spec| spec["workers"] = serde_json::json!({"min": 1, "max": 6})));
    world.demand("local", 1);
    world.run();
    assert_eq!((slots(&world), members(&world, &job).len()), (5, 5));
    let mut facts = world.needs("local", foresees(1, &[(600, 3), (1_200, 2)]));
    facts.extend((0..50).flat_map(|_| world.pass(10_000)).collect::<Vec<Fact>>());
    assert_eq!(reclaimed(&facts), [], "a hundred seconds before it needs more");
    let facts: Vec<Fact> = (0..9).flat_map(|_| world.pass(10_000)).collect();
    assert_eq!(reclaimed(&facts), [ReclaimCause::Forecast; 2]);
    world.run();
    assert_eq!((slots(&world), members(&world, &job).len()), (3, 3));
    // It foresees no more, so what it does not need is lent.
    world.demand("local", 1);
    assert_eq!(slots(&world), 5);
}

/// Servers a and b, each a fleet that needs nothing, with so many slots.
fn two_fleets(policy: Box<dyn Policy>, [a, b]: [u16; 2]) -> World {
    let mut world = World::new(policy);
    for (server, slots) in [("a", a), ("b", b)] {
        world.start_agent_of_type(server, slots, "t4");
        world.put_fleet(server, server, slots, 2_000);
        world.deliver_all();
        world.demand(server, 0);
    }
    world.register(dataset("digits"));
    world
}

/// Simulation: it grew to five of six, was as fast on three a moment later, and so on, once a day. So it did where it may be on several types, which has a
/// way of its own.
#[test]
fn of_what_stays_a_job_takes_what_makes_it_faster_while_the_rest_goes_back_soon() {
    for (name, on_any_type) in [("ebb", false), ("easyscale", true)] {
        let policy = WithLending { policy: policy_by_name(name).unwrap(), forecast_day_ms: Some(DAY_MS) };
        let mut world = two_fleets(Box::new(policy), [5, 1]);
        world.gradient_bytes = Some(4_000_000_000);
        let of = |min: u16, max: u16| {
            spec_with(|spec| {
                spec["workers"] = serde_json::json!({"min": min, "max": max});
                if on_any_type {
                    spec["types"] = "any".into();
                }
            })
        };
        let (other, id) = (world.submit(of(2, 2)), world.submit(of(1, 6)));
        world.run();
        assert_eq!((members(&world, &other).len(), members(&world, &id).len()), (2, 3), "{name}");
        world.needs("b", foresees(0, &[(180, 1)]));
        world.command(Command::CancelJob { job: other });
        for _ in 0..3 {
            world.run();
            world.pass(10_000);
        }
        assert_eq!(members(&world, &id).len(), 3, "{name}: of six units five slots are as slow as three");
        // It stays after all.
        world.needs("b", foresees(0, &[(100_000, 1)]));
        world.run();
        assert_eq!(members(&world, &id).len(), 6, "{name}");
    }
}

/// Simulation: one slot went back, the job grew elsewhere, and the other went back only with the plan of the next tick.
#[test]
fn what_a_forecast_takes_once_a_job_has_grown_elsewhere_goes_back_in_the_same_plan() {
    let mut world = two_fleets(policy(Some(DAY_MS)), [2, 2]);
    let id = world.submit(spec_with(|spec| spec["workers"] = serde_json::json!({"min": 1, "max": 2})));
    world.run();
    let server = world.state.job(&id).unwrap().slots().first().unwrap().server.to_string();
    assert_eq!(members(&world, &id).len(), 2);
    assert_eq!(reclaimed(&world.needs(&server, foresees(0, &[(1, 2)]))), [ReclaimCause::Forecast; 2]);
    world.run();
    let slots = world.state.job(&id).unwrap().slots();
    assert!(slots.len() == 2 && slots.iter().all(|slot| slot.server.to_string() != server), "{slots:?}");
}

#[test]
fn what_a_fleet_foresees_counts_in_place_of_its_past() {
    let mut world = world(Some(DAY_MS));
    on_the_morning(&mut world, 20, [1, 6]);
    let facts = world.needs("local", foresees(2, &[(1, 2)]));
    assert_eq!(reclaimed(&facts), []);
    assert_eq!(reclaimed(&until_ten(&mut world)), [], "it needs no more at ten than now");
    let fleet = FleetId::parse("local").unwrap();
    let forecasts: Vec<_> = world.state.past(&fleet).unwrap().forecasts(world.at).collect();
    assert!(forecasts.iter().all(|of| of.is_declared && (of.p50_slots, of.p90_slots) == (2, 2)), "{forecasts:?}");
}

#[test]
fn all_slots_of_a_fleet_go_back_while_its_requests_take_too_long() {
    let mut world = world(None);
    let job = world.submit(spec_with(|spec| spec["workers"] = serde_json::json!({"min": 1, "max": 6})));
    world.demand("local", 1);
    world.run();
    let takes = |p99_ms: u64| Needs { slo: Some(Slo { p99_ms, limit_ms: 200 }), ..Demand::Needed(1).into() };
    assert_eq!(reclaimed(&world.needs("local", takes(201))), [ReclaimCause::Demand; 5]);
    world.run();
    assert_eq!((slots(&world), members(&world, &job).len()), (0, 0));
    world.needs("local", takes(200));
    assert_eq!(slots(&world), 5);
}
