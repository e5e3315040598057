//! The job spec, as it is submitted and as it is shown with its defaults applied: what is shown can be submitted again. `docs/jobs.md` says what the fields mean,
//! `events-schema` refuses what is not legal.

use crate::batch_range::BatchRange;
use crate::forms::{Hash, Name};
use crate::model::Model;
use crate::slot_type::Types;
use events_schema::job as schema;
use events_schema::retrains;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a job trains, on what, and how long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobSpec {
    /// For people; need not be unique.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// What is trained.
    pub model: Model,
    /// What it is trained on: a registered dataset. A model in PyTorch may leave it out and read rows of its code's own `dataset()`; such a job says its `steps`.
    #[serde(default)]
    #[schemars(with = "Option<Name>")]
    pub dataset: Option<String>,
    /// Bounds of the number of executors.
    #[serde(default)]
    pub workers: Workers,
    /// Samples each logical worker reads per step (of text: sequences).
    #[schemars(range(min = 1, max = 65_536))]
    pub batch_size: u32,
    /// It ends after so many passes over the dataset; this or `steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub epochs: Option<u32>,
    /// It ends after so many steps; this or `epochs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub steps: Option<u64>,
    /// Root of all chance in the job.
    #[serde(default)]
    pub seed: u64,
    /// How samples are ordered within an epoch.
    #[serde(default)]
    pub shuffle: Shuffle,
    /// What becomes of the samples that do not fill an epoch's last step.
    #[serde(default)]
    pub tail: Tail,
    /// The update rule.
    #[serde(default)]
    pub optimizer: Optimizer,
    /// Learning rate over the steps: a factor on the optimizer's.
    #[serde(default)]
    pub schedule: Schedule,
    /// Clip the gradient to this L2 norm.
    #[serde(default)]
    #[schemars(range(min = 1e-6, max = 1e6))]
    pub gradient_clip_norm: Option<f64>,
    /// Held-out evaluation.
    #[serde(default)]
    pub evaluation: Option<EvaluationSpec>,
    /// When checkpoints are written.
    #[serde(default)]
    pub checkpoint: CheckpointSpec,
    /// Higher goes first among waiting jobs.
    #[serde(default)]
    pub priority: i32,
    /// Accept but do not start until resumed.
    #[serde(default)]
    pub suspend: bool,
    /// Restarts that failures of its own executors may cost; one more fails the job.
    #[serde(default = "max_restarts")]
    #[schemars(range(max = 1_000))]
    pub max_restarts: u32,
    /// How long its first unit of computing may take before it counts as hung.
    #[serde(default = "unit_timeout_ms")]
    #[schemars(range(min = 1_000, max = 86_400_000))]
    pub unit_timeout_ms: u64,
    /// How long it stands still for a store that refuses before it is suspended.
    #[serde(default = "store_patience_ms")]
    #[schemars(range(min = 180_000, max = 86_400_000))]
    pub store_patience_ms: u64,
    /// Trains a stretch of another job once more instead of training for itself; `ebb verify` submits such jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retrains: Option<Retrains>,
    /// Steps between two comparisons of the members' replicas; as often as costs less than a hundredth of the steps if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub compare_every_steps: Option<u64>,
    /// Whose quota it counts against, by the tenant's name; that of whoever submits it if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub tenant: Option<String>,
    /// What the model may depend on besides the spec, the data and the numeric class; not shown of a job that says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub determinism: Option<Determinism>,
    /// At which sizes it is measured before it settles, on slots that are idle; at those that it comes to have if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// How large a batch may become, where the policy finds that it pays; it is always `batch_size` if it is left out. Needs `determinism: none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_range: Option<BatchRange>,
    /// Whether it may be on slots of several types of its numeric class at once, under a policy that mixes them: the faster ones then compute more of its workers'
    /// gradients. `one` if it is left out; not shown then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<Types>,
}

/// What the model may depend on besides the spec, the data and the numeric class of the executors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Determinism {
    /// Nothing, which is so where nothing is said: each logical worker computes a gradient of its own, whoever hosts it.
    D1,
    /// On who was a member when: each executor computes one gradient of all the samples of the workers that it hosts.
    None,
}

