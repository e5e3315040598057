//! Samples of what carries a trace.

use super::{Sample, batch, far_end, orders_with_link_keys, sample, server, slot};
use events_schema::TimeMs;
use events_schema::batch::Batch;
use events_schema::command::{CommandRecord, DemandSignal, Expected};
use events_schema::control::{ExecutorHop, ExecutorSpan};
use events_schema::orders::{AgentMessage, Orders};
use events_schema::report::{Report, ReportRecord};
use events_schema::trace::{CausedFacts, TraceContext};

pub fn trace() -> TraceContext {
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap()
}

pub fn span(hop: ExecutorHop) -> ExecutorSpan {
    ExecutorSpan { hop, parent: trace(), from: TimeMs(1_770_000_000_000), from_us: 250, took_us: 70_000 }
}

fn orders() -> Orders {
    let mut orders = orders_with_link_keys();
    orders.executors[0].trace = Some(trace());
    orders
}

/// All of them; inputs as they are without one.
pub fn all(command: CommandRecord, signal: DemandSignal, report: ReportRecord) -> Vec<Sample> {
    let trace = Some(trace());
    let causes = vec![CausedFacts { from: 0, to: 2, trace: self::trace() }];
    let taken_back = Report::SlotTakenBack { slot: slot(1), asked_ms: None, within_ms: None };
    vec![
        sample("TraceContext", &self::trace()),
        sample("CommandRecord with trace", &CommandRecord { trace, ..command.clone() }),
        sample("CommandRecord with expectation", &CommandRecord { expected: Some(Expected::Absent), ..command }),
        sample("DemandSignal with trace", &DemandSignal { trace, ..signal }),
        sample("ReportRecord with trace", &ReportRecord { trace, ..report }),
        sample("Batch with causes", &Batch { causes, ..batch() }),
        sample(
            "Report message with trace",
            &AgentMessage::Report { number: 3, at: TimeMs(5), report: taken_back, trace },
        ),
        sample("Orders with trace", &orders()),
        sample(
            "Hello with far end",
            &AgentMessage::Hello { server: server(), incarnation: 12, far_end: Some(far_end()) },
        ),
        sample("ExecutorSpan", &span(ExecutorHop::Boundary)),
    ]
}
