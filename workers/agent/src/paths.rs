//! Paths of the agent's own listener, in this file alone: as its router and its clients know them.

/// What is on its slots.
pub const SLOTS: &str = "/v1/slots";
/// Take slots back.
pub const TAKE_BACK: &str = "/v1/take-back";
