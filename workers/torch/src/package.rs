//! The Python package `ebb`: part of this program, laid out in a folder for the child to import. Nothing has to be installed on a server.

use events_schema::Digest;
use std::io;
use std::path::{Path, PathBuf};

include!(concat!(env!("OUT_DIR"), "/package.rs"));

/// The folder to put on Python's path; laid out once for each content.
pub fn lay_out(folder: &Path) -> io::Result<PathBuf> {
    let content: Vec<u8> =
        FILES.iter().flat_map(|(name, text)| [name.as_bytes(), b"\0", text.as_bytes(), b"\0"].concat()).collect();
    storage::code::once(folder, &format!("ebb-{}", Digest::of(&content)), |whole| {
        let package = whole.join("ebb");
        std::fs::create_dir_all(&package)?;
        FILES.iter().try_for_each(|(name, text)| std::fs::write(package.join(name), text))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{child, frame, variables};
    use events_schema::report::{MEASURE_NAME_BYTES_MAX, MEASURES_MAX, PREDICTIONS_MAX};

    fn text_of(file: &str) -> &'static str {
        FILES.iter().find(|(name, _)| *name == file).unwrap().1
    }

    /// What a line `NAME = VALUE` of a file says, as a number; values may be shifted ones, and stand in a row as their names do.
    fn number(file: &str, name: &str) -> u64 {
        let assignments = text_of(file).lines().filter_map(|line| line.split_once(" = "));
        let (at, values) = assignments
            .filter_map(|(names, values)| Some((names.split(", ").position(|found| found == name)?, values)))
            .next()
            .unwrap_or_else(|| panic!("{file} has no {name}"));
        let value = values.split(", ").nth(at).unwrap().replace('_', "");
        let shifted = value.split_once(" << ");
        shifted.map_or_else(
            || value.parse().unwrap(),
            |(one, by)| one.parse::<u64>().unwrap() << by.parse::<u32>().unwrap(),
        )
    }

    /// Both sides are of one program, so each of these is one thing that two languages write down.
    #[test]
    fn both_languages_say_the_same() {
        let bound = |most: usize| u64::try_from(most).unwrap();
        assert_eq!(number("worker.py", "FRAME_LIMIT_BYTES"), bound(frame::FRAME_BYTES_MAX));
        assert_eq!(number("worker.py", "DESCRIPTORS_MAX"), bound(frame::DESCRIPTORS_MAX));
        assert_eq!(number("returned.py", "NAMES_MAX"), bound(MEASURES_MAX));
        assert_eq!(number("returned.py", "NAME_BYTES_MAX"), bound(MEASURE_NAME_BYTES_MAX));
        assert_eq!(number("returned.py", "COUNT_MAX"), PREDICTIONS_MAX);
        for (file, named) in [
            ("worker.py", child::SOCKET_VARIABLE),
            ("worker.py", child::LIFE_VARIABLE),
            ("forkserver.py", child::SOCKET_VARIABLE),
            ("forkserver.py", child::LIFE_VARIABLE),
        ] {
            assert!(text_of(file).contains(named), "{file} does not know {named}");
        }
        let (name, value) = variables::CUBLAS_WORKSPACE;
        assert!(
            text_of("numerics.py").contains(&format!("{{\"{name}\": \"{value}\"}}")),
            "numerics.py sets another {name}"
        );
    }
}
