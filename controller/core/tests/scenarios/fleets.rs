//! Fleets, servers and what is refused: loans, lost agents, queues.

use crate::stories::*;
use crate::world::{World, dataset, slot};
use controller_core::limits::{PLAN_PAUSE_MS, REASON_CHARS_MAX, SERVER_FORGOTTEN_MS};
use controller_core::state::SlotState;
use controller_core::{Input, decide, decide_input, orders, plan_due, policy_by_name};
use events_schema::command::{Command, CommandRecord, Demand, DemandSignal, OfferMode, Recall};
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::fact::{Entry, Fact, ReclaimCause, Refusal, WaitCause};
use events_schema::job::JobSpec;
use events_schema::report::ExitCause;
use events_schema::{CommandId, Digest, FleetId, JobId, Offset, ServerId, TenantId, TimeMs};
use serde_json::{Value, json};

#[test]
fn a_fleet_reclaims_slots_by_name_and_offers_them_again() {
    let (mut world, id) = training();
    let fleet = FleetId::parse("local").unwrap();
    let named = vec![slot("local", 1), slot("local", 2)];
    world.command(Command::ReclaimSlots { fleet: fleet.clone(), slots: named.clone() });
    let busy = world.command(Command::OfferSlots { fleet: fleet.clone(), slots: named.clone() });
    assert!(matches!(refusal(&busy), Refusal::InUse { .. }));
    world.run();
    assert_eq!(members(&world, &id), [0, 3]);
    assert!(named.iter().all(|slot| world.state.slot(slot).unwrap().state == SlotState::Unoffered));
    world.pass(60_000);
    assert_eq!(members(&world, &id), [0, 3], "not used again by themselves");
    world.command(Command::OfferSlots { fleet: fleet.clone(), slots: named });
    world.run();
    assert_eq!(members(&world, &id).len(), 4);
    let foreign = world.command(Command::ReclaimSlots { fleet, slots: vec![slot("local", 9)] });
    assert!(matches!(refusal(&foreign), Refusal::Unfit { field, .. } if field == "slots"));
    calm(&world);
}

#[test]
fn demand_that_falls_while_slots_are_on_their_way_is_not_forgotten() {
    let (mut world, id) = training();
    world.demand("local", 3);
    world.demand("local", 0);
    world.demand("local", 0);
    world.run();
    assert_eq!(members(&world, &id).len(), 4);
    let old = events_schema::command::DemandSignal::new(
        FleetId::parse("local").unwrap(),
        1,
        world.at,
        events_schema::command::Demand::Needed(4),
    );
    assert!(world.input(&Input::Demand(old)).is_empty(), "an older signal is refused");
    calm(&world);
}

#[test]
fn signals_that_cannot_be_used_are_told_and_change_nothing() {
    let (mut world, _) = training();
    let tell = |fleet: &str, reason: &str| Command::TellRefused {
        fleet: FleetId::parse(fleet).unwrap(),
        offset: Offset(7),
        count: 3,
        reason: reason.to_owned(),
    };
    let before = world.state.fleet(&FleetId::parse("local").unwrap()).cloned();
    let facts = world.command(tell("local", &"é".repeat(REASON_CHARS_MAX + 1)));
    let told = facts.iter().find_map(|fact| match fact {
        Fact::SignalsRefused { offset: Offset(7), count: 3, reason, .. } => Some(reason.chars().count()),
        _ => None,
    });
    assert_eq!(told, Some(REASON_CHARS_MAX), "{facts:?}");
    assert_eq!(world.state.fleet(&FleetId::parse("local").unwrap()).cloned(), before);
    assert!(matches!(refusal(&world.command(tell("nobody", "wrong"))), Refusal::Unknown { .. }));
    calm(&world);
}

/// Demand that fell meanwhile must not offer it again when its executor is gone.
#[test]
fn a_slot_taken_by_name_while_it_is_on_its_way_stays_with_its_fleet() {
    let (mut world, id) = training();
    world.demand("local", 1);
    let on_its_way = |world: &World| {
        let mut slots = world.state.slots().filter(|(_, slot)| matches!(slot.state, SlotState::Reclaimed { .. }));
        slots.next().map(|(id, _)| id.clone()).unwrap()
    };
    let slot = on_its_way(&world);
    world.demand("local", 0);
    world.command(Command::ReclaimSlots { fleet: FleetId::parse("local").unwrap(), slots: vec![slot.clone()] });
    world.run();
    assert_eq!(world.state.slot(&slot).unwrap().state, SlotState::Unoffered);
    assert!(members(&world, &id).len() < 4);
    calm(&world);
}

