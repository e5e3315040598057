//! `ebb simulate ask` by hand: every command and every answer of docs/simulator.md is what it says there.

use crate::support::EBB;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

fn ask(arguments: &str) -> String {
    let output = Command::new(EBB).current_dir(root()).args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The commands of the document, each with the block below it.
fn shown() -> Vec<(String, String)> {
    let document = fs::read_to_string(root().join("docs/simulator.md")).unwrap();
    let indented = document.split("\n\n").filter(|block| block.lines().all(|line| line.starts_with("    ")));
    let blocks: Vec<String> = indented.map(|block| block.replace("\\\n", " ").replace("\n    ", "\n")).collect();
    let pairs = blocks.windows(2).filter(|pair| pair[0].trim_start().starts_with("ebb simulate ask "));
    pairs.map(|pair| (pair[0].trim_start().to_owned(), pair[1].trim_start().to_owned())).collect()
}

#[test]
fn every_question_of_the_document_is_answered_as_it_says() {
    let shown = shown();
    let asked: Vec<&str> = shown.iter().filter_map(|(command, _)| command.split_whitespace().nth(3)).collect();
    assert_eq!(asked, ["savings", "lending", "headroom", "deadlines", "growth"]);
    for (command, table) in &shown {
        let command = command.strip_prefix("ebb ").unwrap();
        let said = ask(command);
        let (_, answer) = said.split_once("\n\n").expect("the options come first");
        let (rows, sentence) = answer.trim_end().rsplit_once("\n\n").unwrap();
        assert_eq!(rows.trim_end(), table.trim_end(), "{command}");
        let document = fs::read_to_string(root().join("docs/simulator.md")).unwrap();
        assert!(document.contains(&format!("> {sentence}")), "{command}: the document does not say: {sentence}");
    }
}

#[test]
fn a_row_is_the_run_that_has_its_option() {
    let (command, _) = shown().into_iter().find(|(command, _)| command.contains(" lending ")).unwrap();
    let command = command.strip_prefix("ebb ").unwrap();
    let answer: Value = serde_json::from_str(&ask(&format!("{command} --at 0,2 -o json"))).unwrap();
    let run = command.replace("ask lending", "run") + " --policies ebb --lent-max 2 -o json";
    let run: Value = serde_json::from_str(&ask(&run)).unwrap();
    for figure in ["mean_completion_s", "harvested_slot_s", "preemptions"] {
        assert_eq!(answer["rows"][1][figure], run["policies"][0][figure], "{figure}");
    }
    assert_eq!(
        (&answer["question"], &answer["violations"]),
        (&Value::from("lending"), &Value::from(Vec::<Value>::new()))
    );
}
