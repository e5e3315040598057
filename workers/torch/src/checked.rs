//! What this server has checked already: a program whose gradients were found to be a function of model, batch and seed once is only asked
//! for its numeric class when the next executor builds it here. Knows nothing of what a check does.

use events_schema::Digest;
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
        std::fs::read_to_string(&self.file).ok()
    }

    /// It was checked, in this class. Whole or not at all, whoever else writes the same.
    pub fn note(&self, class: &str) -> io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        if std::fs::read_dir(&self.folder)?.count() >= KNOWN_MAX {
            std::fs::remove_dir_all(&self.folder)?;
            std::fs::create_dir_all(&self.folder)?;
        }
        let part = self.folder.join(format!(".{}", std::process::id()));
        std::fs::File::create(&part)?.write_all(class.as_bytes())?;
        std::fs::rename(part, &self.file)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_program_is_known_in_the_class_it_was_checked_in_and_another_is_not() {
        let folder = tempfile::tempdir().unwrap();
        Checked::of(folder.path(), "a").note("class").unwrap();
        assert_eq!(Checked::of(folder.path(), "a").class().as_deref(), Some("class"));
        assert_eq!(Checked::of(folder.path(), "b").class(), None);
    }

    #[test]
    fn a_server_forgets_what_it_checked_before_that_grows_without_bound() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..=KNOWN_MAX {
            Checked::of(folder.path(), &number.to_string()).note("class").unwrap();
        }
        assert_eq!(std::fs::read_dir(folder.path().join("checked")).unwrap().count(), 1);
    }
}
