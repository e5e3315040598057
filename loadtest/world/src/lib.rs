//! All of Ebb in one deterministic simulation. The real machines (the cell, the agent, the executor's member, the gateway's call) run together
//! on virtual time, on a network, a log and a store that fail; a seed is a whole run.
//!
//! First safety: faults of every kind, in any number, and nothing wrong may ever be done. Then liveness: at a moment the faults of a *core*
//! end (log, store, one controller, some servers), the rest stays broken, and every job has to go on within a time that is computed.
//!
//! No clock, no threads, no hash order, no I/O: the same schedule gives the same run, event for event, on every machine.
//!
//! Reading order: [`schedule`] (what is done to a world), [`world`] (hosts, processes, the turn of events), `cell.rs`, `agent.rs`, `executor.rs`,
//! `gateway.rs` (one adapter for each machine), [`groups`] (servers and jobs that are not alike), `net.rs`, `log.rs`, `store.rs`, `people.rs`, `acts.rs`, [`checks`], `calm.rs`, `ends.rs`, `elsewhere.rs`, `slowed.rs` and
//! `replay.rs` (what has to be true),
//! [`weather`] (schedules from seeds), [`mutants`] (defects that have to be found), [`mod@run`] and [`mod@shrink`].

// Fields and variants of the world's own parts say what they are by their names.
#![allow(missing_docs)]

pub mod bus;
pub mod chaos;
pub mod checks;
pub mod foreseen;
pub mod groups;
pub mod mutants;
pub mod numbers;
pub mod phase;
pub mod random;
pub mod run;
pub mod schedule;
pub mod shrink;
pub mod slow_links;
pub mod time;
pub mod two_types;
pub mod weather;
pub mod world;

mod acts;
mod agent;
mod calm;
mod cell;
mod elsewhere;
mod ends;
mod executor;
mod expected;
mod gateway;
mod log;
mod losses;
mod net;
mod people;
mod replay;
mod slowed;
mod store;

pub use chaos::{Found, Tally};
pub use checks::Finding;
pub use mutants::{Mutant, Mutants};
pub use run::{Outcome, run};
pub use schedule::Schedule;
pub use shrink::shrink;
