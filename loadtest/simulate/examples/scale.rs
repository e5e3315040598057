//! Prints how long decisions take on a large cell: 10,000 slots, 2,000 running and 10,000 waiting jobs; and how long it takes to
//! give back all the idle slots of one large fleet.
//!
//! `cargo run --release -p loadtest-simulate --example scale [-- POLICY]`; with `all` in its place a row for each policy, also on a cell of 400 slots; with
//! `forecast` a row for each way to lend, where fleets have three days behind them; with `growth FILE.svg` a row for each policy over cells from 400 to 20,000 slots, and
//! a picture of it; with `pressed` a row for each policy over reclaims that come in the midst of a plan.
//! Targets: a plan p99 ≤ 50 ms under `ebb`, a reclaim ≤ 5 ms, a plan of `ibm-dp` for 400 slots ≤ 2 ms.
#![allow(clippy::unwrap_used)]

use controller_core::policy::ibm_dp::DELTA_MS;
use controller_core::policy::{POLICY_NAMES, WithLending};
use controller_core::state::past::DAY_MS;
use controller_core::{
    Input, Interrupt, Policy, State, decide, decide_input, invariants, orders, plan_unless_pressed, policy_by_name,
};
use events_schema::command::{Command, CommandRecord, Demand, DemandSignal, OfferMode};
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::fact::Fact;
use events_schema::fold::FoldVersion;
use events_schema::job::JobSpec;
use events_schema::report::{Report, ReportRecord};
use events_schema::{Cell, CommandId, DatasetName, Digest, FleetId, JobId, ServerId, SlotId, Step, TenantId, TimeMs};
use loadtest_simulate::report::{Axis, Figure, Line, Panel, Plot, Scale, Style};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const SLOTS: u16 = 8;

/// How often all idle slots of a fleet go back.
const RECLAIMS: usize = 101;

/// How large a cell is. A fleet has 200 slots, and a running job five of them in the mean.
#[derive(Clone, Copy)]
struct Size {
    servers: u16,
    fleets: u16,
    running: u32,
    jobs: u32,
}

const LARGE: Size = Size::of_fleets(50);
const SMALL: Size = Size::of_fleets(2);
/// Fleets of the cells over which growth is shown: 400, 1,000, 2,000, 4,000, 10,000 and 20,000 slots.
const GROWTH: [u16; 6] = [2, 5, 10, 20, 50, 100];

impl Size {
    /// As `LARGE` is, of so many fleets.
    const fn of_fleets(fleets: u16) -> Self {
        Self { servers: 25 * fleets, fleets, running: 40 * fleets as u32, jobs: 240 * fleets as u32 }
    }

    fn slots(self) -> u32 {
        u32::from(self.servers) * u32::from(SLOTS)
    }
}

struct Cluster {
    state: State,
    policy: Box<dyn Policy>,
    at: TimeMs,
    reports: Vec<u64>,
    commands: u64,
    signals: u64,
}

impl Cluster {
    fn input(&mut self, input: &Input) -> (Vec<Fact>, Duration) {
        let start = Instant::now();
        let facts = decide(&self.state, self.at, input, self.policy.as_ref());
        let took = start.elapsed();
        facts.iter().for_each(|fact| self.state.apply(self.at, fact));
        (facts, took)
    }

    fn command(&mut self, command: Command) -> Duration {
        self.commands += 1;
        let id = CommandId::parse(&format!("c{}", self.commands)).unwrap();
        let tenant = TenantId::parse("local").unwrap();
        self.input(&Input::Command(CommandRecord { id, tenant, at: self.at, command, trace: None, expected: None })).1
    }

    fn report(&mut self, server: u16, report: Report) -> Duration {
        self.reports[usize::from(server)] += 1;
        let number = self.reports[usize::from(server)];
        self.input(&Input::Report(ReportRecord {
            server: name(server),
            incarnation: 1,
            number,
            at: self.at,
            report,
            trace: None,
            after: None,
        }))
        .1
    }

    fn demand(&mut self, fleet: u16, needed: u32) -> (Vec<Fact>, Duration) {
        self.signals += 1;
        let sequence = self.signals;
        let fleet = FleetId::parse(&format!("f{fleet}")).unwrap();
        self.input(&Input::Demand(DemandSignal::new(fleet, sequence, self.at, Demand::Needed(needed))))
    }
}

