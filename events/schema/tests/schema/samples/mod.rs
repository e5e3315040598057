//! One value of every kind that is written anywhere: what `golden.rs` compares byte for byte, and other tests take apart.
//!
//! A new variant does not compile here until it is listed in `kinds.rs`, and does not pass until it has a sample and a golden
//! line. Samples never change: they are what old logs hold. A new field gets a new sample.

mod agents;
mod facts;
mod kinds;
mod needs;
mod orders;
mod specs;
mod stragglers;
mod strides;
mod traces;
mod types;

use events_schema::batch::{Batch, EventRecord, InputStream, Part, PassOver, Taken, from_bytes, to_bytes};
use events_schema::command::{Command, CommandRecord, Demand, Expected, OfferMode, Recall};
use events_schema::control::{
    ExecutorHop, ExecutorStart, FileAccess, FromExecutor, Phase, Progress, ToExecutor, TorchHost, WaitsFor,
};
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::device::SlotDevice;
use events_schema::fact::*;
use events_schema::initial::InitialSource;
use events_schema::job::{JobSpec, Length, ModelSpec, OptimizerSpec, ScheduleShape, Shuffle, Tail};
use events_schema::orders::{AgentMessage, ControllerMessage, JobOrder, Telemetry};
use events_schema::report::{CodeEndedAt, ExitCause, Mean, Metrics, Outcome, Report, ReportRecord};
use events_schema::stride::Stride;
use events_schema::*;
pub use facts::*;
pub use kinds::*;
use orders::{far_end, orders, orders_with_link_keys, orders_with_time_left};
use serde_json::{Value, json};
use specs::{
    command_model, command_model_on_devices, command_model_with_packages, torch_model, torch_model_with_environment,
};
use strides::{facts_of_strides, reports_of_strides};
use traces::{span, trace};

/// A sample's name (`Type::Variant` or `Type`), its bytes, and whether bytes decode to it and encode back to themselves.
pub struct Sample {
    pub name: String,
    pub bytes: Vec<u8>,
    pub reads: fn(&[u8]) -> Result<Vec<u8>, String>,
}

fn sample<T: minicbor::Encode<()> + for<'b> minicbor::Decode<'b, ()>>(name: impl Into<String>, value: &T) -> Sample {
    let reads = |bytes: &[u8]| from_bytes::<T>(bytes).map(|value| to_bytes(&value)).map_err(|error| error.to_string());
    Sample { name: name.into(), bytes: to_bytes(value), reads }
}

fn progress() -> Progress {
    Progress {
        generation: Generation(4),
        revision: 1,
        step: Step(1 << 40),
        phase: Phase::Computing(Rank(3)),
        units_done: 70_000,
        bytes_done: 1 << 33,
        waits_for: WaitsFor::Peers(vec![2]),
        processor_ms: 90_000,
        gradients: None,
        busy_percent: None,
    }
}

pub fn job() -> JobId {
    JobId::parse("job-4g7q2mz0x8k1v5n3b6c9d2f0ha").unwrap()
}

fn executor() -> ExecutorId {
    ExecutorId { job: job(), number: 7 }
}

fn server() -> ServerId {
    ServerId::parse("host-1.rack").unwrap()
}

pub fn slot(index: u16) -> SlotId {
    SlotId { server: server(), index }
}

fn fleet() -> FleetId {
    FleetId::parse("chat-eu").unwrap()
}

fn command_id() -> CommandId {
    CommandId::parse("cmd-01").unwrap()
}

fn tenant() -> TenantId {
    TenantId::parse("local").unwrap()
}

fn dataset() -> DatasetInfo {
    let sample = SampleShape::Classified { shape: vec![1, 8, 8], classes: 10 };
    let (name, metadata_digest) = (DatasetName::parse("digits").unwrap(), Digest([0x11; 32]));
    DatasetInfo { name, sample, rows: 1_437, metadata_key: "datasets/digits/11.json".to_owned(), metadata_digest }
}

