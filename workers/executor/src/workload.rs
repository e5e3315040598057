//! Who computes a job's gradients and updates: an engine of this process, or a Python process beside it. Everything else of an executor is
//! the same for both, and knows only how long things are.
//!
//! An engine is given the replica in every call and changes it in place. The Python process has one of its own, of some [`Version`]: it is
//! given another only when it has to compute with that, and what it made of an update is read back only when somebody asks
//! (`replica.rs`).
//!
//! Next on a job's path: `workers/engine/src/lib.rs`, or `workers/torch/src/lib.rs` for a model in PyTorch.

use crate::buffers::{Buffer, Pool};
use crate::mean::{Mean, divide};
use crate::program::ProgramError;
use events_schema::dataset::Samples;
use events_schema::job::JobSpec;
use events_schema::stride::Stride;
use events_schema::{Digest, Rank, Step};
use std::sync::Arc;
use std::time::Duration;
use workers_engine::{Engine, Sums, Update, blocks, learning_rate_factor};
use workers_session::RankMetrics;
use workers_torch::{
    Addend, Batch, BatchMemory, DIRECT_PLACE, Following, Lengths, OnPart, OwnRows, RateFactors, ReplicaReader,
    StartTimes, TorchError, TorchEvaluation, TorchJob,
};

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

/// The rows to compute with.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// In this process' memory.
    Read(&'a Samples),
    /// In the Python process' memory, and what is computed with next, if it lies there too.
    Placed(Batch, Option<Following>),
    /// The job's code brings them.
    Own,
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
    /// Of buffers that it can map.
    pool: Pool,
    spec: JobSpec,
    steps_total: u64,
    /// The ranks whose own rows were said to be next, the step, and the one after the update from there.
    expected: Option<(Vec<Rank>, Step, Step)>,
    /// For how long the code's own rows were waited for so far.
    data_waited: Duration,
}

impl Torch {
    /// Python, with its model built.
    #[must_use]
    pub fn new(job: TorchJob, spec: JobSpec, steps_total: u64) -> Self {
        let pool = Pool::mapped(job.lengths().gradient);
        Self { job, held: None, pool, spec, steps_total, expected: None, data_waited: Duration::ZERO }
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

    /// The code's own rows of these ranks are read next, from this step on, for updates of so many. Said again only where it is not what follows.
    fn expect(&mut self, ranks: &[Rank], (step, stride): (Step, Stride)) -> Result<(), ProgramError> {
        let follows = |(before, from, to): &(Vec<Rank>, Step, Step)| before == ranks && [*from, *to].contains(&step);
        if self.job.own_rows().is_some() && !self.expected.as_ref().is_some_and(follows) {
            self.job.expect(ranks, step)?;
        }
        self.expected = Some((ranks.to_vec(), step, stride.end(step)));
        Ok(())
    }

    /// The gradient of the rows of these ranks in a step of an update, with the replica of `view`, into a buffer that it can map.
    pub fn gradient(
        &mut self,
        view: View<'_>,
        (ranks, addend): (&[Rank], Addend),
        rows: Rows<'_>,
        gradient: &mut Buffer,
        on_part: Option<OnPart<'_>>,
    ) -> Result<Sums, ProgramError> {
        self.hold(view)?;
        let (batch, following) = match rows {
            Rows::Read(samples) => (self.job.batches().write(DIRECT_PLACE, samples)?, None),
            Rows::Placed(batch, following) => (batch, following),
            Rows::Own => (Batch::OWN, None),
        };
        let segment = gradient.segment_mut().ok_or_else(no_memory)?;
        let sums = self.job.gradient(ranks, addend, batch, following, segment, on_part)?;
        self.data_waited += sums.data_wait;
        Ok(Sums { weight: sums.weight, loss: sums.loss })
    }

    /// Applies a mean gradient of so many steps to the replica of `view`; the result is version `after`, and only the Python process has it. Gives the mean
    /// back, which must stay as it is until the next call.
    pub fn apply(
        &mut self,
        view: View<'_>,
        mut mean: Arc<Buffer>,
        (step, stride): (Step, Stride),
        after: Version,
    ) -> Result<Arc<Buffer>, ProgramError> {
        self.hold(view)?;
        self.held = None;
        if let Some(mut shared) = self.instead_of(&mean)? {
            shared.copy_from_slice(&mean);
            mean = Arc::new(shared);
        }
        let schedule = learning_rate_factor(&self.spec.schedule, step, self.steps_total);
        let rule = self.spec.batch_range.map_or(1.0, |range| range.learning_rate_rule.factor(stride));
        self.job.apply((step, stride), RateFactors { schedule, rule }, mean.segment().ok_or_else(no_memory)?)?;
        self.held = Some(after);
        Ok(mean)
    }

    /// A buffer that it can map, where this is none.
    pub fn instead_of(&self, buffer: &Buffer) -> Result<Option<Buffer>, ProgramError> {
        if buffer.segment().is_some() {
            return Ok(None);
        }
        let shared = self.pool.take();
        if shared.segment().is_some() { Ok(Some(shared)) } else { Err(no_memory().into()) }
    }

    /// The replica that it has, in `room` if that is as long.
    pub fn read_replica(&mut self, room: Option<Vec<f32>>) -> Result<Vec<f32>, ProgramError> {
        Ok(self.job.read_replica(room)?)
    }

    /// The same, for who reads it beside the next gradient, and lets go of it soon.
    pub fn replica_reader(&mut self) -> Result<ReplicaReader, ProgramError> {
        Ok(self.job.replica_reader()?)
    }

    /// Waits until nobody reads it.
    pub fn release_replica(&mut self) {
        self.job.release_replica();
    }
}

fn no_memory() -> TorchError {
    TorchError::Memory("the system gives none that this executor and its Python process can share".to_owned())
}

/// The mean of a sum: divided by the summed weight, where there is one to divide by. Then shrunk
/// to the norm `clip`, if it is longer. Block by block, so that a vector larger than the caches is read once.
fn make_mean(sum: &mut [f32], weight: Option<f64>, clip: Option<f64>) {
    if weight.is_none() && clip.is_none() {
        return;
    }
    let mut squares = Vec::with_capacity(if clip.is_some() { sum.len().div_ceil(blocks::BLOCK_LEN) } else { 0 });
    for block in sum.chunks_mut(blocks::BLOCK_LEN) {
        if let Some(weight) = weight {
            divide(block, weight as f32);
        }
        if clip.is_some() {
            squares.push(blocks::block_squares(block));
        }
    }
    let norm = blocks::norm_of(&squares);
    if let Some(bound) = clip.filter(|bound| norm > *bound) {
        let factor = (bound / norm) as f32;
        sum.iter_mut().for_each(|g| *g *= factor);
    }
}

impl Workload {
    /// Where the buffers of its gradients come from.
    #[must_use]
    pub fn pool(&self) -> Pool {
        match self {
            Self::Native { update, .. } => Pool::mapped(update.parameter_count()),
            Self::Torch(torch) => torch.pool.clone(),
        }
    }

