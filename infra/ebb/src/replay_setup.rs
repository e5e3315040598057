//! What `ebb replay` replays: its arguments, the recording, compressed in time, and the service as a setup of the simulator.

use crate::failure::Failure;
use crate::roles::LOCAL_TENANT;
use crate::simulate_files::Files;
use crate::simulate_setup::{DemandCurve, quota};
use clap::{Args, ValueHint};
use events_schema::{SlotId, TenantId};
use gateway_api::{Fleet, Offers, Slot, SlotState};
use loadtest_simulate::live::LiveFleet;
use loadtest_simulate::setup::{Shape, jobs};
use loadtest_simulate::{Cluster, Costs, Demand, Format, Group, Information, Setup, Tables, TraceJob, Work, trace};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Jobs of a replay at most: each is a few processes and some hundred records in the service's log.
const JOBS_MAX: usize = 2_000;

/// Arguments of `ebb replay`.
#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// The recorded jobs; compressed if it ends in .gz.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub jobs: PathBuf,
    /// How they are written: csv, msft or philly.
    #[arg(long, value_name = "FORMAT", default_value = "csv")]
    pub jobs_format: Format,
    /// What a fleet needs: a curve, whose maximum needs all its slots. `FLEET=` may be left out where there is one fleet; one for each fleet.
    #[arg(long, value_name = "[FLEET=]FILE:COLUMN")]
    pub demand: Vec<String>,
    /// Slots that a tenant of the recording has guaranteed meanwhile, under a policy that knows of quotas; afterwards it has what it had before.
    #[arg(long, value_name = "TENANT=SLOTS", value_delimiter = ',', value_parser = quota)]
    pub quota: Vec<(TenantId, u32)>,
    /// Jobs come, jobs run and demand changes so many times faster than they did.
    #[arg(long, value_name = "X", default_value_t = 60.0)]
    pub speed_up: f64,
    /// Only so many of the jobs, by their submission.
    #[arg(long, visible_alias = "first", value_name = "N")]
    pub max_jobs: Option<usize>,
    /// How long a step takes on the slots a job asked for, on the clock of the replay.
    #[arg(long, value_name = "MS", default_value_t = 100)]
    pub step_ms: u64,
    /// Fewest slots of a job whose row says none, as a share of those it asked for; 0: one.
    #[arg(long, hide_short_help = true, value_name = "X", default_value_t = 0.0)]
    pub min_share: f64,
    /// Parameters of each job's replica, 16 bytes each.
    #[arg(long, hide_short_help = true, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub parameters: u32,
    /// The dataset that jobs name; they only count its rows.
    #[arg(long, hide_short_help = true, value_name = "NAME", default_value = "digits")]
    pub dataset: String,
    /// Longest wait after the last submission; jobs that have not ended then are cancelled.
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = crate::args::duration)]
    pub wait: std::time::Duration,
    /// Folder for a page with pictures that opens offline, of both runs.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub report: Option<PathBuf>,
}

/// What is replayed, where.
pub(crate) struct Replay {
    /// As the simulator takes it, with costs and speeds that nobody has measured yet.
    pub setup: Setup,
    /// Fleets in the setup's order: those that lend all the time, then those that serve.
    pub fleets: Vec<LiveFleet>,
}

