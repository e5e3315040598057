//! `from:` of a job file: what its model begins with. A file or folder of this machine is uploaded by its content; a model of Ebb, and what is
//! on the servers, is named. Which tensors fit, the job's Python says.

use crate::failure::Failure;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use storage::initial::digest_of;

const EXPECTED: &str = "expected a safetensors file, a folder as `save_pretrained` writes it, a job's id, a model's digest, or an object such \
                        as {file: ./model.safetensors, strict: false}, {job: ID} or {path: /on/the/servers}";
/// What a folder's tensors are called.
const WHOLE: [&str; 2] = ["model.safetensors", "adapter_model.safetensors"];
/// What tells that there are several files.
const INDEX: &str = "model.safetensors.index.json";

/// What a job begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeginWith {
    source: Source,
    strict: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    File(InitialFile),
    Job(String),
    Model(String),
    Path(String),
}

/// A file to upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialFile {
    /// What the spec calls it.
    pub digest: String,
    /// How long it is.
    pub bytes: u64,
    /// Where it is.
    pub path: PathBuf,
}

impl BeginWith {
    /// What `from` says; paths are taken from where the job file is.
    pub fn read(value: &Value, beside: &Path) -> Result<Self, Failure> {
        let wrong = |value: &Value| Failure::Usage(format!("`from` is {value}; {EXPECTED}"));
        match value {
            Value::String(text) => Ok(Self { source: named(text, beside)?, strict: true }),
            Value::Object(object) => {
                let strict = match object.get("strict") {
                    None => true,
                    Some(Value::Bool(strict)) => *strict,
                    Some(other) => {
                        return Err(Failure::Usage(format!("`from.strict` is {other}; expected true or false")));
                    }
                };
                let mut others = object.iter().filter(|(name, _)| *name != "strict");
                let (Some((name, Value::String(text))), None) = (others.next(), others.next()) else {
                    return Err(wrong(value));
                };
                let source = match name.as_str() {
                    "file" => Source::File(file(&beside.join(text))?),
                    "job" => Source::Job(text.clone()),
                    "digest" => Source::Model(text.clone()),
                    "path" => Source::Path(text.clone()),
                    _ => return Err(wrong(value)),
                };
                Ok(Self { source, strict })
            }
            _ => Err(wrong(value)),
        }
    }

    /// The file that has to be uploaded first.
    #[must_use]
    pub fn file(&self) -> Option<&InitialFile> {
        match &self.source {
            Source::File(file) => Some(file),
            _ => None,
        }
    }

    /// The digest of a model whose job has to be found first.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        match &self.source {
            Source::Model(digest) => Some(digest),
            _ => None,
        }
    }

    /// What of it this machine has, and whether all of it has to fit.
    #[must_use]
    pub fn here(&self) -> Option<(PathBuf, bool)> {
        match &self.source {
            Source::File(file) => Some((file.path.clone(), self.strict)),
            Source::Path(path) => Some((PathBuf::from(path), self.strict)).filter(|(path, _)| path.exists()),
            Source::Job(_) | Source::Model(_) => None,
        }
    }

    /// `model.from` of the spec; `job` is the one that was found by its model.
    #[must_use]
    pub fn document(&self, job: Option<&str>) -> Value {
        let mut document = match &self.source {
            Source::File(file) => json!({ "upload": file.digest }),
            Source::Job(id) => json!({ "job": id }),
            Source::Model(digest) => json!({ "job": job.unwrap_or(digest) }),
            Source::Path(path) => json!({ "path": path }),
        };
        if let (false, Some(object)) = (self.strict, document.as_object_mut()) {
            object.extend(Map::from_iter([("strict".to_owned(), Value::Bool(false))]));
        }
        document
    }
}

/// A file or folder of this machine goes before a job or a model of the same name.
fn named(text: &str, beside: &Path) -> Result<Source, Failure> {
    let path = beside.join(text);
    if path.exists() {
        return Ok(Source::File(file(&path)?));
    }
    let is_digest = text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_digest {
        return Ok(Source::Model(text.to_owned()));
    }
    if text.starts_with("job-") && !text.contains('/') {
        return Ok(Source::Job(text.to_owned()));
    }
    Err(Failure::Usage(format!(
        "`from` is `{text}`, and there is no such file or folder ({}); {EXPECTED}",
        path.display()
    )))
}

fn file(path: &Path) -> Result<InitialFile, Failure> {
    let path = if path.is_dir() { of_folder(path)? } else { path.to_path_buf() };
    let (digest, bytes) = digest_of(&path)
        .map_err(|e| Failure::local(format!("`from`: the tensors `{}` cannot be read", path.display()), e))?;
    Ok(InitialFile { digest: digest.to_string(), bytes, path })
}

fn of_folder(folder: &Path) -> Result<PathBuf, Failure> {
    let shown = folder.display();
    if folder.join(INDEX).exists() {
        return Err(Failure::Usage(format!(
            "`from`: the folder `{shown}` holds a model in several files, which is too large to upload; put it on every server and write `from: {{path: /its/folder}}`"
        )));
    }
    WHOLE.iter().map(|name| folder.join(name)).find(|path| path.exists()).ok_or_else(|| {
        Failure::Usage(format!(
            "`from`: the folder `{shown}` has no model.safetensors; save the model with `save_pretrained`, or name the file"
        ))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(value: Value, beside: &Path) -> Result<BeginWith, String> {
        BeginWith::read(&value, beside).map_err(|failure| failure.to_string())
    }

    #[test]
    fn what_is_here_is_uploaded_and_what_is_elsewhere_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut tensors = 2u64.to_le_bytes().to_vec();
        tensors.extend_from_slice(b"{}");
        std::fs::create_dir(folder.path().join("bert")).unwrap();
        for name in ["a.safetensors", "bert/model.safetensors"] {
            std::fs::write(folder.path().join(name), &tensors).unwrap();
        }
        let digest = events_schema::Digest::of(&tensors).to_string();
        for (said, meant) in [
            (json!("a.safetensors"), json!({ "upload": digest })),
            (json!("./bert"), json!({ "upload": digest })),
            (json!({"file": "a.safetensors", "strict": false}), json!({ "upload": digest, "strict": false })),
            (json!("job-abc"), json!({"job": "job-abc"})),
            (json!({"path": "/models/bert"}), json!({"path": "/models/bert"})),
        ] {
            let found = read(said.clone(), folder.path()).unwrap();
            assert_eq!(found.document(None), meant, "{said}");
            assert_eq!(found.file().is_some(), meant.get("upload").is_some());
        }
        let model = read(json!(digest), folder.path()).unwrap();
        assert_eq!((model.model(), model.document(Some("job-a"))), (Some(digest.as_str()), json!({"job": "job-a"})));
    }

    #[test]
    fn what_is_nowhere_is_said_so() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("weights.bin"), "PK and more").unwrap();
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        for (said, told) in [
            (json!("nowhere.safetensors"), "no such file or folder"),
            (json!("weights.bin"), "cannot be read"),
            (json!("empty"), "has no model.safetensors"),
            (json!(3), "`from` is 3"),
            (json!({"file": "a", "job": "b"}), "expected a safetensors file"),
            (json!({"job": "job-a", "strict": "no"}), "`from.strict` is \"no\""),
        ] {
            let text = read(said.clone(), folder.path()).unwrap_err();
            assert!(text.contains(told), "{said}: {text}");
        }
    }
}
