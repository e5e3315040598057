//! A log, agents and a clock that do what a test says, around real machines. Time is a number; nothing waits.

use controller_cell::{
    AppendFailure, Attempt, CellConfig, CellEnd, CellMachine, Committed, Fold, In, LinkEnd, LinkId, Note, Out,
    ReadFailure, Ticket,
};
use controller_core::{Interrupt, Policy, State, policy_by_name};
use events_rule::count::{Counter, Verdict, read_event};
use events_rule::{Record, Stream};
use events_schema::batch::{Batch, to_bytes};
use events_schema::command::{Command, CommandRecord, Demand, DemandSignal, OfferMode};
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::job::JobSpec;
use events_schema::orders::{AgentMessage, ControllerMessage, FarEnd};
use events_schema::report::Report;
use events_schema::{Cell, CommandId, DatasetName, Digest, FleetId, JobId, Offset, ServerId, SlotId, TenantId, TimeMs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub const CELL: Cell = Cell(0);
pub const LEASE_MS: u64 = 4_500;
/// The wall clock at the start.
pub const WALL: TimeMs = TimeMs(1_000_000);

/// What becomes of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    AcknowledgementLost,
    Lost,
    Doubled,
    Unavailable,
    /// Not answered at all.
    Unanswered,
}

/// A log that loses acknowledgements and stands still when told to.
#[derive(Default)]
pub struct Log {
    streams: BTreeMap<Stream, Vec<Vec<u8>>>,
    first: BTreeMap<Stream, u64>,
    /// Offsets that belong to no record.
    gaps: BTreeSet<(Stream, u64)>,
    /// Reads of a stream so far.
    pub reads: BTreeMap<Stream, u32>,
    /// Neither appends nor questions about the end are answered.
    pub stalled: bool,
    /// A longer record of `events` is refused.
    pub events_len_max: Option<usize>,
    /// Nobody is told where this stream ends.
    pub unknown_end: Option<Stream>,
    pub faults: VecDeque<(Stream, Fault)>,
}

impl Log {
    pub fn append(&mut self, stream: Stream, bytes: Vec<u8>) -> Offset {
        let records = self.streams.entry(stream).or_default();
        records.push(bytes);
        Offset(records.len() as u64 - 1)
    }

    /// The last offset of a stream belongs to no record, as after a transaction on Kafka.
    pub fn append_marker(&mut self, stream: Stream) {
        let Offset(place) = self.append(stream, Vec::new());
        self.gaps.insert((stream, place));
    }

    pub fn end(&self, stream: Stream) -> Offset {
        Offset(self.streams.get(&stream).map_or(0, Vec::len) as u64)
    }

    pub fn trim(&mut self, stream: Stream, below: u64) {
        self.first.insert(stream, below);
    }

    /// The stream is another one, or an older copy.
    pub fn truncate(&mut self, stream: Stream, len: usize) {
        self.streams.entry(stream).or_default().truncate(len);
    }

    pub fn read(&self, stream: Stream, from: Offset, bytes_max: usize) -> Result<Vec<Record>, ReadFailure> {
        let first = self.first.get(&stream).copied().unwrap_or(0);
        if from.0 < first {
            return Err(ReadFailure::Trimmed { first: Offset(first) });
        }
        let mut bytes = 0;
        let records = self.streams.get(&stream).into_iter().flatten().enumerate().skip(from.0 as usize);
        let fits = |(index, record): &(usize, &Vec<u8>)| {
            bytes += record.len();
            *index as u64 == from.0 || bytes <= bytes_max
        };
        let record =
            |(index, bytes): (usize, &Vec<u8>)| Record { offset: Offset(index as u64), bytes: bytes.clone().into() };
        let is_record = |(index, _): &(usize, &Vec<u8>)| !self.gaps.contains(&(stream, *index as u64));
        Ok(records.take_while(fits).filter(is_record).map(record).collect())
    }

    /// What counts, folded anew.
    pub fn fold(&self) -> Fold {
        let mut fold = Fold::new(CELL);
        self.read(Stream::Events, Offset(0), usize::MAX).unwrap().iter().for_each(|record| {
            fold.take(record).unwrap();
        });
        fold
    }

    /// The batches that count.
    pub fn batches(&self) -> Vec<Batch> {
        let mut counter = Counter::new();
        let records = self.read(Stream::Events, Offset(0), usize::MAX).unwrap();
        let verdicts = records.iter().map(|record| counter.offer(record.offset, read_event(record).unwrap()));
        let counted = |verdict| if let Verdict::Counts(batch) = verdict { Some(batch) } else { None };
        verdicts.filter_map(counted).collect()
    }

