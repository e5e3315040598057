//! Log lines on standard error, as text for people or as JSON for programs. A line that is written within a span says which.

use crate::hop::current;
use serde_json::{Map, Value};
use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::SystemTime;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
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

/// Writes events in a format.
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
            return writeln!(to, "{}", Value::Object(object(event, SystemTime::now())));
        }
        if let Some(trace) = current() {
            write!(to, "{trace} ")?;
        }
        self.text.format_event(context, to, event)
    }
}

/// An event as JSON.
fn object(event: &Event<'_>, now: SystemTime) -> Map<String, Value> {
    let metadata = event.metadata();
    let mut line = Map::new();
    line.insert("time".to_owned(), humantime::format_rfc3339_micros(now).to_string().into());
    line.insert("level".to_owned(), metadata.level().as_str().into());
    line.insert("target".to_owned(), metadata.target().into());
    event.record(&mut Fields(&mut line));
    if let Some(trace) = current() {
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

    #[test]
    fn a_line_of_json_is_one_object_whatever_is_said() {
        let kept = Kept::default();
        let writer = kept.clone();
        let lines = tracing_subscriber::fmt().event_format(Lines::new(LogFormat::Json));
        let subscriber = lines.with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(slot = 3_u64, reason = "two\nlines and \"quotes\"", "look at it");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&line["level"], &line["message"], &line["slot"]),
            (&"WARN".into(), &"look at it".into(), &3.into())
        );
        assert!(line["reason"].as_str().unwrap().contains('\n') && line.get("trace_id").is_none());
    }
}
