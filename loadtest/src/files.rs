//! Reads a scenario and the files that it names, which lie beside it.

use crate::scenario::{Scenario, Spec};
use crate::schedule::{Action, schedule};
use crate::trace;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest scenario or job: more than the API takes.
const DOCUMENT_LEN_MAX: u64 = 1 << 20;

/// A scenario with everything that it needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// What it says.
    pub scenario: Scenario,
    /// The spec of each of its mixes.
    pub specs: Vec<Value>,
    /// What is asked, in order of time.
    pub actions: Vec<Action>,
}

/// Why a scenario cannot be run: what is wrong in which file.
pub type LoadError = anyhow::Error;

/// Reads a scenario; with another seed than its own, if one is given.
pub fn load(path: &Path, seed: Option<u64>) -> Result<Loaded, LoadError> {
    let document = document(path)?;
    let mut scenario = Scenario::parse(&document)
        .map_err(|problems| anyhow::anyhow!("{} is no scenario: {problems}", path.display()))?;
    scenario.seed = seed.unwrap_or(scenario.seed);
    let beside = |file: &PathBuf| path.parent().map_or_else(|| file.clone(), |folder| folder.join(file));
    let specs = scenario.jobs.iter().map(|mix| match &mix.spec {
        Spec::File(file) => self::document(&beside(file)),
        Spec::Inline(spec) => Ok(spec.clone()),
    });
    let specs: Vec<Value> = specs.collect::<Result<_>>()?;
    for (mix, spec) in scenario.jobs.iter().zip(&specs) {
        anyhow::ensure!(
            spec.is_object(),
            "the spec of the mix `{}` is no job: expected an object with its fields",
            mix.name
        );
    }
    let open = |file: &PathBuf| {
        let file = beside(file);
        File::open(&file).with_context(|| format!("{} cannot be opened", file.display()))
    };
    let named = |file: &PathBuf| format!("{} is no recording", beside(file).display());
    let actions = schedule(
        &scenario,
        |file, column| trace::curve(open(file)?, column).with_context(|| named(file)),
        |file| trace::times(open(file)?).with_context(|| named(file)),
    )?;
    Ok(Loaded { scenario, specs, actions })
}

fn document(path: &Path) -> Result<Value> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(DOCUMENT_LEN_MAX + 1).read_to_string(&mut text))
        .with_context(|| format!("{} cannot be read", path.display()))?;
    anyhow::ensure!(text.len() as u64 <= DOCUMENT_LEN_MAX, "{} has more than {DOCUMENT_LEN_MAX} bytes", path.display());
    serde_yaml_ng::from_str(&text).with_context(|| format!("{} is neither YAML nor JSON", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// What the documents tell people to run.
    #[test]
    fn the_shipped_scenarios_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/load");
        let mut scenarios = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "yaml") {
                let loaded = load(&path, None).unwrap_or_else(|e| panic!("{e:#}"));
                assert!(!loaded.actions.is_empty() && !loaded.scenario.thresholds.is_empty(), "{}", path.display());
                scenarios += 1;
            }
        }
        assert!(scenarios > 0);
    }
}
