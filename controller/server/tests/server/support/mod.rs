//! Logs, inputs and agents played by the tests.

use controller_core::{Policy, State, policy_by_name};
use controller_link::{ControllerConnection, LinkError, connect};
use controller_server::{AGENT_LEASE, AgentToken, CellSecret, Controller, ControllerConfig, start};
use events_log::{AppendError, BoxFuture, EventLog, ReadError, Record, Stream, read_range};
use events_rule::count::{Counter, Verdict};
use events_schema::batch::{Batch, EventRecord, from_bytes, to_bytes};
use events_schema::command::{Command, CommandRecord, Demand, DemandSignal, OfferMode};
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::fact::Fact;
use events_schema::job::JobSpec;
use events_schema::orders::{AgentMessage, ControllerMessage, Orders};
use events_schema::report::Report;
use events_schema::{Cell, CommandId, DatasetName, Digest, FleetId, JobId, Offset, ServerId, SlotId, TenantId, TimeMs};
use object_store::memory::InMemory;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for anything; reached only by a failure.
pub const WAIT_MAX: Duration = Duration::from_secs(30);
pub const CELL: Cell = Cell(0);

pub fn server() -> ServerId {
    ServerId::parse("local").unwrap()
}

/// A cell's secrets, which outlive its controllers.
#[derive(Clone)]
pub struct Secrets {
    pub token: AgentToken,
    pub cell: CellSecret,
}

impl Secrets {
    pub fn new() -> Self {
        Self { token: AgentToken::generate().unwrap(), cell: CellSecret::generate().unwrap() }
    }
}

pub fn config(log: &Arc<dyn EventLog>, name: &str, secrets: &Secrets) -> ControllerConfig {
    ControllerConfig {
        log: Arc::clone(log),
        store: Arc::new(InMemory::new()),
        cell: CELL,
        name: name.to_owned(),
        policy: policy(),
        listen: "127.0.0.1:0".parse().unwrap(),
        token: secrets.token.clone(),
        secret: secrets.cell.clone(),
        tick: Duration::from_millis(20),
        agent_lease: AGENT_LEASE,
        connections_max: 16,
    }
}

pub fn policy() -> Box<dyn Policy> {
    policy_by_name("fifo").unwrap()
}

pub async fn controller(log: &Arc<dyn EventLog>, name: &str) -> Controller {
    start(config(log, name, &Secrets::new())).await.unwrap()
}

/// What counts in a log, folded by hand: the state, all batches, and the facts in order.
pub struct Folded {
    pub state: State,
    pub batches: Vec<Batch>,
    pub claims: usize,
}

impl Folded {
    pub async fn read(log: &Arc<dyn EventLog>) -> Self {
        let mut folded = Self { state: State::new(CELL), batches: Vec::new(), claims: 0 };
        let mut counter = Counter::new();
        let end = log.end(Stream::Events, CELL).await.unwrap();
        read_range::<ReadError>(&**log, Stream::Events, CELL, Offset(0), end, |record| {
            match counter.offer(record.offset, from_bytes::<EventRecord>(&record.bytes).unwrap()) {
                Verdict::Counts(batch) => {
                    batch.facts.iter().for_each(|fact| folded.state.apply(batch.at, fact));
                    folded.batches.push(batch);
                }
                Verdict::Claimed { .. } => folded.claims += 1,
                Verdict::Incomplete | Verdict::Skipped(_) | Verdict::PassesOver(_) => {}
            }
            Ok(())
        })
        .await
        .unwrap();
        folded
    }

    pub fn facts(&self) -> impl Iterator<Item = &Fact> {
        self.batches.iter().flat_map(|batch| &batch.facts)
    }

    pub fn taken(&self, command: &str) -> usize {
        self.facts()
            .filter(|fact| matches!(fact, Fact::CommandTaken { command: taken } if taken.as_str() == command))
            .count()
    }
}

/// Whether the state has the dataset that [`register`] with this name registers.
pub fn has_dataset(state: &State, name: &str) -> bool {
    state.dataset(&DatasetName::parse(name).unwrap()).is_some()
}

pub async fn command(log: &Arc<dyn EventLog>, id: &str, command: Command) {
    let record = CommandRecord {
        id: CommandId::parse(id).unwrap(),
        tenant: TenantId::parse("local").unwrap(),
        at: TimeMs(1),
        command,
        trace: None,
        expected: None,
    };
    log.append(Stream::Commands, CELL, to_bytes(&record)).await.unwrap();
}

pub fn dataset(name: &str, metadata_key: &str) -> DatasetInfo {
    DatasetInfo {
        name: DatasetName::parse(name).unwrap(),
        sample: SampleShape::Classified { shape: vec![64], classes: 10 },
        rows: 1_000,
        metadata_key: metadata_key.to_owned(),
        metadata_digest: Digest::of(metadata_key.as_bytes()),
    }
}

