//! The agent's decisions: scenarios one by one, and properties over random weather.
#![allow(clippy::unwrap_used)]

mod guests;
mod properties;
mod scenarios;
mod support;
mod world;
