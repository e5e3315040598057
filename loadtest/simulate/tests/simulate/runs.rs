//! Whole runs: what is computed by hand, what has to hold for every policy, and that the same setup gives the same bytes.

use crate::pollux;
use controller_core::policy::POLICY_NAMES;
use controller_core::policy::ibm_dp::{IbmDp, Unfit};
use controller_core::policy_by_name;
use loadtest_simulate::outcome::Ended;
use loadtest_simulate::setup::{Shape, jobs};
use loadtest_simulate::sharing::Sharing;
use loadtest_simulate::trace::parse;
use loadtest_simulate::{Costs, Demand, Failures, Format, Information, Outcome, Setup, Tables, run};
use std::fmt::Write;

const SHAPE: Shape = Shape { min_share: 0.0, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: false };

fn setup(trace: &str, cluster: &str, costs: Costs) -> Setup {
    setup_of(trace, cluster, costs, &SHAPE)
}

fn setup_of(trace: &str, cluster: &str, costs: Costs, shape: &Shape) -> Setup {
    let trace = parse(trace, Format::Csv).unwrap();
    Setup::of_training_alone(
        jobs(&trace, &Tables::default(), shape, &costs, 0).unwrap().0,
        cluster.parse().unwrap(),
        costs,
        0,
    )
}

fn ran(setup: &Setup, policy: &str) -> Outcome {
    let outcome = run(setup, policy_by_name(policy).unwrap().as_ref(), &mut || 0);
    assert_eq!(outcome.tally.violations, Vec::<String>::new(), "{policy}");
    outcome
}

fn figures(outcome: &Outcome) -> serde_json::Value {
    outcome.figures(&vec![None; outcome.jobs.len()])
}

fn ends_s(outcome: &Outcome) -> Vec<f64> {
    outcome.jobs.iter().map(|job| job.ended.unwrap().1 as f64 / 1e3).collect()
}

/// Jobs of every size that come by a fixed sequence: enough of them that some wait.
fn many(count: u64) -> String {
    let mut text = "submitted_s,duration_s,workers\n".to_owned();
    for job in 0..count {
        let chance = (job * 2_654_435_761) % 1_009;
        let _ = writeln!(text, "{},{},{}", job * 37, 60 + chance * 2, [1, 2, 4, 8, 3][(chance % 5) as usize]);
    }
    text
}

/// A fleet that lends six of eight slots, wants all of them back, and lends them again.
fn tide(mut setup: Setup) -> Setup {
    setup.inference = "2x4:t4".parse().unwrap();
    let signals = vec![(0, 2), (300_000, 8), (450_000, 5), (900_000, 1)];
    setup.demand = vec![Demand::new(signals, 1_200_000)];
    setup
}

#[test]
fn two_jobs_in_turn_take_what_was_computed_by_hand() {
    let text = "submitted_s,duration_s,workers\n0,100,4\n10,50,2\n";
    let outcome = ran(&setup(text, "1x4:t4", Costs::none()), "fifo");
    // The second one does not fit beside the first, waits 90 s for it, and has two of four slots.
    assert_eq!(ends_s(&outcome), [100.0, 150.0]);
    let figures = figures(&outcome);
    let of = |key: &str| figures[key].as_f64().unwrap();
    assert_eq!((of("mean_completion_s"), of("mean_queueing_s"), of("makespan_s")), (120.0, 45.0, 150.0));
    assert_eq!((of("utilization"), of("lost_slot_s"), of("preemptions")), (500.0 / 600.0, 0.0, 0.0));
    assert_eq!((of("training_utilization"), of("overall_utilization")), (500.0 / 600.0, 500.0 / 600.0));
    // The first had four slots for 1.9 jobs in the mean, two of them: 200 s alone. The second four for 1.64 over 140 s: both that it can use.
    assert_eq!((of("fairness_mean"), of("fairness_p99"), of("unfair_share")), ((0.5 + 2.8) / 2.0, 2.8, 0.5));
}

/// Slots that `research` and `labs` have guaranteed; `guests` have none.
fn with_quotas(setup: Setup) -> Setup {
    let quota = |name: &str, slots| (name.parse().unwrap(), slots);
    Setup { quotas: [quota("research", 8), quota("labs", 4), quota("guests", 0)].into(), ..setup }
}

