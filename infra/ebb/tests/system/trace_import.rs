//! A real log as a recording: a service runs jobs under a demand, its log is exported and imported, and the command that this prints is run as printed, and under
//! another policy.

use crate::support::{EBB, LOOK_EVERY, System, WAIT_MAX, agent_with, until_slot};
use gateway_api::{JobPhase, PublishDemand};
use gateway_client::{Client, WantedJobs};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

/// The longest job comes first, and each asks for all slots: in the order of their arrival every one has them all until its end.
const JOBS: usize = 5;

/// How far the simulated mean may be from the live one: machines of tests do other things too, and what that costs is nowhere in the recording.
const FACTOR: f64 = 2.0;

fn recording() -> String {
    let row = |job: usize| format!("{},{},3\n", 20 * job, if job == 0 { 500 } else { 120 });
    "submitted_s,duration_s,workers\n".to_owned() + &(0..JOBS).map(row).collect::<String>()
}

/// Waits until there is a job in a phase.
async fn until_one_is(client: &Client, phase: JobPhase) {
    let begun = Instant::now();
    while client.jobs(&WantedJobs::in_phase(phase)).await.unwrap().is_empty() {
        assert!(begun.elapsed() < WAIT_MAX, "no job is {phase:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Runs a line in a shell, in a folder, with `ebb` being the program under test.
fn shell(folder: &Path, line: &str) -> Output {
    let here = Path::new(EBB).parent().unwrap().to_str().unwrap().to_owned();
    let path = format!("{here}:{}", std::env::var("PATH").unwrap_or_default());
    Command::new("sh").current_dir(folder).env("PATH", path).args(["-c", line]).output().unwrap()
}

fn ran(folder: &Path, line: &str) -> String {
    let output = shell(folder, line);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "`{line}`: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

fn document(folder: &Path, line: &str) -> Value {
    serde_json::from_str(&ran(folder, line)).unwrap()
}

/// When each job came and ended, by the log: in milliseconds, in the order of their ends.
fn lived(export: &str) -> Vec<(String, u64, u64)> {
    let (mut came, mut ended) = (BTreeMap::new(), Vec::new());
    for batch in export.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let at_ms = batch["at_ms"].as_u64().unwrap();
        for fact in batch["facts"].as_array().unwrap() {
            let job = fact["job"].as_str().unwrap_or_default().to_owned();
            match fact["fact"].as_str().unwrap() {
                "job_accepted" => {
                    came.insert(job, (fact["spec"]["name"].as_str().unwrap().to_owned(), at_ms));
                }
                "job_finished" => {
                    let (name, came_ms) = came.remove(&job).unwrap();
                    ended.push((format!("{job} {name}"), came_ms, at_ms));
                }
                _ => {}
            }
        }
    }
    ended
}

/// The names of the jobs of a report's one policy, in the order of their ends.
fn by_end(report: &Path) -> Vec<String> {
    let rows = std::fs::read_to_string(report.join("jobs.csv")).unwrap();
    let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split(',').collect()).collect();
    let column = |name: &str| rows[0].iter().position(|known| *known == name).unwrap();
    let (name, end) = (column("job"), column("end_s"));
    let mut ends: Vec<(f64, String)> =
        rows[1..].iter().map(|row| (row[end].parse().unwrap(), row[name].trim_matches('"').to_owned())).collect();
    ends.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    ends.into_iter().map(|(_, name)| name).collect()
}

fn column(csv: &str, name: &str) -> Vec<u64> {
    let rows: Vec<Vec<&str>> = csv.lines().map(|row| row.split(',').collect()).collect();
    let place = rows[0].iter().position(|known| *known == name).unwrap();
    let mut values: Vec<u64> = rows[1..].iter().map(|row| row[place].parse().unwrap()).collect();
    values.dedup();
    values
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_service_did_is_exported_imported_and_comes_out_again() {
    let system = System::start_with(3, &["--policy", "fifo", "--type", "t4"]).await;
    system.ebb_json(&["tenant", "set", "labs", "--quota", "2"]).await;
    let (_far, _agent) = agent_with(&system, 1, &[("EBB_AGENT_TYPE", "v100")]).await;
    until_slot(&system, "far/0").await;
    system.ebb_json(&["fleet", "put", "named", "--server", "far", "--slots", "1", "--offers", "explicit"]).await;
    std::fs::write(system.path("jobs.csv"), recording()).unwrap();
    let client = system.client();
    // The fleet needs a slot while the first job runs.
    let demand = async {
        until_one_is(&client, JobPhase::Running).await;
        client.demand("local", &PublishDemand::needed(1)).await.unwrap();
        until_one_is(&client, JobPhase::Finished).await;
        client.demand("local", &PublishDemand::needed(0)).await.unwrap();
    };
    let replay = ["replay", "--jobs", "jobs.csv", "--speed-up", "100", "--step-ms", "20"];
    let (live, ()) = tokio::join!(system.ebb_json(&replay), demand);
    assert_eq!(live["live"]["finished"], JOBS, "{live:#}");
    // What a fleet says by name, and the red button, are demand as well.
    system.ebb_json(&["offer", "named", "far/0"]).await;
    system.ebb_json(&["reclaim", "named", "far/0"]).await;
    system.ebb_json(&["fleet", "recall", "local", "--slots", "2"]).await;
    system.ebb_json(&["fleet", "release", "local"]).await;
    let ids = system.client().jobs(&WantedJobs::default()).await.unwrap().len();

    let stopped = system.stop().await;
    let folder = stopped.path();
    ran(folder, "ebb log export --data data > log.jsonl");
    let lived = lived(&std::fs::read_to_string(folder.join("log.jsonl")).unwrap());
    let in_order = lived.iter().enumerate().all(|(place, (name, ..))| name.ends_with(&format!("-{place}")));
    assert!(ids == JOBS && lived.len() == JOBS && in_order, "each had all slots until its end: {lived:?}");

    let imported = document(folder, "ebb trace import log.jsonl --into again -o json");
    let counts = ["jobs", "began_before", "untrained", "unfinished"].map(|key| imported[key].as_u64().unwrap());
    assert_eq!(counts, [JOBS as u64, 0, 0, 0], "{imported:#}");
    let kept = std::fs::read_to_string(folder.join("again/demand.csv")).unwrap();
    assert_eq!(column(&kept, "named_keeps"), [1, 0, 1], "{kept}");
    assert_eq!(column(&kept, "local_keeps"), [0, 1, 0, 2, 0], "{kept}");
    let command = imported["command"].as_str().unwrap();
    for part in [
        "--inference 1x3:t4,1x1:v100",
        "--information stepped",
        "--quota labs=2",
        "--policies fifo",
        "--tables again/speeds",
    ] {
        assert!(command.contains(part), "{part}: {command}");
    }
    let measured = std::fs::read_to_string(folder.join("again/speeds/kind-1.csv")).unwrap();
    assert!(measured.starts_with("global_batch_size,") && measured.lines().count() == 2, "{measured}");
    assert!(imported["left_out"].to_string().contains("how fast slots of t4, v100 are"), "{imported:#}");

    // As printed, which is a table for people; and the same with a report.
    let lines = ran(folder, "ebb trace import log.jsonl --into again -o table");
    assert_eq!(lines.lines().last().unwrap(), command, "{lines}");
    let printed = ran(folder, command);
    let again = document(folder, &format!("{command} -o json --report report"));
    let run = &again["policies"][0];
    assert_eq!(
        (&run["policy"], &run["jobs"], &run["finished"], &run["failed"], &run["preemptions"]),
        (&json!("fifo"), &json!(JOBS), &json!(JOBS), &json!(0), &live["live"]["preemptions"]),
        "{again:#}"
    );
    let ended: Vec<String> = lived.iter().map(|(name, ..)| name.clone()).collect();
    assert_eq!(by_end(&folder.join("report")), ended, "they end in the order in which they ended");
    let mean_s =
        lived.iter().map(|(_, came_ms, ended_ms)| (ended_ms - came_ms) as f64 / 1e3).sum::<f64>() / JOBS as f64;
    let simulated_s = run["mean_completion_s"].as_f64().unwrap();
    let row = printed.lines().find(|row| row.starts_with("completion mean, s")).unwrap();
    assert!(row.ends_with(&format!(" {simulated_s:.1}")), "{row} is not {simulated_s}");
    assert!(
        (1.0 / FACTOR..FACTOR).contains(&(simulated_s / mean_s)),
        "{simulated_s} s, and live {mean_s} s: {again:#}"
    );

    // Who shares slots out does better by those that wait for the long one.
    let other = document(folder, &format!("{} -o json", command.replace("--policies fifo", "--policies fifo,ebb")));
    let figure = |place: usize, key: &str| other["policies"][place][key].as_f64().unwrap();
    assert_eq!((figure(1, "finished"), &other["policies"][1]["policy"]), (JOBS as f64, &json!("ebb")), "{other:#}");
    assert_eq!(figure(0, "mean_completion_s"), simulated_s, "the same command gives the same figures");
    assert!(figure(1, "mean_completion_s") < figure(0, "mean_completion_s"), "{other:#}");

    // The log is shorter than a day, and nothing of it is older.
    let day = document(folder, "ebb trace import log.jsonl --into day --from 1d -o json");
    assert_eq!(day["jobs"], imported["jobs"]);
    let refused = shell(folder, "ebb trace import log.jsonl --into day --to 1d");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("the log lasts from"), "{said}");
}
