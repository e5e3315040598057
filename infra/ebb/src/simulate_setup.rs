//! What `ebb simulate run` and `ebb simulate ask` simulate: their common arguments, and the rules that follow from them. Files are read by `simulate_files.rs`.

use crate::args::{LendingName, duration, lending_as, ms};
use crate::failure::Failure;
use crate::simulate_files::Files;
use clap::{Args, ValueEnum, ValueHint};
use controller_core::policy::POLICY_NAMES;
use controller_core::policy::elastic_tiresias::{ElasticTiresias, PENDING_MAX};
use controller_core::policy::ibm_dp::{IbmDp, Unfit};
use controller_core::policy::tiresias::{QUANTA_SLOT_MS, STARVATION_RATIO, Tiresias};
use controller_core::{Policy, policy_by_name};
use events_schema::TenantId;
use humantime::format_duration;
use loadtest::trace::Point;
use loadtest_simulate::cluster::ClusterError;
use loadtest_simulate::costs::REPLICA_MB;
use loadtest_simulate::questions::{GROWTH_MAX, coming, keeping, lending};
use loadtest_simulate::setup::{Notes, Shape, jobs};
use loadtest_simulate::sharing::Sharing;
use loadtest_simulate::slice::{JOBS_MAX, between, scaled, times_max};
use loadtest_simulate::{
    Cluster, Costs, Deadlines, Demand, Failures, Format, Generator, Group, Information, Setup, TraceJob, Work, trace,
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What Pollux's own simulator assumes: its cluster, how long a start takes, how far rounds are apart, and after how much service Tiresias
/// has a job in the second of two queues.
const PEER_CLUSTER: &str = "16x4:t4";
const PEER_START_MS: u64 = 30_000;
const PEER_ROUND_S: u64 = 60;
const PEER_QUANTUM_SLOT_S: u64 = 57_600;

/// What is simulated: jobs, where they run, what fleets need, and by which rules.
#[derive(Debug, Clone, Args)]
pub struct SetupArgs {
    /// The recorded jobs; compressed if it ends in .gz.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present = "generate")]
    pub jobs: Option<PathBuf>,
    /// Instead of recorded jobs some by chance: `poisson:JOBSxHOURS`, so many an hour for so long; or bursty, or diurnal.
    #[arg(long, value_name = "KIND:JOBSxHOURS", conflicts_with_all = ["jobs", "jobs_format"])]
    pub generate: Option<Generator>,
    /// How they are written: csv, msft, philly or pollux.
    #[arg(long, value_name = "FORMAT", default_value = "csv")]
    pub jobs_format: Format,
    /// What is lent all the time: `SERVERSxSLOTS:TYPE[@SPEED]`, several with commas. Pollux's jobs: 16x4:t4 without it.
    ///
    /// Where fleets serve it may be left out: then nothing is lent all the time.
    #[arg(long, value_name = "CLUSTER")]
    pub cluster: Option<Cluster>,
    /// Fleets that serve and lend what they do not need, written in the same way.
    #[arg(long, value_name = "CLUSTER", requires = "demand")]
    pub inference: Option<Cluster>,
    /// What they need: a curve, whose maximum needs all their slots; it begins again at its end.
    ///
    /// One for all fleets; or said once for each, in their order.
    #[arg(long, value_name = "FILE:COLUMN", requires = "inference")]
    pub demand: Vec<String>,
    /// The curves say slots: a fleet needs as many as stand there, and not all of its slots at the maximum.
    #[arg(long, hide_short_help = true, requires = "demand", conflicts_with = "looked_at_every_s")]
    pub demand_in_slots: bool,
    /// The fleets' need goes straight between the curve's points, and they look at it so often; without it it changes at the points, and is said at once.
    #[arg(long, hide_short_help = true, value_name = "S", requires = "demand", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub looked_at_every_s: Option<u64>,
    /// Whether slots go back before fleets need them, as their past says; without it they do not.
    #[arg(long, hide_short_help = true, value_name = "HOW")]
    pub lending: Option<LendingName>,
    /// What policies know of the work left: `unknown`, `known`, `estimated:SIGMA` (log-normal error) or `estimated:SIGMA,SHARE`.
    ///
    /// SHARE is the share of jobs without an estimate.
    #[arg(long, value_name = "CLASS", default_value = "unknown")]
    pub information: Information,
    /// Seed of everything that is by chance.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Measured speeds, a MODEL.csv or a folder of Pollux's each; without them workers are spread evenly, at no cost.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub tables: Option<PathBuf>,
    /// Only jobs submitted from this time after the recording's first one on: 36h, for example. Demand begins there, too.
    #[arg(long, hide_short_help = true, value_name = "TIME", value_parser = duration)]
    pub from: Option<Duration>,
    /// Only jobs submitted before this time after the recording's first one.
    #[arg(long, hide_short_help = true, value_name = "TIME", value_parser = duration)]
    pub to: Option<Duration>,
    /// Only so many of these jobs, by their submission.
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub first: Option<u64>,
    /// So many times as many jobs: each comes so often at its moment; below 1 some of them, evenly, do not come.
    #[arg(long, hide_short_help = true, value_name = "X", default_value_t = 1.0)]
    pub scale: f64,
    /// Jobs come so many times faster than they did; they are as long and as many as they were.
    #[arg(long, hide_short_help = true, value_name = "X", default_value_t = 1.0)]
    pub speed_up: f64,
    /// Fewest slots of a job, as a share of those it asked for; 0, the default: one. Pollux's jobs: 1.
    #[arg(long, hide_short_help = true, value_name = "X")]
    pub min_share: Option<f64>,
    /// Most slots of a job, as a multiple of those it asked for.
    #[arg(long, hide_short_help = true, value_name = "X", default_value_t = 1.0)]
    pub max_share: f64,
    /// Jobs without a deadline get one by chance: LOW to HIGH times what they take alone on what they ask for, from their submission on. 1.1-3 for example.
    #[arg(long, hide_short_help = true, value_name = "LOW-HIGH")]
    pub deadlines: Option<Deadlines>,
    /// How long a step takes on the slots a job asked for.
    #[arg(long, hide_short_help = true, value_name = "MS", default_value_t = 500)]
    pub step_ms: u64,
    /// How large a replica is, for copies and checkpoints; 200 without it. Pollux's jobs: without it only starts take time.
    #[arg(long, hide_short_help = true, value_name = "MB")]
    pub replica_mb: Option<u64>,
    /// How long a process takes to start; 6419 without it. Pollux's jobs: 30000.
    #[arg(long, hide_short_help = true, value_name = "MS")]
    pub start_ms: Option<u64>,
    /// Plans are made so many seconds apart; 0, the default: whenever something changes. Pollux's jobs: 60.
    #[arg(long, hide_short_help = true, value_name = "S")]
    pub round_s: Option<u64>,
    /// What the work of jobs without durations is: so many steps, the default, or progress by the epoch. Pollux's jobs: goodput.
    #[arg(long, hide_short_help = true, value_name = "MEASURE")]
    pub work: Option<Measure>,
    /// tiresias, elastic-tiresias: after so much service a job comes into the next queue; 10000,200000 without it. Pollux's jobs: 57600.
    #[arg(long, hide_short_help = true, value_name = "SLOT_S", value_delimiter = ',')]
    pub quanta_slot_s: Option<Vec<u64>>,
    /// The same: promoted is who waits so many times as long as it ran; 0: nobody; 8 without it. Pollux's jobs: 0.
    #[arg(long, hide_short_help = true, value_name = "X")]
    pub starvation_ratio: Option<u32>,
    /// elastic-tiresias: with more jobs pending than so many, those of later queues run on half of their slots.
    #[arg(long, hide_short_help = true, value_name = "N", default_value_t = PENDING_MAX)]
    pub pending_max: usize,
    /// antman: slots that a tenant of the recording has guaranteed; tenants that are not named have none, and without any all jobs are guaranteed.
    #[arg(long, hide_short_help = true, value_name = "TENANT=SLOTS", value_delimiter = ',', value_parser = quota)]
    pub quota: Vec<(TenantId, u32)>,
    /// antman: each slot has a guest slot; a guest is 0.57 times as fast as alone, and its host 0.97 times, whatever they train.
    #[arg(long, hide_short_help = true)]
    pub guests: bool,
    /// ibm-dp, ibm-dp-drop: seconds between two decisions; 0: one at every arrival and end. Live it is 600.
    #[arg(long, hide_short_help = true, value_name = "S", default_value_t = 0)]
    pub delta_s: u64,
    /// Slots that fleets that serve keep beyond what they need, all of them together.
    #[arg(long, hide_short_help = true, value_name = "SLOTS", requires = "demand", default_value_t = 0)]
    pub headroom: u64,
    /// Slots that fleets that serve lend at most, all of them together; without it all that they do not need.
    #[arg(long, hide_short_help = true, value_name = "SLOTS", requires = "demand")]
    pub lent_max: Option<u64>,
    /// Each job is measured at several sizes before it settles (`profile: true`), and policies know of its speeds what was measured; without it they know
    /// all of its curve.
    #[arg(long, hide_short_help = true)]
    pub profile: bool,
    /// All types of servers are of one numeric class, as GPUs usually are not: jobs that can use any are on several at once, under `easyscale` and `lyra`.
    #[arg(long, hide_short_help = true)]
    pub mixed_types: bool,
    /// How long a fleet waits for a slot until its executor is killed.
    #[arg(long, hide_short_help = true, value_name = "MS", default_value_t = 5_000)]
    pub reclaim_deadline_ms: u64,
    /// A server breaks after so many hours in the mean; never without it.
    #[arg(long, hide_short_help = true, value_name = "HOURS")]
    pub server_fails_hours: Option<f64>,
    /// How long its repair takes.
    #[arg(long, hide_short_help = true, value_name = "MINUTES", default_value_t = 30)]
    pub repair_minutes: u64,
}

/// Reads `TENANT=SLOTS`.
pub(crate) fn quota(text: &str) -> Result<(TenantId, u32), String> {
    let parsed = text.rsplit_once('=').and_then(|(tenant, slots)| Some((tenant.parse().ok()?, slots.parse().ok()?)));
    parsed.ok_or_else(|| format!("`{text}` is no quota; expected TENANT=SLOTS, as in research=32"))
}

/// What work is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// As many steps as the training took.
    Steps,
    /// Progress, of which a step makes more in some epochs than in others.
    Goodput,
}

