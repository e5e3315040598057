//! One step on one executor: evaluate where due, compute the hosted ranks' gradients, reduce with the others, update.
//!
//! Computing is cut into units, so that everything else is looked at between them. Reduction goes on while computing: a tree node's
//! sum is sent as soon as it is whole, and a stretch of it as soon as that is, where the one who computes says so.

use crate::coverage::Coverage;
use crate::event::{Bulk, Cause, Done, GradientFrom, Kind, Need, Out, Part, Unit};
use crate::member::Member;
use crate::meter::{FirstStep, UsualUpdate};
use crate::reduce::Reduction;
use crate::work::{Followed, Work};
use events_schema::job::Determinism;
use events_schema::orders::Telemetry;
use events_schema::report::Report;
use events_schema::stride::Stride;
use events_schema::tree::Node;
use events_schema::{Rank, Step};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use workers_session::{Input, NodeSums, Peer, RankMetrics, stride_between};

/// Everything of the step in flight.
#[derive(Debug, Clone)]
pub(crate) struct Flow<P> {
    pub evaluating: Option<Evaluating>,
    pub work: Option<Work>,
    /// What is final of the gradient that is computed.
    parts: Coverage,
    /// This member's whole sums, as far as they are computed.
    sums: Vec<NodeSums>,
    /// All of them are there, and the others have not been told.
    is_finished: bool,
    pub reduction: Option<Reduction<P>>,
    /// Every member's scalars, when all contributed.
    pub totals: Option<NodeSums>,
    /// Sums of an abandoned step, for the same step in the next membership.
    kept: BTreeMap<Node, NodeSums>,
    kept_step: Step,
}

/// An evaluation: ranks still to do, the next part of the first, and what came out.
#[derive(Debug, Clone)]
pub(crate) struct Evaluating {
    step: Step,
    ranks: VecDeque<Rank>,
    part: u64,
    metrics: Vec<RankMetrics>,
}

impl<P> Default for Flow<P> {
    fn default() -> Self {
        let (sums, kept) = (Vec::new(), BTreeMap::new());
        Self {
            evaluating: None,
            work: None,
            parts: Coverage::default(),
            sums,
            is_finished: false,
            reduction: None,
            totals: None,
            kept,
            kept_step: Step(0),
        }
    }
}

impl<P> Flow<P> {
    /// Gradients of the step in flight that are still to be computed, and parts of an evaluation before them, of which each rank has so many.
    pub(crate) fn units_left(&self, parts: u64) -> u32 {
        let work = self.work.as_ref().map_or(0, Work::left) as u64;
        let left = |of: &Evaluating| (of.ranks.len() as u64).saturating_mul(parts).saturating_sub(of.part);
        let evaluation = self.evaluating.as_ref().map_or(0, left);
        u32::try_from(work.saturating_add(evaluation)).unwrap_or(u32::MAX)
    }
}

impl<P> Member<P> {
    pub(crate) fn begin_evaluation(&mut self, step: Step) {
        let ranks: VecDeque<Rank> =
            self.membership.as_ref().map_or_else(VecDeque::new, |m| m.ranks(self.config.me).iter().copied().collect());
        let due = self.config.evaluates_at(step) && !ranks.is_empty();
        self.flow.evaluating = due.then(|| Evaluating { step, ranks, part: 0, metrics: Vec::new() });
    }

    pub(crate) fn begin_step(&mut self, step: Step) {
        let Some(membership) = &self.membership else { return };
        let config = &self.config;
        let (ranks, stride) = (membership.ranks(config.me).to_vec(), membership.stride);
        let alone = membership.seats.len() == 1;
        let (workers, computing) = membership.computing(config.workers, config.determinism);
        let reduction =
            Reduction::new(&computing, config.me, workers, step, config.gradient_len, config.piece_elements);
        let mut kept = std::mem::take(&mut self.flow.kept);
        if self.flow.kept_step != step {
            self.out.extend(std::mem::take(&mut kept).into_keys().map(Out::Release));
        }
        let (work, unused) = Work::new(workers, computing.ranks(config.me), kept);
        self.out.extend(unused.into_iter().map(Out::Release));
        self.position = step;
        self.out.push(Out::Prefetch(ranks, (step, config.stops().longest(stride))));
        self.out.push(Out::Begin { alone });
        (self.flow.reduction, self.flow.work, self.flow.totals) = (Some(reduction), Some(work), None);
        self.flow.sums.clear();
        self.flow.is_finished = false;
        self.begin_evaluation(step);
        self.take_early();
    }

