//! The simulator: its runs, the results of papers, its pages, and how near it is to what is live.
#![allow(clippy::unwrap_used)]

mod detailed;
mod live;
mod papers;
mod pollux;
mod report;
mod runs;
