//! The child as an executor uses it: builds the user's model, computes gradients, applies updates, gives the replica and the finished model.
//!
//! The child ends with its executor: it is in its process group, which the agent kills as a whole, and the kernel kills it when the executor is
//! gone (`child.rs`).

use crate::answers::{float, parse, ranges};
use crate::batches::{Addend, Batch, BatchMemory, DIRECT_PLACE, Following, PLACES, hosted_max, place_bytes};
use crate::cache::Held;
use crate::checked::Checked;
use crate::child::{Launch, Python};
use crate::computing::ComputingProcess;
use crate::environment::Environment;
use crate::isolation::IsolationError;
use crate::layout::{Built, Lengths, OwnRows, StartTimes};
use crate::own_folder::OwnFolder;
use crate::replica::{ReplicaMemory, ReplicaReader};
use crate::secrets::SecretError;
use crate::spawn::never_starts;
use events_schema::control::TorchHost;
use events_schema::dataset::{SampleShape, Samples};
use events_schema::job::{Determinism, JobSpec};
use events_schema::stride::Stride;
use events_schema::torch::{TorchDevice, TorchSpec};
use events_schema::{Digest, Rank, Step};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use workers_memory::Segment;

/// Why something of a PyTorch job cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum TorchError {
    /// Refuse: the user's code has to change; the text says what.
    #[error("{0}")]
    Refused(String),
    /// Refuse: the user's code raised; what it said last.
    #[error("the job's code failed: {what}\n{traceback}")]
    Code {
        /// The exception.
        what: String,
        /// The end of its traceback.
        traceback: String,
    },
    /// Refuse: the loss is no longer a number, so every later step would be noise.
    #[error("the loss is not finite: {0}")]
    NotFinite(String),
    /// Stop this executor: there is not enough memory here.
    #[error("there is not enough memory: {0}")]
    Memory(String),
    /// Stop this executor: the device failed, or its driver did; on another it may go well.
    #[error("{0}")]
    Device(String),
    /// Stop this executor: Python, or what builds its environment, ended.
    #[error("{why}")]
    Ended {
        /// How, in a sentence.
        why: String,
        /// Whether the job's code did it, which may well do it again, and nobody from outside.
        by_code: bool,
    },
    /// Refuse: what the job asks for cannot be installed here.
    #[error("the environment of the job's requirements cannot be built: {what}\n{last_lines}")]
    Environment {
        /// Which program, and how it ended.
        what: String,
        /// The end of what it said.
        last_lines: String,
    },
    /// Refuse: its operator has to act.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Refuse if [`never_starts`]: another server may have it, but that would be chance, and its user wants to know. Else stop this executor.
    #[error("`{python}` cannot be started; say with `python:` or on the server with --python which one has PyTorch")]
    Start {
        /// The program.
        python: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Stop this executor: the folder of unpacked things, or memory shared with the child.
    #[error("what the Python process needs cannot be prepared")]
    Io(#[from] io::Error),
    /// See there.
    #[error("the files of the server cannot be kept from the job's code")]
    Isolation(#[from] IsolationError),
    /// Stop this executor: it said what its reader does not know.
    #[error("the Python process cannot be understood: {0}")]
    Protocol(String),
}

impl TorchError {
    /// Whether the job cannot go on whatever is done, on any executor.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        matches!(
            self,
            Self::Refused(_)
                | Self::Code { .. }
                | Self::NotFinite(_)
                | Self::Environment { .. }
                | Self::Secret(_)
                | Self::Isolation(IsolationError::Planted(_))
        ) || matches!(self, Self::Start { source, .. } if never_starts(source))
    }

    /// Whether the job's code ended, other than by an exception that would break the job: again at the same place, it is the code and no chance.
    #[must_use]
    pub fn is_end_of_code(&self) -> bool {
        matches!(self, Self::Ended { by_code: true, .. } | Self::Memory(_))
    }
}

/// Tensors to begin with.
#[derive(Debug, Clone)]
pub enum Initial {
    /// A file or folder that the server has.
    OnServer(PathBuf),
    /// A folder with one file, fetched.
    Fetched(Arc<Held>),
}