/// A command with an effect that is easy to see; its id is the dataset's name.
pub async fn register(log: &Arc<dyn EventLog>, name: &str) {
    command(log, name, Command::RegisterDataset { dataset: dataset(name, "datasets/d/metadata.json") }).await;
}

/// A fleet that lends all slots of the server, a dataset and a job for one executor. Returns when the fleet is known: demand
/// comes by a stream of its own and would not wait for it.
pub async fn lend_and_submit(controller: &Controller, log: &Arc<dyn EventLog>, slots: u16) {
    register(log, "digits").await;
    let fleet = FleetId::parse("local").unwrap();
    let slots = (0..slots).map(|index| SlotId { server: server(), index }).collect();
    command(
        log,
        "fleet",
        Command::PutFleet { fleet: fleet.clone(), slots, offers: OfferMode::ByDemand, reclaim_deadline_ms: 5_000 },
    )
    .await;
    let document = serde_json::json!({ "name": "t", "model": { "kind": "mlp", "hidden": [8] }, "dataset": "digits", "batch_size": 8, "epochs": 1 });
    let spec = Box::new(JobSpec::parse(&document).unwrap());
    command(log, "submit", Command::SubmitJob { job: job(), spec, body_digest: Digest::of(b"body") }).await;
    assert!(
        tokio::time::timeout(WAIT_MAX, controller.wait_for(move |state| state.fleet(&fleet).is_some())).await.unwrap()
    );
}

pub async fn demand(log: &Arc<dyn EventLog>, sequence: u64, needed: u32) {
    let signal = DemandSignal::new(FleetId::parse("local").unwrap(), sequence, TimeMs(1), Demand::Needed(needed));
    log.append(Stream::Demand, CELL, to_bytes(&signal)).await.unwrap();
}

pub fn job() -> JobId {
    JobId::parse("job-a").unwrap()
}

/// An agent that says what the test says.
pub struct Agent {
    connection: ControllerConnection,
}

impl Agent {
    pub async fn connect(controller: &Controller, secrets: &Secrets, incarnation: u64) -> Self {
        let connection = connect(&controller.agent_url(), &secrets.token, &server()).await.unwrap();
        connection.send(AgentMessage::Hello { server: server(), incarnation, far_end: None }).await.unwrap();
        Self { connection }
    }

    pub async fn send(&self, message: AgentMessage) {
        self.connection.send(message).await.unwrap();
    }

    pub async fn report(&self, number: u64, report: Report) {
        self.send(AgentMessage::Report { number, at: TimeMs(1), report, trace: None }).await;
    }

    pub async fn join(&self, slots: u16) {
        let report = Report::AgentJoined {
            slots,
            class: Digest::of(b"class"),
            address: "http://127.0.0.1:1".to_owned(),
            devices: Vec::new(),
            quarantined: Default::default(),
            guests: false,
            slot_type: None,
        };
        self.report(1, report).await;
    }

    pub async fn receive(&mut self) -> Result<ControllerMessage, LinkError> {
        tokio::time::timeout(WAIT_MAX, self.connection.receive()).await.unwrap()
    }

    /// Waits until reports up to this number are acknowledged.
    pub async fn taken(&mut self, number: u64) {
        loop {
            match self.receive().await.unwrap() {
                ControllerMessage::ReportsTaken { through } if through >= number => return,
                _ => self.send(AgentMessage::Heartbeat).await,
            }
        }
    }

    /// Waits for orders that satisfy a condition.
    pub async fn orders(&mut self, condition: impl Fn(&Orders) -> bool) -> Orders {
        let wanted = async {
            loop {
                match self.receive().await.unwrap() {
                    ControllerMessage::Orders(orders) if condition(&orders) => return orders,
                    _ => self.send(AgentMessage::Heartbeat).await,
                }
            }
        };
        tokio::time::timeout(WAIT_MAX, wanted).await.unwrap()
    }
}

/// A log that takes only small records of events.
pub struct SmallLog {
    pub inner: Arc<dyn EventLog>,
    pub bytes_max: usize,
}

impl EventLog for SmallLog {
    fn append(&self, stream: Stream, cell: Cell, record: Vec<u8>) -> BoxFuture<'_, Result<Offset, AppendError>> {
        if stream == Stream::Events && record.len() > self.bytes_max {
            let error = AppendError::TooLarge { bytes: record.len(), bytes_max: self.bytes_max };
            return Box::pin(async move { Err(error) });
        }
        self.inner.append(stream, cell, record)
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
        self.inner.end(stream, cell)
    }

    fn wait(&self, stream: Stream, cell: Cell, from: Offset) -> BoxFuture<'_, Result<(), ReadError>> {
        self.inner.wait(stream, cell, from)
    }

    fn trim(&self, stream: Stream, cell: Cell, below: Offset) -> BoxFuture<'_, Result<(), AppendError>> {
        self.inner.trim(stream, cell, below)
    }
}
