//! An executor process for this crate's tests: exactly [`workers_executor::run`], with its log on standard error.

use std::fmt::Debug;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use workers_executor::collective::Memory;

/// More than one, so that the tests see ranks that are computed beside others.
const THREADS: usize = 2;

/// Writes events as lines; spans are not used.
struct Lines;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("workers_")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} {}", std::process::id(), event.metadata().level()));
        event.record(&mut line);
        eprintln!("{}", line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn main() -> std::process::ExitCode {
    if std::env::var_os("EXECUTOR_LOG").is_some() {
        // Fails only if one is set, and none is.
        let _ = tracing::subscriber::set_global_default(Lines);
    }
    match workers_executor::run(|_| {}, Memory::Lent, THREADS) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                text += &format!(": {cause}");
                source = cause.source();
            }
            eprintln!("{} {text}", std::process::id());
            std::process::ExitCode::FAILURE
        }
    }
}
