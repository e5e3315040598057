//! The loop on a log: what counts, what survives, and who has to stand down.

use crate::support::{
    self, Agent, CELL, Folded, Secrets, SmallLog, WAIT_MAX, command, config, controller, dataset, demand, has_dataset,
    register,
};
use controller_core::policy::{Plan, Policy, View};
use controller_server::{ControllerConfig, ControllerEnd, start};
use events_log::faults::{Fault, FaultyLog};
use events_log::{AppendError, BoxFuture, EmbeddedLog, EventLog, MemoryLog, ReadError, Record, Stream};
use events_schema::batch::{Batch, EventRecord, InputStream, PassOver, to_bytes};
use events_schema::command::Command;
use events_schema::fact::Fact;
use events_schema::orders::{AgentMessage, ControllerMessage};
use events_schema::report::Report;
use events_schema::{Cell, Offset, Sequence, SlotId, Term, TimeMs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn memory() -> Arc<dyn EventLog> {
    Arc::new(MemoryLog::new())
}

/// Waits with an end, so that a failure is one.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_MAX, what).await.unwrap()
}

#[tokio::test]
async fn a_command_becomes_facts_and_the_replay_is_the_live_state() {
    let log = memory();
    let controller = controller(&log, "a").await;
    register(&log, "d1").await;
    register(&log, "d2").await;
    assert!(soon(controller.wait_for(|state| has_dataset(state, "d2"))).await);
    let (live, _, position) = controller.committed().unwrap();
    assert_eq!(controller.shutdown().await, ControllerEnd::Shutdown);
    let folded = Folded::read(&log).await;
    assert_eq!((folded.taken("d1"), folded.taken("d2")), (1, 1));
    assert_eq!(folded.state.digest(), live.digest());
    assert_eq!(position, log.end(Stream::Events, CELL).await.unwrap());
}

#[tokio::test]
async fn a_restart_goes_on_where_the_last_batch_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.redb");
    let before = {
        let log: Arc<dyn EventLog> = Arc::new(EmbeddedLog::open(&path).unwrap());
        let controller = controller(&log, "a").await;
        register(&log, "d1").await;
        assert!(soon(controller.wait_for(|state| has_dataset(state, "d1"))).await);
        controller.shutdown().await;
        register(&log, "while-down").await;
        Folded::read(&log).await.state.digest()
    };
    let log: Arc<dyn EventLog> = Arc::new(EmbeddedLog::open(&path).unwrap());
    assert_eq!(Folded::read(&log).await.state.digest(), before);
    let controller = controller(&log, "b").await;
    assert!(soon(controller.wait_for(|state| has_dataset(state, "while-down"))).await);
    controller.shutdown().await;
    let folded = Folded::read(&log).await;
    assert_eq!((folded.claims, folded.taken("d1"), folded.taken("while-down")), (2, 1, 1));
    let taken: Vec<(Offset, Offset)> = folded
        .batches
        .iter()
        .flat_map(|batch| &batch.taken)
        .filter(|taken| taken.stream == InputStream::Commands)
        .map(|taken| (taken.from, taken.to))
        .collect();
    assert_eq!(taken, [(Offset(0), Offset(1)), (Offset(1), Offset(2))], "without gap and without repetition");
}

#[tokio::test]
async fn of_two_controllers_on_one_log_the_first_stands_down() {
    let log = memory();
    let first = controller(&log, "first").await;
    register(&log, "d1").await;
    assert!(soon(first.wait_for(|state| has_dataset(state, "d1"))).await);
    let second = controller(&log, "second").await;
    register(&log, "d2").await;
    assert!(soon(second.wait_for(|state| has_dataset(state, "d2"))).await);
    let end = soon(first.stopped()).await;
    assert!(matches!(&end, ControllerEnd::Superseded { by, .. } if by == "second"), "{end:?}");
    let (live, ..) = second.committed().unwrap();
    second.shutdown().await;
    let folded = Folded::read(&log).await;
    assert_eq!((folded.taken("d1"), folded.taken("d2")), (1, 1));
    assert_eq!(folded.state.digest(), live.digest());
}

