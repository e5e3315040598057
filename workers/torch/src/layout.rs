//! What the child says of itself once it has built the model: how long things are, and what makes its bits its own.

use serde::Deserialize;
use std::time::Duration;

/// Lengths in elements of four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// All that is summed over the ranks in a step.
    pub gradient: usize,
    /// The beginning of that which is gradients: divided by the weight, and clipped. What follows is carried along: which parameters
    /// a gradient reached, and the buffers of rank 0.
    pub mean: usize,
    /// The beginning of the replica that a gradient needs.
    pub compute: usize,
    /// The replica.
    pub replica: usize,
}

/// Where the time of a child's start went, by its own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct StartTimes {
    import_us: u64,
    build_us: u64,
    check_us: u64,
}

impl StartTimes {
    /// Importing PyTorch and what of this package needs it; next to nothing where that was done before.
    #[must_use]
    pub fn import(&self) -> Duration {
        Duration::from_micros(self.import_us)
    }

    /// Importing the job's code and building its model.
    #[must_use]
    pub fn build(&self) -> Duration {
        Duration::from_micros(self.build_us)
    }

    /// The gradients of a fixed batch, computed in two orders.
    #[must_use]
    pub fn check(&self) -> Duration {
        Duration::from_micros(self.check_us)
    }
}

/// The child's answer to the order to build.
#[derive(Debug, Deserialize)]
pub(crate) struct Built {
    replica_words: usize,
    compute_words: usize,
    gradient_elements: usize,
    extra_elements: usize,
    pub parameter_count: u64,
    /// Steps of one pass over the rows that the code itself brings, and how many they are; none if it trains on an Ebb dataset.
    own_steps_per_epoch: Option<u64>,
    own_rows: Option<u64>,
    /// Parts into which one rank's share of the code's own held-out rows is cut.
    pub held_out_parts: Option<u64>,
    /// What it took.
    #[serde(default)]
    pub times: StartTimes,
    /// Whatever decides bits, as the child found it. Its text as a whole is compared, never its parts.
    pub class: serde_json::Value,
}

/// The rows that a job's code brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnRows {
    /// How many.
    pub rows: u64,
    /// Steps of one pass over them; at least 1.
    pub steps_per_epoch: u64,
}

impl Built {
    /// What it trains on, unless that is an Ebb dataset.
    pub fn own_rows(&self) -> Option<OwnRows> {
        let (rows, steps_per_epoch) = self.own_rows.zip(self.own_steps_per_epoch)?;
        Some(OwnRows { rows, steps_per_epoch: steps_per_epoch.max(1) })
    }

    /// None if they contradict each other.
    pub fn lengths(&self) -> Option<Lengths> {
        let gradient = self.gradient_elements.checked_add(self.extra_elements)?;
        let (compute, replica, mean) = (self.compute_words, self.replica_words, self.gradient_elements);
        let fits = mean > 0 && mean <= compute && compute <= replica && replica.checked_mul(4).is_some();
        (fits && gradient.checked_mul(4).is_some()).then_some(Lengths { gradient, mean, compute, replica })
    }
}
