//! Every invariant can be broken, by facts that no decision makes, and is found then: by the look at everything, and by the cheap
//! one at what changed.

use crate::world::{World, dataset, slot};
use controller_core::invariants::{check, check_batch, check_changes, check_step, names, overdue};
use controller_core::policy_by_name;
use events_schema::fact::{
    CheckpointInfo, Entry, Fact, Member, PlanCause, PlanReason, Proposal, ReclaimCause, Verdict,
};
use events_schema::job::JobSpec;
use events_schema::stride::Stride;
use events_schema::{Digest, ExecutorId, FleetId, Generation, JobId, Rank, ServerId, Step, TimeMs};
use serde_json::json;
use std::collections::BTreeSet;

/// Two servers of two slots; a job of two to four workers trains on three of them, one slot is idle.
fn world() -> (World, JobId) {
    let mut world = World::new(policy_by_name("ebb").unwrap());
    for server in ["a", "b"] {
        world.start_agent(server, 2);
        world.put_fleet(server, server, 2, 2_000);
        world.deliver_all();
        world.demand(server, 0);
    }
    world.register(dataset("digits"));
    let spec = json!({
        "name": "digits", "model": {"kind": "cnn"}, "dataset": "digits", "workers": {"min": 2, "max": 3}, "batch_size": 8,
        "steps": 1000, "checkpoint": {"every_steps": 50, "keep": 1},
    });
    let job = world.submit(JobSpec::parse(&spec).unwrap());
    world.run();
    world.train(&job);
    assert_eq!(world.state.job(&job).unwrap().slots().len(), 3);
    (world, job)
}

fn planned(job: &JobId, slots: &[(&str, u16)]) -> Fact {
    let slots = slots.iter().map(|(server, index)| slot(server, *index)).collect();
    Fact::PlanAdopted {
        job: job.clone(),
        slots,
        reason: PlanReason { policy: "ebb".to_owned(), cause: PlanCause::Gain, waits: None },
        from: None,
        attained_slot_ms: None,
    }
}

fn reclaimed(server: &str, index: u16) -> Fact {
    let (slot, cause) = (slot(server, index), ReclaimCause::Demand);
    Fact::SlotReclaimed { slot, deadline: TimeMs(9_000), cause, fleet: None, job: None, asked_at: None }
}

fn returned(server: &str, index: u16) -> Fact {
    Fact::SlotReturned { slot: slot(server, index), fleet: None, took_ms: None }
}

fn proposed(job: &JobId, generation: u64, ranks: u16) -> Fact {
    let executor = ExecutorId { job: job.clone(), number: 0 };
    let members =
        vec![Member { executor: executor.clone(), address: String::new(), ranks: (0..ranks).map(Rank).collect() }];
    let proposal = Proposal {
        generation: Generation(generation),
        entry: Entry::Recover,
        members,
        leader: executor,
        deadline: TimeMs(1),
        stride: Stride::ONE,
    };
    Fact::GenerationProposed { job: job.clone(), proposal }
}

fn checkpoint(job: &JobId, step: u64) -> Fact {
    let checkpoint = CheckpointInfo {
        step: Step(step),
        generation: Generation(1),
        manifest_key: format!("m{step}"),
        replica_digest: Digest::of(b""),
        bytes: 1,
    };
    Fact::CheckpointAccepted { job: job.clone(), checkpoint }
}

/// Facts that break an invariant, after others that do not.
struct Break {
    invariant: &'static str,
    before: Vec<Fact>,
    facts: Vec<Fact>,
}