#[test]
fn who_waits_though_its_tenants_quota_has_room_for_it_is_counted() {
    let text = "submitted_s,duration_s,workers,tenant\n0,900,8,guests\n10,100,4,research\n20,100,4,research\n30,100,4,research\n40,100,8,labs\n";
    let setup = with_quotas(setup(text, "2x4:t4", Costs::none()));
    let broken = |policy| figures(&ran(&setup, policy))["guarantee_violations"].as_u64().unwrap();
    // Both that fit into the quota; the third one does not, and `labs` asks for more than it has.
    assert_eq!((broken("fifo"), broken("antman")), (2, 0));
    let nobody = Setup { quotas: Default::default(), ..setup.clone() };
    assert_eq!(figures(&ran(&nobody, "fifo"))["guarantee_violations"], 0);
}

#[test]
fn antman_keeps_nobody_from_what_is_guaranteed_whatever_happens() {
    let mut text = "submitted_s,duration_s,workers,tenant,priority,slot_type\n".to_owned();
    for (number, row) in many(150).lines().skip(1).enumerate() {
        let tenant = ["research", "labs", "guests", "nobody"][number * 7 % 4];
        let only = if number % 3 == 2 && !row.ends_with(",8") { "v100" } else { "" };
        let _ = writeln!(text, "{row},{tenant},{},{only}", i64::from(number % 11 > 0) - 1);
    }
    let calm = with_quotas(setup(&text, "2x4:t4,1x4:v100", Costs::measured(200)));
    let tidal = tide(calm.clone());
    let shared = Setup { sharing: Some(Sharing::OF_ANTMAN), ..tidal.clone() };
    let breaking = Setup { failures: Some(Failures { mean_ms: 1_800_000.0, repair_ms: 300_000 }), ..tidal.clone() };
    let in_rounds = Setup { round_ms: Some(60_000), ..calm.clone() };
    for (name, setup) in
        [("calm", calm), ("tidal", tidal), ("shared", shared), ("breaking", breaking), ("rounds", in_rounds)]
    {
        assert_eq!(ran(&setup, "antman").tally.denied, 0, "{name}");
        assert!(ran(&setup, "fifo").tally.denied > 5, "{name}");
    }
}

#[test]
fn what_starting_and_leaving_costs_is_counted() {
    let text = "submitted_s,duration_s,workers\n0,100,4\n10,50,2\n";
    let costs = Costs { start_ms: 6_000, link_ms: 500, exit_ms: 250, ..Costs::none() };
    let outcome = ran(&setup(text, "1x4:t4", costs), "fifo");
    // 6.5 s to begin; the first leaves within 0.25 s of its end.
    assert_eq!(ends_s(&outcome), [106.5, 106.5 + 0.25 + 6.5 + 50.0]);
    // 4 and 2 slots for 6.5 s, and 4 for 0.25 s; what leaves after the last job's end is not waited for.
    assert_eq!(figures(&outcome)["lost_slot_s"].as_f64().unwrap(), 26.0 + 13.0 + 1.0);
}

#[test]
fn a_job_that_grows_does_its_work_in_less_time() {
    // Alone on one slot at first, because the other job has three; from its end on all four.
    let text = "submitted_s,duration_s,workers,min_workers,max_workers\n0,100,3,3,3\n0,400,1,1,4\n";
    let outcome = ran(&setup(text, "1x4:t4", Costs::none()), "ebb");
    let ends = ends_s(&outcome);
    // 400 s of work on one slot: 100 s of it before the others come free, the other 300 s four times as fast, and a step's rest at a change.
    assert!(ends[0] == 100.0 && (175.0..176.0).contains(&ends[1]), "{ends:?}");
    // Its three slots come free one after the other.
    assert_eq!(outcome.tally.scalings, 3);
}

