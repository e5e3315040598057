//! How source files begin, how long they grow, that their documentation says more than a name does, and that the documents name paths that exist.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Longest file, tests left out: beyond it, a file is two things.
const LINES_MAX: usize = 600;
/// Files that may be longer, each with its reason.
const LONGER: &[(&str, &str)] =
    &[("events/schema/src/fact.rs", "one closed list: every fact with its number and documentation")];
/// Folders that hold sources of ours.
const SOURCES: &[&str] = &["gateway", "controller", "workers", "storage", "events", "infra", "loadtest"];
/// Folders whose files may not name something, each with its reason.
const APART: &[(&str, &str, &str)] = &[
    (
        "controller/core/src/apply/",
        "limits::",
        "the fold judges nothing: what follows from a limit of policy stands in a fact",
    ),
    (
        "controller/core/src/state/",
        "limits::",
        "a state judges nothing: what follows from a limit of policy stands in a fact",
    ),
];
/// Documents whose paths are checked.
const DOCUMENTS: &[&str] = &["docs/architecture.md", "README.md", "CONTRIBUTING.md"];
/// Folders nested deeper than this are a mistake (and a loop of links ends here).
const DEPTH_MAX: usize = 12;

/// Checks every source file and document.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    for (name, text) in sources(root)? {
        violations.extend(file(&name, &text));
    }
    for document in DOCUMENTS {
        match std::fs::read_to_string(root.join(document)) {
            Ok(text) => violations.extend(
                document_paths(&text)
                    .into_iter()
                    .filter(|p| !root.join(p).exists())
                    .map(|p| format!("{document} names `{p}`, which does not exist")),
            ),
            Err(error) => violations.push(format!("{document} cannot be read: {error}")),
        }
    }
    Ok(violations)
}

/// Every source file of ours by its name from the root, in order, and what stands in it.
pub fn sources(root: &Path) -> Result<Vec<(String, String)>> {
    let mut paths = Vec::new();
    for folder in SOURCES {
        collect(&root.join(folder), DEPTH_MAX, "rs", &mut paths)?;
    }
    paths.sort();
    read_all(root, paths)
}

/// Every file of a folder with this ending, as [`sources`] gives Rust's.
pub fn under(root: &Path, folder: &str, ending: &str) -> Result<Vec<(String, String)>> {
    let mut paths = Vec::new();
    collect(&root.join(folder), DEPTH_MAX, ending, &mut paths)?;
    paths.sort();
    read_all(root, paths)
}

fn read_all(root: &Path, paths: Vec<PathBuf>) -> Result<Vec<(String, String)>> {
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        Ok((path.strip_prefix(root).unwrap_or(&path).display().to_string(), text))
    };
    paths.into_iter().map(read).collect()
}

fn collect(folder: &Path, depth: usize, ending: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    anyhow::ensure!(depth > 0, "{} is nested too deep", folder.display());
    for entry in std::fs::read_dir(folder).with_context(|| format!("{} cannot be listed", folder.display()))? {
        let entry = entry?;
        let path = entry.path();
        let kind = entry.file_type()?;
        if kind.is_dir() && entry.file_name() != "target" {
            collect(&path, depth - 1, ending, found)?;
        } else if kind.is_file() && path.extension().is_some_and(|e| e == ending) {
            found.push(path);
        }
    }
    Ok(())
}

fn file(name: &str, text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    if !text.starts_with("//!") {
        violations.push(format!(
            "{name}: does not open with `//!`: what it is for, what it must not do, which file to read next"
        ));
    }
    let lines = text.lines().take_while(|l| *l != "#[cfg(test)]").count();
    if lines > LINES_MAX && !LONGER.iter().any(|(listed, _)| *listed == name) {
        violations.push(format!("{name}: {lines} lines without tests, more than {LINES_MAX}; it is two things"));
    }
    for (_, word, why) in APART.iter().filter(|(folder, word, _)| name.starts_with(folder) && text.contains(word)) {
        violations.push(format!("{name} names `{word}`: {why}"));
    }
    violations.extend(one_word_docs(name, text));
    violations.extend(documentation_tests(text).map(|line| {
        format!("{name}:{line}: rustdoc would compile this block, and `infra/run test` runs no such tests; name its language, or make a test of it")
    }));
    violations
}

