//! One step on one executor: evaluate where due, compute the hosted ranks' gradients, reduce with the others, update.
//!
//! Computing is cut into single gradients, so that the loop looks at its inbox between them. Reduction goes on while computing: a tree
//! node's sum is sent as soon as it is whole.

use crate::meter::FirstStep;
use crate::program::{ProgramError, divide};
use crate::reduce::{Parcel, Reduction, Unfit};
use crate::replica::UnfitSupply;
use crate::trainer::{TrainError, Trainer};
use crate::wire::{Header, Kind};
use crate::work::{Partial, Pool, Work};
use events_schema::control::FromExecutor;
use events_schema::report::Report;
use events_schema::{Rank, Step};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use workers_session::{Input, Need, NodeSums, Peer, RankMetrics, Tag};

/// Everything of the step in flight.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Ranks still to be evaluated, and what came out so far.
    evaluating: Option<(Step, VecDeque<Rank>, Vec<RankMetrics>)>,
    work: Option<Work>,
    sums: Vec<NodeSums>,
    reduction: Option<Reduction>,
    /// Every member's scalars, when all contributed.
    pub totals: Option<NodeSums>,
    /// Sums of an abandoned step, for the same step in the next membership.
    kept: Vec<Partial>,
    kept_step: Step,
    pool: Pool,
    sum_buffer: Vec<f32>,
}

impl<W: Write> Trainer<W> {
    /// Whether there is something to compute now.
    pub(crate) fn can_work(&self) -> bool {
        let something = self.flow.evaluating.is_some() || self.flow.work.is_some();
        something && !self.broken && self.replica.parameters(self.position).is_some()
    }

    pub(crate) fn begin_evaluation(&mut self, step: Step) {
        let ranks: VecDeque<Rank> = self.hosted().into();
        self.flow.evaluating =
            (self.program.evaluates_at(step) && !ranks.is_empty()).then(|| (step, ranks, Vec::new()));
    }

    fn hosted(&self) -> Vec<Rank> {
        self.membership.as_ref().map_or_else(Vec::new, |m| m.ranks(self.me).to_vec())
    }

    pub(crate) fn begin_step(&mut self, step: Step) {
        let Some(membership) = &self.membership else { return };
        let (workers, count) = (self.program.workers(), self.program.parameter_count());
        let ranks = membership.ranks(self.me);
        self.position = step;
        self.program.prefetch(ranks, step);
        let kept = std::mem::take(&mut self.flow.kept);
        let kept = if self.flow.kept_step == step { kept } else { Vec::new() };
        let buffer = std::mem::take(&mut self.flow.sum_buffer);
        self.flow.reduction = Some(Reduction::new(membership, self.me, workers, step, count, buffer));
        self.flow.work = Some(Work::new(workers, ranks, count, kept));
        (self.flow.totals, self.flow.sums) = (None, Vec::new());
        self.begin_evaluation(step);
        self.take_early();
    }

    /// Drops the step in flight; what is summed stays right if the same step begins again.
    pub(crate) fn abandon(&mut self) {
        self.meter.on_loss();
        self.replica.abandon_supply();
        let work = self.flow.work.take().map_or_else(Vec::new, Work::into_partials);
        let (own, buffer) = self.flow.reduction.take().map_or_else(Default::default, Reduction::abandon);
        self.flow.kept = own.into_iter().chain(work).collect();
        self.flow.kept_step = self.position;
        self.flow.sum_buffer = buffer;
        (self.flow.totals, self.flow.evaluating) = (None, None);
        self.still = None;
    }

    /// One unit of computing: one rank's evaluation or one rank's gradient.
    pub(crate) fn work(&mut self) -> Result<(), TrainError> {
        let done = if self.flow.evaluating.is_some() { self.evaluate_one() } else { self.compute_one() };
        done.or_else(|error| self.fail(error))
    }

    fn evaluate_one(&mut self) -> Result<(), ProgramError> {
        let Some((step, mut ranks, mut metrics)) = self.flow.evaluating.take() else { return Ok(()) };
        let Some(parameters) = self.replica.parameters(step) else { return Ok(()) };
        if let Some(rank) = ranks.pop_front() {
            metrics.push(self.program.evaluate(rank, parameters)?);
        }
        if ranks.is_empty() {
            self.inputs.push_back(Input::Evaluated(step, metrics));
        } else {
            self.flow.evaluating = Some((step, ranks, metrics));
        }
        Ok(())
    }

    fn compute_one(&mut self) -> Result<(), ProgramError> {
        let (Some(work), Some(parameters)) = (&mut self.flow.work, self.replica.parameters(self.position)) else {
            return Ok(());
        };
        let (step, program) = (self.position, &mut self.program);
        let partial = work.advance(&mut self.flow.pool, &mut |rank, buffer: &mut [f32]| {
            program.gradient(rank, step, parameters, buffer)
        })?;
        let finished = work.is_finished();
        if let Some(partial) = partial {
            self.flow.sums.push(partial.sums);
            if let Some(reduction) = &mut self.flow.reduction {
                let (tag, parcels) = (reduction.tag(), reduction.on_own(partial));
                self.send_all(parcels, tag, step);
            }
        }
        if finished {
            self.flow.work = None;
            self.inputs.push_back(Input::Computed(step, std::mem::take(&mut self.flow.sums)));
        }
        Ok(())
    }

