//! What events say of a live run becomes the figures of a simulated one, and the simulator is told what they say of costs.

use loadtest_simulate::live::{LEFT_OUT, LiveFleet, Observed, Observer, compared, gradient_ms, table};
use loadtest_simulate::setup::{Shape, jobs};
use loadtest_simulate::{Costs, Demand, Format, Information, Setup, Tables, run, trace};
use serde_json::{Value, json};

/// Two jobs, of ten seconds on two slots and of one on one, in steps of a second.
fn setup() -> Setup {
    let trace = trace::parse("submitted_s,duration_s,workers\n0,10,2\n1,1,1\n", Format::Csv).unwrap();
    let shape = Shape { min_share: 0.0, max_share: 1.0, step_ms: 1_000, speed_up: 1.0, goodput: false };
    let (jobs, _) = jobs(&trace, &Tables::default(), &shape, &Costs::none(), 0).unwrap();
    Setup {
        inference: "1x2:a".parse().map(|group| loadtest_simulate::Cluster { groups: vec![group] }).unwrap(),
        demand: vec![Demand::new(vec![(0, 0), (4_000, 1), (8_000, 0)], 60_000)],
        information: Information::Stepped,
        ..Setup::of_training_alone(jobs, loadtest_simulate::Cluster::default(), Costs::none(), 0)
    }
}

fn observed(events: &[(u64, &str, Value)]) -> (Observed, Setup) {
    let slot = |slot: &str, lent| (slot.parse().unwrap(), lent);
    let fleet = LiveFleet {
        name: "chat".to_owned(),
        serves: true,
        slots: vec![slot("s/0", true), slot("s/1", true)],
        needed: 0,
    };
    let setup = setup();
    let mut observer = Observer::new(1_000_000, &[fleet], &["a".to_owned(), "b".to_owned()], &setup);
    for (at_ms, kind, data) in events {
        observer.event(1_000_000 + at_ms, &json!({"type": format!("dev.ebb.{kind}.v1"), "data": data}));
    }
    observer.finish(|moves| moves.told(&setup))
}

/// The first job trains on both slots, gives one back, has it again when the second is done, and ends.
fn events() -> Vec<(u64, &'static str, Value)> {
    let planned = |job: &str, from: usize, slots: &[&str]| json!({"job": job, "from": from, "to": slots.len(), "slots": slots, "cause": "gain", "policy": "ebb"});
    let of = |job: &str, executor: &str, slot: &str| json!({"job": job, "executor": executor, "slot": slot});
    let proposed = |job: &str, generation: u64, entry: &str, members: &[&str]| {
        let members: Vec<Value> = members.iter().map(|executor| json!({"executor": executor, "ranks": []})).collect();
        json!({"job": job, "generation": generation, "entry": entry, "members": members})
    };
    let active = |job: &str, generation: u64, step: u64, pause_us: u64| json!({"job": job, "generation": generation, "step": step, "pause_us": pause_us});
    vec![
        (100, "job.accepted", json!({"job": "job-1", "name": "a"})),
        (100, "job.planned", planned("job-1", 0, &["s/0", "s/1"])),
        (100, "executor.assigned", of("job-1", "e0", "s/0")),
        (100, "executor.assigned", of("job-1", "e1", "s/1")),
        (500, "executor.ready", of("job-1", "e0", "s/0")),
        (700, "executor.ready", of("job-1", "e1", "s/1")),
        (700, "generation.proposed", proposed("job-1", 1, "fresh", &["e0", "e1"])),
        (720, "generation.active", active("job-1", 1, 0, 0)),
        (1_000, "job.accepted", json!({"job": "job-2", "name": "b"})),
        (1_000, "job.accepted", json!({"job": "job-3", "name": "somebody else's"})),
        (3_720, "generation.throughput_measured", json!({"job": "job-1", "members": 2, "step_us": 1_010_000})),
        (4_000, "fleet.demand", json!({"fleet": "chat", "sequence": 1, "needed": 1})),
        (4_000, "slot.reclaimed", json!({"fleet": "chat", "slot": "s/1", "job": "job-1", "cause": "demand"})),
        (4_000, "job.planned", planned("job-1", 2, &["s/0"])),
        (4_000, "executor.leaving", json!({"job": "job-1", "executor": "e1", "cause": "reclaim"})),
        (
            4_750,
            "generation.departed",
            json!({"job": "job-1", "executor": "e1", "generation": 1, "leader": "e0", "step": 4}),
        ),
        (4_790, "executor.gone", of("job-1", "e1", "s/1")),
        (4_790, "slot.returned", json!({"fleet": "chat", "slot": "s/1", "took_ms": 790})),
        (8_000, "fleet.demand", json!({"fleet": "chat", "sequence": 2, "needed": 0})),
        (8_000, "slot.offered", json!({"fleet": "chat", "slots": ["s/1"]})),
        (8_000, "job.planned", planned("job-2", 0, &["s/1"])),
        (8_000, "executor.assigned", of("job-2", "e2", "s/1")),
        (8_400, "executor.ready", of("job-2", "e2", "s/1")),
        (8_400, "generation.proposed", proposed("job-2", 1, "fresh", &["e2"])),
        (8_420, "generation.active", active("job-2", 1, 0, 0)),
        (9_520, "job.finished", json!({"job": "job-2", "step": 1})),
        (9_520, "executor.leaving", json!({"job": "job-2", "executor": "e2", "cause": "job_end"})),
        (9_560, "executor.gone", of("job-2", "e2", "s/1")),
        (16_850, "job.finished", json!({"job": "job-1", "step": 10})),
    ]
}

