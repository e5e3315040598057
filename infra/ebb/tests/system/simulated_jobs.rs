//! `ebb simulate run --report` by hand: the command as docs/simulator.md has it, what is then in its folder, and what it does to a folder that
//! is somebody else's.

use crate::support::{EBB, text};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// What the document says to type, but for the folder.
const COMMAND: &str =
    "simulate run --jobs docs/examples/simulate/jobs.csv --cluster 2x4:t4 --policies fifo,tiresias,ebb";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

fn report(folder: &Path, more: &[&str]) -> Output {
    let arguments = COMMAND.split(' ').chain(["--report", folder.to_str().unwrap()]).chain(more.iter().copied());
    Command::new(EBB).current_dir(root()).args(arguments).output().unwrap()
}

fn files(folder: &Path) -> Vec<(String, String)> {
    let read =
        |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap());
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| read(entry.unwrap())).collect();
    files.sort();
    files
}

#[test]
fn the_command_of_the_document_writes_a_page_that_opens_offline_and_the_same_one_again() {
    let document = fs::read_to_string(root().join("docs/simulator.md")).unwrap();
    assert!(document.contains(&format!("    ebb {COMMAND} --report report\n")), "the document has another command");
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("report");
    let output = report(&folder, &[]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains(&text(&folder.join("index.html"))), "{said}");
    let once = files(&folder);
    let names: Vec<&str> = once.iter().map(|(name, _)| name.as_str()).collect();
    let figures = ["completion.svg", "jobs.svg", "results.svg", "slots.svg", "utilization.svg", "waiting.svg"];
    for name in ["index.html", "run.json", "policies.csv", "jobs.csv", "timeline.csv"].iter().chain(&figures) {
        assert!(names.contains(name), "{name} is missing among {names:?}");
    }
    let page = &once[names.iter().position(|name| *name == "index.html").unwrap()].1;
    for alien in ["http://", "https://", "<script ", "<link", "<img", "@import", "url("] {
        assert!(!page.contains(alien), "the page names {alien}");
    }
    assert_eq!(page.matches("<svg").count(), figures.len());
    let run: Value = serde_json::from_str(&fs::read_to_string(folder.join("run.json")).unwrap()).unwrap();
    assert_eq!((run["policies"].as_array().unwrap().len(), &run["options"]["seed"]), (3, &Value::from(0)));

    // Over an earlier report, of more seeds and so of other files; what is somebody's own stays.
    fs::write(folder.join("notes.txt"), "mine").unwrap();
    let output = report(&folder, &["--seeds", "2", "-o", "json"]);
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let written: Value = serde_json::from_str(&fs::read_to_string(folder.join("run.json")).unwrap()).unwrap();
    assert_eq!(written, said, "what is printed is what is written");
    assert!(folder.join("seed-1/index.html").exists() && !folder.join("jobs.csv").exists());
    assert!(report(&folder, &[]).status.success());
    let same = |(name, _): &(String, String)| name != "run.json" && name != "notes.txt";
    let again: Vec<_> = files(&folder).into_iter().filter(same).collect();
    assert_eq!(again, once.into_iter().filter(same).collect::<Vec<_>>());
    assert_eq!(fs::read_to_string(folder.join("notes.txt")).unwrap(), "mine");
}

#[test]
fn a_folder_of_something_else_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("index.html"), "mine").unwrap();
    let output = report(folder.path(), &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("--report: ") && said.contains("is not empty"), "{said}");
    assert_eq!(files(folder.path()), [("index.html".to_owned(), "mine".to_owned())]);
}

