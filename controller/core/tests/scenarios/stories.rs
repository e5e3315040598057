//! How the stories begin, and what they look at.

use crate::world::World;
use controller_core::policy::{Plan, Policy, View, WorkLeft};
use controller_core::state::{Active, Job};
use controller_core::{Reasons, plan_until, policy_by_name};
use events_schema::fact::{Entry, Fact, PlanReason, Refusal};
use events_schema::job::JobSpec;
use events_schema::report::Report;
use events_schema::{JobId, ServerId};
use serde_json::{Value, json};
use std::sync::Mutex;

pub fn spec_with(change: impl FnOnce(&mut Value)) -> JobSpec {
    let mut document = json!({
        "name": "digits", "model": {"kind": "cnn"}, "dataset": "digits", "workers": {"min": 1, "max": 4}, "batch_size": 8,
        "steps": 1000, "checkpoint": {"every_steps": 50, "keep": 2},
    });
    change(&mut document);
    JobSpec::parse(&document).unwrap()
}

pub fn spec() -> JobSpec {
    spec_with(|_| {})
}

pub fn local(slots: u16) -> World {
    World::local(policy_by_name("ebb").unwrap(), slots)
}

/// A job of up to four workers that trains on four slots.
pub fn training() -> (World, JobId) {
    let mut world = local(4);
    let job = world.submit(spec());
    world.run();
    world.train(&job);
    assert_eq!(members(&world, &job), [0, 1, 2, 3]);
    (world, job)
}

pub fn job<'a>(world: &'a World, id: &JobId) -> &'a Job {
    world.state.job(id).unwrap()
}

/// Why a job has what it has, as whoever asks now is told.
pub fn reason(world: &World, id: &JobId) -> PlanReason {
    Reasons::of(&world.state, world.at).of_job(id, job(world, id)).unwrap()
}

pub fn phase(world: &World, id: &JobId) -> &'static str {
    job(world, id).phase.name()
}

/// Numbers of the executors in the generation in force.
pub fn members(world: &World, id: &JobId) -> Vec<u32> {
    job(world, id).active().map_or_else(Vec::new, |active| active.members.iter().map(|member| member.number).collect())
}

pub fn proposed(facts: &[Fact]) -> Vec<&Entry> {
    facts
        .iter()
        .filter_map(|f| if let Fact::GenerationProposed { proposal, .. } = f { Some(&proposal.entry) } else { None })
        .collect()
}

pub fn since(world: &World, mark: usize) -> Vec<Fact> {
    world.log[mark..].iter().flat_map(|(_, facts)| facts.clone()).collect()
}

/// What policies are told of the work that jobs have left, in the order of their arrival.
pub fn left(world: &World) -> Vec<WorkLeft> {
    view(world).jobs.iter().map(|job| job.left).collect()
}

/// What policies are told.
pub fn view(world: &World) -> View {
    struct Asked(Mutex<View>);
    impl Policy for Asked {
        fn name(&self) -> &'static str {
            "ebb"
        }
        fn plan(&self, view: &View) -> Plan {
            *self.0.lock().unwrap() = view.clone();
            policy_by_name("ebb").unwrap().plan(view)
        }
    }
    let asked = Asked(Mutex::new(View::default()));
    let _ = plan_until(&world.state, world.at, &asked);
    asked.0.into_inner().unwrap()
}

/// The generation in force tells of its first step, beside usual ones of as many members.
pub fn stepped(world: &mut World, id: &JobId, step_us: u64) {
    let members = job(world, id).active().unwrap().members.len();
    stepped_after(world, id, step_us, members as u16);
}

/// The generation in force tells of its first update, beside usual steps of so many members.
pub fn stepped_after(world: &mut World, id: &JobId, update_us: u64, usual_members: u16) {
    let server = ServerId::parse("local").unwrap();
    let incarnation = world.state.server(&server).unwrap().incarnation;
    let Active { proposal, step, .. } = job(world, id).active().unwrap().clone();
    let (job, generation, stride) = (id.clone(), proposal.generation, proposal.stride);
    let (first_step_us, usual_step_us, usual_members) = (update_us, Some(update_us), Some(usual_members));
    let report =
        Report::GenerationStepped { job, generation, step, first_step_us, usual_step_us, usual_members, stride };
    world.foreign_report(server, incarnation, report);
}

pub fn has(facts: &[Fact], wanted: impl Fn(&Fact) -> bool) -> bool {
    facts.iter().any(wanted)
}

pub fn refusal(facts: &[Fact]) -> Refusal {
    match facts {
        [Fact::CommandRefused { refusal, .. }] => refusal.clone(),
        other => panic!("exactly one refusal expected: {other:#?}"),
    }
}

pub fn calm(world: &World) {
    assert!(world.violations.is_empty(), "{:#?}", world.violations);
}
