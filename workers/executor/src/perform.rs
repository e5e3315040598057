//! What the session's outputs do: one arm per output, in its order.

use crate::checkpoint::{RestoreProblem, Task, restore};
use crate::inbox::{Event, Saved};
use crate::reduce::Parcel;
use crate::trainer::{Ending, TrainError, Trainer};
use crate::wire::Kind;
use events_schema::fact::Entry;
use events_schema::report::{Outcome, Report};
use events_schema::{Digest, ExecutorId, Generation, Step};
use std::io::Write;
use std::sync::Arc;
use workers_session::{CheckpointId, Input, Membership, Output, Peer, ShardWritten};

impl<W: Write> Trainer<W> {
    pub(crate) fn perform(&mut self, output: Output) -> Result<(), TrainError> {
        match output {
            Output::Connect(peer, address) => self.network.connect(peer, address),
            Output::Send(to, envelope) => self.network.say(to, &envelope),
            Output::Load(generation, entry) => self.load(generation, &entry)?,
            Output::Warm(generation, ranks, step) => self.warm(generation, ranks, step),
            Output::Prefetch(ranks) => self.program.prefetch(&ranks, self.position),
            Output::Abandon => self.abandon(),
            Output::Enter(membership, step) => self.enter(membership, step),
            Output::Await(need) => {
                if let Some(membership) = &self.membership {
                    self.replica.await_supply(need, membership.tag, self.position);
                    self.take_early();
                }
            }
            Output::SendReplica { to, index, count } => self.send_replica(&to, index, count),
            Output::SendGradient(to) => self.send_gradient(&to),
            Output::Compute(step) => self.begin_step(step),
            Output::Contributed(step, sums) => self.on_contributed(step, &sums),
            Output::WriteShard { checkpoint, index, count } => self.write_shard(checkpoint, index, count),
            Output::WriteManifest(checkpoint, shards) => self.write_manifest(checkpoint, shards),
            Output::Diverged(checkpoint) => {
                let CheckpointId { step, tag } = checkpoint;
                self.break_job(format!("replicas differ at step {step} in {tag}: a device computes wrongly; check the servers, then submit the job again"))?;
            }
            Output::StandStill(step) => self.stand_still(step),
            Output::Active(generation, step) => {
                let (job, pause_us) = (self.program.job.clone(), self.meter.pause_us());
                self.report(Report::GenerationActive { job, generation, step, pause_us })?;
            }
            Output::Held(generation, step) => {
                let executor = ExecutorId { job: self.program.job.clone(), number: self.me.0 };
                self.report(Report::ReplicaHeld { executor, generation, step })?;
            }
            Output::Departed(peer, generation, step) => self.report_departure(peer, generation, step)?,
            Output::Evaluation(step, metrics) => {
                let generation = self.generation();
                if step.0 == self.program.steps_total {
                    self.ending.metrics = Some(metrics);
                }
                self.report(Report::Evaluated { job: self.program.job.clone(), generation, step, metrics })?;
                self.finish_if_done();
            }
            Output::Exit => {
                tracing::info!("left");
                self.exit = true;
            }
            Output::ExitWithoutReplica => return Err(TrainError::NoReplica),
            Output::Disconnect(peer) => self.network.cut(peer),
        }
        Ok(())
    }

    fn generation(&self) -> Generation {
        self.membership.as_ref().map_or(Generation(0), |m| m.tag.generation)
    }

    fn load(&mut self, generation: Generation, entry: &Entry) -> Result<(), TrainError> {
        let loaded = match entry {
            Entry::Checkpoint { manifest_key } => restore(&self.program, self.class, manifest_key),
            Entry::Fresh | Entry::Switch { .. } | Entry::Recover => Ok((self.program.initial_replica(), Step(0))),
        };
        match loaded {
            Ok((data, step)) => {
                self.replica.load(data, step);
                self.inputs.push_back(Input::Loaded(generation, step));
                Ok(())
            }
            Err(problem @ RestoreProblem::Other { .. }) => self.break_job(problem.to_string()),
            Err(problem) => Err(problem.into()),
        }
    }

    fn warm(&mut self, generation: Generation, ranks: Vec<events_schema::Rank>, step: Step) {
        let inbox = self.inbox.clone();
        self.program.warm(ranks, step, move || {
            // A thread of its own, because a full inbox must not stop the reading that empties it.
            // It can only fail when the trainer has ended, and then nobody waits.
            std::thread::spawn(move || drop(inbox.send(Event::Warmed(generation))));
        });
    }