/// What is so if no argument says otherwise, by the jobs' format.
pub(crate) struct Rules {
    cluster: Cluster,
    min_share: f64,
    /// None: only starts take time.
    replica_mb: Option<u64>,
    costs: Costs,
    round_ms: Option<u64>,
    work: Measure,
    quanta_slot_s: Vec<u64>,
    starvation_ratio: u32,
}

impl Rules {
    /// The rules of Pollux's own simulator for its own jobs, else what Ebb does.
    pub(crate) fn of(args: &SetupArgs) -> Result<Self, Failure> {
        let peer = args.jobs_format == Format::Pollux;
        let named = |default: &str| default.parse().map_err(|error: ClusterError| Failure::Usage(error.to_string()));
        let cluster = match &args.cluster {
            Some(cluster) => cluster.clone(),
            None if peer => named(PEER_CLUSTER)?,
            None if args.inference.is_some() => Cluster::default(),
            None => return Err(Failure::Usage("--cluster is missing; expected for example 2x4:t4".to_owned())),
        };
        let replica_mb = args.replica_mb.or((!peer).then_some(REPLICA_MB));
        let costs = match replica_mb {
            None => Costs { start_ms: PEER_START_MS, ..Costs::none() },
            Some(replica_mb) => Costs::measured(replica_mb),
        };
        let round_s = args.round_s.unwrap_or(if peer { PEER_ROUND_S } else { 0 });
        let quanta = || if peer { vec![PEER_QUANTUM_SLOT_S] } else { QUANTA_SLOT_MS.map(|ms| ms / 1_000).to_vec() };
        Ok(Self {
            cluster,
            min_share: args.min_share.unwrap_or(if peer { 1.0 } else { 0.0 }),
            replica_mb,
            costs: Costs { start_ms: args.start_ms.unwrap_or(costs.start_ms), ..costs },
            round_ms: (round_s > 0).then(|| round_s.saturating_mul(1_000)),
            work: args.work.unwrap_or(if peer { Measure::Goodput } else { Measure::Steps }),
            quanta_slot_s: args.quanta_slot_s.clone().unwrap_or_else(quanta),
            starvation_ratio: args.starvation_ratio.unwrap_or(if peer { 0 } else { STARVATION_RATIO }),
        })
    }

