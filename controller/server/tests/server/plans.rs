//! What comes while a plan is made. Its policy plans until it is let go, so what waits for the plan waits for ever.

use crate::support::{self, Agent, Folded, Secrets, WAIT_MAX, command, config, demand};
use controller_core::policy::effort::QUESTION_STEPS;
use controller_core::policy::{Plan, Policy, View};
use controller_core::state::State;
use controller_server::{Controller, ControllerConfig, start};
use events_log::{EventLog, MemoryLog};
use events_schema::command::Command;
use events_schema::report::Report;
use events_schema::{FleetId, SlotId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// How long the policy takes for as many steps as lie between two questions: so long that its steps are not used up before the test is over.
const PAUSE: Duration = Duration::from_millis(1);

/// Plans as another does, but not before it is let go.
struct Slow {
    inner: Box<dyn Policy>,
    held: Arc<AtomicBool>,
    /// How many plans have begun, and how many were made.
    counts: watch::Sender<(u64, u64)>,
}

impl Policy for Slow {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn plan(&self, view: &View) -> Plan {
        self.counts.send_modify(|counts| counts.0 += 1);
        while self.held.load(Ordering::SeqCst) {
            std::thread::sleep(PAUSE);
            view.effort.spend(QUESTION_STEPS);
        }
        let plan = self.inner.plan(view);
        self.counts.send_modify(|counts| counts.1 += 1);
        plan
    }
}

/// Holds a policy's plans until it is dropped, also by a test that fails: its runtime waits for the plan.
struct Held(Arc<AtomicBool>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// A cell in the midst of a plan that ends when it is let go.
struct Planning {
    log: Arc<dyn EventLog>,
    controller: Controller,
    held: Held,
    counts: watch::Receiver<(u64, u64)>,
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_MAX, what).await.unwrap()
}

fn fleet() -> FleetId {
    FleetId::parse("local").unwrap()
}

fn slot(index: u16) -> SlotId {
    SlotId { server: support::server(), index }
}

fn lent(state: &State) -> usize {
    state.fleet(&fleet()).map_or(0, |fleet| fleet.lent)
}

impl Planning {
    /// Two slots are lent, and a job waits for them; an agent is there if somebody is to speak for the server.
    async fn begun(joins: bool) -> (Self, Option<Agent>) {
        let (log, secrets): (Arc<dyn EventLog>, _) = (Arc::new(MemoryLog::new()), Secrets::new());
        let (held, counts) = (Arc::new(AtomicBool::new(false)), watch::Sender::default());
        let receiver = counts.subscribe();
        let policy = Box::new(Slow { inner: support::policy(), held: Arc::clone(&held), counts });
        let controller = start(ControllerConfig { policy, ..config(&log, "a", &secrets) }).await.unwrap();
        let mut agent = None;
        if joins {
            let mut joined = Agent::connect(&controller, &secrets, 7).await;
            joined.join(2).await;
            joined.taken(1).await;
            agent = Some(joined);
        }
        support::lend_and_submit(&controller, &log, 2).await;
        demand(&log, 1, 0).await;
        assert!(soon(controller.wait_for(|state| lent(state) == 2 && state.job(&support::job()).is_some())).await);
        held.store(true, Ordering::SeqCst);
        let mut planning = Self { log, controller, held: Held(held), counts: receiver };
        let before = *planning.counts.borrow_and_update();
        soon(planning.counts.wait_for(|counts| counts.0 > before.0 && counts.0 > counts.1)).await.unwrap();
        (planning, agent)
    }

    async fn wait_for(&self, condition: impl FnMut(&State) -> bool) {
        assert!(soon(self.controller.wait_for(condition)).await);
    }

    /// Lets the plan be made; it comes to its end, and nothing failed.
    async fn let_go(mut self) {
        let (_, made) = *self.counts.borrow_and_update();
        drop(self.held);
        soon(self.counts.wait_for(|counts| counts.1 > made)).await.unwrap();
        self.controller.shutdown().await;
        assert_eq!(Folded::read(&self.log).await.state.counters().plans_failed, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_need_that_rises_in_the_midst_of_a_plan_does_not_wait_for_it() {
    let (planning, _) = Planning::begun(false).await;
    demand(&planning.log, 2, 1).await;
    planning.wait_for(|state| lent(state) == 1).await;
    planning.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn nor_does_a_reclaim_by_name() {
    let (planning, _) = Planning::begun(false).await;
    command(&planning.log, "back", Command::ReclaimSlots { fleet: fleet(), slots: vec![slot(1)] }).await;
    planning.wait_for(|state| lent(state) == 1).await;
    planning.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn nor_a_slot_that_was_taken_back_at_its_server() {
    let (planning, agent) = Planning::begun(true).await;
    let report = Report::SlotTakenBack { slot: slot(0), asked_ms: None, within_ms: None };
    agent.as_ref().unwrap().report(2, report).await;
    planning.wait_for(|state| lent(state) == 1).await;
    planning.let_go().await;
    drop(agent);
}
