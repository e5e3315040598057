//! The files that a simulated run is made of: recorded jobs, curves of demand, tables. All of them are read here, and digests of them are kept, so that it
//! is known later whether they are still the same.

use crate::failure::Failure;
use events_schema::Digest;
use flate2::read::GzDecoder;
use loadtest_simulate::Tables;
use loadtest_simulate::pollux::PolluxModel;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest recording: ten times the largest public one.
const FILE_LEN_MAX: u64 = 256 << 20;

/// Reads files.
#[derive(Debug, Default)]
pub(crate) struct Files {
    digests: BTreeMap<String, Digest>,
    kept: BTreeMap<PathBuf, Arc<str>>,
}

impl Files {
    /// Of each file that was read, by its name as it was asked for: of its text, unpacked.
    pub(crate) fn digests(&self) -> &BTreeMap<String, Digest> {
        &self.digests
    }

    /// That none of the files that were read before is missing.
    pub(crate) fn are_there(before: &BTreeMap<String, Digest>) -> Result<(), Failure> {
        let Some(name) = before.keys().find(|name| !Path::new(name).exists()) else { return Ok(()) };
        Err(Failure::Usage(format!(
            "{name} is missing; expected it where it was, seen from here, or `ebb simulate run` for what there is now"
        )))
    }

    /// That they are the files that were read before, as they were then.
    pub(crate) fn must_be(&self, before: &BTreeMap<String, Digest>) -> Result<(), Failure> {
        let is_other = |name: &&String| self.digests.get(*name) != before.get(*name);
        let Some(name) = self.digests.keys().chain(before.keys()).find(is_other) else { return Ok(()) };
        let digest = |of: &BTreeMap<String, Digest>| of.get(name).map_or_else(|| "none".to_owned(), Digest::to_string);
        Err(Failure::Usage(format!(
            "{name} is not what it was: the digest of its text is {}; expected {}, or `ebb simulate run` for what there is now",
            digest(&self.digests),
            digest(before)
        )))
    }

    /// What stands in a file, unpacked if it is compressed.
    pub(crate) fn text(&mut self, file: &Path) -> Result<String, Failure> {
        let packed = file.extension().is_some_and(|extension| extension == "gz");
        let opened = open(file)?;
        let source: Box<dyn Read> = if packed { Box::new(GzDecoder::new(opened)) } else { Box::new(opened) };
        let mut text = String::new();
        let read = source.take(FILE_LEN_MAX + 1).read_to_string(&mut text);
        read.map_err(|error| Failure::local(format!("{} cannot be read", file.display()), error))?;
        if text.len() as u64 > FILE_LEN_MAX {
            let why = format!("{} has more than {FILE_LEN_MAX} bytes; cut it", file.display());
            return Err(Failure::Usage(why));
        }
        self.digests.insert(file.display().to_string(), Digest::of(text.as_bytes()));
        Ok(text)
    }

    /// The same of a file that is asked for several times, by fleets and seeds: it is read once.
    pub(crate) fn kept(&mut self, file: &Path) -> Result<Arc<str>, Failure> {
        if let Some(text) = self.kept.get(file) {
            return Ok(Arc::clone(text));
        }
        let text: Arc<str> = self.text(file)?.into();
        self.kept.insert(file.to_owned(), Arc::clone(&text));
        Ok(text)
    }

    /// `MODEL.csv` with iterations per second, or `MODEL/` with what Pollux measured.
    pub(crate) fn tables(&mut self, folder: &Path) -> Result<Tables, Failure> {
        let mut tables = Tables::default();
        for (name, path) in listed(folder)? {
            let unusable = |error| Failure::Usage(format!("{} cannot be used as a table: {error}", path.display()));
            if path.is_dir() {
                tables.add_pollux(&name, self.pollux(&path)?);
            } else if let Some(model) = name.strip_suffix(".csv") {
                tables.add(model, &self.text(&path)?).map_err(unusable)?;
            }
        }
        if tables.models().next().is_none() {
            return Err(Failure::Usage(format!("--tables: neither MODEL.csv nor MODEL/ is in {}", folder.display())));
        }
        Ok(tables)
    }

    fn pollux(&mut self, folder: &Path) -> Result<PolluxModel, Failure> {
        let unusable =
            |file: &Path, error| Failure::Usage(format!("{} cannot be used as a table: {error}", file.display()));
        let (placements, scalability) = (folder.join("placements.csv"), folder.join("scalability.csv"));
        let read = PolluxModel::read(&self.text(&placements)?, &self.text(&scalability)?);
        let mut model = read.map_err(|error| unusable(folder, error))?;
        for (name, file) in listed(folder)? {
            let size = name.strip_prefix("validation-").and_then(|name| name.strip_suffix(".csv"));
            if let Some(size) = size.and_then(|size| size.parse().ok()) {
                model.add_validation(size, &self.text(&file)?).map_err(|error| unusable(&file, error))?;
            }
        }
        Ok(model)
    }
}

fn open(file: &Path) -> Result<File, Failure> {
    File::open(file).map_err(|error| Failure::local(format!("{} cannot be opened", file.display()), error))
}

/// What is in a folder, by name.
fn listed(folder: &Path) -> Result<Vec<(String, PathBuf)>, Failure> {
    let unreadable = |error| Failure::local(format!("{} cannot be listed", folder.display()), error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    found.sort();
    Ok(found)
}
