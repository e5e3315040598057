//! The folder of `ebb simulate run --report`: made, taken over from an earlier report, written. What stands in its files is made in
//! `loadtest/simulate/src/report`; nothing that a report did not write is overwritten or removed here.

use crate::failure::Failure;
use crate::simulate_run::write;
use loadtest_simulate::report::{FILES, File, MARK, PAGE, unfinished};
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Has a folder hold nothing but the word that a report is on its way, by which it is known again if that does not come.
pub(crate) fn prepare(folder: &Path) -> Result<(), Failure> {
    let shown = folder.display();
    fs::create_dir_all(folder).map_err(|error| Failure::local(format!("--report: {shown} cannot be made"), error))?;
    let unreadable = |error| Failure::local(format!("--report: {shown} cannot be listed"), error);
    let is_empty = fs::read_dir(folder).map_err(unreadable)?.next().is_none();
    if !is_empty && !is_report(folder) {
        let why = format!(
            "--report: {shown} is not empty and holds no report of an earlier run; expected a new folder, an empty one, or one that an earlier `--report` wrote"
        );
        return Err(Failure::Usage(why));
    }
    clear(folder).map_err(|error| Failure::local(format!("--report: {shown} cannot be cleared"), error))?;
    write(&folder.join(PAGE), &unfinished())
}

/// Writes the files of a report, the page last.
pub(crate) fn write_files(folder: &Path, files: &[File]) -> Result<(), Failure> {
    files.iter().try_for_each(|(name, text)| write(&folder.join(name), text))
}

/// The folder of one of several seeds.
pub(crate) fn of_seed(seed: u64) -> String {
    format!("seed-{seed}")
}

fn is_report(folder: &Path) -> bool {
    let mut begins = Vec::new();
    let read = fs::File::open(folder.join(PAGE)).and_then(|page| page.take(MARK.len() as u64).read_to_end(&mut begins));
    read.is_ok() && begins == MARK.as_bytes()
}

/// Removes what an earlier report wrote, those of its seeds included: of fewer policies or seeds nothing may be left over. What somebody else
/// put beside it stays.
fn clear(folder: &Path) -> Result<(), std::io::Error> {
    for entry in fs::read_dir(folder)? {
        let (name, path) = entry.map(|entry| (entry.file_name(), entry.path()))?;
        let name = name.to_string_lossy();
        let is_seed =
            name.strip_prefix("seed-").is_some_and(|seed| seed.parse().is_ok_and(|seed| of_seed(seed) == name));
        if is_seed && path.is_dir() && is_report(&path) {
            clear(&path)?;
            match fs::remove_dir(&path) {
                Err(error) if error.kind() != ErrorKind::DirectoryNotEmpty => return Err(error),
                _ => {}
            }
        } else if FILES.contains(&name.as_ref()) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn what_a_report_did_not_write_is_kept() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("of/mine");
        prepare(&folder).unwrap();
        assert_eq!(names(&folder), [PAGE]);
        for name in ["seed-3", "seed-4", "seed-x"] {
            prepare(&folder.join(name)).unwrap();
        }
        for name in ["jobs.csv", "notes.txt", "seed-3/run.json", "seed-4/mine"] {
            fs::write(folder.join(name), "").unwrap();
        }
        prepare(&folder).unwrap();
        assert_eq!(names(&folder), [PAGE, "notes.txt", "seed-4", "seed-x"]);
        assert_eq!(
            (names(&folder.join("seed-4")), names(&folder.join("seed-x"))),
            (vec!["mine".to_owned()], vec![PAGE.to_owned()])
        );
    }

    #[test]
    fn a_folder_of_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(PAGE), "<!doctype html>\n<p>mine").unwrap();
        let error = prepare(folder.path()).unwrap_err().to_string();
        assert!(error.contains("--report: ") && error.contains("is not empty and holds no report"), "{error}");
        assert!(fs::read_to_string(folder.path().join(PAGE)).unwrap().ends_with("mine"));
        let error = prepare(&folder.path().join(PAGE)).unwrap_err().to_string();
        assert!(error.contains("cannot be made"), "{error}");
    }
}
