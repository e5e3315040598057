//! Executors whose processes do not end although they were killed. Their agent is played by hand: it lives, and says nothing of them.

use crate::stories::{proposed, spec_with};
use crate::world::{dataset, slot};
use controller_core::limits::{READY_DEADLINE_MS, STUCK_MS};
use controller_core::{Input, State, decide, invariants, orders, policy_by_name};
use events_schema::command::{Command, CommandRecord, Demand, DemandSignal, OfferMode};
use events_schema::device::SlotDevice;
use events_schema::fact::{Entry, Fact};
use events_schema::report::{ExitCause, Report, ReportRecord};
use events_schema::{Cell, CommandId, Digest, ExecutorId, FleetId, JobId, ServerId, SlotId, TenantId, TimeMs};
use serde_json::json;

pub struct Brain {
    pub state: State,
    pub at: TimeMs,
    reports: u64,
    commands: u64,
}

impl Brain {
    /// One server with so many slots, all lent.
    fn new(slots: u16) -> Self {
        Self::with_devices(slots, 0)
    }

    /// The same; so many of the slots are devices.
    pub fn with_devices(slots: u16, count: u16) -> Self {
        let uuid = |index| format!("GPU-00000000-0000-0000-0000-{index:012}");
        let (name, driver, memory_bytes) = ("H100".to_owned(), "580.01".to_owned(), 80 << 30);
        let device = |index| SlotDevice { uuid: uuid(index), name: name.clone(), memory_bytes, driver: driver.clone() };
        let devices = (0..count).map(device).collect();
        let mut brain = Self { state: State::new(Cell(0)), at: TimeMs(1_000), reports: 0, commands: 0 };
        brain.report(Report::AgentJoined {
            slots,
            class: Digest([1; 32]),
            address: String::new(),
            devices,
            quarantined: Default::default(),
            guests: false,
            slot_type: None,
        });
        brain.command(Command::RegisterDataset { dataset: dataset("digits") });
        let (fleet, slots) = (FleetId::parse("local").unwrap(), (0..slots).map(|index| slot("local", index)).collect());
        let (offers, reclaim_deadline_ms) = (OfferMode::ByDemand, 2_000);
        brain.command(Command::PutFleet { fleet: fleet.clone(), slots, offers, reclaim_deadline_ms });
        brain.tell(&Input::Demand(DemandSignal::new(fleet, 1, TimeMs(0), Demand::Needed(0))));
        brain
    }

    pub fn tell(&mut self, input: &Input) -> Vec<Fact> {
        let facts = decide(&self.state, self.at, input, &*policy_by_name("ebb").unwrap());
        let before = self.state.clone();
        facts.iter().for_each(|fact| self.state.apply(self.at, fact));
        let broken = [invariants::check(&self.state), invariants::check_step(&before, &self.state)].concat();
        assert!(broken.is_empty(), "{broken:#?}");
        facts
    }

    pub fn report(&mut self, report: Report) -> Vec<Fact> {
        self.reports += 1;
        self.report_of(7, self.reports, report)
    }

    pub fn report_of(&mut self, incarnation: u64, number: u64, report: Report) -> Vec<Fact> {
        let server = ServerId::parse("local").unwrap();
        self.tell(&Input::Report(ReportRecord {
            server,
            incarnation,
            number,
            at: self.at,
            report,
            trace: None,
            after: None,
        }))
    }

    pub fn command(&mut self, command: Command) -> Vec<Fact> {
        self.commands += 1;
        let (id, tenant) =
            (CommandId::parse(&format!("c{}", self.commands)).unwrap(), TenantId::parse("local").unwrap());
        self.tell(&Input::Command(CommandRecord { id, tenant, at: self.at, command, trace: None, expected: None }))
    }

    fn submit(&mut self, job: &str, workers: u16) -> JobId {
        self.submit_with(job, workers, 0)
    }

    fn submit_with(&mut self, job: &str, workers: u16, priority: i32) -> JobId {
        let spec = spec_with(|document| {
            document["workers"] = json!({"min": workers, "max": workers});
            document["priority"] = json!(priority);
        });
        let (job, spec) = (JobId::parse(job).unwrap(), Box::new(spec));
        self.command(Command::SubmitJob { job: job.clone(), spec, body_digest: Digest([0; 32]) });
        job
    }

    pub fn pass(&mut self, ms: u64) -> Vec<Fact> {
        self.at = self.at.plus_ms(ms);
        self.tell(&Input::Tick)
    }