#[test]
fn a_job_goes_on_while_its_newcomers_are_sent_the_replica() {
    let text = "submitted_s,duration_s,workers,min_workers,max_workers\n0,100,3,3,3\n0,400,1,1,4\n";
    let costs = Costs { copy_ms: 60_000, grow_ms: 1_000, ..Costs::none() };
    let ends = ends_s(&ran(&setup(text, "1x4:t4", costs), "ebb"));
    // 160 s of its work are done when they come in, a second later the other 240 s go on four times as fast; standing still meanwhile it would take 15 s longer.
    assert!((221.0..223.0).contains(&ends[1]), "{ends:?}");
}

#[test]
fn the_same_setup_gives_the_same_bytes() {
    let mut setup = tide(setup(&many(120), "2x4:t4", Costs::measured(200)));
    setup.failures = Some(Failures { mean_ms: 3_600_000.0, repair_ms: 600_000 });
    for policy in POLICY_NAMES {
        let (first, second) = (ran(&setup, policy), ran(&setup, policy));
        assert_eq!(figures(&first).to_string(), figures(&second).to_string());
        assert_eq!(first.jobs, second.jobs);
    }
}

#[test]
fn every_job_ends_once_and_nothing_is_used_that_is_not_lent() {
    for policy in POLICY_NAMES {
        let mut setup = tide(setup(&many(200), "2x4:t4", Costs::measured(200)));
        let calm = ran(&setup, policy);
        assert!(calm.jobs.iter().all(|job| matches!(job.ended, Some((Ended::Finished, _)))), "{policy}");
        setup.failures = Some(Failures { mean_ms: 3_600_000.0, repair_ms: 600_000 });
        let stormy = ran(&setup, policy);
        assert!(stormy.tally.failures > 0 && stormy.tally.undone_ms > 0, "{policy}");
        assert!(stormy.jobs.iter().all(|job| matches!(job.ended, Some((Ended::Finished, _)))), "{policy}");
    }
}

#[test]
fn demand_takes_slots_and_gives_them_back() {
    let text = "submitted_s,duration_s,workers\n0,2000,8\n";
    let outcome = ran(&tide(setup(text, "1x2:t4", Costs::measured(200))), "ebb");
    let figures = figures(&outcome);
    let of = |key: &str| figures[key].as_f64().unwrap();
    assert!(of("harvested_slot_s") > 1_000.0 && of("scalings") >= 4.0, "{figures:#}");
    // Each slot is back after what is left of a step, and its process' end; never later than its deadline.
    assert!(of("returns") >= 6.0 && of("return_p99_ms") <= 5_000.0, "{figures:#}");
    let unmet = of("unmet_demand_slot_s");
    assert!(unmet > 0.0 && unmet <= of("returns") * of("return_p99_ms") / 1_000.0, "{figures:#}");
}

#[test]
fn usage_of_all_counts_what_serves_too() {
    let outcome = ran(&tide(setup(&many(30), "2x4:t4", Costs::none())), "ebb");
    let figures = figures(&outcome);
    let of = |key: &str| figures[key].as_f64().unwrap();
    let [cluster, serving] = &outcome.tally.fleets[..] else { panic!("two fleets") };
    let all = 8.0 * outcome.until_ms as f64;
    assert_eq!(of("training_utilization"), cluster.training_ms as f64 / all);
    let used = cluster.training_ms + serving.training_ms + serving.needed_ms;
    assert_eq!(of("overall_utilization"), used as f64 / (2.0 * all));
    assert!(of("overall_utilization") > of("training_utilization") / 2.0, "the fleet that serves needs some itself");
}

#[test]
fn a_job_that_can_use_one_type_only_waits_for_that_type() {
    let text =
        "submitted_s,duration_s,workers,slot_type\n0,100,4,\n0,100,4,v100\n0,100,4,t4\n0,100,4,v100\n0,10,1,a100\n";
    let outcome = ran(&setup(text, "1x4:v100,2x4:t4", Costs::none()), "fifo");
    let ends: Vec<Option<u64>> = outcome.jobs.iter().map(|job| job.ended.map(|(_, at)| at / 1_000)).collect();
    assert_eq!(ends, [Some(100), Some(100), Some(100), Some(200), None], "there is no a100");
}

