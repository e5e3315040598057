//! Who computes a job's gradients and updates: an engine of this process, or a Python process beside it. Everything else of an executor is
//! the same for both, and knows only how long things are.
//!
//! An engine is given the replica in every call and changes it in place. The Python process has one of its own, of some [`Version`]: it is
//! given another only when it has to compute with that, and what it made of an update is read back only when somebody asks
//! (`replica.rs`).
//!
//! Next on a job's path: `workers/engine/src/lib.rs`, or `workers/torch/src/lib.rs` for a model in PyTorch.

use crate::program::ProgramError;
use events_schema::dataset::Samples;
use events_schema::job::JobSpec;
use events_schema::{Digest, Rank, Step};
use std::time::Duration;
use workers_engine::{Engine, RandomKey, Sums, Update, blocks, learning_rate_factor};
use workers_session::RankMetrics;
use workers_torch::{Lengths, StartTimes, TorchJob};

/// Which contents a replica has: equal for equal contents, within one executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Version(pub u64);

/// A replica to compute with.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// All of it, or its beginning if the rest is still to come. None at all if the workload itself made this version.
    pub elements: &'a [f32],
    /// Which one.
    pub version: Version,
}

/// Who computes.
pub enum Workload {
    /// A model of Ebb's.
    Native {
        /// Its gradients.
        engine: Box<dyn Engine>,
        /// Its updates.
        update: Update,
    },
    /// The user's own model.
    Torch(Box<Torch>),
}

/// A Python process and which replica it has.
pub struct Torch {
    job: TorchJob,
    held: Option<Version>,
    spec: JobSpec,
    steps_total: u64,
}

impl Torch {
    /// Python, with its model built.
    #[must_use]
    pub fn new(job: TorchJob, spec: JobSpec, steps_total: u64) -> Self {
        Self { job, held: None, spec, steps_total }
    }

    fn hold(&mut self, view: View<'_>) -> Result<(), ProgramError> {
        if self.held != Some(view.version) {
            // Whatever goes wrong, it no longer has what it had.
            self.held = None;
            self.job.hold(view.elements)?;
            self.held = Some(view.version);
        }
        Ok(())
    }

    /// Applies a mean gradient to the replica of `view`; the result is version `after`, and only the Python process has it.
    pub fn apply(&mut self, view: View<'_>, mean: &[f32], step: Step, after: Version) -> Result<(), ProgramError> {
        self.hold(view)?;
        self.held = None;
        let factor = learning_rate_factor(&self.spec.schedule, step, self.steps_total);
        match self.clip(mean) {
            Some(clipped) => self.job.apply(step, factor, &clipped)?,
            None => self.job.apply(step, factor, mean)?,
        }
        self.held = Some(after);
        Ok(())
    }

    /// The mean with its gradients shrunk to the norm that the spec allows; none if they are within it.
    fn clip(&self, mean: &[f32]) -> Option<Vec<f32>> {
        let bound = self.spec.gradient_clip_norm?;
        let gradients = self.job.lengths().mean;
        let norm = blocks::norm(&mean[..gradients]);
        (norm > bound).then(|| {
            let (mut clipped, factor) = (mean.to_vec(), (bound / norm) as f32);
            clipped[..gradients].iter_mut().for_each(|g| *g *= factor);
            clipped
        })
    }

    /// The replica that it has.
    pub fn read_replica(&mut self) -> Result<Vec<f32>, ProgramError> {
        Ok(self.job.read_replica()?)
    }
}

impl Workload {
    /// How long things are.
    #[must_use]
    pub fn lengths(&self) -> Lengths {
        match self {
            Self::Native { update, .. } => {
                let parameters = update.parameter_count();
                Lengths { gradient: parameters, mean: parameters, compute: parameters, replica: update.replica_len() }
            }
            Self::Torch(torch) => torch.job.lengths(),
        }
    }

    /// How long the Python process has been waited for; an engine of this process is not waited for.
    #[must_use]
    pub fn waited(&self) -> Duration {
        match self {
            Self::Native { .. } => Duration::ZERO,
            Self::Torch(torch) => torch.job.waited(),
        }
    }

    /// Where the time of the Python process' start went.
    #[must_use]
    pub fn start_times(&self) -> Option<StartTimes> {
        match self {
            Self::Native { .. } => None,
            Self::Torch(torch) => Some(torch.job.start_times()),
        }
    }

    /// The numeric class of this job's executors on a host of this class.
    #[must_use]
    pub fn class(&self, host: Digest) -> Digest {
        match self {
            Self::Native { .. } => host,
            Self::Torch(torch) => Digest::of(format!("{host} {}", torch.job.class()).as_bytes()),
        }
    }

    /// The replica that a fresh job begins with.
    pub fn initial_replica(&mut self) -> Result<Vec<f32>, ProgramError> {
        match self {
            Self::Native { engine, update } => Ok(update.initial_replica(engine.initial_parameters())),
            Self::Torch(torch) => {
                torch.held = None;
                Ok(torch.job.initial_replica()?)
            }
        }
    }

    /// From now on it computes with this replica; an engine is given its replica in every call.
    pub fn hold(&mut self, view: View<'_>) -> Result<(), ProgramError> {
        match self {
            Self::Native { .. } => Ok(()),
            Self::Torch(torch) => torch.hold(view),
        }
    }

    /// The summed gradient of some samples, written into all of `gradient`.
    pub fn gradient(
        &mut self,
        view: View<'_>,
        samples: &Samples,
        key: RandomKey,
        gradient: &mut [f32],
    ) -> Result<Sums, ProgramError> {
        match self {
            Self::Native { engine, update } => {
                Ok(engine.gradient(&view.elements[..update.parameter_count()], samples, key, gradient)?)
            }
            Self::Torch(torch) => {
                torch.hold(view)?;
                let sums = torch.job.gradient(key.rank, key.step, samples, gradient)?;
                Ok(Sums { weight: sums.weight, loss: sums.loss })
            }
        }
    }

    /// Evaluates some samples of a rank; `part` says which.
    pub fn evaluate(
        &mut self,
        view: View<'_>,
        samples: &Samples,
        rank: Rank,
        part: u64,
    ) -> Result<RankMetrics, ProgramError> {
        let (loss, correct, count) = match self {
            Self::Native { engine, update } => {
                let sums = engine.evaluate(&view.elements[..update.parameter_count()], samples)?;
                (sums.loss, sums.correct, sums.count)
            }
            Self::Torch(torch) => {
                torch.hold(view)?;
                let sums = torch.job.evaluate(rank, part, samples)?;
                (sums.loss, sums.correct, sums.count)
            }
        };
        Ok(RankMetrics { rank, loss, correct, count })
    }

    /// The finished model as a safetensors file, and the digest of its tensors.
    pub fn export(&mut self, view: View<'_>, metadata: &[(&str, &str)]) -> Result<(Vec<u8>, Digest), ProgramError> {
        match self {
            Self::Native { engine, update } => {
                let parameters = &view.elements[..update.parameter_count()];
                let file = workers_engine::export_model(parameters, engine.parameter_info(), metadata);
                Ok((file, storage::checkpoint::replica_digest(parameters)))
            }
            Self::Torch(torch) => {
                torch.hold(view)?;
                Ok(torch.job.model(metadata)?)
            }
        }
    }
}
