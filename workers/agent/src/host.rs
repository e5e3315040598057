//! The agent's one task that owns the slots: takes orders, starts, watches and ends executors, and reports what it saw. All
//! else (stream, direct listener, processes) talks to it through [`HostEvent`]s, so nothing here needs a lock.
//!
//! It never waits for an executor, the controller or a caller. Next files: `take_back.rs` (the fleet's side of the same
//! task), `uplink.rs` (the controller's side).

use crate::outbox::Outbox;
use crate::process::{self, Launch, Process};
use crate::reconcile::{OccupantView, SlotView, Step, reconcile};
use crate::record::{ExecutorRecord, TakenBack};
use crate::slot::{Claim, Deadlines, Ending, Occupant, Slot, exit_cause};
use crate::take_back::{SlotReport, TakeBack, Waiting};
use crate::{AgentConfig, wall_clock};
use events_schema::control::{ALIVE_INTERVAL_MS, ExecutorStart, FromExecutor, ToExecutor};
use events_schema::orders::{ExecutorOrder, Orders, Telemetry};
use events_schema::report::{ExitCause, Report};
use events_schema::{Epoch, ExecutorId, JobId, Offset, SlotId};
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time from a stop to the kill: an executor that is told to stop has nothing left to save.
pub const STOP_GRACE: Duration = Duration::from_secs(2);

/// How often the agent looks which executors have said nothing since it last looked: as often as they say something.
const LOOK_INTERVAL: Duration = Duration::from_millis(ALIVE_INTERVAL_MS);

/// Looks in a row without a word after which an executor is taken for hung: three seconds, so that its job trains again within
/// five. Looks are counted, not time, because an agent that was itself held up has not listened meanwhile.
const SILENT_LOOKS_MAX: u32 = 6;

/// Longest time to a deadline that is believed: far beyond any, and a number that can be added to a clock.
const LEAVE_IN_MS_MAX: u64 = 24 * 3_600_000;

/// Everything that can wake the host.
#[derive(Debug)]
pub(crate) enum HostEvent {
    /// The controller's wanted state of this server.
    Orders { incarnation: u64, orders: Orders },
    /// Reports up to this number have had their effect.
    Taken { incarnation: u64, through: u64 },
    /// A controller of this epoch lives.
    Heard { epoch: Epoch },
    /// The controller gave this incarnation up.
    Rejoin { incarnation: u64 },
    /// An executor said something.
    Frame { slot: u16, executor: ExecutorId, frame: FromExecutor },
    /// An executor said what is no frame.
    Garbage { slot: u16, executor: ExecutorId, reason: String },
    /// An executor is reaped and its group empty.
    Exited { slot: u16, executor: ExecutorId, status: io::Result<ExitStatus> },
    /// A fleet wants slots back now.
    TakeBack(TakeBack),
    /// Somebody wants to see the slots.
    Look(oneshot::Sender<Vec<SlotReport>>),
}

/// Why the host ended by itself. Stop: the agent cannot do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostError {
    /// A task that watches an executor panicked.
    #[error("the task that watches an executor panicked")]
    Supervisor(#[source] tokio::task::JoinError),
    /// No random bytes for a new incarnation.
    #[error("no random bytes from the operating system: {0}")]
    Random(String),
}

/// What the host is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Following orders.
    Serving,
    /// Ending all executors to join as a new process.
    Rejoining,
    /// Ending all executors for good.
    Stopping,
}

pub(crate) struct Host {
    pub(crate) config: AgentConfig,
    /// Where fleets reach this agent (`http://HOST:PORT`).
    pub(crate) address: String,
    pub(crate) slots: Vec<Slot>,
    pub(crate) taken_back: TakenBack,
    pub(crate) waiting: Vec<Waiting>,
    /// When to write the slots taken back again, after a write that failed.
    pub(crate) keep_again_at: Option<Instant>,
    /// When to look for silent executors again.
    next_look: Instant,
    phase: Phase,
    outbox: watch::Sender<Outbox>,
    telemetry: mpsc::Sender<Telemetry>,
    /// Epoch and position of the newest orders seen. Older ones are refused.
    newest: (Epoch, Offset),
    wanted: Vec<ExecutorOrder>,
    /// Executors that ended while orders list them.
    ended: BTreeSet<ExecutorId>,
    /// Whether the controller's state has seen this incarnation; orders from before do not know what is really here.
    joined: bool,
    /// When a controller was last heard to live; `None` once the lease is spent. Orders do not count: one that has lost its
    /// log still has them.
    heard_at: Option<Instant>,
    events_sender: mpsc::Sender<HostEvent>,
    events: mpsc::Receiver<HostEvent>,
    supervisors: JoinSet<()>,
}