fn dataset() -> DatasetInfo {
    DatasetInfo {
        name: DatasetName::parse("digits").unwrap(),
        sample: SampleShape::Classified { shape: vec![1, 8, 8], classes: 10 },
        rows: 1_437,
        metadata_key: "datasets/digits/metadata.json".to_owned(),
        metadata_digest: Digest::of(b"digits"),
    }
}

fn name(server: u16) -> ServerId {
    ServerId::parse(&format!("s{server:04}")).unwrap()
}

fn job(number: u32) -> JobId {
    JobId::parse(&format!("job-{number:026}")).unwrap()
}

fn spec(number: u32, priority: i32) -> JobSpec {
    // Five slots on average: 2,000 minimums fill the cell, so that the others wait.
    let min = [2, 4, 6, 8][number as usize % 4];
    JobSpec::parse(&serde_json::json!({
        "name": "j", "model": {"kind": "cnn"}, "dataset": "digits", "workers": {"min": min, "max": 2 * min},
        "batch_size": 8, "epochs": 10, "priority": priority,
    }))
    .unwrap()
}

/// Of sorted times the one that so many of a hundred are not above, in ms.
fn ms_at(times: &[Duration], share: usize) -> f64 {
    times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3
}

fn show(what: &str, times: &[Duration]) {
    let at = |share: usize| ms_at(times, share);
    println!(
        "{what:<42} n {:>6}  min {:>8.3}  p50 {:>8.3}  p99 {:>8.3}  max {:>8.3} ms",
        times.len(),
        at(0),
        at(50),
        at(99),
        at(100)
    );
}

fn known(policy: &str) -> Box<dyn Policy> {
    policy_by_name(policy).expect("a known policy")
}

fn sorted(mut times: Vec<Duration>) -> Vec<Duration> {
    times.sort();
    times
}

/// Servers, a dataset and fleets that share them, nothing lent yet.
fn declared(policy: Box<dyn Policy>, servers: u16, fleets: u16) -> Cluster {
    let (state, reports) = (State::new(Cell(0)), vec![0; servers.into()]);
    let mut c = Cluster { state, policy, at: TimeMs(1), reports, commands: 0, signals: 0 };
    for server in 0..servers {
        c.report(
            server,
            Report::AgentJoined {
                slots: SLOTS,
                class: Digest::of(b"c"),
                address: "http://a:1".to_owned(),
                devices: Vec::new(),
                quarantined: Default::default(),
                guests: false,
                slot_type: None,
            },
        );
    }
    c.command(Command::RegisterDataset { dataset: dataset() });
    for fleet in 0..fleets {
        let slots = (0..servers)
            .filter(|s| s % fleets == fleet)
            .flat_map(|s| (0..SLOTS).map(move |i| SlotId { server: name(s), index: i }));
        let fleet = FleetId::parse(&format!("f{fleet}")).unwrap();
        c.command(Command::PutFleet {
            fleet,
            slots: slots.collect(),
            offers: OfferMode::ByDemand,
            reclaim_deadline_ms: 5_000,
        });
    }
    c
}

/// A fleet lends so many slots, nobody uses them, and it wants all of them back. Decided again and again, because what else the machine does counts too.
fn reclaim_idle(slots: u16) {
    let mut c = declared(known("ebb"), slots / SLOTS, 1);
    let lend = c.demand(0, 0).1;
    let lent = c.state.clone();
    let (mut times, mut facts) = (Vec::new(), 0);
    for _ in 0..RECLAIMS {
        c.state = lent.clone();
        let (reclaimed, took) = c.demand(0, u32::from(slots));
        facts = reclaimed.len();
        times.push(took);
    }
    println!("{slots} idle slots of a fleet: lent in {lend:?}, all back at first in {:?} ({facts} facts)", times[0]);
    show("  all back, again and again", &sorted(times));
}

/// How long things took on a cell, each sorted.
struct Times {
    begun: Begun,
    calm: Vec<Duration>,
    /// Facts that all of these plans decided.
    calm_facts: usize,
    settled: Vec<Duration>,
    reclaims: Vec<Duration>,
    checks: Vec<Duration>,
}