    pub(crate) fn policy(&self, name: &str, args: &SetupArgs) -> Result<Box<dyn Policy>, Failure> {
        let queues = || {
            let quanta = self.quanta_slot_s.iter().map(|quantum| quantum.saturating_mul(1_000)).collect();
            let patience = (self.starvation_ratio > 0).then_some(self.starvation_ratio);
            Tiresias::new(quanta, patience)
                .map_err(|error| Failure::Usage(format!("--quanta-slot-s cannot be used: {error}")))
        };
        let unknown =
            || Failure::Usage(format!("--policies: `{name}` is no policy; there are {}", POLICY_NAMES.join(", ")));
        let delta_ms = args.delta_s.saturating_mul(1_000);
        let policy: Box<dyn Policy> = match name {
            "tiresias" => Box::new(queues()?),
            "elastic-tiresias" => Box::new(ElasticTiresias::new(queues()?, args.pending_max)),
            "ibm-dp" => Box::new(IbmDp::new(delta_ms, Unfit::Wait)),
            "ibm-dp-drop" => Box::new(IbmDp::new(delta_ms, Unfit::AreDropped)),
            _ => policy_by_name(name).ok_or_else(unknown)?,
        };
        Ok(lending_as(args.lending, policy))
    }

    fn shape(&self, args: &SetupArgs) -> Shape {
        let (min_share, goodput) = (self.min_share, self.work == Measure::Goodput);
        Shape { min_share, max_share: args.max_share, step_ms: args.step_ms, speed_up: args.speed_up, goodput }
    }
}

