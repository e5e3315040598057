//! The data path on every kind of store: what Ebb needs of one, and how it stands what servers and the way to them do.
#![allow(clippy::unwrap_used)]

mod contract;
mod proxy;
mod s3;