/// Else the next signal would offer again what was taken back by name.
#[test]
fn the_same_declaration_again_changes_nothing() {
    let (mut world, _) = training();
    let taken = slot("local", 3);
    world.command(Command::ReclaimSlots { fleet: FleetId::parse("local").unwrap(), slots: vec![taken.clone()] });
    world.run();
    let fleet = world.state.fleet(&FleetId::parse("local").unwrap()).unwrap().clone();
    world.put_fleet("local", "local", 4, fleet.reclaim_deadline_ms);
    world.demand("local", 0);
    world.run();
    assert_eq!(world.state.slot(&taken).unwrap().state, SlotState::Unoffered);
    calm(&world);
}

#[test]
fn an_agent_that_restarts_takes_its_executors_with_it_but_not_its_loans() {
    let (mut world, id) = training();
    world.train(&id);
    world.restart_agent(&ServerId::parse("local").unwrap());
    world.deliver_all();
    assert_eq!(phase(&world, &id), "starting");
    assert_eq!(world.state.loans().count(), 4, "the offer is a fact");
    world.run();
    assert_eq!(phase(&world, &id), "running");
    assert_eq!((job(&world, &id).restarts, job(&world, &id).faults.restarts), (1, 0), "not the job's fault");
    calm(&world);
}

#[test]
fn a_lost_server_is_a_lost_member_and_its_reclaimed_slots_are_free_when_its_agent_is_back() {
    let mut world = World::new(policy_by_name("ebb").unwrap());
    for server in ["a", "b"] {
        world.start_agent(server, 2);
        world.put_fleet(server, server, 2, 2_000);
        world.deliver_all();
        world.demand(server, 0);
    }
    world.register(dataset("digits"));
    let id = world.submit(spec());
    world.run();
    assert_eq!(members(&world, &id).len(), 4);
    world.command(Command::ReclaimSlots { fleet: FleetId::parse("b").unwrap(), slots: vec![slot("b", 1)] });
    world.lose_agent(&ServerId::parse("b").unwrap());
    let state_of = |world: &World| world.state.slot(&slot("b", 1)).unwrap().state;
    assert!(matches!(state_of(&world), SlotState::Reclaimed { .. }), "a process may still be on it");
    assert_eq!(world.state.slot_shown(&slot("b", 1)), "unknown");
    assert_eq!(job(&world, &id).slots().len(), 2);
    world.run();
    assert_eq!((members(&world, &id).len(), job(&world, &id).restarts), (2, 0));
    world.start_agent("b", 2);
    world.run();
    assert_eq!((state_of(&world), world.state.slot_shown(&slot("b", 1))), (SlotState::Unoffered, "unoffered"));
    assert_eq!(job(&world, &id).slots().len(), 2, "three members would be no faster than two");
    calm(&world);
}

/// Found by simulation: its executors were started there again at once, and lost again before they were ready, for ever.
#[test]
fn a_server_that_is_lost_again_and_again_holds_up_no_job_that_begins() {
    let mut world = World::new(policy_by_name("ebb").unwrap());
    for server in ["a", "b"] {
        world.start_agent(server, 1);
        world.put_fleet(server, server, 1, 2_000);
        world.deliver_all();
        world.demand(server, 0);
    }
    world.register(dataset("digits"));
    let id = world.submit(spec());
    let b = ServerId::parse("b").unwrap();
    // It is up for five seconds, in which nobody gets ready on it.
    for _ in 0..2 {
        world.restart_agent(&b);
        world.deliver_all();
        world.pass(5_000);
    }
    world.restart_agent(&b);
    world.deliver_all();
    assert!(job(&world, &id).avoids(&slot("b", 0), world.at), "longer each time");
    world.run();
    assert_eq!((phase(&world, &id), members(&world, &id).len()), ("running", 1));
    // It has come to stay.
    world.pass(20_000);
    world.run();
    assert_eq!(members(&world, &id).len(), 2);
    calm(&world);
}

