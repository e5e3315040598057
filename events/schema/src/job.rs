//! The job spec: what a user submits. A [`JobSpec`] in hand is a valid one, because [`JobSpec::parse`] is the only way to it.
//!
//! Checks what can be checked without the dataset; whether the dataset exists and fits the model, `controller-core` and the
//! executor check.
//!
//! Next on a job's path: `gateway/src/submit.rs`.

pub use crate::checkpoint::{CheckpointInterval, CheckpointSpec};
use crate::checkpoint::{DEFAULT_CHECKPOINT, parse_checkpoint};
pub use crate::determinism::Determinism;
use crate::duration::{StorePatience, UnitTimeout};
use crate::evaluation::{EvaluationSpec, parse_evaluation};
use crate::fields::{Fields, Problems, whole, whole_signed};
use crate::gang::{CommandSpec, Elastic, MAX_RESTARTS};
pub use crate::model::ModelSpec;
use crate::model::{parse_model, refuse_fields_of_models};
use crate::profile::{Profile, parse_profile};
use crate::retrains::{Retrains, parse_retrains};
pub use crate::slot_type::Types;
pub use crate::stride::BatchRange;
use crate::stride::read_batch_range;
use crate::torch::TorchDevice;
use crate::{DatasetName, Digest, TenantId};
use minicbor::{Decode, Encode};
use serde::Serialize;
use serde_json::Value;
use std::ops::Deref;

/// Most logical workers of a job: partial sums and metrics per rank stay small beside one gradient.
pub const WORKERS_MAX: u64 = 256;
/// Most samples a logical worker reads per step.
pub const BATCH_SIZE_MAX: u64 = 65_536;
/// Most parameters of a native model: replica and gradient (16 bytes each parameter with AdamW) fit in 8 GiB.
pub const PARAMETERS_MAX: u64 = 500_000_000;

/// A valid job spec; read its fields through [`Deref`].
#[derive(Debug, Clone, PartialEq, Encode, Serialize)]
#[cbor(transparent)]
#[serde(transparent)]
pub struct JobSpec(#[n(0)] pub(crate) JobFields);

impl Deref for JobSpec {
    type Target = JobFields;
    fn deref(&self) -> &JobFields {
        &self.0
    }
}

/// What a job spec says. Defaults are applied: what is shown back is what runs.
#[derive(Debug, Clone, PartialEq, Encode, Decode, Serialize)]
pub struct JobFields {
    /// For people; need not be unique.
    #[n(0)]
    pub name: String,
    /// What is trained.
    #[n(1)]
    pub model: ModelSpec,
    /// What it is trained on; none where the code of a PyTorch job brings its own rows, and of a program.
    #[n(2)]
    pub dataset: Option<DatasetName>,
    /// Bounds of the number of executors; `max` is also the number of logical workers W.
    #[n(3)]
    pub workers: Workers,
    /// Samples each logical worker reads per step (for text: sequences).
    #[n(4)]
    pub batch_size: u32,
    /// When it ends.
    #[n(5)]
    pub length: Length,
    /// Root of all chance in the job.
    #[n(6)]
    pub seed: u64,
    /// How samples are ordered within an epoch.
    #[n(7)]
    pub shuffle: Shuffle,
    /// What becomes of the last, shorter step of an epoch.
    #[n(8)]
    pub tail: Tail,
    /// The update rule.
    #[n(9)]
    pub optimizer: OptimizerSpec,
    /// Learning rate over the steps.
    #[n(10)]
    pub schedule: ScheduleSpec,
    /// Clip the gradient to this L2 norm.
    #[n(11)]
    pub gradient_clip_norm: Option<f64>,
    /// Held-out evaluation.
    #[n(12)]
    pub evaluation: Option<EvaluationSpec>,
    /// When checkpoints are written.
    #[n(13)]
    pub checkpoint: CheckpointSpec,
    /// Higher goes first among waiting jobs.
    #[n(14)]
    pub priority: i32,
    /// Accept but do not start until resumed.
    #[n(15)]
    pub suspend: bool,
    /// Recoveries from a checkpoint (every replica lost) after which the job fails.
    #[n(16)]
    pub max_restarts: u32,
    /// How long its first unit of computing may take before it counts as hung. Not in the bytes if it is the default: digests of specs stay the same.
    #[n(17)]
    #[cbor(skip_if = "UnitTimeout::is_default")]
    pub unit_timeout_ms: UnitTimeout,
    /// How long it stands still for a store that refuses before it is suspended.
    #[n(18)]
    #[cbor(skip_if = "StorePatience::is_default")]
    pub store_patience_ms: StorePatience,
    /// The stretch of another job that it trains once more. Not in the bytes, nor shown, of a job that trains for itself.
    #[n(19)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retrains: Option<Retrains>,
    /// Steps between two comparisons of the members' replicas; none: as often as costs less than a hundredth of the steps.
    #[n(20)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compare_every_steps: Option<u64>,
    /// Whose quota it counts against; if nothing is said, that of who submitted it.
    #[n(21)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// What the model may depend on besides spec, data and numeric class. Not in the bytes, nor shown, of a job that says nothing.
    #[cbor(n(22), skip_if = "Determinism::is_default")]
    #[serde(skip_serializing_if = "Determinism::is_default")]
    pub determinism: Determinism,
    /// At which sizes it is measured before it settles; none: at those that it comes to have.
    #[n(23)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// How large a batch may become; none: it is always `batch_size`.
    #[n(24)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_range: Option<BatchRange>,
    /// Whether it may be on slots of several types at once. Not in the bytes, nor shown, of a job that says nothing.
    #[cbor(n(26), default, skip_if = "Types::is_default")]
    #[serde(skip_serializing_if = "Types::is_default")]
    pub types: Types,
}

/// Bounds of the number of executors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Workers {
    /// Fewest executors it runs on.
    #[n(0)]
    pub min: u16,
    /// Most executors, and the number of logical workers W, which never changes.
    #[n(1)]
    pub max: u16,
}

