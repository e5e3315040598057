//! A member whose link becomes slow while its job trains: from what executors say of their steps, over what agents measure, to where the job goes on.

use crate::stories::*;
use crate::world::{World, dataset};
use controller_core::{Survey, Watch, policy_by_name};
use events_schema::control::{Gradients, Phase, Progress, WaitsFor};
use events_schema::fact::{AvoidCause, Fact, PlanCause, StragglerCause, WaitCause};
use events_schema::orders::FarEnd;
use events_schema::report::Report;
use events_schema::stride::Stride;
use events_schema::{ExecutorId, JobId, Rank, ServerId, Step};
use std::collections::BTreeMap;

/// A gradient of 35 MB, which two servers compute in 40 ms and a link of 40 Mbit/s carries in seven seconds.
const GRADIENT_BYTES: u64 = 35_000_000;
const STEP_US: u64 = 50_000;
const UNIT_US: u64 = 20_000;
const SLOW_STEP_US: u64 = 7_000_000;
const SLOW: u64 = 5_000_000;
const FAST: u64 = 1_250_000_000;

fn server(name: &str) -> ServerId {
    ServerId::parse(name).unwrap()
}

/// A job on servers of one slot each, what its executors say of themselves, and agents that measure.
struct Play {
    world: World,
    id: JobId,
    watch: Watch,
    survey: Survey,
    now_ms: u64,
    /// How long a step takes, and a gradient.
    step_us: u64,
    unit_us: u64,
    /// Of all steps so far, in millionths.
    done_us: BTreeMap<ExecutorId, (u64, u64)>,
    steps_micro: u64,
    carries: fn(&str, &str) -> Option<u64>,
    asked: Vec<String>,
}

impl Play {
    /// The job trains on the first of these servers, so many at the least.
    fn new(lending: &[&str], beside: &[&str], min: u16) -> Self {
        let mut world = World::new(policy_by_name("ebb").unwrap());
        world.gradient_bytes = Some(GRADIENT_BYTES);
        for name in lending.iter().chain(beside) {
            world.start_agent(name, 1);
            world.put_fleet(name, name, 1, 2_000);
            world.deliver_all();
        }
        world.register(dataset("digits"));
        lending.iter().for_each(|name| drop(world.demand(name, 0)));
        let workers = lending.len();
        let id = world.submit(spec_with(|document| {
            document["workers"] = serde_json::json!({"min": min, "max": workers});
            document["batch_size"] = 12.into();
        }));
        world.run();
        assert_eq!(members(&world, &id).len(), workers);
        beside.iter().for_each(|name| drop(world.demand(name, 0)));
        world.run();
        let mut survey = Survey::default();
        for name in lending.iter().chain(beside) {
            survey.hello(&server(name), Some(FarEnd { address: (*name).to_owned(), key: [7; 16] }));
        }
        let mut play = Self {
            world,
            id,
            watch: Watch::default(),
            survey,
            now_ms: 1_000,
            step_us: STEP_US,
            unit_us: UNIT_US,
            done_us: BTreeMap::new(),
            steps_micro: 0,
            carries: |_, _| Some(FAST),
            asked: Vec::new(),
        };
        play.measured();
        play
    }

    fn measured(&mut self) {
        let active = job(&self.world, &self.id).active().unwrap();
        let (generation, members) = (active.proposal.generation, active.members.len() as u16);
        let step_us = self.step_us;
        let (job, stride, spread) = (self.id.clone(), Stride::ONE, None);
        self.says(Report::ThroughputMeasured { job, generation, members, step_us, stride, spread });
    }

    /// The server of the leader, or of anybody, says something.
    fn says(&mut self, report: Report) {
        let on = self.on().into_keys().next().unwrap();
        self.of(on, report);
    }

    fn of(&mut self, on: ServerId, report: Report) {
        let incarnation = self.world.state.server(&on).unwrap().incarnation;
        self.world.foreign_report(on, incarnation, report);
    }

    /// The servers that the job is on, and their members.
    fn on(&self) -> BTreeMap<ServerId, ExecutorId> {
        let active = job(&self.world, &self.id).active().unwrap();
        let at = |number: &ExecutorId| self.world.state.executor(number).unwrap().slot.server.clone();
        active.members.iter().map(|number| (at(number), number.clone())).collect()
    }