/// Found by exploration: when the last member that stayed was lost before the departed one was reaped, the job waited for the
/// departed one to recover.
#[test]
fn nobody_counts_on_a_member_that_departed() {
    let mut world = World::new(policy_by_name("ebb").unwrap());
    let [a, b] = ["a", "b"].map(|server| {
        world.start_agent(server, 1);
        world.put_fleet(server, server, 1, 2_000);
        world.deliver_all();
        world.demand(server, 0);
        ServerId::parse(server).unwrap()
    });
    world.register(dataset("digits"));
    let id = world.submit(spec());
    world.run();
    assert_eq!(members(&world, &id).len(), 2);
    let on = |world: &World, server| world.state.slot(&slot(server, 0)).unwrap().executor.clone().unwrap();
    let (departed, stayed) = (on(&world, "a"), on(&world, "b"));
    world.take_back(&slot("a", 0), true);
    world.end_process(&stayed, ExitCause::Killed);
    let mark = world.log.len();
    while world.deliver_report(&b) {}
    assert!(world.state.executor(&departed).is_some() && world.state.executor(&stayed).is_none());
    assert_eq!(proposed(&since(&world, mark)), Vec::<&Entry>::new());
    assert_eq!(phase(&world, &id), "starting", "from its last checkpoint, on the slot that is left");
    while world.deliver_report(&a) {}
    world.run();
    assert_eq!(members(&world, &id).len(), 1);
    calm(&world);
}

/// The log hears of it when it is over: without what the agent was asked, it would have taken no time, with a deadline that nobody gave.
#[test]
fn a_direct_take_back_is_on_record_with_what_was_asked_of_the_agent() {
    let (mut world, id) = training();
    let mark = world.log.len();
    // Its leader says first that the member departed, and not since when.
    world.took_back(&slot("local", 1), 700, 500);
    world.run();
    assert_eq!(members(&world, &id), [0, 2, 3]);
    let facts = since(&world, mark);
    let asked = facts.iter().find_map(|fact| match fact {
        Fact::SlotReclaimed { deadline, asked_at: Some(asked_at), .. } => Some(deadline.since_ms(*asked_at)),
        _ => None,
    });
    assert_eq!(asked, Some(500), "{facts:?}");
    let took = facts.iter().find_map(|fact| match fact {
        Fact::SlotReturned { took_ms, .. } => *took_ms,
        _ => None,
    });
    assert!(took >= Some(700), "{facts:?}");
    calm(&world);
}

/// The agent's report waits while there is nobody who takes it. The slot was its fleet's all that time.
#[test]
fn a_direct_take_back_while_nobody_decides_is_on_record_as_it_was() {
    let (mut world, id) = training();
    let (mark, seen_at) = (world.log.len(), world.at);
    world.took_back(&slot("local", 1), 700, 500);
    world.at = world.at.plus_ms(60_000);
    world.run();
    assert_eq!(members(&world, &id), [0, 2, 3]);
    let facts = since(&world, mark);
    let asked = facts.iter().find_map(|fact| match fact {
        Fact::SlotReclaimed { asked_at, .. } => *asked_at,
        _ => None,
    });
    assert_eq!(asked, Some(seen_at.minus_ms(700)), "{facts:?}");
    assert!(has(&facts, |fact| matches!(fact, Fact::SlotReturned { took_ms: Some(700), .. })), "{facts:?}");
    calm(&world);
}

#[test]
fn equal_inputs_have_one_effect() {
    let mut world = local(1);
    let record = CommandRecord {
        id: CommandId::parse("once").unwrap(),
        tenant: TenantId::parse("local").unwrap(),
        at: world.at,
        command: Command::SubmitJob {
            job: JobId::parse("job-once").unwrap(),
            spec: Box::new(spec()),
            body_digest: Digest::of(b""),
        },
        trace: None,
        expected: None,
    };
    let facts = world.input(&Input::Command(record.clone()));
    assert!(has(&facts, |f| matches!(f, Fact::CommandTaken { .. })));
    assert!(world.input(&Input::Command(record.clone())).is_empty());
    let other_id = CommandRecord { id: CommandId::parse("twice").unwrap(), ..record };
    assert!(matches!(refusal(&world.input(&Input::Command(other_id))), Refusal::Exists { kind, .. } if kind == "job"));
    let same = world.register(dataset("digits"));
    assert!(matches!(same[..], [Fact::CommandTaken { .. }]));
    let changed = world.register(DatasetInfo { rows: 7, ..dataset("digits") });
    assert!(matches!(refusal(&changed), Refusal::Exists { kind, .. } if kind == "dataset"));
}