/// When a job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// After so many passes over the dataset.
    #[n(0)]
    Epochs(#[n(0)] u32),
    /// After so many steps.
    #[n(1)]
    Steps(#[n(0)] u64),
}

/// How samples are ordered within an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shuffle {
    /// Permute blocks; a rank interleaves `open` of its blocks by seeded draw.
    #[n(0)]
    Blocks {
        /// Blocks read at once.
        #[n(0)]
        open: u16,
    },
    /// Permute blocks, then permute samples within consecutive windows.
    #[n(1)]
    Window {
        /// Samples per window.
        #[n(0)]
        samples: u32,
    },
    /// Permute all samples of the dataset.
    #[n(2)]
    Full,
    /// Stored order.
    #[n(3)]
    None,
}

/// What becomes of the samples that do not fill an epoch's last step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tail {
    /// The last step is shorter.
    #[n(0)]
    Short,
    /// They are left out of this epoch.
    #[n(1)]
    Drop,
}

/// The update rule.
#[derive(Debug, Clone, Copy, PartialEq, Encode, Decode, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OptimizerSpec {
    /// Stochastic gradient descent.
    #[n(0)]
    Sgd {
        /// Step size before the schedule.
        #[n(0)]
        learning_rate: f64,
        /// Share of the previous update that is kept.
        #[n(1)]
        momentum: f64,
        /// Look ahead along the momentum.
        #[n(2)]
        nesterov: bool,
        /// L2 penalty added to the gradient.
        #[n(3)]
        weight_decay: f64,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter).
    #[n(1)]
    Adamw {
        /// Step size before the schedule.
        #[n(0)]
        learning_rate: f64,
        /// Decay of the first moment.
        #[n(1)]
        beta1: f64,
        /// Decay of the second moment.
        #[n(2)]
        beta2: f64,
        /// Added to the denominator.
        #[n(3)]
        epsilon: f64,
        /// Decoupled decay, times the learning rate.
        #[n(4)]
        weight_decay: f64,
    },
}

