//! What the machine's outputs do: one arm per output. Whatever is computed, sent, read or written, happens here; nothing is decided.

use crate::buffers::SharedElements;
use crate::checkpoint::Task as Writing;
use crate::inbox::Event;
use crate::mean::Given;
use crate::meanwhile::{Listen, Looker, Shared, lock};
use crate::program::{Program, ProgramError};
use crate::replica::Readable;
use crate::restore::{Restored, restore};
use crate::room::{Makers, Room, UNUSED_STEPS};
use crate::stretch::Stretch;
use crate::sums::OutgoingSlice;
use crate::trainer::{Input, TrainError, Trainer};
use crate::workload::{View, Workload};
use events_schema::control::{ExecutorHop, FromExecutor};
use events_schema::fact::Entry;
use events_schema::job::Determinism;
use events_schema::report::Report;
use events_schema::stride::Stride;
use events_schema::{Generation, Rank, Step};
use std::io::Write;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Instant;
use workers_member::{Done, Exit, GradientFrom, In, Kind, Need, Out, Part, Task, Unit};
use workers_memory::Segment;
use workers_session::CheckpointId;
use workers_torch::OnPart;

impl<W: Write + Send> Trainer<W> {
    /// Does one thing; gives what the machine is to hear of it at once.
    pub(crate) fn perform(&mut self, out: Out<Stretch>) -> Result<Option<Input>, TrainError> {
        match out {
            Out::Dial(peer, address) => self.network.dial(peer, address),
            Out::Use(link) => self.network.take(link),
            Out::Cut(link, cause) => {
                tracing::warn!(peer = %link.peer, %cause, "link cut");
                self.network.cut(link);
            }
            Out::Say(to, envelope) => self.network.say(to, &envelope),
            Out::Send(slice) => {
                let sent = self.send(slice);
                return self.unless_failed(sent);
            }
            Out::SendAside { to, tag, step, ranges } => {
                let room = self.room.aside.take();
                self.replica.spare = self.room.replica.take();
                let sent = self.replica.shared(&mut self.program.workload).map(|replica| {
                    let replica = (replica, self.replica.read());
                    self.network.send_aside(&to, replica, ranges, (tag, step), room);
                });
                return self.unless_failed(sent);
            }
            Out::Reduce(tag, step, action) => {
                let network = &mut self.network;
                self.sums.reduce(action, &mut |slice| network.send(slice, tag, step));
            }
            Out::Begin { alone } => {
                if let Some((members, ranks)) = self.log_membership() {
                    self.room = Room::default();
                    self.followed(ExecutorHop::Join)?;
                    // Who begins with it takes what it uses as it goes.
                    if self.steps_begun > 0 {
                        self.makers().provide(members, ranks);
                    }
                }
                self.steps_begun += 1;
                if self.steps_begun.is_multiple_of(UNUSED_STEPS) {
                    self.makers().empty_unused();
                }
                self.sums.begin(alone);
            }
            Out::Join(node) => self.sums.join(node),
            Out::Release(node) => self.sums.release(node),
            Out::MakeMean { weight } => {
                let mut mean = self.sums.take_total();
                self.program.workload.make_mean(&mut mean, weight);
                self.replica.keep_gradient(mean);
            }
            Out::Compute(unit) => return self.compute(unit).map(Some),
            Out::Load(generation, entry) => return self.load(generation, &entry),
            Out::Adopt(_) => self.replica.adopt(),
            Out::Expect(Need::Replica) => self.replica.expect(self.room.replica.take()),
            Out::Expect(Need::Gradient) => self.replica.expect_gradient(),
            Out::Fill { offset, payload } => self.replica.fill(offset, payload),
            Out::Supplied(_) => self.replica.supplied(),
            Out::Unexpect => self.replica.unexpect(),
            // Without it a growth takes longer; whoever waits for room must hear of that all the same.
            Out::MakeRoom(wanted) => {
                return Ok((!self.makers().make(wanted, self.inbox.clone())).then_some(In::RoomMade));
            }
            Out::Warm(generation, ranks, place) => return self.warm(generation, ranks, place),
            Out::Prefetch(ranks, place) => {
                let expected = self.program.prefetch(&ranks, place);
                return self.unless_failed(expected);
            }
            Out::Write { task, needed } => {
                let ordered = self.write(task, needed);
                return self.unless_failed(ordered);
            }
            Out::Checksum(at) => {
                let ordered = self.checksum(at);
                return self.unless_failed(ordered);
            }
            Out::Report(report) => self.report(report)?,
            Out::Telemetry(telemetry) => self.agent.say(&FromExecutor::Telemetry(telemetry))?,
            // The loop keeps it.
            Out::WakeAt(_) => {}
            Out::Exit(exit) => self.leave(exit)?,
        }
        Ok(None)
    }

