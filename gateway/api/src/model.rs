//! What a job trains, as it is submitted and shown: a model of Ebb's and its sizes, or the user's own. The rest of a job is in `spec.rs`.

use crate::forms::{Hash, Name};
use events_schema::gang::{self, CommandSpec};
use events_schema::initial::{self, InitialSource};
use events_schema::job as schema;
use events_schema::torch::{self, TorchDevice, TorchSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A model of Ebb's and its sizes, the user's own, or what a program of the user's does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Model {
    /// Fully connected layers with GELU between them.
    Mlp {
        /// Widths of the hidden layers.
        #[serde(default = "hidden")]
        #[schemars(length(max = 32), inner(range(min = 1, max = 65_536)))]
        hidden: Vec<u32>,
        /// Probability of dropping a hidden unit.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 0.95))]
        dropout: f64,
    },
    /// Residual convolutional network with GroupNorm.
    Cnn {
        /// Channels of each stage; every stage after the first halves height and width.
        #[serde(default = "channels")]
        #[schemars(length(min = 1, max = 6), inner(range(min = 1, max = 4_096)))]
        channels: Vec<u32>,
        /// Residual blocks per stage.
        #[serde(default = "blocks")]
        #[schemars(range(min = 1, max = 16))]
        blocks: u32,
        /// Groups of GroupNorm; divides every entry of `channels`.
        #[serde(default = "groups")]
        #[schemars(range(min = 1, max = 256))]
        groups: u32,
        /// Probability of dropping a feature before the classifier.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 0.95))]
        dropout: f64,
    },
    /// Decoder-only transformer, pre-norm, learned positions.
    Gpt {
        /// Transformer blocks.
        #[serde(default = "two")]
        #[schemars(range(min = 1, max = 96))]
        layers: u32,
        /// Attention heads; divides `width`.
        #[serde(default = "two")]
        #[schemars(range(min = 1, max = 128))]
        heads: u32,
        /// Width of the residual stream. The blocks have 12 × layers × width² parameters, of which a model may have 500,000,000: with one layer it may be
        /// 6,454 wide, with 96 layers 658.
        #[serde(default = "width")]
        #[schemars(range(min = 1, max = 6_454))]
        width: u32,
        /// Tokens seen at once; less than the dataset's row length.
        #[serde(default = "width")]
        #[schemars(range(min = 1, max = 8_192))]
        context: u32,
        /// Probability of dropping an activation.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 0.95))]
        dropout: f64,
    },
    /// Takes time and learns nothing: it stands for a training where only slots and times matter, as in `ebb replay`. Rows of any dataset do.
    Synthetic {
        /// How long the gradient of one logical worker takes at least, in milliseconds: a step takes as many times that as its fullest
        /// executor hosts workers.
        #[serde(default = "gradient_ms")]
        #[schemars(range(max = 60_000))]
        gradient_ms: u32,
        /// Parameters, by which copies and checkpoints are as large as a training's.
        #[serde(default = "synthetic_parameters")]
        #[schemars(range(min = 1, max = 500_000_000))]
        parameters: u32,
    },
    /// The user's own, in PyTorch.
    Torch {
        /// What to train: `module:Class`, or `module` where it calls `ebb.fit`.
        #[schemars(length(min = 1, max = 255))]
        entry: String,
        /// The packed folder that holds the module, by its digest; `PUT /v1/code/{digest}` uploads it.
        #[schemars(with = "Hash")]
        code: String,
        /// The Python that runs it, an absolute path on the servers; null: the one that each server has for such jobs.
        #[serde(default)]
        #[schemars(length(min = 1, max = 255))]
        python: Option<String>,
        /// Threads that one logical worker computes with.
        #[serde(default = "one_thread")]
        #[schemars(range(min = 1, max = 256))]
        threads: u16,
        /// What it computes on.
        #[serde(default)]
        device: Device,
        /// Variables that the code finds in its environment.
        #[serde(default)]
        environment: BTreeMap<String, String>,
        /// What the code reads as `self.parameters`.
        #[serde(default)]
        parameters: Map<String, Value>,
        /// What it begins with instead of what the code's `model()` makes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<InitialModel>,
        /// What its environment holds beside its Python; null: nothing is built for it.
        #[serde(default)]
        requirements: Option<Requirements>,
        /// Variables whose values each server reads from files of its operator: the variable's name, and the file's.
        #[serde(default)]
        secrets: BTreeMap<String, String>,
        /// Most memory of the processes that run its code on one slot, in MiB; null: what the machine has.
        #[serde(default)]
        #[schemars(range(min = 64, max = 67_108_864))]
        memory_limit_mib: Option<u32>,
    },
    /// A whole program of the user's, run as a gang. It has no `dataset` then, `batch_size` and `steps` are 1, and what else is about training has no
    /// meaning.
    Command {
        /// The program and its arguments; no shell reads them.
        #[schemars(length(min = 1, max = 256))]
        command: Vec<String>,
        /// The packed folder that it runs in, by its digest; `PUT /v1/code/{digest}` uploads it. Null: an empty folder.
        #[serde(default)]
        #[schemars(with = "Option<Hash>")]
        code: Option<String>,
        /// The Python that `python` and `python3` mean, an absolute path on the servers; null: the one that each server has for such jobs.
        #[serde(default)]
        #[schemars(length(min = 1, max = 255))]
        python: Option<String>,
        /// Variables that the program finds in its environment.
        #[serde(default)]
        environment: BTreeMap<String, String>,
        /// Whether it may be restarted at another size.
        #[serde(default)]
        elastic: Elastic,
        /// Time from SIGTERM to the kill.
        #[serde(default = "grace_ms")]
        #[schemars(range(max = 3_600_000))]
        grace_ms: u64,
        /// How often its checkpoint folder is looked at while it runs.
        #[serde(default = "save_every_ms")]
        #[schemars(range(min = 1_000, max = 86_400_000))]
        save_every_ms: u64,
        /// What the slots of its processes have to be: GPUs for `cuda`; otherwise any, and it sees no GPU.
        #[serde(default)]
        device: Device,
        /// What the environment of its Python holds beside what is there; null: nothing is built for it.
        #[serde(default)]
        requirements: Option<Requirements>,
        /// Variables whose values each server reads from files of its operator: the variable's name, and the file's.
        #[serde(default)]
        secrets: BTreeMap<String, String>,
        /// Most memory of each of its processes and what that starts, in MiB; null: what the machine has.
        #[serde(default)]
        #[schemars(range(min = 64, max = 67_108_864))]
        memory_limit_mib: Option<u32>,
    },
    /// Whatever later builds add.
    #[serde(untagged)]
    #[schemars(skip)]
    Other(Map<String, Value>),
}