    fn names(&self) -> Vec<String> {
        self.on().into_keys().map(|server| server.to_string()).collect()
    }

    /// So much time passes, in which everybody says what it is at and whatever is asked for is measured; what was decided.
    fn pass(&mut self, seconds: u64) -> Vec<Fact> {
        let mark = self.world.log.len();
        for _ in 0..2 * seconds {
            self.now_ms += 500;
            self.steps_micro += 500_000 * 1_000_000 / self.step_us;
            let step = self.steps_micro / 1_000_000;
            let active = job(&self.world, &self.id).active().unwrap();
            let (generation, members) = (active.proposal.generation, active.members.clone());
            for executor in members {
                let (count, took_us) = self.done_us.entry(executor.clone()).or_insert((step, 0));
                *took_us += (step - *count) * self.unit_us;
                *count = step;
                let gradients = Some(Gradients { count: *count, took_us: *took_us, data_us: Some(0) });
                let progress = Progress {
                    generation,
                    revision: 0,
                    step: Step(step),
                    phase: Phase::Computing(Rank(0)),
                    units_done: step,
                    bytes_done: step,
                    waits_for: WaitsFor::Nothing,
                    processor_ms: step,
                    gradients,
                    busy_percent: None,
                };
                self.watch.heard(self.now_ms, &executor, progress);
            }
            let (at, state) = (self.world.at, self.world.state.clone());
            let mut reports = self.watch.look(self.now_ms, &state);
            reports.extend(self.watch.look_at_links(self.now_ms, at, &state, &mut self.survey));
            let found = self.survey.take_found();
            reports.into_iter().for_each(|report| self.says(report));
            found.into_iter().for_each(|(server, report)| self.of(server, report));
            if let Some(ask) = self.survey.next(self.now_ms, at, &self.world.state) {
                let (of, over) = (ask.server.as_str(), ask.far_end.address.as_str());
                self.asked.push(format!("{of}-{over}"));
                let carries = (self.carries)(of, over);
                self.survey.answered(self.now_ms, &ask.server, ask.number, carries);
            }
            self.world.pass(500);
            self.world.run();
        }
        calm(&self.world);
        since(&self.world, mark)
    }

    /// A link has become slow: steps are long, and what is measured says so.
    fn slow(&mut self, carries: fn(&str, &str) -> Option<u64>) {
        (self.step_us, self.carries) = (SLOW_STEP_US, carries);
    }
}

/// What `c` sends or is sent is slow.
fn of_c(of: &str, over: &str) -> Option<u64> {
    Some(if [of, over].contains(&"c") { SLOW } else { FAST })
}

fn straggles(facts: &[Fact]) -> Vec<(String, u64, u64, Option<StragglerCause>)> {
    let of = |fact: &Fact| match fact {
        Fact::MemberStraggles { slot, unit_us, peers_unit_us, cause, .. } => {
            Some((slot.server.to_string(), *unit_us, *peers_unit_us, *cause))
        }
        _ => None,
    };
    facts.iter().filter_map(of).collect()
}

fn keeps_up(facts: &[Fact]) -> bool {
    has(facts, |fact| matches!(fact, Fact::MemberKeepsUp { .. }))
}

#[test]
fn who_has_a_slow_link_is_found_out_within_two_minutes_and_let_go() {
    let mut play = Play::new(&["a", "b", "c"], &[], 1);
    assert_eq!(straggles(&play.pass(300)), []);
    play.asked.clear();
    play.slow(of_c);
    let facts = play.pass(120);
    let [(on, step_us, before_us, cause)] = &straggles(&facts)[..] else { panic!("{facts:?}") };
    assert_eq!((on.as_str(), *cause), ("c", Some(StragglerCause::Network)));
    assert!(*step_us > 4_000_000 && *before_us <= STEP_US, "{step_us} {before_us}");
    assert_eq!(play.names(), ["a", "b"]);
    let why = reason(&play.world, &play.id);
    let Some(WaitCause::Link(link)) = why.waits else { panic!("{why:?}") };
    assert_eq!((why.cause, link.server.as_str(), link.bytes_per_s), (PlanCause::Link, "c", SLOW));
    // Its steps are as they were, but for what two compute instead of three; nothing is tried while it is known to be slow.
    play.step_us = STEP_US * 2;
    assert_eq!(play.names(), ["a", "b"]);
    let facts = play.pass(150);
    assert!(
        !has(&facts, |fact| matches!(fact, Fact::PlanAdopted { .. } | Fact::GenerationProposed { .. })),
        "{facts:?}"
    );
    // It is mended, and that is known when it is measured again.
    play.carries = |_, _| Some(FAST);
    play.pass(300);
    assert_eq!(job(&play.world, &play.id).slots().len(), 3);
}