/// At which sizes a job is measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Profile {
    /// At the usual ones: `workers.min`, twice as many again and again, and `workers.max`; false: at none.
    Usual(bool),
    /// At these.
    At(ProfileSizes),
}

/// Sizes, and how long each is had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProfileSizes {
    /// Numbers of executors, rising, within `workers`; the usual ones if they are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 9), inner(range(min = 1, max = 256)))]
    pub sizes: Vec<u16>,
    /// Each takes so long at most, the start of newcomers included.
    #[serde(default = "profile_seconds")]
    #[schemars(range(min = 5, max = 600))]
    pub seconds: u16,
}

/// A stretch of another job, which is trained once more from that job's whole replica: parameters, state of the optimizer, step and place in
/// the data. Both specs are equal in all that decides the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Retrains {
    /// The other job.
    #[schemars(with = "Name")]
    pub job: String,
    /// It begins with that job's checkpoint of this step; 0: as that job began.
    #[serde(default)]
    #[schemars(range(max = 1_000_000_000_000_u64))]
    pub from_step: u64,
    /// It ends at this step, whose replica it saves; null: where that job ends. What it then has is its model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub to_step: Option<u64>,
    /// Its number of executors, never more and never fewer; null: `workers.min`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 256))]
    pub slots: Option<u16>,
    /// What the replica that it begins with has to be; with another one it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Hash>")]
    pub replica_digest: Option<String>,
}

fn max_restarts() -> u32 {
    10
}
fn unit_timeout_ms() -> u64 {
    600_000
}
fn profile_seconds() -> u16 {
    60
}
fn store_patience_ms() -> u64 {
    1_800_000
}

impl Default for JobSpec {
    /// A spec in which everything is as if it were left out; it names nothing and ends never, so it is not legal yet.
    fn default() -> Self {
        Self {
            name: String::new(),
            model: Model::default(),
            dataset: None,
            workers: Workers::default(),
            batch_size: 1,
            epochs: None,
            steps: None,
            seed: 0,
            shuffle: Shuffle::default(),
            tail: Tail::default(),
            optimizer: Optimizer::default(),
            schedule: Schedule::default(),
            gradient_clip_norm: None,
            evaluation: None,
            checkpoint: CheckpointSpec::default(),
            priority: 0,
            suspend: false,
            max_restarts: max_restarts(),
            unit_timeout_ms: unit_timeout_ms(),
            store_patience_ms: store_patience_ms(),
            retrains: None,
            compare_every_steps: None,
            tenant: None,
            determinism: None,
            profile: None,
            batch_range: None,
            types: None,
        }
    }
}

/// Bounds of the number of executors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Workers {
    /// Fewest executors it runs on; at most `max`.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 256))]
    pub min: u16,
    /// Most executors, and the number of logical workers, which never changes.
    #[schemars(range(min = 1, max = 256))]
    pub max: u16,
}

fn one() -> u16 {
    1
}

impl Default for Workers {
    fn default() -> Self {
        Self { min: 1, max: 1 }
    }
}

/// How samples are ordered within an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Shuffle {
    /// As the word says.
    Word(ShuffleWord),
    /// Permute blocks; a rank interleaves `open` of its blocks by seeded draw.
    Blocks {
        /// How large blocks are, and how many are open at once.
        blocks: ShuffledBlocks,
    },
    /// Permute blocks, then permute samples within consecutive windows.
    Window {
        /// Samples per window.
        #[schemars(range(min = 1, max = 10_000_000))]
        window: u32,
    },
}

impl Default for Shuffle {
    fn default() -> Self {
        Self::Blocks { blocks: ShuffledBlocks { open: 8 } }
    }
}

/// Orders that have no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShuffleWord {
    /// Blocks, eight open.
    Blocks,
    /// Permute all samples of the dataset.
    Full,
    /// Stored order.
    None,
}

/// Blocks that are read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShuffledBlocks {
    /// So many.
    #[schemars(range(min = 1, max = 256))]
    pub open: u16,
}

/// What becomes of the samples that do not fill an epoch's last step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tail {
    /// The last step is shorter.
    #[default]
    Short,
    /// They are left out of this epoch.
    Drop,
}

