//! An executor whose job is a whole program of its user's: it starts the program, keeps its checkpoint folder, stops it, and says what became of it.
//!
//! There is no training session here: members of a gang do not talk to each other, their programs do. Who is a member, who is rank 0 and where it is met
//! every member reads in the controller's proposal. All decisions are `machine.rs`'s (pure); `program.rs` is the process, `place.rs` where it runs and what it
//! is told, `keeper.rs` the checkpoint folder in the store. Why it is so: `docs/decisions/0012-a-gang-lives-for-one-membership.md`.

mod keeper;
mod machine;
mod place;
mod program;

use crate::control::{Agent, ControlError, Heard};
use crate::life::Life;
use crate::program::{ProgramError, fetch_packed};
use crate::store_wait::StorePatience;
use crate::tokens::WriterTokens;
use events_schema::control::{FromExecutor, Phase, Progress, STOPPED_STATUS, TorchHost, WaitsFor};
use events_schema::fact::{Entry, Proposal};
use events_schema::gang::CommandSpec;
use events_schema::orders::JobOrder;
use events_schema::report::{Outcome as JobOutcome, Report};
use events_schema::stride::Stride;
use events_schema::torch::TorchDevice;
use events_schema::{Digest, ExecutorId, Generation, Rank, Step};
use keeper::{FetchError, Keeper, Kept, Outcome};
use machine::{Config, End, In, Machine, Out, Purpose, Told};
use place::{Place, Port};
use program::Program;
use shell::Chain;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::time::{Duration, Instant};
use storage::code::unpack;
use storage::keys::CheckpointName;
use workers_torch::{Isolation, IsolationError, Provision, Reach, isolation, never_starts};

/// Happenings that wait: orders come a few times a minute, and the program ends once.
pub const HAPPENINGS_MAX: usize = 64;

/// Time that a program has to end when its job is over: half of what an agent gives its executor.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// What can happen to a gang's executor.
pub enum Happening {
    /// Its agent said something.
    Heard(Heard),
    /// What the program needs is here, or cannot be had.
    Prepared(Result<Box<Prepared>, GangError>),
    /// The folder that this membership begins with is there, or cannot be had.
    Restored(Generation, Result<Option<Kept>, FetchError>),
    /// The program of this start ended.
    Ended(u32, End),
    /// The folder was saved, or not.
    Saved(Generation, Purpose, Result<Outcome, String>),
}