    /// Drops the step in flight; what is summed stays right if the same step begins again.
    pub(crate) fn abandon(&mut self) {
        self.meter.on_loss(self.now);
        self.following = None;
        if self.replica.abandon_supply() {
            self.out.push(Out::Unexpect);
        }
        let work = self.flow.work.take();
        let alone = self.membership.as_ref().is_some_and(|m| m.seats.len() == 1);
        // Alone, the whole sum is made out of this member's own, so that one is gone.
        let own = std::mem::take(&mut self.flow.sums);
        let own = if alone { Vec::new() } else { own };
        // Nothing was computed since the last time, but the step may be another.
        if self.flow.kept_step != self.position {
            self.out.extend(std::mem::take(&mut self.flow.kept).into_keys().map(Out::Release));
        }
        let kept = own.into_iter().chain(work.into_iter().flat_map(Work::into_sums)).map(|sums| (sums.node, sums));
        match self.config.determinism {
            Determinism::D1 => self.flow.kept.extend(kept),
            // In another membership a node of the same name is of other samples.
            Determinism::None => self.out.extend(kept.map(|(node, _)| Out::Release(node))),
        }
        self.flow.kept_step = self.position;
        (self.flow.reduction, self.flow.totals, self.flow.evaluating) = (None, None, None);
        self.flow.is_finished = false;
        self.still = None;
        self.forget_saving();
    }

    /// Steps that the update at this position takes.
    pub(crate) fn stride(&self) -> Stride {
        let stride = self.membership.as_ref().map_or(Stride::ONE, |membership| membership.stride);
        stride_between(self.position, self.config.stops().after(self.position, stride))
    }

    /// Orders one unit: a part of an evaluation, or one rank's gradient.
    pub(crate) fn on_free(&mut self) {
        if self.broken || !self.replica.can_compute(self.position) {
            return;
        }
        if let Some(evaluating) = &self.flow.evaluating {
            let Some(&rank) = evaluating.ranks.front() else { return };
            return self.compute(Unit::Evaluate { step: evaluating.step, rank, part: evaluating.part });
        }
        self.follow_up();
        if let Some(rank) = self.flow.work.as_ref().and_then(Work::next) {
            self.compute(Unit::Gradient { step: self.position, stride: self.stride(), rank });
        }
    }

    fn compute(&mut self, unit: Unit) {
        (self.unit, self.unit_begun) = (Some(unit), self.now);
        self.flow.parts = Coverage::default();
        self.out.push(Out::Compute(unit));
    }

    /// The logical workers whose samples the gradient of [`Unit::Gradient`] is of, in their order: the one itself, or all that this member hosts.
    #[must_use]
    pub fn workers_of(&self, rank: Rank) -> Vec<Rank> {
        match self.config.determinism {
            Determinism::D1 => vec![rank],
            Determinism::None => self.membership.as_ref().map_or_else(Vec::new, |m| m.ranks(self.config.me).to_vec()),
        }
    }

    /// Whether [`Member::part`] of the gradient that is computed would let something be sent. Joins alone are not worth it: measured, they took longer in parts.
    #[must_use]
    pub fn uses_parts(&self) -> bool {
        let (_, whole) = self.flow.work.as_ref().map(Work::ahead).unwrap_or_default();
        let others = self.membership.as_ref().is_some_and(|m| m.seats.len() > 1);
        whole.is_some() && others
    }

    /// A stretch of the gradient that is computed is final; to be said between [`Out::Compute`] and its end, once of each element, and for those only
    /// of which it is so. What follows has the bits of the whole, because each element is added by itself, and counts as much as that: if the gradient fails
    /// after all, this member never says that it has computed, and without that nobody uses any sum of the step.
    pub fn part(&mut self, part: Range<usize>) -> Vec<Part<P>> {
        let (Some(Unit::Gradient { .. }), Some(work)) = (self.unit, &self.flow.work) else { return Vec::new() };
        if part.end > self.config.gradient_len || !self.flow.parts.take(part.clone()) {
            return Vec::new();
        }
        let (joins, whole) = work.ahead();
        let mut parts: Vec<Part<P>> = joins.into_iter().map(|node| Part::Join(node, part.clone())).collect();
        if let (Some(node), Some(reduction)) = (whole, &mut self.flow.reduction) {
            let (mut actions, (tag, step)) = (Vec::new(), reduction.at());
            reduction.on_own_part(node, part, &mut actions);
            parts.extend(actions.into_iter().map(|action| Part::Reduce(tag, step, action)));
        }
        parts
    }

