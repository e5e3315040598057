//! What exchanges keep, as properties over plans and grudges of any sort. What they are good for is told in `tests/scenarios/elsewhere.rs`.
#![allow(clippy::unwrap_used)]

use super::*;
use events_schema::command::OfferMode;
use events_schema::fact::{AvoidCause, Entry, Fact, LeaveCause, Member, Proposal, Verdict};
use events_schema::job::JobSpec;
use events_schema::stride::Stride;
use events_schema::{Cell, CommandId, Digest, ExecutorId, FleetId, Generation, Rank, Step, TenantId};
use proptest::prelude::*;
use serde_json::json;

const AT: TimeMs = TimeMs(1_000_000);
/// Two servers of one class, and one of another.
const SERVERS: u16 = 3;
const SLOTS: u16 = 3;
const JOBS: usize = 3;

/// A slot of a job's plan, or of none.
#[derive(Debug, Clone, Copy)]
struct Given {
    /// Whose, if anybody's.
    job: usize,
    /// 0: nobody is on it; 1: somebody is; 2: somebody who is to stop at once.
    on_it: u8,
    /// For how long each job avoids it.
    avoided_ms: [u64; JOBS],
}

fn any_given() -> impl Strategy<Value = Given> {
    let avoided_ms = || prop_oneof![4 => Just(0u64), 1 => Just(5_000u64), 2 => Just(60_000u64)];
    let all = (avoided_ms(), avoided_ms(), avoided_ms());
    (0..JOBS + 2, 0u8..3, all).prop_map(|(job, on_it, (a, b, c))| Given { job, on_it, avoided_ms: [a, b, c] })
}

fn name(index: usize) -> JobId {
    JobId::parse(&format!("job-{index}")).unwrap()
}

fn slot(number: usize) -> SlotId {
    let (server, index) = (number / usize::from(SLOTS), (number % usize::from(SLOTS)) as u16);
    SlotId { server: ServerId::parse(&format!("server-{server}")).unwrap(), index }
}

/// A class to each server: the first two have the same.
fn class(server: u16) -> Digest {
    Digest([u8::from(server == SERVERS - 1); 32])
}

fn state(given: &[Given], priorities: &[i32]) -> State {
    let mut state = State::new(Cell(0));
    let mut facts = Vec::new();
    for server in 0..SERVERS {
        facts.push(Fact::AgentJoined {
            server: slot(usize::from(server * SLOTS)).server,
            incarnation: 1,
            slots: SLOTS,
            class: class(server),
            address: String::new(),
            devices: Vec::new(),
            guests: false,
            slot_type: None,
        });
    }
    let (fleet, slots) = (FleetId::parse("fleet").unwrap(), (0..given.len()).map(slot).collect::<Vec<_>>());
    let offers = OfferMode::ByDemand;
    facts.push(Fact::FleetDeclared { fleet: fleet.clone(), slots: slots.clone(), offers, reclaim_deadline_ms: 1_000 });
    facts.push(Fact::SlotsOffered { fleet, slots });
    for (index, priority) in priorities.iter().enumerate() {
        // Of one class: a job has no slots of another.
        let of_class = |of: &SlotId, other: &SlotId| state_class(of) == state_class(other);
        let mut has: Vec<usize> = (0..given.len()).filter(|&number| given[number].job == index).collect();
        if let Some(&first) = has.first() {
            has.retain(|&number| of_class(&slot(first), &slot(number)));
        }
        facts.extend(job(index, *priority, &has, given));
    }
    facts.iter().for_each(|fact| state.apply(AT, fact));
    state
}

fn state_class(slot: &SlotId) -> Digest {
    class(slot.server.as_str().rsplit('-').next().unwrap().parse().unwrap())
}

/// The facts of a job that runs with whoever is on its slots, or begins if nobody is.
fn job(index: usize, priority: i32, has: &[usize], given: &[Given]) -> Vec<Fact> {
    let id = name(index);
    let spec = json!({
        "name": "digits", "model": {"kind": "cnn"}, "dataset": "digits", "workers": {"min": 1 + index % 2, "max": 8},
        "batch_size": 8, "steps": 1000, "priority": priority,
    });
    let mut facts = vec![Fact::JobAccepted {
        job: id.clone(),
        tenant: TenantId::parse("local").unwrap(),
        command: CommandId::parse(&format!("command-{index}")).unwrap(),
        spec: Box::new(JobSpec::parse(&spec).unwrap()),
        body_digest: Digest([0; 32]),
    }];
    let reason = PlanReason { policy: "ebb".to_owned(), cause: PlanCause::Gain, waits: None };
    let slots: Vec<SlotId> = has.iter().map(|&number| slot(number)).collect();
    facts.extend(slots.iter().map(|slot| Fact::SlotBorrowed { slot: slot.clone(), fleet: None, job: None }));
    facts.push(Fact::PlanAdopted { job: id.clone(), slots, reason, from: None, attained_slot_ms: None });
    let executor = |number: usize| ExecutorId { job: id.clone(), number: number as u32 };
    let on_it: Vec<usize> = has.iter().copied().filter(|&number| given[number].on_it > 0).collect();
    for &number in &on_it {
        facts.push(Fact::ExecutorAssigned { executor: executor(number), slot: slot(number) });
        facts.push(Fact::ExecutorReady {
            executor: executor(number),
            address: String::new(),
            class: None,
            replica_bytes: None,
            gradient_bytes: None,
        });
    }
    if let Some(&leader) = on_it.first() {
        let member = |&number: &usize| Member {
            executor: executor(number),
            address: String::new(),
            ranks: vec![Rank(number as u16)],
        };
        let (generation, members) = (Generation(1), on_it.iter().map(member).collect());
        let (leader, deadline) = (executor(leader), AT.plus_ms(60_000));
        let proposal = Proposal { generation, entry: Entry::Fresh, members, leader, deadline, stride: Stride::ONE };
        facts.push(Fact::GenerationProposed { job: id.clone(), proposal });
        facts.push(Fact::GenerationActive { job: id.clone(), generation, step: Step(0), pause_us: 0 });
    }
    for &number in on_it.iter().filter(|&&number| given[number].on_it == 2) {
        let (executor, cause, verdict) = (executor(number), LeaveCause::Useless, Some(Verdict::Well));
        facts.push(Fact::ExecutorLeaving { executor, deadline: AT, cause, verdict });
    }
    for (number, given) in given.iter().enumerate().filter(|(_, given)| given.avoided_ms[index] > 0) {
        let until = AT.plus_ms(given.avoided_ms[index]);
        facts.push(Fact::SlotAvoided { job: id.clone(), slot: slot(number), until, cause: AvoidCause::Hung });
    }
    facts
}

