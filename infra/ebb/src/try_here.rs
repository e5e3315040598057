//! What `ebb submit --dry-run` finds out on the machine that submits, without a slot: whether the environment of a PyTorch job can be built,
//! and what its executors would refuse before the first step. The same code does it that an executor runs.

use crate::args::SubmitArgs;
use crate::begin_with::BeginWith;
use crate::failure::Failure;
use crate::job_file::{JobFile, PackedCode};
use events_schema::Digest;
use events_schema::control::TorchHost;
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::initial::{InitialModel, InitialSource};
use events_schema::job::{JobSpec, ModelSpec};
use events_schema::torch::TorchSpec;
use gateway_client::{Client, ClientError};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use storage::code::unpack;
use storage::dataset::{DIGITS, DIGITS_ROWS, digits_sample};
use workers_executor::ProgramError;
use workers_torch::{Cache, ComputingProcess, Initial, TorchJob, TorchStart};

/// The Python that is tried when nobody names one.
const PYTHON: &str = "python3";

/// What was found.
#[derive(Debug)]
pub enum Here {
    /// The job would begin.
    Fits {
        /// With this Python.
        python: String,
        /// Elements of its trained parameters.
        parameters: u64,
    },
    /// It could not be tried, for this reason.
    Untried(String),
}

impl Here {
    /// For people.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self {
            Self::Fits { python, parameters } => {
                format!("tried here with {python}: {parameters} parameters, and nothing that would be refused")
            }
            Self::Untried(because) => format!("not tried here: {because}"),
        }
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        match self {
            Self::Fits { python, parameters } => json!({"tried": true, "python": python, "parameters": parameters}),
            Self::Untried(because) => json!({"tried": false, "because": because}),
        }
    }
}

/// Tries a PyTorch job; none for a job of another kind, and where the spec itself is wrong, which the service says.
pub async fn torch_job(client: &Client, args: &SubmitArgs, file: &JobFile) -> Result<Option<Here>, Failure> {
    let Some(code) = &file.code else { return Ok(None) };
    let document: Value = serde_json::from_slice(&file.body.bytes).unwrap_or_default();
    let Ok(spec) = JobSpec::parse(&document) else { return Ok(None) };
    let ModelSpec::Torch(model) = spec.model.clone() else { return Ok(None) };
    let held_out = spec.evaluation.as_ref().and_then(|evaluation| evaluation.dataset.clone());
    let mut shapes = [None, None];
    for (shape, name) in shapes.iter_mut().zip([spec.dataset.clone(), held_out]) {
        let Some(name) = name else { continue };
        match shape_of(client, name.as_str()).await? {
            Ok(known) => *shape = Some(known),
            Err(because) => return Ok(Some(Here::Untried(because))),
        }
    }
    let [dataset, held_out] = shapes;
    let python = match python_of(args, &model) {
        Ok(python) => python,
        Err(because) => return Ok(Some(Here::Untried(because))),
    };
    let mut model = with_secrets_of_this_shell(*model);
    // A model of Ebb is not fetched for a trial.
    let here = file.begin_with.as_ref().and_then(BeginWith::here);
    model.initial = here.as_ref().map(|(path, strict)| InitialModel {
        source: InitialSource::Path(path.display().to_string()),
        strict: *strict,
    });
    let initial = here.map(|(path, _)| Initial::OnServer(path));
    let folder = own_folder()?;
    let code = Packed::of(code)?;
    let tried = tokio::task::spawn_blocking(move || {
        // Its user's own code, on a machine of theirs.
        let files = None;
        let host = TorchHost { folder, python: python.clone(), secrets: None, cache_mib: None, warm: None, files };
        let cache = Cache::open(Path::new(&host.folder), None)?;
        let unpack = |into: &Path| unpack(&code.bytes, code.digest, into).map_err(ProgramError::from);
        let code = cache.hold(&format!("code-{}", code.digest), unpack)?;
        let model = TorchSpec { python: Some(python.clone()), ..model };
        let held_out = held_out.map(|(sample, _)| sample);
        let computing = ComputingProcess::default();
        let start = TorchStart { spec, model, host, code: Arc::new(code), initial, dataset, held_out, computing };
        let job = TorchJob::start(start)?;
        Ok::<_, ProgramError>(Here::Fits { python, parameters: job.parameter_count() })
    });
    let tried = tried.await.map_err(|e| Failure::local("the job cannot be tried here", e))?;
    tried
        .map(Some)
        .map_err(|error| Failure::plain(error.reason()).advise("mend it and try again; nothing was submitted"))
}

struct Packed {
    digest: Digest,
    bytes: Vec<u8>,
}

impl Packed {
    fn of(code: &PackedCode) -> Result<Self, Failure> {
        let digest = code.digest.parse().map_err(|_| Failure::plain("the code's digest cannot be read"))?;
        Ok(Self { digest, bytes: code.bytes.clone() })
    }
}

/// What a row of the dataset holds, and how many there are; or why nobody knows.
async fn shape_of(client: &Client, name: &str) -> Result<Result<(SampleShape, u64), String>, Failure> {
    match client.dataset(name).await {
        Ok(found) => match DatasetInfo::deserialize(found.as_it_came()) {
            Ok(info) => Ok(Ok((info.sample, info.rows))),
            Err(_) => Ok(Err(format!("the service says of the dataset `{name}` what this program does not know"))),
        },
        // It ships with the product.
        Err(ClientError::Unreachable { .. }) if name == DIGITS => Ok(Ok((digits_sample(), DIGITS_ROWS))),
        Err(ClientError::Unreachable { .. }) => Ok(Err(format!(
            "only the service knows what a row of the dataset `{name}` holds, and it cannot be reached"
        ))),
        // That there is none, the service says of the whole job.
        Err(ClientError::Refused(_)) => Ok(Err(format!("the service has no dataset `{name}`"))),
        Err(other) => Err(other.into()),
    }
}

/// The Python to try it with; or why there is none.
fn python_of(args: &SubmitArgs, model: &TorchSpec) -> Result<String, String> {
    let named = args.python.clone().or_else(|| model.python.clone().filter(|path| Path::new(path).exists()));
    if let Some(python) = named {
        return Ok(python);
    }
    let has_torch = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)";
    let looked = Command::new(PYTHON)
        .args(["-c", has_torch])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let full = model.requirements.as_ref().is_some_and(events_schema::torch::Requirements::is_full);
    match looked {
        Ok(status) if status.success() || full => Ok(PYTHON.to_owned()),
        _ => Err(format!("`{PYTHON}` has no torch; name a Python that has it with --python")),
    }
}

/// Secrets are on the servers; here a variable of that name may stand in for each.
fn with_secrets_of_this_shell(mut model: TorchSpec) -> TorchSpec {
    for variable in std::mem::take(&mut model.secrets).into_keys() {
        if let Ok(value) = std::env::var(&variable) {
            model.environment.insert(variable, value);
        }
    }
    model
}

/// Where environments are kept for the next time.
fn own_folder() -> Result<String, Failure> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let folder =
        folder.ok_or_else(|| Failure::plain("neither XDG_CACHE_HOME nor HOME says where to build environments"))?;
    Ok(folder.join("ebb").join("torch").display().to_string())
}