    /// Has the Python process map the buffers that are free, of which it will be given some in a step; an engine of this process has them.
    pub fn map_free(&mut self) -> Result<(), ProgramError> {
        if let Self::Torch(torch) = self {
            for buffer in torch.pool.take_free() {
                buffer.segment().map_or(Ok(()), |segment| torch.job.map(segment))?;
            }
        }
        Ok(())
    }

    /// Whether it reads a gradient in one vector only: a process that computes maps this executor's memory, and no other's.
    #[must_use]
    pub fn reads_one_vector(&self) -> bool {
        matches!(self, Self::Torch(_))
    }

    /// Makes a sum over all ranks the mean that an update is given and that others are given who have to apply it: divided by the weight and, where
    /// the update does not do so itself, clipped. What only travels along in it stays.
    pub fn make_mean(&self, sum: &mut Mean, weight: f64) {
        match self {
            Self::Native { .. } => sum.divide_by(weight),
            Self::Torch(torch) => {
                let weight = (!torch.job.gives_means()).then_some(weight);
                if let Some(mean) = sum.one_mut().and_then(|one| one.get_mut(..torch.job.lengths().mean)) {
                    make_mean(mean, weight, torch.spec.gradient_clip_norm);
                }
            }
        }
    }

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

    /// What the bits of the job's own code depend on here; none of a model of Ebb's, of which the host's class says all.
    #[must_use]
    pub fn class_of_code(&self) -> Option<Digest> {
        match self {
            Self::Native { .. } => None,
            Self::Torch(torch) => Some(Digest::of(torch.job.class().as_bytes())),
        }
    }

    /// Where a Python process finds the rows of Ebb's datasets.
    #[must_use]
    pub fn batches(&self) -> Option<&BatchMemory> {
        match self {
            Self::Native { .. } => None,
            Self::Torch(torch) => Some(torch.job.batches()),
        }
    }

