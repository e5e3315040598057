//! The event loop of one executor: takes what happened, asks the session what to do, and computes in between, one gradient at a time.
//!
//! One thread owns everything here. It never waits for a peer, an upload or a writer; only for data of the step it computes, and
//! for events when there is nothing to compute. What outputs of the session do is in `perform.rs`, a step in `step.rs`.

use crate::checkpoint::CheckpointWriter;
use crate::control::{Agent, ControlError};
use crate::doubt::{Doubts, ROUND_GRACE};
use crate::early::Early;
use crate::inbox::{Event, WriteFailure};
use crate::meter::Meter;
use crate::network::{Link, Network, Taken};
use crate::program::{Program, ProgramError};
use crate::replica::Replica;
use crate::step::Flow;
use events_schema::control::FromExecutor;
use events_schema::fact::Entry;
use events_schema::orders::JobOrder;
use events_schema::report::{Metrics, Report};
use events_schema::{Digest, ExecutorId, Generation, Step};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use workers_session::{Config, Input, Membership, Peer, Session};

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
    Restore(#[from] crate::checkpoint::RestoreProblem),
    /// The checkpoint that the job stands still for, or its model, cannot be written.
    #[error("the job's state cannot be saved")]
    Save(#[source] storage::checkpoint::CheckpointWriteError),
    /// No member has a replica; the job goes back to a checkpoint.
    #[error("no member of the generation has a replica")]
    NoReplica,
    /// Every sender of events is gone.
    #[error("nothing is left to listen to")]
    Deaf,
}

/// What is left to do after the last step, on the leader.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    pub metrics: Option<Metrics>,
    pub saved: bool,
    pub model_ordered: bool,
}

/// One executor.
pub struct Trainer<W: Write> {
    pub(crate) me: Peer,
    pub(crate) class: Digest,
    pub(crate) program: Program,
    pub(crate) session: Session,
    pub(crate) network: Network,
    pub(crate) agent: Agent<W>,
    pub(crate) checkpoints: CheckpointWriter,
    pub(crate) inbox: SyncSender<Event>,
    pub(crate) inputs: VecDeque<Input>,
    pub(crate) replica: Replica,
    /// The membership entered last, and the step it is at.
    pub(crate) membership: Option<Membership>,
    pub(crate) position: Step,
    pub(crate) flow: Flow,
    pub(crate) early: Early,
    pub(crate) meter: Meter,
    /// Set while standing still, with the step.
    pub(crate) still: Option<Step>,
    pub(crate) ending: Ending,
    /// The job is broken and reported so; only a stop is awaited.
    pub(crate) broken: bool,
    pub(crate) exit: bool,
    pub(crate) doubts: Doubts,
    proposed: Option<Generation>,
}

impl<W: Write> Trainer<W> {
    /// An executor that has built its model and listens.
    pub fn new(
        executor: &ExecutorId,
        class: Digest,
        program: Program,
        network: Network,
        agent: Agent<W>,
        checkpoints: CheckpointWriter,
        inbox: SyncSender<Event>,
    ) -> Self {
        let me = Peer(executor.number);
        let config = Config {
            me,
            workers: program.workers(),
            steps_total: program.steps_total,
            checkpoint_every: program.spec.checkpoint.every_steps,
        };
        Self {
            me,
            class,
            session: Session::new(config),
            network,
            agent,
            checkpoints,
            inbox,
            inputs: VecDeque::new(),
            replica: Replica::new(&program.update),
            membership: None,
            position: Step(0),
            flow: Flow::default(),
            early: Early::new(program.parameter_count()),
            meter: Meter::default(),
            still: None,
            ending: Ending::default(),
            broken: false,
            exit: false,
            doubts: Doubts::new(),
            proposed: None,
            program,
        }
    }

    /// Trains until it may leave.
    pub fn run(mut self, events: &Receiver<Event>) -> Result<(), TrainError> {
        let result = self.run_until_exit(events);
        self.network.flush();
        result
    }

    fn run_until_exit(&mut self, events: &Receiver<Event>) -> Result<(), TrainError> {
        loop {
            self.settle()?;
            if self.exit {
                return Ok(());
            }
            let event =
                if self.can_work() { events.try_recv() } else { events.recv().map_err(|_| TryRecvError::Disconnected) };
            match event {
                Ok(event) => self.on_event(event)?,
                Err(TryRecvError::Empty) => self.work()?,
                Err(TryRecvError::Disconnected) => return Err(TrainError::Deaf),
            }
        }
    }

