//! Spans: what something took, and what it followed from. A hop is one stretch of work on a path that may cross processes; what crosses is
//! [`TraceContext`], as data. While nothing is exported there are none: [`NewHop::begin`] looks at one flag and gives nothing.

use events_schema::TraceContext;
use opentelemetry::trace::{
    FutureExt, Link, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId,
    TraceState, Tracer,
};
use opentelemetry::{Context, KeyValue, Value, global};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::SystemTime;

/// Name of what makes the spans.
pub(crate) const SCOPE: &str = "ebb";

static ON: AtomicBool = AtomicBool::new(false);

/// Whether spans go anywhere.
#[must_use]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

pub(crate) fn turn(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

/// What a hop is to the one it follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HopKind {
    /// A part of it.
    Internal,
    /// Its request, answered.
    Server,
    /// A record written.
    Producer,
    /// A record or message taken.
    Consumer,
}

/// A hop about to begin.
#[derive(Debug, Clone)]
pub struct NewHop<'a> {
    name: Cow<'static, str>,
    kind: HopKind,
    parent: Option<TraceContext>,
    links: &'a [TraceContext],
    from: Option<SystemTime>,
}

impl<'a> NewHop<'a> {
    /// With a name of a fixed set: what varies is an attribute.
    #[must_use]
    pub fn new(name: impl Into<Cow<'static, str>>, kind: HopKind) -> Self {
        Self { name: name.into(), kind, parent: None, links: &[], from: None }
    }

    /// What it follows from; otherwise it begins a trace.
    #[must_use]
    pub fn after(self, parent: Option<TraceContext>) -> Self {
        Self { parent, ..self }
    }

    /// What else it follows from.
    #[must_use]
    pub fn beside(self, links: &'a [TraceContext]) -> Self {
        Self { links, ..self }
    }

    /// When it began, if that is over.
    #[must_use]
    pub fn since(self, from: SystemTime) -> Self {
        Self { from: Some(from), ..self }
    }

    /// Begins it; nothing while nothing is exported.
    #[must_use]
    pub fn begin(self) -> Option<Hop> {
        if !is_on() {
            return None;
        }
        let mut builder = SpanBuilder::from_name(self.name).with_kind(match self.kind {
            HopKind::Internal => SpanKind::Internal,
            HopKind::Server => SpanKind::Server,
            HopKind::Producer => SpanKind::Producer,
            HopKind::Consumer => SpanKind::Consumer,
        });
        if let Some(from) = self.from {
            builder = builder.with_start_time(from);
        }
        if !self.links.is_empty() {
            let links = self.links.iter().map(|link| Link::with_context(remote(link))).collect();
            builder = builder.with_links(links);
        }
        let root = Context::new();
        let before = match self.parent {
            Some(parent) => root.with_remote_span_context(remote(&parent)),
            None => root,
        };
        let span = global::tracer(SCOPE).build_with_context(builder, &before);
        Some(Hop(Context::new().with_span(span)))
    }
}

fn remote(context: &TraceContext) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(context.trace()), SpanId::from_bytes(context.span()));
    SpanContext::new(trace, span, TraceFlags::new(context.flags()), true, TraceState::default())
}

/// A hop that has begun. It ends when it is dropped, or earlier when that is said.
#[derive(Debug, Clone)]
pub struct Hop(Context);

impl Hop {
    /// What follows from it carries this; nothing if nobody keeps the trace.
    #[must_use]
    pub fn context(&self) -> Option<TraceContext> {
        of(self.0.span().span_context())
    }

    /// Says something about it.
    pub fn set(&self, key: &'static str, value: impl Into<Value>) {
        self.0.span().set_attribute(KeyValue::new(key, value.into()));
    }

    /// It did not come to what it was for.
    pub fn fail(&self, why: impl Into<Cow<'static, str>>) {
        self.0.span().set_status(Status::error(why));
    }

    /// It ends now.
    pub fn end(self) {
        self.0.span().end();
    }

    /// It ended then.
    pub fn end_at(self, end: SystemTime) {
        self.0.span().end_with_timestamp(end);
    }

    /// Runs something within it: [`current`] gives its context there, and log lines carry it.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let _attached = self.0.clone().attach();
        work()
    }

    /// The same of work that waits.
    pub async fn around<T>(&self, work: impl Future<Output = T>) -> T {
        work.with_context(self.0.clone()).await
    }
}

/// Runs something within a hop of which only this is known, for what follows from it in another process, say: log lines carry it.
pub fn within<T>(hop: Option<TraceContext>, work: impl FnOnce() -> T) -> T {
    let Some(hop) = hop.filter(|_| is_on()) else { return work() };
    let _attached = Context::new().with_remote_span_context(remote(&hop)).attach();
    work()
}

static FOLLOWED: RwLock<Option<TraceContext>> = RwLock::new(None);

/// Lines of this whole process belong to a trace from now on, or to none: of one that follows one thing at a time and exports nothing itself.
pub fn follow(hop: Option<TraceContext>) {
    *FOLLOWED.write().unwrap_or_else(PoisonError::into_inner) = hop;
}

/// What a log line belongs to that is written here and now.
pub(crate) fn of_line() -> Option<TraceContext> {
    current().or_else(|| *FOLLOWED.read().unwrap_or_else(PoisonError::into_inner))
}

/// The hop that this code runs within, if there is one.
#[must_use]
pub fn current() -> Option<TraceContext> {
    if !is_on() {
        return None;
    }
    Context::map_current(|context| of(context.span().span_context()))
}

fn of(context: &SpanContext) -> Option<TraceContext> {
    let (trace, span) = (context.trace_id().to_bytes(), context.span_id().to_bytes());
    TraceContext::new(trace, span, context.trace_flags().to_u8()).ok().filter(|_| context.is_sampled())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_nothing_is_exported_there_are_no_hops() {
        assert!(!is_on());
        assert!(NewHop::new("decide", HopKind::Consumer).begin().is_none());
        assert_eq!(current(), None);
    }
}