#[tokio::test]
async fn whatever_becomes_of_an_append_each_command_has_one_effect() {
    for fault in [Fault::AcknowledgementLost, Fault::Lost, Fault::Doubled, Fault::Unavailable] {
        let faulty = Arc::new(FaultyLog::new(memory()));
        let log: Arc<dyn EventLog> = faulty.clone();
        let controller = controller(&log, "a").await;
        for name in ["d1", "d2", "d3"] {
            faulty.plan(Some(Stream::Events), fault);
            register(&log, name).await;
            assert!(soon(controller.wait_for(|state| has_dataset(state, name))).await, "{fault:?}");
        }
        let (live, ..) = controller.committed().unwrap();
        controller.shutdown().await;
        let folded = Folded::read(&log).await;
        let effects = ["d1", "d2", "d3"].map(|name| folded.taken(name));
        assert_eq!(effects, [1, 1, 1], "{fault:?}");
        assert_eq!(folded.state.digest(), live.digest(), "{fault:?}");
    }
}

#[tokio::test]
async fn a_claim_whose_acknowledgement_is_lost_is_claimed_again() {
    let faulty = Arc::new(FaultyLog::new(memory()));
    let log: Arc<dyn EventLog> = faulty.clone();
    faulty.plan(Some(Stream::Events), Fault::AcknowledgementLost);
    faulty.plan(Some(Stream::Events), Fault::Doubled);
    let controller = controller(&log, "a").await;
    register(&log, "d1").await;
    // The doubled claim is our own: it costs another take-over, never the controller.
    assert!(soon(controller.wait_for(|state| has_dataset(state, "d1"))).await);
    assert_eq!(controller.shutdown().await, ControllerEnd::Shutdown);
    assert_eq!(Folded::read(&log).await.taken("d1"), 1);
}

#[tokio::test]
async fn a_zombies_batch_has_no_effect_and_does_not_stop_the_owner() {
    let log = memory();
    let owner = controller(&log, "owner").await;
    let zombie = Batch {
        term: Term(77),
        sequence: Sequence(0),
        part: None,
        taken: vec![],
        at: TimeMs(1),
        facts: vec![Fact::DatasetRegistered { dataset: dataset("zombie", "k") }],
        causes: Vec::new(),
    };
    log.append(Stream::Events, CELL, to_bytes(&EventRecord::Batch(zombie))).await.unwrap();
    register(&log, "d1").await;
    assert!(soon(owner.wait_for(|state| has_dataset(state, "d1"))).await);
    let (live, ..) = owner.committed().unwrap();
    assert!(!has_dataset(&live, "zombie"));
    assert_eq!(owner.shutdown().await, ControllerEnd::Shutdown);
    assert_eq!(Folded::read(&log).await.state.digest(), live.digest());
}

