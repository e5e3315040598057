//! Every operation of the API: method, path, what it takes, what it answers, and with which problems. The table that the OpenAPI document and the tables of
//! `docs/http.md` are made of; a test of the gateway holds it against the router.

use crate::problem::ProblemKind::{self, *};
use crate::{
    Checkpoints, Code, CommandStatus, Dataset, DatasetLinks, Datasets, DeclareFleet, DemandTaken, DryRun, EventPage,
    Fleet, Fleets, Health, Job, JobPage, JobPhase, JobSpec, LinkedFile, Logs, NameSlots, PublishDemand, RecallFleet,
    RegisterDataset, Server, SetQuota, SlotState, Slots, Tenant, Tenants, Undecided, UploadedModel,
};
use crate::{forms, headers, pages, paths};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// Makes the schema of a type, or a reference to it.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// One operation.
pub struct Operation {
    /// `GET`, `POST`, `PUT` or `DELETE`; what answers to `GET` answers to `HEAD` too.
    pub method: &'static str,
    /// As the router knows it.
    pub path: &'static str,
    /// Its name, for generated clients.
    pub id: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// Parameters beside those in the path.
    pub parameters: Vec<Parameter>,
    /// What its body holds, by name.
    pub body: Option<(&'static str, SchemaOf)>,
    /// What it answers if nothing is wrong.
    pub answers: Vec<Answer>,
    /// What may be wrong, beside [`EVERYWHERE`].
    pub problems: Vec<ProblemKind>,
}

/// What may be wrong with any request.
pub const EVERYWHERE: &[ProblemKind] =
    &[InvalidQuery, InvalidHeader, ForeignOrigin, UnknownHost, Overloaded, TimedOut, NotReady, Incident];
/// What may be wrong with any body.
const OF_BODIES: &[ProblemKind] = &[MalformedBody, InvalidFields, UnsupportedMediaType, BodyTooLarge];
/// What may be wrong with any command.
const OF_COMMANDS: &[ProblemKind] = &[LogUnavailable, OutcomeUnknown, InputSetAside, LimitReached];

/// A parameter of the query or a header.
#[derive(Clone)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// `query` or `header`.
    pub place: &'static str,
    /// Its JSON Schema.
    pub schema: Value,
    /// What it is for.
    pub about: &'static str,
}

/// An answer.
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// When it is given.
    pub about: &'static str,
    /// Its content types, each with what it holds; none has no body.
    pub contents: Vec<(&'static str, SchemaOf)>,
    /// Headers that it has.
    pub headers: &'static [&'static str],
}

const JSON: &str = "application/json";

fn job_or_rehearsal(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [generator.subschema_for::<Job>(), generator.subschema_for::<DryRun>()]})
}

