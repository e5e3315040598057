//! What Ebb can say: the vocabulary shared by every other crate, and the bytes it is written in.
//!
//! Pure: no I/O, no clock, no chance. Nothing here decides anything; `controller-core` does.
//!
//! Reading order: [`ids`] (one type per thing), [`job`] (what a user submits, with [`torch`] where the model is the user's own [`gang`] where the program is, and [`retrains`] where it trains what another one trained), [`dataset`] (what it reads),
//! [`tree`] (how ranks are summed and placed), [`command`] (what is asked), [`report`] (what was seen, [`device`] of devices, [`slot_type`] of types,
//! [`spread`] of how sure a duration is),
//! [`fact`] (what was decided), [`batch`] (how facts stand in the log), [`orders`] (what an agent is told), [`control`] (what
//! an agent tells an executor), [`trace`] (which trace something belongs to). What subscribers
//! read is `events/public`. Next on a job's path: `events/log/src/lib.rs`.
//!
//! Glossary. *Command*: something asked; may be refused, and the refusal is a fact. *Report*: something an agent saw.
//! *Fact*: what the controller decided, final; only facts change state. *Orders*: what one server has to do, derived
//! from state, never stored. *Generation*: a numbered membership of a job. *Stride*: steps that one update takes. *Type*: what slots are called by how fast
//! they are, beside the numeric class, which says what bits come out. *Term*: the offset of a controller's claim.

pub mod batch;
pub mod checkpoint;
pub mod command;
pub mod control;
pub mod dataset;
pub mod determinism;
pub mod device;
mod document;
pub mod duration;
pub mod evaluation;
mod exit;
pub mod fact;
pub mod fields;
pub mod fold;
pub mod frame;
pub mod gang;
pub mod ids;
pub mod initial;
pub mod job;
mod model;
pub mod orders;
mod outcome;
pub mod profile;
pub mod report;
mod requirements;
pub mod retrains;
pub mod slot_type;
pub mod spread;
pub mod stride;
pub mod torch;
pub mod trace;
pub mod tree;

pub use ids::*;
pub use trace::TraceContext;
