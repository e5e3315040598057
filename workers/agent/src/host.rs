//! The shell around the agent's decisions: one task that owns the machine of `workers/agent-core`, tells it what happened, and does what it
//! asks for. Everything else (links, listener, processes, disk) talks to it through [`HostEvent`]s, so nothing here needs a lock.
//!
//! It decides nothing and never waits for an executor, the controller, the disk or a caller. Next files: `process.rs` (executors),
//! `uplink.rs` (the controller), `direct.rs` (fleets), `record.rs` (the disk).

use crate::devices::{Devices, Seat};
use crate::direct::SlotReport;
use crate::far_end;
use crate::guest_memory;
use crate::meters::Meters;
use crate::process::{self, Launch, Process};
use crate::record::{ExecutorRecord, TakenBack};
use crate::ship::Shippers;
use crate::traces::Traces;
use crate::uplink::{self, Uplink};
use crate::warm::WarmName;
use crate::{AgentConfig, PythonConfig};
use ebb_telemetry::within;
use events_schema::control::{ExecutorStart, FromExecutor, ToExecutor, TorchHost};
use events_schema::orders::{AgentMessage, ControllerMessage, FarEnd, JobOrder};
use events_schema::{ExecutorId, SlotId, TraceContext, host_index, is_guest_index};
use object_store::ObjectStore;
use shell::wall_clock;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use workers_agent_core::{Agent, Answer, Config, ExecutorWord, In, KillCause, LinkWord, Moment, Note, Out, ProcessEnd};

/// Events taken before the clock is looked at again. What was said in time must not come after the silence it ended.
const EVENTS_PER_LOOK_MAX: usize = 256;

/// Longest wait for the store to take what the last executors said.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(3);

/// Everything that can wake the host.
#[derive(Debug)]
pub(crate) enum HostEvent {
    /// Something that the machine is to be told.
    Happened(In),
    /// A fleet wants slots back now.
    TakeBack(TakeBack),
    /// Somebody wants to see the slots.
    Look(oneshot::Sender<Vec<SlotReport>>),
    /// The link to the controller cannot be configured as it is. Stop.
    Unusable(String),
}

/// Slots that a fleet wants back.
#[derive(Debug)]
pub(crate) struct TakeBack {
    /// Numbers of existing slots.
    pub slots: BTreeSet<u16>,
    /// Time to the kill.
    pub within: Duration,
    /// What it follows from.
    pub trace: Option<TraceContext>,
    /// The way back to who asked.
    pub reply: oneshot::Sender<Answer>,
}

/// Why the host ended by itself. Stop: the agent cannot do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostError {
    /// A task that watches an executor, a link or a write panicked.
    #[error("a task of the agent panicked")]
    Task(#[source] JoinError),
    /// The controller's address.
    #[error("{0}")]
    Unusable(String),
}

pub(crate) struct Host {
    config: AgentConfig,
    agent: Agent,
    taken_back: TakenBack,
    processes: BTreeMap<u16, Process>,
    traces: Traces,
    meters: Meters,
    link: Option<OpenLink>,
    /// Who waits for an answer, by request.
    callers: BTreeMap<u64, oneshot::Sender<Answer>>,
    requests: u64,
    begun: Instant,
    wake_at: Option<Instant>,
    /// What the machine has still to be told.
    happened: VecDeque<In>,
    ended: bool,
    events_sender: mpsc::Sender<HostEvent>,
    events: mpsc::Receiver<HostEvent>,
    tasks: JoinSet<()>,
    /// Where what executors say is kept, if it can be opened here.
    store: Option<Arc<dyn ObjectStore>>,
    /// What brings it there, one for each executor. Apart from the other tasks, because it is not waited for as they are.
    shippers: Shippers,
    /// Where executors find a Python that has PyTorch imported.
    warm: WarmName,
}

struct OpenLink {
    number: u64,
    messages: mpsc::Sender<AgentMessage>,
    task: AbortHandle,
}

