//! All of Ebb among faults, on virtual time.
#![allow(clippy::unwrap_used)]

mod chaos;
mod golden_log;
mod guests;
mod liveness;
mod mutants;
