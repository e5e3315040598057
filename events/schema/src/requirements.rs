//! What a job's environment holds beside its Python: lines of a `requirements.txt`, without what belongs to the server. Where packages come from
//! is the operator's to say, so options of pip are refused here; what a line installs is not known.

use crate::fields::{Fields, Problems, problem, shown};
use minicbor::{Decode, Encode};
use serde::Serialize;
use serde_json::Value;

/// Most lines: a locked environment of a large project has a few hundred.
const LINES_MAX: usize = 512;
/// Most bytes of all of them: they stand in the log and travel with every order.
const BYTES_MAX: usize = 32_768;
/// What may stand in a line beside the package: it makes the environment stricter, not another one.
const OPTION: &str = "--hash=";

/// The packages of an environment.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Requirements {
    /// One package each, without comments, sorted.
    #[n(0)]
    lines: Vec<String>,
    /// Whether the environment has all of its own, PyTorch included. Otherwise it lies over that of its Python, whose PyTorch it uses.
    #[n(1)]
    full: bool,
}

impl Requirements {
    /// One package each.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Whether nothing is taken from the Python that it is built with but its standard library.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Reads `{lines: […], full: false}`; lines may be those of a file as it is.
    pub(crate) fn parse(path: &str, value: &Value) -> Result<Self, Problems> {
        let mut f = Fields::new(path, value);
        let full = f.boolean("full").unwrap_or(false);
        let lines = f.nested_required("lines", LINES_EXPECTED, parse_lines);
        f.finish(lines.map(|lines| Self { lines, full }))
    }
}

const LINES_EXPECTED: &str = "the lines of a requirements.txt, such as [\"einops==0.8.1\"]";

fn parse_lines(path: &str, value: &Value) -> Result<Vec<String>, Problems> {
    let texts: Option<Vec<&str>> = value.as_array().and_then(|all| all.iter().map(Value::as_str).collect());
    let Some(texts) = texts else { return Err(problem(path, shown(value), LINES_EXPECTED)) };
    let mut lines = Vec::new();
    let mut begun = String::new();
    // An empty line ends what goes on.
    for text in texts.into_iter().chain([""]) {
        // A line that goes on has a backslash at its end; a comment never goes on.
        let is_comment = begun.is_empty() && text.trim_start().starts_with('#');
        if let Some(part) = text.trim_end().strip_suffix('\\').filter(|_| !is_comment) {
            begun.push_str(part);
            continue;
        }
        begun.push_str(text);
        let line = without_comment(&begun).split_whitespace().collect::<Vec<_>>().join(" ");
        begun.clear();
        if line.is_empty() {
            continue;
        }
        if let Some(expected) = refused(&line) {
            return Err(problem(path, shown(&line.into()), expected));
        }
        lines.push(line);
    }
    lines.sort();
    lines.dedup();
    let bytes = lines.iter().map(String::len).sum::<usize>();
    if lines.is_empty() || lines.len() > LINES_MAX || bytes > BYTES_MAX {
        let found = format!("{} lines of {bytes} bytes", lines.len());
        let expected = format!("at least one package, and at most {LINES_MAX} lines of {BYTES_MAX} bytes");
        return Err(problem(path, found, expected));
    }
    Ok(lines)
}

/// As pip has it: from a `#` at the beginning, or after a blank.
fn without_comment(line: &str) -> &str {
    let comment =
        line.char_indices().find(|&(at, c)| c == '#' && line[..at].chars().next_back().is_none_or(char::is_whitespace));
    comment.map_or(line, |(at, _)| &line[..at])
}

/// What would be right instead of a line.
fn refused(line: &str) -> Option<String> {
    if line.starts_with('-') || line.split(' ').any(|word| word.starts_with('-') && !word.starts_with(OPTION)) {
        return Some(
            "a package in each line; options of pip (-r, -e, --index-url, …) are not a job's: all packages stand in one file, and where they come from is said on the servers"
                .to_owned(),
        );
    }
    let address = line.split_once('@').map(|(_, address)| address.trim_start());
    let from_web = address.is_none_or(|address| {
        let place = address.strip_prefix("git+").unwrap_or(address).strip_prefix("https://");
        // A password would stand in the log.
        place.and_then(|place| place.split('/').next()).is_some_and(|host| !host.contains('@'))
    });
    let named = line.starts_with(|c: char| c.is_ascii_alphanumeric()) && !line.contains(char::is_control);
    let path = line.split([' ', ';', '@']).next().is_some_and(|name| name.contains(['/', '\\', ':']));
    (!named || path || !from_web).then(|| {
        "a package by its name, such as `numpy>=2`, or `name @ https://…` without a password; files of a server cannot be named".to_owned()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn read(lines: Value) -> Result<Requirements, String> {
        Requirements::parse("requirements", &json!({ "lines": lines })).map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_file_with_comments_and_continued_lines_is_the_same_as_its_packages() {
        let file = "# ours\nnumpy >= 2   # fast\n\neinops==0.8.1 \\\n    --hash=sha256:00\nx[a,b] @ https://h/x.whl#sha256=11\nnumpy >= 2";
        let read_of = read(file.lines().collect()).unwrap();
        assert_eq!(
            read_of.lines(),
            ["einops==0.8.1 --hash=sha256:00", "numpy >= 2", "x[a,b] @ https://h/x.whl#sha256=11"]
        );
        assert!(!read_of.is_full());
        let again = Requirements::parse("r", &serde_json::to_value(&read_of).unwrap()).unwrap();
        assert_eq!(again, read_of, "what is shown can be submitted again");
    }

    #[test]
    fn no_package_is_lost_behind_a_backslash() {
        let read_of = read(json!(["# in C:\\", "numpy", "einops \\"])).unwrap();
        assert_eq!(read_of.lines(), ["einops", "numpy"]);
    }

    #[test]
    fn what_belongs_to_the_server_is_refused() {
        for (line, said) in [
            ("-r more.txt", "options of pip"),
            ("--index-url https://evil", "options of pip"),
            ("numpy --no-deps", "options of pip"),
            ("-e .", "options of pip"),
            ("./wheel.whl", "by its name"),
            ("/etc/passwd", "by its name"),
            ("dir/wheel.whl", "by its name"),
            ("x @ file:///etc/passwd", "by its name"),
            ("file:///x.whl", "by its name"),
            ("x @ https://user:token@host/x.whl", "without a password"),
        ] {
            let refused = read(json!([line])).unwrap_err();
            assert!(refused.contains(said) && refused.contains("requirements.lines"), "{line}: {refused}");
        }
        assert!(read(json!([])).unwrap_err().contains("at least one package"));
        assert!(read(json!("numpy")).unwrap_err().contains("requirements.txt"));
    }
}
