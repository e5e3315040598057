//! One fact of every kind, those whose later fields are filled, and those that say what was judged.

use super::*;

/// One fact of every kind.
pub fn facts() -> Vec<Fact> {
    use Fact::*;
    vec![
        JobAccepted {
            job: job(),
            tenant: tenant(),
            command: command_id(),
            spec: Box::new(spec()),
            body_digest: Digest([0x55; 32]),
        },
        CommandRefused {
            command: command_id(),
            subject: "digits".to_owned(),
            refusal: Refusal::InUse { by: "job-a".to_owned() },
        },
        CommandTaken { command: command_id() },
        JobSuspending { job: job() },
        JobSuspended { job: job(), attained_slot_ms: None },
        JobResumed { job: job() },
        JobCancelled { job: job() },
        JobFailed { job: job(), reason: "the dataset has 3 classes: expected 10".to_owned() },
        JobFinished { job: job(), outcome: outcome() },
        PlanAdopted {
            job: job(),
            slots: vec![slot(0), slot(1)],
            reason: reason(PlanCause::Gain, Some(WaitCause::Slots { missing: 2 })),
            from: None,
            attained_slot_ms: None,
        },
        QueueEntered { job: job(), queue: 1, promoted_slot_ms: 120_000 },
        JobExplained { job: job(), reason: reason(PlanCause::Nothing, Some(WaitCause::Offers)) },
        ExecutorAssigned { executor: executor(), slot: slot(1) },
        ExecutorReady {
            executor: executor(),
            address: "127.0.0.1:4007".to_owned(),
            class: None,
            replica_bytes: None,
            gradient_bytes: None,
        },
        ExecutorLeaving {
            executor: executor(),
            deadline: TimeMs(1_770_000_000_000),
            cause: LeaveCause::Reclaim,
            verdict: None,
        },
        ExecutorGone {
            executor: executor(),
            slot: slot(1),
            exit: ExitCause::Signal(9),
            verdict: None,
            awaited_until: None,
        },
        GenerationProposed { job: job(), proposal: proposal() },
        GenerationActive { job: job(), generation: Generation(4), step: Step(101), pause_us: 1_500 },
        GenerationAbandoned { job: job(), generation: Generation(5), cause: AbandonCause::MemberLost, verdict: None },
        MemberDeparted {
            job: job(),
            generation: Generation(4),
            executor: executor(),
            leader: ExecutorId { job: job(), number: 8 },
            step: Step(102),
        },
        CheckpointAccepted { job: job(), checkpoint: checkpoint() },
        CheckpointRetired { job: job(), manifest_key: "jobs/a/checkpoints/50/manifest".to_owned() },
        JobRestarted { job: job(), from: Step(100), cause: None },
        Evaluated { job: job(), step: Step(150), metrics: metrics() },
        DatasetRegistered { dataset: dataset() },
        DatasetRemoved { dataset: DatasetName::parse("digits").unwrap() },
        FleetDeclared {
            fleet: fleet(),
            slots: vec![slot(0), slot(300)],
            offers: OfferMode::ByDemand,
            reclaim_deadline_ms: 20_000,
        },
        DemandAccepted { fleet: fleet(), sequence: 1_770_000_000_001, needed: 3, forecast: None },
        FleetRecalled { fleet: fleet(), slots: Recall::Slots(2) },
        FleetReleased { fleet: fleet() },
        QuotaSet { tenant: tenant(), quota_slots: Some(300) },
        SignalsRefused { fleet: fleet(), offset: Offset(400), count: 2, reason: "no number".to_owned() },
        SlotsOffered { fleet: fleet(), slots: vec![slot(2)] },
        SlotBorrowed { slot: slot(2), fleet: None, job: None },
        SlotReclaimed {
            slot: slot(2),
            deadline: TimeMs(1_770_000_020_000),
            cause: ReclaimCause::Direct,
            fleet: None,
            job: None,
            asked_at: None,
        },
        SlotReturned { slot: slot(2), fleet: None, took_ms: None },
        SlotQuarantined { slot: slot(2), fleet: None, reason: "9 MiB".to_owned() },
        SlotRecovered { slot: slot(2), fleet: None },
        AgentJoined {
            server: server(),
            incarnation: u64::MAX,
            slots: 8,
            class: Digest([0x66; 32]),
            address: "http://10.0.0.1:7002".to_owned(),
            devices: Vec::new(),
            guests: false,
            slot_type: None,
        },
        AgentGone { server: server() },
        ReportsTaken { server: server(), incarnation: 12, through: 99 },
        InputRefused {
            stream: "commands".to_owned(),
            offset: Offset(77),
            reason: "not a record of this stream".to_owned(),
        },
        PeersMissing {
            job: job(),
            generation: Generation(4),
            by: executor(),
            peers: vec![ExecutorId { job: job(), number: 8 }],
            begun: true,
        },
        ReplicaHeld { executor: executor(), step: Step(101) },
        GenerationStepped {
            job: job(),
            generation: Generation(4),
            step: Step(102),
            first_step_us: 21_000,
            usual_step_us: Some(17_600),
            members: None,
            stride: Stride::ONE,
        },
        JobStalled {
            job: job(),
            step: Step(102),
            cause: StallCause::Unit,
            blamed: vec![Blamed { executor: executor(), rank: Some(Rank(2)) }],
            remedy: StallRemedy::WithoutBlamed,
            anew: None,
        },
        SlotAvoided { job: job(), slot: slot(1), until: TimeMs(1_770_000_060_000), cause: AvoidCause::Hung },
        GrowthPaused { job: job(), until: TimeMs(1_770_000_060_000), executor: executor(), cause: GrowthFailure::Lost },
        PlanFailed { policy: "ebb".to_owned(), reason: "index out of bounds".to_owned() },
        PolicyChosen { policy: "fifo".to_owned(), assumed_speeds: None, forecast_day_ms: None, fold_version: None },
        ServerForgotten { server: server() },
        JobScaled { job: job(), from: 4, to: 1, cause: PlanCause::Reclaimed, took_ms: 31, pause_us: Some(2_000) },
        ExecutorStuck { executor: executor(), slot: slot(1) },
        CheckpointDamaged {
            job: job(),
            generation: Generation(4),
            step: Step(100),
            object: "k".to_owned(),
            reason: "gone".to_owned(),
            instead: Step(50),
        },
        ObjectsSwept { objects: 3, bytes: 4_096 },
        CheckpointUnreadable { job: job(), generation: Generation(4), step: Step(100), reason: "use ebb 9".to_owned() },
        MemberLost { executor: executor(), slot: slot(1), noticed: LossNotice::Lease },
        ThroughputMeasured { job: job(), members: 2, step_us: 17_600, stride: Stride::ONE, spread: None },
        LinkMeasured {
            server: server(),
            from: vec![server()],
            bytes_per_s: 5_000_000,
            until: TimeMs(1_770_000_060_000),
            found: 2,
        },
        MemberStraggles { executor: executor(), slot: slot(1), unit_us: 90_000, peers_unit_us: 30_000, cause: None },
        MemberKeepsUp { executor: executor() },
        TypesMeasured { job: job(), times: super::types::times() },
        LoadMeasured { executor: executor(), busy_percent: 73 },
        ReplicasDiffered {
            job: job(),
            step: Step(100),
            minority: vec![executor()],
            slots: vec![slot(1)],
            reason: "the replica there differed".to_owned(),
            verdict: Verdict::Well,
        },
    ]
}

