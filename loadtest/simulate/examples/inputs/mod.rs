//! What the examples read: recordings, packed or not, and measured speeds.

use loadtest_simulate::pollux::PolluxModel;
use loadtest_simulate::{Format, Tables, TraceJob, trace};
use std::path::Path;
use std::process::Command;

fn text(file: &Path) -> String {
    if file.extension().is_some_and(|ending| ending == "gz") {
        let unpacked = Command::new("gzip").arg("-dc").arg(file).output().unwrap();
        return String::from_utf8(unpacked.stdout).unwrap();
    }
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{} cannot be read: {error}", file.display()))
}

/// The jobs of a recording.
pub fn recorded(file: &Path, format: Format) -> Vec<TraceJob> {
    trace::parse(&text(file), format).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The measured speeds of a folder.
pub fn tables(folder: &Path) -> Tables {
    let mut tables = Tables::default();
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths.iter().filter(|path| path.extension().is_none_or(|ending| ending != "md")) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        match path.is_dir() {
            true => tables.add_pollux(name, pollux(path)),
            false => tables.add(name, &text(path)).unwrap(),
        }
    }
    tables
}

fn pollux(folder: &Path) -> PolluxModel {
    let text = |file: &str| text(&folder.join(file));
    let mut model = PolluxModel::read(&text("placements.csv"), &text("scalability.csv")).unwrap();
    for file in std::fs::read_dir(folder).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let size = name.strip_prefix("validation-").and_then(|name| name.strip_suffix(".csv"));
        if let Some(size) = size {
            model.add_validation(size.parse().unwrap(), &text(&name)).unwrap();
        }
    }
    model
}