/// Learning rate over the steps: linear warm-up, then a shape; a factor on the optimizer's learning rate.
#[derive(Debug, Clone, Copy, PartialEq, Encode, Decode, Serialize)]
pub struct ScheduleSpec {
    /// Steps over which the factor rises from 0 to 1.
    #[n(0)]
    pub warmup_steps: u64,
    /// What follows.
    #[n(1)]
    #[serde(flatten)]
    pub shape: ScheduleShape,
}

/// The learning rate's shape after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Encode, Decode, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ScheduleShape {
    /// 1 throughout.
    #[n(0)]
    Constant,
    /// Times `factor` every `every_steps`.
    #[n(1)]
    Step {
        /// Steps between two drops.
        #[n(0)]
        every_steps: u64,
        /// What each drop multiplies by.
        #[n(1)]
        factor: f64,
    },
    /// Half a cosine from 1 to `floor` at the last step.
    #[n(2)]
    Cosine {
        /// Where it ends.
        #[n(0)]
        floor: f64,
    },
    /// A line from 1 to `floor` at the last step.
    #[n(3)]
    Linear {
        /// Where it ends.
        #[n(0)]
        floor: f64,
    },
}

impl JobSpec {
    /// The program that it runs as a gang, if it does not train in steps.
    #[must_use]
    pub fn gang(&self) -> Option<&CommandSpec> {
        self.model.gang()
    }

    /// Bounds of the number of its executors, as whoever plans has to keep them.
    #[must_use]
    pub fn executors(&self) -> Workers {
        match &self.retrains {
            Some(Retrains { slots, .. }) => Workers { min: *slots, max: *slots },
            None => self.workers,
        }
    }

    /// Whether it runs only on slots that are devices.
    #[must_use]
    pub fn needs_device(&self) -> bool {
        let device = match &self.model {
            ModelSpec::Torch(torch) => Some(torch.device),
            ModelSpec::Command(program) => program.device,
            ModelSpec::Mlp { .. } | ModelSpec::Cnn { .. } | ModelSpec::Gpt { .. } | ModelSpec::Synthetic { .. } => None,
        };
        device == Some(TorchDevice::Cuda)
    }

    /// Parses a submitted document. All problems are reported at once.
    pub fn parse(document: &Value) -> Result<Self, Problems> {
        parse_job(document).map(Self)
    }

    /// Whether it may be submitted anew, by rules that came after records of such jobs; what stands in a log is read whatever it is.
    pub fn ensure_fit(&self) -> Result<(), Problems> {
        match &self.model {
            ModelSpec::Torch(torch) => torch.ensure_fit(),
            ModelSpec::Mlp { .. }
            | ModelSpec::Cnn { .. }
            | ModelSpec::Gpt { .. }
            | ModelSpec::Synthetic { .. }
            | ModelSpec::Command(_) => Ok(()),
        }
    }

    /// The digest of the canonical bytes; equal specs have equal digests.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&crate::batch::to_bytes(self))
    }
}

