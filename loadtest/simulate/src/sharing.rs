//! What jobs that share a slot take from each other, and how much of its slot each uses: declared, because a simulated job has no kernels. Not who shares: that is the policy's.

use serde::Serialize;

/// What an executor and the one on its guest slot take from each other while both are there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sharing {
    /// How fast the guest is, of what it would be alone.
    pub guest: f64,
    /// How fast its host is.
    pub host: f64,
}

impl Sharing {
    /// Of the one pair that AntMan prints (OSDI 2020, §5.1, figure 12): ESPnet takes 20.8 instead of 20.1 minutes beside ResNet-50, which "maintains 57 %
    /// performance". Declared for all pairs.
    pub const OF_ANTMAN: Self = Self { guest: 0.57, host: 20.1 / 20.8 };
}

/// How much of its GPU a job uses that runs there alone, in hundredths. "Only 10% of the GPUs achieve higher than 80% GPU utilization" (AntMan, §2.1, figure 1): every tenth job does, the others
/// are spread evenly below; which ones, follows from their places.
#[must_use]
pub fn busy_percent(job: usize) -> u8 {
    (job % 10 * 9) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_jobs_every_tenth_is_busy() {
        assert_eq!((0..200).filter(|job| busy_percent(*job) >= 80).count(), 20);
    }
}