/// Whoever appends to the log without a door: decided is what the doors would let in, read is all.
#[test]
fn what_no_door_lets_in_is_refused_or_without_effect_when_it_is_decided() {
    let mut world = local(4);
    let many = SampleShape::Classified { shape: vec![64], classes: 3_000_000 };
    let said = refusal(&world.register(DatasetInfo { sample: many.clone(), ..dataset("many") }));
    assert!(
        matches!(&said, Refusal::Unfit { field, value, .. } if field == "sample.classes" && value == "3000000"),
        "{said}"
    );
    for key in ["../../etc/secret", "jobs/job-a/model.safetensors", "datasets/../jobs/x"] {
        let said = refusal(&world.register(DatasetInfo { metadata_key: key.to_owned(), ..dataset("elsewhere") }));
        assert!(
            matches!(&said, Refusal::Unfit { field, value, .. } if field == "metadata_key" && value == key),
            "{said}"
        );
    }
    // One that an earlier build took stands, and is the same to whoever registers it again.
    let old = DatasetInfo { sample: many, metadata_key: "elsewhere".to_owned(), ..dataset("old") };
    world.state.apply(world.at, &Fact::DatasetRegistered { dataset: old.clone() });
    assert!(matches!(world.register(old)[..], [Fact::CommandTaken { .. }]));

    let signal = |sequence, demand| {
        let fleet = FleetId::parse("local").unwrap();
        Input::Demand(DemandSignal::new(fleet, sequence, TimeMs(1), demand))
    };
    assert!(world.input(&signal(u64::MAX, Demand::Needed(4))).is_empty());
    assert!(world.input(&signal(50, Demand::Needed(u32::MAX))).is_empty());
    assert!(world.input(&signal(50, Demand::Utilization { sum_milli: 1, target_milli: 0 })).is_empty());
    assert!(!world.input(&signal(50, Demand::Needed(4))).is_empty(), "the fleet is not shut out");
}

#[test]
fn a_job_that_cannot_work_is_refused_with_what_would() {
    let mut world = local(1);
    let tokens = DatasetInfo { sample: SampleShape::Tokens { length: 65, vocabulary: 100 }, ..dataset("text") };
    let flat = DatasetInfo { sample: SampleShape::Classified { shape: vec![64], classes: 10 }, ..dataset("flat") };
    world.register(tokens);
    world.register(flat);
    let mut refuse = |change: fn(&mut Value)| {
        let job = JobId::parse("job-bad").unwrap();
        let facts =
            world.command(Command::SubmitJob { job, spec: Box::new(spec_with(change)), body_digest: Digest::of(b"") });
        refusal(&facts)
    };
    let unknown =
        Refusal::Unknown { kind: "dataset".to_owned(), name: "digit".to_owned(), nearest: Some("digits".to_owned()) };
    assert_eq!(refuse(|d| d["dataset"] = json!("digit")), unknown);
    let unfit: [fn(&mut Value); 6] = [
        |d| d["dataset"] = json!("text"),
        |d| d["dataset"] = json!("flat"),
        |d| d["model"] = json!({"kind": "gpt"}),
        |d| (d["model"], d["dataset"]) = (json!({"kind": "mlp"}), json!("text")),
        |d| (d["model"], d["dataset"]) = (json!({"kind": "gpt", "context": 65}), json!("text")),
        |d| d["evaluation"] = json!({"dataset": "flat"}),
    ];
    for change in unfit {
        assert!(matches!(refuse(change), Refusal::Unfit { .. }));
    }
    let fits: [fn(&mut Value); 2] = [
        |d| (d["model"], d["dataset"]) = (json!({"kind": "gpt", "context": 64}), json!("text")),
        |d| (d["model"], d["dataset"]) = (json!({"kind": "mlp"}), json!("flat")),
    ];
    for change in fits {
        world.submit(spec_with(change));
    }
    assert_eq!(world.state.jobs().count(), 2);
    let name = events_schema::DatasetName::parse("flat").unwrap();
    assert!(matches!(refusal(&world.command(Command::RemoveDataset { dataset: name })), Refusal::InUse { .. }));
}

