//! The controller as a process runs it, with agents that are played.
#![allow(clippy::unwrap_used)]

mod agents;
mod control_loop;
mod objects;
mod plans;
mod support;
mod uploads;
