//! One cell's controller as a pure machine: `handle(now, In) -> Vec<Out>`. It decides what to read, append, tell agents and
//! delete, when to take a cell over and when to stand down; whoever drives it has the log, the streams, the store and the time.
//!
//! What it promises. Nothing leaves before the log has acknowledged what it derives from. Only the controller whose claim is
//! the latest has any effect; one that was replaced drops its state and ends. An append whose outcome is unknown is found out
//! by reading, never guessed. An input that cannot be read or breaks the state is put on record and passed over. Replaying the
//! log gives the live state. No input stream starves another. Nobody is given up, and no loan renewed, while the log is unwell.
//!
//! Pure: no I/O, no clock, no chance, no hash order. Time is the monotonic milliseconds of each call; the wall clock is read
//! once, at the start. A plan in the midst learns of what presses from whoever drives the machine (`CellMachine::interrupted_by`).
//!
//! Reading order: `message.rs` (what goes in and out), `machine.rs` (the state as the log tells it is `controller/fold`), `take_over.rs`,
//! `lead.rs`, `intake.rs` and `pressing.rs` (one batch), `outbox.rs` (what comes of an input), `links.rs`, `reports.rs`, `presence.rs`, `health.rs`, `clock.rs`, `deletions.rs`,
//! `checks.rs`, `end.rs`, `note.rs`.

mod checks;
mod clock;
mod deletions;
mod end;
mod health;
mod intake;
mod lead;
mod links;
mod machine;
mod message;
mod note;
mod outbox;
mod presence;
mod pressing;
mod reports;
mod take_over;

pub use controller_fold::{Claimant, Fold, Positions};
pub use end::{CellEnd, CellFailure};
pub use machine::CellMachine;
pub use message::{AppendFailure, Attempt, CellConfig, Committed, In, LinkEnd, LinkId, Out, ReadFailure, Ticket};
pub use note::{Note, Urgency};
pub use pressing::{message_presses, record_presses};
