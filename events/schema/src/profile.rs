//! `profile` of a job spec: at which sizes the job is measured before it settles, and for how long at each.
//!
//! When a size is measured, and that it costs nobody else a slot, `controller-core` says (`decide/profile.rs`).

use crate::fields::{Fields, Problems, whole};
use crate::job::{JobFields, JobSpec, Workers};
use minicbor::{Decode, Encode};
use serde::Serialize;
use serde_json::Value;

/// Most sizes of a profile: doubling from 1 to the most executors that there may be.
pub const PROFILE_SIZES_MAX: usize = 9;
/// A size takes so long at most if nothing is said: a newcomer's cold start of 6.4 s (docs/measurements.md), the 2 s of the measurement, and room for models
/// that are built slowly.
pub const PROFILE_SECONDS: u16 = 60;
/// Shortest and longest time that may be said: a measurement takes 2 s and 3 steps, and after ten minutes a job is rather trained than measured.
pub const PROFILE_SECONDS_RANGE: (u16, u16) = (5, 600);

/// At which sizes a job is measured.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Profile {
    /// Numbers of executors, rising.
    #[n(0)]
    pub sizes: Vec<u16>,
    /// Each takes so long at most, the newcomers' start included.
    #[n(1)]
    pub seconds: u16,
}

impl Profile {
    /// Of whoever says only that it is wanted.
    pub(crate) fn usual(workers: Workers) -> Self {
        Self { sizes: Self::usual_sizes(workers), seconds: PROFILE_SECONDS }
    }

    /// The sizes of whoever names none: from the fewest on twice as many, again and again, and the most.
    fn usual_sizes(workers: Workers) -> Vec<u16> {
        let doubled = std::iter::successors(Some(workers.min.max(1)), |size| size.checked_mul(2));
        doubled.take_while(|size| *size < workers.max).chain([workers.max]).collect()
    }
}

impl JobSpec {
    /// The same job, which is measured at the usual sizes before it settles.
    #[must_use]
    pub fn profiled(self) -> Self {
        let profile = Some(Profile::usual(self.workers));
        Self(JobFields { profile, ..self.0 })
    }
}

/// Reads `profile` of a job with these bounds; `false` is none.
pub(crate) fn parse_profile(path: &str, value: &Value, workers: Workers) -> Result<Option<Profile>, Problems> {
    if let Value::Bool(wanted) = value {
        return Ok(wanted.then(|| Profile::usual(workers)));
    }
    let mut f = Fields::new(path, value);
    let sizes = match f.raw("sizes") {
        None => Some(Profile::usual_sizes(workers)),
        Some(given) => {
            let sizes = parse_sizes(given, workers);
            if sizes.is_none() {
                let (min, max) = (workers.min, workers.max);
                f.wrong("sizes", format!("1 to {PROFILE_SIZES_MAX} numbers of executors, each larger than the one before, from `workers.min` ({min}) to `workers.max` ({max})"));
            }
            sizes
        }
    };
    let (least, most) = PROFILE_SECONDS_RANGE;
    let seconds = f.integer("seconds", least.into()..=most.into()).map_or(PROFILE_SECONDS, |seconds| seconds as u16);
    f.finish(sizes.map(|sizes| Some(Profile { sizes, seconds })))
}

fn parse_sizes(given: &Value, workers: Workers) -> Option<Vec<u16>> {
    let numbers = given.as_array().filter(|sizes| (1..=PROFILE_SIZES_MAX).contains(&sizes.len()))?;
    let sizes: Option<Vec<u16>> = numbers.iter().map(|size| u16::try_from(whole(size)?).ok()).collect();
    let within = |size: &u16| (workers.min..=workers.max).contains(size);
    sizes.filter(|sizes| sizes.iter().all(within) && sizes.windows(2).all(|pair| pair[0] < pair[1]))
}