/// A boundary is waited for a second at most. Their own parts of the step take longer than that, so they go at the first look, after a fifth of it; the others
/// do that step anew.
#[test]
fn who_cannot_wait_for_a_boundary_leaves_in_the_midst_of_the_step() {
    let text = "submitted_s,duration_s,workers\n0,600,4\n";
    let shape = Shape { step_ms: 20_000, ..SHAPE };
    let mut setup = setup_of(text, "1x2:t4", Costs::measured(0), &shape);
    setup.inference = "1x2:t4".parse().unwrap();
    setup.demand = vec![Demand::new(vec![(0, 0), (205_000, 2)], 86_400_000)];
    let outcome = ran(&setup, "ebb");
    assert_eq!(outcome.tally.returns_ms, [200 + 46, 200 + 46]);
    assert!(matches!(outcome.jobs[0].ended, Some((Ended::Finished, _))));
}

#[test]
fn a_job_that_has_to_go_is_saved_and_loses_no_step() {
    // A gang of four on a fleet that takes all slots back once.
    let text = "submitted_s,duration_s,workers,min_workers\n0,600,4,4\n";
    let mut setup = setup(text, "1x1:t4", Costs::measured(200));
    setup.inference = "1x4:t4".parse().unwrap();
    setup.demand = vec![Demand::new(vec![(0, 0), (200_000, 4), (400_000, 0)], 86_400_000)];
    let outcome = ran(&setup, "fifo");
    assert_eq!((outcome.jobs[0].preemptions, outcome.tally.undone_ms), (1, 0));
    // It begins after 6.434 s, so its step in flight at 200 s ends at 200.434 s: 194 s are done. Each member writes a quarter of the replica. At 400 s the job starts
    // again, reads for 0.438 s, and has 406 s to go.
    assert_eq!(outcome.tally.returns_ms, [434 + 110 + 46; 4]);
    assert_eq!(outcome.jobs[0].ended, Some((Ended::Finished, 400_000 + 6_434 + 438 + 406_000)));
}

#[test]
fn who_is_killed_at_its_deadline_goes_back_to_its_last_checkpoint() {
    let text = "submitted_s,duration_s,workers,min_workers\n0,600,4,4\n";
    let mut costs = Costs::measured(200);
    // Saving takes longer than the fleet waits; a checkpoint every minute.
    (costs.save_ms, costs.checkpoint_every_ms) = (40_000, 60_000);
    let mut setup = setup(text, "1x1:t4", costs);
    setup.inference = "1x4:t4".parse().unwrap();
    setup.demand = vec![Demand::new(vec![(0, 0), (200_000, 4), (400_000, 0)], 86_400_000)];
    let outcome = ran(&setup, "fifo");
    // 194 s were trained when they stood still to write, of which 180 s are in a checkpoint.
    let undone_s = outcome.tally.undone_ms as f64 / 4_000.0;
    assert!((13.5..14.5).contains(&undone_s), "{undone_s}");
    assert_eq!(outcome.tally.returns_ms.iter().max(), Some(&5_000));
}

/// "If a single scheduled job requires 10 mins to complete on a single GPU but requires 6 mins to complete on 2 GPUs, then its Optimal GPU time
/// will be 10 mins whereas the Actual GPU time will be 12 mins" (Saxena et al., §IV-C).
#[test]
fn scaling_efficiency_is_time_on_one_slot_by_time_on_all() {
    let mut tables = Tables::default();
    tables.add_speeds("m", vec![(1, 1.0), (2, 10.0 / 6.0)]);
    let text = "submitted_s,duration_s,workers,min_workers,max_workers,model\n0,600,1,1,2,m\n";
    let made = jobs(&parse(text, Format::Csv).unwrap(), &tables, &SHAPE, &Costs::none(), 0).unwrap().0;
    let setup = Setup { jobs: made, ..setup(text, "1x2:t4", Costs::none()) };
    let outcome = run(&setup, &IbmDp::new(0, Unfit::Wait), &mut || 0);
    assert_eq!(ends_s(&outcome), [360.0]);
    assert_eq!(figures(&outcome)["sjs_efficiency"].as_f64().unwrap(), 10.0 / 12.0);
}