    /// Feeds the session until it has nothing more to say.
    fn settle(&mut self) -> Result<(), TrainError> {
        loop {
            self.complete_if_whole()?;
            let Some(input) = self.inputs.pop_front() else { return Ok(()) };
            for output in self.session.handle(input) {
                self.perform(output)?;
            }
        }
    }

    fn on_event(&mut self, event: Event) -> Result<(), TrainError> {
        match event {
            Event::Order(order) => self.on_order(&order),
            Event::Leave { within_ms } => {
                tracing::info!(within_ms, "asked to leave");
                self.inputs.push_back(Input::Leave);
            }
            Event::Linked(peer, link) => self.on_linked(peer, link),
            Event::NotLinked(peer) => self.network.not_linked(peer),
            Event::Lost(peer, number) => {
                if self.network.lost(peer, number) {
                    self.on_lost(peer);
                }
            }
            Event::StillLost(peer, generation) => self.on_still_lost(peer, generation)?,
            Event::StillJoining(generation) => self.on_still_joining(generation)?,
            Event::Message(peer, number, envelope) => {
                if self.network.is_current(peer, number) {
                    self.inputs.push_back(Input::Message(peer, envelope));
                }
            }
            Event::Bulk(peer, number, header, elements) => {
                if self.network.is_current(peer, number) {
                    self.on_bulk(peer, header, elements);
                }
            }
            Event::Warmed(generation) => self.inputs.push_back(Input::Warmed(generation)),
            Event::ShardWritten(_) | Event::ManifestWritten(..) | Event::ModelWritten { .. } | Event::NotWritten(_) => {
                self.on_written(event)?;
            }
        }
        Ok(())
    }

    /// The writer is done with a task, so it has room for another.
    fn on_written(&mut self, event: Event) -> Result<(), TrainError> {
        self.checkpoints.flush();
        match event {
            Event::ShardWritten(shard) => self.inputs.push_back(Input::ShardWritten(shard)),
            Event::ManifestWritten(checkpoint, saved) => self.on_manifest(checkpoint, saved)?,
            Event::ModelWritten { key, digest } => self.on_model(key, digest)?,
            Event::NotWritten(failure) => self.on_not_written(failure)?,
            _ => {}
        }
        Ok(())
    }

    /// A newer order: only what it adds matters here.
    pub fn on_order(&mut self, order: &JobOrder) {
        if let Some(proposal) =
            order.proposal.as_ref().filter(|p| self.proposed.is_none_or(|newest| p.generation > newest))
        {
            self.proposed = Some(proposal.generation);
            tracing::info!(generation = %proposal.generation, members = proposal.members.len(), entry = ?proposal.entry, "proposed");
            if !matches!(proposal.entry, Entry::Switch { .. }) {
                self.watch_round(proposal.generation, ROUND_GRACE);
            }
            self.inputs.push_back(Input::Proposal(proposal.clone()));
        }
        if order.park {
            self.inputs.push_back(Input::Park);
        }
    }

    fn on_linked(&mut self, peer: Peer, link: Link) {
        match self.network.linked(peer, link) {
            Taken::New => {}
            Taken::Instead => self.on_lost(peer),
            Taken::Stale => return,
        }
        self.inputs.push_back(Input::Linked(peer));
    }

    fn on_lost(&mut self, peer: Peer) {
        if self.session.membership().is_some_and(|m| m.has(peer)) {
            tracing::warn!(%peer, "link to a member lost");
            self.meter.on_loss();
            self.doubt(peer);
        }
        self.inputs.push_back(Input::Lost(peer));
    }

    fn on_not_written(&mut self, failure: WriteFailure) -> Result<(), TrainError> {
        let needed = failure.checkpoint.is_none_or(|c| self.still == Some(c.step));
        if needed {
            return Err(TrainError::Save(failure.source));
        }
        tracing::error!(error = %failure.source, "a checkpoint is given up; training goes on");
        Ok(())
    }

    pub(crate) fn report(&mut self, report: Report) -> Result<(), TrainError> {
        tracing::info!(?report, "report");
        Ok(self.agent.say(&FromExecutor::Report(report))?)
    }

    /// Tells the job's user why it cannot go on, or stops this executor if only it cannot.
    pub(crate) fn fail(&mut self, error: ProgramError) -> Result<(), TrainError> {
        if error.is_broken() { self.break_job(error.reason()) } else { Err(error.into()) }
    }

    pub(crate) fn break_job(&mut self, reason: String) -> Result<(), TrainError> {
        tracing::error!(reason, "the job is broken");
        self.broken = true;
        self.flow = Flow::default();
        let generation = self.membership.as_ref().map_or(Generation(0), |m| m.tag.generation);
        self.report(Report::JobBroken { job: self.program.job.clone(), generation, reason })
    }
}