/// What comes of exchanges, and what was decided for it.
fn exchanged(state: &State) -> (State, Vec<Fact>) {
    let mut draft = Draft::new(state.clone(), AT, "ebb");
    exchange(&mut draft);
    (draft.state, draft.facts)
}

/// What comes of asking, and what was decided for it.
fn asked(state: &State) -> (State, Vec<Fact>) {
    let mut draft = Draft::new(state.clone(), AT, "ebb");
    ask(&mut draft);
    (draft.state, draft.facts)
}

/// The slots of a job's plan that it can use now.
fn usable(state: &State, id: &JobId) -> usize {
    let job = state.job(id).unwrap();
    job.slots().iter().filter(|slot| !job.avoids(slot, AT)).count()
}

/// Its executors that stay where they are.
fn staying(state: &State, id: &JobId) -> usize {
    let job = state.job(id).unwrap();
    let stays = |executor: &crate::state::Executor| executor.leaving.is_none() && job.slots().contains(&executor.slot);
    state.executors_of(id).filter(|(_, executor)| stays(executor)).count()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn exchanges_take_nothing_from_anybody(
        given in proptest::collection::vec(any_given(), usize::from(SERVERS * SLOTS)),
        priorities in proptest::collection::vec(-1i32..2, JOBS),
    ) {
        let before = state(&given, &priorities);
        let (after, facts) = exchanged(&before);
        prop_assert_eq!(&facts, &exchanged(&before).1, "the same again");
        let (jobs, mut planned) = ((0..JOBS).map(name), BTreeSet::new());
        for id in jobs {
            let (was, is) = (before.job(&id).unwrap(), after.job(&id).unwrap());
            prop_assert_eq!((was.phase.name(), was.slots().len()), (is.phase.name(), is.slots().len()));
            prop_assert!(is.slots().iter().all(|slot| planned.insert(slot.clone())), "a slot in two plans");
            let kinds = |job: &Job| job.slots().iter().map(|slot| before.kind(slot)).collect::<BTreeSet<_>>();
            prop_assert_eq!(kinds(was), kinds(is));
            prop_assert!(usable(&after, &id) >= usable(&before, &id), "{} is worse off", id);
            prop_assert!(is.slots().difference(was.slots()).all(|slot| !is.avoids(slot, AT)));
            prop_assert_eq!(staying(&after, &id), staying(&before, &id), "who is there stays: {}", id);
        }
        prop_assert!(exchanged(&after).1.is_empty(), "a second plan finds nothing to exchange");
        // What is asked for besides leaves everybody its fewest, and its leader, and is asked for once.
        let (asked, _) = asked(&after);
        for id in (0..JOBS).map(name) {
            let (was, is) = (after.job(&id).unwrap(), asked.job(&id).unwrap());
            let (min, stayed) = (usize::from(was.spec.executors().min), staying(&asked, &id));
            prop_assert!(is.slots() == was.slots() || is.slots().is_subset(was.slots()) && stayed >= min, "{}", id);
            let leads = |state: &State, job: &Job| {
                let leader = job.active().and_then(|active| state.executor(&active.leader));
                leader.is_some_and(|leader| leader.leaving.is_none() && job.slots().contains(&leader.slot))
            };
            prop_assert_eq!(leads(&after, was), leads(&asked, is), "a leader stays where it is");
        }
        prop_assert!(self::asked(&asked).1.is_empty(), "asked for twice");
    }

    #[test]
    fn nobody_stays_where_it_does_not_work_beside_an_idle_slot(
        given in proptest::collection::vec(any_given(), usize::from(SERVERS * SLOTS)),
        priorities in proptest::collection::vec(-1i32..2, JOBS),
    ) {
        let (after, _) = exchanged(&state(&given, &priorities));
        for id in (0..JOBS).map(name) {
            let job = after.job(&id).unwrap();
            let Some(slot) = left(&after, &id, job, AT) else { continue };
            let fits = |other: &SlotId| after.kind(other) == after.kind(&slot) && !job.avoids(other, AT);
            let idle = after.slots().find(|(other, known)| known.is_idle() && fits(other));
            prop_assert!(idle.is_none(), "{id} is on {slot} beside {idle:?}");
        }
    }
}