/// A document that says everything a job can say.
pub fn full_document() -> Value {
    json!({
        "name": "Digits, with everything", "model": {"kind": "cnn", "channels": [16, 32], "blocks": 2, "groups": 8, "dropout": 0.25},
        "dataset": "digits", "workers": {"min": 2, "max": 4}, "batch_size": 32, "epochs": 12, "seed": 18446744073709551615u64,
        "shuffle": {"window": 4096}, "tail": "drop",
        "optimizer": {"kind": "sgd", "learning_rate": 0.05, "momentum": 0.9, "nesterov": true, "weight_decay": 0.0005},
        "schedule": {"warmup_steps": 20, "kind": "cosine", "floor": 0.01}, "gradient_clip_norm": 1.5,
        "evaluation": {"dataset": "digits-test", "every_steps": 50}, "checkpoint": {"every_steps": 100, "keep": 3},
        "priority": -5, "suspend": true, "max_restarts": 4,
    })
}

pub fn spec() -> JobSpec {
    JobSpec::parse(&full_document()).unwrap()
}

fn metrics() -> Metrics {
    Metrics { loss_micro: 123_456, correct: 350, count: 360, named: None }
}

fn outcome() -> Outcome {
    Outcome {
        step: Step(540),
        model_key: "jobs/a/model".to_owned(),
        model_digest: Digest([0x22; 32]),
        train_loss_micro: Some(-1),
        metrics: Some(metrics()),
    }
}

fn reason(cause: PlanCause, waits: Option<WaitCause>) -> PlanReason {
    PlanReason { policy: "ebb".to_owned(), cause, waits }
}

fn proposal() -> Proposal {
    let member = |number, ranks: &[u16]| Member {
        executor: ExecutorId { job: job(), number },
        address: format!("127.0.0.1:{}", 4_000 + number),
        ranks: ranks.iter().copied().map(Rank).collect(),
    };
    let (entry, members) = (Entry::Switch { from: Generation(3) }, vec![member(7, &[0, 1, 3]), member(8, &[2])]);
    Proposal {
        generation: Generation(4),
        entry,
        members,
        leader: executor(),
        deadline: TimeMs(1_770_000_030_000),
        stride: Stride::ONE,
    }
}

fn checkpoint() -> CheckpointInfo {
    CheckpointInfo {
        step: Step(100),
        generation: Generation(4),
        manifest_key: "jobs/a/checkpoints/100/manifest".to_owned(),
        replica_digest: Digest([0x33; 32]),
        bytes: 1 << 33,
    }
}

fn order() -> JobOrder {
    JobOrder {
        spec: Box::new(spec()),
        dataset: Some(dataset()),
        evaluation: Some(dataset()),
        key: [0x44; 32],
        proposal: Some(proposal()),
        park: true,
        link_keys: Vec::new(),
        writer: None,
        ended_well: Vec::new(),
        restarts: 0,
    }
}

fn telemetry() -> Telemetry {
    Telemetry {
        job: job(),
        generation: Generation(4),
        step: Step(101),
        steps_total: 540,
        epoch: 2,
        loss: 0.5,
        samples_per_second: 1234.5,
        step_us: 9_876,
        members: 3,
        data_wait_us: None,
        checkpoint_every_ms: None,
    }
}

fn commands() -> Vec<Command> {
    use Command::*;
    vec![
        SubmitJob { job: job(), spec: Box::new(spec()), body_digest: Digest([0x55; 32]) },
        CancelJob { job: job() },
        SuspendJob { job: job() },
        ResumeJob { job: job() },
        RegisterDataset { dataset: dataset() },
        RemoveDataset { dataset: DatasetName::parse("digits").unwrap() },
        PutFleet {
            fleet: fleet(),
            slots: vec![slot(0), slot(1)],
            offers: OfferMode::Explicit,
            reclaim_deadline_ms: 20_000,
        },
        OfferSlots { fleet: fleet(), slots: vec![slot(0)] },
        ReclaimSlots { fleet: fleet(), slots: vec![] },
        RecallFleet { fleet: fleet(), slots: Recall::All },
        ReleaseFleet { fleet: fleet() },
        TellRefused { fleet: fleet(), offset: Offset(400), count: 2, reason: "no number".to_owned() },
        SetQuota { tenant: tenant(), quota_slots: Some(300) },
    ]
}

