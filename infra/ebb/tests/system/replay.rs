//! Recorded jobs on a real service, and the simulator's run of the same beside it.

use crate::support::System;
use gateway_api::JobPhase;
use gateway_client::WantedJobs;
use serde_json::{Value, json};

/// Ten jobs of a quarter of an hour, a fleet that needs its slots in the middle, and all of it three hundred times as fast.
const JOBS: usize = 10;

fn recording() -> (String, String) {
    let row = |job: usize| format!("j{job},{},{},{}\n", job * 60, 150 + 60 * (job % 4), 1 + job % 3);
    let jobs = "name,submitted_s,duration_s,workers\n".to_owned() + &(0..JOBS).map(row).collect::<String>();
    (jobs, "t,rate\n0,1\n300,2\n600,1\n".to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_jobs_run_to_their_end_and_the_simulator_is_beside_them() {
    let system = System::start_with(4, &["--speeds", "assumed"]).await;
    let (jobs, demand) = recording();
    std::fs::write(system.path("jobs.csv"), jobs).unwrap();
    std::fs::write(system.path("demand.csv"), demand).unwrap();
    let arguments = [
        "replay",
        "--jobs",
        "jobs.csv",
        "--demand",
        "demand.csv:rate",
        "--speed-up",
        "300",
        "--step-ms",
        "20",
        "--report",
        "report",
    ];
    let document: Value = system.ebb_json(&arguments).await;
    let (live, simulated) = (&document["live"], &document["simulated"]);
    for run in [live, simulated] {
        assert_eq!(
            (&run["jobs"], &run["finished"], &run["failed"], &run["unfinished"]),
            (&json!(JOBS), &json!(JOBS), &json!(0), &json!(0)),
            "{document:#}"
        );
        for key in
            ["mean_completion_s", "makespan_s", "utilization", "harvested_slot_s", "return_p99_ms", "fairness_mean"]
        {
            assert!(run[key].as_f64().is_some_and(|figure| figure > 0.0), "{key}: {document:#}");
        }
        assert_eq!(run["guarantee_violations"], 0, "{document:#}");
    }
    let keys = |of: &Value| of.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(live), keys(simulated));
    assert!(document["left_out"].as_array().unwrap().iter().all(|key| live.get(key.as_str().unwrap()).is_none()));
    assert!(
        document["error"]["mean_completion_s"].is_f64() && document["job_completion_error"]["jobs"] == JOBS,
        "{document:#}"
    );
    assert!(document["options"]["measured_costs"]["start_ms"].as_u64().unwrap() > 0, "{document:#}");
    let rows = std::fs::read_to_string(system.path("report/jobs.csv")).unwrap();
    assert_eq!(rows.lines().count(), 1 + 2 * JOBS, "{rows}");

    let client = system.client();
    let finished = client.jobs(&WantedJobs::in_phase(JobPhase::Finished)).await.unwrap();
    assert_eq!(finished.len(), JOBS, "every job of the file ran, once");
    let fleet = client.fleet("local").await.unwrap().into_typed();
    assert_eq!(fleet.needed, Some(0), "it needs again what it needed before");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_their_tenants_within_quotas_that_the_simulated_run_has_too() {
    let system = System::start_with(4, &["--speeds", "assumed", "--policy", "antman"]).await;
    // A long one of whoever has no quota is on all slots when those of the tenant that has one come.
    let jobs =
        "name,submitted_s,duration_s,workers,tenant\nidle,0,1800,4,\nfirst,300,300,3,labs\nsecond,360,300,3,labs\n";
    std::fs::write(system.path("jobs.csv"), jobs).unwrap();
    system.ebb_json(&["tenant", "set", "labs", "--quota", "1"]).await;
    let replay =
        ["replay", "--jobs", "jobs.csv", "--speed-up", "150", "--step-ms", "20", "--quota", "labs=3", "--report", "to"];
    let document: Value = system.ebb_json(&replay).await;
    assert_eq!(document["options"]["quotas"], json!({"labs": 3}), "{document:#}");
    let rows = std::fs::read_to_string(system.path("to/jobs.csv")).unwrap();
    let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split(',').collect()).collect();
    let column = |name: &str| rows[0].iter().position(|known| *known == name).unwrap();
    let (policy, tenant, queueing) = (column("policy"), column("tenant"), column("queueing_s"));
    for run in ["live", "simulated"] {
        assert_eq!(document[run]["finished"], 3, "{document:#}");
        let of_run: Vec<_> = rows.iter().filter(|row| row[policy] == run).collect();
        let tenants: Vec<&str> = of_run.iter().map(|row| row[tenant]).collect();
        assert_eq!(tenants, ["\"local\"", "\"labs\"", "\"labs\""], "{rows:?}");
        // The quota is enough for one of its jobs: the other waits until that has ended, though slots that hold the idle one are there.
        let waited: Vec<f64> = of_run.iter().map(|row| row[queueing].parse().unwrap()).collect();
        assert!(waited[2] > 2.0 * waited[1], "{rows:?}");
    }
    let labs = system.ebb_json(&["tenant", "show", "labs"]).await;
    assert_eq!(labs["quota_slots"], 1, "it has again what it had before");
    let listed = system.ebb_json(&["jobs", "--tenant", "labs"]).await;
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 2, "{listed:#}");
    let nobodys = system.ebb(&["jobs", "--tenant", "nobody", "-o", "table"]).await;
    assert!(String::from_utf8_lossy(&nobodys.stdout).contains("tenant nobody has no jobs"), "{nobodys:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_with_other_jobs_is_not_replayed_on() {
    let system = System::start(1).await;
    let (jobs, _) = recording();
    std::fs::write(system.path("jobs.csv"), jobs).unwrap();
    let other = json!({"name": "other", "model": {"kind": "synthetic"}, "dataset": "digits", "batch_size": 1, "steps": 1_000_000});
    std::fs::write(system.path("other.json"), other.to_string()).unwrap();
    system.ebb_json(&["submit", "other.json"]).await;
    let output = system.ebb(&["replay", "--jobs", "jobs.csv"]).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("(other)") && said.contains("ebb wait"), "{said}");
}
