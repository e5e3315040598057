//! All that a run follows from, beside the policy: jobs as they will be submitted, where they run, what fleets need, what breaks.

use crate::cluster::{Cluster, Group};
use crate::costs::Costs;
use crate::curve::{Curve, Tables};
use crate::goodput::{Goodput, Pace, densest};
use crate::information::Information;
use crate::sharing::Sharing;
use crate::trace::{TraceJob, Work};
use events_schema::TenantId;
use events_schema::job::{JobSpec, Length, WORKERS_MAX};
use events_schema::stride::{STRIDE_MAX, Stride};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// All that a run follows from, beside the policy.
#[derive(Debug, Clone)]
pub struct Setup {
    /// In the order of submission.
    pub jobs: Vec<Job>,
    /// Lent from the beginning to the end.
    pub cluster: Cluster,
    /// Lent as far as they do not need their slots themselves.
    pub inference: Cluster,
    /// What each group of `inference` needs, in its order; a group without any needs nothing.
    pub demand: Vec<Demand>,
    /// From a reclaim to the kill of an executor.
    pub reclaim_deadline_ms: u64,
    /// Slots that tenants of the jobs have guaranteed under a policy that knows of quotas; one that is not named has none, and where nobody is all jobs are.
    pub quotas: BTreeMap<TenantId, u32>,
    /// How jobs that share a slot slow each other down; none: no slot has a guest slot.
    pub sharing: Option<Sharing>,
    /// What it costs to start, move and save.
    pub costs: Costs,
    /// Servers that break, if any do.
    pub failures: Option<Failures>,
    /// Plans are made in rounds, so far apart; none: whenever something changes, as the live controller makes them.
    pub round_ms: Option<u64>,
    /// What policies know of the jobs' work.
    pub information: Information,
    /// Whether all types of servers are of one numeric class, as processors of one build are and GPUs usually are not: then jobs whose spec says so are on several
    /// at once, under a policy that mixes them.
    pub mixed_types: bool,
    /// It ends then, whoever has not ended; none: when all jobs have.
    pub until_ms: Option<u64>,
    /// Of everything that is by chance.
    pub seed: u64,
}

impl Setup {
    /// Training alone: no fleet needs anything back, nothing breaks, plans are made whenever something changes, and nobody knows how much
    /// work the jobs are.
    #[must_use]
    pub fn of_training_alone(jobs: Vec<Job>, cluster: Cluster, costs: Costs, seed: u64) -> Self {
        Self {
            jobs,
            cluster,
            inference: Cluster::default(),
            demand: Vec::new(),
            reclaim_deadline_ms: 5_000,
            quotas: BTreeMap::new(),
            sharing: None,
            costs,
            failures: None,
            round_ms: None,
            information: Information::default(),
            mixed_types: false,
            until_ms: None,
            seed,
        }
    }

    /// The same with servers of one numeric class, whatever their type, and those jobs on several types at once that can use any and of which this is true.
    #[must_use]
    pub fn with_mixed_types(mut self, mixes: impl Fn(&Job) -> bool) -> Self {
        self.mixed_types = true;
        for job in self.jobs.iter_mut().filter(|job| job.only.is_none() && mixes(job)) {
            job.spec = job.spec.clone().on_any_type();
        }
        self
    }

    /// How long a job would have taken alone on an equal share of what was lent while it was there, by the job·ms and the lent slot·ms of that time: of
    /// so many slots as there were for each job in the mean, whole ones; of a share of its fewest, where there were not that many.
    #[must_use]
    pub fn alone_ms(&self, number: usize, live_ms: u64, lent_ms: u64) -> Option<u64> {
        let of = self.jobs.get(number)?;
        let share = lent_ms as f64 / live_ms as f64;
        let (min, max) = (of.spec.workers.min, of.spec.workers.max);
        let slots = (share.floor().min(f64::from(u16::MAX)) as u16).clamp(min, max);
        let (fast, all) = self.groups().fold((0.0, 0.0), |(fast, all), group| {
            let slots = group.slots_total() as f64;
            (fast + slots * group.speed, all + slots)
        });
        let ms = of.takes_ms(slots, (fast / all) * (share / f64::from(slots)).min(1.0))?.ceil();
        let begins_ms = self.costs.start_ms + self.costs.link_ms;
        (ms.is_finite() && ms < 1e15).then(|| ms as u64 + begins_ms)
    }