/// How long it takes to start jobs on a cell.
struct Begun {
    submits: Vec<Duration>,
    first_plan: Duration,
    ready: Vec<Duration>,
    active: Vec<Duration>,
}

/// Bytes of jobs' replicas, where they are told of: a start and a copy take 8 s, 16 s, 2 and 7 minutes.
const REPLICAS: [u64; 4] = [200_000_000, 1_000_000_000, 12_000_000_000, 40_000_000_000];

/// As many jobs run as there is room for, and all others wait, for less important ones if minutes are to pass.
fn begin(c: &mut Cluster, size: Size, lasts: bool) -> Begun {
    let submit = |c: &mut Cluster, jobs: std::ops::Range<u32>, priority: i32| -> Vec<Duration> {
        jobs.map(|n| {
            let spec = Box::new(spec(n, priority));
            c.command(Command::SubmitJob { job: job(n), spec, body_digest: Digest::of(b"") })
        })
        .collect()
    };
    let mut submits = submit(c, 0..size.running, 0);
    (0..size.fleets).for_each(|fleet| drop(c.demand(fleet, 0)));
    // A moment at which also policies decide that do so every few minutes.
    c.at = if lasts { c.at } else { TimeMs(DELTA_MS) };
    let first_plan = c.input(&Input::Tick).1;
    submits.extend(submit(c, size.running..size.jobs, if lasts { -1 } else { 0 }));
    let (mut ready, mut active) = (Vec::new(), Vec::new());
    for server in 0..size.servers {
        for order in orders(&c.state, &name(server)) {
            let address = format!("127.0.0.1:{}", order.executor.number);
            let number: usize = order.executor.job.as_str()[4..].parse().unwrap();
            // Not with how many slots a job has at the least, which are its number's remainder.
            let replica_bytes = lasts.then(|| REPLICAS[number / 4 % REPLICAS.len()]);
            ready.push(c.report(
                server,
                Report::ExecutorReady {
                    executor: order.executor,
                    address,
                    class: None,
                    replica_bytes,
                    gradient_bytes: None,
                },
            ));
        }
    }
    let proposed: Vec<_> =
        c.state.live_jobs().filter_map(|(id, j)| Some((id.clone(), j.placement()?.proposed.clone()?))).collect();
    for (id, proposal) in proposed {
        let server = c.state.executor(&proposal.leader).unwrap().slot.server.as_str()[1..].parse().unwrap();
        let report = Report::GenerationActive { job: id, generation: proposal.generation, step: Step(0), pause_us: 0 };
        active.push(c.report(server, report));
    }
    let [submits, ready, active] = [submits, ready, active].map(sorted);
    Begun { submits, first_plan, ready, active }
}

fn ticks(c: &mut Cluster, count: u32, pause_ms: u64) -> Vec<Duration> {
    counted_ticks(c, count, pause_ms).1
}

/// The same, with how many facts were decided.
fn counted_ticks(c: &mut Cluster, count: u32, pause_ms: u64) -> (usize, Vec<Duration>) {
    let mut decided = 0;
    let tick = |_| {
        c.at = c.at.plus_ms(pause_ms);
        let (facts, took) = c.input(&Input::Tick);
        decided += facts.len();
        took
    };
    let times = (0..count).map(tick).collect();
    (decided, times)
}

/// A cell on which as many jobs run as there is room for, and all others wait.
fn of_cell(policy: &str, size: Size) -> (Cluster, Times) {
    let mut c = declared(known(policy), size.servers, size.fleets);
    let begun = begin(&mut c, size, false);
    let ((calm_facts, calm), settled) = (counted_ticks(&mut c, 50, 1), ticks(&mut c, 1, 10_000));
    let (mut reclaims, mut checks) = (Vec::new(), Vec::new());
    for fleet in 0..size.fleets {
        let before = c.state.clone();
        let took = c.demand(fleet, 50).1;
        reclaims.push(took);
        let start = Instant::now();
        assert_eq!(invariants::check_changes(&before, &c.state), []);
        checks.push(start.elapsed());
    }
    let [calm, settled, reclaims, checks] = [calm, settled, reclaims, checks].map(sorted);
    (c, Times { begun, calm, calm_facts, settled, reclaims, checks })
}

