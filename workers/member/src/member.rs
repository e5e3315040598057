//! The machine: what happened goes in, the session inside says what it means for the membership, and what is to be done comes out.
//!
//! The one file that touches the session.
//!
//! Next on a job's path: `workers/session/src/lib.rs`.

use crate::admit::admits;
use crate::early::Early;
use crate::event::{Cause, Config, Exit, In, LinkId, Need, Out, StateTransfer, Task, Unit};
use crate::follow::Following;
use crate::leave::Leave;
use crate::links::{Links, Taken};
use crate::meter::Meter;
use crate::pace::Pace;
use crate::replica::Replica;
use crate::room::Waiting;
use crate::save::Saving;
use crate::step::Flow;
use crate::suspicion::{GRACE, LINKING_GRACE, REPEAT, Suspect, Suspicion};
use events_schema::control::Gradients;
use events_schema::fact::{Entry, Proposal};
use events_schema::report::Report;
use events_schema::{ExecutorId, Generation, Step};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use workers_session::{CheckpointId, Envelope, Input, Membership, Message, Output, Peer, Session};

/// Of every element on the wire.
pub(crate) const ELEMENT_BYTES: u64 = 4;

/// A generation that begins with everybody standing still, while this executor links up for it.
#[derive(Debug, Clone)]
pub(crate) struct Round {
    pub membership: Membership,
    /// Its leader: who has joined.
    pub joined: BTreeSet<Peer>,
}

/// One executor.
#[derive(Debug)]
pub struct Member<P> {
    pub(crate) config: Config,
    session: Session,
    /// What the session is to hear, in order; the machine's own news first.
    pub(crate) inputs: VecDeque<Input>,
    pub(crate) out: Vec<Out<P>>,
    pub(crate) now: Duration,
    /// What came while a unit was computed.
    deferred: VecDeque<In<P>>,
    pub(crate) unit: Option<Unit>,
    pub(crate) links: Links,
    suspicion: Suspicion,
    pub(crate) early: Early<P>,
    pub(crate) replica: Replica,
    /// What is sent to a newcomer beside the others' steps.
    pub(crate) following: Option<Following<P>>,
    /// Wishes to be sent the replica that wait for room.
    pub(crate) waiting: Waiting,
    pub(crate) flow: Flow<P>,
    pub(crate) saving: Saving,
    pub(crate) meter: Meter,
    pub(crate) pace: Pace,
    pub(crate) leave: Leave,
    proposed: Option<Generation>,
    pub(crate) round: Option<Round>,
    pub(crate) loading: Option<Generation>,
    /// The membership entered last, and the step it is at.
    pub(crate) membership: Option<Membership>,
    pub(crate) position: Step,
    /// The newest step that each member contributed to in it.
    pub(crate) contributed: BTreeMap<Peer, Step>,
    /// Set while standing still, with the step.
    pub(crate) still: Option<Step>,
    /// The job is broken and reported so; only a stop is awaited.
    pub(crate) broken: bool,
    pub(crate) ended: bool,
    pub(crate) units_done: u64,
    pub(crate) gradients: Gradients,
    /// When the unit that is computed was begun.
    pub(crate) unit_begun: Duration,
    pub(crate) bytes_done: u64,
    /// The wake that was asked for last.
    pub(crate) wake: Option<Duration>,
}

