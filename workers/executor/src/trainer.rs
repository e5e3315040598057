//! The loop of one executor: takes what happened, asks the machine what to do, does it, and computes units in between.
//!
//! One thread owns everything here, and shares some of it with one that looks into the inbox while a long unit is computed (`meanwhile.rs`). It never waits for a peer, an upload or a writer; only for data of the unit it computes, and
//! for events when there is nothing to compute. All decisions are `workers/member`'s; what its outputs do is in `perform.rs`.
//!
//! Next on a job's path: `workers/member/src/member.rs`.

use crate::buffers::Pool;
use crate::checkpoint::CheckpointWriter;
use crate::control::{Agent, ControlError};
use crate::following::Following;
use crate::inbox::{Event, WriteFailure};
use crate::life::Life;
use crate::meanwhile::{Events, Units};
use crate::network::Network;
use crate::program::{Program, ProgramError};
use crate::replica::Replica;
use crate::rest::Rests;
use crate::room::Room;
use crate::stretch::Stretch;
use crate::sums::Sums;
use crate::wire::PIECE_ELEMENTS;
use events_schema::control::ALIVE_INTERVAL_MS;
use events_schema::orders::JobOrder;
use events_schema::{Digest, ExecutorId};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::time::{Duration, Instant};
use storage::checkpoint::CheckpointWriteError;
use workers_member::{Config, Evaluation, In, Member, Out, Written, behind_max};
use workers_session::{Peer, Tag};

/// The word of life is at most so old, whatever the training thread is busy with: half the interval at which it is said.
const LIFE_INTERVAL: Duration = Duration::from_millis(ALIVE_INTERVAL_MS / 2);

