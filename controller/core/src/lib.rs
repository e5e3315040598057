//! The pure brain of a cell: what is decided, what becomes of the state, what everybody has to do about it.
//!
//! `decide(state, at, input, policy) -> facts` (`decide_input_folded` and `plan_until` apart, for who guards against policies),
//! `state.apply(at, fact)`, `orders(state, server)`: nothing else. The live controller, the gateway's read model and the simulator
//! run this same code.
//!
//! Deliberately absent: I/O, clocks (time is a field of inputs), async, chance, hash order, logging, floats in state. A
//! policy may compute with floats but gives whole slots.
//!
//! Reading order: [`state`] (what is), [`apply()`](State::apply) in `apply/mod.rs` (how a fact changes it), [`decide()`] (which
//! facts follow from an input; `decide/generations.rs` is the heart), [`policy`] (who gets how many slots), [`orders()`] (what a
//! server has to run), [`watch`] (which jobs make no progress), `straggle.rs`, [`types`] and `pace.rs` (which members, types and links hold the others up), `hosts.rs` (which slots leave room for a guest), [`survey`] (which links are measured), [`effects`] and [`sweep`] (other outstanding work), [`version`] (what a change expects to find), [`Reasons`] (why a
//! job has what it has), [`invariants`] (what always holds).
//! On a job's path: from `events/log` to `decide/jobs.rs`, then `controller/server/src/run.rs`.

mod apply;
pub mod decide;
pub mod effects;
mod explain;
mod hosts;
pub mod invariants;
pub mod limits;
pub mod orders;
mod pace;
pub mod policy;
pub mod state;
pub mod straggle;
pub mod survey;
pub mod sweep;
pub mod table;
#[cfg(test)]
mod testing;
pub mod types;
pub mod version;
pub mod watch;

pub use decide::{
    Input, Planned, decide, decide_input, decide_input_folded, plan_due, plan_unless_pressed, plan_until,
};
pub use effects::{RetiredObject, next_retirement, retired_objects};
pub use explain::Reasons;
pub use orders::orders;
pub use policy::effort::{Abandoned, Interrupt};
pub use policy::{Policy, policy_by_name, policy_on_clock};
pub use state::State;
pub use survey::Survey;
pub use sweep::{Orphans, UnnamedUploads};
pub use watch::Watch;