    pub(crate) fn on_done(&mut self, done: Done) {
        let Some(unit) = self.unit.take() else { return };
        self.units_done += 1;
        let waited = self.now.saturating_sub(self.unit_begun);
        // One that lay ready took its thread as long as any: who is slow, and when a boundary comes, is judged by that.
        let took = if let Done::Gradient { took: Some(took), .. } = &done { *took } else { waited };
        if !matches!(unit, Unit::Update { .. }) {
            self.leave.unit = took;
        }
        if let Unit::Gradient { rank, stride, .. } = unit {
            let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            // Who is slow is judged by what one worker's samples of a step take.
            self.gradients.count += self.workers_of(rank).len() as u64 * stride.steps();
            self.gradients.took_us = self.gradients.took_us.saturating_add(took_us);
        }
        match (unit, done) {
            (Unit::Evaluate { .. }, Done::Evaluated(metrics)) => self.on_evaluated(metrics),
            (Unit::Gradient { .. }, Done::Gradient { weight, loss, data_wait, .. }) => {
                self.meter.on_data_wait(data_wait);
                let waited_us = u64::try_from(data_wait.as_micros()).unwrap_or(u64::MAX);
                self.gradients.data_us = self.gradients.data_us.map(|data_us| data_us.saturating_add(waited_us));
                if let Some(work) = &mut self.flow.work {
                    work.computed(weight, loss);
                    self.follow_up();
                }
            }
            (Unit::Update { step, stride, from }, Done::Updated) => self.on_updated(step, stride, from),
            // Whoever drives the machine mixes things up; nothing can be said of what is where.
            _ => self.break_job("a unit of computing ended as another".to_owned()),
        }
    }

    fn on_evaluated(&mut self, metrics: RankMetrics) {
        let parts = self.config.evaluation.map_or(1, |e| e.parts);
        let Some(evaluating) = &mut self.flow.evaluating else { return };
        match evaluating.metrics.last_mut().filter(|sum| sum.rank == metrics.rank) {
            Some(sum) => sum.add(&metrics),
            None => evaluating.metrics.push(metrics),
        }
        evaluating.part += 1;
        if evaluating.part >= parts {
            evaluating.part = 0;
            evaluating.ranks.pop_front();
        }
        if evaluating.ranks.is_empty()
            && let Some(Evaluating { step, metrics, .. }) = self.flow.evaluating.take()
        {
            self.inputs.push_back(Input::Evaluated(step, metrics));
        }
    }

    /// What follows from the gradients there are: sums of nodes, and stretches of them for others.
    fn follow_up(&mut self) {
        let Some(work) = &mut self.flow.work else { return };
        let mut whole = Vec::new();
        while let Some(followed) = work.follow() {
            match followed {
                Followed::Join(node) => self.out.push(Out::Join(node)),
                Followed::Whole(sums) => {
                    whole.push(sums);
                    let mut actions = Vec::new();
                    if let Some(reduction) = &mut self.flow.reduction {
                        reduction.on_own(sums.node, &mut actions);
                        let (tag, step) = reduction.at();
                        self.out.extend(actions.into_iter().map(|action| Out::Reduce(tag, step, action)));
                    }
                }
            }
        }
        let finished = work.is_finished();
        self.flow.sums.extend(whole);
        if finished {
            self.flow.work = None;
            self.flow.is_finished = true;
        }
    }

    /// This member's part of the step is there: said to the others when all was heard that came while it was computed. A leader that was told of another
    /// membership meanwhile, or asked to let somebody go, announces that with this step and not with the next.
    pub(crate) fn contribute(&mut self) {
        if std::mem::take(&mut self.flow.is_finished) {
            // Only the word of whoever leads counts, and only that of one clock can be told by all.
            if self.membership.as_ref().is_some_and(|m| m.leader == self.config.me) {
                self.inputs.push_back(Input::Due(self.pace.due(
                    &self.config,
                    (self.position, self.stride()),
                    &self.meter,
                    self.now,
                )));
            }
            self.inputs.push_back(Input::Computed(self.position, self.flow.sums.clone()));
        }
    }