#[test]
fn who_finds_no_room_is_dropped_or_waits() {
    let text = "submitted_s,duration_s,workers,min_workers\n0,100,3,3\n10,50,2,2\n20,30,1,1\n";
    let setup = setup(text, "1x4:t4", Costs::none());
    let dropped = run(&setup, &IbmDp::new(0, Unfit::AreDropped), &mut || 0);
    assert_eq!(dropped.tally.violations, Vec::<String>::new());
    assert_eq!(
        ends_s(&dropped),
        [100.0, 10.0, 50.0],
        "the second fails at once, and the third has the slot that is left"
    );
    assert_eq!(
        (figures(&dropped)["failed"].as_u64(), figures(&dropped)["drop_ratio"].as_f64()),
        (Some(1), Some(1.0 / 3.0))
    );
    let waits = run(&setup, &IbmDp::new(0, Unfit::Wait), &mut || 0);
    assert_eq!((ends_s(&waits), figures(&waits)["drop_ratio"].as_f64()), (vec![100.0, 150.0, 130.0], Some(0.0)));
}

#[test]
fn what_became_of_each_job_can_be_read() {
    let text = "submitted_s,duration_s,workers,name,tenant\n0,100,4,\"a, \"\"b\"\"\",t\n10,50,9,never,\n";
    let mut setup = setup(text, "1x4:t4", Costs::none());
    // Nobody ever has nine slots, and it takes no fewer.
    setup.jobs[1].spec = events_schema::job::JobSpec::parse(&serde_json::json!({
        "name": "never", "model": {"kind": "mlp", "hidden": [1]}, "dataset": "recorded",
        "workers": {"min": 9, "max": 9}, "batch_size": 1, "steps": 100,
    }))
    .unwrap();
    let outcome = ran(&setup, "ebb");
    let expected = "ebb,\"a, \"\"b\"\"\",\"t\",0,0,100,100,0,1,0,finished\nebb,\"never\",,10,,,,,0,0,unfinished\n";
    assert_eq!(outcome.jobs_csv(&setup), expected);
    assert_eq!(figures(&outcome)["unfinished"], 1);
}

#[test]
fn a_run_waits_for_a_job_of_a_month_and_not_for_one_that_cannot_run() {
    let month = "submitted_s,duration_s,workers\n0,2592000,4\n";
    let outcome = ran(&tide(setup(month, "1x4:t4", Costs::none())), "fifo");
    assert_eq!(ends_s(&outcome), [2_592_000.0]);
    // Twelve slots there never are: the fleet keeps one of its eight at least.
    let outcome = ran(&tide(setup("submitted_s,duration_s,workers\n0,60,13\n", "1x4:t4", Costs::none())), "fifo");
    assert!(outcome.jobs[0].ended.is_none() && outcome.until_ms > 6 * 86_400_000, "{}", outcome.until_ms);
}

/// Of who comes nothing is known before it has stepped, of who runs it is known to be long: that alone must not make room for who comes.
#[test]
fn an_equal_gang_that_arrives_stops_nobody() {
    let text =
        "submitted_s,duration_s,workers,min_workers,max_workers\n0,25200,8,8,8\n600,25200,8,8,8\n1200,25200,8,8,8\n";
    let setup = Setup { information: Information::Stepped, ..setup(text, "2x4:t4", Costs::none()) };
    let outcome = ran(&setup, "ebb");
    assert_eq!((ends_s(&outcome), outcome.tally.preemptions), (vec![25_200.0, 50_400.0, 75_600.0], 0));
}

#[test]
fn in_rounds_jobs_wait_for_the_next_one() {
    let text = "submitted_s,duration_s,workers,min_workers\n0,100,4,4\n10,50,2,2\n";
    let mut setup = setup(text, "1x4:t4", Costs::none());
    setup.round_ms = Some(60_000);
    assert_eq!(ends_s(&ran(&setup, "fifo")), [100.0, 170.0]);
    // A quantum of 10,000 slot·s is over at 2,500 s; the round after it has the old job give way, which does the rest of its step first.
    let text = "submitted_s,duration_s,workers,min_workers\n0,5000,4,4\n2000,60,4,4\n";
    let setup = Setup { round_ms: Some(60_000), ..self::setup(text, "1x4:t4", Costs::none()) };
    assert_eq!(ends_s(&ran(&setup, "tiresias")), [2_640.0 + 5_000.0 - 2_520.5, 2_640.0]);
}

