//! For unit tests: a job that trains, by the facts that made it so, and reports that are decided and applied. Stories that need executors which answer are in
//! `tests/scenarios`.
#![allow(clippy::unwrap_used)]

use crate::Input;
use crate::decide::decide_input;
use crate::state::State;
use events_schema::fact::{Entry, Fact, Member, PlanCause, PlanReason, Proposal};
use events_schema::job::JobSpec;
use events_schema::report::{Report, ReportRecord};
use events_schema::slot_type::TypeTime;
use events_schema::stride::Stride;
use events_schema::{
    Cell, CommandId, Digest, ExecutorId, Generation, JobId, Rank, ServerId, SlotId, Step, TenantId, TimeMs,
};
use serde_json::{Value, json};

const INCARNATION: u64 = 1;

/// What types were measured to take.
pub(crate) fn times(of: &[(&str, u64)]) -> Vec<TypeTime> {
    let time = |(name, unit_us): &(&str, u64)| TypeTime { slot_type: Some(name.parse().unwrap()), unit_us: *unit_us };
    of.iter().map(time).collect()
}

fn server() -> ServerId {
    ServerId::parse("local").unwrap()
}

/// A job that trains on so many slots of one server, a rank each, and whose spec says this beside what it has to.
pub(crate) fn training(job: &JobId, members: u16, said: &Value) -> State {
    let mut spec = json!({
        "name": "digits", "model": {"kind": "cnn"}, "dataset": "digits", "workers": {"min": 1, "max": members},
        "batch_size": 8, "steps": 1000,
    });
    spec.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
    let executor = |number: u16| ExecutorId { job: job.clone(), number: number.into() };
    let slot = |index| SlotId { server: server(), index };
    let member = |number| Member { executor: executor(number), address: String::new(), ranks: vec![Rank(number)] };
    let (generation, leader, deadline) = (Generation(1), executor(0), TimeMs(1_000));
    let proposal = Proposal {
        generation,
        entry: Entry::Fresh,
        members: (0..members).map(member).collect(),
        leader,
        deadline,
        stride: Stride::ONE,
    };
    let reason = PlanReason { policy: "ebb".to_owned(), cause: PlanCause::Gain, waits: None };
    let (class, address) = (Digest([0; 32]), String::new());
    let mut facts = vec![
        Fact::AgentJoined {
            server: server(),
            incarnation: INCARNATION,
            slots: members,
            class,
            address,
            devices: Vec::new(),
            guests: false,
            slot_type: None,
        },
        Fact::JobAccepted {
            job: job.clone(),
            tenant: TenantId::parse("local").unwrap(),
            command: CommandId::parse("c").unwrap(),
            spec: Box::new(JobSpec::parse(&spec).unwrap()),
            body_digest: Digest([0; 32]),
        },
        Fact::PlanAdopted {
            job: job.clone(),
            slots: (0..members).map(slot).collect(),
            reason,
            from: None,
            attained_slot_ms: None,
        },
    ];
    for number in 0..members {
        facts.push(Fact::ExecutorAssigned { executor: executor(number), slot: slot(number) });
        facts.push(Fact::ExecutorReady {
            executor: executor(number),
            address: String::new(),
            class: None,
            replica_bytes: None,
            gradient_bytes: None,
        });
    }
    facts.push(Fact::GenerationProposed { job: job.clone(), proposal });
    facts.push(Fact::GenerationActive { job: job.clone(), generation, step: Step(0), pause_us: 0 });
    let mut state = State::new(Cell(0));
    facts.iter().for_each(|fact| state.apply(TimeMs(1), fact));
    assert_eq!(state.job(job).unwrap().phase.name(), "running");
    state
}

/// What is decided about a report of the watch.
pub(crate) fn reported(state: &mut State, at: TimeMs, report: Report) -> Vec<Fact> {
    let input = Input::Report(ReportRecord {
        server: server(),
        incarnation: INCARNATION,
        number: 0,
        at,
        report,
        trace: None,
        after: None,
    });
    let facts = decide_input(state, at, &input, "ebb");
    facts.iter().for_each(|fact| state.apply(at, fact));
    facts
}