fn hidden() -> Vec<u32> {
    vec![128]
}
fn channels() -> Vec<u32> {
    vec![16, 32]
}
fn blocks() -> u32 {
    1
}
fn groups() -> u32 {
    4
}
fn two() -> u32 {
    2
}
fn width() -> u32 {
    64
}
fn gradient_ms() -> u32 {
    100
}
fn synthetic_parameters() -> u32 {
    1_000
}

impl Default for Model {
    fn default() -> Self {
        Self::Mlp { hidden: hidden(), dropout: 0.0 }
    }
}

/// Tensors to begin a training with, by the names of PyTorch's `state_dict`: one of `job`, `upload` and `path`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InitialModel {
    /// The final model of this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub job: Option<String>,
    /// A safetensors file, by its digest; `PUT /v1/models/{digest}` uploads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Hash>")]
    pub upload: Option<String>,
    /// The absolute path of a safetensors file, or of a folder of them, on every server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4_096))]
    pub path: Option<String>,
    /// Whether all of them and all of the model has to fit; otherwise what does not is left as `model()` makes it.
    #[serde(default = "yes")]
    pub strict: bool,
}

fn yes() -> bool {
    true
}

impl From<initial::InitialModel> for InitialModel {
    fn from(initial::InitialModel { source, strict }: initial::InitialModel) -> Self {
        let none = Self { job: None, upload: None, path: None, strict };
        match source {
            InitialSource::Job(job) => Self { job: Some(job.to_string()), ..none },
            InitialSource::Upload(digest) => Self { upload: Some(digest.to_string()), ..none },
            InitialSource::Path(path) => Self { path: Some(path), ..none },
        }
    }
}

