//! A job whose own code ends the process that runs it, rather than raise: what chance did once is tried again, what it does twice at one place it does always.

use crate::stories::*;
use crate::world::World;
use controller_core::state::JobPhase;
use events_schema::command::Command;
use events_schema::control::CODE_ENDED_STATUS;
use events_schema::report::{CodeEndedAt, ExitCause};
use events_schema::{ExecutorId, JobId, Rank, ServerId, Step};

fn ended(at: CodeEndedAt) -> ExitCause {
    let said = "the Python process crashed with a segmentation fault".to_owned();
    ExitCause::Failed { status: CODE_ENDED_STATUS, said, code_ended: Some(at) }
}

/// The code of a member ends in the generation in force, at this step, for this rank's gradient or for none.
fn ends(world: &mut World, id: &JobId, number: u32, step: u64, rank: Option<u16>) {
    let generation = job(world, id).active().unwrap().proposal.generation;
    let at = CodeEndedAt::Step { generation, step: Step(step), rank: rank.map(Rank) };
    assert!(world.end_process(&ExecutorId { job: id.clone(), number }, ended(at)));
}

/// Everybody who is left goes on, and new executors are started.
fn goes_on(world: &mut World) {
    world.deliver_all();
    world.pass(70_000);
    world.run();
}

fn reason_of_failure(world: &World, id: &JobId) -> String {
    match &job(world, id).phase {
        JobPhase::Failed { reason, .. } => reason.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_same_gradient_that_ends_two_executors_fails_the_job_by_name() {
    let (mut world, id) = training();
    ends(&mut world, &id, 1, 7, Some(2));
    goes_on(&mut world);
    assert_eq!(phase(&world, &id), "running", "once may be chance");
    ends(&mut world, &id, 3, 7, Some(2));
    goes_on(&mut world);
    assert_eq!(
        reason_of_failure(&world, &id),
        "the job's code ended twice at step 7, rank 2, on slot local/1 and then on slot local/3: the Python process crashed with a \
         segmentation fault"
    );
    calm(&world);
}

#[test]
fn a_job_of_one_executor_fails_after_two_ends_not_after_ten_restarts() {
    let mut world = local(1);
    let id = world.submit(spec());
    world.run();
    ends(&mut world, &id, 0, 0, Some(0));
    goes_on(&mut world);
    assert_eq!((phase(&world, &id), job(&world, &id).restarts), ("running", 1));
    ends(&mut world, &id, 1, 0, Some(0));
    goes_on(&mut world);
    assert!(reason_of_failure(&world, &id).contains("twice at step 0, rank 0"));
    calm(&world);
}

#[test]
fn getting_further_forgives_and_so_does_another_place() {
    let (mut world, id) = training();
    for (step, rank) in [(7, Some(2)), (9, Some(2)), (9, Some(0)), (9, None), (7, Some(2)), (30, Some(2))] {
        let number = members(&world, &id)[0];
        ends(&mut world, &id, number, step, rank);
        goes_on(&mut world);
        assert_eq!((phase(&world, &id), members(&world, &id).len()), ("running", 4), "step {step}, rank {rank:?}");
    }
    calm(&world);
}

/// As where the memory of a server is not enough for all that run on it: with fewer it may be.
#[test]
fn members_that_end_together_are_one_end() {
    let (mut world, id) = training();
    for (number, rank) in [(0, Some(0)), (1, None), (2, None)] {
        ends(&mut world, &id, number, 7, rank);
    }
    goes_on(&mut world);
    assert_eq!(phase(&world, &id), "running");
    // Of either place somebody knew.
    ends(&mut world, &id, 3, 7, Some(0));
    goes_on(&mut world);
    assert!(
        reason_of_failure(&world, &id).contains("twice at step 7, rank 0, on slot local/0 and then on slot local/3")
    );
    calm(&world);
}

#[test]
fn code_that_ends_while_it_is_started_fails_the_job_when_who_began_afterwards_ends_too() {
    let mut world = local(4);
    let id = world.submit(spec());
    let server = ServerId::parse("local").unwrap();
    world.deliver_orders(&server);
    for number in 0..3 {
        assert!(world.end_process(&ExecutorId { job: id.clone(), number }, ended(CodeEndedAt::Start)));
    }
    world.deliver_all();
    assert_eq!(phase(&world, &id), "starting", "they began together");
    world.pass(2_000);
    world.deliver_orders(&server);
    assert!(world.end_process(&ExecutorId { job: id.clone(), number: 4 }, ended(CodeEndedAt::Start)));
    world.deliver_all();
    assert!(reason_of_failure(&world, &id).contains("ended twice while it was started"));
    calm(&world);
}

#[test]
fn newcomers_whose_code_does_not_start_do_not_end_a_job_that_trains() {
    let mut world = local(4);
    world.demand("local", 3);
    let id = world.submit(spec());
    world.run();
    world.demand("local", 0);
    let mut ended_so = 0;
    for number in 1..7 {
        world.deliver_orders(&ServerId::parse("local").unwrap());
        let newcomer = ExecutorId { job: id.clone(), number };
        if world.processes().contains(&newcomer) {
            assert!(world.end_process(&newcomer, ended(CodeEndedAt::Start)));
            ended_so += 1;
        }
        world.deliver_all();
        world.pass(70_000);
    }
    assert!(ended_so > 3, "{ended_so}");
    assert_eq!(phase(&world, &id), "running");
    calm(&world);
}

#[test]
fn a_job_that_is_resumed_may_try_again() {
    let (mut world, id) = training();
    ends(&mut world, &id, 1, 7, Some(2));
    goes_on(&mut world);
    world.command(Command::SuspendJob { job: id.clone() });
    goes_on(&mut world);
    world.command(Command::ResumeJob { job: id.clone() });
    goes_on(&mut world);
    let number = members(&world, &id)[0];
    ends(&mut world, &id, number, 7, Some(2));
    goes_on(&mut world);
    assert_eq!(phase(&world, &id), "running");
    calm(&world);
}