/// The update rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Optimizer {
    /// Stochastic gradient descent.
    Sgd {
        /// Step size before the schedule.
        #[serde(default = "tenth")]
        #[schemars(range(min = 0.0, max = 1e3))]
        learning_rate: f64,
        /// Share of the previous update that is kept.
        #[serde(default = "beta1")]
        #[schemars(range(min = 0.0, max = 0.999_999))]
        momentum: f64,
        /// Look ahead along the momentum.
        #[serde(default)]
        nesterov: bool,
        /// L2 penalty added to the gradient.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 10.0))]
        weight_decay: f64,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter).
    Adamw {
        /// Step size before the schedule.
        #[serde(default = "thousandth")]
        #[schemars(range(min = 0.0, max = 1e3))]
        learning_rate: f64,
        /// Decay of the first moment.
        #[serde(default = "beta1")]
        #[schemars(range(min = 0.0, max = 0.999_999))]
        beta1: f64,
        /// Decay of the second moment.
        #[serde(default = "beta2")]
        #[schemars(range(min = 0.0, max = 0.999_999))]
        beta2: f64,
        /// Added to the denominator.
        #[serde(default = "epsilon")]
        #[schemars(range(min = 1e-12, max = 1.0))]
        epsilon: f64,
        /// Decoupled decay, times the learning rate.
        #[serde(default = "hundredth")]
        #[schemars(range(min = 0.0, max = 10.0))]
        weight_decay: f64,
    },
    /// Whatever later builds add.
    #[serde(untagged)]
    #[schemars(skip)]
    Other(Map<String, Value>),
}

fn tenth() -> f64 {
    0.1
}
fn hundredth() -> f64 {
    0.01
}
fn thousandth() -> f64 {
    1e-3
}
fn beta1() -> f64 {
    0.9
}
fn beta2() -> f64 {
    0.999
}
fn epsilon() -> f64 {
    1e-8
}

impl Default for Optimizer {
    fn default() -> Self {
        Self::Adamw {
            learning_rate: thousandth(),
            beta1: beta1(),
            beta2: beta2(),
            epsilon: epsilon(),
            weight_decay: hundredth(),
        }
    }
}

/// Learning rate over the steps: a line from 0 to 1 over the warm-up, then a shape.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Schedule {
    /// Steps over which the factor rises from 0 to 1.
    #[schemars(range(max = 1_000_000_000))]
    pub warmup_steps: u64,
    /// The shape after that.
    pub kind: ScheduleKind,
    /// Of `step`: steps between two drops. It has to be given there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub every_steps: Option<u64>,
    /// Of `step`: what each drop multiplies by; 0.1 if it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub factor: Option<f64>,
    /// Of `cosine` and `linear`: where it ends; 0 if it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub floor: Option<f64>,
}

/// The learning rate's shape after the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// 1 throughout.
    #[default]
    Constant,
    /// Times `factor` every `every_steps`.
    Step,
    /// Half a cosine from 1 to `floor` at the last step.
    Cosine,
    /// A line from 1 to `floor` at the last step.
    Linear,
}

/// Held-out evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EvaluationSpec {
    /// What it is evaluated on: a registered dataset. A model in PyTorch may leave it out and read rows of its code's own `held_out()`.
    #[serde(default)]
    #[schemars(with = "Option<Name>")]
    pub dataset: Option<String>,
    /// Steps between two evaluations; the last step is always evaluated.
    #[serde(default = "hundred")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub every_steps: u64,
}

fn hundred() -> u64 {
    100
}

/// When checkpoints are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CheckpointSpec {
    /// Steps between two checkpoints; 0 where `every_seconds` or `every` says when they are written.
    #[schemars(range(max = 1_000_000_000))]
    pub every_steps: u64,
    /// Seconds between two checkpoints, instead of steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 5, max = 604_800))]
    pub every_seconds: Option<u64>,
    /// `auto`: by what one costs and how often every replica is lost, instead of steps or seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<CheckpointEvery>,
    /// How many of the newest are kept.
    #[schemars(range(min = 1, max = 1_000))]
    pub keep: u32,
}

/// Who says how often checkpoints are written, if not the spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointEvery {
    /// The job's leader, by what it measures.
    Auto,
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        Self { every_steps: 500, every_seconds: None, every: None, keep: 2 }
    }
}