    /// Says which membership is in force, if it is a new one; gives its members, and the ranks that this one hosts.
    fn log_membership(&mut self) -> Option<(usize, usize)> {
        let membership = self.member.session().membership().filter(|m| self.logged != Some(m.tag))?;
        self.logged = Some(membership.tag);
        let (generation, members) = (membership.tag.generation, membership.seats.len());
        tracing::info!(%generation, members, leader = %membership.leader, "a member of the generation in force");
        Some((members, self.vectors_of(membership.ranks(self.me).len())))
    }

    /// What was done for a trace goes to whoever collects spans.
    fn followed(&mut self, hop: ExecutorHop) -> Result<(), TrainError> {
        match self.following.done(hop) {
            Some(span) => Ok(self.agent.say(&FromExecutor::Span(span))?),
            None => Ok(()),
        }
    }

    fn compute(&mut self, unit: Unit) -> Result<Input, TrainError> {
        self.life.set(self.member.progress());
        let begun = Instant::now();
        let computed = match unit {
            Unit::Update { step, stride, from } => self.update((step, stride), from).map(|()| Done::Updated),
            Unit::Gradient { step, stride, rank } => self.unit(unit, |program, view, shared, listen| {
                gradient(program, view, shared, (step, stride), rank, listen)
            }),
            Unit::Evaluate { rank, part, .. } => self.unit(unit, |program, view, _, listen| {
                program.evaluate_part(rank, part, view, listen).map(Done::Evaluated)
            }),
        };
        self.rests.computed(begun, Instant::now());
        match computed {
            Ok(done) => Ok(In::Done(done)),
            Err(error) => self.failed(error),
        }
    }