    /// A stretch of bulk data: used now, kept for later, or too late to matter.
    pub(crate) fn on_bulk(&mut self, from: Peer, bulk: Bulk, payload: P) {
        if self.is_followed(&bulk) {
            self.measure_copy(&bulk);
            return self.on_followed_bulk(from, bulk, payload);
        }
        let Some(tag) = self.membership.as_ref().map(|m| m.tag) else { return self.keep_ahead(from, bulk, payload) };
        let at = (bulk.tag, bulk.step);
        let need = if bulk.kind == Kind::Gradient { Need::Gradient } else { Need::Replica };
        let supplied = matches!(bulk.kind, Kind::Replica | Kind::Gradient);
        if bulk.tag > tag {
            self.keep_ahead(from, bulk, payload);
        } else if supplied && self.replica.awaited() == Some((need, bulk.tag, bulk.step)) {
            self.on_supply(from, bulk, payload);
        } else if self.flow.reduction.as_ref().is_some_and(|r| r.at() == at) {
            self.on_reduction(from, bulk, payload);
        } else if at > (tag, self.position) {
            self.keep_next(from, bulk, payload);
        }
    }

    fn on_reduction(&mut self, from: Peer, bulk: Bulk, payload: P) {
        let Some(reduction) = &mut self.flow.reduction else { return };
        let (mut actions, (tag, step)) = (Vec::new(), reduction.at());
        let Bulk { kind, offset, elements, .. } = bulk;
        let taken = match kind {
            Kind::Partial(node) => reduction.on_partial(from, node, offset, elements, payload, &mut actions),
            Kind::Reduced => reduction.on_reduced(from, offset, elements, payload, &mut actions),
            // Of a supply that is whole already, or was never awaited here.
            Kind::Replica | Kind::Gradient => Ok(()),
        };
        self.out.extend(actions.into_iter().map(|action| Out::Reduce(tag, step, action)));
        if taken.is_err() {
            self.cut(from, Cause::Breach);
        }
    }

    pub(crate) fn on_supply(&mut self, from: Peer, bulk: Bulk, payload: P) {
        match self.replica.fill(bulk.offset, bulk.elements) {
            Ok(range) => self.out.push(Out::Fill { offset: range.start, payload }),
            Err(_) => self.cut(from, Cause::Breach),
        }
    }

    fn keep_ahead(&mut self, from: Peer, bulk: Bulk, payload: P) {
        if !self.early.keep_ahead(from, bulk, payload) {
            self.cut(from, Cause::TooFarAhead);
        }
    }

    /// Of the membership in force, a peer can only be at the step that the update in flight leads to, and there only bring its sums.
    fn keep_next(&mut self, from: Peer, bulk: Bulk, payload: P) {
        let Some(membership) = &self.membership else { return };
        let Kind::Partial(node) = bulk.kind else { return self.cut(from, Cause::Breach) };
        let config = &self.config;
        let plan = || {
            let (count, piece) = (config.gradient_len, config.piece_elements);
            let (workers, computing) = membership.computing(config.workers, config.determinism);
            Reduction::<P>::new(&computing, config.me, workers, bulk.step, count, piece)
        };
        let place = |plan: &Reduction<P>| plan.place(from, node, bulk.offset, bulk.elements).is_some();
        let fits = match &self.flow.reduction {
            Some(reduction) => place(reduction),
            None => place(&plan()),
        };
        let next = self.config.stops().after(self.position, membership.stride);
        if bulk.step != next || !fits || !self.early.keep_next(from, bulk, node, payload) {
            self.cut(from, Cause::TooFarAhead);
        }
    }

    /// Uses what arrived before this executor was here.
    pub(crate) fn take_early(&mut self) {
        let Some(tag) = self.membership.as_ref().map(|m| m.tag) else { return };
        for (from, bulk, payload) in self.early.take(tag, self.position) {
            self.on_bulk(from, bulk, payload);
        }
    }

    pub(crate) fn on_contributed(&mut self, step: Step, sums: &[NodeSums]) {
        let Some(membership) = self.membership.as_ref().filter(|_| step == self.position) else { return };
        let (workers, _) = membership.computing(self.config.workers, self.config.determinism);
        self.flow.totals = NodeSums::total(workers, sums);
    }

