//! The logs: the contract of all, and what each does beyond it.
#![allow(clippy::unwrap_used)]

mod contract;
mod embedded;
mod kafka;
mod whole;