    /// The soonest that a job of it can be done after its submission, alone on as many slots as it is fastest on, of the fastest type that it can use.
    #[must_use]
    pub fn soonest_ms(&self, job: &Job) -> Option<u64> {
        let usable = self.groups().filter(|group| job.only.as_ref().is_none_or(|only| *only == group.kind));
        let fastest = usable.map(|group| group.speed).reduce(f64::max)?;
        let sizes = job.spec.workers.min..=job.spec.workers.max;
        let ms = sizes.filter_map(|slots| job.takes_at_best_ms(slots, fastest)).reduce(f64::min)?;
        Some(ms as u64 + self.costs.start_ms + self.costs.link_ms)
    }

    /// All kinds of servers that there are, those of fleets that serve included.
    fn groups(&self) -> impl Iterator<Item = &Group> {
        self.cluster.groups.iter().chain(&self.inference.groups)
    }
}

/// What a fleet needs over time, again and again.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// When, and how many slots from then on; the first at 0.
    pub signals: Vec<(u64, u32)>,
    /// What it really needs over time, and only then says; empty: it says so at once.
    pub curve: Vec<(u64, u32)>,
    /// Begins again after so long.
    pub period_ms: u64,
    /// Slots that it keeps beyond what it needs, as far as it has them. It asks for them as for those that it needs; what it is short of is
    /// counted from its need alone.
    pub headroom: u32,
    /// Slots that it lends at most; none: all that it does not need.
    pub lent_max: Option<u32>,
}

impl Demand {
    /// All that is not needed is lent.
    #[must_use]
    pub fn new(signals: Vec<(u64, u32)>, period_ms: u64) -> Self {
        Self { signals, curve: Vec::new(), period_ms, headroom: 0, lent_max: None }
    }

    /// Of one that needs what a curve says, in parts of its slots and straight between its points (seconds, value), and looks at that every so many ms: it
    /// says what has changed, and what has not after [`REPEATED_MS`].
    #[must_use]
    pub fn looked_at(points: &[(f64, f64)], slots: u32, period_ms: u64, every_ms: u64) -> Self {
        let curve = crossings(points, slots);
        let mut signals: Vec<(u64, u32)> = Vec::new();
        let mut next = 0;
        // Of a single point it has no period, and is looked at once.
        for at_ms in (0..period_ms.max(1)).step_by(every_ms.max(1) as usize) {
            while curve.get(next + 1).is_some_and(|(from_ms, _)| *from_ms <= at_ms) {
                next += 1;
            }
            let Some((_, needed)) = curve.get(next) else { break };
            let is_new = |(said_ms, said): &(u64, u32)| said != needed || at_ms - said_ms >= REPEATED_MS;
            if signals.last().is_none_or(is_new) {
                signals.push((at_ms, *needed));
            }
        }
        Self { curve, ..Self::new(signals, period_ms) }
    }

    /// The same begun at another moment: what was before that comes at the end. One without a period is the same for ever.
    #[must_use]
    pub fn begun_at(self, at_ms: u64) -> Self {
        if self.period_ms == 0 {
            return self;
        }
        let (period_ms, at_ms) = (self.period_ms, at_ms % self.period_ms);
        let turned = |points: Vec<(u64, u32)>| {
            let (before, after) = points.split_at(points.partition_point(|(from_ms, _)| *from_ms <= at_ms));
            let first = before.last().map(|(_, needed)| (0, *needed));
            let later = after.iter().map(|(from_ms, needed)| (from_ms - at_ms, *needed));
            let again = before.iter().map(|(from_ms, needed)| (from_ms + period_ms - at_ms, *needed));
            first.into_iter().chain(later).chain(again).filter(|(from_ms, _)| *from_ms < period_ms).collect()
        };
        Self { signals: turned(self.signals), curve: turned(self.curve), ..self }
    }