/// A model in PyTorch may bring its own rows: then no dataset is looked for, ordered or kept from being removed.
#[test]
fn a_job_of_its_own_rows_needs_no_dataset() {
    let own: fn(&mut Value) = |d| {
        d["model"] = json!({"kind": "torch", "entry": "train:Job", "code": "ab".repeat(32)});
        (d["dataset"], d["epochs"], d["steps"]) = (Value::Null, Value::Null, json!(9));
        d["evaluation"] = json!({"every_steps": 3});
    };
    let mut world = local(1);
    let job = world.submit(spec_with(own));
    let server = ServerId::parse("local").unwrap();
    let ordered = orders(&world.state, &server);
    assert_eq!(ordered.iter().map(|order| &order.executor.job).collect::<Vec<_>>(), [&job]);
    assert!(ordered[0].job.dataset.is_none() && ordered[0].job.evaluation.is_none());
    let name = events_schema::DatasetName::parse("digits").unwrap();
    let removed = world.command(Command::RemoveDataset { dataset: name });
    assert!(removed.iter().any(|fact| matches!(fact, Fact::DatasetRemoved { .. })), "{removed:?}");
    // What it names is looked for, and need not be like rows that nobody knows.
    let mut world = local(1);
    world.register(DatasetInfo { sample: SampleShape::Tokens { length: 65, vocabulary: 100 }, ..dataset("text") });
    let evaluated = |name: &str| {
        let mut spec = serde_json::to_value(spec_with(own).document()).unwrap();
        spec["evaluation"]["dataset"] = json!(name);
        JobSpec::parse(&spec).unwrap()
    };
    world.submit(evaluated("text"));
    let job = JobId::parse("job-other").unwrap();
    let unknown = Command::SubmitJob { job, spec: Box::new(evaluated("tex")), body_digest: Digest::of(b"") };
    let Refusal::Unfit { field, expected, .. } = refusal(&world.command(unknown)) else { panic!("it is unfit") };
    assert_eq!((field.as_str(), expected.contains("`text`")), ("evaluation.dataset", true));
}

#[test]
fn fleets_own_their_slots() {
    let mut world = local(4);
    let put = |world: &mut World, fleet: &str, slots: &[u16]| {
        let slots = slots.iter().map(|index| slot("local", *index)).collect();
        let fleet = FleetId::parse(fleet).unwrap();
        world.command(Command::PutFleet { fleet, slots, offers: OfferMode::Explicit, reclaim_deadline_ms: 2_000 })
    };
    assert!(
        matches!(refusal(&put(&mut world, "other", &[3])), Refusal::Exists { holder, .. } if holder == "fleet local")
    );
    assert!(matches!(refusal(&put(&mut world, "other", &[4])), Refusal::Unfit { .. }));
    let id = world.submit(spec());
    world.run();
    put(&mut world, "local", &[0, 1]);
    assert_eq!(job(&world, &id).slots().len(), 2);
    world.run();
    assert!(world.state.slot(&slot("local", 3)).is_none(), "returned, and nobody's");
    assert!(has(&put(&mut world, "other", &[3]), |f| matches!(f, Fact::FleetDeclared { .. })));
    calm(&world);
}

#[test]
fn somebody_elses_job_is_unknown() {
    let (mut world, id) = training();
    let stranger = CommandRecord {
        id: CommandId::parse("stranger").unwrap(),
        tenant: TenantId::parse("stranger").unwrap(),
        at: world.at,
        command: Command::CancelJob { job: id },
        trace: None,
        expected: None,
    };
    assert!(matches!(refusal(&world.input(&Input::Command(stranger))), Refusal::Unknown { nearest: None, .. }));
}