fn operation(method: &'static str, path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    let problems = if path.contains('{') { vec![InvalidId] } else { Vec::new() };
    Operation { method, path, id, summary, parameters: Vec::new(), body: None, answers: Vec::new(), problems }
}

impl Operation {
    fn with(mut self, parameters: &[Parameter]) -> Self {
        self.parameters.extend_from_slice(parameters);
        self
    }
    fn takes<T: JsonSchema>(mut self, name: &'static str) -> Self {
        self.body = Some((name, of::<T>));
        self.failing(OF_BODIES)
    }
    fn answering<T: JsonSchema>(mut self, status: u16, about: &'static str, headers: &'static [&'static str]) -> Self {
        self.answers.push(Answer { status, about, contents: vec![(JSON, of::<T>)], headers });
        self
    }
    fn answering_by(
        mut self,
        status: u16,
        about: &'static str,
        schema: SchemaOf,
        headers: &'static [&'static str],
    ) -> Self {
        self.answers.push(Answer { status, about, contents: vec![(JSON, schema)], headers });
        self
    }
    fn answering_text(mut self, about: &'static str, headers: &'static [&'static str]) -> Self {
        self.answers.push(Answer { status: 200, about, contents: vec![("text/plain", of::<String>)], headers });
        self
    }
    fn answering_empty(mut self, status: u16, about: &'static str, headers: &'static [&'static str]) -> Self {
        self.answers.push(Answer { status, about, contents: Vec::new(), headers });
        self
    }
    fn failing(mut self, problems: &[ProblemKind]) -> Self {
        self.problems.extend_from_slice(problems);
        self
    }
    /// A change that may depend on what is there.
    fn conditional(self) -> Self {
        self.with(&[header("If-Match", json!({"type": "string"}), "Only if its `ETag` is still one of these.")])
            .failing(&[PreconditionFailed])
    }
    /// A command that is durable before it is decided.
    fn commands(self) -> Self {
        self.answering::<Undecided>(
            202,
            "It is recorded for good, but nobody has decided about it yet; `Location` says where that will show.",
            &["Location", "Retry-After"],
        )
        .failing(OF_COMMANDS)
    }
}

fn query(name: &'static str, schema: Value, about: &'static str) -> Parameter {
    Parameter { name, place: "query", schema, about }
}

fn header(name: &'static str, schema: Value, about: &'static str) -> Parameter {
    Parameter { name, place: "header", schema, about }
}

fn limit() -> Parameter {
    let (least, most) = (pages::LIMIT.start(), pages::LIMIT.end());
    query(
        "limit",
        json!({"type": "integer", "minimum": least, "maximum": most, "default": pages::LIMIT_DEFAULT}),
        "Entries of the page.",
    )
}

fn cursor() -> Parameter {
    query("cursor", json!({"type": "string"}), "The `next_cursor` of the page before, unchanged.")
}

fn wide_limit() -> Parameter {
    let (least, most) = (pages::WIDE_LIMIT.start(), pages::WIDE_LIMIT.end());
    query(
        "limit",
        json!({"type": "integer", "minimum": least, "maximum": most, "default": most}),
        "Entries of the page.",
    )
}

/// Only what has this name.
fn of_name(name: &'static str, about: &'static str) -> Parameter {
    query(name, json!({"type": "string", "pattern": NAME}), about)
}

/// The first of a stretch.
fn from(name: &'static str, about: &'static str) -> Parameter {
    query(name, json!({"type": "integer", "minimum": 0}), about)
}

/// The last of a stretch.
fn to(name: &'static str, about: &'static str) -> Parameter {
    from(name, about)
}

const NAME: &str = "^[a-z0-9][a-z0-9._-]{0,62}$";

fn prefix() -> Parameter {
    query("prefix", json!({"type": "string", "minLength": 1, "maxLength": 63}), "Only those whose name begins so.")
}

fn if_none_match() -> Parameter {
    header("If-None-Match", json!({"type": "string"}), "An `ETag` of an earlier answer.")
}

fn words(all: impl Iterator<Item = &'static str>) -> Value {
    json!({"type": "string", "enum": all.collect::<Vec<_>>()})
}

fn event_parameters() -> Vec<Parameter> {
    const CURSOR: &str = "^[0-9]{1,20}-[0-9]{1,10}$";
    let (least, most) = (pages::EVENT_LIMIT.start(), pages::EVENT_LIMIT.end());
    vec![
        query(
            "from",
            json!({"type": "string", "pattern": CURSOR}),
            "Only what came after the event of this id; `0-0` is the beginning.",
        ),
        query(
            "limit",
            json!({"type": "integer", "minimum": least, "maximum": most, "default": pages::EVENT_LIMIT_DEFAULT}),
            "Events of the page; asks for a page.",
        ),
        query(
            "type",
            json!({"type": "string", "minLength": 1}),
            "Types with commas between, whole or with a `*` at the end: `job.scaled.v1,slot.*`.",
        ),
        query(
            "subject",
            json!({"type": "string", "minLength": 1, "maxLength": 256}),
            "Only what is about this job, fleet, slot, dataset or server.",
        ),
        header(
            "Last-Event-ID",
            json!({"type": "string", "pattern": CURSOR}),
            "As `from`; an `EventSource` that comes back sends it.",
        ),
    ]
}

fn events(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    let mut operation =
        operation("GET", path, id, summary).with(&event_parameters()).failing(&[LogUnavailable, CursorExpired]);
    operation.answers.push(Answer {
        status: 200,
        about: "A page (`Accept: application/json`, or with `limit`), or a stream without end: `id` is the cursor, `event` the type, `data` a CloudEvent.",
        contents: vec![(JSON, of::<EventPage>), (headers::EVENT_STREAM, of::<String>)],
        headers: &[],
    });
    operation
}

/// All of them, by what they are about.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let mut all = jobs();
    all.extend(datasets());
    all.extend(fleets());
    all.extend(tenants());
    all.extend([
        events(paths::EVENTS, "listEvents", "What happens, as a stream or by pages"),
        operation("GET", paths::COMMAND, "getCommand", "What became of a command that was answered with 202")
            .answering::<CommandStatus>(200, "What became of it.", &[]),
        operation("GET", paths::SERVER, "getServer", "What this service is").answering::<Server>(
            200,
            "Its build, cell and store.",
            &[],
        ),
        operation("GET", paths::OPENAPI, "getOpenapi", "This document").answering::<Value>(200, "OpenAPI 3.1.", &[]),
        operation("GET", paths::HEALTHZ, "getHealth", "Whether it lives").answering::<Health>(200, "It does.", &[]),
        operation("GET", paths::METRICS, "getMetrics", "What this process counts and measures, as Prometheus reads it")
            .answering_text("The text format, version 0.0.4.", &[]),
        operation("GET", paths::READYZ, "getReadiness", "Whether it can do its work, and is to stay")
            .answering::<Health>(200, "It is.", &[]),
    ]);
    all
}

fn jobs() -> Vec<Operation> {
    let name = |path, id, summary| {
        operation("POST", path, id, summary)
            .answering::<Job>(200, "The job as it is now.", &["ETag"])
            .conditional()
            .commands()
            .failing(&[UnknownJob, WrongPhase])
    };
    vec![
        operation("POST", paths::JOBS, "submitJob", "Submit a job")
            .with(&[header(
                "Idempotency-Key",
                json!({"type": "string", "minLength": 1, "maxLength": headers::IDEMPOTENCY_KEY_LEN_MAX, "pattern": "^[ -~]+$"}),
                "The same key with the same body makes one job, however often it is sent.",
            )])
            .takes::<JobSpec>("SubmitJob")
            .answering::<Job>(201, "A new job.", &["ETag", "Location"])
            .with(&[query("dry_run", json!({"type": "boolean", "default": false}), "Only say what the submit would come to.")])
            .answering_by(200, "The job that this key made before from the same body; or what a dry run found.", job_or_rehearsal, &[])
            .commands()
            .failing(&[UnknownReference, UnfitValue, KeyReused]),
        operation("GET", paths::JOBS, "listJobs", "Jobs, newest first")
            .with(&[
                limit(),
                cursor(),
                query("phase", words(JobPhase::ALL.iter().map(|phase| phase.as_str())), "Only those in this phase."),
                query("prefix", json!({"type": "string", "minLength": 1, "maxLength": 63}), "Only those whose id begins so."),
                query("name", json!({"type": "string", "minLength": 1, "maxLength": 63}), "Only those that their users call so."),
                of_name("dataset", "Only those that train on this dataset."),
                of_name("tenant", "Only those of this tenant."),
            ])
            .answering::<JobPage>(200, "A page of jobs.", &[]),
        operation("GET", paths::JOB, "getJob", "A job")
            .with(&[if_none_match()])
            .answering::<Job>(200, "The job; its weak `ETag` changes with everything but `progress` and `slot_seconds`.", &["ETag"])
            .answering_empty(304, "Nothing else has changed.", &["ETag"])
            .failing(&[UnknownJob]),
        operation("DELETE", paths::JOB, "cancelJob", "Cancel a job; its last checkpoint stays")
            .answering::<Job>(200, "The job as it is now.", &["ETag"])
            .conditional()
            .commands()
            .failing(&[UnknownJob, WrongPhase]),
        name(paths::JOB_SUSPEND, "suspendJob", "Have a job write a checkpoint and give its slots back"),
        name(paths::JOB_RESUME, "resumeJob", "Let a suspended job run again"),
        operation("GET", paths::JOB_CHECKPOINTS, "listCheckpoints", "Checkpoints of a job that count, by step")
            .with(&[
                wide_limit(),
                cursor(),
                from("from_step", "Only those of this step and later ones."),
                to("to_step", "Only those of this step and earlier ones."),
                query("newest", json!({"type": "integer", "minimum": 1}), "Of those, only so many of the newest."),
            ])
            .answering::<Checkpoints>(200, "A page of checkpoints.", &[])
            .failing(&[UnknownJob]),
        operation("GET", paths::JOB_LOGS, "listLogs", "Executors of which something is kept, and how much")
            .with(&[
                wide_limit(),
                cursor(),
                query("executor", json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}), "Only that of the executor of this number."),
                query("changed_since", json!({"type": "string", "format": "date-time"}), "Only those to which something was added at this time or later."),
            ])
            .answering::<Logs>(200, "A page of logs.", &[])
            .failing(&[UnknownJob, StoreUnavailable]),
        operation("GET", paths::JOB_LOG, "readLog", "What one executor said, from a place on")
            .with(&[query("from", json!({"type": "integer", "minimum": 0, "default": 0}), "The place of the first byte; an answer's `ebb-log-next` goes on.")])
            .answering_text("Plain text, at most 1 MiB.", &["Ebb-Log-From", "Ebb-Log-Next"])
            .failing(&[UnknownJob, UnknownLog, StoreUnavailable]),
        {
            let mut model = operation("GET", paths::JOB_MODEL, "getModel", "The final model as safetensors")
                .with(&[
                    if_none_match(),
                    header("Range", json!({"type": "string"}), "A part of it: `bytes=FIRST-LAST`, `bytes=FIRST-` or `bytes=-COUNT`."),
                    header("If-Range", json!({"type": "string"}), "The `ETag` of the file of which a part is wanted; of another one the whole is answered."),
                ])
                .failing(&[UnknownJob, ModelNotReady, ModelLost, StoreUnavailable, RangeBeyond])
                .answering_empty(304, "It is the same.", &["ETag"]);
            let file = |status, about, headers| Answer { status, about, contents: vec![("application/octet-stream", of::<forms::Bytes>)], headers };
            model.answers.push(file(200, "One safetensors file; its `ETag` is the digest of the parameters.", &["ETag", "Accept-Ranges"]));
            model.answers.push(file(206, "The part that was asked for.", &["ETag", "Accept-Ranges", "Content-Range"]));
            model
        },
        operation("GET", paths::JOB_MODEL_LINK, "linkModel", "Where the final model can be read from the object store itself")
            .answering::<LinkedFile>(200, "A link that is good for 15 minutes, for whoever has it.", &[])
            .failing(&[UnknownJob, ModelNotReady, ModelLost, NoLinks, StoreUnavailable]),
        events(paths::JOB_EVENTS, "listJobEvents", "What happens to a job, as a stream or by pages").failing(&[UnknownJob]),
    ]
}

