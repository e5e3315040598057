//! The HTTP API of an agent's own listener, as types: what a fleet asks a server directly when gateway, controller and log are gone. Its document is
//! `docs/agent-openapi.json`, under the same promise as the gateway's. Pure.

use crate::document::{problem_answer, request, shown};
use crate::forms::{ExecutorName, Name, SlotName};
use crate::problem::{Problem, kinds};
use crate::word::{Word, words};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Paths of the listener, as its router and its clients know them.
pub mod paths {
    pub use crate::paths::{HEALTHZ, METRICS};
    /// What is on its slots.
    pub const SLOTS: &str = "/v1/slots";
    /// Take slots back.
    pub const TAKE_BACK: &str = "/v1/take-back";
}

/// Time executors get when the caller names none.
pub const TAKE_BACK_DEADLINE_MS: u64 = 5_000;

/// Longest time a caller may give: the length of a lease, after which slots come back by themselves.
pub const TAKE_BACK_DEADLINE_MS_MAX: u64 = 600_000;

/// Takes slots back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TakeBack {
    /// By their numbers or names, each once or more often.
    #[schemars(length(min = 1))]
    pub slots: Vec<SlotOfAgent>,
    /// Time until executors on them are killed; 5000 if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 600_000))]
    pub deadline_ms: Option<u64>,
}

/// A slot of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SlotOfAgent {
    /// Its number there.
    Number(u16),
    /// `SERVER/INDEX`, or its number as a text.
    Name(String),
}

/// Slots that are their fleet's again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FreedSlots {
    /// All that were asked for.
    pub slots: Vec<FreedSlot>,
}

/// A slot that is its fleet's again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FreedSlot {
    /// `SERVER/INDEX`.
    #[schemars(with = "SlotName")]
    pub slot: String,
    /// Always true: the answer waits until it is.
    pub free: bool,
    /// From the request until its process was reaped, in milliseconds.
    pub elapsed_ms: u64,
    /// Whether its executor had to be killed.
    pub killed: bool,
}

/// What is on the slots of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AgentSlots {
    /// The server's name.
    #[schemars(with = "Name")]
    pub server: String,
    /// All its slots, by number.
    pub slots: Vec<AgentSlot>,
}

/// A slot as its agent sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AgentSlot {
    /// `SERVER/INDEX`.
    #[schemars(with = "SlotName")]
    pub slot: String,
    /// What it is used for.
    pub state: Word<AgentSlotState>,
    /// The executor on it.
    #[schemars(with = "Option<ExecutorName>")]
    pub executor: Option<String>,
    /// Its process.
    pub pid: Option<i32>,
}

/// That the agent lives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Alive {
    /// Always `ok`.
    pub status: String,
}

words! {
    /// What a slot is used for, as its agent sees it.
    AgentSlotState {
        /// Nothing is on it.
        Free = "free",
        /// An executor is on it.
        Running = "running",
        /// The executor on it was asked to leave.
        Leaving = "leaving",
        /// Its fleet took it back here.
        TakenBack = "taken_back",
        /// Its device does not give memory back, or is gone.
        Quarantined = "quarantined",
    }
}

kinds! { AgentProblemKind;
    /// No token, or another agent's.
    NoToken = 401, "no-token", "The request shows no token of this agent";
    /// The body cannot be read, or says what cannot be.
    BadRequest = 400, "bad-request", "The body is wrong";
    /// A slot that it does not have.
    NoSuchSlot = 404, "no-such-slot", "No such slot";
    /// A slot of another fleet's token.
    NotYourSlot = 403, "not-your-slot", "The slot is another fleet's";
    /// A page of another origin asks.
    ForeignOrigin = 403, "foreign-origin", "Web pages of other origins may not ask";
    /// `Host` is no name of this agent.
    UnknownHost = 421, "unknown-host", "This service is not called by this name";
    /// Too many wait.
    Busy = 429, "busy", "Too many take-backs wait already";
    /// It is going.
    Ending = 503, "ending", "The agent is ending";
    /// Slots go back, and a crash would forget that.
    NotWrittenDown = 507, "not-written-down", "The slots go back, but that is not on disk";
    /// Something does not end.
    SlotNotFree = 504, "slot-not-free", "The slot is not free";
}

