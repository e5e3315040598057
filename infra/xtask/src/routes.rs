//! That paths of the API stand in one file: elsewhere they are made by its functions, and a sentence for people names only paths that there are.

use crate::files::sources;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::Path;

/// Where the paths of the gateway stand, and those of the agent's own listener.
const TABLES: &[&str] = &["gateway/api/src/paths.rs", "gateway/api/src/agent.rs"];
/// What all of them begin with.
const ROOT: &str = "/v1/";
/// Files that name paths by hand, each with its reason.
const BY_HAND: &[(&str, &str)] = &[
    ("infra/telemetry/src/settings.rs", "OTLP over HTTP"),
    ("loadtest/bench/src/spans.rs", "OTLP over HTTP"),
    ("infra/ebb/src/demand_follow.rs", "Prometheus"),
    ("infra/xtask/src/routes.rs", "this check"),
    ("infra/ebb/tests/system/browser.rs", "what pages of others ask"),
    ("infra/ebb/tests/system/documents.rs", "what documents say"),
    ("infra/ebb/tests/system/telemetry.rs", "requests with a `traceparent`, names of spans, Prometheus"),
];
/// Crates whose tests ask what no client of ours would: those of the API, and of an agent's own listener.
const ASKED_NONSENSE: [&str; 2] = ["gateway/", "workers/"];

/// Checks every source file of ours; of tests those that have a client to ask with.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut known = BTreeSet::new();
    for table in TABLES {
        let text = std::fs::read_to_string(root.join(table)).with_context(|| format!("{table} cannot be read"))?;
        known.extend(literals(&text).iter().filter(|text| text.starts_with(ROOT)).map(|text| shape(text)));
    }
    let files = sources(root)?;
    let ours = files.iter().filter(|(name, _)| {
        let is_test = name.contains("/tests/") || name.ends_with("_tests.rs") || name.ends_with("/tests.rs");
        let asks_nonsense = is_test && ASKED_NONSENSE.iter().any(|folder| name.starts_with(folder));
        !asks_nonsense && !TABLES.contains(&name.as_str()) && !BY_HAND.iter().any(|(other, _)| other == name)
    });
    Ok(ours.flat_map(|(name, text)| file(name, text, &known)).collect())
}

fn file(name: &str, text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let mut violations = Vec::new();
    for literal in literals(text) {
        if literal.starts_with(ROOT) || literal.contains(&format!("}}{ROOT}")) {
            let table = TABLES[0];
            violations.push(format!("{name}: `{literal}` is a path written by hand; take it from {table}"));
            continue;
        }
        for path in named(&literal).filter(|path| !known.contains(path)) {
            violations.push(format!("{name}: a sentence names `{path}`, which is no path of the API: {literal}"));
        }
    }
    violations
}

/// The texts in quotes of a source file up to its tests; comments are left out.
fn literals(text: &str) -> Vec<String> {
    let code = text.lines().take_while(|line| *line != "#[cfg(test)]");
    let code: Vec<&str> = code.filter(|line| !line.trim_start().starts_with("//")).collect();
    let (mut found, mut open) = (Vec::new(), None::<String>);
    let code = code.join("\n");
    let mut characters = code.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, &mut open) {
            // A quote as a character is no beginning of a text.
            ('\'', None) if characters.peek() == Some(&'"') => drop(characters.next()),
            ('\'', None) if characters.peek() == Some(&'\\') => drop(characters.nth(1)),
            ('"', None) => open = Some(String::new()),
            ('"', Some(_)) => found.extend(open.take()),
            ('\\', Some(text)) => text.extend(characters.next()),
            (character, Some(text)) => text.push(character),
            _ => {}
        }
    }
    found
}

/// The paths that a sentence names.
fn named(sentence: &str) -> impl Iterator<Item = String> {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "/{}_.-".contains(c);
    sentence.match_indices(ROOT).map(move |(at, _)| {
        let rest = &sentence[at..];
        let end = rest.find(|c| !is_of_path(c)).unwrap_or(rest.len());
        shape(rest[..end].trim_end_matches('.'))
    })
}

/// A path whatever its variable parts are called.
fn shape(path: &str) -> String {
    let part = |part: &str| if part.starts_with('{') { "{}".to_owned() } else { part.to_owned() };
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> usize {
        let known = ["/v1/jobs/{}", "/v1/slots"].map(str::to_owned).into();
        file("a.rs", text, &known).len()
    }

    #[test]
    fn paths_by_hand_are_found_and_sentences_may_name_what_there_is() {
        assert_eq!(found("get(\"/v1/jobs\")"), 1);
        assert_eq!(found("get(&format!(\"{url}/v1/slots\"))"), 1);
        assert_eq!(found("say(\"GET /v1/slots lists them; see /v1/jobs/{id}.\")"), 0);
        assert_eq!(found("say(\"GET /v1/slot lists them\")"), 1);
        assert_eq!(found("// \"/v1/jobs\"\nlet quote = '\"'; say(\"/v2\");\n#[cfg(test)]\nget(\"/v1/jobs\")"), 0);
    }
}