impl Initial {
    fn path(&self) -> &Path {
        match self {
            Self::OnServer(path) => path,
            Self::Fetched(held) => held.path(),
        }
    }
}

/// What a child is started with.
#[derive(Debug, Clone)]
pub struct TorchStart {
    /// As submitted.
    pub spec: JobSpec,
    /// The part of it that is about this.
    pub model: TorchSpec,
    /// What the server has for it.
    pub host: TorchHost,
    /// Its unpacked code.
    pub code: Arc<Held>,
    /// What it begins with, if its spec names any.
    pub initial: Option<Initial>,
    /// The dataset that it names, if it does: what a row holds, and how many there are.
    pub dataset: Option<(SampleShape, u64)>,
    /// What a row of the dataset holds that its evaluation names.
    pub held_out: Option<SampleShape>,
    /// Where it is said which process computes.
    pub computing: ComputingProcess,
}

/// The child, and what it holds.
#[derive(Debug)]
pub struct TorchJob {
    start: TorchStart,
    python: Python,
    _environment: Environment,
    /// Where the process works; goes after it.
    _own: Option<OwnFolder>,
    replica: ReplicaMemory,
    batches: BatchMemory,
    /// Numbers of the segments that the child has mapped.
    mapped: BTreeSet<u64>,
    /// An update whose answer has not been read.
    updating: bool,
    lengths: Lengths,
    parameter_count: u64,
    own_rows: Option<OwnRows>,
    held_out_parts: Option<u64>,
    class: String,
    times: StartTimes,
    /// How long its answers were waited for.
    waited: Duration,
    /// Whether the child's replica is still the one it began with.
    initial: bool,
}

/// Who is told that a stretch of a gradient is final while the rest is computed. Of the segment it may read only that.
pub type OnPart<'a> = &'a mut dyn FnMut(Range<usize>, &Segment) -> io::Result<()>;

/// Sums over some samples.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TorchSums {
    /// Summed weight.
    pub weight: f64,
    /// Summed loss.
    pub loss: f64,
    /// For how long the code's own rows were waited for.
    pub data_wait: Duration,
}

/// What learning rates are multiplied by in an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateFactors {
    /// Those of the job file's optimizer: the schedule at the first of its steps.
    pub schedule: f64,
    /// All of them, where it takes several steps, and in it alone: the rule for batches.
    pub rule: f64,
}

/// What an evaluation was summed over.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TorchEvaluation {
    /// What the sums are divided by.
    pub count: u64,
    /// Sums by the names that the code gave them.
    pub named: BTreeMap<String, f64>,
}

/// Nothing can be asked. What is computed after an update that failed means nothing, but the answer comes all the same.
struct Unasked {
    failed: TorchError,
    answered: bool,
}

impl TorchJob {
    /// Starts Python and has it build the model. Takes as long as building does, and importing PyTorch where no process has it ready; the first
    /// time on a server also as long as installing what the job requires.
    pub fn start(start: TorchStart) -> Result<Self, TorchError> {
        let (launch, environment) = start.prepare()?;
        let checked = Checked::of(Path::new(&start.host.folder), &start.program(&launch));
        let known = checked.class();
        let (mut python, mut built, mut descriptors) = begin(&start, &launch, known.is_none())?;
        // As text: of what was known there is nothing else.
        let class = built.class.to_string();
        if known.as_deref().is_some_and(|known| known != class) {
            // Something under it is another now, so what was found then says nothing.
            (python, built, descriptors) = begin(&start, &launch, true)?;
        }
        checked.note(known.as_deref(), &built.class.to_string());
        let lengths =
            built.lengths().ok_or_else(|| TorchError::Protocol("lengths contradict each other".to_owned()))?;
        let [replica, batch]: [_; 2] =
            descriptors.try_into().map_err(|_| TorchError::Protocol("two descriptors are needed".to_owned()))?;
        let batches = BatchMemory::new(File::from(batch), start.place_bytes());
        let (own_rows, held_out_parts) = (built.own_rows(), built.held_out_parts);
        let (parameter_count, class, times) = (built.parameter_count, built.class.to_string(), built.times);
        tracing::info!(import = ?times.import(), build = ?times.build(), check = ?times.check(), "the model is built");
        Ok(Self {
            start,
            python,
            _environment: environment,
            _own: launch.own,
            replica: ReplicaMemory::new(File::from(replica), lengths.replica),
            batches,
            mapped: BTreeSet::new(),
            updating: false,
            lengths,
            parameter_count,
            own_rows,
            held_out_parts,
            class,
            times,
            waited: Duration::ZERO,
            initial: true,
        })
    }