fn breaks(world: &World, job: &JobId) -> Vec<Break> {
    let server = |name: &str| ServerId::parse(name).unwrap();
    let breaks = |invariant, facts| Break { invariant, before: vec![], facts };
    let gone = Fact::AgentGone { server: server("b") };
    let joined = Fact::AgentJoined {
        server: server("b"),
        incarnation: 1,
        slots: 2,
        class: Digest::of(b"other"),
        address: String::new(),
        devices: Vec::new(),
        guests: false,
        slot_type: None,
    };
    let (number, executor) = world.state.executors().next().unwrap();
    let taken = Fact::ExecutorAssigned { executor: number.clone(), slot: slot("b", 1) };
    let left = Fact::ExecutorGone {
        executor: number.clone(),
        slot: executor.slot.clone(),
        exit: events_schema::report::ExitCause::Killed,
        verdict: Some(Verdict::Well),
        awaited_until: None,
    };
    let again = Fact::ExecutorAssigned { executor: number.clone(), slot: executor.slot.clone() };
    let demand = Fact::DemandAccepted { fleet: FleetId::parse("a").unwrap(), sequence: 99, needed: 2, forecast: None };
    // Its spec names no range.
    let mut together = proposed(job, 9, 3);
    if let Fact::GenerationProposed { proposal, .. } = &mut together {
        proposal.stride = Stride::of(2);
    }
    let mut shared = joined.clone();
    if let Fact::AgentJoined { class, guests, .. } = &mut shared {
        (*class, *guests) = (Digest::of(b"class"), true);
    }
    // On a slot and on the one beside it.
    let mut twice = planned(job, &[]);
    if let Fact::PlanAdopted { slots, .. } = &mut twice {
        slots.extend(world.state.job(job).unwrap().slots().iter().cloned());
        slots.push(slots.iter().find(|slot| slot.server == server("b")).unwrap().guest());
    }
    vec![
        breaks("a slot has at most one owner", vec![taken]),
        breaks("no slot is used outside a loan", vec![returned("a", 0)]),
        breaks("who is on a reclaimed slot has to leave by its deadline", vec![reclaimed("a", 0)]),
        breaks("no plan exceeds capacity", vec![gone.clone()]),
        breaks("a job below its guarantee is queued or gives everything back", vec![planned(job, &[("a", 0)])]),
        breaks("a fleet lends no more than it can spare", vec![demand]),
        breaks("the ranks of a generation cover 0..W once", vec![proposed(job, 9, 2)]),
        breaks("a generation's batch is within its job's range", vec![together]),
        breaks("generations are numbered upwards", vec![proposed(job, 0, 3)]),
        breaks("checkpoints ascend and are bounded", vec![checkpoint(job, 9), checkpoint(job, 8)]),
        breaks("a job runs on one numeric class", vec![joined.clone()]),
        Break { invariant: "a guest slot goes with its host", before: vec![shared], facts: vec![twice] },
        Break { invariant: FREED, before: vec![gone, reclaimed("b", 1)], facts: vec![returned("b", 1)] },
        Break { invariant: "an executor's number is never used again", before: vec![left], facts: vec![again] },
    ]
}

const FREED: &str = "a slot is free only when its agent says so";

/// Facts alone cannot break these: `apply` keeps them.
const KEPT_BY_APPLY: [&str; 5] = [
    "a terminal job never changes",
    "a generation never goes back",
    "every accepted job is in exactly one phase",
    "a fleet's lent slots are counted",
    "ended jobs are filed once",
];

#[test]
fn each_invariant_is_found_broken_by_both_looks() {
    let (world, job) = world();
    let mut broken: BTreeSet<&str> = KEPT_BY_APPLY.into();
    for Break { invariant, before, facts } in breaks(&world, &job) {
        let mut from = world.state.clone();
        before.iter().for_each(|fact| from.apply(world.at, fact));
        let mut to = from.clone();
        facts.iter().for_each(|fact| to.apply(world.at, fact));
        let named = |violations: Vec<controller_core::invariants::Violation>| {
            violations.into_iter().map(|violation| violation.invariant).collect::<BTreeSet<_>>()
        };
        let whole = named([check(&to), check_step(&from, &to)].concat());
        assert!(whole.contains(invariant), "{invariant}: {whole:?}");
        let changes = named(check_changes(&from, &to));
        assert!(changes.contains(invariant), "{invariant}: {changes:?}");
        broken.insert(invariant);
    }
    assert_eq!(broken, names().collect());
}

/// Found by a random schedule (seed 23830): both stood in one batch, and the look at what a batch changed took it for a break.
#[test]
fn a_slot_may_be_handed_back_just_before_its_agent_is_given_up() {
    let (world, _) = world();
    let mut after = world.state.clone();
    let gone = Fact::AgentGone { server: ServerId::parse("b").unwrap() };
    for fact in [reclaimed("b", 1), returned("b", 1), gone] {
        after.apply(world.at, &fact);
    }
    let broken = [check_batch(&world.state, &after), check_changes(&world.state, &after)].concat();
    assert!(broken.iter().all(|violation| violation.invariant != FREED), "{broken:?}");
}

/// The look at one input is stricter than that at a batch: else nobody would see who hands back the slots of an agent that is given up.
#[test]
fn no_input_frees_a_slot_with_its_agent_away() {
    let (world, _) = world();
    let mut before = world.state.clone();
    before.apply(world.at, &reclaimed("b", 1));
    let mut after = before.clone();
    let gone = Fact::AgentGone { server: ServerId::parse("b").unwrap() };
    [gone, returned("b", 1)].iter().for_each(|fact| after.apply(world.at, fact));
    assert!(check_step(&before, &after).iter().any(|violation| violation.invariant == FREED));
}

#[test]
fn a_slot_nobody_can_know_about_is_not_overdue() {
    let (mut world, _) = world();
    world.state.apply(world.at, &reclaimed("b", 0));
    let late = |world: &World, at| overdue(&world.state, TimeMs(at), 500).count();
    assert_eq!((late(&world, 9_500), late(&world, 9_501)), (0, 1));
    world.state.apply(world.at, &Fact::AgentGone { server: ServerId::parse("b").unwrap() });
    assert_eq!(late(&world, 99_999), 0);
}