impl From<schema::CheckpointSpec> for CheckpointSpec {
    fn from(schema::CheckpointSpec { every, keep }: schema::CheckpointSpec) -> Self {
        let auto = (every == schema::CheckpointInterval::Auto).then_some(CheckpointEvery::Auto);
        Self { every_steps: every.steps().unwrap_or(0), every_seconds: every.seconds(), every: auto, keep }
    }
}

impl From<&schema::JobSpec> for JobSpec {
    fn from(spec: &schema::JobSpec) -> Self {
        let (epochs, steps) = match spec.length {
            schema::Length::Epochs(epochs) => (Some(epochs), None),
            schema::Length::Steps(steps) => (None, Some(steps)),
        };
        Self {
            name: spec.name.clone(),
            model: (&spec.model).into(),
            dataset: spec.dataset.as_ref().map(ToString::to_string),
            workers: spec.workers.into(),
            batch_size: spec.batch_size,
            epochs,
            steps,
            seed: spec.seed,
            shuffle: spec.shuffle.into(),
            tail: match spec.tail {
                schema::Tail::Short => Tail::Short,
                schema::Tail::Drop => Tail::Drop,
            },
            optimizer: spec.optimizer.into(),
            schedule: spec.schedule.into(),
            gradient_clip_norm: spec.gradient_clip_norm,
            evaluation: spec.evaluation.as_ref().map(|evaluation| EvaluationSpec {
                dataset: evaluation.dataset.as_ref().map(ToString::to_string),
                every_steps: evaluation.every_steps,
            }),
            checkpoint: spec.checkpoint.into(),
            priority: spec.priority,
            suspend: spec.suspend,
            max_restarts: spec.max_restarts,
            unit_timeout_ms: spec.unit_timeout_ms.ms(),
            store_patience_ms: spec.store_patience_ms.ms(),
            retrains: spec.retrains.as_ref().map(Retrains::from),
            compare_every_steps: spec.compare_every_steps,
            tenant: spec.tenant.as_ref().map(ToString::to_string),
            determinism: (spec.determinism == schema::Determinism::None).then_some(Determinism::None),
            profile: spec
                .profile
                .as_ref()
                .map(|profile| Profile::At(ProfileSizes { sizes: profile.sizes.clone(), seconds: profile.seconds })),
            batch_range: spec.batch_range.map(BatchRange::from),
            types: (spec.types == schema::Types::Any).then_some(Types::Any),
        }
    }
}

impl From<&retrains::Retrains> for Retrains {
    fn from(stretch: &retrains::Retrains) -> Self {
        Self {
            job: stretch.job.to_string(),
            from_step: stretch.from_step.0,
            to_step: stretch.to_step.map(|step| step.0),
            slots: Some(stretch.slots),
            replica_digest: stretch.replica_digest.map(|digest| digest.to_string()),
        }
    }
}

impl From<schema::Workers> for Workers {
    fn from(schema::Workers { min, max }: schema::Workers) -> Self {
        Self { min, max }
    }
}

impl From<schema::Shuffle> for Shuffle {
    fn from(shuffle: schema::Shuffle) -> Self {
        match shuffle {
            schema::Shuffle::Blocks { open } => Self::Blocks { blocks: ShuffledBlocks { open } },
            schema::Shuffle::Window { samples } => Self::Window { window: samples },
            schema::Shuffle::Full => Self::Word(ShuffleWord::Full),
            schema::Shuffle::None => Self::Word(ShuffleWord::None),
        }
    }
}

impl From<schema::OptimizerSpec> for Optimizer {
    fn from(optimizer: schema::OptimizerSpec) -> Self {
        use schema::OptimizerSpec as Spec;
        match optimizer {
            Spec::Sgd { learning_rate, momentum, nesterov, weight_decay } => {
                Self::Sgd { learning_rate, momentum, nesterov, weight_decay }
            }
            Spec::Adamw { learning_rate, beta1, beta2, epsilon, weight_decay } => {
                Self::Adamw { learning_rate, beta1, beta2, epsilon, weight_decay }
            }
        }
    }
}

