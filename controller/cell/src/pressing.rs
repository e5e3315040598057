//! What no plan may hold up: that a fleet needs its slots, says so by name, or has taken one at its server.
//!
//! Said of what goes into the machine, for whoever counts what waits for it, and of what it has read. Anything else waits until a plan has come to its end. Nothing
//! here knows what a signal comes to: one that gives slots presses as one that takes them.

use controller_core::Input;
use events_rule::Stream;
use events_schema::batch::{InputStream, from_bytes};
use events_schema::command::{Command, CommandRecord};
use events_schema::orders::AgentMessage;
use events_schema::report::{Report, ReportRecord};

/// Whether a record of a stream says that slots are wanted back, or may.
#[must_use]
pub fn record_presses(stream: Stream, bytes: &[u8]) -> bool {
    match stream {
        // Only the state tells whether it asks for slots.
        Stream::Demand => true,
        Stream::Commands => from_bytes(bytes).is_ok_and(|record: CommandRecord| command_presses(&record.command)),
        Stream::Reports => from_bytes(bytes).is_ok_and(|record: ReportRecord| report_presses(&record.report)),
        Stream::Events | Stream::Public => false,
    }
}

/// Whether an agent says so.
#[must_use]
pub fn message_presses(message: &AgentMessage) -> bool {
    matches!(message, AgentMessage::Report { report, .. } if report_presses(report))
}

/// Whether an input that was read says so.
pub(crate) fn input_presses(stream: InputStream, input: Option<&Input>) -> bool {
    match input {
        Some(Input::Command(record)) => command_presses(&record.command),
        Some(Input::Report(record)) => report_presses(&record.report),
        Some(Input::Demand(_)) => true,
        // As `record_presses` has it.
        None => stream == InputStream::Demand,
        Some(Input::Tick) => false,
    }
}

fn command_presses(command: &Command) -> bool {
    matches!(command, Command::ReclaimSlots { .. } | Command::RecallFleet { .. })
}

fn report_presses(report: &Report) -> bool {
    matches!(report, Report::SlotTakenBack { .. })
}
