//! What a job computes, apart from who computes it: engine, update and data. Used alike by the elastic loop (`trainer.rs`) and the plain
//! one (`plain.rs`), which is why both give the same bits.

use crate::ahead::Ahead;
use crate::buffers::Buffer;
use crate::meanwhile::Listen;
use crate::side_by_side::{Asked, SideBySide};
use crate::store_wait::StorePatience;
use crate::workload::{Torch, View, Workload};
use bytes::Bytes;
use events_schema::control::TorchHost;
use events_schema::dataset::{DatasetInfo, Samples};
use events_schema::initial::InitialSource;
use events_schema::job::{Determinism, JobSpec, Length, ModelSpec};
use events_schema::orders::JobOrder;
use events_schema::stride::Stride;
use events_schema::torch::TorchSpec;
use events_schema::{Digest, JobId, Rank, Step};
use object_store::ObjectStore;
use object_store::ObjectStoreExt;
use shell::Chain;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::code::{PACKED_BYTES_MAX, UnpackError, unpack};
use storage::initial::FetchError;
use storage::order::steps_total;
use storage::retry::StoreFault;
use storage::{DataError, Loader, LoaderLimits, OpenStoreError};
use workers_engine::{BuildError, EngineError, RandomKey, Sums, Update};
use workers_session::RankMetrics;
use workers_torch::{Cache, ComputingProcess, Held, Initial, Lengths, OnPart, TorchError, TorchJob, TorchStart};

/// Updates whose data is read ahead of the model.
const UPDATES_AHEAD: u64 = 4;
/// Threads that read, decode and upload; the trainer's own thread computes.
const BACKGROUND_THREADS: usize = 1;

