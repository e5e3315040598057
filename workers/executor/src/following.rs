//! What an executor does for a trace: from the word of its agent until that is done. It says so to its agent, which passes it on; nothing is timed
//! while no trace is followed, and nothing is decided from it.

use events_schema::control::{ExecutorHop, ExecutorSpan};
use events_schema::{TimeMs, TraceContext};
use std::time::{Instant, SystemTime};

/// Who is told which trace log lines belong to from now on, if any: whoever writes them.
pub type TellLines = fn(Option<TraceContext>);

/// The trace that is followed now.
#[derive(Debug)]
pub struct Following {
    begun: Option<Begun>,
    tell_lines: TellLines,
}

#[derive(Debug)]
struct Begun {
    trace: TraceContext,
    wall: SystemTime,
    since: Instant,
}

impl Following {
    /// None yet.
    #[must_use]
    pub fn new(tell_lines: TellLines) -> Self {
        Self { begun: None, tell_lines }
    }

    /// What comes next from the agent follows from this.
    pub fn begin(&mut self, trace: TraceContext) {
        self.begun = Some(Begun { trace, wall: SystemTime::now(), since: Instant::now() });
        (self.tell_lines)(Some(trace));
    }

    /// It came to this; what there is to say, if it was for a trace.
    pub fn done(&mut self, hop: ExecutorHop) -> Option<ExecutorSpan> {
        let Begun { trace, wall, since } = self.begun.take()?;
        (self.tell_lines)(None);
        let from = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Some(ExecutorSpan {
            hop,
            parent: trace,
            from: TimeMs(u64::try_from(from.as_millis()).unwrap_or(u64::MAX)),
            from_us: u16::try_from(from.subsec_micros() % 1_000).unwrap_or(0),
            took_us: u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX),
        })
    }
}