impl From<schema::ScheduleSpec> for Schedule {
    fn from(schedule: schema::ScheduleSpec) -> Self {
        use schema::ScheduleShape as Shape;
        let base = Self { warmup_steps: schedule.warmup_steps, ..Self::default() };
        match schedule.shape {
            Shape::Constant => base,
            Shape::Step { every_steps, factor } => {
                Self { kind: ScheduleKind::Step, every_steps: Some(every_steps), factor: Some(factor), ..base }
            }
            Shape::Cosine { floor } => Self { kind: ScheduleKind::Cosine, floor: Some(floor), ..base },
            Shape::Linear { floor } => Self { kind: ScheduleKind::Linear, floor: Some(floor), ..base },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn a_shown_spec_can_be_submitted_again() {
        let base = json!({"name": "a", "model": {"kind": "mlp", "hidden": [4]}, "dataset": "digits", "batch_size": 8, "epochs": 3});
        let variations = [
            json!({}),
            json!({"shuffle": {"window": 64}, "epochs": null, "steps": 10, "evaluation": {"dataset": "digits-test"}}),
            json!({"shuffle": "none", "optimizer": {"kind": "sgd", "momentum": 0.5}, "schedule": {"kind": "step", "every_steps": 5}}),
            json!({"shuffle": "full", "schedule": {"kind": "cosine", "warmup_steps": 2}, "gradient_clip_norm": 1.5, "priority": -3}),
            json!({"model": {"kind": "gpt"}, "tail": "drop", "seed": 18_446_744_073_709_551_615_u64, "suspend": true}),
            json!({"model": {"kind": "synthetic", "gradient_ms": 20}}),
            json!({"model": {"kind": "cnn"}, "unit_timeout_ms": 1_200_000, "store_patience_ms": 180_000}),
            json!({"workers": {"min": 2, "max": 4}, "retrains": {"job": "job-a", "from_step": 20, "to_step": 40, "replica_digest": "0a".repeat(32)}}),
            json!({"checkpoint": {"every_steps": 7, "keep": 3}, "compare_every_steps": 40, "tenant": "research"}),
            json!({"checkpoint": {"every_seconds": 600}}),
            json!({"workers": {"min": 1, "max": 4}, "determinism": "none"}),
            json!({"workers": {"min": 1, "max": 4}, "determinism": "none", "batch_range": {"max": 64, "learning_rate_rule": "linear"}}),
            json!({"workers": {"min": 2, "max": 6}, "types": "any"}),
            json!({"workers": {"min": 2, "max": 6}, "profile": true}),
            json!({"workers": {"min": 2, "max": 6}, "profile": {"sizes": [3, 6], "seconds": 20}}),
            json!({"checkpoint": {"every": "auto", "keep": 1}}),
        ];
        let command = json!({"name": "a", "model": {"kind": "command", "command": ["python", "train.py"]}, "workers": {"max": 2}});
        let of_base = variations.into_iter().map(|variation| {
            let mut document = base.clone();
            document.as_object_mut().unwrap().extend(variation.as_object().unwrap().clone());
            document
        });
        for document in of_base.chain([command]) {
            let parsed = schema::JobSpec::parse(&document).unwrap();
            let shown = JobSpec::from(&parsed);
            let text = serde_json::to_value(&shown).unwrap();
            assert_eq!(schema::JobSpec::parse(&text).unwrap(), parsed, "{document}");
            assert_eq!(serde_json::from_value::<JobSpec>(text).unwrap(), shown, "{document}");
        }
    }

    /// The defaults of this crate, which stand in the document, are those by which specs are parsed.
    #[test]
    fn what_is_left_out_has_the_defaults_of_the_parser() {
        for model in ["mlp", "cnn", "gpt", "synthetic"] {
            for optimizer in ["adamw", "sgd"] {
                let least = json!({"name": "a", "model": {"kind": model}, "dataset": "d", "batch_size": 8, "steps": 3, "optimizer": {"kind": optimizer},
                    "evaluation": {"dataset": "e"}, "checkpoint": {}, "schedule": {}, "workers": {"max": 4}});
                let read: JobSpec = serde_json::from_value(least.clone()).unwrap();
                assert_eq!(read, JobSpec::from(&schema::JobSpec::parse(&least).unwrap()));
            }
        }
        let least = json!({"name": "a", "model": {"kind": "mlp"}, "dataset": "d", "batch_size": 8, "steps": 3});
        let read: JobSpec = serde_json::from_value(least.clone()).unwrap();
        assert_eq!(read, JobSpec::from(&schema::JobSpec::parse(&least).unwrap()));
    }
}