impl Host {
    /// A host with free slots; those in `fleets` were taken back before this process began. `seed` is a random number.
    pub fn new(
        config: AgentConfig,
        (address, far_end): (String, Option<FarEnd>),
        fleets: &BTreeSet<u16>,
        taken_back: TakenBack,
        seed: u64,
        warm: WarmName,
        (events_sender, events): (mpsc::Sender<HostEvent>, mpsc::Receiver<HostEvent>),
    ) -> Self {
        let decided = Config {
            server: config.server.clone(),
            slots: config.slots,
            guests: config.guests,
            processors_milli: processors_milli(config.slots),
            class: config.class,
            devices: config.devices.as_ref().map(Devices::told).unwrap_or_default(),
            slot_type: config.slot_type.or_else(|| config.devices.as_ref().and_then(Devices::slot_type)),
            address,
            far_end,
            lease_ms: milliseconds(config.lease),
        };
        let begun = Instant::now();
        let store = storage::open_store(&config.store_url);
        let store = store.inspect_err(|error| {
            tracing::warn!(%error, "what executors say is kept on this machine only: the store cannot be opened here");
        });
        let store = store.ok();
        Self {
            config,
            agent: Agent::new(moment(begun), decided, seed, fleets),
            taken_back,
            processes: BTreeMap::new(),
            traces: Traces::default(),
            meters: Meters::new(),
            link: None,
            callers: BTreeMap::new(),
            requests: 0,
            begun,
            wake_at: Some(begun),
            happened: VecDeque::new(),
            ended: false,
            events_sender,
            events,
            tasks: JoinSet::new(),
            store,
            shippers: Shippers::default(),
            warm,
        }
    }