/// Ends of the host's channels.
pub(crate) struct HostChannels {
    pub outbox: watch::Sender<Outbox>,
    pub telemetry: mpsc::Sender<Telemetry>,
    pub events_sender: mpsc::Sender<HostEvent>,
    pub events: mpsc::Receiver<HostEvent>,
}

impl Host {
    /// A host with free slots; those in `fleets` were taken back before this process began.
    pub fn new(
        config: AgentConfig,
        address: String,
        fleets: &BTreeSet<u16>,
        taken_back: TakenBack,
        channels: HostChannels,
    ) -> Self {
        let slot = |index| Slot {
            id: SlotId { server: config.server.clone(), index },
            occupant: None,
            claim: if fleets.contains(&index) { Claim::TakenBack } else { Claim::Orders },
        };
        let slots = (0..config.slots).map(slot).collect();
        let HostChannels { outbox, telemetry, events_sender, events } = channels;
        Self {
            config,
            address,
            slots,
            taken_back,
            waiting: Vec::new(),
            keep_again_at: None,
            next_look: Instant::now(),
            phase: Phase::Serving,
            outbox,
            telemetry,
            newest: (Epoch(0), Offset(0)),
            wanted: Vec::new(),
            ended: BTreeSet::new(),
            joined: false,
            heard_at: Some(Instant::now()),
            events_sender,
            events,
            supervisors: JoinSet::new(),
        }
    }