/// What is run with a seed, what was done to the recording for it, and the recording.
pub(crate) fn setup(
    args: &SetupArgs,
    rules: &Rules,
    seed: u64,
    files: &mut Files,
) -> Result<(Setup, Notes, Vec<TraceJob>), Failure> {
    let positive = |name: &str, value: f64| {
        let fits = value.is_finite() && value > 0.0;
        let wrong = || Failure::Usage(format!("--{name}: {value} makes no sense; expected a number above 0"));
        if fits { Ok(()) } else { Err(wrong()) }
    };
    positive("speed-up", args.speed_up)?;
    positive("max-share", args.max_share)?;
    positive("scale", args.scale)?;
    if args.scale > GROWTH_MAX {
        return Err(Failure::Usage(format!("--scale: {} makes no sense; expected {GROWTH_MAX} at most", args.scale)));
    }
    positive("step-ms", args.step_ms as f64)?;
    positive("server-fails-hours", args.server_fails_hours.unwrap_or(1.0))?;
    if !(0.0..=1.0).contains(&rules.min_share) {
        return Err(Failure::Usage(format!("--min-share: {} makes no sense; expected 0 to 1", rules.min_share)));
    }
    let unusable = |file: &Path, why: &dyn std::fmt::Display| {
        Failure::Usage(format!("{} cannot be used as recorded: {why}", file.display()))
    };
    let source = args.jobs.as_deref().unwrap_or(Path::new("--generate"));
    let trace = match &args.generate {
        Some(generator) => generator.jobs(seed),
        None => trace::parse(&files.text(source)?, args.jobs_format).map_err(|error| unusable(source, &error))?,
    };
    let trace = part(args, trace, source)?;
    scalable(args.scale, trace.len())?;
    let tables = args.tables.as_deref().map(|folder| files.tables(folder)).transpose()?.unwrap_or_default();
    let costs = rules.costs;
    let made = jobs(&trace, &tables, &rules.shape(args), &costs, seed);
    let (mut jobs, notes) = made.map_err(|error| unusable(source, &error))?;
    if let Some(deadlines) = args.deadlines {
        deadlines.give(&mut jobs, &costs, seed);
    }
    if args.profile {
        jobs.iter_mut().for_each(|job| job.spec = job.spec.clone().profiled());
    }
    let inference = args.inference.clone().unwrap_or_default();
    let from_ms = args.from.map_or(0, ms);
    let demand = demand(args, &inference, files)?.into_iter().map(|demand| demand.begun_at(from_ms)).collect();
    let failures = args
        .server_fails_hours
        .map(|hours| Failures { mean_ms: hours * 3_600_000.0, repair_ms: args.repair_minutes * 60_000 });
    let (cluster, reclaim_deadline_ms) = (rules.cluster.clone(), args.reclaim_deadline_ms);
    let round_ms = rules.round_ms;
    let quotas = args.quota.iter().cloned().collect();
    let information = args.information;
    let setup = Setup {
        jobs,
        cluster,
        inference,
        demand,
        reclaim_deadline_ms,
        quotas,
        sharing: args.guests.then_some(Sharing::OF_ANTMAN),
        costs,
        failures,
        round_ms,
        information,
        mixed_types: false,
        until_ms: None,
        seed,
    };
    let setup = if args.mixed_types { setup.with_mixed_types(|_| true) } else { setup };
    let setup = keeping(setup, args.headroom);
    let setup = match args.lent_max {
        Some(slots) => lending(setup, slots),
        None => setup,
    };
    Ok((coming(setup, args.scale), notes, scaled(trace, args.scale)))
}