    /// Computes a unit, and remembers how long that took.
    fn unit(
        &mut self,
        unit: Unit,
        compute: impl FnOnce(&mut Program, View<'_>, &Mutex<Shared<'_>>, Listen<'_>) -> Result<Done, ProgramError>,
    ) -> Result<Done, ProgramError> {
        let (is_long, begun) = (self.units.is_long(unit), Instant::now());
        let computed = self.while_somebody_looks(is_long, compute);
        // One that lay ready says nothing of the next one.
        let took_beside = if let Ok(Done::Gradient { took, .. }) = &computed { *took } else { None };
        self.units.took(unit, took_beside.unwrap_or_default().max(begun.elapsed()));
        computed
    }

    /// What takes time, and changes nothing that is here before it is done. If it takes long, who has to leave does so meanwhile.
    fn while_somebody_looks<T>(
        &mut self,
        is_long: bool,
        compute: impl FnOnce(&mut Program, View<'_>, &Mutex<Shared<'_>>, Listen<'_>) -> T,
    ) -> T {
        let Self { program, sums, member, network, replica, events, inbox, wake, agent, following, started, .. } = self;
        let (started, shared) = (*started, Mutex::new(Shared { member, network, sums }));
        Looker { shared: &shared, events, wake, started, agent, following, ordered: false }.beside(
            inbox,
            is_long,
            |listen| compute(program, replica.view(), &shared, listen),
        )
    }

    fn update(&mut self, at: (Step, Stride), from: GradientFrom) -> Result<(), ProgramError> {
        let workload = &mut self.program.workload;
        match from {
            GradientFrom::Sum => {}
            GradientFrom::Supply => self.replica.take_gradient(),
        }
        self.replica.apply(workload, at)
    }

    /// What nobody can compute breaks the job; what only this executor cannot, stops it.
    pub(crate) fn failed(&self, error: ProgramError) -> Result<Input, TrainError> {
        if error.is_broken() { Ok(In::Broken(error.reason())) } else { Err(error.into()) }
    }

    /// That an update failed in the user's code may be heard only when its result is read.
    fn unless_failed(&self, done: Result<(), ProgramError>) -> Result<Option<Input>, TrainError> {
        done.map_or_else(|error| self.failed(error).map(Some), |()| Ok(None))
    }

    fn load(&mut self, generation: Generation, entry: &Entry) -> Result<Option<Input>, TrainError> {
        self.life.set(self.member.progress());
        let class = self.class;
        let restored = self.while_somebody_looks(true, |program, _, _, _| match entry {
            Entry::Checkpoint { manifest_key, earlier } => {
                restore(program, class, std::iter::once(manifest_key).chain(earlier))
            }
            Entry::Fresh | Entry::Switch { .. } | Entry::Recover => Restored::beginning(program),
        });
        for report in restored.reports {
            self.report(report)?;
        }
        match restored.end {
            Ok(Some((data, step))) => {
                self.replica.load(data);
                Ok(Some(In::Loaded(generation, step)))
            }
            // The controller was told why, and says how it goes on.
            Ok(None) => Ok(None),
            Err(problem) if problem.is_broken() => Ok(Some(In::Broken(problem.to_string()))),
            Err(problem) => Err(problem.into()),
        }
    }

    /// Gradients that are computed for so many ranks.
    fn vectors_of(&self, ranks: usize) -> usize {
        match self.program.spec.determinism {
            Determinism::D1 => ranks,
            Determinism::None => ranks.min(1),
        }
    }

    fn makers(&self) -> Makers {
        Makers {
            lengths: self.program.lengths(),
            ranks: self.vectors_of(usize::from(self.program.workers())),
            elsewhere: matches!(self.program.workload, Workload::Torch(_)),
            gradients: self.gradients.clone(),
            pieces: self.network.pieces(),
        }
    }

    fn warm(
        &mut self,
        generation: Generation,
        ranks: Vec<Rank>,
        place: (Step, Stride),
    ) -> Result<Option<Input>, TrainError> {
        let inbox = self.inbox.clone();
        let warmed = self.program.warm(ranks, place, move || {
            // A thread of its own, because a full inbox must not stop the reading that empties it.
            // It can only fail when the trainer has ended, and then nobody waits.
            std::thread::spawn(move || drop(inbox.send(Event::Warmed(generation))));
        });
        warmed.map_or_else(|error| self.failed(error).map(Some), |()| Ok(None))
    }

    fn send(&mut self, slice: workers_member::StateTransfer) -> Result<(), ProgramError> {
        let workers_member::StateTransfer { to, of, tag, step, range } = slice;
        match of {
            Need::Replica => {
                let data = self.replica.shared(&mut self.program.workload)? as SharedElements;
                let slice = OutgoingSlice { to, kind: Kind::Replica, offset: range.start, data, range };
                self.network.send(slice, tag, step);
            }
            Need::Gradient => {
                for Given { offset, data, range } in self.replica.give_gradient(range, &self.network.pieces()) {
                    let slice = OutgoingSlice { to, kind: Kind::Gradient, offset, data, range };
                    self.network.send(slice, tag, step);
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, task: Task, needed: bool) -> Result<(), ProgramError> {
        if needed {
            tracing::info!("standing still for the store");
        }
        // Totals so far: the difference to the next such line is what this task costs the training.
        let (copies, held_us) = (self.replica.copies, u64::try_from(self.replica.held.as_micros()).unwrap_or(u64::MAX));
        tracing::debug!(?task, needed, copies, held_us, "the store is to take this");
        let checkpoint = task.checkpoint();
        let writing = match task {
            Task::Shard { checkpoint, index, count } => {
                let workload = &mut self.program.workload;
                // What is needed is read until it is in the store, and the rest until it is copied.
                let replica = match needed {
                    true => Readable::kept(self.replica.shared(workload)?),
                    false => self.replica.readable(workload)?,
                };
                Writing::Shard((checkpoint, index, count), replica)
            }
            Task::Manifest(checkpoint, shards) => Writing::Manifest(checkpoint, shards),
            Task::Model => {
                let (file, digest) = self.program.export(self.replica.view(), &self.class)?;
                Writing::Model(file, digest)
            }
        };
        if needed {
            self.checkpoints.put(writing);
        } else if !self.checkpoints.offer(writing) {
            tracing::warn!(step = ?checkpoint.map(|c| c.step), "the store is slower than the checkpoint interval; this checkpoint is left out");
        }
        Ok(())
    }

    /// Has the replica's checksum taken, unless it is being copied, or the one before is still taken.
    fn checksum(&mut self, at: CheckpointId) -> Result<(), ProgramError> {
        if !self.checkpoints.is_free() {
            tracing::debug!(step = %at.step, "a checkpoint is being copied; replicas are not compared at this step");
            return Ok(());
        }
        let begun = Instant::now();
        let replica = self.replica.readable(&mut self.program.workload)?;
        self.checkpoints.compare(at, replica, begun.elapsed());
        Ok(())
    }

    fn report(&mut self, report: Report) -> Result<(), TrainError> {
        tracing::debug!(?report, "report");
        Ok(self.agent.say(&FromExecutor::Report(report))?)
    }

    fn leave(&mut self, exit: Exit) -> Result<(), TrainError> {
        tracing::info!("leaving: {exit}");
        self.exit = true;
        self.followed(ExecutorHop::Boundary)?;
        match exit {
            Exit::Left => Ok(()),
            Exit::LeftEarly => Err(TrainError::LeftEarly),
            Exit::NoReplica => Err(TrainError::NoReplica),
            Exit::Diverged => Err(TrainError::Diverged),
            Exit::NotSaved => Err(TrainError::Save(self.write_failure.take())),
        }
    }
}

/// A rank's gradient. Stretches of it that are final are summed and sent while the rest is computed, where they can be.
fn gradient(
    program: &mut Program,
    view: View<'_>,
    shared: &Mutex<Shared<'_>>,
    at: (Step, Stride),
    rank: Rank,
    listen: Listen<'_>,
) -> Result<Done, ProgramError> {
    let now = lock(shared);
    let (workers, wanted, mut buffer) = (now.member.workers_of(rank), now.member.uses_parts(), now.sums.room());
    drop(now);
    let waited = program.data_waited();
    let mut on_part = |part: Range<usize>, leaf: &Segment| {
        let Shared { member, network, sums } = &mut *lock(shared);
        member.part(part).into_iter().try_for_each(|part| match part {
            Part::Join(node, range) => sums.join_part(node, &range, leaf),
            Part::Reduce(tag, step, action) => {
                sums.reduce_part(action, leaf, &mut |slice| network.send(slice, tag, step))
            }
        })
    };
    let on_part: Option<OnPart<'_>> = if wanted { Some(&mut on_part) } else { None };
    let computed = program.gradient(rank, &workers, at, view, &mut buffer, (on_part, listen))?;
    lock(shared).sums.computed(rank, buffer);
    let data_wait = program.data_waited().saturating_sub(waited);
    let took = program.took_beside();
    Ok(Done::Gradient { weight: computed.weight, loss: computed.loss, data_wait, took })
}
