//! What a job trains: a model of Ebb's and its sizes, or the user's own, or what a program of the user's does. Which samples a model can read, `controller-core` and the engine check.

use crate::fields::{Fields, Problem, Problems, whole};
use crate::gang::CommandSpec;
use crate::job::PARAMETERS_MAX;
use crate::torch::TorchSpec;
use minicbor::{Decode, Encode};
use serde::Serialize;
use serde_json::Value;
use std::ops::RangeInclusive;

/// A native model and its sizes, or the user's own.
#[derive(Debug, Clone, PartialEq, Encode, Decode, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ModelSpec {
    /// Fully connected layers with GELU between them.
    #[n(0)]
    Mlp {
        /// Widths of the hidden layers.
        #[n(0)]
        hidden: Vec<u32>,
        /// Probability of dropping a hidden unit.
        #[n(1)]
        dropout: f64,
    },
    /// Residual convolutional network with GroupNorm.
    #[n(1)]
    Cnn {
        /// Channels of each stage; every stage after the first halves height and width.
        #[n(0)]
        channels: Vec<u32>,
        /// Residual blocks per stage.
        #[n(1)]
        blocks: u32,
        /// Groups of GroupNorm; divides every entry of `channels`.
        #[n(2)]
        groups: u32,
        /// Probability of dropping a feature before the classifier.
        #[n(3)]
        dropout: f64,
    },
    /// Decoder-only transformer, pre-norm, learned positions, tied to nothing.
    #[n(2)]
    Gpt {
        /// Transformer blocks.
        #[n(0)]
        layers: u32,
        /// Attention heads; divides `width`.
        #[n(1)]
        heads: u32,
        /// Width of the residual stream.
        #[n(2)]
        width: u32,
        /// Tokens seen at once; at most the dataset's sequence length.
        #[n(3)]
        context: u32,
        /// Probability of dropping an activation.
        #[n(4)]
        dropout: f64,
    },
    /// The user's own, in PyTorch.
    #[n(3)]
    Torch(#[n(0)] Box<TorchSpec>),
    /// A whole program of the user's, run as a gang.
    #[n(4)]
    Command(#[n(0)] Box<CommandSpec>),
    /// Takes time and learns nothing: it stands for a training where only slots and times matter.
    #[n(5)]
    Synthetic {
        /// How long the gradient of one logical worker takes at least.
        #[n(0)]
        gradient_ms: u32,
        /// Parameters, by which copies and checkpoints are as large as a training's.
        #[n(1)]
        parameters: u32,
    },
}

impl ModelSpec {
    /// The user's program, if it is one.
    pub(crate) fn gang(&self) -> Option<&CommandSpec> {
        match self {
            Self::Command(command) => Some(command),
            Self::Mlp { .. } | Self::Cnn { .. } | Self::Gpt { .. } | Self::Torch(_) | Self::Synthetic { .. } => None,
        }
    }
}

/// Widest transformer: one block of it has 12 width² parameters, which [`PARAMETERS_MAX`] bounds.
pub const GPT_WIDTH_MAX: u64 = 6_454;
const _: () = assert!(GPT_WIDTH_MAX == (PARAMETERS_MAX / 12).isqrt());

/// Longest gradient of a synthetic model: a tenth of what the first unit of computing may take before it counts as hung.
pub const SYNTHETIC_GRADIENT_MS_MAX: u64 = 60_000;
/// What a synthetic model is if nobody says: ten steps a second, and a replica that fits one packet.
const SYNTHETIC_GRADIENT_MS: u64 = 100;
const SYNTHETIC_PARAMETERS: u64 = 1_000;

/// What job files say at their top of models in PyTorch and of programs. `ebb submit` makes `model` of it; nothing else does.
const FIELDS_OF_MODELS: [&str; 16] = [
    "engine",
    "code",
    "entry",
    "command",
    "python",
    "threads",
    "device",
    "environment",
    "parameters",
    "requirements",
    "secrets",
    "memory_limit_mib",
    "elastic",
    "grace_ms",
    "save_every_ms",
    "from",
];
const PLACE_OF_MODELS: &str = "at the top it is one of job files with `engine`, which `ebb submit` reads; over HTTP it stands in `model`, for example model: {kind: torch, code: DIGEST, entry: \"train:Job\"}";

/// Refuses them at the top of a job, where nobody but `ebb submit` takes them. Beside a model they were in a job file, and did not belong to its engine.
pub(crate) fn refuse_fields_of_models(job: &mut Fields<'_>) {
    if !job.raw("model").is_some_and(|model| model["kind"] == "torch" || model["kind"] == "command") {
        job.elsewhere(&FIELDS_OF_MODELS, PLACE_OF_MODELS);
    }
}

/// Reads `model` of a job.
pub(crate) fn parse_model(path: &str, value: &Value) -> Result<ModelSpec, Problems> {
    #[derive(Clone, Copy)]
    enum Kind {
        Mlp,
        Cnn,
        Gpt,
        Torch,
        Command,
        Synthetic,
    }
    const KINDS: [(&str, Kind); 6] = [
        ("mlp", Kind::Mlp),
        ("cnn", Kind::Cnn),
        ("gpt", Kind::Gpt),
        ("torch", Kind::Torch),
        ("command", Kind::Command),
        ("synthetic", Kind::Synthetic),
    ];
    let mut f = Fields::new(path, value);
    if f.raw("kind").is_none() && value.is_object() {
        f.wrong("kind", "one of mlp, cnn, gpt, torch, command, synthetic");
    }
    let Some(kind) = f.word("kind", &KINDS) else {
        // Without a kind the other fields have no meaning; do not blame them.
        let problems = f.finish::<ModelSpec>(None).err().map_or_else(Vec::new, |p| p.0);
        let own: Vec<Problem> = problems.into_iter().filter(|p| !p.expected.starts_with("no such field")).collect();
        return Err(Problems(own));
    };
    if let Kind::Torch = kind {
        let torch = TorchSpec::read(&mut f);
        return f.finish(torch.map(|torch| ModelSpec::Torch(Box::new(torch))));
    }
    if let Kind::Command = kind {
        let command = CommandSpec::read(&mut f);
        return f.finish(command.map(|command| ModelSpec::Command(Box::new(command))));
    }
    if let Kind::Synthetic = kind {
        let gradient_ms = f.integer("gradient_ms", 0..=SYNTHETIC_GRADIENT_MS_MAX).unwrap_or(SYNTHETIC_GRADIENT_MS);
        let parameters = f.integer("parameters", 1..=PARAMETERS_MAX).unwrap_or(SYNTHETIC_PARAMETERS);
        return f.finish(Some(ModelSpec::Synthetic { gradient_ms: gradient_ms as u32, parameters: parameters as u32 }));
    }
    let dropout = f.number("dropout", 0.0..=0.95).unwrap_or(0.0);
    let model = match kind {
        Kind::Mlp => sizes(&mut f, "hidden", 0..=32, 65_536, &[128]).map(|hidden| ModelSpec::Mlp { hidden, dropout }),
        Kind::Cnn => {
            let channels = sizes(&mut f, "channels", 1..=6, 4_096, &[16, 32]);
            let blocks = f.integer("blocks", 1..=16).unwrap_or(1) as u32;
            let groups = f.integer("groups", 1..=256).unwrap_or(4) as u32;
            if channels.as_ref().is_some_and(|c| c.iter().any(|c| c % groups != 0)) {
                f.wrong("groups", "a number that divides every entry of `channels`");
            }
            channels.map(|channels| ModelSpec::Cnn { channels, blocks, groups, dropout })
        }
        Kind::Gpt => {
            let layers = f.integer("layers", 1..=96).unwrap_or(2) as u32;
            let heads = f.integer("heads", 1..=128).unwrap_or(2) as u32;
            let width = f.integer("width", 1..=GPT_WIDTH_MAX).unwrap_or(64) as u32;
            let context = f.integer("context", 1..=8_192).unwrap_or(64) as u32;
            if !width.is_multiple_of(heads) {
                f.wrong("heads", format!("a number that divides `width` ({width})"));
            }
            Some(ModelSpec::Gpt { layers, heads, width, context, dropout })
        }
        Kind::Torch | Kind::Command | Kind::Synthetic => None,
    };
    if model.as_ref().is_some_and(|model| inner_parameters(model) > PARAMETERS_MAX) {
        let field = match kind {
            Kind::Mlp => "hidden",
            Kind::Cnn => "channels",
            Kind::Gpt => "width",
            Kind::Torch => "entry",
            Kind::Command => "command",
            Kind::Synthetic => "parameters",
        };
        f.wrong(field, format!("sizes of at most {PARAMETERS_MAX} parameters in all"));
    }
    f.finish(model)
}

/// Parameters of the layers whose size does not depend on the dataset; the engine counts all of them when it builds the model.
fn inner_parameters(model: &ModelSpec) -> u64 {
    let product = |a: u32, b: u32| u64::from(a) * u64::from(b);
    match model {
        ModelSpec::Mlp { hidden, .. } => hidden.windows(2).map(|pair| product(pair[0], pair[1])).sum(),
        ModelSpec::Cnn { channels, blocks, .. } => {
            channels.iter().map(|&c| (2 * u64::from(*blocks) - 1) * 9 * product(c, c)).sum()
        }
        ModelSpec::Gpt { layers, width, .. } => 12 * u64::from(*layers) * product(*width, *width),
        // Only its code knows.
        ModelSpec::Torch(_) | ModelSpec::Command(_) => 0,
        ModelSpec::Synthetic { parameters, .. } => u64::from(*parameters),
    }
}

fn sizes(
    f: &mut Fields<'_>,
    name: &'static str,
    counts: RangeInclusive<usize>,
    size_max: u64,
    default: &[u32],
) -> Option<Vec<u32>> {
    let Some(value) = f.raw(name) else { return Some(default.to_vec()) };
    let list = value.as_array().filter(|a| counts.contains(&a.len()));
    let parsed: Option<Vec<u32>> = list
        .and_then(|a| a.iter().map(|v| whole(v).filter(|n| (1..=size_max).contains(n)).map(|n| n as u32)).collect());
    if parsed.is_none() {
        let (least, most) = counts.into_inner();
        f.wrong(name, format!("a list of {least} to {most} whole numbers from 1 to {size_max}"));
    }
    parsed
}