#[tokio::test]
async fn input_that_cannot_be_read_is_put_on_record_and_passed_over() {
    let log = memory();
    let controller = controller(&log, "a").await;
    log.append(Stream::Commands, CELL, vec![0xff; 40]).await.unwrap();
    log.append(Stream::Demand, CELL, Vec::new()).await.unwrap();
    register(&log, "d1").await;
    assert!(soon(controller.wait_for(|state| has_dataset(state, "d1") && state.counters().inputs_refused == 2)).await);
    controller.shutdown().await;
    let folded = Folded::read(&log).await;
    let refused: Vec<&str> = folded
        .facts()
        .filter_map(|fact| match fact {
            Fact::InputRefused { stream, .. } => Some(stream.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(refused.iter().filter(|stream| **stream == "commands").count(), 1);
    assert_eq!(refused.iter().filter(|stream| **stream == "demand").count(), 1);
}

/// A policy that panics on demand.
struct Panicking {
    inner: Box<dyn Policy>,
    panics: Arc<AtomicBool>,
}

impl Policy for Panicking {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn plan(&self, view: &View) -> Plan {
        assert!(!self.panics.load(Ordering::SeqCst), "planned to panic");
        self.inner.plan(view)
    }
}

#[tokio::test]
async fn a_policy_that_panics_costs_its_plan_alone() {
    let panics = Arc::new(AtomicBool::new(false));
    let policy = Panicking { inner: support::policy(), panics: Arc::clone(&panics) };
    costs_its_plan_alone(Box::new(policy), &panics, "planned to panic").await;
}

/// A policy that finds no end on demand.
struct Endless {
    inner: Box<dyn Policy>,
    is_endless: Arc<AtomicBool>,
}

impl Policy for Endless {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn plan(&self, view: &View) -> Plan {
        while self.is_endless.load(Ordering::SeqCst) && view.speeds(0).speed(1) >= 0.0 {}
        self.inner.plan(view)
    }
}

#[tokio::test]
async fn a_policy_that_finds_no_end_costs_its_plan_alone() {
    let is_endless = Arc::new(AtomicBool::new(false));
    let policy = Endless { inner: support::policy(), is_endless: Arc::clone(&is_endless) };
    costs_its_plan_alone(Box::new(policy), &is_endless, "it took more than").await;
}

/// As long as it is told to, a policy makes no plan, for such a reason.
async fn costs_its_plan_alone(policy: Box<dyn Policy>, panics: &AtomicBool, reason: &str) {
    let log = memory();
    let controller = start(ControllerConfig { policy, ..config(&log, "a", &Secrets::new()) }).await.unwrap();
    support::lend_and_submit(&controller, &log, 1).await;
    assert!(soon(controller.wait_for(|state| state.job(&support::job()).is_some())).await);
    panics.store(true, Ordering::SeqCst);
    demand(&log, 1, 0).await;
    assert!(soon(controller.wait_for(|state| state.counters().plans_failed > 0 && state.loans().count() == 1)).await);
    demand(&log, 2, 1).await;
    assert!(soon(controller.wait_for(|state| state.loans().count() == 0)).await, "a reclaim waits for no planner");
    panics.store(false, Ordering::SeqCst);
    register(&log, "after").await;
    assert!(soon(controller.wait_for(|state| has_dataset(state, "after"))).await);
    let (live, ..) = controller.committed().unwrap();
    controller.shutdown().await;
    let folded = Folded::read(&log).await;
    let said = |fact: &Fact| matches!(fact, Fact::PlanFailed { reason: said, .. } if said.contains(reason));
    assert!(folded.facts().any(said));
    assert_eq!(folded.state.counters().inputs_refused, 0, "the inputs were taken");
    assert_eq!(folded.state.digest(), live.digest());
}

#[tokio::test]
async fn an_input_whose_facts_do_not_fit_the_log_is_refused_alone() {
    let log: Arc<dyn EventLog> = Arc::new(SmallLog { inner: memory(), bytes_max: 2_000 });
    // A cell's first record is its controller's claim: inputs without it are those of a log that lost its events.
    controller(&log, "first").await.shutdown().await;
    register(&log, "before").await;
    command(
        &log,
        "large",
        Command::RegisterDataset { dataset: dataset("large", &format!("datasets/large/{}", "k".repeat(4_000))) },
    )
    .await;
    register(&log, "after").await;
    let controller = controller(&log, "a").await;
    assert!(soon(controller.wait_for(|state| has_dataset(state, "after"))).await);
    let (live, ..) = controller.committed().unwrap();
    assert!(has_dataset(&live, "before") && !has_dataset(&live, "large"));
    assert_eq!(live.counters().inputs_refused, 1);
    assert_eq!(controller.shutdown().await, ControllerEnd::Shutdown);
}

#[tokio::test]
async fn an_event_this_build_cannot_read_stops_it() {
    let log = memory();
    log.append(Stream::Events, CELL, vec![9; 9]).await.unwrap();
    let error = start(config(&log, "a", &Secrets::new())).await.unwrap_err();
    assert!(error.to_string().contains("newer ebb"), "{error}");
}

/// One stray record ended a cell for good: no tool could get past it.
#[tokio::test]
async fn a_record_that_no_ebb_wrote_can_be_passed_over() {
    let log = memory();
    let controller = controller(&log, "a").await;
    register(&log, "d1").await;
    assert!(soon(controller.wait_for(|state| has_dataset(state, "d1"))).await);
    controller.shutdown().await;
    let stray = log.append(Stream::Events, CELL, b"hello".to_vec()).await.unwrap();
    let error = start(config(&log, "b", &Secrets::new())).await.unwrap_err();
    assert!(error.to_string().contains(&format!("ebb log skip {stray} ")), "{error}");
    let (by, reason) = ("ada".to_owned(), "a stray producer".to_owned());
    let word = EventRecord::PassOver(PassOver { offset: stray, by, at: TimeMs(1), reason });
    log.append(Stream::Events, CELL, to_bytes(&word)).await.unwrap();
    let controller = start(config(&log, "c", &Secrets::new())).await.unwrap();
    register(&log, "d2").await;
    assert!(soon(controller.wait_for(|state| has_dataset(state, "d1") && has_dataset(state, "d2"))).await);
    controller.shutdown().await;
}

#[tokio::test]
async fn a_log_with_inputs_and_no_events_is_refused_with_what_to_do() {
    let log = memory();
    register(&log, "d1").await;
    let error = start(config(&log, "a", &Secrets::new())).await.unwrap_err();
    let said = format!("{error:?}");
    assert!(said.contains("Restore `events` from a backup"), "{said}");
    assert_eq!(log.end(Stream::Events, CELL).await.unwrap(), Offset(0), "nothing was claimed");
}

/// An event log whose appends and questions about its end wait until they are let go.
struct StalledLog {
    inner: Arc<dyn EventLog>,
    open: tokio::sync::watch::Sender<bool>,
}

impl StalledLog {
    fn gate(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut open = self.open.subscribe();
        async move {
            let _ = open.wait_for(|open| *open).await;
        }
    }
}

impl EventLog for StalledLog {
    fn append(&self, stream: Stream, cell: Cell, record: Vec<u8>) -> BoxFuture<'_, Result<Offset, AppendError>> {
        let gate = self.gate();
        Box::pin(async move {
            gate.await;
            self.inner.append(stream, cell, record).await
        })
    }

    fn read(
        &self,
        stream: Stream,
        cell: Cell,
        from: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, ReadError>> {
        self.inner.read(stream, cell, from, bytes_max)
    }

    fn end(&self, stream: Stream, cell: Cell) -> BoxFuture<'_, Result<Offset, ReadError>> {
        let gate = self.gate();
        Box::pin(async move {
            gate.await;
            self.inner.end(stream, cell).await
        })
    }

    fn wait(&self, stream: Stream, cell: Cell, from: Offset) -> BoxFuture<'_, Result<(), ReadError>> {
        self.inner.wait(stream, cell, from)
    }

    fn trim(&self, stream: Stream, cell: Cell, below: Offset) -> BoxFuture<'_, Result<(), AppendError>> {
        self.inner.trim(stream, cell, below)
    }
}