    /// How long things are.
    #[must_use]
    pub fn lengths(&self) -> Lengths {
        self.lengths
    }

    /// Elements of the trained parameters.
    #[must_use]
    pub fn parameter_count(&self) -> u64 {
        self.parameter_count
    }

    /// The rows that the code itself brings to train on; none if it is given samples.
    #[must_use]
    pub fn own_rows(&self) -> Option<OwnRows> {
        self.own_rows
    }

    /// Whether its gradients are means already: of a job's only logical worker there is nothing to add to one, so it is divided as it is copied out of
    /// autograd, which saves a pass. Not on a device, whose quotients are not the processor's, nor where several batches may make one gradient.
    #[must_use]
    pub fn gives_means(&self) -> bool {
        let TorchStart { spec, model, .. } = &self.start;
        spec.workers.max == 1 && spec.determinism == Determinism::D1 && model.device == TorchDevice::Cpu
    }

    /// Parts into which one rank's share of the code's own held-out rows is cut; none if it is given samples, or not evaluated.
    #[must_use]
    pub fn held_out_parts(&self) -> Option<u64> {
        self.held_out_parts
    }

    /// Says which ranks' rows of the code's own are read next, from this step on.
    pub fn expect(&mut self, ranks: &[Rank], step: Step) -> Result<(), TorchError> {
        let mut payload = step.0.to_le_bytes().to_vec();
        payload.extend(ranks.iter().flat_map(|rank| rank.0.to_le_bytes()));
        self.ask(b'N', &payload).map(drop)
    }

    /// Where the time of its start went.
    #[must_use]
    pub fn start_times(&self) -> StartTimes {
        self.times
    }

    /// How long its answers were waited for since it was started; the rest of a step is the executor's own.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// What its bits depend on beside the job: versions, device, flags, and the gradients of a fixed batch.
    #[must_use]
    pub fn class(&self) -> &str {
        &self.class
    }

    /// The replica that a fresh job begins with; builds the model once more if it has been trained since.
    pub fn initial_replica(&mut self) -> Result<Vec<f32>, TorchError> {
        if !self.initial {
            *self = Self::start(self.start.clone())?;
        }
        self.read_replica(None)
    }

    /// The child's replica, in `room` if that is as long.
    pub fn read_replica(&mut self, room: Option<Vec<f32>>) -> Result<Vec<f32>, TorchError> {
        Ok(self.replica_reader()?.read_all(room)?)
    }

    /// The same, for who reads it beside the next gradient: what would change it waits for them. That of a device is copied to where it is read.
    pub fn replica_reader(&mut self) -> Result<ReplicaReader, TorchError> {
        self.replica.release();
        self.ask(b'S', &[])?;
        Ok(self.replica.reader())
    }

    /// Waits until nobody reads the replica, as an update does.
    pub fn release_replica(&mut self) {
        self.replica.release();
    }

    /// From now on it computes with this replica; if it is only the beginning that a gradient needs, it cannot be updated yet.
    pub fn hold(&mut self, replica: &[f32]) -> Result<(), TorchError> {
        // An update may still be under way.
        self.settle()?;
        self.initial = false;
        let part = replica.len() < self.lengths.replica;
        let elements = replica.get(..if part { self.lengths.compute } else { self.lengths.replica });
        let elements = elements.ok_or_else(|| TorchError::Protocol("too short a replica".to_owned()))?;
        self.replica.write(elements)?;
        self.ask(b'H', &[u8::from(part)]).map(drop)
    }

