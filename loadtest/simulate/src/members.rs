//! The members of a job as a model: they come together, step, change at boundaries, copy, save and end.
//!
//! They do what the machine of `workers/member` does, as far as the controller can tell: leavers go at a boundary, newcomers are sent the
//! replica from one boundary on and come in at a later one, survivors of a loss go on from the last whole step.

use crate::goodput::Pace;
use crate::leaving::parts;
use crate::queue::Event;
use crate::updates::{STEP_SLACK, Updates, multiple};
use crate::world::World;
use events_schema::fact::{Entry, Proposal};
use events_schema::report::{Outcome, Report};
use events_schema::stride::Stride;
use events_schema::{Digest, ExecutorId, Generation, Step, TimeMs, WriterToken, tree};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// How long members step until they tell how long a step takes, in milliseconds and in steps: as `workers/member` does.
const MEASURED_MS: u64 = 2_000;
const MEASURED_STEPS: f64 = 3.0;

/// What one rank takes a slot as fast as curves say, in a measure that is fine enough for ratios.
const UNIT: f64 = 1e6;

/// Members that have a replica.
pub(crate) struct Training {
    pub generation: Generation,
    pub members: Vec<ExecutorId>,
    leader: ExecutorId,
    /// How much of an update each of them computes: 1 is all of the time that an update takes.
    parts: Vec<f64>,
    mode: Mode,
    /// Steps that an update takes.
    stride: Stride,
    /// Whole steps that were done when it came into force.
    began_at: f64,
    pace: Pace,
    /// Steps in a millisecond in the generation before.
    usual: f64,
    /// How many members that one had.
    usual_members: u16,
    /// How many members each fleet has.
    by_fleet: Vec<u64>,
    /// Members that came in at the boundary before.
    newcomers: Vec<ExecutorId>,
    /// The generation whose newcomers are sent the replica, and when they have it.
    followed: Option<(Generation, TimeMs)>,
    /// The boundary that something waits for.
    awaited: Option<TimeMs>,
    /// Whether its first step was told of.
    told: bool,
}

/// What members do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// They step, one step after the other.
    Steps,
    /// Nothing, for a while.
    Still,
    /// Nothing, until they come together anew.
    Broken,
}

impl Training {
    /// Where a job is after so many ms that began with so much done.
    pub fn done_after(&self, done: f64, ms: u64) -> f64 {
        if self.mode == Mode::Steps { self.pace.after(done, ms) } else { done }
    }

    /// Whether they step, and a step that nobody ends is lost.
    pub fn steps_in_units(&self) -> bool {
        self.mode == Mode::Steps && !self.pace.flows()
    }

    fn part(&self, member: &ExecutorId) -> f64 {
        self.members.iter().zip(&self.parts).find(|(id, _)| *id == member).map_or(1.0, |(_, part)| *part)
    }

    /// When newcomers of a generation have the replica; none if nobody sends it yet.
    fn held_at(&self, generation: Generation) -> Option<TimeMs> {
        self.followed.filter(|(of, _)| *of == generation).map(|(_, at)| at)
    }

    /// Steps of an update.
    fn update(&self) -> f64 {
        self.stride.steps() as f64
    }

    /// Where its updates end.
    fn updates(&self, checkpoint_every: Option<u64>) -> Updates {
        Updates { from: self.began_at, steps: self.update(), checkpoint_every }
    }
}