/// Facts whose later fields are there.
pub fn fuller_facts() -> Vec<Fact> {
    use Fact::*;
    vec![
        PlanAdopted {
            job: job(),
            slots: vec![slot(0)],
            reason: reason(PlanCause::Reclaimed, None),
            from: Some(4),
            attained_slot_ms: None,
        },
        SlotBorrowed { slot: slot(2), fleet: Some(fleet()), job: Some(job()) },
        PolicyChosen {
            policy: "ebb".to_owned(),
            assumed_speeds: None,
            forecast_day_ms: Some(86_400_000),
            fold_version: None,
        },
        SlotReclaimed {
            slot: slot(2),
            deadline: TimeMs(1_770_000_020_000),
            cause: ReclaimCause::Direct,
            fleet: Some(fleet()),
            job: Some(job()),
            asked_at: None,
        },
        SlotReturned { slot: slot(2), fleet: Some(fleet()), took_ms: Some(28) },
        SlotQuarantined { slot: slot(2), fleet: Some(fleet()), reason: "9 MiB".to_owned() },
        SlotRecovered { slot: slot(2), fleet: Some(fleet()) },
    ]
}

/// Those that say how long slots were held.
pub fn facts_of_service() -> Vec<Fact> {
    use Fact::*;
    vec![
        JobSuspended { job: job(), attained_slot_ms: Some(90_000) },
        PlanAdopted {
            job: job(),
            slots: vec![slot(0)],
            reason: reason(PlanCause::Reclaimed, None),
            from: Some(4),
            attained_slot_ms: Some(120_000),
        },
    ]
}