/// The recording, so many times faster.
pub(crate) fn recording(args: &ReplayArgs) -> Result<Vec<TraceJob>, Failure> {
    let wrong = |name: &str, value: f64, expected: &str| {
        Failure::Usage(format!("--{name}: {value} makes no sense; expected {expected}"))
    };
    if !(args.speed_up.is_finite() && args.speed_up > 0.0) {
        return Err(wrong("speed-up", args.speed_up, "a number above 0"));
    }
    if !(0.0..=1.0).contains(&args.min_share) {
        return Err(wrong("min-share", args.min_share, "0 to 1"));
    }
    if !(1..=10_000).contains(&args.step_ms) {
        return Err(wrong("step-ms", args.step_ms as f64, "1 to 10000"));
    }
    let unusable =
        |why: &dyn std::fmt::Display| Failure::Usage(format!("{} cannot be replayed: {why}", args.jobs.display()));
    let mut trace =
        trace::parse(&Files::default().text(&args.jobs)?, args.jobs_format).map_err(|error| unusable(&error))?;
    trace.truncate(args.max_jobs.unwrap_or(usize::MAX));
    if trace.is_empty() {
        return Err(unusable(&"it has no jobs"));
    }
    if trace.len() > JOBS_MAX {
        return Err(unusable(&format!(
            "it has {} jobs, and {JOBS_MAX} are the most; cut it with --max-jobs",
            trace.len()
        )));
    }
    // Of its own clock, too, a recording begins with its first job.
    let first_ms = trace.first().map_or(0, |job| job.submitted_ms);
    let faster = |ms: u64| (ms.saturating_sub(first_ms) as f64 / args.speed_up).round() as u64;
    for job in &mut trace {
        let Work::Seconds(seconds) = job.work else {
            return Err(unusable(&format!("job {} says no duration", job.name)));
        };
        if job.only.is_some() {
            return Err(unusable(&format!(
                "job {} names a type of slots, and jobs of Ebb cannot; leave `slot_type` out",
                job.name
            )));
        }
        // As the service has it, so that the simulated run knows whose it is, too.
        let tenant = job.tenant.get_or_insert_with(|| LOCAL_TENANT.to_owned());
        if let Err(error) = tenant.parse::<TenantId>() {
            return Err(unusable(&format!("`tenant` of job {}: {error}", job.name)));
        }
        job.work = Work::Seconds(seconds / args.speed_up);
        (job.submitted_ms, job.deadline_ms) = (faster(job.submitted_ms), job.deadline_ms.map(faster));
    }
    Ok(trace)
}

/// The recording on the service as it is.
pub(crate) fn replay(args: &ReplayArgs, trace: &[TraceJob], fleets: &[Fleet]) -> Result<Replay, Failure> {
    if fleets.is_empty() {
        let failure = Failure::plain("the service has no fleet, so there is nothing to run on");
        return Err(failure.advise("declare one with `ebb fleet put`"));
    }
    let mut named = demand(&args.demand, fleets)?;
    let (mut live, mut cluster, mut inference, mut curves) =
        (Vec::new(), Cluster::default(), Cluster::default(), Vec::new());
    // Those that lend all the time are first, as in a setup.
    let (serving, lending): (Vec<&Fleet>, Vec<&Fleet>) =
        fleets.iter().partition(|fleet| named.contains_key(&fleet.name));
    for fleet in lending {
        let there: Vec<&Slot> = fleet.slots.iter().filter(|slot| is_lent(slot)).collect();
        if let Some(group) = group(&there) {
            cluster.groups.push(group);
            live.push(as_live(fleet, false));
        }
    }
    for fleet in serving {
        if fleet.offers.known() != Some(&Offers::ByDemand) || fleet.recalled.is_some() {
            let why = format!("fleet {} does not lend by its demand now, so its demand cannot be replayed", fleet.name);
            return Err(Failure::plain(why).advise("declare it with `--offers by-demand`, or release it"));
        }
        let there: Vec<&Slot> = fleet.slots.iter().filter(|slot| slot.class.is_some()).collect();
        let (Some(group), Some(curve)) = (group(&there), named.remove(&fleet.name)) else {
            return Err(Failure::plain(format!("fleet {} has no slot whose server is there", fleet.name)));
        };
        curves.push(curve.of(group.slots_total(), args.speed_up));
        inference.groups.push(group);
        live.push(as_live(fleet, true));
    }
    let slots = cluster.slots_total() + inference.slots_total();
    if slots == 0 {
        let failure = Failure::plain("no fleet of the service lends a slot, so no job could ever run");
        return Err(failure
            .advise("lend some with `ebb fleet demand FLEET --needed 0`, or give a fleet's demand with --demand"));
    }
    let reclaim_deadline_ms = fleets.iter().filter(|fleet| live.iter().any(|of| of.serves && of.name == fleet.name));
    let reclaim_deadline_ms = reclaim_deadline_ms.map(|fleet| fleet.reclaim_deadline_ms).max().unwrap_or(10_000);
    let shape =
        Shape { min_share: args.min_share, max_share: 1.0, step_ms: args.step_ms, speed_up: 1.0, goodput: false };
    let costs = Costs::measured(0);
    let unusable =
        |why: &dyn std::fmt::Display| Failure::Usage(format!("{} cannot be replayed: {why}", args.jobs.display()));
    let (jobs, _) = jobs(trace, &Tables::default(), &shape, &costs, 0).map_err(|error| unusable(&error))?;
    if let Some(job) = jobs.iter().find(|job| u64::from(job.spec.workers.min) > slots) {
        let (name, min) = (&job.name, job.spec.workers.min);
        return Err(unusable(&format!("job {name} needs {min} slots at least, and all fleets together have {slots}")));
    }
    let setup = Setup {
        inference,
        demand: curves,
        reclaim_deadline_ms,
        // What the live controller tells its policy of a job that says its steps.
        information: Information::Stepped,
        ..Setup::of_training_alone(jobs, cluster, costs, 0)
    };
    Ok(Replay { setup, fleets: live })
}

