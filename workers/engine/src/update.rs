//! The update of the flat replica: gradient clipping, schedule, SGD or AdamW. The same for every engine.
//!
//! Layout of the replica: parameters, then the optimizer's moments, each as long as the parameters. SGD with momentum keeps
//! one (the velocity), AdamW two (first, then second), SGD without momentum none. Everything else an update needs is computed
//! from the step, so nothing hides outside the replica. Elements are updated independently of each other once the step's
//! [`Factors`] are known: whole or range by range, the bits are the same. Next on the main path: `export.rs`.

use crate::blocks;
use crate::engine::{ParameterInfo, count};
use crate::schedule::learning_rate;
use events_schema::Step;
use events_schema::job::{JobSpec, OptimizerSpec, ScheduleSpec};
use events_schema::stride::{LearningRateRule, Stride};
use std::ops::Range;

/// The update rule of one job.
#[derive(Debug, Clone)]
pub struct Update {
    optimizer: OptimizerSpec,
    schedule: ScheduleSpec,
    clip_norm: Option<f64>,
    /// What becomes of the learning rate of an update that takes several steps.
    rule: LearningRateRule,
    steps_total: u64,
    parameter_count: usize,
    /// Runs of parameters, in order and without gaps: where each ends, and whether weight decay applies to it.
    runs: Vec<(usize, bool)>,
}

/// What one update multiplies by, equal for all elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factors {
    /// Learning rate after the schedule and the rule for batches.
    pub learning_rate: f64,
    /// What the gradient is multiplied by to keep its norm within the bound; 1 where it already is.
    pub clip: f64,
    /// L2 norm of the gradient before clipping; only computed where it is clipped.
    pub gradient_norm: Option<f64>,
    step: Step,
    stride: Stride,
}

impl Update {
    /// The rule of a spec for a model with these parameters. Weight decay leaves out parameters with fewer than two
    /// dimensions (biases, scales and shifts of normalisation), as is usual.
    #[must_use]
    pub fn new(spec: &JobSpec, info: &[ParameterInfo], steps_total: u64) -> Self {
        let rule = spec.batch_range.map_or(LearningRateRule::None, |range| range.learning_rate_rule);
        Self { rule, ..Self::from_parts(spec.optimizer, spec.schedule, spec.gradient_clip_norm, info, steps_total) }
    }

    pub(crate) fn from_parts(
        optimizer: OptimizerSpec,
        schedule: ScheduleSpec,
        clip_norm: Option<f64>,
        info: &[ParameterInfo],
        steps_total: u64,
    ) -> Self {
        let mut runs: Vec<(usize, bool)> = Vec::new();
        for parameter in info {
            let (end, decays) = (parameter.range().end, parameter.shape.len() > 1);
            match runs.last_mut() {
                Some(run) if run.1 == decays => run.0 = end,
                _ => runs.push((end, decays)),
            }
        }
        let rule = LearningRateRule::None;
        Self { optimizer, schedule, clip_norm, rule, steps_total, parameter_count: count(info), runs }
    }

    /// Elements of the parameters.
    #[must_use]
    pub fn parameter_count(&self) -> usize {
        self.parameter_count
    }

    /// Elements of the replica: parameters and moments.
    #[must_use]
    pub fn replica_len(&self) -> usize {
        let moments = match self.optimizer {
            OptimizerSpec::Sgd { momentum: 0.0, .. } => 0,
            OptimizerSpec::Sgd { .. } => 1,
            OptimizerSpec::Adamw { .. } => 2,
        };
        self.parameter_count * (1 + moments)
    }

    /// The replica that begins with these parameters: moments are 0.
    #[must_use]
    pub fn initial_replica(&self, mut parameters: Vec<f32>) -> Vec<f32> {
        parameters.resize(self.replica_len(), 0.0);
        parameters
    }