/// Pollux's rules, by hand: a training of 5,000 s on four GPUs, 30 s of pause at each start, rounds of a minute, and progress that can be
/// stopped at any time.
#[test]
fn by_the_rules_of_pollux_who_gives_way_is_gone_in_the_same_round() {
    let tables = pollux::five_thousand_seconds();
    let text = "name,time,application,num_replicas,batch_size\na,0,m,4,16\nb,2000,m,4,16\n";
    let (shape, costs) =
        (Shape { min_share: 1.0, goodput: true, ..SHAPE }, Costs { start_ms: 30_000, ..Costs::none() });
    let made = jobs(&parse(text, Format::Pollux).unwrap(), &tables, &shape, &costs, 0).unwrap().0;
    let setup = Setup { jobs: made, costs, round_ms: Some(60_000), ..setup(&many(1), "1x4:t4", costs) };
    let outcome = ran(&setup, "tiresias");
    // The first is stopped at 2,520 s with 2,490 s done, the second at 5,040 s with as much; they go on in the order in which they were demoted.
    assert_eq!(ends_s(&outcome), [5_070.0 + 2_510.0, 7_650.0 + 2_510.0]);
    assert_eq!((outcome.tally.preemptions, outcome.tally.undone_ms, outcome.tally.unmeasured), (2, 0, 0));
}

#[test]
fn the_shipped_recording_can_be_run() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/simulate/jobs.csv");
    let text = std::fs::read_to_string(file).unwrap();
    for policy in POLICY_NAMES {
        let outcome = ran(&setup(&text, "2x4:t4", Costs::measured(200)), policy);
        assert!(outcome.jobs.len() == 60 && outcome.jobs.iter().all(|job| job.ended.is_some()), "{policy}");
    }
}

/// Exchanges between four take twice as long as gradients of 100 samples. Under `fifo` the batch stays; `ebb` has 400 samples on four slots; `ibm-dp` too, once it has
/// measured what a profile tries.
#[test]
fn a_batch_that_moves_is_moved_by_the_rules_of_the_live_policies() {
    let mut tables = Tables::default();
    let step_s = |samples: f64, slots: f64| samples / 1_000.0 / slots + if slots > 1.0 { 0.05 } else { 0.0 };
    let mut table = "global_batch_size,1,2,4\n".to_owned();
    for samples in [100, 200, 400] {
        let rate = |slots| 1.0 / step_s(f64::from(samples), slots);
        let _ = writeln!(table, "{samples},{},{},{}", rate(1.0), rate(2.0), rate(4.0));
    }
    tables.add("a", &table).unwrap();
    let text = "submitted_s,duration_s,workers,model,batch_size,batch_max\n0,600,4,a,100,400\n";
    let trace = parse(text, Format::Csv).unwrap();
    let recorded = jobs(&trace, &tables, &SHAPE, &Costs::none(), 0).unwrap().0;
    let ends = |policy: &str, profiled: bool| {
        let mut jobs = recorded.clone();
        if profiled {
            jobs.iter_mut().for_each(|job| job.spec = job.spec.clone().profiled());
        }
        let outcome = ran(&Setup::of_training_alone(jobs, "1x4:t4".parse().unwrap(), Costs::none(), 0), policy);
        ends_s(&outcome)[0]
    };
    // 600 s of steps of 0.075 s; four of them at once take 0.15 s.
    assert_eq!(ends("fifo", false), 600.0);
    assert_eq!(ends("ebb", false), 300.0);
    // It decides every ten minutes of the clock, here first after 599 s; until then only a profile has slots.
    let decided_s = 599.0;
    assert_eq!(ends("ibm-dp", false), decided_s + 600.0, "it knows nothing of exchanges");
    let measured = ends("ibm-dp", true) - decided_s;
    assert!((300.0..330.0).contains(&measured), "{measured}");
}
