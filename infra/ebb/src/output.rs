//! What commands print on standard output: a table for people, the API's JSON for programs, or names for shells. Colours and bars are only for a
//! terminal, and a closed pipe (`ebb jobs | head`) ends the program quietly; any other output that cannot be written is a failure.

use crate::failure::{Failure, exit_code};
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For programs: the API's answer, one JSON document (streams: one a line).
    Json,
    /// Only ids or names, one a line, for `for ID in $(…)`; as a table where a command tells of nothing that has a name.
    Name,
}

/// Writes one line to standard output; ends the program if that fails.
pub fn line(text: impl AsRef<str>) {
    bytes(format!("{}\n", text.as_ref()).as_bytes());
}

/// Writes these bytes as they are to standard output; ends the program if that fails.
pub fn bytes(bytes: &[u8]) {
    let Err(error) = write(bytes) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        // Nobody reads any more; 0, because the work asked for is done.
        std::process::exit(0);
    }
    Failure::local("the result cannot be written to standard output", error).print();
    std::process::exit(exit_code::FAILED.into());
}

/// Writes one line if anybody reads it: for a service, which goes on (and has to stop cleanly) either way.
pub fn mention(text: impl AsRef<str>) {
    // The line only informs; there is nowhere else to say it.
    let _ = write(format!("{}\n", text.as_ref()).as_bytes());
}

/// Writes one line for people beside the result, to standard error.
pub fn advise(text: impl AsRef<str>) {
    // A closed standard error leaves the result to tell.
    let _ = writeln!(std::io::stderr(), "{}", text.as_ref());
}

fn write(bytes: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// Standard output as a file for what comes in pieces; every write is [`bytes()`].
pub struct StandardOutput;

impl Write for StandardOutput {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        bytes(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes one JSON document, indented.
pub fn json(value: &impl Serialize) {
    // Answers and what is made of them here are trees of texts and numbers: they are always JSON.
    line(serde_json::to_string_pretty(value).unwrap_or_default());
}

/// Writes one JSON document as one line of a stream of them.
pub fn json_line(value: &impl Serialize) {
    line(serde_json::to_string(value).unwrap_or_default());
}

/// Whether a person looks at standard error, where bars and colours go.
#[must_use]
pub fn terminal() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Lines up rows under headings; columns are as wide as their widest cell.
#[must_use]
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|r| r.get(column))
            .map(|c| c.chars().count())
            .chain([headings[column].len()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let heading = headings.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>();
    std::iter::once(&heading)
        .chain(rows)
        .map(|row| {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
            cells.join("  ").trim_end().to_owned()
        })
        .collect::<Vec<_>>()
        .join("\n")
}

/// Lines up `name  value` pairs.
#[must_use]
pub fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name:width$}  {value}"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let text = table(&["ID", "PHASE"], &[vec!["job-a".into(), "running".into()], vec!["j".into(), String::new()]]);
        assert_eq!(text, "ID     PHASE\njob-a  running\nj");
    }
}