    /// The factors of an update of so many steps; needs the whole mean gradient when the spec clips.
    #[must_use]
    pub fn factors(&self, gradient_mean: &[f32], step: Step, stride: Stride) -> Factors {
        self.factors_of(|| blocks::norm(gradient_mean), step, stride)
    }

    /// The same where the norm is found elsewhere, which is asked for only when the spec clips.
    #[must_use]
    pub fn factors_of(&self, gradient_norm: impl FnOnce() -> f64, step: Step, stride: Stride) -> Factors {
        self.factors_of_norm(self.clip_norm.map(|_| gradient_norm()), step, stride)
    }

    /// The same where the norm was summed elsewhere, see [`blocks`]. The schedule is that of the first of its steps.
    #[must_use]
    pub fn factors_of_norm(&self, gradient_norm: Option<f64>, step: Step, stride: Stride) -> Factors {
        let clip = match (self.clip_norm, gradient_norm) {
            (Some(bound), Some(norm)) if norm > bound => bound / norm,
            _ => 1.0,
        };
        Factors {
            learning_rate: learning_rate(&self.optimizer, &self.schedule, step, self.steps_total)
                * self.rule.factor(stride),
            clip,
            gradient_norm,
            step,
            stride,
        }
    }

    /// Turns the replica at `step` into the replica at `step + 1`, as [`apply_strided`](Self::apply_strided) of one step.
    pub fn apply(&self, replica: &mut [f32], gradient_mean: &[f32], step: Step) -> Factors {
        self.apply_strided(replica, gradient_mean, step, Stride::ONE)
    }

    /// Turns the replica at `step` into the one that is so many steps further.
    ///
    /// `replica` has [`replica_len`](Self::replica_len) elements, `gradient_mean` as many as there are parameters: the summed
    /// gradient divided by the summed weight.
    pub fn apply_strided(&self, replica: &mut [f32], gradient_mean: &[f32], step: Step, stride: Stride) -> Factors {
        let factors = self.factors(gradient_mean, step, stride);
        self.apply_range(replica, gradient_mean, 0..self.parameter_count, &factors);
        factors
    }

    /// Updates the parameters in `range` and their moments; `gradient_mean` is that of the range alone.
    pub fn apply_range(&self, replica: &mut [f32], gradient_mean: &[f32], range: Range<usize>, factors: &Factors) {
        let (parameters, moments) = replica.split_at_mut(self.parameter_count);
        let mut start = range.start;
        let first = self.runs.partition_point(|(end, _)| *end <= start);
        for &(run_end, decays) in &self.runs[first..] {
            let end = run_end.min(range.end);
            if start >= end {
                break;
            }
            let gradient = &gradient_mean[start - range.start..end - range.start];
            let parameters = &mut parameters[start..end];
            match self.optimizer {
                OptimizerSpec::Sgd { momentum: 0.0, weight_decay, .. } => {
                    sgd_plain(factors, decay(decays, weight_decay), parameters, gradient);
                }
                OptimizerSpec::Sgd { momentum, nesterov, weight_decay, .. } => {
                    let rule =
                        Momentum { momentum: momentum as f32, nesterov, weight_decay: decay(decays, weight_decay) };
                    sgd_momentum(factors, &rule, parameters, &mut moments[start..end], gradient);
                }
                OptimizerSpec::Adamw { beta1, beta2, epsilon, weight_decay, .. } => {
                    let rule = Adam::new(factors, [beta1, beta2], epsilon, if decays { weight_decay } else { 0.0 });
                    let (first, second) = moments.split_at_mut(self.parameter_count);
                    adamw(&rule, parameters, &mut first[start..end], &mut second[start..end], gradient);
                }
            }
            start = end;
        }
    }
}

fn decay(decays: bool, weight_decay: f64) -> f32 {
    if decays { weight_decay as f32 } else { 0.0 }
}