fn parse_job(document: &Value) -> Result<JobFields, Problems> {
    let mut f = Fields::new("", document);
    let name = f.text_required("name", "a text of 1 to 63 characters", |s| {
        if s.is_empty() || s.chars().count() > 63 || s.chars().any(char::is_control) {
            Err("a text of 1 to 63 printable characters".to_owned())
        } else {
            Ok(s.to_owned())
        }
    });
    let model = f.nested_required("model", "an object such as {kind: mlp, hidden: [128]}", parse_model);
    // Also where the rest of its model is wrong: what is not asked of such jobs is not missing.
    let own_rows = f.raw("model").is_some_and(|model| model["kind"] == "torch");
    let gang = model.as_ref().and_then(ModelSpec::gang).map(|command| command.elastic);
    let fixed = gang == Some(Elastic::Fixed);
    let workers = f.nested("workers", |path, value| parse_workers(path, value, fixed));
    let workers = workers.unwrap_or(Workers { min: 1, max: 1 });
    let (dataset, batch_size, length) = match gang {
        Some(_) => no_data(&mut f),
        None => {
            let dataset = parse_dataset(&mut f, own_rows);
            let length = parse_length(&mut f, own_rows && dataset == Some(None));
            (dataset, f.integer_required("batch_size", 1..=BATCH_SIZE_MAX), length)
        }
    };
    let seed = f.integer("seed", 0..=u64::MAX).unwrap_or(0);
    let shuffle = parse_shuffle(&mut f);
    let tail = f.word("tail", &[("short", Tail::Short), ("drop", Tail::Drop)]).unwrap_or(Tail::Short);
    let optimizer = f.nested("optimizer", parse_optimizer);
    let schedule = f.nested("schedule", parse_schedule).unwrap_or(DEFAULT_SCHEDULE);
    let gradient_clip_norm = f.number("gradient_clip_norm", 1e-6..=1e6);
    let evaluation = f.nested("evaluation", |path, value| parse_evaluation(path, value, own_rows));
    let checkpoint = f.nested("checkpoint", parse_checkpoint).unwrap_or(DEFAULT_CHECKPOINT);
    let priority = f.raw("priority").map(|v| whole_signed(v).and_then(|n| i32::try_from(n).ok()));
    if priority == Some(None) {
        f.wrong("priority", "a whole number; higher goes first");
    }
    let suspend = f.boolean("suspend").unwrap_or(false);
    let max_restarts = f.integer("max_restarts", 0..=1_000).unwrap_or(if gang.is_some() { MAX_RESTARTS } else { 10 });
    let because = "executors say twice a second what they do, and a first unit of more than a day is a hung one";
    let unit_timeout_ms = UnitTimeout::read(&mut f, "unit_timeout_ms", because);
    let because = "a request is tried again for two minutes before it counts as refused, and a store that is away for a day needs somebody";
    let store_patience_ms = StorePatience::read(&mut f, "store_patience_ms", because);
    let retrains = f.nested("retrains", |path, value| parse_retrains(path, value, workers.min, workers.max));
    let compare_every_steps = f.integer("compare_every_steps", 1..=1_000_000_000);
    let tenant = f.text("tenant", |s| TenantId::parse(s).map_err(|e| e.expected.to_owned()));
    let determinism = Determinism::read(&mut f, retrains.is_some(), workers, batch_size);
    let profile = f.nested("profile", |path, value| parse_profile(path, value, workers)).flatten();
    let batch_range = read_batch_range(&mut f, determinism, workers, batch_size);
    let types = Types::read(&mut f, profile.is_some());
    if gang.is_some() {
        let useless = [
            ("seed", seed != 0),
            ("shuffle", shuffle != DEFAULT_SHUFFLE),
            ("tail", tail != Tail::Short),
            ("optimizer", optimizer.is_some_and(|optimizer| optimizer != DEFAULT_OPTIMIZER)),
            ("schedule", schedule != DEFAULT_SCHEDULE),
            ("gradient_clip_norm", gradient_clip_norm.is_some()),
            ("evaluation", evaluation.is_some()),
            ("unit_timeout_ms", !unit_timeout_ms.is_default()),
            ("retrains", retrains.is_some()),
            ("compare_every_steps", compare_every_steps.is_some()),
            ("determinism", !determinism.is_default()),
            ("profile", profile.is_some()),
            ("batch_range", batch_range.is_some()),
            ("types", !types.is_default()),
        ];
        useless.iter().filter(|(_, said)| *said).for_each(|(name, _)| f.wrong(name, OF_THE_PROGRAM));
        if checkpoint.every != DEFAULT_CHECKPOINT.every {
            f.wrong("checkpoint", "`keep` alone: `save_every_ms` says how often the folder of a command is saved");
        }
    }
    refuse_fields_of_models(&mut f);
    let parts = (name, model, dataset, batch_size, length);
    let fields = match parts {
        (Some(name), Some(model), Some(dataset), Some(batch_size), Some(length)) => Some(JobFields {
            name,
            model,
            dataset,
            workers,
            batch_size: batch_size as u32,
            length,
            seed,
            shuffle,
            tail,
            optimizer: optimizer.unwrap_or(DEFAULT_OPTIMIZER),
            schedule,
            gradient_clip_norm,
            evaluation,
            checkpoint,
            priority: priority.flatten().unwrap_or(0),
            suspend,
            max_restarts: max_restarts as u32,
            unit_timeout_ms,
            store_patience_ms,
            retrains,
            compare_every_steps,
            tenant,
            determinism,
            profile,
            batch_range,
            types,
        }),
        _ => None,
    };
    f.finish(fields)
}

