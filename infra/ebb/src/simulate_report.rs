//! The folder of `ebb simulate run --report`: made, taken over from an earlier report, written. What stands in its files is made in
//! `loadtest/simulate/src/report`; nothing that a report did not write is overwritten or removed here.

use crate::failure::Failure;
use crate::find::nearest;
use crate::simulate_run::write;
use clap::{Args, ValueHint};
use loadtest_simulate::report::{FILES, File, LIVES_MAX, MARK, PAGE, unfinished};
use loadtest_simulate::{Report, Setup};
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Where a report goes, and what it tells of. No figure follows from these.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Folder for a page with pictures that opens offline.
    ///
    /// Beside it are the pictures and figures as SVG, CSV and JSON. It has to be new, empty, or an earlier report's.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub report: Option<PathBuf>,
    /// A job whose slots the report draws under each policy, by its name in the recording; up to three, instead of those that it chooses.
    #[arg(long, hide_short_help = true, value_name = "NAME", requires = "report")]
    pub job: Vec<String>,
}

impl ReportArgs {
    /// The report of a seed, and its folder, which is one within that of the report if there are several; none if nobody wants one.
    pub(crate) fn begun(&self, setup: &Setup, is_of_several: bool) -> Result<Option<(PathBuf, Report)>, Failure> {
        let Some(folder) = &self.report else { return Ok(None) };
        let report = Report::of_jobs(self.jobs(setup)?);
        if !is_of_several {
            return Ok(Some((folder.clone(), report)));
        }
        let folder = folder.join(of_seed(setup.seed));
        prepare(&folder)?;
        Ok(Some((folder, report)))
    }

    /// The places of the jobs that were asked for; of several of one name the first.
    pub(crate) fn jobs(&self, setup: &Setup) -> Result<Vec<usize>, Failure> {
        if self.job.len() > LIVES_MAX {
            return Err(Failure::Usage(format!(
                "--job: {} jobs are asked for; expected {LIVES_MAX} at most",
                self.job.len()
            )));
        }
        let place = |name: &String| {
            let place = setup.jobs.iter().position(|job| job.name == *name);
            place.ok_or_else(|| {
                let names: Vec<String> = setup.jobs.iter().map(|job| job.name.clone()).collect();
                let nearest =
                    nearest(name, &names).map_or_else(String::new, |nearest| format!(", `{nearest}` for example"));
                Failure::Usage(format!(
                    "--job: `{name}` is none of the {} jobs; expected the name of one{nearest}",
                    names.len()
                ))
            })
        };
        self.job.iter().map(place).collect()
    }
}

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
