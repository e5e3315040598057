//! The formats: their bytes, what is accepted, and what is refused with which words.
#![allow(clippy::unwrap_used)]

mod accepted;
mod determinism;
mod golden;
mod job_run;
mod job_spec;
mod samples;
mod values;