fn code() -> Operation {
    let mut upload = operation("PUT", paths::CODE, "uploadCode", "Upload a packed folder of code")
        .answering::<Code>(201, "New code.", &[])
        .answering::<Code>(200, "The very same was there before.", &[])
        .failing(OF_BODIES)
        .failing(&[StoreUnavailable]);
    upload.body = Some(("Archive", of::<forms::Archive>));
    upload
}

fn initial() -> Operation {
    let mut upload =
        operation("PUT", paths::INITIAL, "uploadModel", "Upload a safetensors file for jobs to begin with")
            .answering::<UploadedModel>(201, "A new file.", &[])
            .answering::<UploadedModel>(200, "The very same was there before.", &[])
            .failing(OF_BODIES)
            .failing(&[StoreUnavailable]);
    upload.body = Some(("Tensors", of::<forms::Tensors>));
    upload
}

fn datasets() -> Vec<Operation> {
    vec![
        code(),
        operation("GET", paths::CODE, "getCode", "Whether code was uploaded; it is then kept for a week more")
            .answering::<Code>(200, "It was.", &[])
            .failing(&[UnknownUpload, StoreUnavailable]),
        initial(),
        operation(
            "GET",
            paths::INITIAL,
            "getUploadedModel",
            "Whether a file to begin with was uploaded; it is then kept for a week more",
        )
        .answering::<UploadedModel>(200, "It was.", &[])
        .failing(&[UnknownUpload, StoreUnavailable]),
        operation("POST", paths::DATASETS, "registerDataset", "Register a dataset")
            .takes::<RegisterDataset>("RegisterDataset")
            .answering::<Dataset>(201, "A new dataset.", &["Location"])
            .answering::<Dataset>(200, "The very same was there before.", &["Location"])
            .commands()
            .failing(&[NameTaken, InUse, DatasetUnreadable, DatasetNotAllowed, StoreUnavailable, UnfitValue]),
        operation("GET", paths::DATASETS, "listDatasets", "Datasets, by name")
            .with(&[wide_limit(), cursor(), prefix()])
            .answering::<Datasets>(200, "A page of datasets.", &[]),
        operation("GET", paths::DATASET, "getDataset", "A dataset")
            .with(&[if_none_match()])
            .answering::<Dataset>(200, "The dataset.", &["ETag"])
            .answering_empty(304, "It is the same.", &["ETag"])
            .failing(&[UnknownDataset]),
        operation(
            "GET",
            paths::DATASET_LINKS,
            "linkDataset",
            "Where a dataset's files can be read from the object store itself",
        )
        .with(&[
            wide_limit(),
            cursor(),
            from("from_number", "Only the file of this number and those behind it."),
            to("to_number", "Only the file of this number and those before it."),
        ])
        .answering::<DatasetLinks>(200, "A page of files; each link is good for 15 minutes, for whoever has it.", &[])
        .failing(&[UnknownDataset, NoLinks, DatasetUnreadable, StoreUnavailable]),
        operation("DELETE", paths::DATASET, "removeDataset", "Forget a dataset; its files stay")
            .answering_empty(204, "It is forgotten.", &[])
            .conditional()
            .commands()
            .failing(&[UnknownDataset, InUse]),
    ]
}

