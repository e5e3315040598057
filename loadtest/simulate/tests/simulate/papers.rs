//! The scenarios of papers, each in a small version that takes seconds: they run, what must not be is not done, and the same seed gives the
//! same bytes. Their figures are those of the whole runs, in `docs/results.md`.

use crate::pollux;
use loadtest_simulate::Tables;
use loadtest_simulate::papers::{
    Data, Report, Scenario, amoeba, amoeba_transient, antman, easyscale, easyscale_cluster, ibm, lyra, markdown,
    pollux_peer,
};

fn ran(scenario: &Scenario, data: Option<&Data>, scale: f64) -> Report {
    let report = scenario.run(data, scale, &mut || 0).unwrap();
    assert_eq!(report.violations, Vec::<String>::new(), "{}", scenario.name);
    assert!(report.rows.iter().all(|row| row.ours.is_finite()), "{:#?}", report.rows);
    report
}

fn ours(report: &Report, run: &str, figure: &str) -> f64 {
    report.rows.iter().find(|row| row.run == run && row.figure == figure).unwrap().ours
}

#[test]
fn jobs_that_choose_their_batch_scale_better_and_fewer_are_dropped() {
    let report = ran(&ibm::TABLE_3, None, 0.25);
    assert_eq!(report.rows.len(), 10);
    let (elastic, baseline) = ("elastic, with drop", "baseline, with drop");
    assert!(ours(&report, elastic, "SJS efficiency") > ours(&report, baseline, "SJS efficiency") + 15.0);
    assert!(ours(&report, elastic, "drop ratio") < ours(&report, baseline, "drop ratio") / 2.0);
    assert!(report.rows.iter().all(|row| row.baseline == row.run.starts_with("baseline")));
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let bytes = || {
        let report = ran(&ibm::TABLE_3, None, 0.1);
        (serde_json::to_string(&report).unwrap(), markdown(&[report], None))
    };
    assert_eq!(bytes(), bytes());
}

#[test]
fn four_hundred_slots_are_shared_out() {
    let report = ran(&ibm::TABLE_4, None, 0.02);
    assert!(ours(&report, "elastic, no drop", "mean completion") < 27.0);
}

#[test]
fn a_recording_is_run_by_its_rules() {
    let workload = "name,time,application,num_replicas,batch_size\na,0,m,4,16\n".to_owned();
    let data =
        Data { pollux_workloads: vec![workload; 4], pollux_tables: pollux::five_thousand_seconds(), ..Data::default() };
    let report = ran(&pollux_peer::SCENARIO, Some(&data), 1.0);
    assert_eq!(ours(&report, "workload 3", "mean completion"), 5_030.0, "and half a minute to start");
}

#[test]
fn classes_of_jobs_are_told_apart() {
    let mut philly = "timestamp,duration_s,num_gpus,virtual_cluster\n".to_owned();
    for job in 0..60 {
        let (minute, seconds, gpus) = (job % 60, [600, 20_000, 60_000][job % 3], [1, 2, 8][job % 3]);
        philly += &format!("2017-10-09 07:{minute:02}:00,{seconds},{gpus},a\n");
    }
    let mut tables = Tables::default();
    tables.add("m", "global_batch_size,1,2,4,8,16\n100,1,1.9,3.6,6,7\n").unwrap();
    let data = Data { philly: Some(philly), elasticflow_tables: tables, ..Data::default() };
    let report = ran(&amoeba::SCENARIO, Some(&data), 1.0);
    let of = |class| ours(&report, class, "tiresias, completion");
    assert!(of("small jobs") < of("median jobs") && of("median jobs") < of("large jobs"), "{:#?}", report.rows);
}

#[test]
fn transient_slots_pay_where_a_change_of_size_stops_nobody_for_long() {
    let report = ran(&amoeba_transient::SCENARIO, None, 0.1);
    for row in &report.rows {
        match row.figure {
            "of ideal, at least" => assert!(row.ours >= row.paper && row.ours <= 100.0, "{row:#?}"),
            "of baseline, below" => assert!(row.ours < row.paper, "{row:#?}"),
            _ => {}
        }
    }
    let breaks_even = ours(&report, "stop-resume, 4 idle", "breaks even");
    assert!((breaks_even - 8.6).abs() < 0.3, "{breaks_even}");
    assert!(ours(&report, "amoeba, 4 idle", "breaks even") < 1.0);
}

#[test]
fn lent_slots_and_elastic_jobs_shorten_completions() {
    let basic = ran(&lyra::BASIC_SCENARIO, None, 0.005);
    let ideal = ran(&lyra::IDEAL_SCENARIO, None, 0.005);
    let shorter = |report| ours(report, "lyra", "completion, shorter");
    assert!(shorter(&basic) > 1.0 && shorter(&ideal) > shorter(&basic), "{:#?} {:#?}", basic.rows, ideal.rows);
    assert!(basic.rows.iter().filter(|row| row.baseline).all(|row| row.run == "baseline"));
}

#[test]
fn jobs_that_begin_on_what_is_free_are_done_sooner_than_gangs() {
    let report = ran(&easyscale::SCENARIO, None, 0.3);
    assert!(ours(&report, "easyscale", "mean completion, shorter") > 1.2);
    assert!(ours(&report, "easyscale", "makespan, shorter") > 0.9);
}

#[test]
fn guaranteed_jobs_are_done_as_if_alone_and_others_use_the_rest() {
    let report = ran(&antman::SCENARIO, None, 0.3);
    assert!(ours(&report, "antman", "mean completion, shorter") > 1.0, "{:#?}", report.rows);
    assert!(ours(&report, "antman, beside packed", "mean completion, shorter") > 1.0, "{:#?}", report.rows);
    assert!((ours(&report, "antman", "guaranteed, as alone") - 1.0).abs() < 0.1, "{:#?}", report.rows);
}

#[test]
fn jobs_have_what_is_not_served_with() {
    let report = ran(&easyscale_cluster::SCENARIO, None, 0.1);
    assert!(ours(&report, "easyscale", "used by jobs, mean") > 100.0, "{:#?}", report.rows);
    assert_eq!(ours(&report, "easyscale", "jobs that end well"), 100.0);
}