fn show_all() {
    println!(
        "| policy | first plan, ms | plan p50, ms | plan p99, ms | reclaim p99, ms | plan for 400 slots p99, ms |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for policy in POLICY_NAMES {
        let (_, of) = of_cell(policy, LARGE);
        let (_, small) = of_cell(policy, SMALL);
        let (first_ms, reclaim_ms) = (of.begun.first_plan.as_secs_f64() * 1e3, ms_at(&of.reclaims, 99));
        let plan_ms = |share| ms_at(&of.calm, share);
        println!(
            "| `{policy}` | {first_ms:.0} | {:.1} | {:.1} | {reclaim_ms:.2} | {:.2} |",
            plan_ms(50),
            plan_ms(99),
            ms_at(&small.calm, 99)
        );
    }
}

/// Points between others, so that a line whose values hold until the next rises evenly between logarithmic axes.
fn sloped(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    const STEPS: i32 = 24;
    let between = |pair: &[(f64, f64)]| {
        let ((x, y), (to_x, to_y)) = (pair[0], pair[1]);
        let at = move |step: i32| f64::from(step) / f64::from(STEPS);
        (0..STEPS).map(move |step| (x * (to_x / x).powf(at(step)), y * (to_y / y).powf(at(step))))
    };
    points.windows(2).flat_map(between).chain(points.last().copied()).collect()
}

/// How plans and reclaims of each policy grow with the cell; the picture of it.
fn show_growth() -> Figure {
    let sizes = GROWTH.map(Size::of_fleets);
    let slots = sizes.map(|size| format!(" {} |", size.slots())).concat();
    println!(
        "| policy, p99 in ms of a plan, of a reclaim |{slots} facts of idle plans |\n|{}",
        " --- |".repeat(GROWTH.len() + 2)
    );
    let (mut plans, mut reclaims, mut legend) = (Vec::new(), Vec::new(), Vec::new());
    for (place, policy) in POLICY_NAMES.into_iter().enumerate() {
        let of = sizes.map(|size| of_cell(policy, size).1);
        let p99s = |of: &Times| (ms_at(&of.calm, 99), ms_at(&of.reclaims, 99));
        let cells: String = of.iter().map(p99s).map(|(plan, reclaim)| format!(" {plan:.2}, {reclaim:.2} |")).collect();
        println!("| `{policy}` |{cells} {} |", of.iter().map(|of| of.calm_facts).sum::<usize>());
        let style = Style::nth(place);
        let line = |value: fn((f64, f64)) -> f64| {
            let points = sizes.iter().zip(&of).map(|(size, of)| (f64::from(size.slots()), value(p99s(of))));
            Line { style, points: sloped(&points.collect::<Vec<_>>()) }
        };
        plans.push(line(|(plan, _)| plan));
        reclaims.push(line(|(_, reclaim)| reclaim));
        legend.push((style, policy.to_owned()));
    }
    let panel = |title: &str, lines: Vec<Line>| {
        let up = Axis { label: "p99, ms".to_owned(), scale: Scale::powers(0.01, 100.0) };
        let across = Axis { label: "slots".to_owned(), scale: Scale::powers(100.0, 100_000.0) };
        Panel { title: title.to_owned(), plot: Plot::Lines { height: 260.0, across, up, lines } }
    };
    Figure {
        name: "scale",
        title: "How decisions grow with the cell",
        about: "A job runs on five slots in the mean, and five wait for each that runs; a fleet has 200 slots, and a reclaim takes 50 of them.".to_owned(),
        legend,
        columns: 2,
        panels: vec![panel("A plan over a cell in which nothing has changed", plans), panel("A reclaim of 50 slots in use", reclaims)],
    }
}

/// When needs begin to rise each day.
const RISE_MS: u64 = 6 * 3_600_000;
/// How often a fleet says what it needs.
const SIGNAL_MS: u64 = 600_000;

/// What a fleet of so many slots needs at a time: none at night, three quarters at noon.
fn tide(slots: u32, at: TimeMs) -> u32 {
    let (of_day, noon_ms) = (at.0 % DAY_MS, DAY_MS / 2);
    let up_ms = noon_ms - of_day.abs_diff(noon_ms);
    let of_rise = up_ms.saturating_sub(RISE_MS) as f64 / (noon_ms - RISE_MS) as f64;
    (f64::from(slots) * 0.75 * of_rise) as u32
}