    /// The rows that the job's code brings to train on; none where it is given samples.
    #[must_use]
    pub fn own_rows(&self) -> Option<OwnRows> {
        match self {
            Self::Native { .. } => None,
            Self::Torch(torch) => torch.job.own_rows(),
        }
    }

    /// Parts into which one rank's share of the held-out rows is cut that the job's code brings; none where it is given samples.
    #[must_use]
    pub fn held_out_parts(&self) -> Option<u64> {
        match self {
            Self::Native { .. } => None,
            Self::Torch(torch) => torch.job.held_out_parts(),
        }
    }

    /// For how long rows that the job's code brings were waited for so far.
    #[must_use]
    pub fn data_waited(&self) -> Duration {
        match self {
            Self::Native { .. } => Duration::ZERO,
            Self::Torch(torch) => torch.data_waited,
        }
    }

    /// Announces the ranks whose gradients come next, from this step on, for updates of so many.
    pub fn expect(&mut self, ranks: &[Rank], from: (Step, Stride)) -> Result<(), ProgramError> {
        match self {
            Self::Native { .. } => Ok(()),
            Self::Torch(torch) => torch.expect(ranks, from),
        }
    }

    /// The same for an executor that has computed nothing yet; who has goes on with what it reads.
    pub fn expect_first(&mut self, ranks: &[Rank], from: (Step, Stride)) -> Result<(), ProgramError> {
        match self {
            Self::Torch(torch) if torch.expected.is_none() => torch.expect(ranks, from),
            _ => Ok(()),
        }
    }

    /// The replica that a fresh job begins with.
    pub fn initial_replica(&mut self) -> Result<Vec<f32>, ProgramError> {
        match self {
            Self::Native { engine, update, .. } => Ok(update.initial_replica(engine.initial_parameters())),
            Self::Torch(torch) => {
                (torch.held, torch.expected) = (None, None);
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

    /// Evaluates some samples of a rank; `part` says which. Without samples, held-out rows that the job's code brings.
    pub fn evaluate(
        &mut self,
        view: View<'_>,
        samples: Option<&Samples>,
        rank: Rank,
        part: u64,
    ) -> Result<RankMetrics, ProgramError> {
        let found = match self {
            Self::Native { engine, update, .. } => {
                let samples = samples.ok_or(ProgramError::NoDataset)?;
                let sums = engine.evaluate(&view.elements[..update.parameter_count()], samples)?;
                RankMetrics { loss: sums.loss, correct: sums.correct, count: sums.count, ..RankMetrics::none(rank) }
            }
            Self::Torch(torch) => {
                torch.hold(view)?;
                let TorchEvaluation { count, named } = torch.job.evaluate(rank, part, samples)?;
                let sum = |name: &str| named.get(name).copied().unwrap_or(0.0);
                // A mean times the rows is not quite whole, and nobody can be right more often than asked.
                let correct = (sum("correct").round().max(0.0) as u64).min(count);
                RankMetrics { rank, loss: sum("loss"), correct, count, named }
            }
        };
        Ok(found)
    }

    /// The finished model as a safetensors file, and the digest of its tensors.
    pub fn export(&mut self, view: View<'_>, metadata: &[(&str, &str)]) -> Result<(Vec<u8>, Digest), ProgramError> {
        match self {
            Self::Native { engine, update, .. } => {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept for others and sent to them is the clipped mean, so it is defined here: by the sum alone, whatever the blocks.
    #[test]
    fn a_mean_is_divided_then_clipped() {
        let sum: Vec<f32> = (0..3 * blocks::BLOCK_LEN + 5).map(|i| (i % 97) as f32 - 40.0).collect();
        let divided: Vec<f32> = sum.iter().map(|g| g / 3.0).collect();
        let norm = blocks::norm(&divided);
        for clip in [None, Some(norm * 2.0), Some(norm / 2.0)] {
            let mut mean = sum.clone();
            make_mean(&mut mean, Some(3.0), clip);
            let factor = clip.filter(|clip| *clip < norm).map(|clip| (clip / norm) as f32);
            let expected: Vec<f32> = divided.iter().map(|g| factor.map_or(*g, |factor| g * factor)).collect();
            assert_eq!(mean, expected, "{clip:?}");
            let mut clipped = divided.clone();
            make_mean(&mut clipped, None, clip);
            assert_eq!(clipped, expected, "{clip:?}, divided before");
        }
        let mut nothing = sum;
        make_mean(&mut nothing, Some(0.0), Some(1.0));
        assert!(nothing.iter().all(|g| *g == 0.0));
    }
}