    /// Runs until `shutdown`, then ends all executors and returns when their slots are free.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), HostError> {
        self.join();
        loop {
            if self.slots.iter().all(|slot| slot.occupant.is_none()) {
                match self.phase {
                    Phase::Serving => {}
                    Phase::Rejoining => self.rejoin()?,
                    Phase::Stopping => return Ok(()),
                }
            }
            let alarm = self.alarm();
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(alarm.unwrap_or_else(Instant::now)), if alarm.is_some() => self.pass_time().await,
                () = shutdown.cancelled(), if self.phase != Phase::Stopping => self.end_all(Phase::Stopping),
                Some(ended) = self.supervisors.join_next() => ended.map_err(HostError::Supervisor)?,
                Some(event) = self.events.recv() => self.handle(event).await,
            }
        }
    }

    async fn handle(&mut self, event: HostEvent) {
        match event {
            HostEvent::Orders { incarnation, orders } if incarnation == self.incarnation() => self.take_orders(orders),
            HostEvent::Taken { incarnation, through } if incarnation == self.incarnation() => {
                self.reports_taken(through).await
            }
            HostEvent::Rejoin { incarnation } if incarnation == self.incarnation() => self.end_all(Phase::Rejoining),
            HostEvent::Orders { .. } | HostEvent::Taken { .. } | HostEvent::Rejoin { .. } => {}
            HostEvent::Heard { epoch } => self.heard(epoch),
            HostEvent::Frame { slot, executor, frame } => self.frame(slot, &executor, frame),
            HostEvent::Garbage { slot, executor, reason } => self.refuse_executor(slot, &executor, &reason),
            HostEvent::Exited { slot, executor, status } => self.exited(slot, executor, status).await,
            HostEvent::TakeBack(request) => self.take_back(request).await,
            HostEvent::Look(reply) => {
                // A caller that went away needs no answer.
                let _ = reply.send(self.slots.iter().map(SlotReport::of).collect());
            }
        }
    }

    fn incarnation(&self) -> u64 {
        self.outbox.borrow().incarnation()
    }

    /// Queues a report. When nothing more can be kept, this incarnation is beyond repair: join as a new one.
    pub(crate) fn report(&mut self, report: Report) -> u64 {
        let mut pushed = Ok(0);
        self.outbox.send_modify(|outbox| pushed = outbox.push(wall_clock(), report));
        pushed.unwrap_or_else(|full| {
            tracing::error!(error = %full, "joining as a new process");
            self.end_all(Phase::Rejoining);
            u64::MAX
        })
    }

    /// Reports this process, then the slots that are their fleets' already.
    fn join(&mut self) {
        let AgentConfig { slots, class, .. } = self.config;
        self.report(Report::AgentJoined { slots, class, address: self.address.clone() });
        for index in 0..self.slots.len() {
            if self.slots[index].claim.is_fleets() {
                self.report_taken_back(index);
            }
        }
    }

    /// Becomes a new process in the controller's eyes; nothing runs any more.
    fn rejoin(&mut self) -> Result<(), HostError> {
        let incarnation = getrandom::u64().map_err(|e| HostError::Random(e.to_string()))?;
        self.outbox.send_replace(Outbox::new(incarnation));
        self.phase = Phase::Serving;
        self.joined = false;
        self.wanted.clear();
        self.ended.clear();
        self.join();
        Ok(())
    }

    /// A controller lives and can decide; one of an older epoch renews nothing.
    fn heard(&mut self, epoch: Epoch) {
        if self.is_newest(epoch) {
            self.heard_at = Some(Instant::now());
        }
    }

    /// Whether no controller of a higher epoch was heard.
    fn is_newest(&mut self, epoch: Epoch) -> bool {
        if epoch > self.newest.0 {
            self.newest = (epoch, Offset(0));
        }
        epoch == self.newest.0
    }

    fn take_orders(&mut self, orders: Orders) {
        if !self.is_newest(orders.epoch) {
            tracing::warn!(epoch = %orders.epoch, newest = %self.newest.0, "refusing orders of a controller that was replaced");
            return;
        }
        if orders.position < self.newest.1 || self.phase != Phase::Serving {
            return;
        }
        self.newest.1 = orders.position;
        if !self.joined {
            return;
        }
        for slot in self.slots.iter_mut().filter(|slot| slot.claim == Claim::Taken) {
            slot.claim = Claim::Orders;
        }
        self.ended.retain(|ended| orders.executors.iter().any(|order| order.executor == *ended));
        self.wanted = orders.executors;
        self.follow_orders();
    }

    async fn reports_taken(&mut self, through: u64) {
        self.outbox.send_modify(|outbox| outbox.taken(through));
        self.joined |= through >= 1;
        let mut changed = false;
        for slot in &mut self.slots {
            if matches!(slot.claim, Claim::Reported { number } if number <= through) {
                slot.claim = Claim::Taken;
                changed = true;
            }
        }
        if changed {
            // Whether it worked matters to no caller: a slot too many in the file is only reported again by the next process.
            let _ = self.keep_taken_back().await;
        }
    }

    /// Does what is missing between the slots and the newest orders.
    fn follow_orders(&mut self) {
        if self.phase != Phase::Serving {
            return;
        }
        let wanted = std::mem::take(&mut self.wanted);
        let views: Vec<SlotView<'_>> = self.slots.iter().map(view).collect();
        let steps = reconcile(&wanted, &views, &self.ended);
        for step in steps {
            match step {
                Step::Start(order) => self.start(order),
                Step::Refuse(order) => {
                    self.not_there(order, ExitCause::NotStarted("this server has no such slot".to_owned()))
                }
                Step::Skip(order) => self.not_there(order, ExitCause::Killed),
                Step::Tell { slot, order } => {
                    let Some(occupant) = self.occupant(slot) else { continue };
                    occupant.order = order.clone();
                    self.tell(slot, ToExecutor::Order(Box::new(order.clone())));
                }
                Step::Deadline { slot, leave_by, leave_in_ms } => {
                    let Some(occupant) = self.occupant(slot) else { continue };
                    occupant.leave(leave_by, Instant::now() + Duration::from_millis(leave_in_ms.min(LEAVE_IN_MS_MAX)));
                }
                Step::Stop { slot } => self.stop(slot),
            }
        }
        self.wanted = wanted;
    }

    fn start(&mut self, order: &ExecutorOrder) {
        let ExecutorOrder { executor, slot, job, .. } = order;
        let start = ExecutorStart {
            executor: executor.clone(),
            slot: slot.clone(),
            store_url: self.config.store_url.clone(),
            class: self.config.class,
            listen_host: self.config.executor_host.clone(),
            order: job.clone(),
        };
        let launch = Launch {
            command: &self.config.executor_command,
            start,
            log: log_path(&self.config.data_dir, executor),
            record: ExecutorRecord::path(&executors_folder(&self.config.data_dir), slot.index),
        };
        match process::launch(launch, self.events_sender.clone(), &mut self.supervisors) {
            Ok(process) => {
                tracing::info!(%executor, %slot, pid = process.pid, "executor started");
                self.occupy(order, process);
            }
            Err(error) => {
                tracing::error!(%executor, %slot, %error, "cannot start an executor");
                self.not_there(order, ExitCause::NotStarted(error.to_string()));
            }
        }
    }

    fn occupy(&mut self, order: &ExecutorOrder, process: Process) {
        self.slots[usize::from(order.slot.index)].occupant = Some(Occupant {
            executor: order.executor.clone(),
            process,
            order: order.job.clone(),
            leave_by: None,
            deadlines: Deadlines::default(),
            ending: Ending::None,
            silent_looks: None,
        });
    }

    /// Reports the end of an executor that never ran here.
    fn not_there(&mut self, order: &ExecutorOrder, exit: ExitCause) {
        self.ended.insert(order.executor.clone());
        self.report(Report::ExecutorGone { executor: order.executor.clone(), slot: order.slot.clone(), exit });
    }

    pub(crate) fn occupant(&mut self, slot: u16) -> Option<&mut Occupant> {
        self.slots.get_mut(usize::from(slot))?.occupant.as_mut()
    }

    /// Sends a frame; an executor that leaves its frames unread is stuck and is killed.
    pub(crate) fn tell(&mut self, slot: u16, frame: ToExecutor) {
        if let Some(occupant) = self.occupant(slot)
            && !occupant.process.send(frame)
        {
            tracing::warn!(executor = %occupant.executor, "killing an executor that reads no frames");
            occupant.kill(Ending::Refused);
        }
    }

    fn stop(&mut self, slot: u16) {
        let Some(occupant) = self.occupant(slot).filter(|occupant| occupant.ending == Ending::None) else { return };
        occupant.ending = Ending::Stopped;
        occupant.deadlines.stop = Some(Instant::now() + STOP_GRACE);
        // One that reads no frames is killed in `tell`, one that ignores this at its deadline.
        self.tell(slot, ToExecutor::Stop);
    }

    fn end_all(&mut self, phase: Phase) {
        if self.phase != Phase::Stopping {
            self.phase = phase;
        }
        for slot in 0..self.config.slots {
            self.stop(slot);
        }
    }

    /// When something has to be done by the clock.
    fn alarm(&self) -> Option<Instant> {
        let lease_end = self.heard_at.map(|heard| heard + self.config.lease);
        let is_used = self.slots.iter().any(|slot| slot.occupant.is_some());
        let next_look = is_used.then_some(self.next_look);
        [self.next_kill(), lease_end, self.keep_again_at, next_look].into_iter().flatten().min()
    }

    /// When the next executor has to be killed, if it is still there then.
    pub(crate) fn next_kill(&self) -> Option<Instant> {
        self.slots.iter().filter_map(|slot| slot.occupant.as_ref()?.deadlines.earliest()).min()
    }

    /// Kills executors at their deadlines.
    pub(crate) fn kill_overdue(&mut self) {
        let now = Instant::now();
        for occupant in self.slots.iter_mut().filter_map(|slot| slot.occupant.as_mut()) {
            if occupant.deadlines.earliest().is_some_and(|deadline| deadline <= now) {
                tracing::info!(executor = %occupant.executor, "killing an executor at its deadline");
                occupant.kill(Ending::Killed);
                // Also of one that was killed before, or the clock would ring for it without end.
                occupant.deadlines = Deadlines::default();
            }
        }
    }

    /// Kills executors that have said nothing for too many looks: hung, and with them their job.
    fn look_for_silence(&mut self) {
        for occupant in self.slots.iter_mut().filter_map(|slot| slot.occupant.as_mut()) {
            let heard = occupant.process.was_heard();
            occupant.silent_looks = if heard { Some(0) } else { occupant.silent_looks.map(|looks| looks + 1) };
            if occupant.silent_looks >= Some(SILENT_LOOKS_MAX) && !occupant.is_killed() {
                tracing::warn!(executor = %occupant.executor, "killing an executor that says nothing any more");
                occupant.kill(Ending::Silent);
            }
        }
    }

    async fn pass_time(&mut self) {
        self.kill_overdue();
        let now = Instant::now();
        if self.next_look <= now {
            self.look_for_silence();
            self.next_look = now + LOOK_INTERVAL;
        }
        if self.keep_again_at.is_some_and(|at| at <= now) {
            // What is still not written is tried again.
            let _ = self.keep_taken_back().await;
        }
        if self.heard_at.is_some_and(|heard| heard + self.config.lease <= now) {
            self.heard_at = None;
            self.end_lease().await;
        }
    }

    fn frame(&mut self, slot: u16, executor: &ExecutorId, frame: FromExecutor) {
        let about = match &frame {
            FromExecutor::Report(report) => concerns(report, executor),
            FromExecutor::Telemetry(telemetry) => telemetry.job == executor.job,
            FromExecutor::Alive | FromExecutor::Progress(_) => true,
        };
        match frame {
            _ if !about => self.refuse_executor(slot, executor, "it spoke of what is not its own"),
            // A generation number of a killed executor still counts: what it reported was true when it said so.
            FromExecutor::Report(report) if self.phase != Phase::Rejoining => {
                self.report(report);
            }
            FromExecutor::Report(_) | FromExecutor::Alive | FromExecutor::Progress(_) => {}
            FromExecutor::Telemetry(telemetry) => {
                // Progress that finds no room is stale by the time there is some.
                let _ = self.telemetry.try_send(telemetry);
            }
        }
    }

    fn refuse_executor(&mut self, slot: u16, executor: &ExecutorId, reason: &str) {
        if let Some(occupant) = self.occupant(slot).filter(|occupant| occupant.executor == *executor) {
            tracing::error!(%executor, reason, "killing an executor that breaks the protocol");
            occupant.kill(Ending::Refused);
        }
    }

    async fn exited(&mut self, slot: u16, executor: ExecutorId, status: io::Result<ExitStatus>) {
        let index = usize::from(slot);
        let Some(occupant) = self.slots[index].occupant.take_if(|occupant| occupant.executor == executor) else {
            return;
        };
        let exit = exit_cause(status, occupant.ending);
        tracing::info!(%executor, ?exit, "executor ended");
        self.ended.insert(executor.clone());
        if self.phase != Phase::Rejoining {
            // First whose the slot is, then that it is free: the other way round it could be used in between.
            if self.slots[index].claim == Claim::TakenBack {
                self.report_taken_back(index);
            }
            let slot = self.slots[index].id.clone();
            self.report(Report::ExecutorGone { executor, slot, exit: exit.clone() });
        }
        self.freed(slot, matches!(exit, ExitCause::Killed | ExitCause::Silent));
        self.follow_orders();
    }

    pub(crate) fn report_taken_back(&mut self, index: usize) {
        let slot = self.slots[index].id.clone();
        let number = self.report(Report::SlotTakenBack { slot });
        self.slots[index].claim = Claim::Reported { number };
    }
}

