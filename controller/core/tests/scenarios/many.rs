//! Ten thousand jobs that one word concerns: a server of as many slots is gone with all of them, and comes back. What is decided grows with their number and no
//! faster: so many facts a job, and they are said once.

use controller_core::{Input, State, decide, invariants, policy_by_name};
use events_schema::command::OfferMode;
use events_schema::fact::{Entry, Fact, Member, PlanCause, PlanReason, Proposal};
use events_schema::job::JobSpec;
use events_schema::report::{Report, ReportRecord};
use events_schema::stride::Stride;
use events_schema::{
    Cell, CommandId, Digest, ExecutorId, FleetId, Generation, JobId, Rank, ServerId, SlotId, Step, TenantId, TimeMs,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Instant;

/// Facts of one job that loses its only slot and waits: its member is lost, its executor gone, its plan empty; and that it begins again: a plan and an
/// executor, whose slot it borrows.
const FACTS_OF_LOSS_MAX: usize = 4;
const FACTS_OF_RETURN_MAX: usize = 4;

struct Cluster {
    state: State,
    at: TimeMs,
}

fn server() -> ServerId {
    ServerId::parse("large").unwrap()
}

fn joined(slots: u16) -> Report {
    let (class, address) = (Digest([0; 32]), String::new());
    Report::AgentJoined {
        slots,
        class,
        address,
        devices: Vec::new(),
        quarantined: BTreeMap::new(),
        guests: false,
        slot_type: None,
    }
}

impl Cluster {
    /// So many jobs that train, each on one slot of one server.
    fn training(jobs: u16) -> Self {
        let mut cluster = Self { state: State::new(Cell(0)), at: TimeMs(1_000) };
        cluster.report(0, joined(jobs));
        let (fleet, slots) = (FleetId::parse("large").unwrap(), (0..jobs).map(slot).collect::<Vec<_>>());
        let offers = OfferMode::ByDemand;
        cluster.apply(&[
            Fact::FleetDeclared { fleet: fleet.clone(), slots: slots.clone(), offers, reclaim_deadline_ms: 1_000 },
            Fact::SlotsOffered { fleet, slots },
        ]);
        for number in 0..jobs {
            cluster.apply(&begun(number));
        }
        assert_eq!(invariants::check(&cluster.state), []);
        cluster
    }

    fn apply(&mut self, facts: &[Fact]) {
        facts.iter().for_each(|fact| self.state.apply(self.at, fact));
    }

    /// What is decided about an input, and how long that took and the rest of the batch.
    fn input(&mut self, what: &str, input: &Input) -> Vec<Fact> {
        let (before, begun, policy) = (self.state.clone(), Instant::now(), policy_by_name("ebb").unwrap());
        let facts = decide(&self.state, self.at, input, policy.as_ref());
        let decided = begun.elapsed();
        self.apply(&facts);
        let folded = begun.elapsed();
        assert_eq!(invariants::check_changes(&before, &self.state), []);
        println!(
            "{what}: {} facts, {decided:?}, folded by {folded:?}, looked at by {:?}",
            facts.len(),
            begun.elapsed()
        );
        facts
    }

    fn report(&mut self, number: u64, report: Report) -> Vec<Fact> {
        let at = self.at;
        let record = ReportRecord { server: server(), incarnation: 1, number, at, report, trace: None, after: None };
        self.input("report", &Input::Report(record))
    }

    fn tick(&mut self, ms: u64) -> Vec<Fact> {
        self.at = self.at.plus_ms(ms);
        self.input("tick", &Input::Tick)
    }
}

fn slot(index: u16) -> SlotId {
    SlotId { server: server(), index }
}

/// The facts of a job that trains on its slot.
fn begun(number: u16) -> Vec<Fact> {
    let job = JobId::parse(&format!("job-{number:05}")).unwrap();
    let spec = json!({
        "name": "digits", "model": {"kind": "cnn"}, "dataset": "digits", "workers": {"min": 1, "max": 1}, "batch_size": 8,
        "steps": 1000,
    });
    let executor = ExecutorId { job: job.clone(), number: 0 };
    let members = vec![Member { executor: executor.clone(), address: String::new(), ranks: vec![Rank(0)] }];
    let (generation, leader, deadline) = (Generation(1), executor.clone(), TimeMs(60_000));
    let proposal = Proposal { generation, entry: Entry::Fresh, members, leader, deadline, stride: Stride::ONE };
    let reason = PlanReason { policy: "ebb".to_owned(), cause: PlanCause::Guarantee, waits: None };
    let attained_slot_ms = Some(0);
    vec![
        Fact::JobAccepted {
            job: job.clone(),
            tenant: TenantId::parse("local").unwrap(),
            command: CommandId::parse(&format!("c-{number}")).unwrap(),
            spec: Box::new(JobSpec::parse(&spec).unwrap()),
            body_digest: Digest([0; 32]),
        },
        Fact::SlotBorrowed { slot: slot(number), fleet: None, job: None },
        Fact::PlanAdopted { job: job.clone(), slots: vec![slot(number)], reason, from: Some(0), attained_slot_ms },
        Fact::ExecutorAssigned { executor: executor.clone(), slot: slot(number) },
        Fact::ExecutorReady {
            executor,
            address: String::new(),
            class: None,
            replica_bytes: None,
            gradient_bytes: None,
        },
        Fact::GenerationProposed { job: job.clone(), proposal },
        Fact::GenerationActive { job, generation, step: Step(0), pause_us: 0 },
    ]
}

/// How many facts follow when the server of so many jobs is gone, and when it is back.
fn gone_and_back(jobs: u16) -> [usize; 2] {
    let mut cluster = Cluster::training(jobs);
    assert_eq!(cluster.tick(1_000).len(), 1, "who plans");
    let lost = cluster.report(0, Report::AgentGone).len();
    assert!(cluster.state.jobs().all(|(_, job)| job.phase.name() == "queued"));
    assert_eq!(cluster.tick(1_000), [], "it is said once");
    let back = cluster.report(0, joined(jobs)).len() + cluster.tick(1_000).len();
    assert!(cluster.state.jobs().all(|(_, job)| job.phase.name() == "starting"));
    // One whose ends are told of one by one: each costs no more than another.
    let job = JobId::parse("job-00000").unwrap();
    let (executor, _) = cluster.state.executors_of(&job).next().unwrap();
    let report = Report::ExecutorReady {
        executor: executor.clone(),
        address: String::new(),
        class: None,
        replica_bytes: None,
        gradient_bytes: None,
    };
    assert!(cluster.report(1, report).len() <= FACTS_OF_RETURN_MAX);
    [lost, back]
}

#[test]
fn what_follows_from_the_end_of_a_server_is_in_proportion_to_its_jobs() {
    // Plans follow ticks with either.
    let few = gone_and_back(1_000);
    let many = gone_and_back(10_000);
    for (few, many, most) in [(few[0], many[0], FACTS_OF_LOSS_MAX), (few[1], many[1], FACTS_OF_RETURN_MAX)] {
        assert!(many <= 10_000 * most + 10, "{many} facts");
        assert!(few <= 1_000 * most + 10 && many <= 10 * few, "{few} and {many}");
    }
}
