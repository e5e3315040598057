//! The same jobs on a running service: what its events say became of them, in the figures of a simulated run, so that both can be put beside
//! each other. Who runs such a replay gives the events (`infra/ebb/src/replay.rs`); here is what they mean.
//!
//! The simulator's models are told what the live run measured: how long processes start, come together and end, and how long steps take
//! ([`Moves`]). What is left of an error is then of scheduling, and of what the models leave out.
//!
//! Reading order: [`Observer`] (events become a tally and outcomes), [`Moves`] (what they say of costs), [`compared`] (both runs beside each other).

mod compare;
mod moves;
mod observe;
mod page;

pub use compare::{LEFT_OUT, compared, table};
pub use moves::{Moves, gradient_ms};
pub use observe::{LiveFleet, Observed, Observer};
pub use page::{NoReplay, Replayed, section};
