//! The names of all kinds: every variant of every enum that is written anywhere.

use events_schema::batch::{EventRecord, InputStream};
use events_schema::command::{Command, Demand, Expected, OfferMode, Recall};
use events_schema::control::{ExecutorHop, FromExecutor, Phase, ToExecutor, WaitsFor};
use events_schema::dataset::SampleShape;
use events_schema::fact::*;
use events_schema::initial::InitialSource;
use events_schema::job::{Length, ModelSpec, OptimizerSpec, ScheduleShape, Shuffle, Tail};
use events_schema::orders::{AgentMessage, ControllerMessage};
use events_schema::report::{CodeEndedAt, ExitCause, Report};

/// Lists every variant of an enum: the match makes forgetting one a compile error.
macro_rules! kinds {
    ($($list:ident = $kind:ident of $type:ident { $($variant:ident),+ $(,)? })+) => {$(
        pub const $list: &[&str] = &[$(stringify!($variant)),+];
        pub fn $kind(value: &$type) -> &'static str {
            match value { $($type::$variant { .. } => stringify!($variant)),+ }
        }
    )+};
}

kinds! {
    FACTS = fact_kind of Fact {
        JobAccepted, CommandRefused, CommandTaken, JobSuspending, JobSuspended, JobResumed, JobCancelled, JobFailed, JobFinished,
        PlanAdopted, QueueEntered, JobExplained, ExecutorAssigned, ExecutorReady, ExecutorLeaving, ExecutorGone, GenerationProposed,
        GenerationActive, GenerationAbandoned, MemberDeparted, CheckpointAccepted, CheckpointRetired, JobRestarted, Evaluated,
        DatasetRegistered, DatasetRemoved, FleetDeclared, DemandAccepted, FleetRecalled, FleetReleased, SlotsOffered, SlotBorrowed, SlotReclaimed,
        SlotReturned, SlotQuarantined, SlotRecovered, AgentJoined, AgentGone, ReportsTaken, InputRefused,
        PeersMissing, ReplicaHeld, GenerationStepped, JobStalled, SlotAvoided, GrowthPaused, PlanFailed, PolicyChosen, JobScaled,
        ServerForgotten, ExecutorStuck, CheckpointDamaged, ObjectsSwept, CheckpointUnreadable,
        MemberLost, MemberStraggles, MemberKeepsUp, SignalsRefused, ReplicasDiffered, ThroughputMeasured, QuotaSet, LinkMeasured, TypesMeasured,
        LoadMeasured,
    }
    COMMANDS = command_kind of Command {
        SubmitJob, CancelJob, SuspendJob, ResumeJob, RegisterDataset, RemoveDataset, PutFleet, OfferSlots, ReclaimSlots,
        RecallFleet, ReleaseFleet, TellRefused, SetQuota,
    }
    REPORTS = report_kind of Report {
        AgentJoined, AgentGone, ExecutorReady, ExecutorGone, GenerationActive, MemberDeparted, CheckpointWritten, JobCompleted,
        JobBroken, SlotTakenBack, Evaluated, PeerLost, PeersMissing, ReplicaHeld, GenerationStepped, JobStalled,
        CheckpointDamaged, CheckpointSaved, CheckpointUnreadable, ObjectsSwept,
        MemberStraggles, MemberKeepsUp, SlotQuarantined, SlotRecovered, ReplicasDiffer, NewcomerFallsBehind, ThroughputMeasured,
        LinkMeasured, LinkSurveyed, TypesMeasured, LoadMeasured,
    }
    EVENT_RECORDS = event_record_kind of EventRecord { Claim, Batch, PassOver }
    INITIAL_SOURCES = initial_source_kind of InitialSource { Job, Upload, Path }
    INPUT_STREAMS = input_stream_kind of InputStream { Commands, Demand, Reports }
    DEMANDS = demand_kind of Demand { Needed, Utilization }
    EXPECTED = expected_kind of Expected { Absent, As }
    OFFER_MODES = offer_mode_kind of OfferMode { Explicit, ByDemand }
    RECALLS = recall_kind of Recall { Slots, All }
    REFUSALS = refusal_kind of Refusal { Unknown, WrongPhase, Exists, InUse, Old, Limit, Unfit, Changed }
    PLAN_CAUSES = plan_cause_kind of PlanCause { Guarantee, Gain, Reclaimed, GaveWay, Lost, Nothing, Speed, Link, Profile }
    WAIT_CAUSES = wait_cause_kind of WaitCause { Slots, Job, Resume, Offers, Backoff, Device, Class, Speed, Quota, Link, Type }
    LEAVE_CAUSES = leave_cause_kind of LeaveCause { Reclaim, Plan, JobEnd, Useless }
    RECLAIM_CAUSES = reclaim_cause_kind of ReclaimCause { Demand, Named, Direct, Undeclared, Recall, Forecast }
    ABANDON_CAUSES = abandon_cause_kind of AbandonCause { Deadline, MemberLost, Superseded, Unlinked }
    VERDICTS = verdict_kind of Verdict { Well, Failure }
    FAULTS = fault_kind of Fault { Program, Infrastructure }
    ENTRIES = entry_kind of Entry { Fresh, Checkpoint, Switch, Recover }
    STALL_CAUSES = stall_cause_kind of StallCause { Peers, Unit, Bytes, Store }
    STALL_REMEDIES = stall_remedy_kind of StallRemedy { Round, WithoutBlamed, Restart, Suspend, Fail, Wait }
    RESTART_CAUSES = restart_cause_kind of RestartCause { Lost, Left, Stalled, Differed }
    LOSS_NOTICES = loss_notice_kind of LossNotice { Exit, Silence, Lease, Agent, Link, Stall }
    AVOID_CAUSES = avoid_cause_kind of AvoidCause { Unreachable, Hung, Class, Slow }
    STRAGGLER_CAUSES = straggler_cause_kind of StragglerCause { Compute, Data, Network }
    GROWTH_FAILURES = growth_failure_kind of GrowthFailure { Lost, Late, Slow }
    EXIT_CAUSES = exit_cause_kind of ExitCause { Left, Status, Signal, Killed, NotStarted, Silent, Failed, DeviceLost }
    CODE_ENDED_AT = code_ended_kind of CodeEndedAt { Start, Step }
    SAMPLE_SHAPES = sample_shape_kind of SampleShape { Classified, Tokens }
    MODELS = model_kind of ModelSpec { Mlp, Cnn, Gpt, Torch, Command, Synthetic }
    LENGTHS = length_kind of Length { Epochs, Steps }
    SHUFFLES = shuffle_kind of Shuffle { Blocks, Window, Full, None }
    TAILS = tail_kind of Tail { Short, Drop }
    OPTIMIZERS = optimizer_kind of OptimizerSpec { Sgd, Adamw }
    SCHEDULE_SHAPES = schedule_shape_kind of ScheduleShape { Constant, Step, Cosine, Linear }
    AGENT_MESSAGES = agent_message_kind of AgentMessage { Hello, Report, Telemetry, Heartbeat, Progress, LinkMeasured }
    CONTROLLER_MESSAGES = controller_message_kind of ControllerMessage { Orders, ReportsTaken, Heartbeat, Alive, MeasureLink }
    TO_EXECUTOR = to_executor_kind of ToExecutor { Start, Order, Leave, Stop, Trace, Deadline, Share }
    FROM_EXECUTOR = from_executor_kind of FromExecutor { Report, Telemetry, Alive, Progress, Span, LastWords }
    EXECUTOR_HOPS = executor_hop_kind of ExecutorHop { Prepare, Join, Boundary }
    PHASES = phase_kind of Phase {
        Building, Idle, Loading, Linking, Joining, Copying, Computing, Reducing, Updating, Evaluating, Saving, Still, Broken
    }
    WAITS_FOR = waits_for_kind of WaitsFor { Nothing, Peers, Store, Controller }
}

