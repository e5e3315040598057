//! An object of a store in a folder that nobody gets an answer about: who opens it waits, as for a server that says nothing any more.

use std::fs::{OpenOptions, rename};
use std::path::PathBuf;
use std::process::Command;

/// A pipe in the place of the object's file. Lasts until it is dropped; then the file is back, and who waited asks again.
pub struct Silence {
    file: PathBuf,
    aside: PathBuf,
}

impl Silence {
    pub fn of(file: PathBuf) -> Self {
        let aside = file.with_extension("aside");
        rename(&file, &aside).unwrap();
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        Self { file, aside }
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // On Linux a pipe that is opened for both waits for nobody, and lets go of those who wait for its other end.
        let pipe = OpenOptions::new().read(true).write(true).open(&self.file);
        rename(&self.aside, &self.file).unwrap();
        drop(pipe.unwrap());
    }
}