impl World<'_> {
    /// A membership is proposed to executors, which begin to link up; those of a switch wait for a boundary.
    pub fn proposed(&mut self, job: usize, proposal: &Proposal) {
        let costs = &self.setup.costs;
        let after_ms = match &proposal.entry {
            Entry::Fresh => costs.link_ms,
            Entry::Checkpoint { .. } => costs.link_ms + costs.restore_ms,
            Entry::Recover => costs.recover_ms,
            Entry::Switch { .. } => return,
        };
        self.queue.put(self.at.plus_ms(after_ms), Event::Linked { job, generation: proposal.generation });
    }

    /// The proposal of a job, if all that are to be its members are there.
    fn ripe(&self, job: usize) -> Option<Proposal> {
        let placement = self.state.job(&self.jobs[job].id)?.placement()?;
        let proposal = placement.proposed.as_ref()?;
        let is_there = |id: &ExecutorId| self.processes.get(id).is_some_and(|process| process.ready);
        proposal.members.iter().all(|member| is_there(&member.executor)).then(|| proposal.clone())
    }

    pub fn linked(&mut self, job: usize, generation: Generation) {
        let Some(proposal) = self.ripe(job).filter(|proposal| proposal.generation == generation) else { return };
        let begins = match proposal.entry {
            Entry::Fresh => Some(0.0),
            Entry::Checkpoint { .. } => Some(self.jobs[job].saved),
            Entry::Recover | Entry::Switch { .. } => None,
        };
        self.stop(job, Mode::Broken);
        if let Some(steps) = begins {
            self.undo(job, steps);
        }
        self.activate(job, &proposal, self.at);
    }

    /// A membership is in force: its leader says so, whoever is left out goes, whoever is new is sent the replica.
    fn activate(&mut self, job: usize, proposal: &Proposal, since: TimeMs) {
        let members: Vec<ExecutorId> = proposal.members.iter().map(|member| member.executor.clone()).collect();
        let before = self.jobs[job].training.take();
        let switches = matches!(proposal.entry, Entry::Switch { .. });
        let mut newcomers = Vec::new();
        for member in &members {
            let was_in = before.as_ref().is_some_and(|before| before.members.contains(member));
            if let Some(process) = self.processes.get_mut(member) {
                process.replica = !switches || was_in;
            }
            if switches && !was_in {
                newcomers.push(member.clone());
            }
        }
        for leaver in before.iter().flat_map(|before| &before.members).filter(|id| !members.contains(id)) {
            self.queue.put(self.at.plus_ms(self.setup.costs.exit_ms), Event::Exit(leaver.clone()));
        }
        let mut by_fleet = vec![0; self.tally.fleets.len()];
        for process in members.iter().filter_map(|id| self.processes.get(id)) {
            by_fleet[process.fleet] += u64::from(!process.slot.is_guest());
        }
        let (generation, leader, stride) = (proposal.generation, proposal.leader.clone(), proposal.stride);
        let parts = parts(proposal, |id| self.processes.get(id).map_or(1.0, |process| process.speed));
        let pace = self.pace(job, &members, stride);
        let costs = &self.setup.costs;
        let pause_ms = match (newcomers.is_empty(), switches) {
            (false, _) => costs.grow_ms,
            (true, true) => costs.switch_ms,
            (true, false) => 0,
        };
        let usual = before.as_ref().map_or(0.0, |before| before.pace.rate(self.jobs[job].steps));
        let usual_members = before.map_or(0, |before| before.members.len() as u16);
        let training = Training {
            generation,
            members,
            leader: leader.clone(),
            parts,
            mode: Mode::Still,
            stride,
            began_at: (self.jobs[job].steps + STEP_SLACK).floor(),
            pace,
            usual,
            usual_members,
            by_fleet,
            newcomers,
            followed: None,
            awaited: None,
            told: false,
        };
        let at = self.at;
        let known = &mut self.jobs[job];
        known.training = Some(training);
        known.stamp += 1;
        known.began(at);
        let (stamp, step) = (known.stamp, whole(known.steps));
        self.queue.put(at.plus_ms(pause_ms), Event::Resumed { job, stamp });
        let pause_us = at.since_ms(since) * 1_000;
        let id = self.jobs[job].id.clone();
        if let Some(server) = self.processes.get(&leader).map(|process| process.server) {
            self.report(server, Report::GenerationActive { job: id, generation, step, pause_us });
        }
    }

    /// How fast these members are, where they are.
    fn pace(&mut self, job: usize, members: &[ExecutorId], stride: Stride) -> Pace {
        let of = &self.setup.jobs[job];
        let (mut slots, mut speeds, mut beside) = (BTreeMap::<usize, u16>::new(), Vec::new(), 1.0f64);
        for process in members.iter().filter_map(|id| self.processes.get(id)) {
            *slots.entry(process.server).or_default() += 1;
            speeds.push(process.speed);
            // Ranks are placed by types alone, so whoever shares its slot with most decides.
            beside = beside.min(self.beside_others(job, &process.slot));
        }
        let mut servers: Vec<u16> = slots.into_values().collect();
        servers.sort_unstable_by_key(|slots| Reverse(*slots));
        let (pace, beyond) = of.pace(&servers, stride);
        self.tally.below_minimum += u64::from(members.len() < usize::from(of.spec.workers.min));
        self.tally.unmeasured += u64::from(beyond);
        pace.times(together(of.spec.workers.max, &speeds) * beside)
    }

    /// Whoever shares slots with a job has changed: it goes on at another pace, from where it is.
    pub fn share(&mut self, job: usize) {
        let Some(training) = &self.jobs[job].training else { return };
        let (members, stride, steps) = (training.members.clone(), training.stride, training.mode == Mode::Steps);
        if steps {
            self.stop(job, Mode::Still);
        }
        let pace = self.pace(job, &members, stride);
        if let Some(training) = self.jobs[job].training.as_mut() {
            training.pace = pace;
        }
        if steps {
            self.go_on(job);
        }
    }

    /// Brings a job's steps up to now.
    fn settle(&mut self, job: usize) {
        let at = self.at;
        let known = &mut self.jobs[job];
        if let Some(training) = known.training.as_ref().filter(|training| training.mode == Mode::Steps) {
            let ms = at.since_ms(known.since);
            if ms == 0 {
                return;
            }
            known.steps = training.pace.after(known.steps, ms).min(known.total);
            let before = known.spent.last().map_or(0, |(_, spent)| *spent);
            known.spent.push((known.steps, before + ms * training.members.len() as u64));
        }
        known.since = at;
    }

    /// Members stop stepping. Where they broke off, the update in flight is lost.
    pub fn stop(&mut self, job: usize, mode: Mode) {
        self.settle(job);
        let every = self.checkpoint_every(job);
        let known = &mut self.jobs[job];
        let Some(training) = known.training.as_mut() else { return };
        known.stamp += 1;
        let stepped = training.mode == Mode::Steps;
        training.mode = mode;
        training.awaited = None;
        if stepped {
            for (fleet, count) in training.by_fleet.iter().enumerate() {
                self.tally.fleets[fleet].training -= count;
            }
        }
        if stepped && mode == Mode::Broken && !training.pace.flows() {
            let kept = training.updates(every).begun(known.steps);
            self.undo(job, kept);
        }
    }

    /// Steps between two checkpoints. Jobs that are simulated say it in steps; one that does not writes none by itself.
    fn checkpoint_every(&self, job: usize) -> Option<u64> {
        self.setup.jobs[job].spec.checkpoint.every.steps().filter(|every| *every > 0)
    }

    /// The steps beyond some are lost, and what they took.
    fn undo(&mut self, job: usize, kept: f64) {
        let known = &mut self.jobs[job];
        if kept >= known.steps {
            return;
        }
        let last = known.spent.last().map_or(0, |(_, spent)| *spent);
        let begun = known.spent.partition_point(|(steps, _)| *steps <= kept);
        let spent = match (begun.checked_sub(1).and_then(|below| known.spent.get(below)), known.spent.get(begun)) {
            (Some((low, from)), Some((high, to))) => {
                from + ((to - from) as f64 * (kept - low) / (high - low)).round() as u64
            }
            (Some((_, from)), None) => *from,
            (None, _) => 0,
        };
        known.spent.truncate(begun);
        known.spent.push((kept, spent));
        known.steps = kept;
        self.tally.undone_ms += last.saturating_sub(spent);
    }

    /// Members step again, until they are done or something waits for a boundary.
    pub fn resumed(&mut self, job: usize, stamp: u64) {
        if self.jobs[job].stamp != stamp {
            return;
        }
        let newcomers = self.jobs[job].training.as_mut().map(|training| std::mem::take(&mut training.newcomers));
        for executor in newcomers.unwrap_or_default() {
            let Some(process) = self.processes.get_mut(&executor) else { continue };
            process.replica = true;
            let server = process.server;
            let step = whole(self.jobs[job].steps);
            let Some(generation) = self.jobs[job].training.as_ref().map(|training| training.generation) else { return };
            self.report(server, Report::ReplicaHeld { executor, generation, step });
        }
        if self.jobs[job].stamp == stamp {
            self.go_on(job);
        }
    }

    fn go_on(&mut self, job: usize) {
        self.settle(job);
        let at = self.at;
        let known = &mut self.jobs[job];
        let Some(training) = known.training.as_mut().filter(|training| training.mode == Mode::Still) else { return };
        training.mode = Mode::Steps;
        known.stamp += 1;
        let stamp = known.stamp;
        for (fleet, count) in training.by_fleet.iter().enumerate() {
            self.tally.fleets[fleet].training += count;
        }
        let takes_ms = |to: f64| training.pace.takes_ms(known.steps, to.max(known.steps));
        if !training.told {
            self.queue.put(at.plus_ms(takes_ms(known.steps + training.update())), Event::Stepped { job, stamp });
        }
        // Of others policies are told all that there is to know of their speeds.
        if self.setup.jobs[job].is_measured() {
            let after_ms = takes_ms(known.steps + MEASURED_STEPS * training.update()).max(MEASURED_MS);
            self.queue.put(at.plus_ms(after_ms), Event::Measured { job, stamp });
        }
        self.queue.put(at.plus_ms(takes_ms(known.total)), Event::Done { job, stamp });
        self.seek_boundary(job);
    }

    /// The first step of a generation is told of, so that the controller knows how long steps take.
    pub fn stepped(&mut self, job: usize, stamp: u64) {
        let known = &mut self.jobs[job];
        let Some(training) = known.training.as_mut().filter(|_| known.stamp == stamp) else { return };
        training.told = true;
        let us = |rate: f64, stride: Stride| (1_000.0 * stride.steps() as f64 / rate).min(1e15) as u64;
        let stride = training.stride;
        let usual_step_us = (training.usual > 0.0).then(|| us(training.usual, stride));
        let (generation, first_step_us) = (training.generation, us(training.pace.rate(known.steps), stride));
        let leader = training.leader.clone();
        let steps = training.pace.after(known.steps, self.at.since_ms(known.since));
        let (id, step) = (known.id.clone(), whole(steps.min(known.total)));
        let usual_members = usual_step_us.map(|_| training.usual_members);
        self.report_of_leader(
            &leader,
            Report::GenerationStepped {
                job: id,
                generation,
                step,
                first_step_us,
                usual_step_us,
                usual_members,
                stride,
            },
        );
    }

    /// How long a step takes so many members is told of.
    pub fn tell_throughput(&mut self, job: usize, stamp: u64) {
        let known = &self.jobs[job];
        let Some(training) = known.training.as_ref().filter(|_| known.stamp == stamp) else { return };
        let (id, generation, leader) = (known.id.clone(), training.generation, training.leader.clone());
        let (members, rate) = (training.members.len() as u16, training.pace.rate(known.steps));
        let stride = training.stride;
        let step_us = (1_000.0 * training.update() / rate).clamp(1.0, 1e15) as u64;
        // A table's speed is what it says, and not how sure that was: `ebb` takes it as it is.
        let spread = None;
        self.report_of_leader(
            &leader,
            Report::ThroughputMeasured { job: id, generation, members, step_us, stride, spread },
        );
    }

    fn report_of_leader(&mut self, leader: &ExecutorId, report: Report) {
        if let Some(server) = self.processes.get(leader).map(|process| process.server) {
            self.report(server, report);
        }
    }

    /// Puts the next boundary into the queue if anything waits for it: a checkpoint before everybody goes, or another membership.
    pub fn seek_boundary(&mut self, job: usize) {
        let Some(known) = self.state.job(&self.jobs[job].id) else { return };
        let Some(training) = &self.jobs[job].training else { return };
        if training.mode != Mode::Steps {
            return;
        }
        let proposed = known.placement().and_then(|placement| placement.proposed.as_ref());
        let switch = proposed.filter(|proposal| proposal.entry == Entry::Switch { from: training.generation });
        let parks = self.state.is_parking(&self.jobs[job].id);
        if switch.is_none() && !parks {
            return;
        }
        // Newcomers come in when they have the replica, and nothing else waits for that.
        let from = switch.filter(|_| !parks).and_then(|proposal| training.held_at(proposal.generation));
        self.settle(job);
        let (at, every) = (self.at, self.checkpoint_every(job));
        let known = &mut self.jobs[job];
        let stamp = known.stamp;
        let Some(training) = known.training.as_mut() else { return };
        let wait_ms = from.map_or(0, |from| from.since_ms(at));
        // It is announced on the leader's part of an update, so one that begins now counts.
        let steps = training.pace.after(known.steps, wait_ms);
        let ends = training.updates(every).said_end(steps, training.part(&training.leader));
        let takes_ms = if training.pace.flows() { wait_ms } else { training.pace.takes_ms(known.steps, ends) };
        let boundary = at.plus_ms(takes_ms);
        if training.awaited.is_none_or(|awaited| boundary < awaited) {
            training.awaited = Some(boundary);
            self.queue.put(boundary, Event::Boundary { job, stamp });
        }
    }

    /// When a member is done with its part of the update in flight.
    pub fn own_units_end(&mut self, job: usize, member: &ExecutorId) -> TimeMs {
        self.settle(job);
        let every = self.checkpoint_every(job);
        let known = &self.jobs[job];
        let Some(training) = &known.training else { return self.at };
        let end = training.updates(every).part_end(known.steps, training.part(member));
        self.at.plus_ms(training.pace.takes_ms(known.steps, end.max(known.steps)))
    }

    pub fn boundary(&mut self, job: usize, stamp: u64) {
        // One that nobody waits for any more was put off, or came sooner.
        let awaited = self.jobs[job].training.as_ref().and_then(|training| training.awaited);
        if self.jobs[job].stamp != stamp || awaited != Some(self.at) {
            return;
        }
        self.settle(job);
        if let Some(training) = self.jobs[job].training.as_mut() {
            training.awaited = None;
        }
        if self.jobs[job].steps >= self.jobs[job].total {
            self.done(job, stamp);
            return;
        }
        if self.state.is_parking(&self.jobs[job].id) {
            self.stop(job, Mode::Still);
            let (stamp, save_ms) = (self.jobs[job].stamp, self.save_ms(job));
            self.queue.put(self.at.plus_ms(save_ms), Event::Saved { job, stamp });
            return;
        }
        let from = self.jobs[job].training.as_ref().map(|training| Entry::Switch { from: training.generation });
        if let Some(proposal) = self.ripe(job).filter(|proposal| Some(&proposal.entry) == from.as_ref()) {
            self.switch(job, &proposal);
        }
    }

    /// At a boundary: another membership takes over, or its newcomers begin to be sent the replica.
    fn switch(&mut self, job: usize, proposal: &Proposal) {
        let (at, copy_ms) = (self.at, self.setup.costs.copy_ms);
        let Some(training) = self.jobs[job].training.as_mut() else { return };
        let grows = proposal.members.iter().any(|member| !training.members.contains(&member.executor));
        if grows && copy_ms > 0 && training.held_at(proposal.generation).is_none_or(|held| at < held) {
            let until = training.held_at(proposal.generation).unwrap_or(at.plus_ms(copy_ms));
            training.followed = Some((proposal.generation, until));
            self.seek_boundary(job);
        } else {
            self.stop(job, Mode::Still);
            self.activate(job, proposal, at);
        }
    }

    /// How long a job's members write its replica: each of them its part, at the same time.
    fn save_ms(&self, job: usize) -> u64 {
        let members = self.jobs[job].training.as_ref().map_or(1, |training| training.members.len().max(1));
        self.setup.costs.save_ms.div_ceil(members as u64)
    }

    /// What was to be written down is: whoever was waited for may go. If nobody is to go any more, they go on.
    pub fn saved(&mut self, job: usize, stamp: u64) {
        if self.jobs[job].stamp != stamp {
            return;
        }
        let steps = self.jobs[job].steps;
        self.tell_saved(job, steps);
        if self.jobs[job].stamp == stamp && !self.state.is_parking(&self.jobs[job].id) {
            self.go_on(job);
        }
    }

    fn tell_saved(&mut self, job: usize, steps: f64) {
        let known = &mut self.jobs[job];
        let Some(training) = &known.training else { return };
        known.saved = steps;
        let (generation, leader) = (training.generation, training.leader.clone());
        let digest = Digest::of(&steps.to_bits().to_le_bytes());
        let report = Report::CheckpointSaved {
            job: known.id.clone(),
            generation,
            step: whole(steps),
            written_in: generation,
            writer: WriterToken([1; 16]),
            replica_digest: digest,
            bytes: 0,
            stands_still: None,
        };
        self.report_of_leader(&leader, report);
    }

    /// A member is about to be lost: the checkpoint that its job wrote last by itself is told of now, because before nothing depended on it
    /// and each would have been an event of its own.
    pub fn keep_last_checkpoint(&mut self, job: usize, executor: &ExecutorId) {
        self.settle(job);
        let known = &self.jobs[job];
        let is_member = known.training.as_ref().is_some_and(|training| training.members.contains(executor));
        let written = self.checkpoint_every(job).map_or(0.0, |every| multiple(known.steps, every));
        if is_member && written > known.saved {
            self.tell_saved(job, written);
        }
    }

    pub fn done(&mut self, job: usize, stamp: u64) {
        if self.jobs[job].stamp != stamp {
            return;
        }
        self.stop(job, Mode::Still);
        let (stamp, finish_ms) = (self.jobs[job].stamp, self.setup.costs.finish_ms);
        if finish_ms > 0 {
            self.queue.put(self.at.plus_ms(finish_ms), Event::Finished { job, stamp });
        } else {
            self.finished(job, stamp);
        }
    }

    /// Its model is there. If members changed meanwhile, those of now come here again.
    pub fn finished(&mut self, job: usize, stamp: u64) {
        if self.jobs[job].stamp != stamp {
            return;
        }
        let known = &mut self.jobs[job];
        let Some(training) = &known.training else { return };
        let (generation, leader) = (training.generation, training.leader.clone());
        let id = known.id.clone();
        let outcome = Outcome {
            step: whole(known.total),
            model_key: String::new(),
            model_digest: Digest::of(id.as_str().as_bytes()),
            train_loss_micro: None,
            metrics: None,
        };
        self.report_of_leader(&leader, Report::JobCompleted { job: id, generation, outcome });
    }

    /// Every replica of a job is gone: it goes on from its last checkpoint.
    pub fn restart(&mut self, job: usize) {
        self.stop(job, Mode::Broken);
        let saved = self.jobs[job].saved;
        self.undo(job, saved);
        self.jobs[job].training = None;
    }
}