/// Were agents read only between appends of their reports, a stalled log would make them look silent, and they would be given up.
#[tokio::test]
async fn an_agent_is_heard_while_the_log_stalls() {
    let stalled = Arc::new(StalledLog { inner: memory(), open: tokio::sync::watch::Sender::new(true) });
    let log: Arc<dyn EventLog> = stalled.clone();
    let (secrets, lease) = (Secrets::new(), Duration::from_millis(1_200));
    let controller = start(ControllerConfig { agent_lease: lease, ..config(&log, "a", &secrets) }).await.unwrap();
    let mut agent = Agent::connect(&controller, &secrets, 7).await;
    agent.join(1).await;
    agent.taken(1).await;
    stalled.open.send_replace(false);
    agent
        .report(
            2,
            Report::SlotTakenBack {
                slot: SlotId { server: support::server(), index: 0 },
                asked_ms: None,
                within_ms: None,
            },
        )
        .await;
    // As many words of the controller as go by in four leases: that it lives, and none of them renews a loan in the end.
    let mut last = None;
    for _ in 0..10 {
        last = Some(soon(agent.receive()).await.unwrap());
        agent.send(AgentMessage::Heartbeat).await;
    }
    assert_eq!(last, Some(ControllerMessage::Alive));
    stalled.open.send_replace(true);
    agent.taken(2).await;
    let (state, ..) = controller.committed().unwrap();
    assert!(state.server(&support::server()).is_some_and(|server| server.connected));
    controller.shutdown().await;
    let gone = |fact: &Fact| matches!(fact, Fact::AgentGone { .. });
    assert!(!Folded::read(&log).await.facts().any(gone));
}

/// Prints how fast a cell is taken over; asserts only what came out.
#[tokio::test]
async fn taking_over_reads_the_whole_log() {
    const COMMANDS: usize = 2_000;
    let log = memory();
    controller(&log, "first").await.shutdown().await;
    for number in 0..COMMANDS {
        register(&log, &format!("d{number}")).await;
    }
    let first = controller(&log, "a").await;
    assert!(soon(first.wait_for(|state| has_dataset(state, &format!("d{}", COMMANDS - 1)))).await);
    let (live, ..) = first.committed().unwrap();
    first.shutdown().await;
    let begun = std::time::Instant::now();
    let second = controller(&log, "b").await;
    let facts = Folded::read(&log).await.facts().count();
    println!("took over {facts} facts in {:?}", begun.elapsed());
    assert_eq!(second.committed().unwrap().0.digest(), live.digest());
    second.shutdown().await;
}
