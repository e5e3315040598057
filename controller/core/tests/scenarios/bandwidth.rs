//! Links that are too slow for a job: the first newcomer finds it out, and nobody is asked there again for a while.

use crate::stories::*;
use crate::world::{World, dataset};
use controller_core::policy_by_name;
use events_schema::fact::{Fact, GrowthFailure, PlanCause, SlowLink, WaitCause};
use events_schema::report::Report;
use events_schema::stride::Stride;
use events_schema::{ExecutorId, JobId, ServerId, TimeMs};

/// A gradient of 3.5 MB, which a step of a tenth of a second makes 35 MB a second of.
const GRADIENT_BYTES: u64 = 3_500_000;
const STEP_US: u64 = 100_000;
/// 40 Mbit/s.
const SLOW: u64 = 5_000_000;
/// 10 Gbit/s.
const FAST: u64 = 1_250_000_000;

fn server(name: &str) -> ServerId {
    ServerId::parse(name).unwrap()
}

/// Servers of so many slots, each of a fleet of its own, which lend those of the first; a job that trains there, its step known.
fn beside(servers: &[(&str, u16)]) -> (World, JobId) {
    let mut world = World::new(policy_by_name("ebb").unwrap());
    world.gradient_bytes = Some(GRADIENT_BYTES);
    for &(server, slots) in servers {
        world.start_agent(server, slots);
        world.put_fleet(server, server, slots, 2_000);
        world.deliver_all();
    }
    world.register(dataset("digits"));
    world.demand(servers[0].0, 0);
    let id = world.submit(spec());
    world.run();
    stepped_on(&mut world, &id, servers[0].0, STEP_US);
    (world, id)
}

fn stepped_on(world: &mut World, id: &JobId, on: &str, step_us: u64) {
    let members = members(world, id).len() as u16;
    let generation = job(world, id).active().unwrap().proposal.generation;
    let (job, stride, spread) = (id.clone(), Stride::ONE, None);
    says(world, on, Report::ThroughputMeasured { job, generation, members, step_us, stride, spread });
}

fn says(world: &mut World, on: &str, report: Report) -> Vec<Fact> {
    let incarnation = world.state.server(&server(on)).unwrap().incarnation;
    world.foreign_report(server(on), incarnation, report)
}

/// Agents measured the link between two servers.
fn surveyed(world: &mut World, of: &str, over: &str, bytes_per_s: u64) -> Vec<Fact> {
    says(world, of, Report::LinkSurveyed { peer: server(over), bytes_per_s })
}

/// A fleet lends its slots, and the newcomer there is ready; its number.
fn lent(world: &mut World, name: &str) -> Option<ExecutorId> {
    world.demand(name, 0);
    ready(world, name)
}

fn ready(world: &mut World, name: &str) -> Option<ExecutorId> {
    world.deliver_orders(&server(name));
    let newcomer = world.processes().into_iter().find(|process| world.get_ready(process));
    world.deliver_all();
    newcomer
}

fn measured(world: &mut World, on: &str, newcomer: &ExecutorId, bytes_per_s: u64) -> Vec<Fact> {
    says(world, on, Report::LinkMeasured { executor: newcomer.clone(), bytes_per_s, settled: true })
}

fn links(facts: &[Fact]) -> Vec<(String, Vec<String>, u64)> {
    let of = |fact: &Fact| match fact {
        Fact::LinkMeasured { server, from, bytes_per_s, .. } => {
            Some((server.to_string(), from.iter().map(ToString::to_string).collect(), *bytes_per_s))
        }
        _ => None,
    };
    facts.iter().filter_map(of).collect()
}

#[test]
fn a_newcomer_whose_link_is_too_slow_is_let_go_and_the_job_says_why() {
    let (mut world, id) = beside(&[("near", 1), ("far", 2)]);
    let newcomer = lent(&mut world, "far").unwrap();
    let (at, mark) = (world.at, world.log.len());
    let facts = measured(&mut world, "far", &newcomer, SLOW);
    assert_eq!(links(&facts), [("far".to_owned(), vec!["near".to_owned()], SLOW)]);
    world.run();
    assert_eq!((members(&world, &id), world.at), (vec![0], at), "the others go on as they were");
    let link = SlowLink { server: server("far"), bytes_per_s: SLOW, gradient_bytes_per_s: 35_000_000, beta_milli: 142 };
    let said = reason(&world, &id);
    assert_eq!((said.cause, said.waits), (PlanCause::Link, Some(WaitCause::Link(link))));
    assert!(!has(&since(&world, mark), |fact| matches!(fact, Fact::GrowthPaused { .. })), "it may grow elsewhere");
    assert!(!has(&since(&world, mark), |fact| matches!(fact, Fact::MemberLost { .. })));
    calm(&world);
}

