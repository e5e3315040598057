//! What jobs that share a slot take from each other, and how much of its slot each uses: declared, because a simulated job has no kernels. Not who shares: that is the policy's.

use crate::random::Random;
use serde::Serialize;

/// What an executor and the one on its guest slot take from each other while both are there: how fast each is, of what it would be alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// The agent protects the host.
    Protected {
        /// How fast the guest is.
        guest: f64,
        /// How fast its host is.
        host: f64,
    },
    /// Nobody is protected: of two jobs the one that puts less work into the device's queue at a time waits for the other one. Which of two that is, is by chance, and
    /// always the same.
    Packed {
        /// How fast that one is.
        less: f64,
        /// How fast the other one is.
        more: f64,
    },
}

/// Of the pair that AntMan prints (OSDI 2020, §5.1, figure 12), how long ESPnet takes alone, with ResNet-50 as a guest that is held back, and packed with it, in minutes.
const ESPNET_MINUTES: [f64; 3] = [20.1, 20.8, 105.2];
/// "ResNet-50 maintains 57 % performance", held back.
const RESNET_HELD_BACK: f64 = 0.57;

impl Sharing {
    /// Of the one pair that AntMan prints. Declared for all pairs.
    pub const OF_ANTMAN: Self =
        Self::Protected { guest: RESNET_HELD_BACK, host: ESPNET_MINUTES[0] / ESPNET_MINUTES[1] };

    /// The same pair, packed. How fast ResNet-50 is then is not printed: it is taken to lose as much less as ESPnet has less of the device than where it is protected.
    pub const PACKED: Self = Self::Packed {
        less: ESPNET_MINUTES[0] / ESPNET_MINUTES[2],
        more: 1.0 - (1.0 - RESNET_HELD_BACK) * ESPNET_MINUTES[1] / ESPNET_MINUTES[2],
    };

    /// How fast a job is beside another one on the same slot, by their places among the jobs.
    #[must_use]
    pub fn speed(self, (job, is_guest): (usize, bool), other: usize) -> f64 {
        match self {
            Self::Protected { guest, host } => {
                if is_guest {
                    guest
                } else {
                    host
                }
            }
            Self::Packed { less, more } => {
                if drawn(job) < drawn(other) {
                    less
                } else {
                    more
                }
            }
        }
    }
}

/// How much work a job puts into its device's queue at a time, in a measure that only compares: drawn for each, and the same in every run.
fn drawn(job: usize) -> (usize, usize) {
    (Random::new(job as u64).below(usize::MAX), job)
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
    fn of_two_that_are_packed_the_same_one_always_waits_and_of_many_every_tenth_is_busy() {
        let Sharing::Packed { less, more } = Sharing::PACKED else { unreachable!() };
        assert!((0.19..0.20).contains(&less) && (0.91..0.92).contains(&more), "{less} {more}");
        let mut waits = 0;
        for (one, other) in (0..200).map(|job| (job, 399 - job)) {
            let speeds =
                [(one, other), (other, one)].map(|(job, beside)| Sharing::PACKED.speed((job, job > beside), beside));
            assert!(speeds == [less, more] || speeds == [more, less], "{speeds:?}");
            waits += usize::from(speeds[0] == less);
        }
        assert!((70..130).contains(&waits), "{waits} of 200");
        assert_eq!((0..200).filter(|job| busy_percent(*job) >= 80).count(), 20);
    }

    #[test]
    fn who_is_protected_is_the_host() {
        let speed = |is_guest| Sharing::OF_ANTMAN.speed((1, is_guest), 2);
        assert_eq!((speed(true), speed(false)), (0.57, 20.1 / 20.8));
    }
}
