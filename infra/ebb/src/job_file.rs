//! A job file as it is written, and the job spec that it stands for: the same, but for models in PyTorch and whole programs. Their file names a
//! folder of code, which only the machine that submits has:
//!
//! ```yaml
//! engine: torch
//! code: ./
//! entry: train:Job
//! ```
//!
//! becomes `model: {kind: torch, code: DIGEST, entry: train:Job}`, with the folder packed, and `engine: command` with `command: python train.py`
//! becomes `model: {kind: command, code: DIGEST, command: [python, train.py]}`. Whether the rest is right, the service says.

use crate::begin_with::BeginWith;
use crate::failure::Failure;
use gateway_client::Body;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use storage::code::pack;

/// Far above any spec; the service's own limit refuses earlier.
const SPEC_LEN_MAX: u64 = 4 << 20;
/// What a job file says of its PyTorch model, beside the engine and its code.
const TORCH_FIELDS: &[&str] =
    &["entry", "python", "threads", "device", "environment", "parameters", "secrets", "memory_limit_mib"];
/// What a job file says of its program, beside the engine, its command and its code.
const COMMAND_FIELDS: &[&str] =
    &["python", "environment", "elastic", "grace_ms", "save_every_ms", "device", "secrets", "memory_limit_mib"];
/// A file of requirements is read into the spec, which may be so long.
const REQUIREMENTS_LEN_MAX: u64 = 1 << 20;

/// What to submit.
#[derive(Debug)]
pub struct JobFile {
    /// The job spec.
    pub body: Body,
    /// The code that it names, to be uploaded first.
    pub code: Option<PackedCode>,
    /// What its model begins with; the body says it once [`JobFile::begins_with`] was called.
    pub begin_with: Option<BeginWith>,
}

impl JobFile {
    /// Says in the body what the model begins with: `job` is the one that was found by its model's digest.
    pub fn begins_with(&mut self, job: Option<&str>) {
        let Some(begin_with) = &self.begin_with else { return };
        if let Ok(mut document) = serde_json::from_slice::<Value>(&self.body.bytes) {
            document["model"]["from"] = begin_with.document(job);
            self.body = Body::json(&document);
        }
    }
}

/// A packed folder.
#[derive(Debug)]
pub struct PackedCode {
    /// What the spec calls it.
    pub digest: String,
    /// An archive.
    pub bytes: Vec<u8>,
    /// Where it was.
    pub folder: PathBuf,
}

/// Reads a job file, `-` for standard input; folders are taken from where the file is.
pub fn read(file: &Path) -> Result<JobFile, Failure> {
    let cannot = |e: std::io::Error| Failure::local(format!("`{}` cannot be read", file.display()), e);
    let mut bytes = Vec::new();
    let from_input = file.as_os_str() == "-";
    if from_input {
        std::io::stdin().take(SPEC_LEN_MAX).read_to_end(&mut bytes).map_err(cannot)?;
    } else {
        File::open(file).map_err(cannot)?.take(SPEC_LEN_MAX).read_to_end(&mut bytes).map_err(cannot)?;
    }
    // JSON is YAML, so a JSON text on standard input is read well as YAML.
    let is_json = file.extension().is_some_and(|e| e == "json");
    let beside = if from_input { Path::new("") } else { file.parent().unwrap_or(Path::new("")) };
    // What cannot be read here goes as it is: the service says where it is wrong, by line and column.
    match serde_yaml_ng::from_slice::<Value>(&bytes) {
        Ok(Value::Object(document)) if document.contains_key("engine") => of_engine(document, beside),
        _ => {
            let content_type = if is_json { "application/json" } else { "application/yaml" };
            Ok(JobFile { body: Body { bytes, content_type }, code: None, begin_with: None })
        }
    }
}

