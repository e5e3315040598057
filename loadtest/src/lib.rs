//! Load for a running Ebb: several fleets and job mixes from one scenario file, in open loop (what comes late delays nothing), measured
//! from events, judged by thresholds, and drawn.
//!
//! Everything but `files.rs` and `drive.rs` is pure, and the service is a trait: who runs a load (`infra/ebb/src/load.rs`) gives one.
//! Reading order: `scenario.rs` (what a file says), `trace.rs` (recorded curves), `schedule.rs` (what is asked, and when), `drive.rs`
//! (asking it), `observe.rs` (what events say came of it), `report.rs` (percentiles and thresholds), `picture.rs` and `chart.rs`.

pub mod chart;
mod drive;
mod files;
mod observe;
mod picture;
mod report;
mod scenario;
mod schedule;
pub mod trace;

pub use drive::{CallError, Coming, Happened, Ran, Service, run};
pub use files::{LoadError, Loaded, load};
pub use observe::Observer;
pub use picture::svg;
pub use report::{MEASURES, Report, Verdict};
pub use scenario::Scenario;
pub use schedule::{Action, What};