    /// Where samples are put before they are asked for.
    #[must_use]
    pub fn batches(&self) -> &BatchMemory {
        &self.batches
    }

    /// The summed gradient of the rows of some ranks in a step, one after the other, with what travels in its sum: of one, or without determinism of all that
    /// are hosted. Of an update that takes several steps, these are asked for in their order, into the same memory, and each is added to those before it. With the last, all
    /// of `gradient` is overwritten, which is as long as [`Lengths::gradient`]. Who is to be told of stretches as backward finishes them is told of none where they
    /// are few, or lie on a device first, and of none twice. While it is computed, a `collate()` of the code is called for what is `following`.
    /// Where it [gives means](Self::gives_means), the gradient is divided by its weight.
    pub fn gradient(
        &mut self,
        ranks: &[Rank],
        Addend { step, first: begins, last: ends }: Addend,
        batch: Batch,
        following: Option<Following>,
        gradient: &mut Segment,
        on_part: Option<OnPart<'_>>,
    ) -> Result<TorchSums, TorchError> {
        let (first, others) =
            ranks.split_first().ok_or_else(|| TorchError::Protocol("a gradient of nobody".to_owned()))?;
        let count = u16::try_from(others.len()).map_err(|_| TorchError::Protocol("too many ranks".to_owned()))?;
        let mean = self.gives_means();
        let place = self.place(gradient)?;
        let turn = |rank: Rank, step: Step, batch: Batch| {
            let [step, start] = [step.0, batch.start].map(u64::to_le_bytes);
            [&rank.0.to_le_bytes()[..], &step, &start, &batch.rows.to_le_bytes()].concat()
        };
        let mut payload = [&turn(*first, step, batch)[..], &place.to_le_bytes()].concat();
        payload.extend([on_part.is_some(), mean, begins, ends].map(u8::from));
        payload.extend(count.to_le_bytes());
        payload.extend(others.iter().flat_map(|rank| rank.0.to_le_bytes()));
        payload.extend(batch.number.to_le_bytes());
        if let Some(Following { rank, step, batch }) = following {
            payload.extend(turn(rank, step, batch));
            payload.extend(batch.number.to_le_bytes());
        }
        let answer = match on_part {
            None => self.ask(b'G', &payload)?,
            Some(on_part) => {
                if let Err(Unasked { failed, answered }) = self.say_and_settle(b'G', &payload) {
                    if answered {
                        let _ = self.parts_and_answer(gradient, &mut |_, _| Ok(()));
                    }
                    return Err(failed);
                }
                self.parts_and_answer(gradient, on_part)?
            }
        };
        let data_wait = Duration::from_micros(float(&answer, 16)?.to_bits());
        Ok(TorchSums { weight: float(&answer, 0)?, loss: float(&answer, 8)?, data_wait })
    }

    /// Tells of the stretches that are final before the whole is; then the answer.
    fn parts_and_answer(&mut self, gradient: &Segment, on_part: OnPart<'_>) -> Result<Vec<u8>, TorchError> {
        loop {
            let asked = Instant::now();
            let heard = self.python.hear_before(b'r', b'G');
            self.waited += asked.elapsed();
            let (before, payload) = heard?;
            if !before {
                return Ok(payload);
            }
            for part in ranges(&payload, self.lengths.mean)? {
                on_part(part, gradient)?;
            }
        }
    }