    /// Runs until `shutdown`, then ends all executors and returns when their slots are free and the last reports are taken.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), HostError> {
        let mut asked = false;
        while !self.ended {
            tokio::select! {
                biased;
                () = shutdown.cancelled(), if !asked => {
                    asked = true;
                    self.tell(In::Shutdown);
                }
                Some(ended) = self.tasks.join_next() => panicked(ended)?,
                true = self.shippers.ended() => {}
                Some(event) = self.events.recv() => self.take_waiting(event)?,
                () = sleep_until(self.wake_at.unwrap_or(self.begun)), if self.wake_at.is_some() => {}
            }
            if self.wake_at.is_some_and(|at| at <= Instant::now()) {
                self.wake();
            }
        }
        // The last words of those that were just ended; what the store does not take in time is in the log files.
        let shipped = async { while self.shippers.ended().await {} };
        if tokio::time::timeout(LAST_WORDS_TIMEOUT, shipped).await.is_err() {
            tracing::warn!("the store does not take what the last executors said");
        }
        Ok(())
    }

    fn take_waiting(&mut self, first: HostEvent) -> Result<(), HostError> {
        self.take(first)?;
        for _ in 1..EVENTS_PER_LOOK_MAX {
            let Ok(event) = self.events.try_recv() else { break };
            self.take(event)?;
        }
        Ok(())
    }

    fn take(&mut self, event: HostEvent) -> Result<(), HostError> {
        match event {
            HostEvent::Happened(happened) => {
                match &happened {
                    In::Executor {
                        slot,
                        executor,
                        word: ExecutorWord::Ended(end) | ExecutorWord::EndedHolding { end, .. },
                    } => {
                        within(self.traces.of_executor(executor), || tracing::info!(%executor, ?end, "executor ended"));
                        self.processes.remove(slot);
                        self.traces.ended(executor);
                        self.meters.ended(executor, end);
                    }
                    In::Executor { executor, word: ExecutorWord::Garbage(reason), .. } => {
                        within(
                            self.traces.of_executor(executor),
                            || tracing::error!(%executor, reason, "an executor says what is no word of the protocol"),
                        );
                    }
                    // For whoever collects spans; that it was heard the machine is told like of any other word.
                    In::Executor { executor, word: ExecutorWord::Said(FromExecutor::Span(span)), .. } => {
                        self.traces.did(executor, span);
                        return Ok(());
                    }
                    In::Executor { executor, word: ExecutorWord::Said(FromExecutor::Progress(progress)), .. } => {
                        self.meters.heard(executor, progress);
                    }
                    In::Link { word: LinkWord::Said(ControllerMessage::Orders(orders)), .. } => {
                        self.traces.orders(orders)
                    }
                    _ => {}
                }
                self.tell(happened);
            }
            HostEvent::TakeBack(request) => self.take_back(request),
            HostEvent::Look(reply) => {
                let pid = |slot: &SlotId| self.processes.get(&slot.index).map(|process| process.pid);
                let slots = self.agent.slots().map(|view| SlotReport::of(&view, pid(view.slot))).collect();
                // A caller that went away needs no answer.
                let _ = reply.send(slots);
            }
            HostEvent::Unusable(reason) => return Err(HostError::Unusable(reason)),
        }
        Ok(())
    }

    fn take_back(&mut self, TakeBack { slots, within, trace, reply }: TakeBack) {
        // Those who went away hold no place.
        let gone: Vec<u64> =
            self.callers.extract_if(.., |_, caller| caller.is_closed()).map(|(request, _)| request).collect();
        for request in gone {
            self.tell(In::Withdrawn { request });
        }
        let on_them = self.processes.iter().filter(|(slot, _)| slots.contains(&host_index(**slot)));
        self.traces.taken_back(trace, &slots, on_them.map(|(_, process)| process.executor.clone()).collect());
        self.requests += 1;
        self.callers.insert(self.requests, reply);
        self.tell(In::TakeBack { request: self.requests, slots, within_ms: milliseconds(within) });
    }

    /// The time that the machine asked for is there. Executors were heard beside the events, so that a word needs no room in their queue.
    fn wake(&mut self) {
        self.wake_at = None;
        for (slot, process) in self.processes.iter().filter(|(_, process)| process.was_heard()) {
            let executor = process.executor.clone();
            self.happened.push_back(In::Executor { slot: *slot, executor, word: ExecutorWord::Heard });
        }
        self.tell(In::Wake);
        self.meters.slots(self.agent.slots());
    }

    fn tell(&mut self, happened: In) {
        self.happened.push_back(happened);
        while let Some(next) = self.happened.pop_front() {
            let outs = self.agent.handle(moment(self.begun), next);
            outs.into_iter().for_each(|out| self.does(out));
        }
    }

    fn does(&mut self, out: Out) {
        match out {
            Out::Connect { link } => self.connect(link),
            Out::Send { link, mut message } => {
                if let AgentMessage::Report { report, trace, .. } = &mut *message {
                    *trace = self.traces.of(report);
                }
                if let Some(open) = self.link.as_ref().filter(|open| open.number == link) {
                    // It asked for room before; a link that ends says so itself.
                    let _ = open.messages.try_send(*message);
                }
            }
            Out::HangUp { link } => {
                if let Some(open) = self.link.take_if(|open| open.number == link) {
                    open.task.abort();
                }
            }
            Out::Start { slot, executor, order, needs_bytes } => self.start(slot, executor, *order, needs_bytes),
            Out::Tell { slot, frame } => self.tell_executor(slot, frame),
            Out::Kill { slot, executor, cause } => self.kill(slot, &executor, cause),
            Out::Keep { write, slots } => self.keep(write, slots),
            Out::MeasureLink { number, far_end } => self.measure_link(number, far_end),
            Out::Reply { request, answer } => {
                self.meters.answered(&answer);
                if let Some(caller) = self.callers.remove(&request) {
                    // A caller that went away has its slots all the same.
                    let _ = caller.send(answer);
                }
            }
            Out::WakeAt { ms } => {
                // A time that the clock cannot hold is never.
                self.wake_at = self.begun.checked_add(Duration::from_millis(ms));
            }
            Out::Note(note @ Note::Quarantined { .. }) => tracing::error!("{note}"),
            Out::Note(note) => tracing::warn!("{note}"),
            Out::Ended => self.ended = true,
        }
    }

    fn tell_executor(&mut self, slot: u16, frame: ToExecutor) {
        let Some(process) = self.processes.get(&slot) else { return };
        let executor = process.executor.clone();
        if frame == ToExecutor::Stop {
            self.traces.ends(&executor);
        }
        let trace = self.traces.tell(&executor).map(ToExecutor::Trace);
        if !trace.into_iter().chain([frame]).all(|frame| process.send(frame)) {
            self.happened.push_back(In::Executor { slot, executor, word: ExecutorWord::NotReading });
        }
    }

    fn connect(&mut self, link: u64) {
        let (messages, waiting) = mpsc::channel(1);
        let uplink = Uplink {
            link,
            server: self.config.server.clone(),
            url: self.config.controller_url.clone(),
            token: self.config.token.clone(),
            host: self.events_sender.clone(),
        };
        let task = self.tasks.spawn(uplink::run(uplink, waiting));
        self.link = Some(OpenLink { number: link, messages, task });
    }

    fn measure_link(&mut self, number: u64, far_end: FarEnd) {
        let events = self.events_sender.clone();
        self.tasks.spawn(async move {
            let bytes_per_s = far_end::measure(&far_end).await;
            // Nobody to tell means that the agent has ended.
            let _ = events.send(HostEvent::Happened(In::LinkMeasured { number, bytes_per_s })).await;
        });
    }

    /// What this server has for models in PyTorch.
    fn torch_host(&self, is_guest: bool) -> TorchHost {
        let folder = torch_folder(&self.config.data_dir).display().to_string();
        let PythonConfig { program, secrets, cache_mib, files } = self.config.python.clone();
        let secrets = secrets.map(|folder| folder.display().to_string());
        // A guest's Python has to be its own child, or it would not have its priority.
        let warm = self.warm.address.clone().filter(|_| !is_guest);
        let cache_mib = Some(cache_mib);
        TorchHost { folder, python: program, secrets, cache_mib, warm, files }
    }

    fn start(&mut self, slot: u16, executor: ExecutorId, order: JobOrder, needs_bytes: u64) {
        if let Some(reason) = Some(needs_bytes).filter(|_| is_guest_index(slot)).and_then(guest_memory::lacks_room) {
            tracing::warn!(%executor, slot, reason, "a guest finds no room");
            let word = ExecutorWord::Ended(ProcessEnd::NotStarted(reason));
            self.happened.push_back(In::Executor { slot, executor, word });
            return;
        }
        let start = ExecutorStart {
            executor: executor.clone(),
            slot: SlotId { server: self.config.server.clone(), index: slot },
            store_url: self.config.store_url.clone(),
            class: self.config.class,
            listen_host: self.config.executor_host.clone(),
            order,
            torch: Some(self.torch_host(is_guest_index(slot))),
        };
        let shipped = self.ship(&executor);
        let device = self.config.devices.as_ref().and_then(|devices| devices.of(host_index(slot)));
        let trace = self.traces.tell(&executor);
        let launch = Launch {
            command: &self.config.executor_command,
            trace,
            start,
            log: log_path(&self.config.data_dir, &executor),
            shipped,
            record: ExecutorRecord::path(&executors_folder(&self.config.data_dir), slot),
            forked_nonce: self.warm.nonce.clone(),
            visible: self.config.devices.as_ref().map(|_| device.as_ref().map_or_else(String::new, Seat::visible)),
            device,
            gives_way: is_guest_index(slot),
        };
        match process::launch(launch, self.events_sender.clone(), &mut self.tasks) {
            Ok(process) => {
                let pid = process.pid;
                within(trace, || tracing::info!(%executor, slot, pid, "executor started"));
                self.processes.insert(slot, process);
            }
            Err(error) => {
                within(trace, || tracing::error!(%executor, slot, %error, "cannot start an executor"));
                let word = ExecutorWord::Ended(ProcessEnd::NotStarted(error.to_string()));
                self.happened.push_back(In::Executor { slot, executor, word });
            }
        }
    }

    /// A way into the store for what an executor says.
    fn ship(&mut self, executor: &ExecutorId) -> Option<mpsc::Sender<Vec<u8>>> {
        let store = self.store.clone()?;
        Some(self.shippers.begin(store, executor.clone()))
    }

    fn kill(&mut self, slot: u16, executor: &ExecutorId, cause: KillCause) {
        within(self.traces.of_executor(executor), || match cause {
            KillCause::Deadline => tracing::info!(%executor, "killing an executor at its deadline"),
            KillCause::Dismissed => tracing::info!(%executor, "killing an executor that nothing waits for"),
            KillCause::Protocol => tracing::error!(%executor, "killing an executor that breaks the protocol"),
            KillCause::Device => tracing::error!(%executor, "killing an executor whose device is gone"),
            KillCause::Silent => tracing::warn!(%executor, "killing an executor that says nothing any more"),
        });
        self.traces.ends(executor);
        self.meters.killed(cause);
        if let Some(process) = self.processes.get(&slot) {
            process.kill();
        }
    }

    fn keep(&mut self, write: u64, slots: BTreeSet<u16>) {
        let written = self.taken_back.write(slots);
        let events = self.events_sender.clone();
        self.tasks.spawn(async move {
            let written = written.await;
            if let Err(error) = &written {
                tracing::error!(%error, "cannot write down which slots were taken back; until it can be, a restart of this agent would forget it");
            }
            // Nobody to tell means that the agent has ended.
            let _ = events.send(HostEvent::Happened(In::Kept { write, durable: written.is_ok() })).await;
        });
    }
}

/// What each slot has of the processors that this process may use, in thousandths of one.
fn processors_milli(slots: u16) -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    u32::try_from(processors * 1_000 / usize::from(slots.max(1))).unwrap_or(u32::MAX)
}

/// What happened to a link, as the machine is told.
pub(crate) fn of_link(link: u64, word: LinkWord) -> HostEvent {
    HostEvent::Happened(In::Link { link, word })
}

fn moment(begun: Instant) -> Moment {
    Moment { ms: milliseconds(begun.elapsed()), wall: wall_clock() }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A task that was told to end has ended; one that panicked takes the agent along.
fn panicked(ended: Result<(), JoinError>) -> Result<(), HostError> {
    match ended {
        Err(error) if error.is_panic() => Err(HostError::Task(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Folder of the records of running executors.
pub(crate) fn executors_folder(data_dir: &Path) -> PathBuf {
    data_dir.join("executors")
}

/// Folder of what executors of models in PyTorch unpack and share.
fn torch_folder(data_dir: &Path) -> PathBuf {
    data_dir.join("torch")
}

fn log_path(data_dir: &Path, executor: &ExecutorId) -> PathBuf {
    data_dir.join("logs").join(executor.job.as_str()).join(format!("{}.log", executor.number))
}
