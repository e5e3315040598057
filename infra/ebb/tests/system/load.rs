//! The load driver against the real service: two fleets and a job mix for a few seconds, judged and drawn.

use crate::support::System;
use gateway_api::JobPhase;
use gateway_client::WantedJobs;
use serde_json::{Value, json};

/// Two fleets whose demand changes every few tenths of a second, and jobs that come meanwhile.
fn scenario(thresholds: &Value) -> Value {
    let model = json!({"kind": "mlp", "hidden": [16]});
    let spec = json!({
        "model": model, "dataset": "digits", "workers": {"min": 1, "max": 2}, "batch_size": 16, "steps": 2_000_000, "seed": 1,
        "optimizer": {"kind": "sgd", "learning_rate": 0.05},
    });
    json!({
        "name": "short", "seed": 1, "duration": "6s", "drain": "30s",
        "fleets": [
            {"fleet": "local", "declare": {"servers": [{"server": "local", "slots": [0]}]}, "demand": {"steps": [{"at": "0s", "needed": 0}]}},
            {
                "fleet": "chat", "declare": {"servers": [{"server": "local", "slots": [1]}]},
                "demand": {"steps": [{"at": "0s", "needed": 0}, {"at": "1s", "needed": 1}], "repeat": "2s"},
            },
        ],
        "jobs": [{"name": "endless", "spec": spec, "arrivals": {"every": "3s"}, "most": 2}],
        "thresholds": thresholds,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scenario_is_run_measured_judged_and_drawn() {
    let system = System::start(2).await;
    let run = async |name: &str, thresholds: Value| {
        std::fs::write(system.path(name), scenario(&thresholds).to_string()).unwrap();
        let output = system.ebb(&["load", name, "-o", "json", "--picture", "load.svg"]).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
        (output.status.code(), report, said)
    };
    let generous = json!({"slot_return_ms": {"p99": 60_000}, "first_step_ms": {"max": 120_000}, "refused": {"max": 0}, "unanswered": {"max": 0}});
    let (code, report, said) = run("holds.json", generous).await;
    assert_eq!(code, Some(0), "{said}{report:#}");
    // All signals are sent, whatever became of those before: one by `local` and every second one by `chat`.
    assert_eq!((&report["signals"], &report["jobs"]), (&json!(7), &json!(2)));
    let count = |name: &str| {
        let all = report["latencies"].as_array().unwrap();
        all.iter().find(|latency| latency["name"] == name).unwrap()["count"].as_u64().unwrap()
    };
    assert!(count("slot_return_ms") >= 1 && count("demand_met_ms") >= 1 && count("first_step_ms") >= 1, "{report:#}");
    let picture = std::fs::read_to_string(system.path("load.svg")).unwrap();
    assert!(picture.contains("slots of chat") && picture.contains("steps per second"), "{picture}");
    let jobs = system.client().jobs(&WantedJobs::in_phase(JobPhase::Running)).await.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(jobs, [], "its jobs are cancelled");

    let (code, report, said) = run("fails.json", json!({"first_step_ms": {"p99": 0}, "refused": {"max": 0}})).await;
    assert_eq!(code, Some(9), "{said}{report:#}");
    assert!(said.contains("first_step_ms p99"), "{said}");
    let holds: Vec<bool> = report["thresholds"].as_array().unwrap().iter().map(|v| v["holds"] == true).collect();
    assert_eq!(holds, [false, true]);
}

/// The first round of the shipped scenario: long enough for a burst to take slots from its long job, as every later one does.
#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_scenario_shows_slots_that_come_back_from_a_job() {
    let system = System::start(4).await;
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/load");
    let scenario = std::fs::read_to_string(format!("{shipped}/two-fleets.yaml")).unwrap();
    assert!(scenario.contains("duration: 60s"));
    std::fs::write(system.path("first-round.yaml"), scenario.replace("duration: 60s", "duration: 11s")).unwrap();
    std::fs::copy(format!("{shipped}/servegen-day.csv"), system.path("servegen-day.csv")).unwrap();
    let output = system.ebb(&["load", "first-round.yaml", "-o", "json"]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    let returns = report["latencies"].as_array().unwrap().iter().find(|latency| latency["name"] == "slot_return_ms");
    assert!(returns.unwrap()["count"].as_u64().unwrap() >= 1, "{said}{report:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scenario_that_makes_no_sense_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wrong.yaml");
    std::fs::write(&file, "name: x\nduration: 5\nfleets: [{fleet: a, deman: {}}]\n").unwrap();
    let output = tokio::process::Command::new(crate::support::EBB).arg("load").arg(&file).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("`duration`") && said.contains("did you mean `demand`?"), "{said}");
}
