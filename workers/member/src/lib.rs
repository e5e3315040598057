//! Everything one executor decides, as one machine without I/O: [`Member::handle`] takes what happened and gives what to do.
//!
//! Pure: no clock (time is an input), no chance, no sockets, no hash order, no logging, and no numbers of a model. The machine
//! says which buffers to add, send and apply by their names (the sum of a tree node, a stretch of the whole sum, the replica);
//! what is in them belongs to whoever drives it. So production runs it over `f32` and TCP (`workers/executor`), and a simulation
//! over hashes and virtual bytes. The membership protocol inside it is `workers/session`.
//!
//! Reading order: [`event`] (what goes in and out), [`member`] (the machine), `step.rs` (one step), [`work`], `plan.rs` and [`reduce`] (which
//! sums, who gets them, and in which order), `replica.rs` and `coverage.rs` (which version is here, and its arrival), `early.rs` (what came too
//! soon), `follow.rs` and `copy_rate.rs` (how a newcomer gets the replica beside the steps, and how fast), `room.rs` (memory for it), `links.rs` and `suspicion.rs` (who is linked, who is missed), `save.rs` (checkpoints and the end), `admit.rs` (what a peer may
//! say), `leave.rs` and `meanwhile.rs` (who has to go, also while a gradient is computed), `pace.rs` (what is due by time), `meter.rs` and `progress.rs` (for eyes and for the watchdog).
//!
//! Three rules for whoever drives it:
//! 1. Outputs are performed in their order, before the next input. None of them waits for anything but [`event::Out::Compute`].
//! 2. A unit is computed at once, and its [`event::In::Done`] is the next input, but for those that [`Member::overtakes`] says do not wait for it. Before that,
//!    stretches of a gradient that are final may be told to [`Member::part`], which says what is done with them at once.
//! 3. [`event::In::Free`] is said when nothing else waits, again and again until it is answered by nothing.

pub mod event;
pub mod member;
pub mod reduce;
pub mod work;

mod admit;
mod copy_rate;
mod coverage;
mod early;
mod follow;
mod leave;
mod links;
mod meanwhile;
mod meter;
mod pace;
mod plan;
mod progress;
mod replica;
mod room;
mod save;
mod step;
mod suspicion;

pub use event::{
    Bulk, Cause, Config, Done, Evaluation, Exit, GradientFrom, In, Kind, LinkId, Need, Out, Part, Room, Saved,
    StateTransfer, Task, Unit, Written,
};
pub use follow::behind_max;
pub use meanwhile::may_overtake;
pub use member::Member;
pub use reduce::{Action, Reduction, SumOp, Unfit, chunk};
pub use save::STORE_PATIENCE_FACTOR;