    pub fn phase(&self, job: &JobId) -> &'static str {
        self.state.job(job).unwrap().phase.name()
    }

    /// Executors of a job that are to stay, with their slots.
    pub fn staying(&self, job: &JobId) -> Vec<(ExecutorId, SlotId)> {
        let staying = self.state.executors_of(job).filter(|(_, executor)| executor.leaving.is_none());
        staying.map(|(number, executor)| (number.clone(), executor.slot.clone())).collect()
    }

    pub fn ready(&mut self, executor: &ExecutorId) -> Vec<Fact> {
        let (executor, address) = (executor.clone(), "h:1".to_owned());
        let (class, replica_bytes, gradient_bytes) = (None, None, None);
        self.report(Report::ExecutorReady { executor, address, class, replica_bytes, gradient_bytes })
    }

    pub fn gone(&mut self, (executor, slot): (ExecutorId, SlotId)) -> Vec<Fact> {
        self.report(Report::ExecutorGone { executor, slot, exit: ExitCause::Killed })
    }

    /// A job of two on the slots 0 and 1 whose executors are never ready and are told to stop; that on slot 0 does not.
    fn with_a_stuck_one(&mut self) -> (JobId, (ExecutorId, SlotId)) {
        let job = self.submit("job-a", 2);
        let [stuck, other] = self.staying(&job).try_into().unwrap();
        self.pass(READY_DEADLINE_MS);
        assert!(self.staying(&job).is_empty(), "both are told to stop");
        self.gone(other);
        self.pass(STUCK_MS - 1);
        assert_eq!(self.phase(&job), "starting", "its end is awaited for a while");
        (job, stuck)
    }
}

/// A start waited for whatever was on one of its slots, for ever if that did not end.
#[test]
fn a_start_goes_on_elsewhere_without_an_executor_that_does_not_end() {
    let mut brain = Brain::new(3);
    let (job, (stuck, slot_of_it)) = brain.with_a_stuck_one();
    let facts = brain.pass(1);
    assert!(facts.contains(&Fact::ExecutorStuck { executor: stuck.clone(), slot: slot_of_it.clone() }), "{facts:?}");
    let staying = brain.staying(&job);
    assert!(staying.len() == 2 && staying.iter().all(|(_, slot)| *slot != slot_of_it), "{staying:?}");
    assert!(proposed(&brain.ready(&staying[0].0)).is_empty());
    assert_eq!(proposed(&brain.ready(&staying[1].0)), [&Entry::Fresh]);
    assert!(!brain.pass(STUCK_MS).iter().any(|fact| matches!(fact, Fact::ExecutorStuck { .. })), "said once");
    brain.gone((stuck, slot_of_it.clone()));
    assert!(brain.state.slot(&slot_of_it).unwrap().is_idle(), "of use again when it is gone after all");
}

/// Found by a random schedule: the log lost an agent's word that an executor was gone, and its slot never went back to its fleet.
#[test]
fn who_is_not_heard_of_any_more_is_asked_for_until_its_agent_says_that_it_is_gone() {
    let mut brain = Brain::new(2);
    let job = brain.submit("job-a", 2);
    let both = brain.staying(&job);
    for (executor, _) in &both {
        brain.ready(executor);
    }
    brain.command(Command::CancelJob { job });
    let listed = |brain: &Brain| {
        let orders = orders(&brain.state, &both[0].1.server);
        orders.iter().filter(|order| order.executor == both[0].0).map(|order| order.leave_by).collect::<Vec<_>>()
    };
    assert_eq!(listed(&brain), [], "it is told to stop by not being wanted");
    let told_at = brain.at;
    brain.pass(STUCK_MS);
    assert_eq!(listed(&brain), [Some(told_at)], "its agent kills it, or says that it does not run it");
    brain.gone(both[0].clone());
    assert_eq!(listed(&brain), []);
}

/// A more important job was given the slot of another, to wait beside one that never came free.
#[test]
fn a_slot_with_an_executor_that_does_not_end_is_counted_on_by_nobody() {
    let mut brain = Brain::new(2);
    let (first, stuck) = brain.with_a_stuck_one();
    brain.pass(1);
    // The one that was to begin anew beside it is of no use alone.
    let on_one = brain.state.slot(&slot("local", 1)).and_then(|slot| slot.executor.clone()).unwrap();
    brain.gone((on_one, slot("local", 1)));
    assert_eq!(brain.phase(&first), "queued");
    brain.command(Command::CancelJob { job: first });
    let second = brain.submit("job-b", 1);
    assert_eq!(brain.staying(&second).len(), 1);
    let third = brain.submit_with("job-c", 2, 10);
    assert_eq!((brain.phase(&third), brain.staying(&second).len()), ("queued", 1), "one slot is all there is");
    brain.gone(stuck);
    assert_eq!(brain.staying(&second).len(), 0, "now there are two");
}