/// That so many times as many as these jobs are some, and no more than are simulated.
fn scalable(times: f64, jobs: usize) -> Result<(), Failure> {
    let most = times_max(jobs);
    if times > most {
        return Err(Failure::Usage(format!(
            "--scale: {times} would be {times} times {jobs} jobs, more than {JOBS_MAX}; expected {most} at most"
        )));
    }
    if times * (jobs as f64) < 1.0 && jobs > 0 {
        // Three digits, rounded up: of what 1 ÷ 49 is to a machine 49 times are less than 1.
        let digits = 10_f64.powi(jobs.ilog10() as i32 + 3);
        let least = (digits / jobs as f64).ceil() / digits;
        return Err(Failure::Usage(format!("--scale: {times} leaves none of {jobs} jobs; expected {least} or more")));
    }
    Ok(())
}

/// The jobs of a recording that are left of it.
fn part(args: &SetupArgs, recorded: Vec<TraceJob>, source: &Path) -> Result<Vec<TraceJob>, Failure> {
    let (from, to) = (args.from.unwrap_or_default(), args.to);
    if let Some(to) = to.filter(|to| *to <= from) {
        let [from, to] = [from, to].map(format_duration);
        return Err(Failure::Usage(format!("--to: {to} is not after --from, {from}; expected a later time")));
    }
    let (count, last) = (recorded.len(), recorded.last().map_or(0, |job| job.submitted_ms));
    let mut left = between(recorded, ms(from), to.map(ms));
    if left.is_empty() && count > 0 {
        return Err(Failure::Usage(format!(
            "--from, --to: none of the {count} jobs of {} was submitted then; expected times up to {}, when the last one was",
            source.display(),
            format_duration(Duration::from_millis(last))
        )));
    }
    left.truncate(args.first.map_or(usize::MAX, |first| usize::try_from(first).unwrap_or(usize::MAX)));
    Ok(left)
}

/// The demand of each fleet: a curve of its own, or the same one for the slots of each.
fn demand(args: &SetupArgs, inference: &Cluster, files: &mut Files) -> Result<Vec<Demand>, Failure> {
    let curves = args.demand.iter().map(|named| DemandCurve::read(named, files)).collect::<Result<Vec<_>, _>>()?;
    let (count, fleets) = (curves.len(), inference.groups.len());
    if count > 1 && count != fleets {
        let why =
            format!("--demand: there are {count} curves and {fleets} fleets; expected one for all, or one for each");
        return Err(Failure::Usage(why));
    }
    let looked_at = args.looked_at_every_s.map(|seconds| seconds * 1_000);
    let of = |(curve, group): (&DemandCurve, &Group)| match looked_at {
        _ if args.demand_in_slots => curve.in_slots(group.slots_total()),
        Some(every_ms) => curve.looked_at(group.slots_total(), every_ms),
        None => curve.of(group.slots_total(), 1.0),
    };
    Ok(curves.iter().cycle().zip(&inference.groups).map(of).collect())
}