/// That say of how many members a step is.
fn reports_of_sizes() -> Vec<Report> {
    vec![Report::GenerationStepped {
        job: job(),
        generation: Generation(4),
        step: Step(102),
        first_step_us: 21_000,
        usual_step_us: Some(17_600),
        usual_members: Some(2),
        stride: Stride::ONE,
    }]
}

fn reports() -> Vec<Report> {
    use Report::*;
    vec![
        AgentJoined {
            slots: 4,
            class: Digest([0x66; 32]),
            address: "http://127.0.0.1:7002".to_owned(),
            devices: Vec::new(),
            quarantined: [].into(),
            guests: false,
            slot_type: None,
        },
        AgentGone,
        report_of_ready(),
        ExecutorGone { executor: executor(), slot: slot(1), exit: ExitCause::NotStarted("no such file".to_owned()) },
        GenerationActive { job: job(), generation: Generation(4), step: Step(101), pause_us: 1_500 },
        MemberDeparted {
            job: job(),
            generation: Generation(4),
            executor: executor(),
            leader: ExecutorId { job: job(), number: 8 },
            step: Step(102),
        },
        CheckpointWritten {
            job: job(),
            generation: Generation(4),
            step: Step(100),
            manifest_key: "k".to_owned(),
            replica_digest: Digest([0x33; 32]),
            bytes: 4_096,
        },
        JobCompleted { job: job(), generation: Generation(4), outcome: Outcome { metrics: None, ..outcome() } },
        JobBroken { job: job(), generation: Generation(4), reason: "object missing".to_owned() },
        SlotTakenBack { slot: slot(1), asked_ms: None, within_ms: None },
        Evaluated { job: job(), generation: Generation(4), step: Step(150), metrics: metrics() },
        PeerLost { job: job(), generation: Generation(4), executor: executor() },
        PeersMissing {
            job: job(),
            generation: Generation(4),
            revision: 1,
            step: Step(102),
            by: executor(),
            peers: vec![ExecutorId { job: job(), number: 8 }],
            begun: false,
        },
        ReplicaHeld { executor: executor(), generation: Generation(4), step: Step(101) },
        GenerationStepped {
            job: job(),
            generation: Generation(4),
            step: Step(102),
            first_step_us: 21_000,
            usual_step_us: None,
            usual_members: None,
            stride: Stride::ONE,
        },
        JobStalled {
            job: job(),
            step: Step(102),
            cause: StallCause::Peers,
            blamed: vec![Blamed { executor: executor(), rank: None }],
        },
        CheckpointDamaged {
            job: job(),
            generation: Generation(4),
            step: Step(100),
            object: "k".to_owned(),
            reason: "gone".to_owned(),
        },
        CheckpointSaved {
            job: job(),
            generation: Generation(5),
            step: Step(100),
            written_in: Generation(4),
            writer: WriterToken([0x77; 16]),
            replica_digest: Digest([0x33; 32]),
            bytes: 4_096,
            stands_still: None,
        },
        CheckpointUnreadable { job: job(), generation: Generation(4), step: Step(100), reason: "use ebb 9".to_owned() },
        ObjectsSwept { objects: 3, bytes: 4_096 },
        MemberStraggles { executor: executor(), unit_us: 90_000, peers_unit_us: 30_000, cause: None },
        MemberKeepsUp { executor: executor() },
        SlotQuarantined { slot: slot(2), reason: "9 MiB".to_owned() },
        SlotRecovered { slot: slot(2) },
        ReplicasDiffer { by: executor(), step: Step(100), minority: vec![executor()] },
        NewcomerFallsBehind { by: executor(), generation: Generation(4), executor: executor(), behind_steps: 7 },
        strides::measured(17_600, Stride::ONE, None),
        LinkMeasured { executor: executor(), bytes_per_s: 5_000_000, settled: true },
        LinkSurveyed { peer: server(), bytes_per_s: 5_000_000 },
        TypesMeasured { job: job(), times: types::times() },
        LoadMeasured { executor: executor(), busy_percent: 73 },
    ]
}

fn claim() -> EventRecord {
    EventRecord::Claim { controller: "host-1".to_owned(), incarnation: 0xDEAD_BEEF }
}

