//! Datasets and checkpoints: everything Ebb keeps outside its log.
//!
//! What is atomic here: one object. A checkpoint exists when its manifest does, a dataset when its metadata does; both are
//! written last, and a manifest only if nobody wrote it before. Nothing here decides: which checkpoint counts and what may be
//! deleted, the controller says.
//!
//! Reading order: [`store`] (one address to one store), [`keys`] (a pure crate: every object's name, writer and deleter), [`retry`] (faults),
//! [`dataset`] (what a dataset is and how it is made), [`order`] (pure: which rank reads which sample when), [`loader`] (reads
//! them), [`checkpoint`], [`uploads`] (what jobs to come may name). On a job's path the next file is `workers/executor/src/lib.rs`.

mod ahead;
pub mod checkpoint;
pub mod code;
pub mod folder;

pub mod dataset;
#[cfg(test)]
mod faults;
pub mod initial;
pub mod links;
pub mod loader;
pub mod logs;
mod object;
pub mod order;

mod reader;
pub mod retry;
pub mod store;
pub mod stored;
pub mod uploads;
#[cfg(feature = "testing")]
pub mod watched;

pub use links::Links;
pub use loader::{Loader, LoaderLimits, LoaderMetrics};
pub use object::WholeError;
pub use reader::DataError;
pub use storage_keys as keys;
pub use store::{OpenStoreError, open_store};