/// A recorded curve of what fleets need.
pub(crate) struct DemandCurve {
    points: Vec<Point>,
    period_s: f64,
}

impl DemandCurve {
    /// Reads what `FILE:COLUMN` names.
    pub(crate) fn read(named: &str, files: &mut Files) -> Result<Self, Failure> {
        let wrong = || Failure::Usage(format!("--demand: `{named}` names no column; expected FILE:COLUMN"));
        let (file, column) = named.rsplit_once(':').ok_or_else(wrong)?;
        let file = Path::new(file);
        let unusable = |error| Failure::Usage(format!("{} cannot be used as demand: {error:#}", file.display()));
        let points = loadtest::trace::curve(files.kept(file)?.as_bytes(), column).map_err(unusable)?;
        let last_s = points.last().map_or(0.0, |point| point.at_s);
        // The last point holds as long as the one before it did.
        let before_s = points.len().checked_sub(2).and_then(|at| points.get(at)).map_or(last_s, |point| point.at_s);
        Ok(Self { points, period_s: 2.0 * last_s - before_s })
    }

    /// The same of one whose need goes straight between the points, and who looks at it so often.
    fn looked_at(&self, slots: u64, every_ms: u64) -> Demand {
        let points: Vec<(f64, f64)> = self.points.iter().map(|point| (point.at_s, point.value)).collect();
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        Demand::looked_at(&points, slots, (self.period_s * 1_000.0).round() as u64, every_ms)
    }

    /// What a fleet of so many slots needs that says slots.
    fn in_slots(&self, slots: u64) -> Demand {
        let ms = |seconds: f64| (seconds * 1_000.0).round() as u64;
        let needed = |point: &Point| (point.value.ceil() as u64).min(slots) as u32;
        let mut signals: Vec<(u64, u32)> = self.points.iter().map(|point| (ms(point.at_s), needed(point))).collect();
        signals.dedup_by_key(|(_, needed)| *needed);
        Demand::new(signals, ms(self.period_s))
    }

    /// What a fleet needs whose slots are all needed at the curve's maximum, so many times faster than it was.
    pub(crate) fn of(&self, slots: u64, speed_up: f64) -> Demand {
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        let ms = |seconds: f64| (seconds / speed_up * 1_000.0).round() as u64;
        let signals = loadtest::trace::signals(&self.points, slots);
        let signals = signals.iter().map(|signal| (ms(signal.at_s), signal.needed)).collect();
        Demand::new(signals, ms(self.period_s))
    }
}

/// Slot·time that jobs asked for ÷ the cluster's from the first submission to the last; none where durations are not said.
fn offered_load(trace: &[TraceJob], slots: u64, speed_up: f64) -> Option<f64> {
    let slot_s = |job: &TraceJob| match job.work {
        Work::Seconds(seconds) => Some(seconds * f64::from(job.workers)),
        Work::OfModel => None,
    };
    let asked = trace.iter().map(slot_s).sum::<Option<f64>>()?;
    let (first, last) = (trace.first()?.submitted_ms, trace.last()?.submitted_ms);
    let there = (last - first) as f64 / 1e3 / speed_up * slots as f64;
    (there > 0.0).then(|| asked / there)
}

