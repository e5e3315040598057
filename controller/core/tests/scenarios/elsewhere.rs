//! Jobs that go on elsewhere than where something happened to them, also those of one slot.

use crate::stories::*;
use crate::world::{World, slot};
use events_schema::fact::{Blamed, Fact, LeaveCause, PlanCause, StallCause, StallRemedy};
use events_schema::report::Report;
use events_schema::{ExecutorId, JobId, Rank, ServerId, SlotId, Step};
use serde_json::json;
use std::collections::BTreeSet;

/// A job of exactly so many slots.
fn of_slots(world: &mut World, slots: u16, priority: i32) -> JobId {
    let id = world.submit(spec_with(|spec| {
        spec["workers"] = json!({"min": slots, "max": slots});
        spec["priority"] = json!(priority);
    }));
    world.run();
    world.train(&id);
    id
}

/// The last executor of a job hangs in its only rank's unit of a step.
fn hangs(world: &mut World, id: &JobId, step: u64) -> Vec<Fact> {
    let server = ServerId::parse("local").unwrap();
    let incarnation = world.state.server(&server).unwrap().incarnation;
    let executor = world.state.executors_of(id).last().unwrap().0.clone();
    let blamed = vec![Blamed { executor, rank: Some(Rank(0)) }];
    let report = Report::JobStalled { job: id.clone(), step: Step(step), cause: StallCause::Unit, blamed };
    world.foreign_report(server, incarnation, report)
}

fn slots(world: &World, id: &JobId) -> BTreeSet<SlotId> {
    job(world, id).slots().clone()
}

fn on(indices: &[u16]) -> BTreeSet<SlotId> {
    indices.iter().map(|index| slot("local", *index)).collect()
}

/// The plan of a job of one slot was that slot, for ever: what hung there began again there, and the same computation could not hang on two slots.
#[test]
fn a_job_of_one_slot_begins_again_on_another_and_fails_by_name_if_it_hangs_there_too() {
    let mut world = local(2);
    let id = of_slots(&mut world, 1, 0);
    assert_eq!(slots(&world, &id), on(&[0]));
    let facts = hangs(&mut world, &id, 1);
    assert!(has(&facts, |f| matches!(f, Fact::JobStalled { remedy: StallRemedy::WithoutBlamed, .. })), "{facts:#?}");
    assert_eq!(slots(&world, &id), on(&[1]), "{facts:#?}");
    assert_eq!(reason(&world, &id).cause, PlanCause::Lost);
    world.run();
    assert!(world.train(&id));
    let facts = hangs(&mut world, &id, 1);
    assert!(has(&facts, |f| matches!(f, Fact::JobFailed { reason, .. } if reason.contains("local/1"))), "{facts:#?}");
    calm(&world);
}

/// Elastic jobs leave nothing idle: one that has more than its fewest gives one for the one that is avoided, and goes on with as many.
#[test]
fn a_job_of_one_slot_gets_one_of_a_job_that_has_more_than_its_fewest() {
    let mut world = local(4);
    let one = of_slots(&mut world, 1, 0);
    let many = world.submit(spec_with(|spec| spec["workers"] = json!({"min": 1, "max": 3})));
    world.run();
    world.train(&many);
    assert_eq!((slots(&world, &one), slots(&world, &many)), (on(&[0]), on(&[1, 2, 3])));
    let mark = world.log.len();
    hangs(&mut world, &one, 1);
    assert_eq!((slots(&world, &one), slots(&world, &many).len()), (on(&[0]), 2), "one is on its way");
    for _ in 0..4 {
        world.run();
        world.train(&many);
        world.pass(1_000);
    }
    let let_go =
        |f: &Fact| matches!(f, Fact::ExecutorLeaving { executor, cause: LeaveCause::Plan, .. } if executor.job == many);
    assert_eq!(since(&world, mark).iter().filter(|f| let_go(f)).count(), 1);
    assert!(slots(&world, &many).contains(&slot("local", 0)) && !slots(&world, &one).contains(&slot("local", 0)));
    assert_eq!((phase(&world, &one), members(&world, &many).len(), job(&world, &many).restarts), ("running", 3, 0));
    calm(&world);
}

#[test]
fn nobody_gives_its_only_slot_away_nor_one_to_somebody_less_important() {
    for (min, priority) in [(3, 0), (1, 1)] {
        let mut world = local(4);
        let one = of_slots(&mut world, 1, 0);
        let many = world.submit(spec_with(|spec| {
            spec["workers"] = json!({"min": min, "max": 3});
            spec["priority"] = json!(priority);
        }));
        world.run();
        world.train(&many);
        let before = slots(&world, &many);
        hangs(&mut world, &one, 1);
        assert_eq!((slots(&world, &one), slots(&world, &many)), (on(&[0]), before), "{min} {priority}");
        // It waits, and tries the same slot again.
        world.run();
        assert_eq!(phase(&world, &one), "starting");
        world.pass(60_000);
        world.run();
        assert_eq!(phase(&world, &one), "running");
        calm(&world);
    }
}

/// A copy that is too slow blames a newcomer, whose slot is avoided: the job grows with another one that is idle.
#[test]
fn a_job_that_runs_grows_elsewhere() {
    let mut world = local(3);
    let id = of_slots(&mut world, 2, 0);
    assert_eq!(slots(&world, &id), on(&[0, 1]));
    let server = ServerId::parse("local").unwrap();
    let incarnation = world.state.server(&server).unwrap().incarnation;
    let blamed = vec![Blamed { executor: ExecutorId { job: id.clone(), number: 1 }, rank: Some(Rank(1)) }];
    let report = Report::JobStalled { job: id.clone(), step: Step(10), cause: StallCause::Unit, blamed };
    world.foreign_report(server, incarnation, report);
    assert_eq!(slots(&world, &id), on(&[0, 2]));
    world.run();
    world.train(&id);
    world.run();
    assert_eq!((members(&world, &id), job(&world, &id).restarts), (vec![0, 2], 0));
    calm(&world);
}