    /// What a fleet of so many slots asks for that needs some of them.
    #[must_use]
    pub fn asks_for(&self, needed: u32, slots: u32) -> u32 {
        let kept = self.lent_max.map_or(0, |most| slots.saturating_sub(most));
        needed.saturating_add(self.headroom).min(slots).max(kept).max(needed)
    }
}

/// A fleet that looks at what it needs says so again after so long, though it needs as much as before.
pub const REPEATED_MS: u64 = 60_000;

/// When the whole slots change that a curve needs whose maximum needs all of them.
fn crossings(points: &[(f64, f64)], slots: u32) -> Vec<(u64, u32)> {
    let most = points.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let level = |value: f64| if most > 0.0 { (value / most * f64::from(slots)).min(f64::from(slots)) } else { 0.0 };
    let whole = |level: f64| level.ceil() as u32;
    let mut found: Vec<(u64, u32)> = points.first().map(|(_, value)| (0, whole(level(*value)))).into_iter().collect();
    for pair in points.windows(2) {
        let [(from_s, from), (to_s, to)] = [pair[0], pair[1]].map(|(at_s, value)| (at_s, level(value)));
        let at_ms = |crossed: u32| {
            ((from_s + (to_s - from_s) * (f64::from(crossed) - from) / (to - from)) * 1_000.0).round() as u64
        };
        // Above a whole number one more is needed.
        match whole(from) < whole(to) {
            true => found.extend((whole(from)..whole(to)).map(|crossed| (at_ms(crossed), crossed + 1))),
            false => found.extend((whole(to)..whole(from)).rev().map(|crossed| (at_ms(crossed), crossed))),
        }
    }
    found
}

/// Servers break, each by itself, at exponentially distributed times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Failures {
    /// Mean time of one server between its repair and its next failure.
    pub mean_ms: f64,
    /// How long its repair takes.
    pub repair_ms: u64,
}

/// A job as it will be submitted.
#[derive(Debug, Clone)]
pub struct Job {
    /// As in the recording.
    pub name: String,
    /// Whose it is.
    pub tenant: Option<String>,
    /// When it is submitted, counted from the first of them.
    pub submitted_ms: u64,
    /// What the controller is told of it.
    pub spec: JobSpec,
    /// Slots that it asked for.
    pub asked: u16,
    /// How fast it is by slots.
    pub curve: Curve,
    /// The same with larger batches: how fast its steps are where an update takes two of them, three, and so on. Empty where its batch is one.
    pub strided: Vec<Curve>,
    /// Steps in a millisecond where the curve is 1.
    pub steps_per_ms: f64,
    /// What its work is, if not steps of one pace.
    pub goodput: Option<OfGoodput>,
    /// When it should be done.
    pub deadline_ms: Option<u64>,
    /// The only type of slots that it can use; none: it can use any.
    pub only: Option<String>,
}

/// Work that is progress by the epoch.
#[derive(Debug, Clone)]
pub struct OfGoodput {
    /// Of its model.
    pub model: Arc<Goodput>,
    /// Samples of a step.
    pub batch_size: u32,
}

