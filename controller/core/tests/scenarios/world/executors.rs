//! The scripted executors: they get ready, come together in generations, train, write checkpoints and finish.
//!
//! What they really do is kept apart from what the brain believes: a generation becomes active when all its members know it,
//! whether or not the brain has given it up by then.

use super::{Group, Process, STEPS_AT_ONCE, World};
use events_schema::fact::{Entry, Proposal};
use events_schema::job::Length;
use events_schema::report::{ExitCause, Outcome, Report};
use events_schema::{Digest, ExecutorId, Generation, JobId, ServerId, Step, WriterToken};
use std::collections::BTreeSet;
use storage_keys::CheckpointName;

impl World {
    /// An executor has built its model and listens. Whether it was still building.
    pub fn get_ready(&mut self, id: &ExecutorId) -> bool {
        let Some(server) = self.host(id) else { return false };
        let Some(agent) = self.agents.get_mut(&server) else { return false };
        let (class, gradient_bytes) = (agent.class_of_code, self.gradient_bytes);
        let Some(process) = agent.processes.get_mut(id).filter(|process| !process.ready) else { return false };
        process.ready = true;
        self.report(
            &server,
            Report::ExecutorReady {
                executor: id.clone(),
                address: format!("127.0.0.1:{}", 1_000 + id.number),
                class,
                replica_bytes: gradient_bytes.map(|bytes| 3 * bytes),
                gradient_bytes,
            },
        );
        true
    }

    /// Whether every member of a job's real group is alive, linked, holds the replica, and has not stopped for a recovery: only then can
    /// it step or switch.
    pub(super) fn is_whole(&self, job: &JobId) -> bool {
        if self.is_gang(job) {
            // What is to be saved its leader has.
            return self.groups.get(job).is_some_and(|group| self.process(&group.leader).is_some());
        }
        self.groups.get(job).is_some_and(|group| {
            let whole = |id| self.process(id).is_some_and(|process| process.replica);
            !group.broken && group.members.iter().all(whole) && !self.has_stopped(group)
        })
    }

    /// Whether a job is a program, whose executors know nothing of each other.
    pub(super) fn is_gang(&self, job: &JobId) -> bool {
        self.state.job(job).is_some_and(|job| job.spec.gang().is_some())
    }

    /// Newcomers of a job have been sent the whole replica. Whether there were any.
    pub fn supply(&mut self, job: &JobId) -> bool {
        let Some(group) = self.groups.get(job).filter(|group| !group.broken) else { return false };
        let (generation, step) = (group.generation, Step(group.step));
        let lacks = |id: &&ExecutorId| self.process(id).is_some_and(|process| !process.replica && !process.cut_off);
        let newcomers: Vec<ExecutorId> = group.members.iter().filter(lacks).cloned().collect();
        for executor in &newcomers {
            let Some(server) = self.host(executor) else { continue };
            if let Some(process) = self.agents.get_mut(&server).and_then(|agent| agent.processes.get_mut(executor)) {
                process.replica = true;
            }
            self.report(&server, Report::ReplicaHeld { executor: executor.clone(), generation, step });
        }
        !newcomers.is_empty()
    }

    /// Whether a member has heard of a recovery that never came to be.
    fn has_stopped(&self, group: &Group) -> bool {
        let stopped_for = |id| self.process(id).and_then(|process| process.stopped_for);
        group.members.iter().filter_map(stopped_for).any(|generation| generation > group.generation)
    }

    /// Members whose links are lost, or that lost one that died, say so, if nobody has proposed a round yet; and members of a round say
    /// whom they cannot be linked with.
    pub(super) fn miss_members(&mut self, job: &JobId) {
        if self.is_gang(job) {
            return;
        }
        let stands = |group: &&Group| !self.has_stopped(group) && !group.done && !group.parked;
        if let Some(group) = self.groups.get(job).filter(stands) {
            let alive = |id: &&ExecutorId| self.process(id).is_some();
            let dead = group.members.iter().find(|id| self.process(id).is_none()).cloned();
            let mut members = group.members.iter().filter(alive).cloned();
            let one = members.next();
            let missed = dead.or_else(|| members.next().filter(|_| group.broken));
            let generation = group.generation;
            if let (Some(by), Some(missed)) = (one, missed) {
                self.say_missing(job, generation, by, vec![missed], true);
            }
        }
        let Some(round) = self.newest_proposal(job).filter(|p| !matches!(p.entry, Entry::Switch { .. })) else {
            return;
        };
        if self.groups.get(job).is_some_and(|group| group.generation >= round.generation) {
            return;
        }
        let members: Vec<ExecutorId> = round.members.iter().map(|member| member.executor.clone()).collect();
        let unlinked = |id: &ExecutorId| self.process(id).is_some_and(|process| process.unlinked);
        let (out, linked): (Vec<ExecutorId>, Vec<ExecutorId>) = members.into_iter().partition(unlinked);
        for by in linked.into_iter().filter(|_| !out.is_empty()) {
            self.say_missing(job, round.generation, by, out.clone(), false);
        }
    }

    fn say_missing(
        &mut self,
        job: &JobId,
        generation: Generation,
        by: ExecutorId,
        peers: Vec<ExecutorId>,
        begun: bool,
    ) {
        let Some(server) = self.host(&by) else { return };
        let step = Step(self.groups.get(job).map_or(0, |group| group.step));
        self.report(
            &server,
            Report::PeersMissing { job: job.clone(), generation, revision: 0, step, by, peers, begun },
        );
    }