    fn send_all(&mut self, parcels: Vec<Parcel>, tag: Tag, step: Step) {
        parcels.into_iter().for_each(|parcel| self.network.send(parcel, tag, step));
    }

    /// A stretch of bulk data: used now, kept for later, or too late to matter.
    pub(crate) fn on_bulk(&mut self, from: Peer, header: Header, elements: Vec<f32>) {
        let Some(tag) = self.membership.as_ref().map(|m| m.tag) else { return self.keep(from, header, elements) };
        let at = (header.tag, header.step);
        let current = self.flow.reduction.as_ref().is_some_and(|r| (r.tag(), r.step()) == at);
        let need = if header.kind == Kind::Gradient { Need::Gradient } else { Need::Replica };
        let fits = match header.kind {
            Kind::Partial(node) if current => {
                self.on_partial(from, node, header, elements).map_err(|unfit| unfit.to_string())
            }
            Kind::Reduced if current => {
                let reduced = self.flow.reduction.as_mut().map(|r| r.on_reduced(from, header.offset, &elements));
                reduced.unwrap_or(Ok(())).map_err(|unfit| unfit.to_string())
            }
            Kind::Replica | Kind::Gradient if self.replica.awaits(need, header.tag, header.step) => {
                self.on_supply(header.offset, &elements).map_err(|unfit| unfit.to_string())
            }
            _ if at >= (tag, self.position) => return self.keep(from, header, elements),
            _ => Ok(()),
        };
        if let Err(error) = fits {
            tracing::error!(peer = %from, error, "peer breaks the protocol; its link is cut");
            self.network.cut(from);
        }
    }

    fn on_partial(
        &mut self,
        from: Peer,
        node: events_schema::tree::Node,
        header: Header,
        elements: Vec<f32>,
    ) -> Result<(), Unfit> {
        let Some(reduction) = &mut self.flow.reduction else { return Ok(()) };
        let parcels = reduction.on_partial(from, node, header.offset, elements)?;
        self.send_all(parcels, header.tag, header.step);
        Ok(())
    }

    fn on_supply(&mut self, offset: u64, elements: &[f32]) -> Result<(), UnfitSupply> {
        if let Some(step) = self.replica.on_supply(offset, elements, &self.program.update)? {
            self.inputs.push_back(Input::Supplied(step));
        }
        Ok(())
    }

    fn keep(&mut self, from: Peer, header: Header, elements: Vec<f32>) {
        if !self.early.keep(from, header, elements) {
            tracing::error!(peer = %from, "peer is further ahead than it can be; its link is cut");
            self.network.cut(from);
        }
    }

    /// Uses what arrived before this executor was here.
    pub(crate) fn take_early(&mut self) {
        let Some(tag) = self.membership.as_ref().map(|m| m.tag) else { return };
        for (from, header, elements) in self.early.take(tag, self.position) {
            self.on_bulk(from, header, elements);
        }
    }

    pub(crate) fn on_contributed(&mut self, step: Step, sums: &[NodeSums]) {
        if step == self.position {
            self.flow.totals = NodeSums::total(self.program.workers(), sums);
        }
    }

    /// Applies the update when gradient, scalars and replica are all there; the one place where a replica moves on.
    pub(crate) fn complete_if_whole(&mut self) -> Result<(), TrainError> {
        let step = self.position;
        let whole = self.flow.reduction.as_ref().is_some_and(|r| r.is_whole() && r.step() == step);
        let (true, Some(totals), true) = (whole, self.flow.totals, self.replica.step() == Some(step)) else {
            return Ok(());
        };
        let Some(reduction) = self.flow.reduction.take() else { return Ok(()) };
        self.flow.totals = None;
        let (mut mean, partials) = reduction.into_sum();
        partials.into_iter().for_each(|p| self.flow.pool.give(p.gradient));
        divide(&mut mean, totals.weight);
        let before = self.replica.apply(&self.program.update, mean);
        // Alone, the sum comes out of the work's own buffers, so the buffer goes back there.
        if self.membership.as_ref().is_some_and(|m| m.seats.len() == 1) {
            self.flow.pool.give(Arc::new(before));
        } else {
            self.flow.sum_buffer = before;
        }
        let loss = totals.loss / totals.weight.max(f64::MIN_POSITIVE);
        let first = self.meter.on_step(self.program.samples_of(step), loss);
        self.inputs.push_back(Input::Completed(step));
        if let Some(first) = first.filter(|_| self.session.leads()) {
            self.report_first_step(first, step.next())?;
        }
        self.tell_progress(step.next())
    }

    fn report_first_step(&mut self, first: FirstStep, step: Step) -> Result<(), TrainError> {
        let Some(generation) = self.membership.as_ref().map(|m| m.tag.generation) else { return Ok(()) };
        let (job, FirstStep { first_step_us, usual_step_us }) = (self.program.job.clone(), first);
        self.report(Report::GenerationStepped { job, generation, step, first_step_us, usual_step_us })
    }

    fn tell_progress(&mut self, done: Step) -> Result<(), TrainError> {
        let Some(membership) = self.membership.as_ref().filter(|m| m.leader == self.me) else { return Ok(()) };
        if let Some(telemetry) = self.meter.telemetry(&self.program, membership, done) {
            self.agent.say(&FromExecutor::Telemetry(telemetry))?;
        }
        Ok(())
    }
}