    fn enter(&mut self, membership: Membership, step: Step) {
        tracing::info!(tag = %membership.tag, members = membership.seats.len(), %step, leader = %membership.leader, "in force");
        // At a boundary the replica is already there or awaited from those who are past it; a round may begin anywhere.
        let at_boundary = self.still.is_none() && self.membership.is_some();
        self.meter.on_enter(at_boundary);
        self.membership = Some(membership);
        self.position = step;
        self.still = None;
        self.ending = Ending::default();
        self.flow.totals = None;
        self.doubt_missing();
    }

    fn send_replica(&mut self, to: &[Peer], index: usize, count: usize) {
        let Some(tag) = self.membership.as_ref().map(|m| m.tag) else { return };
        let data = self.replica.shared();
        // Parameters first, to everybody: a newcomer computes as soon as it has them.
        for range in self.replica.part(index, count) {
            for &to in to.iter().filter(|_| !range.is_empty()) {
                let parcel = Parcel {
                    to,
                    kind: Kind::Replica,
                    offset: range.start,
                    range: range.clone(),
                    data: Arc::clone(&data),
                };
                self.network.send(parcel, tag, self.position);
            }
        }
    }

    fn send_gradient(&mut self, to: &[Peer]) {
        let (Some(tag), Some(data)) = (self.membership.as_ref().map(|m| m.tag), self.replica.gradient()) else {
            return;
        };
        for &to in to {
            let parcel = Parcel { to, kind: Kind::Gradient, offset: 0, range: 0..data.len(), data: Arc::clone(&data) };
            self.network.send(parcel, tag, self.position);
        }
    }

    fn write_shard(&mut self, checkpoint: CheckpointId, index: u16, count: u16) {
        let task = Task::Shard { checkpoint, index, count, replica: self.replica.shared() };
        if self.still.is_some() {
            self.checkpoints.put(task);
        } else if !self.checkpoints.offer(task) {
            tracing::warn!(step = %checkpoint.step, "the store is slower than the checkpoint interval; this checkpoint is left out");
        }
    }

    fn write_manifest(&mut self, checkpoint: CheckpointId, shards: Vec<ShardWritten>) {
        let task = Task::Manifest(checkpoint, shards);
        if self.still.is_some() {
            self.checkpoints.put(task);
        } else if !self.checkpoints.offer(task) {
            tracing::warn!(step = %checkpoint.step, "the store is slower than the checkpoint interval; this checkpoint is left out");
        }
    }

    pub(crate) fn on_manifest(&mut self, checkpoint: CheckpointId, saved: Saved) -> Result<(), TrainError> {
        let Saved { manifest_key, replica_digest, bytes } = saved;
        // Counted by the controller only if it comes from the generation in force, which may have changed since the shards were copied.
        let (job, generation, step) = (self.program.job.clone(), self.generation(), checkpoint.step);
        self.report(Report::CheckpointWritten { job, generation, step, manifest_key, replica_digest, bytes })?;
        self.inputs.push_back(Input::Saved(checkpoint));
        if step.0 == self.program.steps_total && self.still == Some(step) {
            self.ending.saved = true;
            self.finish_if_done();
        }
        Ok(())
    }

    fn stand_still(&mut self, step: Step) {
        let (copies, held_us) = (self.replica.copies, self.replica.held.as_micros());
        tracing::info!(%step, copies, held_us, "standing still");
        self.position = step;
        self.still = Some(step);
        self.begin_evaluation(step);
    }

    /// The leader, after the last step: once it is evaluated and saved, the model is written.
    fn finish_if_done(&mut self) {
        let last = Step(self.program.steps_total);
        let evaluated = self.ending.metrics.is_some() || !self.program.evaluates_at(last);
        let whole = self.still == Some(last) && self.replica.step() == Some(last);
        if whole && evaluated && self.ending.saved && !self.ending.model_ordered {
            self.ending.model_ordered = true;
            let replica = self.replica.shared();
            let digest = self.program.model_digest(&replica);
            self.checkpoints.put(Task::Model(self.program.export(&replica, &self.class), digest));
        }
    }

    pub(crate) fn on_model(&mut self, model_key: String, model_digest: Digest) -> Result<(), TrainError> {
        let step = Step(self.program.steps_total);
        let train_loss_micro = (self.meter.loss() * 1e6).round() as i64;
        let outcome = Outcome { step, model_key, model_digest, train_loss_micro, metrics: self.ending.metrics };
        let (job, generation) = (self.program.job.clone(), self.generation());
        self.report(Report::JobCompleted { job, generation, outcome })
    }

    fn report_departure(&mut self, peer: Peer, generation: Generation, step: Step) -> Result<(), TrainError> {
        let id = |peer: Peer| ExecutorId { job: self.program.job.clone(), number: peer.0 };
        let (executor, leader, job) = (id(peer), id(self.me), self.program.job.clone());
        self.report(Report::MemberDeparted { job, generation, executor, leader, step })
    }
}
