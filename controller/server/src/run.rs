//! The one loop of a cell: gives the machine what happens, one input at a time, and does what it says. It never waits for the
//! log, an agent or the store itself; all of them answer by inputs.
//!
//! Nothing here decides. Next files: `inputs.rs` (what waits), `hands.rs` (log and store), `agents.rs` (streams), `meters.rs`, `appends.rs` and `traces.rs` (what others may see of it).
//!
//! Next on a job's path: `controller/cell/src/intake.rs`, where the machine takes inputs in.

use crate::agents::{CellSecret, Streams};
use crate::failure::ControllerEnd;
use crate::hands::Hands;
use crate::inputs::queue;
use crate::meters::Meters;
use crate::telemetry::TelemetryBoard;
use crate::traces::Traces;
use controller_cell::{Attempt, CellEnd, CellMachine, Committed, In, Note, Out, Urgency};
use controller_link::AgentConnection;
use events_log::{EventLog, Stream};
use events_schema::Cell;
use object_store::ObjectStore;
use shell::wall_clock;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What the loop is made of.
pub(crate) struct Parts {
    pub machine: CellMachine,
    pub log: Arc<dyn EventLog>,
    pub store: Arc<dyn ObjectStore>,
    pub cell: Cell,
    pub secret: CellSecret,
    pub accepted: mpsc::Receiver<AgentConnection>,
    pub committed: watch::Sender<Option<Committed>>,
    pub telemetry: TelemetryBoard,
}

/// Runs until told to end or until the machine stands down.
pub(crate) async fn run(parts: Parts, shutdown: CancellationToken) -> ControllerEnd {
    let Parts { machine, log, store, cell, secret, mut accepted, committed, telemetry } = parts;
    let (inputs, mut taker) = queue();
    let machine = machine.interrupted_by(inputs.interrupt());
    let hands = Hands::new(log, store, cell, inputs.clone());
    let streams = Streams::new(inputs, secret);
    let begun = Instant::now();
    let (meters, traces) = (Meters::new(committed.subscribe(), telemetry.clone()), Traces::default());
    let mut driver = Driver { machine, hands, streams, committed, telemetry, meters, traces, begun, wake_at: None };
    let mut next = Some(In::Start { wall: wall_clock() });
    let end = loop {
        if let Some(input) = next.take()
            && let ControlFlow::Break(end) = driver.handle(input)
        {
            break end;
        }
        if driver.wake_at.is_some_and(|at| at <= Instant::now()) {
            // What was asked for by now begins, wherever it is to run: while a plan is made, nothing else of this thread does.
            tokio::task::yield_now().await;
            if shutdown.is_cancelled() {
                break ControllerEnd::Shutdown;
            }
            driver.wake_at = None;
            next = Some(In::Wake);
            continue;
        }
        let wake_at = driver.wake_at;
        let wake = async {
            match wake_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        next = tokio::select! {
            biased;
            () = shutdown.cancelled() => break ControllerEnd::Shutdown,
            Some(connection) = accepted.recv() => Some(driver.streams.accept(connection)),
            Some(input) = taker.take() => Some(input),
            () = wake => {
                driver.wake_at = None;
                Some(In::Wake)
            }
            panic = driver.hands.panicked() => break ControllerEnd::Failed(format!("a request of the loop: {panic}")),
            panic = driver.streams.panicked() => break ControllerEnd::Failed(format!("an agent's stream: {panic}")),
        };
    };
    // Whoever waits to say something finds nobody, and ends.
    drop(taker);
    driver.streams.leave().await;
    end
}

struct Driver {
    machine: CellMachine,
    hands: Hands,
    streams: Streams,
    committed: watch::Sender<Option<Committed>>,
    telemetry: TelemetryBoard,
    meters: Meters,
    traces: Traces,
    begun: Instant,
    wake_at: Option<Instant>,
}

impl Driver {
    fn handle(&mut self, input: In) -> ControlFlow<ControllerEnd> {
        if let In::LinkClosed { link } = &input {
            self.streams.forget(*link);
        }
        self.measure(&input);
        let (begun, asked) = (Traces::begin(), Instant::now());
        let now_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let outs = self.machine.handle(now_ms, input);
        let took = asked.elapsed();
        for out in outs {
            if let Out::Append { ticket, stream, attempt, .. } = &out {
                self.meters.asked(*ticket, *stream, *attempt);
                match attempt {
                    Attempt::Decided => {
                        self.meters.decided(took);
                        self.traces.decided(*ticket, begun);
                    }
                    Attempt::First | Attempt::Again(_) if *stream == Stream::Events => self.traces.asked(*ticket),
                    Attempt::First | Attempt::Again(_) => {}
                }
            }
            self.perform(out)?;
        }
        ControlFlow::Continue(())
    }

    /// What an input says about the log, for whoever watches it.
    fn measure(&mut self, input: &In) {
        match input {
            In::Appended { ticket, .. } => {
                self.meters.acknowledged(*ticket);
                self.traces.appended(*ticket);
            }
            In::AppendFailed { ticket, failure } => self.meters.failed(*ticket, failure),
            In::End { ticket, end } => self.meters.ends(*ticket, Some(*end)),
            In::EndFailed { ticket, .. } => self.meters.ends(*ticket, None),
            _ => {}
        }
    }

    fn perform(&mut self, out: Out) -> ControlFlow<ControllerEnd> {
        match out {
            Out::Append { ticket, stream, record, .. } => self.hands.append(ticket, stream, record),
            Out::Read { ticket, stream, from, bytes_max } => self.hands.read(ticket, stream, from, bytes_max, false),
            Out::Follow { ticket, stream, from, bytes_max } => self.hands.read(ticket, stream, from, bytes_max, true),
            Out::AskEnd { ticket, stream } => {
                self.meters.looks(ticket, stream);
                self.hands.ask_end(ticket, stream);
            }
            Out::Tell { link, message } => self.streams.tell(link, message, &self.traces),
            Out::EndLink { link, cause } => self.streams.end(link, cause),
            Out::Telemetry(telemetry) => {
                self.meters.progress(&telemetry);
                self.telemetry.put(telemetry);
            }
            Out::Counted(batch) => {
                self.traces.counted(&batch);
                self.meters.counted(&batch, self.machine.violations());
            }
            Out::Delete { number, name } => self.hands.delete(number, name),
            Out::Committed(committed) => drop(self.committed.send_replace(Some(*committed))),
            Out::StandDown(end) => return ControlFlow::Break(controller_end(end)),
            Out::Note(note) => {
                self.meters.noted(&note);
                self.traces.noted(&note);
                write_down(&note);
            }
            Out::WakeAt(ms) => self.wake_at = Some(self.begun + Duration::from_millis(ms)),
        }
        ControlFlow::Continue(())
    }
}

fn controller_end(end: CellEnd) -> ControllerEnd {
    match end {
        CellEnd::Superseded { by, term } => ControllerEnd::Superseded { by, term },
        CellEnd::Failed(failure) => ControllerEnd::Failed(failure.to_string()),
    }
}

fn write_down(note: &Note) {
    match note.urgency() {
        Urgency::Info => tracing::info!("{note}"),
        Urgency::Warning => tracing::warn!("{note}"),
        Urgency::Error => tracing::error!("{note}"),
    }
}