    pub fn command(&mut self, id: &str, command: Command) {
        let id = CommandId::parse(id).unwrap();
        let record = CommandRecord {
            id,
            tenant: TenantId::parse("local").unwrap(),
            at: TimeMs(1),
            command,
            trace: None,
            expected: None,
        };
        self.append(Stream::Commands, to_bytes(&record));
    }

    pub fn register(&mut self, name: &str) {
        self.register_at(name, "datasets/d/metadata.json");
    }

    pub fn register_at(&mut self, name: &str, key: &str) {
        let dataset = DatasetInfo {
            name: DatasetName::parse(name).unwrap(),
            sample: SampleShape::Classified { shape: vec![64], classes: 10 },
            rows: 1_000,
            metadata_key: key.to_owned(),
            metadata_digest: Digest::of(b"metadata"),
        };
        self.command(name, Command::RegisterDataset { dataset });
    }

    pub fn put_fleet(&mut self, servers: &[&str], slots: u16) {
        let slots = servers.iter().flat_map(|server| (0..slots).map(|index| slot(server, index))).collect();
        let (fleet, offers) = (fleet(), OfferMode::ByDemand);
        self.command("fleet", Command::PutFleet { fleet, slots, offers, reclaim_deadline_ms: 5_000 });
    }

    pub fn demand(&mut self, sequence: u64, needed: u32) {
        let signal = DemandSignal::new(fleet(), sequence, TimeMs(1), Demand::Needed(needed));
        self.append(Stream::Demand, to_bytes(&signal));
    }

    pub fn submit(&mut self, job: &str) {
        self.submit_on(job, 1);
    }

    pub fn submit_on(&mut self, job: &str, workers: u16) {
        let document = serde_json::json!({
            "name": "t", "model": { "kind": "mlp", "hidden": [8] }, "dataset": "digits", "batch_size": 8, "epochs": 1,
            "workers": { "min": 1, "max": workers },
        });
        let spec = Box::new(JobSpec::parse(&document).unwrap());
        let job_id = JobId::parse(job).unwrap();
        self.command(job, Command::SubmitJob { job: job_id, spec, body_digest: Digest::of(b"body") });
    }
}

pub fn server(name: &str) -> ServerId {
    ServerId::parse(name).unwrap()
}

pub fn slot(server_name: &str, index: u16) -> SlotId {
    SlotId { server: server(server_name), index }
}

pub fn fleet() -> FleetId {
    FleetId::parse("local").unwrap()
}

pub fn has_dataset(state: &State, name: &str) -> bool {
    state.dataset(&DatasetName::parse(name).unwrap()).is_some()
}

/// A machine, what it asked for that is not answered, and what it said.
pub struct Controller {
    pub machine: CellMachine,
    wake_ms: Option<u64>,
    follows: BTreeMap<Stream, (Ticket, Offset, usize)>,
    held: Vec<Out>,
    /// What it appended, with its tickets, in order.
    pub appends: Vec<(Ticket, Stream, Attempt)>,
    pub told: Vec<(LinkId, ControllerMessage)>,
    pub ended: Vec<(LinkId, Option<LinkEnd>)>,
    pub notes: Vec<Note>,
    pub deletes: Vec<u64>,
    pub committed: Option<Committed>,
    /// Everything that ever counted, in order.
    pub states: Vec<State>,
    pub end: Option<CellEnd>,
}

impl Controller {
    fn new(name: &str, incarnation: u64) -> Self {
        Self::with(name, incarnation, Arc::from(policy_by_name("fifo").unwrap()), Interrupt::new(|| false))
    }

    fn with(name: &str, incarnation: u64, policy: Arc<dyn Policy>, interrupt: Interrupt) -> Self {
        let config = CellConfig {
            cell: CELL,
            name: name.to_owned(),
            incarnation,
            tick_ms: 200,
            agent_lease_ms: LEASE_MS,
            heartbeat_interval_ms: 500,
        };
        Self {
            machine: CellMachine::new(config, policy).interrupted_by(interrupt),
            wake_ms: None,
            follows: BTreeMap::new(),
            held: Vec::new(),
            appends: Vec::new(),
            told: Vec::new(),
            ended: Vec::new(),
            notes: Vec::new(),
            deletes: Vec::new(),
            committed: None,
            states: Vec::new(),
            end: None,
        }
    }

    pub fn state(&self) -> &State {
        &self.committed.as_ref().unwrap().state
    }

    pub fn is_connected(&self, name: &str) -> bool {
        self.state().server(&server(name)).is_some_and(|server| server.connected)
    }

