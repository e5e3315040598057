//! What every part around the pure machines needs and none should write again: an error with its causes as text ([`Chain`]), the
//! wall clock as the log knows it ([`wall_clock`]), and pauses that grow between attempts ([`Pauses`]).
//!
//! Nothing here knows what Ebb does; a pure crate has no use for it.

mod chain;
mod clock;
mod pauses;

pub use chain::Chain;
pub use clock::wall_clock;
pub use pauses::Pauses;
