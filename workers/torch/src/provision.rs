//! What a whole program finds on its server beside its code: a Python with what the job requires, and values of secrets. A model in PyTorch is given the
//! same (`prepare.rs`), and more.

use crate::cache::Cache;
use crate::environment::{self, Environment};
use crate::job::TorchError;
use crate::prepare::whole;
use crate::{isolation, package, secrets};
use events_schema::control::TorchHost;
use events_schema::gang::CommandSpec;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What is there. It holds values of secrets, so it cannot be printed.
pub struct Provision {
    /// What `python` means where nothing is required.
    python: String,
    /// Keeps what was built where it is.
    environment: Option<Environment>,
    secrets: BTreeMap<String, String>,
}

impl Provision {
    /// Reads the secrets, and builds what is required if it is not on this server; that takes as long as installing does.
    pub fn of(host: &TorchHost, spec: &CommandSpec) -> Result<Self, TorchError> {
        let secrets = secrets::read(host.secrets.as_deref(), &spec.secrets)?;
        let python = whole(spec.python.as_ref().unwrap_or(&host.python))?;
        let Some(requirements) = &spec.requirements else { return Ok(Self { python, environment: None, secrets }) };
        let folder = &std::path::absolute(&host.folder)?;
        if host.files.is_some() {
            isolation::refuse_planted(&python, folder)?;
        }
        std::fs::create_dir_all(folder)?;
        let (package, cache) = (package::lay_out(folder)?, Cache::open(folder, host.cache_mib)?);
        let environment = environment::prepare(host, &python, Some(requirements), &cache, &package)?;
        Ok(Self { python, environment: Some(environment), secrets })
    }

    /// The Python that the environment lies over, or that is used as it is.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.python
    }

    /// What was built.
    #[must_use]
    pub fn folder(&self) -> Option<PathBuf> {
        self.environment.as_ref().and_then(Environment::folder)
    }

    /// Folders in which programs are looked for before others: those of the environment, then those of the Python below.
    #[must_use]
    pub fn program_folders(&self) -> Vec<PathBuf> {
        let built = self.environment.as_ref().map(|environment| environment.python.as_str());
        let folders = built.into_iter().chain([self.python.as_str()]).filter_map(|python| Path::new(python).parent());
        let mut folders: Vec<PathBuf> = folders.filter(|folder| folder.is_absolute()).map(Path::to_owned).collect();
        folders.dedup();
        folders
    }

    /// Values by the variables that are to hold them.
    #[must_use]
    pub fn secrets(&self) -> &BTreeMap<String, String> {
        &self.secrets
    }
}