fn of_engine(mut document: Map<String, Value>, beside: &Path) -> Result<JobFile, Failure> {
    let engine = document.remove("engine").unwrap_or_default();
    let (kind, fields) = match engine.as_str() {
        Some("torch") => ("torch", TORCH_FIELDS),
        Some("command") => ("command", COMMAND_FIELDS),
        _ => {
            return Err(Failure::Usage(format!(
                "`engine` is {engine}; expected torch or command, or no engine and a `model` of Ebb's"
            )));
        }
    };
    if document.contains_key("model") {
        let instead = if kind == "torch" { "the model is what `entry` makes" } else { "the program makes it" };
        return Err(Failure::Usage(format!("`model` is given beside `engine: {kind}`; {instead}")));
    }
    let code = match document.remove("code") {
        Some(Value::String(folder)) => PathBuf::from(folder),
        None => PathBuf::from("."),
        Some(other) => {
            return Err(Failure::Usage(format!("`code` is {other}; expected the folder of the code, for example ./")));
        }
    };
    let folder = beside.join(code);
    let bytes = pack(&folder).map_err(|e| Failure::local("the job's code cannot be packed", e))?;
    let digest = events_schema::Digest::of(&bytes).to_string();
    let mut model = Map::from_iter([("kind".to_owned(), kind.into()), ("code".to_owned(), digest.clone().into())]);
    if kind == "command" {
        model.insert("command".to_owned(), words(document.remove("command"))?);
    }
    for &field in fields {
        if let Some(value) = document.remove(field) {
            model.insert(field.to_owned(), value);
        }
    }
    if let Some(requirements) = document.remove("requirements") {
        model.insert("requirements".to_owned(), of_requirements(requirements, beside)?);
    }
    // To a program of its own it means nothing, which the service says.
    let begin_with = if kind == "torch" { document.remove("from") } else { None };
    let begin_with =
        begin_with.filter(|from| !from.is_null()).map(|from| BeginWith::read(&from, beside)).transpose()?;
    document.insert("model".to_owned(), Value::Object(model));
    let code = Some(PackedCode { digest, bytes, folder });
    Ok(JobFile { body: Body::json(&document), code, begin_with })
}

/// `requirements: FILE` or `{file: FILE, full: true}` as the lines of the file. Lines that stand there already, and what is neither, the
/// service judges.
fn of_requirements(value: Value, beside: &Path) -> Result<Value, Failure> {
    let mut object = match value {
        Value::String(file) => Map::from_iter([("file".to_owned(), Value::String(file))]),
        Value::Object(object) => object,
        other => {
            return Err(Failure::Usage(format!(
                "`requirements` is {other}; expected a file, for example requirements.txt, or {{file: requirements.txt, full: true}}"
            )));
        }
    };
    if let Some(Value::String(name)) = object.remove("file") {
        let path = beside.join(name);
        let mut text = String::new();
        let read = File::open(&path).and_then(|file| file.take(REQUIREMENTS_LEN_MAX + 1).read_to_string(&mut text));
        read.map_err(|e| Failure::local(format!("the requirements `{}` cannot be read", path.display()), e))?;
        if text.len() as u64 > REQUIREMENTS_LEN_MAX {
            let path = path.display();
            return Err(Failure::Usage(format!(
                "the requirements `{path}` have more than {REQUIREMENTS_LEN_MAX} bytes"
            )));
        }
        object.insert("lines".to_owned(), text.lines().collect());
    }
    Ok(Value::Object(object))
}

