//! The envelope of a public event: a CloudEvent in structured JSON form. The pair (`source`, `id`) is one event and no other; a repeat carries it again.

use crate::{JOB_PROGRESS, JobProgress, PublicEvent};
use events_schema::trace::TRACEPARENT;
use events_schema::{Cell, Generation, Offset, TimeMs, TraceContext};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;

/// A CloudEvent in structured JSON form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CloudEvent {
    /// Always `1.0`.
    pub specversion: Cow<'static, str>,
    /// `OFFSET-INDEX` of the fact: the cursor of the event over HTTP.
    pub id: String,
    /// `/ebb/INSTALLATION/cells/CELL`: with `id` it is unique among all events of all installations.
    pub source: String,
    /// For example `dev.ebb.job.accepted.v1`.
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    /// The job, fleet, dataset, slot or server it is about.
    pub subject: String,
    /// RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
    /// Always `application/json`.
    pub datacontenttype: Cow<'static, str>,
    /// As the JSON Schema of the type says.
    pub data: Value,
}

/// The place of a fact: the offset of its batch in `events`, and its index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FactPosition {
    /// Offset of the batch's (last) record.
    pub offset: Offset,
    /// Place within the batch.
    pub index: u32,
}

impl std::str::FromStr for FactPosition {
    type Err = NotAPosition;

    fn from_str(text: &str) -> Result<Self, NotAPosition> {
        let number = |text: &str| if text.bytes().all(|c| c.is_ascii_digit()) { text.parse().ok() } else { None };
        let (offset, index) = text.split_once('-').ok_or(NotAPosition)?;
        let index = number(index).and_then(|index: u64| u32::try_from(index).ok());
        Ok(Self { offset: Offset(number(offset).ok_or(NotAPosition)?), index: index.ok_or(NotAPosition)? })
    }
}

/// A text that is no event's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAPosition;

impl std::fmt::Display for FactPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.offset, self.index)
    }
}

impl CloudEvent {
    /// The envelope of what a fact said. `installation` tells its log from all others.
    #[must_use]
    pub fn new(installation: u64, cell: Cell, position: FactPosition, at: TimeMs, event: &PublicEvent) -> Self {
        Self {
            specversion: "1.0".into(),
            id: position.to_string(),
            source: source(installation, cell),
            kind: event.kind().into(),
            subject: event.subject().to_owned(),
            time: rfc3339(at),
            datacontenttype: "application/json".into(),
            data: event.data(),
        }
    }

    /// The envelope of a job's progress, which stands in no log: its id names the job, the membership and the step.
    #[must_use]
    pub fn progress(installation: u64, cell: Cell, generation: Generation, at: TimeMs, progress: &JobProgress) -> Self {
        Self {
            specversion: "1.0".into(),
            id: format!("progress-{}-{generation}-{}", progress.job, progress.step),
            source: source(installation, cell),
            kind: JOB_PROGRESS.into(),
            subject: progress.job.clone(),
            time: rfc3339(at),
            datacontenttype: "application/json".into(),
            data: serde_json::to_value(progress).unwrap_or(Value::Null),
        }
    }
}

/// The headers of a Kafka record that name the span that led to its event, if one is known: the one that instrumented clients of Kafka look for, and the
/// extension attribute of CloudEvents.
pub const TRACE_HEADERS: [&str; 2] = [TRACEPARENT, "ce_traceparent"];

impl CloudEvent {
    /// Its attributes as headers of a Kafka record, by the binary mode of the CloudEvents binding, and the span that led to it.
    #[must_use]
    pub fn headers(&self, trace: Option<TraceContext>) -> Vec<(&'static str, String)> {
        let mut headers = vec![
            ("ce_specversion", self.specversion.to_string()),
            ("ce_id", self.id.clone()),
            ("ce_source", self.source.clone()),
            ("ce_type", self.kind.to_string()),
            ("ce_subject", self.subject.clone()),
            ("ce_time", self.time.clone()),
            ("content-type", self.datacontenttype.to_string()),
        ];
        headers.extend(trace.into_iter().flat_map(|trace| TRACE_HEADERS.map(|name| (name, trace.to_string()))));
        headers
    }
}

fn source(installation: u64, cell: Cell) -> String {
    format!("/ebb/{installation:016x}/cells/{cell}")
}

/// A time as people and JSON read it, in UTC with milliseconds.
#[must_use]
pub fn rfc3339(at: TimeMs) -> String {
    /// 9999-12-31: later times are shown as this one.
    const LAST_MS: u64 = 253_402_300_799_999;
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(at.0.min(LAST_MS));
    humantime::format_rfc3339_millis(time).to_string()
}