/// A short run of the document's jobs: what it prints as JSON.
fn ran(more: &[&str]) -> Value {
    let output = ebb(&[&SHORT[..], more, &["-o", "json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const SHORT: [&str; 8] =
    ["simulate", "run", "--jobs", "docs/examples/simulate/jobs.csv", "--cluster", "2x4:t4", "--policies", "fifo"];

fn ebb(arguments: &[&str]) -> Output {
    Command::new(EBB).current_dir(root()).args(arguments).output().unwrap()
}

#[test]
fn a_recording_is_cut_by_time_and_number_and_scaled_and_the_options_say_so() {
    let jobs = |more: &[&str]| ran(more)["policies"][0]["jobs"].as_u64().unwrap();
    let all = jobs(&[]);
    let (early, late) = (jobs(&["--to", "2h"]), jobs(&["--from", "2h"]));
    assert!(early > 5 && late > 5 && early + late == all, "{early} and {late} of {all}");
    assert_eq!(jobs(&["--from", "2h", "--first", "4"]), 4);
    assert_eq!((jobs(&["--first", "8", "--scale", "1.5"]), jobs(&["--first", "8", "--scale", "0.25"])), (12, 2));
    let options = &ran(&["--first", "3", "--from", "1h", "--scale", "2"])["options"];
    assert_eq!(
        [&options["first"], &options["from"], &options["scale"], &options["to"], &options["jobs"]["count"]],
        [&Value::from(3), &Value::from("1h"), &Value::from(2), &Value::Null, &Value::from(6)]
    );
    for (wrong, said) in [
        ("--from 90d", "--from, --to: none of the 60 jobs of docs/examples/simulate/jobs.csv"),
        ("--from 2h --to 1h", "--to: 1h is not after --from, 2h; expected a later time"),
        ("--from yesterday", "expected a number with its unit"),
        ("--first 0", "invalid value '0' for '--first <N>'"),
        ("--scale 0", "--scale: 0 makes no sense; expected a number above 0"),
        ("--scale 101", "--scale: 101 makes no sense; expected 100 at most"),
        ("--first 5 --scale 0.1", "--scale: 0.1 leaves none of 5 jobs; expected 0.2 or more"),
    ] {
        let output = ebb(&SHORT.into_iter().chain(wrong.split(' ')).collect::<Vec<_>>());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(said), "{wrong:?}: {text}");
    }
}

/// A document without what the machine's clock says.
fn timeless(mut document: Value) -> Value {
    for policy in document["policies"].as_array_mut().unwrap() {
        for key in ["decision_p50_ms", "decision_p99_ms", "event_mean_ms", "wall_s"] {
            assert!(policy.as_object_mut().unwrap().remove(key).is_some(), "{key}");
        }
    }
    document
}

#[test]
fn a_run_is_made_again_of_what_it_wrote_as_long_as_its_files_are_what_they_were() {
    let temporary = tempfile::tempdir().unwrap();
    let [jobs, folder] = ["jobs.csv", "report"].map(|name| text(&temporary.path().join(name)));
    fs::copy(root().join("docs/examples/simulate/jobs.csv"), &jobs).unwrap();
    let run = ["simulate", "run", "--jobs", &jobs, "--cluster", "1x4:t4", "--policies", "fifo,ebb", "--from", "2h"];
    let more = ["--inference", "1x8:t4", "--demand", "docs/examples/load/servegen-day.csv:rate_req_s"];
    let drawn = ["--information", "estimated:0.5,0.2", "--seed", "7", "--server-fails-hours", "20"];
    let said = |arguments: &[&str], code: i32| {
        let output = ebb(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{complaint}");
        (String::from_utf8(output.stdout).unwrap(), complaint)
    };
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let once = said(&[&run[..], &more, &drawn, &["--report", &folder, "-o", "json"]].concat(), 0).0;
    let again = said(&["simulate", "again", &folder, "-o", "json"], 0).0;
    assert_eq!(timeless(json(&again)).to_string(), timeless(json(&once)).to_string());
    assert_eq!(json(&once)["inputs"].as_object().unwrap().len(), 2, "{once}");
    // Of what it printed, for people, and with a report of its own, whose files are the same.
    let (printed, other) = (text(&temporary.path().join("printed.json")), text(&temporary.path().join("other")));
    fs::write(&printed, &again).unwrap();
    let lines = |text: String| text.lines().filter(|line| !line.contains(" *")).map(str::to_owned).collect::<Vec<_>>();
    let table = lines(said(&[&run[..], &more, &drawn].concat(), 0).0);
    let mut again = lines(said(&["simulate", "again", &printed, "--report", &other], 0).0);
    assert!(again.pop().is_some_and(|last| last.starts_with("the report is in")));
    assert_eq!(again, table);
    let kept =
        |folder: &str| files(Path::new(folder)).into_iter().filter(|(name, _)| name != "run.json").collect::<Vec<_>>();
    assert_eq!(kept(&other), kept(&folder));

    // Of figures of another build it says so; of other jobs, or of something else, there is no run.
    let mut figures = json(&once);
    figures["policies"][1]["preemptions"] = Value::from(12_345);
    fs::write(&printed, figures.to_string()).unwrap();
    let complaint = said(&["simulate", "again", &printed], 1).1;
    assert!(complaint.contains("ebb: preemptions is ") && complaint.contains("and not 12345"), "{complaint}");
    fs::write(&jobs, fs::read_to_string(&jobs).unwrap() + "late,30000,60,1\n").unwrap();
    let complaint = said(&["simulate", "again", &folder], 2).1;
    assert!(complaint.contains(&format!("{jobs} is not what it was: the digest of its text is ")), "{complaint}");
    fs::remove_file(&jobs).unwrap();
    let complaint = said(&["simulate", "again", &folder], 2).1;
    assert!(complaint.contains(&format!("{jobs} is missing")), "{complaint}");
    let complaint = said(&["simulate", "again", "docs/cli.md"], 2).1;
    assert!(complaint.contains("docs/cli.md is of no run"), "{complaint}");
}

#[test]
fn what_a_job_lived_through_is_drawn_by_its_name() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = text(&temporary.path().join("report"));
    let wanted = ["--policies", "fifo,ebb", "--job", "job-31", "--job", "job-7", "--report", &folder, "-o", "json"];
    assert!(ebb(&[&SHORT[..6], &wanted[..]].concat()).status.success());
    let read = |name: &str| fs::read_to_string(Path::new(&folder).join(name)).unwrap();
    let run: Value = serde_json::from_str(&read("run.json")).unwrap();
    for policy in run["details"].as_array().unwrap() {
        let drawn: Vec<&Value> = policy["jobs_drawn"].as_array().unwrap().iter().map(|job| &job["job"]).collect();
        assert_eq!(drawn, ["job-31", "job-7"]);
    }
    let svg = read("jobs.svg");
    assert_eq!((svg.matches("asked for: job-31<").count(), svg.matches("asked for: job-7<").count()), (2, 2), "{svg}");
    assert!(read("index.html").contains("<td>asked for</td><td>job-31</td>"));
    for (wrong, said) in [
        (
            "--job job-600 --report elsewhere",
            "--job: `job-600` is none of the 60 jobs; expected the name of one, `job-",
        ),
        ("--job job-7", "--report <DIR>"),
    ] {
        let output = ebb(&SHORT.into_iter().chain(wrong.split(' ')).collect::<Vec<_>>());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(said), "{wrong:?}: {text}");
    }
}

#[test]
fn forecasts_are_means_over_seeds_too() {
    let lent = ["--inference", "1x8:t4", "--demand", "docs/examples/load/servegen-day.csv:rate_req_s"];
    let generated = ["--generate", "poisson:1x96", "--cluster", "1x4:t4", "--policies", "ebb", "--lending", "forecast"];
    let more = ["--seeds", "2", "--scale", "0.5", "-o", "json"];
    let output = ebb(&[&["simulate", "run"][..], &generated, &lent, &more].concat());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let errors = |of: &Value| {
        let horizons = of["policies"][0]["forecasts"].as_array().or_else(|| of[0]["forecasts"].as_array()).unwrap();
        horizons.iter().map(|horizon| horizon["error_slots"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let (mean, of_seeds) = (errors(&document), [0, 1].map(|seed: usize| errors(&document["seeds"][seed])));
    assert!(!mean.is_empty());
    for (place, mean) in mean.iter().enumerate() {
        assert!((mean - (of_seeds[0][place] + of_seeds[1][place]) / 2.0).abs() < 1e-9, "{place}");
    }
}

/// What programs read of each policy, by these names.
const KEYS: [&str; 19] = [
    "policy",
    "jobs",
    "mean_completion_s",
    "median_completion_s",
    "p99_completion_s",
    "mean_queueing_s",
    "makespan_s",
    "utilization",
    "fairness_p99",
    "harvested_slot_s",
    "lost_slot_s",
    "preemptions",
    "scalings",
    "guarantee_violations",
    "unmet_demand_slot_s",
    "return_p99_ms",
    "decision_p50_ms",
    "decision_p99_ms",
    "wall_s",
];

#[test]
fn every_figure_has_the_name_that_it_is_promised_under() {
    let lent = ["--inference", "1x8:t4", "--demand", "docs/examples/load/servegen-day.csv:rate_req_s"];
    let document = ran(&[&lent[..], &["--quota", "research=8", "--server-fails-hours", "50"]].concat());
    for part in ["arguments", "inputs", "options", "policies", "violations"] {
        assert!(!document[part].is_null(), "{part}");
    }
    let [policy] = &document["policies"].as_array().unwrap()[..] else { panic!("{document}") };
    for key in KEYS {
        assert!(policy.get(key).is_some_and(|figure| figure.is_number() || key == "policy"), "{key}: {policy}");
    }
    let written = fs::read_to_string(root().join("docs/simulator.md")).unwrap();
    for key in policy.as_object().unwrap().keys().filter(|key| *key != "policy") {
        // Percentiles of one figure stand in one row, as `mean_`, `median_`, `p95_queueing_s`.
        let named = key.split_once('_').is_some_and(|(first, rest)| {
            written.contains(&format!("`{first}_`")) && written.lines().any(|row| row.contains(&format!("_{rest}` |")))
        });
        assert!(named || written.contains(&format!("`{key}`")), "the document does not say what {key} is");
    }
}

/// Commands of a document that begin so, and what it says that they print.
fn pasted(document: &str, begins: &str) -> Vec<(Vec<String>, Vec<String>)> {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let blocks: Vec<&str> = text.split("\n\n").collect();
    let of = |pair: &[&str]| {
        let command =
            pair[0].strip_prefix("    ebb ").filter(|command| command.starts_with(begins))?.replace("\\\n", " ");
        let command = command.split_whitespace().map(str::to_owned).collect();
        Some((command, pair[1].lines().map(|line| line.trim().to_owned()).collect()))
    };
    blocks.windows(2).filter_map(of).collect()
}

#[test]
fn every_question_is_answered_as_the_document_says() {
    let asked = pasted("docs/simulator.md", "simulate ask ");
    let questions: Vec<&str> = asked.iter().map(|(command, _)| command[2].as_str()).collect();
    assert_eq!(questions, ["savings", "lending", "headroom", "deadlines", "growth"]);
    for (command, expected) in &asked {
        let arguments: Vec<&str> = command.iter().map(String::as_str).collect();
        let output = ebb(&arguments);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        assert_eq!(said[said.len() - expected.len()..], expected[..], "{arguments:?}");
        assert!(said.iter().any(|line| line.starts_with("mixed_types ")), "its options come first: {said:?}");
    }
    let json = ebb(&["simulate", "ask", "growth", "--generate", "poisson:4x2", "--cluster", "1x4:t4", "-o", "json"]);
    let document: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&document["question"], document["rows"].as_array().unwrap().len()), (&Value::from("growth"), 2));
    assert!(document["answer"].as_str().unwrap().starts_with("jobs × 2: jobs take "), "{document}");
}

#[test]
fn scenarios_of_papers_are_listed_with_what_is_free_in_them() {
    let said = |more: &[&str]| {
        let output = ebb(&[&["simulate", "papers", "--list"][..], more].concat());
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let names = said(&["-o", "name"]);
    let written = fs::read_to_string(root().join("docs/simulator.md")).unwrap();
    assert!(names.lines().count() >= 11 && names.lines().all(|name| written.contains(&format!("`{name}`"))), "{names}");
    let document: Value = serde_json::from_str(&said(&["-o", "json"])).unwrap();
    let listed: Vec<&str> =
        document["scenarios"].as_array().unwrap().iter().map(|of| of["name"].as_str().unwrap()).collect();
    assert_eq!(listed, names.lines().collect::<Vec<_>>());
    assert!(said(&["ibm-table3"]).lines().skip(1).all(|line| line.contains("free: ")));
}

/// The recordings are their authors'; docs/simulator.md says what they are.
#[test]
#[ignore = "EBB_TEST_RECORDINGS has to name the folder of recordings"]
fn the_four_means_of_another_simulator_come_out_within_half_a_percent() {
    let recordings = std::env::var("EBB_TEST_RECORDINGS").expect("EBB_TEST_RECORDINGS is not set");
    let output = ebb(&["simulate", "papers", "pollux-peer", "--data", &recordings, "-o", "json"]);
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = said["scenarios"][0]["rows"].as_array().unwrap();
    let means = rows.iter().filter(|row| row["figure"] == "mean completion" && row["paper"].is_number());
    let ratios: Vec<f64> = means.map(|row| row["ratio"].as_f64().unwrap()).collect();
    assert!(ratios.len() == 4 && ratios.iter().all(|ratio| (ratio - 1.0).abs() <= 0.005), "{ratios:?}");
}

#[test]
fn jobs_run_in_detail_beside_the_models_and_it_is_said_by_how_much_those_are_off() {
    let few = [&SHORT[..], &["--first", "3", "--detailed"]].concat();
    let (fast, both) = (ran(&["--first", "3"]), ran(&["--first", "3", "--detailed"]));
    assert_eq!(
        timeless(fast)["policies"],
        timeless(both.clone())["policies"],
        "the fast mode is the same beside the other"
    );
    let detailed = &both["detailed"][0];
    assert_eq!((&detailed["finished"], &detailed["plans"], &both["violations"]), (&3.into(), &Value::Null, &json!([])));
    let ratio = detailed["fast_over_detailed"]["mean_completion_s"].as_f64().unwrap();
    assert!((0.97..1.0).contains(&ratio), "{ratio}");
    let table = String::from_utf8(ebb(&few).stdout).unwrap();
    assert!(table.contains("fifo detailed") && table.contains("fifo: fast ÷ detailed: mean completion 0.9"), "{table}");

    let folder = tempfile::tempdir().unwrap();
    let printed = text(&folder.path().join("printed.json"));
    fs::write(&printed, both.to_string()).unwrap();
    assert!(ebb(&["simulate", "again", &printed]).status.success());
    let other = both
        .to_string()
        .replace(&format!("\"mean_completion_s\":{}", detailed["mean_completion_s"]), "\"mean_completion_s\":1");
    fs::write(&printed, other).unwrap();
    let again = ebb(&["simulate", "again", &printed]);
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.code() == Some(1) && said.contains("detailed fifo: mean_completion_s is "), "{said}");

    for (more, said) in [
        (
            &["--detailed"][..],
            "are too many for the detailed mode; expected 300000 at most, which --first, --scale, --to",
        ),
        (&["--detailed", "--guests"], "expected a run without --guests"),
    ] {
        let output = ebb(&[&SHORT[..], more].concat());
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && complaint.contains(said) && output.stdout.is_empty(), "{complaint}");
    }
}