    /// Begins to apply the mean gradient of a step and of those after it that are taken at once, as it is after clipping, with these factors on learning rates. The
    /// child goes on by itself: whether it succeeded is heard with the next answer, and until then `mean` must stay as it is.
    pub fn apply(
        &mut self,
        (step, stride): (Step, Stride),
        rates: RateFactors,
        mean: &Segment,
    ) -> Result<(), TorchError> {
        self.initial = false;
        let place = self.place(mean)?;
        let steps = u16::try_from(stride.steps()).map_err(|_| TorchError::Protocol("too many steps".to_owned()))?;
        let [schedule, rule] = [rates.schedule, rates.rule].map(f64::to_le_bytes);
        let payload =
            [&step.0.to_le_bytes()[..], &schedule, &place.to_le_bytes(), &steps.to_le_bytes(), &rule].concat();
        self.settle()?;
        self.replica.release();
        self.python.say(b'A', &payload, &[])?;
        self.updating = true;
        Ok(())
    }

    /// Has the child map a segment, so that it need not when it is given it first: that takes 30 ms for 218 MB.
    pub fn map(&mut self, segment: &Segment) -> Result<(), TorchError> {
        self.place(segment).map(drop)
    }

    /// The child's name for a segment; it is given the segment if it has not mapped it yet.
    fn place(&mut self, segment: &Segment) -> Result<u64, TorchError> {
        let number = segment.number();
        if !self.mapped.contains(&number) {
            if segment.len() != self.lengths.gradient {
                return Err(TorchError::Protocol(format!("a segment of {} elements is no gradient", segment.len())));
            }
            self.settle()?;
            self.python.say(b'P', &number.to_le_bytes(), &[segment.as_fd()])?;
            self.answer(b'P')?;
            self.mapped.insert(number);
        }
        Ok(number)
    }

    /// Evaluates some samples; without any, a part of the code's own held-out rows.
    pub fn evaluate(
        &mut self,
        rank: Rank,
        part: u64,
        samples: Option<&Samples>,
    ) -> Result<TorchEvaluation, TorchError> {
        #[derive(Deserialize)]
        struct Answer {
            sums: BTreeMap<String, String>,
            count: u64,
        }
        let batch = samples.map(|samples| self.batches.write(DIRECT_PLACE, samples)).transpose()?;
        let rows = batch.map_or(0, |batch| batch.rows);
        let payload = [&rank.0.to_le_bytes()[..], &part.to_le_bytes(), &rows.to_le_bytes()].concat();
        let Answer { sums, count } = parse(&self.ask(b'E', &payload)?)?;
        let float = |(name, bits): (String, String)| match u64::from_str_radix(&bits, 16) {
            Ok(bits) => Ok((name, f64::from_bits(bits))),
            Err(_) => Err(TorchError::Protocol(format!("a sum of `{bits}`"))),
        };
        Ok(TorchEvaluation { count, named: sums.into_iter().map(float).collect::<Result<_, _>>()? })
    }

    /// The finished model as a safetensors file, with the digest of its tensors.
    pub fn model(&mut self, metadata: &[(&str, &str)]) -> Result<(Vec<u8>, Digest), TorchError> {
        #[derive(Deserialize)]
        struct Answer {
            bytes: usize,
            digest: Digest,
        }
        let request = json!({ "metadata": metadata }).to_string();
        let (payload, descriptors) = self.exchange(b'M', request.as_bytes())?;
        let Answer { bytes, digest } = parse(&payload)?;
        let file = descriptors.into_iter().next().ok_or_else(|| TorchError::Protocol("no model".to_owned()))?;
        let mut model = vec![0; bytes];
        File::from(file).read_exact_at(&mut model, 0)?;
        Ok((model, digest))
    }

    fn ask(&mut self, kind: u8, payload: &[u8]) -> Result<Vec<u8>, TorchError> {
        self.exchange(kind, payload).map(|(payload, _)| payload)
    }

    /// Asks while the child may still be updating, so that it goes on at once; then hears both answers.
    fn exchange(&mut self, kind: u8, payload: &[u8]) -> Result<(Vec<u8>, Vec<OwnedFd>), TorchError> {
        match self.say_and_settle(kind, payload) {
            Ok(()) => self.answer(kind),
            Err(Unasked { failed, answered }) => {
                if answered {
                    let _ = self.answer(kind);
                }
                Err(failed)
            }
        }
    }

