//! Every sentence that a person may read, collected from the sources into one document, so that they are reviewed as text. A
//! sentence names the thing, says what is wrong and, where that is not plain, what to do.
//!
//! Sources are read as text: what stands in a string after one of the [`MARKERS`] is a sentence, and in a few files every text. Tests and examples are
//! left out.

use crate::files;
use anyhow::{Context, Result};
use std::path::Path;

/// The document.
const DOCUMENT: &str = "docs/messages.md";
/// How to write it anew.
const COMMAND: &str = "cargo xtask messages";
/// What sentences for people stand behind.
const MARKERS: &[&str] = &[
    "#[error(",
    "ApiError::new(",
    "ApiError::of_field(",
    ".saying(",
    ".wrong(",
    "Failure::local(",
    "Failure::plain(",
    "Failure::Usage(",
    ".advise(",
    "ImportError::Source(",
    "ScanError::Corrupt(",
    "Status::unauthenticated(",
    "Status::invalid_argument(",
    "Status::failed_precondition(",
    "Status::already_exists(",
    "Status::unavailable(",
    "let detail = ",
    "let expected = ",
    "not_ready(",
    "let reason = ",
];
/// Files of which people read every text of so many words and more: what events say, and why executors failed.
const READ_WHOLE: &[&str] = &["infra/ebb/src/sentences.rs", "controller/core/src/decide/failures.rs"];
/// Where the Python package is, and what sentences of it stand behind.
const PYTHON: &str = "workers/torch/python/ebb";
const PYTHON_MARKERS: &[&str] = &["Refused(", "RuntimeError(", "ValueError(", "Unfit(", "NonFinite("];
/// Of these the first text is a field's name and the second what is expected of it.
const OF_FIELDS: &[&str] = &[".wrong(", "ApiError::of_field("];
/// Fewest words of a sentence that stands alone; shorter ones name a thing and say nothing of it.
const WORDS_MIN: usize = 4;
/// Sentences whose other words are in what is filled in.
const COMPOSED: &[&str] = &["job {job} {}{phase}{}", "line {line}: {problem}", "{} (policy {})", "device {}: {reason}"];
/// Values whose form for programmers is one for people too: lists of numbers, and lengths of time.
const READABLE: &[&str] = &["{shape:?}", "{declared:?}", "{other:?}", "{waited:?}", "{within:?}", "{magic:02x?}"];

/// The sentences of one file.
#[derive(Debug, PartialEq)]
struct Messages {
    file: String,
    lines: Vec<(usize, String)>,
}

/// Writes the document.
pub fn write(root: &Path) -> Result<()> {
    let path = root.join(DOCUMENT);
    std::fs::write(&path, document(&collected(root)?)).with_context(|| format!("{} cannot be written", path.display()))
}

/// Whether the document is up to date, and every sentence one.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let messages = collected(root)?;
    let mut violations: Vec<String> = messages
        .iter()
        .flat_map(|messages| messages.lines.iter().map(move |(line, text)| (&messages.file, line, text)))
        .filter_map(|(file, line, text)| wrong_with(text).map(|what| format!("{file}:{line}: message `{text}` {what}")))
        .collect();
    let written = std::fs::read_to_string(root.join(DOCUMENT)).unwrap_or_default();
    if written != document(&messages) {
        violations.push(format!("{DOCUMENT} is not what the sources say; run `{COMMAND}` and read what changed"));
    }
    Ok(violations)
}

fn collected(root: &Path) -> Result<Vec<Messages>> {
    let mut all = Vec::new();
    for (file, text) in files::sources(root)? {
        let product = !["/tests/", "/examples/", "infra/xtask/"].iter().any(|part| file.contains(part))
            && !file.ends_with("tests.rs");
        let lines = match product {
            true if READ_WHOLE.contains(&file.as_str()) => of_whole(&text),
            true => of_source(&text),
            false => Vec::new(),
        };
        all.push(Messages { file, lines });
    }
    for (file, text) in files::under(root, PYTHON, "py")? {
        all.push(Messages { file, lines: of_python(&text) });
    }
    all.retain(|messages| !messages.lines.is_empty());
    Ok(all)
}

fn document(messages: &[Messages]) -> String {
    let mut text = format!(
        "# Messages\n\nEvery sentence that people may read, as it stands in the sources (`{{…}}` is filled in). Written by `{COMMAND}`; `cargo xtask check` fails when it is out of\ndate. Read a change of this page as its reader will: does it name the thing, say what is wrong, and what to do?\n"
    );
    for Messages { file, lines } in messages {
        text.push_str(&format!("\n## {file}\n\n"));
        let mut said: Vec<&str> = Vec::new();
        for (_, line) in lines {
            if !said.contains(&line.as_str()) {
                said.push(line);
                text.push_str(&format!("- {line}\n"));
            }
        }
    }
    text
}

/// Its words, each place to be filled in being one.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace().filter(|word| word.contains('{') || word.chars().any(char::is_alphabetic))
}

/// Why a text is no sentence for people.
fn wrong_with(text: &str) -> Option<String> {
    // It consists of what another one says.
    if COMPOSED.contains(&text) || words(text).all(|word| word.contains('{')) {
        return None;
    }
    if words(text).count() < WORDS_MIN {
        return Some(format!("has fewer than {WORDS_MIN} words: name the thing and say what is wrong with it"));
    }
    let bare = READABLE.iter().fold(text.to_owned(), |text, readable| text.replace(readable, ""));
    if bare.contains("?}") {
        return Some("shows a value as programmers see it".to_owned());
    }
    if text.ends_with([':', ',', ';']) {
        return Some("ends in the middle".to_owned());
    }
    None
}

