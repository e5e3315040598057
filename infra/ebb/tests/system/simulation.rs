//! The simulation by hand: what a finding looks like to a program, its exit code, and that the file it is kept in shows it again. There is
//! something to find because a mended defect is switched on.

use crate::support::EBB;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

const DEFECT: [&str; 2] = ["--mutant", "late_orders_start"];
/// Among the first three hundred seeds the defect shows (`loadtest/world/tests/world/chaos.rs`); this is time enough for many more.
const SECONDS: &str = "600";

fn chaos(folder: &Path, arguments: &[&str]) -> (Option<i32>, Vec<u8>) {
    let chaos = ["simulate", "chaos"];
    let output = Command::new(EBB).current_dir(folder).args(chaos).args(arguments).output().unwrap();
    (output.status.code(), output.stdout)
}

fn document(folder: &Path, arguments: &[&str]) -> (Option<i32>, Value) {
    let (code, said) = chaos(folder, &[arguments, &["-o", "json"]].concat());
    (code, serde_json::from_slice(&said).unwrap())
}

#[test]
fn a_finding_exits_with_1_and_is_kept_in_a_file_that_replays() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let (code, said) =
        document(here, &[["--seconds", SECONDS, "--write", "kept"], [DEFECT[0], DEFECT[1], "--seed", "0"]].concat());
    assert_eq!(code, Some(1), "{said}");
    let fields: Vec<&str> = said.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["events", "findings", "schedules", "seconds"]);
    let finding = &said["findings"][0];
    let file = format!("kept/chaos-seed-{}.json", finding["seed"]);
    assert_eq!((said["findings"].as_array().unwrap().len(), &finding["file"]), (1, &json!(file)), "{said}");
    assert_eq!(finding["replay"], format!("ebb simulate chaos --replay {file} --mutant late_orders_start"));

    let (code, again) = document(here, &["--replay", &file, DEFECT[0], DEFECT[1]]);
    let found = &again["findings"][0];
    assert_eq!((code, &again["schedules"], &found["property"]), (Some(1), &json!(1), &finding["property"]), "{again}");
    let (code, text) = chaos(here, &["--replay", &file, DEFECT[0], DEFECT[1]]);
    let text = String::from_utf8(text).unwrap();
    assert!(code == Some(1) && text.contains(&file) && text.contains("events/s on one core"), "{text}");

    // Without the defect there is nothing to find.
    let (code, mended) = document(here, &["--replay", &file]);
    assert_eq!((code, &mended["findings"]), (Some(0), &json!([])), "{mended}");
}

#[test]
fn a_file_that_is_no_schedule_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("other.json"), "{}").unwrap();
    for (file, what) in [("other.json", "is no schedule"), ("nothing.json", "cannot be read")] {
        let arguments = ["simulate", "chaos", "--replay", file];
        let output = Command::new(EBB).current_dir(folder.path()).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(file) && said.contains(what), "{said}");
    }
}