impl Job {
    /// Whether policies know of its speeds what was measured of it, and no more: it says a profile, or a range of batches.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.spec.profile.is_some() || self.spec.batch_range.is_some()
    }

    /// How much there is to do, in its own measure.
    #[must_use]
    pub fn total(&self) -> f64 {
        match (&self.goodput, self.spec.length) {
            (Some(goodput), _) => goodput.model.total(),
            (None, Length::Steps(steps)) => steps as f64,
            (None, Length::Epochs(_)) => unreachable!("recorded jobs count steps"),
        }
    }

    /// How long all of it takes on so many slots, as near to each other as can be, each so many times as fast as curves say; none where that
    /// was not measured.
    #[must_use]
    pub fn takes_ms(&self, slots: u16, factor: f64) -> Option<f64> {
        self.takes_from_ms(0.0, slots, factor)
    }

    /// The same of what is left where so much is done, in the job's own measure.
    #[must_use]
    pub fn takes_from_ms(&self, done: f64, slots: u16, factor: f64) -> Option<f64> {
        match &self.goodput {
            Some(goodput) => {
                let (pace, _) = goodput.model.pace(goodput.batch_size, &densest(slots));
                Some(pace.takes_ms(done, self.total()) as f64 / factor)
            }
            None => Some((self.total() - done).max(0.0) / (self.curve.speed(slots)? * self.steps_per_ms * factor)),
        }
    }

    /// How long it takes alone on so many slots with the batch that it is fastest with.
    fn takes_at_best_ms(&self, slots: u16, factor: f64) -> Option<f64> {
        let larger = self.strided.iter().filter_map(|curve| curve.speed(slots)).reduce(f64::max);
        let gain = larger.zip(self.curve.speed(slots)).map_or(1.0, |(larger, smallest)| (larger / smallest).max(1.0));
        self.takes_ms(slots, factor * gain)
    }

    /// How fast its steps are by slots where an update takes so many.
    fn curve_of(&self, stride: Stride) -> &Curve {
        let larger = stride.steps().checked_sub(2).and_then(|place| self.strided.get(place as usize));
        larger.unwrap_or(&self.curve)
    }

    /// How fast it is on so many slots of each server, those with most first, with updates of so many steps, where a server is as fast as curves say; and
    /// whether that had to be taken from beyond what was measured.
    #[must_use]
    pub fn pace(&self, servers: &[u16], stride: Stride) -> (Pace, bool) {
        if let Some(goodput) = &self.goodput {
            return goodput.model.pace(goodput.batch_size, servers);
        }
        let slots: u16 = servers.iter().sum();
        let curve = self.curve_of(stride);
        let ((low, high), known) = (curve.range(), curve.speed(slots));
        let speed = known.unwrap_or_else(|| {
            // Only survivors of a loss can be so few: a share of what the fewest that were measured do.
            let nearest = slots.clamp(low, high);
            curve.speed(nearest).unwrap_or(0.0) * f64::from(slots.min(nearest)) / f64::from(nearest.max(1))
        });
        (Pace::even(self.steps_per_ms * speed), known.is_none())
    }
}

/// How recorded jobs become jobs of Ebb.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Shape {
    /// Fewest slots of a job whose recording says none, as a share of those it asked for, rounded down, 1 at least.
    pub min_share: f64,
    /// Most slots of it, rounded up, as a multiple of those it asked for.
    pub max_share: f64,
    /// A step on the slots that it asked for, where the recording says none: how long a change of members waits.
    pub step_ms: u64,
    /// Jobs come so many times faster than they did.
    pub speed_up: f64,
    /// Where the recording says no durations, work is progress by the epoch, and not a number of steps.
    pub goodput: bool,
}

/// Why a run cannot be made of what was given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// A job that Ebb would not take.
    #[error("job {name} (number {number} of the recording by time) cannot be submitted: {why}")]
    Job {
        /// As in the recording.
        name: String,
        /// From 0.
        number: usize,
        /// In the words of whoever refuses it.
        why: String,
    },
    /// Its work is not known.
    #[error(
        "job {name} says no duration, only that it trains {model} with {batch_size} samples a step, of which no table says how many steps that takes; give Pollux's measurements as `--tables`, or the recording as csv with `duration_s`"
    )]
    Work {
        /// As in the recording.
        name: String,
        /// What it trains.
        model: String,
        /// Samples of a step.
        batch_size: u32,
    },
    /// Its curve has no point.
    #[error("job {name} trains {model}, of which nothing was measured at {batch_size} samples a step")]
    Curve {
        /// As in the recording.
        name: String,
        /// What it trains.
        model: String,
        /// Samples of a step.
        batch_size: u32,
    },
}

/// What was done to recorded jobs that the recording does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Notes {
    /// Have the curve of a model that seed and place drew.
    pub drawn_models: usize,
    /// Are measured at another batch size than theirs, which is outside those that were measured.
    pub other_batch: usize,
    /// Asked for slots outside what their curve was measured for, and ask for the nearest that is inside.
    pub cut_request: usize,
    /// Could use slots outside it, and do not.
    pub cut_range: usize,
}