/// Why such an executor ended by itself. All: stop, the job goes on without it.
#[derive(Debug, thiserror::Error)]
pub enum GangError {
    /// The agent cannot be told anything.
    #[error("the agent cannot be reached")]
    Agent(#[from] ControlError),
    /// The code, the store or the machine.
    #[error("the program cannot be prepared")]
    Prepare(#[from] ProgramError),
    /// A folder, a port, a thread.
    #[error("the operating system refuses")]
    System(#[from] std::io::Error),
    /// The machine has no room for another process.
    #[error("the program cannot be started on this server now")]
    Start(#[source] std::io::Error),
    /// The kernel.
    #[error("the files of the server cannot be kept from the program")]
    Isolation(#[source] IsolationError),
    /// Every sender of happenings is gone.
    #[error("nothing is left to listen to")]
    SendersGone,
}

/// What such an executor is made of.
#[derive(Clone)]
pub struct Setup {
    pub executor: ExecutorId,
    pub class: Digest,
    pub store_url: String,
    pub listen_host: String,
    pub order: JobOrder,
    pub torch: Option<TorchHost>,
    pub life: Arc<Life>,
    pub tokens: Arc<WriterTokens>,
    pub inbox: SyncSender<Happening>,
}

/// What the thread that waits for the store is asked.
enum Task {
    /// To make the folder what a checkpoint holds, or an empty one.
    Restore(Generation, Option<CheckpointName>),
    Save(Generation, Purpose),
}

/// What a membership begins with, while it is fetched and until its program has begun.
struct Beginning {
    since: Instant,
    /// The checkpoint; none of a job that begins.
    name: Option<CheckpointName>,
    step: Step,
}

struct Gang<W: Write> {
    executor: ExecutorId,
    spec: CommandSpec,
    host: TorchHost,
    provision: Provision,
    agent: Agent<W>,
    life: Arc<Life>,
    inbox: SyncSender<Happening>,
    machine: Machine,
    tasks: Sender<Task>,
    /// The membership whose folder is waited for: nothing older is.
    wanted: Arc<AtomicU64>,
    beginning: Option<Beginning>,
    place: Place,
    /// Where the program runs.
    folder: PathBuf,
    program: Option<Program>,
    /// Programs started so far: the end of an earlier one is no news.
    starts: u32,
    generation: Generation,
    begun: Instant,
    _port: Port,
}

/// Runs until it may end; gives the status.
pub fn run<W: Write>(
    mut setup: Setup,
    mut agent: Agent<W>,
    happenings: &Receiver<Happening>,
) -> Result<i32, GangError> {
    let patience = StorePatience::of(&setup.order, &setup.life);
    let prepared = match prepared(&mut setup, &patience, happenings)? {
        Ok(prepared) => *prepared,
        Err(Unprepared::Ends(status)) => return Ok(status),
        Err(Unprepared::Cannot(GangError::Prepare(error))) if error.is_broken() => {
            let generation = setup.order.proposal.as_ref().map_or(Generation(0), |p| p.generation);
            let (job, reason) = (setup.executor.job, error.reason());
            agent.say(&FromExecutor::Report(Report::JobBroken { job, generation, reason }))?;
            return Err(error.into());
        }
        Err(Unprepared::Cannot(error)) => return Err(error),
    };
    let Setup { executor, listen_host, order, life, inbox, .. } = setup;
    let Prepared { spec, host, provision, keeper, place, folder } = prepared;
    let port = Port::hold(&listen_host)?;
    let wanted = Arc::new(AtomicU64::new(0));
    let tasks = start_storing(keeper, patience, Arc::clone(&wanted), inbox.clone())?;
    let config = Config {
        me: executor.number,
        grace: Duration::from_millis(spec.grace_ms),
        save_every: Duration::from_millis(spec.save_every_ms),
    };
    let address = port.address().to_string();
    agent.say(&FromExecutor::Report(Report::ExecutorReady {
        executor: executor.clone(),
        address,
        class: None,
        replica_bytes: None,
        gradient_bytes: None,
    }))?;
    let mut gang = Gang {
        executor,
        spec,
        host,
        provision,
        agent,
        life,
        inbox,
        machine: Machine::new(config),
        tasks,
        wanted,
        beginning: None,
        place,
        folder,
        program: None,
        starts: 0,
        generation: Generation(0),
        begun: Instant::now(),
        _port: port,
    };
    gang.run(order, happenings)
}

/// Why there is nothing to go on with.
enum Unprepared {
    /// It has to end before it began: with this status.
    Ends(i32),
    Cannot(GangError),
}

/// What the program needs, fetched while orders are heard: a store that is away is waited for longer than a slot may be kept.
fn prepared(
    setup: &mut Setup,
    patience: &StorePatience,
    happenings: &Receiver<Happening>,
) -> Result<Result<Box<Prepared>, Unprepared>, GangError> {
    let (of, patience) = (setup.clone(), patience.clone());
    let fetch = move || {
        let prepared = prepare(&of, &patience).map(Box::new);
        // Who does not listen any more ends this process.
        let _ = of.inbox.send(Happening::Prepared(prepared));
    };
    std::thread::Builder::new().name("ebb-prepare".to_owned()).spawn(fetch)?;
    loop {
        match happenings.recv().map_err(|_| GangError::SendersGone)? {
            Happening::Prepared(prepared) => return Ok(prepared.map_err(Unprepared::Cannot)),
            Happening::Heard(Heard::Order(order)) => setup.order = *order,
            Happening::Heard(Heard::Leave { .. }) => return Ok(Err(Unprepared::Ends(STOPPED_STATUS))),
            Happening::Heard(Heard::Stop) => return Ok(Err(Unprepared::Ends(0))),
            // Nothing of its own is under way yet.
            Happening::Heard(Heard::Trace(_) | Heard::Deadline { .. } | Heard::Share { .. })
            | Happening::Restored(..)
            | Happening::Ended(..)
            | Happening::Saved(..) => {}
        }
    }
}

/// What a program is started with.
pub struct Prepared {
    spec: CommandSpec,
    host: TorchHost,
    provision: Provision,
    keeper: Keeper,
    place: Place,
    folder: PathBuf,
}

fn prepare(setup: &Setup, patience: &StorePatience) -> Result<Prepared, GangError> {
    let Setup { executor, order, .. } = setup;
    let host = setup.torch.as_ref().ok_or(ProgramError::NoTorch)?;
    let spec = order.spec.gang().ok_or(ProgramError::NoTorch)?.clone();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).thread_name("ebb-data").enable_all().build();
    let runtime = Arc::new(runtime.map_err(ProgramError::Threads)?);
    let store = storage::open_store(&setup.store_url).map_err(ProgramError::Store)?;
    let place = Place::make(&Path::new(&host.folder).join("programs"), executor)?;
    // A copy of its own, because it may write where it runs.
    let folder = match spec.code {
        Some(code) => {
            let fetch = || runtime.block_on(fetch_packed(&*store, code));
            let packed = patience.ask(fetch, ProgramError::may_pass)?;
            let folder = place.folder().join(code.to_string());
            std::fs::create_dir_all(&folder).map_err(ProgramError::from)?;
            unpack(&packed, code, &folder).map_err(ProgramError::Unpack)?;
            folder
        }
        None => place.work(),
    };
    let provision = Provision::of(host, &spec).map_err(ProgramError::Provision)?;
    let keeper = Keeper {
        runtime,
        store,
        job: executor.job.clone(),
        spec_digest: order.spec.digest(),
        class: setup.class,
        tokens: Arc::clone(&setup.tokens),
        folder: place.checkpoint(),
        patience: Duration::from_millis(order.spec.store_patience_ms.ms()),
    };
    Ok(Prepared { spec, host: host.clone(), provision, keeper, place, folder })
}

/// A thread that restores and saves, one after the other, so that the agent is heard and the program is looked after meanwhile.
fn start_storing(
    keeper: Keeper,
    patience: StorePatience,
    wanted: Arc<AtomicU64>,
    inbox: SyncSender<Happening>,
) -> std::io::Result<Sender<Task>> {
    // A few tasks wait at most: the machine asks for the next when it has heard of the last, but for the one after a stop and a newer membership's.
    let (tasks, waiting) = channel();
    let store = move || {
        let mut last = None;
        while let Ok(task) = waiting.recv() {
            let happening = match task {
                Task::Restore(generation, name) => {
                    let is_wanted = || wanted.load(Ordering::Relaxed) == generation.0;
                    let restored =
                        patience.ask(|| keeper.restore(name.as_ref()), |error| is_wanted() && error.may_pass());
                    last = restored.as_ref().ok().cloned().flatten();
                    Happening::Restored(generation, restored)
                }
                Task::Save(generation, purpose) => {
                    let saved = keeper.save(purpose, generation, last.as_ref());
                    if let Ok(Outcome { kept: Some(kept), .. }) = &saved {
                        last = Some(kept.clone());
                    }
                    Happening::Saved(generation, purpose, saved.map_err(|error| Chain(&error).to_string()))
                }
            };
            if inbox.send(happening).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("ebb-checkpoint".to_owned()).spawn(store)?;
    Ok(tasks)
}

fn told(order: JobOrder) -> In {
    let JobOrder { proposal, park, ended_well, .. } = order;
    In::Told(Told { proposal, park, ended_well: ended_well.into_iter().collect() })
}

impl<W: Write> Gang<W> {
    fn run(&mut self, order: JobOrder, happenings: &Receiver<Happening>) -> Result<i32, GangError> {
        let mut input = told(order);
        loop {
            for out in self.machine.handle(self.begun.elapsed(), input) {
                if let Some(status) = self.perform(out)? {
                    return Ok(status);
                }
            }
            self.say_life();
            input = match self.next(happenings)? {
                None => In::Wake,
                Some(Happening::Heard(Heard::Order(order))) => told(*order),
                Some(Happening::Heard(Heard::Leave { within_ms })) => In::Leave(Duration::from_millis(within_ms)),
                // A whole program knows of no rests; that it gives way is the priority's part.
                Some(Happening::Heard(Heard::Trace(_) | Heard::Deadline { .. } | Heard::Share { .. })) => In::Wake,
                Some(Happening::Heard(Heard::Stop)) => {
                    self.stop(happenings);
                    return Ok(0);
                }
                Some(Happening::Ended(start, end)) if start == self.starts => {
                    // What it said last stands above, as it said it.
                    tracing::info!(well = end == End::Well, "the program ended");
                    self.program = None;
                    In::Ended(end)
                }
                Some(Happening::Restored(generation, restored)) if generation == self.generation => {
                    match self.restored(restored)? {
                        Ok(input) => input,
                        Err(status) => return Ok(status),
                    }
                }
                Some(Happening::Ended(..) | Happening::Restored(..) | Happening::Prepared(_)) => In::Wake,
                Some(Happening::Saved(generation, purpose, saved)) => self.saved(generation, purpose, saved)?,
            };
        }
    }

    /// Nothing of it counts any more; still a program that cleans up after itself may.
    fn stop(&mut self, happenings: &Receiver<Happening>) {
        let until = Instant::now() + STOP_GRACE;
        self.program.iter().for_each(Program::terminate);
        while self.program.is_some() {
            match happenings.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Happening::Ended(start, _)) if start == self.starts => self.program = None,
                Ok(_) => {}
                // What is left of its group its agent ends.
                Err(_) => return,
            }
        }
    }

    fn next(&self, happenings: &Receiver<Happening>) -> Result<Option<Happening>, GangError> {
        let Some(at) = self.machine.wake_at() else {
            return happenings.recv().map(Some).map_err(|_| GangError::SendersGone);
        };
        match happenings.recv_timeout(at.saturating_sub(self.begun.elapsed())) {
            Ok(happening) => Ok(Some(happening)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(GangError::SendersGone),
        }
    }

    fn report(&mut self, report: Report) -> Result<(), GangError> {
        tracing::debug!(?report, "report");
        Ok(self.agent.say(&FromExecutor::Report(report))?)
    }

    fn perform(&mut self, out: Out) -> Result<Option<i32>, GangError> {
        match out {
            Out::Restore(proposal) => return self.restore(&proposal),
            Out::Begin(proposal) => return self.begin(&proposal),
            Out::Terminate => {
                tracing::info!("asking the program to end");
                self.program.iter().for_each(Program::terminate);
            }
            Out::Kill => {
                tracing::warn!("the program did not end in time and is killed");
                self.program.iter().for_each(Program::kill);
            }
            // Its thread ends with this process only.
            Out::Save(purpose) => drop(self.tasks.send(Task::Save(self.generation, purpose))),
            Out::Exit { status, why } => return self.exit(status, why).map(Some),
        }
        Ok(None)
    }

    fn exit(&mut self, status: i32, why: Option<String>) -> Result<i32, GangError> {
        tracing::info!(status, "leaving");
        if let Some(why) = why {
            let words = format!("the program of e{} {why}", self.executor.number);
            self.agent.say(&FromExecutor::LastWords { said: words, code_ended: None })?;
        }
        Ok(status)
    }

    fn broken(&mut self, reason: String) -> Result<Option<i32>, GangError> {
        let (job, generation) = (self.executor.job.clone(), self.generation);
        self.report(Report::JobBroken { job, generation, reason })?;
        Ok(Some(1))
    }

    /// Asks for the folder; a status, if this process has to end instead.
    fn restore(&mut self, proposal: &Proposal) -> Result<Option<i32>, GangError> {
        self.generation = proposal.generation;
        self.wanted.store(proposal.generation.0, Ordering::Relaxed);
        let name = match &proposal.entry {
            Entry::Checkpoint { manifest_key, .. } => {
                match CheckpointName::of_manifest(manifest_key).filter(|name| name.job == self.executor.job) {
                    Some(name) => Some(name),
                    None => {
                        return self
                            .broken(format!("`{manifest_key}` is no checkpoint of this job; submit the job again"));
                    }
                }
            }
            Entry::Fresh | Entry::Switch { .. } | Entry::Recover => None,
        };
        self.beginning = Some(Beginning { since: Instant::now(), name: name.clone(), step: Step(0) });
        // Its thread ends with this process only.
        drop(self.tasks.send(Task::Restore(self.generation, name)));
        Ok(None)
    }

    /// What follows for the machine, or with which status this process has to end.
    fn restored(&mut self, restored: Result<Option<Kept>, FetchError>) -> Result<Result<In, i32>, GangError> {
        match restored {
            Ok(kept) => {
                let step = kept.map_or(Step(0), |kept| kept.step);
                self.beginning.iter_mut().for_each(|beginning| beginning.step = step);
                Ok(Ok(In::Restored))
            }
            Err(error) => {
                let name = self.beginning.take().and_then(|beginning| beginning.name);
                self.not_restored(name, &error).map(Err)
            }
        }
    }

    /// Starts the program; a status, if this process has to end instead.
    fn begin(&mut self, proposal: &Proposal) -> Result<Option<i32>, GangError> {
        let Some(Beginning { since, step, .. }) = self.beginning.take() else { return Ok(None) };
        let me = self.executor.number;
        let (job, checkpoint) = (&self.executor.job, self.place.checkpoint());
        let folders = self.provision.program_folders();
        let told = place::variables(job, me, proposal, &self.spec, &folders, &checkpoint);
        let Some(mut told) = told else { return Ok(Some(1)) };
        told.extend(self.provision.secrets().iter().map(|(name, value)| (name.clone(), value.into())));
        if self.host.files.is_some() {
            told.extend(isolation::variables(self.place.own(), &self.spec.environment));
            if let Some(base) =
                isolation::user_packages().filter(|_| !self.spec.environment.contains_key(isolation::USER_PACKAGES))
            {
                told.insert(isolation::USER_PACKAGES.to_owned(), base.into());
            }
        }
        let isolation = Isolation::of(&self.host, self.reach()).map_err(GangError::Isolation)?;
        self.starts += 1;
        let (inbox, start) = (self.inbox.clone(), self.starts);
        let ended = move |end| drop(inbox.send(Happening::Ended(start, end)));
        let limit_mib = self.spec.memory_limit_mib;
        match Program::start(&self.spec.command, &self.folder, &told, isolation.as_ref(), limit_mib, ended) {
            Ok(program) => {
                self.life.computing().is(program.pid);
                self.program = Some(program);
            }
            Err(error) if !never_starts(&error) => return Err(GangError::Start(error)),
            Err(error) => {
                let program = self.spec.command.first().map_or("", String::as_str);
                return self.broken(format!(
                    "the program `{program}` cannot be started: {error}; name one that is on every server, or one in the code folder (`./run.sh`)"
                ));
            }
        }
        let told = |name: &str| told.get(name).map(|value| value.to_string_lossy().into_owned()).unwrap_or_default();
        tracing::info!(generation = %proposal.generation, rank = told("RANK"), of = told("WORLD_SIZE"), "the program runs");
        self.began(proposal, step, since)?;
        Ok(None)
    }

    /// Files that the program may reach. Its checkpoint folder is there by now.
    fn reach(&self) -> Reach {
        Reach {
            pythons: vec![self.provision.base().to_owned()],
            readable: self.provision.folder().into_iter().collect(),
            writable: vec![self.folder.clone(), self.place.checkpoint(), self.place.home()],
            program: self.spec.command.first().map(PathBuf::from),
            gpu: self.spec.device == Some(TorchDevice::Cuda),
            ..Reach::default()
        }
    }

    /// Every member says so, because one may have ended before another has begun; the first word counts.
    fn began(&mut self, proposal: &Proposal, step: Step, since: Instant) -> Result<(), GangError> {
        let (job, generation) = (self.executor.job.clone(), proposal.generation);
        let took_us = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.report(Report::GenerationActive { job: job.clone(), generation, step, pause_us: took_us })?;
        if proposal.leader == self.executor {
            let first_step_us = took_us;
            let (usual_step_us, usual_members) = (None, None);
            self.report(Report::GenerationStepped {
                job,
                generation,
                step,
                first_step_us,
                usual_step_us,
                usual_members,
                stride: Stride::ONE,
            })?;
        }
        Ok(())
    }

    fn not_restored(&mut self, name: Option<CheckpointName>, error: &FetchError) -> Result<i32, GangError> {
        tracing::error!(error = %Chain(error), "the checkpoint folder cannot be restored");
        let reason = Chain(error).to_string();
        if let (Some(name), FetchError::Restore(fault)) = (name, error) {
            let CheckpointName { job, generation, step, .. } = name.clone();
            if fault.is_damage() {
                let object = fault.object().map_or_else(|| name.manifest(), str::to_owned);
                self.report(Report::CheckpointDamaged { job, generation, step, object, reason: reason.clone() })?;
            } else if matches!(fault, storage::checkpoint::RestoreError::Format { .. }) {
                self.report(Report::CheckpointUnreadable { job, generation, step, reason: reason.clone() })?;
            }
        }
        self.exit(1, Some(format!("was not started: {reason}")))
    }

    fn saved(
        &mut self,
        generation: Generation,
        purpose: Purpose,
        saved: Result<Outcome, String>,
    ) -> Result<In, GangError> {
        let outcome = match saved {
            Ok(outcome) => outcome,
            Err(why) => {
                tracing::error!(%why, ?purpose, "not in the store");
                return Ok(In::NotSaved(purpose, why));
            }
        };
        let job = self.executor.job.clone();
        let step = outcome.kept.as_ref().map_or(Step(0), |kept| kept.step);
        // A gang that stands still says where it stands, also if that was written before.
        let is_news = outcome.is_new || purpose == Purpose::Stopped;
        if let Some(Kept { step, written_in, writer: Some(writer), digest, bytes }) = outcome.kept.filter(|_| is_news) {
            let (job, replica_digest) = (job.clone(), digest);
            let stands_still = Some(purpose == Purpose::Stopped);
            self.report(Report::CheckpointSaved {
                job,
                generation,
                step,
                written_in,
                writer,
                replica_digest,
                bytes,
                stands_still,
            })?;
        }
        if let Some(model_digest) = outcome.model {
            let model_key = storage::keys::model(&job);
            let outcome = JobOutcome { step, model_key, model_digest, train_loss_micro: None, metrics: None };
            self.report(Report::JobCompleted { job, generation, outcome })?;
        }
        Ok(In::Saved(purpose))
    }

    fn say_life(&self) {
        let (phase, waits_for) = match (self.machine.runs(), self.machine.saves()) {
            (true, _) => (Phase::Computing(Rank(0)), WaitsFor::Nothing),
            _ if self.machine.restores() => (Phase::Loading, WaitsFor::Store),
            (_, true) => (Phase::Saving, WaitsFor::Store),
            _ => (Phase::Still, WaitsFor::Controller),
        };
        self.life.set(self.progress(phase, waits_for));
    }

    fn progress(&self, phase: Phase, waits_for: WaitsFor) -> Progress {
        Progress { generation: self.generation, phase, waits_for, ..self.life.now() }
    }
}
