//! Reports of whole runs: which files there are, that every policy is in them, and that the same run gives the same bytes.

use controller_core::policy_by_name;
use loadtest_simulate::report::{FILES, MARK, MOMENTS_MAX, Report, over_seeds};
use loadtest_simulate::setup::{Shape, jobs};
use loadtest_simulate::trace::parse;
use loadtest_simulate::{Costs, Format, Setup, Tables, run, run_with_sizes};
use serde_json::{Value, json};

const POLICIES: [&str; 3] = ["fifo", "ebb", "tiresias"];
const SHAPE: Shape = Shape { min_share: 0.0, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: false };

/// Forty jobs that need more slots than there are, some of them with names that would be markup.
fn setup() -> Setup {
    let mut text = "name,submitted_s,duration_s,workers\n".to_owned();
    for n in 0..40 {
        text += &format!("<job {n}>,{},{},{}\n", n * 90, 200 + n * n % 700, 1 + n % 6);
    }
    let trace = parse(&text, Format::Csv).unwrap();
    let made = jobs(&trace, &Tables::default(), &SHAPE, &Costs::measured(200), 0).unwrap().0;
    Setup::of_training_alone(made, "2x4:t4".parse().unwrap(), Costs::measured(200), 0)
}

fn files() -> Vec<(String, String)> {
    let (setup, mut report, mut documents) = (setup(), Report::default(), Vec::new());
    for name in POLICIES {
        let outcome = run_with_sizes(&setup, &*policy_by_name(name).unwrap(), &mut || 0);
        assert_eq!(outcome.tally.violations, Vec::<String>::new());
        documents.push(outcome.document(&vec![None; setup.jobs.len()], 1.0));
        report.add(&setup, &outcome);
    }
    report.files(&json!({"options": {"seed": 0}, "policies": documents, "violations": []}))
}

fn file<'a>(files: &'a [(String, String)], name: &str) -> &'a str {
    &files.iter().find(|(of, _)| of == name).unwrap().1
}

#[test]
fn the_same_run_gives_the_same_bytes_and_every_file_that_is_promised() {
    let once = files();
    assert_eq!(once, files());
    let (mut names, mut promised): (Vec<_>, Vec<_>) =
        (once.iter().map(|(name, _)| name.as_str()).collect(), FILES.into());
    names.sort_unstable();
    promised.sort_unstable();
    assert_eq!(names, promised);
    let page = file(&once, "index.html");
    assert!(page.starts_with(MARK) && page.len() < 1 << 20, "{}", page.len());
    for alien in ["http://", "https://", "<script ", "<link", "src=", "url(", "<job", "NaN"] {
        assert!(!page.contains(alien), "{alien}");
    }
}

#[test]
fn every_policy_is_in_every_file() {
    let files = files();
    for (name, text) in &files {
        for policy in POLICIES {
            assert!(text.contains(policy), "{name} says nothing of {policy}");
        }
    }
    let rows = |name: &str| file(&files, name).lines().count();
    assert_eq!((rows("policies.csv"), rows("jobs.csv")), (1 + POLICIES.len(), 1 + 40 * POLICIES.len()));
    assert!(rows("timeline.csv") <= 1 + MOMENTS_MAX * POLICIES.len());
}

/// That it is told does not change what happens, and what is told is what happened.
#[test]
fn a_life_is_that_of_the_outcome() {
    let setup = setup();
    let deadlines = vec![None; setup.jobs.len()];
    let policy = policy_by_name("tiresias").unwrap();
    let (plain, told) = (run(&setup, &*policy, &mut || 0), run_with_sizes(&setup, &*policy, &mut || 0));
    assert_eq!((plain.figures(&deadlines), plain.jobs.clone()), (told.figures(&deadlines), told.jobs.clone()));
    assert!(plain.tally.sizes.is_none());
    let sizes = told.tally.sizes.unwrap();
    for (job, sizes) in told.jobs.iter().zip(&sizes.of_jobs) {
        assert_eq!(sizes.len() as u64, job.size_changes);
        assert_eq!(sizes.iter().filter(|(_, slots)| *slots == 0).count() as u64, job.preemptions);
    }
    let document: Value = serde_json::from_str(file(&files(), "run.json")).unwrap();
    let drawn = document["details"][2]["jobs_drawn"].as_array().unwrap();
    let longest = told.jobs.iter().filter_map(|job| job.completion_ms()).max().unwrap();
    assert_eq!((&drawn[0]["which"], &drawn[0]["completion_s"]), (&json!("longest"), &json!(longest as f64 / 1e3)));
    let most = told.jobs.iter().map(|job| job.preemptions).max().unwrap();
    assert!(most > 0, "tiresias preempts nobody");
    assert_eq!((&drawn[2]["which"], &drawn[2]["preemptions"]), (&json!("most preempted"), &json!(most)));
}

#[test]
fn a_report_over_seeds_leads_to_those_of_each() {
    let documents = json!({"options": {}, "policies": [{"policy": "ebb", "mean_completion_s": 3.0}], "violations": []});
    let files = over_seeds(&documents, &["1 < 2".to_owned()], &["seed-3".to_owned()]);
    let page = file(&files, "index.html");
    assert!(page.contains(r#"<a href="seed-3/index.html">"#) && page.contains("1 &lt; 2"), "{page}");
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["run.json", "policies.csv", "results.svg", "index.html"]);
}
