//! The contract between whatever computes gradients and everything else: flat `f32` parameters in, a flat summed gradient out.
//!
//! Nothing here knows of models or kernels, so that an engine in another process or on another device can stand behind
//! the same trait. It must not apply updates (see `update.rs`) and must not keep anything from one call to the next that could
//! change a bit of a later result. On the main path read `native.rs` next.

use events_schema::dataset::Samples;
use events_schema::{Rank, Step};

/// What computes gradients and evaluates. All slices have [`parameter_count`](count) elements in the order of
/// [`parameter_info`](Engine::parameter_info), row-major within each parameter.
///
/// Results are functions of the arguments alone, bit for bit within one numeric class: not of earlier calls, of other engines
/// in the process, or of the thread.
pub trait Engine: Send {
    /// Every parameter in its flat order; offsets follow each other without gaps.
    fn parameter_info(&self) -> &[ParameterInfo];

    /// The parameters a fresh job begins with, drawn from the job's seed and each parameter's name.
    fn initial_parameters(&self) -> Vec<f32>;

    /// Writes the gradient of the summed loss over `samples` into `gradient` (every element is overwritten) and returns the
    /// sums that belong to it. No samples: exact zeros, weight 0, loss 0.
    fn gradient(
        &mut self,
        parameters: &[f32],
        samples: &Samples,
        random_key: RandomKey,
        gradient: &mut [f32],
    ) -> Result<Sums, EngineError>;

    /// Loss and hits over `samples`, without dropout. Samples are taken in fixed groups of [`EVALUATION_ROWS`], in order.
    fn evaluate(&mut self, parameters: &[f32], samples: &Samples) -> Result<EvaluationSums, EngineError>;
}

/// Samples evaluated at once: bounds memory, and fixes the batch shape that kernels see.
pub const EVALUATION_ROWS: usize = 64;

/// One parameter's place in the flat buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterInfo {
    /// Dotted path, for example `stages.0.blocks.1.conv1.weight`; unique within a model.
    pub name: String,
    /// Dimensions, outermost first. Linear weights are `[out, in]`, convolutions `[out, in, height, width]`.
    pub shape: Vec<usize>,
    /// Index of its first element in the flat buffer.
    pub offset: usize,
}

impl ParameterInfo {
    /// Elements it has.
    #[must_use]
    pub fn element_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Its range in the flat buffer.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.element_count()
    }
}

/// Elements of all parameters together.
#[must_use]
pub fn count(info: &[ParameterInfo]) -> usize {
    info.last().map_or(0, |last| last.range().end)
}

/// Names the draw: everything random in a gradient is a function of this and of the layer it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomKey {
    /// The job's seed.
    pub seed: u64,
    /// The logical worker.
    pub rank: Rank,
    /// The step whose gradient it is.
    pub step: Step,
}

/// What a gradient was summed over. The weight of a classified sample is 1, of a sequence the number of predicted tokens,
/// so that summed gradient ÷ summed weight is the gradient of the mean loss.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sums {
    /// Summed weight of the samples.
    pub weight: f64,
    /// Summed cross-entropy in nats.
    pub loss: f64,
}

/// What an evaluation was summed over.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EvaluationSums {
    /// Summed cross-entropy in nats.
    pub loss: f64,
    /// Targets whose highest score is the right one (the first of equal ones counts).
    pub correct: u64,
    /// Targets seen: samples, or predicted tokens.
    pub count: u64,
}

impl EvaluationSums {
    /// Adds those of more samples.
    pub(crate) fn add(&mut self, more: Self) {
        self.loss += more.loss;
        self.correct += more.correct;
        self.count += more.count;
    }
}

/// Why a gradient or evaluation was refused. All variants are refusals of the input: trying again cannot help, and the job
/// has to stop, because a step with other samples would be another step.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// Stop: the caller's buffer belongs to another model.
    #[error("{what} has {found} elements, the model has {expected}")]
    Length {
        /// Which slice.
        what: &'static str,
        /// Elements of the model.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// Stop: the samples are not what the dataset was declared to hold.
    #[error("samples do not fit the declared shape: {0}")]
    Samples(String),
    /// Stop: a label or token lies outside the declared range.
    #[error("sample {sample} holds {what} {value}, allowed are 0 to {max}")]
    OutOfRange {
        /// `label` or `token`.
        what: &'static str,
        /// Which sample of the call, from 0.
        sample: usize,
        /// What it holds.
        value: u32,
        /// The largest legal value.
        max: u32,
    },
    /// Stop: the loss is no longer a number, so every later step would be noise. The learning rate is the usual cause.
    #[error("the loss is not finite")]
    NotFinite,
}

/// Why a model cannot be built for a dataset. All variants are refusals; submitting other values helps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// Refuse: the dataset holds another kind of sample.
    #[error("a {model} model needs {needed}, the dataset holds {found}")]
    SampleKind {
        /// Kind of the model.
        model: &'static str,
        /// What it can read.
        needed: &'static str,
        /// What the dataset holds.
        found: String,
    },
    /// Refuse: the model sees more tokens than a row holds.
    #[error("context {context} needs rows of at least {} tokens, the dataset's rows have {length}", .context + 1)]
    Context {
        /// Tokens the model sees at once.
        context: u32,
        /// Tokens per row of the dataset.
        length: u32,
    },
    /// Refuse: a size that must divide another does not, or is zero.
    #[error("{field} is {value}: expected {expected}")]
    Size {
        /// Which field of the model.
        field: &'static str,
        /// What it says.
        value: u64,
        /// What would be right.
        expected: String,
    },
    /// Refuse: the model is the user's own, and this engine knows only Ebb's.
    #[error("a model in PyTorch is built by its own code, and this engine runs none")]
    NotNative,
    /// Refuse: replica and gradient would not fit the bound that jobs are planned with.
    #[error("the model has more than {max} parameters")]
    TooLarge {
        /// Most parameters allowed.
        max: u64,
    },
}

impl BuildError {
    /// Path of the field of the job spec that has to change.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            BuildError::SampleKind { .. } => "dataset",
            BuildError::Context { .. } => "model.context",
            BuildError::Size { field, .. } => field,
            BuildError::TooLarge { .. } | BuildError::NotNative => "model",
        }
    }
}