#[test]
fn fifo_gives_gangs_in_order_and_explains_the_queue() {
    let mut world = World::local(policy_by_name("fifo").unwrap(), 4);
    let jobs: Vec<JobId> =
        [3, 4, 1].map(|max| world.submit(spec_with(|d| d["workers"] = json!({"min": 1, "max": max})))).into();
    world.run();
    let waits = |world: &World, id: &JobId| reason(world, id).waits;
    assert_eq!(jobs.iter().map(|id| job(&world, id).slots().len()).collect::<Vec<_>>(), [3, 0, 0]);
    assert_eq!(waits(&world, &jobs[1]), Some(WaitCause::Slots { missing: 3 }));
    assert_eq!(waits(&world, &jobs[2]), Some(WaitCause::Job(jobs[1].clone())));
    assert_eq!(reason(&world, &jobs[2]).policy, "fifo");
    assert!(world.run_to_end(1_000));
    calm(&world);
}

/// Why a signal that repeats the need is a fact: without its number the older one would lend a slot that the fleet has kept.
#[test]
fn a_repeated_need_is_not_undone_by_an_older_signal_that_comes_late() {
    let mut world = local(4);
    world.demand("local", 2);
    let late = DemandSignal::new(FleetId::parse("local").unwrap(), 100, world.at, Demand::Needed(0));
    let repeated = DemandSignal { sequence: 101, demand: Demand::Needed(2), ..late.clone() };
    world.input(&Input::Demand(repeated));
    assert!(world.input(&Input::Demand(late)).is_empty());
    assert_eq!(world.state.loans().count(), 2);
}

#[test]
fn a_server_that_is_gone_for_long_and_holds_nothing_is_forgotten() {
    let mut world = local(1);
    let server = ServerId::parse("b").unwrap();
    world.start_agent("b", 2);
    world.put_fleet("b", "b", 2, 2_000);
    world.deliver_all();
    world.lose_agent(&server);
    world.pass(SERVER_FORGOTTEN_MS);
    assert!(world.state.server(&server).is_some(), "a fleet still counts on it");
    world.put_fleet("b", "b", 0, 2_000);
    world.pass(1);
    assert!(world.state.server(&server).is_none());
    assert!(world.state.server(&ServerId::parse("local").unwrap()).is_some());
    world.start_agent("b", 2);
    world.deliver_all();
    assert!(world.state.server(&server).is_some_and(|server| server.connected), "it may come back");
    calm(&world);
}

/// Each change at the head of the queue would be a fact for every job behind it.
#[test]
fn what_waiting_jobs_wait_for_is_not_in_the_log() {
    let mut world = local(2);
    let jobs: Vec<JobId> =
        (0..50).map(|_| world.submit(spec_with(|d| d["workers"] = json!({"min": 2, "max": 2})))).collect();
    world.run();
    assert_eq!(reason(&world, &jobs[1]).waits, Some(WaitCause::Slots { missing: 2 }));
    assert_eq!(reason(&world, &jobs[49]).waits, Some(WaitCause::Job(jobs[48].clone())));
    let mark = world.log.len();
    world.demand("local", 1);
    world.run();
    world.pass(1_000);
    assert_eq!(reason(&world, &jobs[0]).waits, Some(WaitCause::Slots { missing: 1 }));
    let said = since(&world, mark).len();
    assert!(said < jobs.len(), "{said} facts for one slot");
    calm(&world);
}

/// A policy that panics must not take along the demand that it was asked after.
#[test]
fn what_an_input_means_and_what_is_planned_after_it_are_decided_apart() {
    let (mut world, _) = training();
    let signal = DemandSignal::new(FleetId::parse("local").unwrap(), 9, world.at, Demand::Needed(2));
    let input = Input::Demand(signal);
    let facts = decide_input(&world.state, world.at, &input, "any");
    assert!(has(&facts, |f| matches!(f, Fact::SlotReclaimed { .. })), "a reclaim needs no plan");
    facts.iter().for_each(|fact| world.state.apply(world.at, fact));
    assert!(plan_due(&world.state, world.at, &input, true));
    world.state.apply(world.at, &Fact::PlanFailed { policy: "any".to_owned(), reason: String::new() });
    let at = |ms| world.at.plus_ms(ms);
    assert!(!plan_due(&world.state, at(PLAN_PAUSE_MS - 1), &Input::Tick, true), "who just died is not asked");
    assert!(plan_due(&world.state, at(PLAN_PAUSE_MS), &Input::Tick, false));
}