#[test]
fn a_live_run_has_the_figures_of_a_simulated_one() {
    let (live, told) = observed(&events());
    let figures = live.outcome.figures(&[None, None]);
    let of = |key: &str| figures[key].as_f64().unwrap();
    assert_eq!((of("jobs"), of("finished"), of("unfinished")), (2.0, 2.0, 0.0));
    assert_eq!(of("mean_completion_s"), (16.75 + 8.52) / 2.0);
    assert_eq!((of("mean_queueing_s"), of("makespan_s")), (3.5, 16.75));
    assert_eq!((of("scalings"), of("preemptions"), of("guarantee_violations")), (1.0, 0.0, 0.0));
    // Two members from 0.72 to 4.75 and one until 16.85, and the second job's from 8.42 to 9.52.
    assert_eq!(of("harvested_slot_s"), 21.26);
    // Processes begin at 0.1 and 8, and the last one is there until the end.
    assert_eq!(of("lost_slot_s"), 1.74, "of 23 slot·s with a process");
    // One slot was needed and not there until it was returned.
    assert_eq!((of("unmet_demand_slot_s"), of("return_p99_ms")), (0.79, 790.0));
    assert_eq!(gradient_ms(&told.jobs[0]), 1_000);
    let costs = told.costs;
    assert_eq!((costs.start_ms, costs.link_ms, costs.exit_ms), (467, 20, 40));
    // Where steps take ten milliseconds longer together, and nothing is known of those alone, so do the simulator's.
    let speed = |slots| told.jobs[0].curve.speed(slots).unwrap();
    assert!((1.0 / speed(2) - 1_010.0).abs() < 1e-6, "{}", 1.0 / speed(2));
    assert!(live.notes.is_empty(), "{:?}", live.notes);
}

#[test]
fn both_runs_are_beside_each_other_with_the_error_of_each_figure() {
    let (live, told) = observed(&events());
    let policy = controller_core::policy_by_name("ebb").unwrap();
    let simulated = run(&told, policy.as_ref(), &mut || 0);
    assert_eq!(simulated.tally.violations, [""; 0]);
    let document = compared(&live, &simulated, &[None, None]);
    for key in LEFT_OUT {
        assert!(document["live"].get(key).is_none() && document["simulated"].get(key).is_none(), "{key}");
    }
    let figure = |of: &str| document[of]["mean_completion_s"].as_f64().unwrap();
    assert!((figure("error") - (figure("simulated") - figure("live")) / figure("live")).abs() < 1e-12);
    assert_eq!(document["job_completion_error"]["jobs"], 2);
    let table = table(&document);
    assert!(
        table.contains("completion mean, s") && table.contains("error, %") && !table.contains("decision"),
        "{table}"
    );
}

#[test]
fn what_makes_it_another_run_is_said() {
    let mut events = events();
    events.truncate(8);
    events.extend([
        (2_000, "fleet.recalled", json!({"fleet": "chat"})),
        (3_000, "generation.member_lost", json!({"job": "job-1", "executor": "e1", "slot": "s/1", "noticed": "exit"})),
        (3_000, "executor.gone", json!({"job": "job-1", "executor": "e1", "slot": "s/1"})),
        (5_000, "job.failed", json!({"job": "job-1", "reason": "of its own"})),
    ]);
    let (live, _) = observed(&events);
    let figures = live.outcome.figures(&[None, None]);
    assert_eq!((&figures["failed"], &figures["unfinished"]), (&json!(1), &json!(1)));
    assert_eq!(figures["harvested_slot_s"], json!(4.56), "until the loss");
    let said = live.notes.join("; ");
    assert!(
        said.contains("chat was recalled") && said.contains("a process was lost") && said.contains("of its own"),
        "{said}"
    );
}