/// Recorded jobs as Ebb would take them.
pub fn jobs(
    trace: &[TraceJob],
    tables: &Tables,
    shape: &Shape,
    costs: &Costs,
    seed: u64,
) -> Result<(Vec<Job>, Notes), SetupError> {
    let mut notes = Notes::default();
    let jobs =
        trace.iter().enumerate().map(|(number, job)| prepare(job, number, tables, shape, costs, seed, &mut notes));
    let jobs = jobs.collect::<Result<_, _>>()?;
    Ok((jobs, notes))
}

fn prepare(
    job: &TraceJob,
    number: usize,
    tables: &Tables,
    shape: &Shape,
    costs: &Costs,
    seed: u64,
    notes: &mut Notes,
) -> Result<Job, SetupError> {
    let (model, batch_size) = (job.model.clone().unwrap_or_default(), job.batch_size.unwrap_or_default());
    let share = |share: f64| f64::from(job.workers) * share;
    let min = job.min.unwrap_or((share(shape.min_share).floor() as u16).max(1));
    let max = job.max.unwrap_or((share(shape.max_share).ceil().min(WORKERS_MAX as f64) as u16).max(job.workers));
    let given = tables.give(job.model.as_deref(), job.batch_size, max, seed, number);
    let goodput = match job.work {
        Work::OfModel if shape.goodput => Some(of_goodput(job, tables)?),
        _ => None,
    };
    // By placement everything that Ebb can run was measured, or is between what was.
    let (low, high) = if goodput.is_some() { (1, WORKERS_MAX as u16) } else { given.curve.range() };
    if high == 0 {
        return Err(SetupError::Curve { name: job.name.clone(), model, batch_size });
    }
    let asked = job.workers.clamp(low, high);
    notes.drawn_models += usize::from(given.model.is_some() && !given.named);
    notes.other_batch += usize::from(given.other_batch);
    notes.cut_request += usize::from(asked != job.workers);
    notes.cut_range += usize::from(min < low || max > high);
    let (min, max) = (min.clamp(low, asked), max.clamp(asked, high));
    let (steps, steps_per_ms) = match (job.work, &goodput) {
        (_, Some(goodput)) => {
            let whole = goodput.model.pace(goodput.batch_size, &densest(asked)).0;
            (goodput.model.total().ceil() as u64, whole.rate(0.0))
        }
        (Work::Seconds(seconds), None) => {
            let speed = given.curve.speed(asked).unwrap_or(1.0);
            let steps = (seconds * 1_000.0 / shape.step_ms as f64).round().max(1.0) as u64;
            (steps, 1.0 / (shape.step_ms as f64 * speed))
        }
        // Its curve is in steps per second.
        (Work::OfModel, None) => match tables.steps(&model, batch_size) {
            Some(steps) => (steps, 1e-3),
            None => return Err(SetupError::Work { name: job.name.clone(), model, batch_size }),
        },
    };
    let speed = if goodput.is_some() { 1.0 } else { given.curve.speed(asked).unwrap_or(1.0) };
    let step_ms = 1.0 / (steps_per_ms * speed);
    let every_steps = (costs.checkpoint_every_ms as f64 / step_ms).round().max(1.0) as u64;
    let strided = if goodput.is_some() { Vec::new() } else { strided(job, tables, (max, seed, number), (low, high)) };
    let mut document = serde_json::json!({
        "name": format!("j{number}"), "model": {"kind": "mlp", "hidden": [1]}, "dataset": DATASET,
        "workers": {"min": min, "max": max}, "batch_size": 1, "steps": steps, "priority": job.priority,
        "checkpoint": {"every_steps": every_steps, "keep": 1},
    });
    if !strided.is_empty() {
        // What rates of learning do to a model, nobody simulates.
        document["determinism"] = "none".into();
        document["batch_range"] = serde_json::json!({"max": strided.len() + 1, "learning_rate_rule": "none"});
    }
    let refused = |why: String| SetupError::Job { name: job.name.clone(), number, why };
    let spec = JobSpec::parse(&document).map_err(|problems| refused(problems.to_string()))?;
    let faster = |at: u64| (at as f64 / shape.speed_up).round() as u64;
    Ok(Job {
        name: job.name.clone(),
        tenant: job.tenant.clone(),
        submitted_ms: faster(job.submitted_ms),
        spec,
        asked,
        curve: given.curve,
        strided,
        steps_per_ms,
        goodput,
        deadline_ms: job.deadline_ms.map(|at| faster(job.submitted_ms) + at.saturating_sub(job.submitted_ms)),
        only: job.only.clone(),
    })
}