/// Fleets that have said for three days what they need, and are about to rise again.
fn with_past(fleets: u16, forecast_day_ms: Option<u64>) -> Cluster {
    let policy = Box::new(WithLending { policy: known("ebb"), forecast_day_ms });
    let mut c = declared(policy, LARGE.servers, fleets);
    let policy = "ebb".to_owned();
    c.state.apply(
        c.at,
        &Fact::PolicyChosen { policy, assumed_speeds: None, forecast_day_ms, fold_version: Some(FoldVersion::NEWEST) },
    );
    let end = TimeMs(3 * DAY_MS + RISE_MS - SIGNAL_MS);
    while c.at < end {
        (0..fleets).for_each(|fleet| drop(c.demand(fleet, tide(slots_of(&c, fleet), c.at))));
        c.at = TimeMs(c.at.0 / SIGNAL_MS * SIGNAL_MS + SIGNAL_MS);
    }
    c
}

fn slots_of(c: &Cluster, fleet: u16) -> u32 {
    let id = FleetId::parse(&format!("f{fleet}")).unwrap();
    c.state.fleet(&id).map_or(0, |fleet| fleet.slots.len() as u32)
}

/// How long things took on a cell whose fleets have a past, each sorted.
struct Lending {
    /// The plan in which jobs grow, if they do.
    grown: Duration,
    calm: Vec<Duration>,
    /// From five minutes before the rise until as long after it.
    rise: Vec<Duration>,
    reclaims: Vec<Duration>,
    early: usize,
}

fn of_lending(fleets: u16, size: Size, forecast_day_ms: Option<u64>) -> Lending {
    let mut c = with_past(fleets, forecast_day_ms);
    // Nothing is lent before all jobs are there, or the first ones would grow and be made smaller again.
    (0..fleets).for_each(|fleet| drop(c.demand(fleet, slots_of(&c, fleet))));
    begin(&mut c, size, true);
    let grown = ticks(&mut c, 1, 10_000)[0];
    let calm = ticks(&mut c, 100, 1);
    c.at = TimeMs(c.at.0 / DAY_MS * DAY_MS + RISE_MS - 300_000);
    let mut rise = ticks(&mut c, 60, 10_000);
    let before = (c.state.clone(), c.at);
    let mut reclaims = Vec::new();
    while reclaims.len() < RECLAIMS {
        (c.state, c.at) = (before.0.clone(), TimeMs(before.1.0 / SIGNAL_MS * SIGNAL_MS + SIGNAL_MS));
        reclaims.extend((0..fleets).map(|fleet| c.demand(fleet, tide(slots_of(&c, fleet), c.at)).1));
    }
    (c.state, c.at) = before;
    rise.extend(ticks(&mut c, 60, 5_000));
    let lent: usize = c.state.fleets().map(|(_, fleet)| fleet.lent).sum();
    let early = usize::from(LARGE.servers) * usize::from(SLOTS) - lent;
    let [calm, rise, reclaims] = [calm, rise, reclaims].map(sorted);
    Lending { grown, calm, rise, reclaims, early }
}