/// `p ← p − η (c g + λ p)`.
fn sgd_plain(factors: &Factors, weight_decay: f32, parameters: &mut [f32], gradient: &[f32]) {
    let (rate, clip) = (factors.learning_rate as f32, factors.clip as f32);
    for (p, &g) in parameters.iter_mut().zip(gradient) {
        *p -= rate * (g * clip + weight_decay * *p);
    }
}

struct Momentum {
    momentum: f32,
    nesterov: bool,
    weight_decay: f32,
}

/// `d = c g + λ p; v ← μ v + d; p ← p − η v`, or with Nesterov's look-ahead `p ← p − η (d + μ v)` (Sutskever et al. 2013, in
/// the form PyTorch uses).
fn sgd_momentum(factors: &Factors, rule: &Momentum, parameters: &mut [f32], velocity: &mut [f32], gradient: &[f32]) {
    let (rate, clip) = (factors.learning_rate as f32, factors.clip as f32);
    let &Momentum { momentum, weight_decay, .. } = rule;
    // Two loops so that neither holds a branch.
    if rule.nesterov {
        for ((p, v), &g) in parameters.iter_mut().zip(velocity).zip(gradient) {
            let d = g * clip + weight_decay * *p;
            *v = momentum * *v + d;
            *p -= rate * (d + momentum * *v);
        }
    } else {
        for ((p, v), &g) in parameters.iter_mut().zip(velocity).zip(gradient) {
            *v = momentum * *v + (g * clip + weight_decay * *p);
            *p -= rate * *v;
        }
    }
}

/// AdamW's factors of one step.
struct Adam {
    clip: f32,
    betas: [f32; 2],
    /// `1 - beta`, rounded once.
    rests: [f32; 2],
    /// Learning rate over the first moment's bias correction.
    rate: f32,
    /// One over the square root of the second moment's bias correction.
    second_scale: f32,
    epsilon: f32,
    /// `1 − η λ`.
    shrink: f32,
}

impl Adam {
    /// Of an update of k steps both βs are `β^k`: averages reach as far back in samples whatever the batch (Malladi et al. 2022, to first order in 1 − β). So
    /// bias corrections, `1 − β^(step + k)`, are computed from the step in f64, and nothing has to be carried of the strides that led there.
    fn new(factors: &Factors, betas: [f64; 2], epsilon: f64, weight_decay: f64) -> Self {
        let correction = betas.map(|beta| 1.0 - libm::pow(beta, factors.stride.end(factors.step).0 as f64));
        let betas = if factors.stride.is_one() {
            betas
        } else {
            betas.map(|beta| libm::pow(beta, factors.stride.steps() as f64))
        };
        Self {
            clip: factors.clip as f32,
            betas: betas.map(|beta| beta as f32),
            rests: betas.map(|beta| (1.0 - beta) as f32),
            rate: (factors.learning_rate / correction[0]) as f32,
            second_scale: (1.0 / libm::sqrt(correction[1])) as f32,
            epsilon: epsilon as f32,
            shrink: (1.0 - factors.learning_rate * weight_decay) as f32,
        }
    }
}

/// `m ← β₁ m + (1 − β₁) c g; v ← β₂ v + (1 − β₂) (c g)²; p ← (1 − η λ) p − η m̂ / (√v̂ + ε)` (Loshchilov and Hutter 2019).
fn adamw(rule: &Adam, parameters: &mut [f32], first: &mut [f32], second: &mut [f32], gradient: &[f32]) {
    let &Adam { clip, betas, rests, rate, second_scale, epsilon, shrink } = rule;
    for (((p, m), v), &g) in parameters.iter_mut().zip(first).zip(second).zip(gradient) {
        let g = g * clip;
        *m = betas[0] * *m + rests[0] * g;
        *v = betas[1] * *v + rests[1] * (g * g);
        *p = shrink * *p - rate * *m / (v.sqrt() * second_scale + epsilon);
    }
}

#[cfg(test)]
#[path = "update_tests.rs"]
mod tests;