/// A command as it is typed, as its words; a list is one already.
fn words(command: Option<Value>) -> Result<Value, Failure> {
    const EXPECTED: &str = "expected a program and its arguments, for example python train.py --epochs 3";
    match command {
        Some(Value::String(text)) => match shlex::split(&text) {
            Some(words) if !words.is_empty() => Ok(words.into()),
            Some(_) => Err(Failure::Usage(format!("`command` is empty; {EXPECTED}"))),
            None => Err(Failure::Usage(format!("`command` is `{text}`, in which a quote is not closed; {EXPECTED}"))),
        },
        Some(list) => Ok(list),
        None => Err(Failure::Usage(format!("`command` is missing; {EXPECTED}"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read_of(text: &str) -> Result<JobFile, Failure> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train.py"), "x = 1").unwrap();
        let file = folder.path().join("job.yaml");
        std::fs::write(&file, text).unwrap();
        read(&file)
    }

    #[test]
    fn a_pytorch_job_names_its_packed_code() {
        let job = read_of(
            "name: n\nengine: torch\ncode: ./\nentry: train:Job\nthreads: 2\nparameters: {depth: 3}\ndataset: digits",
        )
        .unwrap();
        let code = job.code.unwrap();
        let body: Value = serde_json::from_slice(&job.body.bytes).unwrap();
        assert_eq!(
            body,
            serde_json::json!({"name": "n", "dataset": "digits", "model": {"kind": "torch", "code": code.digest, "entry": "train:Job", "threads": 2, "parameters": {"depth": 3}}})
        );
        assert_eq!(events_schema::Digest::of(&code.bytes).to_string(), code.digest);
    }

    #[test]
    fn requirements_are_the_lines_of_their_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train.py"), "x = 1").unwrap();
        std::fs::write(folder.path().join("requirements.txt"), "einops==0.8.1\n# more\n").unwrap();
        let of = |text: &str| {
            let file = folder.path().join("job.yaml");
            std::fs::write(&file, format!("engine: torch\nentry: train\nrequirements: {text}\n")).unwrap();
            read(&file)
                .map(|job| serde_json::from_slice::<Value>(&job.body.bytes).unwrap()["model"]["requirements"].take())
        };
        let lines = serde_json::json!(["einops==0.8.1", "# more"]);
        assert_eq!(of("requirements.txt").unwrap(), serde_json::json!({ "lines": lines }));
        assert_eq!(
            of("{file: requirements.txt, full: true}").unwrap(),
            serde_json::json!({ "lines": lines, "full": true })
        );
        assert_eq!(of("{lines: [a]}").unwrap(), serde_json::json!({"lines": ["a"]}));
        assert!(of("nowhere.txt").unwrap_err().to_string().contains("nowhere.txt` cannot be read"));
        assert!(of("[a]").unwrap_err().to_string().contains("expected a file"));
    }

    #[test]
    fn a_program_is_its_words_and_has_no_data() {
        let job = read_of(
            "name: n\nengine: command\ncommand: python train.py --name 'two words'\nworkers: {max: 2}\ngrace_ms: 5000",
        )
        .unwrap();
        let code = job.code.unwrap().digest;
        let body: Value = serde_json::from_slice(&job.body.bytes).unwrap();
        let model = serde_json::json!({"kind": "command", "code": code, "command": ["python", "train.py", "--name", "two words"], "grace_ms": 5000});
        let spec = serde_json::json!({"name": "n", "workers": {"max": 2}, "model": model});
        assert_eq!(body, spec);
        events_schema::job::JobSpec::parse(&body).unwrap();
    }

    #[test]
    fn other_files_go_as_they_are() {
        for text in ["name: n\nmodel: {kind: mlp}\n", "- no object", "{ half"] {
            let job = read_of(text).unwrap();
            assert_eq!((job.body.bytes.as_slice(), job.code.is_none()), (text.as_bytes(), true));
        }
    }

    #[test]
    fn a_wrong_engine_or_folder_is_named() {
        for (text, said) in [
            ("engine: jax", "expected torch or command"),
            ("engine: command", "`command` is missing"),
            ("engine: command\ncommand: \"\"", "`command` is empty"),
            ("engine: command\ncommand: sh -c 'exit", "a quote is not closed"),
            ("engine: command\nmodel: {kind: mlp}", "`model` is given beside `engine: command`"),
            ("engine: torch\nmodel: {kind: mlp}", "`model` is given beside"),
            ("engine: torch\ncode: 3", "`code` is 3"),
            ("engine: torch\ncode: ./nowhere", "cannot be packed"),
        ] {
            let failure = read_of(text).unwrap_err().to_string();
            assert!(failure.contains(said), "{text}: {failure}");
        }
    }
}