#[test]
fn it_is_asked_again_after_a_pause_that_doubles_and_stays_once_it_is_mended() {
    let (mut world, id) = beside(&[("near", 1), ("far", 1)]);
    let newcomer = lent(&mut world, "far").unwrap();
    measured(&mut world, "far", &newcomer, SLOW);
    world.run();
    for minutes in [5, 10] {
        let mark = world.log.len();
        for _ in 0..minutes - 1 {
            world.pass(60_000);
            world.run();
        }
        assert!(!has(&since(&world, mark), |fact| matches!(fact, Fact::ExecutorAssigned { .. })), "{minutes}");
        world.pass(60_000);
        let newcomer = ready(&mut world, "far").expect("it is tried again");
        measured(&mut world, "far", &newcomer, SLOW);
        world.run();
        assert_eq!(members(&world, &id), [0]);
    }
    for _ in 0..20 {
        world.pass(60_000);
    }
    let newcomer = ready(&mut world, "far").unwrap();
    assert_eq!(links(&measured(&mut world, "far", &newcomer, 52_500_000))[0].2, 52_500_000);
    world.run();
    assert_eq!(members(&world, &id).len(), 2, "half as much again as its gradients");
    calm(&world);
}

#[test]
fn a_link_that_carries_more_than_the_gradients_is_no_news() {
    let (mut world, id) = beside(&[("near", 1), ("far", 1)]);
    let newcomer = lent(&mut world, "far").unwrap();
    assert_eq!(measured(&mut world, "far", &newcomer, 52_500_000), []);
    world.run();
    assert_eq!(members(&world, &id), [0, 1]);
}

#[test]
fn what_one_job_has_found_out_counts_for_others() {
    let (mut world, one) = beside(&[("near", 2), ("far", 1)]);
    let two = world.submit(spec());
    world.run();
    [&one, &two].into_iter().for_each(|id| stepped_on(&mut world, id, "near", STEP_US));
    assert_eq!([&one, &two].map(|id| members(&world, id).len()), [1, 1]);
    let newcomer = lent(&mut world, "far").unwrap();
    measured(&mut world, "far", &newcomer, SLOW);
    let mark = world.log.len();
    world.run();
    world.pass(1_000);
    world.run();
    assert!(
        !has(&since(&world, mark), |fact| matches!(fact, Fact::ExecutorAssigned { .. })),
        "no more to the other one"
    );
}

#[test]
fn a_slow_link_of_one_member_is_no_other_servers() {
    let (mut world, id) = beside(&[("near", 1), ("far", 1), ("third", 1)]);
    let newcomer = lent(&mut world, "far").unwrap();
    measured(&mut world, "far", &newcomer, SLOW);
    world.run();
    // Another newcomer is sent the replica as slowly, so it may be the member's own link; a third job elsewhere is not told off.
    let newcomer = lent(&mut world, "third").expect("another server is asked");
    assert_eq!(
        links(&measured(&mut world, "third", &newcomer, SLOW)),
        [("third".to_owned(), vec!["near".to_owned()], SLOW)]
    );
    world.run();
    assert_eq!(members(&world, &id), [0]);
    calm(&world);
}

#[test]
fn who_falls_behind_before_it_is_measured_for_long_is_refused_by_what_was_seen() {
    let behind = |seen: Option<u64>| {
        let (mut world, id) = beside(&[("near", 1), ("far", 1)]);
        let newcomer = lent(&mut world, "far").unwrap();
        if let Some(bytes_per_s) = seen {
            let first = Report::LinkMeasured { executor: newcomer.clone(), bytes_per_s, settled: false };
            says(&mut world, "far", first);
            assert_eq!(job(&world, &id).slots().len(), 2, "a quarter of a second is too little to tell");
        }
        let (by, mark) = (ExecutorId { number: 0, ..newcomer.clone() }, world.log.len());
        let generation = job(&world, &id).active().unwrap().proposal.generation;
        says(&mut world, "near", Report::NewcomerFallsBehind { by, generation, executor: newcomer, behind_steps: 7 });
        world.run();
        assert_eq!(members(&world, &id), [0]);
        let paused = |fact: &Fact| matches!(fact, Fact::GrowthPaused { cause: GrowthFailure::Slow, .. });
        (links(&since(&world, mark)).len(), has(&since(&world, mark), paused))
    };
    assert_eq!(behind(Some(SLOW)), (1, false));
    assert_eq!(behind(Some(70_000_000)), (0, true), "something else holds it up");
    assert_eq!(behind(None), (0, true));
}