    /// Asks while the child may still be updating, and hears how that went.
    fn say_and_settle(&mut self, kind: u8, payload: &[u8]) -> Result<(), Unasked> {
        let (said, updated) = (self.python.say(kind, payload, &[]), self.settle());
        match (said, updated) {
            (Ok(()), Ok(())) => Ok(()),
            // Nobody answers any more.
            (Err(ended), Ok(()) | Err(TorchError::Ended { .. })) | (Ok(()), Err(ended @ TorchError::Ended { .. })) => {
                Err(Unasked { failed: ended, answered: false })
            }
            (said, Err(failed)) => Err(Unasked { failed, answered: said.is_ok() }),
        }
    }

    /// Hears how the update went that was begun last.
    fn settle(&mut self) -> Result<(), TorchError> {
        if std::mem::take(&mut self.updating) { self.answer(b'A').map(drop) } else { Ok(()) }
    }

    fn answer(&mut self, kind: u8) -> Result<(Vec<u8>, Vec<OwnedFd>), TorchError> {
        let asked = Instant::now();
        let answered = self.python.hear(kind);
        self.waited += asked.elapsed();
        answered
    }
}

/// A Python that has built the model, what it says of it, and memory that it shares; `check` says whether it is to look at everything that
/// could be different on another executor, or only to say its class.
fn begin(start: &TorchStart, launch: &Launch, check: bool) -> Result<(Python, Built, Vec<OwnedFd>), TorchError> {
    let mut python = Python::start(launch)?;
    let request = start.build(check).to_string();
    let mut built = python.exchange(b'B', request.as_bytes());
    if matches!(built, Err(TorchError::Ended { .. })) && python.is_forked() {
        // What its code loads may not stand a fork. If it was something else, it happens again.
        tracing::warn!("a forked Python ended while it built the model, so another one is started from the beginning");
        python = Python::start_cold(launch)?;
        built = python.exchange(b'B', request.as_bytes());
    }
    let (payload, descriptors) = built?;
    Ok((python, parse(&payload)?, descriptors))
}

impl TorchStart {
    /// All that says which program it is: what it is built from, and by what.
    fn program(&self, launch: &Launch) -> String {
        let package = launch.variables.get("PYTHONPATH");
        format!("{:?} {package:?} {}", launch.python, self.build(true))
    }

    /// Room for the samples that are computed with at once.
    fn place_bytes(&self) -> u64 {
        let trained = self.dataset.iter().map(|(sample, _)| sample);
        place_bytes(&self.spec, trained.chain(&self.held_out))
    }

    fn build(&self, check: bool) -> Value {
        let spec = self.spec.document();
        let (sample, rows) = self.dataset.as_ref().map(|(sample, rows)| (sample, rows)).unzip();
        let device = &self.model.device;
        let strict = self.model.initial.as_ref().is_none_or(|initial| initial.strict);
        let hosted_max = (self.spec.determinism == Determinism::None).then(|| hosted_max(&self.spec));
        let parameters: Value = serde_json::from_str(self.model.parameters.text()).unwrap_or_default();
        json!({
            "entry": self.model.entry, "code": self.code.path(), "spec": spec, "seed": self.spec.seed, "workers": self.spec.workers.max,
            "batch_size": self.spec.batch_size, "threads": self.model.threads, "device": device, "sample": sample,
            "held_out_sample": self.held_out, "batch_bytes": self.place_bytes(), "batch_places": PLACES, "rows": rows, "parameters": parameters,
            "hosted_max": hosted_max,
            "initial": self.initial.as_ref().map(Initial::path), "initial_strict": strict, "check": check,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn only_what_will_not_start_later_either_breaks_a_job() {
        let start = |error: Errno| TorchError::Start { python: "python3".to_owned(), source: error.into() };
        for lasting in [Errno::NOENT, Errno::ACCESS, Errno::NOTDIR, Errno::INVAL, Errno::NOEXEC] {
            assert!(start(lasting).is_broken(), "{lasting}");
        }
        for passing in [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM, Errno::TXTBSY] {
            assert!(!start(passing).is_broken(), "{passing}");
        }
    }
}