impl<P> Member<P> {
    /// An executor that listens and has neither replica nor generation.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let session = workers_session::Config {
            me: config.me,
            workers: config.workers,
            stops: config.stops(),
            behind_max: config.behind_max,
            determinism: config.determinism,
        };
        Self {
            session: Session::new(session),
            inputs: VecDeque::new(),
            out: Vec::new(),
            now: Duration::ZERO,
            deferred: VecDeque::new(),
            unit: None,
            links: Links::default(),
            suspicion: Suspicion::default(),
            early: Early::new(&config),
            replica: Replica::new(&config),
            following: None,
            waiting: Waiting::default(),
            flow: Flow::default(),
            saving: Saving::default(),
            meter: Meter::default(),
            pace: Pace::default(),
            leave: Leave::default(),
            proposed: None,
            round: None,
            loading: None,
            membership: None,
            position: Step(0),
            contributed: BTreeMap::new(),
            still: None,
            broken: false,
            ended: false,
            units_done: 0,
            gradients: Gradients { data_us: Some(0), ..Gradients::default() },
            unit_begun: Duration::ZERO,
            bytes_done: 0,
            wake: None,
            config,
        }
    }

    /// Takes one input; returns what to do, in order. `now` is the time since any fixed moment, on a clock that never goes back.
    pub fn handle(&mut self, now: Duration, input: In<P>) -> Vec<Out<P>> {
        self.now = self.now.max(now);
        if self.unit.is_some() && !matches!(input, In::Done(_) | In::Broken(_)) {
            if self.overtakes(&input) {
                return self.meanwhile(now, input);
            }
            self.deferred.push_back(input);
            return std::mem::take(&mut self.out);
        }
        self.take(input);
        while self.unit.is_none()
            && let Some(input) = self.deferred.pop_front()
        {
            self.take(input);
        }
        self.contribute();
        self.feed_session();
        if !self.ended {
            self.ask_to_be_woken();
        }
        std::mem::take(&mut self.out)
    }

    /// The session inside, to look at.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The step of the whole replica that is here, if one is.
    #[must_use]
    pub fn replica_step(&self) -> Option<Step> {
        self.replica.step()
    }

    fn take(&mut self, input: In<P>) {
        if self.ended {
            return;
        }
        match input {
            In::Proposal(proposal) => self.on_proposal(*proposal),
            In::Park(park) => self.inputs.push_back(Input::Park(park)),
            In::Leave(within) => {
                self.leave.on_deadline(self.now, within);
                self.inputs.push_back(Input::Leave);
            }
            In::Deadline(within) => self.leave.on_deadline(self.now, within),
            In::Linked(link) => self.on_linked(link),
            In::Refused(peer) => self.links.refused(peer, self.now),
            In::Lost(link) => {
                if self.links.lost(link) {
                    self.on_lost(link.peer);
                }
            }
            In::Message { link, envelope, bytes } => self.on_message(link, envelope, bytes),
            In::Bulk { link, bulk, payload } => {
                let legal = (1..=self.config.piece_elements).contains(&bulk.elements);
                if self.links.is_current(link) && !legal {
                    self.cut(link.peer, Cause::Breach);
                } else if self.links.is_current(link) {
                    self.bytes_done += ELEMENT_BYTES * bulk.elements as u64;
                    self.on_bulk(link.peer, bulk, payload);
                }
            }
            In::Loaded(generation, step) => self.on_loaded(generation, step),
            In::RoomMade => self.on_room_made(),
            In::Warmed(generation) => self.inputs.push_back(Input::Warmed(generation)),
            In::Checksum { at, checksum, took } => {
                self.pace.on_checksum(took);
                self.inputs.push_back(Input::Checksum(at, checksum));
            }
            In::Done(done) => self.on_done(done),
            In::Written(written) => self.on_written(written),
            In::NotWritten { checkpoint, later } => self.on_not_written(checkpoint, later),
            In::Broken(reason) => self.break_job(reason),
            In::Wake => {}
            In::Free => self.on_free(),
        }
        self.look_around();
        self.feed_session();
    }

    /// Feeds the session until it has nothing more to say, or a unit is to be computed first.
    fn feed_session(&mut self) {
        while !self.ended && self.unit.is_none() && !self.take_supply() && !self.update_if_whole() {
            let Some(input) = self.inputs.pop_front() else { return };
            self.tell_session(input);
        }
    }

    pub(crate) fn tell_session(&mut self, input: Input) {
        for output in self.session.handle(input) {
            self.perform(output);
        }
    }

    fn on_proposal(&mut self, proposal: Proposal) {
        if self.proposed.is_some_and(|newest| proposal.generation <= newest) {
            return;
        }
        self.proposed = Some(proposal.generation);
        let (membership, me) = (Membership::of(&proposal), self.config.me);
        if !matches!(proposal.entry, Entry::Switch { .. }) && membership.is_whole(self.config.workers) {
            self.loading = None;
            self.stop_following();
            self.suspicion.forget_before(proposal.generation);
            self.round = membership.has(me).then_some(Round { membership, joined: BTreeSet::new() });
            self.suspect_unlinked();
        }
        self.inputs.push_back(Input::Proposal(proposal));
    }

    fn on_linked(&mut self, link: LinkId) {
        match self.links.linked(link) {
            Taken::New => {}
            Taken::Instead(older) => {
                self.out.push(Out::Cut(older, Cause::Replaced));
                self.on_lost(link.peer);
            }
            Taken::Stale => return self.out.push(Out::Cut(link, Cause::Replaced)),
            Taken::TooMany => return self.out.push(Out::Cut(link, Cause::TooMany)),
        }
        self.out.push(Out::Use(link));
        self.inputs.push_back(Input::Linked(link.peer));
    }

    fn on_message(&mut self, link: LinkId, envelope: Envelope, bytes: usize) {
        if !self.links.is_current(link) {
            return;
        }
        let peer = link.peer;
        if !admits(&self.config, &envelope, bytes) {
            return self.cut(peer, Cause::Breach);
        }
        self.note(peer, &envelope);
        if envelope.message == Message::FollowRequest {
            return self.hear_with_room(peer, envelope);
        }
        self.inputs.push_back(Input::Message(peer, envelope));
    }

    /// Remembers who has done its part, for the word of life.
    fn note(&mut self, peer: Peer, envelope: &Envelope) {
        let (tag, message) = (envelope.tag, &envelope.message);
        let round = self.round.as_mut().filter(|round| round.membership.tag == tag);
        if let (Message::Join { .. }, Some(round)) = (message, round) {
            round.joined.insert(peer);
        }
        let in_force = self.membership.as_ref().is_some_and(|m| m.tag == tag && m.has(peer));
        if let (Message::Contribution(contribution), true) = (message, in_force) {
            self.contributed.insert(peer, contribution.step);
        }
    }

    fn on_loaded(&mut self, generation: Generation, step: Step) {
        // What was loaded for a generation that is over must not take the place of what came since.
        if self.loading == Some(generation) {
            self.loading = None;
            self.replica.adopt(step);
            self.out.push(Out::Adopt(step));
            self.inputs.push_back(Input::Loaded(generation, step));
        }
    }

    /// Cuts the link to a peer, which is lost from here on.
    pub(crate) fn cut(&mut self, peer: Peer, cause: Cause) {
        if let Some(link) = self.links.current(peer) {
            self.links.lost(link);
            self.out.push(Out::Cut(link, cause));
            self.on_lost(peer);
        }
    }

    fn on_lost(&mut self, peer: Peer) {
        self.early.forget(peer);
        self.waiting.forget(peer);
        if self.session.membership().is_some_and(|m| m.has(peer)) {
            self.meter.on_loss(self.now);
        }
        self.suspect(|_, of| of == peer);
        self.inputs.push_back(Input::Lost(peer));
    }

    /// Suspects every member without a link. A link may have gone before the membership was in force, when it was nobody's loss.
    fn suspect_unlinked(&mut self) {
        self.suspect(|links, peer| !links.has(peer));
    }

    /// Suspects some members of the membership in force, or of the one that begins.
    fn suspect(&mut self, whom: impl Fn(&Links, Peer) -> bool) {
        let (me, step) = (self.config.me, self.position);
        let (membership, grace) = match (&self.round, self.session.membership()) {
            (Some(round), _) => (&round.membership, LINKING_GRACE),
            (None, Some(membership)) => (membership, GRACE),
            (None, None) => return,
        };
        for peer in membership.others(me).filter(|peer| whom(&self.links, *peer)) {
            let generation = membership.tag.generation;
            self.suspicion.suspect(Suspect { peer, generation, step }, self.now + grace);
        }
    }

    /// What time has made due.
    fn look_around(&mut self) {
        for peer in self.links.due(self.now) {
            // The session knows whether it is still wanted, and where it is.
            self.inputs.push_back(Input::Lost(peer));
        }
        let due = self.suspicion.due(self.now);
        let missed: Vec<Suspect> = due.into_iter().filter(|suspect| self.is_missed(suspect)).collect();
        if !self.broken && !missed.is_empty() {
            missed.iter().for_each(|suspect| self.suspicion.suspect(*suspect, self.now + REPEAT));
            self.report_missing(&missed);
        }
        self.write_again();
        self.leave_early();
    }

    /// The grace is over. In a membership in force a link that is back makes nothing good by itself: what was under way on the old
    /// one is lost, so it is the step that has to have gone on.
    fn is_missed(&self, suspect: &Suspect) -> bool {
        let Suspect { peer, generation, step } = *suspect;
        let in_it = |m: &Membership| m.tag.generation == generation && m.has(peer);
        let linked = self.links.has(peer);
        match &self.round {
            Some(round) => in_it(&round.membership) && !linked,
            None => {
                let running = self.session.membership().is_some_and(in_it);
                running && !(linked && self.position > step) && !self.session.is_at_rest()
            }
        }
    }

    fn report_missing(&mut self, missed: &[Suspect]) {
        let begun = self.round.is_none();
        let beginning = self.round.as_ref().map(|round| &round.membership);
        let Some(tag) = beginning.or(self.session.membership()).map(|m| m.tag) else { return };
        let step = if begun { missed.iter().map(|suspect| suspect.step).min() } else { None };
        let executor = |peer: Peer| ExecutorId { job: self.config.job.clone(), number: peer.0 };
        let report = Report::PeersMissing {
            job: self.config.job.clone(),
            generation: tag.generation,
            revision: tag.revision,
            step: step.unwrap_or(self.position),
            by: executor(self.config.me),
            peers: missed.iter().map(|suspect| executor(suspect.peer)).collect(),
            begun,
        };
        self.report(report);
    }

    fn ask_to_be_woken(&mut self) {
        let next = [self.suspicion.next(), self.links.next(), self.saving.next(), self.leave.next(self.now)];
        let next = next.into_iter().flatten().min();
        if next != self.wake {
            self.wake = next;
            self.out.extend(next.map(Out::WakeAt));
        }
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Connect(peer, address) => {
                if self.links.dial(peer) {
                    self.out.push(Out::Dial(peer, address));
                }
            }
            Output::Send(to, envelope) if envelope.message == Message::FollowRequest => {
                self.ask_with_room(to, envelope);
            }
            Output::Send(to, envelope) => self.out.push(Out::Say(to, envelope)),
            Output::Load(generation, entry) => {
                self.loading = Some(generation);
                self.out.push(Out::Load(generation, entry));
            }
            Output::Warm(generation, ranks, (step, stride)) => {
                self.out.push(Out::Warm(generation, ranks, (step, self.config.stops().longest(stride))));
            }
            Output::Prefetch(ranks, stride) => {
                self.out.push(Out::Prefetch(ranks, (self.position, self.config.stops().longest(stride))));
            }
            Output::Abandon => self.abandon(),
            Output::Enter(membership, step) => self.enter(membership, step),
            Output::Await(need) => self.expect(need),
            Output::SendReplica { to, index, count } => self.send_replica(&to, index, count),
            Output::SendGradient(to) => self.send_gradient(to),
            Output::Follow(tag, step, stride) => self.begin_following(tag, step, stride),
            Output::CatchUp => self.catch_up(),
            Output::SendReplicaAside { to, tag, step, index, count } => {
                self.send_replica_aside(to, tag, step, (index, count));
            }
            Output::SendMean { to, tag, step, index, count } => self.send_mean(to, tag, step, (index, count)),
            Output::Compute(step) => self.begin_step(step),
            Output::Contributed(step, sums) => self.on_contributed(step, &sums),
            Output::WriteShard { checkpoint, index, count } => {
                self.pace.on_checkpoint(checkpoint, self.now);
                self.write(Task::Shard { checkpoint, index, count });
            }
            Output::WriteManifest(checkpoint, shards) => self.write_manifest(checkpoint, shards),
            Output::Checksum(at) => {
                self.pace.on_compare(at.step);
                self.out.push(Out::Checksum(at));
            }
            Output::Diverged { at: CheckpointId { step, .. }, minority } => self.on_diverged(step, &minority),
            Output::StandStill(step) => {
                (self.position, self.still) = (step, Some(step));
                self.begin_evaluation(step);
            }
            Output::Active(generation, step) => {
                let (job, pause_us) = (self.config.job.clone(), self.meter.pause_us(self.now));
                self.report(Report::GenerationActive { job, generation, step, pause_us });
            }
            Output::Held(generation, step) => {
                let executor = ExecutorId { job: self.config.job.clone(), number: self.config.me.0 };
                self.report(Report::ReplicaHeld { executor, generation, step });
            }
            Output::FallsBehind(peer, behind_steps) => {
                let id = |peer: Peer| ExecutorId { job: self.config.job.clone(), number: peer.0 };
                let (by, executor, generation) = (id(self.config.me), id(peer), self.generation());
                self.report(Report::NewcomerFallsBehind { by, generation, executor, behind_steps });
            }
            Output::Departed(peer, generation, step) => self.report_departure(peer, generation, step),
            Output::Evaluation(step, metrics) => self.on_evaluation(step, metrics),
            Output::Exit => self.exit(Exit::Left),
            Output::ExitEarly => self.exit(Exit::LeftEarly),
            Output::ExitWithoutReplica => self.exit(Exit::NoReplica),
            Output::Disconnect(peer) => self.cut(peer, Cause::Breach),
        }
    }

    /// Says so and ends: what is here, and what it helped to make elsewhere, must not be built on.
    fn on_diverged(&mut self, step: Step, minority: &[Peer]) {
        let executor = |peer: Peer| ExecutorId { job: self.config.job.clone(), number: peer.0 };
        let (by, minority) = (executor(self.config.me), minority.iter().map(|peer| executor(*peer)).collect());
        self.report(Report::ReplicasDiffer { by, step, minority });
        self.exit(Exit::Diverged);
    }

    fn exit(&mut self, exit: Exit) {
        self.ended = true;
        self.out.push(Out::Exit(exit));
    }

    pub(crate) fn generation(&self) -> Generation {
        self.membership.as_ref().map_or(Generation(0), |m| m.tag.generation)
    }

    pub(crate) fn report(&mut self, report: Report) {
        self.out.push(Out::Report(report));
    }

    /// Tells the job's user why it cannot go on.
    pub(crate) fn break_job(&mut self, reason: String) {
        self.broken = true;
        self.unit = None;
        self.flow = Flow::default();
        let (job, generation) = (self.config.job.clone(), self.generation());
        self.report(Report::JobBroken { job, generation, reason });
    }

    fn enter(&mut self, membership: Membership, step: Step) {
        // At a boundary the replica is already there or awaited from those who are past it; a round may begin anywhere.
        let at_boundary = self.still.is_none() && self.membership.is_some();
        self.meter.on_enter(at_boundary, membership.seats.len(), self.now);
        let generation = membership.tag.generation;
        // In a round a link is enough; from here on it is the steps that count.
        self.suspicion.forget_before(if self.round.take().is_some() { generation.next() } else { generation });
        self.membership = Some(membership);
        self.pace.on_enter(step, self.now);
        (self.position, self.still) = (step, None);
        self.contributed.clear();
        self.forget_saving();
        self.flow.totals = None;
        self.suspect_unlinked();
    }

    fn expect(&mut self, need: Need) {
        self.stop_following();
        if let Some(tag) = self.membership.as_ref().map(|m| m.tag) {
            self.replica.expect(need, tag, self.position);
            self.out.push(Out::Expect(need));
            for (from, bulk, payload) in self.early.take_supplies(tag, self.position) {
                self.on_bulk(from, bulk, payload);
            }
        }
    }

    fn send_replica(&mut self, to: &[Peer], index: usize, count: usize) {
        let (Some(tag), step) = (self.membership.as_ref().map(|m| m.tag), self.position) else { return };
        // Parameters first, to everybody: a newcomer computes as soon as it has them.
        for range in self.replica.part(index, count).into_iter().filter(|range| !range.is_empty()) {
            let transfer = |to: &Peer| StateTransfer { to: *to, of: Need::Replica, tag, step, range: range.clone() };
            self.out.extend(to.iter().map(transfer).map(Out::Send));
        }
    }

    fn send_gradient(&mut self, to: Vec<Peer>) {
        let (Some(tag), true) = (self.membership.as_ref().map(|m| m.tag), self.replica.has_gradient()) else { return };
        let (step, range) = (self.position, 0..self.config.gradient_len);
        let transfer = |to| StateTransfer { to, of: Need::Gradient, tag, step, range: range.clone() };
        self.out.extend(to.into_iter().map(transfer).map(Out::Send));
    }

    fn report_departure(&mut self, peer: Peer, generation: Generation, step: Step) {
        let job = self.config.job.clone();
        let id = |peer: Peer| ExecutorId { job: job.clone(), number: peer.0 };
        let (executor, leader) = (id(peer), id(self.config.me));
        self.report(Report::MemberDeparted { job: job.clone(), generation, executor, leader, step });
    }
}

#[cfg(test)]
#[path = "member_tests.rs"]
pub(crate) mod tests;
