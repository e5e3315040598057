//! The cell as one machine: what it makes of inputs, of reports and of the log, and what of them is lost.
#![allow(clippy::unwrap_used)]

mod lost_inputs;
mod lost_reports;
mod machine;
mod odd_logs;
mod plans;
mod support;
mod traces;
