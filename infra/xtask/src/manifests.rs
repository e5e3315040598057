//! Members inherit: one place for versions, lints and package fields, so that no crate drifts. And each has one binary of integration tests.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Package fields that come from the workspace.
const INHERITED: &[&str] = &["version", "edition", "rust-version", "license", "publish"];

/// The one member whose lints are its own: a mapping cannot be made without `unsafe`, which the workspace's forbid.
const OWN_LINTS: &str = "workers/memory/Cargo.toml";

/// Checks the manifest of every member.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let workspace = read(&root.join("Cargo.toml"))?;
    let mut violations = Vec::new();
    for member in members(&workspace) {
        let path = PathBuf::from(&member).join("Cargo.toml");
        violations.extend(manifest(&path.display().to_string(), &read(&root.join(&path))?));
        violations.extend(integration_tests(&member, &test_binaries(&root.join(&member).join("tests"))?));
    }
    Ok(violations)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

/// What cargo makes a test binary of each: files in a crate's `tests`, and folders there with a `main.rs`.
fn test_binaries(tests: &Path) -> Result<Vec<String>> {
    if !tests.exists() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(tests).with_context(|| format!("{} cannot be read", tests.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "rs") || path.join("main.rs").exists() {
            found.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    found.sort();
    Ok(found)
}

/// Each more is compiled and linked with all that the crate depends on, and waits for the tests of those before it.
fn integration_tests(member: &str, binaries: &[String]) -> Option<String> {
    (binaries.len() > 1).then(|| {
        format!(
            "{member}/tests: {} are a test binary each; make them modules of one, `tests/NAME/main.rs`",
            binaries.join(", ")
        )
    })
}

/// The quoted paths between `members = [` and `]`.
fn members(workspace: &str) -> Vec<String> {
    let list =
        workspace.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn manifest(name: &str, text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    let mut section = "";
    let mut lints = false;
    let mut inherited = Vec::new();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
            continue;
        }
        let from_workspace = line.contains("workspace = true");
        match section {
            "lints" => lints |= from_workspace,
            "package" if from_workspace => inherited.push(line.split(['.', ' ', '=']).next().unwrap_or("")),
            // A crate may name itself to switch its own test features on.
            s if s.ends_with("dependencies") && !from_workspace && !line.contains("path = \".\"") => {
                violations.push(format!("{name}: `{line}` gives a version of its own; write `NAME.workspace = true` and put the version into the root manifest"));
            }
            _ => {}
        }
    }
    if !lints && name != OWN_LINTS {
        violations.push(format!("{name}: does not inherit the lints; add `[lints]` with `workspace = true`"));
    }
    violations.extend(
        INHERITED
            .iter()
            .filter(|f| !inherited.contains(*f))
            .map(|f| format!("{name}: `{f}` does not come from the workspace")),
    );
    violations
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_not_inherited_is_named() {
        let good = "[package]\nname = \"x\"\nversion.workspace = true\nedition.workspace = true\nrust-version.workspace = true\nlicense.workspace = true\npublish.workspace = true\n[lints]\nworkspace = true\n[dependencies]\nserde.workspace = true\n";
        assert_eq!(manifest("x", good), Vec::<String>::new());
        let bad = good
            .replace("serde.workspace = true", "serde = \"1\"")
            .replace("[lints]\nworkspace = true", "")
            .replace("edition.workspace = true", "edition = \"2021\"");
        assert_eq!(manifest("x", &bad).len(), 3);
    }

    #[test]
    fn a_second_binary_of_integration_tests_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let tests = folder.path().join("tests");
        assert_eq!(test_binaries(&tests).unwrap(), Vec::<String>::new());
        for (file, text) in [("api/main.rs", ""), ("api/orders.rs", ""), ("golden.txt", ""), ("support/mod.rs", "")] {
            let path = tests.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        assert_eq!(integration_tests("x", &test_binaries(&tests).unwrap()), None);
        std::fs::write(tests.join("more.rs"), "").unwrap();
        let said = integration_tests("x", &test_binaries(&tests).unwrap()).unwrap();
        assert!(said.contains("x/tests: api, more.rs"), "{said}");
    }

    #[test]
    fn members_are_read() {
        assert_eq!(members("[workspace]\nmembers = [\n  \"a/b\", \"c\",\n]\n"), ["a/b", "c"]);
    }
}
