//! Prints how long decisions take on a large cell: 10,000 slots, 2,000 running and 10,000 waiting jobs; and how long it takes to
//! give back all the idle slots of one large fleet.
//!
//! `cargo run --release -p controller-core --example scale [-- POLICY]`; with `all` in its place a row for each policy, also on a cell of 400 slots.
//! Targets: a plan p99 ≤ 50 ms under `ebb`, a reclaim ≤ 5 ms, a plan of `ibm-dp` for 400 slots ≤ 2 ms.
#![allow(clippy::unwrap_used)]

use controller_core::policy::POLICY_NAMES;
use controller_core::policy::ibm_dp::DELTA_MS;
use controller_core::{Input, Policy, State, decide, invariants, orders, policy_by_name};
use events_schema::command::{Command, CommandRecord, Demand, DemandSignal, OfferMode};
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::fact::Fact;
use events_schema::job::JobSpec;
use events_schema::report::{Report, ReportRecord};
use events_schema::{Cell, CommandId, DatasetName, Digest, FleetId, JobId, ServerId, SlotId, Step, TenantId, TimeMs};
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

const LARGE: Size = Size { servers: 1_250, fleets: 50, running: 2_000, jobs: 12_000 };
const SMALL: Size = Size { servers: 50, fleets: 2, running: 80, jobs: 480 };

struct Cluster {
    state: State,
    policy: Box<dyn Policy>,
    at: TimeMs,
    reports: Vec<u64>,
    commands: u64,
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

    fn demand(&mut self, fleet: u16, sequence: u64, needed: u32) -> (Vec<Fact>, Duration) {
        let fleet = FleetId::parse(&format!("f{fleet}")).unwrap();
        self.input(&Input::Demand(DemandSignal {
            fleet,
            sequence,
            at: self.at,
            demand: Demand::Needed(needed),
            trace: None,
        }))
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

fn spec(number: u32) -> JobSpec {
    // Five slots on average: 2,000 minimums fill the cell, so that the others wait.
    let min = [2, 4, 6, 8][number as usize % 4];
    JobSpec::parse(&serde_json::json!({
        "name": "j", "model": {"kind": "cnn"}, "dataset": "digits", "workers": {"min": min, "max": 2 * min},
        "batch_size": 8, "epochs": 10,
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

fn sorted(mut times: Vec<Duration>) -> Vec<Duration> {
    times.sort();
    times
}

/// Servers, a dataset and fleets that share them, nothing lent yet.
fn declared(policy: &str, servers: u16, fleets: u16) -> Cluster {
    let policy = policy_by_name(policy).expect("a known policy");
    let mut c =
        Cluster { state: State::new(Cell(0)), policy, at: TimeMs(1), reports: vec![0; servers.into()], commands: 0 };
    for server in 0..servers {
        c.report(
            server,
            Report::AgentJoined {
                slots: SLOTS,
                class: Digest::of(b"c"),
                address: "http://a:1".to_owned(),
                devices: Vec::new(),
                quarantined: Default::default(),
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
    let mut c = declared("ebb", slots / SLOTS, 1);
    let lend = c.demand(0, 1, 0).1;
    let lent = c.state.clone();
    let (mut times, mut facts) = (Vec::new(), 0);
    for _ in 0..RECLAIMS {
        c.state = lent.clone();
        let (reclaimed, took) = c.demand(0, 2, u32::from(slots));
        facts = reclaimed.len();
        times.push(took);
    }
    println!("{slots} idle slots of a fleet: lent in {lend:?}, all back at first in {:?} ({facts} facts)", times[0]);
    show("  all back, again and again", &sorted(times));
}

/// How long things took on a cell, each sorted.
struct Times {
    submits: Vec<Duration>,
    first_plan: Duration,
    ready: Vec<Duration>,
    active: Vec<Duration>,
    calm: Vec<Duration>,
    settled: Vec<Duration>,
    reclaims: Vec<Duration>,
    checks: Vec<Duration>,
}

/// A cell on which as many jobs run as there is room for, and all others wait.
fn of_cell(policy: &str, size: Size) -> (Cluster, Times) {
    let mut c = declared(policy, size.servers, size.fleets);
    let submit = |c: &mut Cluster, jobs: std::ops::Range<u32>| -> Vec<Duration> {
        jobs.map(|n| {
            c.command(Command::SubmitJob { job: job(n), spec: Box::new(spec(n)), body_digest: Digest::of(b"") })
        })
        .collect()
    };
    let mut submits = submit(&mut c, 0..size.running);
    (0..size.fleets).for_each(|fleet| drop(c.demand(fleet, 1, 0)));
    // A moment at which also policies decide that do so every few minutes.
    c.at = TimeMs(DELTA_MS);
    let first_plan = c.input(&Input::Tick).1;
    submits.extend(submit(&mut c, size.running..size.jobs));
    let (mut ready, mut active) = (Vec::new(), Vec::new());
    for server in 0..size.servers {
        for order in orders(&c.state, &name(server)) {
            let address = format!("127.0.0.1:{}", order.executor.number);
            ready.push(c.report(
                server,
                Report::ExecutorReady {
                    executor: order.executor,
                    address,
                    class: None,
                    replica_bytes: None,
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
    let ticks = |c: &mut Cluster, count: u32, pause_ms: u64| -> Vec<Duration> {
        let tick = |_| {
            c.at = c.at.plus_ms(pause_ms);
            c.input(&Input::Tick).1
        };
        (0..count).map(tick).collect()
    };
    let (calm, settled) = (ticks(&mut c, 50, 1), ticks(&mut c, 1, 10_000));
    let (mut reclaims, mut checks) = (Vec::new(), Vec::new());
    for fleet in 0..size.fleets {
        let before = c.state.clone();
        let took = c.demand(fleet, 2, 50).1;
        reclaims.push(took);
        let start = Instant::now();
        assert_eq!(invariants::check_changes(&before, &c.state), []);
        checks.push(start.elapsed());
    }
    let [submits, ready, active, calm] = [submits, ready, active, calm].map(sorted);
    let [settled, reclaims, checks] = [settled, reclaims, checks].map(sorted);
    (c, Times { submits, first_plan, ready, active, calm, settled, reclaims, checks })
}

fn show_all() {
    println!(
        "| policy | first plan, ms | plan p50, ms | plan p99, ms | reclaim p99, ms | plan for 400 slots p99, ms |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for policy in POLICY_NAMES {
        let (_, of) = of_cell(policy, LARGE);
        let (_, small) = of_cell(policy, SMALL);
        let (first_ms, reclaim_ms) = (of.first_plan.as_secs_f64() * 1e3, ms_at(&of.reclaims, 99));
        let plan_ms = |share| ms_at(&of.calm, share);
        println!(
            "| `{policy}` | {first_ms:.0} | {:.1} | {:.1} | {reclaim_ms:.2} | {:.2} |",
            plan_ms(50),
            plan_ms(99),
            ms_at(&small.calm, 99)
        );
    }
}

fn main() {
    [1_024, 4_096, 8_192].into_iter().for_each(reclaim_idle);
    let policy = std::env::args().nth(1).unwrap_or_else(|| "ebb".to_owned());
    if policy == "all" {
        show_all();
        return;
    }
    let (c, of) = of_cell(&policy, LARGE);
    println!("first plan: {:?}", of.first_plan);
    show("submit", &of.submits);
    show("executor ready", &of.ready);
    show("generation active", &of.active);
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