/// One operation of the listener.
struct Operation {
    method: &'static str,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    /// Its content type, and what it holds.
    answer: (&'static str, SchemaOf),
    problems: &'static [AgentProblemKind],
}

/// Makes the schema of a type, or a reference to it.
type SchemaOf = fn(&mut SchemaGenerator) -> schemars::Schema;

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> schemars::Schema {
    generator.subschema_for::<T>()
}

fn operations() -> [Operation; 4] {
    use AgentProblemKind::*;
    const JSON: &str = "application/json";
    [
        Operation {
            method: "post",
            path: paths::TAKE_BACK,
            id: "takeBack",
            summary: "Take slots back; answers when they are free",
            answer: (JSON, of::<FreedSlots>),
            problems: &[NoToken, BadRequest, NoSuchSlot, NotYourSlot, Busy, Ending, NotWrittenDown, SlotNotFree],
        },
        Operation {
            method: "get",
            path: paths::SLOTS,
            id: "listSlots",
            summary: "What is on the slots of the server",
            answer: (JSON, of::<AgentSlots>),
            problems: &[NoToken, Ending],
        },
        Operation {
            method: "get",
            path: paths::HEALTHZ,
            id: "getHealth",
            summary: "Whether the agent lives",
            answer: (JSON, of::<Alive>),
            problems: &[ForeignOrigin, UnknownHost],
        },
        Operation {
            method: "get",
            path: paths::METRICS,
            id: "getMetrics",
            summary: "What the agent counts and measures, as Prometheus reads it",
            answer: ("text/plain", of::<String>),
            // Beyond this machine, unless its operator lets anyone read them.
            problems: &[NoToken, ForeignOrigin, UnknownHost],
        },
    ]
}

/// The OpenAPI document of an agent's own listener.
#[must_use]
pub fn agent_openapi() -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.meta_schema = None;
            settings.definitions_path = "/components/schemas".into();
        })
        .for_serialize()
        .into_generator();
    let mut items: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for operation in operations() {
        items
            .entry(operation.path)
            .or_default()
            .insert(operation.method.to_owned(), described(&operation, &mut generator));
    }
    let _ = generator.subschema_for::<Problem>();
    let mut schemas: Map<String, Value> =
        generator.take_definitions(true).into_iter().map(|(name, schema)| (name, shown(schema))).collect();
    schemas.insert("TakeBack".to_owned(), request("TakeBack", of::<TakeBack>));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Ebb, at an agent",
            "version": "1.0.0",
            "summary": "The direct way of a fleet to its slots, without gateway, controller and log.",
            "description": "What an agent's own listener answers. `docs/http.md` says how a fleet comes by its address and token.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "contact": {"name": "Ebb", "url": "https://ebb.dev"},
        },
        "servers": [{"url": "http://127.0.0.1:{port}", "description": "Where the agent says that it listens.", "variables": {"port": {"default": "7900"}}}],
        "tags": [{"name": "agent", "description": "A server's agent."}],
        "paths": items,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "The agent's take-back token, or one that `ebb fleet token` made for a fleet's slots."}},
        },
    })
}

fn described(operation: &Operation, generator: &mut SchemaGenerator) -> Value {
    let (kind, schema) = operation.answer;
    let mut answers: BTreeMap<String, Value> = BTreeMap::new();
    answers.insert(
        "200".to_owned(),
        json!({"description": "It is so.", "content": {kind: {"schema": schema(generator)}}}),
    );
    let statuses: BTreeSet<u16> = operation.problems.iter().map(|kind| kind.status()).collect();
    for status in statuses {
        let kinds = operation.problems.iter().filter(|kind| kind.status() == status);
        answers.insert(status.to_string(), problem_answer(kinds.map(|kind| (kind.slug(), kind.title()))));
    }
    let mut described = json!({
        "operationId": operation.id,
        "tags": ["agent"],
        "summary": operation.summary,
        "description": format!("{}.", operation.summary),
        "responses": answers,
    });
    if operation.problems.contains(&AgentProblemKind::NoToken) {
        described["security"] = json!([{"token": []}]);
    }
    if operation.method == "post" {
        let content = json!({"application/json": {"schema": {"$ref": "#/components/schemas/TakeBack"}}});
        described["requestBody"] = json!({"required": true, "content": content});
    }
    described
}