    /// Takes what peers supplied, once it is whole. Gives whether the update that follows was ordered.
    pub(crate) fn take_supply(&mut self) -> bool {
        match self.replica.take_whole() {
            Some((Need::Replica, step)) => {
                self.out.push(Out::Supplied(step));
                self.on_supplied(step);
                false
            }
            Some((Need::Gradient, to)) => {
                let Some(step) = self.replica.step() else { return false };
                let stride = stride_between(step, to);
                self.compute(Unit::Update { step, stride, from: GradientFrom::Supply });
                true
            }
            None => false,
        }
    }

    /// The replica of `step` is whole by what peers sent.
    fn on_supplied(&mut self, step: Step) {
        match &self.following {
            Some(_) => self.on_followed(step),
            None => self.inputs.push_front(Input::Supplied(step)),
        }
    }

    /// Orders the update when sum, scalars and replica are all there; the one place where a replica moves on with the others. Gives
    /// whether it was ordered.
    pub(crate) fn update_if_whole(&mut self) -> bool {
        let (step, here) = (self.position, self.replica.step() == Some(self.position));
        let whole = self.flow.reduction.as_ref().is_some_and(|r| r.is_whole() && r.at().1 == step);
        let (true, true, Some(totals)) = (whole, here, self.flow.totals) else { return false };
        self.flow.reduction = None;
        let own = std::mem::take(&mut self.flow.sums);
        if self.membership.as_ref().is_some_and(|m| m.seats.len() > 1) {
            self.out.extend(own.into_iter().map(|sums| Out::Release(sums.node)));
        }
        self.out.push(Out::MakeMean { weight: totals.weight });
        self.tell_session(Input::Summed(step));
        self.compute(Unit::Update { step, stride: self.stride(), from: GradientFrom::Sum });
        true
    }

    fn on_updated(&mut self, step: Step, stride: Stride, from: GradientFrom) {
        let done = stride.end(step);
        self.replica.updated(done);
        if from == GradientFrom::Supply {
            return self.on_supplied(done);
        }
        if let Some(totals) = self.flow.totals.take() {
            let loss = totals.loss / totals.weight.max(f64::MIN_POSITIVE);
            let first = self.meter.on_step((stride, self.config.samples_of(step, stride)), loss, self.now);
            // What else makes a step longer is no cost of a checkpoint.
            if first.is_none() && !self.config.evaluates_at(step) {
                self.pace.on_step(&self.meter);
            }
            self.report_first_step(first, done);
            self.report_throughput();
        }
        self.inputs.push_front(Input::Completed(step));
        if let Some(membership) = self.membership.as_ref().filter(|m| m.leader == self.config.me) {
            let telemetry = self.meter.telemetry(&self.config, membership, done, self.now);
            let checkpoint_every_ms = self.pace.checkpoint_every_ms(&self.config, done, &self.meter);
            let told = telemetry.map(|telemetry| Telemetry { checkpoint_every_ms, ..telemetry });
            self.out.extend(told.map(Out::Telemetry));
        }
    }

    /// The leader: how long a step usually takes, and how sure that is.
    fn report_throughput(&mut self) {
        let leads = self.membership.as_ref().is_some_and(|m| m.leader == self.config.me);
        let Some((usual, spread)) = self.meter.measured(self.now).filter(|_| leads) else { return };
        let (job, generation) = (self.config.job.clone(), self.generation());
        let UsualUpdate { update_us: step_us, members, stride } = usual;
        self.report(Report::ThroughputMeasured { job, generation, members, step_us, stride, spread: Some(spread) });
    }

    /// The leader: members of this generation train.
    fn report_first_step(&mut self, first: Option<FirstStep>, step: Step) {
        let leads = self.membership.as_ref().is_some_and(|m| m.leader == self.config.me);
        if let Some(first) = first.filter(|_| leads) {
            let (job, generation) = (self.config.job.clone(), self.generation());
            let (usual_step_us, usual_members) = (first.usual_step_us(), first.usual.map(|usual| usual.members));
            let FirstStep { first_step_us, stride, .. } = first;
            self.report(Report::GenerationStepped {
                job,
                generation,
                step,
                first_step_us,
                usual_step_us,
                usual_members,
                stride,
            });
        }
    }
}