/// Why a job cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The store's address is wrong or it cannot be set up: stop.
    #[error("the object store cannot be opened")]
    Store(#[from] OpenStoreError),
    /// The data cannot be read. See [`ProgramError::is_broken`].
    #[error("the data cannot be read")]
    Data(#[from] DataError),
    /// The store refuses data of the first step, which nobody of this job has read before: the job is broken, and its user is to know at once. After a
    /// restart it was read before, so the right to is waited for as at any other step.
    #[error("the data cannot be read")]
    NeverRead(#[source] DataError),
    /// The model does not fit the dataset: the job is broken.
    #[error("the model cannot be built")]
    Build(#[from] BuildError),
    /// A gradient cannot be computed: the job is broken.
    #[error("the model cannot be computed")]
    Engine(#[from] EngineError),
    /// The user's code, or the process that runs it.
    #[error("the job's PyTorch model cannot be computed")]
    Torch(#[from] TorchError),
    /// What a whole program is to find on this server.
    #[error("the program cannot be given what its job asks for")]
    Provision(#[source] TorchError),
    /// The job's code is not in the store, or cannot be read now: stop.
    #[error("the job's code cannot be fetched")]
    Fetch(#[source] StoreFault),
    /// What the job begins with. See [`ProgramError::is_broken`].
    #[error("the job cannot begin with the model that it names")]
    Initial(#[from] FetchError),
    /// The job's code is no archive: the job is broken.
    #[error("the job's code cannot be used")]
    Unpack(#[from] UnpackError),
    /// A model of Ebb's without a dataset: the job is broken.
    #[error("the job names no dataset, and only a model in PyTorch can bring its own rows")]
    NoDataset,
    /// Stop: the agent is of an earlier build, and said nothing of Python.
    #[error("this server has nothing for models in PyTorch; restart its agent with this build")]
    NoTorch,
    /// The operating system gives no threads: stop.
    #[error("background threads cannot be started")]
    Threads(#[source] std::io::Error),
}

/// Of the folder for what executors share.
impl From<std::io::Error> for ProgramError {
    fn from(error: std::io::Error) -> Self {
        Self::Torch(error.into())
    }
}

impl ProgramError {
    /// Whether the job cannot go on whatever is done, on any executor. Otherwise only this executor has to stop.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        if let Some(fault) = self.store_fault() {
            return !fault.is_mendable() && !fault.is_of_the_asker();
        }
        match self {
            Self::Build(_) | Self::Engine(_) | Self::NoDataset | Self::NeverRead(_) => true,
            Self::Torch(error) | Self::Provision(error) => error.is_broken(),
            Self::Initial(error) => error.is_of_content(),
            Self::Unpack(error) => matches!(error, UnpackError::Content { .. } | UnpackError::TooLarge { .. }),
            Self::Data(DataError::Address(_)) | Self::Store(_) | Self::Threads(_) | Self::NoTorch | Self::Fetch(_) => {
                false
            }
            Self::Data(_) => true,
        }
    }

    /// The fault of the store that it is, if it is one.
    #[must_use]
    pub fn store_fault(&self) -> Option<&StoreFault> {
        match self {
            Self::Data(error) => error.store_fault(),
            Self::Fetch(fault) | Self::Initial(FetchError::Store(fault)) => Some(fault),
            _ => None,
        }
    }

    /// Whether it may be another answer of the store later.
    pub(crate) fn may_pass(&self) -> bool {
        self.store_fault().is_some_and(StoreFault::is_mendable)
    }

    /// For the job's user: what, where and what to do.
    #[must_use]
    pub fn reason(&self) -> String {
        let text = match self {
            // It ended by itself, and says so.
            Self::Torch(ended @ (TorchError::Ended { .. } | TorchError::Memory(_) | TorchError::Device(_))) => {
                ended.to_string()
            }
            _ => Chain(self).to_string(),
        };
        let advice = match self {
            Self::Data(_) | Self::NeverRead(_) => {
                "; restore the object or register the dataset anew, then submit the job again"
            }
            Self::Engine(EngineError::NotFinite) => "; a lower learning_rate or gradient_clip_norm may help",
            Self::Engine(_) => "; check the dataset's labels and shapes against its registration",
            Self::Build(_) | Self::NoDataset => "; change the model or the dataset in the spec",
            Self::Torch(TorchError::NotFinite(_)) => "; a lower learning rate or gradient_clip_norm may help",
            Self::Fetch(_) | Self::Unpack(_) | Self::Initial(_) => {
                "; submit the job again with `ebb submit`, which uploads what it names"
            }
            Self::Store(_) | Self::Threads(_) | Self::Torch(_) | Self::Provision(_) | Self::NoTorch => "",
        };
        text + advice
    }
}

/// A job ready to be computed.
pub struct Program {
    /// The job it works for.
    pub job: JobId,
    /// As submitted.
    pub spec: JobSpec,
    /// Steps of the whole job, by which learning rates go; [`Program::end`] may come before.
    pub steps_total: u64,
    /// Steps of one pass over the dataset.
    pub steps_per_epoch: u64,
    /// Rows of the training dataset.
    pub rows: u64,
    /// How often every replica of the job was lost before.
    pub restarts: u32,
    /// Ebb's object store.
    pub store: Arc<dyn ObjectStore>,
    /// Who computes.
    pub workload: Workload,
    /// None where the job's code brings its own rows.
    pub(crate) training: Option<Loader>,
    /// What computes several ranks at once, where there are cores for that.
    beside: Option<SideBySide>,
    /// How long the last gradient took whoever computed it, if it lay ready.
    took_beside: Option<Duration>,
    /// What makes its batches before they are asked for, where Python is given them.
    pub(crate) ahead: Option<Ahead>,
    /// For how long batches for Python were waited for so far.
    pub(crate) batches_waited: Duration,
    evaluation: Option<HeldOut>,
    /// Reads, decodes and uploads behind the trainer.
    pub runtime: Arc<tokio::runtime::Runtime>,
    /// How what it reads is waited for.
    pub patience: StorePatience,
}

/// What a job is evaluated on.
enum HeldOut {
    /// A registered dataset.
    Ebb(Loader),
    /// Rows that the job's code brings, in so many parts of each rank.
    Own(u64),
}

impl Program {
    /// Builds the model and opens the data. `torch` is what this server has for models in PyTorch; the store is waited for with `patience`,
    /// and it is said in `computing` which process a model in PyTorch is computed by.
    pub fn open(
        job: JobId,
        order: &JobOrder,
        store_url: &str,
        torch: Option<&TorchHost>,
        patience: StorePatience,
        computing: ComputingProcess,
    ) -> Result<Self, ProgramError> {
        let spec: JobSpec = (*order.spec).clone();
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder
            .worker_threads(BACKGROUND_THREADS)
            .thread_name("ebb-data")
            .enable_all()
            .build()
            .map_err(ProgramError::Threads)?;
        let store = storage::open_store(store_url)?;
        let limits = LoaderLimits::default();
        let dataset = order.dataset.as_ref();
        let steps_total = match (dataset, spec.length) {
            (Some(info), _) => steps_total(&spec, info.rows).map_err(DataError::from)?,
            (None, Length::Steps(steps)) => steps,
            (None, Length::Epochs(_)) => return Err(ProgramError::NoDataset),
        };
        let workload = match &spec.model {
            ModelSpec::Torch(model) => {
                let host = torch.ok_or(ProgramError::NoTorch)?;
                // As a whole each: between two times the lock of the cache is free, and who waits for another executor's fetch is said to wait too.
                let code = || fetch_code(&runtime, &*store, model, host);
                let code = Arc::new(patience.ask(code, ProgramError::may_pass)?);
                let initial = || fetch_initial(&runtime, &*store, model, host);
                let initial = patience.ask(initial, ProgramError::may_pass)?;
                let start = TorchStart {
                    spec: spec.clone(),
                    model: (**model).clone(),
                    host: host.clone(),
                    code,
                    initial,
                    dataset: dataset.map(|info| (info.sample.clone(), info.rows)),
                    held_out: order.evaluation.as_ref().map(|info| info.sample.clone()),
                    computing,
                };
                Workload::Torch(Box::new(Torch::new(TorchJob::start(start)?, spec.clone(), steps_total)))
            }
            _ => {
                let engine = workers_engine::build(&spec, &dataset.ok_or(ProgramError::NoDataset)?.sample)?;
                let update = Update::new(&spec, engine.parameter_info(), steps_total);
                Workload::Native { engine, update }
            }
        };
        let open = |info: &DatasetInfo| {
            let open = || runtime.block_on(Loader::open(Arc::clone(&store), &spec, info, limits));
            patience.ask(open, may_pass)
        };
        let open_evaluation = |info: &DatasetInfo| {
            let open = || runtime.block_on(Loader::open_for_evaluation(Arc::clone(&store), &spec, info, limits));
            patience.ask(open, may_pass)
        };
        let (training, steps_per_epoch, rows) = match (workload.own_rows(), dataset) {
            (Some(own), _) => (None, own.steps_per_epoch, own.rows),
            (None, Some(info)) => {
                let training = open(info)?;
                let steps_per_epoch = training.steps_per_epoch().max(1);
                (Some(training), steps_per_epoch, info.rows)
            }
            (None, None) => return Err(ProgramError::NoDataset),
        };
        let evaluation = match (&spec.evaluation, &order.evaluation) {
            (Some(_), Some(info)) => Some(HeldOut::Ebb(open_evaluation(info)?)),
            (Some(_), None) => workload.held_out_parts().map(HeldOut::Own),
            _ => None,
        };
        let ahead = training.clone().zip(workload.batches());
        let ahead = ahead.map(|(training, _)| Ahead::new(training, runtime.handle().clone()));
        Ok(Self {
            job,
            spec,
            steps_total,
            steps_per_epoch,
            rows,
            restarts: order.restarts,
            store,
            workload,
            training,
            beside: None,
            took_beside: None,
            ahead,
            batches_waited: Duration::ZERO,
            evaluation,
            runtime: Arc::new(runtime),
            patience,
        })
    }

    /// Computes the gradients of up to so many ranks at once, a thread each, if the model is one of Ebb's that computes.
    pub fn with_threads(mut self, threads: usize, order: &JobOrder) -> Result<Self, ProgramError> {
        let computes = !matches!(self.spec.model, ModelSpec::Torch(_) | ModelSpec::Synthetic { .. });
        if let Some(info) = order.dataset.as_ref().filter(|_| computes) {
            self.beside = SideBySide::new(&self.spec, &info.sample, threads)?;
        }
        Ok(self)
    }

    /// The step at which this job ends: its last, or where the stretch ends that it trains once more.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.spec.retrains.as_ref().map_or(self.steps_total, |retrains| retrains.end(self.steps_total))
    }

    /// Logical workers W.
    #[must_use]
    pub fn workers(&self) -> u16 {
        self.spec.workers.max
    }

    /// How long gradient and replica are.
    #[must_use]
    pub fn lengths(&self) -> Lengths {
        self.workload.lengths()
    }

    /// The summed gradient of the samples of some logical workers of an update, written into `gradient`: of one worker, whose rank it is, or where the job has
    /// `determinism: none` of all that are hosted, and of as many steps as it takes. `on_part` may be told of stretches that are final before that, and `listen` that samples are waited for.
    pub fn gradient(
        &mut self,
        rank: Rank,
        workers: &[Rank],
        (step, stride): (Step, Stride),
        view: View<'_>,
        gradient: &mut Buffer,
        (on_part, listen): (Option<OnPart<'_>>, Listen<'_>),
    ) -> Result<Sums, ProgramError> {
        self.took_beside = None;
        let key = RandomKey { seed: self.spec.seed, rank, step };
        // Without determinism it is one gradient of them all, and there is nothing beside it.
        if self.beside.is_some() && workers == [rank] && stride.is_one() {
            return self.gradient_beside_others(key, view, gradient, listen);
        }
        if matches!(self.workload, Workload::Torch(_)) {
            return self.gradient_in_python(workers, (step, stride), view, gradient, (on_part, listen));
        }
        let loader = self.training.as_ref().ok_or(ProgramError::NoDataset)?;
        let samples = self.samples_of(loader, workers, (step, stride), listen)?;
        let begun = Instant::now();
        // It sums over the samples, so nothing of it is final before the end.
        let Workload::Native { engine, update } = &mut self.workload else { return Err(ProgramError::NoDataset) };
        let sums = engine.gradient(&view.elements[..update.parameter_count()], &samples, key, gradient)?;
        if let ModelSpec::Synthetic { gradient_ms, .. } = self.spec.model {
            // As one that computes: nothing interrupts it, and its sums are there at the end.
            let batches = workers.len() as u64 * stride.steps();
            let whole = Duration::from_millis(u64::from(gradient_ms) * batches);
            std::thread::sleep(whole.saturating_sub(begun.elapsed()));
        }
        Ok(sums)
    }

    /// The gradient of one rank, which may be there already, and those of others meanwhile.
    fn gradient_beside_others(
        &mut self,
        key: RandomKey,
        view: View<'_>,
        gradient: &mut Buffer,
        listen: Listen<'_>,
    ) -> Result<Sums, ProgramError> {
        let ready = self.beside.as_mut().and_then(|beside| beside.take(view.version, key));
        if let Some((ready, took)) = ready {
            let (computed, sums) = ready?;
            self.took_beside = Some(took);
            *gradient = computed;
            return Ok(sums);
        }
        let loader = self.training.as_ref().ok_or(ProgramError::NoDataset)?;
        let samples = self.samples(loader, key.rank, key.step, listen)?;
        let others = self.beside.as_ref().map_or(&[][..], |beside| beside.beside(key.rank));
        // Whose samples cannot be read meets that when it is asked for.
        let read = |other: &Rank| Some((*other, self.samples(loader, *other, key.step, listen).ok()?));
        let others: Vec<(Rank, Samples)> = others.iter().filter_map(read).collect();
        match (&mut self.workload, &mut self.beside) {
            (Workload::Native { engine, update }, Some(beside)) => {
                let parameters = &view.elements[..update.parameter_count()];
                let (engine, version) = (&mut **engine, view.version);
                let asked = Asked { engine, parameters, version, key, samples: &samples, gradient };
                Ok(beside.gradient(asked, others)?)
            }
            _ => Err(ProgramError::NoDataset),
        }
    }

    /// The samples of these ranks and of so many steps, one after the other.
    pub(crate) fn samples_of(
        &self,
        loader: &Loader,
        workers: &[Rank],
        (step, stride): (Step, Stride),
        listen: Listen<'_>,
    ) -> Result<Samples, ProgramError> {
        let steps = (step.0..stride.end(step).0).map(Step);
        let of = |rank: Rank, step| self.samples(loader, rank, step, listen);
        let mut batches = steps.flat_map(|step| workers.iter().map(move |rank| of(*rank, step)));
        let first = batches.next().unwrap_or_else(|| of(Rank(0), step))?;
        batches.try_fold(first, |mut samples, batch| {
            samples.append(batch?);
            Ok(samples)
        })
    }

    fn samples(&self, loader: &Loader, rank: Rank, step: Step, listen: Listen<'_>) -> Result<Samples, ProgramError> {
        let is_refusal = |fault: &StoreFault| matches!(fault, StoreFault::Refused { .. });
        let begins = step == Step(0) && self.restarts == 0;
        let never_read = |error: &DataError| begins && error.store_fault().is_some_and(is_refusal);
        let read = || loader.samples(rank, step);
        self.patience
            .read(self.runtime.handle(), read, |error| may_pass(error) && !never_read(error), listen)
            .map_err(|error| if never_read(&error) { ProgramError::NeverRead(error) } else { error.into() })
    }

    /// How long the last gradient took whoever computed it beside another one, if it lay ready.
    #[must_use]
    pub fn took_beside(&self) -> Option<Duration> {
        self.took_beside
    }

    /// For how long samples to train on were waited for so far.
    #[must_use]
    pub fn data_waited(&self) -> Duration {
        // Where batches are made ahead, those who make them wait for the loader, and nobody for them.
        let loader = self.training.as_ref().filter(|_| self.ahead.is_none());
        let waited_us = loader.map_or(0, |loader| loader.metrics().waited_us);
        Duration::from_micros(waited_us) + self.batches_waited + self.workload.data_waited()
    }

    /// Whether the replica of this step is evaluated before it is trained on.
    #[must_use]
    pub fn evaluates_at(&self, step: Step) -> bool {
        let due = |every: u64| step.0 > 0 && (step.0.is_multiple_of(every.max(1)) || step.0 == self.steps_total);
        self.evaluation.is_some() && self.spec.evaluation.as_ref().is_some_and(|e| due(e.every_steps))
    }

    /// Parts into which one rank's share of the held-out set is cut; none when the job is not evaluated.
    #[must_use]
    pub fn evaluation_parts(&self) -> Option<u64> {
        self.evaluation.as_ref().map(HeldOut::parts)
    }

    /// Evaluates one part of one rank's share; `listen` is told that samples are waited for.
    pub fn evaluate_part(
        &mut self,
        rank: Rank,
        part: u64,
        view: View<'_>,
        listen: Listen<'_>,
    ) -> Result<RankMetrics, ProgramError> {
        let nothing = RankMetrics::none(rank);
        let samples = match self.evaluation.as_ref().filter(|held_out| part < held_out.parts()) {
            None => return Ok(nothing),
            Some(HeldOut::Own(_)) => None,
            Some(HeldOut::Ebb(loader)) => {
                let read = || loader.samples(rank, Step(part));
                Some(self.patience.read(self.runtime.handle(), read, may_pass, listen)?)
            }
        };
        if samples.as_ref().is_some_and(Samples::is_empty) {
            return Ok(nothing);
        }
        self.workload.evaluate(view, samples.as_ref(), rank, part)
    }

    /// Evaluates one rank's share of the held-out set.
    pub fn evaluate(&mut self, rank: Rank, view: View<'_>) -> Result<RankMetrics, ProgramError> {
        let mut metrics = RankMetrics::none(rank);
        for part in 0..self.evaluation_parts().unwrap_or(0) {
            metrics.add(&self.evaluate_part(rank, part, view, &|| {})?);
        }
        Ok(metrics)
    }

    /// Announces what will be read next, by updates of so many steps.
    pub fn prefetch(&mut self, ranks: &[Rank], (from, stride): (Step, Stride)) -> Result<(), ProgramError> {
        if let Some(beside) = &mut self.beside {
            beside.expect(ranks);
        }
        match &self.training {
            Some(training) => {
                training.prefetch(ranks, (from, stride), UPDATES_AHEAD);
                if let Some((ahead, memory)) = self.ahead.as_mut().zip(self.workload.batches()) {
                    let turns = match self.spec.determinism {
                        Determinism::D1 => ranks.iter().map(|rank| vec![*rank]).collect(),
                        Determinism::None => vec![ranks.to_vec()],
                    };
                    ahead.expect(turns, from, memory);
                }
            }
            None => self.workload.expect(ranks, (from, stride))?,
        }
        Ok(())
    }

    /// Reads what these ranks need around a step, for updates of so many, in the background, then calls `done` (also after a fault, which the step that needs the
    /// data will meet again and report).
    pub fn warm(
        &mut self,
        ranks: Vec<Rank>,
        (from, stride): (Step, Stride),
        done: impl FnOnce() + Send + 'static,
    ) -> Result<(), ProgramError> {
        let Some(training) = self.training.clone() else {
            self.workload.expect_first(&ranks, (from, stride))?;
            done();
            return Ok(());
        };
        training.prefetch(&ranks, (from, stride), UPDATES_AHEAD);
        self.runtime.spawn(async move {
            if let Err(error) = training.warm(&ranks, (from, stride), UPDATES_AHEAD).await {
                tracing::warn!(%error, "prefetch failed");
            }
            done();
        });
        Ok(())
    }

    /// The finished model as a safetensors file, and the digest of its tensors.
    pub fn export(&mut self, view: View<'_>, class: &Digest) -> Result<(Vec<u8>, Digest), ProgramError> {
        let (job, spec, class, steps) =
            (self.job.to_string(), self.spec.digest().to_string(), class.to_string(), self.end().to_string());
        let metadata = [
            ("format", "pt"),
            ("job", job.as_str()),
            ("spec_digest", &spec),
            ("numeric_class", &class),
            ("steps", &steps),
        ];
        self.workload.export(view, &metadata)
    }
}

impl HeldOut {
    fn parts(&self) -> u64 {
        match self {
            Self::Ebb(loader) => loader.steps_total(),
            Self::Own(parts) => *parts,
        }
    }
}

/// Whether data may be readable later.
fn may_pass(error: &DataError) -> bool {
    error.store_fault().is_some_and(StoreFault::is_mendable)
}

/// The folder of a job's code on this server; fetched and unpacked by the first executor that needs it.
fn fetch_code(
    runtime: &tokio::runtime::Runtime,
    store: &dyn ObjectStore,
    model: &TorchSpec,
    host: &TorchHost,
) -> Result<Held, ProgramError> {
    let cache = Cache::open(Path::new(&host.folder), host.cache_mib)?;
    cache.hold(&format!("code-{}", model.code), |folder| {
        let packed = runtime.block_on(fetch_packed(store, model.code))?;
        Ok(unpack(&packed, model.code, folder)?)
    })
}

/// Packed code as it is in the store.
pub(crate) async fn fetch_packed(store: &dyn ObjectStore, code: Digest) -> Result<Bytes, ProgramError> {
    let key = storage::keys::code(&code);
    let failed = |error| ProgramError::Fetch(StoreFault::of(&key, error));
    let object = store.get(&key.as_str().into()).await.map_err(failed)?;
    // Whoever can write to the store can put anything there; memory is taken for what the gateway lets in.
    if object.meta.size > PACKED_BYTES_MAX as u64 {
        return Err(UnpackError::TooLarge { bytes: object.meta.size }.into());
    }
    object.bytes().await.map_err(failed)
}

/// What a job begins with, on this server; fetched by the first executor that needs it.
fn fetch_initial(
    runtime: &tokio::runtime::Runtime,
    store: &dyn ObjectStore,
    model: &TorchSpec,
    host: &TorchHost,
) -> Result<Option<Initial>, ProgramError> {
    let (key, digest, name) = match model.initial.as_ref().map(|initial| &initial.source) {
        None => return Ok(None),
        Some(InitialSource::Path(path)) => return Ok(Some(Initial::OnServer(path.into()))),
        Some(InitialSource::Upload(digest)) => (storage::keys::initial(digest), Some(*digest), digest.to_string()),
        Some(InitialSource::Job(job)) => (storage::keys::model(job), None, job.to_string()),
    };
    let cache = Cache::open(Path::new(&host.folder), host.cache_mib)?;
    let fetched = cache.hold(&format!("initial-{name}"), |folder| {
        runtime.block_on(storage::initial::fetch(store, &key, digest, folder)).map_err(ProgramError::from)
    });
    Ok(Some(Initial::Fetched(Arc::new(fetched?))))
}
