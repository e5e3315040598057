//! What a model in PyTorch begins with instead of what its code makes. How tensors find their names, the Python package knows.

use crate::fields::{Fields, Problems};
use crate::{Digest, JobId};
use minicbor::{Decode, Encode};
use serde::Serialize;
use serde_json::Value;

/// Most characters of a path: what a file system takes.
const PATH_MAX: usize = 4_096;

/// Tensors to begin with.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct InitialModel {
    /// Where they are.
    #[n(0)]
    #[serde(flatten)]
    pub source: InitialSource,
    /// Whether all of them and all of the model has to fit; otherwise what does not is left as the code makes it.
    #[n(1)]
    pub strict: bool,
}

/// Where tensors to begin with are.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InitialSource {
    /// The final model of a job.
    #[n(0)]
    Job(#[n(0)] JobId),
    /// A safetensors file that was uploaded, by its content.
    #[n(1)]
    Upload(#[n(0)] Digest),
    /// A file or a folder that every server has.
    #[n(2)]
    Path(#[n(0)] String),
}

/// Reads `model.from`.
pub(crate) fn parse_initial(path: &str, value: &Value) -> Result<InitialModel, Problems> {
    let mut f = Fields::new(path, value);
    let job = f.text("job", |text| JobId::parse(text).map_err(|e| e.expected.to_owned())).map(InitialSource::Job);
    let digest =
        "the digest of an uploaded safetensors file, 64 hexadecimal characters; `ebb submit` uploads a file itself";
    let upload = f.text("upload", |text| text.parse().map_err(|_| digest.to_owned())).map(InitialSource::Upload);
    let on_servers = f
        .text("path", |text| {
            let fits = text.starts_with('/') && text.len() <= PATH_MAX && !text.chars().any(char::is_control);
            if fits {
                Ok(text.to_owned())
            } else {
                Err("the absolute path of a file or folder on the servers".to_owned())
            }
        })
        .map(InitialSource::Path);
    let strict = f.boolean("strict").unwrap_or(true);
    let given = ["job", "upload", "path"].into_iter().filter(|name| value.get(name).is_some_and(|v| !v.is_null()));
    if value.is_object() && given.count() != 1 {
        f.wrong("job", "one of `job`, `upload` and `path`");
    }
    let source = job.or(upload).or(on_servers);
    f.finish(source.map(|source| InitialModel { source, strict }))
}