    /// What it told on a stream since the last time.
    pub fn heard(&mut self, link: LinkId) -> Vec<ControllerMessage> {
        let (mine, others) = std::mem::take(&mut self.told).into_iter().partition(|(told, _)| *told == link);
        self.told = others;
        mine.into_iter().map(|(_, message): (LinkId, ControllerMessage)| message).collect()
    }

    pub fn take(&mut self, now_ms: u64, log: &mut Log, input: In) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = self.wakes_at_once(now_ms).or_else(|| inputs.pop_front()) {
            for out in self.machine.handle(now_ms, input) {
                inputs.extend(self.perform(log, out));
            }
        }
    }

    fn wakes_at_once(&mut self, now_ms: u64) -> Option<In> {
        self.wake_ms.take_if(|wake_ms| *wake_ms <= now_ms).map(|_| In::Wake)
    }

    fn perform(&mut self, log: &mut Log, out: Out) -> Vec<In> {
        match out {
            Out::Append { .. } | Out::AskEnd { .. } if log.stalled => self.held.push(out),
            Out::AskEnd { stream, .. } if log.unknown_end == Some(stream) => self.held.push(out),
            Out::Append { ticket, stream, record, attempt } => {
                self.appends.push((ticket, stream, attempt));
                return append(log, ticket, stream, record).into_iter().collect();
            }
            Out::AskEnd { ticket, stream } => return vec![In::End { ticket, end: log.end(stream) }],
            Out::Read { ticket, stream, from, bytes_max } => {
                self.follows.remove(&stream);
                *log.reads.entry(stream).or_default() += 1;
                return vec![read(log, ticket, stream, from, bytes_max)];
            }
            Out::Follow { ticket, stream, from, bytes_max } => {
                self.follows.insert(stream, (ticket, from, bytes_max));
            }
            Out::Tell { link, message } => self.told.push((link, message)),
            Out::EndLink { link, cause } => self.ended.push((link, cause)),
            Out::Committed(committed) => {
                self.states.push(committed.state.clone());
                self.committed = Some(*committed);
            }
            Out::StandDown(end) => self.end = Some(end),
            Out::Note(note) => self.notes.push(note),
            Out::WakeAt(ms) => self.wake_ms = Some(ms),
            Out::Delete { number, .. } => {
                self.deletes.push(number);
                return vec![In::Deleted { number }];
            }
            Out::Telemetry(_) | Out::Counted(_) => {}
        }
        Vec::new()
    }

    /// Everything that can be answered now is.
    fn run_to_rest(&mut self, now_ms: u64, log: &mut Log) {
        if !log.stalled {
            for out in std::mem::take(&mut self.held) {
                for input in self.perform(log, out) {
                    self.take(now_ms, log, input);
                }
            }
        }
        loop {
            let there = |(stream, (_, from, _)): &(&Stream, &(Ticket, Offset, usize))| {
                log.read(**stream, *from, 1 << 20).is_ok_and(|records| !records.is_empty())
                    || log.first.get(stream).is_some_and(|first| *first > from.0)
            };
            let Some((stream, (ticket, from, bytes_max))) =
                self.follows.iter().find(there).map(|(stream, follow)| (*stream, *follow))
            else {
                break;
            };
            self.follows.remove(&stream);
            let input = read(log, ticket, stream, from, bytes_max);
            self.take(now_ms, log, input);
        }
        if self.wake_ms.is_some_and(|wake_ms| wake_ms <= now_ms) {
            self.wake_ms = None;
            self.take(now_ms, log, In::Wake);
        }
    }
}

fn append(log: &mut Log, ticket: Ticket, stream: Stream, record: Vec<u8>) -> Option<In> {
    let place = log.faults.iter().position(|(faulty, _)| *faulty == stream);
    let fault = place.and_then(|place| log.faults.remove(place)).map(|(_, fault)| fault);
    let planned = || "planned".to_owned();
    if stream == Stream::Events && log.events_len_max.is_some_and(|max| record.len() > max) {
        return Some(In::AppendFailed { ticket, failure: AppendFailure::TooLarge(planned()) });
    }
    Some(match fault {
        Some(Fault::Unanswered) => return None,
        None => In::Appended { ticket, offset: log.append(stream, record) },
        Some(Fault::Doubled) => {
            let offset = log.append(stream, record.clone());
            log.append(stream, record);
            In::Appended { ticket, offset }
        }
        Some(Fault::AcknowledgementLost) => {
            log.append(stream, record);
            In::AppendFailed { ticket, failure: AppendFailure::Unknown(planned()) }
        }
        Some(Fault::Lost) => In::AppendFailed { ticket, failure: AppendFailure::Unknown(planned()) },
        Some(Fault::Unavailable) => In::AppendFailed { ticket, failure: AppendFailure::Unavailable(planned()) },
    })
}