#[test]
fn its_member_goes_for_an_idle_slot_of_another_server_and_keeps_its_ranks_until_then() {
    let mut play = Play::new(&["a", "b", "c"], &["d"], 1);
    play.pass(300);
    play.slow(of_c);
    let facts = play.pass(120);
    assert_eq!(straggles(&facts).len(), 1);
    assert!(has(
        &facts,
        |fact| matches!(fact, Fact::SlotAvoided { slot, cause: AvoidCause::Slow, .. } if slot.server == server("c"))
    ));
    assert_eq!(play.names(), ["a", "b", "d"]);
}

#[test]
fn a_job_that_needs_all_of_them_says_so_and_goes_on_until_the_link_is_mended() {
    let mut play = Play::new(&["a", "b", "c"], &[], 3);
    play.pass(300);
    play.slow(of_c);
    let facts = play.pass(120);
    assert_eq!(straggles(&facts).len(), 1);
    assert!(
        !has(&facts, |fact| matches!(fact, Fact::PlanAdopted { .. } | Fact::GenerationProposed { .. })),
        "{facts:?}"
    );
    // Nobody's gradients are slow, and its link still is; nor is what it waits for taken for what its size takes.
    play.measured();
    let facts = play.pass(900);
    assert!(!keeps_up(&facts) && straggles(&facts).is_empty(), "{facts:?}");
    assert_eq!(job(&play.world, &play.id).placement().unwrap().step_us_by_size[&3], STEP_US);
    play.step_us = STEP_US;
    play.carries = |_, _| Some(FAST);
    assert!(keeps_up(&play.pass(1_300)));
    assert!(job(&play.world, &play.id).stragglers.is_empty());
}

/// As was read of a link of 40 Mbit/s beside steps that waited for it: 3.4 MB/s over one server, 0.2 over another. The others reach each other fast.
#[test]
fn whose_readings_scatter_is_found_out_and_not_whom_it_was_read_over() {
    let scattered = |of: &str, over: &str| match (of, over) {
        ("b", "c") | ("c", "b") => Some(3_364_543),
        ("b", _) | (_, "b") => Some(203_236),
        _ => Some(FAST),
    };
    let mut play = Play::new(&["a", "b", "c", "d"], &[], 1);
    play.pass(300);
    play.slow(scattered);
    let facts = play.pass(120);
    let named: Vec<String> = straggles(&facts).into_iter().map(|(on, ..)| on).collect();
    assert_eq!(named, ["b"], "{:?}", play.asked);
    assert!(!play.names().contains(&"b".to_owned()), "{:?}", play.names());
}

/// What another reads, whom a third reaches fast, tells as well: of its own turn nothing came.
#[test]
fn whom_others_read_slowly_is_found_out_though_it_measures_nothing() {
    let by_others = |of: &str, over: &str| match (of, over) {
        ("c", _) => None,
        (_, "c") => Some(SLOW),
        _ => Some(FAST),
    };
    let mut play = Play::new(&["a", "b", "c"], &[], 1);
    play.pass(300);
    play.asked.clear();
    play.slow(by_others);
    let facts = play.pass(120);
    let named: Vec<String> = straggles(&facts).into_iter().map(|(on, ..)| on).collect();
    assert_eq!(named, ["c"], "{:?}", play.asked);
}