/// The sentences of a source, by line.
fn of_source(text: &str) -> Vec<(usize, String)> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = Vec::new();
    for (place, _) in text.char_indices() {
        let Some(marker) = MARKERS.iter().find(|marker| text[place..].starts_with(**marker)) else { continue };
        let rest = &text[place + marker.len()..];
        let mut texts = literals(extent(rest, marker.ends_with('('))).into_iter();
        let line = text[..place].lines().count().max(1);
        let sentence = if OF_FIELDS.contains(marker) {
            match (texts.next(), texts.last()) {
                (Some(field), Some(expected)) if expected.contains(' ') && !field.contains(' ') => {
                    let field = if field.is_empty() { "the body".to_owned() } else { format!("`{field}`") };
                    Some(format!("{field} is …; expected {expected}"))
                }
                _ => None,
            }
        } else {
            texts.next().filter(|text| text.contains(' ') || *marker == "#[error(")
        };
        found.extend(sentence.map(|sentence| (line, sentence)));
    }
    found
}

/// Every text of a source that has the words of a sentence.
fn of_whole(text: &str) -> Vec<(usize, String)> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code = |line: &str| !line.trim_start().starts_with("//");
    let lines: Vec<&str> = text.lines().map(|line| if code(line) { line } else { "" }).collect();
    let said = literals(&lines.join("\n")).into_iter().filter(|text| words(text).count() >= WORDS_MIN);
    said.map(|text| (1, text)).collect()
}

/// The sentences of a source in Python, whose texts beside each other are one.
fn of_python(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (place, _) in text.char_indices() {
        let Some(marker) = PYTHON_MARKERS.iter().find(|marker| text[place..].starts_with(**marker)) else { continue };
        let parts = literals(extent(&text[place + marker.len()..], true));
        let sentence = parts.into_iter().filter(|part| part.contains(' ') && part.len() > 2).collect::<String>();
        let line = text[..place].lines().count().max(1);
        found.extend(sentence.contains(' ').then_some((line, sentence)));
    }
    found
}

/// What belongs to a marker: up to its closing bracket, or to the end of the statement.
fn extent(rest: &str, in_brackets: bool) -> &str {
    let (mut depth, mut in_text, mut escaped) = (u32::from(in_brackets), false, false);
    for (place, character) in rest.char_indices() {
        match (in_text, character) {
            _ if escaped => escaped = false,
            (true, '\\') => escaped = true,
            (_, '"') => in_text = !in_text,
            (false, '(') => depth += 1,
            (false, ')') => {
                depth = depth.saturating_sub(1);
                if in_brackets && depth == 0 {
                    return &rest[..place];
                }
            }
            (false, ';') if depth == 0 => return &rest[..place],
            _ => {}
        }
    }
    rest
}

/// The texts of a piece of source, as they are read: joined over lines, without escapes.
fn literals(source: &str) -> Vec<String> {
    let (mut found, mut characters) = (Vec::new(), source.chars().peekable());
    while let Some(character) = characters.next() {
        if character != '"' {
            continue;
        }
        let mut text = String::new();
        while let Some(character) = characters.next() {
            match character {
                '"' => break,
                '\\' => match characters.next() {
                    Some('\n') => while characters.next_if(|c| c.is_whitespace()).is_some() {},
                    Some('n') => text.push(' '),
                    Some(other) => text.push(other),
                    None => break,
                },
                other => text.push(other),
            }
        }
        found.push(text.replace("{{", "{").replace("}}", "}"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_found_where_people_read_them() {
        let source = r#"
#[error("`{name}` is gone; look \
         elsewhere")]
enum E {}
fn f() {
    Err(Failure::local(format!("the file `{}` cannot be read", path(1)), e).advise("choose another one with --data"));
    f.wrong("max", "a whole number from 1");
    let other = "this is for nobody to read";
}
#[cfg(test)]
mod tests { #[error("not this one either")] }
"#;
        let texts: Vec<String> = of_source(source).into_iter().map(|(_, text)| text).collect();
        assert_eq!(
            texts,
            [
                "`{name}` is gone; look elsewhere",
                "the file `{}` cannot be read",
                "choose another one with --data",
                "`max` is …; expected a whole number from 1"
            ]
        );
    }

    #[test]
    fn texts_of_python_beside_each_other_are_one_sentence() {
        let source = "class Refused(Exception):\n    pass\nraise Refused(\n    f\"`{name}` has no kernel that gives \"\n    \"the same bits: use another\"\n)\n";
        let texts: Vec<String> = of_python(source).into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["`{name}` has no kernel that gives the same bits: use another"]);
    }

    #[test]
    fn of_some_files_every_text_is_read() {
        let source = "fn f() { // not \"this one of some words\"\n    // \"nor this one of some words\"\n    g(\"key\", \"it was not ready in time\");\n}\n#[cfg(test)] \"nor this one at last\"";
        let texts: Vec<String> = of_whole(source).into_iter().map(|(_, text)| text).collect();
        assert!(
            texts.contains(&"it was not ready in time".to_owned())
                && !texts.iter().any(|text| text.contains("nor this"))
        );
    }

    #[test]
    fn fragments_and_what_programmers_see_are_told() {
        for (text, part) in [
            ("secret file {path}", "fewer than"),
            ("the file says {0:?} and more", "programmers"),
            ("what was said is this:", "middle"),
        ] {
            assert!(wrong_with(text).is_some_and(|what| what.contains(part)), "{text}");
        }
        assert_eq!((wrong_with("{0}"), wrong_with("the log cannot be read")), (None, None));
    }
}