/// Why an executor stopped by itself. All: the process exits with a status other than 0 and the job goes on without it.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The agent cannot be told anything.
    #[error("the agent cannot be reached")]
    Agent(#[from] ControlError),
    /// This executor cannot compute; others may.
    #[error("this executor cannot compute the job")]
    Program(#[from] ProgramError),
    /// A checkpoint cannot be read at all.
    #[error("the job cannot be restored here")]
    Restore(#[from] crate::restore::RestoreProblem),
    /// The checkpoint that the job stands still for, or its model, cannot be written.
    #[error("the job's state cannot be saved")]
    Save(#[source] Option<CheckpointWriteError>),
    /// No member has a replica; the job goes back to a checkpoint.
    #[error("no member of the generation has a replica")]
    NoReplica,
    /// As asked, in the middle of a step: others stay, and compute what it was at.
    #[error("it was asked to leave, and the end of the step in flight is too far away")]
    LeftEarly,
    /// Members have different replicas; the job goes back to a checkpoint.
    #[error("the replicas of the generation's members differ; the job goes back to its last checkpoint")]
    Diverged,
    /// Every sender of events is gone.
    #[error("nothing is left to listen to")]
    SendersGone,
}

/// What an input of the machine holds besides names.
pub(crate) type Input = In<Stretch>;

/// One executor.
pub struct Trainer<W: Write> {
    pub(crate) me: Peer,
    pub(crate) member: Member<Stretch>,
    pub(crate) class: Digest,
    pub(crate) program: Program,
    pub(crate) network: Network,
    pub(crate) agent: Agent<W>,
    pub(crate) checkpoints: CheckpointWriter,
    pub(crate) inbox: SyncSender<Event>,
    pub(crate) events: Events,
    /// How long what is computed takes.
    pub(crate) units: Units,
    /// How much of it may be computed.
    pub(crate) rests: Rests,
    pub(crate) replica: Replica,
    pub(crate) sums: Sums,
    /// Where buffers of gradients come from.
    pub(crate) gradients: Pool,
    /// For the next growth.
    pub(crate) room: Room,
    /// Also those that were begun again.
    pub(crate) steps_begun: u64,
    pub(crate) life: Arc<Life>,
    /// When the word of life was set last, in the machine's time.
    life_set: Duration,
    /// When the machine's time began.
    pub(crate) started: Instant,
    /// When it wants to be woken, in its time.
    pub(crate) wake: Option<Duration>,
    pub(crate) exit: bool,
    /// The membership that was last said to be in force, in the log.
    pub(crate) logged: Option<Tag>,
    pub(crate) following: Following,
    /// Why the last write failed, should the machine give up for it.
    pub(crate) write_failure: Option<CheckpointWriteError>,
}

impl<W: Write + Send> Trainer<W> {
    /// An executor that has built its model and listens.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        executor: &ExecutorId,
        class: Digest,
        program: Program,
        network: Network,
        agent: Agent<W>,
        checkpoints: CheckpointWriter,
        (inbox, events): (SyncSender<Event>, Receiver<Event>),
        life: Arc<Life>,
        following: Following,
    ) -> Self {
        let gradients = program.workload.pool();
        Self {
            me: Peer(executor.number),
            member: Member::new(config(Peer(executor.number), &program)),
            class,
            sums: Sums::new(gradients.clone(), network.pieces(), program.workload.reads_one_vector()),
            network,
            agent,
            checkpoints,
            inbox,
            events: Events::new(events, size_of::<f32>() * program.lengths().gradient),
            units: Units::default(),
            rests: Rests::default(),
            replica: Replica::new(&program.workload, gradients.clone()),
            gradients,
            room: Room::default(),
            steps_begun: 0,
            life,
            life_set: Duration::ZERO,
            started: Instant::now(),
            wake: None,
            exit: false,
            logged: None,
            following,
            write_failure: None,
            program,
        }
    }

    /// Trains until it may leave.
    pub fn run(mut self, order: &JobOrder) -> Result<(), TrainError> {
        let result = self.run_until_exit(order);
        self.network.flush();
        result
    }

    fn run_until_exit(&mut self, order: &JobOrder) -> Result<(), TrainError> {
        self.on_order(order)?;
        let mut idle = false;
        while !self.exit {
            let event = if idle { self.wait() } else { self.events.try_next() };
            match event {
                Ok(event) => {
                    self.on_event(event)?;
                    idle = false;
                }
                Err(TryRecvError::Empty) if idle => {
                    // Else it was a rest that is over.
                    if self.wake.is_some_and(|wake| wake <= self.started.elapsed()) {
                        self.wake = None;
                        self.handle(In::Wake)?;
                    }
                    idle = false;
                }
                Err(TryRecvError::Empty) if self.rest_left().is_some() => idle = true,
                Err(TryRecvError::Empty) => idle = !self.handle(In::Free)?,
                Err(TryRecvError::Disconnected) => return Err(TrainError::SendersGone),
            }
        }
        Ok(())
    }

    /// Waits for an event, or until the machine wants to be woken or a rest is over: then there is none.
    fn wait(&mut self) -> Result<Event, TryRecvError> {
        self.life.set(self.member.progress());
        let wake = self.wake.map(|wake| wake.saturating_sub(self.started.elapsed()));
        let time = wake.into_iter().chain(self.rest_left()).min();
        self.events.wait(time).map_err(|error| match error {
            RecvTimeoutError::Timeout => TryRecvError::Empty,
            RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
        })
    }

    /// What is left of a rest. Who has to leave has none, also where it heard of that while it computed: the sooner it is at a boundary, the sooner its slot
    /// is free.
    fn rest_left(&self) -> Option<Duration> {
        self.rests.left(Instant::now()).filter(|_| !self.member.has_to_leave())
    }

    /// Gives the machine an input and does what it says; what comes of that at once is its next input. Gives whether there was anything to do.
    fn handle(&mut self, input: Input) -> Result<bool, TrainError> {
        // While a copy or a sum keeps the inbox full nothing is waited for and nothing computed, and yet there is progress to tell of.
        let now = self.started.elapsed();
        if now.saturating_sub(self.life_set) >= LIFE_INTERVAL {
            self.life_set = now;
            self.life.set(self.member.progress());
        }
        let (mut inputs, mut anything) = (VecDeque::from([input]), false);
        while let Some(input) = inputs.pop_front() {
            if matches!(input, In::Done(_)) {
                self.hear_what_came()?;
            }
            let outs = self.member.handle(self.started.elapsed(), input);
            // Before anything is computed, for it may have to be woken while that lasts.
            let wake = outs.iter().rev().find_map(|out| if let Out::WakeAt(at) = out { Some(*at) } else { None });
            self.wake = wake.or(self.wake);
            for out in outs {
                anything = true;
                inputs.extend(self.perform(out)?);
            }
        }
        Ok(anything)
    }

    /// What came while a unit was computed: before its end, as it came, because with that the step is contributed, and what a leader knows then is announced.
    /// The machine keeps it until it is told of the end, so no more is heard than was there.
    fn hear_what_came(&mut self) -> Result<(), TrainError> {
        for _ in 0..self.events.there_max() {
            let Ok(event) = self.events.try_next() else { break };
            self.on_event(event)?;
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), TrainError> {
        let input = match event {
            Event::Trace(trace) => {
                self.following.begin(trace);
                return Ok(());
            }
            Event::Order(order) => return self.on_order(&order),
            Event::Computed => return Ok(()),
            Event::Leave { within_ms } => In::Leave(Duration::from_millis(within_ms)),
            Event::Deadline { within_ms } => In::Deadline(Duration::from_millis(within_ms)),
            Event::Share { thousandths } => {
                self.rests.share(thousandths);
                return Ok(());
            }
            Event::Linked(id, link) => {
                self.network.linked(id, link);
                In::Linked(id)
            }
            Event::NotLinked(peer) => In::Refused(peer),
            Event::Lost(id) => {
                self.network.cut(id);
                In::Lost(id)
            }
            Event::Message { link, envelope, bytes } => In::Message { link, envelope, bytes },
            Event::Bulk(link, bulk, payload) => In::Bulk { link, bulk, payload },
            Event::RoomMade(room) => {
                self.room = room;
                // Before the wish that waited for this, or before the replica that is sent for it.
                self.network.show(&[self.gradients.files(), self.network.pieces().files()].concat());
                match self.program.workload.map_free() {
                    Ok(()) => In::RoomMade,
                    Err(error) => self.failed(error)?,
                }
            }
            Event::Warmed(generation) => In::Warmed(generation),
            Event::ShardWritten(shard) => self.written(Written::Shard(shard)),
            Event::ManifestWritten(checkpoint, saved) => self.written(Written::Manifest(checkpoint, saved)),
            Event::ModelWritten(digest) => self.written(Written::Model(digest)),
            Event::Checksum { at, checksum, took } => {
                self.checkpoints.done();
                In::Checksum { at, checksum, took }
            }
            Event::NotWritten(failure) => self.not_written(failure),
        };
        self.handle(input)?;
        Ok(())
    }

    /// The writer is done with a task, so it has room for another.
    fn written(&mut self, written: Written) -> Input {
        self.checkpoints.done();
        In::Written(written)
    }

    fn not_written(&mut self, WriteFailure { checkpoint, source }: WriteFailure) -> Input {
        self.checkpoints.done();
        tracing::error!(step = ?checkpoint.map(|c| c.step), error = %source, "not in the store");
        use CheckpointWriteError::{Store, Unnamed, Unread};
        let later = matches!(source, Store(_) | Unnamed { .. } | Unread(_));
        self.write_failure = Some(source);
        In::NotWritten { checkpoint, later }
    }

    /// A newer order: only what it adds matters to the machine.
    fn on_order(&mut self, order: &JobOrder) -> Result<(), TrainError> {
        self.rests.park(order.park);
        self.handle(In::Park(order.park))?;
        if let Some(proposal) = &order.proposal {
            tracing::debug!(generation = %proposal.generation, members = proposal.members.len(), entry = ?proposal.entry, "proposed");
            self.handle(In::Proposal(Box::new(proposal.clone())))?;
        }
        Ok(())
    }
}

fn config(me: Peer, program: &Program) -> Config {
    let every_steps = program.spec.evaluation.as_ref().map(|e| e.every_steps);
    let evaluation = every_steps.zip(program.evaluation_parts());
    Config {
        job: program.job.clone(),
        me,
        workers: program.workers(),
        determinism: program.spec.determinism,
        steps_total: program.end(),
        steps_per_epoch: program.steps_per_epoch,
        rows: program.rows,
        batch_size: program.spec.batch_size,
        checkpoint: program.spec.checkpoint.every,
        compare_every: program.spec.compare_every_steps,
        restarts: program.restarts,
        store_patience: Duration::from_millis(program.spec.store_patience_ms.ms()),
        evaluation: evaluation.map(|(every_steps, parts)| Evaluation { every_steps, parts }),
        gradient_len: program.lengths().gradient,
        compute_len: program.lengths().compute,
        replica_len: program.lengths().replica,
        behind_max: behind_max(program.lengths().replica, program.lengths().gradient),
        piece_elements: PIECE_ELEMENTS,
    }
}
