//! Whole-system tests: real processes, killed for real, over the same HTTP API and command line that users have. One program,
//! so that the whole service is linked once. Reading order: `support.rs`, then any.
//!
//! Nothing sleeps to synchronise: every wait is for something seen, and has an end. Chance is seeded; a failure names its seed.

#![allow(clippy::unwrap_used)]

mod support;

mod brokers;
mod browser;
mod checkpoints;
mod command_line;
mod connections;
mod contract;
mod crashes;
mod damaged_disk;
mod demand_follow;
mod demo;
mod devices;
mod documents;
mod exactly_once;
mod fleet_topics;
mod flipped_bits;
mod foreseen;
mod gang;
mod guests;
mod hangs;
mod leaving;
mod load;
mod long_steps;
mod one_directory;
mod profile;
mod red_button;
mod replay;
mod rights;
mod roles;
mod schedules;
mod simulated_jobs;
mod simulation;
mod slow_link;
mod store;
mod stragglers;
mod subscribers;
mod suspension;
mod take_back;
mod telemetry;
mod tenants;
mod torch;
mod torch_data;
mod torch_environments;
mod torch_examples;
mod torch_files;
mod torch_one_gradient;
mod torch_parts;
mod torch_warm;
mod trace_import;
mod two_hosts;
mod types;
mod verify;
mod waiting;
