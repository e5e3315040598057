//! The HTTP API as types, which the gateway answers with and clients read: requests, answers, problems, paths, headers, limits of pages. Pure.
//!
//! They are a contract of their own, as public events are: what the controller's state looks like may change, what is answered changes only by the promise
//! in `docs/http.md`. Answers are read leniently (a field that an older service leaves out has its default, a word that a newer one adds is kept), requests
//! are read strictly by the gateway. Nothing here sends, receives or decides.
//!
//! Reading order: `job.rs`, `spec.rs`, `fleet.rs`, `dataset.rs`, `tenant.rs`, `service.rs` (what there is), `problem.rs` (every refusal), `word.rs` (open lists of words),
//! `speed.rs` (how fast a job was measured to be), `forms.rs` (forms of texts), `operations.rs` (what can be asked), `document.rs` (OpenAPI), `asyncapi.rs` (streams), `agent.rs` (the same of an agent's own
//! listener).

pub mod agent;
mod asyncapi;
mod batch_range;
mod dataset;
mod document;
mod fleet;
mod forms;
pub mod headers;
mod job;
mod model;
pub mod operations;
pub mod pages;
pub mod paths;
pub mod problem;
mod service;
mod slot_type;
mod spec;
mod speed;
mod tenant;
mod word;

pub use agent::agent_openapi;
pub use asyncapi::asyncapi;
pub use dataset::{ColumnNames, Dataset, DatasetFile, DatasetLinks, Datasets, ElementType, RegisterDataset, Sample};
pub use document::openapi;
pub use events_public::{
    CloudEvent, GrowthFailure, Offers, PlanCause, RestartCause, StallCause, StallRemedy, StragglerCause, rfc3339,
};
pub use fleet::{
    DeclareFleet, DemandAhead, DemandSlo, DemandState, DemandTaken, Fleet, FleetForecast, Fleets, NameSlots,
    PublishDemand, RecallFleet, ServerSlots, Slot, SlotDevice, SlotGuest, SlotState, Slots, SlotsOfServer,
};
pub use job::{
    Batches, Checkpoint, Checkpoints, DamagedCheckpoint, DryRun, Evaluation, ExitCause, GrowthPaused, Job, JobPage,
    JobPhase, LinkedFile, Log, Logs, LossNotice, LostMember, Metrics, Outcome, PlanReason, Progress, Restart, Scaling,
    SlowLink, Stall, Straggler, UnreadableCheckpoint, WaitCause,
};
pub use model::{Device, Elastic, Model, Requirements};
pub use problem::{FieldProblem, Problem, ProblemKind};
pub use service::{BINARY, Code, CommandState, CommandStatus, EventPage, Health, Server, Undecided, UploadedModel};
pub use slot_type::{TypeTime, Types};
pub use spec::{
    CheckpointEvery, CheckpointSpec, EvaluationSpec, JobSpec, Optimizer, Retrains, Schedule, ScheduleKind, Shuffle,
    ShuffleWord, ShuffledBlocks, Tail, Workers,
};
pub use speed::Speed;
pub use tenant::{SetQuota, Tenant, Tenants};
pub use word::Word;