/// Something else is done on the servers from then on, and gradients take longer too; not as much longer as steps.
#[test]
fn a_slow_link_is_found_out_though_gradients_take_twice_as_long() {
    let mut play = Play::new(&["a", "b", "c"], &[], 1);
    play.pass(300);
    play.unit_us *= 2;
    play.slow(of_c);
    let facts = play.pass(120);
    assert_eq!(straggles(&facts).len(), 1, "{:?}", play.asked);
    assert_eq!(play.names(), ["a", "b"]);
}

/// An evaluation had its links looked at in vain, then one became slow.
#[test]
fn a_link_that_becomes_slow_after_a_look_in_vain_is_found_out_within_two_minutes_too() {
    let mut play = Play::new(&["a", "b", "c"], &[], 1);
    play.pass(300);
    play.asked.clear();
    play.slow(|_, _| Some(FAST));
    play.pass(70);
    assert!(!play.asked.is_empty());
    play.step_us = STEP_US;
    play.pass(60);
    play.slow(of_c);
    assert_eq!(straggles(&play.pass(120)).len(), 1, "{:?}", play.asked);
}

/// Of two servers nobody can say whose link it is, but over a third.
#[test]
fn of_two_servers_a_third_tells_and_else_the_one_without_the_leader_goes() {
    let mut play = Play::new(&["a", "b"], &["c"], 1);
    play.pass(300);
    // The leader is on `a`, and its link is the slow one.
    play.slow(|of, over| Some(if [of, over].contains(&"a") { SLOW } else { FAST }));
    assert_eq!(straggles(&play.pass(120))[0].0, "a");
    assert_eq!(play.names(), ["b", "c"]);
    let mut play = Play::new(&["a", "b"], &[], 1);
    play.pass(300);
    play.slow(|_, _| Some(SLOW));
    assert_eq!(straggles(&play.pass(120))[0].0, "b");
    assert_eq!(play.names(), ["a"]);
}

#[test]
fn nobody_straggles_where_all_links_are_as_slow_or_none_is() {
    for carries in [(|_, _| Some(SLOW)) as fn(&str, &str) -> Option<u64>, |_, _| Some(FAST), |_, _| None] {
        let mut play = Play::new(&["a", "b", "c"], &[], 1);
        play.pass(300);
        play.asked.clear();
        play.slow(carries);
        let facts = play.pass(500);
        assert_eq!(straggles(&facts), []);
        assert_eq!(play.names(), ["a", "b", "c"]);
        // A look now and then, and no more.
        assert!(play.asked.len() <= 40, "{:?}", play.asked);
    }
}

#[test]
fn where_gradients_take_longer_no_link_is_asked_after() {
    let mut play = Play::new(&["a", "b", "c"], &[], 1);
    play.pass(300);
    play.asked.clear();
    (play.step_us, play.unit_us) = (10 * STEP_US, 10 * UNIT_US);
    let facts = play.pass(600);
    assert!(straggles(&facts).is_empty() && play.asked.is_empty(), "{:?}", play.asked);
    // Nor where steps are not twice as long.
    let mut play = Play::new(&["a", "b", "c"], &[], 1);
    play.pass(300);
    play.asked.clear();
    play.step_us = STEP_US * 3 / 2;
    assert!(straggles(&play.pass(600)).is_empty() && play.asked.is_empty(), "{:?}", play.asked);
}

/// A link of 500 Mbit/s carries what steps of half a second make: whatever else makes them long, it is not let go.
#[test]
fn a_link_that_carries_the_steps_of_before_is_not_slow() {
    let mut play = Play::new(&["a", "b", "c"], &[], 1);
    play.step_us = 700_000;
    play.measured();
    play.pass(300);
    play.slow(|of, over| Some(if [of, over].contains(&"c") { 62_500_000 } else { FAST }));
    play.step_us = 1_600_000;
    assert_eq!(straggles(&play.pass(300)), []);
}

/// A controller that takes over knows from the log what a step took before.
#[test]
fn who_takes_over_finds_it_out_as_well() {
    let mut play = Play::new(&["a", "b", "c"], &[], 1);
    play.pass(300);
    play.slow(of_c);
    play.pass(20);
    play.watch = Watch::default();
    assert_eq!(straggles(&play.pass(120)).len(), 1);
    assert_eq!(play.names(), ["a", "b"]);
}
