//! What this server has checked already: a program whose gradients were found to be a function of model, batch and seed once is only asked
//! for its numeric class when the next executor builds it here. Knows nothing of what a check does.

use events_schema::Digest;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Most programs that a server remembers. A file of some hundred bytes each; beyond it all are forgotten, which costs a check each.
const KNOWN_MAX: usize = 1_024;

/// The memory of one program.
#[derive(Debug)]
pub struct Checked {
    folder: PathBuf,
    file: PathBuf,
}

impl Checked {
    /// Of a program that is all of this text: what it is built from, and by which Python.
    pub fn of(folder: &Path, program: &str) -> Self {
        let folder = folder.join("checked");
        let file = folder.join(Digest::of(program.as_bytes()).to_string());
        Self { folder, file }
    }

    /// The numeric class it was checked in.
    pub fn class(&self) -> Option<String> {
        fs::read_to_string(&self.file).ok()
    }

    /// It was checked, in this class, and so far this was known. What cannot be remembered costs a check each time, and no more.
    pub fn note(&self, known: Option<&str>, class: &str) {
        if known != Some(class)
            && let Err(error) = self.write(class)
        {
            tracing::warn!(folder = %self.folder.display(), %error, "that a program was checked cannot be remembered");
        }
    }

    /// Whole or not at all, whoever else writes the same.
    fn write(&self, class: &str) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let known = fs::read_dir(&self.folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
        if known.len() >= KNOWN_MAX {
            known.iter().try_for_each(|file| unless_gone(fs::remove_file(file)))?;
        }
        let part = self.folder.join(format!(".{}", std::process::id()));
        fs::File::create(&part)?.write_all(class.as_bytes())?;
        unless_gone(fs::rename(part, &self.file))
    }
}

/// Another executor of this server may have forgotten it first.
fn unless_gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_program_is_known_in_the_class_it_was_checked_in_and_another_is_not() {
        let folder = tempfile::tempdir().unwrap();
        Checked::of(folder.path(), "a").note(None, "class");
        assert_eq!(Checked::of(folder.path(), "a").class().as_deref(), Some("class"));
        assert_eq!(Checked::of(folder.path(), "b").class(), None);
    }

    #[test]
    fn a_server_forgets_what_it_checked_before_that_grows_without_bound() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..=KNOWN_MAX {
            Checked::of(folder.path(), &number.to_string()).note(None, "class");
        }
        assert_eq!(fs::read_dir(folder.path().join("checked")).unwrap().count(), 1);
    }

    #[test]
    fn what_is_known_is_not_written_again_and_what_cannot_be_written_stops_nobody() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..KNOWN_MAX {
            Checked::of(folder.path(), &number.to_string()).note(None, "class");
        }
        Checked::of(folder.path(), "0").note(Some("class"), "class");
        assert_eq!(fs::read_dir(folder.path().join("checked")).unwrap().count(), KNOWN_MAX);
        Checked::of(folder.path(), "0").note(Some("class"), "another");
        assert_eq!(Checked::of(folder.path(), "0").class().as_deref(), Some("another"));
        // No folder can be made below a file.
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        Checked::of(&file, "a").note(None, "class");
    }
}