/// How many times as fast as on slots as fast as curves say a job is whose members are on such slots: whoever is slowest with its ranks decides, and they are placed
/// as the controller places them where types were measured.
fn together(workers: u16, speeds: &[f64]) -> f64 {
    let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    if speeds.is_empty() || slowest == fastest {
        return if speeds.is_empty() { 1.0 } else { slowest };
    }
    let units: Vec<u64> = speeds.iter().map(|speed| (UNIT / speed) as u64).collect();
    let sizes = tree::sizes_by_speed(workers, &vec![0; speeds.len()], &units);
    let mixed = tree::longest_us(sizes.into_iter().map(usize::from), &units);
    let even = u64::from(workers.div_ceil(speeds.len() as u16).max(1)) * UNIT as u64;
    even as f64 / mixed.max(1) as f64
}

fn whole(steps: f64) -> Step {
    Step((steps + STEP_SLACK).floor() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_several_types_are_as_fast_as_the_slowest_with_its_ranks() {
        assert_eq!((together(8, &[2.45; 3]), together(8, &[])), (2.45, 1.0));
        // Seven ranks as five and two, over 5 / 2.45 and 2 / 1; on two slots as fast as one it would be four.
        let found = together(7, &[2.45, 1.0]);
        assert!((found - 4.0 / (5.0 / 2.45)).abs() < 1e-3, "{found}");
        // A slow one is no worse than none: it has one rank of eight, and the other seven.
        assert!(together(8, &[10.0, 1.0]) * 2.0 >= 8.0, "as two slots of one speed take four units");
    }
}