/// The curves of a job with larger batches, as far as its recording lets them become and its model was measured on all its slots: steps are `batch_size` samples,
/// of which an update takes two, three, and so on.
fn strided(
    job: &TraceJob,
    tables: &Tables,
    (workers, seed, number): (u16, u64, usize),
    range: (u16, u16),
) -> Vec<Curve> {
    let (Some(size), Some(max)) = (job.batch_size, job.batch_max) else { return Vec::new() };
    let of = |steps: u32| {
        let given = tables.give(job.model.as_deref(), Some(size.saturating_mul(steps)), workers, seed, number);
        let curve = match given.curve {
            Curve::Measured(points) => Curve::Measured(
                points.into_iter().map(|(slots, updates)| (slots, updates * f64::from(steps))).collect(),
            ),
            even @ Curve::Even { .. } => even,
        };
        let (low, high) = curve.range();
        // Of a model by chance no batch is known: a larger one would cost nothing.
        let is_known = given.named || given.model.is_none();
        (is_known && !given.other_batch && low <= range.0 && high >= range.1).then_some(curve)
    };
    (2..=(max / size.max(1)).min(STRIDE_MAX.into())).map_while(of).collect()
}

fn of_goodput(job: &TraceJob, tables: &Tables) -> Result<OfGoodput, SetupError> {
    let (model, batch_size) = (job.model.clone().unwrap_or_default(), job.batch_size.unwrap_or_default());
    let known = tables.goodput(&model).filter(|goodput| goodput.knows(batch_size));
    match known {
        Some(known) => Ok(OfGoodput { model: Arc::new(known), batch_size }),
        None => Err(SetupError::Work { name: job.name.clone(), model, batch_size }),
    }
}