/// The curve of each fleet that is named.
fn demand(named: &[String], fleets: &[Fleet]) -> Result<BTreeMap<String, DemandCurve>, Failure> {
    let (mut curves, mut files) = (BTreeMap::new(), Files::default());
    let names = || fleets.iter().map(|fleet| fleet.name.as_str()).collect::<Vec<_>>().join(", ");
    for text in named {
        // A file may have a `=` in its name; a fleet's name is in front of it.
        let parts = text.split_once('=').filter(|(name, _)| !Path::new(text).exists() && !name.contains('/'));
        let (name, curve) = match (parts, fleets) {
            (Some((name, curve)), _) => (name.to_owned(), curve),
            (None, [fleet]) => (fleet.name.clone(), text.as_str()),
            (None, _) => {
                let why = format!(
                    "--demand: `{text}` names no fleet, and there are several ({}); expected FLEET=FILE:COLUMN",
                    names()
                );
                return Err(Failure::Usage(why));
            }
        };
        if !fleets.iter().any(|fleet| fleet.name == name) {
            return Err(Failure::Usage(format!("--demand: there is no fleet `{name}`; there are {}", names())));
        }
        if curves.insert(name.clone(), DemandCurve::read(curve, &mut files)?).is_some() {
            return Err(Failure::Usage(format!("--demand: fleet {name} is named twice")));
        }
    }
    Ok(curves)
}

fn is_lent(slot: &Slot) -> bool {
    slot.class.is_some() && matches!(slot.state.known(), Some(SlotState::Offered | SlotState::Borrowed))
}

/// Slots as servers of a setup, which are alike: as they are where each has as many, else each slot by itself.
fn group(slots: &[&Slot]) -> Option<Group> {
    let mut servers = BTreeMap::<&str, u16>::new();
    for slot in slots {
        *servers.entry(slot.slot.split_once('/').map_or("", |(server, _)| server)).or_default() += 1;
    }
    let kind = slots.first()?.class.as_deref().unwrap_or_default();
    let kind = kind.get(..8).unwrap_or(kind).to_owned();
    let each = *servers.values().next()?;
    let alike = servers.values().all(|slots| *slots == each);
    let (servers, slots) = if alike { (servers.len(), each) } else { (slots.len(), 1) };
    Some(Group { servers: u32::try_from(servers).ok()?, slots, kind, speed: 1.0 })
}

fn as_live(fleet: &Fleet, serves: bool) -> LiveFleet {
    let counts = |slot: &&Slot| if serves { slot.class.is_some() } else { is_lent(slot) };
    let slots = fleet.slots.iter().filter(counts);
    let slots = slots.filter_map(|slot| Some((slot.slot.parse::<SlotId>().ok()?, is_lent(slot)))).collect();
    LiveFleet { name: fleet.name.clone(), serves, slots, needed: fleet.needed.unwrap_or(0) }
}