fn tenants() -> Vec<Operation> {
    vec![
        operation("GET", paths::TENANTS, "listTenants", "Tenants that have a quota or jobs, by name")
            .with(&[wide_limit(), cursor(), prefix()])
            .answering::<Tenants>(200, "A page of tenants.", &[]),
        operation("GET", paths::TENANT, "getTenant", "A tenant")
            .with(&[if_none_match()])
            .answering::<Tenant>(200, "The tenant; its weak `ETag` changes with its quota alone.", &["ETag"])
            .answering_empty(304, "Its quota is the same.", &["ETag"])
            .failing(&[UnknownTenant]),
        operation("PUT", paths::TENANT, "setQuota", "Say how many slots a tenant has guaranteed")
            .takes::<SetQuota>("SetQuota")
            .answering::<Tenant>(200, "The tenant as it is now.", &["ETag"])
            .conditional()
            .commands(),
        operation("DELETE", paths::TENANT, "removeQuota", "Take a tenant's quota away; its jobs stay")
            .answering_empty(204, "It has none any more.", &[])
            .conditional()
            .commands()
            .failing(&[UnknownTenant]),
    ]
}

fn fleets() -> Vec<Operation> {
    let change = |method, path, id, summary| {
        operation(method, path, id, summary)
            .answering::<Fleet>(200, "The fleet as it is now.", &["ETag"])
            .conditional()
            .commands()
    };
    vec![
        operation("GET", paths::FLEETS, "listFleets", "Fleets, by name")
            .with(&[wide_limit(), cursor(), prefix()])
            .answering::<Fleets>(200, "A page of fleets.", &[]),
        operation("GET", paths::FLEET, "getFleet", "A fleet and the state of its slots")
            .with(&[if_none_match()])
            .answering::<Fleet>(200, "The fleet.", &["ETag"])
            .answering_empty(304, "It is the same.", &["ETag"])
            .failing(&[UnknownFleet]),
        change("PUT", paths::FLEET, "declareFleet", "Declare a fleet, or declare it anew")
            .with(&[header("If-None-Match", json!({"type": "string"}), "`*`: only if there is no such fleet yet.")])
            .takes::<DeclareFleet>("DeclareFleet")
            .failing(&[NameTaken, UnknownReference, UnfitValue]),
        change("POST", paths::FLEET_OFFERS, "offerSlots", "Lend slots")
            .takes::<NameSlots>("OfferSlots")
            .failing(&[UnknownFleet, UnknownReference]),
        change("POST", paths::FLEET_RECLAIMS, "reclaimSlots", "Take slots back")
            .takes::<NameSlots>("ReclaimSlots")
            .failing(&[UnknownFleet, UnknownReference]),
        change(
            "POST",
            paths::FLEET_RECALL,
            "recallFleet",
            "Take slots back at once, and keep them whatever demand is signalled",
        )
        .takes::<RecallFleet>("RecallFleet")
        .failing(&[UnknownFleet]),
        change(
            "POST",
            paths::FLEET_RELEASE,
            "releaseFleet",
            "Let the last demand signal of a recalled fleet count again",
        )
        .failing(&[UnknownFleet]),
        operation("POST", paths::FLEET_DEMAND, "publishDemand", "Say how many of its slots a fleet needs")
            .takes::<PublishDemand>("PublishDemand")
            .answering::<DemandTaken>(200, "It counts.", &[])
            .answering::<DemandTaken>(202, "It is recorded for good, but no controller has decided about it yet.", &[])
            .failing(OF_COMMANDS)
            .failing(&[UnknownFleet, OldSignal]),
        events(
            paths::FLEET_EVENTS,
            "listFleetEvents",
            "What happens to a fleet and its slots, as a stream or by pages",
        )
        .failing(&[UnknownFleet]),
        operation("GET", paths::SLOTS, "listSlots", "Every slot: its fleet, state, job and numeric class")
            .with(&[
                wide_limit(),
                cursor(),
                of_name("fleet", "Only those of this fleet."),
                of_name("server", "Only those of this server."),
                of_name("job", "Only those that this job is on."),
                query("state", words(SlotState::ALL.iter().map(|state| state.as_str())), "Only those in this state."),
            ])
            .answering::<Slots>(200, "A page of slots.", &[]),
    ]
}