#[test]
fn a_job_below_its_fewest_slots_takes_what_there_is() {
    let (mut world, id) = beside(&[("near", 1), ("far", 1)]);
    let newcomer = lent(&mut world, "far").unwrap();
    measured(&mut world, "far", &newcomer, SLOW);
    world.run();
    world.demand("near", 1);
    world.run();
    assert!(job(&world, &id).slots().iter().all(|slot| slot.server == server("far")), "rather slowly than not at all");
    assert!(!job(&world, &id).slots().is_empty());
}

fn borrowed(facts: &[Fact]) -> usize {
    facts.iter().filter(|fact| matches!(fact, Fact::SlotBorrowed { .. })).count()
}

#[test]
fn a_link_that_agents_found_to_be_slow_is_refused_before_a_slot_is_lent() {
    let (mut world, id) = beside(&[("near", 1), ("far", 2)]);
    let mark = world.log.len();
    assert_eq!(links(&surveyed(&mut world, "far", "near", SLOW)), [("far".to_owned(), vec!["near".to_owned()], SLOW)]);
    world.demand("far", 0);
    world.run();
    assert_eq!((borrowed(&since(&world, mark)), members(&world, &id)), (0, vec![0]));
    let link = SlowLink { server: server("far"), bytes_per_s: SLOW, gradient_bytes_per_s: 35_000_000, beta_milli: 142 };
    assert_eq!(reason(&world, &id).waits, Some(WaitCause::Link(link)));
    // Nobody measures any more: a newcomer may find out whether it is mended.
    world.pass(300_000);
    world.run();
    assert_eq!(borrowed(&since(&world, mark)), 1);
    calm(&world);
}

#[test]
fn what_is_measured_again_before_it_is_forgotten_counts_on_for_longer_each_time() {
    let (mut world, id) = beside(&[("near", 1), ("far", 1)]);
    world.demand("far", 1);
    let mark = world.log.len();
    for minutes in [5, 10, 20] {
        assert_eq!(links(&surveyed(&mut world, "far", "near", SLOW)).len(), 1);
        world.demand("far", 0);
        world.pass(minutes * 60_000 - 10_000);
        world.run();
        assert_eq!(borrowed(&since(&world, mark)), 0, "{minutes}");
    }
    // It is mended, and that is known before anybody tries.
    let faster = surveyed(&mut world, "far", "near", 200_000_000);
    assert_eq!(links(&faster), [("far".to_owned(), vec!["near".to_owned()], 200_000_000)]);
    world.run();
    assert_eq!((borrowed(&since(&world, mark)), job(&world, &id).slots().len()), (1, 2));
    calm(&world);
}

#[test]
fn a_link_that_is_fast_is_no_news_and_over_a_second_server_a_slow_one_is_the_servers_own() {
    let (mut world, _) = beside(&[("near", 1), ("far", 1), ("third", 1)]);
    assert_eq!(surveyed(&mut world, "third", "near", FAST), []);
    let both = vec!["near".to_owned(), "third".to_owned()];
    // One turn is one finding, of which there is another before what is known is over.
    for minutes in [5, 10, 20] {
        surveyed(&mut world, "far", "near", SLOW);
        let first = period(&world);
        assert_eq!(first.0.since_ms(world.at), minutes * 60_000);
        assert_eq!(links(&surveyed(&mut world, "far", "third", SLOW)), [("far".to_owned(), both.clone(), SLOW)]);
        assert_eq!(period(&world), first, "that is one finding");
        world.pass(minutes * 60_000 - 15_000);
    }
}

/// Until when the link that was measured last counts as slow, and how often in a row it was found to be.
fn period(world: &World) -> (TimeMs, u32) {
    let of = |fact: &Fact| match fact {
        Fact::LinkMeasured { until, found, .. } => Some((*until, *found)),
        _ => None,
    };
    since(world, 0).iter().rev().find_map(of).unwrap()
}

