//! A directory of the demo's or the bench's own, where the system keeps temporary files. It stays after a failure, to look at.

use crate::HarnessError;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Attempts to remove it, and the pause between two: processes that were just killed may still be writing.
const REMOVE_ATTEMPTS: u32 = 20;
const REMOVE_PAUSE: Duration = Duration::from_millis(100);

/// The directory.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes one that nobody else uses; its name begins with `kind`.
    pub fn fresh(kind: &str) -> Result<Self, HarnessError> {
        let random = getrandom::u64().map_err(|e| HarnessError::local("the system gives no random numbers", e))?;
        let path = std::env::temp_dir().join(format!("{kind}-{random:016x}"));
        std::fs::create_dir(&path)
            .map_err(|e| HarnessError::local(format!("`{}` cannot be made", path.display()), e))?;
        Ok(Self { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its own name, different every time.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Removes it and everything in it.
    pub async fn remove(self) -> Result<(), HarnessError> {
        let mut attempt = 1;
        loop {
            match std::fs::remove_dir_all(&self.path) {
                Ok(()) => return Ok(()),
                Err(_) if attempt < REMOVE_ATTEMPTS => attempt += 1,
                Err(e) => return Err(HarnessError::local(format!("`{}` cannot be removed", self.path.display()), e)),
            }
            tokio::time::sleep(REMOVE_PAUSE).await;
        }
    }
}