/// The packages of an environment that is built once on each server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Requirements {
    /// Lines of a requirements.txt: a package each, at least one, without options of pip.
    #[serde(default)]
    pub lines: Vec<String>,
    /// Whether it has all of its own, PyTorch included. Otherwise it lies over the environment of its Python, whose PyTorch it uses.
    #[serde(default)]
    pub full: bool,
}

impl From<torch::Requirements> for Requirements {
    fn from(all: torch::Requirements) -> Self {
        Self { lines: all.lines().to_vec(), full: all.is_full() }
    }
}

/// What a user's own code computes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// The host's processor.
    #[default]
    Cpu,
    /// The GPU that is the slot's.
    Cuda,
}

impl From<TorchDevice> for Device {
    fn from(device: TorchDevice) -> Self {
        match device {
            TorchDevice::Cpu => Self::Cpu,
            TorchDevice::Cuda => Self::Cuda,
        }
    }
}

/// How many members a gang may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Elastic {
    /// As many as `workers` says, or it waits.
    #[default]
    Fixed,
    /// Any number within `workers`; each change of it is a restart.
    Restart,
}

fn grace_ms() -> u64 {
    30_000
}
fn save_every_ms() -> u64 {
    60_000
}
fn one_thread() -> u16 {
    1
}

impl From<&schema::ModelSpec> for Model {
    fn from(model: &schema::ModelSpec) -> Self {
        use schema::ModelSpec as Spec;
        match model.clone() {
            Spec::Mlp { hidden, dropout } => Self::Mlp { hidden, dropout },
            Spec::Cnn { channels, blocks, groups, dropout } => Self::Cnn { channels, blocks, groups, dropout },
            Spec::Gpt { layers, heads, width, context, dropout } => {
                Self::Gpt { layers, heads, width, context, dropout }
            }
            Spec::Synthetic { gradient_ms, parameters } => Self::Synthetic { gradient_ms, parameters },
            Spec::Torch(torch) => {
                let TorchSpec {
                    entry,
                    code,
                    python,
                    threads,
                    device,
                    environment,
                    parameters,
                    requirements,
                    secrets,
                    memory_limit_mib,
                    initial,
                } = *torch;
                // In hand it is an object: nothing else is parsed.
                let parameters = serde_json::from_str(parameters.text()).unwrap_or_default();
                let requirements = requirements.map(Requirements::from);
                Self::Torch {
                    entry,
                    code: code.to_string(),
                    python,
                    threads,
                    device: device.into(),
                    environment,
                    parameters,
                    requirements,
                    secrets,
                    memory_limit_mib,
                    from: initial.map(InitialModel::from),
                }
            }
            Spec::Command(program) => {
                let CommandSpec {
                    command,
                    code,
                    python,
                    environment,
                    elastic,
                    grace_ms,
                    save_every_ms,
                    device,
                    requirements,
                    secrets,
                    memory_limit_mib,
                } = *program;
                let elastic = match elastic {
                    gang::Elastic::Fixed => Elastic::Fixed,
                    gang::Elastic::Restart => Elastic::Restart,
                };
                let code = code.map(|code| code.to_string());
                let device = device.map(Device::from).unwrap_or_default();
                let requirements = requirements.map(Requirements::from);
                Self::Command {
                    command,
                    code,
                    python,
                    environment,
                    elastic,
                    grace_ms,
                    save_every_ms,
                    device,
                    requirements,
                    secrets,
                    memory_limit_mib,
                }
            }
        }
    }
}