fn view(slot: &Slot) -> SlotView<'_> {
    let occupant = slot.occupant.as_ref().map(|occupant| OccupantView {
        executor: &occupant.executor,
        order: &occupant.order,
        leave_by: occupant.leave_by,
        ending: occupant.ending != Ending::None,
    });
    SlotView { id: &slot.id, usable: slot.claim == Claim::Orders, occupant }
}

/// Whether an executor may report this: its own readiness and its own job, never the agent's matters.
fn concerns(report: &Report, executor: &ExecutorId) -> bool {
    let own_job = |job: &JobId| *job == executor.job;
    match report {
        Report::AgentJoined { .. } | Report::AgentGone | Report::ExecutorGone { .. } | Report::SlotTakenBack { .. } => {
            false
        }
        Report::ExecutorReady { executor: ready, .. } => ready == executor,
        Report::GenerationActive { job, .. }
        | Report::MemberDeparted { job, .. }
        | Report::CheckpointWritten { job, .. }
        | Report::JobCompleted { job, .. }
        | Report::JobBroken { job, .. }
        | Report::Evaluated { job, .. }
        | Report::PeerLost { job, .. } => own_job(job),
    }
}

/// Folder of the records of running executors.
pub(crate) fn executors_folder(data_dir: &std::path::Path) -> PathBuf {
    data_dir.join("executors")
}

fn log_path(data_dir: &std::path::Path, executor: &ExecutorId) -> PathBuf {
    data_dir.join("logs").join(executor.job.as_str()).join(format!("{}.log", executor.number))
}
