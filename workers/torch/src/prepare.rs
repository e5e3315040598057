//! What has to be there before a job's Python is started: the package, its environment, its secrets, a folder of its own, and rules for its files.

use crate::cache::Cache;
use crate::child::Launch;
use crate::environment::{self, Environment};
use crate::isolation::{self, Isolation, Reach};
use crate::job::{Initial, TorchError, TorchStart};
use crate::own_folder::OwnFolder;
use crate::{package, secrets, variables};
use events_schema::torch::TorchDevice;
use std::io;
use std::path::Path;

impl TorchStart {
    /// What has to be there before a process is started.
    pub(crate) fn prepare(&self) -> Result<(Launch, Environment), TorchError> {
        // What is started runs in a folder of its own.
        let folder = &std::path::absolute(&self.host.folder)?;
        std::fs::create_dir_all(folder)?;
        let package = package::lay_out(folder)?;
        let secrets = secrets::read(self.host.secrets.as_deref(), &self.model.secrets)?;
        let cache = Cache::open(folder, self.host.cache_mib)?;
        let python = &whole(self.model.python.as_ref().unwrap_or(&self.host.python))?;
        let own = self.own_folder(python)?;
        let requirements = self.model.requirements.as_ref();
        let environment = environment::prepare(&self.host, python, requirements, &cache, &package)?;
        // What a warm process is started with its agent keeps, and no secret is an agent's to keep.
        let late = !secrets.keys().any(|name| variables::is_read_at_import(name));
        let mut variables = variables::all(self, &package);
        variables.extend(secrets.into_iter().map(|(name, value)| (name, value.into())));
        let isolation = match &own {
            Some(own) => Isolation::of(&self.host, self.reach(python, &package, &environment, own))?,
            None => None,
        };
        let own_variables = own.as_ref().map(|own| isolation::variables(own, &self.model.environment));
        // Packages may run code of theirs as soon as a Python that has them starts, and a warm process has no rules.
        let brings_code = isolation.is_some() && environment.folder().is_some();
        let launch = Launch {
            python: environment.python.clone(),
            variables,
            own_variables: own_variables.unwrap_or_default(),
            own,
            isolation,
            warm: self.host.warm.clone().filter(|_| late && !brings_code && !self.leads_a_warm_process()),
            memory_limit_mib: self.model.memory_limit_mib,
            computing: self.computing.clone(),
        };
        Ok((launch, environment))
    }

    /// Whether the job's variables could bring a process that runs no code of jobs, and has no rules for its files, to load some: a library, a
    /// folder of packages. What names a file has a slash, or is looked for where no job can write.
    fn leads_a_warm_process(&self) -> bool {
        let leads = |(name, value): (&String, &String)| variables::is_read_at_import(name) && value.contains('/');
        self.host.files.is_some() && self.model.environment.iter().any(leads)
    }

    /// Where its Python works and may write, where that is kept apart.
    fn own_folder(&self, python: &str) -> Result<Option<OwnFolder>, TorchError> {
        if self.host.files.is_none() {
            return Ok(None);
        }
        isolation::refuse_planted(python, Path::new(&self.host.folder))?;
        Ok(Some(OwnFolder::of(&self.host)?))
    }

    fn reach(&self, python: &str, package: &Path, environment: &Environment, own: &OwnFolder) -> Reach {
        let (fetched, tensors) = match &self.initial {
            Some(Initial::Fetched(held)) => (Some(held.path().to_owned()), None),
            Some(Initial::OnServer(path)) => (None, Some(path.clone())),
            None => (None, None),
        };
        let readable = [package.to_owned(), self.code.path().to_owned()].into_iter();
        Reach {
            pythons: vec![python.to_owned()],
            readable: readable.chain(environment.folder()).chain(fetched).collect(),
            writable: vec![own.home()],
            tensors,
            gpu: self.model.device == TorchDevice::Cuda,
            ..Reach::default()
        }
    }
}

/// A program by its path, wherever that is read from; one by its name alone is looked for where programs are.
pub(crate) fn whole(program: &str) -> io::Result<String> {
    Ok(if program.contains('/') { std::path::absolute(program)?.display().to_string() } else { program.to_owned() })
}