    fn newest_proposal(&self, job: &JobId) -> Option<Proposal> {
        let processes = self.agents.values().flat_map(|agent| agent.processes.iter()).filter(|(id, _)| id.job == *job);
        let known = processes.filter_map(|(_, process)| process.order.job.proposal.as_ref());
        known.max_by_key(|proposal| proposal.generation).cloned()
    }

    /// The proposal all of whose members know it, if it can become active now.
    fn ripe(&self, job: &JobId) -> Option<Proposal> {
        let newest = &self.newest_proposal(job)?;
        let group = self.groups.get(job);
        if group.is_some_and(|group| group.generation >= newest.generation) {
            return None;
        }
        let member = |id| {
            let known = |process: &&Process| process.ready && process.order.job.proposal.as_ref() == Some(newest);
            self.process(id).filter(known).filter(|process| !process.cut_off || newest.members.len() == 1)
        };
        let replicas = newest.members.iter().all(|m| member(&m.executor).is_some_and(|process| process.replica));
        let known = newest.members.iter().all(|m| member(&m.executor).is_some());
        let possible = match &newest.entry {
            Entry::Fresh | Entry::Checkpoint { .. } => true,
            Entry::Switch { from } => {
                self.is_whole(job) && group.is_some_and(|group| group.generation == *from && !group.parked)
            }
            Entry::Recover => replicas && group.is_some(),
        };
        (known && possible).then(|| newest.clone())
    }

    /// The newest generation that the members of a job know comes into force; newcomers are whole later. Whether it did.
    pub fn activate(&mut self, job: &JobId) -> bool {
        let Some(proposal) = self.ripe(job) else { return false };
        let before = self.groups.remove(job);
        let step = match &proposal.entry {
            Entry::Fresh => 0,
            Entry::Checkpoint { manifest_key, .. } => self.store.get(manifest_key).copied().unwrap_or(0),
            Entry::Switch { .. } | Entry::Recover => before.as_ref().map_or(0, |group| group.step),
        };
        let members: BTreeSet<ExecutorId> = proposal.members.iter().map(|member| member.executor.clone()).collect();
        // Who came in by a switch is sent the replica from now on; the others stand still until it has it.
        let switches = matches!(proposal.entry, Entry::Switch { .. });
        for agent in self.agents.values_mut() {
            for (_, process) in agent.processes.iter_mut().filter(|(id, _)| members.contains(id)) {
                process.replica |= !switches;
            }
        }
        let leavers: Vec<ExecutorId> =
            before.into_iter().flat_map(|group| group.members).filter(|id| !members.contains(id)).collect();
        let (generation, leader) = (proposal.generation, proposal.leader.clone());
        self.groups.insert(
            job.clone(),
            Group { generation, members, leader: leader.clone(), step, parked: false, done: false, broken: false },
        );
        if let Some(server) = self.host(&leader) {
            self.report(
                &server,
                Report::GenerationActive { job: job.clone(), generation, step: Step(step), pause_us: 100 },
            );
        }
        for leaver in leavers {
            self.end_process(&leaver, ExitCause::Left);
        }
        true
    }

    /// A whole group trains for a few steps, up to its end; it writes checkpoints where its spec says, and parks when told to.
    /// Whether anything happened.
    pub fn train(&mut self, job: &JobId) -> bool {
        if !self.is_whole(job) {
            return false;
        }
        let Some(group) = self.groups.get(job).filter(|group| !group.parked && !group.done) else { return false };
        let Some(process) = self.process(&group.leader) else { return false };
        let (order, from) = (process.order.job.clone(), group.step);
        let Length::Steps(total) = order.spec.length else { unreachable!("the world trains by steps") };
        let total = order.spec.retrains.as_ref().map_or(total, |retrains| retrains.end(total));
        let every = order.spec.checkpoint.every.steps().unwrap_or(u64::MAX);
        let to = if order.park { from } else { (from + STEPS_AT_ONCE).min(total) };
        let (generation, leader) = (group.generation, group.leader.clone());
        if let Some(group) = self.groups.get_mut(job) {
            group.step = to;
            group.parked = order.park;
            group.done = to == total;
        }
        let Some(server) = self.host(&leader) else { return false };
        if order.park || from / every != to / every {
            let stands_still = (order.park && order.spec.gang().is_some()).then_some(true);
            self.write_checkpoint(&server, job, generation, to, stands_still);
        }
        if to == total && !order.park {
            let outcome = Outcome {
                step: Step(total),
                model_key: "jobs/of-another/model.safetensors".to_owned(),
                model_digest: Digest::of(job.as_str().as_bytes()),
                train_loss_micro: Some(1),
                metrics: None,
            };
            self.report(&server, Report::JobCompleted { job: job.clone(), generation, outcome });
        }
        true
    }

    fn write_checkpoint(
        &mut self,
        server: &ServerId,
        job: &JobId,
        generation: Generation,
        step: u64,
        stands_still: Option<bool>,
    ) {
        let name = CheckpointName { job: job.clone(), generation, step: Step(step), writer: Some(writer(generation)) };
        self.store.insert(name.manifest(), step);
        let report = Report::CheckpointSaved {
            job: job.clone(),
            generation,
            step: Step(step),
            written_in: generation,
            writer: writer(generation),
            replica_digest: Digest::of(&step.to_le_bytes()),
            bytes: 1_000,
            stands_still,
        };
        self.report(server, report);
    }

    /// The step that the members of a job really are at.
    #[must_use]
    pub fn real_step(&self, job: &JobId) -> Option<u64> {
        self.groups.get(job).map(|group| group.step)
    }
}

/// What the world's controllers issue to a generation.
fn writer(generation: Generation) -> WriterToken {
    let digest = Digest::of(&generation.0.to_le_bytes());
    WriterToken(std::array::from_fn(|i| digest.0[i]))
}