const DEFAULT_OPTIMIZER: OptimizerSpec =
    OptimizerSpec::Adamw { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
const DEFAULT_SCHEDULE: ScheduleSpec = ScheduleSpec { warmup_steps: 0, shape: ScheduleShape::Constant };
const DEFAULT_SHUFFLE: Shuffle = Shuffle::Blocks { open: 8 };
/// What the first build that ran whole programs wrote, and its `ebb submit` still sends, for the dataset that such a job has not.
pub(crate) const NO_DATASET: &str = "none";
const OF_THE_PROGRAM: &str = "nothing here: what the program of `command` does is its own matter";

/// What a job with a program of its own says of data and steps: nothing, or what is shown of it.
fn no_data(f: &mut Fields<'_>) -> (Option<Option<DatasetName>>, Option<u64>, Option<Length>) {
    for name in ["batch_size", "steps"] {
        if f.raw(name).is_some_and(|value| whole(value) != Some(1)) {
            f.wrong(name, OF_THE_PROGRAM);
        }
    }
    if f.raw("dataset").is_some_and(|value| *value != NO_DATASET) {
        f.wrong("dataset", OF_THE_PROGRAM);
    }
    if f.raw("epochs").is_some() {
        f.wrong("epochs", OF_THE_PROGRAM);
    }
    (Some(None), Some(1), Some(Length::Steps(1)))
}

/// The name of a dataset; a PyTorch job may leave it out. None if it is wrong.
pub(crate) fn parse_dataset(f: &mut Fields<'_>, own_rows: bool) -> Option<Option<DatasetName>> {
    let parse = |s: &str| DatasetName::parse(s).map_err(|e| e.expected.to_owned());
    match f.raw("dataset") {
        None if own_rows => Some(None),
        _ => f.text_required("dataset", "the name of a registered dataset", parse).map(Some),
    }
}

/// `own_rows`: only the job's code knows how many rows an epoch has.
fn parse_length(f: &mut Fields<'_>, own_rows: bool) -> Option<Length> {
    match (f.raw("epochs"), f.raw("steps")) {
        (Some(_), None) if own_rows => {
            f.wrong(
                "epochs",
                "`steps` instead: without `dataset`, only the job's code knows how many rows an epoch has",
            );
            None
        }
        (None, None) if own_rows => {
            f.wrong("steps", "a whole number from 1; `epochs` needs a `dataset`, of which the service knows the rows");
            None
        }
        (Some(_), Some(_)) => {
            f.wrong("steps", "either `epochs` or `steps`, not both");
            None
        }
        (None, None) => {
            f.wrong("epochs", "`epochs` (whole number from 1) or `steps`");
            None
        }
        (Some(_), None) => f.integer("epochs", 1..=1_000_000).map(|n| Length::Epochs(n as u32)),
        (None, Some(_)) => f.integer("steps", 1..=1_000_000_000_000).map(Length::Steps),
    }
}

fn parse_shuffle(f: &mut Fields<'_>) -> Shuffle {
    const EXPECTED: &str = "`blocks`, `full`, `none`, {blocks: {open: 8}} or {window: SAMPLES}";
    let Some(value) = f.raw("shuffle") else { return DEFAULT_SHUFFLE };
    let parsed = match value {
        Value::String(s) if s == "blocks" => Some(DEFAULT_SHUFFLE),
        Value::String(s) if s == "full" => Some(Shuffle::Full),
        Value::String(s) if s == "none" => Some(Shuffle::None),
        Value::Object(o) if o.len() == 1 => {
            match (o.get("window").and_then(whole), o.get("blocks").and_then(|b| b.get("open")).and_then(whole)) {
                (Some(n @ 1..=10_000_000), None) => Some(Shuffle::Window { samples: n as u32 }),
                (None, Some(n @ 1..=256)) => Some(Shuffle::Blocks { open: n as u16 }),
                _ => None,
            }
        }
        _ => None,
    };
    if parsed.is_none() {
        f.wrong("shuffle", EXPECTED);
    }
    parsed.unwrap_or(DEFAULT_SHUFFLE)
}

fn parse_workers(path: &str, value: &Value, fixed: bool) -> Result<Workers, Problems> {
    let mut f = Fields::new(path, value);
    let max = f.integer_required("max", 1..=WORKERS_MAX);
    let min = f.integer("min", 1..=WORKERS_MAX).unwrap_or(if fixed { max.unwrap_or(1) } else { 1 });
    if fixed && max.is_some_and(|max| min < max) {
        f.wrong("min", "the same as `max`, or left out: a command has a fixed number of members, unless it says `elastic: restart`");
    }
    if max.is_some_and(|max| min > max) {
        f.wrong("min", format!("at most `max` ({})", max.unwrap_or(0)));
    }
    f.finish(max.map(|max| Workers { min: min as u16, max: max as u16 }))
}

fn parse_optimizer(path: &str, value: &Value) -> Result<OptimizerSpec, Problems> {
    let mut f = Fields::new(path, value);
    if f.raw("kind").is_none() && value.is_object() {
        f.wrong("kind", "sgd or adamw");
    }
    let adamw = f.word("kind", &[("adamw", true), ("sgd", false)]).unwrap_or(true);
    let learning_rate = f.number("learning_rate", 0.0..=1e3);
    let optimizer = if adamw {
        let beta1 = f.number("beta1", 0.0..=0.999_999).unwrap_or(0.9);
        let beta2 = f.number("beta2", 0.0..=0.999_999).unwrap_or(0.999);
        let epsilon = f.number("epsilon", 1e-12..=1.0).unwrap_or(1e-8);
        let weight_decay = f.number("weight_decay", 0.0..=10.0).unwrap_or(0.01);
        OptimizerSpec::Adamw { learning_rate: learning_rate.unwrap_or(1e-3), beta1, beta2, epsilon, weight_decay }
    } else {
        let momentum = f.number("momentum", 0.0..=0.999_999).unwrap_or(0.9);
        let nesterov = f.boolean("nesterov").unwrap_or(false);
        let weight_decay = f.number("weight_decay", 0.0..=10.0).unwrap_or(0.0);
        OptimizerSpec::Sgd { learning_rate: learning_rate.unwrap_or(0.1), momentum, nesterov, weight_decay }
    };
    f.finish(Some(optimizer))
}

fn parse_schedule(path: &str, value: &Value) -> Result<ScheduleSpec, Problems> {
    #[derive(Clone, Copy)]
    enum Kind {
        Constant,
        Step,
        Cosine,
        Linear,
    }
    const KINDS: [(&str, Kind); 4] =
        [("constant", Kind::Constant), ("step", Kind::Step), ("cosine", Kind::Cosine), ("linear", Kind::Linear)];
    let mut f = Fields::new(path, value);
    let warmup_steps = f.integer("warmup_steps", 0..=1_000_000_000).unwrap_or(0);
    let shape = match f.word("kind", &KINDS).unwrap_or(Kind::Constant) {
        Kind::Constant => ScheduleShape::Constant,
        Kind::Step => ScheduleShape::Step {
            every_steps: f.integer_required("every_steps", 1..=1_000_000_000).unwrap_or(1),
            factor: f.number("factor", 0.0..=1.0).unwrap_or(0.1),
        },
        Kind::Cosine => ScheduleShape::Cosine { floor: f.number("floor", 0.0..=1.0).unwrap_or(0.0) },
        Kind::Linear => ScheduleShape::Linear { floor: f.number("floor", 0.0..=1.0).unwrap_or(0.0) },
    };
    f.finish(Some(ScheduleSpec { warmup_steps, shape }))
}
