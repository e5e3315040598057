//! What is written to the store, and the end of a job: checkpoints behind the training, those that the job stands still for, the model.
//!
//! A checkpoint behind the training may fail; the next does better. What the job stands still for is written again for as long as
//! anybody could want it: a store that is away is no reason to give a slot back and read the replica from that same store.

use crate::event::{Exit, Out, Saved, Task, Written};
use crate::member::Member;
use events_schema::report::{Metrics, Outcome, Report};
use events_schema::{Digest, Step};
use std::time::Duration;
use workers_session::{CheckpointId, Input, ShardWritten};

/// A needed write that failed is ordered again this much later; it was retried by itself before it failed.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// An executor ends by itself after so many times the patience of its spec, in case no controller is there: one that is suspends the job
/// after once that time, and no restart reads from the store that is away.
pub const STORE_PATIENCE_FACTOR: u32 = 2;

/// A write that may not be left out.
#[derive(Debug, Clone)]
struct Needed {
    task: Task,
    /// When it failed first.
    failed: Option<Duration>,
    /// When to order it again; under way if never.
    again: Option<Duration>,
}

/// What is left to write and, on the leader after the last step, to finish.
#[derive(Debug, Clone, Default)]
pub(crate) struct Saving {
    needed: Vec<Needed>,
    metrics: Option<Metrics>,
    saved: bool,
    model_ordered: bool,
}

impl Saving {
    /// Whether something has to be in the store before the job goes on.
    pub fn is_needed(&self) -> bool {
        !self.needed.is_empty()
    }

    /// When to order something again.
    pub fn next(&self) -> Option<Duration> {
        self.needed.iter().filter_map(|needed| needed.again).min()
    }

    fn done(&mut self, checkpoint: Option<CheckpointId>) {
        self.needed.retain(|needed| needed.task.checkpoint() != checkpoint);
    }
}

impl<P> Member<P> {
    /// What the job stands still for may not be left out; what is left of a checkpoint behind the training may, also by then.
    pub(crate) fn write(&mut self, task: Task) {
        let tag = self.membership.as_ref().map(|membership| membership.tag);
        let is_of_still = |of: CheckpointId| self.still == Some(of.step) && Some(of.tag) >= tag;
        let needed = self.still.is_some() && task.checkpoint().is_none_or(is_of_still);
        if needed {
            self.saving.needed.push(Needed { task: task.clone(), failed: None, again: None });
        }
        self.out.push(Out::Write { task, needed });
    }

    pub(crate) fn on_written(&mut self, written: Written) {
        match written {
            Written::Shard(shard) => {
                self.saving.done(Some(shard.checkpoint));
                self.pace.on_written(shard.checkpoint, self.now);
                self.inputs.push_back(Input::ShardWritten(shard));
            }
            Written::Manifest(checkpoint, saved) => {
                self.saving.done(Some(checkpoint));
                self.on_manifest(checkpoint, saved);
            }
            Written::Model(digest) => {
                self.saving.done(None);
                self.on_model(digest);
            }
        }
    }

    /// The store was retried and still refuses; if not even later will do, nor will waiting.
    pub(crate) fn on_not_written(&mut self, checkpoint: Option<CheckpointId>, later: bool) {
        let (now, patience) = (self.now, self.config.store_patience * STORE_PATIENCE_FACTOR);
        for needed in self.saving.needed.iter_mut().filter(|needed| needed.task.checkpoint() == checkpoint) {
            let failed = *needed.failed.get_or_insert(now);
            needed.again = Some(now + AGAIN_AFTER);
            if !later || now.saturating_sub(failed) >= patience {
                self.out.push(Out::Exit(Exit::NotSaved));
                self.ended = true;
                return;
            }
        }
    }

    /// Orders again what failed, if it is still wanted.
    pub(crate) fn write_again(&mut self) {
        let now = self.now;
        for needed in self.saving.needed.iter_mut().filter(|needed| needed.again.is_some_and(|at| at <= now)) {
            needed.again = None;
            self.out.push(Out::Write { task: needed.task.clone(), needed: true });
        }
    }

    /// Another membership is in force, or none: what this one stood still for does not count any more.
    pub(crate) fn forget_saving(&mut self) {
        self.saving = Saving::default();
    }

    pub(crate) fn write_manifest(&mut self, checkpoint: CheckpointId, shards: Vec<ShardWritten>) {
        self.write(Task::Manifest(checkpoint, shards));
    }

    fn on_manifest(&mut self, checkpoint: CheckpointId, saved: Saved) {
        let Saved { writer, replica_digest, bytes } = saved;
        // Counted by the controller only if it comes from the generation in force, which may have changed since the shards were copied.
        let (job, generation, written_in) = (self.config.job.clone(), self.generation(), checkpoint.tag.generation);
        let step = checkpoint.step;
        let stands_still = None;
        self.report(Report::CheckpointSaved {
            job,
            generation,
            step,
            written_in,
            writer,
            replica_digest,
            bytes,
            stands_still,
        });
        self.inputs.push_back(Input::Saved(checkpoint));
        if step.0 == self.config.steps_total && self.still == Some(step) {
            self.saving.saved = true;
            self.finish_if_done();
        }
    }

    pub(crate) fn on_evaluation(&mut self, step: Step, metrics: Metrics) {
        if step.0 == self.config.steps_total {
            self.saving.metrics = Some(metrics.clone());
        }
        let (job, generation) = (self.config.job.clone(), self.generation());
        self.report(Report::Evaluated { job, generation, step, metrics });
        self.finish_if_done();
    }

    /// The leader, after the last step: once it is evaluated and saved, the model is written.
    fn finish_if_done(&mut self) {
        let last = Step(self.config.steps_total);
        let evaluated = self.saving.metrics.is_some() || !self.config.evaluates_at(last);
        let whole = self.still == Some(last) && self.replica.step() == Some(last);
        if whole && evaluated && self.saving.saved && !self.saving.model_ordered {
            self.saving.model_ordered = true;
            self.write(Task::Model);
        }
    }

    fn on_model(&mut self, model_digest: Digest) {
        let (step, model_key) = (Step(self.config.steps_total), storage_keys::model(&self.config.job));
        let train_loss_micro = Some((self.meter.loss() * 1e6).round() as i64);
        let outcome = Outcome { step, model_key, model_digest, train_loss_micro, metrics: self.saving.metrics.clone() };
        let (job, generation) = (self.config.job.clone(), self.generation());
        self.report(Report::JobCompleted { job, generation, outcome });
    }
}