/// Every name that needs a golden line.
pub fn names_wanted() -> Vec<String> {
    let enums: [(&str, &[&str]); 42] = [
        ("Fact", FACTS),
        ("Command", COMMANDS),
        ("Report", REPORTS),
        ("EventRecord", EVENT_RECORDS),
        ("InputStream", INPUT_STREAMS),
        ("InitialSource", INITIAL_SOURCES),
        ("Demand", DEMANDS),
        ("Expected", EXPECTED),
        ("OfferMode", OFFER_MODES),
        ("Recall", RECALLS),
        ("Refusal", REFUSALS),
        ("PlanCause", PLAN_CAUSES),
        ("WaitCause", WAIT_CAUSES),
        ("LeaveCause", LEAVE_CAUSES),
        ("ReclaimCause", RECLAIM_CAUSES),
        ("AbandonCause", ABANDON_CAUSES),
        ("Verdict", VERDICTS),
        ("Fault", FAULTS),
        ("Entry", ENTRIES),
        ("StallCause", STALL_CAUSES),
        ("StallRemedy", STALL_REMEDIES),
        ("RestartCause", RESTART_CAUSES),
        ("LossNotice", LOSS_NOTICES),
        ("AvoidCause", AVOID_CAUSES),
        ("StragglerCause", STRAGGLER_CAUSES),
        ("GrowthFailure", GROWTH_FAILURES),
        ("ExitCause", EXIT_CAUSES),
        ("CodeEndedAt", CODE_ENDED_AT),
        ("SampleShape", SAMPLE_SHAPES),
        ("ModelSpec", MODELS),
        ("Length", LENGTHS),
        ("Shuffle", SHUFFLES),
        ("Tail", TAILS),
        ("OptimizerSpec", OPTIMIZERS),
        ("ScheduleShape", SCHEDULE_SHAPES),
        ("AgentMessage", AGENT_MESSAGES),
        ("ControllerMessage", CONTROLLER_MESSAGES),
        ("ToExecutor", TO_EXECUTOR),
        ("FromExecutor", FROM_EXECUTOR),
        ("ExecutorHop", EXECUTOR_HOPS),
        ("Phase", PHASES),
        ("WaitsFor", WAITS_FOR),
    ];
    let structs = [
        "CommandRecord",
        "DemandSignal",
        "ReportRecord",
        "JobSpec",
        "JobSpec with limits",
        "Progress with gradients",
        "Batch with part",
        "Orders with time left",
        "TraceContext",
        "CommandRecord with trace",
        "CommandRecord with expectation",
        "DemandSignal with trace",
        "ReportRecord with trace",
        "ReportRecord after another",
        "Batch with causes",
        "Report message with trace",
        "Orders with trace",
        "ExecutorSpan",
        "ExecutorStart with torch",
        "ExecutorStart with secrets",
        "ModelSpec with an environment",
        "Report of an agent with devices",
        "Fact of an agent with devices",
    ];
    let variants =
        enums.iter().flat_map(|(name, variants)| variants.iter().map(move |variant| format!("{name}::{variant}")));
    variants.chain(structs.map(str::to_owned)).collect()
}