/// Of a slot that its fleet took back some time before.
pub fn facts_of_asked() -> Vec<Fact> {
    vec![Fact::SlotReclaimed {
        slot: slot(2),
        deadline: TimeMs(1_770_000_020_000),
        cause: ReclaimCause::Direct,
        fleet: Some(fleet()),
        job: Some(job()),
        asked_at: Some(TimeMs(1_770_000_010_000)),
    }]
}

/// That say of how many members a step is.
pub fn facts_of_sizes() -> Vec<Fact> {
    vec![
        Fact::GenerationStepped {
            job: job(),
            generation: Generation(4),
            step: Step(102),
            first_step_us: 21_000,
            usual_step_us: Some(17_600),
            members: Some(2),
            stride: Stride::ONE,
        },
        Fact::PolicyChosen {
            policy: "fifo".to_owned(),
            assumed_speeds: Some(true),
            forecast_day_ms: None,
            fold_version: None,
        },
    ]
}

/// An executor that says nothing of its lengths, as earlier builds did.
pub fn report_of_ready() -> Report {
    Report::ExecutorReady {
        executor: executor(),
        address: "127.0.0.1:4007".to_owned(),
        class: None,
        replica_bytes: None,
        gradient_bytes: None,
    }
}

/// A link that is too slow for a job.
pub fn slow_link() -> SlowLink {
    SlowLink { server: server(), bytes_per_s: 5_000_000, gradient_bytes_per_s: 35_000_000, beta_milli: 142 }
}

/// That say that a job has fewer slots because it was measured to be no slower on them.
pub fn facts_of_speed() -> Vec<Fact> {
    let (job, cause) = (job(), PlanCause::Speed);
    vec![
        Fact::PlanAdopted {
            job: job.clone(),
            slots: vec![slot(0)],
            reason: reason(cause.clone(), Some(WaitCause::Speed)),
            from: Some(2),
            attained_slot_ms: Some(120_000),
        },
        Fact::JobScaled { job, from: 2, to: 1, cause, took_ms: 31, pause_us: None },
    ]
}

pub(super) fn failure(wave: Option<Wave>) -> Verdict {
    Verdict::Failure(Failure { fault: Fault::Infrastructure, what: "it hung".to_owned(), wave })
}

/// Facts that say what they were judged to be.
pub fn judged_facts() -> Vec<Fact> {
    use Fact::*;
    let (deadline, cause) = (TimeMs(1_770_000_000_000), LeaveCause::Useless);
    let wave = Wave { in_a_row: 2, pause_until: TimeMs(1_770_000_002_000) };
    vec![
        ExecutorLeaving { executor: executor(), deadline, cause, verdict: Some(failure(Some(wave))) },
        ExecutorGone {
            executor: executor(),
            slot: slot(1),
            exit: ExitCause::Left,
            verdict: Some(Verdict::Well),
            awaited_until: Some(TimeMs(1_770_000_005_000)),
        },
        GenerationAbandoned {
            job: job(),
            generation: Generation(5),
            cause: AbandonCause::Deadline,
            verdict: Some(failure(None)),
        },
        JobStalled {
            job: job(),
            step: Step(99),
            cause: StallCause::Peers,
            blamed: Vec::new(),
            remedy: StallRemedy::Restart,
            anew: Some(false),
        },
    ]
}

/// Why a job goes back, each with what is known of it.
pub fn restart_causes() -> Vec<RestartCause> {
    let noticed = LossNotice::Exit(ExitCause::Signal(9));
    vec![
        RestartCause::Lost { executor: executor(), slot: slot(1), noticed },
        RestartCause::Left,
        RestartCause::Stalled { cause: StallCause::Unit, blamed: vec![executor()] },
        RestartCause::Differed { minority: vec![executor(), ExecutorId { job: job(), number: 8 }] },
    ]
}