fn pass_over() -> PassOver {
    let (by, reason) = ("ada".to_owned(), "a stray producer".to_owned());
    PassOver { offset: Offset(40), by, at: TimeMs(1_770_000_000_000), reason }
}

pub fn batch() -> Batch {
    let taken = |stream, from, to| Taken { stream, from: Offset(from), to: Offset(to) };
    let taken = vec![
        taken(InputStream::Demand, 1, 2),
        taken(InputStream::Reports, 10, 300),
        taken(InputStream::Commands, 0, 1),
    ];
    Batch {
        term: Term(40),
        sequence: Sequence(2),
        part: None,
        taken,
        at: TimeMs(1_770_000_000_000),
        facts: vec![
            Fact::CommandTaken { command: command_id() },
            Fact::JobSuspended { job: job(), attained_slot_ms: None },
        ],
        causes: Vec::new(),
    }
}

fn agent_messages() -> Vec<AgentMessage> {
    vec![
        AgentMessage::Hello { server: server(), incarnation: 12, far_end: None },
        AgentMessage::Report {
            number: 3,
            at: TimeMs(5),
            report: Report::SlotTakenBack { slot: slot(1), asked_ms: None, within_ms: None },
            trace: None,
        },
        AgentMessage::Telemetry(telemetry()),
        AgentMessage::Heartbeat,
        AgentMessage::Progress { executor: executor(), progress: progress() },
        AgentMessage::LinkMeasured { number: 4, bytes_per_s: Some(5_000_000) },
    ]
}

fn devices() -> Vec<SlotDevice> {
    let uuid = "GPU-00000000-0000-0000-0000-000000000001".to_owned();
    vec![SlotDevice { uuid, name: "H100".to_owned(), memory_bytes: 80 << 30, driver: "580.01".to_owned() }]
}

/// A job that brings its own rows and begins with a model of another.
fn job_of_own_rows() -> JobSpec {
    let model = serde_json::json!({"kind": "torch", "entry": "train:Job", "code": "33".repeat(32), "from": {"job": "job-a", "strict": false}});
    let spec =
        serde_json::json!({"name": "n", "model": model, "batch_size": 8, "steps": 7, "evaluation": {"every_steps": 5}});
    JobSpec::parse(&spec).unwrap()
}

fn measured() -> Metrics {
    let named = [("loss", 0.25), ("perplexity", f64::INFINITY)].map(|(name, mean)| (name.to_owned(), Mean::of(mean)));
    Metrics { named: Some(named.into()), ..metrics() }
}

/// What a gang's program left when it was asked to end.
fn saved_at_the_end() -> Report {
    Report::CheckpointSaved {
        job: job(),
        generation: Generation(5),
        step: Step(100),
        written_in: Generation(5),
        writer: WriterToken([0x77; 16]),
        replica_digest: Digest([0x33; 32]),
        bytes: 4_096,
        stands_still: Some(true),
    }
}

fn controller_messages() -> Vec<ControllerMessage> {
    vec![
        ControllerMessage::Orders(orders()),
        ControllerMessage::ReportsTaken { through: 99 },
        ControllerMessage::Heartbeat { term: Term(40) },
        ControllerMessage::Alive,
        ControllerMessage::MeasureLink { number: 4, far_end: far_end() },
    ]
}

fn start() -> ExecutorStart {
    ExecutorStart {
        executor: executor(),
        slot: slot(1),
        store_url: "file:///data/store".to_owned(),
        class: Digest([0x66; 32]),
        listen_host: "127.0.0.1".to_owned(),
        order: order(),
        torch: None,
    }
}

fn to_executor() -> Vec<ToExecutor> {
    vec![
        ToExecutor::Start(Box::new(start())),
        ToExecutor::Order(Box::new(order())),
        ToExecutor::Leave { within_ms: 500 },
        ToExecutor::Stop,
        ToExecutor::Trace(trace()),
        ToExecutor::Deadline { within_ms: 500 },
        ToExecutor::Share { thousandths: 100 },
    ]
}

