//! How many slots a fleet needs, from the metrics that its servers have anyway: stated formulas, hysteresis, and what silence means.
//!
//! Pure: no sockets, no clock. The shell (`infra/ebb/src/demand_follow.rs`) asks Prometheus for [`Formula::inputs`], looks at the fleet,
//! gives both to a [`Follower`] and publishes what it says.
//! Reading order: `formula.rs` (metrics to slots), `answer.rs` (what Prometheus answers), `follower.rs` (slots to a published need).

mod answer;
mod follower;
mod formula;

pub use answer::{AnswerError, Sample, sample};
pub use follower::{FleetView, Follower, OnSilence, Settings, Standing, Step, Wish};
pub use formula::{ALL_SLOTS, Formula, Input, Reading, Source};