fn show_lending() {
    println!(
        "| fleets | jobs | lending | plan in which jobs grow, ms | calm plan p50, ms | p99 | plan around a rise p50, ms | p99 | reclaim p50, ms | p99 | slots that went early |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    // With half as many jobs as their fewest slots fill the cell each grows.
    let half = Size { running: 1_000, jobs: 1_000, ..LARGE };
    let cells = [("2,000 run, 10,000 wait", LARGE), ("1,000 run and grow", half)];
    for (fleets, (jobs, size)) in [1, 16, 128].into_iter().flat_map(|fleets| cells.map(|cell| (fleets, cell))) {
        for (lending, day_ms) in [("reactive", None), ("forecast", Some(DAY_MS))] {
            let of = of_lending(fleets, Size { fleets, ..size }, day_ms);
            let ms = |times: &[Duration]| format!("{:.2} | {:.2}", ms_at(times, 50), ms_at(times, 99));
            let (grown_ms, early) = (of.grown.as_secs_f64() * 1e3, of.early);
            let (calm, rise, reclaims) = (ms(&of.calm), ms(&of.rise), ms(&of.reclaims));
            println!("| {fleets} | {jobs} | {lending} | {grown_ms:.1} | {calm} | {rise} | {reclaims} | {early} |");
        }
    }
}

/// How long reclaims of 50 slots take that come in the midst of a plan, sorted: behind the plan, or instead of it. Not those that came when it was over.
fn pressed(c: &Cluster, plan: Duration, interrupts: bool) -> Vec<Duration> {
    let (fleet, demand) = (FleetId::parse("f0").unwrap(), Demand::Needed(100));
    let signal = Input::Demand(DemandSignal::new(fleet, c.signals + 1, c.at, demand));
    let reclaim = |round: usize| {
        let came = Arc::new(OnceLock::new());
        let seen = Arc::clone(&came);
        let interrupt = interrupts.then(|| Interrupt::new(move || seen.get().is_some()));
        let begun = Instant::now();
        let comes_at = begun + plan.mul_f64(round as f64 / RECLAIMS as f64);
        let planned = std::thread::scope(|threads| {
            threads.spawn(|| {
                while Instant::now() < comes_at {
                    std::hint::spin_loop();
                }
                came.set(Instant::now()).unwrap();
            });
            let plan = || plan_unless_pressed(&c.state, c.at, c.policy.as_ref(), interrupt.as_ref());
            let _made_or_abandoned = catch_unwind(AssertUnwindSafe(plan));
            came.get().copied()
        });
        let facts = decide_input(&c.state, c.at, &signal, c.policy.name());
        assert!(facts.len() > 50);
        planned.map(|came: Instant| came.elapsed())
    };
    sorted((0..RECLAIMS).filter_map(reclaim).collect())
}

fn show_pressed() {
    println!("| policy | behind the plan p50, ms | p99 | instead of it p50, ms | p99 |");
    println!("| --- | --- | --- | --- | --- |");
    for policy in POLICY_NAMES {
        let (c, of) = of_cell(policy, LARGE);
        let plan = of.calm[of.calm.len() / 2];
        let times = [false, true].map(|interrupts| pressed(&c, plan, interrupts));
        let ms = |times: &[Duration]| format!("{:.2} | {:.2}", ms_at(times, 50), ms_at(times, 99));
        println!("| `{policy}` | {} | {} |", ms(&times[0]), ms(&times[1]));
    }
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("pressed") {
        show_pressed();
        return;
    }
    if std::env::args().nth(1).as_deref() == Some("forecast") {
        show_lending();
        return;
    }
    if std::env::args().nth(1).as_deref() == Some("growth") {
        let file = std::env::args().nth(2).expect("the file of the picture");
        std::fs::write(&file, show_growth().file()).unwrap();
        return;
    }
    [1_024, 4_096, 8_192].into_iter().for_each(reclaim_idle);
    let policy = std::env::args().nth(1).unwrap_or_else(|| "ebb".to_owned());
    if policy == "all" {
        show_all();
        return;
    }
    let (c, of) = of_cell(&policy, LARGE);
    println!("first plan: {:?}", of.begun.first_plan);
    show("submit", &of.begun.submits);
    show("executor ready", &of.begun.ready);
    show("generation active", &of.begun.active);
    show("tick: a plan over a calm cell", &of.calm);
    show("tick: a plan when sizes have settled", &of.settled);
    show("reclaim of 50 slots of a fleet's 200", &of.reclaims);
    show("  and its invariants", &of.checks);
    let running = c.state.live_jobs().filter(|(_, j)| j.active().is_some()).count();
    println!("{running} jobs run, {} wait; {} executors", c.state.live_len() - running, c.state.executors().count());
    let start = Instant::now();
    let digest = c.state.digest();
    println!("digest {digest:?} in {:?}", start.elapsed());
    let start = Instant::now();
    println!("invariants: {} broken, checked in {:?}", invariants::check(&c.state).len(), start.elapsed());
    let start = Instant::now();
    let all: usize = (0..LARGE.servers).map(|server| orders(&c.state, &name(server)).len()).sum();
    println!("{all} orders of {} servers in {:?}", LARGE.servers, start.elapsed());
}