/// When a fleet says what it needs, counted from the beginning: again and again, as the simulator has it.
pub(crate) fn signal(demand: &Demand, number: usize) -> Option<(u64, u32)> {
    let count = demand.signals.len();
    let (at_ms, needed) = *demand.signals.get(number.checked_rem(count)?)?;
    let round = (number / count) as u64;
    // One that never changes is said once.
    if round > 0 && count == 1 {
        return None;
    }
    Some((at_ms + round * demand.period_ms.max(1), needed))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    fn fleet(name: &str, slots: &[(&str, &str)]) -> Fleet {
        let slot = |(slot, state): &(&str, &str)| json!({"slot": slot, "state": state, "class": "0123456789ab"});
        let slots: Vec<Value> = slots.iter().map(slot).collect();
        let shown =
            json!({"name": name, "offers": "by_demand", "reclaim_deadline_ms": 700, "needed": 1, "slots": slots});
        serde_json::from_value(shown).unwrap()
    }

    fn args(folder: &Path, jobs: &str, more: &[&str]) -> ReplayArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            replay: ReplayArgs,
        }
        let file = folder.join("jobs.csv");
        std::fs::write(&file, jobs).unwrap();
        let line = ["replay", "--jobs", file.to_str().unwrap()].into_iter().chain(more.iter().copied());
        clap::Parser::try_parse_from(line).map(|Line { replay }| replay).unwrap()
    }

    const JOBS: &str = "submitted_s,duration_s,workers,deadline_s\n0,120,2,600\n120,60,1,\n";

    #[test]
    fn a_recording_is_compressed_and_the_service_is_its_cluster() {
        let folder = tempfile::tempdir().unwrap();
        let curve = folder.path().join("day.csv");
        std::fs::write(&curve, "t,rate\n0,1\n60,2\n120,1\n").unwrap();
        let named = format!("chat={}:rate", curve.display());
        let args = args(folder.path(), JOBS, &["--demand", &named, "--speed-up", "60"]);
        let trace = recording(&args).unwrap();
        assert_eq!((trace[1].submitted_ms, trace[1].work), (2_000, Work::Seconds(1.0)));
        assert_eq!(trace[0].deadline_ms, Some(10_000));
        let local = fleet("local", &[("a/0", "borrowed"), ("a/1", "unoffered"), ("b/0", "offered")]);
        let chat = fleet("chat", &[("a/2", "unoffered"), ("a/3", "offered")]);
        let Replay { setup, fleets } = replay(&args, &trace, &[chat, local]).unwrap();
        assert_eq!(setup.cluster.groups, ["2x1:01234567".parse().unwrap()]);
        assert_eq!(setup.inference.groups, ["1x2:01234567".parse().unwrap()]);
        assert_eq!((setup.reclaim_deadline_ms, setup.demand[0].period_ms), (700, 3_000));
        assert_eq!(
            fleets.iter().map(|of| (of.name.as_str(), of.serves, of.slots.len())).collect::<Vec<_>>(),
            [("local", false, 2), ("chat", true, 2)]
        );
        let said: Vec<_> = (0..5).map(|number| signal(&setup.demand[0], number).unwrap()).collect();
        assert_eq!(said, [(0, 1), (1_000, 2), (2_000, 1), (3_000, 1), (4_000, 2)]);
        assert_eq!(loadtest_simulate::live::gradient_ms(&setup.jobs[0]), 100);
    }

    #[test]
    fn what_cannot_be_replayed_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let args_of = |jobs: &str, more: &[&str]| args(folder.path(), jobs, more);
        let refused = |args: &ReplayArgs, fleets: &[Fleet]| {
            let replayed = recording(args).and_then(|trace| replay(args, &trace, fleets));
            replayed.err().map(|failure| failure.to_string()).unwrap_or_default()
        };
        let lends = fleet("local", &[("a/0", "offered")]);
        let keeps = fleet("local", &[("a/0", "unoffered")]);
        let two = [fleet("chat", &[("a/1", "offered")]), lends.clone()];
        assert!(refused(&args_of(JOBS, &[]), &[]).contains("no fleet"));
        assert!(refused(&args_of(JOBS, &[]), &[keeps]).contains("no fleet of the service lends a slot"));
        assert!(refused(&args_of(JOBS, &["--demand", "x.csv:rate"]), &two).contains("several (chat, local)"));
        assert!(refused(&args_of(JOBS, &["--demand", "char=x.csv:rate"]), &two).contains("there is no fleet `char`"));
        assert!(refused(&args_of(JOBS, &["--min-share", "1"]), &[lends]).contains("needs 2 slots at least"));
        assert!(refused(&args_of(JOBS, &["--speed-up", "0"]), &two).contains("--speed-up: 0"));
        let typed = "submitted_s,duration_s,workers,slot_type\n0,1,1,t4\n";
        assert!(refused(&args_of(typed, &[]), &two).contains("names a type of slots"));
    }
}
