//! Recorded jobs under a policy: what becomes of them on a cluster, by discrete events on virtual time around the real controller core.
//!
//! The core is that of production: it decides, its facts are folded, its policies plan, its cheap invariants are checked after every moment.
//! What stands around it is a model: executors start, come together, step, copy, save and leave in the times of [`Costs`], and a step takes
//! what the job's [`Curve`] says. Between steps nothing happens, so a job of a week costs as many events as one of a minute. (That the real
//! machines around the core do what these models do is for the detailed mode, [`detailed`], which runs the same setup in `loadtest/world`.)
//!
//! No clock, no I/O, no hash order: the same setup gives the same bytes. Time is measured by whoever runs it.
//!
//! Reading order: [`setup`] (all that a run follows from), [`trace`] (jobs from files), [`imported`] (jobs from Ebb's own log), [`generate`] (jobs from chance), [`deadlines`], [`mod@slice`] (parts of a recording), [`curve`], [`pollux`] and [`goodput`], [`costs`], [`information`] (what policies are told), `guarantees.rs` (what quotas guarantee), `world.rs` (the turn of events),
//! `members.rs` and `agents.rs` (the models), [`tally`] (what is counted), [`outcome`] (what is said of it), [`paired`] (what is said of several seeds), [`report`] (the same as a page with pictures), [`papers`] (results of papers as named set-ups), [`questions`] (what an operator asks, as several runs), [`live`] (the same jobs on a running service).

pub mod cluster;
pub mod costs;
pub mod curve;
pub mod deadlines;
pub mod detailed;
pub mod generate;
pub mod goodput;
pub mod imported;
pub mod information;
pub mod live;
pub mod outcome;
pub mod paired;
pub mod papers;
pub mod pollux;
pub mod questions;
pub mod report;
pub mod setup;
pub mod sharing;
pub mod slice;
pub mod table;
pub mod tally;
pub mod trace;

mod agents;
mod guarantees;
mod job;
mod leaving;
mod members;
mod queue;
mod random;
mod rounds;
mod updates;
mod world;

pub use cluster::{Cluster, Group};
pub use costs::Costs;
pub use curve::{Curve, Tables};
pub use deadlines::Deadlines;
pub use generate::Generator;
pub use information::Information;
pub use outcome::{Measured, Outcome};
pub use report::Report;
pub use setup::{Demand, Failures, Setup, SetupError};
pub use table::TableError;
pub use trace::{Format, TraceJob, Work};
pub use world::{BEGIN, run, run_with_sizes};
