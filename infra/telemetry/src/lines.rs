//! Log lines on standard error, as text for people or as JSON for programs. A line that is written within a span says which, and has the fields
//! of the log's own spans (`tracing`'s: what a request is called) that it is written in.

use crate::hop::of_line;
use serde_json::{Deserializer, Map, Value};
use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::SystemTime;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::{DefaultFields, Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// Its name on the command line and in the environment.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }
}

impl FromStr for LogFormat {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = [LogFormat::Text, LogFormat::Json].into_iter().find(|format| format.name() == text);
        known.ok_or_else(|| format!("the log format `{text}` is not known: expected text or json"))
    }
}

/// Writes events, and the fields of spans, in a format.
#[derive(Clone)]
pub(crate) struct Lines {
    format: LogFormat,
    text: Format<Full>,
}

impl Lines {
    pub fn new(format: LogFormat) -> Self {
        Self { format, text: Format::default() }
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if self.format == LogFormat::Json {
            return writeln!(to, "{}", Value::Object(object(event, of_spans(context), SystemTime::now())));
        }
        if let Some(trace) = of_line() {
            write!(to, "{trace} ")?;
        }
        self.text.format_event(context, to, event)
    }
}

impl<'w> FormatFields<'w> for Lines {
    fn format_fields<R: RecordFields>(&self, mut to: Writer<'w>, fields: R) -> fmt::Result {
        if self.format == LogFormat::Json {
            let mut map = Map::new();
            fields.record(&mut Fields(&mut map));
            return write!(to, "{}", Value::Object(map));
        }
        DefaultFields::new().format_fields(to, fields)
    }
}

/// The fields of the spans that an event is in, the innermost last: as [`Lines`] wrote them, one object after the other.
fn of_spans<S, N>(context: &FmtContext<'_, S, N>) -> Map<String, Value>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    let mut all = Map::new();
    for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
        if let Some(written) = span.extensions().get::<FormattedFields<N>>() {
            all.extend(Deserializer::from_str(&written.fields).into_iter::<Map<String, Value>>().flatten().flatten());
        }
    }
    all
}

/// An event as JSON.
fn object(event: &Event<'_>, mut line: Map<String, Value>, now: SystemTime) -> Map<String, Value> {
    let metadata = event.metadata();
    line.insert("time".to_owned(), humantime::format_rfc3339_micros(now).to_string().into());
    line.insert("level".to_owned(), metadata.level().as_str().into());
    line.insert("target".to_owned(), metadata.target().into());
    event.record(&mut Fields(&mut line));
    if let Some(trace) = of_line() {
        line.insert("trace_id".to_owned(), hexadecimal(&trace.trace()).into());
        line.insert("span_id".to_owned(), hexadecimal(&trace.span()).into());
    }
    line
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to memory cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

struct Fields<'a>(&'a mut Map<String, Value>);

impl Fields<'_> {
    fn put(&mut self, field: &Field, value: Value) {
        self.0.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is written in a format by `work`, of warnings and what is worse.
    fn written(format: LogFormat, work: impl FnOnce()) -> String {
        let kept = Kept::default();
        let (writer, lines) = (kept.clone(), Lines::new(format));
        let subscriber = tracing_subscriber::fmt().with_ansi(false).fmt_fields(lines.clone()).event_format(lines);
        let subscriber = subscriber.with_max_level(tracing::Level::WARN).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, work);
        String::from_utf8(kept.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_line_has_the_fields_of_the_spans_it_is_written_in() {
        let work = || {
            let outer =
                tracing::error_span!("request", request_id = "req-1", slot = 2_u64, late = tracing::field::Empty);
            outer.record("late", true);
            outer.in_scope(|| {
                tracing::error_span!("part", part = 7_u64).in_scope(|| tracing::warn!(slot = 3_u64, "look"))
            });
        };
        let line: Value = serde_json::from_str(&written(LogFormat::Json, work)).unwrap();
        let told = ["message", "request_id", "part", "late", "slot"].map(|name| line[name].clone());
        assert_eq!(told, ["look".into(), "req-1".into(), 7.into(), true.into(), Value::from(3)], "{line}");
        let text = written(LogFormat::Text, work);
        assert!(text.contains("request_id=\"req-1\"") && text.contains("look"), "{text}");
    }

    #[test]
    fn a_line_of_json_is_one_object_whatever_is_said() {
        let text = written(LogFormat::Json, || {
            tracing::warn!(slot = 3_u64, reason = "two\nlines and \"quotes\"", "look at it");
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&line["level"], &line["message"], &line["slot"]),
            (&"WARN".into(), &"look at it".into(), &3.into())
        );
        assert!(line["reason"].as_str().unwrap().contains('\n') && line.get("trace_id").is_none());
    }
}