/// The dataset that all jobs of a run name; nobody reads it.
pub(crate) const DATASET: &str = "recorded";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::trace::{Format, parse};

    const SHAPE: Shape = Shape { min_share: 0.0, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: false };

    fn prepared(text: &str, tables: &Tables, shape: Shape) -> (Vec<Job>, Notes) {
        jobs(&parse(text, Format::Csv).unwrap(), tables, &shape, &Costs::none(), 0).unwrap()
    }

    #[test]
    fn a_fleet_that_looks_says_late_what_its_curve_needs_between_its_points() {
        let points = [(0.0, 1.0), (100.0, 4.0), (200.0, 2.0)];
        let demand = Demand::looked_at(&points, 4, 300_000, 7_000);
        assert_eq!(demand.curve, [(0, 1), (0, 2), (33_333, 3), (66_667, 4), (150_000, 3), (200_000, 2)]);
        assert_eq!(
            demand.signals,
            [(0, 2), (35_000, 3), (70_000, 4), (133_000, 4), (154_000, 3), (203_000, 2), (266_000, 2)]
        );
    }

    #[test]
    fn a_fleet_asks_for_what_it_keeps_and_has() {
        let demand = Demand { headroom: 3, lent_max: Some(4), ..Demand::new(vec![(0, 0)], 1) };
        assert_eq!([0, 1, 2, 6, 8, 9].map(|needed| demand.asks_for(needed, 8)), [4, 4, 5, 8, 8, 9]);
    }

    #[test]
    fn work_is_what_takes_as_long_on_the_slots_it_asked_for() {
        let text = "submitted_s,duration_s,workers\n0,100,4\n60,10,1\n";
        let (made, notes) = prepared(text, &Tables::default(), Shape { speed_up: 2.0, max_share: 1.5, ..SHAPE });
        let job = &made[0];
        assert_eq!((job.spec.workers.min, job.spec.workers.max, made[1].submitted_ms), (1, 6, 30_000));
        assert_eq!(job.spec.length, events_schema::job::Length::Steps(200));
        let takes_ms = |slots| 200.0 / (job.steps_per_ms * job.curve.speed(slots).unwrap());
        // Six logical workers, two on the fullest of four members, one on six, six on one.
        assert_eq!([4, 6, 1].map(|slots| takes_ms(slots).round()), [100_000.0, 50_000.0, 300_000.0]);
        assert_eq!(notes, Notes::default());
    }

    #[test]
    fn a_job_is_done_soonest_alone_on_the_slots_that_it_is_fastest_on() {
        let text = "submitted_s,duration_s,workers,slot_type\n0,100,4,\n0,100,4,t4\n0,100,4,p100\n";
        let (made, _) = prepared(text, &Tables::default(), Shape { max_share: 2.0, ..SHAPE });
        let costs = Costs { start_ms: 1_000, ..Costs::none() };
        let cluster = "1x4:t4,1x4:v100@4".parse().unwrap();
        let setup = Setup::of_training_alone(made, cluster, costs, 0);
        let soonest: Vec<_> = setup.jobs.iter().map(|job| setup.soonest_ms(job)).collect();
        assert_eq!(
            soonest,
            [Some(13_500), Some(51_000), None],
            "on eight slots twice as fast, of a type that is four times as fast"
        );
    }

    #[test]
    fn a_larger_batch_may_be_what_makes_it_soonest() {
        let mut tables = Tables::default();
        tables.add("a", "global_batch_size,1\n100,10\n200,10\n").unwrap();
        let text = "submitted_s,duration_s,workers,model,batch_size,batch_max\n0,100,1,a,100,200\n0,100,1,,100,200\n0,100,1,a,100,100\n";
        let (made, _) = prepared(text, &tables, SHAPE);
        let setup = Setup::of_training_alone(made, "1x4:t4".parse().unwrap(), Costs::none(), 0);
        let soonest: Vec<_> = setup.jobs.iter().map(|job| setup.soonest_ms(job)).collect();
        assert_eq!(soonest, [Some(50_000), Some(100_000), Some(100_000)]);
        assert_eq!(
            [0, 1].map(|job: usize| setup.jobs[job].strided.len()),
            [1, 0],
            "of a model by chance no batch is known"
        );
    }

    #[test]
    fn demand_that_begins_later_has_the_same_round() {
        let demand = Demand { curve: vec![(0, 9)], ..Demand::new(vec![(0, 1), (40, 2), (70, 3)], 100) };
        let begun = |at_ms| demand.clone().begun_at(at_ms);
        assert_eq!(begun(0), demand);
        assert_eq!(begun(50).signals, [(0, 2), (20, 3), (50, 1), (90, 2)]);
        assert_eq!((begun(40).signals, begun(240).curve), (vec![(0, 2), (30, 3), (60, 1)], vec![(0, 9), (60, 9)]));
        let for_ever = Demand::looked_at(&[(0.0, 3.0)], 4, 0, 5_000);
        assert_eq!((&for_ever.signals, &for_ever.curve), (&vec![(0, 4)], &vec![(0, 4)]));
        assert_eq!([0, 50].map(|at_ms| for_ever.clone().begun_at(at_ms)), [for_ever.clone(), for_ever]);
    }

    #[test]
    fn nothing_runs_where_it_was_not_measured() {
        let mut tables = Tables::default();
        tables.add("a", "global_batch_size,2,4\n100,1,2\n").unwrap();
        let text = "submitted_s,duration_s,workers,model\n0,100,8,a\n0,100,3,a\n0,1,3,b\n";
        let (made, notes) = prepared(text, &tables, Shape { max_share: 2.0, ..SHAPE });
        let ranges: Vec<_> = made.iter().map(|job| (job.spec.workers.min, job.spec.workers.max)).collect();
        assert_eq!(ranges, [(2, 4), (2, 4), (2, 4)]);
        assert_eq!(notes, Notes { drawn_models: 1, other_batch: 0, cut_request: 1, cut_range: 3 });
    }

    #[test]
    fn work_that_is_not_known_is_not_guessed() {
        let trace = parse("name,time,application,num_replicas,batch_size\nx-1,1,bert,2,12\n", Format::Pollux).unwrap();
        let error = jobs(&trace, &Tables::default(), &SHAPE, &Costs::none(), 0).unwrap_err();
        assert!(
            error.to_string().contains("x-1 says no duration, only that it trains bert with 12 samples"),
            "{error}"
        );
    }
}