#[test]
fn a_pair_is_slow_though_a_second_server_is_reached_fast_and_that_one_is_not_slow_with_it() {
    let (mut world, id) = beside(&[("near", 1), ("far", 1), ("third", 1)]);
    let mark = world.log.len();
    surveyed(&mut world, "far", "near", SLOW);
    assert_eq!(surveyed(&mut world, "far", "third", FAST), [], "that says nothing of the other");
    assert_eq!(
        links(&surveyed(&mut world, "far", "third", 10 * SLOW)),
        [],
        "nor does one that is slow, and not so slow"
    );
    world.demand("far", 0);
    world.run();
    assert_eq!((borrowed(&since(&world, mark)), members(&world, &id)), (0, vec![0]), "to a job on `near` it is slow");
    // Mended, and then slow from another alone.
    assert_eq!(links(&surveyed(&mut world, "far", "near", FAST)), [("far".to_owned(), vec!["near".to_owned()], FAST)]);
    assert_eq!(
        links(&surveyed(&mut world, "far", "third", SLOW)),
        [("far".to_owned(), vec!["third".to_owned()], SLOW)]
    );
    assert_eq!((period(&world).0.since_ms(world.at), period(&world).1), (300_000, 1), "and that for the first time");
    world.run();
    assert_eq!(
        (borrowed(&since(&world, mark)), job(&world, &id).slots().len()),
        (1, 2),
        "it carries what `near` sends"
    );
    // What is known of one runs out, and whatever is faster is said.
    world.pass(300_000);
    assert_eq!(links(&surveyed(&mut world, "far", "near", FAST)), [("far".to_owned(), vec!["near".to_owned()], FAST)]);
    calm(&world);
}

/// Both are slow and not as slow, so it is no link of the server's own: whoever else reaches it, reaches it.
#[test]
fn two_pairs_that_are_not_as_slow_are_not_taken_for_one_link() {
    let (mut world, _) = beside(&[("near", 1), ("far", 1), ("third", 1)]);
    surveyed(&mut world, "far", "third", SLOW / 10);
    let newcomer = lent(&mut world, "far").unwrap();
    assert_eq!(
        links(&measured(&mut world, "far", &newcomer, SLOW)),
        [("far".to_owned(), vec!["near".to_owned()], SLOW)]
    );
}

#[test]
fn what_a_newcomer_is_sent_fast_says_nothing_of_who_sends_it_nothing() {
    let (mut world, _) = beside(&[("near", 1), ("far", 1), ("third", 1)]);
    surveyed(&mut world, "far", "third", SLOW);
    let newcomer = lent(&mut world, "far").unwrap();
    assert_eq!(links(&measured(&mut world, "far", &newcomer, FAST)), []);
}

/// Its gradient is known, and how long its steps take is not.
fn begins(measured: &[u64]) -> (World, JobId) {
    let mut world = World::new(policy_by_name("ebb").unwrap());
    world.gradient_bytes = Some(GRADIENT_BYTES);
    for name in ["near", "far"] {
        world.start_agent(name, 1);
        world.put_fleet(name, name, 1, 2_000);
        world.deliver_all();
    }
    measured.iter().for_each(|rate| drop(surveyed(&mut world, "far", "near", *rate)));
    world.register(dataset("digits"));
    world.demand("near", 0);
    let id = world.submit(spec());
    world.run();
    assert_eq!(members(&world, &id), [0]);
    (world, id)
}

#[test]
fn over_a_link_that_was_mended_a_slot_is_lent_before_the_first_step() {
    let (mut world, _) = begins(&[SLOW, FAST]);
    let mark = world.log.len();
    world.demand("far", 0);
    world.run();
    assert_eq!(borrowed(&since(&world, mark)), 1);
    calm(&world);
}

#[test]
fn over_a_slow_link_nothing_is_lent_before_the_first_step_says_what_is_needed() {
    let (mut world, id) = begins(&[SLOW]);
    let mark = world.log.len();
    world.demand("far", 0);
    stepped_on(&mut world, &id, "near", STEP_US);
    world.run();
    assert_eq!(borrowed(&since(&world, mark)), 0);
    // A hundred times as long, and the link carries what they make.
    stepped_on(&mut world, &id, "near", 100 * STEP_US);
    world.run();
    assert_eq!(borrowed(&since(&world, mark)), 1);
}
