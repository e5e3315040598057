//! One cell's controller without its hands: what it knows of the log.
//!
//! Pure: no I/O, no clock, no chance. Reading order: [`fold`] (the state as the log tells it). Next on a job's path:
//! `controller/server/src/lib.rs`.

pub mod fold;

pub use fold::{Claimant, Fold, Positions};