/// What figures follow from beside what was said: what was left to the rules, and what came of files.
pub(crate) fn resolved(
    args: &SetupArgs,
    rules: &Rules,
    setup: &Setup,
    trace: &[TraceJob],
    notes: &Notes,
) -> Map<String, Value> {
    let slots = (setup.cluster.slots_total(), setup.inference.slots_total());
    let load = offered_load(trace, slots.0, args.speed_up);
    let resolved = json!({
        "jobs": {"file": args.jobs, "count": trace.len(), "offered_load": load},
        "cluster": setup.cluster.groups, "cluster_slots": slots.0,
        "inference": setup.inference.groups, "inference_slots": slots.1,
        "seed": setup.seed, "min_share": rules.min_share, "replica_mb": rules.replica_mb, "start_ms": setup.costs.start_ms, "costs": setup.costs,
        "round_s": setup.round_ms.unwrap_or(0) / 1_000, "work": rules.work,
        "quanta_slot_s": rules.quanta_slot_s, "starvation_ratio": rules.starvation_ratio,
        "notes": notes,
    });
    if let Value::Object(resolved) = resolved { resolved } else { Map::new() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn args(of: &[&str]) -> SetupArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            setup: SetupArgs,
        }
        let line = ["run", "--jobs", "jobs.csv"].iter().chain(of);
        clap::Parser::try_parse_from(line).map(|Line { setup }| setup).unwrap()
    }

    #[test]
    fn each_fleet_has_a_curve_of_its_own_or_all_have_the_same_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("day.csv");
        std::fs::write(&file, "t,a,b\n0,1,0\n60,1,3\n120,0,3\n").unwrap();
        let [a, b] = ["a", "b"].map(|column| format!("{}:{column}", file.display()));
        let signals = |more: &[&str]| {
            let args = args(&[&["--inference", "1x4:t4,1x6:t4"], more].concat());
            let made = demand(&args, args.inference.as_ref().unwrap(), &mut Files::default());
            made.map(|made| made.into_iter().map(|of| of.signals).collect::<Vec<_>>())
                .map_err(|error| error.to_string())
        };
        let same = signals(&["--demand", &b]).unwrap();
        assert_eq!(same, [[(0, 0), (60_000, 4)], [(0, 0), (60_000, 6)]], "the maximum needs all slots");
        let own = signals(&["--demand", &a, "--demand", &b, "--demand-in-slots"]).unwrap();
        assert_eq!(own, [[(0, 1), (120_000, 0)], [(0, 0), (60_000, 3)]], "as many as stand there");
        let error = signals(&["--demand", &a, "--demand", &b, "--demand", &b]).unwrap_err();
        assert!(error.contains("3 curves and 2 fleets"), "{error}");
    }

    #[test]
    fn a_curve_of_one_row_holds_for_ever_whenever_the_run_begins() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("day.csv");
        std::fs::write(&file, "t,a\n0,3\n").unwrap();
        let one = DemandCurve::read(&format!("{}:a", file.display()), &mut Files::default()).unwrap();
        for at_ms in [0, 7_000] {
            let needs = [one.of(4, 1.0), one.in_slots(4), one.looked_at(4, 5_000)].map(|of| of.begun_at(at_ms).signals);
            assert_eq!(needs, [[(0, 4)], [(0, 3)], [(0, 4)]], "{at_ms}");
        }
    }

    #[test]
    fn a_file_of_demand_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("day.csv");
        std::fs::write(&file, "t,a,b\n0,1,2\n").unwrap();
        let mut files = Files::default();
        let mut read = |column: &str| DemandCurve::read(&format!("{}:{column}", file.display()), &mut files);
        assert_eq!(read("a").unwrap().points[0].value, 1.0);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(read("b").unwrap().points[0].value, 2.0);
    }

    #[test]
    fn a_scale_that_is_refused_names_one_that_is_not() {
        let refused = |times: f64, jobs: usize| scalable(times, jobs).unwrap_err().to_string();
        assert_eq!(refused(0.02, 49), "--scale: 0.02 leaves none of 49 jobs; expected 0.0205 or more");
        let expected =
            |said: String| said.split("expected ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        for jobs in (1..2_000).chain([60_000, 999_999, 1_000_000]) {
            let least: f64 = expected(refused(0.5 / jobs as f64, jobs));
            assert!(scalable(least, jobs).is_ok() && scaled(vec![(); jobs], least).len() == 1, "{least} of {jobs}");
        }
        let said = refused(100.0, 50_000);
        assert_eq!(said, "--scale: 100 would be 100 times 50000 jobs, more than 1000000; expected 20 at most");
        assert!(scalable(expected(said), 50_000).is_ok());
        assert!(scalable(1.0, 2_000_000).is_ok(), "nothing is made of what was recorded");
    }

    #[test]
    fn fleets_alone_need_no_cluster_and_without_either_one_is_asked_for() {
        let fleets = args(&["--inference", "1x4:t4", "--demand", "day.csv:a"]);
        assert_eq!(Rules::of(&fleets).unwrap().cluster, Cluster::default());
        let error = Rules::of(&args(&[])).err().unwrap().to_string();
        assert!(error.contains("--cluster is missing"), "{error}");
    }
}