fn read(log: &Log, ticket: Ticket, stream: Stream, from: Offset, bytes_max: usize) -> In {
    match log.read(stream, from, bytes_max) {
        Ok(records) => In::Read { ticket, records },
        Err(failure) => In::ReadFailed { ticket, failure },
    }
}

/// Controllers on one log, and agents that say that they live.
pub struct World {
    pub now_ms: u64,
    pub log: Log,
    pub controllers: Vec<Controller>,
    /// Streams whose agents say every half second that they live: to which controller, which stream.
    pub alive: Vec<(usize, LinkId)>,
    links: u64,
}

impl World {
    pub fn new() -> Self {
        Self { now_ms: 10, log: Log::default(), controllers: Vec::new(), alive: Vec::new(), links: 0 }
    }

    /// One controller that leads an empty cell.
    pub fn led() -> Self {
        let mut world = Self::new();
        world.start("a");
        world.pass(1_000);
        assert!(world.first().committed.is_some());
        world
    }

    pub fn start(&mut self, name: &str) {
        self.begin(Controller::new(name, 100 + self.controllers.len() as u64));
    }

    /// One controller that leads an empty cell, with this policy, and with this for what presses.
    pub fn led_by(policy: Arc<dyn Policy>, interrupt: Interrupt) -> Self {
        let mut world = Self::new();
        world.begin(Controller::with("a", 100, policy, interrupt));
        world.pass(1_000);
        assert!(world.first().committed.is_some());
        world
    }

    fn begin(&mut self, mut controller: Controller) {
        controller.take(self.now_ms, &mut self.log, In::Start { wall: WALL });
        self.controllers.push(controller);
    }

    pub fn first(&mut self) -> &mut Controller {
        &mut self.controllers[0]
    }

    /// Lets time pass.
    pub fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 10 {
            self.now_ms += 10;
            for controller in &mut self.controllers {
                controller.run_to_rest(self.now_ms, &mut self.log);
            }
            if self.now_ms.is_multiple_of(500) {
                for (controller, link) in self.alive.clone() {
                    self.say(controller, link, AgentMessage::Heartbeat);
                }
            }
        }
    }

    pub fn take(&mut self, controller: usize, input: In) {
        self.controllers[controller].take(self.now_ms, &mut self.log, input);
    }

    /// An agent opens a stream and says hello.
    pub fn hello(&mut self, controller: usize, name: &str, incarnation: u64) -> LinkId {
        self.hello_with(controller, name, incarnation, None)
    }

    /// The same of one that may measure links.
    pub fn hello_with(&mut self, controller: usize, name: &str, incarnation: u64, far_end: Option<FarEnd>) -> LinkId {
        self.links += 1;
        let link = LinkId(self.links);
        self.take(controller, In::LinkOpened { link, server: server(name) });
        self.say(controller, link, AgentMessage::Hello { server: server(name), incarnation, far_end });
        self.alive.push((controller, link));
        link
    }

    /// An agent that joined.
    pub fn agent(&mut self, controller: usize, name: &str, incarnation: u64, slots: u16) -> LinkId {
        let link = self.hello(controller, name, incarnation);
        let (class, address) = (Digest::of(b"class"), "http://127.0.0.1:1".to_owned());
        let (devices, quarantined) = Default::default();
        self.report(
            controller,
            link,
            1,
            Report::AgentJoined { slots, class, address, devices, quarantined, guests: false, slot_type: None },
        );
        self.pass(100);
        link
    }

    pub fn silence(&mut self, link: LinkId) {
        self.alive.retain(|(_, alive)| *alive != link);
    }

    pub fn say(&mut self, controller: usize, link: LinkId, message: AgentMessage) {
        self.take(controller, In::Said { link, message });
    }

    pub fn report(&mut self, controller: usize, link: LinkId, number: u64, report: Report) {
        self.say(controller, link, AgentMessage::Report { number, at: TimeMs(1), report, trace: None });
    }
}

/// A new process of an agent with one slot.
pub fn joined() -> Report {
    let (class, address) = (Digest::of(b"class"), "http://127.0.0.1:1".to_owned());
    Report::AgentJoined {
        slots: 1,
        class,
        address,
        devices: Vec::new(),
        quarantined: [].into(),
        guests: false,
        slot_type: None,
    }
}
