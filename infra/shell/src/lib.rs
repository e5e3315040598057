//! What every part around the pure machines needs and none should write again: an error with its causes as text ([`Chain`]), the
//! wall clock as the log knows it ([`wall_clock`]), pauses that grow between attempts ([`Pauses`]), and tasks with an owner who sees how they end
//! ([`Running`], [`Stage`]).
//!
//! Nothing here knows what Ebb does; a pure crate has no use for it.

mod chain;
mod clock;
mod pauses;
mod tasks;

pub use chain::Chain;
pub use clock::wall_clock;
pub use pauses::Pauses;
pub use tasks::{Running, Stage, TaskFailure, run_stages};