/// All samples.
pub fn all() -> Vec<Sample> {
    let mut samples = Vec::new();
    macro_rules! add {
        ($($type:literal, $kind:ident: $values:expr;)+) => {$(
            samples.extend($values.iter().map(|value| sample(format!(concat!($type, "::{}"), $kind(value)), value)));
        )+};
    }
    let text = || "text".to_owned();
    add! {
        "Fact", fact_kind: facts();
        "Fact(fuller)", fact_kind: fuller_facts();
        "Fact(judged)", fact_kind: judged_facts();
        "Fact(asked)", fact_kind: facts_of_asked();
        "Fact(sized)", fact_kind: facts_of_sizes();
        "Fact(measured)", fact_kind: facts_of_speed();
        "Fact(strides)", fact_kind: facts_of_strides();
        "Report(strides)", report_kind: reports_of_strides();
        "Report(sized)", report_kind: reports_of_sizes();
        "Fact(lengths)", fact_kind: [Fact::ExecutorReady { executor: executor(), address: text(), class: None, replica_bytes: Some(106 << 20), gradient_bytes: Some(35 << 20) }];
        "Report(lengths)", report_kind: [Report::ExecutorReady { executor: executor(), address: text(), class: None, replica_bytes: Some(106 << 20), gradient_bytes: Some(35 << 20) }];
        "Fact(served)", fact_kind: facts_of_service();
        "Fact(restarted)", fact_kind: [Fact::JobRestarted { job: job(), from: Step(100), cause: restart_causes().into_iter().next() }];
        "Report(asked)", report_kind: [Report::SlotTakenBack { slot: slot(1), asked_ms: Some(380), within_ms: Some(2_000) }];
        "Command", command_kind: commands();
        "Report", report_kind: reports();
        "EventRecord", event_record_kind: [claim(), EventRecord::Batch(batch()), EventRecord::PassOver(pass_over())];
        "InputStream", input_stream_kind: [InputStream::Commands, InputStream::Demand, InputStream::Reports];
        "Demand", demand_kind: [Demand::Needed(3), Demand::Utilization { sum_milli: 2_500, target_milli: 800 }];
        "Expected", expected_kind: [Expected::Absent, Expected::As(Digest([7; 32]))];
        "OfferMode", offer_mode_kind: [OfferMode::Explicit, OfferMode::ByDemand];
        "Recall", recall_kind: [Recall::Slots(300), Recall::All];
        "Refusal", refusal_kind: [
            Refusal::Unknown { kind: text(), name: text(), nearest: Some(text()) }, Refusal::WrongPhase { phase: text(), expected: text() },
            Refusal::Exists { kind: text(), name: text(), holder: text() }, Refusal::InUse { by: text() }, Refusal::Old { taken: 9 },
            Refusal::Limit { what: text(), limit: 10 }, Refusal::Unfit { field: text(), value: text(), expected: text() }, Refusal::Changed
        ];
        "PlanCause", plan_cause_kind: [PlanCause::Guarantee, PlanCause::Gain, PlanCause::Reclaimed, PlanCause::GaveWay, PlanCause::Lost, PlanCause::Nothing, PlanCause::Speed, PlanCause::Link, PlanCause::Profile];
        "WaitCause", wait_cause_kind: [WaitCause::Slots { missing: 1 }, WaitCause::Job(job()), WaitCause::Resume, WaitCause::Offers, WaitCause::Backoff { until: TimeMs(8) }, WaitCause::Device, WaitCause::Class(Digest([7; 32])), WaitCause::Speed, WaitCause::Quota { missing: 1 }, WaitCause::Link(slow_link()), WaitCause::Type];
        "LeaveCause", leave_cause_kind: [LeaveCause::Reclaim, LeaveCause::Plan, LeaveCause::JobEnd, LeaveCause::Useless];
        "ReclaimCause", reclaim_cause_kind: [ReclaimCause::Demand, ReclaimCause::Named, ReclaimCause::Direct, ReclaimCause::Undeclared, ReclaimCause::Recall, ReclaimCause::Forecast];
        "AbandonCause", abandon_cause_kind: [AbandonCause::Deadline, AbandonCause::MemberLost, AbandonCause::Superseded, AbandonCause::Unlinked];
        "Verdict", verdict_kind: [Verdict::Well, failure(Some(Wave { in_a_row: 3, pause_until: TimeMs(9) }))];
        "Fault", fault_kind: [Fault::Program, Fault::Infrastructure];
        "Entry", entry_kind: [Entry::Fresh, Entry::Checkpoint { manifest_key: text(), earlier: Vec::new() }, Entry::Switch { from: Generation(1) }, Entry::Recover];
        "StallCause", stall_cause_kind: [StallCause::Peers, StallCause::Unit, StallCause::Bytes, StallCause::Store];
        "StallRemedy", stall_remedy_kind: [
            StallRemedy::Round, StallRemedy::WithoutBlamed, StallRemedy::Restart, StallRemedy::Suspend, StallRemedy::Fail, StallRemedy::Wait
        ];
        "RestartCause", restart_cause_kind: restart_causes();
        "LossNotice", loss_notice_kind: [
            LossNotice::Exit(ExitCause::Signal(9)), LossNotice::Silence, LossNotice::Lease, LossNotice::Agent, LossNotice::Link, LossNotice::Stall(StallCause::Bytes)
        ];
        "AvoidCause", avoid_cause_kind: [AvoidCause::Unreachable, AvoidCause::Hung, AvoidCause::Class, AvoidCause::Slow];
        "GrowthFailure", growth_failure_kind: [GrowthFailure::Lost, GrowthFailure::Late, GrowthFailure::Slow];
        "ExitCause", exit_cause_kind: [ExitCause::Left, ExitCause::Status(-2), ExitCause::Signal(15), ExitCause::Killed, ExitCause::NotStarted(text()), ExitCause::Silent,
            ExitCause::Failed { status: 1, said: text(), code_ended: None }, ExitCause::DeviceLost(text())];
        "CodeEndedAt", code_ended_kind: [CodeEndedAt::Start, CodeEndedAt::Step { generation: Generation(2), step: Step(1 << 33), rank: Some(Rank(5)) }];
        "SampleShape", sample_shape_kind: [SampleShape::Classified { shape: vec![64], classes: 10 }, SampleShape::Tokens { length: 129, vocabulary: 65 }];
        "ModelSpec", model_kind: [
            ModelSpec::Mlp { hidden: vec![128, 64], dropout: 0.1 }, ModelSpec::Cnn { channels: vec![16], blocks: 1, groups: 4, dropout: 0.0 },
            ModelSpec::Gpt { layers: 2, heads: 2, width: 64, context: 64, dropout: 0.5 }, torch_model(), command_model(),
            ModelSpec::Synthetic { gradient_ms: 100, parameters: 1_000 }
        ];
        "InitialSource", initial_source_kind: [
            InitialSource::Job(job()), InitialSource::Upload(Digest([0x55; 32])), InitialSource::Path("/models/bert".to_owned())
        ];
        "Length", length_kind: [Length::Epochs(3), Length::Steps(1 << 40)];
        "Shuffle", shuffle_kind: [Shuffle::Blocks { open: 8 }, Shuffle::Window { samples: 4_096 }, Shuffle::Full, Shuffle::None];
        "Tail", tail_kind: [Tail::Short, Tail::Drop];
        "OptimizerSpec", optimizer_kind: [
            OptimizerSpec::Sgd { learning_rate: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 },
            OptimizerSpec::Adamw { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
        ];
        "ScheduleShape", schedule_shape_kind: [
            ScheduleShape::Constant, ScheduleShape::Step { every_steps: 10, factor: 0.5 }, ScheduleShape::Cosine { floor: 0.0 },
            ScheduleShape::Linear { floor: 0.1 }
        ];
        "AgentMessage", agent_message_kind: agent_messages();
        "ControllerMessage", controller_message_kind: controller_messages();
        "ToExecutor", to_executor_kind: to_executor();
        "FromExecutor", from_executor_kind: [
            FromExecutor::Report(Report::AgentGone), FromExecutor::Telemetry(telemetry()), FromExecutor::Alive, FromExecutor::Progress(progress()),
            FromExecutor::Span(span(ExecutorHop::Prepare)), FromExecutor::LastWords { said: text(), code_ended: None }
        ];
        "Phase", phase_kind: [
            Phase::Building, Phase::Idle, Phase::Loading, Phase::Linking, Phase::Joining, Phase::Copying, Phase::Computing(Rank(3)), Phase::Reducing,
            Phase::Updating, Phase::Evaluating(Rank(4)), Phase::Saving, Phase::Still, Phase::Broken
        ];
        "ExecutorHop", executor_hop_kind: [ExecutorHop::Prepare, ExecutorHop::Join, ExecutorHop::Boundary];
        "WaitsFor", waits_for_kind: [WaitsFor::Nothing, WaitsFor::Peers(vec![1, 300]), WaitsFor::Store, WaitsFor::Controller];
    }
    let record = CommandRecord {
        id: command_id(),
        tenant: tenant(),
        at: TimeMs(1_770_000_000_000),
        command: Command::CancelJob { job: job() },
        trace: None,
        expected: None,
    };
    samples.push(sample("CommandRecord", &record));
    let signal = needs::signal();
    samples.push(sample("DemandSignal", &signal));
    samples.extend(needs::all(&signal));
    let report = ReportRecord {
        server: server(),
        incarnation: 12,
        number: 3,
        at: TimeMs(5),
        report: Report::AgentGone,
        trace: None,
        after: None,
    };
    samples.push(sample("ReportRecord", &report));
    samples.push(sample("ReportRecord after another", &ReportRecord { after: Some(2), ..report.clone() }));
    let named = Entry::Checkpoint { manifest_key: text(), earlier: vec![text(), text()] };
    samples.push(sample("Entry with earlier checkpoints", &named));
    samples.push(sample("Telemetry with wait for data", &Telemetry { data_wait_us: Some(1_200), ..telemetry() }));
    samples.push(sample("JobSpec", &spec()));
    samples.push(sample("Batch with part", &Batch { part: Some(Part { index: 1, count: 3 }), ..batch() }));
    samples.push(sample("Orders with time left", &orders_with_time_left()));
    samples.push(sample("Orders with link keys", &orders_with_link_keys()));
    let mut issued = orders_with_link_keys();
    issued.executors[0].job.writer = Some(WriterToken([0x77; 16]));
    samples.push(sample("Orders with writer", &issued));
    let torch = TorchHost {
        folder: "/data/torch".to_owned(),
        python: "/usr/bin/python3".to_owned(),
        secrets: None,
        cache_mib: None,
        warm: None,
        files: None,
    };
    samples.push(sample("ExecutorStart with torch", &ExecutorStart { torch: Some(torch.clone()), ..start() }));
    let warm = Some(TorchHost { warm: Some("ebb-warm-0123456789abcdef".to_owned()), ..torch.clone() });
    samples.push(sample("ExecutorStart with a warm torch", &ExecutorStart { torch: warm, ..start() }));
    let secrets = TorchHost { secrets: Some("/etc/ebb/secrets".to_owned()), cache_mib: Some(51_200), ..torch.clone() };
    samples.push(sample("ExecutorStart with secrets", &ExecutorStart { torch: Some(secrets), ..start() }));
    samples.push(sample("Report of a gang that stands still", &saved_at_the_end()));
    let files = FileAccess { required: true, readable: vec!["/data".to_owned()], hidden: vec!["/etc/ebb".to_owned()] };
    let isolated = TorchHost { files: Some(files), ..torch };
    samples.push(sample("ExecutorStart with isolated files", &ExecutorStart { torch: Some(isolated), ..start() }));
    samples.push(sample("ModelSpec of a program on devices", &command_model_on_devices()));
    samples.push(sample("ModelSpec of a program with packages", &command_model_with_packages()));
    samples.push(sample("ModelSpec with an environment", &torch_model_with_environment()));
    samples.push(sample("JobSpec of own rows", &job_of_own_rows()));
    let without = JobOrder { spec: Box::new(job_of_own_rows()), dataset: None, evaluation: None, ..order() };
    samples.push(sample("JobOrder of own rows", &without));
    samples.push(sample("Metrics by name", &measured()));
    samples.extend(agents::all());
    samples.extend(specs::all(order(), telemetry()));
    samples.extend(stragglers::all());
    samples.extend(types::all());
    samples.extend(strides::of_spread());
    samples.extend(traces::all(record, signal, report));
    samples
}