#[test]
fn a_tick_without_change_decides_nothing() {
    let (world, _) = training();
    let policy = policy_by_name("ebb").unwrap();
    for ms in [0, 1_000, 100_000] {
        assert!(decide(&world.state, world.at.plus_ms(ms), &Input::Tick, policy.as_ref()).is_empty());
    }
}

/// The red button: everything goes back, and no signal lends again until the fleet is released.
#[test]
fn a_recalled_fleet_lends_nothing_until_it_is_released() {
    let (mut world, id) = training();
    let fleet = FleetId::parse("local").unwrap();
    let facts = world.command(Command::RecallFleet { fleet: fleet.clone(), slots: Recall::All });
    let recalled = |fact: &&Fact| matches!(fact, Fact::SlotReclaimed { cause: ReclaimCause::Recall, .. });
    assert_eq!(facts.iter().filter(recalled).count(), 4, "{facts:?}");
    world.run();
    world.demand("local", 2);
    world.demand("local", 0);
    world.run();
    assert_eq!(world.state.job(&id).unwrap().slots().len(), 0, "no signal lends what is held");
    let named = world.command(Command::OfferSlots { fleet: fleet.clone(), slots: vec![slot("local", 0)] });
    assert!(matches!(refusal(&named), Refusal::Limit { limit: 0, what } if what.contains("recalled")));
    let less = world.command(Command::RecallFleet { fleet: fleet.clone(), slots: Recall::Slots(1) });
    assert!(!less.iter().any(|fact| matches!(fact, Fact::FleetRecalled { .. })), "a recall never lends: {less:?}");
    world.command(Command::ReleaseFleet { fleet: fleet.clone() });
    world.run();
    assert_eq!(members(&world, &id).len(), 4, "by the last signal the fleet needs none");
    let again = world.command(Command::ReleaseFleet { fleet });
    assert!(!again.iter().any(|fact| matches!(fact, Fact::FleetReleased { .. })), "{again:?}");
    calm(&world);
}

/// Not for a need: that is what a fleet says, and it has said none.
#[test]
fn what_a_recall_holds_of_a_fleet_declared_anew_goes_back_for_the_recall() {
    let (mut world, _) = training();
    world.command(Command::RecallFleet { fleet: FleetId::parse("local").unwrap(), slots: Recall::Slots(3) });
    world.run();
    let lent = world.state.loans().next().unwrap().slot.clone();
    let others = (0..4).map(|index| slot("local", index)).filter(|slot| *slot != lent).take(2);
    let slots = others.chain([lent.clone()]).collect();
    let (fleet, offers) = (FleetId::parse("local").unwrap(), OfferMode::ByDemand);
    let facts = world.command(Command::PutFleet { fleet, slots, offers, reclaim_deadline_ms: 2_000 });
    let causes: Vec<ReclaimCause> = facts
        .iter()
        .filter_map(|fact| match fact {
            Fact::SlotReclaimed { cause, .. } => Some(*cause),
            _ => None,
        })
        .collect();
    assert_eq!(causes, [ReclaimCause::Recall], "{facts:?}");
}

/// A recall of some slots is a need that no signal lowers, and one that is released while slots are on their way lends them again.
#[test]
fn a_recall_of_some_slots_adds_to_no_need_and_is_over_at_once() {
    let (mut world, id) = training();
    let fleet = FleetId::parse("local").unwrap();
    world.command(Command::RecallFleet { fleet: fleet.clone(), slots: Recall::Slots(3) });
    world.demand("local", 2);
    world.run();
    assert_eq!(members(&world, &id).len(), 1, "three are held, two of them needed");
    world.command(Command::RecallFleet { fleet: fleet.clone(), slots: Recall::All });
    world.command(Command::ReleaseFleet { fleet });
    world.run();
    assert_eq!(members(&world, &id).len(), 2, "what was on its way is lent again as far as the need allows");
    calm(&world);
}