/// Lines where a block of code begins in a doc comment that rustdoc takes for Rust.
fn documentation_tests(text: &str) -> impl Iterator<Item = usize> + '_ {
    let comments = text.lines().enumerate().filter_map(|(at, line)| {
        let line = line.trim_start();
        let said = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
        Some((at + 1, said.trim().strip_prefix("```")?))
    });
    // Every second one ends a block.
    comments.step_by(2).filter(|(_, words)| is_rust(words)).map(|(line, _)| line)
}

/// Whether rustdoc compiles a block with these words behind its fence: the first is Rust's name or one of rustdoc's, and none says that it is left alone.
fn is_rust(words: &str) -> bool {
    let mut words = words.split([',', ' ']);
    let of_rustdoc = |word: &str| {
        matches!(word, "" | "rust" | "no_run" | "should_panic" | "compile_fail") || word.starts_with("edition")
    };
    words.next().is_some_and(of_rustdoc) && words.all(|word| word != "ignore")
}

/// A doc comment of one word says no more than the name below it. One in backticks shows a form, which no name does.
fn one_word_docs<'a>(name: &'a str, text: &'a str) -> impl Iterator<Item = String> + 'a {
    let lines: Vec<&str> =
        text.lines().map(|line| line.trim().strip_prefix("///").unwrap_or_default().trim()).collect();
    let is_word = |line: &str| !line.is_empty() && line.chars().all(|c| c.is_alphanumeric() || "-_.:".contains(c));
    (0..lines.len()).filter_map(move |at| {
        let before = at.checked_sub(1).is_some_and(|before| !lines[before].is_empty());
        let after = lines.get(at + 1).is_some_and(|after| !after.is_empty());
        let alone = is_word(lines[at]) && !before && !after;
        alone.then(|| format!("{name}:{}: `/// {}` says no more than a name; say what it is for", at + 1, lines[at]))
    })
}

/// Paths of this repository in backticks: their first part is a source folder, `docs` or `.ci`. Placeholders are left out.
fn document_paths(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let whole = |p: &&str| p.contains('/') && !p.contains(|c: char| c.is_whitespace() || "{}<>*…()|:".contains(c));
    let ours = |p: &&str| {
        p.split('/').next().is_some_and(|first| SOURCES.contains(&first) || first == "docs" || first == ".ci")
    };
    quoted.filter(whole).filter(ours).map(|p| p.trim_end_matches('/').to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_rustdoc_would_compile_is_found() {
        let named = "//! a\n//! ```text\n//! x\n//! ```\n";
        assert_eq!(documentation_tests(named).count(), 0);
        assert!(documentation_tests(&format!("{named}/// ```\n/// y()\n/// ```\n")).eq([5]));
        for compiled in
            ["rust", "no_run", "rust,no_run", "compile_fail,E0502", "edition2021", "should_panic, edition2024"]
        {
            assert!(
                documentation_tests(&format!("{named}/// ```{compiled}\n/// y()\n/// ```\n")).eq([5]),
                "{compiled}"
            );
        }
        for other in ["text", "json,no_run", "ignore", "rust,ignore", "sh"] {
            assert!(!is_rust(other), "{other}");
        }
    }

    #[test]
    fn headers_and_sizes_are_checked_without_tests() {
        assert_eq!(file("a.rs", "use x;\n").len(), 1);
        let long = format!("//! a\n{}", "\n".repeat(LINES_MAX));
        assert_eq!(file("a.rs", &long).len(), 1);
        let tested = format!("//! a\n#[cfg(test)]\n{}", "\n".repeat(LINES_MAX));
        assert!(file("a.rs", &tested).is_empty());
        let judging = "//! a\nuse crate::limits::READY_DEADLINE_MS;\n";
        assert_eq!(file("controller/core/src/apply/jobs.rs", judging).len(), 1);
        assert!(file("controller/core/src/decide/jobs.rs", judging).is_empty());
    }

    #[test]
    fn a_doc_comment_of_one_word_is_refused() {
        let text = "//! a\n/// Steps.\nSteps,\n/// `HOST:PORT`\nAddress,\n    /// Where it lies: a\n    /// path.\n    Path,\n";
        let found = file("a.rs", text);
        assert!(found.len() == 1 && found[0].starts_with("a.rs:2: `/// Steps.`"), "{found:?}");
    }

    #[test]
    fn paths_in_documents_are_found() {
        let text =
            "See `events/log/src/lib.rs`, `controller/core/`, `workers/{a,b}`, `cargo test`, `a/b` and `docs/http.md`.";
        assert_eq!(document_paths(text), ["events/log/src/lib.rs", "controller/core", "docs/http.md"]);
    }
}
